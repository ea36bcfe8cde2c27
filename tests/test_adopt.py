"""`lockkit table adopt`: every obstacle at once, and what can be changed is changed, or nothing."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hudi_rs import read_by_hudi_rs
from table_world import AFTER, CLOCK, Lossy, prepare_inserts

from lockkit import open_store
from lockkit.cli.adopt import _lines
from lockkit.cli.main import main
from lockkit.errors import TableError
from lockkit.runtime import run
from lockkit.stores.local import LocalStore
from lockkit.table import CommitConflict, Table, read_table
from lockkit.table.arrow_write import ArrowWrite
from lockkit.table.errors import NotWritable
from lockkit.table.format.properties import PROPERTIES_KEY
from lockkit.table.format.property_keys import (
    BLOCK_KEY,
    format_properties,
    no_metadata,
    parse_properties,
)
from lockkit.table.format.timeline import instant_of
from lockkit.table.occ.heartbeat import Heartbeat
from lockkit.table.occ.rewriting import METADATA_PROPERTIES, MetadataSwitchedOff
from lockkit.table.read.bucket_groups import BucketGroups, has_bucket_number
from lockkit.table.services.adopt import adopt as adopt_table
from lockkit.table.services.adopt import plan_adoption

pytestmark = pytest.mark.usefixtures("no_hudi_beside")

BUCKETED = ("cow9_buckets", "cow6_buckets", "mor9_buckets")
NAMES = ("cow9", "cow9_keyless", "mor8", "mor9", *BUCKETED)
OFF = no_metadata("2")
TIMEZONE, PARTITIONS = "hoodie.table.timeline.timezone", "hoodie.table.metadata.partitions"


@pytest.fixture
def table_of(hudi_made: Path, tmp_path: Path) -> Any:
    def copy(name: str) -> Path:
        shutil.copytree(hudi_made / name, tmp_path / name)
        return tmp_path / name

    return copy


def keys(folder: Path) -> dict[str, str]:
    return parse_properties((folder / ".hoodie" / "hoodie.properties").read_bytes())


def say(folder: Path, **changed: str) -> None:
    path = folder / ".hoodie" / "hoodie.properties"
    path.write_bytes(format_properties({**keys(folder), **changed}))


def files(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def adopt(capsys: pytest.CaptureFixture[str], folder: Path, *more: str) -> tuple[int, Any]:
    code = main(["table", "adopt", f"file://{folder}", "--json", *more])
    return code, json.loads(capsys.readouterr().out)


def test_a_table_that_hudi_made_is_written_once_it_is_adopted(table_of: Any, capsys: Any) -> None:
    folder = table_of("cow9")
    url, before, old = f"file://{folder}", files(folder), keys(folder)
    code, said = adopt(capsys, folder, "--dry-run")
    assert (code, said["writable"], said["obstacles"], files(folder)) == (1, False, [], before)
    assert [each["changes"] for each in said["fixes"]] == [
        {PARTITIONS: "", **OFF}, {TIMEZONE: "UTC"},
    ]  # fmt: skip
    with Table(url) as table, pytest.raises(NotWritable, match="lockkit table adopt URL"):
        table.append(table.read())
    (folder / ".hoodie" / ".hoodie.properties.crc").write_bytes(b"of the old file")
    code, said = adopt(capsys, folder)
    assert (code, said["writable"]) == (0, True)
    assert keys(folder) == {**old, PARTITIONS: "", TIMEZONE: "UTC", **OFF}
    assert not (folder / ".hoodie" / ".hoodie.properties.crc").exists()
    (kept,) = (folder / ".hoodie" / ".lockkit").glob("hoodie.properties.*")
    assert parse_properties(kept.read_bytes()) == old and kept.name in said["changed"][-1]
    with Table(url) as table:
        rows = table.read().to_pylist()
        row = {**rows[0], "v": 77, "ts": 77}
        table.upsert(pa.Table.from_pylist([row], table.read().schema))
        expected = {each["id"]: each["v"] for each in rows} | {row["id"]: 77}
        assert {each["id"]: each["v"] for each in table.read().to_pylist()} == expected
    found = read_by_hudi_rs(folder)
    assert {each["id"]: each["v"] for each in found.to_pylist()} == expected
    assert adopt(capsys, folder)[1]["fixes"] == [], "a second time there is nothing to do"


def test_rows_are_appended_to_a_table_of_hudis_without_keys_and_have_keys_then(
    table_of: Any, capsys: Any
) -> None:
    folder = table_of("cow9_keyless")
    assert adopt(capsys, folder)[0] == 0
    with Table(f"file://{folder}") as table:
        rows = table.read()
        instant = table.append(rows).instant
        found = read_table(table.store, table.clock, meta=True)
    theirs = read_by_hudi_rs(folder)
    made = set(found["_hoodie_record_key"].to_pylist())
    assert made == set(theirs["_hoodie_record_key"].to_pylist())
    assert len(made) == found.num_rows == 2 * rows.num_rows
    assert sum(each.startswith(f"{instant}_0_") for each in made) == rows.num_rows


@pytest.mark.parametrize(("name", "reasons"), [("mor6", ["hoodie.table.cdc.enabled"])])
def test_adopt_changes_nothing_if_another_obstacle_would_remain(
    table_of: Any, capsys: Any, name: str, reasons: list[str]
) -> None:
    folder = table_of(name)
    say(folder, **{"hoodie.table.cdc.enabled": "true"})
    before = files(folder)
    code, said = adopt(capsys, folder)
    assert (code, files(folder)) == (1, before)
    for reason in reasons:
        assert any(reason in each for each in said["obstacles"]), said["obstacles"]
    off = no_metadata(keys(folder)["hoodie.timeline.layout.version"])
    assert {PARTITIONS: "", **off} in [each["changes"] for each in said["fixes"]]
    assert main(["table", "adopt", f"file://{folder}"]) == 1
    shown = capsys.readouterr().out
    assert "nothing was changed: something else is in the way" in shown


@pytest.mark.parametrize(
    ("state", "ahead_ms", "why"),
    [
        ("inflight", -1000, "is under way in local time"),
        ("clean.requested", 7_190_000, "120 minutes"),
    ],
)
def test_instants_stay_local_while_one_of_utc_would_not_be_the_latest(
    table_of: Any, capsys: Any, state: str, ahead_ms: int, why: str
) -> None:
    import time

    folder = table_of("cow9")
    instant = instant_of(int(time.time() * 1000) + ahead_ms)
    (folder / ".hoodie" / "timeline" / f"{instant}.{state}").touch()
    before = files(folder)
    code, said = adopt(capsys, folder)
    assert (code, files(folder)) == (1, before)
    assert why in said["fixes"][1]["blocked"] and instant in said["fixes"][1]["blocked"]
    assert main(["table", "adopt", f"file://{folder}"]) == 1
    assert "options of Hudi's writers" not in capsys.readouterr().out


def test_a_fenced_table_that_hudi_wrote_to_is_left_alone(table_of: Any, capsys: Any) -> None:
    folder = table_of("cow9")
    say(folder, **{"lockkit.commit.mode": "fenced", TIMEZONE: "UTC"})
    code, said = adopt(capsys, folder)
    assert (code, keys(folder)[PARTITIONS] != "") == (1, True)
    assert "which writer did" in said["fixes"][0]["blocked"]


BUCKETS = "hoodie.bucket.index.num.buckets"


@pytest.mark.parametrize("name", BUCKETED)
def test_a_table_with_hudis_buckets_is_adopted_with_their_number_and_keeps_one_row_for_each_key(
    table_of: Any, capsys: Any, name: str
) -> None:
    folder = table_of(name)
    before = files(folder)
    for given, why in ((), "fit 3"), (("2",), "a bucket 2"), (("5",), "would be in"):
        code, said = adopt(capsys, folder, *(["--buckets", *given] if given else []))
        (fix,) = (each for each in said["fixes"] if "Hudi's bucket index" in each["what"])
        assert (code, fix["changes"], files(folder)) == (1, {}, before)
        assert why in fix["blocked"] and "fit 3 buckets" in fix["blocked"]
        assert BUCKETS not in said["writer_options"]
    code, said = adopt(capsys, folder, "--buckets", "3")
    assert (code, said["writable"]) == (0, True)
    assert said["writer_options"][BUCKETS] == keys(folder)[BUCKETS] == "3"
    assert said["writer_options"]["hoodie.index.type"] == keys(folder)["hoodie.index.type"]
    with Table(f"file://{folder}") as table:
        rows, groups = table.read(), set(table.refresh().groups)
        new = rows.set_column(rows.schema.get_field_index("ts"), "ts", pa.array(
            [99] * rows.num_rows, pa.int64()))  # fmt: skip
        table.upsert(new)
        table.append(new.slice(0, 3))
        assert table.read()["ts"].to_pylist() == [99] * rows.num_rows
        assert set(table.refresh().groups) == groups
        with pytest.raises(TableError, match="is not clustered"):
            table.cluster()
    found = read_by_hudi_rs(folder)
    assert sorted(found["id"].to_pylist()) == sorted(rows["id"].to_pylist())
    assert adopt(capsys, folder, "--buckets", "3")[1]["fixes"] == []
    assert main(["table", "adopt", f"file://{folder}", "--buckets", "4"]) == 3
    assert "its properties say 3" in capsys.readouterr().err


def test_no_number_of_buckets_is_taken_for_a_table_that_has_none(
    table_of: Any, capsys: Any
) -> None:
    folder = table_of("cow9")
    assert main(["table", "adopt", f"file://{folder}", "--buckets", "3"]) == 3
    assert "no file id here begins with the number" in capsys.readouterr().err
    (folder / ".hoodie" / ".bucket_index").mkdir()
    (folder / ".hoodie" / ".bucket_index" / "any").touch()
    code, said = adopt(capsys, folder, "--buckets", "3")
    assert code == 1 and any("consistent hashing" in each for each in said["obstacles"])
    assert not any("bucket" in each["what"] for each in said["fixes"])
    assert adopt(capsys, folder)[0] == 1


def test_a_merge_on_read_table_with_consistent_hashing_is_not_written(
    table_of: Any, capsys: Any
) -> None:
    """Its file ids are like any others, and only this folder shows it."""
    folder = table_of("mor9")
    assert adopt(capsys, folder)[0] == 0
    with Table(f"file://{folder}") as table:
        rows = table.read().slice(0, 1)
        (folder / ".hoodie" / ".bucket_index").mkdir()
        (folder / ".hoodie" / ".bucket_index" / "any").touch()
        before = files(folder)
        for write in (table.upsert, table.append, table.delete):
            with pytest.raises(TableError, match="consistent hashing"):
                write(rows)
        assert files(folder) == before


@pytest.mark.parametrize(("name", "number"), [("cow9", "3"), ("cow9_buckets", "2")])
def test_a_bucket_index_that_file_ids_contradict_is_not_believed(
    table_of: Any, capsys: Any, name: str, number: str
) -> None:
    """Somebody wrote it into the properties: an upsert would add a key once more."""
    folder = table_of(name)
    say(folder, **{PARTITIONS: "", TIMEZONE: "UTC", **OFF})
    say(folder, **{"hoodie.index.type": "BUCKET", BUCKETS: number})
    before = files(folder)
    with Table(f"file://{folder}") as table:
        rows = table.read()
        for write in (table.upsert, table.append, table.delete):
            with pytest.raises(TableError, match=f"none of the {number} buckets"):
                write(rows.slice(0, 1))
    assert files(folder) == before
    for said in ({}, {BUCKETS: "5"}):  # the ids of "cow9_buckets" do not contradict 5
        say(folder, **said)
        code, shown = adopt(capsys, folder)
        assert code == 1 and "in the properties" in shown["fixes"][-1]["what"]
    say(folder, **{BUCKETS: "3"})
    assert adopt(capsys, folder)[0] == (name == "cow9"), "which has no buckets at all"


@pytest.mark.parametrize("number", [None, "", "many", "0", "10001", "5", "6"])
def test_a_number_of_buckets_that_is_missing_or_wrong_closes_no_read_and_is_corrected(
    table_of: Any, capsys: Any, number: str | None
) -> None:
    """Without one lockkit took four buckets, and added a key once more."""
    folder = table_of("cow9_buckets")
    said = {PARTITIONS: "", TIMEZONE: "UTC", **OFF, "hoodie.index.type": "BUCKET"}
    say(folder, **said | ({} if number is None else {BUCKETS: number}))
    with Table(f"file://{folder}") as table:
        rows = table.read()
        assert rows.num_rows == 12
        why = "is in bucket" if number in ("5", "6") else f"{BUCKETS} is"
        with pytest.raises(TableError, match=f"{why} .*lockkit table adopt"):
            table.upsert(rows)
    for given in ((), ("--buckets", "4")):
        code, shown = adopt(capsys, folder, *given)
        assert code == 1 and "fit 3 buckets" in shown["fixes"][-1]["blocked"]
    code, shown = adopt(capsys, folder, "--buckets", "3")
    assert (code, shown["writer_options"][BUCKETS], keys(folder)[BUCKETS]) == (0, "3", "3")
    with Table(f"file://{folder}") as table:
        groups = set(table.refresh().groups)
        table.upsert(rows)
        assert (table.read().num_rows, set(table.refresh().groups)) == (12, groups)
    assert adopt(capsys, folder)[1]["fixes"] == []


@pytest.mark.parametrize("last", ["-0", ""], ids=["spark", "flink"])
def test_a_file_id_of_hudis_bucket_index_is_known_with_sparks_end_and_without(last: str) -> None:
    """`BucketIdentifier.newBucketFileIdPrefix` is Flink's whole file id; Spark adds `-0`."""
    assert has_bucket_number(f"00000003-7a5c-4f2e-9d1b-0123456789ab{last}")
    assert not has_bucket_number(f"00000003-7a5cf2e9d1b0123456789{last}")


@pytest.mark.parametrize("mode", ["fenced", "hudi"])
def test_lockkits_own_buckets_are_not_taken_for_those_of_hudis_index(
    tmp_path: Path, capsys: Any, mode: str
) -> None:
    """Their ids begin with a number, too; the hash is another."""
    rows = pa.table({"id": [f"k{n}" for n in range(8)]})
    with Table.create(f"file://{tmp_path}/t", record_key="id", mode=mode) as table:
        table.upsert(rows)
    say(tmp_path / "t", **{"hoodie.index.type": "BUCKET", BUCKETS: "4"})
    with Table(f"file://{tmp_path}/t") as table:
        for write in (table.upsert, table.delete):
            with pytest.raises(TableError, match="none of the 4 buckets"):
                write(rows)
    code, shown = adopt(capsys, tmp_path / "t")
    assert code == 1 and "does not begin with" in shown["fixes"][-1]["blocked"]


def test_two_file_groups_of_one_bucket_are_neither_adopted_nor_written(
    table_of: Any, capsys: Any
) -> None:
    folder = table_of("cow9_buckets")
    assert adopt(capsys, folder, "--buckets", "3")[0] == 0
    with Table(f"file://{folder}") as table:
        row = table.read().slice(0, 1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BucketGroups, "of", lambda _, partition, bucket: (
                partition, f"{bucket:08d}-0000-4000-8000-0123456789ab-0"))  # fmt: skip
            table.upsert(row)
        with pytest.raises(TableError, match="two file groups of one bucket"):
            table.upsert(row)
    say(folder, **{"hoodie.index.type": "", BUCKETS: ""})
    code, said = adopt(capsys, folder, "--buckets", "3")
    assert code == 1 and "has several file groups" in said["fixes"][-1]["blocked"]


def test_a_buckets_first_file_group_of_another_writer_is_a_conflict_whatever_its_id(
    tmp_path: Path,
) -> None:
    """Hudi's writers give it a random id, and lockkit's a fixed one."""
    url = f"file://{tmp_path}/orders"
    made = {"mode": "hudi", "index": "BUCKET", "buckets": 1}
    with Table.create(url, record_key="id", **made) as one, Table(url) as other:
        other.refresh()
        files = ArrowWrite.files

        def overtaken(self: ArrowWrite, *args: Any) -> Any:
            found = files(self, *args)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(ArrowWrite, "files", files)
                patch.setattr(BucketGroups, "of", lambda *_: (
                    "", "00000000-abcd-4000-8000-0123456789ab-0"))  # fmt: skip
                one.upsert(ROWS)
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ArrowWrite, "files", overtaken)
            with pytest.raises(CommitConflict):
                other.upsert(ROWS)
        other.upsert(ROWS)
        assert len(other.refresh().groups) == other.read().num_rows == 1


METADATA = {PARTITIONS: "files,column_stats", f"{PARTITIONS}.inflight": "record_index"}


def made_by_hudi(folder: Path) -> None:
    """The file without which Hudi's readers list the folders, and no block."""
    (folder / BLOCK_KEY).parent.mkdir(parents=True, exist_ok=True)
    (folder / METADATA_PROPERTIES).touch()
    (folder / BLOCK_KEY).unlink(missing_ok=True)


def is_blocked(folder: Path) -> bool:
    return (folder / BLOCK_KEY).is_file() and not (folder / METADATA_PROPERTIES).exists()


ROWS = pa.table({"id": ["a"], "v": pa.array([1], pa.int32())})


@pytest.mark.parametrize(
    ("write", "again"),
    [("append", False), ("append", True), ("upsert", False), ("upsert", True), ("cluster", False)],
)
def test_the_metadata_table_is_off_before_a_commit_is_published(
    tmp_path: Path, write: str, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if a writer of Hudi's made it since the handle was opened."""
    url = f"file://{tmp_path}/orders"
    folder, published = tmp_path / "orders", []

    def look(note: str, **_fields: Any) -> None:
        if note == "checked":
            published.append([keys(folder).get(each) for each in METADATA])
            assert is_blocked(folder)

    options = {"lockkit.clustering.layout": "bucketed", "hoodie.clean.automatic": "false"}
    Table.create(url, record_key="id", mode="hudi").close()
    with Table(url, emit=look, options=options) as table:
        for _ in range(2):
            table.append(ROWS)
        published.clear()
        if again:
            say(folder, **METADATA)
        with nullcontext() if again else Table(url, emit=look, options=options) as other:
            say(folder, **METADATA)
            made_by_hudi(folder)
            writer = other or table
            with pytest.warns(MetadataSwitchedOff, match="hoodie.metadata.enable=false"):
                writer.cluster() if write == "cluster" else getattr(writer, write)(ROWS)
            assert published == [["", ""]]
            writer.append(ROWS)  # which warns no more
            assert writer.read().num_rows > 0


def test_a_commit_that_is_refused_leaves_the_metadata_table_on(tmp_path: Path) -> None:
    url, folder = f"file://{tmp_path}/orders", tmp_path / "orders"
    with Table.create(url, record_key="id", mode="hudi", buckets=1) as one, Table(url) as other:
        one.upsert(ROWS)
        other.refresh()
        one.upsert(ROWS)
        files = ArrowWrite.files

        def overtaken(self: ArrowWrite, *args: Any) -> Any:
            found = files(self, *args)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(ArrowWrite, "files", files)
                one.upsert(ROWS)
            say(folder, **METADATA)
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ArrowWrite, "files", overtaken)
            with pytest.raises(CommitConflict):
                other.upsert(ROWS)
    assert keys(folder)[PARTITIONS] == METADATA[PARTITIONS]


@pytest.mark.parametrize("way", ["create", "mode", "adopt", "append", "rollback", "restore"])
def test_hudi_is_kept_from_making_a_metadata_table_before_the_properties_say_so(
    tmp_path: Path, way: str, capsys: Any, monkeypatch: pytest.MonkeyPatch, recwarn: Any
) -> None:
    """And before a commit is published, in a table that neither lockkit made nor `adopt`."""
    folder, url, states = tmp_path / "t", f"file://{tmp_path}/t", set[tuple[bool, bool]]()

    def look() -> None:
        if (folder / ".hoodie" / "hoodie.properties").exists():
            states.add((OFF.items() <= keys(folder).items(), is_blocked(folder)))

    if way != "create":
        Table.create(url, record_key="id", mode="fenced" if way == "mode" else "hudi").close()
    if way not in ("create", "mode"):
        with Table(url, options={"hoodie.clean.automatic": "false"}) as table:
            saved = table.append(ROWS).instant
            table.savepoint(saved)
            table.append(ROWS)
        left = prepare_inserts(open_store(url), ROWS).instant
        with Heartbeat(left, open_store(url), clock=CLOCK):
            pass  # it is over, as if it had expired
        made_by_hudi(folder)
        kept = {key: value for key, value in keys(folder).items() if key not in OFF}
        (folder / ".hoodie" / "hoodie.properties").write_bytes(format_properties(kept))
    put = LocalStore.put

    def looked(self: LocalStore, *request: Any) -> Any:
        look()
        return put(self, *request)

    monkeypatch.setattr(LocalStore, "put", looked)
    if way == "create":
        Table.create(url, record_key="id", mode="hudi").close()
    elif way == "mode":
        assert main(["table", "mode", url, "hudi", "--yes"]) == 0
    elif way == "adopt":
        assert adopt(capsys, folder)[0] == 0
    elif way == "rollback":
        assert main(["table", "rollback", url, "--instant", left]) == 0
    else:
        with Table(url) as table:
            table.append(ROWS) if way == "append" else table.restore(saved)
    look()
    assert (True, True) in states and (True, False) not in states
    assert not [each for each in recwarn if each.category is MetadataSwitchedOff]


@pytest.mark.parametrize("way", ["append", "adopt"])
def test_a_block_that_somebody_deleted_is_put_back(
    tmp_path: Path, way: str, capsys: Any
) -> None:
    """With its folder, to upgrade the table, or by a writer of Hudi's that switches it off."""
    folder, url = tmp_path / "t", f"file://{tmp_path}/t"
    with Table.create(url, record_key="id", mode="hudi") as table:
        table.append(ROWS)
        shutil.rmtree(folder / ".hoodie" / "metadata")
        if way == "append":
            table.append(ROWS)
        else:
            (fix,) = adopt(capsys, folder, "--dry-run")[1]["fixes"]
            assert "making a metadata table" in fix["what"] and fix["changes"] == {}
            assert adopt(capsys, folder)[0] == 0
        assert is_blocked(folder) and adopt(capsys, folder)[1]["fixes"] == []


def test_version_6_needs_no_block_and_hudi_may_upgrade_it(tmp_path: Path, capsys: Any) -> None:
    """There Hudi makes a metadata table under the table's lock, where a commit of ours sees it."""
    folder, url = tmp_path / "t", f"file://{tmp_path}/t"
    with Table.create(url, record_key="id", mode="hudi", version=6) as table:
        say(folder, **{"hoodie.metadata.enable": ""})
        table.append(ROWS)
    assert keys(folder)["hoodie.metadata.enable"] == "false"
    assert adopt(capsys, folder)[1]["fixes"] == []
    assert not (folder / ".hoodie" / "metadata").exists()


def test_the_properties_tell_hudis_writers_to_make_no_metadata_table(tmp_path: Path) -> None:
    for mode in ("hudi", "fenced"):
        url, folder = f"file://{tmp_path}/{mode}", tmp_path / mode
        Table.create(url, record_key="id", mode=mode).close()
        assert (keys(folder).get("hoodie.metadata.enable") == "false") == (mode == "hudi")
        assert main(["table", "mode", url, "hudi", "--yes"]) == 0
        assert keys(folder)["hoodie.metadata.enable"] == "false"
        with Table(url) as table:
            assert table.append(ROWS) is not None


@pytest.mark.parametrize("said", [None, "true", "no", ""])
def test_a_table_without_a_metadata_table_is_told_to_have_none(
    tmp_path: Path, capsys: Any, said: str | None
) -> None:
    """Such as one that an earlier lockkit made, or a Hudi writer with the option alone."""
    folder = tmp_path / "t"
    Table.create(f"file://{folder}", record_key="id", mode="hudi").close()
    path = folder / ".hoodie" / "hoodie.properties"
    without = {key: value for key, value in keys(folder).items() if key not in OFF}
    told = {} if said is None else dict.fromkeys(OFF, said)
    path.write_bytes(format_properties(without | told))
    code, shown = adopt(capsys, folder, "--dry-run")
    assert (code, [each["changes"] for each in shown["fixes"]]) == (0, [OFF])
    assert adopt(capsys, folder)[0] == 0
    assert keys(folder) == without | OFF
    assert adopt(capsys, folder)[1]["fixes"] == []


def test_the_options_of_hudis_writers_fit_the_table(table_of: Any, capsys: Any) -> None:
    options = adopt(capsys, table_of("cow9"), "--dry-run")[1]["writer_options"]
    assert options["hoodie.write.table.version"] == "9"
    assert options["hoodie.metadata.enable"] == "false"
    assert TIMEZONE not in options, "Hudi refuses it beside a table that says something else"


@pytest.mark.parametrize(("name", "old"), [("cow6_plain", True), ("cow9", False)])
def test_a_hudi_without_the_storage_lock_is_sent_to_another(
    table_of: Any, name: str, old: bool
) -> None:
    found = run(plan_adoption(), open_store(f"file://{table_of(name)}"), CLOCK)
    assert ("Hudi 0.14 and 0.15" in str(_lines("s3://lake/orders", found))) == old
    assert "Hudi 0.14 and 0.15" not in str(_lines("file:///lake/orders", found))


@pytest.mark.parametrize(
    "news", [{"hoodie.table.type": "MERGE_ON_READ"}, {f"{PARTITIONS}.inflight": "record_index"}]
)
def test_properties_written_by_another_process_are_not_overwritten(
    table_of: Any, news: dict[str, str]
) -> None:
    folder = table_of("cow9")
    old = keys(folder)
    store = Lossy(open_store(f"file://{folder}"))
    put = store.store.put

    def beside(key: str, body: bytes, condition: Any) -> Any:
        if key == PROPERTIES_KEY and keys(folder) == old:
            say(folder, **news)
        return put(key, body, condition)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "put", beside)
        with pytest.raises(TableError, match="run this again"):
            run(adopt_table(), store, CLOCK)
    assert keys(folder) == {**old, **news}


def test_an_adoption_whose_answer_was_lost_is_found_done(table_of: Any) -> None:
    folder = table_of("cow9")
    store = Lossy(open_store(f"file://{folder}"), {9: AFTER})
    done = run(adopt_table(), store, CLOCK)
    assert store.seen[9] == ("put", PROPERTIES_KEY) and done.writable
    assert keys(folder)[TIMEZONE] == "UTC"


def test_a_table_in_the_mode_fenced_is_said_to_be_none_for_hudis_writers(
    tmp_path: Path, capsys: Any
) -> None:
    Table.create(f"file://{tmp_path}/t", record_key="id").close()
    assert adopt(capsys, tmp_path / "t")[1]["writer_options"] == {}
    assert main(["table", "adopt", f"file://{tmp_path}/t"]) == 0
    shown = capsys.readouterr().out
    assert "Hudi's writers must not write it" in shown and "hoodie.write" not in shown
    assert f"lockkit table mode file://{tmp_path}/t hudi" in shown


@pytest.mark.parametrize(
    ("mode", "index"), [("hudi", "BUCKET"), ("hudi", ""), ("fenced", "BUCKET")]
)
def test_a_table_with_hudis_buckets_names_its_key_as_hudis_procedures_look_for_it(
    tmp_path: Path, capsys: Any, mode: str, index: str
) -> None:
    name, folder = "hoodie.datasource.write.recordkey.field", tmp_path / "t"
    with Table.create(
        f"file://{folder}", record_key=["id", "at"], mode=mode, index=index,
        table_type="MERGE_ON_READ",
    ):  # fmt: skip
        assert keys(folder).get(name) == ("id,at" if index else None)
    say(folder, **{name: ""})  # as an earlier lockkit made it
    assert adopt(capsys, folder)[0] == 0
    assert keys(folder).get(name) == ("id,at" if index and mode == "hudi" else "")
