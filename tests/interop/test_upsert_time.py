"""How long an upsert takes: Hudi's bundle, and beside it ours, on the same rows in one run.

Prints the figures; what it asserts is that both did the same work. `INTEROP_ROWS` makes it smaller.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from environment import Environment
from hudi_world import Hudi
from test_hudi import OPERATION, OPTIONS

from lockkit.spark.java import spark_env

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1800)]

ROWS = int(os.environ.get("INTEROP_ROWS", 5_000_000))
GROUPS = 16
ROUNDS = 2
HEAP = "5g"
EVERY, NEW = 10, max(ROWS // 1000, 1)  # of 5,000,000: 500,000 old keys and 5,000 new ones
OURS = Path(__file__).with_name("ours_spark.py")
FLAT = {
    **{k: v for k, v in OPTIONS.items() if "lock" not in k and "concurrency" not in k},
    "hoodie.table.name": "bench",
    "hoodie.write.table.version": "6",
    "hoodie.datasource.write.partitionpath.field": "",
    "hoodie.datasource.write.keygenerator.class":
        "org.apache.hudi.keygen.NonpartitionedKeyGenerator",
    "hoodie.cleaner.policy.failed.writes": "EAGER",
    "hoodie.bulkinsert.shuffle.parallelism": str(GROUPS),
    "hoodie.upsert.shuffle.parallelism": str(GROUPS),
    "hoodie.parquet.small.file.limit": "0",
}  # fmt: skip
SUMS = ["count(*) n", "count(distinct id) keys", f"sum(case when at = {ROUNDS} then 1 end) changed"]
WANTED = {"n": ROWS + NEW, "keys": ROWS + NEW, "changed": ROWS // EVERY + NEW}
INDEXES = {
    "simple": {"hoodie.index.type": "SIMPLE"},
    "bucket": {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": str(GROUPS)},
}


def select(key: str, at: int) -> list[str]:
    """Five columns: a key, a word, two numbers and the time that says which row is newer."""
    return [
        f"lpad(cast({key} as string), 12, '0') id",
        f"substr(md5(cast({key} as string)), 1, 16) word",
        f"cast({key} * 7 as long) amount",
        f"cast({key} as double) / 3 price",
        f"cast({at} as long) at",
    ]


@pytest.fixture(scope="module")
def source(hudi: Hudi, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows to begin with, and one set of changed and new ones for each round."""
    folder = tmp_path_factory.mktemp("rows")
    hudi("make", rows=ROWS, files=GROUPS, select=select("id", 0), path=str(folder / "first"))
    old = ROWS // EVERY
    for number in range(ROUNDS):
        key = f"(case when id < {old} then id * {EVERY} else {ROWS} + id - {old} end)"
        hudi("make", rows=old + NEW, files=2, select=select(key, number + 1),
             path=str(folder / f"more{number}"))  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def theirs(
    environment: Environment, source: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, float]:
    """The best of two upserts by each of Hudi's indexes, in seconds."""
    folder = tmp_path_factory.mktemp("hudi-bench")
    hudi = Hudi(environment, "http://127.0.0.1:9", folder / "log", **{"spark.driver.memory": HEAP})
    seconds = {}
    for name, index in INDEXES.items():
        path, options = str(folder / name), FLAT | index
        hudi("write", parquet=str(source / "first"), path=path, mode="overwrite", parts=GROUPS,
             options=options | {OPERATION: "bulk_insert"})  # fmt: skip
        groups = hudi("read", path=path, select=["count(distinct _hoodie_file_name) files"])
        assert groups == [{"files": GROUPS}]
        seconds[name] = min(
            hudi("write", parquet=str(source / f"more{number}"), path=path, options=options)[
                "seconds"
            ]
            for number in range(ROUNDS)
        )
        assert hudi("read", path=path, select=SUMS) == [WANTED]
    hudi.close()
    return seconds


def test_an_upsert_of_ours_has_the_rows_of_hudis_and_prints_both_times(
    theirs: dict[str, float], source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {
        "url": (tmp_path / "table").as_uri(), "source": str(source), "rounds": ROUNDS,
        "groups": GROUPS, "heap": HEAP,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(OURS), json.dumps(said)], env=spark_env(), text=True,
        capture_output=True, timeout=1500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    ours = json.loads(done.stdout.splitlines()[-1])
    assert ours["sums"] == WANTED
    best = min(theirs, key=lambda name: theirs[name])
    with capsys.disabled():
        keys = ROWS // EVERY + NEW
        print(f"\nupsert of {keys:,} keys into {ROWS:,} rows, {GROUPS} file groups:")
        for name, seconds in {**theirs, "lockkit": ours["seconds"]}.items():
            print(f"  {name:8} {seconds:7.2f} s  {keys / seconds:10,.0f} upserts/s")
        print(f"  lockkit takes {ours['seconds'] / theirs[best]:.2f} times as long as {best}")
