"""Threads of one process that commit to one table, with a handle each, are decided together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from test_group_table import HOW, judged, published, rows, spy, values

from lockkit.table import Table
from lockkit.table.errors import CommitConflict
from lockkit.table.occ.fence import FENCE_KEY
from lockkit.table.occ.group_process import GroupProcess

THREADS = 4
FENCED = f"put {FENCE_KEY}"


@pytest.fixture
def url(tmp_path: Path) -> str:
    made = f"file://{tmp_path}/orders"
    Table.create(made, **HOW).close()
    return made


@contextmanager
def warm(url: str) -> Iterator[list[Table]]:
    """A handle for each thread; each has committed a row."""
    with ExitStack() as stack:
        tables = [stack.enter_context(Table(url)) for _ in range(THREADS)]
        for number, each in enumerate(tables):
            each.append(rows(f"first{number}"))
            published(each)
        yield tables


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


def process_of(table: Table) -> GroupProcess:
    found: GroupProcess = table._upkeep.context.together[0].process
    return found


def beside(tables: list[Table], do: Callable[[Table, int], Any],
           first: Callable[[], None] = lambda: None) -> list[Future[Any]]:  # fmt: skip
    """The others begin while the first one replaces the fence, and wait by the time it goes on."""
    process = process_of(tables[0])
    assert all(process_of(each) is process for each in tables)
    begun, left = threading.Event(), [True]

    def before(request: str) -> None:
        if request == FENCED and left:
            left.clear()
            begun.set()
            until(lambda: len(process.waiting) == THREADS)
            first()

    spy(tables[0], before)
    with ThreadPoolExecutor(THREADS) as pool:
        done = [pool.submit(do, tables[0], 0)]
        assert begun.wait(30)
        done += [pool.submit(do, each, n) for n, each in enumerate(tables[1:], 1)]
    assert not process.waiting
    return done


def expected(*ids: str) -> dict[str, int]:
    return dict.fromkeys([f"first{n}" for n in range(THREADS)], 0) | dict.fromkeys(ids, 0)


@pytest.mark.parametrize("write", ["append", "upsert"])
def test_what_waits_for_one_decision_is_decided_by_the_next_one_without_an_offer(
    url: str, write: str
) -> None:
    asked: list[str] = []
    with warm(url) as tables:
        for each in tables:
            spy(each, asked.append)
        name = "" if write == "append" else "first"  # a row of the thread's own file group
        done = beside(tables, lambda table, n: getattr(table, write)(rows(f"{name}{n}")))
        assert len({each.result(0).instant for each in done}) == THREADS
    assert asked.count(FENCED) == 2, "the first one, and one of the others for all of them"
    assert not [each for each in asked if each.endswith((".append", ".offer"))]
    added = map(str, range(THREADS)) if write == "append" else ()
    assert values(url) == judged(url) == expected(*added)


def test_of_threads_that_write_one_file_group_one_commits_at_a_time(url: str) -> None:
    with warm(url) as tables:
        done = beside(tables, lambda table, n: table.upsert(rows("first0", v=n + 1)))
        errors = [each.exception(0) for each in done]
    assert [type(each) for each in errors if each] == [CommitConflict] * (THREADS - 1)
    assert values(url) == judged(url) == expected() | {"first0": 1}


class Interrupted(BaseException):
    """As Ctrl-C, which only the main thread receives."""


@pytest.mark.parametrize("landed", [False, True])
def test_an_interrupt_of_the_thread_that_decides_does_not_touch_the_others(
    url: str, landed: bool
) -> None:
    with warm(url) as tables:
        process, interrupted = process_of(tables[0]), list[int]()

        def interrupt(table: Table, number: int) -> None:
            """The first of those that waited decides for all, and is interrupted."""
            put = table.store.put

            def once(key: str, *args: Any) -> Any:
                if key != FENCE_KEY or interrupted or len(process.waiting) == THREADS:
                    return put(key, *args)
                interrupted.append(number)
                if landed:
                    put(key, *args)
                raise Interrupted

            table._upkeep.context.store.put = table.store.put = once  # type: ignore[method-assign]

        for number, each in enumerate(tables[1:], 1):
            spy(each, lambda _: None)
            interrupt(each, number)
        done = beside(tables, lambda table, n: table.append(rows(f"{n}")))
        failed = {n: each.exception(0) for n, each in enumerate(done) if each.exception(0)}
    assert [type(each) for each in failed.values()] == [Interrupted]
    assert list(failed) == interrupted
    acknowledged = {f"{n}" for n in range(THREADS) if n not in failed}
    found = values(url)
    assert found == judged(url)
    lacking = expected(*acknowledged).keys() ^ found.keys()
    assert lacking <= {f"{interrupted[0]}"}, "only the interrupted thread may not know"


def test_a_commit_that_another_process_overtakes_is_offered_to_it(url: str) -> None:
    def overtake() -> None:
        with Table(url) as other:  # apart: it does not wait for the threads here
            other.append(rows("other"))

    with warm(url) as tables:
        done = beside(tables, lambda table, n: table.append(rows(f"{n}")), overtake)
        assert all(each.exception(0) is None for each in done)
    assert values(url) == judged(url) == expected("0", "1", "2", "3", "other")
