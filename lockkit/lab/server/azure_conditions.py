"""Azure's conditions on writes, deletes and reads."""

from __future__ import annotations

from lockkit.lab.server import azure_lease
from lockkit.lab.server.azure_shape import etag, tag
from lockkit.lab.server.call import DialectError, DialectRequest, RequestEffect, by_date, same_tag
from lockkit.lab.server.objects import Check, Object, Objects
from lockkit.lab.server.profiles import ServerProfile, throttle


def of_write(
    objects: Objects, profile: ServerProfile, call: DialectRequest, deed: RequestEffect
) -> Check:
    """A write's condition, which is evaluated inside the store's transaction."""
    absent, match = call.headers.get("if-none-match"), call.headers.get("if-match")
    if absent == "*":
        deed.condition = "if-absent"
    elif match is not None:
        deed.condition = f"if-version {match}"

    def check(before: Object | None) -> None:
        deed.before = "" if before is None else etag(before)
        throttle(objects, profile, deed.bucket, deed.key)
        if profile.put_conditions:
            judge_write(before)
        azure_lease.guard(objects, call, deed)
        azure_lease.written(objects, deed)

    def judge_write(before: Object | None) -> None:
        if absent == "*" and before is not None:  # 409, where S3 and GCS answer 412
            raise DialectError(
                409, "BlobAlreadyExists", "The specified blob already exists.",
                "precondition_failed",
            )  # fmt: skip
        judge(call, before)

    return check


def judge(call: DialectRequest, before: Object | None) -> None:
    unless, match = call.headers.get("if-none-match"), call.headers.get("if-match")
    if match is not None and (before is None or not same_tag(match, tag(before))):
        raise _failed()
    if before is None:
        return
    if by_date(call.headers, before.at_ms) or (
        unless is not None and same_tag(unless, tag(before))
    ):
        raise _failed()


def judge_read(call: DialectRequest, deed: RequestEffect, found: Object) -> None:
    unless, match = call.headers.get("if-none-match"), call.headers.get("if-match")
    dated = by_date(call.headers, found.at_ms)
    if dated == "failed" or (match is not None and not same_tag(match, tag(found))):
        raise _failed()
    if unless is not None:
        deed.condition = f"unless-version {unless}"
    if dated == "unchanged" or (unless is not None and same_tag(unless, tag(found))):
        raise DialectError(304, "ConditionNotMet", etag(found), "not_modified")


def judge_source(call: DialectRequest, found: Object) -> None:
    said = {name.removeprefix("x-ms-source-"): value for name, value in call.headers.items()
            if name.startswith("x-ms-source-if-")}  # fmt: skip
    match, unless = said.get("if-match"), said.get("if-none-match")
    if (
        by_date(said, found.at_ms)
        or (match is not None and not same_tag(match, tag(found)))
        or (unless is not None and same_tag(unless, tag(found)))
    ):
        text = "The source condition specified using HTTP conditional header(s) is not met."
        raise DialectError(412, "SourceConditionNotMet", text, "precondition_failed")


def _failed() -> DialectError:
    return DialectError(
        412, "ConditionNotMet",
        "The condition specified using HTTP conditional header(s) is not met.",
        "precondition_failed",
    )  # fmt: skip
