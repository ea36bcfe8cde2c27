"""Who moves next: at random, or by random priorities that change at few points (PCT).

PCT (Burckhardt et al., ASPLOS 2010): most mistakes need only a few orderings to be just so, and a
schedule that runs the first in rank until a change point meets them far sooner than one that tosses
a coin at every move.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Protocol

from lockkit.runtime import List

CHANGES_MAX = 8
SLOW = 0.05
"""How often a slow node moves although others could."""
OVERTAKEN_BY = 3
"""Commits that a slow listing waits for: two may have begun before it."""


class Mover(Protocol):
    """Anything that can move: a task, a late write, or time."""

    priority: float


class Uniform:
    """Every mover has the same probability."""

    def __init__(self, dice: random.Random) -> None:
        self._random = dice.random

    def pick(self, ready: list[Mover]) -> Mover:
        return ready[int(self._random() * len(ready))]


class Prompt(Uniform):
    """Requests take no time beside a lease: time advances only when no other mover can move."""

    def __init__(self, dice: random.Random, time: Mover) -> None:
        super().__init__(dice)
        self._time = time

    def pick(self, ready: list[Mover]) -> Mover:
        return super().pick([each for each in ready if each is not self._time] or ready)


class Pct:
    """The first in rank moves; at a change point it becomes the last.

    Time would rank first for ever once it does: it takes a new rank whenever it has moved.
    """

    def __init__(
        self, dice: random.Random, steps: int, time: Mover, changes_max: int = CHANGES_MAX
    ) -> None:
        self._random, self._time = dice.random, time
        changes = 1 + int(dice.random() * changes_max)
        self._changes = {int(dice.random() * steps) for _ in range(changes)}
        self._step, self._last = 0, 0.0

    def pick(self, ready: list[Mover]) -> Mover:
        first = ready[0]
        for each in ready:
            if each.priority > first.priority:
                first = each
        self._step += 1
        if self._step in self._changes:
            self._last -= 1.0
            first.priority = self._last
        elif first is self._time:
            first.priority = self._random()
        return first


class PromptPct(Pct):
    """PCT where requests take no time: time advances only when no other mover can move.

    Writers then meet in one millisecond, and one slow request can outlast many of the others'.
    """

    def pick(self, ready: list[Mover]) -> Mover:
        return super().pick([each for each in ready if each is not self._time] or ready)


class PromptSlow(Prompt):
    """Requests take no time beside a lease, except those of one node."""

    def __init__(self, dice: random.Random, time: Mover, slow: str) -> None:
        super().__init__(dice, time)
        self._slow = slow

    def pick(self, ready: list[Mover]) -> Mover:
        quick = [each for each in ready if not self._is_slow(each)]
        only_time = all(each is self._time for each in quick)
        if only_time or self._random() < SLOW:
            return super().pick(ready)
        return super().pick(quick)

    def _is_slow(self, mover: Mover) -> bool:
        node = getattr(mover, "node", None)
        return node is not None and node.name == self._slow


class PromptOvertaken(Prompt):
    """One node's listings each wait until others have committed: its instants are overtaken."""

    def __init__(
        self, dice: random.Random, time: Mover, slow: str, commits: Sequence[object]
    ) -> None:
        super().__init__(dice, time)
        self._slow, self._commits, self._seen = slow, commits, 0

    def pick(self, ready: list[Mover]) -> Mover:
        free = [each for each in ready if not self._waits(each)]
        if all(each is self._time for each in free):
            return super().pick(ready)
        return super().pick(free)

    def _waits(self, mover: Mover) -> bool:
        task: Any = mover
        if getattr(mover, "node", None) is None or task.node.name != self._slow:
            return False
        if not isinstance(task.request, List) or task.phase.value != "sent":
            self._seen = len(self._commits)
            return False
        return len(self._commits) < self._seen + OVERTAKEN_BY
