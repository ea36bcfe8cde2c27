"""Each guarantee of the table, attacked by seeded schedules (by PySpark: test_guarantees_spark).

The schedules (`guarantees_world`) run whole transactions request by request in an order that the
seed chooses, with lost answers, late writes and deaths. A seed that fails is played again by
`attack(World(seed, mode=..., version=..., faults=TROUBLE))`; `LOCKKIT_SEEDS` asks for more.
"""

from __future__ import annotations

import importlib
import os
import re
from collections import Counter
from functools import lru_cache
from pathlib import Path

import pytest
from guarantees_world import Attacked, Rules, World, worlds
from play import Faults

from lockkit.runtime import Procedure
from lockkit.table.occ.failed import dead_instants
from lockkit.table.occ.heartbeat_rules import failed_writes_policy
from lockkit.table.occ.liveness import end

SEEDS = int(os.environ.get("LOCKKIT_SEEDS", "8"))
TROUBLE = Faults(lost=3, late=2, crash=30)
KEYS = 8
both_modes = pytest.mark.parametrize("mode", ["fenced", "hudi"])
# One process plays a shape's schedules, and all that looks at them.
every_shape = pytest.mark.parametrize(
    ("mode", "version"),
    [
        pytest.param(mode, version, marks=pytest.mark.xdist_group(f"schedules {mode} {version}"))
        for mode in ("fenced", "hudi")
        for version in (6, 9)
    ],
)


def attack(world: World, *, rollbacks: int = 2) -> Attacked:
    """Writers that upsert what an insert brought and what it did not, and everybody else."""
    seen = Attacked(world)
    world.add("first", world.insert((0, 1, 2)))
    world.play()

    def twice() -> Procedure[None]:
        for _ in range(2):
            yield from world.upsert(tuple(sorted(world.dice.sample(range(KEYS), 3))))

    for number in range(3):
        world.add(f"writer {number}", twice(), dies=True)
    world.add("insert", world.insert((90, 91)), dies=True)
    world.add("rollback", world.rollback_service(rollbacks))
    world.add("puller", world.puller(seen.windows))
    for number in range(2):
        world.add(f"reader {number}", world.reader(seen.snapshots))
    world.play()
    world.settle()
    seen.while_running = len(seen.windows)
    world.add("last pull", world.puller(seen.windows))
    world.play()
    return seen


@lru_cache
def attacked(mode: str, version: int) -> list[Attacked]:
    """Every seed's schedule, played once for all that must hold of it."""
    return [
        attack(World(seed, mode=mode, version=version, faults=TROUBLE), rollbacks=2 + seed % 3)
        for seed in range(SEEDS)
    ]


@every_shape
def test_upserts_never_duplicate_and_lose_nothing_in_any_schedule(mode: str, version: int) -> None:
    """Every visible upsert added one to its keys: two rows, or a stale one, show in the sum."""
    ends: Counter[str] = Counter()
    for seen in attacked(mode, version):
        world = seen.world
        assert world.wrong() is None, f"seed {world.seed}: {world.wrong()}"
        ends.update(
            "ok" if each.reported == each.instant else each.reported for each in world.tried
        )
    assert ends["ok"] > 6 * SEEDS
    assert ends["CommitConflict"] > SEEDS, "nobody overlapped"
    assert ends["LockLost"], "no rollback met a writer that lives"


@every_shape
def test_an_increment_is_in_order_and_complete_in_any_schedule(mode: str, version: int) -> None:
    for seen in attacked(mode, version):
        assert seen.windows == seen.windows_by_history(), f"seed {seen.world.seed}"
        last = max(at for at, *_ in seen.world.versions())
        assert seen.windows[-1][1] >= last, f"seed {seen.world.seed}: something was never pulled"
    assert sum(seen.while_running for seen in attacked(mode, version)) > SEEDS


@every_shape
def test_a_snapshot_never_changes_and_is_whole_in_any_schedule(mode: str, version: int) -> None:
    looked = 0
    for seen in attacked(mode, version):
        for snapshot, looks in seen.snapshots:
            rows = seen.rows_of(snapshot)
            assert all(look == rows for look in looks), f"seed {seen.world.seed}"
            looked += len(looks)
    assert looked > 4 * SEEDS


@every_shape
def test_writers_that_do_not_overlap_all_commit_in_any_schedule(mode: str, version: int) -> None:
    """Each at its first try, whatever answers are lost."""
    for world in worlds(SEEDS, mode=mode, version=version, faults=Faults(lost=3, late=2)):
        world.add("first", world.upsert(tuple(range(KEYS))))
        world.play()
        # Of two buckets in two partitions, each writer has one.
        actors = [world.add(f"writer {n}", world.upsert((n, n + 4), tries=1)) for n in range(4)]
        world.play()
        reported = [each.ended[0] for each in actors]
        assert all(each.startswith("20") for each in reported), f"seed {world.seed}: {reported}"
        world.settle()
        assert world.wrong() is None, f"seed {world.seed}: {world.wrong()}"


def meet(world: World) -> list[str]:
    """Three that have written the same file group when the first of them commits."""
    world.add("first", world.upsert((0,)))
    world.play()
    ready = [world.add(f"writer {n}", world.upsert_prepared((0,))) for n in range(3)]
    world.play()
    actors = [
        world.add(f"writer {n}", world.committed(each.ended[0], (0,)))
        for n, each in enumerate(ready)
    ]
    world.play()
    return ["ok" if each.ended[0].startswith("20") else each.ended[0] for each in actors]


@every_shape
def test_of_overlapping_writers_exactly_one_commits_in_any_schedule(
    mode: str, version: int
) -> None:
    for world in worlds(2 * SEEDS, mode=mode, version=version, faults=Faults(lost=4, late=2)):
        reported = sorted(meet(world))
        assert reported == ["CommitConflict", "CommitConflict", "ok"], (
            f"seed {world.seed}: {reported}"
        )
        world.settle()
        assert world.wrong() is None, f"seed {world.seed}: {world.wrong()}"


@both_modes
def test_inserts_of_one_key_by_two_writers_are_two_rows_in_any_schedule(mode: str) -> None:
    """As in Hudi: an insert does not look for keys. The next upsert brings both up to date."""
    for world in worlds(SEEDS, mode=mode, faults=Faults(lost=3, late=2)):
        for number in range(2):
            world.add(f"writer {number}", world.insert((5,)))
        world.play()
        assert world.stored() == [(5, 1), (5, 1)], f"seed {world.seed}"
        world.add("upsert", world.upsert((5,)))
        world.play()
        assert world.stored() == [(5, 2), (5, 2)], f"seed {world.seed}"


@both_modes
def test_several_writers_then_one_then_several_again_lose_nothing(mode: str) -> None:
    """One writer takes back at once what is pending (EAGER); of several, only what is dead."""
    taken_back = slept = 0
    for world in worlds(SEEDS, mode=mode, faults=Faults(lost=2, late=1, crash=100)):
        for number in range(3):
            world.add(f"writer {number}", world.upsert((0, number + 1)), dies=True)
        asleep = world.add("sleeper", world.upsert_prepared((7,)))
        world.play()
        assert failed_writes_policy({}, writers=1) == "EAGER"
        for heartbeat in world.run(dead_instants(world.config.names, world.timeline(), "EAGER")):
            assert world.run(end(heartbeat))
            world.add("tidy", world.take_back(heartbeat.instant))
            world.play()
            taken_back += 1
        for _ in range(2):  # alone
            world.add("single", world.upsert((0, 1)))
            world.play()
        world.add("woken", world.committed(asleep.ended[0], (7,)))
        for number in range(3):
            world.add(f"writer {number}", world.upsert((0, number + 1)), dies=True)
        world.play()
        slept += world.actors[-4].ended[0] == "LockLost"
        world.settle()
        assert world.wrong() is None, f"seed {world.seed}: {world.wrong()}"
    assert taken_back >= SEEDS
    assert slept == SEEDS, "a writer of the first time was let through in the third"


def test_a_seed_is_a_schedule() -> None:
    one, other = (attack(World(3, faults=TROUBLE)).world for _ in range(2))
    assert one.steps == other.steps
    assert one.stored() == other.stored()


# --- the same schedules with a rule off -----------------------------------------------------------


@pytest.mark.parametrize(
    ("off", "mode"),
    [({"fence": False}, "fenced"), ({"fence": False}, "hudi"), ({"buckets": False}, "fenced")],
)
def test_with_a_rule_off_the_same_schedules_go_wrong(off: dict[str, bool], mode: str) -> None:
    """The fence, on a table where it is the only guard; the lock; the one id for a bucket."""
    calm = worlds(SEEDS, mode=mode, faults=Faults(), rules=Rules(**off))
    assert any(attack(world, rollbacks=0).world.wrong() for world in calm)


def test_without_the_conflict_check_the_same_schedules_go_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # `lockkit.table.occ.commit` is the function by this name.
    module = importlib.import_module("lockkit.table.occ.commit")
    monkeypatch.setattr(module, "find_conflict", lambda *_, **__: None)
    assert any(attack(world, rollbacks=0).world.wrong() for world in worlds(SEEDS))


def test_without_the_pending_bound_the_same_schedules_lose_rows_of_an_incremental_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lockkit.table.read.incremental.first_pending", lambda *_: "~")
    played = (attack(world) for world in worlds(SEEDS))
    assert any(seen.windows != seen.windows_by_history() for seen in played)


# --- the page ------------------------------------------------------------------------------------


def test_each_guarantee_of_the_page_names_the_tests_that_attack_it() -> None:
    here = Path(__file__).parent
    said = (here.parent / "docs" / "concepts" / "guarantees.md").read_text(encoding="utf-8")
    block = said.partition("<!-- guarantees:begin -->")[2].partition("<!-- guarantees:end -->")[0]
    rows = [re.findall(r"`(test_\w+)`", line) for line in block.strip().splitlines()[2:]]
    written = "".join(file.read_text(encoding="utf-8") for file in here.glob("test_*.py"))
    tests = set(re.findall(r"^def (test_\w+)", written, re.MULTILINE))
    assert len(rows) >= 9 and all(rows)
    assert {name for row in rows for name in row} <= tests
    spark = (here / "test_guarantees_spark.py").read_text(encoding="utf-8")
    attacks = set(re.findall(r"^def (test_\w+)", spark, re.MULTILINE))
    assert attacks <= {name for row in rows for name in row}, "an attack that no row names"
