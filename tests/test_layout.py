"""What a commit writes down, in both versions: Hudi's own files read, ours read by others."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_history import add, overwrite
from table_world import CLOCK, CONFIG, Holder, new_table, prepare_inserts, rows

from lockkit.errors import TableError
from lockkit.protocol.outcome import Found
from lockkit.runtime import run
from lockkit.stores import Store
from lockkit.table import load_snapshot, read_table
from lockkit.table.format.layout import (
    ATTEMPT,
    EXTRA_BYTES_MAX,
    CommitFiles,
    FileGroup,
    WriteStat,
    file_name,
    format_commit,
    parse_commit,
)
from lockkit.table.format.plans import parse_replace_plan, parse_rollback_plan
from lockkit.table.occ.rollback import RolledBack, roll_back

HUDI = Path(__file__).parent / "data" / "hudi"
T = "20250101000000000"
VERSIONS = [6, 9]
UPSERTS = {6: "20261121143823613.commit", 9: "20261121143849453_20261121143851973.commit"}
CLUSTERINGS = {
    6: "20261121143831412.replacecommit", 9: "20261121143856600_20261121143857375.replacecommit",
}  # fmt: skip
OVERWRITES_INFLIGHT = {
    6: "20261121143832384.replacecommit.inflight", 9: "20261121143857502.replacecommit.inflight",
}  # fmt: skip
SLASHED = "region=A%2FB c%3Ad%3Dé"


def read_hudi(name: str) -> CommitFiles:
    return parse_commit(name[:17], name, (HUDI / name).read_bytes())


def fields_of(body: bytes) -> Any:
    """A commit's record as a stranger reads it."""
    if body.startswith(b"Obj"):
        (record,) = fastavro.reader(io.BytesIO(body))
        return record
    return json.loads(body)


# --- Hudi's own files -----------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_hudis_upsert_is_read(version: int) -> None:
    files = read_hudi(UPSERTS[version])
    assert (files.operation, files.replaced, files.attempt) == ("UPSERT", frozenset(), None)
    assert files.schema is not None and '"region"' in files.schema
    assert {stat.partition for stat in files.stats} == {SLASHED, "region=EU", "region=US"}
    for stat in files.stats:
        assert (stat.writes, stat.updates, stat.inserts, stat.deletes) == (4, 2, 0, 0)
        assert stat.path.startswith(f"{stat.partition}/{stat.file_id}_")
        assert stat.size_bytes > 400_000 and stat.previous < files.instant


@pytest.mark.parametrize("version", VERSIONS)
def test_hudis_clustering_is_read_with_what_it_replaced(version: int) -> None:
    files = read_hudi(CLUSTERINGS[version])
    assert files.operation == "CLUSTER"
    assert (len(files.stats), len(files.replaced), len(files.writes)) == (3, 6, 9)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("empty", [True, False])
def test_hudis_inflight_files_are_no_commits(version: int, *, empty: bool) -> None:
    name = OVERWRITES_INFLIGHT[version]
    with pytest.raises(TableError, match="is not a commit's file"):
        parse_commit(name[:17], name, b"" if empty else (HUDI / name).read_bytes())


def test_a_commit_that_is_stored_compressed_is_not_kept_in_memory() -> None:
    """A thousand times its size may have been in 256 of them, from a bucket that is not trusted."""
    reader, out = fastavro.reader(io.BytesIO((HUDI / UPSERTS[9]).read_bytes())), io.BytesIO()
    fastavro.writer(out, json.loads(reader.metadata["avro.schema"]), reader, codec="deflate")
    one, again = (parse_commit(T, UPSERTS[9], bytes(out.getvalue())) for _ in "12")
    assert one == again
    assert one is not again


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("names", [UPSERTS, CLUSTERINGS])
def test_hudi_would_have_written_the_same_bytes(version: int, names: Mapping[int, str]) -> None:
    """Every field of ours is Hudi's, and says the same."""
    files = read_hudi(names[version])
    assert files.schema is not None
    action = names[version].rpartition(".")[2]
    body = format_commit(
        files.stats, operation=files.operation, schema=files.schema, attempt="x",
        action=action, replaced=files.replaced, version=version,
    )  # fmt: skip
    ours, theirs = fields_of(body), fields_of((HUDI / names[version]).read_bytes())
    assert ours["extraMetadata"].pop(ATTEMPT) == ours.pop("attempt", "x") == "x"
    for partition, stats in theirs["partitionToWriteStats"].items():
        for mine, stat in zip(ours["partitionToWriteStats"][partition], stats, strict=True):
            unwritten = {each for each in stat if each not in mine or mine[each] is None}
            assert {each for each in unwritten if stat[each]} <= {"prevBaseFile", "runtimeStats"}
            assert {each: stat[each] for each in mine if each not in unwritten} == {
                each: mine[each] for each in mine if each not in unwritten
            }
    for record in (ours, theirs):
        del record["partitionToWriteStats"]
        for ids in (record.get("partitionToReplaceFileIds") or {}).values():
            ids.sort()
    assert ours == theirs


# --- round trips ----------------------------------------------------------------------------------

COUNTS = st.integers(0, 2**53)
PARTITIONS = st.sampled_from(["", "region=EU", SLASHED, "a/b=c"])
FILE_IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9.-]{0,30}", fullmatch=True)
GROUPS = st.tuples(PARTITIONS, FILE_IDS)
# Hypothesis also draws strings that it finds in our own source, such as `schema`.
EXTRA_KEYS = st.text(max_size=9).filter(lambda key: key not in {"schema", ATTEMPT})


@st.composite
def write_stats(draw: st.DrawFn) -> WriteStat:
    partition, file_id = draw(GROUPS)
    name = file_name(file_id, T)
    return WriteStat(
        partition=partition, file_id=file_id, path=f"{partition}/{name}" if partition else name,
        previous=draw(st.sampled_from(["null", "20240101000000000"])), writes=draw(COUNTS),
        inserts=draw(COUNTS), updates=draw(COUNTS), deletes=draw(COUNTS), size_bytes=draw(COUNTS),
    )  # fmt: skip


@given(
    stats=st.lists(write_stats(), max_size=4, unique_by=lambda stat: stat.group),
    replaced=st.frozensets(GROUPS, max_size=4),
    extra=st.dictionaries(EXTRA_KEYS, st.text(max_size=20), max_size=3),
    version=st.sampled_from(VERSIONS),
)
def test_a_commit_comes_back_as_it_was(
    stats: list[WriteStat], replaced: frozenset[FileGroup], extra: dict[str, str], version: int
) -> None:
    action = "replacecommit" if replaced else "commit"
    bodies = [
        format_commit(order, operation="UPSERT", schema="{}", attempt="a", action=action,
                      replaced=replaced, extra=extra, version=version)
        for order in (stats, stats[::-1])
    ]  # fmt: skip
    assert bodies[0] == bodies[1]
    files = parse_commit(T, "T.commit", bodies[0])
    assert set(files.stats) == set(stats)
    assert (files.replaced, files.extra) == (replaced, extra)
    assert (files.operation, files.schema, files.attempt) == ("UPSERT", "{}", "a")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_replacecommit_that_replaces_nothing_still_has_its_field(version: int) -> None:
    body = format_commit([], operation="INSERT_OVERWRITE", schema="{}", attempt="a",
                         action="replacecommit", version=version)  # fmt: skip
    assert fields_of(body)["partitionToReplaceFileIds"] == {}
    assert parse_commit(T, "T.replacecommit", body).replaced == frozenset()


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "extra", [{"schema": "{}"}, {ATTEMPT: "b"}, {"checkpoint": "x" * EXTRA_BYTES_MAX}]
)
def test_extra_metadata_is_bounded_and_leaves_the_commits_own_alone(extra: dict[str, str]) -> None:
    with pytest.raises(TableError, match="extra metadata"):
        format_commit([], operation="INSERT", schema="{}", attempt="a", extra=extra)


@pytest.mark.parametrize("count", ["Infinity", "1e400", "NaN", '"12"', "[1]", "1.5"])
def test_an_invalid_count_is_refused(count: str) -> None:
    stat = f'{{"fileId": "f-0", "path": "{file_name("f-0", T)}", "numWrites": {count}}}'
    with pytest.raises(TableError, match="a number was expected"):
        parse_commit(T, "T.commit", f'{{"partitionToWriteStats": {{"": [{stat}]}}}}'.encode())


@pytest.mark.parametrize(
    "path",
    [
        f"region=US/{file_name('f-0', T)}", f"region=EU/{file_name('g-0', T)}",
        f"region=EU/../region=EU/{file_name('f-0', T)}", "region=EU/f-0_0-0-0_now.parquet",
        f"region=EU/.g-0_{T}.log.1_0-1-0", f"/region=EU/{file_name('f-0', T)}",
    ],
)  # fmt: skip
def test_a_path_that_is_not_this_groups_file_is_refused(path: str) -> None:
    stats = {"region=EU": [{"fileId": "f-0", "path": path}]}
    with pytest.raises(TableError, match=r"is not a base or log file of|leads out of the table"):
        parse_commit(T, "T.commit", json.dumps({"partitionToWriteStats": stats}).encode())


@pytest.mark.parametrize("partition", ["..", "a/../b", ".hoodie", "a//b", "/a", "a\nb"])
def test_a_partition_that_leads_out_of_the_tables_data_is_refused(partition: str) -> None:
    stats = {partition: [{"fileId": "f-0", "path": f"{partition}/{file_name('f-0', T)}"}]}
    with pytest.raises(TableError, match="leads out of the table"):
        parse_commit(T, "T.commit", json.dumps({"partitionToWriteStats": stats}).encode())


@settings(max_examples=300)
@given(data=st.data())
def test_a_damaged_avro_commit_is_a_commit_or_a_table_error(data: st.DataObject) -> None:
    body = bytearray((HUDI / data.draw(st.sampled_from([UPSERTS[9], CLUSTERINGS[9]]))).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(4, len(body) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del body[data.draw(st.integers(4, len(body) - 1)) :]
    try:
        parse_commit(T, "T.commit", bytes(body))
    except TableError as error:
        assert str(error).startswith("T.commit is not a commit's file")


# --- a table of version 9 -------------------------------------------------------------------------


def bodies(store: Store) -> dict[str, bytes]:
    """What the timeline holds, by the part of each name that follows the instant."""
    found = {}
    for entry in store.list(".hoodie/timeline/2"):
        answer = store.get(entry.key)
        assert isinstance(answer, Found)
        found[entry.key.rpartition("/")[2]] = answer.body
    return found


def test_version_9_holds_avro_under_the_names_that_hudi_gives_it(tmp_path: Path) -> None:
    hudi = pytest.importorskip("hudi", reason="hudi-rs reads our tables: pip install hudi==0.5.0")
    store = new_table(f"file://{tmp_path}/orders", config=replace(CONFIG, version=9))
    first = add(store, 0, 1)
    gone = run(load_snapshot(), store, CLOCK).groups
    second = overwrite(store, gone, rows([2]))
    dead = prepare_inserts(store, rows([3]))
    way = roll_back(dead.instant, Holder(2), dead.transaction.taken.known, base="s3a://lake/orders")
    back = run(way, store, CLOCK)
    assert isinstance(back, RolledBack)

    found = bodies(store)
    inflight = [found[f"{first}.inflight"], found[f"{second}.replacecommit.inflight"]]
    del found[f"{first}.inflight"], found[f"{second}.replacecommit.inflight"]
    completed = [body for name, body in found.items() if "_" in name]
    assert completed[:2] == inflight
    plan = parse_rollback_plan(
        f"{back.instant}.rollback.requested", found[f"{back.instant}.rollback.requested"]
    )
    assert [path for _, path in plan.files] == [stat.path for stat in dead.stats]
    assert plan.base == "s3a://lake/orders"
    schemas: list[Any] = [fastavro.reader(io.BytesIO(body)).writer_schema for body in completed]
    assert [schema["name"] for schema in schemas] == [
        f"org.apache.hudi.avro.model.Hoodie{each}Metadata"
        for each in ("Commit", "ReplaceCommit", "Rollback")
    ]
    assert [name.partition(".")[2] for name, body in found.items() if not body] == [
        "rollback.inflight"
    ]
    asked = parse_commit(first, "requested", found[f"{first}.commit.requested"])
    assert asked.attempt and not asked.stats, "whose instant it is, and nothing that is written"
    assert not parse_replace_plan("requested", found[f"{second}.replacecommit.requested"]).clusters
    assert read_table(store)["id"].to_pylist() == ["k2"]
    batches = hudi.HudiTable(f"{tmp_path}/orders").read(hudi.HudiReadOptions())
    assert [row for batch in batches for row in batch["id"].to_pylist()] == ["k2"]
