"""The command that runs under a lock, and what it started: they get signals, and end together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from glob import glob
from pathlib import Path

from lockkit.cli.terminal import CommandError
from lockkit.clock import Clock
from lockkit.events import plain

STOP_TIMEOUT_S = 5.0
PR_SET_CHILD_SUBREAPER = 36
LINUX = sys.platform == "linux"
POLL_S = 0.05
NOT_FOUND = 127
NOT_EXECUTABLE = 126


class Work:
    """A command that runs, and what it started, which gets the command's signals too.

    Without a terminal, that is its process group. With one it shares ours, so that Ctrl-C, Ctrl-Z
    and input reach it as usual; then Linux's process table shows what it started. A guard, which is
    another process, ends it if this one is killed.
    """

    def __init__(self, line: list[str], environment: Mapping[str, str]) -> None:
        self._alone = not on_terminal()
        adopt(not self._alone)
        self._guard = started_guard(self._alone)
        try:
            self.child = start(line, environment, self._guard, alone=self._alone)
        except CommandError:
            self._end_guard()
            raise

    def __enter__(self) -> Work:
        return self

    def __exit__(self, *_: object) -> None:
        if self.child.poll() is None:
            self.interrupt()
        adopt(False)
        self._end_guard()

    def pass_on(self, received: list[int]) -> bool:
        """Send these signals, and forget them; returns whether there were any."""
        numbers = received[:]
        for each in numbers:
            received.remove(each)
            send(self._members(), each)
        return bool(numbers)

    def interrupt(self) -> None:
        """After Ctrl-C: end it by SIGINT first.

        A terminal sends Ctrl-C to the command too, and a second cuts its cleanup short. Only a
        command that does not end gets another: `kill -INT` sends it to this process alone.
        """
        if self._alone or not ended(self._members):
            self.stop(signal.SIGINT)

    def stop(self, number: int | None) -> None:
        """End it: by the signal `number` first, then by SIGKILL."""
        end(self._members, number)
        self.child.wait()

    def _members(self) -> list[int]:
        """The processes, or the group, that may still run."""
        runs = self.child.poll() is None  # a zombie would count as a member of its group
        if self._alone:
            return [-self.child.pid]
        found = {self.child.pid} if runs else set[int]()
        if LINUX:  # we have adopted what lost its parent
            found |= {*family(os.getpid())} - {os.getpid(), self._guard.pid}
        return sorted(found)

    def _end_guard(self) -> None:
        self._guard.kill()
        self._guard.communicate()


def start(
    line: list[str], environment: Mapping[str, str], guard: subprocess.Popen[bytes], *, alone: bool
) -> subprocess.Popen[bytes]:
    """Start a command; `alone`: in a process group of its own."""
    assert guard.stdin is not None
    pipe = guard.stdin.fileno()
    try:
        return subprocess.Popen(
            line, env={**os.environ, **environment}, process_group=0 if alone else None,
            # Written by the command's own process: we may be killed right after its start.
            preexec_fn=lambda: os.write(pipe, b"%d\n" % os.getpid()),
        )  # fmt: skip
    except FileNotFoundError:
        raise CommandError(f"no command {plain(line[0])!r} on the PATH", code=NOT_FOUND) from None
    except OSError as error:
        raise CommandError(f"{plain(line[0])}: {error.strerror}", code=NOT_EXECUTABLE) from None


def started_guard(alone: bool) -> subprocess.Popen[bytes]:
    """Start `guard` in another process; a session of its own keeps our group's signals from it."""
    root = str(Path(__file__).parents[2])
    code = f"import sys; sys.path.insert(0, {root!r}); from lockkit.cli.work import guard"
    return subprocess.Popen(
        [sys.executable, "-S", "-c", f"{code}; guard(alone={alone})"], cwd="/",
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip


def guard(*, alone: bool) -> None:
    """End the command whose pid is on standard input as soon as that ends: lockkit was killed."""
    said = sys.stdin.read()
    if said.strip():
        pid = int(said)
        end(lambda: [-pid] if alone else family(pid), signal.SIGTERM)


def end(members: Callable[[], list[int]], number: int | None) -> None:
    """End them by this signal, and what has not ended in time by SIGKILL."""
    if number is not None:
        send(members(), number)
    if not ended(members):
        send(members(), signal.SIGKILL)


def ended(members: Callable[[], list[int]]) -> bool:
    """Wait until none of them runs; False if that takes too long."""
    clock = Clock()
    until_ms = clock.boot_ms() + STOP_TIMEOUT_S * 1000
    while any(map(runs, members())):
        if clock.boot_ms() >= until_ms:
            return False
        clock.sleep(POLL_S)
    return True


def send(members: Iterable[int], number: int) -> None:
    """Send a signal to each; one that is stopped (Ctrl-Z) goes on, so that it can obey."""
    for each in members:
        with suppress(ProcessLookupError, PermissionError):  # it has ended, or changed its user
            os.kill(each, number)
            os.kill(each, signal.SIGCONT)


def runs(member: int) -> bool:
    """Whether a process, or the group that a negative number names, has not ended."""
    try:
        os.kill(member, 0)
        with open(f"/proc/{member}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except (OSError, IndexError):  # another user's, a group, or not Linux
        return True


def adopt(adopts: bool) -> None:
    """Let Linux make us the parent of what the command's processes leave behind."""
    if LINUX:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(adopts), 0, 0, 0)


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
