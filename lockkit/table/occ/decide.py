"""The decision: replacing the fence, so that exactly one of the writers that read it succeeds.

Both commits and rollbacks decide in this way.
"""

from __future__ import annotations

from collections.abc import Iterable

from lockkit.errors import StoreError, Unanswered
from lockkit.protocol.outcome import Found, Missing, Version, over
from lockkit.runtime import Procedure, WallMs
from lockkit.runtime.proven import read, settle_write
from lockkit.table.errors import BrokenFence, CommitUnknown, TableBlocked
from lockkit.table.format.properties import GROUP
from lockkit.table.format.timeline import Timeline, TimelineNames, instant_ms, instant_of
from lockkit.table.occ.fence import (
    ACTIONS,
    CLOSED,
    COMMIT,
    FENCE_BYTES_MAX,
    FENCE_KEY,
    Decided,
    Fence,
    FenceRead,
    format_fence,
    is_grouped,
    seen_of,
)


def completed_key(names: TimelineNames, decided: Decided) -> str:
    return names.completed(decided.instant, decided.action, decided.completion)


def completion_time(
    names: TimelineNames, seen: FenceRead, *later_than: str
) -> Procedure[str | None]:
    """Layout 2: now, but later than these instants and than every completion so far; else None.

    It is chosen before the fence is replaced, and the fence carries it. So the writer and a process
    that rolls it forward create the same name.
    """
    if names.layout == 1:
        return None
    floor = [*later_than, *([seen.fence.completion] if seen.fence else [])]
    latest_ms = max(instant_ms(each) for each in floor if each)
    return instant_of(max((yield WallMs()), latest_ms + 1))


def refuse_closed(seen: FenceRead) -> None:
    """Raise if the table has left the fenced mode: its fence decides nothing any more."""
    if seen.fence is not None and seen.fence.head.kind == CLOSED:
        raise TableBlocked(
            "the table", "is no longer in fenced mode; nothing was committed",
            "begin again. If its properties still say fenced, a restore or a switch of the mode "
            "was interrupted: run the restore again, finish the switch with lockkit table mode URL "
            "hudi --yes, or undo it with lockkit table mode URL fenced --yes",
        )  # fmt: skip


def commits_under_way(now: Timeline) -> frozenset[str]:
    """Pending instants whose final inflight file exists: any of them may have been decided."""
    return frozenset(
        instant for instant, action in now.pending.items()
        if action in ACTIONS and instant in now.inflight
    )  # fmt: skip


def lost_fence(instants: Iterable[str], commit: str = "serial") -> BrokenFence:
    """The error for a table in use without a fence, and what its fence may have decided.

    Of group commit (`commit`), the fence alone may have whole commits: no command makes a new one.
    """
    listed = ", ".join(sorted(instants)[:5])
    undecided = f"; it may have decided {listed}, which no reader sees yet" if listed else ""
    return BrokenFence(
        FENCE_KEY, f"is gone{undecided}. Nothing was committed: the table is in use",
        "restore its newest sound version, if the bucket keeps versions" if commit == GROUP
        else "see what can be restored: lockkit table repair-fence URL",
    )  # fmt: skip


def is_in_use(now: Timeline) -> bool:
    """Whether a fence has decided something about this table, or may have."""
    return bool(now.commits or now.rollbacks or commits_under_way(now))


# --- settle -------------------------------------------------------------------------------------


def settle(
    names: TimelineNames, seen: FenceRead, proven: frozenset[str], rolled_forward: list[str]
) -> Procedure[None]:
    """Make sure that the fence's last decision has its completed file before deciding anything.

    `proven` are instants that were seen completed. If the file is missing, its writer crashed or is
    paused between deciding and publishing, and we publish for it. Earlier decisions need no check:
    the writer that replaced them has settled them.
    """
    if seen.fence is None or seen.fence.head.kind != COMMIT:
        return
    head = seen.fence.head
    if head.instant in proven:
        return
    done = completed_key(names, head)
    if isinstance((yield from read(done)), Missing):
        from lockkit.table.occ.late import roll_forward  # few writers die there

        yield from roll_forward(names, seen.fence, done, rolled_forward)


# --- replace ------------------------------------------------------------------------------------


def replace_fence(names: TimelineNames, seen: FenceRead, entry: Fence) -> Procedure[bool]:
    """Replace the fence that was read: the moment of decision. False: it did not, and never will.

    Once the write is sent the lease is not checked again: sending the same bytes under the same
    condition decides nothing new, and is the only way to learn the result of the first copy. Raises
    `CommitUnknown` if neither the fence nor the completed file shows the outcome.
    """
    body, condition = format_fence(entry), over(seen.version)
    settled: Version | Found | Missing | None = None
    try:
        settled = yield from settle_write(FENCE_KEY, body, condition, limit=FENCE_BYTES_MAX)
        if isinstance(settled, Version):
            return True
        if isinstance(settled, Found) and is_grouped(settled.body):
            return (yield from _by_its_files(names, entry.head))
        return (yield from _was_superseded(names, seen, entry, seen_of(settled)))
    except CommitUnknown:
        raise
    except Exception as error:
        if settled is None and _is_not_done(error):
            raise
        # A write that may have decided is in flight: only its outcome counts now.
        raise unknown(names, entry.head, str(error)) from error


def _is_not_done(error: Exception) -> bool:
    """Whether no copy of the write can have landed: refused by configuration, or only throttled."""
    return isinstance(error, StoreError) or (isinstance(error, Unanswered) and not error.doubt)


def _was_superseded(
    names: TimelineNames, seen: FenceRead, entry: Fence, now: FenceRead
) -> Procedure[bool]:
    """The fence holds another writer's entry: was ours there in between?

    The writer that replaced it carried its window on. If the window reaches back to what we
    replaced and ours is not in it, ours never landed. It never will, because the version that it
    requires is gone. If the window is too short, the completed file decides: a writer that replaces
    a decision first makes sure of that file. Only if `T.inflight` is missing too was the instant
    archived or rolled back, and the outcome is unknown.
    """
    mine = entry.head
    if now.fence is None:
        raise unknown(names, mine, "the fence was deleted")
    latest = now.fence.decision_on(mine.instant)
    if latest is not None:
        return latest == mine  # a rollback: its writer has seen that ours did not land
    before = seen.fence.head if seen.fence else None
    if now.fence.whole or (before is not None and before in now.fence.window):
        return False
    return (yield from _by_its_files(names, mine))


def _by_its_files(names: TimelineNames, mine: Decided) -> Procedure[bool]:
    if mine.kind != COMMIT:
        return False  # deciding a rollback once more is harmless
    if isinstance((yield from read(completed_key(names, mine))), Found):
        return True
    if isinstance((yield from read(names.inflight(mine.instant, mine.action))), Missing):
        raise unknown(names, mine, "its instant was archived or rolled back meanwhile")
    return False


def unknown(names: TimelineNames, it: Decided, why: str, *, decided: bool = False) -> CommitUnknown:
    return CommitUnknown(it.instant, why, (FENCE_KEY, completed_key(names, it)), decided)
