"""hoodie.properties: what is written is read back, Hudi's own are understood, the rest refused."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hudi_rs import read_by_hudi_rs
from hypothesis import given
from hypothesis import strategies as st
from table_world import CLOCK, CONFIG, Holder, new_table, prepare_inserts, prepare_upserts, rows

from lockkit.errors import TableError
from lockkit.protocol.outcome import Applied, Found, IfAbsent
from lockkit.runtime import run
from lockkit.stores import Store, open_store
from lockkit.table import TableConfig, begin, commit, create_table, read_table
from lockkit.table.format.properties import (
    BACKUP_KEY,
    PROPERTIES_KEY,
    from_properties,
    to_properties,
)
from lockkit.table.format.property_keys import NO_PARTITION, format_properties, parse_properties
from lockkit.table.format.readable import readable

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
    version=st.sampled_from([6, 8, 9]), mode=st.sampled_from(["fenced", "hudi"]),
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


def test_a_table_without_a_mode_is_in_the_mode_hudi() -> None:
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
        (9, {"hoodie.table.version": "10"}, "is none of 6, 8, 9"),
        (9, {"hoodie.table.metadata.partitions": "files"}, "metadata table"),
        (9, {"hoodie.table.keygenerator.type": "USER_PROVIDED"}, "would not match ours"),
        (
            9,
            {
                "hoodie.table.keygenerator.type": "COMPLEX",
                "hoodie.table.complex.keygen.encoding": "VALUE_ONLY",
            },
            "HUDI-7001",
        ),
        (9, {"hoodie.record.merge.mode": "CUSTOM"}, "merges rows in another way"),
        (9, {"hoodie.table.ordering.fields": "at,id"}, "only one such field"),
        (9, {"hoodie.timeline.path": "elsewhere"}, "expects the timeline there"),
        (9, {"hoodie.table.format": "iceberg"}, "keeps its own timeline"),
        (6, {"hoodie.compaction.payload.class": "a.PartialUpdate"}, "merges rows in another way"),
        (6, {"hoodie.archivelog.folder": "../elsewhere"}, "must be a folder's name"),
        (6, {"hoodie.table.timeline.timezone": "LOCAL"}, "timezone is LOCAL, .*table adopt"),
        (6, {"hoodie.table.timeline.timezone": ""}, "not set, so LOCAL"),
        (6, {"hoodie.table.partial.update.mode": "IGNORE_DEFAULTS"}, "merges rows in another way"),
        (6, {"hoodie.record.merge.strategy.id": "1897ef5f-18bc"}, "merges rows in another way"),
        (6, {"hoodie.compaction.record.merger.strategy": "1897ef5f"}, "merges rows in another way"),
        (6, {"hoodie.table.ro.file.format": "ORC"}, "writes only Parquet"),
        (6, {"hoodie.record.merge.property.hoodie.payload.delete.field": "op"}, "by this rule"),
        (9, {"hoodie.record.merge.property.hoodie.payload.delete.marker": "D"}, "by this rule"),
        (6, {"hoodie.datasource.write.slash.separated.date.partitioning": "true"}, "one folder"),
        (6, {"hoodie.table.keygenerator.class": NO_PARTITION}, "makes no partitions"),
        (6, {"lockkit.commit.mode": "none"}, "mode=none must be"),
        (6, {"lockkit.bucket.count": "0"}, "must be from 1 to"),
        (6, {"lockkit.bucket.count": "9" * 5000}, "must be from 1 to"),
    ],
)
def test_unsupported_metadata_is_refused_with_the_reason(
    version: int, changed: dict[str, str], why: str
) -> None:
    config = replace(CONFIG, version=version)
    with pytest.raises(TableError, match=why) as refused:
        from_properties({**to_properties(config), **changed})
    assert len(str(refused.value)) < 400


# --- tables that Hudi made by its defaults --------------------------------------------------------

BY_DEFAULT = {
    "hoodie.datasource.write.hive_style_partitioning": "false",
    "hoodie.datasource.write.partitionpath.urlencode": "false",
}
BEFORE_1_0 = """#Updated at 2024-11-01T10:15:30Z
hoodie.table.timeline.timezone=UTC
hoodie.table.keygenerator.class=org.apache.hudi.keygen.SimpleKeyGenerator
hoodie.table.precombine.field=at
hoodie.table.version=6
hoodie.database.name=
hoodie.datasource.write.hive_style_partitioning=false
hoodie.table.metadata.partitions.inflight=
hoodie.table.metadata.partitions=
hoodie.table.checksum=1443086834
hoodie.partition.metafile.use.base.format=false
hoodie.archivelog.folder=archived
hoodie.table.name=orders
hoodie.compaction.payload.class=org.apache.hudi.common.model.OverwriteWithLatestAvroPayload
hoodie.populate.meta.fields=true
hoodie.table.type=COPY_ON_WRITE
hoodie.datasource.write.partitionpath.urlencode=false
hoodie.table.base.file.format=PARQUET
hoodie.datasource.write.drop.partition.columns=false
hoodie.timeline.layout.version=1
hoodie.table.partition.fields=
hoodie.table.recordkey.fields=id
"""


def test_a_table_of_an_older_hudi_is_understood_and_its_later_commit_wins() -> None:
    found = from_properties(parse_properties(BEFORE_1_0.encode()))
    assert found == TableConfig(
        name="orders", record_key="id", version=6, mode="hudi", hive_style=False, urlencode=False
    )


@pytest.mark.parametrize("version", [6, 9])
def test_a_table_with_hudis_defaults_is_written_by_hudis_contract_and_read_by_hudi_rs(
    tmp_path: Path, version: int
) -> None:
    keys = parse_properties((HUDI / f"v{version}.properties").read_bytes()) | BY_DEFAULT
    url = f"file://{tmp_path}/orders"
    store = open_store(url)
    assert isinstance(store.put(PROPERTIES_KEY, format_properties(keys), IfAbsent()), Applied)
    inserts = prepare_inserts(store, rows([0, 1], region="EU"), rows([2], region="A/B c:d=é"))
    run(commit(inserts, Holder(1)), store, CLOCK)
    upserts = prepare_upserts(
        store, rows([0], amount=9, at=9), which=lambda each: each.partition == "EU"
    )
    run(commit(upserts, Holder(1)), store, CLOCK)
    ours = read_table(store, meta=True)
    assert set(ours["_hoodie_partition_path"].to_pylist()) == {"EU", "A/B c:d=é"}
    assert sorted(ours["amount"].to_pylist()) == [0, 0, 9]
    theirs = read_by_hudi_rs(url).select(ours.column_names)
    order = [("_hoodie_record_key", "ascending")]
    assert theirs.sort_by(order).to_pylist() == ours.sort_by(order).to_pylist()
    assert not store.list(".hoodie/.locks/fence")


# --- while Hudi rewrites the file -----------------------------------------------------------------


@pytest.mark.parametrize("version", [6, 9])
def test_a_properties_file_rewritten_by_hudi_keeps_its_values(version: int) -> None:
    """As `HoodieTableConfig.update` of 1.2.0 leaves it: comments, any order, a key more."""
    config = replace(CONFIG, version=version)
    lines = [f"{k}={v}" for k, v in to_properties(config).items()]
    body = "\n".join(["#Updated at 2026-11-21T15:27:16.290Z", "x.y=z", *reversed(lines), ""])
    assert from_properties(parse_properties(body.encode())) == config


def test_nothing_is_made_or_committed_while_hudi_rewrites_the_file(tmp_path: Path) -> None:
    store: Store = new_table(f"file://{tmp_path}/orders")
    prepared = prepare_inserts(store, rows([0]))
    match store.get(PROPERTIES_KEY):
        case Found(body, _):
            store.put(BACKUP_KEY, body, IfAbsent())
    store.delete(PROPERTIES_KEY)
    for tried in (begin(), create_table(CONFIG), commit(prepared, Holder(1))):
        with pytest.raises(TableError, match=r"Hudi is rewriting .*try again"):
            run(tried, store, CLOCK)
    assert [each.key for each in store.list(PROPERTIES_KEY)] == [BACKUP_KEY]


@pytest.mark.parametrize(("precombine", "payload"), [
    ("at", "DefaultHoodieRecordPayload"), ("", "OverwriteWithLatestAvroPayload"),
])  # fmt: skip
def test_a_merge_on_read_table_of_version_6_names_the_payload_class_that_hudi_0_15_merges_by(
    precombine: str, payload: str
) -> None:
    """Hudi 0.15 has no default for it, and could read no log file."""
    merged = {"version": 6, "table_type": "MERGE_ON_READ", "mode": "hudi", "commit": "serial"}
    config = replace(CONFIG, precombine=precombine or None, **merged)  # type: ignore[arg-type]
    keys = to_properties(config)
    assert keys["hoodie.compaction.payload.class"].endswith(f".{payload}")
    del keys["hoodie.compaction.payload.class"]
    assert from_properties(keys) == config, "a table that lockkit made before is the same"


@pytest.mark.parametrize(("version", "read"), [(9, True), (8, True), (6, False)])
def test_a_table_whose_delete_marker_hudi_has_obeyed_is_read_and_not_written(
    version: int, read: bool
) -> None:
    how = {"version": version, "table_type": "MERGE_ON_READ", "mode": "hudi"}
    keys = to_properties(replace(CONFIG, commit="serial", **how))  # type: ignore[arg-type]
    keys["hoodie.record.merge.property.hoodie.payload.delete.marker"] = "D"
    with pytest.raises(TableError, match="by this rule"):
        from_properties(keys)
    with nullcontext() if read else pytest.raises(TableError, match="rules of their own"):
        assert readable(keys).merged
