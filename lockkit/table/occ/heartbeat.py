"""The heartbeat of a writer: while it is fresh, no other writer rolls its instant back.

Each beat replaces the version of the beat before with bytes that never were there. So a heartbeat
that another writer ended is never revived, however long its writer was paused, and that writer
learns at its next beat that it must stop, not hours later at its commit.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from lockkit.clock import Clock, back_off_s
from lockkit.errors import CommitUnknown, HeartbeatExpired, StoreError, Unanswered
from lockkit.protocol.outcome import (
    Applied,
    Found,
    Missing,
    PreconditionFailed,
    Throttled,
    Unknown,
    Version,
    over,
)
from lockkit.runtime import TRIES_MAX, Get, Procedure, Put, Sleep, Unique, pause_s, run
from lockkit.stores import Store
from lockkit.table.occ.liveness import (
    BODY_BYTES_MAX,
    HeartbeatRead,
    HeartbeatRules,
    end,
    forget,
    heartbeat_key,
    pulse_of,
)

BACK_OFF_FIRST_S = 0.05


@dataclass(frozen=True, slots=True)
class HeartbeatState:
    """How far a writer's heartbeat has come."""

    instant: str
    ttl_ms: int
    holder: str = ""
    """Host and process, for humans."""
    version: Version | None = None
    """Of the last beat that was proven; None before the first."""
    out: frozenset[str] = frozenset()
    """Attempts sent since then whose fate is not known; empty right after a proven beat."""


def beat(now: HeartbeatState) -> Procedure[HeartbeatState]:
    """One more beat: sent once, and read back once if there was no answer.

    An unproven beat is returned with its attempt in `out`, or unchanged if the store was too busy;
    the next call settles it. Raises `HeartbeatExpired` if another writer ended the heartbeat.
    """
    attempt = yield Unique()  # of every sending: a late copy must not look like the version we own
    body = {"instant": now.instant, "attempt": attempt, "ttlMs": now.ttl_ms, "holder": now.holder}
    out = now.out | {attempt}
    match (yield Put(heartbeat_key(now.instant), json.dumps(body).encode(), over(now.version))):
        case Applied(version):
            return replace(now, version=version, out=frozenset())
        case Throttled():
            return now
        case PreconditionFailed() | Unknown():
            pass
        case other:
            raise AssertionError(f"not an answer to a write: {other!r}")
    try:
        found = yield Get(heartbeat_key(now.instant), limit=BODY_BYTES_MAX)
    except StoreError:
        return replace(now, out=out)
    match found:
        case Found() if pulse_of(now.instant, found).attempt in out:
            # The others of `out` asked for a version that is gone: none of them can land any more.
            return replace(now, version=found.version, out=frozenset())
        case Found(_, version) if version != now.version:
            raise HeartbeatExpired(now.instant, "another writer ended it, or has this instant")
        case Missing() if now.version is not None:
            raise HeartbeatExpired(now.instant, "another writer ended it, and it is gone")
        case _:
            return replace(now, out=out)


def start(now: HeartbeatState) -> Procedure[HeartbeatState]:
    """Beat until it is proven; `Unanswered` if the store is silent for that long.

    Before the instant's requested file is created, where Hudi writes to the table too: Hudi rolls
    back at once what has no heartbeat.
    """
    for tries in range(TRIES_MAX):
        after = yield from beat(now)
        if after.version != now.version:
            return after
        now = after
        yield Sleep(pause_s(tries))
    raise Unanswered(
        f"{heartbeat_key(now.instant)} could not be written in {TRIES_MAX} tries; see that the "
        "store answers, then begin again",
        doubt=True,
    )


@dataclass(slots=True)
class HeartbeatSchedule:
    """A writer's heartbeat as the writer knows it: when to beat again, and until when to go on.

    The caller waits between the beats, and beats once at a time: in a thread (`Heartbeat`),
    or in the simulator.
    """

    now: HeartbeatState
    rules: HeartbeatRules
    clock: Clock
    quiet: bool = False
    """Whether there may be no beat at all, because the write is short."""
    lost: str | None = None
    """Why others may take this writer for dead."""
    since_ms: int = field(init=False)
    until_ms: int = field(init=False)
    _failures: int = 0

    def __post_init__(self) -> None:
        self.since_ms = self.clock.boot_ms()
        self.until_ms = self.since_ms + self.rules.belief_ms

    @property
    def interval_s(self) -> float:
        return self.rules.interval_ms / 1000

    def check(self) -> None:
        """Raise `HeartbeatExpired` once others may take this writer for dead."""
        if self.lost is None and self.clock.boot_ms() >= self.until_ms:
            self.lost = f"no beat was proven for {self.rules.belief_ms} ms"
        if self.lost is not None:
            raise HeartbeatExpired(self.now.instant, self.lost)

    def start(self) -> Procedure[None]:
        """The first beat, proven."""
        self.now = yield from start(self.now)

    def beat(self) -> Procedure[float | None]:
        """One more beat; after how many seconds the next is due, or None once all is lost."""
        try:
            self.check()
            proven = yield from self._beat()
        except HeartbeatExpired as error:
            self.lost = error.why
            return None
        except StoreError:
            proven = False
        self._failures = 0 if proven else self._failures + 1
        if proven:
            return self.interval_s
        return back_off_s(
            self._failures, self.clock, first_s=BACK_OFF_FIRST_S, longest_s=self.interval_s
        )

    def _beat(self) -> Procedure[bool]:
        """Whether it is proven. It counts from the earliest sending that it may prove."""
        sent_ms = self.clock.boot_ms()
        self.since_ms = self.since_ms if self.now.out else sent_ms
        before = self.now
        self.now = yield from beat(before)
        if self.now.version == before.version:
            return False
        self.until_ms = self.since_ms + self.rules.belief_ms
        return True

    def finish(self) -> Procedure[None]:
        """The instant is committed: its heartbeat is not needed any more."""
        if not (self.quiet and self._is_silent()):
            yield from forget(self.now.instant)

    def give_up(self) -> Procedure[None]:
        """The instant will not be committed: others need not wait until it expires."""
        if not self._is_silent():
            yield from end(HeartbeatRead(self.now.instant, self.now.version))

    def _is_silent(self) -> bool:
        return self.now.version is None and not self.now.out


class Heartbeat:
    """Beats in its own thread from construction on; call `check` before every step that matters.

    It continues from `begun` if the first beat was made before. Raises `HeartbeatExpired` if
    another writer has the instant's heartbeat, `Unanswered` if the store does not answer. `with`
    gives it up on leaving, unless `finish` was called or the commit may have been made all the same
    (`CommitUnknown`, Ctrl-C); then it expires by itself. `user` is the thread that writes: the
    beats stop when it has ended. `on_lost()` is called from the beating thread, and may cancel what
    the writer waits for. With `quiet_s` (seconds) the first beat comes that much later: no writer
    treats an instant as dead before its time to live is over, so a short write needs no heartbeat.
    """

    def __init__(
        self,
        instant: str,
        store: Store,
        *,
        clock: Clock | None = None,
        rules: HeartbeatRules = HeartbeatRules(),
        begun: HeartbeatState | None = None,
        quiet_s: float | None = None,
    ) -> None:
        self.instant, self.rules = instant, rules
        self.user = threading.current_thread()
        self.on_lost: Callable[[], object] = bool
        self._store, self._clock = store, clock or Clock()
        self._turn = threading.Lock()
        self._stop = threading.Event()
        now = begun or HeartbeatState(
            instant, rules.ttl_ms, holder=f"{socket.gethostname()}/{os.getpid()}"
        )
        self._beats = HeartbeatSchedule(now, rules, self._clock, quiet=quiet_s is not None)
        self._wait_s = self._beats.interval_s if quiet_s is None else quiet_s
        if quiet_s is None:
            run(self._beats.start(), store, self._clock)
        self._thread = threading.Thread(target=self._run, name="lockkit-heartbeat", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise `HeartbeatExpired` once others may take this writer for dead."""
        self._beats.check()

    def stop(self) -> None:
        """No more beats; what is there expires by itself. Does not wait for one under way."""
        self._stop.set()

    def finish(self) -> None:
        """The instant is committed: its heartbeat is not needed any more."""
        self.stop()
        if self._beats.quiet:
            with self._turn:  # the first beat may be under way
                run(self._beats.finish(), self._store, self._clock)
        else:
            run(self._beats.finish(), self._store, self._clock)

    def give_up(self) -> None:
        """The instant will not be committed: others need not wait until it expires."""
        self.stop()
        with self._turn, suppress(StoreError, Unanswered):  # then it expires by itself
            run(self._beats.give_up(), self._store, self._clock)

    def __enter__(self) -> Heartbeat:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, CommitUnknown) or not isinstance(error, Exception | None):
            self.stop()
        elif not self._stop.is_set():
            self.give_up()

    def _run(self) -> None:
        wait_s = self._wait_s
        while not self._clock.wait(self._stop, wait_s) and self.user.is_alive():
            next_s: float | None = None
            try:
                with self._turn:
                    if self._stop.is_set():
                        return
                    next_s = run(self._beats.beat(), self._store, self._clock)
            except Exception as error:  # noqa: BLE001 - a dead thread is no heartbeat, and says so
                self._beats.lost = f"its thread died of {error!r}"
            if next_s is None:
                with suppress(Exception):  # whatever a cancelled job's engine may raise
                    self.on_lost()
                return
            wait_s = next_s
