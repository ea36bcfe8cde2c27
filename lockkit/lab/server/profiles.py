"""How providers differ where it matters to a lock, as data."""

from __future__ import annotations

from dataclasses import dataclass

from lockkit.lab.server.call import DialectError
from lockkit.lab.server.objects import Objects


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProfile:
    """A provider's behaviour that the server imitates.

    :param name: the profile's name.
    :param why: the provider or the failure behind it.
    """

    name: str
    write_interval_ms: float = 0.0
    """Writes to one object closer together than this get 429, from any client."""
    put_conditions: bool = True
    """False: conditions on PUT are silently ignored."""
    delete_conditions: bool = True
    """False: If-Match on an S3 DELETE is silently ignored."""
    quoted_conditions: bool = True
    """False: an S3 If-Match never holds if its ETag is in quotes, as all SDKs send it."""
    versioned_conditions: bool = True
    """False: in a versioned S3 bucket If-None-Match is ignored, and If-Match never holds."""
    race_ms: float = 0.0
    """Every request is delayed by this before it is decided, so that there are races."""
    losers_get_500: bool = False
    """Every second loser of a race gets a 500."""
    atomic: bool = True
    """False: the condition of an S3 PUT is checked when it arrives, and the write comes later."""
    why: str


PROFILES = {
    each.name: each
    for each in (
        ServerProfile(
            name="aws", why="S3: conditional PUT since 2024-08 (create) and 2024-11 (If-Match)"
        ),
        ServerProfile(
            name="gcs",
            write_interval_ms=1000,
            why="cloud.google.com/storage/quotas: one write per second to one object, then 429",
        ),
        ServerProfile(name="azure", why="Azure Blob Storage: ETag conditions on Put Blob"),
        ServerProfile(
            name="spaces",
            put_conditions=False,
            why="DigitalOcean Spaces documents conditions for GET and HEAD only",
        ),
        ServerProfile(
            name="rgw",
            delete_conditions=False,
            versioned_conditions=False,
            race_ms=10,
            losers_get_500=True,
            why="Ceph RGW 16.2 as measured (with unquoted ETags): losers of a race got 412 or 500, "
            "never applied; on a versioned bucket two creates succeeded",
        ),
        ServerProfile(
            name="rgw-quoted",
            quoted_conditions=False,
            why="Ceph RGW 16.2 as measured with quoted ETags, which is how SDKs send them: an "
            "If-Match never holds",
        ),
        ServerProfile(
            name="two-steps",
            race_ms=10,
            atomic=False,
            why="moto, and SeaweedFS before its change 8800: they look, then write, and nothing "
            "covers both",
        ),
    )
}


def throttle(objects: Objects, profile: ServerProfile, bucket: str, key: str) -> None:
    """429 for a write or delete that comes too soon after the last one to this object."""
    if not profile.write_interval_ms:
        return
    present = objects.present(bucket, key)
    if present is not None and objects.clock.stamp_ms() - present.at_ms < profile.write_interval_ms:
        raise DialectError(
            429,
            "SlowDown",
            f"The object {bucket}/{key} exceeded the rate limit for object mutation operations "
            "(create, update, and delete). Please reduce your request rate.",
            "throttled",
        )
