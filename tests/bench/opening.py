"""What opening a table costs whose archive has 10,000 instants, over one with 30.

The table is in Hudi's format, version 9, in the mode in which Hudi writes too: no fence and no
checkpoint of ours shortens the way. Both have the same commits on the timeline. The archive's
further instants are copies of one of its own under earlier times, in the same file of the archive.
"""

from __future__ import annotations

import io
import statistics
import time
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lockkit import Clock
from lockkit.protocol.outcome import Found, IfVersion
from lockkit.runtime import run
from lockkit.stores import Store
from lockkit.table import Table
from lockkit.table.format.timeline import instant_ms, instant_of
from lockkit.table.read.opening import load_snapshot

COMMITS, KEPT = 42, 10
"""So that about 30 are archived."""
MORE, QUICK_MORE = 10_000, 500
OPENINGS = 21
ARCHIVE = ".hoodie/timeline/history/"
OPTIONS = {
    "hoodie.clean.automatic": "false", "hoodie.clean.commits.retained": "3",
    "hoodie.write.concurrency.mode": "single_writer",
}  # fmt: skip


class Counting:
    """A store that counts the requests."""

    def __init__(self, store: Store) -> None:
        self.store, self.requests = store, 0

    def __getattr__(self, name: str) -> Any:
        self.requests += name in ("get", "put", "list", "delete", "get_file")
        return getattr(self.store, name)


def goals(result: dict[str, Any]) -> list[tuple[str, float, float]]:
    few, many = result["rows"].values()
    return [
        (f"opening with {result['archived']:,} archived instants, {what}, times one with 30",
         round(many[what] / few[what], 2), 1.5)
        for what in ("requests", "p50_ms")
    ]  # fmt: skip


def _opened(store: Store) -> dict[str, Any]:
    taken, counting = [], Counting(store)
    for _ in range(OPENINGS):
        counting.requests = 0
        began = time.perf_counter()
        run(load_snapshot(), counting, Clock())
        taken.append(time.perf_counter() - began)
    listed = store.list(ARCHIVE)
    return {
        "requests": counting.requests, "p50_ms": round(statistics.median(taken) * 1000, 2),
        "archive_files": len(listed), "archive_bytes": sum(each.size for each in listed),
    }  # fmt: skip


def _grow(store: Store, more: int) -> None:
    """Put `more` instants in front of those that the archive's newest file has."""
    key = max(each.key for each in store.list(ARCHIVE) if each.key.endswith(".parquet"))
    found = store.get(key)
    assert isinstance(found, Found)
    there = pq.read_table(io.BytesIO(found.body))
    first = there.slice(0, 1).to_pylist()[0]
    at_ms = instant_ms(first["instantTime"])
    copies = [
        first | {"instantTime": instant_of(at_ms - number * 1000),
                 "completionTime": instant_of(at_ms - number * 1000 + 10)}
        for number in range(more, 0, -1)
    ]  # fmt: skip
    out = io.BytesIO()
    pq.write_table(pa.concat_tables([pa.Table.from_pylist(copies, there.schema), there]), out)
    store.put(key, out.getvalue(), IfVersion(found.version))


def main(quick: bool = False) -> dict[str, Any]:
    more = QUICK_MORE if quick else MORE
    with Table.create(
        "memory://opening", record_key="id", precombine="at", mode="hudi", buckets=2,
        options=OPTIONS,
    ) as table:  # fmt: skip
        for number in range(COMMITS):
            table.upsert(pa.table({"id": [f"k{number % 20}"], "at": [number]}))
        table.clean()
        done = table.archive(keep_min=KEPT, keep_max=KEPT + 2)
        assert done is not None
        few = _opened(table.store)
        _grow(table.store, more)
        many, count = _opened(table.store), len(done.instants)
    return {
        "archived": count + more,
        "rows": {f"{count} archived instants": few, f"{count + more:,} archived instants": many},
    }
