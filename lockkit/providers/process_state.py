"""Whether the process that a holder's record names still runs, as far as this machine can see it.

A process number says little by itself: it is given again, and each container has numbers of its
own. So the record has the process's start and its process table too (`clock.process_name`).
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from enum import Enum
from glob import glob

from lockkit.clock import process_name

_PROCESS = re.compile(
    r"(?P<host>[^/\s]{1,255})/(?P<pid>\d{1,9})"
    r"(@(?P<start>[0-9TZ:-]{1,30})(~(?P<table>[0-9a-f]{8})\.(?P<ticks>\d{1,20}))?)?",
    re.ASCII,
)
START_SLACK_S = 2.0
"""A record's start is in whole seconds, and by another look at the clock."""
HOLDER = "LOCKKIT_HOLDER"
"""The name under which `lock acquire` gives its own process to its guard and to its command."""


class ProcessState(Enum):
    """What this machine shows of a process; the value is the sentence for people."""

    RUNS = "it runs on this host"
    STOPPED = "it is stopped on this host (SIGSTOP or a debugger), and continues if it is resumed"
    ENDED = "it ran on this host and has ended"
    COMMAND_RUNS = (
        "it ran on this host and has ended, but the command that it ran under the lock still runs; "
        "the command's guard, if that lives, ends it within seconds"
    )
    OTHER_TABLE = (
        "unknown: this host has its name, but not its processes (it runs in another container, or "
        "ran before a restart)"
    )
    HIDDEN = (
        "unknown: it ran on this host and has ended, but what it ran under the lock may still run: "
        "a process of another user, or without an environment, lost its parent since (look as root)"
    )
    UNSEEN = ""
    """It is another host's, or not named."""

    @property
    def lives(self) -> bool | None:
        """None: unknown."""
        return {"RUNS": True, "STOPPED": True, "COMMAND_RUNS": True, "ENDED": False}.get(self.name)


NO_RENEWALS = (ProcessState.STOPPED, ProcessState.COMMAND_RUNS)
"""It renews nothing now, and its work may continue."""


def process_in(said: str) -> str:
    """The `host/pid@start` within a text; "" if there is none."""
    found = _PROCESS.search(said)
    return found[0] if found is not None and found["start"] else ""


def process_state(said: str) -> ProcessState:
    """The state of the process that `said` names."""
    found, ours = _PROCESS.search(said), _PROCESS.search(process_name())
    if found is None or found["host"] != socket.gethostname() or int(found["pid"]) < 1:
        return ProcessState.UNSEEN
    if ours is not None and found[0] == ours[0]:
        return ProcessState.RUNS
    if sys.platform != "linux":
        state = _by_psutil(int(found["pid"]), found["start"])
    # Without a mark the record may be of another container, as may we be without ours.
    elif ours is None or not ours["table"] or found["table"] != ours["table"]:
        return ProcessState.OTHER_TABLE
    else:
        state = _by_proc(int(found["pid"]), int(found["ticks"]))
    mark, ticks = f"{HOLDER}={found[0]}".encode(), int(found["ticks"] or 0)
    return _ended(mark, ticks) if state is ProcessState.ENDED else state


def _ended(mark: bytes, ticks: int) -> ProcessState:
    """The state of what an ended process ran under its lock: the guard has this mark, as argument.

    The command has it in its environment, for the case that the guard was killed too. Only its
    user and root may read that; to others it is an orphan that began after the holder.
    """
    said = []
    if sys.platform != "linux":
        try:
            line = ["ps", "-axww", "-o", "args="]
            said = subprocess.run(line, capture_output=True, check=True, timeout=10).stdout.split()
        except (OSError, subprocess.SubprocessError):
            return ProcessState.OTHER_TABLE
    elif not os.access("/proc/1/cmdline", os.R_OK):  # hidepid: nor would we see a guard
        return ProcessState.OTHER_TABLE
    for each in glob("/proc/[0-9]*/cmdline") + glob("/proc/[0-9]*/environ"):
        with suppress(OSError), open(each, "rb") as file:
            said += file.read().split(b"\0")
    if mark in said:
        return ProcessState.COMMAND_RUNS
    return ProcessState.HIDDEN if any(_hidden_orphans(ticks)) else ProcessState.ENDED


def _hidden_orphans(ticks: int) -> Iterator[str]:
    """Processes without an environment that we see, which began after `ticks` and have lost their
    parent; no services.
    """
    for folder in glob("/proc/[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            with open(f"{folder}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
            with open(f"/proc/{fields[1]}/comm", encoding="utf-8", errors="replace") as file:
                adopted = fields[1] == "1" or file.read().startswith("systemd")
            with open(f"{folder}/cmdline", "rb") as file:
                program = file.read(1)  # a thread of the kernel, or a zombie, has none
            with open(f"{folder}/cgroup", encoding="utf-8", errors="replace") as file:
                service = fields[3] == folder[6:] and ".service" in file.read()  # of systemd
            if program and adopted and not service and int(fields[19]) >= ticks:
                try:
                    with open(f"{folder}/environ", "rb") as file:
                        cleared = not file.read(1)  # as by `env -i`
                except PermissionError:
                    cleared = True
                if cleared:
                    yield folder


def _by_proc(pid: int, ticks: int) -> ProcessState:
    """By Linux's process table: a number with another start is another process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        alone = len(os.listdir(f"/proc/{pid}/task")) < 2
        state, started = fields[0], int(fields[19])
    except (FileNotFoundError, ProcessLookupError):
        return _by_signal(pid)
    except (OSError, IndexError, ValueError):
        return ProcessState.OTHER_TABLE
    # A zombie has ended, but with threads left only its first thread has.
    if started != ticks or (state in "ZXx" and alone):
        return ProcessState.ENDED
    return ProcessState.STOPPED if state in "Tt" else ProcessState.RUNS


def _by_signal(pid: int) -> ProcessState:
    """For a process that /proc does not show: it has ended, or it is hidden (hidepid)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ProcessState.ENDED
    except (PermissionError, OverflowError):
        pass
    return ProcessState.OTHER_TABLE


def _by_psutil(pid: int, start: str | None) -> ProcessState:
    """Outside Linux (macOS): without psutil, only whether there is a process of this number."""
    try:
        import psutil
    except ImportError:
        state = _by_signal(pid)
        return ProcessState.RUNS if state is ProcessState.OTHER_TABLE else state
    try:
        process = psutil.Process(pid)
        status, started_s = process.status(), process.create_time()
    except psutil.NoSuchProcess:  # a zombie too
        return ProcessState.ENDED
    except psutil.AccessDenied:
        return ProcessState.RUNS
    # The record's start may be later than the process's, never earlier: see `process_name`.
    if start is not None and started_s > _epoch_s(start) + START_SLACK_S:
        return ProcessState.ENDED
    if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
        return ProcessState.ENDED
    stopped = status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    return ProcessState.STOPPED if stopped else ProcessState.RUNS


def _epoch_s(start: str) -> float:
    try:
        return datetime.fromisoformat(start).timestamp()
    except ValueError:
        return float("inf")
