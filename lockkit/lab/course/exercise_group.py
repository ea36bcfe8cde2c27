"""The exercise about group commit: which of several offers become commits."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from lockkit.lab.course.exercise_worlds import braced
from lockkit.lab.course.trial import CALLS, Exercise, parsed, settle
from lockkit.lab.verify.sim.task import Node, Violated
from lockkit.protocol.outcome import Found, IfAbsent, IfVersion
from lockkit.runtime import Procedure, Sleep
from lockkit.runtime.proven import listing, put_once, read

WINDOW_MAX = 3


@dataclass(slots=True)
class SharedFence:
    """The fence of the exercise: its latest decisions, and what became of each offer."""

    first: int = 1
    window: list[list[str]] = field(default_factory=list)
    ended: dict[str, bool] = field(default_factory=dict)

    @property
    def last(self) -> int:
        return self.first + len(self.window) - 1

    def add(self, instant: str, groups: frozenset[str] | None) -> None:
        """One more decision; None refuses."""
        self.window.append(sorted(groups or ()))
        self.ended[instant] = groups is not None
        over = max(0, len(self.window) - WINDOW_MAX)
        self.first, self.window = self.first + over, self.window[over:]

    def body(self) -> bytes:
        fields = {"first": self.first, "window": self.window, "ended": self.ended}
        return json.dumps(fields).encode()


Offered = tuple[str, int, frozenset[str]]


class Deciding(Exercise):
    """`decide(first, window, offers)`: which offers become commits."""

    KEY, OFFERS = "fence.json", "offers/"
    GROUPS = ("A", "B", "C", "D")

    def prepare(self) -> None:
        self.trial.put(self.KEY, SharedFence().body())

    def client(self, node: Node) -> Procedure[None]:
        dice = self.trial.world.dice
        for number in range(1, CALLS + 1):
            instant = f"{number}-{node.name}"
            fence, _ = yield from self.fence()
            groups = frozenset(dice.sample(self.GROUPS, dice.choice((1, 2))))
            offer = {"base": fence.last, "groups": sorted(groups)}
            yield Sleep(dice.random())
            yield from settle(f"{self.OFFERS}{instant}", json.dumps(offer).encode(), IfAbsent())
            while not (yield from self.combine(node, instant)):
                yield Sleep(dice.random())

    def combine(self, node: Node, mine: str) -> Procedure[bool]:
        """Decide what is offered; True once `mine` is decided."""
        keys = [each.key for each in (yield from listing(self.OFFERS))]
        fence, version = yield from self.fence()
        if mine in fence.ended:
            return True
        offers = list[Offered]()
        for key in keys:
            instant = key.removeprefix(self.OFFERS)
            if instant not in fence.ended and isinstance(found := (yield from read(key)), Found):
                fields = json.loads(found.body)
                offers.append((instant, fields["base"], frozenset(fields["groups"])))
        offers.sort()
        decided = self.judged(node, fence, offers)
        groups = {instant: of for instant, _, of in offers}
        for instant, accepted in decided.items():
            fence.add(instant, groups[instant] if accepted else None)
        if mine not in fence.ended:  # it cannot be judged any more: its writer begins again
            fence.add(mine, None)
        yield from put_once(self.KEY, fence.body(), IfVersion(version))
        return False

    def fence(self) -> Procedure[tuple[SharedFence, str]]:
        fields, version = yield from parsed(self.KEY)
        return SharedFence(**fields), version

    def judged(self, node: Node, fence: SharedFence, offers: list[Offered]) -> dict[str, bool]:
        window = [frozenset(each) for each in fence.window]
        given = fence.first, list(window), list(offers)
        found: dict[Any, Any] = self.trial.decide(node, dict, *given)
        if not all(isinstance(each, str) for each in found):
            self.trial.wrong(found, "a dict of instants")
        try:
            found = {instant: bool(accepted) for instant, accepted in found.items()}
        except Exception:  # noqa: BLE001 - an array of several has no truth
            self.trial.wrong(found, "a dict of instants to True or False")
        said = ", ".join(f"({i}, {base}, {braced(of)})" for i, base, of in offers)
        shown = ", ".join(map(braced, window))
        call = f"decide({fence.first}, [{shown}], [{said}]) returns {found}"
        self.trial.note(node, call)
        for instant, base, groups in offers:
            later = window[max(0, base + 1 - fence.first):]
            if base + 1 < fence.first:
                if instant in found:
                    raise Violated("an offer outside the window is left out", call)
                continue
            if instant not in found:
                raise Violated("an offer that can be judged is decided", call)
            overlaps = any(groups & each for each in later)
            if found[instant] and overlaps:
                raise Violated("no lost update", f"{call}: {instant} overlooks a commit")
            if not found[instant] and not overlaps:
                raise Violated("no write is refused without a reason", call)
            window.append(groups if found[instant] else frozenset())
        if unknown := set(found) - {instant for instant, _, _ in offers}:
            raise Violated("only offers are decided", f"{call}: who offered {min(unknown)}?")
        return {instant: found[instant] for instant, _, _ in offers if instant in found}
