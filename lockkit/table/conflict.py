"""Conflicts: what another commit did that makes this one impossible, and what to do about it.

Pure. Each rule is a named check of one transaction against one winner, a commit that completed
since the transaction began; the first that speaks is reported. The rules are Hudi's simple strategy
for copy-on-write tables: overlapping sets of (partition, file id) do not go together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lockkit.table.ask import TableError
from lockkit.table.layout import CommitFiles, FileGroup
from lockkit.table.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Mine:
    """What a transaction wants to publish, and what it had read."""

    instant: str
    base: frozenset[str]
    """Completed instants that its snapshot covers."""
    writes: frozenset[FileGroup]


@dataclass(frozen=True, slots=True)
class Conflict:
    """One reason not to commit: which instant, on which file group, why, and the way out."""

    instant: str
    group: FileGroup
    cause: str
    cure: str


class CommitConflict(TableError):
    """Another commit rewrote what this one rewrote; this one was not, and will never be, visible.

    Its data files and its requested and inflight instants stay: readers ignore them, and cleaning
    them up is a table service's work.
    """

    def __init__(self, mine: str, conflict: Conflict) -> None:
        self.mine = mine
        self.instant = conflict.instant
        self.partition, self.file_id = conflict.group
        self.cause, self.cure = conflict.cause, conflict.cure
        where = f"{self.partition}/{self.file_id}" if self.partition else self.file_id
        super().__init__(
            f"{self.instant} {self.cause} {where}; {mine} was not committed: {self.cure}"
        )

    def __reduce__(self) -> tuple[object, ...]:
        conflict = Conflict(self.instant, (self.partition, self.file_id), self.cause, self.cure)
        return type(self), (self.mine, conflict)


# --- who has to be checked -----------------------------------------------------------------------


def winners(mine: Mine, now: Timeline) -> list[str]:
    """Commits that completed since the transaction began, oldest first.

    A difference of sets, not of times: a commit with an older instant may well complete later.
    """
    return [each for each in now.commits if each not in mine.base and each != mine.instant]


# --- the checks ----------------------------------------------------------------------------------


def also_rewrote(mine: Mine, winner: CommitFiles) -> Conflict | None:
    """Both wrote a new slice of one file group: the later would hide the earlier's rows."""
    for group in sorted(mine.writes & {stat.group for stat in winner.stats}):
        return Conflict(
            winner.instant, group, "also rewrote",
            "begin again on the table as it is now, and write that file group anew",
        )  # fmt: skip
    return None


def replaced_under_me(mine: Mine, winner: CommitFiles) -> Conflict | None:
    """The file group is gone (clustering, overwrite): a new slice of it would never be read."""
    for group in sorted(mine.writes & winner.replaced):
        return Conflict(
            winner.instant, group, "replaced",
            "its rows live in other file groups now: begin again and look them up",
        )  # fmt: skip
    return None


CHECKS: tuple[Callable[[Mine, CommitFiles], Conflict | None], ...] = (
    also_rewrote,
    replaced_under_me,
)


def find_conflict(mine: Mine, others: Iterable[CommitFiles]) -> Conflict | None:
    """The first conflict, by the winners' order; None if the two of them go together."""
    for other in others:
        for check in CHECKS:
            if conflict := check(mine, other):
                return conflict
    return None


# --- what this version cannot judge -------------------------------------------------------------

_UNREADABLE = {
    "deltacommit": "log files belong to a merge-on-read table",
    "compaction": "compaction belongs to a merge-on-read table",
    "logcompaction": "log compaction belongs to a merge-on-read table",
    "restore": "a restore takes completed commits back",
    "rollback": "which instant it takes back is written in a plan that is not read here yet",
    "indexing": "an index that a commit must keep up to date is not kept here",
}
_UNREADABLE_PENDING = {
    **_UNREADABLE,
    "replacecommit": "what it will replace is written in a plan that is not read here yet",
    "clustering": "what it will replace is written in a plan that is not read here yet",
}


def refuse_unreadable(now: Timeline, *, known: frozenset[str]) -> None:
    """Raise rather than guess, where the timeline holds an action that decides over this commit.

    A completed action that was there when the transaction began (`known`) is history, except where
    it shows that base files alone do not tell what is in the table.
    """
    for instant, action in now.completed.items():
        if action == "deltacommit" or (action in _UNREADABLE and instant not in known):
            raise _unreadable(instant, action, _UNREADABLE[action])
    for instant, action in now.pending.items():
        if action in _UNREADABLE_PENDING:
            raise _unreadable(instant, f"pending {action}", _UNREADABLE_PENDING[action])


def _unreadable(instant: str, action: str, why: str) -> TableError:
    return TableError(
        f"the timeline holds {instant} ({action}): {why}; nothing was committed. Let the writer "
        "that made it finish, or commit with Hudi"
    )


def refuse_missing(mine: Mine, now: Timeline) -> None:
    """Raise if the timeline lost an instant that the transaction's snapshot stands on."""
    if gone := sorted(mine.base - now.completed.keys()):
        raise TableError(
            f"{len(gone)} instants that {mine.instant} had read are gone from the timeline, "
            f"{gone[-1]} the newest of them: it was moved (an upgrade?), archived or rolled back; "
            "begin again"
        )
