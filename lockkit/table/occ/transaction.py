"""A transaction: a writer's instant, from taking it to the final bytes of its commit.

`begin`, then the caller's data files, then `prepare`. On a fenced table none of this needs the lock
(if Hudi writes too, `begin` does), and readers see none of it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from lockkit.errors import StoreError
from lockkit.protocol.outcome import Applied, Found, IfAbsent, PreconditionFailed, Version
from lockkit.runtime import Note, Procedure, Unique, WallMs
from lockkit.runtime.proven import all_of, create, delete, pause_after, put_once, read
from lockkit.table.errors import CommitUnknown, OutdatedHandle, TableChanged, TableError
from lockkit.table.format.avro import stamp
from lockkit.table.format.base_file import Target
from lockkit.table.format.layout import ATTEMPT, PLAIN, format_commit
from lockkit.table.format.properties import FENCED, GROUP, TableConfig, load_config, recheck_config
from lockkit.table.format.timeline import (
    LANES,
    Timeline,
    TimelineNames,
    instant_ms,
    instant_of,
    load_timeline,
    next_instant_ms,
    refuse_ahead,
)
from lockkit.table.occ.conflict import refuse_unreadable
from lockkit.table.occ.covered import CheckedHorizon, load_rollback_plan, settle
from lockkit.table.occ.fence import FENCE_KEY

TAKES_MAX = 50
"""How many consecutive instants others may take before `take` gives up."""
OVERTAKEN_MAX = 16
"""How many consecutive instants may be useless before `begin` gives up."""
LEAD_FIRST_MS, LEAD_MAX_MS = 50, 10_000


@dataclass(frozen=True, slots=True)
class TableCache:
    """What a handle remembers about its table between transactions."""

    config: TableConfig
    config_version: Version
    """Every commit checks it again under the lock."""
    horizon: str = ""
    """Instants up to it are covered and not listed any more (`CheckedHorizon`)."""
    newest: str = ""
    """The newest completed commit or rollback seen; a new instant is later."""
    shown: Timeline | None = field(default=None, compare=False, repr=False)
    """Version 6 merge-on-read: the timeline as this handle's last commit left it."""

    def after(self, now: Timeline) -> TableCache:
        """The same, after a listing that began behind `horizon`."""
        newest = max(now.latest, self.newest)
        if self.config.mode != FENCED:
            return replace(self, newest=newest)
        covered = settle(CheckedHorizon(self.horizon), now, now.commits)
        return replace(self, newest=newest, horizon=covered.horizon)


@dataclass(frozen=True, slots=True)
class TakenInstant:
    """An instant that is ours alone; the listing after it shows whether it can be used."""

    instant: str
    attempt: str
    action: str
    known: TableCache
    body: bytes = field(repr=False)
    """The attempt in its requested file; it proves whose the instant is."""
    version: Version
    """The requested file's, as it was created."""
    early_ms: int = 0
    """How long before the attempt it was requested (group commit)."""

    @property
    def names(self) -> TimelineNames:
        return self.known.config.names

    @property
    def requested(self) -> str:
        return self.names.requested(self.instant, self.action)

    @property
    def target(self) -> Target:
        """What executors need to write its files."""
        return Target(self.instant, self.known.config)

    def note_unknown(self, interrupt: KeyboardInterrupt) -> None:
        own = f"{self.names.folder}{self.instant}*"
        interrupt.add_note(str(CommitUnknown(self.instant, "interrupted", (FENCE_KEY, own))))

    def own_version(self, now: Timeline) -> Procedure[Version | None]:
        """That of our requested file; None if it is not pending or holds another attempt."""
        place = self.instant, self.action
        if self.instant not in now.pending or place not in now.first:
            return None
        if now.first[place] == self.version:
            return self.version
        found = yield from read(self.requested)
        return found.version if isinstance(found, Found) and found.body == self.body else None


Trying = Callable[[TakenInstant], Procedure[bool]]


@dataclass(frozen=True, slots=True)
class Transaction:
    """A writer's place on the timeline, and the state of the table when it was taken."""

    taken: TakenInstant
    """Its instant, and what proves that the instant is its own."""
    timeline: Timeline
    """Listed after the instant was taken, from `horizon` on."""
    beside: Callable[[], Procedure[None]] | None = field(default=None, compare=False, repr=False)
    """What is to be done while its files are sent (group commit), or right before (`FromShown`)."""

    @property
    def instant(self) -> str:
        return self.taken.instant

    @property
    def action(self) -> str:
        return self.taken.action

    @property
    def config(self) -> TableConfig:
        return self.taken.known.config

    @property
    def horizon(self) -> str:
        """Instants up to it are covered, though `base` does not name them."""
        return self.taken.known.horizon

    @property
    def base(self) -> frozenset[str]:
        """Commits later than the horizon; a clean may share its instant with a later one."""
        return frozenset(self.timeline.commits)

    @property
    def covered(self) -> CheckedHorizon:
        """Its snapshot: read the table with `load_snapshot(covering=covered)`."""
        return CheckedHorizon(self.horizon, later=self.base)

    @property
    def target(self) -> Target:
        return self.taken.target


# --- begin --------------------------------------------------------------------------------------


def begin(
    known: TableCache | None = None, *, action: str = "commit", plan: bytes = b"",
    trying: Trying | None = None, began: Callable[[TakenInstant], Procedure[None]] | None = None,
    way: Any = None,
) -> Procedure[Transaction]:  # fmt: skip
    """Take an instant on the timeline; `TableError` if this is no writable table.

    :param known: what an earlier transaction left (`TableCache.after`); None: read the properties.
    :param action: Hudi's name of the action.
    :param plan: the content of its requested file; empty for a commit.
    :param trying: called with each instant before its file is sent; False: take another instant.
    :param began: called with each instant that was taken, before the listing that shows its use.
    :param way: how an instant is taken and surveyed instead, with group commit.
    """
    known = known or TableCache(*(yield from load_config()))
    for tries in range(OVERTAKEN_MAX):
        taken = yield from (way.take if way else take)(
            known, action=action, plan=plan, lead_ms=lead_ms(tries), trying=trying
        )
        if began is not None:
            yield from began(taken)
        met: dict[str, int] | None = {} if known.config.commit == GROUP else None
        surveying = way.survey(taken) if way else survey(taken, met)
        transaction, now = yield from surveying
        # An inflight file that exists before ours is another's, sent late by a dead process.
        if transaction is not None and taken.instant not in now.inflight:
            return transaction
        from lockkit.table.occ.discarding import discard  # rarely needed
        yield from discard(taken, now)
        known = replace(known, newest=max(taken.instant, now.latest, known.newest,
                                          *overtaking(taken, now)))  # fmt: skip
    raise overtaken(taken)


def lead_ms(tries: int) -> int:
    """How far ahead of the newest instant the next try begins, after `tries` useless instants.

    A writer with a slow clock begins right after the newest instant that it saw, and every commit
    in between overtakes it. With a growing lead it is overtaken a few times at most.
    """
    return min(LEAD_MAX_MS, LEAD_FIRST_MS * 2 ** (tries - 1)) if tries else 0


def overtaking(taken: TakenInstant, now: Timeline) -> list[str]:
    """With group commit: later instants under way, which would overtake the next one, too."""
    pending = now.pending if taken.known.config.commit == GROUP else ()
    return [each for each in pending if instant_ms(each) < instant_ms(taken.instant) + LEAD_MAX_MS]


def overtaken(taken: TakenInstant) -> TableError:
    why = f"was overtaken by other writers, as {OVERTAKEN_MAX} instants were; nothing was written"
    return TableChanged(taken.instant, why, "try again")


def take(
    known: TableCache, *, action: str = "commit", plan: bytes = b"", lead_ms: int = 0,
    trying: Trying | None = None, wall_ms: int = 0, first: str = "",
) -> Procedure[TakenInstant]:  # fmt: skip
    """Create a requested file that holds this attempt: then the instant belongs to it alone.

    The file's content proves that it is ours, also after a lost answer or a 412 caused by a hidden
    retry of our own request. `trying` runs with each instant before its file is sent, without a
    version: after an interrupt the file may exist. It returns False if the instant is not free.
    `wall_ms`: the time that its caller has read. `first`: the instant to take, unless a later one
    is known or an instant was useless.
    """
    attempt = yield Unique()
    body = first_file(action, plan, attempt, known.config.version)
    wall_ms = wall_ms or (yield WallMs())
    refuse_ahead(known.newest, wall_ms, known.config.accepted)
    grouped = known.config.commit == GROUP
    at_ms = next_instant_ms(known.newest, wall_ms, action, lead_ms, grouped)
    if first and not lead_ms:
        at_ms = next_instant_ms(known.newest, instant_ms(first), action)
    refused = list[TakenInstant]()
    for tries in range(TAKES_MAX):
        instant = instant_of(at_ms)
        offer = TakenInstant(instant, attempt, action, known, body, "")
        if trying is None or (yield from trying(offer)):
            once = create_unless_refused if grouped and action == "commit" else create
            made, *_ = yield from all_of([once(offer.requested, body), *map(_give_up, refused)])
            if isinstance(made, Version):
                return replace(offer, version=made)
            refused = [] if isinstance(made, Found) else [offer]
        # Writers that collide at one instant spread over the next ones; with group commit, which
        # has no lock, all of them may have begun at that time. Two checksums differ by the same
        # bits at each try, so each try uses other bits: else who collides once does so each time.
        places, bits = (8 << min(tries, 2), 5 * tries % 28) if grouped else (2 * tries + 1, 0)
        spread = len(LANES) * ((zlib.crc32(f"{attempt}{tries}".encode()) >> bits) % places)
        now_ms = next_instant_ms(known.newest, (yield WallMs()), action, 0, grouped)
        at_ms = max(next_instant_ms("", at_ms + 1, action, 0, grouped), now_ms) + spread
    yield from all_of(map(_give_up, refused))
    raise TableChanged(instant, f"and {TAKES_MAX - 1} more were taken by others", "try again")


def create_unless_refused(key: str, body: bytes) -> Procedure[Version | Found | None]:
    """`create`, but None after a 412: the caller then gives the object up, whosever it is. Only
    commits begin together; a service's plan that was left would block the table.

    Not `settle_write`: that would read it first.
    """
    answer = yield from put_once(key, body, IfAbsent())
    if isinstance(answer, Applied):
        return answer.version
    if isinstance(answer, PreconditionFailed):
        return None
    if isinstance(found := (yield from read(key)), Found):
        return found.version if found.body == body else found
    yield pause_after(answer, 0)
    return (yield from create(key, body))


def _give_up(offer: TakenInstant) -> Procedure[None]:
    """Delete the requested file of a refused instant if a hidden retry was refused, so that it is
    this attempt's own. If nobody answers, the next service takes it back."""
    with suppress(StoreError, TableError):
        found = yield from read(offer.requested)
        if isinstance(found, Found) and found.body == offer.body:
            yield from delete(offer.requested, found.version)


def first_file(action: str, plan: bytes, attempt: str, version: int) -> bytes:
    """The bytes of `T.<action>.requested`: the plan, stamped with its attempt.

    Hudi's own file for a commit is empty. Ours is a commit's metadata without any file. If Hudi
    reads the file (to resolve conflicts, to archive), it reads it as that, which is equivalent to
    an empty one.
    """
    if plan:
        return stamp(plan, ATTEMPT, attempt)
    if action in PLAIN:
        return format_commit((), operation="UNKNOWN", schema="", attempt=attempt, version=version)
    from lockkit.table.format.plans import format_overwrite_plan  # only an overwrite has a plan

    return stamp(format_overwrite_plan(), ATTEMPT, attempt)


def survey(
    taken: TakenInstant, met: dict[str, int] | None = None, listed: Timeline | None = None
) -> Procedure[tuple[Transaction | None, Timeline]]:
    """The state of the table now that the instant is taken; no transaction if it is useless.

    `listed` is used in place of a listing. With `met` (group commit), the listing waits for what is
    decided and not yet published, and for an earlier overwrite (`give_way`).

    An instant is useless
    - if a later instant is completed (`Timeline.latest`): a rewrite must sort after every slice
      that it reads, and incremental readers and horizons have passed it;
    - if its requested file is not ours any more: another writer rolled it back as dead;
    - if a rollback in progress names it;
    - if another action requested it too (a writer that knows no lanes): two actions of one instant
      would mistake each other's files for their own.
    Then the caller deletes what it wrote (`discard`) and takes another one.
    """
    horizon = taken.known.horizon
    after = CheckedHorizon(horizon).listed_after
    way = load_timeline(taken.names, after=after)
    if met is not None:
        from lockkit.table.occ.group.tail import list_in_turn
        way = list_in_turn(taken.names, taken.instant, taken.action, after, met)
    now = listed or (yield from way)
    if taken.known.newest and not now.completed:
        yield from recheck_config(taken.known.config, taken.known.config_version)
    if horizon and horizon not in now.completed:
        why = "was completed and left the timeline: archived, restored, or the table is new"
        raise OutdatedHandle(horizon, why, "open it again")
    refuse_unreadable(now, taken.known.config, known=frozenset(now.completed))
    useless = now.latest > taken.instant or taken.instant in now.doubled
    if useless or not (yield from is_ours(taken, now)) or (yield from _named(taken, now)):
        return None, now
    yield Note("began", {"instant": taken.instant})
    return Transaction(taken, now), now


def is_ours(taken: TakenInstant, now: Timeline) -> Procedure[bool]:
    """Whether the requested file is pending and still holds this attempt, by version or content."""
    return (yield from taken.own_version(now)) is not None


def _named(taken: TakenInstant, now: Timeline) -> Procedure[bool]:
    """Whether a rollback in progress names this instant.

    A later rollback writes its plan after this listing, and so decides after everything that the
    listing covers: the commit will find it in the fence.
    """
    for instant, done in now.rollbacks.items():
        plan = None if done else (yield from load_rollback_plan(taken.names, instant))
        if plan is not None and plan.target == taken.instant:
            return True
    return False
