"""A world in which each request and each answer takes time on its way, and all else takes none."""

from __future__ import annotations

from dataclasses import dataclass

from lockkit.lab.verify.sim.schedule import Mover
from lockkit.lab.verify.sim.task import Task, TaskPhase
from lockkit.lab.verify.sim.world import SimWorld


@dataclass(slots=True)
class DistantWorld(SimWorld):
    """Half of `latency_ms` passes until the store decides a request, the rest until its answer."""

    latency_ms: float = 0.0

    def _ready(self) -> list[Mover]:
        now_ms = self.time.now_ms
        ready = SimWorld._ready(self)
        return [e for e in ready if e is not self.passing and self._arrives_ms(e) <= now_ms]

    def _due(self) -> list[float]:
        now_ms = self.time.now_ms
        arriving = [self._arrives_ms(each) for each in self.tasks]
        return [*SimWorld._due(self), *(at_ms for at_ms in arriving if at_ms > now_ms)]

    def _arrives_ms(self, mover: Mover) -> float:
        """When the message that a task waits for arrives; 0 if it waits for none."""
        if isinstance(mover, Task):
            match mover.phase:
                case TaskPhase.SENT:
                    return mover.at_ms + self.latency_ms / 2
                case TaskPhase.ANSWERED:
                    return mover.at_ms + self.latency_ms
                case _:
                    pass
        return 0.0
