"""The lock under faults: lost answers, throttling, foreign content, refusals, interrupts."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from lock_world import (
    SCHEMES,
    Tale,
    as_hudi,
    body,
    holder,
    memory,
    overwrite,
    process,
    record,
    said,
    until,
)
from test_stores import canned, refusal

from lockkit.clock import Clock
from lockkit.errors import LockBusy, LockLost, StoreError, UnsafeStore
from lockkit.events import Event, event
from lockkit.lab.faults import Fault, Proxy
from lockkit.lab.verify.check import Kind, replay
from lockkit.lab.verify.mutants import LEASE_MUTANTS
from lockkit.lock import grant
from lockkit.lock.handle import LOCK_KEY, Lock, UnprovenRelease
from lockkit.lock.oddities import UnexpectedRecord
from lockkit.protocol.outcome import Applied, Found, Unknown
from lockkit.protocol.policy import Expiry, Policy
from lockkit.protocol.record import Record, encode
from lockkit.protocol.state import Phase
from lockkit.runtime import Exclusive, Get, Put, carry_out, perform
from lockkit.sinks import silent

TTL_S = 3.0
"""Long enough that a busy machine does not lose it, short enough to wait for its end."""


class Place:
    """A table behind a proxy that injects faults. Its store has passed the conformance check."""

    def __init__(self, kind: str, bucket: str, proxy: Proxy) -> None:
        self.url, self.proxy = f"{SCHEMES[kind]}://{bucket}/table", proxy
        with self.lock():
            pass

    def lock(self, **options: Any) -> Lock:
        return Lock(self.url, **{"endpoint": self.proxy.url, "ttl_s": TTL_S, **options})

    def fault(self, what: str, **how: Any) -> None:
        self.proxy.inject(Fault(what, key="table_lock.json", **how))


@pytest.fixture(params=["s3"])
def place(request: pytest.FixtureRequest, bucket: str, shared_emulator: Any) -> Iterator[Place]:
    with Proxy(getattr(shared_emulator, request.param)) as proxy:
        yield Place(request.param, bucket, proxy)


everywhere = pytest.mark.parametrize("place", list(SCHEMES), indirect=True)


@pytest.fixture
def quiet() -> Iterator[None]:
    """Any warning is a failure, but for those of sockets that other tests left to the collector."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ResourceWarning)
        yield


# --- acquire -------------------------------------------------------------------------------------

LOST_ANSWERS = [
    {"what": "drop"},
    {"what": "reset"},
    {"what": "status", "code": 500, "when": "after"},
    {"what": "status", "code": 503, "when": "after"},
]


@everywhere
@pytest.mark.parametrize(
    "fault", LOST_ANSWERS, ids=lambda each: str(each.get("code", each["what"]))
)
def test_a_claim_whose_answer_was_lost_is_found_and_confirmed(
    place: Place, fault: dict[str, Any]
) -> None:
    tale = Tale()
    lock = place.lock(emit=tale)
    place.fault(operation="put", **fault)
    assert lock.acquire(timeout=0)
    assert tale.ops() == ["look Found", "acquire Unknown", "look Found", "confirm Applied"]
    assert lock.fence.epoch == 2 == record(lock).epoch
    assert not place.lock().acquire(timeout=0)
    lock.release()
    with place.lock() as other:
        assert other.fence.epoch == 3


def test_a_claim_that_hangs_after_it_was_applied_is_found_and_confirmed(place: Place) -> None:
    lock = place.lock()
    place.fault("hang", operation="put")
    began = time.monotonic()
    assert lock.acquire(timeout=5)
    assert time.monotonic() - began < TTL_S
    assert lock.fence.epoch == 2
    lock.release()


def test_reading_a_lost_answer_as_a_lost_race_would_leave_a_ghost_for_a_whole_lease(
    place: Place,
) -> None:
    """With the rule switched off, as in s3-locks, deltalake and Hudi's lock."""
    lock = place.lock()
    place.fault("drop", operation="put")
    with LEASE_MUTANTS["claim_unknown lost"].planted():
        assert not lock.acquire(timeout=0)
    assert not place.lock().acquire(timeout=0.3), "and yet nobody has it"


def test_a_claim_that_cannot_be_settled_in_time_is_adopted_by_the_next_try(place: Place) -> None:
    tale = Tale()
    lock = place.lock(emit=tale)
    place.fault("drop", operation="put")
    place.fault("status", code=503, when="before", operation="get", nth=2, next="every")
    assert not lock.acquire(timeout=0)
    assert any("may be a ghost" in each["text"] for each in tale.of("note"))
    assert "a claim of ours without an answer may hold it" in lock.busy_reason()
    place.proxy.clear()
    assert not place.lock().acquire(timeout=0), "others wait it out"
    assert lock.acquire(timeout=0), "its own handle does not"
    assert lock.fence.epoch == 3 == record(lock).epoch, "a ghost is not a grant: a new epoch"
    lock.release()


def test_a_claim_that_is_settled_at_the_last_moment_is_a_grant(place: Place) -> None:
    """The client looks once more at the deadline, so that a lock that it has won is used."""
    lock = place.lock()
    place.fault("drop", operation="put")
    place.fault("status", code=503, when="before", operation="get", nth=2)
    assert lock.acquire(timeout=0)
    lock.assert_held()
    lock.release()


def test_a_late_write_becomes_a_ghost_not_a_holder(place: Place) -> None:
    lock, other = place.lock(ttl_s=2.0), place.lock(policy=Policy(slack_ms=1000))
    place.fault("status", code=500, when="before", operation="put", next="every")
    place.fault("late", delay_s=0.7, operation="put")  # asked first: it is the newest
    assert not lock.acquire(timeout=0)
    place.proxy.clear()
    assert not lock.owned()
    until(lambda: not record(lock).expired, 5)
    ghost = record(lock)
    assert ghost.owner == lock.owner and ghost.epoch == 2
    assert not lock.owned()
    began = time.monotonic()  # of its 2 s, some 0.1 s are gone
    assert other.acquire(timeout=15)
    assert time.monotonic() - began > 1.0, "a ghost is waited out like any lease"
    assert other.fence.epoch == 3
    assert not lock.acquire(timeout=0)
    other.release()


def test_an_own_late_write_is_taken_over_at_once(place: Place) -> None:
    lock = place.lock()
    place.fault("status", code=500, when="before", operation="put", next="every")
    place.fault("late", delay_s=0.7, operation="put")
    assert not lock.acquire(timeout=0)
    place.proxy.clear()
    until(lambda: not record(lock).expired, 5)
    assert lock.acquire(timeout=0)
    assert lock.fence.epoch == 3
    lock.release()


def test_a_store_that_fails_every_write_is_retried_with_back_off(place: Place) -> None:
    tale = Tale()
    lock = place.lock(emit=tale)
    place.fault("status", code=500, when="before", operation="put", next="every")
    assert not lock.acquire(timeout=1.0)
    assert len(tale.of("ask")) < 80
    assert "the store's last answer was" in lock.busy_reason() and "500" in lock.busy_reason()
    place.proxy.clear()
    assert lock.acquire(timeout=0)
    lock.release()


def test_a_throttled_claim_is_not_settled_and_succeeds_later(place: Place) -> None:
    tale = Tale()
    lock = place.lock(emit=tale)
    place.fault("status", code=429, operation="put", next=3)
    assert not lock.acquire(timeout=0)
    assert tale.ops() == ["look Found", "acquire Throttled"], "a refusal needs no settling"
    assert lock.acquire(timeout=10)
    lock.release()


# --- renewing ------------------------------------------------------------------------------------


@everywhere
def test_a_renewal_whose_answer_was_lost_is_settled_before_the_next_beat(
    place: Place, quiet: None
) -> None:
    """Otherwise the next renewal would get a 412 because of this one (apache/hudi #14373)."""
    tale = Tale()
    with place.lock(emit=tale) as lock:
        place.fault("drop", operation="put")
        until(lambda: "renew Unknown" in tale.ops())
        until(lambda: len(tale.of("renewed")) >= 3)
        lock.assert_held()
    at = tale.ops().index("renew Unknown")
    assert tale.ops()[at + 1 : at + 3] == ["look Found", "confirm Applied"]
    assert {each["epoch"] for each in tale.of("renewed")} == {2}
    assert not tale.of("lost") and not tale.of("danger")


@pytest.mark.parametrize("rule", ["renew_unknown", "renew_412"])
def test_a_lost_answer_that_counts_as_a_refusal_loses_the_lock(
    place: Place, rule: str
) -> None:
    # A retry below us that meets the write's own success is answered 412.
    reported: list[str] = []
    lock = place.lock(on_lost=lambda _, why: reported.append(why))
    lock.acquire()
    if rule == "renew_unknown":
        place.fault("drop", operation="put")
    else:
        put = lock.store.put

        def twice(*arguments: Any) -> Any:
            put(*arguments)
            return put(*arguments)

        lock.store.put = twice  # type: ignore[method-assign]
    with LEASE_MUTANTS[f"{rule} lost"].planted(threads="all"):
        until(lambda: reported)
    with pytest.raises(LockLost):
        lock.release()


def test_a_412_that_a_hidden_retry_made_of_our_own_success_keeps_the_lease(
    place: Place, quiet: None
) -> None:
    tale = Tale()
    lock = place.lock(emit=tale)
    put = lock.store.put
    struck: list[Any] = []

    def twice(*arguments: Any) -> Any:
        answer = put(*arguments)
        if not struck and isinstance(answer, Applied):
            struck.append(answer)
            return put(*arguments)
        return answer

    lock.acquire()
    lock.store.put = twice  # type: ignore[method-assign]
    until(lambda: struck and len(tale.of("renewed")) >= 2)
    assert "renew PreconditionFailed" in tale.ops()
    lock.assert_held()
    lock.release()


@pytest.mark.parametrize("code", [429, 503])
def test_refused_renewals_are_reported_as_danger_until_one_succeeds(
    place: Place, code: int, quiet: None
) -> None:
    tale, dangers = Tale(), []
    lock = place.lock(emit=tale, on_danger=dangers.append)
    lock.acquire()
    place.fault("status", code=code, when="before", operation="put", next="every")
    until(lambda: dangers)
    lock.assert_held()
    place.proxy.clear()
    count = len(tale.of("renewed"))
    until(lambda: len(tale.of("renewed")) > count)
    assert dangers == [lock] and len(tale.of("danger")) == 1
    lock.release()


def test_hanging_renewals_are_reported_as_danger_then_as_loss_to_the_block(
    place: Place,
) -> None:
    reported: dict[str, float] = {}
    with pytest.raises(LockLost, match="ran out"):
        with place.lock(
            ttl_s=2.0,
            on_danger=lambda _: reported.setdefault("danger", time.monotonic()),
            on_lost=lambda *_: reported.setdefault("lost", time.monotonic()),
        ) as lock:
            place.fault("hang", operation="put", next="every", when="before")
            until(lambda: "lost" in reported)
            place.proxy.clear()
            lock.assert_held()
    assert reported["lost"] - reported["danger"] > 0.5, "time to act on it"


def test_a_manual_renewal_is_retried_until_it_is_proven(place: Place) -> None:
    lock = place.lock(ttl_s=30)
    with lock:
        first = record(lock).attempt
        place.fault("status", code=429, operation="put", next=2)
        lock.renew()
        assert record(lock).attempt != first


# --- releasing -----------------------------------------------------------------------------------


@everywhere
@pytest.mark.parametrize(
    "fault",
    [
        *LOST_ANSWERS[:3],
        {"what": "status", "code": 429, "next": 3},
        {"what": "status", "code": 503, "when": "before", "next": 3},
        {"what": "status", "code": 503, "when": "after", "next": 2},
    ],
    ids=["drop", "reset", "500 after", "429 x3", "503 before x3", "503 after x2"],
)
def test_a_release_without_an_answer_or_throttled_is_tried_again_inside_the_lease(
    place: Place, fault: dict[str, Any], quiet: None
) -> None:
    """Hudi gives up on a 5xx, and its lock dangles for a lease (#20027, #18438)."""
    lock, tale = place.lock(ttl_s=30), Tale()
    lock.acquire()
    place.fault(operation="put", **fault)
    lock.release()
    assert record(lock).expired
    with place.lock(emit=tale) as other:
        assert other.fence.epoch == 3
    assert not tale.of("waiting")


def test_an_unanswered_release_warns_that_the_grant_expires_by_itself(
    place: Place,
) -> None:
    tale = Tale()
    lock = place.lock(ttl_s=1.0, emit=tale)
    lock.acquire()
    place.fault("status", code=503, when="before", next="every")
    began = time.monotonic()
    with pytest.warns(UnprovenRelease, match="ends with its lease"):
        lock.release()
    assert time.monotonic() - began < 8, "it does not insist past the lease"
    assert tale.of("released")[0]["proven"] is False
    place.proxy.clear()
    assert lock.acquire(timeout=0), "the same handle knows its own lease"
    assert lock.fence.epoch == 3
    lock.release()


def test_a_release_that_is_refused_raises_and_leaves_a_handle_that_works(place: Place) -> None:
    lock = place.lock()
    lock.acquire()
    place.fault("status", code=403, operation="put")
    with pytest.raises(StoreError, match="denied"):
        lock.release()
    assert not lock.owned()
    assert lock.acquire(timeout=0)
    lock.release()


def test_a_refused_release_does_not_mask_the_blocks_own_error(place: Place) -> None:
    lock = place.lock()
    with pytest.warns(UnprovenRelease, match="denied"), pytest.raises(ZeroDivisionError):
        with lock:
            place.fault("status", code=403, operation="put", next="every")
            1 / 0


# --- what is in the lock's place -----------------------------------------------------------------

LIVE = as_hudi(until_ms=int(time.time() * 1000) + 60_000)
BODIES = {
    "truncated": LIVE[:-9],
    "empty": b"",
    "foreign": b"<?xml version='1.0'?><Lock/>",
    "binary": bytes(range(256)),
    "10 MB": b"x" * 10_000_000,
    "10 MB of JSON": b'{"expired":true,"validUntil":1,"owner":"' + b"x" * 10_000_000 + b'"}',
    "a list": b"[true, 1, 2]",
    "wrong types": json.dumps({"expired": "true", "validUntil": "1", "owner": 7}).encode(),
    "a float": json.dumps({"expired": True, "validUntil": 1.5, "owner": "x"}).encode(),
    "no owner": json.dumps({"expired": True, "validUntil": 1}).encode(),
    "deep": b"[" * 50_000,
    "an epoch beyond any count": json.dumps(
        {"expired": True, "validUntil": 1, "owner": "x", "epoch": 2**63 - 1}
    ).encode(),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=list(BODIES))
def test_a_body_that_is_not_a_record_never_counts_as_free_and_the_error_names_the_remedy(
    body: bytes,
) -> None:
    lock = Lock(memory(), ttl_s=10, acquire_timeout=0.05)
    overwrite(lock, body)
    assert lock.locked()
    with pytest.warns(
        UnexpectedRecord, match=r"not a lock record: .*lockkit lock break memory"
    ) as reported:
        with pytest.raises(LockBusy, match="never takes it as free"):
            with lock:
                pass
    assert len(reported) == 1
    assert all(len(str(each.message)) < 600 for each in reported)
    match lock.store.get(LOCK_KEY):
        case Found(found):
            assert found == body, "what nobody understands is left as it is"


def test_a_waiter_continues_once_the_lock_object_is_repaired() -> None:
    lock = Lock(memory(), ttl_s=10)
    overwrite(lock, b"{")
    with pytest.warns(UnexpectedRecord), ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lock.acquire, timeout=10)
        until(lambda: "not a lock record" in lock.busy_reason())
        overwrite(lock, as_hudi(until_ms=1, expired=True))
        assert waiting.result() is True
    lock.release()


@everywhere
def test_a_lock_object_of_ten_megabytes_is_reported_as_too_long(place: Place) -> None:
    lock = place.lock()
    overwrite(lock, b"x" * 10_000_000)
    with pytest.warns(UnexpectedRecord, match="longer than"):
        assert not lock.acquire(timeout=0)
    seen = lock.inspect()
    assert seen.observation.version is not None


def test_a_far_future_lease_is_only_warned_of_where_the_stores_clock_decides() -> None:
    lock = Lock(memory(), ttl_s=10, policy=Policy(slack_ms=100))
    far = Record("x", valid_until_ms=2**62, epoch=7, attempt="x/1", ttl_ms=300)
    overwrite(lock, encode(far))
    with pytest.warns(UnexpectedRecord, match="the store's own clock decides"):
        assert lock.acquire(timeout=10)
    assert lock.fence.epoch == 8
    lock.release()


@pytest.mark.parametrize("until_ms", [32_503_680_000_000, 2**63 - 1], ids=["year 3000", "2**63"])
def test_a_far_future_lease_under_the_wall_clock_policy_is_reported(until_ms: int) -> None:
    lock = Lock(memory(), ttl_s=10, policy=Policy(expiry=Expiry.WALL))
    overwrite(lock, as_hudi(until_ms=until_ms))
    with pytest.warns(UnexpectedRecord, match=r"No lease lasts that long.*lockkit lock break"):
        assert not lock.acquire(timeout=0.1)


# --- what cannot be used -------------------------------------------------------------------------


def test_a_refused_claim_raises_the_refusal_and_holds_nothing(place: Place) -> None:
    tale = Tale()
    lock = place.lock(emit=tale)
    place.fault("status", code=403, operation="put")
    with pytest.raises(StoreError, match="denied"):
        lock.acquire()
    assert not lock.owned() and record(lock).expired
    assert tale.ops() == ["look Found", "acquire refused"], "a refusal is not insisted upon"
    assert lock.acquire(timeout=0)
    lock.release()


def test_an_endpoint_that_does_not_resolve_is_named_in_the_error() -> None:
    lock = Lock(
        "s3://b/t", endpoint="http://nowhere.invalid:9", ttl_s=2,
        aws_access_key_id="x", aws_secret_access_key="x",
    )  # fmt: skip
    with pytest.raises(StoreError, match=r"nowhere\.invalid"):
        lock.acquire(timeout=5)
    assert not lock.owned()


def test_a_client_that_waits_for_an_unreachable_server_reports_its_last_answer() -> None:
    lock = Lock("s3://b/t", endpoint="http://127.0.0.1:9", ttl_s=2)
    assert not lock.acquire(timeout=0.3)
    assert "the store's last answer was" in lock.busy_reason()


def test_a_refusal_during_the_proof_leaves_no_lock_behind(
    bucket: str, shared_emulator: Any
) -> None:
    with Proxy(shared_emulator.s3) as proxy:
        lock = Lock(f"s3://{bucket}/table", endpoint=proxy.url, ttl_s=30)
        proxy.inject(Fault("status", code=403, operation="put", nth=3))
        with pytest.raises(StoreError, match="denied"):
            lock.acquire()
        assert not lock.owned() and body(lock) is None
        with lock:  # and the proof is made up for
            pass


def test_a_thread_that_cannot_start_gives_the_lock_back(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = Lock(memory(), ttl_s=10)

    def no(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no)
    with pytest.raises(RuntimeError, match="new thread"):
        lock.acquire()
    assert not lock.owned() and record(lock).expired


@pytest.mark.parametrize("emulator", [{"profile": "spaces"}], indirect=True)
def test_a_store_that_ignores_conditions_is_refused_by_name(emulator: Any) -> None:
    tale = Tale()
    lock = Lock("s3://b/t", endpoint=emulator.s3, ttl_s=10, emit=tale)
    for _ in range(2):
        with pytest.raises(UnsafeStore) as refused:
            lock.acquire(timeout=10)
        assert emulator.s3 in str(refused.value) and "two writers would both win" in str(
            refused.value
        )
        assert not lock.owned() and body(lock) is None
    assert not tale.of("ask"), "the lock object was never asked for"


@pytest.mark.parametrize("emulator", [{"profile": "gcs"}], indirect=True)
def test_on_a_store_with_one_write_a_second_the_lock_works_and_is_proven_once(
    emulator: Any,
) -> None:
    for table in "tu":
        tale = Tale()
        with Lock(f"gs://b/{table}", endpoint=emulator.gcs, ttl_s=10, emit=tale):
            pass
        assert tale.of("released")[0]["proven"]
    tested = {each["key"] for each in emulator.requests() if "conditions.json" in each["key"]}
    assert tested == {"t/.hoodie/.locks/conditions.json"}


# --- interrupts ----------------------------------------------------------------------------------


def test_ctrl_c_in_a_blocked_acquire_ends_it_and_leaves_nothing(
    bucket: str, shared_emulator: Any
) -> None:
    url, endpoint = f"s3://{bucket}/table", shared_emulator.s3
    with Lock(url, endpoint=endpoint, ttl_s=10) as lock:
        options = {"endpoint": endpoint, "client": f"{bucket}-waiter"}
        with process(holder, url, options) as (child, pipe):
            assert said(pipe) == "ready"
            pipe.send(("acquire", {}))
            until(lambda: _asked(shared_emulator, f"{bucket}-waiter", "get") >= 3)
            os.kill(child.pid or 0, signal.SIGINT)
            assert said(pipe, 5) == ("raised", "KeyboardInterrupt")
        lock.assert_held()
    with Lock(url, endpoint=endpoint, ttl_s=10) as lock:
        assert lock.fence.epoch == 2


def test_ctrl_c_during_a_claim_releases_the_grant_that_it_had_won(
    place: Place, shared_emulator: Any, bucket: str
) -> None:
    options = {"endpoint": place.proxy.url, "client": f"{bucket}-claimer", "ttl_s": 60.0}
    with process(holder, place.url, options) as (child, pipe):
        assert said(pipe) == "ready"
        place.fault("delay", delay_s=5, when="after", operation="put", next=1)
        pipe.send(("acquire", {}))
        until(lambda: _asked(shared_emulator, f"{bucket}-claimer", "put") == 1)
        os.kill(child.pid or 0, signal.SIGINT)
        assert said(pipe, 5) == ("raised", "KeyboardInterrupt")
    with place.lock(acquire_timeout=2) as lock:  # of the 60 s of its lease nothing is left
        assert lock.fence.epoch >= 3


def _asked(emulator: Any, client: str, method: str) -> int:
    return sum(
        each["client"] == client and each["method"] == method and each["key"].endswith(LOCK_KEY)
        for each in emulator.requests()
    )


# --- rivals --------------------------------------------------------------------------------------


def test_a_client_that_loses_twelve_races_waits_and_acquires(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others acquire and release between each of our looks and our claim."""
    url = memory()
    rival, lock = Lock(url, ttl_s=10), Lock(url, ttl_s=10, emit=(tale := Tale()))
    put: Callable[..., Any] = lock.store.put
    races = iter(range(12))

    def beaten(*arguments: Any) -> Any:
        if next(races, None) is not None:
            with rival:
                pass
        return put(*arguments)

    with rival:
        pass
    monkeypatch.setattr(lock.store, "put", beaten)
    assert lock.acquire(timeout=20)
    assert tale.ops().count("acquire PreconditionFailed") == 12
    monkeypatch.undo()
    lock.release()


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (404, "NoSuchBucket", "no such bucket"),
        (403, "AccessDenied", "access is denied"),
        (400, "AuthorizationHeaderMalformed", "wrong region"),
        (400, "ExpiredToken", "have expired"),
    ],
)
def test_an_unusable_store_is_reported_and_leaves_nothing_held(
    status: int, code: str, says: str
) -> None:
    with canned(refusal("s3", status, code)) as server:
        lock = Lock("s3://bucket/table", endpoint=server.url, ttl_s=10)
        with pytest.raises(StoreError, match=says):
            lock.acquire(timeout=5)
        assert not lock.owned()
        with pytest.raises(RuntimeError, match="not held"):
            lock.release()


@pytest.mark.parametrize("emulator", [{"profile": "gcs"}], indirect=True)
def test_a_throttled_write_is_not_sent_again_before_the_store_can_take_it(emulator: Any) -> None:
    """With one write per second, a release right after the grant gets one 429 and not twelve."""
    lock = Lock("gs://lake/table", endpoint=emulator.gcs, ttl_s=20)
    with lock:
        pass
    before = len(emulator.requests())
    time.sleep(1.1)  # the store's second, not ours
    with lock:
        pass
    answers = [each["answer"] for each in emulator.requests()[before:]]
    assert answers == ["applied", "throttled", "applied"]


def interrupted(lock: Lock, strikes: Callable[[Any, int], str]) -> None:
    """One acquire; `strikes(request, n)` says if Ctrl-C comes "before" or "after" request n."""
    client, clock, nobody, asked = lock._client, Clock(), None, 0
    way = grant.acquire(client, 0.0, hold=lambda: nobody)  # type: ignore[arg-type,return-value]

    def answer(request: Any) -> Any:
        nonlocal asked
        if isinstance(request, Exclusive):
            return carry_out(request.procedure, answer)
        asked += isinstance(request, Get | Put)
        when = strikes(request, asked)
        if when == "before":
            raise KeyboardInterrupt
        found = perform(request, client.store, clock, silent)
        if when == "after":
            raise KeyboardInterrupt
        return found

    with pytest.raises(KeyboardInterrupt):
        carry_out(way, answer)
    assert client.state.phase is not Phase.IDLE, "the back-out came to its end"


def test_an_interrupt_of_a_back_out_does_not_spoil_the_next_acquire() -> None:
    """One Ctrl-C comes while the claim is under way, another while the claim is looked for."""
    lock = Lock(memory(), ttl_s=TTL_S)

    def strikes(request: Any, _number: int) -> str:
        looks_for_it = isinstance(request, Get) and lock._client.state.unsettled
        return "before" if looks_for_it else "after" if isinstance(request, Put) else ""

    interrupted(lock, strikes)
    assert lock.acquire(timeout=5 * TTL_S)  # the claim had landed: it is found, or it expires
    lock.release()


def test_the_history_records_how_an_interrupted_back_out_ended() -> None:
    """Otherwise the replay says that a correct run broke the protocol."""
    reported: list[Event] = []
    lock = Lock(
        memory(),
        ttl_s=TTL_S,
        emit=lambda kind, **data: reported.append(event(0, "one", kind, **data)),
    )
    interrupted(lock, lambda _, number: "before" if number > 1 else "")
    with lock:
        pass
    verdict = replay(reported)
    assert verdict.kind is Kind.VALID, verdict.because


def test_a_write_interrupted_twice_is_recognised_after_another_clients_turn() -> None:
    """Two take turns. Ctrl-C while one's claim is out, again while it makes sure of that claim.

    It leaves the other a turn then, and looks anew: what it finds is its own write.
    """
    url = memory()
    lock, rival = Lock(url, ttl_s=60.0), Lock(url, ttl_s=60.0)
    for each in (rival, lock, rival, lock):
        with each:
            pass
    interrupted(lock, lambda request, _: "after" if isinstance(request, Put) else "")
    assert lock._client.state.out is not None
    assert lock.acquire(timeout=5), "it waits for the end of its own write"
    lock.release()


def test_a_release_that_landed_without_an_answer_was_not_taken_away_by_the_next_holder() -> None:
    """The retry finds the next holder's record, which was written after ours."""
    url = memory()
    lock, other = Lock(url, ttl_s=60), Lock(url, ttl_s=60)
    assert lock.acquire(timeout=0)
    store = lock.store

    class Deaf:
        """Loses the answer to one write, and another client is faster than the retry."""

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def put(self, *request: Any) -> Any:
            store.put(*request)
            lock._client.store = store
            assert other.acquire(timeout=0)
            return Unknown("the answer was lost")

    lock._client.store = Deaf()  # type: ignore[attr-defined]
    lock.release()
    other.renew()
    other.release()


def test_ctrl_c_between_a_claims_answer_and_its_reader_leaves_no_ghost() -> None:
    url = memory()
    reported: list[str] = []

    def strikes(kind: str, **data: Any) -> None:
        if kind == "answer" and data["op"] == "acquire" and not reported:
            reported.append(data["outcome"])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Lock(url, ttl_s=60, emit=strikes).acquire(timeout=0)
    assert reported == ["Applied"]
    assert Lock(url, ttl_s=60).acquire(timeout=0)
