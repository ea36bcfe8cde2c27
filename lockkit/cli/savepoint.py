"""`lockkit table savepoint | restore`: keep a commit, and take back those after it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from lockkit.cli.terminal import OK, USAGE, CommandError, report, say
from lockkit.cli.upkeep import serving
from lockkit.events import plain

SAVEPOINT = """\
Keeps the files of a commit, by default of the newest one, so that the table can be restored to it.
Cleans and archiving spare them until the savepoint is deleted. Hudi knows these savepoints, and
this command those of Hudi."""

RESTORE = """\
Takes back every commit after a savepoint, for all readers and for good. Shows what would go; --yes
does it, under the table's lock. Stop the table's writers first: a pending commit is refused. If it
is interrupted, nobody can read or write the table until the same command has finished it.
Exit 75 if the lock is held."""

SAVEPOINT_EXAMPLE = """\
lockkit table savepoint s3://bucket/table --comment 'before the migration'
lockkit table savepoint s3://bucket/table --delete 20250106101200123"""
RESTORE_EXAMPLE = """\
lockkit table restore s3://bucket/table 20250106101200123
lockkit table restore s3://bucket/table 20250106101200123 --yes"""


def add(verbs: Any, verb: Callable[..., argparse.ArgumentParser]) -> None:
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
    report(args, {"instant": done.instant, "files": done.files},
           f"{done.instant} is a savepoint: {done.files} files stay")  # fmt: skip
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
