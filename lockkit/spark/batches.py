"""How Spark cuts rows into the batches that it hands to Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
NOT_BY_BYTES = str(2**31 - 1)
LARGE = ("array", "binary", "map", "struct", "variant")
"""Column types of which the 10,000 values of a batch may well not fit into memory."""


@contextmanager
def by_rows(frame: DataFrame) -> Iterator[None]:
    """What begins in here counts its batches' rows only, as every Spark before 4.1 did.

    Since then Spark sums up its buffers after each row to see whether they have grown too large,
    which takes it longer than all else that it does with the row. That stays where a column's
    type may be large, or where the session says how large a batch may be.
    """
    conf = frame.sparkSession.conf
    if conf.get(BATCH_BYTES, None) is not None or any(
        kind.startswith(LARGE) for _, kind in frame.dtypes
    ):
        yield
        return
    conf.set(BATCH_BYTES, NOT_BY_BYTES)
    try:
        yield
    finally:
        conf.unset(BATCH_BYTES)
