"""A bounded queue in front of a listener that may block: one thread of its own empties it."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from lockkit.sinks import ObserverFailed

T = TypeVar("T")

ITEMS_MAX = 10_000
FLUSH_S = 10.0
"""How long `close`, and so the end of the process, waits for `take`."""
_QUEUES: WeakSet[EventQueue[Any]] = WeakSet()


def _begin_anew() -> None:
    """Another thread of the parent may have held a guard, and the child lacks it."""
    for each in _QUEUES:
        each._guard = threading.RLock()


os.register_at_fork(after_in_child=_begin_anew)


class EventQueue(Generic[T]):
    """Calls `take` with each item, in order, in a thread of its own; `put` never waits.

    A full queue drops items. Before the next item `take` gets None, and `dropped` is larger.
    After a fork the child has an empty queue: the parent delivers what it holds.
    """

    def __init__(self, take: Callable[[T | None], None], dropping: str) -> None:
        self._take, self._dropping = take, dropping
        self._guard = threading.RLock()  # a finalizer may put while its own thread does
        self._queue: SimpleQueue[tuple[int, T | threading.Event | None]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = self._late = False
        self.dropped = 0
        _QUEUES.add(self)

    def put(self, item: T) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._start()
        if self._queue.qsize() < ITEMS_MAX:
            self._queue.put((self.dropped, item))
        else:
            self._drop(1)

    def flush(self, timeout_s: float) -> bool:
        """Whether everything put so far was taken within this time."""
        if self._thread is None or not self._thread.is_alive():
            return True
        reached = threading.Event()
        self._queue.put((self.dropped, reached))
        return reached.wait(timeout_s)

    def close(self) -> None:
        """Deliver what waits, within `FLUSH_S`, and end the thread. Later items are ignored."""
        atexit.unregister(self.close)
        if self._closed:
            return
        self._closed = True
        if not self.flush(FLUSH_S):
            self._late = True
            self._drop(max(1, self._queue.qsize() - 1))  # one of them is the flush's own
        self._queue.put((self.dropped, None))

    def _start(self) -> None:
        with self._guard:
            if self._closed or (self._thread is not None and self._thread.is_alive()):
                return
            self._queue = SimpleQueue()
            self._thread = threading.Thread(target=self._run, name="lockkit-events", daemon=True)
            self._thread.start()
            atexit.register(self.close)
            self._close_in_child()

    def _close_in_child(self) -> None:
        """A forked child of `multiprocessing` ends without `atexit`, by finalizers of its own."""
        process = sys.modules.get("multiprocessing.process")
        if process is not None and process.parent_process() is not None:
            from multiprocessing.util import Finalize

            Finalize(None, self.close, exitpriority=0)

    def _drop(self, count: int) -> None:
        with self._guard:
            first, self.dropped = not self.dropped, self.dropped + count
        if first:
            with suppress(Warning):
                warnings.warn(ObserverFailed(self._dropping), stacklevel=4)

    def _run(self) -> None:
        seen, queue = 0, self._queue
        while not self._late:
            dropped, item = queue.get()
            if dropped > seen:
                seen = dropped
                self._take(None)
            if isinstance(item, threading.Event):
                item.set()
            elif item is None:
                return
            else:
                self._take(item)
