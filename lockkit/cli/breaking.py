"""`lockkit lock break`: take a lock from a dead holder, guarded by the version that was shown."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING, Any

from lockkit.cli import service_lock
from lockkit.cli.terminal import (
    BUSY,
    OK,
    USAGE,
    CommandError,
    add_store,
    command,
    flag,
    option,
    report,
    say,
    store_options,
)
from lockkit.clock import Clock
from lockkit.errors import BreakRefused
from lockkit.events import plain
from lockkit.protocol.record import encode

if TYPE_CHECKING:
    from lockkit.table.inspect.standing import LockHolder

WATCH_S = 3.0
ABOUT = """\
Takes the lock from a dead holder, or repairs a lock object that is not a lock record. Without
--version it only shows what it would write. With --version it replaces exactly that version by a
tombstone (a released record), whose epoch is above every known epoch: that of the lock object, of
its old versions, of the table's fence and of earlier breaks. If no epoch is left, the new epoch is
at least the time in milliseconds. It never deletes the object, and it records who broke the lock
in .hoodie/.locks/breaks/.
It refuses (exit 75) if the object has changed, if another program writes it, and while the lease
lasts or is renewed, unless --epoch confirms the epoch of the grant.
A service's lock (zookeeper://, dynamodb://, hive://, azure-lease://, filesystem://) is broken in
the same two steps. If the service shows that the holder is alive, add --force. Exit 0: broken, or
nothing to break."""

EXAMPLE = """\
lockkit lock break s3://bucket/table
lockkit lock break s3://bucket/table --version '"6dd671d9771f97132818793a016605ac"'"""


def add(verbs: Any) -> None:
    parser = command(
        verbs, "break", help="take the lock from a dead holder", about=ABOUT, example=EXAMPLE
    )
    parser.add_argument("url", metavar="URL", help="URL of the table, or of a service's lock")
    option(parser, "--version", "V", "break this version, which the command showed before")
    option(
        parser, "--epoch", "N",
        "break a grant of this epoch although its lease lasts or is renewed", kind=int,
    )  # fmt: skip
    flag(parser, "--force", "break a service's lock although its holder is alive")
    option(
        parser, "--watch-s", "S",
        f"how long to watch a table's lock for renewals (default {WATCH_S:g})", kind=float,
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="JSON, for programs")
    add_store(parser, time_is="limit for all requests together, without the watch")
    parser.set_defaults(run=run, name="lock break", extra="s3,gcs,azure")


def run(args: argparse.Namespace) -> int:
    if service_lock.is_service(args.url):
        return service_lock.break_it(args)
    from lockkit.cli.generations import opened
    from lockkit.runtime import run as carry_out
    from lockkit.stores.within import within
    from lockkit.table.inspect.standing import watch
    from lockkit.table.inspect.takeover import operator_name, take_over
    from lockkit.table.inspect.versions import highest_epoch
    from lockkit.table.inspect.words import lock_lines

    watch_s = WATCH_S if args.watch_s is None else args.watch_s
    if not 0 <= watch_s <= 3600:
        raise CommandError("--watch-s must be a number of seconds from 0 to 3600", code=USAGE)
    if args.force:
        raise CommandError("a table's lock has no --force: type in its --epoch", code=USAGE)
    if args.epoch is not None and args.version is None:
        raise CommandError("--epoch needs the --version that was shown, too", code=USAGE)
    ends = within(watch_s + args.timeout_s)
    with opened(args.url, store_options(args)) as store, ends:
        holder = carry_out(watch(watch_s), store, Clock())
        if not args.json:
            say(plain(args.url), *(f"  {line}" for line in lock_lines(holder)))
        if holder.state in ("absent", "released"):
            report(args, {"broken": False, "why": holder.why}, "nothing to break")
            return OK
        known, source = highest_epoch(store)
        if args.version is None:
            return _preview(args, holder, known, source)
        try:
            done = carry_out(
                take_over(
                    holder, shown=args.version, epoch=args.epoch, by=operator_name(), known=known
                ),
                store,
                Clock(),
            )
        except BreakRefused as refused:
            raise CommandError(plain(refused, limit=600), code=BUSY) from None
    said = {"broken": True, "version": done.version, "epoch": done.epoch, "log": done.log}
    report(args, said, f"broken: the lock is free now, logged as {done.log}")
    return OK


def _preview(args: argparse.Namespace, holder: LockHolder, known: int, source: str) -> int:
    from lockkit.table.inspect.takeover import operator_name, planned

    version = holder.observation.version
    line = shlex.join(["lockkit", "lock", "break", args.url, "--version", str(version)])
    said = {"broken": False, "breakable": holder.breakable, "why": holder.why, "version": version}
    if not holder.breakable:
        report(args, said, "must not be broken now")
        return BUSY
    plan = planned(holder, by=operator_name(), wall_ms=Clock().wall_ms(), known=known)
    if not args.json:
        if holder.state == "garbled":
            say(f"its epoch continues from {known}: {source}" if known else source)
        say(f"it would write  {plain(encode(plan.tombstone).decode())}")
        say(f"and log it as   {plan.log}")
    report(args, said, f"nothing was changed; to break it: {plain(line, limit=1000)}")
    return OK
