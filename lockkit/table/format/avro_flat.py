"""The rows of an Avro block in columns, by numpy, if no field is nested: in loops over all rows.

A record's length stands before it. A commit's records begin with the same bytes, its instant, so
they are found at once, and each must begin where the one before it ends. polars is not asked about
a damaged block: it prints a panic before Python hears of it. In a process that decodes many rows, a
loop in machine code does the work, if numba is installed.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lockkit.table.format.compiled import loops
from lockkit.table.format.log_blocks import SCHEMA, Block

FIRST = 8
"""A block begins with its version and the number of records."""
ROWS_AT_ONCE = 131_072
TEXTS = ("string", "bytes")
WIDTHS = {"float": 4, "double": 8}
NUMBER_BYTES_MAX = 10
DAMAGE = (
    "says that it has {} records, which do not fit into it",
    "says that a record has a negative length", "has a value of no type of its column",
    "has a text that ends behind it", "has a number of more than 64 bits",
    "has a number that its column cannot have", "has a value that is not true or false",
    "its records have other lengths than it says",
)  # fmt: skip
"""What `loops.decode` finds wrong."""
TIMES = {"timestamp-micros": "UTC", "local-timestamp-micros": None}


class Place(NamedTuple):
    """Where each record is read on: at `at`, and `plus` bytes that are the same for all."""

    at: Any
    plus: int


def by_numpy(block: Block, names: Sequence[str]) -> pa.Table | None:
    """The named columns that the block has; None if another decoder is to do it.

    Raises a `LookupError` or `ValueError` for a block that cannot be read.
    """
    fields = json.loads(block.header[SCHEMA])["fields"]
    kinds = [each for field in fields if (each := _kind(field["type"])) is not None]
    data = np.frombuffer(block.content, np.uint8)
    count = struct.unpack_from(">i", block.content, 4)[0]
    empty = not count and len(data) == FIRST
    if len(kinds) < len(fields) or empty or len(data) >= 1 << 31:
        return None
    if not 0 < count <= (len(data) - FIRST) // 4:
        raise ValueError(f"says that it has {count} records, which do not fit into it")
    if (compiled := loops(count)) is not None:
        return pa.concat_tables(_by_loops(compiled, data, count, fields, kinds, names))
    begins = _alike(block.content, count)
    if begins is None:
        begins = _one_by_one(block.content, count)
    ends, parts = np.append(begins[1:], len(data)), []
    for some in (slice(first, first + ROWS_AT_ONCE) for first in range(0, count, ROWS_AT_ONCE)):
        found, place = {}, Place(begins[some], 4)
        for field, (kind, null, typed) in zip(fields, kinds, strict=True):
            values, valid, place = _values(data, place, kind, null)
            found[field["name"]] = (values, valid, typed)
        if (place.at + place.plus != ends[some]).any():
            raise ValueError("its records have other lengths than it says")
        parts.append({name: _column(data, *found[name]) for name in names if name in found})
    return pa.concat_tables(map(pa.table, parts))


def _kind(kind: Any) -> tuple[str, int | None, Any] | None:
    """A plain type, which branch of its union is null, and its type in Arrow; None: another one."""
    null = None
    if isinstance(kind, list):
        if len(kind) != 2 or "null" not in kind:
            return None
        null = kind.index("null")
        kind = kind[1 - null]
    logical = ""
    if isinstance(kind, dict):
        kind, logical = kind["type"], kind.get("logicalType", "")
    if (kind, logical) == ("int", "date"):
        return "int", null, pa.date32()
    if kind == "long" and logical in TIMES:
        return "long", null, pa.timestamp("us", TIMES[logical])
    known = {
        "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
        "double": pa.float64(), "string": pa.string(), "bytes": pa.binary(),
    }  # fmt: skip
    return (kind, null, known[kind]) if not logical and str(kind) in known else None


def _alike(content: Any, count: int) -> Any:
    """Where the length of each record stands; None if not all begin as the first one does.

    Bytes within a record may be like these too: no other record begins where that one would end.
    """
    size, first = len(content), FIRST + 4
    if size < first + 4:
        return None
    words = [np.frombuffer(content, "<u4", (size - at) // 4, at) for at in range(first, first + 4)]
    found = [4 * np.flatnonzero(each == words[0][0]) + n for n, each in enumerate(words)]
    begins = np.sort(np.concatenate(found), kind="stable") + FIRST
    lengths = np.ndarray(size - 3, ">u4", content, 0, (1,))  # one from each byte on
    ends = begins + 4 + lengths[begins]
    if len(begins) > count:
        some = np.isin(ends, np.append(begins, size))
        begins, ends = begins[some], ends[some]
    right = len(begins) == count and (begins == np.append(FIRST, ends[:-1])).all()
    return begins if right and ends[-1] == size else None


def _one_by_one(content: Any, count: int) -> Any:
    at, found = FIRST, list[int]()
    while len(found) < count and at <= len(content) - 4:
        (length,) = struct.unpack_from(">i", content, at)
        if length < 0:
            raise ValueError("says that a record has a negative length")
        found.append(at)
        at += 4 + length
    if len(found) != count or at != len(content):
        raise ValueError(f"says that it has {count} records, which do not fit into it")
    return np.array(found)


def _values(data: Any, place: Place, kind: str, null: int | None) -> tuple[Any, Any, Place]:
    """A field's values, or the places of its texts; which there are, or None; where they end."""
    if null is None:
        values, place = _plain(data, place, kind)
        return values, None, place
    branch = _bytes(data, place)
    place = Place(place.at, place.plus + 1)
    valid = branch == 2 - 2 * null
    if valid.all():
        values, place = _plain(data, place, kind)
        return values, None, place
    if (branch & 0xFD).any():
        raise ValueError("has a value of no type of its column")
    there, at = np.flatnonzero(valid), place.at + place.plus
    some, (ends, plus) = _plain(data, Place(at[there], 0), kind)
    if kind in TEXTS:
        begins = at.copy()
        begins[there] = some[0].at + some[0].plus
        at[there] = ends + plus
        return (Place(begins, 0), Place(at, 0)), valid, Place(at, 0)
    values = np.zeros(len(at), some.dtype)
    values[there], at[there] = some, ends + plus
    return values, valid, Place(at, 0)


def _bytes(data: Any, place: Place) -> Any:
    return data[place.plus :][place.at]


def _plain(data: Any, place: Place, kind: str) -> tuple[Any, Place]:
    at, plus = place
    if kind in WIDTHS:
        width = WIDTHS[kind]
        words = np.ndarray(len(data) - plus - width + 1, f"<f{width}", data, plus, (1,))
        return words[at], Place(at, plus + width)
    if kind == "boolean":
        byte = _bytes(data, place)
        if (byte > 1).any():
            raise ValueError("has a value that is not true or false")
        return byte == 1, Place(at, plus + 1)
    number, (at, plus) = _numbers(data, place)
    least, most = (int(number.min()), int(number.max())) if len(at) else (0, 0)
    if kind in TEXTS:
        if not 0 <= least <= most <= len(data):
            raise ValueError("has a text that ends behind it")
        alike = len(number) == 1  # most texts are as long as the others
        end = Place(at, plus + most) if alike else Place(at + number, plus)
        return (Place(at, plus), end), end
    typed = np.int32 if kind == "int" else np.int64
    if not np.iinfo(typed).min <= least <= most <= np.iinfo(typed).max:
        raise ValueError("has a number that its column cannot have")
    return np.full(len(at), number, typed), Place(at, plus)


def _numbers(data: Any, place: Place) -> tuple[Any, Place]:
    """Numbers of a variable length: the lowest seven bits first, and the sign in the lowest.

    If the same one stands at each place, it is given once.
    """
    (at, plus), found, shift = place, np.zeros(1, np.uint64), 0
    while True:  # as long as no number ends, their places need not be told apart
        byte = _bytes(data, Place(at, plus))
        if len(found) == 1 and len(byte) and (byte == byte[0]).all():
            byte = byte[:1]
        found = found | _seven(byte, shift)
        plus, shift, more = plus + 1, shift + 7, byte > 0x7F
        if not (more.any() and more.all()):
            break
    if more.any():
        at, plus = at + (plus - 1), 1
    while more.any():
        at = at + more
        byte = data[at] * more
        found |= _seven(byte, shift)
        shift, more = shift + 7, byte > 0x7F
    signed = (found >> np.uint64(1)).view(np.int64) ^ -(found & np.uint64(1)).view(np.int64)
    return signed, Place(at, plus)


def _seven(byte: Any, shift: int) -> Any:
    if shift == 7 * (NUMBER_BYTES_MAX - 1) and (byte > 1).any():
        raise ValueError("has a number of more than 64 bits")
    return (byte & 0x7F).astype(np.uint64) << np.uint64(shift)


def _column(data: Any, values: Any, valid: Any, typed: pa.DataType) -> pa.Array:
    if not isinstance(values, tuple):
        return pa.array(values, mask=None if valid is None else ~valid).cast(typed)
    texts = _texts(data, *values).view(typed)
    if (np.frombuffer(texts.buffers()[2], np.uint8) > 0x7F).any():
        texts.validate(full=True)
    return texts if valid is None else pc.if_else(pa.array(valid), texts, pa.scalar(None, typed))


def _texts(data: Any, begin: Place, end: Place) -> pa.Array:
    """Texts of one length are items of a size; others are every second one of the strings into
    which they cut the block."""
    count, size = len(begin.at), end.plus - begin.plus
    if end.at is begin.at:
        offsets, text = np.arange(count + 1, dtype=np.int32) * np.int32(size), data[:0]
        if size:
            items = np.ndarray(len(data) - end.plus + 1, f"V{size}", data, begin.plus, (1,))
            text = items[begin.at].view(np.uint8)
        return pa.Array.from_buffers(
            pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text)]
        )
    cuts = np.empty(2 * count, np.int32)
    cuts[::2], cuts[1::2] = begin.at + begin.plus, end.at + end.plus
    every = pa.Array.from_buffers(
        pa.binary(), len(cuts) - 1, [None, pa.py_buffer(cuts), pa.py_buffer(data)]
    )
    return every.take(pa.array(np.arange(0, len(cuts), 2)))


# --- in machine code ------------------------------------------------------------------------------


def _by_loops(
    compiled: Any, data: Any, count: int, fields: Sequence[Any], kinds: Sequence[Any],
    names: Sequence[str],
) -> Iterator[pa.Table]:  # fmt: skip
    number = {field["name"]: n for n, field in enumerate(fields)}
    wanted = [name for name in dict.fromkeys(names) if name in number]
    wanted.sort(key=lambda name: kinds[number[name]][0] not in TEXTS)
    texts = sum(kinds[number[name]][0] in TEXTS for name in wanted)
    slots = np.full(len(fields), -1)
    slots[[number[name] for name in wanted]] = np.arange(len(wanted))
    codes = [compiled.TEXT if kind in TEXTS else getattr(compiled, kind.upper())
             for kind, _, _ in kinds]  # fmt: skip
    nulls = [-1 if null is None else null for _, null, _ in kinds]
    described = np.array(codes, np.uint8), np.array(nulls, np.int8), slots
    at, words = FIRST, compiled.words_of(data)
    for first in range(0, count, ROWS_AT_ONCE):
        some, found = min(ROWS_AT_ONCE, count - first), dict[str, pa.Array]()
        places = [np.empty((texts, some), np.int32) for _ in range(2)]
        values = np.empty((len(wanted) - texts, some), np.int64)
        valid = np.empty((len(wanted), some), np.uint8)
        at = compiled.decode(data, words, at, *described, *places, values, valid)
        if at < 0:
            raise ValueError(DAMAGE[-at - 1].format(count))
        for n, name in enumerate(wanted):
            kind, _, typed = kinds[number[name]]
            bits = None
            if not valid[n].all():
                bits = pa.py_buffer(np.packbits(valid[n], bitorder="little"))
            if n < texts:
                text = _texts_by_loops(compiled, data, words, *(each[n] for each in places))
                found[name] = pa.Array.from_buffers(typed, some, [bits, *text[0]])
                if text[1]:  # more than ASCII
                    found[name].validate(full=True)
            else:
                numbers = _narrowed(values[n - texts], kind, typed)
                found[name] = pa.Array.from_buffers(typed, some, [bits, pa.py_buffer(numbers)])
        yield pa.table({name: found[name] for name in names if name in found})
    if at != len(data):
        raise ValueError(DAMAGE[0].format(count))


def _texts_by_loops(
    compiled: Any, data: Any, words: Any, begins: Any, sizes: Any
) -> tuple[list[pa.Buffer], bool]:
    """The buffers of texts, and whether they have more than ASCII."""
    offsets = np.empty(len(begins) + 1, np.int32)
    text = np.empty(int(sizes.sum()) + compiled.WORD, np.uint8)
    more = compiled.gather(data, words, begins, sizes, offsets, compiled.words_of(text))
    return [pa.py_buffer(offsets), pa.py_buffer(text)], more


def _narrowed(values: Any, kind: str, typed: pa.DataType) -> Any:
    if kind == "boolean":
        return np.packbits(values.astype(np.bool_), bitorder="little")
    return values.astype(np.int32) if typed.bit_width == 32 else values
