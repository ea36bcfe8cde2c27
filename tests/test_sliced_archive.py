"""Archives and restores of merge-on-read tables of version 6: by a dictionary and hudi-rs."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hudi_rs import read_by_hudi_rs
from test_merge_on_read import made
from test_merged_of_hudi import adopted, as_rows, shown
from test_merged_v6 import (
    KEYS,
    TS,
    dies,
    folder,
    forget,
    live,
    log_files,
    logs,
    roll_back,
    timeline,
    write,
)

from lockkit.clock import Clock
from lockkit.runtime import run
from lockkit.table import Table
from lockkit.table.errors import DamagedFile, NotWritable, UnsupportedTable
from lockkit.table.format.layout import command_token
from lockkit.table.format.plans import RollbackPlan, format_rollback_plan
from lockkit.table.format.properties import load_config
from lockkit.table.format.timeline import V6, instant_ms, instant_of
from lockkit.table.occ.markers import mark
from lockkit.table.services.strays import take_strays_back

pytestmark = [
    pytest.mark.usefixtures("no_hudi_beside", "archived_at_once"), pytest.mark.timeout(600)
]
OPTIONS = {"hoodie.clean.automatic": "false", "hoodie.clean.commits.retained": "1"}


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    """Of one bucket; two of its three slices can leave, and a compaction has merged all rows."""
    only = {"partition_by": None, "index": "BUCKET", "buckets": 1, "options": OPTIONS}
    with made(f"file://{tmp_path / 't'}", version=6, mode="hudi", **only) as opened:
        for v in range(3):
            write(opened, v, "k01")
            opened.compact()
        yield opened


def by_hudi_rs(table: Table) -> dict[str, int]:
    return dict(shown(read_by_hudi_rs(table.url)))


def moved(table: Table) -> int:
    table.clean()
    done = table.archive(keep_min=2, keep_max=3)
    return 0 if done is None else len(done.instants)


@pytest.mark.parametrize("seed", [10, *(pytest.param(n, marks=pytest.mark.soak) for n in (5, 43))])
def test_rows_are_a_dictionarys_whatever_is_archived_saved_and_restored(
    hudi_made: Path, tmp_path: Path, seed: int
) -> None:
    """The table is Hudi's. A dead writer's instant is rolled back before it is restored."""
    dice, counts = random.Random(f"archives {seed}"), {"archive": 0, "restore": 0}
    with adopted(hudi_made, tmp_path, "mor6", options=OPTIONS) as table:
        expected, saved = live(table), dict[str, dict[str, int]]()
        for step in range(12):
            keys = dice.sample(KEYS, 4)
            deed = dice.choice(["upsert", "upsert", "delete", "compact", "archive", "archive",
                                "save", "restore", "dies"])  # fmt: skip
            if deed == "upsert":
                write(table, step, *keys)
                expected |= dict.fromkeys(keys, step)
            elif deed == "delete":
                table.delete(as_rows(*((key, TS + step, 0) for key in keys)))
                expected = {key: v for key, v in expected.items() if key not in keys}
            elif deed == "compact":
                table.compact()
            elif deed == "archive":
                counts[deed] += moved(table)
            elif deed == "save":
                saved[table.savepoint().instant] = dict(expected)
            elif deed == "restore" and saved:
                counts[deed] += len(table.restore(max(saved)).taken_back)
                table.delete_savepoint(max(saved))
                expected = saved.pop(max(saved))
            elif deed == "dies":
                roll_back(table, dies(table, *keys))
            assert live(table) == expected == by_hudi_rs(table), (step, deed)
        for instant in saved:
            table.delete_savepoint(instant)
        for step in range(20, 24):
            write(table, step, "k05")
            table.compact()
            counts["archive"] += moved(table)
            assert live(table) == expected | {"k05": step} == by_hudi_rs(table)
        assert counts["archive"] > 5 and counts["restore"], counts
        every = [each.instant for each in table.history()]
        assert len(every) == len({*every})


def test_a_restore_puts_commands_into_slices_that_stay_and_deletes_those_that_go(
    table: Table,
) -> None:
    write(table, 4, "k02")
    saved, model, kept = table.savepoint().instant, live(table), log_files(table)
    write(table, 5, "k01", "k03")
    after = log_files(table) - kept
    compacted = table.compact()
    assert compacted is not None
    write(table, 6, "k04")
    done = table.restore(saved)
    assert len(done.taken_back) == 3 and live(table) == model == by_hudi_rs(table)
    left = log_files(table)
    assert not [name for name in left if compacted.instant in name.name]
    (command,) = left - kept - after
    assert command.name.endswith(command_token(done.taken_back[-1])) and after <= left
    assert done.files == 2, "the compaction's base file, and the log file behind it"
    write(table, 7, "k02")
    assert live(table) == model | {"k02": 7} == by_hudi_rs(table)


def test_commits_of_hudis_are_taken_back_too(hudi_made: Path, tmp_path: Path) -> None:
    """The names of its log files do not say which commit wrote them; the commits do."""
    with adopted(hudi_made, tmp_path, "mor6", options=OPTIONS) as table:
        commits, kept = timeline(table).commits, live(table)
        saved, model = commits[-2], dict(shown(table.read(as_of=commits[-2])))
        assert table.savepoint(saved).files and model != kept
        assert table.restore(saved).taken_back == (commits[-1],)
        table.delete_savepoint(saved)
        for v in range(3):
            assert live(table) == model == by_hudi_rs(table)
            write(table, v, "k05")
            model |= {"k05": v}
        forget(table, max(timeline(table).commits))
        assert live(table) == model == by_hudi_rs(table)


def test_a_savepoint_does_not_keep_the_log_file_of_a_writer_that_began_later(
    tmp_path: Path,
) -> None:
    """It begins a file group, and goes with its writer's rollback."""
    where = f"file://{tmp_path / 't'}"
    with made(where, version=6, mode="hudi", index="BUCKET", options=OPTIONS) as table:
        write(table, 1, "k01")
        dead = dies(table, "k02")
        saved = table.savepoint().instant
        assert saved < dead
        roll_back(table, dead)
        write(table, 2, "k01", "k02")
        assert len(table.restore(saved).taken_back) == 1
        assert live(table) == {"k01": 1} == by_hudi_rs(table)


@pytest.mark.parametrize("archived", [False, True])
def test_no_row_comes_back_that_a_restore_took_away(table: Table, archived: bool) -> None:
    """Not even once everything before the newest commits is archived."""
    write(table, 4, "k02")
    saved, model = table.savepoint().instant, live(table)
    write(table, 5, "k01", "k03")
    table.compact()
    write(table, 6, "k04")
    table.restore(saved)
    table.delete_savepoint(saved)
    for v in range(7, 12):
        write(table, v, "k02")
        if archived:
            table.compact()
            moved(table)
        assert live(table) == model | {"k02": v} == by_hudi_rs(table)
    assert (saved in timeline(table).completed) is not archived


def test_a_restore_is_refused_where_another_commit_of_the_slice_overlapped_the_savepoints(
    table: Table,
) -> None:
    """As if Hudi had saved a commit while a writer of an earlier instant was at work."""
    write(table, 4, "k02")
    write(table, 5, "k03")
    saved = table.savepoint().instant
    last = max(log_files(table), key=lambda each: each.name)
    after = last.with_name(last.name.replace(".log.2_", ".log.3_"))
    after.write_bytes(last.read_bytes())
    before = live(table)
    write(table, 6, "k04")
    with pytest.raises(UnsupportedTable, match=f"{after.name} is in only one of the savepoint"):
        table.restore(saved)
    assert live(table) == before | {"k04": 6}


@pytest.mark.parametrize("what", ["the first log file", "a base file", "a marked log file"])
def test_a_file_that_came_after_its_rollback_shows_no_row_once_older_commits_are_archived(
    tmp_path: Path, what: str
) -> None:
    """A rollback deletes what begins a file group, and puts no command behind it. A writer of
    Hudi's that wakes later still writes, with a marker.
    """
    how = {"index": "BUCKET", "buckets": 1, "options": OPTIONS}
    with made(f"file://{tmp_path / 't'}", version=6, mode="hudi", **how) as table:
        for v in range(3):
            write(table, v, "k01")
            table.compact()
        write(table, 3, "k01")
        known = log_files(table)
        dead = dies(table, "k03", "k02")
        first, wrote = sorted(log_files(table) - known, key=lambda each: dead not in each.name)
        bodies = first.read_bytes(), wrote.read_bytes()
        roll_back(table, dead)
        assert not first.exists()
        if what == "a marked log file":
            late = wrote.with_name(wrote.name.partition(".log.")[0] + ".log.9_0-1-1")
            late.write_bytes(bodies[1])
            path = f"{late.relative_to(folder(table))}"
            run(mark(dead, path, "APPEND"), table.store, Clock())
        elif what == "a base file":
            group = first.name[1:].partition("_")[0]
            base = next(folder(table).rglob("*.parquet"))
            shutil.copy(base, first.with_name(f"{group}_0-1-1_{dead}.parquet"))
        else:
            first.write_bytes(bodies[0])
        for v in range(4, 9):
            assert shown(table.read()) == [("k01", v - 1)] == shown(read_by_hudi_rs(table.url))
            write(table, v, "k01")
            if what != "a marked log file":
                table.compact()
            moved(table)
        forget(table, max(timeline(table).commits))
        assert shown(table.read()) == [("k01", 8)] == shown(read_by_hudi_rs(table.url))


def test_what_is_written_behind_a_compaction_that_a_restore_took_away_hides_no_row(
    table: Table,
) -> None:
    """By a writer that slept: Hudi's readers would take its slice for the newest one."""
    write(table, 4, "k02")
    saved, model = table.savepoint().instant, live(table)
    write(table, 5, "k03")
    compacted = table.compact()
    assert compacted is not None
    write(table, 6, "k04")
    (slept,) = [each for each in log_files(table) if f"_{compacted.instant}.log." in each.name]
    body = slept.read_bytes()
    table.restore(saved)
    assert not slept.exists()
    table.delete_savepoint(saved)
    write(table, 6, "k02")
    config, last = table.refresh().config, max(log_files(table), key=lambda each: each.name)
    slept.write_bytes(last.read_bytes())  # rows of a commit are never taken back
    with pytest.raises(DamagedFile, match="has rows of the commit"):
        run(take_strays_back(config), table.store, Clock())
    slept.write_bytes(body)
    for v in range(7, 12):
        write(table, v, "k02")
        table.compact()
        moved(table)
        assert live(table) == model | {"k02": v} == by_hudi_rs(table)
    assert not slept.exists()


@pytest.mark.parametrize("known", ["the archive is there", "the archive is gone", "rolled back"])
def test_files_of_archived_commits_stay_behind_a_commit_that_was_kept(
    table: Table, known: str
) -> None:
    """As a savepoint keeps it from Hudi's archiver; or a rollback in its name, which decided
    nothing, is still there.
    """
    hoodie = folder(table) / ".hoodie"
    oldest = min(timeline(table).completed)
    kept = {each: each.read_bytes() for each in hoodie.glob(f"{oldest}.*")}
    write(table, 4, "k02")
    write(table, 5, "k02")
    assert moved(table)
    archived = [each.instant for each in table.history()
                if oldest < each.instant not in timeline(table).completed]  # fmt: skip
    expected, files = live(table), {*folder(table).glob("*.parquet")}
    named = [each for each in archived if any(each in path.name for path in files)]
    assert named, "a base file is of an archived commit"
    for path, body in kept.items():
        path.write_bytes(body)
    if known == "the archive is gone":
        shutil.rmtree(hoodie / "archived")
    if known == "rolled back":
        at = instant_of(instant_ms(max(timeline(table).completed)) + 1)
        plan = format_rollback_plan(RollbackPlan(at, named[0], "deltacommit", ()))
        for key in (V6.requested(at, "rollback"), V6.completed(at, "rollback", None)):
            (folder(table) / key).write_bytes(plan)
    config, _ = run(load_config(), table.store, Clock())
    run(take_strays_back(config), table.store, Clock())
    assert {*folder(table).glob("*.parquet")} == files
    if known == "the archive is gone":
        for path in kept:
            path.unlink()
    else:
        with Table(table.url) as other:
            why = f"{oldest} is in the timeline, and .* is archived, though later"
            with pytest.raises(NotWritable, match=why):
                write(other, 6, "k01")
            other.archive()
            assert oldest not in timeline(other).completed and timeline(other).commits
            write(other, 6, "k01")
        expected["k01"] = 6
    assert live(table) == expected == by_hudi_rs(table)


def test_a_plan_brings_no_row_of_a_writer_that_was_rolled_back_after_it_was_made(
    table: Table,
) -> None:
    """It has the writer's log file, and not the command behind it."""
    dead = dies(table, "k03")
    write(table, 4, "k01")
    planned = table.compact(mode="schedule")
    assert planned is not None and dead < planned.instant
    roll_back(table, dead)
    for v in range(5, 9):
        write(table, v, "k01")
        moved(table)
    assert min(timeline(table).commits) < dead
    table.compact(mode="execute")
    assert live(table) == {"k01": 8} == by_hudi_rs(table)


def test_nothing_is_archived_while_rows_are_behind_a_plan_that_is_gone(table: Table) -> None:
    write(table, 4, "k01")
    planned = table.compact(mode="schedule")
    assert planned is not None
    write(table, 5, "k01")
    expected = live(table)
    key = folder(table) / V6.requested(planned.instant, "compaction")
    plan = key.read_bytes()
    key.unlink()
    before, files = timeline(table).completed, log_files(table)
    with pytest.raises(DamagedFile, match=f"{key.name} is gone"):
        table.archive(keep_min=2, keep_max=3)
    assert timeline(table).completed == before and log_files(table) == files
    key.write_bytes(plan)
    table.compact(mode="execute")
    assert live(table) == expected and moved(table)
    assert live(table) == expected == by_hudi_rs(table)


def test_log_files_that_no_compaction_merged_keep_their_commits(table: Table) -> None:
    """And a pending plan keeps the commit before it."""
    for v in range(4, 9):
        write(table, v, f"k0{v}")
    assert logs(table)
    expected = live(table)
    table.clean()
    table.archive(keep_min=2, keep_max=3)
    planned = table.compact(mode="schedule")
    assert planned is not None
    write(table, 9, "k01")
    write(table, 10, "k02")
    table.archive(keep_min=2, keep_max=3)
    assert {each for each in timeline(table).commits if each < planned.instant}
    assert live(table) == expected | {"k01": 9, "k02": 10}
    table.compact(mode="execute")
    assert live(table) == expected | {"k01": 9, "k02": 10} == by_hudi_rs(table)
