"""The lock: acquire, hold, renew, release, over any store with conditional writes.

The protocol is `lease.step`; this file carries out what it asks, one request at a time, and hands
the answers back. A daemon thread renews. The lock object is Hudi's own, `LOCK_KEY` below the table,
so a lockkit writer and a Hudi writer exclude each other.
"""

from __future__ import annotations

import os
import socket
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from lockkit.clock import Clock, back_off_s, utc
from lockkit.drive import Emit, silent
from lockkit.lease import free, step
from lockkit.outcome import (
    Applied,
    Found,
    IfAbsent,
    IfVersion,
    Missing,
    NotModified,
    PreconditionFailed,
    Throttled,
    Unknown,
    over,
)
from lockkit.pace import Pace
from lockkit.record import RECORD_BYTES_MAX, Garbled, Record, decode, encode
from lockkit.rules import Rules
from lockkit.state import (
    Action,
    Answered,
    Beat,
    Beaten,
    Blind,
    Busy,
    Event,
    GiveUp,
    Granted,
    LockBusy,
    LockLost,
    Look,
    Lost,
    Me,
    Pause,
    Phase,
    Quit,
    Released,
    Remove,
    Renewed,
    Saw,
    Seen,
    Send,
    Sight,
    State,
    Tick,
    Want,
    believes,
)
from lockkit.stores import StoreError, UnsafeStore, open_store

LOCK_KEY = ".hoodie/.locks/table_lock.json"
REQUESTS_MAX = 64
"""Requests in a row without a pause; the protocol needs far fewer."""
RETRY_FIRST_S, RETRY_LONGEST_S = 0.05, 2.0
RENEWALS_PER_LEASE = 10
"""Hudi's rule: the validity is at least ten renew intervals."""
PREFIX = "hoodie.write.lock.storage."

_proven: set[tuple[str, str | None]] = set()
"""Stores that were seen, by this process, to enforce their conditions."""


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

    `ttl_s` is the lease's length and `timeout` the longest wait, in seconds. Raises `LockBusy` or
    `LockLost` from `with`, `StoreError` where the store cannot be used, `RuntimeError` for double
    use and for use after fork.
    """

    def __init__(
        self,
        url: str,
        *,
        ttl_s: float = 300.0,
        renew_interval_s: float | None = None,
        owner: str | None = None,
        rules: Rules = Rules(),
        timeout: float | None = 60.0,
        on_danger: Callable[[Lock], None] | None = None,
        on_lost: Callable[[Lock, str], None] | None = None,
        emit: Emit = silent,
        clock: Clock | None = None,
        client: str = "",
        **store_options: Any,
    ) -> None:
        renew_interval_s = (
            ttl_s / RENEWALS_PER_LEASE if renew_interval_s is None else renew_interval_s
        )
        if renew_interval_s <= 0 or ttl_s < RENEWALS_PER_LEASE * renew_interval_s * (1 - 1e-9):
            raise ValueError(
                f"a lease of {ttl_s} s cannot be renewed every {renew_interval_s} s: "
                f"ttl_s must be at least {RENEWALS_PER_LEASE} renew intervals (Hudi's rule)"
            )
        self.url = url.rstrip("/")
        self.rules = rules
        self.timeout = timeout
        self.on_danger, self.on_lost = on_danger, on_lost
        self.clock = clock or Clock()
        self.owner = owner or self.clock.unique()
        self.store = open_store(
            self.url, client=client, timeout_s=min(10.0, max(0.2, ttl_s / 5)), **store_options
        )
        self._me = Me(
            self.owner, round(ttl_s * 1000), f"{socket.gethostname()}/{os.getpid()}/{client}"
        )

        self._renew_ms = round(renew_interval_s * 1000)
        self._emit_event = emit
        self._state = State()
        self._pace = Pace(self.store.capabilities.write_interval_min_s * 1000)
        self._one_at_a_time = threading.RLock()
        self._acquiring = threading.Lock()
        self._beating: threading.Event | None = None
        self._requests = 0
        self._busy: Busy | None = None
        self._lost_why: str | None = None
        self._published = False
        self._offset_ms: int | None = None
        self._pid = os.getpid()

    @classmethod
    def from_hudi(cls, config: Mapping[str, str], **options: Any) -> Lock:
        """A lock as Hudi's own configuration keys describe it."""
        base = config.get("hoodie.base.path")
        if not base:
            raise ValueError("hoodie.base.path is missing: a storage lock lives in its table")
        ttl_s = float(config.get(PREFIX + "validity.timeout.secs", 300))
        renew = config.get(
            PREFIX + "renew.interval.secs", config.get(PREFIX + "heartbeat.poll.secs", 30)
        )
        wait_ms = float(config.get("hoodie.write.lock.wait_time_ms", 60_000))
        if ttl_s < 10 or float(renew) < 1:
            raise ValueError(
                f"{PREFIX}validity.timeout.secs must be at least 10, renew.interval.secs at least 1"
            )
        return cls(
            base, ttl_s=ttl_s, renew_interval_s=float(renew), timeout=wait_ms / 1000, **options
        )

    # --- the public face -----------------------------------------------------------------------

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Take the lock; False if it is still somebody else's when the time is over.

        `timeout=None` waits for ever, 0 tries once.
        """
        self._guard_process()
        if not self._acquiring.acquire(blocking=False):
            raise RuntimeError(f"{self}: two threads acquire one handle; give each its own")
        try:
            if self._state.grant is not None:
                raise RuntimeError(
                    f"{self}: this handle already holds it (a Lock is not reentrant)"
                )
            limit_s = 0.0 if not blocking else timeout
            try:
                return self._acquire(limit_s)
            except BaseException:
                self._abandon()
                raise
        finally:
            self._acquiring.release()

    def release(self) -> None:
        """Let go. Raises `LockLost` if the lease was lost before the work was published.

        Tries again on every transient answer for as long as the lease lasts, and warns
        (`UnprovenRelease`) if nobody ever told that it landed.
        """
        self._guard_process()
        if self._state.grant is None:
            raise RuntimeError(f"{self}: released, but not held by this handle")
        lost, published = self._lost_why, self._published
        self._stop_beating()
        self._release()
        if lost and not published:
            raise LockLost(f"{self}: {lost}; what was not published must be done again")
        if lost:
            warnings.warn(LateLoss(f"{self}: {lost}, after the work was published"), stacklevel=2)

    def renew(self) -> None:
        """Extend the lease now. Raises `LockLost` if it is no longer ours."""
        self._guard_process()
        with self._one_at_a_time:
            self._feed(Beat(self.clock.now()))
        self.check()

    def check(self) -> None:
        """Raise `LockLost` unless this handle may act as the holder at this moment. No request."""
        self._guard_process()
        if believes(self._state, self.clock.now()):
            return
        why = self._lost_why or (
            "it was never acquired" if self._state.grant is None else "the lease ran out"
        )
        raise LockLost(f"{self}: not held any more: {why}; acquire it again and start over")

    def owned(self) -> bool:
        """Whether this handle holds it, by its own knowledge. No request."""
        return self._pid == os.getpid() and believes(self._state, self.clock.now())

    def locked(self) -> bool:
        """Whether anybody holds it, by the expiry policy in force. One read."""
        self._guard_process()
        if self.owned():
            return True
        seen = self.look()
        return not free(seen, self.clock.now(), self.rules)

    def look(self) -> Seen:
        """The lock object as it is now; changes nothing, also not in this handle."""
        match self.store.get(LOCK_KEY, limit=RECORD_BYTES_MAX):
            case Found() as found:
                sight = _sight(found)
            case Missing():
                sight = Sight(None, None)
            case other:
                raise StoreError(f"cannot read {self}: {other}; try again")
        now_ms = self.clock.boot_ms()
        return Seen(sight, now_ms, now_ms)

    def published(self) -> None:
        """Say that the work under the lock is published: losing the lease is now only a warning."""
        self._published = True

    @property
    def fence(self) -> Fence:
        """The guard for a commit under this grant. Raises `LockLost` if there is none."""
        grant = self._state.grant
        if grant is None:
            self.check()
        assert grant is not None
        return Fence(grant.epoch, self.owner)

    @property
    def store_offset_ms(self) -> int | None:
        """The store's clock less ours, by the last `Date` (floored to a second); None: unknown."""
        return self._offset_ms

    def busy_because(self) -> str:
        """Who has it, until when, and what next."""
        if self._busy is None:
            return f"{self} was not free in time; wait, or see who: lockkit lock show {self.url}"
        record = self._busy.record
        if isinstance(record, Garbled):
            return (
                f"{LOCK_KEY} of {self.url} is no lock record: {record.why}; it is never taken as "
                f"free: see it with lockkit lock show {self.url}, and remove it by hand if nobody "
                "writes this table"
            )
        return (
            f"{LOCK_KEY} of {self.url} is held by {record.owner[:64]!r} ({record.holder[:80]!r}, "
            f"epoch {record.epoch}) until {utc(record.valid_until_ms)} by its own clock; wait, or "
            f"see who: lockkit lock show {self.url}"
        )

    def close(self) -> None:
        """Stop renewing, close the store's client. Does not release: an abandoned lease expires."""
        self._stop_beating()
        self.store.close()

    def __enter__(self) -> Lock:
        if not self.acquire(timeout=self.timeout):
            raise LockBusy(self.busy_because())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        try:
            self.release()
        except LockLost as lost:
            if kind is None:
                raise
            warnings.warn(LateLoss(str(lost)), stacklevel=2)  # the block's own error goes first

    def __str__(self) -> str:
        return f"the lock of {self.url}"

    # --- acquiring and releasing ---------------------------------------------------------------

    def _acquire(self, limit_s: float | None) -> bool:
        deadline_ms = None if limit_s is None else self.clock.boot_ms() + limit_s * 1000
        stand_back_ms = self._pace.stand_back_ms(self.clock.boot_ms())
        if stand_back_ms > 0 and limit_s != 0:
            self.clock.sleep(stand_back_ms / 1000)
            if not self._pace.alone:
                self._forget_own_tombstone()
        self._busy, self._lost_why, self._published = None, None, False
        started_epoch = self._state.floor
        failures = 0
        event: Event = Want(self.clock.now())
        while True:
            with self._one_at_a_time:
                told = self._feed(event)
                if any(isinstance(each, Granted) for each in told):
                    self._begin_holding()
                    return True
            pause = next((each for each in told if isinstance(each, Pause)), None)
            failures = failures + 1 if pause is not None else 0
            wait_s = self._wait_s(pause, failures, self._state.floor - started_epoch)
            now_ms = self.clock.boot_ms()
            if deadline_ms is not None and now_ms + wait_s * 1000 >= deadline_ms:
                self.clock.sleep((deadline_ms - now_ms) / 1000 if limit_s else 0)
                self._abandon()
                return False
            self.clock.sleep(wait_s)
            event = Tick(self.clock.now())

    def _wait_s(self, pause: Pause | None, failures: int, waited_turns: int) -> float:
        """Until the next look: soon for who has waited long, at the lease's end at the latest."""
        if pause is not None:
            return max(pause.seconds or 0.0, self._back_off_s(failures))
        look_s = self._pace.look_ms(waited_turns) / 1000 * self.clock.uniform(0.9, 1.1)
        if self._busy is not None and self._busy.frees_ms is not None:
            ends_s = max(0.0, (self._busy.frees_ms - self.clock.boot_ms()) / 1000)
            look_s = min(look_s, ends_s + 0.001)
        return max(look_s, 0.001)

    def _back_off_s(self, failures: int) -> float:
        return back_off_s(failures, self.clock, first_s=RETRY_FIRST_S, longest_s=RETRY_LONGEST_S)

    def _forget_own_tombstone(self) -> None:
        """After standing back, look before claiming: somebody may have come."""
        self._state = State(
            unsettled=self._state.unsettled, floor=self._state.floor, writes=self._state.writes
        )

    def _abandon(self) -> None:
        """Stop wanting it. A claim that may have landed is taken back, as far as one try goes."""
        with self._one_at_a_time:
            if self._state.grant is None:
                self._feed(GiveUp(self.clock.now()))
            claims = [each for each in self._state.unsettled if not each.record.expired]
            if not claims:
                return
            try:
                told = self._feed(Want(self.clock.now()))
                if any(isinstance(each, Granted) for each in told):
                    self._feed(Quit(self.clock.now()))
                self._feed(GiveUp(self.clock.now()))
            except StoreError:
                self._feed(GiveUp(self.clock.now()))
            self._emit("note", text="a claim that nobody answered may be a ghost: it only expires")

    def _begin_holding(self) -> None:
        grant = self._state.grant
        assert grant is not None
        self._prove_conditions(grant)
        self._pace.granted(grant.epoch, self.clock.boot_ms())
        self._beating = threading.Event()
        threading.Thread(
            target=self._beat, args=(self._beating,), name="lockkit-renew", daemon=True
        ).start()

    def _release(self) -> None:
        grant = self._state.grant
        assert grant is not None
        lease_ends_ms = self.clock.boot_ms() + max(
            0, grant.valid_until_ms - self.clock.wall_ms(), self._me.ttl_ms // 10
        )
        failures = 0
        with self._one_at_a_time:
            told = self._feed(Quit(self.clock.now()))
            while not any(isinstance(each, Released) for each in told):
                pause = next((each for each in told if isinstance(each, Pause)), Pause())
                failures += 1
                wait_s = max(pause.seconds or 0.0, self._back_off_s(failures))
                if self.clock.boot_ms() + wait_s * 1000 >= lease_ends_ms:
                    told = self._feed(GiveUp(self.clock.now()))
                    message = (
                        f"{self}: the release was never answered; it ends by itself with its lease"
                    )
                    warnings.warn(UnprovenRelease(message), stacklevel=3)
                    break
                self.clock.sleep(wait_s)
                told = self._feed(Tick(self.clock.now()))
        self._pace.released(self.clock.boot_ms())

    # --- renewing --------------------------------------------------------------------------------

    def _beat(self, stop: threading.Event) -> None:
        """The heartbeat thread: renews, settles what it must, and tells danger and loss."""
        last_ms = self.clock.boot_ms()
        in_danger = False
        failures = 0
        wait_ms: float = self._renew_ms
        while not self.clock.wait(stop, wait_ms / 1000):
            with self._one_at_a_time:
                if stop.is_set() or self._state.grant is None:
                    return
                before_ms = self.clock.boot_ms()
                due = self._state.phase is Phase.HELD
                try:
                    told = self._feed((Beat if due else Tick)(self.clock.now()))
                except StoreError as error:
                    self._emit("note", text=f"a renewal failed: {error}")
                    told = [Pause()]
            if self._state.until_ms is None:
                self._tell_lost()
                return
            if any(isinstance(each, Renewed) for each in told):
                last_ms, in_danger, failures = before_ms, False, 0
                wait_ms = max(0.0, before_ms + self._renew_ms - self.clock.boot_ms())
                continue
            failures += 1
            if not in_danger and self.clock.boot_ms() - last_ms >= 2 * self._renew_ms:
                in_danger = True
                self._tell_danger()
            pause = next((each for each in told if isinstance(each, Pause)), Pause())
            back_off_ms = min(self._renew_ms, 50.0 * 2 ** min(failures, 16))
            wait_ms = max((pause.seconds or 0.0) * 1000, back_off_ms)
            wait_ms = min(wait_ms, max(1.0, self._state.until_ms - self.clock.boot_ms()))

    def _stop_beating(self) -> None:
        if self._beating is not None:
            self._beating.set()
            self._beating = None

    def _tell_danger(self) -> None:
        grant, until_ms = self._state.grant, self._state.until_ms
        if grant is not None and until_ms is not None:
            self._emit("danger", epoch=grant.epoch, until_ms=self._on_wall(until_ms))
            if self.on_danger is not None:
                self.on_danger(self)

    def _tell_lost(self) -> None:
        if self.on_lost is not None and self._lost_why is not None:
            self.on_lost(self, self._lost_why)

    # --- carrying out what the protocol asks -----------------------------------------------------

    def _feed(self, event: Event) -> list[Action]:
        """Run the protocol from this event until it has nothing more to send; what it told."""
        told: list[Action] = []
        pending: Event | None = event
        for _ in range(REQUESTS_MAX):
            if pending is None:
                return told
            self._state, actions = step(self._me, self._state, pending, self.rules)
            pending = None
            for action in actions:
                match action:
                    case Look() | Send() | Remove():
                        pending = self._request(action)
                    case _:
                        self._hear(action)
                        told.append(action)
        raise AssertionError(f"{REQUESTS_MAX} requests in a row: the protocol does not settle")

    def _request(self, action: Look | Send | Remove) -> Event:
        """Carry out one request; its answer as the next event."""
        self._requests += 1
        number, out = self._requests, self._state.out
        op = out.aim.value if out is not None and not isinstance(action, Look) else "look"
        attempt = action.record.attempt if isinstance(action, Send) else ""
        self._emit("ask", request=number, op=op, key=LOCK_KEY, attempt=attempt)
        began_ms = self.clock.boot_ms()
        try:
            match action:
                case Look(unless):
                    answer: Any = self.store.get(LOCK_KEY, unless=unless, limit=RECORD_BYTES_MAX)
                case Send(record, version):
                    answer = self.store.put(LOCK_KEY, encode(record), over(version))
                case Remove(version):
                    answer = self.store.delete(
                        LOCK_KEY, None if version is None else IfVersion(version)
                    )
                case _:
                    assert_never(action)
        except StoreError as error:
            self._answered(number, op, "refused", "", str(error))
            raise
        now = self.clock.now()
        self._pace.answered(now.boot_ms - began_ms)
        why = getattr(answer, "why", "")
        self._answered(number, op, type(answer).__name__, getattr(answer, "version", "") or "", why)
        match answer:
            case Found(_, _, _, date_ms) | NotModified(date_ms) if date_ms is not None:
                self._offset_ms = date_ms - now.wall_ms
        match answer:
            case Found():
                return Saw(now, _sight(answer))
            case Missing():
                return Saw(now, Sight(None, None))
            case NotModified(date_ms):
                return Saw(now, None, date_ms)
            case Applied() | PreconditionFailed():
                return Answered(now, answer)
            case Throttled() | Unknown() if isinstance(action, Look):
                return Blind(now, why or "throttled")
            case _:
                return Answered(now, answer)

    def _answered(self, number: int, op: str, outcome: str, version: str, why: str) -> None:
        self._emit("answer", request=number, op=op, outcome=outcome, version=version, why=why)

    def _hear(self, action: Action) -> None:
        """What the protocol tells, for the history and for whoever asks later."""
        until_ms = self._on_wall(self._state.until_ms) if self._state.until_ms is not None else 0
        version = self._state.version or ""
        match action:
            case Granted(epoch):
                self._emit("held", epoch=epoch, until_ms=until_ms, version=version)
            case Renewed(epoch):
                self._emit("renewed", epoch=epoch, until_ms=until_ms, version=version)
            case Lost(epoch, why):
                self._lost_why = why
                self._emit("lost", epoch=epoch, why=why)
            case Released(epoch, proven):
                self._emit("released", epoch=epoch, proven=proven)
            case Busy(record, frees):
                self._hear_busy(action, record, frees)
            case Pause() | Beaten():
                pass
            case Look() | Send() | Remove():
                raise AssertionError("a request is carried out, not told")
            case _:
                assert_never(action)

    def _hear_busy(self, busy: Busy, record: Record | Garbled, frees: int | None) -> None:
        first = self._busy is None or self._busy.record != record
        self._busy = busy
        if isinstance(record, Record):
            self._pace.saw(record.epoch, self.clock.boot_ms())
        if not first:
            return
        if isinstance(record, Garbled):
            warnings.warn(self.busy_because(), stacklevel=5)
        self._emit(
            "waiting",
            owner=record.owner if isinstance(record, Record) else f"garbled: {record.why}",
            epoch=record.epoch if isinstance(record, Record) else 0,
            until_ms=None if frees is None else self._on_wall(frees),
        )

    # --- proof and protection --------------------------------------------------------------------

    def _prove_conditions(self, grant: Record) -> None:
        """Once per process and endpoint that is not a provider's own: see the store refuse.

        While we hold the lock, write it under two conditions that are false. A store that applies
        either ignores conditions, and nothing on it can be a lock (Spaces, s3rver, incus #3651).
        """
        place = (self.url.split("://")[0], self.store.options.endpoint)
        elsewhere = self.store.options.endpoint or os.environ.get("AWS_ENDPOINT_URL")
        if not elsewhere or place in _proven:
            return
        stale = self._state.version
        with self._one_at_a_time:
            self._feed(Beat(self.clock.now()))  # so that our first version is a past one
            if stale is None or self._state.version == stale or self._state.phase is not Phase.HELD:
                return  # the renewal was not answered: prove it at the next grant
            for condition in (IfAbsent(), IfVersion(stale)):
                self._requests += 1
                false_write = Record(
                    owner=grant.owner,
                    valid_until_ms=grant.valid_until_ms,
                    epoch=grant.epoch,
                    attempt=f"{grant.attempt}!{type(condition).__name__}",
                    ttl_ms=grant.ttl_ms,
                    holder=grant.holder,
                )
                answer = self.store.put(LOCK_KEY, encode(false_write), condition)
                if isinstance(answer, Applied):
                    self._state = State()
                    raise UnsafeStore(
                        f"{self.url} cannot hold a lock: its store at {elsewhere} ignored a "
                        f"write condition ({type(condition).__name__}); two writers would both win. Use a "
                        "store with conditional writes (lockkit probe tells which is)"
                    )
                if not isinstance(answer, PreconditionFailed):
                    return
        _proven.add(place)

    def _guard_process(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"{self}: used after fork (made in process {self._pid}); a child that inherits a "
                "lease would be a second holder: make a new Lock in the child"
            )

    def _emit(self, kind: str, **fields: Any) -> None:
        self._emit_event(kind, **fields)

    def _on_wall(self, boot_ms: float) -> float:
        """A moment of the boot clock, on the clock that histories are written in."""
        return self.clock.wall_ms() + (boot_ms - self.clock.boot_ms())


def _sight(found: Found) -> Sight:
    return Sight(found.version, decode(found.body), found.modified_ms, found.date_ms)
