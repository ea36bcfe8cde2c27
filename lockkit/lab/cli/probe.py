"""`lockkit probe`: is a store safe for locks, and does it behave as documented?"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockkit.cli.terminal import (
    EXIT_FAILED,
    FOUND,
    OK,
    USAGE,
    CommandError,
    add_store,
    command,
    say,
    say_json,
    store_options,
    table,
    warn,
)
from lockkit.clock import Clock, utc
from lockkit.events import plain

if TYPE_CHECKING:
    from lockkit.lab.probe import Report
    from lockkit.lab.probe.providers import ProviderRow

ABOUT = """\
Tries what a lock depends on, on scratch keys that are deleted afterwards: conditional create and
write, one after another and in races; what a read sees; the store's clock. Exit 0: no violation
was found; 1: the store is not safe to lock on, and why; 3: it could not be tested (it refused the
requests, as with 403 or 501, or did not answer). Races can prove a store unsafe, never safe: more
rounds find more. A provider that the matrix knows is compared with its documentation; --matrix
prints that matrix and sends no request."""

EXAMPLE = """\
lockkit probe s3://bucket/scratch
lockkit probe az://container/scratch --rounds 200 --json
lockkit probe s3://bucket/scratch --endpoint http://node-1:9000 --also http://node-2:9000
lockkit probe --matrix"""


def add(commands: Any) -> None:
    parser = command(
        commands, "probe", about=ABOUT, example=EXAMPLE
    )
    parser.add_argument(
        "url", metavar="URL", nargs="?", help="s3://, gs://, az://, abfss:// or file:///"
    )
    parser.add_argument(
        "--rounds", type=int, default=50, help="races of each kind, from 1 to 100000 (default 50)"
    )
    parser.add_argument(
        "--racers", type=int, default=16, help="writers in each race, from 2 to 256 (default 16)"
    )
    parser.add_argument(
        "--also", metavar="URL", action="append", default=[],
        help="another endpoint of the same store, as of another node: the writers of each race are "
        "spread over all (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "--badge", metavar="FILE", help="write the verdict, with its date, to this SVG file"
    )
    parser.add_argument("--matrix", action="store_true", help="what is known of each provider")
    parser.add_argument("--json", action="store_true", help="the report as one JSON object")
    add_store(parser)
    parser.set_defaults(run=run, name="probe", extra="s3,gcs,azure")


def run(args: argparse.Namespace) -> int:
    if args.matrix is (args.url is not None):
        raise CommandError("name one store (URL), or say --matrix", code=USAGE)
    if args.matrix:
        if args.also or args.badge:
            raise CommandError("--matrix probes nothing: leave out --also and --badge", code=USAGE)
        return show_matrix(args.json)
    if args.also and args.endpoint is None:
        raise CommandError("--also is a second endpoint: name the first, --endpoint", code=USAGE)
    if len({args.endpoint, *args.also}) <= len(args.also):
        raise CommandError("--also repeats an endpoint: name each one once", code=USAGE)
    from lockkit.cli.generations import opened
    from lockkit.lab.probe import probe
    from lockkit.lab.probe.providers import documented, elsewhere, providers

    def show_progress(_kind: str, **fields: Any) -> None:
        warn(plain(fields.get("text", "")))

    options = store_options(args)
    with ExitStack() as stack:
        store = stack.enter_context(opened(args.url, options))
        also = [
            stack.enter_context(opened(args.url, {**options, "endpoint": each}))
            for each in args.also
        ]
        try:
            report = probe(
                store, rounds=args.rounds, racers=args.racers, also=also, emit=show_progress
            )
        except ValueError as error:
            raise CommandError(f"--{error}", code=USAGE) from None
        known = documented(args.url, elsewhere(store), providers())
    code = show(report, known, args.json)
    if args.badge is not None:
        _save_badge(report, args.badge)
    return code


def _save_badge(report: Report, path: str) -> None:
    from lockkit.lab.probe.badge import badge

    svg = badge(report.verdict, as_of=utc(Clock().wall_ms())[:10])
    try:
        Path(path).write_text(svg, encoding="utf-8")
    except OSError as error:
        said = f"--badge {plain(path)}: {error.strerror}; name a file that can be written"
        raise CommandError(said, code=USAGE) from None


def show(report: Report, known: ProviderRow | None, as_json: bool) -> int:
    from lockkit.lab.probe.providers import compared, differences, probed

    found = probed(report, report.url, as_of=utc(Clock().wall_ms())[:10], source="lockkit probe")
    if as_json:
        row = None if known is None else asdict(known) | {"differs": differences(found, known)}
        say_json(report.to_json() | {"documented": row})
    else:
        rows = [(each.finding.value, each.name, each.because) for each in report.checks]
        say(*table(("finding", "check", "because"), rows), "", plain(report.conclusion, limit=1000))
        if known is not None:
            say(plain(compared(found, known), limit=1000))
    if report.safe:
        return OK
    return EXIT_FAILED if report.untested else FOUND


def show_matrix(as_json: bool) -> int:
    from lockkit.lab.probe.providers import CAPABILITIES, providers

    rows = providers()
    if as_json:
        say_json([asdict(row) for row in rows])
        return OK
    cells = [
        (row.store, row.basis, *(getattr(row, each) for each in CAPABILITIES), row.verdict or "-",
         row.as_of)
        for row in rows
    ]  # fmt: skip
    say(*table(("store", "basis", *CAPABILITIES.values(), "verdict", "as of"), cells), "")
    said = [(row.store, row.limits_and_traps) for row in rows if row.limits_and_traps]
    say(*table(("store", "limits and traps"), said), "", "Sources: --json.")
    return OK
