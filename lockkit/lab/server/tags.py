"""An object's tags: up to ten pairs, kept in its metadata as the headers write them (`a=1&b=2`)."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import parse_qsl, urlencode

from lockkit.lab.server import markup
from lockkit.lab.server.call import DialectError
from lockkit.lab.server.objects import Object

TAGS_MAX, KEY_CHARS_MAX, VALUE_CHARS_MAX = 10, 128, 256


def of_header(text: str) -> str:
    return _checked(parse_qsl(text, keep_blank_values=True))


def of_document(body: bytes, root: str) -> str:
    """S3's root is `Tagging`, Azure's is `Tags`; the rest is the same."""
    said = [
        markup.fields(tag)
        for tags in markup.read(body, root, "MalformedXML")
        for tag in tags
        if (markup.local(tags), markup.local(tag)) == ("TagSet", "Tag")
    ]
    return _checked((each.get("Key", ""), each.get("Value", "")) for each in said)


def of(object: Object) -> list[tuple[str, str]]:
    return parse_qsl(object.meta.get("tags", ""), keep_blank_values=True)


def document(object: Object) -> str:
    """The content of the root element."""
    rows = (f"<Tag><Key>{markup.plain(key)}</Key><Value>{markup.plain(value)}</Value></Tag>"
            for key, value in of(object))  # fmt: skip
    return f"<TagSet>{''.join(rows)}</TagSet>"


def _checked(said: Iterable[tuple[str, str]]) -> str:
    pairs = list(said)
    if len(pairs) > TAGS_MAX:
        raise DialectError(400, "BadRequest", f"Object tags cannot be greater than {TAGS_MAX}")
    if len({key for key, _ in pairs}) < len(pairs):
        raise DialectError(400, "InvalidTag", "Cannot provide multiple Tags with the same key")
    if any(
        not 1 <= len(key) <= KEY_CHARS_MAX or len(value) > VALUE_CHARS_MAX for key, value in pairs
    ):
        raise DialectError(400, "InvalidTag", "The tag that you have provided is too long or empty")
    return urlencode(pairs)
