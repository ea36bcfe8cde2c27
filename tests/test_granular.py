"""Ozone's granular locks: the document's tables, Guava's stripes, threads, all orders of steps."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lock_world import until

from lockkit.clock import Clock
from lockkit.errors import LockBusy
from lockkit.lab.verify.deadlocks import MISTAKES, GranularOperation, deadlock, story
from lockkit.recipes.errors import OutOfOrder
from lockkit.recipes.granular.batch import (
    OperationDone,
    OperationFailed,
    OperationNotBegun,
    run_batch,
)
from lockkit.recipes.granular.locks import GranularLocks, HeldLocks
from lockkit.recipes.granular.operations import (
    BATCHES,
    BUCKET_OPERATIONS,
    KEY_OPERATIONS,
    VOLUME_OPERATIONS,
    Level,
    Operation,
    StripeRequest,
    plan,
    wants_of,
)
from lockkit.recipes.stripes import (
    Mode,
    collision_chance,
    hash32,
    index_of,
    indexes,
    rounded,
    smear,
    strongest,
)
from lockkit.recipes.taking import AcquireLock, ReleaseLock, carry_out, give_all, take_all

READ, WRITE = Mode.READ, Mode.WRITE
COMMIT, RENAME = KEY_OPERATIONS["CommitKey"], KEY_OPERATIONS["RenameKey"]
DELETE_BUCKET = BUCKET_OPERATIONS["DeleteBucket"]

# --- the document ---------------------------------------------------------------------------------

VOLUME_W, BUCKET_W = "Volume Write lock", "Bucket Write lock"
VOLUME_R_BUCKET_W = "Volume Read, Bucket Write lock"
NO_KEY, KEY_W = "Bucket Read Lock, `No Lock` for key", "Bucket Read, Key Write lock"
DOCUMENT = {
    "volume": {
        "CreateVolume": VOLUME_W,
        "DeleteVolume": VOLUME_W,
        "SetProperty": VOLUME_W,
        "SetAcl": VOLUME_W,
        "AddAcl": VOLUME_W,
        "RemoveAcl": VOLUME_W,
    },
    "bucket": {
        "CreateBucket": VOLUME_R_BUCKET_W,
        "DeleteBucket": VOLUME_R_BUCKET_W,
        "SetProperty": BUCKET_W,
        "SetAcl": BUCKET_W,
        "AddAcl": BUCKET_W,
        "RemoveAcl": BUCKET_W,
    },
    "key": {
        "CreateKey": NO_KEY,
        "CommitKey": KEY_W,
        "InitiateMultiPartUpload": NO_KEY,
        "CommitMultiPartUpload": "WriteLock: PartKey Name",
        "CompleteMultiPartUpload": KEY_W,
        "AbortMultiPartUpload": KEY_W,
        "DeleteKey": KEY_W,
        "DeleteKeys": "Bucket Read, Key Write with ordered lock",
        "RenameKey": "Bucket Read, Keys Write with ordered lock",
        "SetAcl": KEY_W,
        "AddAcl": KEY_W,
        "RemoveAcl": KEY_W,
        "AllocateBlock": KEY_W,
        "SetTimes": KEY_W,
    },
}
# (volume, bucket, key) by what a cell says; "Bucket read lock will be there default".
MEANS = {
    VOLUME_W: (WRITE, None, None),
    VOLUME_R_BUCKET_W: (READ, WRITE, None),
    BUCKET_W: (None, WRITE, None),
    NO_KEY: (None, READ, None),
    KEY_W: (None, READ, WRITE),
    "WriteLock: PartKey Name": (None, READ, WRITE),
    "Bucket Read, Key Write with ordered lock": (None, READ, WRITE),
    "Bucket Read, Keys Write with ordered lock": (None, READ, WRITE),
}


def test_every_row_of_the_documents_three_tables_is_here_in_its_order() -> None:
    tables = {"volume": VOLUME_OPERATIONS, "bucket": BUCKET_OPERATIONS, "key": KEY_OPERATIONS}
    said = {
        level: {name: row.said for name, row in table.items()} for level, table in tables.items()
    }
    assert said == DOCUMENT
    assert [list(rows) for rows in said.values()] == [list(rows) for rows in DOCUMENT.values()]
    for table in tables.values():
        for row in table.values():
            assert (row.volume, row.bucket, row.key) == MEANS[row.said], row
    assert BATCHES == {"deleteKeys": "DeleteKey", "renameKeys": "RenameKey"}


def test_a_plan_goes_from_volume_to_bucket_to_keys_and_names_what_is_missing() -> None:
    for row in (*VOLUME_OPERATIONS.values(), *BUCKET_OPERATIONS.values(), *KEY_OPERATIONS.values()):
        keys = ["a"] if row.key is not None else []
        taken = plan(wants_of(row, "v", "b", keys))
        modes = {Level.VOLUME: row.volume, Level.BUCKET: row.bucket, Level.KEY: row.key}
        assert {each.level: each.mode for each in taken} == {
            level: mode for level, mode in modes.items() if mode is not None
        }
        assert list(taken) == sorted(taken)
    with pytest.raises(ValueError, match="CommitKey locks one key; 2 were named"):
        wants_of(COMMIT, "v", "b", ["a", "b"])
    with pytest.raises(ValueError, match="RenameKey locks keys, in one order; 0 were named"):
        wants_of(RENAME, "v", "b")
    with pytest.raises(ValueError, match="DeleteBucket applies to one bucket: name it"):
        wants_of(DELETE_BUCKET, "v")
    assert not [each for each in wants_of(KEY_OPERATIONS["CreateKey"], "v", "b", ["a"])
                if each.level is Level.KEY]  # fmt: skip


# --- stripes --------------------------------------------------------------------------------------

# From Guava 33.6.0: `Striped.lock(n)`, its `size()`, and where `get` of an object with this
# `hashCode` is among `getAt(0..)`.
HASHES = (
    0, 1, 2, -1, 31, 1024, 65535, 65536, 123456789, -123456789, 2**31 - 1, -(2**31),
    0xDEADBEEF, 0xCAFEBABE, 7919, 99991,
)  # fmt: skip
GUAVA = {
    1: (1, [0] * 16),
    3: (4, [0, 1, 2, 3, 2, 0, 0, 1, 0, 2, 3, 0, 0, 2, 1, 2]),
    16: (16, [0, 1, 2, 15, 14, 8, 0, 1, 0, 14, 15, 0, 0, 6, 13, 10]),
    100: (128, [0, 1, 2, 31, 30, 72, 112, 17, 32, 62, 15, 16, 112, 86, 61, 106]),
    1024: (1024, [0, 1, 2, 799, 30, 72, 496, 529, 32, 830, 911, 144, 240, 86, 829, 490]),
    102_400: (131_072, [0, 1, 2, 61215, 30, 1096, 61936, 70161, 46112, 23358, 30607, 39056, 72944,
                        56406, 7997, 105962]),
}  # fmt: skip


@pytest.mark.parametrize("asked", GUAVA)
def test_a_hash_has_the_stripe_that_guava_gives_it(asked: int) -> None:
    size, found = GUAVA[asked]
    assert rounded(asked) == size
    assert [smear(each) & (size - 1) for each in HASHES] == found


@given(st.lists(st.text()), st.integers(1, 1 << 20))
def test_the_stripes_of_a_call_ascend_without_duplicates(names: list[str], asked: int) -> None:
    stripes = rounded(asked)
    assert asked <= stripes < 2 * asked
    assert stripes & (stripes - 1) == 0
    found = indexes(names, stripes)
    assert list(found) == sorted(set(found))
    assert set(found) == {index_of(each, stripes) for each in names}
    assert all(0 <= each < stripes for each in found)
    assert found == indexes(reversed(names), stripes)


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(Mode))))
def test_a_key_requested_twice_is_locked_once_for_writing_if_either_writes(
    wanted: list[tuple[int, Mode]],
) -> None:
    wants = [StripeRequest(Level.KEY, stripe, mode) for stripe, mode in wanted]
    taken = plan(wants)
    assert [each.stripe for each in taken] == sorted({stripe for stripe, _ in wanted})
    for each in taken:
        assert (each.mode is WRITE) == ((each.stripe, WRITE) in wanted)
    assert strongest(wanted) == {each.stripe: each.mode for each in taken}


def test_a_key_has_the_same_stripe_in_every_process() -> None:
    names = ["", "a", "part=DE/f-1", "ключ", "\ud800"]
    here = [hash32(each) for each in names]
    assert here == [10131273, 2626193847, 3831314543, 808218690, 1415061267]
    code = f"from lockkit.recipes.stripes import hash32; print([hash32(n) for n in {names!a}])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          timeout=60, env={"PYTHONHASHSEED": "7"})  # fmt: skip
    assert said.stdout.strip() == str(here)


def test_the_estimate_of_collisions_is_what_happens() -> None:
    assert collision_chance(64, 0) == 0
    assert collision_chance(1, 1) == 1
    assert collision_chance(64, 8) == pytest.approx(1 - (63 / 64) ** 8)
    tries, met = 4_000, 0
    for number in range(tries):
        others = {index_of(f"{number}/{other}", 64) for other in range(8)}
        met += index_of(f"{number}/mine", 64) in others
    assert met / tries == pytest.approx(collision_chance(64, 8), abs=0.02)


@pytest.mark.parametrize("stripes", [0, -1, 2**30 + 1, 1.5, True])
def test_an_invalid_number_of_stripes_is_refused(stripes: Any) -> None:
    with pytest.raises(ValueError, match="the number of stripes must be from 1 to"):
        rounded(stripes)


# --- all of them, or none -------------------------------------------------------------------------


def outcome(taking: Any, take: Callable[[str], bool]) -> tuple[Any, list[str]]:
    """What it returned or raised, and what it did in which order."""
    steps: list[str] = []

    def taken(lock: str) -> bool:
        steps.append(f"+{lock}")
        return take(lock)

    try:
        return carry_out(taking, taken, lambda lock: steps.append(f"-{lock}")), steps
    except BaseException as error:  # noqa: BLE001 - judged by the test
        return error, steps


def test_a_client_that_cannot_take_all_locks_releases_its_own_in_reverse_order() -> None:
    assert outcome(take_all("abc"), lambda _: True) == (None, ["+a", "+b", "+c"])
    missed = outcome(take_all("abc"), lambda lock: lock != "c")
    assert missed == ("c", ["+a", "+b", "+c", "-b", "-a"])

    def interrupted(lock: str) -> bool:
        if lock == "c":
            raise KeyboardInterrupt
        return True

    error, steps = outcome(take_all("abc"), interrupted)
    assert isinstance(error, KeyboardInterrupt)
    assert steps == ["+a", "+b", "+c", "-b", "-a"]
    with MISTAKES["give_back"].mutant.planted():
        assert outcome(take_all("abc"), lambda lock: lock != "c")[1] == ["+a", "+b", "+c"]


def test_all_locks_are_released_even_if_one_release_raises() -> None:
    given_: list[str] = []

    def give(lock: str) -> None:
        given_.append(lock)
        if lock in "bc":
            raise OSError(lock)

    with pytest.raises(OSError, match="c"):
        carry_out(give_all("abc"), lambda _: True, give)
    assert given_ == ["c", "b", "a"]
    taking = take_all("ab")
    assert isinstance(next(taking), AcquireLock)
    taking.close()  # a process that is gone gives nothing back
    giving = give_all("ab")
    assert next(giving) == ReleaseLock("b")
    giving.close()


# --- every order of steps -------------------------------------------------------------------------

RIGHT = {
    "two renames": (GranularOperation(RENAME, ("a", "b")), GranularOperation(RENAME, ("b", "a"))),
    "three renames in a ring": tuple(
        GranularOperation(RENAME, tuple(each)) for each in ("ab", "bc", "ca")
    ),
    "rename, delete, and the bucket goes": (
        GranularOperation(RENAME, ("a", "b")),
        GranularOperation(KEY_OPERATIONS["DeleteKeys"], ("b", "c", "a")),
        GranularOperation(DELETE_BUCKET),
    ),
    "all levels": (
        GranularOperation(RENAME, ("a", "b")),
        GranularOperation(BUCKET_OPERATIONS["CreateBucket"]),
        GranularOperation(VOLUME_OPERATIONS["DeleteVolume"]),
    ),
    "a key operation within a volume's": (
        GranularOperation(
            VOLUME_OPERATIONS["SetProperty"], (), (GranularOperation(COMMIT, ("a",)),)
        ),
        GranularOperation(COMMIT, ("a",)),
        GranularOperation(DELETE_BUCKET),
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_no_order_of_steps_closes_a_circle_or_leaves_a_lock_behind(name: str) -> None:
    found = deadlock(RIGHT[name], hangs=True)
    assert found.exhausted, found.violation
    assert found.states > 50


@pytest.mark.parametrize("name", MISTAKES)
def test_each_planted_mistake_has_a_shortest_story(name: str) -> None:
    mistake = MISTAKES[name]
    found = mistake.search()
    assert found.violation is not None
    assert found.violation.startswith(mistake.breaks)
    assert len(found.path) <= 6
    assert deadlock(mistake.ops, hangs=True).exhausted


def test_two_renames_that_lock_keys_in_the_order_of_the_call_deadlock() -> None:
    a, b = (index_of(f"v\0b\0{key}", 1024) for key in "ab")
    bucket = index_of("v\0b", 1024)
    assert story(MISTAKES["ordered"].search()) == [
        f"1. RenameKey 1 takes bucket b (stripe {bucket}) to read",
        f"2. RenameKey 1 takes key a (stripe {a}) to write",
        f"3. RenameKey 2 takes bucket b (stripe {bucket}) to read",
        f"4. RenameKey 2 takes key b (stripe {b}) to write",
        (f"=> deadlock: RenameKey 1 waits for key b (stripe {b}) to write, which RenameKey 2 has; "
         f"RenameKey 2 waits for key a (stripe {a}) to write, which RenameKey 1 has"),
    ]


# --- threads --------------------------------------------------------------------------------------


class Stepping(Clock):
    """Its time goes on only where somebody waits; `meanwhile` happens in each wait."""

    def __init__(self, *meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self.now_ms, self.requested_s = 1_000, list[float]()
        self.meanwhile = list(meanwhile)

    def boot_ms(self) -> int:
        return self.now_ms

    def wait(self, woken: threading.Event, seconds: float) -> bool:
        if not woken.is_set():
            self.requested_s.append(seconds)
            self.now_ms += min(3_000, round(seconds * 1000))
            if self.meanwhile:
                self.meanwhile.pop(0)()
        return woken.is_set()


def in_a_thread(locks: GranularLocks, row: Operation, *keys: str) -> Callable[[], None]:
    """Another thread holds this; returns how it is told to let go."""
    has, may = threading.Event(), threading.Event()

    def hold() -> None:
        with locks.hold(row, "v", "b", keys):
            has.set()
            may.wait(120)

    thread = threading.Thread(target=hold)
    thread.start()
    assert has.wait(30)

    def let_go() -> None:
        may.set()
        thread.join(30)

    return let_go


def test_eight_threads_rename_in_every_direction_and_all_come_to_their_end() -> None:
    locks = GranularLocks(stripes=dict.fromkeys(Level, 8))
    inside, done, wrong = Counter[int](), Counter[int](), list[str]()

    def work(me: int) -> None:
        dice = random.Random(me)
        for _ in range(200):
            keys = [f"k{dice.randrange(12)}" for _ in range(3)]
            with locks.hold(
                KEY_OPERATIONS["DeleteKeys"], "v", "b", keys, acquire_timeout=60
            ) as held:
                mine = [each.stripe for each in held.wants if each.level is Level.KEY]
                inside.update(mine)
                wrong.extend(f"{each}" for each in mine if inside[each] != 1)
                inside.subtract(mine)
            done[me] += 1

    threads = [threading.Thread(target=work, args=(me,)) for me in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert not wrong
    assert done == Counter(dict.fromkeys(range(8), 200))
    assert locks.calls() == []
    figures = locks.figures()
    assert figures["bucket read"].taken == 1_600
    assert 1_600 <= figures["key write"].taken <= 4_800
    assert figures["key write"].held_max_ms <= figures["key write"].held_ms


def held_by(key: str) -> str:
    return (
        rf"the key lock of v/b/{key} \(stripe \d+\) was not free to write within 5 s, "
        rf"held by CommitKey of v/b/{key}, for 5\.0 s"
    )


def test_one_deadline_is_for_all_that_a_call_takes() -> None:
    clock = Stepping()
    locks = GranularLocks(clock=clock)
    first, second = sorted("ab", key=lambda key: index_of(f"v\0b\0{key}", 131_072))
    free_first, free_second = in_a_thread(locks, COMMIT, first), in_a_thread(locks, COMMIT, second)
    clock.meanwhile = [free_first]  # three of five seconds are gone by then
    with pytest.raises(LockBusy, match=held_by(second)):
        locks.hold(RENAME, "v", "b", ["a", "b"], acquire_timeout=5).__enter__()
    assert clock.requested_s == [5, 2]
    assert locks.figures()["key write"].timed_out == 1
    assert locks.figures()["key write"].waited_ms == 5_000
    with locks.hold(COMMIT, "v", "b", [first], acquire_timeout=0):
        pass  # what it had got was given back
    free_second()


def test_a_slow_holder_is_reported_by_its_key_and_beyond_the_limit_waiters_get_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, slow = Stepping(), list[tuple[str, float]]()
    locks = GranularLocks(
        clock=clock, warn_s=2, limit_s=4,
        on_slow=lambda call, seconds: slow.append((call.operation, seconds)),
    )  # fmt: skip
    let_go = in_a_thread(locks, COMMIT, "a")
    with pytest.raises(LockBusy, match=r"over the limit of 4 s, held by CommitKey of v/b/a, for 4"):
        locks.hold(COMMIT, "v", "b", ["a"], acquire_timeout=60).__enter__()
    let_go()
    assert clock.requested_s == [2, 2]
    until(lambda: slow == [("CommitKey", 2.0)])
    assert "CommitKey of v/b/a holds the key lock of v/b/a" in caplog.text
    with locks.hold(COMMIT, "v", "b", ["a"], acquire_timeout=0):
        clock.now_ms += 3_000
    until(lambda: slow[1:] == [("CommitKey", 3.0)])  # without a waiter at its end, once


def test_an_on_slow_that_blocks_delays_no_waiter() -> None:
    waited, go_on = list[bool](), threading.Event()
    locks = GranularLocks(
        clock=Stepping(), warn_s=2, limit_s=4,
        on_slow=lambda _call, _seconds: waited.append(go_on.wait(20)),
    )  # fmt: skip
    let_go = in_a_thread(locks, COMMIT, "a")
    try:
        with pytest.raises(LockBusy, match="over the limit of 4 s"):
            locks.hold(COMMIT, "v", "b", ["a"], acquire_timeout=60).__enter__()
        assert not waited
    finally:
        go_on.set()
        let_go()


def test_the_limit_counts_no_wait_of_the_holder_for_another_lock() -> None:
    clock = Stepping()
    locks = GranularLocks(clock=clock, limit_s=4)
    holder = HeldLocks("RenameKey", plan(wants_of(RENAME, "v", "b", ["a", "b"])))
    first = holder.wants[0]
    holder.since_ms[first] = clock.now_ms - 60_000  # and it still waits for the others
    locks._calls.append(holder)
    waiter = HeldLocks("CommitKey", (first,))
    assert locks._watch(waiter, first) > 0
    holder.complete_ms = clock.now_ms - 3_000
    assert locks._watch(waiter, first) == 1
    holder.complete_ms = clock.now_ms - 5_000
    with pytest.raises(LockBusy, match="over the limit of 4 s"):
        locks._watch(waiter, first)


def test_a_call_that_times_out_or_is_interrupted_leaves_nothing_held() -> None:
    locks = GranularLocks()
    let_go = in_a_thread(locks, COMMIT, "a")
    with pytest.raises(LockBusy, match=r"CommitKey: the key lock .* try again"):
        locks.hold(COMMIT, "v", "b", ["a"], acquire_timeout=0).__enter__()
    assert not locks.holds()

    def interrupt() -> None:
        raise KeyboardInterrupt

    kept, locks.clock = locks.clock, Stepping(interrupt)
    with pytest.raises(KeyboardInterrupt):
        locks.hold(RENAME, "v", "b", ["a", "b"], acquire_timeout=5).__enter__()
    locks.clock = kept
    assert [(name, count) for name, count, _ in locks.calls()] == [("CommitKey", 2)]
    let_go()
    assert locks.calls() == []
    with locks.hold(RENAME, "v", "b", ["a", "b"], acquire_timeout=0):
        pass
    with locks.hold(VOLUME_OPERATIONS["DeleteVolume"], "v", acquire_timeout=0):
        pass
    with locks.hold(DELETE_BUCKET, "v", "b", acquire_timeout=0):
        assert [each[:2] for each in locks.calls()] == [("DeleteBucket", 2)]


def test_an_exception_under_the_locks_reaches_the_caller_and_frees_them() -> None:
    locks = GranularLocks()
    with pytest.raises(ZeroDivisionError), locks.hold(RENAME, "v", "b", ["a", "b"]):
        raise ZeroDivisionError
    with locks.hold(DELETE_BUCKET, "v", "b", acquire_timeout=0):
        pass


def test_a_lower_level_or_the_same_one_again_is_refused_at_once_and_a_higher_one_is_not() -> None:
    locks = GranularLocks()
    with locks.hold(COMMIT, "v", "b", ["a"]):
        with pytest.raises(OutOfOrder, match="holds a key lock and asks for a volume lock"):
            locks.hold(VOLUME_OPERATIONS["SetAcl"], "v").__enter__()
        with pytest.raises(OutOfOrder, match="holds a key lock and asks for a bucket lock"):
            locks.hold(COMMIT, "v", "b", ["other"]).__enter__()
        with pytest.raises(OutOfOrder, match="read never becomes write"):
            locks.hold_all("again", [StripeRequest(Level.KEY, 1, WRITE)]).__enter__()
        let_go = in_a_thread(locks, COMMIT, "other")  # another thread is another matter
        let_go()
    with (
        locks.hold(VOLUME_OPERATIONS["SetAcl"], "v"),
        locks.hold(COMMIT, "v", "b", ["a"]),
    ):
        assert len(locks.calls()) == 2
    assert not locks.holds()


def test_readers_do_not_starve_a_writer_and_continue_when_it_times_out() -> None:
    clock = Stepping()
    locks = GranularLocks(clock=clock)
    let_go = in_a_thread(locks, COMMIT, "a")  # reads the bucket

    def second_reader() -> None:
        """While a writer waits, a new reader waits behind it."""
        with pytest.raises(LockBusy, match="bucket lock"):
            locks_of_another_thread()
        clock.now_ms += 60_000

    def locks_of_another_thread() -> None:
        errors: list[BaseException] = []

        def go() -> None:
            try:
                locks.hold(COMMIT, "v", "b", ["c"], acquire_timeout=0).__enter__()
            except BaseException as error:  # noqa: BLE001 - raised in the test's thread
                errors.append(error)

        thread = threading.Thread(target=go)
        thread.start()
        thread.join(30)
        for error in errors:
            raise error

    clock.meanwhile = [second_reader]
    with pytest.raises(LockBusy, match=r"bucket lock .* to write"):
        locks.hold(DELETE_BUCKET, "v", "b", acquire_timeout=5).__enter__()
    with locks.hold(COMMIT, "v", "b", ["c"], acquire_timeout=0):
        pass
    let_go()


def test_a_reader_that_waits_behind_a_writer_is_let_in_when_that_one_gives_up() -> None:
    locks = GranularLocks()
    let_go = in_a_thread(locks, COMMIT, "a")

    def give_up() -> None:
        with pytest.raises(LockBusy):
            locks.hold(DELETE_BUCKET, "v", "b", acquire_timeout=1).__enter__()

    wants_to_write = threading.Thread(target=give_up)
    wants_to_write.start()
    until(lambda: len(locks.calls()) == 2)
    with locks.hold(COMMIT, "v", "b", ["c"], acquire_timeout=30):
        pass
    wants_to_write.join(30)
    let_go()


# --- batches --------------------------------------------------------------------------------------


def test_a_batch_is_not_atomic_and_reports_the_result_for_each_key() -> None:
    locks = GranularLocks(clock=Stepping())
    let_go = in_a_thread(locks, COMMIT, "busy")

    def delete(item: tuple[str, ...]) -> str:
        if item == ("broken",):
            raise OSError("no such block")
        return f"deleted {item[0]}"

    items = [("a",), ("busy",), ("broken",), ("b",), ("a",)]
    found = run_batch(locks, BATCHES["deleteKeys"], "v", "b", items, delete, acquire_timeout=5)
    let_go()
    assert list(found) == [("a",), ("busy",), ("broken",), ("b",)]
    assert found["a",] == OperationDone("deleted a")
    assert found["b",] == OperationDone("deleted b")
    assert isinstance(found["busy",], OperationNotBegun)
    assert "was not free to write" in found["busy",].why
    assert isinstance(found["broken",], OperationFailed)
    assert str(found["broken",].error) == "no such block"
    assert locks.calls() == []


def test_a_batch_of_crossing_renames_terminates() -> None:
    locks = GranularLocks(stripes=dict.fromkeys(Level, 4))
    items = [(f"k{n % 5}", f"k{(n * 3 + 1) % 7}", str(n)) for n in range(60)]
    found = run_batch(locks, BATCHES["renameKeys"], "v", "b", items, len, acquire_timeout=60)
    assert Counter(type(each) for each in found.values()) == {OperationDone: 60}


def test_a_nested_batch_is_refused_because_it_would_wait_for_its_caller() -> None:
    locks = GranularLocks()
    with locks.hold(COMMIT, "v", "b", ["a"]), pytest.raises(OutOfOrder, match="release the lock"):
        run_batch(locks, "DeleteKey", "v", "b", [("b",)], len, acquire_timeout=None)


def test_without_the_rule_against_nesting_a_thread_waits_for_itself() -> None:
    """The mistake `once`, by real threads: only the deadline ends it."""
    locks = GranularLocks()
    with MISTAKES["once"].mutant.planted(), pytest.raises(LockBusy, match="key lock"):
        locks.hold(
            KEY_OPERATIONS["DeleteKeys"], "v", "b", ["a", "a"], acquire_timeout=0
        ).__enter__()
