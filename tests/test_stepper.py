"""The stepper: the very commit, one request at a time, and what its buttons show."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockkit.workbench.steps import Steps

pytest.importorskip("ipywidgets", reason="make test installs ipywidgets")

from lockkit.workbench.stepper import Stepper, asked_so_far


@pytest.fixture(params=[("fenced", 6), ("fenced", 9), ("hudi", 6), ("hudi", 9)])
def steps(request: pytest.FixtureRequest) -> Iterator[Steps]:
    mode, version = request.param
    steps = Steps(mode, version=version)
    yield steps
    steps.close()


def test_a_writer_that_slept_is_refused_by_the_fence_and_by_nothing_else(steps: Steps) -> None:
    """Both modes, both table versions: the same steps, and what readers and the checker say."""
    fenced = steps.config.mode == "fenced"
    steps.until("W1", "checked")
    assert steps.finish("W2").startswith("committed")
    ended = steps.finish("W1")
    if fenced:
        assert ended.startswith("LockLost") and steps.rows == {"order-1": 20}
        assert steps.verdict.kind == "VALID"
    else:
        assert ended.startswith("committed")
        assert steps.verdict.kind == "INVALID" and "lost update" in steps.verdict.because


@pytest.mark.parametrize("requests", range(12))
def test_an_answer_lost_anywhere_costs_no_commit(requests: int) -> None:
    steps = Steps()
    writer = steps.actors["W1"]
    for _ in range(requests):
        if writer.waits is not None:
            steps.step("W1")
    if writer.waits is not None:
        steps.step("W1", lose=True)
    assert steps.finish("W1").startswith("committed")
    assert steps.finish("W2").startswith("CommitConflict")
    assert steps.rows == {"order-1": 10}
    assert steps.verdict.kind == "VALID"
    steps.close()


def test_names_that_are_not_there_and_steps_after_the_end_are_said(steps: Steps) -> None:
    with pytest.raises(ValueError, match="there is no 'W9'; there are W1, W2"):
        steps.step("W9")
    steps.kill("W1")
    with pytest.raises(ValueError, match="nothing more to ask: killed"):
        steps.step("W1")


def test_buttons_step_and_what_they_show_is_escaped() -> None:
    stepper = Stepper()
    next_w1 = stepper.view.children[1].children[0].children[0].children[1]
    assert next_w1.description == "Next"
    next_w1.click()
    assert len(stepper.steps.actors["W1"].lines) == 1
    stepper.steps.actors["W1"].ended = "<img src=x>"
    stepper.steps.actors["W1"].waits = None
    assert "<img" not in asked_so_far(stepper.steps.actors["W1"])
    assert "a reader sees {'order-1': 0}" in repr(stepper)
    stepper.close()
