"""A blob's native lease as a lock, and as a fence: the server itself refuses who has lost it."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from azure.storage.blob import BlobLeaseClient
from lock_world import PATIENCE_S, Suspendable, Tale, until
from peer_servers import azurite

from lockkit import Clock, Fault, LockLost, Proxy, StoreError
from lockkit.clock import process_name
from lockkit.errors import BreakRefused, NoAnswer
from lockkit.lab.server import Emulator
from lockkit.lock.handle import UnprovenRelease
from lockkit.providers.azure_lease import AzureBlobLease
from lockkit.stores import open_store
from lockkit.stores.azure import AzureStore

A, B = (str(uuid.UUID(int=n)) for n in (1, 2))


@pytest.fixture
def clock() -> Clock:
    """The server's: `offset_ms` makes leases end without a wait."""
    return Clock()


@pytest.fixture
def server(clock: Clock) -> Iterator[Emulator]:
    with Emulator(profile="azure", clock=clock) as running:
        yield running


@pytest.fixture
def lock(server: Emulator) -> Callable[..., AzureBlobLease]:
    def open_(endpoint: str = "", **options: Any) -> AzureBlobLease:
        options = {"look_s": 0.05} | options
        return AzureBlobLease("az://lake/orders/lock", endpoint=endpoint or server.azure, **options)

    return open_


@pytest.fixture
def blob(server: Emulator) -> Any:
    """The SDK's own client of the lock's blob."""
    store = open_store("az://lake/orders", endpoint=server.azure)
    assert isinstance(store, AzureStore)
    return store.blob("lock")


def test_a_url_with_a_signature_is_refused_and_not_repeated() -> None:
    with pytest.raises(StoreError, match="carries a password or a signature") as refused:
        AzureBlobLease("az://lake/lock?sv=1&sig=s3cret", endpoint="http://127.0.0.1:1")
    assert "s3cret" not in str(refused.value)


def outcome_of(send: Callable[[], Any]) -> str:
    """Status and code of what Azure answered to the SDK; `ok` where it did as it was told."""
    from azure.core.exceptions import HttpResponseError

    try:
        send()
    except HttpResponseError as error:
        assert error.response is not None
        return f"{error.status_code} {error.response.headers.get('x-ms-error-code')}"
    return "ok"


# --- the server's fence ---------------------------------------------------------------------------


def test_the_server_refuses_the_write_of_a_client_that_lost_the_lease(
    lock: Callable[..., AzureBlobLease], blob: Any, clock: Clock
) -> None:
    """No clock of a client's and no check before the write: the stale one arrives, and bounces."""
    stale, next_one = lock(ttl_s=15), lock()
    assert stale.acquire(timeout=0)
    old = stale.lease_id
    assert outcome_of(lambda: blob.upload_blob(b"1", overwrite=True, lease=old)) == "ok"
    clock.offset_ms += 16_000
    assert next_one.acquire(timeout=0)
    mismatch = "412 LeaseIdMismatchWithBlobOperation"
    assert outcome_of(lambda: blob.upload_blob(b"2", overwrite=True, lease=old)) == mismatch
    assert outcome_of(lambda: blob.upload_blob(b"2", overwrite=True)) == "412 LeaseIdMissing"
    assert outcome_of(blob.delete_blob) == "412 LeaseIdMissing"
    mine = next_one.lease_id
    assert outcome_of(lambda: blob.upload_blob(b"3", overwrite=True, lease=mine)) == "ok"
    next_one.release()
    gone = "412 LeaseNotPresentWithBlobOperation"
    assert outcome_of(lambda: blob.upload_blob(b"4", overwrite=True, lease=mine)) == gone
    assert blob.download_blob().readall() == b"3"
    with pytest.raises(LockLost):
        stale.release()


def test_an_expired_lease_that_the_server_renews_is_not_taken_up_again(
    lock: Callable[..., AzureBlobLease],
) -> None:
    """Nobody leased or wrote the blob, so Azure says yes; but another may have been here."""
    own, tale, other = Suspendable(), Tale(), lock()
    mine = lock(ttl_s=15, beat_s=0.05, clock=own, emit=tale)
    assert mine.acquire(timeout=0)
    own.slept_ms += 15_000
    until(lambda: tale.of("lost"))
    with pytest.raises(LockLost, match="the lease ran out"):
        mine.assert_held()
    with pytest.raises(LockLost):
        mine.release()
    assert other.acquire(timeout=0), "what was renewed was given back"
    other.release()


def test_the_blobs_content_is_never_overwritten(
    lock: Callable[..., AzureBlobLease], blob: Any
) -> None:
    blob.upload_blob(b"precious")
    with lock():
        assert blob.download_blob().readall() == b"precious"
        assert blob.get_blob_properties().lease.state == "leased"
    assert blob.download_blob().readall() == b"precious"


def test_a_lease_is_broken_only_with_confirmation_and_its_holder_learns_of_it(
    lock: Callable[..., AzureBlobLease], clock: Clock
) -> None:
    tale = Tale()
    for_ever, other = lock(ttl_s=None, beat_s=0.05, emit=tale), lock(ttl_s=None)
    assert for_ever.acquire(timeout=0)
    clock.offset_ms += 86_400_000
    assert not other.acquire(timeout=0)
    for_ever.assert_held()
    other.break_lease()
    until(lambda: tale.of("lost"))
    with pytest.raises(LockLost, match="over, broken or another owner's"):
        for_ever.assert_held()
    assert other.acquire(timeout=0)
    with pytest.raises(LockLost):
        for_ever.release()
    other.assert_held()
    other.release()


# --- a break of what was shown --------------------------------------------------------------------


def test_a_break_aimed_at_an_old_grant_ends_no_newer_one(
    lock: Callable[..., AzureBlobLease], clock: Clock
) -> None:
    """After a release, and after a lease that ran out: the ETag alone would let both pass."""
    first, second, operator = lock(ttl_s=15), lock(), lock()
    assert first.acquire(timeout=0)
    shown = operator.holder()
    assert shown is not None and shown.certain
    first.release()
    assert second.acquire(timeout=0)
    with pytest.raises(BreakRefused, match="look again"):
        operator.break_lock(shown.version)
    second.renew()
    second.release()
    assert first.acquire(timeout=0)
    shown = operator.holder()
    assert shown is not None
    clock.offset_ms += 16_000
    assert second.acquire(timeout=0)
    with pytest.raises(BreakRefused, match="look again"):
        operator.break_lock(shown.version)
    second.renew()
    second.release()


def test_a_lease_of_another_program_is_not_taken_for_the_grant_before_it(
    lock: Callable[..., AzureBlobLease], blob: Any
) -> None:
    """Such a holder leaves no record; the record of an earlier grant is still there."""
    mine, operator = lock(), lock()
    assert mine.acquire(timeout=0)
    old = operator.holder()
    assert old is not None and old.owner == mine.owner
    mine.release()
    other = BlobLeaseClient(blob, lease_id=A)
    other.acquire(lease_duration=60)
    shown = operator.holder()
    assert shown is not None and not shown.certain
    assert shown.owner != mine.owner and not shown.process
    with pytest.raises(BreakRefused, match="look again"):
        operator.break_lock(old.version)
    other.release()
    assert mine.acquire(timeout=0)
    with pytest.raises(BreakRefused, match="look again"):
        operator.break_lock(shown.version)
    mine.renew()
    mine.release()


def test_the_holders_record_leaves_the_blobs_own_metadata_and_is_replaced(
    lock: Callable[..., AzureBlobLease], blob: Any
) -> None:
    blob.upload_blob(b"precious", metadata={"team": "lake"})
    owner = "Zoë's job: nightly \r\n"
    for _ in range(2):
        with lock(owner=owner) as held:
            shown = lock().holder()
            assert shown is not None
            assert (shown.owner, shown.version) == (owner, held.lease_id)
            assert shown.process == process_name() and shown.process_state.lives
    kept = blob.get_blob_properties().metadata
    assert kept["team"] == "lake" and len(kept) == 4
    assert blob.download_blob().readall() == b"precious"


def test_a_grant_whose_record_is_refused_is_released(
    server: Emulator, lock: Callable[..., AzureBlobLease]
) -> None:
    other = lock()
    other.acquire(timeout=0)
    other.release()
    with Proxy(server.azure) as proxy:
        proxy.inject(Fault("status", code=403, operation="put", nth=2))
        with pytest.raises(StoreError, match="cannot name its holder"):
            lock(proxy.url).acquire(timeout=0)
    assert other.acquire(timeout=0)
    other.release()


# --- trouble --------------------------------------------------------------------------------------


def test_a_lost_request_or_answer_makes_neither_a_second_holder_nor_a_lost_grant(
    server: Emulator, lock: Callable[..., AzureBlobLease]
) -> None:
    """Of the first try, of the blob's creation, and of each request of a later grant."""
    with Proxy(server.azure) as proxy:
        mine, other, ids = lock(proxy.url), lock(), set()
        for nth in (1, 2, 3, 1):
            for when in ("before", "after"):
                proxy.inject(Fault("drop", operation="put", nth=min(nth, 3), when=when))
                assert mine.acquire(timeout=PATIENCE_S)
                ids.add(mine.lease_id)
                assert not other.acquire(timeout=0)
                until(lambda: _renewed(mine))
                mine.release()
                assert not other.locked()
        assert len(ids) == 8, "each grant has an id of its own"


def _renewed(lock: AzureBlobLease) -> bool:
    try:
        lock.renew()
    except NoAnswer:
        return False
    return True


def test_an_unanswered_release_is_settled_and_an_unanswered_try_is_withdrawn(
    server: Emulator, lock: Callable[..., AzureBlobLease]
) -> None:
    with Proxy(server.azure) as proxy:
        mine, other = lock(proxy.url), lock()
        assert mine.acquire(timeout=0)
        proxy.inject(Fault("drop", operation="put", when="after"))
        mine.release()
        proxy.inject(Fault("drop", operation="put", when="after"))
        with pytest.raises(NoAnswer):
            mine.acquire(timeout=0)
        assert other.acquire(timeout=0)
        other.release()


class Hurried(Suspendable):
    """Where somebody sleeps, the machine slept."""

    def sleep(self, seconds: float) -> None:
        self.slept_ms += round(seconds * 1000)


@pytest.mark.parametrize("ttl_s", [60, None])
def test_a_release_that_may_yet_land_does_not_end_the_next_grant(
    server: Emulator, lock: Callable[..., AzureBlobLease], blob: Any, ttl_s: int | None
) -> None:
    with Proxy(server.azure) as proxy:
        mine = lock(proxy.url, ttl_s=ttl_s, clock=Hurried())
        assert mine.acquire(timeout=0)
        old = mine.lease_id
        proxy.inject(Fault("drop", operation="put", when="before", next="every"))
        with pytest.warns(UnprovenRelease):
            mine.release()
        proxy.clear()
        assert mine.acquire(timeout=0)
        late = outcome_of(lambda: BlobLeaseClient(blob, lease_id=old).release())
        assert late == "409 LeaseIdMismatchWithLeaseOperation"
        mine.renew()
        mine.release()


def test_a_service_that_stops_answering_costs_the_lock(
    server: Emulator, lock: Callable[..., AzureBlobLease]
) -> None:
    own, tale = Suspendable(), Tale()
    with Proxy(server.azure) as proxy:
        mine = lock(proxy.url, ttl_s=30, beat_s=0.05, clock=own, emit=tale)
        assert mine.acquire(timeout=0)
        proxy.inject(Fault("status", code=503, next="every"))
        until(lambda: tale.of("danger"))
        mine.assert_held()
        own.slept_ms += 30_000
        until(lambda: tale.of("lost"))
        with pytest.raises(LockLost, match="the lease ran out"):
            _ = mine.lease_id


def test_an_unreachable_service_is_reported(lock: Callable[..., AzureBlobLease]) -> None:
    with pytest.raises(NoAnswer, match="connection refused"):
        lock("http://127.0.0.1:1").acquire(timeout=0)


@pytest.mark.parametrize("ttl_s", [0, 14, 61, 15.5, -1, float("nan"), float("inf")])
def test_a_lease_is_as_long_as_azure_grants_one(ttl_s: float) -> None:
    with pytest.raises(ValueError, match="from 15 to 60"):
        AzureBlobLease("az://lake/lock", ttl_s=ttl_s)


def test_a_lock_that_names_no_blob_is_refused() -> None:
    for url in ("az://lake", "az://lake/", "lake/lock"):
        with pytest.raises((ValueError, StoreError)):
            AzureBlobLease(url)


# --- the embedded server's leases, beside Azurite's -----------------------------------------------


def lease(store: AzureStore, id: str) -> Any:
    return BlobLeaseClient(store.blob("blob"), lease_id=id)


def steps(store: AzureStore) -> dict[str, Callable[[], Any]]:
    """What can be asked of a blob and its lease; times aside."""
    blob = store.blob("blob")
    found: dict[str, Callable[[], Any]] = {
        "write": lambda: blob.upload_blob(b"x", overwrite=True),
        "create": lambda: blob.upload_blob(b"x"),
        "describe": lambda: blob.set_blob_metadata({"a": "b"}),
        "delete": blob.delete_blob,
        "break": lambda: lease(store, A).break_lease(),
        "break at once": lambda: lease(store, A).break_lease(lease_break_period=0),
        "break in a while": lambda: lease(store, A).break_lease(lease_break_period=50),
        "take nonsense": lambda: lease(store, A).acquire(lease_duration=7),
    }
    for name, id in (("A", A), ("B", B)):
        found |= {
            f"{name} takes": lambda id=id: lease(store, id).acquire(lease_duration=60),
            f"{name} takes for ever": lambda id=id: lease(store, id).acquire(),
            f"{name} renews": lambda id=id: lease(store, id).renew(),
            f"{name} releases": lambda id=id: lease(store, id).release(),
            f"{name} changes to B": lambda id=id: lease(store, id).change(B),
            f"{name} writes": lambda id=id: blob.upload_blob(b"x", overwrite=True, lease=id),
            f"{name} reads": lambda id=id: blob.download_blob(lease=id).readall(),
        }
    return found


def played(store: AzureStore, story: list[str]) -> list[str]:
    known, lines = steps(store), []
    outcome_of(lambda: lease(store, A).break_lease(lease_break_period=0))
    store.blob("blob").upload_blob(b"", overwrite=True)
    for name in story:
        said = outcome_of(known[name])
        said += f"; {_state(store)}"
        lines.append(f"{name}: {said}")
    return lines


def _state(store: AzureStore) -> str:
    if not store.blob("blob").exists():
        return "absent"
    found = store.blob("blob").get_blob_properties().lease
    return f"{found.status} {found.state} {found.duration}"


@pytest.mark.peers
def test_a_lease_goes_through_the_states_that_it_has_on_azurite(
    server: Emulator, tmp_path: Any
) -> None:
    dice = random.Random(5)
    ours = open_store("az://bucket/table", endpoint=server.azure)
    assert isinstance(ours, AzureStore)
    # What is left out: azurite looks for another's lease before it looks at the duration, and lets
    # a lease's id pass where there is no blob.
    names = sorted(set(steps(ours)) - {"take nonsense", "delete"})
    stories = [[dice.choice(names) for _ in range(6)] for _ in range(10)]
    with azurite(tmp_path) as theirs:
        assert isinstance(theirs, AzureStore)
        for story in stories:
            assert played(ours, story) == played(theirs, story)


def test_leases_and_breaks_end_by_time_and_a_write_removes_the_ended_state(
    server: Emulator, clock: Clock
) -> None:
    store = open_store("az://bucket/table", endpoint=server.azure)
    assert isinstance(store, AzureStore)
    known = steps(store)
    known["write"]()
    script = [
        ("take nonsense", 0, "400 InvalidHeaderValue; unlocked available None"),
        ("A takes", 0, "ok; locked leased fixed"),
        ("A renews", 59, "ok; locked leased fixed"),
        ("A writes", 61, "412 LeaseNotPresentWithBlobOperation; unlocked expired None"),
        ("B renews", 0, "409 LeaseIdMismatchWithLeaseOperation; unlocked expired None"),
        ("A renews", 0, "ok; locked leased fixed"),
        ("write", 61, "ok; unlocked available None"),
        ("A renews", 0, "409 LeaseIdMismatchWithLeaseOperation; unlocked available None"),
        ("A takes", 0, "ok; locked leased fixed"),
        ("break", 10, "ok; locked breaking None"),
        ("write", 49, "412 LeaseIdMissing; locked breaking None"),
        ("A renews", 2, "409 LeaseIsBrokenAndCannotBeRenewed; unlocked broken None"),
        ("B takes", 0, "ok; locked leased fixed"),
        ("delete", 0, "412 LeaseIdMissing; locked leased fixed"),
        ("delete", 61, "ok; absent"),
        ("B writes", 0, "412 LeaseNotPresentWithBlobOperation; absent"),
        ("A takes", 0, "404 BlobNotFound; absent"),
        ("create", 0, "ok; unlocked available None"),
        ("A takes", 0, "ok; locked leased fixed"),
    ]
    for name, wait_s, said in script:
        clock.offset_ms += wait_s * 1000
        assert f"{name}: {outcome_of(known[name])}; {_state(store)}" == f"{name}: {said}"
    assert [each.lease.state for each in store._client.list_blobs()] == ["leased"]
