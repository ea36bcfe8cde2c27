"""An object server that speaks S3, Google Cloud Storage and Azure to the real SDKs.

One SQLite file, three listeners. Every version is kept and every request recorded as a `request`
event: that record is the truth lane of every picture. `with Emulator() as server:` runs it in a
thread; `lockkit serve` as a process. Loopback only unless told otherwise.
"""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from aiohttp import web

from lockkit.clock import Clock
from lockkit.emulator.call import Call, Deed, Refusal, Reply, attempt_in, call_of, http_date
from lockkit.emulator.objects import DiskFull, Objects
from lockkit.emulator.profiles import PROFILES, Profile
from lockkit.history import STORE, Event, event, parse

BODY_BYTES_MAX = 512 << 20
RECORD_MAX = 200_000
"""Requests remembered; older ones are forgotten (in a file they stay in the table)."""
_CLIENT = re.compile(r"lockkit-client/([^\s;()]+)")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Dialect(Protocol):
    def answer(self, call: Call) -> Reply: ...

    def refuse(self, call: Call, refusal: Refusal, deed: Deed) -> Reply: ...


class Emulator:
    """The server, in a thread of this process. `s3`, `gcs` and `azure` are its addresses.

    `latency_ms` is added to every request, half before it is applied and half after. Raises
    `ValueError` for an unknown profile or an address that others could reach.
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
        clock: Clock | None = None,
        on_request: Callable[[Event], None] | None = None,
    ) -> None:
        if profile not in PROFILES:
            raise ValueError(f"no profile {profile!r}; there are {', '.join(PROFILES)}")
        if host not in _LOOPBACK and not allow_remote:
            raise ValueError(
                f"{host} can be reached by other machines, and this server takes any credentials; "
                "say allow_remote (--allow-remote) if that is meant"
            )
        self.profile: Profile = PROFILES[profile]
        self.latency_ms = latency_ms
        self.on_request = on_request
        self.s3 = self.gcs = self.azure = ""
        self._db, self._port, self._host = db, port, host
        self._clock = clock or Clock()
        self._record: deque[Event] = deque(maxlen=RECORD_MAX)
        self._forgotten = 0
        self._unsaved: list[str] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._objects: Objects | None = None

    # --- life ------------------------------------------------------------------------------------

    def __enter__(self) -> Emulator:
        answering: list[BaseException | None] = []
        ready = threading.Event()
        self._thread = threading.Thread(
            target=self._serve, args=(ready, answering), name="lockkit-emulator", daemon=True
        )
        self._thread.start()
        ready.wait()
        if answering:
            assert answering[0] is not None
            raise answering[0]
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(timeout=10)
            self._loop = None

    def _serve(self, ready: threading.Event, failed: list[BaseException | None]) -> None:
        try:
            asyncio.run(self._main(ready))
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            if ready.is_set():
                raise
            failed.append(error)
            ready.set()

    async def _main(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._objects = Objects(self._db, self._clock)
        for line in self._objects.recorded(RECORD_MAX):
            self._record.append(parse(line))
        runners = []
        try:
            for offset, (name, dialect) in enumerate(self._dialects().items()):
                server = web.Server(
                    self._handler(dialect), request_factory=_request, auto_decompress=False
                )
                runner = web.ServerRunner(server, access_log=None, handle_signals=False)
                await runner.setup()
                runners.append(runner)
                port = self._port + offset if self._port else 0
                site = web.TCPSite(runner, self._host, port, backlog=512)
                await site.start()
                host = f"[{self._host}]" if ":" in self._host else self._host
                setattr(self, name, f"http://{host}:{runner.addresses[0][1]}")
            saver = asyncio.create_task(self._save_now_and_then())
            ready.set()
            await self._stop.wait()
            saver.cancel()
        finally:
            for runner in runners:
                await runner.cleanup()
            self._save()
            self._objects.close()

    def _dialects(self) -> dict[str, Dialect]:
        from lockkit.emulator.azure import Azure
        from lockkit.emulator.gcs import Gcs
        from lockkit.emulator.s3 import S3

        objects, profile = self._objects, self.profile
        assert objects is not None
        return {
            "s3": S3(objects, profile),
            "gcs": Gcs(objects, profile),
            "azure": Azure(objects, profile),
        }

    # --- one request -------------------------------------------------------------------------------

    def _handler(self, dialect: Dialect) -> Callable[[web.BaseRequest], Any]:
        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            began_ms = self._now_ms()
            if request.headers.get("Expect", "").lower() == "100-continue":
                await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            if request.raw_path.startswith("/__lockkit/"):
                return self._control(request)
            headers = {name.lower(): value for name, value in request.headers.items()}
            if int(headers.get("content-length") or 0) > BODY_BYTES_MAX:
                return web.Response(
                    status=413, text=f"at most {BODY_BYTES_MAX} bytes in one request"
                )
            body = await request.read() if request.can_read_body else b""
            call = call_of(request.method, request.raw_path, headers, body)
            if self.latency_ms:
                await asyncio.sleep(self.latency_ms / 2000)
            reply = self._answer(dialect, call)
            self._note(call, reply, began_ms)
            if self.latency_ms:
                await asyncio.sleep(self.latency_ms / 2000)
            return _response(call, reply)

        return handle

    def _answer(self, dialect: Dialect, call: Call) -> Reply:
        try:
            return dialect.answer(call)
        except DiskFull as full:
            print(f"lockkit serve: {self._db}: {full}; nothing was applied", file=sys.stderr)
            refusal = Refusal(507, "InsufficientStorage", f"the server's disk is full: {full}")
            return dialect.refuse(call, refusal, Deed(call.method.lower()))
        except Exception as error:  # noqa: BLE001 - a fault of ours must not look like a store's
            print(f"lockkit serve: {call.method} {call.path}: {error!r}", file=sys.stderr)
            refusal = Refusal(500, "InternalError", f"a fault of this server: {error!r}")
            return dialect.refuse(call, refusal, Deed(call.method.lower()))

    def _control(self, request: web.BaseRequest) -> web.Response:
        if request.path == "/__lockkit/health":
            return web.json_response({"s3": self.s3, "gcs": self.gcs, "azure": self.azure})
        if request.path == "/__lockkit/requests":
            since = request.query.get("since", "0")
            found = self.requests(int(since) if since.isdigit() else 0)
            text = "".join(each.to_json() + "\n" for each in found)
            return web.Response(text=text, content_type="application/x-ndjson")
        return web.Response(status=404, text="there are /__lockkit/health and /__lockkit/requests")

    # --- the record ----------------------------------------------------------------------------------

    def requests(self, since: int = 0) -> list[Event]:
        """Every request from the `since`-th on, in the order in which they were decided."""
        known = list(self._record)
        return known[max(0, since - self._forgotten) :]

    def _note(self, call: Call, reply: Reply, began_ms: float) -> None:
        deed = reply.deed or Deed(call.method.lower())
        named = _CLIENT.search(call.headers.get("user-agent", ""))
        attempt, fields = attempt_in(deed.body if deed.body is not None else None)
        if not attempt and deed.method == "put" and not deed.applied:
            attempt, _ = attempt_in(call.body)
        more: dict[str, Any] = {"bucket": deed.bucket}
        if deed.body is not None:
            more["size"] = len(deed.body)
        if fields is not None and ".hoodie/" in deed.key and len(deed.body or b"") <= 4096:
            more["body"] = fields
        noted = event(
            self._now_ms(), STORE, "request",
            client=named[1] if named else "", method=deed.method, key=deed.key,
            condition=deed.condition, status=reply.status, answer=deed.answer,
            applied=deed.applied, before=deed.before, version=deed.version, attempt=attempt,
            began_ms=began_ms, **more,
        )  # fmt: skip
        if len(self._record) == RECORD_MAX:
            self._forgotten += 1
        self._record.append(noted)
        if self._db != ":memory:":
            self._unsaved.append(noted.to_json())
        if self.on_request is not None:
            self.on_request(noted)

    async def _save_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(0.25)
            self._save()

    def _save(self) -> None:
        lines, self._unsaved = self._unsaved, []
        if not lines or self._objects is None:
            return
        try:
            self._objects.record(lines)
        except DiskFull as full:
            print(f"lockkit serve: the request record is incomplete: {full}", file=sys.stderr)

    def _now_ms(self) -> float:
        return self._clock.stamp_ms()


def _request(
    message: Any, payload: Any, protocol: Any, writer: Any, task: asyncio.Task[None]
) -> web.BaseRequest:
    return web.BaseRequest(
        message, payload, protocol, writer, task, protocol._loop,
        client_max_size=BODY_BYTES_MAX,
    )  # fmt: skip


def _response(call: Call, reply: Reply) -> web.Response:
    headers = {"Date": http_date(Clock().wall_ms()), "Server": "lockkit", **reply.headers}
    if call.method == "HEAD":
        length = len(reply.body) if reply.length is None else reply.length
        return web.Response(status=reply.status, headers=headers | {"Content-Length": str(length)})
    return web.Response(status=reply.status, headers=headers, body=reply.body)
