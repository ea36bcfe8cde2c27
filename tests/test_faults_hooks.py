"""Faults below the SDKs' retries, in the process: as through the proxy, and over TLS besides."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from faults_world import (
    ACCOUNT,
    ACCOUNT_KEY,
    DEFEAT,
    SCHEMES,
    aimed,
    behind_tls,
    certificate,
    create_as_it_comes,
    record,
)
from google.auth.credentials import AnonymousCredentials
from waiting import until

from lockkit.errors import NoAnswer, StoreError
from lockkit.events import Event
from lockkit.lab.faults import Fault, FaultError, FaultPlan, Faulty, Proxy, hooks
from lockkit.lab.server import Emulator
from lockkit.lock.handle import Lock
from lockkit.protocol.outcome import (
    Applied,
    Found,
    IfAbsent,
    Missing,
    PreconditionFailed,
    Throttled,
    Unknown,
    over,
)
from lockkit.stores import Store, open_store

KEY = "orders/table_lock.json"
BIG = b"0123456789abcdef" * (9 << 16)  # 9 MiB: Cloud Storage's SDK sends it in pieces
GIVES_UP_S = 2.0
"""The time-out of a store that is meant to lose its patience: it waits two thirds of it."""
LATE_S, LONG_S = 0.1, 2.5
"""After its client was cut off; after its client has given up."""

every_provider = pytest.mark.parametrize("provider", SCHEMES)


@dataclass
class Side:
    """One of the two places for faults, below a store on a server of its own."""

    name: str
    server: Any
    recorded_faults: list[Event] = field(default_factory=list)

    @contextmanager
    def store(
        self, provider: str, bucket: str, plan: FaultPlan, timeout_s: float
    ) -> Iterator[Store]:
        url, there = f"{SCHEMES[provider]}://{bucket}", getattr(self.server, provider)
        faulty = None
        with ExitStack() as stack:
            if self.name == "proxy":
                proxy = Proxy(there, plan=plan, on_fault=self.recorded_faults.append)
                there = stack.enter_context(proxy).url
            else:
                faulty = Faulty(plan, on_fault=self.recorded_faults.append)
            opened = open_store(
                url, endpoint=there, timeout_s=timeout_s, client="W1", faults=faulty
            )
            yield stack.enter_context(closing(opened))

    def recorded(self, bucket: str) -> list[tuple[Any, ...]]:
        """The server's requests, each without what its own clock said."""
        names = ("client", "method", "key", "status", "answer", "applied", "attempt")
        rows = [each for each in self.server.requests() if each["bucket"] == bucket]
        return [tuple(row[name] for name in names) for row in rows]

    def events(self) -> list[tuple[Any, ...]]:
        return [(each.who, each.kind, each.data) for each in self.recorded_faults]


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Any]]:
    with Emulator() as one, Emulator() as other:
        yield [one, other]


@pytest.fixture
def sides(servers: list[Any]) -> list[Side]:
    return [Side(name, server) for name, server in zip(("proxy", "hooks"), servers, strict=True)]


def shown(answer: Any) -> Any:
    """An answer without what differs from server to server."""
    match answer:
        case Applied():
            return "Applied"
        case Found(body):
            return "Found", body
    return answer


def attempted(act: Any, *arguments: Any) -> Any:
    try:
        return act(*arguments)
    except StoreError as error:
        return str(error).partition(": ")[2]  # without the endpoint's name


def write_read_write(store: Store) -> list[Any]:
    """What is answered to a create, a look, a write over what was seen, a listing and a delete."""
    created = attempted(store.put, KEY, record("first"), IfAbsent())
    seen = attempted(store.get, KEY)
    version = seen.version if isinstance(seen, Found) else None
    written = attempted(store.put, KEY, record("second"), over(version))
    listed = attempted(lambda: [entry.key for entry in store.list("orders/")])
    return [shown(created), shown(seen), shown(written), listed, attempted(store.delete, "none")]


def one_write(store: Store) -> list[Any]:
    return [shown(store.put(KEY, record("first"), IfAbsent()))]


def in_both(
    sides: list[Side], provider: str, bucket: str, plan: FaultPlan, script: Any = write_read_write,
    *, lands: bool = False,
) -> list[Any]:  # fmt: skip
    """The answers, after both sides agreed on them, on what the servers recorded and on what was
    told. What `lands` late is waited for, and then everything else is tried."""

    kinds = {fault.ending or fault.what for fault in plan.faults}
    long = any((fault.delay_s or 0) > GIVES_UP_S for fault in plan.faults)
    timeout_s = GIVES_UP_S if "hang" in kinds or long else 20.0

    def play(side: Side) -> list[Any]:
        with side.store(provider, bucket, plan, timeout_s) as store:
            answers: list[Any] = script(store)
            if lands:
                until(lambda: "first" in [row[-1] for row in side.recorded(bucket)])
                if plan.faults[0].what == "late":
                    until(lambda: side.recorded_faults[-1].kind == "note")
                answers += write_read_write(store)
        return answers

    with ThreadPoolExecutor(2) as pool:
        by_proxy, by_hooks = pool.map(play, sides)
    assert by_hooks == by_proxy
    assert sides[1].recorded(bucket) == sides[0].recorded(bucket)
    assert sides[1].events() == sides[0].events()
    return by_hooks


# --- side by side --------------------------------------------------------------------------------

LOST = [
    pytest.param(Fault("drop", when="before"), id="fin-before"),
    pytest.param(Fault("drop"), id="fin-after"),
    pytest.param(Fault("reset", when="before"), id="rst-before"),
    pytest.param(Fault("reset"), id="rst-after"),
    pytest.param(Fault("hang", when="before"), id="hang-before"),
    pytest.param(Fault("hang"), id="hang-after"),
    pytest.param(Fault("hang", cap_s=0.05), id="hang-then-fin"),
    pytest.param(Fault("drop", applied=True), id="fin-where-applied"),
    pytest.param(Fault("status", code=500, body="<html>what?"), id="500-page"),
    pytest.param(Fault("status", code=503, when="before", retry_after_s=2), id="503-before"),
    pytest.param(Fault("status", code=503), id="503-after"),
    pytest.param(Fault("status", code=408), id="408-after"),
]
REFUSED = [
    pytest.param(Fault("status", code=412), id="412"),
    pytest.param(Fault("status", code=429, retry_after_s=3), id="429"),
    pytest.param(Fault("status", code=403), id="403"),
    pytest.param(Fault("status", code=409), id="409"),
]
SLOW = [
    pytest.param(Fault("delay", delay_s=0.05, next=1), id="before"),
    pytest.param(Fault("delay", delay_s=0.05, next=1, when="after"), id="after"),
]
LATE = [
    pytest.param(Fault("late", delay_s=LATE_S), id="fin"),
    pytest.param(Fault("late", delay_s=LATE_S, ending="reset"), id="rst"),
    pytest.param(Fault("late", delay_s=0.1, ending="hang"), id="hang"),
    pytest.param(Fault("delay", delay_s=LONG_S, next=1), id="delay-before"),
    pytest.param(Fault("delay", delay_s=LONG_S, next=1, when="after"), id="delay-after"),
]


@every_provider
@pytest.mark.parametrize("fault", LOST)
def test_a_lost_answer_is_lost_in_both_ways(
    fault: Fault, provider: str, bucket: str, sides: list[Side]
) -> None:
    plan = FaultPlan((aimed(fault),))
    created, seen, *_ = in_both(sides, provider, bucket, plan)
    assert isinstance(created, Unknown)
    applied = fault.when == "after"
    assert seen == (("Found", record("first")) if applied else Missing())
    [made] = sides[1].recorded_faults
    assert made["fault"] == fault.what
    assert (made.data.get("swallowed_status") in (200, 201)) is applied


@every_provider
@pytest.mark.parametrize("fault", REFUSED)
def test_a_refusal_has_the_same_meaning_and_nothing_was_sent(
    fault: Fault, provider: str, bucket: str, sides: list[Side]
) -> None:
    in_both(sides, provider, bucket, FaultPlan((aimed(fault),)))
    assert [row[1] for row in sides[1].recorded(bucket)] == ["get", "put", "list", "delete"]


@every_provider
@pytest.mark.parametrize("fault", SLOW)
def test_a_short_delay_only_takes_time(
    fault: Fault, provider: str, bucket: str, sides: list[Side]
) -> None:
    created, *_ = in_both(sides, provider, bucket, FaultPlan((aimed(fault),)))
    assert created == "Applied"
    assert [made["fault"] for made in sides[1].recorded_faults] == ["delay"]


@every_provider
@pytest.mark.parametrize("fault", LATE)
def test_a_late_write_lands_equally_if_its_client_no_longer_waits(
    fault: Fault, provider: str, bucket: str, sides: list[Side]
) -> None:
    plan = FaultPlan((aimed(fault),))
    created, again, seen, *_ = in_both(sides, provider, bucket, plan, one_write, lands=True)
    assert isinstance(created, Unknown)
    assert (again, seen) == (PreconditionFailed(), ("Found", record("first")))


@every_provider
def test_faults_strike_reads_listings_and_deletes_as_well_as_writes(
    provider: str, bucket: str, sides: list[Side]
) -> None:
    plan = FaultPlan(
        (
            Fault("drop", operation="get", when="before"),
            Fault("status", code=503, operation="list"),
            Fault("reset", operation="delete"),
            Fault("status", code=403, operation="put", nth=2),
        )
    )
    created, seen, *_ = in_both(sides, provider, bucket, plan)
    assert created == "Applied"
    assert isinstance(seen, Unknown)
    assert [made["method"] for made in sides[1].recorded_faults] == ["get", "put", "list", "delete"]


@every_provider
def test_an_empty_fault_plan_changes_no_answer(
    provider: str, bucket: str, sides: list[Side]
) -> None:
    answers = in_both(sides, provider, bucket, FaultPlan())
    found = ("Found", record("first"))
    assert answers == ["Applied", found, "Applied", [KEY], Applied("")]
    assert sides[1].recorded_faults == []


@every_provider
def test_a_seed_strikes_the_same_requests_of_both(
    provider: str, bucket: str, sides: list[Side]
) -> None:
    def writes(store: Store) -> list[Any]:
        return [shown(store.put(f"k{n}", record("a"), IfAbsent())) for n in range(12)]

    plan = FaultPlan((Fault("status", code=503, chance=0.5), Fault("drop", chance=0.3)), seed=7)
    answers = in_both(sides, provider, bucket, plan, writes)
    assert 0 < answers.count("Applied") < 12


@every_provider
@pytest.mark.parametrize("operation", ["put", "part"])
def test_parts_of_a_large_upload_are_distinguished_from_its_completion(
    operation: str, provider: str, bucket: str, sides: list[Side]
) -> None:
    def write(store: Store) -> list[Any]:
        return [shown(store.put("orders/big", BIG, IfAbsent())), shown(store.get("orders/big"))]

    plan = FaultPlan((Fault("drop", operation=operation, key="orders/big"),))
    created, _ = in_both(sides, provider, bucket, plan, write)
    in_pieces = provider == "gcs"
    assert isinstance(created, Unknown) is (operation == "put" or in_pieces)


@every_provider
def test_a_late_file_arrives_with_the_bytes_that_it_had(
    provider: str, bucket: str, sides: list[Side]
) -> None:
    """The zombie's bytes are kept: its owner has closed the file, and may have changed it."""

    def write(store: Store) -> list[Any]:
        with io.BytesIO(record("first")) as file:
            answer = store.put_file(KEY, file, len(record("first")))
        return [answer]

    plan = FaultPlan((aimed(Fault("late", delay_s=0.05)),))
    _, _, seen, *_ = in_both(sides, provider, bucket, plan, write, lands=True)
    assert seen == ("Found", record("first"))


# --- below the retries, over TLS -----------------------------------------------------------------

AFTER = [
    pytest.param(Fault("drop"), id="fin"),
    pytest.param(Fault("reset"), id="rst"),
    pytest.param(Fault("status", code=503), id="503"),
    pytest.param(Fault("hang"), id="hang"),
]


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def trusted(signed: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.setenv(name, str(signed[0]))


@every_provider
@pytest.mark.parametrize("fault", AFTER)
def test_over_tls_an_sdk_with_its_usual_retries_reports_defeat_to_the_winner(
    fault: Fault, provider: str, bucket: str, shared_emulator: Any, signed: tuple[Path, Path],
    trusted: None,
) -> None:  # fmt: skip
    key, faulty = f"{bucket}/table_lock.json", Faulty(FaultPlan((aimed(fault),)))
    with behind_tls(getattr(shared_emulator, provider), signed) as url:
        recorded_faults = create_as_it_comes(provider, url, key, record("mine"), faulty.install)
    assert recorded_faults == DEFEAT[provider]
    [made] = faulty.faults
    assert made["swallowed_status"] in (200, 201), "the write had been applied"


def test_over_tls_a_lock_is_held_although_the_answer_to_its_claim_was_lost(
    bucket: str, shared_emulator: Any, signed: tuple[Path, Path], trusted: None
) -> None:
    faulty = Faulty(FaultPlan((aimed(Fault("drop")),)))
    with behind_tls(shared_emulator.s3, signed) as url:
        lock = Lock(f"s3://{bucket}/t", ttl_s=10, client="W1", endpoint=url, faults=faulty)
        with closing(lock), lock:
            assert lock.fence.epoch == 1
    assert [(made["client"], made["fault"]) for made in faulty.faults] == [("W1", "drop")]


def test_over_tls_a_server_with_an_untrusted_certificate_is_refused(
    bucket: str, shared_emulator: Any, signed: tuple[Path, Path]
) -> None:
    with behind_tls(shared_emulator.s3, signed) as url:
        with closing(open_store(f"s3://{bucket}", endpoint=url, faults=Faulty())) as store:
            with pytest.raises(StoreError, match="certificate is not trusted"):
                store.get(KEY)


# --- where they stand, and where they cannot -----------------------------------------------------


def test_one_plan_counts_the_requests_of_all_its_clients(bucket: str, shared_emulator: Any) -> None:
    faulty = Faulty(FaultPlan((Fault("drop", operation="put", nth=2),)))
    with ExitStack() as stack:
        stores = [
            stack.enter_context(
                closing(open_store(f"{scheme}://{bucket}", endpoint=there, faults=faulty))
            )
            for scheme, there in (("s3", shared_emulator.s3), ("gs", shared_emulator.gcs))
        ]
        answers = [store.put(f"k{n}", b"{}", IfAbsent()) for n, store in enumerate(stores)]
    assert [type(answer) for answer in answers] == [Applied, Unknown]


AT_HOME: dict[str, tuple[str, dict[str, Any]]] = {
    "s3": (
        "s3://lake/orders",
        {"region_name": "eu-west-1", "aws_access_key_id": "a", "aws_secret_access_key": "b"},
    ),
    "gcs": ("gs://lake/orders", {"project": "p", "credentials": AnonymousCredentials()}),
    "azure": ("abfss://lake@a.dfs.core.windows.net/orders", {"credential": ACCOUNT_KEY}),
}


@every_provider
def test_at_the_providers_own_hosts_a_fault_is_aimed_by_bucket_and_key_too(provider: str) -> None:
    """Amazon's carry the bucket in their name. Nothing is sent: the refusal comes before."""
    url, options = AT_HOME[provider]
    faulty = Faulty()
    with closing(open_store(url, client="W1", faults=faulty, **options)) as store:
        for operation in ("put", "list"):
            faulty.inject(Fault("status", code=429, operation=operation, key="lake/orders/*"))
        assert store.put("k", b"{}", IfAbsent()) == Throttled()
        with pytest.raises(NoAnswer, match="429"):
            store.list("")
    assert [(made["bucket"], made["client"]) for made in faulty.faults] == [("lake", "W1")] * 2


def test_an_azure_client_made_by_another_is_struck_through_either(
    bucket: str, shared_emulator: Any
) -> None:
    from azure.core.exceptions import ServiceResponseError
    from azure.storage.blob import BlobServiceClient

    credential = {"account_name": ACCOUNT, "account_key": ACCOUNT_KEY}
    service = BlobServiceClient(
        f"{shared_emulator.azure}/{ACCOUNT}", credential=credential, retry_total=0
    )
    faulty = Faulty()
    with closing(service):
        blob = service.get_container_client(bucket).get_blob_client("k")
        faulty.install(blob)
        faulty.inject(Fault("drop", operation="put"))
        with pytest.raises(ServiceResponseError):
            service.get_blob_client(bucket, "k").upload_blob(b"{}")
        assert blob.download_blob().readall() == b"{}"


def test_closed_faults_deliver_no_late_write(bucket: str, shared_emulator: Any) -> None:
    recorded_faults: list[Event] = []
    faulty = Faulty(FaultPlan((Fault("late", delay_s=30),)), on_fault=recorded_faults.append)
    url = f"s3://{bucket}"
    with closing(open_store(url, endpoint=shared_emulator.s3, faults=faulty)) as store:
        assert isinstance(store.put("k", b"{}", IfAbsent()), Unknown)
        faulty.close()
        faulty.inject(Fault("late", delay_s=0.0))
        assert isinstance(store.put("k", b"{}", IfAbsent()), Unknown)
        until(lambda: not any(each.name == "lockkit-late" for each in threading.enumerate()))
        assert store.get("k") == Missing()
    assert [each.kind for each in recorded_faults] == ["fault", "fault"]


def test_a_late_body_that_is_too_long_to_keep_is_refused_as_the_proxy_does(
    bucket: str, shared_emulator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "LATE_BYTES_MAX", 1)
    faulty = Faulty(FaultPlan((Fault("late", delay_s=0.0),)))
    url = f"s3://{bucket}"
    with closing(open_store(url, endpoint=shared_emulator.s3, faults=faulty)) as store:
        with pytest.raises(StoreError, match="413"):
            store.put("k", b"{}", IfAbsent())
        assert store.get("k") == Missing()


@pytest.mark.parametrize("url", ["memory://x", "file:///tmp"])
def test_a_store_without_http_refuses_faults_and_says_why(url: str) -> None:
    with pytest.raises(StoreError, match="HTTP requests"):
        open_store(url, faults=Faulty())


class _Transport:
    def open(self) -> None:
        pass


def test_an_unsupported_client_class_is_refused_by_name() -> None:
    import boto3
    from azure.storage.blob import BlobServiceClient as Sync
    from azure.storage.blob.aio import BlobServiceClient

    with pytest.raises(FaultError, match="cannot be installed in a dict"):
        Faulty().install({})
    with pytest.raises(FaultError, match="cannot be installed in a SQS"):
        Faulty().install(boto3.client("sqs", region_name="us-east-1"))
    with pytest.raises(FaultError, match="sends with _Transport"):
        Faulty().install(Sync("https://a.blob.core.windows.net", transport=_Transport()))
    with pytest.raises(FaultError, match="synchronous"):
        Faulty().install(BlobServiceClient("https://a.blob.core.windows.net", transport=object()))
