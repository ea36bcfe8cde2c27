"""Why the fence of group commit has refused an instant, as its owner's error."""

from __future__ import annotations

from lockkit.errors import TableError, Unanswered
from lockkit.table.errors import CommitConflict, ModeSwitched
from lockkit.table.occ.fence import NO_INSTANT, ROLLBACK
from lockkit.table.occ.group.decision import GroupDecision
from lockkit.table.occ.news import taken_back


class LateInstant(CommitConflict):
    """The instant was reserved ahead, and a later one is completed: begin again at once."""


def refusal_of(
    instant: str, kind: str, entry: GroupDecision | None, since: str = NO_INSTANT
) -> Exception:
    """`since` is that of the fence, which has decided nothing up to there."""
    why, by = (entry.why, entry.by) if entry else ("", "")
    if entry is None and instant <= since:
        return ModeSwitched(instant, "was begun before the table's mode was switched, and is not "
                            "committed", "begin again")  # fmt: skip
    if kind == ROLLBACK or entry is None:
        return taken_back(instant, "another writer rolled it back as dead")
    if why == "conflict":
        return CommitConflict(
            instant, instant=by, cause="wrote a file group that this commit writes too",
            cure="read the table again, and begin again",
        )  # fmt: skip
    if why in ("schema", "late"):
        kind_of = CommitConflict if why == "schema" else LateInstant
        cause = "changed the table's columns" if why == "schema" else "was committed first"
        return kind_of(instant, instant=by, cause=cause,
                       cure="begin again with the table as it is now")  # fmt: skip
    if why == "closed":
        return TableError(instant, "was not committed: the table is restored, or its mode switched",
                          "begin again")
    return Unanswered(
        instant, "was not decided in time and is withdrawn; nothing was committed", "try again",
        doubt=False,
    )  # fmt: skip
