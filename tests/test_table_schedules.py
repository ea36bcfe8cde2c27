"""Every interleaving of commits and rollbacks, request by request, with a fault anywhere.

The lock is taken to give no exclusion at all: all believe that they hold it, with different epochs.
What is asserted of every state is in `schedules`; docs/protocol.md, section 5, has the reasons.
Exhaustive within these bounds, so no proof.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from schedules import (
    BOTH,
    DELETED,
    HORIZON,
    LOST,
    NAMES,
    OVERLAP,
    REFUSED,
    STALE,
    TIMES,
    UNDECIDED,
    Decision,
    Lane,
    Result,
    Shelf,
    World,
    begin_and_commit,
)
from suite_plugin import rest_in_soak
from table_mutants import ROOMS, planted
from table_world import CLOCK, CONFIG, Holder, prepare_inserts, prepare_upserts, rows

from lockkit.runtime import Procedure, run
from lockkit.table import Committed, Prepared, commit, create_table
from lockkit.table.errors import CommitUnknown
from lockkit.table.format.properties import TableConfig
from lockkit.table.format.timeline import instant_ms, load_timeline
from lockkit.table.occ import fence as fencing
from lockkit.table.occ.commit import complete, decide
from lockkit.table.occ.covered import load_rollback_plan
from lockkit.table.occ.fence import COMMIT
from lockkit.table.occ.publish import Prefetcher
from lockkit.table.occ.rollback import roll_back

V9 = replace(CONFIG, version=9)


# --- a table, and who does something to it --------------------------------------------------------


class Scene:
    """A table with one commit of one row; then lanes are added."""

    def __init__(self, config: TableConfig = CONFIG, *, fenced: bool = True) -> None:
        memory_store: Any = Shelf
        self.store = memory_store()
        self.config, self.fenced, self.cleaned = config, fenced, False
        run(create_table(config), self.store, CLOCK)
        first = prepare_inserts(self.store, rows([0]))
        done = run(commit(first, Holder(0)), self.store, CLOCK)
        self.log = (Decision(COMMIT, done.instant, done.completion),)
        self.last = done.instant
        self.lanes: list[Lane] = []
        self.prepared: list[Prepared] = []

    def appends(self, *numbers: int) -> Scene:
        return self._prepare(*(prepare_inserts(self.store, rows([n])) for n in numbers))

    def rewrites(self, *amounts: int) -> Scene:
        """Of one and the same file group."""
        return self._prepare(*(prepare_upserts(self.store, rows([0], amount=n)) for n in amounts))

    def _prepare(self, *prepared: Prepared) -> Scene:
        self.prepared += prepared
        self.last = self.prepared[-1].instant
        return self

    # --- lanes ---

    def writers(self, way: Callable[..., Procedure[Any]] = commit, *epochs: int) -> Scene:
        for number, each in enumerate(self.prepared, 1):
            epoch = epochs[number - 1] if epochs else number
            self._lane(f"W{number}", partial(way, each, Holder(epoch)), each.instant)
        return self

    def beginner(self, *, at: int, epoch: int = 4) -> Scene:
        """A writer that has yet to begin; its clock is `at` ms after the last instant's."""
        return self._lane(f"B{epoch}", partial(begin_and_commit, Holder(epoch)), at=at)

    def cleaner(self, *, of: int = 0, epoch: int = 3) -> Scene:
        """Takes a writer for dead; goes on with a rollback that another one began."""
        target, self.cleaned = self.prepared[of], True
        known = target.transaction.taken.known
        way = partial(clean_up, target.instant, Holder(epoch), known)
        return self._lane(f"C{epoch}", way, target.instant)

    def _lane(self, name: str, make: Callable[[], Any], instant: str = "", at: int = 50) -> Scene:
        self.lanes.append(Lane(name, make, instant, instant_ms(self.last) + at))
        return self

    def search(self, faults: int = 0) -> Result:
        prepared = {each.instant: each for each in self.prepared}
        world = World(self.store, tuple(self.lanes), self.config.names, self.log, prepared,
                      self.fenced, self.cleaned)  # fmt: skip
        return world.search(faults=faults)


def clean_up(target: str, guard: Holder, known: Any) -> Procedure[Any]:
    now = yield from load_timeline(known.config.names)
    resume = None
    for instant, action in now.pending.items():
        if action == "rollback":
            plan = yield from load_rollback_plan(known.config.names, instant)
            if plan is not None and plan.target == target:
                resume = instant
    return (yield from roll_back(target, guard, known, resume=resume))


def scouted(prepared: Prepared, guard: Holder) -> Procedure[Committed]:
    """As `publish` does: the fence is read twice while the lock is being acquired."""
    scout = Prefetcher(prepared)
    for claiming in (False, True):
        scout.ahead = yield from scout._prefetch(claiming)
    decision = yield from decide(prepared, guard, ahead=scout.ahead)
    return (yield from complete(decision))


def insisting(prepared: Prepared, guard: Holder) -> Procedure[Committed]:
    """Told `CommitUnknown`, it commits the same once more, as the message says."""
    try:
        return (yield from commit(prepared, guard))
    except CommitUnknown:
        return (yield from commit(prepared, guard))


def unfenced(prepared: Prepared, guard: Holder) -> Procedure[Committed]:
    return commit(prepared, guard, fence=False)


# --- nothing goes wrong ---------------------------------------------------------------------------


CONFIGS = ("version 6", "version 9", "a fence that remembers one decision")


@pytest.fixture(params=rest_in_soak(CONFIGS, *CONFIGS[:2]))
def config(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> TableConfig:
    if request.param.startswith("a fence"):
        monkeypatch.setattr(ROOMS["fence"], "WINDOW_MAX", 1)
    return V9 if request.param == "version 9" else CONFIG


@pytest.mark.parametrize("faults", [0, 2])
@pytest.mark.parametrize("way", [commit, scouted, insisting])
def test_of_two_rewrites_of_one_group_exactly_one_is_committed(
    config: TableConfig, way: Any, faults: int
) -> None:
    found = Scene(config).rewrites(1, 2).writers(way).search(faults)
    assert not found.mistake, found
    # The later of the two lost the lock's epoch to the other before, or lost the fence to it after.
    assert found.ends == {("Committed", "CommitConflict"), ("LockLost", "Committed")}


@pytest.mark.parametrize("faults", [0, 1])
def test_appends_are_all_committed_unless_a_later_epoch_was_faster(
    config: TableConfig, faults: int
) -> None:
    found = Scene(config).appends(1, 2).writers().search(faults)
    assert not found.mistake, found
    assert found.ends == {("Committed", "Committed"), ("LockLost", "Committed")}
    same_epoch = Scene(config).appends(1, 2).writers(commit, 1, 1).search(faults)
    assert (same_epoch.mistake, same_epoch.ends) == ("", {("Committed", "Committed")})


def test_of_three_rewrites_of_one_group_exactly_one_is_committed(config: TableConfig) -> None:
    found = Scene(config).rewrites(1, 2, 3).writers().search()
    assert not found.mistake, found
    assert {each.count("Committed") for each in found.ends} == {1}
    assert len(found.ends) == 3  # each of them may be the one


def test_a_cleaner_rolls_back_a_dead_writer_and_spares_a_living_one(
    config: TableConfig,
) -> None:
    found = Scene(config).rewrites(1).writers().cleaner().search(faults=2)
    assert not found.mistake, found
    assert found.ends == {("Committed", "RollbackRefused"), ("LockLost", "RolledBack")}


def test_two_cleaners_of_one_writer_do_not_interfere(config: TableConfig) -> None:
    """Either may go on with what the other one has begun."""
    found = Scene(config).rewrites(1).writers().cleaner().cleaner(epoch=4).search()
    assert not found.mistake, found
    assert found.ends == {
        ("Committed", "RollbackRefused", "RollbackRefused"),
        ("LockLost", "RolledBack", "RolledBack"),
    }


def test_a_rollback_that_is_resumed_ends_with_any_fault() -> None:
    found = Scene().rewrites(1).cleaner().cleaner(epoch=4).search(faults=1)
    assert (found.mistake, found.ends) == ("", {("RolledBack", "RolledBack")}), found


ENDS = {
    ("Committed", "CommitConflict", "RollbackRefused"),
    ("LockLost", "Committed", "RolledBack"),
    ("LockLost", "LockLost", "RolledBack"),
}


@pytest.mark.timeout(300)
def test_two_rewrites_beside_a_cleaner_end_in_one_known_way_with_a_fault_anywhere(
    config: TableConfig
) -> None:
    found = Scene(config).rewrites(1, 2).writers().cleaner().search(faults=1)
    assert not found.mistake, found
    # If the rollback is decided after the writer looked, a fence that has forgotten what it had
    # replaced can not tell.
    unsure = {("CommitUnknown", "Committed", "RolledBack")} if fencing.WINDOW_MAX == 1 else set()
    assert found.ends == ENDS | unsure


def test_two_appends_both_commit_although_a_cleaner_takes_one_for_dead(config: TableConfig) -> None:
    found = Scene(config).appends(1, 2).writers().cleaner().search()
    assert not found.mistake, found
    assert ("Committed", "Committed", "RollbackRefused") in found.ends


def test_a_writer_that_begins_with_a_clock_that_is_behind_takes_a_later_instant(
    config: TableConfig,
) -> None:
    """Never one at or below a commit that some reader has gone past."""
    found = Scene(config).appends(1).writers().beginner(at=-1000).search(faults=1)
    assert not found.mistake, found
    assert ("Committed", "Committed") in found.ends


def test_two_writers_that_begin_at_once_do_not_interfere() -> None:
    found = Scene().beginner(at=-1000).beginner(at=50, epoch=5).search()
    assert not found.mistake, found
    assert ("Committed", "Committed") in found.ends


def an_instant_that_comes_free() -> Scene:
    """A writer is rolled back, one commits, and one begins in the first one's millisecond."""
    scene = Scene().appends(1, 2).writers(commit, 4, 1).cleaner(of=1).beginner(at=0, epoch=5)
    del scene.lanes[1]
    return scene


def test_an_instant_that_was_rolled_back_is_not_committed_by_another_writer() -> None:
    found = an_instant_that_comes_free().search()
    assert not found.mistake, found
    assert ("Committed", "RolledBack", "Committed") in found.ends


# --- the search can fail: rules that are switched off ---------------------------------------------


def two_rewrites(way: Any = commit, config: TableConfig = CONFIG) -> Scene:
    return Scene(config).rewrites(1, 2).writers(way)


def two_appends(way: Any = commit, config: TableConfig = CONFIG) -> Scene:
    return Scene(config).appends(1, 2).writers(way)


def three_appends() -> Scene:
    return Scene().appends(1, 2, 3).writers()


def a_writer_and_a_cleaner(epoch: int = 1) -> Scene:
    return Scene().rewrites(1).writers(commit, epoch).cleaner()


def one_begins_late() -> Scene:
    return Scene().appends(1).writers().beginner(at=-1000)


@dataclass
class Search:
    """How the search shows that a rule was needed."""

    mistake: str
    scene: Callable[[], Scene]
    faults: int = 0


SEARCHES = {
    "no fence": Search(STALE, lambda: Scene(fenced=False).rewrites(1, 2).writers()),
    "the fence is replaced without a condition": Search(STALE, two_rewrites),
    "no conflict check": Search(OVERLAP, two_rewrites),
    "a refused decision counts as made": Search(UNDECIDED, two_rewrites),
    "a lost answer counts as a refusal": Search(REFUSED, two_rewrites, faults=1),
    "published before it is decided": Search(UNDECIDED, two_rewrites),
    "acknowledged before it is proven": Search(LOST, two_rewrites, faults=1),
    "the last decision is not settled": Search(LOST, two_appends),
    "a window that is too short counts as complete": Search(STALE, three_appends),
    "a rollback does not settle": Search(BOTH, a_writer_and_a_cleaner),
    "a rollback does not check for the completed file": Search(BOTH, a_writer_and_a_cleaner),
    "a rollback deletes before it is decided": Search(DELETED, a_writer_and_a_cleaner),
    "a writer does not check whether it was rolled back": Search(
        BOTH, lambda: a_writer_and_a_cleaner(5)
    ),
    "completion times come from the writer's clock": Search(TIMES, lambda: two_appends(config=V9)),
    "a roll-forward chooses its own completion time": Search(
        NAMES, lambda: two_appends(config=V9)
    ),
    "begin does not look for later commits": Search(HORIZON, one_begins_late),
    "begin does not look for rollbacks": Search(BOTH, an_instant_that_comes_free),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_the_search_finds_what_a_rule_is_for(name: str) -> None:
    search = SEARCHES[name]
    scene = search.scene()
    with planted(name):
        found = scene.search(search.faults)
    assert found.mistake == search.mistake, found
    assert found.story
