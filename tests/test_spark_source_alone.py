"""What Spark's data source does without a JVM: keys that are stored twice, and batches of a stream.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from lockkit.clock import Clock
from lockkit.errors import TableError
from lockkit.runtime import run
from lockkit.spark.place import TableAddress
from lockkit.spark.source import Lockkit
from lockkit.spark.spool import LocalSpool, land, spool_for
from lockkit.stores import open_store
from lockkit.table import Table, TableConfig, create_table, read_table
from lockkit.table.options import write_options

SHAPE = StructType(
    [StructField("id", StringType()), StructField("at", LongType()), StructField("v", StringType())]
)


def save(url: str, operation: str, *rows: tuple[str, int, str]) -> None:
    """As `DataFrame.write.format("lockkit").save()` does, in this process."""
    said = {
        "hoodie.datasource.write.operation": operation,
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.precombine.field": "at",
        "hoodie.table.name": "t",
    }
    wanted = write_options(said)
    spool = spool_for(TableAddress(url), wanted, said, SHAPE)
    ids, times, values = zip(*rows, strict=True)
    table = pa.table({"id": ids, "at": pa.array(times, pa.int64()), "v": values})
    land(LocalSpool(spool, SHAPE, tuple(spool.put(table.to_batches()))), wanted, said)


@pytest.mark.parametrize(
    ("operation", "left"),
    [("delete", [("x", "x")]), ("upsert", [("k", "new"), ("k", "new"), ("x", "x")])],
)
def test_a_key_that_is_in_its_bucket_and_in_a_free_group_is_changed_in_both(
    operation: str, left: list[tuple[str, str]], tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/t"
    save(url, "upsert", ("k", 1, "old"), ("x", 1, "x"))
    save(url, "insert", ("k", 2, "second"))
    save(url, operation, ("k", 9, "new"))
    rows = read_table(open_store(url)).to_pylist()
    assert sorted((each["id"], each["v"]) for each in rows) == left


class Slow:
    """A store whose first upload of a data file waits for `go`."""

    def __init__(self, store: Any) -> None:
        self.store, self.up, self.go = store, threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def put(self, key: str, body: bytes, condition: Any) -> Any:
        answer = self.store.put(key, body, condition)
        if key.endswith(".parquet") and not self.up.is_set():
            self.up.set()
            self.go.wait(30)
        return answer


@pytest.mark.parametrize("version", [6, 9])
def test_a_batch_of_a_stream_has_every_row_up_to_its_end(version: int, tmp_path: Path) -> None:
    """An overtaken writer's instant is pending below the end when the batch is read."""
    url = f"file://{tmp_path}/t"
    run(create_table(TableConfig(name="t", record_key="id", version=version)), open_store(url),
        Clock())  # fmt: skip

    def append(key: str, offset_ms: int = 0) -> None:
        with Table(url, clock=Clock(offset_ms=offset_ms)) as table:
            table.append(pa.table({"id": [key]}))

    append("old")
    late = Table(url)
    late.refresh()
    slow = late.store = Slow(late.store)  # type: ignore[assignment]
    source = Lockkit({"path": url})
    stream = source.streamReader(source.schema())
    at, seen = stream.initialOffset(), list[str]()

    def batch(begins: Any = None) -> None:
        nonlocal at
        end = stream.latestOffset(at, None)
        if begins is not None:
            begins.start()
            assert slow.up.wait(30)
        if end != at:
            for each in stream.partitions(at, end):
                seen.extend(key for rows in stream.read(each) for key in rows["id"].to_pylist())
        at = end

    batch()
    append("a", 5_000)  # one clock is ahead: the late writer takes an instant before these
    append("b")
    batch(writer := threading.Thread(target=lambda: late.append(pa.table({"id": ["late"]}))))
    slow.go.set()
    writer.join(30)
    batch()
    late.close()
    assert sorted(seen) == ["a", "b", "late", "old"]


def test_a_stream_batch_whose_end_instant_is_missing_is_refused(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/t"
    run(create_table(TableConfig(name="t", record_key="id")), open_store(url), Clock())
    with Table(url) as table:
        table.append(pa.table({"id": ["k"]}))
    source = Lockkit({"path": url})
    stream = source.streamReader(source.schema())
    start = stream.initialOffset()
    with pytest.raises(TableError, match="gone from the timeline"):
        stream.partitions(start, {"at": "29991231000000000"})
