"""The orders that a writer commits: its slice of `datasets/orders`, batch by batch.

A batch has rows of one region. This process reads them with Arrow, or Spark reads them; both choose
the same rows for the same batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lockkit.clock import Clock
from lockkit.errors import TableError
from lockkit.spark.frame import GROUP, write_frame
from lockkit.spark.place import TableAddress
from lockkit.stores import Store
from lockkit.table import TableConfig, Target, TaskId, WriteStat, avro_schema
from lockkit.table.errors import RefusedOption
from lockkit.table.write.groups import TargetGroup, WriteTask, write_group

TABLE = TableConfig(
    name="orders", record_key="order_id", partition_by="region", precombine="ordered_at"
)
BATCHES = 12
"""A writer needs this many rounds for its slice of a region; later rounds are upserts."""


@dataclass(frozen=True, slots=True)
class RegionBatch:
    """Rows of one region that go into one file group."""

    region: str
    number: int
    group_target: TargetGroup


class Orders(Protocol):
    """A source of a writer's rows, which also writes them into file groups."""

    schema: str
    """The Avro schema for the commit."""

    def write(self, target: Target, batches: list[RegionBatch]) -> list[WriteStat]: ...


@dataclass(frozen=True, slots=True)
class OrdersPart:
    """The `index`-th (from 1) of `count` slices of the data set in `folder`."""

    folder: str
    index: int
    count: int

    @property
    def regions(self) -> list[str]:
        found = sorted(file.stem for file in Path(self.folder).glob("*.parquet"))
        if not found:
            raise TableError(
                str(self.folder), "has no *.parquet, so it holds no orders",
                "make them with python datasets/orders/generate.py, or name another folder with "
                "--dataset",
            )  # fmt: skip
        return found

    def file(self, region: str) -> str:
        return str(Path(self.folder) / f"{region}.parquet")


class PlainOrders:
    """Orders that this process reads, merges and writes."""

    def __init__(self, part: OrdersPart, store: Store) -> None:
        self._part = part
        self._store = store
        self._rows = cache(self._read)
        self.schema = avro_schema(self._rows(part.regions[0]).schema, TABLE.name)

    def write(self, target: Target, batches: list[RegionBatch]) -> list[WriteStat]:
        stats = []
        work = WriteTask(self._store, target, TaskId(), Clock())
        for batch in batches:
            rows = self._rows(batch.region)
            turn = pc.equal(_turn(rows, self._part.count), batch.number % BATCHES)
            stats.append(write_group(work, batch.group_target, rows.filter(turn)))
        return [stat for stat in stats if stat is not None]

    def _read(self, region: str) -> pa.Table:
        rows = pq.ParquetFile(self._part.file(region)).read()
        # Base files hold microseconds, as Spark's timestamps are.
        at = rows.schema.get_field_index("ordered_at")
        rows = rows.set_column(at, "ordered_at", rows["ordered_at"].cast(pa.timestamp("us", "UTC")))
        number = _number(rows)
        mine = pc.equal(_modulo(number, self._part.count), self._part.index - 1)
        return rows.filter(mine)


class SparkOrders:
    """Orders that Spark's executors read, shuffle, merge and write; one row per file returns."""

    def __init__(self, part: OrdersPart, place: TableAddress, spark: Any) -> None:
        self._part = part
        self._place = place
        self._frame = spark.read.parquet(*[part.file(region) for region in part.regions])
        self.schema = avro_schema(pq.read_schema(part.file(part.regions[0])), TABLE.name)

    def write(self, target: Target, batches: list[RegionBatch]) -> list[WriteStat]:
        from pyspark.sql import functions as f

        number = f.substring("order_id", 2, 12).cast("long")
        mine = (number % self._part.count) == (self._part.index - 1)
        turn = f.floor(number / self._part.count) % BATCHES
        group, group_targets = f.lit(None).cast("string"), {}
        for batch in batches:
            name = "/".join(batch.group_target.group)
            group_targets[name] = batch.group_target
            here = (f.col("region") == batch.region) & (turn == batch.number % BATCHES)
            group = f.when(here, f.lit(name)).otherwise(group)
        rows = self._frame.where(mine).withColumn(GROUP, group).where(f.col(GROUP).isNotNull())
        return write_frame(rows, self._place, target, group_targets)


def _number(rows: pa.Table) -> Any:
    return pc.cast(pc.utf8_slice_codeunits(rows["order_id"], 1), pa.int64())


def _turn(rows: pa.Table, count: int) -> Any:
    return _modulo(pc.divide(_number(rows), count), BATCHES)


def _modulo(numbers: Any, by: int) -> Any:
    return pc.subtract(numbers, pc.multiply(pc.divide(numbers, by), by))


def open_orders(
    kind: str, part: OrdersPart, place: TableAddress, store: Store, *, remote: str | None = None
) -> Orders:
    """The orders for a writer of this kind. `connect` and `jvm` start a Spark session."""
    match kind:
        case "plain":
            return PlainOrders(part, store)
        case "connect":
            from lockkit.spark.connect import connect_session

            if remote is None:
                raise RefusedOption(
                    "--remote", "is missing, and a writer of kind connect needs it",
                    "pass --remote sc://host:port",
                )  # fmt: skip
            return SparkOrders(part, place, connect_session(remote))
        case "jvm":
            from lockkit.spark.connect import own_session

            return SparkOrders(part, place, own_session(place.client))
        case _:
            raise RefusedOption(
                "kind", "is not a kind of writer", "choose plain, connect or jvm", value=kind
            )


def fields_of(stats: list[WriteStat]) -> list[Mapping[str, Any]]:
    """The files of a round, for its note in the history."""
    return [
        {
            "file": stat.path,
            "inserts": stat.inserts,
            "updates": stat.updates,
            "bytes": stat.size_bytes,
        }
        for stat in stats
    ]
