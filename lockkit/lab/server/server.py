"""The server itself: three listeners on one loop, each request one transaction."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import sys
import threading
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Protocol

from lockkit.clock import Clock
from lockkit.events import Event
from lockkit.lab.server import ledger
from lockkit.lab.server.call import (
    DialectError,
    DialectRequest,
    Reply,
    RequestEffect,
    call_of,
    http_date,
)
from lockkit.lab.server.http import Connection, Handler, HttpRequest, HttpResponse, Later
from lockkit.lab.server.ledger import RequestLedger
from lockkit.lab.server.objects import DatabaseBusy, DiskFull, Objects
from lockkit.lab.server.policy import AccessPolicy
from lockkit.lab.server.profiles import PROFILES, ServerProfile
from lockkit.lab.server.sigv4 import Credentials, verify

ADDRESSES = ("s3", "gcs", "azure")
PORT_MAX = 65_535
LATENCY_MS_MAX = 60_000
BODY_BYTES_MAX = 512 << 20
RECEIVED_BYTES_MAX = 256 * 1024
SAVE_INTERVAL_S = 0.25
SHUTDOWN_S_MAX = 1.0
ANSWER_S_MAX = 30.0
_LOOPBACK = re.compile(r"localhost|::1|127\.\d{1,3}\.\d{1,3}\.\d{1,3}")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Dialect(Protocol):
    def answer(self, call: DialectRequest) -> Reply: ...

    def refuse(self, call: DialectRequest, refusal: DialectError, deed: RequestEffect) -> Reply: ...

    def request_ids(self, call: DialectRequest) -> dict[str, str]: ...


class Emulator:
    """The server, in a thread of this process. `s3`, `gcs` and `azure` are its addresses.

    `port` is the S3 address's; the others follow it (0: any that are free). `latency_ms` is added
    to every request, half before it is applied and half after. With `credentials` the S3 address
    wants requests signed by them; the other two take any. Buckets are made on first use, unless
    `strict_buckets`. `policy` applies to each address whose kind of document it has.
    `on_request` is called from the server's thread and must not wait. Raises `ValueError` for an
    unknown profile, an impossible port or latency, or an address that others could reach,
    `OSError` if the port or the file cannot be used.

    :param db: the SQLite file; by default in memory.
    :param profile: the provider to imitate, one of `PROFILES`.
    :param port: the S3 address's; the other two follow it. 0: any free ports.
    :param host: the address to listen on.
    :param allow_remote: required for a `host` that other machines can reach.
    :param latency_ms: added to each request, in milliseconds.
    :param credentials: the key pair whose signatures the S3 address verifies; None: any.
    :param policy: access rights to enforce; None: everything is allowed.
    :param strict_buckets: whether a missing bucket gets a 404 instead of being made.
    :param clock: the source of time; tests replace it.
    :param on_request: called with an event for each request.
    """

    def __init__(
        self,
        *,
        db: str = ":memory:",
        profile: str = "aws",
        port: int = 0,
        host: str = "127.0.0.1",
        allow_remote: bool = False,
        latency_ms: float = 0.0,
        credentials: Credentials | None = None,
        policy: AccessPolicy | None = None,
        strict_buckets: bool = False,
        clock: Clock | None = None,
        on_request: Callable[[Event], None] | None = None,
    ) -> None:
        if profile not in PROFILES:
            raise ValueError(f"no profile {profile!r}; there are {', '.join(PROFILES)}")
        if not _LOOPBACK.fullmatch(host) and not allow_remote:
            raise ValueError(
                f"{host} can be reached by other machines, and this server is for this one only; "
                "pass allow_remote (--allow-remote) if you want that"
            )
        if not 0 <= latency_ms <= LATENCY_MS_MAX:
            raise ValueError(f"no latency of {latency_ms:g} ms: choose 0 to {LATENCY_MS_MAX} ms")
        last = PORT_MAX - len(ADDRESSES) + 1
        if not 0 <= port <= last:
            raise ValueError(
                f"no port {port}: the S3 address may have 1 to {last}, since the others follow it "
                "(0: any that are free)"
            )
        self.profile: ServerProfile = PROFILES[profile]
        self.latency_ms = max(latency_ms, 2 * self.profile.race_ms)
        self.on_request = on_request
        self.s3 = self.gcs = self.azure = ""
        self._db, self._port, self._host = str(db), port, host
        self._credentials, self._policy, self._strict = credentials, policy, strict_buckets
        self._clock = clock or Clock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._failed: BaseException | None = None
        self._open: set[Connection] = set()
        self._kept: list[Event] = []
        self._calls = 0

    # --- life ------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        at = f"{self.s3} {self.gcs} {self.azure}" if self._loop else "not running"
        return f"<Emulator {self.profile.name}: {at}>"

    def __enter__(self) -> Emulator:
        self._thread = threading.Thread(target=self._serve, name="lockkit-emulator", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._failed is not None:
            raise self._failed
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(timeout=SHUTDOWN_S_MAX + 10)
            self._loop = None

    def _serve(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            if self._started.is_set():
                raise
            self._failed = error  # raised again by the thread that waits
            self._started.set()

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            self.objects = Objects(self._db, self._clock, strict_buckets=self._strict)
        except sqlite3.Error as error:
            raise OSError(f"cannot keep objects in {self._db}: {error}") from None
        keep = ledger.KEPT_IN_MEMORY if self._db == ":memory:" else None
        self._ledger = RequestLedger(self.objects, keep=keep)
        listeners: list[asyncio.Server] = []
        buffer = bytearray(RECEIVED_BYTES_MAX)
        try:
            for offset, (name, dialect) in enumerate(self._dialects().items()):
                handler = self._handler(dialect, self._credentials if offset == 0 else None)
                port = self._port + offset if self._port else 0
                listener = await self._loop.create_server(
                    partial(Connection, handler, self._open, buffer, BODY_BYTES_MAX),
                    "127.0.0.1" if self._host == "localhost" else self._host, port, backlog=512,
                )  # fmt: skip
                listeners.append(listener)
                host = f"[{self._host}]" if ":" in self._host else self._host
                setattr(self, name, f"http://{host}:{listener.sockets[0].getsockname()[1]}")
            saver = asyncio.create_task(self._save_now_and_then())
            self._started.set()
            await self._stop.wait()
            saver.cancel()
        finally:
            for listener in listeners:
                listener.close()
            under_way = [task for each in list(self._open) if (task := each.close())]
            if under_way:
                await asyncio.wait(under_way, timeout=SHUTDOWN_S_MAX)
            self._save()
            self._kept = self._ledger.read()
            self.objects.close()

    def _dialects(self) -> dict[str, Dialect]:
        from lockkit.lab.server.azure import Azure
        from lockkit.lab.server.gcs import Gcs
        from lockkit.lab.server.role_checks import RoleCheckedAzure, RoleCheckedGcs
        from lockkit.lab.server.s3 import S3

        on, policy = (self.objects, self.profile), self._policy
        google, azure = (policy.google, policy.azure) if policy else (None, None)
        return {
            "s3": S3(*on, policy),
            "gcs": RoleCheckedGcs(*on, google) if google else Gcs(*on),
            "azure": RoleCheckedAzure(*on, azure) if azure else Azure(*on),
        }

    # --- one request -----------------------------------------------------------------------------

    def _handler(self, dialect: Dialect, credentials: Credentials | None) -> Handler:
        def decide(request: HttpRequest, began_ms: float) -> HttpResponse:
            self._calls += 1
            id = f"{int(began_ms):012X}{self._calls & 0xFFFF:04X}"
            call = call_of(
                request.method, request.target, request.headers, request.body, id=id, at_ms=began_ms
            )
            reply = self._decide(dialect, call, began_ms, credentials)
            reply.headers |= dialect.request_ids(call)
            return self._response(reply)

        def decide_later(request: HttpRequest, began_ms: float) -> Later:
            """Without a coroutine, which takes a tenth of the time of a request."""
            loop, half_s = asyncio.get_running_loop(), self.latency_ms / 2000
            later: Later = loop.create_future()
            loop.call_later(half_s, lambda: loop.call_later(
                half_s, later.set_result, decide(request, began_ms)
            ))  # fmt: skip
            return later

        def handle(request: HttpRequest) -> HttpResponse | Later:
            if request.target.startswith("/__lockkit/"):
                return self._control(request.target)
            began_ms = self._clock.stamp_ms()
            return (decide_later if self.latency_ms else decide)(request, began_ms)

        return handle

    def _decide(
        self,
        dialect: Dialect,
        call: DialectRequest,
        began_ms: float,
        credentials: Credentials | None,
    ) -> Reply:
        """Answer a request; a change is recorded in the same transaction."""

        def recorded(reply: Reply) -> list[Event]:
            return ledger.events(call, reply, began_ms, self._clock.stamp_ms())

        changed = False
        try:
            if credentials is not None:
                verify(call, credentials, began_ms)
            if call.method in ("GET", "HEAD"):
                reply = dialect.answer(call)
                events = recorded(reply)
            else:
                with self.objects.writing():
                    reply = dialect.answer(call)
                    events = recorded(reply)
                    changed = any(each["applied"] for each in events)
                    if changed:
                        self._ledger.save(events)
        except Exception as error:  # noqa: BLE001 - reported on stderr, and to the client as a 5xx
            changed = False
            reply = dialect.refuse(
                call, self._fault(call, error), RequestEffect(call.method.lower())
            )
            events = recorded(reply)
        if changed:
            self._ledger.saved()
        else:
            self._ledger.later(events)
        self._ledger.notify(events, self.on_request)
        return reply

    def _fault(self, call: DialectRequest, error: Exception) -> DialectError:
        """The answer if this server itself failed: nothing was applied."""
        match error:
            case DialectError():
                return error
            case DiskFull():
                _complain(f"{self._db}: {error}; {call.method} {call.path} was not applied")
                return DialectError(507, "InsufficientStorage", "The server's disk is full.")
            case DatabaseBusy():
                return DialectError(
                    503, "SlowDown", "Please reduce your request rate.", "throttled"
                )
            case _:
                _complain(f"{call.method} {call.path}: {error!r}")
                return DialectError(500, "InternalError", "We encountered an internal error.")

    def _response(self, reply: Reply) -> HttpResponse:
        headers = {"Date": http_date(self._clock.stamp_ms()), "Server": "lockkit"}
        for name, value in reply.headers.items():
            if _is_name(name):  # one dialect's metadata may be no header in another
                headers[name] = value if value.isascii() and value.isprintable() else _shown(value)
        return HttpResponse(reply.status, headers, reply.body, reply.length)

    def _control(self, target: str) -> HttpResponse:
        path, _, query = target.partition("?")
        if path == "/__lockkit/health":
            addresses = {"s3": self.s3, "gcs": self.gcs, "azure": self.azure}
            return HttpResponse(
                200, {"Content-Type": "application/json"}, json.dumps(addresses).encode()
            )
        if path == "/__lockkit/requests":
            since = re.fullmatch("since=([0-9]{1,15})", query)
            lines = (each.to_json() + "\n" for each in self._read(int(since[1]) if since else 0))
            return HttpResponse(
                200, {"Content-Type": "application/x-ndjson"}, "".join(lines).encode()
            )
        return HttpResponse(
            404, {}, b"there are /__lockkit/health and /__lockkit/requests?since=N\n"
        )

    # --- the record ------------------------------------------------------------------------------

    def requests(self, since: int = 0) -> list[Event]:
        """Every request after the first `since`, in the order of their decisions."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return self._kept[since:]
        if threading.current_thread() is self._thread:
            return self._read(since)

        async def read() -> list[Event]:
            return self._read(since)

        return asyncio.run_coroutine_threadsafe(read(), loop).result(ANSWER_S_MAX)

    def _read(self, since: int) -> list[Event]:
        self._save()
        return self._ledger.read(since)

    async def _save_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(SAVE_INTERVAL_S)
            self._save()

    def _save(self) -> None:
        try:
            self._ledger.save([])
            self._ledger.saved()
        except DatabaseBusy:
            return
        except DiskFull as full:
            _complain(f"{self._db}: {full}; {self._ledger.drop()} requests are not in the record")


@lru_cache(maxsize=1024)
def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def _shown(value: str) -> str:
    text = value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return _CONTROL.sub(" ", text)


def _complain(text: str) -> None:
    sys.stderr.write(f"lockkit serve: {text}\n")
    sys.stderr.flush()
