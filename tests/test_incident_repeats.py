"""Evidence that is given twice counts once; two events that only look alike stay two."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_store_logs import FORMS

from lockkit.lab.incident.diagnosis import Diagnosis, diagnose
from lockkit.lab.incident.dropped import Evidence, take_in
from lockkit.lab.incident.logs import read_log
from lockkit.lab.incident.patterns import Pattern

INCIDENTS = Path(__file__).parents[1] / "datasets" / "incidents"
FILES = sorted([*INCIDENTS.glob("*.jsonl"), *INCIDENTS.glob("logs/*.log")])
NAMES = [path.name for path in FILES]
URLLIB3 = 'urllib3.connectionpool [DEBUG] http://store.example:9000 "{} HTTP/1.1" {} 776\n'
LOCK = "/storage/v1/b/lake/o/orders%2F.hoodie%2F.locks%2Ftable_lock.json?generation=7"
AGAIN = "POST /upload/storage/v1/b/lake/o?uploadType=multipart&ifGenerationMatch=7"


def dropped(*files: tuple[str, str]) -> Evidence:
    return take_in([(name, text.encode()) for name, text in files])


def answer(evidence: Evidence) -> tuple[Pattern, str, int]:
    found: Diagnosis = diagnose(evidence.events)
    return found.pattern, found.because, len(evidence.events)


def doubled(text: str) -> str:
    return "".join(line * 2 for line in text.splitlines(keepends=True))


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_a_file_with_doubled_lines_says_what_it_says_once(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    twice = dropped(("W1.log", doubled(text)))
    assert answer(twice) == answer(dropped(("W1.log", text)))
    assert f"{_count(path, text)} left out" in twice.taken[0].said


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_a_file_that_was_appended_to_itself_says_what_it_says_once(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for copies in (2, 3):
        again = dropped(("W1.log", text * copies))
        assert answer(again) == answer(dropped(("W1.log", text)))
        assert f"{_count(path, text * (copies - 1))} left out" in again.taken[0].said


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_a_file_beside_its_copy_says_what_it_says_once(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    both = dropped(("W1.log", text), ("copy (1).log", text))
    assert answer(both) == answer(dropped(("W1.log", text)))
    assert "left out" not in both.taken[0].said and "left out" in both.taken[1].said


def _count(path: Path, text: str) -> str:
    lines = len(text.splitlines())
    return f"{lines} repeated {'events' if path.suffix == '.jsonl' else 'lines'}"


def test_a_log_whose_lines_are_doubled_only_from_some_line_on_says_what_it_says_once() -> None:
    text = (INCIDENTS / "logs" / "urllib3-renewal-throttled.log").read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    late = "".join(lines[:3]) + doubled("".join(lines[3:]))
    assert answer(dropped(("W1.log", late))) == answer(dropped(("W1.log", text)))


def test_a_log_goes_on_after_its_copy() -> None:
    text = (INCIDENTS / "logs" / "azure-renewal-retried.log").read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    start = "".join(lines[:60])
    assert answer(dropped(("W1.log", start + text))) == answer(dropped(("W1.log", text)))


def test_hudis_audit_log_beside_its_copy_is_one_transaction() -> None:
    states = [("START", 1_000, 9_000), ("END", 5_000, 5_000)]
    text = "".join(
        json.dumps({"ownerId": "h", "state": state, "timestamp": at, "lockExpiration": until})
        + "\n" for state, at, until in states
    )  # fmt: skip
    both = dropped(("a.jsonl", text), ("b.jsonl", doubled(text)))
    assert both.validation is not None and both.validation.outcome == "PASSED"
    assert len(both.events) == 2 and "4 repeated states left out" in both.taken[1].said


@pytest.mark.parametrize("form", FORMS)
def test_a_stores_log_beside_its_copy_says_what_was_left_out(form: str) -> None:
    text = FORMS[form].replace('"eventVersion"', '"eventID": "e", "eventVersion"')
    once, both = dropped(("a", text)), dropped(("a", text), ("b", text))
    assert answer(both) == answer(once)
    assert f"{len(once.events)} repeated requests left out" in both.taken[1].said


# --- two events that only look alike --------------------------------------------------------------


def applied(at_ms: float, client: str, before: str, version: str) -> str:
    return json.dumps({
        "at_ms": at_ms, "who": "store", "kind": "request", "client": client, "method": "put",
        "key": "orders/.hoodie/.locks/table_lock.json",
        "condition": f"if-version {before}" if before else "if-absent", "status": 200,
        "answer": "applied", "applied": True, "before": before, "version": version,
        "attempt": "", "began_ms": at_ms - 1,
    }) + "\n"  # fmt: skip


@pytest.mark.parametrize(
    "second",
    [applied(3_001.0, "W1", "v1", "v2"), applied(3_000.0, "W2", "v1", "v2"),
     applied(3_000.0, "W1", "v1", "v3")],
    ids=["at another time", "by another client", "with another version"],
)  # fmt: skip
def test_two_writes_over_one_version_accuse_the_store_even_in_a_doubled_file(second: str) -> None:
    first = applied(1_000.0, "W1", "", "v1") + applied(3_000.0, "W1", "v1", "v2")
    assert diagnose(dropped(("a", doubled(first))).events).pattern is not Pattern.NO_CAS
    for text in (first + second, doubled(first + second), (first + second) * 2):
        evidence = dropped(("a", text))
        assert len(evidence.events) == 3
        assert diagnose(evidence.events).pattern is Pattern.NO_CAS


def test_equal_lines_stamped_to_the_second_are_two_requests_unless_all_are_doubled() -> None:
    made = URLLIB3.format(AGAIN.replace("Match=7", "Match=0"), 200)
    read, again = URLLIB3.format(f"GET {LOCK}", 200), URLLIB3.format(AGAIN, 200)
    log = f"2026-11-22 02:26:58 {made}2026-11-22 02:26:58 {read}"
    log += f"2026-11-22 02:26:59 {again}" * 2
    assert len(read_log(log, "W1").sent) == 4
    assert len(read_log(doubled(log), "W1").sent) == 4
    exact = log.replace(":59 ", ":59,125 ").replace(":58 ", ":58,125 ")
    assert len(read_log(exact, "W1").sent) == 3
    assert len(read_log(f"2026-11-22 02:26:59 {again}" * 2, "W1").sent) == 2


def test_a_request_that_was_sent_again_without_a_time_in_the_log_stays_two() -> None:
    sent = r"send: b'{} /lake/orders/.hoodie/.locks/table_lock.json HTTP/1.1\r\n\r\n'"
    log = "".join(f"{sent.format(each)}\n" for each in ("GET", "HEAD", "PUT", "DELETE"))
    assert len(read_log(log * 2, "W1").sent) == len(read_log(doubled(log), "W1").sent) == 8
