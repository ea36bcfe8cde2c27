"""Writes XML as the services do, and reads untrusted XML without expanding entities."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import quote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from lockkit.lab.server.call import DialectError, Reply, RequestEffect

BYTES_MAX = 4 << 20
_UNWRITABLE = re.compile("[\x00-\x08\x0b-\x1f\ufffe\uffff]")
"""XML 1.0 cannot contain these, and would turn a carriage return into a line feed."""


def document(text: str, deed: RequestEffect | None, status: int = 200) -> Reply:
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode("utf-8", "replace")
    return Reply(status, {"Content-Type": "application/xml"}, body, deed)


def read(body: bytes, root: str, code: str) -> ElementTree.Element:
    """The document's root element, or a 400 with this code."""
    if len(body) > BYTES_MAX:
        raise DialectError(400, code, f"the XML is longer than {BYTES_MAX} bytes")
    # No SDK sends a document type, and UTF-16 could hide one: both are refused.
    if b"<!" in body or b"\x00" in body:
        raise DialectError(400, code, "a document type, comment or section is not accepted")
    try:
        element = ElementTree.fromstring(body)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise DialectError(400, code, f"the XML is not well-formed: {error}") from None
    if local(element) != root:
        raise DialectError(400, code, f"the XML is no {root}")
    return element


def local(element: ElementTree.Element) -> str:
    """The tag without its namespace."""
    return element.tag.rpartition("}")[2]


def fields(element: ElementTree.Element) -> dict[str, str]:
    return {local(child): (child.text or "") for child in element}


def writable(text: str) -> bool:
    return _UNWRITABLE.search(text) is None


def plain(text: str) -> str:
    """Escaped; characters that XML cannot contain become question marks."""
    return _UNWRITABLE.sub("?", escape(text))


def shower(encoding: str | None) -> Callable[[str], str]:
    """How a listing writes a key: with `encoding-type=url` S3 quotes what XML cannot contain."""
    return (lambda text: quote(text, safe="/")) if encoding == "url" else plain


def iso(at_ms: float) -> str:
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{int(at_ms % 1000):03}Z"
