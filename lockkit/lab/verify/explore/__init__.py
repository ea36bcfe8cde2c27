"""Exhaustive search over the very `step` that the driver runs: the shortest story of each mistake.

All rules on: every order of events, delays, stalls and faults within the bounds is seen, and none
breaks an invariant. One rule off: the search returns the shortest way to the damage. A bounded
search is no proof; the bounds are part of every row. A crash without a restart is a stall without
an end. Not explored: the promise that a client which is alone always gets on in the end.

Other rooms may search worlds of their own: anything with `initial`, `moves` and `violation`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any

from lockkit.clock import Clock
from lockkit.events import Event
from lockkit.lab.verify.explore.parts import Move, PackedState
from lockkit.lab.verify.explore.rows import BIG, SCENARIOS, SearchScenario
from lockkit.lab.verify.explore.search import (
    STATES_MAX,
    SearchResult,
    SearchWorld,
    drained,
    search,
    search_so_far,
)
from lockkit.lab.verify.explore.story import PathStory
from lockkit.lab.verify.explore.world import LeaseWorld

__all__ = [
    "BIG",
    "SCENARIOS",
    "STATES_MAX",
    "Counterexample",
    "SearchResult",
    "SearchRow",
    "SearchScenario",
    "SearchWorld",
    "explore",
    "explore_rows",
    "explore_so_far",
    "search",
]


@dataclass(frozen=True, slots=True)
class Counterexample:
    """The shortest path to a violation."""

    path: tuple[tuple[Move, PackedState], ...]
    world: LeaseWorld

    def story(self) -> list[str]:
        """One numbered sentence for each step."""
        return PathStory(self.world).walk(self.path).lines

    def history(self) -> list[Event]:
        """The path as events, for the checker and the pictures; a tick is a second."""
        return PathStory(self.world).walk(self.path).events


@dataclass(frozen=True, slots=True)
class SearchRow:
    """The result of one search. `steps` is the length of the shortest counterexample, 0 if none."""

    scenario: SearchScenario
    violation: str | None
    steps: int
    states: int
    exhausted: bool
    seconds: float
    counterexample: Counterexample | None

    @property
    def as_expected(self) -> bool:
        breaks = self.scenario.breaks
        if breaks is None:
            return self.violation is None and self.exhausted
        return self.violation is not None and self.violation.startswith(breaks.value)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.scenario.name, "rule": self.scenario.off or None,
            "expiry": self.scenario.policy.expiry.value, "violation": self.violation,
            "steps": self.steps, "states": self.states, "exhausted": self.exhausted,
            "seconds": round(self.seconds, 3), "as_expected": self.as_expected,
            "story": self.counterexample.story() if self.counterexample else [],
        }  # fmt: skip


def explore(scenario: SearchScenario, *, states_max: int = STATES_MAX) -> SearchRow:
    """Search one scenario, completely or up to its first violation."""
    return drained(explore_so_far(scenario, states_max=states_max))


def explore_so_far(
    scenario: SearchScenario, *, states_max: int = STATES_MAX
) -> Generator[int, None, SearchRow]:
    """Yields how many states were found so far; returns the row."""
    clock = Clock()
    began_ms = clock.boot_ms()
    off = {} if scenario.mutant is None else scenario.mutant.off
    world = LeaseWorld(scenario.policy, scenario.bounds, off=off)
    with scenario.planted():
        found = yield from search_so_far(world, states_max)
    return SearchRow(
        scenario, found.violation, len(found.path), found.states, found.exhausted,
        (clock.boot_ms() - began_ms) / 1000,
        Counterexample(found.path, world) if found.violation else None,
    )  # fmt: skip


def explore_rows(names: Iterable[str] | None = None) -> list[SearchRow]:
    """Search the rows with these names, or all rows."""
    wanted = None if names is None else set(names)
    known = {each.name for each in SCENARIOS}
    if wanted is not None and not wanted <= known:
        raise ValueError(f"no such row: {', '.join(sorted(wanted - known))}")
    return [explore(each) for each in SCENARIOS if wanted is None or each.name in wanted]
