"""S3's conditions on writes, deletes and reads."""

from __future__ import annotations

from lockkit.lab.server.call import DialectError, DialectRequest, RequestEffect, judged, same_tag
from lockkit.lab.server.objects import Check, Object, Objects
from lockkit.lab.server.profiles import ServerProfile, throttle


def of_write(
    objects: Objects, profile: ServerProfile, call: DialectRequest, deed: RequestEffect
) -> Check:
    """A PUT's condition, which is evaluated inside the store's transaction."""
    absent, match = call.headers.get("if-none-match"), call.headers.get("if-match")
    if absent is not None:
        deed.condition = "if-absent"
        if absent.strip() != "*" and profile.put_conditions:
            raise DialectError(501, "NotImplemented", "If-None-Match on a write accepts only *.")
    elif match is not None:
        deed.condition = f"if-version {match}"

    def check(before: Object | None) -> None:
        deed.before = version(before)
        throttle(objects, profile, deed.bucket, deed.key)
        if not profile.put_conditions:
            return
        if not profile.versioned_conditions and objects.is_versioned(deed.bucket):
            if match is not None:
                raise failed_condition()
            return
        seen = before if profile.atomic else objects.as_of(deed.bucket, deed.key, call.at_ms)
        if absent is not None and seen is not None:
            raise _lost(profile, call, seen)
        _judge_match(profile, call, match, seen)

    return check


def of_delete(
    objects: Objects, profile: ServerProfile, call: DialectRequest, deed: RequestEffect
) -> Check:
    match = call.headers.get("if-match")
    if match is not None:
        deed.condition = f"if-version {match}"

    def check(before: Object | None) -> None:
        deed.before = version(before)
        throttle(objects, profile, deed.bucket, deed.key)
        if profile.delete_conditions:
            _judge_match(profile, call, match, before)

    return check


def judge_read(call: DialectRequest, deed: RequestEffect, found: Object) -> None:
    outcome = judged(call.headers, found.etag, found.at_ms)
    if outcome == "failed":
        raise failed_condition()
    if (unless := call.headers.get("if-none-match")) is not None:
        deed.condition = f"unless-version {unless}"
    if outcome == "unchanged":
        raise DialectError(304, "NotModified", version(found), "not_modified")


def version(object: Object | None) -> str:
    return "" if object is None else f'"{object.etag}"'


def _judge_match(
    profile: ServerProfile, call: DialectRequest, match: str | None, before: Object | None
) -> None:
    if match is None:
        return
    if before is None:  # S3 answers 404, not 412, to If-Match on a missing object
        raise DialectError(
            404, "NoSuchKey", "The specified key does not exist.", "precondition_failed"
        )
    quoted = match.strip().startswith('"')
    if not same_tag(match, before.etag) or (quoted and not profile.quoted_conditions):
        raise _lost(profile, call, before)


def _lost(profile: ServerProfile, call: DialectRequest, winner: Object) -> DialectError:
    """412; in some profiles every second loser of a race gets a 500 instead.

    A race: the winner's write landed while this request was under way.
    """
    raced = winner.at_ms >= call.at_ms
    if profile.losers_get_500 and raced and int(call.id[-4:], 16) % 2:  # its number
        return DialectError(500, "UnknownError", "UnknownError")
    return failed_condition()


def failed_condition() -> DialectError:
    return DialectError(
        412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold",
        "precondition_failed",
    )  # fmt: skip
