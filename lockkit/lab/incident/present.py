"""Patterns in a table's present state, apart from its history: a holder that died, a lock object
that is not a lock, a dead writer's instant. Each rule is one pure function over a look.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from lockkit.events import Event, clock_time, plain
from lockkit.lab.incident.diagnosis import NO_PATTERN, SKEW_MS, Diagnosis
from lockkit.lab.incident.patterns import Pattern
from lockkit.protocol.record import Record
from lockkit.providers.process_state import NO_RENEWALS, ProcessState
from lockkit.table.format.properties import FENCED
from lockkit.table.inspect.standing import (
    HUDI_LEASE_MS,
    MISSED_MAX,
    RENEWALS_PER_LEASE,
    LockInspection,
)
from lockkit.table.inspect.versions import Generation
from lockkit.table.inspect.words import is_left
from lockkit.table.occ.fence import COMMIT

NORMAL = (
    "the lock is free or its holder is in time, no dead writer left anything, and the history "
    "shows no known pattern"
)
NOTHING_HERE = "there is neither a table nor a lock at this address: check it"
SILENT_MS = MISSED_MAX * HUDI_LEASE_MS // RENEWALS_PER_LEASE
PUBLISHED_WITHIN_MS = 30_000
"""A writer publishes its decision with its next request, so a longer pause is not the network's."""


def with_present(
    history: Diagnosis, standing: LockInspection, events: Sequence[Event],
    kept: Sequence[Generation] = (),
) -> Diagnosis:  # fmt: skip
    """The history's patterns, then the present ones; healthy if there are none.

    `kept` are the lock object's generations, newest first.
    """
    last = tuple(events[-1:])
    found = [*hand_edited(kept), *(each for rule in RULES for each in rule(standing))]
    now = [
        Diagnosis(pattern, because, last if pattern in OF_THE_LOCK else ())
        for pattern, because in found
    ]
    if history.pattern is not Pattern.UNKNOWN:
        return replace(history, also=(*history.also, *now))
    if now:
        first, *also = now
        return replace(first, also=tuple(also))
    if doubt := may_have_died(standing):
        return Diagnosis(Pattern.UNKNOWN, doubt, last)
    if standing.no_table and standing.holder.state == "absent" and not events:
        return Diagnosis(Pattern.UNKNOWN, NOTHING_HERE)
    if history.because == NO_PATTERN and not is_something_left(standing):
        return Diagnosis(Pattern.HEALTHY, NORMAL)
    return history


def may_have_died(standing: LockInspection) -> str:
    """Why a Hudi lease that is longer than Hudi's default may be that of a dead holder; or ""."""
    holder, observation = standing.holder, standing.holder.observation
    record, written_ms, now_ms = observation.record, observation.modified_ms, observation.date_ms
    if not isinstance(record, Record) or record.expired or record.ttl_ms or holder.renews:
        return ""
    if written_ms is None or now_ms is None or now_ms < written_ms + SILENT_MS:
        return ""
    return (
        f"{plain(record.owner, limit=60)}'s lease ends "
        f"{(record.valid_until_ms - written_ms) / 1000:.0f} s after its last write, and Hudi's "
        f"lasts 300 s by default; it was not renewed for {(now_ms - written_ms) / 1000:.0f} s: "
        "either its lease is configured to be long, or its clock is ahead and it may be dead"
    )


def is_something_left(standing: LockInspection) -> bool:
    """Whether a dead writer left an instant, a heartbeat or markers."""
    table = standing.table
    return table is not None and bool(
        table.dead_heartbeats or table.left_markers
        or any(map(is_left, table.condition.pending))
    )  # fmt: skip


def hand_edited(kept: Sequence[Generation]) -> Iterator[tuple[Pattern, str]]:
    """The newest generation is in no client's form, or repeats another write's attempt."""
    if not kept or not isinstance(kept[0].record, Record):
        return
    newest, record = kept[0], kept[0].record
    if not newest.compact:
        yield Pattern.HAND_EDITED, (
            "the lock object is JSON with blanks or a line end, which neither Hudi nor lockkit "
            "writes"
        )
    before = kept[1].record if len(kept) > 1 else None
    if isinstance(before, Record) and record.attempt == before.attempt != "" and record != before:
        changed = ", ".join(
            name for name in ("owner", "valid_until_ms", "expired", "epoch", "ttl_ms", "holder")
            if getattr(record, name) != getattr(before, name)
        )  # fmt: skip
        yield Pattern.HAND_EDITED, (
            f"{changed} changed, and the attempt did not: each write of a client has its own"
        )


def clock_behind(standing: LockInspection) -> Iterator[tuple[Pattern, str]]:
    """A Hudi lease that had expired, by the store's clock, when it was written."""
    observation = standing.holder.observation
    record, written_ms = observation.record, observation.modified_ms
    if not isinstance(record, Record) or record.expired or record.ttl_ms or written_ms is None:
        return
    behind_ms = written_ms - record.valid_until_ms
    if behind_ms > SKEW_MS:
        yield Pattern.CLOCK_SKEW, (
            f"{plain(record.owner, limit=60)}'s lease ended {behind_ms / 1000:.1f} s before it was "
            "written, by the store's clock: its own clock is behind by more than that"
        )


def holder_died(standing: LockInspection) -> Iterator[tuple[Pattern, str]]:
    """A lease that its holder does not renew: expired, or about to."""
    holder, record = standing.holder, standing.holder.observation.record
    if not isinstance(record, Record) or record.expired or holder.renews is True:
        return
    who = plain(record.owner, limit=60)
    described = f" ({plain(record.holder, limit=120)})" if record.holder else ""
    written = clock_time(holder.observation.modified_ms)
    process = holder.process_state
    if process is ProcessState.ENDED:
        because = f"{who}{described}: its process ran on this host and has ended; last write "
        sure = holder.breakable  # a clone of a machine has its name and its boot
        yield Pattern.HOLDER_DIED if sure else Pattern.HOLDER_SILENT, because + written
    elif process in NO_RENEWALS:
        yield Pattern.HOLDER_SILENT, f"{who}{described}: {process.value}; last write {written}"
    elif holder.state == "overdue" and process is ProcessState.RUNS:
        because = f"{who}{described} did not renew its lease, and it is over; its process runs on "
        yield Pattern.HOLDER_SILENT, f"{because}this host, perhaps paused; last write {written}"
    elif holder.state == "overdue":
        because = f"{who}{described} did not renew its lease, and it is over; last write {written}"
        yield Pattern.HOLDER_DIED, because
    elif holder.state == "held" and holder.renews is False:
        because = f"{who}{described} missed several renewals, and its lease still runs; last write "
        yield Pattern.HOLDER_SILENT, because + written


def garbled(standing: LockInspection) -> Iterator[tuple[Pattern, str]]:
    """The lock object is not a lock record."""
    holder = standing.holder
    if holder.state == "garbled":
        yield Pattern.GARBLED, holder.why


def held_back(standing: LockInspection) -> Iterator[tuple[Pattern, str]]:
    """Incremental readers of layout 1 stop before a pending instant, however old it is."""
    table = standing.table
    if table is None:
        return
    condition = table.condition
    if condition.config.names.layout != 1:  # in layout 2 readers use the completion time
        return
    for each in condition.pending:
        later = [done for done in condition.timeline.commits if done > each.instant]
        if is_left(each) and later:
            yield Pattern.HELD_BACK, (
                f"{each.instant} ({each.action}) is pending and its writer is dead: incremental "
                f"readers do not see the {len(later)} commits after it"
            )


def unpublished(standing: LockInspection) -> Iterator[tuple[Pattern, str]]:
    """The fence shows an instant as committed, but its completed file is missing."""
    table = standing.table
    if table is None or table.condition.config.mode != FENCED:
        return
    condition = table.condition
    committed = set()
    if condition.group is not None:
        committed = {each.instant for each in condition.group.window if each.kind == COMMIT}
    elif condition.fence is not None and condition.fence.head.kind == COMMIT:
        committed = {condition.fence.head.instant}
    for each in condition.pending:
        if each.instant in committed and (not each.lives or each.age_ms > PUBLISHED_WITHIN_MS):
            yield Pattern.UNPUBLISHED, (
                f"the fence committed {each.instant}, but its completed file is missing: readers "
                "do not see it yet"
            )


def unreadable(standing: LockInspection) -> Iterator[tuple[Pattern, str]]:
    """Last, since the lock may show why."""
    if standing.table is None and not standing.no_table:
        yield Pattern.UNREADABLE, standing.read_error


RULES = (garbled, clock_behind, holder_died, unpublished, held_back, unreadable)
OF_THE_LOCK = frozenset({
    Pattern.GARBLED, Pattern.HAND_EDITED, Pattern.CLOCK_SKEW, Pattern.HOLDER_DIED,
    Pattern.HOLDER_SILENT,
})  # fmt: skip
