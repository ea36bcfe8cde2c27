"""What became of a write without an answer: a read decides. Pure.

A ghost is a write of ours that we gave up on: it may have landed, or may still land.
"""

from __future__ import annotations

from dataclasses import replace

from lockkit.protocol.outcome import NotOurs, Ours, Resolution, StillOut, resolve
from lockkit.protocol.record import Record
from lockkit.protocol.state import Observation, PendingWrite, State


def fate(write: PendingWrite, observation: Observation) -> Resolution:
    attempt = attempt_in(observation, write)
    return resolve(
        observation.version, attempt, attempt=write.record.attempt, wrote_over=write.over
    )


def attempt_in(observation: Observation, _write: PendingWrite) -> str | None:
    """A write is recognised by its unique attempt, because several handles may share an owner."""
    return observation.record.attempt if isinstance(observation.record, Record) else None


def settle_ghosts(state: State, observation: Observation) -> tuple[State, PendingWrite | None]:
    """Settle old writes against a read: keep those that may still land, and the one that landed.

    That one is also returned. It is kept until a write of ours has replaced it: a client that gives
    up before that must recognise it at its next try, and neither wait for it nor leave it there.
    """
    if not state.unsettled:
        return state, None
    landed: PendingWrite | None = None
    waiting: list[PendingWrite] = []
    for write in state.unsettled:
        match fate(write, observation):
            case Ours():
                landed = write
                waiting.append(write)
            case StillOut():
                waiting.append(write)
            case NotOurs():
                pass
    return replace(state, unsettled=tuple(waiting)), landed


def to_ghost(state: State) -> State:
    """Give up on the pending write."""
    if state.out is None:
        return state
    return replace(state, out=None, unsettled=(*state.unsettled, state.out))
