"""A login page, a proxy or another server answers in the place of a lock's service."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from lockkit import StoreError, open_lock
from lockkit.cli.main import main
from lockkit.protocol.outcome import Applied, Missing, ReadAnswer, Unknown
from lockkit.providers.leased import GrantOver, ServiceGrant
from lockkit.stores import open_store

PAGES = {
    "a login page": (200, b"<html>log in</html>", "text/html"),
    "an empty object": (200, b"{}", "application/json"),
    "nothing": (200, b"", "text/plain"),
    "a page that is not there": (404, b"<html>Not Found</html>", "text/html"),
    "a path that is not there": (404, b"404 page not found\n", "text/plain"),
}
LOCKS = (
    "dynamodb://us-east-1/locks/x?endpoint={at}",
    "azure-lease://locks/x?account_url={at}/devstoreaccount1",
)
TABLES = ("s3://b/t", "gs://b/t", "az://b/t", "s3://b/x.tfstate")


@pytest.fixture(params=list(PAGES))
def at(request: pytest.FixtureRequest) -> Iterator[str]:
    with answering(*PAGES[request.param]) as address:
        yield address


@contextmanager
def answering(status: int, body: bytes, kind: str) -> Iterator[str]:
    """The address of a server that has one answer to everything."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            self.send_header("Content-Type", kind)
            if status != 204:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_POST = do_PUT = do_HEAD = do_DELETE = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """Nothing: a client that has seen enough closes the connection."""

    server = Server(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("words", "url"),
    [("lock show", each) for each in LOCKS + TABLES] + [("incident", each) for each in LOCKS],
)
def test_no_lock_is_shown_as_free_by_an_answer_of_something_else(
    at: str, url: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    there = [] if url in LOCKS else ["--endpoint", at]
    assert main([*words.split(), url.format(at=at), *there, "--timeout-s", "1"]) == 3
    said = capsys.readouterr()
    assert "free" not in said.out and len(said.err.splitlines()) == 1


@pytest.mark.parametrize("url", LOCKS)
def test_no_service_lock_is_acquired_by_an_answer_of_something_else(
    at: str, url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["lock", "acquire", url.format(at=at), "--timeout", "0", "--", "echo", "RAN"]
    assert main(words) == 3
    said = capfd.readouterr()
    assert "RAN" not in said.out and "Traceback" not in said.err


@pytest.mark.parametrize("url", LOCKS)
def test_a_renewal_or_a_release_that_something_else_answers_is_not_done(at: str, url: str) -> None:
    lock: Any = open_lock(url.format(at=at))
    lock._versions = deque(["v1"])
    for act in (lock._beat, lock._give_back):
        with pytest.raises((StoreError, GrantOver)):
            act(ServiceGrant("00000000-0000-0000-0000-000000000001", 1))
    lock.close()


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_a_store_takes_no_answer_of_something_else_for_an_absent_object_or_an_empty_listing(
    at: str, scheme: str
) -> None:
    store = open_store(f"{scheme}://b/t", endpoint=at)

    def read() -> ReadAnswer:
        return store.get("k")

    def listed() -> list[object]:
        return list(store.list(""))

    for ask in (read, listed, lambda: store.versions("k")):
        try:
            answer = ask()
        except StoreError:
            continue
        assert ask is read and not isinstance(answer, Missing)


def test_a_deletion_is_done_by_an_empty_answer_of_any_type_and_not_by_a_page() -> None:
    """A server that is built on Werkzeug, as moto, calls its empty answers HTML."""
    for status, body, done in ((204, b"", Applied), (200, b"<html>log in</html>", Unknown)):
        with answering(status, body, "text/html; charset=utf-8") as address:
            assert isinstance(open_store("s3://b/t", endpoint=address).delete("k"), done)


@pytest.mark.parametrize(("words", "right"), [
    ("lock show {url}", "GetItem"), ("lock acquire {url} --timeout 0 -- true", "DescribeTable"),
])  # fmt: skip
def test_a_denied_request_of_dynamodb_names_the_right_that_it_needs(
    words: str, right: str, capsys: pytest.CaptureFixture[str]
) -> None:
    denied = b'{"__type": "com.amazon.coral.service#AccessDeniedException", "Message": "no"}'
    with answering(400, denied, "application/x-amz-json-1.0") as at:
        assert main(words.format(url=LOCKS[0].format(at=at)).split()) == 3
    said = capsys.readouterr().err
    assert f"need dynamodb:{right} on the table (datasets" in said and said.count("\n") == 1
