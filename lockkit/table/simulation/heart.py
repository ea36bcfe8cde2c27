"""A simulated writer's heartbeat: what `lockkit.table.heartbeat.Heartbeat` does in a thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lockkit.drive import Procedure, Sleep
from lockkit.sim.task import Node
from lockkit.table.heartbeat import Beating, HeartbeatExpired, beat, start
from lockkit.table.pulse import HeartbeatRules, Pulse, end, forget

RULES = HeartbeatRules(interval_ms=1_500)
BEATS_MAX = 400


@dataclass(slots=True)
class Heart:
    """Beats until it is stopped, and knows until when others take its writer for alive."""

    node: Node
    now: Beating
    since_ms: int
    until_ms: int
    over: bool = False
    lost: bool = False

    @classmethod
    def of(cls, instant: str, node: Node) -> Heart:
        now_ms = node.clock.boot_ms()
        beating = Beating(instant, RULES.ttl_ms, f"{node.name}.{node.life}")
        return cls(node, beating, now_ms, now_ms + RULES.belief_ms)

    def start(self, spawn: Callable[[Procedure[None]], object]) -> Procedure[None]:
        """The first beat, proven; then one at every interval."""
        self.now = yield from start(self.now)
        self.until_ms = self.since_ms + RULES.belief_ms
        spawn(self._beat(RULES.interval_ms / 1000))

    def start_quietly(self, spawn: Callable[[Procedure[None]], object]) -> None:
        """No beat before half an interval: a short write needs none."""
        spawn(self._beat(RULES.interval_ms / 2000))

    def check(self) -> None:
        """Raise `HeartbeatExpired` once others may take this writer for dead."""
        if self.lost or self.node.clock.boot_ms() >= self.until_ms:
            raise HeartbeatExpired(self.now.instant, "no beat was proven for long")

    def finish(self) -> Procedure[None]:
        """The instant is committed."""
        self.over = True
        if self.now.version is not None or self.now.out:
            yield from forget(self.now.instant)

    def give_up(self) -> Procedure[None]:
        """The instant will not be committed: others need not wait until the heartbeat expires."""
        self.over = True
        if self.now.version is not None or self.now.out:
            yield from end(Pulse(self.now.instant, self.now.version))

    def _beat(self, wait_s: float) -> Procedure[None]:
        for _ in range(BEATS_MAX):
            yield Sleep(wait_s)
            if self.over:
                return
            wait_s = RULES.interval_ms / 1000
            sent_ms = self.node.clock.boot_ms()
            if sent_ms >= self.until_ms:
                self.lost = True
                return
            self.since_ms = self.since_ms if self.now.out else sent_ms
            before = self.now
            try:
                self.now = yield from beat(before)
            except HeartbeatExpired:
                self.lost = True
                return
            if self.now.version != before.version:
                self.until_ms = self.since_ms + RULES.belief_ms
