"""The embedded server: conditional PUT/s over raw HTTP, share of a boto3 call, start, memory."""

from __future__ import annotations

import json
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from tests.bench.shapes import client

SECONDS = 3.0
CONNECTIONS = 8
CALLS = 1500
BODY = json.dumps({"owner": "bench", "expiration": 1, "expired": False, "pad": "x" * 100}).encode()

# The least that boto3 takes for an answer: reads a request, says 200 with an ETag.
ONLY_ANSWERS = """
import asyncio

class Answer(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.seen = transport, b""
    def data_received(self, data):
        self.seen += data
        head, end, body = self.seen.partition(b"\\r\\n\\r\\n")
        if not end:
            return
        if b"100-continue" in head.lower() and not body:
            self.transport.write(b"HTTP/1.1 100 Continue\\r\\n\\r\\n")
            return
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\\r\\n")[0] or 0)
        if len(body) >= length:
            self.seen = b""
            self.transport.write(
                b'HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\nETag: "0"\\r\\n\\r\\n')

async def main():
    server = await asyncio.get_running_loop().create_server(Answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


@contextmanager
def process(*command: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server process, and the first line that it printed."""
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            yield running, running.stdout.readline()
        finally:
            running.terminate()


def raw_puts_per_s(endpoint: str) -> float:
    """Each connection rewrites its own key under If-Match, as fast as it is answered."""
    host, port = urlsplit(endpoint).hostname, urlsplit(endpoint).port
    select = selectors.DefaultSelector()
    for number in range(CONNECTIONS):
        connection = socket.create_connection((host, port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = f"PUT /bench/lock-{number} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(BODY)}\r\n"
        connection.sendall(f"{head}\r\n".encode() + BODY)
        select.register(connection, selectors.EVENT_READ, head)
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        for key, _ in select.select():
            connection: Any = key.fileobj
            answer = connection.recv(4096)
            assert answer.startswith(b"HTTP/1.1 200"), answer
            tag = answer.partition(b"ETag: ")[2].partition(b"\r\n")[0].decode()
            connection.sendall(f"{key.data}If-Match: {tag}\r\n\r\n".encode() + BODY)
            done += 1
    return done / (time.perf_counter() - began)


def boto3_ms(*endpoints: str) -> list[float]:
    """The median conditional PUT to each; turn by turn, so that both meet the same neighbours."""
    clients = [client(endpoint) for endpoint in endpoints]
    place = {"Bucket": "bench", "Key": "boto", "Body": BODY}
    tags = [s3.put_object(**place)["ETag"] for s3 in clients]
    times: list[list[float]] = [[] for _ in clients]
    for _ in range(CALLS):
        for number, s3 in enumerate(clients):
            began = time.perf_counter()
            tags[number] = s3.put_object(**place, IfMatch=tags[number])["ETag"]
            times[number].append(time.perf_counter() - began)
    return [statistics.median(each) * 1000 for each in times]


def main() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        began = time.perf_counter()
        serve = ("-m", "lockkit", "serve", "--db", str(Path(place) / "objects.sqlite"))
        with process(*serve) as (server, line), process("-c", ONLY_ANSWERS) as (_, port):
            endpoint = json.loads(line)["s3"]
            urllib.request.urlopen(f"{endpoint}/__lockkit/health").close()
            start_s = time.perf_counter() - began
            puts = max(raw_puts_per_s(endpoint) for _ in range(2))
            ours_ms, bare_ms = boto3_ms(endpoint, f"http://127.0.0.1:{port.strip()}")
            memory = psutil.Process(server.pid).memory_info().rss / 1e6
    return {
        "raw_conditional_puts_per_s": round(puts),
        "boto3_put_ms": round(ours_ms, 3),
        "boto3_put_ms_to_a_server_that_only_answers": round(bare_ms, 3),
        "ratio": round(ours_ms / bare_ms, 3),
        "start_s": round(start_s, 2),
        "rss_mb": round(memory, 1),
    }


if __name__ == "__main__":
    print(json.dumps(main()))
