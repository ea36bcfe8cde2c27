"""The bytes of a log: its slots, and the manifest that counts its writers.

    manifest.json                    {"format":1, "writer_epoch":3, "attempt":..., "head":41,
                                      "names_head":false}
    wal/00000000000000000041.json    {"format":1, "slot":41, "epoch":3, ..., "records":[]}

A slot is created once and never overwritten, so the outcome of a write to it can always be found
out: after a 412 or no answer it is read back. If it holds this attempt, the write is committed. If
it holds another, this attempt can never land. If it is still empty, the same bytes are sent again.
A slot without records is a fence: it was the first free one when a writer began.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, assert_never

from lockkit.errors import StoreError, Unanswered, clipped
from lockkit.protocol.outcome import (
    Applied,
    Condition,
    Found,
    IfAbsent,
    PreconditionFailed,
    Throttled,
    Unknown,
    Version,
)
from lockkit.recipes.errors import Damaged
from lockkit.runtime import Procedure, Sleep
from lockkit.runtime.proven import TRIES_MAX, pause_s, put_once, read

MANIFEST_KEY, HEAD_KEY, FOLDER = "manifest.json", "head.json", "wal/"
FORMAT = 1
COUNT_MAX = 2**63 - 1
ID_CHARS_MAX = 100
SHOWN_CHARS_MAX = 60
MANIFEST_BYTES_MAX = 64 * 1024
RECORD_BYTES_MAX = 1_000_000
BATCH_BYTES_MAX = 4_000_000
SLOT_BYTES_MAX = BATCH_BYTES_MAX + RECORD_BYTES_MAX + 64 * 1024
DEEPER = 50
"""A record is refused if a reader with a stack this much deeper could not parse it."""

_KEY = re.compile(r"wal/(\d{20})\.json")


class LogTail(Enum):
    """How a reader finds the end of the log."""

    NEXT_SLOT = "404 for the slot after the last"
    HEAD = "304 for the object that names the head; each append moves it, which is a second write"


# --- a slot ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slot:
    """One object of the log. `attempt` is unique per write, `writer` per opening of the log."""

    number: int
    epoch: int
    writer: str
    attempt: str
    texts: tuple[str, ...] = ()
    """Its records, each as JSON."""

    @property
    def key(self) -> str:
        return slot_key(self.number)

    def encode(self) -> bytes:
        head = {
            "format": FORMAT, "slot": self.number, "epoch": self.epoch, "writer": self.writer,
            "attempt": self.attempt,
        }  # fmt: skip
        return f'{json.dumps(head)[:-1]}, "records": [{", ".join(self.texts)}]}}'.encode()


@dataclass(frozen=True, slots=True)
class SlotRead:
    """A slot as it was found; `records` are JSON values."""

    number: int
    epoch: int
    writer: str
    attempt: str
    records: tuple[Any, ...]


def slot_key(number: int) -> str:
    return f"{FOLDER}{number:020}.json"


def slot_number(key: str) -> int | None:
    match = _KEY.fullmatch(key)
    return int(match[1]) if match else None


def first_gap(start: int, keys: Iterable[str]) -> int:
    """The first slot from `start` on that is not among the keys."""
    taken = {slot_number(key) for key in keys}
    number = start
    while number in taken:
        number += 1
    return number


def encode_record(record: Any) -> str:
    """Its JSON; `ValueError` if it has none or exceeds `RECORD_BYTES_MAX`."""
    try:
        text = json.dumps(record, allow_nan=False, separators=(",", ":"))
        json.loads("[" * DEEPER + text + "]" * DEEPER)
    except (TypeError, ValueError, RecursionError) as error:
        said = clipped(str(error), SHOWN_CHARS_MAX)
        raise ValueError(f"this record cannot be written as JSON ({said}); append a JSON value, "
                         "or base64 of your own bytes") from None  # fmt: skip
    if len(text) > RECORD_BYTES_MAX:
        raise ValueError(
            f"this record has {len(text)} bytes of JSON, and {RECORD_BYTES_MAX} is the most; store "
            "it as a separate object, then append its key"
        )
    return text


def decode_slot(body: bytes, number: int) -> SlotRead:
    """Strict: a body that is not slot `number` of this format is `Damaged`."""
    key = slot_key(number)
    fields = _fields(key, body, SLOT_BYTES_MAX)
    if fields.get("slot") != number:
        raise _damaged(key, f"it says that it is slot {_shown(fields.get('slot'))}")
    records = fields.get("records")
    if type(records) is not list:
        raise _damaged(key, "its 'records' are not a list")
    epoch = _count(key, fields, "epoch", least=1)
    return SlotRead(
        number, epoch, _id(key, fields, "writer"), _id(key, fields, "attempt"), tuple(records)
    )


def read_slot(number: int) -> Procedure[SlotRead | None]:
    """The slot; None if no writer has claimed it. Raises `Damaged`, `Unanswered`."""
    match (yield from read(slot_key(number), limit=SLOT_BYTES_MAX)):
        case Found(body, _):
            return decode_slot(body, number)
        case _missing:
            return None


# --- the manifest ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Manifest:
    """The epoch of the newest writer; all slots below `head` were taken when it was claimed.

    `names_head`: from this epoch on `head.json` names each append before it is acknowledged.
    """

    epoch: int = 0
    attempt: str = ""
    head: int = 0
    names_head: bool = False

    def encode(self) -> bytes:
        return json.dumps(
            {
                "format": FORMAT, "writer_epoch": self.epoch, "attempt": self.attempt,
                "head": self.head, "names_head": self.names_head,
            }
        ).encode()  # fmt: skip


def decode_manifest(body: bytes) -> Manifest:
    fields = _fields(MANIFEST_KEY, body, MANIFEST_BYTES_MAX)
    names_head = fields.get("names_head")
    if type(names_head) is not bool:
        raise _damaged(MANIFEST_KEY, f"its 'names_head' is {_shown(names_head)}")
    return Manifest(
        _count(MANIFEST_KEY, fields, "writer_epoch", least=1),
        _id(MANIFEST_KEY, fields, "attempt"),
        _count(MANIFEST_KEY, fields, "head", least=0),
        names_head,
    )


def read_manifest() -> Procedure[tuple[Manifest, Version | None]]:
    """The manifest and its version; an empty one if there is none yet."""
    match (yield from read(MANIFEST_KEY, limit=MANIFEST_BYTES_MAX)):
        case Found(body, version):
            return decode_manifest(body), version
        case _missing:
            return Manifest(), None


# --- the head -------------------------------------------------------------------------------------


def encode_head(number: int, attempt: str) -> bytes:
    """All slots below that number exist, for good."""
    return json.dumps({"format": FORMAT, "head": number, "attempt": attempt}).encode()


def decode_head(body: bytes) -> int:
    return _count(HEAD_KEY, _fields(HEAD_KEY, body, MANIFEST_BYTES_MAX), "head", least=1)


# --- untrusted bytes ------------------------------------------------------------------------------


def _fields(key: str, body: bytes, bytes_max: int) -> dict[str, Any]:
    if len(body) > bytes_max:
        raise _damaged(key, f"it is longer than {bytes_max} bytes")
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        raise _damaged(key, "it is not JSON (truncated, or written by something else)") from None
    if not isinstance(fields, dict):
        raise _damaged(key, "it is not a JSON object")
    if type(fields.get("format")) is int and fields["format"] > FORMAT:
        raise Damaged(
            f"has format {fields['format']}, and this lockkit reads up to {FORMAT}; a newer "
            "one wrote it",
            key=key, cure="upgrade lockkit here",
        )  # fmt: skip
    if fields.get("format") != FORMAT:
        raise _damaged(key, f"its format is {_shown(fields.get('format'))}")
    return fields


def _count(key: str, fields: dict[str, Any], name: str, *, least: int) -> int:
    value = fields.get(name)
    if type(value) is not int or not least <= value < COUNT_MAX:
        raise _damaged(key, f"its {name!r} is {_shown(value)}")
    return value


def _id(key: str, fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if type(value) is not str or not 0 < len(value) <= ID_CHARS_MAX:
        raise _damaged(key, f"its {name!r} is {_shown(value)}")
    return value


def _shown(value: object) -> str:
    return clipped(ascii(value), SHOWN_CHARS_MAX)


def _damaged(key: str, why: str) -> Damaged:
    return Damaged(
        f"is not part of a log of lockkit: {why}; nothing was written over it",
        key=key, cure="see who wrote it, then restore or remove it",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SlotLanded:
    """The slot holds this very write."""


@dataclass(frozen=True, slots=True)
class SlotTaken:
    """The slot holds another write: this one can never land. None: it was not read."""

    by: SlotRead | None


@dataclass(frozen=True, slots=True)
class SlotUnknown:
    """The slot is not known to hold anything. `doubt`: this write may be in it, or may still be."""

    error: Exception
    doubt: bool


End = SlotLanded | SlotTaken | SlotUnknown


def claim(slot: Slot) -> Procedure[End]:
    """Create the slot and settle the outcome; raises nothing.

    Not `settle_write`: after a 429 the slot counts as in doubt here, and each claim of a batch must
    end with a value.
    """
    body, doubt, why = slot.encode(), False, "throttled"
    try:
        for tries in range(TRIES_MAX):
            match (yield from put_once(slot.key, body, (yield from condition_of(slot.key)))):
                case Applied():
                    return SlotLanded()
                case Throttled(after_s):
                    if (end := throttled(slot)) is not None:
                        return end
                    doubt = True  # this copy is not done: a hidden retry's first one may be
                    yield Sleep(pause_s(tries, after_s))
                    continue
                case PreconditionFailed():
                    end, why = refused(slot), "refused, and not there"
                case Unknown(why):
                    end = unanswered(slot)
                case never:
                    assert_never(never)
            if end is not None:
                return end
            doubt = True
            standing = yield from read_slot(slot.number)
            if standing is not None:
                return SlotLanded() if standing.attempt == slot.attempt else SlotTaken(standing)
            yield Sleep(pause_s(tries))  # still pending: the same bytes again, one copy can land
    except Damaged as error:
        return SlotUnknown(error, False)  # another write is there: ours never will be
    except (StoreError, Unanswered) as error:
        return SlotUnknown(error, doubt)
    return SlotUnknown(
        Unanswered(
            slot.key,
            f"could not be written in {TRIES_MAX} tries ({why})",
            "check that the store answers, then append again",
            doubt=True,
        ),
        True,
    )


def condition_of(_key: str) -> Procedure[Condition]:
    """A slot is created, never overwritten."""
    yield from ()
    return IfAbsent()


# What an answer alone says about the claim's end; None: it has to be read back.


def refused(_slot: Slot) -> End | None:
    """A 412 may be a retry of our own success."""
    return None


def unanswered(_slot: Slot) -> End | None:
    return None


def throttled(_slot: Slot) -> End | None:
    return None
