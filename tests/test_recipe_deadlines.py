"""What a caller gives a recipe or a lock service in seconds is kept, whatever the server sends."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import trickle as slow
from test_cli import assert_says, run
from trickle import ends_within, trickle

from lockkit.clock import Clock
from lockkit.errors import NoAnswer, Unanswered
from lockkit.lock.grant import LATE_S
from lockkit.providers import open_lock
from lockkit.recipes.election import Election
from lockkit.recipes.errors import LockUnknown, QueueBusy
from lockkit.recipes.queue.handle import Queue
from lockkit.recipes.striped import StripedLock
from lockkit.recipes.terraform import StateLock
from lockkit.recipes.wal import Wal
from lockkit.runtime import Parallel, Procedure
from lockkit.runtime import run as carry_out
from lockkit.runtime.proven import read
from lockkit.stores import open_store
from lockkit.stores.within import within

WAIT_S = 1.0
BUSY_S = 6.0
"""What a busy machine may add to a wait of `WAIT_S` and a last try of `LATE_S`."""
URL, STATE = "s3://b/t", "s3://b/prod.tfstate"

Call = Callable[[], object]


def thrift(connection: socket.socket) -> None:
    """The head of an answer to `get_config_value`, with a long text that trickles."""
    name = b"get_config_value"
    head = b"\x80\x01\x00\x02" + len(name).to_bytes(4, "big") + name + bytes(4)
    connection.sendall(head + b"\x0b\x00\x00" + (60_000).to_bytes(4, "big"))
    slow._drip(connection, b"x")


@pytest.fixture(params=[slow.body, slow.silence], ids=["trickles", "silent"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    with trickle(request.param) as made:
        yield made.url


def campaign(server: str) -> Call:
    election = Election(URL, endpoint=server)
    return lambda: election.campaign(WAIT_S)


def stripes(server: str) -> Call:
    striped = StripedLock(URL, stripes=4, endpoint=server)
    return striped.keys("a", "b", acquire_timeout=WAIT_S).acquire


def state(server: str) -> Call:
    lock = StateLock(STATE, endpoint=server)
    return lambda: lock.lock(acquire_timeout=WAIT_S)


@pytest.mark.parametrize(
    ("take", "error"), [(campaign, NoAnswer), (stripes, NoAnswer), (state, LockUnknown)]
)
def test_a_recipe_gives_up_in_the_time_that_it_was_given(
    server: str, take: Callable[[str], Call], error: type[Exception]
) -> None:
    call = take(server)  # opening a store takes seconds of a busy machine
    with pytest.raises(error):
        ends_within(WAIT_S + LATE_S + BUSY_S, call)


class Pauses(Clock):
    """The real clock; it adds up what is slept."""

    def __init__(self) -> None:
        self.slept_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds
        super().sleep(seconds)


@pytest.mark.parametrize(
    "call",
    [
        lambda server, clock: Wal(URL, endpoint=server, clock=clock),
        lambda server, clock: Queue(URL, endpoint=server, clock=clock).push("x"),
        lambda server, clock: StateLock(STATE, endpoint=server, clock=clock).show(),
        lambda server, clock: StateLock(STATE, endpoint=server, clock=clock).force_unlock("x"),
    ],
    ids=["log", "queue", "look", "unlock"],
)  # fmt: skip
def test_a_limit_of_time_covers_the_pauses_between_requests(
    server: str, call: Callable[[str, Clock], object]
) -> None:
    clock = Pauses()

    def limited() -> object:
        with within(WAIT_S):
            return call(server, clock)

    with pytest.raises((NoAnswer, Unanswered, QueueBusy)):
        ends_within(WAIT_S + BUSY_S, limited)
    assert clock.slept_s <= WAIT_S


def test_a_limit_of_time_covers_requests_in_parallel(server: str) -> None:
    store = open_store(URL, endpoint=server)

    def both() -> Procedure[Any]:
        return (yield Parallel((read("a"), read("b"))))

    def limited() -> object:
        with within(WAIT_S):
            return carry_out(both(), store, Clock())

    with closing(store), pytest.raises(Unanswered):
        ends_within(WAIT_S + BUSY_S, limited)


@pytest.mark.parametrize(
    "url",
    [
        "zookeeper://{at}/base/key?connection_timeout_s=60",
        "hive://{at}/database/table",
        "dynamodb://us-east-1/table/key?endpoint=http://{at}",
        "azure-lease://container/blob?endpoint=http://{at}",
    ],
    ids=["zookeeper", "hive", "dynamodb", "azure-lease"],
)
def test_a_lock_service_that_does_not_answer_ends_acquire_in_time(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    with trickle(thrift if url.startswith("hive") else slow.silence) as made:
        lock = open_lock(url.format(at=made.url.partition("://")[2]))
        with closing(lock), pytest.raises(NoAnswer):
            ends_within(WAIT_S + LATE_S + BUSY_S, lambda: lock.acquire(timeout=WAIT_S))


@pytest.mark.parametrize("line", [("show",), ("unlock", "x"), ("force-unlock", "x")])
def test_a_read_of_a_state_lock_ends_in_the_time_of_one_request(
    server: str, line: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Clock, "sleep", lambda _, seconds: slept.append(seconds))
    slept: list[float] = []
    verb, *rest = line
    there = (STATE, *rest, "--endpoint", server, "--timeout-s", str(WAIT_S))
    assert_says(run("tflock", verb, *there), "could not be read")
    assert sum(slept) <= WAIT_S
