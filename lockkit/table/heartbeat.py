"""The heartbeat of a writer: as long as it beats, nobody rolls its instant back.

Each beat replaces the version of the beat before, with bytes that never were there, so a heartbeat
that somebody ended is never resurrected, however long its writer slept; and the writer knows at
once that it must stop, not hours later at its commit.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from lockkit.clock import Clock, back_off_s
from lockkit.drive import Get, Procedure, Put, Sleep, Unique, run
from lockkit.outcome import (
    Applied,
    Found,
    Missing,
    PreconditionFailed,
    Throttled,
    Unknown,
    Version,
    over,
)
from lockkit.stores import Store, StoreError
from lockkit.table.ask import TRIES_MAX, TableError, Unanswered, pause_s
from lockkit.table.decide import CommitUnknown
from lockkit.table.pulse import (
    BODY_BYTES_MAX,
    HeartbeatRules,
    Pulse,
    end,
    forget,
    heartbeat_key,
    pulse_of,
)

BACK_OFF_FIRST_S = 0.05


class HeartbeatExpired(TableError):
    """This writer's heartbeat is over: others may roll its instant back. It must stop now."""

    def __init__(self, instant: str, why: str) -> None:
        self.instant, self.why = instant, why
        super().__init__(
            f"the heartbeat of {instant} is over ({why}); its files may be rolled back by others "
            "at any time, so nothing more is written for it: begin again"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.instant, self.why)


@dataclass(frozen=True, slots=True)
class Beating:
    """How far a writer's heartbeat has come."""

    instant: str
    ttl_ms: int
    holder: str = ""
    """Host and process, for humans."""
    version: Version | None = None
    """Of the last beat that was proven; None before the first."""
    out: frozenset[str] = frozenset()
    """Attempts sent since then whose fate is not known; empty right after a proven beat."""


def beat(now: Beating) -> Procedure[Beating]:
    """One more beat: sent once, and looked at once if its answer was none.

    Unproven, it comes back with something in `out`, or as it was where the store was too busy: the
    same call again settles it. Raises `HeartbeatExpired` if another took the heartbeat away.
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
            raise HeartbeatExpired(now.instant, "somebody ended it, or has this very instant")
        case Missing() if now.version is not None:
            raise HeartbeatExpired(now.instant, "somebody ended it, and it is gone")
        case _:
            return replace(now, out=out)


def start(now: Beating) -> Procedure[Beating]:
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


class Heartbeat:
    """Beats in a thread of its own from construction on; `check` before every step that matters.

    Goes on from `begun`, where the first beat was made before. Raises `HeartbeatExpired` where the
    instant's heartbeat is not to be had, `Unanswered` where the store does not say. `with` gives it
    up on leaving, unless the commit was told by `finish`, or may have been made all the same
    (`CommitUnknown`, Ctrl-C): then it expires by itself. `user` is the thread that writes: when it
    has ended, nobody beats for it. `on_lost()` is called from the beating thread, and may end what
    the writer is waiting for. With `quiet_s` the first beat comes only after so long: nobody takes
    an instant for dead before its time to live is over, and a short write needs no heartbeat.
    """

    def __init__(
        self,
        instant: str,
        store: Store,
        *,
        clock: Clock | None = None,
        rules: HeartbeatRules = HeartbeatRules(),
        begun: Beating | None = None,
        quiet_s: float | None = None,
    ) -> None:
        self.instant, self.rules = instant, rules
        self.user = threading.current_thread()
        self.on_lost: Callable[[], object] = bool
        self._store, self._clock = store, clock or Clock()
        self._lost: str | None = None
        self._turn = threading.Lock()
        self._stop = threading.Event()
        self._since_ms = self._clock.boot_ms()
        self._quiet_s = quiet_s
        self._now = begun or Beating(
            instant, rules.ttl_ms, holder=f"{socket.gethostname()}/{os.getpid()}"
        )
        if quiet_s is None:
            self._now = run(start(self._now), store, self._clock)
        self._until_ms = self._since_ms + rules.belief_ms
        self._thread = threading.Thread(target=self._run, name="lockkit-heartbeat", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise `HeartbeatExpired` once others may take this writer for dead."""
        if self._lost is None and self._clock.boot_ms() >= self._until_ms:
            self._lost = f"no beat was proven for {self.rules.belief_ms} ms"
        if self._lost is not None:
            raise HeartbeatExpired(self.instant, self._lost)

    def stop(self) -> None:
        """No more beats; what is there expires by itself. Does not wait for one under way."""
        self._stop.set()

    def finish(self) -> None:
        """The instant is committed: its heartbeat is not needed any more."""
        self.stop()
        if self._quiet_s is not None:
            with self._turn:  # the first beat may be under way
                if self._is_silent():
                    return
        run(forget(self.instant), self._store, self._clock)

    def give_up(self) -> None:
        """The instant will not be committed: others need not wait until it expires."""
        self.stop()
        with self._turn, suppress(StoreError, Unanswered):  # then it expires by itself
            if not self._is_silent():
                run(end(Pulse(self.instant, self._now.version)), self._store, self._clock)

    def _is_silent(self) -> bool:
        return self._now.version is None and not self._now.out

    def __enter__(self) -> Heartbeat:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, CommitUnknown) or not isinstance(error, Exception | None):
            self.stop()
        elif not self._stop.is_set():
            self.give_up()

    def _beat(self) -> bool:
        """Whether it is proven. It counts from the earliest sending that it may prove."""
        sent_ms = self._clock.boot_ms()
        self._since_ms = self._since_ms if self._now.out else sent_ms
        before = self._now
        self._now = run(beat(before), self._store, self._clock)
        if self._now.version == before.version:
            return False
        self._until_ms = self._since_ms + self.rules.belief_ms
        return True

    def _lose(self, why: str) -> None:
        self._lost = why
        with suppress(Exception):  # whatever a cancelled job's engine may raise
            self.on_lost()

    def _run(self) -> None:
        failures, wait_s = 0, self.rules.interval_ms / 1000
        if self._quiet_s is not None:
            wait_s = self._quiet_s
        while not self._clock.wait(self._stop, wait_s) and self.user.is_alive():
            try:
                with self._turn:
                    if self._stop.is_set():
                        return
                    self.check()
                    proven = self._beat()
            except HeartbeatExpired as error:
                self._lose(error.why)
                return
            except StoreError:
                proven = False
            except Exception as error:  # noqa: BLE001 - a dead thread is no heartbeat, and says so
                self._lose(f"its thread died of {error!r}")
                return
            failures = 0 if proven else failures + 1
            interval_s = wait_s = self.rules.interval_ms / 1000
            if failures:
                wait_s = back_off_s(
                    failures, self._clock, first_s=BACK_OFF_FIRST_S, longest_s=interval_s
                )
