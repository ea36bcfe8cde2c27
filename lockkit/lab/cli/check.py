"""`lockkit check`: the verdict on a recorded history."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import IO, Any

from lockkit.cli.shipped import located
from lockkit.cli.terminal import (
    FOUND,
    OK,
    UNKNOWN,
    CommandError,
    clock_time,
    command,
    say,
    say_json,
)
from lockkit.events import KINDS, LINE_BYTES_MAX, Event, HistoryError, plain, read
from lockkit.lab.verify.check import Kind, Verdict, check

ABOUT = """\
Judges a recorded history (JSON lines, as lockkit demo, soak and simulate write them). It checks
that there was at most one holder at a time, that epochs rose, and that no commit was lost or
stale. Exit 0: VALID; 1: INVALID; 2: UNKNOWN."""

EXAMPLE = """\
lockkit check history.jsonl
lockkit demo --run-dir run; lockkit check run/history.jsonl --json"""

EVIDENCE_MAX = 12


def add(commands: Any) -> None:
    parser = command(commands, "check", about=ABOUT, example=EXAMPLE)
    parser.add_argument("file", metavar="FILE", help="a history file; - for standard input")
    parser.add_argument("--json", action="store_true", help="print the verdict as one JSON object")
    parser.set_defaults(run=run, name="check", extra="")


def run(args: argparse.Namespace) -> int:
    verdict = check(events(args.file))
    if args.json:
        say_json(verdict.to_json())
    else:
        show(verdict)
    return code(verdict)


def events(name: str) -> list[Event]:
    """A history from a file; a corrupt line is named, with its number."""
    if name == "-":
        return list(read(bounded(sys.stdin)))
    try:
        with located(name).open(encoding="utf-8") as file:
            return list(read(bounded(file)))
    except HistoryError as error:
        raise CommandError(f"{plain(name)}: {plain(error)}") from None
    except UnicodeDecodeError:
        raise CommandError(f"{plain(name)} is not UTF-8 text; a history is JSON lines") from None
    except OSError as error:
        raise CommandError(f"cannot read {plain(name)}: {error.strerror}") from None


def bounded(file: IO[str]) -> Iterator[str]:
    """Lines of a file, none of which is read further than one character past the limit."""
    while line := file.readline(LINE_BYTES_MAX + 1):
        yield line


def code(verdict: Verdict) -> int:
    return {Kind.VALID: OK, Kind.INVALID: FOUND, Kind.UNKNOWN: UNKNOWN}[verdict.kind]


def show(verdict: Verdict) -> None:
    say(f"{verdict.kind}: {plain(verdict.because, limit=1000)}")
    for each in verdict.evidence[:EVIDENCE_MAX]:
        named = {name: each[name] for name in KINDS[each.kind] if each[name] != ""}
        fields = " ".join(f"{name}={plain(value, limit=60)}" for name, value in named.items())
        say(f"  {clock_time(each.at_ms)}  {plain(each.who, limit=20)}  {each.kind}  {fields}")
    if len(verdict.evidence) > EVIDENCE_MAX:
        say(f"  … and {len(verdict.evidence) - EVIDENCE_MAX} more (--json has them all)")
