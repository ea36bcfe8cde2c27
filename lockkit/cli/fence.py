"""`lockkit table repair-fence | mode | accept-instant | savepoint | restore`: without a commit."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lockkit.cli.terminal import (
    BUSY,
    OK,
    USAGE,
    CommandError,
    report,
    say,
    store_options,
    warn,
)
from lockkit.cli.upkeep import serving
from lockkit.clock import Clock
from lockkit.errors import StoreError
from lockkit.events import plain
from lockkit.runtime import run
from lockkit.table.format.properties import load_config
from lockkit.table.occ.fence import FENCE_KEY

if TYPE_CHECKING:
    from lockkit.lock.handle import Lock
    from lockkit.stores import Store
    from lockkit.table.services.repair import FenceRepair
REPAIR = """\
Restores a fence (.hoodie/.locks/fence.json) that is unreadable or missing, and publishes the
commit that it had decided last. Shows what it would write; --yes writes it, under the table's
lock. It deletes no file. If it cannot determine the last decided commit, it stops and says what to
look for. From the fence of a copy that was made while writers committed, it drops the commits whose
files the copy lacks. Exit 0: repaired, or nothing to repair; 3 if the last decided commit is
unknown."""

REPAIR_EXAMPLE = """\
lockkit table repair-fence s3://bucket/table
lockkit table repair-fence s3://bucket/table --yes"""

MODE = """\
Switches a table between fenced (only lockkit writes it, one commit at a time under the lock), group
(the same, but its writers decide together and take no lock) and hudi (Hudi's writers may write,
too). The switch goes through the fence, so that no paused writer commits in the old mode. Shows
what it would do; --yes does it, under the table's lock. If the switch was interrupted, the same
command finishes it."""

MODE_EXAMPLE = """\
lockkit table mode s3://bucket/table hudi
lockkit table mode s3://bucket/table group --dry-run
lockkit table mode s3://bucket/table group --yes"""

ACCEPT = """\
Lets writers continue after a writer with a wrong clock has taken an instant far in the future. The
commit of that instant stays, and new instants follow it until the clocks have caught up. First
check that this machine's clock is right. Shows what it would do; --yes does it, under the table's
lock."""

ACCEPT_EXAMPLE = """\
lockkit table accept-instant s3://bucket/table 20290106101200128
lockkit table accept-instant s3://bucket/table 20290106101200128 --yes"""

LOCK_TTL_S, LOCK_TIMEOUT_S = 60.0, 60.0


def add(verbs: Any, verb: Callable[..., argparse.ArgumentParser]) -> None:
    parser = verb(verbs, "repair-fence", "restore a broken fence", REPAIR, REPAIR_EXAMPLE)
    parser.add_argument(
        "--decided", metavar="T",
        help="the instant that was decided last, or none; needed if nothing else shows it",
    )  # fmt: skip
    parser.add_argument("--yes", action="store_true", help="do what it shows without --yes")
    parser.set_defaults(run=repair)

    parser = verb(verbs, "mode", "switch between fenced, group and hudi", MODE, MODE_EXAMPLE)
    parser.add_argument("mode", choices=("fenced", "group", "hudi"), help="the mode to switch to")
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--yes", action="store_true", help="do what it shows without --yes")
    either.add_argument("--dry-run", action="store_true", help="only show it, as without --yes")
    parser.set_defaults(run=mode)

    parser = verb(
        verbs,
        "accept-instant",
        "continue after an instant far in the future",
        ACCEPT,
        ACCEPT_EXAMPLE,
    )
    parser.add_argument("instant", metavar="T", help="the newest instant, as the error names it")
    parser.add_argument("--yes", action="store_true", help="do what it shows without --yes")
    parser.set_defaults(run=accept_instant)
    add_savepoint(verbs, verb)


def accept_instant(args: argparse.Namespace) -> int:
    from lockkit.cli.generations import opened
    from lockkit.table.occ.mode import accept, newest_ahead

    with opened(args.url, store_options(args)) as store:
        found = run(newest_ahead(), store, Clock())
        if found is None:
            report(args, {"accepted": False}, "no instant is ahead: nothing to accept")
            return OK
        if not args.json:
            say(f"{plain(args.url)}  {found.action} {found.instant}, {found.hours} hours ahead")
        if not args.yes:
            said = {"accepted": False, "instant": found.instant, "hours_ahead": found.hours}
            report(args, said, "nothing was changed; to accept it, add --yes")
            return OK
        with locked(args) as lock:
            done = run(accept(args.instant, believe=lock.assert_held), store, Clock())
    report(args, {"accepted": done, "instant": args.instant}, "new instants follow it now")
    return OK


def repair(args: argparse.Namespace) -> int:
    from lockkit.cli.generations import opened
    from lockkit.table.services.repair import carry_out

    with opened(args.url, store_options(args)) as store:
        plan = _planned(store, args.decided)
        if plan is None:
            return _sound(args)
        said = {"broken": plan.broken, "source": plan.source, "publishes": plan.publishes}
        if not args.json:
            say(*_lines(args.url, plan))
        if not args.yes:
            report(args, {"repaired": False} | said, "nothing was changed; to do it, add --yes")
            return OK
        with locked(args) as lock:
            plan = _planned(store, args.decided)  # what it would do now, under the lock
            if plan is None:
                return _sound(args)
            forward = run(carry_out(plan, lock.fence, believe=lock.assert_held), store, Clock())
    visible = f"; {', '.join(forward)} is visible now" if forward else ""
    report(args, {"repaired": True, "published": list(forward)} | said, f"repaired{visible}")
    return OK


def _sound(args: argparse.Namespace) -> int:
    report(args, {"repaired": False}, "the fence is sound: nothing to repair")
    return OK


def _planned(store: Store, decided: str | None) -> FenceRepair | None:
    from lockkit.table.services.repair import plan_repair

    return run(plan_repair(_kept(store), said=decided), store, Clock())


def _kept(store: Store) -> list[bytes]:
    """Old versions of the fence, newest first; empty if they cannot be listed."""
    from lockkit.table.services.repair import VERSIONS_MAX

    try:
        found = [each for each in store.versions(FENCE_KEY) if not each.deleted]
        return [store.get_version(FENCE_KEY, each) for each in found[:VERSIONS_MAX]]
    except StoreError as error:
        warn(f"old versions of the fence cannot be listed: {plain(error, limit=200)}")
        return []


def _lines(url: str, plan: FenceRepair) -> list[str]:
    return [
        plain(url),
        f"  the fence    {plain(plan.broken, limit=200)}",
        f"  made from    {plan.source}",
        f"  last decided {plan.publishes or 'only what readers see already'}",
        *([f"  would make   {plan.publishes} visible"] if plan.publishes else []),
    ]


def mode(args: argparse.Namespace) -> int:
    from lockkit.cli.generations import opened
    from lockkit.table.occ.mode import refuse_switch, switch_mode

    with opened(args.url, store_options(args)) as store:
        config, _ = run(load_config(), store, Clock())
        now = config.commit_mode
        if not args.yes:
            run(refuse_switch(config, args.mode), store, Clock())
            if not args.json:
                say(f"{plain(args.url)}  mode {now}", *steps(now, args.mode))
            done = {"mode": now, "switched": False}
            report(args, done, "nothing was changed; to do it, add --yes")
            return OK
        with locked(args) as lock:
            way = switch_mode(args.mode, lock.fence, believe=lock.assert_held)
            switched = run(way, store, Clock())
    said = "the table is in that mode now" if switched else "the table was in that mode already"
    report(args, {"mode": args.mode, "switched": switched}, f"{args.mode}: {said}")
    return OK


def steps(now: str, then: str) -> list[str]:
    """What a switch does, in its order."""
    found = []
    if now == then:
        found.append(f"the table is in the mode {then}; an unfinished switch would be finished")
    if now == "group" and then != "group":
        found += ["close the fence: offers are refused, and what was decided is published",
                  "replace the fence by that of the mode fenced"]  # fmt: skip
    if then == "hudi" and now != "hudi":
        found.append("publish the fence's last decision, and close the fence. A fenced writer "
                     "under way is refused")  # fmt: skip
    if now == "hudi" and then != "hudi":
        found.append("open the fence (refused while a commit is in progress). Stop Hudi's writers "
                     "first: they ignore it")  # fmt: skip
    if then == "group" and now != "group":
        found.append("publish the fence's last decision")
        found.append("replace the fence by one of group commit. A writer under way is refused, and "
                     "so is every lockkit older than group commit")  # fmt: skip
    if now != then:
        found.append(f"set the properties to {then}")
    return [f"  {number}. {each}" for number, each in enumerate(found, 1)]


@contextmanager
def locked(args: argparse.Namespace) -> Iterator[Lock]:
    from lockkit.lock.handle import Lock

    how = store_options(args)
    how.pop("timeout_s")  # the lock's own requests are bounded by its lease
    with closing(Lock(args.url, ttl_s=LOCK_TTL_S, client="lockkit-table", **how)) as lock:
        if not lock.acquire(timeout=LOCK_TIMEOUT_S):
            raise CommandError(plain(lock.busy_reason(), limit=1000), code=BUSY)
        try:
            yield lock
        finally:
            lock.release()


# --- savepoints -----------------------------------------------------------------------------------


SAVEPOINT = """\
Keeps the files of a commit, by default of the newest one, so that the table can be restored to it.
Cleans and archiving keep them until the savepoint is deleted. Hudi and lockkit can restore each
other's savepoints."""

RESTORE = """\
Removes every commit after a savepoint, for all readers and for good. Shows what would go; --yes
does it, under the table's lock. Stop the table's writers first: a pending commit is refused. If it
is interrupted, nobody can read or write the table until the same command has finished it.
Exit 75 if the lock is held."""

SAVEPOINT_EXAMPLE = """\
lockkit table savepoint s3://bucket/table --comment 'before the migration'
lockkit table savepoint s3://bucket/table --delete 20250106101200123"""
RESTORE_EXAMPLE = """\
lockkit table restore s3://bucket/table 20250106101200123
lockkit table restore s3://bucket/table 20250106101200123 --yes"""


def add_savepoint(verbs: Any, verb: Callable[..., argparse.ArgumentParser]) -> None:
    parser = verb(verbs, "savepoint", "keep a commit's files", SAVEPOINT, SAVEPOINT_EXAMPLE)
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--instant", default="", metavar="T", help="the commit (default: newest)")
    either.add_argument("--delete", metavar="T", help="delete this savepoint; the commit stays")
    parser.add_argument("--comment", default="", metavar="TEXT", help="stored in the savepoint")
    parser.set_defaults(run=savepoint)

    parser = verb(verbs, "restore", "take back commits", RESTORE, RESTORE_EXAMPLE)
    parser.add_argument("savepoint", metavar="T", help="the savepoint's instant")
    parser.add_argument("--yes", action="store_true", help="do it")
    parser.set_defaults(run=restore)


def savepoint(args: argparse.Namespace) -> int:
    if args.delete is not None and args.comment:
        raise CommandError("--comment is not for --delete", code=USAGE)
    with serving(args, {}) as service:
        if args.delete is not None:
            deleted = service.delete_savepoint(args.delete)
            what = "is deleted" if deleted else "is no savepoint: nothing was deleted"
            report(args, {"deleted": deleted}, f"{plain(args.delete, limit=40)} {what}")
            return OK
        done = service.save(args.instant, user="", comment=args.comment)
    report(args, asdict(done), f"{done.instant} is a savepoint: {done.files} files stay")
    return OK


def restore(args: argparse.Namespace) -> int:
    with serving(args, {}) as service:
        if not args.yes:
            gone = [each for each, _ in service.preview_restore(args.savepoint).instants]
            if not args.json:
                say(*(f"  {each} would be taken back" for each in gone))
            report(args, {"would_take_back": gone}, "nothing was changed; to do it, add --yes")
            return OK
        done = service.restore(args.savepoint)
    fields = {"instant": done.instant, "taken_back": list(done.taken_back), "files": done.files}
    report(args, fields, f"restored to {done.savepoint}: {len(done.taken_back)} commits are gone, "
           f"{done.files} files deleted")  # fmt: skip
    return OK
