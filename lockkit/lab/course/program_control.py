"""Control of the child programs: orders in, events and answers out, and a trap that pauses one."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from lockkit.clock import Clock
from lockkit.events import Event
from lockkit.lab.course.orders_outcome import ProgramReport
from lockkit.lab.processes.child import ChildProcess, Said, last_words
from lockkit.lock.handle import LOCK_KEY

HEAR_TIMEOUT_S = 150.0


class ClaimTrap:
    """Pauses a process once the store has applied its claim but has not answered yet."""

    def __init__(self, pid: int, url: str) -> None:
        self._pid, self._lock = pid, f"{url.rpartition('/')[2]}/{LOCK_KEY}"
        self._shut = threading.Event()

    def shuts(self, each: Event) -> bool:
        if each["client"] != "W1" or each["key"] != self._lock or not each["applied"]:
            return False
        os.kill(self._pid, signal.SIGSTOP)
        self._shut.set()
        return True

    def wait(self, driver: ProgramProcess) -> None:
        if not Clock().wait(self._shut, HEAR_TIMEOUT_S):
            raise TimeoutError(f"{driver.name} never took the lock: {last_words(driver.log)}")


class ProgramProcess:
    """One program, as its owner sees it: orders in, events and answers out."""

    def __init__(
        self, name: str, settings: Mapping[str, Any], env: Mapping[str, str], folder: Path
    ) -> None:
        self.name, self.log = name, folder / f"{name}.log"
        self._events: list[Event] = []
        self._messages: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._process = ChildProcess(
            "lockkit.lab.course.program", {"name": name, **settings}, log=self.log, env=env,
            cwd=folder,
        )  # fmt: skip
        self._process.listen(self._hear)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, **order: Any) -> None:
        self._events.clear()
        self._process.send(**order)

    def go(self) -> None:
        """Let it continue from where it waits."""
        self._process.send(do="go")

    def hear(self) -> ProgramReport | None:
        """Receive the result of its command; None if it waits before its commit, or is ready."""
        try:
            said = self._messages.get(timeout=HEAR_TIMEOUT_S)
        except Empty:
            said = None
        if said is None:
            raise TimeoutError(f"{self.name} ended: {last_words(self.log, lines=4)}")
        if said["message"] in ("ready", "waits"):
            return None
        notes = [each for each in self._events if each.kind == "note"]
        tries = 1 + sum(str(each["text"]).startswith("attempt ") for each in notes)
        return ProgramReport(
            who=self.name, done=said["message"] == "done", said=said["said"],
            error=said.get("error", ""), attempts=tries,
        )  # fmt: skip

    def final_report(self) -> ProgramReport:
        reported = self.hear()
        assert reported is not None, "it waits at most once"
        return reported

    def take(self) -> list[Event]:
        return list(self._events)

    def end(self) -> None:
        self._process.end()

    def _hear(self, said: Said | None) -> None:
        if isinstance(said, Event):
            self._events.append(said)
        else:
            self._messages.put(said)
