"""What was read while the lock was being acquired: how long each of it counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any
from unittest.mock import patch

import pytest
from table_world import CLOCK, CONFIG, Holder, Lossy, new_table, prepare_inserts, rows

from lockkit.errors import TableError
from lockkit.protocol.outcome import Found, over
from lockkit.runtime import Procedure, run
from lockkit.stores import Store
from lockkit.table import Prepared
from lockkit.table.format.properties import PROPERTIES_KEY, to_properties
from lockkit.table.format.property_keys import format_properties
from lockkit.table.occ.commit import DecidedCommit, Prefetched, decide
from lockkit.table.occ.fence import NO_INSTANT, read_fence
from lockkit.table.occ.publish import Prefetcher

NAMES = count()


@pytest.fixture
def store() -> Store:
    return new_table(f"memory://ahead-{next(NAMES)}")


def prepared_in(store: Store) -> tuple[Prepared, Prefetcher]:
    prepared = prepare_inserts(store, rows([0]))
    return prepared, Prefetcher(prepared)


def another_holder_changes_the_table(store: Store) -> None:
    found = store.get(PROPERTIES_KEY)
    assert isinstance(found, Found)
    body = format_properties(to_properties(replace(CONFIG, buckets=CONFIG.buckets + 1)))
    store.put(PROPERTIES_KEY, body, over(found.version))


def decided(store: Store, prepared: Prepared, ahead: Prefetched) -> DecidedCommit:
    decision: DecidedCommit = run(decide(prepared, Holder(2), ahead=ahead), store, CLOCK)
    return decision


def test_a_config_check_beside_the_claim_that_wins_counts(store: Store) -> None:
    prepared, scout = prepared_in(store)
    run(scout.prefetch(True), store, CLOCK)
    assert scout.ahead.config_checked
    asked = Lossy(store)
    decided(asked, prepared, scout.ahead)
    assert ("get", PROPERTIES_KEY) not in asked.seen


def refused_after(store: Store, *looks: bool, silent_from: int = 99) -> None:
    """A claim fails; the table changes under the lock's holder; these looks follow."""
    prepared, scout = prepared_in(store)
    run(scout.prefetch(True), store, CLOCK)
    another_holder_changes_the_table(store)
    for number, claiming in enumerate(looks):
        asked = Lossy(store, from_on=0) if number >= silent_from else store
        run(scout.prefetch(claiming), asked, CLOCK)
    with pytest.raises(TableError, match="the table changed under this commit"):
        decided(store, prepared, scout.ahead)
    fence = run(read_fence(), store, CLOCK).fence
    assert fence is not None and fence.head.instant == NO_INSTANT, "nothing was decided"


def test_a_config_check_beside_a_failed_claim_does_not_count_once_the_table_changed(
    store: Store,
) -> None:
    refused_after(store, False)  # and then its own lost claim turns out to have won


def test_a_config_check_does_not_count_if_the_winning_claim_could_not_check(store: Store) -> None:
    refused_after(store, False, True, silent_from=1)


def test_a_fence_that_was_read_ahead_saves_no_config_check(store: Store) -> None:
    prepared, _ = prepared_in(store)
    another_holder_changes_the_table(store)
    with pytest.raises(TableError, match="the table changed under this commit"):
        decided(store, prepared, Prefetched(run(read_fence(), store, CLOCK)))


# --- the rule removed: each of these tests is to fail then ---------------------------------------


def prefetch_keeps_an_earlier_check(scout: Prefetcher, claiming: bool) -> Procedure[None]:
    """As `Prefetcher.prefetch`, but that an earlier check of the config counts as made under the
    lock.
    """
    earlier = scout.ahead
    try:
        now = yield from scout._prefetch(claiming)
    except TableError:
        now = earlier
    scout.ahead = replace(now, config_checked=claiming or earlier.config_checked)


@contextmanager
def with_an_earlier_check_that_counts() -> Iterator[Any]:
    with patch.object(Prefetcher, "prefetch", prefetch_keeps_an_earlier_check):
        yield


@pytest.mark.parametrize("looks", [(False,), (False, True)])
def test_these_tests_find_the_mistake_of_counting_the_check_of_an_earlier_read(
    looks: tuple[bool, ...], store: Store
) -> None:
    with with_an_earlier_check_that_counts(), pytest.raises(pytest.fail.Exception):
        refused_after(store, *looks, silent_from=1)
