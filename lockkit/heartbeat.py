"""The heartbeat of one grant: renews it, and reports danger and loss on time.

Two daemon threads. One watches the clock, calls `on_danger` and `on_lost`, and makes no request, so
no server can delay a report. The other one sends the renewals; it starts with the first of them, so
a short hold never pays for it.

A heartbeat never dies silently: whatever goes wrong in it is a renewal without an answer, then
danger, then loss. It knows its `Lock` weakly, so a handle that was dropped is not renewed for ever.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from lockkit.client import Client
from lockkit.pace import asked_s
from lockkit.state import Beat, Pause, Phase, Renewed, Tick

DANGER_AFTER_RENEWALS = 2
"""Renewal is overdue when none was proven for so many intervals, and one more while one is out."""
BACK_OFF_FIRST_MS = 50.0


class CallbackFailed(RuntimeWarning):
    """A loss callback raised. The lease is not affected."""


class Heartbeat:
    """Renews every `renew_ms` until stopped, or until the lease is lost.

    `user` is the thread that the lock works for: when it has ended without a release, nobody is
    left who could release, so renewing ends and the lease runs out (Hudi's heartbeat does so too).
    """

    def __init__(self, lock: Any, client: Client, renew_ms: int) -> None:
        self.user = threading.current_thread()
        self._lock = weakref.ref(lock)
        self._client = client
        self._renew_ms = renew_ms
        self._began_ms = client.clock.boot_ms()
        self._due_ms: float = self._began_ms + renew_ms
        """When the next renewal is to be sent."""
        self._stop = threading.Event()
        self._woken = threading.Event()
        self._asked = threading.Event()
        self._renewing = False
        """Whether a renewal is out; only the watching thread sets it, only the other clears it."""
        self._failures = 0
        self._in_danger = self._orphaned = False
        self._renewer: threading.Thread | None = None
        self._watcher = threading.Thread(target=self._watch, name="lockkit-watch", daemon=True)
        self._watcher.start()

    def stop(self) -> None:
        """No more beats. Does not wait: one that is under way has the client's turn."""
        self._stop.set()
        self._woken.set()

    def used(self) -> None:
        """The current thread works under the lock now."""
        if threading.current_thread() is not self._watcher:
            self.user = threading.current_thread()

    # --- the thread that watches the clock -----------------------------------------------------

    def _watch(self) -> None:
        try:
            while (wait_ms := self._look_at_the_clock()) is not None:
                self._client.clock.wait(self._woken, wait_ms / 1000)
                self._woken.clear()
        except Exception as error:  # noqa: BLE001 - a dead heartbeat is a lost lease, and says so
            self._die(error)
            self._tell_lost()
        finally:
            self._stop.set()
            self._asked.set()  # so that the other thread ends

    def _look_at_the_clock(self) -> float | None:
        """Report what is due, ask for a renewal that is due.

        Returns how long to wait in ms, or None when there is nothing left to watch.
        """
        client = self._client
        if self._stop.is_set():
            return None
        client.notice_end()
        until_ms, now_ms = client.state.until_ms, client.clock.boot_ms()
        if until_ms is None:
            if not self._stop.is_set():
                self._tell_lost()
            return None
        danger_ms = self._danger_ms()
        if now_ms >= danger_ms and not self._in_danger:
            self._in_danger = True
            self._tell_danger(until_ms)
        if now_ms >= self._due_ms and not self._renewing:
            self._ask_to_renew()
        moments: list[float] = [until_ms]
        if not self._in_danger:
            moments.append(danger_ms)
        if not self._renewing:
            moments.append(self._due_ms)
        return max(1.0, min(moments) - client.clock.boot_ms())

    def _danger_ms(self) -> float:
        intervals = DANGER_AFTER_RENEWALS + self._renewing
        return max(self._client.proven_ms, self._began_ms) + intervals * self._renew_ms

    def _ask_to_renew(self) -> None:
        if self._renewer is None:
            renewer = threading.Thread(target=self._renew, name="lockkit-renew", daemon=True)
            try:
                renewer.start()
            except RuntimeError:  # no thread to be had: as a renewal that got no answer
                self._due_ms = self._client.clock.boot_ms() + self._back_off_ms()
                return
            self._renewer = renewer
        self._renewing = True
        self._asked.set()

    def _tell_danger(self, until_ms: int) -> None:
        grant, lock = self._client.state.grant, self._lock()
        if grant is None or self._stop.is_set():
            return
        self._client.emit("danger", epoch=grant.epoch, until_ms=self._client.on_wall(until_ms))
        if lock is not None and lock.on_danger is not None:
            self._call("on_danger", lock.on_danger, lock)

    def _tell_lost(self) -> None:
        lock, why = self._lock(), self._client.lost_why
        if lock is not None and lock.on_lost is not None and why is not None:
            self._call("on_lost", lock.on_lost, lock, why)

    def _call(self, name: str, callback: Callable[..., None], *arguments: Any) -> None:
        try:
            callback(*arguments)
        except Exception as error:  # noqa: BLE001 - told twice; the lease goes on
            text = f"{name} of the lock of {self._client.where} raised {error!r}"
            self._client.emit("note", text=text)
            with suppress(CallbackFailed):  # where warnings are errors, nobody could catch it here
                warnings.warn(CallbackFailed(text), stacklevel=2)

    # --- the thread that sends the renewals ----------------------------------------------------

    def _renew(self) -> None:
        try:
            while True:
                self._asked.wait()
                self._asked.clear()
                if self._stop.is_set():
                    return
                self._beat()
                self._renewing = False
                self._woken.set()
        except Exception as error:  # noqa: BLE001 - as above
            self._die(error)
            self._woken.set()

    def _beat(self) -> None:
        """Renew, or settle what is open; sets when the next beat is due."""
        client = self._client
        with client.turn:
            if self._stop.is_set() or client.state.grant is None:
                return
            began_ms = client.clock.boot_ms()
            told = client.feed(self._event(), patient=True)
            until_ms = client.state.until_ms
        if until_ms is None:
            return
        if any(isinstance(each, Renewed) for each in told):
            self._failures, self._in_danger = 0, False
            self._due_ms = began_ms + self._renew_ms
            return
        self._failures += 1
        now_ms = client.clock.boot_ms()
        pause = next((each for each in told if isinstance(each, Pause)), Pause())
        asked_ms = asked_s(pause.seconds, (until_ms - now_ms) / 1000) * 1000
        self._due_ms = now_ms + max(asked_ms, self._back_off_ms())

    def _back_off_ms(self) -> float:
        return min(self._renew_ms, BACK_OFF_FIRST_MS * 2 ** min(self._failures, 16))

    def _event(self) -> Beat | Tick:
        """A renewal; else only the time, by which belief ends."""
        now = self._client.clock.now()
        if self._lock() is None or not self.user.is_alive():
            if not self._orphaned:
                self._orphaned = True
                text = "the thread that held the lock has ended without a release: renewing stops"
                self._client.emit("note", text=text)
            return Tick(now)
        return Beat(now) if self._client.state.phase is Phase.HELD else Tick(now)

    def _die(self, error: Exception) -> None:
        self._client.lose(f"the heartbeat died of {error!r}")
