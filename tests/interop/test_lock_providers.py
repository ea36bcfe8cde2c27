"""Hudi's own lock providers and ours, by the same properties on one lock of one service.

Each of Hudi's is that of the bundle (`HUDI`), but DynamoDB's: the AWS module is not in the bundle,
and the last that Maven Central has here is `WITH_AWS`, which has no implicit partition key yet.
Hudi's lock file excludes nobody who comes at the same moment (see filesystem.py): no race for it.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from environment import HUDI, Environment, Unavailable
from hive_metastore.ttypes import ShowLocksRequest
from jvm import ALONE, WITH_ALL, fetched
from jvm import Party as Java
from kazoo.client import KazooClient
from metastore_client import connected
from provider_world import Party

from lockkit.lock.hudi_keys import key_of_base_path
from lockkit.providers.dynamodb import COUNTER
from lockkit.stores import StoreOptions, aws

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

LOCK, CLIENT = "hoodie.write.lock.", "org.apache.hudi.client.transaction.lock."
LEASE_S = 6
LONGER_S, LONGER_MS = 1.5 * LEASE_S, 1_500 * LEASE_S
PATIENCE_S, PATIENCE_MS = 50.0, 50_000
"""A lease, a service's own look at who is silent, and a loaded machine."""
TURNS = 4
SHARED = {f"{LOCK}wait_time_ms": str(1000 * LEASE_S), f"{LOCK}client.num_retries": "0"}
WITH_AWS = "0.15.0"
MODULES = {
    ("org.apache.hudi", name, WITH_AWS): ALONE
    for name in ("hudi-aws", "hudi-common", "hudi-client-common", "hudi-hadoop-common", "hudi-io")
} | {("com.amazonaws", "dynamodb-lock-client", "1.2.0"): WITH_ALL}
_KEYS = itertools.count()


@dataclass(frozen=True)
class World:
    """One provider's lock that nobody else uses."""

    config: dict[str, str]
    """Hudi's properties, the same for both sides."""
    place: str
    held: Callable[[], list[str]]
    """The place of each who holds or awaits a lock of this service, as neither side tells it."""
    age: Callable[[], None] = lambda: None
    """Lets a lease's time go by, where the shortest is too long to wait."""


def zookeeper(key: str, service: Any, _: Path) -> World:
    config = {f"{LOCK}zookeeper.lock_key": key, f"{LOCK}zookeeper.session_timeout_ms": "6000"}
    return World(service.recipe() | config, f"/hudi/locks/{key}", lambda: contended(service))


def zookeeper_implicit(key: str, service: Any, _: Path) -> World:
    base = f"s3a://lake/{key}"
    config = {
        f"{LOCK}provider": f"{CLIENT}ZookeeperBasedImplicitBasePathLockProvider",
        f"{LOCK}zookeeper.url": service.address, f"{LOCK}zookeeper.session_timeout_ms": "6000",
        "hoodie.base.path": base,
    }  # fmt: skip
    return World(config, f"/tmp/{key_of_base_path(base)}/lock_key", lambda: contended(service))


def contended(service: Any) -> list[str]:
    client = KazooClient(service.address)
    client.start(timeout=30)
    try:
        found, paths = [], ["/hudi", "/tmp"]
        while paths:
            path = paths.pop()
            names = client.get_children(path) if client.exists(path) else []
            found += [path for name in names if "-lock-" in name]
            paths += [f"{path}/{name}" for name in names if "-lock-" not in name]
        return found
    finally:
        client.stop()
        client.close()


def hive(key: str, service: Any, _: Path) -> World:
    def held() -> list[str]:
        with connected(service.address) as client:
            rows = client.show_locks(ShowLocksRequest()).locks
        return [f"{row.dbname}.{row.tablename}" for row in rows]

    config = {f"{LOCK}hivemetastore.table": key, f"{LOCK}heartbeat_interval_ms": "2000"}
    return World(service.recipe() | config, f"default.{key}", held)


def dynamodb(key: str, service: Any, _: Path) -> World:
    def held() -> list[str]:
        sdk = aws.client("dynamodb", StoreOptions(endpoint=service.endpoint), service.endpoint)
        keys = [item["key"]["S"] for item in sdk.scan(TableName="locks")["Items"]]
        return [each for each in keys if not each.endswith(COUNTER)]

    return World(service.recipe() | {f"{LOCK}dynamodb.partition_key": key}, key, held)


def filesystem(_: str, __: Any, folder: Path) -> World:
    base = folder / "table"
    base.mkdir()
    file = base / ".hoodie" / "lock"

    def age() -> None:
        at = time.time() - 61
        os.utime(file, (at, at))

    config = {
        f"{LOCK}provider": f"{CLIENT}FileSystemBasedLockProvider", f"{LOCK}filesystem.expire": "1",
        "hoodie.base.path": str(base),
    }  # fmt: skip
    return World(config, str(file), lambda: [str(each) for each in base.rglob("lock")], age)


SERVICES = {
    zookeeper: "zookeeper", zookeeper_implicit: "zookeeper", hive: "metastore",
    dynamodb: "dynamodb", filesystem: "tmp_path",
}  # fmt: skip


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """Of the provider that is the parameter."""
    made = request.param
    found = made(f"orders_{next(_KEYS)}", request.getfixturevalue(SERVICES[made]), tmp_path)
    return World(SHARED | found.config, found.place, found.held, found.age)


@pytest.fixture
def hudi(
    request: pytest.FixtureRequest, world: World, environment: Environment, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[], Java]]:  # fmt: skip
    """Starts Hudi's provider of this lock, each in a process of its own."""
    sparks = next(environment.python.parents[1].glob("lib/python*/site-packages/pyspark/jars"))
    classes = next(str(each) for each in environment.jars if each.stem.endswith(f"-{HUDI}"))
    if ".aws." in world.config[f"{LOCK}provider"]:
        try:
            classes = fetched(f"hudi-aws-{WITH_AWS}", MODULES)
        except Unavailable as reason:
            pytest.skip(str(reason))
        # The region also here: that of Hudi's properties only makes the default endpoint.
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "thing")
    arguments = [f"{key}={value}" for key, value in world.config.items()]
    made: list[Java] = []

    def start() -> Java:
        log = tmp_path / f"hudi-{len(made)}.log"
        made.append(Java("HudiLock.java", f"{classes}:{sparks}/*", arguments, log))
        return made[-1]

    yield start
    for each in made:
        each.kill()


@pytest.fixture
def ours(world: World) -> Iterator[Party]:
    """Ours of this lock, in a process of its own."""
    made = Party(thread=False)
    made.ask("open", urls=[world.config], options={})
    yield made
    made.end()


def name_of(made: Callable[..., World]) -> str:
    return made.__name__


every = pytest.mark.parametrize("world", SERVICES, indirect=True, ids=name_of)


@every
def test_each_client_waits_for_the_other_and_is_granted_after_its_release(
    world: World, hudi: Callable[[], Java], ours: Party
) -> None:
    theirs = hudi()
    assert theirs("acquire 0")
    assert world.held() == [world.place]
    assert not ours.ask("acquire", timeout=LONGER_S), "they hold it, for more than a lease"
    assert theirs("release")
    assert world.held() == []
    assert ours.ask("acquire", timeout=PATIENCE_S)
    assert world.held() == [world.place]
    assert not theirs(f"acquire {LONGER_MS}"), "we hold it, for more than a lease"
    ours.ask("assert_held")
    ours.ask("release")
    assert world.held() == []
    assert theirs("acquire 0")
    assert theirs("release")


@every
def test_a_killed_holder_is_succeeded_by_the_other_client(
    world: World, hudi: Callable[[], Java], ours: Party
) -> None:
    theirs = hudi()
    assert theirs("acquire 0")
    theirs.kill()
    assert world.held() == [world.place], "nobody gave it back"
    world.age()
    assert ours.ask("acquire", timeout=PATIENCE_S)
    theirs = hudi()
    ours.signal(signal.SIGKILL)
    assert world.held() == [world.place]
    world.age()
    assert theirs(f"acquire {PATIENCE_MS}")
    assert theirs("release")


@pytest.mark.parametrize("world", [zookeeper, hive, dynamodb], indirect=True, ids=name_of)
def test_writers_of_both_kinds_lose_no_increment(
    world: World, hudi: Callable[[], Java], ours: Party, tmp_path: Path
) -> None:
    number = tmp_path / "number"
    number.write_text("0")
    theirs = hudi()
    theirs.tell(f"count {number} {TURNS}")
    ours.ask("count", path=str(number), times=TURNS)
    assert theirs.said()
    assert number.read_text() == str(2 * TURNS)


@pytest.mark.parametrize("world", [filesystem], indirect=True)
def test_hudis_lock_file_is_empty_and_described_as_hudis(
    world: World, hudi: Callable[[], Java], ours: Party
) -> None:
    theirs = hudi()
    assert theirs("acquire 0")
    assert Path(world.place).read_bytes() == b""
    assert not ours.ask("acquire", timeout=0)
    assert "as Hudi does, since " in ours.ask("busy_reason")
    assert theirs("release")


@pytest.mark.parametrize("world", [filesystem], indirect=True)
def test_a_hudi_writer_that_closes_deletes_our_lock_file_and_the_holder_learns_of_it(
    world: World, hudi: Callable[[], Java], ours: Party
) -> None:
    assert ours.ask("acquire", timeout=0)
    theirs = hudi()
    assert not theirs("acquire 0")
    assert theirs("close")
    assert world.held() == []
    assert "its file was deleted" in ours.refused("renew")
