"""Pages of a listing with a delimiter, and the opaque tokens between them."""

from __future__ import annotations

import base64

from lockkit.lab.server.call import DialectError
from lockkit.lab.server.objects import Object, Objects

_BEHIND = "\U0010ffff"


def page(
    objects: Objects,
    bucket: str,
    prefix: str,
    delimiter: str,
    after: str,
    limit: int,
    start: str = "",
) -> tuple[list[Object], list[str], str | None]:
    """Objects and common prefixes after `after`, and where the next page starts (None: no more).

    `start` is inclusive (GCS startOffset), `after` is not. A common prefix that `after` names, or
    lies in, was listed before.
    """
    contents: list[Object] = []
    prefixes: list[str] = []
    if limit <= 0:
        return [], [], None
    listed = common_prefix(after, prefix, delimiter)
    last = after
    while True:
        found = objects.under(
            bucket, prefix, listed + _BEHIND if listed else last, limit + 1, start
        )
        for each in found:
            common = common_prefix(each.key, prefix, delimiter)
            if common and common == listed:
                continue
            if len(contents) + len(prefixes) == limit:
                return contents, prefixes, last
            if common:
                prefixes.append(common)
                listed = last = common
            else:
                contents.append(each)
                listed, last = "", each.key
        if len(found) <= limit:
            return contents, prefixes, None


def common_prefix(key: str, prefix: str, delimiter: str) -> str:
    """The common prefix of this key: `prefix` and the rest up to the delimiter; "" if none."""
    if not delimiter or not key.startswith(prefix):
        return ""
    head, found, _ = key[len(prefix) :].partition(delimiter)
    return prefix + head + delimiter if found else ""


def token(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


def untoken(text: str) -> str:
    try:
        return base64.urlsafe_b64decode(text.encode()).decode()
    except ValueError:
        raise DialectError(400, "InvalidArgument", "the page token is not one of ours") from None


def version_token(last: Object) -> str:
    return token(f"{last.id}\n{last.key}")


def version_place(text: str | None) -> tuple[str, int]:
    """Where a page of versions continues: after this key and id."""
    if not text:
        return "", 0
    id, _, key = untoken(text).partition("\n")
    if not id.isdecimal() or len(id) > 19:
        raise DialectError(400, "InvalidArgument", "the page token is not one of ours")
    return key, int(id)
