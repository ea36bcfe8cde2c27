"""One ZooKeeper session and its bounded requests. A session that is over never comes back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from lockkit.clock import Clock
from lockkit.errors import NoAnswer, StoreError
from lockkit.providers.lease_events import LeaseEvents
from lockkit.providers.leased import GrantOver
from lockkit.stores.within import left_s

ANSWER_S_MAX, CLOSE_S = 10.0, 1.0
RECONNECT_S_MAX = 1.0
"""kazoo's default is a minute, longer than most sessions last."""
BEATS = 6
"""Proofs within one session timeout. A follower reports its active sessions only with its
next ping to the leader; until then the leader counts from the proof before."""

_LOG = logging.getLogger("lockkit.zookeeper")
_LOG.addHandler(logging.NullHandler())  # our own messages replace what kazoo would print
# At DEBUG kazoo prints each request, including the one with the credentials.
_LOG.addFilter(
    lambda connect_and_note: (
        not any(type(each).__name__ == "Auth" for each in connect_and_note.args or ())
    )
)


class ZookeeperSession:
    """`heard(what)` is called from kazoo's thread with "suspended", "connected" or "lost"; it must
    not block. `kazoo` holds further arguments of KazooClient: TLS, SASL.
    """

    def __init__(
        self,
        hosts: str,
        *,
        timeout_s: float,
        connect_s: float,
        auth: tuple[str, str] | None,
        kazoo: Mapping[str, Any],
        on_event: Callable[[str], None],
        events: LeaseEvents,
    ) -> None:
        from kazoo.client import KazooClient

        self.hosts, self.over = hosts, ""
        self.granted_s = timeout_s
        self._connect_s, self._on_event, self._events = connect_s, on_event, events
        self._started, self._ready = False, threading.Event()
        self._client = KazooClient(
            hosts=hosts, timeout=timeout_s, logger=_LOG,
            auth_data=[auth] if auth else None,
            connection_retry={"max_tries": -1, "max_delay": RECONNECT_S_MAX}, **kazoo,
        )  # fmt: skip
        self._client.add_listener(self._listen)
        self._learn_what_is_granted()

    @property
    def beat_s(self) -> float:
        return self.granted_s / BEATS

    @property
    def ttl_s(self) -> float:
        return self.granted_s - self.beat_s

    def open(self) -> None:
        """Raise `NoAnswer` if no server grants a session within the connection timeout."""
        if self._ready.is_set():
            return
        if not self._started:
            self._started = True
            self._client.start_async()
        wait_s = self._connect_s if (left := left_s()) is None else min(self._connect_s, left)
        if not Clock().wait(self._ready, wait_s):
            if self._client.client_state == "AUTH_FAILED":
                raise StoreError(f"ZooKeeper at {self.hosts} refused the credentials")
            raise NoAnswer(
                f"no ZooKeeper at {self.hosts} granted a session within {wait_s:.3g} s; "
                "is it running, and is this its client port?"
            )

    def ask(self, request: str, *arguments: Any, **more: Any) -> Any:
        """Return the answer to a KazooClient request. kazoo's NoNodeError passes through."""
        send = getattr(self._client, f"{request}_async")
        return self._events.ask(
            request, lambda: self._answer(request, send, *arguments, **more)
        )

    def prove(self, path: str) -> int:
        """Return when (boot ms) the request left that proved the node. Raises `GrantOver`.

        Only a majority of servers that includes the leader can answer it. A single server, which
        may have lost contact with the others, would answer a plain read.
        """
        from kazoo.exceptions import NoNodeError

        if self.over:
            raise GrantOver(self.over)
        sent_ms = Clock().boot_ms()
        transaction = self._client.transaction()
        transaction.check(path, -1)  # any version: changes nothing and triggers no watch
        (said,) = self._events.ask(
            "check", lambda: self._answer("check", transaction.commit_async)
        )
        if isinstance(said, NoNodeError):
            raise GrantOver("its node is gone: the session expired, or it was deleted by hand")
        if isinstance(said, Exception):
            raise StoreError(f"ZooKeeper at {self.hosts} refuses to check {path}: {said!r}")
        return sent_ms

    def close(self, why: str, *, wait_s: float = 0.0) -> None:
        """Also end it at the server, in the background. If that fails, it expires there."""
        self.over = self.over or why
        thread = threading.Thread(target=self._stop, name="lockkit-zookeeper-close", daemon=True)
        thread.start()
        thread.join(wait_s)

    def _answer(self, what: str, send: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        from kazoo import exceptions as said

        if self.over:
            raise NoAnswer(f"the ZooKeeper session is over: {self.over}")
        if not self._client.connected:
            raise NoAnswer(f"no connection to ZooKeeper at {self.hosts}")
        try:
            answer_s = min(self.granted_s / 3, ANSWER_S_MAX)
            if (left := left_s()) is not None:
                answer_s = min(answer_s, left)
            return send(*arguments, **more).get(timeout=answer_s)
        except said.NoNodeError:
            raise
        except (said.NoAuthError, said.AuthFailedError, said.InvalidACLError) as error:
            raise StoreError(
                f"ZooKeeper at {self.hosts} does not let this identity {what} "
                f"{arguments[0] if arguments else ''}: {type(error).__name__}; its ACL must grant "
                "read, create and delete (crd) on the lock's node"
            ) from None
        except (
            said.ConnectionLoss, said.SessionExpiredError, said.OperationTimeoutError,
            said.SessionMovedError, said.ThrottledOpError, self._client.handler.timeout_exception,
        ) as error:  # fmt: skip
            raise NoAnswer(
                f"ZooKeeper at {self.hosts} did not answer ({what}: {type(error).__name__})"
            ) from None
        except said.KazooException as error:
            raise StoreError(f"ZooKeeper at {self.hosts} refuses to {what}: {error!r}") from None

    def _listen(self, state: str) -> None:
        if state == "LOST" and not self.over:
            self.close("the ZooKeeper session expired")  # otherwise kazoo would open another one
        self._on_event(state.lower())

    def _learn_what_is_granted(self) -> None:
        """Note the session timeout that the server granted; it may be less than requested. kazoo
        does not publish it: its connection returns two thirds of it, in ms.
        """
        connection = self._client._connection
        connect = connection._connect

        def connect_and_note(*where: Any) -> tuple[float, float]:
            read_ms, connect_ms = connect(*where)
            self.granted_s = read_ms * 1.5 / 1000
            self._ready.set()
            return read_ms, connect_ms

        connection._connect = connect_and_note

    def _stop(self) -> None:
        with suppress(Exception):  # the session expires at the server in any case
            self._client.stop()
            self._client.close()
