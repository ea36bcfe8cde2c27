"""A simulated writer's heartbeat: the `HeartbeatSchedule` of a real one, and a task instead of its
thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lockkit.lab.verify.sim.task import Node, WaitUntil
from lockkit.lab.verify.sim.world import SimWorld
from lockkit.runtime import Procedure, Sleep
from lockkit.table.occ.heartbeat import FirstBeat, HeartbeatSchedule, HeartbeatState
from lockkit.table.occ.heartbeat_rules import HeartbeatRules

RULES = HeartbeatRules(interval_ms=1_500)
BEATS_MAX = 400


def first_state(instant: str, node: Node, rules: HeartbeatRules = RULES) -> HeartbeatState:
    return HeartbeatState(instant, rules.ttl_ms, f"{node.name}.{node.life}")


@dataclass(slots=True)
class SimHeartbeat:
    """Beats until it is stopped; knows until when other clients take its writer for alive."""

    world: SimWorld
    node: Node
    beats: HeartbeatSchedule
    over: bool = False
    beating: bool = False
    """Whether a beat is under way."""

    @classmethod
    def of(
        cls, instant: str, world: SimWorld, node: Node, *, quiet_since_ms: int | None = None,
        rules: HeartbeatRules = RULES,
    ) -> SimHeartbeat:  # fmt: skip
        now = first_state(instant, node, rules)
        return cls(world, node, HeartbeatSchedule(now, rules, node.clock, quiet_since_ms))

    def begin(self, begun: FirstBeat | None = None) -> Procedure[None]:
        """Send the first beat and prove it, unless it has begun; then one in each interval."""
        yield from self.beats.start(begun)
        self.go_on(self.beats.interval_s)

    def go_on(self, wait_s: float) -> None:
        """Send the next beat after this delay; then one beat in each interval."""
        self.world.spawn(self.node, self._beat(wait_s), f"{self.node.name} beats")

    def believes(self) -> bool:
        """Whether its writer still believes that it is alive, in true time."""
        until_ms = self.node.clock.true_ms(self.beats.until_ms)
        return not (self.over or self.beats.lost) and self.world.time.now_ms < until_ms

    def assert_alive(self) -> None:
        self.beats.assert_alive()

    def stop(self) -> None:
        self.over = True

    def finished(self) -> Procedure[None]:
        self.stop()
        if self.beats.quiet_since_ms is not None:
            yield from self._no_beat_under_way()
        yield from self.beats.finish()

    def left(self) -> Procedure[None]:
        self.stop()
        yield from self.beats.leave()

    def given_up(self) -> Procedure[None]:
        self.stop()
        yield from self._no_beat_under_way()
        yield from self.beats.give_up()

    def _no_beat_under_way(self) -> Procedure[None]:
        pause: Any = WaitUntil(lambda: not self.beating)
        yield pause

    def _beat(self, first_s: float) -> Procedure[None]:
        wait_s: float | None = first_s
        for _ in range(BEATS_MAX):
            if wait_s is None:
                return
            yield Sleep(wait_s)
            if self.over:
                return
            self.beating = True
            wait_s = yield from self.beats.beat()
            self.beating = False
