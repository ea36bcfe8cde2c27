"""Below the retries of SDKs that send by requests: Cloud Storage's session, Azure's transport.

Each attempt ends in the session's adapter. We mount an adapter in front of each of these. What it
raises reaches the SDK as if the SDK's adapter had raised it, so the SDK translates it as usual.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import requests
from requests.adapters import BaseAdapter, HTTPAdapter

from lockkit.lab.faults.hooks import aborted, head_of, timed_out
from lockkit.lab.faults.plan import FaultError
from lockkit.lab.faults.wire import MessageHead

if TYPE_CHECKING:
    import urllib3


def install(carry_out: Callable[[Any], Any], session: requests.Session) -> None:
    """Install in front of all adapters that the session has now."""
    if not isinstance(session, requests.Session):
        raise FaultError(
            "faults",
            f"cannot be installed in a client that sends with {type(session).__name__}",
            "let it send with requests, its SDK's default",
        )
    for prefix, adapter in list(session.adapters.items()):
        session.mount(prefix, _Adapter(carry_out, adapter))


def session_of(client: Any) -> Any:
    """The session of an Azure client; clients that it created share it."""
    transport = client._pipeline._transport
    while hasattr(transport, "_transport"):  # azure.storage.blob's TransportWrapper
        transport = transport._transport
    transport.open()
    return getattr(transport, "session", transport)


class _Adapter(BaseAdapter):
    def __init__(self, carry_out: Callable[[Any], Any], inner: BaseAdapter) -> None:
        super().__init__()
        self._carry_out, self._inner = carry_out, inner

    def send(
        self, request: requests.PreparedRequest, *args: Any, **options: Any
    ) -> requests.Response:
        # Sessions name all options; requests' own signature also has them by position.
        named = dict(zip(("stream", "timeout", "verify", "cert", "proxies"), args, strict=False))
        answer: requests.Response = self._carry_out(
            _RequestsAttempt(self._inner, request, {**named, **options})
        )
        return answer

    def close(self) -> None:
        self._inner.close()


@dataclass(frozen=True, slots=True)
class _RequestsAttempt:
    inner: BaseAdapter
    request: requests.PreparedRequest
    options: dict[str, Any]

    @property
    def head(self) -> MessageHead:
        return head_of(self.request.method or "", self.request.url or "", self.request.headers)

    @property
    def body(self) -> Any:
        return self.request.body

    @property
    def give_up_s(self) -> float | None:
        """The second of requests' (connect, read); one number stands for both."""
        timeout = self.options.get("timeout")
        said: float | None = timeout[1] if isinstance(timeout, tuple) else timeout
        return getattr(said, "read_timeout", said)  # or an urllib3.Timeout

    def send(self) -> requests.Response:
        return self.inner.send(self.request, **self.options)

    def kept(self, body: bytes) -> Callable[[], requests.Response]:
        later = self.request.copy()
        later.body = body
        return _RequestsAttempt(self.inner, later, self.options).send

    def answer(self, raw: urllib3.HTTPResponse) -> requests.Response:
        return HTTPAdapter().build_response(self.request, raw)

    def broken(self, cause: Exception) -> Exception:
        return requests.exceptions.ConnectionError(aborted(cause), request=self.request)

    def silent(self) -> Exception:
        error = timed_out(self.request.url or "", self.give_up_s)
        return requests.exceptions.ReadTimeout(error, request=self.request)
