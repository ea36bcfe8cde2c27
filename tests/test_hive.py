"""The Hive Metastore's lock against a real one: its queue, its silences, its lost answers."""

from __future__ import annotations

import itertools
import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hive_metastore import ttypes as hive
from lock_world import Suspendable, Tale, until
from metastore_client import connected
from service_world import Wire

from lockkit.cli.main import main
from lockkit.errors import LockBusy, LockLost, NoAnswer, StoreError
from lockkit.lock.handle import UnprovenRelease
from lockkit.providers.hive import HiveMetastoreLock, seconds
from lockkit.providers.hive_thrift import ShowLocksResponse, ShownLock
from lockkit.providers.hive_wire import MetastoreConnection, servers, uris_of_site
from lockkit.spark.connect import free_port

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("hive")]

_TABLES = itertools.count()


@pytest.fixture
def table() -> str:
    return f"orders_{next(_TABLES)}"


@pytest.fixture
def make(metastore: Any, table: str) -> Iterator[Callable[..., HiveMetastoreLock]]:
    """Handles of this test's own lock, closed when it ends."""
    made: list[HiveMetastoreLock] = []

    def lock(at: str = "", **options: Any) -> HiveMetastoreLock:
        uris = f"thrift://{at or metastore.address}"
        made.append(HiveMetastoreLock(uris, "lake", table, **options))
        return made[-1]

    yield lock
    for each in made:
        each.close()


class Beside:
    """A client beside the lock: what the metastore really has of one table."""

    def __init__(self, address: str, table: str) -> None:
        self._address, self._table = address, table

    def queue(self) -> list[tuple[int, int]]:
        """(id, state) of each request; 1 is granted, 2 is waiting."""
        asked = hive.ShowLocksRequest(dbname="lake", tablename=self._table)
        with connected(self._address) as client:
            return sorted((row.lockid, row.state) for row in client.show_locks(asked).locks)

    def ask_as_hudi(self) -> tuple[int, int]:
        """As the Java client does: its thrift class leaves the operation UNSET."""
        what = hive.LockComponent(
            type=hive.LockType.EXCLUSIVE, level=hive.LockLevel.TABLE, dbname="lake",
            tablename=self._table, operationType=hive.DataOperationType.UNSET,
        )  # fmt: skip
        with connected(self._address) as client:
            said = client.lock(hive.LockRequest(component=[what], user="hudi", hostname="there"))
        return said.lockid, said.state

    def unlock(self, lock_id: int) -> None:
        with connected(self._address) as client:
            client.unlock(hive.UnlockRequest(lockid=lock_id))


@pytest.fixture
def beside(metastore: Any, table: str) -> Beside:
    return Beside(metastore.address, table)


# --- the queue -----------------------------------------------------------------------------------


def test_hudis_request_and_ours_exclude_each_other(
    make: Callable[..., HiveMetastoreLock], beside: Beside
) -> None:
    lock = make()
    assert lock.acquire(timeout=60)
    theirs, state = beside.ask_as_hudi()
    assert state == hive.LockState.WAITING
    beside.unlock(theirs)
    lock.release()
    theirs, state = beside.ask_as_hudi()
    assert state == hive.LockState.ACQUIRED
    with pytest.raises(LockBusy, match="hudi on there"), make(acquire_timeout=0):
        pass
    beside.unlock(theirs)


def test_grants_come_in_the_order_of_the_requests_and_tokens_rise(
    make: Callable[..., HiveMetastoreLock], beside: Beside
) -> None:
    first, locks, came = make(), [make(), make()], []
    assert first.acquire(timeout=60)
    threads = []

    def wait(lock: HiveMetastoreLock) -> None:
        assert lock.acquire(timeout=60)
        came.append((lock, lock.fence.epoch if lock.fence else 0))
        lock.release()

    for number, each in enumerate(locks):
        threads.append(threading.Thread(target=wait, args=(each,)))
        threads[-1].start()
        until(lambda number=number: len(beside.queue()) == number + 2)
    token = first.fence.epoch if first.fence else 0
    first.release()
    for thread in threads:
        thread.join(60)
    assert [lock for lock, _ in came] == locks
    assert token < came[0][1] < came[1][1]


def test_a_waiter_that_times_out_leaves_no_request_in_the_queue(
    make: Callable[..., HiveMetastoreLock], beside: Beside
) -> None:
    holder = make()
    assert holder.acquire(timeout=60)
    assert not make().acquire(timeout=0)
    assert [state for _, state in beside.queue()] == [hive.LockState.ACQUIRED]


def test_a_request_left_waiting_by_a_dead_process_is_named_until_the_metastore_drops_it(
    make: Callable[..., HiveMetastoreLock], beside: Beside
) -> None:
    holder, recorded = make(), Tale()
    assert holder.acquire(timeout=60)
    theirs, _ = beside.ask_as_hudi()  # and nobody will ask again
    holder.release()
    waiter = make(emit=recorded)
    assert waiter.acquire(timeout=60)
    named = [each["owner"] for each in recorded.of("waiting")]
    assert named[0] == f"hudi on there (waits for lock {theirs})"
    assert any("silent since" in each for each in named)  # once it is gone, it has no name


# --- answers that are lost -----------------------------------------------------------------------


def test_a_request_whose_answer_was_lost_is_found_and_keeps_its_place(
    make: Callable[..., HiveMetastoreLock], metastore: Any, beside: Beside
) -> None:
    before, _ = beside.ask_as_hudi()
    beside.unlock(before)
    with Wire(metastore.port) as wire:
        lock = make(wire.address)
        wire.lose(b"\x00\x00\x00\x04lock")
        assert lock.acquire(timeout=60)
        assert wire.lost.is_set()
        assert beside.queue() == [(before + 1, hive.LockState.ACQUIRED)]
        lock.release()
        assert beside.queue() == []


def test_a_release_whose_answer_was_lost_is_proven_by_a_read(
    make: Callable[..., HiveMetastoreLock], metastore: Any, beside: Beside
) -> None:
    with Wire(metastore.port) as wire, warnings.catch_warnings():
        warnings.simplefilter("error")
        lock = make(wire.address)
        assert lock.acquire(timeout=60)
        wire.lose(b"\x00\x00\x00\x06unlock")
        lock.release()
        assert wire.lost.is_set()
        assert beside.queue() == []


class Hurried(Suspendable):
    """Where somebody sleeps, the machine slept."""

    def sleep(self, seconds: float) -> None:
        self.slept_ms += round(seconds * 1000)


def test_an_unlock_that_may_still_land_does_not_end_the_next_grant(
    make: Callable[..., HiveMetastoreLock], metastore: Any, beside: Beside
) -> None:
    with Wire(metastore.port) as wire:
        lock = make(wire.address, clock=Hurried())
        assert lock.acquire(timeout=60)
        ((first, _),) = beside.queue()
        wire.refuse()
        with pytest.warns(UnprovenRelease):
            lock.release()
        wire.admit()
        assert lock.acquire(timeout=60)
        beside.unlock(first)  # it comes late
        lock.renew()
        lock.release()
        assert beside.queue() == []


# --- losing it -----------------------------------------------------------------------------------


def test_a_holder_that_cannot_renew_expires_locally_and_another_client_is_granted(
    make: Callable[..., HiveMetastoreLock], metastore: Any
) -> None:
    lost = threading.Event()
    with Wire(metastore.port) as wire:
        lock = make(wire.address, on_lost=lambda *_: lost.set())
        assert lock.acquire(timeout=60)
        wire.refuse()
        assert lost.wait(60)
        assert make().acquire(timeout=60)
        with pytest.raises(LockLost, match="lease ran out"):
            lock.release()


def test_a_lock_that_was_taken_over_is_lost_even_if_only_the_release_detects_it(
    make: Callable[..., HiveMetastoreLock], beside: Beside
) -> None:
    lock = make()
    assert lock.acquire(timeout=60)
    ((lock_id, _),) = beside.queue()
    beside.unlock(lock_id)
    with pytest.raises(LockLost, match="the metastore ended it"):
        lock.release()


def test_a_missing_metastore_is_reported_once_and_not_as_a_busy_lock(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger("thrift"), "propagate", False)  # as without pytest
    with pytest.raises(NoAnswer, match="is it running"):
        HiveMetastoreLock(f"127.0.0.1:{free_port()}", "lake", "x").acquire(timeout=0)
    assert capsys.readouterr().err == "", "thrift's own line"


def test_a_row_without_what_every_metastore_sends_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = ShownLock(lockid=5, state=1, lastheartbeat=1, user="u", hostname="h", agentInfo="")
    answer = ShowLocksResponse(locks=[ShownLock(), whole])
    monkeypatch.setattr(MetastoreConnection, "ask", lambda *_: answer)
    assert main(["lock", "show", "hive://127.0.0.1:1/lake/x"]) == 3
    assert "it lists a lock without an id" in capsys.readouterr().err


def test_the_server_decides_how_long_a_grant_lasts(
    make: Callable[..., HiveMetastoreLock], metastore: Any
) -> None:
    lock = make()
    assert lock.acquire(timeout=60)
    assert lock.ttl_s == metastore.timeout_s
    assert lock.beat_s is not None and lock.beat_s <= metastore.timeout_s / 3


# --- where the metastore is ----------------------------------------------------------------------


def test_the_metastore_is_found_in_hive_site(tmp_path: Path, metastore: Any) -> None:
    conf = metastore.folder / "conf"
    assert uris_of_site(conf) == f"thrift://{metastore.address}"
    assert metastore.address in HiveMetastoreLock(None, "lake", "orders", conf_dir=conf).url
    with pytest.raises(ValueError, match=r"hive-site\.xml cannot be read"):
        uris_of_site(tmp_path)
    (tmp_path / "hive-site.xml").write_text("<configuration>")
    with pytest.raises(ValueError, match=r"hive-site\.xml cannot be read"):
        uris_of_site(tmp_path)


def test_uris_are_read_as_hudis_and_others_refused() -> None:
    assert servers("thrift://a:1, thrift://b,c:2") == [("a", 1), ("b", 9083), ("c", 2)]
    for wrong in ("", "http://a:1", "thrift://user:secret@a:1"):
        with pytest.raises(ValueError, match="thrift://host:port"):
            servers(wrong)


@pytest.mark.parametrize(
    ("said", "is_s"), [("300s", 300), ("5min", 300), ("10ms", 0.01), ("2 hours", 7200), ("60", 60)]
)
def test_hives_times_are_read(said: str, is_s: float) -> None:
    assert seconds(said) == is_s


def test_a_server_that_is_not_a_metastore_is_reported_as_such(emulator: Any) -> None:
    address = emulator.s3.removeprefix("http://")
    with pytest.raises(StoreError, match="metastore"):
        HiveMetastoreLock(address, "lake", "orders", answer_s=1.0).acquire(timeout=0)
