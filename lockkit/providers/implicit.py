"""The key that Hudi's "implicit" providers derive from a table's path, so none is configured.

Hudi's HashID (org.apache.hudi.common.util.hash): XXH64 of the path's UTF-8 bytes, written as 16
upper-case hex digits. The seed is a Java int, sign-extended to long.
"""

from __future__ import annotations

import re

SEED = 0xFFFF_FFFF_DABA_DABA
_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)  # fmt: skip
_MASK = (1 << 64) - 1


def key_of_base_path(base_path: str) -> str:
    """As Hudi derives it: `s3a://` becomes `s3://`; the rest, with a last slash, is unchanged."""
    path = re.sub("^s3a://", "s3://", base_path, flags=re.IGNORECASE)
    return f"{xxh64(path.encode(), SEED):016X}"


def xxh64(data: bytes, seed: int) -> int:
    """XXH64 (https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md) of one string."""
    at, value = 0, (seed + _P5) & _MASK
    if len(data) >= 32:
        lanes = [each & _MASK for each in (seed + _P1 + _P2, seed + _P2, seed, seed - _P1)]
        while at + 32 <= len(data):
            lanes = [_stirred(lane, _word(data, at + 8 * n, 8)) for n, lane in enumerate(lanes)]
            at += 32
        turned = [_turn(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)]
        value = sum(turned) & _MASK
        for lane in lanes:
            value = ((value ^ _stirred(0, lane)) * _P1 + _P4) & _MASK
    value = (value + len(data)) & _MASK
    while at + 8 <= len(data):
        value = (_turn(value ^ _stirred(0, _word(data, at, 8)), 27) * _P1 + _P4) & _MASK
        at += 8
    if at + 4 <= len(data):
        value = (_turn(value ^ _word(data, at, 4) * _P1 & _MASK, 23) * _P2 + _P3) & _MASK
        at += 4
    for byte in data[at:]:
        value = _turn(value ^ byte * _P5 & _MASK, 11) * _P1 & _MASK
    for by, times in ((33, _P2), (29, _P3), (32, 1)):
        value = (value ^ value >> by) * times & _MASK
    return value


def _turn(value: int, by: int) -> int:
    return (value << by | value >> (64 - by)) & _MASK


def _word(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")


def _stirred(lane: int, value: int) -> int:
    return _turn((lane + value * _P2) & _MASK, 31) * _P1 & _MASK
