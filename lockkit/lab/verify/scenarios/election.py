"""The scenario `election`: nodes campaign, lead, renew, write, resign, collect, stall and die.

Each runs the same `Candidate` as `Election`. The run is judged as it proceeds, by true time,
which no node can read.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

from lockkit.errors import NoAnswer, Unanswered
from lockkit.lab.verify.mutants import Mutant, catalogue
from lockkit.lab.verify.planting import answering
from lockkit.lab.verify.sim import SimScenario
from lockkit.lab.verify.sim.fault_injection import stall
from lockkit.lab.verify.sim.lease import TTL_MS, world_of
from lockkit.lab.verify.sim.memory_store import DecidedRequest, StoredObject
from lockkit.lab.verify.sim.run import SeedRun
from lockkit.lab.verify.sim.task import Node, TaskPhase, Violated
from lockkit.protocol.outcome import Unknown, Version, WriteAnswer
from lockkit.protocol.policy import Expiry, Policy
from lockkit.protocol.state import Identity
from lockkit.recipes.election.candidate import Candidate, Term, renewed
from lockkit.recipes.election.epochs import PREFIX, collect, epoch_key
from lockkit.recipes.errors import NotLeader
from lockkit.recipes.guarded import write_guarded
from lockkit.runtime import Get, Procedure, Sleep

RESOURCE_KEY = "resource.json"
STEPS = 300
TERMS_MAX, LOOKS_MAX, BEATS_MAX = 40, 12, 5
STALLS = 0.1
"""The share of the writes of epochs at which a node is paused."""
EARLY_MS = 2_500
ONE_LEADER, ONE_PER_EPOCH = "one leader at a time", "an epoch has one leader, and comes once"
NO_SELF_WAIT = "no client waits for its own epoch"
NEVER_BACK = "what a later leader wrote is never replaced by an earlier one"
EXPECTED = (Unanswered, NoAnswer, NotLeader)


@dataclass(slots=True, eq=False)
class ElectionSession:
    """One run of a node's process, and what it believes."""

    node: Node
    candidate: Candidate
    until_true_ms: float = 0.0


@dataclass(slots=True)
class ElectionRun(SeedRun):
    """All nodes of one world, and the invariants between them."""

    policy: Policy
    sessions: dict[str, ElectionSession] = field(default_factory=dict)
    led: set[int] = field(default_factory=set)
    written: int = 0
    """The epoch of the last write of the resource."""

    # --- what must hold --------------------------------------------------------------------------

    def on_write(self, decided: DecidedRequest, after: StoredObject | None) -> None:
        key = getattr(decided.request, "key", "")
        if key == RESOURCE_KEY and after is not None:
            epoch = json.loads(after.body)["epoch"]
            if epoch < self.written:
                raise Violated(NEVER_BACK, f"epoch {epoch} wrote after epoch {self.written}")
            self.written = epoch
        elif key.startswith(PREFIX):
            if after is None:
                self.world.reached.add("collected")
            elif decided.before == "" and any(epoch_key(each) == key for each in self.led):
                self.world.reached.add("created again")
            if self.world.fault_profile.nodes and self.world.dice.random() < STALLS:
                self._at_the_worst_moment()

    def _at_the_worst_moment(self) -> None:
        """Stall a node: one that has just read an epoch, if there is one."""
        waiting = [each for each in self.world.tasks if each.phase is TaskPhase.ANSWERED]
        readers = [each.node for each in waiting if isinstance(each.request, Get)]
        stall(self.world, self.world.dice.choice(readers or self.world.nodes))

    def on_event(self, session: ElectionSession, kind: str, data: dict[str, Any]) -> None:
        """A candidate reports what it believes from now on."""
        now_ms, name = self.world.time.now_ms, session.node.name
        match kind:
            case "held" | "renewed":
                term = session.candidate.term
                assert term is not None and term.until_ms is not None
                until_true_ms = session.node.clock.true_ms(term.until_ms)
                data["until_ms"] = until_true_ms
                for other in self.sessions.values():
                    if other is not session and other.until_true_ms > now_ms:
                        raise Violated(ONE_LEADER, f"{name} and {other.node.name} lead at once")
                session.until_true_ms = until_true_ms
                if kind == "held":
                    self._elected(term.epoch, name)
            case "lost" | "released":
                session.until_true_ms = 0.0
                if kind == "released" and data["proven"]:
                    self.world.reached.add("resigned")
            case "waiting":
                self._waits(session, data["epoch"])
            case "note" if "too late" in data["text"]:
                self.world.reached.add("created too late")

    def _elected(self, epoch: int, name: str) -> None:
        if self.led and epoch <= max(self.led):
            raise Violated(ONE_PER_EPOCH, f"{name} leads in {epoch}, after {max(self.led)}")
        before = self._standing(epoch - 1)
        if before is not None and not before["expired"]:
            self.world.reached.add("takeover")
        self.led.add(epoch)

    def _waits(self, session: ElectionSession, epoch: int) -> None:
        record = self._standing(epoch)
        handle = session.candidate.identity.handle
        if record and not record["expired"] and record["attempt"].startswith(f"{handle}/"):
            raise Violated(NO_SELF_WAIT, f"{session.node.name} waits for its own epoch {epoch}")

    def _standing(self, epoch: int) -> dict[str, Any] | None:
        stored = self.world.memory_store.objects.get(epoch_key(epoch))
        return None if stored is None else json.loads(stored.body)

    def crashed(self, node: Node) -> None:
        self.sessions.pop(node.name, None)

    # --- what they do ----------------------------------------------------------------------------

    def live(self, node: Node) -> Procedure[None]:
        """Two with one name are two candidates; only their attempts differ."""

        def record(kind: str, **data: Any) -> None:
            try:
                self.on_event(session, kind, data)
            finally:  # what breaks an invariant is in the history, too
                self.world.record(node.name, kind, data)

        name = "N" if node.clock.offset_ms % 3 == 0 else node.name
        identity = Identity(name, TTL_MS, node.name, f"{node.name}.{node.life}")
        session = ElectionSession(node, Candidate(identity, node.clock, self.policy, record))
        self.sessions[node.name] = session
        return self.life(session)

    def life(self, session: ElectionSession) -> Procedure[None]:
        dice = self.world.dice.random
        for _ in range(TERMS_MAX):
            try:
                if (yield from self.campaign(session)):
                    yield from self.lead(session)
                    if dice() < 0.8:
                        yield from session.candidate.resign()
            except EXPECTED:
                pass
            yield Sleep(dice() ** 4 * 3)

    def campaign(self, session: ElectionSession) -> Procedure[bool]:
        """Campaign with a random timeout; sometimes give up on the way."""
        dice = self.world.dice.random
        for _ in range(LOOKS_MAX):
            if (yield from session.candidate.confirm()):
                return True
            if dice() < 0.1:
                break
            over_ms, wait_s = session.candidate.over_ms, 0.1 + 3 * dice() * dice()
            if over_ms is not None and dice() < 0.7:  # when it is over, or a little before
                early_ms = dice() * EARLY_MS if dice() < 0.5 else -1
                wait_s = max(0.01, (over_ms - early_ms - session.node.clock.boot_ms()) / 1000)
            yield Sleep(wait_s)
        return False

    def lead(self, session: ElectionSession) -> Procedure[None]:
        """Write and renew, a random number of times, as long as the node believes."""
        dice, candidate = self.world.dice.random, session.candidate
        if dice() < 0.6:
            yield from collect(1 + int(dice() * 1.5))
        for _ in range(BEATS_MAX):
            term = candidate.leads()
            if term is None:
                return
            if dice() < 0.5:
                yield from write_guarded(RESOURCE_KEY, lambda was: (was or 0) + 1, term.epoch)
            if dice() < 0.25:
                return
            left_ms = (term.until_ms or 0) - session.node.clock.boot_ms()
            wait_ms = left_ms - 20 if dice() < 0.3 else dice() * dice() * TTL_MS * 1.2
            yield Sleep(max(0.0, wait_ms / 1000))
            yield from candidate.renew()


def set_up(seed: str, steps: int, mutant: Mutant | None) -> ElectionRun:
    dice = random.Random(f"election {seed}")
    world, policy, off_ms = world_of(dice, seed, steps, mutant)
    run = ElectionRun(world, policy)
    run.watch()
    run.processes(dice, "N", off_ms)
    return run


SCENARIO = SimScenario(
    "election", "nodes elect a leader by epochs, which renews, writes and resigns", STEPS, set_up,
    ("takeover", "resigned", "collected", "created again", "created too late", "stall", "restart"),
)  # fmt: skip

def leads(candidate: Candidate, epoch: int, attempt: str, began_ms: int) -> None:
    """The create counts as done."""
    candidate.lead(epoch, "", attempt, began_ms)


def is_beaten(candidate: Candidate, _epoch: int, attempt: str, _began_ms: int) -> None:
    """The create counts as lost."""
    candidate.claims.discard(attempt)


def renewed_unread(
    candidate: Candidate, term: Term, answer: WriteAnswer, sent_ms: int
) -> Procedure[Version | None]:
    if isinstance(answer, Unknown):
        return term.version
    return (yield from renewed(candidate, term, answer, sent_ms))


def highest(candidate: Candidate, _term: Term) -> Procedure[tuple[int, Version]]:
    observation = yield from candidate.observe()
    return candidate.known, observation.version or ""


_RULES = "lockkit.recipes.election.candidate"
_STORE, _WALL = {"expiry": Expiry.STORE}, {"expiry": Expiry.WALL}

MUTANTS = catalogue(
    Mutant("collect highest", "the highest epoch is collected too, so its number comes again",
           {"lockkit.recipes.election.epochs:past": lambda epochs, _keep: epochs}),
    Mutant("create_412 ours", "412 to a create is read as our own retry",
           {f"{_RULES}:refused": leads}),
    Mutant("create_412 lost", "412 to a create is read as a lost race",
           {f"{_RULES}:refused": is_beaten}),
    Mutant("create_unknown ours", "a create without an answer counts as won",
           {f"{_RULES}:unanswered": leads}),
    Mutant("create_unknown lost", "a create without an answer counts as lost",
           {f"{_RULES}:unanswered": is_beaten}),
    Mutant("renew_unknown ours", "a renewal without an answer counts as done",
           {f"{_RULES}:renewed": renewed_unread}),
    Mutant("recognise", "an epoch is recognised by its owner's name",
           {f"{_RULES}:is_claimed": lambda record, identity, _: record.owner == identity.owner
            and not record.expired}),
    Mutant("look_again", "a create counts at once, although its epoch may have ended long ago",
           {f"{_RULES}:is_over": answering(False)}),
    Mutant("in_time", "a renewal that was answered late revives what had ended",
           {f"{_RULES}:may_extend": lambda _: True}),
    Mutant("judge_at_send", "the result of a slow read is judged by the time of its answer",
           {f"{_RULES}:judged_at": lambda _sent, judged_at: judged_at}, policy=_WALL),
    Mutant("resign_own", "a resignation ends the highest epoch, even another leader's",
           {f"{_RULES}:to_resign": highest}),
    Mutant("count_from_send", "the validity is counted from the answer",
           {f"{_RULES}:counted_from_ms": lambda _sent_ms, now_ms: now_ms}),
    Mutant("drift", "no drift is added, and clocks differ by one second",
           policy={**_WALL, "drift_ms": 0}),
    Mutant("skew", "clocks differ by three seconds, and the drift is one", policy=_WALL,
           skew_ms=3000),
    Mutant("slack", "no slack for a store whose front ends differ by one second",
           policy={**_STORE, "slack_ms": 0}),
    Mutant("margin", "a leader counts on its epoch until the very end",
           policy={**_WALL, "margin_ms": 0}),
    Mutant("fence", "a leader's write does not compare epochs: a slow leader overwrites",
           {"lockkit.recipes.guarded:is_late": lambda _before, _epoch: False}),
)  # fmt: skip
