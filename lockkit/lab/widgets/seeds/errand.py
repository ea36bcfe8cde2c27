"""Work for a thread, so that a callback returns at once: the newest wish, one at a time."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable

Work = Callable[[threading.Event], None]
"""It looks at the event now and then: set, somebody wants it to stop."""


class BackgroundTask:
    """`ask` for work: what is under way is told to stop, and what waits is forgotten.

    `failed` is called with a sentence and a traceback: a thread has nobody to raise to.
    """

    def __init__(self, failed: Callable[[str, str], None]) -> None:
        self._failed = failed
        self._turn = threading.Lock()
        self._next: tuple[Work, threading.Event] | None = None
        self._over = threading.Event()
        self._idle = threading.Event()
        self._idle.set()

    def ask(self, work: Work) -> None:
        with self._turn:
            self._over.set()
            self._next = work, threading.Event()
            if self._idle.is_set():
                self._idle.clear()
                threading.Thread(target=self._run, name="lockkit-errand", daemon=True).start()

    def stop(self) -> None:
        """What waits is begun all the same, and finds that it is to stop: so it can say so."""
        with self._turn:
            self._over.set()
            if self._next is not None:
                self._next[1].set()

    def wait(self, timeout_s: float) -> bool:
        """Until nothing is under way; tells whether that is so."""
        return self._idle.wait(timeout_s)

    def _run(self) -> None:
        while True:
            with self._turn:
                if self._next is None:
                    self._idle.set()
                    return
                (work, self._over), self._next = self._next, None
                over = self._over
            try:
                work(over)
            except Exception as error:  # noqa: BLE001 - a thread has nobody to raise to: it is shown
                self._failed(f"{type(error).__name__}: {error}", traceback.format_exc())
