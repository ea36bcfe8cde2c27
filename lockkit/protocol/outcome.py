"""The answers a store can give, and what an ambiguous one turns out to mean.

A conditional write has exactly four answers. Two are certain refusals of different kinds, one is
certain success, and `Unknown` means that the write may have been applied, or may still be. Store
adapters translate status codes and SDK exceptions into these values and decide nothing else.
Configuration errors (access denied, no such bucket) raise `StoreError`: they are not answers.
"""

from __future__ import annotations

from dataclasses import dataclass

Version = str
"""A store's name for one state of an object: an ETag (S3, Azure) or a generation (GCS). Opaque."""


# --- conditions of a write -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IfAbsent:
    """Write only if no object is there (`If-None-Match: *`, `ifGenerationMatch=0`)."""


@dataclass(frozen=True, slots=True)
class IfVersion:
    """Write only if the object still has this version (`If-Match`, `ifGenerationMatch=g`)."""

    version: Version


Condition = IfAbsent | IfVersion


def over(version: Version | None) -> Condition:
    """The condition to replace exactly what was seen; None: nothing was there."""
    return IfAbsent() if version is None else IfVersion(version)


# --- answers to a write ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Applied:
    """The write landed; the object now has this version."""

    version: Version


@dataclass(frozen=True, slots=True)
class PreconditionFailed:
    """The store found another version than the condition asked for.

    If anything on the way retries silently, this may be the answer to a second copy of a write
    whose first copy landed (aws-sdk-java-v2 #6580). So the lease reads back before it decides.
    """


@dataclass(frozen=True, slots=True)
class Throttled:
    """Certainly not applied: try again, but not before `retry_after_s` if the store named it."""

    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Unknown:
    """No answer: the request may have been applied, or may still be."""

    why: str


WriteAnswer = Applied | PreconditionFailed | Throttled | Unknown


# --- answers to a read -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """The object, and the two times of the store's own clock that came in the same answer.

    `modified_ms` is Last-Modified, `date_ms` is the answer's Date (epoch ms; None where the store
    does not say). Both are floored to a second by HTTP.
    """

    body: bytes
    version: Version
    modified_ms: int | None = None
    date_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Missing:
    """No object has this key."""


@dataclass(frozen=True, slots=True)
class NotModified:
    """The object still has the version that the conditional read named (HTTP 304)."""

    date_ms: int | None = None


ReadAnswer = Found | Missing | NotModified | Throttled | Unknown


# --- what an ambiguous write was ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ours:
    """The object holds the attempt in question: the write landed."""

    version: Version


@dataclass(frozen=True, slots=True)
class NotOurs:
    """Another write is in the place of ours: ours was superseded, or can never land any more."""


@dataclass(frozen=True, slots=True)
class StillOut:
    """The version that we meant to replace is still there: the write may still land.

    Sending the same bytes under the same condition again is safe: at most one copy can land.
    """


Resolution = Ours | NotOurs | StillOut


def resolve(
    seen_version: Version | None,
    seen_attempt: str | None,
    *,
    attempt: str,
    wrote_over: Version | None,
) -> Resolution:
    """Classify a write of ours from what a later read found (None, None = the object is missing).

    A write is recognised by `attempt`, never by owner: an owner may have several writes in flight,
    and an older one proves nothing about this one (RFC-91-2's review).
    """
    if seen_attempt is not None and seen_attempt == attempt:
        assert seen_version is not None
        return Ours(seen_version)
    if seen_version == wrote_over:
        return StillOut()
    return NotOurs()
