"""Of each pattern a history that nearly shows it: the cause is there, the harm is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockkit.events import Event, event, read
from lockkit.lab.incident.diagnosis import diagnose
from lockkit.lab.incident.patterns import PRESENT, Pattern

INCIDENTS = Path(__file__).parents[1] / "datasets" / "incidents"
LOCK = "orders/.hoodie/.locks/table_lock.json"
LATER_MS = 4_000
Told = list[Event]


def only(events: Told, kind: str, who: str) -> Event:
    (found,) = (each for each in events if (each.kind, each.who) == (kind, who))
    return found


def writes(events: Told, client: str, key: str = LOCK) -> Told:
    return [each for each in events if each.kind == "request" and each["applied"]
            and (each["client"], each["key"]) == (client, key)]  # fmt: skip


def with_(each: Event, **data: Any) -> Event:
    return replace(each, data={**each.data, **data})


def swapped(events: Told, *pairs: tuple[Event, Event | None]) -> Told:
    """Each of them in place of the other; None: as if it had never been."""
    to = {id(one): other for one, other in pairs}
    return [now for each in events if (now := to.get(id(each), each)) is not None]


def inserted(events: Told, *more: Event) -> Told:
    return sorted([*events, *more], key=lambda each: each.at_ms)


# --- what would have made each of them harmless ---------------------------------------------------


def the_second_create_is_refused(events: Told) -> Told:
    (second,) = writes(events, "W1")
    refused = with_(second, applied=False, answer="precondition_failed", status=412, version="")
    return swapped(events, (second, refused), (only(events, "held", "W1"), None))


def its_holder_deleted_it_to_let_go(events: Told) -> Told:
    (delete,) = writes(events, "operator")
    asks = event(delete.at_ms - 1, "operator", "ask", request=1, op="release", key=LOCK, attempt="")
    return inserted(events, asks)


def the_lease_had_ended_by_then(events: Told) -> Told:
    """Its clock is as far ahead as before."""
    last = writes(events, "W1")[-1].at_ms
    (taken,) = writes(events, "W2")
    body = {**taken["body"], "validUntil": taken["body"]["validUntil"] + LATER_MS}
    return [
        replace(each, at_ms=each.at_ms + LATER_MS) if each.at_ms > last else each
        for each in swapped(events, (taken, with_(taken, body=body)))
    ]


def it_was_only_the_lease_that_ran_out(events: Told) -> Told:
    lost = only(events, "lost", "W1")
    return swapped(events, (lost, replace(lost, at_ms=only(events, "held", "W1")["until_ms"])))


def it_found_its_own_write(events: Told) -> Told:
    (write,) = writes(events, "W1")
    answer = next(each for each in events if each.kind == "answer" and each["op"] == "acquire")
    until = {"until_ms": write.at_ms + 3_000, "version": write["version"]}
    return inserted(events, event(answer.at_ms + 0.5, "W1", "held", epoch=1, **until))


def the_release_was_tried_again(events: Told) -> Told:
    """And landed: with the same attempt, before it was let go."""
    over, (held,) = only(events, "released", "W1"), writes(events, "W1")
    asks = [each for each in events if each.kind == "ask" and each["op"] == "release"]
    again = {"attempt": asks[0]["attempt"], "before": held["version"], "version": "tombstone",
             "condition": f"if-version {held['version']}",
             "body": {**held["body"], "expired": True}}  # fmt: skip
    landed = replace(with_(held, **again), at_ms=over.at_ms - 0.01)
    return [each for each in inserted(events, landed) if each.at_ms <= over.at_ms]


def the_first_had_stopped_by_itself(events: Told) -> Told:
    taken = only(events, "held", "W2")
    stopped = event(taken.at_ms - 50, "W1", "lost", epoch=1, why="its margin was reached")
    return inserted(events, stopped)


def the_late_commit_was_refused(events: Told) -> Told:
    late = only(events, "published", "W1")
    (file,) = writes(events, "W1", "orders/.hoodie/20260101000000001.commit")
    refused = event(late.at_ms, "W1", "refused", instant=late["instant"], epoch=1,
                    error="LockLost", why="the fence has moved on")  # fmt: skip
    return swapped(events, (late, refused), (file, None))


NEARLY: dict[Pattern, tuple[str, Callable[[Told], Told]]] = {
    Pattern.NO_CAS: ("incus-3651-conditions-ignored", the_second_create_is_refused),
    Pattern.HAND_DELETED: ("hudi-11347-deleted-by-hand", its_holder_deleted_it_to_let_go),
    Pattern.CLOCK_SKEW: ("hudi-19574-clock-ahead", the_lease_had_ended_by_then),
    Pattern.FALSE_412: ("hudi-14373-renewal-retried", it_was_only_the_lease_that_ran_out),
    Pattern.GHOST: ("hudi-14286-claim-unanswered", it_found_its_own_write),
    Pattern.THROTTLED: ("hudi-18438-release-429", the_release_was_tried_again),
    Pattern.DANGLING: ("hudi-20027-release-500", the_release_was_tried_again),
    Pattern.TWO_BELIEVERS: ("hudi-rfc91-buffer-on-both-sides", the_first_had_stopped_by_itself),
    Pattern.STALE: ("hudi-17871-late-commit", the_late_commit_was_refused),
}


def named(events: Iterable[Event]) -> set[Pattern]:
    found = diagnose(events)
    return {found.pattern, *(each.pattern for each in found.also)}


def test_every_pattern_has_a_near_miss() -> None:
    """Those of `PRESENT` have theirs in test_incident_present.py."""
    assert {*NEARLY, Pattern.UNKNOWN} == set(Pattern) - PRESENT


@pytest.mark.parametrize("pattern", NEARLY, ids=str)
def test_a_pattern_is_named_where_it_harmed_and_not_where_it_nearly_did(pattern: Pattern) -> None:
    name, harmless = NEARLY[pattern]
    with (INCIDENTS / f"{name}.jsonl").open(encoding="utf-8") as file:
        events = list(read(file))
    assert pattern in named(events)
    assert pattern not in named(harmless(events))
