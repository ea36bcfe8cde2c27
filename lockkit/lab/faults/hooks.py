"""Faults in the process itself, below an SDK's retries: for TLS, where no proxy can stand.

    faulty = Faulty(FaultPlan.load("plan.json"))
    store = open_store("s3://lake/orders", faults=faulty)                      # or a client's own:
    faulty.install(boto3.client("s3"))
    faulty.inject(Fault("drop", operation="put", key="table_lock.json"))       # the next one
    faulty.faults                                          # what was done, as `fault` events

Plans, rules, answers and events are the proxy's. Two things differ: a hang ends when the
client's own time-out has passed, and a late request is lost if its process ends.
"""

from __future__ import annotations

import errno
import http.client
import io
import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

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
from lockkit.lab.faults.plan import Fault, FaultError, FaultPlan
from lockkit.lab.faults.wire import MessageHead

if TYPE_CHECKING:
    import urllib3

LATE_MAX = 1_000
"""How many late requests may wait at a time, each in a thread."""
LATE_BYTES_MAX = 64 * 1024 * 1024
"""The longest body that is kept for a late request: as much as the proxy holds."""


class SdkAttempt(Protocol):
    """One attempt of an SDK at one request, just before it leaves the process.

    An answer is the SDK's object. Both kinds have `status_code`, `headers`, and urllib3's as `raw`.
    """

    @property
    def head(self) -> MessageHead: ...

    @property
    def body(self) -> Any: ...

    @property
    def give_up_s(self) -> float | None:
        """How long the SDK waits for an answer."""
        ...

    def send(self) -> Any: ...

    def kept(self, body: bytes) -> Callable[[], Any]:
        """A function that sends the same request with these bytes, later."""
        ...

    def answer(self, raw: urllib3.HTTPResponse) -> Any: ...

    def broken(self, cause: Exception) -> Exception:
        """What the SDK raises when the connection ended without an answer."""
        ...

    def silent(self) -> Exception:
        """What the SDK raises when it has waited long enough."""
        ...


class Faulty(ArmedFaults):
    """Injects faults below the retries of any number of clients.

    `on_fault` is called in the thread that sends the request. After `close()`, a late request
    that is still waiting is never delivered.

    :param plan: the faults; None: none until `inject` is called.
    :param on_fault: called with each fault's event.
    """

    def __init__(
        self,
        plan: FaultPlan | None = None,
        *,
        on_fault: Callable[[Event], None] | None = None,
    ) -> None:
        super().__init__(plan, on_fault=on_fault)
        self._closed = threading.Event()
        self._late = threading.BoundedSemaphore(LATE_MAX)

    def close(self) -> None:
        self._closed.set()

    def install(self, client: Any) -> None:
        """Install below a boto3 S3 client, a Cloud Storage client or a synchronous Azure client."""
        makers = {each.__module__.partition(".")[0] for each in type(client).__mro__}
        if "botocore" in makers and client.meta.service_model.service_name == "s3":
            from lockkit.lab.faults import hook_botocore

            hook_botocore.install(self.carry_out, client)
            return
        if {"google", "azure"} & makers and ".aio." not in type(client).__module__:
            from lockkit.lab.faults import hook_requests

            session = client._http if "google" in makers else hook_requests.session_of(client)
            hook_requests.install(self.carry_out, session)
            return
        raise FaultError(
            "faults",
            f"cannot be installed in a {type(client).__name__}",
            "install them in a boto3 S3 client, a google.cloud.storage.Client or a (synchronous) "
            "client of azure.storage.blob",
        )

    def carry_out(self, attempt: SdkAttempt) -> Any:
        """Carry out one attempt under its course: return the SDK's answer, or raise its error."""
        request = dialects.describe(attempt.head, glimpse(attempt.body), uploads=self.uploads)
        course, answer = self.course(request), None
        step = next(course)
        while not isinstance(step, RelayAnswer | EndRequest):
            match step:
                case SendLater(delay_s):
                    if _length(attempt.head) > LATE_BYTES_MAX:
                        return attempt.answer(_too_long(attempt.head))
                    self._deliver(attempt, delay_s, lambda end: self._delivered(request, end))
                case DelayClient(delay_s):
                    self._wait(attempt, delay_s, answer)
                case SendRequest():
                    answer = attempt.send()
                    self.remember_upload(request, _lower(answer.headers))
                case SwallowAnswer():
                    assert answer is not None
                    drain(answer)
            step = course.send(0 if answer is None else answer.status_code)
        return self._end(step.fault, attempt) if isinstance(step, EndRequest) else answer

    def _end(self, fault: Fault, attempt: SdkAttempt) -> Any:
        match fault.ending or fault.what:
            case "drop":
                raise attempt.broken(_fin())
            case "reset":
                raise attempt.broken(
                    ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
                )
            case "hang":
                assert fault.cap_s is not None
                if _gives_up(attempt, fault.cap_s):
                    self._clock.sleep(attempt.give_up_s or 0)
                    raise attempt.silent()
                self._clock.sleep(fault.cap_s)
                raise attempt.broken(_fin())
            case "status":
                said = dialects.fault_answer(fault, attempt.head)
                return attempt.answer(answer_of(said, attempt.head.method))
            case other:
                raise AssertionError(f"no way to do {other}")

    def _wait(self, attempt: SdkAttempt, delay_s: float, answer: Any) -> None:
        """Wait; if the client gives up meanwhile, its request is still sent."""
        if not _gives_up(attempt, delay_s):
            self._clock.sleep(delay_s)
            return
        if answer is None:
            self._deliver(attempt, delay_s, lambda end: None)
        else:
            drain(answer)
        self._clock.sleep(attempt.give_up_s or 0)
        raise attempt.silent()

    def _deliver(self, attempt: SdkAttempt, delay_s: float, report: Callable[[str], None]) -> None:
        """Send a late request to the store, long after its client has given up."""
        send = attempt.kept(whole(attempt.body))
        if not self._late.acquire(blocking=False):
            report(f"not sent: {LATE_MAX} others wait")
            return

        def deliver() -> None:
            try:
                if not self._clock.wait(self._closed, delay_s):
                    report(outcome_of(send))
            finally:
                self._late.release()

        threading.Thread(target=deliver, name="lockkit-late", daemon=True).start()


def outcome_of(send: Callable[[], Any]) -> str:
    try:
        answer = send()
        drain(answer)
    except Exception as error:  # noqa: BLE001 - recorded; its text may quote a signed URL
        return f"not answered: {type(error).__name__}"
    return f"status {answer.status_code}"


def drain(answer: Any) -> None:
    """Read what is left of an answer, however long, so that its connection can be used again."""
    for _ in answer.raw.stream(wire.PIECE_BYTES, decode_content=False):
        pass


def _gives_up(attempt: SdkAttempt, within_s: float) -> bool:
    return attempt.give_up_s is not None and attempt.give_up_s < within_s


# --- what the SDKs have in common: HTTP by urllib3 ------------------------------------------------


def head_of(method: str, url: str, headers: Mapping[str, Any]) -> MessageHead:
    """A request's first line and headers, as the dialects read them."""
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    named = {"host": parts.netloc.rpartition("@")[2], **_lower(headers)}
    return MessageHead(b"", (method, target, "HTTP/1.1"), named)


def _lower(headers: Mapping[str, Any]) -> dict[str, str]:
    return {
        _text(name).lower(): _text(value) for name, value in headers.items() if value is not None
    }


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def glimpse(body: Any) -> bytes:
    """The beginning of a body, one byte more than is searched; b"" if it can be read only once."""
    if body is None or isinstance(body, bytes | bytearray | str):
        return whole(body)
    if not (hasattr(body, "read") and hasattr(body, "seek")):
        return b""
    at = body.tell() if hasattr(body, "tell") else 0  # botocore's AwsChunkedWrapper has none
    seen = body.read(dialects.SEARCHED_BYTES + 1)
    body.seek(at)
    return whole(seen)


def whole(body: Any) -> bytes:
    if body is None:
        return b""
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, bytes | bytearray):
        return bytes(body)
    return whole(body.read()) if hasattr(body, "read") else b"".join(map(whole, body))


def _length(head: MessageHead) -> int:
    said = head.headers.get("content-length", "")
    return int(said) if said.isascii() and said.isdigit() else 0


def _too_long(head: MessageHead) -> urllib3.HTTPResponse:
    said = dialects.error_answer(
        dialects.dialect(head), 413, f"a late request has at most {LATE_BYTES_MAX} bytes of body",
        method=head.method,
    )  # fmt: skip
    return answer_of(said, head.method)


def answer_of(said: bytes, method: str) -> urllib3.HTTPResponse:
    """The bytes of an answer as urllib3 would hand it to the SDK."""
    import urllib3

    start, _, body = said.partition(b"\r\n\r\n")
    head = wire.parse_head(start + b"\r\n\r\n")
    return urllib3.HTTPResponse(
        io.BytesIO(body), headers=head.headers, status=head.status, reason=head.first[2],
        preload_content=False, decode_content=False, request_method=method,
    )  # fmt: skip


def _fin() -> Exception:
    """http.client's error for a connection that ended (FIN) before an answer."""
    return http.client.RemoteDisconnected("Remote end closed connection without response")


def aborted(cause: Exception) -> urllib3.exceptions.ProtocolError:
    """The error that urllib3 raises for it."""
    import urllib3

    error = urllib3.exceptions.ProtocolError("Connection aborted.", cause)
    error.__cause__ = cause
    return error


def timed_out(url: str, give_up_s: float | None) -> urllib3.exceptions.ReadTimeoutError:
    """The error that urllib3 raises if a socket stays silent."""
    import urllib3

    why = f"Read timed out. (read timeout={give_up_s})"
    error = urllib3.exceptions.ReadTimeoutError(None, url, why)  # type: ignore[arg-type]
    error.__cause__ = TimeoutError("timed out")
    return error
