"""Google Cloud Storage through google-cloud-storage (the JSON API).

One file because it is one adapter: the operations of `Store` and how their errors are read.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC
from typing import Any, BinaryIO
from urllib.parse import quote

# Otherwise the first use of google-cloud-storage 3.17 sends a GET of the bucket in the background.
os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")

import google.api_core.exceptions
import google.auth.exceptions
import google.cloud.storage
import google.cloud.storage.exceptions
import requests
import urllib3
from google.api_core.client_info import ClientInfo
from google.cloud.storage.retry import DEFAULT_RETRY

from lockkit.errors import StoreError
from lockkit.protocol.outcome import (
    Applied,
    Condition,
    Found,
    IfAbsent,
    IfVersion,
    PreconditionFailed,
    ReadAnswer,
    Unknown,
    Version,
    WriteAnswer,
)
from lockkit.stores import (
    CHUNK_BYTES,
    Capabilities,
    ListEntry,
    Listing,
    ObjectVersion,
    StoreOptions,
    shown,
    split_url,
    tokens,
)
from lockkit.stores.connections import keep_deadlines_of
from lockkit.stores.deadline import Deadline, DeadlinePassed, current, in_time
from lockkit.stores.endpoint import (
    ANY_CODE,
    ANY_STATUS,
    CONNECTIONS_MAX,
    HTTP,
    Endpoint,
    ErrorResponse,
    ForeignAnswer,
    RefusalKind,
    Table,
    agent,
    epoch_ms,
    is_loopback,
    seconds,
    timeouts_s,
)
from lockkit.stores.pages import joined, new_pages
from lockkit.stores.tokens import Awaited, TokenRenewal, is_good

# cloud.google.com/storage/docs/json_api/v1/status-codes and /docs/request-preconditions. GCS says
# `notFound` for both an object and a bucket; `noSuchBucket` is our name for the latter, recognised
# by its message (unconfirmed on the real service, as is every row here).
TABLE: Table = {
    **HTTP,
    (ANY_STATUS, "conditionNotMet"): RefusalKind.CONDITION_FAILED,
    # One write per second and object name (storage/quotas); attempts of other writers count too.
    (ANY_STATUS, "rateLimitExceeded"): RefusalKind.THROTTLED,
    (404, ANY_CODE): RefusalKind.MISSING,
    (404, "noSuchBucket"): RefusalKind.FAULT,
    (404, "foreign"): RefusalKind.FAULT,
}
# A write to a missing object gets a 412, so a 404 to a write is about the bucket.
WRITES: Table = {**TABLE, (404, ANY_CODE): RefusalKind.FAULT}

CURES: Mapping[tuple[int, str], str] = {
    (404, "foreign"): "this is not Cloud Storage; check the endpoint",
    (ANY_STATUS, "noSuchBucket"): "there is no such bucket; create it, or correct the URL",
    (404, ANY_CODE): "there is no such bucket; create it, or correct the URL",
    (401, ANY_CODE): "the credentials are missing or have expired; log in again "
    "(gcloud auth application-default login)",
}

RIGHTS = {
    "list": "storage.objects.list on the bucket (roles/storage.objectViewer)",
    "read": "storage.objects.get on the bucket, and storage.objects.list, without which a missing "
    "object is denied as well (roles/storage.objectViewer)",
    "delete": "storage.objects.delete on the bucket (roles/storage.objectAdmin)",
    "": "storage.objects.create on the bucket, and storage.objects.delete for a write over a "
    "version (roles/storage.objectAdmin)",
}

NO_SUCH_OBJECT = ("No such object", "Not Found")
"""How a 404 to a download begins at Cloud Storage, and at fake-gcs-server; a proxy's is its own.

That of gcp-storage-emulator is empty, as that of some proxies.
"""
CREDENTIALS_CURE = "run `gcloud auth application-default login`, or pass credentials=..."
ERROR_BYTES_MAX = 100_000
NONSENSE = (ValueError, AttributeError)
"""What the SDK raises for an answer that it cannot read."""
SDK_ERRORS = (
    google.api_core.exceptions.GoogleAPIError,
    google.auth.exceptions.GoogleAuthError,
    google.cloud.storage.exceptions.InvalidResponse,
    google.cloud.storage.exceptions.DataCorruption,
    DeadlinePassed,
    requests.exceptions.RequestException,
    urllib3.exceptions.HTTPError,
    OSError,
    *NONSENSE,
)


class GcsStore:
    """`gs://bucket/prefix`; a version is a generation number."""

    capabilities = Capabilities(name="gcs", poll_min_s=1.0, write_interval_min_s=1.0)

    @staticmethod
    def keywords() -> frozenset[str]:
        taken = inspect.signature(google.cloud.storage.Client).parameters
        return frozenset(taken) - {"client_info", "_http"}

    def __init__(self, url: str, options: StoreOptions = StoreOptions()) -> None:
        self.url = url
        self.options = options
        name, self._prefix = split_url(url)
        self._timeout = timeouts_s(options.timeout_s)
        self._endpoint = Endpoint(url, options, cures=CURES, rights=RIGHTS)
        self.refusals = self._endpoint.refusals
        with self._translated(tokens.OPENING):
            try:
                self._client = _client(options)
            except google.auth.exceptions.GoogleAuthError:
                raise  # some are ValueErrors as well, and say more
            except ValueError as error:
                raise self._endpoint.misconfigured(error) from None
        self._endpoint.opened(self._client.api_endpoint)
        self.server = self._endpoint.server
        self._bucket = self._client.bucket(name)
        self._agent = {"User-Agent": agent(options.client), "Accept-Encoding": "identity"}

    @in_time
    def get(
        self, key: str, *, unless: Version | None = None, limit: int | None = None
    ) -> ReadAnswer:
        doing = f"read {key}"
        query = "" if unless is None else f"&ifGenerationNotMatch={quote(unless)}"
        try:
            with closing(self._download(key, query)) as answer:
                if answer.status_code != 200:
                    return self._endpoint.read(TABLE, _refusal(answer), doing)
                self._endpoint.mark_answered()
                amount = None if limit is None else limit + 1
                body = answer.raw.read(amount, decode_content=False)
        except SDK_ERRORS as error:
            return self._endpoint.read(TABLE, self._refusal(error, doing), doing)
        length = int(answer.headers.get("Content-Length", len(body)))
        if len(body) != (length if amount is None else min(amount, length)):
            return Unknown(f"{len(body)} of {length} bytes of {key} arrived")
        if "x-goog-generation" not in answer.headers:
            raise self._endpoint.unusable(
                f"cannot {doing}, the answer names no generation", "this is not Cloud Storage"
            )
        return Found(
            body,
            answer.headers["x-goog-generation"],
            epoch_ms(answer.headers.get("Last-Modified")),
            epoch_ms(answer.headers.get("Date")),
        )

    @in_time
    def put(self, key: str, body: bytes, condition: Condition) -> WriteAnswer:
        """Above 8 MiB the SDK sends several requests; the condition then guards the first."""
        doing = f"write {key}"
        match condition:
            case IfAbsent():
                generation = 0
            case IfVersion(version) if version.isdecimal():
                generation = int(version)
            case _:
                return PreconditionFailed()  # a generation never looks like that
        blob = self._bucket.blob(self._full(key))
        try:
            blob.upload_from_string(
                body,
                content_type="application/octet-stream",
                if_generation_match=generation,
                timeout=self._timeout,
                retry=None,
            )
        except SDK_ERRORS as error:
            return self._endpoint.write(WRITES, self._refusal(error, doing), doing)
        self._endpoint.mark_answered()
        if not blob.generation:
            return Unknown(f"a 200 without a generation to {doing}")
        return Applied(str(blob.generation))

    @in_time
    def put_file(self, key: str, source: BinaryIO, size: int) -> WriteAnswer:
        doing = f"write {key}"
        blob = self._bucket.blob(self._full(key))
        try:
            blob.upload_from_file(
                source,
                size=size,
                content_type="application/octet-stream",
                if_generation_match=0,
                timeout=self._timeout,
                retry=DEFAULT_RETRY if self.options.attempts > 1 else None,
            )
        except SDK_ERRORS as error:
            return self._endpoint.write(WRITES, self._refusal(error, doing), doing)
        self._endpoint.mark_answered()
        return Applied(str(blob.generation))

    @in_time
    def get_file(self, key: str, into: BinaryIO) -> ReadAnswer:
        doing, length = f"read {key}", 0
        try:
            with closing(self._download(key, "")) as answer:
                if answer.status_code != 200:
                    return self._endpoint.read(TABLE, _refusal(answer), doing)
                self._endpoint.mark_answered()
                while chunk := answer.raw.read(CHUNK_BYTES, decode_content=False):
                    length += into.write(chunk)
        except SDK_ERRORS as error:
            return self._endpoint.read(TABLE, self._refusal(error, doing), doing)
        if length != int(answer.headers.get("Content-Length", length)):
            return Unknown(f"only {length} bytes of {key} arrived")
        return Found(b"", answer.headers.get("x-goog-generation", ""))

    def list(self, prefix: str, after: str = "") -> Listing:
        start = self._full(after) if after else None
        with self._translated(f"list {prefix}*") as call:
            pages = [
                [
                    ListEntry(blob.name[len(self._full("")) :], blob.size, str(blob.generation))
                    for blob in page
                    if blob.name > self._full(after)  # startOffset is inclusive
                ]
                for page in self._pages(call, f"list {prefix}*", self._full(prefix), start=start)
            ]
        return joined(pages, snapshots=self.capabilities.snapshot_page)

    @in_time
    def delete(self, key: str, condition: IfVersion | None = None) -> WriteAnswer:
        doing = f"delete {key}"
        if condition is not None and not condition.version.isdecimal():
            return PreconditionFailed()
        try:
            self._bucket.blob(self._full(key)).delete(
                if_generation_match=None if condition is None else int(condition.version),
                timeout=self._timeout,
                retry=None,
            )
        except SDK_ERRORS as error:
            return self._endpoint.delete(TABLE, self._refusal(error, doing), doing)
        self._endpoint.mark_answered()
        return Applied("")

    def versions(self, key: str) -> Sequence[ObjectVersion]:
        doing = f"list versions of {key}"
        with self._translated(doing) as call:
            blobs = [
                blob
                for page in self._pages(call, doing, self._full(key), versions=True)
                for blob in page
                if blob.name == self._full(key)
            ]
        blobs.sort(key=lambda blob: int(blob.generation), reverse=True)
        return [
            ObjectVersion(
                version=str(blob.generation),
                modified_ms=int(blob.updated.timestamp() * 1000),
                size=blob.size,
                current=blob is blobs[0] and blob.time_deleted is None,
                id=str(blob.generation),
            )
            for blob in blobs
        ]

    def get_version(self, key: str, version: ObjectVersion) -> bytes:
        doing = f"read {key} generation {version.id}"
        query = f"&generation={quote(version.id)}"
        with self._translated(doing), closing(self._download(key, query)) as answer:
            if answer.status_code != 200:
                self._endpoint.listing(WRITES, _refusal(answer), doing)
            body: bytes = answer.raw.read(decode_content=False)
            return body

    def __repr__(self) -> str:
        return shown(self)

    def close(self) -> None:
        self._client.close()

    def _full(self, key: str) -> str:
        return f"{self._prefix}/{key}" if self._prefix else key

    def _download(self, key: str, query: str) -> requests.Response:
        """Uses the SDK's own session, not its download, which drops Date and Last-Modified.

        That the real service sends Last-Modified with a download is unconfirmed (Google's own
        testbench sends none). Without it `modified_ms` is None, and leases expire by wall clock.
        """
        name = quote(self._full(key), safe="")
        answer: requests.Response = self._client._http.get(
            f"{self._client.api_endpoint}/download/storage/v1{self._bucket.path}/o/{name}"
            f"?alt=media{query}",
            headers=self._agent,
            timeout=self._timeout,
            stream=True,
            allow_redirects=False,
        )
        return answer

    def _pages(
        self,
        call: Deadline,
        doing: str,
        prefix: str,
        *,
        start: str | None = None,
        versions: bool | None = None,
    ) -> Iterator[Sequence[Any]]:
        pages = self._client.list_blobs(
            self._bucket,
            prefix=prefix,
            start_offset=start,
            versions=versions,
            timeout=self._timeout,
            retry=None,
        ).pages
        return new_pages(
            map(_entries, pages), lambda blob: (blob.name, blob.generation),
            call=call, endpoint=self._endpoint, doing=doing,
        )  # fmt: skip

    @contextmanager
    def _translated(self, doing: str) -> Iterator[Deadline]:
        """For requests without partial answers: every error is raised."""
        try:
            with self._endpoint.call() as call:
                yield call
        except SDK_ERRORS as error:
            self._endpoint.listing(WRITES, self._refusal(error, doing), doing)

    def _refusal(self, error: Exception, doing: str) -> ErrorResponse | Unknown:
        """What the store answered, or `Unknown` without an answer; raises what was never sent."""
        response = getattr(error, "response", None)
        if response is not None:
            return _refusal(response)
        if isinstance(error, google.auth.exceptions.DefaultCredentialsError):
            raise self._endpoint.unusable(
                f"cannot {doing}, there are no Google credentials", CREDENTIALS_CURE
            ) from None
        if isinstance(error, google.auth.exceptions.RefreshError) and not error.retryable:
            raise self._endpoint.unusable(
                f"cannot {doing}, the credentials have expired or were revoked", CREDENTIALS_CURE
            ) from None
        if isinstance(error, NONSENSE) and not isinstance(error, OSError):
            return self._endpoint.nonsense(error, doing)
        return self._endpoint.silence(error, doing)


def _entries(page: Any) -> Sequence[Any]:
    if not page.raw_page.keys() & {"kind", "items"}:  # the SDK reads any object as an empty page
        raise ForeignAnswer("Cloud Storage")
    return list(page)


def _refusal(response: requests.Response) -> ErrorResponse:
    # Not `.text`: without a charset in the answer it analyses every byte, for seconds.
    text = response.content[:ERROR_BYTES_MAX].decode("utf-8", "replace")
    return ErrorResponse(
        status=response.status_code,
        code=_code(response.status_code, text),
        retry_after_s=seconds(response.headers.get("Retry-After")),
        date_ms=epoch_ms(response.headers.get("Date")),
    )


def _code(status: int, text: str) -> str:
    """The `reason` of the JSON error; a download has it in plain text only."""
    if status == 404 and "bucket does not exist" in text:
        return "noSuchBucket"
    if status == 404 and (not text or text.startswith(NO_SUCH_OBJECT)):
        return ""
    try:
        error = json.loads(text)["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return "foreign" if status == 404 or text.lstrip()[:1] == "<" else ""
    try:
        return str(error["errors"][0]["reason"])
    except (KeyError, IndexError, TypeError):
        return ""


class _TimedGoogleCredentials:
    """A client's credentials, renewed within the time of the call that needs them.

    google-auth renews a token 3 min 45 s before its end. During a renewal, calls continue with the
    old one.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._renewal: TokenRenewal[None] = TokenRenewal()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def before_request(self, request: Any, method: str, url: str, headers: Any) -> None:
        call = current()
        if call is not None and not self._inner.valid:
            renewal = self._renewal.begin(
                lambda: self._inner.before_request(request, method, url, {})
            )
            if self._is_good():
                self._inner.apply(headers)
                return
            renewal.within(call)
        self._inner.before_request(request, method, url, headers)

    def _is_good(self) -> bool:
        expiry = getattr(self._inner, "expiry", None)  # in UTC, without saying so
        token = getattr(self._inner, "token", None)
        return bool(token and expiry and is_good(expiry.replace(tzinfo=UTC).timestamp() * 1000))


def _client(options: StoreOptions) -> google.cloud.storage.Client:
    extra = dict(options.extra)
    if options.endpoint:
        if "client_options" in extra:
            raise StoreError(
                "cannot open a gs:// URL with both endpoint= and client_options=; name the server "
                "as api_endpoint in client_options, and leave endpoint= out"
            )
        extra["client_options"] = {"api_endpoint": options.endpoint.rstrip("/")}
        # A local server has no Google accounts; one that Google runs has.
        extra.setdefault("use_auth_w_custom_endpoint", options.endpoint.startswith("https://"))
    # Finding credentials may require a metadata server or another program.
    opening = tokens.opening(options.timeout_s)
    about = ClientInfo(user_agent=agent(options.client))
    client = Awaited(lambda: google.cloud.storage.Client(client_info=about, **extra)).within(
        opening
    )
    # The SDK follows redirects, except for downloads. Conditions were tested at the named server;
    # no other server may get the request.
    client._http.get_redirect_target = lambda _answer: None
    if is_loopback(client.api_endpoint):
        client._http.trust_env = False  # HTTP_PROXY leads to another machine
    for each in client._http.adapters.values():
        each.init_poolmanager(CONNECTIONS_MAX, CONNECTIONS_MAX)
    keep_deadlines_of(client._http)
    renewal = getattr(client._http, "_auth_request_session", None)  # requests its tokens
    if renewal is not None:
        keep_deadlines_of(renewal)
    client._http.credentials = _TimedGoogleCredentials(client._http.credentials)
    if options.faults is not None:
        options.faults.install(client)
    return client
