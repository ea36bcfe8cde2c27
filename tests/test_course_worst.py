"""The worst moments of notebook 12: each mistake shows at the one that the course plays."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("ipywidgets", reason="make test installs ipywidgets")

from lockkit.lab.course.worst import (
    AS_NO,
    AS_YES,
    FORGETFUL,
    OF_W1,
    OF_W2,
    UNASKED,
    UNGUARDED,
    UNLOOKED,
    WORST,
    play,
)
from lockkit.lab.widgets.seeds.named_writes import name_of

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


@pytest.mark.parametrize(("pattern", "mistake", "because", "proofs"), [
    ("election", UNLOOKED, "what the leader of epoch 2 wrote was replaced in epoch 1",
     ["write, epoch 2", "write, epoch 1"]),
    ("wal", AS_NO, "a reader finds it twice", ["append 1: answer lost", "append 2"]),
    ("wal", AS_YES, "a reader never finds it", ["append 1: lost"]),
    ("queue", FORGETFUL, "once in the queue, once done",
     ["push job-1: answer lost", "complete job-1", "push job-1"]),
    ("statelock", UNASKED, "refused by its own lock", ["lock: answer lost", "read"]),
    ("statelock", UNGUARDED, "its lock file is gone", ["lock", "unlock"]),
])  # fmt: skip
def test_a_mistake_shows_at_the_worst_moment_and_its_picture_marks_the_harm(
    pattern: str, mistake: str, because: str, proofs: list[str]
) -> None:
    played = play(pattern, mistake)
    assert not played.well and because in played.because
    assert repr(played).startswith("✗") and "do not agree" in played.view.children[0].value
    (harm,) = [each for each in played.scene["marks"] if each["kind"] == "harm"]
    assert harm["lane"] == "W1" and because in harm["detail"]
    assert harm["t"] <= max(t for each in played.scene["arrows"] for t in each["t"] if t)
    assert [each["label"] for each in played.scene["arrows"] if each["evidence"]] == proofs


@pytest.mark.parametrize("pattern", WORST)
def test_without_a_mistake_the_worst_moment_does_no_harm(pattern: str) -> None:
    played = play(pattern)
    assert played.well, played
    assert not [each for each in played.scene["arrows"] if each["evidence"]]
    assert repr(played).startswith("✓") and "the store agree:" in played.view.children[0].value


def test_a_deposed_leader_writes_last_unless_the_resource_checks_the_epoch() -> None:
    assert (str(play("election", UNLOOKED)), str(play("election"))) == (OF_W1, OF_W2)


def test_a_scenario_that_cannot_be_played_here_is_reported() -> None:
    with pytest.raises(ValueError, match="no worst moment for 'chess'; there are election"):
        play("chess")
    with pytest.raises(ValueError, match="wal has no mistake 'hope'"):
        play("wal", "hope")


def test_the_answers_shown_for_an_actor_are_escaped() -> None:
    hostile = replace(play("wal"), ended={HOSTILE: HOSTILE}, because=HOSTILE, mistake=HOSTILE)
    words = hostile.view.children[0].value
    assert "<img" not in words and words.count("&lt;img") == 4


@pytest.mark.parametrize(("key", "shown"), [
    ("wal/00000000000000000000.json", "wal/0"), ("wal/00000000000000000012.json", "wal/12"),
    ("lock_0000000001.json", "lock_1"), ("queue.json", "queue"),
])  # fmt: skip
def test_a_numbered_object_is_named_in_a_picture_by_its_number(key: str, shown: str) -> None:
    assert name_of(key) == shown
