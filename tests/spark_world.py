"""What the tests of Spark's room stand on: one session for all, and a table's rows by others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pyarrow as pa
import pytest
from hudi_rs import read_by_hudi_rs

from lockkit.spark.java import NoJava, find_java, spark_env
from lockkit.stores import open_store
from lockkit.table import read_table
from lockkit.table.options import WRITE

try:
    find_java()
    NO_JAVA = ""
except NoJava as missing:
    NO_JAVA = str(missing)
MARKS = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(240),
    pytest.mark.skipif(bool(NO_JAVA), reason=NO_JAVA),
]
APART = [each for each in MARKS if each.name != "xdist_group"]
"""For the group "spark processes", beside the one with a session in the test's own process."""

_OPEN = ExitStack()
_SHARED: list[Any] = []

COLUMNS = "id string, region string, at long, v long"
SAID = {
    WRITE + "recordkey.field": "id", WRITE + "precombine.field": "at",
    WRITE + "partitionpath.field": "region", "hoodie.bucket.index.num.buckets": "2",
}  # fmt: skip
KEYS = {"record_key": "id", "precombine": "at", "partition_path": "region"}


@contextmanager
def spark_environment() -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(spark_env())
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def shared_spark() -> Any:
    """The session of this process, with the format `lockkit`; started when it is first asked for.

    A new one for each file would start and warm up Spark's Python processes anew.
    """
    if not _SHARED:
        _SHARED.append(_OPEN.enter_context(_own_spark()))
    return _SHARED[0]


def end_shared_spark() -> None:
    _SHARED.clear()
    _OPEN.close()


@contextmanager
def _own_spark() -> Iterator[Any]:
    with spark_environment():
        from lockkit.spark import register
        from lockkit.spark.connect import own_session

        session = own_session("test")
        session.sparkContext.setLogLevel("OFF")
        register(session)
        yield session
        session.stop()


def frame(spark: Any, *rows: tuple[Any, ...], columns: str = COLUMNS) -> Any:
    return spark.createDataFrame(list(rows), columns)


def stored(place: dict[str, Any], *columns: str) -> list[tuple[Any, ...]]:
    rows = read_table(open_store(**place))
    columns = columns or ("id", "region", "v")
    return sorted((tuple(row[c] for c in columns) for row in rows.to_pylist()), key=repr)


def by_hudi_rs(place: dict[str, Any], *columns: str) -> list[tuple[Any, ...]]:
    """The same rows as somebody else's reader sees them."""
    table = read_by_hudi_rs(place["url"], place.get("endpoint", ""))
    columns = columns or ("id", "region", "v")
    return sorted((tuple(row[c] for c in columns) for row in table.to_pylist()), key=repr)


def spooled(place: dict[str, Any]) -> list[str]:
    return [each.key for each in open_store(**place).list(".hoodie/.temp/")]


def batches(*rows: tuple[Any, ...]) -> Iterator[pa.RecordBatch]:
    names = ["id", "region", "at", "v"]
    table = pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows])
    yield from table.to_batches()


def saver(place: dict[str, Any], **options: str) -> Any:
    """What Spark makes of `df.write.format("lockkit")`, without Spark."""
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    from lockkit.spark.source import Lockkit

    elsewhere = {name: value for name, value in place.items() if name != "url"}
    source = Lockkit({"path": place["url"], **SAID, **elsewhere, **options})
    kinds = {"string": StringType(), "long": LongType()}
    columns = [each.split() for each in COLUMNS.split(", ")]
    return source.writer(StructType([StructField(n, kinds[kind]) for n, kind in columns]), False)
