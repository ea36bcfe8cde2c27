"""One winner, whatever comes at once; nothing acknowledged is lost, however the server dies."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

RACERS = 16
ROUNDS = 25
INCREMENTS = 6


def put(endpoint: str, path: str, body: bytes, **headers: str) -> tuple[int, str]:
    """(status, ETag) of one PUT on a connection of its own."""
    parts = urlsplit(endpoint)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    with contextlib.closing(connection):
        connection.request("PUT", path, body, {k.replace("_", "-"): v for k, v in headers.items()})
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.headers.get("ETag", "")


def get(endpoint: str, path: str) -> tuple[bytes, str]:
    with urllib.request.urlopen(f"{endpoint}{path}", timeout=10) as answer:
        return answer.read(), answer.headers["ETag"]


def last_byte_race(endpoints: list[str], requests: list[bytes]) -> list[int]:
    """Every request but for its last byte is sent; then all the last bytes at once."""
    sockets = []
    for number, request in enumerate(requests):
        parts = urlsplit(endpoints[number % len(endpoints)])
        each = socket.create_connection((parts.hostname, parts.port), timeout=10)
        each.sendall(request[:-1])
        sockets.append(each)
    start = threading.Barrier(len(sockets))

    def finish(number: int) -> int:
        start.wait()
        sockets[number].sendall(requests[number][-1:])
        return int(sockets[number].recv(4096).split(b" ")[1])

    with ThreadPoolExecutor(len(sockets)) as pool:
        statuses = list(pool.map(finish, range(len(sockets))))
    for each in sockets:
        each.close()
    return statuses


def writes(provider: str, key: str, version: str | None) -> Callable[[int], bytes]:
    """The n-th racer's conditional write, in the words of a provider."""

    def s3(number: int) -> bytes:
        condition = "If-None-Match: *" if version is None else f"If-Match: {version}"
        return f"PUT /race/{key} HTTP/1.1\r\nHost: x\r\n{condition}\r\n".encode()

    def azure(number: int) -> bytes:
        head = s3(number).replace(b"PUT /", b"PUT /account/", 1)
        return head + b"x-ms-blob-type: BlockBlob\r\n"

    def gcs(number: int) -> bytes:
        path = f"/upload/storage/v1/b/race/o?uploadType=media&name={key}&ifGenerationMatch="
        return f"POST {path}{version or 0} HTTP/1.1\r\nHost: x\r\n".encode()

    heads = {"s3": s3, "azure": azure, "gcs": gcs}

    def write(number: int) -> bytes:
        # S3's versions are content hashes: a swap that wrote the same bytes would let another win.
        body = f"{number:03} over {version}".encode()
        return heads[provider](number) + f"Content-Length: {len(body)}\r\n\r\n".encode() + body

    return write


@pytest.fixture
def two_servers(serve: Callable[..., Any], tmp_path: Path) -> Iterator[Callable[[str], list[str]]]:
    """Two server processes on one file; gives both addresses of a dialect."""
    file = str(tmp_path / "objects.sqlite")
    both = [serve("--db", file), serve("--db", file)]
    yield lambda provider: [getattr(each, provider) for each in both]


def version_of(provider: str, endpoint: str, key: str) -> tuple[bytes, str]:
    """The object's bytes, and its version in the provider's words."""
    match provider:
        case "s3":
            return get(endpoint, f"/race/{key}")
        case "azure":
            return get(endpoint, f"/account/race/{key}")
    with urllib.request.urlopen(
        f"{endpoint}/download/storage/v1/b/race/o/{key}?alt=media"
    ) as response:
        return response.read(), response.headers["x-goog-generation"]


@pytest.mark.parametrize("provider", ["s3", "gcs", "azure"])
def test_of_many_writes_at_once_one_wins_also_on_two_servers(
    provider: str, two_servers: Callable[[str], list[str]]
) -> None:
    endpoints = two_servers(provider)
    lost = {"s3": 412, "gcs": 412, "azure": 409}[provider]
    for number in range(ROUNDS):
        key = f"key-{number}"
        create = writes(provider, key, None)
        statuses = last_byte_race(endpoints, [create(each) for each in range(RACERS)])
        assert sorted(set(statuses)) == [200 + (provider == "azure"), lost]
        assert statuses.count(lost) == RACERS - 1
        body, version = version_of(provider, endpoints[0], key)
        assert statuses[int(body[:3])] < 300, "the winner's bytes are there"
        swap = writes(provider, key, version)
        statuses = last_byte_race(endpoints, [swap(each) for each in range(RACERS)])
        assert statuses.count(412) == RACERS - 1


COUNT = """
import sys
from concurrent.futures import ThreadPoolExecutor
sys.path.insert(0, "tests")
from test_emulator_races import get, put

def count(_):
    done = 0
    while done < int(sys.argv[2]):
        body, etag = get(sys.argv[1], "/race/counter")
        status, _ = put(sys.argv[1], "/race/counter", str(int(body) + 1).encode(), If_Match=etag)
        assert status in (200, 412), status
        done += status == 200

with ThreadPoolExecutor(8) as pool:
    list(pool.map(count, range(8)))
"""


def test_a_counter_of_four_processes_and_two_servers_loses_no_increment(
    two_servers: Callable[[str], list[str]],
) -> None:
    endpoints = two_servers("s3")
    put(endpoints[0], "/race/counter", b"0")
    clients = [
        subprocess.Popen(
            [sys.executable, "-c", COUNT, endpoints[number % 2], str(INCREMENTS)],
            cwd=Path(__file__).parents[1],
        )
        for number in range(4)
    ]
    assert [each.wait(60) for each in clients] == [0, 0, 0, 0]
    assert get(endpoints[0], "/race/counter")[0] == str(4 * 8 * INCREMENTS).encode()
    record = [json.loads(line) for line in urllib.request.urlopen(
        f"{endpoints[1]}/__lockkit/requests"
    )]  # fmt: skip
    applied = [each for each in record if each["applied"] and each["key"] == "counter"]
    assert len(applied) == 1 + 4 * 8 * INCREMENTS, "both servers keep one record"
    before = {each["before"] for each in applied}
    assert before == {"", *(each["version"] for each in applied)} - {applied[-1]["version"]}


@pytest.mark.parametrize("round_number", range(5))
def test_acknowledged_writes_survive_a_kill_of_the_server(
    round_number: int, serve: Callable[..., Any], tmp_path: Path
) -> None:
    file = str(tmp_path / "objects.sqlite")
    server = serve("--db", file)
    acknowledged: dict[int, tuple[int, str]] = {}
    enough = threading.Event()

    def write(key: int) -> None:
        number, etag = 0, ""
        condition = {"If_None_Match": "*"}
        with contextlib.suppress(OSError, http.client.HTTPException):
            while True:
                status, etag = put(server.s3, f"/kill/{key}", str(number).encode(), **condition)
                assert status == 200
                acknowledged[key] = (number, etag)
                condition, number = {"If_Match": etag}, number + 1
                if sum(n for n, _ in acknowledged.values()) > 40 + 30 * round_number:
                    enough.set()

    writers = [threading.Thread(target=write, args=(key,)) for key in range(4)]
    for each in writers:
        each.start()
    assert enough.wait(30)
    server.kill()
    for each in writers:
        each.join(15)
    again = serve("--db", file)
    for key, (number, _) in acknowledged.items():
        body, _ = get(again.s3, f"/kill/{key}")
        # One more may have been applied whose answer was lost; an acknowledged one is never gone.
        assert int(body) in (number, number + 1)
    lines = urllib.request.urlopen(f"{again.s3}/__lockkit/requests").read().splitlines()
    versions = {each["version"] for each in map(json.loads, lines) if each["applied"]}
    assert {etag for _, etag in acknowledged.values()} <= versions, "nor gone from the record"


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_server_stops_cleanly_on_request(stop: signal.Signals, serve: Callable[..., Any]) -> None:
    server = serve()
    parts = urlsplit(server.s3)
    idle = http.client.HTTPConnection(parts.hostname or "", parts.port)
    idle.request("PUT", "/b/k", b"x")
    idle.getresponse().read()
    began = time.monotonic()
    server.process.send_signal(stop)
    code = server.process.wait(10)
    assert code == (0 if stop is signal.SIGTERM else 130)
    assert time.monotonic() - began < 8, "a client's idle connection does not hold it up"
    idle.close()


def test_every_version_of_a_raced_object_is_kept_in_order(emulator: Any) -> None:
    create = writes("s3", "kept", None)
    last_byte_race([emulator.s3], [create(each) for each in range(RACERS)])
    for number in range(5):
        put(emulator.s3, "/race/kept", str(number).encode())
    with urllib.request.urlopen(f"{emulator.s3}/race?versions&prefix=kept") as answer:
        ids = [int(each) for each in re.findall("<VersionId>(.*?)</", answer.read().decode())]
    assert len(ids) == 6 and ids == sorted(ids, reverse=True)
