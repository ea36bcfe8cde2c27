"""A lock for each stripe of keys on object storage: real stores, processes, faults, and seeds."""

from __future__ import annotations

import io
import json
import random
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from lock_world import PATIENCE_S, SCHEMES, Tale, add_one, memory, overwrite, process, said

from lockkit.clock import Clock
from lockkit.errors import LockBusy, LockLost, NoAnswer, StoreError
from lockkit.events import event
from lockkit.lab.faults import Fault, Proxy
from lockkit.lab.probe.race import reopen
from lockkit.lab.verify.check import Kind, check
from lockkit.lock.handle import Lock
from lockkit.protocol.outcome import (
    Applied,
    Found,
    IfAbsent,
    IfVersion,
    Missing,
    PreconditionFailed,
)
from lockkit.recipes.errors import StripesDiffer
from lockkit.recipes.striped import StripedLock
from lockkit.recipes.striped import handle as module
from lockkit.recipes.stripes import LAYOUT_KEY, SubStore, of_stripe

STRIPES = 8
QUICK: dict[str, Any] = {"ttl_s": 30.0, "renew_interval_s": 0.1}
"""A loss is noticed at the next renewal, and a slow machine is none."""


def key_in(stripe: int, stripes: int = STRIPES) -> str:
    """A key whose stripe this is."""
    striped = StripedLock("memory://nobody/here", stripes=stripes)
    return next(f"k{n}" for n in range(1_000) if striped.stripe_of(f"k{n}") == stripe)


A, B, C = (key_in(stripe) for stripe in (1, 2, 5))


@pytest.fixture(params=["memory", *SCHEMES])
def place(
    request: pytest.FixtureRequest, bucket: str, shared_emulator: Any
) -> Callable[..., StripedLock]:
    """Handles on one striped lock: in memory, and behind each of the three real SDKs."""
    if request.param == "memory":
        url, options = memory(), {}
    else:
        url = f"{SCHEMES[request.param]}://{bucket}/table"
        options = {"endpoint": getattr(shared_emulator, request.param)}
    return lambda **more: StripedLock(url, **{"stripes": STRIPES, **options, **more})


@pytest.fixture
def here() -> Callable[..., StripedLock]:
    """The same, in memory only."""
    url = memory()
    return lambda **more: StripedLock(url, **{"stripes": STRIPES, **more})


# --- exclusion ------------------------------------------------------------------------------------


def test_disjoint_keys_do_not_meet_and_a_common_one_excludes(
    place: Callable[..., StripedLock],
) -> None:
    one, other = place(client="one"), place(client="other")
    with one.keys(A, B) as held:
        held.assert_held()
        with other.keys(C) as beside:
            beside.assert_held()
        assert not other.keys(C, B, acquire_timeout=0).acquire()
        said = rf"the lock of {B!r} \(stripe 2\) was not free within 0 s, and none"
        with pytest.raises(LockBusy, match=said):
            other.keys(B, acquire_timeout=0).__enter__()
        with other.keys(C, acquire_timeout=0):
            pass  # given back by the call that could not have both
        fences = held.fences
        assert set(fences) == {A, B}
    with other.keys(B, A, acquire_timeout=PATIENCE_S) as after:
        assert all(after.fences[key].epoch > fences[key].epoch for key in (A, B))
    one.close()
    other.close()


def moving(url: str, options: dict[str, Any], folder: str, me: int, pipe: Connection) -> None:
    """Adds one to two files at a time, named in any order; the locks are their only atomicity."""
    striped, dice = StripedLock(url, stripes=4, **options), random.Random(me)
    for _ in range(6):
        names = dice.sample(["x", "y", "z"], 2)
        with striped.keys(*names, acquire_timeout=PATIENCE_S):
            for name in names:
                add_one(f"{folder}/{name}")
    pipe.send("done")


def test_four_processes_that_name_their_keys_in_any_order_all_come_to_their_end(
    shared_emulator: Any, bucket: str, tmp_path: Path
) -> None:
    for name in "xyz":
        (tmp_path / name).write_text("0")
    given = (f"s3://{bucket}/table", {"endpoint": shared_emulator.s3}, str(tmp_path))
    with (
        process(moving, *given, 1) as (_, a), process(moving, *given, 2) as (_, b),
        process(moving, *given, 3) as (_, c), process(moving, *given, 4) as (_, d),
    ):  # fmt: skip
        assert [said(each, 60) for each in (a, b, c, d)] == ["done"] * 4
    assert sum(int((tmp_path / name).read_text()) for name in "xyz") == 4 * 6 * 2


def test_stripes_are_claimed_in_ascending_order_and_each_once(
    here: Callable[..., StripedLock],
) -> None:
    tale = Tale()
    striped = here(emit=tale)
    with striped.keys(C, A, B, A):
        pass
    writes = [(each["op"], each["stripe"]) for each in tale.of("ask") if each["attempt"]]
    assert [stripe for op, stripe in writes if op == "acquire"] == [1, 2, 5]
    assert sorted(stripe for op, stripe in writes if op == "release") == [1, 2, 5]


def test_a_release_that_takes_long_holds_up_no_other(shared_emulator: Any, bucket: str) -> None:
    tale = Tale()
    with Proxy(shared_emulator.s3) as proxy:
        striped = StripedLock(f"s3://{bucket}/t", stripes=STRIPES, endpoint=proxy.url, emit=tale)
        for slow in (1, 5):
            with striped.keys(A, B, C):
                key = f"stripes/{slow}/.hoodie/.locks/table_lock.json"
                proxy.inject(Fault("delay", delay_s=1.5, key=key, operation="put", next=1))
            assert [each["stripe"] for each in tale.of("released")][-1] == slow


def test_acquired_locks_are_released_in_reverse_if_one_cannot_be_acquired(
    here: Callable[..., StripedLock],
) -> None:
    tale = Tale()
    with here().keys(C):
        assert not here(emit=tale).keys(A, B, C, acquire_timeout=0).acquire()
    done = [(each.kind, each["stripe"]) for each in tale.events
            if each.kind in ("held", "released")]  # fmt: skip
    assert done == [("held", 1), ("held", 2), ("released", 2), ("released", 1)]


class Stepping(Clock):
    """Where the test's own thread waits, its time goes on at once; `meanwhile` after 3 s of it."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self.ahead_ms, self.meanwhile, self.mine = 0.0, meanwhile, threading.current_thread()

    def boot_ms(self) -> int:
        return super().boot_ms() + round(self.ahead_ms)

    def wait(self, woken: threading.Event, seconds: float) -> bool:
        if threading.current_thread() is not self.mine:
            return super().wait(woken, seconds)
        before, self.ahead_ms = self.ahead_ms, self.ahead_ms + seconds * 1000
        if before < 3_000 <= self.ahead_ms:
            self.meanwhile()
        return woken.is_set()


def test_one_deadline_is_for_all_stripes_of_a_call(here: Callable[..., StripedLock]) -> None:
    one, other = here().keys(A), here().keys(B)
    assert one.acquire()
    assert other.acquire()
    clock = Stepping(one.release)
    waits = here(clock=clock).keys(A, B, acquire_timeout=5)
    assert not waits.acquire()
    assert "(stripe 2) was not free within 5" in str(waits.busy)
    assert 3_000 <= clock.ahead_ms <= 5_001
    other.release()


def test_an_interrupt_while_waiting_for_one_lock_leaves_no_lock_held(
    here: Callable[..., StripedLock],
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    other, striped = here().keys(C), here(clock=Stepping(interrupt))
    assert other.acquire()
    with pytest.raises(KeyboardInterrupt):
        striped.keys(A, B, C, acquire_timeout=None).acquire()
    with here().keys(A, B, acquire_timeout=0):
        pass
    other.release()
    with striped.keys(A, B, C, acquire_timeout=0):
        pass  # and the handle is of use again


# --- losing ---------------------------------------------------------------------------------------


def test_the_loss_of_any_stripe_is_reported_and_the_others_are_released(
    place: Callable[..., StripedLock],
) -> None:
    lost = threading.Event()
    striped = place(lock={**QUICK, "on_lost": lambda _lock, _why: lost.set()})
    held = striped.keys(A, B, C)
    assert held.acquire()
    overwrite(striped.lock_of(2), b"{}")
    assert lost.wait(PATIENCE_S)
    with pytest.raises(LockLost, match=r"stripes/2"):
        held.assert_held()
    with pytest.raises(LockLost, match=r"stripes/2"):
        held.release()
    with place().keys(A, C, acquire_timeout=PATIENCE_S):
        pass
    with pytest.raises(LockLost, match="not held"):
        held.assert_held()


def test_losing_the_first_stripe_while_waiting_for_the_last_is_reported_and_releases_all(
    here: Callable[..., StripedLock],
) -> None:
    striped, other = here(lock=QUICK), here().keys(C)
    assert other.acquire()

    def lose_the_first() -> None:
        striped.lock_of(1)._client.lose("the machine slept")
        other.release()

    striped.clock.wait = Stepping(lose_the_first).wait  # type: ignore[method-assign]
    with pytest.raises(LockLost, match="the machine slept"):
        striped.keys(A, C, acquire_timeout=PATIENCE_S).acquire()
    assert here().keys(C, acquire_timeout=0).acquire()


def test_the_blocks_own_error_goes_first_and_published_work_is_only_warned_of(
    here: Callable[..., StripedLock],
) -> None:
    striped = here()
    with pytest.warns(UserWarning, match="the machine slept"), pytest.raises(ZeroDivisionError):
        with striped.keys(A):
            striped.lock_of(1)._client.lose("the machine slept")
            raise ZeroDivisionError
    with pytest.warns(UserWarning, match="after the work was published"), striped.keys(A) as held:
        held.mark_committed()
        striped.lock_of(1)._client.lose("the machine slept")


# --- use ------------------------------------------------------------------------------------------


def test_a_second_call_within_the_first_is_refused_for_it_could_close_a_circle(
    here: Callable[..., StripedLock],
) -> None:
    striped = here()
    with striped.keys(A) as held:
        with pytest.raises(RuntimeError, match="take all keys in one call"):
            striped.keys(B).acquire()
        held.assert_held()
    with pytest.raises(RuntimeError, match="are not held"):
        held.release()
    with striped.keys(B):
        pass


@pytest.mark.parametrize("keys", [(), (1,), (b"a",)])
def test_keys_that_are_no_text_are_refused(
    here: Callable[..., StripedLock], keys: tuple[Any, ...]
) -> None:
    with pytest.raises(ValueError, match="each a string"):
        here().keys(*keys)


@pytest.mark.parametrize("stripes", [0, -1, 2**16 + 1, 2.0])
def test_an_invalid_number_of_stripes_is_refused(stripes: Any) -> None:
    with pytest.raises(ValueError, match="from 1 to 65,536; not"):
        StripedLock(memory(), stripes=stripes)


def test_the_number_of_kept_handles_is_bounded(
    here: Callable[..., StripedLock], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HANDLES_MAX", 2)
    striped = here()
    for _ in range(2):
        for stripe in range(STRIPES):
            with striped.keys(key_in(stripe)):
                pass
            assert len(striped._locks) <= 2
    with striped.keys(A, B, C) as held:
        held.assert_held()


# --- how many stripes -----------------------------------------------------------------------------


def test_a_handle_with_another_number_of_stripes_is_refused_and_locks_nothing(
    here: Callable[..., StripedLock],
) -> None:
    with here(stripes=5).keys(A):  # as many as 8
        pass
    with pytest.raises(StripesDiffer, match=r"says 8 stripes, .* has 16: .* stripes=8\)"):
        here(stripes=16).keys(A).acquire()
    with here().keys(A, acquire_timeout=0):
        pass


def test_of_handles_that_race_with_different_numbers_only_those_of_one_number_lock(
    shared_emulator: Any, bucket: str
) -> None:
    trace: list[tuple[int, bool]] = []
    gate = threading.Barrier(4)

    def go(stripes: int) -> None:
        striped = StripedLock(f"s3://{bucket}/t", stripes=stripes, endpoint=shared_emulator.s3)
        gate.wait(PATIENCE_S)
        try:
            with striped.keys("a", acquire_timeout=PATIENCE_S):
                trace.append((stripes, True))
        except StripesDiffer:
            trace.append((stripes, False))

    threads = [threading.Thread(target=go, args=(4 << n % 2,)) for n in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(PATIENCE_S)
    assert len(trace) == 4
    assert len({stripes for stripes, locked in trace if locked}) == 1
    assert len({stripes for stripes, locked in trace if not locked}) == 1


HOSTILE = {
    "empty": (b"", "is not a record of stripes"),
    "truncated": (b'{"format": 1, "stripes": 8, "ha', "is not a record of stripes"),
    "not an object": (b"[8]", "is not a record of stripes"),
    "deep": (b"[" * 4_000, "is not a record of stripes"),
    "long": (b'{"format": 1, "stripes": 8, "hash": "guava(blake2b-32)"}' + b" " * 5_000,
             "is not a record of stripes"),
    "no number": (b'{"format": 1, "stripes": "8", "hash": "x"}', "is not a record of stripes"),
    "no power of two": (b'{"format": 1, "stripes": 6, "hash": "x"}', "is not a record of stripes"),
    "far too many": (b'{"format": 1, "stripes": 1073741824, "hash": "x"}', "is not a record"),
    "a future format": (b'{"format": 2, "stripes": 8}', "is of format 2, and this version"),
    "another hash": (b'{"format": 1, "stripes": 8, "hash": "crc32"}', "spreads keys by 'crc32'"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_an_invalid_record_of_stripes_is_refused_and_kept(
    here: Callable[..., StripedLock], name: str
) -> None:
    body, why = HOSTILE[name]
    striped = here()
    assert isinstance(striped.store.put(LAYOUT_KEY, body, IfAbsent()), Applied)
    with pytest.raises(StripesDiffer, match=why.replace("(", r"\(")):
        striped.keys(A).acquire()
    found = striped.store.get(LAYOUT_KEY)
    assert isinstance(found, Found)
    assert found.body == body
    assert not striped.store.list("stripes/")


@pytest.mark.parametrize("kind", SCHEMES)
def test_lost_answers_cost_a_read_and_leave_one_record_and_one_holder(
    kind: str, shared_emulator: Any, bucket: str
) -> None:
    url = f"{SCHEMES[kind]}://{bucket}/table"
    with Proxy(getattr(shared_emulator, kind)) as proxy:
        proxy.inject(Fault("drop", key=LAYOUT_KEY, operation="put"))
        proxy.inject(Fault("drop", key="stripes/2/.hoodie/.locks/table_lock.json", operation="put"))
        one = StripedLock(url, stripes=STRIPES, endpoint=proxy.url)
        with one.keys(A, B, C) as held:
            held.assert_held()
            other = StripedLock(url, stripes=STRIPES, endpoint=proxy.url)
            assert not other.keys(B, acquire_timeout=0).acquire()
        with other.keys(B, acquire_timeout=PATIENCE_S):
            pass
        recorded = one.store.get(LAYOUT_KEY)
        assert isinstance(recorded, Found)
        assert json.loads(recorded.body)["stripes"] == STRIPES


def test_a_store_that_does_not_answer_is_an_error_of_the_store(
    shared_emulator: Any, bucket: str
) -> None:
    with Proxy(shared_emulator.s3) as proxy:
        proxy.inject(Fault("status", code=503, when="before", next="every"))
        clock = Stepping(lambda: None)
        clock.sleep = lambda seconds: None  # type: ignore[method-assign]
        striped = StripedLock(f"s3://{bucket}/t", stripes=2, endpoint=proxy.url, clock=clock)
        with pytest.raises(NoAnswer, match="could not be tested whether this store enforces"):
            striped.keys("a").acquire()
        proxy.clear()
        with striped.keys("a"):
            pass
    with pytest.raises(StoreError, match="carries a password or a signature"):
        StripedLock("s3://me:secret@bucket/t", stripes=2)


def test_a_stripe_is_an_ordinary_lock_at_its_own_url(here: Callable[..., StripedLock]) -> None:
    striped = here()
    with striped.keys(B):
        assert not Lock(f"{striped.url}/stripes/2").acquire(timeout=0)
        assert Lock(f"{striped.url}/stripes/1").acquire(timeout=0)
    assert {each.key.rpartition("/.hoodie")[0] or each.key for each in striped.store.list("")} == {
        LAYOUT_KEY, "stripes/1", "stripes/2",
    }  # fmt: skip


def test_all_stripes_share_one_client_of_the_store(
    place: Callable[..., StripedLock],
) -> None:
    striped = place()
    with striped.keys(A, B, C):
        stores = [striped.lock_of(stripe).store for stripe in (1, 2, 5)]
    assert {each._store for each in stores} == {striped.store}  # type: ignore[attr-defined]


def test_the_objects_below_a_prefix_are_a_store_of_their_own(
    place: Callable[..., StripedLock]
) -> None:
    store = place().store
    below, beside = SubStore(store, "here"), SubStore(store, "here2")
    assert isinstance(below.put("a/1", b"one", IfAbsent()), Applied)
    assert isinstance(below.put("a/2", b"two", IfAbsent()), Applied)
    assert isinstance(beside.put("a/1", b"other", IfAbsent()), Applied)
    assert isinstance(below.put_file("b", io.BytesIO(b"three"), 5), Applied)
    assert isinstance(below.put("a/1", b"again", IfAbsent()), PreconditionFailed)
    assert [each.key for each in below.list("")] == ["a/1", "a/2", "b"]
    assert [each.key for each in below.list("a/", after="a/1")] == ["a/2"]
    match below.get("a/1"), reopen(below).get("a/1"), store.get("here/a/1", limit=1):
        case Found(b"one", version), Found(b"one", again), Found(b"on", third):
            assert version == again == third
        case other:
            pytest.fail(f"{other}")
    into = io.BytesIO()
    assert isinstance(below.get_file("b", into), Found)
    assert into.getvalue() == b"three"
    newest = below.versions("a/1")[0]
    assert newest.current
    assert below.get_version("a/1", newest) == b"one"
    assert isinstance(below.delete("a/1", IfVersion(version)), Applied)
    assert isinstance(below.get("a/1"), Missing)
    assert isinstance(beside.get("a/1"), Found)
    below.close()
    assert isinstance(store.get("here2/a/1"), Found)


def test_a_history_is_judged_stripe_by_stripe(shared_emulator: Any, bucket: str) -> None:
    events: list[Any] = []
    clock = Clock()

    def handle(who: str) -> StripedLock:
        return StripedLock(
            f"s3://{bucket}/table", stripes=STRIPES, endpoint=shared_emulator.s3, client=who,
            emit=lambda kind, **data: events.append(event(clock.stamp_ms(), who, kind, **data)),
        )  # fmt: skip

    one, other = handle("one"), handle("other")
    with one.keys(A, B), other.keys(C):
        pass
    with other.keys(A, B):
        pass
    history = events + [e for e in shared_emulator.requests() if e["bucket"] == bucket]
    assert check(sorted(history, key=lambda each: each.at_ms)).kind is Kind.INVALID  # as one lock
    for stripe, grants in ((1, 2), (2, 2), (5, 1)):
        verdict = check(of_stripe(sorted(history, key=lambda each: each.at_ms), stripe))
        assert verdict.kind is Kind.VALID, verdict.because
        assert verdict.because.startswith(f"{grants} grant")
