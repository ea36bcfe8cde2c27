"""The error of an owner whose instant the fence of group commit has refused; and its state after
Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lockkit.errors import TableError, Unanswered
from lockkit.table.errors import CommitConflict, CommitUnknown, ModeSwitched
from lockkit.table.occ.fence import FENCE_KEY, NO_INSTANT, ROLLBACK
from lockkit.table.occ.group.client import GroupClient, GroupWrite, timeline_key
from lockkit.table.occ.group.decision import GroupDecision
from lockkit.table.occ.group.offer import offered_as
from lockkit.table.occ.news import taken_back
from lockkit.table.occ.prepared import Prepared


class LateInstant(CommitConflict):
    """The instant was reserved ahead, and a later one is completed: begin again at once."""


def passed(instant: str, by: str) -> LateInstant:
    return LateInstant(instant, instant=by, cause="was committed first",
                       cure="start again from the current table")  # fmt: skip


def refusal_of(
    instant: str, kind: str, entry: GroupDecision | None, since: str = NO_INSTANT
) -> Exception:
    """`since` is the fence's: it has decided nothing up to that instant."""
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
    if why == "late":
        return passed(instant, by)
    if why == "schema":
        return CommitConflict(instant, instant=by, cause="changed the table's columns",
                              cure="start again from the current table")  # fmt: skip
    if why == "closed":
        return TableError(instant, "was not committed: the table is restored, or its mode switched",
                          "begin again; if neither is under way (this may be a copy of the table), "
                          "run: lockkit table mode URL group")
    return Unanswered(
        instant, "was not decided in time and is withdrawn; nothing was committed", "try again",
        doubt=False,
    )  # fmt: skip


@contextmanager
def noting(client: GroupClient, prepared: Prepared) -> Iterator[None]:
    """Ctrl-C reports what is known about this commit.

    Used twice, because a second Ctrl-C may interrupt the first. An offer cannot be taken back: then
    other clients may still commit it.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and not hasattr(error, "__notes__"):
            write = client.writing
            if write is not None:
                client.process.leave(write)
            if write is None or write.instant != prepared.instant or not write.sent:
                note = f"{prepared.instant} was neither decided nor offered before the interrupt."
            else:
                why = "interrupted once it was offered: another client may commit it"
                note = str(CommitUnknown(prepared.instant, why, shown_in(client, write)))
            error.add_note(note)
        raise


def shown_in(client: GroupClient, write: GroupWrite) -> tuple[str, ...]:
    done = write.instant + ("_*" if client.names.layout == 2 else "")
    completed = timeline_key(client.names, done, write.action)
    return FENCE_KEY, write.offered or offered_as(client.names, write.offer())[0], completed
