"""The lock in ZooKeeper against a real server: Curator's queue, and a belief that ends in time."""

from __future__ import annotations

import gc
import itertools
import os
import re
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl
from lock_world import SPAWN, Tale, until
from service_world import Wire, curator

from lockkit.cli.main import main
from lockkit.clock import process_name
from lockkit.errors import LockBusy, LockLost, NoAnswer, StoreError
from lockkit.lab.processes.services.zookeeper import SESSION_MS_MAX
from lockkit.lock.handle import UnprovenRelease
from lockkit.providers.zookeeper import ZookeeperLock, in_order
from lockkit.spark.connect import free_port

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("zookeeper")]

BASE = "/hudi/locks"
SESSION_S = 4.0
WRITER, STRANGER = ("digest", "writer:secret-of-writer"), ("digest", "stranger:guess")
_KEYS = itertools.count()


@pytest.fixture
def key() -> str:
    return f"orders-{next(_KEYS)}"


@pytest.fixture
def make(zookeeper: Any, key: str) -> Iterator[Callable[..., ZookeeperLock]]:
    """Handles of this test's own lock, closed when it ends."""
    made: list[ZookeeperLock] = []

    def lock(at: str = "", **options: Any) -> ZookeeperLock:
        defaults = {"session_timeout_s": SESSION_S, "connection_timeout_s": 10.0}
        made.append(ZookeeperLock(at or zookeeper.address, BASE, key, **defaults | options))
        return made[-1]

    yield lock
    for each in made:
        each.close()


@pytest.fixture
def server(zookeeper: Any) -> Iterator[Callable[..., KazooClient]]:
    """A client beside the lock: what is really there."""
    made: list[KazooClient] = []

    def client(*auth: tuple[str, str]) -> KazooClient:
        made.append(KazooClient(zookeeper.address, auth_data=list(auth)))
        made[-1].start(timeout=30)
        return made[-1]

    yield client
    for each in made:
        each.stop()
        each.close()


def nodes(client: KazooClient, key: str) -> list[str]:
    return sorted(client.get_children(f"{BASE}/{key}")) if client.exists(f"{BASE}/{key}") else []


# --- the queue -----------------------------------------------------------------------------------


def test_a_contender_is_named_and_described_as_curators_and_hudis(
    make: Callable[..., ZookeeperLock], server: Callable[..., KazooClient], key: str
) -> None:
    lock = make(owner="spark-7")
    assert lock.acquire(timeout=30)
    (name,) = nodes(server(), key)
    assert re.fullmatch(r"_c_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-lock-\d{10}", name)
    data, stat = server().get(f"{BASE}/{key}/{name}")
    assert data == b"application_id=spark-7\nprocess=" + process_name().encode()
    assert stat.ephemeralOwner and lock.fence is not None and lock.fence.epoch == stat.czxid


def test_curators_mutex_and_ours_exclude_each_other_in_turn(
    make: Callable[..., ZookeeperLock], zookeeper: Any, key: str
) -> None:
    with curator(zookeeper.address, f"{BASE}/{key}") as rival:
        ours = make()
        assert rival.ask("acquire 30") == "true"
        assert not ours.acquire(timeout=0)
        waiting = threading.Thread(target=ours.acquire, kwargs={"timeout": 60})
        waiting.start()
        assert rival.ask("release") == "released"
        waiting.join(60)
        assert ours.owned()
        assert rival.ask("acquire 0") == "false"
        ours.release()
        assert rival.ask("acquire 30") == "true"


def test_waiters_are_granted_in_the_order_of_their_nodes_and_tokens_rise(
    make: Callable[..., ZookeeperLock], server: Callable[..., KazooClient], key: str
) -> None:
    first, locks, came = make(), [make() for _ in range(3)], []
    assert first.acquire(timeout=30)
    look, threads = server(), []

    def wait(lock: ZookeeperLock) -> None:
        assert lock.acquire(timeout=60)
        came.append((lock, lock.fence.epoch if lock.fence else 0))
        lock.release()

    for number, each in enumerate(locks):
        threads.append(threading.Thread(target=wait, args=(each,)))
        threads[-1].start()
        until(lambda number=number: len(nodes(look, key)) == number + 2)
    first.release()
    for thread in threads:
        thread.join(60)
    assert [lock for lock, _ in came] == locks
    assert [token for _, token in came] == sorted(token for _, token in came)


def test_a_persistent_node_is_said_to_be_of_no_session_and_to_end_by_a_break_only(
    make: Callable[..., ZookeeperLock], server: Callable[..., KazooClient], zookeeper: Any,
    key: str, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path, url = f"{BASE}/{key}", f"zookeeper://{zookeeper.address}{BASE}/{key}"
    server().ensure_path(f"{path}/_c_1-lock-0000000000")
    assert main(["lock", "show", url]) == 1
    shown = capsys.readouterr().out
    assert "ends     never" in shown and "no session has its node" in shown
    assert main(["incident", url, "--watch-s", "0"]) == 1
    assert "holder died" in (said := capsys.readouterr().out) and "no session has" in said
    assert main(["lock", "break", url, "--version", "_c_1-lock-0000000000"]) == 0
    assert nodes(server(), key) == []
    assert make(owner="alice").acquire(timeout=30)
    assert main(["lock", "show", url]) == 0
    assert "when its session times out" in capsys.readouterr().out


def test_a_waiter_that_times_out_leaves_no_node_and_names_the_holder(
    make: Callable[..., ZookeeperLock], server: Callable[..., KazooClient], key: str
) -> None:
    holder, other = make(owner="alice"), make(acquire_timeout=0)
    assert holder.acquire(timeout=30)
    with pytest.raises(LockBusy, match="held by 'alice'"), other:
        pass
    assert len(nodes(server(), key)) == 1


def test_a_queue_place_removed_while_waiting_is_taken_again(
    make: Callable[..., ZookeeperLock], server: Callable[..., KazooClient], key: str
) -> None:
    holder, waiter, look = make(), make(), server()
    assert holder.acquire(timeout=30)
    thread = threading.Thread(target=waiter.acquire, kwargs={"timeout": 60})
    thread.start()
    until(lambda: len(nodes(look, key)) == 2)
    look.delete(f"{BASE}/{key}/{max(nodes(look, key), key=lambda name: name[-10:])}")
    holder.release()
    thread.join(60)
    assert waiter.owned()


def test_after_two_to_the_31_contenders_no_client_is_granted() -> None:
    assert in_order("_c_x-lock-0000000007")
    with pytest.raises(StoreError, match="overflowed"):
        in_order("_c_x-lock--2147483648")


# --- answers that are lost -----------------------------------------------------------------------


def test_a_node_whose_creation_was_never_answered_is_found_by_its_guid(
    make: Callable[..., ZookeeperLock], zookeeper: Any, server: Callable[..., KazooClient], key: str
) -> None:
    with Wire(zookeeper.port) as wire:
        lock = make(wire.address)
        assert lock.acquire(timeout=30)  # the session and the path are there
        lock.release()
        wire.lose(b"-lock-")
        assert lock.acquire(timeout=60)
        assert wire.lost.is_set()
        assert len(nodes(server(), key)) == 1
        lock.release()
        assert nodes(server(), key) == []


def test_a_release_whose_answer_was_lost_is_proven_by_a_read(
    make: Callable[..., ZookeeperLock], zookeeper: Any, server: Callable[..., KazooClient], key: str
) -> None:
    with Wire(zookeeper.port) as wire, warnings.catch_warnings():
        warnings.simplefilter("error")
        lock = make(wire.address)
        assert lock.acquire(timeout=30)
        (name,) = nodes(server(), key)
        # A deletion names the node and its version, any: four bytes of ones.
        wire.lose(name.encode() + b"\xff\xff\xff\xff")
        lock.release()
        assert wire.lost.is_set()
        assert nodes(server(), key) == []


def test_an_unanswered_release_ends_the_session_and_with_it_the_node(
    make: Callable[..., ZookeeperLock], zookeeper: Any, server: Callable[..., KazooClient], key: str
) -> None:
    with Wire(zookeeper.port) as wire:
        lock, look = make(wire.address, session_timeout_s=2.0), server()
        assert lock.acquire(timeout=30)
        wire.refuse()
        with pytest.warns(UnprovenRelease):
            lock.release()
        wire.admit()  # kazoo, left alone, would come back and keep the node alive
        until(lambda: nodes(look, key) == [])


# --- losing it -----------------------------------------------------------------------------------


def hold(pipe: Any, address: str, key: str) -> None:
    lock = ZookeeperLock(address, BASE, key, session_timeout_s=2.0)
    lock.acquire()
    pipe.send("held")
    pipe.recv()
    by_kazoo = lock._session._client.state if lock._session else "none"
    try:
        lock.assert_held()
        pipe.send(("still held", by_kazoo))
    except LockLost as lost:
        pipe.send((str(lost), by_kazoo))


def test_a_holder_that_was_stopped_for_longer_than_its_session_has_lost_it_when_it_wakes(
    make: Callable[..., ZookeeperLock], zookeeper: Any, key: str
) -> None:
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=hold, args=(there, zookeeper.address, key), daemon=True)
    process.start()
    try:
        assert here.poll(60) and here.recv() == "held"
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        second = make()
        assert second.acquire(timeout=60)  # its session expired
        here.send("go on")
        os.kill(process.pid, signal.SIGCONT)
        assert here.poll(60)
        said, _ = here.recv()
        assert "acquire it again" in said
        assert second.owned()
    finally:
        process.kill()
        process.join(10)


def test_the_local_grant_expires_before_the_session_can(
    make: Callable[..., ZookeeperLock], zookeeper: Any
) -> None:
    danger, lost, tale = threading.Event(), threading.Event(), Tale()
    lock = make(
        session_timeout_s=2.0, emit=tale,
        on_danger=lambda _: danger.set(), on_lost=lambda *_: lost.set(),
    )  # fmt: skip
    assert lock.acquire(timeout=30)
    zookeeper.freeze()
    try:
        assert lost.wait(60) and danger.is_set()
        assert not lock.owned()
    finally:
        zookeeper.thaw()
    assert [each.kind for each in tale.events if each.kind in ("danger", "lost")] == [
        "danger", "lost",
    ]  # fmt: skip
    with pytest.raises(LockLost, match="lease ran out"):
        lock.release()
    assert lock.acquire(timeout=60)  # by another session


def test_a_node_deleted_by_hand_is_a_final_loss(
    make: Callable[..., ZookeeperLock], server: Callable[..., KazooClient], key: str
) -> None:
    lost = threading.Event()
    lock = make(on_lost=lambda *_: lost.set())
    assert lock.acquire(timeout=30)
    look = server()
    look.delete(f"{BASE}/{key}/{nodes(look, key)[0]}")
    assert lost.wait(30)
    assert make().acquire(timeout=30)
    with pytest.raises(LockLost, match="node is gone"):
        lock.release()


def test_a_session_closed_by_the_server_is_reported_at_once_although_kazoo_would_reconnect(
    make: Callable[..., ZookeeperLock], zookeeper: Any, server: Callable[..., KazooClient]
) -> None:
    tale = Tale()
    lock = make(session_timeout_s=50.0, emit=tale)  # its next beat is far
    assert lock.acquire(timeout=30)
    assert lock._session is not None
    thief = KazooClient(zookeeper.address, client_id=lock._session._client.client_id)
    thief.start(timeout=30)
    thief.stop()  # closes the session that both have
    thief.close()
    until(lambda: tale.of("lost"))
    assert not lock.owned()
    with pytest.raises(LockLost, match="the ZooKeeper session expired"):
        lock.release()


@pytest.mark.timeout(400)  # the session's end, of which the holder hears, is the limit
def test_a_restart_of_the_server_costs_no_lock(
    make: Callable[..., ZookeeperLock], zookeeper: Any
) -> None:
    tale = Tale()
    # Far longer than a JVM takes to start, also where three workers share a slow machine.
    holder, other = make(session_timeout_s=240.0, emit=tale), make()
    assert holder.acquire(timeout=30)
    zookeeper.kill()
    zookeeper.start()
    until(lambda: tale.of("renewed") or tale.of("lost"), within_s=300)
    assert not tale.of("lost"), tale.events
    assert holder.owned() and not other.acquire(timeout=0)
    holder.release()
    assert other.acquire(timeout=60)


def test_a_missing_server_is_reported_and_not_as_a_busy_lock() -> None:
    lock = ZookeeperLock(f"127.0.0.1:{free_port()}", BASE, "x", connection_timeout_s=0.2)
    with pytest.raises(NoAnswer, match="is it running"):
        lock.acquire(timeout=0.1)
    lock.close()


def test_a_holder_relies_on_no_longer_lease_than_the_server_granted(
    make: Callable[..., ZookeeperLock],
) -> None:
    lock = make(session_timeout_s=3000.0)
    assert lock.acquire(timeout=30)
    assert lock.ttl_s is not None and lock.ttl_s < SESSION_MS_MAX / 1000


def test_a_garbage_collected_handle_ends_its_session(zookeeper: Any) -> None:
    before = threading.active_count()
    lock = ZookeeperLock(zookeeper.address, BASE, "dropped", session_timeout_s=SESSION_S)
    assert not lock.locked()
    del lock
    gc.collect()
    until(lambda: threading.active_count() <= before)


# --- who may touch it ----------------------------------------------------------------------------


def test_another_identity_can_neither_read_nor_delete_nor_join(
    make: Callable[..., ZookeeperLock], server: Callable[..., KazooClient], key: str
) -> None:
    from kazoo.exceptions import NoAuthError

    server().ensure_path(BASE)
    lock = make(auth=WRITER)
    assert lock.acquire(timeout=30)
    path = f"{BASE}/{key}"
    (name,) = server(WRITER).get_children(path)
    for touch in (
        lambda zk: zk.get(f"{path}/{name}"),
        lambda zk: zk.set(f"{path}/{name}", b"mine"),
        lambda zk: zk.delete(f"{path}/{name}"),
        lambda zk: zk.create(f"{path}/_c_0-lock-", ephemeral=True, sequence=True),
    ):
        with pytest.raises(NoAuthError):
            touch(server(STRANGER))
    for auth in (STRANGER, None):
        with pytest.raises(StoreError, match="does not let this identity"):
            make(auth=auth).acquire(timeout=5)
    lock.renew()


def test_credentials_are_in_no_log_at_any_log_level_of_kazoo(
    make: Callable[..., ZookeeperLock],
    server: Callable[..., KazooClient],
    caplog: pytest.LogCaptureFixture,
) -> None:
    server().ensure_path(BASE)  # by somebody who keeps nobody out
    caplog.clear()
    with caplog.at_level(0), make(auth=WRITER):
        pass
    assert "Sending request" in caplog.text
    assert "secret-of-writer" not in caplog.text


def test_a_release_that_is_refused_ends_the_session_and_with_it_the_node(
    make: Callable[..., ZookeeperLock], server: Callable[..., KazooClient], key: str
) -> None:
    user, password = WRITER[1].split(":")
    server().ensure_path(BASE)
    look = server(("digest", "admin:secret"))
    admin = make_digest_acl("admin", "secret", all=True)
    writer = make_digest_acl(user, password, read=True, create=True, delete=True)
    look.create(f"{BASE}/{key}", acl=[writer, admin])
    lock = make(auth=WRITER)
    assert lock.acquire(timeout=30)
    look.set_acls(f"{BASE}/{key}", [make_digest_acl(user, password, read=True), admin])
    with pytest.raises(StoreError, match="does not let this identity delete"):
        lock.release()
    until(lambda: nodes(look, key) == [])


def test_a_writer_needs_to_read_create_and_delete_and_no_more(
    make: Callable[..., ZookeeperLock], server: Callable[..., KazooClient], key: str
) -> None:
    user, password = WRITER[1].split(":")
    least = make_digest_acl(user, password, read=True, create=True, delete=True)
    admin = make_digest_acl("admin", "secret", all=True)
    server().create(f"{BASE}/{key}", acl=[least, admin], makepath=True)
    lock, rival = make(auth=WRITER), make(auth=WRITER)
    assert lock.acquire(timeout=30) and not rival.acquire(timeout=0)
    lock.release()
    assert rival.acquire(timeout=30)


def test_credentials_on_a_node_with_open_delete_rights_are_refused_with_the_remedy(
    make: Callable[..., ZookeeperLock], server: Callable[..., KazooClient], key: str
) -> None:
    look = server()
    look.ensure_path(f"{BASE}/{key}")
    with pytest.raises(StoreError, match="setAcl") as refused:
        make(auth=WRITER).acquire(timeout=30)
    assert "secret" not in str(refused.value)
    assert nodes(look, key) == []


def test_the_implicit_lock_of_a_table_is_where_hudi_looks_for_it() -> None:
    lock = ZookeeperLock.of_base_path("127.0.0.1:1", "s3a://lake/orders")
    same = ZookeeperLock.of_base_path("127.0.0.1:1", "s3://lake/orders")
    assert re.fullmatch(r"/tmp/[0-9A-F]{16}/lock_key", lock.path) and lock.path == same.path


@pytest.mark.parametrize(
    ("base", "name"), [("hudi", "k"), ("/hudi", ""), ("/a//b", "k"), ("/a/..", "k")]
)
def test_a_path_that_zookeeper_would_refuse_is_refused_at_once(base: str, name: str) -> None:
    with pytest.raises(ValueError, match="base_path" if name else "lock_key"):
        ZookeeperLock("127.0.0.1:1", base, name)
