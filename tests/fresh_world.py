"""Rows that are read from a table and written back, while another writer commits in between.

    python tests/fresh_world.py sc://HOST:PORT FOLDER    what became of every way, as JSON

Each table has one row, a=0. The other writer sets a=100, and the rows that were read add 1: correct
are a=101, or a=100 and a refusal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from spark_world import KEYS, SAID, frame, stored

from lockkit.errors import TableError
from lockkit.spark import read, register, unwrapped, write
from lockkit.spark.connect import connect_session
from lockkit.table.errors import CommitConflict

Way = Callable[[Any, str], Any]
"""Of a session and a table's address: the rows that are written back."""


def more(rows: Any) -> Any:
    return rows.selectExpr("id", "region", "at + 20 as at", "v + 1 as v")


def load(spark: Any, url: str) -> Any:
    return spark.read.format("lockkit").load(url)


def seen(rows: Any) -> Any:
    rows.collect()
    return rows


def cached(rows: Any) -> Any:
    return seen(rows.cache())


def joined(rows: Any) -> Any:
    """Of other rows have the key and the partition; what was read has only the sums."""
    other = frame(rows.sparkSession, ("a", "EU"), columns="id string, region string")
    old = rows.selectExpr("id as old_id", "at", "v")
    sums = other.join(old, other.id == old.old_id)
    return sums.selectExpr("id", "region", "at + 20 as at", "v + 1 as v")


def view(spark: Any, url: str, name: str = "orders") -> str:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {name} USING lockkit OPTIONS (path '{url}')")
    return f"SELECT id, region, at + 20 at, v + 1 v FROM {name}"


def of_cached_view(spark: Any, url: str) -> Any:
    text = view(spark, url)
    spark.sql("CACHE TABLE orders")
    return spark.sql(text)


def in_a_subquery(spark: Any, url: str) -> Any:
    cached(load(spark, url)).createOrReplaceTempView("kept")
    frame(spark, ("a", "EU"), columns="id string, region string").createOrReplaceTempView("one")
    sums = "(SELECT max(at) + 20 FROM kept) at, (SELECT max(v) + 1 FROM kept) v"
    return spark.sql(f"SELECT id, region, {sums} FROM one")


WAYS: dict[str, Way] = {
    "loaded": lambda spark, url: more(load(spark, url)),
    "loaded and seen": lambda spark, url: more(seen(load(spark, url))),
    "loaded and cached": lambda spark, url: more(cached(load(spark, url))),
    "cached when changed": lambda spark, url: cached(more(load(spark, url))),
    "checkpoint": lambda spark, url: more(load(spark, url).localCheckpoint()),
    "joined": lambda spark, url: joined(load(spark, url)),
    "seen and joined": lambda spark, url: joined(seen(load(spark, url))),
    "cached and joined": lambda spark, url: joined(cached(load(spark, url))),
    "checkpoint and joined": lambda spark, url: joined(load(spark, url).localCheckpoint()),
    "read": lambda spark, url: more(read(spark, url)),
    "read by Arrow": lambda spark, url: more(read(spark, url, native=False)),
    "read and joined": lambda spark, url: joined(read(spark, url)),
    "read by Arrow and joined": lambda spark, url: joined(read(spark, url, native=False)),
    "a view": lambda spark, url: spark.sql(view(spark, url)),
    "a view that was seen": lambda spark, url: spark.sql(
        seen(spark.sql(view(spark, url))) and "SELECT id, region, at + 20 at, v + 1 v FROM orders"
    ),
    "a cached view": of_cached_view,
    "a cached view's frame": lambda spark, url: (
        of_cached_view(spark, url) and more(spark.table("orders"))
    ),
    "a subquery": in_a_subquery,
}

ON_CONNECT = ("loaded", "loaded and seen", "loaded and cached", "checkpoint", "cached and joined",
              "read and joined", "a cached view")  # fmt: skip


def first(spark: Any, url: str) -> None:
    write(frame(spark, ("a", "EU", 0, 0)), url, buckets=2, **KEYS)


def other(spark: Any, url: str) -> None:
    write(frame(spark, ("a", "EU", 10, 100)), url)


def retried(spark: Any, url: str, way: Way) -> tuple[str, int]:
    """What a `write` with retries says, whose first attempt meets the other's commit; and a."""
    first(spark, url)
    rows, others = way(spark, url), [other]

    def claim(_instant: str) -> None:
        if others:
            others.pop()(spark, url)

    return outcome_of(lambda: write(rows, url, retries=5, claim=claim)), value(url)


def saved(spark: Any, url: str, way: Way, mode: str) -> tuple[str, int]:
    """What a `save` says, of rows that were read before the other's commit; and a."""
    first(spark, url)
    rows = way(spark, url)
    other(spark, url)
    return outcome_of(lambda: save(rows, url, mode)), value(url)


def save(rows: Any, url: str, mode: str = "append") -> None:
    with unwrapped():
        rows.write.format("lockkit").mode(mode).options(**SAID).save(url)


def outcome_of(do: Callable[[], Any]) -> str:
    try:
        do()
    except (TableError, CommitConflict) as error:
        return type(error).__name__
    return "committed"


def value(url: str) -> int:
    ((_, _, v),) = stored({"url": url})
    return int(v)


def main(remote: str, folder: str) -> dict[str, Any]:
    spark = connect_session(remote)
    register(spark)
    outcome_of = {
        each: retried(spark, f"file://{folder}/{number}", WAYS[each])
        for number, each in enumerate(ON_CONNECT)
    }
    spark.stop()
    return outcome_of


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:])) + "\n")
