"""The clients of a simulated table: writers, a rollback service, a reader.

A writer makes the steps of a real one, in their order, by the table's own procedures.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockkit.errors import LockLost, LossReason, TableError
from lockkit.lab.verify.sim.lease import LeaseSession
from lockkit.lab.verify.sim.task import Node
from lockkit.lab.verify.table.heart import SimHeartbeat
from lockkit.lab.verify.wrong_rules import CommitGuard
from lockkit.protocol.outcome import Found
from lockkit.runtime import Procedure, Sleep
from lockkit.runtime.proven import create, read
from lockkit.table.errors import CommitUnknown, TableChanged
from lockkit.table.format.base_file import Slice
from lockkit.table.format.layout import NO_COMMIT, WriteStat, file_name
from lockkit.table.format.properties import load_config
from lockkit.table.format.timeline import load_timeline
from lockkit.table.occ.commit import trust
from lockkit.table.occ.committing import commit
from lockkit.table.occ.failed import failed_writes
from lockkit.table.occ.heartbeat_rules import HeartbeatRules
from lockkit.table.occ.liveness import end
from lockkit.table.occ.markers import mark, unmark
from lockkit.table.occ.pending import load_rollback_plan
from lockkit.table.occ.prepared import Prepared, prepare
from lockkit.table.occ.rollback import roll_back
from lockkit.table.occ.transaction import TableCache, begin
from lockkit.table.read.incremental import load_increment
from lockkit.table.read.opening import load_snapshot
from lockkit.table.services.clean import carry_out, plan_clean
from lockkit.table.services.rules import CleanRules

if TYPE_CHECKING:
    from lockkit.lab.verify.table_scenario import CommitRun

KEYS, GROUPS = 8, 3
COMMITS_MAX, TRIES_MAX, ROUNDS_MAX = 3, 4, 40
BEATS = HeartbeatRules(interval_ms=20_000)
"""Long: here seconds may pass between any two requests, and a writer whose beat is late fails."""
RETAINED = CleanRules(commits=2)
SCHEMA = '{"type":"record","name":"counts","fields":[{"name":"id","type":"string"}]}'
EXPECTED = (TableError, LockLost, CommitUnknown)


@dataclass(slots=True)
class WorkerTransaction:
    """A transaction that reached its commit, and the answer to its writer."""

    keys: tuple[str, ...]
    reported: str = ""


@dataclass(frozen=True, slots=True)
class WorkerGrant:
    """The part of a lock that a commit needs."""

    epoch: int


# --- writers --------------------------------------------------------------------------------------


def begin_writer(run: CommitRun, node: Node) -> None:
    run.world.spawn(node, writer(run, run.leases.join(node)))


def writer(run: CommitRun, session: LeaseSession) -> Procedure[None]:
    dice = run.world.dice
    for _ in range(COMMITS_MAX):
        keys = tuple(sorted(dice.sample([f"k{n}" for n in range(KEYS)], 2)))
        for _ in range(TRIES_MAX):
            try:
                yield from transact(run, session, keys)
                break
            except EXPECTED:
                yield Sleep(dice.random())
        yield Sleep(dice.random() * 2)


def transact(run: CommitRun, session: LeaseSession, keys: tuple[str, ...]) -> Procedure[None]:
    """Begin, start the heartbeat, mark, write, prepare; then commit under the lock."""
    transaction = yield from begin()
    instant = transaction.instant
    heart = SimHeartbeat.of(instant, run.world, session.node, rules=BEATS)
    run.hearts[instant] = heart
    try:
        yield from heart.begin()
        stats = []
        snapshot = yield from load_snapshot(covering=transaction.covered)
        for group in sorted({_group(key) for key in keys}):
            base = snapshot.groups.get(("", group))
            stats.append((yield from _write(instant, group, base, keys)))
        prepared = yield from prepare(transaction, stats, schema=SCHEMA)
        run.tried[instant] = WorkerTransaction(keys)
        yield from publish(run, session, prepared, heart)
    finally:
        heart.stop()
    yield from heart.finished()
    yield from unmark(instant)


def _write(
    instant: str, group: str, base: Slice | None, keys: tuple[str, ...]
) -> Procedure[WriteStat]:
    """Mark, then write the next slice of one file group."""
    counts = {} if base is None else (yield from read_counts(base.path))
    for key in keys:
        if _group(key) == group:
            counts[key] = counts.get(key, 0) + 1
    path, body = file_name(group, instant), json.dumps(counts).encode()
    yield from mark(instant, path, "CREATE" if base is None else "MERGE")
    yield from create(path, body)
    return WriteStat(
        partition="", file_id=group, path=path, writes=len(counts),
        previous=NO_COMMIT if base is None else base.instant, size_bytes=len(body),
    )  # fmt: skip


def publish(
    run: CommitRun, session: LeaseSession, prepared: Prepared, heart: SimHeartbeat
) -> Procedure[None]:
    """Commit until the outcome is known. However a commit ends, the lock is released."""
    mine = run.tried[prepared.instant]
    fence = False if run.leases.fence is CommitGuard.OFF else None
    for _ in range(TRIES_MAX):
        grant, believe = yield from guard(run, session)

        def both(believe: Callable[[], None] = believe) -> None:
            believe()
            heart.assert_alive()

        refused: Exception | None = None
        try:
            yield from commit(prepared, grant, believe=both, fence=fence)
            mine.reported = prepared.instant
        except CommitUnknown:
            mine.reported = CommitUnknown.__name__
        except EXPECTED as error:
            mine.reported, refused = type(error).__name__, error
        yield from let_go(run, session)
        if refused is not None:
            raise refused
        if mine.reported == prepared.instant:
            return


def guard(
    run: CommitRun, session: LeaseSession
) -> Procedure[tuple[WorkerGrant, Callable[[], None]]]:
    """A grant of the lock; in a world without a lock, the next epoch."""
    if not run.locked:
        run.epoch += 1
        return WorkerGrant(run.epoch), trust
    yield from let_go(run, session)
    if not (yield from run.leases.acquire(session)):
        why = "it was never acquired"
        raise LockLost("the lock", why, "begin again", reason=LossReason.NEVER_ACQUIRED)
    grant, clock = session.client.state.grant, session.node.clock
    assert grant is not None

    def believe() -> None:
        until = session.client.state.until_ms
        if until is None or clock.boot_ms() >= until:
            why = "the lease ran out"
            raise LockLost("the lock", why, "begin again", reason=LossReason.EXPIRED)

    return WorkerGrant(grant.epoch), believe


def let_go(run: CommitRun, session: LeaseSession) -> Procedure[None]:
    if session.client.state.grant is not None:
        yield from run.leases.release(session)


# --- services and readers -------------------------------------------------------------------------


def begin_cleaner(run: CommitRun, node: Node) -> None:
    run.world.spawn(node, cleaner(run, run.leases.join(node)))


def cleaner(run: CommitRun, session: LeaseSession) -> Procedure[None]:
    for _ in range(ROUNDS_MAX):
        yield Sleep(run.world.dice.random() * 6)
        if not busy(run):
            return
        try:
            yield from take_back(run, session)
            yield from clean(run)
        except EXPECTED:
            yield from let_go(run, session)


def take_back(run: CommitRun, session: LeaseSession) -> Procedure[None]:
    """Roll back every write whose heartbeat has ended, and finish every rollback that was begun."""
    config, version = yield from load_config()
    known, names = TableCache(config, version), config.names
    now = yield from load_timeline(names)
    doomed: dict[str, str | None] = {}
    for instant, action in now.pending.items():
        plan = (yield from load_rollback_plan(names, instant)) if action == "rollback" else None
        if plan is not None:
            doomed[plan.target] = instant
    if run.hasty:
        doomed |= {each: None for each, its in now.pending.items() if its == "commit"}
    for heartbeat in (yield from failed_writes(names, now, "LAZY", BEATS)):
        if heartbeat.instant not in doomed and (yield from end(heartbeat)):
            doomed[heartbeat.instant] = None
    for target, resume in doomed.items():
        grant, believe = yield from guard(run, session)
        yield from roll_back(target, grant, known, believe=believe, resume=resume)
        yield from let_go(run, session)


def clean(run: CommitRun) -> Procedure[None]:
    config, version = yield from load_config()
    plan = yield from plan_clean(TableCache(config, version), RETAINED)
    if plan.instant:
        yield from carry_out(plan, config.names)


def puller(run: CommitRun) -> Procedure[None]:
    """Follow the table by increments."""
    start = ""
    for _ in range(ROUNDS_MAX):
        yield Sleep(run.world.dice.random() * 2)
        if not busy(run):
            return
        try:
            increment = yield from load_increment(start)
        except TableError:
            continue
        if increment.snapshot is not None:
            run.truth.pull(start, increment.end, increment.snapshot.groups)
        start = increment.end


def busy(run: CommitRun) -> bool:
    """Whether a writer still works, or will restart."""
    at_work = [each.node for each in run.world.tasks]
    down = [each for each in run.world.nodes if each.down]
    return any(each.name.startswith("W") for each in (*at_work, *down))


def _group(key: str) -> str:
    return f"group-{int(key[1:]) % GROUPS}"


def read_counts(path: str) -> Procedure[dict[str, int]]:
    match (yield from read(path)):
        case Found(body, _):
            counts: dict[str, int] = json.loads(body)
            return counts
        case _missing:
            raise TableChanged(path, "is gone: it was cleaned, or rolled back", "begin again")
