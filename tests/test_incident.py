"""The incident console: what stands, what happened, which pattern it is, and what to do."""

from __future__ import annotations

import pytest

from lockkit.incident.standing import judge
from lockkit.record import Garbled, Record
from lockkit.rules import Rules
from lockkit.state import Sight

NOW_MS = 1_767_225_600_000


def record(**over: object) -> Record:
    fields = {"owner": "W1", "valid_until_ms": NOW_MS + 20_000, "epoch": 7, "ttl_ms": 30_000}
    return Record(**fields | over)  # type: ignore[arg-type]


def sight(record_: Record | Garbled | None, version: str = "v1", *, age_ms: int = 1_000) -> Sight:
    return Sight(version, record_, NOW_MS - age_ms, NOW_MS)


@pytest.mark.parametrize(
    ("first", "second", "state", "renews", "breakable"),
    [
        (Sight(None, None), Sight(None, None), "absent", None, False),
        (sight(Garbled("empty")), sight(Garbled("empty")), "garbled", None, False),
        (sight(record(expired=True)), sight(record(expired=True)), "released", None, False),
        (sight(record()), sight(record()), "held", None, False),
        (sight(record()), sight(record(), "v2"), "held", True, False),
        (sight(record()), sight(record(), age_ms=10_000), "held", False, False),
        (sight(record()), sight(record(), age_ms=40_000), "overdue", False, True),
        # The holder's clock is an hour fast: the store's own clock decides, as for a challenger.
        (sight(record()), sight(record(valid_until_ms=NOW_MS + 3_600_000), age_ms=40_000),
         "overdue", False, True),
        # Hudi wrote it: no ttl, so `validUntil` it is.
        (sight(record()), sight(record(ttl_ms=0), age_ms=40_000), "held", False, False),
        (sight(record()), sight(record(ttl_ms=0, valid_until_ms=NOW_MS - 501), age_ms=40_000),
         "overdue", False, True),
        (sight(record(ttl_ms=0, valid_until_ms=NOW_MS - 9_000)),
         sight(record(ttl_ms=0, valid_until_ms=NOW_MS - 501), "v2", age_ms=40_000),
         "overdue", True, False),
    ],
)  # fmt: skip
def test_only_a_lease_that_is_over_and_that_nobody_renews_may_be_broken(
    first: Sight, second: Sight, state: str, renews: bool | None, breakable: bool
) -> None:
    found = judge(first, second, watched_ms=3_000, wall_ms=NOW_MS, rules=Rules())
    assert (found.state, found.renews, found.breakable) == (state, renews, breakable)
    assert found.why


def test_each_clock_says_how_long_the_lease_still_lasts() -> None:
    found = judge(sight(record()), sight(record()), watched_ms=3_000, wall_ms=NOW_MS, rules=Rules())
    left = found.left
    assert (left.ours_ms, left.store_ms, left.observed_ms) == (20_500, 31_000, 27_000)
