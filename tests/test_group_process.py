"""Threads of one process that commit to one table, with one handle or several: one decision."""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from test_group_table import HOW, judged, published, rows, spy, values
from waiting import until

from lockkit.cli.main import main
from lockkit.clock import Clock
from lockkit.errors import LockkitError
from lockkit.runtime import Procedure, Sleep, run
from lockkit.stores import open_store
from lockkit.table import Table, handle
from lockkit.table.errors import CommitConflict, ModeSwitched
from lockkit.table.format.timeline import V6
from lockkit.table.further import further_handle
from lockkit.table.occ.fence import COMMIT, FENCE_KEY
from lockkit.table.occ.group import ahead as group_ahead
from lockkit.table.occ.group import commit as group_commit
from lockkit.table.occ.group import gone as group_gone
from lockkit.table.occ.group import process as group_process
from lockkit.table.occ.group import publish as group_publish
from lockkit.table.occ.group import refused as group_refused
from lockkit.table.occ.group import view as group_view
from lockkit.table.occ.group.client import FAST_RUN_MAX, GroupClient, GroupWrite
from lockkit.table.occ.group.decision import REFUSED, GroupDecision, GroupFence
from lockkit.table.occ.group.fence import read_group_fence
from lockkit.table.occ.group.process import GroupProcess, WaitingCommit
from lockkit.table.occ.group.view import GroupView

THREADS = 4
FENCED = f"put {FENCE_KEY}"


@pytest.fixture
def url(tmp_path: Path) -> str:
    made = f"file://{tmp_path}/orders"
    Table.create(made, **HOW).close()
    return made


each_way = pytest.mark.parametrize("shared", [False, True], ids=["a handle each", "one handle"])


@contextmanager
def warm(url: str, shared: bool = False) -> Iterator[list[Table]]:
    """A handle for each thread, or one for all; each thread has committed a row."""
    with ExitStack() as stack:
        made = [stack.enter_context(Table(url)) for _ in range(1 if shared else THREADS)]
        tables = made * (THREADS // len(made))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(group_gone, "SURE_MS", 0)  # nobody makes the table again
            for number, each in enumerate(tables):
                each.append(rows(f"first{number}"))
                published(each)
        for each in tables:
            each._upkeep.context.together[0].run = FAST_RUN_MAX  # it does not list yet
        yield tables


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


@each_way
@pytest.mark.parametrize("write", ["append", "upsert"])
def test_what_waits_for_one_decision_is_decided_by_the_next_one_without_an_offer(
    url: str, write: str, shared: bool
) -> None:
    asked: list[str] = []
    with warm(url, shared) as tables:
        for each in set(tables):
            spy(each, asked.append)
        name = "" if write == "append" else "first"  # a row of the thread's own file group
        done = beside(tables, lambda table, n: getattr(table, write)(rows(f"{name}{n}")))
        assert len({each.result(0).instant for each in done}) == THREADS
    assert asked.count(FENCED) == 2, "the first one, and one of the others for all of them"
    assert not [each for each in asked if each.endswith((".append", ".offer"))]
    added = map(str, range(THREADS)) if write == "append" else ()
    assert values(url) == judged(url) == expected(*added)


def test_an_upsert_is_decided_over_the_fence_that_another_thread_has_made(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_ahead, "REST_MS", 600_000)
    monkeypatch.setattr(group_process, "BUSY_MS", 600_000)
    asked: list[str] = []
    with warm(url) as (one, two, *_):
        two.upsert(rows("first1", v=1))
        published(two)

        def before(request: str) -> None:
            asked.append(request)
            if request.startswith("put ") and request.endswith(".parquet"):
                one.upsert(rows("first0", v=1))
                published(one)

        spy(two, before)
        two.upsert(rows("first1", v=2))
    assert asked.count(FENCED) == 1
    assert sum(each.endswith(".parquet") for each in asked) == 1, "it has begun again"
    of_others = (".rewrite", ".offer")
    assert not [e for e in asked if e.endswith(of_others) or e.startswith("list ")]
    assert values(url) == judged(url) == expected() | {"first0": 1, "first1": 2}


@pytest.mark.parametrize(("only", "began", "to"), [
    ("v1", 0, "v3"), ("v2", 1, "v3"),
    ("v1", 1, "v1"),  # the request may have been applied before it began
    ("v0", 0, "v0"),  # another process has replaced that fence
])  # fmt: skip
def test_an_upsert_is_not_carried_over_what_another_process_may_have_decided(
    only: str, began: int, to: str
) -> None:
    process, fence = GroupProcess(), GroupFence("a")
    process.made(fence, "v2", 0, "v1", 1)
    process.made(fence, "v3", 0, "v2", 2)
    write = GroupWrite("20250106101200001", "a", 0, frozenset(), listed=False)
    write.only, write.began = only, began
    process.carry(GroupClient(), write)
    assert (write.only, write.listed) == (to, to != only)


def decided_up_to(last: int, first: int = 1) -> GroupFence:
    window = (GroupDecision(n, n, COMMIT, f"2025010610120{n:04}") for n in range(first, last + 1))
    return GroupFence(f"{last}", "t", round=last, first=first, window=tuple(window))


@pytest.mark.parametrize("first", [3, 4])
def test_a_view_becomes_that_of_another_threads_fence_if_no_decision_between_is_unknown(
    first: int
) -> None:
    process, view = GroupProcess(), GroupView(decided_up_to(2), "v2", {}, frozenset())
    process.made(decided_up_to(5, first), "v5", 0)
    assert process.newest(view).version == ("v5" if first == 3 else "v2")
    client = GroupClient(names=V6)
    client.knows(view.fence, "v2")
    process.carry(client, GroupWrite("20250106101210000", "a", 2, frozenset()))
    assert client.version == ("v5" if first == 3 else "v2")


@pytest.mark.parametrize(("only", "judged_too"), [("v5", True), ("v4", False)])
def test_a_thread_decides_no_rewrite_whose_snapshot_shows_another_fence(
    only: str, judged_too: bool
) -> None:
    """A commit in between may hold its keys in another file group, and no fence compares that."""
    process, view = GroupProcess(), GroupView(decided_up_to(5), "v5", {}, frozenset())
    write = GroupWrite("20250106101210000", "a", 5, frozenset(), table="t", only=only)
    mine = GroupWrite("20250106101210001", "b", 5, frozenset(), table="t")
    for each in (write, mine):
        process.waiting.append(WaitingCommit(each, 5, threading.Lock(), 1))
    found = [each.instant for each in process.offers(view, process.waiting[1])]
    assert found == [write.instant] * judged_too + [mine.instant]


@pytest.mark.parametrize("first", [3, 4])
def test_a_thread_decides_for_another_one_only_what_its_fence_can_judge(first: int) -> None:
    process, view = GroupProcess(), GroupView(decided_up_to(5, first), "v5", {}, frozenset())
    write = GroupWrite("20250106101210000", "a", 2, frozenset(), table="t", only="v2")
    mine = GroupWrite("20250106101210001", "b", 5, frozenset(), table="t")
    for each in (write, mine):
        process.waiting.append(WaitingCommit(each, 5, threading.Lock(), 1))
    process.made(view.fence, view.version, 0, "v2", 1)
    found = [each.instant for each in process.offers(view, process.waiting[1])]
    judged_too = first == 3
    assert found == [write.instant] * judged_too + [mine.instant]
    assert (write.sent, write.doubtful) == (judged_too, judged_too), "its owner may not deny it"
    assert not mine.sent


@pytest.mark.parametrize(
    "why", ["", "it is decided", "it may be decided", "it may be passed", "it waits no more"]
)
def test_a_thread_decides_nothing_for_another_one_that_may_be_decided_or_passed(why: str) -> None:
    its, last = "20250106101210000", 2 if why == "it may be decided" else 5
    fence = replace(decided_up_to(5, 4), newest="20250106101219999")
    before = {its: GroupDecision(3, 3, COMMIT, its)} if why == "it is decided" else {}
    process, view = GroupProcess(), GroupView(fence, "v5", before, frozenset())
    listed = why != "it may be passed"
    write = GroupWrite(its, "a", 5, frozenset(), table="t", blind=True, listed=listed)
    over = why == "it waits no more"
    process.waiting.append(WaitingCommit(write, last, threading.Lock(), 1, over=over))
    found = process.offers(view, WaitingCommit(write, last, threading.Lock(), 2))
    assert bool(found) == write.sent == (not why)


def test_of_two_upserts_of_one_file_group_that_wait_the_first_is_decided() -> None:
    """The other one begins again; it is not refused."""
    process, view = GroupProcess(), GroupView(decided_up_to(5), "v5", {}, frozenset())
    for n in range(2):
        write = GroupWrite(f"2025010610121000{n}", "a", 5, frozenset(), table="t", only="v5")
        write.writes = frozenset({("", "f1")})
        process.waiting.append(WaitingCommit(write, 5, threading.Lock(), n))
    first, second = process.waiting
    assert [each.instant for each in process.offers(view, first)] == [first.write.instant]
    assert not second.write.sent


@pytest.mark.parametrize("end", ["it goes on", "it is answered", "its thread is gone"])
def test_an_upsert_begins_after_the_answer_to_the_fence_that_another_thread_has_sent(
    end: str
) -> None:
    process, write = GroupProcess(), GroupWrite("20250106101210000", "a", 5, frozenset())
    process.deciding = WaitingCommit(write, 5, threading.Lock(), 1)
    if end != "its thread is gone":
        process.deciding.held.acquire()
    if end == "it is answered":
        process.deciding.answered.set()
    waits = [each for each in process.catches_up(GroupClient()) if isinstance(each, Sleep)]
    assert [each.woken for each in waits] == [process.deciding.answered] * (end == "it goes on")


def test_two_upserts_of_one_row_in_threads_begin_again_and_do_not_conflict(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_process, "BUSY_MS", 600_000)
    with warm(url) as (one, two, *_):
        two.upsert(rows("first1", v=1))
        published(two)

        def before(request: str) -> None:
            if request.startswith("put ") and request.endswith(".parquet") and not met:
                met.append(one.upsert(rows("first1", v=2)))
                published(one)

        met: list[Any] = []
        spy(two, before)
        two.upsert(rows("first1", v=3))
        assert met
    assert values(url) == judged(url) == expected() | {"first1": 3}


def upserts_of_one_row(url: str, shared: bool) -> list[Future[Any]]:
    with warm(url, shared) as tables:
        return beside(tables, lambda table, n: table.upsert(rows("first0", v=n + 1)))


@each_way
def test_of_threads_that_write_one_file_group_one_commits_at_a_time(
    url: str, shared: bool
) -> None:
    done = upserts_of_one_row(url, shared)
    errors = [each.exception(0) for each in done]
    assert [type(each) for each in errors if each] == [CommitConflict] * (THREADS - 1)
    assert values(url) == judged(url) == expected() | {"first0": 1}


# --- what a thread is given -----------------------------------------------------------------------


def appends(url: str, shared: bool) -> list[Future[Any]]:
    with warm(url, shared) as tables:
        return beside(tables, lambda table, n: table.append(rows(f"{n}")))


def harm(url: str, done: list[Future[Any]]) -> list[str]:
    """Commits that a thread was given and the timeline has not so, and errors but conflicts."""
    with Table(url) as table:
        there = {(each.instant, each.completed) for each in table.history()}
    errors = [error for each in done if (error := each.exception(0))]
    found = [repr(each) for each in errors if not isinstance(each, CommitConflict)]
    given = [each.result(0) for each in done if each.exception(0) is None]
    return found + [f"{each} is not in the timeline" for each in given
                    if (each.instant, each.completion) not in there]  # fmt: skip


def whatever_was_decided(fence: GroupFence | None, instant: str) -> str:
    window = fence.window if fence else ()
    return next((COMMIT for each in window if each.instant == instant), "")


def the_last_of_the_batch(
    client: GroupClient, _instant: str, _kind: str
) -> Procedure[GroupDecision | None]:
    yield from ()
    assert client.known is not None
    return client.known.window[-1]


MISTAKES: dict[str, tuple[Any, str, Any, Callable[[str, bool], list[Future[Any]]]]] = {
    "a thread whose commit was refused is told that it committed": (
        group_commit, "decision_in", whatever_was_decided, upserts_of_one_row),
    "a thread is given the result of another one": (
        group_publish, "_entry_of", the_last_of_the_batch, appends),
}  # fmt: skip


@each_way
@pytest.mark.parametrize("write", [appends, upserts_of_one_row])
def test_each_thread_is_given_its_own_commit(
    url: str, write: Callable[[str, bool], list[Future[Any]]], shared: bool
) -> None:
    assert harm(url, write(url, shared)) == []


@each_way
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_what_a_thread_is_given_is_found(
    url: str, name: str, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, function, wrong, write = MISTAKES[name]
    monkeypatch.setattr(module, function, wrong)
    assert harm(url, write(url, shared))


# --- one handle -----------------------------------------------------------------------------------


def test_threads_that_share_a_handle_each_read_what_they_wrote_and_leave_no_thread(
    url: str
) -> None:
    """Each kind of write, some by the handle itself and some by further ones, which are used again.
    """
    before = threading.active_count()
    with Table(url) as table, ThreadPoolExecutor(THREADS) as pool:
        def work(n: int) -> None:
            table.append(rows(f"a{n}", f"b{n}"), retries=9)
            table.upsert(rows(f"a{n}", v=n + 1), retries=9)
            table.delete(rows(f"b{n}"), retries=9)

        for each in [pool.submit(work, n) for n in range(THREADS)]:
            each.result(60)
        assert 0 < len(table._further) < THREADS
    assert threading.active_count() == before
    assert values(url) == judged(url) == {f"a{n}": n + 1 for n in range(THREADS)}
    with pytest.raises(RuntimeError, match="closed; open the table again"):
        table.append(rows("late"))


def test_a_further_handle_is_closed_with_the_one_that_the_threads_share(url: str) -> None:
    with warm(url, True) as tables:
        beside(tables, lambda table, n: table.append(rows(f"{n}")))
        further = list(tables[0]._further)
    for each in further:
        with pytest.raises(RuntimeError, match="closed; open the table again"):
            each.append(rows("late"))


def test_a_closed_handle_gives_none_to_a_further_thread_and_closes_those_in_use(url: str) -> None:
    with Table(url) as table:
        table._turn.append("a thread that writes with it")
        table.append(rows("a"))
        with further_handle(table, "append") as further:
            table.close()
        for closed in (table, further):
            with pytest.raises(RuntimeError, match="closed; open the table again"):
                closed.append(rows("late"))
    assert set(values(url)) == {"a"}


def test_threads_share_no_handle_of_a_table_that_has_left_group_commit(url: str) -> None:
    with Table(url) as table:
        table._turn.append("another thread")
        table.append(rows("a"))
        assert main(["table", "mode", url, "fenced", "--yes"]) == 0
        with pytest.raises(ModeSwitched):
            table.append(rows("b"))
        with pytest.raises(RuntimeError, match="another thread is using this handle"):
            table.append(rows("c"))
    assert set(values(url)) == {"a"}


# --- interrupted, overtaken -----------------------------------------------------------------------


class Interrupted(BaseException):
    """As Ctrl-C, which only the main thread receives."""


def lines_of(
    module: Any, do: Callable[[], Any], ends_at: Collection[int],
    counts: Callable[[], bool] = lambda: True, also: Any = None,
) -> tuple[int, Any]:  # fmt: skip
    """Ctrl-C at these of the lines of a module that this runs; how many there are, and its error.

    Python looks for Ctrl-C after a call. So it does not look when it leaves a `with` block of a
    lock, nor at the begin of a `finally`, and neither does this.
    """
    found, inside = 0, dict[Any, set[int]]()
    paths = {each.__file__ for each in (module, also) if each}

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal found
        if frame.f_code.co_filename not in paths:
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        leaves = "with " in line and frame.f_lineno in inside.setdefault(frame, set())
        leaves |= "if mine in " in line or ".remove(mine)" in line
        inside.setdefault(frame, set()).add(frame.f_lineno)
        if event == "line" and not leaves and counts():
            found += 1
            if found in ends_at:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        do()
    except BaseException as error:  # noqa: BLE001 - compared by the caller
        return found, error
    finally:
        sys.settrace(before)
    return found, None


def looks(process: GroupProcess) -> int:
    """How often another thread's commit looks before it is its turn."""

    def work() -> int:
        client, write = GroupClient(), GroupWrite("20250106101200002", "b", 0, frozenset())
        with client.held:
            view = GroupView(GroupFence("a"), "v1", {}, frozenset())
            way = process.decide(client, view, [], write)
            found = 0
            while isinstance(request := next(way), Sleep) and request.woken is not None:
                found += 1
            way.close()
        return found

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(30)


def test_two_interrupts_at_any_line_leave_the_turn_to_the_next_thread() -> None:
    """Each commit of the process took a minute from then on."""

    def one(process: GroupProcess) -> None:
        client, write = GroupClient(), GroupWrite("20250106101200001", "a", 0, frozenset())
        view = GroupView(GroupFence("a"), "v1", {}, frozenset())
        with client.held:
            way = process.decide(client, view, [], write)
            run(way, open_store("memory://interrupted"), Clock())

    lines, error = lines_of(group_process, lambda: one(GroupProcess()), ())
    assert lines > 20 and error is None
    for first in range(1, lines + 1):
        for second in (0, *range(first + 1, first + 9)):
            process = GroupProcess()
            _, error = lines_of(group_process, partial(one, process), (first, second))
            assert type(error) is KeyboardInterrupt, first
            assert looks(process) == 0, (first, second)


def test_an_interrupt_at_any_line_leaves_the_handle_to_the_next_call(url: str) -> None:
    with Table(url) as table:
        table.append(rows("a"))
        lines, _ = lines_of(handle, lambda: table.append(rows("b")), ())
        assert lines > 20
        for at in range(1, lines + 1):
            _, error = lines_of(handle, lambda at=at: table.append(rows(f"{at}")), (at,))
            assert error is None or type(error) is KeyboardInterrupt, at
            assert not table._busy and not table._turn, at
        table.append(rows("last"))


@pytest.mark.parametrize("landed", [False, True])
def test_two_interrupts_while_a_commit_is_decided_do_not_say_that_it_was_not_offered(
    url: str, landed: bool
) -> None:
    with warm(url) as tables:
        table, put, begun = tables[0], tables[0].store.put, list[bool]()

        def once(key: str, *args: Any) -> Any:
            if key == FENCE_KEY and not begun:
                begun.append(True)
                if landed:
                    put(key, *args)
                raise KeyboardInterrupt
            return put(key, *args)

        table._upkeep.context.store.put = table.store.put = once  # type: ignore[method-assign]
        for second in count(1):
            begun.clear()
            write = partial(table.append, rows(f"x{second}"))
            counts, noting = (lambda: bool(begun)), group_refused
            found, error = lines_of(group_publish, write, (second,), counts, noting)
            said = []
            while error is not None:
                said += getattr(error, "__notes__", [])
                error = error.__context__
            assert any("once it was offered: another client may" in each for each in said), second
            assert not any("neither decided nor offered" in each for each in said), second
            if found < second:
                break
        assert second > 5
    assert values(url) == judged(url)


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


def test_the_fence_of_a_table_that_is_gone_is_not_newer_than_that_of_the_next_one() -> None:
    process = GroupProcess()
    process.made(GroupFence("one", table="before", round=9), "v", 0)
    assert process.is_shared(GroupFence("one", table="before", round=8))
    assert not process.is_shared(GroupFence("one", table="after", round=8))
    client = GroupClient(names=V6)
    client.knows(GroupFence("one", table="after", round=8), "v1")
    process.carry(client, GroupWrite("20250106101210000", "a", 0, frozenset()))
    assert client.version == "v1"


def test_a_commit_that_another_process_overtakes_is_offered_to_it(url: str) -> None:
    def overtake() -> None:
        with Table(url) as other:  # apart: it does not wait for the threads here
            other.append(rows("other"))

    with warm(url) as tables:
        done = beside(tables, lambda table, n: table.append(rows(f"{n}")), overtake)
        assert all(each.exception(0) is None for each in done)
    assert values(url) == judged(url) == expected("0", "1", "2", "3", "other")


def test_an_append_that_adds_a_column_finds_what_another_handle_has_overwritten(url: str) -> None:
    with Table(url) as table, Table(url) as another:
        table.append(rows("a"))
        another.append(rows("b"))
        table.overwrite(rows("c"), whole_table=True)
        published(table)
        client = another._upkeep.context.together[0]
        assert client.known.round < process_of(another).latest[0].round
        more = rows("d").append_column("more", pa.array(["x"]))
        another.append(more)
        published(another)
    assert values(url) == judged(url) == {"c": 0, "d": 0}


# --- table services ------------------------------------------------------------------------------


SERVICES: dict[str, Callable[[Table], Any]] = {
    "clean": Table.clean, "cluster": Table.cluster, "archive": Table.archive,
    "savepoint": Table.savepoint, "roll back": Table.roll_back_dead,
    "delete a savepoint": lambda table: table.delete_savepoint("20260101000000001"),
}  # fmt: skip


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_runs_while_a_thread_writes_with_the_handle(url: str, name: str) -> None:
    with Table(url) as table:
        table.append(rows("a"))
        published(table)
        ran: list[Any] = []

        def meanwhile(request: str) -> None:
            if request == FENCED and not ran:
                ran.append(None)
                thread = ThreadPoolExecutor(1)
                ran[0] = thread.submit(SERVICES[name], table).exception(60)
                thread.shutdown()

        spy(table, meanwhile)
        table.upsert(rows("a", "b", v=1), retries=2)
        assert ran == [None]
        table.append(rows("c"))
    assert values(url) == judged(url) == {"a": 1, "b": 1, "c": 0}


def test_the_writer_publishes_its_first_commit_after_a_clustering(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reserved instant was passed by the clustering, and is refused: that is over at once."""
    monkeypatch.setattr(group_ahead, "AHEAD_MS", 600_000)
    with Table(url) as table:
        for each in "abc":
            table.append(rows(each))
        table._upkeep.context.together[0].run = FAST_RUN_MAX
        table.cluster()
        table.append(rows("d"))
        fence, _ = run(read_group_fence(), open_store(url), Clock())
        assert [each.kind for each in fence.window[-3:]] == [COMMIT, REFUSED, COMMIT]
        assert fence.combiner == table._upkeep.context.together[0].name


def test_services_of_several_threads_take_turns_beside_writers(url: str) -> None:
    with Table(url) as table, ThreadPoolExecutor(2 * THREADS) as pool:
        table.append(rows("a"))

        def serve(_: int) -> None:
            for _ in range(3):
                table.clean()
                table.cluster()
                table.roll_back_dead()

        served = [pool.submit(serve, n) for n in range(THREADS)]
        wrote = [pool.submit(table.append, rows(f"{n}"), retries=9) for n in range(THREADS)]
        for each in (*served, *wrote):
            error = each.exception(60)
            assert error is None or isinstance(error, CommitConflict), error
    assert values(url) == judged(url) == dict.fromkeys(["a", *map(str, range(THREADS))], 0)


def test_a_service_of_a_table_without_group_commit_says_how_threads_use_it(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/t"
    with Table.create(url, record_key="id", commit="serial") as table:
        table._turn.append("another thread")
        with pytest.raises(LockkitError, match="open a Table of its own for each thread"):
            table.clean()
    with Table(table.url) as table:
        table._busy.append("another thread")
        with pytest.raises(LockkitError, match="open a Table of its own for each thread"):
            table.clean()


def test_a_clustering_beside_a_writer_and_its_upsert_keep_both_decisions(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer's thread is interrupted between the fence that it knows and that one's version."""
    monkeypatch.setattr(group_ahead, "AHEAD_MS", 600_000)
    right, left = group_view.view_of_known, [True]
    done: list[Any] = []
    with Table(url) as table, ThreadPoolExecutor(1) as pool:
        for each in "abcd":
            table.append(rows(each))
        table.clean()  # from now on all threads have its services

        def preempted(client: GroupClient, known: GroupFence) -> Any:
            if left and client.writing and client.writing.only:
                left.clear()
                done.append(pool.submit(table.cluster).result(60))
            return right(client, known)

        monkeypatch.setattr(group_commit, "view_of_known", preempted)
        table.upsert(rows("b", v=1))
        done.append(table.upsert(rows("a", v=1)))
        assert not left, "the upsert made a listing"
    fence, _ = run(read_group_fence(), open_store(url), Clock())
    assert {each.instant for each in done} <= {each.instant for each in fence.window}
    assert values(url) == judged(url) == dict.fromkeys("abcd", 0) | {"a": 1, "b": 1}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork beside threads
def test_a_forked_child_does_not_wait_for_what_a_thread_of_its_parent_held() -> None:
    child = get_context("fork").Process(target=group_process.process_of, args=("file:///t", ""))
    with group_process._OPENING:
        child.start()
    child.join(20)
    child.kill()
    assert child.exitcode == 0
