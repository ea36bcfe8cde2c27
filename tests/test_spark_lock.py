"""The lock that Hudi's options name guards each of Spark's ways to commit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from spark_world import KEYS, MARKS, SAID, frame, stored

from lockkit import LockBusy, StoreError, open_lock
from lockkit.clock import Clock
from lockkit.errors import TableError
from lockkit.providers.zookeeper import ZookeeperLock
from lockkit.sinks import silent
from lockkit.spark import foreach_batch, write
from lockkit.spark.errors import unwrapped
from lockkit.spark.place import TableAddress
from lockkit.spark.source import Lockkit
from lockkit.spark.write import open_lock as lock_of_write

pytestmark = MARKS

LOCK = "hoodie.write.lock."
CLASS = "org.apache.hudi.client.transaction.lock."
AT_ONCE = {LOCK + "wait_time_ms": "50", LOCK + "client.num_retries": "0"}
DEAD_ZOOKEEPER = {
    LOCK + "provider": CLASS + "ZookeeperBasedLockProvider", LOCK + "zookeeper.url": "127.0.0.1:1",
    LOCK + "zookeeper.base_path": "/t", LOCK + "zookeeper.lock_key": "t",
    LOCK + "zookeeper.connection_timeout_ms": "100", **AT_ONCE,
}  # fmt: skip
Way = Callable[[Any, str, dict[str, str]], None]


def by_write(rows: Any, url: str, options: dict[str, str]) -> None:
    write(rows, url, options=SAID | options)


def by_foreach_batch(rows: Any, url: str, options: dict[str, str]) -> None:
    foreach_batch(url, query="orders", options=SAID | options)(rows, 0)


def by_format(rows: Any, url: str, options: dict[str, str]) -> None:
    with unwrapped():
        rows.write.format("lockkit").options(**SAID | options).mode("append").save(url)


WAYS = [by_write, by_foreach_batch, by_format]


@pytest.mark.parametrize("mode", ["fenced", "hudi"])
@pytest.mark.parametrize("way", WAYS)
def test_a_commit_waits_for_the_lock_of_the_named_provider(
    spark: Any, tmp_path: Path, way: Way, mode: str
) -> None:
    url = f"file://{tmp_path}/orders"
    (tmp_path / "locks").mkdir()
    options = {LOCK + "provider": CLASS + "FileSystemBasedLockProvider",
               LOCK + "filesystem.path": str(tmp_path / "locks"), **AT_ONCE}  # fmt: skip
    write(frame(spark, ("a", "EU", 1, 1)), url, mode=mode, buckets=2, **KEYS)
    with closing(open_lock(options)) as other:
        with other, pytest.raises(LockBusy, match="filesystem"):
            way(frame(spark, ("b", "EU", 1, 1)), url, options)
        assert stored({"url": url}) == [("a", "EU", 1)]
        way(frame(spark, ("b", "EU", 1, 1)), url, options)
    assert stored({"url": url}) == [("a", "EU", 1), ("b", "EU", 1)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "options",
    [
        {LOCK + "provider": "com.example.Nope"},
        {LOCK + "client.num_retries": "abc"},
        {"hoodie.write.concurrency.mode": "many_writers"},
        {"hoodie.clean.automatic": "yes"},
    ],
)
def test_an_invalid_option_is_refused_before_a_row_is_written(
    spark: Any, tmp_path: Path, way: Way, options: dict[str, str]
) -> None:
    (key,) = options
    with pytest.raises(TableError, match=key):
        way(frame(spark, ("a", "EU", 1, 1)), f"file://{tmp_path}/orders", options)
    assert not (tmp_path / "orders").exists()


def test_a_provider_that_does_not_answer_fails_the_commit(spark: Any, tmp_path: Path) -> None:
    rows, options = frame(spark, ("a", "EU", 1, 1)), SAID | DEAD_ZOOKEEPER
    with pytest.raises(StoreError, match="no ZooKeeper at"):
        write(rows, f"file://{tmp_path}/t", options=options)
    place = TableAddress(f"file://{tmp_path}/t")
    with closing(lock_of_write(place, DEAD_ZOOKEEPER, Clock(), silent)) as lock:
        assert isinstance(lock, ZookeeperLock)


def test_a_new_table_has_the_requested_partition_folders(spark: Any, tmp_path: Path) -> None:
    url, style = f"file://{tmp_path}/orders", "hoodie.datasource.write.hive_style_partitioning"
    write(frame(spark, ("a", "EU", 1, 1)), url, options=SAID | {style: "false"})
    assert (tmp_path / "orders" / "EU").is_dir()
    with pytest.raises(TableError, match=r"hive_style_partitioning=true .* the table has 'False'"):
        write(frame(spark, ("a", "EU", 1, 1)), url, options=SAID | {style: "true"})


def test_a_misspelt_option_of_the_store_is_refused(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"write\(\) for file:// has no keyword 'opertion'"):
        write(frame(spark, ("a", "EU", 1, 1)), f"file://{tmp_path}/orders", opertion="insert")
    with pytest.raises(TypeError, match=r"foreach_batch\(\) .*did you mean 'operation'"):
        foreach_batch(f"file://{tmp_path}/orders", opertion="insert")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"region_name": "eu-west-1"}, "file:// has no keyword 'region_name'"),
        ({"timeout_s": "soon"}, "timeout_s=soon must be a number"),
    ],
)
def test_a_format_refuses_an_option_that_its_store_does_not_take(
    tmp_path: Path, options: dict[str, str], why: str
) -> None:
    with pytest.raises(TableError, match=why):
        Lockkit({"path": f"file://{tmp_path}/orders", **options}).streamReader(None)
