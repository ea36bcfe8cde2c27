"""Sliders over two simulated writers: what a pause, a wrong clock and a slow store do."""

from __future__ import annotations

import pytest

from lockkit.lab.widgets.seeds.timed import Timing, play

pytest.importorskip("ipywidgets", reason="make test installs ipywidgets")

LEASE_S = 6.0
TAKEN_OVER_S = 9.0
"""A pause after which W2 has taken over the lock and committed."""


def test_without_a_fence_a_pause_loses_data_once_another_writer_has_committed() -> None:
    short, long = (
        play(Timing(lease_s=LEASE_S, stall_s=stall_s, fence=False))
        for stall_s in (LEASE_S / 2, TAKEN_OVER_S)
    )
    assert (short.kind, long.kind) == ("VALID", "INVALID")
    assert "W1's late write replaced W2's commit" in str(long)


def test_the_fence_refuses_the_late_commit() -> None:
    outcome = play(Timing(lease_s=LEASE_S, stall_s=TAKEN_OVER_S))
    assert outcome.kind == "VALID"
    assert (outcome.fate("W1"), outcome.fate("W2")) == (
        "W1's commit is refused", "W2's commit is accepted",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("expiry", "kind"), [("wall", "INVALID"), ("store", "VALID"), ("observed", "VALID")]
)
def test_a_fast_clock_breaks_exclusion_only_where_wall_clocks_are_compared(
    expiry: str, kind: str
) -> None:
    outcome = play(Timing(lease_s=LEASE_S, skew_s=8.0, expiry=expiry))
    assert outcome.kind == kind
    assert ("Both count on" in str(outcome)) is (kind == "INVALID")


def test_a_longer_lease_survives_a_clock_that_is_further_ahead() -> None:
    kinds = [play(Timing(lease_s=s, skew_s=8.0, expiry="wall")).kind for s in (6.0, 20.0)]
    assert kinds == ["INVALID", "VALID"]


def test_on_a_slow_store_nothing_is_left_of_a_short_lease() -> None:
    slow, quick = (play(Timing(lease_s=2.0, latency_s=each)) for each in (3.0, 0.1))
    assert slow.kind == quick.kind == "VALID"
    assert not [each for each in slow.events if each.kind == "held"]
    assert "Neither commits: a lease that is so short" in str(slow)
    assert {each.who for each in quick.commits} == {"W1", "W2"}


def test_half_of_the_latency_passes_on_each_way() -> None:
    outcome = play(Timing(latency_s=1.0))
    asked = next(each for each in outcome.events if each.kind == "ask" and each.who == "W1")
    decided = next(each for each in outcome.events if each.kind == "request")
    answered = next(each for each in outcome.events if each.kind == "answer")
    assert decided.at_ms - asked.at_ms == pytest.approx(500, abs=1)
    assert answered.at_ms - asked.at_ms == pytest.approx(1000, abs=1)


def test_the_same_times_give_the_same_run() -> None:
    timing = Timing(stall_s=7.0, skew_s=-2.0, latency_s=0.7)
    assert play(timing).events == play(timing).events


def test_a_moved_slider_draws_the_run_of_the_new_times() -> None:
    from lockkit.lab.widgets import TimeSliders

    panel = TimeSliders(lease_s=LEASE_S, stall_s=TAKEN_OVER_S, fence=False)
    assert panel.lanes.status["verdict"] == "INVALID"
    assert "stale" in {each["kind"] for each in panel.lanes.scene["marks"]}
    panel.set(fence=True)
    assert panel.lanes.status["verdict"] == "VALID"
    assert "conflict" in {each["kind"] for each in panel.lanes.scene["marks"]}
    panel.set(stall_s=0.0)
    assert "stall" not in {each["kind"] for each in panel.lanes.scene["bars"]}
    assert panel.timing() == Timing(lease_s=LEASE_S)
