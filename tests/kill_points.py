"""Processes that are killed at each of their writes: a commit's, a rollback's and a clean's.

Real processes, by SIGKILL, on the embedded server: a proxy holds one write, before the store has it
or before its answer goes back, and then the process dies. What is left is looked at by a reader,
built on by another writer and tidied up by a cleaner. Nobody waits for the dead one's lease: the
fence decides without it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import count
from typing import Any

from table_world import AVRO, Holder, new_table, prepare_inserts, prepare_upserts, rows

from lockkit.clock import Clock
from lockkit.errors import LockLost
from lockkit.lab.faults import Fault, Proxy
from lockkit.lab.server import Emulator
from lockkit.lock.creation_check import TABLE_KEY
from lockkit.lock.handle import Lock
from lockkit.runtime import run
from lockkit.runtime.proven import create
from lockkit.stores import Store, open_store
from lockkit.table import (
    Prepared,
    begin,
    commit,
    load_snapshot,
    prepare,
    publish,
    read_slice,
    read_table,
    rewrite_group,
    roll_back,
    write_inserts,
)
from lockkit.table.format.properties import load_config
from lockkit.table.format.timeline import Timeline, load_timeline
from lockkit.table.occ.covered import load_rollback_plan
from lockkit.table.occ.fence import read_fence
from lockkit.table.occ.rollback import RollbackRefused, RolledBack
from lockkit.table.occ.transaction import TableCache
from lockkit.table.services.clean import carry_out, plan_clean, resume_clean
from lockkit.table.services.rules import CleanRules

BEFORE, AFTER = "before", "after"
BUCKET, LOCK = "lake", "table_lock.json"
CLAIM, RELEASE = "PUT table_lock.json: claimed", "PUT table_lock.json: released"
STRIKE_S_MAX = 60.0
CLOCK = Clock()
ONE = CleanRules(commits=1)


# --- who is killed --------------------------------------------------------------------------------


def writer(url: str, endpoint: str) -> None:
    """One commit in two partitions: changes k0, adds k1."""
    store = open_store(url, endpoint=endpoint)
    with closing(Lock(url, endpoint=endpoint)) as lock:
        publish(change_and_add(store), lock, store, CLOCK)


def change_and_add(store: Store) -> Prepared:
    transaction = run(begin(), store, CLOCK)
    (only,) = run(load_snapshot(covering=transaction.covered), store, CLOCK).slices
    old = run(read_slice(only), store, CLOCK)
    changed = rewrite_group(transaction.target, only, old, rows([0], amount=1))
    added = write_inserts(transaction.target, rows([1], region="US"), file_id=f"{CLOCK.unique()}-0")
    for file in (changed, added):
        run(create(file.key, file.body), store, CLOCK)
    way = prepare(transaction, [changed.stat, added.stat], schema=AVRO)
    return run(way, store, CLOCK)


def take_back(url: str, endpoint: str) -> None:
    """The rollback of the only pending instant, or the rest of one that another left."""
    finish_rollback(open_store(url, endpoint=endpoint))


def clean(url: str, endpoint: str) -> None:
    store = open_store(url, endpoint=endpoint)
    known = known_of(store)
    run(carry_out(run(plan_clean(known, ONE), store, CLOCK), known.config.names), store, CLOCK)


# --- what the living do ---------------------------------------------------------------------------


def known_of(store: Store) -> TableCache:
    return TableCache(*run(load_config(), store, CLOCK))


def timeline_of(store: Store) -> Timeline:
    return run(load_timeline(known_of(store).config.names), store, CLOCK)


def content(store: Store) -> dict[str, int]:
    found = read_table(store)
    keys, amounts = found["id"].to_pylist(), found["amount"].to_pylist()
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, amounts, strict=True))


def commit_beside(store: Store, prepared: Prepared) -> None:
    fence = run(read_fence(), store, CLOCK).fence
    run(commit(prepared, Holder(fence.epoch + 1 if fence else 1)), store, CLOCK)


def finish_rollback(store: Store) -> list[RolledBack | RollbackRefused]:
    """Nothing is pending any more."""
    known, now, done = known_of(store), timeline_of(store), []
    names, began = known.config.names, {}
    for instant in (each for each, action in now.pending.items() if action == "rollback"):
        plan = run(load_rollback_plan(names, instant), store, CLOCK)
        assert plan is not None
        began[plan.target] = instant
    for target in began.keys() | {i for i, action in now.pending.items() if action == "commit"}:
        fence = run(read_fence(), store, CLOCK).fence
        guard = Holder(fence.epoch + 1 if fence else 1)
        way = roll_back(target, guard, known, resume=began.get(target))
        done.append(run(way, store, CLOCK))
    assert not timeline_of(store).pending
    return done


def finish_clean(store: Store) -> int:
    """How many cleans had been left half done."""
    known, now = known_of(store), timeline_of(store)
    pending = [each for each, action in now.pending.items() if action == "clean"]
    for each in pending:
        snapshot = run(load_snapshot(), store, CLOCK)
        run(resume_clean(each, known.config.names, snapshot), store, CLOCK)
    plan = run(plan_clean(known, ONE), store, CLOCK)
    if plan.instant:
        run(carry_out(plan, known.config.names), store, CLOCK)
    return len(pending)


def data_files(store: Store) -> set[str]:
    return {each.key for each in store.list("") if each.key.endswith(".parquet")}


def written_by(store: Store, instants: list[str]) -> set[str]:
    ends = tuple(f"_{each}.parquet" for each in instants)
    return {each for each in data_files(store) if each.endswith(ends)}


# --- what is left of them -------------------------------------------------------------------------

NO, YES, NEXT = "no", "yes", "from the next commit on"
UNDECIDED = "if its writer is alive"
BY_PLAN, DONE, ANEW = "the next clean, by its plan", "itself", "the next clean, planned anew"
OLD, NEW = {"k0": 0}, {"k0": 1, "k1": 0}


def after_a_writer(store: Store, _: Any) -> str:
    first = content(store)
    assert first in (OLD, NEW), f"half of a commit: {first}"
    commit_beside(store, prepare_inserts(store, rows([9], region="AP")))
    then = content(store)
    assert then.pop("k9") == 0
    assert then in (OLD, NEW) and (first == OLD or then == NEW), (first, then)
    finish_rollback(store)
    assert content(store) == then | {"k9": 0}
    assert data_files(store) == written_by(store, timeline_of(store).commits)
    if then == OLD:
        return NO
    return YES if first == NEW else NEXT


def after_a_rollback(store: Store, target: Prepared) -> str:
    """Of one whose writer is alive, and wakes up before anybody goes on with the rollback."""
    assert content(store) == OLD
    refused = False
    try:
        commit_beside(store, target)
    except LockLost:
        refused = True
    now = content(store)
    assert now == (OLD if refused else NEW), now
    _nothing_is_left(store, RolledBack if refused else RollbackRefused)
    assert content(store) == now
    return NO if refused else UNDECIDED


def after_a_rollback_of_the_dead(store: Store, _: Any) -> str:
    assert content(store) == OLD
    _nothing_is_left(store, RolledBack)
    assert content(store) == OLD
    return NO


def _nothing_is_left(store: Store, end: type) -> None:
    assert all(isinstance(each, end) for each in finish_rollback(store))
    assert data_files(store) == written_by(store, timeline_of(store).commits)


def after_a_clean(store: Store, doomed: set[str]) -> str:
    assert content(store) == {"k0": 3}
    gone, left = not doomed & data_files(store), finish_clean(store)
    assert content(store) == {"k0": 3}
    assert not doomed & data_files(store) and not timeline_of(store).pending
    commit_beside(store, prepare_inserts(store, rows([9])))
    assert content(store) == {"k0": 3, "k9": 0}
    if left:
        return BY_PLAN
    return DONE if gone else ANEW


# --- kill points ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Story:
    """A table as it was, who works on it and is killed, and what becomes of it then."""

    title: str
    victim: Callable[[str, str], None]
    prepare: Callable[[Store], Any]
    judge: Callable[[Store, Any], str]
    writes: tuple[str, ...]
    """In their order; some go out together."""


def nothing_more(_: Store) -> None:
    return


def three_slices_more(store: Store) -> set[str]:
    """The files that a clean deletes, which keeps what the newest commit took the place of."""
    for amount in (1, 2, 3):
        commit_beside(store, prepare_upserts(store, rows([0], amount=amount)))
    kept = tuple(f"_{each}.parquet" for each in timeline_of(store).commits[-2:])
    return {each for each in data_files(store) if not each.endswith(kept)}


COMMIT = Story("a commit: is T visible?", writer, nothing_more, after_a_writer, (
    "PUT T.commit.requested", "PUT region=EU/….parquet", "PUT region=US/….parquet",
    "PUT region=US/.hoodie_partition_metadata", "PUT T.inflight", CLAIM, "PUT fence.json",
    "PUT T.commit", RELEASE,
))  # fmt: skip
ROLLBACK = Story("a rollback: is T visible?", take_back, change_and_add, after_a_rollback, (
    "PUT R.rollback.requested", "PUT fence.json", "PUT R.rollback.inflight",
    "DELETE region=EU/….parquet", "DELETE region=US/….parquet", "DELETE T.inflight",
    "DELETE T.commit.requested", "PUT R.rollback", "DELETE .heartbeat/T",
))  # fmt: skip
OF_THE_DEAD = replace(ROLLBACK, judge=after_a_rollback_of_the_dead)
CLEAN = Story("a clean: who deletes its files?", clean, three_slices_more, after_a_clean, (
    "PUT T.clean.requested", "PUT T.clean.inflight", "DELETE region=EU/….parquet, the first",
    "DELETE region=EU/….parquet, the last", "PUT T.clean",
))  # fmt: skip


@dataclass(frozen=True)
class Point:
    """One write of a process: the `nth` that it sends of this kind."""

    operation: str
    key: str
    """As a glob: instants and file ids are new each time."""
    nth: int
    label: str


NAMES = count()


def table_for(server: Emulator, story: Story) -> tuple[str, Store, Any]:
    url = f"s3://{BUCKET}/killed-{next(NAMES)}"
    store = new_table(url, endpoint=server.s3)
    commit_beside(store, prepare_inserts(store, rows([0])))
    return url, store, story.prepare(store)


def points_of(server: Emulator, nursery: Nursery, story: Story) -> list[Point]:
    """Every write of the victim, found by letting it live."""
    url, store, _ = table_for(server, story)
    target, since = next(iter(timeline_of(store).pending), ""), len(server.requests())
    nursery.bear(story.victim, url, server.s3)
    assert nursery.bury() == 0
    found: dict[tuple[str, str], list[Point]] = {}
    folder = url.removeprefix(f"s3://{BUCKET}/") + "/"
    for each in server.requests(since):
        if each["method"] in ("put", "delete") and each["key"].startswith(folder):
            key = each["key"].removeprefix(folder)
            if key == TABLE_KEY:  # how a new process tests write conditions: no part of a commit
                continue
            glob = re.sub(r"[0-9a-f-]{30,}|\d{17}", "*", key)
            same = found.setdefault((each["method"], glob), [])
            label = f"{each['method'].upper()} {_label(key, target)}"
            same.append(Point(each["method"], glob, len(same) + 1, label))
    points = [named for same in found.values() for named in _ends(same)]
    assert {each.label for each in points} == set(story.writes), points
    return sorted(points, key=lambda each: story.writes.index(each.label))


def _label(key: str, target: str) -> str:
    name = key.removeprefix(".hoodie/").removeprefix(".locks/")
    name = re.sub(r"/.*\.parquet$", "/….parquet", name)
    return re.sub(r"\d{17}", lambda at: "T" if at[0] == target or not target else "R", name)


def _ends(same: list[Point]) -> list[Point]:
    """Of writes that have one name the first and the last: a claim tries the store out, too."""
    if len(same) == 1:
        return same
    first, last = same[0], same[-1]
    if LOCK in first.label:
        return [replace(first, label=CLAIM), replace(last, label=RELEASE)]
    return [replace(first, label=f"{first.label}, the first"),
            replace(last, label=f"{last.label}, the last")]  # fmt: skip


def kill(server: Emulator, nursery: Nursery, story: Story, point: Point, when: str) -> str:
    """What became of the table, in the words of the story."""
    url, store, prepared = table_for(server, story)
    struck = threading.Event()
    with Proxy(server.s3, on_fault=lambda _: struck.set()) as proxy:
        proxy.inject(
            Fault("hang", when=when, operation=point.operation, key=point.key, nth=point.nth)
        )
        child = nursery.bear(story.victim, url, proxy.url)
        assert struck.wait(STRIKE_S_MAX), f"{point} was never sent"
        if point.label == RELEASE:  # goes out beside the completed file
            assert _until(lambda: len(timeline_of(store).commits) == 2)
        os.kill(child, signal.SIGKILL)
        assert nursery.bury() == signal.SIGKILL
    return story.judge(store, prepared)


def survive(server: Emulator, point: Point, what: Callable[..., Fault]) -> None:
    """A writer that gets no answer to one write, and goes on."""
    url, store, _ = table_for(server, COMMIT)
    with Proxy(server.s3) as proxy:
        proxy.inject(what(operation=point.operation, key=point.key, nth=point.nth))
        writer(url, proxy.url)
        assert proxy.faults, f"{point} was never sent"
    assert content(store) == NEW
    assert after_a_writer(store, None) == YES


def _until(true: Callable[[], bool]) -> bool:
    for _ in range(1000):
        if true():
            return True
        CLOCK.sleep(0.01)
    return False


Row = tuple[str, str, str]
"""A write; what became of the table when it was killed before it landed, and after."""


def measure(server: Emulator, nursery: Nursery, story: Story) -> list[Row]:
    found = []
    for point in points_of(server, nursery, story):
        before, after = (kill(server, nursery, story, point, when) for when in (BEFORE, AFTER))
        for when, outcome in ((BEFORE, before), (AFTER, after)):
            if outcome == UNDECIDED:
                assert kill(server, nursery, OF_THE_DEAD, point, when) == NO
        found.append((point.label, before, after))
    return found


def table_of(stories: dict[Story, list[Row]]) -> str:
    """The table of docs/concepts/guarantees.md."""
    lines = ["| killed at | before it landed | before it was answered |", "|---|---|---|"]
    for story, found in stories.items():
        lines.append(f"| **{story.title}** | | |")
        lines += [f"| `{label}` | {before} | {after} |" for label, before, after in found]
    return "\n".join(lines) + "\n"


# --- processes ------------------------------------------------------------------------------------


class Nursery:
    """One process that imports everything once, and forks those that will be killed."""

    def __init__(self, program: str = __file__) -> None:
        self._program = program
        """It defines the victims and calls `main` with them."""

    def __enter__(self) -> Nursery:
        self._process = subprocess.Popen(
            [sys.executable, self._program],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=10)

    def bear(self, victim: Callable[..., None], *place: str) -> int:
        """The process id of a new one; one at a time."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([victim.__name__, *place]) + "\n")
        self._process.stdin.flush()
        return self._told()

    def bury(self) -> int:
        """How it ended, as `os.wait` says."""
        return self._told()

    def _told(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


def main(victims: Mapping[str, Any]) -> None:
    # pyarrow loads pandas, if it can, for the first list. polars is left out: a fork may block it.
    for each in (
        "boto3", "pandas", "pyarrow.parquet", "lockkit.stores.s3", "lockkit.table.arrow_write",
    ):  # fmt: skip
        import_module(each)
    for line in sys.stdin:
        victim, *place = json.loads(line)
        child = os.fork()
        if not child:
            status = 1
            try:
                victims[victim](*place)
                status = 0
            except BaseException:
                traceback.print_exc()
                raise
            finally:
                os._exit(status)
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)


if __name__ == "__main__":
    main(globals())
