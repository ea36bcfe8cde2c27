"""Planted mistakes of the table's room: functions of it that are replaced by what is plausible.

One list for the exhaustive search (test_table_schedules) and the simulator (test_sim).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from importlib import import_module
from typing import Any
from unittest.mock import patch

from lockkit.errors import LockLost, LossReason
from lockkit.protocol.outcome import Applied, Found, IfAbsent, over
from lockkit.runtime import Get, Note, Procedure, Put, Unique, WallMs
from lockkit.runtime.proven import create
from lockkit.table import FENCE_KEY, Committed, Prepared
from lockkit.table.format.timeline import TimelineNames, instant_ms, instant_of
from lockkit.table.occ.fence import Fence, format_fence, read_fence
from lockkit.table.occ.liveness import heartbeat_key

ROOMS = {
    each.rpartition(".")[2]: import_module(f"lockkit.{each}")
    for each in (
        "table.services.clean", "table.occ.commit", "table.occ.committing", "table.occ.decide",
        "table.occ.failed",
        "table.occ.fence", "table.occ.heartbeat", "table.read.incremental", "table.occ.liveness",
        "table.occ.rollback", "table.format.timeline", "table.occ.transaction",
        "table.occ.news",
    )
}  # fmt: skip

decide, replace_fence = ROOMS["commit"].decide, ROOMS["decide"].replace_fence
files_of = ROOMS["rollback"]._files_of


def yes(*_: Any, **__: Any) -> Procedure[bool]:
    yield from ()
    return True


def nothing(*_: Any, **__: Any) -> Procedure[None]:
    yield from ()


def whole_window(fence: Fence, *_: Any) -> Any:
    return fence.window


def whatever_it_says(names: TimelineNames, seen: Any, entry: Fence) -> Procedure[bool]:
    return (yield from replace_fence(names, (yield from read_fence()), entry))


def a_lost_answer_is_a_no(_: TimelineNames, seen: Any, entry: Fence) -> Procedure[bool]:
    if isinstance((yield Put(FENCE_KEY, format_fence(entry), over(seen.version))), Applied):
        return True
    raise LockLost("the commit", "no answer", "begin again", reason=LossReason.EXPIRED)


def unlooked(names: TimelineNames, target: str) -> Procedure[Any]:
    return replace((yield from files_of(names, target)), completed={})


def by_its_own_clock(names: TimelineNames, *_: Any) -> Procedure[str | None]:
    return instant_of((yield WallMs())) if names.layout == 2 else None


def another_name(names: TimelineNames, decided: Any) -> str:
    later = decided.completion and instant_of(instant_ms(decided.completion) + 1)
    return names.completed(decided.instant, decided.action, later)


def done_of(prepared: Prepared) -> str:
    later = None if prepared.names.layout == 1 else instant_of(instant_ms(prepared.instant) + 1)
    return prepared.names.completed(prepared.instant, "commit", later)


def published_first(prepared: Prepared, guard: Any, **options: Any) -> Procedure[Any]:
    yield from create(done_of(prepared), prepared.body)
    return (yield from decide(prepared, guard, **options))


def unproven(decision: Any) -> Procedure[Committed]:
    prepared, done = decision.prepared, ROOMS["decide"].completed_key
    yield Put(done(prepared.names, decision.decided), prepared.body, IfAbsent())
    yield Note("published", {"instant": prepared.instant, "epoch": decision.epoch})
    return Committed(prepared.instant, decision.epoch, decision.rounds, decision.rolled_forward)


def blind_beat(now: Any) -> Procedure[Any]:
    """As Hudi's: over whatever is there."""
    key = heartbeat_key(now.instant)
    found = yield Get(key)
    body = f'{{"instant":"{now.instant}","attempt":"{(yield Unique())}","ttlMs":{now.ttl_ms}}}'
    version = found.version if isinstance(found, Found) else None
    answer = yield Put(key, body.encode(), over(version))
    return replace(now, version=answer.version) if isinstance(answer, Applied) else now


MUTANTS: dict[str, dict[str, Any]] = {
    "no fence": {"committing.FENCED": "nothing", "committing.refuse_open": lambda _: None},
    "the fence is replaced without a condition": {"commit.replace_fence": whatever_it_says},
    "no conflict check": {"commit.find_conflict": lambda *_, **__: None},
    "a refused decision counts as made": {"decide._was_superseded": yes},
    "a lost answer counts as a refusal": {"commit.replace_fence": a_lost_answer_is_a_no},
    "published before it is decided": {"committing.decide": published_first},
    "acknowledged before it is proven": {"committing.complete": unproven},
    "the last decision is not settled": {"commit.settle": nothing},
    "a window that is too short counts as complete": {
        "fence.WINDOW_MAX": 1, "fence.Fence.since": whole_window,
    },
    "a rollback does not settle": {"rollback.settle": nothing},
    "a rollback does not check for the completed file": {"rollback._files_of": unlooked},
    "a rollback deletes before it is decided": {"rollback.replace_fence": yes},
    "a writer does not check whether it was rolled back": {"news.ROLLBACK": "nothing"},
    "completion times come from the writer's clock": {
        "commit.completion_time": by_its_own_clock, "committing.completion_time": by_its_own_clock,
    },
    "a roll-forward chooses its own completion time": {"decide.completed_key": another_name},
    "begin does not look for later commits": {
        "timeline.Timeline.latest": property(lambda _: "")
    },
    "begin does not look for rollbacks": {
        "timeline.Timeline.latest": property(lambda now: max(now.commits, default=""))
    },
    "a living writer counts as dead": {
        "liveness.expired": lambda *_: True, "failed.expired": lambda *_: True,
    },
    "a heartbeat is written without a condition": {
        "heartbeat.beat": blind_beat,
    },
    "an increment passes a pending instant": {"incremental.first_pending": lambda *_: "~"},
    "a clean deletes the latest slices too": {
        "clean.garbage": lambda lineage, *_, **__: frozenset(lineage.instants)
    },
}  # fmt: skip


@contextmanager
def planted(name: str) -> Iterator[None]:
    """While it lasts, the room has this mistake."""
    off = MUTANTS[name]
    patches = []
    for where, instead in off.items():
        room, _, attribute = where.partition(".")
        *inside, last = attribute.split(".")
        patches.append(patch.object(reduce(getattr, inside, ROOMS[room]), last, instead))
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in reversed(patches):
            each.stop()
