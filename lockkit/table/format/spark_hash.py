"""The file group of a key by Spark's `xxhash64`, for rows that are in no DataFrame."""

from __future__ import annotations

from itertools import repeat

import pyarrow as pa
import pyarrow.compute as pc

SEED = 42
"""Spark's own, of `org.apache.spark.sql.catalyst.expressions.XxHash64`."""
KEYS_AT_ONCE = 65_536


def bucket_of(keys: pa.Array, buckets: int) -> pa.Array:
    """The bucket of each key, from 0: `pmod(xxhash64(key), buckets)`. No key may be null."""
    from xxhash import xxh64_intdigest

    hashes = []
    for at in range(0, len(keys), KEYS_AT_ONCE):
        some = keys[at : at + KEYS_AT_ONCE].cast(pa.binary()).to_pylist()
        hashes.append(pa.array(map(xxh64_intdigest, some, repeat(SEED)), pa.uint64()))
    signed = pa.chunked_array(hashes, pa.uint64()).combine_chunks().view(pa.int64())  # as in Spark
    rest = pc.subtract(signed, pc.multiply(pc.divide(signed, buckets), buckets))
    return pc.if_else(pc.less(rest, 0), pc.add(rest, buckets), rest)
