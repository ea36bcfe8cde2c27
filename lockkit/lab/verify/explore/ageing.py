"""Times relative to now, clipped where older makes no difference; and what a state may forget.

So the number of states is finite, however long the story.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lockkit.lab.verify.explore.parts import (
    Bounds,
    ExplorerClient,
    ExplorerFault,
    PendingRead,
    StoredState,
    WriteInFlight,
)
from lockkit.protocol.policy import Expiry, Policy
from lockkit.protocol.record import Record
from lockkit.protocol.state import (
    LastObservation,
    Now,
    Observation,
    PendingWrite,
    Phase,
    State,
    WritePurpose,
)


@dataclass(slots=True)
class Ageing:
    """The normal form of each part of a state, now and one tick later."""

    policy: Policy
    bounds: Bounds
    forgets: bool
    """Leave out what the protocol cannot look at any more (a test compares)."""
    off: Mapping[str, Any]
    """The rules that a mistake has otherwise: it may look at what the right one does not."""
    oldest_modified: int = field(init=False)
    _oldest_send: int = field(init=False)
    _oldest_until: int = field(init=False)

    def __post_init__(self) -> None:
        ttl, drift = self.bounds.ttl, self.policy.drift_ms
        self._oldest_send = -(ttl + drift) if "drift_for_holder" in self.off else -ttl
        self._oldest_until = min(self.bounds.offsets) - drift
        self.oldest_modified = -(ttl + self.policy.slack_ms + self.bounds.spread)

    def actor(self, actor: ExplorerClient) -> ExplorerClient:
        state, out, draft = actor.state, actor.out, actor.draft
        if self.forgets and state.phase is Phase.IDLE and not actor.acquires and draft is None:
            return ExplorerClient(
                actor.index, State(), None, 0, 0, 0, 0, actor.life
            )  # it acts no more
        until = None if state.until_ms is None else max(0, state.until_ms)
        if draft is not None and not draft.sent and not until:
            draft = None  # it looks at the lease before it sends: nothing is sent
        state = replace(
            state, observed=self._fix_observed(actor, state.observed), until_ms=until, writes=0,
            out=None if state.out is None else self._fix_write(state.out),
            unsettled=tuple(self._fix_ghost(each) for each in state.unsettled),
            grant=None if state.grant is None else replace(state.grant, valid_until_ms=0),
        )  # fmt: skip
        if isinstance(out, PendingRead):
            out = PendingRead(self.observation(out.observation))
        elif out is not None:
            out = replace(out, record=self.record(out.record))
        return replace(actor, state=state, out=out, draft=draft)

    def record(self, record: Record) -> Record:
        """`validUntil` matters only to the wall policy, until it has ended for all clients."""
        if self.policy.expiry is not Expiry.WALL or record.expired:
            return replace(record, valid_until_ms=0)
        return replace(record, valid_until_ms=max(record.valid_until_ms, self._oldest_until))

    def _fix_write(self, write: PendingWrite) -> PendingWrite:
        sent = Now(max(write.sent.boot_ms, self._oldest_send), 0)
        if write.purpose is WritePurpose.RELEASE:
            sent = Now(0, 0)
        return replace(write, record=self.record(write.record), sent=sent)

    def _fix_ghost(self, write: PendingWrite) -> PendingWrite:
        """The time of a ghost matters only to clients that believe it without a confirmation."""
        write = self._fix_write(write)
        return write if "confirm" in self.off else replace(write, sent=Now(0, 0))

    def observation(self, observation: Observation) -> Observation:
        record = observation.record
        if isinstance(record, Record):
            record = self.record(record)
        if observation.modified_ms is None or observation.date_ms is None:
            return Observation(observation.version, record)
        age = max(observation.modified_ms - observation.date_ms, self.oldest_modified)
        return Observation(observation.version, record, age, 0)

    def _fix_observed(
        self, actor: ExplorerClient, observed: LastObservation | None
    ) -> LastObservation | None:
        """Keep an observation only if the protocol uses it before the next read."""
        if observed is None or (self.forgets and not self._looks_back(actor)):
            return None
        observation = self.observation(observed.observation)
        since = 0
        if isinstance(observation.record, Record) and not observation.record.expired:
            if self.policy.expiry is Expiry.OBSERVED:
                since = max(observed.since_ms, -self.bounds.ttl)
        else:
            observation = Observation(observation.version, observation.record)
        return LastObservation(observation, since, 0)

    def _looks_back(self, actor: ExplorerClient) -> bool:
        match actor.state.phase:
            case Phase.IDLE | Phase.WAITING:
                return True
            case Phase.LOST:
                return actor.state.version is None
            case Phase.CLAIMING:
                return ExplorerFault.THROTTLE in self.bounds.kinds and self.bounds.faults > 0
            case Phase.LOOKING | Phase.SETTLING | Phase.RELEASING:
                return self.policy.expiry is Expiry.OBSERVED  # since when it has been the same
            case _:
                return False

    def _age_record(self, record: Record) -> Record:
        return replace(record, valid_until_ms=record.valid_until_ms - 1)

    def aged_flying(self, write: WriteInFlight) -> WriteInFlight:
        return replace(write, record=self.record(self._age_record(write.record)))

    def _age_write(self, write: PendingWrite) -> PendingWrite:
        sent = Now(write.sent.boot_ms - 1, 0)
        return replace(write, record=self._age_record(write.record), sent=sent)

    def _age_observation(self, observation: Observation) -> Observation:
        record = observation.record
        if isinstance(record, Record):
            record = self._age_record(record)
        return replace(observation, record=record)

    def aged_actor(self, actor: ExplorerClient) -> ExplorerClient:
        state, out = actor.state, actor.out
        observed = state.observed
        if observed is not None:
            observation = self._age_observation(observed.observation)
            if (
                observation.modified_ms is not None
            ):  # the lease that was seen is a tick nearer its end
                observation = replace(observation, modified_ms=observation.modified_ms - 1)
            observed = LastObservation(observation, observed.since_ms - 1, 0)
        state = replace(
            state,
            observed=observed,
            out=None if state.out is None else self._age_write(state.out),
            unsettled=tuple(self._age_write(each) for each in state.unsettled),
            until_ms=None if state.until_ms is None else state.until_ms - 1,
        )
        match out:
            case PendingRead(observation):
                out = PendingRead(self._age_observation(observation))
            case WriteInFlight():
                out = self.aged_flying(out)
        return self.actor(replace(actor, state=state, out=out))

    def aged_store(self, stored: StoredState) -> StoredState:
        record = stored.record
        if record is not None:
            record = self.record(self._age_record(record))
        modified = 0
        if self.policy.expiry is Expiry.STORE and record is not None and not record.expired:
            modified = max(stored.modified - 1, self.oldest_modified)
        return replace(stored, record=record, modified=modified)
