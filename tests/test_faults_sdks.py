"""A lost answer, seen through each SDK as it comes, and beside it through lockkit's own adapter.

With its usual retries an SDK tells the winner of a create-if-absent that somebody else won: 412 on
S3 and GCS, 409 on Azure. lockkit's adapter says `Unknown`, and one read settles it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from faults_world import (
    DEFEAT,
    SCHEMES,
    aimed,
    create_as_it_comes,
    create_with_azure,
    record,
)
from waiting import until

from lockkit.errors import StoreError
from lockkit.lab.faults import Fault, Proxy
from lockkit.protocol.outcome import (
    Applied,
    Found,
    IfAbsent,
    IfVersion,
    Missing,
    Ours,
    PreconditionFailed,
    StillOut,
    Throttled,
    Unknown,
    resolve,
)
from lockkit.stores import Store, open_store

os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")

LATE_S = 0.5

AFTER = [
    pytest.param(Fault("drop"), id="fin"),
    pytest.param(Fault("reset"), id="rst"),
    pytest.param(Fault("status", code=500), id="500"),
    pytest.param(Fault("status", code=503), id="503"),
    pytest.param(Fault("hang"), id="hang"),
]


@pytest.fixture(params=list(SCHEMES))
def provider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def key(bucket: str) -> str:
    return f"{bucket}/table_lock.json"


@pytest.fixture
def proxy(provider: str, shared_emulator: Any) -> Iterator[Proxy]:
    with Proxy(getattr(shared_emulator, provider)) as running:
        yield running


@pytest.fixture
def store(provider: str, proxy: Proxy) -> Iterator[Store]:
    opened = open_store(f"{SCHEMES[provider]}://lake", endpoint=proxy.url, timeout_s=1, client="W1")
    with closing(opened):
        yield opened


# --- the SDKs as they come ---------------------------------------------------------------------


@pytest.mark.parametrize("fault", AFTER)
def test_an_sdk_with_its_usual_retries_reports_defeat_to_the_winner(
    fault: Fault, provider: str, key: str, proxy: Proxy, store: Store
) -> None:
    proxy.inject(aimed(fault))
    reported = create_as_it_comes(provider, proxy.url, key, record("mine"))
    assert reported == DEFEAT[provider]
    [made] = proxy.faults
    assert made["swallowed_status"] in (200, 201), "the write had been applied"
    found = store.get(key)
    assert isinstance(found, Found)
    assert found.body == record("mine"), "and it is the caller's own"


@pytest.mark.parametrize("provider", ["azure"], indirect=True)
def test_azure_exactly_as_it_comes_sleeps_for_15_seconds_before_it_reports_that_defeat(
    key: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seconds that its SDK would sleep are added up, and not waited for."""
    from azure.core.pipeline.transport import HttpTransport

    slept_s: list[float] = []
    monkeypatch.setattr(HttpTransport, "sleep", lambda _, seconds: slept_s.append(seconds))
    proxy.inject(aimed(Fault("drop")))
    reported = create_with_azure(proxy.url, key, record("mine"))
    assert reported == DEFEAT["azure"]
    assert 11 < sum(slept_s) < 40, "its first back-off is longer than many leases"


@pytest.mark.parametrize("fault", AFTER)
def test_lockkits_adapter_returns_unknown_and_a_read_recognises_its_own_write(
    fault: Fault, key: str, proxy: Proxy, store: Store
) -> None:
    proxy.inject(aimed(fault))
    assert isinstance(store.put(key, record("mine"), IfAbsent()), Unknown)
    found = store.get(key)
    assert isinstance(found, Found)
    attempt = json.loads(found.body)["attempt"]
    assert resolve(found.version, attempt, attempt="mine", wrote_over=None) == Ours(found.version)
    assert [made["client"] for made in proxy.faults] == ["W1"]


@pytest.mark.parametrize("fault", AFTER)
def test_an_unanswered_compare_and_swap_is_unknown_and_a_read_recognises_its_own_write(
    fault: Fault, key: str, proxy: Proxy, store: Store
) -> None:
    first = store.put(key, record("first"), IfAbsent())
    assert isinstance(first, Applied)
    proxy.inject(aimed(fault))
    assert isinstance(store.put(key, record("second"), IfVersion(first.version)), Unknown)
    found = store.get(key)
    assert isinstance(found, Found)
    attempt = json.loads(found.body)["attempt"]
    settled = resolve(found.version, attempt, attempt="second", wrote_over=first.version)
    assert settled == Ours(found.version)


def test_a_fault_and_the_stores_own_record_name_the_same_write(
    key: str, proxy: Proxy, store: Store, shared_emulator: Any
) -> None:
    proxy.inject(aimed(Fault("drop")))
    store.put(key, record(f"of-{key}"), IfAbsent())
    [made] = proxy.faults
    [stored] = [each for each in shared_emulator.requests() if each["attempt"] == f"of-{key}"]
    names = ("client", "method", "bucket", "key", "attempt")
    assert [made[name] for name in names] == [stored[name] for name in names]


@pytest.mark.parametrize("what", ["drop", "reset", "hang"])
def test_a_read_distinguishes_a_request_lost_before_the_write_from_one_lost_after_it(
    what: str, key: str, proxy: Proxy, store: Store
) -> None:
    proxy.inject(aimed(Fault(what, when="before")))
    before = store.put(key, record("mine"), IfAbsent())
    assert isinstance(before, Unknown)
    assert store.get(key) == Missing()
    assert resolve(None, None, attempt="mine", wrote_over=None) == StillOut()
    proxy.inject(aimed(Fault(what, when="after")))
    after = store.put(key, record("mine"), IfAbsent())
    assert after == before, "the same words, although this one was applied"
    assert isinstance(store.get(key), Found)


def test_a_write_answered_429_was_certainly_not_done(key: str, proxy: Proxy, store: Store) -> None:
    proxy.inject(aimed(Fault("status", code=429, retry_after_s=2)))
    assert store.put(key, record("mine"), IfAbsent()) == Throttled(2.0)
    assert store.get(key) == Missing()


def test_a_403_is_raised_as_a_refusal(
    key: str, proxy: Proxy, store: Store
) -> None:
    proxy.inject(aimed(Fault("status", code=403)))
    with pytest.raises(StoreError, match="403"):
        store.put(key, record("mine"), IfAbsent())


# --- the zombie ----------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["drop", "hang"])
def test_a_late_write_is_missing_at_first_and_there_later(
    ending: str, key: str, proxy: Proxy, store: Store
) -> None:
    late_s = LATE_S if ending == "drop" else 2.0  # the client gives up within its second
    proxy.inject(aimed(Fault("late", delay_s=late_s, ending=ending)))
    assert isinstance(store.put(key, record("mine"), IfAbsent()), Unknown)
    assert store.get(key) == Missing(), "absence settles nothing"
    until(lambda: isinstance(store.get(key), Found))
    found = store.get(key)
    assert isinstance(found, Found)
    assert found.body == record("mine")


def test_a_write_sent_again_under_its_condition_lands_once_and_the_zombie_dies(
    provider: str, key: str, shared_emulator: Any
) -> None:
    notes: list[Any] = []

    def keep(event: Any) -> None:
        if event.kind == "note":
            notes.append(event)

    with Proxy(getattr(shared_emulator, provider), on_fault=keep) as proxy:
        url = f"{SCHEMES[provider]}://lake"
        with closing(open_store(url, endpoint=proxy.url, timeout_s=1, client="W1")) as store:
            proxy.inject(aimed(Fault("late", delay_s=LATE_S)))
            assert isinstance(store.put(key, record("mine"), IfAbsent()), Unknown)
            again = store.put(key, record("mine"), IfAbsent())
            assert isinstance(again, Applied)
            until(lambda: notes)
            found = store.get(key)
    assert isinstance(found, Found)
    assert found.version == again.version, "one of the two landed, and it is the one we know"
    assert notes[0]["text"].endswith(f"status {DEFEAT[provider][0]}")


def test_a_late_write_that_landed_first_refuses_the_one_sent_again(
    key: str, proxy: Proxy, store: Store
) -> None:
    proxy.inject(aimed(Fault("late", delay_s=0.1)))
    assert isinstance(store.put(key, record("mine"), IfAbsent()), Unknown)
    until(lambda: isinstance(store.get(key), Found))
    assert store.put(key, record("mine"), IfAbsent()) == PreconditionFailed()
    found = store.get(key)
    assert isinstance(found, Found)
    assert json.loads(found.body)["attempt"] == "mine", "a 412 from our own first copy"


# --- what else a proxy must not break ------------------------------------------------------------


def test_large_objects_pass_through_every_sdk(provider: str, proxy: Proxy) -> None:
    big = os.urandom(1 << 20) * 9
    name = f"large-{provider}"
    with closing(open_store(f"{SCHEMES[provider]}://lake", endpoint=proxy.url)) as patient:
        assert isinstance(patient.put(name, big, IfAbsent()), Applied)
        found = patient.get(name)
        assert isinstance(found, Found)
        assert found.body == big
        assert [entry.size for entry in patient.list(name)] == [len(big)]
