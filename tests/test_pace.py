"""Pace: plain numbers in, milliseconds out; and what emerges when several handles use it."""

from __future__ import annotations

import heapq
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby, pairwise

import pytest

from lockkit.lock.polling import (
    CONTENDERS_MAX,
    LOOK_FLOOR_MS,
    SLEEP_LONGEST_MS,
    STREAK_MAX,
    PollingPace,
)

# --- alone ---------------------------------------------------------------------------------------


def cycles(
    polling: PollingPace, count: int, *, epochs: Callable[[int], int] = lambda n: n
) -> list[float]:
    """How long it stood back before each of so many grants, one right after the other."""
    now, waited = 0.0, []
    for n in range(1, count + 1):
        polling.wants(now)
        waited.append(polling.stand_back_ms(now))
        now += waited[-1] + 30
        polling.answered(30)
        for other in range(epochs(n) - epochs(n - 1) - 1):
            polling.met(f"W{other}")
        polling.granted(epochs(n), now)
        now += 5
        polling.released(now)
    return waited


def test_a_handle_alone_pauses_after_2_grants_then_4_then_8_up_to_64() -> None:
    waited = cycles(PollingPace(), 300)
    stood = [n for n, each in enumerate(waited) if each > 0]
    assert stood[:5] == [2, 6, 14, 30, 62]
    assert {b - a for a, b in pairwise(stood[4:])} == {STREAK_MAX}
    assert all(each <= 100 for each in waited)


def test_a_pause_longer_than_the_round_needs_no_further_wait() -> None:
    polling = PollingPace()
    cycles(polling, 2)
    assert polling.stand_back_ms(1e6) == 0.0


def test_a_handle_that_met_others_leaves_them_their_turns() -> None:
    polling = PollingPace()
    waited = cycles(polling, 40, epochs=lambda n: 4 * n)  # three others between two of ours
    assert polling.contenders == 3
    assert all(each > 2 * polling.turn_ms for each in waited[-5:])
    assert polling.stand_back_ms(1e6) == 0.0
    assert polling.outdated, "also after a long pause: they will have taken it meanwhile"


def test_handles_that_left_are_forgotten_within_few_grants() -> None:
    polling = PollingPace()
    cycles(polling, 20, epochs=lambda n: 4 * n)
    now = 1e6
    for n in range(81, 91):  # nobody else any more
        polling.wants(now)
        now += polling.stand_back_ms(now)
        polling.granted(n, now)
        polling.released(now)
    assert polling.contenders == 0
    assert not polling.outdated


def test_an_unlucky_round_of_others_does_not_make_them_fewer() -> None:
    """Of handles that race, the lucky would come the sooner, and race the more."""
    polling = PollingPace()
    cycles(polling, 20, epochs=lambda n: 4 * n)
    polling.granted(81, 1e6)
    assert polling.contenders == 3


def test_the_tombstone_of_an_ended_process_does_not_count_as_a_contender() -> None:
    """The next one's second cycle claims at once: two requests."""
    polling = PollingPace()
    polling.met("the process before")
    cycles(polling, 1)
    assert polling.stand_back_ms(40) == 0
    assert not polling.outdated
    polling.granted(2, 70)
    assert polling.contenders == 0


def test_the_number_of_remembered_handles_is_bounded() -> None:
    polling = PollingPace()
    for n in range(2 * CONTENDERS_MAX):
        polling.met(f"W{n}")
    assert polling.contenders == CONTENDERS_MAX


@pytest.mark.parametrize("rivals", [1, 2, 7])
def test_a_waiter_that_was_suspended_takes_its_turns_again(rivals: int) -> None:
    """Else it sleeps too long, sees the more grants of others go by, and sleeps as long again."""
    polling, now, still_ms, turn, waited = PollingPace(), 0.0, 0.0, 100.0, []
    epoch = 0
    for n in range(40):
        polling.wants(now)
        waited.append(polling.stand_back_ms(now))
        if n == 20:
            now, still_ms = now + 3_500, 3_500.0
            polling.saw(epoch + 1, now)
        now += max(waited[-1], rivals * turn)  # others go on, a turn each, whatever I do
        polling.answered(5)
        for other in range(rivals):
            polling.met(f"W{other}")
        epoch = 1 + int((now - still_ms) / turn)
        polling.granted(epoch, now)
        now += turn
        polling.released(now)
    assert max(waited[22:]) <= 1.1 * waited[20]


# --- what is learned ------------------------------------------------------------------------------


def test_hours_without_a_request_for_the_lock_count_as_no_turn() -> None:
    """Two writers that commit once an hour: one's turn is a second, not an hour."""
    polling, hour, now = PollingPace(), 3_600_000.0, 0.0
    for n in range(1, 10):
        polling.wants(now)
        polling.answered(30)
        polling.met("the other")
        polling.granted(2 * n, now + 30)
        polling.released(now + 1000)
        now += hour
    assert polling.turn_ms <= 1100
    polling.wants(now)
    assert polling.stand_back_ms(now) == 0.0
    polling.saw(100, now)
    assert polling.look_ms(0, now) <= 1000


def test_a_sleep_based_on_learned_values_never_exceeds_the_limit() -> None:
    polling = PollingPace()
    polling.answered(30)
    for n in range(1, 30):
        polling.wants(n * 1e6)
        polling.met(f"W{n}")
        polling.met(f"V{n}")
        polling.granted(40 * n, n * 1e6 + 900_000)
        polling.released(n * 1e6 + 900_000)
    assert polling.contenders > 30
    assert polling.turn_ms > 10_000
    assert polling.look_ms(0, 1e9) <= SLEEP_LONGEST_MS
    assert polling.stand_back_ms(29e6 + 900_000) <= SLEEP_LONGEST_MS


def test_the_next_waiter_polls_once_per_round_trip_and_later_ones_sleep_for_the_turns_ahead() -> (
    None
):
    polling = PollingPace()
    cycles(polling, 40, epochs=lambda n: 4 * n)
    now = polling._epoch_at_ms  # a grant that was just made
    assert polling.look_ms(3, now) == pytest.approx(0, abs=1)  # the trip itself is the interval
    assert polling.look_ms(0, now) == pytest.approx((polling.contenders - 0.25) * polling.turn_ms)
    assert polling.look_ms(0, now) > polling.look_ms(1, now) > polling.look_ms(3, now)


def test_polls_become_rarer_while_one_grant_lasts_for_minutes() -> None:
    polling = PollingPace()
    polling.answered(30)
    polling.saw(1, 0)
    waits = [polling.look_ms(0, now_ms) for now_ms in (0, 100, 1_000, 10_000, 1e6)]
    assert waits == [0, 10, 100, 1_000, SLEEP_LONGEST_MS]
    polling.saw(2, 1e6)
    assert polling.look_ms(1, 1e6) == 0, "a new grant is a new turn"


@pytest.mark.parametrize(
    ("trip_ms", "write_interval_ms", "often_ms"),
    [(1, 0, LOOK_FLOOR_MS), (60, 0, 60), (60, 1000, 250)],
    ids=["a near store", "a far one", "one that throttles writes"],
)
def test_the_polling_interval_follows_from_the_round_trip_and_the_write_interval(
    trip_ms: float, write_interval_ms: float, often_ms: float
) -> None:
    polling = PollingPace(write_interval_ms)
    polling.answered(trip_ms)
    assert polling.often_ms() == often_ms
    assert polling.look_ms(0, 0) == often_ms - trip_ms


def test_an_epoch_that_is_not_higher_changes_no_average() -> None:
    polling = PollingPace()
    polling.saw(5, 0)
    for epoch in (5, 4, 0):  # 0: a Hudi writer
        polling.saw(epoch, 1e6)
    assert polling.turn_ms == 0


# --- what emerges: N handles, one object, simulated -----------------------------------------------

TRIP_MS, HOLD_MS, GRANTS = 30.0, 5.0, 100


@dataclass
class World:
    """One lock object and its contenders, in virtual milliseconds. No leases: nobody crashes."""

    seed: int
    think_ms: float
    hold_ms: float = HOLD_MS
    now: float = 0.0
    epoch: int = 0
    version: int = 0
    live: bool = False
    holder: int | None = None
    requests: int = 0
    grants: list[tuple[float, int, float]] = field(default_factory=list)
    releases: list[float] = field(default_factory=list)
    _queue: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _count: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def after(self, ms: float, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now + ms, self._count, what))

    def run(self, contenders: int) -> None:
        everybody = [Contender(self, n) for n in range(contenders)]
        for each in everybody:
            self.after(self.random.uniform(0, 5), each.want)
        while self._queue and all(each.grants < GRANTS for each in everybody):
            self.now, _, what = heapq.heappop(self._queue)
            what()

    def request(self, decide: Callable[[], object], answered: Callable[..., None]) -> None:
        self.requests += 1
        half_ms = TRIP_MS * self.random.uniform(1, 1.1) / 2
        self.after(half_ms, lambda: self._decided(decide(), half_ms, answered))

    def _decided(self, answer: object, half_ms: float, answered: Callable[..., None]) -> None:
        self.after(half_ms, lambda: answered(answer))


class Contender:
    """A handle as `Lock` drives it: stand back, claim what is known to be free, else look."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number, self.polling = world, number, PollingPace()
        self.known: int | None = None
        self.floor = self.grants = 0

    def want(self) -> None:
        self.wanted, self.started = self.world.now, self.floor
        self.polling.wants(self.world.now)
        stand_back_ms = self.polling.stand_back_ms(self.world.now)
        if self.polling.outdated:
            self.known = None
        self.world.after(stand_back_ms, self.look if self.known is None else self.claim)

    def look(self) -> None:
        sent, world = self.world.now, self.world

        def saw(answer: tuple[int, bool, int, int | None]) -> None:
            version, live, epoch, holder = answer
            self.polling.answered(world.now - sent)
            if holder not in (None, self.number):
                self.polling.met(f"W{holder}")
            self.floor = max(self.floor, epoch)
            self.known = None if live else version
            if not live:
                return self.claim()
            self.polling.saw(epoch, world.now)
            wait_ms = self.polling.look_ms(self.floor - self.started, world.now)
            wait_ms *= world.random.uniform(0.9, 1.1)
            return world.after(max(wait_ms, 1), self.look)

        world.request(lambda: (world.version, world.live, world.epoch, world.holder), saw)

    def claim(self) -> None:
        sent, world, over = self.world.now, self.world, self.known

        def decide() -> int | None:
            if world.version != over:
                return None
            world.epoch, world.version, world.live = world.epoch + 1, world.version + 1, True
            world.holder = self.number
            return world.epoch

        def answered(epoch: int | None) -> None:
            self.polling.answered(world.now - sent)
            if epoch is None:
                return self.look()
            self.floor, self.grants = epoch, self.grants + 1
            self.polling.granted(epoch, world.now)
            world.grants.append((world.now, self.number, world.now - self.wanted))
            return world.after(world.hold_ms * world.random.uniform(1, 1.3), self.release)

        world.request(decide, answered)

    def release(self) -> None:
        world = self.world

        def decide() -> int:
            world.version, world.live = world.version + 1, False
            return world.version

        def answered(version: int) -> None:
            self.known = version
            world.releases.append(world.now)
            self.polling.released(world.now)
            world.after(world.think_ms * world.random.uniform(0.9, 1.1), self.want)

        world.request(decide, answered)


@pytest.mark.parametrize("think_ms", [20.0, 0.0], ids=["with a pause", "without a pause"])
@pytest.mark.parametrize("contenders", [2, 3, 4, 6, 8])
def test_handles_that_only_read_take_turns(contenders: int, think_ms: float) -> None:
    for seed in range(3):
        world = World(seed, think_ms)
        world.run(contenders)
        granted = [at for at, _, _ in world.grants]
        turn_ms = (granted[-1] - granted[0]) / (len(granted) - 1)
        fair_ms = (contenders - 1) * turn_ms
        handed = [b - a for a, b in zip(world.releases, granted[1:], strict=False)]
        waits = sorted(waited for _, _, waited in world.grants)
        said = f"seed {seed}"
        assert statistics.median(handed) <= 2 * TRIP_MS, said
        # A lost race costs two requests; the more contenders, the more races.
        assert world.requests / len(granted) <= (4.5 if contenders <= 4 else 5.5), said
        assert waits[int(0.95 * len(waits))] <= 3 * fair_ms, said
        runs = [len(list(run)) for _, run in groupby(number for _, number, _ in world.grants)]
        assert max(runs) <= 2, said
        counts = [sum(number == n for _, number, _ in world.grants) for n in range(contenders)]
        assert min(counts) > GRANTS / 2, (said, counts)


def section(seed: int, contenders: int) -> World:
    """A table's commits: a trip under the lock, two and a half before it is wanted again."""
    world = World(seed, 75.0, hold_ms=35.0)
    world.run(contenders)
    return world


def rate(world: World) -> float:
    granted = [at for at, _, _ in world.grants]
    return 1000 * (len(granted) - 1) / (granted[-1] - granted[0])


def test_eight_handles_commit_no_slower_than_four_and_each_gets_its_turn() -> None:
    for seed in range(4):
        four, eight = section(seed, 4), section(seed, 8)
        said = f"seed {seed}"
        assert rate(eight) >= 0.98 * rate(four), said
        assert four.requests / len(four.grants) <= 5.5, said
        assert eight.requests / len(eight.grants) <= 7.5, said
        for world, others in ((four, 3), (eight, 7)):
            longest_ms = max(waited for _, _, waited in world.grants)
            assert longest_ms <= 3 * others * 1000 / rate(world), said


def test_without_pauses_one_handle_would_win_every_grant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PollingPace, "stand_back_ms", lambda self, now_ms: 0.0)
    world = World(1, 0.0)
    world.run(4)
    runs = [len(list(run)) for _, run in groupby(number for _, number, _ in world.grants)]
    assert max(runs) > 2
