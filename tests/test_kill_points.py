"""Kill points: whoever dies at whichever write, a commit is visible or not, and never half.

`LOCKKIT_REWRITE=1 pytest tests/test_kill_points.py -k page` renews the table of the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial

import pytest
from kill_points import (
    ANEW,
    BY_PLAN,
    CLEAN,
    COMMIT,
    DONE,
    NEXT,
    NO,
    ROLLBACK,
    UNDECIDED,
    YES,
    Nursery,
    Row,
    Story,
    measure,
    points_of,
    survive,
    table_of,
)
from pages import section

from lockkit.lab.faults import Fault
from lockkit.lab.server import Emulator

pytestmark = [pytest.mark.xdist_group("kill points"), pytest.mark.timeout(240)]

Measured = Callable[[Story], list[Row]]


@pytest.fixture(scope="module")
def measured() -> Iterator[Measured]:
    with Emulator() as server, Nursery() as nursery:
        yield cache(lambda story: measure(server, nursery, story))


def outcomes(rows: list[Row]) -> list[str]:
    """In the order of time."""
    return [outcome for _, *both in rows for outcome in both]


def test_a_writer_killed_before_its_decision_published_nothing_and_after_it_everything(
    measured: Measured,
) -> None:
    found = outcomes(measured(COMMIT))
    decided = 2 * COMMIT.writes.index("PUT fence.json") + 1
    assert found == [NO] * decided + [NEXT] * 2 + [YES] * (len(found) - decided - 2)


@pytest.mark.soak
def test_a_cleaner_killed_before_its_decision_rolled_nothing_back_and_after_it_did_so_for_good(
    measured: Measured,
) -> None:
    found = outcomes(measured(ROLLBACK))
    decided = 2 * ROLLBACK.writes.index("PUT fence.json") + 1
    assert found == [UNDECIDED] * decided + [NO] * (len(found) - decided)


@pytest.mark.soak
def test_a_clean_that_is_killed_is_finished_by_the_next_one(measured: Measured) -> None:
    found = outcomes(measured(CLEAN))
    assert found == [ANEW] + [BY_PLAN] * (len(found) - 2) + [DONE]


@pytest.mark.parametrize(
    "lost",
    [
        pytest.param(partial(Fault, "drop", when="after"), id="of what landed"),
        pytest.param(
            partial(Fault, "late", delay_s=0.1), id="of what lands late", marks=pytest.mark.soak
        ),
    ],
)
def test_a_lost_answer_to_any_write_of_a_commit_costs_no_row(lost: partial[Fault]) -> None:
    with Emulator() as server, Nursery() as nursery:
        points = list(points_of(server, nursery, COMMIT))
        assert points
        for point in points:
            survive(server, point, lost)


@pytest.mark.soak
def test_the_page_of_guarantees_has_the_kill_points_as_measured(measured: Measured) -> None:
    measurements = {each: measured(each) for each in (COMMIT, ROLLBACK, CLEAN)}
    section("concepts/guarantees.md", "kill-points", table_of(measurements))
