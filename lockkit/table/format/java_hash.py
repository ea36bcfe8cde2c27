"""The bucket of a record key as Hudi's simple bucket index finds it (`BucketIdentifier`).

Hudi hashes the list of the key's values, as Java hashes a list of strings. A key with a comma and a
colon is read as `field:value,field:value`, whatever the key generator, as in Hudi 1.2
(`KeyGenUtils.extractRecordKeysByFields`). The index is made of all fields of the record key.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_INT = 0x7FFFFFFF
_PLACEHOLDERS = {"__null__": None, "__empty__": ""}


def bucket_of(keys: pa.Array, buckets: int, fields: Collection[str]) -> pa.Array:
    """The bucket of each record key, from 0; `fields` are those of the key. No key may be null."""
    keys = pc.cast(keys, pa.string())
    lengths = pc.binary_length(keys)
    several = pc.and_(pc.match_substring(keys, ","), pc.match_substring(keys, ":"))
    ascii_alone = pc.equal(lengths, pc.utf8_length(keys))
    plain = pc.and_not(ascii_alone, several)
    others = pc.indices_nonzero(pc.invert(plain))
    slow = [key_hash(each, fields) for each in keys.take(others).to_pylist()]
    places, hashes = [others], [pa.array(slow, pa.uint32())]
    for length in pc.unique(lengths.filter(plain)).to_pylist():
        here = pc.indices_nonzero(pc.and_(plain, pc.equal(lengths, length)))
        places.append(here)
        hashes.append(_of_length(pc.cast(keys.take(here), pa.binary()), length))
    back = pc.sort_indices(pa.concat_arrays(places))
    positive = pc.bit_wise_and(pa.concat_arrays(hashes).take(back), pa.scalar(_INT, pa.uint32()))
    whole = positive.cast(pa.int64())
    return pc.subtract(whole, pc.multiply(pc.divide(whole, buckets), buckets))


def key_hash(key: str, fields: Collection[str]) -> int:
    """Java's hash of the list of the key's values, modulo 2**32."""
    found = 1
    for each in key_values(key, fields):
        found = 31 * found + (0 if each is None else _string_hash(each))
    return found & 0xFFFFFFFF


def key_values(key: str, fields: Collection[str]) -> list[str | None]:
    """The values of `fields` in a record key; the key itself, if it names none of them.

    A value ends at the last comma before the next colon that has a comma before it. (Of some keys
    that name no field, Hudi 1.2 looks for that colon for ever; they count as one value here.)
    """
    found: list[str | None] = []
    at = 0 if "," in key and ":" in key else len(key)
    while at < len(key):
        colon = key.find(":", at)
        later, comma = key.find(":", colon + 1), -1
        while colon >= 0 and later > 0 and comma < colon:
            comma = key.rfind(",", 0, later)
            later = key.find(":", later + 1)
        ends = comma if comma > colon else len(key)
        if key[at:colon] in fields:
            value = key[colon + 1 : ends]
            found.append(_PLACEHOLDERS.get(value, value))
        at = ends + 1 if colon >= 0 else len(key)
    return found or [key]


def _string_hash(text: str) -> int:
    """Java's, over UTF-16."""
    units = text.encode("utf-16-be", "surrogatepass")
    found = 0
    for at in range(0, len(units), 2):
        found = (31 * found + (units[at] << 8) + units[at + 1]) & 0xFFFFFFFF
    return found


def _of_length(keys: pa.Array, length: int) -> pa.Array:
    """The hashes of ASCII strings of one length, each the only value of its key."""
    by, value = pa.scalar(31, pa.uint32()), pa.repeat(pa.scalar(0, pa.uint32()), len(keys))
    for at in range(length):
        byte: Any = pc.binary_slice(keys, at, at + 1)
        codes = pa.Array.from_buffers(pa.uint8(), len(keys), [None, byte.buffers()[2]])
        value = pc.add(pc.multiply(value, by), codes.cast(pa.uint32()))
    return pc.add(value, by)
