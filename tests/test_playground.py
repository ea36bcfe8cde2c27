"""The playground of the documentation: its answers, and what the page is built from."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import zipfile
from base64 import b64encode
from html import escape
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lockkit.events import INSTANT, shortened
from lockkit.lab.incident.diagnosis import diagnose
from lockkit.lab.incident.dropped import take_in
from lockkit.lab.playground import FIRST, SEEDS_MAX, answer
from lockkit.lab.verify.explore import SCENARIOS, explore, explore_so_far
from lockkit.lab.widgets import PatternStepper
from lockkit.lab.widgets.links import NEEDS_ARROW, stage_fragment, stage_link
from lockkit.lab.widgets.links import link as seed_link
from lockkit.lab.widgets.seeds.moments import SeedMoment, play, scenarios
from lockkit.lab.widgets.seeds.objects import with_commits
from lockkit.lab.widgets.stage.fork import at

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BAD = ROOT / "datasets" / "histories" / "bad" / "stalled_commit_accepted.jsonl"


def result(request: str, **given: Any) -> Any:
    *_, last = answer(request, json.dumps(given))
    return json.loads(last)


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DOCS))
    return import_module("playground_page")


# --- answers --------------------------------------------------------------------------------------


def test_the_menus_name_every_scenario_and_what_can_be_switched_off() -> None:
    menus = result("menus")
    offered = [each["name"] for each in menus["scenarios"]]
    assert {*offered} == {*scenarios()} - {*NEEDS_ARROW} and {*NEEDS_ARROW} < {*scenarios()}
    for each in menus["scenarios"]:
        for rule in each["rules"]:
            moment = SeedMoment.of(f"{each['name']}/{rule['name']}:1")
            assert SeedMoment.of(seed_link(moment)) == moment
    assert menus["first"].startswith("scenario=lease&seed=")


@pytest.mark.parametrize("moment", [FIRST, "lease:7@20", "lease/fence off:18@100+3@105", "wal:1@9"])
def test_a_moment_is_played_as_everywhere_else(moment: str) -> None:
    found, outcome = result("simulate", moment=moment), play(SeedMoment.of(moment))
    assert (found["step"], found["trace"]) == (outcome.steps, outcome.trace_hash)
    assert found["replay"]["scene"]["events"] == len(with_commits(outcome.run.world))
    wrong = outcome.violation
    assert found["replay"]["status"]["verdict"] == ("INVALID" if wrong else "VALID")
    assert result("simulate", moment=f"#{found['link']}") == found


def test_before_the_first_move_there_is_no_verdict() -> None:
    first = result("simulate", moment="lease:17@0")
    assert first["replay"]["status"].keys().isdisjoint({"verdict", "because"})
    assert first["because"] == "nothing has happened yet"


@pytest.mark.parametrize(("moment", "begins"), [("lease:17", 0), ("group:2", 4)])
def test_no_move_before_a_runs_first_can_be_shown(moment: str, begins: int) -> None:
    """`world.run`, which sets the store up, cannot stop in its middle."""
    first, then = (result("simulate", moment=f"{moment}@{step}") for step in (0, begins + 1))
    assert first["step"] == first["begins"] == then["begins"] == begins
    assert first["trace"] != then["trace"] and "verdict" not in first["replay"]["status"]
    if begins:
        assert first["because"] == f"moves 1 to {begins} set up the store; no client has moved yet"
        assert first["link"].endswith(f"&step={begins}"), "the link names what it opens"


def test_a_step_beyond_the_end_is_the_end() -> None:
    assert result("simulate", moment=f"{FIRST}@9999") == result("simulate", moment=FIRST)


def test_the_first_seed_that_goes_wrong_is_found_and_each_run_is_reported() -> None:
    given = {"scenario": "lease", "rule": "fence off", "seed": 10, "runs": 50}
    *steps, last = map(json.loads, answer("seek", json.dumps(given)))
    assert [each["done"] for each in steps] == list(range(9))
    assert last["found"] and last["runs"] == 9
    assert last["link"] == "scenario=lease&seed=18&rule=fence%20off&step=116"
    right = result("seek", scenario="lease", rule="", seed=1, runs=3)
    assert not right["found"] and right["seed"] == 3


def test_alternative_next_moves_are_counted_and_linked() -> None:
    found = result("vary", moment="lease/fence off:18@114")
    assert found["others"] == f"{len(found['wrong'])} of 25 other ways to go on go wrong"
    assert result("simulate", moment=f"#{found['wrong'][0]['link']}")["step"] > 100
    said = [each["because"] for each in found["wrong"]]
    assert len({*said}) == len(said) and "wrong at move" in said[0], "what tells them apart"


def test_a_history_is_judged_with_its_evidence() -> None:
    found = result("check", history=BAD.read_text(encoding="utf-8"))
    assert found["replay"]["status"]["verdict"] == found["findings"][0]["verdict"] == "INVALID"
    assert found["findings"][0]["because"] == found["replay"]["status"]["because"]
    scene = found["replay"]["scene"]
    assert any(each.get("evidence") for each in [*scene["marks"], *scene["bars"], *scene["arrows"]])


def test_a_history_whose_last_line_is_cut_is_said_to_be_cut() -> None:
    whole = BAD.read_text(encoding="utf-8")
    said = [[each["because"] for each in result("check", history=text)["findings"]]
            for text in (f"\ufeff{whole}\n\n", f'{whole}{{"at_')]  # fmt: skip
    assert said[1] == ["the last line is cut, and is left out", *said[0]]


@pytest.mark.parametrize(("request_", "given", "says"), [
    ("simulate", {"moment": "lease"}, "is not a moment"),
    ("simulate", {"moment": "#scenario=lease&seed=1&rule=none"}, "no rule or mistake 'none'"),
    ("simulate", {"moment": "#scenario=<img src=x>&seed=1"},
     "'<img src=x>' in this link is no scenario's name"),
    ("simulate", {"moment": "#scenario=lease&rule=a@b&seed=1"},
     "'a@b' in this link is no rule's name"),
    ("seek", {"scenario": "least", "rule": "", "seed": 1, "runs": 1}, "no scenario 'least'"),
    ("seek", {"scenario": "lease", "rule": "", "seed": -1, "runs": 1}, "is not a moment"),
    ("seek", {"scenario": "lease", "rule": "", "seed": 1, "runs": SEEDS_MAX + 1}, "choose 1 to"),
    ("vary", {"moment": "lease:1"}, "names no step"),
    ("simulate", {"moment": "#scenario=mor&seed=2"},
     "needs pyarrow, which this page does not have; in a terminal: lockkit simulate --moment 'mor"),
    ("simulate", {"moment": "#scenario=__proto__&seed=1"},
     "no scenario '__proto__'; this page plays: lease, table, hudi-table, restore-table, wal,"),
    ("vary", {"moment": FIRST + "@9999"}, "is wrong already"),
    ("seek", {"scenario": "group-table", "rule": "", "seed": 1, "runs": 1}, "needs pyarrow"),
    ("check", {"history": ""}, "is empty"),
    ("check", {"history": "no JSON\n"}, "line 1"),
    ("check", {"history": "[]"}, "line 1"),
    ("check", {"history": '{"at_ms":1,"who":"W1","kind":"note"}'},
     "line 1: event 'note' needs text"),
    ("check", {"history": re.sub(r'"request":("[^"]*"|\d+)', '"request":{}', BAD.read_text())},
     "this history is damaged: a field is not of its type"),
    ("check", {"history": '{"at_ms":' * 1_000}, "this history has brackets in brackets"),
    ("explore", {"row": "fen"}, "there is no search 'fen'"),
    ("explore", {"row": "#search=fence off&step=x"}, "is not a number"),
    ("step", {"moment": "#play=commit"}, "cannot be played here"),
    ("step", {"moment": "#play=wal&rule=none"}, "no mistake 'none'"),
    ("step", {"moment": "#decisions=W1 lose"}, "does not name its play"),
    ("step", {"moment": "#play=wal", "who": "W3", "what": "lose"}, "no 'W3'"),
    ("step", {"moment": "#play=wal", "who": "W1", "what": "wake"}, "can't happen now"),
    ("step", {"moment": "#play=wal", "who": "W1", "what": "dance"}, "no decision 'dance'"),
    ("incident", {"files": [{"name": "a.txt", "content": "AAAA"}]}, "a.txt is none of these"),
    ("incident", {"files": [{"name": "a.txt", "content": "A"}]}, "base64"),
    ("incident", {"files": [{"name": "a.txt", "content": b64encode(b"[" * 1_000).decode()}]},
     "a.txt has brackets in brackets, 1,000 deep"),
])  # fmt: skip
def test_a_request_of_the_page_that_cannot_be_carried_out_gets_the_reason(
    request_: str, given: dict[str, Any], says: str
) -> None:
    assert says in result(request_, **given)["error"]


def test_brackets_in_the_texts_of_a_history_are_not_counted_as_deep_json() -> None:
    note = {"at_ms": 1, "who": "W1", "kind": "note", "text": "[" * 1_000}
    assert result("check", history=json.dumps(note))["replay"]["scene"]["events"] == 1
    cut = result("check", history=f"{json.dumps(note)[:-4]}\n")["error"]
    assert "line 1" in cut and "brackets" not in cut


def test_no_line_feed_hides_deep_json_and_a_torn_line_is_not_deep() -> None:
    deep = b64encode(b"\n" + b"[\n" * 1_000).decode()
    said = result("incident", files=[{"name": "a.txt", "content": deep}])["error"]
    assert "1,000 deep" in said
    line = json.dumps({"at_ms": 1, "who": "W1", "kind": "note", "text": "x"})
    torn = "\n".join([line, *['{"at_ms": 1, "who": {'] * 600])
    assert "line 2" in result("check", history=torn)["error"]


def test_an_address_with_a_rule_opens_the_first_search_without_it() -> None:
    assert result("explore", row="#search=claim_412")["row"] == "claim_412 lost"


def test_a_search_that_reports_finds_what_the_search_finds() -> None:
    scenario = next(each for each in SCENARIOS if each.name == "claim_412 ours")
    reports, steps = [], explore_so_far(scenario)
    while True:
        try:
            reports.append(next(steps))
        except StopIteration as over:
            row = over.value
            break
    again = explore(scenario)
    assert (row.violation, row.steps, row.states) == (again.violation, again.steps, again.states)
    assert reports == sorted(reports) and reports[-1] <= row.states


@pytest.mark.parametrize("row", ["claim_412 ours", "release deletes"])
def test_the_explorer_narrates_the_shortest_counterexample_and_any_part_of_it(row: str) -> None:
    expected = explore(next(each for each in SCENARIOS if each.name == row))
    assert expected.counterexample is not None
    found = result("explore", row=row)
    assert [line for line, _ in found["story"]] == expected.counterexample.story()
    assert found["replay"]["status"]["verdict"] == "INVALID"
    assert found["link"] == found["story"][-1][1]
    part = result("explore", row=f"#{found['story'][1][1]}")
    assert part["link"].endswith("step=2") and "verdict" not in part["replay"]["status"]
    assert part["replay"]["scene"]["events"] < found["replay"]["scene"]["events"]
    assert part["because"] == f"Step 2 of {expected.steps}: no rule is broken yet"
    assert (part["step"], found["step"]) == (2, expected.steps), "the line that is marked"


@pytest.mark.parametrize(("row", "who", "because", "false"), [
    ("claim_unknown ours", ["W1", "W2"], "W1 and W2 count on the lock at once", "counts wrongly"),
    ("release deletes if match", ["W2"], "W2 was granted epoch 1 after epoch 1", ""),
    ("claim_unknown lost", ["W1"], "W1 takes its own write for another client's", ""),
    ("fence off", ["W1"], "W1 commits after a later holder's commit", ""),
    ("fence token", ["W2"], "W2 has not seen the commit before its own", ""),
])  # fmt: skip
def test_a_counterexample_of_the_explorer_says_who_broke_the_rule_and_marks_where(
    row: str, who: list[str], because: str, false: str
) -> None:
    found = result("explore", row=row)
    assert found["because"].startswith(f"{because}. This breaks the rule: ")
    scene = found["replay"]["scene"]
    harm = [each for each in scene["marks"] if each["kind"] == "harm"]
    assert [each["lane"] for each in harm] == who
    assert harm[0]["label"] == f"rule broken here: {because}"
    assert harm[0]["t"] == found["step"] - 1
    wrong = [bar["label"] for bar in scene["bars"] if (bar["lane"], bar["kind"]) == ("W1", "wrong")]
    assert wrong == [false] * bool(false), "W1's claim never reached the store"


@pytest.mark.parametrize("play", ["lock", "election", "wal", "queue", "statelock"])
def test_the_stepper_makes_the_same_steps_as_the_staged_play(play: str) -> None:
    moment = f"#play={play}"
    for who, what in (("W1", "answer"), ("W2", "answer"), ("W1", "lose"), ("W2", "finish")):
        before, moment = moment, f"#{result('step', moment=moment, who=who, what=what)['link']}"
        assert moment != before
    found, run = result("step", moment=moment), at(moment)
    assert f"#{stage_fragment(run.moment)}" == moment and found["decisions"] == len(run.decisions)
    for actor in found["actors"]:
        expected = run.actors[actor["name"]]
        assert actor["lines"] == [[each.request, each.answered] for each in expected.lines]
        assert (actor["ended"], actor["choices"]) == (expected.ended, list(expected.choices))
    assert (found["well"], found["because"]) == tuple(run.verdict)
    run.close()
    undone = result("step", moment=moment, what="undo")
    assert undone["decisions"] == found["decisions"] - 1


@pytest.mark.parametrize("play", ["lock", "election", "wal", "queue", "statelock"])
def test_the_stepper_gives_no_verdict_before_a_client_has_written(play: str) -> None:
    first = result("step", moment=f"#play={play}")
    looked = result("step", moment=f"#{first['link']}", who="W1", what="lose")
    wrote = result("step", moment=f"#{first['link']}", who="W1", what="finish")
    assert (first["judged"], wrote["judged"]) == (False, True)
    if play == "lock":
        assert not looked["judged"]
    for each in (first, looked):
        status = each["replay"]["status"]
        assert each["judged"] or status.keys().isdisjoint({"verdict", "because"})
    assert wrote["replay"]["status"]["verdict"] == "VALID"
    assert wrote["replay"]["scene"]["arrows"], "each play has its picture"


@pytest.mark.parametrize("name", [
    "hudi-14373-renewal-retried", "hudi-18438-release-429", "hudi-17871-late-commit",
])  # fmt: skip
def test_a_dropped_file_is_diagnosed_as_by_the_command(name: str) -> None:
    content = (ROOT / "datasets" / "incidents" / f"{name}.jsonl").read_bytes()
    expected = diagnose(take_in([("it", content)]).events)
    file = {"name": "it", "content": b64encode(content).decode()}
    found = result("incident", files=[file])
    said = shortened(expected.because)
    assert (found["pattern"], found["because"]) == (expected.pattern, said)
    assert not INSTANT.search(" ".join([said, *found["proofs"]])), "as short as in the picture"
    assert found["do"] == expected.card.do and len(found["proofs"]) == len(expected.evidence)
    assert any(each.get("evidence") for each in found["replay"]["scene"]["arrows"])
    packed = {"name": "it.gz", "content": b64encode(gzip.compress(content)).decode()}
    assert result("incident", files=[packed])["pattern"] == found["pattern"]


def test_a_notebook_links_to_the_moment_that_it_shows() -> None:
    stepper = PatternStepper("wal")
    stepper.steps.step("W1")
    stepper.show()
    assert f"<a href='{escape(stage_link('wal: W1 answer'))}'" in stepper._status.value
    stepper.close()


# --- the page -------------------------------------------------------------------------------------


def test_without_npm_the_page_has_its_first_picture_and_loads_nothing(
    page: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "PYODIDE", tmp_path / "none")
    html = page.html()
    assert '"python":""' in html and '"lanes":' in html
    page.serve(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_archive_answers_by_itself(page: ModuleType, tmp_path: Path) -> None:
    """In a Python without any package, as in the browser: the menus load every scenario."""
    page.archive(file := tmp_path / "lockkit.zip")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from lockkit.lab.playground import answer\n"
        "assert 'error' not in next(answer('menus', '{}'))\n"
        "for moment in sys.argv[2:]:\n"
        "    *_, last = answer('simulate', '{\"moment\": \"%s\"}' % moment)\n"
        "    print(last)\n"
    )
    few = {"lease:1@30", "table:1@30"}
    slow = {"table", "hudi-table", "restore-table"}
    moments = [*few, *(f"{each}:1" for each in {*scenarios()} - slow - {*NEEDS_ARROW})]
    line = [sys.executable, "-I", "-S", "-c", program, str(file), *moments]
    said = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert said.returncode == 0, said.stderr
    for moment, each in zip(moments, said.stdout.splitlines(), strict=True):
        trace = play(SeedMoment.of(moment)).trace_hash
        assert json.loads(each).get("trace") == trace, (moment, each[:300])


def test_the_archive_is_the_same_at_every_build(page: ModuleType, tmp_path: Path) -> None:
    for name in ("one", "other"):
        page.archive(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    with zipfile.ZipFile(tmp_path / "one") as members:
        assert {name.partition("/")[0] for name in members.namelist()} == {"lockkit", "fastavro"}


def test_python_for_the_browser_is_pinned_by_its_hash() -> None:
    wanted = json.loads((DOCS / "playground" / "package.json").read_text())["dependencies"]
    locked = json.loads((DOCS / "playground" / "package-lock.json").read_text())["packages"]
    assert wanted == {"pyodide": locked["node_modules/pyodide"]["version"]}
    assert all(each["integrity"].startswith("sha512-") for name, each in locked.items() if name)
