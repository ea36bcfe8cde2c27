"""A small table to commit to, and a store that loses answers, for the tests of the table's room."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from lockkit.clock import Clock
from lockkit.errors import NoAnswer
from lockkit.protocol.outcome import (
    Applied,
    Condition,
    IfAbsent,
    IfVersion,
    ReadAnswer,
    Unknown,
    Version,
    WriteAnswer,
)
from lockkit.runtime import Procedure, perform, run
from lockkit.sinks import Emit, silent
from lockkit.stores import ListEntry, ObjectVersion, Store, open_store
from lockkit.table import (
    Prepared,
    Slice,
    TableConfig,
    avro_schema,
    begin,
    create_table,
    load_snapshot,
    prepare,
    read_slice,
    rewrite_group,
    write_inserts,
)
from lockkit.table.read.predicate import partition_value

CONFIG = TableConfig(
    name="orders", record_key="id", partition_by="region", precombine="at", version=6
)
"""Version 6, whose timeline has fixed names and readable bodies. New tables have version 9."""
SCHEMA = pa.schema(
    [("id", pa.string()), ("region", pa.string()), ("amount", pa.int64()), ("at", pa.int64())]
)
AVRO = avro_schema(SCHEMA, "orders")


@dataclass(frozen=True)
class Holder:
    """What a lock hands out, as far as a commit looks at it."""

    epoch: int


@dataclass
class Hasty(Clock):
    """A clock for which every pause is over at once."""

    slept_s: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)


CLOCK = Hasty()


def rows(ids: Iterable[int], *, region: str = "EU", amount: int = 0, at: int = 0) -> pa.Table:
    """Orders k0, k1, ... of one region."""
    keys = [f"k{each}" for each in ids]
    count = len(keys)
    return pa.table([keys, [region] * count, [amount] * count, [at] * count], schema=SCHEMA)


def new_table(url: str, config: TableConfig = CONFIG, **options: Any) -> Store:
    store = open_store(url, **options)
    run(create_table(config), store, CLOCK)
    return store


def steps(procedure: Procedure[Any], store: Store, most: int, clock: Clock = CLOCK) -> bool:
    """Carry out so many requests and die; returns whether it came to its end before that."""
    try:
        request = procedure.send(None)
        for _ in range(most):
            request = procedure.send(perform(request, store, clock, silent))
    except StopIteration:
        return True
    procedure.close()
    return False


def prepare_inserts(store: Store, *tables: pa.Table, emit: Emit = silent) -> Prepared:
    """A transaction with one new file group for each of `tables`, its files written."""
    transaction = run(begin(), store, CLOCK, emit)
    files = [write_inserts(transaction.target, t, file_id=f"{CLOCK.unique()}-0") for t in tables]
    for file in files:
        assert isinstance(store.put(file.key, file.body, IfAbsent()), Applied)
    stats = [file.stat for file in files]
    return run(prepare(transaction, stats, schema=AVRO), store, CLOCK, emit)


def prepare_upserts(
    store: Store, upserts: pa.Table, *, which: Callable[[Slice], bool] = lambda _: True,
    emit: Emit = silent,
) -> Prepared:  # fmt: skip
    """A transaction that merges `upserts` into every file group that `which` picks."""
    transaction = run(begin(), store, CLOCK, emit)
    snapshot = run(load_snapshot(covering=transaction.covered), store, CLOCK)
    stats = []
    for each in filter(which, snapshot.slices):
        old = run(read_slice(each), store, CLOCK)
        region = partition_value(transaction.config, each.partition) or ""
        mine = upserts.set_column(1, "region", pa.array([region] * upserts.num_rows))
        file = rewrite_group(transaction.target, each, old, mine)
        assert isinstance(store.put(file.key, file.body, IfAbsent()), Applied)
        stats.append(file.stat)
    return run(prepare(transaction, stats, schema=AVRO), store, CLOCK, emit)


# --- a store that loses answers -----------------------------------------------------------------

BEFORE, AFTER, LATE = "before", "after", "late"


@dataclass
class Lossy:
    """A store in front of a store: some requests get no answer.

    `faults` says which, by their number from 0: *before* the store applied it, *after*, or *late*
    (the store applies it when `land` is called). `from_on` silences everything from that number on.
    """

    store: Store
    faults: dict[int, str] = field(default_factory=dict)
    from_on: int | None = None
    sent: int = 0
    seen: list[tuple[str, str]] = field(default_factory=list)
    out: list[Callable[[], WriteAnswer]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.store.url

    @property
    def options(self) -> Any:
        return self.store.options

    @property
    def server(self) -> Any:
        return self.store.server

    @property
    def capabilities(self) -> Any:
        return self.store.capabilities

    def land(self) -> list[WriteAnswer]:
        """Every write that is still on its way arrives now."""
        landing, self.out = self.out, []
        return [write() for write in landing]

    def _fault(self, method: str, key: str) -> str | None:
        number, self.sent = self.sent, self.sent + 1
        self.seen.append((method, key))
        if self.from_on is not None and number >= self.from_on:
            return BEFORE
        return self.faults.get(number)

    def get(
        self, key: str, *, unless: Version | None = None, limit: int | None = None
    ) -> ReadAnswer:
        if self._fault("get", key):
            return Unknown("the answer was lost")
        return self.store.get(key, unless=unless, limit=limit)

    def put(self, key: str, body: bytes, condition: Condition) -> WriteAnswer:
        fault = self._fault("put", key)
        if fault is None:
            return self.store.put(key, body, condition)
        if fault == AFTER:
            self.store.put(key, body, condition)
        elif fault == LATE:
            self.out.append(lambda: self.store.put(key, body, condition))
        return Unknown("the answer was lost")

    def list(self, prefix: str, after: str = "") -> list[ListEntry]:
        if self._fault("list", prefix):
            raise NoAnswer("the answer was lost")
        return self.store.list(prefix, after)

    def delete(self, key: str, condition: IfVersion | None = None) -> WriteAnswer:
        return self.store.delete(key, condition)

    def versions(self, key: str) -> list[ObjectVersion]:
        return self.store.versions(key)

    def get_version(self, key: str, version: ObjectVersion) -> bytes:
        return self.store.get_version(key, version)

    def close(self) -> None:
        self.store.close()
