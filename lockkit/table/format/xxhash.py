"""Spark's `xxhash64` of strings, by Arrow: where rows are that no DataFrame has.

XXH64 (https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md) of the UTF-8 bytes with Spark's seed,
42, over whole columns: strings of one length at a time, whose bytes then are columns of words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

SEED = 42
_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)  # fmt: skip
_MASK = (1 << 64) - 1


def bucket_of(keys: pa.Array, buckets: int) -> pa.Array:
    """The bucket of each key, from 0: `pmod(xxhash64(key), buckets)`. No key may be null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = xxhash64(keys)
    count = pa.scalar(buckets, pa.int64())
    rest = pc.subtract(whole, pc.multiply(pc.divide(whole, count), count))
    return pc.if_else(pc.less(rest, 0), pc.add(rest, count), rest)


def xxhash64(keys: pa.Array) -> pa.Array:
    """The hash of each string, signed as Spark has it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    keys = pc.cast(keys, pa.binary())
    lengths = pc.binary_length(keys)
    places, hashes = [pa.array([], pa.uint64())], [pa.array([], pa.int64())]
    for length in pc.unique(lengths).to_pylist():
        here = pc.indices_nonzero(pc.equal(lengths, length))
        hashed = _of_length(keys.take(here), length)
        places.append(here)
        hashes.append(hashed.view(pa.int64()))
    back = pc.sort_indices(pa.concat_arrays(places))
    return pa.concat_arrays(hashes).take(back)


def _of_length(keys: pa.Array, length: int) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    at, end = 0, length
    if length >= 32:
        lanes: list[Any] = [_word(n) for n in (SEED + _P1 + _P2, SEED + _P2, SEED, SEED - _P1)]
        for at in range(0, length - 31, 32):
            for lane in range(4):
                word = _words(keys, at + 8 * lane, pa.uint64())
                lanes[lane] = _round(pc.add(lanes[lane], _times(word, _P2)))
        at += 32
        turned = [_turn(each, by) for each, by in zip(lanes, (1, 7, 12, 18), strict=True)]
        value = pc.add(pc.add(turned[0], turned[1]), pc.add(turned[2], turned[3]))
        for each in lanes:
            value = pc.bit_wise_xor(value, _round(_times(each, _P2)))
            value = pc.add(_times(value, _P1), _word(_P4))
    else:
        value = pa.repeat(_word(SEED + _P5), len(keys))
    value = pc.add(value, _word(length))
    while at + 8 <= end:
        value = pc.bit_wise_xor(value, _round(_times(_words(keys, at, pa.uint64()), _P2)))
        value = pc.add(_times(_turn(value, 27), _P1), _word(_P4))
        at += 8
    if at + 4 <= end:
        value = pc.bit_wise_xor(value, _times(_words(keys, at, pa.uint32()), _P1))
        value = pc.add(_times(_turn(value, 23), _P2), _word(_P3))
        at += 4
    for byte in range(at, end):
        value = pc.bit_wise_xor(value, _times(_words(keys, byte, pa.uint8()), _P5))
        value = _times(_turn(value, 11), _P1)
    return _avalanche(value)


def _avalanche(value: Any) -> Any:
    value = _times(_fold(value, 33), _P2)
    value = _times(_fold(value, 29), _P3)
    return _fold(value, 32)


def _fold(value: Any, by: int) -> Any:
    import pyarrow.compute as pc

    return pc.bit_wise_xor(value, pc.shift_right(value, _word(by)))


def _round(value: Any) -> Any:
    return _times(_turn(value, 31), _P1)


def _turn(value: Any, by: int) -> Any:
    import pyarrow.compute as pc

    left, right = pc.shift_left(value, _word(by)), pc.shift_right(value, _word(64 - by))
    return pc.bit_wise_or(left, right)


def _times(value: Any, by: int) -> Any:
    """Modulo 2**64: Arrow's plain arithmetic wraps around."""
    import pyarrow.compute as pc

    return pc.multiply(value, _word(by))


def _word(number: int) -> pa.Scalar:
    import pyarrow as pa

    return pa.scalar(number & _MASK, pa.uint64())


def _words(keys: pa.Array, at: int, kind: Any) -> pa.Array:
    """The bytes from `at` on of strings of one length, as little-endian numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    sliced = pc.binary_slice(keys, at, at + kind.bit_width // 8)
    return pa.Array.from_buffers(kind, len(keys), [None, sliced.buffers()[2]]).cast(pa.uint64())
