"""A crew's hold of its programs: orders in, events and answers out, and a trap that stops one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from lockkit.clock import Clock
from lockkit.events import Event, parse
from lockkit.lab.course.orders_outcome import ProgramReport
from lockkit.lab.processes.fleet import last_words
from lockkit.lock.handle import LOCK_KEY
from lockkit.spark.process import kill_tree

HEAR_TIMEOUT_S = 150.0


class ClaimTrap:
    """Stops a process as the store has applied its claim of the lock, and not yet answered it."""

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
    """One program as its crew has it: orders in, events and answers out."""

    def __init__(self, name: str, line: list[str], env: Mapping[str, str], folder: Path) -> None:
        self.name, self.log = name, folder / f"{name}.log"
        self._events: list[Event] = []
        self._said: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env=dict(env), process_group=0, cwd=folder,
            )  # fmt: skip
        threading.Thread(target=self._listen, name=name, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, **order: Any) -> None:
        self._events.clear()
        self._line(json.dumps(order))

    def go(self) -> None:
        """On from where it holds still."""
        self._line("")

    def _line(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    def hear(self) -> ProgramReport | None:
        """What it was told at the end of its order; None if it holds still, or is ready."""
        try:
            said = self._said.get(timeout=HEAR_TIMEOUT_S)
        except Empty:
            said = None
        if said is None:
            raise TimeoutError(f"{self.name} says nothing more: {last_words(self.log, lines=4)}")
        if said["told"] in ("ready", "at"):
            return None
        notes = [each for each in self._events if each.kind == "note"]
        tries = 1 + sum(str(each["text"]).startswith("attempt ") for each in notes)
        return ProgramReport(
            who=self.name, done=said["told"] == "done", said=said["said"],
            error=said.get("error", ""), attempts=tries,
        )  # fmt: skip

    def heard_out(self) -> ProgramReport:
        told = self.hear()
        assert told is not None, "it holds still once at the most"
        return told

    def take(self) -> list[Event]:
        return list(self._events)

    def end(self) -> None:
        kill_tree(self.pid)
        self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith('{"told"'):
                self._said.put(json.loads(line))
            else:
                self._events.append(parse(line))
        self._said.put(None)
