"""The writers of the scenario `table`: handles that append, and writes as Spark's make them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lockkit.drive import Procedure, Sleep
from lockkit.sim.lease import Session
from lockkit.sim.task import Violated
from lockkit.table.append import NewRows, prepare_append
from lockkit.table.basefile import BaseFile, Slice
from lockkit.table.buckets import bucket_file_id, free_file_id, generations
from lockkit.table.checkpoint import look_over
from lockkit.table.commit import Committed
from lockkit.table.decide import CommitUnknown
from lockkit.table.layout import FileGroup
from lockkit.table.simulation.ledger import FEW_INSTANTS, Attempt, Place
from lockkit.table.simulation.reader import Row
from lockkit.table.simulation.rows import SCHEMA, base_file, put_files, read_rows
from lockkit.table.simulation.work import EXPECTED, Work
from lockkit.table.snapshot import Snapshot, load_snapshot
from lockkit.table.transaction import Known, Prepared, Transaction, begin, prepare, untold

if TYPE_CHECKING:
    from lockkit.table.simulation.scenario import TableRun

KINDS = ("append",) * 5 + ("upsert",) * 5 + ("delete",) + ("overwrite",) * 3 + ("overwrite all",)
KEYS = tuple(f"k{number}" for number in range(5))
OPERATIONS_MAX, RETRIES_MAX = 5, 3
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

    @property
    def name(self) -> str:
        return f"{self.session.node.name}.{self.session.node.life}"

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
                if self.run.prompt and "overtaken" in str(error):
                    raise Violated(FEW_INSTANTS, str(error)) from error
                self.known = None
                ledger.refused(attempt, type(error).__name__)
                if isinstance(error, CommitUnknown):
                    return
            yield Sleep(dice.random() / 4)

    # --- a handle's append -----------------------------------------------------------------------

    def append(self, attempt: Attempt, partition: str) -> Procedure[Committed | None]:
        """As `Table.append`."""
        if self.known is None:
            self.known, snapshot = yield from look_over(every=self.run.checkpoint_every)
            self.schema_at = snapshot.covered.newest
            self.partitions = frozenset(partition for partition, _ in snapshot.groups)
        key = f"new {attempt.token}"
        attempt.writes = ((partition, key),)
        self.run.ledger.tries(attempt)
        new = NewRows(
            lambda target: [self._new_file(target.instant, partition, [key], attempt)], SCHEMA,
            self.partitions, grows=False, schema_at=self.schema_at,
        )  # fmt: skip
        work = Work(self.run, self.session, attempt)
        try:
            prepared, self.known = yield from prepare_append(
                self.known, new, untold, work.began_quietly, work.wrote
            )
            committed = yield from work.publish(prepared)
        except EXPECTED as error:
            yield from work.back_out(error)
            raise
        self.known = replace(self.known, newest=max(self.known.newest, committed.instant))
        self.schema_at = committed.instant
        self.partitions |= {partition}
        return committed

    # --- a write as Spark's ----------------------------------------------------------------------

    def write(
        self, attempt: Attempt, partition: str, keys: Sequence[str]
    ) -> Procedure[Committed | None]:
        """As `lockkit.spark.write.Write.once`; None where there is nothing to commit."""
        known, seen = yield from look_over(every=self.run.checkpoint_every)
        action = "replacecommit" if attempt.kind.startswith("overwrite") else "commit"
        transaction = yield from begin(known, action=action)
        work = Work(self.run, self.session, attempt)
        try:
            yield from work.began(transaction.taken)
            prepared = yield from self._written(attempt, transaction, seen, partition, keys)
            if prepared is not None:
                return (yield from work.publish(prepared))
        except EXPECTED as error:
            yield from work.back_out(error)
            raise
        yield from work.back_out(None)
        return None

    def _written(
        self, attempt: Attempt, transaction: Transaction, seen: Snapshot, partition: str,
        keys: Sequence[str],
    ) -> Procedure[Prepared | None]:  # fmt: skip
        snapshot = yield from load_snapshot(covering=transaction.covered, since=seen)
        files, replaced = yield from self._files(attempt, transaction, snapshot, partition, keys)
        if not files and not replaced:
            return None
        self.run.ledger.tries(attempt)
        stats = yield from put_files(files)
        return (yield from prepare(
            transaction, stats, schema=SCHEMA, operation=HUDI[attempt.kind],
            known_partitions=frozenset(partition for partition, _ in snapshot.groups),
            replaced=replaced, extra={"token": attempt.token},
        ))  # fmt: skip

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
