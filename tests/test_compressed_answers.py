"""A compressed answer is inflated to a bounded length, in the call's time: with the real SDKs."""

from __future__ import annotations

import gzip
import http.client
import io
import resource
import socket
import time
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from test_deadlines import PATIENCE_S, TIMEOUT_S, URLS, anonymous, answer, dialect
from trickle import ends_within, trickle

from lockkit.errors import StoreError
from lockkit.protocol.outcome import IfAbsent, Unknown
from lockkit.stores import Store, connections, open_store

__all__ = ["dialect"]

BOMB_BYTES = 512 << 20
"""What the bomb inflates to: 512 MiB from 0.5 MB."""
ERROR = b"HTTP/1.1 403 Forbidden\r\n"
JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def packed() -> bytes:
    packer, block = zlib.compressobj(1, wbits=31), bytes(1 << 20)
    return b"".join(packer.compress(block) for _ in range(BOMB_BYTES >> 20)) + packer.flush()


def whole(head: bytes, body: bytes, encoding: bytes = b"gzip") -> Callable[[socket.socket], None]:
    def send(connection: socket.socket) -> None:
        connection.sendall(
            head + b"Content-Encoding: %b\r\nContent-Length: %d\r\n\r\n" % (encoding, len(body))
        )
        connection.sendall(body)

    return send


def opened(dialect: str, endpoint: str, timeout_s: float = 30) -> Store:
    return open_store(URLS[dialect], endpoint=endpoint, timeout_s=timeout_s, **anonymous(dialect))


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.parametrize("call", ["get", "put", "list"])
@pytest.mark.parametrize("head", [ERROR, JSON], ids=["error", "success"])
def test_a_gzip_bomb_fills_no_memory(dialect: str, head: bytes, call: str, packed: bytes) -> None:
    with trickle(whole(head, packed)) as server:
        store = opened(dialect, server.url)
        before_mb, began = peak_mb(), time.process_time()
        try:
            answer(store, call)
        except StoreError:  # S3's SDK never inflates, and sees a plain 403
            pass
    assert peak_mb() - before_mb < 200
    assert time.process_time() - began < 5


def test_a_bomb_within_a_bomb_is_not_inflated(dialect: str, packed: bytes) -> None:
    """A server may name several encodings at once; each multiplies by up to a thousand."""
    body = gzip.compress(packed)
    with trickle(whole(ERROR, body, b"gzip, gzip")) as server:
        store = opened(dialect, server.url)
        before_mb = peak_mb()
        try:
            ends_within(PATIENCE_S, lambda: store.put("k", b"{}", IfAbsent()))
        except StoreError as error:
            assert "403" in str(error)
    assert peak_mb() - before_mb < 200


@pytest.mark.parametrize("dialect", ["gcs", "azure"], indirect=True)
def test_a_compressed_error_without_an_end_is_given_up_in_time(dialect: str) -> None:
    """Each piece inflates to nothing, so no length of what came out of it ever ends the call."""

    def endless(connection: socket.socket) -> None:
        packer = zlib.compressobj(wbits=31)
        connection.sendall(ERROR + b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n")
        ends = time.monotonic() + 60
        while time.monotonic() < ends:
            piece = packer.compress(b" ") + packer.flush(zlib.Z_SYNC_FLUSH)
            connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
            time.sleep(0.05)

    with trickle(endless) as server:
        store = opened(dialect, server.url, TIMEOUT_S)
        said = ends_within(PATIENCE_S, lambda: store.put("k", b"{}", IfAbsent()))
    assert isinstance(said, Unknown), said


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "deflate", "raw deflate"])
def test_an_ordinary_compressed_answer_is_read(encoding: str) -> None:
    """Cloud Storage compresses its listings: the SDK's own session asks it to."""
    text = b'{"kind": "storage#objects", "items": []}' + b" " * 3_000_000
    if encoding == "raw deflate":
        packer = zlib.compressobj(wbits=-15)
        body = packer.compress(text) + packer.flush()
    else:
        body = zlib.compress(text) if encoding == "deflate" else gzip.compress(text)
    named = encoding.removeprefix("raw ").encode()
    with trickle(whole(JSON, body, named)) as server:
        store = opened("gcs", server.url)
        assert list(ends_within(PATIENCE_S, lambda: store.list("a"))) == []


def test_only_compressions_with_a_size_bound_are_accepted(dialect: str) -> None:
    """With brotli or zstd installed, the SDKs' HTTP library would ask for those as well."""
    asked: list[bytes] = []

    def refuse(connection: socket.socket) -> None:
        connection.sendall(ERROR + b"Content-Length: 0\r\n\r\n")

    def heard(self: Any, header: Any, *values: Any) -> None:
        if str(header).lower() == "accept-encoding":
            asked.extend(str(value).encode() for value in values)
        return put_header(self, header, *values)

    put_header = http.client.HTTPConnection.putheader  # below `connections._Timed`
    assert connections.accepted_encodings("gzip, deflate, br, zstd") == "gzip, deflate"
    assert connections.accepted_encodings("identity") == "identity"
    assert connections.accepted_encodings("br") == "identity"
    with pytest.MonkeyPatch.context() as patch, trickle(refuse) as server:
        patch.setattr(http.client.HTTPConnection, "putheader", heard)
        store = opened(dialect, server.url)
        with pytest.raises(StoreError, match="403"):
            store.get_file("k", io.BytesIO())
    named = {each.strip() for said in asked for each in said.split(b",")}
    assert asked and named <= {b"gzip", b"deflate", b"identity"}
