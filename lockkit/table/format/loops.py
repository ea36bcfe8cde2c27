"""Loops over records and keys in machine code, by numba (the extra `numba`); see `compiled`.

Threads run them side by side: they do not hold Python's lock. numba checks no bounds, so each place
is compared with the end of its record before it is read, and each length before it is used.
Texts are read eight bytes at a time: from `words_of`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import boolean, config, int32, int64, njit, types, uint8, uint64

if config.DISABLE_JIT:
    raise ImportError("numba compiles nothing")

TEXT, DOUBLE, FLOAT, LONG, INT, BOOLEAN = range(6)
FIT, NEGATIVE, BRANCH, ENDS, WIDE, RANGE, TRUTH, LENGTHS = range(-1, -9, -1)
_BYTES = types.Array(uint8, 1, "C", readonly=True)
_WORDS = types.Array(uint64, 1, "A", readonly=True, aligned=False)
_SMALL = types.Array(int32, 1, "C", readonly=True)
_ROOM = types.Array(uint64, 1, "A", aligned=False)
_HIGH, _ALL = uint64(0x8080808080808080), uint64(0xFFFFFFFFFFFFFFFF)
_TWO, _ONE = uint64(0x0000FFFF0000FFFF), uint64(0x00FF00FF00FF00FF)
WORD = 8


def words_of(data: Any) -> Any:
    """The word of eight bytes that begins at each byte of these."""
    return np.ndarray(max(len(data) - WORD + 1, 0), "<u8", data, 0, (1,))


def _compiled(*signature: Any) -> Callable[[Any], Any]:
    """For these types alone, at once; kept on disk if numba finds a place for it."""

    def compiled(loop: Any) -> Any:
        result, *given = signature
        try:
            return njit(result(*given), nogil=True, cache=True)(loop)
        except Exception:  # noqa: BLE001  # no place, a full disk, or a file that is cut short
            return njit(result(*given), nogil=True)(loop)

    return compiled


# --- Avro -----------------------------------------------------------------------------------------


@_compiled(types.UniTuple(int64, 2), _BYTES, int64, int64)
def _number(data: Any, at: Any, end: Any) -> Any:
    """A number of a variable length that ends before `end`, and where it ends, or why not."""
    found, shift = uint64(0), uint64(0)
    while at < end:
        byte = uint64(data[at])
        at += 1
        if shift == uint64(63) and byte > uint64(1):
            return int64(0), int64(WIDE)
        found |= (byte & uint64(0x7F)) << shift
        if byte < uint64(0x80):
            return int64(found >> uint64(1)) ^ -int64(found & uint64(1)), int64(at)
        shift += uint64(7)
    return int64(0), int64(LENGTHS)


@_compiled(
    int64, _BYTES, _WORDS, int64, uint8[::1], types.int8[::1], int64[::1], int32[:, ::1],
    int32[:, ::1], int64[:, ::1], uint8[:, ::1],
)  # fmt: skip
def decode(
    data: Any, words: Any, at: Any, kinds: Any, nulls: Any, slots: Any, begins: Any, sizes: Any,
    values: Any, valid: Any,
) -> Any:  # fmt: skip
    """Decode a record for each column of `valid`, from `at` on; return where they end, or why not.

    Field `f` has the row `slots[f]` of `valid`, if it is not negative. Those of texts come first:
    they have the same rows of `begins` and of `sizes`, and the others the rows of `values`. `words`
    are those of `data`.
    """
    texts = len(begins)
    for row in range(valid.shape[1]):
        if at + 4 > len(data):
            return int64(FIT)
        length = int64(0)
        for n in range(4):
            length = length << 8 | int64(data[uint64(at + n)])
        at += 4
        end = at + length
        if length >= 1 << 31:
            return int64(NEGATIVE)
        if end > len(data):
            return int64(FIT)
        for field in range(len(kinds)):
            kind, null, slot = kinds[field], nulls[field], slots[field]
            value, size, there = int64(0), int64(0), uint8(1)
            if null >= 0:
                if at >= end:
                    return int64(LENGTHS)
                branch = data[uint64(at)]
                at += 1
                if branch != 2 - 2 * null:
                    if branch != 2 * null:
                        return int64(BRANCH)
                    there = uint8(0)
            if there:
                if end - at < (8 if kind == DOUBLE else 4 if kind == FLOAT else 1):
                    return int64(LENGTHS)
                byte = data[uint64(at)]
                if kind == DOUBLE:
                    value = int64(words[uint64(at)])
                    at += 8
                elif kind == FLOAT:
                    for n in range(4):
                        value |= int64(data[uint64(at + n)]) << (8 * n)
                    at += 4
                elif kind == BOOLEAN:
                    if byte > 1:
                        return int64(TRUTH)
                    value = int64(byte)
                    at += 1
                else:
                    if byte < 0x80:
                        value = int64(byte >> 1) ^ -int64(byte & 1)
                        at += 1
                    else:
                        value, at = _number(data, at, end)
                        if at < 0:
                            return at
                    if kind == TEXT:
                        size, value = value, at
                        if size < 0 or size > end - at:
                            return int64(ENDS)
                        at += size
                    elif kind == INT and not -(1 << 31) <= value < 1 << 31:
                        return int64(RANGE)
            if slot >= 0:
                valid[slot, row] = there
                if slot < texts:
                    begins[slot, row], sizes[slot, row] = value, size
                else:
                    values[slot - texts, row] = value
        if at != end:
            return int64(LENGTHS)
    return at


@_compiled(boolean, _BYTES, _WORDS, int32[::1], int32[::1], int32[::1], _ROOM)
def gather(data: Any, words: Any, begins: Any, sizes: Any, offsets: Any, out: Any) -> Any:
    """Put the texts at these places side by side; return whether they have more than ASCII.

    `words` are those of `data`, and `out` those of a place for the texts and `WORD` bytes more.
    """
    end, bits = int64(0), uint64(0)
    for row in range(len(begins)):
        size, offsets[row] = int64(sizes[row]), end
        for done in range(0, size, WORD):
            begin, left, word = begins[row] + done, size - done, uint64(0)
            if begin < len(words):
                word = words[begin]
            else:  # at the end of the data
                for n in range(left):
                    word |= uint64(data[begin + n]) << uint64(8 * n)
            out[end + done] = word
            bits |= word & (_ALL >> uint64(8 * max(WORD - left, 0)))
        end += size
    offsets[len(begins)] = end
    return (bits & _HIGH) != uint64(0)


# --- keys -----------------------------------------------------------------------------------------


@_compiled(int64, _WORDS, _SMALL, uint64[::1])
def last_words(words: Any, ends: Any, found: Any) -> Any:
    """The last eight bytes of each text as a number; return how often one is less than before.

    -1 if not all texts have one length, of eight bytes at least, or if they differ before.
    """
    first = int64(ends[0])
    head, falls, before = int64(ends[1]) - first - WORD, int64(0), uint64(0)
    if head < 0:
        return int64(-1)
    for row in range(len(found)):
        begin = int64(ends[row])
        if int64(ends[row + 1]) - begin != head + WORD:
            return int64(-1)
        for n in range(0, head, WORD):
            other = words[begin + n] ^ words[first + n]
            if other & (_ALL >> uint64(8 * max(WORD - head + n, 0))):
                return int64(-1)
        word = words[begin + head]
        word = (word << uint64(32)) | (word >> uint64(32))
        word = ((word & _TWO) << uint64(16)) | ((word >> uint64(16)) & _TWO)
        word = ((word & _ONE) << uint64(8)) | ((word >> uint64(8)) & _ONE)
        falls += int64(word < before)
        found[row], before = word, word
    return falls


@_compiled(boolean, uint64[::1], int64[::1], uint64[::1], int32[::1])
def merge(ours: Any, numbers: Any, others: Any, places: Any) -> Any:
    """Of each of `others`, the number of the one of `ours` that is equal, or -1.

    `ours` rise; return False if `others` do not, or if one of them comes twice.
    """
    falls, row, at = int64(0), int64(0), int64(0)
    for n in range(1, len(others)):
        falls += int64(others[n] <= others[n - 1])
    while row < len(others) and at < len(ours):
        word, own = others[row], ours[at]
        places[row] = numbers[at] if word == own else -1
        row += int64(word <= own)
        at += int64(own <= word)
    places[row:] = -1
    return falls == 0


@_compiled(boolean, _BYTES, int64, _SMALL, boolean[::1])
def mark(valid: Any, first: Any, places: Any, seen: Any) -> Any:
    """Set `seen` at each place whose bit of `valid`, from the `first` on, is set.

    Return whether one was set before; then the others are set, too.
    """
    twice = False
    for row in range(len(places)):
        bit = uint64(first + row)
        there = bool(valid[bit >> uint64(3)] >> uint8(bit & uint64(7)) & uint8(1))
        place = places[row] if there else int32(0)
        twice |= there & seen[place]
        seen[place] |= there
    return twice
