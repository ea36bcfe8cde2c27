"""Two writers and one lock, with chosen times: the lease, a stall, a wrong clock, the latency.

W1 acquires the lock and commits once. It is paused between its check of the lease and its write.
W2 wants the lock meanwhile, and commits, too. They run the procedures that `Lock` runs.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass

from lockkit.events import Event, event
from lockkit.lab.verify.check import check
from lockkit.lab.verify.check.verdict import Verdict
from lockkit.lab.verify.mutants import Invariant
from lockkit.lab.verify.sim.distant import DistantWorld
from lockkit.lab.verify.sim.lease import RESOURCE_KEY, LeaseRun, LeaseSession
from lockkit.lab.verify.sim.memory_store import PROFILES
from lockkit.lab.verify.sim.task import Violated
from lockkit.lab.verify.wrong_rules import CommitGuard
from lockkit.lock import grant
from lockkit.protocol.outcome import Applied
from lockkit.protocol.policy import Expiry, Policy
from lockkit.runtime import Procedure, Put, Sleep

MOVES_MAX = 400
ENDS_MS = 60_000
"""A run that has not come to its end by then is cut off."""
WORK_S = 1.0
"""From the grant to the commit, and from there to the release."""
LATER_S = 0.5
"""W2 starts so much later than W1."""
RENEWALS = 3
"""So often a lease is renewed while it lasts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The times of a run, and the two rules that depend on them."""

    lease_s: float = 6.0
    stall_s: float = 0.0
    """How long W1 is paused between its check and its write."""
    skew_s: float = 0.0
    """How far W2's wall clock is ahead of W1's and the store's."""
    latency_s: float = 0.1
    """From the sending of a request to its answer."""
    expiry: str = "store"
    """Which clock ends a lease: store, wall or observed."""
    fence: bool = True


HARM: dict[str, str] = {
    Invariant.ONE_BELIEVER: "Both count on the lock at once. The run stops here",
    Invariant.NO_STALE_WRITE: "W1's late write replaced W2's commit, which is lost",
    Invariant.NO_LOST_UPDATE: "W2's commit replaced W1's late one, which is lost",
}
"""A broken invariant in the words of the lesson."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOutcome:
    """What happened to the two commits."""

    timing: Timing
    events: tuple[Event, ...]
    commits: tuple[Event, ...]
    """Of each writer that sent its commit: `published` or `refused`."""
    verdict: Verdict
    violation: str
    """The rule that was broken, and how; "" if none was."""

    @property
    def kind(self) -> str:
        return "INVALID" if self.violation else self.verdict.kind.value

    def fate(self, who: str) -> str:
        """What became of this writer's commit."""
        kinds = [each.kind for each in self.commits if each.who == who]
        words = {"published": "is accepted", "refused": "is refused"}
        return f"{who}'s commit {words[kinds[0]]}" if kinds else f"{who} has not committed"

    def __str__(self) -> str:
        if not (self.commits or self.violation):
            return ("Neither commits: a lease that is so short for the latency ends before its "
                    "holder can write. Never two holders.")  # fmt: skip
        return f"{self.fate('W1')}; {self.fate('W2')}. {self.violation or 'Never two holders'}."


@dataclass(slots=True)
class TimedRun(LeaseRun):
    """W1 and W2 of one `Timing`."""

    stall_ms: float = 0.0
    trip_ms: float = 0.0

    def life(self, session: LeaseSession) -> Procedure[None]:
        client = session.client
        if session.node.name == "W2":
            yield Sleep(LATER_S)
        yield from self.in_turn(
            session, grant.acquire(client, None, hold=lambda: self.renewal(session))
        )
        yield Sleep(WORK_S)
        yield from self.commit(session)
        yield Sleep(WORK_S)
        yield from self.in_turn(session, grant.release(client))

    def before_the_write(self, session: LeaseSession) -> Procedure[None]:
        if self.stall_ms and session.node.name == "W1":
            node = session.node  # the whole process stops, its renewals too
            node.stalled, node.stalled_ms = True, self.world.time.now_ms + self.stall_ms
            self.world.record(node.name, "stalled", {"pid": node.life, "why": "the slider"})
            yield Sleep(0)

    def commits_made(self) -> list[Event]:
        """The answers to the writers' commits, for the picture."""
        marks, first = [], ""
        for each in self.world.memory_store.truth:
            request = each.request
            if isinstance(request, Put) and request.key == RESOURCE_KEY:
                answered_ms = min(each.began_ms + self.trip_ms, self.world.time.now_ms)
                about = {"instant": "", "epoch": json.loads(request.body)["epoch"]}
                kind = "published" if isinstance(each.answer, Applied) else "refused"
                if kind == "refused":
                    about |= {"error": "CommitConflict", "why": f"{first}'s commit: it was first"}
                else:
                    first = each.client
                marks.append(event(answered_ms, each.client, kind, **about))
        return marks


def play(timing: Timing) -> TimedOutcome:
    """The run of these times; the same times give the same run. `ValueError` for another expiry."""
    world = DistantWorld(
        "timing", MOVES_MAX, PROFILES["s3"], spread_ms=0, latency_ms=timing.latency_s * 1000
    )
    fence = CommitGuard.CAS if timing.fence else CommitGuard.OFF
    run = TimedRun(
        world, Policy(expiry=Expiry(timing.expiry)), fence, ttl_ms=round(timing.lease_s * 1000),
        renew_ms=timing.lease_s * 1000 / RENEWALS, stall_ms=timing.stall_s * 1000,
        trip_ms=world.latency_ms,
    )  # fmt: skip
    run.watch()
    if not timing.fence:
        world.memory_store.judges[RESOURCE_KEY] = run.admits
    violation = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the clocks; it is in the history
        try:
            for name, skew_s in (("W1", 0.0), ("W2", timing.skew_s)):
                node = world.node(name, offset_ms=round(skew_s * 1000))
                world.spawn(node, run.live(node))
            for _ in range(MOVES_MAX):
                if world.tasks and world.time.now_ms < ENDS_MS:
                    world.play(1)
        except Violated as violated:
            violation = HARM.get(violated.invariant, str(violated))
    events = tuple(world.history())
    return TimedOutcome(
        timing=timing, events=events, commits=tuple(run.commits_made()), verdict=check(events),
        violation=violation,
    )  # fmt: skip
