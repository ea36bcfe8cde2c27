"""Why a commit was not made, or may not have been; and what is wrong with a fence."""

from __future__ import annotations

from typing import Any

from lockkit.errors import LockkitError, TableError


class NotWritable(TableError):
    """A table that lockkit does not write, with every reason; `read` may read it all the same."""


class CommitConflict(TableError):
    """Another commit or service made this commit impossible: it will never be visible.

    Its data files and its requested and inflight instants stay: readers ignore them, and a table
    service removes them. `instant` and `action` name the other side, `mine` this commit;
    `partition` and `file_group` (a file id) are "" where no single file group is to blame.
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
    """Known before the commit: another is writing, or has written, what this one would write."""


class CommitUnknown(LockkitError):
    """It is not known whether this was decided, and reading back could not tell either.

    It may be visible, or become so. Delete nothing. `read` names the objects that will tell;
    `commit` of `prepared`, the same prepared transaction, under the lock, reads them and finishes
    the work. `prepared` is None where the error was raised in another process.
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
    """This writer's heartbeat is over: others may roll its instant back. It must stop now."""

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
    """Nothing that is left shows which commit the fence had decided last."""


class OldRows(TableError):
    """The rows were read from the table before others committed to it; nothing was written.

    `commits` of others came between the reading and the begin of `instant`.
    """

    def __init__(self, instant: str, commits: int) -> None:
        self.instant, self.commits = instant, commits
        super().__init__(
            f"these rows were read from the table before {instant} began, and {commits} commits "
            "came in between: written back, they could undo what those wrote. Nothing was "
            "committed. Read the table anew, without cache(), or make its view anew, and write "
            "again. (To put back rows of the past, read them with as.of.instant)"
        )
