"""The lease under an adversary: a few clients that run `lease.step`, one object, faults, clocks.

A request is sent, decided by the store, and answered in three separate moves, so that every delay
and every stall is just another order of moves. A read carries what the object was when it was sent
for; its answer may come at any later time. Real time is unbounded: all times are kept relative to
now and clipped where older makes no difference, so the number of states is finite.

The name of an attempt is used again once no state refers to it; a version is its attempt.

One file because every move reads and writes the same state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

from lockkit.lab.verify.explore.ageing import Ageing
from lockkit.lab.verify.explore.names import (
    NAMES_MAX,
    becomes,
    client_of,
    lowest_free,
    mask,
    names_of_actor,
    owner_of,
    undecided,
)
from lockkit.lab.verify.explore.parts import (
    TIME_PASSES,
    Bounds,
    CommitDraft,
    ExplorerClient,
    ExplorerFault,
    Move,
    MoveOutcome,
    PackedState,
    PendingRead,
    StateNumbering,
    StoredState,
    WriteInFlight,
)
from lockkit.lab.verify.mutants import Invariant
from lockkit.lab.verify.wrong_rules import CommitGuard
from lockkit.protocol.lease import step
from lockkit.protocol.outcome import (
    Applied,
    PreconditionFailed,
    Throttled,
    Unknown,
    Version,
    WriteAnswer,
)
from lockkit.protocol.policy import Expiry, Policy
from lockkit.protocol.record import Record
from lockkit.protocol.state import (
    AcquireRequested,
    Action,
    ClaimLost,
    DeleteRecord,
    Event,
    GiveUp,
    HeldByOther,
    Identity,
    LeaseLost,
    Now,
    Observation,
    Phase,
    ReadAnswered,
    ReadFailed,
    ReadRecord,
    ReleaseRequested,
    RenewDue,
    State,
    Tick,
    WriteAnswered,
    WritePurpose,
    WriteRecord,
)


@dataclass
class LeaseWorld:
    """A `search.SearchWorld` over the real `lease.step`."""

    policy: Policy
    bounds: Bounds
    forgets: bool = True
    """Leave out of a state what the protocol cannot look at any more (a test compares)."""
    off: Mapping[str, Any] = field(default_factory=dict)
    """The rules that the planted mistake has otherwise."""

    def __post_init__(self) -> None:
        self.nows = [Now(0, offset) for offset in self.bounds.offsets]
        self.actors: StateNumbering[ExplorerClient] = StateNumbering()
        self.stores: StateNumbering[StoredState] = StateNumbering()
        self.lates: StateNumbering[tuple[WriteInFlight, ...]] = StateNumbering()
        self._believing: list[bool] = []
        self._outcomes: dict[tuple[int, int, int, bool], tuple[MoveOutcome, ...]] = {}
        self._masks: tuple[list[int], list[int], list[int]] = ([], [], [])
        self._ticked: tuple[dict[int, int], dict[int, int], dict[int, int]] = ({}, {}, {})
        self._committing = any(self.bounds.commits)
        self._landed: dict[tuple[int, int], list[tuple[Move, int, int, str]]] = {}
        self._buried: dict[tuple[int, int, tuple[tuple[Version | None, ...], ...]], int] = {}
        self.ageing = Ageing(self.policy, self.bounds, self.forgets, self.off)

    @property
    def fence(self) -> CommitGuard:
        return CommitGuard(self.off.get("fence", CommitGuard.CAS))

    # --- search.SearchWorld ---

    def initial(self) -> PackedState:
        actors = (self.actors.of(self._newcomer(n)) for n in range(len(self.nows)))
        return *actors, self.stores.of(StoredState()), self.lates.of(()), self.bounds.faults, ""

    def moves(self, state: PackedState) -> list[tuple[Move, PackedState]]:
        *actors, store, late, faults, _ = state
        of_actor, of_store, of_late = self._masks
        self._know(actors, store, late)
        used = of_store[store] | of_late[late]
        for actor in actors:
            used |= of_actor[actor]
        able = faults > 0
        found: list[tuple[Move, PackedState]] = []
        for n, actor in enumerate(actors):
            name = lowest_free(used >> (NAMES_MAX * n))
            key = (actor, store, name, able)
            outcomes = self._outcomes.get(key)
            if outcomes is None:
                outcomes = self._outcomes[key] = self._actor_moves(actor, store, name, able)
            for each in outcomes:
                actors[n] = each.actor
                if each.late is None and (late == 0 or each.store == store):
                    after = late
                else:
                    after = self._bury(late, each.late, each.store, actors)
                packed = (*actors, each.store, after, faults - each.cost, each.violation)
                found.append((each.move, packed))
            actors[n] = actor
        if late:
            for move, without, landed, why in self._late_moves(late, store):
                after = self._bury(without, None, landed, actors)
                found.append((move, (*actors, landed, after, faults, why)))
        found.append((TIME_PASSES, (*self._tick(actors, store, late), faults, "")))
        return found

    def violation(self, state: PackedState) -> str | None:
        *actors, store, late, _, why = state
        if why:
            return str(why)
        self._know(actors, store, late)
        believing = self._believing
        if sum([believing[actor] for actor in actors]) > 1:
            if Invariant.ONE_BELIEVER in self.bounds.watch:
                parts = [self.actors.parts[actor] for actor in actors if believing[actor]]
                both = " and ".join(owner_of(each.index, each.life) for each in parts)
                return f"{Invariant.ONE_BELIEVER}: {both} count on the lock at once"
        return None

    # --- bookkeeping ---

    def _newcomer(self, n: int) -> ExplorerClient:
        bounds = self.bounds
        return ExplorerClient(
            n, State(), None, bounds.acquires[n], bounds.tries[n], bounds.renewals[n],
            bounds.commits[n],
        )  # fmt: skip

    def identity(self, actor: ExplorerClient) -> Identity:
        return Identity(owner_of(actor.index, actor.life), self.bounds.ttl)

    def _know(self, actors: list[int], store: int, late: int) -> None:
        """The names in a part, and whether a client believes; computed once for each part."""
        of_actor, of_store, of_late = self._masks
        while len(of_actor) <= max(actors):
            actor = self.actors.parts[len(of_actor)]
            of_actor.append(mask(names_of_actor(actor)))
            until = actor.state.until_ms
            self._believing.append(until is not None and until > 0)
        while len(of_store) <= store:
            of_store.append(mask([self.stores.parts[len(of_store)].version]))
        while len(of_late) <= late:
            flying = self.lates.parts[len(of_late)]
            of_late.append(mask(n for each in flying for n in (each.record.attempt, each.over)))

    def _bury(self, late: int, more: WriteInFlight | None, store: int, actors: list[int]) -> int:
        """Late writes that may still be applied; not those over a version that never returns."""
        flying = self.lates.parts[late]
        if more is not None:
            flying = tuple(sorted((*flying, more), key=repr))
            late = self.lates.of(flying)
        out = tuple([undecided(self.actors.parts[each]) for each in actors])
        key = (late, store, out)
        after = self._buried.get(key)
        if after is None:
            coming = {self.stores.parts[store].version}.union(*out, map(becomes, flying))
            kept = tuple(each for each in flying if each.over in coming or each.remove)
            after = self._buried[key] = self.lates.of(kept)
        return after

    def _tick(self, actors: list[int], store: int, late: int) -> PackedState:
        of_actor, of_store, of_late = self._ticked
        for actor in actors:
            if actor not in of_actor:
                of_actor[actor] = self.actors.of(self.ageing.aged_actor(self.actors.parts[actor]))
        if store not in of_store:
            of_store[store] = self.stores.of(self.ageing.aged_store(self.stores.parts[store]))
        if late not in of_late:
            aged = tuple(self.ageing.aged_flying(each) for each in self.lates.parts[late])
            of_late[late] = self.lates.of(tuple(sorted(aged, key=repr)))
        return *[of_actor[actor] for actor in actors], of_store[store], of_late[late]

    # --- what a client can do ---

    def _actor_moves(
        self, number: int, store: int, name: int, able: bool
    ) -> tuple[MoveOutcome, ...]:
        actor, stored = self.actors.parts[number], self.stores.parts[store]
        found: list[MoveOutcome] = []
        match actor.out:
            case None:
                for event, spent in self._wishes(actor):
                    found.append(self._hear(spent, stored, event, name))
            case PendingRead(observation):
                now = self.nows[actor.index]
                found.append(self._hear(actor, stored, ReadAnswered(now, observation), name))
                if able and ExplorerFault.BLIND in self.bounds.kinds:
                    reported = self._hear(actor, stored, ReadFailed(now, "no answer"), name)
                    found.append(replace(reported, cost=1))
            case WriteInFlight(answer=None) as write:
                found.append(self._decide(actor, stored, write))
                if able:
                    found.extend(self._faults_before(actor, stored, write, name))
            case WriteInFlight(answer=answer) as write:
                assert answer is not None
                found.append(self._answer(actor, stored, answer, name))
                if able:
                    found.extend(self._faults_after(actor, stored, write, name))
            case _:
                assert_never(actor.out)
        if self._committing:
            found.extend(self._commit_moves(actor, stored))
        if able and ExplorerFault.CRASH in self.bounds.kinds:
            found.extend(self._crashes(actor, stored))
        return tuple(each for each in found if each.actor >= 0)

    def _wishes(self, actor: ExplorerClient) -> Iterable[tuple[Event, ExplorerClient]]:
        """The commands that a client without a pending request may get."""
        now, phase = self.nows[actor.index], actor.state.phase
        match phase:
            case Phase.IDLE:
                if actor.acquires:
                    yield AcquireRequested(now), replace(actor, acquires=actor.acquires - 1)
            case Phase.HELD:
                if actor.renewals:
                    spent = replace(actor, renewals=actor.renewals - 1)
                    yield RenewDue(now), spent
                    if self.bounds.raises and actor.state.grant is not None:
                        yield RenewDue(now, actor.state.grant.epoch), spent
                yield (
                    ReleaseRequested(now),
                    actor,
                )  # also with a commit under way that no answer
            case Phase.LOST:
                yield ReleaseRequested(now), actor
            case _:
                yield Tick(now), actor
                if actor.state.grant is not None and phase is not Phase.RELEASING:
                    yield ReleaseRequested(now), actor
                if self.bounds.gives_up and (actor.state.grant is None or phase is Phase.RELEASING):
                    yield GiveUp(now), actor

    def _hear(
        self, actor: ExplorerClient, stored: StoredState, event: Event, name: int
    ) -> MoveOutcome:
        """Make one step of the protocol, and send the request that it returns."""
        before = replace(actor.state, writes=name)
        state, actions = step(self.identity(actor), before, event, self.policy)
        out: PendingRead | WriteInFlight | None = None
        for each in actions:
            match each:
                case ReadRecord():
                    out = PendingRead(self._glance(stored))
                case WriteRecord(record, over):
                    out = WriteInFlight(self.ageing.record(record), over)
                case DeleteRecord(over):
                    assert state.out is not None
                    out = WriteInFlight(state.out.record, over, remove=True)
                case _:
                    pass
        tries = actor.tries
        if state.out is not None and state.out.purpose in (
            WritePurpose.CLAIM,
            WritePurpose.CONFIRM,
        ):
            if before.out is None or before.out.record.attempt != state.out.record.attempt:
                tries -= 1
        why = self._self_inflicted(actor, stored, actions)
        after = self.ageing.actor(replace(actor, state=state, out=out, tries=tries))
        move = Move(actor.index, "step", event, actions)
        number = self.actors.of(after)
        if tries < 0:  # beyond the bounds: it stalls here for ever
            number = -1
        return MoveOutcome(move, number, self.stores.of(stored), violation=why)

    def _answer(
        self, actor: ExplorerClient, stored: StoredState, answer: WriteAnswer, name: int,
        what: str = "step",
    ) -> MoveOutcome:  # fmt: skip
        now = self.nows[actor.index]
        after = self._hear(replace(actor, out=None), stored, WriteAnswered(now, answer), name)
        return replace(after, move=replace(after.move, what=what))

    def _decide(
        self, actor: ExplorerClient, stored: StoredState, write: WriteInFlight
    ) -> MoveOutcome:
        after, answer, why = self._apply(stored, write)
        landed = isinstance(answer, Applied) and not write.record.expired
        serial = after.serial if landed else actor.serial
        sent = replace(actor, out=replace(write, answer=answer), serial=serial)
        move = Move(actor.index, "decide", write=write, accepted=isinstance(answer, Applied))
        return MoveOutcome(move, self.actors.of(sent), self.stores.of(after), violation=why)

    def _faults_before(
        self, actor: ExplorerClient, stored: StoredState, write: WriteInFlight, name: int
    ) -> Iterable[MoveOutcome]:
        kinds = self.bounds.kinds
        if ExplorerFault.LATE in kinds:
            reported = self._answer(
                actor, stored, Unknown("no answer"), name, ExplorerFault.LATE.value
            )
            yield replace(reported, late=write, cost=1)
        if ExplorerFault.RETRY in kinds:
            move = Move(actor.index, ExplorerFault.RETRY.value, write=write)
            yield MoveOutcome(move, self.actors.of(actor), self.stores.of(stored), write, 1)
        if ExplorerFault.THROTTLE in kinds:
            reported = self._answer(actor, stored, Throttled(), name, ExplorerFault.THROTTLE.value)
            yield replace(reported, cost=1)

    def _faults_after(
        self, actor: ExplorerClient, stored: StoredState, write: WriteInFlight, name: int
    ) -> Iterable[MoveOutcome]:
        kinds = self.bounds.kinds
        if ExplorerFault.LOST in kinds:
            reported = self._answer(
                actor, stored, Unknown("no answer"), name, ExplorerFault.LOST.value
            )
            yield replace(reported, cost=1)
        if ExplorerFault.RETRY in kinds:
            again = replace(actor, out=replace(write, answer=None))
            move = Move(actor.index, ExplorerFault.RETRY.value, write=write)
            yield MoveOutcome(move, self.actors.of(again), self.stores.of(stored), cost=1)

    def _crashes(self, actor: ExplorerClient, stored: StoredState) -> Iterable[MoveOutcome]:
        """It restarts under another name, without memory; a write that it had sent may yet land.

        No crash while its commit is on the way: that would equal a stall that never ends.
        """
        born = replace(self._newcomer(actor.index), life=actor.life)
        if actor == born or (actor.draft is not None and actor.draft.sent):
            return
        out = actor.out
        flying = out if isinstance(out, WriteInFlight) and out.answer is None else None
        move = Move(actor.index, ExplorerFault.CRASH.value, write=flying)
        number = self.actors.of(replace(born, life=actor.life + 1))
        yield MoveOutcome(move, number, self.stores.of(stored), flying, 1)

    def _commit_moves(self, actor: ExplorerClient, stored: StoredState) -> Iterable[MoveOutcome]:
        """Read the resource, check the lease, send the commit; it may be applied at any time."""
        draft, until = actor.draft, actor.state.until_ms
        believes = until is not None and until > 0
        here = self.stores.of(stored)
        if draft is None and believes and actor.commits:
            assert actor.state.grant is not None
            began = CommitDraft(stored.commits, actor.state.grant.epoch, actor.serial)
            after = replace(actor, draft=began, commits=actor.commits - 1)
            yield MoveOutcome(Move(actor.index, "check"), self.actors.of(after), here)
        elif draft is not None and not draft.sent and believes:
            after = replace(actor, draft=replace(draft, sent=True))
            yield MoveOutcome(Move(actor.index, "commit"), self.actors.of(after), here)
        elif draft is not None and draft.sent:
            accepted, why = self._judge(owner_of(actor.index, actor.life), stored, draft)
            landed = stored
            if accepted:
                landed = replace(
                    stored, commits=stored.commits + 1, token=max(stored.token, draft.epoch),
                    last_serial=max(stored.last_serial, draft.serial),
                )  # fmt: skip
            done = self.actors.of(replace(actor, draft=None))
            move = Move(actor.index, "land", accepted=accepted)
            yield MoveOutcome(move, done, self.stores.of(landed), violation=why)

    def _judge(self, who: str, stored: StoredState, draft: CommitDraft) -> tuple[bool, str]:
        """Whether the resource accepts this commit, and which invariant that breaks."""
        match self.fence:
            case CommitGuard.CAS:
                accepted = draft.base == stored.commits
            case CommitGuard.TOKEN:
                accepted = draft.epoch >= stored.token
            case CommitGuard.OFF:
                accepted = True
            case _:
                assert_never(self.fence)
        if not accepted:
            return False, ""
        watch = self.bounds.watch
        if draft.serial < stored.last_serial and Invariant.NO_STALE_WRITE in watch:
            return True, f"{Invariant.NO_STALE_WRITE}: {who} commits after a later holder's commit"
        if draft.base != stored.commits and Invariant.NO_LOST_UPDATE in watch:
            return True, f"{Invariant.NO_LOST_UPDATE}: {who} has not seen the commit before its own"
        return True, ""

    # --- what the store does ---

    def _glance(self, stored: StoredState) -> Observation:
        if self.policy.expiry is not Expiry.STORE or stored.record is None or stored.record.expired:
            return Observation(stored.version, stored.record)
        # Only the difference of the two times counts; an answer that comes late frees later.
        age = stored.modified - self.bounds.spread
        return Observation(stored.version, stored.record, max(age, self.ageing.oldest_modified), 0)

    def _apply(
        self, stored: StoredState, write: WriteInFlight
    ) -> tuple[StoredState, WriteAnswer, str]:
        if write.remove:
            if write.over is not None and write.over != stored.version:
                return stored, PreconditionFailed(), ""
            return replace(stored, record=None, version=None, modified=0), Applied(""), ""
        if write.over != stored.version:
            return stored, PreconditionFailed(), ""
        record, old = write.record, stored.record
        granted = not record.expired and (
            old is None or old.expired or old.owner != record.owner or old.epoch != record.epoch
        )
        why = ""
        if granted and record.epoch <= stored.top and Invariant.EPOCHS_RISE in self.bounds.watch:
            because = f"{record.owner} was granted epoch {record.epoch} after epoch {stored.top}"
            why = f"{Invariant.EPOCHS_RISE}: {because}"
        after = replace(
            stored, record=record, version=record.attempt, modified=0,
            top=max(stored.top, record.epoch),
            serial=stored.serial + (granted and self._committing),
        )  # fmt: skip
        return after, Applied(record.attempt), why

    def _late_moves(self, late: int, store: int) -> list[tuple[Move, int, int, str]]:
        key = (late, store)
        found = self._landed.get(key)
        if found is None:
            found = self._landed[key] = []
            flying, stored = self.lates.parts[late], self.stores.parts[store]
            for place, write in enumerate(flying):
                after, answer, why = self._apply(stored, write)
                if not isinstance(answer, Applied):
                    continue  # it waits; once its version is gone for good, it is dropped
                rest = self.lates.of((*flying[:place], *flying[place + 1 :]))
                move = Move(client_of(write.record.owner), "late", write=write, accepted=True)
                found.append((move, rest, self.stores.of(after), why))
        return found

    def _self_inflicted(
        self, actor: ExplorerClient, stored: StoredState, actions: tuple[Action, ...]
    ) -> str:
        """A client reports a loss, or waits, while its own live write is the lock object."""
        record = stored.record
        if record is None or record.expired or Invariant.NO_SELF_LOSS not in self.bounds.watch:
            return ""
        if record.owner != owner_of(actor.index, actor.life):
            return ""
        until = actor.state.until_ms
        for each in actions:
            match each:
                case ClaimLost():
                    because = "takes its own write for another client's"
                case LeaseLost() if until is not None and until > 0:
                    because = "reports the loss of a lock that it still has"
                # By what it saw: a write that landed since is recognised at the next look.
                case HeldByOther(Record(owner=seen)) if seen == record.owner:
                    because = "waits for its own live lease"
                case _:
                    continue
            return f"{Invariant.NO_SELF_LOSS}: {record.owner} {because}"
        return ""
