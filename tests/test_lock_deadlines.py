"""The lock keeps its times whatever the store sends: acquire, release, danger, loss."""

from __future__ import annotations

import socket
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import pytest
import trickle as slow
from lock_world import SCHEMES, Tale, memory, record, until
from trickle import ends_within, trickle

from lockkit.errors import LockBusy, LockLost
from lockkit.events import event
from lockkit.lab.faults import Fault, Proxy
from lockkit.lab.server import Emulator
from lockkit.lab.verify.check import Kind, replay
from lockkit.lock.grant import stop_renewing
from lockkit.lock.handle import Lock, UnprovenRelease

TTL_S = 3.0
LATE_S = 6.0
"""By how much `acquire` and `release` may be late, as their docstrings say."""
BUSY_S = 6.0
"""What a busy machine may add; a server that trickles goes on for far longer."""


class Relay:
    """Between a client and its server; after `drip()` answers pass one byte at a time."""

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        self._to = (parts.hostname or "", parts.port or 80)
        self._dripping = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}{parts.path}"
        threading.Thread(target=self._accept, daemon=True).start()

    def drip(self) -> None:
        self._dripping.set()

    def close(self) -> None:
        self._socket.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._socket.accept()
                far = socket.create_connection(self._to)
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError), source, target:
            while found := source.recv(1 << 16):
                is_answer = source.getpeername()[1] == self._to[1]
                if not (is_answer and self._dripping.is_set()):
                    target.sendall(found)
                    continue
                for at in range(len(found)):
                    target.sendall(found[at : at + 1])
                    time.sleep(0.2)


@pytest.fixture(params=list(SCHEMES))
def relay(
    request: pytest.FixtureRequest, bucket: str, shared_emulator: Any
) -> Iterator[tuple[str, Relay]]:
    made = Relay(getattr(shared_emulator, request.param))
    url = f"{SCHEMES[request.param]}://{bucket}/table"
    with Lock(url, endpoint=made.url, ttl_s=TTL_S):
        pass  # its conditions are proven
    yield url, made
    made.close()


@pytest.mark.parametrize("kind", list(SCHEMES))
def test_acquire_returns_in_time_from_a_server_that_trickles(kind: str) -> None:
    with trickle(slow.body) as server:
        lock = Lock(f"{SCHEMES[kind]}://b/table", endpoint=server.url, ttl_s=TTL_S)
        assert not ends_within(LATE_S + BUSY_S, lambda: lock.acquire(timeout=0))
        assert "in the time that it may take" in lock.busy_reason()


def test_acquire_ends_in_time_if_the_answer_to_its_claim_trickles(relay: tuple[str, Relay]) -> None:
    url, made = relay
    tale = Tale()
    lock = Lock(url, endpoint=made.url, ttl_s=300.0, emit=tale)
    assert lock.acquire(timeout=5)
    lock.release()
    made.drip()  # what it knows of the object lets it claim at once
    assert not ends_within(0.5 + LATE_S + BUSY_S, lambda: lock.acquire(timeout=0.5))
    assert "acquire Unknown" in tale.ops()


def test_a_trickling_server_delays_no_report_of_danger_and_loss(relay: tuple[str, Relay]) -> None:
    url, made = relay
    at: dict[str, float] = {}
    lock = Lock(
        url, endpoint=made.url, ttl_s=TTL_S,
        on_danger=lambda _: at.setdefault("danger", time.monotonic()),
        on_lost=lambda *_: at.setdefault("lost", time.monotonic()),
    )  # fmt: skip
    assert lock.acquire(timeout=5)
    made.drip()
    began = time.monotonic()
    until(lambda: "lost" in at, TTL_S + BUSY_S)
    assert at["danger"] < at["lost"] <= began + TTL_S + BUSY_S
    assert not lock.owned()
    with pytest.raises(LockLost), warnings.catch_warnings():
        warnings.simplefilter("ignore", UnprovenRelease)
        ends_within(LATE_S + BUSY_S, lock.release)


def test_release_returns_at_the_leases_end_even_if_the_server_trickles(
    relay: tuple[str, Relay],
) -> None:
    url, made = relay
    lock = Lock(url, endpoint=made.url, ttl_s=TTL_S)
    assert lock.acquire(timeout=5)
    made.drip()

    def release() -> None:
        with pytest.warns(UnprovenRelease):
            lock.release()

    ends_within(TTL_S + LATE_S + BUSY_S, release)


def test_a_renewal_that_never_returns_delays_no_report() -> None:
    """No socket, no deadline: as an SDK that hangs while it fetches credentials."""
    over = threading.Event()
    tale, reported = Tale(), list[tuple[str, str]]()

    def note(what: str) -> None:
        reported.append((what, threading.current_thread().name))

    lock = Lock(
        memory(), ttl_s=1.0, emit=tale,
        on_danger=lambda _: note("danger"), on_lost=lambda _, why: note(why),
    )  # fmt: skip
    lock.acquire()
    put = lock.store.put

    def hang(*args: Any, **options: Any) -> Any:
        over.wait(60)
        return put(*args, **options)

    lock.store.put = hang  # type: ignore[method-assign]
    until(lambda: len(reported) == 2, BUSY_S)
    assert reported == [
        ("danger", "lockkit-watch"),
        ("the lease ran out before a renewal was proven", "lockkit-watch"),
    ]
    assert not over.is_set() and not lock.owned()
    assert [each.kind for each in tale.events if each.kind in ("danger", "lost")] == [
        "danger", "lost",
    ]  # fmt: skip
    over.set()  # it lands at last, which revives nothing
    until(lambda: any(each["outcome"] == "Applied" and each["op"] == "renew"
                      for each in tale.of("answer")))  # fmt: skip
    assert not lock.owned() and not tale.of("renewed")
    with pytest.raises(LockLost, match="ran out"):
        lock.release()


def test_a_loss_in_the_middle_of_a_request_is_a_step_of_the_protocol() -> None:
    """The history of such a loss replays, and no step of it may be missing."""
    events: list[Any] = []

    def tell(kind: str, **fields: Any) -> None:
        events.append(event(time.time() * 1000, "T", kind, **fields))

    with Emulator() as server:
        lock = Lock("s3://bucket/table", endpoint=server.s3, ttl_s=1.0, emit=tell)
        assert lock.acquire(timeout=5)
        over = threading.Event()
        put = lock.store.put

        def late(*args: Any) -> Any:
            over.wait(30)
            return put(*args)

        lock.store.put = late  # type: ignore[method-assign]
        until(lambda: any(each.kind == "lost" for each in events))
        over.set()
        with pytest.raises(LockLost):
            lock.release()
        history = sorted([*events, *server.requests()], key=lambda each: each.at_ms)
    steps = [each for each in events if each.kind == "heard"]
    ended = [each for each in steps if each["event"] == "ended"]
    assert len(ended) == 1 and steps.index(ended[0]) < len(steps) - 1
    verdict = replay(history)
    assert verdict.kind is Kind.VALID, (verdict.because, verdict.evidence)
    without = [each for each in history if each is not ended[0]]
    assert replay(without).kind is not Kind.VALID


# --- Retry-After ---------------------------------------------------------------------------------


@pytest.fixture
def throttling(bucket: str, shared_emulator: Any) -> Iterator[tuple[str, Proxy]]:
    with Proxy(shared_emulator.s3) as proxy:
        url = f"s3://{bucket}/table"
        with Lock(url, endpoint=proxy.url, ttl_s=TTL_S):
            pass
        yield url, proxy


def throttle(proxy: Proxy) -> None:
    """The next write is told to come again after a minute."""
    proxy.inject(Fault("status", code=429, retry_after_s=60, operation="put"))


def test_a_renewal_throttled_beyond_the_lease_is_retried_before_its_end(
    throttling: tuple[str, Proxy],
) -> None:
    url, proxy = throttling
    tale, dangers, lost = Tale(), list[Lock](), list[str]()
    lock = Lock(
        url, endpoint=proxy.url, ttl_s=TTL_S, emit=tale,
        on_danger=dangers.append, on_lost=lambda _, why: lost.append(why),
    )  # fmt: skip
    assert lock.acquire(timeout=5)
    throttle(proxy)
    until(lambda: "renew Throttled" in tale.ops())
    before = len(tale.of("renewed"))
    until(lambda: len(tale.of("renewed")) > before)
    assert dangers == [lock] and not lost
    assert lock.owned()
    lock.release()


def test_a_manual_renewal_throttled_for_too_long_is_retried_before_the_leases_end(
    throttling: tuple[str, Proxy],
) -> None:
    url, proxy = throttling
    lock = Lock(url, endpoint=proxy.url, ttl_s=TTL_S)
    assert lock.acquire(timeout=5)
    stop_renewing(lock._client)
    throttle(proxy)
    lock.renew()
    lock.release()


def test_a_release_throttled_beyond_the_lease_is_retried_before_its_end(
    throttling: tuple[str, Proxy],
) -> None:
    url, proxy = throttling
    lock = Lock(url, endpoint=proxy.url, ttl_s=6.0)
    assert lock.acquire(timeout=5)
    throttle(proxy)
    began = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ends_within(6.0 + BUSY_S, lock.release)
    assert time.monotonic() - began < 5.0, "half of the lease is waited for, not all of it"
    assert record(lock).expired


def test_an_acquirer_that_is_throttled_reports_for_how_long(
    throttling: tuple[str, Proxy],
) -> None:
    url, proxy = throttling
    for _ in range(3):  # it tries once more at its own time's end
        throttle(proxy)
    began = time.monotonic()
    with pytest.raises(LockBusy, match="throttled; come again after 60 s"):
        ends_within(
            2.0 + BUSY_S, lambda: Lock(url, endpoint=proxy.url, acquire_timeout=1).__enter__()
        )
    assert time.monotonic() - began < 1.0 + BUSY_S
