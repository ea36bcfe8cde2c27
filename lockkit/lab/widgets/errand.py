"""Work in a thread, so that a callback returns at once: the newest request, one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable

Work = Callable[[threading.Event], object]
"""It looks at the event now and then, and ends when it is set."""


class BackgroundTask:
    """Runs work for `ask`: running work gets a stop request, and waiting work is dropped.

    `failed` is called with an exception of the work, since a thread has no caller to raise to.
    `busy` is called with True when a thread starts, and with False when nothing is left to do.
    """

    def __init__(
        self, failed: Callable[[Exception], None], busy: Callable[[bool], None] = lambda _: None
    ) -> None:
        self._failed, self._busy = failed, busy
        self._turn = threading.Lock()
        self._next: tuple[Work, threading.Event] | None = None
        self._over = threading.Event()
        self._idle = threading.Event()
        self._idle.set()

    @property
    def idle(self) -> bool:
        return self._idle.is_set()

    def ask(self, work: Work) -> None:
        with self._turn:
            self._over.set()
            self._next = work, threading.Event()
            if self._idle.is_set():
                self._idle.clear()
                self._busy(True)
                threading.Thread(target=self._run, name="lockkit-errand", daemon=True).start()

    def stop(self) -> None:
        """Waiting work still begins and finds its event set, so that it can report the stop."""
        with self._turn:
            self._over.set()
            if self._next is not None:
                self._next[1].set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until nothing is running; return whether all work has ended."""
        return self._idle.wait(timeout_s)

    def _run(self) -> None:
        while True:
            with self._turn:
                if self._next is None:
                    self._busy(False)
                    self._idle.set()
                    return
                (work, self._over), self._next = self._next, None
                over = self._over
            try:
                work(over)
            except Exception as error:  # noqa: BLE001 - shown in the panel
                self._failed(error)
