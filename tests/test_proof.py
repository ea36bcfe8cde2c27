"""The proof that a store enforces write conditions: asked wherever the requests really go."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lock_world import record

from lockkit import proof
from lockkit.clock import Clock
from lockkit.drive import run
from lockkit.emulator import Emulator
from lockkit.faults import Fault, Proxy
from lockkit.lock import Lock, LockBusy
from lockkit.outcome import (
    Applied,
    Condition,
    Found,
    IfAbsent,
    IfVersion,
    PreconditionFailed,
    WriteAnswer,
)
from lockkit.patterns.election import Election
from lockkit.patterns.queue import GroupQueue, Queue
from lockkit.patterns.queue.broker import BrokerServer
from lockkit.patterns.queue.brokered import BrokerQueue
from lockkit.patterns.striped import StripedLock
from lockkit.patterns.terraform import StateLock
from lockkit.patterns.wal import Wal
from lockkit.proof import TABLE_KEY, place_of, prove_conditions
from lockkit.stores import NoAnswer, Store, StoreError, UnsafeStore, open_store
from lockkit.stores.endpoint import is_providers_own
from lockkit.stores.memory import MemoryStore
from lockkit.table.handle import Table
from lockkit.table.javafile import format_properties
from lockkit.table.properties import PROPERTIES_KEY, TableConfig, create_table, to_properties
from lockkit.table.turns import CONCURRENCY_KEY, SINGLE

ROOT = Path(__file__).parents[1]
IGNORES = "ignored a write condition"
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
ONE_ENDPOINT = "[default]\nregion = us-east-1\nendpoint_url = {s3}\n"
ONE_SERVICE = """[default]
region = us-east-1
services = here

[services here]
s3 =
  endpoint_url = {s3}
"""
ACCOUNT_URL = "{azure}/devstoreaccount1"
CONNECTION = (
    "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;"
    f"AccountKey={AZURE_KEY};BlobEndpoint={{azure}}/devstoreaccount1;"
)

Environment = dict[str, str]
# How a program can name a server without lockkit's `endpoint=`: the URL's scheme, the environment,
# a file of ~/.aws/config, and options that the SDK's client takes.
WAYS: dict[str, tuple[str, Environment, str, dict[str, Any]]] = {
    "AWS_ENDPOINT_URL": ("s3", {"AWS_ENDPOINT_URL": "{s3}", **CREDENTIALS}, "", {}),
    "AWS_ENDPOINT_URL_S3": ("s3", {"AWS_ENDPOINT_URL_S3": "{s3}", **CREDENTIALS}, "", {}),
    "endpoint_url in ~/.aws/config": ("s3", CREDENTIALS, ONE_ENDPOINT, {}),
    "services in ~/.aws/config": ("s3", CREDENTIALS, ONE_SERVICE, {}),
    "STORAGE_EMULATOR_HOST": ("gs", {"STORAGE_EMULATOR_HOST": "{gcs}"}, "", {}),
    "api_endpoint": (
        "gs", {}, "",
        {"client_options": {"api_endpoint": "{gcs}"}, "use_auth_w_custom_endpoint": False},
    ),
    "account_url": ("az", {}, "", {"account_url": ACCOUNT_URL}),
    "AZURE_STORAGE_CONNECTION_STRING": (
        "az", {"AZURE_STORAGE_CONNECTION_STRING": CONNECTION}, "", {}
    ),
}  # fmt: skip


@pytest.fixture(params=WAYS)
def way(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[Emulator], tuple[str, dict[str, Any]]]:
    """Configures the SDKs for a server; answers the URL's scheme and the options to open it."""

    def configure(server: Emulator) -> tuple[str, dict[str, Any]]:
        scheme, environment, config, options = WAYS[request.param]
        addresses = {"s3": server.s3, "gcs": server.gcs, "azure": server.azure}
        for name, value in environment.items():
            monkeypatch.setenv(name, value.format(**addresses))
        if config:
            (tmp_path / "config").write_text(config.format(**addresses))
            monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        return scheme, _filled(options, addresses)

    return configure


def _filled(options: dict[str, Any], addresses: Environment) -> dict[str, Any]:
    return {
        name: _filled(value, addresses) if isinstance(value, dict)
        else value.format(**addresses) if isinstance(value, str) else value
        for name, value in options.items()
    }  # fmt: skip


# --- where the requests go ------------------------------------------------------------------------


def test_a_store_that_ignores_conditions_is_refused_however_its_address_was_given(
    way: Callable[[Emulator], tuple[str, dict[str, Any]]], bucket: str
) -> None:
    with Emulator(profile="spaces") as server:
        scheme, options = way(server)
        lock = Lock(f"{scheme}://{bucket}/t", ttl_s=10, **options)
        for _ in range(2):
            with pytest.raises(UnsafeStore, match=IGNORES) as refused:
                lock.acquire(timeout=5)
        assert lock.store.server in str(refused.value)
        assert lock.store.server in (server.s3, server.gcs, server.azure)
        lock.close()
        keys = {each["key"] for each in server.requests() if each["method"] == "put"}
        assert keys == {f"t/{TABLE_KEY}"}, "the lock object was never written"


def test_a_sound_store_is_locked_however_its_address_was_given(
    way: Callable[[Emulator], tuple[str, dict[str, Any]]], bucket: str, shared_emulator: Any
) -> None:
    scheme, options = way(shared_emulator)
    with Lock(f"{scheme}://{bucket}/t", ttl_s=10, **options) as lock:
        assert lock.fence.epoch == 1


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://bucket/t", {}),
        ("s3://bucket/t", {"region_name": "cn-north-1"}),
        ("az://box/t", {"account_url": "https://lake.blob.core.windows.net", "credential": "aa=="}),
        ("abfss://box@lake.dfs.core.windows.net/t", {"credential": "aa=="}),
    ],
)
def test_the_providers_own_servers_are_asked_for_no_proof(
    url: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in WAYS:
        monkeypatch.delenv(name, raising=False)
    store = open_store(url, **options)
    assert place_of(store) is None and is_providers_own(store.server), store.server
    prove_conditions(store, Clock())  # sends nothing: no such account or bucket exists
    store.close()


@pytest.mark.parametrize(
    ("server", "own"),
    [
        ("https://s3.eu-west-1.amazonaws.com", True),
        ("https://storage.googleapis.com:443", True),
        ("https://lake.blob.core.usgovcloudapi.net", True),
        ("https://amazonaws.com.example.org", False),
        ("https://evilamazonaws.com", False),
        ("https://account.r2.cloudflarestorage.com", False),
        ("http://127.0.0.1:9000", False),
    ],
)
def test_only_the_ends_of_the_providers_own_names_count(server: str, own: bool) -> None:
    assert is_providers_own(server) is own


def test_an_endpoint_never_carries_its_password_into_the_message() -> None:
    with Emulator(profile="spaces") as server:
        endpoint = server.s3.replace("://", "://user:hunter2@")
        lock = Lock("s3://b/t", ttl_s=10, endpoint=endpoint)
        with pytest.raises(StoreError) as refused:
            lock.acquire(timeout=1)
        lock.close()
    assert "hunter2" not in str(refused.value)


def test_two_commands_never_both_hold_a_lock_where_conditions_are_ignored(tmp_path: Path) -> None:
    with Emulator(profile="spaces") as server:
        (tmp_path / "config").write_text(ONE_ENDPOINT.format(s3=server.s3))
        environment = os.environ | CREDENTIALS | {"AWS_CONFIG_FILE": str(tmp_path / "config")}
        command = [
            sys.executable,
            "-m",
            "lockkit",
            "lock",
            "acquire",
            "s3://b/t",
            "--",
            "sleep",
            "2",
        ]
        both = [
            subprocess.Popen(
                command, env=environment, cwd=ROOT, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
            for _ in range(2)
        ]  # fmt: skip
        for each in both:
            _, errors = each.communicate(timeout=60)
            assert each.returncode == 3 and IGNORES in errors, errors


# --- what is proven -------------------------------------------------------------------------------


@pytest.mark.parametrize("emulator", [{"profile": "rgw-quoted"}], indirect=True)
def test_a_store_whose_true_conditions_never_hold_is_named_with_its_cause(emulator: Any) -> None:
    lock = Lock("s3://b/t", endpoint=emulator.s3, ttl_s=10)
    with pytest.raises(UnsafeStore, match=r"Ceph RGW.*quoted ETag.*Upgrade the server"):
        lock.acquire(timeout=10)
    lock.close()


def judged(store: Store) -> Any:
    """What the proof finds: None, why it was left open, or the error that it raises."""
    try:
        return run(proof.prove("a store", TABLE_KEY), store, Clock())
    except UnsafeStore as error:
        return error


class IgnoresVersions(MemoryStore):
    """Creating is conditional; a write over any version passes (localbucket 1.2.1)."""

    def put(self, key: str, body: bytes, condition: Condition) -> WriteAnswer:
        match condition, self.get(key):
            case IfVersion(), Found(_, version):
                return super().put(key, body, IfVersion(version))
        return super().put(key, body, condition)


class NeverMatches(MemoryStore):
    """No write over any version passes."""

    def put(self, key: str, body: bytes, condition: Condition) -> WriteAnswer:
        if isinstance(condition, IfVersion):
            return PreconditionFailed()
        return super().put(key, body, condition)


class IsOvertaken(MemoryStore):
    """Another process replaces the scratch object just before each write over its version."""

    def put(self, key: str, body: bytes, condition: Condition) -> WriteAnswer:
        match condition, self.get(key):
            case IfVersion(), Found(_, version):
                super().put(key, body + b" of another process", IfVersion(version))
        return super().put(key, body, condition)


def test_two_false_conditions_must_fail_and_a_true_one_must_hold() -> None:
    assert judged(MemoryStore("memory://proof-sound/t")) is None
    assert judged(IsOvertaken("memory://proof-overtaken/t")) is None
    ignored = judged(IgnoresVersions("memory://proof-versions/t"))
    assert "only if it still has the version that was read" in str(ignored)
    assert "Ceph RGW" in str(judged(NeverMatches("memory://proof-never/t")))


@pytest.mark.parametrize("emulator", [{"profile": "rgw"}], indirect=True)
def test_a_bucket_is_proven_for_itself(emulator: Any) -> None:
    """Ceph RGW 16 enforces conditions, but not in a bucket that keeps versions."""
    import urllib.request

    with Lock("s3://plain/t", endpoint=emulator.s3, ttl_s=10):
        pass
    body = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
    url = f"{emulator.s3}/versioned?versioning"
    urllib.request.urlopen(urllib.request.Request(url, body, method="PUT")).close()
    lock = Lock("s3://versioned/t", endpoint=emulator.s3, ttl_s=10)
    with pytest.raises(UnsafeStore, match=IGNORES):
        lock.acquire(timeout=5)
    lock.close()


def test_the_proof_is_made_once_for_a_bucket_of_a_server(emulator: Any) -> None:
    for table in ("one", "two"):
        with Lock(f"s3://b/{table}", endpoint=emulator.s3, ttl_s=10):
            pass
    with Lock("s3://c/one", endpoint=emulator.s3, ttl_s=10):
        pass
    proofs = [each for each in emulator.requests() if each["key"].endswith(TABLE_KEY)]
    assert [(each["bucket"], each["key"].split("/")[0]) for each in proofs] == (
        [("b", "one")] * 5 + [("c", "one")] * 5
    )


def test_processes_that_prove_at_the_same_time_do_not_refuse_a_sound_store(emulator: Any) -> None:
    with ThreadPoolExecutor(6) as pool:
        name = "s3://b/t"
        stores: list[Store] = [open_store(name, endpoint=emulator.s3) for _ in range(6)]
        proofs = [
            pool.submit(run, proof.prove(name, TABLE_KEY), store, Clock()) for store in stores
        ]
        assert [each.result() for each in proofs] == [None] * 6


def test_threads_that_need_one_proof_make_it_once(emulator: Any) -> None:
    """Where writes to one object are throttled, many proofs would hold one another back."""
    stores = [open_store("s3://b/t", endpoint=emulator.s3) for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda store: prove_conditions(store, Clock()), stores))
    assert len(emulator.requests()) == 5


def test_a_proof_that_is_there_already_is_made_again_by_another_process(emulator: Any) -> None:
    store = open_store("s3://b/t", endpoint=emulator.s3)
    assert isinstance(store.put(TABLE_KEY, b"anything", IfAbsent()), Applied)
    prove_conditions(store, Clock(), key=TABLE_KEY)
    assert place_of(store) in proof.proven


# --- a store that does not say --------------------------------------------------------------------


def test_a_lock_waits_for_the_proof_and_no_longer_than_it_may(bucket: str, emulator: Any) -> None:
    with Proxy(emulator.s3) as proxy:
        lock = Lock(f"s3://{bucket}/t", endpoint=proxy.url, ttl_s=10, timeout=0.3)
        proxy.inject(Fault("status", code=500, key="*conditions.json", operation="put", next=1_000))
        with pytest.raises(LockBusy, match="could not be tested whether"), lock:
            pass
        assert lock.acquire(timeout=0) is False
        proxy.clear()
        with lock:
            assert record(lock).epoch == 1
        lock.close()


def test_a_proof_that_the_store_leaves_open_is_no_proof(bucket: str, emulator: Any) -> None:
    with Proxy(emulator.s3) as proxy:
        store = open_store(f"s3://{bucket}/t", endpoint=proxy.url)
        proxy.inject(Fault("status", code=500, key="*conditions.json", operation="put", next=1_000))
        with pytest.raises(NoAnswer, match="could not be tested whether"):
            prove_conditions(store, Clock())
        assert place_of(store) not in proof.proven


# --- recipes and tables ---------------------------------------------------------------------------

ROWS = pa.table({"id": ["1"], "region": ["a"]})
CONFIG = TableConfig(name="orders", record_key="id", partition_by="region")


def _elect(url: str, **options: Any) -> None:
    with closing(Election(url, **options)) as node:
        node.campaign(timeout=0)


def _log(url: str, **options: Any) -> None:
    Wal(url, **options).append("one")


def _push(url: str, **options: Any) -> None:
    with Queue(url, **options) as queue:
        queue.push("one")


def _push_to_a_group(url: str, **options: Any) -> None:
    with GroupQueue(url, **options) as queue:
        queue.push("one")


def _broker(url: str, **options: Any) -> None:
    BrokerServer(url, **options)


def _push_to_a_broker(url: str, **options: Any) -> None:
    with BrokerQueue(url, **options) as queue:
        queue.push("one")


def _lock_state(url: str, **options: Any) -> None:
    with closing(StateLock(f"{url}/main.tfstate", **options)) as state:
        state.lock()


def _stripe(url: str, **options: Any) -> None:
    with closing(StripedLock(url, stripes=4, **options)) as striped, striped.keys("a"):
        pass


def _create_table(url: str, **options: Any) -> None:
    with closing(open_store(url, **options)) as store:
        run(create_table(CONFIG), store, Clock())


def _append(url: str, **options: Any) -> None:
    """Made by a sound writer: here somebody else's server stands behind the same address."""
    with closing(open_store(url, **options)) as store:
        body = format_properties(to_properties(CONFIG))
        assert isinstance(store.put(PROPERTIES_KEY, body, IfAbsent()), Applied)
    with Table(url, **options) as table:
        table.append(ROWS)


def _append_alone(url: str, **options: Any) -> None:
    with closing(open_store(url, **options)) as store:
        body = format_properties(to_properties(CONFIG))
        assert isinstance(store.put(PROPERTIES_KEY, body, IfAbsent()), Applied)
    with Table(url, options={CONCURRENCY_KEY: SINGLE}, **options) as table:
        table.append(ROWS)


RECIPES = {
    "election": _elect, "wal": _log, "queue": _push, "group": _push_to_a_group,
    "broker": _broker, "broker's client": _push_to_a_broker, "terraform": _lock_state,
    "striped": _stripe, "append": _append, "append, single writer": _append_alone,
}  # fmt: skip


@pytest.mark.parametrize("recipe", [*RECIPES, "create table"])
def test_every_recipe_refuses_a_store_that_ignores_conditions(recipe: str) -> None:
    use = RECIPES.get(recipe, _create_table)
    with Emulator(profile="spaces") as server:
        with pytest.raises(UnsafeStore, match=IGNORES):
            use("s3://b/place", endpoint=server.s3)
        kept = [each["key"] for each in server.requests() if each["method"] == "put"]
    expected = {"place/.lockkit/conditions.json", f"place/{TABLE_KEY}"}
    if "append" in recipe or recipe == "create table":
        expected.add(f"place/{PROPERTIES_KEY}")
    if recipe == "terraform":
        expected = {"place/main.tfstate.tflock"}
    assert set(kept) <= expected, "nothing that a recipe acknowledges was written"


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_refuses_a_store_whose_true_conditions_never_hold(recipe: str) -> None:
    with Emulator(profile="rgw-quoted") as server:
        with pytest.raises(UnsafeStore, match="quoted ETag"):
            RECIPES[recipe]("s3://b/place", endpoint=server.s3)
        with closing(open_store("s3://b/place", endpoint=server.s3)) as store:
            assert not [each for each in store.list("") if each.key.endswith(".tflock")]


def test_two_producers_of_a_queue_lose_no_push_on_a_store_that_ignores_conditions() -> None:
    """It acknowledged 16 pushes and kept 6."""
    with Emulator(profile="spaces") as server:
        queues = [Queue("s3://b/queue", endpoint=server.s3) for _ in range(4)]

        def push(queue: Queue) -> int:
            done = 0
            for number in range(4):
                with suppress(UnsafeStore):
                    queue.push(str(number))
                    done += 1
            return done

        with ThreadPoolExecutor(4) as pool:
            acknowledged = sum(pool.map(push, queues))
        assert len(queues[0].jobs()) == acknowledged == 0
        for each in queues:
            each.close()


def test_a_recipe_is_proven_where_the_client_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    with Emulator(profile="spaces") as server:
        for name, value in {"AWS_ENDPOINT_URL": server.s3, **CREDENTIALS}.items():
            monkeypatch.setenv(name, value)
        for recipe in (_push, _lock_state):
            with pytest.raises(UnsafeStore, match=IGNORES):
                recipe("s3://b/place")
