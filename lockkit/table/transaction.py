"""A transaction: a writer's instant, from taking it to the bytes that its commit will have.

`begin`, then the caller's data files, then `prepare`. On a fenced table none of it needs the lock
(where Hudi writes too, `begin` does), and none of it is visible to a reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from lockkit.drive import Delete, Note, Procedure, Put, Sleep, Unique, WallMs
from lockkit.outcome import (
    Applied,
    Found,
    IfAbsent,
    PreconditionFailed,
    Throttled,
    Unknown,
    Version,
)
from lockkit.table.ask import TRIES_MAX, TableError, Unanswered, all_of, create, pause_s
from lockkit.table.basefile import Target
from lockkit.table.conflict import Mine, refuse_unreadable
from lockkit.table.covered import Covered, settle
from lockkit.table.fence import digest
from lockkit.table.layout import (
    NO_COMMIT,
    FileGroup,
    WriteStat,
    format_commit,
    overwritten_by,
    partition_file,
)
from lockkit.table.pending import load_rollback_plan
from lockkit.table.properties import FENCED, TableConfig, load_config
from lockkit.table.timeline import Names, Timeline, instant_of, load_timeline, next_instant_ms

INSTANTS_MAX = 200
"""How many instants in a row may be taken by others, or be too late, before `begin` gives up."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a handle remembers of its table between transactions."""

    config: TableConfig
    config_version: Version
    """Checked again by every commit, under the lock."""
    horizon: str = ""
    """Instants up to it are covered, and not listed any more (`Covered`)."""
    newest: str = ""
    """The newest completed commit or rollback that was seen; a new instant is later."""

    def after(self, now: Timeline) -> Known:
        """The same, after a listing that began behind `horizon`."""
        newest = max((*_used(now), self.newest))
        if self.config.mode != FENCED:
            return replace(self, newest=newest)
        covered = settle(Covered(self.horizon), now, now.commits)
        return replace(self, newest=newest, horizon=covered.horizon)


@dataclass(frozen=True, slots=True)
class Taken:
    """An instant that is ours alone; whether it is of use shows in the listing after it."""

    instant: str
    attempt: str
    action: str
    known: Known

    @property
    def names(self) -> Names:
        return self.known.config.names

    @property
    def target(self) -> Target:
        """What executors need to write its files."""
        return Target(self.instant, self.known.config)


@dataclass(frozen=True, slots=True)
class Transaction:
    """A writer's place on the timeline, and what the table was when it took it."""

    taken: Taken
    timeline: Timeline
    """Listed after the instant was taken, from `horizon` on."""

    @property
    def instant(self) -> str:
        return self.taken.instant

    @property
    def attempt(self) -> str:
        return self.taken.attempt

    @property
    def action(self) -> str:
        return self.taken.action

    @property
    def config(self) -> TableConfig:
        return self.taken.known.config

    @property
    def names(self) -> Names:
        return self.taken.names

    @property
    def horizon(self) -> str:
        """Instants up to it are covered, though `base` does not name them."""
        return self.taken.known.horizon

    @property
    def base(self) -> frozenset[str]:
        """Commits later than the horizon; a clean may share its instant with one to come."""
        return frozenset(self.timeline.commits)

    @property
    def covered(self) -> Covered:
        """What it stands on: read the table with `load_snapshot(covering=covered)`."""
        return Covered(self.horizon, later=self.base)

    @property
    def target(self) -> Target:
        return self.taken.target


@dataclass(frozen=True, slots=True)
class Prepared:
    """A transaction whose files are written and whose commit's bytes are final."""

    transaction: Transaction
    stats: tuple[WriteStat, ...]
    replaced: frozenset[FileGroup]
    operation: str
    """Hudi's name for what it does."""
    body: bytes
    grows: bool = False
    """Whether its schema has columns that its snapshot's has not: then others look at it."""

    @property
    def sha256(self) -> str:
        return digest(self.body)

    @property
    def instant(self) -> str:
        return self.transaction.instant

    @property
    def names(self) -> Names:
        return self.transaction.names

    @property
    def inflight(self) -> str:
        return self.names.inflight(self.instant, self.transaction.action)

    @property
    def writes(self) -> frozenset[FileGroup]:
        return frozenset(stat.group for stat in self.stats)

    @property
    def mine(self) -> Mine:
        began = self.transaction
        return Mine(
            self.instant, began.base, self.writes, self.replaced, self.operation,
            frozenset(began.timeline.pending), began.horizon,
            overwritten_by(self.operation, self.writes | self.replaced),
        )  # fmt: skip


# --- begin --------------------------------------------------------------------------------------


def begin(
    known: Known | None = None, *, action: str = "commit", plan: bytes = b""
) -> Procedure[Transaction]:
    """Take an instant on the timeline; `TableError` if this is no table that may be written to.

    `plan` is what its requested file says: nothing for a commit.
    """
    known = known or Known(*(yield from load_config()))
    for _ in range(INSTANTS_MAX):
        taken = yield from take(known, action=action, plan=plan)
        transaction, now = yield from survey(taken)
        if transaction is not None:
            return transaction
        known = replace(known, newest=max((taken.instant, *_used(now))))
    raise TableError(
        f"{INSTANTS_MAX} instants up to {taken.instant} were overtaken by others; begin again"
    )


def take(known: Known, *, action: str = "commit", plan: bytes = b"") -> Procedure[Taken]:
    """Create a requested file that nobody else created; whoever creates it has the instant."""
    attempt = yield Unique()
    at_ms = next_instant_ms(known.newest, (yield WallMs()))
    for _ in range(INSTANTS_MAX):
        instant = instant_of(at_ms)
        if (yield from _take(known.config.names.requested(instant, action), plan)):
            return Taken(instant, attempt, action, known)
        at_ms += 1
    raise TableError(f"{INSTANTS_MAX} instants up to {instant} were taken by others; begin again")


def _take(key: str, plan: bytes) -> Procedure[bool]:
    """Whether it was certainly us who created the file.

    A commit's requested file is empty, as Hudi's is, so it cannot say whose it is: after a lost
    answer the same write goes out again, and a refusal then means *not certainly ours*. Such an
    instant is left alone, for no two transactions may share one.
    """
    for tries in range(TRIES_MAX):
        match (yield Put(key, plan, IfAbsent())):
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
        f"{key} could not be written in {TRIES_MAX} tries; see that the store answers, then begin "
        "again",
        doubt=False,
    )


def survey(taken: Taken) -> Procedure[tuple[Transaction | None, Timeline]]:
    """What the table is, now that the instant is taken; no transaction if it is of no use.

    It is none if a later instant is completed already: a rewrite must sort after every slice that
    it reads, a reader of increments has gone past it, and nobody lists so far back any more. Nor if
    somebody took it for dead and rolled it back, or means to: also where that was another writer's,
    whose clock was as far behind. Nor if another action asked for it: of two that did, the later
    sees both. Two of one instant would take each other's files for their own.
    """
    horizon = taken.known.horizon
    now = yield from load_timeline(taken.names, after=Covered(horizon).listed_after)
    if horizon and horizon not in now.completed:
        raise TableError(
            f"{horizon} was completed and is gone from the timeline: the table was restored to an "
            "earlier state, or made anew; open it again"
        )
    refuse_unreadable(now, known=frozenset(now.completed))
    useless = max(_used(now), default="") > taken.instant or taken.instant in now.doubled
    if useless:
        yield from abandon(taken)
    if useless or taken.instant not in now.pending or (yield from _doomed(taken, now)):
        return None, now
    yield Note("began", {"instant": taken.instant})
    return Transaction(taken, now), now


def _used(now: Timeline) -> list[str]:
    """Completed commits, and rollbacks: each of these is later than the instant that it freed."""
    return [*now.commits, *(each for each, done in now.rollbacks.items() if done)]


def _doomed(taken: Taken, now: Timeline) -> Procedure[bool]:
    """Whether a rollback that is under way names this instant.

    A later one writes its plan after this listing, and so decides after all that the listing
    covers: the commit will meet it in the fence.
    """
    for instant, done in now.rollbacks.items():
        plan = None if done else (yield from load_rollback_plan(taken.names, instant))
        if plan is not None and plan.target == taken.instant:
            return True
    return False


# --- prepare ------------------------------------------------------------------------------------


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
) -> Procedure[Prepared]:
    """Write `T.inflight`, the very bytes that `T.commit` will have; no lock is needed for it.

    The data files are there: whoever rolls this commit forward must find them. `schema` comes from
    `avro_schema`; partitions not in `known_partitions` get their metadata file, if absent.
    `replaced` are the file groups that a replacecommit takes away; `grows` is to be true where
    `schema` is not the snapshot's.
    """
    stats = tuple(stats)
    for stat in stats:
        base, horizon = transaction.base, transaction.horizon
        if stat.previous != NO_COMMIT and stat.previous not in base and stat.previous > horizon:
            raise TableError(
                f"{stat.path} was made from {stat.previous}, which {transaction.instant} does not "
                "cover; read the table with load_snapshot(covering=transaction.covered)"
            )
    rewrites = any(stat.previous != NO_COMMIT for stat in stats)
    operation = operation or ("UPSERT" if rewrites else "INSERT")
    body = yield from draft(
        transaction.taken, stats, schema=schema, operation=operation, replaced=replaced,
        known_partitions=known_partitions, extra=extra,
    )  # fmt: skip
    return Prepared(transaction, stats, replaced, operation, body, grows)


def draft(
    taken: Taken,
    stats: tuple[WriteStat, ...],
    *,
    schema: str,
    operation: str,
    known_partitions: frozenset[str] = frozenset(),
    replaced: frozenset[FileGroup] = frozenset(),
    extra: Mapping[str, str] | None = None,
) -> Procedure[bytes]:
    """Write the inflight file of an instant whose survey may still be under way; its bytes."""
    _refuse_stats(taken, stats)
    body = format_commit(
        stats, operation=operation, schema=schema, attempt=taken.attempt, action=taken.action,
        replaced=replaced, extra=extra, version=taken.known.config.version,
    )  # fmt: skip
    inflight = taken.names.inflight(taken.instant, taken.action)
    found = {s.partition for s in stats if s.previous == NO_COMMIT} - known_partitions
    partitions = [create(*partition_file(each, taken.instant)) for each in sorted(found)]
    standing, *_ = yield from all_of([create(inflight, body), *partitions])
    if isinstance(standing, Found):
        raise TableError(
            f"{inflight} is there and says something else; a transaction is prepared once, since "
            "its bytes may be decided on: begin again"
        )
    return body


def abandon(taken: Taken, stats: Iterable[WriteStat] = ()) -> Procedure[None]:
    """Delete what an instant left that will never be prepared; whatever stays is rolled back."""
    names, action = taken.names, taken.action
    keys = [names.inflight(taken.instant, action), names.requested(taken.instant, action)]
    for key in (*(stat.path for stat in stats), *keys):
        yield Delete(key)


def _refuse_stats(taken: Taken, stats: tuple[WriteStat, ...]) -> None:
    groups: set[FileGroup] = set()
    for stat in stats:
        if stat.group in groups:
            raise TableError(f"two files for file group {stat.group} in one commit; merge them")
        groups.add(stat.group)
        if not stat.path.endswith(f"_{taken.instant}.parquet"):
            raise TableError(f"{stat.path} was not written for {taken.instant}; begin again")
