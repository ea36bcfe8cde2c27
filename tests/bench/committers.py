"""Tables that take appends and upserts, each through its own Python API, as its manual has it.

Each is made once by `create`, then opened by any number of writers; a committer is a writer's open
handle. All of them keep their handle warm, but for `deltalake by URI`. pyiceberg's catalog is a
SQLite file beside the store: its own requests cost it nothing here.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from tests.bench.shapes import client

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("region", pa.string()),
        ("amount", pa.float64()),
        ("n", pa.int32()),
    ]
)
FIRST = 1000
"""Rows that each table begins with."""
KEYS = {"aws_access_key_id": "lockkit", "aws_secret_access_key": "lockkit"}


def rows(first: int, count: int, amount: float = 0.0) -> pa.Table:
    """Rows `first` to `first + count`; the same number is the same key."""
    numbers = range(first, first + count)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return pa.table(
        [[f"k{n:012}" for n in numbers], [at] * count, ["EU"] * count,
         [amount] * count, [n % 1000 for n in numbers]],
        schema=SCHEMA,
    )  # fmt: skip


class Committer(Protocol):
    def append(self, new: pa.Table) -> None: ...

    def upsert(self, new: pa.Table) -> None: ...

    def count(self) -> int:
        """Rows that a reader sees who comes now."""
        ...

    def again(self) -> None:
        """What its manual says to do before a refused commit is tried once more."""
        ...


class Lockkit:
    """A table in Hudi's layout, committed to through the lock and the fence."""

    COMMIT = "serial"
    VERSION = 9

    def __init__(self, endpoint: str, bucket: str, home: Path) -> None:
        from lockkit.table.handle import Table

        lock = {"ttl_s": 30, "renew_interval_s": 3} if self.COMMIT == "serial" else None
        # The others do not delete old files either.
        options = {"hoodie.clean.automatic": "false"}
        self.table = Table(f"s3://{bucket}/orders", lock=lock, endpoint=endpoint, options=options)

    @classmethod
    def create(cls, endpoint: str, bucket: str, home: Path) -> None:
        cls.create_empty(endpoint, bucket, home).append(rows(0, FIRST))

    @classmethod
    def create_empty(cls, endpoint: str, bucket: str, home: Path) -> Lockkit:
        from lockkit.runtime import run
        from lockkit.table import TableConfig, create_table

        mine = cls(endpoint, bucket, home)
        config = TableConfig(name="orders", record_key="id", precombine="at", commit=cls.COMMIT,
                             version=cls.VERSION)  # fmt: skip
        run(create_table(config), mine.table.store, mine.table.clock)
        return mine

    def append(self, new: pa.Table) -> None:
        self.table.append(new)

    def upsert(self, new: pa.Table) -> None:
        self.table.upsert(new)

    def count(self) -> int:
        from lockkit.table import read_table

        return int(read_table(self.table.store).num_rows)

    def again(self) -> None: ...


class LockkitGroup(Lockkit):
    """The same with group commit: no lock, writers decide together."""

    COMMIT = "group"


class LockkitGroup6(LockkitGroup):
    """In table version 6, whose rounds are published in parallel."""

    VERSION = 6


class DeltaLake:
    def __init__(self, endpoint: str, bucket: str, home: Path) -> None:
        from deltalake import DeltaTable

        self.url, self.options = f"s3://{bucket}/orders", self._options(endpoint)
        self.table = DeltaTable(self.url, storage_options=self.options)

    @staticmethod
    def _options(endpoint: str) -> dict[str, str]:
        return KEYS | {
            "aws_region": "us-east-1", "aws_endpoint_url": endpoint, "aws_allow_http": "true",
            "aws_conditional_put": "etag",
        }  # fmt: skip

    @classmethod
    def create(cls, endpoint: str, bucket: str, home: Path) -> None:
        from deltalake import write_deltalake

        options = cls._options(endpoint)
        write_deltalake(f"s3://{bucket}/orders", rows(0, FIRST), storage_options=options)

    def append(self, new: pa.Table) -> None:
        from deltalake import write_deltalake

        write_deltalake(self.table, new, mode="append")

    def upsert(self, new: pa.Table) -> None:
        merge = self.table.merge(new, "t.id = s.id", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def count(self) -> int:
        self.table.update_incremental()
        return int(self.table.count())

    def again(self) -> None:
        self.table.update_incremental()


class DeltaLakeByUri(DeltaLake):
    def append(self, new: pa.Table) -> None:
        from deltalake import write_deltalake

        write_deltalake(self.url, new, mode="append", storage_options=self.options)

    def upsert(self, new: pa.Table) -> None:
        from deltalake import DeltaTable

        self.table = DeltaTable(self.url, storage_options=self.options)
        super().upsert(new)

    def again(self) -> None: ...


class Lance:
    def __init__(self, endpoint: str, bucket: str, home: Path) -> None:
        import lance

        options = self._options(endpoint)
        self.dataset = lance.dataset(f"s3://{bucket}/orders.lance", storage_options=options)

    @staticmethod
    def _options(endpoint: str) -> dict[str, str]:
        return KEYS | {
            "aws_region": "us-east-1", "aws_endpoint": endpoint, "allow_http": "true",
        }  # fmt: skip

    @classmethod
    def create(cls, endpoint: str, bucket: str, home: Path) -> None:
        import lance

        options = cls._options(endpoint)
        lance.write_dataset(
            rows(0, FIRST), f"s3://{bucket}/orders.lance", storage_options=options
        )

    def append(self, new: pa.Table) -> None:
        self.dataset.insert(new, mode="append")

    def upsert(self, new: pa.Table) -> None:
        merge = self.dataset.merge_insert("id")
        merge.when_matched_update_all().when_not_matched_insert_all().execute(new)

    def count(self) -> int:
        self.again()
        return int(self.dataset.count_rows())

    def again(self) -> None:
        self.dataset.checkout_latest()


class Iceberg:
    def __init__(self, endpoint: str, bucket: str, home: Path) -> None:
        self.table = self._catalog(endpoint, bucket, home).load_table("bench.orders")

    @staticmethod
    def _catalog(endpoint: str, bucket: str, home: Path) -> Any:
        from pyiceberg.catalog.sql import SqlCatalog

        return SqlCatalog(
            bucket,
            **{
                "uri": f"sqlite:///{home}/{bucket}.sqlite", "warehouse": f"s3://{bucket}",
                "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO", "s3.endpoint": endpoint,
                "s3.access-key-id": "lockkit", "s3.secret-access-key": "lockkit",
                "s3.region": "us-east-1", "s3.force-virtual-addressing": "false",
            },
        )  # fmt: skip

    @classmethod
    def create(cls, endpoint: str, bucket: str, home: Path) -> None:
        catalog = cls._catalog(endpoint, bucket, home)
        catalog.create_namespace("bench")
        catalog.create_table("bench.orders", SCHEMA).append(rows(0, FIRST))

    def append(self, new: pa.Table) -> None:
        self.table.append(new)

    def upsert(self, new: pa.Table) -> None:
        self.table.upsert(new, join_cols=["id"])

    def count(self) -> int:
        return int(self.table.refresh().scan().count())

    def again(self) -> None:
        self.table.refresh()


COMMITTERS: dict[str, type[Any]] = {
    "lockkit": Lockkit,
    "pylance": Lance,
    "deltalake": DeltaLake,
    "deltalake by URI": DeltaLakeByUri,
    "pyiceberg": Iceberg,
}

GROUP = {"lockkit group": LockkitGroup, "lockkit group v6": LockkitGroup6}
"""Beside those in one benchmark of its own."""
EVERY = COMMITTERS | GROUP


def bucket_of(name: str) -> str:
    return "b-" + name.lower().replace(" ", "-")


def create(name: str, endpoint: str, home: Path, bucket: str) -> None:
    client(endpoint).create_bucket(Bucket=bucket)
    EVERY[name].create(endpoint, bucket, home)
