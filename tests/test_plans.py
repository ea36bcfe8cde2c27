"""What table services write down: read from Hudi's own files, written so that Hudi reads it.

`data/hudi` holds files of Apache Hudi 1.2.0; only the place where its table lay has another name.
"""

from __future__ import annotations

import io
import json
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockkit.errors import TableError
from lockkit.table.format import avro, records
from lockkit.table.format.avro_decoding import INFLATED_BYTES_MAX, SCHEMA_BYTES_MAX
from lockkit.table.format.layout import NO_BASE
from lockkit.table.format.plans import (
    CleanPlan,
    ClusteringGroup,
    ClusteringInput,
    ReplacePlan,
    RollbackPlan,
    format_clean,
    format_clean_plan,
    format_cluster_plan,
    format_rollback,
    format_rollback_plan,
    parse_clean,
    parse_clean_plan,
    parse_replace_plan,
    parse_rollback_plan,
)

HUDI = Path(__file__).parent / "data" / "hudi"
PLACE = "/warehouse/of-hudi/v9/orders"
SLASHED = "region=A%2FB c%3Ad%3Dé"
ROLLBACK_PLAN, ROLLBACK = "20261121143902963.rollback.requested", (
    "20261121143902963_20261121143903473.rollback"
)  # fmt: skip
CLEAN_PLAN, CLEAN = "20261121143854492.clean.requested", (
    "20261121143854492_20261121143854656.clean"
)  # fmt: skip
CLUSTERING_PLAN = "20261121143856600.clustering.requested"


def hudi(name: str) -> tuple[str, bytes]:
    """The key and the body of a file that Hudi wrote."""
    return f".hoodie/timeline/{name}", (HUDI / name).read_bytes()


def opened(body: bytes) -> Any:
    """The record, by fastavro's own reader of containers."""
    (record,) = fastavro.reader(io.BytesIO(body))
    return record


def same(mine: bytes, name: str) -> bool:
    """Whether the records are equal, but for what Hudi measured and nobody reads."""
    ours, theirs = opened(mine), opened(hudi(name)[1])
    for group in ((theirs.get("clusteringPlan") or {}).get("inputGroups")) or ():
        group["metrics"] = {}
    for plan in (ours, theirs):
        (plan.get("clusteringPlan") or {}).pop("missingSchedulePartitions", None)
    return bool(ours == theirs)


# --- Hudi's own files -----------------------------------------------------------------------------


def test_hudis_rollback_is_read_and_lockkit_would_write_the_same() -> None:
    plan = parse_rollback_plan(*hudi(ROLLBACK_PLAN))
    assert (plan.instant, plan.target) == ("20261121143902963", "20261121143859256")
    assert [partition for partition, _ in plan.files] == [SLASHED, "region=US", "region=EU"]
    assert all(path.startswith(f"{partition}/") for partition, path in plan.files)
    assert plan.base == PLACE
    assert same(format_rollback_plan(plan), ROLLBACK_PLAN)
    assert same(format_rollback(plan, took_ms=121), ROLLBACK)


def test_hudis_rollback_of_a_commit_without_files_removes_nothing() -> None:
    plan = parse_rollback_plan(*hudi("20261121143905232.rollback.requested"))
    assert (plan.target, plan.files) == ("20261121143904286", ())


def test_hudis_clean_is_read_and_lockkit_would_write_the_same() -> None:
    plan = parse_clean_plan(*hudi(CLEAN_PLAN))
    assert plan.retain_from == plan.last_completed == "20261121143852949"
    assert {partition for partition, _ in plan.files} == {SLASHED, "region=EU", "region=US"}
    assert plan.base == f"file:{PLACE}"
    assert same(format_clean_plan(plan), CLEAN_PLAN)
    assert same(format_clean(plan, took_ms=138), CLEAN)
    assert parse_clean(*hudi(CLEAN)) == replace(plan, base=NO_BASE)


def test_hudis_clustering_plan_is_read_and_lockkit_would_write_the_same() -> None:
    plan = parse_replace_plan(*hudi(CLUSTERING_PLAN))
    assert plan.clusters and plan.inputs is not None
    assert (SLASHED, "6ac670de-162c-46a8-b207-b47ec383c9a2-0") in plan.inputs
    assert len(plan.inputs) == 6
    assert plan.base == f"file:{PLACE}"
    assert same(format_cluster_plan(plan), CLUSTERING_PLAN)


def test_an_overwrites_plan_does_not_say_what_it_will_replace() -> None:
    for body in (hudi("20261121143857502.replacecommit.requested")[1], b""):
        plan = parse_replace_plan(".hoodie/20261121143857502.replacecommit.requested", body)
        assert not plan.clusters
        assert plan.inputs is None


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        (records.ROLLBACK_PLAN, ROLLBACK_PLAN),
        (records.ROLLBACK, ROLLBACK),
        (records.CLEAN_PLAN, CLEAN_PLAN),
        (records.CLEAN, CLEAN),
        (records.REPLACE_PLAN, CLUSTERING_PLAN),
        (records.COMMIT, "20261121143849453_20261121143851973.commit"),
        (records.REPLACE_COMMIT, "20261121143856600_20261121143857375.replacecommit"),
    ],
)
def test_our_schemas_are_those_that_hudi_embeds(schema: Any, name: str) -> None:
    theirs = fastavro.reader(io.BytesIO(hudi(name)[1])).metadata["avro.schema"]
    assert bare(schema) == bare(json.loads(theirs))


def bare(schema: Any) -> Any:
    """Without what changes no byte of a record: defaults, comments, Java's classes."""
    match schema:
        case {"type": "string", **_more}:
            return "string"
        case dict():
            extra = ("default", "doc", "avro.java.string")
            return {key: bare(each) for key, each in schema.items() if key not in extra}
        case list():
            return [bare(each) for each in schema]
    return schema


# --- round trips ----------------------------------------------------------------------------------

INSTANTS = st.integers(0, 10**14 - 1).map(lambda n: f"202{n:014d}")
PARTITIONS = st.sampled_from(["", "region=EU", SLASHED, "a/b=c/d"])
FILE_NAMES = st.text(st.characters(categories=["L", "Nd"], include_characters="-_. %é"), min_size=1)
PATHS = st.tuples(PARTITIONS, FILE_NAMES.filter(lambda name: name not in (".", ".."))).map(
    lambda pair: (pair[0], f"{pair[0]}/{pair[1]}" if pair[0] else pair[1])
)
FILES = st.lists(PATHS, unique=True, max_size=6).map(lambda files: tuple(sorted(files)))
BASES = st.sampled_from([NO_BASE, "/lake/orders", "s3a://bucket/orders"])


@given(target=INSTANTS, own=INSTANTS, files=FILES, base=BASES)
def test_a_rollback_plan_comes_back_as_it_was(
    target: str, own: str, files: tuple[tuple[str, str], ...], base: str
) -> None:
    plan = RollbackPlan(own, target, "commit", files, base if files else NO_BASE)
    body = format_rollback_plan(plan)
    assert parse_rollback_plan(f".hoodie/{own}.rollback.requested", body) == plan
    done = opened(format_rollback(plan, took_ms=1))
    assert done["totalFilesDeleted"] == len(files)


@given(own=INSTANTS, retain=INSTANTS | st.just(""), last=INSTANTS, files=FILES, base=BASES)
def test_a_clean_plan_comes_back_as_it_was(
    own: str, retain: str, last: str, files: tuple[tuple[str, str], ...], base: str
) -> None:
    plan = CleanPlan(instant=own, retain_from=retain, last_completed=last, files=files,
                     base=base if files else NO_BASE)  # fmt: skip
    body = format_clean_plan(plan)
    assert parse_clean_plan(f".hoodie/timeline/{own}.clean.requested", body) == plan
    done = format_clean(plan, took_ms=1)
    assert parse_clean(f".hoodie/{own}.clean", done).files == files


@given(files=FILES.filter(bool), base=BASES, outputs=st.integers(1, 9))
def test_a_clustering_plan_comes_back_as_it_was(
    files: tuple[tuple[str, str], ...], base: str, outputs: int
) -> None:
    slices = tuple(
        ClusteringInput(partition, f"f{n}-0", path) for n, (partition, path) in enumerate(files)
    )
    plan = ReplacePlan((ClusteringGroup(slices, outputs),), {"sort": "id"}, base)
    assert parse_replace_plan("x.requested", format_cluster_plan(plan)) == plan


def test_equal_plans_are_equal_bytes() -> None:
    files = (("a", "a/1"), ("a", "a/2"), ("b", "b/1"))
    plan = RollbackPlan("20250101000000001", "20250101000000000", "commit", files)
    assert format_rollback_plan(plan) == format_rollback_plan(plan)


# --- what a bucket may hold -----------------------------------------------------------------------

KEY = ".hoodie/20250101000000001.rollback.requested"


def container(schema: Any, payload: bytes, *, codec: bytes = b"", count: int = 1) -> bytes:
    """An object container as a stranger might write it."""
    text = schema if isinstance(schema, bytes) else json.dumps(schema).encode()
    out = io.BytesIO()
    meta = {"avro.schema": text} | ({"avro.codec": codec} if codec else {})
    fastavro.schemaless_writer(out, {"type": "map", "values": "bytes"}, meta)
    long = io.BytesIO()
    fastavro.schemaless_writer(long, "long", count)
    fastavro.schemaless_writer(long, "bytes", payload)
    return avro.MAGIC + out.getvalue() + b"s" * 16 + long.getvalue() + b"s" * 16


def record(*types: Any) -> dict[str, Any]:
    fields = [{"name": f"f{n}", "type": each} for n, each in enumerate(types)]
    return {"type": "record", "name": "HoodieRollbackPlan", "fields": fields}


def deflated(payload: bytes) -> bytes:
    return zlib.compress(payload, wbits=-zlib.MAX_WBITS)


DOUBLING: Any = "int"
for _n in range(30):
    DOUBLING = {"type": "record", "name": f"R{_n}", "fields": [
        {"name": "a", "type": DOUBLING}, {"name": "b", "type": f"R{_n - 1}" if _n else "int"},
    ]}  # fmt: skip
ITSELF = {"type": "record", "name": "b.HoodieRollbackPlan", "fields": [
    {"name": "x", "type": "int"}]}  # fmt: skip
PLAN = opened(hudi(ROLLBACK_PLAN)[1])


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "empty"),
        (b"{}", "wrong magic"),
        (hudi(ROLLBACK_PLAN)[1][:-1], "does not end behind its first record"),
        (hudi(ROLLBACK_PLAN)[1] + b"\0", "does not end behind its first record"),
        (hudi(CLEAN_PLAN)[1], "it holds a 'HoodieCleanerPlan'"),
        (container(record("int"), b"\x02", count=2), "2 records"),
        (container(record("int"), b"\x02\x02"), "it contains more than its record"),
        (container(record("int"), b"\x02", codec=b"snappy"), "compressed with b'snappy'"),
        (container(record("int"), b"\x02", codec=b"deflate"), "cut off, or more than"),
        (container(record("bytes"), deflated(bytes(INFLATED_BYTES_MAX + 1)), codec=b"deflate"),
         "or more than"),
        (container(record({"type": "array", "items": "null"}), b"\x80\x80\x80\x80\x80\x01\0"),
         "its schema says 'null'"),
        (container(record({"type": "array", "items": record()}), b"\x80\x80\x80\x80\x80\x01\0"),
         "its schema says"),
        (container(record("HoodieRollbackPlan"), b""), "its schema says 'HoodieRollbackPlan'"),
        (container(record(ITSELF, "HoodieRollbackPlan"), b"\0" * 1_000_000), "its schema says"),
        (container(record({**ITSELF, "namespace": "b"}), b"\0"), "several namespaces"),
        (container(record(DOUBLING), b"\0"), "nested too deep"),
        (container(record({"type": "bytes", "logicalType": "decimal", "precision": 9}), b"\0"),
         "asks for more"),
        (container(b"[" * 50_000, b""), "RecursionError"),
        (container(b'"string"', b"\0"), "its schema is not a record"),
        (container(json.dumps({**record("int"), "__fastavro_parsed": True}).encode(), b"\0"),
         "asks for more"),
        (container(b" " * SCHEMA_BYTES_MAX + b"{}", b""), "a schema of"),
        (avro.MAGIC + b"\xff" * 40, "ten bytes"),
        (avro.MAGIC + b"\xfe\xff\xff\xff\x0f", "too many entries"),
    ],
)  # fmt: skip
def test_a_hostile_container_is_refused_by_name_with_the_remedy(body: bytes, why: str) -> None:
    with pytest.raises(TableError) as refused:
        parse_rollback_plan(KEY, body)
    message = str(refused.value)
    assert KEY in message and why in message
    assert "restore it" in message and len(message) < 500


@settings(max_examples=300)
@given(data=st.data())
def test_a_damaged_plan_is_a_plan_or_a_table_error(data: st.DataObject) -> None:
    body = bytearray(hudi(data.draw(st.sampled_from([ROLLBACK_PLAN, CLEAN_PLAN])))[1])
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    for parse in (parse_rollback_plan, parse_clean_plan):
        try:
            parse(KEY, bytes(body))
        except TableError as error:
            assert KEY in str(error)


def test_a_compressed_plan_is_read() -> None:
    out = io.BytesIO()
    fastavro.writer(out, records.ROLLBACK_PLAN, [PLAN], codec="deflate")
    assert parse_rollback_plan(KEY, out.getvalue()).target == "20261121143859256"


@pytest.mark.parametrize(
    ("partition", "path"),
    [
        ("region=EU", "/lake/orders/region=US/f.parquet"),
        ("region=EU", "/lake/orders/region=EU/../region=US/f.parquet"),
        ("..", "/lake/orders/../f.parquet"),
        (".hoodie", "/lake/orders/.hoodie/hoodie.properties"),
        ("", "/lake/orders/"),
        ("a//b", "a//b/f.parquet"),
        ("a\nb", "a\nb/f.parquet"),
    ],
)
def test_a_plan_that_leads_out_of_the_tables_data_is_refused(partition: str, path: str) -> None:
    request = {"partitionPath": partition, "filesToBeDeleted": [path]}
    body = avro.encode(records.ROLLBACK_PLAN, {**PLAN, "RollbackRequests": [request]})
    with pytest.raises(TableError, match="is not in partition"):
        parse_rollback_plan(KEY, body)


def test_a_plan_for_files_of_two_tables_is_refused() -> None:
    paths = [f"/lake/{table}/region=EU/f.parquet" for table in ("orders", "others")]
    request = {"partitionPath": "region=EU", "filesToBeDeleted": paths}
    body = avro.encode(records.ROLLBACK_PLAN, {**PLAN, "RollbackRequests": [request]})
    with pytest.raises(TableError, match="its files lie in 2 tables"):
        parse_rollback_plan(KEY, body)


@pytest.mark.parametrize("target", ["", "latest", "2025", "2025010100000000x", "²" * 17])
def test_a_plan_whose_target_is_no_instant_is_refused(target: str) -> None:
    named = {"commitTime": target, "action": "commit"}
    body = avro.encode(records.ROLLBACK_PLAN, {**PLAN, "instantToRollback": named})
    with pytest.raises(TableError, match="is not an instant"):
        parse_rollback_plan(KEY, body)


def test_a_clean_plan_that_deletes_whole_partitions_is_refused() -> None:
    plan = opened(hudi(CLEAN_PLAN)[1])
    body = avro.encode(records.CLEAN_PLAN, {**plan, "partitionsToBeDeleted": ["region=EU"]})
    with pytest.raises(TableError, match="deletes whole partitions"):
        parse_clean_plan(KEY, body)
