"""The lock object's body: Apache Hudi's lock file, and four fields of ours that Hudi ignores.

`expired`, `validUntil` and `owner` are RFC-91's. lockkit adds `epoch` (rises by one with every
grant), `attempt` (unique per write), `ttlMs` and `holder`. Hudi drops these when it rewrites it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

RECORD_BYTES_MAX = 64 * 1024
EPOCH_MAX = 2**63 - 1
EPOCHS_UNKNOWN = 1_000
"""How many grants may have left no readable trace. If a lock's epochs were lost and are taken from
elsewhere (the fence, old versions), the next epoch leaves room for so many."""

EPOCH_BELIEVED_MAX = 2**62
"""No count of grants and no time reaches it. A higher epoch is a mistake or forged and is refused,
because it would leave no room for further grants. A lock object with one is not a lock record
(`lockkit lock break`); a fence with one is broken (`lockkit table repair-fence`)."""


@dataclass(frozen=True, slots=True)
class Record:
    """The body of the lock object. `epoch == 0` and `ttl_ms == 0` mean that Hudi wrote it."""

    owner: str = field(repr=False)  # as `holder`: it may be a URL with a password
    valid_until_ms: int
    expired: bool = False
    epoch: int = 0
    attempt: str = ""
    ttl_ms: int = 0
    holder: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Garbled:
    """A body that is not a lock record. It never counts as free: an operator must look at it."""

    why: str


def encode(record: Record) -> bytes:
    """The wire form: Hudi's three fields first, in Hudi's order, then ours."""
    return json.dumps(
        {
            "expired": record.expired,
            "validUntil": record.valid_until_ms,
            "owner": record.owner,
            "epoch": record.epoch,
            "attempt": record.attempt,
            "ttlMs": record.ttl_ms,
            "holder": record.holder,
        },
        separators=(",", ":"),
    ).encode()


def decode(body: bytes) -> Record | Garbled:
    """Parse by Hudi's rules: its three fields are required and typed, unknown fields are ignored.

    A field of ours with a wrong type counts as absent, as it would for Hudi.
    """
    if len(body) > RECORD_BYTES_MAX:
        return Garbled(f"it is longer than {RECORD_BYTES_MAX} bytes")
    if not body:
        return Garbled("it is empty")
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return Garbled("it is not JSON (truncated, or written by something else)")
    if not isinstance(fields, dict):
        return Garbled("it is not a JSON object")
    expired, until, owner = (fields.get(name) for name in ("expired", "validUntil", "owner"))
    if type(expired) is not bool:
        return Garbled("'expired' is not true or false")
    if type(until) is not int or abs(until) > EPOCH_MAX:
        return Garbled("'validUntil' is not a number of milliseconds")
    if type(owner) is not str:
        return Garbled("'owner' is not a string")
    epoch = fields.get("epoch")
    if type(epoch) is int and epoch >= EPOCH_BELIEVED_MAX:  # read as 0, epochs would start again
        return Garbled(f"its epoch, {str(epoch)[:40]}, leaves no room for further grants")
    return Record(
        owner=owner,
        valid_until_ms=until,
        expired=expired,
        epoch=_count(epoch),
        attempt=_text(fields.get("attempt")),
        ttl_ms=_count(fields.get("ttlMs")),
        holder=_text(fields.get("holder")),
    )


def is_believed(epoch: int) -> bool:
    """Whether an epoch leaves room for further grants (`EPOCH_BELIEVED_MAX`)."""
    return epoch >= 0 and epoch_after(epoch) < EPOCH_BELIEVED_MAX


def epoch_after(known: int) -> int:
    """An epoch above every one that was granted, if `known` is only the highest still known."""
    return min(known + EPOCHS_UNKNOWN, EPOCH_MAX - 1)


def _count(value: object) -> int:
    return value if type(value) is int and 0 <= value <= EPOCH_MAX else 0


def _text(value: object) -> str:
    return value if type(value) is str else ""


def lease_of(record: Record | None) -> dict[str, Any]:
    """A lock record's fields, as a `request` event carries them."""
    if record is None:
        return {}
    return {
        "owner": record.owner, "epoch": record.epoch, "expired": record.expired,
        "valid_until_ms": record.valid_until_ms, "ttl_ms": record.ttl_ms,
    }  # fmt: skip
