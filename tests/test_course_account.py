"""The account of notebook 01: what each way of paying leaves, whoever is scheduled when."""

from __future__ import annotations

import pytest

from lockkit import Lock, LockLost
from lockkit.events import event
from lockkit.lab.course.account import (
    BEGIN_AGAIN,
    GIVE_UP,
    GUESSES,
    LATE_GUESSES,
    ONLY_ONE,
    ONLY_TWO,
    REFUSED,
    SUM,
    WRITE_AGAIN,
    PaymentOutcome,
    at_once,
    in_turn,
    late,
)
from lockkit.lab.course.lock_testbed import stand

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


def test_concurrent_payments_lose_one_and_sequential_ones_lose_none() -> None:
    assert (str(at_once()), str(in_turn())) == (ONLY_TWO, SUM)
    assert ONLY_TWO in GUESSES and SUM in GUESSES


@pytest.mark.parametrize(
    ("guarded", "then", "left"),
    [
        (False, GIVE_UP, ONLY_ONE),
        (True, GIVE_UP, REFUSED),
        (True, WRITE_AGAIN, ONLY_ONE),
        (True, BEGIN_AGAIN, SUM),
    ],
)
def test_a_late_write_overwrites_others_unless_it_names_the_version_to_replace(
    guarded: bool, then: str, left: str
) -> None:
    """And the checker has no complaint about the lock in any of them: that is the lesson."""
    paid = late(guarded=guarded, then=then)
    assert (str(paid), paid.verdict.kind) == (left, "VALID")
    assert left in LATE_GUESSES


def test_other_operations_are_refused() -> None:
    with pytest.raises(ValueError, match="no choice 'hope'; there are 'give up', 'write it again'"):
        late(guarded=True, then="hope")


def test_a_broken_lock_is_reported_at_the_end_of_its_block() -> None:
    testbed = stand()
    with pytest.raises(LockLost, match="epoch 2"), Lock(testbed.url, ttl_s=30, **testbed.of("W1")):
        testbed.break_lock()
    assert testbed.verdict.kind == "VALID"


def test_a_test_service_runs_until_another_is_requested() -> None:
    first = stand()
    assert first.put("W1", "x.json", b"{}") == 200
    second = stand("gcs")
    assert second.provider == "gcs"
    with pytest.raises(OSError):
        first.put("W1", "x.json", b"{}")


def test_the_payers_name_is_escaped() -> None:
    write = event(
        1, "store", "request", client=HOSTILE, method="put", key="balance.json", condition="",
        status=200, answer="applied", applied=True, before="", version="1", attempt="", began_ms=0,
    )  # fmt: skip
    page = PaymentOutcome(balance=30, writes=(write,), events=(), verdict=None)._repr_html_()
    assert "<img" not in page and "&lt;img" in page
