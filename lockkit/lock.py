"""The lock: acquire, hold, renew, release, over any store with conditional writes.

The protocol is `lease.step`; `client` carries out what it asks, `heartbeat` renews, and this file
is what a program holds in its hand. The lock object is Hudi's own, `LOCK_KEY` below the table, so a
lockkit writer and a Hudi writer exclude each other.
"""

from __future__ import annotations

import math
import os
import socket
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lockkit import settings
from lockkit.client import LOCK_KEY as LOCK_KEY
from lockkit.client import Client, sight_of
from lockkit.clock import Clock, back_off_s
from lockkit.drive import Emit, silent
from lockkit.heartbeat import Heartbeat
from lockkit.hudi_keys import PROVIDER, STORAGE, checked, warn_of_unused
from lockkit.lease import free
from lockkit.lockfile import EPOCH_MAX, RECORD_BYTES_MAX, epoch_after
from lockkit.outcome import Found, Missing
from lockkit.pace import Pace, asked_s
from lockkit.proof import TABLE_KEY, prove_conditions
from lockkit.rules import Rules
from lockkit.state import (
    Action,
    Beat,
    Event,
    GiveUp,
    Granted,
    LockBusy,
    LockLost,
    Me,
    Pause,
    Phase,
    Quit,
    Released,
    Renewed,
    Seen,
    Sight,
    Tick,
    Want,
    believes,
)
from lockkit.stores import NoAnswer, Store, StoreError, check_keywords, open_store
from lockkit.stores.deadline import within
from lockkit.voice import Voice

RETRY_FIRST_S, RETRY_LONGEST_S = 0.05, 2.0
RISES_MAX = 5
"""Renewals that try to raise an epoch; a second is needed where an older one had landed instead."""
LATE_S = 3.0
"""How long a request may go on after the time of a wait is over, and how long settling may take."""
BACK_OUT_S = 5.0
"""How long an acquire that was interrupted tries to give back what it had won."""
NAME_CHARS_MAX = 1_000


class UnprovenRelease(UserWarning):
    """Nobody told us that the release landed; the lease ends by itself."""


class LateLoss(UserWarning):
    """The lease was lost, but only after the work under it was published."""


@dataclass(frozen=True, slots=True)
class Fence:
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
        rules: Rules = Rules(),
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
        self.rules = rules
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
        self._late_ms = min(LATE_S, request_s) * 1000
        self._pace = Pace(self.store.capabilities.write_interval_min_s * 1000)
        self._client = Client(
            where=self.url,
            store=self.store,
            me=Me(
                self.owner,
                round(ttl_s * 1000),
                f"{socket.gethostname()}/{os.getpid()}/{client}".rstrip("/"),
                self.clock.unique() if owner else self.owner,
            ),
            rules=rules,
            clock=self.clock,
            pace=self._pace,
            tell=Voice(self.url, self.lane, emit, self.clock),
            request_s=request_s,
        )
        self._acquiring = threading.Lock()
        self._heartbeat: Heartbeat | None = None
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
        self._guard_process()
        limit_s = settings.limit_s(blocking, timeout)
        if not self._acquiring.acquire(blocking=False):
            raise RuntimeError(f"{self}: two threads acquire one handle; give each its own")
        try:
            self._guard_double_use()
            self._client.beside = beside
            try:
                return self._acquire(limit_s)
            except BaseException as error:
                self._back_out(interrupted=not isinstance(error, Exception))
                raise
        finally:
            self._client.beside = None
            self._client.ends_ms = math.inf
            self._acquiring.release()

    def release(self) -> None:
        """Let go. Raises `LockLost` if the lease was lost before the work was published.

        Tries again on every transient answer for as long as the lease lasts, and warns
        (`UnprovenRelease`) if the store never confirmed it. Whatever the store does, it returns at
        most 6 s after the end of the lease.
        """
        self._guard_process()
        client = self._client
        with client.turn:
            if client.state.grant is None:
                raise RuntimeError(f"{self}: released, but not held by this handle")
            self._stop_beating()
            left_ms = client.lease_ends_ms - self.clock.boot_ms()
            released = self._let_go(max(left_ms, client.me.ttl_ms // 10))
        if not released.proven:
            text = f"{self}: the release was never answered; it ends by itself with its lease"
            warnings.warn(UnprovenRelease(text), stacklevel=2)
        # Only now: a process that was stopped learns of its loss when it wants to release.
        lost = client.lost_why or (client.taken_away() if released.proven else None)
        if lost and not self._published:
            raise LockLost(f"{self}: {lost}; what was not published must be done again")
        if lost:
            warnings.warn(LateLoss(f"{self}: {lost}, after the work was published"), stacklevel=2)

    def renew(self) -> None:
        """Extend the lease now, as often as it takes. Raises `LockLost` if it is no longer ours."""
        self._renew(0)

    def rise_above(self, epoch: int) -> None:
        """Give this grant an epoch above `epoch`, the fence's, if it has not; for whoever commits.

        Epochs restart where a hand deleted the lock object, or a Hudi writer dropped our fields.
        One renewal writes the new epoch over exactly our own version of the lock object, so nobody
        can have been granted the lock in between. Raises `LockLost` if it is no longer ours.
        """
        self.heard(epoch)
        for _ in range(RISES_MAX):
            if self.fence.epoch > epoch:
                return
            self._renew(epoch_after(epoch) - 1)
        raise LockLost(
            f"{self}: its epoch {self.fence.epoch} could not be raised above {epoch}; release the "
            "lock and acquire it again"
        )

    def _renew(self, floor: int) -> None:
        self._guard_process()
        client, failures = self._client, 0
        while True:
            self.check()
            with client.turn:
                now = self.clock.now()
                held = client.state.phase is Phase.HELD
                told = client.feed(Beat(now, floor) if held else Tick(now))
                until_ms = client.state.until_ms
            if any(isinstance(each, Renewed) for each in told):
                return
            failures += 1
            left_s = ((until_ms or 0) - self.clock.boot_ms()) / 1000
            self.clock.sleep(_retry_s(told, failures, self.clock, max(left_s, 0.001)))

    def check(self) -> None:
        """Raise `LockLost` unless this handle may act as the holder at this moment. No request."""
        self._guard_process()
        if self._heartbeat is not None:
            self._heartbeat.used()
        client = self._client
        if believes(client.state, self.clock.now()):
            return
        why = client.lost_why or (
            "it was never acquired" if client.state.grant is None else "the lease ran out"
        )
        raise LockLost(f"{self}: not held any more: {why}; acquire it again and start over")

    def owned(self) -> bool:
        """Whether this handle holds it, by its own knowledge. No request."""
        return self._pid == os.getpid() and believes(self._client.state, self.clock.now())

    def locked(self) -> bool:
        """Whether anybody holds it, by the expiry policy in force. One read."""
        self._guard_process()
        if self.owned():
            return True
        return not free(self.look(), self.clock.now(), self.rules)

    def look(self) -> Seen:
        """The lock object as it is now; changes nothing, also not in this handle."""
        self._guard_process()
        match self.store.get(LOCK_KEY, limit=RECORD_BYTES_MAX):
            case Found() as found:
                sight = sight_of(found)
            case Missing():
                sight = Sight(None, None)
            case other:
                raise NoAnswer(f"cannot read {self}: {other}; try again")
        now_ms = self.clock.boot_ms()
        return Seen(sight, now_ms, now_ms)

    def published(self) -> None:
        """Say that the work under the lock is published: losing the lease is now only a warning."""
        self._published = True

    def heard(self, epoch: int) -> None:
        """An epoch seen elsewhere, e.g. in the fence: the next grant exceeds it.

        A Hudi writer drops our fields when it rewrites the lock object, and a hand may delete it;
        the fence still knows how far the epochs had come.
        """
        if type(epoch) is not int or not 0 <= epoch < EPOCH_MAX:
            raise ValueError(f"{epoch!r} is no epoch: a whole number from 0 up")
        self._heard = max(self._heard, epoch)

    @property
    def fence(self) -> Fence:
        """The guard for a commit under this grant. Raises `LockLost` if there is none."""
        self._guard_process()
        grant = self._client.state.grant
        if grant is None:
            self.check()
        assert grant is not None
        return Fence(grant.epoch, self.owner)

    @property
    def store_offset_ms(self) -> int | None:
        """The store's clock less ours, by the last `Date` (floored to a second); None: unknown."""
        return self._client.offset_ms

    def busy_because(self) -> str:
        """Who has it, until when, and what next."""
        return self._client.busy_because()

    def close(self) -> None:
        """Stop renewing, close the store's client. Does not release: an abandoned lease expires.

        A thread that waits in `acquire` is told so by a `RuntimeError`.
        """
        if self._pid != os.getpid():
            return  # the parent's connections are not ours to close
        self._closed.set()
        self._stop_beating()
        self.store.close()

    def __enter__(self) -> Lock:
        if not self.acquire(timeout=self.timeout):
            raise LockBusy(self.busy_because())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        leave(self.release, error)

    def __str__(self) -> str:
        return f"the lock of {self.url}"

    # --- acquiring -------------------------------------------------------------------------------

    def _acquire(self, limit_s: float | None) -> bool:
        client = self._client
        began_ms = self.clock.boot_ms()
        deadline_ms = math.inf if limit_s is None else began_ms + limit_s * 1000
        if not self._prove(deadline_ms):
            return False
        self._pace.wants(began_ms)
        if limit_s != 0:
            self._stand_back(deadline_ms)
        client.begin()
        client.ends_ms = max(deadline_ms, self.clock.boot_ms()) + self._late_ms
        self._published = False
        started_epoch, failures = client.state.floor, 0
        event: Event = Want(self.clock.now(), self._heard)
        while True:
            with client.turn:
                told = client.feed(event)
                if any(isinstance(each, Granted) for each in told):
                    self._begin_holding()
                    return True
            if any(isinstance(each, Pause) for each in told):
                failures += 1
                wait_s = _retry_s(told, failures, self.clock)
            else:
                failures = 0
                wait_s = self._look_s(client.state.floor - started_epoch)
            left_s = (deadline_ms - self.clock.boot_ms()) / 1000
            if left_s <= 0:
                return self._last_try()
            self._wait(min(wait_s, left_s))  # at the deadline it looks once more
            event = Tick(self.clock.now())

    def _prove(self, deadline_ms: float) -> bool:
        """Before the first claim: whether the store said in time that it enforces conditions."""
        failures = 0
        while True:
            try:
                with within((deadline_ms - self.clock.boot_ms()) / 1000 + LATE_S):
                    prove_conditions(self.store, self.clock, key=TABLE_KEY, tries_max=1)
                return True
            except NoAnswer as error:
                self._client.begin()
                self._client.trouble = str(error)
            except StoreError as error:
                self._client.emit("note", text=f"the lock was refused before its claim: {error}")
                raise
            failures += 1
            left_s = (deadline_ms - self.clock.boot_ms()) / 1000
            if left_s <= 0:
                return False
            wait_s = back_off_s(
                failures, self.clock, first_s=RETRY_FIRST_S, longest_s=RETRY_LONGEST_S
            )
            self._wait(min(wait_s, left_s))

    def _stand_back(self, deadline_ms: float) -> None:
        """Leave others their turns. Who met somebody looks again before it claims."""
        now_ms = self.clock.boot_ms()
        wait_ms = min(self._pace.stand_back_ms(now_ms), deadline_ms - now_ms)
        if wait_ms > 0:
            self._wait(wait_ms / 1000)
        if self._pace.outdated:
            self._client.forget()

    def _look_s(self, waited_turns: int) -> float:
        """Until the next look: soon for who has waited long, at the lease's end at the latest."""
        look_ms = self._pace.look_ms(waited_turns, self.clock.boot_ms())
        look_s = look_ms / 1000 * self.clock.uniform(0.9, 1.1)
        busy = self._client.busy
        if busy is not None and busy.frees_ms is not None:
            look_s = min(look_s, (busy.frees_ms - self.clock.boot_ms() + 1) / 1000)
        return max(look_s, 0.001)

    def _wait(self, seconds: float) -> None:
        if self.clock.wait(self._closed, seconds):
            raise RuntimeError(f"{self}: closed while it waited")

    def _begin_holding(self) -> None:
        client = self._client
        grant = client.state.grant
        assert grant is not None
        client.ends_ms = math.inf
        self._pace.granted(grant.epoch, self.clock.boot_ms())
        self._heartbeat = Heartbeat(self, client, self._renew_ms)

    def _last_try(self) -> bool:
        """The time is over. A claim that nobody answered may have won: that is settled first."""
        client = self._client
        with client.turn:
            client.feed(GiveUp(self.clock.now()))
            if not client.in_doubt():
                return False
            client.ends_ms = self.clock.boot_ms() + self._late_ms
            told = client.feed(Want(self.clock.now()))
            if any(isinstance(each, Granted) for each in told):
                self._begin_holding()
                return True
            client.feed(GiveUp(self.clock.now()))
            self._tell_ghost()
        return False

    def _back_out(self, *, interrupted: bool) -> None:
        """After an exception nothing stays half-held: what is ours, or may become so, is let go."""
        client = self._client
        with client.turn:
            self._stop_beating()
            client.ends_ms = self.clock.boot_ms() + BACK_OUT_S * 1000
            if client.state.grant is None:
                if interrupted:
                    client.doubt_what_is_out()
                client.feed(GiveUp(self.clock.now()))
                if client.in_doubt():
                    client.feed(Want(self.clock.now()), patient=True)
            if client.state.grant is not None:
                self._let_go(min(client.me.ttl_ms, BACK_OUT_S * 1000), patient=True)
            client.feed(GiveUp(self.clock.now()))
            self._tell_ghost()

    def _tell_ghost(self) -> None:
        if self._client.in_doubt():
            text = "a claim that nobody answered may be a ghost: it only expires"
            self._client.emit("note", text=text)

    # --- releasing -------------------------------------------------------------------------------

    def _let_go(self, for_ms: float, *, patient: bool = False) -> Released:
        """Release, again and again until the store has said what became of it, or time is over."""
        client = self._client
        ends_ms = self.clock.boot_ms() + for_ms
        client.ends_ms = min(client.ends_ms, ends_ms + self._late_ms)
        failures = 0
        event: Event = GiveUp(self.clock.now()) if self._closed.is_set() else Quit(self.clock.now())
        try:
            while True:
                told = client.feed(event, patient=patient)
                released = next((each for each in told if isinstance(each, Released)), None)
                if released is not None:
                    break
                failures += 1
                left_s = (ends_ms - self.clock.boot_ms()) / 1000
                if left_s > 0:
                    self.clock.sleep(_retry_s(told, failures, self.clock, left_s))
                now = self.clock.now()
                event = Tick(now) if left_s > 0 else GiveUp(now)
        except BaseException:
            client.feed(GiveUp(self.clock.now()))  # the handle is free again; the lease runs out
            raise
        finally:
            client.ends_ms = math.inf
        self._pace.released(self.clock.boot_ms())
        return released

    def _stop_beating(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.stop()
            self._heartbeat = None

    # --- refusals --------------------------------------------------------------------------------

    def _guard_double_use(self) -> None:
        if self._closed.is_set():
            raise RuntimeError(f"{self}: this handle was closed; make a new Lock")
        if self._client.state.grant is None:
            return
        if self._client.lost_why:
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
    except (LockLost, StoreError, RuntimeError) as failed:
        if error is None:
            raise
        if isinstance(error, LockLost) and isinstance(failed, LockLost):
            return  # the block knows
        late = LateLoss if isinstance(failed, LockLost) else UnprovenRelease
        warnings.warn(late(str(failed)), stacklevel=3)


def _retry_s(told: list[Action], failures: int, clock: Clock, left_s: float = math.inf) -> float:
    """Until the next try: as long as the store asked for, within the `left_s` of a lease."""
    pause = next((each.seconds for each in told if isinstance(each, Pause)), None)
    back_off = back_off_s(failures, clock, first_s=RETRY_FIRST_S, longest_s=RETRY_LONGEST_S)
    return min(left_s, max(asked_s(pause, left_s), back_off))
