"""Writers' heartbeats: who is taken for dead, and that nobody who was comes back."""

from __future__ import annotations

import hashlib
import itertools
import json
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import pytest
from suite_plugin import rest_in_soak
from table_world import AFTER, BEFORE, CLOCK, LATE, Lossy
from waiting import until

from lockkit.clock import Clock
from lockkit.errors import TableError, Unanswered
from lockkit.protocol.outcome import (
    Applied,
    Found,
    IfAbsent,
    IfVersion,
    Missing,
    PreconditionFailed,
    Throttled,
    Unknown,
)
from lockkit.protocol.policy import Expiry
from lockkit.runtime import Delete, Get, List, Note, Put, Sleep, Unique, WallMs, run
from lockkit.stores import Store, open_store
from lockkit.table.errors import CommitUnknown, HeartbeatExpired
from lockkit.table.format.timeline import V6, instant_ms, instant_of, load_timeline
from lockkit.table.occ.failed import dead_instants
from lockkit.table.occ.heartbeat import Heartbeat, HeartbeatState, beat, start
from lockkit.table.occ.heartbeat_rules import HeartbeatRules, failed_writes_policy, heartbeat_rules
from lockkit.table.occ.liveness import (
    HeartbeatRead,
    end,
    expired,
    forget,
    heartbeat_key,
    heartbeat_of,
    lives,
    read_heartbeat,
)

T = "20250101000000000"
AT_MS = instant_ms(T)
RULES = HeartbeatRules(interval_ms=1_000, misses=2)
QUICK = HeartbeatRules(interval_ms=20, misses=3_000)
SHORT = HeartbeatRules(interval_ms=100, misses=3)
NAMES = itertools.count()


@pytest.fixture
def memory() -> Store:
    return open_store(f"memory://heartbeat-{next(NAMES)}")


def gone(heart: Heartbeat) -> bool:
    try:
        heart.assert_alive()
    except HeartbeatExpired:
        return True
    return False


# --- who is taken for dead ------------------------------------------------------------------------

BODY = json.dumps({"instant": T, "attempt": "a", "ttlMs": 5_000}).encode()
TOMBSTONE = json.dumps({"instant": T, "attempt": "a", "ended": True}).encode()
STORE, WALL = RULES, HeartbeatRules(interval_ms=1_000, misses=2, expiry=Expiry.WALL)
LONG = AT_MS + 10_000_000


def seen(body: bytes = b"", age_ms: int = 0, *, date: bool = True, modified: bool = True) -> Found:
    """An object whose Last-Modified is AT_MS, read when the store's clock was `age_ms` further."""
    return Found(body, "v", AT_MS if modified else None, AT_MS + age_ms if date else None)


@pytest.mark.parametrize(
    ("answer", "wall_ms", "rules", "dead"),
    [
        # the promise in the body counts, on the store's clock, whatever mine says
        (seen(BODY, 7_000), LONG, STORE, False),
        (seen(BODY, 7_001), 0, STORE, True),
        # Hudi's empty file promises nothing: my own rules' 2 s, and the slack
        (seen(b"", 4_000), LONG, STORE, False),
        (seen(b"", 4_001), 0, STORE, True),
        # a store that does not tell its time, and Hudi's rule: my clock, and the drift
        (seen(BODY, date=False), AT_MS + 5_500, STORE, False),
        (seen(BODY, date=False), AT_MS + 5_501, STORE, True),
        (seen(b"", 0), AT_MS + 2_500, WALL, False),
        (seen(b"", 0), AT_MS + 2_501, WALL, True),
        # nothing to go by: it lives
        (seen(BODY, modified=False), LONG, STORE, False),
        # ended is ended, however fresh
        (seen(TOMBSTONE, 0), AT_MS, STORE, True),
        # none yet: its writer has the instant's first two seconds to start one
        (Missing(), AT_MS + 2_500, STORE, False),
        (Missing(), AT_MS + 2_501, STORE, True),
        # noise is a sign of life, and promises nothing
        (seen(b"{", 4_000), LONG, STORE, False),
        (seen(b"[1]", 4_001), LONG, STORE, True),
        (seen(b'{"ttlMs": 1e99}', 4_001), 0, STORE, True),
        (seen(b'{"ttlMs": -5, "ended": 1}', 4_000), 0, STORE, False),
        (seen(b" " * 3_000 + TOMBSTONE, 4_000), 0, STORE, False),
    ],
)
def test_a_heartbeat_expires_by_the_stores_clock_and_its_writers_own_promise(
    answer: Found | Missing, wall_ms: int, rules: HeartbeatRules, dead: bool
) -> None:
    assert expired(heartbeat_of(T, answer), wall_ms, rules) is dead


def test_a_writer_stops_relying_on_its_heartbeat_before_another_may_end_it() -> None:
    for rules in (RULES, QUICK, SHORT, HeartbeatRules()):
        assert 0 < rules.belief_ms < rules.ttl_ms
    assert HeartbeatRules().ttl_ms == 120_000  # Hudi's defaults


def test_hudis_option_names_set_the_rules() -> None:
    given = {
        "hoodie.client.heartbeat.interval_in_ms": "5000",
        "hoodie.client.heartbeat.tolerable.misses": 10,
    }
    assert heartbeat_rules(given) == HeartbeatRules(interval_ms=5_000, misses=10)
    assert heartbeat_rules({}) == HeartbeatRules(interval_ms=60_000, misses=2)


@pytest.mark.parametrize("said", ["999", "0", "-1", "1e4", "", "a", "9" * 30, "٣٣٣٣", None])
def test_an_invalid_interval_is_refused_by_name(said: object) -> None:
    with pytest.raises(TableError, match=r"heartbeat\.interval_in_ms="):
        heartbeat_rules({"hoodie.client.heartbeat.interval_in_ms": said})


def test_failed_writes_are_lazy_among_several_writers_and_eager_is_refused_there() -> None:
    key = "hoodie.clean.failed.writes.policy"
    assert failed_writes_policy({}) == "EAGER"
    assert failed_writes_policy({}, writers=2) == "LAZY"
    assert failed_writes_policy({key: "never"}, writers=2) == "NEVER"
    assert failed_writes_policy({"hoodie.cleaner.policy.failed.writes": "LAZY"}) == "LAZY"
    assert failed_writes_policy({"hoodie.cleaner.policy.failed.writes": "x", key: "LAZY"}) == "LAZY"
    with pytest.raises(TableError, match=r"every other writer's instant.*LAZY"):
        failed_writes_policy({key: "EAGER"}, writers=2)
    with pytest.raises(TableError, match="=soon must be one of EAGER, LAZY, NEVER"):
        failed_writes_policy({key: "soon"})


# --- one beat, and its lost answers ---------------------------------------------------------------


def test_every_beat_writes_other_bytes_over_the_version_of_the_last(memory: Store) -> None:
    now = HeartbeatState(T, 1_000)
    bodies = set()
    for _ in range(3):
        before, now = now, run(beat(now), memory, CLOCK)
        assert now.version != before.version and not now.out
        found = memory.get(heartbeat_key(T))
        assert isinstance(found, Found)
        bodies.add(found.body)
    assert len(bodies) == 3
    assert run(read_heartbeat(T), memory, CLOCK).ttl_ms == 1_000


@pytest.mark.parametrize("fault", [BEFORE, AFTER, LATE])
def test_a_lost_answer_costs_a_beat_not_the_heartbeat(memory: Store, fault: str) -> None:
    now = run(start(HeartbeatState(T, 1_000)), memory, CLOCK)
    lossy = Lossy(memory, faults={0: fault})
    after = run(beat(now), lossy, CLOCK)
    assert (after.version != now.version) == (fault == AFTER)
    assert bool(after.out) == (fault != AFTER)
    lossy.land()
    after = run(beat(after), lossy, CLOCK)  # which settles what is out
    assert after.version not in (None, now.version) and not after.out


def test_an_unread_beat_is_recognised_by_the_next_one(memory: Store) -> None:
    """The write landed, and neither its answer nor the look at it came back."""
    now = run(start(HeartbeatState(T, 1_000)), memory, CLOCK)
    after = run(beat(now), Lossy(memory, faults={0: AFTER, 1: BEFORE}), CLOCK)
    assert after.version == now.version and after.out
    settled = run(beat(after), memory, CLOCK)
    assert settled.version != now.version and not settled.out


def test_a_deleted_heartbeat_ends_at_the_next_beat(memory: Store) -> None:
    now = run(start(HeartbeatState(T, 1_000)), memory, CLOCK)
    run(forget(T), memory, CLOCK)
    with pytest.raises(HeartbeatExpired, match="it is gone"):
        run(beat(now), memory, CLOCK)
    assert run(read_heartbeat(T), memory, CLOCK).version is None


def test_a_second_writer_of_one_instant_gets_an_error(memory: Store) -> None:
    run(start(HeartbeatState(T, 1_000)), memory, CLOCK)
    with pytest.raises(HeartbeatExpired, match=f"{T}.*begin again"):
        run(start(HeartbeatState(T, 1_000)), memory, CLOCK)


def test_a_store_that_does_not_answer_starts_nothing(memory: Store) -> None:
    with pytest.raises(Unanswered, match="could not be written"):
        run(start(HeartbeatState(T, 1_000)), Lossy(memory, from_on=0), CLOCK)


def test_the_error_survives_a_trip_between_processes() -> None:
    error = HeartbeatExpired(T, "it was ended")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.instant, again.cause) == (str(error), T, "it was ended")


# --- a writer against whoever ends it: every interleaving -----------------------------------------


@dataclass
class Bucket:
    """One object of a store whose versions are hashes of the content, as S3's are."""

    body: bytes | None = None
    out: list[Put] = field(default_factory=list)

    @property
    def version(self) -> str | None:
        return None if self.body is None else hashlib.sha256(self.body).hexdigest()

    def put(self, request: Put) -> Any:
        match request.condition:
            case IfAbsent() if self.body is None:
                pass
            case IfVersion(version) if version == self.version:
                pass
            case _:
                return PreconditionFailed()
        self.body = request.body
        return Applied(str(self.version))

    def get(self) -> Found | Missing:
        if self.body is None:
            return Missing()
        return Found(self.body, str(self.version), AT_MS, AT_MS)


class Play:
    """A writer's beats and another's end of them, step by step as the choices say."""

    BEATS = 2

    def __init__(self, choose: Callable[[int], int], *, tidy: bool, faults: int = 1) -> None:
        self.choose, self.tidy, self.faults = choose, tidy, faults
        self.bucket = Bucket()
        self.ids = itertools.count()
        self.happened: list[str] = []
        self.running = {"writer": self.write(), "cleaner": self.clean()}
        self.waits: dict[str, Any] = {}
        self.through: set[str] = set()
        self.answers: dict[str, Any] = dict.fromkeys(self.running)

    def write(self) -> Iterator[Any]:
        try:
            now = yield from start(HeartbeatState(T, 1_000))
            self.happened.append("beat")
            for _ in range(self.BEATS):
                before, now = now, (yield from beat(now))
                if now.version != before.version:
                    self.happened.append("beat")
        except HeartbeatExpired:
            self.happened.append("expired")

    def clean(self) -> Iterator[Any]:
        heartbeat = yield from read_heartbeat(T)
        ended = yield from end(heartbeat)
        self.happened.append("ended" if ended else "spared")
        if ended and self.tidy:
            yield from forget(T)

    def go(self) -> list[str]:
        """Until both are through, and what was under way has landed or not."""
        for name in self.running:
            if not (self.tidy and name == "cleaner"):
                self.advance(name)
        for _ in range(200):
            if "beat" in self.happened and "cleaner" not in self.waits.keys() | self.through:
                self.advance("cleaner")
            moves = [*self.waits, *(["land"] if self.bucket.out else [])]
            if not self.waits:
                return self.happened
            move = moves[self.choose(len(moves))]
            if move == "land":
                self.bucket.put(self.bucket.out.pop())
            else:
                self.answers[move] = self.answer(self.waits.pop(move))
                self.advance(move)
        raise AssertionError("a play that does not end")

    def advance(self, name: str) -> None:
        """On to the next request whose order matters."""
        try:
            request = self.running[name].send(self.answers[name])  # type: ignore[attr-defined]
            while not isinstance(request, Put | Get | Delete):
                assert isinstance(request, Unique | Note | Sleep), request
                answer_sent = f"{name}-{next(self.ids)}" if isinstance(request, Unique) else None
                request = self.running[name].send(answer_sent)  # type: ignore[attr-defined]
            self.waits[name] = request
        except StopIteration:
            self.through.add(name)

    def answer(self, request: Any) -> Any:
        match request:
            case Get():
                return self.bucket.get()
            case Delete():
                self.bucket.body = None
                return Applied("")
        fault = self.choose(5) if self.faults else 0
        self.faults -= fault > 0
        match fault:
            case 1:
                return Unknown("lost before")
            case 2:
                self.bucket.put(request)
                return Unknown("lost after")
            case 3:
                self.bucket.out.append(request)
                return Unknown("late")
            case 4:
                return Throttled(None)
        return self.bucket.put(request)


def every_play(*, tidy: bool, faults: int) -> Iterator[list[str]]:
    """What happened in each play there is, depth first."""
    todo: list[list[int]] = [[]]
    while todo:
        given, taken, widths = todo.pop(), [], []  # type: ignore[var-annotated]

        def choose(
            options: int, given: list[int] = given, taken: list[int] = taken,
            widths: list[int] = widths,
        ) -> int:  # fmt: skip
            chosen = given[len(taken)] if len(taken) < len(given) else 0
            taken.append(chosen)
            widths.append(options)
            return chosen

        yield Play(choose, tidy=tidy, faults=faults).go()
        for place in range(len(given), len(taken)):
            todo += [[*taken[:place], other] for other in range(1, widths[place])]


@pytest.mark.parametrize(
    "tidy", rest_in_soak([False, True], False), ids=["tombstone", "deleted afterwards"]
)
def test_no_beat_is_proven_after_its_heartbeat_was_ended_in_any_interleaving(tidy: bool) -> None:
    """With an answer lost, a write refused, or one that arrives late, at any place.

    Where the tombstone stays, the end may come before the start. Where it is deleted when the
    rollback is done, the end comes after: that takes longer than a heartbeat's whole validity.
    """
    reached = set()
    for happened in every_play(tidy=tidy, faults=2):
        story = " ".join(happened)
        if "ended" in happened:
            assert "beat" not in happened[happened.index("ended") :], story
        if "expired" in happened:
            assert "spared" not in happened, story
        reached |= set(happened)
    assert reached == {"beat", "ended", "spared", "expired"}


# --- which pending instants may be rolled back ----------------------------------------------------


def pending(store: Store, instant: str, action: str = "commit", *, beats: bool = False) -> None:
    store.put(V6.requested(instant, action), b"", IfAbsent())
    if beats:
        run(start(HeartbeatState(instant, 60_000)), store, CLOCK)


def dead(store: Store, policy: Any, **options: Any) -> list[str]:
    now = run(load_timeline(V6), store, CLOCK)
    found = run(dead_instants(V6, now, policy, **options), store, CLOCK)
    assert all(isinstance(each, HeartbeatRead) for each in found)
    return [each.instant for each in found]


@pytest.fixture
def table(memory: Store) -> dict[str, Any]:
    """Pending instants of every sort, all old."""
    names = ("silent", "living", "ended", "mine", "overwrite", "planned", "clustering", "done")
    at = {name: instant_of(AT_MS + n) for n, name in enumerate(names)}
    pending(memory, at["living"], beats=True)
    pending(memory, at["ended"], beats=True)
    assert run(end(run(read_heartbeat(at["ended"]), memory, CLOCK)), memory, CLOCK)
    memory._clock.offset_ms = -3_600_000  # type: ignore[attr-defined] # what is made now is old
    pending(memory, at["silent"])
    pending(memory, at["mine"])
    pending(memory, at["overwrite"], "replacecommit")
    pending(memory, at["planned"], "replacecommit")
    pending(memory, at["clustering"], "clustering")
    pending(memory, at["done"])
    memory.put(V6.completed(at["done"]), b"", IfAbsent())
    memory._clock.offset_ms = 0  # type: ignore[attr-defined]
    return {**at, "store": memory}


@pytest.mark.parametrize(
    ("policy", "found"),
    [
        ("EAGER", ["silent", "living", "ended", "overwrite"]),
        ("LAZY", ["silent", "ended", "overwrite"]),
        ("NEVER", []),
    ],
)
def test_eager_rolls_back_all_others_lazy_the_expired_and_never_none(
    table: dict[str, Any], policy: str, found: list[str]
) -> None:
    spare = frozenset({table["planned"], table["mine"]})
    rolled = dead(table["store"], policy, spare=spare)
    assert rolled == [table[name] for name in found]


def test_lazy_spares_a_writer_that_completed_while_it_was_looked_at(memory: Store) -> None:
    """It deletes its heartbeat when it has committed: only then does it look dead."""
    memory._clock.offset_ms = -3_600_000  # type: ignore[attr-defined] # an hour ago
    pending(memory, T)
    memory._clock.offset_ms = 0  # type: ignore[attr-defined]
    now = run(load_timeline(V6), memory, CLOCK)
    assert dead(memory, "LAZY") == [T]
    memory.put(V6.completed(T), b"", IfAbsent())
    assert run(dead_instants(V6, now, "LAZY"), memory, CLOCK) == ()


def test_an_instant_is_as_old_as_its_file_whatever_clock_named_it(memory: Store) -> None:
    """Its writer's clock is a day slow, or that of whoever looks a day fast."""
    slow = instant_of(CLOCK.wall_ms() - 86_400_000)
    pending(memory, slow)
    assert dead(memory, "LAZY") == []
    now = run(load_timeline(V6), memory, CLOCK)
    fast = Clock(offset_ms=86_400_000)
    assert run(dead_instants(V6, now, "LAZY"), memory, fast) == ()


def test_an_instant_that_has_only_just_begun_is_not_rolled_back(memory: Store) -> None:
    fresh = instant_of(CLOCK.wall_ms())
    pending(memory, fresh)
    assert dead(memory, "LAZY") == []
    assert dead(memory, "EAGER") == [fresh]


def test_a_hudi_writers_empty_heartbeat_counts_as_life(memory: Store) -> None:
    pending(memory, T)
    memory.put(heartbeat_key(T), b"", IfAbsent())
    assert dead(memory, "LAZY") == []
    assert run(lives(T, HeartbeatRules()), memory, CLOCK)
    soon = HeartbeatRules(interval_ms=1, misses=1, slack_ms=0)
    until(lambda: dead(memory, "LAZY", rules=soon) == [T])


# --- the thread that beats ------------------------------------------------------------------------


def test_a_heartbeat_beats_by_itself_until_it_is_finished(memory: Store) -> None:
    heart = Heartbeat(T, memory, rules=QUICK)
    first = run(read_heartbeat(T), memory, CLOCK).version
    until(lambda: run(read_heartbeat(T), memory, CLOCK).version != first)
    heart.assert_alive()
    heart.finish()
    assert run(read_heartbeat(T), memory, CLOCK).version is None
    heart.finish()  # twice is once


def test_leaving_the_block_without_a_commit_rolls_the_instant_back_at_once(memory: Store) -> None:
    with pytest.raises(ZeroDivisionError), Heartbeat(T, memory, rules=QUICK):
        _ = 1 // 0
    heartbeat = run(read_heartbeat(T), memory, CLOCK)
    assert heartbeat.ended and expired(heartbeat, CLOCK.wall_ms(), QUICK)
    other = instant_of(AT_MS + 1)
    with Heartbeat(other, memory, rules=QUICK) as heart:
        heart.finish()
    assert run(read_heartbeat(other), memory, CLOCK).version is None


@pytest.mark.parametrize("error", [CommitUnknown(T, "silence", ("T.commit",)), KeyboardInterrupt()])
def test_a_commit_with_an_unknown_outcome_is_not_rolled_back_before_its_heartbeat_expires(
    memory: Store, error: BaseException
) -> None:
    with pytest.raises(type(error)), Heartbeat(T, memory, rules=QUICK):
        raise error
    assert not run(read_heartbeat(T), memory, CLOCK).ended
    assert run(lives(T, HeartbeatRules()), memory, CLOCK)


@pytest.mark.parametrize("where", ["memory", "s3"])
def test_a_writer_whose_heartbeat_was_ended_fails_at_once(
    where: str, shared_emulator: Any, bucket: str
) -> None:
    url = f"memory://{bucket}" if where == "memory" else f"s3://{bucket}/table"
    store = open_store(url, **({} if where == "memory" else {"endpoint": shared_emulator.s3}))
    with Heartbeat(T, store, rules=QUICK) as heart:
        while not run(end(run(read_heartbeat(T), store, CLOCK)), store, CLOCK):
            heart.assert_alive()  # a beat came between: it lives
        until(lambda: gone(heart))
        with pytest.raises(HeartbeatExpired, match=r"another writer ended it.*begin again"):
            heart.assert_alive()
    assert run(read_heartbeat(T), store, CLOCK).ended


def test_a_writer_whose_store_is_silent_stops_by_its_own_clock(memory: Store) -> None:
    lossy = Lossy(memory)
    with Heartbeat(T, lossy, rules=SHORT) as heart:
        lossy.from_on = 0
        until(lambda: gone(heart))
        lossy.from_on = None
        left = run(read_heartbeat(T), memory, CLOCK).version
        with pytest.raises(HeartbeatExpired, match="no heartbeat succeeded"):
            heart.assert_alive()  # and it stays so, though the store answers again
    assert (
        run(read_heartbeat(T), memory, CLOCK).version != left
    )  # given up on leaving, for others to see


@pytest.mark.parametrize("ended", ["by the clock", "by a beat"])
def test_a_writer_taken_for_dead_leaves_the_heartbeat_that_another_has_at_its_instant(
    memory: Store, ended: str
) -> None:
    """A pending plan is carried out again by another process, at the same instant."""
    paused = Heartbeat(T, memory, rules=SHORT)
    paused.stop()
    run(forget(T), memory, CLOCK)
    with Heartbeat(T, memory, rules=QUICK) as alive:
        if ended == "by a beat":
            paused._beats.lost = "another writer has this instant"
        else:
            until(lambda: gone(paused))
        run(paused.left(), memory, CLOCK)
        assert run(read_heartbeat(T), memory, CLOCK).version is not None
        alive.finish()
    assert run(read_heartbeat(T), memory, CLOCK).version is None


def test_a_writer_that_stopped_in_time_or_not_deletes_its_own_heartbeat(memory: Store) -> None:
    heart = Heartbeat(T, memory, rules=SHORT)
    heart.stop()
    until(lambda: gone(heart))
    run(heart.left(), memory, CLOCK)
    assert run(read_heartbeat(T), memory, CLOCK).version is None


def test_no_thread_renews_the_heartbeat_of_an_ended_thread(memory: Store) -> None:
    hearts: list[Heartbeat] = []
    writer = threading.Thread(target=lambda: hearts.append(Heartbeat(T, memory, rules=SHORT)))
    writer.start()
    writer.join()
    until(lambda: gone(hearts[0]))
    until(lambda: not run(lives(T, HeartbeatRules(slack_ms=0)), memory, CLOCK))


# --- a process that sleeps ------------------------------------------------------------------------


def _writer(url: str, endpoint: str, pipe: Connection) -> None:
    """A process of its own: takes an instant, beats, and reports what `assert_alive` says."""
    store = open_store(url, endpoint=endpoint)
    store.put(V6.requested(T), b"", IfAbsent())
    heart = Heartbeat(T, store, rules=HeartbeatRules(interval_ms=500, misses=4))
    pipe.send("ready")
    for _ in iter(pipe.recv, "stop"):
        try:
            heart.assert_alive()
            pipe.send("lives")
        except HeartbeatExpired as error:
            pipe.send(str(error))


def test_a_stopped_process_is_found_dead_and_never_comes_back(
    shared_emulator: Any, bucket: str
) -> None:
    """A real SIGSTOP; its own heartbeat is the only one that expires, and it knows on waking."""
    url, living = f"s3://{bucket}/table", instant_of(AT_MS + 1)
    store = open_store(url, endpoint=shared_emulator.s3)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_writer, args=(url, shared_emulator.s3, theirs), daemon=True)
    child.start()
    try:
        assert ours.poll(60) and ours.recv() == "ready"
        pending(store, living)
        with Heartbeat(living, store, rules=HeartbeatRules(interval_ms=500, misses=40)):
            assert dead(store, "LAZY") == []
            assert child.pid is not None
            os.kill(child.pid, signal.SIGSTOP)
            until(lambda: dead(store, "LAZY") == [T])
            assert run(end(run(read_heartbeat(T), store, CLOCK)), store, CLOCK)
            ended = run(read_heartbeat(T), store, CLOCK)
            os.kill(child.pid, signal.SIGCONT)
            for _ in range(2):
                ours.send("check")
                assert ours.poll(60) and f"the heartbeat of {T} is over" in ours.recv()
            assert run(read_heartbeat(T), store, CLOCK).version == ended.version
            assert dead(store, "LAZY") == [T]  # and only that one
    finally:
        child.kill()
        child.join(10)


def test_each_procedure_begins_with_a_request_that_an_interpreter_implements() -> None:
    known = {Get, Put, List, Delete, Sleep, Unique, WallMs, Note}
    for procedure in (
        beat(HeartbeatState(T, 1)),
        end(HeartbeatRead(T, None)),
        read_heartbeat(T),
        forget(T),
    ):
        assert type(next(procedure)) in known
