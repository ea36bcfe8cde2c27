"""A transaction: a writer's instant, from taking it to the bytes that its commit will have.

`begin`, then the caller's data files, then `prepare`. None of it needs the lock, and none of it is
visible to a reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lockkit.drive import Note, Procedure, Put, Sleep, Unique, WallMs
from lockkit.outcome import (
    Applied,
    Found,
    IfAbsent,
    PreconditionFailed,
    Throttled,
    Unknown,
    Version,
)
from lockkit.table.ask import TRIES_MAX, TableError, Unanswered, create, pause_s
from lockkit.table.basefile import Target
from lockkit.table.conflict import Mine, refuse_unreadable
from lockkit.table.fence import digest
from lockkit.table.layout import (
    NO_COMMIT,
    FileGroup,
    WriteStat,
    format_commit,
    partition_file,
)
from lockkit.table.properties import TableConfig, load_config
from lockkit.table.timeline import Names, instant_of, load_timeline, next_instant_ms

INSTANTS_MAX = 200
"""How many instants in a row may be taken by others before `begin` gives up."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """A writer's place on the timeline, and what the table was when it took it."""

    instant: str
    attempt: str
    config: TableConfig
    config_version: Version
    base: frozenset[str]
    """Instants that were completed: read the table with `load_snapshot(covering=base)`."""
    pending: frozenset[str]

    @property
    def target(self) -> Target:
        """What executors need to write its files."""
        return Target(self.instant, self.config)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A transaction whose files are written and whose commit's bytes are final."""

    transaction: Transaction
    stats: tuple[WriteStat, ...]
    body: bytes
    sha256: str

    @property
    def instant(self) -> str:
        return self.transaction.instant

    @property
    def names(self) -> Names:
        return self.transaction.config.names

    @property
    def inflight(self) -> str:
        return self.names.inflight(self.instant)

    @property
    def completed(self) -> str:
        return self.names.completed(self.instant)

    @property
    def writes(self) -> frozenset[FileGroup]:
        return frozenset(stat.group for stat in self.stats)

    @property
    def mine(self) -> Mine:
        return Mine(self.instant, self.transaction.base, self.writes)


# --- begin --------------------------------------------------------------------------------------


def begin() -> Procedure[Transaction]:
    """Take an instant on the timeline; `TableError` if this is no table that may be written to."""
    config, version = yield from load_config()
    now = yield from load_timeline(config.names)
    refuse_unreadable(now, known=frozenset(now.completed))
    attempt = yield Unique()
    at_ms = next_instant_ms(now, (yield WallMs()))
    for _ in range(INSTANTS_MAX):
        instant = instant_of(at_ms)
        if (yield from _take(config.names, instant)):
            yield Note("began", {"instant": instant})
            return Transaction(
                instant, attempt, config, version, frozenset(now.completed), frozenset(now.pending)
            )
        at_ms += 1
    raise TableError(f"{INSTANTS_MAX} instants up to {instant} were taken by others; begin again")


def _take(names: Names, instant: str) -> Procedure[bool]:
    """Create `T.commit.requested`; whoever creates it has the instant.

    The file is empty, as Hudi's is, so it cannot say whose it is: after a lost answer the same
    write goes out again, and a refusal then means *not certainly ours*. Such an instant is left
    alone, for no two transactions may share one.
    """
    for tries in range(TRIES_MAX):
        match (yield Put(names.requested(instant), b"", IfAbsent())):
            case Applied():
                return True
            case PreconditionFailed():
                return False
            case Throttled(after_s):
                yield Sleep(pause_s(tries, after_s))
            case Unknown():
                yield Sleep(pause_s(tries))
            case other:
                raise AssertionError(f"not an answer to a write: {other!r}")
    raise Unanswered(
        f"{names.requested(instant)} could not be written in {TRIES_MAX} tries; see that the store "
        "answers, then begin again",
        doubt=False,
    )


# --- prepare ------------------------------------------------------------------------------------


def prepare(
    transaction: Transaction,
    stats: Iterable[WriteStat],
    *,
    schema: str,
    operation: str | None = None,
    known_partitions: frozenset[str] = frozenset(),
    extra: Mapping[str, str] | None = None,
) -> Procedure[Prepared]:
    """Write `T.inflight`, the very bytes that `T.commit` will have; no lock is needed for it.

    After the data files: whoever rolls this commit forward must find them. `schema` comes from
    `avro_schema`; partitions not in `known_partitions` get their metadata file, if absent.
    """
    stats, names = tuple(stats), transaction.config.names
    _refuse_stats(transaction, stats)
    for partition in sorted({s.partition for s in stats if s.previous == NO_COMMIT}):
        if partition not in known_partitions:
            yield from create(*partition_file(partition, transaction.instant))
    rewrites = any(stat.previous != NO_COMMIT for stat in stats)
    body = format_commit(
        stats,
        operation=operation or ("UPSERT" if rewrites else "INSERT"),
        schema=schema,
        attempt=transaction.attempt,
        extra=extra,
    )
    match (yield from create(names.inflight(transaction.instant), body)):
        case Found():
            raise TableError(
                f"{names.inflight(transaction.instant)} is there and says something else; a "
                "transaction is prepared once, since its bytes may be decided on: begin again"
            )
        case _version:
            return Prepared(transaction, stats, body, digest(body))


def _refuse_stats(transaction: Transaction, stats: tuple[WriteStat, ...]) -> None:
    groups: set[FileGroup] = set()
    for stat in stats:
        if stat.group in groups:
            raise TableError(f"two files for file group {stat.group} in one commit; merge them")
        groups.add(stat.group)
        if not stat.path.endswith(f"_{transaction.instant}.parquet"):
            raise TableError(f"{stat.path} was not written for {transaction.instant}; begin again")
        if stat.previous != NO_COMMIT and stat.previous not in transaction.base:
            raise TableError(
                f"{stat.path} was made from {stat.previous}, which {transaction.instant} does not "
                "cover; read the table with load_snapshot(covering=transaction.base)"
            )
