"""Conflicts: what another commit did that makes this one impossible, and what to do about it.

Pure. Each rule is a named check of one transaction against one other: a commit that completed since
the transaction began, or a plan or writer that is still pending. The kinds of the two select the
checks in a table; the first conflict is reported. The rules are Hudi's for overlapping sets of
(partition, file id), with its three strategies. One rule is stricter: an overwrite of a partition
conflicts with every other write in it. Otherwise a file group that one of the two never saw would
remain beside the other's rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from lockkit.table.errors import RefusedOption, TableBlocked, TableChanged, TableError
from lockkit.table.format.layout import PLAIN, CommitFiles, FileGroup, Overwritten
from lockkit.table.format.properties import TableConfig
from lockkit.table.format.timeline import Timeline
from lockkit.table.occ.conflicting import (
    Conflict,
    Groups,
    Kind,
    OwnChanges,
    Pending,
    Winner,
    kind_of,
)
from lockkit.table.occ.covered import first_active

_BUCKET = re.compile(r"[0-9]{8}")
STRATEGY_KEY = "hoodie.write.lock.conflict.resolution.strategy"

# --- which commits are checked --------------------------------------------------------------------


def winners(mine: OwnChanges, now: Timeline) -> list[str]:
    """Commits that completed since the transaction began, oldest first.

    A difference of sets, not of times: a commit with an older instant may complete later.
    """
    return [each for each in now.commits if each != mine.instant and not mine.covers(each)]


# --- the checks: one transaction against one other ------------------------------------------------

Unit = Callable[[FileGroup], FileGroup]
Check = Callable[[OwnChanges, Winner, Unit | None], Conflict | None]
PendingCheck = Callable[[OwnChanges, Pending, Unit | None], Conflict | None]


def also_rewrote(mine: OwnChanges, other: Winner, unit: Unit | None) -> Conflict | None:
    """Both wrote a new slice of one file group: the later one would hide the earlier one's rows."""
    return _on_shared(
        mine.writes, other.writes, unit, other, "also rewrote",
        "start again from the current table, and write that file group again",
    )  # fmt: skip


def replaced_our_input(mine: OwnChanges, other: Winner, unit: Unit | None) -> Conflict | None:
    """The file group is gone (clustering, overwrite): a new slice of it would never be read."""
    return _on_shared(
        mine.writes, other.replaced, unit, other, "replaced",
        "its rows live in other file groups now: start again and look them up",
    )  # fmt: skip


def wrote_what_i_replace(mine: OwnChanges, other: Winner, unit: Unit | None) -> Conflict | None:
    """Removing the file group would remove rows that were never read."""
    return _on_shared(
        mine.replaced, other.writes, unit, other, "wrote a new slice of",
        "replacing that file group would lose its rows: start again from the current file group",
    )  # fmt: skip


def replaced_it_too(mine: OwnChanges, other: Winner, unit: Unit | None) -> Conflict | None:
    """Both replaced one file group: its rows would exist twice."""
    return _on_shared(
        mine.replaced, other.replaced, unit, other, "has already replaced",
        "its rows live in other file groups now: start again from the current table",
    )  # fmt: skip


def overwrote_our_partition(mine: OwnChanges, other: Winner, _unit: Unit | None) -> Conflict | None:
    """It rewrote the partition without my rows: a key that both bring would exist twice.

    This includes a new file group of mine, which the overwrite could not name.
    """
    return _inside(
        mine.writes, other.overwrites, other, "overwrote the partition of",
        "start again, and look the keys up in the partition's new rows",
    )  # fmt: skip


def wrote_where_i_overwrite(mine: OwnChanges, other: Winner, _unit: Unit | None) -> Conflict | None:
    """It added a file group that I never saw, and so could not replace with the others."""
    return _inside(
        other.writes, mine.overwrites, other, "wrote, where this commit overwrites,",
        "start again, and overwrite the current partition",
    )  # fmt: skip


def overwrote_it_too(mine: OwnChanges, other: Winner, _unit: Unit | None) -> Conflict | None:
    """Each replaced what it knew but not what the other brought: both would remain."""
    both = mine.overwrites & other.overwrites
    if not both:
        return None
    partition = min(both.partitions, default="")
    return Conflict(
        other.instant, (partition, "") if partition else None,
        f"also overwrote {'partition' if partition else 'the table'}",
        "start again from the current table", other.action,
    )  # fmt: skip


def _inside(
    written: Groups, where: Overwritten, other: Winner, cause: str, cure: str
) -> Conflict | None:
    group = min((each for each in written if each[0] in where), default=None)
    return group and Conflict(other.instant, group, cause, cure, other.action)


_OVERLAPS: tuple[Check, ...] = (
    also_rewrote, replaced_our_input, wrote_what_i_replace, replaced_it_too,
    overwrote_our_partition, wrote_where_i_overwrite, overwrote_it_too,
)  # fmt: skip


def overlaps(mine: OwnChanges, other: Winner, unit: Unit | None) -> Conflict | None:
    for check in _OVERLAPS:
        if conflict := check(mine, other, unit):
            return conflict
    return None


def compacted_after_us(mine: OwnChanges, other: Winner, unit: Unit | None) -> Conflict | None:
    """One with an earlier instant, or that was completed before me (`merged`), hides none of mine.
    """
    if mine.sliced:
        return None if other.instant in mine.pending else overlaps(mine, other, unit)
    return None if mine.merged or other.instant < mine.instant else overlaps(mine, other, unit)


def missed_a_log(mine: OwnChanges, other: Winner, unit: Unit | None) -> Conflict | None:
    """I compact the log files that were completed before my instant; I have not read this one.

    If log files are named after their slice, its writer has seen my plan, or is refused.
    """
    if mine.sliced or other.completion > mine.instant:
        return None
    return overlaps(mine, other, unit)


def rolled_us_back(
    mine: OwnChanges, other: Winner | Pending, _unit: Unit | None
) -> Conflict | None:
    """Another writer rolled this one back as failed."""
    if mine.instant not in other.takes_back:
        return None
    return Conflict(
        other.instant, None, f"rolls {mine.instant} back",
        "its writer was judged dead, and its files may be gone: start again",
        other.action,
    )  # fmt: skip


def planned(mine: OwnChanges, other: Pending, unit: Unit | None) -> Conflict | None:
    """Its plan is based on the file group as it was, and will replace it."""
    touched = mine.writes | mine.replaced
    return _on_shared(
        touched, other.inputs or frozenset(), unit, other, "is pending and is going to replace",
        "let that plan complete, or roll it back, then begin again",
    )  # fmt: skip


def planned_after_us(mine: OwnChanges, other: Pending, unit: Unit | None) -> Conflict | None:
    """An earlier plan is not checked here: it checks when it completes, after this commit.

    Log files that are named after their slice are behind a compaction if it was seen.
    """
    if mine.sliced and other.action == "compaction":
        return None if other.instant in mine.pending else planned(mine, other, unit)
    return None if other.instant < mine.instant else planned(mine, other, unit)


def yields_to_writer(mine: OwnChanges, other: Pending, unit: Unit | None) -> Conflict | None:
    """A table service can run again at any time; a writer's rows cannot wait."""
    cure = "writers go first: run this table service again when that commit is done"
    if other.inputs is None:
        cause = "is pending, and what it will write is not known yet"
        return Conflict(other.instant, None, cause, cure, other.action)
    touched = mine.writes | mine.replaced
    return _on_shared(touched, other.inputs, unit, other, "is pending and writes", cure)


def shared(ours: Groups, theirs: Groups, unit: Unit | None) -> Groups:
    """Our file groups that share a unit with one of theirs."""
    if unit is None:
        return ours & theirs
    units = {unit(each) for each in theirs}
    return frozenset(each for each in ours if unit(each) in units)


def _on_shared(
    ours: Groups, theirs: Groups, unit: Unit | None, other: Winner | Pending, cause: str, cure: str
) -> Conflict | None:
    both = shared(ours, theirs, unit)
    if not both:
        return None
    same = both & theirs
    if not same:
        cause += " another file group in the bucket of"
    return Conflict(other.instant, min(same or both), cause, cure, other.action)


# --- which checks apply ---------------------------------------------------------------------------

_REWRITES: Mapping[Kind, Check] = {
    "ingestion": overlaps,
    "overwrite": overlaps,
    "clustering": overlaps,
    "compaction": compacted_after_us,
    "log compaction": overlaps,
    "rollback": rolled_us_back,
}
# Readers order the log blocks of one file group, so only a later base file hides them.
_LOGS: Mapping[Kind, Check] = {"compaction": compacted_after_us, "rollback": rolled_us_back}

MATRIX: Mapping[Kind, Mapping[Kind, Check]] = {
    "ingestion": _REWRITES,
    "overwrite": _REWRITES,
    "clustering": _REWRITES,
    "compaction": {**_REWRITES, "ingestion": missed_a_log},
    "log compaction": _LOGS,
}
"""The checks of my kind (first) against a winner's kind; a missing pair cannot conflict."""

_PLANS: Mapping[Kind, PendingCheck] = {
    "clustering": planned,
    "overwrite": planned_after_us,
    "compaction": planned_after_us,
    "rollback": rolled_us_back,
}
_ONLY_ROLLBACKS: Mapping[Kind, PendingCheck] = {"rollback": rolled_us_back}
_WRITERS: Mapping[Kind, PendingCheck] = {
    "ingestion": yields_to_writer,
    "overwrite": yields_to_writer,
    "rollback": rolled_us_back,
}
_FIRST_COME: Mapping[Kind, Mapping[Kind, PendingCheck]] = {
    "ingestion": _PLANS,
    "overwrite": _PLANS,
    "clustering": _PLANS,
    "compaction": _PLANS,
    "log compaction": {"compaction": planned_after_us, "rollback": rolled_us_back},
}
_WRITERS_FIRST: Mapping[Kind, Mapping[Kind, PendingCheck]] = {
    "ingestion": _ONLY_ROLLBACKS,
    "overwrite": _ONLY_ROLLBACKS,
    "clustering": _WRITERS,
    "compaction": _WRITERS,
    "log compaction": _ONLY_ROLLBACKS,
}


@dataclass(frozen=True, slots=True)
class ConflictStrategy:
    """What counts as one place for two writers, and which one yields to what is pending."""

    name: str
    hudi: str
    """Hudi's class, without its package."""
    pending: Mapping[Kind, Mapping[Kind, PendingCheck]] = field(repr=False)
    unit: Unit | None = field(default=None, repr=False)
    """The unit of conflict; None: the file group."""
    checks: Mapping[Kind, Mapping[Kind, Check]] = field(default_factory=lambda: MATRIX, repr=False)


def bucket_of(group: FileGroup) -> FileGroup:
    """(partition, bucket): a file id begins with eight digits, as Hudi's BucketIdentifier reads it.

    Any other file id belongs to no bucket and represents itself.
    """
    partition, file_id = group
    return (partition, file_id[:8]) if _BUCKET.match(file_id) else group


SIMPLE = ConflictStrategy(
    "simple", "SimpleConcurrentFileWritesConflictResolutionStrategy", _FIRST_COME
)
PREFER_WRITER = ConflictStrategy(
    "prefer_writer", "PreferWriterConflictResolutionStrategy", _WRITERS_FIRST
)  # fmt: skip
BUCKET = ConflictStrategy(
    "bucket", "BucketIndexConcurrentFileWritesConflictResolutionStrategy", _FIRST_COME, bucket_of
)
STRATEGIES = (SIMPLE, PREFER_WRITER, BUCKET)


def strategy_of(name: str) -> ConflictStrategy:
    """The strategy that `STRATEGY_KEY` names: by our name, or by Hudi's class."""
    for each in STRATEGIES:
        if name == each.name or name.rpartition(".")[2] == each.hudi:
            return each
    known = ", ".join(f"{each.name} ({each.hudi})" for each in STRATEGIES)
    raise RefusedOption(
        STRATEGY_KEY, "is not known here", f"choose one of {known}", value=name[:120]
    )


def find_conflict(
    mine: OwnChanges,
    others: Iterable[CommitFiles | Winner],
    *,
    pending: Iterable[Pending] = (),
    strategy: ConflictStrategy = SIMPLE,
) -> Conflict | None:
    """The conflict with the oldest instant, completed ones first; None if there is none."""
    replaces = bool(mine.replaced or mine.overwrites)
    own_kind = kind_of("replacecommit" if replaces else "commit", mine.operation)
    won = [each if isinstance(each, Winner) else Winner.of(each) for each in others]
    for winner in sorted(won, key=lambda each: each.instant):
        check = strategy.checks[own_kind].get(kind_of(winner.action, winner.operation))
        if check and (conflict := check(mine, winner, strategy.unit)):
            return conflict
    for plan in sorted(pending, key=lambda each: each.instant):
        rule = strategy.pending[own_kind].get(kind_of(plan.action))
        if mine.sliced and plan.action == "compaction":
            rule = planned_after_us  # it cannot give way, as with `PREFER_WRITER`
        if plan.instant == mine.instant or rule is None:
            continue
        if conflict := rule(mine, plan, strategy.unit):
            return conflict
    return None


# --- what this version cannot check --------------------------------------------------------------

_UNREADABLE = {
    "deltacommit": "log files belong to a merge-on-read table",
    "compaction": "compaction belongs to a merge-on-read table",
    "logcompaction": "log compaction belongs to a merge-on-read table",
    "restore": "a restore removes completed commits",
    "indexing": "lockkit does not maintain such an index",
}


def refuse_unreadable(now: Timeline, config: TableConfig, *, known: frozenset[str]) -> None:
    """Raise if the timeline holds an action that affects this commit and is not understood.

    A completed action that existed when the transaction began (`known`) is history, unless it shows
    that base files alone do not contain all of the table.
    """
    for instant, action in now.completed.items():
        if action == "deltacommit" and config.merged:
            continue
        if action == "deltacommit" or (action in _UNREADABLE and instant not in known):
            raise _unreadable(instant, action, _UNREADABLE[action])
    for instant, action in now.pending.items():
        if action in _UNREADABLE and not (config.merged and action in PLAIN):
            raise _unreadable(instant, f"pending {action}", _UNREADABLE[action])


def _unreadable(instant: str, action: str, why: str) -> TableError:
    cure = "let the writer that made it finish, or commit with Hudi"
    if action == "pending restore":
        cure = (
            "let it finish; if its process is gone, restore again, which replaces a plan that has "
            f"not begun, also a damaged one. Or delete {instant}.restore.requested, if there is no "
            f"{instant}.restore.inflight"
        )
    return TableBlocked(
        instant, f"({action}) is on the timeline: {why}; nothing was committed", cure
    )


def refuse_missing(mine: OwnChanges, now: Timeline) -> None:
    """Raise if the timeline lost an instant that the transaction's snapshot is based on.

    The oldest may have been archived meanwhile, which takes nothing from the snapshot. Nothing that
    completed since was archived with them: what was pending is still there, and what began since
    is later than the base's commits, of which one is still there.
    """
    gone = sorted(mine.base - now.completed.keys())
    here, first = mine.base.intersection(now.commits), first_active(now.commits, now)
    lost = mine.pending - now.completed.keys() - now.pending.keys()
    archived = bool(here - now.savepoints) and all(each < first for each in gone)
    if gone and not (archived and all(each > first for each in lost)):
        raise TableChanged(
            gone[-1], f"is gone from the timeline, as one of {len(gone)} instants that "
            f"{mine.instant} had read: it was moved (an upgrade?), archived or rolled back",
            "begin again",
        )  # fmt: skip
