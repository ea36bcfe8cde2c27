"""Object stores behind one small protocol: get, put if, list, delete, versions.

Adapters translate; they never retry, wait or decide. `open_store(url)` chooses one:
`s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix` (also `abfss://`), `file:///path`,
`memory://name`. Credentials come from each SDK's own chain and are never kept or shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from os import PathLike, fspath
from pathlib import Path
from typing import Any, BinaryIO, Protocol
from urllib.parse import unquote

from lockkit.errors import StoreError
from lockkit.protocol.outcome import Condition, IfVersion, ReadAnswer, Version, WriteAnswer
from lockkit.stores.secret import carries_secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a provider documents. `probe` tests what an endpoint really does."""

    name: str
    poll_min_s: float
    """Reading one object more often than this gains nothing."""
    write_interval_min_s: float = 0.0
    """Writes to one object closer together than this are throttled (GCS, R2: 1 s)."""
    content_versions: bool = False
    """Versions are content hashes: equal bytes have equal versions (S3 without KMS)."""
    conditional_delete: bool = True
    snapshot_page: bool = True
    """One answer to a listing shows the objects of one moment: observed, but documented nowhere.

    S3, GCS and Azure document that a listing shows every write acknowledged before it was sent.
    """


@dataclass(frozen=True, slots=True)
class ListEntry:
    """One object of a listing."""

    key: str
    size: int
    version: Version | None = None


class Listing(list[ListEntry]):
    """The objects of a listing, and whether they all existed at one moment.

    `snapshot` is False if the store answered in several pages: a write made between two pages may
    be missing although a later one is shown. The entries from `last_page` on came in one answer.
    """

    def __init__(
        self, entries: Iterable[ListEntry], *, snapshot: bool = True, last_page: int | None = None
    ) -> None:
        super().__init__(entries)
        self.snapshot = snapshot
        self.last_page = len(self) if last_page is None else last_page


@dataclass(frozen=True, slots=True)
class ObjectVersion:
    """One past or present state of an object, as the bucket kept it. Newest first in a list."""

    version: Version
    modified_ms: int
    size: int
    current: bool
    deleted: bool = False
    id: str = ""
    """The provider's version id (S3 VersionId, GCS generation, Azure version id)."""


CHUNK_BYTES = 1 << 20
"""How much of a large object is in memory at a time."""
TIMEOUT_S_MAX = 86_400.0


class Hooks(Protocol):
    """A layer between an SDK's client and the network, such as `lockkit.lab.faults.Faulty`."""

    def install(self, client: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Options of every adapter, for all providers."""

    endpoint: str | None = None
    """Another server than the provider's own, e.g. `http://127.0.0.1:9000`."""
    timeout_s: float = 10.0
    """The longest that one call may take in all, from name resolution to the last byte.

    A call whose body is longer than 256 KiB has one more second for each further 64 KiB, up to two
    hours; an answer's body counts if its length is announced. A listing has this time again for
    each 1000 keys. After it, a call is `Unknown` and a listing raises `NoAnswer`.
    """
    client: str = ""
    """This client's name; sent in the User-Agent, so that a server's request record shows it."""
    attempts: int = 1
    """How often the SDK may send one request. Once for requests that decide: a lock, a timeline."""
    faults: Hooks | None = None
    """The faults to inject below the SDK's retries."""
    extra: dict[str, Any] = field(default_factory=dict, repr=False)
    """Provider options, passed on to the SDK client (region_name, account_url, credential)."""


class Store(Protocol):
    """Keys are relative to `url`'s prefix, use `/`, and never start with one."""

    url: str
    options: StoreOptions
    """The options that it was opened with, so that it can be opened again."""
    server: str
    """Where the opened client really sends its requests, as `scheme://host:port/path`.

    Profiles, environment variables and connection strings also decide this, not only
    `options.endpoint`. Empty for a store without a server.
    """
    capabilities: Capabilities

    def get(
        self, key: str, *, unless: Version | None = None, limit: int | None = None
    ) -> ReadAnswer:
        """The object, or `NotModified` if it still has version `unless`.

        With `limit`, at most `limit` + 1 bytes of the body are read; one more shows it is longer.
        """
        ...

    def put(self, key: str, body: bytes, condition: Condition) -> WriteAnswer:
        """One conditional write, sent exactly once."""
        ...

    def list(self, prefix: str, after: str = "") -> Listing:
        """Every object whose key starts with `prefix` and is greater than `after`, in key order.

        All pages; the listing says whether it is a snapshot. If the provider supports it, the
        listing starts at `after`, so that earlier keys cost nothing.
        """
        ...

    def put_file(self, key: str, source: BinaryIO, size: int) -> WriteAnswer:
        """Create `key` from a seekable file, if absent, without holding it in memory."""
        ...

    def get_file(self, key: str, into: BinaryIO) -> ReadAnswer:
        """As `get`, but the body goes into a file. Without `Found` it may hold a part of it."""
        ...

    def delete(self, key: str, condition: IfVersion | None = None) -> WriteAnswer:
        """`Applied("")` if it is gone, `PreconditionFailed` if it changed.

        A missing object counts as gone, but Azure answers 412 to a conditional delete of one.
        """
        ...

    def versions(self, key: str) -> Sequence[ObjectVersion]:
        """Past versions, newest first; only the current one if the bucket keeps none."""
        ...

    def get_version(self, key: str, version: ObjectVersion) -> bytes:
        """The bytes of one past version."""
        ...

    def close(self) -> None: ...


_ADAPTERS = {
    "s3": ("lockkit.stores.s3", "S3Store"),
    "s3a": ("lockkit.stores.s3", "S3Store"),
    "gs": ("lockkit.stores.gcs", "GcsStore"),
    "az": ("lockkit.stores.azure", "AzureStore"),
    "abfs": ("lockkit.stores.azure", "AzureStore"),
    "abfss": ("lockkit.stores.azure", "AzureStore"),
    "file": ("lockkit.stores.local", "LocalStore"),
    "memory": ("lockkit.stores.memory", "MemoryStore"),
}


def open_store(
    url: str | PathLike[str],
    *,
    endpoint: str | None = None,
    timeout_s: float = 10.0,
    client: str = "",
    attempts: int = 1,
    faults: Hooks | None = None,
    **extra: Any,
) -> Store:
    """The store at `url`.

    :param url: its scheme selects the adapter (`StoreError` if there is none for it); or a folder's
        path.
    :param endpoint, timeout_s, client, attempts, faults: as in `StoreOptions`.
    :param extra: goes to the SDK's client; `TypeError` names a keyword that it does not take.
    """
    url = url_of(url)
    options = StoreOptions(endpoint, timeout_s, client, attempts, faults, extra)
    sound = (type(url), type(timeout_s), type(client), type(attempts)) == (str, float, str, int)
    sound = sound and 0 < timeout_s <= TIMEOUT_S_MAX and attempts >= 1
    if extra or endpoint is not None or faults is not None or not sound:
        from lockkit.stores.keywords import checked_options  # why: see there

        options = checked_options(url, options)
    store: Store = adapter_of(url)[1](url, options)
    return store


def url_of(place: str | PathLike[str]) -> str:
    """The URL of a local folder's path. Everything else as it is: a URL, or what is refused."""
    folder: Any = fspath(place) if isinstance(place, PathLike) else None
    if not isinstance(folder, str) or folder.encode(errors="ignore").decode() != folder:
        return place  # type: ignore[return-value]
    return Path(folder).absolute().as_uri()


def shown(store: Store) -> str:
    """The `repr` of a store: its kind, its URL and its server; never the value of an option."""
    server = f" at {store.server}" if store.server else ""
    return f"<{type(store).__name__} {store.url}{server}>"


def adapter_of(url: str) -> tuple[str, Any]:
    """The scheme of `url`, and the class that opens it."""
    scheme = url.partition(":")[0].lower() if ":" in url else ""
    refuse_secret(url)
    if scheme not in _ADAPTERS:
        raise refusals().unknown_scheme(url, scheme)
    module, name = _ADAPTERS[scheme]
    try:
        return scheme, getattr(import_module(module), name)
    except ModuleNotFoundError as missing:
        raise refusals().not_installed(url, scheme, missing.name) from None


def refusals() -> Any:
    """The module of the errors, which is loaded only to raise one."""
    return import_module("lockkit.stores.arguments")


def refuse_secret(url: str) -> None:
    """`StoreError` for a URL that carries a credential; the error does not repeat it."""
    if carries_secret(url):
        raise refusals().secret_in(url)


def folder_of(url: str) -> Path | None:
    """The directory that holds the store's keys as plain files; None if it is not one."""
    return Path(unquote(url.partition("://")[2])) if url.lower().startswith("file://") else None


def split_url(url: str) -> tuple[str, str]:
    """`scheme://bucket/prefix` as (bucket, prefix); the prefix has no slash at either end.

    Not urlsplit: `?` and `#` are letters in an object's key.
    """
    refuse_secret(url)
    bucket, _, prefix = url.partition("://")[2].partition("/")
    if not bucket:
        raise StoreError(f"cannot open {url!r}: it names no bucket; write scheme://bucket/prefix")
    return bucket, prefix.strip("/")
