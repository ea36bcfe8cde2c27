"""Several record keys and partition fields, judged by a dictionary, Hudi's rows and hudi-rs."""

from __future__ import annotations

import itertools
import random
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hudi_rs import read_by_hudi_rs

from lockkit import Clock, open_store
from lockkit.errors import TableError
from lockkit.runtime import run
from lockkit.table import CommitConflict, Table, create_table, read_table
from lockkit.table.errors import NotWritable, RefusedOption
from lockkit.table.format.base_file import record_keys
from lockkit.table.format.gate import refuse_other
from lockkit.table.format.partition import partition_path
from lockkit.table.format.properties import TableConfig, from_properties, to_properties
from lockkit.table.format.property_keys import (
    COMPLEX,
    KEY_CLASSES,
    format_properties,
    parse_properties,
)
from lockkit.table.format.row_partitions import partition_numbers
from lockkit.table.options import new_config, write_options
from lockkit.table.read.predicate import partition_value

pytestmark = pytest.mark.usefixtures("no_hudi_beside")

DATA = Path(__file__).parent / "data" / "hudi_tables" / "tables.tar.xz"
_NAMES = itertools.count()
NAMES = ("id", "kind", "region", "day", "at", "v")
SCHEMA = pa.schema(
    [(name, pa.string()) for name in NAMES[:4]] + [("at", pa.int64()), ("v", pa.int64())]
)
TWO = TableConfig(name="t", record_key="id,kind", partition_by="region,day")
Key = tuple[str, str, str, str]


def made(url: str = "", **how: Any) -> Table:
    url = url or f"memory://composite{next(_NAMES)}"
    how = {"record_key": ["id", "kind"], "partition_by": ["region", "day"]} | how
    return Table.create(url, precombine="at", **how)


def rows(found: dict[Key, tuple[int, int]]) -> pa.Table:
    each = [dict(zip(NAMES, (*key, *values), strict=True)) for key, values in found.items()]
    return pa.Table.from_pylist(each, SCHEMA)


def contents(found: pa.Table) -> dict[Key, tuple[int, int]]:
    each = [tuple(row[name] for name in NAMES) for row in found.to_pylist()]
    assert len({row[:4] for row in each}) == len(each), "no key is there twice"
    return {(row[0], row[1], row[2], row[3]): (row[4], row[5]) for row in each}


@pytest.mark.parametrize(("version", "mode"), [(6, "fenced"), (9, "hudi")])
def test_a_table_equals_a_dictionary_model(version: int, mode: str, tmp_path: Path) -> None:
    dice, model = random.Random(f"{version}"), dict[Key, tuple[int, int]]()
    url = f"file://{tmp_path}/orders"
    with made(url, version=version, mode=mode, buckets=2) as table:
        for number in range(9):
            operation = dice.choice(["upsert", "upsert", "delete", "overwrite", "append"])
            new = {
                (f"k{dice.randrange(3)}", dice.choice("ab"), dice.choice(["EU", "US"]),
                 f"d{each % 2}"): (number, dice.randrange(99))
                for each in range(4)
            }  # fmt: skip
            if operation == "append":
                new = {key: value for key, value in new.items() if key not in model}
            if new:
                getattr(table, operation)(rows(new))
            if operation == "delete":
                model = {key: row for key, row in model.items() if key not in new}
            else:
                if operation == "overwrite":
                    places = {key[2:] for key in new}
                    model = {key: row for key, row in model.items() if key[2:] not in places}
                model |= new
            assert contents(table.read()) == model
        eu = {key: row for key, row in model.items() if key[2] == "EU" and key[3] == "d0"}
        assert contents(table.read(filters=[("day", "=", "d0"), ("region", "=", "EU")])) == eu
        table.upsert(rows({("new", "a", "US", "d1"): (99, 1)}))
        gone = table.delete_partition("region=US/day=d1", "region=US/day=never")
        assert gone is not None
        model = {key: row for key, row in model.items() if key[2:] != ("US", "d1")}
        assert contents(table.read()) == model
        assert table.delete_partition("region=US/day=d1", "region=*") is not None
        assert contents(table.read()) == {}
        model = {("k", "a", "EU", "d1"): (1, 1), ("k", "a", "EU", "d2"): (1, 1)}
        table.upsert(rows(model))
        assert table.delete_partition("region=EU/day=d", "day=d1", "region=US*") is None
        for slashed in ("/region=EU/day=d1", "region=EU/day=d1/"):
            with pytest.raises(RefusedOption, match="without a slash"):
                table.delete_partition(slashed)
        table.upsert(rows({("k", "a", "EU", "x"): (1, 1)}))
        table.delete_partition("*/day=x")
    assert contents(read_by_hudi_rs(tmp_path / "orders")) == model


# --- as Hudi writes them --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("hudi")
    # Python before 3.11.4 does not know it.
    safely: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(DATA) as tar:
        wanted = [each for each in tar if each.name.startswith("cow9_two/")]
        tar.extractall(folder, wanted, **safely)
    yield folder / "cow9_two"


def say(folder: Path, **changed: str) -> None:
    path = folder / ".hoodie" / "hoodie.properties"
    path.write_bytes(format_properties({**parse_properties(path.read_bytes()), **changed}))


@pytest.fixture
def folder(theirs: Path, tmp_path: Path) -> Path:
    shutil.copytree(theirs, tmp_path / "t")
    utc = {"hoodie.table.timeline.timezone": "UTC", "hoodie.table.metadata.partitions": ""}
    say(tmp_path / "t", **utc)
    return tmp_path / "t"


def test_keys_and_partitions_are_spelt_as_hudi_spells_them(folder: Path) -> None:
    found = read_table(open_store(f"file://{folder}"), meta=True)
    keys = parse_properties((folder / ".hoodie" / "hoodie.properties").read_bytes())
    config = from_properties(keys)
    assert (config.record_key, config.partition_by) == ("id,kind", "region,day")
    assert record_keys(config, found).to_pylist() == found["_hoodie_record_key"].to_pylist()
    numbers, paths = partition_numbers(config, found)
    mine = [paths[number] for number in numbers.to_pylist()]
    assert mine == found["_hoodie_partition_path"].to_pylist()


def test_an_upsert_of_hudis_rows_replaces_them(folder: Path) -> None:
    with Table(f"file://{folder}") as table:
        before = table.read()
        model = {(row["id"], row["kind"]): row["v"] for row in before.to_pylist()}
        new = [{**row, "v": 70, "ts": 70} for row in before.to_pylist()[::2]]
        new.append({**new[0], "id": "n0"})
        table.upsert(pa.Table.from_pylist(new, before.schema))
        table.delete(before.slice(1, 1))
        model |= {(row["id"], row["kind"]): 70 for row in new}
        del model[before["id"][1].as_py(), before["kind"][1].as_py()]
        after = table.read().to_pylist()
        assert len(after) == len(model)
        assert {(row["id"], row["kind"]): row["v"] for row in after} == model
    found = read_by_hudi_rs(folder)
    assert {(row["id"], row["kind"]): row["v"] for row in found.to_pylist()} == model


@pytest.mark.parametrize(
    ("fields", "row", "key"),
    [
        (TWO, {"id": "a", "kind": None}, "id:a,kind:__null__"),
        (TWO, {"id": "", "kind": "b"}, "id:__empty__,kind:b"),
        (TableConfig(name="t", record_key="id,n"), {"id": "a", "n": 7}, "id:a,n:7"),
        (TableConfig(name="t", record_key="id", partition_by="region,day"), {"id": "a"}, "id:a"),
        (TableConfig(name="t", record_key="id", named=True), {"id": "a"}, "id:a"),
        (TableConfig(name="t", record_key="id"), {"id": "a"}, "a"),
    ],
)
def test_a_key_names_its_fields_where_hudis_does(
    fields: TableConfig, row: dict[str, Any], key: str
) -> None:
    """By `KeyGenUtils.getRecordKey` and the key generator that Hudi infers."""
    table = pa.table({name: pa.array([value], pa.int64() if name == "n" else pa.string())
                      for name, value in row.items()})  # fmt: skip
    assert record_keys(fields, table).to_pylist() == [key]


@pytest.mark.parametrize("row", [("1,kind:2", "3"), ("__null__", "a"), ("a", "__empty__")])
def test_a_row_whose_key_could_be_another_rows_is_refused(row: tuple[str, str]) -> None:
    """A key has no escape: ("1,kind:2", "3") and ("1", "2,kind:3") are one key, `id:1,kind:2,...`,
    and an upsert of the second replaced the first."""
    plain: dict[Key, tuple[int, int]] = {("1", "2,kind:3", "EU", "d"): (1, 1)}
    with made() as table:
        table.upsert(rows(plain))
        for write in (table.upsert, table.append, table.delete):
            with pytest.raises(TableError, match="another row could have the same key"):
                write(rows({(*row, "EU", "d"): (2, 2)}))
        assert contents(table.read()) == plain


def test_a_partition_path_that_could_be_of_two_values_is_refused() -> None:
    """Without an escape for slashes ("a/b", "c") and ("a", "b/c") are one path."""
    with made(hive_style=False, urlencode=False) as table:
        for region, day in (("a/b", "c"), ("a", "b/c")):
            with pytest.raises(TableError, match="rows of another partition could have the same"):
                table.upsert(rows({("1", "k", region, day): (1, 1)}))
    with made(hive_style=False, urlencode=False, partition_by="region") as table:
        table.upsert(rows({("1", "k", "2026/01", "d"): (1, 1)}))
        assert table.read().num_rows == 1, "one field names its path alone"


def test_a_batch_without_rows_is_accepted() -> None:
    with made() as table:
        assert table.upsert(rows({})) is None and table.delete(rows({})) is None


def test_a_row_whose_key_fields_are_all_empty_is_refused() -> None:
    with made() as table, pytest.raises(TableError, match="no record key"):
        row = {"region": "EU", "day": "d", "at": 1, "id": ""}
        table.append(pa.Table.from_pylist([row], SCHEMA))


def test_a_partitions_path_has_a_folder_for_each_field() -> None:
    plain = TableConfig(name="t", record_key="id", partition_by="region,day", hive_style=False)
    assert partition_path(TWO, ("E/U", None)) == "region=E%2FU/day=__HIVE_DEFAULT_PARTITION__"
    assert partition_path(plain, ("EU", 7)) == "EU/7"
    assert partition_value(TWO, "region=E%2FU/day=7", "day") == "7"
    assert partition_value(plain, "EU/2026/01", "region") is None, "not certain"


@pytest.mark.parametrize("version", [6, 9])
@pytest.mark.parametrize(
    ("keys", "fields"),
    [("id,kind", None), ("id,kind", "region"), ("id", "region,day"), ("id,kind", "region,day")],
)
def test_a_config_is_read_as_it_was_written(version: int, keys: str, fields: str | None) -> None:
    config = TableConfig(name="t", record_key=keys, partition_by=fields, version=version)
    said = to_properties(config)
    assert from_properties(said) == config
    spaced = {**said, "hoodie.table.recordkey.fields": keys.replace(",", " , ")}
    assert from_properties(spaced) == config


@pytest.mark.parametrize("fields", [None, "region"])
def test_a_complex_key_generator_names_a_single_key(fields: str | None) -> None:
    """By `KeyGenUtils.encodeSingleKeyFieldNameForComplexKeyGen`: always in version 9 alone."""
    config = TableConfig(name="t", record_key="id", partition_by=fields, named=True)
    assert from_properties(said := to_properties(config)) == config
    assert said["hoodie.table.keygenerator.type"] == "COMPLEX"
    assert from_properties({**said, "hoodie.table.complex.keygen.encoding": "FIELD_PREFIXED"})
    for version in (6, 8):
        old = to_properties(replace(config, version=version))
        assert from_properties(old).named, "made by lockkit"
        with pytest.raises(NotWritable, match="HUDI-7001"):
            from_properties({key: value for key, value in old.items() if "lockkit" not in key})
    url = f"memory://composite{next(_NAMES)}"
    key_class = {"hoodie.datasource.write.keygenerator.class": KEY_CLASSES[COMPLEX]}
    asked = write_options(key_class, operation="upsert", record_key="id", partition_path=fields)
    made = new_config(asked, url)
    assert made.named
    refuse_other(asked.described, made)
    with pytest.raises(TableError, match="makes other keys"):
        refuse_other(dict.fromkeys(key_class, "SIMPLE"), made)
    store = open_store(url)
    run(create_table(made), store, Clock())
    row = {"id": "a", "region": "EU", "v": 1}
    with Table(url) as table:
        for each in (1, 2):
            table.upsert(pa.Table.from_pylist([{**row, "v": each}]))
        assert table.read().to_pylist() == [{**row, "v": 2}]
    assert read_table(store, meta=True)["_hoodie_record_key"].to_pylist() == ["id:a"]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"hoodie.table.keygenerator.type": "SIMPLE"}, "would not match ours"),
        ({"hoodie.table.keygenerator.type": "TIMESTAMP"}, "exactly one record key and one"),
        ({"hoodie.table.recordkey.fields": "id", "hoodie.table.complex.keygen.encoding":
          "VALUE_ONLY"}, "HUDI-7001"),
    ],
)  # fmt: skip
def test_keys_that_would_be_others_are_refused(changed: dict[str, str], why: str) -> None:
    with pytest.raises(NotWritable, match=why):
        from_properties({**to_properties(TWO), **changed})


def test_a_partition_that_was_written_since_is_not_deleted() -> None:
    url = f"memory://composite{next(_NAMES)}"
    with made(url) as one, Table(url) as other:
        one.upsert(rows({("a", "a", "EU", "d"): (1, 1), ("a", "a", "US", "d"): (1, 1)}))
        from lockkit.table.arrow_write import ArrowWrite

        files = ArrowWrite.files

        def overtaken(self: ArrowWrite, *args: Any) -> Any:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(ArrowWrite, "files", files)
                other.upsert(rows({("n", "a", "EU", "d"): (1, 1)}))
            return files(self, *args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ArrowWrite, "files", overtaken)
            with pytest.raises(CommitConflict):
                one.delete_partition("region=EU/day=d")
        assert len(contents(one.read())) == 3


def test_a_table_without_partitions_is_not_emptied_by_an_empty_path() -> None:
    with made(partition_by=None) as table:
        table.upsert(rows({("a", "a", "EU", "d"): (1, 1)}))
        with pytest.raises(TableError, match="no partitions"):
            table.delete_partition("")
        assert len(contents(table.read())) == 1
