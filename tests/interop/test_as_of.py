"""Snapshots of the past around a compaction: lockkit, Apache Hudi on Spark and hudi-rs agree."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from hudi_world import Hudi
from ours import SPARK_SCHEMA, order
from test_hudi import OPTIONS

from lockkit.lab.server import Emulator
from lockkit.stores import open_store
from lockkit.table import Table, read_table
from lockkit.table.format.timeline import instant_ms, instant_of
from lockkit.table.read.listed import LocalInstants

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]
BUCKETS = itertools.count()
MERGED = {
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.table.type": "MERGE_ON_READ",
    "hoodie.compact.inline": "false",
    "hoodie.bucket.index.num.buckets": "2",
}
COMPACT = {"hoodie.compact.inline": "true", "hoodie.compact.inline.max.delta.commits": "1"}


def amounts(rows: Any) -> dict[str, int]:
    found = [(row["id"], row["amount"]) for row in rows]
    assert len(found) == len(dict(found))
    return dict(found)


def by_rust(url: str, endpoint: str, instant: str) -> dict[str, int]:
    import hudi

    where = {"aws_endpoint": endpoint, "aws_allow_http": "true", "aws_region": "us-east-1",
             "aws_access_key_id": "any", "aws_secret_access_key": "thing"}  # fmt: skip
    options = hudi.HudiReadOptions().with_as_of_timestamp(instant)
    batches = hudi.HudiTable(url, where).read(options)
    return amounts(row for each in batches for row in pa.record_batch(each).to_pylist())


@pytest.mark.parametrize("index", ["SIMPLE", "BUCKET"])
@pytest.mark.parametrize("version", ["6", "9"])
def test_as_of_each_instant_around_a_compaction_all_readers_show_the_same(
    hudi: Hudi, server: Emulator, version: str, index: str
) -> None:
    url = f"s3://as-of-{next(BUCKETS)}/orders"
    options: Mapping[str, str] = OPTIONS | MERGED | {
        "hoodie.write.table.version": version, "hoodie.index.type": index,
    }  # fmt: skip
    expected: dict[str, int] = {}
    states: list[dict[str, int]] = []
    for n in range(6):
        # With new keys, Hudi would write them and the updates into the small base file.
        keys = (n % 3, 7) if n else range(8)
        rows = [order(f"k{key}", amount=n, at=n) for key in keys]
        more = COMPACT if n == 3 else {}
        hudi.write(url, rows, schema=SPARK_SCHEMA, options={**options, **more},
                   mode="append" if n else "overwrite")  # fmt: skip
        expected |= {row["id"]: n for row in rows}
        states.append(dict(expected))
    with Table(url, endpoint=server.s3) as table:
        history = sorted(table.history(), key=lambda each: each.instant)
    actions = [each.action for each in history]
    assert actions.count("commit") == 1 and actions.count("deltacommit") == 6, actions
    store, differ = open_store(url, endpoint=server.s3), list[str]()
    for each in history:
        before = [one for one in history if one.instant <= each.instant]
        wanted = states[sum(one.action == "deltacommit" for one in before) - 1]
        for at in (each.instant, instant_of(instant_ms(each.instant) + 1)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", LocalInstants)
                ours = amounts(read_table(store, as_of=at).to_pylist())
            assert ours == wanted, (each, at)
            theirs = amounts(hudi.read(url, **{"as.of.instant": at}))
            assert theirs == ours, (each, at)
            if by_rust(url, server.s3, at) != ours:
                differ.append(f"{each.action} {at}")
    assert not differ, "hudi-rs shows other rows"
