"""Below botocore's retries: its `before-send` event, which every signed attempt passes.

botocore uses a handler's result as the answer, and its exception as a connection error
(`Endpoint._do_get_response`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.exceptions import ConnectionClosedError, ReadTimeoutError

from lockkit.lab.faults.hooks import aborted, head_of, timed_out
from lockkit.lab.faults.wire import MessageHead

if TYPE_CHECKING:
    import urllib3


def install(carry_out: Callable[[Any], Any], client: Any) -> None:
    """Install below one S3 client, after its existing hooks."""

    def before_send(request: AWSPreparedRequest, **_: Any) -> AWSResponse:
        answer: AWSResponse = carry_out(_BotocoreAttempt(client, request))
        return answer

    client.meta.events.register_last("before-send.s3", before_send)


@dataclass(frozen=True, slots=True)
class _BotocoreAttempt:
    client: Any
    request: AWSPreparedRequest

    @property
    def head(self) -> MessageHead:
        return head_of(self.request.method, self.request.url, self.request.headers)

    @property
    def body(self) -> Any:
        return self.request.body

    @property
    def give_up_s(self) -> float | None:
        said: float | None = self.client.meta.config.read_timeout
        return said

    def send(self) -> AWSResponse:
        return self.client._endpoint.http_session.send(self.request)

    def kept(self, body: bytes) -> Callable[[], AWSResponse]:
        later = copy.copy(self.request)
        later.body = body
        return _BotocoreAttempt(self.client, later).send

    def answer(self, raw: urllib3.HTTPResponse) -> AWSResponse:
        return AWSResponse(self.request.url, raw.status, raw.headers, raw)

    def broken(self, cause: Exception) -> Exception:
        error: Exception = ConnectionClosedError(
            error=aborted(cause), request=self.request, endpoint_url=self.request.url
        )
        return error

    def silent(self) -> Exception:
        url = self.request.url
        error: Exception = ReadTimeoutError(endpoint_url=url, error=timed_out(url, self.give_up_s))
        return error
