"""Processes that are killed at each write of a non-blocking upsert, a service or an archiver.

Real processes, by SIGKILL, on the embedded server, as in `kill_points`. Another writer's instant is
pending at the same time: it wrote its files before the victim began, and commits after the victim
is dead. Then the dead one is rolled back, the table is compacted, cleaned and archived. hudi-rs
reads the table from the server after each step.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from hudi_rs import read_by_hudi_rs
from kill_points import AFTER, BEFORE, BUCKET, STRIKE_S_MAX, Nursery, Point, main
from test_merge_on_read import Row, made, rows, shown

from lockkit.cli.work import runs
from lockkit.clock import Clock
from lockkit.lab.faults import Fault, Proxy
from lockkit.lab.server import Emulator
from lockkit.lock.creation_check import TABLE_KEY
from lockkit.table import Table
from lockkit.table.occ import commit, late

OPTIONS = {
    "hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL",
    "hoodie.clean.automatic": "false", "hoodie.clean.commits.retained": "1",
}  # fmt: skip
LEASE = {"ttl_s": 60.0}
"""Of those that live: nobody waits for its end."""
BRIEF, PATIENT = "2", "600"
"""Seconds of a victim's lease, and between its heartbeats: brief, so that the others soon see that
it is dead; and so long that nothing is renewed while its writes are counted.
"""
NOT_AGAIN = re.compile(r"[0-9a-f-]{30,}|\d{17}|\d+-\d{8}-\d+|\d-\d-\d{10}")
"""What is another one in the name of the same file of the next table."""
TRIES_S = BRIEF, "8", "32"
NAMES = count()
GONE = -1
"""The last value of a row that stands for its deletion."""
MINE = [("a", "EU", 2, 2), ("b", "US", 2, 2)]


def opened(url: str, endpoint: str, options: Any = OPTIONS, **how: Any) -> Table:
    return Table(url, endpoint=endpoint, options=options, lock=LEASE, **how)


# --- who is killed --------------------------------------------------------------------------------


def mortal(url: str, endpoint: str, renewed_s: str, options: Any = OPTIONS) -> Table:
    beats = {
        "hoodie.client.heartbeat.interval_in_ms": f"{renewed_s}000",
        "hoodie.client.heartbeat.tolerable.misses": "2",
    }  # fmt: skip
    lease = {"ttl_s": float(renewed_s)}
    return Table(url, endpoint=endpoint, options=options | beats, lock=lease)


def upsert(*place: str) -> None:
    with mortal(*place) as table:
        table.upsert(rows(*MINE))


def compact(*place: str) -> None:
    with mortal(*place) as table:
        table.compact()


def clean(*place: str) -> None:
    with mortal(*place) as table:
        table.clean()


def archive(*place: str) -> None:
    # All commits are of this minute: none is left alone for a process that may still publish it.
    late.SETTLED_MS, commit.LATE_MS = -10_000, -1
    with mortal(*place) as table:
        table.archive(keep_min=2, keep_max=3)


# --- the table ------------------------------------------------------------------------------------


class Between:
    """A writer of this process that stands between its files and its commit until told to go."""

    def __init__(self, world: World, *listed: Row) -> None:
        self._wrote, self._go = threading.Event(), threading.Event()
        self._world, self._listed, self.error = world, listed, ""
        self._thread = threading.Thread(target=self._live, daemon=True)

    def _live(self) -> None:
        try:
            with self._world.opened(emit=self._heard) as table:
                assert table.upsert(rows(*self._listed)) is not None
        except Exception:  # noqa: BLE001 - shown by the thread that waits
            self.error = traceback.format_exc()
            self._wrote.set()

    def _heard(self, kind: str, **fields: Any) -> None:
        if kind == "note" and fields["text"].startswith("wrote"):
            self._wrote.set()
            assert self._go.wait(STRIKE_S_MAX)

    def __enter__(self) -> Between:
        self._thread.start()
        assert self._wrote.wait(STRIKE_S_MAX) and not self.error, self.error
        return self

    def commit(self) -> None:
        self._go.set()
        self._thread.join(STRIKE_S_MAX)
        assert not self.error and not self._thread.is_alive(), self.error
        self._world.acknowledge(*self._listed)

    def __exit__(self, *_: object) -> None:
        self._go.set()
        self._thread.join(STRIKE_S_MAX)


@dataclass
class World:
    """A table on the server, and the rows whose writers had an answer."""

    server: Emulator
    url: str
    acknowledged: dict[str, Row]
    options: Mapping[str, str] = field(default_factory=lambda: OPTIONS)

    @property
    def place(self) -> tuple[str, str]:
        return self.url, self.server.s3

    def opened(self, **how: Any) -> Table:
        return opened(*self.place, self.options, **how)

    def acknowledge(self, *listed: Row) -> None:
        for each in listed:
            if self.acknowledged.get(each[0], each)[2] <= each[2]:
                self.acknowledged[each[0]] = each

    def write(self, *listed: Row) -> None:
        with self.opened() as other:
            assert other.upsert(rows(*listed)) is not None
        self.acknowledge(*listed)

    def judge(self, dead: list[Row]) -> bool:
        """Whether the rows of the dead are there: all of them, or none."""
        with self.opened() as other:
            found = shown(other.read())
        assert found == shown(read_by_hudi_rs(self.url, self.server.s3))
        both = replace(self, acknowledged=dict(self.acknowledged))
        both.acknowledge(*dead)
        mine, all_ = (
            sorted(row for row in each.acknowledged.values() if row[3] != GONE)
            for each in (self, both)
        )
        assert found in (mine, all_), found
        return found == all_ != mine

    def bury(self) -> None:
        """Until nothing is pending: a heartbeat of four seconds expires."""
        with mortal(*self.place, BRIEF) as other:
            for _ in range(600):
                other.roll_back_dead()
                now = other._upkeep.service.inspect().now
                if "clean" in now.pending.values():
                    other.clean()
                elif not now.pending:
                    break
                Clock().sleep(0.1)
            assert not now.pending, now.pending
            names = [each.key.rpartition("/")[2] for each in other.store.list("")]
        logs = {found[1] for each in names if (found := re.match(r"\..*_(\d{17})\.log\.", each))}
        archived = {each for each in logs if each < min(now.commits)}
        assert logs - archived <= {*now.completed}, "a log file of a rolled-back instant is there"


def new_world(server: Emulator) -> World:
    url = f"s3://{BUCKET}/merged-{next(NAMES)}"
    with made(url, endpoint=server.s3, options=OPTIONS, lock=LEASE, index="BUCKET", buckets=1):
        world = World(server, url, {})
    world.write(("a", "EU", 1, 1), ("b", "US", 1, 1))
    return world


def with_old_slices(server: Emulator) -> World:
    world = new_world(server)
    with opened(*world.place) as table:
        for n in range(2, 5):
            world.write((f"n{n}", "EU", n, n))
            table.compact()
    return world


def with_old_commits(server: Emulator) -> World:
    world = with_old_slices(server)
    with opened(*world.place) as table:
        table.clean()
    return world


# --- kill points ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Deed:
    """Who is killed, on which table, and which rows then may or may not be there."""

    victim: Callable[..., None]
    new: Callable[[Emulator], World]
    dead: tuple[Row, ...]
    first: str
    """A write that is certainly among the victim's."""
    beside: tuple[Row, ...] = (("a", "EU", 3, 3), ("d", "US", 1, 1))
    """What the other writer writes."""
    after: Callable[[World, Between, list[Row]], bool] | None = None
    """What the living do, and whether the rows of the dead are there then."""


UPSERT = Deed(upsert, new_world, tuple(MINE), "PUT T.deltacommit.requested")
COMPACTION = Deed(compact, new_world, (), "PUT T.compaction.requested")
CLEAN = Deed(clean, with_old_slices, (), "PUT T.clean.requested")
ARCHIVER = Deed(archive, with_old_commits, (), "PUT history/manifest_1")


@contextmanager
def table_for(server: Emulator, deed: Deed) -> Iterator[tuple[World, Between]]:
    world = deed.new(server)
    if deed is COMPACTION:
        world.write(("a", "EU", 2, 5))
    with Between(world, *deed.beside) as slow:
        yield world, slow


def points_of(server: Emulator, nursery: Nursery, deed: Deed) -> list[Point]:
    """Every write of the victim, found by letting it live."""
    found = list[Point]()
    with table_for(server, deed) as (world, _):
        since = len(server.requests())
        with Proxy(server.s3) as proxy:
            nursery.bear(deed.victim, world.url, proxy.url, PATIENT)
            assert nursery.bury() == 0
        folder = world.url.removeprefix(f"s3://{BUCKET}/") + "/"
        for each in server.requests(since):
            if each["method"] not in ("put", "delete") or not each["key"].startswith(folder):
                continue
            key = each["key"].removeprefix(folder)
            if key == TABLE_KEY:  # how a new process tests write conditions: no part of its work
                continue
            glob = NOT_AGAIN.sub("*", key)
            nth = 1 + sum((each["method"], glob) == (of.operation, of.key) for of in found)
            label = NOT_AGAIN.sub("T", key.removeprefix(".hoodie/").removeprefix("timeline/"))
            found.append(Point(each["method"], glob, nth, f"{each['method'].upper()} {label}"))
    return found


def kill(server: Emulator, nursery: Nursery, deed: Deed, point: Point, when: str) -> bool:
    """Whether the rows of the victim are there in the end.

    On a busy machine a victim's heartbeat or lease may end first: it gives up, and another one is
    killed, which renews them more seldom.
    """
    for renewed_s in TRIES_S:
        with table_for(server, deed) as (world, slow):
            if strikes(nursery, deed, world, point, when, renewed_s):
                return (deed.after or shown_after)(world, slow, list(deed.dead))
    raise AssertionError(f"{len(TRIES_S)} victims ended without {point}")


def strikes(
    nursery: Nursery, deed: Deed, world: World, point: Point, when: str, renewed_s: str
) -> bool:
    """Whether the victim was killed there; it may have ended before."""
    struck = threading.Event()
    with Proxy(world.server.s3, on_fault=lambda _: struck.set()) as proxy:
        proxy.inject(
            Fault("hang", when=when, operation=point.operation, key=point.key, nth=point.nth)
        )
        child = nursery.bear(deed.victim, world.url, proxy.url, renewed_s)
        while not struck.wait(0.05):  # it may be slow: the test's timeout is the only limit
            if not runs(child):
                nursery.bury()
                return False
        os.kill(child, signal.SIGKILL)
        assert nursery.bury() == signal.SIGKILL
    return True


def shown_after(world: World, slow: Between, dead: list[Row]) -> bool:
    first = world.judge(dead)
    slow.commit()
    then = world.judge(dead)
    assert then >= first, "what was visible is gone"
    world.write(("c", "EU", 1, 1))
    world.bury()
    assert world.judge(dead) == then
    with opened(*world.place) as table:
        history = {each.instant for each in table.history()}
        table.compact()
        assert shown(table.read(query="read_optimized")) == shown(table.read())
        table.clean()
        table.archive(keep_min=2, keep_max=3)
        after = [each.instant for each in table.history()]
        assert len(after) == len({*after}) and history <= {*after}
    assert world.judge(dead) == then
    return then


BOTH = BEFORE, AFTER

if __name__ == "__main__":
    main(globals())
