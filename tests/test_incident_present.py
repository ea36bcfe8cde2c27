"""What one look at a bucket shows: each pattern where it harms, and not where it nearly does."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from table_world import CONFIG, new_table, rows
from trickle import silence, trickle

from lockkit.cli.generations import read_lock
from lockkit.cli.main import main
from lockkit.clock import Clock
from lockkit.events import event
from lockkit.lab.incident.diagnosis import Diagnosis, diagnose
from lockkit.lab.incident.examine import examine
from lockkit.lab.incident.patterns import CARDS, PRESENT, Pattern
from lockkit.lock.storage import LOCK_KEY
from lockkit.protocol.outcome import Applied, Found, IfAbsent, IfVersion
from lockkit.protocol.record import Record, encode
from lockkit.runtime import run
from lockkit.runtime.proven import TRIES_MAX
from lockkit.stores import Store, open_store
from lockkit.table import begin
from lockkit.table.format.properties import PROPERTIES_KEY
from lockkit.table.format.timeline import V9
from lockkit.table.handle import Table
from lockkit.table.occ.fence import FENCE_KEY

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


HUDI = "hudi-1"


def of_hudi(until_ms: int, owner: str = HUDI, *, expired: bool = False) -> bytes:
    """As Hudi writes it: three fields, no blanks."""
    fields = {"expired": expired, "validUntil": until_ms, "owner": owner}
    return json.dumps(fields, separators=(",", ":")).encode()


def written_behind(_url: str, store: Store) -> None:
    """By a client of Hudi whose clock is six minutes behind, with a lease of five."""
    body = of_hudi(Clock().wall_ms() - 60_000)
    assert isinstance(store.put(LOCK_KEY, body, IfAbsent()), Applied)


def written_by_hudi(_url: str, store: Store) -> None:
    body = of_hudi(Clock().wall_ms() + 300_000)
    assert isinstance(store.put(LOCK_KEY, body, IfAbsent()), Applied)


def released_late(_url: str, store: Store) -> None:
    """A release keeps the end of the lease, which may be over by then."""
    body = of_hudi(Clock().wall_ms() - 60_000, expired=True)
    assert isinstance(store.put(LOCK_KEY, body, IfAbsent()), Applied)


def saved_by_an_editor(_url: str, store: Store) -> None:
    body = of_hudi(Clock().wall_ms() + 300_000) + b"\n"
    assert isinstance(store.put(LOCK_KEY, body, IfAbsent()), Applied)


def pretty(_url: str, store: Store) -> None:
    fields = json.loads(of_hudi(Clock().wall_ms() + 300_000))
    body = json.dumps(fields, indent=2).encode()
    assert isinstance(store.put(LOCK_KEY, body, IfAbsent()), Applied)


def with_another_field(_url: str, store: Store) -> None:
    """As a later release of Hudi might write it."""
    fields = json.loads(of_hudi(Clock().wall_ms() + 300_000)) | {"host": "etl-ü"}
    body = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    assert isinstance(store.put(LOCK_KEY, body, IfAbsent()), Applied)


def set_free_by_hand(_url: str, store: Store) -> None:
    """Somebody set `expired` in a record of ours, and left the rest as it was."""
    locked(store, left_s=57, written_s=3)
    found = store.get(LOCK_KEY)
    assert isinstance(found, Found)
    body = found.body.replace(b'"expired":false', b'"expired":true')
    assert isinstance(store.put(LOCK_KEY, body, IfVersion(found.version)), Applied)


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


def broken_fence(url: str, store: Store) -> None:
    released(url, store)
    store.delete(FENCE_KEY)
    assert isinstance(store.put(FENCE_KEY, b'{"format": 4, "win', IfAbsent()), Applied)


def broken_properties(_url: str, store: Store) -> None:
    store.delete(PROPERTIES_KEY)
    assert isinstance(store.put(PROPERTIES_KEY, b"\xff", IfAbsent()), Applied)


CASES: dict[Pattern, tuple[list[Scene], list[Scene]]] = {
    Pattern.HOLDER_DIED: ([died, died_of_hudi], [in_time, silent_for_long, released]),
    Pattern.HOLDER_SILENT: ([silent_for_long], [in_time, died]),
    Pattern.GARBLED: ([no_record], [in_time]),
    Pattern.HAND_EDITED: (
        [saved_by_an_editor, pretty, set_free_by_hand],
        [in_time, released, written_by_hudi, with_another_field, no_record],
    ),
    Pattern.CLOCK_SKEW: ([written_behind], [written_by_hudi, released_late, died_of_hudi]),
    Pattern.HELD_BACK: ([dead_instant], [writer_at_work, nothing_after_it]),
    Pattern.UNPUBLISHED: ([not_published], [about_to_publish, dead_instant]),
    Pattern.UNREADABLE: ([broken_fence, broken_properties], [released, not_published, no_record]),
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


def test_every_pattern_of_the_present_has_cases() -> None:
    assert set(CASES) == PRESENT | {Pattern.CLOCK_SKEW}


@pytest.mark.parametrize(("pattern", "scene"), HARMS)
def test_a_pattern_is_named_where_it_harms(pattern: Pattern, scene: Scene) -> None:
    found, troubled, _ = looked_at(scene)
    assert pattern in found
    assert troubled == (pattern not in (Pattern.HEALTHY, Pattern.UNREADABLE))


@pytest.mark.parametrize(("pattern", "scene"), NEARLY)
def test_a_pattern_is_not_named_where_it_nearly_harms(pattern: Pattern, scene: Scene) -> None:
    assert pattern not in looked_at(scene)[0]


@pytest.mark.parametrize("old", [False, True])
def test_an_unpublished_decision_of_group_commit_is_named(old: bool) -> None:
    """The writer ended between its acknowledgement and the completed file of its last commit."""
    url = f"memory://present-{next(NUMBER)}"
    store = new_table(url, replace(CONFIG, version=9, commit="group"))
    with Table(url) as handle:
        done = [handle.append(rows([each])) for each in (1, 2)]
    for each in done:
        store.delete(V9.completed(each.instant, "commit", each.completion))
        if old:
            aged(store, V9.requested(each.instant), LONG_AGO_S)
    found = examine(store, watch_s=0.0).diagnosis
    assert (Pattern.UNPUBLISHED in named(found)) == old


def test_a_table_with_leftovers_or_that_cannot_be_read_is_not_reported_as_healthy() -> None:
    left = new_table(f"memory://present-{next(NUMBER)}", replace(CONFIG, version=9))
    aged(left, run(begin(), left, Clock()).taken.requested, LONG_AGO_S)
    damaged, nothing = table()[1], open_store(f"memory://present-{next(NUMBER)}")
    broken_fence(damaged.url, damaged)
    only_a_lock = open_store(f"memory://present-{next(NUMBER)}")
    locked(only_a_lock, left_s=57, written_s=3)
    places = {"left": left, "damaged": damaged, "only a lock": only_a_lock, "nothing": nothing}
    found = {name: examine(store, watch_s=0.0) for name, store in places.items()}
    assert {name: each.diagnosis.pattern for name, each in found.items()} == {
        "left": Pattern.UNKNOWN, "damaged": Pattern.UNREADABLE, "only a lock": Pattern.HEALTHY,
        "nothing": Pattern.UNKNOWN,
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


def test_the_command_for_a_lock_that_was_set_free_by_hand_gives_it_a_new_epoch() -> None:
    url, store = table()
    set_free_by_hand(url, store)
    before = read_lock(store)
    command = CARDS[Pattern.HAND_EDITED].command.format(url=url)
    assert main(shlex.split(command)[1:]) == 0
    after = read_lock(store)
    assert before and after and isinstance(before.record, Record)
    assert isinstance(after.record, Record) and after.record.epoch > before.record.epoch


@pytest.mark.parametrize(("scene", "code"), [(died, 1), (silent_for_long, 1), (in_time, 0)])
def test_the_command_exits_with_1_if_a_holder_missed_its_renewals(
    scene: Scene, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    url, store = table()
    scene(url, store)
    assert main(["incident", url, "--watch-s", "0"]) == code
    assert ("healthy" in capsys.readouterr().out) == (code == 0)


def test_a_lock_whose_last_holder_released_it_and_ended_is_healthy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"file://{tmp_path / 'orders'}"
    held = [sys.executable, "-m", "lockkit", "lock", "acquire", url, "--", "true"]
    subprocess.run(held, check=True, timeout=60)
    assert main(["incident", url, "--watch-s", "0"]) == 0
    assert "healthy" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("scene", "code"),
    [(died, 1), (silent_for_long, 1), (no_record, 1), (in_time, 0), (written_by_hudi, 0),
     (released, 0), (released_late, 0)],
)  # fmt: skip
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_lock_show_exits_with_1_if_a_holder_missed_its_renewals(
    scene: Scene, code: int, form: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    url, store = table()
    scene(url, store)
    assert main(["lock", "show", url, *form]) == code
    said = capsys.readouterr().out
    if scene is silent_for_long:
        assert "missed several renewals" in said or json.loads(said)["renews"] is False


@pytest.mark.parametrize(("fast_s", "early_s"), [
    ({"b": 20.0}, 19.5), ({"b": 2.0}, 1.5), ({"b": 1.2}, None),
    ({"a": 20.0, "b": 20.0}, None), ({}, None),
])  # fmt: skip
def test_the_skew_of_hudis_own_locks_is_judged_by_the_stores_clock(
    fast_s: dict[str, float], early_s: float | None
) -> None:
    """Client a renews until it dies; b takes over 0.5 s after a's lease has ended, by b's clock."""
    start_ms, lease_ms = 1_767_225_600_000, 300_000
    ahead = {who: int(1000 * fast_s.get(who, 0.0)) for who in "ab"}
    last_ms = start_ms + 30_000
    until_ms = last_ms + ahead["a"] + lease_ms
    taken_ms = until_ms + 500 - ahead["b"]
    writes = [(start_ms, "a"), (last_ms, "a"), (taken_ms, "b"), (taken_ms + 30_000, "b")]
    events = [
        event(at, "store", "request", client=who, method="put", key=LOCK_KEY, condition="",
              status=200, answer="applied", applied=True, before=str(at - 1), version=str(at),
              attempt="", began_ms=at, owner=who, valid_until_ms=at + ahead[who] + lease_ms,
              expired=False)
        for at, who in writes
    ]  # fmt: skip
    found = diagnose(events)
    assert (found.pattern is Pattern.CLOCK_SKEW) == (early_s is not None)
    if early_s is not None:
        assert f"the lock {early_s:.1f} s before a's lease ended" in found.because


def test_a_store_that_does_not_answer_is_named_at_once_and_not_waited_for_in_seven_tries(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "us-east-1")
    requests: list[object] = []

    def silent(connection: socket.socket) -> None:
        requests.append(connection)
        silence(connection)

    with trickle(silent) as server:
        given = ["incident", "s3://b/t", "--endpoint", server.url, "--timeout-s", "0.5"]
        code = main(given)
    out, err = capsys.readouterr()
    first, last = err.splitlines()
    assert (code, out) == (3, "") and len(requests) < TRIES_MAX
    assert "could not be read" in first and "tries again now" in first
    assert last.startswith("lockkit incident: ")


@pytest.mark.parametrize(("written_s", "pattern"), [(900, Pattern.UNKNOWN), (60, Pattern.HEALTHY)])
def test_a_silent_holder_whose_clock_is_ahead_is_not_called_healthy(
    written_s: int, pattern: Pattern
) -> None:
    _url, store = table()
    body = of_hudi(Clock().wall_ms() + 6_600_000)
    assert isinstance(store.put(LOCK_KEY, body, IfAbsent()), Applied)
    aged(store, LOCK_KEY, written_s)
    found = examine(store, watch_s=0.0).diagnosis
    assert found.pattern is pattern
    assert ("its clock is ahead" in found.because) == (pattern is Pattern.UNKNOWN)
