"""Short writes beside Hudi: from a handle's second write on, the lock is held until the commit.

Then the table is read once, with the claim of the lock. Judged by a dictionary and by hudi-rs.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deaths import AtRequest, Died, Mortal, Send
from test_savepoints import COW, MOR, OPTIONS, Model, by_hudi_rs, contents, made, rows

from lockkit.clock import Clock
from lockkit.errors import LockBusy
from lockkit.lab.server import Emulator
from lockkit.runtime import run
from lockkit.table import Table
from lockkit.table.errors import HeartbeatExpired, TableChanged
from lockkit.table.format.log_blocks import COMMAND, blocks
from lockkit.table.occ.heartbeat import Heartbeat
from lockkit.table.occ.heartbeat_rules import HeartbeatRules
from lockkit.table.occ.held import LockReads
from lockkit.table.occ.liveness import HEARTBEATS
from lockkit.table.occ.markers import LISTED, MARKERS, files_of
from lockkit.table.services.context import StoreHost
from lockkit.table.write import groups
from lockkit.table.write.groups import own_files

KINDS = [(6, COW), (6, MOR), (9, COW), (9, MOR)]
REQUESTS_MAX = 60
EAGER = OPTIONS | {"hoodie.write.concurrency.mode": "single_writer",
                   "hoodie.cleaner.policy.failed.writes": "EAGER"}  # fmt: skip
BEFORE = {"k0": 2, "k1": 1, "k2": 1}
pytestmark = pytest.mark.timeout(600)
of_each_kind = pytest.mark.parametrize(("version", "kind"), KINDS)


@contextmanager
def warm(place: Path, version: int, kind: str) -> Iterator[Table]:
    """A handle whose next write is short."""
    with made(place, version, "hudi", kind=kind) as table:
        table.upsert(rows("k0", "k1", "k2", v=1))
        table.upsert(rows("k0", v=2))
        assert contents(table.read()) == BEFORE
        yield table


@contextmanager
def through(table: Table, store: Any) -> Iterator[None]:
    """It sends the requests of the table, and none of the lock's; it has the handle's own files."""
    right = table.store
    groups._OF_STORE[store] = own_files(right)
    table.store = store
    try:
        yield
    finally:
        table.store = right


def ten_rows(table: Table, server: Emulator, writes: int) -> list[Any]:
    """The requests of the last of these upserts of ten rows."""
    for v in range(writes):
        since = len(server.requests())
        table.upsert(rows(*(f"k{n}" for n in range(10)), v=v))
    sent = server.requests(since)
    assert set(contents(table.read()).values()) == {writes - 1}
    return sent


FENCED = {"commit": "serial"}
HUDI = {"mode": "hudi", "index": "BUCKET"}


@pytest.mark.parametrize(("how", "one", "four"), [
    (FENCED | {"version": 9}, 10, 13), (FENCED | {"version": 6}, 10, 13),
    (FENCED | {"table_type": MOR}, 10, 13),
    (HUDI | {"version": 9}, 12, 15), (HUDI | {"version": 6}, 12, 15),
    (HUDI | {"version": 9, "table_type": MOR}, 12, 15),
    (HUDI | {"version": 6, "table_type": MOR}, 12, 15),
], ids=str)  # fmt: skip
def test_ten_rows_take_twelve_requests_and_one_for_each_further_file(
    how: dict[str, Any], one: int, four: int
) -> None:
    for buckets, most in ((1, one), (4, four)):
        with Emulator() as server, Table.create(
            "s3://lake/t", endpoint=server.s3, record_key="id", buckets=buckets, options=OPTIONS,
            **how,
        ) as table:  # fmt: skip
            sent = ten_rows(table, server, 5)
            assert sum(not each["key"].startswith("t/.hoodie/") for each in sent) == buckets, sent
            assert len(sent) == most, sent


@of_each_kind
def test_after_a_commit_of_another_writer_it_reads_the_table_and_holds_the_lock_no_longer(
    tmp_path: Path, version: int, kind: str
) -> None:
    def holds() -> bool:
        """Whether the next upsert holds the lock while its data file is written."""
        found = list[bool]()

        def looks(send: Send) -> Any:
            with Table(table.url, options=OPTIONS) as other:
                found.append(other.lock.locked())
            return send()

        with through(table, AtRequest(table.store, puts_rows, looks)):
            table.upsert(rows("k0", v=9))
        return found == [True]

    with warm(tmp_path, version, kind) as table:
        assert holds() and holds()
        with Table(table.url, options=OPTIONS) as other:
            other.upsert(rows("k0", "k3", v=5))
        assert not holds() and holds()
        assert contents(table.read()) == BEFORE | {"k0": 9, "k3": 5} == by_hudi_rs(tmp_path)


def puts_rows(name: str, key: Any) -> bool:
    return name == "put" and not str(key).startswith(".hoodie/")


def begins(name: str, key: Any) -> bool:
    return name == "put" and str(key).endswith(".inflight")


def log_files(place: Path) -> set[Path]:
    """Those with rows."""
    return {each for each in place.rglob(".*.log.*")
            if ".hoodie" not in each.parts
            and any(of.kind != COMMAND for of in blocks(each.name, each.read_bytes()))}


def every(step: int, of: Callable[[int], bool]) -> None:
    """Call `of` with 0, `step`, ... until it is false."""
    for most in range(0, REQUESTS_MAX, step):
        if not of(most):
            return
    raise AssertionError(f"it had more than {REQUESTS_MAX} requests")


at_each_step = pytest.mark.parametrize(("version", "kind", "step"), [
    (9, COW, 5), *(pytest.param(*each, 1, marks=pytest.mark.soak) for each in KINDS),
])  # fmt: skip


@at_each_step
@pytest.mark.parametrize("sent", [False, True])
def test_a_process_that_dies_at_any_request_leaves_all_rows_or_none_and_blocks_nobody(
    tmp_path: Path, version: int, kind: str, sent: bool, step: int
) -> None:
    def dies(most: int) -> bool:
        place = tmp_path / str(most)
        with warm(place, version, kind) as table:
            mortal = Mortal(table.store, most, sent=sent)
            with through(table, mortal), pytest.MonkeyPatch.context() as patched:
                patched.setattr(table.lock, "release", lambda: None)  # its lease is left
                with suppress(Died):
                    table.upsert(rows("k1", "k4", v=7))
        goes_on(place, version, BEFORE | {"k1": 7, "k4": 7})
        return mortal.struck

    every(step, dies)


def goes_on(place: Path, version: int, committed: Model) -> None:
    """Others find all of the rows or none, roll the dead one back, and write."""
    (place / ".hoodie/.locks/table_lock.json").unlink(missing_ok=True)  # its lease has ended
    with Table(place.as_uri(), options=EAGER) as other:
        found = contents(other.read())
        assert found in (BEFORE, committed)
        other.upsert(rows("k2", v=8))
        other.roll_back_dead()
        assert contents(other.read()) == found | {"k2": 8} == by_hudi_rs(place)
    shutil.rmtree(place)


@at_each_step
def test_another_writer_at_any_request_waits_and_no_row_is_lost(
    tmp_path: Path, version: int, kind: str, step: int
) -> None:
    def meanwhile(most: int) -> bool:
        place, left, busy = tmp_path / str(most), [most], list[bool]()

        def due(_name: str, _key: Any) -> bool:
            left[0] -= 1
            return left[0] == -1

        def acts(send: Send) -> Any:
            with Table(table.url, options=OPTIONS, lock={"acquire_timeout": 0.0}) as other:
                try:
                    other.upsert(rows("k1", "k5", v=6))
                    busy.append(False)
                except LockBusy:
                    busy.append(True)
            return send()

        with warm(place, version, kind) as table:
            at = AtRequest(table.store, due, acts)
            with through(table, at):
                table.upsert(rows("k0", v=7), retries=2)
            expected = BEFORE | {"k0": 7} | ({} if all(busy) else {"k1": 6, "k5": 6})
            assert contents(table.read()) == expected == by_hudi_rs(place)
            assert not table.store.list(HEARTBEATS) and not table.store.list(MARKERS)
        shutil.rmtree(place)
        return at.struck

    every(step, meanwhile)


def test_after_its_commit_its_heartbeat_and_its_markers_are_deleted_in_parallel(
    tmp_path: Path
) -> None:
    beside, found = threading.Event(), list[bool]()

    def ends(name: str, key: Any) -> bool:
        if name == "delete" and str(key).startswith(MARKERS):
            beside.set()
        return name == "delete" and str(key).startswith(HEARTBEATS)

    def waits(send: Send) -> Any:
        found.append(beside.wait(10))
        return send()

    with warm(tmp_path, 6, MOR) as table, through(table, AtRequest(table.store, ends, waits)):
        table.upsert(rows("k0", v=7))
    assert found == [True]


def test_what_is_read_with_a_claim_that_is_not_the_last_does_not_count(tmp_path: Path) -> None:
    with warm(tmp_path, 9, COW) as table:
        reads = LockReads(table._open())
        run(reads.prefetch(True), table.store, Clock())
        assert reads.found is not None
        before = reads.found.timeline.commits
        table.upsert(rows("k0", v=3))
        run(reads.prefetch(False), table.store, Clock())
        assert reads.found is None
        run(reads.prefetch(True), table.store, Clock())
        assert reads.found is not None and len(reads.found.timeline.commits) == len(before) + 1


def reads_of(table: Table) -> LockReads:
    host = StoreHost(replace(table._upkeep.context, store=table.store), HeartbeatRules())
    return LockReads(table._open(), "commit", host.first_beat)


def beats(table: Table) -> list[str]:
    return [each.key.removeprefix(HEARTBEATS) for each in table.store.list(HEARTBEATS)]


def test_its_heartbeat_begins_with_the_first_claim_and_counts_only_if_that_is_granted(
    tmp_path: Path
) -> None:
    with warm(tmp_path, 9, COW) as table:
        reads = reads_of(table)
        run(reads.prefetch(True), table.store, Clock())
        assert beats(table) == [reads.instant] and reads.instant
        for claiming in (False, True):
            run(reads.prefetch(claiming), table.store, Clock())
            assert not reads.instant and len(beats(table)) == 1
        assert run(reads.beat_of(beats(table)[0]), table.store, Clock()) is None
        assert not beats(table)


def test_the_heartbeat_of_another_writer_at_the_instant_that_it_did_not_take_stays(
    tmp_path: Path
) -> None:
    with warm(tmp_path, 6, COW) as table:
        reads = reads_of(table)
        run(reads.prefetch(True), table.store, Clock())
        (of,) = beats(table)
        (tmp_path / HEARTBEATS / of).write_bytes(b"")  # as Hudi does
        run(reads.beat_of(""), table.store, Clock())
        assert beats(table) == [of]


@of_each_kind
def test_a_write_that_does_not_get_the_lock_leaves_no_heartbeat(
    tmp_path: Path, version: int, kind: str
) -> None:
    with warm(tmp_path, version, kind) as table, Table(table.url, options=OPTIONS) as other:
        table.lock.acquire_timeout = 0.0
        with other.lock, pytest.raises(LockBusy):
            table.upsert(rows("k0", v=7))
        assert not beats(table)


@pytest.mark.parametrize("changed", [False, True])
def test_several_log_files_have_one_list_of_markers_and_where_they_are_made_anew_none(
    tmp_path: Path, changed: bool
) -> None:
    """Where there is a list, Hudi reads no single markers."""
    found = list[tuple[int, int]]()

    def looks(send: Send) -> Any:
        names = [each.key.removeprefix(MARKERS) for each in table.store.list(MARKERS)]
        marked = run(files_of(names[0].partition("/")[0]), table.store, Clock())
        found.append((sum(each.endswith(LISTED) for each in names), len(marked)))
        return send()

    with warm(tmp_path, 6, MOR) as table:
        if changed:
            with Table(table.url, options=OPTIONS) as other:
                other.upsert(rows("k0", "k3", v=5))
        with through(table, AtRequest(table.store, puts_rows, looks)):
            table.upsert(rows("k0", "k3", v=9))
        ((lists, marked),) = found
        assert (lists, marked) in ([(0, 1), (0, 2)] if changed else [(1, 2)])
        assert not table.store.list(MARKERS)
        assert contents(table.read()) == BEFORE | {"k0": 9, "k3": 9} == by_hudi_rs(tmp_path)


@pytest.mark.parametrize(("version", "kind"), [(9, COW), (6, MOR)])
def test_a_writer_whose_heartbeat_expires_under_the_lock_does_not_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, kind: str
) -> None:
    """In version 6 it puts no log file either, which may count as committed one day."""
    begun = list[str]()

    def alive(heart: Heartbeat) -> None:
        if begun:
            raise HeartbeatExpired(heart.instant, "it slept")

    def sent(send: Send) -> Any:
        begun.append("")
        return send()

    with warm(tmp_path, version, kind) as table:
        monkeypatch.setattr(Heartbeat, "assert_alive", alive)
        at, before = AtRequest(table.store, begins, sent), log_files(tmp_path)
        with through(table, at), pytest.raises(HeartbeatExpired):
            table.upsert(rows("k0", v=7))
        assert log_files(tmp_path) == before
        assert contents(table.read()) == BEFORE == by_hudi_rs(tmp_path)


def test_before_version_8_a_request_that_hudi_wrote_over_ours_refuses_the_write(
    tmp_path: Path
) -> None:
    """Hudi before 1.0 takes its instants without the lock, and through S3A without a condition."""
    def requests(name: str, key: Any) -> bool:
        return name == "put" and str(key).endswith(".requested")

    def taken_twice(send: Send) -> Any:
        done = send()
        (tmp_path / at.at).write_bytes(b"")
        return done

    with warm(tmp_path, 6, COW) as table:
        at = AtRequest(table.store, requests, taken_twice)
        with through(table, at), pytest.raises(TableChanged, match="is another writer's, too"):
            table.upsert(rows("k0", v=7))
        assert contents(table.read()) == BEFORE == by_hudi_rs(tmp_path)
