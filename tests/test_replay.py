"""Trace validation: what a real run recorded is just what the protocol's own `step` does."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from lock_world import SCHEMES, until

from lockkit.errors import LockLost
from lockkit.events import STORE, Event, event
from lockkit.lab.faults import Fault, Proxy
from lockkit.lab.server import Emulator
from lockkit.lab.verify.check import Kind, replay
from lockkit.lab.verify.mutants import LEASE_MUTANTS
from lockkit.lock.grant import stop_renewing
from lockkit.lock.handle import Lock

TTL_S = 1.0


def recorder(events: list[Event], who: str) -> Callable[..., None]:
    def tell(kind: str, **fields: Any) -> None:
        events.append(event(time.time() * 1000, who, kind, **fields))

    return tell


def run(kind: str) -> list[Event]:
    """Renewals, lost answers to a claim, a renewal and a release, waiting, and two takeovers."""
    recorded_events: list[Event] = []
    with Emulator() as server, Proxy(getattr(server, kind)) as proxy:
        url = f"{SCHEMES[kind]}://bucket/table"
        make = partial(Lock, url, endpoint=proxy.url, ttl_s=TTL_S, renew_interval_s=TTL_S / 10)
        one, two = (make(client=who, emit=recorder(recorded_events, who)) for who in ("one", "two"))
        lose = partial(Fault, "drop", operation="put", key="table_lock.json", client="one")
        proxy.inject(lose())
        with one:
            assert not two.acquire(timeout=0)
            until(lambda: any(each.kind == "renewed" for each in list(recorded_events)))
            proxy.inject(lose())
            before = len(recorded_events)
            until(lambda: any(each.kind == "renewed" for each in recorded_events[before:]))
            proxy.inject(lose())
        proxy.inject(Fault("drop", operation="get", key="table_lock.json", client="two"))
        assert two.acquire(timeout=10)
        two.close()  # it lets its lease run out
        assert one.acquire(timeout=30)
        stop_renewing(one._client)  # like a process that is stopped
        with make(client="three", emit=recorder(recorded_events, "three")) as third:
            assert third.owned()
            with pytest.raises(LockLost):
                one.release()
        return sorted([*recorded_events, *server.requests()], key=lambda each: each.at_ms)


# One worker records a provider's run, for all tests of it.
@pytest.fixture(scope="module", params=[
    pytest.param(each, marks=pytest.mark.xdist_group(f"a recorded run on {each}"))
    for each in SCHEMES
])  # fmt: skip
def history(request: pytest.FixtureRequest) -> list[Event]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(request.param)


def test_a_real_run_is_step_by_step_what_the_protocol_does(history: list[Event]) -> None:
    verdict = replay(history)
    assert verdict.kind is Kind.VALID, (verdict.because, verdict.evidence)
    kinds = {each.kind for each in history}
    assert {"held", "renewed", "waiting", "lost", "released"} <= kinds
    silent = [each for each in history if each.kind == "answer" and each["outcome"] == "Unknown"]
    assert {each["op"] for each in silent} >= {"acquire", "renew", "look"}


def test_a_missing_event_of_the_protocol_is_found(history: list[Event]) -> None:
    found = 0
    for place, each in enumerate(history):
        if _is_told(history, place) and _goes_on(history, place):
            without = history[:place] + history[place + 1 :]
            assert replay(without).kind is not Kind.VALID, each
            found += 1
    assert found > 100


def test_two_swapped_events_of_a_lane_are_found(history: list[Event]) -> None:
    found = 0
    for who in ("one", "two", "three"):
        mine = [place for place, each in enumerate(history) if each.who == who]
        lane = [place for place in mine if _is_told(history, place)]
        for first, second in pairwise(lane):
            swapped = list(history)
            swapped[first], swapped[second] = history[second], history[first]
            assert replay(swapped).kind is not Kind.VALID, (history[first], history[second])
            found += 1
    assert found > 100


@pytest.mark.parametrize(
    ("kind", "field", "other"),
    [
        ("answer", "outcome", "PreconditionFailed"),
        ("heard", "outcome", "PreconditionFailed"),
        ("heard", "version", '"another"'),
        ("ask", "attempt", "somebody/1"),
        ("held", "epoch", 77),
        ("renewed", "version", '"another"'),
        ("released", "proven", False),
        ("waiting", "owner", "nobody"),
    ],
)
def test_a_changed_field_of_any_event_is_found(
    history: list[Event], kind: str, field: str, other: object
) -> None:
    found = 0
    for place, each in enumerate(history):
        applied = each.get("outcome", "Applied") == "Applied"
        if each.who != STORE and each.kind == kind and field in each.data and applied:
            changed = list(history)
            changed[place] = replace(each, data={**each.data, field: other})
            assert replay(changed).kind is Kind.INVALID, each
            found += 1
    assert found


def test_what_the_store_recorded_of_a_write_is_what_the_protocol_sends(
    history: list[Event],
) -> None:
    place, each = next(
        (n, e) for n, e in enumerate(history)
        if e.who == STORE and e.get("body") and e["attempt"]
    )  # fmt: skip
    for data in ({"condition": 'if-version "x"'}, {"body": {**each["body"], "epoch": 9}}):
        changed = list(history)
        changed[place] = replace(each, data={**each.data, **data})
        assert replay(changed).kind is Kind.INVALID


def test_a_run_under_other_rules_is_not_what_the_protocol_does(history: list[Event]) -> None:
    with LEASE_MUTANTS["claim_unknown ours"].planted():
        assert replay(history).kind is Kind.INVALID


def test_events_sent_before_a_kill_may_arrive_after_it(
    history: list[Event],
) -> None:
    place = next(n for n, each in enumerate(history) if each.who == "one" and each.kind == "held")
    killed = event(history[place].at_ms, "one", "killed", pid=1)
    assert replay([*history[:place], killed, *history[place:]]).kind is Kind.VALID


def test_a_history_without_received_answers_is_unknown(history: list[Event]) -> None:
    assert replay([each for each in history if each.kind != "heard"]).kind is Kind.UNKNOWN
    assert replay([each for each in history if each.who != STORE]).kind is Kind.UNKNOWN


def _is_told(history: list[Event], place: int) -> bool:
    """Each step, and what came of it. Silence need not be told, nor a look that met it: a client
    that puts a look off hears the same.
    """
    each = history[place]
    of_step = each.kind in ("heard", "ask", "answer", "held", "renewed", "lost", "released")
    heard = (e for e in history[place:] if e.who == each.who and e.kind == "heard")
    unanswered_look = (
        each.kind == "ask" and each["op"] == "look"
        and next((e["event"] == "blind" for e in heard), False)
    )  # fmt: skip
    silence = each.kind == "answer" and each["outcome"] == "Unknown"
    return of_step and not silence and not unanswered_look


def _goes_on(history: list[Event], place: int) -> bool:
    who = history[place].who
    return any(each.who == who and each.kind == "heard" for each in history[place + 1 :])
