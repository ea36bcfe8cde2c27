"""The lock object of notebook 02: written with and without a condition, kept, handed on."""

from __future__ import annotations

import pytest

from lockkit.clock import Clock
from lockkit.lab.course.lock_testbed import LockTestbed
from lockkit.lab.course.lockfile import (
    BOTH_WON,
    ONE_WON,
    REPEATED,
    RISEN,
    CompetingClaims,
    LockHandoff,
    claim_at_once,
    hand_on,
    kept,
    look,
    resume,
    version_of,
)
from lockkit.lock.handle import LOCK_KEY

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


def test_without_a_condition_both_clients_win_and_the_checker_finds_two_holders() -> None:
    plain, guarded = claim_at_once(conditional=False), claim_at_once(conditional=True)
    assert (str(plain), plain.verdict.kind) == (BOTH_WON, "INVALID")
    assert "two clients count on the lock at once: W1" in plain.verdict.because
    assert (str(guarded), guarded.verdict.kind) == (ONE_WON, "VALID")


def test_a_tombstone_remembers_the_epoch_and_a_deleted_object_does_not() -> None:
    tombstone, deleted = hand_on("tombstone"), hand_on("conditional delete")
    assert (str(tombstone), tombstone.epochs, tombstone.verdict.kind) == (RISEN, (1, 2), "VALID")
    assert (str(deleted), deleted.epochs, deleted.verdict.kind) == (REPEATED, (1, 1), "INVALID")
    assert [row[2] for row in deleted.kept.rows].count("deleted") == 2
    assert [row[4] for row in tombstone.kept.rows].count("yes") == 2
    assert len(tombstone.kept.rows[0][1]) == 4, "as in the picture, and no wider than a page"


@pytest.mark.filterwarnings("ignore:.*is not a lock record")
def test_an_epoch_written_by_hand_determines_the_next_one() -> None:
    by_hand = {"expired": True, "validUntil": 0, "owner": "copied"}
    assert resume(**by_hand).epochs == (1,), "the challenge is committed unsolved"
    solved = resume(**by_hand, epoch=41)
    assert (solved.epochs, solved.verdict.kind) == ((42,), "VALID")
    assert "ghost" in solved.verdict.said and "ghost" not in repr(solved), "a word of the checker"
    for wrong, why in (({"expired": False}, "is held by 'copied'"), ({"expired": 1}, "not a lock")):
        tried = resume(**by_hand | {"validUntil": Clock().wall_ms() + 60_000} | wrong)
        assert tried.epochs == () and why in repr(tried), "an answer, no traceback"


def test_every_state_is_kept_in_order_and_a_read_shows_the_last() -> None:
    with LockTestbed("s3") as testbed:
        testbed.keep_versions()
        for epoch in (1, 2):
            body = f'{{"expired":false,"validUntil":1,"owner":"W1","epoch":{epoch}}}'
            assert testbed.put("W1", LOCK_KEY, body.encode()) == 200
        assert [row[3] for row in kept(testbed).rows] == ["1", "2"]
        assert '"epoch": 2' in repr(look(testbed))


@pytest.mark.parametrize(("provider", "begins"), [("s3", '"'), ("gcs", "1"), ("azure", '"0x')])
def test_each_provider_names_the_state_of_an_object_in_its_own_way(
    provider: str, begins: str
) -> None:
    assert version_of(provider).startswith(begins)


def test_the_text_of_a_lock_object_is_escaped() -> None:
    with LockTestbed("s3") as testbed:
        testbed.keep_versions()
        testbed.put("W1", LOCK_KEY, f'{{"expired":false,"validUntil":1,"owner":"{HOSTILE[:4]}",'
                                   f'"attempt":"{HOSTILE[:10]}"}}'.encode())  # fmt: skip
        page = LockHandoff(epochs=(), kept=kept(testbed), verdict=_Said())._repr_html_()
    assert "<img" not in page and page.count("&lt;img") == 3


class _Said:
    kind, said = "INVALID", HOSTILE


def test_two_refusals_are_not_called_two_wins() -> None:
    assert str(CompetingClaims(statuses=(412, 412), events=(), verdict=None)) == ONE_WON
