"""Exercises: what a notebook begins with fails, each solution passes, and so does no near miss."""

from __future__ import annotations

import contextvars
import importlib
import json
import os
import pickle
import re
import runpy
import signal
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import cloudpickle
import numpy as np
import psutil
import pytest
from test_notebooks import NOTEBOOKS, code, is_exercise

from lockkit.lab.course import exercises, process
from lockkit.lab.course.exercises import (
    EXERCISES,
    WORLDS,
    Applied,
    Delete,
    Found,
    IfAbsent,
    IfVersion,
    PreconditionFailed,
    Put,
    Sleep,
    Throttled,
    judge,
    listing,
    read,
)
from lockkit.lab.course.process import REAL, Interpreter

pytestmark = pytest.mark.xdist_group("exercises")  # its clients' processes start once


@pytest.fixture(autouse=True, scope="module")
def ended() -> Iterator[None]:
    """The clients' processes wait for the next function."""
    yield
    for each in [*Interpreter.STARTED.values()]:
        each.kill()


@pytest.fixture
def one_failed_world_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine more would only be looked through for the shortest story."""
    monkeypatch.setattr(exercises, "FAILED_MAX", 1)


SOLUTIONS = Path(__file__).parents[1] / "notebooks" / "solutions"


def solution(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = runpy.run_path(str(SOLUTIONS / f"{name}.py"))[name]
    return found


@pytest.mark.parametrize("worlds", [60, pytest.param(WORLDS, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", EXERCISES)
def test_a_solution_passes_in_every_world_and_met_what_may_go_wrong(name: str, worlds: int) -> None:
    judged = judge(solution(name), worlds=worlds)
    assert judged.solved, judged
    assert judged.worlds == worlds
    met = {"stall"} if name == "order" else {
        "stall", "429", "applied late", "hidden retry", "answer lost after it was applied",
    }  # fmt: skip
    assert met <= set(judged.faults)
    assert str(judged).startswith("solved")


def test_each_solution_has_an_exercise_in_a_notebook_and_each_exercise_a_solution() -> None:
    cells = [cell for each in NOTEBOOKS for cell in code(each) if is_exercise(cell)]
    calls = [f"judge({name})" for name in EXERCISES]
    assert sorted(cell.splitlines()[-1] for cell in cells) == sorted(calls)
    assert sorted(each.stem for each in SOLUTIONS.glob("*.py")) == sorted(EXERCISES)


def begun() -> dict[str, Callable[..., Any]]:
    """The functions as the notebooks begin them."""
    found: dict[str, Callable[..., Any]] = {}
    for each in NOTEBOOKS:
        names: dict[str, Any] = {}
        for cell in filter(is_exercise, code(each)):
            exec("\n".join(cell.splitlines()[:-1]), names)
            name = cell.splitlines()[-1][len("judge(") : -1]
            found[name] = names[name]
    return found


@pytest.mark.parametrize("name", EXERCISES)
def test_what_a_notebook_begins_with_fails_and_its_story_is_drawn(name: str) -> None:
    judged = judge(begun()[name])
    assert not judged.solved
    assert str(judged).startswith("not yet")
    page = judged._repr_html_()
    assert "lockkit-sequence" in page
    assert f"World {judged.world}" in page


# --- near misses ----------------------------------------------------------------------------------


def acquire_looks_once(key: str, mine: bytes) -> Any:
    """A write that may still land is taken for one that never will."""
    answer = yield Put(key, mine, IfAbsent())
    if isinstance(answer, Applied):
        return True
    seen = yield from read(key)
    return isinstance(seen, Found) and seen.body == mine


def acquire_gives_up_at_a_429(key: str, mine: bytes) -> Any:
    while True:
        answer = yield Put(key, mine, IfAbsent())
        if isinstance(answer, Applied):
            return True
        if isinstance(answer, Throttled):
            return False
        seen = yield from read(key)
        if isinstance(seen, Found):
            return seen.body == mine
        yield Sleep(1)


def acquire_waits_a_minute(key: str, mine: bytes) -> Any:
    """No pause is long enough."""
    answer = yield Put(key, mine, IfAbsent())
    if isinstance(answer, Applied):
        return True
    yield Sleep(60)
    seen = yield from read(key)
    return isinstance(seen, Found) and seen.body == mine


def acquire_tries_four_times(key: str, mine: bytes) -> Any:
    for _ in range(4):
        answer = yield Put(key, mine, IfAbsent())
        if isinstance(answer, Applied):
            return True
        seen = yield from read(key)
        if isinstance(seen, Found):
            return seen.body == mine
        yield Sleep(2)
    return False


def acquire_only_reads_on(key: str, mine: bytes) -> Any:
    """That nothing is there yet says nothing."""
    answer = yield Put(key, mine, IfAbsent())
    if isinstance(answer, Applied):
        return True
    for _ in range(30):
        seen = yield from read(key)
        if isinstance(seen, Found):
            return seen.body == mine
        yield Sleep(5)
    return False


def acquire_believes(key: str, mine: bytes) -> Any:
    yield Put(key, mine, IfAbsent())
    return True


def publish_looks_once(key: str, seen: str, body: bytes, entry: str) -> Any:
    answer = yield Put(key, body, IfVersion(seen))
    if isinstance(answer, Applied):
        return True
    now = yield from read(key)
    return entry in now.body.decode().split()


def publish_over_what_is_there(key: str, seen: str, body: bytes, entry: str) -> Any:
    while True:
        now = yield from read(key)
        if entry in now.body.decode().split():
            return True
        answer = yield Put(key, body, IfVersion(now.version))
        if isinstance(answer, Applied):
            return True
        yield Sleep(1)


def free_with_a_buffer(record: dict[str, Any], wall_ms: int, watched_ms: float) -> bool:
    return wall_ms > record["valid_until_ms"] + 500


def free_with_a_buffer_that_is_almost_enough(
    record: dict[str, Any], wall_ms: int, watched_ms: float
) -> bool:
    """Two clocks differ by up to 40 s."""
    return watched_ms >= record["ttl_ms"] or wall_ms > record["valid_until_ms"] + 37_000


def free_too_soon(record: dict[str, Any], wall_ms: int, watched_ms: float) -> bool:
    return watched_ms >= 0.8 * record["ttl_ms"]


def free_never(record: dict[str, Any], wall_ms: int, watched_ms: float) -> bool:
    return False


def conflicts_always(mine: frozenset[str], later: list[frozenset[str]]) -> bool:
    return bool(later)


def conflicts_if_equal(mine: frozenset[str], later: list[frozenset[str]]) -> bool:
    return mine in later


def conflicts_with_the_newest_five(mine: frozenset[str], later: list[frozenset[str]]) -> bool:
    return any(mine & each for each in later[-5:])


def conflicts_with_the_oldest_five(mine: frozenset[str], later: list[frozenset[str]]) -> bool:
    return any(mine & each for each in later[:5])


def campaign_leaves_a_gap(folder: str, owner: str, attempt: str) -> Any:
    """It is right in all else, and does not create the next epoch."""
    number = max([int(each.key[-6:]) for each in (yield from listing(folder))], default=0) + 2
    while True:
        answer = yield Put(f"{folder}{number:06}", attempt.encode(), IfAbsent())
        if isinstance(answer, Applied):
            return number
        if isinstance(seen := (yield from read(f"{folder}{number:06}")), Found):
            return number if seen.body == attempt.encode() else None
        yield Sleep(1)


def campaign_believes(folder: str, owner: str, attempt: str) -> Any:
    epochs = [int(each.key[-6:]) for each in (yield from listing(folder))]
    number = max(epochs, default=0) + 1
    answer = yield Put(f"{folder}{number:06}", attempt.encode(), IfAbsent())
    return number if isinstance(answer, Applied) else None


def append_goes_on(folder: str, record: bytes) -> Any:
    """It skips a slot that may still be its own."""
    slot = 1
    while True:
        key = f"{folder}{slot:06}"
        if isinstance((yield Put(key, record, IfAbsent())), Applied):
            return slot
        seen = yield from read(key)
        if isinstance(seen, Found) and seen.body == record:
            return slot
        slot += 1


def pay_until_applied(key: str, amount: int, receipt: str) -> Any:
    """A payment whose answer was lost is made again."""
    while True:
        seen = yield from read(key)
        account = json.loads(seen.body)
        account["balance"] += amount
        answer = yield Put(key, json.dumps(account).encode(), IfVersion(seen.version))
        if isinstance(answer, Applied):
            return
        yield Sleep(1)


def pay_that_keeps_the_newest_nine_receipts(key: str, amount: int, receipt: str) -> Any:
    """Nine are all that the three clients make in a world."""
    while True:
        seen = yield from read(key)
        account = json.loads(seen.body)
        if receipt in account["receipts"]:
            return
        account["balance"] += amount
        account["receipts"] = [*account["receipts"], receipt][-9:]
        yield Put(key, json.dumps(account).encode(), IfVersion(seen.version))
        yield Sleep(1)


def pay_that_looks_in_the_text(key: str, amount: int, receipt: str) -> Any:
    """It takes a client's receipt for one of a client whose name ends in the same way."""
    while True:
        seen = yield from read(key)
        if receipt in seen.body.decode():
            return
        account = json.loads(seen.body)
        account["balance"] += amount
        account["receipts"].append(receipt)
        yield Put(key, json.dumps(account).encode(), IfVersion(seen.version))
        yield Sleep(1)


PAID: dict[str, set[str]] = {}


def pay_that_remembers(key: str, amount: int, receipt: str) -> Any:
    """A client that has restarted has no memory of what it paid."""
    paid = PAID.setdefault(key, set())
    while receipt not in paid:
        seen = yield from read(key)
        account = json.loads(seen.body)
        if receipt in account["receipts"]:
            return
        others = [each for each in account["receipts"] if each[:2] != receipt[:2] or each[3:] < "8"]
        account = {"balance": account["balance"] + amount, "receipts": [*others, receipt]}
        yield Put(key, json.dumps(account).encode(), IfVersion(seen.version))
        yield Sleep(1)
        seen = yield from read(key)
        if receipt in json.loads(seen.body)["receipts"]:
            paid.add(receipt)


def release_once(key: str, version: str, record: dict[str, Any]) -> Any:
    yield Put(key, json.dumps(record | {"free": True}).encode(), IfVersion(version))


def release_over_what_is_there(key: str, version: str, record: dict[str, Any]) -> Any:
    """It frees the lock of the client that has taken it over."""
    while True:
        answer = yield Put(key, json.dumps(record | {"free": True}).encode(), IfVersion(version))
        if isinstance(answer, Applied):
            return
        yield Sleep(1)
        version = (yield from read(key)).version


def roll_back_files_first(fence: str, instant: str, files: list[str]) -> Any:
    """The decision is right, and comes too late."""
    for file in files:
        while not isinstance((yield Delete(file)), Applied):
            yield Sleep(1)
    while True:
        seen = yield from read(fence)
        decided = json.loads(seen.body)
        if instant in decided["rolled back"] or instant in decided["committed"]:
            return instant in decided["rolled back"]
        decided["rolled back"].append(instant)
        yield Put(fence, json.dumps(decided).encode(), IfVersion(seen.version))
        yield Sleep(1)


def roll_back_asks_once(fence: str, instant: str, files: list[str]) -> Any:
    seen = yield from read(fence)
    decided = json.loads(seen.body)
    if instant in decided["committed"]:
        return False
    decided["rolled back"].append(instant)
    yield Put(fence, json.dumps(decided).encode(), IfVersion(seen.version))
    for file in files:
        yield Delete(file)
    return True


def clean_all_that_was_replaced(commits: list[Any], retained: int) -> set[str]:
    return {file for _, replaced in commits for file in replaced}


def clean_one_commit_too_few(commits: list[Any], retained: int) -> set[str]:
    return {file for _, replaced in commits[: max(0, len(commits) - retained)] for file in replaced}


def clean_counts_from_the_end(commits: list[Any], retained: int) -> set[str]:
    """With fewer commits than are retained, the end of the slice is negative."""
    end = len(commits) - retained + 1
    return {file for _, replaced in commits[:end] for file in replaced}


def clean_nothing(commits: list[Any], retained: int) -> set[str]:
    return set()


def honours_takes_silence_for_a_refusal(key: str) -> Any:
    yield Put(key, b"first", IfAbsent())
    for condition in (IfAbsent(), IfVersion("0")):
        if isinstance((yield Put(key, b"second", condition)), Applied):
            return False
    return True


def honours_takes_silence_for_a_yes(key: str) -> Any:
    while not isinstance((yield from read(key)), Found):
        yield Put(key, b"first", IfAbsent())
    for condition in (IfAbsent(), IfVersion("0")):
        if not isinstance((yield Put(key, b"second", condition)), PreconditionFailed):
            return False
    return True


def claim_believes(key: str, mine: bytes) -> Any:
    while True:
        seen = yield from read(key)
        if json.loads(seen.body)["free"]:
            yield Put(key, mine, IfVersion(seen.version))
            return
        yield Sleep(0.5)


def claim_forgets_what_was_not_answered(key: str, mine: bytes) -> Any:
    """It waits for itself."""
    while True:
        seen = yield from read(key)
        if json.loads(seen.body)["free"]:
            answer = yield Put(key, mine, IfVersion(seen.version))
            if isinstance(answer, Applied):
                return
        yield Sleep(0.5)


def claim_takes_over(key: str, mine: bytes) -> Any:
    while True:
        seen = yield from read(key)
        if isinstance((yield Put(key, mine, IfVersion(seen.version))), Applied):
            return
        yield Sleep(0.5)


def until_without_room_for_the_clocks(sent_ms: int, answered_ms: int, ttl_ms: int) -> float:
    return sent_ms + ttl_ms


def until_from_the_answer(sent_ms: int, answered_ms: int, ttl_ms: int) -> float:
    return answered_ms + 0.9 * ttl_ms


def until_too_soon(sent_ms: int, answered_ms: int, ttl_ms: int) -> float:
    return sent_ms + 0.8 * ttl_ms


def bucket_by_a_hash_of_the_process(key: str, sizes: list[int]) -> int:
    return hash(key) % len(sizes)


def bucket_by_a_hash_of_the_text(key: str, sizes: list[int]) -> int:
    return hash(f"{key}") % len(sizes)


def bucket_always_the_first(key: str, sizes: list[int]) -> int:
    return 0


def bucket_out_of_range(key: str, sizes: list[int]) -> int:
    return len(sizes)


PLACED: dict[str, int] = {}


def bucket_that_remembers(key: str, sizes: list[int]) -> int:
    """Three processes have no memory in common."""
    return PLACED.setdefault(str(key), sizes.index(min(sizes)))


def bucket_that_remembers_in_a_default(
    key: str, sizes: list[int], placed: dict[str, int] = {},  # noqa: B006 - the mistake
) -> int:  # fmt: skip
    return placed.setdefault(str(key), sizes.index(min(sizes)))


class Memory:
    by_key: dict[str, int] = {}  # noqa: RUF012 - the mistake


def bucket_that_remembers_in_a_class(key: str, sizes: list[int]) -> int:
    return Memory.by_key.setdefault(str(key), sizes.index(min(sizes)))


def bucket_that_remembers_in_itself(key: str, sizes: list[int]) -> int:
    placed = vars(bucket_that_remembers_in_itself)
    found: int = placed.setdefault(str(key), sizes.index(min(sizes)))
    return found


def bucket_that_remembers_in_a_module(key: str, sizes: list[int]) -> int:
    placed: dict[str, int] = vars(zlib).setdefault("placed", {})
    return placed.setdefault(key, sizes.index(min(sizes)))


def bucket_by_the_hash_method(key: str, sizes: list[int]) -> int:
    return key.__hash__() % len(sizes)


def bucket_that_remembers_in_the_environment(key: str, sizes: list[int]) -> int:
    return int(os.environ.setdefault(f"PLACED {key}", str(sizes.index(min(sizes)))))


@lru_cache
def smallest(key: str, *sizes: int) -> int:
    return hash(key) % len(sizes)


def bucket_that_remembers_in_a_cache(key: str, sizes: list[int]) -> int:
    return smallest(key, *sizes)


class ByName(Enum):
    CRC = "crc"


@dataclass(frozen=True)
class Crc:
    kind: ByName = ByName.CRC

    def of(self, key: str) -> int:
        return zlib.crc32(key.encode())


class Named(Crc):
    def of(self, key: str) -> int:
        return super().of(key)


def test_a_right_answer_may_use_classes_of_its_own() -> None:
    def bucket(key: str, sizes: list[int]) -> int:
        return Named(ByName("crc")).of(key) % len(sizes)

    assert judge(bucket, worlds=REAL + 20).solved


class Untouched(dict[str, int]):
    def clear(self) -> None:
        raise TypeError("it cannot be cleared")


class Refuses(type):
    def __getattr__(cls, name: str) -> Any:
        raise KeyError(name)


class Seed(metaclass=Refuses):
    value = 7


COUNTS, SEEDS = {"calls": 0}, Untouched(seed=7)


def test_what_a_right_answer_uses_is_copied_for_each_client_and_left_as_it_was() -> None:
    lock = threading.Lock()

    @lru_cache
    def bucket(key: str, number: int) -> int:
        with lock:
            COUNTS["calls"] += 1
        return zlib.crc32(key.encode(), Seed.value + SEEDS["seed"]) % number

    by_key = bucket

    def counted(key: str, sizes: list[int]) -> int:
        return by_key(key, len(sizes))

    counted.__name__ = "bucket"
    assert judge(counted, worlds=REAL + 20).solved
    assert COUNTS == {"calls": 0}
    assert not by_key.cache_info().misses


def test_an_append_may_begin_at_the_slot_that_its_client_saw_last() -> None:
    """A client of another world has seen nothing."""
    last = {"slot": 1}

    def append(folder: str, record: bytes) -> Any:
        while True:
            key = f"{folder}{last['slot']:06}"
            if isinstance((yield Put(key, record, IfAbsent())), Applied):
                return last["slot"]
            seen = yield from read(key)
            if isinstance(seen, Found):
                if seen.body == record:
                    return last["slot"]
                last["slot"] += 1
            else:
                yield Sleep(1)

    assert judge(append, worlds=REAL + 20).solved


def test_what_cannot_be_given_to_another_process_is_named() -> None:
    numbers = (each for each in range(9))

    def order(keys: list[str]) -> list[str]:
        return [*keys, str(next(numbers))]

    said = r"order\(\) uses `numbers`, which cannot be given .* pickle 'generator' object. Make"
    with pytest.raises(ValueError, match=said):
        judge(order)


WHERE = contextvars.ContextVar[str]("WHERE")


def here(keys: list[str]) -> list[str]:
    return [WHERE.get()] if not keys else through_another(keys)


def through_another(keys: list[str]) -> list[str]:
    return [*here([]), *keys]


def test_what_a_function_uses_through_another_one_is_named() -> None:
    """The two call each other."""
    def order(keys: list[str]) -> list[str]:
        return [each for each in keys if here(keys)]

    with pytest.raises(ValueError, match=r"order\(\) uses `WHERE`, which cannot be given"):
        judge(order)


def test_a_function_that_ends_its_process_is_said_to_and_the_next_one_is_judged() -> None:
    def order(keys: list[str]) -> list[str]:
        os._exit(0)

    assert "order() ended its process. Rule: every call must return" in str(judge(order, worlds=2))
    assert judge(solution("order")).solved


def calls_of_this_process() -> int:
    vars(zlib)["calls"] = calls = vars(zlib).get("calls", 0) + 1
    return calls


@pytest.mark.usefixtures("one_failed_world_is_enough")
def test_a_function_that_ends_its_process_in_a_late_world_ends_nothing_else() -> None:
    """Its story is drawn: the world is played again."""
    def order(keys: list[str]) -> list[str]:
        if calls_of_this_process() > 200:
            os._exit(0)
        return sorted(set(keys))

    judged = judge(order)
    assert "order() ended its process. Rule: every call must return" in str(judged)
    assert judged.world > REAL
    assert judged.events
    assert "calls" not in vars(zlib)


@pytest.mark.parametrize("world", [1, REAL + 1])
@pytest.mark.parametrize("way", ["computes", "waits"])
def test_a_function_that_does_not_return_is_ended_and_named(
    way: str, world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LIMIT_S", 1.0)

    def order(keys: list[str]) -> list[str]:
        while calls_of_this_process() > 100 * (world - 1):
            try:
                if way == "waits":
                    threading.Event().wait()
            except BaseException:  # noqa: BLE001 - a reader may write it
                pass
        return sorted(set(keys))

    judged = judge(order)
    said = {"computes": "computed", "waits": "waited"}[way]
    assert f"order() did not return: it has {said} for 1 s" in str(judged)
    assert judged.failed == 1
    assert judged.world >= world
    assert "did not return" in judged._repr_html_()


def test_an_answer_finds_what_came_to_the_path_and_the_environment_since_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert judge(solution("bucket"), worlds=2).solved  # its processes go on
    (tmp_path / "placed_by.py").write_text("def rest(key, of): return hash_of(key) % of\n"
                                           "from zlib import crc32\n"
                                           "def hash_of(key): return crc32(str(key).encode())\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path / "no text"])
    monkeypatch.setenv("PLACED_BY", "placed_by")

    def bucket(key: str, sizes: list[int]) -> int:
        placed: int = importlib.import_module(os.environ["PLACED_BY"]).rest(key, len(sizes))
        return placed

    assert judge(bucket, worlds=REAL + 20).solved


def test_an_answer_that_exits_in_a_late_world_is_judged() -> None:
    calls = []

    def order(keys: list[str]) -> list[str]:
        calls.append(1)
        if len(calls) > 2 and len(keys) > 1:
            sys.exit("no idea")
        return sorted(set(keys))

    assert "order() raised SystemExit" in str(judge(order))


def test_two_threads_judge_in_turn() -> None:
    answers = [solution(name) for name in ("order", "bucket", "until")]
    with ThreadPoolExecutor(3) as pool:
        assert all(each.solved for each in pool.map(lambda each: judge(each, worlds=20), answers))


def test_a_result_that_cannot_be_given_to_another_process_is_named() -> None:
    def order(keys: list[str]) -> list[Any]:
        return [each for each in keys if each] + [(each for each in keys)]

    said = "order() raised TypeError: it returns .*<generator .*, which another process cannot"
    assert re.search(said.replace("()", r"\(\)"), str(judge(order, worlds=1)))


def test_a_generator_where_a_value_is_wanted_is_named_with_the_remedy() -> None:
    def clean(commits: list[Any], retained: int) -> Any:
        return (each for each in commits)

    said = "clean() raised TypeError: it returns a generator: write `set(...)` around it"
    assert said in str(judge(clean, worlds=1))


class Wrapped(Generator[Any, Any, bool]):
    """A generator of another kind."""

    def __init__(self, steps: Any) -> None:
        self.steps = steps

    def send(self, value: Any) -> Any:
        return self.steps.send(value)

    def throw(self, *error: Any) -> Any:
        return self.steps.throw(*error)


def test_a_right_answer_may_wrap_its_generator() -> None:
    steps = solution("acquire")

    def acquire(key: str, mine: bytes) -> Any:
        return Wrapped(steps(key, mine))

    assert judge(acquire, worlds=20).solved


@pytest.mark.parametrize(("name", "as_"), [
    ("bucket", np.int64), ("two_holders", np.bool_), ("until", np.float32), ("until", Fraction),
    ("until", Decimal), ("until", np.int64), ("append", np.int64), ("acquire", np.bool_),
    ("clean", frozenset), ("decide", MappingProxyType),
])  # fmt: skip
def test_a_number_of_another_library_is_a_number_and_a_frozenset_is_a_set(
    name: str, as_: Callable[[Any], Any]
) -> None:
    right = solution(name)

    def steps(*args: Any) -> Any:
        return as_((yield from right(*args)))

    function = steps if name in ("append", "acquire") else lambda *args: as_(right(*args))
    function.__name__ = name
    assert judge(function, worlds=REAL + 5).solved


def test_a_class_of_the_reader_stays_the_same_and_so_does_what_is_pickled_by_value() -> None:
    made = type("Mine", (), {"__module__": "__main__"})
    packed = cloudpickle.dumps(made)
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    try:
        judge(solution("bucket"), worlds=REAL + 1)
        assert __name__ in cloudpickle.list_registry_pickle_by_value()
        assert pickle.loads(packed) is made
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def test_an_endless_answer_ends_with_the_process_that_judges_it() -> None:
    program = (
        "from lockkit.lab.course.exercises import judge\n"
        "def order(keys):\n"
        "    __import__('os').write(1, b'begins\\n')\n"
        "    while True: pass\n"
        "judge(order)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as judging:
        assert judging.stdout
        assert judging.stdout.readline() == b"begins\n"
        clients = psutil.Process(judging.pid).children(recursive=True)
        judging.kill()
    assert clients
    assert not psutil.wait_procs(clients, timeout=30)[1]


def test_two_holders_may_be_found_by_intervals_or_by_the_order_of_the_history() -> None:
    """In no world do only two events in one millisecond tell them apart."""
    def two_holders(history: list[Any]) -> bool:
        grants: list[list[Any]] = []
        for at_ms, who, kind, until_ms in history:
            if kind == "held":
                grants.append([who, at_ms, until_ms])
            else:
                last = [each for each in grants if each[0] == who][-1]
                last[2] = min(last[2], at_ms)
        return any(
            mine[0] != other[0] and max(mine[1], other[1]) < min(mine[2], other[2])
            for mine in grants for other in grants
        )  # fmt: skip

    assert judge(two_holders).solved


def two_holders_never(history: list[Any]) -> bool:
    return False


def two_holders_without_releases(history: list[Any]) -> bool:
    """It accuses a client that takes a lock that was released."""
    until: dict[str, int] = {}
    for at_ms, who, kind, until_ms in history:
        if kind == "held":
            if any(each > at_ms for name, each in until.items() if name != who):
                return True
            until[who] = until_ms
    return False


def order_without_repeats(keys: list[str]) -> list[str]:
    return list(dict.fromkeys(keys))


def order_sorted_with_repeats(keys: list[str]) -> list[str]:
    return sorted(keys)


def order_by_hash(keys: list[str]) -> list[str]:
    """Each process has another order."""
    return sorted(set(keys), key=hash)


def order_loses_one(keys: list[str]) -> list[str]:
    return sorted(set(keys))[1:]


Offers = list[tuple[str, int, frozenset[str]]]


def decide_without_the_batch(first: int, window: list[frozenset[str]], offers: Offers) -> Any:
    return {instant: not any(groups & each for each in window[base + 1 - first:])
            for instant, base, groups in offers if base + 1 >= first}  # fmt: skip


def decide_what_left_the_window(first: int, window: list[frozenset[str]], offers: Offers) -> Any:
    """It takes a window that does not reach the base for a whole one."""
    decided, window = {}, list(window)
    for instant, base, groups in offers:
        later = window[max(0, base + 1 - first) :]
        decided[instant] = not any(groups & each for each in later)
        window.append(groups if decided[instant] else frozenset())
    return decided


def decide_never(first: int, window: list[frozenset[str]], offers: Offers) -> Any:
    return dict.fromkeys([instant for instant, _, _ in offers], False)


Placed = list[tuple[int, int | None]]


def file_slice_by_instants(bases: Placed, logs: Placed) -> Any:
    """A slow writer's log file is put behind an older base file."""
    base = max((each for each, done in bases if done is not None), default=None)
    return base, sorted(each for each, done in logs if done is not None and each > (base or 0))


def file_slice_of_a_base_file_that_is_not_committed(bases: Placed, logs: Placed) -> Any:
    base = max((each for each, _ in bases), default=None)
    return base, sorted(each for each, done in logs if done is not None and done > (base or 0))


def file_slice_with_every_log_file(bases: Placed, logs: Placed) -> Any:
    base = max((each for each, done in bases if done is not None), default=None)
    return base, sorted(each for each, done in logs if done is not None)


def file_slice_since_the_compactions_commit(bases: Placed, logs: Placed) -> Any:
    """Log files that were committed beside the compaction are in no base file."""
    base = max((each for each, done in bases if done is not None), default=None)
    since = dict(bases).get(base or 0) or 0
    return base, sorted(each for each, done in logs if done is not None and done > since)


def file_slice_without_a_base_file(_bases: Placed, logs: Placed) -> Any:
    """A clean may have deleted log files that are merged."""
    return None, sorted(each for each, done in logs if done is not None)


def file_slice_of_the_oldest_base_file(bases: Placed, logs: Placed) -> Any:
    base = min((each for each, done in bases if done is not None), default=None)
    return base, sorted(each for each, done in logs if done is not None and done > (base or 0))


def file_slice_by_completion(bases: Placed, logs: Placed) -> Any:
    base = max((each for each, done in bases if done is not None), default=None)
    above = sorted((done, each) for each, done in logs if done is not None and done > (base or 0))
    return base, [each for _, each in above]


NAMED = {
    function: name for what, function in list(globals().items())
    for name in EXERCISES if what.startswith(f"{name}_")
}  # fmt: skip


@pytest.mark.usefixtures("one_failed_world_is_enough")
@pytest.mark.parametrize("function", NAMED, ids=lambda each: each.__name__)
def test_a_near_miss_is_found(function: Callable[..., Any]) -> None:
    function.__name__ = NAMED[function]
    assert not judge(function).solved


def sends(value: Any) -> Callable[..., Any]:
    def function(*_args: Any) -> Any:
        yield Sleep(1)
        return value

    return function


@pytest.mark.usefixtures("one_failed_world_is_enough")
@pytest.mark.parametrize("value", [None, False, True, 0, 1, float("nan")], ids=str)
@pytest.mark.parametrize("way", [sends, lambda value: lambda *_args: value], ids=["sends", "says"])
@pytest.mark.parametrize("name", EXERCISES)
def test_a_function_that_does_nothing_solves_no_exercise(
    name: str, way: Callable[[Any], Callable[..., Any]], value: Any
) -> None:
    function = way(value)
    function.__name__ = name
    assert re.search(r"failed\. World \d+: .+\. Rule: .+$", str(judged := judge(function)))
    assert judged.requests < 600


def test_an_election_that_leads_only_once_is_not_solved() -> None:
    def campaign(folder: str, owner: str, attempt: str) -> Any:
        while True:
            if isinstance((yield Put(f"{folder}000001", attempt.encode(), IfAbsent())), Applied):
                return 1
            if isinstance(seen := (yield from read(f"{folder}000001")), Found):
                return 1 if seen.body == attempt.encode() else None

    assert "an undisturbed call leads" in str(judge(campaign))


# --- functions that cannot be judged --------------------------------------------------------------


def test_an_exercise_function_that_raises_is_reported_with_error_and_line() -> None:
    def acquire(key: str, mine: bytes) -> Any:
        answer = yield Put(key, mine, IfAbsent())
        return answer.status

    said = str(judge(acquire))
    assert "raised AttributeError in line" in said


def test_an_exercise_function_without_yield_is_reported_with_the_remedy() -> None:
    def append(folder: str, record: bytes) -> int:
        return 1

    assert "answer = yield Put" in str(judge(append))


def test_a_yield_of_something_else_is_named() -> None:
    def acquire(key: str, mine: bytes) -> Any:
        yield "lock me"

    assert "it yields 'lock me', which is not a request" in str(judge(acquire))


@pytest.mark.parametrize(("request_", "said"), [
    (Put("lock", "text", IfAbsent()), "a Put whose body is not bytes: add .encode() to a text"),
    (Put("lock", b"", None), "a Put whose condition is missing: give IfAbsent() or IfVersion(ve"),
    (Delete(None), "a Delete whose key is None, which is not text"),
    (Sleep(float("nan")), "a Sleep whose time is nan: give seconds, 0 or more"),
    (Sleep(-5), "a Sleep whose time is -5: give seconds, 0 or more"),
], ids=["text", "no condition", "no key", "nan", "negative"])  # fmt: skip
def test_a_request_that_no_store_could_be_sent_is_named_with_the_remedy(
    request_: Any, said: str
) -> None:
    def acquire(key: str, mine: bytes) -> Any:
        yield request_

    assert f"acquire() raised TypeError: it yields {said}" in str(judge(acquire))


def test_a_loop_that_never_waits_after_a_429_is_told_to_wait() -> None:
    def acquire(key: str, mine: bytes) -> Any:
        while not isinstance((yield Put(key, mine, IfAbsent())), (Applied, PreconditionFailed)):
            pass
        found = yield from read(key)
        return isinstance(found, Found) and found.body == mine

    assert "answered 429: after a 429, wait with `yield Sleep(1)`" in str(judge(acquire))


def test_a_function_that_never_ends_is_stopped() -> None:
    def acquire(key: str, mine: bytes) -> Any:
        while True:
            yield Sleep(1)

    assert "acquire() has sent 200 requests" in str(judge(acquire))


def test_an_exercise_that_returns_another_type_is_reported_with_that_type() -> None:
    def acquire(key: str, mine: bytes) -> Any:
        yield Put(key, mine, IfAbsent())

    assert "returned None, not True or False" in str(judge(acquire))

    def order(keys: list[str]) -> Any:
        return tuple(keys)

    assert "not a list" in str(judge(order))

    def bucket(key: str, sizes: list[int]) -> Any: ...

    assert "returned None, not a whole number" in str(judge(bucket))


def test_another_name_is_refused_with_those_that_exist() -> None:
    def acquired() -> None: ...

    def acquire() -> None: ...

    with pytest.raises(ValueError, match="acquire, publish, free"):
        judge(acquired)
    with pytest.raises(ValueError, match="at least one world"):
        judge(acquire, worlds=0)


def test_the_error_text_of_an_exercise_function_is_escaped() -> None:
    def acquire(key: str, mine: bytes) -> Any:
        raise ValueError("<script>alert(1)</script>")
        yield

    assert "<script" not in judge(acquire)._repr_html_()


def ordered(keys: list[str]) -> list[str]:
    return sorted(set(keys))


ordered.__name__ = "order"


def test_a_client_whose_process_has_ended_since_is_started_again() -> None:
    judge(ordered, worlds=REAL + 1)
    for each in [*Interpreter.STARTED.values()]:
        os.kill(each.process.pid, signal.SIGKILL)
        each.process.wait()
    assert all(judge(ordered, worlds=REAL + 1).solved for _ in range(2))


def test_a_process_that_an_answer_forks_answers_no_later_function() -> None:
    def order(keys: list[str]) -> list[str]:
        os.fork()
        return sorted(set(keys))

    judge(order, worlds=2)
    assert judge(ordered, worlds=REAL + 1).solved


def test_what_a_function_prints_is_in_its_story_and_an_answer_that_was_lost_says_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def acquire(key: str, mine: bytes) -> Any:
        answer = yield Put(key, mine, IfAbsent())
        print(answer)
        print("x" * 100_000)
        return isinstance(answer, Applied)

    judged = judge(acquire)
    printed = [each["text"] for each in judged.events if str(each.get("text")).startswith("prints")]
    assert printed and max(map(len, printed)) < 2_000 and capfd.readouterr().out == ""
    assert {each.split("\n")[0] for each in printed if "Unknown" in each} == {
        "prints: Unknown(why='no answer')"
    }


def test_what_a_solution_prints_is_shown_of_one_world() -> None:
    def order(keys: list[str]) -> list[str]:
        print(f"<b>{len(keys)}</b>", "a\n" * 20)
        return sorted(set(keys))

    judged = judge(order, worlds=REAL + 1)
    first, *rest = str(judged).splitlines()
    assert first.startswith("solved") and rest[0] == "World 1:" and len(rest) == 13
    assert rest[1].startswith("W") and "prints: <b>" in rest[1]
    page = judged._repr_html_()
    assert "&lt;b&gt;" in page and "<pre>World 1:" in page and page.count("World") == 1
    assert "<pre>" not in judge(ordered, worlds=1)._repr_html_()


@pytest.mark.skipif(sys.platform != "linux", reason="macOS does not enforce the limit")
@pytest.mark.usefixtures("one_failed_world_is_enough")
@pytest.mark.parametrize("world", [1, REAL + 1])
def test_a_function_that_uses_too_much_memory_is_said_to(world: int) -> None:
    def order(keys: list[str]) -> list[str]:
        taken = []
        while calls_of_this_process() > 100 * (world - 1) and len(taken) < 20:
            taken.append(bytes(2**26))  # not touched, so no memory is used
        return sorted(set(keys))

    judged = judge(order)
    assert "order() raised MemoryError in line" in str(judged)
    assert "of its code: it has used 1,024 MB. Rule: every call must return" in str(judged)
    assert judged.world >= world
    assert judge(ordered, worlds=REAL + 1).solved


def test_a_function_may_import_large_libraries() -> None:
    def order(keys: list[str]) -> list[str]:
        import numpy
        import pyarrow

        rows = pyarrow.array(numpy.array(keys, dtype=str).tolist(), pyarrow.string())
        return sorted(set(rows.to_pylist()))

    assert judge(order, worlds=REAL + 1).solved


@pytest.mark.parametrize(("body", "said"), [
    ("yield read(key)", "it yields a generator: write `yield from` before it"),
    ("raise KeyboardInterrupt", "raised KeyboardInterrupt in line 2"),
    ("return 1.0\n    yield", "returned 1.0, not a whole number or None"),
    ("return 10 ** 5000\n    yield", "returned a number of too many digits, not a whole number"),
])  # fmt: skip
def test_a_slip_is_named_with_what_to_write(body: str, said: str) -> None:
    made: dict[str, Any] = {"read": read}
    exec(f"def append(key, mine):\n    {body}", made)
    assert said in str(judge(made["append"], worlds=1))


@pytest.mark.parametrize(("name", "result", "said"), [
    ("order", [["a"]], "order() returned [['a']], not a list of names"),
    ("clean", {1, "a", None}, ", not a set of names"),
    ("decide", {"1-W1": np.array([1, 2])}, "not a dict of instants to True or False"),
    ("decide", {1: True}, "not a dict of instants"),
    ("file_slice", (None, [[1]]), "not of whole numbers"),
    ("file_slice", (np.array([1, 2]), []), "not of whole numbers"),
    ("until", 10**400, ", not a number"), ("until", Decimal("sNaN"), ", not a number"),
])  # fmt: skip
def test_a_result_that_an_exercise_cannot_use_is_named(name: str, result: Any, said: str) -> None:
    def function(*_args: Any) -> Any:
        return result

    function.__name__ = name
    assert said in str(judge(function, worlds=1))


def _forks() -> None:
    os.fork()


def _closes_its_output() -> None:
    sys.stdout.close()


def _closes_all_files() -> None:
    os.closerange(3, 1_000)


@pytest.mark.parametrize(("does", "solved"), [
    (_forks, False), (_closes_its_output, True), (_closes_all_files, False),
])  # fmt: skip
def test_no_traceback_of_lockkit_is_shown_whatever_an_answer_does_to_its_process(
    does: Callable[[], None], solved: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    def order(keys: list[str]) -> list[str]:
        does()
        return sorted(set(keys))

    for each in [*Interpreter.STARTED.values()]:  # they write to the output of another test
        each.kill()
    judged = judge(order, worlds=3)
    assert judged.solved or not solved
    assert "Traceback" not in capfd.readouterr().err
    assert judge(ordered, worlds=1).solved


def test_a_client_whose_notebook_ends_during_a_call_ends_in_silence(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with process.interpreters(process.packed(ordered)) as start:
        client = start("gone")
        client.connection.send(("call", (["b", "a"],)))
        client.connection.close()
        client.process.wait(30)
    assert not capfd.readouterr().err
