"""The conformance check of a store's write conditions runs where the requests really go."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from lock_world import record
from table_world import Hasty

from lockkit.clock import Clock
from lockkit.errors import LockBusy, NoAnswer, StoreError, UnsafeStore
from lockkit.lab.faults import Fault, Proxy
from lockkit.lab.server import Emulator
from lockkit.lock import conformance as proof
from lockkit.lock.conformance import place_of, prove_conditions
from lockkit.lock.creation_check import TABLE_KEY
from lockkit.lock.handle import Lock
from lockkit.protocol.outcome import (
    Applied,
    Condition,
    Found,
    IfAbsent,
    IfVersion,
    PreconditionFailed,
    WriteAnswer,
)
from lockkit.recipes.election import Election
from lockkit.recipes.queue import GroupQueue, Queue
from lockkit.recipes.queue.broker import BrokerServer
from lockkit.recipes.queue.brokered import BrokerQueue
from lockkit.recipes.striped import StripedLock
from lockkit.recipes.terraform import StateLock
from lockkit.recipes.wal import Wal
from lockkit.runtime import run
from lockkit.stores import Store, open_store
from lockkit.stores.endpoint import is_providers_own
from lockkit.stores.memory import MemoryStore
from lockkit.stores.within import within
from lockkit.table.format.properties import PROPERTIES_KEY, TableConfig, to_properties
from lockkit.table.format.property_keys import format_properties
from lockkit.table.handle import Table
from lockkit.table.occ.concurrency import CONCURRENCY_KEY, SINGLE
from lockkit.table.occ.creation import create_table

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
    """Configures the SDKs for a server; returns the URL's scheme and the options to open it."""

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
        account = f"{server.azure}/devstoreaccount1"
        assert lock.store.server in (server.s3, server.gcs, account)
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
def test_the_providers_own_servers_need_no_conformance_check(
    url: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in WAYS:
        monkeypatch.delenv(name, raising=False)
    store = open_store(url, **options)
    assert place_of(store) is None and is_providers_own(url, store.server), store.server
    prove_conditions(store, Clock())  # sends nothing: no such account or bucket exists
    store.close()


@pytest.mark.parametrize(
    "server",
    [
        "s3://s3.amazonaws.com",
        "s3://S3.eu-west-1.amazonaws.com:443",
        "s3a://s3-us-west-2.amazonaws.com",
        "s3://lake.s3.dualstack.us-east-1.amazonaws.com",
        "s3://s3-fips.us-gov-west-1.amazonaws.com",
        "s3://s3.cn-north-1.amazonaws.com.cn",
        "s3://lake-123456789012.s3-accesspoint.eu-west-1.amazonaws.com",
        "s3://s3express-use1-az4.us-east-1.amazonaws.com",
        "s3://bucket.vpce-0a1b-2c3d.s3.us-east-1.vpce.amazonaws.com",
        "gs://storage.googleapis.com:443",
        "gs://storage.mtls.googleapis.com",
        "gs://storage.europe-west3.rep.googleapis.com",
        "az://lake.blob.core.windows.net",
        "abfss://lake.dfs.core.windows.net",
        "az://lake.blob.core.usgovcloudapi.net",
        "az://lake.z17.blob.storage.azure.net",
    ],
)
def test_the_storage_services_own_names_count_as_theirs(server: str) -> None:
    scheme, _, name = server.partition("://")
    assert is_providers_own(f"{scheme}://b/t", f"https://{name}")


@pytest.mark.parametrize(
    "server",
    [
        "s3://ec2-18-1-2-3.compute-1.amazonaws.com",
        "s3://ec2-18-1-2-3.eu-west-1.compute.amazonaws.com",
        "s3://s3-0123456789.us-east-1.elb.amazonaws.com",
        "s3://s3-0a1b2c.elb.us-east-1.amazonaws.com",
        "s3://a1b2c3.execute-api.us-east-1.amazonaws.com",
        "s3://vpce-0a1b-2c3d.vpce-svc-4e5f.us-east-1.vpce.amazonaws.com",
        "s3://s3.us-east-1.amazonaws.com:9000",
        "s3://storage.googleapis.com",
        "s3://lake.blob.core.windows.net",
        "s3://dynamodb.us-east-1.amazonaws.com",
        "s3://amazonaws.com.example.org",
        "s3://s3.evilamazonaws.com",
        "s3://account.r2.cloudflarestorage.com",
        "s3://127.0.0.1:9000",
        "gs://store-abc.cloudfunctions.googleapis.com",
        "gs://store-abc-uc.a.run.app",
        "az://lake.cloudapp.core.windows.net",
        "az://lake.azurewebsites.net",
        "memory://",
    ],
)
def test_a_server_of_ones_own_in_a_providers_cloud_is_not_the_providers_store(server: str) -> None:
    scheme, _, name = server.partition("://")
    assert not is_providers_own(f"{scheme}://b/t", name and f"https://{name}")


def test_a_store_on_a_machine_in_amazons_cloud_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name ends like Amazon's own names. Two clients once held its lock at the same time."""
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo",
        lambda name, *rest, **how: real(
            "127.0.0.1" if "amazonaws" in str(name) else name, *rest, **how
        ),
    )  # fmt: skip
    with Emulator(profile="spaces") as server:
        port = server.s3.rpartition(":")[2]
        for name in ("ec2-18-1-2-3.compute-1", "rgw-0123.elb.us-east-1"):
            endpoint = f"http://{name}.amazonaws.com:{port}"
            options = {"aws_access_key_id": "any", "aws_secret_access_key": "any"}
            with closing(Lock("s3://b/t", endpoint=endpoint, ttl_s=10, **options)) as lock:
                with pytest.raises(UnsafeStore, match=IGNORES):
                    lock.acquire(timeout=5)


class Gateway:
    """Sends the requests below `/name` to the server of that name."""

    def __init__(self, servers: dict[str, str]) -> None:
        gateway = self
        self.servers = servers

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def forward(self) -> None:
                gateway._forward(self)

            do_GET = do_PUT = do_DELETE = forward

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def _forward(self, request: BaseHTTPRequestHandler) -> None:
        _, name, rest = request.path.split("/", 2)
        there = HTTPConnection(urlsplit(self.servers[name]).netloc)
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        there.request(request.command, f"/{rest}", body, dict(request.headers))
        answer = there.getresponse()
        body = answer.read()
        request.send_response_only(answer.status)
        for each, value in answer.getheaders():
            if each.lower() not in ("connection", "transfer-encoding"):
                request.send_header(each, value)
        request.end_headers()
        request.wfile.write(body)
        there.close()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


def test_each_path_of_a_gateway_is_a_server_of_its_own() -> None:
    """A gateway's `/good` enforces conditions, which proves nothing about its `/bad`."""
    with (
        Emulator() as good,
        Emulator(profile="spaces") as bad,
        closing(Gateway({"good": good.s3, "bad": bad.s3})) as gateway,
    ):
        with Lock("s3://b/t", endpoint=f"{gateway.url}/good", ttl_s=10) as sound:
            assert sound.fence.epoch == 1
        with closing(Lock("s3://b/t", endpoint=f"{gateway.url}/bad", ttl_s=10)) as lock:
            with pytest.raises(UnsafeStore, match=rf"{gateway.url}/bad: .*{IGNORES}"):
                lock.acquire(timeout=5)


def test_each_account_in_the_path_of_an_azure_server_is_a_place_of_its_own() -> None:
    stores = [
        open_store("az://box/t", endpoint=f"http://127.0.0.1:9/{account}", credential="aa==")
        for account in ("one", "two")
    ]
    assert [each.server for each in stores] == [
        "http://127.0.0.1:9/one", "http://127.0.0.1:9/two"
    ]  # fmt: skip
    assert place_of(stores[0]) != place_of(stores[1])


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
    """The result of the check: None, why it was inconclusive, or the error that it raises."""
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


def test_concurrent_conformance_checks_do_not_refuse_a_sound_store(emulator: Any) -> None:
    with ThreadPoolExecutor(6) as pool:
        name = "s3://b/t"
        stores: list[Store] = [open_store(name, endpoint=emulator.s3) for _ in range(6)]
        proofs = [
            pool.submit(run, proof.prove(name, TABLE_KEY), store, Clock()) for store in stores
        ]
        assert [each.result() for each in proofs] == [None] * 6


class ConditionalCreatesOnly:
    """Enforces If-None-Match and ignores If-Match, as S3-compatible stores did in 2024."""

    def __init__(self, store: Any) -> None:
        self._put, self._store = store.put, store

    def put(self, key: str, body: bytes, condition: Condition) -> WriteAnswer:
        match condition, self._store.get(key):
            case IfVersion(), Found(_, version):
                condition = IfVersion(version)
        answer: WriteAnswer = self._put(key, body, condition)
        return answer


def test_a_store_that_conditions_creations_alone_is_refused_by_state_locks_and_locks(
    bucket: str, emulator: Any
) -> None:
    state = StateLock(f"s3://{bucket}/prod.tfstate", endpoint=emulator.s3)
    lock = Lock(f"s3://{bucket}/t", endpoint=emulator.s3, ttl_s=10)
    for store in (state.store, lock.store):
        store.put = ConditionalCreatesOnly(store).put  # type: ignore[method-assign]
    with closing(state), closing(lock):
        with pytest.raises(UnsafeStore, match=IGNORES):
            state.lock()
        with pytest.raises(UnsafeStore, match=IGNORES):
            lock.acquire(timeout=5)


def test_a_state_lock_checks_a_bucket_once_and_not_after_a_locks_own_check(
    bucket: str, emulator: Any
) -> None:
    def creates() -> int:
        states = [each for each in emulator.requests() if each["key"].endswith(".tflock")]
        return sum(each["method"] == "put" for each in states)

    for url, puts in ((f"s3://{bucket}/a", 4), (f"s3://{bucket}/b", 5)):
        with closing(StateLock(url, endpoint=emulator.s3)) as state, state:
            pass
        assert creates() == puts
    with Lock(f"s3://{bucket}x/t", endpoint=emulator.s3, ttl_s=10):
        pass
    with closing(StateLock(f"s3://{bucket}x/c", endpoint=emulator.s3)) as state, state:
        assert creates() == 6


def test_threads_that_need_one_proof_make_it_once(emulator: Any) -> None:
    """Many checks at once would delay one another where writes to one object are throttled."""
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
        lock = Lock(f"s3://{bucket}/t", endpoint=proxy.url, ttl_s=10, acquire_timeout=0.3)
        proxy.inject(Fault("status", code=500, key="*conditions.json", operation="put", next=1_000))
        with pytest.raises(LockBusy, match="could not be tested whether"), lock:
            pass
        assert lock.acquire(timeout=0) is False
        proxy.clear()
        with lock:
            assert record(lock).epoch == 1
        lock.close()


def test_an_inconclusive_conformance_check_does_not_count_as_passed(
    bucket: str, emulator: Any
) -> None:
    with Proxy(emulator.s3) as proxy:
        store = open_store(f"s3://{bucket}/t", endpoint=proxy.url)
        proxy.inject(Fault("status", code=500, key="*conditions.json", operation="put", next=1_000))
        with pytest.raises(NoAnswer, match="could not be tested whether"):
            prove_conditions(store, Hasty())
        assert place_of(store) not in proof.proven


# --- recipes and tables ---------------------------------------------------------------------------

ROWS = pa.table({"id": ["1"], "region": ["a"]})
CONFIG = TableConfig(name="orders", record_key="id", partition_by="region")


def _elect(url: str, **options: Any) -> None:
    with closing(Election(url, **options)) as node:
        node.campaign(acquire_timeout=0)


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
    """The log was made on a sound store; now another server is behind the same address."""
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
    if "append" in recipe:  # made before
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


def test_a_queue_acknowledges_no_push_on_a_store_that_ignores_conditions() -> None:
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


def test_a_test_in_another_thread_holds_no_call_beyond_its_deadline() -> None:
    with Emulator() as server, closing(open_store("s3://b/t", endpoint=server.s3)) as store:
        place = place_of(store)
        assert place is not None
        turn = proof._locks.setdefault(place, threading.Lock())
        with turn, within(0.2), pytest.raises(NoAnswer, match="another thread still tests"):
            prove_conditions(store, Clock())
        prove_conditions(store, Clock())
