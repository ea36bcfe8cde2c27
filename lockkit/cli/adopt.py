"""`lockkit table adopt`: what keeps lockkit from writing a table, and what it can change there."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lockkit.cli.terminal import FOUND, OK, say, say_json, store_options
from lockkit.clock import Clock
from lockkit.events import plain

if TYPE_CHECKING:
    from lockkit.table.services.adopt import Adoption

ABOUT = """\
Prepares a table that Hudi made for lockkit's writers. It lists everything that keeps lockkit from
writing the table, and changes what it can in the table's properties, under the table's lock: it
switches the metadata table off, and sets UTC for new instants. If the table has Hudi's simple
bucket index and its properties do not say so, it records the number of buckets (--buckets), after
it has compared the number with stored keys. Stop Hudi's writers first, unless they use that lock.
It keeps a copy of the old properties. If an obstacle would remain, it changes nothing. It prints
the options that Hudi's writers need beside lockkit. Exit 0: lockkit can write the table (with
--dry-run: as it is now); 1: it cannot."""

EXAMPLE = """\
lockkit table adopt s3://bucket/table --dry-run
lockkit table adopt s3://bucket/table --buckets 256"""


def add(verbs: Any, verb: Callable[..., argparse.ArgumentParser]) -> None:
    parser = verb(
        verbs, "adopt", "prepare a table that Hudi made for lockkit's writers", ABOUT, EXAMPLE
    )
    parser.add_argument(
        "--buckets", type=_buckets, metavar="N",
        help="its writers' hoodie.bucket.index.num.buckets, if they have Hudi's bucket index",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="only show what would change")
    parser.set_defaults(run=adopt)


def _buckets(text: str) -> int:
    from lockkit.table.format.property_keys import BUCKETS_MAX

    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:9]) <= BUCKETS_MAX:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {BUCKETS_MAX}")
    return int(text)


def adopt(args: argparse.Namespace) -> int:
    from lockkit.cli.fence import locked
    from lockkit.cli.generations import opened
    from lockkit.runtime import run
    from lockkit.table.services.adopt import adopt, plan_adoption
    from lockkit.table.services.adopt_buckets import find_buckets
    from lockkit.table.services.refused import with_refused

    with opened(args.url, store_options(args)) as store:
        found: Adoption = run(plan_adoption(), store, Clock())
        buckets = find_buckets(store, Clock(), found.keys, args.buckets)
        found = run(plan_adoption(buckets), store, Clock()) if buckets else found
        found = with_refused(store, Clock(), found)
        ready = found.fixes and not found.obstacles and not args.dry_run
        if ready:
            with locked(args) as lock:
                found = run(adopt(buckets, believe=lock.assert_held), store, Clock())
    if args.json:
        say_json(_as_json(args.url, found))
    else:
        say(*_lines(args.url, found))
    return OK if found.writable else FOUND


def _as_json(url: str, found: Adoption) -> dict[str, Any]:
    from lockkit.table.services.adopt import writer_options

    return {
        "url": url, "writable": found.writable,
        "obstacles": list(found.remaining),
        "fixes": [{"what": each.what, "means": each.means, "changes": dict(each.changes),
                   "blocked": each.blocked} for each in found.fixes],
        "changed": list(found.changed), "writer_options": writer_options(found.then, url),
    }  # fmt: skip


def _lines(url: str, found: Adoption) -> list[str]:
    from lockkit.table.format.properties import from_properties
    from lockkit.table.occ.mode import is_fenced_for_ever
    from lockkit.table.services.adopt import writer_options

    lines = [plain(url)]
    if found.writable:
        lines += ["  lockkit can write this table"]
    for each in found.remaining:
        lines += [f"  lockkit cannot write it: {plain(each, limit=600)}"]
    for fix in found.fixes:
        done = "changed" if found.changed else "can be changed"
        lines += [f"  {done}: {plain(fix.what, limit=200)}", f"    {fix.means}"]
        lines += [f"    not now: {plain(fix.blocked, limit=400)}"] if fix.blocked else []
    lines += ["  in hoodie.properties:"] if found.changed else []
    lines += [f"    {plain(each, limit=200)}" for each in found.changed]
    if not found.changed and found.fixes:
        why = "something else is in the way" if found.obstacles else "leave --dry-run out to do it"
        lines += [f"  nothing was changed: {why}"]
    if found.obstacles:  # an option for its writers now may contradict what is to be done first
        return lines
    options = writer_options(found.then, url)
    if not options and is_fenced_for_ever(from_properties(found.then)):
        return [*lines, "  its mode is fenced, and stays fenced: it is merge-on-read with",
                "  lockkit's buckets, so Hudi's writers must never write it."]  # fmt: skip
    if not options:
        lines += ["  its mode is fenced: Hudi's writers must not write it. Switch the mode first:"]
        return [*lines, f"  lockkit table mode {plain(url)} hudi"]
    lines += ["  options of Hudi's writers beside lockkit. Hudi Streamer and Flink do not read",
              "  hoodie.metadata.enable from the table. Without the option they are refused, from",
              "  version 8 on (in Flink, say metadata.enabled=false):"]
    lines += [f"    {key}={plain(value, limit=100)}" for key, value in options.items()]
    if found.then.get("hoodie.table.version") == "6" and not url.startswith("file:"):
        lines += ["  Hudi 0.14 and 0.15 do not have this lock provider: give them and lockkit the",
                  "  lock of ZooKeeper, DynamoDB or the Hive Metastore."]  # fmt: skip
    return lines
