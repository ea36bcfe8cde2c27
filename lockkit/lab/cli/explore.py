"""`lockkit explore`: switch each rule off, and find the shortest story that goes wrong."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lockkit.cli.terminal import FOUND, OK, USAGE, CommandError, command, flag, say, say_json
from lockkit.events import plain

if TYPE_CHECKING:
    from lockkit.lab.verify.explore import SearchScenario

ABOUT = """\
Searches all orders of events within small bounds, with clients that run the protocol's own code.
With every rule on it expects no violation. With one rule off it expects a violation, and prints
the shortest. Exit 0: as expected; 1: a violation with every rule on, or none where one is known."""

EXAMPLE = """\
lockkit explore --row "fence off" --story
lockkit explore --json | python -m json.tool --json-lines"""


def add(commands: Any) -> None:
    parser = command(commands, "explore", about=ABOUT, example=EXAMPLE)
    flag(parser, "--json", "print a line of JSON per row: rule, violation, steps, states, seconds")
    parser.add_argument(
        "--row", action="append", metavar="NAME",
        help="search only this row (repeatable); a wrong name lists them all",
    )  # fmt: skip
    parser.add_argument(
        "--big", action="store_true",
        help="search within wider bounds, with all rules on (some minutes, 2 GB of memory)",
    )  # fmt: skip
    parser.add_argument("--story", action="store_true", help="print each counterexample as a story")
    parser.set_defaults(run=run, name="explore", extra="")


def run(args: argparse.Namespace) -> int:
    from lockkit.lab.verify.explore import BIG, SCENARIOS, explore

    as_expected = True
    for scenario in chosen(BIG if args.big else SCENARIOS, args.row):
        row = explore(scenario)
        as_expected &= row.as_expected
        if args.json:
            say_json(row.to_json())
            continue
        off = row.scenario.off or "all rules on"
        found = f"{row.violation} ({row.steps} steps)" if row.violation else "no violation"
        say(f"{row.scenario.name}: {off}", f"  {found}; {row.states} states, {row.seconds:.1f} s")
        if row.counterexample and args.story:
            say(*(f"  {line}" for line in row.counterexample.story()))
        if not row.as_expected:
            say("  NOT AS EXPECTED")
    return OK if as_expected else FOUND


def chosen(
    scenarios: Sequence[SearchScenario], names: list[str] | None
) -> Sequence[SearchScenario]:
    unknown = set(names or ()) - {each.name for each in scenarios}
    if unknown:
        known = ", ".join(each.name for each in scenarios)
        wrong = f"there is no search {plain(min(unknown))!r}; choose from: {known}"
        raise CommandError(wrong, code=USAGE)
    return [each for each in scenarios if not names or each.name in names]
