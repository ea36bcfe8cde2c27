"""Compaction of merge-on-read tables: no row changes, beside writers, and wherever it dies."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deaths import Died, Mortal
from table_world import Hasty
from test_merge_on_read import made, rows, shown, theirs

from lockkit import Clock
from lockkit.cli.main import main
from lockkit.errors import LockLost, TableError
from lockkit.protocol.policy import Expiry
from lockkit.runtime import SiblingInterrupted, run
from lockkit.stores import Store, open_store
from lockkit.table import CommitConflict, Table, read_table
from lockkit.table.errors import EarlyConflict, RefusedOption, TableChanged
from lockkit.table.format.avro import encode
from lockkit.table.format.compaction_plan import (
    CompactionInput,
    CompactionPlan,
    format_compaction_plan,
    parse_compaction_plan,
)
from lockkit.table.format.plans import OURS
from lockkit.table.format.properties import TableConfig
from lockkit.table.format.property_keys import MERGE_ON_READ
from lockkit.table.format.records import COMPACTION_PLAN
from lockkit.table.format.timeline import Timeline, load_timeline
from lockkit.table.occ.commit import EpochGuard
from lockkit.table.occ.concurrency import SingleWriter
from lockkit.table.occ.conflict import find_conflict
from lockkit.table.occ.conflicting import OwnChanges, Winner
from lockkit.table.occ.heartbeat import Heartbeat
from lockkit.table.occ.heartbeat_rules import HeartbeatRules
from lockkit.table.occ.liveness import HEARTBEATS
from lockkit.table.occ.markers import MARKERS, early_conflict, mark
from lockkit.table.occ.rollback import RolledBack, roll_back
from lockkit.table.read.log_slice import LogSlice
from lockkit.table.read.opening import load_snapshot
from lockkit.table.read.reader import scan_slice
from lockkit.table.services.compact import choose, compact, stands
from lockkit.table.services.rules import ServiceRules, service_rules
from lockkit.table.services.service import TableService

_NAMES = itertools.count()
GROUP = ("", "f")


def fresh() -> str:
    return f"memory://compacted{next(_NAMES)}"


def with_logs(url: str, **how: Any) -> Table:
    """One file group: a=2 and b=1, in a base file and two log files, of which one deletes c."""
    table = made(url, partition_by=None, buckets=1, **how)
    table.upsert(rows(("a", "EU", 1, 1), ("b", "EU", 1, 1), ("c", "EU", 1, 1)))
    table.upsert(rows(("a", "EU", 2, 2)))
    table.delete(rows(("c", "EU", 2, 2)))
    return table


STANDING = [("a", "EU", 2, 2), ("b", "EU", 1, 1)]


def timeline(store: Store) -> Timeline:
    return run(load_timeline(run(load_snapshot(), store, Clock()).config.names), store, Clock())


def files(store: Store) -> list[str]:
    """Base and log files, without their tasks' numbers."""
    keys = [each.key for each in store.list("") if not each.key.startswith(".hoodie")]
    return [each for each in keys if ".parquet" in each or ".log." in each]


class Meanwhile:
    """An `emit` at which something else happens, once, while log files are merged."""

    def __init__(self, what: Callable[[str], Any]) -> None:
        self.what, self.done = what, False

    def __call__(self, kind: str, **fields: Any) -> None:
        if kind == "note" and fields["text"].startswith("compacting") and not self.done:
            self.done = True
            self.what(fields["instant"])


# --- the rows are the same ------------------------------------------------------------------------


def test_readers_see_the_same_rows_after_a_compaction_and_base_files_have_them(
    tmp_path: Path,
) -> None:
    with with_logs(f"file://{tmp_path}/t") as table:
        assert shown(table.read()) == STANDING == theirs(tmp_path / "t")
        before = {each["_hoodie_record_key"]: each for each in
                  read_table(table.store, meta=True).to_pylist()}  # fmt: skip
        done = table.compact()
        assert done is not None and (done.groups, done.logs) == (1, 2)
        assert shown(table.read()) == STANDING == theirs(tmp_path / "t")
        assert shown(table.read(query="read_optimized")) == STANDING
        for row in read_table(table.store, meta=True).to_pylist():
            file = row.pop("_hoodie_file_name")
            kept = before[row["_hoodie_record_key"]]
            assert row == {name: kept[name] for name in row} and done.instant in file
        assert [each.action for each in table.history()] == ["commit", *["deltacommit"] * 3]
        assert table.compact() is None
        table.upsert(rows(("b", "EU", 3, 3)))
        assert shown(table.read()) == [STANDING[0], ("b", "EU", 3, 3)] == theirs(tmp_path / "t")


@pytest.mark.parametrize("large", [True, False])
def test_large_file_groups_are_merged_one_after_another(
    monkeypatch: pytest.MonkeyPatch, *, large: bool
) -> None:
    """Two of two million rows at one time took a gigabyte more."""
    both, met = threading.Barrier(2), []

    def scanned(*of: Any) -> Any:
        with suppress(threading.BrokenBarrierError):
            met.append(both.wait(0.3 if large else 60))
        yield from scan_slice(*of)

    monkeypatch.setattr("lockkit.table.services.compact.scan_slice", scanned)
    monkeypatch.setattr("lockkit.table.services.compact.ALONE_BYTES", 1 if large else 1 << 40)
    with made() as table:
        for ts in (1, 2):
            table.upsert(rows(("a", "EU", ts, ts), ("b", "US", ts, ts)))
        assert table.compact() is not None
        assert shown(table.read()) == [("a", "EU", 2, 2), ("b", "US", 2, 2)]
    assert bool(met) is not large


def test_a_read_as_of_an_earlier_commit_is_the_same_after_a_compaction() -> None:
    with with_logs(fresh()) as table:
        past = {each.instant: shown(table.read(as_of=each.instant)) for each in table.history()}
        table.compact()
        table.upsert(rows(("b", "EU", 4, 4)))
        assert {each: shown(table.read(as_of=each)) for each in past} == past


def test_an_increment_has_no_row_that_a_compaction_only_moved() -> None:
    with with_logs(fresh()) as table:
        seen = table.history()[0].completed
        table.compact()
        assert not table.changes(seen)[0].num_rows
        first = min(each.completed for each in table.history())
        assert shown(table.changes(first)[0]) == STANDING[:1]
        table.upsert(rows(("b", "EU", 3, 3)))
        assert shown(table.changes(seen)[0]) == [("b", "EU", 3, 3)]


def test_a_group_of_which_every_row_was_deleted_gets_an_empty_base_file(tmp_path: Path) -> None:
    with made(f"file://{tmp_path}/t", partition_by=None, buckets=1) as table:
        table.upsert(rows(("a", "EU", 1, 1)))
        table.delete(rows(("a", "EU", 1, 1)))
        assert table.compact() is not None
        assert shown(table.read()) == [] == theirs(tmp_path / "t")
        table.upsert(rows(("a", "EU", 1, 7)))
        assert shown(table.read()) == [("a", "EU", 1, 7)] == theirs(tmp_path / "t")


def test_a_clean_deletes_what_a_compaction_superseded_and_nothing_else(tmp_path: Path) -> None:
    keep_two = {"hoodie.clean.commits.retained": "2", "hoodie.clean.automatic": "false"}
    with with_logs(f"file://{tmp_path}/t", options=keep_two) as table:
        old = files(table.store)
        table.compact()
        table.upsert(rows(("b", "EU", 3, 3)))
        assert not table.clean()  # a retained snapshot needs the old files
        table.upsert(rows(("b", "EU", 4, 4)))
        (cleaned,) = table.clean()
        assert sorted(cleaned.deleted) == sorted(old) and len(old) == 3
        expected = [STANDING[0], ("b", "EU", 4, 4)]
        assert shown(table.read()) == expected == theirs(tmp_path / "t")
        assert shown(table.read(as_of=cleaned.retain_from)) == [STANDING[0], ("b", "EU", 3, 3)]


# --- beside writers -------------------------------------------------------------------------------


def test_a_commit_during_a_compaction_stays_behind_the_new_base_file(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/t"
    expected = [("a", "EU", 2, 2), ("b", "EU", 3, 3)]

    def write(_instant: str) -> None:
        with Table(url) as other:
            other.upsert(rows(("b", "EU", 3, 3)))
            assert shown(other.read()) == expected == theirs(tmp_path / "t")  # with a pending plan

    with with_logs(url):
        with Table(url, emit=Meanwhile(write)) as table:
            done = table.compact()
        assert done is not None and done.logs == 2
        assert shown(table_of(url)) == expected == theirs(tmp_path / "t")
        (only,) = run(load_snapshot(), open_store(url), Clock()).slices
        assert isinstance(only, LogSlice) and only.instant == done.instant and len(only.logs) == 1


def table_of(url: str) -> pa.Table:
    return read_table(open_store(url))


def test_a_writer_that_began_before_a_compaction_commits_behind_it() -> None:
    url = fresh()

    def meanwhile(kind: str, **fields: Any) -> None:
        if kind == "note" and fields["text"].startswith("wrote") and not done:
            with Table(url) as other:
                done.append(other.compact())

    done: list[Any] = []
    with with_logs(url), Table(url, emit=meanwhile) as slow:
        committed = slow.upsert(rows(("b", "EU", 3, 3)))
        assert committed is not None and committed.instant < done[0].instant
        assert shown(slow.read()) == [STANDING[0], ("b", "EU", 3, 3)]


def test_a_commit_that_completes_before_the_compactions_instant_is_a_conflict() -> None:
    """By a slow clock: its log file would count as merged, and be lost."""
    url = fresh()

    def write(_instant: str) -> None:
        with Table(url) as other:
            other.upsert(rows(("b", "EU", 3, 3)))

    ahead = Hasty(offset_ms=3_600_000)
    with with_logs(url) as table:
        with Table(url, clock=ahead, emit=Meanwhile(write)) as fast:
            with pytest.raises(CommitConflict, match="also rewrote"):
                fast.compact()
        assert shown(table.read()) == [STANDING[0], ("b", "EU", 3, 3)]
        assert not timeline(table.store).pending and not table.store.list(MARKERS)
        assert table.compact() and shown(table.read()) == [STANDING[0], ("b", "EU", 3, 3)]


def test_a_compaction_that_met_a_conflict_tries_again() -> None:
    url, attempts = fresh(), list[str]()

    def write(_instant: str) -> None:
        with Table(url) as other:
            other.upsert(rows(("b", "EU", 3, 3)))

    meanwhile = Meanwhile(write)

    def emit(kind: str, **fields: Any) -> None:
        if kind == "note" and fields["text"].startswith("attempt "):
            attempts.append(fields["text"])
        meanwhile(kind, **fields)

    with with_logs(url) as table, Table(url, clock=Hasty(offset_ms=3_600_000), emit=emit) as fast:
        assert fast.compact(retries=1) is not None and len(attempts) == 1
        assert shown(table.read()) == [STANDING[0], ("b", "EU", 3, 3)]
        assert shown(table.read(query="read_optimized")) == shown(table.read())
        assert not timeline(table.store).pending
        with pytest.raises(RefusedOption, match="whole number from 0"):
            fast.compact(retries=-1)


@pytest.mark.parametrize(("completed", "refused"), [("3", False), ("1", True), ("", True)])
def test_a_compaction_conflicts_with_a_commit_that_it_should_have_merged(
    completed: str, refused: bool
) -> None:
    mine = OwnChanges("2", frozenset(), frozenset({GROUP}), operation="COMPACT", merged=True)
    other = Winner("1", "deltacommit", frozenset({GROUP}), completion=completed)
    assert bool(find_conflict(mine, [other])) == refused
    writer = OwnChanges("1", frozenset(), frozenset({GROUP}), merged=True)
    assert not find_conflict(writer, [Winner("2", "compaction", frozenset({GROUP}))])


def test_a_plan_is_valid_only_with_every_log_file_completed_before_it() -> None:
    def snapshot(*times: str) -> Any:
        logs = tuple(f".f_{n}.log" for n, _ in enumerate(times))
        of = LogSlice(*GROUP, "0", "f.parquet", logs, (), None, None, times)  # type: ignore[arg-type]
        config = TableConfig(name="t", record_key="id", table_type=MERGE_ON_READ)
        return type("Snapshot", (), {"groups": {GROUP: of}, "slices": [of], "config": config})

    plan = choose(snapshot("1", "2"))
    assert plan is not None and choose(snapshot("1"), busy=[GROUP]) is None
    assert stands(plan, snapshot("1", "2"), "5") and stands(plan, snapshot("1", "2", "6"), "5")
    assert not stands(plan, snapshot("1", "2", "4"), "5")
    assert not stands(plan, snapshot("1", "2", "5"), "5")  # on which readers do not agree
    assert not stands(plan, snapshot("1", "6"), "5")


def test_after_a_commit_between_the_read_and_the_plan_the_service_reads_again() -> None:
    url = fresh()
    with with_logs(url) as table, Table(url) as other:
        service = table._upkeep.service
        before = service.inspect()
        other.upsert(rows(("b", "EU", 3, 3)))
        done = compact(service.context, before)
        assert done is not None and done.logs == 3
        assert not timeline(table.store).pending
        expected = [STANDING[0], ("b", "EU", 3, 3)]
        assert shown(table.read()) == expected == shown(table.read(query="read_optimized"))


def test_a_compaction_that_never_finds_the_table_unchanged_reports_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with with_logs(fresh()) as table:
        monkeypatch.setattr("lockkit.table.services.compact.stands", lambda *_: False)
        with pytest.raises(TableChanged, match="nothing was merged"):
            table.compact()
        assert shown(table.read()) == STANDING and not timeline(table.store).pending


def test_an_overslept_compaction_is_refused_and_leaves_nothing() -> None:
    """Its writer was taken for dead; another compaction and a writer were faster."""
    url = fresh()

    def overtake(instant: str) -> None:
        with Table(url) as other:
            known = other._open()
            assert isinstance(
                run(roll_back(instant, EpochGuard(0), known), other.store, Clock()), RolledBack
            )
            assert other.compact() is not None
            other.upsert(rows(("b", "EU", 3, 3)))

    with with_logs(url) as table:
        with Table(url, emit=Meanwhile(overtake)) as slow, pytest.raises(LockLost):
            slow.compact()
        assert shown(table.read()) == [STANDING[0], ("b", "EU", 3, 3)]
        commits = timeline(table.store).commits
        assert not timeline(table.store).pending and len(files(table.store)) == len(commits)


def test_a_second_service_leaves_the_groups_of_a_pending_plan_alone() -> None:
    url, seen = fresh(), []

    def meanwhile(_instant: str) -> None:
        with Table(url) as other:
            seen.append(other.compact())

    with with_logs(url), Table(url, emit=Meanwhile(meanwhile)) as table:
        assert table.compact() is not None and seen == [None]


def test_a_compaction_loses_no_column_that_another_commit_added() -> None:
    url = fresh()
    wider = rows(("b", "EU", 3, 3)).append_column("more", pa.array(["x"]))

    def widen(_instant: str) -> None:
        with Table(url) as other:
            other.upsert(wider)

    with with_logs(url) as table:
        with Table(url, emit=Meanwhile(widen)) as slow:
            slow.compact(retries=1)  # in one millisecond with the other, its instant can be later
        table.compact()
        assert sorted(table.read()["more"].to_pylist(), key=str) == [None, "x"]


def test_early_detection_does_not_count_a_compaction_as_a_conflict() -> None:
    store, instant = open_store(fresh()), "20260101000000000"
    run(mark(instant, f"f_0-0-0_{instant}.parquet", "MERGE"), store, Clock())
    with Heartbeat(instant, store, clock=Clock()):
        mine = OwnChanges("20260101000000001", frozenset(), frozenset({GROUP}), merged=True)
        run(early_conflict(mine), store, Clock())
        with pytest.raises(EarlyConflict):
            run(early_conflict(replace(mine, merged=False)), store, Clock())
        run(mark(instant, f".f_{instant}.log.1_0-0-0", "APPEND"), store, Clock())
        with pytest.raises(EarlyConflict):
            run(early_conflict(mine), store, Clock())


# --- dying ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("sent", [False, True])
def test_a_compaction_that_died_at_any_request_is_rolled_back_or_complete(
    sent: bool, step: int
) -> None:
    outcomes = set()
    for most in range(0, 200, step):
        with with_logs(fresh()) as table:
            mortal: Any = Mortal(table.store, most, sent=sent)
            try:
                died = TableService(mortal.url, mortal, SingleWriter()).compact() is None
            except (Died, SiblingInterrupted):
                died = True
            assert shown(table.read()) == STANDING
            later = Hasty(offset_ms=3_600_000)
            rules = ServiceRules(heartbeat=HeartbeatRules(expiry=Expiry.WALL))
            service = TableService(table.url, table.store, SingleWriter(), rules=rules, clock=later)
            service.run()
            outcomes.add(len(timeline(table.store).commits))
            assert shown(table.read()) == STANDING
            assert not timeline(table.store).pending and not table.store.list(HEARTBEATS)
            if not died:
                break
            service.compact()
            assert shown(table.read(query="read_optimized")) == STANDING
    assert not died and outcomes == {3, 4}


# --- when it runs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["compact.inline", "datasource.compaction.async.enable"])
def test_a_writer_compacts_after_the_number_of_commits_that_an_option_gives(key: str) -> None:
    options = {f"hoodie.{key}": "true", "hoodie.compact.inline.max.delta.commits": "3"}
    url = fresh()
    with made(url, partition_by=None, buckets=1, options=options) as table:
        for number in range(5):
            table.upsert(rows(("a", "EU", number, number)))
    actions = [each.action for each in Table(url).history()]
    assert actions.count("commit") == 1
    assert shown(table_of(url)) == [("a", "EU", 4, 4)]
    if key == "compact.inline":
        assert actions == [*["deltacommit"] * 2, "commit", *["deltacommit"] * 3]


def test_compaction_is_off_by_default_and_otherwise_due_at_each_fifth_commit_as_in_hudi() -> None:
    rules = service_rules({}, "optimistic_concurrency_control")
    assert (rules.compact_on, rules.compact_every) == (False, 5)


def test_a_copy_on_write_table_has_nothing_to_compact() -> None:
    with Table.create(fresh(), record_key="id") as table:
        with pytest.raises(TableError, match="is copy-on-write"):
            table.compact()


def test_the_command_compacts_a_table_that_a_writer_has_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"file://{tmp_path}/t"
    with with_logs(url) as table:
        assert main(["table", "compact", url, "--dry-run"]) == 0
        assert "2 files would be merged" in capsys.readouterr().out
        assert main(["table", "compact", url, "--json"]) == 0
        said = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (said["groups"], said["logs"]) == (1, 2) and said["instant"]
        assert main(["table", "compact", url]) == 0
        assert "nothing to merge" in capsys.readouterr().out
        assert shown(table.read(query="read_optimized")) == STANDING


# --- the plan -------------------------------------------------------------------------------------


def test_a_compaction_plan_is_read_as_it_was_written() -> None:
    plan = CompactionPlan(
        (CompactionInput("region=EU", "f", "20260101000000000", "region=EU/f.parquet",
                         ("region=EU/.f_1.log", "region=EU/.f_2.log")),
         CompactionInput("", "g", "20260101000000000", "", (".g_1.log",))), {OURS: "compact"},
    )  # fmt: skip
    key = ".hoodie/timeline/20260101000000001.compaction.requested"
    assert parse_compaction_plan(key, format_compaction_plan(plan)) == plan
    for name in ("../x", "a/b"):
        bad = {"operations": [{"partitionPath": "p", "fileId": "f", "dataFilePath": name}],
               "version": 2}  # fmt: skip
        with pytest.raises(TableError, match="is not a plan"):
            parse_compaction_plan(key, encode(COMPACTION_PLAN, bad))


def test_a_compaction_beside_the_writer_changes_nothing_on_a_copy_on_write_table() -> None:
    """Hudi ignores the option there. Here it moved the cleans into a thread, after each commit."""
    options = {"hoodie.datasource.compaction.async.enable": "true"}
    with Table.create(fresh(), record_key="id", options=options) as table:
        table.append(pa.table({"id": ["a"]}))
        asked, plain = table._upkeep, service_rules({}, "optimistic_concurrency_control")
        assert asked.context.rules == plain
        assert "lockkit-services" not in {each.name for each in threading.enumerate()}
    with made(fresh(), options=options) as merged:
        merged.append(rows(("a", "EU", 1, 1)))
        assert "lockkit-services" in {each.name for each in threading.enumerate()}
