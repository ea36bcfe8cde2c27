"""The writers of the scenario `table`: handles that append, and writes as Spark's make them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lockkit.drive import Procedure, Sleep
from lockkit.sim.lease import Session
from lockkit.state import LockLost
from lockkit.stores import NoAnswer
from lockkit.table.append import NewRows, prepare_append
from lockkit.table.ask import TableError
from lockkit.table.basefile import BaseFile, Slice, Target
from lockkit.table.buckets import bucket_file_id, free_file_id, generations
from lockkit.table.checkpoint import look_over
from lockkit.table.commit import Committed
from lockkit.table.decide import CommitUnknown
from lockkit.table.layout import FileGroup, WriteStat
from lockkit.table.simulation.heart import Heart
from lockkit.table.simulation.ledger import Attempt, Place
from lockkit.table.simulation.reader import Row
from lockkit.table.simulation.rows import SCHEMA, base_file, put_files, read_rows
from lockkit.table.simulation.turn import publish
from lockkit.table.snapshot import Snapshot, load_snapshot
from lockkit.table.transaction import (
    Known,
    Prepared,
    Taken,
    Transaction,
    begin,
    prepare,
)
from lockkit.table.turns import Epoch
from lockkit.table.withdraw import withdraw

if TYPE_CHECKING:
    from lockkit.table.simulation.scenario import TableRun

KINDS = ("append",) * 5 + ("upsert",) * 5 + ("delete",) + ("overwrite",) * 3 + ("overwrite all",)
KEYS = tuple(f"k{number}" for number in range(5))
OPERATIONS_MAX, RETRIES_MAX, UNKNOWN_TRIES_MAX = 5, 3, 3
EXPECTED = (TableError, LockLost, CommitUnknown, NoAnswer)
HUDI = {
    "append": "INSERT", "upsert": "UPSERT", "delete": "DELETE", "overwrite": "INSERT_OVERWRITE",
    "overwrite all": "INSERT_OVERWRITE_TABLE",
}  # fmt: skip


@dataclass(slots=True)
class Writer:
    """One process that writes: a warm handle for its appends, cold writes for everything else."""

    run: TableRun
    session: Session
    known: Known | None = None
    partitions: frozenset[str] = frozenset()
    schema_at: str = ""
    operations: int = 0
    hearts: list[Heart] = field(default_factory=list)
    taken: Taken | None = None
    """The instant of the latest attempt, until it is left."""
    paths: list[str] | None = None
    """The files that it wrote; None: nobody but its markers or a listing tells."""

    @property
    def name(self) -> str:
        return f"{self.session.node.name}.{self.session.node.life}"

    def spawn(self, procedure: Procedure[None]) -> None:
        node = self.session.node
        self.run.world.spawn(node, procedure, f"{node.name} beats")

    # --- its life --------------------------------------------------------------------------------

    def live(self) -> Procedure[None]:
        dice = self.run.world.dice
        for _ in range(OPERATIONS_MAX):
            self.operations += 1
            self.run.ledger.begins(self.session.node.name)
            yield from self._operation(dice.choice(KINDS))
            yield Sleep(dice.random())

    def _operation(self, kind: str) -> Procedure[None]:
        """Attempts at one operation until one commits, or none is to be made any more."""
        dice, ledger = self.run.world.dice, self.run.ledger
        partition = dice.choice(self.run.partitions)
        keys = tuple(sorted(dice.sample(KEYS, 2)))
        for tries in range(RETRIES_MAX):
            token = f"{self.name}/{self.operations}/{tries}"
            attempt = Attempt(token, f"{self.name}/{self.operations}", kind)
            try:
                if kind == "append":
                    done = yield from self.append(attempt, partition)
                else:
                    done = yield from self.write(attempt, partition, keys)
                if done is not None:
                    ledger.acknowledged(attempt)
                return
            except EXPECTED as error:
                self.known = None
                ledger.refused(attempt, type(error).__name__)
                yield from self._leave(error)
                if isinstance(error, CommitUnknown):
                    return
            finally:
                for heart in self.hearts:
                    heart.over = True
                self.hearts.clear()
            yield Sleep(dice.random() / 4)

    # --- a handle's append -----------------------------------------------------------------------

    def append(self, attempt: Attempt, partition: str) -> Procedure[Committed | None]:
        """As `Table.append`."""
        if self.known is None:
            self.known, snapshot = yield from look_over(every=self.run.checkpoint_every)
            self.schema_at = snapshot.covered.newest
            self.partitions = frozenset(partition for partition, _ in snapshot.groups)
        prepared, heart = yield from self._prepare_append(attempt, partition)
        heart.check()
        committed = yield from self._publish(prepared, heart)
        yield from heart.finish()
        assert self.known is not None
        self.known = replace(self.known, newest=max(self.known.newest, committed.instant))
        self.schema_at = committed.instant
        self.partitions |= {partition}
        return committed

    def _prepare_append(
        self, attempt: Attempt, partition: str
    ) -> Procedure[tuple[Prepared, Heart]]:
        key = f"new {attempt.token}"
        attempt.writes = ((partition, key),)
        self.run.ledger.tries(attempt)
        assert self.known is not None

        def files(target: Target) -> list[BaseFile]:
            return [self._new_file(target.instant, partition, [key], attempt)]

        def began(taken: Taken) -> None:
            for heart in self.hearts:
                heart.over = True
            attempt.instant, self.taken = taken.instant, taken
            self._heart(taken.instant).start_quietly(self.spawn)

        def wrote(stats: tuple[WriteStat, ...]) -> None:
            self.paths = [stat.path for stat in stats]

        new = NewRows(files, SCHEMA, self.partitions, False, self.schema_at)
        prepared, self.known = yield from prepare_append(self.known, new, began, wrote)
        return prepared, self.hearts[-1]

    def _leave(self, error: Exception) -> Procedure[None]:
        """As `lockkit.table.withdraw.BackOut` on a fenced table."""
        taken, self.taken = self.taken, None
        if taken is None or isinstance(error, CommitUnknown):
            return
        try:
            yield from withdraw(taken, Epoch(0), paths=self.paths)
        except EXPECTED:
            if self.hearts:
                yield from self.hearts[-1].give_up()

    # --- a write as Spark's ----------------------------------------------------------------------

    def write(
        self, attempt: Attempt, partition: str, keys: Sequence[str]
    ) -> Procedure[Committed | None]:
        """As `lockkit.spark.write.Write.once`; None where there is nothing to commit."""
        known, seen = yield from look_over(every=self.run.checkpoint_every)
        action = "replacecommit" if attempt.kind.startswith("overwrite") else "commit"
        transaction = yield from begin(known, action=action)
        attempt.instant = transaction.instant
        self.taken, self.paths = transaction.taken, None
        heart = self._heart(transaction.instant)
        yield from heart.start(self.spawn)
        snapshot = yield from load_snapshot(covering=transaction.covered, since=seen)
        files, replaced = yield from self._files(attempt, transaction, snapshot, partition, keys)
        if not files and not replaced:
            yield from withdraw(transaction.taken, Epoch(0))
            yield from heart.finish()
            return None
        self.run.ledger.tries(attempt)
        stats = yield from put_files(files)
        prepared = yield from prepare(
            transaction, stats, schema=SCHEMA, operation=HUDI[attempt.kind],
            known_partitions=frozenset(partition for partition, _ in snapshot.groups),
            replaced=replaced, extra={"token": attempt.token},
        )  # fmt: skip
        heart.check()
        committed = yield from self._publish(prepared, heart)
        yield from heart.finish()
        return committed

    def _files(
        self, attempt: Attempt, transaction: Transaction, snapshot: Snapshot, partition: str,
        keys: Sequence[str],
    ) -> Procedure[tuple[list[BaseFile], frozenset[FileGroup]]]:  # fmt: skip
        """What it writes and what it takes away; says in `attempt` what that does to the table."""
        instant = transaction.instant
        if attempt.kind.startswith("overwrite"):
            whole = attempt.kind == "overwrite all"
            attempt.empties = None if whole else frozenset({partition})
            attempt.writes = tuple((partition, key) for key in keys)
            replaced = frozenset(g for g in snapshot.groups if whole or g[0] == partition)
            return [self._new_file(instant, partition, keys, attempt)], replaced
        here = [each for each in snapshot.slices if each.partition == partition]
        found = yield from read_rows(here)
        if attempt.kind == "delete":
            return self._deleted(attempt, instant, found, keys), frozenset()
        attempt.writes = tuple((partition, key) for key in keys)
        return self._merged(attempt, instant, snapshot, partition, found, keys), frozenset()

    def _deleted(
        self, attempt: Attempt, instant: str, found: list[tuple[Slice, list[Row]]],
        keys: Sequence[str],
    ) -> list[BaseFile]:  # fmt: skip
        files, gone = [], list[Place]()
        for of, rows in found:
            if doomed := [(row.partition, row.key) for row in rows if row.key in keys]:
                gone += doomed
                kept = [row for row in rows if row.key not in keys]
                files.append(base_file(instant, (of.partition, of.file_id), kept, of))
        attempt.removes = tuple(gone)
        return files

    def _merged(
        self, attempt: Attempt, instant: str, snapshot: Snapshot, partition: str,
        found: list[tuple[Slice, list[Row]]], keys: Sequence[str],
    ) -> list[BaseFile]:  # fmt: skip
        """Each key in the file group that has it, else in its bucket's."""
        rows_of = {(of.partition, of.file_id): rows for of, rows in found}
        home = {row.key: group for group, rows in rows_of.items() for row in rows}
        changed: dict[FileGroup, dict[str, Row]] = {}
        for key in keys:
            group = home.get(key) or self._bucket(snapshot, partition, key)
            rows = changed.setdefault(
                group, {row.key: row for row in rows_of.get(group, ())}
            )
            tokens = rows[key].tokens if key in rows else ()
            rows[key] = Row(partition, key, (*tokens, attempt.token), instant)
        return [base_file(instant, group, rows.values(), snapshot.groups.get(group))
                for group, rows in changed.items()]  # fmt: skip

    def _bucket(self, snapshot: Snapshot, partition: str, key: str) -> FileGroup:
        number = int(key[1:]) % snapshot.config.buckets
        generation = generations(snapshot).get((partition, f"{number:08d}"), 0)
        return partition, bucket_file_id(partition, number, generation)

    def _new_file(
        self, instant: str, partition: str, keys: Sequence[str], attempt: Attempt
    ) -> BaseFile:
        rows = [Row(partition, key, (attempt.token,), instant) for key in keys]
        return base_file(instant, (partition, free_file_id(self.session.node.clock)), rows)

    # --- both ------------------------------------------------------------------------------------

    def _heart(self, instant: str) -> Heart:
        heart = Heart.of(instant, self.session.node)
        self.hearts.append(heart)
        self.run.hearts[instant] = heart
        return heart

    def _publish(self, prepared: Prepared, heart: Heart) -> Procedure[Committed]:
        """As often as it takes to know what became of it, within bounds."""
        for _ in range(UNKNOWN_TRIES_MAX - 1):
            try:
                return (yield from publish(self.run, self.session, prepared, heart.check))
            except CommitUnknown:
                continue
        return (yield from publish(self.run, self.session, prepared, heart.check))
