"""Renewal: extends what is held, and reports danger and loss on time.

`Renewal` decides what is due, in two procedures. One watches the clock and sends no request, so no
server can delay a report; the other sends one renewal. `Renewer` runs each of them in a daemon
thread. The second thread starts with the first renewal, so a short hold does not pay for it.

Leases, election epochs and writers' heartbeats are renewed here. Any failure of a renewal counts as
a renewal without an answer, then as danger, then as loss. A `Renewer` references the handle weakly,
so a handle that was dropped is not renewed for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lockkit.lock.polling import requested_s
from lockkit.runtime import Exclusive, Procedure, Sleep

if TYPE_CHECKING:
    from lockkit.lock.contract import Renewable

DANGER_AFTER_RENEWALS = 2
"""Renewal is overdue after this many intervals without proof, plus one while one is in progress."""
DANGER_SHARE = 0.75
"""Renewal is also overdue once this share of the lease has passed."""
BACK_OFF_FIRST_MS = 50.0
WATCH_MS_MAX = 60_000.0
"""The watch checks the clock at least this often."""


@dataclass(slots=True, kw_only=True, eq=False)
class Renewal:
    """Decides when something is renewed, in danger, or lost. Ends with the grant or by `stop`."""

    held: Renewable
    start: Callable[[Procedure[None]], bool]
    """Starts one renewal in the background; False: impossible now, counts as no answer."""
    orphaned: Callable[[], bool]
    """Whether no thread is left that could release the lock: then renewal stops."""
    report: Callable[[str], None]
    """`report("danger")` and `report("lost")`, each on time."""
    first_ms: float | None = None
    """Milliseconds until the first renewal; None: one interval."""
    stopped: threading.Event = field(default_factory=threading.Event)
    woken: threading.Event = field(default_factory=threading.Event)
    """Ends the wait of the watch."""
    _began_ms: int = 0
    _due_ms: float = 0.0
    """When the next renewal is due."""
    _renewing: bool = False
    """Whether a renewal is in progress; only the watch sets it, only the renewal clears it."""
    _failures: int = 0
    _in_danger: bool = False
    _noted: bool = False

    def __post_init__(self) -> None:
        self._began_ms = self.held.clock.boot_ms()
        first_ms = self._interval_ms if self.first_ms is None else self.first_ms
        self._due_ms = self._began_ms + first_ms

    @property
    def _interval_ms(self) -> float:
        interval_ms = self.held.renew_ms
        assert interval_ms is not None, "this grant needs no renewal"
        return interval_ms

    def stop(self) -> None:
        """Stop renewing. Does not wait for a renewal in progress."""
        self.stopped.set()
        self.woken.set()

    def _is_stopped(self) -> bool:
        return self.stopped.is_set()

    def hurry(self) -> None:
        """Renew now, from any thread, because the grant is in doubt."""
        self._due_ms = 0.0
        self.woken.set()

    # --- the watch -------------------------------------------------------------------------------

    def watch(self) -> Procedure[None]:
        """Report what is due, and start each renewal that is due."""
        while (wait_ms := self._look_at_the_clock()) is not None:
            yield Sleep(wait_ms / 1000, self.woken)
            self.woken.clear()

    def _look_at_the_clock(self) -> float | None:
        """Milliseconds to wait; None: nothing is left to watch."""
        held = self.held
        if self.stopped.is_set():
            return None
        held.notice_end()
        until_ms, now_ms = held.until_ms, held.clock.boot_ms()
        if until_ms is None:
            if not self._is_stopped():
                self.report("lost")
            return None
        danger_ms = self._danger_ms(until_ms)
        if now_ms >= danger_ms and not self._in_danger:
            self._in_danger = True
            if not self._is_stopped():
                held.note_danger()
                self.report("danger")
        if now_ms >= self._due_ms and not self._renewing:
            self._renewing = True
            if not self.start(self.renew()):
                self._renewing = False
                self._due_ms = held.clock.boot_ms() + self._back_off_ms()
        moments: list[float] = [until_ms]
        if not self._in_danger:
            moments.append(danger_ms)
        if not self._renewing:
            moments.append(self._due_ms)
        return max(1.0, min(WATCH_MS_MAX, min(moments) - held.clock.boot_ms()))

    def _danger_ms(self, until_ms: float) -> float:
        since_ms = max(self.held.proven_ms, self._began_ms)
        if self.held.shaken and self._failures:
            return since_ms
        intervals = DANGER_AFTER_RENEWALS + self._renewing
        latest_ms = since_ms + DANGER_SHARE * max(0.0, until_ms - since_ms)
        return min(since_ms + intervals * self._interval_ms, latest_ms)

    # --- one renewal -----------------------------------------------------------------------------

    def renew(self) -> Procedure[None]:
        """Renew, or settle an open renewal; set when the next one is due."""
        yield Exclusive(self._renew())
        self._renewing = False
        self.woken.set()

    def _renew(self) -> Procedure[None]:
        held = self.held
        if self.stopped.is_set() or self._until_ms() is None:
            return
        began_ms, proven, pause_s = held.clock.boot_ms(), False, None
        if not self.orphaned():
            proven, pause_s = yield from held.renewed()
        elif not self._noted:
            self._noted = True
            held.note("the thread that held the lock has ended without a release: renewing stops")
        until_ms = self._until_ms()
        if until_ms is None:
            return
        if proven:
            self._failures, self._in_danger = 0, False
            self._due_ms = began_ms + self._interval_ms
            return
        self._failures += 1
        now_ms = held.clock.boot_ms()
        requested_ms = requested_s(pause_s, (until_ms - now_ms) / 1000) * 1000
        self._due_ms = now_ms + max(requested_ms, self._back_off_ms())

    def _until_ms(self) -> float | None:
        return self.held.until_ms

    def _back_off_ms(self) -> float:
        return min(self._interval_ms, BACK_OFF_FIRST_MS * 2.0 ** min(self._failures, 16))


class Renewer:
    """Runs a `Renewal` in two threads, until stopped or until the grant is lost.

    `user` is the thread that holds the grant. If it ends without a release, no thread is left that
    could release the lock, so renewal stops and the grant expires (as Hudi's heartbeat does).
    `lives()` is False once the handle was dropped. `report(kind)` is called from the thread that
    watches the clock.
    """

    def __init__(
        self, held: Renewable, user: threading.Thread, *, lives: Callable[[], bool],
        report: Callable[[str], None], first_ms: float | None = None,
    ) -> None:  # fmt: skip
        self.user = user
        self._held, self._report = held, report
        self._renewal = Renewal(
            held=held, start=self._start, first_ms=first_ms, report=report,
            orphaned=lambda: not (lives() and self.user.is_alive()),
        )  # fmt: skip
        self._requested = threading.Event()
        self._next: Procedure[None] | None = None
        self._renewer: threading.Thread | None = None
        self._watcher = threading.Thread(target=self._watch, name="lockkit-watch", daemon=True)
        self._watcher.start()

    @property
    def stopped(self) -> bool:
        return self._renewal.stopped.is_set()

    def stop(self) -> None:
        """Stop renewing. Does not wait for a renewal in progress."""
        self._renewal.stop()

    def hurry(self) -> None:
        """Renew now, from any thread."""
        self._renewal.hurry()

    def used(self) -> None:
        """The current thread now works under the lock."""
        if threading.current_thread() is not self._watcher:
            self.user = threading.current_thread()

    # --- the thread that watches the clock -----------------------------------------------------

    def _watch(self) -> None:
        try:
            self._held.carry_out(self._renewal.watch())
        except Exception as error:  # noqa: BLE001 - a dead thread is reported as a lost grant
            self._die(error)
            self._report("lost")
        finally:
            self._renewal.stop()
            self._requested.set()  # ends the other thread

    def _start(self, renewal: Procedure[None]) -> bool:
        if self._renewer is None:
            renewer = threading.Thread(target=self._renew, name="lockkit-renew", daemon=True)
            try:
                renewer.start()
            except RuntimeError:  # the process has reached its limit of threads
                return False
            self._renewer = renewer
        self._next = renewal
        self._requested.set()
        return True

    # --- the thread that sends the renewals ----------------------------------------------------

    def _renew(self) -> None:
        try:
            while True:
                self._requested.wait()
                self._requested.clear()
                if self._renewal.stopped.is_set() or self._next is None:
                    return
                self._held.carry_out(self._next)
        except Exception as error:  # noqa: BLE001 - as above
            self._die(error)
            self._renewal.woken.set()

    def _die(self, error: Exception) -> None:
        self._held.lose(f"the heartbeat died of {error!r}")
