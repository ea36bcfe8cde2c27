"""CRC-32C (Castagnoli), which Google's SDKs send with uploads and compare with the answer."""

from __future__ import annotations

import base64
from typing import Any

try:
    import google_crc32c
except ImportError:  # it comes with google-cloud-storage
    _native: Any = None
else:
    _native = google_crc32c.value

COMPUTED_BYTES_MAX = 64 * 1024
"""About 5 ms in plain Python; above that a client's own figure is repeated, not verified."""


def _table() -> tuple[int, ...]:
    rows = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        rows.append(value)
    return tuple(rows)


_TABLE = _table()


def crc32c(body: bytes) -> int:
    if _native is not None:
        return int(_native(body))
    value = 0xFFFFFFFF
    for byte in body:
        value = _TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def digest_of(body: bytes) -> str | None:
    """As the services write it (base64, big-endian); None for a body too long for plain Python."""
    if _native is None and len(body) > COMPUTED_BYTES_MAX:
        return None
    return base64.b64encode(crc32c(body).to_bytes(4, "big")).decode()
