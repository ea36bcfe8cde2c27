"""A simulated writer's turn: the lock around a commit, or no lock at all.

In half of the worlds no lock excludes anybody (`single_writer` said by several processes): then the
fence alone keeps the table right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockkit.client import LOCK_KEY
from lockkit.drive import Get, Procedure, Put, Request, Sleep, Together
from lockkit.sim.lease import LOOKS_MAX, Session, wait_s
from lockkit.state import Action, Aim, GiveUp, Granted, LockLost, Tick, Want
from lockkit.table.commit import Committed, complete, decide
from lockkit.table.fence import read_fence
from lockkit.table.publish import Scout
from lockkit.table.transaction import Prepared
from lockkit.table.turns import Epoch, commit_alone

if TYPE_CHECKING:
    from lockkit.table.simulation.scenario import TableRun

IMPATIENT = 0.05
"""How often a waiter gives up at one look."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A grant: the epoch that goes into the fence, and the question whether it still stands."""

    guard: Epoch
    believe: Callable[[], None]


def publish(
    run: TableRun, session: Session, prepared: Prepared, check: Callable[[], None]
) -> Procedure[Committed]:
    """As `lockkit.table.publish.publish`, and `OneProcess.publish` where there is no lock."""
    if not run.locked:
        return (yield from commit_alone(prepared))
    no_store: Any = None  # its reads go through the simulated world
    scout = Scout(prepared, no_store, session.node.clock)
    turn = yield from take_turn(run, session, scout)

    def believe() -> None:
        turn.believe()
        check()

    try:
        decision = yield from decide(prepared, turn.guard, believe=believe, ahead=scout.ahead)
    except Exception:
        yield from let_go(run, session)
        raise
    committed, _ = yield Together((complete(decision), let_go(run, session)))
    done: Committed = committed
    return done


def take_turn(run: TableRun, session: Session, scout: Scout | None = None) -> Procedure[Turn]:
    """Acquire the lock; `LockLost` once the waiter loses its patience."""
    if run.at_rest or not run.locked:
        seen = yield from read_fence()
        return Turn(Epoch(seen.fence.epoch if seen.fence else 0), _trust)
    yield from let_go(run, session)
    if not (yield from _acquire(run, session, scout)):
        raise LockLost("the lock was never acquired")
    grant, clock = session.client.state.grant, session.node.clock
    assert grant is not None

    def believe() -> None:
        until = session.client.state.until_ms
        if until is None or clock.boot_ms() >= until:
            raise LockLost("the lease ran out")

    return Turn(Epoch(grant.epoch), believe)


def let_go(run: TableRun, session: Session) -> Procedure[None]:
    if session.client.state.grant is not None:
        yield from run.leases.release(session)


def _trust() -> None:
    """No lock, no lease that could end."""


def _acquire(run: TableRun, session: Session, scout: Scout | None) -> Procedure[bool]:
    client, clock, dice = session.client, session.node.clock, run.world.dice.random
    client.begin()
    told = yield from _beside(session, client.steps(Want(clock.now())), scout)
    for _ in range(LOOKS_MAX):
        if any(isinstance(each, Granted) for each in told):
            return True
        yield Sleep(wait_s(told, dice(), client))
        if dice() < IMPATIENT:
            break
        told = yield from _beside(session, client.steps(Tick(clock.now())), scout)
    yield from client.steps(GiveUp(clock.now()))
    return False


def _beside(
    session: Session, steps: Procedure[list[Action]], scout: Scout | None
) -> Procedure[list[Action]]:
    """The lock's own requests, with the scout's reads beside each look and each claim."""
    answer: Any = None
    try:
        request = steps.send(None)
        while True:
            claiming = _claiming(session, request)
            try:
                if scout is None or claiming is None:
                    answer = yield request
                else:
                    answer, _ = yield Together((_ask(request), scout.look(claiming)))
            except Exception as error:  # noqa: BLE001 - handed to the procedure, not swallowed
                request = steps.throw(error)
            else:
                request = steps.send(answer)
    except StopIteration as done:
        told: list[Action] = done.value
        return told


def _claiming(session: Session, request: Request) -> bool | None:
    """Whether it is a claim of the lock; None: neither a claim nor a look."""
    match request:
        case Get(key) if key == LOCK_KEY:
            return False
        case Put(key) if key == LOCK_KEY:
            out = session.client.state.out
            return True if out is not None and out.aim is Aim.CLAIM else None
        case _:
            return None


def _ask(request: Request) -> Procedure[Any]:
    answer = yield request
    return answer
