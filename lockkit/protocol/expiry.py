"""When a lease ends: for a challenger that reads it, and, earlier, for its holder. Pure."""

from __future__ import annotations

from lockkit.protocol.policy import Expiry, Policy
from lockkit.protocol.record import Garbled, Record
from lockkit.protocol.state import Identity, LastObservation, Now, PendingWrite


def frees_ms(observed: LastObservation, now: Now, policy: Policy) -> int | None:
    """When the observed lease may be taken, on my boot clock; None: never by itself.

    `store` compares two times of the store's clock; my boot clock gives a lower bound of its time
    now. A lease of Hudi's names only an end: by my clock and, but for `wall`, by the store's too.
    """
    record = observed.observation.record
    if record is None or (isinstance(record, Record) and record.expired):
        return now.boot_ms
    if isinstance(record, Garbled):
        return None
    modified, date = observed.observation.modified_ms, observed.observation.date_ms
    if policy.expiry is Expiry.OBSERVED and record.ttl_ms:
        return observed.since_ms + record.ttl_ms
    by_mine = now.boot_ms + (record.valid_until_ms + policy.drift_ms - now.wall_ms)
    if policy.expiry is Expiry.WALL or date is None or (record.ttl_ms and modified is None):
        return by_mine
    if record.ttl_ms and modified is not None:
        return observed.read_ms + (modified + record.ttl_ms + policy.slack_ms - date)
    return max(by_mine, observed.read_ms + (hudi_end_ms(record, modified, policy) - date))


def hudi_end_ms(record: Record, modified_ms: int | None, policy: Policy) -> int:
    """By the store's clock. One before its write is of a clock that is behind: it may be alive."""
    if modified_ms is not None and record.valid_until_ms <= modified_ms:
        return modified_ms + 90_000  # three renewals, by Hudi's defaults
    return record.valid_until_ms + policy.drift_ms


def free(observed: LastObservation, now: Now, policy: Policy) -> bool:
    at = frees_ms(observed, now, policy)
    return at is not None and now.boot_ms >= at


def belief_ends_ms(identity: Identity, write: PendingWrite, answered: Now, policy: Policy) -> int:
    """When the grant that this write won ends for its holder, on my boot clock."""
    return counted_from(write, answered).boot_ms + believed_ms(identity, policy)


def counted_from(write: PendingWrite, _answered: Now) -> Now:
    """The lease counts from before the request left: the store may have applied it then."""
    return write.sent


def believed_ms(identity: Identity, policy: Policy) -> int:
    """Only the challenger adds the drift: if the holder added it too, it would cancel out."""
    return identity.ttl_ms - min(policy.margin_ms, identity.ttl_ms // 10)
