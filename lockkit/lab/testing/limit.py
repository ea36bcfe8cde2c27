"""The time limit of a block under faults: a library that never ends is a finding, too."""

from __future__ import annotations

import ctypes
import threading

from _pytest.outcomes import Failed

_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc


class BlockNeverEnded(Failed):
    """A failure of pytest: no `Exception`, which a library that tries for ever would catch."""

    def __init__(self) -> None:
        super().__init__(
            "the block of lost_responses did not end in the time of --lockkit-block-s-max: does "
            "the code under test wait or retry without a limit?"
        )


class BlockLimit:
    """Raises `BlockNeverEnded` in the thread of the block, once its Python code runs."""

    def __init__(self, seconds: float) -> None:
        self._ident = ctypes.c_ulong(threading.get_ident())
        self._guard = threading.Lock()
        self._over = False
        self._timer = threading.Timer(seconds, self._end)
        self._timer.name, self._timer.daemon = "lockkit-block-limit", True
        self._timer.start()

    def _end(self) -> None:
        with self._guard:
            if not self._over:
                _raise_in(self._ident, ctypes.py_object(BlockNeverEnded))

    def stop(self) -> None:
        """The block has ended: from here on nothing is raised.

        `_raise_in(..., None)` would take back what was raised, and leave the interpreter looking
        for it at every call: CPython 3.11 then hangs as soon as something traces.
        """
        try:
            with self._guard:
                self._over = True
            _moment()
        except BlockNeverEnded:  # it was raised in the block's last moment
            self._over = True
        self._timer.cancel()
        self._timer.join()


def _moment() -> None:
    """At a call, the interpreter raises what another thread has raised in this one."""
