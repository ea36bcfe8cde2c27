"""SDK connections that keep the deadline of the call that uses them.

boto3, google-cloud-storage and azure-storage-blob all send through urllib3. Its pools get
connections whose name resolution, connect, TLS handshake, request and answer together take no
longer than the call may.
"""

from __future__ import annotations

import ipaddress
import math
import re
import socket
import threading
import zlib
from functools import cache
from typing import Any

from urllib3.connection import HTTPConnection
from urllib3.exceptions import HTTPError, NewConnectionError
from urllib3.util.connection import allowed_gai_family

from lockkit.stores.deadline import Deadline, DeadlinePassed, current
from lockkit.stores.timed_socket import OVERHEAD_BYTES_MAX, AnswerTooLong, TimedSocket

INFLATED_BYTES_MAX = 32 * 1024 * 1024
"""Limit of a decompressed answer; a page of a listing has some MB."""
INFLATE_BYTES = 256 * 1024
"""How much is decompressed between two checks of the deadline."""
GZIP_MAGIC = b"\x1f\x8b"
ENCODINGS = ("gzip", "x-gzip", "deflate")


def keep_deadlines(pools: dict[str, Any]) -> None:
    """Replace each pool class in a manager's table (by scheme) with one that keeps deadlines."""
    for scheme, pool in pools.items():
        pools[scheme] = _timed_pool(pool)


def keep_deadlines_of(session: Any) -> None:
    """The same for all adapters that a `requests.Session` has now, and their proxies."""
    for adapter in session.adapters.values():
        if hasattr(adapter, "poolmanager"):
            _bind(adapter.poolmanager)
            adapter.proxy_manager_for = _bound(adapter.proxy_manager_for)


def _bind(manager: Any) -> Any:
    table = dict(manager.pool_classes_by_scheme)  # by default it is one that all managers share
    keep_deadlines(table)
    manager.pool_classes_by_scheme = table
    return manager


def _bound(make: Any) -> Any:
    return lambda *args, **options: _bind(make(*args, **options))


@cache
def _timed_pool(pool: Any) -> Any:
    if issubclass(pool.ConnectionCls, _Timed):
        return pool
    connection = type(pool.ConnectionCls.__name__, (_Timed, pool.ConnectionCls), {})
    return type(pool.__name__, (pool,), {"ConnectionCls": connection})


class _Timed(HTTPConnection):
    """Mixed into a pool's connection class, in front of it."""

    def request(self, *args: Any, **options: Any) -> None:
        call = current()
        if call is not None:
            call.begin()
            call.left_s()
        if isinstance(self.sock, TimedSocket):
            self.sock.begin(call)
        super().request(*args, **options)

    def getresponse(self) -> Any:
        sock = self.sock  # the connection drops it if the answer closes the connection
        answer = super().getresponse()
        if isinstance(sock, TimedSocket):
            sock.answered(answer.status, answer.length_remaining)
        encoding = answer.headers.get("content-encoding", "").strip().lower()
        if encoding not in ("", "identity"):
            succeeded = 200 <= answer.status < 300
            length = INFLATED_BYTES_MAX if succeeded else OVERHEAD_BYTES_MAX
            # Replaces urllib3's decoder, which has neither a length limit nor a deadline.
            decoder: Any = _Inflater(encoding, length, current())
            answer._decoder = decoder
        return answer

    def putheader(self, header: Any, *values: Any) -> None:
        if str(header).lower() == "accept-encoding":
            values = tuple(accepted_encodings(_text(value)) for value in values)
        super().putheader(header, *values)

    def connect(self) -> None:
        call = current()
        try:
            super().connect()
        except (OSError, HTTPError):
            if call is not None:
                call.left_s()  # if the call's own time is over, that is the error
            raise
        self.sock: Any = TimedSocket(self.sock, call)

    def _new_conn(self) -> socket.socket:
        call = current()
        if call is None:
            return super()._new_conn()
        allowed_s = self.timeout if isinstance(self.timeout, int | float) else math.inf
        host = self._dns_host
        why: HTTPError = NewConnectionError(self, "its name has no address")
        try:
            for address in self._addresses(call):
                self._dns_host, self.timeout = address, min(allowed_s, call.left_s())
                try:
                    made = super()._new_conn()
                except HTTPError as error:
                    why = error
                    continue
                made.settimeout(min(allowed_s, call.left_s()))  # for the handshake of TLS
                return made
        finally:
            self._dns_host = host
            self.timeout = None if allowed_s == math.inf else allowed_s
        call.left_s()
        raise why

    def _addresses(self, call: Deadline) -> list[str]:
        """The addresses to connect to; a SOCKS proxy resolves the name itself."""
        name = self._dns_host
        own = super()._new_conn.__func__ is not HTTPConnection._new_conn  # type: ignore[attr-defined]
        if own or name == "localhost" or _is_address(name):
            return [name]
        return _resolve(self, name, call)

    def _tunnel(self) -> None:
        raw = self.sock
        self.sock = TimedSocket(raw, current())
        try:
            super()._tunnel()
        finally:
            if self.sock is not None:
                self.sock = raw


class _Inflater:
    """Decompresses an answer's gzip or deflate, up to a length and within the call's time."""

    has_unconsumed_tail = False  # read by urllib3 2.6 and newer

    def __init__(self, encoding: str, bytes_max: int, call: Deadline | None) -> None:
        self._known = encoding in ENCODINGS
        self._left_bytes, self._call = bytes_max, call
        self._inner = zlib.decompressobj(wbits=47)  # gzip's header or zlib's
        self._has_begun = False

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        """Raises `AnswerTooLong` for more than the length, `DeadlinePassed` when time is over."""
        if not self._known:
            raise AnswerTooLong("the answer has an encoding that was not requested")
        made: list[bytes] = []
        while data:
            if self._call is not None:
                self._call.left_s()
            if self._inner.eof:
                if not data.startswith(GZIP_MAGIC):
                    break  # padding
                self._inner = zlib.decompressobj(wbits=47)  # gzip may have several members
            made.append(self._part(data))
            self._left_bytes -= len(made[-1])
            if self._left_bytes < 0:
                raise AnswerTooLong("the compressed answer is too long to be read")
            data = self._inner.unconsumed_tail or self._inner.unused_data
        return b"".join(made)

    def _part(self, data: bytes) -> bytes:
        try:
            return self._inner.decompress(data, INFLATE_BYTES)
        except zlib.error:
            if self._has_begun:
                raise
            self._inner = zlib.decompressobj(wbits=-15)  # some servers' deflate has no header
            return self._inner.decompress(data, INFLATE_BYTES)
        finally:
            self._has_begun = True

    def flush(self) -> bytes:
        return b""


def accepted_encodings(accepted: str) -> str:
    """An Accept-Encoding without encodings that `_Inflater` does not know (br, zstd)."""
    names = [each.strip() for each in accepted.split(",")]
    known = [name for name in names if re.split(r"[ ;]", name)[0] in (*ENCODINGS, "identity")]
    return ", ".join(known) or "identity"


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _resolve(connection: HTTPConnection, name: str, call: Deadline) -> list[str]:
    """In its own thread, for new connections only: the system's resolver has no timeout."""
    found: list[Any] = []

    def ask() -> None:
        try:
            answers = socket.getaddrinfo(
                name, connection.port, allowed_gai_family(), socket.SOCK_STREAM
            )
            found.append(list(dict.fromkeys(str(answer[4][0]) for answer in answers)))
        except BaseException as error:  # noqa: BLE001 - raised below, in the calling thread
            found.append(error)

    thread = threading.Thread(target=ask, name="lockkit-resolve", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no more threads: then only the resolver's own timeout applies
        ask()
    else:
        thread.join(call.left_s())
    if not found:
        raise DeadlinePassed(f"the name {name} was not resolved in time")
    if isinstance(found[0], BaseException):
        raise NewConnectionError(connection, "its name does not resolve") from found[0]
    addresses: list[str] = found[0]
    return addresses
