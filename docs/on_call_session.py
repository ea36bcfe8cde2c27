"""A night on call, with the least rights: commands and what they print, at every build of the docs.

One table on each of three providers, on the embedded server. The server enforces the documents in
datasets/policies: those of on-call staff, who only read, or those of a writer. Ports, the owner's
id and the names of machines are replaced by fixed ones. Nothing else of the output is changed.
"""

from __future__ import annotations

import io
import re
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from socket import gethostname
from unittest.mock import patch

from lockkit import Lock
from lockkit.clock import Clock
from lockkit.lab.server import Emulator
from lockkit.lab.server.policy import read_policy
from lockkit.table.inspect.takeover import operator_name

POLICIES = Path(__file__).parents[1] / "datasets" / "policies"
PROVIDERS = {"s3": ("Amazon S3", "s3"), "gcs": ("Google Cloud Storage", "gs"),
             "azure": ("Azure Blob Storage", "az")}  # fmt: skip
PORTS = {"s3": 9000, "gcs": 9001, "azure": 9002}
HOLDER = "host-4/8121@2026-11-24T01:10:07Z~5e01c7a2.90341"
OPERATOR = "laptop/977@2026-11-24T03:02:31Z~17b3f09c.20188"
OWNER = "7f3c0b1e-2d6a-4a54-9a3e-5b1f0c8d9e21"
TAKEN_S, RENEWED_S, DIED_S = 90, 20, 400
"""So many seconds ago: the lock was taken, and last renewed; and a holder took it and died."""


@dataclass
class SkippingClock(Clock):
    """A command's wait takes no time. A holder that lives renews its lease meanwhile."""

    holder: Lock | None = None

    def sleep(self, seconds: float) -> None:
        self.offset_ms += round(seconds * 1000)
        if self.holder is not None:
            self.holder.renew()


@dataclass
class Terminal:
    """Runs commands against one provider's address, and keeps what a reader would see."""

    kind: str
    db: str
    lines: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"{PROVIDERS[self.kind][1]}://lake/orders"

    @contextmanager
    def under(self, document: str, clock: Clock | None = None) -> Iterator[str]:
        """An address of the provider that enforces this document."""
        policy = read_policy([(POLICIES / f"{document}.json").read_text("utf-8")])
        with Emulator(db=self.db, policy=policy, clock=clock) as server:
            yield getattr(server, self.kind)

    def lock(self, endpoint: str, clock: Clock) -> Lock:
        with patch("socket.gethostname", lambda: "host-4"):  # the reader works on another host
            return Lock(
                self.url, endpoint=endpoint, owner=OWNER, client="spark-orders", clock=clock,
                renew_interval_s=30.0,
            )  # fmt: skip

    def says(self, text: str) -> None:
        self.lines += [f"# {text}", ""]

    def types(
        self, endpoint: str, verb: str, *options: str, holder: Lock | None = None
    ) -> str:  # fmt: skip
        """Run one command of `lockkit lock`; what it printed."""
        text = io.StringIO()
        line = ["lock", verb, self.url, "--endpoint", endpoint, *options]
        clock = patch("lockkit.cli.breaking.Clock", lambda: SkippingClock(holder=holder))
        with redirect_stdout(text), redirect_stderr(text), clock:
            code = import_module("lockkit.cli.main").main(line)
        shown = text.getvalue().rstrip()
        self.lines += [f"$ lockkit {shlex.join(line)}", *([shown] if shown else [])]
        self.lines += [f"[exit {code}]", ""]
        return shown


def markdown() -> str:
    """Markdown: the story on each provider."""
    return "\n\n".join(
        f"### {title}\n\n```text\n{story(kind)}\n```" for kind, (title, _) in PROVIDERS.items()
    )


@cache
def story(kind: str) -> str:
    """A holder that lives and one that has died; what on-call staff and a writer may do."""
    lines: list[str] = []
    for part in (_lives, _died):
        with tempfile.TemporaryDirectory() as folder:
            part(Terminal(kind, str(Path(folder) / "objects.sqlite"), lines))
    said = "\n".join(lines).rstrip()
    said = re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{PORTS[kind]}", said)
    said = re.sub(r"[^\s(]+/spark-orders", f"{HOLDER}/spark-orders", said)
    said = re.sub(rf"{re.escape(gethostname())}/\d+@[^\s)]+", OPERATOR, said)
    return said.replace(operator_name(), "anna@laptop")


def _lives(terminal: Terminal) -> None:
    kind, clock = terminal.kind, Clock(offset_ms=-TAKEN_S * 1000)
    with terminal.under(kind, clock) as writers, terminal.under(f"{kind}_on_call") as readers:
        lock = terminal.lock(writers, clock)
        with lock:
            pass  # an earlier grant
        lock.acquire()
        clock.offset_ms = -RENEWED_S * 1000
        lock.renew()
        clock.offset_ms = 0
        terminal.says(f"The holder lives. Rights: {kind}_on_call.json (read only).")
        terminal.types(readers, "show")
        terminal.types(readers, "break", holder=lock)
        lock.release()


def _died(terminal: Terminal) -> None:
    kind, clock = terminal.kind, Clock(offset_ms=-DIED_S * 1000)
    with terminal.under(kind, clock) as writers:
        lock = terminal.lock(writers, clock)
        lock.acquire()
        lock.close()  # as a process that ends: nothing is released
    terminal.says(f"The holder died. Rights: {kind}_on_call.json (read only).")
    with terminal.under(f"{kind}_on_call") as readers:
        terminal.types(readers, "show")
        shown = terminal.types(readers, "break")
        found = re.search(r"lockkit lock break .* --version (.+)$", shown, re.MULTILINE)
        if found is None:
            raise ValueError(f"no command to break it:\n{shown}")
        breaks = ("break", "--version", *shlex.split(found[1])[:1])
        terminal.types(readers, *breaks)
    terminal.says(f"Rights: {kind}.json (a writer of this table's lock).")
    with terminal.under(kind) as writers:
        terminal.types(writers, *breaks)
        terminal.types(writers, "acquire", "--timeout", "0", "--", "true")
        terminal.types(writers, "show")
