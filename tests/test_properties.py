"""hoodie.properties: what is written is read back, Hudi's own are understood, the rest refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_world import CONFIG

from lockkit.table import TableConfig, TableError
from lockkit.table.javafile import format_properties, parse_properties
from lockkit.table.properties import from_properties, to_properties

HUDI = Path(__file__).parent / "data" / "hudi"


@pytest.mark.parametrize("version", [6, 9])
def test_a_table_that_hudi_made_is_understood(version: int) -> None:
    found = from_properties(parse_properties((HUDI / f"v{version}.properties").read_bytes()))
    assert found == TableConfig(
        name="orders", record_key="id", partition_by="region", precombine="at", version=version,
        mode="hudi", archive="history" if version == 6 else "archived",
    )  # fmt: skip
    where = ".hoodie/history/" if version == 6 else ".hoodie/timeline/history/"
    assert found.archive_prefix == where


@given(
    version=st.sampled_from([6, 9]), mode=st.sampled_from(["fenced", "hudi"]),
    buckets=st.integers(1, 10_000), hive=st.booleans(), urlencode=st.booleans(),
    partition=st.sampled_from([None, "region"]), precombine=st.sampled_from([None, "at"]),
)  # fmt: skip
def test_a_config_is_read_as_it_was_written(
    version: int, mode: str, buckets: int, hive: bool, urlencode: bool, partition: Any,
    precombine: Any,
) -> None:  # fmt: skip
    config = TableConfig(
        name="orders", record_key="id", partition_by=partition, precombine=precombine,
        version=version, mode=mode, buckets=buckets, hive_style=hive, urlencode=urlencode,
    )  # fmt: skip
    assert from_properties(parse_properties(format_properties(to_properties(config)))) == config


def test_a_table_that_does_not_say_whose_it_is_belongs_to_hudi_too() -> None:
    keys = {k: v for k, v in to_properties(CONFIG).items() if not k.startswith("lockkit.")}
    found = from_properties(keys)
    assert (found.mode, found.buckets) == ("hudi", 4)


def test_where_the_later_commit_wins_nothing_is_compared() -> None:
    config = replace(CONFIG, version=9)
    keys = to_properties(config)
    assert from_properties(keys).precombine == "at"
    keys["hoodie.record.merge.mode"] = "COMMIT_TIME_ORDERING"
    assert from_properties(keys) == replace(config, precombine=None)


@pytest.mark.parametrize(
    ("version", "changed", "why"),
    [
        (9, {"hoodie.timeline.layout.version": "1"}, "upgrade may have stopped half-way"),
        (9, {"hoodie.table.version": "10"}, "is not known, only 6 and 9"),
        (9, {"hoodie.table.metadata.partitions": "files"}, "metadata table"),
        (9, {"hoodie.table.keygenerator.type": "COMPLEX"}, "would not match ours"),
        (9, {"hoodie.record.merge.mode": "CUSTOM"}, "merged otherwise"),
        (9, {"hoodie.table.ordering.fields": "at,id"}, "only one field"),
        (9, {"hoodie.timeline.path": "elsewhere"}, "looked for there"),
        (9, {"hoodie.table.format": "iceberg"}, "a timeline of its own"),
        (6, {"hoodie.compaction.payload.class": "a.PartialUpdate"}, "merged otherwise"),
        (6, {"hoodie.archivelog.folder": "../elsewhere"}, "not the name of a folder"),
        (6, {"lockkit.commit.mode": "none"}, "mode 'none'"),
        (6, {"lockkit.bucket.count": "0"}, "choose 1 to"),
        (6, {"lockkit.bucket.count": "9" * 5000}, "choose 1 to"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_reason(
    version: int, changed: dict[str, str], why: str
) -> None:
    config = replace(CONFIG, version=version)
    with pytest.raises(TableError, match=why) as refused:
        from_properties({**to_properties(config), **changed})
    assert len(str(refused.value)) < 400
