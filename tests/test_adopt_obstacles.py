"""What each write would refuse a table for, `lockkit table adopt` says at once, beside the rest."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hudi_rs import read_by_hudi_rs
from suite_plugin import rest_in_soak
from test_adopt import adopt, files, keys, say
from test_refused_writes import a_commit_is_damaged, a_restore_is_pending, an_instant_is_ahead

from lockkit import open_store
from lockkit.errors import TableError
from lockkit.table import Table
from lockkit.table.errors import NotWritable
from lockkit.table.format.properties import from_properties
from lockkit.table.format.property_keys import format_properties
from lockkit.table.format.row_partitions import partition_numbers
from lockkit.table.services import stored_rows
from lockkit.table.services.refused import Pretended

pytestmark = [
    pytest.mark.usefixtures("no_hudi_beside"),
    pytest.mark.filterwarnings("ignore::lockkit.table.read.listed.LocalInstants"),
]
COW, MOR = "COPY_ON_WRITE", "MERGE_ON_READ"
KEYS, FIELDS = "hoodie.table.recordkey.fields", "hoodie.table.partition.fields"
ORDERING, PRECOMBINE = "hoodie.table.ordering.fields", "hoodie.table.precombine.field"
KINDS: dict[str, dict[str, Any]] = {
    "cow9": {}, "cow6": {"version": 6}, "mor9": {"table_type": MOR, "index": "BUCKET"},
    "mor6": {"table_type": MOR, "version": 6, "index": "BUCKET"}, "fenced": {"mode": "fenced"},
}  # fmt: skip


def rows(*names: str, at: int = 1) -> pa.Table:
    return pa.table({"id": names, "at": [at] * len(names), "region": ["EU"] * len(names)})


def made(folder: Path, kind: str) -> Table:
    own = {"buckets": 1, "mode": "hudi", "options": {"hoodie.clean.automatic": "false"}}
    how = {"record_key": "id", "precombine": "at", "partition_by": "region"}
    table = Table.create(f"file://{folder}", **how, **own | KINDS[kind])
    table.upsert(rows("a", "b"))
    table.upsert(rows("a", at=2))
    return table


# --- one obstacle, and another one ----------------------------------------------------------------

Deed = Callable[[Table], None]


def folder(table: Table) -> Path:
    return Path(table.url.removeprefix("file://"))


def says(**changed: str) -> Deed:
    return lambda table: say(folder(table), **{k.replace("__", "."): v for k, v in changed.items()})


def of(key: str, value: str) -> Deed:
    return lambda table: say(folder(table), **{key: value})


def column(name: str, kind: Any) -> Deed:
    """The newest commit says that a column has another type."""

    def change(table: Table) -> None:
        path = max(folder(table).glob(".hoodie/**/*commit"), key=lambda each: each.name)
        said = json.loads(path.read_text())
        schema = json.loads(said["extraMetadata"]["schema"])
        fields = [each for each in schema["fields"] if each["name"] != name]
        schema["fields"] = [*fields, {"name": name, "type": ["null", kind], "default": None}]
        said["extraMetadata"]["schema"] = json.dumps(schema)
        path.write_text(json.dumps(said))

    return change


def instant(action: str) -> Deed:
    def add(table: Table) -> None:
        there = max(folder(table).glob(".hoodie/**/*.requested"), key=lambda each: each.name)
        there.with_name(f"20260101000000000.{action}").write_bytes(b"")

    return add


def file(name: str, body: str = "any") -> Deed:
    def add(table: Table) -> None:
        path = folder(table) / ".hoodie" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(body)

    return add


MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
OBSTACLES: dict[str, tuple[str, Deed, str]] = {
    "key of no column": ("cow9", of(KEYS, "uuid"), f"{KEYS}=uuid: .*no column 'uuid', only id, at"),
    "keys of no column": ("cow6", of(KEYS, "id,uuid"), "no column 'uuid'"),
    "partition of no column": ("cow9", of(FIELDS, "day"), f"{FIELDS}=day: .*no column 'day'"),
    "ordering of no column": ("mor9", of(ORDERING, "ts"), f"{ORDERING}=ts: .*no column 'ts'"),
    "precombine of no column": ("cow6", of(PRECOMBINE, "ts"), f"{PRECOMBINE}=ts: .*no column 'ts'"),
    "key in other letters": ("cow9", of(KEYS, "ID"), "no column 'ID'"),
    "fenced, key of no column": ("fenced", of(KEYS, "uuid"), "no column 'uuid'"),
    "key and a comma": ("cow9", of(KEYS, "id,"), f"{KEYS}=id,: '' is no plain name"),
    "key twice": ("mor9", of(KEYS, "id,id"), "'id' is there twice"),
    "key in a struct": ("cow9", of(KEYS, "a.b"), "'a.b' is no plain name"),
    "partition in a struct": ("mor6", of(FIELDS, "a.b"), "'a.b' is no plain name"),
    "two ordering columns": ("mor9", of(ORDERING, "at,id"), "only one such field"),
    "another index": ("cow9", of("hoodie.index.type", "BLOOM"), "hoodie.index.type=BLOOM: lockkit"),
    "consistent hashing": ("mor9", of("hoodie.index.type", "GLOBAL"), "hoodie.index.type=GLOBAL"),
    "buckets without a key": ("cow9", says(
        hoodie__index__type="BUCKET", hoodie__bucket__index__num__buckets="4", **{KEYS: ""}),
        "BUCKET needs record keys"),
    "another mode": ("cow9", of("lockkit.commit.mode", "shared"), "commit.mode=shared must be"),
    "group commit for Hudi": ("cow9", of("lockkit.fence.format", "4"), "group commit needs"),
    "no buckets": ("cow9", of("lockkit.bucket.count", "0"), "bucket.count=0 must be from 1"),
    "archive elsewhere": ("cow6", of("hoodie.archivelog.folder", "../a"), "a folder's name"),
    "merge rule": ("mor9", of("hoodie.record.merge.property.x", "y"), "by this rule"),
    "payload": ("mor6", of("hoodie.compaction.payload.class", "my.Own"), "my.Own: lockkit merges"),
    "key generator": ("cow6", of("hoodie.table.keygenerator.class", "my.Own"), "would not match"),
    "bootstrapped": ("cow9", of("hoodie.bootstrap.base.path", "/x"), "bootstrapped table"),
    "checksum": ("cow9", of("hoodie.table.checksum", "1"), "checksum does not match"),
    "ids": ("mor6", file(".schema/20260101000000000.schemacommit", '{"schemas": []}'), "by ids"),
    "damaged commit": ("cow9", a_commit_is_damaged, "commit"),
    "damaged commit of logs": ("mor6", a_commit_is_damaged, "commit"),
    "pending restore": ("mor9", a_restore_is_pending, "pending restore"),
    "pending index": ("cow9", instant("indexing.requested"), "pending indexing"),
    "log files": ("cow6", instant("deltacommit"), "log files"),
    "broken fence": ("fenced", file(".locks/fence.json"), "fence.json"),
    "newer fence": ("fenced", file(".locks/fence.json", '{"format": 99, "needs": 99}'), "fence"),
    "key of reals": ("cow6", column("id", "double"), f"{KEYS}=id: column 'id' is a record key"),
    "partition of reals": ("cow6", column("region", "float"), f"{FIELDS}=region: .*spell diff"),
    "flag that orders": ("mor6", column("at", "boolean"), "do not compare this type alike"),
    "times in ms": ("mor6", column("seen", MILLIS), "times in milliseconds"),
    "time of day": ("cow6", column("t", {"type": "int", "logicalType": "time-millis"}), "time32"),
    "two types": ("cow6", column("u", ["int", "string"]), "has Avro type"),
}  # fmt: skip
OTHERS: dict[str, tuple[Deed, str]] = {
    "change log": (of("hoodie.table.cdc.enabled", "true"), "does not write change logs"),
    "instant ahead": (an_instant_is_ahead, "hours ahead of this clock"),
}


@pytest.mark.parametrize("name", OBSTACLES)
def test_what_a_write_refuses_is_listed_with_every_other_obstacle(
    tmp_path: Path, capsys: Any, name: str
) -> None:
    import re

    kind, happens, said = OBSTACLES[name]
    with made(tmp_path / "t", kind) as table:
        assert adopt(capsys, tmp_path / "t", "--dry-run")[1]["obstacles"] == []
        happens(table)
    for write in ("upsert", "append", "delete", "overwrite"):
        with pytest.raises(TableError), Table(table.url) as writer:
            getattr(writer, write)(rows("a", at=3))
    expected = [said]
    for another, its in OTHERS.values():
        code, shown = adopt(capsys, tmp_path / "t")
        listed = [*shown["obstacles"], *(each["blocked"] for each in shown["fixes"])]
        for each in expected:
            assert any(re.search(each, one) for one in listed), (each, listed)
        assert code == 1 and len(set(listed)) == len(listed)
        another(table)
        expected.append(its)


MISPLACED = {
    "another key": (of("hoodie.table.keygenerator.type", "COMPLEX"), "would have 'id:"),
    "another partition": (of(FIELDS, "at"), "'region=EU', and would have 'at="),
    "no partition": (of(FIELDS, ""), "'region=EU', and would have ''"),
    "other folders": (of("hoodie.datasource.write.hive_style_partitioning", "false"), "have 'EU'"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISPLACED)
def test_properties_by_which_no_stored_row_is_where_it_lies_are_an_obstacle(
    tmp_path: Path, capsys: Any, name: str
) -> None:
    happens, said = MISPLACED[name]
    made(tmp_path / "t", "cow9").close()
    happens(Table(f"file://{tmp_path}/t"))
    if name == "no partition":
        say(tmp_path / "t", **{"hoodie.table.keygenerator.type": "NON_PARTITION"})
    for _ in range(2):
        code, shown = adopt(capsys, tmp_path / "t")
        assert code == 1 and any(said in each for each in shown["obstacles"]), shown
        say(tmp_path / "t", **{"hoodie.table.cdc.enabled": "true"})


def test_rows_that_a_global_index_keeps_elsewhere_are_no_obstacle(
    tmp_path: Path, capsys: Any
) -> None:
    with made(tmp_path / "t", "cow9") as table, pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_rows, "ROWS_MAX", 1)
        moved = partition_numbers
        patch.setattr(stored_rows, "partition_numbers", lambda config, rows: (
            moved(config, rows)[0], ["region=US"]))  # fmt: skip
        assert "region=US" in str(adopt(capsys, tmp_path / "t")[1]["obstacles"])
        say(tmp_path / "t", **{"lockkit.rows.elsewhere": "true"})
        assert adopt(capsys, tmp_path / "t")[0] == 0
        assert table.read().num_rows == 2


def test_a_comma_too_much_is_one_obstacle(tmp_path: Path, capsys: Any) -> None:
    made(tmp_path / "t", "cow6").close()
    say(tmp_path / "t", **{KEYS: "id,"})
    (only,) = adopt(capsys, tmp_path / "t")[1]["obstacles"]
    assert f"{KEYS}=id,: '' is no plain name" in only


def test_a_pretended_table_is_not_written(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    with pytest.raises(AssertionError, match="nothing is written"):
        Pretended(store, b"").put("a", b"", None)


def test_a_delete_is_refused_where_the_key_is_no_column(tmp_path: Path) -> None:
    """Without a check it ended with a KeyError."""
    with made(tmp_path / "t", "cow9"):
        say(tmp_path / "t", **{KEYS: "uuid"})
    before = files(tmp_path / "t")
    for write in ("upsert", "append", "delete", "overwrite"):
        with pytest.raises(TableError, match="no column 'uuid'"), Table(
            f"file://{tmp_path}/t"
        ) as table:
            getattr(table, write)(rows("c").append_column("uuid", pa.array(["u"])))
    assert {k for k in files(tmp_path / "t") if k.endswith(".parquet")} == {
        k for k in before if k.endswith(".parquet")}  # fmt: skip


# --- odd properties, at random --------------------------------------------------------------------

ODD: dict[str, tuple[str, ...]] = {
    KEYS: ("id,", "id, kind", "kind", "uuid", "", "id,id", "who.name", "price", "ts"),
    FIELDS: ("", "day", "region,day", "price", "region:SIMPLE", "at", "x y", "v"),
    ORDERING: ("v", "ts,v", "none", "", "price", "tags"), PRECOMBINE: ("v", "ts,v", "none", ""),
    "hoodie.index.type": ("BLOOM", "BUCKET", "GLOBAL_SIMPLE", ""),
    "hoodie.bucket.index.num.buckets": ("3", "0", "x", ""),
    "lockkit.commit.mode": ("hudi", "shared", ""), "lockkit.bucket.count": ("2", "0", "1e3", ""),
    "lockkit.fence.format": ("4", "1", ""), "lockkit.commit.mode.switches": ("x", "3"),
    "lockkit.instant.accepted": ("x", ""), "hoodie.table.name": ("a b", "", "\x07"),
    "hoodie.table.checksum": ("1", ""), "hoodie.database.name": ("d", "\x00"),
    "hoodie.record.merge.mode": ("COMMIT_TIME_ORDERING", "EVENT_TIME_ORDERING", "CUSTOM", ""),
    "hoodie.table.keygenerator.type": ("SIMPLE", "COMPLEX", "CUSTOM", "TIMESTAMP", "timestamp", ""),
    "hoodie.table.keygenerator.class": ("org.apache.hudi.keygen.CustomKeyGenerator", "x", ""),
    "hoodie.logfile.data.block.format": ("parquet", "hfile", ""),
    "hoodie.datasource.write.hive_style_partitioning": ("true", "maybe", ""),
    "hoodie.datasource.write.partitionpath.urlencode": ("true", ""),
    "hoodie.table.base.file.format": ("ORC", "parquet", ""), "hoodie.table.format": ("x", "NATIVE"),
    "hoodie.populate.meta.fields": ("false", "true"), "hoodie.archivelog.folder": ("../x", "old"),
    "hoodie.table.version": ("7", "5", "x", ""), "hoodie.timeline.layout.version": ("1", "x", ""),
    "hoodie.table.timeline.timezone": ("utc", "LOCAL", "x", ""), "any.other": ("x", ""),
    "hoodie.keygen.timebased.timestamp.type": ("DATE_STRING", "SCALAR"),
    "hoodie.table.partial.update.mode": ("IGNORE_DEFAULTS", "none"),
    "hoodie.metadata.enable": ("true", ""),
}  # fmt: skip
TABLES = ("cow9", "cow6_plain", "cow9_two", "cow9_keyless", "mor9", "mor6", "cow9_buckets")


def same_to_hudi_rs(table: Path, rows: pa.Table) -> bool:
    found = read_by_hudi_rs(table)
    return bool(sorted(found["id"].to_pylist()) == sorted(rows["id"].to_pylist()))


@pytest.mark.parametrize("seed", rest_in_soak(range(300), *range(24)))
def test_odd_properties_are_an_obstacle_or_the_adopted_table_is_written(
    hudi_made: Path, tmp_path: Path, capsys: Any, seed: int
) -> None:
    dice = random.Random(f"odd properties {seed}")
    name = dice.choice(TABLES)
    table = Path(shutil.copytree(hudi_made / name, tmp_path / name))
    for key in dice.sample(sorted(ODD), dice.choice((1, 1, 2, 3))):
        say(table, **{key: dice.choice(ODD[key])})
    more = ["--buckets", "3"] if name == "cow9_buckets" else []
    before = files(table)
    code, said = adopt(capsys, table, *more)
    if code:
        assert files(table) == before
        assert said["obstacles"] or any(each["blocked"] for each in said["fixes"])
        return
    with Table(f"file://{table}") as writer:
        stored = writer.read()
        first = {**stored.slice(0, 1).to_pylist()[0], "ts": 99}
        new = [{**first, "id": f"new {n}", "kind": "n", "v": 7} for n in range(2)]
        as_rows = [pa.Table.from_pylist([each], stored.schema) for each in (*new, first)]
        writer.append(as_rows[0])
        expected = stored.num_rows + 1
        if keys(table).get(KEYS):
            writer.upsert(as_rows[1])
            writer.upsert(as_rows[1])
            writer.delete(as_rows[1])
            writer.upsert(as_rows[2])
        now = writer.read()
        assert now.num_rows in ((expected,) if keys(table).get(KEYS) == "id" else
                                range(expected - 1, expected + 2))  # fmt: skip
    assert same_to_hudi_rs(table, now)
    with Table(f"file://{table}") as writer:
        if name.startswith("mor"):
            assert writer.compact() is not None
            assert same_to_hudi_rs(table, now)
        if keys(table).get(KEYS) and name != "mor6":
            writer.overwrite(as_rows[2])
            assert same_to_hudi_rs(table, writer.read())


@pytest.mark.parametrize("seed", rest_in_soak(range(40), 0))
def test_properties_make_a_config_or_are_refused_with_the_reason(seed: int) -> None:
    dice = random.Random(f"configs {seed}")
    base = {"hoodie.table.name": "t", "hoodie.table.version": "9", "hoodie.table.type": COW,
            "hoodie.timeline.layout.version": "2", "hoodie.table.timeline.timezone": "UTC",
            KEYS: "id"}  # fmt: skip
    made = 0
    for _ in range(500):
        said = dict(base)
        for key in dice.sample(sorted({*ODD, "hoodie.table.type"}), dice.choice((1, 2, 4))):
            said[key] = dice.choice((*ODD.get(key, (MOR, "x", COW)), "other"))
        try:
            from_properties(said)
            made += 1
        except NotWritable:
            pass
        assert format_properties(said)
    assert made > 50
