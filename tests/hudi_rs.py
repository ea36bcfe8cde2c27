"""A table as hudi-rs reads it: a reader of Hudi's format that shares no code with ours."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest


def read_by_hudi_rs(
    where: Path | str, endpoint: str = "", *, empty: pa.Schema | None = None
) -> pa.Table:
    """The rows of a table, in a folder or on the embedded server. `empty`: the columns of none."""
    hudi = pytest.importorskip("hudi", reason="hudi-rs reads our tables: pip install hudi==0.5.0")
    options = {"aws_endpoint": endpoint, "aws_allow_http": "true", "aws_region": "us-east-1",
               "aws_access_key_id": "lockkit", "aws_secret_access_key": "lockkit"}  # fmt: skip
    table = hudi.HudiTable(str(where).removeprefix("file://"), options if endpoint else None)
    batches = [pa.record_batch(each) for each in table.read()]
    return pa.Table.from_batches(batches, None if batches else empty)
