"""The stepper: the very commit, one request at a time, and what its buttons show."""

from __future__ import annotations

import pytest

from lockkit.lab.widgets.stage.decisions import THE_LEASE, Choice, Decision
from lockkit.lab.widgets.stage.steps import VARIANTS, Steps

pytest.importorskip("ipywidgets", reason="make test installs ipywidgets")

from lockkit.lab.widgets.stage.panel import requests_so_far
from lockkit.lab.widgets.stage.picture import picture
from lockkit.lab.widgets.stage.scenarios import PatternSteps
from lockkit.lab.widgets.stage.stepper import PatternStepper, Stepper


@pytest.mark.parametrize(("mode", "version"), VARIANTS.values())
def test_a_writer_that_slept_is_refused_by_the_fence_and_by_nothing_else(
    mode: str, version: int
) -> None:
    """Both modes, both table versions: the same steps, and what readers and the checker say."""
    steps = Steps(mode, version=version)
    steps.until("W1", "checked")
    assert steps.finish("W2").startswith("committed")
    ended = steps.finish("W1")
    if mode == "fenced":
        assert ended.startswith("LockLost") and steps.rows == {"order-1": 20}
        assert steps.verdict.kind == "VALID"
    else:
        assert ended.startswith("committed")
        assert steps.verdict.kind == "INVALID" and "lost update" in steps.verdict.because


@pytest.mark.parametrize("requests", range(12))
@pytest.mark.parametrize("how", [Choice.LOSE, Choice.DROP, Choice.LATE])
def test_an_answer_lost_anywhere_costs_no_commit(requests: int, how: Choice) -> None:
    steps = Steps()
    writer = steps.actors["W1"]
    for _ in range(requests):
        if writer.waits is not None:
            steps.step("W1")
    if how in steps.choices("W1"):
        steps.decide(Decision("W1", how))
    assert steps.finish("W1").startswith("committed")
    if Choice.LAND in steps.choices("W1"):
        steps.land("W1")
    assert steps.finish("W2").startswith("CommitConflict")
    assert steps.rows == {"order-1": 10}
    assert steps.verdict.kind == "VALID"


def test_an_impossible_move_is_refused_with_the_reason() -> None:
    steps = Steps()
    with pytest.raises(ValueError, match="there is no 'W9'; there are W1, W2"):
        steps.step("W9")
    steps.pause("W2")
    with pytest.raises(ValueError, match="W2 is paused; what can: wake, kill"):
        steps.step("W2")
    with pytest.raises(ValueError, match="nothing is leased in commit"):
        steps.end_lease()
    steps.kill("W1")
    with pytest.raises(ValueError, match="no further request: killed"):
        steps.step("W1")
    assert str(steps.moment) == "commit: W2 pause, W1 kill"


# --- the buttons ----------------------------------------------------------------------------------


def press(view: PatternStepper | Stepper, who: str, what: Choice, run: int = 0) -> None:
    button = view._panels[run].buttons[who, what]
    assert not button.disabled
    button.click()


def test_buttons_decide_and_those_of_what_cannot_happen_are_disabled() -> None:
    view = PatternStepper("lock")
    for what in (Choice.ANSWER, Choice.LATE, Choice.LAND, Choice.PAUSE):
        press(view, "W1", what)
    press(view, THE_LEASE, Choice.ENDS)
    panel = view._panels[0]
    enabled = {key for key, each in panel.buttons.items() if not each.disabled}
    assert enabled == {
        ("W1", Choice.WAKE), ("W1", Choice.KILL), (THE_LEASE, Choice.ENDS),
        *(("W2", each) for each in view.steps.choices("W2")),
    }  # fmt: skip
    assert panel.moment.value == "lock: W1 answer, W1 late, W1 land, W1 pause, the lease ends"
    assert "role='status'>the lease ends" in view._status.value
    shown = panel._lines["W1"].value
    assert "still on its way" in shown and "applied, and no client receives it" in shown
    view.close()


def test_a_fork_is_shown_beside_its_run_with_the_differences_marked() -> None:
    view = PatternStepper("lock", "nothing guards the write itself")
    view.steps.until("W1", "resource.json", "PUT")
    view.steps.pause("W1")
    view.show()
    view._past.value = 5  # before the pause
    view._fork.click()
    assert len(view._both.children) == 2 and len(view.other.decisions) == 5
    press(view, "W1", Choice.ANSWER, run=1)
    assert "number 6: W1 pause, and W1 answer" in view._status.value
    assert all("≠ differs" in each._lines["W1"].value for each in view._panels[1:])
    assert "≠ differs" not in view._panels[0]._lines["W2"].value
    view._unfork.click()
    assert view.other is None and len(view._both.children) == 1
    view.close()


def test_the_same_decisions_are_made_once_more_without_the_mistake() -> None:
    view = PatternStepper("lock", "nothing guards the write itself")
    view.paste(
        "lock/nothing guards the write itself: W1 answer x5, W1 pause, the lease ends, "
        "W2 answer x7, W1 wake, W1 answer"
    )
    view.fork()
    view.plant("", 1)
    assert view.other.decisions == view.steps.decisions
    assert not view.steps.verdict.well and view.other.verdict.well
    assert "W1's lines differ: 6" in str(view.difference)
    view.close()


def test_a_pasted_moment_opens_that_state_and_nonsense_is_reported() -> None:
    view = PatternStepper("wal")
    view._panels[0].moment.value = "wal: W1 answer x2, W2 drop"
    assert [str(each) for each in view.steps.decisions] == ["W1 answer", "W1 answer", "W2 drop"]
    for nonsense in ("<img src=x>", "queue: W1 answer", "wal: W1 wake"):
        view._panels[0].moment.value = nonsense
        assert "Not done: " in view._status.value and "<img" not in view._status.value
        assert view._panels[0].moment.value == "wal: W1 answer x2, W2 drop"
    view.go_back(1)
    assert str(view.steps.moment) == "wal: W1 answer"
    view.close()


def test_what_is_shown_is_escaped_and_readable_without_a_page() -> None:
    stepper = Stepper()
    press(stepper, "W1", Choice.ANSWER)
    assert len(stepper.steps.actors["W1"].lines) == 1
    assert "checker" not in stepper.below(stepper.steps), "only the set-up has committed"
    stepper.steps.actors["W1"].ended = "<img src=x>"
    stepper.steps.actors["W1"].waits = None
    assert "<img" not in requests_so_far(stepper.steps.actors["W1"])
    assert "commit: W1 answer" in repr(stepper)
    assert "a reader sees {'order-1': 0}" in repr(stepper)
    assert "The checker says" in stepper.below(stepper.steps)
    stepper.close()


def test_every_name_of_the_workbench_is_where_its_table_says() -> None:
    from lockkit.lab import widgets

    names = list(widgets._EXPORTS)
    assert [getattr(widgets, name).__name__ for name in names] == names != []


def test_the_picture_of_a_protocol_shows_each_request_and_what_became_of_it() -> None:
    run = PatternSteps("wal")
    run.until("W1", "1.json", "PUT")
    run.step("W1", lose=True)
    run.pause("W2")
    run.finish("W1")
    drawn = picture(run)
    lost = [each for each in drawn["arrows"] if each["look"] == "lost"]
    assert [(each["lane"], each["t"][2]) for each in lost] == [("W1", None)]
    assert lost[0]["label"] == "append 1: answer lost"
    rows = {each["id"]: each for each in drawn["rows"]}
    assert rows[lost[0]["row"]]["answer"] == "200, answer lost"
    assert [each["lane"] for each in drawn["bars"]] == ["W2"]
    assert [each["title"] for each in drawn["lanes"]] == ["store", "W1", "W2"]
    assert len(drawn["arrows"]) == sum(
        not each.request.startswith("-") for each in run.actors["W1"].lines
    )
    ended = [each for each in drawn["marks"] if each["kind"] == "exited"]
    assert [each["lane"] for each in ended] == ["W1"] and "appended" in ended[0]["detail"]


def test_a_late_write_is_drawn_on_its_way_and_then_where_it_landed() -> None:
    run = PatternSteps("wal")
    run.until("W1", "1.json", "PUT")
    run.late("W1")
    assert picture(run)["arrows"][-1]["label"].endswith("on its way")
    run.land("W1")
    (late,) = [each for each in picture(run)["arrows"] if each["look"] == "late"]
    assert late["label"].endswith("landed late") and late["t"][1] > late["t"][0]
