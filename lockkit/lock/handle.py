"""The lock: acquire, hold, renew, release, over any store with conditional writes.

The protocol is `lease.step`; `client` carries out what it asks, `heartbeat` renews, and this file
is what a program holds in its hand. The lock object is Hudi's own, `LOCK_KEY` below the table, so a
lockkit writer and a Hudi writer exclude each other.

One file because it is the public class: one place to read what a lock offers.
"""

from __future__ import annotations

import os
import socket
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from lockkit import config as settings
from lockkit.clock import Clock, utc
from lockkit.errors import LockBusy, LockLost, NoAnswer, StoreError
from lockkit.lock import grant
from lockkit.lock.conformance import TABLE_KEY, prove_conditions
from lockkit.lock.hudi_keys import PROVIDER, STORAGE, checked, warn_of_unused
from lockkit.lock.polling import PollingPace
from lockkit.lock.renewal import RenewalThreads
from lockkit.lock.storage import LOCK_KEY as LOCK_KEY
from lockkit.lock.storage import LeaseClient, sight_of
from lockkit.protocol.expiry import free
from lockkit.protocol.outcome import Found, Missing
from lockkit.protocol.policy import Policy
from lockkit.protocol.record import RECORD_BYTES_MAX, is_believed
from lockkit.protocol.state import Identity, LastObservation, Observation, believes
from lockkit.runtime import Procedure, Sleep
from lockkit.sinks import Emit, EventSink, silent
from lockkit.stores import Store, check_keywords, open_store
from lockkit.stores.deadline import within

NAME_CHARS_MAX = 1_000


class UnprovenRelease(UserWarning):
    """Nobody told us that the release landed; the lease ends by itself."""


class LateLoss(UserWarning):
    """The lease was lost, but only after the work under it was published."""


class Cancelled(Exception):
    """Another thread called `cancel` on the handle that waits; `acquire` returns False."""


class AcquireWait:
    """The one acquire of a handle that may be under way, which other threads may call off."""

    def __init__(self) -> None:
        self.woken = threading.Event()
        """Ends a wait early; then `check` says why."""
        self._turn = threading.Lock()
        self._under_way = self._cancelled = False

    def begin(self) -> bool:
        """False if another thread acquires this handle already."""
        with self._turn:
            begun, self._under_way = not self._under_way, True
            return begun

    def end(self) -> None:
        with self._turn:
            self._under_way = self._cancelled = False
            self.woken.clear()

    def cancel(self) -> bool:
        """False if no acquire is under way."""
        with self._turn:
            if self._under_way:
                self._cancelled = True
                self.woken.set()
            return self._under_way

    def check(self) -> None:
        """Raise `Cancelled`, once."""
        with self._turn:
            if self._cancelled:
                self._cancelled = False
                self.woken.clear()
                raise Cancelled


@dataclass(frozen=True, slots=True)
class FencingToken:
    """The guard that a commit attaches to its write: which grant it acts under."""

    epoch: int
    owner: str


class Lock:
    """A lease on a table. One handle has one holder at a time; it is not reentrant.

    `ttl_s` is the lease's length, `renew_interval_s` the time between renewals (None: a tenth of
    it; at least ten must fit, Hudi's rule) and `acquire_timeout` the longest wait of `with` (None:
    for ever; `timeout` is its older name), in seconds; the defaults are Hudi's. `timeout_s` is the
    longest that one request may take, at most a fifth of the lease. `store_options` are those of
    `open_store`; `TypeError` names a keyword that nothing takes. Raises
    `LockBusy` or `LockLost` from `with`, `StoreError` where the store cannot be used,
    `RuntimeError` for double use and for use after fork. `on_danger(lock)` and `on_lost(lock, why)`
    are called from a thread that only watches the clock, so no request can delay them. `on_danger`
    fires first, unless the lease expires at once (a suspended machine); a loss that `release` finds
    is raised there instead. `emit` is called from that thread and from the one that renews. The
    lease is renewed as long as the thread lives that acquired it or last used the handle.
    `store` is one that is open already, at `url`; `close` closes it.
    """

    def __init__(
        self,
        url: str,
        *,
        ttl_s: float = 300.0,
        renew_interval_s: float | None = None,
        owner: str | None = None,
        policy: Policy = Policy(),
        acquire_timeout: float | None = 60.0,
        timeout: float | None = settings.UNSET,
        timeout_s: float | None = None,
        on_danger: Callable[[Lock], None] | None = None,
        on_lost: Callable[[Lock, str], None] | None = None,
        emit: Emit = silent,
        clock: Clock | None = None,
        client: str = "",
        store: Store | None = None,
        **store_options: Any,
    ) -> None:
        renew_s = settings.renew_interval_s(ttl_s, renew_interval_s)
        if max(len(owner or ""), len(client)) > NAME_CHARS_MAX:
            # A lock record that is longer than any reader takes would close the table to all.
            raise ValueError(f"owner and client are names, of at most {NAME_CHARS_MAX} characters")
        if store is not None and store_options:
            raise TypeError(f"store= is open already, and takes no {min(store_options)}=")
        check_keywords(Lock, url, store_options)
        self.url = url.rstrip("/")
        self.policy = policy
        self.timeout = settings.longest_wait_s(acquire_timeout, timeout)
        self.on_danger, self.on_lost = on_danger, on_lost
        self.clock = clock or Clock()
        self.owner = owner or self.clock.unique()
        request_s = settings.request_timeout_s(ttl_s, timeout_s)
        self.store = store or open_store(
            self.url, client=client, timeout_s=request_s, **store_options
        )
        self.lane = client or owner or self.owner[:8]
        self._renew_ms = round(renew_s * 1000)
        self._client = LeaseClient(
            where=self.url,
            store=self.store,
            me=Identity(
                self.owner,
                round(ttl_s * 1000),
                f"{socket.gethostname()}/{os.getpid()}/{client}".rstrip("/"),
                self.clock.unique() if owner else self.owner,
            ),
            policy=policy,
            clock=self.clock,
            pace=PollingPace(self.store.capabilities.write_interval_min_s * 1000),
            tell=EventSink(self.url, self.lane, emit, self.clock),
            request_s=request_s,
            late_ms=min(grant.LATE_S, request_s) * 1000,
        )
        self._waiting = AcquireWait()
        self._closed = threading.Event()
        self._published = False
        self._heard = 0
        self._pid = os.getpid()

    @classmethod
    def from_hudi(cls, config: Mapping[str, str], **options: Any) -> Lock:
        """A lock as Hudi's own configuration keys describe it; `options` win over them.

        Raises `ValueError` naming the key that is missing or cannot be, and warns (`UnknownKey`) of
        a key that has no effect.
        """
        config = checked(config, stacklevel=3)
        if not config.get(PROVIDER, STORAGE).endswith(STORAGE):
            raise ValueError(f"{PROVIDER} names another lock than a {STORAGE}; call open_lock")
        warn_of_unused(config, "pass them as options, or call open_lock", stacklevel=3)
        said = settings.from_hudi(config)
        if "timeout" in options:
            options["acquire_timeout"] = options.pop("timeout")
        described: dict[str, Any] = {
            "ttl_s": said.ttl_s,
            "renew_interval_s": said.renew_interval_s,
            "acquire_timeout": said.timeout_s,
        }
        if "ttl_s" in options and settings.RENEW_KEYS.isdisjoint(config):
            del described["renew_interval_s"]  # Hudi's default belongs to Hudi's lease of 300 s
        return cls(said.url, **described | options)

    # --- the public face -----------------------------------------------------------------------

    def acquire(
        self, blocking: bool = True, timeout: float | None = None, *,
        beside: Callable[[bool], None] | None = None,
    ) -> bool:  # fmt: skip
        """Take the lock; False if it is still somebody else's when the time is over.

        `timeout=None` waits for ever, 0 tries once. Whatever the store does, it returns at most 6 s
        after `timeout` (9 s where the store's conditions are tested first): in that time a claim
        without an answer is looked for once more. An exception (`StoreError`, Ctrl-C) leaves
        nothing half-held. `beside(claiming)` is called in another thread beside each look at the
        lock object (False) and each claim of it (True): what it reads beside the claim that wins is
        as good as read under the lock, since that claim replaced the very version that was seen
        free before. It must not raise.
        """
        limit_s = settings.limit_s(blocking, timeout)
        with self.acquires(beside) as client:
            try:
                return client.carry_out(self.claim(limit_s), self._wait)
            except Cancelled:
                return False
            except BaseException as error:  # an interrupt may come after the grant
                if client.state.grant is not None:
                    interrupted = not isinstance(error, Exception)
                    client.carry_out(grant.undo(client, interrupted=interrupted))
                raise

    def cancel(self) -> bool:
        """Make the `acquire` that waits in another thread give up, and return False.

        False if none is under way. One that is granted the lock meanwhile still returns True.
        """
        return self._waiting.cancel()

    def contenders(self) -> list[str] | None:
        """Who holds and awaits the lock, in order. None: an object store knows of no waiters."""
        return None

    def release(self) -> None:
        """Let go. Raises `LockLost` if the lease was lost before the work was published.

        Tries again on every transient answer for as long as the lease lasts, and warns
        (`UnprovenRelease`) if the store never confirmed it. Whatever the store does, it returns at
        most 6 s after the end of the lease.
        """
        self._guard_process()
        self._judge(self._client.carry_out(grant.release(self._client)))

    def _judge(self, ended: grant.GrantEnd | None) -> None:
        """Tell the user how a grant ended."""
        if ended is None:
            raise RuntimeError(f"{self}: released, but not held by this handle")
        if not ended.proven:
            text = f"{self}: the release was never answered; it ends by itself with its lease"
            warnings.warn(UnprovenRelease(text), stacklevel=3)
        loss = ended.loss
        if loss and not self._published:
            raise grant.lost_error(self, loss, "what was not published must be done again")
        if loss:
            text = f"{self}: {loss.why}, after the work was published"
            warnings.warn(LateLoss(text), stacklevel=3)

    def renew(self) -> None:
        """Extend the lease now, as often as it takes. Raises `LockLost` if it is no longer ours."""
        self._guard_process()
        self._client.carry_out(grant.renew(self._client, self.check))

    def extend(self) -> None:
        """`renew` under redis-py's name: the lease lasts its whole `ttl_s` again from now."""
        self.renew()

    def rise_above(self, epoch: int) -> None:
        """Give this grant an epoch above `epoch`, the fence's, if it has not; for whoever commits.

        Epochs restart where a hand deleted the lock object, or a Hudi writer dropped our fields.
        One renewal writes the new epoch over exactly our own version of the lock object, so nobody
        can have been granted the lock in between. Raises `LockLost` if it is no longer ours.
        """
        self._guard_process()
        self.heard(epoch)
        self._client.carry_out(grant.rise_above(self._client, self, self.check, epoch))

    def check(self) -> None:
        """Raise `LockLost` unless this handle may act as the holder at this moment. No request."""
        self._guard_process()
        renewal = self._client.renewal
        if renewal is not None:
            renewal.used()
        grant.check(self._client, self)

    def owned(self) -> bool:
        """Whether this handle holds it, by its own knowledge. No request."""
        return self._pid == os.getpid() and believes(self._client.state, self.clock.now())

    def locked(self) -> bool:
        """Whether anybody holds it, by the expiry policy in force. One read."""
        self._guard_process()
        if self.owned():
            return True
        return not free(self.look(), self.clock.now(), self.policy)

    def look(self) -> LastObservation:
        """The lock object as it is now; changes nothing, also not in this handle."""
        self._guard_process()
        match self.store.get(LOCK_KEY, limit=RECORD_BYTES_MAX):
            case Found() as found:
                sight = sight_of(found)
            case Missing():
                sight = Observation(None, None)
            case other:
                raise NoAnswer(f"cannot read {self}: {other}; try again")
        now_ms = self.clock.boot_ms()
        return LastObservation(sight, now_ms, now_ms)

    def published(self) -> None:
        """Say that the work under the lock is published: losing the lease is now only a warning."""
        self._published = True

    def heard(self, epoch: int) -> None:
        """An epoch seen elsewhere, e.g. in the fence: the next grant exceeds it.

        A Hudi writer drops our fields when it rewrites the lock object, and a hand may delete it;
        the fence still knows how far the epochs had come.
        """
        if type(epoch) is not int or epoch < 0:
            raise ValueError(f"{epoch!r} is no epoch: a whole number from 0 up")
        if not is_believed(epoch):
            raise ValueError(
                f"{epoch} is no epoch of {self}: it leaves no room for the grants to come; a fence "
                f"that has it is repaired by lockkit table repair-fence {self.url}"
            )
        self._heard = max(self._heard, epoch)

    @property
    def fence(self) -> FencingToken:
        """The guard for a commit under this grant. Raises `LockLost` if there is none."""
        self._guard_process()
        held = self._client.state.grant
        if held is None:
            self.check()
        assert held is not None
        return FencingToken(held.epoch, self.owner)

    @property
    def store_offset_ms(self) -> int | None:
        """The store's clock less ours, by the last `Date` (floored to a second); None: unknown."""
        return self._client.offset_ms

    def busy_because(self) -> str:
        """Who has it, until when, and what next."""
        return self._client.busy_because()

    def busy_error(self) -> LockBusy:
        """The error for a lock that was not free: its owner, epoch and end as fields."""
        return self._client.busy_error()

    def close(self) -> None:
        """Stop renewing, close the store's client. Does not release: an abandoned lease expires.

        A thread that waits in `acquire` is told so by a `RuntimeError`.
        """
        if self._pid != os.getpid():
            return  # the parent's connections are not ours to close
        self._closed.set()
        self._waiting.woken.set()
        self._client.closed = True
        self._stop_beating()
        self.store.close()

    def __enter__(self) -> Lock:
        if not self.acquire(timeout=self.timeout):
            raise self.busy_error()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        leave(self.release, error)

    def __str__(self) -> str:
        return f"the lock of {self.url}"

    def __repr__(self) -> str:
        return f"<Lock {self.url}: {self._standing()}>"

    def _standing(self) -> str:
        """Its state, by its own knowledge. No request."""
        client = self._client
        held, loss = client.state.grant, client.loss
        if held is None:
            return "closed" if self._closed.is_set() else "not held"
        if believes(client.state, self.clock.now()):
            until_ms = client.on_wall(client.state.until_ms or 0)
            return f"held by {self.owner}, epoch {held.epoch}, until {utc(until_ms)}"
        return f"lost, epoch {held.epoch}: {loss.why if loss else 'the lease ran out'}"

    # --- what the procedures ask of a handle -----------------------------------------------------

    @contextmanager
    def acquires(self, beside: Callable[[bool], None] | None = None) -> Iterator[LeaseClient]:
        """One acquire at a time, and only of what is not held."""
        self._guard_process()
        if not self._waiting.begin():
            raise RuntimeError(f"{self}: two threads acquire one handle; give each its own")
        try:
            self._guard_double_use()
            self._client.beside, self._published = beside, False
            yield self._client
        finally:
            self._client.beside = None
            self._waiting.end()

    def claim(self, limit_s: float | None) -> Procedure[bool]:
        user = threading.current_thread()

        def hold() -> RenewalThreads:
            return RenewalThreads(self, self._client, self._renew_ms, user)

        return grant.acquire(self._client, limit_s, floor=self._heard, hold=hold, test=self._test)

    def _test(self, seconds: float) -> None:
        with within(seconds):
            prove_conditions(self.store, self.clock, key=TABLE_KEY, tries_max=1)

    def _wait(self, sleep: Sleep) -> None:
        self.clock.wait(self._waiting.woken, sleep.seconds)
        self.check_wait()

    def check_wait(self) -> None:
        if self._closed.is_set():
            raise RuntimeError(f"{self}: closed while it waited")
        self._waiting.check()

    def _stop_beating(self) -> None:
        grant.stop_renewing(self._client)

    # --- refusals --------------------------------------------------------------------------------

    def _guard_double_use(self) -> None:
        if self._closed.is_set():
            raise RuntimeError(f"{self}: this handle was closed; make a new Lock")
        if self._client.state.grant is None:
            return
        if self._client.loss:
            raise RuntimeError(f"{self}: this handle lost it; release() it first, which says so")
        raise RuntimeError(
            f"{self}: this handle already holds it; it is not reentrant, and two threads need "
            "a handle each"
        )

    def _guard_process(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"{self}: used after fork (made in process {self._pid}); a child that inherits a "
                "lease would be a second holder: make a new Lock in the child"
            )


def leave(release: Callable[[], None], error: object) -> None:
    """Release at the end of a `with` block that raised `error`, or None; that error goes first."""
    try:
        release()
    except (LockLost, StoreError, RuntimeError, Warning) as failed:
        if error is None:
            raise
        warn_late(error, failed, stacklevel=4)


def warn_late(error: object, failed: Exception, stacklevel: int = 3) -> None:
    """A release failed at the end of a block that raised `error`, which is what the user gets, also
    where warnings are errors.
    """
    if isinstance(failed, Warning) or (
        isinstance(error, LockLost) and isinstance(failed, LockLost)
    ):
        return  # the user was warned, or knows
    late = LateLoss if isinstance(failed, LockLost) else UnprovenRelease
    with suppress(Warning):
        warnings.warn(late(str(failed)), stacklevel=stacklevel)
