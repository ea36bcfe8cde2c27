"""A prepared transaction: its data files are written, and its commit's bytes are final.

The bytes are in `T.inflight`, from which any writer can roll the commit forward.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from lockkit.protocol.outcome import Found
from lockkit.runtime import Procedure
from lockkit.runtime.proven import all_of, create
from lockkit.table.errors import OutdatedHandle, RefusedOption, TableChanged
from lockkit.table.format.base_file import BaseFile
from lockkit.table.format.layout import (
    NO_COMMIT,
    FileGroup,
    WriteStat,
    format_commit,
    is_written_by,
    overwritten_by,
    partition_file,
)
from lockkit.table.format.properties import GROUP, HUDI
from lockkit.table.format.timeline import TimelineNames
from lockkit.table.occ.conflicting import OwnChanges
from lockkit.table.occ.covered import first_active
from lockkit.table.occ.fence import digest
from lockkit.table.occ.transaction import TakenInstant, Transaction


@dataclass(frozen=True, slots=True)
class Prepared:
    """A transaction whose files are written and whose commit's bytes are final."""

    transaction: Transaction
    """The transaction that it ends."""
    stats: tuple[WriteStat, ...]
    """One row for each file that it wrote."""
    replaced: frozenset[FileGroup]
    """The file groups that it removes."""
    operation: str
    """Hudi's name for its operation."""
    body: bytes
    """The content of `T.inflight`, which becomes that of `T.commit`."""
    grows: bool = False
    """Whether its schema has columns that its snapshot has not; other writers then check it."""
    sent_as: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Without the fence: which file a commit creates, from then on, and how it is sent again."""

    @property
    def sha256(self) -> str:
        return digest(self.body)

    @property
    def instant(self) -> str:
        return self.transaction.instant

    @property
    def names(self) -> TimelineNames:
        return self.transaction.taken.names

    @property
    def inflight(self) -> str:
        return self.names.inflight(self.instant, self.transaction.action)

    @property
    def writes(self) -> frozenset[FileGroup]:
        return frozenset(stat.group for stat in self.stats)

    @property
    def mine(self) -> OwnChanges:
        began = self.transaction
        return OwnChanges(
            self.instant, began.base, self.writes, self.replaced, self.operation,
            frozenset(began.timeline.pending), began.horizon,
            overwritten_by(self.operation, self.writes | self.replaced), began.config.merged,
            began.config.sliced,
        )  # fmt: skip


def prepare(
    transaction: Transaction,
    stats: Iterable[WriteStat],
    *,
    schema: str,
    operation: str | None = None,
    known_partitions: frozenset[str] = frozenset(),
    replaced: frozenset[FileGroup] = frozenset(),
    extra: Mapping[str, str] | None = None,
    grows: bool = False,
    unsent: Collection[BaseFile] = (),
    alive: Callable[[], None] | None = None,
) -> Procedure[Prepared]:
    """Write `T.inflight`, with exactly the bytes that `T.commit` will have; needs no lock.

    The data files must exist before the commit is decided, because a roll-forward needs them.

    :param transaction: what `begin` returned.
    :param stats: one row for each file that was written.
    :param schema: the table's schema after the commit, from `avro_schema`.
    :param operation: Hudi's name for it (default: `UPSERT`, or `INSERT` if no slice is rewritten).
    :param known_partitions: partitions whose metadata file exists; it is written in all others.
    :param replaced: file groups that a replacecommit removes.
    :param extra: further metadata of the commit, such as the checkpoint of its source.
    :param grows: must be true if `schema` has columns that the snapshot's has not.
    :param unsent: data files to write now, in parallel with `T.inflight`.
    :param alive: where they follow it, what is called before they are put.
    :raises OutdatedHandle: if a rewritten slice was archived since it was read.
    :raises RefusedOption: if a file was not written for this transaction and its snapshot.
    """
    stats, base = tuple(stats), transaction.base
    until = transaction.horizon
    if transaction.config.mode == HUDI:  # older ones are archived
        until = first_active(list(base), transaction.timeline)
    for stat in stats:
        if stat.previous != NO_COMMIT and stat.previous not in base and stat.previous > until:
            why = f"was made from {stat.previous}, which {transaction.instant} does not cover"
            if stat.previous < first_active(list(base), transaction.timeline):  # it is archived
                raise OutdatedHandle(stat.path, why, "open the table again")
            raise RefusedOption(stat.path, why, "load_snapshot(covering=transaction.covered)")
    rewrites = any(stat.previous != NO_COMMIT for stat in stats)
    operation = operation or ("UPSERT" if rewrites else "INSERT")
    drafted = draft(
        transaction.taken, stats, schema=schema, operation=operation, replaced=replaced,
        known_partitions=known_partitions, extra=extra,
    )  # fmt: skip
    beside = [transaction.beside()] if transaction.beside else []
    if beside and is_begun(transaction.taken):  # before any data file
        from lockkit.table.occ.markers import mark_all
        marks = mark_all(transaction.instant, [each.key for each in unsent])
        yield from all_of([begin_files(transaction.taken), *beside, *marks])
        beside = []
        if alive is not None:
            alive()
    body, *_ = yield from all_of([drafted, *([create_files(unsent)] if unsent else []), *beside])
    return Prepared(transaction, stats, replaced, operation, body, grows)


def draft(
    taken: TakenInstant,
    stats: tuple[WriteStat, ...],
    *,
    schema: str,
    operation: str,
    known_partitions: frozenset[str] = frozenset(),
    replaced: frozenset[FileGroup] = frozenset(),
    extra: Mapping[str, str] | None = None,
) -> Procedure[bytes]:
    """Write the inflight file, if there is one, of an instant; return its bytes."""
    _refuse_stats(taken, stats)
    body = format_commit(
        stats, operation=operation, schema=schema, attempt=taken.attempt, action=taken.action,
        replaced=replaced, extra=extra, version=taken.known.config.version,
    )  # fmt: skip
    inflight = taken.names.inflight(taken.instant, taken.action)
    found = {s.partition for s in stats if s.previous == NO_COMMIT} - known_partitions
    partitions = [create(*partition_file(each, taken.instant)) for each in sorted(found)]
    if taken.known.config.commit == GROUP:
        from lockkit.table.occ.group.fence import goes_without  # that package is loaded already
        if goes_without(taken.action, body):
            yield from all_of(partitions)
            return body
    if is_begun(taken):
        yield from all_of(partitions)
        return body
    standing, *_ = yield from all_of([create(inflight, body), *partitions])
    if isinstance(standing, Found):
        why = "is there with other bytes, which may be decided on: a transaction is prepared once"
        raise TableChanged(inflight, why, "begin again")
    return body


def is_begun(taken: TakenInstant) -> bool:
    """Whether its inflight file comes before its data files, and names none of them.

    So it is where log files are named after their slice, as with Hudi. Hudi's rollback of an
    instant without an inflight file takes nothing back, and a log file that stays is committed to
    its readers once earlier commits are archived.
    """
    return taken.known.config.sliced and taken.action != "compaction"


def begin_files(taken: TakenInstant) -> Procedure[None]:
    """Write that inflight file."""
    body = format_commit(
        (), operation="UNKNOWN", schema="", attempt=taken.attempt, action=taken.action,
        version=taken.known.config.version,
    )  # fmt: skip
    inflight = taken.names.inflight(taken.instant, taken.action)
    if isinstance((yield from create(inflight, body)), Found):
        raise TableChanged(inflight, "is there already, with other bytes", "begin again")


def create_files(files: Collection[BaseFile]) -> Procedure[None]:
    """Put data files into the store in parallel; `TableError` if one is there with other bytes."""
    for file, standing in zip(
        files, (yield from all_of(create(each.key, each.body) for each in files)), strict=True
    ):
        if isinstance(standing, Found):
            raise TableChanged(file.key, "is there already, with other bytes", "begin again")


def _refuse_stats(taken: TakenInstant, stats: tuple[WriteStat, ...]) -> None:
    groups: set[FileGroup] = set()
    for stat in stats:
        if stat.group in groups:
            raise RefusedOption(stat.path, f"is the second file of {stat.group}", "merge them")
        groups.add(stat.group)
        if not is_written_by(stat.path, taken.instant):
            raise RefusedOption(stat.path, f"was not written for {taken.instant}", "begin again")
