"""Notebook 14: one rule off, seeds are played, and two judges agree on the harm."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("ipywidgets", reason="make test installs ipywidgets")

from lockkit.events import Event, event
from lockkit.lab.course import sequence
from lockkit.lab.course.breaker import CLOSED, Breaker
from lockkit.lab.course.breaking import (
    AT_ONCE,
    LATE,
    NEVER,
    SCENARIOS,
    SOON,
    Ladder,
    MutantHunt,
    ScenarioSurvey,
    hunt,
    hunting,
    play,
    rules_of,
    survey,
)
from lockkit.lab.verify.check import Kind
from lockkit.lab.verify.mutants import LEASE_MUTANTS
from lockkit.lab.widgets.predict import FAST
from lockkit.lab.widgets.seeds.moments import SeedMoment
from lockkit.lab.widgets.seeds.moments import play as played
from lockkit.lab.widgets.seeds.objects import run_scene

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
SEEN_BY_CHANCE = [each for each in LEASE_MUTANTS if each != "confirm"]


@pytest.fixture(autouse=True)
def somebody_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FAST, raising=False)


# --- two judges -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", SEEN_BY_CHANCE)
def test_what_the_simulator_stops_at_the_checker_finds_in_the_same_history(rule: str) -> None:
    seed = next(each.first for each in hunting("lease", rule) if each.first)
    broken, sound = play("lease", rule, seed), play("lease", "", seed)
    assert broken.harm and broken.verdict.kind is Kind.INVALID
    assert not sound.harm and sound.verdict.kind is Kind.VALID, sound.verdict.because


def test_a_table_without_its_fence_loses_an_update_and_both_judges_say_so() -> None:
    run = play("table", "fence off", 17)
    assert run.harm.startswith("every committed row is visible exactly once")
    assert run.verdict.kind is Kind.INVALID and "lost update" in run.verdict.because
    assert not play("table", "", 17).harm


def test_a_violation_that_only_the_simulator_sees_is_drawn_as_the_simulators() -> None:
    run = play("striped", "agreed", 15)
    assert run.harm and run.verdict.kind is not Kind.INVALID
    status = run.draw().children[0].status
    assert status["verdict"] == "INVALID" and "according to the simulator" in status["because"]
    drawn = play("lease", "drift_for_holder", 27).draw().children[0]
    assert drawn.status["because"].startswith("two clients count on the lock")


def test_a_run_is_drawn_as_the_playground_draws_it() -> None:
    run = play("lease", "drift_for_holder", 27)
    assert run.draw().children[0].scene == run_scene(played(run.moment), "lease")


def test_a_protocol_without_a_lock_object_is_shown_as_an_escaped_table() -> None:
    run = play("wal", "landed", 4)
    page = run.draw().children[0].value
    assert "an acknowledged append is in the log" in page and "✓ PUT" in page
    strange = event(
        1, "store", "request", client=HOSTILE, method="put", key=HOSTILE, condition=HOSTILE,
        status=200, answer="applied", applied=True, before="", version="1", attempt="", began_ms=0,
    )  # fmt: skip
    assert "<img" not in sequence.draw([strange], HOSTILE).value


def test_a_long_history_is_narrated_from_its_end_and_the_events_before_it_are_folded() -> None:
    events = [event(each, "W1", "note", text=f"number {each}") for each in range(300)]
    page = sequence.draw(events, "").value
    folded, shown = page.split("</details>")
    assert "282 events before" in folded and "number 281" in folded and "number 81" not in folded
    assert "number 282" in shown and "number 299" in shown and "number 281" not in shown
    assert "INVALID" not in page
    assert "details" not in sequence.draw(events[:18], "").value


def test_a_story_says_what_went_wrong_and_never_that_a_write_was_applied() -> None:
    lost, busy = (
        event(1, "store", "fault", client="W1", fault=fault, when="after", method="put", key="k")
        for fault in ("answer lost after it was applied", "503")
    )
    assert "⚡ PUT k: answer lost<" in sequence.draw([lost], "").value
    assert "503 (after the store decided)" in sequence.draw([busy], "").value


# --- how soon -------------------------------------------------------------------------------------


def test_a_seed_search_reports_the_first_seed_and_replays_the_shortest() -> None:
    progress: list[str] = []
    found = hunt("lease", "drift_for_holder", 40, progress.append)
    assert len(progress) == 4 and found.first == 27 and str(found) == LATE
    shortest = found.shortest
    assert (shortest.moves, shortest.seed) == min(found.harms) and shortest.harm
    assert str(shortest.moment) == f"lease/drift_for_holder:{shortest.seed}@{shortest.moves}"
    assert SeedMoment.of(str(shortest.moment)) == shortest.moment


@pytest.mark.parametrize(
    ("seed", "guess"), [(1, AT_ONCE), (20, SOON), (21, LATE), (300, LATE), (None, NEVER)]
)
def test_the_result_of_a_seed_search_is_one_of_the_choices(seed: int | None, guess: str) -> None:
    harms = ((5, seed),) if seed else ()
    assert str(MutantHunt(scenario="lease", rule="drift", seeds=300, moves=1, harms=harms)) == guess


def test_every_scenario_has_rules_and_no_harm_with_all_of_them_on() -> None:
    for name in SCENARIOS:
        assert rules_of(name) and not play(name, "", 1).harm


@pytest.mark.soak
def test_a_survey_sorts_by_time_to_find_and_names_mistakes_that_chance_misses() -> None:
    found = survey("lease", 60)
    firsts = [first for _, first in found.firsts if first]
    assert "confirm" in found.hidden and len(firsts) > 10 and firsts == sorted(firsts)
    assert all(first is None for _, first in found.firsts[len(firsts) :])


def test_unknown_names_are_reported() -> None:
    with pytest.raises(ValueError, match="no scenario 'tea'; there are: lease, table"):
        rules_of("tea")
    with pytest.raises(ValueError, match="no rule or mistake 'tea'; there are: count_from_send"):
        play("lease", "tea", 1)
    with pytest.raises(ValueError, match="nothing to see"):
        _ = next(hunting("lease", "confirm", 1)).shortest
    with pytest.raises(ValueError, match="at least one seed"):
        hunt("lease", "drift", 0)


# --- the ladder -----------------------------------------------------------------------------------

CLIMBED = (
    ("lease", "drift_for_holder", 27), ("lease", "claim_412 ours", 128),
    ("statelock", "compare_id", 7), ("lease", "margin", 27),
    ("table", "fence off", 17), ("lease", "confirm", 2316),
)  # fmt: skip


def test_every_rung_can_be_climbed_and_none_by_a_run_without_harm() -> None:
    ladder = Ladder()
    assert str(ladder.climb("lease", "drift", 1)) == "not yet: 0 of 6"
    for number, run in enumerate(CLIMBED):
        assert number in ladder.climb(*run).by, ladder.rungs[number].task
    assert str(ladder) == "solved: 6 of 6"
    assert {each.seed for each in ladder.by.values()} <= {seed for _, _, seed in CLIMBED}


def test_a_seed_that_comes_after_others_is_not_well_hidden() -> None:
    harms = list(hunting("lease", "drift_for_holder", 130))[-1].harms
    late = next(seed for _, seed in harms if seed > 100)
    assert 5 not in Ladder().climb("lease", "drift_for_holder", late).by


def test_a_ladder_is_not_climbed_with_all_rules_on() -> None:
    with pytest.raises(ValueError, match="switch a rule off; the rules are: count_from_send"):
        Ladder().climb("lease", "", 1)


def test_the_output_of_a_run_is_escaped() -> None:
    ladder = Ladder().climb("lease", "drift_for_holder", 27)
    assert ladder.last is not None
    ladder.last = replace(ladder.last, harm=HOSTILE)
    page = ladder._repr_html_()
    assert "<img" not in page and "&lt;img" in page
    surveyed = ScenarioSurvey("lease", 1, (("drift", 1),))._repr_html_()
    assert "<script" not in surveyed and surveyed.count("style='text-align:left") == 6


def test_the_fault_free_profile_has_no_fault_no_pause_and_no_crash() -> None:
    calm = play("lease", "margin", 27)
    assert calm.calm and calm.harm
    assert not replace(calm, faults=1).calm
    stalled = event(1, "W1", "stalled", pid=1, why="")
    assert not replace(calm, events=(*calm.events, stalled)).calm


# --- the panel ------------------------------------------------------------------------------------


@pytest.fixture
def panel() -> Any:
    panel = Breaker(seeds=40)
    yield panel
    panel.close()


def test_nothing_is_played_before_a_guess_and_another_rule_wants_another(panel: Breaker) -> None:
    assert panel.button.disabled and panel.hunt is None
    panel.predict.pick(SOON)
    assert not panel.button.disabled
    panel.rule.value = "margin"
    assert panel.scenario.label in panel.chosen.value, "a narrow list cuts what it shows"
    assert panel.rule.label in panel.chosen.value
    assert panel.button.disabled and panel.predict.picked is None
    panel.scenario.value = "wal"
    assert panel.rule.value in rules_of("wal") and panel.button.disabled


def test_the_panel_shows_what_was_predicted_beside_what_it_did_and_draws_the_harm(
    panel: Breaker,
) -> None:
    panel.rule.value = "drift_for_holder"
    panel.predict.pick(SOON)
    said: list[str] = []
    panel.predict._status.observe(lambda change: said.append(change["new"]), "value")
    assert panel.play().first == 27
    assert f"You predict: {SOON}." in said[0] and not any("press Play" in each for each in said)
    assert f"You predicted: {SOON}. The outcome: {LATE}." in panel.predict.said
    lanes, there, *_ = panel._drawn.children[0].children
    assert lanes.status["verdict"] == "INVALID"
    assert "scenario=lease&amp;seed=27&amp;rule=drift_for_holder&amp;step=" in there.value
    assert not panel.scenario.disabled and panel.stop.disabled
    assert "seed 27 first" in repr(panel)


def test_a_seed_search_stopped_before_a_find_does_not_report_never(
    panel: Breaker,
) -> None:
    panel.predict.pick(NEVER)
    pressed = threading.Event()
    pressed.set()  # during the first seed
    found = panel.play(pressed)
    assert found.seeds == 1 and panel.predict.did is None
    assert "Now press Play." in panel.predict._status.value


def test_a_panel_whose_cell_is_run_again_is_closed(panel: Breaker) -> None:
    other = Breaker(seeds=1)
    assert CLOSED in panel._said.value and panel.button.disabled and not other._closed
    other.close()


def test_a_story_tells_objects_of_one_name_apart_and_says_each_time_once() -> None:
    def put(at_ms: float, key: str) -> Event:
        return event(
            at_ms, "store", "request", client="W1", method="put", key=key, condition="if-absent",
            status=200, answer="applied", applied=True, before="", version="1", attempt="",
            began_ms=at_ms,
        )  # fmt: skip

    page = sequence.draw([put(0.001, "lock.json"), put(0.002, "other/lock.json")], "").value
    assert "PUT lock.json" in page and "PUT other/lock.json" in page
    assert page.count("0.000 s") == 1
    deep = sequence.draw([put(1, f"{'a/' * 40}lock.json")], "").value
    assert "PUT …/lock.json if-absent → applied" in deep
