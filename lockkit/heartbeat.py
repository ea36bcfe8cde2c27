"""The heartbeat: the daemon thread that renews one grant, and tells danger and loss.

It never dies silently: whatever goes wrong in it is a renewal that nobody answered, then danger,
then loss. It knows its `Lock` weakly, so a handle that was dropped is not renewed for ever.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from lockkit.client import Client
from lockkit.state import Beat, Pause, Phase, Renewed, Tick

DANGER_AFTER_RENEWALS = 2
"""Renewal is overdue when none was proven for so many intervals."""
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
        self._stop = threading.Event()
        self._failures = 0
        self._in_danger = self._orphaned = False
        self._thread = threading.Thread(target=self._run, name="lockkit-renew", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """No more beats. Does not wait: one that is under way has the client's turn."""
        self._stop.set()

    def used(self) -> None:
        """The current thread works under the lock now."""
        if threading.current_thread() is not self._thread:
            self.user = threading.current_thread()

    def _run(self) -> None:
        wait_ms: float | None = self._renew_ms
        try:
            while wait_ms is not None and not self._client.clock.wait(self._stop, wait_ms / 1000):
                wait_ms = self._beat()
        except Exception as error:  # noqa: BLE001 - a dead heartbeat is a lost lease, and says so
            with self._client.turn:
                self._client.lose(f"the heartbeat died of {error!r}")
            self._tell_lost()

    def _beat(self) -> float | None:
        """Renew, or settle what is open; how long until the next beat, None: there is none."""
        client = self._client
        with client.turn:
            if self._stop.is_set() or client.state.grant is None:
                return None
            began_ms = client.clock.boot_ms()
            told = client.feed(self._event(), patient=True)
            until_ms = client.state.until_ms
        if until_ms is None:
            self._tell_lost()
            return None
        now_ms = client.clock.boot_ms()
        if any(isinstance(each, Renewed) for each in told):
            self._failures, self._in_danger = 0, False
            return max(0.0, began_ms + self._renew_ms - now_ms)
        self._failures += 1
        overdue_ms = now_ms - client.proven_ms
        if not self._in_danger and overdue_ms >= DANGER_AFTER_RENEWALS * self._renew_ms:
            self._in_danger = True
            self._tell_danger(until_ms)
        pause = next((each for each in told if isinstance(each, Pause)), Pause())
        back_off_ms = min(self._renew_ms, BACK_OFF_FIRST_MS * 2 ** min(self._failures, 16))
        wait_ms = max((pause.seconds or 0.0) * 1000, back_off_ms)
        return min(wait_ms, max(1.0, until_ms - client.clock.boot_ms()))

    def _event(self) -> Beat | Tick:
        """A renewal; else only the time, by which belief ends."""
        now = self._client.clock.now()
        if self._lock() is None or not self.user.is_alive():
            if not self._orphaned:
                self._orphaned = True
                text = "whoever held the lock has ended without a release: it is renewed no more"
                self._client.emit("note", text=text)
            return Tick(now)
        return Beat(now) if self._client.state.phase is Phase.HELD else Tick(now)

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
