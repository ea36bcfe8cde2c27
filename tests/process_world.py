"""Processes of this machine that a holder's record names: ended, stopped, a zombie, another's."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

NAMED = """
import sys
from lockkit.clock import process_name
print(process_name(), flush=True)
sys.stdin.read()
"""


@contextmanager
def named_process() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that waits for its input to end, and its name as its own record would have it."""
    line = [sys.executable, "-c", NAMED]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            yield child, child.stdout.readline().strip()
        finally:
            child.send_signal(signal.SIGCONT)
            child.kill()


def ended_process() -> str:
    """The name of a process of this machine that has ended."""
    with named_process() as (child, name):
        child.kill()
        child.wait(10)
    return name
