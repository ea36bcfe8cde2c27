"""The command that runs under a lock, and what it started: they get signals, and end together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from glob import glob

from lockkit.cli.terminal import CommandError
from lockkit.clock import Clock
from lockkit.events import plain

STOP_TIMEOUT_S = 5.0
PR_SET_PDEATHSIG = 1
POLL_S = 0.05
NOT_FOUND = 127
NOT_EXECUTABLE = 126


class Work:
    """A command that runs, and what it started, which gets the command's signals too.

    Without a terminal, that is its process group. With one it shares ours, so that Ctrl-C, Ctrl-Z
    and input reach it as usual; then Linux's process table shows what it started.
    """

    def __init__(self, line: list[str], environment: Mapping[str, str]) -> None:
        self._alone = not on_terminal()
        self.child = start(line, environment, alone=self._alone)

    def send(self, number: int) -> None:
        send = os.killpg if self._alone else os.kill
        for each in [self.child.pid] if self._alone else family(self.child.pid):
            with suppress(ProcessLookupError, PermissionError):  # it has ended, or changed its user
                send(each, number)

    def pass_on(self, received: list[int]) -> bool:
        """Send these signals, and forget them; returns whether there were any."""
        numbers = received[:]
        for each in numbers:
            received.remove(each)
            self.send(each)
        return bool(numbers)

    def interrupt(self) -> None:
        """After Ctrl-C. A terminal sent it to the command too: a second cuts its cleanup short."""
        self.stop(signal.SIGINT if self._alone else None)

    def stop(self, number: int | None) -> None:
        """End it: by the signal `number` first, then by SIGKILL."""
        if number is not None:
            self.send(number)
        clock = Clock()
        until_ms = clock.boot_ms() + STOP_TIMEOUT_S * 1000
        while self._runs() and clock.boot_ms() < until_ms:
            clock.sleep(POLL_S)
        if self._runs():
            self.send(signal.SIGKILL)
            self.child.wait()

    def _runs(self) -> bool:
        if self.child.poll() is None or not self._alone:
            return self.child.returncode is None
        try:
            os.killpg(self.child.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True


def start(
    line: list[str], environment: Mapping[str, str], *, alone: bool = False
) -> subprocess.Popen[bytes]:
    """Start a command, from the main thread; `alone`: in a process group of its own.

    On Linux it gets SIGTERM if this process is killed.
    """
    try:
        return subprocess.Popen(
            line, env={**os.environ, **environment}, preexec_fn=ended_with(os.getpid()),
            process_group=0 if alone else None,
        )  # fmt: skip
    except FileNotFoundError:
        raise CommandError(f"no command {plain(line[0])!r} on the PATH", code=NOT_FOUND) from None
    except OSError as error:
        raise CommandError(f"{plain(line[0])}: {error.strerror}", code=NOT_EXECUTABLE) from None


def ended_with(parent: int) -> Callable[[], None] | None:
    """For a child: the kernel ends it when its parent, which renews the lock, is killed.

    SIGTERM, as when the lease is lost. The kernel watches the thread that started the child.
    """
    if sys.platform != "linux":
        return None
    import ctypes

    prctl = ctypes.CDLL(None).prctl  # resolved here: a forked child must not load anything

    def ends() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it was killed before the call
            os._exit(128 + signal.SIGTERM)

    return ends


def family(pid: int) -> list[int]:
    """A process, and what it started, by Linux's process table; elsewhere it alone."""
    found = [pid]
    for each in found:
        for listed in glob(f"/proc/{each}/task/*/children"):
            with suppress(OSError), open(listed, encoding="ascii") as file:
                found += map(int, file.read().split())
    return found


def on_terminal() -> bool:
    """Whether this process has a terminal, which may send it Ctrl-C and Ctrl-Z."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
