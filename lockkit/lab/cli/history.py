"""`lockkit history`: the story of a recorded history, or of a bucket's lock object."""

from __future__ import annotations

import argparse
import json
from typing import Any

from lockkit.cli.terminal import (
    OK,
    add_store,
    command,
    count,
    json_line,
    option,
    say,
    store_options,
)
from lockkit.events import narrate
from lockkit.lab.cli.check import events

ABOUT = """\
Prints what happened, one line for each event. It reads a history file (JSON lines), or the
versions of a table's lock object in a bucket that keeps versions. --json prints the events in the
format that lockkit check and the notebooks read."""

EXAMPLE = """\
lockkit history datasets/histories/good/stalled_commit_refused.jsonl
lockkit history s3://bucket/table --json > incident.jsonl"""


def add(commands: Any) -> None:
    parser = command(commands, "history", about=ABOUT, example=EXAMPLE)
    parser.add_argument(
        "source",
        metavar="FILE|URL",
        help="a history file (- for standard input), or the URL of a table",
    )
    parser.add_argument("--json", action="store_true", help="print the events, as JSON lines")
    option(parser, "--newest", "N", "how many versions to read", 200, count)
    add_store(parser)
    parser.set_defaults(run=run, name="history", extra="s3,gcs,azure")


def run(args: argparse.Namespace) -> int:
    from lockkit.cli.generations import opened, story_of
    from lockkit.lock.handle import LOCK_KEY
    from lockkit.table.inspect.versions import as_events, generations

    if "://" in args.source:
        with opened(args.source, store_options(args)) as store:
            kept = generations(store, newest=args.newest)
        found, story = as_events(LOCK_KEY, kept), story_of(kept)
    else:
        found = events(args.source)
        story = narrate(found)
    say(*((json_line(json.loads(each.to_json())) for each in found) if args.json else story))
    return OK
