"""One contract for every service that grants a lock, against the real service; and open_lock."""

from __future__ import annotations

import gc
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import provider_world
import pytest
from provider_world import NAMES, PATIENCE_S, Parties, Party, Server, World

from lockkit import Lock, LockBusy, LockLost, StoreError, open_lock
from lockkit.cli.acquire import opened
from lockkit.cli.main import main
from lockkit.clock import Clock
from lockkit.errors import BreakRefused
from lockkit.lock.hudi_keys import READ, UnknownKey, checked, key_of_base_path
from lockkit.providers.both import DoubleLock
from lockkit.providers.dynamodb import DynamoDBLock
from lockkit.providers.filesystem import FilesystemLock
from lockkit.providers.hudi import PROVIDERS, LongWait
from lockkit.providers.process import ProcessLock

ROOT = Path(__file__).parents[1]
WRITERS = 4
PROVIDER = "hoodie.write.lock.provider"
HUDI = "org.apache.hudi.client.transaction.lock."


# --- where it is tested --------------------------------------------------------------------------

FIXTURES = {
    "storage": "object_server", "zookeeper": "zookeeper", "dynamodb": "dynamodb",
    "hive": "metastore", "azure_lease": "azure_server",
}  # fmt: skip
"""Of the services, which are shared with the tests of that provider alone."""


OF_PROCESSES = [each for each in NAMES if each != "process"]


def of(*names: str) -> Any:
    """A test of the contract for these providers, where their service is."""
    jvm = {"zookeeper", "hive"}
    marked = [
        pytest.param(
            name,
            marks=[pytest.mark.xdist_group(name), *([pytest.mark.spark] if name in jvm else [])],
        )
        for name in names
    ]
    return pytest.mark.parametrize("world", marked, indirect=True)


@pytest.fixture(scope="module")
def object_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(scope="module")
def azure_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of its own, because the test sets its clock forward."""
    with Server(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path, bucket: str) -> World:
    """A lock that no other test uses; skipped where its service cannot be started."""
    return _of(request, request.param, bucket, tmp_path)


@pytest.fixture
def twin(request: pytest.FixtureRequest, world: World, tmp_path: Path, bucket: str) -> World:
    """Another lock of the same provider."""
    return _of(request, request.node.callspec.params["world"], f"{bucket}-twin", tmp_path)


def _of(request: pytest.FixtureRequest, name: str, key: str, folder: Path) -> World:
    fixture = FIXTURES.get(name)
    service = request.getfixturevalue(fixture) if fixture else None
    return provider_world.world(name, key, service, folder)


@pytest.fixture(scope="module")
def _made() -> Iterator[dict[bool, Parties]]:
    made = {thread: Parties(thread=thread) for thread in (False, True)}
    yield made
    for each in made.values():
        each.end()


@pytest.fixture
def parties(_made: dict[bool, Parties]) -> Callable[..., list[Party]]:
    """That many parties, each with its own handle of the world's lock."""

    def open_(count: int, world: World, *, short: bool = False) -> list[Party]:
        options = world.options | (world.short if short else {})
        return _made[world.threads](count, [world.lock], options)

    return open_


# --- the contract --------------------------------------------------------------------------------


@of(*NAMES)
def test_four_writers_lose_no_increment_and_tokens_rise(
    world: World, parties: Callable[..., list[Party]], tmp_path: Path
) -> None:
    path = tmp_path / "number"
    path.write_text("0")
    writers = parties(WRITERS, world)
    for each in writers:
        each.tell("count", path=str(path), times=world.turns)
    seen = []
    for each in writers:
        kind, value = each.said()
        assert kind == "returned", value
        seen += value
    assert sorted(number for number, _ in seen) == list(range(1, WRITERS * world.turns + 1))
    tokens = [token for _, token in sorted(seen)]
    if tokens[0] is not None:
        assert all(one < other for one, other in itertools.pairwise(tokens))


@of(*NAMES)
def test_a_held_lock_cannot_be_acquired_or_released_by_another_or_acquired_twice(
    world: World, parties: Callable[..., list[Party]]
) -> None:
    holder, other = parties(2, world)
    assert holder.ask("acquire", timeout=0) is True
    assert other.ask("acquire", timeout=0) is False
    assert "held by" in other.ask("busy_reason")
    assert "RuntimeError" in other.refused("release")
    assert "never acquired" in other.refused("assert_held")
    assert "not reentrant" in holder.refused("acquire", timeout=0)
    assert (holder.ask("owned"), other.ask("owned")) == (True, False)
    assert other.ask("locked") is True
    holder.ask("assert_held")
    assert other.ask("acquire", timeout=0) is False
    holder.ask("release")
    assert other.ask("locked") is False
    assert other.ask("acquire", timeout=0) is True
    assert holder.ask("acquire", timeout=0) is False
    other.ask("release")


@of(*NAMES)
def test_a_waiter_is_granted_when_the_holder_releases(
    world: World, parties: Callable[..., list[Party]]
) -> None:
    holder, waiter = parties(2, world)
    holder.ask("acquire", timeout=0)
    waiter.tell("acquire", timeout=None)
    waiter.said(waiting=True)
    holder.ask("release")
    assert waiter.said() == ("returned", True)
    waiter.ask("release")


@of(*(each for each in NAMES if each != "process"))
def test_each_request_is_narrated_with_its_purpose(world: World) -> None:
    events: list[tuple[str, dict[str, Any]]] = []
    lock = open_lock(world.lock, emit=lambda kind, **recorded: events.append((kind, recorded)),
                     **world.options)  # fmt: skip
    lock.acquire(timeout=PATIENCE_S)
    lock.renew()
    lock.release()
    lock.close()
    asked = [recorded for kind, recorded in events if kind == "ask"]
    assert {each["op"] for each in asked} >= {"acquire", "renew", "release"}
    answered = {recorded["request"] for kind, recorded in events if kind == "answer"}
    assert answered == {each["request"] for each in asked}
    kinds = [kind for kind, recorded in events if kind in ("held", "released")
             or (kind == "ask" and recorded["op"] == "release")]  # fmt: skip
    assert kinds[0] == "held" and kinds[1] == "ask" and kinds[-1] == "released"


@of(*OF_PROCESSES)
def test_an_interrupted_waiter_leaves_nothing_half_held(
    world: World, parties: Callable[..., list[Party]]
) -> None:
    holder, waiter, next_one = parties(3, world)
    holder.ask("acquire", timeout=0)
    waiter.tell("acquire", timeout=None)
    waiter.said(waiting=True)
    waiter.signal(signal.SIGINT)
    assert waiter.said() == ("raised", "KeyboardInterrupt")
    holder.ask("release")
    assert next_one.ask("acquire", timeout=0) is True  # no place in a queue stands before it
    next_one.ask("release")
    assert waiter.ask("acquire", timeout=0) is True  # and its handle is as good as new
    waiter.ask("release")


@of(*OF_PROCESSES)
def test_a_stopped_holder_learns_of_its_loss_and_a_killed_one_blocks_no_client(
    world: World, twin: World, parties: Callable[..., list[Party]]
) -> None:
    stopped, killed, after_stopped, after_killed = parties(4, world, short=True)
    # The next holder keeps the lock, however slow the machine is. The killed holders have another
    # lock, so that both cases wait for one lease in all.
    later = world.short if world.agreed else {}
    killed.ask("open", urls=[twin.lock], options=twin.options | twin.short)
    after_stopped.ask("open", urls=[world.lock], options=world.options | later)
    after_killed.ask("open", urls=[twin.lock], options=twin.options | later)
    stopped.ask("acquire", timeout=PATIENCE_S)
    killed.ask("acquire", timeout=PATIENCE_S)
    killed.signal(signal.SIGKILL)
    with stopped.stopped():
        if world.age:
            world.age()
        for each in (after_stopped, after_killed):
            each.tell("acquire", timeout=PATIENCE_S)
        for each in (after_stopped, after_killed):
            assert each.said() == ("returned", True)
    if world.age:  # by its own clock it may still hold it: the service's word tells it
        assert "LockLost" in stopped.refused("renew")
    assert stopped.ask("owned") is False
    assert "LockLost" in stopped.refused("assert_held")
    assert "LockLost" in stopped.refused("release")
    after_stopped.ask("assert_held")  # the release of who had lost it took it from nobody
    for each in (after_stopped, after_killed):
        each.ask("release")


@of(*FIXTURES)
def test_a_restart_of_the_service_makes_no_second_holder(
    world: World, parties: Callable[..., list[Party]]
) -> None:
    if world.restart is None:
        pytest.skip("moto forgets everything when it ends: make peers, for dynalite")
    holder, other = parties(2, world)
    holder.ask("acquire", timeout=0)
    world.restart()
    got = other.ask("acquire", timeout=1)
    assert not (got and holder.ask("owned"))
    holder.tell("release")  # its release, or its loss
    kind, value = holder.said()
    assert kind == "returned" or "LockLost" in value
    assert got or other.ask("acquire", timeout=PATIENCE_S) is True
    other.ask("release")


# --- in one process ------------------------------------------------------------------------------


def test_another_thread_does_not_release_a_process_lock_and_its_own_does_not_wait_for_itself() -> (
    None
):
    name = str(uuid.uuid4())
    mine, other = ProcessLock(name), ProcessLock(name)
    mine.acquire()
    with pytest.raises(RuntimeError, match="this thread holds it already"):
        other.acquire()
    recorded: list[Exception] = []

    def give_back() -> None:
        try:
            mine.release()
        except RuntimeError as error:
            recorded.append(error)

    thread = threading.Thread(target=give_back)
    thread.start()
    thread.join()
    assert "must release it" in str(recorded[0])
    mine.release()
    assert other.acquire(timeout=0)
    other.release()


def test_an_interrupt_while_waiting_for_a_thread_leaves_no_place_in_the_queue() -> None:
    name = str(uuid.uuid4())
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with ProcessLock(name):
            held.set()
            let_go.wait(PATIENCE_S)

    def interrupt(kind: str, **_: Any) -> None:
        if kind == "waiting":
            signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(PATIENCE_S)
    with pytest.raises(KeyboardInterrupt):
        ProcessLock(name, emit=interrupt).acquire()
    let_go.set()
    thread.join()
    assert ProcessLock(name).acquire(timeout=0)


def test_a_dropped_handle_is_not_renewed(tmp_path: Path) -> None:
    """This holds for every provider that renews, as for the storage lock."""
    FilesystemLock(tmp_path, expire_minutes=1 / 60).acquire()
    gc.collect()
    other = FilesystemLock(tmp_path, expire_minutes=1 / 60)
    assert other.acquire(timeout=30), "a handle that nobody has is renewed for ever"
    other.release()


def test_a_forked_child_does_not_count_its_parents_threads_as_holders() -> None:
    lock = ProcessLock(str(uuid.uuid4()))
    lock.acquire()
    child = os.fork()
    if child == 0:
        try:
            got = ProcessLock(lock.url).acquire(timeout=0)
        except BaseException:  # noqa: BLE001 - the parent judges by the exit code
            got = False
        os._exit(0 if got else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    lock.release()


# --- a file --------------------------------------------------------------------------------------


def lock_file(folder: Path, **fields: Any) -> Path:
    """Makes a lock file, by default as Hudi does."""
    path = folder / "lock"
    hudi = {"lockCreateTime": "2026-01-06 10:12:00.001", "lockThreadName": "main"}
    path.write_text(json.dumps(hudi | {"lockStacksInfo": ["a.B.c (B.java:1)"]} | fields, indent=2))
    return path


def test_the_lock_file_has_hudis_fields_and_is_gone_after_the_release(tmp_path: Path) -> None:
    lock = FilesystemLock(tmp_path)
    with lock:
        fields = json.loads((tmp_path / "lock").read_text())
        assert {"lockCreateTime", "lockThreadName", "lockStacksInfo"} <= set(fields)
        assert (fields["pid"], fields["owner"]) == (os.getpid(), lock.owner)
        assert [each.name for each in tmp_path.iterdir()] == ["lock"]
    assert list(tmp_path.iterdir()) == []


def test_a_lock_file_is_read_only_and_is_renewed_all_the_same(tmp_path: Path) -> None:
    with FilesystemLock(tmp_path) as lock:
        assert not (tmp_path / "lock").stat().st_mode & 0o222, "Hudi opens it to empty it"
        lock.renew()


@pytest.mark.parametrize("body", ["", "{", "[]", "null", '"', "[" * 10_000, "x" * 100_000])
def test_a_lock_file_counts_as_a_lock_whatever_it_contains(tmp_path: Path, body: str) -> None:
    (tmp_path / "lock").write_text(body)
    lock = FilesystemLock(tmp_path)
    assert not lock.acquire(timeout=0)
    assert lock.locked()
    assert (tmp_path / "lock").read_text() == body


def test_an_empty_lock_file_is_described_as_hudis_with_its_time(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    os.utime(tmp_path / "lock", (1_767_694_320, 1_767_694_320))
    lock = FilesystemLock(tmp_path)
    assert not lock.acquire(timeout=0)
    assert "as Hudi does, since 2026-01-06T10:12:00" in lock.busy_reason()


def test_hudis_lock_file_is_respected_until_it_is_too_old_by_its_modification_time(
    tmp_path: Path,
) -> None:
    path = lock_file(tmp_path)
    lock = FilesystemLock(tmp_path, expire_minutes=1)
    assert not lock.acquire(timeout=0)
    assert "Hudi's thread main since 2026-01-06" in lock.busy_reason()
    made_s = path.stat().st_mtime
    os.utime(path, (made_s - 50, made_s - 50))
    assert not lock.acquire(timeout=0)
    os.utime(path, (made_s - 61, made_s - 61))
    assert not FilesystemLock(tmp_path, expire_minutes=0).acquire(timeout=0)
    assert lock.acquire(timeout=0)
    lock.release()


def test_a_lock_file_of_a_dead_process_is_reported_with_the_remedy(tmp_path: Path) -> None:
    take = "import sys, os; from lockkit.providers.filesystem import FilesystemLock as F; "
    take += "F(sys.argv[1]).acquire(); print(os.getpid(), flush=True); os.kill(os.getpid(), 9)"
    died = subprocess.run(
        [sys.executable, "-c", take, str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert died.returncode == -signal.SIGKILL, died.stderr
    lock = FilesystemLock(tmp_path)
    with pytest.raises(LockBusy, match=rf"(?s)process {died.stdout.strip()} of .* no longer runs"):
        lock.acquire_timeout = 0.0
        lock.__enter__()
    assert str(tmp_path / "lock") in lock.busy_reason()
    mine = FilesystemLock(tmp_path / "other")
    mine.acquire()
    alive = FilesystemLock(tmp_path / "other")
    assert not alive.acquire(timeout=0)
    assert "no longer runs" not in alive.busy_reason()
    mine.release()


def test_a_replaced_lock_file_is_not_deleted_and_its_former_holder_has_lost(
    tmp_path: Path,
) -> None:
    lock = FilesystemLock(tmp_path)
    lock.acquire()
    (tmp_path / "lock").unlink()  # a hand, or Hudi's close()
    path = lock_file(tmp_path)
    with pytest.raises(LockLost, match="now belongs to Hudi's thread main"):
        lock.renew()
    with pytest.raises(LockLost):
        lock.release()
    assert path.exists()


@pytest.mark.parametrize("expire_minutes", [0, 10])
def test_a_renewal_makes_the_lock_file_young_again(tmp_path: Path, expire_minutes: int) -> None:
    lock, path = FilesystemLock(tmp_path, expire_minutes), tmp_path / "lock"
    with lock:
        old_s = path.stat().st_mtime - 500
        os.utime(path, (old_s, old_s))
        lock.renew()
        assert path.stat().st_mtime > old_s + 400


def test_an_expired_file_that_was_renewed_since_it_was_read_is_not_broken(tmp_path: Path) -> None:
    path = lock_file(tmp_path)
    made_s = path.stat().st_mtime
    os.utime(path, (made_s - 100, made_s - 100))
    lock = FilesystemLock(tmp_path, expire_minutes=1)
    seen = lock._read()
    assert seen is not None
    now_ns = path.stat().st_ctime_ns
    assert lock._expired(seen, now_ns)
    os.utime(path, (made_s, made_s))
    lock._break(seen, now_ns)
    assert path.exists()
    os.utime(path, (made_s - 100, made_s - 100))
    lock._break(seen, now_ns)
    assert not path.exists()


def test_a_full_disk_is_reported_and_leaves_no_partial_file(tmp_path: Path) -> None:
    full = """if True:
        import resource, signal, sys
        from lockkit.providers.filesystem import FilesystemLock
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, resource.RLIM_INFINITY))
        try:
            FilesystemLock(sys.argv[1]).acquire(timeout=5)
        except Exception as error:
            print(type(error).__name__, error)
    """
    said = subprocess.run(
        [sys.executable, "-c", full, str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert said.stdout.startswith("StoreError the lock"), said.stderr
    assert "raise the limit" in said.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_reported_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is it mounted"):
        FilesystemLock(tmp_path / "no" / "table").acquire(timeout=5)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="a file is in the place of a folder"):
        FilesystemLock(tmp_path / "file").acquire(timeout=5)
    with pytest.raises(StoreError, match="cannot create its file: "):
        FilesystemLock("/proc/self/fdinfo").acquire(timeout=5)


@pytest.mark.parametrize("folder", ["s3://bucket/table/.hoodie", "gs://b/t", "hdfs://nn/t"])
def test_a_lock_file_on_an_object_store_is_refused_and_what_to_use_is_named(folder: str) -> None:
    with pytest.raises(ValueError, match="StorageBasedLockProvider"):
        FilesystemLock(folder)


# --- open_lock -----------------------------------------------------------------------------------


def hudi(name: str, **keys: Any) -> dict[str, str]:
    """Hudi's configuration with one attempt. Keys have no prefix; `__` stands for a dot."""
    said = {"hoodie.write.lock." + key.replace("__", "."): str(keys[key]) for key in keys}
    return {PROVIDER: HUDI + name, "hoodie.write.lock.client.num_retries": "0"} | said


AWS = {PROVIDER: "org.apache.hudi.aws.transaction.lock.DynamoDBBasedLockProvider"}
IMPLICIT = {
    PROVIDER: "org.apache.hudi.aws.transaction.lock.DynamoDBBasedImplicitPartitionKeyLockProvider"
}
HIVE = {PROVIDER: "org.apache.hudi.hive.transaction.lock.HiveMetastoreBasedLockProvider"}


def test_open_lock_takes_hudis_class_names_and_keys(tmp_path: Path) -> None:
    base = {"hoodie.base.path": f"file://{tmp_path}"}
    storage = open_lock(hudi("StorageBasedLockProvider", wait_time_ms=7000) | base)
    assert isinstance(storage, Lock)
    assert (storage.acquire_timeout, storage._client.identity.ttl_ms) == (7.0, 300_000)
    (tmp_path / ".hoodie").mkdir()
    file = open_lock(hudi("FileSystemBasedLockProvider", filesystem__expire=5) | base)
    assert isinstance(file, FilesystemLock)
    assert (file.url, file.ttl_s) == (f"{tmp_path}/.hoodie/lock", 300)
    elsewhere = hudi("FileSystemBasedLockProvider", filesystem__path=tmp_path / "x")
    assert open_lock(elsewhere).url == f"{tmp_path}/x/lock"
    assert open_lock(hudi("InProcessLockProvider") | base).url == f"file://{tmp_path}"


def test_open_lock_computes_the_keys_of_services_as_hudi_does() -> None:
    table = {"hoodie.table.name": "orders", "hoodie.base.path": "s3a://lake/orders"}
    key = key_of_base_path("s3://lake/orders")
    zookeeper = hudi("ZookeeperBasedLockProvider", zookeeper__url="h:1,i:2",
                     zookeeper__base_path="/hudi")  # fmt: skip
    assert open_lock(zookeeper | table).url == "zookeeper://h:1,i:2/hudi/orders"
    implicit = hudi("ZookeeperBasedImplicitBasePathLockProvider", zookeeper__url="h")
    assert open_lock(implicit | table).url == f"zookeeper://h:2181/tmp/{key}/lock_key"
    item = hudi("x", dynamodb__table="locks", dynamodb__endpoint_url="dynamodb.x.amazonaws.com",
                wait_time_ms=7000)  # fmt: skip
    found = open_lock(item | table | AWS)
    assert isinstance(found, DynamoDBLock)
    assert (found.url, found.ttl_s) == ("dynamodb://locks/orders", 7)
    assert open_lock(item | table | IMPLICIT).url == f"dynamodb://locks/{key}"


def test_a_port_key_that_hudi_ignores_is_used_with_a_warning() -> None:
    config = hudi("ZookeeperBasedLockProvider", zookeeper__url="h", zookeeper__port=9,
                  zookeeper__base_path="/hudi", zookeeper__lock_key="k")  # fmt: skip
    with pytest.warns(UnknownKey, match="write its url as h:9"):
        assert open_lock(config).url == "zookeeper://h:9/hudi/k"


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (hudi("NoSuchProvider"), "known:"),
        ({"hoodie.write.lock.client.num_retries": "0"}, "zookeeper.url is missing"),
        (hudi("FileSystemBasedLockProvider"), "hoodie.base.path is missing"),
        (hudi("InProcessLockProvider"), "hoodie.base.path is missing"),
        (hudi("StorageBasedLockProvider"), "hoodie.base.path is missing"),
        (hudi("ZookeeperBasedLockProvider", zookeeper__url="h"), "zookeeper.lock_key is missing"),
        (
            hudi("ZookeeperBasedLockProvider", zookeeper__url="h", zookeeper__lock_key="k"),
            "zookeeper.base_path is missing",
        ),
        (hudi("ZookeeperBasedImplicitBasePathLockProvider"), "hoodie.base.path is missing"),
        (hudi("x") | HIVE, "hivemetastore.database is missing"),
        (hudi("x") | AWS | {"hoodie.table.name": "orders"}, "dynamodb.table is missing"),
        (hudi("x") | AWS, "dynamodb.partition_key is missing"),
        (hudi("InProcessLockProvider", wait_time_ms="soon"), "wait_time_ms is a number"),
        (hudi("InProcessLockProvider", client__num_retries=-1), "client.num_retries is from 0"),
        (hudi("InProcessLockProvider", num_retries="x"), "lock.num_retries is a number"),
        (
            hudi("FileSystemBasedLockProvider", filesystem__path="/x", filesystem__expire=-1),
            "filesystem.expire is from 0",
        ),
        (
            hudi("StorageBasedLockProvider", azure__client__secret="s3cret")
            | {"hoodie.base.path": "az://c/t"},
            "azure.client.secret is not read",
        ),
    ],
)  # fmt: skip
def test_a_key_that_is_missing_or_wrong_is_named(config: dict[str, str], named: str) -> None:
    with pytest.raises(ValueError, match=named) as recorded:
        open_lock(config)
    assert "s3cret" not in str(recorded.value)


def test_an_unknown_provider_lists_the_known_and_an_unknown_key_its_neighbour() -> None:
    with pytest.raises(ValueError) as recorded:
        open_lock(hudi("NoSuchProvider"))
    assert all(name in str(recorded.value) for name in PROVIDERS)
    base = {"hoodie.base.path": "x"}
    with pytest.warns(UnknownKey, match="mean hoodie.write.lock.client.wait_time_ms_between_retry"):
        open_lock(hudi("InProcessLockProvider", client__wait_time_ms=1) | base)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("hoodie.write.lok.provider", "did you mean hoodie.write.lock.provider"),
        ("hoodie.aws.acces.key", "did you mean hoodie.aws.access.key"),
        ("hoodie.aws.secert.key", "did you mean hoodie.aws.secret.key"),
        ("hoodie.table.nam", "did you mean hoodie.table.name"),
        ("hoodie.aws.region", "no lock reads it"),
        ("nonsense", "not a key of Hudi"),
    ],
)
def test_a_key_that_has_no_effect_is_warned_of_and_its_value_not_shown(key: str, said: str) -> None:
    with pytest.warns(UnknownKey, match=said) as recorded:
        open_lock(hudi("InProcessLockProvider") | {"hoodie.base.path": "x", key: "s3cret"})
    assert [each.filename for each in recorded] == [__file__]
    assert "s3cret" not in str(recorded[0].message)


def test_no_key_of_hudis_is_taken_for_a_misspelling_of_another() -> None:
    from lockkit.table.format.gate import TABLE

    own = {key: "1" for each in TABLE for key in each.keys if key.startswith("hoodie.")
           and not key.startswith(("hoodie.aws.role", "hoodie.aws.sts"))
           and key not in READ}  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(checked(own, stacklevel=1)) > 400


def test_keys_are_the_same_in_upper_and_lower_case(tmp_path: Path) -> None:
    config = hudi("StorageBasedLockProvider", storage__validity__timeout__secs=20,
                  storage__renew__interval__secs=2)  # fmt: skip
    upper = {key.upper(): value for key, value in config.items()}
    lock = open_lock(upper | {"Hoodie.Base.Path": f"file://{tmp_path}"})
    assert isinstance(lock, Lock)
    assert lock._client.identity.ttl_ms == 20_000
    with pytest.raises(ValueError, match=r"provider is given twice"):
        open_lock(config | {PROVIDER.upper(): "another"})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({PROVIDER: None}, "lock.provider is empty"),
        ({PROVIDER: ""}, "lock.provider is empty"),
        ({"hoodie.table.name": None}, "table.name is empty"),
        ({"hoodie.base.path": 5}, "base.path is text, not int"),
        ({5: "x"}, "a key of Hudi's configuration is text, not int"),
        ({"hoodie.write.lock.wait_time_ms": True}, "wait_time_ms is text or a number, not bool"),
        ({"hoodie.write.lock.filesystem.path": b"/x"}, "path is text or a number, not bytes"),
        ({"hoodie.base.path": "s3://AKIA:ab/s3cret@b/t"}, "base.path carries a password"),
        ({"hoodie.aws.role.arn": "arn:aws:iam::1:role/x"}, "profile_name="),
    ],
)
def test_an_invalid_key_or_value_is_refused_in_one_sentence(
    more: dict[Any, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said) as recorded:
        open_lock(hudi("InProcessLockProvider") | {"hoodie.base.path": "x"} | more)
    assert "s3cret" not in str(recorded.value)


def test_credentials_for_another_cloud_give_a_warning_or_are_refused(tmp_path: Path) -> None:
    aws = {"hoodie.aws.access.key": "AKIA", "hoodie.aws.secret.key": "s3cret"}
    storage = hudi("StorageBasedLockProvider")
    with pytest.warns(UnknownKey, match=r"access.key, .*secret.key has no effect.*AWS") as recorded:
        open_lock(storage | aws | {"hoodie.base.path": f"file://{tmp_path}"})
    assert "s3cret" not in str(recorded[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_lock(storage | aws | {"hoodie.base.path": "s3://b/t"}).close()
    sas = {"hoodie.write.lock.azure.sas.token": "s3cret", "hoodie.base.path": "s3://b/t"}
    with pytest.raises(ValueError, match=r"sas.token is for Azure"):
        open_lock(storage | sas)


def test_hudis_default_wait_of_55_minutes_gives_a_warning_with_the_key_to_set() -> None:
    config = {PROVIDER: HUDI + "InProcessLockProvider", "hoodie.base.path": "x"}
    with pytest.warns(LongWait, match=r"55 minutes.*51 tries of 60 s.*50 pauses of 5 s.*set ") as _:
        assert open_lock(config).acquire_timeout == 51 * 60 + 50 * 5


def test_hudis_tries_and_pauses_add_up_to_one_wait_for_the_lock(tmp_path: Path) -> None:
    path = {"filesystem__path": tmp_path}
    config = hudi("FileSystemBasedLockProvider", wait_time_ms=40, **path) | {
        "hoodie.write.lock.client.num_retries": "2",
        "hoodie.write.lock.client.wait_time_ms_between_retry": "30",
    }
    with FilesystemLock(tmp_path):
        lock = open_lock(config)
        assert lock.acquire_timeout == pytest.approx(0.18)
        with pytest.raises(LockBusy):
            lock.__enter__()
    with lock:
        pass


def test_open_lock_opens_the_lock_of_each_kind_of_url(tmp_path: Path) -> None:
    assert isinstance(open_lock(f"file://{tmp_path}"), Lock)
    assert isinstance(open_lock("memory://x/table", ttl_s=10), Lock)
    file = open_lock(f"filesystem://{tmp_path}/a%20b?expire_minutes=5", acquire_timeout=3)
    assert isinstance(file, FilesystemLock)
    assert (file.url, file.ttl_s, file.acquire_timeout) == (f"{tmp_path}/a b/lock", 300, 3)
    assert open_lock("process://orders/x").url == "orders/x"
    assert open_lock("zookeeper://h:2181/hudi/me@home").url.endswith("/me@home")
    zookeeper = open_lock("zookeeper://h:1,i:2/hudi/locks/orders?session_timeout_s=5")
    assert zookeeper.url == "zookeeper://h:1,i:2/hudi/locks/orders"
    dynamodb = open_lock("dynamodb://eu-west-1/locks/orders?endpoint=http://127.0.0.1:1&lease_s=9")
    assert dynamodb.url == "dynamodb://locks/orders"
    hive = open_lock("hive://h:1,i:2/default/orders?heartbeat_interval_s=5")
    assert hive.url == "hive://h:1,i:2/default/orders"
    blob = open_lock(
        "azure-lease://lake/a/lock?endpoint=http://127.0.0.1:1/devstoreaccount1&ttl_s=20"
    )
    assert blob.url == "az://lake/a/lock"


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("zookeper://h/a/b", "no lock has the scheme 'zookeper'; known: .*filesystem://"),
        ("orders", "no lock has the scheme ''"),
        ("filesystem://orders", "absolute folder"),
        ("process://", "needs a name"),
        ("zookeeper://h:2181/orders", "needs hosts, base path and key"),
        ("dynamodb://eu-west-1/locks", "needs table/key after its host"),
        ("dynamodb:///locks/orders", "needs a region"),
        ("hive://h:9083/orders", "needs database/table after its host"),
        ("hive://h:70000/default/orders", "with a port from 1 to 65535, not 'thrift://h:70000'"),
        ("zookeeper://h:2181,i:70000/a/b", "each port is from 1 to 65535"),
        ("zookeeper://h:x/a/b", "each port is from 1 to 65535"),
        ("azure-lease://container", "needs a container and a blob"),
        ("process://x?ttl=1", "has no option [?]ttl=; known: none"),
        ("filesystem:///x?expire_minutes=s3cret", "expire_minutes= must be a number"),
        ("process://user:s3cret@host", "carries no password"),
        ("zookeeper://user:s3c/s3cret@h:2181/base/key", "carries no password"),
        ("zookeeper://h:2181/base/key?auth=s3cret", "carries no password"),
        ("zookeeper://h:2181/base/key?acl=s3cret", "has no option [?]acl=; known: session"),
        ("dynamodb://us-east-1/table/key?lease_s=s3cret", "lease_s= must be a number"),
        ("dynamodb://us-east-1/table/key?endpoint=http://u:s3cret@h", "carries no password"),
        (
            "azure-lease://c/b?account_url=https%3A%2F%2Fa.blob.core.windows.net%2F%3Fsig%3Ds3cret",
            "carries no password",
        ),
        ("s3://AKIA:ab/s3cret@bucket/t", "carries no password"),
    ],
)
def test_the_error_for_a_url_without_a_lock_says_what_is_wrong_in_it(url: str, named: str) -> None:
    with pytest.raises(ValueError, match=named) as recorded:
        open_lock(url)
    assert "s3cret" not in str(recorded.value)


def acquire(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lockkit", "lock", "acquire", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_the_command_line_runs_a_command_under_any_services_lock(tmp_path: Path) -> None:
    url = f"filesystem://{tmp_path}"
    done = acquire(url, "--timeout", "0", "--", "cat", str(tmp_path / "lock"))
    assert (done.returncode, json.loads(done.stdout)["host"]) == (0, os.uname().nodename)
    with FilesystemLock(tmp_path):
        busy = acquire(url, "--timeout", "0", "--", "true")
    assert (busy.returncode, "is held by" in busy.stderr) == (75, True)


@pytest.mark.parametrize(
    ("url", "ttl_s", "named"),
    [
        ("filesystem:///x", 5.0, "takes options after a [?], but not ttl_s"),
        ("process://x", None, "excludes no command"),
    ],
)
def test_the_command_line_refuses_what_such_a_lock_does_not_take(
    url: str, ttl_s: float | None, named: str
) -> None:
    given = Namespace(url=url, ttl_s=ttl_s, renew_interval_s=None, endpoint=None, region=None,
                      faults=None)  # fmt: skip
    with pytest.raises(ValueError, match=named):
        opened(given)


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [
        ("zookeeper://127.0.0.1:1/hudi/orders", "kazoo", "zookeeper"),
        ("hive://127.0.0.1:1/default/orders", "thrift", "hive"),
    ],
)
def test_a_service_whose_client_is_not_installed_says_what_to_install(
    url: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [each for each in sys.modules if each.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, package, None)
    lock = open_lock(url)
    with pytest.raises(StoreError, match=rf"{package}' is not installed; .*lockkit\[{extra}\]"):
        lock.acquire(timeout=0)


# --- changing the provider of a live table -------------------------------------------------------


def stages(tmp_path: Path) -> dict[str, Callable[[], Any]]:
    """The locks that a writer takes before, during and after a move from a file to an object."""
    old = lambda: FilesystemLock(tmp_path / "old")  # noqa: E731
    new = lambda: Lock(f"file://{tmp_path}/new", ttl_s=60)  # noqa: E731
    return {"old": old, "both": lambda: DoubleLock(old(), new()), "new": new}


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ("old", "both", True), ("both", "old", True), ("both", "both", True),
        ("both", "new", True), ("new", "both", True),
        ("old", "new", False),  # who moves in one step is alone with the new lock
    ],
)  # fmt: skip
def test_writers_one_step_apart_exclude_each_other_and_two_steps_apart_do_not(
    tmp_path: Path, one: str, other: str, apart: bool
) -> None:
    made = stages(tmp_path)
    first, second = made[one](), made[other]()
    assert first.acquire(timeout=0)
    assert second.acquire(timeout=0) is not apart
    first.release()
    if apart:
        assert second.acquire(timeout=0)  # and what it had of the two was given back
    second.release()


def test_writers_move_one_by_one_and_no_increment_is_lost(
    tmp_path: Path, _made: dict[bool, Parties]
) -> None:
    old, new = f"filesystem://{tmp_path}/old", f"file://{tmp_path}/new"
    path = tmp_path / "number"
    path.write_text("0")
    writers = _made[False](WRITERS, [old], {})
    rounds = 0
    for stage in ([old, new], [new]):
        for mover in writers:  # the others go on with the lock that they have
            for each in writers:
                each.tell("count", path=str(path), times=2)
            for each in writers:
                assert each.said()[0] == "returned"
            mover.ask("open", urls=stage, options={})
            rounds += 1
    assert int(path.read_text()) == rounds * WRITERS * 2


def test_the_loss_of_either_is_the_loss_of_both(tmp_path: Path) -> None:
    both = stages(tmp_path)["both"]()
    both.acquire(timeout=0)
    both.assert_held()
    (tmp_path / "old" / "lock").unlink()
    with pytest.raises(LockLost):
        both.renew()
    with pytest.raises(LockLost):
        both.assert_held()
    assert not both.owned()
    with pytest.raises(LockLost):
        both.release()
    assert both.new.acquire(timeout=0)  # the other was given back all the same


def test_the_first_lock_is_released_even_if_releasing_the_second_fails(tmp_path: Path) -> None:
    def trouble(kind: str, **_: Any) -> None:
        if kind == "held":  # the old one is lost, and the new one's folder is gone
            (tmp_path / "old" / "lock").unlink()
            with pytest.raises(LockLost):
                both.old.renew()
            shutil.rmtree(tmp_path / "new")

    both = DoubleLock(
        FilesystemLock(tmp_path / "old"), FilesystemLock(tmp_path / "new", emit=trouble)
    )
    with pytest.raises(LockLost, match="old/lock"):
        both.acquire(timeout=0)
    assert both.old.acquire(timeout=0)
    both.old.release()


def test_both_locks_are_awaited_under_one_deadline_and_neither_is_kept(tmp_path: Path) -> None:
    made = stages(tmp_path)
    holder, both = made["new"](), made["both"]()
    holder.acquire()
    both.acquire_timeout = 0.05
    with pytest.raises(LockBusy, match="/new"):
        both.__enter__()
    assert not both.locked() or not both.old.locked()
    holder.release()
    with both:
        assert both.fences[1] is not None


# --- for an operator ------------------------------------------------------------------------------

SHOWN = ("zookeeper", "dynamodb", "hive", "azure_lease", "filesystem")


@of(*SHOWN)
def test_a_holder_is_shown_and_its_grant_ended_by_the_version_that_was_shown(world: World) -> None:
    holder = open_lock(world.lock, **world.options)
    operator = open_lock(world.lock, **world.options)
    try:
        assert not isinstance(operator, Lock)
        assert operator.holder() is None
        assert holder.acquire(timeout=PATIENCE_S)
        shown = operator.holder()
        assert shown is not None
        assert holder.owner[:12] in shown.owner
        assert f"/{os.getpid()}" in shown.owner or f"pid {os.getpid()}" in shown.owner
        with pytest.raises(BreakRefused, match="look again"):
            operator.break_lock("0x0" if shown.certain else '"0x0"')
        assert operator.holder() is not None
        version = (operator.holder() or shown).version
        with pytest.raises(BreakRefused, match="its process runs on this host"):
            operator.break_lock(version)
        operator.break_lock(version, force=True)
        assert operator.holder() is None
        assert operator.acquire(timeout=PATIENCE_S)
        with pytest.raises((LockLost, StoreError)):
            holder.release()
            holder.assert_held()
        operator.release()
    finally:
        holder.close()
        operator.close()


@of("dynamodb", "hive", "filesystem")
def test_a_holder_that_renews_after_it_was_shown_is_not_broken(world: World) -> None:
    with open_lock(world.lock, **world.options) as holder, \
         closing(open_lock(world.lock, **world.options)) as operator:  # fmt: skip
        assert not isinstance(operator, Lock)
        shown = operator.holder()
        assert shown is not None
        Clock().sleep(0.01)
        holder.renew()
        with pytest.raises(BreakRefused, match="look again"):
            operator.break_lock(shown.version)
        holder.renew()


@of("azure_lease", "filesystem")
def test_the_command_line_shows_a_services_holder_and_breaks_its_lock(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    url = world.lock
    assert main(["lock", "show", url]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["  free"]
    # A lease that was broken may still be released by its own id on Azure.
    with suppress(LockLost), open_lock(url, owner="etl-3"):
        assert main(["lock", "show", url, "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert "etl-3" in shown["owner"]
        assert shown["ends"]
        assert main(["lock", "break", url, "--version", '"another"']) == 75
        capsys.readouterr()
        assert main(["lock", "break", url]) == 75
        assert "must not be broken now" in capsys.readouterr().out
        this = ["lock", "break", url, "--version", shown["version"]]
        assert main(this) == 75, "its process runs on this host"
        assert main([*this, "--force"]) == 0
        assert "free now" in capsys.readouterr().out
    assert main(["lock", "break", url]) == 0
    assert "nothing to break" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [
    ["show", "process://a"], ["show", "zookeeper://"],
    ["show", "dynamodb://r/t/k", "--region", "x"],
    ["break", "filesystem:///tmp", "--version", "v", "--epoch", "3"],
    ["break", "filesystem:///tmp", "--watch-s", "1"],
    ["show", "filesystem:///tmp", "--newest", "3"],
])  # fmt: skip
def test_options_that_a_services_lock_does_not_have_are_refused(arguments: list[str]) -> None:
    assert main(["lock", *arguments]) == 64


def test_a_read_from_a_silent_service_ends_in_the_given_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("thrift", reason="the client of Hive's metastore needs thrift")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"hive://127.0.0.1:{silent.getsockname()[1]}/db/orders"
        began = time.monotonic()
        assert main(["lock", "show", url, "--timeout-s", "0.3"]) == 3
        assert time.monotonic() - began < 5
    assert "did not answer" in capsys.readouterr().err
