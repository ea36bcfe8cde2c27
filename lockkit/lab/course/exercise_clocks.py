"""Exercises about time: when a lease is over, until when to use one, and what a history shows."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from lockkit.lab.course.trial import CALLS, Exercise, settle, taken
from lockkit.lab.verify.sim.memory_store import StoredObject
from lockkit.lab.verify.sim.task import Node, Violated
from lockkit.protocol.outcome import Applied, Found, IfAbsent, IfVersion
from lockkit.runtime import Procedure, Put, Sleep
from lockkit.runtime.proven import put_once


class Free(Exercise):
    """`free(record, wall_ms, watched_ms)`: whether the lease in `record` has expired."""

    KEY, TTL_MS, WATCHED_MAX_MS = "lock.json", 2_000, 30_000
    APART_MS, OFTEN = 20_000, (-1.0, 1.0)
    """How far off a clock is at most, and which part of that it often is."""
    FAIR = True

    def prepare(self) -> None:
        self.until_ms = dict[str, float]()

    def node(self, name: str) -> Node:
        dice = self.trial.world.dice
        off = 2 * dice.random() - 1
        if self.OFTEN:
            off = dice.choice((*self.OFTEN, off))
        return self.trial.world.node(name, offset_ms=int(off * self.APART_MS))

    def client(self, node: Node) -> Procedure[None]:
        dice, time = self.trial.world.dice, self.trial.world.time
        for number in range(CALLS):
            claim = partial(self.claim, node)
            version, _, sent_ms = yield from taken(time, self.KEY, claim, 0.3)
            if time.now_ms < sent_ms + self.TTL_MS:  # else the answer came after the lease's end
                self.holds(node, sent_ms + self.TTL_MS)
            yield Sleep(dice.random() * self.TTL_MS / 1000)
            if dice.random() < 0.5 and time.now_ms < self.until_ms.pop(node.name, 0.0):
                self.released(node)
                released = json.dumps({"released": f"{node.name}-{number}"}).encode()
                yield from settle(self.KEY, released, IfVersion(version))

    def claim(self, node: Node, found: Found | None, watched_ms: float) -> dict[str, Any] | None:
        """Once the lock is free."""
        record = json.loads(found.body) if found else {}
        if "owner" in record and not self.over(node, record, watched_ms):
            return None
        until_ms = node.clock.wall_ms() + self.TTL_MS
        return {"owner": node.name, "valid_until_ms": until_ms, "ttl_ms": self.TTL_MS}

    def over(self, node: Node, record: dict[str, Any], watched_ms: float) -> bool:
        wall_ms = node.clock.wall_ms()
        said: bool = self.trial.decide(node, bool, dict(record), wall_ms, watched_ms)
        ahead = wall_ms - record["valid_until_ms"]
        there = f"{abs(ahead) / 1000:.1f} s {'ago' if ahead > 0 else 'ahead'}"
        self.trial.note(node, f"free() returns {said}: valid_until_ms is {there}, watched for "
                              f"{watched_ms / 1000:.1f} s")  # fmt: skip
        if not said and watched_ms > self.WATCHED_MAX_MS:
            raise Violated("the lock of a client that stopped is taken over",
                           f"{node.name} has watched one lease for half a minute, 15 times as "
                           "long as it lasts")  # fmt: skip
        return said

    def holds(self, node: Node, until_ms: float) -> None:
        if other := self.other_holder(node):
            left_s = (self.until_ms[other] - self.trial.world.time.now_ms) / 1000
            raise Violated("one holder", f"{node.name} took the lock while {other} still counts on "
                           f"its lease for {left_s:.1f} s more")  # fmt: skip
        self.until_ms[node.name] = until_ms

    def other_holder(self, node: Node) -> str:
        """Another client that counts on the lock; "" if none does."""
        now_ms = self.trial.world.time.now_ms
        others = (each for each, until_ms in self.until_ms.items() if now_ms < until_ms)
        return next((each for each in others if each != node.name), "")

    def released(self, node: Node) -> None:
        """A client stops, and then releases the lock."""


class Witness(Free):
    """`two_holders(history)`: whether two clients held the lock at the same moment."""

    OFTEN = ()  # type: ignore[assignment]

    def prepare(self) -> None:
        super().prepare()
        self.history: list[tuple[int, str, str, int]] = []
        self.harmed = ""
        self.wrong = self.trial.world.dice.random() < 0.5

    def over(self, node: Node, record: dict[str, Any], watched_ms: float) -> bool:
        """In a wrong world the wall clock decides."""
        valid_until_ms: int = record["valid_until_ms"]
        return node.clock.wall_ms() > valid_until_ms if self.wrong else watched_ms >= self.TTL_MS

    def holds(self, node: Node, until_ms: float) -> None:
        if other := self.other_holder(node):
            self.harmed = self.harmed or f"{other} and {node.name}"
        self.until_ms[node.name] = until_ms
        self.record(node, "held", until_ms)

    def released(self, node: Node) -> None:
        self.record(node, "released", 0)

    def record(self, node: Node, kind: str, until_ms: float) -> None:
        now_ms = self.trial.world.time.now_ms
        self.history.append((round(now_ms), node.name, kind, round(until_ms)))
        until = f" until {until_ms / 1000:.1f} s" if until_ms else ""
        self.trial.note(node, f"{kind} at {now_ms / 1000:.1f} s{until}")

    def end(self) -> None:
        said = self.trial.decide(self.trial.world.nodes[0], bool, list(self.history))
        if self.harmed and not said:
            raise Violated("a violation is found",
                           f"two_holders() returned False; {self.harmed} held it")  # fmt: skip
        if said and not self.harmed:
            raise Violated("a correct history passes", "two_holders() returned True")


class Session(Exercise):
    """`until(sent_ms, answered_ms, ttl_ms)`: when a holder must stop to act."""

    KEY, TTL_MS = "session.json", 4_000
    RATE_OFF, USED_MIN = 0.01, 0.9
    FAIR = True

    def prepare(self) -> None:
        self.trial.world.memory_store.judges[self.KEY] = self.admits

    def node(self, name: str) -> Node:
        rate = 1 + (2 * self.trial.world.dice.random() - 1) * self.RATE_OFF
        return self.trial.world.node(name, rate=rate)

    def admits(self, request: Put, before: StoredObject | None) -> bool:
        """The service's decision about a heartbeat, or about the end of a session."""
        wanted = json.loads(request.body)
        if before is None:
            return not wanted["over"]
        there = json.loads(before.body)
        if there["session"] == wanted["session"]:
            return not there["over"]
        expired = self.trial.world.time.now_ms > before.at_ms + self.TTL_MS
        return not wanted["over"] and (there["over"] or expired)

    def client(self, node: Node) -> Procedure[None]:
        dice = self.trial.world.dice
        for number in range(CALLS):
            session = f"{node.name}-{number}"
            while not (yield from self.heartbeat(node, session, "first")):
                yield Sleep(1)
            for beat in range(CALLS):
                yield Sleep(dice.random() * self.TTL_MS / 2000)
                yield from self.heartbeat(node, session, str(beat))
            if dice.random() < 0.5:
                yield from put_once(self.KEY, self.body(session, "end", over=True), IfAbsent())

    def heartbeat(self, node: Node, session: str, beat: str) -> Procedure[bool]:
        """Send one, and judge what the holder makes of its answer."""
        sent_ms, body = node.clock.boot_ms(), self.body(session, beat, over=False)
        answer = yield from put_once(self.KEY, body, IfAbsent())
        if not isinstance(answer, Applied):
            return False
        answered_ms = node.clock.boot_ms()
        until_ms = self.trial.decide(node, float, sent_ms, answered_ms, self.TTL_MS)
        self.trial.note(node, f"until() returns {until_ms / 1000:.2f} s by {node.name}'s clock")
        received_ms = max(
            each.at_ms for each in self.trial.world.memory_store.truth
            if isinstance(each.request, Put) and each.request.body == body
            and isinstance(each.answer, Applied)
        )  # fmt: skip
        late_ms = node.clock.true_ms(until_ms) - (received_ms + self.TTL_MS)
        if late_ms > 0:
            raise Violated(
                "one holder",
                f"{node.name} would act for {late_ms:.0f} ms after the service has ended its "
                "session, and may have granted the lock to another client",
            )
        if until_ms < sent_ms + self.USED_MIN * self.TTL_MS:
            raise Violated(
                "a session is used",
                f"{node.name} stops {until_ms - sent_ms:.0f} ms after it sent the heartbeat; its "
                f"session lasts {self.TTL_MS} ms",
            )
        return True

    @staticmethod
    def body(session: str, beat: str, *, over: bool) -> bytes:
        return json.dumps({"session": session, "beat": beat, "over": over}).encode()
