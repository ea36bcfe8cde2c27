"""Archiving: what leaves the timeline, and what goes wrong; judged by a dictionary and hudi-rs."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from hudi_rs import read_by_hudi_rs
from table_history import add, publish
from table_world import CONFIG, new_table, prepare_inserts
from table_world import rows as orders
from test_nonblocking import AtFiles

from lockkit import Clock
from lockkit.errors import LockkitError, LockLost, LossReason, TableError
from lockkit.protocol.outcome import Unknown
from lockkit.runtime import Delete, Procedure, Put, progress, run
from lockkit.stores import ListEntry
from lockkit.table import Table, read_table, write_inserts
from lockkit.table.errors import DamagedFile, TableChanged
from lockkit.table.format import plans
from lockkit.table.format.archived import load_archived, load_archived_commits
from lockkit.table.format.base_file import Target
from lockkit.table.format.layout import CommitFiles, WriteStat
from lockkit.table.format.properties import load_config
from lockkit.table.format.timeline import V9, instant_ms, instant_of, parse_timeline
from lockkit.table.occ import late
from lockkit.table.occ.commit import EpochGuard, StateChange
from lockkit.table.occ.late import load_leavers
from lockkit.table.occ.rollback import RollbackRefused
from lockkit.table.occ.transaction import TableCache, first_file
from lockkit.table.services import archive as archiving
from lockkit.table.services import archive_history
from lockkit.table.services.archive import archive, barriers, leaves_old_files, with_services
from lockkit.table.services.archive_rules import ArchiveRules, NothingArchived

pytestmark = pytest.mark.usefixtures("archived_at_once", "no_hudi_beside")
OPTIONS = {"hoodie.clean.commits.retained": "2"}
RULES = ArchiveRules(keep_min=3, keep_max=4)
Model = dict[str, int]


def rows(*keys: str, v: int) -> pa.Table:
    regions = ["EU" if key < "k2" else "US" for key in keys]
    return pa.table({"id": list(keys), "region": regions, "v": pa.array([v] * len(keys))})


def contents(found: pa.Table) -> Model:
    pairs = [(row["id"], row["v"]) for row in found.to_pylist()]
    assert len({key for key, _ in pairs}) == len(pairs), "no key is there twice"
    return dict(pairs)


def by_hudi_rs(folder: Path) -> Model:
    return contents(read_by_hudi_rs(folder))


def made(folder: Path, version: int, mode: str = "fenced", commits: int = 9) -> tuple[Table, Model]:
    table = Table.create(f"file://{folder}", record_key="id", partition_by="region",
                         version=version, mode=mode, options=OPTIONS)  # fmt: skip
    model: Model = {}
    for v in range(commits):
        keys = (f"k{v % 3}", f"n{v}")
        table.upsert(rows(*keys, v=v))
        model |= dict.fromkeys(keys, v)
    table.clean()
    return table, model


@pytest.fixture(params=[9, 6])
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def forget_checkpoint(folder: Path) -> None:
    (folder / ".hoodie/.lockkit/checkpoint.json").unlink()


@pytest.mark.parametrize("action", ["rollback", "clean"])
def test_what_is_completed_between_the_archivers_two_listings_stays(
    tmp_path: Path, version: int, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is older than the archive's newest instant, as what a paused process finishes may be."""
    table, _ = made(tmp_path, version, commits=12)
    done = list[Path]()

    def completing(*of: Any) -> Procedure[Any]:
        if not done:
            at = old if version == 9 else None
            done.append(tmp_path / config.names.completed(old, action, at))
            done[0].write_bytes(b"another process finished it")
        return load_leavers(*of)

    with table:
        assert table.archive(keep_min=6, keep_max=7) is not None
        config, _ = run(load_config(), table.store, Clock())
        newest = max(each.instant for each in run(load_archived(config), table.store, Clock()))
        old = instant_of(instant_ms(newest) - 1)
        monkeypatch.setattr(archiving, "load_leavers", completing)
        assert table.archive(keep_min=3, keep_max=4) is not None
        assert done[0].exists()


@pytest.mark.parametrize("mode", ["fenced", "hudi"])
def test_archived_instants_are_read_by_every_reader_once(
    tmp_path: Path, version: int, mode: str
) -> None:
    table, model = made(tmp_path, version, mode, commits=8 if mode == "hudi" else 12)
    with table:
        whole = table.history()
        commits = [each for each in whole if each.action == "commit"]
        done = table.archive(keep_min=3, keep_max=4)
        assert done is not None and len(done.instants) > 4 and not done.kept_for
        assert table.history() == whole
        for checkpoint in (True, False):
            if mode == "fenced" and not checkpoint:
                forget_checkpoint(tmp_path)
            with Table(table.url) as other:
                assert contents(other.read()) == model == by_hudi_rs(tmp_path)
                assert contents(other.changes()[0]) == model
                start = commits[-2].completed or commits[-2].instant
                later = {key: v for key, v in model.items() if v >= 2}
                assert contents(other.changes(start)[0]) == later
                assert contents(other.read(as_of=commits[1].instant))["n0"] == 0
            table.upsert(rows("k1", v=100 + checkpoint))
            model["k1"] = 100 + checkpoint


@pytest.mark.parametrize("operation", ["upsert", "delete", "overwrite"])
def test_every_operation_of_an_idle_handle_reads_an_archived_table_anew(
    tmp_path: Path, version: int, operation: str
) -> None:
    table, model = made(tmp_path, version, commits=2)
    with table, Table(table.url, options=OPTIONS) as idle:
        idle.upsert(rows("k0", v=7))
        for v in range(6):
            table.upsert(rows("n0", v=v))
        table.clean()
        assert table.archive(keep_min=3, keep_max=4)
        getattr(idle, operation)(rows("k0", v=8))
        model |= {"n0": 5}
        if operation == "overwrite":  # of region=EU, which has k0 and k1
            model = {key: v for key, v in model.items() if key >= "k2"}
        model = {key: v for key, v in model.items() if key != "k0"}
        model |= {} if operation == "delete" else {"k0": 8}
        assert contents(idle.read()) == model == by_hudi_rs(tmp_path)


def test_a_handle_opened_on_the_empty_table_upserts_after_others_archived(
    tmp_path: Path, version: int
) -> None:
    table, _ = made(tmp_path, version, commits=0)
    with table, Table(table.url, options=OPTIONS) as idle:
        idle.append(rows("k0", v=0))
        for v in range(6):
            table.append(rows(f"n{v}", v=v))
        assert table.archive(keep_min=3, keep_max=4)
        idle.upsert(rows("k0", v=1))
        assert contents(idle.read()) == {"k0": 1} | {f"n{v}": v for v in range(6)}


def test_an_increment_may_end_at_an_archived_commit(tmp_path: Path, version: int) -> None:
    table, _ = made(tmp_path, version, commits=0)
    with table:
        for v in range(8):
            table.append(rows(f"n{v}", v=v))
        ends = [each.completed or each.instant
                for each in table.history() if each.action == "commit"][::-1][:4]  # fmt: skip
        before = [table.changes(end=each) for each in ends]
        done = table.archive(keep_min=3, keep_max=4)
        assert done is not None and len(done.instants) >= 4
        for end, (found, increment) in zip(ends, before, strict=True):
            again, same = table.changes(end=end)
            assert contents(found) == contents(again) != {} and same.end == increment.end


@pytest.mark.parametrize("mode", ["fenced", "hudi"])
def test_an_increment_may_begin_at_any_archived_commit(
    tmp_path: Path, version: int, mode: str
) -> None:
    table, _ = made(tmp_path, version, mode, commits=0)
    with table:
        begins = [""]
        for v in range(8):
            table.append(rows(f"n{v}", v=v))
            newest = table.history()[0]
            begins.append(newest.completed or newest.instant)
        done = table.archive(keep_min=3, keep_max=4)
        assert done is not None and len(done.instants) >= 4
        for number, begin in enumerate(begins):
            later = {f"n{v}": v for v in range(number, 8)}
            assert contents(table.changes(begin)[0]) == later, begin


@pytest.mark.parametrize("mode", ["fenced", "hudi"])
def test_an_increment_brings_an_archived_commit_that_ended_after_its_begin(
    tmp_path: Path, mode: str
) -> None:
    """It began before the commits that stay in the timeline, and ended after the first of them."""
    url = f"file://{tmp_path}/overlap"
    store = new_table(url, replace(CONFIG, version=9, mode=mode))
    first = add(store, 9)
    slow = prepare_inserts(store, orders([0]))
    add(store, 1)
    with Table(url, options=OPTIONS) as table:
        begin = table.changes()[1].end
        publish(store, slow)
        add(store, 2)
        add(store, 3)
        done = table.archive(keep_min=3, keep_max=4)
        assert done is not None and done.instants == (first, slow.instant)
        found, increment = table.changes(begin)
        assert sorted(found["id"].to_pylist()) == ["k0", "k2", "k3"]
        assert table.changes(increment.end)[0].num_rows == 0


def test_in_mode_hudi_an_archived_instant_is_read_while_its_files_are_there(
    tmp_path: Path, version: int
) -> None:
    table = Table.create(f"file://{tmp_path}", record_key="id", partition_by="region",
                         version=version, mode="hudi", options=OPTIONS)  # fmt: skip
    with table:
        for v in range(7):
            table.append(rows(f"n{v}", v=v))
        table.clean()
        commits = [each.instant for each in table.history() if each.action == "commit"]
        assert table.archive(keep_min=3, keep_max=4) is not None
        for v, instant in enumerate(reversed(commits)):
            assert contents(table.read(as_of=instant)) == {f"n{n}": n for n in range(v + 1)}


def test_in_mode_hudi_an_archived_end_of_an_increment_is_refused(tmp_path: Path) -> None:
    table, _ = made(tmp_path, 9, "hudi", commits=7)
    with table:
        end = [each.completed for each in table.history() if each.action == "commit"][-1]
        table.archive(keep_min=3, keep_max=4)
        with pytest.raises(TableError, match="first commit that is not archived"):
            table.changes(end=end)


def test_a_handle_that_was_idle_while_others_archived_goes_on(tmp_path: Path, version: int) -> None:
    table, model = made(tmp_path, version, commits=2)
    with table, Table(table.url, options=OPTIONS) as idle:
        idle.append(rows("i0", v=0))
        for v in range(6):
            table.upsert(rows("k0", v=v))
        table.clean()
        assert table.archive(keep_min=3, keep_max=4)
        idle.append(rows("i1", v=0))
        assert contents(idle.read()) == model | {"i0": 0, "i1": 0, "k0": 5}
        assert not idle._upkeep.service.inspect().now.pending


def test_a_writer_archives_inline_by_hudis_keys(tmp_path: Path, version: int) -> None:
    keys = {"hoodie.archive.automatic": "true", "hoodie.keep.min.commits": "3",
            "hoodie.keep.max.commits": "4"}  # fmt: skip
    made(tmp_path, version, commits=1)[0].close()
    with Table(f"file://{tmp_path}", options=OPTIONS | keys) as table:
        for v in range(10):
            table.upsert(rows("k0", v=v))
        commits = table._upkeep.service.inspect().now.commits
        assert len(commits) <= 5 and len(table.history()) > 9
    for wrong in ({"hoodie.keep.min.commits": "2"}, {"hoodie.keep.max.commits": "3"}):
        with pytest.raises(TableError, match="must be greater"):
            Table(f"file://{tmp_path}", options=OPTIONS | keys | wrong)


def test_numbers_of_kept_commits_without_archiving_get_a_warning(tmp_path: Path) -> None:
    made(tmp_path, 9, commits=1)[0].close()
    keys = {"hoodie.keep.min.commits": "3", "hoodie.keep.max.commits": "4"}
    with pytest.warns(NothingArchived, match="only with hoodie.archive.automatic=true"):
        Table(f"file://{tmp_path}", options=OPTIONS | keys).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        off = {"hoodie.archive.automatic": "false"}
        Table(f"file://{tmp_path}", options=OPTIONS | keys | off).close()


# --- names, savepoints and damage -----------------------------------------------------------------


@pytest.mark.parametrize("mode", ["fenced", "hudi"])
def test_the_rollback_of_a_late_writer_deletes_no_file_of_an_archived_commit(
    tmp_path: Path, version: int, mode: str
) -> None:
    """A writer with a slow clock requested an archived instant, and crashed right afterwards."""
    table, model = made(tmp_path, version, mode, commits=0)
    with table:
        for v in range(6):
            table.append(rows(f"n{v}", v=v))
            model[f"n{v}"] = v
        done = table.archive(keep_min=3, keep_max=4)
        assert done is not None
        folder = tmp_path / ".hoodie" / ("timeline" if version == 9 else "")
        late = folder / f"{done.instants[0]}.commit.requested"
        late.write_bytes(first_file("commit", b"", "00000000-0000-4000-8000-000000000001", version))
        os.utime(late, (0, 0))
        (outcome,) = table.roll_back_dead()
        assert isinstance(outcome, RollbackRefused) and not late.exists()
        table.append(rows("n9", v=9))
        with Table(table.url) as other:
            assert contents(other.read()) == model | {"n9": 9} == by_hudi_rs(tmp_path)


@pytest.mark.parametrize("mode", ["fenced", "hudi"])
def test_files_that_a_savepoint_kept_keep_the_commit_that_replaced_them(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds if no clean recorded that it kept them, so that no later clean looks again."""
    monkeypatch.setattr(plans, "_saying", lambda _saved: {})
    table, _ = made(tmp_path, 9, mode, commits=0)
    with table:
        saved = table.append(rows("k0", "k5", v=0)).instant
        folder = tmp_path / ".hoodie/timeline"
        files = folder / f"{saved}.savepoint.inflight", folder / f"{saved}_{saved}.savepoint"
        for each in files:
            each.touch()
        table.delete_partition("region=EU")
        for v in range(6):
            table.upsert(rows("k5", v=v))
        table.clean()
        for each in files:
            each.unlink()
        table.upsert(rows("k5", v=9))
        table.clean()
        done = table.archive(keep_min=3, keep_max=4)
        assert done is not None and len(done.instants) == 1 and "no clean" in done.kept_for
        with Table(table.url) as other:
            assert contents(other.read()) == {"k5": 9} == by_hudi_rs(tmp_path)


def cut(archive_folder: Path) -> None:
    file = next(archive_folder.glob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-9])


def without_manifest(archive_folder: Path) -> None:
    (archive_folder / "manifest_1").unlink()


def with_foreign_name(archive_folder: Path) -> None:
    named = [{"fileName": "../../x.parquet", "fileLen": 1}]
    (archive_folder / "manifest_2").write_text(json.dumps({"files": named}))


def without_older_files(archive_folder: Path) -> None:
    """A newer manifest that somebody wrote by hand."""
    (archive_folder / "manifest_2").write_text(json.dumps({"files": []}))


def test_a_manifest_that_leaves_out_older_files_is_refused_by_readers(tmp_path: Path) -> None:
    table, _ = made(tmp_path / "t", 9)
    with table:
        assert table.archive(keep_min=3, keep_max=4)
        without_older_files(tmp_path / "t/.hoodie/timeline/history")
        with pytest.raises(DamagedFile, match=r"manifest_2.* leaves out .*\.parquet"):
            table.history()


def test_a_pending_clean_of_an_instant_that_is_archived_keeps_its_request(
    tmp_path: Path, version: int
) -> None:
    table, model = made(tmp_path / "t", version)
    with table:
        oldest = table.history()[-1].instant
        folder = tmp_path / "t" / V9.folder if version == 9 else tmp_path / "t/.hoodie"
        request = folder / f"{oldest}.clean.requested"
        request.write_bytes(b"a plan")
        done = table.archive(keep_min=3, keep_max=4)
        assert done is not None and oldest in done.instants
        assert request.read_bytes() == b"a plan"
        request.unlink()
        assert contents(table.read()) == model


@pytest.mark.parametrize("damage", [cut, without_manifest, with_foreign_name, without_older_files])
def test_nothing_is_archived_onto_a_damaged_archive(tmp_path: Path, damage: Any) -> None:
    table, _ = made(tmp_path, 9, commits=7)
    with table:
        table.archive(keep_min=3, keep_max=4)
        damage(tmp_path / ".hoodie/timeline/history")
        for v in range(5):
            table.upsert(rows("k0", v=v))
        table.clean()
        before = sorted((tmp_path / ".hoodie/timeline").glob("2*"))
        with pytest.raises(DamagedFile):
            table.archive(keep_min=3, keep_max=4)
        assert sorted((tmp_path / ".hoodie/timeline").glob("2*")) == before


@pytest.mark.parametrize("keep_min", [0, -1, "3", 2.5, None, True])
def test_a_number_of_kept_commits_that_is_none_is_refused_by_name(
    tmp_path: Path, keep_min: Any
) -> None:
    with (
        made(tmp_path, 9, commits=1)[0] as table,
        pytest.raises(TableError, match=r"keep\.min\.commits.*whole number"),
    ):
        table.archive(keep_min=keep_min, keep_max=9)


# --- what stays -----------------------------------------------------------------------------------

A, B, C, D, E = (f"2026010100000000{each}" for each in "12345")


def listed(*names: str) -> Any:
    return parse_timeline([ListEntry(f".hoodie/timeline/{each}", "1") for each in names], V9)


def test_the_last_commit_before_a_pending_writer_is_not_archived() -> None:
    now = listed(*(f"{each}_{each}.commit" for each in (A, B, D)), f"{C}.commit.requested")
    assert min(barriers(now))[0] == B
    assert min(barriers(listed(f"{A}.commit.requested", f"{B}_{B}.commit")))[0] == A


def test_savepoints_and_the_fences_last_decision_are_not_archived() -> None:
    now = listed(*(f"{each}_{each}.commit" for each in (A, B, C)), f"{B}_{B}.savepoint")
    assert min(barriers(now))[0] == B
    assert min(barriers(now, decided=A))[0] == A


def test_the_newest_clean_stays_and_older_ones_are_archived_with_the_commits() -> None:
    names = [f"{each}_{each}.commit" for each in (A, D)]
    names += [f"{each}_{each}.clean" for each in (B, C)]
    assert list(with_services(listed(*names), [A, D])) == [A, B, D]
    assert list(with_services(listed(*names, f"{E}_{E}.clean"), [A])) == [A]


@pytest.mark.parametrize(
    ("previous", "path", "merged", "leaves"),
    [("null", "a_0-0-0_1.parquet", False, False), (A, "a_0-0-0_1.parquet", False, True),
     (A, f".a_{B}.log.1_0-0-0", True, True)],
)  # fmt: skip
def test_a_commit_leaves_old_files_if_it_rewrote_one_or_wrote_a_log_file(
    previous: str, path: str, merged: bool, leaves: bool
) -> None:
    stat = WriteStat(
        partition="", file_id="a", path=path, previous=previous, writes=1, size_bytes=1
    )
    commit = CommitFiles(B, "UPSERT", (stat,), frozenset(), None, None)
    assert leaves_old_files(commit, merged) is leaves


def test_files_that_no_clean_has_deleted_keep_their_commits(tmp_path: Path) -> None:
    with Table.create(f"file://{tmp_path}", record_key="id", commit="serial", options={
        "hoodie.clean.automatic": "false"}) as table:  # fmt: skip
        for v in range(5):
            table.append(pa.table({"id": [f"a{v}"], "v": [v]}))
        for v in range(5):
            table.upsert(pa.table({"id": ["a0"], "v": [v]}))
        done = table.archive(keep_min=11, keep_max=12)
        assert done is None
        service = table._upkeep.service
        done = service.archive(ArchiveRules(keep_min=1, keep_max=2))
        assert done is not None and len(done.instants) == 5
        assert "no clean has deleted" in done.kept_for


def test_an_archived_commit_is_found_committed_and_is_no_streams_batch(
    tmp_path: Path, version: int
) -> None:
    from lockkit.table.write.batch import STREAM, BatchClaim, own_attempt

    table, _ = made(tmp_path, version)
    with table:
        table.archive(keep_min=3, keep_max=4)
        config, _ = run(load_config(), table.store, Clock())
        first = run(load_archived_commits(config), table.store, Clock())[0]
        assert STREAM not in first.extra
        claim, no_marker = BatchClaim(1, first.instant), cast(str, None)
        assert run(own_attempt(claim, no_marker), table.store, Clock()) == "committed"
        assert run(own_attempt(claim, "q 1"), table.store, Clock()) == "gone"


# --- what goes wrong ------------------------------------------------------------------------------


class Crash(LockkitError):
    """The archiver's process ended."""


def interrupted(way: Procedure[Any], after: int, *, lost: bool = False) -> Procedure[Any]:
    """`way`, interrupted at its write number `after`. `lost`: the write is applied unanswered."""
    answer: Any = None
    writes = 0
    while True:
        try:
            request = way.send(answer)
        except StopIteration as ended:
            return ended.value
        counted = isinstance(request, Put | Delete)
        writes += counted
        if counted and writes == after and not lost:
            raise Crash("here")
        answer = yield request
        if counted and writes == after and lost:
            answer = Unknown("lost")


def one_by_one(procedures: Any) -> Procedure[list[Any]]:
    results = []
    for each in procedures:
        results.append((yield from each))
    return results


ARCHIVING = archiving, archive_history, late, progress
"""The modules that send several requests at once."""


@pytest.fixture
def serial(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One request at a time, so that each is one step."""
    for module in ARCHIVING:
        monkeypatch.setattr(module, "all_of", one_by_one)
    yield


def archiver(table: Table) -> Procedure[Any]:
    config, at = run(load_config(), table.store, Clock())
    return archive(TableCache(config, at), RULES, StateChange(EpochGuard(0)))


@pytest.mark.parametrize("lost", [0, 1, 2, 3, 4, 9])
def test_an_archiver_may_die_at_each_write_and_every_instant_is_shown_once(
    tmp_path: Path, version: int, lost: int, serial: None
) -> None:
    """Or, the answer to its write number `lost` is lost."""
    table, model = made(tmp_path, version, commits=6)
    with table:
        whole, clock = table.history(), Clock()
        config, _ = run(load_config(), table.store, clock)
        for after in range(1, 40):
            try:
                run(interrupted(archiver(table), lost or after, lost=lost > 0), table.store, clock)
                break
            except Crash:
                pass
            assert table.history() == whole, after
            assert contents(read_table(table.store)) == model == by_hudi_rs(tmp_path), after
        assert after > 1 or lost, "it died at no write"
        run(archiver(table), table.store, clock)
        here = set(table._upkeep.service.inspect().now.commits)
        archived = [each.instant for each in run(load_archived(config), table.store, clock)]
        assert len(here) == 3 and not here & set(archived) and len(set(archived)) == len(archived)


def test_an_archiver_that_dies_between_two_deletions_leaves_no_hole_in_the_timeline(
    tmp_path: Path, version: int, serial: None
) -> None:
    """A commit that left while an older one stayed would look pending to readers of the folders:
    each commit has file groups of its own here.
    """
    table, model = made(tmp_path / "t", version, commits=0)
    with table:
        for v in range(6):
            table.append(rows(f"n{v}", v=v))
            model[f"n{v}"] = v
    for after in range(1, 40):
        folder = tmp_path / f"t{after}"
        shutil.copytree(tmp_path / "t", folder)
        with Table(f"file://{folder}") as copied:
            died = False
            try:
                run(interrupted(archiver(copied), after), copied.store, Clock())
            except Crash:
                died = True
            assert contents(read_table(copied.store)) == model == by_hudi_rs(folder), after
        if not died:
            break
    assert not died and after > 9, "it deleted at most one instant"


@pytest.mark.parametrize("kept", [True, False], ids=["savepoint", "no savepoint"])
def test_a_clean_deletes_log_files_before_the_first_base_file(tmp_path: Path, kept: bool) -> None:
    options = {**OPTIONS, "hoodie.clean.automatic": "false"}
    table = Table.create(f"file://{tmp_path}", record_key="id", table_type="MERGE_ON_READ",
                         index="BUCKET", buckets=1, options=options)  # fmt: skip
    with table:
        for v in range(2):
            table.upsert(pa.table({"id": ["a0"], "v": [v]}))
        saved = table.savepoint().instant if kept else ""
        first = list(tmp_path.glob("*.log.*"))
        for v in range(2, 6):
            table.upsert(pa.table({"id": ["a0"], "v": [v]}))
            table.compact()
        table.clean()
        assert len(first) == 2 and all(each.exists() is kept for each in first)
        if kept:
            table.restore(saved)
        assert table.read().to_pylist() == [{"id": "a0", "v": 1 if kept else 5}]


def test_a_clean_deletes_the_log_files_of_a_deleted_partition(tmp_path: Path) -> None:
    options = {**OPTIONS, "hoodie.clean.automatic": "false"}
    table = Table.create(f"file://{tmp_path}", record_key="id", partition_by="p", index="BUCKET",
                         table_type="MERGE_ON_READ", buckets=1, options=options)  # fmt: skip
    with table:
        table.upsert(pa.table({"id": ["a0", "b0"], "p": ["A", "B"]}))
        table.delete_partition("p=A")
        for _ in range(4):
            table.upsert(pa.table({"id": ["b0"], "p": ["B"]}))
        table.clean()
        assert not list(tmp_path.glob("p=A/*.log.*")) and list(tmp_path.glob("p=B/*.log.*"))
        assert table.read().to_pylist() == [{"id": "b0", "p": "B"}]


def test_log_files_that_no_clean_has_deleted_keep_their_commits(tmp_path: Path) -> None:
    """Otherwise the clean would not find them any more."""
    options = {**OPTIONS, "hoodie.clean.automatic": "false"}
    table = Table.create(f"file://{tmp_path}", record_key="id", table_type="MERGE_ON_READ",
                         index="BUCKET", buckets=1, options=options)  # fmt: skip
    with table:
        for v in range(4):
            table.upsert(pa.table({"id": ["a0"], "v": [v]}))
        table.compact()
        old = list(tmp_path.glob("*.log.*"))
        for v in range(4, 8):
            table.upsert(pa.table({"id": ["a0"], "v": [v]}))
            table.compact()
        done = table.archive(keep_min=3, keep_max=4)
        assert done is None or "no clean has deleted" in done.kept_for
        table.clean()
        assert old and not any(each.exists() for each in old)
        table.upsert(pa.table({"id": ["a0"], "v": [8]}))
        assert table.archive(keep_min=3, keep_max=4) is not None
        assert table.read().to_pylist() == [{"id": "a0", "v": 8}]


@pytest.mark.parametrize("overlaps", [False, True], ids=["after it", "beside it"])
def test_in_mode_hudi_log_files_of_archived_commits_that_no_compaction_merged_are_read(
    tmp_path: Path, overlaps: bool
) -> None:
    """They were left out, and the next compaction lost their rows. One overlaps a compaction: then
    its completion time is in the archive, where hudi-rs 0.5.0 does not look.
    """
    options = {**OPTIONS, "hoodie.clean.automatic": "false"}
    folder = tmp_path / "t"
    with Table.create(f"file://{folder}", record_key="id", partition_by="region", mode="hudi",
                      table_type="MERGE_ON_READ", index="BUCKET", buckets=1,
                      options=options) as table:  # fmt: skip
        table.upsert(rows("k0", "k3", v=0))
        if not overlaps:
            table.compact()
        at_files: Any = AtFiles(table.compact if overlaps else list)
        with Table(table.url, options=options, emit=at_files) as other:
            mine = other.upsert(rows("k1", v=1))
        assert mine is not None and at_files.done
        model = {"k0": 0, "k3": 0, "k1": 1}
        for v in range(2, 9):
            table.upsert(rows("k4", v=v))
        assert table.clean()
        model["k4"] = 8
        done = table.archive(keep_min=3, keep_max=4)
        assert done is not None and mine.instant in done.instants, done
        assert contents(table.read()) == model
        assert overlaps or by_hudi_rs(folder) == model
        table.upsert(rows("k10", v=9))
        assert contents(table.read()) == model | {"k10": 9}
        assert table.compact() is not None
        assert contents(table.read()) == by_hudi_rs(folder) == model | {"k10": 9}


def test_of_two_archivers_one_writes_the_archive_and_the_other_deletes_nothing(
    tmp_path: Path, version: int, serial: None
) -> None:
    table, model = made(tmp_path, version, commits=6)
    with table:
        clock, whole = Clock(), table.history()
        slept: list[str] = []

        def overtaken() -> Procedure[Any]:
            """An archiver pauses before it names its file; another archiver runs meanwhile."""
            way, answer = archiver(table), None
            while True:
                request = way.send(answer)
                key = getattr(request, "key", "")
                if isinstance(request, Put) and ("manifest" in key or ".commits_" in key):
                    table.upsert(rows("k0", v=50))
                    run(archiver(table), table.store, clock)
                    slept.append(key)
                assert not (slept and isinstance(request, Delete)), "it deletes by an old plan"
                answer = yield request

        with pytest.raises(TableChanged, match="another archiver"):
            run(overtaken(), table.store, clock)
        assert slept
        after = [each.instant for each in table.history()]
        assert {each.instant for each in whole} <= set(after) and len(set(after)) == len(after)
        assert contents(read_table(table.store)) == model | {"k0": 50} == by_hudi_rs(tmp_path)


def test_an_archiver_without_a_lease_writes_and_deletes_nothing(
    tmp_path: Path, version: int
) -> None:
    table, _ = made(tmp_path, version, commits=6)

    def lost() -> None:
        raise LockLost("the archiver", "its lease ended", "run it again", reason=LossReason.EXPIRED)

    with table:
        config, at = run(load_config(), table.store, Clock())
        held, before = StateChange(EpochGuard(0), lost), table._upkeep.service.inspect().now
        with pytest.raises(LockLost):
            run(archive(TableCache(config, at), RULES, held), table.store, Clock())
        assert table._upkeep.service.inspect().now == before
        assert not run(load_archived(config), table.store, Clock())


def test_a_completed_file_resent_after_archiving_is_removed_again(
    tmp_path: Path, version: int
) -> None:
    """Its writer paused after its decision, and sent the file after the commit was archived."""
    table, model = made(tmp_path, version, commits=6)
    with table:
        folder = tmp_path / ".hoodie" / ("timeline" if version == 9 else "")
        first = min(folder.glob("2*.commit"))
        body = first.read_bytes()
        table.archive(keep_min=3, keep_max=4)
        first.write_bytes(body)
        whole = table.history()
        assert len({each.instant for each in whole}) == len(whole)
        run(archiver(table), table.store, Clock())
        assert not first.exists() and table.history() == whole
        assert contents(table.read()) == model == by_hudi_rs(tmp_path)


def test_files_of_the_archive_are_merged_and_old_ones_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_history, "MERGED", 3)
    table, model = made(tmp_path, 9, commits=5)
    with table:
        for v in range(14):
            table.upsert(rows("k0", v=v))
            table.clean()
            table.archive(keep_min=3, keep_max=4)
        model["k0"] = 13
        whole = table.history()
        assert len([each for each in whole if each.action == "commit"]) == 19
        names = [each.name for each in (tmp_path / ".hoodie/timeline/history").iterdir()]
        levels = {each[-len("0.parquet"):] for each in names if each.endswith("parquet")}
        assert "1.parquet" in levels and len(names) < 14, names
        assert contents(table.read()) == model == by_hudi_rs(tmp_path)


# --- the name of an archived instant, requested again ---------------------------------------------


def late_request(folder: Path, table: Table, version: int, instant: str) -> Path:
    """What a writer with a slow clock leaves in the name of an archived commit: a request, and a
    data file of its own.
    """
    late = folder / ".hoodie" / ("timeline" if version == 9 else "") / f"{instant}.commit.requested"
    late.write_bytes(first_file("commit", b"", "00000000-0000-4000-8000-000000000001", version))
    target = Target(instant, table._open().config)
    file = write_inserts(target, rows("n8", v=8), file_id="00000000-late-0")
    (folder / file.key).parent.mkdir(exist_ok=True)
    (folder / file.key).write_bytes(file.body)
    return late


def test_a_late_request_in_an_archived_name_hides_no_row_and_shows_none(
    tmp_path: Path, version: int
) -> None:
    table, model = made(tmp_path, version, "hudi", commits=0)
    with table:
        for v in range(6):
            table.append(rows(f"n{v}", v=v))
            model[f"n{v}"] = v
        done = table.archive(keep_min=3, keep_max=4)
        assert done is not None
        late = late_request(tmp_path, table, version, done.instants[0])
        with Table(table.url, options={"hoodie.table.services.enabled": "false"}) as other:
            assert contents(other.read()) == model
            found, increment = other.changes()
            if version == 9:
                assert contents(found) == model
            else:  # which waits for every pending instant, and names it
                held = increment.held_back
                assert held is not None and held.instant == done.instants[0]
            other.upsert(rows("n0", v=9))
            model["n0"] = 9
            assert contents(other.read()) == model and late.exists()
        os.utime(late, (0, 0))
        (outcome,) = table.roll_back_dead()
        assert isinstance(outcome, RollbackRefused) and not late.exists()
        assert not list(tmp_path.rglob("00000000-late-0*"))
        with Table(table.url) as other:
            assert contents(other.read()) == model == by_hudi_rs(tmp_path)


def test_in_mode_hudi_a_failed_writers_late_file_is_not_taken_for_an_archived_commits(
    tmp_path: Path,
) -> None:
    """Its instant is older than the timeline's first commit, and nothing was archived."""
    table, _ = made(tmp_path, 9, "hudi", commits=2)
    with table:
        early = instant_of(instant_ms(table.history()[-1].instant) - 1)
        late_request(tmp_path, table, 9, early).unlink()
        assert contents(table.read()) == {"k0": 0, "n0": 0, "k1": 1, "n1": 1}
