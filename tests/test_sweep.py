"""The sweep: what a stall does, by its length in leases; and the panel of a simulated run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockkit.lab.verify.sim.lease import TTL_MS
from lockkit.lab.widgets.seeds.moments import SeedMoment, play
from lockkit.lab.widgets.seeds.sweep import SweepResult, swept

pytest.importorskip("ipywidgets", reason="make test installs ipywidgets")
pytest.importorskip("plotly", reason="make test installs plotly")

from lockkit.lab.widgets.seeds.panel import Sweep
from lockkit.lab.widgets.seeds.rerun import RUNS, Rerun
from lockkit.lab.widgets.ui import FitFigures

RATIOS = (0.0, 0.9, 1.5, 3.0)


@pytest.fixture(scope="module")
def found() -> SweepResult:
    *_, last = swept(12, ratios=RATIOS)
    return last


def test_without_the_fence_harm_begins_where_a_stall_is_as_long_as_a_lease(
    found: SweepResult,
) -> None:
    wrong = {each.ratio: each.wrong for each in found.of("no fence")}
    assert wrong[0.0] == wrong[0.9] == 0
    assert 0 < wrong[1.5] <= wrong[3.0]
    assert "no fence: runs go wrong from stalls of 1.5 leases on" in str(found)


def test_with_the_fence_the_same_runs_are_right_at_every_length(found: SweepResult) -> None:
    fenced = found.of("fenced")
    assert [(each.runs, each.wrong) for each in fenced] == [(12, 0)] * len(RATIOS)
    assert "fenced: no run of 48 went wrong" in str(found)


def test_the_moment_of_a_wrong_run_replays_the_harm(found: SweepResult) -> None:
    point = next(each for each in found.points if each.wrong)
    moment = SeedMoment.of(point.first)
    assert moment.scenario == "stalls-1.5" and play(moment).violation
    without = SeedMoment(moment.scenario, moment.seed)
    assert play(without).violation is None


def test_next_to_a_lease_requests_take_no_time_and_a_stall_takes_all_of_its_own() -> None:
    events = play(SeedMoment("stalls-1.5", 3)).run.world.history()
    requests = [each for each in events if each.kind == "request"]
    assert requests and all(each.at_ms - each["began_ms"] < 1 for each in requests)
    stalls: dict[str, float] = {}
    for each in events:
        if each.kind == "stalled":
            stalls[each.who] = each.at_ms
        if each.kind == "resumed":
            assert each.at_ms - stalls[each.who] >= 1.5 * TTL_MS - 0.001
    assert stalls


# --- the panels -----------------------------------------------------------------------------------


@pytest.fixture
def sweep() -> Iterator[Sweep]:
    panel = Sweep(3, ratios=(0.9, 3.0))
    yield panel
    panel.close()
    assert panel.wait()


def test_the_figure_shows_what_was_found_and_so_does_a_page_without_one(sweep: Sweep) -> None:
    assert repr(sweep) == "nothing was run yet" and sweep.figure is None
    found, figure = sweep.run(), sweep.view.children[-1]
    for trace in figure.data:
        assert list(trace.x) == [0.9, 3.0]
        assert list(trace.y) == [each.rate * 100 for each in found.of(trace.name)]
    seen: list[int] = []
    figure.observe(lambda _: seen.append(1), "_py2js_update")
    fits = next(each for each in sweep.view.children if isinstance(each, FitFigures))
    fits._handle_custom_msg({}, [])
    assert len(seen) >= 2, "what is sent while the page loads plotly does not arrive"
    assert list(figure.data[0].x) == [0.9, 3.0]
    table = repr(sweep).splitlines()
    assert table[0].split() == ["stall", "/", "lease", "no", "fence", "fenced"]
    assert table[1].split() == ["0.9", "0", "of", "3", "0", "of", "3"]


def test_a_stopped_sweep_says_that_it_was_stopped_and_can_be_started_again() -> None:
    sweep = Sweep(1_000_000)
    sweep.start_button.click()
    assert sweep.start_button.disabled and not sweep.stop_button.disabled
    sweep.stop_button.click()
    assert sweep.wait()
    assert "Stopped. nothing was run yet" in sweep._status.value
    assert not sweep.start_button.disabled and sweep.stop_button.disabled


def clicked(panel: Rerun, *names: str) -> None:
    for name in names:
        bars = (*panel.view.children[0].children, *panel.view.children[1].children)
        next(each for each in bars if getattr(each, "description", "") == name).click()


def test_clicks_go_through_a_run_and_the_newest_one_counts() -> None:
    panel = Rerun("stalls-3/fence off:3@10")
    clicked(panel, "+1", "+10", "−1")
    assert panel.wait()
    assert panel._text.value == "stalls-3/fence off:3@20" and panel.outcome.steps == 20
    clicked(panel, "End")
    assert panel.wait()
    assert panel.lanes.status["verdict"] == "INVALID"
    assert f"Move {panel.outcome.steps}, the end: epoch 6 committed" in panel._status.value
    assert "This breaks the rule: no stale write" in panel._status.value
    clicked(panel, "Start")
    assert panel.wait()
    assert panel.outcome.steps == 0 and panel.lanes.status["verdict"] == "VALID"
    panel.close()


def test_alternatives_from_here_are_counted_and_nonsense_is_refused() -> None:
    panel = Rerun("stalls-3/fence off:3")
    clicked(panel, f"Run {RUNS} others from here")
    assert panel.wait()
    assert "is wrong already" in panel._status.value and not panel.found
    clicked(panel, "−1")
    assert panel.wait()
    before, found = panel.moment, panel.others(5)
    assert found.wrong and str(before) in panel._ways.value and "█" in panel._ways.value
    assert str(found) in repr(panel)
    panel._text.value = "<img src=x>"
    assert "Not done: " in panel._status.value and "<img" not in panel._status.value
    panel._text.value = "wal:1@5"
    assert panel.wait()
    assert panel.outcome.steps == 5 and not panel.found
    panel.close()


def test_a_run_begins_after_the_moves_that_set_its_store_up() -> None:
    panel = Rerun("group:2@0")
    begins = panel.outcome.begins
    assert panel.moment.step == panel._slider.min == begins == 4
    assert f"moves 1 to {begins} set up the store; no client has moved yet" in panel._status.value
    clicked(panel, "+1", "−10")
    assert panel.wait()
    assert panel.moment.step == begins and panel.outcome.steps == begins
    panel.close()


def test_a_run_that_the_page_in_the_browser_cannot_play_has_no_link_to_it() -> None:
    panel = Rerun("group-archive:1@20")
    assert "<a " not in panel._status.value and "needs pyarrow" in panel._status.value
    panel.close()
