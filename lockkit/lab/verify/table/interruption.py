"""What interrupts an attempt: Ctrl-C at any of its requests, or an outage of its network."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from lockkit.errors import NoAnswer
from lockkit.lab.verify.sim.fault_profile import FaultKind
from lockkit.lab.verify.sim.task import LateWrite, Node
from lockkit.lab.verify.sim.world import SimWorld
from lockkit.lab.verify.table.reader import Completed
from lockkit.protocol.outcome import Unknown
from lockkit.runtime import Delete, Get, List, Parallel, Procedure, Put, Sleep, relay

REQUESTS_MAX = 40
"""The latest request at which an attempt is cut short; early ones are likelier."""
AT_ONCE, HANGS_MAX, HANG_PAUSES_S = 0.3, 60, (0.0, 0.1)
"""How often it is at the first request, and for how many moves the process may hang then."""
OUTAGE = 0.3
"""How often it is an outage, where requests may fail at all."""
OUTAGE_MS, LATE_MS = 10_000.0, 8_000.0
NO_ANSWER_S = 0.1
"""How long a request waits for its answer, next to a lease."""
_COUNTED = Get | Put | List | Delete | Sleep
T = TypeVar("T")


class CtrlC(KeyboardInterrupt):
    """The interrupt of a simulated process."""


class Shielded(Generator[Any, Any, T]):
    """A procedure in a separate thread, which Ctrl-C does not reach."""

    def __init__(self, way: Procedure[T]) -> None:
        self._way = way

    def send(self, answer: Any) -> Any:
        return self._way.send(answer)

    def throw(self, *error: Any) -> Any:
        return self._way.throw(*error)


@dataclass(slots=True)
class Interruption:
    """One interrupt or outage of one attempt.

    An interrupted request was not sent, or it was carried out and its answer was lost, or it is
    still on its way (where writes may be late). Of procedures that run in parallel each ends with
    the request that it has sent, as in `lockkit.runtime.run`.
    """

    world: SimWorld
    node: Node
    left: int
    """Requests until it strikes."""
    commits: Sequence[Completed]
    """Those that are visible: what it interrupts may wait until there is one more."""
    is_outage: bool = False
    until_ms: float = 0.0
    struck: bool = False
    raised: bool = False
    request_key: str = ""
    """The requested file that it was about to create."""

    @classmethod
    def drawn(cls, world: SimWorld, node: Node, commits: Sequence[Completed]) -> Interruption:
        share = 0.0 if world.dice.random() < AT_ONCE else world.dice.random() ** 2
        can_fail = world.fault_profile.writes > 0
        return cls(
            world, node, 1 + int(share * REQUESTS_MAX), commits,
            is_outage=can_fail and world.dice.random() < OUTAGE,
        )  # fmt: skip

    def through(self, way: Procedure[T]) -> Procedure[T]:
        """The same procedure, until it is interrupted."""
        return relay(way, self._ask)

    def _ask(self, request: Any) -> Procedure[Any]:
        if isinstance(request, Parallel):
            answer = yield self._beside(request)
        else:
            answer = yield from self._one(request)
        if self.struck and not self.is_outage and not self.raised:
            self.raised = True
            self.world.reached.add("interrupt")
            yield from self._hangs()
            raise CtrlC
        return answer

    def _hangs(self) -> Procedure[None]:
        """A process may be slow to end: here until others did what could make its end harmful.

        That is a further commit; after a request for an instant, one that follows once another
        writer has taken that instant.
        """
        dice = self.world.dice
        if not self.request_key and dice.random() < 0.5:
            return
        pause_s = dice.choice(HANG_PAUSES_S)
        seen = len(self.commits)
        for _ in range(HANGS_MAX):
            if self.request_key:
                instant = self.request_key.rpartition("/")[2].partition(".")[0]
                taken = self.request_key in self.world.memory_store.objects
                later = [each.instant for each in self.commits if each.instant >= instant]
                if instant in later or (taken and later):
                    return
            elif len(self.commits) > seen:
                return
            yield Sleep(pause_s * dice.random())

    def _beside(self, request: Parallel) -> Parallel:
        return Parallel(tuple(
            each if isinstance(each, Shielded) else self._part(each) for each in request.procedures
        ))  # fmt: skip

    def _part(self, way: Procedure[Any]) -> Procedure[Any]:
        """One of several parallel procedures: it ends once the attempt is interrupted."""
        try:
            request = way.send(None)
            while True:
                if self._is_interrupted():
                    way.close()
                    return None
                try:
                    if isinstance(request, Parallel):
                        answer: Any = yield self._beside(request)
                    else:
                        answer = yield from self._one(request)
                except GeneratorExit:
                    way.close()
                    raise
                except Exception as error:  # noqa: BLE001 - handed to the procedure
                    request = way.throw(error)
                else:
                    if self._is_interrupted():
                        way.close()
                        return None
                    request = way.send(answer)
        except StopIteration as done:
            return done.value

    def _is_interrupted(self) -> bool:
        return self.struck and not self.is_outage and not self.raised

    def _one(self, request: Any) -> Procedure[Any]:
        if self.world.time.now_ms < self.until_ms:
            return (yield from self._unanswered(request))
        if self.struck or not isinstance(request, _COUNTED):
            return (yield request)
        self.left -= 1
        if self.left:
            return (yield request)
        self.struck = True
        if self.is_outage:
            self.world.reached.add("outage")
            self.until_ms = self.world.time.now_ms + self.world.dice.random() * OUTAGE_MS
            return (yield from self._unanswered(request))
        way = self.world.dice.random()
        if isinstance(request, Put) and request.key.endswith(".requested"):
            self.request_key, way = request.key, way / 2
        if way < 0.3:
            return None
        if way < 0.6 and isinstance(request, Put | Delete) and self._may_be_late():
            self._send_late(request)
            return None
        return (yield request)

    def _unanswered(self, request: Any) -> Procedure[Any]:
        if isinstance(request, Put | Delete) and self._may_be_late():
            if self.world.dice.random() < 0.5:
                self._send_late(request)
        if not isinstance(request, _COUNTED):
            return (yield request)
        yield Sleep(request.seconds if isinstance(request, Sleep) else NO_ANSWER_S)
        if isinstance(request, List):
            raise NoAnswer("the network is down")
        if isinstance(request, Get | Put | Delete):
            return Unknown("the network is down")
        return None

    def _may_be_late(self) -> bool:
        return (
            self.world.fault_profile.writes > 0
            and FaultKind.LATE in self.world.fault_profile.of_writes
        )

    def _send_late(self, request: Put | Delete) -> None:
        now_ms, dice = self.world.time.now_ms, self.world.dice
        at_ms = now_ms + dice.random() * LATE_MS
        self.world.flying.append(LateWrite(self.node.name, request, now_ms, at_ms, dice.random()))
