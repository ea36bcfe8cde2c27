"""A soak: a minute of it holds, without the fence it is caught, and it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from suite_plugin import rest_in_soak

from lockkit.cli.main import main
from lockkit.clock import Clock
from lockkit.events import Event, event, read
from lockkit.lab.course.together import Writing
from lockkit.lab.faults import FaultError
from lockkit.lab.processes.process import FLEET, leftovers
from lockkit.lab.server import Emulator
from lockkit.lab.soak import tally
from lockkit.lab.soak.page import figures, write_page
from lockkit.lab.soak.plan import SoakPlan
from lockkit.lab.soak.run import SoakFailed, SoakOutcome, verdict_of
from lockkit.lab.verify.check import Finding, Kind, Verdict, check
from lockkit.lab.verify.check.lanes import sort

ROOT = Path(__file__).parents[1]
DEFAULT = ROOT / "datasets" / "soaks" / "everything.json"
TTL_S = 2.0
# Every stall outlives a lease of 2 s, and the 2 s that a challenger adds by the store's clock.
MINUTE: dict[str, Any] = {
    "faults": [
        {"what": "drop", "when": "after", "operation": "put", "chance": 0.02},
        {"what": "late", "delay_s": 2, "operation": "put", "key": ".locks/*", "chance": 0.03},
        {"what": "status", "code": 500, "when": "after", "operation": "put", "chance": 0.01},
        {"what": "status", "code": 503, "when": "before", "chance": 0.01},
        {"what": "reset", "when": "after", "operation": "put", "chance": 0.01},
    ],
    "processes": [
        {"what": "stall", "at": "commit", "every_s": 12, "for_s": [5, 7]},
        {"what": "stall", "at": "decided", "every_s": 15, "for_s": [5, 7]},
        {"what": "stall", "at": "now", "every_s": 20, "for_s": [1, 5], "who": "*"},
        {"what": "kill", "every_s": 20, "for_s": [0, 1]},
        {"what": "clock", "every_s": 25, "for_s": [0, 1], "offset_ms": [-9000, 9000]},
        {"what": "server", "every_s": 20, "for_s": [0.2, 1]},
        {
            "what": "burst",
            "every_s": 10,
            "fault": {"what": "status", "code": 429, "next": 5},
        },
    ],
}
HOSTILE = {"processes": [{"what": "stall", "at": "commit", "every_s": 4, "for_s": [5, 6]}]}


def arguments(tmp_path: Path, plan: dict[str, Any], *more: str) -> list[str]:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"faults": []} | plan))
    return [
        "soak", "--faults", str(file), "--run-dir", str(tmp_path / "run"), "--writers", "3",
        "--ttl-s", str(TTL_S), "--latency-ms", "5", "--pause-s", "0.3", "--json",
        str(tmp_path / "soak.json"), "--html", str(tmp_path / "soak.html"), "--commit", "serial",
        *more,
    ]  # fmt: skip


def outcome(tmp_path: Path) -> Any:
    return json.loads((tmp_path / "soak.json").read_text())


@pytest.mark.soak
@pytest.mark.timeout(180)
def test_a_minute_of_all_kinds_of_faults_loses_no_commit(tmp_path: Path) -> None:
    code = main(arguments(tmp_path, MINUTE, "--minutes", "1"))
    outcome_read = outcome(tmp_path)
    assert (code, outcome_read["verdict"], outcome_read["orphans"]) == (0, "VALID", 0), (
        outcome_read["because"]
    )
    assert outcome_read["commits"] > 10
    assert outcome_read["kinds"] >= 8, outcome_read["made"]
    assert {"takeover", "lost response", "stall"} <= set(outcome_read["reached"])
    assert {"server killed", "client killed", "stalled before its commit"} <= set(
        outcome_read["made"]
    )
    assert "each of them what the protocol does" in outcome_read["findings"][-1]["because"]
    assert "acknowledged commits" in (tmp_path / "soak.html").read_text()
    assert any(each.kind == "saw" for each in tally.events_of(tmp_path / "run"))


@pytest.mark.soak
@pytest.mark.timeout(180)
def test_with_group_commit_a_combiner_is_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    dies = {"what": "kill", "at": "combining", "every_s": 5, "for_s": [0, 1]}
    plan = {"processes": [dies, {"what": "stall", "every_s": 15, "for_s": [1, 5]}]}
    more = ("--minutes", "1", "--commit", "group", "--overlap", "0.1", "--pause-s", "0.1")
    code = main(arguments(tmp_path, plan, *more))
    outcome_read = outcome(tmp_path)
    assert (code, outcome_read["verdict"], outcome_read["orphans"]) == (0, "VALID", 0), (
        outcome_read["because"]
    )
    assert outcome_read["commits"] > 20 and outcome_read["made"]["combiner killed"] >= 2


def test_a_kill_may_wait_until_its_writer_decides_for_others() -> None:
    said = {"what": "kill", "at": "combining", "every_s": 60, "for_s": [0.5, 3]}
    plan = SoakPlan.parse(json.dumps({"faults": [], "processes": [said]}))
    assert json.loads(plan.to_json())["processes"][0]["at"] == "combining"
    assert SoakPlan().with_combiner_killed().processes[0].at == "combining"


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_without_the_fence_a_late_writer_is_caught_with_the_proof(tmp_path: Path) -> None:
    more = ("--minutes", "1.5", "--overlap", "1", "--fence", "off", "--until-invalid")
    code = main(arguments(tmp_path, HOSTILE, *more))
    outcome_read = outcome(tmp_path)
    assert (code, outcome_read["verdict"]) == (1, "INVALID")
    assert "without having checked it against" in outcome_read["because"]
    assert 2 <= len(outcome_read["evidence"]) <= 4
    assert outcome_read["because"].split(";")[0] in (tmp_path / "soak.html").read_text()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", rest_in_soak([signal.SIGINT, signal.SIGTERM], signal.SIGINT))
def test_a_signal_ends_the_soak_with_a_verdict_on_its_history_so_far(
    tmp_path: Path, how: signal.Signals
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "lockkit", *arguments(tmp_path, {}, "--minutes", "30")],
        cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if " commits, " in line and not line.split(" s  ")[1].startswith("0 "):
            break
    process.send_signal(how)
    process.communicate(timeout=60)
    outcome_read = outcome(tmp_path)
    assert outcome_read["verdict"] == "VALID"
    assert outcome_read["commits"] > 0
    assert outcome_read["orphans"] == 0
    # Nothing was to go wrong and nothing did: that shows nothing, and is no success.
    assert process.returncode == (0 if outcome_read["reached"] else 1)


def test_a_killed_soak_leaves_no_process(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "lockkit", *arguments(tmp_path, MINUTE, "--minutes", "30")],
        cwd=ROOT, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if " commits, " in line:
            break
    (supervisor,) = psutil.Process(process.pid).children()
    mark = supervisor.environ()[FLEET]
    assert len(leftovers(mark)) >= 5
    process.kill()
    process.communicate()
    clock = Clock()
    end_ms = clock.boot_ms() + 10_000
    while leftovers(mark) and clock.boot_ms() < end_ms:
        clock.sleep(0.1)
    assert leftovers(mark) == []


# --- what cannot be run ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ('{"faults": [', "not JSON"),
        ("[]", "a plan is a JSON object"),
        ('{"faults": [], "processes": [{"what": "fire", "every_s": 1}]}', "processes[0]: what"),
        ('{"faults": [], "processes": [{"what": "kill"}]}', "kill needs every_s"),
        ('{"faults": [], "processes": [{"what": "kill", "every_s": 0}]}', "every_s: seconds"),
        (
            '{"faults": [], "processes": [{"what": "clock", "every_s": 9, "at": "now"}]}',
            "means nothing here",
        ),
        (
            '{"faults": [], "processes": [{"what": "stall", "every_s": 9, "for_s": [5, 1]}]}',
            "for_s: [least, most]",
        ),
        (
            '{"faults": [], "processes": [{"what": "burst", "every_s": 9, "fault": {}}]}',
            "a fault needs the field what",
        ),
        ('{"faults": [{"what": "fire"}], "processes": []}', "faults[0]"),
        ('{"faults": [], "processes": 7}', "processes: a list"),
    ],
)
def test_an_invalid_plan_is_refused_with_the_position_of_the_error(
    tmp_path: Path, plan: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.json"
    file.write_text(plan)
    assert main(["soak", "--faults", str(file)]) == 3
    said = capsys.readouterr().err
    assert str(file) in said
    assert why in said


def test_the_default_plan_survives_its_own_json() -> None:
    plan = SoakPlan.load(DEFAULT)
    assert SoakPlan.parse(plan.to_json()) == plan
    assert {each.what for each in plan.processes} == {"stall", "kill", "clock", "server", "burst"}
    with pytest.raises(FaultError, match=r"no\.json"):
        SoakPlan.load(DEFAULT.with_name("no.json"))


@pytest.mark.parametrize(
    ("more", "why", "code"),
    [
        (["--minutes", "0"], "--minutes", 64),
        (["--writers", "9"], "1 to 8", 64),
        (["--writers", "2", "--spark", "3"], "--spark", 64),
        (["--html", "no-such-folder/soak.html"], "there is no folder no-such-folder", 3),
    ],
)
def test_an_invalid_soak_is_refused(
    more: list[str], why: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["soak", *more]) == code
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "commit"),
    [([], "group"), (["--fence", "off"], "serial"), (["--commit", "serial"], "serial")],
)
def test_a_soak_has_group_commit_as_a_new_table_has_it(
    more: list[str], commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []

    def soak(_plan: Any, settings: Any, **_more: Any) -> None:
        begun.append(settings.commit)
        raise SoakFailed("it is not run here")

    monkeypatch.setattr("lockkit.lab.soak.run.soak", soak)
    assert main(["soak", *more]) == 3
    assert begun == [commit]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a full disk is /dev/full on Linux")
def test_a_full_disk_ends_the_run_with_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "history.jsonl").symlink_to("/dev/full")
    assert main(arguments(tmp_path, {}, "--minutes", "5")) == 3
    assert "No space left on device" in capsys.readouterr().err


# --- what is made of it ---------------------------------------------------------------------------


def lived(*samples: tuple[float, float], pid: int = 1) -> list[str]:
    return [
        json.dumps({"at_ms": 1000 * at_s, "who": "W1", "pid": pid, "rss_mb": mb}) + "\n"
        for at_s, mb in samples
    ]


def test_growth_is_a_line_through_the_second_half_of_the_run(tmp_path: Path) -> None:
    steady = [(10.0 * n, 100 + n / 10 if n > 40 else 10.0 * n) for n in range(100)]
    brief = [(900 + 10.0 * n, 500.0) for n in range(5)]  # a start tells nothing
    lines = lived(*steady) + lived(*brief, pid=2)
    (tmp_path / "memory.jsonl").write_text("".join(lines) + '{"at_ms"')
    (found,) = tally.growth(tmp_path)
    assert (found.who, found.processes, found.most_mb) == ("W1", 2, 500.0)
    assert found.slope_mb_h == pytest.approx(36.0)


def test_nothing_from_a_history_is_html(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    proof = event(1.0, evil, "note", text=evil)
    verdict = Verdict(Kind.INVALID, evil, (proof,), (Finding(evil, Kind.INVALID, evil),), (evil,))
    run = tmp_path / "run"
    run.mkdir()
    (run / "history.jsonl").write_text(proof.to_json() + "\n")
    (run / "memory.jsonl").write_text(lived((1, 2))[0].replace("W1", evil))
    with Emulator(db=str(run / "store.sqlite")):
        pass
    outcome_read = SoakOutcome(
        verdict, 1.0, True, 1, {evil: 2}, 1, tally.growth(run), 0, [evil], None, evil
    )  # fmt: skip
    assert evil not in figures(run, outcome_read)
    assert "&lt;script&gt;alert" in figures(run, outcome_read)
    write_page(run, outcome_read, tmp_path / "page.html")
    assert evil not in (tmp_path / "page.html").read_text()


def test_every_injected_fault_has_a_kind() -> None:
    def kind(who: str, what: str, **said: Any) -> str | None:
        return tally.injected(Event(0.0, who, what, said))

    assert kind("W1", "killed", pid=1) == "client killed"
    assert kind("server", "killed", pid=1) == "server killed"
    assert kind("W1", "stalled", pid=1, why="by hand") == "stalled anywhere"
    assert kind("W1", "note", text="", injected="clock offset") == "clock offset"
    assert kind("W1", "note", text="") is None
    made = kind("store", "fault", fault="status", when="after", code=500)
    assert made == "status 500 after apply"


def test_an_empty_run_is_no_success(tmp_path: Path) -> None:
    nothing = SoakOutcome(check([]), 1.0, True, 0, {}, 0, [], 0, rows=0)
    assert not nothing.passed


def test_a_run_that_took_no_lock_is_judged_by_its_commits_and_one_without_commits_says_so() -> None:
    made = Writing(2).play(3.0).events
    checks = [event(0.0, "W1", "checked", instant=each, epoch=0, covered=[], horizon="~", writes=[])
              for each in sort(made).published]  # fmt: skip
    whole = verdict_of([*checks, *made], 1.0)
    assert whole.kind is Kind.VALID and "none stale and none lost" in whole.because
    none = verdict_of([each for each in made if each.kind == "note"], 0.25)
    assert none.kind is Kind.UNKNOWN and none.because.startswith(
        "no commit was acknowledged within 15 s, so there is nothing to judge; run it longer"
    )
    file = ROOT / "datasets" / "histories" / "good" / "throttled_release.jsonl"
    locked = list(read(file.read_text().splitlines()))
    assert "what answers W1 had before" in verdict_of(locked, 1.0).because
