"""The errors of the recipes: write-ahead log, queue, election, state lock and stripes."""

from __future__ import annotations

from typing import Any

from lockkit.errors import LockkitError, StatedError, StoreError


class WalError(LockkitError):
    """The log cannot be used as requested.

    `key` is the object and `slot` the slot that is to blame, "" and None where none is; `cure`
    says what to do next.
    """

    def __init__(
        self, what: str, *, key: str = "", slot: int | None = None, cure: str = ""
    ) -> None:
        self.key, self.slot, self.cure = key, slot, cure
        super().__init__(f"{key} {what}".lstrip() + (f"; {cure}" if cure else ""))


class Damaged(WalError):
    """An object of the log cannot be parsed; it was not overwritten."""


class Fenced(WalError):
    """A writer with a higher epoch has begun: what this one appended was not and will not be read.

    `epoch` is this writer's, `by_epoch` that of the writer whose entry is in `slot`.
    """

    def __init__(self, epoch: int, *, slot: int, by_epoch: int) -> None:
        self.epoch, self.by_epoch = epoch, by_epoch
        super().__init__(
            f"epoch {epoch} was fenced: slot {slot} belongs to a writer with epoch {by_epoch}; "
            "nothing of this append will be read",
            slot=slot, cure="find out which writer that is, or open the log again",
        )  # fmt: skip


class SameEpoch(WalError):
    """Two writers have one epoch: a mistake, or a manifest that was set back by hand."""

    def __init__(self, epoch: int, *, slot: int) -> None:
        self.epoch = epoch
        super().__init__(
            f"slot {slot} belongs to another writer with the same epoch, {epoch}: the manifest was "
            "set back, or the store ignores conditions (`lockkit probe` shows it)",
            slot=slot, cure="do not append here",
        )  # fmt: skip


class AppendUnknown(WalError):
    """The append may be in the log, may still get into it, or never will.

    `slot` is the first slot that it may be in, and `key` is that slot's object.
    """

    def __init__(self, slot: int, key: str, why: str) -> None:
        self.why = why
        super().__init__(
            f"it is unknown whether an append is in {key}: {why}; it may still arrive",
            slot=slot, cure="read the log up to there before you append it again",
        )  # fmt: skip
        self.key = key


class QueueError(StatedError):
    """The queue cannot be used in this way; nothing was done."""


class QueueBusy(QueueError):
    """Others wrote first, or the store throttled, every time. Not done; try again."""


class QueueUnknown(LockkitError):
    """The outcome of an operation is unknown: it may be done, or may still be done.

    `operation` may be submitted again unchanged: it is never done twice. If the file still
    remembers that far back, its outcome is then reported.
    """

    def __init__(self, operation: Any, why: str) -> None:
        self.operation, self.why = operation, why
        super().__init__(
            f"{type(operation).__name__.lower()} {operation.id} may be done, now or later: {why}; "
            "submit(error.operation) settles it without doing it twice"
        )


class JobLost(StatedError):
    """The job now belongs to another worker, or is completed: stop working on it."""


class NoBroker(StatedError):
    """No broker answers at the address, or another server does: no request was sent."""


class ForeignBroker(NoBroker):
    """The server at the address is not the broker that the file names."""


class NotLeader(StatedError):
    """This node does not lead (any more): what it does in its epoch has no effect."""


class NotGuarded(StatedError):
    """The object is not a guarded value; it was left unchanged."""


class ElectionError(StatedError):
    """The epochs are not what an election leaves behind. Nothing was written."""


class StateLocked(StatedError):
    """Another owner holds the state's lock, or the object there is not a lock file."""


class NotLocked(StatedError):
    """There is nothing to unlock, or not under this ID. Nothing was deleted."""


class LockUnknown(StatedError):
    """The outcome of a lock or an unlock is unknown: it may be done, or may still be done."""


class StripesDiffer(StoreError):
    """The recorded number of stripes differs from this handle's. Nothing was locked."""


class OutOfOrder(StatedError, RuntimeError):
    """A nested call requested a lock that could cause a deadlock. It took none of its locks."""
