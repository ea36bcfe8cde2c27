"""The incident console: what stands, what happened, which pattern it is, and what to do."""

from __future__ import annotations

import json
import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from process_world import ended_process
from table_world import CLOCK, new_table

from lockkit.cli.main import main
from lockkit.clock import process_name
from lockkit.events import STORE, Event, read, write
from lockkit.lab.incident.audit import parse_audit, validate
from lockkit.lab.incident.diagnosis import Diagnosis, diagnose
from lockkit.lab.incident.patterns import CARDS, PRESENT, Pattern
from lockkit.lab.incident.present import holder_died
from lockkit.lab.server import Emulator
from lockkit.lab.verify.check import Kind, check
from lockkit.lab.verify.mutants import LEASE_MUTANTS
from lockkit.lab.verify.sim import LEASE, simulate
from lockkit.lock.storage import LOCK_KEY
from lockkit.protocol.outcome import Applied, Found, IfAbsent, over
from lockkit.protocol.policy import Policy
from lockkit.protocol.record import Garbled, Record, encode
from lockkit.protocol.state import Observation
from lockkit.runtime import run
from lockkit.stores import Store, open_store
from lockkit.table.format.timeline import V6
from lockkit.table.inspect.standing import LockInspection, judge, stand
from lockkit.table.inspect.versions import as_events, generations
from lockkit.table.occ.heartbeat_rules import HeartbeatRules
from lockkit.table.occ.liveness import heartbeat_key
from lockkit.table.occ.markers import mark

DATASETS = Path(__file__).parents[1] / "datasets"
ANSWERS = json.loads((DATASETS / "incidents" / "answers.json").read_text())
HOSTILE: tuple[Any, ...] = (None, [], {"a": 1}, "\x1b[31m", float("nan"))
# What a client that keeps the rules may leave behind all the same: nobody answered it.
BAD_LUCK = {Pattern.UNKNOWN, Pattern.GHOST, Pattern.THROTTLED, Pattern.DANGLING}

NOW_MS = 1_767_225_600_000


def events(path: Path) -> list[Event]:
    with path.open(encoding="utf-8") as file:
        return list(read(file))


def incident(name: str) -> list[Event]:
    return events(DATASETS / "incidents" / f"{name}.jsonl")


def named(found: Diagnosis) -> set[Pattern]:
    return {found.pattern, *(each.pattern for each in found.also)}


# --- diagnosis -----------------------------------------------------------------------------------


def test_every_recorded_incident_has_an_answer_and_every_pattern_of_the_past_an_incident() -> None:
    recorded = {path.stem for path in (DATASETS / "incidents").glob("*.jsonl")}
    assert recorded == set(ANSWERS)
    assert len(recorded) >= 8
    assert set(ANSWERS.values()) == {str(each) for each in set(Pattern) - PRESENT}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_incident_is_named_with_events_of_its_own_history(name: str) -> None:
    history = incident(name)
    found = diagnose(history)
    assert found.pattern == ANSWERS[name]
    moments = {(each.at_ms, each.who, each.kind) for each in history}
    assert {(each.at_ms, each.who, each.kind) for each in found.evidence} <= moments
    assert found.evidence or found.pattern is Pattern.UNKNOWN


@pytest.mark.parametrize("name", ANSWERS)
def test_a_truncated_history_shows_no_pattern_that_the_whole_one_does_not_show(name: str) -> None:
    history = incident(name)
    may = {Pattern.UNKNOWN} | named(diagnose(history))
    for length in range(0, len(history), 3):
        assert diagnose(history[:length]).pattern in may


@pytest.mark.parametrize("name", ANSWERS)
def test_without_client_lanes_no_pattern_that_needs_them_is_named(name: str) -> None:
    history = incident(name)
    truth = [each for each in history if each.who == STORE]
    assert diagnose(truth).pattern in {Pattern.UNKNOWN} | named(diagnose(history))


@pytest.mark.parametrize(
    "path", sorted((DATASETS / "histories" / "good").glob("*.jsonl")), ids=lambda path: path.stem
)
def test_a_healthy_history_shows_no_pattern(path: Path) -> None:
    assert diagnose(events(path)).pattern is Pattern.UNKNOWN


def test_a_history_of_correct_clients_shows_no_mistake_of_a_client() -> None:
    for seed in range(80):
        history = simulate(LEASE, seed, judge=False).run.world.history()
        assert named(diagnose(history)) <= BAD_LUCK, seed


def test_a_store_that_ignores_conditions_is_named_on_every_seed_that_shows_it() -> None:
    mutant = LEASE_MUTANTS["ignores conditions"]
    named_in = 0
    for seed in range(20):
        history = simulate(LEASE, seed, mutant=mutant, judge=False).run.world.history()
        found = diagnose(history).pattern
        overwritten = check(history).kind is Kind.INVALID  # else no two writes met
        assert found is Pattern.NO_CAS or not overwritten, seed
        named_in += found is Pattern.NO_CAS
    assert named_in >= 15


def test_a_renewal_whose_client_reads_back_is_no_incident() -> None:
    history = incident("hudi-14373-renewal-retried")
    until_ms = max(each.at_ms for each in history if each.who == "W1") + 1_000
    found_out = [
        Event(each.at_ms, each.who, "renewed", {"epoch": 1, "until_ms": until_ms, "version": "v"})
        if each.kind == "lost" else each for each in history
    ]  # fmt: skip
    assert diagnose(found_out).pattern is Pattern.UNKNOWN
    (held,) = (each for each in history if each.kind == "held" and each.who == "W1")
    ran_out = [
        replace(each, at_ms=held["until_ms"]) if each.kind == "lost" else each for each in history
    ]
    assert diagnose(ran_out).pattern is Pattern.UNKNOWN


def test_a_release_that_lands_late_leaves_nothing_dangling() -> None:
    history = incident("hudi-20027-release-500")
    asked = [each for each in history if each.kind == "ask" and each["op"] == "release"]
    (over,) = (each for each in history if each.kind == "released")
    first = next(each for each in history if each.kind == "request" and each["applied"])
    landed = dict(first.data) | {
        "attempt": asked[0]["attempt"], "before": first["version"], "version": "late",
        "condition": f"if-version {first['version']}", "body": {**first["body"], "expired": True},
    }  # fmt: skip
    before = [each for each in history if each.at_ms <= over.at_ms]
    assert diagnose(before).pattern is Pattern.DANGLING
    late = Event(over.at_ms + 1, STORE, "request", landed)
    assert diagnose([*before, late]).pattern is Pattern.UNKNOWN


def test_a_damaged_history_is_diagnosed_without_an_error() -> None:
    for each in incident("hudi-14373-renewal-retried"):
        for name in each.data:
            for wrong in HOSTILE:
                diagnose([Event(each.at_ms, each.who, each.kind, dict(each.data) | {name: wrong})])
    request = Event(1.0, STORE, "request", {"key": ["x"], "condition": 4, "applied": True})
    assert diagnose([request]).pattern is Pattern.UNKNOWN


def test_every_pattern_has_a_card() -> None:
    assert set(CARDS) == set(Pattern)


# --- Hudi's audit log ----------------------------------------------------------------------------


def audit(owner: str, *lines: tuple[str, int, int]) -> str:
    return "".join(
        json.dumps({
            "ownerId": owner, "transactionStartTime": lines[0][1], "timestamp": at_ms,
            "state": state, "lockExpiration": until_ms, "lockHeld": True,
        }) + "\n" for state, at_ms, until_ms in lines
    )  # fmt: skip


ENDED = audit("A", ("START", 1_000, 301_000), ("RENEW", 31_000, 331_000), ("END", 40_000, 331_000))
LATER = audit("B", ("START", 40_100, 340_100), ("END", 50_000, 340_100))
CRASHED = audit("C", ("START", 60_000, 360_000))
BESIDE = audit("D", ("START", 100_000, 400_000), ("END", 110_000, 400_000))


@pytest.mark.parametrize(
    ("files", "outcome", "pattern"),
    [
        ([ENDED, LATER], "PASSED", Pattern.UNKNOWN),
        ([ENDED, CRASHED], "WARNING", Pattern.UNKNOWN),
        ([CRASHED, BESIDE], "FAILED", Pattern.TWO_BELIEVERS),
        # Each writes its own clock's time: 100 ms are no second believer.
        ([ENDED, LATER.replace("40100", "39900")], "FAILED", Pattern.UNKNOWN),
        ([ENDED + "torn {", LATER], "PASSED", Pattern.UNKNOWN),
    ],
)
def test_the_audit_log_is_judged_by_hudis_rules_and_named_only_beyond_its_clocks(
    files: list[str], outcome: str, pattern: Pattern
) -> None:
    audits = [parse_audit(each) for each in files]
    said = validate(audits)
    assert (said.outcome, said.skipped) == (outcome, sum("torn" in each for each in files))
    assert diagnose(event for each in audits for event in each.events).pattern is pattern


# --- the command ---------------------------------------------------------------------------------


@pytest.fixture
def url(shared_emulator: Emulator, bucket: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A table in a bucket that keeps versions."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "anybody")
    on = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
    new_table(f"s3://{bucket}/orders", endpoint=shared_emulator.s3)
    ask = Request(f"{shared_emulator.s3}/{bucket}?versioning", data=on, method="PUT")
    urlopen(ask).close()
    return f"s3://{bucket}/orders"


def console(emulator: Emulator, *arguments: str) -> int:
    return main(["incident", *arguments, "--endpoint", emulator.s3, "--watch-s", "0"])


def written(emulator: Emulator, url: str, *records: Record) -> Store:
    store = open_store(url, endpoint=emulator.s3)
    version = None
    for each in records:
        answer = store.put(LOCK_KEY, encode(each), over(version))
        assert isinstance(answer, Applied)
        version = answer.version
    return store


def test_incident_exits_with_0_for_a_table_without_a_lock(
    shared_emulator: Emulator, url: str
) -> None:
    assert console(shared_emulator, url) == 0


def test_the_console_names_the_holder_and_offers_no_break(
    shared_emulator: Emulator, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    written(shared_emulator, url, record(valid_until_ms=CLOCK.wall_ms() + 30_000))
    assert console(shared_emulator, url, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["state"], said["owner"], said["epoch"]) == ("held", "W1", 7)
    assert not said["breakable"]
    assert said["table"]["completed"] == 0


def test_a_hand_deleted_lock_is_named_from_the_buckets_versions_alone(
    shared_emulator: Emulator, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = written(shared_emulator, url, record())
    store.delete(LOCK_KEY)
    written(shared_emulator, url, record(owner="W2", epoch=1))
    assert console(shared_emulator, url) == 1
    said = capsys.readouterr().out
    assert str(Pattern.HAND_DELETED) in said
    assert f"lockkit table show {url}" in said


@pytest.mark.parametrize("scheme", ["gs", "az"])
def test_where_a_delete_leaves_no_marker_the_epochs_reveal_it(
    shared_emulator: Emulator, bucket: str, scheme: str
) -> None:
    endpoint = shared_emulator.gcs if scheme == "gs" else shared_emulator.azure
    with closing(open_store(f"{scheme}://{bucket}/orders", endpoint=endpoint)) as store:
        for epoch in (7, 1, 2):
            if epoch == 1:
                store.delete(LOCK_KEY)
            found = store.get(LOCK_KEY)
            seen = found.version if isinstance(found, Found) else None
            put = store.put(LOCK_KEY, encode(record(epoch=epoch, expired=True)), over(seen))
            assert isinstance(put, Applied)
        found_out = diagnose(as_events(LOCK_KEY, generations(store, newest=9)))
    assert found_out.pattern is Pattern.HAND_DELETED
    assert [each["epoch"] for each in found_out.evidence] == [7, 1]


def test_a_hostile_lock_file_puts_nothing_on_the_terminal_that_it_would_obey(
    shared_emulator: Emulator, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "\x1b]0;owned\x07\n\u202e"
    store = written(shared_emulator, url, record(owner=evil, holder=evil * 40, attempt=evil))
    store.delete(LOCK_KEY)
    written(shared_emulator, url, record(owner=evil, holder=evil))
    console(shared_emulator, url)
    history = tmp_path / "history.jsonl"
    with history.open("w", encoding="utf-8") as file:
        write((replace(each, who=evil if each.who == "W1" else each.who)
               for each in incident("hudi-18438-release-429")), file)  # fmt: skip
    assert main(["incident", str(history)]) == 2  # the store's lane calls it W1: not the same one
    log = tmp_path / "log.jsonl"
    log.write_text(CRASHED.replace('"C"', json.dumps(evil)) + BESIDE)
    assert main(["incident", str(log)]) == 1
    said = capsys.readouterr().out
    assert all(each.isprintable() for each in said.replace("\n", ""))
    assert "owned" in said


def test_leftovers_of_dead_writers_are_found_by_reads_alone(
    shared_emulator: Emulator, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    gone, pending = "20250101000000000", "20250101000000001"
    store = open_store(url, endpoint=shared_emulator.s3)
    for instant in (gone, pending):
        run(mark(instant, "part=US/f-1_0-0-0_x.parquet", "CREATE"), store, CLOCK)
        store.put(heartbeat_key(instant), b"", IfAbsent())
    store.put(V6.requested(pending, "commit"), b"{}", IfAbsent())
    asked = len(shared_emulator.requests())
    hearts = HeartbeatRules(slack_ms=-1_000_000)  # long after their last beat
    standing = run(stand(watch_s=0, hearts=hearts), store, CLOCK)
    assert standing.table is not None
    assert standing.table.left_markers == standing.table.dead_heartbeats == (gone,)
    (left,) = standing.table.condition.pending
    assert (left.instant, left.lives) == (pending, False)
    assert console(shared_emulator, url) == 1
    assert f"leftover markers: {gone}" in capsys.readouterr().out
    assert {each["method"] for each in shared_emulator.requests(asked)} <= {"get", "list", "head"}


def test_a_lock_without_a_table_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(f"file://{tmp_path}")
    store.put(LOCK_KEY, encode(record(valid_until_ms=1, ttl_ms=0)), over(None))
    os.utime(tmp_path / LOCK_KEY, (1, 1))
    assert main(["incident", f"file://{tmp_path}", "--watch-s", "0"]) == 1
    said = capsys.readouterr().out
    assert "overdue: W1" in said
    assert "no table to be read" in said


def test_files_of_both_kinds_are_distinguished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = [tmp_path / "1_C.jsonl", tmp_path / "2_D.jsonl"]
    for path, text in zip(logs, (CRASHED, BESIDE), strict=True):
        path.write_text(text)
    assert main(["incident", *map(str, logs)]) == 1
    assert "FAILED, 2 files" in capsys.readouterr().out
    history = DATASETS / "incidents" / "hudi-20027-release-500.jsonl"
    assert main(["incident", str(history), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["diagnosis"]["pattern"] == str(Pattern.DANGLING)
    assert main(["incident", str(DATASETS / "histories" / "good" / "throttled_release.jsonl")]) == 2
    assert main(["incident", str(tmp_path / "none.jsonl")]) == 3


# --- standing ------------------------------------------------------------------------------------


def record(**over: object) -> Record:
    fields = {"owner": "W1", "valid_until_ms": NOW_MS + 20_000, "epoch": 7, "ttl_ms": 30_000}
    return Record(**fields | over)  # type: ignore[arg-type]


def seen_as(
    record_: Record | Garbled | None, version: str = "v1", *, age_ms: int = 1_000
) -> Observation:
    return Observation(version, record_, NOW_MS - age_ms, NOW_MS)


@pytest.mark.parametrize(
    ("first", "second", "state", "renews", "breakable"),
    [
        (Observation(None, None), Observation(None, None), "absent", None, False),
        (seen_as(Garbled("empty")), seen_as(Garbled("empty")), "garbled", None, True),
        (seen_as(Garbled("empty")), seen_as(Garbled("empty"), "v2"), "garbled", True, False),
        (seen_as(record(expired=True)), seen_as(record(expired=True)), "released", None, False),
        (seen_as(record()), seen_as(record()), "held", None, False),
        (seen_as(record()), seen_as(record(), "v2"), "held", True, False),
        (seen_as(record()), seen_as(record(), age_ms=10_000), "held", False, False),
        (seen_as(record()), seen_as(record(), age_ms=40_000), "overdue", False, True),
        # The holder's clock is an hour fast: the store's own clock decides, as for a challenger.
        (seen_as(record()), seen_as(record(valid_until_ms=NOW_MS + 3_600_000), age_ms=40_000),
         "overdue", False, True),
        # Hudi wrote it: no ttl, so `validUntil` it is.
        (seen_as(record()), seen_as(record(ttl_ms=0), age_ms=100_000), "held", False, False),
        (seen_as(record()), seen_as(record(ttl_ms=0, valid_until_ms=NOW_MS - 501), age_ms=100_000),
         "overdue", False, True),
        # By a clock that may be behind: Hudi renews every 30 s.
        (seen_as(record()), seen_as(record(ttl_ms=0, valid_until_ms=NOW_MS - 300_000)),
         "held", None, False),
        (seen_as(record()), seen_as(record(ttl_ms=0, valid_until_ms=NOW_MS - 501), age_ms=40_000),
         "held", None, False),
        (seen_as(record(ttl_ms=0, valid_until_ms=NOW_MS - 9_000)),
         seen_as(record(ttl_ms=0, valid_until_ms=NOW_MS - 501), "v2", age_ms=40_000),
         "overdue", True, False),
    ],
)  # fmt: skip
def test_only_an_expired_lease_without_renewals_may_be_broken(
    first: Observation, second: Observation, state: str, renews: bool | None, breakable: bool
) -> None:
    found = judge(first, second, watched_ms=3_000, wall_ms=NOW_MS, policy=Policy())
    assert (found.state, found.renews, found.breakable) == (state, renews, breakable)
    assert found.why


ENDED, RUNS, ELSEWHERE = "ended", "runs", "another-host/41@2026-01-01T00:00:00Z/W1"


@pytest.mark.parametrize(
    ("holder", "age_ms", "version", "pattern", "breakable"),
    [
        (ENDED, 1_000, "v1", Pattern.HOLDER_SILENT, False),  # it may be a cloned machine's
        (ENDED, 10_000, "v1", Pattern.HOLDER_DIED, True),
        (ENDED, 1_000, "v2", None, False),
        (RUNS, 40_000, "v1", Pattern.HOLDER_SILENT, False),
        (RUNS, 1_000, "v1", None, False),
        (ELSEWHERE, 40_000, "v1", Pattern.HOLDER_DIED, True),
        (ELSEWHERE, 10_000, "v1", Pattern.HOLDER_SILENT, False),
    ],
)
def test_the_process_of_a_holder_on_this_host_counts_beside_its_renewals(
    holder: str, age_ms: int, version: str, pattern: Pattern | None, breakable: bool
) -> None:
    names = {ENDED: f"{ended_process()}/W1", RUNS: process_name("W1")}
    theirs = record(holder=names.get(holder, holder))
    found = judge(
        seen_as(theirs), seen_as(theirs, version, age_ms=age_ms),
        watched_ms=3_000, wall_ms=NOW_MS, policy=Policy(),
    )  # fmt: skip
    assert found.breakable == breakable
    patterns = [each for each, _ in holder_died(LockInspection(found, None, "", False))]
    assert patterns == ([pattern] if pattern else [])


@pytest.mark.parametrize("ours_ms", [600_000, -600_000])
def test_a_lease_of_hudis_ends_by_the_later_clock_so_a_wrong_one_breaks_no_living_holder(
    ours_ms: int
) -> None:
    seen = seen_as(record(ttl_ms=0, valid_until_ms=NOW_MS + 270_000), age_ms=31_000)
    found = judge(seen, seen, watched_ms=3_000, wall_ms=NOW_MS + ours_ms, policy=Policy())
    assert (found.state, found.breakable, found.missed) == ("held", False, False)
    assert "600 s" in found.why and ("ahead" in found.why) == (ours_ms > 0), "it names the cause"
    assert not list(holder_died(LockInspection(found, None, "", False)))


def test_each_clock_says_how_long_the_lease_still_lasts() -> None:
    seen = seen_as(record())
    found = judge(seen, seen, watched_ms=3_000, wall_ms=NOW_MS, policy=Policy())
    left = found.left
    assert (left.ours_ms, left.store_ms, left.observed_ms) == (20_500, 31_000, 27_000)
