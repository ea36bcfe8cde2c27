"""A compaction that one process schedules and another one executes, as Hudi's HoodieCompactor."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from deaths import Died, Mortal
from table_world import Hasty
from test_compaction import STANDING, Meanwhile, files, fresh, timeline, with_logs
from test_merge_on_read import rows, shown, theirs

from lockkit.cli.main import main
from lockkit.errors import LockLost, TableError
from lockkit.protocol.policy import Expiry
from lockkit.runtime import SiblingInterrupted
from lockkit.table import Table
from lockkit.table.errors import RefusedOption, TableBlocked, TableChanged
from lockkit.table.occ.concurrency import SingleWriter
from lockkit.table.occ.heartbeat_rules import HeartbeatRules
from lockkit.table.occ.liveness import HEARTBEATS
from lockkit.table.occ.markers import MARKERS
from lockkit.table.services import compact, scheduled
from lockkit.table.services.rules import ServiceRules
from lockkit.table.services.service import TableService

LATER = {"clock": Hasty(offset_ms=3_600_000)}


def later_service(table: Table) -> TableService:
    """The services of a process for which every heartbeat up to now has expired."""
    rules = ServiceRules(heartbeat=HeartbeatRules(expiry=Expiry.WALL))
    return TableService(table.url, table.store, SingleWriter(), rules=rules, **LATER)  # type: ignore[arg-type]


@pytest.mark.parametrize("named", [True, False])
def test_another_handle_executes_the_plan_at_its_instant(named: bool, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/t"
    with with_logs(url) as table:
        plan = table.compact(mode="schedule")
        assert plan is not None and plan.pending and (plan.groups, plan.logs) == (1, 2)
        assert timeline(table.store).pending == {plan.instant: "compaction"}
        assert not table.store.list(HEARTBEATS) and not table.store.list(MARKERS)
        assert shown(table.read()) == STANDING == theirs(tmp_path / "t")
        table.upsert(rows(("b", "EU", 3, 3)))  # behind the plan
        after = [STANDING[0], ("b", "EU", 3, 3)]
        assert shown(table.read()) == after == theirs(tmp_path / "t")
        with Table(url) as other:
            done = other.compact(mode="execute", instant=plan.instant if named else "")
        assert done is not None and not done.pending and done.instant == plan.instant
        assert shown(table.read()) == after == theirs(tmp_path / "t")
        assert shown(table.read(query="read_optimized")) == STANDING
        assert not timeline(table.store).pending and not table.store.list(MARKERS)
        assert table.compact(mode="execute") is None
        last = table.compact()
        assert last is not None and last.logs == 1
        assert shown(table.read(query="read_optimized")) == after == theirs(tmp_path / "t")


@pytest.mark.parametrize("mode", ["schedule", "scheduleAndExecute"])
def test_two_processes_that_plan_at_one_time_leave_one_plan_of_a_file_group(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, others = fresh(), list[Any]()
    with with_logs(url) as table, Table(url) as other:
        module = scheduled if mode == "schedule" else compact

        def plan_for(*of: Any) -> Any:
            plan = compact_plan_for(*of)
            if not others:
                others.append(None)
                monkeypatch.undo()
                others.append(other.compact(mode="schedule"))
                monkeypatch.setattr(module, "plan_for", plan_for)
            return plan

        compact_plan_for = compact.plan_for
        monkeypatch.setattr(module, "plan_for", plan_for)
        assert table.compact(mode=mode) is None
        monkeypatch.undo()
        assert timeline(table.store).pending == {others[1].instant: "compaction"}
        done = table.compact(mode="execute")
        assert done is not None and done.logs == 2
        table.upsert(rows(("b", "EU", 3, 3)))
        assert table.compact() is not None and shown(table.read())[1] == ("b", "EU", 3, 3)


def test_a_plan_waits_for_days_and_keeps_its_files_from_services() -> None:
    with with_logs(fresh()) as table:
        plan = table.compact(mode="schedule")
        assert plan is not None
        for number in range(3, 16):
            table.upsert(rows(("b", "EU", number, number)))
        service = later_service(table)
        assert not service.take_back() and service.compact() is None
        service.clean()
        table.archive(keep_min=11, keep_max=12)
        assert timeline(table.store).pending == {plan.instant: "compaction"}
        assert service.compact("schedule") is None
        done = service.compact("execute")
        assert done is not None and done.instant == plan.instant
        assert shown(table.read()) == [STANDING[0], ("b", "EU", 15, 15)]
        assert shown(table.read(query="read_optimized")) == STANDING


def test_an_instant_that_is_no_pending_compaction_is_refused_with_what_it_is() -> None:
    with with_logs(fresh()) as table:
        newest = table.history()[0].instant
        for instant, why in (
            (newest, "it is a completed deltacommit; no compaction is pending: schedule one first"),
            ("20200101000000000", "it is not on the timeline"),
            ("nonsense" * 90, "it is not on the timeline"),
        ):
            with pytest.raises(RefusedOption, match=f"is no pending compaction: {why}") as refused:
                table.compact(mode="execute", instant=instant)
            assert len(str(refused.value)) < 300
        plan = table.compact(mode="schedule")
        assert plan is not None
        with pytest.raises(RefusedOption, match=f"pending compactions are {plan.instant}"):
            table.compact(mode="execute", instant=newest)
        for how in ({"mode": "both"}, {"instant": newest}, {"mode": "execute", "instant": 7}):
            with pytest.raises(RefusedOption):
                table.compact(**how)  # type: ignore[arg-type]
        assert timeline(table.store).pending == {plan.instant: "compaction"}


def test_an_execution_that_fails_leaves_the_plan_and_no_file(tmp_path: Path) -> None:
    with with_logs(f"file://{tmp_path}/t") as table:
        plan = table.compact(mode="schedule")
        assert plan is not None
        old = files(table.store)
        log = next((tmp_path / "t").glob(".*.log.*"))
        body = log.read_bytes()
        log.write_bytes(body[:-9])
        with pytest.raises(TableError, match="is damaged"):
            table.compact(mode="execute")
        log.write_bytes(body)
        assert files(table.store) == old and not table.store.list(MARKERS)
        assert not table.store.list(HEARTBEATS)
        now = timeline(table.store)
        assert now.pending == {plan.instant: "compaction"}
        assert not now.pending.keys() & now.inflight
        done = table.compact(mode="execute")
        assert done is not None and done.instant == plan.instant
        assert shown(table.read(query="read_optimized")) == STANDING


def test_of_two_processes_one_executes_a_plan() -> None:
    url, refused = fresh(), list[str]()

    def second(instant: str) -> None:
        with Table(url) as other, pytest.raises(TableBlocked) as found:
            other.compact(mode="execute", instant=instant)
        refused.append(str(found.value))

    with with_logs(url) as table, Table(url, emit=Meanwhile(second)) as first:
        plan = table.compact(mode="schedule")
        done = first.compact(mode="execute")
        assert plan and done and done.instant == plan.instant
        assert len(refused) == 1 and "is being carried out by another process" in refused[0]
        assert shown(table.read(query="read_optimized")) == STANDING


def test_a_plan_whose_log_files_are_replaced_is_blocked_until_it_is_rolled_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"file://{tmp_path}/t"
    with with_logs(url) as table:
        plan = table.compact(mode="schedule")
        assert plan is not None
        table.overwrite(rows(("a", "EU", 1, 7)), whole_table=True)
        with pytest.raises(TableBlocked, match="a commit replaced its log files") as blocked:
            table.compact(mode="execute", instant=plan.instant)
        assert f"rollback URL --instant {plan.instant}" in str(blocked.value)
        assert timeline(table.store).pending == {plan.instant: "compaction"}
        assert main(["table", "rollback", url, "--instant", plan.instant]) == 0
        assert f"{plan.instant} is rolled back" in capsys.readouterr().out
        assert not timeline(table.store).pending and not table.store.list(HEARTBEATS)
        table.upsert(rows(("a", "EU", 2, 8)))
        assert table.compact() is not None
        assert shown(table.read(query="read_optimized")) == [("a", "EU", 2, 8)]


@pytest.mark.parametrize("mode", ["schedule", "execute", "scheduleAndExecute"])
def test_a_plan_that_nobody_can_carry_out_is_rolled_back_by_the_next_compaction(
    mode: str, tmp_path: Path
) -> None:
    """Two plans of one file group, as a race of three processes, or an older version, left them."""
    url, said = f"file://{tmp_path}/t", list[str]()

    def emit(_kind: str, *, text: str = "", **_of: Any) -> None:
        said.append(text)

    with with_logs(url) as table, Table(url, emit=emit) as other:
        plan = table.compact(mode="schedule")
        assert plan is not None
        if mode != "execute":
            assert other.compact(mode=mode) is None
            assert any("is a pending plan" in each for each in said)
        dead = str(int(plan.instant) + 1)
        written = tmp_path / f"t/.hoodie/timeline/{plan.instant}.compaction.requested"
        shutil.copy(written, written.with_name(f"{dead}.compaction.requested"))
        assert table.compact(mode="execute", instant=plan.instant) is not None
        table.upsert(rows(("b", "EU", 3, 3)))
        with pytest.raises(TableBlocked, match=f"{dead} has a plan that can never be"):
            other.compact(mode="execute", instant=dead)  # named, it is not passed over
        assert (other.compact(mode=mode) is None) is (mode == "execute")
        assert dead not in timeline(table.store).pending
        assert table.compact(mode="execute") if mode == "schedule" else True
        assert mode != "execute" or table.compact() is not None
        assert shown(table.read(query="read_optimized"))[1] == ("b", "EU", 3, 3)


@pytest.mark.parametrize("sent", [True, False])
@pytest.mark.parametrize("mode", ["schedule", "execute"])
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.soak)])
def test_a_process_that_dies_at_any_request_of_a_step_costs_no_row(
    mode: str, sent: bool, every: int
) -> None:
    """The next compaction of another process then merges everything. In `make test` it dies at each
    third request, from the first or the second one on, by whether that was sent; in `make soak` at
    each.
    """
    outcomes = set[str]()
    for most in range(int(sent and every > 1), 200, every):
        with with_logs(fresh()) as table:
            planned = table.compact(mode="schedule") if mode == "execute" else None
            mortal: Any = Mortal(table.store, most, sent=sent)
            died = False
            try:
                TableService(mortal.url, mortal, SingleWriter()).compact(mode)
            except (Died, SiblingInterrupted):
                died = True
            assert shown(table.read()) == STANDING
            service = later_service(table)
            service.run()
            assert shown(table.read()) == STANDING
            left = timeline(table.store)
            outcomes.add("waits" if left.pending else "done" if len(left.commits) == 4 else "gone")
            assert not left.pending.keys() & left.inflight and not table.store.list(HEARTBEATS)
            if not died:
                break
            assert left.pending in ({}, {min(left.pending, default=""): "compaction"})
            if mode == "execute" and planned and planned.instant in left.rollbacks:
                with pytest.raises(RefusedOption, match="is no pending compaction"):
                    service.compact("execute", planned.instant)
            service.compact("execute")
            service.compact()
            assert shown(table.read(query="read_optimized")) == STANDING
            assert not timeline(table.store).pending
    assert not died
    assert outcomes == ({"waits", "gone", "done"} if mode == "execute" else {"gone", "waits"})


def test_a_dead_execution_is_named_by_the_next_one() -> None:
    with with_logs(fresh()) as table:
        plan = table.compact(mode="schedule")
        assert plan is not None
        mortal: Any = Mortal(table.store, 25, sent=True)
        with pytest.raises((Died, SiblingInterrupted)):
            TableService(mortal.url, mortal, SingleWriter()).compact("execute")
        with pytest.raises(TableBlocked, match="being carried out by another process"):
            table.compact(mode="execute")
        with pytest.raises(TableChanged, match="was carried out by a process that died"):
            later_service(table).compact("execute", plan.instant)
        assert shown(table.read()) == STANDING and table.compact() is not None


def test_an_execution_that_overslept_commits_nothing_after_its_plan_was_rolled_back() -> None:
    url, taken_back = fresh(), list[str]()

    def overslept(_instant: str) -> None:
        taken_back.extend(each.target for each in later_service(table).take_back())

    with with_logs(url) as table, Table(url, emit=Meanwhile(overslept)) as slow:
        plan = table.compact(mode="schedule")
        assert plan is not None
        with pytest.raises((TableError, LockLost)):
            slow.compact(mode="execute")
        assert taken_back == [plan.instant] and not timeline(table.store).pending
        assert shown(table.read()) == STANDING and len(timeline(table.store).commits) == 3
        assert not [each for each in files(table.store) if plan.instant in each]
        assert table.compact() is not None
        assert shown(table.read(query="read_optimized")) == STANDING


def test_the_command_schedules_says_what_it_would_merge_and_executes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"file://{tmp_path}/t"

    def said(*more: str, code: int = 0) -> str:
        assert main(["table", "compact", url, *more]) == code
        found = capsys.readouterr()
        return found.out + found.err

    with with_logs(url) as table:
        assert "no compaction is pending" in said("--execute")
        assert "2 files would be merged" in said("--schedule", "--dry-run")
        assert not timeline(table.store).pending
        plan = json.loads(said("--schedule", "--json").splitlines()[-1])
        assert plan["pending"] and (plan["groups"], plan["logs"]) == (1, 2)
        assert "nothing to merge" in said("--schedule")
        assert "2 files would be merged" in said("--execute", "--dry-run")
        assert "is no pending compaction" in said("--execute", "--instant", "1", code=3)
        assert "--instant goes with --execute" in said("--instant", plan["instant"], code=64)
        done = said("--execute", "--instant", plan["instant"])
        assert f"{plan['instant']}: 2 log files of 1 file groups were merged" in done
        assert "compacting 1 file groups" in done
        assert shown(table.read(query="read_optimized")) == STANDING


# --- plans that cannot be read, and plans that Hudi's compactor left ------------------------------


def cli(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    capsys.readouterr()
    code = main(["table", *args])
    said = capsys.readouterr()
    return code, said.out + said.err


@pytest.mark.parametrize("mode", ["schedule", "scheduleAndExecute"])
def test_beside_hudi_no_commit_makes_a_plan_void_so_none_is_withdrawn(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader of Hudi's that has listed a plan fails if it is gone when it reads it."""
    url, withdrawn, others = f"file://{tmp_path}/t", list[str](), list[Any]()
    looked = TableService._without_dead

    def then_another_commits(service: TableService) -> Any:
        view = looked(service)
        if not others:
            others.append(other.upsert(rows(("b", "EU", 3, 3))))
        return view

    def withdraw_attempt(_host: Any, taken: Any, *_: Any) -> Any:
        withdrawn.append(taken.instant)
        return iter(())

    monkeypatch.setattr(TableService, "_without_dead", then_another_commits)
    monkeypatch.setattr(scheduled, "withdraw_attempt", withdraw_attempt)
    monkeypatch.setattr("lockkit.table.write.withdrawal.withdraw_attempt", withdraw_attempt)
    index: dict[str, Any] = {"index": "BUCKET", "mode": "hudi", "table_type": "MERGE_ON_READ"}
    with Table.create(url, record_key="id", precombine="ts", **index) as table, Table(url) as other:
        table.upsert(rows(("a", "EU", 1, 1)))
        done = table.compact(mode=mode)
        assert others and done is not None and not withdrawn
        if done.pending:
            assert table.compact(mode="execute") is not None
        after = [("a", "EU", 1, 1), ("b", "EU", 3, 3)]
        assert shown(table.read(query="read_optimized")) == after == theirs(tmp_path / "t")
        assert table.compact(mode=mode) is None and not timeline(table.store).pending


@pytest.mark.parametrize(("action", "begun"), [
    ("compaction", False), ("clustering", False), ("clean", False), ("rollback", False),
    ("compaction", True), ("clustering", True), ("clean", True), ("rollback", True),
])  # fmt: skip
@pytest.mark.parametrize("mode", ["fenced", "hudi"])
def test_a_damaged_plan_is_shown_and_can_be_taken_away(
    mode: str, begun: bool, action: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"file://{tmp_path}/t"
    index: dict[str, Any] = {"index": "BUCKET", "mode": mode, "table_type": "MERGE_ON_READ"}
    with Table.create(url, record_key="id", precombine="ts", **index) as table:
        table.upsert(rows(("a", "EU", 1, 1)))
        plan = tmp_path / f"t/.hoodie/timeline/20260101000000000.{action}.requested"
        plan.write_bytes(b"Obj\x01half of it")
        if begun:
            plan.with_suffix(".inflight").touch()
        code, said = cli(capsys, "show", url)
        away = f"lockkit table rollback {url} --instant 20260101000000000"
        assert code == 1 and "its plan is damaged" in said and away in said
        (told,) = json.loads(cli(capsys, "show", url, "--json")[1])["pending"]
        assert away in told["damaged"]
        assert action == "rollback" or "1 pending" in cli(capsys, "rollback", url)[1]
        stopped = begun and action != "clean"
        if stopped:  # one of Hudi's may have it in memory
            code, said = cli(capsys, *away.split()[2:])
            assert code == 75 and f"{away} --stopped" in said
            away += " --stopped"
        assert cli(capsys, *away.split()[2:])[0] == 0
        assert not timeline(table.store).pending and cli(capsys, "show", url)[0] == 0
        table.upsert(rows(("a", "EU", 2, 2)))
        assert table.compact() is not None and not table.clean()
        assert shown(table.read()) == [("a", "EU", 2, 2)] == theirs(tmp_path / "t")


def test_what_a_crashed_compactor_of_hudis_left_is_rolled_back_by_the_advice_of_each_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It keeps no heartbeat, so nothing shows whether it lives."""
    url = f"file://{tmp_path}/t"
    with with_logs(url) as table:
        plan = table.compact(mode="schedule")
        assert plan is not None
        left = tmp_path / f"t/.hoodie/timeline/{plan.instant}.compaction"
        left.with_suffix(".compaction.inflight").touch()
        advice = f"lockkit table rollback {url} --instant {plan.instant} --stopped"
        code, said = cli(capsys, "show", url)
        assert code == 0 and "by a process without a heartbeat" in said
        assert advice in cli(capsys, "compact", url)[1]
        code, said = cli(capsys, "compact", url, "--execute")
        assert code == 3 and advice in said
        code, said = cli(capsys, "rollback", url, "--instant", plan.instant)
        assert code == 75 and advice in said
        assert cli(capsys, "rollback", url, "--stopped")[0] == 64
        assert later_service(table).take_back() == () and timeline(table.store).pending
        assert cli(capsys, *advice.split()[2:])[0] == 0 and not timeline(table.store).pending
        assert table.compact() is not None and shown(table.read()) == STANDING
        assert shown(table.read()) == theirs(tmp_path / "t")
