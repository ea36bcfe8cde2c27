"""Pages of a listing with a delimiter, and the opaque tokens between them."""

from __future__ import annotations

from lockkit.emulator.objects import Object, Objects

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
    """Objects and common prefixes behind `after`, and where the next page starts (None: all told).

    `start` is inclusive (GCS startOffset), `after` is not.
    """
    contents: list[Object] = []
    prefixes: list[str] = []
    last = after
    if limit <= 0:
        return [], [], None
    while True:
        found = objects.list(bucket, prefix, last, limit + 1, start)
        for each in found:
            rest = each.key[len(prefix) :]
            common = ""
            if delimiter and delimiter in rest:
                common = prefix + rest[: rest.index(delimiter) + len(delimiter)]
            if common and (after.startswith(common) or (prefixes and prefixes[-1] == common)):
                last = common + _BEHIND
                continue
            if len(contents) + len(prefixes) == limit:
                return contents, prefixes, last
            if common:
                prefixes.append(common)
                last = common + _BEHIND  # behind everything under this prefix
            else:
                contents.append(each)
                last = each.key
        if len(found) <= limit:
            return contents, prefixes, None
