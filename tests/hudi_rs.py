"""A table as hudi-rs reads it: a reader of Hudi's format that shares no code with ours."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from lockkit.clock import Clock
from lockkit.errors import StoreError
from lockkit.runtime import run
from lockkit.stores import open_store
from lockkit.table.errors import TableError
from lockkit.table.format.properties import GROUP, load_config
from lockkit.table.format.timeline import load_timeline
from lockkit.table.occ.fence import COMMIT
from lockkit.table.occ.group.fence import read_group_fence

PUBLISHED_S = 3.0
"""For so long it waits for what is acknowledged to be published; its writer may be dead."""


def read_by_hudi_rs(
    where: Path | str, endpoint: str = "", *, empty: pa.Schema | None = None
) -> pa.Table:
    """The rows of a table, in a folder or on the embedded server. `empty`: the columns of none."""
    hudi = pytest.importorskip("hudi", reason="hudi-rs reads our tables: pip install hudi==0.5.0")
    with suppress(TableError, StoreError):  # a table that lockkit does not write
        _wait_until_published(str(where) if "://" in str(where) else f"file://{where}", endpoint)
    options = {"aws_endpoint": endpoint, "aws_allow_http": "true", "aws_region": "us-east-1",
               "aws_access_key_id": "lockkit", "aws_secret_access_key": "lockkit"}  # fmt: skip
    table = hudi.HudiTable(str(where).removeprefix("file://"), options if endpoint else None)
    batches = [pa.record_batch(each) for each in table.read()]
    return pa.Table.from_batches(batches, None if batches else empty)


def _wait_until_published(url: str, endpoint: str) -> None:
    """With group commit a commit is acknowledged a moment before Hudi's readers see it."""
    store, ends_s = open_store(url, endpoint=endpoint or None), time.monotonic() + PUBLISHED_S
    config, _ = run(load_config(), store, Clock())
    while config.commit == GROUP and time.monotonic() < ends_s:
        fence, _ = run(read_group_fence(), store, Clock())
        shown = run(load_timeline(config.names), store, Clock()).completed
        if all(each.instant in shown for each in fence.window if each.kind == COMMIT):
            return
        time.sleep(0.02)
