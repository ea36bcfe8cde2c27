"""Two services side by side: what the figures say of a history, and what cannot be started."""

from __future__ import annotations

import pytest

from lockkit.history import Event, event
from lockkit.services.contender import LETS_GO
from lockkit.workbench.contest import Contest, Figures, figures, spans


def held(at_s: float, who: str, until_s: float = 100.0) -> Event:
    return event(at_s * 1000, who, "held", epoch=1, until_ms=until_s * 1000, version="v")


def lets_go(at_s: float, who: str) -> Event:
    return event(at_s * 1000, who, "note", text=LETS_GO)


def test_a_grant_lasts_until_it_is_let_go_or_until_its_belief_ends() -> None:
    history = [
        held(1, "W1"), lets_go(2, "W1"),
        held(3, "W2", until_s=5), event(4000, "W2", "stalled", pid=1, why="by hand"),
        held(6, "W1"), event(9000, "W2", "lost", epoch=1, why="late"),
    ]  # fmt: skip
    found = [(each.who, each.from_ms, each.to_ms, each.ended) for each in spans(history)]
    assert found == [
        ("W1", 1000, 2000, "released"), ("W2", 3000, 5000, "lost"), ("W1", 6000, 9000, ""),
    ]  # fmt: skip
    assert figures(history).overlap_s == 0


def test_two_believers_are_seen_for_as_long_as_they_were_two() -> None:
    history = [held(1, "W1"), held(2, "W2"), lets_go(2.5, "W1"), lets_go(3, "W2")]
    assert figures(history).overlap_s == 0.5


def test_hand_offs_waits_runs_and_takeovers_are_told() -> None:
    history = [
        held(1, "W1"), lets_go(2, "W1"), held(2.5, "W1"), lets_go(3, "W1"),
        held(3.25, "W2"), event(4000, "W2", "killed", pid=1),
        held(8, "W1"), lets_go(9, "W1"),
    ]  # fmt: skip
    assert figures(history, requests=20) == Figures(
        grants=4, per_s=4 / 7, hand_off_p50_s=0.25, wait_max_s=5.0, longest_run=2,
        taken_over_s=(4.0,), overlap_s=0.0, requests_per_grant=5.0,
    )  # fmt: skip


def test_an_empty_history_has_figures_too() -> None:
    assert figures([]) == Figures(0, 0.0, None, None, 0, (), 0.0, None)


def test_a_service_that_nobody_knows_is_said() -> None:
    with pytest.raises(ValueError, match="no provider 'etcd'; there are storage, zookeeper"):
        Contest(("etcd", "storage"))
