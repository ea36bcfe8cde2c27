"""Hudi 0.15, which users of table version 6 run: its tables, and writes of both in turn."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from environment import Environment, Unavailable
from hudi_rs import read_by_hudi_rs
from hudi_world import Hudi
from jvm import ALONE, fetched
from ours import SPARK_SCHEMA, arrow, order

from lockkit.cli.main import main
from lockkit.lab.server import Emulator
from lockkit.table import Table

pytestmark = [
    pytest.mark.interop, pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::lockkit.table.read.listed.LocalInstants"),
]  # fmt: skip
BUNDLE = ("org.apache.hudi", "hudi-spark3.5-bundle_2.12", "0.15.0")
WRITE = "hoodie.datasource.write."
OPTIONS = {
    "hoodie.table.name": "orders", WRITE + "recordkey.field": "id", WRITE + "operation": "upsert",
    WRITE + "precombine.field": "at", WRITE + "partitionpath.field": "region",
    "hoodie.embed.timeline.server": "false", "hoodie.compact.inline": "false",
}  # fmt: skip
ORDERS = {"by event": {
    WRITE + "payload.class": "org.apache.hudi.common.model.DefaultHoodieRecordPayload",
}, "by commit": {}}  # fmt: skip
"""Before 1.0 the later commit wins by default."""
COMPACT = {"hoodie.compact.inline": "true", "hoodie.compact.inline.max.delta.commits": "1"}
PLAN = {"hoodie.compact.schedule.inline": "true", "hoodie.compact.inline.max.delta.commits": "1"}
ARCHIVES = {
    "hoodie.clean.commits.retained": "1", "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3", "hoodie.commits.archival.batch": "1",
}  # fmt: skip
BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "3"}
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def older(
    environment: Environment, server: Emulator, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hudi]:
    """Spark with the bundle of Hudi 0.15; the lock's client is of a later interface."""
    try:
        folder = Path(fetched("hudi15", {BUNDLE: ALONE}).removesuffix("/*"))
    except Unavailable as reason:
        pytest.skip(f"Hudi 0.15 cannot be run here: {reason}")
    jars = (*folder.glob("*.jar"), *(each for each in environment.jars if "hudi" not in each.name))
    env = replace(environment, jars=jars, classes=folder)
    running = Hudi(env, server.s3, tmp_path_factory.mktemp("older") / "log")
    yield running
    running.close()


@pytest.mark.parametrize("place", ["s3", "file"])
@pytest.mark.parametrize("index", ["simple", "buckets"])
@pytest.mark.parametrize("order_by", ORDERS)
@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_hudi_0_15_with_its_defaults_and_lockkit_write_in_turn_and_all_read_the_same(
    older: Hudi, server: Emulator, tmp_path: Path, kind: str, order_by: str, index: str, place: str
) -> None:
    url = f"file://{tmp_path}/orders"
    path, endpoint, where = str(tmp_path / "orders"), "", list[str]()
    if place == "s3":
        url, endpoint = f"s3://older-{next(NUMBERS)}/orders", server.s3
        path, where = url, ["--endpoint", endpoint]
    buckets = ["--buckets", "3"] if index == "buckets" else []
    merged = kind == "MERGE_ON_READ"
    options = OPTIONS | ORDERS[order_by] | {WRITE + "table.type": kind}
    options |= BUCKETS if index == "buckets" else {}
    expected: dict[str, int] = {}

    def rows(at: int, *numbers: int) -> list[dict[str, Any]]:
        return [order(f"k{n}", region="EU" if n % 2 else "US", amount=at, at=at) for n in numbers]

    def wrote(at: int, *numbers: int, by_event: bool = order_by == "by event") -> None:
        for key in (f"k{n}" for n in numbers):
            expected[key] = max(expected.get(key, 0), at) if by_event else at

    def theirs(at: int, *numbers: int, **more: str) -> None:
        mode = "append" if expected else "overwrite"
        older.write(path, rows(at, *numbers), schema=SPARK_SCHEMA, mode=mode,
                    options=options | more)  # fmt: skip
        wrote(at, *numbers)

    def ours(at: int, *numbers: int) -> None:
        table.upsert(arrow(rows(at, *numbers)))
        # The properties of a copy-on-write table do not say the payload's class.
        wrote(at, *numbers, by_event=not merged or order_by == "by event")

    def all_show(*, by_rs: bool = True) -> None:
        shown = {"lockkit": table.read().to_pylist(), "Hudi": older.read(path)}
        if by_rs:
            shown["hudi-rs"] = read_by_hudi_rs(path, endpoint).to_pylist()
        for who, found in shown.items():
            held = sorted((row["id"], row["amount"]) for row in found)
            assert held == sorted(expected.items()), who

    theirs(10, *range(8))
    theirs(20, 1, 2, 3, 8)
    with Table(url, endpoint=endpoint or None) as table:
        all_show()
        assert main(["table", "adopt", url, *where, *buckets]) == 0
        ours(30, 2, 3, 4, 9)
        all_show()
        theirs(40, 3, 4, 9, 10)
        all_show()
        # Older by event. Of two rows in log files Hudi 0.15 takes the greater one, whatever the
        # payload class, and Hudi 1.x and lockkit the later one, if the payload's class says so.
        ours(45 if merged and order_by == "by commit" else 35, 4, 10)
        table.delete(arrow(rows(50, 5, 8)))
        expected.pop("k5"), expected.pop("k8")
        all_show()
        if merged:
            theirs(60, 2, 6, **PLAN)
            ours(70, 1, 2)
            theirs(80, 6, 9)
            all_show(by_rs=False)
            table.compact()
            all_show()
            ours(90, 2, 7)
            theirs(100, 6, 7, **COMPACT)
            all_show()
        for at in range(200, 206):
            theirs(at, 3, 4, **ARCHIVES)
        all_show()
        ours(300, 3, 11)
        theirs(310, 3, 12)
        all_show()
