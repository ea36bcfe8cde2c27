"""Seeded schedules of whole transactions: writers, a rollback service, a puller and readers.

Each is a procedure, and one request at a time is carried out, of whichever the dice choose. Answers
get lost, writes arrive late, writers die. A seed is a schedule: the same one plays the same again.
On a fenced table the lock gives no exclusion at all; in `hudi` mode it is kept, for there it is the
contract, and what a dead holder had under way arrives before its lease ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from play import Faults, Play
from table_world import AVRO, SCHEMA, Holder

from lockkit.errors import LockLost, TableError
from lockkit.runtime import Procedure, Unique
from lockkit.runtime.proven import create
from lockkit.table import (
    Prepared,
    TableConfig,
    begin,
    commit,
    create_table,
    prepare,
    rewrite_group,
    write_inserts,
)
from lockkit.table.errors import CommitConflict, CommitUnknown
from lockkit.table.format.layout import FileGroup
from lockkit.table.format.properties import load_config
from lockkit.table.format.timeline import Timeline, load_timeline
from lockkit.table.occ.rollback import roll_back
from lockkit.table.occ.transaction import TableCache
from lockkit.table.read.bucket_groups import bucket_file_id
from lockkit.table.read.incremental import load_increment
from lockkit.table.read.opening import load_snapshot
from lockkit.table.read.reader import read_slice
from lockkit.table.read.snapshot import Snapshot

REGIONS = ("EU", "US")
BUCKETS = 2
ATTEMPTS_MAX = 40
PULLS_MAX, LOOKS_MAX = 12, 4
Row = tuple[str, int, str]
"""Key, amount, instant."""


@dataclass(frozen=True)
class Rules:
    """What may be switched off, to see that something goes wrong then."""

    fence: bool = True
    """In `hudi` mode: the lock."""
    buckets: bool = True


@dataclass
class Tried:
    """A transaction that came as far as its commit, and what its writer was told."""

    instant: str
    keys: tuple[int, ...]
    reported: str = "nothing"


class World(Play):
    """One seed's table, its actors, and what came of them."""

    def __init__(
        self, seed: int, mode: str = "fenced", version: int = 6, faults: Faults = Faults(),
        rules: Rules = Rules(),
    ) -> None:  # fmt: skip
        super().__init__(f"{seed} {mode} {version}", faults, leased=mode == "hudi")
        self.seed, self.mode, self.rules = seed, mode, rules
        self.config = TableConfig(
            name="orders", record_key="id", partition_by="region", precombine="at",
            mode=mode, version=version, buckets=BUCKETS,
        )  # fmt: skip
        self.run(create_table(self.config))
        self.epoch = 0
        self.tried: list[Tried] = []
        self.rows_of: dict[str, pa.Table] = {}

    def settle(self) -> None:
        """All that is under way arrives, what died is rolled back, and one more writer commits."""
        self.land()
        self.faults = Faults()
        self.add("last", self.upsert(()))
        self.play()
        for instant in list(self.timeline().pending):
            self.add("tidy", self.take_back(instant))
            self.play()
        self.add("last", self.upsert(()))
        self.play()

    # --- what they do ----------------------------------------------------------------------------

    def transaction(
        self, files: Callable[[Any], Procedure[Any]], *, tries: int = ATTEMPTS_MAX,
        operation: str = "UPSERT", keys: tuple[int, ...] = (),
    ) -> Procedure[str]:  # fmt: skip
        """Begin, write, commit, again after a conflict; returns the instant, or the last error."""
        reported = "spent"
        for _ in range(tries):
            try:
                prepared = yield from self.prepared(files, operation=operation)
            except TableError as error:
                reported = type(error).__name__
                continue
            reported = yield from self.committed(prepared, keys)
            if reported == prepared.instant:
                return reported
        return reported

    def prepared(
        self, files: Callable[[Any], Procedure[Any]], *, operation: str = "UPSERT"
    ) -> Procedure[Prepared]:
        transaction = yield from begin()
        stats = []
        for file in (yield from files(transaction)):
            yield from create(file.key, file.body)
            stats.append(file.stat)
        return (yield from prepare(transaction, stats, schema=AVRO, operation=operation))

    def committed(self, prepared: Prepared, keys: tuple[int, ...]) -> Procedure[str]:
        """As often as it takes to know; what it was told, or the instant."""
        mine = Tried(prepared.instant, keys)
        self.tried.append(mine)
        for _ in range(ATTEMPTS_MAX):
            yield from self._take_lock()
            try:
                yield from commit(
                    prepared, Holder(self.epoch), fence=None if self.rules.fence else False
                )
                mine.reported = prepared.instant
            except CommitConflict as error:
                assert "start again" in str(error) or "let that plan" in str(error)
                mine.reported = "CommitConflict"
            except LockLost as error:
                mine.reported = "again" if "acquire the lock again" in str(error) else "LockLost"
            except CommitUnknown:
                mine.reported = "CommitUnknown"
            except TableError as error:
                mine.reported = f"refused: {error}"
            self._let_go()
            if mine.reported not in ("again", "CommitUnknown"):
                return mine.reported
        return mine.reported

    def _take_lock(self) -> Procedure[None]:
        if self.mode == "hudi" and self.rules.fence:
            yield from self.take_lock()
        self.epoch += 1

    def _let_go(self) -> None:
        if self.mode == "hudi" and self.rules.fence:
            self.let_go()

    def upsert(self, keys: tuple[int, ...], *, tries: int = ATTEMPTS_MAX) -> Procedure[str]:
        """Add one to the amount of each key; one that is not there yet begins with 1."""
        return self.transaction(lambda of: self.upsert_files(of, keys), tries=tries, keys=keys)

    def upsert_prepared(self, keys: tuple[int, ...]) -> Procedure[Prepared]:
        """The same once, and only as far as its commit."""
        return self.prepared(lambda of: self.upsert_files(of, keys))

    def insert(self, keys: tuple[int, ...]) -> Procedure[str]:
        """New rows in a file group of their own, without a look at what is there."""
        return self.transaction(
            lambda of: self.insert_files(of, keys), operation="INSERT", keys=keys
        )

    def insert_files(self, transaction: Any, keys: tuple[int, ...]) -> Procedure[Any]:
        files = []
        for region in REGIONS:
            if mine := [(key, 1) for key in keys if region_of(key) == region]:
                file_id = f"f{(yield Unique())}-0"
                files.append(write_inserts(transaction.target, table(mine), file_id=file_id))
        return files

    def upsert_files(self, transaction: Any, keys: tuple[int, ...]) -> Procedure[Any]:
        snapshot: Snapshot = yield from load_snapshot(covering=transaction.covered)
        amounts: dict[FileGroup, dict[int, int]] = {}
        known: set[int] = set()
        for of in snapshot.slices:
            for key, amount in self.amounts((yield from self._rows(of))).items():
                if key in keys:
                    known.add(key)
                    amounts.setdefault((of.partition, of.file_id), {})[key] = amount + 1
        for key in set(keys) - known:
            partition = f"region={region_of(key)}"
            file_id = bucket_file_id(partition, key // 2 % BUCKETS)
            if not self.rules.buckets:
                file_id = f"f{(yield Unique())}-0"
            amounts.setdefault((partition, file_id), {})[key] = 1
        files = []
        for group, mine in sorted(amounts.items()):
            new, base = table(sorted(mine.items())), snapshot.groups.get(group)
            if base is None:
                files.append(write_inserts(transaction.target, new, file_id=group[1]))
            else:
                old = yield from self._rows(base)
                files.append(rewrite_group(transaction.target, base, old, new))
        return files

    def take_back(self, instant: str) -> Procedure[Any]:
        """Roll an instant back that is thought dead, whether it is or not."""
        config, version = yield from load_config()
        for _ in range(ATTEMPTS_MAX):
            yield from self._take_lock()
            done = None
            try:
                done = yield from roll_back(
                    instant, Holder(self.epoch), TableCache(config, version), base="memory://x"
                )
            except (TableError, CommitUnknown, LockLost):
                pass
            self._let_go()
            if done is not None:
                return done
        return None

    def rollback_service(self, times: int) -> Procedure[list[Any]]:
        done = []
        for _ in range(times):
            try:
                now = yield from load_timeline(self.config.names)
                pending = [i for i, action in now.pending.items() if action == "commit"]
            except TableError:
                continue
            if pending:
                done.append((yield from self.take_back(self.dice.choice(pending))))
        return done

    def puller(self, pulled: list[Any]) -> Procedure[None]:
        """Follows the table: appends (start, end, rows) of each increment to `pulled`."""
        start = pulled[-1][1] if pulled else ""
        for _ in range(PULLS_MAX):
            try:
                increment = yield from load_increment(start)
                rows: list[Row] = []
                for of in increment.slices:
                    mine = (yield from self._rows(of)).filter(increment.where)
                    rows += zip(
                        mine["id"].to_pylist(), mine["amount"].to_pylist(),
                        mine["_hoodie_commit_time"].to_pylist(), strict=True,
                    )  # fmt: skip
            except TableError:
                continue
            if increment.end != start:
                pulled.append((start, increment.end, sorted(rows)))
                start = increment.end
        return None

    def reader(self, seen: list[Any]) -> Procedure[None]:
        """Reads one snapshot several times, while others go on."""
        try:
            snapshot: Snapshot = yield from load_snapshot()
        except TableError:
            return
        looks = []
        for _ in range(LOOKS_MAX):
            rows: dict[int, list[int]] = {}
            for of in snapshot.slices:
                for _try in range(ATTEMPTS_MAX):
                    try:
                        found = yield from read_slice(of)  # from the store, every time
                        break
                    except TableError as error:
                        assert "tries" in str(error), error
                for key, amount in self.amounts(found).items():
                    rows.setdefault(key, []).append(amount)
            looks.append(rows)
        seen.append((snapshot, looks))

    def _rows(self, of: Any) -> Procedure[pa.Table]:
        """A base file never changes, so it is unpacked once."""
        if of.path not in self.rows_of:
            self.rows_of[of.path] = yield from read_slice(of)
        return self.rows_of[of.path]

    @staticmethod
    def amounts(rows: pa.Table) -> dict[int, int]:
        keys = [int(key[1:]) for key in rows["id"].to_pylist()]
        assert len(set(keys)) == len(keys), "one file group holds a key twice"
        return dict(zip(keys, rows["amount"].to_pylist(), strict=True))

    # --- what came of it -------------------------------------------------------------------------

    def timeline(self) -> Timeline:
        return self.run(load_timeline(self.config.names))

    def stored(self) -> list[tuple[int, int]]:
        """(key, amount) of every row."""
        snapshot = self.run(load_snapshot())
        rows = (self.run(read_slice(of)) for of in snapshot.slices)
        return sorted(pair for each in rows for pair in self.amounts(each).items())

    def visible(self) -> dict[str, Tried]:
        """Transactions that are on the timeline now, by their instants, in order."""
        commits = set(self.timeline().commits)
        found = {each.instant: each for each in self.tried if each.instant in commits}
        return dict(sorted(found.items()))

    def versions(self) -> list[tuple[str, str, str, int]]:
        """What the table's history says: (completed, instant, key, amount) of every row version."""
        now, counts, found = self.timeline(), {}, []  # type: ignore[var-annotated]
        for instant, each in self.visible().items():
            for key in each.keys:
                counts[key] = counts.get(key, 0) + 1
                at = now.completion.get(instant, instant)
                found.append((at, instant, f"k{key}", counts[key]))
        return found

    def wrong(self) -> str | None:
        """The first promise to a writer that was broken, or a row too many, too few or too old."""
        visible = self.visible()
        for each in self.tried:
            if each.reported == each.instant and each.instant not in visible:
                return f"{each.instant} was acknowledged and is lost"
            if each.reported in ("CommitConflict", "LockLost") and each.instant in visible:
                return f"{each.instant} was told {each.reported} and is visible"
        expected: dict[int, int] = {}
        for each in visible.values():
            for key in each.keys:
                expected[key] = expected.get(key, 0) + 1
        if self.stored() != sorted(expected.items()):
            return f"the table has {self.stored()}, its commits say {sorted(expected.items())}"
        return None


@dataclass
class Attacked:
    """A schedule that was played, and what its readers saw."""

    world: World
    windows: list[tuple[str, str, list[Row]]] = field(default_factory=list)
    """(start, end, rows) of each increment."""
    snapshots: list[tuple[Snapshot, list[dict[int, list[int]]]]] = field(default_factory=list)
    """With the amounts by key that each look at it found."""
    while_running: int = 0
    """How many increments came while others wrote."""

    def windows_by_history(self) -> list[tuple[str, str, list[Row]]]:
        """For each window that was pulled, the rows that the table's history says."""
        history = self.world.versions()
        found = []
        for start, stop, _ in self.windows:
            last = {key: (key, amount, instant) for at, instant, key, amount in history
                    if at <= stop}  # fmt: skip
            fresh = {instant for at, instant, *_ in history if start < at <= stop}
            found.append((start, stop, sorted(row for row in last.values() if row[2] in fresh)))
        return found

    def rows_of(self, snapshot: Snapshot) -> dict[int, list[int]]:
        """The amounts by key that the commits which it covers made."""
        expected: dict[int, int] = {}
        for instant, each in self.world.visible().items():
            for key in each.keys if instant in snapshot.covered else ():
                expected[key] = expected.get(key, 0) + 1
        return {key: [amount] for key, amount in expected.items()}


def region_of(key: int) -> str:
    return REGIONS[key % len(REGIONS)]


def table(rows: list[tuple[int, int]]) -> pa.Table:
    """(key, amount) of one region."""
    keys, amounts = zip(*rows, strict=True)
    regions = [region_of(key) for key in keys]
    return pa.table([[f"k{key}" for key in keys], regions, list(amounts), [0] * len(keys)],
                    schema=SCHEMA)  # fmt: skip


def worlds(seeds: int, **of: Any) -> Iterator[World]:
    """One after the other."""
    return (World(seed, **of) for seed in range(seeds))
