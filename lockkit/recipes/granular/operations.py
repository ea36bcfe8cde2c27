"""Ozone's granular locks for OBS buckets: which locks each operation takes, in which order.

The three tables of the design document (HDDS-11898) as data, and the plan of one call. Pure:
`locks` holds the locks, and `deadlocks` searches all interleavings of a few operations.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TypeVar

from lockkit.config import seconds
from lockkit.recipes.errors import OutOfOrder
from lockkit.recipes.stripes import Mode, index_of, strongest
from lockkit.recipes.taking import in_order
from lockkit.sinks import LOG

T = TypeVar("T")

READ, WRITE = Mode.READ, Mode.WRITE


class Level(IntEnum):
    """In the order in which locks are taken."""

    VOLUME = 1
    BUCKET = 2
    KEY = 3


class KeyNaming(StrEnum):
    """Which names the key locks of an operation use."""

    NONE = "no key"
    KEY = "one key"
    PART = "the name of one part"
    KEYS = "keys, in one order"


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the document's tables."""

    name: str
    said: str
    """Its locks, quoted from the document."""
    volume: Mode | None = None
    bucket: Mode | None = None
    key: Mode | None = None
    names: KeyNaming = KeyNaming.NONE


STRIPES: Mapping[Level, int] = {Level.VOLUME: 1024, Level.BUCKET: 1024, Level.KEY: 131_072}
"""Ozone's pull request #8217: 102,400 key stripes, which Guava rounds up."""


HOLD_S_MAX = 1e7


def hold_limit(name: str, value: float | None) -> float | None:
    """How long a call may hold its locks (`warn_s`, `limit_s`); None: no limit."""
    return None if value is None else seconds(name, value, HOLD_S_MAX, least=0.0)


def _rows(*rows: Operation) -> Mapping[str, Operation]:
    return {each.name: each for each in rows}


def _volume(name: str) -> Operation:
    return Operation(name, "Volume Write lock", volume=WRITE)


VOLUME_OPERATIONS = _rows(
    *map(_volume, ("CreateVolume", "DeleteVolume", "SetProperty", "SetAcl", "AddAcl", "RemoveAcl"))
)


def _bucket(name: str) -> Operation:
    return Operation(name, "Bucket Write lock", bucket=WRITE)


_IN_VOLUME = "Volume Read, Bucket Write lock"
BUCKET_OPERATIONS = _rows(
    Operation("CreateBucket", _IN_VOLUME, volume=READ, bucket=WRITE),
    Operation("DeleteBucket", _IN_VOLUME, volume=READ, bucket=WRITE),
    *map(_bucket, ("SetProperty", "SetAcl", "AddAcl", "RemoveAcl")),
)


# "Bucket read lock will be there default": this includes the one row that does not repeat it.
def _key(
    name: str, said: str = "Bucket Read, Key Write lock", key: Mode | None = WRITE,
    names: KeyNaming = KeyNaming.KEY,
) -> Operation:  # fmt: skip
    return Operation(name, said, bucket=READ, key=key, names=names)


_NO_KEY = "Bucket Read Lock, `No Lock` for key"
KEY_OPERATIONS = _rows(
    _key("CreateKey", _NO_KEY, None, KeyNaming.NONE),
    _key("CommitKey"),
    _key("InitiateMultiPartUpload", _NO_KEY, None, KeyNaming.NONE),
    _key("CommitMultiPartUpload", "WriteLock: PartKey Name", WRITE, KeyNaming.PART),
    _key("CompleteMultiPartUpload"),
    _key("AbortMultiPartUpload"),
    _key("DeleteKey"),
    _key("DeleteKeys", "Bucket Read, Key Write with ordered lock", WRITE, KeyNaming.KEYS),
    _key("RenameKey", "Bucket Read, Keys Write with ordered lock", WRITE, KeyNaming.KEYS),
    *map(_key, ("SetAcl", "AddAcl", "RemoveAcl", "AllocateBlock", "SetTimes")),
)
BATCHES: Mapping[str, str] = {"deleteKeys": "DeleteKey", "renameKeys": "RenameKey"}
"""Divided among threads that each run the operation: atomic for each key, not for the batch."""


# --- the plan of one call -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class StripeRequest:
    """One stripe of one level, and the requested mode. Stripes are taken in ascending order."""

    level: Level
    stripe: int
    mode: Mode
    names: tuple[str, ...] = field(default=(), compare=False)
    """What it locks, for people: `volume/bucket/key`. Other names may share the stripe."""

    def __str__(self) -> str:
        named = f" of {', '.join(self.names)}" if self.names else ""
        return f"the {self.level.name.lower()} lock{named} (stripe {self.stripe})"


def wants_of(
    operation: Operation, volume: str, bucket: str = "", keys: Sequence[str] = (), *,
    stripes: Mapping[Level, int] = STRIPES,
) -> list[StripeRequest]:  # fmt: skip
    """Every lock that the operation's row names, in the order of the names.

    `stripes` are powers of two. `ValueError` if the names do not fit the row.
    """
    _refuse_other_names(operation, bucket, keys)
    named = [(Level.VOLUME, operation.volume, volume)]
    named += [(Level.BUCKET, operation.bucket, f"{volume}\0{bucket}")]
    named += [(Level.KEY, operation.key, f"{volume}\0{bucket}\0{key}") for key in keys]
    return [
        StripeRequest(level, index_of(name, stripes[level]), mode, (name.replace("\0", "/"),))
        for level, mode, name in named
        if mode is not None
    ]


def _refuse_other_names(operation: Operation, bucket: str, keys: Sequence[str]) -> None:
    if operation.bucket is not None and not bucket:
        raise ValueError(f"{operation.name} applies to one bucket: name it")
    match operation.names:
        case KeyNaming.NONE:
            fits = not keys or operation.bucket is READ  # CreateKey has a key but locks none
        case KeyNaming.KEY | KeyNaming.PART:
            fits = len(keys) == 1
        case KeyNaming.KEYS:
            fits = bool(keys)
    if not fits:
        raise ValueError(f"{operation.name} locks {operation.names}; {len(keys)} were named")


def plan(wants: Iterable[StripeRequest]) -> tuple[StripeRequest, ...]:
    """The locks of one call, by level and stripe; each stripe once, in its strongest mode."""
    return tuple(in_order(each_once(wants)))


def refuse_to_nest(held: Iterable[StripeRequest], wanted: Iterable[StripeRequest]) -> None:
    """`OutOfOrder` unless every wanted lock has a higher level than every held lock."""
    top = max((each.level for each in held), default=None)
    lowest = min((each.level for each in wanted), default=None)
    if top is None or lowest is None or may_follow(lowest, top):
        return
    if lowest < top:
        raise OutOfOrder(
            "this thread",
            f"holds a {top.name.lower()} lock and asks for a {lowest.name.lower()} lock: "
            "volume comes before bucket before key",
            "release that lock first, or take all in one call",
        )
    raise OutOfOrder(
        "this thread",
        f"holds a {top.name.lower()} lock and asks for another, or for the same one again: "
        "neither is reentrant, and read never becomes write",
        "take all in one call",
    )


def report_slow(on_slow: Callable[[T, float], None] | None, holder: T, held_s: float) -> None:
    """Call `on_slow` in a thread of its own: it may block, and delays no limit and no wait."""

    def call() -> None:
        try:
            if on_slow is not None:
                on_slow(holder, held_s)
        except Exception:  # noqa: BLE001 - logged; nothing depends on it
            LOG.exception("on_slow of %s failed", holder)

    threading.Thread(target=call, name="lockkit-granular-slow", daemon=True).start()


# --- its rules ------------------------------------------------------------------------------------


def each_once(wants: Iterable[StripeRequest]) -> list[StripeRequest]:
    """Each lock of a call once, in the strongest requested mode."""
    wants = list(wants)
    names: dict[tuple[Level, int], dict[str, None]] = {}
    for each in wants:
        names.setdefault((each.level, each.stripe), {}).update(dict.fromkeys(each.names))
    modes = strongest(((each.level, each.stripe), each.mode) for each in wants)
    return [StripeRequest(*at, mode, tuple(names[at])) for at, mode in modes.items()]


def may_follow(lowest: Level, top: Level) -> bool:
    """A thread may take only higher levels than it holds, also in a nested call."""
    return lowest > top


def ends_ms(began_ms: int, most_s: float | None) -> float | None:
    """The deadline for all locks of a call, in ms; None: no limit."""
    return None if most_s is None else began_ms + most_s * 1000
