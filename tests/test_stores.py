"""Five stores, one contract; and what every status code means, over real HTTP."""

from __future__ import annotations

import json
import os
import signal
import socket
import socketserver
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lockkit import Lock
from lockkit.cli.main import main
from lockkit.errors import NoAnswer, StoreError
from lockkit.lab.probe.race import reopen
from lockkit.lock.storage import LOCK_KEY
from lockkit.protocol.outcome import (
    Applied,
    Found,
    IfAbsent,
    IfVersion,
    Missing,
    NotModified,
    PreconditionFailed,
    Throttled,
    Unknown,
)
from lockkit.stores import ListEntry, Store, open_store

HTTP_STORES = ("s3", "gcs", "azure")
SCHEMES = {"s3": "s3", "gcs": "gs", "azure": "az"}


# --- the contract, on all five -----------------------------------------------------------------


@pytest.fixture(scope="module")
def servers() -> Iterator[Any]:
    from lockkit.lab.server import Emulator

    with Emulator() as emulator:
        yield emulator


@pytest.fixture(params=["memory", "local", *HTTP_STORES])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Store]:
    """Opens a store that only this test uses; `place("a")` and `place("b")` share its bucket."""
    kind, name = request.param, request.node.name.partition("[")[0].replace("_", "-")

    def open_one(prefix: str = "table", **options: Any) -> Store:
        if kind == "memory":
            return open_store(f"memory://{name}-{id(request.node)}/{prefix}", **options)
        if kind == "local":
            return open_store(f"file://{tmp_path}/{prefix}", **options)
        endpoint = getattr(request.getfixturevalue("servers"), kind)
        return open_store(
            f"{SCHEMES[kind]}://{kind}-bucket/{name}/{prefix}", endpoint=endpoint, **options
        )

    return open_one


def written(answer: object) -> str:
    assert isinstance(answer, Applied), answer
    return answer.version


def body_of(store: Store, key: str) -> bytes:
    answer = store.get(key)
    assert isinstance(answer, Found), answer
    return answer.body


def test_a_second_create_of_one_key_is_refused(place: Callable[..., Store]) -> None:
    store = place()
    version = written(store.put("locks/one.json", b"first", IfAbsent()))
    assert store.put("locks/one.json", b"second", IfAbsent()) == PreconditionFailed()
    match store.get("locks/one.json"):
        case Found(b"first", found):
            assert found == version
        case other:
            pytest.fail(f"{other}")


def test_a_write_lands_over_the_version_it_names_and_over_no_other(
    place: Callable[..., Store],
) -> None:
    store = place()
    one = written(store.put("k", b"1", IfAbsent()))
    two = written(store.put("k", b"2", IfVersion(one)))
    assert two != one
    assert store.put("k", b"3", IfVersion(one)) == PreconditionFailed()
    assert body_of(store, "k") == b"2"


def test_a_write_over_a_version_of_a_missing_object_is_refused(
    place: Callable[..., Store],
) -> None:
    store = place()
    one = written(store.put("k", b"1", IfAbsent()))
    assert store.delete("k") == Applied("")
    assert store.put("k", b"2", IfVersion(one)) == PreconditionFailed()
    assert store.get("k") == Missing()


def test_an_unchanged_object_is_not_sent_again(place: Callable[..., Store]) -> None:
    store = place()
    one = written(store.put("k", b"1", IfAbsent()))
    match store.get("k", unless=one):
        case NotModified(date_ms):
            assert date_ms is not None and abs(date_ms - time.time() * 1000) < 5000
        case other:
            pytest.fail(f"{other}")
    written(store.put("k", b"2", IfVersion(one)))
    assert isinstance(store.get("k", unless=one), Found)


def test_a_read_brings_the_two_times_of_the_stores_own_clock(place: Callable[..., Store]) -> None:
    store = place()
    written(store.put("k", b"1", IfAbsent()))
    answer = store.get("k")
    assert isinstance(answer, Found)
    assert answer.modified_ms is not None and answer.date_ms is not None
    assert -1000 <= answer.date_ms - answer.modified_ms <= 3000
    assert abs(answer.date_ms - time.time() * 1000) < 5000


@pytest.mark.parametrize("size", [0, 1, 100, 101, 3_000_000])
def test_a_limited_read_takes_one_byte_more_than_the_limit_at_most(
    place: Callable[..., Store], size: int
) -> None:
    store = place()
    body = os.urandom(size)
    version = written(store.put(f"k{size}", body, IfAbsent()))
    answer = store.get(f"k{size}", limit=100)
    assert isinstance(answer, Found)
    assert answer.body == body[:101] and answer.version == version
    assert body_of(store, f"k{size}") == body


def test_a_listing_has_sizes_and_versions_in_key_order(place: Callable[..., Store]) -> None:
    store, neighbour = place("a"), place("ab")
    versions = {
        key: written(store.put(key, key.encode(), IfAbsent()))
        for key in ("t/b", "t/a", "t/c/d", "u")
    }
    written(neighbour.put("t/zzz", b"", IfAbsent()))
    assert store.list("t/") == [ListEntry(k, len(k), versions[k]) for k in ("t/a", "t/b", "t/c/d")]
    assert [entry.key for entry in store.list("t/c")] == ["t/c/d"]
    assert [entry.key for entry in store.list("")] == ["t/a", "t/b", "t/c/d", "u"]
    assert store.list("nothing/here/") == []


def test_a_listing_after_a_key_begins_behind_it(place: Callable[..., Store]) -> None:
    store, neighbour = place("a"), place("ab")
    keys = ["t/1", "t/2", "t/2.d/x", "t/2é", "t/2日", "t/3", "u"]
    for key in keys:
        written(store.put(key, b"", IfAbsent()))
    written(neighbour.put("t/zzz", b"", IfAbsent()))

    def listed(prefix: str, after: str) -> list[str]:
        return [entry.key for entry in store.list(prefix, after)]

    for after in [*keys, "t/", "t/20", "t/2~", "a", "z"]:
        assert listed("", after) == [key for key in keys if key > after], after
    assert listed("t/", "t/2") == ["t/2.d/x", "t/2é", "t/2日", "t/3"]
    assert listed("t/", "s") == listed("t/", "") == keys[:-1]
    assert listed("t/", "u") == []


@pytest.mark.parametrize("key", ["a b", "a+b", "a%2Fb", "a#b?c=d", "ä/é", "part=US/f-1_0.parquet"])
def test_a_key_may_hold_any_letter(place: Callable[..., Store], key: str) -> None:
    store = place()
    version = written(store.put(key, b"x", IfAbsent()))
    written(store.put(key, b"y", IfVersion(version)))
    assert body_of(store, key) == b"y"
    assert [entry.key for entry in store.list("")] == [key]
    assert store.delete(key) == Applied("")


def test_a_delete_of_a_stale_version_is_refused(place: Callable[..., Store]) -> None:
    store = place()
    one = written(store.put("k", b"1", IfAbsent()))
    two = written(store.put("k", b"2", IfVersion(one)))
    assert store.delete("k", IfVersion(one)) == PreconditionFailed()
    assert body_of(store, "k") == b"2"
    assert store.delete("k", IfVersion(two)) == Applied("")
    assert store.get("k") == Missing()
    assert store.delete("k") == Applied(""), "what is not there needs no deleting"


def test_past_versions_come_newest_first_with_their_bytes(place: Callable[..., Store]) -> None:
    store = place()
    version = written(store.put("k", b"0", IfAbsent()))
    for number in range(1, 4):
        version = written(store.put("k", str(number).encode(), IfVersion(version)))
    written(store.put("k2", b"a neighbour", IfAbsent()))
    found = store.versions("k")
    assert found[0].current and found[0].version == version
    assert not any(each.current for each in found[1:])
    bodies = [store.get_version("k", each) for each in found]
    kept = [b"3"] if store.capabilities.name == "local" else [b"3", b"2", b"1", b"0"]
    assert bodies == kept
    assert store.versions("nothing") in ([], ())


def test_of_many_clients_creating_one_key_exactly_one_wins(place: Callable[..., Store]) -> None:
    clients = [place() for _ in range(6)]
    with ThreadPoolExecutor(len(clients)) as pool:
        for number in range(10):
            answers = list(
                pool.map(
                    lambda each, key=f"race/{number}": each[1].put(
                        key, str(each[0]).encode(), IfAbsent()
                    ),
                    enumerate(clients),
                )
            )
            assert sum(isinstance(answer, Applied) for answer in answers) == 1, answers


def test_threads_that_share_one_store_lose_no_update(place: Callable[..., Store]) -> None:
    store = place()
    written(store.put("counter", b"0", IfAbsent()))

    def add(_: int) -> None:
        wins, deadline = 0, time.monotonic() + 60
        while wins < 10 and time.monotonic() < deadline:
            now = store.get("counter")
            assert isinstance(now, Found)
            body = str(int(now.body) + 1).encode()
            wins += isinstance(store.put("counter", body, IfVersion(now.version)), Applied)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))
    assert body_of(store, "counter") == b"40"


def test_memory_is_atomic_however_its_threads_are_switched(request: pytest.FixtureRequest) -> None:
    store = open_store("memory://switched")
    written(store.put("counter", b"0", IfAbsent()))
    usual = sys.getswitchinterval()
    request.addfinalizer(lambda: sys.setswitchinterval(usual))
    sys.setswitchinterval(1e-6)

    def add(_: int) -> int:
        wins = 0
        for _ in range(1000):
            now = store.get("counter")
            assert isinstance(now, Found)
            body = str(int(now.body) + 1).encode()
            wins += isinstance(store.put("counter", body, IfVersion(now.version)), Applied)
        return wins

    with ThreadPoolExecutor(4) as pool:
        wins = sum(pool.map(add, range(4)))
    assert body_of(store, "counter") == str(wins).encode()


def test_a_forked_child_is_refused_with_the_reason(place: Callable[..., Store]) -> None:
    store = place()
    if store.url.startswith("file:"):
        pytest.skip("a directory store holds nothing open; a child may use it")
    written(store.put("k", b"1", IfAbsent()))
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            store.get("k")
            os.write(send, b"not refused")
        except StoreError as error:
            os.write(send, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    said = os.read(receive, 10_000).decode()
    assert "after a fork" in said and str(child) in said and str(os.getpid()) in said, said
    assert body_of(store, "k") == b"1", "the parent goes on"


def test_reopening_gives_another_client_of_the_same_place(place: Callable[..., Store]) -> None:
    store = place(client="W1")
    other = reopen(store)
    written(store.put("k", b"1", IfAbsent()))
    assert other is not store and body_of(other, "k") == b"1"
    assert other.options.client == "W1"


# --- what the servers see ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", HTTP_STORES)
def test_every_operation_is_one_request_that_names_its_client(servers: Any, kind: str) -> None:
    store = open_store(
        f"{SCHEMES[kind]}://bucket/one-request-{kind}",
        endpoint=getattr(servers, kind),
        client="W1/ä b",
    )
    version = written(store.put("k", b"1", IfAbsent()))
    for ask in (
        lambda: store.put("other", b"1", IfAbsent()),
        lambda: store.put("k", b"2", IfAbsent()),
        lambda: store.put("k", b"2", IfVersion(version)),
        lambda: store.get("k"),
        lambda: store.get("k", limit=10),
        lambda: store.get("k", unless=version),
        lambda: store.get("nothing"),
        lambda: store.list(""),
        lambda: store.delete("k"),
    ):
        before = len(servers.requests())
        ask()
        seen = servers.requests()[before:]
        assert [each["client"] for each in seen] == ["W1---b"], [each.data for each in seen]


@pytest.mark.parametrize("kind", ["s3", "gcs"])
def test_a_listing_reads_all_pages(servers: Any, kind: str) -> None:
    store = open_store(f"{SCHEMES[kind]}://bucket/pages-{kind}", endpoint=getattr(servers, kind))
    keys = [f"{number:04}" for number in range(1005)]  # a page is 1,000
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda key: store.put(key, b"", IfAbsent()), keys))
    assert all(isinstance(answer, Applied) for answer in answers)
    found = store.list("")
    assert [entry.key for entry in found] == keys and not found.snapshot
    before = len(servers.requests())
    assert [entry.key for entry in store.list("", "0003")] == keys[4:]
    assert len(servers.requests()) == before + 2, "1,001 keys"
    assert [entry.key for entry in store.list("", "1001")] == keys[1002:]
    assert len(servers.requests()) == before + 3, "what lies before is not sent"
    assert store.list("", "1001").snapshot


# --- what each answer means: canned answers over real HTTP ------------------------------------


@dataclass
class Canned:
    """A stand-in for a provider: it gives every request the same answer, or none."""

    answer: bytes = b""
    """The raw HTTP answer; empty = hang up without a word."""
    hang: threading.Event | None = None
    requests: list[str] = field(default_factory=list)
    url: str = ""


@contextmanager
def canned(answer: bytes = b"", *, hang: bool = False) -> Iterator[Canned]:
    server_side = Canned(answer, threading.Event() if hang else None)

    class Answer(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            line = self.rfile.readline().decode()
            length, chunked = 0, False
            while header := self.rfile.readline().decode().strip().lower():
                if header.startswith("content-length:"):
                    length = int(header.partition(":")[2])
                chunked = chunked or header.startswith("transfer-encoding:")
            assert not chunked
            self.rfile.read(length)
            server_side.requests.append(line.strip())
            if server_side.hang is not None:
                server_side.hang.wait(20)
            self.wfile.write(server_side.answer)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    with Server(("127.0.0.1", 0), Answer) as server:
        server_side.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield server_side
        finally:
            if server_side.hang is not None:
                server_side.hang.set()
            server.shutdown()


def http(status: int, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Said", "Date: Sat, 21 Nov 2026 04:00:00 GMT", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if "Content_Length" not in headers and status != 304:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


SECRET = "wJalrXUtnFEMI-not-to-be-seen"


def refusal(kind: str, status: int, code: str = "", **headers: str) -> bytes:
    """How each provider words a refusal. The message contains what must never be passed on."""
    match kind:
        case "s3":
            body = f"<Error><Code>{code}</Code><Message>{SECRET}</Message></Error>"
            headers.setdefault("Content_Type", "application/xml")
        case "gcs":
            said = {"code": status, "message": SECRET, "errors": [{"reason": code}]}
            body = json.dumps({"error": said})
            headers.setdefault("Content_Type", "application/json")
        case _:
            body = f"<Error><Code>{code}</Code><Message>{SECRET}</Message></Error>"
            headers.setdefault("Content_Type", "application/xml")
            headers.setdefault("x_ms_error_code", code)
    return http(status, b"" if status == 304 else body.encode(), **headers)


def opened(kind: str, endpoint: str, **options: Any) -> Store:
    if kind == "s3":
        options |= {"aws_access_key_id": "AKIAEXAMPLE", "aws_secret_access_key": SECRET}
    return open_store(f"{SCHEMES[kind]}://bucket/table", endpoint=endpoint, **options)


V = {"s3": '"abc"', "gcs": "17", "azure": '"0x8D"'}

WRITES: list[tuple[str, int, str, object]] = [
    ("s3", 412, "PreconditionFailed", PreconditionFailed()),
    ("s3", 200, "PreconditionFailed", PreconditionFailed()),  # aws-sdk-java-v2 #6023
    ("s3", 404, "NoSuchKey", PreconditionFailed()),
    ("s3", 409, "ConditionalRequestConflict", Throttled()),
    ("s3", 409, "OperationAborted", Throttled()),
    ("s3", 429, "TooManyRequests", Throttled()),
    ("s3", 503, "SlowDown", Unknown),
    ("s3", 503, "ServiceUnavailable", Unknown),
    ("s3", 500, "InternalError", Unknown),
    ("s3", 500, "UnknownError", Unknown),  # radosgw, to the loser of a race
    ("s3", 400, "RequestTimeout", Unknown),
    ("s3", 200, "InternalError", Unknown),
    ("gcs", 412, "conditionNotMet", PreconditionFailed()),
    ("gcs", 429, "rateLimitExceeded", Throttled()),
    ("gcs", 408, "uploadBrokenConnection", Unknown),
    ("gcs", 500, "backendError", Unknown),
    ("gcs", 503, "backendError", Unknown),
    ("azure", 409, "BlobAlreadyExists", PreconditionFailed()),
    ("azure", 412, "ConditionNotMet", PreconditionFailed()),
    ("azure", 429, "TooManyRequests", Throttled()),
    ("azure", 500, "OperationTimedOut", Unknown),
    ("azure", 503, "ServerBusy", Unknown),
]


@pytest.mark.parametrize("absent", [True, False], ids=["create", "over"])
@pytest.mark.parametrize(("kind", "status", "code", "expected"), WRITES)
def test_a_refused_write_is_one_of_the_answers(
    kind: str, status: int, code: str, expected: object, absent: bool
) -> None:
    with canned(refusal(kind, status, code)) as server:
        store = opened(kind, server.url)
        answer = store.put("k", b"{}", IfAbsent() if absent else IfVersion(V[kind]))
    if isinstance(expected, type):
        assert isinstance(answer, expected) and SECRET not in str(answer)
    else:
        assert answer == expected
    assert len(server.requests) == 1, "sent once, whatever the answer"


@pytest.mark.parametrize("kind", HTTP_STORES)
def test_a_throttled_write_reports_when_to_retry(kind: str) -> None:
    with canned(refusal(kind, 429, "TooManyRequests", Retry_After="7")) as server:
        assert opened(kind, server.url).put("k", b"{}", IfAbsent()) == Throttled(7.0)


READS: list[tuple[str, int, str, object]] = [
    ("s3", 304, "", NotModified(1795233600000)),
    ("gcs", 304, "", NotModified(1795233600000)),
    ("azure", 304, "ConditionNotMet", NotModified(1795233600000)),
    ("s3", 404, "NoSuchKey", Missing()),
    ("gcs", 404, "notFound", Missing()),
    ("azure", 404, "BlobNotFound", Missing()),
    ("s3", 429, "TooManyRequests", Throttled()),
    ("gcs", 429, "rateLimitExceeded", Throttled()),
    ("azure", 429, "TooManyRequests", Throttled()),
    ("s3", 503, "SlowDown", Unknown),
    ("gcs", 503, "backendError", Unknown),
    ("azure", 503, "ServerBusy", Unknown),
]


@pytest.mark.parametrize(("kind", "status", "code", "expected"), READS)
def test_a_refused_read_is_one_of_the_answers(
    kind: str, status: int, code: str, expected: object
) -> None:
    with canned(refusal(kind, status, code)) as server:
        answer = opened(kind, server.url).get("k", unless=V[kind])
    if isinstance(expected, type):
        assert isinstance(answer, expected) and SECRET not in str(answer)
    else:
        assert answer == expected
    assert len(server.requests) == 1


@pytest.mark.parametrize("kind", HTTP_STORES)
def test_a_refused_listing_raises_a_retryable_error(kind: str) -> None:
    with canned(refusal(kind, 503, "SlowDown")) as server, pytest.raises(NoAnswer, match="503"):
        opened(kind, server.url).list("")
    with canned(b"") as server, pytest.raises(NoAnswer, match="no answer"):
        opened(kind, server.url).list("")


FAULTS: list[tuple[str, int, str, dict[str, str], str]] = [
    ("s3", 403, "AccessDenied", {}, "s3:PutObject"),
    ("s3", 404, "NoSuchBucket", {}, "no such bucket"),
    ("s3", 400, "ExpiredToken", {}, "expired"),
    ("s3", 403, "InvalidAccessKeyId", {}, "access key"),
    ("s3", 403, "SignatureDoesNotMatch", {}, "secret key is wrong"),
    ("s3", 403, "RequestTimeTooSkewed", {}, "clock"),
    ("s3", 301, "PermanentRedirect", {"x_amz_bucket_region": "eu-west-1"}, "'eu-west-1'"),
    ("s3", 301, "PermanentRedirect", {}, "region_name"),
    ("s3", 307, "TemporaryRedirect", {"Location": "http://127.0.0.1:1/"}, "new"),
    ("s3", 307, "", {"Location": "http://127.0.0.1:1/"}, "check the endpoint"),
    ("s3", 400, "AuthorizationHeaderMalformed", {}, "region_name"),
    ("s3", 501, "NotImplemented", {}, "does not support"),
    ("gcs", 403, "forbidden", {}, "roles/storage.objectAdmin"),
    ("gcs", 404, "notFound", {}, "no such bucket"),
    ("gcs", 501, "notImplemented", {}, "does not support"),
    ("azure", 403, "AuthorizationPermissionMismatch", {}, "Storage Blob Data Contributor"),
    ("azure", 403, "AuthenticationFailed", {}, "expired"),
    ("azure", 401, "InvalidAuthenticationInfo", {}, "az login"),
    ("azure", 404, "ContainerNotFound", {}, "no such container"),
    ("azure", 409, "ContainerBeingDeleted", {}, "being deleted"),
    ("azure", 412, "LeaseIdMissing", {}, "native Azure lease"),
    ("azure", 400, "InvalidHeaderValue", {}, "api_version"),
]


@pytest.mark.parametrize(("kind", "status", "code", "headers", "cure"), FAULTS)
def test_a_configuration_error_states_the_cause_the_party_and_the_remedy(
    kind: str, status: int, code: str, headers: dict[str, str], cure: str
) -> None:
    with canned(refusal(kind, status, code, **headers)) as server:
        store = opened(kind, server.url)
        with pytest.raises(StoreError) as raised:
            store.put("locks/table_lock.json", b"{}", IfAbsent())
    said = str(raised.value)
    assert not isinstance(raised.value, NoAnswer)
    for part in (store.url, "locks/table_lock.json", str(status), code, cure):
        assert part in said, said
    assert SECRET not in said and "AKIA" not in said
    assert raised.value.__suppress_context__, "the SDK's own message may hold a signature"
    assert len(server.requests) == 1


@pytest.mark.parametrize("kind", HTTP_STORES)
@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed_by_any_request(kind: str, status: int) -> None:
    """Conditions were tested on the server that the URL names, and messages name that server."""
    with canned() as elsewhere, canned() as server:
        server.answer = http(status, Location=f"{elsewhere.url}/there")
        store = opened(kind, server.url)
        for send in (
            lambda: store.put("k", b"x", IfAbsent()), lambda: store.get("k"),
            lambda: store.list(""), lambda: store.delete("k"), lambda: store.versions("k"),
        ):  # fmt: skip
            with pytest.raises(StoreError, match=f"answered {status}"):
                send()
        assert (elsewhere.requests, len(server.requests)) == ([], 5)


def test_a_missing_bucket_is_distinguished_from_a_missing_object_in_a_gcs_download() -> None:
    gone = http(404, b"The specified bucket does not exist.", Content_Type="text/html")
    with canned(gone) as server, pytest.raises(StoreError, match="no such bucket"):
        opened("gcs", server.url).get("k")
    gone = http(404, b"No such object: bucket/table/k", Content_Type="text/html")
    with canned(gone) as server:
        assert opened("gcs", server.url).get("k") == Missing()


def test_an_error_code_from_the_wire_is_tamed_before_it_is_shown() -> None:
    code = "&lt;script&gt;\x1b[31m" + "A" * 5000
    with canned(refusal("s3", 400, code)) as server, pytest.raises(StoreError) as raised:
        opened("s3", server.url).get("k")
    said = str(raised.value)
    assert len(said) < 400 and "<" not in said and "\x1b" not in said


# --- silence --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", HTTP_STORES)
def test_a_connection_that_ends_without_an_answer_proves_nothing(kind: str) -> None:
    with canned(b"") as server:
        store = opened(kind, server.url)
        assert isinstance(store.put("k", b"{}", IfAbsent()), Unknown)
        assert isinstance(store.get("k"), Unknown)
        assert isinstance(store.delete("k"), Unknown)
    assert len(server.requests) == 3


PAGES = {
    "a page": b"<html><body>Log in to the Wi-Fi &nbsp; <p></body>",
    "torn xml": b"<?xml version='1.0'?><x",
    "torn json": b"[1",
    "binary": bytes(range(256)),
}


@pytest.mark.parametrize("kind", HTTP_STORES)
@pytest.mark.parametrize("status", [200, 403, 502])
@pytest.mark.parametrize("body", PAGES.values(), ids=list(PAGES))
def test_an_answer_from_no_store_is_unknown_or_a_fault_and_never_a_traceback(
    kind: str, status: int, body: bytes
) -> None:
    """It may come from a captive portal, a proxy, or another program on that port."""
    with canned(http(status, body, Content_Type="text/html")) as server:
        store = opened(kind, server.url)
        for put in (IfAbsent(), IfVersion(V[kind])):
            with suppress(StoreError):
                assert isinstance(store.put("k", b"{}", put), Unknown)
        with suppress(StoreError):
            assert isinstance(store.get("k"), Unknown)
        with suppress(StoreError):
            assert isinstance(store.delete("k"), Unknown | Applied)
        for ask in (store.list, store.versions):
            with pytest.raises(StoreError):
                ask("k")


@pytest.mark.parametrize("body", [b"", b"<html><body>hello</body></html>"], ids=["empty", "a page"])
@pytest.mark.parametrize("kind", HTTP_STORES)
def test_an_invalid_listing_is_not_an_empty_one(kind: str, body: bytes) -> None:
    """Otherwise a timeline would seem to have no commits."""
    with canned(http(200, body, Content_Type="application/xml")) as server:
        store = opened(kind, server.url)
        for ask in (store.list, store.versions):
            with pytest.raises(NoAnswer):
                ask("k")


@pytest.mark.parametrize("kind", HTTP_STORES)
def test_a_hanging_store_is_abandoned_in_time(kind: str) -> None:
    with canned(hang=True) as server:
        store = opened(kind, server.url, timeout_s=0.6)
        began = time.monotonic()
        answer = store.put("k", b"{}", IfAbsent())
        assert isinstance(answer, Unknown), answer
        assert time.monotonic() - began < 15
    assert len(server.requests) == 1


@pytest.mark.parametrize("kind", HTTP_STORES)
def test_a_body_that_stops_short_is_not_the_object(kind: str) -> None:
    headers = {
        "ETag": '"abc"',
        "x_goog_generation": "17",
        "Last_Modified": "Sat, 21 Nov 2026 04:00:00 GMT",
        "Content_Length": "100",
        "x_ms_blob_type": "BlockBlob",
        "Content_Type": "application/json",
    }
    if kind == "azure":
        headers["Content_Range"] = "bytes 0-99/100"
    short = http(206 if kind == "azure" else 200, b"{}", **headers)
    with canned(short) as server:
        assert isinstance(opened(kind, server.url).get("k"), Unknown)
        assert isinstance(opened(kind, server.url).get("k", limit=99), Unknown)


@pytest.mark.parametrize("kind", HTTP_STORES)
def test_a_refused_connection_is_unknown_for_a_server_may_be_restarting(kind: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        store = opened(kind, f"http://127.0.0.1:{taken.getsockname()[1]}")
        answer = store.put("k", b"{}", IfAbsent())
    assert isinstance(answer, Unknown) and "refused" in answer.why


@pytest.mark.parametrize("kind", HTTP_STORES)
def test_a_name_that_does_not_resolve_raises(kind: str) -> None:
    with pytest.raises(StoreError, match="does not resolve") as raised:
        opened(kind, "http://no-such-host.invalid").get("k")
    assert "no-such-host.invalid" in str(raised.value)


@pytest.mark.parametrize("kind", HTTP_STORES)
def test_a_resolver_failure_after_the_stores_first_answer_counts_as_no_answer(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with canned(refusal(kind, 503, "SlowDown")) as server:
        store = opened(kind, server.url.replace("127.0.0.1", "localhost"))
        assert isinstance(store.get("k"), Unknown)

    def fail(*_: object, **__: object) -> object:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert isinstance(store.get("k"), Unknown)


# --- opening --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("ftp://bucket/x", "scheme"),
        ("s3:///x", "no bucket"),
        ("gs://", "no bucket"),
        ("file://relative/path", "absolute"),
        ("s3://Not_A_Bucket!/x", "bucket"),
    ],
)
def test_an_url_that_names_no_store_is_refused_with_the_reason(url: str, part: str) -> None:
    with pytest.raises(StoreError, match=part) as raised:
        endpoint = None if url.startswith("file:") else "http://127.0.0.1:1"
        open_store(url, endpoint=endpoint).get("k")
    assert url in str(raised.value)


@pytest.mark.parametrize("kind", HTTP_STORES)
@pytest.mark.parametrize(
    "endpoint", ["localhost:9000", "ftp://host", "http://", "http://[::1", "http://host:99999"]
)
def test_an_endpoint_that_is_no_url_is_refused_with_the_form_that_it_has(
    kind: str, endpoint: str
) -> None:
    with pytest.raises(StoreError, match="http://host:port"):
        open_store(f"{SCHEMES[kind]}://bucket/x", endpoint=endpoint)


@pytest.mark.parametrize(
    "url",
    [
        f"s3://AKIAEXAMPLE:{SECRET}@bucket/table",
        f"s3a://AKIAEXAMPLE:{SECRET}@bucket/table",
        f"az://container/table?sv=2022-11-02&sig={SECRET}",
        f"abfss://c@a.dfs.core.windows.net/t?sig={SECRET}",
        f"https://account.blob.core.windows.net/container?SIG={SECRET}",
        f"https://bucket.s3.amazonaws.com/x?X-Amz-Signature={SECRET}",
        f"gs://bucket/x?X-Goog-Signature={SECRET}",
        f"s3://AKIAEXAMPLE:ab/{SECRET}@bucket/table",
        f"s3://AKIAEXAMPLE:ab%2F{SECRET}%40bucket/table",
        f"gs://{SECRET}@bucket/table",
        f"s3://bucket/x?X-Amz-Security-Token={SECRET}",
        f"s3://bucket/x?X-Amz-Credential={SECRET}&X-Amz-Date=1",
        f"s3://bucket/x?AWSAccessKeyId={SECRET}",
        f"gs://bucket/x?GoogleAccessId={SECRET}",
        f"gs://bucket/x?access_token={SECRET}",
        f"az://c/t?sv=1%26sig%3D{SECRET}",
        f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={SECRET}",
    ],
)
def test_an_url_that_carries_a_secret_is_refused_and_not_repeated(url: str) -> None:
    """Messages, histories and pages show a table's URL."""
    with pytest.raises(StoreError, match="carries a password or a signature") as raised:
        open_store(url)
    assert SECRET not in str(raised.value) and "AKIA" not in str(raised.value)


def test_a_key_may_contain_a_question_mark_and_an_at_sign_names_an_account() -> None:
    for url in ("memory://b/part=a?b=c@d:e/x", "memory://b/a&b=c;d=e/x#f=g/design=2/10%25"):
        with closing(open_store(url)) as store:
            assert store.url == url
    azure = "abfss://container@account.dfs.core.windows.net/x@y:z"
    with closing(open_store(azure, credential="any")) as store:
        assert (store.url, store.server) == (azure, "https://account.blob.core.windows.net")


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "STORAGE_", "CLOUDSDK_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("NO_GCE_CHECK", "true")


@pytest.mark.usefixtures("no_credentials")
def test_without_credentials_nothing_is_sent_and_the_error_says_how_to_log_in() -> None:
    with pytest.raises(StoreError, match="no usable AWS credentials"):
        open_store("s3://bucket/x", region_name="eu-west-1").get("k")
    with pytest.raises(StoreError, match="profile cannot be used"):
        open_store("s3://bucket/x", profile_name="nobody")
    with pytest.raises(StoreError, match="gcloud auth application-default login"):
        open_store("gs://bucket/x")
    with pytest.raises(StoreError, match="names no account"):
        open_store("az://container/x")


def test_a_google_login_that_has_expired_says_how_to_log_in_again() -> None:
    from google.oauth2.credentials import Credentials

    revoked = json.dumps({"error": "invalid_grant", "error_description": SECRET}).encode()
    with canned(http(400, revoked, Content_Type="application/json")) as server:
        login = Credentials(
            None, refresh_token=SECRET, token_uri=server.url, client_id="c", client_secret=SECRET
        )
        store = open_store("gs://bucket/x", credentials=login, project="p")
        for call in (lambda: store.get("k"), lambda: store.put("k", b"{}", IfAbsent())):
            with pytest.raises(StoreError, match=r"expired or were revoked.*gcloud auth") as raised:
                call()
            assert SECRET not in str(raised.value)


@pytest.mark.usefixtures("no_credentials")
@pytest.mark.parametrize("kind", HTTP_STORES)
def test_a_loopback_endpoint_needs_no_credentials(kind: str) -> None:
    with canned(
        refusal(kind, 404, {"s3": "NoSuchKey", "azure": "BlobNotFound"}.get(kind, ""))
    ) as s:
        assert open_store(f"{SCHEMES[kind]}://bucket/x", endpoint=s.url).get("k") == Missing()


@pytest.mark.parametrize("kind", HTTP_STORES)
def test_a_loopback_endpoint_is_reached_without_the_machines_proxy(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with canned(refusal(kind, 412, "ConditionNotMet")) as server:
        store = opened(kind, server.url)
        assert store.put("k", b"{}", IfVersion(V[kind])) == PreconditionFailed()
    assert len(server.requests) == 1


@pytest.mark.parametrize("text", [
    "2026-11-26T13:34:04.123Z", "2026-11-26T13:34:04+02:00", "2026-11-26",
    "Thu, 26 Nov 2026 13:34:04 GMT", "1700000000", 1700000000.5,
])  # fmt: skip
def test_a_time_in_an_answer_is_the_one_that_botocore_reads(text: Any) -> None:
    from botocore.utils import parse_timestamp

    from lockkit.stores.aws import time_of

    assert time_of(text) == parse_timestamp(text)


def test_the_times_in_a_listing_do_not_go_through_the_slow_parser(
    servers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*_: Any, **__: Any) -> Any:
        raise AssertionError("dateutil")

    with closing(open_store("s3://s3-bucket/times/table", endpoint=servers.s3)) as store:
        written(store.put("a", b"1", IfAbsent()))
        monkeypatch.setattr("dateutil.parser.parse", slow)
        assert [each.key for each in store.list("")] == ["a"]


def test_opening_a_store_loads_no_other_providers_sdk() -> None:
    code = (
        "import sys, lockkit.stores as s; s.open_store('memory://m'); s.open_store('file:///tmp');"
        "print([m for m in ('boto3', 'google.cloud', 'azure.core') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


# --- local files ----------------------------------------------------------------------------------

WRITER = """
import sys
from lockkit.protocol.outcome import Applied, Found, IfAbsent, IfVersion, Missing
from lockkit.stores import open_store

store = open_store(sys.argv[1])
while True:
    match store.get("k"):
        case Missing():
            number, condition = 1, IfAbsent()
        case Found(body, version):
            number, condition = int(body[:12]) + 1, IfVersion(version)
    if isinstance(store.put("k", b"%012d" % number * 5000, condition), Applied):
        print(number, flush=True)
"""


def test_a_writer_killed_at_any_point_leaves_whole_files_and_no_second_winner(
    tmp_path: Path,
) -> None:
    url = f"file://{tmp_path}/table"
    store = open_store(url)
    acknowledged: list[int] = []
    for life in range(8):
        writers = [
            subprocess.Popen([sys.executable, "-c", WRITER, url], stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        for writer in writers:
            assert writer.stdout is not None
            acknowledged.append(int(writer.stdout.readline()))  # it is at work
        time.sleep(0.003 * life)  # another point of its loop each time
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
        for writer in writers:
            assert writer.stdout is not None
            acknowledged += [int(line) for line in writer.stdout if line.endswith("\n")]
            writer.wait(10)
        body = body_of(store, "k")
        assert len(body) == 60_000 and body == body[:12] * 5000, "half a body"
        assert int(body[:12]) >= max(acknowledged), "an acknowledged write was lost"
    assert len(acknowledged) == len(set(acknowledged)), "two winners of one version"
    assert [entry.key for entry in store.list("")] == ["k"]


@pytest.mark.parametrize("way", ["delete", "put"])
def test_a_file_goes_with_hadoops_checksum_of_it(tmp_path: Path, way: str) -> None:
    """Hadoop refuses a file that differs from its checksum, also if the checksum is newer."""
    store = open_store(f"file://{tmp_path}")
    version = written(store.put("f", b"old", IfAbsent()))
    for name in (".f.crc", ".g.crc"):
        (tmp_path / name).write_bytes(b"of the old file")
    if way == "put":
        written(store.put("f", b"new", IfVersion(version)))
    else:
        store.delete("f")
    assert not (tmp_path / ".f.crc").exists() and (tmp_path / ".g.crc").exists()


def test_a_write_to_a_directory_is_synced_with_its_name_before_it_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[bool, list[str]]] = []

    def sync(file: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(file).st_mode), [*map(str, tmp_path.glob("[!.]*"))]))

    monkeypatch.setattr(os, "fsync", sync)
    name, store = f"{tmp_path}/k", open_store(f"file://{tmp_path}")
    written = store.put("k", b"x", IfAbsent())
    assert synced == [(False, []), (True, [name])], "the content, then its name"
    assert isinstance(written, Applied)
    assert isinstance(store.delete("k", IfVersion(written.version)), Applied)
    assert synced[2:] == [(True, [])]


def test_the_files_of_a_directory_store_are_plain_files(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/a%20b")
    written(store.put("part=US/f.parquet", b"PAR1", IfAbsent()))
    assert (tmp_path / "a b" / "part=US" / "f.parquet").read_bytes() == b"PAR1"
    assert store.delete("part=US/f.parquet") == Applied("")
    assert list((tmp_path / "a b").iterdir()) == [], "no empty directories, no scratch"


def test_the_folder_of_hudis_markers_stays_when_the_last_one_is_deleted(tmp_path: Path) -> None:
    """Hudi 1.2.0 lists it for early conflict detection, and fails where it is missing."""
    store = open_store(f"file://{tmp_path}")
    store.put(".hoodie/.temp/1/eu/f.marker", b"", IfAbsent())
    store.delete(".hoodie/.temp/1/eu/f.marker")
    assert list((tmp_path / ".hoodie" / ".temp").iterdir()) == []


def test_two_writes_within_one_tick_have_two_versions(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    version = written(store.put("k", b"A", IfAbsent()))
    seen = {version}
    for _ in range(200):
        version = written(store.put("k", b"A", IfVersion(version)))
        seen.add(version)
    assert len(seen) == 201


@pytest.mark.parametrize("key", ["../outside", "a/../../b", "/etc/passwd", ".lockkit.tmp"])
def test_a_key_cannot_leave_the_directory(tmp_path: Path, key: str) -> None:
    with pytest.raises(StoreError, match="cannot be a key"):
        open_store(f"file://{tmp_path}/in").put(key, b"", IfAbsent())


def test_a_file_where_a_directory_is_needed_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    store = open_store(f"file://{tmp_path}")
    with pytest.raises(StoreError, match="choose another key"):
        store.put("a/b", b"", IfAbsent())
    assert store.get("a/b") == Missing()


def test_a_directory_in_the_place_of_the_lock_object_is_explained(tmp_path: Path) -> None:
    """Without this, the client looked and claimed in vain until its timeout."""
    (tmp_path / LOCK_KEY).mkdir(parents=True)
    with closing(Lock(f"file://{tmp_path}")) as lock:
        with pytest.raises(StoreError, match=rf"{LOCK_KEY}: Is a directory.*move it away"):
            lock.acquire(timeout=5)
    assert main(["lock", "show", f"file://{tmp_path}"]) == 3


def test_a_folder_that_cannot_be_created_is_an_error_and_not_throttling() -> None:
    if not Path("/proc/self").is_dir():
        pytest.skip("this system has no /proc")
    with pytest.raises(StoreError, match=r"cannot write a/b: .*; no directory can be made there"):
        open_store("file:///proc/lockkit").put("a/b", b"", IfAbsent())


@pytest.mark.parametrize("url", ["az://lake@acct/orders", "az://lake@acct.dfs.core.windows.net/orders"])
def test_azures_token_over_http_is_refused_with_the_key_that_is_missing(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(StoreError, match=r"https only.*no account key.*set AZURE_STORAGE_KEY"):
        open_store(url, endpoint="http://127.0.0.1:9")
    monkeypatch.setenv("AZURE_STORAGE_KEY", "YW55")
    open_store(url, endpoint="http://127.0.0.1:9").close()
