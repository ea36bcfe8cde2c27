"""The heartbeat of one grant: renews it, and reports danger and loss on time.

`Renewal` decides what is due, as two procedures: one watches the clock and makes no request, so no
server can delay a report; the other one sends one renewal. `RenewalThreads` gives each of them a
daemon thread; the second starts with the first renewal, so a short hold never pays for it.

A heartbeat never dies silently: whatever goes wrong in it is a renewal without an answer, then
danger, then loss. It knows its `Lock` weakly, so a handle that was dropped is not renewed for ever.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from lockkit.lock.grant import renew_once
from lockkit.lock.polling import asked_s
from lockkit.lock.storage import LeaseClient
from lockkit.protocol.state import Pause, Renewed, Tick
from lockkit.runtime import Exclusive, Procedure, Sleep

DANGER_AFTER_RENEWALS = 2
"""Renewal is overdue when none was proven for so many intervals, and one more while one is out."""
BACK_OFF_FIRST_MS = 50.0


class CallbackFailed(RuntimeWarning):
    """A loss callback raised. The lease is not affected."""


@dataclass(slots=True, kw_only=True, eq=False)
class Renewal:
    """When a grant is renewed, in danger, and lost. It ends with the grant, or when stopped."""

    client: LeaseClient
    renew_ms: float
    start: Callable[[Procedure[None]], bool]
    """Carries out one renewal beside the watch; False: not now, as a renewal without an answer."""
    orphaned: Callable[[], bool]
    """Whether nobody is left who could release: then the lease is no longer renewed."""
    report: Callable[[str], None]
    """`report("danger")` and `report("lost")`, each on time."""
    stopped: threading.Event = field(default_factory=threading.Event)
    woken: threading.Event = field(default_factory=threading.Event)
    """Ends the wait of the watch."""
    _began_ms: int = 0
    _due_ms: float = 0.0
    """When the next renewal is to be sent."""
    _renewing: bool = False
    """Whether a renewal is out; only the watch sets it, only the renewal clears it."""
    _failures: int = 0
    _in_danger: bool = False
    _noted: bool = False

    def __post_init__(self) -> None:
        self._began_ms = self.client.clock.boot_ms()
        self._due_ms = self._began_ms + self.renew_ms

    def stop(self) -> None:
        """Renew no more. Does not wait: a renewal that is under way has the client's turn."""
        self.stopped.set()
        self.woken.set()

    # --- the watch -------------------------------------------------------------------------------

    def watch(self) -> Procedure[None]:
        """Report what is due, and start each renewal that is due."""
        while (wait_ms := self._look_at_the_clock()) is not None:
            yield Sleep(wait_ms / 1000, self.woken)
            self.woken.clear()

    def _look_at_the_clock(self) -> float | None:
        """How long to wait in ms; None: there is nothing left to watch."""
        client = self.client
        if self.stopped.is_set():
            return None
        client.notice_end()
        until_ms, now_ms = client.state.until_ms, client.clock.boot_ms()
        if until_ms is None:
            if not self.stopped.is_set():
                self.report("lost")
            return None
        danger_ms = self._danger_ms()
        if now_ms >= danger_ms and not self._in_danger:
            self._in_danger = True
            self._report_danger(until_ms)
        if now_ms >= self._due_ms and not self._renewing:
            self._renewing = True
            if not self.start(self.renew()):
                self._renewing = False
                self._due_ms = client.clock.boot_ms() + self._back_off_ms()
        moments: list[float] = [until_ms]
        if not self._in_danger:
            moments.append(danger_ms)
        if not self._renewing:
            moments.append(self._due_ms)
        return max(1.0, min(moments) - client.clock.boot_ms())

    def _danger_ms(self) -> float:
        intervals = DANGER_AFTER_RENEWALS + self._renewing
        return max(self.client.proven_ms, self._began_ms) + intervals * self.renew_ms

    def _report_danger(self, until_ms: int) -> None:
        grant = self.client.state.grant
        if grant is None or self.stopped.is_set():
            return
        self.client.emit("danger", epoch=grant.epoch, until_ms=self.client.on_wall(until_ms))
        self.report("danger")

    # --- one renewal -----------------------------------------------------------------------------

    def renew(self) -> Procedure[None]:
        """Renew, or settle what is open; sets when the next renewal is due."""
        yield Exclusive(self._renew())
        self._renewing = False
        self.woken.set()

    def _renew(self) -> Procedure[None]:
        client = self.client
        if self.stopped.is_set() or client.state.grant is None:
            return
        began_ms = client.clock.boot_ms()
        if self.orphaned():
            told = yield from self._only_the_time()
        else:
            told = yield from renew_once(client, patient=True)
        until_ms = client.state.until_ms
        if until_ms is None:
            return
        if any(isinstance(each, Renewed) for each in told):
            self._failures, self._in_danger = 0, False
            self._due_ms = began_ms + self.renew_ms
            return
        self._failures += 1
        now_ms = client.clock.boot_ms()
        pause = next((each for each in told if isinstance(each, Pause)), Pause())
        asked_ms = asked_s(pause.seconds, (until_ms - now_ms) / 1000) * 1000
        self._due_ms = now_ms + max(asked_ms, self._back_off_ms())

    def _only_the_time(self) -> Procedure[list[Any]]:
        if not self._noted:
            self._noted = True
            text = "the thread that held the lock has ended without a release: renewing stops"
            self.client.emit("note", text=text)
        return (yield from self.client.steps(Tick(self.client.clock.now()), patient=True))

    def _back_off_ms(self) -> float:
        return min(self.renew_ms, BACK_OFF_FIRST_MS * 2.0 ** min(self._failures, 16))


class RenewalThreads:
    """A `Renewal` in two threads, until stopped, or until the lease is lost.

    `user` is the thread that the lock works for: when it has ended without a release, nobody is
    left who could release, so renewing ends and the lease runs out (Hudi's heartbeat does so too).
    """

    def __init__(
        self, lock: Any, client: LeaseClient, renew_ms: int, user: threading.Thread
    ) -> None:
        self.user = user
        self._lock = weakref.ref(lock)
        self._client = client
        self._renewal = Renewal(
            client=client, renew_ms=renew_ms, start=self._start,
            orphaned=lambda: self._lock() is None or not self.user.is_alive(),
            report=self._report,
        )  # fmt: skip
        self._asked = threading.Event()
        self._next: Procedure[None] | None = None
        self._renewer: threading.Thread | None = None
        self._watcher = threading.Thread(target=self._watch, name="lockkit-watch", daemon=True)
        self._watcher.start()

    def stop(self) -> None:
        """No more renewals. Does not wait: one that is under way has the client's turn."""
        self._renewal.stop()

    def used(self) -> None:
        """The current thread works under the lock now."""
        if threading.current_thread() is not self._watcher:
            self.user = threading.current_thread()

    # --- the thread that watches the clock -----------------------------------------------------

    def _watch(self) -> None:
        try:
            self._client.carry_out(self._renewal.watch())
        except Exception as error:  # noqa: BLE001 - a dead heartbeat is a lost lease, and says so
            self._die(error)
            self._report("lost")
        finally:
            self._renewal.stop()
            self._asked.set()  # so that the other thread ends

    def _start(self, renewal: Procedure[None]) -> bool:
        if self._renewer is None:
            renewer = threading.Thread(target=self._renew, name="lockkit-renew", daemon=True)
            try:
                renewer.start()
            except RuntimeError:  # the process is at its limit of threads
                return False
            self._renewer = renewer
        self._next = renewal
        self._asked.set()
        return True

    def _report(self, kind: str) -> None:
        lock, loss = self._lock(), self._client.loss
        if lock is None:
            return
        if kind == "danger" and lock.on_danger is not None:
            self._call("on_danger", lock.on_danger, lock)
        if kind == "lost" and lock.on_lost is not None and loss is not None:
            self._call("on_lost", lock.on_lost, lock, loss.why)

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
                if self._renewal.stopped.is_set() or self._next is None:
                    return
                self._client.carry_out(self._next)
        except Exception as error:  # noqa: BLE001 - as above
            self._die(error)
            self._renewal.woken.set()

    def _die(self, error: Exception) -> None:
        self._client.lose(f"the heartbeat died of {error!r}")
