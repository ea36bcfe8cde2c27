"""The lock of a service: what a provider implements, and the client that calls it.

A provider takes, renews, releases and shows one lock of its service. Each of these is one bounded
request whose answer the provider settles. Waiting, renewing, losing and releasing are in `lock/`.

One file because the client and its public handle are read together.
"""

from __future__ import annotations

import math
import shlex
import weakref
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from lockkit import config
from lockkit.clock import Clock
from lockkit.errors import (
    BreakRefused,
    LockBusy,
    LossReason,
    NoAnswer,
    StoreError,
    Unanswered,
    clipped,
    masked,
)
from lockkit.lock.base import BaseLock, FencingToken
from lockkit.lock.client import BACK_OUT_S, LeaseClient, Wakeup
from lockkit.lock.grant import LATE_S
from lockkit.protocol.outcome import Applied, PreconditionFailed, Throttled, Unknown, WriteAnswer
from lockkit.protocol.state import (
    Action,
    Event,
    GiveUp,
    Granted,
    LeaseLost,
    Pause,
    Released,
    ReleaseRequested,
    RenewDue,
    Renewed,
    Tick,
)
from lockkit.providers.holder import ServiceHolder, description, guard_break
from lockkit.providers.lease_events import LeaseEvents, during
from lockkit.runtime import BlockingCall, Procedure, Request, Sleep, run
from lockkit.sinks import Emit, EventSink, silent
from lockkit.stores import Store
from lockkit.stores.keywords import keywords_of, unknown_keyword
from lockkit.stores.secret import carries_secret
from lockkit.stores.within import within

MARGIN_S_MAX, MARGIN_SHARE = 1.0, 0.1
"""A holder gives up this long before its lease ends, as with the storage lock."""
RELEASE_S_MIN = 0.5
"""Minimum time for a release, however little is left of the lease; `BACK_OUT_S` at most."""
LOOK_S_MIN = 0.001

T = TypeVar("T")


def lease_end_ms(sent_ms: float, ttl_s: float) -> float:
    """When a holder stops to act, for a grant that was proven by a request sent at `sent_ms`."""
    return sent_ms + (ttl_s - min(MARGIN_S_MAX, ttl_s * MARGIN_SHARE)) * 1000


class GrantOver(Exception):
    """The service says that this grant is over, and why."""


@dataclass(frozen=True, slots=True)
class ServiceGrant:
    """A grant."""

    handle: Any
    """What the service identifies it by: a node, an item, a lock id."""
    token: int | None = None
    """Rises with every grant of this lock; None: the service has no such number."""
    sent_ms: float | None = None
    """When the request that proved it was sent (boot clock); None: when `_take` was called."""

    @property
    def epoch(self) -> int:
        return self.token or 0


@dataclass(frozen=True, slots=True)
class NotFree:
    """Another owner holds it."""

    owner: str = "somebody else"
    retry_s: float = 1.0
    """Seconds until the next try is worthwhile."""
    woken: Wakeup | None = None
    """Set by the service if an earlier try is worthwhile."""


@dataclass(slots=True, kw_only=True)
class ServiceClient(LeaseClient):
    """One handle's grant of a service's lock; the events are those of the lease protocol."""

    service: Any
    """The `LeasedLock`, referenced weakly: a handle that was dropped must end."""
    ttl_s: float | None
    beat_s: float | None
    held_by: NotFree | None = None
    taken: ServiceGrant | None = None
    ends_at_ms: float | None = None
    """When our grant ends by our own clock; None: we do not hold it."""
    _requested: bool = False
    """Whether a request of ours may be in the service's queue."""
    _quitting: bool = False
    _unanswered: NoAnswer | None = None
    """When the last take request was sent."""

    @property
    def grant(self) -> ServiceGrant | None:
        return self.taken

    @property
    def until_ms(self) -> float | None:
        return self.ends_at_ms

    @property
    def renew_ms(self) -> float | None:
        return None if self.beat_s is None else self.beat_s * 1000

    @property
    def release_ms(self) -> float:
        left_ms = self.lease_ends_ms - self.clock.boot_ms()
        return min(max(left_ms, RELEASE_S_MIN * 1000), self.back_out_ms)

    @property
    def back_out_ms(self) -> float:
        return BACK_OUT_S * 1000

    @property
    def freed(self) -> Wakeup | None:
        return None if self.held_by is None else self.held_by.woken

    def look_s(self) -> float:
        assert self.held_by is not None
        return max(LOOK_S_MIN, self.held_by.retry_s * self.clock.uniform(0.9, 1.1))

    def begin(self) -> None:
        self.held_by, self.loss, self.last_failure, self._unanswered = None, None, "", None

    def perform_one(self, request: Request) -> Any:
        match request:
            case BlockingCall(function):
                with within((self.ends_ms - self.clock.boot_ms()) / 1000):
                    return function()
            case Sleep(seconds, woken) if woken is not None:
                return self.clock.wait(woken, max(seconds, LOOK_S_MIN))
            case Sleep(seconds):
                return self.clock.sleep(seconds)
            case _:
                raise AssertionError(f"a lock service is only called: {request!r}")

    # --- the steps -------------------------------------------------------------------------------

    def steps(self, event: Event, *, patient: bool = False) -> Procedure[list[Action]]:
        taken = self.taken
        match event:
            case GiveUp():
                return (yield from self._give_up(patient=patient))
            case _ if taken is None:
                return (yield from self._take())
            case ReleaseRequested():
                self.notice_end()
                self.ends_at_ms, self._quitting = None, True
                return (yield from self._give_back(taken, patient=patient))
            case Tick() if self._quitting:
                return (yield from self._give_back(taken, patient=patient))
            case RenewDue():
                return (yield from self._beat(taken, patient=patient))
            case _:
                self.notice_end()
                return []

    def _take(self) -> Procedure[list[Action]]:
        sent_ms, self._requested = self.clock.boot_ms(), True
        try:
            said = yield self._call("acquire", self.service._take)
            if isinstance(said, NotFree):
                if self.held_by is None or self.held_by.owner != said.owner:
                    self.emit("waiting", owner=said.owner, epoch=0, until_ms=0)
                self.held_by, self._unanswered = said, None
                return []
            assert isinstance(said, ServiceGrant)
            yield from self._hold(said, sent_ms if said.sent_ms is None else said.sent_ms)
        except NoAnswer as error:
            self._unanswered, self.last_failure = error, str(error)
            return [Pause()]
        return [Granted(said.epoch)]

    def _hold(self, taken: ServiceGrant, sent_ms: float) -> Procedure[None]:
        self._unanswered = self.held_by = None
        self._extend(sent_ms)
        if not self.believes():
            self.ends_at_ms = None
            with suppress(GrantOver):
                yield self._call("release", self.service._give_back, taken)
            raise NoAnswer(f"{self.where}: its lease ended before the answer came; try again")
        self.taken, self._quitting = taken, False
        self._emit_grant("held")

    def _beat(self, taken: ServiceGrant, *, patient: bool) -> Procedure[list[Action]]:
        sent_ms = self.clock.boot_ms()
        try:
            yield self._call("renew", self.service._beat, taken)
        except GrantOver as error:
            self.lose(str(error), LossReason.REVOKED)
        except Exception as error:
            self.last_failure = str(error)
            if not patient:
                raise
            self.emit("note", text=clipped(f"a renewal failed: {error}", 500))
            return [Pause()]
        with self._state_lock:
            self.notice_end()  # a grant that has ended locally never comes back
            if self.loss is not None:
                return [self.loss]
            self._extend(sent_ms)
        self._emit_grant("renewed")
        return [Renewed(taken.epoch)]

    def _give_back(self, taken: ServiceGrant, *, patient: bool) -> Procedure[list[Action]]:
        try:
            yield self._call("release", self.service._give_back, taken)
        except GrantOver as error:
            self.lose(str(error), LossReason.REVOKED)
        except NoAnswer as error:
            self.last_failure = str(error)
            return [Pause()]
        except StoreError as error:
            self.last_failure = str(error)
            if not patient:
                raise
            return [Pause()]
        return [self._end(proven=True)]

    def _give_up(self, *, patient: bool) -> Procedure[list[Action]]:
        """Stop trying; what is left in the service expires by itself."""
        if self.taken is not None:
            self._abandon()
            return [self._end(proven=False)]
        self.emit("note", text="gave up", gave_up=True)
        unanswered, self._unanswered = self._unanswered, None
        if unanswered is not None and not patient:
            raise unanswered  # the service did not say that another owner holds it
        if not self._requested:
            return []
        try:
            yield self._call("acquire", self.service._withdraw)
        except (StoreError, GrantOver):
            if not patient:
                raise
            self._abandon()
        self._requested = False
        return []

    def _call(self, op: str, function: Callable[..., T], *arguments: Any) -> BlockingCall:
        def call() -> T:
            try:
                with during(op):
                    return function(*arguments)
            except ModuleNotFoundError as missing:
                package = (missing.name or "").partition(".")[0]
                raise StoreError(
                    f"{self.service}: the Python package {package!r} is not installed; "
                    f"pip install 'lockkit[{self.service.service}]'"
                ) from None

        return BlockingCall(call)

    # --- the local expiry ------------------------------------------------------------------------

    def _extend(self, sent_ms: float) -> None:
        ttl_s = self.ttl_s
        self.proven_ms, self.shaken = sent_ms, False
        if ttl_s is None:
            self.ends_at_ms = math.inf
        else:
            self.ends_at_ms = lease_end_ms(sent_ms, ttl_s)
        self.lease_ends_ms = self.ends_at_ms

    def notice_end(self) -> None:
        until_ms = self.ends_at_ms
        if until_ms is not None and self.clock.boot_ms() >= until_ms:
            self.lose("the lease ran out", LossReason.EXPIRED)

    def lose(self, why: str, reason: LossReason = LossReason.STOPPED) -> None:
        """Final: no later answer gives this grant back."""
        with self._state_lock:
            taken = self.taken
            if taken is None or self.loss is not None:
                return
            self.ends_at_ms, self.loss = None, LeaseLost(taken.epoch, why, reason)
        self.emit("lost", epoch=taken.epoch, why=why)
        self._abandon()

    def _abandon(self) -> None:
        with suppress(ReferenceError):  # the handle was dropped
            self.service._abandon()

    def _end(self, *, proven: bool) -> Released:
        assert self.taken is not None
        epoch = self.taken.epoch
        self.taken = self.ends_at_ms = None
        self._requested = self._quitting = False
        self.emit("released", epoch=epoch, proven=proven)
        return Released(epoch, proven)

    def _emit_grant(self, kind: str) -> None:
        taken, until_ms = self.taken, self.ends_at_ms
        if taken is None or until_ms is None:
            return
        version = str(taken.handle)[:200]
        self.emit(kind, epoch=taken.epoch, until_ms=self.on_wall(until_ms), version=version)

    def busy_error(self) -> LockBusy:
        owner = self.held_by.owner if self.held_by else "somebody else"
        return LockBusy(
            str(self.service), owner=owner,
            cure=f"wait longer (timeout), or see who that is: {self.service.look_by()}",
        )  # fmt: skip


class LeasedLock(BaseLock):
    """The handle of a lock that a service grants. It is not reentrant.

    `with` raises `LockBusy` or `LockLost`. Every method raises `StoreError` if the service cannot
    be used (`NoAnswer` if it may be usable later), and `RuntimeError` if it is used twice or after
    a fork.

    :param where: the lock's URL, for messages and events.
    :param ttl_s: how long a grant lasts without a proven renewal, in seconds, counted from before
        the request was sent; None: as long as this process.
    :param beat_s: seconds between two renewals; None: no renewal is needed.
    :param acquire_timeout: the longest wait of `with`, in seconds, 60 by default; None: for ever.
    :param owner: what others see as the holder; by default a fresh id, the host and the process.
    :param client: the name of this handle in events; the owner's by default.
    :param on_danger: `on_danger(lock)`, called from a thread once renewal is overdue.
    :param on_lost: `on_lost(lock, why)`, called from a thread once the grant is lost.
    :param emit: called with every event of this handle.
    :param clock: the source of time; tests replace it.
    :param unknown: nothing is accepted here.
    :raises TypeError: for a keyword that the provider does not take; it names the known ones.
    """

    service = "a lock service"
    address = "URL"
    """The URL that opens this lock, as it was given, or by its parts."""
    lease_keyword: tuple[str, float] | None = None
    """The provider's own keyword for the length of a lease, and a second in its unit. None: a grant
    ends with its process, so its length cannot be chosen."""

    def __init__(
        self,
        where: str,
        *,
        ttl_s: float | None,
        beat_s: float | None = None,
        acquire_timeout: float | None = 60.0,
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
        config.check(
            url=where, owner=owner, client=client, on_danger=on_danger, on_lost=on_lost,
            emit=emit, clock=clock,
        )  # fmt: skip
        clock = clock or Clock()
        self.owner = owner or description(clock.unique())
        self.on_danger, self.on_lost = on_danger, on_lost
        self._seen = "", 0.0
        lane = masked(client or owner or self.owner[:8])
        self._emit = EventSink(where, lane, emit, clock)
        self._events = LeaseEvents(self._emit, where)
        asks = ServiceClient(
            where=where, clock=clock, sink=self._emit, service=weakref.proxy(self),
            ttl_s=ttl_s, beat_s=beat_s, late_ms=LATE_S * 1000, undo_ms=LATE_S * 1000,
        )  # fmt: skip
        super().__init__(where, asks, lane=lane, acquire_timeout=acquire_timeout)
        self._client: ServiceClient = asks

    @property
    def ttl_s(self) -> float | None:
        """How long a grant lasts without a proven renewal; None: as long as this process."""
        return self._client.ttl_s

    @property
    def beat_s(self) -> float | None:
        """Seconds from one renewal to the next; None: no renewal is needed."""
        return self._client.beat_s

    def _lasts(self, ttl_s: float | None, beat_s: float | None) -> None:
        """Record how long a grant lasts (from the service), and so how often it is renewed."""
        self._client.ttl_s, self._client.beat_s = ttl_s, beat_s

    @classmethod
    def keywords(cls) -> set[str]:
        """Every keyword that this provider takes; `ttl_s` is also accepted for its lease."""
        classes = [each for each in cls.__mro__ if issubclass(each, LeasedLock)]
        return {"ttl_s"}.union(*map(keywords_of, classes))

    @classmethod
    def named(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """`options` with `ttl_s` renamed to the constructor's keyword."""
        found = dict(options)
        ttl_s = found.pop("ttl_s", None)
        if ttl_s is not None and cls.lease_keyword is not None:
            name, unit = cls.lease_keyword
            if name in found and name != "ttl_s":
                raise TypeError(f"ttl_s and {name} are the same setting; give one of them")
            found[name] = config.seconds("ttl_s", ttl_s) * unit
        return found

    # --- what a provider implements --------------------------------------------------------------

    @abstractmethod
    def _take(self) -> ServiceGrant | NotFree:
        """Try once, and settle an ambiguous answer. A place in a queue is kept for the next call.

        Raises `NoAnswer` if another try may help, another `StoreError` if it will not.
        """

    @abstractmethod
    def _withdraw(self) -> None:
        """Leave the queue, and release a grant that an unanswered `_take` may have won."""

    @abstractmethod
    def _beat(self, taken: ServiceGrant) -> None:
        """Prove and extend the grant. Raises `GrantOver`, or `NoAnswer` if no answer came."""

    @abstractmethod
    def _give_back(self, taken: ServiceGrant) -> None:
        """Return once the service has confirmed it. Raises `GrantOver` or `NoAnswer`."""

    @abstractmethod
    def _holder(self) -> ServiceHolder | None:
        """Who holds it now, as far as the service reports; None: it is free. Changes nothing."""

    def _is_held(self) -> bool:
        """The same in one request."""
        return self._holder() is not None

    def _break_grant(self, version: str) -> bool:
        """End the grant of `version`, of any holder; False: there is another grant now."""
        raise StoreError(f"{self}: only the process that holds it can end it")

    def _abandon(self) -> None:
        """Our grant is over and the service may not know: stop what keeps it alive there.

        Returns at once.
        """

    def _shut(self) -> None:
        """Close the connections that this handle opened."""

    # --- what several providers need -------------------------------------------------------------

    def _landed(self, answer: WriteAnswer) -> bool:
        """Whether a write was done; False: its condition failed. Else it raises `NoAnswer`."""
        match answer:
            case Applied():
                return True
            case PreconditionFailed():
                return False
            case Throttled():
                raise NoAnswer(f"{self}: throttled; try again")
            case Unknown(why):
                raise NoAnswer(f"{self}: {why}; try again")

    def _left_s(self, version: str, lease_s: float) -> float:
        """What is left of another owner's lease: it counts, by our own clock, from our first answer
        that showed this version. Below 0: it may be taken.
        """
        now_ms = self.clock.boot_ms()
        if self._seen[0] != version:
            self._seen = version, now_ms
        return lease_s - (now_ms - self._seen[1]) / 1000

    def _run_on(self, store: Store, way: Procedure[T]) -> T:
        try:
            return run(way, store, self.clock, self._emit)
        except Unanswered as error:
            raise NoAnswer(f"{self}: {error}") from None

    # --- notices that the service sends by itself ------------------------------------------------

    def _doubt(self) -> None:
        """The connection is gone: renew now, and report danger unless that succeeds."""
        self._client.shaken = True
        self._hurry()

    def _note_lost(self, why: str) -> None:
        """The service says that the grant is over; the renewal thread calls `on_lost`."""
        self._client.lose(why, LossReason.REVOKED)
        self._hurry()

    def _hurry(self) -> None:
        renewal = self._client.renewal
        if renewal is not None:
            renewal.hurry()

    def look_by(self) -> str:
        """How to see who holds the lock, for the message of a busy one."""
        address = "URL" if carries_secret(self.address, with_port=True) else self.address
        return f"lockkit lock show {shlex.quote(address)}"

    # --- the public face -------------------------------------------------------------------------

    def locked(self) -> bool:
        """Whether the lock is held, by any owner. One request."""
        self._guard_process()
        return self.owned() or self._is_held()

    def holder(self) -> ServiceHolder | None:
        """Who holds it, since when, and how that ends; None: it is free. One or two requests."""
        self._guard_process()
        return self._holder()

    def break_lock(self, version: str, *, force: bool = False) -> None:
        """End the grant that `holder()` showed under `version`. lockkit never does so by itself.

        Its holder does not learn of it before its next renewal. Raises `BreakRefused` if another
        grant has followed, or if its holder lives by what the service shows and `force` is not set;
        `NoAnswer` if the service did not confirm the end.
        """
        found = self.holder()
        if found is not None:
            guard_break(found, version, force=force)
        if not self._break_grant(version):
            raise BreakRefused(f"{self}", "changed since it was shown", "look again")

    @property
    def fence(self) -> FencingToken | None:
        """The guard for a commit under this grant; None: this service has no rising number."""
        self._guard_process()
        taken = self._client.grant
        if taken is None:
            self.assert_held()
        assert isinstance(taken, ServiceGrant)
        return None if taken.token is None else FencingToken(taken.token, self.owner)

    def __str__(self) -> str:
        return f"the lock {self.url} ({self.service})"
