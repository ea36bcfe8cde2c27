"""Every call to a store ends in time, whatever its server sends: with the real SDKs."""

from __future__ import annotations

import io
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trickle as slow
from trickle import ends_within, trickle

from lockkit.errors import NoAnswer
from lockkit.protocol.outcome import Applied, Found, IfAbsent, IfVersion, Unknown
from lockkit.stores import Store, deadline, open_store, timed_socket, tokens, within

TIMEOUT_S = 0.5
PATIENCE_S = 8.0
"""Many times the timeout, for a busy machine; the servers go on for a minute."""

URLS = {"s3": "s3://b/t", "gcs": "gs://b/t", "azure": "az://b/t"}
CALLS: dict[str, Callable[[Store], object]] = {
    "get": lambda store: store.get("k"),
    "get with a limit": lambda store: store.get("k", limit=1000),
    "get_file": lambda store: store.get_file("k", io.BytesIO()),
    "put": lambda store: store.put("k", b"{}", IfAbsent()),
    "put_file": lambda store: store.put_file("k", io.BytesIO(b"{}"), 2),
    "delete": lambda store: store.delete("k"),
    "guarded delete": lambda store: store.delete("k", IfVersion("1")),
    "list": lambda store: store.list("a"),
    "versions": lambda store: store.versions("k"),
}


@pytest.fixture(params=list(URLS))
def dialect(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    name: str = request.param
    return name


def anonymous(dialect: str) -> dict[str, Any]:
    return {"use_auth_w_custom_endpoint": False} if dialect == "gcs" else {}


def opened(dialect: str, endpoint: str) -> Store:
    return open_store(URLS[dialect], endpoint=endpoint, timeout_s=TIMEOUT_S, **anonymous(dialect))


def answer(store: Store, call: str) -> object:
    """What the call came to; a listing has no answer but its error."""
    try:
        return ends_within(PATIENCE_S, lambda: CALLS[call](store))
    except NoAnswer as error:
        assert call in ("list", "versions")
        return error


@pytest.mark.parametrize(
    ("how", "call"),
    [*((slow.body, call) for call in CALLS), (slow.headers, "get"), (slow.headers, "put")],
)
def test_a_server_that_trickles_holds_no_call(dialect: str, call: str, how: Any) -> None:
    with trickle(how) as server:
        said = answer(opened(dialect, server.url), call)
    assert isinstance(said, Unknown | NoAnswer), said
    assert "in the time that it may take" in str(said)


@pytest.mark.parametrize("how", [slow.status, slow.promises, slow.silence])
def test_no_kind_of_silent_server_delays_a_write(dialect: str, how: Any) -> None:
    with trickle(how) as server:
        said = answer(opened(dialect, server.url), "put")
    assert isinstance(said, Unknown), said


@pytest.mark.parametrize("how", [slow.tls, slow.silence])
def test_a_tls_handshake_that_stalls_holds_no_call(dialect: str, how: Any) -> None:
    with trickle(how, "https") as server:
        said = answer(opened(dialect, server.url), "put")
    assert isinstance(said, Unknown), said


def test_a_connection_that_is_never_accepted_holds_no_call(dialect: str) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf:
        address = deaf.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:  # its queue is full: what comes now is not even refused
            each.setblocking(False)
            with suppress(BlockingIOError):
                each.connect(address)
        time.sleep(0.1)
        said = answer(opened(dialect, f"http://127.0.0.1:{address[1]}"), "get")
        for each in waiting:
            each.close()
    assert isinstance(said, Unknown), said


def test_a_resolver_that_stalls_holds_no_call(
    dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(60) and [])
    store = opened(dialect, "http://store.invalid:9000")
    said = answer(store, "get")
    over.set()
    assert isinstance(said, Unknown), said


def test_several_dead_addresses_share_one_deadline(
    dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name with many addresses, none of which answers: one deadline for all of them."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf:
        port = deaf.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            with suppress(BlockingIOError):
                each.connect(("127.0.0.1", port))
        time.sleep(0.1)
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        every = [(*kind, (f"127.0.0.{last}", port)) for last in (1, 1, 1)]
        real = socket.getaddrinfo
        monkeypatch.setattr(
            socket, "getaddrinfo",
            lambda host, *rest, **how: every if "store" in str(host) else real(host, *rest, **how),
        )  # fmt: skip
        said = answer(opened(dialect, f"http://store.invalid:{port}"), "get")
        for each in waiting:
            each.close()
    assert isinstance(said, Unknown), said


def test_a_proxy_that_trickles_its_consent_holds_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    with trickle(slow.headers) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        said = answer(opened("s3", "https://store.invalid"), "put")
    assert isinstance(said, Unknown), said


def test_the_deadline_of_one_call_does_not_shorten_the_next(dialect: str) -> None:
    """A connection is used again, by a call with a time of its own."""
    with trickle(ok) as server:
        store = opened(dialect, server.url)
        for _ in range(4):
            time.sleep(TIMEOUT_S / 3)
            assert isinstance(answer(store, "get"), Found)


def test_a_limit_set_around_a_call_is_kept_though_the_store_allows_more(dialect: str) -> None:
    with trickle(slow.body) as server:
        store = open_store(URLS[dialect], endpoint=server.url, timeout_s=50)

        def call() -> object:
            with within.within(TIMEOUT_S):
                return store.get("k")

        assert isinstance(ends_within(PATIENCE_S, call), Unknown)


# --- credentials that do not come ----------------------------------------------------------------


@pytest.fixture
def no_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No AWS credentials anywhere; a place to configure some."""
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def test_a_token_service_that_is_silent_holds_no_call(
    no_keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in each pod of EKS: botocore asks STS while it signs the first request."""
    (no_keys / "token").write_text("a token")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(no_keys / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/any")
    with trickle(slow.silence) as sts, trickle(ok) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts.url)
        store = opened("s3", server.url)
        for call in ("get", "put"):
            assert isinstance(answer(store, call), Unknown)


def test_a_credential_process_that_hangs_holds_no_opening(
    no_keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "OPENING_S_MIN", 1.0)
    (no_keys / "config").write_text("[default]\ncredential_process = sleep 9\n")
    with trickle(ok) as server, pytest.raises(NoAnswer, match="in the time that it may take"):
        ends_within(PATIENCE_S, lambda: opened("s3", server.url))


def test_a_credential_process_that_hangs_at_a_renewal_holds_no_call(no_keys: Path) -> None:
    """Its first credentials are about to expire; the program hangs from its third run on."""
    script, runs = no_keys / "credentials.sh", no_keys / "runs"
    script.write_text(
        f"""#!/bin/sh
echo run >> {runs}
[ $(wc -l < {runs}) -lt 3 ] || exec sleep 8
echo '{{"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b", "SessionToken": "c",
  "Expiration": "'$(date -u -d '+60 seconds' +%Y-%m-%dT%H:%M:%SZ)'"}}'
"""
    )
    script.chmod(0o755)
    (no_keys / "config").write_text(f"[default]\ncredential_process = {script}\n")
    with trickle(ok) as server:
        store = open_store("s3://b/t", endpoint=server.url, timeout_s=2)
        said = [ends_within(PATIENCE_S, lambda: store.get("k")) for _ in range(3)]
    assert isinstance(said[0], Found), said
    assert isinstance(said[1], Unknown) and isinstance(said[2], Unknown), said
    assert runs.read_text().count("run") == 3, "the third run is waited for, and not repeated"


# --- large bodies --------------------------------------------------------------------------------


def ok(connection: socket.socket) -> None:
    connection.sendall(
        slow.HEAD + b"x-ms-blob-type: BlockBlob\r\nContent-Range: bytes 0-1/2\r\n"
        b"Content-Length: 2\r\n\r\n{}"
    )


def steadily(length: int, rate: int) -> Callable[[socket.socket], None]:
    """A body of so many bytes, at so many a second."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(
            slow.HEAD + b"x-ms-blob-type: BlockBlob\r\nContent-Range: bytes 0-%d/%d\r\n"
            b"Content-Length: %d\r\n\r\n" % (length - 1, length, length)
        )
        for _ in range(0, length, rate // 20):
            connection.sendall(b" " * (rate // 20))
            time.sleep(0.05)

    return answer


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So that a test can be slow with few bytes."""
    monkeypatch.setattr(deadline, "FREE_BYTES", 2_000)
    monkeypatch.setattr(deadline, "RATE_MIN", 2_000)
    yield


def test_a_large_body_may_take_longer_while_it_makes_progress(dialect: str, rates: None) -> None:
    with trickle(steadily(20_000, 10_000)) as server:
        into = io.BytesIO()
        began = time.monotonic()
        said = ends_within(PATIENCE_S, lambda: opened(dialect, server.url).get_file("k", into))
        assert isinstance(said, Found), said
        assert len(into.getvalue()) == 20_000
        assert time.monotonic() - began > 2 * TIMEOUT_S


def test_a_large_body_that_comes_too_slowly_is_given_up(dialect: str, rates: None) -> None:
    with trickle(steadily(100_000, 1_000)) as server:
        store = opened(dialect, server.url)
        said = ends_within(PATIENCE_S, lambda: store.get_file("k", io.BytesIO()))
    assert isinstance(said, Unknown), said


# --- floods --------------------------------------------------------------------------------------


def forever(head: bytes, each: bytes, rate: int) -> Callable[[socket.socket], None]:
    """A head, then the same bytes for a minute, at so many bytes a second."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(head)
        ends = time.monotonic() + 60
        while time.monotonic() < ends:
            connection.sendall(each * max(1, rate // 20 // len(each)))
            time.sleep(0.05)

    return answer


ERROR = b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/xml\r\n"
CHUNKED, LONG = b"Transfer-Encoding: chunked\r\n\r\n", b"Content-Length: 1000000000\r\n\r\n"
CHUNK = b"64\r\n" + b" " * 100 + b"\r\n"
FLOODS = {
    "promises": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "one endless header": (b"HTTP/1.1 200 OK\r\nX-More: ", b"x"),
    "an error without a length": (ERROR + CHUNKED, CHUNK),
    "an error of great length": (ERROR + LONG, b" "),
}
READ_OR_WRITE = ("get", "get with a limit", "put")


@pytest.mark.parametrize("call", READ_OR_WRITE)
@pytest.mark.parametrize("flood", FLOODS)
def test_unrequested_bytes_do_not_extend_the_deadline(
    dialect: str, flood: str, call: str, rates: None
) -> None:
    """They come at five times the rate at which a body earns its time."""
    with trickle(forever(*FLOODS[flood], rate=10_000)) as server:
        said = answer(opened(dialect, server.url), call)
    assert isinstance(said, Unknown), said


@pytest.mark.parametrize("flood", FLOODS)
def test_an_oversized_answer_is_abandoned_before_it_fills_memory(
    dialect: str, flood: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before the time is over: 10 MB a second, of which a call reads one."""
    read: list[int] = []
    received = timed_socket.TimedSocket._received
    monkeypatch.setattr(
        timed_socket.TimedSocket, "_received",
        lambda self, count: read.append(count) or received(self, count),
    )  # fmt: skip
    with trickle(forever(*FLOODS[flood], rate=10_000_000)) as server:
        store = open_store(URLS[dialect], endpoint=server.url, timeout_s=60, **anonymous(dialect))
        said = ends_within(PATIENCE_S, lambda: store.put("k", b"{}", IfAbsent()))
    assert isinstance(said, Unknown), said
    assert sum(read) < 2 * timed_socket.OVERHEAD_BYTES_MAX


@pytest.mark.parametrize("length", [CHUNKED, LONG])
def test_a_limited_read_does_not_wait_for_the_bytes_beyond_its_limit(
    dialect: str, length: bytes, rates: None
) -> None:
    body = CHUNK if length == CHUNKED else b" "
    head = slow.HEAD + b"x-ms-blob-type: BlockBlob\r\nContent-Range: bytes 0-1000/1000000000\r\n"
    with trickle(forever(head + length, body, 10_000)) as server:
        said = answer(opened(dialect, server.url), "get with a limit")
    assert isinstance(said, Found | Unknown), said
    assert not isinstance(said, Found) or len(said.body) == 1001


def test_a_body_without_an_announced_length_does_not_extend_the_deadline(
    dialect: str, rates: None
) -> None:
    with trickle(forever(slow.HEAD + CHUNKED, CHUNK, 10_000)) as server:
        said = answer(opened(dialect, server.url), "get_file")
    assert isinstance(said, Unknown), said


def test_the_time_that_a_call_can_gain_is_bounded(
    dialect: str, rates: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadline, "EARNED_S_MAX", 0.5)
    with trickle(steadily(600_000, 10_000)) as server:
        said = answer(opened(dialect, server.url), "get_file")
    assert isinstance(said, Unknown), said


def slow_reader(connection: socket.socket) -> None:
    """Takes 8 MB in about 1 s, then says that all is well."""
    left = 8_000_000
    while left > 500_000:
        left -= len(connection.recv(200_000))
        time.sleep(0.02)
    while left > 100_000:
        left -= len(connection.recv(200_000))
    connection.sendall(slow.HEAD + b"Content-Length: 0\r\n\r\n")


@pytest.mark.parametrize("dialect", ["s3"], indirect=True)
def test_a_large_file_may_be_sent_for_longer_than_the_timeout(dialect: str) -> None:
    """In about 1 s of a timeout of 0.5 s; its bytes earn it more time than they take."""
    with trickle(slow_reader) as server:
        store = opened(dialect, server.url)
        began = time.monotonic()
        said = ends_within(30, lambda: store.put_file("k", io.BytesIO(b"x" * 8_000_000), 8_000_000))
    assert isinstance(said, Applied), said
    assert time.monotonic() - began > TIMEOUT_S


def test_a_server_that_does_not_read_holds_no_write(dialect: str) -> None:
    def deaf(connection: socket.socket) -> None:
        time.sleep(30)

    with trickle(deaf) as server:
        store = opened(dialect, server.url)
        body = b"x" * 16_000_000
        said = ends_within(PATIENCE_S, lambda: store.put("k", body, IfAbsent()))
    assert isinstance(said, Unknown), said
