"""A command's output: text for people, lines of JSON for programs.

A message of the library can only say `lockkit lock break URL`. For a self-hosted server that
command would contact Amazon, so the endpoint and the region are added. Credentials never are.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TextIO
from urllib.parse import urlsplit, urlunsplit

from lockkit.cli import COMMANDS
from lockkit.errors import masked
from lockkit.events import Event, HistoryNarrator, plain
from lockkit.events import clock_time as clock_time

if TYPE_CHECKING:
    from lockkit.lab.faults import Faulty
_COMMAND = r"(\blockkit (?:lock (?:show|watch|break)|table [a-z-]+|probe|incident)) "
_ACQUIRE = r"(\blockkit lock acquire) "
_OF_A_STATE = r"(\blockkit tflock (?:show|lock|unlock|force-unlock|run|move)) "
_WORKSPACE = re.compile(r" --workspace(-key-prefix)? \S+")
"""Flags that only a state's lock has."""
_TIMEOUT = re.compile(r" --timeout-s \S+")
"""Of each request; `acquire` has no such flag."""
TIMEOUT_S = 10.0
"""The default of --timeout-s, which is not repeated."""


def store_flags(endpoint: str | None, region: str | None = None) -> str:
    """` --endpoint URL --region NAME`, quoted for a shell; "" where neither was given."""
    found = ""
    if endpoint:
        try:
            parts = urlsplit(endpoint)
            bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        except ValueError:  # it is no URL, as the command says
            bare = endpoint.rpartition("@")[2]
        found += f" --endpoint {shlex.quote(bare)}"
    return found + (f" --region {shlex.quote(region)}" if region else "")


def flags_of(args: argparse.Namespace) -> str:
    """Every flag of a command that selects its server, its object, or how it connects."""
    found = store_flags(getattr(args, "endpoint", None), getattr(args, "region", None))
    for name, default in (
        ("workspace", "default"), ("workspace_key_prefix", "env:"), ("faults", None),
        ("timeout_s", TIMEOUT_S),
    ):  # fmt: skip
        value = getattr(args, name, None)
        if value not in (None, default):
            said = f"{value:g}" if isinstance(value, float) else str(value)
            found += f" --{name.replace('_', '-')} {shlex.quote(said)}"
    return found


def address_of(args: argparse.Namespace) -> tuple[str, str]:
    """The URL that a command was given, and its flags; ("", "") for a command without one."""
    url = getattr(args, "url", None) or next(iter(getattr(args, "source", None) or ()), "")
    if not isinstance(url, str) or "://" not in url or not hasattr(args, "endpoint"):
        return "", ""
    return masked(url.rstrip("/")), flags_of(args)


def pasteable(text: str, url: str, flags: str) -> str:
    """The text, in which each command of lockkit about `URL` or this URL has both."""
    if not url:
        return text
    others = _WORKSPACE.sub("", flags)
    text = _whole(_ACQUIRE, text, url, _TIMEOUT.sub("", others))
    return _whole(_OF_A_STATE, _whole(_COMMAND, text, url, others), url, flags)


def _whole(command: str, text: str, url: str, flags: str) -> str:
    place = f"(?:URL|{re.escape(shlex.quote(url))}|{re.escape(url)})/?"
    ends = r"(?![\w/.-])" + (f"(?!{re.escape(flags)})" if flags else "")
    whole = f"{shlex.quote(url)}{flags}"
    return re.sub(command + place + ends, lambda found: f"{found[1]} {whole}", text)


# Exit codes. A finding has its own code, so that a script can distinguish it from a failure.
OK = 0
FOUND = 1
UNKNOWN = 2
EXIT_FAILED = 3
USAGE = 64
BUSY = 75
LOST = 76
INTERRUPTED = 130
BROKEN_PIPE = 141

SECONDS_MAX = 1e7
COUNT_MAX = 1_000_000


NEEDS = {
    "s3": ("boto3",),
    "gcs": ("google.cloud.storage",),
    "azure": ("azure.storage.blob",),
    "demo": ("boto3", "fastavro", "psutil", "pyarrow"),
    "table": ("fastavro", "pyarrow"),
    "spark": ("fastavro", "grpc", "pandas", "psutil", "pyarrow", "pyspark"),
    "lab": ("anywidget", "boto3", "ipywidgets", "jupyterlab", "plotly", "psutil", "pyarrow"),
}
"""The modules of each extra that a command needs to start."""


class CommandError(Exception):
    """A command cannot continue: what, who, and what next, in one or two lines."""

    def __init__(self, message: str, *, code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.code = code


@contextmanager
def options_checked(*errors: type[Exception]) -> Iterator[None]:
    """Within the block, these errors say that an option of the command is wrong."""
    try:
        yield
    except errors as error:
        raise CommandError(plain(error, limit=1000), code=USAGE) from None


def require(*extras: str) -> None:
    """Raises `CommandError`, which names the missing modules and the command that installs them."""
    needed = {module for extra in extras for module in NEEDS[extra]}
    if missing := sorted(module for module in needed if not _installed(module)):
        wanted = ",".join(extra for extra in extras if set(NEEDS[extra]) & set(missing))
        raise CommandError(
            f"not installed: {', '.join(missing)}; run: python -m pip install 'lockkit[{wanted}]'"
        )


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its package is missing, too
        return False


def seconds(text: str) -> float:
    """The type of an option that is a time; refuses `nan` and `inf`."""
    value = _number(float, text)
    if not 0 <= value <= SECONDS_MAX:
        raise argparse.ArgumentTypeError(
            f"must be a number of seconds from 0 to {SECONDS_MAX:.0f}, not {plain(text)}"
        )
    return value


def seconds_above_0(text: str) -> float:
    if not (value := seconds(text)):
        raise argparse.ArgumentTypeError("must be more than 0 seconds")
    return value


def count(text: str) -> int:
    """The type of an option that is a count."""
    value = int(_number(int, text))
    if not 0 <= value <= COUNT_MAX:
        raise argparse.ArgumentTypeError(
            f"must be a whole number from 0 to {COUNT_MAX}, not {plain(text)}"
        )
    return value


def _number(kind: type[float], text: str) -> float:
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, not {plain(text)}") from None


_address = ("", "")
"""The URL and the flags of the command that runs; see `pasteable`."""


@contextmanager
def addressed(args: argparse.Namespace) -> Iterator[None]:
    """Within the block, printed commands get this command's URL and its options."""
    global _address
    before, _address = _address, address_of(args)
    try:
        yield
    finally:
        _address = before


def completed(text: str) -> str:
    """The text with this command's URL and options added to each command in it."""
    return pasteable(text, *_address)


def say(*lines: str) -> None:
    """Print lines for people on standard output, and flush."""
    for line in lines:
        _print(completed(line))


def say_json(value: Any) -> None:
    """Print one line of JSON for programs."""
    _print(json_line(value))


def json_line(value: Any) -> str:
    """One line of JSON without credentials."""
    return json.dumps(_masked(value), separators=(", ", ": "))


def _masked(value: Any) -> Any:
    """Each text by itself: in a line of JSON a password would seem to go on into what follows."""
    match value:
        case dict():
            return {masked(str(key)): _masked(each) for key, each in value.items()}
        case list() | tuple():
            return [_masked(each) for each in value]
        case None | bool() | int() | float():
            return value
        case _:
            return masked(str(value))


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        sys.stdout = emptied(sys.stdout)
        raise CommandError(f"standard output cannot be written: {error.strerror}") from None


def report(args: argparse.Namespace, fields: Mapping[str, Any], *lines: str) -> None:
    """Print the fields and the command's URL as JSON with --json, else the lines."""
    if args.json:
        say_json({"url": args.url, **fields})
    else:
        say(*lines)


def warn(line: str) -> None:
    """Print a line on standard error. One that cannot be said changes neither work nor exit code.

    The disk may be full, or the reader of a pipe gone.
    """
    try:
        print(completed(line), file=sys.stderr, flush=True)
    except OSError:
        sys.stderr = emptied(sys.stderr)


def emptied(stream: TextIO) -> TextIO:
    """The stream without what could not be written: Python tries that again, and exits with 120."""
    return open(stream.fileno(), "w", encoding="utf-8", errors="backslashreplace", closefd=False)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Lines with columns as wide as their widest cell; numbers are aligned to the right."""
    right = [
        bool(rows) and all(isinstance(row[i], int | float) for row in rows)
        for i in range(len(head))
    ]
    lines = [list(head), *([plain(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    ]


def command(
    commands: Any, name: str, *, about: str, example: str, help: str = ""
) -> argparse.ArgumentParser:
    """Add a sub-command whose --help ends with an example to paste.

    `help` is its line in the list of commands. For a top-level command that line is in `COMMANDS`.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help or COMMANDS[name],
        description=about,
        epilog="example:\n" + "\n".join(f"  {line}" for line in example.splitlines()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def option(
    parser: Any, name: str, metavar: str, help: str, default: Any = None, kind: Any = None
) -> None:
    """Add an option with a value. Its help names its default; `kind` is the default's type."""
    if default is not None:
        kind = kind or type(default)
        help += f" (default {default:g})" if isinstance(default, float) else f" (default {default})"
    parser.add_argument(name, metavar=metavar, type=kind, default=default, help=help)


def flag(parser: Any, name: str, help: str) -> None:
    """Add an option without a value."""
    parser.add_argument(name, action="store_true", help=help)


def add_store(
    parser: argparse.ArgumentParser, *, per_request: bool = True, time_is: str = "limit per request"
) -> None:
    """Options of a command that talks to a store. A lock chooses its own time per request."""
    parser.add_argument(
        "--endpoint", metavar="URL", help="address of a server other than the provider's own"
    )
    parser.add_argument("--region", metavar="NAME", help="region of an S3 bucket")
    parser.add_argument(
        "--faults",
        metavar="FILE",
        help="inject the faults of this plan into requests (see datasets/faultplans)",
    )
    if per_request:
        parser.add_argument(
            "--timeout-s", type=seconds_above_0, default=10.0, metavar="S",
            help=f"{time_is} (default 10)",
        )  # fmt: skip


def store_options(args: argparse.Namespace) -> dict[str, Any]:
    given = {
        "endpoint": args.endpoint,
        "region_name": args.region,
        "timeout_s": getattr(args, "timeout_s", None),
        "faults": faulty(args.faults) if args.faults else None,
    }
    return {name: value for name, value in given.items() if value is not None}


def faulty(path: str) -> Faulty:
    """Injects a file's plan of faults below the SDK, and prints each fault on standard error."""
    from lockkit.cli.shipped import located
    from lockkit.clock import Clock
    from lockkit.lab.faults import FaultError, FaultPlan, Faulty

    try:
        plan = FaultPlan.load(located(path))
    except FaultError as error:
        raise CommandError(plain(error), code=USAGE) from None
    teller = HistoryNarrator(Clock().wall_ms())

    def report(each: Event) -> None:
        if said := teller.narrate(each):
            warn(said)

    return Faulty(plan, on_fault=report)
