"""A pool of threads that leaves no thread at work behind, whenever Ctrl-C comes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Pool(ThreadPoolExecutor):
    """Use it with `with`: all work has ended on leaving.

    The base class does not wait for a thread whose start Ctrl-C interrupted. That thread would
    write files of an attempt that has been rolled back meanwhile.
    """

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self._ended, self._at_work, self._closed = threading.Condition(), 0, False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        return super().submit(self._counted, fn, *args, **kwargs)

    def _counted(self, work: Callable[..., T], *given: Any, **named: Any) -> T:
        with self._ended:
            if self._closed:
                raise CancelledError
            self._at_work += 1
        try:
            return work(*given, **named)
        finally:
            with self._ended:
                self._at_work -= 1
                self._ended.notify_all()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        with self._ended:
            self._closed = True
            self._ended.wait_for(lambda: not self._at_work)
