"""Names of attempts, which are reused once nothing in the world refers to them."""

from __future__ import annotations

from collections.abc import Iterable

from lockkit.lab.verify.explore.parts import ExplorerClient, PendingRead, WriteInFlight
from lockkit.protocol.outcome import Version

NAMES_MAX = 16
"""Attempts of one client that may be remembered by anybody at one time."""


def owner_of(client: int, life: int) -> str:
    """W1, W2, ...; W1', W1'' after restarts of its process."""
    return f"W{client + 1}{chr(39) * life}"


def client_of(owner: str) -> int:
    return int(owner[1:].rstrip("'")) - 1


def names_of_actor(actor: ExplorerClient) -> Iterable[Version | None]:
    state, out = actor.state, actor.out
    if state.observed is not None:
        yield state.observed.observation.version
    for write in (state.out, *state.unsettled):
        if write is not None:
            yield write.record.attempt
            yield write.over
    if state.grant is not None:
        yield state.grant.attempt
    yield state.version
    match out:
        case PendingRead(observation):
            yield observation.version
        case WriteInFlight(record, over):
            yield record.attempt
            yield over


def becomes(write: WriteInFlight) -> Version | None:
    """The object's version if this write is applied."""
    return None if write.remove else write.record.attempt


def undecided(actor: ExplorerClient) -> tuple[Version | None, ...]:
    """The object's version if this client's write is applied; () if none is on its way."""
    match actor.out:
        case WriteInFlight(answer=None) as write:
            return (becomes(write),)
        case _:
            return ()


def mask(names: Iterable[Version | None]) -> int:
    mask = 0
    for name in names:
        if name:
            owner, _, number = name.partition("/")
            mask |= 1 << (NAMES_MAX * client_of(owner) + int(number) - 1)
    return mask


def lowest_free(mask: int) -> int:
    """The lowest write count of a client for which the next name is free."""
    free = 0
    while mask & 1:
        mask >>= 1
        free += 1
    assert free < NAMES_MAX, "more attempts in play than names"
    return free
