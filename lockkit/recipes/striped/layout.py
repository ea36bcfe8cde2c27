"""The objects below a striped lock's URL: `stripes.json`, and one prefix for each stripe's `Lock`.

    stripes.json   {"format": 1, "stripes": 64, "hash": "guava(blake2b-32)", "attempt": ...}
    stripes/17/    the lock of stripe 17; the number of stripes is a power of two

Two clients with different numbers of stripes would lock different objects for the same key. The
number is therefore recorded once, by create-if-absent, and a client with another number is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from lockkit.events import Event
from lockkit.protocol.outcome import Found, Missing
from lockkit.recipes.errors import StripesDiffer
from lockkit.recipes.stripes import HASH, rounded
from lockkit.runtime import Procedure, Unique
from lockkit.runtime.proven import create, read

LAYOUT_KEY = "stripes.json"
LAYOUT_BYTES_MAX = 4096
FORMAT = 1
STRIPES_MAX = 1 << 16


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
            0 < stripes <= STRIPES_MAX and rounded(stripes) == stripes
        ):
            return stripes, hashed
        case _:
            why = "is not a record of stripes"
            cure = "see who wrote it, and remove it if it is unused"
    raise StripesDiffer(f"{where} {why}", cure=cure)
