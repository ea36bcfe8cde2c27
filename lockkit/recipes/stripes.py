"""Stripes: a fixed set of locks shared by all keys; each key always uses the same one.

Guava's arithmetic (`com.google.common.util.concurrent.Striped`, which Ozone uses): the number is a
power of two, and an index is the smeared hash under a mask. Different keys may share a stripe.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import TypeVar

from lockkit.recipes.taking import in_order

STRIPES_MAX = 1 << 30
"""Guava's own."""
HASH = "guava(blake2b-32)"
"""The name of `hash32` and `smear`, recorded with the number of stripes."""
_HASH_KEY = b"lockkit stripes"

P = TypeVar("P")


class Mode(IntEnum):
    """The mode of a lock; the greater one is the stronger."""

    READ = 0
    WRITE = 1


def rounded(stripes: int, most: int = STRIPES_MAX) -> int:
    """The power of two that is at least `stripes`. `ValueError` outside of 1 to `most`."""
    if type(stripes) is not int or not 1 <= stripes <= most:
        raise ValueError(f"the number of stripes must be from 1 to {most:,}; not {stripes!r}")
    return 1 << (stripes - 1).bit_length()


def hash32(name: str) -> int:
    """A hash that is the same in every process and Python version, unlike `hash`."""
    body = name.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(body, digest_size=4, key=_HASH_KEY).digest(), "big")


def smear(hash32: int) -> int:
    """Guava's function: mixes the high bits into the low ones, the only ones that a mask keeps."""
    hash32 &= 0xFFFFFFFF
    hash32 ^= (hash32 >> 20) ^ (hash32 >> 12)
    return hash32 ^ (hash32 >> 7) ^ (hash32 >> 4)


def index_of(name: str, stripes: int) -> int:
    """The stripe of a key; `stripes` is a power of two."""
    return smear(hash32(name)) & (stripes - 1)


def indexes(names: Iterable[str], stripes: int) -> tuple[int, ...]:
    """The stripes of several keys: ascending, and each of them once.

    Guava's `bulkGet` keeps duplicates, because its locks are reentrant; these are not.
    """
    return tuple(in_order(each_once(index_of(name, stripes) for name in names)))


def each_once(found: Iterable[int]) -> Iterable[int]:
    """Each stripe once, though several keys share it."""
    return dict.fromkeys(found)


def strongest(wanted: Iterable[tuple[P, Mode]]) -> Mapping[P, Mode]:
    """Each place once, in its strongest mode: a read and then a write would wait for itself."""
    modes: dict[P, Mode] = {}
    for place, mode in wanted:
        modes[place] = max(mode, modes.get(place, mode))
    return modes


def collision_chance(stripes: int, others: int) -> float:
    """The probability that a key shares a stripe with one of `others` keys: 1 - (1 - 1/S)^k."""
    return 1.0 - (1.0 - 1.0 / rounded(stripes)) ** others
