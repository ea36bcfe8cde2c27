"""The story of a history: requests joined with their answers, grants, beliefs and stalls.

Truth (the store's record) and belief (a client's requests and answers) are joined here: a write is
recognised by its `attempt`, a read by its client, key and time. Events may arrive slightly out of
order, since several processes write them; a join is tried again when its other half arrives.

Pure: no widgets, no clock, no I/O. Appending an event costs the same however long the history is,
and every list is a ring, so that a soak of hours does not grow the notebook's kernel.

One file because every list of the model is filled by the same walk over the events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice

from lockkit.events import STORE, Event
from lockkit.lab.verify.check.lanes import decisions, offered
from lockkit.stores.endpoint import agent

RING = 5_000
"""Requests that are kept; older ones leave the picture (the history file keeps everything)."""
PENDING_MAX = 256
APPLIED = "applied"
"""The outcome of a write that its client was told is done."""
REFUSALS = {409: "precondition_failed", 412: "precondition_failed", 429: "throttled"}
FREES = ("release", "delete")
"""The writes after which nobody holds the lock."""
JOIN_SLACK_MS = 50.0
"""How far two recorders' timestamps of one request may differ on one machine."""

FAULT_SLACK_MS = 1_000.0
STRUCK_MAX = 1_000
"""Among so many requests, the newest ones, is the one that a fault struck."""
SPARK = "spark"
"""The shared Spark server's process: no client of the lock, so it has no lane."""

OWN_LANES = {"lock": "lock (client)", "table": "table (client)"}
"""The picture's own lanes, and the names of clients that are called so."""
READS = {"get", "head", "list"}
WELL_READ = ("found", "missing", "not_modified")
SIMULATED = {
    "lost before it was applied": "request lost", "applied late": "request held back",
    "answer lost after it was applied": "answer lost",
}  # fmt: skip
"""The simulator's faults of a write that is lost or late; their names are part of its traces."""
STRUCK = {
    "drop": "{} dropped", "reset": "{} cut off", "hang": "{} withheld", "delay": "{} delayed",
    "late": "request held back", "status": "an error sent instead of the answer",
}  # fmt: skip
"""What the proxy did to a request, or to its answer, in words."""
SILENCING = ("dropped", "cut off", "withheld", "instead of the answer", "answer lost",
             "(after the store decided)")  # fmt: skip
"""How the words of a fault end after which the client does not know what the store did."""
SCRATCH = "/conditions.json"
"""The object on which a client tests that its store enforces write conditions."""
RESOURCE = "resource.json"
"""What simulated clients replace under the lock, in place of a table."""
COMPLETED = (".commit", ".deltacommit", ".replacecommit")


@dataclass(slots=True)
class Exchange:
    """One request of one client: sent, decided by the store or not, answered or not."""

    id: str
    who: str
    op: str
    key: str
    attempt: str
    reads: bool
    request: object = None
    sent_ms: float | None = None
    began_ms: float | None = None
    """When the store began on it: used for `sent_ms` where the client recorded no request."""
    decided_ms: float | None = None
    answered_ms: float | None = None
    outcome: str = ""
    """What the client concluded from the answer; "" while it waits, or if it never says."""
    why: str = ""
    status: int = 0
    applied: bool = False
    before: str = ""
    version: str = ""
    generation: int = 0
    fault: str = ""
    places: list[int] = field(default_factory=lambda: [0, 0, 0], repr=False)
    """The number of the event of each of its times; 0 if there is none."""
    decides: tuple[tuple[str, str, str], ...] = ()
    """Of a fence of group commit: instant, kind and owner of each decision."""
    owner: str = ""
    """Of a completed instant: the client that began it, if another one published it."""
    retries: list[Exchange] = field(default_factory=list, repr=False)
    """The further requests that the client's SDK sent by itself for the same call."""
    copied_late: bool = False
    retry: int = 0
    """Which of them this is; 0 is the call's first request."""

    @property
    def decision(self) -> str:
        """The outcome that a client concludes from the store's answer; "" of a read."""
        return APPLIED if self.applied else REFUSALS.get(self.status, "")

    @property
    def late(self) -> bool:
        """It was decided after its client had given it up, or had the answer to its call."""
        decided_ms, answered_ms = self.decided_ms, self.answered_ms
        given_up = answered_ms is not None and decided_ms is not None and decided_ms > answered_ms
        return self.copied_late or given_up

    @property
    def place(self) -> str:
        return place(self.key)

    @property
    def call(self) -> tuple[object, ...]:
        """What the requests of one call have in common: an attempt, else a reader or a time."""
        sent_ms = None if self.reads else self.times[0]
        return (self.key, self.attempt) if self.attempt else (self.key, self.who, sent_ms)

    @property
    def times(self) -> tuple[float | None, float | None, float | None]:
        """Asked, decided, answered."""
        sent_ms = self.began_ms if self.sent_ms is None else self.sent_ms
        return sent_ms, self.decided_ms, self.answered_ms

    @property
    def order(self) -> list[float]:
        """Its place among the events of one instant, for each time: a cause before its effect."""
        began, ended, answered = self.places
        sent = began or ended - 0.5
        decided = max(ended, sent + 0.1)
        return [sent, decided, max(answered, decided + 0.1)]

    @property
    def first_ms(self) -> float:
        return min(t for t in self.times if t is not None)

    @property
    def last_ms(self) -> float:
        return max(t for t in self.times if t is not None)


@dataclass(slots=True)
class LockGeneration:
    """One state of the lock object, as the store recorded it."""

    n: int
    at_ms: float
    version: str
    before: str
    who: str
    attempt: str
    status: int
    exchange: Exchange
    epoch: int
    """In the object itself; 0 where the store's record does not have it."""


@dataclass(slots=True)
class BeliefSpan:
    """The time in which a client counted on the lock."""

    id: str
    who: str
    epoch: int
    began_ms: float
    until_ms: float
    ended_ms: float | None = None
    ending: str = ""
    why: str = ""
    places: list[int | None] = field(default_factory=lambda: [None, None])
    """The number of the event of its beginning, and of its end."""


@dataclass(slots=True)
class Stall:
    """The time in which a writer's process was paused."""

    id: str
    who: str
    began_ms: float
    ended_ms: float | None = None
    why: str = ""


@dataclass(slots=True)
class LaneMoment:
    """An event at one time in one client's lane: a commit's step, a fault, an exit."""

    id: str
    who: str
    kind: str
    at_ms: float
    epoch: int = 0
    instant: str = ""
    text: str = ""
    order: int = 0


@dataclass
class HistoryModel:
    """The state of a history so far. `add` events as they come; read the rings."""

    ring: int = RING
    started_ms: float | None = None
    latest_ms: float = 0.0
    seen: int = 0
    hidden: int = 0
    lease_ms: float = 0.0
    states: dict[str, str] = field(default_factory=dict)
    generation: int = 0

    def __post_init__(self) -> None:
        self.exchanges: deque[Exchange] = deque(maxlen=self.ring)
        self.generations: deque[LockGeneration] = deque(maxlen=self.ring)
        self.beliefs: deque[BeliefSpan] = deque(maxlen=self.ring)
        self.stalls: deque[Stall] = deque(maxlen=self.ring)
        self.moments: deque[LaneMoment] = deque(maxlen=self.ring)
        self._open: dict[tuple[str, object], Exchange] = {}
        self._unproven: dict[str, deque[Exchange]] = {}
        self._unclaimed: deque[Exchange] = deque(maxlen=PENDING_MAX)
        self._believing: dict[str, BeliefSpan] = {}
        self._waiting: dict[str, Event] = {}
        self._faults: deque[Event] = deque(maxlen=16)
        self._calls: dict[object, Exchange] = {}
        self._tests: dict[str, LaneMoment] = {}
        self._agents: dict[str, str] = {}
        """Each client by its name, and by the name that the store's record has."""
        self._owners: dict[str, str] = {}
        """Of the latest instants of group commit: who offered or decided them first."""
        self._count = 0

    def add(self, events: Iterable[Event]) -> None:
        events = list(events)
        for each in events:
            if each.who not in (STORE, SPARK):
                self._agents[each.who] = each.who
                self._agents.setdefault(agent(each.who), each.who)
        for each in (apart(each, self._agents) for each in events):
            self.seen += 1
            if self.started_ms is None:
                self.started_ms = each.at_ms
            self.latest_ms = max(self.latest_ms, each.at_ms)
            match each.kind:
                case "ask":
                    self._note_request(each)
                case "answer":
                    self._answered(each)
                case "request":
                    self._decided(each)
                case "held" | "renewed" | "released" | "lost":
                    self._believed(each)
                case "stalled" | "resumed" | "started" | "killed" | "exited":
                    self._moved(each)
                case "waiting":
                    self._seat(each.who)
                    self._waiting[each.who] = each
                case "fault":
                    self._faulted(each)
                case "began" | "checked" | "fenced" | "published" | "refused" | "danger" | "note":
                    self._passed(each)

    @property
    def at_work(self) -> bool:
        """Whether the picture has a request, or a test of the store."""
        return bool(self.exchanges or self._tests)

    # --- requests ---------------------------------------------------------------------------

    def _note_request(self, each: Event) -> None:
        self._awake(each.who)
        key, attempt = spot(str(each["key"])), str(each["attempt"] or "")
        if attempt and (before := self._calls.get((key, attempt))):
            self._set_free(before, each.at_ms - JOIN_SLACK_MS)
        exchange = self._claim(each, key, attempt)
        if exchange is None:
            op = str(each["op"])
            exchange = Exchange(self._name("x"), each.who, op, key, attempt, asks_only(each))
            self.exchanges.append(exchange)
            self._unproven.setdefault(key, deque(maxlen=PENDING_MAX)).append(exchange)
        exchange.who, exchange.op = each.who, str(each["op"])
        exchange.request, exchange.sent_ms = each["request"], each.at_ms
        exchange.places[0] = self.seen
        if exchange.op == "release":  # from here on it does not count on the lock
            self._end_belief(each, "released")
        self._open[each.who, each["request"]] = exchange
        self._calls[exchange.call] = self._calls[key, each.who, each.at_ms] = exchange
        while len(self._calls) > 2 * PENDING_MAX:
            del self._calls[next(iter(self._calls))]
        for known in [one for one in self._unclaimed if one.call == exchange.call]:
            if self._sent_again(known):
                self._unclaimed.remove(known)
        self._struck(exchange, self._faults)
        if not drawn(exchange):
            self.hidden += 1

    def _claim(self, each: Event, key: str, attempt: str) -> Exchange | None:
        """The store's record of this request, if it arrived before the client's own line did."""
        for known in self._unclaimed:
            if known.key != key or known.who not in ("", each.who):
                continue
            if known.reads != asks_only(each) or known.attempt not in ("", attempt):
                continue
            if (known.decided_ms or 0.0) >= each.at_ms - JOIN_SLACK_MS:
                self._unclaimed.remove(known)
                known.attempt = attempt
                return known
        return None

    def _answered(self, each: Event) -> None:
        call = self._open.pop((each.who, each["request"]), None)
        if call is None:
            return
        if call.reads:
            self._sort_reads(call, each)
        outcome, made = plain(each["outcome"]), [call, *call.retries]
        after_ms = each.at_ms + JOIN_SLACK_MS
        late = [one for one in made[1:] if (one.decided_ms or 0.0) > after_ms]
        for one in late:  # nobody waited for these
            one.outcome, one.copied_late, one.sent_ms = "unknown", True, call.sent_ms
        made = [one for one in made if one not in late]
        fits = [one for one in made
                if one.decision == outcome and (one.decided_ms or 0.0) <= each.at_ms]  # fmt: skip
        exchange = [*made[-1:], *fits][-1]
        proven = exchange.applied or exchange.status == 412
        if outcome == "throttled" and proven and not exchange.fault.endswith(SILENCING):
            exchange = self._refused_on_its_way(call, exchange)
        if exchange is not made[-1]:  # it is not the answer to a refused copy
            made[-1].outcome = made[-1].outcome or "unknown"
        exchange.answered_ms, exchange.outcome = each.at_ms, outcome
        exchange.places[2] = self.seen
        exchange.why = str(each["why"] or "")
        exchange.version = exchange.version or str(each["version"] or "")

    def _refused_on_its_way(self, call: Exchange, decided: Exchange) -> Exchange:
        """The copy whose answer was heard: a gateway refused it, so the store did not decide it."""
        copy = replace(decided, id=self._name("x"), sent_ms=decided.decided_ms, decided_ms=None,
                       status=0, applied=False, before="", version="", generation=0, decides=(),
                       places=[0, 0, 0], retry=len(call.retries) + 1, retries=[])  # fmt: skip
        decided.outcome, decided.fault = "unknown", ""
        call.retries.append(copy)
        self.exchanges.append(copy)
        return copy

    def _set_free(self, call: Exchange, after_ms: float) -> None:
        """What was taken for retries of a call, and was decided after that, is not of this call."""
        while call.retries and (call.retries[-1].decided_ms or 0.0) > after_ms:
            one = call.retries.pop()
            one.retry, one.outcome, one.copied_late = 0, "", False
            self._unclaimed.appendleft(one)

    def _sort_reads(self, call: Exchange, answer: Event) -> None:
        """Nothing else tells reads apart: one that was answered was decided after it was sent."""
        self._set_free(call, answer.at_ms)
        if call.decided_ms is None and plain(answer["outcome"]) in WELL_READ:
            for one in islice(reversed(self.exchanges), STRUCK_MAX):
                if (one.reads, one.who, one.key) == (True, call.who, call.key) and (
                    (call.sent_ms or 0.0) <= (one.decided_ms or 0.0) <= answer.at_ms
                ):
                    call.decided_ms, call.status, call.places[1] = (
                        one.decided_ms, one.status, one.places[1])  # fmt: skip
                    one.decided_ms, one.status, one.places[1] = None, 0, 0
                    self._unproven[call.key].appendleft(one)
                    break

    def _decided(self, each: Event) -> None:
        self._owned(each)
        exchange = self._record(each)
        if exchange.place == "lock" and not exchange.reads:
            self._seat(exchange.who)
        exchange.applied = bool(each["applied"])
        question = self._match(each, exchange)
        if question is not None:
            if question.place == "table":  # the store's record says more of it
                question.op = exchange.op
            exchange = question
        elif not drawn(exchange):
            self._tested(each, exchange)
            return
        else:
            self.exchanges.append(exchange)
            if not self._sent_again(exchange):
                self._unclaimed.append(exchange)
        exchange.decided_ms, exchange.status = each.at_ms, whole(each["status"])
        self._struck(exchange, [one for one in self._faults if one["when"] == "after"])
        exchange.places[1] = self.seen
        exchange.applied = bool(each["applied"])
        exchange.before, exchange.version = str(each["before"] or ""), str(each["version"] or "")
        if exchange.applied and exchange.place == "lock":
            self._generated(each, exchange)
        elif exchange.applied and exchange.place == "table":
            self._grouped(each, exchange)

    def _tested(self, each: Event, exchange: Exchange) -> None:
        """Note where a client began to test its store, and the store's answers so far."""
        who = exchange.who
        if exchange.reads or who not in self.states or not exchange.key.endswith(SCRATCH):
            return
        if who not in self._tests:
            why = "whether the store enforces write conditions; its answers:"
            self._tests[who] = LaneMoment(self._name("m"), who, "tests", each.at_ms, text=why,
                                          order=self.seen)  # fmt: skip
            self.moments.append(self._tests[who])
        self._tests[who].text += f" {whole(each['status'])}"

    def _owned(self, each: Event) -> None:
        """Who made an instant's first object."""
        instant = instant_at(str(each["key"])) if each["applied"] else ""
        if instant:
            self._seat(str(each["client"] or ""))
            self._owners.setdefault(instant, str(each["client"] or ""))
            if len(self._owners) > PENDING_MAX:
                del self._owners[next(iter(self._owners))]

    def _grouped(self, each: Event, exchange: Exchange) -> None:
        """What a group commit's fence decides, for whom; an offer that is a refusal's tombstone;
        whose instant this makes visible.
        """
        if exchange.op == "delete":
            return
        if exchange.key.endswith(COMPLETED):
            began = self._owners.get(instant_of(exchange.key), "")
            if began not in ("", exchange.who):
                exchange.owner, exchange.op = began, f"publish for {began}"
        if (instant := offered(exchange.key)) and self._owners.get(instant) != exchange.who:
            exchange.op = "tombstone"
        made = decisions(each)
        owners = [self._owners.get(instant, "") for instant, _ in made]
        exchange.decides = tuple((*one, who) for one, who in zip(made, owners, strict=True))
        for instant, kind, owner in exchange.decides:
            if owner not in ("", exchange.who) or kind != "commit":
                self.moments.append(LaneMoment(
                    self._name("m"), owner or exchange.who, "decided", each.at_ms,
                    instant=instant, text=f"{kind} by {exchange.who}", order=self.seen,
                ))  # fmt: skip
        if owners and (owners != [exchange.who]) and exchange.op == "fence":
            exchange.op = f"decides {len(owners)}"

    def _sent_again(self, exchange: Exchange) -> bool:
        """Whether a client's SDK sent this request by itself, as a retry of one already decided.

        The client made one call and received one answer: that of the last request. The answer of
        the request before was lost, unless it was an error, because of which the SDK tried again.
        """
        began = (exchange.key, exchange.who, exchange.began_ms)  # of a simulated run
        call = self._calls.get(began) or self._calls.get(exchange.call)
        began_ms = exchange.began_ms or 0.0
        if call is None or call.decided_ms is None or exchange.who not in ("", call.who):
            return False
        if call.reads != exchange.reads:
            return False
        before = call.retries[-1] if call.retries else call
        slack_ms = 0.0 if call.reads else JOIN_SLACK_MS  # the next read may follow at once
        over = before.answered_ms is not None and began_ms > before.answered_ms + slack_ms
        if over and call.reads:
            return False  # a request of its own, whose line is still to come
        exchange.who, exchange.op = call.who, call.op
        exchange.sent_ms = max(began_ms, before.decided_ms or 0.0)  # simulated: both began at once
        if over:  # held back on its way
            exchange.sent_ms = call.sent_ms
        exchange.retry = len(call.retries) + 1
        call.retries.append(exchange)
        came_ms = before.answered_ms if before.outcome not in ("", "unknown") else None
        own = before.decision == before.outcome
        latest_ms = (exchange.decided_ms or 0.0) - (0.0 if own else JOIN_SLACK_MS)
        if over or (came_ms is not None and (
            came_ms < latest_ms or (own and before.applied and not exchange.applied)
        )):  # fmt: skip
            exchange.outcome, exchange.copied_late = "unknown", True  # nobody waited for this one
            return True
        exchange.answered_ms, exchange.outcome = before.answered_ms, before.outcome
        exchange.places[2], before.places[2] = before.places[2], 0
        exchange.why = before.why
        before.why = "the SDK sent the request again"
        before.answered_ms, before.outcome = None, "unknown"
        if before.status == 429 or before.status >= 500:
            before.answered_ms, before.outcome = exchange.sent_ms, "throttled"
        return True

    def _record(self, each: Event) -> Exchange:
        """Add the store's line as a separate request, until a client's line claims it."""
        key, reads = spot(str(each["key"])), str(each["method"]).lower() in READS
        attempt = "" if reads else str(each["attempt"] or "")  # what a read found is no attempt
        exchange = Exchange(
            self._name("x"), str(each["client"] or ""), guess(key, reads), key, attempt, reads
        )
        if str(each["method"]).lower() == "delete":
            exchange.op = "delete"
        if key == RESOURCE and isinstance(body := each.get("body"), dict) and "number" in body:
            exchange.op = f"commit {whole(body['number'])}"
        exchange.began_ms = min(float(each["began_ms"] or each.at_ms), each.at_ms)
        exchange.decided_ms = each.at_ms
        return exchange

    def _match(self, each: Event, exchange: Exchange) -> Exchange | None:
        """The client's request that this record answers: of writes the last, of reads the first.

        Only a request whose answer was `unknown` may be decided after that. A write that
        was throttled has no attempt in the record: the store did not read its body.
        """
        waiting = self._unproven.get(exchange.key, deque())
        fits = [
            one for one in waiting
            if one.reads == exchange.reads and exchange.who in ("", one.who)
            and exchange.attempt in ("", one.attempt)
            and each.at_ms >= (one.sent_ms or 0.0) - JOIN_SLACK_MS
            and (one.outcome in ("", "unknown")
                 or each.at_ms <= (one.answered_ms or 0.0) + JOIN_SLACK_MS)
        ]  # fmt: skip
        sent = [one for one in fits if each.at_ms >= (one.sent_ms or 0.0)]
        exact = [one for one in fits if one.sent_ms == exchange.began_ms]  # of a simulated run
        if (exchange.key, exchange.who, exchange.began_ms) in self._calls and not exact:
            return None  # a copy of an earlier call
        for one in exact[:1] or (sent[:1] if exchange.reads else sent[-1:]) or fits[:1]:
            waiting.remove(one)
            return one
        return None

    def _generated(self, each: Event, exchange: Exchange) -> None:
        self.generation += 1
        exchange.generation = self.generation
        self.generations.append(LockGeneration(
            self.generation, each.at_ms, exchange.version, exchange.before,
            str(each["client"] or "") or exchange.who, exchange.attempt, exchange.status,
            exchange, whole(each.get("epoch")),
        ))  # fmt: skip

    # --- beliefs, processes, moments ----------------------------------------------------------

    def _believed(self, each: Event) -> None:
        self._seat(each.who)
        belief = self._believing.get(each.who)
        self._waiting.pop(each.who, None)
        match each.kind:
            case "held":
                self._counts(each)
            case "renewed" if belief is not None and belief.ended_ms is None:
                belief.until_ms = max(belief.until_ms, float(each["until_ms"] or 0.0))
            case "renewed":  # wrongly: it had lost the lock
                self._counts(each)
            case "released" | "lost":
                self._end_belief(each, each.kind)
                if each.kind == "lost":
                    self._passed(each)

    def _end_belief(self, each: Event, ending: str) -> None:
        belief = self._believing.get(each.who)
        if belief is None:
            return
        if belief.ended_ms is not None:  # its release was sent, and then the grant proved lost
            if ending != "lost" or whole(each["epoch"]) != belief.epoch:
                return
        else:
            belief.ended_ms, belief.places[1] = each.at_ms, self.seen
        belief.ending, belief.why = ending, str(each.get("why") or "")

    def _counts(self, each: Event) -> None:
        """From now on a client counts on the lock."""
        until_ms = float(each["until_ms"] or each.at_ms)
        belief = BeliefSpan(self._name("b"), each.who, whole(each["epoch"]), each.at_ms, until_ms)
        self.lease_ms = max(self.lease_ms, until_ms - each.at_ms)
        belief.places[0] = self.seen
        self._believing[each.who] = belief
        self.beliefs.append(belief)

    def _moved(self, each: Event) -> None:
        if each.who == SPARK:
            return
        self._seat(each.who)
        if (self.states[each.who], each.kind) != ("killed", "exited"):  # the end of a killed one
            became = {"started": "starting", "resumed": "running"}
            self.states[each.who] = became.get(each.kind, each.kind)
        if each.kind == "stalled":
            why = str(each.get("why") or "")
            self.stalls.append(Stall(self._name("s"), each.who, each.at_ms, None, why))
        else:
            for stall in reversed(self.stalls):
                if stall.who == each.who and stall.ended_ms is None:
                    stall.ended_ms = each.at_ms
                    break
        if each.kind in ("killed", "exited"):
            self._end_belief(each, each.kind)
            self._believing.pop(each.who, None)
            self._passed(each)

    def _faulted(self, each: Event) -> None:
        for exchange in islice(reversed(self.exchanges), STRUCK_MAX):
            if self._strikes(each, exchange):
                exchange.fault = described(each)
                break
        else:
            self._faults.append(each)  # the client's own line is still on its way
        self._note(each, str(each["client"] or ""), described(each))

    def _struck(self, exchange: Exchange, faults: Iterable[Event]) -> None:
        """Note the faults of a request whose line came after theirs."""
        for fault in [each for each in faults if self._strikes(each, exchange)]:
            exchange.fault = described(fault)
            self._faults.remove(fault)

    def _strikes(self, fault: Event, exchange: Exchange) -> bool:
        if exchange.who != fault["client"] or exchange.key != spot(str(fault["key"])):
            return False
        attempt = fault.get("attempt")
        if attempt:
            return exchange.attempt == str(attempt)
        return abs(exchange.last_ms - fault.at_ms) < FAULT_SLACK_MS

    def _passed(self, each: Event) -> None:
        if each.kind == "note":
            self._awake(each.who)
        else:
            self._seat(each.who)
        why = each.get("why") or each.get("text") or ""
        error = each.get("error") or ""
        self._note(each, each.who, f"{error}: {why}" if error and why else str(error or why))

    def _note(self, each: Event, who: str, text: str) -> None:
        self.moments.append(LaneMoment(
            self._name("m"), who, each.kind, each.at_ms, whole(each.get("epoch")),
            str(each.get("instant") or ""), text, self.seen,
        ))  # fmt: skip

    def _seat(self, who: str) -> None:
        """Give a client its lane, in order of appearance."""
        if who not in ("", STORE, SPARK):
            self.states.setdefault(who, "running")

    def _awake(self, who: str) -> None:
        self._seat(who)
        if self.states.get(who) == "starting":
            self.states[who] = "running"

    def _name(self, letter: str) -> str:
        self._count += 1
        return f"{letter}{self._count}"

    # --- what is known now --------------------------------------------------------------------

    def waiting(self, who: str) -> Event | None:
        """What this client last read while it waited for the lock; None if it does not wait."""
        return self._waiting.get(who)

    def holder(self) -> LockGeneration | None:
        """The newest state of the lock object; None while there is none."""
        return self.generations[-1] if self.generations else None


def apart(each: Event, agents: Mapping[str, str]) -> Event:
    """An event with its client's own name, which is not that of a lane of the picture itself."""
    who, said = each.who, each.get("client")
    if not said and who not in OWN_LANES:
        return each
    client = agents.get(str(said)) or agents.get(agent(str(said)), str(said or ""))
    data = {**each.data, "client": OWN_LANES.get(client, client)} if said else each.data
    return replace(each, who=OWN_LANES.get(who, who), data=data)


def spot(key: str) -> str:
    """A key below its table: clients record it so; the store's record adds bucket and table."""
    start = key.find(".hoodie/")
    return key[start:] if start > 0 else key


@lru_cache(maxsize=1024)
def place(key: str) -> str:
    """Where it is drawn: "lock", "table" (fence, offers, completed instants) or "" (nowhere)."""
    name = key.rsplit("/", 1)[-1]
    if name in ("fence.json", RESOURCE) or offered(key):
        return "table"
    if name.endswith(COMPLETED) and ".hoodie" in key:
        return "table"
    return "lock" if "lock" in name else ""


def instant_at(key: str) -> str:
    """The instant of a pending file or an offer, by which its owner is known."""
    if key.endswith((".requested", ".inflight")) and ".hoodie/" in key:
        return instant_of(key)
    return offered(key)


def instant_of(key: str) -> str:
    """The instant of a file of the timeline."""
    return key.rsplit("/", 1)[-1].partition(".")[0].partition("_")[0]


def drawn(each: Exchange) -> bool:
    """Whether the picture shows a request; reads of the timeline would bury everything else."""
    published = each.place == "table" and not each.reads
    return published or each.place == "lock" or each.key.endswith("fence.json")


def asks_only(ask: Event) -> bool:
    """Whether a client's request is a read: it has no attempt, and a release may delete."""
    if place(str(ask["key"])) == "table":
        return bool(ask["op"] == "look")
    return not ask["attempt"] and ask["op"] not in FREES


def guess(key: str, reads: bool) -> str:
    """The purpose of a request whose client does not record it."""
    if key.endswith("fence.json"):
        return "read fence" if reads else "fence"
    if place(key) == "table":
        return "offer" if offered(key) else "commit" if key == RESOURCE else "publish"
    return "look" if reads else "write"


def described(fault: Event) -> str:
    """In words that are true also of a write that the store refused."""
    name = str(fault["fault"])
    if name in STRUCK:
        return STRUCK[name].format("answer" if fault["when"] == "after" else "request")
    return neutral(name) if name in SIMULATED else f"{name} ({fault['when']} the store decided)"


def neutral(why: str) -> str:
    """A simulated fault without the claim that the store applied the write."""
    return SIMULATED.get(why, why)


def plain(outcome: object) -> str:
    """An outcome in the schema's spelling, whichever way its class is written."""
    known = {"preconditionfailed": "precondition_failed", "notmodified": "not_modified"}
    word = str(outcome or "").lower()
    return known.get(word, word)


def whole(number: object) -> int:
    return int(number) if isinstance(number, (int, float)) else 0


def brief(attempt: str) -> str:
    """An attempt, shortened but still distinct: its handle and the number of the write."""
    handle, _, number = attempt.partition("/")
    return f"{handle[:8]}/{number}" if number else handle[:8]


def short(version: str) -> str:
    """Enough of a version to distinguish neighbours: an ETag's head, a generation's tail."""
    bare = version.strip('"')
    if bare.isdigit() or bare.startswith("0x"):
        return bare[-4:]
    return bare[:4]
