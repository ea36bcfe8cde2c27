"""Ctrl-C while a command is still imported: one line and exit 130, as later."""

from __future__ import annotations

import os
import signal
from types import FrameType


def end_at_interrupt() -> None:
    """Until `interrupts_raise`. A SIGINT that the starter ignores stays ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def interrupts_raise() -> None:
    """From here on Ctrl-C is a KeyboardInterrupt again, for which the command gives back."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def ignore_interrupts() -> None:
    """The command has ended and said so: while the interpreter ends, its exit code stays."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _end(_signal: int, _frame: FrameType | None) -> None:
    """Nothing is held or started yet. An exception would pass through half of an import."""
    try:
        os.write(2, b"lockkit: interrupted\n")
    finally:
        os._exit(130)
