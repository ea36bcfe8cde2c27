"""The command line: `lockkit demo | lab | serve | probe | lock | table | history | check | ...`.

Exit codes: what a command finds is 0, 1 or 2 (each --help says which); 3 is trouble (one or two
lines on standard error: what, who, what next), 64 a wrong call, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from lockkit import __version__
from lockkit.cli import COMMANDS, module_of


class CommandParser(argparse.ArgumentParser):
    """Says what is wrong and where help is; exit 64, since 2 means UNKNOWN here."""

    def error(self, message: str) -> NoReturn:
        from lockkit.cli.terminal import USAGE
        from lockkit.events import plain

        self.exit(USAGE, f"{self.prog}: {plain(message)}; see {self.prog} --help\n")


def parser(arguments: Sequence[str]) -> CommandParser:
    """For these arguments: only the command that they name is imported, the others are listed."""
    top = CommandParser(
        prog="lockkit",
        description="One lock protocol for object stores: use it, break it, prove it.",
        epilog="Start with: lockkit demo (a terminal) or lockkit lab (the notebooks).",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"lockkit {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, help in COMMANDS.items():
        if name in arguments[:1]:
            import_module(module_of(name)).add(commands)
        else:
            commands.add_parser(name, help=help)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # What follows `--` is somebody else's command line, options and all.
    ours, after = given, []
    if "--" in given:
        ours, after = given[: given.index("--")], given[given.index("--") + 1 :]
    if ours[:1] == ["lab"] and not {"-h", "--help"} & set(ours):
        # Options for JupyterLab need no `--`; only a first word can be the notebook, for `9000`
        # in `--port 9000` is none.
        named = 2 if len(ours) > 1 and not ours[1].startswith("-") else 1
        ours, after = ours[:named], ours[named:] + after
    top = parser(ours)
    args, unknown = top.parse_known_args(ours)
    from lockkit.cli.terminal import (
        BROKEN_PIPE,
        EXIT_FAILED,
        INTERRUPTED,
        USAGE,
        CommandError,
        warn,
    )
    from lockkit.events import plain

    if unknown or (after and args.name not in ("lab", "lock acquire")):
        too_many = plain(" ".join(unknown or after))
        remedy = "put -- before the command" if args.name == "lock acquire" else "see its --help"
        top.exit(USAGE, f"lockkit {args.name}: cannot read {too_many!r} here; {remedy}\n")
    args.after = after
    try:
        code: int = args.run(args)
        sys.stdout.flush()  # a pipe closed early is noticed here, not at exit
        return code
    except KeyboardInterrupt:
        # A second Ctrl-C, while everything is already coming down, has nothing left to say.
        import signal

        signal.signal(signal.SIGINT, signal.SIG_IGN)
        warn(f"lockkit {args.name}: interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more on its way out: give it a place to do so (Python docs).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except CommandError as error:
        warn(f"lockkit {args.name}: {error}")
        return error.code
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("lockkit"):
            raise
        warn(
            f"lockkit {args.name}: the Python package {missing.name!r} is not installed; "
            f"pip install 'lockkit[{args.extra}]'"
        )
        return EXIT_FAILED
    except Exception as error:
        # lockkit's own errors say what, who and what next; any other is a bug, with its traceback.
        if not type(error).__module__.startswith("lockkit."):
            raise
        warn(f"lockkit {args.name}: {plain(error, limit=1000)}")
        return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
