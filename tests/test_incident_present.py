"""What one look at a bucket shows: each pattern where it harms, and not where it nearly does."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest
from table_world import CONFIG, new_table, rows

from lockkit.__main__ import main
from lockkit.clock import Clock
from lockkit.lab.incident.diagnosis import Diagnosis
from lockkit.lab.incident.examine import examine
from lockkit.lab.incident.patterns import PRESENT, Pattern
from lockkit.lock.storage import LOCK_KEY
from lockkit.protocol.outcome import Applied, IfAbsent
from lockkit.protocol.record import Record, encode
from lockkit.runtime import run
from lockkit.stores import Store, open_store
from lockkit.table import begin
from lockkit.table.format.properties import PROPERTIES_KEY
from lockkit.table.handle import Table

NUMBER = count()
LONG_AGO_S = 3_600.0
Scene = Callable[[str, Store], None]


def table() -> tuple[str, Store]:
    url = f"memory://present-{next(NUMBER)}"
    return url, new_table(url, replace(CONFIG, version=6))


def aged(store: Store, key: str, seconds: float) -> None:
    """As if the newest state of an object had been written so long ago."""
    states = store._namespace.states[key]  # type: ignore[attr-defined]
    number, modified_ms, body = states[-1]
    states[-1] = number, modified_ms - int(1000 * seconds), body


def locked(store: Store, *, left_s: float, ttl_s: float = 60.0, written_s: float = 0.0) -> None:
    until_ms = Clock().wall_ms() + int(1000 * left_s)
    record = Record("job-7", until_ms, epoch=3, attempt="a/1", ttl_ms=int(1000 * ttl_s),
                    holder="etl-3/4711")  # fmt: skip
    assert isinstance(store.put(LOCK_KEY, encode(record), IfAbsent()), Applied)
    aged(store, LOCK_KEY, written_s)


# --- each pattern, and what is nearly it ---------------------------------------------------------


def died(_url: str, store: Store) -> None:
    locked(store, left_s=-100, written_s=160)


def died_of_hudi(_url: str, store: Store) -> None:
    """Hudi's record says neither epoch nor lease."""
    until_ms = Clock().wall_ms() - 100_000
    body = json.dumps({"expired": False, "validUntil": until_ms, "owner": "hudi-1"}).encode()
    assert isinstance(store.put(LOCK_KEY, body, IfAbsent()), Applied)
    aged(store, LOCK_KEY, 400)


def silent_for_long(_url: str, store: Store) -> None:
    locked(store, left_s=30, written_s=30)


def in_time(_url: str, store: Store) -> None:
    locked(store, left_s=57, written_s=3)


def released(url: str, _store: Store) -> None:
    with Table(url) as handle:
        handle.append(rows([1]))


def no_record(_url: str, store: Store) -> None:
    assert isinstance(store.put(LOCK_KEY, b"<html>", IfAbsent()), Applied)


def pending(url: str, store: Store, *, old: bool) -> None:
    transaction = run(begin(), store, Clock())
    if old:
        aged(store, transaction.taken.requested, LONG_AGO_S)
    with Table(url, options={"hoodie.table.services.enabled": "false"}) as handle:
        handle.append(rows([1]))


def dead_instant(url: str, store: Store) -> None:
    pending(url, store, old=True)


def writer_at_work(url: str, store: Store) -> None:
    pending(url, store, old=False)


def nothing_after_it(_url: str, store: Store) -> None:
    """A dead writer's instant with no commit after it holds back nobody."""
    aged(store, run(begin(), store, Clock()).taken.requested, LONG_AGO_S)


def decided(url: str, store: Store, *, old: bool) -> None:
    """The writer ended between the fence and the completed file."""
    with Table(url) as handle:
        instant = handle.append(rows([1])).instant
    store.delete(f".hoodie/{instant}.commit")
    if old:
        aged(store, f".hoodie/{instant}.commit.requested", LONG_AGO_S)


def not_published(url: str, store: Store) -> None:
    decided(url, store, old=True)


def about_to_publish(url: str, store: Store) -> None:
    decided(url, store, old=False)


CASES: dict[Pattern, tuple[list[Scene], list[Scene]]] = {
    Pattern.HOLDER_DIED: ([died, died_of_hudi], [in_time, silent_for_long, released]),
    Pattern.HOLDER_SILENT: ([silent_for_long], [in_time, died]),
    Pattern.GARBLED: ([no_record], [in_time]),
    Pattern.HELD_BACK: ([dead_instant], [writer_at_work, nothing_after_it]),
    Pattern.UNPUBLISHED: ([not_published], [about_to_publish, dead_instant]),
    Pattern.HEALTHY: ([in_time, released, writer_at_work], [died, no_record, dead_instant]),
}
HARMS = [(pattern, scene) for pattern, (harms, _) in CASES.items() for scene in harms]
NEARLY = [(pattern, scene) for pattern, (_, misses) in CASES.items() for scene in misses]


def named(found: Diagnosis) -> set[Pattern]:
    return {found.pattern, *(each.pattern for each in found.also)}


def looked_at(scene: Scene) -> tuple[set[Pattern], bool, bool]:
    """The patterns, whether anything is to be done, and whether the lock may be broken."""
    url, store = table()
    scene(url, store)
    found = examine(store, watch_s=0.0)
    return named(found.diagnosis), found.troubled, found.standing.holder.breakable


def test_each_pattern_has_its_harm_and_its_near_miss() -> None:
    assert set(CASES) == PRESENT


@pytest.mark.parametrize(("pattern", "scene"), HARMS)
def test_a_pattern_is_named_where_it_harms(pattern: Pattern, scene: Scene) -> None:
    found, troubled, _ = looked_at(scene)
    assert pattern in found
    assert troubled == (pattern is not Pattern.HEALTHY)


@pytest.mark.parametrize(("pattern", "scene"), NEARLY)
def test_a_pattern_is_not_named_where_it_nearly_harms(pattern: Pattern, scene: Scene) -> None:
    assert pattern not in looked_at(scene)[0]


def test_a_table_that_has_something_left_or_cannot_be_read_is_not_called_healthy() -> None:
    left = new_table(f"memory://present-{next(NUMBER)}", replace(CONFIG, version=9))
    aged(left, run(begin(), left, Clock()).taken.requested, LONG_AGO_S)
    damaged = new_table(f"memory://present-{next(NUMBER)}")
    damaged.delete(PROPERTIES_KEY)
    assert isinstance(damaged.put(PROPERTIES_KEY, b"\xff", IfAbsent()), Applied)
    only_a_lock = open_store(f"memory://present-{next(NUMBER)}")
    locked(only_a_lock, left_s=57, written_s=3)
    found = {
        name: examine(store, watch_s=0.0)
        for name, store in (("left", left), ("damaged", damaged), ("only a lock", only_a_lock))
    }
    assert {name: each.diagnosis.pattern for name, each in found.items()} == {
        "left": Pattern.UNKNOWN, "damaged": Pattern.UNKNOWN, "only a lock": Pattern.HEALTHY,
    }  # fmt: skip
    assert found["left"].troubled


@pytest.mark.parametrize(("scene", "pattern", "breakable"), [
    (died, Pattern.HOLDER_DIED, True), (silent_for_long, Pattern.HOLDER_SILENT, False),
])  # fmt: skip
def test_the_card_says_the_same_as_the_lock_about_a_break(
    scene: Scene, pattern: Pattern, breakable: bool
) -> None:
    url, store = table()
    scene(url, store)
    found = examine(store, watch_s=0.0)
    assert (found.diagnosis.pattern, found.standing.holder.breakable) == (pattern, breakable)
    assert ("do not break" in found.diagnosis.card.dont.lower()) == (not breakable)
    assert "job-7 (etl-3/4711)" in found.diagnosis.because


@pytest.mark.parametrize(("scene", "code"), [(died, 1), (silent_for_long, 1), (in_time, 0)])
def test_the_command_exits_with_1_if_a_holder_missed_its_renewals(
    scene: Scene, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    url, store = table()
    scene(url, store)
    assert main(["incident", url, "--watch-s", "0"]) == code
    assert ("healthy" in capsys.readouterr().out) == (code == 0)
