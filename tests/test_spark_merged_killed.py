"""Spark drivers that are killed in mid upsert of a merge-on-read table, or get no answer.

Real processes: a proxy holds one write of the driver's, then the driver and its JVM are killed.
The first write after that is a plain one, without a retry, once the dead driver's lease and
heartbeat have expired. Judged by hudi-rs.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from spark_merged_driver import MERGED, NEW, OLD
from spark_world import APART, COLUMNS, by_hudi_rs, stored
from test_spark_cluster import connect
from test_spark_killed import values

from lockkit.clock import Clock
from lockkit.lab.faults import Fault, Proxy
from lockkit.lab.processes.process import kill_tree
from lockkit.runtime import run
from lockkit.spark.java import spark_env
from lockkit.stores import open_store
from lockkit.table import Table
from lockkit.table.format.timeline import V9, load_timeline

pytestmark = [*APART, pytest.mark.xdist_group("spark processes"), pytest.mark.soak]
HERE = Path(__file__).parent
MORE = ("d", "EU", 1, 4)


def rows(*listed: tuple[str, str, int, int]) -> Any:
    import pyarrow as pa

    names = [each.split()[0] for each in COLUMNS.split(", ")]
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in listed])


@pytest.fixture
def place(shared_emulator: Any, bucket: str) -> dict[str, Any]:
    """A table with one commit of a Python writer's."""
    place = {"url": f"s3://{bucket}/orders", "endpoint": shared_emulator.s3}
    with Table.create(
        **place, record_key="id", precombine="at", partition_by="region", buckets=2,
        table_type="MERGE_ON_READ", index="BUCKET",
    ) as table:  # fmt: skip
        table.upsert(rows(*OLD))
    return place


@contextmanager
def local(_: Path) -> Iterator[tuple[str, dict[str, str]]]:
    yield "local[2]", {}


def driver(
    master: str, url: str, endpoint: str, *more: str, **env: str
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(HERE / "spark_merged_driver.py"), master, url, endpoint, *more],
        env=spark_env() | env, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def first_write(place: dict[str, Any]) -> None:
    """Without a retry, and at once: the dead driver's lease and heartbeat end meanwhile."""
    Clock().sleep(12)  # longer than the dead driver's heartbeat
    with Table(**place, options=MERGED) as table:
        assert table.upsert(rows(MORE)) is not None


def timeline(place: dict[str, Any]) -> Any:
    return run(load_timeline(V9), open_store(**place), Clock())


POINTS = [
    ("*deltacommit.requested", "after", False), ("*.log.*", "before", False),
    ("*.log.*", "after", False), ("*fence.json", "before", False),
    ("*fence.json", "after", True), ("*_*.deltacommit", "after", True),
]  # fmt: skip
# On Connect only the files are written elsewhere: the client commits as any driver does.
WAYS: list[tuple[Any, str, str, bool]] = [(local, *each) for each in POINTS]
WAYS += [(connect, *each) for each in POINTS if each[0] == "*.log.*"]


@contextmanager
def killed_driver(
    place: dict[str, Any], key: str, when: str, master: str, *how: str, **env: str
) -> Iterator[None]:
    """The block runs once a driver was killed before or after its PUT of `key`."""
    struck = threading.Event()
    with Proxy(place["endpoint"], on_fault=lambda _: struck.set()) as proxy:
        proxy.inject(Fault("hang", when=when, operation="put", key=key))
        process = driver(master, place["url"], proxy.url, *how, **env)
        try:
            assert struck.wait(120), process.communicate(timeout=60)
        finally:
            kill_tree(process.pid)
            process.communicate(timeout=30)
        yield


@pytest.mark.parametrize(("kind", "key", "when", "decided"), WAYS)
def test_the_first_write_after_a_killed_driver_succeeds_and_shows_all_or_none_of_its_rows(
    kind: Callable[[Path], Any], key: str, when: str, decided: bool, place: dict[str, Any],
    tmp_path: Path,
) -> None:  # fmt: skip
    with kind(tmp_path) as (master, env), killed_driver(place, key, when, master, **env):
        first_write(place)
    expected = values(*(NEW if decided else OLD), MORE)
    assert stored(place) == expected == by_hudi_rs(place)
    now = timeline(place)
    assert not now.pending and all(now.rollbacks.values())
    keys = [each.key for each in open_store(**place).list("")]
    logs = {each.rpartition("_")[0].rpartition("_")[2].partition(".")[0]
            for each in keys if ".log." in each}  # fmt: skip
    assert logs <= {*now.completed}, "a log file of the dead driver's"
    with Table(**place) as table:
        assert table.compact() is not None
    assert stored(place) == expected == by_hudi_rs(place)


@pytest.mark.parametrize(("key", "when", "decided"), [
    ("*.log.*", "after", False), ("*fence.json", "before", False), ("*fence.json", "after", True),
])  # fmt: skip
def test_after_a_killed_drivers_partial_upsert_another_writes_and_all_or_none_of_it_shows(
    key: str, when: str, decided: bool, place: dict[str, Any]
) -> None:
    with killed_driver(place, key, when, "local[2]", "partial"):
        first_write(place)
    at = 2 if decided else 1
    expected = [("a", at, 1), ("b", at, 1), *([("c", 2, None)] if decided else []), ("d", 1, 4)]
    columns = ("id", "at", "v")
    assert stored(place, *columns) == expected == by_hudi_rs(place, *columns)
    now = timeline(place)
    assert not now.pending and all(now.rollbacks.values())
    with Table(**place) as table:
        table.upsert(rows(("a", "EU", 3, 9)), partial=True)
        assert table.compact() is not None
    expected[0] = ("a", 3, 9)
    assert stored(place, *columns) == expected == by_hudi_rs(place, *columns)


@pytest.mark.parametrize("key", [
    "*.log.*", "*deltacommit.requested", "*fence.json", "*_*.deltacommit",
])  # fmt: skip
def test_a_driver_whose_answer_is_lost_commits_each_row_once(
    key: str, place: dict[str, Any]
) -> None:
    with Proxy(place["endpoint"]) as proxy, nullcontext(
        driver("local[2]", place["url"], proxy.url)
    ) as process:
        proxy.inject(Fault("drop", when="after", operation="put", key=key))
        out, error = process.communicate(timeout=200)
        assert process.returncode == 0 and out.strip().isdecimal(), error[-3000:]
        assert proxy.faults
    assert stored(place) == values(*NEW) == by_hudi_rs(place)
