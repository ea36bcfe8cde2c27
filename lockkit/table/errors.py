"""Errors of tables: failed commits, commits of unknown outcome, and unusable fences."""

from __future__ import annotations

from typing import Any

from lockkit.errors import LockkitError, TableError


class NotWritable(TableError):
    """lockkit cannot write this table, with every reason. `read` may still be able to read it."""


class CommitConflict(TableError):
    """Another commit or service made this commit impossible: it will never be visible.

    Its data files and its requested and inflight instants stay; readers ignore them, and a table
    service removes them. `instant` and `action` name the other commit, `mine` this one.
    `partition` and `file_group` (a file id) are "" if no single file group conflicts.
    """

    def __init__(
        self, mine: str, *, instant: str, action: str = "commit", partition: str = "",
        file_group: str = "", cause: str, cure: str,
    ) -> None:  # fmt: skip
        self.mine, self.instant, self.action = mine, instant, action
        self.partition, self.file_group = partition, file_group
        self.cause, self.cure = cause, cure
        where = "/".join(part for part in (partition, file_group) if part)
        super().__init__(
            f"{instant} ({action}) {cause}{' ' if where else ''}{where}; "
            f"{mine} was not committed: {cure}"
        )


class EarlyConflict(CommitConflict):
    """Found before the commit: another writes, or has written, the same file groups."""


class CommitUnknown(LockkitError):
    """The outcome of this commit is unknown, and reading back did not settle it.

    The commit may be visible, or become visible. Delete nothing. `read` names the objects that will
    show the outcome. A `commit` of `prepared`, the same prepared transaction, under the lock reads
    them and finishes the work. `prepared` is None if the error was raised in another process.
    """

    prepared: Any = None

    def __init__(self, instant: str, why: str, read: tuple[str, ...]) -> None:
        self.instant, self.why, self.read = instant, why, read
        super().__init__(
            f"whether {instant} was committed is not known ({why}). Delete nothing. To find out, "
            "commit the same prepared transaction again under the lock, or read "
            f"{', then '.join(read)}: it is committed if one of them names it or is its own file; "
            "while a request may still be under way, their silence proves nothing"
        )

    def _facts(self) -> dict[str, Any]:
        return {name: fact for name, fact in self.__dict__.items() if name != "prepared"}


class HeartbeatExpired(TableError):
    """This writer's heartbeat expired: others may roll its instant back. It must stop now."""

    def __init__(self, instant: str, why: str) -> None:
        self.instant, self.why = instant, why
        super().__init__(
            f"the heartbeat of {instant} is over ({why}); its files may be rolled back by others "
            "at any time, so nothing more is written for it: begin again"
        )


class BrokenFence(TableError):
    """The fence cannot be read. It may have decided a commit that no reader sees yet."""

    why = "it cannot be read"


class NewerFence(TableError):
    """A newer lockkit wrote the fence."""


class CannotTell(TableError):
    """No remaining object shows which commit the fence decided last."""


class OldRows(TableError):
    """The rows were read from the table before others committed to it; nothing was written.

    `commits` is the number of those commits, between the read and the start of `instant`.
    """

    def __init__(self, instant: str, commits: int) -> None:
        self.instant, self.commits = instant, commits
        super().__init__(
            f"these rows were read from the table before {instant} began, and {commits} commits "
            "came in between: written back, they could undo what those wrote. Nothing was "
            "committed. Read the table anew, without cache(), or make its view anew, and write "
            "again. (To put back rows of the past, read them with as.of.instant)"
        )
