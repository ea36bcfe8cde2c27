"""Breadth-first search over every order of events of a world for the shortest violation."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

STATES_MAX = 20_000_000
"""Some 4 GB of states of the lease."""
REPORT_EVERY = 500
"""States whose moves are followed between two reports."""

R = TypeVar("R")
S = TypeVar("S", bound=Hashable)
Move = TypeVar("Move", covariant=True)


class SearchWorld(Protocol[S, Move]):
    """What can be searched: the first state, the next moves, and the violations."""

    def initial(self) -> S: ...

    def moves(self, state: S) -> Iterable[tuple[Move, S]]:
        """All possible next moves, always in the same order."""
        ...

    def violation(self, state: S) -> str | None:
        """The invariant that this state breaks, and how; None if it breaks none."""
        ...


@dataclass(frozen=True, slots=True)
class SearchResult(Generic[S, Move]):
    """The result of a search. `states` counts distinct states, the violating one included."""

    violation: str | None
    path: tuple[tuple[Move, S], ...]
    states: int
    exhausted: bool
    """Whether every reachable state was seen: only then does "no violation" mean anything."""


def search(world: SearchWorld[S, Move], *, states_max: int = STATES_MAX) -> SearchResult[S, Move]:
    """All states within the world's bounds, nearest first; stops at the first violation."""
    return drained(search_so_far(world, states_max))


def drained(steps: Generator[Any, None, R]) -> R:
    """What a generator returns, whatever it yields before."""
    while True:
        try:
            next(steps)
        except StopIteration as over:
            found: R = over.value
            return found


def search_so_far(
    world: SearchWorld[S, Move], states_max: int = STATES_MAX
) -> Generator[int, None, SearchResult[S, Move]]:
    """Yields how many states were found, often enough to show that; returns the result."""
    start = world.initial()
    parents: dict[S, S | None] = {start: None}
    frontier = [start]
    moves, violation = world.moves, world.violation
    while frontier:
        beyond: list[S] = []
        for number, state in enumerate(frontier):
            if number % REPORT_EVERY == 0:
                yield len(parents)
            for _, child in moves(state):
                if child in parents:
                    continue
                parents[child] = state
                why = violation(child)
                if why is not None:
                    return SearchResult(why, _path(world, parents, child), len(parents), False)
                beyond.append(child)
            if len(parents) > states_max:
                return SearchResult(None, (), len(parents), False)
        frontier = beyond
    return SearchResult(None, (), len(parents), True)


def _path(
    world: SearchWorld[S, Move], parents: dict[S, S | None], last: S
) -> tuple[tuple[Move, S], ...]:
    """The moves to a state, found again from state to state, so that none had to be stored."""
    path: list[tuple[Move, S]] = []
    state = last
    while (parent := parents[state]) is not None:
        path.append(next(each for each in world.moves(parent) if each[1] == state))
        state = parent
    return tuple(reversed(path))
