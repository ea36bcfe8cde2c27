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
FORMATS = ("Avro", "Parquet")
"""The blocks of log files: Hudi's default, and what `hoodie.logfile.data.block.format` may say."""
MERGED, COPIED, PYLANCE = "upsert, merge on read", "upsert, copy on write", "upsert, pylance"
LOGS, COMPACTED, HUDI_RS = "read with log files", "read, compacted", "read with log files, hudi-rs"
ONE, ONE_COMPACTED = "read one column with log files", "read one column, compacted"
COMPACTION = "compaction"


def goals(result: dict[str, Any]) -> list[tuple[str, float, float]]:
    wall_s = {name: row["wall_s"] for name, row in result["rows"].items()}

    def of(what: str, other: str) -> float:
        return round(float(wall_s[what] / wall_s[other]), 2)

    return [
        (f"{what}, {blocks} blocks", of(f"{mine}, {blocks}", other), most)
        for blocks in FORMATS
        for what, mine, other, most in (
            ("merge-on-read upsert, times copy on write", MERGED, COPIED, 0.5),
            ("merge-on-read upsert, times pylance", MERGED, PYLANCE, 1.2),
            ("read with log files, times compacted", LOGS, f"{COMPACTED}, {blocks}", 2),
            ("read with log files, times hudi-rs", LOGS, f"{HUDI_RS}, {blocks}", 1),
        )
    ]  # fmt: skip


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
        for blocks in FORMATS:
            _read_and_compact(home / blocks, blocks, taken, size + ROUNDS * new)
    return {
        "table_rows": size, "keys_a_round": changed + new, "file_groups": GROUPS, "rounds": ROUNDS,
        "rows": {name: {"wall_s": round(statistics.median(each), 3)} for name, each in
                 taken.items()},
    }  # fmt: skip


def _read_and_compact(folder: Path, blocks: str, taken: dict[str, list[float]], every: int) -> None:
    def named(ways: dict[str, Callable[[], pa.Table]]) -> dict[str, Callable[[], pa.Table]]:
        return {f"{name}, {blocks}": way for name, way in ways.items()}

    with Table(f"file://{folder}") as table:
        table.read()
        _reads(taken, named({
            LOGS: lambda: table.read(), HUDI_RS: lambda: _hudi_rs(folder),
            ONE: lambda: table.read(columns=["amount"]),
        }), every)  # fmt: skip
        taken[f"{COMPACTION}, {blocks}"] = [timed_s(table.compact)]
        _reads(taken, named({
            COMPACTED: lambda: table.read(),
            ONE_COMPACTED: lambda: table.read(columns=["amount"]),
        }), every)  # fmt: skip


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
    urls = {f"{MERGED}, {blocks}": f"file://{home}/{blocks}" for blocks in FORMATS}
    for url, blocks in zip(urls.values(), FORMATS, strict=True):
        options = {"hoodie.logfile.data.block.format": blocks.lower()}
        with Table.create(url, table_type="MERGE_ON_READ", options=options, **how) as table:
            table.upsert(first)
    urls[COPIED] = f"file://{home}/copied"
    with Table.create(urls[COPIED], **how) as table:
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
