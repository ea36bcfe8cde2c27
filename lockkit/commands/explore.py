"""`lockkit explore`: each rule switched off, and the shortest story in which that goes wrong."""

from __future__ import annotations

import argparse
from typing import Any

from lockkit.commands.terminal import command

ABOUT = """\
Searches, exhaustively within small bounds, what clients that run the protocol's own step can be led
into; first with every rule on (no violation is expected), then with each rule off (the shortest
violation is). Exit 0: as expected; 1: a violation with all rules on, or none where one is known."""

EXAMPLE = """\
lockkit explore
lockkit explore --json | python -m json.tool --json-lines"""


def add(commands: Any) -> None:
    parser = command(
        commands,
        "explore",
        help="the rules, and what happens without",
        about=ABOUT,
        example=EXAMPLE,
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="a line per row: rule, violation, steps, states, seconds",
    )
    parser.set_defaults(run=run, name="explore", extra="")


def run(args: argparse.Namespace) -> int:
    raise NotImplementedError
