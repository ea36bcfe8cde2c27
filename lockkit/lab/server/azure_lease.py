"""Azure's leases on blobs, for 15 to 60 s or for ever; only the holder may write the blob.

learn.microsoft.com/rest/api/storageservices/lease-blob, its tables of outcomes. The state of a
lease follows from its row and the time: leased, expired, breaking, broken; available has no row.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

from lockkit.lab.server.call import DialectError, DialectRequest, RequestEffect
from lockkit.lab.server.objects import Object, Objects

SECONDS_MIN, SECONDS_MAX, FOR_EVER = 15, 60, -1


@dataclass(frozen=True, slots=True)
class Lease:
    """`ends_ms` is infinite for a lease without an end; a broken one ends at `breaks_ms`."""

    id: str
    seconds: int
    ends_ms: float
    breaks_ms: float | None = None

    def state(self, now_ms: float) -> str:
        if self.breaks_ms is not None:
            return "breaking" if now_ms < self.breaks_ms else "broken"
        return "leased" if now_ms < self.ends_ms else "expired"


FREE: tuple[Lease | None, str] = None, "available"


def read(objects: Objects, bucket: str, key: str) -> tuple[Lease | None, str]:
    """The blob's lease and its state now."""
    row = objects.lease(bucket, key)
    if row is None:
        return FREE
    lease = Lease(*row)
    return lease, lease.state(objects.clock.stamp_ms())


def lease_headers(lease: Lease | None, state: str) -> dict[str, str]:
    """The headers that show a lease to a reader."""
    status = "locked" if state in ("leased", "breaking") else "unlocked"
    said = {"x-ms-lease-status": status, "x-ms-lease-state": state}
    if lease is not None and state == "leased":
        said["x-ms-lease-duration"] = "infinite" if lease.seconds == FOR_EVER else "fixed"
    return said


def guard(objects: Objects, call: DialectRequest, deed: RequestEffect) -> None:
    """Raise unless the lease allows this write, or the header of a read matches it."""
    named = call.headers.get("x-ms-lease-id", "").lower()
    lease, state = read(objects, deed.bucket, deed.key)
    is_read = call.method in ("GET", "HEAD")
    if lease is not None and state in ("leased", "breaking"):
        if not named and not is_read:
            raise _refused(412, "LeaseIdMissing", "There is currently a lease on the blob and no "
                           "lease ID was specified in the request.")  # fmt: skip
        if named and named != lease.id:
            raise _refused(412, "LeaseIdMismatchWithBlobOperation", "The lease ID specified did "
                           "not match the lease ID for the blob.")  # fmt: skip
    elif named:
        raise _refused(412, "LeaseNotPresentWithBlobOperation", "A lease ID was specified, but the "
                       "lease for the blob has expired.")  # fmt: skip


def written(objects: Objects, deed: RequestEffect) -> None:
    """Forget an expired lease, because the blob changed: it can no longer be renewed."""
    if read(objects, deed.bucket, deed.key)[1] in ("expired", "broken"):
        objects.set_lease(deed.bucket, deed.key, None)


def act(objects: Objects, call: DialectRequest, found: Object) -> tuple[int, dict[str, str]]:
    """`PUT ?comp=lease`: the answer's status and headers. Inside a transaction."""
    action = call.headers.get("x-ms-lease-action", "").lower()
    if action not in _ACTIONS:
        raise _malformed("x-ms-lease-action")
    lease, state = read(objects, found.bucket, found.key)
    after, status, headers = _ACTIONS[action](call, lease, state, objects.clock.stamp_ms())
    row = None if after is None else (after.id, after.seconds, after.ends_ms, after.breaks_ms)
    objects.set_lease(found.bucket, found.key, row)
    return status, headers


# --- one function per action: the lease after it, the status, more headers ------------------------

After = tuple[Lease | None, int, dict[str, str]]


def _acquire(call: DialectRequest, lease: Lease | None, state: str, now_ms: float) -> After:
    seconds = _number(call, "x-ms-lease-duration", FOR_EVER, SECONDS_MAX)
    if seconds != FOR_EVER and seconds < SECONDS_MIN:
        raise _malformed("x-ms-lease-duration")
    proposed = _guid(call, "x-ms-proposed-lease-id") or str(uuid.uuid5(uuid.NAMESPACE_OID, call.id))
    if lease is not None and state == "breaking" and lease.id == proposed:
        raise _refused(409, "LeaseIsBreakingAndCannotBeAcquired",
                       "There is already a breaking lease, and can't  be acquired.")  # fmt: skip
    if lease is not None and state in ("leased", "breaking") and lease.id != proposed:
        raise _refused(409, "LeaseAlreadyPresent", "There is already a lease present.")
    return _for(proposed, seconds, now_ms), 201, {"x-ms-lease-id": proposed}


def _renew(call: DialectRequest, lease: Lease | None, state: str, now_ms: float) -> After:
    lease = _of_its_holder(call, lease)
    if state in ("breaking", "broken"):
        raise _refused(409, "LeaseIsBrokenAndCannotBeRenewed", "The lease ID matched, but the "
                       "lease has been broken explicitly and cannot be renewed.")  # fmt: skip
    return _for(lease.id, lease.seconds, now_ms), 200, {"x-ms-lease-id": lease.id}


def _change(call: DialectRequest, lease: Lease | None, state: str, now_ms: float) -> After:
    proposed = _guid(call, "x-ms-proposed-lease-id")
    if not proposed:
        raise _malformed("x-ms-proposed-lease-id")
    if lease is None or state in ("expired", "broken"):
        raise _not_present()
    if state == "breaking" or lease.id != proposed:  # else a repetition
        lease = _of_its_holder(call, lease)
    if state == "breaking":
        raise _refused(409, "LeaseIsBreakingAndCannotBeChanged", "The lease ID matched, but the "
                       "lease is currently in breaking state and cannot be changed.")  # fmt: skip
    return replace(lease, id=proposed), 200, {"x-ms-lease-id": proposed}


def _release(call: DialectRequest, lease: Lease | None, state: str, now_ms: float) -> After:
    _of_its_holder(call, lease)
    return None, 200, {}


def _break(call: DialectRequest, lease: Lease | None, state: str, now_ms: float) -> After:
    if lease is None:
        raise _not_present()
    period = call.headers.get("x-ms-lease-break-period")
    period_ms = math.inf
    if period is not None:
        period_ms = 1000.0 * _number(call, "x-ms-lease-break-period", 0, SECONDS_MAX)
    if state in ("expired", "broken"):
        ends_ms = min(now_ms, lease.ends_ms if lease.breaks_ms is None else lease.breaks_ms)
    elif state == "breaking" and lease.breaks_ms is not None:
        ends_ms = min(lease.breaks_ms, now_ms + period_ms)
    elif math.isinf(lease.ends_ms):
        ends_ms = now_ms + (0.0 if math.isinf(period_ms) else period_ms)
    else:
        ends_ms = min(lease.ends_ms, now_ms + period_ms)
    left_s = math.ceil(max(0.0, ends_ms - now_ms) / 1000)
    return replace(lease, breaks_ms=ends_ms), 202, {"x-ms-lease-time": str(left_s)}


_ACTIONS: dict[str, Callable[[DialectRequest, Lease | None, str, float], After]] = {
    "acquire": _acquire, "renew": _renew, "change": _change, "release": _release, "break": _break,
}  # fmt: skip


def _for(id: str, seconds: int, now_ms: float) -> Lease:
    return Lease(id, seconds, math.inf if seconds == FOR_EVER else now_ms + seconds * 1000)


def _of_its_holder(call: DialectRequest, lease: Lease | None) -> Lease:
    named = _guid(call, "x-ms-lease-id")
    if not named:
        raise _malformed("x-ms-lease-id")
    if lease is None or lease.id != named:
        raise _refused(409, "LeaseIdMismatchWithLeaseOperation", "The lease ID specified did not "
                       "match the lease ID for the blob.")  # fmt: skip
    return lease


def _guid(call: DialectRequest, header: str) -> str:
    text = call.headers.get(header, "")
    try:
        return str(uuid.UUID(text)) if text else ""
    except ValueError:
        raise _malformed(header) from None


def _number(call: DialectRequest, header: str, least: int, most: int) -> int:
    text = call.headers.get(header, "")
    if not re.fullmatch(r"-?\d{1,3}", text, re.ASCII) or not least <= int(text) <= most:
        raise _malformed(header)
    return int(text)


def _not_present() -> DialectError:
    return _refused(409, "LeaseNotPresentWithLeaseOperation",
                    "There is currently no lease on the blob.")  # fmt: skip


def _malformed(header: str) -> DialectError:
    return DialectError(
        400, "InvalidHeaderValue", f"The value of the header {header} is not valid."
    )


def _refused(status: int, code: str, message: str) -> DialectError:
    return DialectError(status, code, message, "precondition_failed")
