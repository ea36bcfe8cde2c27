"""The writers of the scenario `table`: handles that append, and writes as Spark's make them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lockkit.lab.verify.sim.task import Node, Violated
from lockkit.lab.verify.table.heart import RULES
from lockkit.lab.verify.table.host import EXPECTED, SimHost
from lockkit.lab.verify.table.interruption import CtrlC
from lockkit.lab.verify.table.ledger import FEW_INSTANTS, Place, Table, TrackedAttempt
from lockkit.lab.verify.table.reader import TableRow
from lockkit.lab.verify.table.rows import SCHEMA, base_file, put_files, read_rows
from lockkit.runtime import Procedure, Sleep
from lockkit.table.errors import CommitUnknown, HeartbeatExpired
from lockkit.table.format.base_file import BaseFile, Slice
from lockkit.table.format.layout import FileGroup
from lockkit.table.format.properties import GROUP
from lockkit.table.occ.commit import Committed
from lockkit.table.occ.group.refused import LateInstant
from lockkit.table.occ.prepared import Prepared, prepare
from lockkit.table.occ.transaction import TableCache, Transaction
from lockkit.table.read.bucket_groups import bucket_file_id, generations
from lockkit.table.read.buckets import free_file_id
from lockkit.table.read.opening import load_snapshot, look_over, snapshot_for
from lockkit.table.read.snapshot import Snapshot
from lockkit.table.services.old_pending import OldPending
from lockkit.table.write.append import NewRows
from lockkit.table.write.attempt import WriteAttempt
from lockkit.table.write.batch import StreamBatch
from lockkit.table.write.contract import AttemptHeartbeat
from lockkit.table.write.following import TableState, state_after
from lockkit.table.write.withdrawal import changes_nothing

if TYPE_CHECKING:
    from lockkit.lab.verify.table.scenario import TableRun

KINDS = ("append",) * 5 + ("upsert",) * 5 + ("delete",) + ("overwrite",) * 3 + ("overwrite all",)
PLAIN_KINDS = tuple(each for each in KINDS if not each.startswith("overwrite"))
STEADY_KINDS = ("append",) * 2 + ("upsert",) * 4 + ("delete",) * 3
REWRITES = ("upsert", "upsert", "delete")
KEYS = tuple(f"k{number}" for number in range(5))
OPERATIONS_MAX, HURRIED_MAX, OVERTAKING_MAX, RETRIES_MAX = 5, 10, 30, 3
STEADY_MAX, STEADY_PAUSE_S, NEWEST = 20, 0.3, 0.8
AHEAD = "W1"
"""In a run with clocks `apart`: the writer whose clock is ahead."""
NEW = "new "
"""So the keys begin that an append has added."""
HUDI = {
    "append": "INSERT", "upsert": "UPSERT", "delete": "DELETE", "overwrite": "INSERT_OVERWRITE",
    "overwrite all": "INSERT_OVERWRITE_TABLE", "batch": "UPSERT",
}  # fmt: skip


@dataclass(slots=True)
class SimWriter:
    """One process that writes. Its appends are those of a warm handle. Its other writes are cold,
    as Spark's are; in a run that is `warm`, each continues from the last commit, as a handle's do.
    """

    run: TableRun
    host: SimHost
    known: TableCache | None = None
    left: TableState | None = None
    partitions: frozenset[str] = frozenset()
    schema_at: str = ""
    operations: int = 0
    old: OldPending | None = None

    @property
    def node(self) -> Node:
        return self.host.session.node

    @property
    def name(self) -> str:
        return f"{self.node.name}.{self.node.life}"

    # --- its life --------------------------------------------------------------------------------

    def live(self) -> Procedure[None]:
        dice, hurried = self.run.world.dice, self.run.hurried
        most = HURRIED_MAX if hurried else STEADY_MAX if self.run.steady else OPERATIONS_MAX
        most *= 3 if self.run.apart else 1
        for _ in range(OVERTAKING_MAX if self.run.overtaken else most):
            self.operations += 1
            # Beside an overwrite Hudi inserts a key again: new file groups never conflict there.
            kinds = PLAIN_KINDS if self.run.foreign else KINDS
            kinds = STEADY_KINDS if self.run.steady else kinds
            if self.run.apart:
                kinds = REWRITES if self.node.name == AHEAD else ("append",)
            yield from self._operation("append" if hurried else dice.choice(kinds))
            pause_s = STEADY_PAUSE_S if self.run.steady and len(kinds) > 1 else 1.0
            yield Sleep(0.0 if hurried else dice.random() * pause_s)

    def _operation(self, kind: str) -> Procedure[None]:
        """Try one operation until it commits, or until no further try is due."""
        dice, ledger = self.run.world.dice, self.run.ledger
        partition = dice.choice(self.run.partitions)
        keys = tuple(sorted(dice.sample(KEYS, 2)))
        for tries in range(RETRIES_MAX):
            token = f"{self.name}/{self.operations}/{tries}"
            mine = self._tracked(token, f"{self.name}/{self.operations}", kind)
            done: Committed | None
            ledger.begins(self.node.name)
            self.host.interrupt()
            before = ledger.committed() if self.run.config.commit == GROUP else {}
            if self.run.steady and kind in ("upsert", "delete"):
                keys = self._with_an_added_one(before, partition, keys)
            since = len(ledger.commits)
            try:
                if kind == "append":
                    done = yield from self.append(mine, partition)
                else:
                    done = yield from self.write(mine, partition, keys)
                if kind == "delete":
                    ledger.deleted(mine, {each for each in before if each[0] == partition
                                          and each[1] in keys}, since)  # fmt: skip
                if done is not None:
                    ledger.acknowledged(mine)
                return
            except EXPECTED as error:
                if self.run.prompt and "overtaken" in str(error):
                    raise Violated(FEW_INSTANTS, str(error)) from error
                self.known = None
                self.run.expired |= isinstance(error, HeartbeatExpired)
                ledger.refused(mine, type(error).__name__)
                self.host.land()
                if isinstance(error, CommitUnknown):
                    return
            except CtrlC as interrupt:
                self.known = None
                ledger.interrupted(mine, getattr(interrupt, "__notes__", []))
                return
            yield Sleep(dice.random() / 4)

    def _with_an_added_one(
        self, before: Table, partition: str, keys: tuple[str, ...]
    ) -> tuple[str, ...]:
        """Of the keys that appends have added, often the latest: its file group is no bucket's."""
        added = [key for of, key in before if of == partition and key.startswith(NEW)]
        if not added:
            return keys
        newest = self.run.world.dice.random() < NEWEST
        return (added[-1] if newest else self.run.world.dice.choice(added),)

    def _tracked(self, token: str, operation: str, kind: str) -> TrackedAttempt:
        return TrackedAttempt(token, operation, kind)

    def _attempt(self) -> WriteAttempt:
        if self.old is None:
            base = self.host.base_of
            self.old = OldPending(RULES, self.node.clock, self.host.own, base, lambda _: None)
        return WriteAttempt(self.host, before_commit=self.old.before_commit)

    # --- a handle's append -----------------------------------------------------------------------

    def append(self, mine: TrackedAttempt, partition: str) -> Procedure[Committed]:
        if self.known is None:
            self.known, snapshot = yield from look_over(every=self.run.checkpoint_every)
            self.schema_at = snapshot.covered.newest
            self.partitions = frozenset(partition for partition, _ in snapshot.groups)
        key = f"{NEW}{mine.token}"
        mine.writes = ((partition, key),)
        self.run.ledger.tries(mine)
        new = NewRows(
            lambda target: [self._new_file(target.instant, partition, [key], mine)], SCHEMA,
            self.partitions, grows=False, schema_at=self.schema_at,
        )  # fmt: skip
        attempt = self._attempt()
        committed = yield from attempt.append(self.known, new)
        assert attempt.known is not None
        self.known = replace(attempt.known, newest=max(attempt.known.newest, committed.instant))
        self.schema_at = committed.instant
        self.partitions |= {partition}
        return committed

    # --- a write as Spark's, or as a handle's ----------------------------------------------------

    def write(
        self, mine: TrackedAttempt, partition: str, keys: Sequence[str],
        batch: StreamBatch | None = None,
    ) -> Procedure[Committed | None]:  # fmt: skip
        """Write; None if there is nothing to commit. A stream's `batch` is claimed first."""
        warm = self.run.warm and batch is None
        left, self.left = self.left if warm else None, None
        known, seen = left or (yield from look_over(every=self.run.checkpoint_every))
        action = "replacecommit" if mine.kind.startswith("overwrite") else self.run.config.action
        snapshot, written = seen, list[BaseFile]()

        def files(transaction: Transaction, _heart: AttemptHeartbeat) -> Procedure[Prepared | None]:
            nonlocal snapshot
            if batch is not None:
                taken = transaction.taken
                yield from self.host.run(batch.claim(taken.instant, taken.attempt))
            covered = transaction.covered
            now = load_snapshot(covering=covered, since=seen)
            if warm:
                now = snapshot_for(transaction, seen)
            snapshot = yield from self.host.run(now)
            prepared = yield from self.host.run(self._written(
                mine, transaction, snapshot, partition, keys, batch, warm, written
            ))  # fmt: skip
            if prepared is None:
                yield from self.host.run(self._nothing_to_do(transaction.instant))
            return prepared

        attempt = self._attempt()
        try:
            holds = left is not None and self.run.holds and action != "replacecommit"
            committed = yield from attempt.write(
                known, files, action=action, short=warm,
                at_hand=seen.covered.later if holds else None,
            )  # fmt: skip
        except LateInstant as late:
            newest = max(known.newest, late.instant)
            self.left = (replace(known, newest=newest), seen) if warm else None
            raise
        if warm and committed is not None and attempt.prepared is not None:
            self.host.own_files.keep(written)
            self.left = state_after(snapshot, attempt.prepared, committed)
        return committed

    def _written(
        self, mine: TrackedAttempt, transaction: Transaction, snapshot: Snapshot, partition: str,
        keys: Sequence[str], batch: StreamBatch | None, warm: bool, written: list[BaseFile],
    ) -> Procedure[Prepared | None]:  # fmt: skip
        files, replaced = yield from self._files(mine, transaction, snapshot, partition, keys)
        written[:] = files
        if not files and not replaced:
            return None
        self.run.ledger.tries(mine)
        stats = [each.stat for each in files]
        if not warm:
            yield from put_files(files)
        return (yield from prepare(
            transaction, stats, schema=SCHEMA, operation=HUDI[mine.kind],
            unsent=files if warm else (), alive=self._alive(transaction.instant),
            known_partitions=frozenset(partition for partition, _ in snapshot.groups),
            replaced=replaced,
            extra={"token": mine.token, **(batch.extra if batch else {})},
        ))  # fmt: skip

    def _alive(self, instant: str) -> Callable[[], None] | None:
        return None

    def _nothing_to_do(self, instant: str) -> Procedure[None]:
        way = self.host.appending
        if way is not None and way.only:
            self.run.world.reached.add("nothing to do unlisted")
        yield from changes_nothing(way, instant)

    def _files(
        self, mine: TrackedAttempt, transaction: Transaction, snapshot: Snapshot, partition: str,
        keys: Sequence[str],
    ) -> Procedure[tuple[list[BaseFile], frozenset[FileGroup]]]:  # fmt: skip
        """The files that it writes and removes; `mine` records the effect on the table."""
        instant = transaction.instant
        if mine.kind.startswith("overwrite"):
            whole = mine.kind == "overwrite all"
            mine.empties = None if whole else frozenset({partition})
            mine.writes = tuple((partition, key) for key in keys)
            replaced = frozenset(g for g in snapshot.groups if whole or g[0] == partition)
            return [self._new_file(instant, partition, keys, mine)], replaced
        here = [each for each in snapshot.slices if each.partition == partition]
        own = self.host.own_files if self.run.steady else None
        found = yield from read_rows(here, own)
        if mine.kind == "delete":
            return self._deleted(mine, instant, found, keys), frozenset()
        mine.writes = tuple((partition, key) for key in keys)
        return self.merged(mine, instant, snapshot, partition, found, keys), frozenset()

    def _deleted(
        self, mine: TrackedAttempt, instant: str, found: list[tuple[Slice, list[TableRow]]],
        keys: Sequence[str],
    ) -> list[BaseFile]:  # fmt: skip
        files, gone = [], list[Place]()
        for of, rows in found:
            if doomed := [(row.partition, row.key) for row in rows if row.key in keys]:
                gone += doomed
                kept = [row for row in rows if row.key not in keys]
                files.append(base_file(instant, (of.partition, of.file_id), kept, of))
        mine.removes = tuple(gone)
        return files

    def merged(
        self, mine: TrackedAttempt, instant: str, snapshot: Snapshot, partition: str,
        found: list[tuple[Slice, list[TableRow]]], keys: Sequence[str],
    ) -> list[BaseFile]:  # fmt: skip
        """Place each key in the file group that has it, else in that of its bucket."""
        rows_of = {(of.partition, of.file_id): rows for of, rows in found}
        home = {row.key: group for group, rows in rows_of.items() for row in rows}
        changed: dict[FileGroup, dict[str, TableRow]] = {}
        for key in keys:
            group = home.get(key) or self._bucket(snapshot, partition, key)
            rows = changed.setdefault(
                group, {row.key: row for row in rows_of.get(group, ())}
            )
            tokens = rows[key].tokens if key in rows else ()
            rows[key] = TableRow(partition, key, (*tokens, mine.token), instant)
        return [base_file(instant, group, rows.values(), snapshot.groups.get(group))
                for group, rows in changed.items()]  # fmt: skip

    def _bucket(self, snapshot: Snapshot, partition: str, key: str) -> FileGroup:
        number = zlib.crc32(key.encode()) if key.startswith(NEW) else int(key[1:])
        number %= snapshot.config.buckets
        generation = generations(snapshot).get((partition, f"{number:08d}"), 0)
        return partition, bucket_file_id(partition, number, generation)

    def _new_file(
        self, instant: str, partition: str, keys: Sequence[str], mine: TrackedAttempt
    ) -> BaseFile:
        rows = [TableRow(partition, key, (mine.token,), instant) for key in keys]
        return base_file(instant, (partition, free_file_id(self.node.clock)), rows)
