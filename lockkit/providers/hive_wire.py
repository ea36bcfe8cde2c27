"""A thrift connection to a Hive Metastore; one bounded request at a time."""

from __future__ import annotations

import logging
import os
import threading
import xml.etree.ElementTree as xml
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lockkit.errors import NoAnswer, StoreError, clipped
from lockkit.providers.lease_events import LeaseEvents
from lockkit.providers.leased import GrantOver
from lockkit.stores.deadline import DeadlinePassed, deadline
from lockkit.stores.timed_socket import TimedSocket
from lockkit.stores.within import left_s

# thrift logs each refused connection; discarded unless the program configures logging.
logging.getLogger("thrift").addHandler(logging.NullHandler())

PORT = 9083
TEXT_BYTES_MAX, ROWS_MAX = 1 << 20, 100_000
"""A longer answer is not read: it is not from a metastore."""
SITE = "hive-site.xml"
SITE_BYTES_MAX = 4 << 20


def uris_of_site(folder: Path | None = None) -> str:
    """`hive.metastore.uris` of `hive-site.xml` in `folder`, by default HIVE_CONF_DIR.

    Raises `ValueError` if it cannot be found.
    """
    named = folder or os.environ.get("HIVE_CONF_DIR")
    if not named:
        raise ValueError("no metastore is configured: pass uris, or set HIVE_CONF_DIR")
    file = Path(named) / SITE
    try:
        if file.stat().st_size > SITE_BYTES_MAX:
            raise ValueError(f"{file} has more than {SITE_BYTES_MAX} bytes")
        for each in xml.fromstring(file.read_text()).iter("property"):
            if (each.findtext("name") or "").strip() == "hive.metastore.uris":
                return (each.findtext("value") or "").strip()
    except (OSError, UnicodeDecodeError, xml.ParseError) as error:
        raise ValueError(f"no metastore is named, and {file} cannot be read: {error}") from None
    raise ValueError(f"{file} has no hive.metastore.uris")


def servers(uris: str) -> list[tuple[str, int]]:
    """`thrift://host:port,thrift://host` (or without the scheme), in order."""
    found = []
    for each in filter(None, (part.strip() for part in uris.split(","))):
        parts = urlsplit(each if "://" in each else f"thrift://{each}")
        try:
            port = PORT if parts.port is None else parts.port
        except ValueError:  # it is no number, or above 65535
            port = 0
        if parts.scheme != "thrift" or not parts.hostname or parts.username or not port:
            said = clipped(repr(each), 100)
            rule = "thrift://host:port with a port from 1 to 65535"
            raise ValueError(f"a metastore's URI is {rule}, not {said}")
        found.append((parts.hostname, port))
    if not found:
        raise ValueError("uris is empty: pass thrift://host:port,thrift://host:port")
    return found


class MetastoreConnection:
    """Connects to the first server that accepts. Several threads may use it."""

    def __init__(
        self, at: Sequence[tuple[str, int]], *, answer_s: float, events: LeaseEvents
    ) -> None:
        self.at, self.answer_s, self._events = at, answer_s, events
        self._protocol: Any = None
        self._socket: Any = None
        self._turn = threading.Lock()

    def ask(self, method: str, *arguments: Any) -> Any:
        """Return the answer. Raises `GrantOver` if the lock is gone, `NoAnswer`, `StoreError`."""
        return self._events.ask(method, lambda: self._answer(method, *arguments))

    def close(self) -> None:
        with self._turn:
            self._drop()

    def __str__(self) -> str:
        return "the metastore at " + ",".join(f"{host}:{port}" for host, port in self.at)

    def _answer(self, method: str, *arguments: Any) -> Any:
        from thrift.protocol.TProtocol import TProtocolException
        from thrift.Thrift import TApplicationException, TException
        from thrift.transport.TTransport import TTransportException

        from lockkit.providers.hive_thrift import NoSuchLock, call

        with self._turn:
            protocol, whole = self._connected(), True
            try:
                with deadline(self.answer_s) as mine:
                    # A metastore's answer has no header with its length.
                    self._socket.handle.begin(mine)
                    self._socket.handle.answered(200, None)
                    return call(protocol, method, *arguments)
            except NoSuchLock:
                raise GrantOver("the metastore ended it: no heartbeat came in time") from None
            except (TTransportException, OSError, EOFError, DeadlinePassed) as error:
                whole = False
                raise NoAnswer(f"{self} did not answer ({method}: {error})") from None
            except (TProtocolException, TApplicationException) as error:
                whole = False
                raise StoreError(
                    f"{self} is not a Hive Metastore with locks ({method}: {error}); it must be "
                    "Hive 1 to 4, over plain thrift (no SASL, no TLS)"
                ) from None
            except TException as error:  # the metastore's database may be back soon
                said = getattr(error, "message", None) or repr(error)
                raise NoAnswer(f"{self} failed ({method}: {clipped(str(said), 300)})") from None
            except BaseException:
                whole = False
                raise
            finally:
                if not whole:  # the rest of this answer would be read as the next one
                    self._drop()

    def _connected(self) -> Any:
        left = left_s()
        wait_ms = max(1.0, 1000 * (self.answer_s if left is None else min(self.answer_s, left)))
        if self._protocol is not None:
            self._socket.setTimeout(wait_ms)
            return self._protocol
        from thrift.protocol.TBinaryProtocol import TBinaryProtocol
        from thrift.transport.TSocket import TSocket
        from thrift.transport.TTransport import TBufferedTransport, TTransportException

        why = ""
        for host, port in self.at:
            socket = TSocket(host, port)
            socket.setTimeout(wait_ms)
            protocol = TBinaryProtocol(
                TBufferedTransport(socket), strictRead=True,
                string_length_limit=TEXT_BYTES_MAX, container_length_limit=ROWS_MAX,
            )  # fmt: skip
            try:
                protocol.trans.open()
            except (TTransportException, OSError) as error:
                why = str(error)
            else:
                socket.setHandle(TimedSocket(socket.handle, None))
                self._protocol, self._socket = protocol, socket
                return protocol
        raise NoAnswer(f"{self} cannot be reached ({why}); is it running?")

    def _drop(self) -> None:
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            with suppress(Exception):
                protocol.trans.close()
