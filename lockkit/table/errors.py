"""Errors of tables, by what the caller can do about them.

Change the call: `RefusedOption`, `RefusedRows`, `NoTable`. Use other software or another table:
`UnsupportedTable`. Call again: `TableChanged`, `CommitConflict`, `HeartbeatExpired`. Let an
operator act first: `TableBlocked`, `DamagedFile`. Find out what happened: `CommitUnknown`.
"""

from __future__ import annotations

from typing import Any

from lockkit.errors import LockkitError
from lockkit.errors import TableError as TableError
from lockkit.errors import Unanswered as Unanswered


class RefusedOption(TableError):
    """An option or argument that cannot be obeyed. Nothing was begun.

    `option` names it as the caller wrote it; `value` is its value, None if it is not shown.
    """

    def __init__(self, option: str, why: str, cure: str = "", *, value: str | None = None) -> None:
        self.option, self.value = option, value
        super().__init__(option if value is None else f"{option}={value}", why, cure)


class RefusedRows(TableError):
    """Rows that the table cannot hold. `column` is the one to change, "" for all of them."""

    def __init__(self, column: str, why: str, cure: str = "") -> None:
        self.column = column
        super().__init__(f"column {column!r}" if column else "the rows", why, cure)


class NoTable(TableError):
    """There is no table at this address, or no longer. `what` is the file that is missing."""


class UnsupportedTable(TableError):
    """lockkit cannot do this with the table. `what` is the property, file or instant at fault."""


class NotWritable(UnsupportedTable):
    """lockkit cannot write this table, with every reason. `read` may still be able to read it."""


class TableChanged(TableError):
    """Another process changed the table during this call. `what` is the changed file or instant."""


class ModeSwitched(TableChanged):
    """The table's mode was switched to or from group commit, and this handle has the old mode.
    """


class OutdatedHandle(TableChanged):
    """A commit that this handle relies on has left the timeline."""


class TableBlocked(TableError):
    """An operator must first end the instant, plan or mode that `what` names."""


class DamagedFile(TableError):
    """A file of the table, `what`, is not what its writer wrote: restore it."""


class CommitConflict(TableError):
    """Another commit or service made this commit impossible: it will never be visible.

    Its data files and its requested and inflight instants stay; readers ignore them, and a table
    service removes them. `instant` ("" if unknown) and `action` name the other commit, `mine` this.
    `partition` and `file_group` (a file id) are "" if no single file group conflicts.
    """

    def __init__(
        self, mine: str, *, instant: str, action: str = "commit", partition: str = "",
        file_group: str = "", cause: str, cure: str,
    ) -> None:  # fmt: skip
        self.mine, self.instant, self.action = mine, instant, action
        self.partition, self.file_group = partition, file_group
        self.cause = cause
        where = "/".join(part for part in (partition, file_group) if part)
        super().__init__(
            f"{instant} ({action})" if instant else f"another {action}",
            f"{cause}{' ' if where else ''}{where}; {mine} was not committed: {cure}",
        )
        self.cure = cure


class EarlyConflict(CommitConflict):
    """Found before the commit: another writes, or has written, the same file groups."""


class CommitUnknown(LockkitError):
    """The outcome of this commit is unknown, or it was committed (`decided`) and may be invisible.

    If it is unknown, the commit may be visible, or become visible. Delete nothing. `read` names the
    objects that will show it. To finish the work, call `commit` with `prepared` again, under its
    lock if it takes one. `prepared` is None if another process raised the error.
    """

    prepared: Any = None

    def __init__(
        self, instant: str, why: str, read: tuple[str, ...], decided: bool = False
    ) -> None:
        self.instant, self.why, self.read, self.decided = instant, why, read, decided
        super().__init__(
            f"{instant} was committed, and may not be visible yet ({why}). Do not write its rows "
            "again: the next commit publishes it, unless a restore took it back" if decided else
            f"it is unknown whether {instant} was committed ({why}). Delete nothing. To find out, "
            "commit the same prepared transaction again (under its lock, if it takes one), or read "
            f"{', then '.join(read)}: it is committed if one of them names it or is its own file; "
            "if none does, a request may still arrive and commit it"
        )

    def _facts(self) -> dict[str, Any]:
        return {name: fact for name, fact in self.__dict__.items() if name != "prepared"}


class HeartbeatExpired(TableError):
    """This writer's heartbeat expired: others may roll its instant back. It must stop now."""

    def __init__(self, instant: str, cause: str) -> None:
        self.instant, self.cause = instant, cause
        super().__init__(
            f"the heartbeat of {instant}",
            f"is over ({cause}); other writers may roll its files back at any time, so nothing "
            "more is written for it", "begin again",
        )  # fmt: skip


class BrokenFence(DamagedFile):
    """The fence cannot be read. It may have decided a commit that no reader sees yet."""

    broken = "it cannot be read"


class NewerFence(UnsupportedTable):
    """A newer lockkit wrote the fence."""
