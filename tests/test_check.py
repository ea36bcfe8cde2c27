"""The checker: each check convicts its own mistake, with the events that prove it, and no other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from steps import steps
from table_world import CLOCK, CONFIG, new_table, prepare_inserts, prepare_upserts, rows

from lockkit.clock import Clock
from lockkit.events import Event, event, read
from lockkit.lab.server import Emulator
from lockkit.lab.verify.check import Kind, Verdict, check
from lockkit.lock.handle import Lock
from lockkit.protocol.outcome import Applied, IfAbsent, IfVersion
from lockkit.runtime import run
from lockkit.sinks import Emit
from lockkit.stores import Store, open_store
from lockkit.table.format.layout import hadoop_base
from lockkit.table.occ.publish import publish
from lockkit.table.occ.rollback import RolledBack, roll_back

HISTORIES = Path(__file__).parents[1] / "datasets" / "histories"
GOOD, BAD = (sorted((HISTORIES / kind).glob("*.jsonl")) for kind in ("good", "bad"))
LOCK, TIMELINE = "lake/.hoodie/.locks/table_lock.json", "lake/.hoodie/"
FIRST, SECOND = "20250106101201123", "20250106101202123"


def load(path: Path) -> list[Event]:
    with path.open(encoding="utf-8") as lines:
        return list(read(lines))


# --- a real one, of a table -----------------------------------------------------------------------

KINDS = [(version, mode) for version in (6, 9) for mode in ("fenced", "hudi")]


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: f"v{kind[0]}-{kind[1]}")
def recorded(request: Any) -> tuple[list[Event], str, str]:
    """Two writers, one of them dead between two commits and rolled back; also: who was, and how."""
    version, mode = request.param
    recorded_events: list[Event] = []
    with Emulator() as server, ExitStack() as open_:
        url = "s3://lake/orders"
        new_table(url, replace(CONFIG, version=version, mode=mode), endpoint=server.s3)

        def lane(who: str) -> Emit:
            return lambda kind, **said: recorded_events.append(
                event(Clock().stamp_ms(), who, kind, **said)
            )

        def writer(who: str) -> tuple[Store, Lock]:
            lock = Lock(url, endpoint=server.s3, client=who, emit=lane(who), ttl_s=30)
            return open_store(url, endpoint=server.s3, client=who), open_.enter_context(
                closing(lock)
            )

        (one, lock), (other, its_lock), (cleaner, third) = map(writer, ("W1", "W2", "cleaner"))
        publish(prepare_inserts(one, rows([0])), lock, one, CLOCK, lane("W1"))
        dead = prepare_inserts(one, rows([5]))
        publish(prepare_upserts(other, rows([0])), its_lock, other, CLOCK, lane("W2"))
        with third:
            known = dead.transaction.taken.known
            way = roll_back(dead.instant, third.fence, known, base=hadoop_base(url))
            assert isinstance(run(way, cleaner, CLOCK, lane("cleaner")), RolledBack)
        publish(prepare_inserts(one, rows([1])), lock, one, CLOCK, lane("W1"))
        return [*recorded_events, *server.requests()], dead.instant, mode


def test_a_tables_own_history_is_valid(recorded: tuple[list[Event], str, str]) -> None:
    events, _dead, mode = recorded
    verdict = check(events)
    assert verdict.kind is Kind.VALID, verdict.because
    assert "4 grants to 3 clients" in verdict.because
    assert "3 commits, none stale and none lost" in verdict.because
    assert ("rollback" in verdict.reached) == (mode == "fenced")


def test_a_check_that_missed_a_commit_is_found_in_it(
    recorded: tuple[list[Event], str, str],
) -> None:
    last = max(each.at_ms for each in recorded[0] if each.kind == "checked")
    events = [with_data(each, covered=[]) if each.kind == "checked" and each.at_ms == last else each
              for each in recorded[0]]  # fmt: skip
    assert failed(check(events)) == {"no stale commit"}


def test_a_rolled_back_commit_that_is_visible_is_found(
    recorded: tuple[list[Event], str, str],
) -> None:
    events, dead, mode = recorded
    late = request(events[-1].at_ms + 1, "W1", f"{TIMELINE}{dead}.commit", "", "late")
    found = {"no rolled back commit is visible"} if mode == "fenced" else set()
    verdict = check([*events, late])
    assert failed(verdict) == found
    assert verdict.kind is not Kind.VALID  # without a fence: nobody checked it


# --- a small history in which all is well, to be spoilt -----------------------------------------


def request(
    at_ms: float, client: str, key: str, before: str, version: str, **more: object
) -> Event:
    fields = {
        "client": client, "method": "put", "key": key, "status": 200, "answer": "applied",
        "applied": True, "before": before, "version": version, "attempt": f"a-{version}",
        "condition": f"if-version {before}" if before else "if-absent", "began_ms": at_ms - 1,
    }  # fmt: skip
    return event(at_ms, "store", "request", **{**fields, **more})


def commit(at_ms: float, who: str, instant: str, covered: list[str], epoch: int) -> list[Event]:
    writes = [["part=US", "f-1"]]
    return [
        event(at_ms, who, "checked", instant=instant, epoch=epoch, covered=covered, writes=writes),
        request(at_ms + 2, who, f"{TIMELINE}{instant}.commit", "", f"c{epoch}"),
        event(at_ms + 4, who, "published", instant=instant, epoch=epoch),
    ]


def hold(at_ms: float, who: str, epoch: int, before: str) -> list[Event]:
    """Acquire at `at_ms`, release 90 ms later; versions v<epoch> and r<epoch>."""
    return [
        event(at_ms, who, "ask", request=1, op="acquire", key=LOCK, attempt=f"a-v{epoch}"),
        request(at_ms + 2, who, LOCK, before, f"v{epoch}"),
        event(at_ms + 4, who, "held", epoch=epoch, until_ms=at_ms + 9_000, version=f"v{epoch}"),
        event(at_ms + 90, who, "ask", request=2, op="release", key=LOCK, attempt=f"a-r{epoch}"),
        request(at_ms + 92, who, LOCK, f"v{epoch}", f"r{epoch}"),
        event(at_ms + 94, who, "released", epoch=epoch, proven=True),
    ]


def well() -> list[Event]:
    events = [
        *hold(0, "W1", 1, ""), *commit(20, "W1", FIRST, [], 1),
        *hold(200, "W2", 2, "r1"), *commit(220, "W2", SECOND, [FIRST], 2),
    ]  # fmt: skip
    return sorted(events, key=lambda each: each.at_ms)


def spoilt(change: Callable[[Event], Event | None], *more: Event) -> Verdict:
    events = [changed for each in well() if (changed := change(each)) is not None]
    return check(sorted([*events, *more], key=lambda each: each.at_ms))


def with_data(each: Event, **data: object) -> Event:
    return replace(each, data={**each.data, **data})


def same(each: Event) -> Event:
    return each


def failed(verdict: Verdict) -> set[str]:
    return {each.check for each in verdict.findings if each.kind is Kind.INVALID}


def test_a_correct_history_is_valid_and_the_verdict_counts_its_events() -> None:
    verdict = check(well())
    assert verdict.kind is Kind.VALID
    assert verdict.because.startswith("2 grants to 2 clients, never two holders at once")
    assert all(each.kind is Kind.VALID for each in verdict.findings)


def test_a_check_that_finds_nothing_to_judge_says_nothing() -> None:
    said = [each.because for each in check(well()).findings]
    assert "2 acknowledged commits, all in the store" in said
    assert not [each for each in said if each.startswith(("0 ", "all 0"))]


# --- the recorded histories ---------------------------------------------------------------------


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_a_good_history_is_valid(path: Path) -> None:
    verdict = check(load(path))
    assert verdict.kind is Kind.VALID, verdict.because


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_bad_history_is_invalid_and_the_evidence_is_in_it(path: Path) -> None:
    events = load(path)
    verdict = check(events)
    assert verdict.kind is Kind.INVALID, verdict.because
    assert 1 <= len(verdict.evidence) <= 4
    assert all(each in events for each in verdict.evidence)


def test_the_rare_things_that_were_reached_are_named() -> None:
    refused = check(load(HISTORIES / "good" / "stalled_commit_refused.jsonl"))
    assert refused.reached == ("takeover", "stall", "refused commit")
    recovered = check(load(HISTORIES / "good" / "lost_response_recovered.jsonl"))
    assert recovered.reached == ("lost response",)


@pytest.mark.parametrize("path", [*GOOD, *BAD], ids=lambda path: path.stem)
def test_a_history_without_the_stores_lane_is_never_called_valid(path: Path) -> None:
    recorded_events = [each for each in load(path) if each.kind != "request"]
    assert check(recorded_events).kind is not Kind.VALID


# --- each check convicts ------------------------------------------------------------------------


def test_two_simultaneous_holders_are_found_with_their_overlap() -> None:
    early = event(50, "W2", "held", epoch=2, until_ms=9_050, version="v2")
    verdict = spoilt(lambda each: None if each.kind == "held" and each.who == "W2" else each, early)
    assert failed(verdict) == {"one holder at a time"}
    assert "W1 (epoch 1)" in verdict.because
    assert "for 0.040 s" in verdict.because  # until W1 asked for its release
    assert early in verdict.evidence


def test_a_stalled_holder_counts_as_holder_until_its_own_clock_expires_the_lease() -> None:
    def never_released(each: Event) -> Event | None:
        mine = each.who == "W1" or each.get("client") == "W1"
        return None if mine and each.at_ms >= 90 else each

    late = 9_100.0
    takes = [
        request(late, "W3", LOCK, "v1", "v3"),
        event(late + 2, "W3", "held", epoch=3, until_ms=late + 9_000, version="v3"),
    ]
    only_first = [each for each in well() if each.at_ms < 200 and never_released(each)]
    stalled = event(95, "W1", "stalled", pid=1, why="asked")
    verdict = check([*only_first, stalled, *takes])
    assert verdict.kind is Kind.VALID, verdict.because
    assert "takeover" in verdict.reached
    sooner = [replace(each, at_ms=each.at_ms - 1_000) for each in takes]
    assert failed(check([*only_first, stalled, *sooner])) == {"one holder at a time"}


def test_an_epoch_that_comes_again_is_found() -> None:
    verdict = spoilt(
        lambda each: with_data(each, epoch=1) if (each.who, each.kind) == ("W2", "held") else each
    )
    assert failed(verdict) == {"epochs rise"}
    assert "W2 was granted epoch 1 after W1 had been granted epoch 1" in verdict.because


def test_a_record_without_an_epoch_makes_the_epochs_unknown() -> None:
    """Hudi rewrites the lock object with its three fields only."""
    hudi = request(150, "hudi-writer", LOCK, "r1", "h1", attempt="")
    verdict = spoilt(
        lambda each: (
            with_data(each, before="h1", condition="if-version h1")
            if each.get("version") == "v2" and each.kind == "request"
            else each
        ),
        hudi,
    )
    assert verdict.kind is Kind.UNKNOWN
    assert "hudi-writer wrote it without one" in verdict.because


def test_a_store_that_ignores_a_condition_is_named() -> None:
    overwrite = request(205, "W2", LOCK, "v2", "x", condition="if-version r1")
    verdict = spoilt(
        lambda each: (
            with_data(each, before="x", condition="if-version x") if each.get("version") == "r2"
            else each
        ),
        overwrite,
    )  # fmt: skip
    assert failed(verdict) == {"the store keeps its conditions"}
    assert "the store ignored a condition" in verdict.because
    assert "if-version r1" in verdict.because


def test_a_create_over_an_object_that_is_there_is_an_ignored_condition() -> None:
    again = request(300, "W3", f"{TIMELINE}{FIRST}.commit", "c1", "c9", condition="if-absent")
    assert failed(spoilt(same, again)) == {"the store keeps its conditions"}


def test_a_412_for_a_condition_that_held_is_found() -> None:
    wrong = request(
        150, "W3", LOCK, "r1", "r1", status=412, answer="precondition_failed", applied=False
    )
    verdict = spoilt(same, wrong)
    assert failed(verdict) == {"the store keeps its conditions"}
    assert "refused W3's write" in verdict.because
    throttled = with_data(wrong, status=429, answer="throttled")
    assert spoilt(same, throttled).kind is Kind.VALID


@pytest.mark.parametrize(("kind", "scheme"), [("s3", "s3"), ("gcs", "gs"), ("azure", "az")])
@pytest.mark.parametrize(
    ("emulator", "says"),
    [({"profile": "spaces"}, Kind.INVALID), ({"profile": "aws"}, Kind.VALID)],
    ids=["spaces", "aws"],
    indirect=["emulator"],
)
def test_the_embedded_servers_own_record_is_read_in_every_dialect(
    emulator: Any, says: Kind, kind: str, scheme: str
) -> None:
    store = open_store(f"{scheme}://bucket/table", endpoint=getattr(emulator, kind))
    first = store.put(LOCK, b"{}", IfAbsent())
    assert isinstance(first, Applied)
    store.put(LOCK, b'{"attempt":"2"}', IfAbsent())
    store.put(LOCK, b'{"attempt":"3"}', IfVersion(first.version))
    store.put(LOCK, b'{"attempt":"4"}', IfVersion(first.version))
    finding = next(
        each for each in check(emulator.requests()).findings
        if each.check == "the store keeps its conditions"
    )  # fmt: skip
    assert finding.kind is says, finding.because


def test_a_fork_in_the_versions_is_found() -> None:
    verdict = spoilt(
        lambda each: (
            with_data(each, before="v7", condition="if-version v7")
            if each.get("version") == "r2"
            else each
        )
    )
    assert failed(verdict) == {"the store keeps its conditions"}
    assert "v2" in verdict.because and "v7" in verdict.because


def blind(each: Event) -> Event:
    mine = each.kind == "checked" and each["instant"] == SECOND
    return with_data(each, covered=[]) if mine else each


def test_a_commit_that_never_checked_an_earlier_one_is_stale() -> None:
    lost = spoilt(blind)
    assert failed(lost) == {"no stale commit"}
    assert lost.because.startswith("lost update: both rewrote part=US/f-1; W2 published")
    assert len(lost.evidence) == 4
    elsewhere = spoilt(
        lambda each: with_data(blind(each), writes=[["part=EU", "f-9"]])
        if each.kind == "checked" and each.who == "W2" else each
    )  # fmt: skip
    assert elsewhere.because.startswith("stale commit; W2 published")


HISTORY, LOG = "timeline/history/manifest_1", "archived/.commits_.archive.1_1-0-1"


@pytest.mark.parametrize(("at_ms", "archive", "expected"), [
    (150, HISTORY, Kind.VALID), (350, HISTORY, Kind.INVALID), (150, LOG, Kind.UNKNOWN),
    (350, LOG, Kind.INVALID),
])  # fmt: skip
def test_a_check_need_not_cover_what_was_archived_before_it(
    at_ms: float, archive: str, expected: Kind
) -> None:
    """The record does not say what a log of version 6 names."""
    verdict = spoilt(blind, archived(at_ms, archive))
    assert verdict.kind is expected, verdict.because


def archived(at_ms: float, archive: str) -> Event:
    body = {"files": [{"fileName": f"{FIRST}_{FIRST}_0.parquet", "fileLen": 1}]}
    named = {"body": body} if "manifest" in archive else {}
    return request(at_ms, "A1", f"{TIMELINE}{archive}", "", "m1", **named)


def test_a_commit_is_decided_by_the_fence_and_not_by_its_file() -> None:
    """W1 decides, stalls; W2 decides without having covered it; W1's file comes last."""
    fence = f"{TIMELINE}.locks/fence.json"
    first, second = commit(20, "W1", FIRST, [], 1), commit(220, "W2", SECOND, [], 2)
    late = [replace(each, at_ms=each.at_ms + 400) for each in first[1:]]
    decides = [
        request(21, "W1", fence, "", "f1", instant=FIRST),
        request(221, "W2", fence, "f1", "f2", instant=SECOND),
    ]
    events = [*hold(0, "W1", 1, ""), *hold(200, "W2", 2, "r1"), first[0], *late, *second, *decides]
    verdict = check(sorted(events, key=lambda each: each.at_ms))
    assert failed(verdict) == {"no stale commit"}
    assert f"W2 published {SECOND} without having checked it against {FIRST}" in verdict.because


def test_an_acknowledged_commit_that_is_not_in_the_store_is_lost() -> None:
    file = f"{TIMELINE}{FIRST}.commit"
    verdict = spoilt(lambda each: None if each.get("key") == file else each)
    assert "no acknowledged commit is lost" in failed(verdict)
    assert f"{FIRST} as published, but the store never had it" in verdict.because
    deleted = request(300, "cleaner", file, "c1", "", method="DELETE", condition="", attempt="")
    verdict = spoilt(same, deleted)
    assert failed(verdict) == {"no acknowledged commit is lost"}
    assert "cleaner deleted it" in verdict.because


@pytest.mark.parametrize(("at_ms", "archive", "expected"), [
    (290, HISTORY, Kind.VALID), (310, HISTORY, Kind.INVALID), (290, LOG, Kind.UNKNOWN),
    (310, LOG, Kind.INVALID),
])  # fmt: skip
def test_a_commit_may_be_deleted_once_the_archive_has_it(
    at_ms: float, archive: str, expected: Kind
) -> None:
    file = f"{TIMELINE}{FIRST}.commit"
    deleted = request(300, "A1", file, "c1", "", method="DELETE", condition="", attempt="")
    verdict = spoilt(same, deleted, archived(at_ms, archive))
    assert verdict.kind is expected, verdict.because


@pytest.mark.parametrize("error", ["CommitConflict", "LockLost"])
def test_a_refused_commit_that_is_visible_is_found(error: str) -> None:
    refused = event(230, "W2", "refused", instant=SECOND, epoch=2, error=error, why="")
    verdict = spoilt(lambda each: None if each.get("instant") == SECOND
                     and each.kind == "published" else each, refused)  # fmt: skip
    assert failed(verdict) == {"no refused commit is visible"}


@pytest.mark.parametrize(("at_ms", "expected"), [(205, Kind.VALID), (235, Kind.INVALID)])
def test_a_plan_that_another_process_carries_out_after_a_refusal_is_visible(
    at_ms: float, expected: Kind
) -> None:
    """All executions of a compaction's plan have its instant."""
    refused = event(at_ms, "W1", "refused", instant=SECOND, epoch=2, error="LockLost", why="")
    assert spoilt(same, refused).kind is expected


def test_a_commit_with_an_unknown_outcome_may_be_visible() -> None:
    unknown = event(
        230, "W2", "refused", instant=SECOND, epoch=2, error="CommitUnknown", why="no answer"
    )
    verdict = spoilt(lambda each: None if each.get("instant") == SECOND
                     and each.kind == "published" else each, unknown)  # fmt: skip
    assert verdict.kind is Kind.VALID, verdict.because


def test_a_commit_that_was_tried_again_after_a_refusal_may_be_visible() -> None:
    refused = event(210, "W2", "refused", instant=SECOND, epoch=2, error="LockLost", why="")
    assert spoilt(same, refused).kind is Kind.VALID


def test_a_loss_caused_by_the_clients_own_write_is_found() -> None:
    lost = event(50, "W1", "lost", epoch=1, why="412")
    verdict = spoilt(same, lost)
    assert failed(verdict) == {"no self-inflicted loss"}
    assert "a-v1" in verdict.because


def test_a_client_that_waits_for_itself_is_found_unless_it_restarted_in_between() -> None:
    waits = event(50, "W1", "waiting", owner="W1", epoch=1, until_ms=9_000)
    assert failed(spoilt(same, waits)) == {"no self-inflicted loss"}
    killed = event(30, "W1", "killed", pid=1)
    started = event(40, "W1", "started", pid=2)
    assert "no self-inflicted loss" not in failed(spoilt(same, waits, killed, started))


@pytest.mark.parametrize(("look_ms", "found"), [(0.5, False), (45, True)])
def test_a_client_waits_for_nobody_by_a_look_from_before_its_late_write(
    look_ms: float, found: bool
) -> None:
    """The next look shows the write."""
    (landed,) = [e for e in well() if e.get("attempt") == "a-v1" and e.get("applied")]
    (asked,) = [e for e in well() if e.get("attempt") == "a-v1" and e.kind == "ask"]
    assert asked.at_ms < landed.at_ms < 45
    look = event(asked.at_ms + look_ms, "W1", "ask", request=91, op="look", key=LOCK, attempt="")
    waits = event(50, "W1", "waiting", owner="W1", epoch=1, until_ms=9_000)
    verdict = spoilt(same, waits, look)
    assert ("no self-inflicted loss" in failed(verdict)) == found


# --- what is not known, and what is not a history -----------------------------------------------


def test_an_empty_history_proves_nothing() -> None:
    assert check([]).kind is Kind.UNKNOWN


def test_a_bucket_alone_proves_nothing_about_what_a_client_held() -> None:
    truth = [each for each in well() if each.kind == "request" and each["key"] == LOCK]
    verdict = check(truth)
    assert verdict.kind is Kind.UNKNOWN
    assert "which client held the lock when" in verdict.because


@pytest.mark.parametrize(
    "damaged",
    [
        event(0, "W1", "held", epoch=1, until_ms="soon", version="v"),
        event(0, "W1", "held", epoch=[], until_ms=None, version="v"),
        event(0, "W2", "checked", instant=SECOND, epoch=2, covered=7, writes=3),
        request(0, "W1", LOCK, "", "v", attempt=[]),
        request(0, "W1", LOCK, "", "v", condition=4),
        event(0, "W1", "ask", request=[], op="renew", key=LOCK, attempt="a"),
    ],
)
def test_a_damaged_history_is_unknown_and_no_traceback(damaged: Event) -> None:
    verdict = spoilt(lambda each: None if each.kind == damaged.kind == "checked" else each, damaged)
    assert verdict.kind is Kind.UNKNOWN
    assert "a field is not of its type" in verdict.because


def test_ten_times_the_history_takes_about_ten_times_as_long() -> None:
    def long(grants: int) -> list[Event]:
        events: list[Event] = []
        for n in range(grants):
            before = f"r{n}" if n else ""
            events += hold(200 * n, f"W{n % 3}", n + 1, before)
        return events

    def valid(events: list[Event]) -> None:
        verdict = check(events)
        assert verdict.kind is Kind.VALID, verdict.because

    short, tenfold = long(100), long(1_000)
    assert steps(lambda: valid(tenfold)) < 12 * steps(lambda: valid(short))


def test_a_verdict_goes_out_as_json() -> None:
    recorded_events = check(load(HISTORIES / "bad" / "stalled_commit_accepted.jsonl")).to_json()
    assert recorded_events["verdict"] == "INVALID"
    assert recorded_events["evidence"][0]["kind"] == "checked"
    assert {each["check"] for each in recorded_events["findings"]} >= {
        "no stale commit",
        "one holder at a time",
    }
