"""Breaking a lock: a guarded takeover that writes a log first, and then a tombstone.

It never deletes the object: epochs keep rising, and the holder's next renewal is refused.
"""

from __future__ import annotations

import getpass
import json
import socket
from dataclasses import dataclass

from lockkit.errors import BreakRefused
from lockkit.lock.storage import LOCK_KEY
from lockkit.protocol.outcome import IfVersion, Version
from lockkit.protocol.record import (
    EPOCH_MAX,
    RECORD_BYTES_MAX,
    Garbled,
    Record,
    encode,
    epoch_after,
    is_believed,
)
from lockkit.runtime import Procedure, Unique, WallMs
from lockkit.runtime.proven import create, settle_write
from lockkit.table.inspect.standing import LockHolder

BREAKS = ".hoodie/.locks/breaks/"
"""A file for each attempted break: who, when, and what it replaces. The attempt in the lock object
or its generations shows whether the break happened."""
BY_MAX = 200
AGAIN = "look again before you break"


@dataclass(frozen=True, slots=True)
class PlannedBreak:
    """What a break would write and replace. Planning changes nothing."""

    version: Version
    """The only version that it would replace."""
    tombstone: Record
    log: str
    refused: str
    """Why it would be refused now, and what to do next; "" if it would not."""


@dataclass(frozen=True, slots=True)
class BrokenLock:
    """The tombstone that was written, and the key of the break's log."""

    version: Version
    epoch: int
    log: str


def guard(holder: LockHolder, *, shown: Version, epoch: int | None) -> Version:
    """The version to replace; `BreakRefused` unless it is the shown version and has expired.

    A lease that has not expired, or is being renewed, can be broken only by its epoch. The epoch
    names the grant, so a renewal since it was shown does not matter. A lease that Hudi wrote has no
    epoch (0); it is guarded by its version alone, as is a body that is not a lock record.
    """
    record, version = holder.observation.record, holder.observation.version
    if record is None or version is None or (isinstance(record, Record) and record.expired):
        raise _refused(holder.why)
    if isinstance(record, Garbled) and epoch is not None:
        raise _refused("it is not a lock record and has no epoch", "omit --epoch")
    if isinstance(record, Record) and epoch is not None and epoch != record.epoch:
        raise _refused(f"it is epoch {record.epoch}, and not {epoch}", AGAIN)
    if version != shown and not epoch:
        raise _refused("the lock object has changed since it was shown", AGAIN)
    if not holder.breakable and epoch is None:
        raise _refused(holder.why, "" if isinstance(record, Garbled) else (
            "if you want to end its grant anyway, confirm its epoch "
            f"(--epoch {record.epoch})"
        ))  # fmt: skip
    return version


def _refused(why: str, cure: str = "") -> BreakRefused:
    return BreakRefused("the lock", f"was not broken: {why}", cure)


def planned(
    holder: LockHolder, *, by: str, wall_ms: int, attempt: str = "(a new id)", known: int = 0
) -> PlannedBreak:
    """The dry run. `known` is the highest epoch found elsewhere (`incident.versions`).

    Raises `BreakRefused` if there is nothing to break.
    """
    was, version = holder.observation.record, holder.observation.version
    if was is None or version is None or (isinstance(was, Record) and was.expired):
        raise _refused(holder.why)
    try:
        guard(holder, shown=version, epoch=None)
        refused = ""
    except BreakRefused as error:
        refused = str(error)
    note = f"broken by {by[:BY_MAX]}"
    ttl_ms = was.ttl_ms if isinstance(was, Record) else 0
    epoch = _epoch_of_tombstone(was, known, wall_ms)
    tombstone = Record(attempt, wall_ms, True, epoch, attempt, ttl_ms, note)
    return PlannedBreak(version, tombstone, f"{BREAKS}{wall_ms}_{attempt}.json", refused)


def _epoch_of_tombstone(was: Record | Garbled, known: int, wall_ms: int) -> int:
    """An epoch above every known one; 0 if Hudi wrote the record and no epoch is known.

    Every trace may be older than the newest grant by any number of grants. So in place of a lost
    epoch it is at least the time in milliseconds: no lock is granted a thousand times a second
    between two losses.
    """
    own = was.epoch if isinstance(was, Record) else 0
    if own and known <= own and is_believed(own):
        return own + 1
    if not (own or known or isinstance(was, Garbled)):
        return 0
    return min(max(epoch_after(known), wall_ms), EPOCH_MAX - 1)


def take_over(
    holder: LockHolder, *, shown: Version, epoch: int | None, by: str, known: int = 0
) -> Procedure[BrokenLock]:  # fmt: skip
    """Replace the shown version with a tombstone. Raises `BreakRefused`, `Unanswered`."""
    version = guard(holder, shown=shown, epoch=epoch)
    was = holder.observation.record
    attempt, wall_ms = (yield Unique()), (yield WallMs())
    plan = planned(holder, by=by, wall_ms=wall_ms, attempt=attempt, known=known)
    said = {
        "attempt": attempt, "at_ms": wall_ms, "by": by[:BY_MAX], "version": version,
        "renews": holder.renews, "over": holder.breakable, "written": plan.tombstone.epoch,
    }  # fmt: skip
    if isinstance(was, Record):
        said |= {"owner": was.owner, "holder": was.holder, "epoch": was.epoch,
                 "valid_until_ms": was.valid_until_ms}  # fmt: skip
    if isinstance(was, Garbled):
        said |= {"garbled": was.why}
    yield from create(plan.log, json.dumps(said).encode())
    now = yield from settle_write(
        LOCK_KEY, encode(plan.tombstone), IfVersion(version), limit=RECORD_BYTES_MAX
    )
    if not isinstance(now, Version):
        raise _refused("the lock object changed in the same moment", AGAIN)
    return BrokenLock(now, plan.tombstone.epoch, plan.log)


def operator_name() -> str:
    """The user and machine that break the lock, for the log."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # in a container, a user may have no name
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
