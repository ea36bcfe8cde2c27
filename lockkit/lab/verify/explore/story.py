"""A path through the lease's world in two forms: as numbered sentences and as a history.

The search keeps times relative to now and gives names of attempts again once they are free; here
time runs on, and every attempt gets a name of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

from lockkit.events import STORE, Event, event
from lockkit.lab.verify.explore.parts import (
    ExplorerClient,
    ExplorerFault,
    Move,
    PackedState,
    PendingRead,
    StoredState,
    WriteInFlight,
)
from lockkit.lab.verify.explore.world import LeaseWorld
from lockkit.lab.verify.wrong_rules import CommitGuard
from lockkit.protocol.outcome import Applied, PreconditionFailed, Throttled, Unknown, Version
from lockkit.protocol.record import Garbled, Record
from lockkit.protocol.state import (
    AcquireRequested,
    Action,
    ClaimLost,
    DeleteRecord,
    GiveUp,
    Granted,
    HeldByOther,
    LeaseLost,
    Observation,
    Pause,
    ReadAnswered,
    ReadFailed,
    ReadRecord,
    Released,
    ReleaseRequested,
    RenewDue,
    Renewed,
    Tick,
    WriteAnswered,
    WritePurpose,
    WriteRecord,
)

TICK_MS = 1000
LOCK_KEY = ".hoodie/.locks/table_lock.json"
FENCE_KEY = ".hoodie/.locks/fence.json"
FAULTS = {each.value: each for each in ExplorerFault}


@dataclass
class PathStory:
    """Follows a path and extends `lines` and `events`."""

    world: LeaseWorld
    lines: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    _names: dict[Version, str] = field(default_factory=dict)
    _given: dict[str, int] = field(default_factory=dict)
    _requests: dict[str, int] = field(default_factory=dict)
    _instants: dict[int, str] = field(default_factory=dict)
    _published: list[str] = field(default_factory=list)
    _fence_version: str = ""
    _now_ms: int = 0
    _place: int = 0

    def walk(self, path: Sequence[tuple[Move, PackedState]]) -> PathStory:
        before = self.world.initial()
        for self._place, (move, after) in enumerate(path, 1):
            said = self._describe(move, before, after)
            self.lines.append(f"{self._place:2d}. {said}")
            before = after
        return self

    def _describe(self, move: Move, before: PackedState, after: PackedState) -> str:
        if move.who < 0:
            self._now_ms += TICK_MS
            return "a second passes"
        old, new = (self.world.actors.parts[each[move.who]] for each in (before, after))
        stored, landed = (self.world.stores.parts[each[-4]] for each in (before, after))
        who = self.world.identity(old).owner
        if move.event is not None:
            return self._step(who, move, old, new, stored)
        match move.what:
            case "decide":
                return self._decide(who, move, stored, landed)
            case "late":
                assert move.write is not None
                who = move.write.record.owner
                return f"{self._decide(who, move, stored, landed)}, late: no client waits for it"
            case "check":
                return self._check(who, new)
            case "commit":
                self._commit(who, "ask", self._instants[old.index])
                return f"{who} looks at its lease and sends its commit"
            case "land":
                assert old.draft is not None
                return self._land(who, old, bool(move.accepted))
            case ExplorerFault.CRASH.value:
                return self._crash(who, self.world.identity(new).owner, move.write)
            case what:
                self._fault(who, what)
                return f"fault: {what} ({who}'s {self._called(move.write)})"

    # --- what a client does ---------------------------------------------------------------------

    def _step(
        self, who: str, move: Move, old: ExplorerClient, new: ExplorerClient, stored: StoredState
    ) -> str:
        said = [self._received(who, move, old)]
        for each in move.actions:
            reported = self._does(who, each, old, new, stored)
            if reported:
                said.append(reported)
        return f"{who} {'; '.join(said)}"

    def _received(self, who: str, move: Move, old: ExplorerClient) -> str:
        match move.event:
            case AcquireRequested():
                return "requests the lock"
            case RenewDue():
                return "renews"
            case ReleaseRequested():
                return "releases"
            case GiveUp():
                return "gives up"
            case Tick():
                return "continues"
            case ReadAnswered(_, observation):
                assert observation is not None
                outcome = "missing" if observation.version is None else "found"
                self._answer(who, "look", outcome, self._name(observation.version))
                return f"sees {self._observation(observation)}"
            case ReadFailed():
                self._answer(who, "look", "unknown", "", "no answer")
                return "gets no answer to its read"
            case WriteAnswered(_, answer):
                fault = FAULTS.get(move.what)
                if fault is not None:
                    self._fault(who, move.what)
                op = old.state.out.purpose.value if old.state.out is not None else "write"
                return self._reported(who, op, answer, fault, old)
            case _:
                raise AssertionError(f"no event of a runner: {move.event!r}")

    def _reported(
        self, who: str, op: str, answer: object, fault: ExplorerFault | None, old: ExplorerClient
    ) -> str:
        match answer:
            case Applied(version):
                self._answer(who, op, "applied", self._name(version))
                return f"gets an answer: its {op} was applied"
            case PreconditionFailed():
                self._answer(who, op, "precondition_failed", "")
                return f"gets 412 for its {op}"
            case Throttled():
                assert isinstance(old.out, WriteInFlight)
                self._request(who, old.out, "throttled", 429, old.out.over, old.out.over)
                self._answer(who, op, "throttled", "")
                return f"gets 429 for its {op}"
            case Unknown(why):
                self._answer(who, op, "unknown", "", why)
                where = "the request is still on its way"
                if fault is ExplorerFault.LOST:
                    where = "the answer is lost"
                return f"gets no answer to its {op}: {where}"
            case _:
                raise AssertionError(f"no answer: {answer!r}")

    def _does(
        self, who: str, action: Action, old: ExplorerClient, new: ExplorerClient,
        stored: StoredState,
    ) -> str | None:  # fmt: skip
        until_ms = self._now_ms + (new.state.until_ms or 0) * TICK_MS
        match action:
            case ReadRecord():
                assert isinstance(new.out, PendingRead)
                self._ask(who, "look", "")
                self._look(who, stored)
                return "reads the lock object"
            case WriteRecord(record, over):
                return self._sends(who, record, over, old, new)
            case DeleteRecord():
                self._ask(who, "release", "")
                return "deletes the lock object"
            case Granted(epoch) | Renewed(epoch):
                kind = "held" if isinstance(action, Granted) else "renewed"
                version = self._name(new.state.version)
                self._emit(who, kind, epoch=epoch, until_ms=until_ms, version=version)
                return f"counts on epoch {epoch} until {until_ms // TICK_MS} s"
            case HeldByOther(record):
                owner = record.owner if isinstance(record, Record) else "garbled"
                epoch = record.epoch if isinstance(record, Record) else 0
                self._emit(who, "waiting", owner=owner, epoch=epoch, until_ms=None)
                return f"waits for {owner}"
            case LeaseLost(epoch, why, _):
                self._emit(who, "lost", epoch=epoch, why=why)
                return f"gives up epoch {epoch}: {why}"
            case ClaimLost(attempt):
                name = self._name(attempt)
                self._emit(who, "lost", epoch=0, why=f"another write than {name} has won")
                return f"counts {name} as refused"
            case Released(epoch, proven):
                self._emit(who, "released", epoch=epoch, proven=proven)
                return "has released the lock" if proven else "leaves the lease to expire"
            case Pause():
                return "pauses"
            case _:
                assert_never(action)

    def _sends(
        self, who: str, record: Record, over: Version | None, old: ExplorerClient,
        new: ExplorerClient,
    ) -> str:  # fmt: skip
        write = new.state.out
        assert write is not None
        was = old.state.out
        again = was is not None and was.record.attempt == record.attempt
        if not again:
            self._given[who] = self._given.get(who, 0) + 1
            self._names[record.attempt] = f"{who}/{self._given[who]}"
        name = self._name(record.attempt)
        self._ask(who, write.purpose.value, name)
        what = {
            WritePurpose.CLAIM: f"claims epoch {record.epoch}",
            WritePurpose.CONFIRM: f"confirms epoch {record.epoch}",
            WritePurpose.RENEW: "sends a renewal",
            WritePurpose.RELEASE: "sends a tombstone",
        }[write.purpose]
        return f"{what}{' again' if again else ''}: {name} over {self._name(over) or 'nothing'}"

    # --- what the store does --------------------------------------------------------------------

    def _decide(self, who: str, move: Move, stored: StoredState, landed: StoredState) -> str:
        write = move.write
        assert write is not None
        answer, status = ("applied", 200) if move.accepted else ("precondition_failed", 412)
        self._request(who, write, answer, status, stored.version, landed.version)
        verb = "applies" if move.accepted else "refuses (412)"
        return f"the store {verb} {who}'s {self._called(write)}"

    def _crash(self, who: str, born: str, out: WriteInFlight | None) -> str:
        self._emit(who, "killed", pid=0)
        self._emit(born, "started", pid=0)
        still = f"; {self._called(out)} is still on its way" if out is not None else ""
        return f"fault: {who} crashes and restarts as {born}{still}"

    def _check(self, who: str, new: ExplorerClient) -> str:
        assert new.draft is not None
        epoch, base = new.draft.epoch, new.draft.base
        instant = f"20250106101{len(self._given) + self._place:06d}"
        self._instants[new.index] = instant
        self._emit(who, "began", instant=instant)
        self._emit(
            who, "checked", instant=instant, epoch=epoch,
            covered=self._published[:base], writes=[["part=US", "f-1"]],
        )  # fmt: skip
        return f"{who} begins a commit and reads what it must cover: {base} commits"

    def _land(self, who: str, old: ExplorerClient, accepted: bool) -> str:
        assert old.draft is not None
        instant, epoch = self._instants[old.index], old.draft.epoch
        guarded = self.world.fence is CommitGuard.CAS
        if not accepted:
            why = "the store refused it: another commit came first"
            self._commit(who, "answer", instant, outcome="PreconditionFailed")
            self._emit(who, "refused", instant=instant, epoch=epoch, error="LockLost", why=why)
            return f"the resource refuses {who}'s commit"
        if guarded:
            version = f"f{self._place}"
            self._put(who, FENCE_KEY, self._fence_version, version, instant=instant)
            self._fence_version = version
        self._put(who, f".hoodie/{instant}.commit", "", instant)
        self._commit(who, "answer", instant, outcome="Applied")
        self._published.append(instant)
        self._emit(who, "published", instant=instant, epoch=epoch)
        return f"the resource accepts {who}'s commit, made under epoch {epoch}"

    def _commit(self, who: str, kind: str, instant: str, **more: Any) -> None:
        """The request of a commit, from its sending to its answer."""
        more |= {"key": f".hoodie/{instant}.commit", "attempt": instant} if kind == "ask" else {
            "version": "", "why": ""}  # fmt: skip
        self._emit(who, kind, request=instant, op="publish", **more)

    def _look(self, who: str, stored: StoredState) -> None:
        version = self._name(stored.version)
        found = stored.version is not None
        self._emit(
            STORE, "request", client=who, method="GET", key=LOCK_KEY, condition="",
            status=200 if found else 404, answer="found" if found else "missing", applied=False,
            before=version, version=version, attempt=version, began_ms=self._now_ms,
        )  # fmt: skip

    def _request(
        self, who: str, write: WriteInFlight, answer: str, status: int,
        before: Version | None, after: Version | None,
    ) -> None:  # fmt: skip
        over = self._name(write.over)
        if write.remove and not over:
            condition = ""
        else:
            condition = f"if-version {over}" if over else "if-absent"
        self._emit(
            STORE, "request", client=who, method="DELETE" if write.remove else "PUT",
            key=LOCK_KEY, condition=condition, status=status, answer=answer,
            applied=answer == "applied", before=self._name(before), version=self._name(after),
            attempt="" if write.remove else self._name(write.record.attempt),
            began_ms=self._now_ms, epoch=write.record.epoch, expired=write.record.expired,
        )  # fmt: skip

    def _put(self, who: str, key: str, before: str, version: str, **more: Any) -> None:
        self._emit(
            STORE, "request", client=who, method="PUT", key=key,
            condition=f"if-version {before}" if before else "if-absent", status=200,
            answer="applied", applied=True, before=before, version=version, attempt=version,
            began_ms=self._now_ms, **more,
        )  # fmt: skip

    # --- words and events -----------------------------------------------------------------------

    def _fault(self, who: str, what: str) -> None:
        when = "after" if FAULTS[what] is ExplorerFault.LOST else "before"
        self._emit(STORE, "fault", fault=what, when=when, client=who, method="PUT", key=LOCK_KEY)

    def _ask(self, who: str, op: str, attempt: str) -> None:
        self._requests[who] = self._requests.get(who, 0) + 1
        self._emit(who, "ask", request=self._requests[who], op=op, key=LOCK_KEY, attempt=attempt)

    def _answer(self, who: str, op: str, outcome: str, version: str, why: str = "") -> None:
        self._emit(
            who, "answer", request=self._requests[who], op=op, outcome=outcome, version=version,
            why=why,
        )  # fmt: skip

    def _emit(self, who: str, kind: str, **fields: Any) -> None:
        self.events.append(event(self._now_ms + self._place, who, kind, **fields))

    def _name(self, version: Version | None) -> str:
        return self._names.get(version, version) if version else ""

    def _called(self, write: WriteInFlight | None) -> str:
        assert write is not None
        return "delete" if write.remove else self._name(write.record.attempt)

    def _observation(self, observation: Observation) -> str:
        match observation.record:
            case None:
                return "no lock object"
            case Record(expired=True, epoch=epoch):
                return f"the lock released (epoch {epoch})"
            case Record(owner=owner, epoch=epoch):
                return f"{owner}'s lease, epoch {epoch} ({self._name(observation.version)})"
            case Garbled():
                return "no lock record"
