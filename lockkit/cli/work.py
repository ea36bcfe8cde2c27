"""The command that runs under a lock, and what it started: they get signals, and end together."""

from __future__ import annotations

import errno
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from glob import glob
from pathlib import Path
from typing import NoReturn

from lockkit.cli.terminal import EXIT_FAILED, CommandError
from lockkit.clock import Clock, process_name
from lockkit.events import plain
from lockkit.providers.process_state import HOLDER

STOP_TIMEOUT_S = 5.0
POLL_S = 0.05
WITNESS_S = 1.0
"""A signal that was sent to our group ends the witness; after this time it was sent to us alone."""
NOT_FOUND = 127
NOT_EXECUTABLE = 126
GUARD = "lockkit-guard"
"""The guard's name in Linux's process table."""
WITNESS = ["sh", "-c", "ulimit -c 0; read _", GUARD]
"""Waits for the end of its input, and ends by the first signal to its process group."""
PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that end a process, and reach the command under the lock first."""


class Work:
    """A command that runs, and what it started, which gets the command's signals too.

    Its parent is a guard: a process that ends when all of them have ended, and that ends them if
    this process is killed. Without a terminal the command has a process group of its own. With one
    it shares ours, so that Ctrl-C, Ctrl-Z and input reach it as usual.
    """

    def __init__(self, line: list[str], environment: Mapping[str, str]) -> None:
        self.code: int | None = None
        """The command's exit code (-n for signal n) once it has ended."""
        self._alone = not on_terminal()
        self._line, theirs = socket.socketpair()
        try:
            with theirs, held_back() as mask:
                self._guard = started_guard(theirs, mask, line, environment, alone=self._alone)
        except OSError as error:
            self._line.close()
            why = f"the guard of the command cannot be started: {error.strerror}"
            raise CommandError(why, code=EXIT_FAILED) from None
        self._news = self._line.makefile("rb", buffering=0)  # `select` sees what is not read yet
        try:
            self._pid = self._started(line[0])
        except CommandError:
            self._end_guard()
            raise
        self._witness = None if self._alone else started_witness()

    def __enter__(self) -> Work:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not self._ended():
            self.stop(signal.SIGTERM)
        self._end_witness()
        self._end_guard()

    def poll(self) -> int | None:
        """Its exit code, or None while it runs; raises `CommandError` if its guard was killed."""
        if self.code is None and select.select([self._line], [], [], 0)[0]:
            self.code = self._reported()
        return self.code

    def pass_on(self, received: list[int]) -> bool:
        """Send these signals, and forget them; returns whether there were any.

        The command gets each once: Terraform takes a second one for an order to stop at once.
        """
        numbers = received[:]
        for each in numbers:
            received.remove(each)
        if numbers and not self._witnessed(numbers):
            for each in numbers:
                send(self._members(each), each)
        return bool(numbers)

    def _witnessed(self, numbers: list[int]) -> bool:
        """Whether the command has got them too: a terminal sends Ctrl-C to the whole group."""
        if self._witness is None:
            return False
        with suppress(subprocess.TimeoutExpired):
            found = -self._witness.wait(WITNESS_S) in numbers
            self._end_witness()
            self._witness = started_witness()
            return found
        return False

    def stop(self, number: int | None) -> None:
        """End it: by the signal `number` first, then by SIGKILL."""
        end(self._members, number, self._ended)

    def _members(self, number: int) -> list[int]:
        return members(self._guard.pid, self._pid, number, alone=self._alone)

    def _ended(self) -> bool:
        over = self._guard.poll()
        if over:  # it was killed
            return not any(map(runs, self._members(signal.SIGKILL)))
        return over == 0

    def _started(self, name: str) -> int:
        """The command's pid, as soon as it runs."""
        pid = self._reported()
        if pid > 0:
            return pid
        if -pid == errno.ENOENT or not name:
            raise CommandError(f"no command {plain(name)!r} on the PATH", code=NOT_FOUND)
        raise CommandError(f"{plain(name)}: {os.strerror(-pid)}", code=NOT_EXECUTABLE)

    def _reported(self) -> int:
        said = self._news.readline()
        if not said:
            why = "the guard of the command was killed, and so the command was stopped"
            raise CommandError(why, code=EXIT_FAILED)
        return int(said)

    def _end_witness(self) -> None:
        if self._witness is not None:
            self._witness.kill()
            self._witness.communicate()

    def _end_guard(self) -> None:
        self._guard.kill()
        self._guard.wait()
        self._news.close()
        self._line.close()


@contextmanager
def held_back() -> Iterator[set[int]]:
    """Hold signals back while the guard starts, which inherits this; yields the mask before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, *ENDING))
    try:
        yield set(map(int, before))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def started_guard(
    pipe: socket.socket, mask: set[int], line: list[str], environment: Mapping[str, str], *,
    alone: bool,
) -> subprocess.Popen[bytes]:  # fmt: skip
    """Start `guard` in another process."""
    root = str(Path(__file__).parents[2])
    # Last: a package that is named like a module of Python's (a backport) does not replace it.
    code = f"import sys; sys.path.append({root!r}); from lockkit.cli.work import guard; guard()"
    group = 0 if alone else os.getpgrp()
    holder = process_name()
    # A group of its own keeps a SIGKILL of ours from it. But where no shell with jobs has started
    # us, nobody would continue what Ctrl-Z stops: Linux then ignores it, if no parent is elsewhere.
    apart = alone or group != os.getsid(0)
    return subprocess.Popen(
        [sys.executable, "-S", "-P", "-c", code, str(pipe.fileno()), str(group),
         ",".join(map(str, mask)), f"{HOLDER}={holder}", *line],
        env={**os.environ, **environment, HOLDER: holder}, pass_fds=[pipe.fileno(), *inherited()],
        process_group=0 if apart else None,
    )  # fmt: skip


def inherited() -> list[int]:
    """The files above standard error that our starter opened for the command, as for flock(1).

    What Python opens is never inheritable.
    """
    found = []
    with suppress(OSError):
        for each in map(int, os.listdir("/dev/fd")):
            with suppress(OSError):  # that of the listing
                if each > 2 and os.get_inheritable(each):
                    found.append(each)
    return found


def started_witness() -> subprocess.Popen[bytes] | None:
    """None: it cannot be started."""
    quiet = subprocess.DEVNULL
    try:
        return subprocess.Popen(WITNESS, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet)
    except OSError:
        return None


def guard() -> NoReturn:
    """Run a command, and end when all that it started has ended: Linux gives us its orphans.

    If the pipe ends before, lockkit was killed, and we end them. The arguments: the pipe, the
    command's process group (0: one of its own), the command's signal mask, whom we guard (others
    read it in the process table), the command.
    """
    pipe, group, mask, line = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[5:]
    become_guard()
    signal.pthread_sigmask(signal.SIG_SETMASK, {int(each) for each in mask.split(",") if each})
    os.set_inheritable(pipe, False)
    runs_now = threading.Event()

    def watch() -> None:
        with suppress(OSError):
            os.read(pipe, 1)
        runs_now.wait()
        end(
            lambda number: members(os.getpid(), child.pid, number, alone=not group),
            signal.SIGTERM, lambda: False,  # our process ends then
        )  # fmt: skip

    try:
        threading.Thread(target=watch, daemon=True).start()
        child = begun(line, group)
    except (OSError, RuntimeError) as error:  # the latter: no further thread
        report(pipe, -(getattr(error, "errno", 0) or errno.EAGAIN))
        os._exit(0)
    report(pipe, child.pid)
    runs_now.set()
    with suppress(ChildProcessError):  # there is none any more
        while True:
            pid, status = os.wait()
            if pid == child.pid:
                report(pipe, os.waitstatus_to_exitcode(status))
    clock = Clock()
    while not group and runs(-child.pid):  # not on Linux: there it was ours
        clock.sleep(POLL_S)
    os._exit(0)


def begun(line: list[str], group: int) -> subprocess.Popen[bytes]:
    """Start the command; a script that does not name its interpreter is one of sh, as for env."""
    try:
        return subprocess.Popen(line, process_group=group, close_fds=False)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
    shell = ["/bin/sh", shutil.which(line[0]) or line[0], *line[1:]]
    return subprocess.Popen(shell, process_group=group, close_fds=False)


def become_guard() -> None:
    """Ignore signals, which the command then does not inherit, and adopt orphans."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would take the exit codes
    for each in (signal.SIGINT, *ENDING):
        if signal.getsignal(each) != signal.SIG_IGN:
            signal.signal(each, lambda *_: None)
    if sys.platform == "linux":
        import ctypes

        prctl = ctypes.CDLL(None).prctl
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        prctl(PR_SET_NAME, GUARD.encode(), 0, 0, 0)


def report(pipe: int, number: int) -> None:
    with suppress(OSError):  # lockkit was killed
        os.write(pipe, b"%d\n" % number)


def end(
    members: Callable[[int], list[int]], number: int | None, ended: Callable[[], bool]
) -> None:
    """End the members by this signal, and what has not ended in time by SIGKILL."""
    if number is not None:
        send(members(number), number)
    while not in_time(ended):
        send(members(signal.SIGKILL), signal.SIGKILL)


def in_time(ended: Callable[[], bool]) -> bool:
    """Wait until they have ended; False if that takes too long."""
    clock = Clock()
    until_ms = clock.boot_ms() + STOP_TIMEOUT_S * 1000
    while not ended():
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
    """Whether a process, or one of the group that a negative number names, has not ended.

    Nobody may ask for the end of one that has: its parent may be a container's first process.
    """
    try:
        os.kill(member, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    seen = False
    for stat in glob("/proc/[0-9]*/stat" if member < 0 else f"/proc/{member}/stat"):
        with suppress(OSError, IndexError), open(stat, encoding="utf-8", errors="replace") as file:
            state, _, group = file.read().rpartition(")")[2].split()[:3]
            seen = True
            if state != "Z" and (member > 0 or int(group) == -member):
                return True
    return not seen  # not Linux, or it has ended meanwhile


def members(guard: int, command: int, number: int, *, alone: bool) -> list[int]:
    """The processes, and the group, that this signal goes to: each gets it once."""
    # Another lock's guard runs what its lockkit passes the signal on to.
    past = number == signal.SIGKILL
    # Without a process table, or without the guard, we know the command alone.
    found = below(guard, past) or [command, *below(command, past)]
    return [-command, *(each for each in found if group_of(each) != command)] if alone else found


def below(pid: int, past_guards: bool) -> list[int]:
    """What a process started, and so on, by Linux's process table."""
    found = [pid]
    for each in found:
        for listed in glob(f"/proc/{each}/task/*/children"):
            with suppress(OSError), open(listed, encoding="ascii") as file:
                found += (
                    child
                    for child in map(int, file.read().split())
                    if past_guards or not is_guard(child)
                )
    return found[1:]


def is_guard(pid: int) -> bool:
    """Whether it is a guard or a witness, which a signal to their lockkit is not meant for."""
    def shown(what: str) -> str:
        with suppress(OSError):
            return Path(f"/proc/{pid}/{what}").read_text("utf-8", "replace")
        return ""

    return shown("comm").strip() == GUARD or shown("cmdline").split("\0")[:-1] == WITNESS


def group_of(pid: int) -> int | None:
    with suppress(OSError):
        return os.getpgid(pid)
    return None


def on_terminal() -> bool:
    """Whether this process has a terminal, which may send it Ctrl-C and Ctrl-Z."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
