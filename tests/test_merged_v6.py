"""Merge-on-read tables of version 6, whose log files are named after their slice."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deaths import Died, Mortal
from hudi_rs import read_by_hudi_rs
from test_merge_on_read import made
from test_merged_of_hudi import adopted, as_rows, shown

from lockkit.cli.main import main
from lockkit.clock import Clock
from lockkit.errors import TableError
from lockkit.runtime import SiblingInterrupted, run
from lockkit.table import CommitConflict, Table, arrow_write
from lockkit.table.errors import DamagedFile, HeartbeatExpired, TableBlocked
from lockkit.table.format.layout import LOG_FILE
from lockkit.table.format.log_blocks import COMMAND, blocks
from lockkit.table.format.timeline import V6, load_timeline
from lockkit.table.occ.commit import EpochGuard
from lockkit.table.occ.covered import load_rollback_plan
from lockkit.table.occ.executions import put_back
from lockkit.table.occ.heartbeat import Heartbeat
from lockkit.table.occ.liveness import end, read_heartbeat
from lockkit.table.occ.markers import MARKERS, mark
from lockkit.table.occ.mode import switch_mode
from lockkit.table.services.scheduled import PlanAttempt
from lockkit.table.write import groups
from lockkit.table.write.attempt import WriteAttempt

pytestmark = pytest.mark.usefixtures("no_hudi_beside")

TS = 10_000
"""Later than each row of Hudi's."""
KEYS = [f"k{number:02d}" for number in range(20)]


@pytest.fixture
def table(hudi_made: Path, tmp_path: Path) -> Iterator[Table]:
    with adopted(hudi_made, tmp_path, "mor6") as found:
        yield found


def folder(table: Table) -> Path:
    return Path(table.url.removeprefix("file://"))


def log_files(table: Table) -> set[Path]:
    return {each for each in folder(table).rglob(".*.log.*") if MARKERS not in f"{each}/"}


def logs(table: Table) -> dict[str, list[tuple[str, int]]]:
    """Of each file group, the slice and the version of its log files."""
    found: dict[str, list[tuple[str, int]]] = {}
    for path in log_files(table):
        if name := LOG_FILE.fullmatch(path.name):
            found.setdefault(name[1], []).append((name[2], int(name[3])))
    return {group: sorted(each) for group, each in found.items()}


def live(table: Table) -> dict[str, int]:
    return dict(shown(table.read()))


def write(table: Table, v: int, *keys: str) -> None:
    table.upsert(as_rows(*((key, TS + v, v) for key in keys)))


def timeline(table: Table) -> Any:
    return run(load_timeline(V6), table.store, Clock())


@pytest.mark.parametrize("name", ["mor6", "mor6_planned"])
@pytest.mark.parametrize("seed", range(3))
def test_its_rows_are_those_of_a_dictionary_whatever_is_written_planned_and_carried_out(
    hudi_made: Path, tmp_path: Path, name: str, seed: int
) -> None:
    dice = random.Random(f"{name} {seed}")
    with adopted(hudi_made, tmp_path, name) as table:
        expected = live(table)
        for step in range(10):
            keys = dice.sample(KEYS, 4)
            deed = dice.choice(["upsert", "upsert", "append", "delete", "late", "plan", "execute",
                                "compact", "clean"])  # fmt: skip
            if deed == "delete":
                table.delete(as_rows(*((key, TS + step, 0) for key in keys)))
                expected = {key: v for key, v in expected.items() if key not in keys}
            elif deed == "late":
                known = [key for key in keys if key in expected]
                if known:
                    table.upsert(as_rows(*((key, 0, 99) for key in known)))
            elif deed == "plan":
                table.compact(mode="schedule")
            elif deed == "execute":
                table.compact(mode="execute")
            elif deed == "compact":
                table.compact()
            elif deed == "clean":
                table.clean()
            else:
                put = table.append if deed == "append" else table.upsert
                put(as_rows(*((key, TS + step, step) for key in keys)))
                expected |= dict.fromkeys(keys, step)
            assert live(table) == expected, (step, deed)
            if "compaction" not in timeline(table).pending.values():  # hudi-rs leaves rows out then
                assert dict(shown(read_by_hudi_rs(table.url))) == expected, (step, deed)
        while table.compact() is not None:
            pass
        assert dict(shown(table.read(query="read_optimized"))) == expected
        assert dict(shown(read_by_hudi_rs(table.url))) == expected


def test_each_commit_has_a_log_file_of_its_slice_with_the_next_version(table: Table) -> None:
    before = logs(table)
    write(table, 1, "k03", "k04")
    write(table, 2, "k03", "k04")
    for group, listed in logs(table).items():
        (base,) = {at for at, _ in listed}
        assert {at for at, _ in before[group]} == {base}, "their slice is that of Hudi's"
        assert [version for _, version in listed] == [*range(1, 1 + len(listed))]
        assert len(listed) == len(before[group]) + 2


def test_log_files_after_a_plan_are_of_its_slice(table: Table) -> None:
    planned = table.compact(mode="schedule")
    assert planned is not None
    before = logs(table)
    write(table, 1, "k03")
    ((at, version),) = [each for group, listed in logs(table).items() for each in listed
                        if each not in before[group]]  # fmt: skip
    assert (at, version) == (planned.instant, 1)
    expected = live(table)
    table.compact(mode="execute", instant=planned.instant)
    assert live(table) == expected and expected["k03"] == 1
    write(table, 2, "k03")
    assert [v for each in logs(table).values() for at, v in each if at == planned.instant] == [1, 2]


@pytest.mark.parametrize("carried_out", [False, True])
def test_a_writer_that_began_before_a_plan_is_refused_and_a_later_one_is_not(
    table: Table, carried_out: bool
) -> None:
    """The first one's log file is of the old slice, which the plan may have been made without."""
    before = live(table)
    done: list[str] = []

    def meanwhile(kind: str, **fields: Any) -> None:
        if kind == "note" and fields["text"].startswith("wrote") and not done:
            done.append("")
            table.compact(mode="scheduleAndExecute" if carried_out else "schedule")

    with Table(table.url, emit=meanwhile) as slow:
        with pytest.raises(CommitConflict, match=r"compaction|commit"):
            slow.upsert(as_rows(("k03", TS, 1)))
        assert live(table) == before
        slow.upsert(as_rows(("k03", TS, 1)))
    if not carried_out:
        table.compact(mode="execute")
    assert live(table) == before | {"k03": 1} == dict(shown(read_by_hudi_rs(table.url)))


def test_a_plan_that_is_gone_is_named_where_it_would_cost_rows(table: Table) -> None:
    """Behind it there are rows of a commit. Without it they were left out, and nothing said so."""
    before = live(table)
    planned = table.compact(mode="schedule")
    assert planned is not None
    (folder(table) / V6.requested(planned.instant, "compaction")).unlink()
    assert live(table) == before, "nothing is behind it"
    resumed = table.compact(mode="schedule")
    assert resumed is not None
    write(table, 1, "k03")
    (folder(table) / V6.requested(resumed.instant, "compaction")).unlink()
    why = f"{resumed.instant}.compaction.requested is gone, and .* has rows of the commit"
    for way in (lambda: live(table), lambda: write(table, 2, "k04"), table.compact):
        with pytest.raises(DamagedFile, match=why):
            way()


def test_a_base_file_that_is_gone_is_named_where_log_files_count_on_it(table: Table) -> None:
    """Only the rows behind it were read, and nothing said so."""
    write(table, 1, "k03")
    done = table.compact()
    assert done is not None
    write(table, 2, "k03", "k04")
    expected = live(table)
    (*_, base) = folder(table).rglob(f"*_{done.instant}.parquet")
    kept = {each: each.read_bytes() for each in folder(table).rglob("*.parquet")}
    for each in kept:  # as if the older ones were cleaned
        if base.name.split("_")[0] in each.name:
            each.unlink()
    for way in (lambda: live(table), lambda: write(table, 3, "k04"), table.compact):
        with pytest.raises(DamagedFile, match=f"_{done.instant}.parquet is gone, and log files"):
            way()
    for each, body in kept.items():
        each.write_bytes(body)
    assert live(table) == expected


def test_a_table_whose_first_writer_has_not_committed_has_no_rows(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/t"
    how: dict[str, Any] = {"version": 6, "mode": "hudi", "index": "BUCKET", "buckets": 1}
    Table.create(url, record_key="id", table_type="MERGE_ON_READ", **how).close()
    rows = pa.table({"id": ["a"], "v": [1]})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(WriteAttempt, "_publish", ends)
        patched.setattr(WriteAttempt, "_leave", lambda *_: iter(()))
        with Table(url) as first, pytest.raises(Stops):
            first.upsert(rows)
    assert [*tmp_path.rglob("*.log.1_*")]
    with Table(url) as table:
        assert table.read().num_rows == 0
        table.upsert(rows)
        assert table.read().num_rows == 1


def test_a_plan_is_carried_out_while_a_later_writer_writes(table: Table) -> None:
    table.compact(mode="schedule")
    done: list[str] = []

    def meanwhile(kind: str, **fields: Any) -> None:
        if kind == "note" and fields["text"].startswith("wrote") and not done:
            done.append("")
            table.compact(mode="execute")

    before = live(table)
    with Table(table.url, emit=meanwhile) as other:
        other.upsert(as_rows(("k03", TS, 1)))
    assert done and live(table) == before | {"k03": 1} == dict(shown(read_by_hudi_rs(table.url)))


def test_the_inflight_file_is_there_before_a_data_file(table: Table) -> None:
    """Hudi's rollback of an instant that is only requested takes nothing back."""
    begun: list[bool] = []

    def heard(kind: str, **fields: Any) -> None:
        if kind == "note" and fields["text"].startswith("wrote"):
            key = V6.inflight(fields["instant"], "deltacommit")
            begun.append(bool(other.store.list(key)))

    with Table(table.url, emit=heard) as other:
        other.upsert(as_rows(("k03", TS, 1)))
    assert begun == [True]


class Stops(BaseException):
    """The end of a process."""


def dies(table: Table, *keys: str, ahead_ms: int = 0) -> str:
    """A writer that ends once its files are there, without a word; answers its instant."""
    found: list[str] = []

    def heard(kind: str, **fields: Any) -> None:
        if kind == "began":
            found.append(fields["instant"])

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(WriteAttempt, "_publish", ends)
        patched.setattr(WriteAttempt, "_leave", lambda *_: iter(()))
        clock = Clock(offset_ms=ahead_ms)
        with Table(table.url, emit=heard, clock=clock) as other, pytest.raises(Stops):
            other.upsert(as_rows(*((key, TS, 77) for key in keys)))
    return found[-1]


def ends(*_: Any) -> Iterator[Any]:
    raise Stops
    yield


def test_increments_name_the_pending_instant_behind_which_they_stop(table: Table) -> None:
    _, before = table.changes()
    planned = table.compact(mode="schedule")
    assert planned is not None and table.changes(before.end)[1].held_back is None
    dead = dies(table, "k03")
    write(table, 1, "k09")
    rows, waits = table.changes(before.end)
    assert rows.num_rows == 0 and waits.held_back is not None
    assert waits.held_back.instant == dead
    roll_back(table, dead)
    rows, goes_on = table.changes(before.end)
    assert rows["id"].to_pylist() == ["k09"]
    assert goes_on.held_back is None


def roll_back(table: Table, instant: str) -> None:
    service = table._upkeep.service
    assert run(end(run(read_heartbeat(instant), table.store, Clock())), table.store, Clock())
    done = service.context.roll_back(service.inspect().known, instant)
    assert done.target == instant


def resume(table: Table, rollback: str) -> None:
    """Finish a rollback; where Hudi writes too, a service waits until nobody can be at it."""
    plan = run(load_rollback_plan(V6, rollback), table.store, Clock())
    assert plan is not None
    service = table._upkeep.service
    service.context.roll_back(service.inspect().known, plan.target, resume=rollback)


@pytest.mark.parametrize("small", [True, False])
def test_a_writer_that_slept_past_its_heartbeat_beside_a_marker_puts_no_file(
    table: Table, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    """It is rolled back meanwhile; a file that comes later may count as committed one day."""
    monkeypatch.setattr(arrow_write, "PREFETCH_ROWS_MAX", 10 if small else 0)
    before, files, slept = live(table), log_files(table), list[str]()

    def sleeps(instant: str, *place: Any) -> Iterator[Any]:
        yield from mark(instant, *place)
        slept.append(instant)

    def alive(_: Heartbeat) -> None:
        if slept:
            raise HeartbeatExpired(slept[0], "it slept")

    monkeypatch.setattr(groups, "mark", sleeps)
    monkeypatch.setattr(Heartbeat, "assert_alive", alive)
    with Table(table.url) as other, pytest.raises(HeartbeatExpired):
        other.upsert(as_rows(("k03", TS, 1)))
    new = [each.kind for path in log_files(table) - files
           for each in blocks(path.name, path.read_bytes())]  # fmt: skip
    assert slept and new == [COMMAND] and live(table) == before


def test_the_files_of_a_dead_writer_stay_and_a_command_takes_them_back(table: Table) -> None:
    before, files = live(table), {*folder(table).rglob("*.parquet")}
    was = logs(table)
    dead = dies(table, "k03", "k04", "k90")
    marked = [each.key for each in table.store.list(f"{MARKERS}{dead}/")]
    assert sum("APPEND" in each for each in marked) == 2 and len(marked) > 2, marked
    assert table.store.list(V6.inflight(dead, "deltacommit")), "Hudi takes back what has begun"
    assert live(table) == before
    roll_back(table, dead)
    assert live(table) == before == dict(shown(read_by_hudi_rs(table.url)))
    assert {*folder(table).rglob("*.parquet")} == files, "its base file is gone"
    for group, listed in logs(table).items():
        new = [each for each in listed if each not in was[group]]
        assert len(new) in (0, 2)
    kinds = [each.kind for path in log_files(table)
             for each in blocks(path.name, path.read_bytes())]  # fmt: skip
    assert kinds.count(COMMAND) == 2
    assert not table.store.list(f"{MARKERS}{dead}/") and dead not in timeline(table).pending
    write(table, 1, "k03")
    assert live(table) == before | {"k03": 1} == dict(shown(read_by_hudi_rs(table.url)))


def forget(table: Table, older_than: str) -> None:
    """Archive every instant before this one, as to the readers that list folders."""
    for path in (folder(table) / ".hoodie").glob("2*"):
        if path.name[:17] < older_than:
            path.unlink()


@pytest.mark.parametrize("late", [False, True])
def test_a_rolled_back_row_does_not_appear_once_earlier_commits_are_archived(
    table: Table, late: bool
) -> None:
    """Readers take what is older than the timeline's first commit for committed."""
    before = live(table)
    was = log_files(table)
    dead = dies(table, "k03")
    (wrote,) = log_files(table) - was
    body = wrote.read_bytes()
    if late:
        wrote.unlink()
    roll_back(table, dead)
    wrote.write_bytes(body)  # by a process that was paused there
    write(table, 1, "k04")
    write(table, 2, "k04")
    forget(table, max(timeline(table).commits))
    assert live(table) == before | {"k04": 2} == dict(shown(read_by_hudi_rs(table.url)))


@pytest.mark.parametrize("marker", ["log file", "base file"])
def test_a_log_file_of_a_dead_writer_of_hudis_is_taken_back(table: Table, marker: str) -> None:
    """Hudi's name does not say who wrote it. Before 0.15 its marker named the slice's base file."""
    before = live(table)
    dead = dies(table, "k03")
    (mine,) = [path for path in log_files(table) if path.name.endswith(f"-1{dead[8:]}")]
    theirs = mine.rename(mine.with_name(mine.name.rpartition("_")[0] + "_0-22-33"))
    shutil.rmtree(folder(table) / MARKERS)
    name = theirs.name
    if marker == "base file":
        parts = LOG_FILE.fullmatch(name)
        assert parts is not None
        name = f"{parts[1]}_0-22-33_{parts[2]}.parquet"
    run(mark(dead, f"{theirs.parent.name}/{name}", "APPEND"), table.store, Clock())
    roll_back(table, dead)
    assert theirs.exists(), "a plan of Hudi's may name it"
    write(table, 1, "k04")
    write(table, 2, "k04")
    forget(table, max(timeline(table).commits))
    assert live(table) == before | {"k04": 2} == dict(shown(read_by_hudi_rs(table.url)))


def test_no_plan_has_the_log_file_of_a_dead_writer_that_began_the_file_group_too(
    tmp_path: Path,
) -> None:
    """That log file is deleted with its instant, and a plan that named it was never carried out."""
    only = {"partition_by": None, "index": "BUCKET", "buckets": 1}
    with made(f"file://{tmp_path}", version=6, mode="hudi", **only) as table:
        dead = dies(table, "k03")
        write(table, 1, "k04")
        planned = table.compact(mode="schedule")
        assert planned is not None and planned.logs == 1
        roll_back(table, dead)
        assert table.compact(mode="execute") is not None
        assert live(table) == {"k04": 1} == dict(shown(read_by_hudi_rs(table.url)))


@pytest.mark.filterwarnings("ignore::lockkit.lock.oddities.ClockSkew")
def test_no_plan_has_a_file_group_that_has_the_log_file_of_such_a_writer_alone(
    tmp_path: Path,
) -> None:
    """Without that log file nobody would take the file group for one with a compaction before it:
    the next log file would have the name of the old slice, and the plan would lack it."""
    only = {"partition_by": None, "index": "BUCKET", "buckets": 1}
    with made(f"file://{tmp_path}", version=6, mode="hudi", **only) as table:
        dead = dies(table, "k03", ahead_ms=60_000)
        write(table, 1, "k04")
        done = table.compact()
        assert done is not None and done.instant < dead
        assert table.compact(mode="schedule") is None
        with Table(table.url, clock=Clock(offset_ms=60_000)) as later:
            roll_back(later, dead)
            write(later, 2, "k05")
            assert later.compact() is not None
        assert live(table) == {"k04": 1, "k05": 2} == dict(shown(read_by_hudi_rs(table.url)))


def test_a_refused_write_takes_its_log_files_back_itself(table: Table) -> None:
    before, done = live(table), []

    def meanwhile(kind: str, **fields: Any) -> None:
        if kind == "note" and fields["text"].startswith("wrote") and not done:
            done.append("")
            write(table, 1, "k03")

    with Table(table.url, emit=meanwhile) as slow, pytest.raises(CommitConflict):
        slow.upsert(as_rows(("k03", TS + 5, 77)))
    assert not timeline(table).pending and not table.store.list(MARKERS)
    write(table, 2, "k04")
    forget(table, max(timeline(table).commits))
    assert live(table) == before | {"k03": 1, "k04": 2} == dict(shown(read_by_hudi_rs(table.url)))


def test_a_plan_stays_whoever_dies_or_rolls_it_back(table: Table) -> None:
    """Log files are named after it: without its base file, readers would miss all earlier rows."""
    planned = table.compact(mode="schedule")
    assert planned is not None
    write(table, 1, "k03")
    expected = live(table)
    roll_back(table, planned.instant)
    assert timeline(table).pending == {planned.instant: "compaction"}

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PlanAttempt, "_publish", ends)
        patched.setattr(PlanAttempt, "_leave", lambda *_: iter(()))
        with Table(table.url) as other, pytest.raises(Stops):
            other.compact(mode="execute")
    assert planned.instant in timeline(table).inflight
    made = [*folder(table).rglob(f"*_{planned.instant}.parquet")]
    assert made and live(table) == expected
    roll_back(table, planned.instant)
    assert not any(each.exists() for each in made)
    now = timeline(table)
    assert now.pending == {planned.instant: "compaction"} and planned.instant not in now.inflight
    write(table, 2, "k04")
    assert table.compact(mode="execute") is not None
    assert live(table) == expected | {"k04": 2} == dict(shown(read_by_hudi_rs(table.url)))


def test_an_inflight_file_that_a_stopped_process_wrote_late_does_not_keep_a_plan_for_ever(
    table: Table,
) -> None:
    """It was paused right before the file, rolled back meanwhile, and stopped right after it."""
    planned = table.compact(mode="schedule")
    assert planned is not None
    expected = live(table)
    inflight = folder(table) / V6.inflight(planned.instant, "compaction")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PlanAttempt, "_publish", ends)
        patched.setattr(PlanAttempt, "_leave", lambda *_: iter(()))
        with Table(table.url) as other, pytest.raises(Stops):
            other.compact(mode="execute")
    body = inflight.read_bytes()
    roll_back(table, planned.instant)
    inflight.write_bytes(body)
    with pytest.raises(TableBlocked, match=f"--instant {planned.instant} --stopped"):
        table.compact(mode="execute")
    assert main(["table", "rollback", table.url, "--instant", planned.instant, "--stopped"]) == 0
    assert not inflight.exists()
    inflight.write_bytes(body)
    os.utime(folder(table) / V6.requested(planned.instant, "compaction"), (0, 0))  # long ago
    assert main(["table", "show", table.url]) == 1
    assert table.compact(mode="execute") is not None
    assert live(table) == expected == dict(shown(read_by_hudi_rs(table.url)))


@pytest.mark.parametrize("begun", [False, True])
def test_a_plan_that_cannot_be_read_closes_no_read_and_is_taken_away(
    table: Table, begun: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = table.compact(mode="schedule")
    assert planned is not None
    expected, plan = live(table), folder(table) / V6.requested(planned.instant, "compaction")
    plan.write_bytes(plan.read_bytes()[:100])
    if begun:
        (folder(table) / V6.inflight(planned.instant, "compaction")).touch()
    assert live(table) == expected
    away = ["table", "rollback", table.url, "--instant", planned.instant]
    with pytest.raises(TableBlocked, match=f"take it away: .* --instant {planned.instant}"):
        write(table, 1, "k03")
    if begun:
        assert main(away) == 75
        assert "--stopped" in capsys.readouterr().err
        away.append("--stopped")
    assert main(away) == 0
    now = timeline(table)
    assert not now.pending and planned.instant not in now.inflight
    write(table, 1, "k03")
    assert table.compact() is not None
    assert live(table) == expected | {"k03": 1} == dict(shown(read_by_hudi_rs(table.url)))


def test_a_plan_that_cannot_be_read_stays_where_a_log_file_is_behind_it(
    table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the base file that it would write, readers would miss all earlier rows."""
    planned = table.compact(mode="schedule")
    assert planned is not None
    write(table, 1, "k03")
    plan = folder(table) / V6.requested(planned.instant, "compaction")
    body = plan.read_bytes()
    plan.write_bytes(b"")
    assert main(["table", "rollback", table.url, "--instant", planned.instant]) == 3
    assert "counts on the base file" in capsys.readouterr().err and plan.exists()
    plan.write_bytes(body)
    assert table.compact(mode="execute") is not None


def test_a_write_beside_a_pending_restore_says_what_to_do_and_plans_nothing(table: Table) -> None:
    plan = folder(table) / V6.requested("20270101000000000", "restore")
    plan.write_bytes(b"Obj\x01half of it")
    for write_ in (table.append, table.upsert, lambda _: table.compact()):
        with pytest.raises(TableBlocked, match=r"delete 20270101000000000\.restore\.requested"):
            write_(as_rows(("k93", TS, 1)))
    assert set(timeline(table).pending.values()) == {"restore"}
    plan.unlink()
    write(table, 1, "k03")


def test_an_execution_that_was_paused_leaves_what_hudi_wrote_for_the_same_plan(
    table: Table,
) -> None:
    """Hudi carries a plan out again that a process of lockkit's has left half done."""
    planned = table.compact(mode="schedule")
    assert planned is not None
    theirs = folder(table) / "US" / f"f-0_1-59-103_{planned.instant}.parquet"

    def hudi_begins(*_: Any) -> Iterator[Any]:
        theirs.write_bytes(b"rows")
        run(mark(planned.instant, f"US/{theirs.name}", "MERGE"), table.store, Clock())
        raise TableError("it was paused here")
        yield

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PlanAttempt, "_publish", hudi_begins)
        with pytest.raises(TableError, match="paused here"):
            table.compact(mode="execute")
    inflight = folder(table) / V6.inflight(planned.instant, "compaction")
    inflight.write_bytes(b"")
    roll_back(table, planned.instant)
    assert [*folder(table).rglob(f"*_{planned.instant}.parquet")] == [theirs]
    assert inflight.exists() and len(table.store.list(f"{MARKERS}{planned.instant}/")) == 1


def test_a_writer_that_goes_first_is_refused_too_by_a_plan_that_it_did_not_see(
    table: Table,
) -> None:
    first = {"hoodie.write.lock.conflict.resolution.strategy": "prefer_writer"}
    done: list[str] = []

    def meanwhile(kind: str, **fields: Any) -> None:
        if kind == "note" and fields["text"].startswith("wrote") and not done:
            done.append("")
            table.compact(mode="schedule")

    with Table(table.url, emit=meanwhile, options=first) as slow:
        with pytest.raises(CommitConflict):
            slow.upsert(as_rows(("k03", TS, 1)))


def test_a_clean_deletes_the_log_files_of_slices_that_it_deletes(table: Table) -> None:
    options = {"hoodie.clean.commits.retained": "1"}
    old = log_files(table)
    write(table, 1, "k03")
    table.compact()
    write(table, 2, "k03")
    write(table, 3, "k03")
    kept = log_files(table)
    expected = live(table)
    with Table(table.url, options=options) as cleaner:
        assert cleaner.clean()
    left = log_files(table)
    assert not old & left and len(left) == 2 and left < kept
    assert live(table) == expected == dict(shown(read_by_hudi_rs(table.url)))
    table.compact(mode="schedule")
    write(table, 4, "k03")
    with Table(table.url, options=options) as cleaner:
        cleaner.clean()
    assert live(table) == expected | {"k03": 4}


def test_nothing_is_cleaned_or_planned_while_a_restore_is_pending(table: Table) -> None:
    """It takes commits back one by one, and the slices before them are the newest again."""
    write(table, 1, "k03")
    table.compact()
    write(table, 2, "k03")
    for ending in ("requested", "inflight"):
        (folder(table) / f".hoodie/20991231000000000.restore.{ending}").write_bytes(b"")
    files = log_files(table)
    with Table(table.url, options={"hoodie.clean.commits.retained": "1"}) as other:
        for call in (other.clean, lambda: other.compact(mode="schedule"), other.compact):
            with pytest.raises(TableError, match="is a pending restore"):
                call()
    assert log_files(table) == files


def test_an_increment_has_the_rows_of_its_log_files(table: Table) -> None:
    since = table.changes(begin="")[1].end
    write(table, 1, "k03", "k91")
    table.compact(mode="schedule")
    write(table, 2, "k04")
    rows, increment = table.changes(begin=since)
    assert shown(rows) == [("k03", 1), ("k04", 2), ("k91", 1)]
    table.compact(mode="execute")
    assert table.changes(begin=increment.end)[0].num_rows == 0


def test_what_such_a_table_does_not_take_is_refused_by_name(table: Table) -> None:
    row = as_rows(("k03", TS, 1))
    partial = row.select(["id", "region", "ts", "v"])
    for call, what in (
        (lambda: table.overwrite(row), "insert_overwrite is refused"),
        (lambda: table.upsert(partial, partial=True), "a partial update is refused"),
        (lambda: run(switch_mode("fenced", EpochGuard(1)), table.store, Clock()), "mode fenced"),
    ):
        before = live(table)
        with pytest.raises(TableError, match=what):
            call()
        assert live(table) == before
    nbcc = {"hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL"}
    with Table(table.url, options=nbcc) as other, pytest.raises(TableError, match="version 6"):
        other.upsert(row)


# --- killed processes -----------------------------------------------------------------------------

ALONE = {"hoodie.write.concurrency.mode": "single_writer", "hoodie.clean.automatic": "false"}
REQUESTS_MAX = 150


def upserts(table: Table) -> None:
    table.upsert(as_rows(("k03", TS, 77), ("k04", TS, 77), ("k90", TS, 77)))


def deletes(table: Table) -> None:
    table.delete(as_rows(("k03", TS, 0), ("k04", TS, 0)))


def compacts(table: Table) -> None:
    table.compact()


def rolls_back(table: Table) -> None:
    roll_back(table, min(timeline(table).pending))


@pytest.mark.parametrize("deed", [upserts, deletes, compacts, rolls_back])
@pytest.mark.parametrize("sent", [False, True])
@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.soak)])
def test_a_process_that_dies_at_any_request_leaves_all_of_its_rows_or_none(
    table: Table, tmp_path: Path, deed: Any, sent: bool, step: int
) -> None:
    if deed is rolls_back:
        dies(table, "k03", "k04", "k91")
    before, after, visible = live(table), dict[str, int](), list[bool]()
    died = True
    for most in range(step // 2 if sent else 0, REQUESTS_MAX, step):
        url = f"file://{shutil.copytree(folder(table), tmp_path / f'{most}')}"
        with Table(url, options=ALONE) as victim:
            mortal: Any = Mortal(victim.store, most, sent=sent)
            victim.store = victim._data = victim._upkeep.context.store = mortal
            try:
                deed(victim)
                died = False
            except (Died, SiblingInterrupted):
                pass
        with Table(url, options=ALONE | {"hoodie.cleaner.policy.failed.writes": "EAGER"}) as other:
            for instant in [each for each, done in timeline(other).rollbacks.items() if not done]:
                resume(other, instant)
            found = live(other)
            after = found if found != before else after
            assert found in (before, after)
            write(other, 1, "k05")
            write(other, 2, "k05")
            assert {*timeline(other).pending.values()} <= {"compaction"}
            while other.compact() is not None:
                pass
            forget(other, max(timeline(other).commits))
            assert live(other) == found | {"k05": 2} == dict(shown(read_by_hudi_rs(url)))
        visible.append(found != before)
        if not died:
            break
    assert not died
    assert visible == sorted(visible) and visible[-1] == (deed in (upserts, deletes))


@pytest.mark.parametrize("index", ["", "BUCKET"])
def test_hudi_rs_reads_a_table_that_lockkit_created(tmp_path: Path, index: str) -> None:
    url = f"file://{tmp_path}/created"
    with Table.create(
        url, record_key="id", precombine="ts", table_type="MERGE_ON_READ", version=6, mode="hudi",
        index=index, buckets=2,
    ) as made:  # fmt: skip
        made.upsert(as_rows(*((key, 1, 1) for key in KEYS)))
        made.upsert(as_rows((KEYS[0], 2, 2), ("k99", 2, 2)))
        made.delete(as_rows((KEYS[1], 3, 3)))
        expected = dict.fromkeys(KEYS, 1) | {KEYS[0]: 2, "k99": 2}
        del expected[KEYS[1]]
        assert live(made) == dict(shown(read_by_hudi_rs(url))) == expected
        made.compact()
        made.upsert(as_rows((KEYS[2], 4, 4)))
        expected[KEYS[2]] = 4
        assert live(made) == dict(shown(read_by_hudi_rs(url))) == expected


def test_a_client_that_saw_a_stopped_execution_does_not_put_the_next_one_back(table: Table) -> None:
    """Each execution has the plan's instant. The stopped one's heartbeat is gone meanwhile."""
    planned = table.compact(mode="schedule")
    assert planned is not None
    deleted = list[tuple[str, ...]]()

    def late(kind: str, **fields: Any) -> None:
        if kind == "checked" and fields["instant"] == planned.instant:
            deleted.append(run(put_back(planned.instant, V6), table.store, Clock()))

    with Table(table.url, emit=late) as other:
        done = other.compact(mode="execute")
    assert done is not None and done.instant == planned.instant and deleted == [()]
    assert not run(load_timeline(V6), table.store, Clock()).pending


def test_a_client_that_paused_deletes_no_file_of_an_execution_that_began_meanwhile(
    table: Table,
) -> None:
    """Its first request is answered, then it pauses until that execution is about to commit."""
    planned = table.compact(mode="schedule")
    assert planned is not None
    before, late = live(table), put_back(planned.instant, V6)
    asked = next(late)

    def goes_on(kind: str, **fields: Any) -> None:
        if kind == "checked" and fields["instant"] == planned.instant:
            with suppress(StopIteration):
                answer = answered
                while True:
                    answer = perform(late.send(answer))

    def perform(effect: Any) -> Any:
        def once() -> Any:
            return (yield effect)

        return run(once(), table.store, Clock())

    answered = perform(asked)
    with Table(table.url, emit=goes_on) as other:
        done = other.compact(mode="execute")
    assert done is not None
    assert late.gi_frame is None, "it went on"
    assert len(list(folder(table).glob(f"*/*_{planned.instant}.parquet"))) == 2
    assert live(table) == dict(shown(read_by_hudi_rs(table.url))) == before
