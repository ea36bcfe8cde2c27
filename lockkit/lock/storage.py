"""One client of one lock object: runs the lease protocol against a real store.

`lease.step` decides. The client carries out each decision, one request at a time, and passes the
answer back to `lease.step`. It records each request, answer and state change as an event. `steps`
is a procedure, so the same client runs in the simulator.

One file because each step of the client holds the same lock over the protocol's state.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

from lockkit.errors import LockBusy, LossReason, StoreError
from lockkit.lock.client import BACK_OUT_S, LeaseClient
from lockkit.lock.polling import PollingPace
from lockkit.protocol.lease import notice_end, step
from lockkit.protocol.outcome import (
    Applied,
    Found,
    IfVersion,
    Missing,
    NotModified,
    Throttled,
    Unknown,
    over,
)
from lockkit.protocol.policy import Policy
from lockkit.protocol.record import RECORD_BYTES_MAX, Garbled, Record, decode, encode
from lockkit.protocol.state import (
    AcquireRequested,
    Action,
    ClaimLost,
    DeleteRecord,
    Event,
    GiveUp,
    Granted,
    HeldByOther,
    Identity,
    LeaseLost,
    Now,
    Observation,
    Pause,
    Phase,
    ReadAnswered,
    ReadFailed,
    ReadRecord,
    Released,
    ReleaseRequested,
    RenewDue,
    Renewed,
    State,
    Tick,
    WriteAnswered,
    WritePurpose,
    WriteRecord,
)
from lockkit.runtime import BlockingCall, Delete, Get, Procedure, Put, Request, Sleep
from lockkit.runtime import perform as performed
from lockkit.stores import Store
from lockkit.stores.within import within

LOCK_KEY = ".hoodie/.locks/table_lock.json"
REQUESTS_MAX = 64
"""Bound on consecutive requests; the protocol needs far fewer."""
REQUESTS_BEFORE_PAUSE = 8
"""Backs off when the store fails every write or other clients win every race."""
FLOORED_MS = 1000
"""HTTP dates are floored to a second."""

EVENT_NAMES = {
    AcquireRequested: "want", ReadAnswered: "saw", ReadFailed: "blind", WriteAnswered: "answered",
    Tick: "tick", RenewDue: "beat",
    ReleaseRequested: "quit", GiveUp: "give up",
}  # fmt: skip


@dataclass(slots=True, kw_only=True)
class StorageClient(LeaseClient):
    """The protocol's state, and everything that changes it."""

    store: Store
    identity: Identity
    policy: Policy
    polling: PollingPace
    interval_ms: float = math.inf
    """Milliseconds between two renewals."""
    state: State = field(default_factory=State)
    request_s: float = math.inf
    """The longest that one request may take, even if the store allows more."""
    busy: HeldByOther | None = None
    offset_ms: int | None = None
    beside: Callable[[bool], None] | None = None
    """Called in its own thread, in parallel with each look (False) and each claim (True)."""
    _started_epoch: int = 0
    _requests: int = 0
    _steps: int = 0
    _in_doubt: set[str] = field(default_factory=set)
    _release_in_doubt: bool = False
    _warned_of_clock: bool = False

    @property
    def grant(self) -> Record | None:
        return self.state.grant

    @property
    def until_ms(self) -> float | None:
        return self.state.until_ms

    @property
    def renew_ms(self) -> float:
        return self.interval_ms

    @property
    def release_ms(self) -> float:
        """The time left on the lease, but at least a tenth of its length."""
        return max(self.lease_ends_ms - self.clock.boot_ms(), self.identity.ttl_ms // 10)

    @property
    def back_out_ms(self) -> float:
        return min(self.identity.ttl_ms, BACK_OUT_S * 1000)

    # --- polling ---------------------------------------------------------------------------------

    def stand_back_s(self, began_ms: float, deadline_ms: float) -> float:
        """Leave the lock to others for a while. After meeting others, read before the claim."""
        self.polling.wants(began_ms)
        if deadline_ms <= began_ms:
            return 0.0
        now_ms = self.clock.boot_ms()
        wait_ms = min(self.polling.stand_back_ms(now_ms), deadline_ms - now_ms)
        if self.polling.outdated:
            self.forget()
        return wait_ms / 1000

    def look_s(self) -> float:
        """Sooner the longer we have waited; no later than lease expiry."""
        clock, busy = self.clock, self.busy
        grants = self.state.floor - self._started_epoch
        look_s = self.polling.look_ms(grants, clock.boot_ms()) / 1000 * clock.uniform(0.9, 1.1)
        if busy is not None and busy.frees_ms is not None:
            look_s = min(look_s, (busy.frees_ms - clock.boot_ms() + 1) / 1000)
        return max(look_s, 0.001)

    def due(self, floor: int) -> Event:
        now = self.clock.now()
        return RenewDue(now, floor) if self.state.phase is Phase.HELD else Tick(now)

    def granted(self, epoch: int) -> None:
        self.polling.granted(epoch, self.clock.boot_ms())

    def released(self) -> None:
        self.polling.released(self.clock.boot_ms())

    # --- the protocol ----------------------------------------------------------------------------

    def begin(self) -> None:
        self.busy, self.loss, self.last_failure = None, None, ""
        self._release_in_doubt = False
        if self.state.grant is None and self.state.phase is not Phase.IDLE:
            # A second Ctrl-C ended the back-out of the first one: start where that was to end.
            self.doubt_what_is_out()
            give_up = GiveUp(self.clock.now())
            self._step(give_up, give_up.now.boot_ms, [])
        self._started_epoch = self.state.floor

    def steps(self, event: Event, *, patient: bool = False) -> Procedure[list[Action]]:
        """Run the protocol from this event until it has nothing more to send.

        With `patient` a slow answer returns to the caller before the next request.
        """
        reported: list[Action] = []
        pending: Event | None = event
        began_ms = event.now.boot_ms
        for sent in range(REQUESTS_MAX):
            if pending is None:
                return reported
            request = self._step(pending, began_ms, reported)
            match request:
                case None:
                    pending = None
                case ReadRecord() if sent >= self._sent_max(began_ms, patient):
                    pending = ReadFailed(self.clock.now(), "enough for now: pause, then look again")
                case _:
                    steps = self._patiently(request) if patient else self._request(request)
                    pending = yield from steps
        raise AssertionError(f"{REQUESTS_MAX} requests in a row: the protocol does not settle")

    def _step(
        self, event: Event, began_ms: int, reported: list[Action]
    ) -> ReadRecord | WriteRecord | DeleteRecord | None:
        """Take one step and record its actions; return the request that it ends with, if any."""
        with self._state_lock:
            self._emit_input(event)
            self.state, actions = step(self.identity, self.state, event, self.policy)
            for action in actions:
                if isinstance(action, ReadRecord | WriteRecord | DeleteRecord):
                    assert action is actions[-1], "a request must be the last action of a step"
                    return action
                if isinstance(action, Granted | Renewed):
                    self.proven_ms = began_ms
                self._hear(action)
                reported.append(action)
        return None

    def notice_end(self) -> None:
        with self._state_lock:
            now = self.clock.now()
            state, ended = notice_end(self.state, now)
            if ended:
                self._emit_event("ended", now)
                self.state = state
            for action in ended:
                self._hear(action)

    def _sent_max(self, began_ms: int, patient: bool) -> int:
        slow = self.clock.boot_ms() - began_ms > self.identity.ttl_ms // 10
        return 1 if patient and slow else REQUESTS_BEFORE_PAUSE

    def doubt_what_is_out(self) -> None:
        """After an interrupt: a pending write may have an answer that no caller has read."""
        if self.state.out is not None:
            self._doubt(self.state.out.record.attempt, self.state.out.purpose.value)

    def in_doubt(self) -> bool:
        """Whether a claim of ours has no answer: it may have won, or may still win."""
        return any(
            write.record.attempt in self._in_doubt and not write.record.expired
            for write in self.state.unsettled
        )

    def forget(self) -> None:
        """Look before the next claim: our observation may be stale. Keeps ghosts and epochs."""
        kept = self.state
        assert kept.out is None, "a pending write would be forgotten; call `begin` first"
        self._emit_event("forget", self.clock.now())
        self.state = State(unsettled=kept.unsettled, floor=kept.floor, writes=kept.writes)

    def lose(self, why: str, reason: LossReason = LossReason.STOPPED) -> None:
        with self._state_lock:
            grant = self.state.grant
            if grant is None or self.state.until_ms is None:
                return
            self._emit_event("lose", self.clock.now(), why=why)
            self.state = replace(self.state, phase=Phase.LOST, until_ms=None)
            self._hear(LeaseLost(grant.epoch, why, reason))

    def taken_away(self, epoch: int) -> LeaseLost | None:
        """After a release of `epoch`: what replaced our record before our lease had ended.

        None if a lost answer to our own release leaves the order open.
        """
        observed = self.state.observed
        if observed is None or self._release_in_doubt:
            return None
        record = observed.observation.record
        if isinstance(record, Record) and record.attempt.startswith(f"{self.identity.handle}/"):
            return None
        from lockkit.lock.oddities import replaced_by  # not needed after an ordinary release

        return replaced_by(record, epoch)

    # --- one request -----------------------------------------------------------------------------

    def _patiently(self, action: ReadRecord | WriteRecord | DeleteRecord) -> Procedure[Event]:
        try:
            return (yield from self._request(action))
        except Exception as error:  # noqa: BLE001 - recorded, and treated as no answer
            self.emit("note", text=f"a request failed: {type(error).__name__}: {error}")
            why = self.last_failure = str(error)
            if isinstance(action, ReadRecord):
                return ReadFailed(self.clock.now(), why)
            return WriteAnswered(self.clock.now(), Unknown(why))

    def _request(self, action: ReadRecord | WriteRecord | DeleteRecord) -> Procedure[Event]:
        """Send one request and return its answer as the next event."""
        out = self.state.out
        op = out.purpose.value if out is not None and not isinstance(action, ReadRecord) else "look"
        attempt = action.record.attempt if isinstance(action, WriteRecord) else ""
        with self._beside(
            claiming=op == WritePurpose.CLAIM.value, asking=isinstance(action, ReadRecord)
        ):
            answer = yield from self._asking(op, attempt, request_of(action))
        now = self.clock.now()
        match answer:
            case Found(_, _, _, date_ms) | NotModified(date_ms) if date_ms is not None:
                self._compare_clocks(date_ms, now.wall_ms)
        match answer:
            case Found():
                observation = observation_of(answer)
                self._meet(observation.record)
                return ReadAnswered(now, observation)
            case Missing():
                return ReadAnswered(now, Observation(None, None))
            case NotModified(date_ms):
                return ReadAnswered(now, None, date_ms)
            case Throttled() | Unknown() if isinstance(action, ReadRecord):
                return ReadFailed(now, self.last_failure)
            case Throttled(after_s):
                answer = Throttled(self._throttle_s(after_s))
            case Unknown():
                self._doubt(attempt, op)
            case _:
                pass
        return WriteAnswered(now, answer)

    def _meet(self, record: Record | Garbled | None) -> None:
        if isinstance(record, Record):
            who = record.attempt.rpartition("/")[0] or record.owner  # Hudi names no attempt
            if who != self.identity.handle:
                self.polling.met(who)

    @contextmanager
    def _beside(self, *, claiming: bool, asking: bool) -> Iterator[None]:
        """Run the `beside` callback of `acquire` during this block; it ends before the block."""
        if self.beside is None or not (claiming or asking):
            yield
            return
        thread = threading.Thread(target=self.beside, args=(claiming,), name="beside", daemon=True)
        thread.start()
        try:
            yield
        finally:
            thread.join()

    def _asking(self, op: str, attempt: str, request: Get | Put | Delete) -> Procedure[Any]:
        """Send one request; record an `ask` event before it and an `answer` event after it."""
        self._requests += 1
        number = self._requests
        self.emit("ask", request=number, op=op, key=LOCK_KEY, attempt=attempt)
        began_ms = self.clock.boot_ms()
        try:
            answer = yield request
        except StoreError as error:
            self.last_failure = str(error)
            self._answered(number, op, "refused", "", self.last_failure)
            raise
        except BaseException:  # usually an interrupt in the middle of a write
            self._doubt(attempt, op)
            raise
        if not isinstance(answer, Unknown):  # the duration of a time-out is not a round trip
            self.polling.answered(self.clock.boot_ms() - began_ms)
        self.last_failure = why = getattr(answer, "why", "")
        if isinstance(answer, Throttled):
            from lockkit.lock.oddities import throttled

            self.last_failure = throttled(answer)
        version = getattr(answer, "version", "") or ""
        self._answered(number, op, type(answer).__name__, version, why)
        return answer

    def _answered(self, number: int, op: str, outcome: str, version: str, why: str) -> None:
        self.emit("answer", request=number, op=op, outcome=outcome, version=version, why=why)

    def perform_one(self, request: Request) -> Any:
        if isinstance(request, Sleep | BlockingCall):
            return performed(request, self.store, self.clock, self.emit)
        with within(self._left_s()):
            return performed(request, self.store, self.clock, self.emit)

    def _left_s(self) -> float:
        return min(self.request_s, (self.ends_ms - self.clock.boot_ms()) / 1000)

    def _throttle_s(self, requested_s: float | None) -> float | None:
        """The pause for a store that allows one write per second. Failed attempts count as well
        (cloud.google.com/storage/quotas), also other writers' (delta-rs #2451)."""
        interval_s = self.store.capabilities.write_interval_min_s
        if not interval_s:
            return requested_s
        return max(requested_s or 0.0, self.clock.uniform(interval_s, 1.3 * interval_s))

    def _doubt(self, attempt: str, op: str) -> None:
        if attempt:
            self._in_doubt.add(attempt)
        self._release_in_doubt |= op == WritePurpose.RELEASE.value

    # --- events ----------------------------------------------------------------------------------

    def _emit_input(self, event: Event) -> None:
        """Record the protocol's next event, so that a history can be replayed (`check.replay`)."""
        more: dict[str, Any] = {}
        match event:
            case AcquireRequested(_, floor):
                identity = self.identity
                more = {"floor": floor, "owner": identity.owner, "ttl_ms": identity.ttl_ms}
                more |= {"holder": identity.holder, "handle": identity.handle}
            case RenewDue(_, floor) if floor:
                more = {"floor": floor}
            case ReadAnswered(_, None, date_ms):
                more = {"outcome": "unchanged", "date_ms": date_ms}
            case ReadAnswered(_, Observation(None)):
                more = {"outcome": "missing"}
            case ReadAnswered(_, Observation(version, _, modified_ms, date_ms)):
                more = {"outcome": "found", "version": version}
                more |= {"modified_ms": modified_ms, "date_ms": date_ms}
            case WriteAnswered(_, answer):
                version = answer.version if isinstance(answer, Applied) else ""
                more = {"outcome": type(answer).__name__, "version": version}
            case _:
                pass
        self._emit_event(EVENT_NAMES[type(event)], event.now, **more)

    def _emit_event(self, name: str, now: Now, **more: Any) -> None:
        self._steps += 1
        self.emit(
            "heard", step=self._steps, event=name, boot_ms=now.boot_ms, wall_ms=now.wall_ms, **more
        )

    def _hear(self, action: Action) -> None:
        """Record what the protocol reports, and keep what callers read later."""
        until_ms = 0.0
        if self.state.until_ms is not None:
            self.lease_ends_ms = self.state.until_ms
            until_ms = self.on_wall(self.state.until_ms)
        version = self.state.version or ""
        match action:
            case Granted(epoch):
                self._in_doubt.clear()
                self.emit("held", epoch=epoch, until_ms=until_ms, version=version)
            case Renewed(epoch):
                self._in_doubt.clear()
                self.emit("renewed", epoch=epoch, until_ms=until_ms, version=version)
            case LeaseLost(epoch, why, _):
                self.loss = action
                self.emit("lost", epoch=epoch, why=why)
            case Released(epoch, proven):
                self.emit("released", epoch=epoch, proven=proven)
            case HeldByOther(record, frees):
                self._hear_busy(action, record, frees)
            case Pause() | ClaimLost():
                pass
            case ReadRecord() | WriteRecord() | DeleteRecord():
                raise AssertionError("a request is carried out, not recorded as an event")
            case _:
                assert_never(action)

    def _hear_busy(self, busy: HeldByOther, record: Record | Garbled, frees: int | None) -> None:
        first = self.busy is None or self.busy.record != record
        self.busy = busy
        if isinstance(record, Record):
            self.polling.saw(record.epoch, self.clock.boot_ms())
        if not first:
            return
        from lockkit.lock.oddities import named, unexpected  # not needed for a lock that is free

        odd = unexpected(self.where, LOCK_KEY, record, frees, self.clock.now())
        if odd is not None:
            self.warn(odd)
        until_ms = None if frees is None else self.on_wall(frees)
        self.emit("waiting", **named(record), until_ms=until_ms)

    def busy_error(self) -> LockBusy:
        from lockkit.lock.oddities import busy_error

        record = None if self.busy is None else self.busy.record
        return busy_error(self.where, LOCK_KEY, record, self.last_failure, ghost=self.in_doubt())

    def _compare_clocks(self, date_ms: int, wall_ms: int) -> None:
        """Keep the offset of the store's clock; warn once if it certainly exceeds the drift."""
        self.offset_ms = offset = date_ms - wall_ms
        surely = max(offset, -(offset + FLOORED_MS + round(self.polling.trip_ms)))
        if surely > self.policy.drift_ms and not self._warned_of_clock:
            from lockkit.lock.oddities import clock_skew

            self._warned_of_clock = True
            warning = clock_skew(self.where, offset, self.policy.drift_ms)
            self.emit("note", text=str(warning), offset_ms=offset)
            self.warn(warning)

    def warn(self, warning: Warning) -> None:
        warnings.warn(warning, stacklevel=2)


def request_of(action: ReadRecord | WriteRecord | DeleteRecord) -> Get | Put | Delete:
    """The protocol's action as one request. Not `settle_write`: `lease.step` judges the answer."""
    match action:
        case ReadRecord(unless):
            return Get(LOCK_KEY, unless, RECORD_BYTES_MAX)
        case WriteRecord(record, version):
            return Put(LOCK_KEY, encode(record), over(version))
        case DeleteRecord(version):
            return Delete(LOCK_KEY, None if version is None else IfVersion(version))
        case _:
            assert_never(action)


def observation_of(found: Found) -> Observation:
    return Observation(found.version, decode(found.body), found.modified_ms, found.date_ms)
