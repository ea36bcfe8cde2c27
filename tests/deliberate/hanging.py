"""Tests that hang, each in another way, among tests that do not. `test_suite.py` runs them."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time

import pytest

LONG_S = 3600


@pytest.mark.parametrize("number", range(6))
def test_quick(number: int) -> None:
    assert number >= 0


def wait_in(library: ctypes.CDLL) -> None:
    """Locks a mutex twice. C waits again after a signal, and Python's handler never runs."""
    mutex = ctypes.create_string_buffer(256)
    library.pthread_mutex_init(mutex, None)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


def test_hangs_in_c() -> None:
    wait_in(ctypes.CDLL(None))


def test_hangs_in_c_and_keeps_the_interpreter() -> None:
    """No other Python thread can run, and so none can end the process."""
    wait_in(ctypes.PyDLL(None))


def test_hangs_in_a_sleep() -> None:
    time.sleep(LONG_S)


def test_fails_where_the_code_has_no_line() -> None:
    """As a signal may find it."""

    def fails() -> None:
        raise OSError

    fails.__code__ = fails.__code__.replace(co_linetable=b"")
    fails()


def test_hangs_in_a_wait_for_a_process() -> None:
    subprocess.run([sys.executable, "-c", f"import time; time.sleep({LONG_S})"], check=True)


def test_hangs_in_a_thread_that_is_no_daemon() -> None:
    thread = threading.Thread(target=threading.Event().wait)
    thread.start()
    thread.join()


def test_hangs_again_while_it_fails() -> None:
    try:
        time.sleep(LONG_S)
    finally:
        time.sleep(LONG_S)


@pytest.mark.timeout(1, method="thread")
def test_hangs_where_no_signal_may_interrupt() -> None:
    time.sleep(LONG_S)


def test_ends_its_process() -> None:
    os._exit(3)


class TestKeptTogether:
    """A group's remaining tests run elsewhere."""

    pytestmark = pytest.mark.xdist_group("kept together")

    def test_before(self) -> None: ...

    def test_hangs_in_c_in_a_group(self) -> None:
        wait_in(ctypes.CDLL(None))

    @pytest.mark.parametrize("number", range(3))
    def test_after(self, number: int) -> None: ...
