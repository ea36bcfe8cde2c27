"""Stripes: a fixed set of locks shared by all keys; each key always uses the same one.

Guava's arithmetic (`com.google.common.util.concurrent.Striped`, which Ozone uses): the number is a
power of two, and an index is the smeared hash under a mask. Different keys may share a stripe.

The objects below the URL of locks in a store:

    stripes.json   {"format": 1, "stripes": 64, "hash": "guava(blake2b-32)", "attempt": ...}
    stripes/17/    the lock of stripe 17

Two clients with different numbers of stripes would lock different objects for the same key. The
number is therefore recorded once, by create-if-absent, and a client with another number is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import BinaryIO, TypeVar

from lockkit.events import Event
from lockkit.protocol.outcome import (
    Condition,
    Found,
    IfVersion,
    Missing,
    ReadAnswer,
    Version,
    WriteAnswer,
)
from lockkit.recipes.errors import StripesDiffer
from lockkit.recipes.taking import in_order
from lockkit.runtime import Procedure, Unique
from lockkit.runtime.proven import create, read
from lockkit.stores import Listing, ObjectVersion, Store

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


class SubStore:
    """Many share one client: an SDK's client costs some 10 MB. Closing one closes nothing."""

    def __init__(self, store: Store, prefix: str) -> None:
        self.url = f"{store.url}/{prefix}"
        self.options, self.capabilities = store.options, store.capabilities
        self.server = store.server
        self._store, self._prefix = store, f"{prefix}/"

    def get(
        self, key: str, *, unless: Version | None = None, limit: int | None = None
    ) -> ReadAnswer:
        return self._store.get(self._prefix + key, unless=unless, limit=limit)

    def put(self, key: str, body: bytes, condition: Condition) -> WriteAnswer:
        return self._store.put(self._prefix + key, body, condition)

    def list(self, prefix: str, after: str = "") -> Listing:
        found = self._store.list(self._prefix + prefix, self._prefix + after if after else "")
        within = (replace(each, key=each.key[len(self._prefix) :]) for each in found)
        return Listing(within, snapshot=found.snapshot, last_page=found.last_page)

    def put_file(self, key: str, source: BinaryIO, size: int) -> WriteAnswer:
        return self._store.put_file(self._prefix + key, source, size)

    def get_file(self, key: str, into: BinaryIO) -> ReadAnswer:
        return self._store.get_file(self._prefix + key, into)

    def delete(self, key: str, condition: IfVersion | None = None) -> WriteAnswer:
        return self._store.delete(self._prefix + key, condition)

    def versions(self, key: str) -> Sequence[ObjectVersion]:
        return self._store.versions(self._prefix + key)

    def get_version(self, key: str, version: ObjectVersion) -> bytes:
        return self._store.get_version(self._prefix + key, version)

    def close(self) -> None:
        """The code that opened the store closes it."""


LAYOUT_KEY = "stripes.json"
LAYOUT_BYTES_MAX = 4096
FORMAT = 1
STORED_MAX = 1 << 16


def stripe_key(stripe: int) -> str:
    """The prefix of one stripe below the URL, with a trailing slash."""
    return f"stripes/{stripe}/"


def of_stripe(history: Iterable[Event], stripe: int) -> Iterator[Event]:
    """The events of one stripe in a history: `check` judges one lock at a time."""
    place = f"/{stripe_key(stripe)}"
    for each in history:
        if each.kind == "request":
            if place in f"/{each['key']}":
                yield each
        elif each.get("stripe", stripe) == stripe:
            yield each


def agree(stripes: int, where: str) -> Procedure[None]:
    """Record the number of stripes once; `StripesDiffer` if another number is recorded."""
    standing: object = yield from read(LAYOUT_KEY, limit=LAYOUT_BYTES_MAX)
    if isinstance(standing, Missing):
        body = {"format": FORMAT, "stripes": stripes, "hash": HASH, "attempt": (yield Unique())}
        standing = yield from create(LAYOUT_KEY, json.dumps(body).encode())
    if isinstance(standing, Found):
        _refuse_other(standing.body, stripes, f"{where}/{LAYOUT_KEY}")


def _refuse_other(body: bytes, stripes: int, where: str) -> None:
    recorded, hashed = _layout(body, where)
    if recorded != stripes:
        raise StripesDiffer(
            f"{where} says {recorded} stripes, and this handle has {stripes}: a key would have two "
            "locks",
            cure=f"use StripedLock(..., stripes={recorded})",
        )
    if hashed != HASH:
        raise StripesDiffer(
            f"{where} spreads keys by {hashed[:40]!r}, and this version of lockkit by {HASH!r}: a "
            "key would have two locks",
            cure="use the version that wrote it",
        )


def _layout(body: bytes, where: str) -> tuple[int, str]:
    """The recorded (stripes, hash); `StripesDiffer` if the body is not a record of this version."""
    try:
        fields = json.loads(body) if len(body) <= LAYOUT_BYTES_MAX else None
    except (ValueError, RecursionError):
        fields = None
    match fields:
        case {"format": int(number)} if number > FORMAT:
            why = f"is of format {number}, and this version of lockkit knows {FORMAT}"
            cure = "update it"
        case {"format": 1, "stripes": int(stripes), "hash": str(hashed)} if (
            0 < stripes <= STORED_MAX and rounded(stripes) == stripes
        ):
            return stripes, hashed
        case _:
            why = "is not a record of stripes"
            cure = "see who wrote it, and remove it if it is unused"
    raise StripesDiffer(f"{where} {why}", cure=cure)
