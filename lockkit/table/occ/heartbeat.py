"""The heartbeat of a writer: while it is fresh, no other writer rolls its instant back.

Each beat replaces the version of the beat before with new, unique bytes. So a heartbeat that
another writer ended is never revived, however long its writer was paused. That writer learns at its
next beat that it must stop, not hours later at its commit.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace

from lockkit.clock import Clock, back_off_s, process_name
from lockkit.errors import StoreError, Unanswered
from lockkit.lock.on_store import OnStore
from lockkit.lock.renewal import Renewer
from lockkit.protocol.outcome import Applied, Found, Missing, Throttled, Version, over
from lockkit.runtime import BootMs, Get, Procedure, Sleep, Unique, run
from lockkit.runtime.proven import TRIES_MAX, delete, pause_s, put_once
from lockkit.stores import Store
from lockkit.table.errors import CommitUnknown, HeartbeatExpired
from lockkit.table.occ.heartbeat_rules import HeartbeatRules
from lockkit.table.occ.liveness import (
    BODY_BYTES_MAX,
    HeartbeatRead,
    end,
    forget,
    heartbeat_key,
    heartbeat_of,
    read_heartbeat,
)

BACK_OFF_FIRST_S = 0.05


@dataclass(frozen=True, slots=True)
class HeartbeatState:
    """The progress of a writer's heartbeat."""

    instant: str
    ttl_ms: int
    holder: str = ""
    """Host and process, for humans."""
    version: Version | None = None
    """Version of the last proven beat; None before the first."""
    out: frozenset[str] = frozenset()
    """Attempts sent since then whose outcome is unknown; empty right after a proven beat."""


def beat(now: HeartbeatState) -> Procedure[HeartbeatState]:
    """Send one more beat, once; read it back once if there was no answer.

    An unproven beat is returned with its attempt in `out`, or unchanged if the store was too busy;
    the next call settles it. Raises `HeartbeatExpired` if another writer ended the heartbeat.
    """
    attempt = yield Unique()  # new for each send: a late copy must not look like the version we own
    body = {"instant": now.instant, "attempt": attempt, "ttlMs": now.ttl_ms, "holder": now.holder}
    out = now.out | {attempt}
    # Sent once (not `settle_write`): time runs on, and the next beat settles this one.
    key = heartbeat_key(now.instant)
    answer = yield from put_once(key, json.dumps(body).encode(), over(now.version))
    if isinstance(answer, Applied):
        return replace(now, version=answer.version, out=frozenset())
    if isinstance(answer, Throttled):
        return now
    try:
        found = yield Get(key, limit=BODY_BYTES_MAX)
    except StoreError:
        return replace(now, out=out)
    match found:
        case Found() if heartbeat_of(now.instant, found).attempt in out:
            # The others of `out` require a version that is gone: none of them can land any more.
            return replace(now, version=found.version, out=frozenset())
        case Found(_, version) if version != now.version:
            raise HeartbeatExpired(now.instant, "another writer ended it, or has this instant")
        case Missing() if now.version is not None:
            raise HeartbeatExpired(now.instant, "another writer ended it, and it is gone")
        case _:
            return replace(now, out=out)


def start(now: HeartbeatState) -> Procedure[HeartbeatState]:
    """Beat until it is proven; `Unanswered` if the store is silent for too long.

    If Hudi also writes to the table, call it before the instant's requested file is created: Hudi
    rolls back at once an instant without a heartbeat.
    """
    for tries in range(TRIES_MAX):
        after = yield from beat(now)
        if after.version != now.version:
            return after
        now = after
        yield Sleep(pause_s(tries))
    raise Unanswered(
        heartbeat_key(now.instant), f"could not be written in {TRIES_MAX} tries",
        "check that the store answers, then begin again", doubt=True,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class FirstBeat:
    """A heartbeat that is proven before its instant is taken."""

    state: HeartbeatState
    sent_ms: int
    """When it was sent, by `boot_ms`."""

    @property
    def instant(self) -> str:
        return self.state.instant


def begin_ahead(now: HeartbeatState) -> Procedure[FirstBeat]:
    """`start`, before the instant is taken."""
    sent_ms = yield BootMs()
    return FirstBeat((yield from start(now)), sent_ms)


def drop(begun: FirstBeat) -> Procedure[None]:
    """Its instant was not taken, and may be another writer's: delete exactly this heartbeat."""
    with suppress(StoreError, Unanswered):  # otherwise it expires by itself
        yield from delete(heartbeat_key(begun.instant), begun.state.version)


@dataclass(slots=True)
class HeartbeatSchedule:
    """The writer's own view of its heartbeat: when to beat again, and when to stop writing.

    The caller waits between the beats and sends one at a time: in a thread (`Heartbeat`), or in the
    simulator.
    """

    now: HeartbeatState
    rules: HeartbeatRules
    clock: Clock
    quiet_since_ms: int | None = None
    """Of a short write, which may need none: when its instant was requested. Others count its age
    from when the store applied that request, maybe long before the answer."""
    lost: str | None = None
    """Why other writers may treat this one as dead."""
    since_ms: int = field(init=False)
    """The earliest send that the next proof may prove."""
    proven_ms: int = field(init=False)
    """When the last proven beat was sent."""
    _failures: int = 0

    def __post_init__(self) -> None:
        self.since_ms = self.clock.boot_ms()
        self.proven_ms = self.since_ms if self.quiet_since_ms is None else self.quiet_since_ms

    @property
    def until_ms(self) -> int:
        """From then on other writers may treat this one as dead."""
        return self.proven_ms + self.rules.belief_ms

    @property
    def interval_s(self) -> float:
        return self.rules.interval_ms / 1000

    def assert_alive(self) -> None:
        """Raise `HeartbeatExpired` once other writers may treat this one as dead."""
        if self.lost is None and self.clock.boot_ms() >= self.until_ms:
            self.lost = f"no heartbeat succeeded for {self.rules.belief_ms} ms"
        if self.lost is not None:
            raise HeartbeatExpired(self.now.instant, self.lost)

    def start(self, begun: FirstBeat | None = None) -> Procedure[None]:
        """The first beat, proven: the one that has `begun`, or one that is sent now."""
        if begun is None:
            self.now = yield from start(self.now)
        else:
            self.now, self.since_ms, self.proven_ms = begun.state, begun.sent_ms, begun.sent_ms

    def beat(self) -> Procedure[float | None]:
        """Send one more beat; return the seconds until the next, or None once all is lost."""
        proven = yield from self.renewed()
        if self.lost is not None:
            return None
        self._failures = 0 if proven else self._failures + 1
        if proven:
            return self.interval_s
        return back_off_s(
            self._failures, self.clock, first_s=BACK_OFF_FIRST_S, longest_s=self.interval_s
        )

    def renewed(self) -> Procedure[bool]:
        """Send one more beat; return whether it is proven. It counts from the earliest send."""
        before = self.now
        try:
            self.assert_alive()
            sent_ms = self.clock.boot_ms()
            self.since_ms = self.since_ms if before.out else sent_ms
            self.now = yield from beat(before)
        except HeartbeatExpired as error:
            self.lost = error.cause
        except StoreError:
            pass
        if self.now.version == before.version:
            return False
        self.proven_ms = self.since_ms
        return True

    def finish(self) -> Procedure[None]:
        """The instant is committed: its heartbeat is not needed any more."""
        if self.quiet_since_ms is None or not self._is_silent():
            yield from forget(self.now.instant)

    def leave(self) -> Procedure[None]:
        """The instant is a plan's, which stays pending: delete this heartbeat.

        Once others may treat this writer as dead, one of them may carry the same plan out, with a
        heartbeat of its own at this instant: that one stays.
        """
        if self.lost is None and self.clock.boot_ms() < self.until_ms:
            yield from forget(self.now.instant)
            return
        with suppress(StoreError, Unanswered):
            found = yield from read_heartbeat(self.now.instant)
            mine = found.version == self.now.version or found.attempt in self.now.out
            if found.version is not None and mine:
                yield from delete(heartbeat_key(self.now.instant), found.version)

    def give_up(self) -> Procedure[None]:
        """The instant will not be committed: others need not wait until the heartbeat expires."""
        if not self._is_silent():
            yield from end(HeartbeatRead(self.now.instant, self.now.version))

    def _is_silent(self) -> bool:
        return self.now.version is None and not self.now.out


class Heartbeat:
    """Renews a writer's heartbeat from construction on; `assert_alive` before important steps.

    `with` ends the heartbeat on leaving, unless `finish` was called or the commit may have been
    made anyway (`CommitUnknown`, Ctrl-C): then it expires by itself.
    :param instant: whose heartbeat it is.
    :param store: the table's.
    :param clock: the source of time.
    :param rules: how often it beats, and after how many missed beats a writer counts as dead.
    :param sent_ms: None: the first beat is sent at once. Else when the instant was requested, by
        `boot_ms`: the first beat comes half an interval later, and a short write needs none.
    :param begun: the first beat, if it was sent already.
    :raises HeartbeatExpired: if another writer ended the instant's heartbeat or has the instant.
    :raises Unanswered: if the store does not answer.
    """

    def __init__(
        self,
        instant: str,
        store: Store,
        *,
        clock: Clock | None = None,
        rules: HeartbeatRules = HeartbeatRules(),
        sent_ms: int | None = None,
        begun: FirstBeat | None = None,
    ) -> None:
        self.instant, self.rules = instant, rules
        self.on_lost: Callable[[], object] = bool
        """Called from the thread that watches the clock; it may end what the writer waits for."""
        self._store, self._clock = store, clock or Clock()
        now = HeartbeatState(instant, rules.ttl_ms, holder=process_name())
        self._beats = HeartbeatSchedule(now, rules, self._clock, sent_ms)
        if sent_ms is None:
            run(self._beats.start(begun), store, self._clock)
        held = Pulsing(self._beats, store)
        self._turn, self._stopped = held.turn, False
        self._renewer = Renewer(
            held, threading.current_thread(), lives=lambda: True, report=self._report,
            first_ms=None if sent_ms is None else rules.interval_ms / 2,
        )  # fmt: skip

    @property
    def user(self) -> threading.Thread:
        """The thread that writes: once it has ended, the heartbeat is not renewed any more."""
        return self._renewer.user

    @user.setter
    def user(self, thread: threading.Thread) -> None:
        self._renewer.user = thread

    def _report(self, kind: str) -> None:
        if kind == "lost":
            with suppress(Exception):  # cancelling a job may raise anything
                self.on_lost()

    def assert_alive(self) -> None:
        """Raise `HeartbeatExpired` once other writers may treat this one as dead."""
        self._beats.assert_alive()

    def stop(self) -> None:
        """No more beats; the last one expires by itself. Does not wait for one in progress."""
        self._stopped = True
        self._renewer.stop()

    def finish(self) -> None:
        """The instant is committed: its heartbeat is not needed any more."""
        self.stop()
        quiet = self._beats.quiet_since_ms is not None
        with self._turn if quiet else nullcontext():  # a first beat may be in progress
            run(self._beats.finish(), self._store, self._clock)

    def give_up(self) -> None:
        """The instant will not be committed: others need not wait until the heartbeat expires."""
        self.stop()
        with self._turn, suppress(StoreError, Unanswered):  # otherwise it expires by itself
            run(self._beats.give_up(), self._store, self._clock)

    def finished(self) -> Procedure[None]:
        """`finish` as a procedure, for `WriteAttempt`, beside what it does at the same time."""
        if self._beats.quiet_since_ms is not None:
            self.finish()
            return
        self.stop()
        yield from self._beats.finish()

    def left(self) -> Procedure[None]:
        """Stop, and `HeartbeatSchedule.leave`."""
        yield from ()
        self.stop()
        run(self._beats.leave(), self._store, self._clock)

    def given_up(self) -> Procedure[None]:
        """`give_up` as a procedure, for `WriteAttempt`."""
        yield from ()
        self.give_up()

    def __enter__(self) -> Heartbeat:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, CommitUnknown) or not isinstance(error, Exception | None):
            self.stop()
        elif not self._stopped:
            self.give_up()


class Pulsing(OnStore):
    """A writer's heartbeat, as `Renewer` renews it."""

    def __init__(self, beats: HeartbeatSchedule, store: Store) -> None:
        super().__init__(store, beats.clock)
        self._beats = beats

    @property
    def renew_ms(self) -> float:
        return self._beats.rules.interval_ms

    @property
    def proven_ms(self) -> float:
        return self._beats.proven_ms

    @property
    def until_ms(self) -> float | None:
        return None if self._beats.lost is not None else self._beats.until_ms

    def notice_end(self) -> None:
        with suppress(HeartbeatExpired):
            self._beats.assert_alive()

    def lose(self, why: str) -> None:
        self._beats.lost = why

    def renewed(self) -> Procedure[tuple[bool, float | None]]:
        return (yield from self._beats.renewed()), None
