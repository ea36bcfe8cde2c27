"""Executors that are killed while they write: the task is done again, or nothing is visible."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import pytest
from spark_world import KEYS, MARKS, by_hudi_rs, end_shared_spark, frame, spark_environment, stored

from lockkit.clock import Clock
from lockkit.lab.faults import Fault, Proxy
from lockkit.lab.server import Emulator
from lockkit.runtime import run
from lockkit.spark import write
from lockkit.spark.connect import CONF
from lockkit.stores import open_store
from lockkit.table.format.timeline import V9, load_timeline

pytestmark = [*MARKS, pytest.mark.soak]

OLD = [("a", "EU", 1, 1), ("b", "US", 1, 1)]
NEW = [("a", "EU", 2, 2), ("b", "US", 2, 2), ("c", "EU", 2, 2)]
MORE = [("x", "EU", 1, 1), ("y", "US", 1, 1)]
EARLY = {"hoodie.write.concurrency.early.conflict.detection.enable": "true"}
ATTEMPTS = 2


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """One whose tasks are tried twice, as a cluster tries them four times."""
    end_shared_spark()
    with spark_environment():
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master(f"local[1,{ATTEMPTS}]").appName("killed")
        for key, value in CONF.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        yield session
        session.stop()


def executors() -> list[int]:
    """The Python processes that Spark's tasks run in."""
    daemons = []
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # of those killed before zombies may be left
            if "pyspark.daemon" in " ".join(each.cmdline()):
                daemons.append((each.pid, each.ppid()))
    return [pid for pid, parent in daemons if parent in {each for each, _ in daemons}]


@contextmanager
def killing(server: Emulator, fault: Fault) -> Iterator[tuple[str, list[int]]]:
    """An endpoint; the executor whose request the fault holds is killed, each time."""
    killed: list[int] = []

    def kill(_: object) -> None:
        for each in executors():
            os.kill(each, signal.SIGKILL)
            killed.append(each)

    def held(event: object) -> None:  # in the proxy's loop, which must go on
        threading.Thread(target=kill, args=(event,)).start()

    with Proxy(server.s3, on_fault=held) as proxy:
        proxy.inject(fault)
        yield proxy.url, killed


def values(*rows: tuple[str, str, int, int]) -> list[tuple[Any, ...]]:
    return [(key, region, v) for key, region, _, v in rows]


@pytest.mark.parametrize(
    ("operation", "key", "when"),
    [("upsert", "*.parquet", "after"), ("upsert", ".temp/*", "after"),
     ("insert", "*.parquet", "after")],
)  # fmt: skip
def test_a_task_whose_executor_is_killed_is_done_again_and_each_row_is_there_once(
    spark: Any, shared_emulator: Any, bucket: str, operation: str, key: str, when: str
) -> None:
    """Also for readers that go by the names of the files that are there."""
    place: dict[str, Any] = {"url": f"s3://{bucket}/orders", "endpoint": shared_emulator.s3}
    write(frame(spark, *OLD), operation="insert", **KEYS, **place)
    rows = NEW if operation == "upsert" else MORE
    once = Fault("hang", when=when, operation="put", key=key)
    with killing(shared_emulator, once) as (url, dead):
        early = EARLY if key == ".temp/*" else {}
        place_ = place | {"endpoint": url}
        write(frame(spark, *rows), operation=operation, options=early, **place_)
    assert dead
    wanted = values(*NEW) if operation == "upsert" else values(*OLD, *MORE)
    assert stored(place) == wanted == by_hudi_rs(place)


def test_a_write_killed_on_every_try_leaves_nothing_visible_and_rolls_itself_back(
    spark: Any, shared_emulator: Any, bucket: str
) -> None:
    place: dict[str, Any] = {"url": f"s3://{bucket}/orders", "endpoint": shared_emulator.s3}
    write(frame(spark, *OLD), operation="insert", **KEYS, **place)
    store = open_store(**place)
    files = {each.key for each in store.list("") if each.key.endswith(".parquet")}
    always = Fault("hang", when="after", operation="put", key="*.parquet", next="every")
    with killing(shared_emulator, always) as (url, dead):
        with pytest.raises(Exception, match=r"(?i)worker|killed|crash"):
            write(frame(spark, *NEW), **place | {"endpoint": url})
    assert len(dead) >= ATTEMPTS
    assert stored(place) == values(*OLD) == by_hudi_rs(place)
    now = run(load_timeline(V9), store, Clock())
    assert not now.pending and list(now.rollbacks.values()) == [True], "it took itself back"
    assert {each.key for each in store.list("") if each.key.endswith(".parquet")} == files
    write(frame(spark, *NEW), **place)
    assert stored(place) == values(*NEW)
