"""A native lease on an Azure blob: while it lasts, the server refuses writes without its id.

The client chooses the lease's id before it sends the request, so a request whose answer was lost is
repeated unchanged. The lease guards this one blob. For a table's other objects it is an ordinary
lock without a rising number.

A grant leaves the blob's ETag as it was. So the holder writes its lease's id and its name into the
blob's metadata before `acquire` returns: `lock break` ends exactly that lease, never a later one.
The id is no secret: a client that may write the blob may also break its lease.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote, unquote
from uuid import UUID

from lockkit.clock import process_name
from lockkit.config import check, seconds
from lockkit.errors import NoAnswer, StoreError, clipped
from lockkit.protocol.outcome import (
    Applied,
    IfAbsent,
    Unknown,
    WriteAnswer,
)
from lockkit.providers.holder import ServiceHolder
from lockkit.providers.leased import GrantOver, LeasedLock, NotFree, ServiceGrant
from lockkit.stores import StoreOptions, refuse_secret
from lockkit.stores.endpoint import Endpoint, ErrorResponse, RefusalKind, Table
from lockkit.stores.keywords import check_endpoint

TTL_S_MIN, TTL_S_MAX = 15, 60
"""Azure's limits for a lease that ends; a lease may also have no end."""
BEATS_PER_LEASE = 4
BEAT_S = 15.0
"""How often the holder of a lease without end checks that nobody has broken it."""
LOOK_S = 1.0
TRIES_MAX = 3
"""Requests of one try at most: acquire the lease, create the blob, acquire the lease."""
LEASE_ID, OWNER, PROCESS = "lockkit_lease", "lockkit_owner", "lockkit_process"
"""The holder's entries in the blob's metadata. No other entry has a name with this prefix."""
FOR_EVER = -1
OWNER_CHARS_MAX = 200
NAMELESS = "somebody, by an Azure lease"

# learn.microsoft.com/rest/api/storageservices/lease-blob, "Remarks".
LEASES: Table = {
    (409, "LeaseAlreadyPresent"): RefusalKind.CONDITION_FAILED,
    (409, "LeaseIsBreakingAndCannotBeAcquired"): RefusalKind.CONDITION_FAILED,
    (409, "LeaseIdMismatchWithLeaseOperation"): RefusalKind.CONDITION_FAILED,
    (409, "LeaseIsBrokenAndCannotBeRenewed"): RefusalKind.CONDITION_FAILED,
    (409, "LeaseNotPresentWithLeaseOperation"): RefusalKind.CONDITION_FAILED,
    (412, "LeaseIdMismatchWithBlobOperation"): RefusalKind.CONDITION_FAILED,
    (412, "LeaseNotPresentWithBlobOperation"): RefusalKind.CONDITION_FAILED,
}
CURES: Mapping[tuple[int, str], str] = {
    (400, "InvalidHeaderValue"): "a lease lasts 15 to 60 s or for ever; else the server may not "
    "know this API version: pass api_version=...",
}

T = TypeVar("T")


class AzureBlobLease(LeasedLock):
    """The lease of the blob at `az://container/blob` (or `abfss://`), made empty if it is absent.

    Each grant rewrites the blob's metadata, so the blob has a new ETag, and in an account that
    keeps versions a new version; its content and its other metadata stay.

    While it is held, writes to the blob must carry `lease_id`.

    :param url: the blob, as `az://container/blob` or `abfss://...`.
    :param ttl_s: the length of the lease, a whole number of seconds from 15 to 60; None: a lease
        without end, which outlives a crash until its holder or `break_lease()` ends it.
    :param beat_s: the time between renewals, in seconds; None: a quarter of
        the lease, or 15 s of one without end.
    :param look_s: the time between two looks of a waiter, in seconds.
    :param endpoint: another server than Azure's own, as `http://host:port`.
    :param account_url: the address of the storage account.
    :param credential: what Azure's client takes as its credential.
    :param client: the name of this handle in events and in the User-Agent.
    :param azure: further arguments of Azure's client.
    :param options: the keywords of every lock; `LeasedLock` lists them.
    """

    service = "azure-lease"
    lease_keyword = ("ttl_s", 1)

    def __init__(
        self,
        url: str,
        *,
        ttl_s: float | None = 60,
        beat_s: float | None = None,
        look_s: float = LOOK_S,
        endpoint: str | None = None,
        account_url: str | None = None,
        credential: Any = None,
        client: str = "",
        azure: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        check(url=url, client=client)
        refuse_secret(url)
        check_endpoint(endpoint, f"cannot open {url!r:.200}")
        if ttl_s is not None and ttl_s not in range(TTL_S_MIN, TTL_S_MAX + 1):
            raise ValueError(
                f"ttl_s is a whole number of seconds from {TTL_S_MIN} to {TTL_S_MAX} (Azure's "
                f"limits), or None: for ever; not {ttl_s!r}"
            )
        ttl_s = None if ttl_s is None else int(ttl_s)
        if beat_s is None:
            beat_s = BEAT_S if ttl_s is None else ttl_s / BEATS_PER_LEASE
        beat_s, look_s = seconds("beat_s", beat_s), seconds("look_s", look_s)
        super().__init__(url, ttl_s=ttl_s, beat_s=beat_s, client=client, **options)
        if url.startswith("az://"):
            there = {"endpoint": endpoint, "account_url": account_url}
            query = "&".join(f"{name}={value}" for name, value in there.items() if value)
            self.address = f"azure-lease://{url[5:]}{query and f'?{query}'}"
        self._look_s = look_s
        self._id, self._taking, self._giving = "", False, False
        """The id of a lease whose release was sent and got no answer."""
        parent, _, self._name = url.rpartition("/")
        extra = {"account_url": account_url, "credential": credential, **(azure or {})}
        store = StoreOptions(
            endpoint=endpoint, client=client,
            timeout_s=10.0 if ttl_s is None else min(10.0, ttl_s / 5),
            extra={name: value for name, value in extra.items() if value is not None},
        )  # fmt: skip
        if not self._name or parent.endswith("/"):
            raise ValueError(f"{url!r:.200} names no blob; write az://container/blob")
        try:
            from lockkit.stores import azure as adapter
        except ModuleNotFoundError as missing:
            raise StoreError(
                f"{self}: the Python package {missing.name!r} is not installed; "
                "pip install 'lockkit[azure]'"
            ) from None
        self._table: Table = {**adapter.TABLE, **LEASES}
        self._errors = adapter.SDK_ERRORS
        cures = {**adapter.CURES, **CURES}
        self._endpoint = Endpoint(str(self), store, cures=cures, rights=adapter.RIGHTS)
        self._store = adapter.AzureStore(parent, store)
        self._blob = self._store.blob(self._name)

    @property
    def lease_id(self) -> str:
        """The lease's id for a write to this blob: `upload_blob(..., lease=lock.lease_id)`.

        While the lease lasts, Azure refuses other writes (412 LeaseIdMissing, LeaseIdMismatch...).
        Once it is over, Azure refuses this one. Raises `LockLost` if the lock is not held.
        """
        self.assert_held()
        return self._id

    def break_lease(self) -> None:
        """End the blob's lease at once, whoever the holder. lockkit never does so by itself.

        Azure refuses the holder's next write and its next renewal. Raises `NoAnswer` if the service
        did not confirm it.
        """
        ends_now = {"lease_break_period": 0}
        self._landed(self._write("break it", lambda: self._lease().break_lease(**ends_now)))

    # --- the provider's requests -----------------------------------------------------------------

    def _take(self) -> ServiceGrant | NotFree:
        if self._giving:  # it may still land, and would end a new grant with the same id
            self._landed(self._write("give it back", self._lease().release))
            self._id, self._giving = "", False
        self._id = self._id or self.clock.unique()
        seconds = FOR_EVER if self.ttl_s is None else int(self.ttl_s)
        for _ in range(TRIES_MAX):
            sent_ms = self.clock.boot_ms()
            answer = self._write("take it", lambda: self._lease().acquire(lease_duration=seconds))
            self._taking = self._taking or isinstance(answer, Unknown)
            if self._landed(answer):
                self._taking = True  # until its record is confirmed it can be withdrawn
                if self._recorded():
                    self._taking = False
                    return ServiceGrant(self._id, None, sent_ms)
                self._id, self._taking = self.clock.unique(), False
            elif (found := self._properties()) is not None:
                return NotFree(self._named(found)[1], self._look_s)
            made = partial(self._store.put, self._name, b"", IfAbsent())
            self._events.ask("make its blob", made)  # another client may create it first
        raise NoAnswer(f"{self}: its blob is created and deleted again and again; try again")

    def _recorded(self) -> bool:
        """Name this grant in the blob's metadata; False: its lease has been broken meanwhile."""
        found = self._properties()
        if found is None:
            return False
        mine = {LEASE_ID: self._id, OWNER: quote(clipped(self.owner, OWNER_CHARS_MAX), safe="@:/")}
        mine[PROCESS] = quote(process_name(), safe="@:/")
        others = {k: v for k, v in (found.metadata or {}).items() if k.lower() not in mine}
        record = partial(self._blob.set_blob_metadata, {**others, **mine}, lease=self._id)
        return self._landed(self._write("name its holder", record))

    def _withdraw(self) -> None:
        if self._taking or self._giving:
            self._landed(self._write("give it back", self._lease().release))
        self._id, self._taking, self._giving = "", False, False

    def _beat(self, taken: ServiceGrant) -> None:
        if not self._landed(self._write("renew it", self._lease().renew)):
            raise GrantOver("Azure reports that the lease is over, broken or another owner's")

    def _give_back(self, taken: ServiceGrant) -> None:
        answer = self._write("give it back", self._lease().release)
        lost_before, self._giving = self._giving, self._giving or isinstance(answer, Unknown)
        was_ours = self._landed(answer) or lost_before
        # The next grant has another id: a write of this grant cannot pass under it.
        self._id, self._giving = "", False
        if not was_ours:
            raise GrantOver("Azure reports that the lease was over, broken or another owner's")

    def _holder(self) -> ServiceHolder | None:
        found = self._properties()
        if found is None or found.lease.status != "locked":
            return None
        endless = found.lease.duration == "infinite"
        ends = "never: only its holder or a break ends it" if endless else "60 s after its renewal"
        kept = "" if endless else "it was renewed within its last 60 s, or it would be over"
        lease_s = None if endless else float(TTL_S_MAX)  # Azure does not show a shorter one
        id, owner, process = self._named(found)
        return ServiceHolder(
            owner, id or str(found.etag), ends, certain=bool(id), process=process,
            kept_alive=kept, lease_s=lease_s,
        )  # fmt: skip

    def _named(self, found: Any) -> tuple[str, str, str]:
        """(lease's id, owner, process) from the metadata, if they name the current lease.

        Azure itself names no holder.
        """
        said = {name.lower(): value for name, value in (found.metadata or {}).items()}
        id = said.get(LEASE_ID, "")
        if not (_is_lease(id) and self._is_current(id)):
            return "", NAMELESS, ""
        return id, unquote(said.get(OWNER, "")), unquote(said.get(PROCESS, ""))

    def _break_grant(self, version: str) -> bool:
        """Exactly that lease; that of a holder who left no record is guarded by the blob's ETag."""
        from azure.core import MatchConditions

        if _is_lease(version):
            return self._landed(self._write("break it", self._lease(version).release))
        ends_now = {"lease_break_period": 0}
        exactly = {"etag": version, "match_condition": MatchConditions.IfNotModified}
        return self._landed(
            self._write("break it", lambda: self._lease().break_lease(**ends_now, **exactly))
        )

    def _shut(self) -> None:
        self._store.close()

    # --- requests --------------------------------------------------------------------------------

    def _lease(self, id: str = "") -> Any:
        from azure.storage.blob import BlobLeaseClient

        return BlobLeaseClient(self._blob, lease_id=id or self._id or None)

    def _properties(self) -> Any:
        """The blob's properties; None: there is no blob."""
        found = self._send("look at it", self._blob.get_blob_properties)
        if isinstance(found, ErrorResponse | Unknown):
            if isinstance(found, ErrorResponse) and found.code == "BlobNotFound":
                return None
            self._endpoint.listing(self._table, found, "look at it")
        return found

    def _is_current(self, id: str) -> bool:
        """Whether the blob's lease has this id: Azure compares ids but does not reveal one."""
        look = partial(self._blob.get_blob_properties, lease=id)
        return self._landed(self._write("compare its lease", look))

    def _write(self, doing: str, send: Callable[[], object]) -> WriteAnswer:
        said = self._send(doing, send)
        if isinstance(said, ErrorResponse | Unknown):
            return self._endpoint.write(self._table, said, doing)
        return Applied("")

    def _send(self, doing: str, send: Callable[[], T]) -> T | ErrorResponse | Unknown:
        return self._events.ask(doing, lambda: self._answer(doing, send))

    def _answer(self, doing: str, send: Callable[[], T]) -> T | ErrorResponse | Unknown:
        try:
            with self._endpoint.call():
                said = send()
        except self._errors as error:
            return self._store.refusal(error, doing)
        self._endpoint.mark_answered()
        return said


def _is_lease(version: str) -> bool:
    """Whether it is a lease's id, not an ETag."""
    try:
        return str(UUID(version)) == version.lower()
    except ValueError:
        return False
