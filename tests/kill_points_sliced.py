"""Processes that are killed at each write to a merge-on-read table of version 6, in mode hudi.

As `kill_points_merged`, but the writer that is pending at the same time writes another partition,
because two writers of one file group conflict there. No plan of a compaction is rolled back: it
is carried out afterwards. Then the older instants leave the timeline, as if archived: readers take
the rows of a dead writer for committed then, unless they were taken back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kill_points import BUCKET, main
from kill_points_merged import BRIEF, GONE, LEASE, MINE, NAMES, Between, Deed, World, mortal
from test_merge_on_read import Row, made, rows, shown

from lockkit.clock import Clock
from lockkit.lab.server import Emulator
from lockkit.runtime import run
from lockkit.table.format.timeline import V6
from lockkit.table.occ.liveness import HEARTBEATS
from lockkit.table.write.attempt import WriteAttempt

PLAIN = {"hoodie.clean.automatic": "false", "hoodie.clean.commits.retained": "1"}
BESIDE = (("d", "AP", 1, 1),)

# --- who is killed --------------------------------------------------------------------------------


def upsert(*place: str) -> None:
    with mortal(*place, PLAIN) as table:
        table.upsert(rows(*MINE))


def delete(*place: str) -> None:
    with mortal(*place, PLAIN) as table:
        table.delete(rows(*MINE))


def compact(*place: str) -> None:
    with mortal(*place, PLAIN) as table:
        table.compact()


def clean(*place: str) -> None:
    with mortal(*place, PLAIN) as table:
        table.clean()


def roll_back(*place: str) -> None:
    with mortal(*place, PLAIN) as table:
        service = table._upkeep.service
        known = service.inspect().known
        for instant in pending(service, "deltacommit"):
            if not table.store.list(f"{HEARTBEATS}{instant}"):
                service.context.roll_back(known, instant)


def pending(service: Any, action: str) -> list[str]:
    return [each for each, its in service.inspect().now.pending.items() if its == action]


# --- the table ------------------------------------------------------------------------------------


def new_world(server: Emulator) -> World:
    url = f"s3://{BUCKET}/sliced-{next(NAMES)}"
    how = {"index": "BUCKET", "buckets": 1, "version": 6, "mode": "hudi"}
    with made(url, endpoint=server.s3, options=PLAIN, lock=LEASE, **how):
        world = World(server, url, {}, PLAIN)
    world.write(("a", "EU", 1, 1), ("b", "US", 1, 1))
    return world


def with_old_slices(server: Emulator) -> World:
    world = new_world(server)
    for n in range(2, 5):
        world.write(("n", "EU", n, n))
        with world.opened() as table:
            table.compact()
    return world


def with_a_dead_writer(server: Emulator) -> World:
    """Its files are there, and it ended without a word."""
    world = new_world(server)
    publish, leave = WriteAttempt._publish, WriteAttempt._leave
    WriteAttempt._publish, WriteAttempt._leave = _ends, _nothing  # type: ignore[assignment]
    try:
        with world.opened() as table:
            table.upsert(rows(*MINE))
    except Stops:
        pass
    finally:
        WriteAttempt._publish, WriteAttempt._leave = publish, leave  # type: ignore[method-assign]
    with world.opened() as table:
        for each in table.store.list(HEARTBEATS):
            table.store.delete(each.key)
    return world


class Stops(BaseException):
    """The end of a process."""


def _ends(*_: Any) -> Iterator[Any]:
    raise Stops
    yield


def _nothing(*_: Any) -> Iterator[Any]:
    yield from ()


# --- what the living do ---------------------------------------------------------------------------


def shown_after(world: World, slow: Between, dead: list[Row]) -> bool:
    first = world.judge(dead)
    slow.commit()
    then = world.judge(dead)
    assert then >= first, "what was visible is gone"
    bury(world)
    world.write(("c", "EU", 1, 1))
    with world.opened() as table:
        while table.compact() is not None:
            pass
        assert shown(table.read(query="read_optimized")) == shown(table.read())
        table.clean()
    clean_until_done(world)
    assert world.judge(dead) == then
    for n in range(2):
        world.write(("c", "EU", 2 + n, 1))
    forget(world)
    assert world.judge(dead) == then
    return then


def clean_until_done(world: World) -> None:
    """As Hudi may be at a clean, another process finishes it once it is as old as a heartbeat."""
    with mortal(*world.place, BRIEF, PLAIN) as other:
        for _ in range(600):
            now = other._upkeep.service.inspect().now
            assert {*now.pending.values()} <= {"clean"} and all(now.rollbacks.values()), now
            if not now.pending:
                return
            Clock().sleep(0.1)
            other.clean()
    raise AssertionError(now.pending)


def bury(world: World) -> None:
    """Until nothing is pending but what can be carried out: a heartbeat of four seconds expires."""
    with mortal(*world.place, BRIEF, PLAIN) as other:
        service = other._upkeep.service
        for _ in range(600):
            other.roll_back_dead()
            now = service.inspect().now
            for instant in (each for each, done in now.rollbacks.items() if not done):
                resume(service, instant)
            begun = [each for each, action in now.pending.items() if action != "clean"
                     and (each in now.inflight or other.store.list(HEARTBEATS + each))]  # fmt: skip
            if not begun and "deltacommit" not in now.pending.values():
                return
            Clock().sleep(0.1)
    raise AssertionError(now.pending)


def resume(service: Any, rollback: str) -> None:
    """Hudi may be at a rollback, so a service waits for a day; here nobody is."""
    from lockkit.table.occ.covered import load_rollback_plan

    context = service.context
    if (plan := run(load_rollback_plan(V6, rollback), context.store, Clock())) is not None:
        context.roll_back(service.inspect().known, plan.target, resume=rollback)


def forget(world: World) -> None:
    """Take all but the last commit from the timeline."""
    with world.opened() as table:
        last = max(table._upkeep.service.inspect().now.commits)
        for each in table.store.list(".hoodie/2"):
            if each.key.rpartition("/")[2][:17] < last:
                table.store.delete(each.key)


def _deed(victim: Any, new: Any, dead: tuple[Row, ...], first: str) -> Deed:
    return Deed(victim, new, dead, first, BESIDE, shown_after)


UPSERT = _deed(upsert, new_world, tuple(MINE), "PUT T.deltacommit.requested")
GOES = ("a", "EU", 2, GONE), ("b", "US", 2, GONE)
DELETE = _deed(delete, new_world, GOES, "PUT T.deltacommit.requested")
COMPACTION = _deed(compact, new_world, (), "PUT T.compaction.requested")
CLEAN = _deed(clean, with_old_slices, (), "PUT T.clean.requested")
ROLLBACK = _deed(roll_back, with_a_dead_writer, (), "PUT T.rollback.requested")

if __name__ == "__main__":
    main(globals())
