"""Loops over records in machine code, by numba (the extra `numba`); see `compiled`.

Threads run them side by side: they do not hold Python's lock. numba checks no bounds, so each place
is compared with the end of its record before it is read, and each length before it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import config, int64, njit, types, uint8, uint64

if config.DISABLE_JIT:
    raise ImportError("numba compiles nothing")

TEXT, DOUBLE, FLOAT, LONG, INT, BOOLEAN = range(6)
FIT, NEGATIVE, BRANCH, ENDS, WIDE, RANGE, TRUTH, LENGTHS = range(-1, -9, -1)
_BYTES = types.Array(uint8, 1, "C", readonly=True)


def _compiled(*signature: Any) -> Callable[[Any], Any]:
    """For these types alone, at once; kept on disk if numba finds a place for it."""

    def compiled(loop: Any) -> Any:
        result, *given = signature
        try:
            return njit(result(*given), nogil=True, cache=True)(loop)
        except RuntimeError:  # a package in a ZIP file, or a disk that cannot be written
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
    int64, _BYTES, int64, uint8[::1], types.int8[::1], int64[::1], int64[:, ::1],
    types.int32[:, ::1], uint8[:, ::1],
)  # fmt: skip
def decode(
    data: Any, at: Any, kinds: Any, nulls: Any, slots: Any, words: Any, sizes: Any, valid: Any
) -> Any:
    """Decode a record for each column of `words`, from `at` on; return where they end, or why not.

    Field `f` is put into row `slots[f]`, if it is not negative: a value, or where a text is, and
    its size.
    """
    for row in range(words.shape[1]):
        if at + 4 > len(data):
            return int64(FIT)
        length = (
            int64(data[at]) << 24 | int64(data[at + 1]) << 16
            | int64(data[at + 2]) << 8 | int64(data[at + 3])
        )
        at += 4
        end = at + length
        if length >= 1 << 31:
            return int64(NEGATIVE)
        if end > len(data):
            return int64(FIT)
        for field in range(len(kinds)):
            kind, slot, value, size = kinds[field], slots[field], int64(0), int64(0)
            there = uint8(1)
            if nulls[field] >= 0:
                if at >= end:
                    return int64(LENGTHS)
                branch = int64(data[at])
                at += 1
                if branch > 2 or branch & 1:
                    return int64(BRANCH)
                there = uint8(branch != 2 * nulls[field])
            if there:
                if kind == TEXT:
                    if at < end and data[at] < 0x80 and not data[at] & 1:
                        size = int64(data[at] >> 1)
                        at += 1
                    else:
                        size, at = _number(data, at, end)
                        if at < 0:
                            return at
                    if size < 0 or size > end - at:
                        return int64(ENDS)
                    value = at
                    at += size
                elif kind in (DOUBLE, FLOAT):
                    width = 8 if kind == DOUBLE else 4
                    if end - at < width:
                        return int64(LENGTHS)
                    for n in range(width):
                        value |= int64(data[at + n]) << (8 * n)
                    at += width
                elif kind == BOOLEAN:
                    if at >= end:
                        return int64(LENGTHS)
                    value = int64(data[at])
                    at += 1
                    if value > 1:
                        return int64(TRUTH)
                else:
                    value, at = _number(data, at, end)
                    if at < 0:
                        return at
                    if kind == INT and not -(1 << 31) <= value < 1 << 31:
                        return int64(RANGE)
            if slot >= 0:
                words[slot, row], sizes[slot, row], valid[slot, row] = value, size, there
        if at != end:
            return int64(LENGTHS)
    return at


@_compiled(uint8, _BYTES, int64[::1], types.int32[::1], types.int32[::1], uint8[::1])
def gather(data: Any, at: Any, sizes: Any, offsets: Any, out: Any) -> Any:
    """Put the texts at these places side by side; return which bits any of their bytes has."""
    end, bits = int64(0), uint8(0)
    for row in range(len(at)):
        begin = at[row]
        offsets[row] = end
        for n in range(sizes[row]):
            byte = data[begin + n]
            bits |= byte
            out[end + n] = byte
        end += sizes[row]
    offsets[len(at)] = end
    return bits
