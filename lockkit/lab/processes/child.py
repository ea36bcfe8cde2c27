"""A child process that speaks JSON lines: `ChildProcess` in its parent, `Channel` in itself.

    parent to child    the settings, then commands such as {"do": "stall", "at": "commit"}
    child to parent    events (`lockkit.events`) and messages such as {"message": "ready"}

A child ends when its input ends. Linux also kills it when the parent's *thread* that started it
ends. Its stdout carries nothing else: what libraries print goes to stderr, into the child's log.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from select import select
from typing import Any, NoReturn

from lockkit.clock import Clock
from lockkit.events import Event, HistoryError, event, parse
from lockkit.lab.processes.process import die_with_parent, from_lasting_thread, kill_tree

PACKAGE = Path(__file__).parents[3]
"""The folder that holds `lockkit`: a child imports the same code as its parent."""
EOF_GRACE_S = 1.0
"""How long a child may take to end its work after its input has ended."""
GARBLED = "garbled"

Said = Event | dict[str, Any]


class ChildProcess:
    """One child that runs a module of ours; `send` writes commands, `said` reads its output."""

    def __init__(
        self, module: str, settings: Mapping[str, Any], *, log: Path,
        env: Mapping[str, str] | None = None, cwd: Path | None = None, session: bool = False,
    ) -> None:  # fmt: skip
        """Start it in its own process group or session, so that Ctrl-C does not reach it."""
        own = dict(os.environ if env is None else env)
        own["PYTHONPATH"] = os.pathsep.join(filter(None, (str(PACKAGE), own.get("PYTHONPATH"))))
        self.log = log
        self._turn = threading.Lock()
        with log.open("a") as file:
            self.process = from_lasting_thread(lambda: subprocess.Popen(
                [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=file, text=True, bufsize=1, cwd=cwd, env=own,
                start_new_session=session, process_group=None if session else 0,
            ))  # fmt: skip
        self.send(parent=os.getpid(), **settings)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def send(self, **command: Any) -> None:
        """Write one command; does nothing if the child has ended."""
        try:
            assert self.process.stdin is not None
            with self._turn:
                self.process.stdin.write(json.dumps(command) + "\n")
                self.process.stdin.flush()
        except (OSError, ValueError):
            return  # its exit code and its log say why it ended

    def said(self) -> Iterator[Said]:
        """Events and messages until its output ends; a line that is neither is `garbled`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            yield _said(line)

    def listen(self, on_message: Callable[[Said | None], None]) -> threading.Thread:
        """Call `on_message` from a thread with every line, and with None at the end."""

        def read() -> None:
            for each in self.said():
                on_message(each)
            on_message(None)

        thread = threading.Thread(target=read, name=f"read-{self.log.stem}", daemon=True)
        thread.start()
        return thread

    def close(self) -> None:
        """Close its input; the process then ends."""
        assert self.process.stdin is not None
        with self._turn, suppress(OSError):
            self.process.stdin.close()

    def end(self, wait_s: float = 0.0) -> None:
        """Wait that long for its end; then kill it and all that it started."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(wait_s)
        kill_tree(self.pid)
        self.process.wait()


def _said(line: str) -> Said:
    try:
        if line.startswith('{"message"'):
            return dict(json.loads(line))
        return parse(line)
    except (HistoryError, ValueError) as error:
        return {"message": GARBLED, "why": f"{error}: {line[:120]!r}"}


class Channel:
    """The child's end: its settings, its output, and the commands that it receives."""

    def __init__(self) -> None:
        """Reserve stdout for the channel and read the settings; call it first."""
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._set(json.loads(sys.stdin.readline() or "{}"))
        self.parent: int = self.settings.pop("parent", os.getppid())
        die_with_parent(self.parent)
        self.stop = threading.Event()
        self._clock = Clock()
        self._turn = threading.Lock()

    def _set(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.name = str(settings.get("name", ""))

    def await_settings(self) -> bool:
        """Wait for settings that replace the first ones; False if the input ends before."""
        if (settings := self.next_command()) is None:
            return False
        self._set(settings)
        return True

    def has_news(self) -> bool:
        """Whether its input has more to read, or has ended."""
        return bool(select([sys.stdin], [], [], 0)[0])

    def emit(self, kind: str, **fields: Any) -> None:
        """Send an event of this child's lane."""
        self.write(event(self._clock.stamp_ms(), self.name, kind, **fields).to_json() + "\n")

    def send(self, message: str, **fields: Any) -> None:
        """Send a message that is not an event."""
        self.write(message_line(message, **fields))

    def write(self, line: str, *, flush: bool = True) -> None:
        with self._turn:  # a renewal thread writes, too
            self._out.write(line)
            if flush:
                self._out.flush()

    def commands(self) -> Iterator[dict[str, Any]]:
        """Commands until the input ends."""
        while (command := self.next_command()) is not None:
            yield command

    def next_command(self) -> dict[str, Any] | None:
        """The next command; None when the input has ended."""
        line = sys.stdin.readline()
        if not line:
            return None
        try:
            command = json.loads(line)
        except ValueError:
            command = None
        return command if isinstance(command, dict) else {"do": f"not a command: {line[:80]!r}"}

    def listen(
        self, obey: Callable[[dict[str, Any]], None] = lambda _: None,
        *, grace_s: float = EOF_GRACE_S,
    ) -> None:  # fmt: skip
        """Obey in a thread. `{"do": "stop"}` sets `stop`; the end of input ends the process."""

        def read() -> None:
            for command in self.commands():
                if command.get("do") == "stop":
                    self.stop.set()
                else:
                    obey(command)
            self.stop.set()
            self._clock.sleep(grace_s)
            os._exit(0)

        threading.Thread(target=read, name="commands", daemon=True).start()


def message_line(message: str, **fields: Any) -> str:
    return json.dumps({"message": message, **fields}) + "\n"


def serve(main: Callable[[Channel], int]) -> NoReturn:
    """Run a child's main function; no thread and no exit hook of a library can delay its end."""
    code = main(Channel())
    sys.stderr.flush()
    os._exit(code)


def last_words(log: Path, lines: int = 1) -> str:
    """The end of a process's log, for an error message."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
            said = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        said = []
    return "\n".join(said[-lines:])[:2000] or f"it said nothing; see {log}"
