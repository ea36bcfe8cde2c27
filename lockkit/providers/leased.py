"""What every lock service has in common: waiting, renewing, losing, giving back.

A provider says how its service takes, renews and gives back one lock, each as one bounded request
that tells what became of it; all else is here, once. Its face is that of `lockkit.Lock`.

One file because it is one class: the whole life of a lease that a service grants.
"""

from __future__ import annotations

import math
import os
import threading
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from lockkit import config as settings
from lockkit.clock import Clock, back_off_s
from lockkit.errors import LockBusy, LockLost, LossReason, NoAnswer, StoreError
from lockkit.events import TIME_MS_MAX
from lockkit.lock.grant import BACK_OUT_S
from lockkit.lock.handle import (
    AcquireWait,
    Cancelled,
    FencingToken,
    LateLoss,
    UnprovenRelease,
    leave,
)
from lockkit.lock.renewal import CallbackFailed
from lockkit.providers.telling import LeaseEvents, during
from lockkit.sinks import Emit, EventSink, silent
from lockkit.stores import keywords_of, unknown_keyword

RETRY_FIRST_S, RETRY_LONGEST_S = 0.05, 2.0
MARGIN_S_MAX, MARGIN_SHARE = 1.0, 0.1
"""A holder stops believing so long before its lease ends, as with the storage lock."""
DANGER_AFTER_BEATS = 2
RELEASE_S_MIN = 0.5
"""A release is tried for so long, however little of the lease is left; for `BACK_OUT_S` at most."""


class GrantOver(Exception):
    """The service says that this grant is over: why."""


@dataclass(frozen=True, slots=True)
class ServiceGrant:
    """A grant."""

    handle: Any
    """What the service knows it by: a node, an item, a lock id."""
    token: int | None = None
    """Rises with every grant of this lock; None: the service has no such number."""
    sent_ms: float | None = None
    """When the request left that proved it, on the boot clock; None: when `_take` was called."""


@dataclass(frozen=True, slots=True)
class NotFree:
    """Somebody else has it."""

    owner: str = "somebody else"
    retry_s: float = 1.0
    """Until it is worth asking again."""
    woken: threading.Event | None = None
    """Set by the service when it is worth asking sooner."""


class LeasedLock(ABC):
    """A lock that a service grants. One handle has one holder at a time; it is not reentrant.

    `ttl_s` is how long a grant lasts without a proven beat (None: as long as this process), counted
    from before the request was sent; `beat_s` the time between beats, in seconds. Raises `LockBusy`
    or `LockLost` from `with`, `StoreError` where the service cannot be used (`NoAnswer` where it
    may be later), `RuntimeError` for double use and for use after fork. `client` names this handle
    in events.
    """

    service = "a lock service"
    lease_keyword: tuple[str, float] | None = None
    """The provider's own keyword for the length of a lease, and what a second is in its unit. None:
    a grant ends with its process, so there is no length to choose."""

    def __init__(
        self,
        where: str,
        *,
        ttl_s: float | None,
        beat_s: float | None = None,
        acquire_timeout: float | None = 60.0,
        timeout: float | None = settings.UNSET,
        owner: str | None = None,
        client: str = "",
        on_danger: Callable[[Any], None] | None = None,
        on_lost: Callable[[Any, str], None] | None = None,
        emit: Emit = silent,
        clock: Clock | None = None,
        **unknown: Any,
    ) -> None:
        if unknown:
            raise unknown_keyword(type(self).__name__, unknown, self.keywords())
        self.url, self.timeout = where, settings.longest_wait_s(acquire_timeout, timeout)
        self.ttl_s, self.beat_s = ttl_s, beat_s
        self.on_danger, self.on_lost = on_danger, on_lost
        self.clock = clock or Clock()
        self.owner = owner or self.clock.unique()
        self.lane = client or owner or self.owner[:8]
        self._emit = EventSink(where, self.lane, emit, self.clock)
        self._telling = LeaseEvents(self._emit, where)
        self._turn = threading.RLock()
        self._waiting = AcquireWait()
        self._waits_for: threading.Event | None = None
        self._taken: ServiceGrant | None = None
        self._until_ms = self._proven_ms = 0.0
        self._lost_why, self._lost_reason = "", LossReason.EXPIRED
        self._published = False
        self._busy: NotFree | None = None
        self._stop = threading.Event()
        self._stir = threading.Event()
        self._shaken = False
        self._closed = threading.Event()
        self._user = threading.current_thread()
        self._pid = os.getpid()

    @classmethod
    def keywords(cls) -> set[str]:
        """Every keyword that this provider takes; its lease's length also goes by `ttl_s`."""
        classes = [each for each in cls.__mro__ if issubclass(each, LeasedLock)]
        return {"ttl_s"}.union(*map(keywords_of, classes))

    @classmethod
    def named(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """`options` with `ttl_s` and `timeout` under the names that the constructor has."""
        found = dict(options)
        if "timeout" in found:
            found["acquire_timeout"] = found.pop("timeout")
        ttl_s = found.pop("ttl_s", None)
        if ttl_s is not None and cls.lease_keyword is not None:
            name, unit = cls.lease_keyword
            if name in found and name != "ttl_s":
                raise TypeError(f"ttl_s and {name} are one setting here; give one of the two")
            found[name] = ttl_s * unit
        return found

    # --- what a provider says --------------------------------------------------------------------

    @abstractmethod
    def _take(self) -> ServiceGrant | NotFree:
        """Ask once. A place in a queue is kept for the next call. Settles what is ambiguous.

        Raises `NoAnswer` where asking again may help, another `StoreError` where it will not.
        """

    @abstractmethod
    def _withdraw(self) -> None:
        """Give up the place in the queue, and whatever an unanswered `_take` may have won."""

    @abstractmethod
    def _beat(self, taken: ServiceGrant) -> None:
        """Prove and extend the grant. Raises `GrantOver`, or `NoAnswer` where nobody said so."""

    @abstractmethod
    def _give_back(self, taken: ServiceGrant) -> None:
        """Returns when the service has said so. Raises `GrantOver` or `NoAnswer`."""

    @abstractmethod
    def _look(self) -> NotFree | None:
        """Who has it now; None: it is free. Changes nothing."""

    def _abandon(self) -> None:  # noqa: B027 - a lease ends by itself
        """The grant is over for us, and the service may not know: stop what keeps it alive there.

        Returns at once.
        """

    def _shut(self) -> None:  # noqa: B027 - most have nothing open
        """Close what was opened."""

    # --- what a provider hears without asking ----------------------------------------------------

    def _doubt(self) -> None:
        """Its connection is gone: the heartbeat looks now, and tells danger unless it proves it."""
        self._shaken = True
        self._stir.set()

    def _heard_lost(self, why: str) -> None:
        """The service says that the grant is over; the heartbeat's thread tells the user."""
        self._lose(why, LossReason.REVOKED)
        self._stir.set()

    # --- the public face -----------------------------------------------------------------------

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Take the lock; False if it is still somebody else's when the time is over.

        `timeout=None` waits for ever, 0 tries once. An exception leaves nothing half-held.
        """
        self._guard_process()
        limit_s = settings.limit_s(blocking, timeout)
        if not self._waiting.begin():
            raise RuntimeError(f"{self}: two threads acquire one handle; give each its own")
        try:
            self._guard_double_use()
            try:
                return self._acquire(limit_s)
            except Cancelled:
                self._back_out()
                return False
            except ModuleNotFoundError as missing:
                package = (missing.name or "").partition(".")[0]
                raise StoreError(
                    f"{self}: the Python package {package!r} is not installed; "
                    f"pip install 'lockkit[{self.service}]'"
                ) from None
            except BaseException:
                self._back_out()
                raise
        finally:
            self._waiting.end()

    def cancel(self) -> bool:
        """Make the `acquire` that waits in another thread give up, and return False.

        False if none is under way. One that is granted the lock meanwhile still returns True.
        """
        cancelled = self._waiting.cancel()
        if cancelled and self._waits_for is not None:
            self._waits_for.set()
        return cancelled

    def contenders(self) -> list[str] | None:
        """Who holds and awaits the lock, in order, by one look; None: the service does not know."""
        return None

    def release(self) -> None:
        """Let go. Raises `LockLost` if it was lost before the work was published."""
        self._guard_process()
        with self._turn:
            taken = self._taken
            if taken is None:
                raise RuntimeError(f"{self}: released, but not held by this handle")
            self._halt()
            proven = False
            try:
                proven = self._let_go(taken)
            finally:
                if not proven:  # also after Ctrl-C, or where the service refuses
                    self._abandon()
                self._taken, why, self._lost_why = None, self._lost_why, ""
        self._emit("released", epoch=taken.token or 0, proven=proven)
        if why and not self._published:
            raise LockLost(
                str(self), why, "what was not published must be done again",
                reason=self._lost_reason, epoch=taken.token or 0,
            )  # fmt: skip
        if why:
            warnings.warn(LateLoss(f"{self}: {why}, after the work was published"), stacklevel=2)
        elif not proven:
            text = f"{self}: the release was never answered; it ends by itself, if it has a lease"
            warnings.warn(UnprovenRelease(text), stacklevel=2)

    def renew(self) -> None:
        """Prove the grant now. Raises `LockLost` if it is over, `NoAnswer` if nobody said."""
        self.check()
        with self._turn:
            if self._taken is not None:
                self._prove(self._taken)
        self.check()

    def extend(self) -> None:
        """`renew` under redis-py's name."""
        self.renew()

    def check(self) -> None:
        """Raise `LockLost` unless this handle may act as the holder at this moment. No request."""
        self._guard_process()
        self._user = threading.current_thread()
        if self.owned():
            return
        taken, cure = self._taken, "acquire it again and start over"
        if taken is None:
            why, reason = "it was never acquired", LossReason.NEVER_ACQUIRED
            raise LockLost(str(self), why, cure, reason=reason)
        why, reason = self._lost_why or "the lease ran out", self._lost_reason
        raise LockLost(str(self), why, cure, reason=reason, epoch=taken.token or 0)

    def owned(self) -> bool:
        """Whether this handle holds it, by its own knowledge. No request."""
        held = self._pid == os.getpid() and self._taken is not None and not self._lost_why
        return held and self.clock.boot_ms() < self._until_ms

    def locked(self) -> bool:
        """Whether anybody holds it. One look."""
        self._guard_process()
        return self.owned() or self._look() is not None

    def published(self) -> None:
        """Say that the work under the lock is published: losing it is now only a warning."""
        self._published = True

    @property
    def fence(self) -> FencingToken | None:
        """The guard for a commit under this grant; None: this service has no rising number."""
        self._guard_process()
        taken = self._taken
        if taken is None:
            self.check()
        assert taken is not None
        return None if taken.token is None else FencingToken(taken.token, self.owner)

    def busy_because(self) -> str:
        """Who has it, and what next."""
        return str(self.busy_error())

    def busy_error(self) -> LockBusy:
        """The error for a lock that was not free: its owner as a field."""
        owner = self._busy.owner if self._busy else "somebody else"
        return LockBusy(str(self), owner=owner, cure="wait longer (timeout), or ask who that is")

    def close(self) -> None:
        """Stop renewing, close the client. Does not release."""
        if self._pid != os.getpid():
            return  # the parent's connections are not ours to close
        self._closed.set()
        self._waiting.woken.set()
        self._halt()
        self._shut()

    def __enter__(self) -> Self:
        if not self.acquire(timeout=self.timeout):
            raise self.busy_error()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        leave(self.release, error)

    def __str__(self) -> str:
        return f"the lock {self.url} ({self.service})"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}: {self._standing()}>"

    def _standing(self) -> str:
        """Its state, by its own knowledge. No request."""
        taken = self._taken
        if taken is None:
            return "closed" if self._closed.is_set() else "not held"
        epoch = "" if taken.token is None else f", epoch {taken.token}"
        if self.owned():
            return f"held by {self.owner}{epoch}"
        return f"lost{epoch}: {self._lost_why or 'the lease ran out'}"

    # --- acquiring -------------------------------------------------------------------------------

    def _acquire(self, limit_s: float | None) -> bool:
        deadline_ms = math.inf if limit_s is None else self.clock.boot_ms() + limit_s * 1000
        self._published, self._lost_why, failures = False, "", 0
        self._lost_reason = LossReason.EXPIRED
        unanswered: NoAnswer | None = None
        while True:
            sent_ms = self.clock.boot_ms()
            try:
                with during("acquire"):
                    said = self._take()
                if isinstance(said, ServiceGrant):
                    return self._hold(said, sent_ms if said.sent_ms is None else said.sent_ms)
            except NoAnswer as error:
                failures, unanswered = failures + 1, error
                wait_s, woken = back_off_s(
                    failures, self.clock, first_s=RETRY_FIRST_S, longest_s=RETRY_LONGEST_S
                ), None
            else:
                failures, unanswered = 0, None
                if self._busy is None or self._busy.owner != said.owner:
                    self._emit("waiting", owner=said.owner, epoch=0, until_ms=0)
                self._busy = said
                wait_s, woken = said.retry_s * self.clock.uniform(0.9, 1.1), said.woken
            left_s = (deadline_ms - self.clock.boot_ms()) / 1000
            if left_s <= 0:
                if unanswered is not None:
                    raise unanswered  # nobody said that it is somebody else's
                with during("acquire"):
                    self._withdraw()
                return False
            self._wait(min(wait_s, left_s), woken)

    def _wait(self, seconds: float, woken: threading.Event | None) -> None:
        self._waits_for = woken
        if not self._waiting.woken.is_set():
            self.clock.wait(woken or self._waiting.woken, max(seconds, 0.001))
        self._waits_for = None
        if self._closed.is_set():
            raise RuntimeError(f"{self}: closed while it waited")
        self._waiting.check()

    def _hold(self, taken: ServiceGrant, sent_ms: float) -> bool:
        self._taken, self._busy = taken, None
        self._stop, self._stir = threading.Event(), threading.Event()
        self._extend(sent_ms)
        if not self.owned():
            # It took longer to learn of the grant than the grant lasts.
            self._taken = None
            with suppress(GrantOver), during("release"):
                self._give_back(taken)
            raise NoAnswer(f"{self}: its lease was over before we were told of it; try again")
        self._user = threading.current_thread()
        self._tell("held")
        if self.beat_s is not None:
            threading.Thread(
                target=_keep, args=(weakref.ref(self), taken, self._stop, self._stir),
                name="lockkit-beat", daemon=True,
            ).start()  # fmt: skip
        return True

    def _back_out(self) -> None:
        """After an exception nothing stays half-held."""
        self._halt()
        taken, self._taken = self._taken, None
        try:
            with during("release"):
                if taken is not None:
                    self._give_back(taken)
                else:
                    self._withdraw()
        except (StoreError, GrantOver):
            self._abandon()

    # --- holding ---------------------------------------------------------------------------------

    def _halt(self) -> None:
        self._stop.set()
        self._stir.set()

    def _extend(self, sent_ms: float) -> None:
        self._proven_ms, self._shaken = sent_ms, False
        if self.ttl_s is None:
            self._until_ms = math.inf
        else:
            margin_s = min(MARGIN_S_MAX, self.ttl_s * MARGIN_SHARE)
            self._until_ms = sent_ms + (self.ttl_s - margin_s) * 1000

    def _prove(self, taken: ServiceGrant) -> None:
        sent_ms = self.clock.boot_ms()
        try:
            with during("renew"):
                self._beat(taken)
        except GrantOver as error:
            self._lose(str(error), LossReason.REVOKED)
        else:
            if sent_ms >= self._until_ms:  # belief that has ended is not taken up again
                self._lose("the lease ran out", LossReason.EXPIRED)
            else:
                self._extend(sent_ms)
                self._tell("renewed")

    def _keep_on(self, taken: ServiceGrant, stop: threading.Event, in_danger: bool) -> bool | None:
        """One beat, and what it tells: whether the grant is in danger; None: there is no more."""
        with self._turn:
            if stop.is_set() or self._taken is not taken:
                return None
            overdue = self._beat_once(taken)
            lost = self._lost_why
        if lost:
            self._call(self.on_lost, lost)
            return None
        if overdue and not in_danger:
            self._tell("danger")
            self._call(self.on_danger)
        return overdue

    def _beat_once(self, taken: ServiceGrant) -> bool:
        """Whether the last proof of the grant is older than it should be."""
        assert self.beat_s is not None
        try:
            if self._user.is_alive() and not self._lost_why:
                self._prove(taken)
        except Exception as error:  # noqa: BLE001 - an unproven beat; the time decides
            self._emit("note", text=f"a heartbeat failed: {error}"[:500])
        now_ms = self.clock.boot_ms()
        if now_ms >= self._until_ms:
            self._lose("the lease ran out", LossReason.EXPIRED)
        overdue = now_ms - self._proven_ms >= DANGER_AFTER_BEATS * self.beat_s * 1000
        return overdue or self._shaken

    def _lose(self, why: str, reason: LossReason) -> None:
        """For good: nothing that comes later gives this grant back."""
        if self._taken is not None and not self._lost_why:
            self._lost_why, self._lost_reason = why, reason
            self._emit("lost", epoch=self._taken.token or 0, why=why)
            self._abandon()

    def _let_go(self, taken: ServiceGrant) -> bool:
        """Until the service has said so or time is over; whether it has."""
        now_ms, failures = self.clock.boot_ms(), 0
        left_ms = max(self._until_ms - now_ms, RELEASE_S_MIN * 1000)
        ends_ms = now_ms + min(left_ms, BACK_OUT_S * 1000)
        while True:
            try:
                with during("release"):
                    self._give_back(taken)
            except GrantOver as error:
                self._lose(str(error), LossReason.REVOKED)
                return True
            except NoAnswer:
                left_s = (ends_ms - self.clock.boot_ms()) / 1000
                if left_s <= 0:
                    return False
                failures += 1
                wait_s = back_off_s(
                    failures, self.clock, first_s=RETRY_FIRST_S, longest_s=RETRY_LONGEST_S
                )
                self.clock.sleep(min(wait_s, left_s))
            else:
                return True

    # --- telling ---------------------------------------------------------------------------------

    def _tell(self, kind: str) -> None:
        taken = self._taken
        if taken is None:
            return
        until_ms = self._until_ms - self.clock.boot_ms() + self.clock.wall_ms()
        more = {} if kind == "danger" else {"version": str(taken.handle)[:200]}
        until_ms = min(until_ms, TIME_MS_MAX)  # of a grant that lasts as long as its process
        self._emit(kind, epoch=taken.token or 0, until_ms=until_ms, **more)

    def _call(self, callback: Callable[..., None] | None, *arguments: Any) -> None:
        try:
            if callback is not None:
                callback(self, *arguments)
        except Exception as error:  # noqa: BLE001 - told; the lock goes on
            text = f"a callback of {self} raised {error!r}"
            with suppress(CallbackFailed):  # where warnings are errors, nobody could catch it here
                warnings.warn(CallbackFailed(text), stacklevel=2)

    # --- refusals --------------------------------------------------------------------------------

    def _guard_double_use(self) -> None:
        if self._closed.is_set():
            raise RuntimeError(f"{self}: this handle was closed; make a new one")
        if self._taken is None:
            return
        if self._lost_why:
            raise RuntimeError(f"{self}: this handle lost it; release() it first, which says so")
        raise RuntimeError(
            f"{self}: this handle already holds it; it is not reentrant, and two threads need "
            "a handle each"
        )

    def _guard_process(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"{self}: used after fork (made in process {self._pid}); "
                "make a new one in the child"
            )


def _keep(
    us: weakref.ref[LeasedLock], taken: ServiceGrant, stop: threading.Event, stir: threading.Event
) -> None:
    """The heartbeat. What goes wrong in it is danger, then loss; it never dies silently.

    It ends with the handle: a lock that nobody can release any more runs out.
    """
    in_danger = False
    while (lock := us()) is not None:
        clock, beat_s = lock.clock, lock.beat_s
        del lock  # while this waits, only its user keeps it
        assert beat_s is not None
        clock.wait(stir, beat_s)
        stir.clear()
        if (lock := us()) is None:
            return
        said = lock._keep_on(taken, stop, in_danger)
        if said is None:
            return
        in_danger = said
