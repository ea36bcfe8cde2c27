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
    flag,
    option,
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
    from lockkit.lab.probe.reads import Reads

ABOUT = """\
Tests what a lock depends on: conditional creates and writes, one after another and in races, what
a read returns, and the store's clock. It uses scratch keys and deletes them afterwards. Races can
prove a store unsafe, never safe: more rounds find more. A provider of the matrix is compared with
its documentation; --matrix prints the matrix and sends no request. Several URLs give one table,
which also compares the time of a read with that of a read answered 304 (not modified). Exit 0: no
violation was found; 1: the store is not safe to lock on, and why; 3: the store could not be
tested, because it refused the requests (as with 403 or 501) or did not answer."""

EXAMPLE = """\
lockkit probe s3://bucket/scratch
lockkit probe az://container/scratch --rounds 200 --json
lockkit probe s3://bucket/scratch --endpoint http://node-1:9000 --also http://node-2:9000
lockkit probe s3://b/x=http://127.0.0.1:9000 gs://b/x=http://127.0.0.1:9001 file:///tmp/x
lockkit probe --matrix"""


READS = 40
"""Of each kind and size."""


def add(commands: Any) -> None:
    parser = command(commands, "probe", about=ABOUT, example=EXAMPLE)
    parser.add_argument(
        "urls", metavar="URL", nargs="*",
        help="s3://, gs://, az://, abfss:// or file:///; write URL=ENDPOINT if the stores have "
        "different endpoints",
    )  # fmt: skip
    option(parser, "--rounds", "N", "races of each kind, from 1 to 100000", 50)
    option(parser, "--racers", "N", "writers in each race, from 2 to 256", 16)
    parser.add_argument(
        "--also", metavar="URL", action="append", default=[],
        help="another endpoint of the same store, for example of another node; the writers of "
        "each race are spread over all endpoints (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "--badge",
        metavar="FILE",
        help="write the verdict and its date to FILE, as an SVG, or for *.json as the JSON that "
        "shields.io/badges/endpoint-badge reads",
    )
    flag(parser, "--matrix", "print what each provider documents, and send no request")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    add_store(parser)
    parser.set_defaults(run=run, name="probe", extra="s3,gcs,azure")


def run(args: argparse.Namespace) -> int:
    if args.matrix is bool(args.urls):
        raise CommandError("name a store by its URL, or pass --matrix", code=USAGE)
    if len(args.urls) != 1 and (args.also or args.badge):
        raise CommandError("--also and --badge are about one store: name one URL", code=USAGE)
    if args.matrix:
        return show_matrix(args.json)
    if args.also and args.endpoint is None:
        raise CommandError("--also is a second endpoint: give the first as --endpoint", code=USAGE)
    if len({args.endpoint, *args.also}) <= len(args.also):
        raise CommandError("--also repeats an endpoint: name each one once", code=USAGE)
    if len(args.urls) > 1:
        return compare(args)
    report, known, _ = _probed(args, args.urls[0], reads=0)
    code = show(report, known, args.json)
    if args.badge is not None:
        _save_badge(report, args.badge)
    return code


def _probed(
    args: argparse.Namespace, url: str, reads: int
) -> tuple[Report, ProviderRow | None, list[Reads]]:
    from lockkit.cli.generations import opened
    from lockkit.lab.probe import Suitability, probe
    from lockkit.lab.probe.providers import documented, elsewhere, providers
    from lockkit.lab.probe.reads import compare_reads

    def show_progress(_kind: str, **fields: Any) -> None:
        warn(plain(fields.get("text", "")))

    options, (place, endpoint) = store_options(args), _split(url)
    options |= {} if endpoint is None else {"endpoint": endpoint}
    with ExitStack() as stack:
        store = stack.enter_context(opened(place, options))
        also = [
            stack.enter_context(opened(place, {**options, "endpoint": each})) for each in args.also
        ]
        try:
            report = probe(
                store, rounds=args.rounds, racers=args.racers, also=also, emit=show_progress
            )
        except ValueError as error:
            raise CommandError(f"--{error}", code=USAGE) from None
        timed = reads if report.verdict is not Suitability.REFUSED else 0
        compared = compare_reads(store, requests=timed, emit=show_progress) if timed else []
        return report, documented(place, elsewhere(store), providers()), compared


def _split(url: str) -> tuple[str, str | None]:
    """`URL=ENDPOINT`; an endpoint is http:// or https://."""
    place, sign, endpoint = url.partition("=http")
    return place, f"http{endpoint}" if sign else None


def compare(args: argparse.Namespace) -> int:
    """One row for each store. Exits as for the worst of them."""
    from lockkit.lab.probe.providers import CAPABILITIES

    found = [(url, *_probed(args, url, reads=READS)) for url in args.urls]
    if args.json:
        said = [
            _as_json(report, known) | {"reads": [_timed(each) for each in reads]}
            for _, report, known, reads in found
        ]
        say_json({"stores": said})
    else:
        sizes = [f"{kind} {size}" for size in ("1 KiB", "1 MiB") for kind in ("read", "304")]
        head = ("store", "verdict", *CAPABILITIES.values(), *(f"{each}, ms" for each in sizes))
        rows: list[tuple[Any, ...]] = []
        for url, report, _, reads in found:
            row = _row(report)
            cells = (getattr(row, each) for each in CAPABILITIES)
            times = [f"{each.p50_ms:.2f}" for each in reads] or ["-"] * 4
            rows.append((url, report.verdict.value, *cells, *times))
        say(*table(head, rows), "", f"Times are p50 of {READS} requests, one after another.")
    return max(
        (_exit_code(report) for _, report, _, _ in found), key=(OK, EXIT_FAILED, FOUND).index
    )


def _timed(reads: Reads) -> dict[str, Any]:
    return {
        "bytes": reads.size, "kind": reads.kind, "p50_ms": reads.p50_ms, "p99_ms": reads.p99_ms,
        "unchanged": reads.unchanged, "bytes_received": reads.bytes_each,
    }  # fmt: skip


def _row(report: Report) -> ProviderRow:
    from lockkit.lab.probe.providers import probed

    today = utc(Clock().wall_ms())[:10]
    return probed(report, report.url, as_of=today, source="lockkit probe")


def _exit_code(report: Report) -> int:
    if report.safe:
        return OK
    return EXIT_FAILED if report.untested else FOUND


def _save_badge(report: Report, path: str) -> None:
    from lockkit.lab.probe.badge import badge, endpoint

    draw = endpoint if path.lower().endswith(".json") else badge
    said = draw(report.verdict, as_of=utc(Clock().wall_ms())[:10])
    try:
        Path(path).write_text(said, encoding="utf-8")
    except OSError as error:
        said = f"--badge {plain(path)}: {error.strerror}; name a file that can be written"
        raise CommandError(said, code=USAGE) from None


def _as_json(report: Report, known: ProviderRow | None) -> dict[str, Any]:
    from lockkit.lab.probe.providers import CAPABILITIES, differences

    found = _row(report)
    row = None if known is None else asdict(known) | {"differs": differences(found, known)}
    can = {name: getattr(found, name) for name in CAPABILITIES}
    return report.to_json() | {"as_of": found.as_of, "capabilities": can, "documented": row}


def show(report: Report, known: ProviderRow | None, as_json: bool) -> int:
    from lockkit.lab.probe.providers import compared

    if as_json:
        say_json(_as_json(report, known))
    else:
        rows = [(each.finding.value, each.name, each.because) for each in report.checks]
        say(*table(("finding", "check", "because"), rows), "", plain(report.conclusion, limit=1000))
        if known is not None:
            say(plain(compared(_row(report), known), limit=1000))
    return _exit_code(report)


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
