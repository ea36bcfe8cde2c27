"""Trace validation: each client's lane of a recorded run, replayed by the protocol's own `step`.

What a client heard (`heard`, with its clocks) goes in; what it asked and told must be what comes
out, and what the store recorded of each write must be the write that `step` sends.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from lockkit.errors import LossReason, clipped
from lockkit.events import STORE, Event
from lockkit.lab.verify.check.lanes import LOCK_NAME, LOCK_OPS, bare, name_of
from lockkit.lab.verify.check.verdict import Finding, Kind, Verdict, unknown
from lockkit.protocol.lease import notice_end, step
from lockkit.protocol.outcome import Applied, PreconditionFailed, Throttled, Unknown, WriteAnswer
from lockkit.protocol.policy import Policy
from lockkit.protocol.record import Record, decode, encode
from lockkit.protocol.state import (
    AcquireRequested,
    Action,
    ClaimLost,
    DeleteRecord,
    GiveUp,
    Granted,
    HeldByOther,
    Identity,
    LeaseLost,
    Now,
    Observation,
    Pause,
    Phase,
    ReadAnswered,
    ReadFailed,
    ReadRecord,
    Released,
    ReleaseRequested,
    RenewDue,
    Renewed,
    State,
    Tick,
    WriteAnswered,
    WriteRecord,
)
from lockkit.protocol.state import Event as Input

NAME = "the protocol's own steps"
REPORTED = {
    "held": Granted, "renewed": Renewed, "lost": LeaseLost, "released": Released,
    "waiting": HeldByOther,
}  # fmt: skip
ANSWERS: dict[str, WriteAnswer] = {
    "PreconditionFailed": PreconditionFailed(),
    "Throttled": Throttled(),
    "Unknown": Unknown("recorded"),
}
SHOWN = {
    "ReadRecord": "a read",
    "WriteRecord": "a write",
    "DeleteRecord": "a delete",
    "HeldByOther": "a wait",
}


class ProtocolDeparture(Exception):
    """A step in the history that differs from the protocol's, with the events that show it."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.because)
        self.finding = finding


def replay(events: Iterable[Event], policy: Policy = Policy()) -> Verdict:
    """Whether `lease.step`, given each client's answers, does exactly what the history shows.

    INVALID at the first event that `lease.step` would not have reported. UNKNOWN where the history
    lacks an answer, or the store's record lacks what a client read.
    """
    everything = list(events)
    truth = StoreRecord(everything)
    lanes: dict[str, ReplayLane] = {}
    findings: list[Finding] = []
    for each in everything:
        if each.who == STORE or any(each.who in (e.who for e in f.evidence) for f in findings):
            continue
        lane = lanes.setdefault(each.who, ReplayLane(each.who, policy, truth))
        try:
            lane.take(each)
        except ProtocolDeparture as departs:
            findings.append(departs.finding)
        except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
            because = f"{each.who}: the protocol has no step for this event here: {error}"
            findings.append(Finding(NAME, Kind.INVALID, because, (each,)))
    steps = sum(lane.steps for lane in lanes.values())
    for kind in (Kind.INVALID, Kind.UNKNOWN):
        for bad in (each for each in findings if each.kind is kind):
            return Verdict(kind, bad.because, bad.evidence, tuple(findings))
    if not steps:
        finding = unknown(NAME, "what any client of a lock was answered")
        return Verdict(finding.kind, finding.because, (), (finding,))
    clients = sum(1 for lane in lanes.values() if lane.steps)
    because = f"{steps} steps of {clients} clients, each of them what the protocol does"
    return Verdict(Kind.VALID, because, (), (Finding(NAME, Kind.VALID, because),))


def asks_for_lock(events: Iterable[Event]) -> bool:
    """Whether there is something to replay: the commits of group commit take no lock."""
    return any(each.kind == "request" and name_of(each["key"]) == LOCK_NAME for each in events)


class StoreRecord:
    """The store's record of the lock object: each version's content, each write's outcome."""

    def __init__(self, events: list[Event]) -> None:
        self.by_version: dict[str, Event] = {}
        self.by_attempt: dict[str, list[Event]] = {}
        for each in events:
            if each.who != STORE or each.kind != "request" or name_of(each["key"]) != LOCK_NAME:
                continue
            if each["applied"] and each["version"]:
                self.by_version[bare(each["version"])] = each
            if each["attempt"]:
                self.by_attempt.setdefault(str(each["attempt"]), []).append(each)


@dataclass(slots=True)
class ReplayLane:
    """One client: its state by `step`, and the requests and events that are still due."""

    who: str
    policy: Policy
    truth: StoreRecord
    identity: Identity | None = None
    state: State = field(default_factory=State)
    owed: list[Action] = field(default_factory=list)
    last_input: Event | None = None
    last_request: Event | None = None
    answer: Event | None = None
    handles: set[str] = field(default_factory=set)
    steps: int = 0
    number: int = 0
    """Of the last step, as its handle counts them."""

    def take(self, each: Event) -> None:
        match each.kind:
            case "heard":
                self._hear(each)
            case "ask" if _is_of_lease(each):
                self._ask(each)
            case "answer" if (
                self.last_request is not None and each["request"] == self.last_request["request"]
            ):
                self._answer(each)
            case kind if kind in REPORTED:
                self._check_report(each)
            case "started":  # events from before a kill may be recorded after it
                self.identity, self.owed, self.last_request = None, [], None

    # --- in ----------------------------------------------------------------------------------

    def _hear(self, each: Event) -> None:
        name = str(each["event"])
        if name == "ended":
            self._notice_end(each)
            return
        enough = name == "blind" and self.last_request is None  # a look that was put off, not sent
        left = [
            a for a in self.owed if not isinstance(a, HeldByOther) and not (enough and _looks(a))
        ]
        if left and self.identity is not None:
            self._depart(f"did not report {_shown(left[0])}, which comes before this", each)
        if name == "want":
            self._meet(each)
        if self.identity is None:
            raise ProtocolDeparture(unknown(NAME, f"how {self.who} began", each))
        if each["step"] != self.number + 1:
            self._depart(f"goes from its step {self.number} to step {each['step']}", each)
        self.number = each["step"]
        self.last_input, self.owed, self.steps = each, [], self.steps + 1
        if name == "forget":
            kept = self.state
            self.state = State(unsettled=kept.unsettled, floor=kept.floor, writes=kept.writes)
        elif name == "lose":
            assert self.state.grant is not None
            self.owed = [LeaseLost(self.state.grant.epoch, str(each["why"]), LossReason.STOPPED)]
            self.state = replace(self.state, phase=Phase.LOST, until_ms=None)
        else:
            event = self._input(name, each)
            self.state, actions = step(self.identity, self.state, event, self.policy)
            self.owed = [a for a in actions if not isinstance(a, Pause | ClaimLost)]
        self.last_request = self.answer = None

    def _notice_end(self, each: Event) -> None:
        """The lease ended by the clock, perhaps while a request was pending."""
        if each["step"] != self.number + 1:
            self._depart(f"goes from its step {self.number} to step {each['step']}", each)
        self.number, self.last_input, self.steps = each["step"], each, self.steps + 1
        now = Now(each["boot_ms"], each["wall_ms"])
        self.state, ended = notice_end(self.state, now)
        self.owed = [*ended, *self.owed]

    def _meet(self, each: Event) -> None:
        identity = Identity(each["owner"], each["ttl_ms"], each["holder"], each["handle"])
        if self.identity == identity:
            return
        if identity.handle in self.handles:
            raise ProtocolDeparture(unknown(NAME, f"which of {self.who}'s handles did what", each))
        self.handles.add(identity.handle)
        self.identity, self.state, self.number = identity, State(), each["step"] - 1

    def _input(self, name: str, each: Event) -> Input:
        now = Now(each["boot_ms"], each["wall_ms"])
        match name:
            case "want":
                return AcquireRequested(now, each["floor"])
            case "saw":
                return self._saw(each, now)
            case "blind":
                return ReadFailed(now, "")
            case "answered":
                return WriteAnswered(now, self._answered(each))
            case "tick":
                return Tick(now)
            case "beat":
                return RenewDue(now, each.get("floor", 0))
            case "quit":
                return ReleaseRequested(now)
            case "give up":
                return GiveUp(now)
            case _:
                raise ValueError(f"no event of the protocol: {name[:40]!r}")

    def _saw(self, each: Event, now: Now) -> ReadAnswered:
        self._check_answer(each, {"missing": "Missing", "unchanged": "NotModified"})
        if each["outcome"] == "unchanged":
            return ReadAnswered(now, None, each["date_ms"])
        if each["outcome"] == "missing":
            return ReadAnswered(now, Observation(None, None))
        wrote = self.truth.by_version.get(bare(each["version"]))
        if wrote is None or "body" not in wrote.data:
            raise ProtocolDeparture(
                unknown(NAME, f"what the lock object held when {self.who} read it", each)
            )
        record = decode(json.dumps(wrote["body"]).encode())
        return ReadAnswered(
            now, Observation(each["version"], record, each["modified_ms"], each["date_ms"])
        )

    def _answered(self, each: Event) -> WriteAnswer:
        self._check_answer(each, {})
        if each["outcome"] == "Applied":
            return Applied(each["version"])
        return ANSWERS[each["outcome"]]

    def _check_answer(self, each: Event, names: dict[str, str]) -> None:
        """Check that the recorded answer is the one that the client received."""
        if self.last_request is None:
            self._depart("got an answer without a request", each)
        if each["outcome"] == "Unknown" and (self.answer is None or _failed(self.answer)):
            return  # an error, which a patient client takes for silence
        if self.answer is None:
            self._depart("used an answer that did not come", each)
        outcome = names.get(each["outcome"], "Found" if each["event"] == "saw" else each["outcome"])
        version = each.get("version", "") if outcome in ("Applied", "Found") else ""
        if self.answer["outcome"] != outcome or (version and self.answer["version"] != version):
            self._depart("used another answer than the one that came", self.answer, each)

    # --- out ---------------------------------------------------------------------------------

    def _ask(self, each: Event) -> None:
        action = self._next(each, ReadRecord, WriteRecord, DeleteRecord)
        out = self.state.out
        op = out.purpose.value if out is not None and not isinstance(action, ReadRecord) else "look"
        attempt = action.record.attempt if isinstance(action, WriteRecord) else ""
        if (each["op"], each["attempt"]) != (op, attempt):
            sends = f"sent {each['op']!r}, and the protocol sends {op!r} {attempt}"
            self._depart(sends, each)
        self.last_request = each
        if isinstance(action, WriteRecord):
            for request in self.truth.by_attempt.get(attempt, ()):
                self._sent(action, each, request)

    def _sent(self, action: WriteRecord, ask: Event, request: Event) -> None:
        """Check that the store received what `step` sends, under its condition."""
        condition = "if-absent" if action.over is None else f"if-version {bare(action.over)}"
        if str(request["condition"]).replace('"', "") != condition:
            self._depart(f"wrote {request['condition']!r}, not {condition!r}", ask, request)
        if "body" in request.data and request["body"] != json.loads(encode(action.record)):
            self._depart("wrote another record than the protocol does", ask, request)

    def _answer(self, each: Event) -> None:
        self.answer = each
        assert self.last_request is not None
        recorded = self.truth.by_attempt.get(str(self.last_request["attempt"]), [])
        if each["outcome"] == "Applied" and recorded:
            done = [bare(request["version"]) for request in recorded if request["applied"]]
            if bare(each["version"]) not in done:
                self._depart("got an answer for a write that was not done", each, *recorded[:2])

    def _check_report(self, each: Event) -> None:
        action = self._next(each, REPORTED[each.kind])
        match action:
            case Granted(epoch) | Renewed(epoch):
                same = (each["epoch"], bare(each["version"])) == (epoch, bare(self.state.version))
            case LeaseLost(epoch):
                same = each["epoch"] == epoch
            case Released(epoch, proven):
                same = (each["epoch"], each["proven"]) == (epoch, proven)
            case HeldByOther(Record(owner=owner, epoch=epoch)):
                same = (each["epoch"], each["owner"]) == (epoch, clipped(owner, 256))
            case _:
                same = True
        if not same:
            self._depart(f"reported {each.kind!r} in another way than the protocol does", each)

    def _next(self, each: Event, *kinds: type[Any]) -> Action:
        """The next event that `step` returns. Waiting is reported once for each rival."""
        while self.owed and isinstance(self.owed[0], HeldByOther) and HeldByOther not in kinds:
            self.owed.pop(0)
        if self.identity is None:
            raise ProtocolDeparture(unknown(NAME, f"what answers {self.who} had before", each))
        if not self.owed or not isinstance(self.owed[0], kinds):
            due = _shown(self.owed[0]) if self.owed else "nothing"
            self._depart(f"reported {each.kind!r}, and the protocol reports {due} here", each)
        return self.owed.pop(0)

    def _depart(self, what: str, *evidence: Event) -> NoReturn:
        shown = (self.last_input, *evidence) if self.last_input is not None else evidence
        raise ProtocolDeparture(Finding(NAME, Kind.INVALID, f"{self.who} {what}", tuple(shown)))


def _is_of_lease(ask: Event) -> bool:
    """Whether a request is the protocol's."""
    of_lease = ask["op"] == "look" or ask["op"] in LOCK_OPS
    return of_lease and name_of(ask["key"]) == LOCK_NAME


def _failed(answer: Event) -> bool:
    return str(answer["outcome"]) == "refused"


def _looks(action: Action) -> bool:
    return isinstance(action, ReadRecord)


def _shown(action: Action) -> str:
    name = type(action).__name__
    return SHOWN.get(name, name.lower())
