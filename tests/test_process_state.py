"""Whether a holder's process lives: its number alone shows little."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from lock_world import until
from process_world import NAMED, ended_process, named_process

from lockkit.clock import process_name
from lockkit.providers.process_state import (
    ProcessState,
    _by_psutil,
    process_in,
    process_state,
)

ROOT = Path(__file__).parents[1]
linux = pytest.mark.skipif(sys.platform != "linux", reason="process tables are read from /proc")
JUDGE = """
import sys
from lockkit.clock import process_name
from lockkit.providers.process_state import process_state
for each in sys.argv[1:]:
    print(process_state(each).name)
print(process_name())
"""


def elsewhere(*names: str, options: str, program: str = JUDGE) -> list[str]:
    """What a process in other namespaces shows of them, and its own name."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare (util-linux) is not installed")
    done = subprocess.run(
        ["unshare", *options.split(), sys.executable, "-c", program, *names],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    if done.returncode and "Operation not permitted" in done.stderr:
        pytest.skip("this machine lets no user make namespaces")
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def renumbered(name: str, *, pid: int | None = None, ticks: int | None = None) -> str:
    """The same name with another number or start."""
    head, _, mark = name.rpartition(".")
    host, _, rest = head.partition("/")
    number, _, start = rest.partition("@")
    return f"{host}/{number if pid is None else pid}@{start}.{mark if ticks is None else ticks}"


def test_the_name_of_a_process_has_host_process_and_start() -> None:
    host, rest = process_name("spark").split("/", 1)
    assert host == socket.gethostname() and rest.startswith(f"{os.getpid()}@20")
    assert rest.endswith("/spark") and process_name() == process_name("")
    assert process_in(f"lease of 60 s, {process_name()}, more") == process_name()
    assert process_in("path/12") == ""
    assert process_state(process_name("spark")) is ProcessState.RUNS


@linux
def test_a_process_that_runs_is_distinguished_from_one_that_was_killed() -> None:
    with named_process() as (_, name):
        assert process_state(name) is ProcessState.RUNS
        assert process_state(f"lease of 60 s, {name}, more") is ProcessState.RUNS
    assert process_state(name) is ProcessState.ENDED
    assert process_state(ended_process()) is ProcessState.ENDED


@linux
def test_a_stopped_process_is_called_stopped_until_it_is_resumed() -> None:
    with named_process() as (child, name):
        child.send_signal(signal.SIGSTOP)
        until(lambda: process_state(name) is ProcessState.STOPPED, 10)
        assert ProcessState.STOPPED.lives and "stopped" in ProcessState.STOPPED.value
        child.send_signal(signal.SIGCONT)
        until(lambda: process_state(name) is ProcessState.RUNS, 10)


@linux
def test_a_zombie_counts_as_an_ended_process() -> None:
    with named_process() as (child, name):
        child.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        os.kill(child.pid, 0)  # its number is still there
        assert process_state(name) is ProcessState.ENDED


ORPHANS = f"""
import os, subprocess, sys
from lockkit.providers.process_state import process_state
def judged(line):
    child = subprocess.Popen(
        [sys.executable, "-c", {NAMED!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    name = child.stdout.readline().strip()
    shell = ["sh", "-c", line + " sleep 600 >/dev/null 2>&1 & echo $!"]
    orphan = int(subprocess.run(shell, capture_output=True, text=True, check=True).stdout)
    while open(f"/proc/{{orphan}}/comm").read() != "sleep\\n":
        os.sched_yield()  # the shell has not begun it yet
    child.kill()
    child.wait()
    print(process_state(name).name)
    os.kill(orphan, 9)
    os.waitpid(orphan, 0)  # which only the first process of a namespace may wait for
    print(process_state(name).name)
judged("env -i")
judged("env -i A=1")
"""


@linux
def test_an_orphan_that_cleared_its_environment_may_be_the_holders_command() -> None:
    """In a process table of its own: tests beside this one have ended holders, too."""
    states = elsewhere(options="-Urpf --mount-proc", program=ORPHANS)
    assert states == ["HIDDEN", "ENDED", "ENDED", "ENDED"]


@linux
@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root is another user")
@pytest.mark.parametrize("leads", ["", "setsid"])
def test_an_orphan_that_another_user_may_not_look_into_may_be_the_holders_command(
    leads: str,
) -> None:
    """The command's mark is in its environment, and the guard has ended."""
    with named_process() as (child, name):
        line = ["sh", "-c", f"{leads} sleep 600 >/dev/null 2>&1 & echo $!"]
        done = subprocess.run(line, capture_output=True, text=True, timeout=30, check=True)
        child.kill()
        child.wait(10)
        nobody = JUDGE.replace("for each", "import os, socket, glob\nos.setuid(65534)\nfor each")
        judged = subprocess.run(
            [sys.executable, "-c", nobody, name], cwd=ROOT, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60, check=True,
        )  # fmt: skip
        os.kill(int(done.stdout), signal.SIGKILL)
        assert judged.stdout.split()[0] == "HIDDEN" and ProcessState.HIDDEN.lives is None
        assert process_state(name) is ProcessState.ENDED, "root sees that it is not the command"


@linux
def test_a_process_whose_first_thread_has_ended_lives_on_in_its_others() -> None:
    program = (
        "import ctypes, threading, time\n"
        "from lockkit.clock import process_name\n"
        "print(process_name(), flush=True)\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    line = [sys.executable, "-c", program]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        name = child.stdout.readline().strip()
        stat = Path(f"/proc/{child.pid}/stat")
        try:
            until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", 20)
            assert process_state(name) is ProcessState.RUNS
        finally:
            child.kill()


@linux
def test_a_number_that_was_given_again_is_no_sign_of_life() -> None:
    with named_process() as (_, name):
        ticks = int(name.rpartition(".")[2])
        assert process_state(renumbered(name, ticks=ticks - 1)) is ProcessState.ENDED
    again = renumbered(process_name(), ticks=1)
    assert process_state(again) is ProcessState.ENDED, "this process began later"
    thread = threading.get_native_id()
    worker: list[int] = []
    other = threading.Thread(target=lambda: (worker.append(threading.get_native_id()), gate.wait()))
    gate = threading.Event()
    other.start()
    until(lambda: bool(worker), 10)
    assert thread != worker[0] and Path(f"/proc/{worker[0]}/stat").exists()
    of_a_thread = renumbered(process_name(), pid=worker[0])
    assert process_state(of_a_thread) is ProcessState.ENDED, "a thread has such a number now"
    gate.set()
    other.join()


@linux
def test_a_container_of_the_same_name_has_processes_of_its_own() -> None:
    """It neither sees this process nor may call it ended, and the other way round."""
    with named_process() as (_, name):
        state, theirs = elsewhere(name, options="-Urpf --mount-proc")
        assert (state, process_state(theirs)) == ("OTHER_TABLE", ProcessState.OTHER_TABLE)
        assert theirs.startswith(f"{socket.gethostname()}/1@") and theirs.count("~") == 1
        # Without a /proc of its own it would find another's processes under its numbers.
        state, theirs = elsewhere(name, options="-Urpf")
        assert (state, process_state(theirs)) == ("OTHER_TABLE", ProcessState.OTHER_TABLE)
        assert "~" not in theirs
        state, _ = elsewhere(name, options="-Ur")
        assert state == "RUNS", "a user namespace alone hides no process"


@linux
def test_a_process_of_an_earlier_boot_or_without_a_mark_is_unknown() -> None:
    with named_process() as (_, name):
        head, _, mark = name.partition("~")
        table, _, ticks = mark.partition(".")
        other = f"{int(table, 16) ^ 1:08x}"
        assert process_state(f"{head}~{other}.{ticks}") is ProcessState.OTHER_TABLE
        assert process_state(head) is ProcessState.OTHER_TABLE
        assert process_state(head.partition("@")[0]) is ProcessState.OTHER_TABLE
    assert ProcessState.OTHER_TABLE.lives is None and "unknown" in ProcessState.OTHER_TABLE.value


def test_another_hosts_process_and_no_process_are_not_seen() -> None:
    assert process_state("another-host/41@2026-01-01T00:00:00Z") is ProcessState.UNSEEN
    assert process_state("") is ProcessState.UNSEEN
    assert process_state(f"{socket.gethostname()}/0") is ProcessState.UNSEEN, "a group, no process"


# --- outside Linux, with psutil -------------------------------------------------------------------


def start(seconds: float = 0.0) -> str:
    now = datetime.now(UTC).timestamp() + seconds
    return f"{datetime.fromtimestamp(now, UTC):%Y-%m-%dT%H:%M:%SZ}"


def test_psutil_shows_a_stopped_process_a_zombie_and_a_number_given_again() -> None:
    pytest.importorskip("psutil", reason="make test installs psutil")
    with named_process() as (child, _):
        assert _by_psutil(child.pid, start()) is ProcessState.RUNS
        assert _by_psutil(child.pid, start(+60)) is ProcessState.RUNS, "its lock came later"
        assert _by_psutil(child.pid, start(-60)) is ProcessState.ENDED, "the number is another's"
        child.send_signal(signal.SIGSTOP)
        until(lambda: _by_psutil(child.pid, start()) is ProcessState.STOPPED, 10)
        child.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert _by_psutil(child.pid, start()) is ProcessState.ENDED
    assert _by_psutil(child.pid, start()) is ProcessState.ENDED


@pytest.mark.parametrize("platform", ["darwin", "freebsd14", "win32"])
@pytest.mark.parametrize(
    ("answer", "state"),
    [
        ({"status": "running"}, ProcessState.RUNS),
        ({"status": "sleeping"}, ProcessState.RUNS),
        ({"status": "idle"}, ProcessState.RUNS),
        ({"status": "stopped"}, ProcessState.STOPPED),
        ({"status": "tracing-stop"}, ProcessState.STOPPED),
        ({"status": "zombie"}, ProcessState.ENDED),
        ({"status": "running", "later_s": 1.5}, ProcessState.RUNS),
        ({"status": "running", "later_s": 2.5}, ProcessState.ENDED),
        ({"status": "running", "later_s": -86_400.0}, ProcessState.RUNS),
        ({"fails": "NoSuchProcess"}, ProcessState.ENDED),
        ({"fails": "ZombieProcess"}, ProcessState.ENDED),
        ({"fails": "AccessDenied"}, ProcessState.RUNS),
    ],
    ids=lambda each: " ".join(map(str, each.values())) if isinstance(each, dict) else each.name,
)
def test_outside_linux_psutils_answer_decides(
    platform: str, answer: dict[str, Any], state: ProcessState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """macOS, FreeBSD and Windows have no /proc; the record has no mark of a process table there."""
    psutil = pytest.importorskip("psutil", reason="make test installs psutil")
    started = datetime(2026, 11, 24, 1, 10, 7, tzinfo=UTC)

    class Process:
        def __init__(self, pid: int) -> None:
            assert pid == 4711
            if "fails" in answer:
                raise getattr(psutil, answer["fails"])(pid)

        def status(self) -> str:
            return str(answer["status"])

        def create_time(self) -> float:
            return started.timestamp() + float(answer.get("later_s", 0.0))

    monkeypatch.setattr(psutil, "Process", Process)
    monkeypatch.setattr("lockkit.providers.process_state.sys.platform", platform)
    monkeypatch.setattr("lockkit.providers.process_state.process_name", lambda: "elsewhere/1")
    name = f"{socket.gethostname()}/4711@{started:%Y-%m-%dT%H:%M:%SZ}"
    assert process_state(name) is state
    assert process_state(f"another-host/4711@{started:%Y-%m-%dT%H:%M:%SZ}") is ProcessState.UNSEEN


def test_without_psutil_only_the_number_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    with named_process() as (child, _):
        assert _by_psutil(child.pid, start(-60)) is ProcessState.RUNS
    assert _by_psutil(child.pid, start()) is ProcessState.ENDED
