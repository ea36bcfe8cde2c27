"""Non-blocking writers and archivers that die at any request, beside others that go on.

After each death another writer commits, the dead one is rolled back, and the table is compacted.
Each time hudi-rs reads what a dictionary says.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deaths import Died, Mortal
from test_merge_on_read import Row, rows, shown, theirs
from test_nonblocking import NBCC, AtFiles, hashed

from lockkit.runtime import SiblingInterrupted
from lockkit.table import Table
from lockkit.table.occ.concurrency import SingleWriter
from lockkit.table.services.archive_rules import ArchiveRules
from lockkit.table.services.service import TableService

# The threads of a process that died die with it.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
    pytest.mark.usefixtures("archived_at_once"),
]
REQUESTS_MAX = 300
KEEP = {"hoodie.clean.automatic": "false", "hoodie.clean.commits.retained": "1"}
RULES = ArchiveRules(keep_min=2, keep_max=3)
every = pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.soak)])
sent_or_not = pytest.mark.parametrize("sent", [False, True])


@dataclass
class Judged:
    """A table in a folder, and the rows whose writers had an answer."""

    table: Table
    folder: Path
    acknowledged: dict[str, Row]

    def write(self, *listed: Row) -> None:
        """Another process writes, and is answered."""
        with Table(self.table.url, options=NBCC | KEEP) as other:
            assert other.upsert(rows(*listed)) is not None
        for each in listed:
            standing = self.acknowledged.get(each[0], each)
            self.acknowledged[each[0]] = each if standing[2] <= each[2] else standing

    def check(self, *dead: Row) -> bool:
        """Whether the rows of the dead writer are visible: all of them, or none."""
        found = shown(self.table.read())
        assert found == theirs(self.folder)
        with_dead = dict(self.acknowledged)
        for each in dead:
            if with_dead.get(each[0], each)[2] <= each[2]:
                with_dead[each[0]] = each
        assert found in (sorted(self.acknowledged.values()), sorted(with_dead.values()))
        return found == sorted(with_dead.values()) != sorted(self.acknowledged.values())

    def bury(self) -> None:
        """Roll back the dead writers: their heartbeats, and requests, are as old as can be."""
        hoodie = self.folder / ".hoodie"
        for each in (*hoodie.glob(".heartbeat/*"), *hoodie.glob("timeline/*.requested")):
            os.utime(each, (0, 0))
        self.table.roll_back_dead()
        now = self.table._upkeep.service.inspect().now
        assert not now.pending, now.pending
        logs = {each.name.split("_")[1].partition(".")[0] for each in self.folder.rglob(".*.log.*")}
        assert logs <= {*now.completed}, "a log file of a rolled-back instant is still there"


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[Any]:
    made = list[Judged]()

    def new(copied: Judged | None = None) -> Judged:
        folder, known = tmp_path / f"t{len(made)}", dict[str, Row]()
        if copied is not None:
            shutil.copytree(copied.folder, folder)
            known = dict(copied.acknowledged)
        table = hashed(f"file://{folder}", name="t", options=NBCC | KEEP, buckets=2)
        made.append(Judged(table, folder, known))
        return made[-1]

    yield new
    for each in made:
        each.table.close()


def mortal(world: Judged, most: int, *, sent: bool, emit: Any) -> Table:
    table = Table(world.table.url, options=NBCC | KEEP, emit=emit)
    table._open()
    table.store = Mortal(table.store, most, sent=sent)  # type: ignore[assignment]
    return table


def dies(way: Any) -> bool:
    try:
        way()
    except (Died, SiblingInterrupted):
        return True
    return False


@every
@sent_or_not
def test_of_two_overlapping_writers_one_may_die_at_any_request_and_the_other_loses_no_row(
    sent: bool, step: int, worlds: Any
) -> None:
    outcomes, mine = set(), [("a", "EU", 2, 2), ("b", "EU", 2, 2)]
    for most in range(0, REQUESTS_MAX, step):
        world: Judged = worlds()
        world.write(("a", "EU", 1, 1), ("b", "EU", 1, 1))
        beside = AtFiles(lambda w=world: w.write(("a", "EU", 3, 3), ("d", "EU", 1, 1)))
        victim = mortal(world, most, sent=sent, emit=beside)
        died = dies(lambda v=victim: v.upsert(rows(*mine)))
        first = world.check(*mine)
        world.write(("c", "EU", 1, 1))
        then = world.check(*mine)
        assert then >= first, "what was visible is gone"
        world.bury()
        assert world.check(*mine) == then
        world.table.compact()
        assert world.check(*mine) == then
        assert shown(world.table.read(query="read_optimized")) == shown(world.table.read())
        outcomes.add((died, then))
        if not died:
            break
    assert outcomes >= {(True, False), (False, True)}, "no death, or nothing else"
    assert step > 1 or (True, True) in outcomes


# --- archivers ------------------------------------------------------------------------------------


def archived_world(worlds: Any) -> Judged:
    """One with commits that an archiver may move: compacted, and the old files cleaned."""
    world: Judged = worlds()
    for n in range(4):
        world.write(("a", "EU", n, n), (f"n{n}", "EU", 1, 1))
        world.write(("b", "EU", n, n))
        world.table.compact()
    world.table.clean()
    return world


def archiver(world: Judged, store: Any) -> Any:
    return TableService(world.table.url, store, SingleWriter()).archive(RULES)


@every
@sent_or_not
def test_an_archiver_may_die_at_any_request_beside_a_writer_and_no_instant_is_lost_or_doubled(
    sent: bool, step: int, worlds: Any
) -> None:
    outcomes, template = set(), archived_world(worlds)
    for most in range(0, REQUESTS_MAX, step):
        world: Judged = worlds(template)
        history = {each.instant for each in world.table.history()}
        died = list[bool]()

        def dying(w: Judged = world, most: int = most, died: list[bool] = died) -> None:
            """While a non-blocking writer is between its files and its commit."""
            store = Mortal(w.table.store, most, sent=sent)
            died.append(dies(lambda: archiver(w, store)))
            w.check()
            w.write(("a", "EU", 8, 8))

        with Table(world.table.url, options=NBCC | KEEP, emit=AtFiles(dying)) as slow:
            assert slow.upsert(rows(("a", "EU", 7, 7), ("b", "EU", 7, 7)))
        world.acknowledged |= {"b": ("b", "EU", 7, 7)}
        world.check()
        world.table.compact()
        world.table.clean()
        archiver(world, world.table.store)
        world.check()
        after = [each.instant for each in world.table.history()]
        assert len(after) == len({*after}) and {*after} >= history
        timeline = {each.name[:17] for each in (world.folder / ".hoodie/timeline").glob("2*")}
        assert len(timeline) < len(history), "nothing was archived"
        with Table(world.table.url) as other:  # that has no checkpoint's help
            (world.folder / ".hoodie/.lockkit/checkpoint.json").unlink(missing_ok=True)
            assert shown(other.read()) == sorted(world.acknowledged.values())
        outcomes.add(died[0])
        if not died[0]:
            break
    assert outcomes == {True, False}


# --- the next writer ------------------------------------------------------------------------------


@pytest.mark.parametrize("table_type", [
    "MERGE_ON_READ", pytest.param("COPY_ON_WRITE", marks=pytest.mark.soak),
])  # fmt: skip
def test_the_first_write_after_a_dead_writer_is_not_refused_wherever_it_died(
    table_type: str, tmp_path: Path
) -> None:
    """Also if it was decided and not published: then the next one publishes it and begins again."""
    outcomes, mine = set(), rows(("a", "EU", 2, 2), ("b", "EU", 2, 2))
    for most in range(REQUESTS_MAX):
        folder = tmp_path / f"t{most}"
        with Table.create(
            f"file://{folder}", record_key="id", precombine="ts", table_type=table_type, buckets=1
        ) as table:  # fmt: skip
            table.upsert(rows(("a", "EU", 1, 1), ("b", "EU", 1, 1)))
            victim = Table(table.url)
            victim._open()
            victim.store = Mortal(victim.store, most, sent=True)  # type: ignore[assignment]
            died = dies(lambda v=victim: v.upsert(mine))
            hoodie = folder / ".hoodie"
            for each in (*hoodie.glob(".heartbeat/*"), *hoodie.glob("timeline/*.requested")):
                os.utime(each, (0, 0))
            assert table.upsert(rows(("a", "EU", 3, 3))) is not None
            found = shown(table.read())
            assert found == theirs(folder)
            assert found in ([("a", "EU", 3, 3), ("b", "EU", v, v)] for v in (1, 2))
            outcomes.add((died, found[1][2]))
            if not died:
                break
    assert outcomes == {(True, 1), (True, 2), (False, 2)}
