"""A listing ends, whatever pages its server sends: with the real SDKs against a local server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from test_deadlines import PATIENCE_S, TIMEOUT_S, URLS, anonymous, dialect
from trickle import ends_within

from lockkit.errors import NoAnswer, StoreError
from lockkit.stores import Store, deadline, open_store, pages

__all__ = ["dialect"]

Page = tuple[list[str], str]
"""The keys of a page, and the token of the next one; empty at the end."""
Pages = Callable[[int], Page]
"""The page that a token (a number, 0 for the first page) asks for."""
DATE = "2026-11-21T10:00:00.000Z"


def s3(keys: list[str], token: str) -> str:
    more = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    items = "".join(
        f'<Contents><Key>{key}</Key><Size>1</Size><ETag>"x"</ETag></Contents>' for key in keys
    )
    truncated = str(bool(token)).lower()
    return (
        f"<ListBucketResult><IsTruncated>{truncated}</IsTruncated>{more}{items}</ListBucketResult>"
    )


def s3_versions(keys: list[str], token: str) -> str:
    more = f"<NextKeyMarker>{token}</NextKeyMarker>" if token else ""
    items = "".join(
        f"<Version><Key>{key}</Key><VersionId>v</VersionId><IsLatest>true</IsLatest><Size>1</Size>"
        f'<ETag>"x"</ETag><LastModified>{DATE}</LastModified></Version>'
        for key in keys
    )
    truncated = str(bool(token)).lower()
    return (
        f"<ListVersionsResult><IsTruncated>{truncated}</IsTruncated>{more}{items}"
        "</ListVersionsResult>"
    )


def gcs(keys: list[str], token: str) -> str:
    items = [{"name": key, "size": "1", "generation": "1", "updated": DATE} for key in keys]
    return json.dumps({"items": items, **({"nextPageToken": token} if token else {})})


def azure(keys: list[str], token: str) -> str:
    items = "".join(
        f"<Blob><Name>{key}</Name><Properties><BlobType>BlockBlob</BlobType>"
        "<Etag>0x1</Etag><Content-Length>1</Content-Length>"
        "<Last-Modified>Sat, 21 Nov 2026 10:00:00 GMT</Last-Modified></Properties></Blob>"
        for key in keys
    )
    return (
        f'<?xml version="1.0"?><EnumerationResults ContainerName="b"><Blobs>{items}</Blobs>'
        f"<NextMarker>{token}</NextMarker></EnumerationResults>"
    )


TOKENS = ("continuation-token", "key-marker", "pageToken", "marker")


class Server(ThreadingHTTPServer):
    """Answers every GET with the page that its token asks for."""

    daemon_threads = True

    def __init__(self, dialect: str, send: Pages, pause_s: float) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.dialect, self.send, self.pause_s, self.sent = dialect, send, pause_s, 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def body(self, query: dict[str, list[str]]) -> str:
        token = next((query[name][0] for name in TOKENS if name in query), "0")
        of_s3 = s3_versions if "versions" in query else s3
        write = {"s3": of_s3, "gcs": gcs, "azure": azure}[self.dialect]
        self.sent += 1
        time.sleep(self.pause_s)
        return write(*self.send(int(token)))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        body = self.server.body(parse_qs(urlsplit(self.path).query, keep_blank_values=True))
        self.send_response(200)
        kind = "json" if self.server.dialect == "gcs" else "xml"
        self.send_header("x-ms-version", "2023-11-03")  # as Azure sends it; the others ignore it
        self.send_header("Content-Type", f"application/{kind}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())


@contextmanager
def serving(dialect: str, send: Pages, pause_s: float = 0.0) -> Iterator[tuple[Store, Server]]:
    with Server(dialect, send, pause_s) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        options: dict[str, Any] = {"timeout_s": TIMEOUT_S, **anonymous(dialect)}
        store = open_store(URLS[dialect], endpoint=server.url, **options)
        try:
            yield store, server
        finally:
            server.shutdown()


CALLS: dict[str, Callable[[Store], object]] = {
    "list": lambda store: store.list(""),
    "versions": lambda store: store.versions("k"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("period", [1, 3])
def test_pages_that_come_again_are_an_error_that_names_the_server(
    dialect: str, call: str, period: int
) -> None:
    """A server that ignores the token of the next page, and one that goes round in a circle."""

    def again(page: int) -> Page:
        return [f"t/k{page % period}", f"t/k{page % period}x"], str(page + 1)

    with serving(dialect, again) as (store, server):
        with pytest.raises(StoreError, match="begins with a key of an earlier page") as failed:
            ends_within(PATIENCE_S, lambda: CALLS[call](store))
    assert not isinstance(failed.value, NoAnswer), "to list again does not help"
    assert server.url.removeprefix("http://") in str(failed.value)
    assert server.sent == period + 1


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("keys", [0, 3])
def test_short_pages_without_end_add_no_time(dialect: str, call: str, keys: int) -> None:
    """Each page is in order, new and in time; all of them together are not."""

    def onwards(page: int) -> Page:
        return [f"t/k{page:09}{each}" for each in range(keys)], str(page + 1)

    with serving(dialect, onwards, pause_s=0.05) as (store, _):
        with pytest.raises(NoAnswer, match="in the time that it may take"):
            ends_within(PATIENCE_S, lambda: CALLS[call](store))


def test_a_long_listing_takes_longer_than_the_timeout(
    dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve full pages, in more than twice the timeout."""
    monkeypatch.setattr(pages, "KEYS_PER_CALL", 50)

    def full(page: int) -> Page:
        keys = [f"t/k{page:03}{each:04}" for each in range(50)]
        return keys, str(page + 1) if page < 11 else ""

    with serving(dialect, full, pause_s=0.1) as (store, server):
        listed = ends_within(4 * PATIENCE_S, lambda: store.list(""))
    assert server.sent == 12 and len(listed) == 600


def test_the_time_that_pages_add_has_an_end(dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "EARNED_S_MAX", 0.3)
    monkeypatch.setattr(pages, "KEYS_PER_CALL", 10)

    def endless(page: int) -> Page:
        return [f"t/k{page:09}{each:03}" for each in range(10)], str(page + 1)

    with serving(dialect, endless, pause_s=0.05) as (store, _):
        with pytest.raises(NoAnswer, match="in the time that it may take"):
            ends_within(PATIENCE_S, lambda: store.list(""))


def test_a_few_empty_pages_are_read_over(dialect: str) -> None:
    """As Azure and Google may send them, e.g. among deleted objects."""

    def thin(page: int) -> Page:
        return [f"t/k{page}"] if page in (2, 5) else [], str(page + 1) if page < 6 else ""

    with serving(dialect, thin) as (store, _):
        listed = ends_within(PATIENCE_S, lambda: store.list(""))
    assert [entry.key for entry in listed] == ["k2", "k5"]


def test_pages_may_come_out_of_key_order(dialect: str) -> None:
    """As from S3's directory buckets, and from Azure accounts with folders."""
    order = ["t/b/x", "t/b-1/x", "t/a"]

    def unsorted(page: int) -> Page:
        return [order[page]], str(page + 1) if page < 2 else ""

    with serving(dialect, unsorted) as (store, _):
        listed = ends_within(PATIENCE_S, lambda: store.list(""))
    assert [entry.key for entry in listed] == ["a", "b-1/x", "b/x"]


@pytest.mark.parametrize("dialect", ["s3"], indirect=True)
@pytest.mark.parametrize("call", CALLS)
def test_a_truncated_listing_without_a_continuation_is_not_complete(
    dialect: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a server that knows only the first version of ListObjects."""
    for name, write in (("s3", s3), ("s3_versions", s3_versions)):
        monkeypatch.setitem(globals(), name, _says_more(write))
    with serving(dialect, lambda _: (["t/k"], "")) as (store, _):
        with pytest.raises(StoreError, match="more keys follow, but not from where") as failed:
            ends_within(PATIENCE_S, lambda: CALLS[call](store))
    assert not isinstance(failed.value, NoAnswer)


def _says_more(write: Callable[[list[str], str], str]) -> Callable[[list[str], str], str]:
    return lambda keys, token: write(keys, token).replace(">false<", ">true<", 1)
