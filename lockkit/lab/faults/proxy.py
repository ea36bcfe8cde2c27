"""A reverse proxy that carries out faults in front of any HTTP store, below every SDK's retries.

It passes the bytes of requests and answers through as they are, the Host header too (signatures
stay valid), and never sends anything twice. Loopback only.

    with Proxy("http://127.0.0.1:9000") as proxy:
        proxy.inject(Fault("drop", operation="put", key="table_lock.json"))   # the next one
        ... a client with endpoint=proxy.url ...
        proxy.faults          # what was done, as `fault` events
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from asyncio import IncompleteReadError, StreamReader, StreamWriter
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import urlsplit

from lockkit.errors import StatedError
from lockkit.events import Event
from lockkit.lab.faults import dialects, wire
from lockkit.lab.faults.armed import (
    ArmedFaults,
    DelayClient,
    EndRequest,
    RelayAnswer,
    SendLater,
    SendRequest,
    SwallowAnswer,
)
from lockkit.lab.faults.plan import Fault, FaultError, FaultPlan, RequestFacts
from lockkit.lab.faults.upstream import Unreachable, Upstream
from lockkit.lab.faults.wire import MessageHead, WireError

CONTROL = "/__lockkit/faults"
LOOPBACK = "127.0.0.1"
BODY_BYTES_MAX = 64 * 1024 * 1024
IDLE_S_MAX = 300.0
START_S_MAX = 10.0
REFUSED_BODY_S_MAX = 5.0


class ProxyError(StatedError):
    """The proxy cannot run."""


class Proxy(ArmedFaults):
    """A store with faults: `url` in place of the upstream's, `inject()` sets the next fault.

    `with Proxy(...)` runs it in a daemon thread; inside an event loop use `await start()` and
    `await stop()`. A late request that is still waiting when the proxy stops is never delivered.

    :param upstream: the store's `http://` address.
    :param plan: the faults; None: none until `inject` is called.
    :param port: to listen on; 0: any free port.
    :param latency_ms: added to each request, in milliseconds.
    :param body_bytes_max: the longest request body, in bytes.
    :param on_fault: called with each fault's event.
    :raises ProxyError: if `upstream` is no `http://` address.
    """

    def __init__(
        self,
        upstream: str,
        *,
        plan: FaultPlan | None = None,
        port: int = 0,
        latency_ms: float = 0,
        body_bytes_max: int = BODY_BYTES_MAX,
        on_fault: Callable[[Event], None] | None = None,
    ) -> None:
        parts = urlsplit(upstream)
        if parts.scheme != "http" or not parts.hostname:
            raise ProxyError(
                f"the upstream {upstream!r}", "is not an http:// address (over TLS the bytes "
                "cannot be passed through as they are)", "give one such as http://127.0.0.1:9000",
            )  # fmt: skip
        super().__init__(plan, on_fault=on_fault)
        self.upstream = upstream
        self.latency_ms = latency_ms
        self._address = (parts.hostname, parts.port or 80)
        self._path = parts.path.rstrip("/")
        self._port = port
        self._body_bytes_max = body_bytes_max
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        self._stop_requested: asyncio.Event

    # --- its user's side; any thread -----------------------------------------------------------

    @property
    def url(self) -> str:
        """What clients use in place of the upstream's URL; its path is the upstream's."""
        if self._server is None:
            raise ProxyError("the proxy", "is not running", "use it as `with Proxy(...) as proxy`")
        return f"http://{LOOPBACK}:{self._port}{self._path}"

    def _where(self) -> str:
        return f" {self.url if self._server else 'not running'} before {self.upstream}"

    # --- running ---------------------------------------------------------------------------------

    def __enter__(self) -> Proxy:
        started = threading.Event()
        failed: list[BaseException] = []
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(started, failed)),
            name="lockkit-proxy",
            daemon=True,
        )
        self._thread.start()
        if not started.wait(START_S_MAX):
            raise ProxyError("the proxy", f"did not start within {START_S_MAX:.0f} s", "try again")
        if failed:
            self._thread.join()
            raise failed[0]
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the thread that `with` started, and cut its connections. Safe to call twice."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._loop.call_soon_threadsafe(self._stop_requested.set)
            thread.join()

    async def _run(self, started: threading.Event, failed: list[BaseException]) -> None:
        self._loop, self._stop_requested = asyncio.get_running_loop(), asyncio.Event()
        try:
            await self.start()
        except ProxyError as error:
            failed.append(error)
            return
        finally:
            started.set()
        await self._stop_requested.wait()
        await self.stop()

    async def start(self) -> None:
        """Listen, in the running loop."""
        try:
            self._server = await asyncio.start_server(
                self._accepted, LOOPBACK, self._port, limit=2 * wire.HEAD_BYTES_MAX
            )
        except OSError as error:
            raise ProxyError(
                "the proxy", f"cannot listen on {LOOPBACK}:{self._port}: {error.strerror}",
                "port=0 takes any free port",
            ) from None
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening, cut all connections, and discard late requests."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _accepted(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._spawn(self._converse(reader, writer))

    # --- one client's connection -----------------------------------------------------------------

    async def _converse(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Requests of one connection, in turn, over one connection of its own to the upstream."""
        upstream = Upstream(self._address)
        try:
            while True:
                async with asyncio.timeout(IDLE_S_MAX):
                    head = await wire.read_head(reader)
                if head is None or not await self._exchange(head, reader, writer, upstream):
                    break
        except WireError as error:
            await _refuse(error, reader, writer)
        except (ConnectionError, IncompleteReadError, TimeoutError):
            pass  # one of the two sides has gone; the other sees the closed connection
        finally:
            upstream.close()
            writer.close()

    async def _exchange(
        self, head: MessageHead, reader: StreamReader, writer: StreamWriter, upstream: Upstream
    ) -> bool:
        """Pass on one request; return whether the connection can take another."""
        framing, body = await self._read_request(head, reader, writer)
        payload = wire.unframed(body, framing)
        if head.path == CONTROL:
            writer.write(self._control(head, payload))
            await writer.drain()
            return not head.last
        request = dialects.describe(head, payload, uploads=self.uploads)
        sent = head.without("expect") + body
        await asyncio.sleep(self.latency_ms / 2000)
        course, answered = self.course(request), None
        step = next(course)
        while not isinstance(step, RelayAnswer | EndRequest):
            match step:
                case SendLater(delay_s):
                    self._spawn(self._deliver(request, sent, delay_s))
                case DelayClient(delay_s):
                    await asyncio.sleep(delay_s)
                case SendRequest():
                    try:
                        answered = await upstream.ask(sent)
                    except Unreachable as error:
                        return await _unreachable(error, head, writer)
                    self.remember_upload(request, answered.headers)
                case SwallowAnswer():
                    assert answered is not None
                    await upstream.swallow(answered, method=head.method)
            step = course.send(0 if answered is None else answered.status)
        if isinstance(step, EndRequest):
            return await _end(step.fault, head, reader, writer) and not head.last
        assert answered is not None
        await asyncio.sleep(self.latency_ms / 2000)
        return await upstream.relay(answered, writer, method=head.method) and not head.last

    async def _read_request(
        self, head: MessageHead, reader: StreamReader, writer: StreamWriter
    ) -> tuple[wire.Framing, bytes]:
        """Read the whole body with its framing; 413 if it is too big."""
        framing = wire.framing_of_request(head)
        most = self._body_bytes_max
        too_big = WireError(413, f"the proxy holds bodies of at most {most} bytes (body_bytes_max)")
        if isinstance(framing, wire.FixedLength) and framing.length > most:
            raise too_big
        if head.headers.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        pieces, size = [], 0
        async with asyncio.timeout(IDLE_S_MAX):
            async for piece in wire.read_body(reader, framing):
                pieces.append(piece)
                size += len(piece)
                if size > most:
                    raise too_big
        return framing, b"".join(pieces)

    async def _deliver(self, request: RequestFacts, sent: bytes, delay_s: float) -> None:
        """Send a late request to the store, long after its client has given up."""
        await asyncio.sleep(delay_s)
        upstream = Upstream(self._address)
        try:
            answered = await upstream.ask(sent)
            await upstream.swallow(answered, method=request.method)
            end = f"status {answered.status}"
        except (
            Unreachable,
            WireError,
            ConnectionError,
            IncompleteReadError,
            TimeoutError,
        ) as error:
            end = f"not answered: {error}"
        finally:
            upstream.close()
        self._delivered(request, end)

    # --- control over HTTP ----------------------------------------------------------------------

    def _control(self, head: MessageHead, payload: bytes) -> bytes:
        """GET the armed faults and past ones, POST a fault or a plan, DELETE all armed faults."""
        match head.method:
            case "GET":
                pass
            case "POST":
                try:
                    self.inject(FaultPlan.parse(payload))
                except FaultError as error:
                    return _json_answer(400, {"error": str(error)})
            case "DELETE":
                self.clear()
            case _:
                return _json_answer(
                    405, {"error": "GET, POST or DELETE"}, Allow="GET, POST, DELETE"
                )
        return _json_answer(200, {"upstream": self.upstream, **self.state()})


def _json_answer(status: int, said: Any, **headers: str) -> bytes:
    body = json.dumps(said).encode() + b"\n"
    return wire.answer(status, body, "application/json", **headers)


# --- what a client is given -----------------------------------------------------------------------


async def _end(fault: Fault, head: MessageHead, reader: StreamReader, writer: StreamWriter) -> bool:
    """End a client's request as the fault says; return whether its connection stays open."""
    match fault.ending or fault.what:
        case "drop":
            return False  # closed before any byte of an answer: FIN
        case "reset":
            _reset(writer)
            return False
        case "hang":
            assert fault.cap_s is not None
            await _until_gone(reader, fault.cap_s)
            return False
        case "status":
            writer.write(dialects.fault_answer(fault, head))
            await writer.drain()
            return True
        case other:
            raise AssertionError(f"no way to do {other}")


async def _unreachable(error: Unreachable, head: MessageHead, writer: StreamWriter) -> bool:
    spoken = dialects.dialect(head)
    writer.write(dialects.error_answer(spoken, 502, str(error), method=head.method))
    await writer.drain()
    return not head.last


# --- sockets ------------------------------------------------------------------------------------


def _reset(writer: StreamWriter) -> None:
    """Break the connection with RST: no linger, so closing discards instead of finishing."""
    connection = writer.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _until_gone(reader: StreamReader, cap_s: float) -> None:
    """Send nothing until the client ends the connection, or for `cap_s`."""
    try:
        async with asyncio.timeout(cap_s):
            while await reader.read(wire.PIECE_BYTES):
                pass
    except (TimeoutError, ConnectionError):
        pass


async def _refuse(error: WireError, reader: StreamReader, writer: StreamWriter) -> None:
    """Answer with the reason, then read the rest of the request: an early close (RST) loses it."""
    writer.write(
        _json_answer(error.status, {"error": f"lockkit proxy: {error.why}"}, Connection="close")
    )
    try:
        await writer.drain()
        writer.write_eof()
    except (OSError, RuntimeError):
        return
    await _until_gone(reader, REFUSED_BODY_S_MAX)
