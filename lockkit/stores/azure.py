"""Azure Blob Storage through azure-storage-blob.

One file because it is one adapter: the operations of `Store` and how their errors are read.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import azure.core.exceptions
from azure.core import MatchConditions
from azure.core.pipeline.transport import RequestsTransport
from azure.storage.blob import BlobClient, ContainerClient

from lockkit.errors import StoreError
from lockkit.protocol.outcome import (
    Applied,
    Condition,
    Found,
    IfAbsent,
    IfVersion,
    ReadAnswer,
    Unknown,
    Version,
    WriteAnswer,
)
from lockkit.stores import (
    Capabilities,
    ListEntry,
    Listing,
    ObjectVersion,
    StoreOptions,
    shown,
    split_url,
)
from lockkit.stores.connections import keep_deadlines_of
from lockkit.stores.deadline import Deadline, DeadlinePassed, current, in_time
from lockkit.stores.development import DEVELOPMENT_ACCOUNT as DEVELOPMENT_ACCOUNT
from lockkit.stores.development import DEVELOPMENT_KEY as DEVELOPMENT_KEY
from lockkit.stores.endpoint import (
    ANY_CODE,
    ANY_STATUS,
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
from lockkit.stores.tokens import TokenRenewal, is_good

# learn.microsoft.com/rest/api/storageservices: "Blob service error codes", "Specifying conditional
# headers". Rows marked (docs) were never observed by our tests and probes.
TABLE: Table = {
    **HTTP,
    (ANY_STATUS, "ConditionNotMet"): RefusalKind.CONDITION_FAILED,
    (304, "ConditionNotMet"): RefusalKind.UNCHANGED,
    # The opposite of S3's 409: an object already exists there.
    (409, "BlobAlreadyExists"): RefusalKind.CONDITION_FAILED,
    (404, "BlobNotFound"): RefusalKind.MISSING,
    # A native lease on the blob: none of our conditions failed, and waiting may not help. (docs)
    (412, "LeaseIdMissing"): RefusalKind.FAULT,
    (412, "LeaseIdMismatchWithBlobOperation"): RefusalKind.FAULT,
    # The container's name is being freed; nothing was or will be written. (docs)
    (409, "ContainerBeingDeleted"): RefusalKind.FAULT,
}

CURES: Mapping[tuple[int, str], str] = {
    (ANY_STATUS, "ContainerNotFound"): "there is no such container; create it, or correct the URL",
    (ANY_STATUS, "ContainerBeingDeleted"): "the container is being deleted; use another",
    (ANY_STATUS, "LeaseIdMissing"): "it has a native Azure lease; break that lease",
    (ANY_STATUS, "SnapshotsPresent"): "the blob has snapshots; delete those first",
    (ANY_STATUS, "AuthenticationFailed"): "the key, token or SAS is wrong or has expired, or this "
    "machine's clock is; renew the credential and check the clock",
    (ANY_STATUS, "InvalidHeaderValue"): "the server may not know this API version; pass "
    "api_version=... that it knows",
    (401, ANY_CODE): "the token is missing or has expired; log in again (az login)",
}

_READER = "the role Storage Blob Data Reader on the container"
RIGHTS = {
    **dict.fromkeys(("read", "list", "look", "compare"), _READER),
    "": "the role Storage Blob Data Contributor on the container",
}

API_VERSION = "2023-11-03"
"""Older than the SDK's default, which recent servers refuse (azurite 3.37.0: InvalidHeaderValue);
nothing newer is needed here."""

# The SDK logs a paragraph for each way to log in; discarded unless the program configures logging.
logging.getLogger("azure").addHandler(logging.NullHandler())

TOKENS_MAX = 8
"""One for each scope and tenant that the service requested, and one for each challenge."""

NONSENSE = (ValueError, AttributeError)
"""What the SDK raises for an answer that it cannot read (UnicodeDecodeError is a ValueError)."""
SDK_ERRORS = (azure.core.exceptions.AzureError, DeadlinePassed, OSError, *NONSENSE)


# The SDK's clients swallow every keyword (**kwargs). These are the ones that ContainerClient
# documents, with those of azure-core's transport that its README lists under "optional
# configuration"; time-outs, retries and the User-Agent are set here.
KEYWORDS = frozenset({
    "account_url", "credential", "api_version", "secondary_hostname", "audience",
    "max_block_size", "max_single_put_size", "min_large_block_upload_threshold", "use_byte_buffer",
    "max_page_size", "max_single_get_size", "max_chunk_get_size",
    "proxies", "connection_verify", "connection_cert", "transport",
})  # fmt: skip


class AzureStore:
    """`az://container/prefix`, or `abfss://container@account.dfs.core.windows.net/prefix`."""

    capabilities = Capabilities(name="azure", poll_min_s=0.06)

    @staticmethod
    def keywords() -> frozenset[str]:
        return KEYWORDS

    def __init__(self, url: str, options: StoreOptions = StoreOptions()) -> None:
        self.url = url
        self.options = options
        place, self._prefix = split_url(url)
        container, _, account_host = place.partition("@")
        self._endpoint = Endpoint(url, options, cures=CURES, rights=RIGHTS)
        self.refusals = self._endpoint.refusals
        try:
            self._client = _client(container, account_host, options)
        except ValueError as error:  # the SDK's error for a malformed URL, name or key
            raise self._endpoint.misconfigured(error) from None
        account = self._client.url.partition("?")[0].rpartition("/")[0]
        self._endpoint.opened(account)  # without the container
        self.server = self._endpoint.server
        _keep_time(self._client)
        if options.faults is not None:
            options.faults.install(self._client)

    @in_time
    def get(
        self, key: str, *, unless: Version | None = None, limit: int | None = None
    ) -> ReadAnswer:
        doing = f"read {key}"
        headers: dict[str, str] = {}
        options: dict[str, Any] = {"raw_response_hook": _keep_headers(headers)}
        if unless is not None:
            options |= {"etag": unless, "match_condition": MatchConditions.IfModified}
        if limit is not None:
            options |= {"offset": 0, "length": limit + 1}
        try:
            download = self.blob(key).download_blob(**options)
            body = download.readall()
        except SDK_ERRORS as error:
            refusal = self.refusal(error, doing)
            if isinstance(refusal, ErrorResponse) and refusal.status == 416 and limit is not None:
                return self.get(key, unless=unless)  # an empty blob has no range at all
            return self._endpoint.read(TABLE, refusal, doing)
        self._endpoint.mark_answered()
        if len(body) != download.size:
            return Unknown(f"{len(body)} of {download.size} bytes of {key} arrived")
        return Found(
            body,
            _quoted(download.properties.etag),
            epoch_ms(headers.get("last-modified")),
            epoch_ms(headers.get("date")),
        )

    @in_time
    def put(self, key: str, body: bytes, condition: Condition) -> WriteAnswer:
        """Above 64 MiB the SDK sends blocks; the condition then guards the list that joins them."""
        doing = f"write {key}"
        match condition:
            case IfAbsent():
                guard: dict[str, Any] = {"overwrite": False}
            case IfVersion(version):
                guard = {
                    "overwrite": True,
                    "etag": version,
                    "match_condition": MatchConditions.IfNotModified,
                }
        try:
            answer = self.blob(key).upload_blob(body, length=len(body), **guard)
        except SDK_ERRORS as error:
            return self._endpoint.write(TABLE, self.refusal(error, doing), doing)
        self._endpoint.mark_answered()
        if not answer.get("etag"):
            return Unknown(f"a 201 without an ETag to {doing}")
        return Applied(_quoted(answer["etag"]))

    @in_time
    def put_file(self, key: str, source: BinaryIO, size: int) -> WriteAnswer:
        doing = f"write {key}"
        try:
            answer = self.blob(key).upload_blob(source, length=size, overwrite=False)
        except SDK_ERRORS as error:
            return self._endpoint.write(TABLE, self.refusal(error, doing), doing)
        self._endpoint.mark_answered()
        return Applied(_quoted(answer.get("etag") or ""))

    @in_time
    def get_file(self, key: str, into: BinaryIO) -> ReadAnswer:
        doing = f"read {key}"
        try:
            download = self.blob(key).download_blob()
            length = download.readinto(into)
        except SDK_ERRORS as error:
            return self._endpoint.read(TABLE, self.refusal(error, doing), doing)
        self._endpoint.mark_answered()
        if length != download.size:
            return Unknown(f"{length} of {download.size} bytes of {key} arrived")
        return Found(b"", _quoted(download.properties.etag))

    def list(self, prefix: str, after: str = "") -> Listing:
        """The server sends all of `prefix`: this API version cannot start at a name."""
        with self._translated(f"list {prefix}*") as call:
            pages = [
                [
                    ListEntry(blob.name[len(self._full("")) :], blob.size, _quoted(blob.etag))
                    for blob in page
                    if blob.name > self._full(after)
                ]
                for page in self._pages(call, f"list {prefix}*", self._full(prefix))
            ]
        return joined(pages, snapshots=self.capabilities.snapshot_page)

    @in_time
    def delete(self, key: str, condition: IfVersion | None = None) -> WriteAnswer:
        doing = f"delete {key}"
        guard: dict[str, Any] = {}
        if condition is not None:
            guard = {"etag": condition.version, "match_condition": MatchConditions.IfNotModified}
        try:
            self.blob(key).delete_blob(**guard)
        except SDK_ERRORS as error:
            return self._endpoint.delete(TABLE, self.refusal(error, doing), doing)
        self._endpoint.mark_answered()
        return Applied("")

    def versions(self, key: str) -> Sequence[ObjectVersion]:
        full = self._full(key)
        with self._translated(f"list versions of {key}") as call:
            blobs = [
                blob
                for page in self._pages(call, f"list versions of {key}", full, include=["versions"])
                for blob in page
                if blob.name == full
            ]
        found = [
            ObjectVersion(
                version=_quoted(blob.etag),
                modified_ms=int(blob.last_modified.timestamp() * 1000),
                size=blob.size,
                # If the account keeps no versions, the listing shows the current blob.
                current=blob.version_id is None or bool(blob.is_current_version),
                id=blob.version_id or "",
            )
            for blob in blobs
        ]
        # A version id is its time, to 100 ns.
        return sorted(found, key=lambda v: (v.current, v.id), reverse=True)

    def get_version(self, key: str, version: ObjectVersion) -> bytes:
        options: dict[str, Any] = {"version_id": version.id}
        if not version.id:
            options = {"etag": version.version, "match_condition": MatchConditions.IfNotModified}
        with self._translated(f"read {key} version {version.id}"):
            body: bytes = self.blob(key).download_blob(**options).readall()
            return body

    def __repr__(self) -> str:
        return shown(self)

    def close(self) -> None:
        self._client.close()

    def _full(self, key: str) -> str:
        return f"{self._prefix}/{key}" if self._prefix else key

    def blob(self, key: str) -> BlobClient:
        """The SDK's own client of one blob."""
        return self._client.get_blob_client(self._full(key))

    def _pages(
        self, call: Deadline, doing: str, prefix: str, **options: Any
    ) -> Iterator[Sequence[Any]]:
        pages = self._client.list_blobs(name_starts_with=prefix, **options).by_page()
        return new_pages(
            map(list, pages), lambda blob: (blob.name, blob.version_id),
            call=call, endpoint=self._endpoint, doing=doing,
        )  # fmt: skip

    @contextmanager
    def _translated(self, doing: str) -> Iterator[Deadline]:
        """For requests without partial answers: every error is raised."""
        try:
            with self._endpoint.call() as call:
                yield call
        except SDK_ERRORS as error:
            self._endpoint.listing(TABLE, self.refusal(error, doing), doing)

    def refusal(self, error: Exception, doing: str) -> ErrorResponse | Unknown:
        """What the store answered, or `Unknown` without an answer; raises what was never sent."""
        response = getattr(error, "response", None)
        status = getattr(error, "status_code", None)
        if response is not None and status:
            # The header, not the exception: the SDK rewrites a 412 to its own BlobAlreadyExists.
            headers = {name.lower(): value for name, value in response.headers.items()}
            code = headers.get("x-ms-error-code") or getattr(error, "error_code", None) or ""
            return ErrorResponse(
                status=int(status),
                code=str(getattr(code, "value", code)),
                retry_after_s=seconds(headers.get("retry-after")),
                date_ms=epoch_ms(headers.get("date")),
            )
        if isinstance(error, azure.core.exceptions.ClientAuthenticationError):
            raise self._endpoint.unusable(
                f"cannot {doing}, no usable Azure credential ({type(error).__name__})",
                "run `az login`, or pass credential=...",
            ) from None
        if isinstance(error, NONSENSE):
            return self._endpoint.nonsense(error, doing)
        return self._endpoint.silence(error, doing)


def _keep_headers(into: dict[str, str]) -> Any:
    """A hook that keeps the first answer's headers: the SDK's own result has no Date."""

    def keep(answer: Any) -> None:
        _refuse_foreign(answer)
        for name, value in answer.http_response.headers.items():
            into.setdefault(name.lower(), value)

    return keep


def _refuse_foreign(answer: Any) -> None:
    """The SDK takes any page with the right status for a blob without a lease, or a renewal."""
    response = answer.http_response
    said = [name for name in response.headers if name.lower().startswith("x-ms-")]
    if response.status_code < 300 and not said:
        raise ForeignAnswer("Azure Blob Storage")


class TimedCredential:
    """A credential whose tokens are requested within the time of the call that needs them.

    azure-core requests a new one in the last five minutes of the old one, or when the service
    challenges it (`claims`). During a renewal, calls continue with the old one.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._renewals: dict[str, TokenRenewal[Any]] = {}
        self._tokens: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return partial(self._in_time, found) if name in ("get_token", "get_token_info") else found

    def _in_time(self, ask: Any, *scopes: str, **options: Any) -> Any:
        """The token, or the previous one if it is still valid."""
        call = current()
        if call is None:
            return ask(*scopes, **options)
        wanted = repr((ask.__name__, scopes, options))
        if len(self._renewals) > TOKENS_MAX:
            self._renewals, self._tokens = {}, {}
        had = self._tokens.get(wanted)
        renewal = self._renewals.setdefault(wanted, TokenRenewal()).begin(
            lambda: self._keep(wanted, ask(*scopes, **options))
        )
        if had is not None and is_good(had.expires_on * 1000):
            return had
        return renewal.within(call)

    def _keep(self, wanted: str, token: Any) -> Any:
        self._tokens[wanted] = token
        return token


def _quoted(etag: str) -> Version:
    """Headers carry an ETag in quotes, listings without."""
    return etag if etag.startswith(('"', "W/")) else f'"{etag}"'


def _keep_time(client: ContainerClient) -> None:
    """By the session of its transport, which clients of single blobs share."""
    transport = client._pipeline._transport
    if isinstance(transport, RequestsTransport):  # a caller may bring another, e.g. a recorder
        transport.open()
        keep_deadlines_of(transport.session)


def _client(container: str, account_host: str, options: StoreOptions) -> ContainerClient:
    extra = dict(options.extra)
    connect_s, read_s = timeouts_s(options.timeout_s)
    settings: dict[str, Any] = {
        # One attempt: a hidden retry of a write that landed gets a 409 (azure-sdk-for-net #29944).
        "retry_total": options.attempts - 1,
        # Conditions were tested at the named server; no other server may get the request.
        "permit_redirects": False,
        "connection_timeout": connect_s,
        "read_timeout": read_s,
        "user_agent": agent(options.client),
        "api_version": extra.pop("api_version", API_VERSION),
        "raw_response_hook": _refuse_foreign,
    }
    account_url: str = extra.pop("account_url", None) or ""
    if account_url and options.endpoint:
        raise StoreError(
            f"cannot open az://{container}: endpoint= and account_url= both say where it is; pass "
            "one of them"
        )
    account_url = account_url or _account_url(account_host, options.endpoint)
    _refuse_other_account(container, account_host, account_url)
    connection = os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
    if not account_url and connection and "credential" not in extra:
        client = ContainerClient.from_connection_string(connection, container, **settings, **extra)
        if not is_loopback(client.url):
            return client
        client.close()
        settings["use_env_settings"] = False  # HTTP_PROXY leads to another machine
        return ContainerClient.from_connection_string(connection, container, **settings, **extra)
    if not account_url:
        raise StoreError(
            f"cannot open az://{container}: it names no account; pass account_url=..., set "
            "AZURE_STORAGE_ACCOUNT, or write abfss://container@account.dfs.core.windows.net/"
        )
    if "credential" not in extra:
        extra["credential"] = _credential(account_url)
    if hasattr(extra["credential"], "get_token"):
        if account_url.lower().startswith("http:"):
            raise StoreError(
                f"cannot log in at {urlsplit(account_url).hostname}: Azure's tokens are sent over "
                "https only, and no account key was given for http; set AZURE_STORAGE_KEY or "
                "AZURE_STORAGE_SAS_TOKEN, or pass credential=... (`lockkit serve` takes any key)"
            )
        extra["credential"] = TimedCredential(extra["credential"])
    if is_loopback(account_url):
        settings["use_env_settings"] = False  # HTTP_PROXY leads to another machine
    return ContainerClient(account_url, container, **settings, **extra)


def _refuse_other_account(container: str, account_host: str, account_url: str) -> None:
    """If the URL names one account and the address another, one of them would be ignored.

    A custom domain without a path does not show its account.
    """
    named = account_host.partition(".")[0].lower()
    parts = urlsplit(account_url)
    host, path = (parts.hostname or "").lower(), parts.path.lower().strip("/").split("/")
    own = ".blob." in host or ".dfs." in host
    addressed = [host.partition(".")[0].removesuffix("-secondary")] if own else path
    if named and any(addressed) and named not in addressed:
        raise StoreError(
            f"cannot open {container}@{named[:60]}: the URL names the account {named[:60]!r}, but "
            f"the address that was passed has {'/'.join(addressed)[:60]!r}; correct one of them"
        )


def _account_url(account_host: str, endpoint: str | None) -> str:
    if endpoint:
        # A local server has its account in the path; Azure's own hosts have it in their name.
        has_account = urlsplit(endpoint).path.strip("/") or ".blob.core." in endpoint
        named = account_host.partition(".")[0] or DEVELOPMENT_ACCOUNT
        return endpoint if has_account else f"{endpoint.rstrip('/')}/{named}"
    if account_host:
        return f"https://{account_host.replace('.dfs.', '.blob.')}"
    account = os.environ.get("AZURE_STORAGE_ACCOUNT") or os.environ.get(
        "AZURE_STORAGE_ACCOUNT_NAME"
    )
    return f"https://{account}.blob.core.windows.net" if account else ""


def _credential(account_url: str) -> Any:
    parts = urlsplit(account_url)
    if parts.path.strip("/") == DEVELOPMENT_ACCOUNT:
        return {"account_name": DEVELOPMENT_ACCOUNT, "account_key": DEVELOPMENT_KEY}
    if parts.query:
        return None  # a SAS in the URL
    for name in ("AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"):
        if os.environ.get(name):
            return os.environ[name]
    try:
        from azure.identity import DefaultAzureCredential
    except ModuleNotFoundError:
        raise StoreError(
            f"cannot log in at {parts.hostname}: no credential was given and the Python package "
            "azure-identity is not installed; pass credential=..., or pip install azure-identity"
        ) from None
    return DefaultAzureCredential()
