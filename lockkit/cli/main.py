"""The command line: `lockkit demo | lab | serve | probe | lock | table | history | check | ...`.

Exit codes: 0, 1 or 2 for the result (each --help says which); 3 for a failure (one or two lines on
standard error: what, who, what next), 64 for a wrong call, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import NoReturn

from lockkit import __version__
from lockkit.cli import COMMANDS, module_of

RUNS = ("lock acquire", "tflock run", "tflock move")
"""Commands that run another one, which follows `--`."""


class CommandParser(argparse.ArgumentParser):
    """Names the mistake and the help; exits with 64, since 2 means UNKNOWN here."""

    def error(self, message: str) -> NoReturn:
        from lockkit.cli.terminal import USAGE
        from lockkit.events import plain

        self.exit(USAGE, f"{self.prog}: {plain(message)}; see {self.prog} --help")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        if message:
            from lockkit.cli.terminal import warn

            warn(message)
        sys.exit(status)


def parser(arguments: Sequence[str]) -> CommandParser:
    """A parser that imports only the command in `arguments`, and lists the others."""
    top = CommandParser(
        prog="lockkit",
        description="Locks and table commits on object storage, and the tools that test them.",
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
    open_closed_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    # The words after `--` are another program's command line, with its options.
    ours, after = given, []
    if "--" in given:
        ours, after = given[: given.index("--")], given[given.index("--") + 1 :]
    if ours[:1] == ["lab"] and not {"-h", "--help"} & set(ours):
        # Options for JupyterLab need no `--`. Only the first word can be the notebook, because
        # `9000` in `--port 9000` is not one.
        named = 2 if len(ours) > 1 and not ours[1].startswith("-") else 1
        ours, after = ours[:named], ours[named:] + after
    top = parser(ours)
    args, unknown = top.parse_known_args(ours)
    from lockkit.cli.terminal import USAGE, addressed
    from lockkit.events import plain

    if unknown or (after and args.name not in ("lab", *RUNS)):
        too_many = plain(" ".join(unknown or after))
        runs = args.name in RUNS
        remedy = "put -- before the command" if runs else "see its --help"
        top.exit(USAGE, f"lockkit {args.name}: cannot read {too_many!r} here; {remedy}")
    args.after = after
    warned: list[str] = []
    with addressed(args), warnings.catch_warnings():
        warnings.showwarning = partial(_warned, args.name, warned)
        return _run(args, warned)


def open_closed_streams() -> None:
    """Open /dev/null where a daemon's starter closed stdin, stdout or stderr.

    Else a file or a socket of ours gets that number, and a command under a lock writes into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 - stays open
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def _warned(name: str, warned: list[str], message: Warning | str, *_of: object) -> None:
    """A warning as one line, without the line of code that gave it."""
    from lockkit.cli.terminal import warn
    from lockkit.events import plain

    warned.append(plain(message, limit=1000))
    warn(f"lockkit {name}: {warned[-1]}")


def _run(args: argparse.Namespace, warned: list[str]) -> int:
    from lockkit.cli.starting import interrupts_raise
    from lockkit.cli.terminal import (
        BROKEN_PIPE,
        EXIT_FAILED,
        INTERRUPTED,
        USAGE,
        CommandError,
        warn,
    )
    from lockkit.errors import UnknownKeyword
    from lockkit.events import plain

    try:
        interrupts_raise()
        code = _result(args)
        sys.stdout.flush()  # notices a closed pipe here, not at exit
        return code
    except KeyboardInterrupt:
        # The command already ends: ignore a second Ctrl-C.
        import signal

        signal.signal(signal.SIGINT, signal.SIG_IGN)
        warn(f"lockkit {args.name}: interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout again at exit: let it flush to /dev/null (Python docs).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except CommandError as error:
        if str(error) not in warned:
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
    except UnknownKeyword as error:  # a store's, given as an option of the command
        said = plain(error, limit=1000)
        if "region_name" in said:
            said = "the store of this URL takes no --region: leave it out"
        warn(f"lockkit {args.name}: {said}")
        return USAGE
    except Exception as error:
        # lockkit's own errors say what, who and what next. Any other is a bug: show its traceback.
        if not type(error).__module__.startswith("lockkit."):
            raise
        warn(f"lockkit {args.name}: {plain(error, limit=1000)}")
        return EXIT_FAILED


def _result(args: argparse.Namespace) -> int:
    try:
        code: int = args.run(args)
    except RuntimeError as error:
        # Python 3.11 wraps what a signal raises while an import makes a dataclass.
        if isinstance(error.__cause__, KeyboardInterrupt | SystemExit):
            raise error.__cause__ from None
        if "can't start new thread" in str(error):
            from lockkit.cli.terminal import CommandError

            raise CommandError(
                "this user or container may start no more threads; end some, or raise its limit "
                "(ulimit -u, or pids.max of its cgroup)"
            ) from None
        raise
    return code


if __name__ == "__main__":
    sys.exit(main())
