"""The file group of a key by Spark's `xxhash64`, for rows that are in no DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

SEED = 42
"""Spark's own, of `org.apache.spark.sql.catalyst.expressions.XxHash64`."""
KEYS_AT_ONCE = 65_536


def bucket_of(keys: pa.Array, buckets: int) -> pa.Array:
    """The bucket of each key, from 0: `pmod(xxhash64(key), buckets)`. No key may be null."""
    import pyarrow as pa
    from xxhash import xxh64_intdigest

    def bucket(key: bytes) -> int:
        value = xxh64_intdigest(key, SEED)
        return (value - (value >> 63 << 64)) % buckets  # of the signed number, as in Spark

    slices = (keys[at : at + KEYS_AT_ONCE] for at in range(0, len(keys), KEYS_AT_ONCE))
    pieces = [pa.array(map(bucket, each.cast(pa.binary()).to_pylist())) for each in slices]
    return pa.concat_arrays(pieces or [pa.array([], pa.int64())])
