"""Tables whose oldest commits are archived are written: judged by a dictionary and by hudi-rs."""

from __future__ import annotations

import random
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hudi_rs import read_by_hudi_rs

from lockkit import Clock, open_store
from lockkit.errors import TableError
from lockkit.runtime import run
from lockkit.stores import ListEntry
from lockkit.table import Table
from lockkit.table.errors import NotWritable
from lockkit.table.format.property_keys import format_properties, parse_properties
from lockkit.table.format.timeline import V6, parse_timeline
from lockkit.table.occ.commit import EpochGuard
from lockkit.table.occ.conflict import refuse_missing
from lockkit.table.occ.conflicting import OwnChanges
from lockkit.table.occ.mode import switch_mode

pytestmark = pytest.mark.usefixtures("no_hudi_beside")

NAMES = ("cow9_archived", "cow6_archived")
OURS = {
    "hoodie.table.timeline.timezone": "UTC", "hoodie.table.metadata.partitions": "",
}  # fmt: skip
Model = dict[str, int]


@pytest.fixture(params=NAMES)
def folder(request: pytest.FixtureRequest, hudi_made: Path, tmp_path: Path) -> Path:
    """A table that Hudi made and archived, without a metadata table, its instants in UTC."""
    copy = tmp_path / request.param
    shutil.copytree(hudi_made / request.param, copy)
    say(copy, OURS)
    return copy


def say(folder: Path, changed: dict[str, str]) -> None:
    path = folder / ".hoodie" / "hoodie.properties"
    path.write_bytes(format_properties({**parse_properties(path.read_bytes()), **changed}))


def contents(rows: pa.Table) -> Model:
    found = [(row["id"], row["v"]) for row in rows.to_pylist()]
    assert len({key for key, _ in found}) == len(found), "no key is there twice"
    return dict(found)


def changed(before: pa.Table, v: int, *keys: str) -> pa.Table:
    """Rows of the table with these keys and a new value; a key that is new is in EU."""
    rows = {row["id"]: row for row in before.to_pylist()}
    some = next(row for row in rows.values() if row["region"] == "EU")
    new = [{**rows.get(key, some), "id": key, "v": v, "ts": 1000 + v} for key in keys]
    return pa.Table.from_pylist(new, before.schema)


def by_hudi_rs(folder: Path) -> Model:
    return contents(read_by_hudi_rs(folder))


def timeline(folder: Path) -> Path:
    return folder / ".hoodie" / ("timeline" if "9" in folder.name else "")


def active(folder: Path) -> set[str]:
    return {each.name[:17] for each in timeline(folder).glob("2*")}


def archive(folder: Path, count: int) -> None:
    """Take the oldest commits from the timeline, as Hudi's archiver does."""
    where = timeline(folder)
    saved = {each.name[:17] for each in where.glob("2*.savepoint")}
    done = [each for each in sorted(where.glob("2*.commit")) if each.name[:17] not in saved]
    assert len(done) > count
    for each in done[:count]:
        for file in where.glob(f"{each.name[:17]}*"):
            file.unlink()


def test_a_table_with_archived_commits_equals_a_dictionary_model(folder: Path) -> None:
    dice = random.Random(folder.name)
    with Table(f"file://{folder}") as table:
        before = table.read()
        model = contents(before)
        for number in range(100, 108):
            operation = dice.choice(["upsert", "upsert", "delete", "append"])
            keys = dice.sample([f"k{each:02d}" for each in range(16)], 3)
            if operation == "append":
                keys = [key for key in keys if key not in model]
            elif operation == "delete":
                keys = [key for key in keys if key in model]
            if keys:
                getattr(table, operation)(changed(before, number, *keys))
            gone = operation == "delete"
            model = {k: v for k, v in model.items() if k not in keys} if gone else model
            model |= {} if gone else dict.fromkeys(keys, number)
            assert contents(table.read()) == model
            if number % 4 == 0:
                archive(folder, 1)
                assert contents(table.read()) == model
        assert by_hudi_rs(folder) == model
        table.clean()
        assert contents(table.read()) == model == by_hudi_rs(folder)
    with Table(f"file://{folder}") as other:
        other.upsert(changed(before, 200, "k01", "k99"))
        assert contents(other.read()) == model | {"k01": 200, "k99": 200} == by_hudi_rs(folder)
        archived = {each.instant for each in other.history()} - active(folder)
        assert len(archived) > 3, "the history has what was archived"


def test_a_snapshot_of_the_past_and_an_increment_go_back_into_the_archive(folder: Path) -> None:
    with Table(f"file://{folder}") as table:
        whole = contents(table.read())
        table.upsert(changed(table.read(), 100, "k01"))
        assert contents(table.changes("20200101000000000")[0]) == whole | {"k01": 100}
        second = [each for each in table.history() if each.action == "commit"][1]
        assert contents(table.read(as_of=second.instant)) == whole


def test_commits_that_are_archived_during_a_write_do_not_stop_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lockkit.table.arrow_write import ArrowWrite

    files = ArrowWrite.files

    def archived(self: ArrowWrite, *args: Any) -> Any:
        stats = files(self, *args)
        archive(folder, 2)
        return stats

    with Table(f"file://{folder}") as table:
        model = contents(table.read())
        monkeypatch.setattr(ArrowWrite, "files", archived)
        table.upsert(changed(table.read(), 100, "k03"))
        assert contents(table.read()) == model | {"k03": 100}


A, B, C, D = (f"2026010100000000{each}" for each in "1234")


@pytest.mark.parametrize(
    ("base", "pending", "now", "fine"),
    [
        ({A, B, C}, set(), {B, C}, True),
        ({A, B, C}, set(), {C, D}, True),
        ({A, B, C}, set(), {A, B}, False),  # the newest is gone: it was taken back
        ({A, B, C}, set(), {A, C}, False),
        ({A, B}, set(), {C, D}, False),  # what completed since may be archived too
        ({B, C}, {A}, {C}, False),  # as may what was pending
        ({A, C}, {B}, {B, C}, True),
    ],
)  # fmt: skip
def test_only_the_oldest_may_leave_the_timeline_under_a_commit(
    base: set[str], pending: set[str], now: set[str], fine: bool
) -> None:
    mine = OwnChanges("20260102000000000", frozenset(base), frozenset(), pending=frozenset(pending))
    entries = [ListEntry(V6.completed(each), "1") for each in now]
    with nullcontext() if fine else pytest.raises(TableError, match="gone from the timeline"):
        refuse_missing(mine, parse_timeline(entries, V6))


def test_a_file_of_a_pending_commit_that_is_older_than_the_timeline_is_not_seen(
    folder: Path,
) -> None:
    where = timeline(folder)
    newest = max(where.glob("2*.commit"))
    with Table(f"file://{folder}") as table:
        model = contents(table.read())
    # An old writer's files: it is still pending, and what came later left the timeline.
    (file,) = (folder / "EU").glob(f"*{newest.name[:17]}.parquet")
    old = "20200101000000000"
    shutil.copy(file, folder / "EU" / f"feeding-0_0-0-0_{old}.parquet")
    for state in ("commit.requested", "inflight"):
        (where / f"{old}.{state}").touch()
    with Table(f"file://{folder}", options={"hoodie.table.services.enabled": "false"}) as table:
        table.upsert(changed(table.read(), 100, "k01"))
        assert contents(table.read()) == model | {"k01": 100}


def test_a_timeline_that_does_not_show_which_old_files_are_live_is_refused(folder: Path) -> None:
    with Table(f"file://{folder}") as table:
        rows = table.read()
    for each in timeline(folder).glob("2*commit*"):
        each.unlink()
    with Table(f"file://{folder}") as table:
        with pytest.raises(NotWritable, match="the timeline has none"):
            table.upsert(changed(rows, 1, "k01"))


def test_a_table_with_archived_commits_stays_in_the_mode_hudi(folder: Path) -> None:
    store = open_store(f"file://{folder}")
    with pytest.raises(TableError, match="archived commits"):
        run(switch_mode("fenced", EpochGuard(1)), store, Clock())
    say(folder, {"lockkit.commit.mode": "fenced"})
    with Table(f"file://{folder}") as table:
        with pytest.raises(NotWritable, match="lockkit table mode URL hudi"):
            table.append(changed(table.read(), 1, "k77"))


def test_a_clean_that_runs_during_a_listing_of_the_folders_is_detected(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may delete a slice that the timeline, as it was listed before, still needs."""
    from lockkit.table.read import archived_base

    list_files = archived_base.list_files

    def cleaned(*args: Any) -> Any:
        found = yield from list_files(*args)
        newest = max(each.name[:17] for each in timeline(folder).glob("2*.commit"))
        (timeline(folder) / f"{int(newest) + 1}.clean.requested").touch()
        return found

    with Table(f"file://{folder}") as table:
        rows = table.read()
        monkeypatch.setattr(archived_base, "list_files", cleaned)
        with pytest.raises(TableError, match="ran while the folders were listed"):
            table.upsert(changed(rows, 1, "k01"))


def test_a_savepoint_that_keeps_files_which_an_archived_commit_replaced_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With hoodie.archive.beyond.savepoint: the folders show replaced files as if they lived."""
    from lockkit.table.format.archived import ArchivedInstant
    from lockkit.table.read import archived_base

    where = timeline(folder)
    saved = min(each.name[:17] for each in where.glob("2*.commit"))
    done = f"{saved}_{saved}" if "9" in folder.name else saved
    (where / f"{done}.savepoint").touch()
    history: list[ArchivedInstant] = []

    def archived(_config: object) -> Any:
        yield from ()
        return history

    monkeypatch.setattr(archived_base, "load_archived", archived)
    with Table(f"file://{folder}") as table:
        rows = table.read()
        history.append(ArchivedInstant(str(int(saved) + 1), "replacecommit", None))
        with pytest.raises(NotWritable, match="delete the savepoint"):
            table.upsert(changed(rows, 1, "k01"))
        history[:] = [ArchivedInstant(str(int(saved) - 1), "replacecommit", None)]
        table.upsert(changed(rows, 1, "k01"))


@pytest.mark.parametrize("savepoint", [False, True])
def test_a_file_group_that_only_archived_commits_wrote_is_read_and_merged(
    folder: Path, savepoint: bool
) -> None:
    """A savepoint keeps its commit in the timeline, although later ones are archived.

    As Hudi reads it (`getFirstNonSavepointCommit`); hudi-rs 0.5 then shows the savepoint's rows.
    """
    options = {"hoodie.clean.automatic": "false"}

    def check(table: Table) -> None:
        assert contents(table.read()) == model
        assert savepoint or by_hudi_rs(folder) == model

    with Table(f"file://{folder}", options=options) as table:
        before = table.read()
        model = contents(before)
        of = {row["region"]: row["id"] for row in before.to_pylist()}
        for v, region in [(100, "EU"), (101, "EU"), *((v, "US") for v in range(102, 106))]:
            made = table.upsert(changed(before, v, of[region]))
            if v == 100 and savepoint:
                assert made is not None
                done = f"{made.instant}_{made.instant}" if "9" in folder.name else made.instant
                (timeline(folder) / f"{done}.savepoint").touch()
            model[of[region]] = v
    archive(folder, len(list(timeline(folder).glob("2*.commit"))) - 3 - savepoint)
    with Table(f"file://{folder}", options=options) as table:
        check(table)
        table.upsert(changed(before, 200, of["EU"]))
        model[of["EU"]] = 200
        check(table)
        table.delete(before.filter(pc.equal(before["id"], of["EU"])))
        del model[of["EU"]]
        check(table)
