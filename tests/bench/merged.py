"""Merge on read: upserts of 505,000 keys into 5 million rows in 16 file groups, then a read.

Each round upserts every tenth key and some new ones into three tables of the same rows. Then the
merge-on-read table has a log file for each round behind each base file, and all its rows are read:
before and after a compaction, and by hudi-rs. Everything runs in this process, without Spark.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lockkit.table import Table

ROWS, UPDATES, INSERTS, ROUNDS = 5_000_000, 500_000, 5_000, 5
QUICK = 20
GROUPS = 16
READS = 3
MERGED, COPIED, PYLANCE = "upsert, merge on read", "upsert, copy on write", "upsert, pylance"
LOGS, COMPACTED, HUDI_RS = "read with log files", "read, compacted", "read with log files, hudi-rs"
ONE, ONE_COMPACTED = "read one column with log files", "read one column, compacted"
COMPACTION = "compaction"


def goals(result: dict[str, Any]) -> list[tuple[str, float, float]]:
    wall_s = {name: row["wall_s"] for name, row in result["rows"].items()}

    def of(what: str, other: str) -> float:
        return round(float(wall_s[what] / wall_s[other]), 2)

    return [
        ("merge-on-read upsert, times copy on write", of(MERGED, COPIED), 0.5),
        ("merge-on-read upsert, times pylance", of(MERGED, PYLANCE), 1.2),
        ("read with log files, times compacted", of(LOGS, COMPACTED), 2),
        ("read with log files, times hudi-rs", of(LOGS, HUDI_RS), 1),
    ]


def rows(first: int, count: int, step: int, at: int) -> pa.Table:
    """Every `step`-th key from `first` on, in five columns."""
    number = pa.array(range(first, first + count * step, step), pa.int64())
    padded = pc.utf8_lpad(number.cast(pa.string()), 12, "0")
    regions = pa.array(["EU", "US", "ASIA", "AFRICA"])
    small = pc.subtract(number, pc.multiply(pc.divide(number, 1000), 1000))
    return pa.table({
        "id": pc.binary_join_element_wise("k", padded, ""),
        "at": pa.repeat(pa.scalar(at, pa.int64()), count),
        "region": regions.take(pc.bit_wise_and(number, 3)),
        "amount": pc.divide(small.cast(pa.float64()), 100),
        "n": small.cast(pa.int32()),
    })  # fmt: skip


def changes(size: int, changed: int, new: int, number: int) -> pa.Table:
    """The upserts of round `number`: keys spread over the whole table, and new ones."""
    spread = rows(number, changed, size // changed, number)
    return pa.concat_tables([spread, rows(size + number * new, new, 1, number)])


def timed_s(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main(quick: bool = False, by: int = 1) -> dict[str, Any]:
    by = QUICK if quick else by
    size, changed, new = ROWS // by, UPDATES // by, INSERTS // by
    taken: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        first = rows(0, size, 1, 0)
        ways = _writers(home, first)
        for number in range(1, ROUNDS + 1):
            source = changes(size, changed, new, number)
            for name, way in ways.items():
                taken.setdefault(name, []).append(timed_s(partial(way, source)))
        merged = home / "merged"
        with Table(f"file://{merged}") as table:
            every = table.read().num_rows
            _reads(taken, {
                LOGS: lambda: table.read(), HUDI_RS: lambda: _hudi_rs(merged),
                ONE: lambda: table.read(columns=["amount"]),
            }, every)  # fmt: skip
            assert every == size + ROUNDS * new
            taken[COMPACTION] = [timed_s(table.compact)]
            _reads(taken, {
                COMPACTED: lambda: table.read(),
                ONE_COMPACTED: lambda: table.read(columns=["amount"]),
            }, every)  # fmt: skip
    return {
        "table_rows": size, "keys_a_round": changed + new, "file_groups": GROUPS, "rounds": ROUNDS,
        "rows": {name: {"wall_s": round(statistics.median(each), 3)} for name, each in
                 taken.items()},
    }  # fmt: skip


def _reads(
    taken: dict[str, list[float]], ways: dict[str, Callable[[], pa.Table]], every: int
) -> None:
    for _ in range(READS):
        for name, way in ways.items():
            began = time.perf_counter()
            found = way()
            taken.setdefault(name, []).append(time.perf_counter() - began)
            assert found.num_rows == every, name


def _writers(home: Path, first: pa.Table) -> dict[str, Callable[[pa.Table], object]]:
    import lance

    how: Any = {"record_key": "id", "precombine": "at", "buckets": GROUPS}
    urls = {MERGED: f"file://{home}/merged", COPIED: f"file://{home}/copied"}
    for name, url in urls.items():
        kind = "MERGE_ON_READ" if name == MERGED else "COPY_ON_WRITE"
        with Table.create(url, table_type=kind, **how) as table:
            table.upsert(first)
    lance.write_dataset(first, str(home / "lance"))

    def upsert(url: str) -> Callable[[pa.Table], object]:
        def way(source: pa.Table) -> None:
            with Table(url) as table:
                table.upsert(source)

        return way

    def pylance(source: pa.Table) -> None:
        merge = lance.dataset(str(home / "lance")).merge_insert("id")
        merge.when_matched_update_all().when_not_matched_insert_all().execute(source)

    return {name: upsert(url) for name, url in urls.items()} | {PYLANCE: pylance}


def _hudi_rs(folder: Path) -> pa.Table:
    import hudi

    return pa.Table.from_batches(
        [pa.record_batch(each) for each in hudi.HudiTable(str(folder)).read()]
    )
