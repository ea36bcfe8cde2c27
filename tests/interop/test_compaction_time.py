"""How long a compaction takes: Hudi's, and beside it ours, of copies of one table in one run.

Prints the figures; what it asserts is that both did the same work. `INTEROP_ROWS` is its size,
`INTEROP_ROUNDS` how often each compacts. Its tables stay in the folder `INTEROP_TABLES` for the
next run.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from environment import Environment
from hudi_world import Hudi

from lockkit.table import Table

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1800)]
ROWS = int(os.environ.get("INTEROP_ROWS", 1_000_000))
ROUNDS = int(os.environ.get("INTEROP_ROUNDS", 3))
BUCKETS, LOGS = 8, 3
EVERY = 10
OPTIONS = ",".join(f"{key}={value}" for key, value in {
    "hoodie.metadata.enable": "false", "hoodie.compact.inline.max.delta.commits": "1",
    "hoodie.datasource.write.recordkey.field": "id", "hoodie.table.type": "MERGE_ON_READ",
    "hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": str(BUCKETS),
    "hoodie.write.table.version": "9", "hoodie.embed.timeline.server": "false",
}.items())  # fmt: skip
SUMS = ["count(*) n", "count(distinct id) keys", f"sum(case when at = {LOGS} then 1 end) changed"]


def rows(every: int, at: int) -> pa.Table:
    """Five columns: a key, a word, two numbers and the time that says which row is newer."""
    numbers = range(0, ROWS, every)
    return pa.table({
        "id": [f"{number:012d}" for number in numbers],
        "word": [f"{number * 2_654_435_761 % 2**64:016x}" for number in numbers],
        "amount": pa.array([number * 7 for number in numbers], pa.int64()),
        "price": [number / 3 for number in numbers],
        "at": pa.array([at] * len(numbers), pa.int64()),
    })


def make(place: Path, blocks: str) -> None:
    shutil.rmtree(place, ignore_errors=True)
    with Table.create(
        place.as_uri(), record_key="id", precombine="at", table_type="MERGE_ON_READ", mode="hudi",
        index="BUCKET", buckets=BUCKETS, options={"hoodie.logfile.data.block.format": blocks},
    ) as table:  # fmt: skip
        table.upsert(rows(1, 0))
        table.compact()
        for number in range(LOGS):
            table.upsert(rows(EVERY, number + 1))


@pytest.fixture(scope="module")
def hudi_alone(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Any:
    log = tmp_path_factory.mktemp("hudi-compaction") / "log"
    running = Hudi(environment, "http://127.0.0.1:9", log, **{"spark.driver.memory": "4g"})
    yield running
    running.close()


@pytest.mark.parametrize("blocks", ["avro", "parquet"])
def test_a_compaction_of_ours_has_the_rows_of_hudis_and_prints_both_times(
    hudi_alone: Hudi, tmp_path: Path, blocks: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Path(os.environ.get("INTEROP_TABLES", tmp_path)) / f"{blocks}-{ROWS}"
    if not (made / "done").exists():
        make(made, blocks)
        (made / "done").touch()
    seconds: dict[str, list[float]] = {"Hudi": [], "lockkit": []}
    wanted = [{"n": ROWS, "keys": ROWS, "changed": -(-ROWS // EVERY)}]
    for number in range(ROUNDS):
        for who, taken in seconds.items():
            path = shutil.copytree(made, tmp_path / f"{who}{number}")
            began = time.monotonic()
            if who == "Hudi":
                for what in ("schedule", "run"):
                    hudi_alone("sql", text=f"CALL run_compaction(op => '{what}', path => '{path}', "
                               f"options => '{OPTIONS}')")  # fmt: skip
                taken.append(time.monotonic() - began)
            else:
                with Table(path.as_uri()) as table:
                    assert table.compact() is not None
                taken.append(time.monotonic() - began)
            with capsys.disabled():
                print(f"  {who}: {taken[-1]:.2f} s", flush=True)
            base = {"hoodie.datasource.query.type": "read_optimized"}
            assert hudi_alone("read", path=str(path), select=SUMS, options=base) == wanted
            shutil.rmtree(path)
    best = {who: min(taken) for who, taken in seconds.items()}
    with capsys.disabled():
        print(f"\ncompaction of {ROWS:,} rows, {BUCKETS} file groups, {LOGS} log files each with "
              f"{ROWS // EVERY // BUCKETS:,} rows ({blocks}):")  # fmt: skip
        for who, taken in seconds.items():
            print(f"  {who:8} {', '.join(f'{each:.2f}' for each in taken)} s")
        print(f"  lockkit has {best['Hudi'] / best['lockkit']:.2f} times Hudi's speed")
