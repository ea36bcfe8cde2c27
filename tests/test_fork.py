"""Moments of a stage: the same decisions lead to the same state, to the byte."""

from __future__ import annotations

from random import Random

import pytest

from lockkit.lab.widgets.stage.decisions import Choice, Decision, ScenarioMoment
from lockkit.lab.widgets.stage.fork import COMMIT, at, compare, fork, stage
from lockkit.lab.widgets.stage.scenarios import SCENARIOS
from lockkit.lab.widgets.stage.staged import Stage

EVERY = [COMMIT, *SCENARIOS]


def wander(play: str, seed: int, decisions: int) -> Stage:
    """A stage on which so much happened at random."""
    dice, run = Random(f"{play} {seed}"), stage(play)
    for _ in range(decisions):
        can = [Decision(who, each) for who in (*run.actors, "the lease")
               for each in run.choices(who)]  # fmt: skip
        if not can:
            break
        run.decide(dice.choice(can))
    return run


@pytest.mark.parametrize("play", EVERY)
@pytest.mark.parametrize("seed", range(5))
def test_a_moment_leads_to_the_same_state_in_every_notation(play: str, seed: int) -> None:
    run = wander(play, seed, 25)
    again = at(str(run.moment))
    assert again.moment == run.moment
    assert again.events == run.events
    assert again.memory_store.objects == run.memory_store.objects
    assert {name: each.lines for name, each in again.actors.items()} == {
        name: each.lines for name, each in run.actors.items()
    }
    assert str(compare(run, again)) == "no difference"


@pytest.mark.parametrize("play", EVERY)
def test_reading_a_run_changes_nothing(play: str) -> None:
    run, unseen = (stage(play) for _ in range(2))
    for _ in range(4):
        for each in (run, unseen):
            for who in ("W1", "W2"):
                if Choice.ANSWER in each.choices(who):
                    each.step(who)
        _ = run.verdict, getattr(run, "rows", None), run.events  # type: ignore[attr-defined]
    assert run.events == unseen.events and run.memory_store.objects == unseen.memory_store.objects


def test_a_fork_shares_its_past_and_neither_run_disturbs_the_other() -> None:
    run = at("lock: W1 answer x4, W2 answer")
    before = run.events
    other = fork(run, 3)
    other.kill("W1")
    assert other.finish("W2").startswith("done")
    assert run.events == before and not run.actors["W2"].ended
    difference = compare(run, other)
    assert difference.decision == 3
    assert list(map(str, difference.made)) == ["W1 answer", "W1 kill"]
    assert difference.lines["W1"] == {3}
    with pytest.raises(ValueError, match="6: this run made 5 decisions"):
        fork(run, 6)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x", "is not a moment"),
        ("tea: W1 answer", "no play 'tea'; there are commit, lock"),
        ("lock: W1 jump", "'W1 jump' is not a decision; one is written"),
        ("lock/no such thing: W1 answer", "lock has no mistake 'no such thing'"),
        ("commit/tea:", "no variant 'tea'; it has 'hudi mode'"),
        ("lock: W1 answer, W1 late, W1 late", "decision 3: W1 late can't happen now"),
        ("lock: W1 answer x1001", "at most 1000 decisions"),
        ("lock: W1 answer x99999", "is not a decision"),
        ("wal: the lease ends", "nothing is leased in wal"),
        ("lock: " + "W1 answer, " * 3000, "at most 20000 characters"),
    ],
)
def test_an_invalid_moment_is_refused_with_the_reason(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        at(text)


def test_a_moment_is_printed_in_short_form_and_read_back() -> None:
    text = "election/a refused create counts as success: W1 answer x3, the lease ends, W2 lose"
    moment = ScenarioMoment.of(f"  {text}\n")
    assert str(moment) == text and len(moment.decisions) == 5
    assert ScenarioMoment.of(str(ScenarioMoment("wal"))) == ScenarioMoment("wal")
