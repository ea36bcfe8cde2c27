"""Faults: which requests a plan strikes, and what the proxy then does to them on the wire."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import until

from lockkit.lab.faults import (
    Counts,
    Fault,
    FaultError,
    FaultPlan,
    Proxy,
    ProxyError,
    RequestFacts,
    dialects,
    wire,
)
from lockkit.lab.faults.plan import WHATS, draw, key_matches

ROOT = Path(__file__).parents[1]
PLANS = ROOT / "datasets" / "faultplans"
LOCK = "lake/orders/.hoodie/.locks/table_lock.json"


def asked(client: str = "W1", operation: str = "put", key: str = LOCK) -> RequestFacts:
    return RequestFacts(client, "PUT" if operation == "put" else "GET", operation, key)


def struck(plan: FaultPlan, count: int, request: RequestFacts | None = None) -> list[int]:
    """Which of `count` equal requests a plan strikes, counted from 1."""
    counts = Counts()
    return [n for n in range(1, count + 1) if plan.match(request or asked(), counts) is not None]


# --- which requests a plan strikes ----------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "hit", "spared"),
    [
        (Fault("drop", client="W1"), asked("W1"), asked("W2")),
        (Fault("drop", client="W*"), asked("W2"), asked("")),
        (Fault("drop", operation="put"), asked(), asked(operation="get")),
        (Fault("drop", key="table_lock.json"), asked(), asked(key="lake/old_table_lock.json")),
        (Fault("drop", key=".locks/*"), asked(), asked(key="lake/orders/part.parquet")),
    ],
)
def test_a_fault_strikes_only_what_it_is_aimed_at(
    fault: Fault, hit: RequestFacts, spared: RequestFacts
) -> None:
    assert FaultPlan((fault,)).match(spared, Counts()) is None
    assert FaultPlan((fault,)).match(hit, Counts()) is fault


def test_a_key_glob_fits_the_whole_key_or_its_end_from_a_slash() -> None:
    assert key_matches("lake/a/b.json", "lake/*")
    assert key_matches("lake/a/b.json", "b.json")
    assert key_matches("lake/a/b.json", "a/*.json")
    assert not key_matches("lake/a/b.json", "a")
    assert not key_matches("lake/xb.json", "b.json")


@pytest.mark.parametrize(
    ("fault", "strikes"),
    [
        (Fault("drop"), [1]),
        (Fault("drop", nth=3), [3]),
        (Fault("drop", next=2), [1, 2]),
        (Fault("drop", nth=2, next=3), [2, 3, 4]),
        (Fault("drop", nth=4, next="every"), [4, 5, 6]),
        (Fault("delay", delay_s=1), [1, 2, 3, 4, 5, 6]),
        (Fault("drop", chance=0.0), []),
        (Fault("drop", chance=1.0, next=2), [1, 2]),
    ],
)
def test_nth_and_next_open_a_window_of_matching_requests(fault: Fault, strikes: list[int]) -> None:
    assert struck(FaultPlan((fault,)), 6) == strikes


def test_requests_of_others_do_not_move_the_count() -> None:
    plan, counts = FaultPlan((Fault("drop", client="W1", nth=2),)), Counts()
    order = ["W1", "W2", "W2", "W1", "W1"]
    hits = [plan.match(asked(client), counts) is not None for client in order]
    assert hits == [False, False, False, True, False]


def test_a_request_taken_by_an_earlier_fault_does_not_count_for_a_later_one() -> None:
    plan, counts = FaultPlan((Fault("drop", next=2), Fault("reset"))), Counts()
    fired = [plan.match(asked(), counts) for _ in range(4)]
    assert [fault and fault.what for fault in fired] == ["drop", "drop", "reset", None]


def test_the_same_seed_strikes_the_same_requests() -> None:
    flaky = (Fault("status", code=503, chance=0.3),)
    strikes = struck(FaultPlan(flaky, seed=7), 1000)
    assert strikes == struck(FaultPlan(flaky, seed=7), 1000)
    assert strikes != struck(FaultPlan(flaky, seed=8), 1000)
    assert 240 <= len(strikes) <= 360


def test_one_faults_random_draws_do_not_depend_on_other_faults() -> None:
    alone = FaultPlan((Fault("drop", client="W1", chance=0.5),), seed=3)
    counts = Counts()
    mixed = []
    for n in range(1, 51):
        alone.match(asked("W2"), counts)
        if alone.match(asked("W1"), counts) is not None:
            mixed.append(n)
    assert mixed == struck(alone, 50)


@given(st.integers(), st.integers(0, 100), st.integers(1, 10**6))
def test_a_draw_is_a_number_from_0_up_to_but_not_1(seed: int, index: int, count: int) -> None:
    assert 0 <= draw(seed, index, count) < 1


# --- plans as JSON ----------------------------------------------------------------------------


def _optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


@st.composite
def faults(draw_one: st.DrawFn) -> Fault:
    what = draw_one(st.sampled_from(WHATS))
    said: dict[str, Any] = {
        "client": draw_one(_optional(st.text(max_size=5))),
        "operation": draw_one(_optional(st.sampled_from(["put", "list"]))),
        "key": draw_one(_optional(st.text(max_size=9))),
        "nth": draw_one(st.integers(1, 9)),
        "next": draw_one(st.none() | st.integers(1, 9) | st.just("every")),
        "chance": draw_one(st.floats(0, 1)),
    }
    if what != "late":
        said["when"] = draw_one(st.sampled_from([None, "before", "after"]))
    if what == "status":
        said["code"] = draw_one(st.integers(500, 599))
        said["body"] = draw_one(_optional(st.text(max_size=9)))
    if what in ("late", "delay"):
        said["delay_s"] = draw_one(st.floats(0, 3600))
    return Fault(what, **said)


@given(st.lists(faults(), max_size=4), st.integers(), st.text(max_size=20))
def test_a_plan_survives_json(listed: list[Fault], seed: int, why: str) -> None:
    plan = FaultPlan(tuple(listed), seed=seed, why=why)
    assert FaultPlan.parse(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"faults": [NaN]}', "NaN is not a JSON number"),
        ("[]", "a plan is a JSON object"),
        ("{}", "faults: a list of faults, not None"),
        ('{"faults": [], "sed": 1}', "unknown field 'sed' in a plan; known: why, seed, faults"),
        ('{"faults": [], "seed": 1.5}', "seed: a whole number"),
        ('{"faults": [], "why": 1}', "why: a text"),
        ('{"faults": ["drop"]}', "faults[0]: a fault is a JSON object"),
        ('{"faults": [{"what": "drop"}, {}]}', "faults[1]: a fault needs the field what"),
        ('{"what": "explode"}', "one of drop, reset, status, hang, late or delay"),
        ('{"what": ["drop"]}', "what: one of drop"),
        ('{"what": "drop", "wen": "after"}', "unknown field 'wen' in a fault; known: what, when"),
        ('{"what": "drop", "when": "during"}', "when: before or after, not 'during'"),
        ('{"what": "drop", "nth": 0}', "nth: a whole number from 1, not 0"),
        ('{"what": "drop", "nth": true}', "nth: a whole number from 1, not True"),
        ('{"what": "drop", "nth": null}', "nth: a whole number from 1, not None"),
        ('{"what": "drop", "next": "all"}', 'next: a whole number from 1, or "every"'),
        ('{"what": "drop", "chance": 1.5}', "chance: a number from 0 to 1"),
        ('{"what": "drop", "client": 7}', "client: a glob for the client's name"),
        ('{"what": "drop", "operation": "PUT"}', "operation: one of put, get"),
        ('{"what": "drop", "code": 503}', "code means nothing for drop; it takes when"),
        ('{"what": "drop", "delay_s": 1}', "delay_s means nothing for drop"),
        ('{"what": "status"}', "status needs a code"),
        ('{"what": "status", "code": 200}', "code: an error status, 400 to 599"),
        ('{"what": "status", "code": 429, "when": "after"}', "use when=before, or 408 or a 5xx"),
        ('{"what": "late"}', "late needs delay_s"),
        ('{"what": "late", "delay_s": 1, "when": "after"}', "late is always before"),
        ('{"what": "late", "delay_s": 1, "cap_s": 1}', "with late it takes ending=hang"),
        ('{"what": "delay", "delay_s": 1e400}', "delay_s: seconds, 0 to 3600"),
        ('{"what": "delay", "delay_s": -1}', "delay_s: seconds, 0 to 3600"),
        ('{"what": "' + "x" * 10_000 + '"}', "no fault is called"),
        ('{"faults": [' + ",".join(['{"what":"drop"}'] * 1001) + "]}", "at most 1000, not 1001"),
        (" " * 1_000_001, "at most 1000000 characters"),
    ],
)
def test_the_error_of_an_invalid_plan_names_the_fault_and_the_allowed_values(
    text: str, says: str
) -> None:
    with pytest.raises(FaultError) as refused:
        FaultPlan.parse(text)
    assert says in str(refused.value)
    assert len(str(refused.value)) < 400


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["what", "when", "faults", "seed", "next", "nth", "code", "delay_s", "x"]
            )
            | st.sampled_from(WHATS),
            inner | st.sampled_from(WHATS),
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(_JSON)
def test_any_json_is_a_plan_or_a_fault_error(said: Any) -> None:
    try:
        plan = FaultPlan.parse(json.dumps(said))
    except FaultError:
        return
    assert FaultPlan.parse(plan.to_json()) == plan


def test_a_missing_plan_file_is_named() -> None:
    with pytest.raises(FaultError, match=r"nowhere\.json: No such file"):
        FaultPlan.load("nowhere.json")


SHIPPED: dict[str, tuple[str, list[RequestFacts]]] = {
    # the plan, what it does, and requests of which it strikes the last
    "lost-response-acquire": ("drop", [asked()]),
    "lost-response-renew": ("reset", [asked(), asked()]),
    "throttled-release": ("status", [asked()] * 3),
    "late-write-ghost": ("late", [asked()]),
    "flaky-5xx": ("status", [asked(key=f"lake/part-{n}") for n in range(40)]),
    "slow-store": ("delay", [asked(operation="get")]),
}


@pytest.mark.parametrize("path", sorted(PLANS.glob("*.json")), ids=lambda path: path.stem)
def test_a_shipped_plan_strikes_what_it_was_made_for_and_says_why(path: Path) -> None:
    plan = FaultPlan.load(path)
    what, requests = SHIPPED[path.stem]
    counts = Counts()
    fired = [plan.match(request, counts) for request in requests]
    assert what in [fault.what for fault in fired if fault is not None]
    assert len(plan.why) > 40
    assert FaultPlan.parse(plan.to_json()) == plan


def test_every_plan_that_is_promised_is_shipped() -> None:
    assert sorted(SHIPPED) == sorted(path.stem for path in PLANS.glob("*.json"))


# --- what a request asks ------------------------------------------------------------------------

MULTIPART = (
    b'--x\r\ncontent-type: application/json\r\n\r\n{"name": "t/lock \\u00e9.json"}\r\n--x\r\n'
    b'content-type: text/plain\r\n\r\n{"name": "not this"}\r\n--x--'
)


@pytest.mark.parametrize(
    ("line", "headers", "body", "operation", "key"),
    [
        ("PUT /lake/t/lock.json", "", b"", "put", "lake/t/lock.json"),
        ("GET /lake/t/a%20b", "", b"", "get", "lake/t/a b"),
        ("HEAD /lake/t", "", b"", "get", "lake/t"),
        ("DELETE /lake/t", "", b"", "delete", "lake/t"),
        ("POST /lake?delete", "", b"", "delete", "lake"),
        ("GET /lake?list-type=2&prefix=t%2F", "", b"", "list", "lake/t/"),
        ("GET /lake/?location", "", b"", "other", "lake"),
        ("PUT /lake", "", b"", "other", "lake"),
        ("POST /lake/t?uploads", "", b"", "part", "lake/t"),
        ("PUT /lake/t?partNumber=1&uploadId=u", "", b"", "part", "lake/t"),
        ("POST /lake/t?uploadId=u", "", b"", "put", "lake/t"),
        ("GET //[odd/k", "", b"", "get", "[odd/k"),
        ("PUT /t/k", "Host: a.b.s3.eu-west-1.amazonaws.com\r\n", b"", "put", "a.b/t/k"),
        ("PUT /t/k", "Host: s3.eu-west-1.amazonaws.com\r\n", b"", "put", "t/k"),
        ("GET /?prefix=t", "Host: lake.s3.amazonaws.com:443\r\n", b"", "list", "lake/t"),
        ("GET /storage/v1/b/lake/o/t%2Flock.json?alt=media", "", b"", "get", "lake/t/lock.json"),
        ("GET /download/storage/v1/b/lake/o/t?alt=media", "", b"", "get", "lake/t"),
        ("GET /storage/v1/b/lake/o?prefix=t/", "", b"", "list", "lake/t/"),
        ("GET /storage/v1/b/lake", "", b"", "other", "lake"),
        ("DELETE /storage/v1/b/lake/o/t", "", b"", "delete", "lake/t"),
        ("POST /storage/v1/b/lake/o/a/rewriteTo/b/pond/o/b%2Fc", "", b"", "put", "pond/b/c"),
        ("POST /storage/v1/b/lake/o/a/compose", "", b"", "put", "lake/a"),
        ("POST /upload/storage/v1/b/lake/o?uploadType=media&name=t", "", b"", "put", "lake/t"),
        (
            "POST /upload/storage/v1/b/lake/o?uploadType=multipart&ifGenerationMatch=0",
            "", MULTIPART, "put", "lake/t/lock é.json",
        ),
        (
            "POST /upload/storage/v1/b/lake/o?uploadType=resumable",
            "", b'{"name": "t"}', "part", "lake/t",
        ),
        (
            "PUT /upload/storage/v1/b/lake/o?uploadType=resumable&upload_id=u1",
            "Content-Range: bytes 0-9/*\r\n", b"", "part", "lake/known",
        ),
        (
            "PUT /upload/storage/v1/b/lake/o?uploadType=resumable&upload_id=u1",
            "Content-Range: bytes 10-19/20\r\n", b"", "put", "lake/known",
        ),
        (
            "PUT /upload/storage/v1/b/lake/o?uploadType=resumable&upload_id=u1",
            "Content-Range: bytes */20\r\n", b"", "part", "lake/known",
        ),
        ("PUT /account/lake/t/l", "x-ms-version: 2021\r\n", b"", "put", "lake/t/l"),
        ("PUT /account/lake/t?comp=block", "x-ms-version: 2021\r\n", b"", "part", "lake/t"),
        ("PUT /account/lake/t?comp=blocklist", "x-ms-version: 2021\r\n", b"", "put", "lake/t"),
        ("PUT /account/lake?restype=container", "x-ms-version: 2021\r\n", b"", "other", "lake"),
        (
            "GET /account/lake?restype=container&comp=list&prefix=t",
            "x-ms-version: 2021\r\n", b"", "list", "lake/t",
        ),
        (
            "POST /", "X-Amz-Target: DynamoDB_20120810.PutItem\r\n",
            b'{"TableName": "locks", "Item": {"key": {"S": "orders"}}}', "put", "locks/orders",
        ),
        (
            "POST /", "X-Amz-Target: DynamoDB_20120810.GetItem\r\n",
            b'{"TableName": "locks", "Key": {"key": {"S": "a/b"}}}', "get", "locks/a/b",
        ),
        (
            "POST /", "X-Amz-Target: DynamoDB_20120810.CreateTable\r\n",
            b'{"TableName": "locks"}', "other", "locks",
        ),
        ("POST /", "X-Amz-Target: DynamoDB_20120810.DeleteItem\r\n", b"[1]", "delete", ""),
    ],
)  # fmt: skip
def test_a_request_is_read_in_its_own_dialect(
    line: str, headers: str, body: bytes, operation: str, key: str
) -> None:
    text = (
        f"{line} HTTP/1.1\r\nHost: 127.0.0.1:9\r\n{headers}User-Agent: x lockkit-client/W1\r\n\r\n"
    )
    request = dialects.describe(wire.parse_head(text.encode()), body, uploads={"u1": "lake/known"})
    assert (request.client, request.operation, request.key) == ("W1", operation, key)


@pytest.mark.parametrize(
    ("body", "attempt"),
    [
        (b'{"owner": "x", "attempt":"a/\\u00e9 \\"1"}', 'a/é "1'),
        (MULTIPART.replace(b'"name": "not this"', b'"attempt": "inside"'), "inside"),
        (b'{"attempt": 7}', ""),
        (b'{"attempt": "\xff\xfe"}', ""),
        (b'{"attempt": "' + b"x" * 300 + b'"}', ""),
        (b" " * 70_000 + b'{"attempt": "far"}', ""),
        (b"", ""),
    ],
)
def test_the_attempt_is_found_where_the_dialect_puts_the_body(body: bytes, attempt: str) -> None:
    head = wire.parse_head(b"PUT /lake/k HTTP/1.1\r\nHost: h\r\n\r\n")
    assert dialects.describe(head, body).attempt == attempt


def test_an_azure_account_in_the_host_name_is_not_in_the_path() -> None:
    raw = b"GET /lake/t/l HTTP/1.1\r\nHost: me.blob.core.windows.net\r\nx-ms-version: 1\r\n\r\n"
    assert dialects.describe(wire.parse_head(raw)).key == "lake/t/l"


# --- on the wire --------------------------------------------------------------------------------


class Recorder:
    """An upstream that keeps the exact bytes of each request and sends prepared bytes back."""

    def __init__(self, answer: bytes | None) -> None:
        self.answer = answer
        self.got: list[bytes] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection:
                self._one(connection)

    def _one(self, connection: socket.socket) -> None:
        connection.settimeout(5)
        got = b""
        while not (b"\r\n\r\n" in got and got.endswith((b"END", b"0\r\n\r\n"))):
            piece = connection.recv(65536)
            if not piece:
                break
            got += piece
        self.got.append(got)
        if self.answer is not None and got:
            connection.sendall(self.answer)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(5)


class Echo(BaseHTTPRequestHandler):
    """A minimal store: a PUT is kept, and a GET returns it."""

    protocol_version = "HTTP/1.1"
    kept: dict[str, bytes]

    def do_PUT(self) -> None:
        self.kept[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, b"")

    def do_GET(self) -> None:
        body = self.kept.get(self.path)
        self._answer(404 if body is None else 200, body or b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def kept() -> dict[str, bytes]:
    return {}


@pytest.fixture
def echo(kept: dict[str, bytes]) -> Iterator[str]:
    handler = type("KeptEcho", (Echo,), {"kept": kept})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join(5)


@contextmanager
def recorder(answer: bytes | None) -> Iterator[Recorder]:
    with closing(Recorder(answer)) as upstream:
        yield upstream


def connect(proxy: Proxy, timeout_s: float = 5) -> socket.socket:
    parts = urlsplit(proxy.url)
    assert parts.hostname and parts.port
    return socket.create_connection((parts.hostname, parts.port), timeout=timeout_s)


def everything(connection: socket.socket) -> bytes:
    got = b""
    while piece := connection.recv(65536):
        got += piece
    return got


def ask(
    proxy: Proxy, method: str, path: str, body: bytes | None = None, *, client: str = "W1"
) -> tuple[int, bytes]:
    parts = urlsplit(proxy.url)
    assert parts.hostname and parts.port
    with closing(http.client.HTTPConnection(parts.hostname, parts.port, timeout=5)) as connection:
        connection.request(method, path, body, {"User-Agent": f"lockkit-client/{client}"})
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_bytes_pass_as_they_are_both_ways() -> None:
    zipped = gzip.compress(b"squeezed")
    request = (
        b"PUT /lake/a%2Fb//c?x=%7e&uploads HTTP/1.1\r\nhOsT: lake.s3.amazonaws.com\r\n"
        b"Content-Encoding: aws-chunked,gzip\r\nX-Twice: 1\r\nX-Twice: 2\r\n"
        b"Authorization: AWS4-HMAC-SHA256 x\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"1A;chunk-signature=00\r\n" + b"a" * 26 + b"\r\n0\r\n\r\n"
    )
    answer = (
        b"HTTP/1.1 200\r\ncontent-ENCODING: gzip\r\nETag: W/odd\r\nConnection: close\r\n"
        b"Content-Length: " + str(len(zipped)).encode() + b"\r\n\r\n" + zipped
    )
    with recorder(answer) as upstream, Proxy(upstream.url) as proxy, connect(proxy) as client:
        client.sendall(request)
        assert everything(client) == answer
        assert upstream.got == [request]


def test_expect_100_continue_is_answered_before_the_body_comes() -> None:
    head = b"PUT /k HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"
    last = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    with recorder(last) as upstream, Proxy(upstream.url) as proxy, connect(proxy) as client:
        client.sendall(head)
        assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"END")
        assert everything(client) == last
        assert upstream.got == [head.replace(b"Expect: 100-continue\r\n", b"") + b"END"]


def test_a_write_whose_connection_breaks_is_never_sent_twice() -> None:
    request = b"PUT /k HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nEND"
    with recorder(None) as upstream, Proxy(upstream.url) as proxy:
        for _ in range(3):
            with connect(proxy) as client:
                client.sendall(request)
                assert everything(client) == b""  # as the store did: no answer of the proxy's own
        assert upstream.got == [request] * 3


def test_a_missing_upstream_is_a_502_that_names_it() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as gone:
        port = gone.getsockname()[1]
    with Proxy(f"http://127.0.0.1:{port}") as proxy:
        status, body = ask(proxy, "PUT", "/lake/k", b"x")
    assert status == 502
    assert f"http://127.0.0.1:{port} is not reachable" in body.decode()
    assert "Traceback" not in body.decode()


def test_an_upstream_that_speaks_no_http_is_a_502_that_names_it() -> None:
    with recorder(b"220 mail ready\r\n\r\n") as upstream, Proxy(upstream.url) as proxy:
        with connect(proxy) as client:
            client.sendall(b"PUT /k HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nEND")
            got = everything(client)
    assert got.startswith(b"HTTP/1.1 502 ")
    assert upstream.url.encode() in got


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"PUT /k HTTP/1.1\r\nContent-Length: 1001\r\n\r\n", 413),
        (b"PUT /k HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" + b"x" * 2000, 413),
        (b"PUT /k HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
        (b"PUT /k HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET /k HTTP/1.1\r\nX: " + b"y" * 200_000 + b"\r\n\r\n", 431),
        (b"\x16\x03\x01 hello\r\n\r\n", 400),
    ],
)
def test_a_request_that_cannot_be_relayed_is_answered_clearly(
    request_bytes: bytes, status: int, echo: str
) -> None:
    with Proxy(echo, body_bytes_max=1000) as proxy, connect(proxy) as client:
        client.sendall(request_bytes)
        client.shutdown(socket.SHUT_WR)
        got = everything(client)
    assert got.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"lockkit proxy: " in got


def test_drop_is_a_fin_and_reset_is_a_rst_and_both_wrote(echo: str, kept: dict[str, bytes]) -> None:
    request = b"PUT /lake/%b HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx"
    with Proxy(echo, plan=FaultPlan((Fault("drop"), Fault("reset")))) as proxy:
        with connect(proxy) as client:
            client.sendall(request % b"fin")
            assert client.recv(100) == b""
        with connect(proxy) as client:
            client.sendall(request % b"rst")
            with pytest.raises(ConnectionResetError):
                client.recv(100)
    assert kept == {"/lake/fin": b"x", "/lake/rst": b"x"}


@pytest.mark.parametrize("what", ["drop", "reset"])
def test_a_fault_before_keeps_the_write_from_the_store(
    what: str, echo: str, kept: dict[str, bytes]
) -> None:
    with Proxy(echo) as proxy:
        proxy.inject(Fault(what, when="before"))
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
            ask(proxy, "PUT", "/lake/k", b"x")
        assert kept == {}
        assert ask(proxy, "PUT", "/lake/k", b"x") == (200, b"")


def test_a_status_fault_answers_in_the_providers_format_and_keeps_the_connection(echo: str) -> None:
    with Proxy(
        echo, plan=FaultPlan((Fault("status", code=503, retry_after_s=7, next=9),))
    ) as proxy:
        parts = urlsplit(proxy.url)
        assert parts.hostname and parts.port
        with closing(http.client.HTTPConnection(parts.hostname, parts.port, timeout=5)) as client:
            said = {}
            for name, path, headers in [
                ("s3", "/lake/k", {}),
                ("gcs", "/storage/v1/b/lake/o/k", {}),
                ("azure", "/account/lake/k", {"x-ms-version": "1"}),
            ]:
                client.request("GET", path, headers=headers)
                answer = client.getresponse()
                assert (answer.status, answer.headers["Retry-After"]) == (503, "7")
                said[name] = answer.read().decode() + str(answer.headers.get("x-ms-error-code"))
    assert "<Code>SlowDown</Code>" in said["s3"]
    assert json.loads(said["gcs"].removesuffix("None"))["error"]["code"] == 503
    assert said["azure"].endswith("ServerBusy")


def test_an_answer_lost_by_a_fault_is_never_matched_to_the_next_request(
    echo: str, kept: dict[str, bytes]
) -> None:
    kept.update({"/lake/a": b"a" * 3000, "/lake/b": b"b"})
    with Proxy(echo) as proxy:
        parts = urlsplit(proxy.url)
        assert parts.hostname and parts.port
        with closing(http.client.HTTPConnection(parts.hostname, parts.port, timeout=5)) as client:
            proxy.inject(Fault("status", code=500))
            client.request("GET", "/lake/a")
            assert client.getresponse().read().startswith(b"<?xml")
            client.request("GET", "/lake/b")
            assert client.getresponse().read() == b"b"


def test_a_fault_for_applied_requests_lets_other_answers_pass_and_waits(echo: str) -> None:
    with Proxy(echo) as proxy:
        proxy.inject(Fault("status", code=500, applied=True))
        assert ask(proxy, "GET", "/lake/missing") == (404, b"")
        assert ask(proxy, "GET", "/lake/missing") == (404, b"")
        assert not proxy.faults
        assert ask(proxy, "PUT", "/lake/k", b"1")[0] == 500
        assert ask(proxy, "GET", "/lake/k") == (200, b"1")
        assert [each["swallowed_status"] for each in proxy.faults] == [200]


def test_a_body_that_the_fault_brings_is_sent_as_it_is(echo: str) -> None:
    with Proxy(echo) as proxy:
        proxy.inject(Fault("status", code=500, body="<odd & unparsable"))
        assert ask(proxy, "GET", "/lake/k") == (500, b"<odd & unparsable")


def test_a_hang_lasts_until_its_cap_or_until_the_client_gives_up(
    echo: str, kept: dict[str, bytes]
) -> None:
    with Proxy(echo) as proxy:
        proxy.inject(Fault("hang", cap_s=0.2))
        began = time.monotonic()
        with pytest.raises(http.client.RemoteDisconnected):
            ask(proxy, "PUT", "/lake/capped", b"x")
        assert 0.2 <= time.monotonic() - began < 20
        proxy.inject(Fault("hang"))
        with connect(proxy, timeout_s=0.2) as client:
            client.sendall(b"PUT /lake/left HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx")
            with pytest.raises(TimeoutError):
                client.recv(100)
        until(lambda: not proxy._tasks)
    assert set(kept) == {"/lake/capped", "/lake/left"}


def test_a_late_write_lands_after_its_client_was_cut_off(echo: str, kept: dict[str, bytes]) -> None:
    recorded: list[Any] = []
    with Proxy(echo, on_fault=recorded.append) as proxy:
        proxy.inject(Fault("late", delay_s=0.3))
        with pytest.raises(http.client.RemoteDisconnected):
            ask(proxy, "PUT", "/lake/k", b"x")
        assert kept == {}
        until(lambda: kept == {"/lake/k": b"x"})
        until(lambda: len(recorded) == 2)
    assert [each.kind for each in recorded] == ["fault", "note"]
    assert recorded[1]["text"] == "a late PUT of lake/k was delivered: status 200"


def test_delay_and_latency_only_take_time(echo: str) -> None:
    with Proxy(echo, latency_ms=60) as proxy:
        began = time.monotonic()
        assert ask(proxy, "PUT", "/lake/k", b"x") == (200, b"")
        assert time.monotonic() - began >= 0.06
        proxy.latency_ms = 0
        proxy.inject(Fault("delay", delay_s=0.2, next=1))
        began = time.monotonic()
        assert ask(proxy, "GET", "/lake/k") == (200, b"x")
        assert time.monotonic() - began >= 0.2


def test_each_fault_made_is_an_event_with_its_moment(echo: str) -> None:
    recorded: list[Any] = []
    with Proxy(echo, on_fault=recorded.append) as proxy:
        proxy.inject(Fault("status", code=500, client="W2", key="lake/*"))
        before_ms = time.time() * 1000
        assert ask(proxy, "PUT", "/lake/k", b"x", client="W1")[0] == 200
        assert ask(proxy, "PUT", "/lake/k", b'{"attempt": "a-1"}', client="W2")[0] == 500
        after_ms = time.time() * 1000
        assert recorded == proxy.faults
    [made] = recorded
    assert before_ms - 1 <= made.at_ms <= after_ms
    assert (made.who, made.kind) == ("store", "fault")
    assert dict(made.data) == {
        "fault": "status", "when": "after", "client": "W2", "method": "put", "verb": "PUT",
        "bucket": "lake", "key": "k", "attempt": "a-1", "code": 500, "swallowed_status": 200,
    }  # fmt: skip


def test_a_live_fault_beats_a_standing_plan_and_clear_ends_all(echo: str) -> None:
    slow = FaultPlan((Fault("status", code=503, next="every"),))
    with Proxy(echo, plan=slow) as proxy:
        assert ask(proxy, "GET", "/lake/k")[0] == 503
        proxy.inject(Fault("status", code=429))
        assert ask(proxy, "GET", "/lake/k")[0] == 429
        assert ask(proxy, "GET", "/lake/k")[0] == 503
        proxy.clear()
        assert ask(proxy, "GET", "/lake/k")[0] == 404


# --- control over HTTP --------------------------------------------------------------------------


def test_faults_are_armed_shown_and_cleared_over_http(echo: str) -> None:
    control = "/__lockkit/faults"
    with Proxy(echo) as proxy:
        status, body = ask(proxy, "POST", control, b'{"what": "drop", "key": "k"}')
        assert status == 200
        [plan] = json.loads(body)["plans"]
        assert (plan["faults"][0]["what"], plan["matched"]) == ("drop", [0])
        with pytest.raises(http.client.RemoteDisconnected):
            ask(proxy, "PUT", "/lake/k", b"x")
        state = json.loads(ask(proxy, "GET", control)[1])
        assert state["plans"][0]["matched"] == [1]
        assert [each["fault"] for each in state["fired"]] == ["drop"]
        plan_text = FaultPlan((Fault("drop"), Fault("reset")), seed=4, why="two").to_json()
        state = json.loads(ask(proxy, "POST", control, plan_text.encode())[1])
        assert [len(each["faults"]) for each in state["plans"]] == [2, 1]
        assert json.loads(ask(proxy, "DELETE", control)[1])["plans"] == []
        assert proxy.armed() == []


def test_a_hostile_plan_over_http_is_refused_and_arms_nothing(echo: str) -> None:
    with Proxy(echo) as proxy:
        for text in (b"", b"\xff\xfe\x00", b'{"what": "drop", "x": 1}', b"[" * 50_000):
            status, body = ask(proxy, "POST", "/__lockkit/faults", text)
            assert status == 400
            assert json.loads(body)["error"]
        assert ask(proxy, "PATCH", "/__lockkit/faults", b"{}")[0] == 405
        assert proxy.armed() == []


def test_unknown_control_paths_are_forwarded_to_the_upstream(
    echo: str, kept: dict[str, bytes]
) -> None:
    kept["/__lockkit/requests"] = b"its own"
    with Proxy(echo) as proxy:
        assert ask(proxy, "GET", "/__lockkit/requests") == (200, b"its own")


# --- running ------------------------------------------------------------------------------------


def test_eight_clients_are_served_at_once_and_each_gets_its_own_answer(
    echo: str, kept: dict[str, bytes]
) -> None:
    def work(name: str) -> int:
        lost = 0
        for n in range(12):
            path, body = f"/lake/{name}/{n}", f"{name}-{n}".encode() * 500
            try:
                assert ask(proxy, "PUT", path, body, client=name) == (200, b"")
            except (http.client.RemoteDisconnected, ConnectionResetError):
                lost += 1
            assert ask(proxy, "GET", path, client=name) == (200, body)
        return lost

    plan = FaultPlan((Fault("drop", operation="put", chance=0.3),), seed=1)
    names = [f"W{n}" for n in range(8)]
    with Proxy(echo, plan=plan, latency_ms=20) as proxy, ThreadPoolExecutor(8) as pool:
        began = time.monotonic()
        lost = sum(pool.map(work, names))
        took_s = time.monotonic() - began
        assert lost == len(proxy.faults) == len(struck(plan, 96))
    assert took_s < 8 * 24 * 0.020, "served one after the other"
    assert len(kept) == 96


def test_closing_cuts_connections_and_leaves_no_thread(echo: str) -> None:
    before = set(threading.enumerate())
    with Proxy(echo) as proxy:
        client = connect(proxy)
        proxy.inject(Fault("hang"))
        client.sendall(b"GET /k HTTP/1.1\r\nHost: h\r\n\r\n")
        until(lambda: proxy.faults)
        begun = set(threading.enumerate()) - before
        ours = {thread for thread in begun if thread.name == "lockkit-proxy"}
        assert ours
        port = urlsplit(proxy.url).port
    assert not ours & set(threading.enumerate())
    with closing(client):
        assert client.recv(100) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    proxy.close()  # twice is once


def test_the_proxy_runs_inside_another_event_loop(echo: str) -> None:
    async def story() -> tuple[int, bytes]:
        proxy = Proxy(echo)
        await proxy.start()
        try:
            return await asyncio.to_thread(ask, proxy, "PUT", "/lake/k", b"x")
        finally:
            await proxy.stop()

    assert asyncio.run(story()) == (200, b"")


def test_ctrl_c_ends_a_program_that_holds_a_proxy() -> None:
    program = (
        "import threading\nfrom lockkit.lab.faults import Proxy\n"
        "with Proxy('http://127.0.0.1:9') as proxy:\n"
        "    print(proxy.url, flush=True)\n    threading.Event().wait(60)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("http://127.0.0.1:")
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=10)
    finally:
        child.kill()
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert child.returncode == -signal.SIGINT


def test_a_proxy_that_cannot_run_says_why(echo: str) -> None:
    with pytest.raises(ProxyError, match="over TLS the bytes cannot be passed through"):
        Proxy("https://s3.amazonaws.com")
    with pytest.raises(ProxyError, match="is not running"):
        _ = Proxy(echo).url
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ProxyError, match=f"cannot listen on 127.0.0.1:{port}"):
            Proxy(echo, port=port).__enter__()
