"""Group commit on a store that takes one write a second to an object, in virtual time."""

from __future__ import annotations

from collections import Counter

import pytest

from lockkit.protocol.outcome import Throttled
from lockkit.runtime import Put
from lockkit.runtime.proven import RETRY_AFTER_S_MAX
from lockkit.table.occ.fence import FENCE_KEY
from lockkit.table.occ.group.rate import EVERY_MS, ONCE_MS, REMEMBERS_MS, FenceRate
from tests.distant_world import Appending


def test_of_two_writers_that_take_one_instant_neither_waits_until_its_object_may_be_written() -> (
    None
):
    playing = Appending(8).play(12.0)
    sent = [each for each in playing.run.world.memory_store.truth
            if isinstance(each.request, Put)
            and each.request.key.endswith(".requested")]  # fmt: skip
    assert any(isinstance(each.answer, Throttled) for each in sent), "no two took the same one"
    tries = Counter((each.client, each.request.key) for each in sent)  # type: ignore[union-attr]
    assert set(tries.values()) == {1}


@pytest.mark.parametrize(("writers", "least"), [(1, 0.8), (4, 3), (8, 6), (16, 12)])
def test_one_replacement_a_second_decides_for_every_writer(writers: int, least: float) -> None:
    playing = Appending(writers).play(9.0)  # by then each knows the store
    world = playing.run.world
    before, sent, seconds = playing.commits.total(), len(world.memory_store.truth), 6.0
    playing.waits_s.clear()
    playing.play(seconds)
    assert playing.commits.total() - before >= least * seconds
    assert max(playing.waits_s) <= 2.5
    assert playing.least_share >= 0.5
    throttled = [each for each in world.memory_store.truth[sent:]
                 if isinstance(each.answer, Throttled)
                 and getattr(each.request, "key", "") == FENCE_KEY]  # fmt: skip
    assert not throttled


def met(*, version: str = "v1", now_ms: int = 5_000) -> FenceRate:
    """That of a client whose replacement of this version was throttled."""
    rate = FenceRate()
    rate.saw(1, now_ms - 300)
    rate.refused(version, now_ms, None)
    return rate


def test_a_client_paces_itself_only_if_the_fence_that_it_could_not_replace_is_still_there() -> None:
    raced, slow = met(), met()
    raced.saw(1, 5_060)  # another writer has replaced it: S3's 409
    raced.unchanged("v2", 5_120)
    assert raced.early_ms(5_120) == 0
    slow.unchanged("v1", 5_120)
    assert slow.early_ms(5_120) == 4_700 + EVERY_MS - 5_120


def test_a_store_that_asks_for_a_long_pause_delays_the_next_fence_by_no_more_than_the_limit() -> (
    None
):
    rate = met()
    rate.refused("v1", 5_000, 3_600)
    rate.unchanged("v1", 5_000)
    assert rate.early_ms(5_000) == RETRY_AFTER_S_MAX * 1000


def test_a_client_tries_again_after_a_minute_and_at_once_if_two_replacements_follow_quickly() -> (
    None
):
    slow = met()
    slow.unchanged("v1", 5_000)
    slow.refused("v1", 5_100, None)
    slow.unchanged("v1", 5_120)
    assert slow.is_slow(5_120 + REMEMBERS_MS - 1)
    assert not slow.is_slow(5_120 + REMEMBERS_MS)
    slow.saw(1, 6_000)
    assert slow.is_slow(6_000)
    slow.saw(2, 6_200)
    assert not slow.is_slow(6_201)


def test_one_refusal_slows_a_client_down_for_two_seconds_and_a_second_one_for_a_minute() -> None:
    rate = met()
    rate.unchanged("v1", 5_120)
    assert rate.is_slow(5_120 + ONCE_MS - 1) and not rate.is_slow(5_120 + ONCE_MS)
    rate.saw(1, 8_000)
    rate.refused("v2", 8_300, None)
    rate.unchanged("v2", 8_400)
    assert rate.is_slow(8_400 + REMEMBERS_MS - 1)
    rate.saw(2, 8_450)
    rate.refused("v3", 9_000, None)
    rate.unchanged("v3", 9_100)
    assert not rate.is_slow(9_100 + ONCE_MS), "two replacements in 0.2 s: the store takes more"


@pytest.mark.parametrize(
    ("number", "sent_ms", "fast"), [(8, 8_145, True), (8, 9_000, False), (9, 8_145, False)]
)
def test_two_fences_in_a_row_by_one_client_within_half_a_second_show_a_faster_store(
    number: int, sent_ms: int, fast: bool
) -> None:
    """A writer alone sees no fence of another one. Amazon's refusals come in pairs."""
    rate = met()
    rate.unchanged("v1", 5_120)
    rate.makes(7, 8_000, 8_060)
    rate.makes(number, sent_ms, sent_ms + 60)
    rate.refused("v3", 10_000, None)
    rate.unchanged("v3", 10_100)
    assert rate.is_slow(10_100 + ONCE_MS) != fast


def test_a_refusal_puts_the_next_try_off_and_what_the_store_asks_for_counts() -> None:
    rate = met()
    rate.unchanged("v1", 5_120)
    rate.refused("v1", 6_000, None)
    assert rate.early_ms(6_000) > 0
    rate.refused("v1", 6_000, 3.0)
    assert rate.early_ms(6_000) == 3_000


def test_a_client_that_looks_late_does_not_look_later_from_round_to_round() -> None:
    """It looks two round trips after it expects the next fence, and again every two."""
    rate, trips_ms, looks_ms, late_ms = FenceRate(), 120, 10_200, list[int]()
    for made_ms in range(10_000, 30_000, EVERY_MS + 50):
        while looks_ms < made_ms:
            rate.unchanged("v", looks_ms)
            looks_ms += trips_ms
        late_ms.append(looks_ms - made_ms)
        rate.saw(1, looks_ms)
        looks_ms += rate.next_ms(looks_ms) + trips_ms
    assert max(late_ms) <= 2 * trips_ms
