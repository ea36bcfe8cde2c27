"""A file of Java properties, as `java.util.Properties` reads and writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lockkit.table.errors import DamagedFile

PROPERTIES_BYTES_MAX = 1_000_000


def format_properties(keys: Mapping[str, str]) -> bytes:
    """Sorted lines, escaped as `java.util.Properties` escapes them; equal keys give equal bytes."""
    return "".join(f"{_escape(k)}={_escape(v)}\n" for k, v in sorted(keys.items())).encode("ascii")


def _escape(text: str) -> str:
    escaped = re.sub(r"([\\=:#! ])", r"\\\1", text).replace("\n", "\\n").replace("\r", "\\r")
    units = escaped.encode("utf-16-be", "surrogatepass")
    pairs = [int.from_bytes(units[i : i + 2], "big") for i in range(0, len(units), 2)]
    return "".join(chr(u) if 0x20 <= u < 0x7F else f"\\u{u:04x}" for u in pairs)


def parse_properties(body: bytes) -> dict[str, str]:
    """The keys of a properties file. Other content gives keys that are never used."""
    if len(body) > PROPERTIES_BYTES_MAX:
        raise DamagedFile(
            "hoodie.properties", f"has {len(body)} bytes and is not a table's properties file"
        )
    text = re.sub(r"(?<!\\)((?:\\\\)*)\\\r?\n[ \t\f]*", r"\1", body.decode("latin-1"))
    keys: dict[str, str] = {}
    for line in re.split(r"\r\n|\n|\r", text):
        line = line.lstrip(" \t\f")
        if not line or line[0] in "#!":
            continue
        match = re.match(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", line)
        if match:
            keys[_unescape(match[1])] = _unescape(match[2])
    return keys


def _unescape(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        return {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}.get(match[2], match[2])

    plain = re.sub(r"\\(?:u([0-9A-Fa-f]{4})|(.))", one, text)
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
