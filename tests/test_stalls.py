"""The scenarios `stalls-N`: what a stall does, by its length in leases."""

from __future__ import annotations

import pytest

from lockkit.lab.verify.sim.lease import TTL_MS
from lockkit.lab.widgets.seeds.moments import SeedMoment, play

RATIOS = (0.0, 0.9, 1.5, 3.0)
SEEDS = range(1, 13)


def wrong(ratio: float, mutant: str) -> list[str]:
    """The moments at which runs go wrong."""
    runs = [(seed, play(SeedMoment(f"stalls-{ratio:g}", seed, None, mutant))) for seed in SEEDS]
    return [
        str(SeedMoment(f"stalls-{ratio:g}", seed, run.steps, mutant))
        for seed, run in runs if run.violation
    ]  # fmt: skip


def test_without_the_fence_harm_begins_where_a_stall_is_as_long_as_a_lease() -> None:
    found = [len(wrong(ratio, "fence off")) for ratio in RATIOS]
    assert found[:2] == [0, 0] and 0 < found[2] <= found[3]


@pytest.mark.parametrize("ratio", RATIOS)
def test_with_the_fence_the_same_runs_are_right_at_every_length(ratio: float) -> None:
    assert wrong(ratio, "") == []


def test_the_moment_of_a_wrong_run_replays_the_harm() -> None:
    moment = SeedMoment.of(wrong(1.5, "fence off")[0])
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
