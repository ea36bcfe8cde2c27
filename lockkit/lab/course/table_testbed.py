"""A table of orders on an embedded server, whose writers pause at the points that a test names.

All use one clock that can be moved forward, so a pause of minutes takes no real time.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from lockkit.clock import Clock
from lockkit.errors import TableError
from lockkit.events import Event, event
from lockkit.lab.server import Emulator
from lockkit.lab.verify.check import check
from lockkit.lock.handle import Lock
from lockkit.runtime import Procedure, run
from lockkit.runtime.proven import create
from lockkit.stores import Store, open_store
from lockkit.table import (
    Committed,
    Prepared,
    Snapshot,
    TableConfig,
    Transaction,
    avro_schema,
    begin,
    create_table,
    load_snapshot,
    prepare,
    publish,
    read_slice,
    read_table,
    rewrite_group,
    write_inserts,
)
from lockkit.table.occ.concurrency import OptimisticConcurrency
from lockkit.table.occ.conflict import SIMPLE, ConflictStrategy
from lockkit.table.occ.heartbeat import HeartbeatState, beat, start
from lockkit.table.occ.heartbeat_rules import HeartbeatRules
from lockkit.table.occ.liveness import forget
from lockkit.table.occ.markers import mark, unmark
from lockkit.table.services.rules import ServiceRules
from lockkit.table.services.service import TableService

CONFIG = TableConfig(name="orders", record_key="id", version=6)
"""Version 6 (new tables have 9): the name of each file of an instant is known beforehand."""
SCHEMA = pa.schema([("id", pa.string()), ("amount", pa.int64())])
AVRO = avro_schema(SCHEMA, CONFIG.name)
LEASE_S = 60.0
URL = "az://lake/orders"  # of the three SDKs, the one that creates clients fastest


@dataclass
class LeapingClock(Clock):
    """The clock of a whole world: `leap` moves it forward for all processes at once."""

    ahead_ms: int = 0

    def boot_ms(self) -> int:
        return super().boot_ms() + self.ahead_ms

    def wall_ns(self) -> int:
        return super().wall_ns() + self.ahead_ms * 1_000_000

    def leap(self, seconds: float) -> None:
        self.ahead_ms += round(seconds * 1000)


class TableTestbed:
    """`with Lake() as lake:` the table, the server's record, and every writer's beliefs."""

    def __enter__(self) -> TableTestbed:
        self.clock = LeapingClock()
        self._reported: list[Event] = []
        self._open = ExitStack()
        self._open.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # a lease that was lost meanwhile is in the history
        self.server = self._open.enter_context(Emulator(profile="azure", clock=self.clock))
        self.store = open_store(URL, endpoint=self.server.azure)
        self._open.callback(self.store.close)
        self.run(create_table(CONFIG))
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def run(self, way: Procedure[Any]) -> Any:
        return run(way, self.store, self.clock)

    def writer(self, name: str, beats: HeartbeatRules = HeartbeatRules()) -> TestbedWriter:
        """A writer that looks like a separate process to the table; closed with the testbed."""
        store = open_store(URL, endpoint=self.server.azure, client=name)
        writer = TestbedWriter(self, name, store, beats)
        self._open.callback(writer.lock.close)  # and so the store, which it shares
        return writer

    def record(self, who: str, kind: str, fields: dict[str, Any]) -> None:
        self._reported.append(event(self.clock.stamp_ms(), who, kind, **fields))

    def rows(self) -> dict[str, int]:
        """Amounts by id, as a reader sees them; `TableError` if a file is missing."""
        return amounts(read_table(self.store, self.clock))

    def files(self, instant: str = "") -> list[str]:
        """Keys whose name contains that instant, or the keys of all data files."""
        keys = [each.key for each in self.store.list("")]
        return [key for key in keys if (instant or ".parquet") in key]

    @property
    def events(self) -> list[Event]:
        """The store's record and the writers' beliefs, in order of time."""
        return sorted([*self.server.requests(), *self._reported], key=lambda each: each.at_ms)

    @property
    def verdict(self) -> Any:
        return check(self.events)


@dataclass
class TestbedWriter:
    """One writer: its lock, its heartbeats, and where it pauses."""

    testbed: TableTestbed
    name: str
    store: Store
    beats: HeartbeatRules
    lock: Lock = field(init=False)
    heart: HeartbeatState = field(init=False)
    """The instant of the transaction that was begun last."""
    _stops: dict[str, Callable[[], object]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lock = Lock(
            URL, ttl_s=LEASE_S, store=self.store, owner=self.name, client=self.name,
            clock=self.testbed.clock, emit=self.emit,
        )  # fmt: skip

    def stop_at(self, what: str, meanwhile: Callable[[], object]) -> None:
        """Run `meanwhile` at the next event of that kind, or note with that prefix."""
        self._stops[what] = meanwhile

    def emit(self, kind: str, **fields: Any) -> None:
        self.testbed.record(self.name, kind, fields)
        said = str(fields["text"]) if kind == "note" else kind
        for what in [each for each in self._stops if said.startswith(each)]:
            meanwhile = self._stops.pop(what)
            self.testbed.record(self.name, "stalled", {"pid": os.getpid(), "why": f"at {what!r}"})
            meanwhile()
            self.testbed.record(self.name, "resumed", {"pid": os.getpid()})

    def run(self, way: Procedure[Any]) -> Any:
        return run(way, self.store, self.testbed.clock, self.emit)

    # --- its transaction, step by step ------------------------------------------------------------

    def begin(self) -> Transaction:
        """Begin an instant and send its first beat."""
        transaction: Transaction = self.run(begin())
        beating = HeartbeatState(transaction.instant, self.beats.ttl_ms, self.name)
        self.heart = self.run(start(beating))
        return transaction

    def beat(self) -> None:
        """Raises `HeartbeatExpired` if another process ended it."""
        self.heart = self.run(beat(self.heart))

    def insert(self, ids: Iterable[str], amount: int) -> Prepared:
        """Write a new file group for each of these rows."""
        transaction, files = self.begin(), []
        for id in ids:
            rows = orders([id], amount)
            files.append(write_inserts(transaction.target, rows, file_id=f"{id}-file-0"))
            self._write(transaction, files[-1], "CREATE")
        return self._prepare(transaction, files)

    def update(self, ids: Iterable[str], amount: int, began: Transaction | None = None) -> Prepared:
        """Rewrite the file groups that contain one of these rows."""
        transaction, wanted = began or self.begin(), set(ids)
        snapshot: Snapshot = self.run(load_snapshot(covering=transaction.covered))
        files = []
        for each in snapshot.slices:
            old = self.run(read_slice(each))
            if mine := wanted & amounts(old).keys():
                file = rewrite_group(transaction.target, each, old, orders(sorted(mine), amount))
                self._write(transaction, file, "MERGE")
                files.append(file)
        return self._prepare(transaction, files)

    def _write(self, transaction: Transaction, file: Any, io: Any) -> None:
        """Write the marker first, so that every file has one."""
        self.run(mark(transaction.instant, file.key, io))
        self.run(create(file.key, file.body))

    def _prepare(self, transaction: Transaction, files: list[Any]) -> Prepared:
        stats = [each.stat for each in files]
        prepared: Prepared = self.run(prepare(transaction, stats, schema=AVRO))
        return prepared

    def publish(
        self, prepared: Prepared, *, fence: bool | None = None, strategy: ConflictStrategy = SIMPLE
    ) -> Committed:
        """Raises the same errors as `publish`."""
        done = publish(
            prepared, self.lock, self.store, self.testbed.clock, self.emit,
            strategy=strategy, fence=fence,
        )  # fmt: skip
        self.run(forget(prepared.instant))
        self.run(unmark(prepared.instant))
        return done

    def service(self, rules: ServiceRules = ServiceRules()) -> TableService:
        """The table services, run by this process under its lock."""
        return TableService(
            URL,
            self.store,
            OptimisticConcurrency(self.lock),
            rules=rules,
            clock=self.testbed.clock,
            emit=self.emit,
        )


def orders(ids: Iterable[str], amount: int) -> pa.Table:
    keys = list(ids)
    return pa.table([keys, [amount] * len(keys)], schema=SCHEMA)


def amounts(rows: pa.Table) -> dict[str, int]:
    return dict(zip(rows["id"].to_pylist(), rows["amount"].to_pylist(), strict=True))


def seen(testbed: TableTestbed) -> str:
    """A reader's rows, as one line."""
    try:
        rows = testbed.rows()
    except TableError as error:
        return f"an error: {str(error).partition(':')[0]}"
    return ", ".join(f"{id} {amount}" for id, amount in sorted(rows.items()))
