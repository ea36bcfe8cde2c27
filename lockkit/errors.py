"""Every error that a caller of lockkit may want to catch; all of them are `LockkitError`s.

An error says what happened, who is involved and what to do next. Its facts are fields, its text is
built from them in its constructor, and it carries no credential. Errors can be pickled: Spark and
multiprocessing carry them between processes. What belongs to tests and demonstrations (fault plans,
the proxy, child processes) defines its errors in its own room, below `LockkitError` as well.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import Enum
from typing import Any


class LockkitError(Exception):
    """The base of every error of lockkit."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, self._facts())

    def _facts(self) -> dict[str, Any]:
        """The fields that another process gets, notes included."""
        return dict(self.__dict__)


def _restored(kind: type[LockkitError], args: tuple[Any, ...], facts: dict[str, Any]) -> Any:
    """The error as it was raised: its constructor, which builds the text, is not called again."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(facts)
    return error


# --- locks ----------------------------------------------------------------------------------------


class LockBusy(LockkitError):
    """Another owner holds the lock, or it could not be taken in time. Nothing is held.

    `lock` names the lock. `owner`, `holder` (a readable name, "" if there is none) and `epoch` (0:
    the lock has none) are of the grant that was met last, `until_ms` is when that lease ends by its
    own record, in epoch ms. `owner` is "" where no holder was seen; then `why` says what was.
    """

    def __init__(
        self, lock: str, *, owner: str = "", holder: str = "", epoch: int = 0,
        until_ms: int | None = None, why: str = "was not free in time", cure: str,
        context: str = "",
    ) -> None:  # fmt: skip
        self.lock, self.owner, self.holder, self.epoch = lock, owner, holder, epoch
        self.until_ms, self.cure, self.context = until_ms, cure, context
        self.why = f"is held by {owner!r:.200}" if owner else why
        who = f"{holder!r}, epoch {epoch}" if epoch else holder
        until = f" until {utc(until_ms)} by its own clock" if until_ms is not None else ""
        said = f"{lock} {self.why}{f' ({who})' if who else ''}{until}; {cure}"
        super().__init__(f"{context}: {said}" if context else said)

    @property
    def until(self) -> datetime | None:
        """`until_ms` as an aware UTC time; None where it is unknown or beyond any calendar."""
        return None if self.until_ms is None else _utc(self.until_ms)

    def within(self, context: str) -> LockBusy:
        """The same facts, as the reason why something larger could not be locked."""
        facts = {name: fact for name, fact in vars(self).items() if name != "context"}
        return LockBusy(**facts, context=context)


class LossReason(Enum):
    """Why a handle may not, or may no longer, act as the holder."""

    NEVER_ACQUIRED = "never acquired"
    EXPIRED = "expired"
    """The lease ran out before a renewal was proven."""
    TAKEN = "taken"
    """Another owner's write replaced ours, or refused a write of ours."""
    DELETED = "deleted"
    """The lock object was deleted while it was held."""
    OVERWRITTEN = "overwritten"
    """The lock object was replaced by something that is no lock record."""
    REVOKED = "revoked"
    """The lock service ended the grant."""
    STOPPED = "stopped"
    """Renewal stopped because of an error in this process."""
    SUPERSEDED = "superseded"
    """The table's fence knows this grant's epoch, or a higher one, as used."""
    ROLLED_BACK = "rolled back"
    """Another process rolled the instant back as that of a failed writer."""


class LockLost(LockkitError):
    """The lease was lost before the work under it was published.

    `what` names the lock or the commit, `why` says what happened and `reason` which kind of loss it
    is; `epoch` is that of the grant, 0 where it has none.
    """

    def __init__(
        self, what: str, why: str, cure: str, *, reason: LossReason, epoch: int = 0
    ) -> None:
        self.what, self.why, self.cure, self.reason, self.epoch = what, why, cure, reason, epoch
        super().__init__(f"{what}: {why}; {cure}")


class BreakRefused(LockkitError):
    """The lock was not broken, and nothing was written over it."""


# --- stores ---------------------------------------------------------------------------------------


class StoreError(LockkitError):
    """The store cannot be used as configured (denied, no bucket, wrong region, bad credentials).

    `where` is the store's URL, and the server where its requests go unless that is the provider's
    own; neither has a credential in it. `status` and `code` are what that server answered, None and
    "" where it did not answer or was not asked. `cure` says what to do next.
    """

    def __init__(
        self, what: str, *, where: str = "", status: int | None = None, code: str = "",
        cure: str = "",
    ) -> None:  # fmt: skip
        self.where, self.status, self.code, self.cure = where, status, code, cure
        answered = "" if status is None else f", it answered {status}{f' {code}' if code else ''}"
        text = f"{what}{answered}{f'; {cure}' if cure else ''}"
        super().__init__(f"{where}: {text}" if where else text)


class NoAnswer(StoreError):
    """A listing or a past version could not be read for now (throttled, a 5xx, no answer).

    Reading again is safe. Reads and writes of one object answer `Throttled` or `Unknown` instead.
    """


class UnsafeStore(StoreError):
    """The store ignored a condition, or refused a true one: it cannot hold a lock."""


class UnknownKeyword(LockkitError, TypeError):
    """A keyword argument that neither the function nor the store's client takes."""


class HistoryError(LockkitError, ValueError):
    """A line that is no event: says which line, and what is wrong with it."""


# --- tables ---------------------------------------------------------------------------------------


class TableError(LockkitError):
    """The table, or a file of it, is not what it should be. Nothing was published by this call."""


class Unanswered(TableError):
    """The store gave no usable answer within its tries.

    `doubt`: whether a write of this call may have landed all the same, or may still land.
    """

    def __init__(self, message: str, *, doubt: bool) -> None:
        super().__init__(message)
        self.doubt = doubt


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


# --- recipes: write-ahead log, queue, election, state lock, stripes ------------------------------


class WalError(LockkitError):
    """The log cannot be used as it was asked to."""


class Damaged(WalError):
    """An object of the log cannot be read as one; it was not written over."""


class Fenced(WalError):
    """A writer with a higher epoch has begun: what this one was appending will never be read.

    `epoch` is this writer's, `by_epoch` that of the writer whose entry is in `slot`.
    """

    def __init__(self, epoch: int, *, slot: int, by_epoch: int) -> None:
        self.epoch, self.slot, self.by_epoch = epoch, slot, by_epoch
        super().__init__(
            f"epoch {epoch} was fenced: slot {slot} is of a writer with epoch {by_epoch}; nothing "
            "of this append will be read; see who that is, or open the log again"
        )


class SameEpoch(WalError):
    """Two writers have one epoch: a mistake, or a manifest that was set back by hand."""

    def __init__(self, epoch: int, *, slot: int) -> None:
        self.epoch, self.slot = epoch, slot
        super().__init__(
            f"slot {slot} is of another writer with this one's epoch, {epoch}; its manifest was "
            "set back, or its store ignores conditions (lockkit probe tells): append no more here"
        )


class AppendUnknown(WalError):
    """The append may be in the log, may yet come into it, or never.

    `slot` is the first slot that it may be in, and `key` that slot's object.
    """

    def __init__(self, slot: int, key: str, why: str) -> None:
        self.slot, self.key, self.why = slot, key, why
        super().__init__(
            f"nobody knows whether an append is in {key}: {why}; it may yet be: read the log up to "
            "there before you append it again"
        )


class QueueError(LockkitError):
    """The queue cannot be used so; nothing of what was asked was done."""


class QueueBusy(QueueError):
    """Others wrote first, or the store throttled, every time. Not done; try again."""


class QueueUnknown(LockkitError):
    """It is not known what became of an operation: it may be done, or may yet be.

    `operation` may be submitted again as it is: it is never done twice, and where the file still
    remembers that far back, this time its outcome is reported.
    """

    def __init__(self, operation: Any, why: str) -> None:
        self.operation, self.why = operation, why
        super().__init__(
            f"{type(operation).__name__.lower()} {operation.id} may be done, or may yet be: {why}; "
            "submit(error.operation) asks again without doing it twice"
        )


class JobLost(LockkitError):
    """The job is another worker's by now, or completed: stop working on it."""


class NoBroker(LockkitError):
    """No broker answers at the address, or another server does: nothing was asked."""


class ForeignBroker(NoBroker):
    """The server at the address is not the broker that the file names."""


class NotLeader(LockkitError):
    """This node does not lead, or no longer: what it does in its epoch has no effect."""


class NotGuarded(LockkitError):
    """The object is no guarded value; it is left as it is."""


class ElectionError(LockkitError):
    """The epochs are not what an election leaves behind. Nothing was written."""


class StateLocked(LockkitError):
    """Another owner holds the state's lock; or what is there is no lock file."""


class NotLocked(LockkitError):
    """There is nothing to unlock, or not under this ID. Nothing was deleted."""


class LockUnknown(LockkitError):
    """It is not known what became of a lock or an unlock: it may be done, or may yet be."""


class StripesDiffer(StoreError):
    """The recorded stripes are not what this handle would use. Nothing was locked."""


class OutOfOrder(LockkitError, RuntimeError):
    """A nested call asked for what could close a circle. Nothing of it was taken."""


# --- times ----------------------------------------------------------------------------------------


TIME_MS_MAX = 1e15
"""The year 33658: what lies beyond is no time."""


def utc(ms: float) -> str:
    """Epoch ms as `2026-11-21T10:02:31Z`; far outside of any calendar, the number itself."""
    at = _utc(ms)
    return f"{ms:.0f} ms" if at is None else at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _utc(ms: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None
