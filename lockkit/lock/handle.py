"""The lock: acquire, hold, renew, release, over any store with conditional writes.

The protocol is `lease.step`, `StorageClient` runs it and `renewal` renews the lease; this file is
the class that a program uses. The lock object is Hudi's own, `LOCK_KEY` below the table, so lockkit
writers and Hudi writers exclude each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any

from lockkit import config as settings
from lockkit.clock import Clock, process_name
from lockkit.errors import NoAnswer, masked
from lockkit.lock import grant
from lockkit.lock.base import BaseLock, FencingToken, LateLoss, UnprovenRelease
from lockkit.lock.polling import PollingPace
from lockkit.lock.storage import LOCK_KEY, StorageClient, observation_of
from lockkit.protocol.expiry import free
from lockkit.protocol.outcome import Found, Missing
from lockkit.protocol.policy import Policy
from lockkit.protocol.record import RECORD_BYTES_MAX, is_believed
from lockkit.protocol.state import Identity, LastObservation, Observation
from lockkit.sinks import Emit, EventSink, silent
from lockkit.stores import Store, open_store, url_of
from lockkit.stores.within import within

__all__ = ["LOCK_KEY", "FencingToken", "LateLoss", "Lock", "UnprovenRelease"]


class Lock(BaseLock):
    """A lease on a table: at most one holder until it ends. It cannot stop a paused holder's write.

    If that matters, put `fence` into the write, and let its receiver refuse a lower one. The lease
    is renewed while the thread that acquired it or last used the handle is alive. One holder at a
    time; not reentrant. `on_danger` and `on_lost` are called from a thread that no request can
    delay. `release` raises `LockLost` after a loss. Times are in seconds, defaults Hudi's.

    :param url: the table's folder: s3://, gs://, az://, file://, memory://, or a `Path`.
    :param ttl_s: the length of the lease.
    :param renew_interval_s: at most `ttl_s` / 10, Hudi's rule; None: a tenth of `ttl_s`.
    :param owner, client: the name in the lock object (None: a new UUID); the name in events.
    :param policy: which clock ends a lease, and the allowances for clocks.
    :param acquire_timeout: the longest wait of `with`; None: for ever.
    :param timeout_s: the longest that one request may take, at most a fifth of the lease.
    :param on_danger, on_lost: `on_danger(lock)`, first if there is time; `on_lost(lock, why)`.
    :param emit: called with each event, from that thread and from the one that renews.
    :param clock: the source of time; tests replace it.
    :param store: an open store at `url`; `close` closes it.
    :param store_options: those of `open_store`; `TypeError` names an unknown keyword.
    :raises LockBusy, LockLost: from `with`; `StoreError`: a failing store; `RuntimeError`: misuse.
    """

    def __init__(
        self,
        url: str | PathLike[str],
        *,
        ttl_s: float = 300.0,
        renew_interval_s: float | None = None,
        owner: str | None = None,
        policy: Policy = Policy(),
        acquire_timeout: float | None = 60.0,
        timeout_s: float | None = None,
        on_danger: Callable[[Lock], None] | None = None,
        on_lost: Callable[[Lock, str], None] | None = None,
        emit: Emit = silent,
        clock: Clock | None = None,
        client: str = "",
        store: Store | None = None,
        **store_options: Any,
    ) -> None:
        url = url_of(url)
        settings.check(
            url=url, owner=owner, client=client, policy=policy, on_danger=on_danger,
            on_lost=on_lost, emit=emit, clock=clock, store=store,
        )  # fmt: skip
        ttl_s, renew_s = settings.lease_s(ttl_s, renew_interval_s)
        if store is not None and store_options:
            raise TypeError(f"store= is open already, and takes no {min(store_options)}=")
        if store_options:
            from lockkit.stores.keywords import check_keywords  # why: see there

            check_keywords(Lock, url, store_options)
        url, clock = url.rstrip("/"), clock or Clock()
        self.policy, self.on_danger, self.on_lost = policy, on_danger, on_lost
        self.owner = owner or clock.unique()
        request_s = settings.request_timeout_s(ttl_s, timeout_s)
        self.store = store or open_store(url, client=client, timeout_s=request_s, **store_options)
        lane = masked(client or owner or self.owner[:8])
        handle = clock.unique() if owner else self.owner
        asks = StorageClient(
            where=url,
            store=self.store,
            identity=Identity(self.owner, round(ttl_s * 1000), process_name(client), handle),
            policy=policy,
            clock=clock,
            polling=PollingPace(self.store.capabilities.write_interval_min_s * 1000),
            sink=EventSink(url, lane, emit, clock),
            interval_ms=round(renew_s * 1000),
            request_s=request_s,
            late_ms=min(grant.LATE_S, request_s) * 1000,
        )
        super().__init__(url, asks, lane=lane, acquire_timeout=acquire_timeout)
        self._client: StorageClient = asks
        self._floor_epoch = 0

    @classmethod
    def from_hudi(cls, config: Mapping[str, str], **options: Any) -> Lock:
        """A lock from Hudi's own configuration keys; `options` override them.

        Raises `ValueError` for a missing or invalid key; warns (`UnknownKey`) of an unused one.
        """
        from lockkit.lock.hudi_keys import of_storage_lock

        url, known = of_storage_lock(config, options, stacklevel=4)
        return cls(url, **known)

    # --- the public face -----------------------------------------------------------------------

    def acquire(
        self, blocking: bool = True, timeout: float | None = None, *,
        beside: Callable[[bool], None] | None = None,
    ) -> bool:  # fmt: skip
        """Take the lock; False if another owner still holds it at the deadline.

        `timeout=None` waits for ever, 0 tries once. If the store never answers, it returns at about
        `timeout`, but tries for at least 3 s. In every case it returns at most 6 s after `timeout`
        (9 s if the store's conditions are tested first): in that time it looks once more for a
        claim without an answer. After an exception (`StoreError`, Ctrl-C) nothing stays held.

        `beside(claiming)` is called in another thread in parallel with each look at the lock object
        (False) and each claim of it (True). What it reads during the winning claim counts as read
        under the lock, because that claim replaced the version that was seen free before. It must
        not raise.
        """
        return self._acquire(settings.limit_s(blocking, timeout), beside)

    def rise_above(self, epoch: int) -> None:
        """Raise this grant's epoch above `epoch`, the fence's, if it is not; used by commits.

        Epochs restart if the lock object was deleted by hand, or if a Hudi writer dropped our
        fields. One renewal writes the new epoch over exactly our version of the lock object, so no
        other client can have been granted the lock since. Raises `LockLost` if it is not ours now.
        """
        self._guard_process()
        self.observe_epoch(epoch)
        self._client.carry_out(grant.rise_above(self._client, self, self.assert_held, epoch))

    def locked(self) -> bool:
        """Whether the lock is held, by the expiry policy in force. One read."""
        self._guard_process()
        if self.owned():
            return True
        return not free(self.inspect(), self.clock.now(), self.policy)

    def inspect(self) -> LastObservation:
        """The lock object as it is now. Changes nothing, not even this handle's state."""
        self._guard_process()
        match self.store.get(LOCK_KEY, limit=RECORD_BYTES_MAX):
            case Found() as found:
                observation = observation_of(found)
            case Missing():
                observation = Observation(None, None)
            case other:
                raise NoAnswer(f"cannot read {self}: {other}; try again")
        now_ms = self.clock.boot_ms()
        return LastObservation(observation, now_ms, now_ms)

    def observe_epoch(self, epoch: int) -> None:
        """Note an epoch that was seen elsewhere, e.g. in the fence: the next grant exceeds it.

        A Hudi writer drops our fields when it rewrites the lock object, and the object may be
        deleted by hand; the fence still has the last epoch.
        """
        settings.check(epoch=epoch)
        if not is_believed(epoch := int(epoch)):
            raise ValueError(
                f"{epoch} is not an epoch of {self}: it leaves no room for more grants; repair the "
                f"fence with lockkit table repair-fence {self.url}"
            )
        self._floor_epoch = max(self._floor_epoch, epoch)

    @property
    def fence(self) -> FencingToken:
        """The guard for a commit under this grant. Raises `LockLost` if there is none."""
        self._guard_process()
        held = self._client.state.grant
        if held is None:
            self.assert_held()
        assert held is not None
        return FencingToken(held.epoch, self.owner)

    @property
    def store_offset_ms(self) -> int | None:
        """The store's clock minus ours, by the last `Date` (floored to a second); None: unknown."""
        return self._client.offset_ms

    def __str__(self) -> str:
        return f"the lock of {self.url}"

    # --- what overrides `BaseLock` ---------------------------------------------------------------

    def _shut(self) -> None:
        self.store.close()

    def _prepare(self, party: object, beside: Callable[[bool], None] | None) -> None:
        self._client.beside = beside

    def _floor(self) -> int:
        return self._floor_epoch

    def _test(self, seconds: float) -> None:
        if not self.store.server:
            return  # files and memory need no check
        from lockkit.lock.conformance import prove_conditions
        from lockkit.lock.creation_check import TABLE_KEY

        with within(seconds):
            prove_conditions(self.store, self.clock, key=TABLE_KEY, tries_max=1)
