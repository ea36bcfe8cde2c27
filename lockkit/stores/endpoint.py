"""An HTTP store's endpoint: the meaning of its refusals and of missing answers.

Each adapter has its provider's tables, (status, error code) -> `RefusalKind`, and turns its SDK's
exceptions into an `ErrorResponse`. Both become answers or a `StoreError` here, never by exception
class alone: SDKs rename (azure-core calls a 412 ResourceExistsError), and a failed condition has
arrived with status 200 (aws-sdk-java-v2 #6023).

One file because each adapter reads its provider's answers by the same tables and errors.
"""

from __future__ import annotations

import math
import os
import re
import socket
import ssl
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import NoReturn
from urllib.parse import urlsplit

from lockkit.errors import NoAnswer, StoreError
from lockkit.protocol.outcome import (
    Applied,
    Missing,
    NotModified,
    PreconditionFailed,
    ReadAnswer,
    Throttled,
    Unknown,
    WriteAnswer,
)
from lockkit.stores import StoreOptions
from lockkit.stores.deadline import Deadline, DeadlinePassed, deadline
from lockkit.stores.timed_socket import AnswerTooLong

ANY_STATUS = 0
ANY_CODE = ""
CODE_CHARS_MAX = 60
REFUSALS_MAX = 200
CAUSES_MAX = 50
RETRY_AFTER_S_MAX = 300.0
"""Stores ask for some seconds at most; a longer wait is an error."""


class RefusalKind(Enum):
    """What a refusal says about the request; the operation decides which answer that is."""

    CONDITION_FAILED = "the condition failed"
    THROTTLED = "certainly not done, for now"
    MISSING = "no such object"
    UNCHANGED = "the object is unchanged"
    UNKNOWN = "may be done, may yet be done"
    FAULT = "cannot work as configured"


Table = Mapping[tuple[int, str], RefusalKind]

REDIRECTS = (301, 302, 303, 307, 308)

HTTP: Table = {
    # Not followed: each request is sent once, to the place that was named.
    **{(status, ANY_CODE): RefusalKind.FAULT for status in REDIRECTS},
    (304, ANY_CODE): RefusalKind.UNCHANGED,
    (408, ANY_CODE): RefusalKind.UNKNOWN,
    (412, ANY_CODE): RefusalKind.CONDITION_FAILED,
    (429, ANY_CODE): RefusalKind.THROTTLED,
    # Certain although a 5xx: Backblaze B2 and OVH answer it to any conditional write
    # (terraform #37143).
    (501, ANY_CODE): RefusalKind.FAULT,
}
"""The rows common to all providers; each adds its own."""

HTTP_CURES: Mapping[tuple[int, str], str] = {
    **{(status, ANY_CODE): "it sends us elsewhere; check the endpoint" for status in REDIRECTS},
    (401, ANY_CODE): "give credentials that it accepts",
    (403, ANY_CODE): "access is denied: these credentials need {right}",
    (404, ANY_CODE): "check the URL and the endpoint",
    (501, ANY_CODE): "it does not support that request; run `lockkit probe` on it, or use another",
}


def meaning(table: Table, status: int, code: str) -> RefusalKind:
    """The kind by status and code, else by code alone, else by status alone, else by family."""
    for row in ((status, code), (ANY_STATUS, code), (status, ANY_CODE)):
        if row in table and (row[0] or row[1]):
            return table[row]
    # Every 5xx is open, including 503: one was seen after the write had been applied. So is an odd
    # 2xx or 3xx. Any other 4xx says that the request itself is wrong.
    return RefusalKind.FAULT if 400 <= status < 500 else RefusalKind.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorResponse:
    """A store's answer other than success; `hint` may add to the cure, e.g. the right region."""

    status: int
    code: str = ""
    retry_after_s: float | None = None
    date_ms: int | None = None
    hint: str = ""


_REGION = r"([a-z]{2,4}(-[a-z]+)+-[0-9]{1,2}|aws-global)"
_AMAZON = (
    rf"({_REGION}\.)?amazonaws\.(com|com\.cn|eu)"
    rf"|{_REGION}\.api\.(aws|amazonwebservices\.(com\.cn|eu))"
)
PROVIDERS_OWN = {
    # docs.aws.amazon.com/general/latest/gr/s3.html, and the S3 User Guide on access points,
    # directory buckets, Transfer Acceleration and AWS PrivateLink.
    "s3": re.compile(
        rf"([a-z0-9._-]+\.)?(s3(-fips)?(\.dualstack)?|s3-external-1|s3-{_REGION}"
        r"|s3-accelerate(\.dualstack)?|s3-accesspoint(-fips)?(\.dualstack)?|accesspoint\.s3-global"
        rf"|s3express(-fips)?-[a-z0-9-]+(\.dualstack)?)\.({_AMAZON})"
        rf"|[a-z0-9._-]+\.vpce-[a-z0-9-]+\.s3\.{_REGION}\.vpce\.amazonaws\.(com|com\.cn)"
    ),
    # cloud.google.com/storage/docs/request-endpoints, and regional endpoints
    "gs": re.compile(
        r"([a-z0-9._-]+\.)?storage(\.mtls)?\.googleapis\.com|www\.googleapis\.com"
        r"|storage\.[a-z]+-[a-z]+[0-9]{1,2}\.rep(\.mtls)?\.googleapis\.com"
    ),
    # learn.microsoft.com: "Storage account overview", standard and DNS zone endpoints; Azure
    # Government and Azure China.
    "az": re.compile(
        r"[a-z0-9-]+(\.privatelink)?\.(blob|dfs)"
        r"\.core\.(windows\.net|chinacloudapi\.cn|usgovcloudapi\.net)"
        r"|[a-z0-9-]+\.z[0-9]{1,2}(\.privatelink)?\.(blob|dfs)\.storage\.azure\.net"
    ),
    "dynamodb": re.compile(rf"(dynamodb(-fips)?|[0-9]+\.ddb)\.({_AMAZON})"),
}
"""The host names of the services that lockkit knows, by the scheme of their URLs.

Whole names, not their ends: a customer's own machine, load balancer or function also has a name
under `.amazonaws.com`, `.googleapis.com` or `.windows.net`.
"""
_SCHEMES = {"s3a": "s3", "abfs": "az", "abfss": "az"}


class ForeignAnswer(ValueError):
    """A success that is not of the service named: of a login page, a proxy, another server."""


CONNECTIONS_MAX = 32
"""Connections that a client keeps; each further one is closed after its request.

A writer's batches run in parallel: new files, partitions' files, the timeline's listing.
"""


class Endpoint:
    """The server of one store in one process, and what it has answered so far.

    `rights`: by the beginnings of what a request does ("read", ..., "" for all others), the right
    that it needs.
    """

    def __init__(
        self, url: str, options: StoreOptions, *, cures: Mapping[tuple[int, str], str],
        rights: Mapping[str, str],
    ) -> None:  # fmt: skip
        self.refusals: Counter[tuple[int, str]] = Counter()
        """Every (status, error code) refused so far; the probe's record."""
        self.server = ""
        """See `Store.server`."""
        self._url, self._who = url, url
        if options.endpoint:
            self.opened(options.endpoint)
        self._cures, self._rights = {**HTTP_CURES, **cures}, rights
        self._timeout_s, self._attempts = options.timeout_s, options.attempts
        self._pid = os.getpid()
        self._has_answered = False

    @contextmanager
    def call(self) -> Iterator[Deadline]:
        """Surrounds each call of the SDK: sets a total deadline, and refuses another process.

        A forked child would share sockets and locks with its parent.
        """
        if os.getpid() != self._pid:
            raise StoreError(
                f"{self._who} was opened by process {self._pid} and used by {os.getpid()} after a "
                "fork, which would share its connections; open the store again in the child"
            )
        with deadline(self._timeout_s, self._attempts) as mine:
            yield mine

    def opened(self, address: str) -> None:
        """Note where the opened client really sends its requests; messages name that server."""
        self.server = server_of(address)
        self._who = self._url
        if not service_of(self.server):
            self._who += f" at {self.server.partition('://')[2]}"

    def mark_answered(self) -> None:
        self._has_answered = True

    def write(self, table: Table, refusal: ErrorResponse | Unknown, doing: str) -> WriteAnswer:
        """The answer to a refused write or delete; a missing object fails its condition."""
        if isinstance(refusal, Unknown):
            return refusal
        match self._hear(table, refusal):
            case RefusalKind.CONDITION_FAILED | RefusalKind.MISSING:
                return PreconditionFailed()
            case RefusalKind.THROTTLED:
                return Throttled(refusal.retry_after_s)
            case RefusalKind.FAULT:
                raise self.fault(refusal, doing) from None
            case _:
                return Unknown(f"{said(refusal)} to {doing}")

    def delete(self, table: Table, refusal: ErrorResponse | Unknown, doing: str) -> WriteAnswer:
        """As `write`, but an object that is missing counts as deleted."""
        if isinstance(refusal, Unknown):
            return refusal
        if meaning(table, refusal.status, refusal.code) is RefusalKind.MISSING:
            self._hear(table, refusal)
            return Applied("")
        return self.write(table, refusal, doing)

    def read(self, table: Table, refusal: ErrorResponse | Unknown, doing: str) -> ReadAnswer:
        if isinstance(refusal, Unknown):
            return refusal
        match self._hear(table, refusal):
            case RefusalKind.MISSING:
                return Missing()
            case RefusalKind.UNCHANGED:
                return NotModified(refusal.date_ms)
            case RefusalKind.THROTTLED:
                return Throttled(refusal.retry_after_s)
            case RefusalKind.FAULT:
                raise self.fault(refusal, doing) from None
            case _:
                return Unknown(f"{said(refusal)} to {doing}")

    def listing(self, table: Table, refusal: ErrorResponse | Unknown, doing: str) -> NoReturn:
        """A listing has no partial answers: every refusal is raised."""
        if isinstance(refusal, Unknown):
            raise NoAnswer(refusal.why, where=self._who, cure="try again") from None
        match self._hear(table, refusal):
            case RefusalKind.THROTTLED | RefusalKind.UNKNOWN:
                raise NoAnswer(
                    f"cannot {doing}", where=self._who, status=refusal.status,
                    code=_code_of(refusal), cure="try again",
                ) from None  # fmt: skip
            case _:
                raise self.fault(refusal, doing) from None

    def silence(self, error: BaseException, doing: str) -> Unknown:
        """No answer came. Never "not sent": Azure's ServiceRequestError has been seen after one
        that was applied. A request that cannot have reached any server is a fault, and raises."""
        causes = list(chain(error))
        for cause in causes:
            if isinstance(cause, AnswerTooLong):
                return Unknown(f"no usable answer to {doing}: {cause}")
        if any(isinstance(cause, DeadlinePassed) for cause in causes):
            return Unknown(f"no complete answer to {doing} in the time that it may take")
        from lockkit.stores.proxies import proxy_fault, proxy_for  # only after a failure

        proxy, _ = proxy_for(self._url, self.server)
        for cause in causes:
            if fault := proxy_fault(self._url, self.server, cause):
                raise StoreError(
                    f"cannot {doing}, {fault}", where=self._who,
                    cure="write http://host:port into that variable, or unset it",
                ) from None  # fmt: skip
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise StoreError(
                    f"cannot {doing}, its certificate is not trusted ({cause.verify_message})",
                    where=self._who, cure="check the endpoint and the CA bundle",
                ) from None
            # Once it has answered, the name was right: a resolver may fail temporarily.
            unresolved = isinstance(cause, socket.gaierror) or "NameResolution" in _name(cause)
            if unresolved and not self._has_answered:
                whose = f"the proxy in {proxy}" if proxy else "its host"
                raise StoreError(
                    f"cannot {doing}, the name of {whose} does not resolve (DNS)", where=self._who,
                    cure=f"check {proxy or 'the endpoint or region'} for a typing slip, and the "
                    "network",
                ) from None  # fmt: skip
        # Class names only: the texts contain URLs, and a URL may contain a signature.
        refused = any(isinstance(cause, ConnectionRefusedError) for cause in causes)
        by = f" by the proxy in {proxy}" if proxy else ""
        why = f"connection refused{by}" if refused else _name(causes[-1])
        tunnels = (re.match(r"Tunnel connection failed: (\d{3})", str(each)) for each in causes)
        if tunnel := next(filter(None, tunnels), None):  # http.client's words; no URL is in them
            why = f"the proxy refused with {tunnel[1]}"
        first = _name(error)
        return Unknown(f"no answer to {doing} ({why if why == first else f'{first}: {why}'})")

    def nonsense(self, error: BaseException, doing: str) -> Unknown:
        """An answer that the SDK could not read: a captive portal's page, a proxy's, a torn one.

        The outcome of the request is unknown, and such pages come and go.
        """
        if isinstance(error, ForeignAnswer):
            return Unknown(
                f"the answer to {doing} is not of {error}: check the endpoint, and whether a proxy "
                "or a login page answers in its place"
            )
        return Unknown(f"no sensible answer to {doing} (the SDK failed: {_name(error)})")

    def fault(self, refusal: ErrorResponse, doing: str) -> StoreError:
        cure = refusal.hint
        for row in (
            (refusal.status, refusal.code),
            (ANY_STATUS, refusal.code),
            (refusal.status, ANY_CODE),
        ):
            cure = cure or self._cures.get(row, "")
        if "{right}" in cure:
            named = (right for verb, right in self._rights.items() if doing.startswith(verb))
            cure = cure.replace("{right}", next(named))
        return StoreError(
            f"cannot {doing}", where=self._who, status=refusal.status, code=_code_of(refusal),
            cure=cure or "check the URL and options",
        )  # fmt: skip

    def misconfigured(self, error: BaseException) -> StoreError:
        """The SDK refused to start. Only the error's name is shown: its text may quote a key."""
        return self.unusable(
            f"cannot open it, the SDK refused its configuration ({_name(error)})",
            "check the URL, the endpoint and the credentials that were given",
        )

    def unusable(self, why: str, cure: str) -> StoreError:
        """A fault found by the client, before any request."""
        return StoreError(why, where=self._who, cure=cure)

    def _hear(self, table: Table, refusal: ErrorResponse) -> RefusalKind:
        self._has_answered = True
        if len(self.refusals) < REFUSALS_MAX:
            self.refusals[refusal.status, code_of(refusal.code)] += 1
        return meaning(table, refusal.status, refusal.code)


def said(refusal: ErrorResponse) -> str:
    code = _code_of(refusal)
    return f"it answered {refusal.status}" + (f" {code}" if code else "")


def _code_of(refusal: ErrorResponse) -> str:
    code = code_of(refusal.code)
    return "" if code == str(refusal.status) else code  # botocore repeats the status if none


def code_of(text: object) -> str:
    """An error code that is safe in a message: what comes over the wire is untrusted."""
    return re.sub(r"[^A-Za-z0-9._-]", "", str(text))[:CODE_CHARS_MAX]


def host(endpoint: str) -> str:
    """Host and port, without the user name and password that a URL can contain."""
    return urlsplit(endpoint if "//" in endpoint else f"//{endpoint}").netloc.rpartition("@")[2]


def server_of(address: str) -> str:
    """`scheme://host:port/path` of a client's URL, without query and credentials.

    One gateway may send each path to another server with its own conditions.
    """
    parts = urlsplit(address)
    return f"{parts.scheme}://{host(address)}{parts.path.rstrip('/')}"


def service_of(server: str) -> str:
    """The scheme of the provider's own service at this address; empty if it may be any server.

    An unusual port counts as another server.
    """
    name = re.sub(r"\.?(:80|:443)?$", "", host(server).lower())
    return next((each for each, own in PROVIDERS_OWN.items() if own.fullmatch(name)), "")


def bucket_in(host: str) -> str:
    """The bucket in the name of a host of Amazon S3; "" if none, or an access point, is in it."""
    own = PROVIDERS_OWN["s3"].fullmatch(re.sub(r"\.?(:80|:443)?$", "", host.lower()))
    return (own[1] or "").rstrip(".") if own and "accesspoint" not in host.lower() else ""


def is_providers_own(url: str, server: str) -> bool:
    """Whether requests for `url` go to the service whose write conditions are documented.

    `s3://` on Google's host is not: its S3-compatible API has conditions of its own.
    """
    scheme, own = url.partition("://")[0].lower(), service_of(server)
    return own != "" and own == _SCHEMES.get(scheme, scheme)


def is_loopback(endpoint: str) -> bool:
    name = urlsplit(endpoint if "//" in endpoint else f"//{endpoint}").hostname or ""
    return name == "localhost" or name.startswith("127.") or name == "::1"


def agent(client: str) -> str:
    """The User-Agent part that names this client, for the store's record of requests."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", client)[:CODE_CHARS_MAX]
    return f"lockkit-client/{name}" if name else "lockkit"


def seconds(retry_after: str | None) -> float | None:
    """Retry-After in seconds, at most `RETRY_AFTER_S_MAX`; untrusted, it may even be `inf`.

    The HTTP-date form is rare here and counts as missing.
    """
    try:
        seconds = float(retry_after or "nan")
    except ValueError:
        return None
    return None if math.isnan(seconds) else min(max(0.0, seconds), RETRY_AFTER_S_MAX)


def timeouts_s(timeout_s: float) -> tuple[float, float]:
    """(connect, read) that together make `timeout_s`.

    The SDKs use the read part for each wait for bytes; `Endpoint.call` bounds the whole.
    """
    connect_s = min(3.0, timeout_s / 3)
    return connect_s, timeout_s - connect_s


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error and the errors wrapped in it, however each library wraps; the innermost last."""
    queue: list[BaseException] = [error]
    seen: set[int] = set()
    while queue and len(seen) < CAUSES_MAX:
        each = queue.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        inner = [each.__cause__, each.__context__, getattr(each, "reason", None)]
        inner += [getattr(each, "inner_exception", None), *each.args]
        inner += list(getattr(each, "kwargs", {}).values())  # botocore keeps the cause there
        queue += [one for one in inner if isinstance(one, BaseException)]


def _name(error: BaseException) -> str:
    return type(error).__name__


def epoch_ms(http_date: str | None) -> int | None:
    """An HTTP date (`Date`, `Last-Modified`) in epoch ms, to the second; None if unreadable."""
    if not http_date:
        return None
    try:
        return int(parsedate_to_datetime(http_date).timestamp() * 1000)
    except (ValueError, TypeError, OverflowError):
        return None
