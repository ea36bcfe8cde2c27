"""The other protocols on the stage: right as they are, in sight wrong with a mistake planted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing

import pytest

from lockkit.lab.widgets.stage import lease_scenario as lease_play
from lockkit.lab.widgets.stage.decisions import Choice, Decision
from lockkit.lab.widgets.stage.scenarios import RESOURCE_KEY, SCENARIOS, PatternSteps
from lockkit.protocol.outcome import IfAbsent
from lockkit.runtime import Put

LOCK = "table_lock.json"

STORIES = {
    ("lock", "nothing guards the write itself"): [
        ("until", "W1", lease_play.RESOURCE_KEY, "PUT"), ("pause", "W1"), ("end_lease",),
        ("finish", "W2"), ("wake", "W1"), ("finish", "W1"),
    ],
    ("lock", "a lost answer to a claim counts as success"): [
        ("until", "W1", LOCK, "PUT"), ("drop", "W1"), ("finish", "W2"), ("finish", "W1"),
    ],
    ("lock", "a lost answer to a claim counts as failure"): [
        ("until", "W1", LOCK, "PUT"), ("lose", "W1"), ("finish", "W1"), ("finish", "W2"),
    ],
    ("lock", "a lost answer to a renewal counts as success"): [
        ("until", "W1", LOCK, "PUT"), ("step", "W1"), ("until", "W1", LOCK, "PUT"),
        ("drop", "W1"), ("finish", "W2"), ("finish", "W1"),
    ],
    ("lock", "release deletes whatever is there by then"): [
        ("until", "W1", lease_play.RESOURCE_KEY, "PUT"), ("step", "W1"), ("step", "W1"),
        ("end_lease",), ("until", "W2", lease_play.RESOURCE_KEY, "PUT"), ("finish", "W1"),
    ],
    ("election", "the resource does not check the epoch"): [
        ("until", "W1", RESOURCE_KEY, "PUT"), ("finish", "W2"), ("finish", "W1"),
    ],
    ("election", "a refused create counts as success"): [
        ("until", "W1", "1.json", "PUT"), ("until", "W2", "1.json", "PUT"), ("finish", "W1"),
        ("finish", "W2"),
    ],
    ("wal", "a lost answer to a claim counts as failure"): [
        ("until", "W1", "1.json", "PUT"), ("lose", "W1"), ("finish", "W1"), ("finish", "W2"),
    ],
    ("wal", "a lost answer to a claim counts as success"): [
        ("until", "W1", "1.json", "PUT"), ("drop", "W1"), ("finish", "W1"), ("finish", "W2"),
    ],
    ("queue", "the file does not remember past writes"): [
        ("until", "W1", "queue.json", "PUT"), ("lose", "W1"), ("finish", "W2"), ("finish", "W1"),
    ],
    ("statelock", "a lost answer is not read back"): [
        ("until", "W1", ".tflock", "PUT"), ("lose", "W1"), ("finish", "W1"),
    ],
    ("statelock", "an unlock deletes whatever is there by then"): [
        ("until", "W1", ".tflock", "DELETE"), ("finish", "W2"), ("finish", "W1"),
    ],
}  # fmt: skip


def play(steps: PatternSteps, story: list[tuple[str, ...]]) -> None:
    for what, *arguments in story:
        match what:
            case "lose" | "drop":
                steps.step(*arguments, **{what: True})
            case _:
                getattr(steps, what)(*arguments)


@pytest.fixture(params=STORIES, ids=lambda each: f"{each[0]}: {each[1]}")
def story(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    yield request.param


def test_a_mistake_shows_where_the_protocol_holds(story: tuple[str, str]) -> None:
    pattern, mistake = story
    with closing(PatternSteps(pattern)) as right, closing(PatternSteps(pattern, mistake)) as wrong:
        for each in (right, wrong):
            play(each, STORIES[story])
        assert right.verdict.well, right.verdict
        assert not wrong.verdict.well, wrong.verdict


def test_every_mistake_that_can_be_planted_has_its_story() -> None:
    assert set(STORIES) == {
        (name, each) for name, play in SCENARIOS.items() for each in play.mistakes
    }


@pytest.mark.parametrize("pattern", SCENARIOS)
@pytest.mark.parametrize("requests", range(8))
@pytest.mark.parametrize("how", [Choice.LOSE, Choice.DROP, Choice.LATE])
def test_a_lost_message_does_no_harm(pattern: str, requests: int, how: Choice) -> None:
    """At any request; what is applied late lands after its sender has settled, and ended."""
    with closing(PatternSteps(pattern)) as steps:
        for _ in range(requests):
            if steps.actors["W1"].waits is not None:
                steps.step("W1")
        if how in steps.choices("W1"):
            steps.decide(Decision("W1", how))
        assert steps.finish("W1").startswith("done")
        if Choice.LAND in steps.choices("W1"):
            steps.land("W1")
        assert steps.finish("W2").startswith(("done", "NotLocked"))
        assert steps.verdict.well, steps.verdict


def test_a_late_write_lands_on_request_and_is_refused_after_another_write() -> None:
    for rival, answer in ((False, "applied"), (True, "precondition failed")):
        with closing(PatternSteps("lock")) as steps:
            steps.until("W1", LOCK, "PUT")
            assert steps.late("W1").answered == "no answer: still on its way"
            assert not steps.objects
            if rival:
                steps.until("W2", "waits 10 s")
            assert steps.land("W1").answered == f"{answer}, and no client receives it"
            (body,) = steps.objects.values()
            assert json.loads(body)["owner"] == ("W2" if rival else "W1")


def test_the_lease_ends_for_its_holder_and_for_waiters() -> None:
    """Nobody asks, and nobody waits: the holder's own clock tells it, and the other may have it."""
    with closing(PatternSteps("lock")) as steps:
        assert steps.until("W1", "waits 10 s").startswith("- waits")
        steps.end_lease()
        asked = len(steps.actors["W1"].lines)
        ended = steps.finish("W1")
        assert ended.startswith("LockLost: the lock") and "the lease ran out" in ended
        assert len(steps.actors["W1"].lines) == asked + 1  # its wait, and no request
        steps.until("W2", "waits 10 s")
        assert [each.answered for each in steps.actors["W2"].lines] == ["found", "applied"]


def test_an_unknown_pattern_or_mistake_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no pattern 'lease'; there are lock, election, wal,"):
        PatternSteps("lease")
    with pytest.raises(ValueError, match="wal has no mistake 'x'; it has 'a lost answer"):
        PatternSteps("wal", "x")


def test_the_content_of_the_bucket_is_escaped() -> None:
    pytest.importorskip("ipywidgets", reason="make test installs ipywidgets")
    from lockkit.lab.widgets.stage.stepper import PatternStepper

    view = PatternStepper("queue")
    with closing(view):
        view.steps.finish("W1")
        assert "send invoice 7" in view.below(view.steps)
        assert view.steps.verdict.because not in view.below(view.steps), "the picture says it"
        evil = view.steps.objects["queue.json"].replace("send invoice 7", "<img src=x>")
        view.steps.memory_store.decide("mallory", Put("queue2.json", evil.encode(), IfAbsent()), 0)
        below = view.below(view.steps)
        assert "<img" not in below and "&lt;img" in below
