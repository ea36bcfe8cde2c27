"""`lockkit probe`: is a store safe to lock on?"""

from __future__ import annotations

import argparse
from typing import Any

from lockkit.commands.terminal import (
    FOUND,
    OK,
    add_store,
    command,
    say,
    say_json,
    store_options,
    table,
    warn,
)
from lockkit.history import plain

ABOUT = """\
Tries what a lock depends on, on scratch keys that are deleted afterwards: conditional create and
write, one after another and in races; what a read sees; the store's clock. Exit 0: safe to lock on;
1: not (it says why); 3: it could not be asked. Races convict, they never acquit."""

EXAMPLE = """\
lockkit probe s3://bucket/scratch
lockkit probe az://container/scratch --rounds 200 --json"""


def add(commands: Any) -> None:
    parser = command(
        commands, "probe", help="is this store safe to lock on?", about=ABOUT, example=EXAMPLE
    )
    parser.add_argument("url", metavar="URL", help="s3://, gs://, az://, abfss:// or file:///")
    parser.add_argument("--rounds", type=int, default=50, help="races of each kind (default 50)")
    parser.add_argument("--racers", type=int, default=16, help="clients in each (default 16)")
    parser.add_argument("--json", action="store_true", help="the report as one JSON object")
    add_store(parser)
    parser.set_defaults(run=run, name="probe", extra="s3,gcs,azure")


def run(args: argparse.Namespace) -> int:
    from lockkit.commands.generations import opened
    from lockkit.probe import probe

    def tell(_kind: str, **fields: Any) -> None:
        warn(plain(fields.get("text", "")))

    with opened(args.url, store_options(args)) as store:
        report = probe(store, rounds=args.rounds, racers=args.racers, emit=tell)
    if args.json:
        say_json(report.to_json())
    else:
        rows = [(each.finding.value, each.name, each.because) for each in report.checks]
        say(*table(("finding", "check", "because"), rows), "", plain(report.conclusion, limit=1000))
    return OK if report.safe else FOUND
