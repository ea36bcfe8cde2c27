"""`lockkit bench`: repeatable measurements of a store."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lockkit.cli.terminal import (
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
from lockkit.events import plain

if TYPE_CHECKING:
    from lockkit.stores import Store

ABOUT = """\
Measures a store. conditional-get compares a read that is answered 304 (not modified) with a read
of the whole object."""

READS_ABOUT = """\
Measures how much cheaper it is to ask whether an object has changed (GET If-None-Match, answered
304) than to read it again (a full GET). One client sends the two kinds in turns, on scratch
objects that are deleted afterwards; the result is the p50, the p99 and the requests per second.
Without a URL it measures the embedded server in this process, as a demonstration. Exit 0:
measured; 3: the store did not answer or refused the requests."""

READS_EXAMPLE = """\
lockkit bench conditional-get
lockkit bench conditional-get s3://bucket/scratch --requests 500 --sizes 400,1000000 --json"""
REQUESTS_MAX = 100_000


def add(commands: Any) -> None:
    parser = command(commands, "bench", about=ABOUT, example=READS_EXAMPLE)
    kinds = parser.add_subparsers(title="commands", metavar="WHAT", required=True)
    reads = command(
        kinds, "conditional-get", help="compare a 304 with a full GET", about=READS_ABOUT,
        example=READS_EXAMPLE,
    )  # fmt: skip
    reads.add_argument(
        "url", metavar="URL", nargs="?", help="s3://, gs://, az://, abfss:// or file:///"
    )
    option(reads, "--requests", "N", "requests of each kind", 200)
    option(reads, "--sizes", "BYTES", "sizes of the objects", "1024,1048576")
    flag(reads, "--json", "print the measurements as one JSON object")
    add_store(reads)
    reads.set_defaults(run=run, name="bench conditional-get", extra="s3,gcs,azure")


def run(args: argparse.Namespace) -> int:
    from lockkit.lab.probe.reads import compare_reads, saved

    sizes = sizes_of(args.sizes)
    if not 1 <= args.requests <= REQUESTS_MAX:
        raise CommandError(f"--requests must be from 1 to {REQUESTS_MAX}", code=USAGE)

    def report(_kind: str, **fields: Any) -> None:
        warn(plain(fields.get("text", "")))

    with somewhere(args) as store:
        warn(f"reading {plain(store.url)}: {args.requests} of each kind, sizes {args.sizes} bytes")
        reads = compare_reads(store, requests=args.requests, sizes=sizes, emit=report)
        if args.json:
            rows = [
                {**asdict(each), "p50_ms": each.p50_ms, "p99_ms": each.p99_ms, "per_s": each.per_s}
                for each in reads
            ]
            say_json({"url": store.url, "reads": rows, "conclusion": saved(reads)})
            return OK
    cells = [
        (each.size, each.kind, each.unchanged, round(each.p50_ms, 2), round(each.p99_ms, 2),
         round(each.per_s), round(each.bytes_each))
        for each in reads
    ]  # fmt: skip
    head = ("bytes", "read", "answered 304", "p50 ms", "p99 ms", "requests/s", "bytes received")
    say(*table(head, cells), "", saved(reads))
    return OK


def sizes_of(text: str) -> list[int]:
    from lockkit.lab.probe.reads import SIZE_BYTES_MAX

    words = text.split(",")
    if not all(word.isdecimal() and 0 < int(word[:12]) <= SIZE_BYTES_MAX for word in words):
        raise CommandError(
            f"cannot read --sizes {plain(text)!r}: numbers of bytes up to {SIZE_BYTES_MAX}, "
            "separated by commas", code=USAGE,
        )  # fmt: skip
    return [int(word) for word in words]


@contextmanager
def somewhere(args: argparse.Namespace) -> Iterator[Store]:
    """The store that was named, or the embedded server."""
    from lockkit.cli.generations import opened

    if args.url is not None:
        with opened(args.url, store_options(args)) as store:
            yield store
        return
    from lockkit.lab.server import Emulator

    with Emulator() as emulator:
        options = store_options(args) | {"endpoint": emulator.s3}
        with opened("s3://demonstration/bench", options) as store:
            yield store
