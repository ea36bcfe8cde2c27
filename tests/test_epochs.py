"""Epochs go on rising after the lock object has lost them: the fence is their floor."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lock_world import stands
from table_world import AFTER, BEFORE, CLOCK, Lossy, new_table

from lockkit.cli.main import main
from lockkit.errors import LockLost
from lockkit.lock.handle import Lock
from lockkit.lock.storage import LOCK_KEY
from lockkit.protocol.outcome import Applied, Found, over
from lockkit.protocol.record import EPOCHS_UNKNOWN, Record, encode
from lockkit.runtime import run
from lockkit.stores import Store, open_store
from lockkit.table import Table, TableConfig, read_table
from lockkit.table.occ.concurrency import SHARED, OptimisticConcurrency
from lockkit.table.occ.fence import FENCE_KEY, read_fence
from lockkit.table.services.rules import service_rules
from lockkit.table.services.service import TableService

NAMES = count()
CONFIG = TableConfig(name="t", record_key="id")


@pytest.fixture
def url() -> str:
    return f"memory://epochs-{next(NAMES)}/t"


@pytest.fixture
def store(url: str) -> Store:
    """A table with five commits, each under a grant of its own."""
    store = new_table(url, CONFIG)
    with Table(url) as table:
        for number in range(5):
            table.append(row(number))
    return store


def row(number: int) -> pa.Table:
    return pa.table({"id": [str(number)]})


def fence_epoch(store: Store) -> int:
    fence = run(read_fence(), store, CLOCK).fence
    assert fence is not None
    return fence.epoch


def delete(store: Store) -> None:
    assert isinstance(store.delete(LOCK_KEY), Applied)


def drop_fields(store: Store) -> None:
    """What a Hudi writer leaves: its own three fields, released."""
    found = store.get(LOCK_KEY)
    assert isinstance(found, Found)
    body = b'{"expired":true,"validUntil":1,"owner":"hudi"}'
    assert isinstance(store.put(LOCK_KEY, body, over(found.version)), Applied)


LOSES = pytest.mark.parametrize("loses", [delete, drop_fields])


@LOSES
def test_a_new_handle_commits_after_the_lock_object_lost_its_epoch(
    url: str, store: Store, loses: Any
) -> None:
    before = fence_epoch(store)
    loses(store)
    with Table(url) as table:
        committed = table.append(row(5))
    assert committed.epoch > before
    assert fence_epoch(store) == committed.epoch
    assert read_table(store).num_rows == 6


@LOSES
def test_an_open_handle_commits_after_the_lock_object_lost_its_epoch(
    url: str, store: Store, loses: Any
) -> None:
    with Table(url) as table:
        epochs = [table.append(row(5)).epoch]
        loses(store)
        epochs += [table.append(row(number)).epoch for number in (6, 7)]
    assert epochs == sorted(set(epochs))


def test_each_new_handle_has_a_higher_epoch_than_the_one_before(url: str, store: Store) -> None:
    epochs = [fence_epoch(store)]
    delete(store)
    for number in range(3):
        with Table(url) as table:
            epochs.append(table.append(row(10 + number)).epoch)
    assert epochs == sorted(set(epochs))


def test_a_grant_before_the_loss_that_committed_nothing_shares_its_epoch_with_none_after(
    url: str, store: Store
) -> None:
    lock = Lock(url, ttl_s=30)
    with lock:
        unused = lock.fence.epoch
    delete(store)
    with Table(url) as table:
        assert table.append(row(5)).epoch > unused


def test_a_command_under_the_lock_gets_an_epoch_above_the_fences(tmp_path: Path) -> None:
    """It guards its own writes by it, and one that a commit has had already guards nothing."""
    url, epoch_file = f"file://{tmp_path}/t", tmp_path / "epoch"
    store = new_table(url, CONFIG)
    with Table(url) as table:
        for number in range(3):
            table.append(row(number))
    delete(store)
    line = ["lock", "acquire", url, "--", "sh", "-c", f"echo $LOCKKIT_EPOCH > {epoch_file}"]
    assert main(line) == 0
    assert int(epoch_file.read_text()) > fence_epoch(store) == 3
    found = store.get(FENCE_KEY)
    assert isinstance(found, Found)
    store.put(FENCE_KEY, b"no fence", over(found.version))
    epoch_file.unlink()
    assert main(line) == 3
    assert not epoch_file.exists(), (
        "no command is run under an epoch that may have been granted before"
    )
    with Lock(url, ttl_s=30) as lock:
        assert lock.owned(), "and the lock was given back"


def test_a_table_service_commits_after_the_lock_object_lost_its_epoch(
    url: str, store: Store
) -> None:
    before = fence_epoch(store)
    delete(store)
    turns = OptimisticConcurrency(Lock(url, ttl_s=30))
    service = TableService(url, store, turns, rules=service_rules({}, SHARED), clock=CLOCK)
    done = service.cluster()
    turns.close()
    assert done is not None
    assert fence_epoch(store) > before


# --- the renewal that raises an epoch -------------------------------------------------------------


@dataclass
class Held:
    lock: Lock
    lossy: Lossy


@pytest.fixture
def held(url: str) -> Any:
    """A lock of epoch 1 whose store can lose answers."""
    lossy = Lossy(open_store(url))
    lock = Lock(url, ttl_s=30, store=lossy)
    assert lock.acquire(timeout=5)
    yield Held(lock, lossy)
    lock.close()


@pytest.mark.parametrize("fault", [None, BEFORE, AFTER])
def test_an_epoch_is_raised_above_the_fences_whatever_happens_to_the_answer(
    held: Held, fault: str | None
) -> None:
    if fault:
        held.lossy.faults[held.lossy.sent] = fault
    held.lock.rise_above(20)
    assert held.lock.fence.epoch == stands(held.lossy.store).epoch == 20 + EPOCHS_UNKNOWN
    held.lock.release()
    assert stands(held.lossy.store).epoch == 20 + EPOCHS_UNKNOWN


def test_a_grant_already_above_the_fence_sends_no_request(held: Held) -> None:
    sent = held.lossy.sent
    held.lock.rise_above(0)
    assert (held.lossy.sent, held.lock.fence.epoch) == (sent, 1)


def test_a_grant_of_the_fences_own_epoch_rises_above_it(held: Held) -> None:
    """The grant that committed under this epoch may have been another one."""
    held.lock.rise_above(held.lock.fence.epoch)
    assert held.lock.fence.epoch > 1


def test_a_handle_that_has_lost_the_lock_gets_no_higher_epoch(held: Held) -> None:
    found = held.lossy.store.get(LOCK_KEY)
    assert isinstance(found, Found)
    other = Record("another", CLOCK.wall_ms() + 30_000, epoch=2, attempt="another/1", ttl_ms=30_000)
    held.lossy.store.put(LOCK_KEY, encode(other), over(found.version))
    with pytest.raises(LockLost, match="another client"):
        held.lock.rise_above(20)
    assert stands(held.lossy.store) == other
    with pytest.raises(LockLost):
        held.lock.release()
