"""Columns that Hudi renamed, dropped, moved, widened and added are read by their ids.

`data/hudi_tables/make.py` made the tables with `hoodie.schema.on.read.enable`, and each one's
`answers.json` is what Hudi answered.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from test_hudi_tables import RENAMED, answers, plain, shown

from lockkit import Clock, open_store
from lockkit.errors import TableError
from lockkit.runtime import run
from lockkit.table import Table
from lockkit.table.errors import DamagedFile, NotWritable, UnsupportedTable
from lockkit.table.format.column_ids import as_now, parse_ids
from lockkit.table.read.reader import read_increment, read_table
from lockkit.table.services.adopt import adopt, plan_adoption

pytestmark = pytest.mark.filterwarnings("ignore::lockkit.table.read.listed.LocalInstants")
LATER = "29990101000000000"
LOGGED = [each for each in RENAMED if each.startswith("mor")]


def ours(table: Path, **how: Any) -> list[dict[str, Any]]:
    return shown(read_table(open_store(f"file://{table}"), meta=True, **how))


@pytest.mark.parametrize("name", RENAMED)
def test_rows_have_the_columns_that_hudi_reads(hudi_made: Path, name: str) -> None:
    said = answers(hudi_made, name)
    rows = ours(hudi_made / name)
    assert {"a2", "s2", "c", "a"} <= {key for row in rows for key in row}
    assert rows == plain(said["snapshot"])
    if name in LOGGED:
        optimized = ours(hudi_made / name, query="read_optimized")
        assert optimized == plain(said["read_optimized"])


@pytest.mark.parametrize("name", RENAMED)
def test_an_older_snapshot_has_the_columns_of_its_time(hudi_made: Path, name: str) -> None:
    known = answers(hudi_made, name)["as_of"]
    assert len(known) > 10
    for instant, rows in known.items():
        assert ours(hudi_made / name, as_of=instant) == plain(rows), instant


@pytest.mark.parametrize("name", RENAMED)
def test_an_increment_has_the_columns_of_its_end(hudi_made: Path, name: str) -> None:
    store = open_store(f"file://{hudi_made / name}")
    for each in answers(hudi_made, name)["changes"]:
        rows, _ = read_increment(store, each["begin"], each["end"], meta=True)
        assert shown(rows) == plain(each["rows"]), each["begin"]


@pytest.mark.parametrize("name", RENAMED)
def test_some_columns_and_rows_are_those_of_the_whole_table(hudi_made: Path, name: str) -> None:
    store = open_store(f"file://{hudi_made / name}")
    every = read_table(store)
    for column in every.column_names:
        one = read_table(store, columns=["id", column] if column != "id" else ["id"])
        assert one.sort_by("id") == every.select(one.column_names).sort_by("id")
    some = (("a2", ">", 15), ("b", "=", 0.1), ("c", "=", "new"), ("a", "=", "anew"))
    for column, op, value in some:
        wanted = every.filter(pc.field(column) > value if op == ">" else pc.field(column) == value)
        assert wanted.num_rows
        found = read_table(store, columns=["id"], filters=[(column, op, value)])
        assert sorted(found["id"].to_pylist()) == sorted(wanted["id"].to_pylist())


def copied(hudi_made: Path, tmp_path: Path, name: str) -> Path:
    return Path(shutil.copytree(hudi_made / name, tmp_path / name))


def test_the_history_of_a_commit_that_failed_is_not_used(hudi_made: Path, tmp_path: Path) -> None:
    for name in RENAMED:
        table = copied(hudi_made, tmp_path, name)
        (table / ".hoodie/.schema/29991231000000000.schemacommit").write_text("half")
        assert ours(table) == ours(hudi_made / name)


def test_a_history_that_makes_no_sense_is_refused(hudi_made: Path, tmp_path: Path) -> None:
    table = copied(hudi_made, tmp_path, "cow9_renamed")
    *_, last = sorted((table / ".hoodie/.schema").glob("*.schemacommit"))
    fields = ('{"id": "x"}', '{"id": 1, "name": "a", "type": {"type": "map"}}')
    bodies = [f'{{"schemas": [{{"fields": [{each}]}}]}}' for each in fields]
    for body in ("", "{}", '{"schemas": 1}', "[" * 9999, *bodies):
        last.write_text(body)
        with pytest.raises(DamagedFile, match=last.name):
            ours(table)
    shutil.rmtree(last.parent)
    with pytest.raises(DamagedFile, match="columns may be renamed"):
        ours(table)


def test_a_later_commit_without_ids_is_refused(hudi_made: Path, tmp_path: Path) -> None:
    """Its writer knew the columns by names alone."""
    table = copied(hudi_made, tmp_path, "cow6_renamed")
    *_, last = sorted((table / ".hoodie").glob("*.commit"))
    said = json.loads(last.read_text())
    del said["extraMetadata"]["latest_schema"]
    last.write_text(json.dumps(said))
    with pytest.raises(UnsupportedTable, match="has no ids of the columns"):
        ours(table)


@pytest.mark.parametrize("name", RENAMED)
def test_the_table_is_not_written_and_its_adoption_says_why(
    hudi_made: Path, tmp_path: Path, name: str
) -> None:
    table = copied(hudi_made, tmp_path, name)
    store = open_store(f"file://{table}")
    found = run(plan_adoption(), store, Clock())
    assert not found.writable
    assert "hoodie.schema.on.read.enable" in " ".join(found.obstacles)
    with pytest.raises(NotWritable, match="matched by ids"):
        run(adopt(), store, Clock())
    schemas = table / ".hoodie/.schema"
    schemas.rename(tmp_path / "kept")  # as it was before the first ALTER TABLE
    run(adopt(), store, Clock())
    (tmp_path / "kept").rename(schemas)
    with Table(store.url) as adopted:
        rows = adopted.read()
        for write in (adopted.upsert, adopted.append, adopted.overwrite, adopted.delete):
            with pytest.raises(NotWritable, match="matched by ids"):
                write(rows)
        for service in (adopted.compact, adopted.cluster):
            with pytest.raises(TableError):
                service()
        assert adopted.read() == rows


def field(number: int, name: str, kind: Any = "int") -> dict[str, Any]:
    return {"id": number, "name": name, "optional": True, "type": kind}


def test_names_inside_lists_and_maps_follow_their_ids() -> None:
    def schema(version: int, one: str, two: str) -> dict[str, Any]:
        struct = {"type": "record", "fields": [field(5, one), field(6, two)]}
        inside = {"type": "array", "element_id": 4, "element": struct, "element_optional": True}
        a_map = {"type": "map", "key_id": 7, "key": "string", "value_id": 8, "value": inside,
                 "value_optional": True}  # fmt: skip
        return {"version_id": version, "type": "record", "fields": [field(3, "m", a_map)]}

    old, new = schema(0, "p", "q"), schema(20260101000000000, "q", "p")
    ids = parse_ids("k", json.dumps(new), json.dumps({"schemas": [new, old]}).encode())
    struct = pa.struct([("p", pa.int32()), ("q", pa.int32())])
    rows = pa.table({"m": pa.array([[("x", [{"p": 1, "q": 2}])], None],
                                   pa.map_(pa.string(), pa.list_(struct)))})  # fmt: skip
    for instant, seen in (("20250101000000000", {"p": 2, "q": 1}),
                          ("20260101000000001", {"p": 1, "q": 2})):  # fmt: skip
        stored = ids.stored(instant, rows.schema)
        assert stored is not None
        assert as_now(rows, stored, rows.schema)["m"].to_pylist() == [[("x", [seen])], None]


def test_a_field_that_was_dropped_and_added_again_is_null_in_older_files() -> None:
    def schema(version: int, number: int) -> dict[str, Any]:
        struct = {"type": "record", "fields": [field(5, "p"), field(number, "q")]}
        return {"version_id": version, "type": "record", "fields": [field(3, "st", struct)]}

    old, new = schema(0, 6), schema(20260101000000000, 7)
    ids = parse_ids("k", json.dumps(new), json.dumps({"schemas": [new, old]}).encode())
    struct = pa.struct([("p", pa.int32()), ("q", pa.int32())])
    rows = pa.table({"st": pa.array([{"p": 1, "q": 2}], struct)})
    stored = ids.stored("20250101000000000", rows.schema)
    assert stored is not None
    assert as_now(rows, stored, rows.schema)["st"].to_pylist() == [{"p": 1, "q": None}]


def test_a_file_older_than_every_version_is_read_by_names() -> None:
    schema = {"version_id": 20260101000000000, "type": "record", "fields": [field(1, "a")]}
    ids = parse_ids("k", json.dumps(schema), json.dumps({"schemas": [schema]}).encode())
    file = pa.schema([("a", pa.int32())])
    assert ids.stored("20250101000000000", file) is None
    assert ids.stored("20260101000000000", file) == {"a": ("a", pa.int32())}


@pytest.mark.parametrize("name", RENAMED)
@pytest.mark.parametrize("operation", ["CLUSTER", "UPSERT"])
def test_a_commit_that_cannot_change_the_columns_needs_no_ids(
    hudi_made: Path, tmp_path: Path, name: str, operation: str
) -> None:
    """Hudi's clustering says a schema without ids, and its readers pass over that commit."""
    table, layout = copied(hudi_made, tmp_path, name), name[3]
    timeline = table / ".hoodie" / ("timeline" if layout == "9" else "")
    said = {"operationType": operation, "extraMetadata": {"schema": '{"type": "record"}'},
            "partitionToWriteStats": {}, "partitionToReplaceFileIds": {}}  # fmt: skip
    (timeline / f"{LATER}.replacecommit.requested").touch()
    end = f"_{LATER[:-1]}1" if layout == "9" else ""
    (timeline / f"{LATER}{end}.replacecommit").write_text(json.dumps(said))
    if operation == "UPSERT":  # its writer knew the columns by names alone
        with pytest.raises(UnsupportedTable, match="has no ids of the columns"):
            ours(table)
        return
    assert ours(table) == ours(table, as_of=LATER) == ours(hudi_made / name)


def version(number: int, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"version_id": number, "type": "record", "fields": list(fields)}


def inside(*fields: dict[str, Any]) -> dict[str, Any]:
    return field(2, "st", {"type": "array", "element": {"type": "record", "fields": list(fields)}})


KEPT = {
    "added": ([field(1, "a")], [field(1, "a"), field(2, "b")], True),
    "dropped": ([field(1, "a"), field(2, "b")], [field(1, "a")], True),
    "moved": ([field(1, "a"), field(2, "b")], [field(2, "b"), field(1, "a")], True),
    "renamed": ([field(1, "a")], [field(1, "b")], False),
    "added again": ([field(1, "a")], [field(2, "a")], False),
    "added inside": ([inside(field(3, "a"))], [inside(field(3, "a"), field(4, "b"))], True),
    "the same name inside": ([inside(field(3, "st"))], [inside(field(3, "st"))], True),
    "renamed inside": ([inside(field(3, "a"))], [inside(field(3, "b"))], False),
    "added again inside": ([inside(field(3, "a"))], [inside(field(4, "a"))], False),
}  # fmt: skip


@pytest.mark.parametrize("change", KEPT)
def test_after_a_writer_without_ids_names_are_read_if_they_are_as_good(
    hudi_made: Path, tmp_path: Path, change: str
) -> None:
    """An ALTER TABLE with the option, then a writer with Hudi's defaults: Hudi reads by names."""
    old, new, kept = KEPT[change]
    table = copied(hudi_made, tmp_path, "cow6_plain")
    expected = ours(table)
    first, *_ = sorted((table / ".hoodie").glob("*.commit"))
    said, now = json.loads(first.read_text()), version(int(first.stem), *new)
    said["extraMetadata"]["latest_schema"] = json.dumps(now)
    first.write_text(json.dumps(said))
    (table / ".hoodie/.schema").mkdir()
    history = json.dumps({"schemas": [now, version(0, *old)]})
    (table / f".hoodie/.schema/{first.stem}.schemacommit").write_text(history)
    if not kept:
        with pytest.raises(UnsupportedTable, match="renamed or dropped some by ids"):
            ours(table)
        return
    assert ours(table) == expected
    assert not run(plan_adoption(), open_store(f"file://{table}"), Clock()).writable
