"""Events in and out as JSON lines, and told in plain sentences."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from lockkit.events import (
    Event,
    HistoryError,
    HistoryNarrator,
    event,
    narrate,
    parse,
    plain,
    read,
    write,
)

GOOD = Path(__file__).parents[1] / "datasets" / "histories" / "good"


def test_a_history_survives_being_written_and_read() -> None:
    with (GOOD / "throttled_release.jsonl").open(encoding="utf-8") as lines:
        events = list(read(lines))
    out = io.StringIO()
    write(events, out)
    assert list(read(io.StringIO(out.getvalue()))) == events


def test_a_torn_last_line_ends_the_history_and_a_torn_line_before_it_is_an_error() -> None:
    whole = event(1, "W1", "note", text="a").to_json()
    assert len(list(read([whole + "\n", whole[:20]]))) == 1
    with pytest.raises(HistoryError, match="line 1 is not JSON") as refused:
        list(read([whole[:20] + "\n", whole + "\n"]))
    assert str(refused.value).count("line") == 1, "the position in the line is that of Python"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("[]", "not a JSON object"),
        ('{"who":"W1","kind":"note"}', "needs at_ms"),
        ('{"at_ms":"noon","who":"W1","kind":"note"}', "needs at_ms"),
        ('{"at_ms":0,"who":"W1","kind":"miracle"}', "an unknown kind, 'miracle'"),
        ('{"at_ms":0,"who":"W1","kind":"held","epoch":1}', "needs until_ms, version"),
    ],
)
def test_a_line_that_is_no_event_says_what_is_wrong_with_it(line: str, says: str) -> None:
    with pytest.raises(HistoryError, match=says):
        parse(line)


def test_an_event_with_a_missing_field_fails_where_it_is_made() -> None:
    with pytest.raises(HistoryError, match="needs why"):
        event(0, "W1", "lost", epoch=1)


def test_a_stall_is_reported_with_the_grant_of_the_stalled_client() -> None:
    events = [
        event(1_000, "W1", "held", epoch=41, until_ms=4_000, version="v"),
        event(1_200, "W1", "renewed", epoch=41, until_ms=5_500, version="v2"),
        event(2_000, "W1", "stalled", pid=7, why="asked"),
        event(9_000, "W1", "resumed", pid=7),
        event(9_001, "W1", "lost", epoch=41, why="epoch 42 was granted"),
        event(9_500, "W1", "stalled", pid=7, why="asked"),
    ]
    assert narrate(events) == [
        "+0.000 s  W1 holds the lock, epoch 41, until +3.000 s",
        "+1.000 s  W1 stalls (SIGSTOP), holding epoch 41 until +4.500 s",
        "+8.000 s  W1 goes on",
        "+8.001 s  W1 has lost the lock, epoch 41: epoch 42 was granted",
        "+8.500 s  W1 stalls (SIGSTOP)",
    ]


def test_a_wait_of_which_no_lock_record_is_known_names_no_epoch_and_no_time() -> None:
    """From a log that shows a refusal and not the lock's content."""
    unknown = event(5.0, "W1", "waiting", owner="somebody", epoch=0, until_ms=5.0)
    known = event(6.0, "W1", "waiting", owner="W2", epoch=4, until_ms=2_005.0)
    first, second = narrate([unknown, known])
    assert first.endswith("W1 waits for somebody")
    assert second.endswith("W1 waits for W2 (epoch 4), until +2.000 s")


def test_a_history_can_be_narrated_event_by_event() -> None:
    with (GOOD / "stalled_commit_refused.jsonl").open(encoding="utf-8") as lines:
        events = list(read(lines))
    teller = HistoryNarrator()
    narrated = [line for each in events if (line := teller.narrate(each)) is not None]
    assert narrated == narrate(events)
    assert any("did not commit 20250106101203123: LockLost" in line for line in narrated)


def test_the_narration_has_no_terminal_control_sequences() -> None:
    nasty = "\x1b[31mred\x1b[0m\u202eright to left\nnext line"
    events = [
        Event(0, nasty, "note", {"text": nasty}),
        event(0, "W2", "waiting", owner=nasty, epoch=nasty, until_ms=nasty),
        event(0, "W2", "refused", instant=nasty, epoch=1, error=nasty, why=nasty),
    ]
    for line in narrate(events):
        assert line.isprintable(), line
    assert len(plain("x" * 10_000)) == 300


@pytest.mark.parametrize("kind", ["held", "waiting", "danger", "checked", "released", "answer"])
def test_a_field_of_another_type_does_not_stop_the_story(kind: str) -> None:
    names = (
        "epoch", "until_ms", "version", "owner", "proven", "covered", "writes", "instant",
        "request", "op", "outcome", "why",
    )  # fmt: skip
    fields: dict[str, None] = dict.fromkeys(names)
    told = narrate([Event(0, "W1", kind, fields)])
    assert len(told) == (kind != "answer"), "an answer alone is not worth a line"
    assert all("W1" in line for line in told)
