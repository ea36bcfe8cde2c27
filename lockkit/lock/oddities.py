"""What is said of a lock: of its holder, of odd records and clocks, and of one that is held."""

from __future__ import annotations

from typing import Any

from lockkit.errors import TIME_MS_MAX, LockBusy, LossReason, clipped, utc
from lockkit.lock.client import LeaseClient
from lockkit.protocol.outcome import Throttled
from lockkit.protocol.record import Garbled, Record
from lockkit.protocol.state import LeaseLost, Now

PLAUSIBLE_MS = 24 * 3_600_000
"""No lease is longer: a `validUntil` beyond it comes from a wrong clock or another program."""
OWNER_SHOWN, HOLDER_SHOWN, OWNER_RECORDED = 64, 120, 256
GARBLED = "garbled: "


class ClockSkew(UserWarning):
    """This machine's clock and the store's differ by more than the configured drift."""


class UnexpectedRecord(UserWarning):
    """The lock object is not a lock record, or holds values that no lease can have."""


def busy_error(
    where: str, key: str, record: Record | Garbled | None, last_failure: str, *, ghost: bool = False
) -> LockBusy:
    """The error with its owner, its end and the next step. `record` None: none was ever read.

    `ghost`: a claim of ours has no answer.
    """
    see = f"lockkit lock show {where}"
    if ghost:
        see += "; a claim of ours without an answer may hold it until its lease ends"
    if record is None:
        why = f": the store's last answer was {last_failure!r}" if last_failure else ""
        why = f"was not free in time{why}"
        return LockBusy(f"the lock of {where}", why=why, cure=f"try again, or see: {see}")
    lock = f"{key} of {where}"
    if isinstance(record, Garbled):
        return LockBusy(
            lock, why=f"is not a lock record: {record.why}",
            cure=f"lockkit never takes it as free. See it with {see}; find out what wrote it, then "
            f"free it with lockkit lock break {where}",
        )  # fmt: skip
    ours = bool(record.attempt)
    return LockBusy(
        lock, owner=clipped(record.owner, OWNER_SHOWN),
        holder=clipped(record.holder, HOLDER_SHOWN) if ours else "a Hudi writer",
        epoch=record.epoch if ours else 0, until_ms=record.valid_until_ms,
        cure=f"wait, or see the holder: {see}",
    )  # fmt: skip


def unexpected(
    where: str, key: str, record: Record | Garbled, frees_ms: int | None, now: Now
) -> UnexpectedRecord | None:
    """The warning about a record that no lease can have; None: it is an ordinary one."""
    error = busy_error(where, key, record, "")
    if isinstance(record, Garbled):
        return UnexpectedRecord(str(error))
    if frees_ms is not None and frees_ms > now.boot_ms + PLAUSIBLE_MS:
        return UnexpectedRecord(
            f"{error}. No lease lasts that long: a wrong clock or another program wrote it; if "
            f"no program writes this table, free it with lockkit lock break {where}"
        )
    if record.valid_until_ms > now.wall_ms + PLAUSIBLE_MS:
        return UnexpectedRecord(
            f"{error}, which cannot be right (is its clock wrong?); the store's own clock "
            "decides when it is over"
        )
    return None


def named(record: Record | Garbled) -> dict[str, Any]:
    """The holder that an acquire waits for, as an event has it."""
    if isinstance(record, Garbled):
        return {"owner": f"{GARBLED}{record.why}", "epoch": 0}
    return {"owner": clipped(record.owner, OWNER_RECORDED), "epoch": record.epoch}


def throttled(answer: Throttled) -> str:
    """What the store asked for instead of an answer."""
    after_s = answer.retry_after_s
    return f"throttled; come again after {after_s:g} s" if after_s else "throttled"


def replaced_by(record: Record | Garbled | None, epoch: int) -> LeaseLost:
    """The loss of the grant of `epoch`, in whose place this was found."""
    match record:
        case None:
            why = "the lock object was deleted while it was held"
            return LeaseLost(epoch, why, LossReason.DELETED)
        case Garbled(why):
            why = f"the lock object was overwritten while it was held: {why}"
            return LeaseLost(epoch, why, LossReason.OVERWRITTEN)
        case Record(owner=owner, epoch=theirs):
            whose = f"{clipped(owner, OWNER_SHOWN)!r} (epoch {theirs})"
            why = f"{whose} was in the lock object before it was released"
            return LeaseLost(epoch, why, LossReason.TAKEN)


def clock_skew(where: str, offset_ms: int, drift_ms: int) -> ClockSkew:
    return ClockSkew(
        f"the clock of this machine and that of the store of {where} differ by about "
        f"{abs(offset_ms) / 1000:.1f} s, more than the {drift_ms} ms that are allowed for: set "
        "this machine's clock (NTP)"
    )


def standing(client: LeaseClient, owner: str) -> str:
    """The state of a grant by its client's own knowledge, without a request; "": there is none."""
    held, loss = client.grant, client.loss
    if held is None:
        return ""
    epoch = f", epoch {held.epoch}" if held.epoch else ""
    if not client.believes():
        return f"lost{epoch}: {loss.why if loss else 'the lease ran out'}"
    wall_ms = client.on_wall(client.until_ms or 0)
    until = f", until {utc(wall_ms)}" if wall_ms < TIME_MS_MAX else ""
    return f"held by {owner}{epoch}{until}"
