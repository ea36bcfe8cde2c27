"""Each guarantee of the table, attacked by PySpark processes: a JVM each, at one object server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from spark_world import APART

from lockkit.clock import Clock
from lockkit.lock.handle import Lock
from lockkit.runtime import run
from lockkit.stores import Store, open_store
from lockkit.table import Snapshot, load_snapshot, read_table
from lockkit.table.format.properties import load_config
from lockkit.table.format.timeline import load_timeline
from lockkit.table.occ.failed import dead_instants
from lockkit.table.occ.liveness import end
from lockkit.table.occ.rollback import RolledBack, roll_back
from lockkit.table.occ.transaction import TableCache
from lockkit.table.read.reader import read_increment, read_slice

pytestmark = [
    pytest.mark.soak,  # in `make test`, test_guarantees.py plays the same in any schedule
    pytest.mark.xdist_group("spark processes"),
    *APART,
]

ROOT = Path(__file__).parents[1]
WRITERS, ROUNDS = 3, 2
PULL_PAUSE_S = 0.1
REGIONS = ("EU", "US", "ASIA")
KEYS = {"record_key": "id", "precombine": "at", "partition_path": "region"}
WROTE = "note wrote"
CLOCK = Clock()


class Writer:
    """A process that writes as it is told, and tells what came of it."""

    def __init__(self, name: str, log: Path) -> None:
        path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        self.log = log
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(ROOT / "tests/guarantees_writer.py"), name],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                env={**os.environ, "PYTHONPATH": path},
            )  # fmt: skip

    def tell(self, do: str = "", **order: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **order}) + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()[-2000:]
        return json.loads(line)  # type: ignore[no-any-return]

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def writers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Writer]]:
    folder = tmp_path_factory.mktemp("writers")
    started = [Writer(f"W{n}", folder / f"W{n}.log") for n in range(WRITERS)]
    try:
        for each in started:
            assert each.hear()["ready"] == each.process.pid
        yield started
    finally:
        for each in started:
            each.close()


@dataclass
class Place:
    """A table of one test's own."""

    url: str
    endpoint: str

    @property
    def order(self) -> dict[str, Any]:
        return {"place": {"url": self.url, "endpoint": self.endpoint}}

    @property
    def store(self) -> Store:
        return open_store(self.url, endpoint=self.endpoint)

    def rows(self) -> list[tuple[str, int]]:
        now = read_table(self.store)
        return sorted(zip(now["id"].to_pylist(), now["v"].to_pylist(), strict=True))


@pytest.fixture
def place(shared_emulator: Any, bucket: str) -> Place:
    return Place(f"s3://{bucket}/orders", shared_emulator.s3)


def all_at_once(writers: list[Writer], orders: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each writes its files; when the last has, all of them commit."""
    for each, order in zip(writers, orders, strict=True):
        each.tell("write_rows", pause=WROTE, **order)
    answers = [each.hear() for each in writers]
    for each, said in zip(writers, answers, strict=True):
        if "at" in said:
            each.tell()
    return [
        each.hear() if "at" in said else said for each, said in zip(writers, answers, strict=True)
    ]


# --- many at one key, and readers beside them -----------------------------------------------------


@dataclass
class Seen:
    """What a busy table's readers saw, and what its writers were told."""

    place: Place
    answers: list[dict[str, Any]]
    windows: list[tuple[str, str, list[tuple[str, int, str]]]]
    snapshot: Snapshot
    looks: list[Any]


@pytest.fixture(scope="module")
def busy(writers: list[Writer], shared_emulator: Any) -> Seen:
    """All add one to the same two rows, again and again; others pull, and look at one snapshot."""
    place = Place("s3://guarantees/busy", shared_emulator.s3)
    first = {"rows": [["a", "EU", 0, 0], ["b", "EU", 0, 0]], "operation": "insert"}
    writers[0].tell("write_rows", **first, **KEYS, **place.order, version=9)
    assert writers[0].hear()["instant"]
    store, done = place.store, threading.Event()
    seen = Seen(place, [], [], run(load_snapshot(), store, CLOCK), [])

    def work(mine: Writer) -> None:
        for _ in range(ROUNDS):
            mine.tell("add_one", ids=["a", "b"], retries=40, **place.order)
            seen.answers.append(mine.hear())

    def pull() -> None:
        start, last = "", False
        while not last:
            last = done.wait(PULL_PAUSE_S)
            rows, increment = read_increment(store, start, meta=True)
            if increment.end != start:
                columns = (rows[name].to_pylist() for name in ("id", "v", "_hoodie_commit_time"))
                window = sorted(zip(*columns, strict=True))
                seen.windows.append((start, increment.end, window))
                start = increment.end
            seen.looks.append([run(read_slice(of), store, CLOCK) for of in seen.snapshot.slices])

    with ThreadPoolExecutor(WRITERS + 1) as pool:
        reader, working = pool.submit(pull), [pool.submit(work, each) for each in writers]
        try:
            for each in working:
                each.result()
        finally:
            done.set()
        reader.result()
    return seen


def test_upserts_of_three_processes_never_duplicate_and_lose_nothing(busy: Seen) -> None:
    """An insert's rows, brought up to date by retried upserts: nothing is added to an old sum."""
    assert all(each.get("instant") for each in busy.answers), busy.answers
    assert len(busy.answers) == WRITERS * ROUNDS
    assert busy.place.rows() == [("a", len(busy.answers)), ("b", len(busy.answers))]


def test_a_puller_beside_them_gets_every_change_in_order_and_once(busy: Seen) -> None:
    ends = [stop for _, stop, _ in busy.windows]
    assert [start for start, *_ in busy.windows] == ["", *ends[:-1]] and ends == sorted(ends)
    counts = [{key: v for key, v, _ in rows} for *_, rows in busy.windows]
    assert len(counts) > 1, "all came in one window"
    assert all(set(each) == {"a", "b"} and each["a"] == each["b"] for each in counts)
    assert [each["a"] for each in counts] == sorted({each["a"] for each in counts})
    assert counts[-1]["a"] == len(busy.answers)
    instants = [instant for *_, rows in busy.windows for *_, instant in rows]
    assert len(set(instants)) == len(busy.windows), "a commit came in two windows"


def test_a_snapshot_beside_them_never_changes(busy: Seen) -> None:
    assert len(busy.looks) > 2
    assert all(look == busy.looks[0] for look in busy.looks)
    assert sorted(v for each in busy.looks[0] for v in each["v"].to_pylist()) == [0, 0]
    now = run(load_snapshot(), busy.place.store, CLOCK)
    assert set(now.groups.values()).isdisjoint(busy.snapshot.groups.values())


# --- all at the same time -------------------------------------------------------------------------


def test_of_three_processes_on_one_file_group_exactly_one_commits(
    writers: list[Writer], place: Place
) -> None:
    how = {**KEYS, **place.order, "mode": "hudi", "buckets": 1}
    writers[0].tell("write_rows", rows=[["a", "EU", 0, 0]], **how)
    assert writers[0].hear()["instant"]
    answers = all_at_once(
        writers, [{"rows": [[f"w{n}", "EU", 1, n]], **how} for n in range(WRITERS)]
    )
    winners = [n for n, each in enumerate(answers) if each.get("instant")]
    refused = [each for each in answers if each.get("error") == "CommitConflict"]
    assert len(winners) == 1 and len(refused) == WRITERS - 1, answers
    assert all("region=EU" in each["text"] and "start again" in each["text"] for each in refused)
    assert place.rows() == [("a", 0), (f"w{winners[0]}", winners[0])]


def test_three_processes_on_different_file_groups_all_commit(
    writers: list[Writer], place: Place
) -> None:
    how = {**KEYS, **place.order}
    writers[0].tell("write_rows", rows=[["a", region, 0, 0] for region in REGIONS], **how)
    assert writers[0].hear()["instant"]
    answers = all_at_once(
        writers, [{"rows": [["a", region, 1, n]], **how} for n, region in enumerate(REGIONS)]
    )
    assert len({each.get("instant") for each in answers} - {None}) == WRITERS, answers
    assert place.rows() == [("a", 0), ("a", 1), ("a", 2)]


@pytest.mark.parametrize("operation", ["insert", "bulk_insert"])
def test_inserts_of_one_key_by_three_processes_are_three_rows_and_without_duplicates_in_one_none(
    writers: list[Writer], place: Place, operation: str
) -> None:
    how = {**KEYS, **place.order, "operation": operation}
    answers = all_at_once(writers, [{"rows": [["x", "EU", 1, n]], **how} for n in range(WRITERS)])
    assert all(each.get("instant") for each in answers), answers
    assert place.rows() == [("x", 0), ("x", 1), ("x", 2)]
    alone = {"options": {"hoodie.datasource.write.insert.drop.duplicates": "true"}}
    rows = [["x", "EU", 2, 9], ["y", "EU", 1, 7], ["y", "EU", 2, 8]]
    writers[1].tell("write_rows", rows=rows, **how, **alone)
    assert writers[1].hear()["instant"]
    assert place.rows() == [("x", 0), ("x", 1), ("x", 2), ("y", 8)]


@pytest.mark.parametrize("retries", [0, 1])
@pytest.mark.parametrize("first", ["the overwrite", "the upsert"])
@pytest.mark.parametrize("overwrite", ["insert_overwrite", "insert_overwrite_table"])
def test_an_overwrite_and_an_upsert_of_one_new_key_by_two_processes_never_double_it(
    writers: list[Writer], place: Place, overwrite: str, first: str, retries: int
) -> None:
    """Both have written their files before either commits, and then each order of the two."""
    how = {**KEYS, **place.order}
    writers[0].tell("write_rows", rows=[["old", "EU", 0, 0]], **how)
    assert writers[0].hear()["instant"]
    both = {"the overwrite": (writers[0], overwrite, 1), "the upsert": (writers[1], "upsert", 2)}
    for writer, operation, v in both.values():
        order = {"rows": [["k", "EU", 1, v]], "operation": operation, "retries": retries}
        writer.tell("write_rows", pause=WROTE, **order, **how)
    assert all(writer.hear()["at"] for writer, *_ in both.values())
    answers = {}
    for each in sorted(both, key=lambda each: each != first):
        both[each][0].tell()
        answers[each] = both[each][0].hear()
    (last,) = both.keys() - {first}
    assert answers[first].get("instant"), answers
    refused = (
        answers[last].get("error") == "CommitConflict" and "start again" in answers[last]["text"]
    )
    assert answers[last].get("instant") if retries else refused, answers
    v = both[last if retries else first][2]
    # An overwrite removes the old row, also one that is retried after the upsert.
    kept = [("old", 0)] if (first, retries) == ("the upsert", 0) else []
    assert place.rows() == [("k", v), *kept]
    writers[2].tell("write_rows", rows=[["k", "EU", 2, 9]], **how)
    assert writers[2].hear()["instant"]
    assert place.rows() == [("k", 9), *kept]


def test_of_three_processes_one_adds_a_column_and_no_other_hides_or_changes_it(
    writers: list[Writer], place: Place
) -> None:
    how = {**KEYS, **place.order}
    writers[0].tell("write_rows", rows=[["a", "EU", 0, 0]], **how)
    assert writers[0].hear()["instant"]
    old = "id string, region string, at long, v long"
    columns = [f"{old}, w long", f"{old}, w string", old]
    rows: list[list[Any]] = [["a", "US", 1, 1, 7], ["a", "ASIA", 1, 2, "x"], ["a", "EU", 1, 3]]
    answers = all_at_once(
        writers, [{"rows": [r], "columns": c, **how} for r, c in zip(rows, columns, strict=True)]
    )
    refused = [each for each in answers if not each.get("instant")]
    assert refused and all(each["error"] == "CommitConflict" for each in refused), answers
    assert all("changed the table's columns" in each["text"] for each in refused)
    writers[0].tell("write_rows", rows=[rows[0]], columns=columns[0], **how)
    writers[1].tell("write_rows", rows=[rows[1]], columns=columns[1], **how)
    again = [each.hear() for each in writers[:2]]
    assert sum("instant" in each for each in again) == 1, again
    now = read_table(place.store)
    assert {7, "x"} & set(now["w"].to_pylist()), "a column that was committed is seen"


# --- one writer, and one writer's lock ------------------------------------------------------------


def take_back_all_pending(place: Place) -> list[Any]:
    """As the only writer of a table does before it begins (EAGER)."""
    store = place.store
    known = TableCache(*run(load_config(), store, CLOCK))
    now = run(load_timeline(known.config.names), store, CLOCK)
    done = []
    for heartbeat in run(dead_instants(known.config.names, now, "EAGER"), store, CLOCK):
        assert run(end(heartbeat), store, CLOCK)
        with Lock(place.url, endpoint=place.endpoint) as lock:
            done.append(run(roll_back(heartbeat.instant, lock.fence, known), store, CLOCK))
    return done


def test_three_writers_then_one_then_three_again_lose_nothing(
    writers: list[Writer], place: Place
) -> None:
    """The second was only asleep when the first became the table's only writer."""
    how = {**KEYS, **place.order}
    first, asleep, third = writers
    first.tell("write_rows", rows=[["a", "EU", 0, 0]], **how)
    assert first.hear()["instant"]
    asleep.tell("write_rows", rows=[["z", "US", 1, 1]], stall=WROTE, **how)
    assert asleep.hear()["at"].startswith(WROTE)
    (gone,) = take_back_all_pending(place)
    assert isinstance(gone, RolledBack) and gone.deleted
    first.tell("write_rows", rows=[["a", "EU", 1, 5]], **how)
    assert first.hear()["instant"]
    os.kill(asleep.process.pid, signal.SIGCONT)
    answers = asleep.hear()
    assert answers.get("error") in ("HeartbeatLost", "LockLost", "CommitConflict"), answers
    assert place.rows() == [("a", 5)]
    again = [{"rows": [[f"w{n}", region, 1, n]], **how} for n, region in enumerate(REGIONS)]
    assert all(each.get("instant") for each in all_at_once([first, asleep, third], again))
    assert place.rows() == [("a", 5), ("w0", 0), ("w1", 1), ("w2", 2)]


def test_one_writers_lock_in_two_threads_is_refused(writers: list[Writer], place: Place) -> None:
    """Hudi's caveat: two threads of one client would mix their transactions."""
    writers[0].tell("two_threads", **KEYS, **place.order)
    answers = writers[0].hear()
    assert answers["first"] and "two threads need a handle each" in answers["second"], answers
    assert place.rows() == [("a", 1)]
