"""Azure's conditions on writes, deletes and reads."""

from __future__ import annotations

from lockkit.lab.server import azure_lease
from lockkit.lab.server.azure_shape import etag, tag
from lockkit.lab.server.call import DialectError, DialectRequest, RequestEffect, judged
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
    missed = before is None and "if-match" in call.headers
    if missed or (before is not None and judged(call.headers, tag(before), before.at_ms)):
        raise _failed()


def judge_read(call: DialectRequest, deed: RequestEffect, found: Object) -> None:
    outcome = judged(call.headers, tag(found), found.at_ms)
    if outcome == "failed":
        raise _failed()
    if (unless := call.headers.get("if-none-match")) is not None:
        deed.condition = f"unless-version {unless}"
    if outcome == "unchanged":
        raise DialectError(304, "ConditionNotMet", etag(found), "not_modified")


def judge_source(call: DialectRequest, found: Object) -> None:
    said = {name.removeprefix("x-ms-source-"): value for name, value in call.headers.items()
            if name.startswith("x-ms-source-if-")}  # fmt: skip
    if judged(said, tag(found), found.at_ms):
        text = "The source condition specified using HTTP conditional header(s) is not met."
        raise DialectError(412, "SourceConditionNotMet", text, "precondition_failed")


def _failed() -> DialectError:
    return DialectError(
        412, "ConditionNotMet",
        "The condition specified using HTTP conditional header(s) is not met.",
        "precondition_failed",
    )  # fmt: skip
