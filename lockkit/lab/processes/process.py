"""Starts child processes that cannot outlive their parent.

A child that watches its stdin exits with its parent, unless it is paused (SIGSTOP). Linux kills
paused children as well (PR_SET_PDEATHSIG). On other systems the kernel continues the paused members
of an orphaned process group (POSIX), which then see the end of their stdin.

    python -m lockkit.lab.processes.process PARENT COMMAND...    runs COMMAND as such a child
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

import psutil

from lockkit.clock import Clock

FLEET = "LOCKKIT_FLEET"
"""Every process of a fleet has the fleet's id in this environment variable."""
PARENT_POLL_S = 0.5
PASSES_MAX = 10
PR_SET_PDEATHSIG = 1
DEATH_SIGNAL: bool = sys.platform == "linux"
CODE_ORPHANED = 113

T = TypeVar("T")


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when the *thread* that started it ends.

    Call it first, and from a process whose parent started it from a thread that lives long enough.
    """
    if DEATH_SIGNAL:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_watch, args=(parent,), name="parent-watch", daemon=True).start()
    if os.getppid() != parent:  # the parent died before the call
        os._exit(CODE_ORPHANED)


def from_lasting_thread(start: Callable[[], T]) -> T:
    """Call `start`, which starts a child that calls `die_with_parent`, and return its result.

    It runs in a thread that lives as long as this process: the kernel kills the child when the
    thread that started it ends.
    """
    global _starts
    if threading.current_thread() is threading.main_thread():
        return start()
    with _turn:
        if _starts is None:
            _starts = SimpleQueue()
            threading.Thread(
                target=_start_all, args=(_starts,), name="lockkit-start", daemon=True
            ).start()
        starts = _starts
    done: Future[T] = Future()
    starts.put((start, done))
    return done.result()


def _start_all(starts: SimpleQueue[Any]) -> None:
    while True:
        start, done = starts.get()
        try:
            done.set_result(start())
        except BaseException as error:  # noqa: BLE001 - passed to the caller
            done.set_exception(error)


def _forget_starts() -> None:
    """A forked child has none of its parent's threads."""
    global _starts, _turn
    _starts, _turn = None, threading.Lock()


_starts: SimpleQueue[Any] | None = None
_turn = threading.Lock()
os.register_at_fork(after_in_child=_forget_starts)


def _watch(parent: int) -> None:
    clock = Clock()
    while os.getppid() == parent:
        clock.sleep(PARENT_POLL_S)
    os._exit(CODE_ORPHANED)


def tree(pid: int) -> list[psutil.Process]:
    """The process and everything below it, children last; empty if it is gone."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def group_sizes() -> Counter[int]:
    """How many processes each process group has."""
    found = Counter[int]()
    for pid in psutil.pids():
        with suppress(OSError):  # it has ended
            found[os.getpgid(pid)] += 1
    return found


def used_s(pid: int) -> float:
    """The processor time that the process and everything below it have used; 0 if it is gone."""
    total = 0.0
    for process in tree(pid):
        with suppress(psutil.Error):
            total += sum(process.cpu_times()[:2])
    return total


def rss_mb(pid: int) -> float:
    """Resident memory of the process and everything below it; 0 if it is gone."""
    total = 0
    for process in tree(pid):
        with suppress(psutil.Error):
            total += process.memory_info().rss
    return total / 2**20


def own_mb() -> float:
    """Resident memory of this process alone."""
    return float(psutil.Process().memory_info().rss / 2**20)


def limit_memory(more_bytes: int) -> None:
    """Let this process use so much more than now; beyond that it gets a `MemoryError`."""
    import resource  # not on Windows

    most = psutil.Process().memory_info().vms + more_bytes
    with suppress(ValueError, OSError):  # a lower limit is set already
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def send_signal(processes: Iterable[psutil.Process], number: int) -> None:
    """Send a signal to each process that still runs (psutil detects reused pids)."""
    for process in processes:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.send_signal(number)


def freeze(pid: int) -> list[psutil.Process]:
    """SIGSTOP for the process and everything below it, parents first; returns them.

    It repeats until it finds no new process: a child may start while the list is read.
    """
    stopped: dict[int, psutil.Process] = {}
    for _ in range(PASSES_MAX):
        fresh = [each for each in tree(pid) if each.pid not in stopped]
        if not fresh:
            break
        send_signal(fresh, signal.SIGSTOP)
        stopped.update((each.pid, each) for each in fresh)
    return list(stopped.values())


def kill_tree(pid: int) -> None:
    """SIGKILL for the process, its group, and everything below it; a child may have its own group.

    All are paused first, so that none can start another child meanwhile.
    """
    members = freeze(pid)
    try:
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    send_signal(members, signal.SIGKILL)


def leftovers(fleet: str | None = None) -> list[int]:
    """The pids of this fleet, or of any fleet, without zombies."""
    found = []
    for process in psutil.process_iter():
        try:
            mark = process.environ().get(FLEET)
            if mark and fleet in (None, mark) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


def guarded(*command: str) -> list[str]:
    """The command that runs `command` as a child which cannot outlive this process."""
    return [sys.executable, "-m", __name__, str(os.getpid()), *command]


def main(arguments: list[str]) -> int:
    parent, command = int(arguments[0]), arguments[1:]
    if DEATH_SIGNAL:
        die_with_parent(parent)
        os.execvp(command[0], command)  # the death signal survives exec
    return guard(parent, command)


def guard(parent: int, command: list[str]) -> int:
    """Run the command as a child of this process, which watches the parent."""
    child = subprocess.Popen(command, process_group=0)
    clock = Clock()
    while child.poll() is None and os.getppid() == parent:
        clock.sleep(PARENT_POLL_S)
    if child.poll() is None:
        kill_tree(child.pid)
    return child.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
