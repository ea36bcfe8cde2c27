"""End the processes that a test run started, whichever way the run ends.

Every process below a run inherits the run's name in its environment, also one that left its group,
its session or its parent. That is how it is found here, on Linux and on macOS. `python leftovers.py
PID RUN SCRATCH` waits for the end of the run's process, which no signal can prevent it from
noticing, then ends what is left and removes the folder `SCRATCH`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

RUN = "LOCKKIT_TEST_RUN"
WORKER = "PYTEST_XDIST_WORKER"
ROUNDS_MAX = 10
TERMINATE_S, KILL_S = 3.0, 5.0
POLL_S = 0.5


def started_by(run: str, worker: str = "") -> list[psutil.Process]:
    """The run's live processes with all that they started; with `worker`, only that worker's.
    This process, its ancestors and the watchers are not among them.
    """
    kept = {os.getpid(), *(each.pid for each in psutil.Process().parents())}
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            said = process.environ()
            if said.get(RUN) == run and worker in ("", said.get(WORKER)):
                found |= {each.pid: each for each in (process, *process.children(recursive=True))}
    return [each for pid, each in found.items() if pid not in kept and _counts(each)]


def end(those: Callable[[], list[psutil.Process]]) -> list[str]:
    """End these processes and what they start meanwhile; the command lines of all that were ended.
    Each is asked first (SIGTERM): a JVM removes its temporary folders then.
    """
    ended: dict[int, str] = {}
    for _ in range(ROUNDS_MAX):
        if not (alive := those()):
            break
        for each in alive:
            with suppress(psutil.Error):
                ended.setdefault(each.pid, " ".join(each.cmdline())[:200] or each.name())
                each.terminate()
        _, deaf = psutil.wait_procs(alive, timeout=TERMINATE_S)
        for each in deaf:
            with suppress(psutil.Error):
                each.kill()
        psutil.wait_procs(deaf, timeout=KILL_S)
    return list(ended.values())


def watch(run: str, scratch: str) -> subprocess.Popen[bytes]:
    """A process that ends this run's leftovers, and removes its temporary files, once the present
    process has ended.
    """
    # A session of its own: a terminal's Ctrl-C must not reach it.
    return subprocess.Popen(
        [sys.executable, __file__, str(os.getpid()), run, scratch], start_new_session=True,
        env={name: value for name, value in os.environ.items() if name != RUN},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def _counts(process: psutil.Process) -> bool:
    """Whether it is running, and is no watcher: an inner run's watcher ends by itself."""
    with suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE and __file__ not in process.cmdline()
    return False


def main(pid: int, run: str, scratch: str) -> None:
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    while os.getppid() == pid:
        time.sleep(POLL_S)
    end(lambda: started_by(run))
    shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
