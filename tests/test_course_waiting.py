"""The challenges of notebooks 07, 13 and 15, and the guesses of the first two."""

from __future__ import annotations

import pytest

pytest.importorskip("ipywidgets", reason="make test installs ipywidgets")

from lockkit.lab.course.contention import NOT_AT_ALL, ServiceHandoff, wait
from lockkit.lab.course.honest import SPEAK_S3, sort_out
from lockkit.lab.course.peers import _contended
from lockkit.lab.course.striping import (
    A_MOMENT,
    AS_MANY,
    FOR_EVER,
    PER_WRITER,
    SOME,
    Race,
    Stories,
    as_table,
    rename_at_once,
    three_renames,
)
from lockkit.lab.widgets.figures import SideFigures

# --- 07: how long a writer waits ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "outlived", "gave_up"),
    [
        ((60_000, 50, 5_000), True, False),  # Hudi's defaults
        ((60_000, 0), False, True),  # as long as the lease, and not as long as its slack
        ((90_000, 0), True, True),
        ((30_000, 2), True, True),
    ],
)
def test_hudis_keys_outlive_a_dead_holder_or_give_up_in_time(
    keys: tuple[int, ...], outlived: bool, gave_up: bool
) -> None:
    waited = wait(*keys)
    assert (waited.outlived, waited.gave_up_s is not None) == (outlived, gave_up)
    assert waited.solved is (outlived and gave_up)
    assert set(waited.kinds) == {"VALID"}


def test_an_invalid_key_is_reported_by_name() -> None:
    with pytest.raises(ValueError, match=r"hoodie\.write\.lock\.client\.num_retries is from 0"):
        wait(60_000, -1)


def test_two_simultaneous_holders_of_either_kind_are_reported() -> None:
    well, badly = SideFigures(grants=3), SideFigures(grants=3, overlap_s=1.25, taken_over_s=(2.0,))
    assert str(ServiceHandoff((("a", well), ("b", well)))) == NOT_AT_ALL
    handed = ServiceHandoff((("a", well), ("b", badly)))
    assert str(handed) == "for 1.2 s" and "takeover after 2.0 s" in repr(handed)


# --- 13: renames at once --------------------------------------------------------------------------


def test_two_crossed_renames_wait_for_ever_unless_their_keys_have_an_order() -> None:
    crossed = ("a", "b"), ("b", "a")
    assert str(rename_at_once(*crossed, ordered=False)) == FOR_EVER
    assert str(rename_at_once(*crossed)) == A_MOMENT


def test_the_table_of_a_deadlock_ends_with_what_each_operation_waits_for() -> None:
    last = as_table(Stories("upgrades").lines).rpartition("<tr>")[2]
    assert "✗ waits for bucket b (stripe 860) to write, which CreateKey 1 has" in last
    assert "never ends" in last
    assert "<table" not in as_table(Stories("").lines)


@pytest.mark.parametrize(
    ("renames", "solved"),
    [
        ((("a", "b"), ("b", "c"), ("c", "a")), True),
        ((("a", "b"), ("b", "a"), ("a", "c")), False),  # the first two alone do harm
        ((("a", "b"), ("b", "c"), ("a", "c")), False),  # and here nobody does
    ],
)
def test_three_renames_in_a_circle_do_harm_that_no_two_of_them_do(
    renames: tuple[tuple[str, str], ...], solved: bool
) -> None:
    trio = three_renames(*renames)
    assert (str(trio) == "solved") is solved
    assert str(three_renames(*renames).three) == (FOR_EVER if trio.three.violation else A_MOMENT)


def test_two_renames_are_refused_where_three_are_compared() -> None:
    with pytest.raises(ValueError, match="not 2"):
        three_renames(("a", "b"), ("b", "a"))


@pytest.mark.parametrize(("commits", "times"), [(3, AS_MANY), (6, SOME), (12, PER_WRITER)])
def test_the_result_of_a_race_is_one_of_the_choices(commits: int, times: str) -> None:
    assert str(Race(3, 5.0, (1, 1, 1), (commits, 0, 0), 3)) == times


# --- 15: who drops conditions ---------------------------------------------------------------------


def test_sequential_requests_expose_three_unsafe_places_and_not_the_racy_one() -> None:
    unsafe = "spaces", "rgw, versioned bucket", "rgw, quoted ETags"
    assert str(sort_out(*unsafe)) == "solved"
    assert sort_out("spaces", "two-steps").wrong == (
        "rgw, versioned bucket", "rgw, quoted ETags", "two-steps"
    )  # fmt: skip
    assert len(SPEAK_S3) == 6


def test_a_missing_place_is_reported() -> None:
    with pytest.raises(ValueError, match="no place 'tea'; there are aws; spaces; rgw"):
        sort_out("tea")


# --- 17: how long a writer waits whose appends are refused ----------------------------------------


def test_a_writer_that_never_commits_waits_until_the_end() -> None:
    def append(number: int) -> None:
        if number == 0:
            raise ValueError("another writer was first")

    made, longest_s = _contended(append, 2, 0.1)
    assert made[0] == 0 and made[1] > 1 and longest_s > 0.09
