"""Seeded histories of commits, with a dictionary of what was committed kept beside them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pyarrow as pa
from table_world import AVRO, CLOCK, Holder, prepare_inserts, prepare_upserts, rows

from lockkit.protocol.outcome import IfAbsent
from lockkit.runtime import run
from lockkit.stores import Store
from lockkit.table import Prepared, begin, commit, load_snapshot, prepare, write_inserts
from lockkit.table.errors import CommitConflict
from lockkit.table.format.layout import FileGroup


def publish(store: Store, prepared: Prepared) -> str:
    run(commit(prepared, Holder(1)), store, CLOCK)
    return prepared.instant


def add(store: Store, *ids: int, **of: Any) -> str:
    return publish(store, prepare_inserts(store, rows(ids, **of)))


def overwrite(store: Store, gone: Iterable[FileGroup], *tables: pa.Table) -> str:
    """A replacecommit: its instant takes file groups away and brings others."""
    transaction = run(begin(action="replacecommit"), store, CLOCK)
    files = [write_inserts(transaction.target, t, file_id=f"{CLOCK.unique()}-0") for t in tables]
    for file in files:
        store.put(file.key, file.body, IfAbsent())
    stats = [each.stat for each in files]
    way = prepare(transaction, stats, schema=AVRO, operation="INSERT_OVERWRITE",
                  replaced=frozenset(gone))  # fmt: skip
    return publish(store, run(way, store, CLOCK))


Rows = dict[str, tuple[int, str]]
"""Key -> (amount, commit time)."""


@dataclass
class Model:
    """What was committed, in plain dictionaries: the instants, and what each did."""

    commits: dict[str, tuple[dict[FileGroup, Rows], set[FileGroup]]] = field(default_factory=dict)

    def groups(self, until: str = "~") -> dict[FileGroup, Rows]:
        groups: dict[FileGroup, Rows] = {}
        for instant in sorted(self.commits):
            writes, gone = self.commits[instant]
            if instant <= until:
                for group, changed in writes.items():
                    groups[group] = {**groups.get(group, {}), **changed}
                for group in gone:
                    del groups[group]
        return groups

    def rows(self, until: str = "~", since: str = "") -> dict[str, tuple[int, str]]:
        return {key: row for group in self.groups(until).values() for key, row in group.items()
                if row[1] > since}  # fmt: skip


class History:
    """A seeded run of writers, some of them slow or dead, with a dictionary kept beside it."""

    def __init__(
        self, store: Store, seed: int, regions: tuple[str, ...] = ("EU", "US", "Île-de-France 2.0")
    ) -> None:
        self.store, self.random, self.model = store, random.Random(seed), Model()
        self.ids, self.regions = count(), regions
        self.slow: list[tuple[Prepared, dict[FileGroup, Rows]]] = []
        self.refused: list[Prepared] = []

    def step(self) -> None:
        known = sorted(self.model.groups())
        if self.slow and self.random.random() < 0.4:
            self._finish(self.slow.pop(self.random.randrange(len(self.slow))))
        elif len(known) > 3 and self.random.random() < 0.15:
            region = self.random.choice(known)[0].removeprefix("region=")
            self._overwrite([each for each in known if each[0] == f"region={region}"], region)
        elif known and self.random.random() < 0.5:
            self._start(self._upsert(self.random.choice(known)))
        else:
            self._start(self._insert())

    def _insert(self) -> tuple[Prepared, dict[FileGroup, Rows]]:
        ids, amount = [next(self.ids) for _ in range(2)], self.random.randrange(100)
        table = rows(ids, region=self.random.choice(self.regions), amount=amount)
        prepared = prepare_inserts(self.store, table)
        return prepared, self._wrote(prepared, table)

    def _upsert(self, group: FileGroup) -> tuple[Prepared, dict[FileGroup, Rows]]:
        old = int(self.random.choice(sorted(self.model.groups()[group]))[1:])
        table = rows([old, next(self.ids)], amount=self.random.randrange(100))
        prepared = prepare_upserts(
            self.store, table, which=lambda each: (each.partition, each.file_id) == group
        )
        return prepared, self._wrote(prepared, table)

    def _wrote(self, prepared: Prepared, table: pa.Table) -> dict[FileGroup, Rows]:
        pairs = zip(table["id"].to_pylist(), table["amount"].to_pylist(), strict=True)
        return {stat.group: {key: (amount, prepared.instant) for key, amount in pairs}
                for stat in prepared.stats}  # fmt: skip

    def _start(self, work: tuple[Prepared, dict[FileGroup, Rows]]) -> None:
        if self.random.random() < 0.4:
            self.slow.append(work)  # and perhaps never heard of again
        else:
            self._finish(work)

    def _finish(self, work: tuple[Prepared, dict[FileGroup, Rows]]) -> None:
        prepared, wrote = work
        try:
            publish(self.store, prepared)
            self.model.commits[prepared.instant] = (wrote, set())
        except CommitConflict:
            self.refused.append(prepared)

    def take_back(self) -> None:
        """What was refused or never committed is rolled back: its files first, as Hudi does."""
        for dead in (*self.refused, *(prepared for prepared, _ in self.slow)):
            names = dead.names
            keys = (names.inflight(dead.instant), names.requested(dead.instant))
            for key in (*(stat.path for stat in dead.stats), *keys):
                self.store.delete(key)
        self.refused, self.slow = [], []

    def _overwrite(self, gone: list[FileGroup], region: str) -> None:
        table = rows([next(self.ids)], region=region, amount=7)
        instant = overwrite(self.store, gone, table)
        groups = run(load_snapshot(), self.store, CLOCK).groups
        new = {group for group, of in groups.items() if of.instant == instant}
        key = table["id"][0].as_py()
        self.model.commits[instant] = ({each: {key: (7, instant)} for each in new}, set(gone))


def rows_of(table: pa.Table) -> dict[str, tuple[int, str]]:
    if "id" not in table.column_names:
        return {}
    columns = (table[name].to_pylist() for name in ("id", "amount", "_hoodie_commit_time"))
    found = {key: (amount, at) for key, amount, at in zip(*columns, strict=True)}
    assert len(found) == table.num_rows
    return found
