"""The lock that Hudi's options name is the one that guards a commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from table_world import CLOCK, CONFIG, new_table, prepare_inserts, prepare_upserts, rows

from lockkit import Lock, LockBusy, LockLost, open_lock
from lockkit.errors import LossReason, TableError
from lockkit.providers.both import DoubleLock
from lockkit.providers.filesystem import FilesystemLock
from lockkit.providers.process import ProcessLock
from lockkit.providers.zookeeper import ZookeeperLock
from lockkit.runtime import run
from lockkit.stores import Store
from lockkit.table import Table, read_table
from lockkit.table.errors import CommitConflict
from lockkit.table.occ.concurrency import OptimisticConcurrency
from lockkit.table.occ.fence import read_fence
from lockkit.table.occ.locks import open_table_lock
from lockkit.table.services.shared import keep

PREFIX = "org.apache.hudi.client.transaction.lock."
LOCK = "hoodie.write.lock."
AT_ONCE = {LOCK + "wait_time_ms": "50", LOCK + "client.num_retries": "0"}
NAMES = count()


@pytest.fixture(params=["fenced", "hudi"])
def table(request: Any) -> Iterator[Store]:
    url = f"memory://table-locks-{next(NAMES)}/t"
    with closing(new_table(url, replace(CONFIG, mode=request.param))) as store:
        yield store


@pytest.fixture
def by_file(tmp_path: Path) -> dict[str, str]:
    return {LOCK + "provider": PREFIX + "FileSystemBasedLockProvider",
            LOCK + "filesystem.path": str(tmp_path), **AT_ONCE}  # fmt: skip


def keys(store: Store) -> list[str]:
    found = read_table(store)
    return sorted(found["id"].to_pylist()) if found.num_rows else []


def test_an_append_waits_for_the_lock_of_the_named_provider(
    table: Store, by_file: dict[str, str], tmp_path: Path
) -> None:
    with Table(table.url, options=by_file) as mine, closing(open_lock(by_file)) as other:
        with other, pytest.raises(LockBusy, match="filesystem"):
            mine.append(rows([1]))
        assert keys(table) == []
        mine.append(rows([1]))
        mine.append(rows([2]))
    assert keys(table) == ["k1", "k2"]
    assert not (tmp_path / "lock").exists(), "the lock was not released"


def test_services_wait_for_the_lock_of_the_named_provider(
    table: Store, by_file: dict[str, str]
) -> None:
    with keep(table.url, by_file) as upkeep, closing(open_lock(by_file)) as other:
        prepared = prepare_inserts(table, rows([1]))
        with other, pytest.raises(LockBusy, match="filesystem"):
            upkeep.concurrency_control.publish(prepared, table, CLOCK)
        with other, pytest.raises(LockBusy, match="filesystem"):
            with upkeep.concurrency_control.hold():
                raise AssertionError("another holds the lock")
        upkeep.concurrency_control.publish(prepared, table, CLOCK)
    assert keys(table) == ["k1"]


@pytest.mark.parametrize("key", ["provider", "client.num_retries", "wait_time_ms"])
def test_an_invalid_lock_is_refused_before_any_row_is_written(table: Store, key: str) -> None:
    with pytest.raises(TableError, match=LOCK + key):
        Table(table.url, options={LOCK + key: "com.example.Nope"})


def test_the_place_of_a_services_lock_without_a_provider_means_hudis_default_one() -> None:
    """By the sample of Hudi's page its writers take ZooKeeper's lock; ours took the table's own."""
    url, options = "memory://t", {
        LOCK + "zookeeper.url": "127.0.0.1:1", LOCK + "zookeeper.base_path": "/test",
        "hoodie.table.name": "t",
    }  # fmt: skip
    with closing(open_table_lock(url, options, clock=CLOCK)) as lock:
        assert isinstance(lock, ZookeeperLock)
    why = r"zookeeper.url is missing \(or name another hoodie.write.lock.provider"
    for key in ("dynamodb.table", "hivemetastore.table", "filesystem.path", "zookeeper.base_path"):
        with pytest.raises(TableError, match=why):
            open_table_lock(url, {LOCK + key: "/t"}, clock=CLOCK)


def test_the_path_in_the_options_must_be_the_tables(table: Store) -> None:
    with pytest.raises(TableError, match="is not the table that is written"):
        Table(table.url, options={"hoodie.base.path": "memory://elsewhere"})
    Table(table.url, options={"hoodie.base.path": table.url + "/"}).close()


def test_a_table_takes_any_handle_and_leaves_it_open(table: Store, tmp_path: Path) -> None:
    name = f"table-locks-{next(NAMES)}"
    for lock in (
        ProcessLock(name),
        FilesystemLock(tmp_path),
        Lock(table.url),
        DoubleLock(Lock(table.url), FilesystemLock(tmp_path)),
    ):
        with Table(table.url, lock=lock) as mine:
            mine.append(rows([next(NAMES)]))
        with lock:
            pass
        lock.close()
    assert len(keys(table)) == 4


def test_a_handle_beside_options_that_describe_another_lock_is_refused(table: Store) -> None:
    """The options were ignored: a job on that other lock would not have been excluded."""
    with closing(ProcessLock(f"table-locks-{next(NAMES)}")) as lock:
        for options in ({LOCK + "provider": PREFIX + "FileSystemBasedLockProvider"}, AT_ONCE):
            with pytest.raises(TableError, match=f"lock= was passed, and {LOCK}.* another lock"):
                Table(table.url, lock=lock, options=options)
        strategy = {LOCK + "conflict.resolution.strategy": "prefer_writer"}
        with Table(table.url, lock=lock, options=strategy) as mine:
            mine.append(rows([1]))


def test_an_object_that_is_not_a_lock_handle_is_refused_by_name(table: Store) -> None:
    wrong: Any = "zookeeper://host/lock"
    with pytest.raises(TableError, match=r"as open_lock\(url\) returns it.*this is a str"):
        Table(table.url, lock=wrong)


def test_both_locks_are_held_for_a_commit(table: Store, tmp_path: Path) -> None:
    both = DoubleLock(Lock(table.url), FilesystemLock(tmp_path), acquire_timeout=0.05)
    with closing(both), Table(table.url, lock=both) as mine:
        with closing(FilesystemLock(tmp_path)) as other, other, pytest.raises(LockBusy):
            mine.append(rows([1]))
        with closing(Lock(table.url)) as storage, storage, pytest.raises(LockBusy):
            mine.append(rows([1]))
        mine.append(rows([1]))
    assert keys(table) == ["k1"]


# --- the fence still decides ----------------------------------------------------------------------


@pytest.fixture
def fenced() -> Iterator[Store]:
    with closing(new_table(f"memory://table-locks-{next(NAMES)}/t")) as store:
        yield store


def own_lock() -> ProcessLock:
    """A lock that excludes nobody: no other handle has its name."""
    return ProcessLock(f"table-locks-{next(NAMES)}")


class Stalls(ProcessLock):
    """A lock whose holder is paused between its conflict check and the write that decides."""

    meanwhile: Any = None

    def assert_held(self) -> None:
        super().assert_held()
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()


def test_each_grant_of_another_service_raises_the_epoch_of_the_fence(fenced: Store) -> None:
    with Table(fenced.url, lock={}) as storage:
        first = storage.append(rows([0])).epoch
    with Table(fenced.url, lock=own_lock()) as mine:
        assert [mine.append(rows([each])).epoch for each in (1, 2)] == [first + 1, first + 2]
    with Table(fenced.url) as storage:
        assert storage.append(rows([3])).epoch > first + 2
    seen = run(read_fence(), fenced, CLOCK)
    assert seen.fence is not None and seen.fence.epoch > first + 2


def test_the_fence_refuses_a_conflict_even_if_the_lock_does_not_exclude(fenced: Store) -> None:
    OptimisticConcurrency(own_lock()).publish(prepare_inserts(fenced, rows([1])), fenced, CLOCK)
    late, early = (prepare_upserts(fenced, rows([1], amount=each, at=each)) for each in (7, 8))
    stalled = Stalls(f"table-locks-{next(NAMES)}")
    stalled.meanwhile = lambda: OptimisticConcurrency(own_lock()).publish(early, fenced, CLOCK)
    with pytest.raises(CommitConflict):
        OptimisticConcurrency(stalled).publish(late, fenced, CLOCK)
    found = read_table(fenced)
    assert found["amount"].to_pylist() == [8]


def test_a_holder_whose_grant_is_over_does_not_commit(table: Store) -> None:
    lock = Stalls(f"table-locks-{next(NAMES)}")

    def lose() -> None:
        lock._client.lose("it was taken away", LossReason.REVOKED)
        lock.assert_held()

    lock.meanwhile = lose
    with pytest.raises(LockLost, match="it was taken away"):
        OptimisticConcurrency(lock).publish(prepare_inserts(table, rows([1])), table, CLOCK)
    assert keys(table) == []


# --- credentials ----------------------------------------------------------------------------------

AWS = {"hoodie.aws.access.key": "AKIAEXAMPLE", "hoodie.aws.secret.key": "hush",
       "hoodie.aws.session.token": "hush-too"}  # fmt: skip


def test_hudis_aws_credentials_are_used_for_the_storage_lock() -> None:
    with closing(open_table_lock("s3://bucket/t", AWS, clock=CLOCK)) as lock:
        assert isinstance(lock, Lock)
        client: Any = lock.store
        used = client._client._get_credentials()
        assert (used.access_key, used.secret_key, used.token) == tuple(AWS.values())
        assert "hush" not in repr(lock.store.options) + str(lock)


def test_hudis_aws_credentials_are_used_for_the_dynamodb_lock() -> None:
    dynamodb = {LOCK + "provider": "org.apache.hudi.aws.transaction.lock.DynamoDBBasedLockProvider",
                LOCK + "dynamodb.table": "locks", LOCK + "dynamodb.partition_key": "t",
                LOCK + "dynamodb.region": "eu-north-1", **AT_ONCE}  # fmt: skip
    with closing(open_table_lock("s3://bucket/t", {**AWS, **dynamodb}, clock=CLOCK)) as lock:
        own: Any = lock
        used = own._table._client._get_credentials()
        assert (used.access_key, used.secret_key, used.token) == tuple(AWS.values())
        assert "hush" not in str(lock) + repr(vars(lock)) + repr(vars(own._table))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"hoodie.base.path": "s3://K:ab/s3cret@b/t"}, "carries a password"),
        ({"hoodie.base.path": "https://x/?sig=s3cret"}, "carries a password"),
        ({LOCK + "provider": "a", (LOCK + "provider").upper(): "b"}, "provider is given twice"),
        ({LOCK + "provider ": "a"}, "has a space around its name"),
        ({LOCK + "client.num_retries": "1.5"}, "num_retries must be a whole number"),
    ],
)
def test_an_invalid_option_is_refused_without_showing_a_secret(
    options: dict[str, str], said: str
) -> None:
    with pytest.raises(TableError, match=said) as error:
        open_table_lock("memory://refused/t", options, clock=CLOCK)
    assert "s3cret" not in str(error.value)


def test_half_of_the_aws_credentials_is_refused_and_not_shown() -> None:
    with pytest.raises(TableError, match=r"hoodie\.aws\.secret\.key belong") as error:
        open_table_lock("s3://bucket/t", {"hoodie.aws.secret.key": "hush"}, clock=CLOCK)
    assert "hush" not in str(error.value)


def test_a_table_takes_the_time_that_one_request_may_take() -> None:
    store = new_table(f"memory://table-locks-{next(NAMES)}/t")
    with Table(store.url, timeout_s=3) as mine:
        assert mine.store.options.timeout_s == 3
        assert isinstance(mine.lock, Lock) and mine.lock.store.options.timeout_s == 3
        mine.append(rows([1]))
    with pytest.raises(TypeError, match=r"Table\(\) for memory:// has no keyword 'optoins'"):
        Table(store.url, optoins={})
