"""An inspection of a table and its lock: who holds it, and which instants are unfinished.

It only reads, so read-only rights are enough.
"""

from __future__ import annotations

from dataclasses import dataclass

from lockkit.errors import StoreError, TableError
from lockkit.lock.storage import LOCK_KEY, observation_of
from lockkit.protocol.expiry import hudi_end_ms
from lockkit.protocol.outcome import Found, Missing
from lockkit.protocol.policy import Policy
from lockkit.protocol.record import RECORD_BYTES_MAX, Garbled, Record
from lockkit.protocol.state import Observation
from lockkit.providers.process_state import NO_RENEWALS, ProcessState, process_state
from lockkit.runtime import Note, Procedure, Sleep, WallMs
from lockkit.runtime.proven import listing, read
from lockkit.table.format.properties import PROPERTIES_KEY
from lockkit.table.occ.condition import TableCondition, condition
from lockkit.table.occ.failed import leftovers
from lockkit.table.occ.heartbeat_rules import HeartbeatRules
from lockkit.table.occ.markers import MARKERS

WATCH_S = 3.0
LOOKS_MAX = 60
RENEWALS_PER_LEASE = 10
"""Hudi's rule and ours: at least ten renewals fit into a lease."""
NO_RECORD = (
    "it is not a lock record, so no one can hold the lock or take it; find out what wrote it, then "
    "break it"
)
NO_RECORD_WRITTEN = (
    "it is not a lock record, and it changed while it was watched: stop the program that writes it"
)
MISSED_MAX = 3
"""A holder that missed more renewals than this does not renew."""
HUDI_LEASE_MS = 300_000
"""By Hudi's defaults. Its record shows only when the lease ends, by a clock that may be behind."""
CLOCKS_DIFFER_MS = 5_000


@dataclass(frozen=True, slots=True)
class LeaseRemaining:
    """The remaining lease in ms, by each clock; None: this clock does not show it."""

    ours_ms: int | None = None
    """This machine's clock against `validUntil`: Hudi's rule."""
    store_ms: int | None = None
    """The store's Last-Modified against its Date; for a lease that Hudi wrote, Date against
    `validUntil`."""
    observed_ms: int | None = None
    """Our observation: the same version must be seen for a whole lease."""

    @property
    def decides(self) -> tuple[int, str]:
        """What is left by the clock that decides, and whose it is.

        If the lease has a length, that is the store's. Otherwise it is the later one: a challenger
        waits for its own clock, and a clock that is wrong does not make a living holder a dead one.
        """
        ours = (self.ours_ms or 0, "this machine's clock")
        if self.store_ms is None:
            return ours
        store = (self.store_ms, "the store's clock")
        return store if self.observed_ms is not None else max(ours, store)


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The lock object, as two reads showed it."""

    observation: Observation
    state: str
    """absent, released, held, overdue (not renewed in time) or garbled."""
    left: LeaseRemaining
    watched_ms: int
    renews: bool | None
    """None: the two reads were too close together to show it."""
    breakable: bool
    why: str
    """Why it may or may not be broken."""

    @property
    def process_state(self) -> ProcessState:
        """What this machine shows of its process."""
        record = self.observation.record
        return process_state(record.holder if isinstance(record, Record) else "")

    @property
    def missed(self) -> bool:
        """Whether its holder no longer renews it."""
        dead = self.process_state in (ProcessState.ENDED, *NO_RENEWALS)
        silent = self.state == "overdue" or self.renews is False or dead
        return self.state in ("held", "overdue") and silent and self.renews is not True


@dataclass(frozen=True, slots=True)
class TableStatus:
    """The table beside its lock."""

    condition: TableCondition
    dead_heartbeats: tuple[str, ...]
    """Of instants that are over."""
    left_markers: tuple[str, ...]
    """Instants that are no longer pending but still have markers."""


@dataclass(frozen=True, slots=True)
class LockInspection:
    """The result of an inspection. Without a table, `read_error` says why."""

    holder: LockHolder
    table: TableStatus | None
    read_error: str = ""
    no_table: bool = False
    """There is certainly no table here: the lock guards something else."""


def stand(
    *, watch_s: float = WATCH_S, policy: Policy = Policy(),
    hearts: HeartbeatRules = HeartbeatRules(),
) -> Procedure[LockInspection]:
    """Inspect the table, then its lock. The lock is shown even if the table cannot be read."""
    table, read_error, no_table = None, "", False
    try:
        table = yield from _beside(hearts)
    except (TableError, StoreError) as error:
        read_error = str(error)
        no_table = yield from _is_missing()
    holder = yield from watch(watch_s, policy)
    return LockInspection(holder, table, read_error, no_table)


def _is_missing() -> Procedure[bool]:
    try:
        return isinstance((yield from read(PROPERTIES_KEY)), Missing)
    except (TableError, StoreError):
        return False


def watch(watch_s: float, policy: Policy = Policy()) -> Procedure[LockHolder]:
    """Read the lock. If it is not free, read it again until it changes, for up to `watch_s`."""
    first, began_ms = (yield from _observation()), (yield WallMs())
    observation, looks = first, min(LOOKS_MAX, max(1, round(watch_s)))
    record = first.record
    free = record is None or (isinstance(record, Record) and record.expired)
    for number in range(0 if free else looks):
        past_s = watch_s * number / looks
        said = f"watching whether it is renewed: {past_s:.0f} of {watch_s:g} s"
        yield Note("note", {"text": said})
        yield Sleep(watch_s / looks)
        observation = yield from _observation()
        if observation.version != first.version:
            break
    wall_ms = yield WallMs()
    return judge(first, observation, watched_ms=wall_ms - began_ms, wall_ms=wall_ms, policy=policy)


def _observation() -> Procedure[Observation]:
    match (yield from read(LOCK_KEY, limit=RECORD_BYTES_MAX)):
        case Found() as found:
            return observation_of(found)
        case _missing:
            return Observation(None, None)


def _beside(hearts: HeartbeatRules) -> Procedure[TableStatus]:
    found = yield from condition(hearts)
    dead = yield from leftovers(found.config.names, hearts)
    marked = yield from listing(MARKERS)
    instants = {each.key.removeprefix(MARKERS).partition("/")[0] for each in marked}
    return TableStatus(found, dead, tuple(sorted(instants - set(found.timeline.pending))))


def judge(
    first: Observation, second: Observation, *, watched_ms: int, wall_ms: int, policy: Policy
) -> LockHolder:
    """What two observations show of the holder, and whether its lock may be broken."""
    record = second.record
    match record:
        case None:
            why = "the lock is free: there is nothing to break"
            return LockHolder(second, "absent", LeaseRemaining(), watched_ms, None, False, why)
        case Garbled():
            written = second.version != first.version
            why = NO_RECORD_WRITTEN if written else NO_RECORD
            return LockHolder(
                second, "garbled", LeaseRemaining(), watched_ms, written or None, not written, why
            )
        case Record(expired=True):
            why = "it was released: there is nothing to break"
            return LockHolder(second, "released", LeaseRemaining(), watched_ms, None, False, why)
    left = left_of(second, record, wall_ms=wall_ms, policy=policy, watched_ms=watched_ms)
    left_ms, whose = left.decides
    over = left_ms <= 0
    modified, date = second.modified_ms, second.date_ms
    may_live = not record.ttl_ms and modified and (over or record.valid_until_ms <= modified)
    renews = True if second.version != first.version else _silent(second, record)
    process = process_state(record.holder)
    if renews:
        safe, why = False, "its holder renews it: it is alive, and would continue to write"
    elif process is ProcessState.ENDED and (over or renews is False):
        safe, why = True, "its process ran on this host and has ended, and it is not renewed"
    elif may_live and renews is None and date and modified:
        over, safe, why = False, False, (
            f"its lease is over by its own clock, but it was written "
            f"{(date - modified) / 1000:.0f} s ago, by the store's clock, so that clock may be "
            "behind: wait until it has missed several renewals"
        )
    elif over and process.lives:
        what = {"STOPPED": "process is stopped", "RUNS": "process runs"}
        safe, why = False, (
            f"its {what.get(process.name, 'command runs')} on this host and may continue: end it "
            "first; its lease is over, "
            "so any writer takes the lock without a break"
        )
    elif over:
        safe, why = True, "its lease is over and was not renewed: any writer may take it"
    else:
        safe, why = False, (
            f"its lease lasts {left_ms / 1000:.0f} s more by {whose}: wait, unless you know that "
            f"its holder is dead{_difference(second, wall_ms)}"
        )
    return LockHolder(second, "overdue" if over else "held", left, watched_ms, renews, safe, why)


def _difference(observation: Observation, wall_ms: int) -> str:
    """A note if this machine's clock and the store's differ."""
    ahead_ms = wall_ms - (observation.date_ms or wall_ms)
    if abs(ahead_ms) <= CLOCKS_DIFFER_MS:
        return ""
    side = "ahead of" if ahead_ms > 0 else "behind"
    return f" (this machine's clock is {abs(ahead_ms) / 1000:.0f} s {side} the store's)"


def left_of(
    observation: Observation, record: Record, *, wall_ms: int, policy: Policy, watched_ms: int
) -> LeaseRemaining:
    """The remaining lease by each of the three clocks."""
    modified, date = observation.modified_ms, observation.date_ms
    store_ms = None
    if record.ttl_ms and modified is not None and date is not None:
        store_ms = modified + record.ttl_ms + policy.slack_ms - date
    elif date is not None:
        store_ms = hudi_end_ms(record, modified, policy) - date
    return LeaseRemaining(
        record.valid_until_ms + policy.drift_ms - wall_ms,
        store_ms,
        record.ttl_ms - watched_ms if record.ttl_ms else None,
    )


def _silent(observation: Observation, record: Record) -> bool | None:
    """False: it missed too many renewals, by the store's clock. None: this is not known yet."""
    modified, date = observation.modified_ms, observation.date_ms
    if modified is None or date is None:
        return None
    lease_ms = record.ttl_ms or max(HUDI_LEASE_MS, record.valid_until_ms - modified)
    return False if date - modified > MISSED_MAX * lease_ms / RENEWALS_PER_LEASE else None
