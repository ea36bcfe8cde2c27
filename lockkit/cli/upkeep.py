"""`lockkit table clean | cluster | compact | archive | rollback | services`: run table services.

One file because all of them open the services, and report what was done, in the same way.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lockkit.cli.terminal import (
    BUSY,
    OK,
    USAGE,
    CommandError,
    option,
    options_checked,
    report,
    say,
    say_json,
    store_options,
    table,
    warn,
)
from lockkit.clock import Clock
from lockkit.events import plain
from lockkit.table.inspect.words import is_left as is_left
from lockkit.table.inspect.words import sign_of_life as sign_of_life

if TYPE_CHECKING:
    from lockkit.table.occ.condition import PendingInstant, TableCondition
    from lockkit.table.services.service import ServiceRun, TableService
CLEAN = """\
Deletes the files that no reader of the retained commits needs. It writes a plan first; the next
clean finishes an interrupted one. Readers of older snapshots lose their files."""

CLUSTER = """\
Rewrites small files into few larger ones, in one commit. If a writer changed one of them first, it
stops and changes nothing (exit 75). If it is interrupted, it rolls itself back."""

COMPACT = """\
Merges the log files of a merge-on-read table into base files, in one commit, while its writers
continue. If another commit was faster, it stops and changes nothing (exit 75). If it is
interrupted, it rolls itself back. These are the modes of Hudi's HoodieCompactor: with --schedule it
only writes the plan, which stays pending until a process carries it out; with --execute it carries
out a plan that lockkit or Hudi wrote. If that fails, the plan stays; if the process is killed, the
next compaction rolls the plan back."""

ARCHIVE = """\
Moves the oldest completed instants from the timeline to Hudi's archive, so that listings stay
short. Readers find them there. A commit stays on the timeline because of pending writers,
savepoints, or files that no clean has deleted, and with group commit for two hours. If another
archiver was faster, it stops and deletes nothing; run it again."""

ROLLBACK = """\
Rolls back the instants whose writers are dead, and deletes their files. Committed rows stay. With
--instant it refuses if the writer is alive (exit 75). Hudi's compactor and clustering keep no
heartbeat: name their instant, and say with --stopped that no such process runs any more. With
--instant it also removes a damaged plan, or a compaction that nobody has begun."""

SERVICES = """\
Runs the table's services beside its writers, until Ctrl-C. It rolls dead writers back, cleans the
table, clusters it if hoodie.clustering.inline=true, and compacts it if hoodie.compact.inline=true.
The services take the table's lock as a writer does. Do not run it for a table whose writer runs
its own services."""

CLEAN_EXAMPLE = """\
lockkit table clean s3://bucket/table --dry-run
lockkit table clean s3://bucket/table --commits 20"""
CLUSTER_EXAMPLE = "lockkit table cluster s3://bucket/table --small-mb 100 --dry-run"
COMPACT_EXAMPLE = """\
lockkit table compact s3://bucket/table --dry-run
lockkit table compact s3://bucket/table --retries 3
lockkit table compact s3://bucket/table --schedule
lockkit table compact s3://bucket/table --execute --instant 20250106101200123"""
ARCHIVE_EXAMPLE = """\
lockkit table archive s3://bucket/table --dry-run
lockkit table archive s3://bucket/table --keep-min 20 --keep-max 30"""
ROLLBACK_EXAMPLE = """\
lockkit table rollback s3://bucket/table --dry-run
lockkit table rollback s3://bucket/table --instant 20250106101200123"""
SERVICES_EXAMPLE = """\
lockkit table services s3://bucket/table --every-s 60 --set hoodie.clean.commits.retained=20"""


LISTED_MAX = 20
MB = 1024 * 1024
LOCK_TTL_S, LOCK_TIMEOUT_S = 60.0, 60.0


def add(verbs: Any, verb: Callable[..., argparse.ArgumentParser]) -> None:
    parser = verb(verbs, "clean", "delete files of old snapshots", CLEAN, CLEAN_EXAMPLE)
    parser.add_argument("--dry-run", action="store_true", help="only say what would be deleted")
    option(parser, "--commits", "N", "keep the files of the newest N commits", 10)
    parser.set_defaults(run=clean)

    parser = verb(verbs, "cluster", "rewrite small files", CLUSTER, CLUSTER_EXAMPLE)
    parser.add_argument("--dry-run", action="store_true", help="only say what would be rewritten")
    option(parser, "--small-mb", "MB", "rewrite files below this size", 300)
    option(parser, "--target-mb", "MB", "size of a new file", 1024)
    parser.add_argument(
        "--layout", default="free",
        help="free (default), or bucketed: keep each key in the bucket where upserts look for it",
    )  # fmt: skip
    parser.set_defaults(run=cluster)

    parser = verb(verbs, "compact", "merge log files", COMPACT, COMPACT_EXAMPLE)
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--dry-run", action="store_true", help="only say what would be merged")
    option(either, "--retries", "N", "try again N times after a conflict", 0)
    step = parser.add_mutually_exclusive_group()
    step.add_argument("--schedule", action="store_true", help="only write the plan")
    step.add_argument("--execute", action="store_true", help="only carry out a plan")
    parser.add_argument(
        "--instant", metavar="T", default="",
        help="with --execute: the pending compaction to carry out (default: the oldest)",
    )  # fmt: skip
    parser.set_defaults(run=compact)

    parser = verb(verbs, "archive", "archive old instants", ARCHIVE, ARCHIVE_EXAMPLE)
    parser.add_argument("--dry-run", action="store_true", help="only say what would be archived")
    option(parser, "--keep-min", "N", "keep N commits on the timeline", 20)
    option(parser, "--keep-max", "N", "archive only if there are more than N commits", 30)
    parser.set_defaults(run=archive)

    parser = verb(verbs, "rollback", "roll back dead writers", ROLLBACK, ROLLBACK_EXAMPLE)
    option(parser, "--instant", "T", "roll back only this instant (default: every dead one)")
    parser.add_argument(
        "--stopped", action="store_true",
        help="with --instant: its process has ended (Hudi's services keep no heartbeat)",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="only say what would be rolled back")
    parser.set_defaults(run=rollback)

    parser = verb(verbs, "services", "run all services regularly", SERVICES, SERVICES_EXAMPLE)
    option(parser, "--every-s", "S", "seconds between two runs", 60.0)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set one of Hudi's options (repeatable)",
    )
    parser.set_defaults(run=services)


# --- clean, cluster and compact ------------------------------------------------------------------


def clean(args: argparse.Namespace) -> int:
    options = {"hoodie.clean.commits.retained": args.commits}
    with serving(args, options) as service:
        if args.dry_run:
            plan = service.preview_clean()
            _say_files(args, "would be deleted", [path for _, path in plan.files])
            return OK
        try:
            cleaned = service.clean()
        except KeyboardInterrupt:
            warn("lockkit table clean: the next clean deletes the files of this plan")
            raise
    _say_files(args, "deleted", [path for each in cleaned for path in each.deleted])
    return OK


def cluster(args: argparse.Namespace) -> int:
    from lockkit.table.services.rules import LAYOUT_KEY, SMALL_KEY, TARGET_KEY

    options = {
        SMALL_KEY: args.small_mb * MB, TARGET_KEY: args.target_mb * MB, LAYOUT_KEY: args.layout
    }  # fmt: skip
    with serving(args, options) as service:
        if args.dry_run:
            plan = service.preview_cluster()
            _say_files(
                args, "would be rewritten",
                [each.path for group in (plan.groups if plan else ()) for each in group.slices],
            )  # fmt: skip
            return OK
        with _stopped_for_others():
            done = service.cluster()
    if done is None:
        none = "nothing to do: no partition would have fewer files"
        report(args, {"instant": None, "replaced": 0, "files": 0}, none)
    else:
        said = f"{done.instant}: {done.replaced} file groups became {done.files}"
        report(args, asdict(done), said)
    return OK


def compact(args: argparse.Namespace) -> int:
    if args.retries < 0:
        raise CommandError("--retries must be a whole number from 0", code=USAGE)
    if args.instant and not args.execute:
        raise CommandError("--instant goes with --execute", code=USAGE)
    mode = "schedule" if args.schedule else "execute" if args.execute else "scheduleAndExecute"
    with serving(args, {}) as service:
        if args.dry_run:
            plan = service.preview_compact(mode, args.instant)
            _say_files(
                args, "would be merged",
                [path for each in (plan.slices if plan else ()) for path in each.logs],
            )  # fmt: skip
            return OK
        with _stopped_for_others():
            done = service.compact(mode, args.instant, retries=args.retries)
    if done is None:
        none = "nothing to merge: no log files that can be merged now"
        none = "no compaction is pending" if args.execute else none
        report(args, {"instant": None, "groups": 0, "logs": 0, "pending": False}, none)
    else:
        what = "are to be merged" if done.pending else "were merged"
        said = f"{done.instant}: {done.logs} log files of {done.groups} file groups {what}"
        report(args, asdict(done), said)
    return OK


def archive(args: argparse.Namespace) -> int:
    from lockkit.table.errors import RefusedOption
    from lockkit.table.services.archive_rules import ArchiveRules, checked

    with options_checked(RefusedOption):
        rules = checked(ArchiveRules(keep_min=args.keep_min, keep_max=args.keep_max), 0)
    instants, kept_for = list[str](), ""
    with serving(args, {}) as service:
        if args.dry_run:
            plan = service.preview_archive(rules)
            instants, kept_for = list(plan.instants), plan.kept_for
        else:
            while (done := service.archive(rules)) is not None:
                instants += done.instants
            kept_for = service.preview_archive(rules).kept_for
    what = "would be archived" if args.dry_run else "archived"
    fields = {what.replace(" ", "_"): instants, "kept_for": kept_for}
    held = f"; more stay, because {kept_for}" if kept_for else ""
    report(args, fields, f"{len(instants)} instants {what}{held}")
    return OK


@contextmanager
def _stopped_for_others() -> Iterator[None]:
    from lockkit.table.errors import CommitConflict

    try:
        yield
    except CommitConflict as conflict:
        why = f"stopped by another commit; nothing was changed: {plain(conflict, limit=600)}"
        raise CommandError(why, code=BUSY) from None


def _say_files(args: argparse.Namespace, what: str, paths: Sequence[str]) -> None:
    if args.json:
        say_json({what.replace(" ", "_"): list(paths)})
        return
    say(*(f"  {plain(each)}" for each in paths[:LISTED_MAX]))
    if len(paths) > LISTED_MAX:
        say(f"  … and {len(paths) - LISTED_MAX} more (--json has them all)")
    say(f"{len(paths)} files {what}")


# --- rollback ------------------------------------------------------------------------------------


def rollback(args: argparse.Namespace) -> int:
    from lockkit.cli.generations import opened
    from lockkit.runtime import run
    from lockkit.table.occ.executions import is_damaged
    from lockkit.table.occ.rollback import RollbackRefused

    if args.stopped and args.instant is None:
        raise CommandError("--stopped goes with --instant", code=USAGE)
    found = looked_up(args)
    named = None if args.instant is None else _named(args.instant, found, args.stopped)
    if named and named.damaged and found.config.sliced and named.action == "compaction":
        with opened(args.url, store_options(args)) as store:
            run(is_damaged(named.instant, found.config.names), store, Clock())
    if args.dry_run:
        dead = [named] if named else [each for each in found.pending if is_left(each)]
        say(*(pending_lines(dead) if dead else [_none_dead(found)]))
        return OK
    with serving(args, {}) as service:
        only = None if named is None else {named.instant}
        done = service.take_back(only=only, stopped=args.stopped)
    if named and not done:
        raise CommandError(
            f"{named.instant} was not rolled back: its writer is active again, or another process "
            "was faster", code=BUSY,
        )  # fmt: skip
    for each in done:
        if args.json:
            say_json({"instant": each.target, "committed": isinstance(each, RollbackRefused)})
        elif isinstance(each, RollbackRefused):
            say(f"{each.target} is committed: its writer finished first; nothing is to be done")
        else:
            say(f"{each.target} is rolled back: {len(each.deleted)} files deleted")
    if not done and not args.json:
        say(_none_dead(found))
    return OK


def _none_dead(found: TableCondition) -> str:
    hint = f" ({len(found.pending)} pending: lockkit table show)" if found.pending else ""
    return f"no writer left anything behind{hint}"


def _named(instant: str, found: TableCondition, stopped: bool) -> PendingInstant:
    """The pending instant with this name, if it may be rolled back."""
    for each in found.pending:
        if each.instant != instant:
            continue
        if each.action in ("rollback", "clean") and not each.damaged:
            raise CommandError(f"{instant} is a {each.action}: to finish it, leave --instant out")
        if not each.lives or each.given_up or (stopped and each.silent):
            return each
        who, cure = "its writer ", "stop it, and wait until its heartbeat has expired (minutes)"
        if each.silent:
            again = "" if each.damaged else "carry it out with the program that planned it; or, "
            who, cure = "", (f"{again}if no process works on it, roll it back: lockkit table "
                             f"rollback URL --instant {instant} --stopped")  # fmt: skip
        why = f"{instant} is not rolled back: {who}{sign_of_life(each)}; {cure}"
        raise CommandError(why, code=BUSY)
    action = found.timeline.completed.get(instant)
    if action:
        raise CommandError(
            f"{instant} is a completed {action}; a committed instant is never rolled back"
        )
    raise CommandError(
        f"{plain(instant, limit=40)} is not on the timeline: lockkit table show lists it"
    )


# --- services ------------------------------------------------------------------------------------


def services(args: argparse.Namespace) -> int:
    from lockkit.table.services.service import FAILURES

    if not 0 < args.every_s < 1e6:
        raise CommandError("--every-s must be greater than 0", code=USAGE)
    options = {"hoodie.clean.automatic": "true"}
    for each in args.set:
        key, equals, value = each.partition("=")
        if not equals or not key.startswith(("hoodie.", "lockkit.")):
            wrong = f"--set {plain(each, limit=60)}: write KEY=VALUE, with a key of Hudi's"
            raise CommandError(wrong, code=USAGE)
        options[key] = value
    clock = Clock()
    with serving(args, options) as service:
        _say_served(args, service.run())  # a permanent error ends the command here
        while True:
            clock.sleep(args.every_s)
            try:
                _say_served(args, service.run())
            except FAILURES as error:
                warn(f"lockkit table services: {plain(error, limit=600)}; continuing")


def _say_served(args: argparse.Namespace, served: ServiceRun) -> None:
    taken_back = [each.target for each in served.taken_back]
    cleaned = sum(len(each.deleted) for each in served.cleaned)
    if args.json:
        clustered = served.clustered.instant if served.clustered else None
        compacted = served.compacted.instant if served.compacted else None
        archived = len(served.archived.instants) if served.archived else 0
        say_json({"taken_back": taken_back, "cleaned": cleaned, "clustered": clustered,
                  "compacted": compacted, "archived": archived,
                  "yielded": served.yielded})  # fmt: skip
    else:
        joined = f"{served.clustered.replaced} groups joined" if served.clustered else "none joined"
        merged = f", {served.compacted.logs} log files merged" if served.compacted else ""
        moved = f", {len(served.archived.instants)} instants archived" if served.archived else ""
        say(f"served: {len(taken_back)} writers rolled back, {cleaned} files cleaned, "
            f"{joined}{merged}{moved}")  # fmt: skip
    if served.yielded and not args.json:
        say(f"a service stopped because of another commit: {plain(served.yielded, limit=600)}")


# --- shared by them -----------------------------------------------------------------------------


@contextmanager
def serving(args: argparse.Namespace, options: dict[str, Any]) -> Iterator[TableService]:
    """The services in a process of their own; prints their progress."""
    from lockkit.cli.generations import opened
    from lockkit.errors import LockBusy
    from lockkit.table.errors import RefusedOption
    from lockkit.table.format.gate import check_options
    from lockkit.table.occ.concurrency import (
        CONCURRENCY_KEY,
        SHARED,
        SINGLE,
        OptimisticConcurrency,
        concurrency_mode,
    )
    from lockkit.table.occ.locks import open_table_lock
    from lockkit.table.services.rules import service_rules
    from lockkit.table.services.service import TableService

    def progress(_kind: str, *, text: str = "", instant: str = "", **_of: Any) -> None:
        if text and not args.json:
            say(f"{plain(instant, limit=20)} {plain(text)}".strip())

    how = store_options(args)
    how.pop("timeout_s")  # the lock's own requests are bounded by its lease
    with opened(args.url, store_options(args)) as store:
        with options_checked(RefusedOption):
            given = check_options(options)
            rules = service_rules(given, SHARED)
        if concurrency_mode(given) == SINGLE:
            raise CommandError(
                "these services run in another process than the writer, so they need the lock; "
                f"leave {CONCURRENCY_KEY} out", code=USAGE,
            )  # fmt: skip
        concurrency_control = OptimisticConcurrency(open_table_lock(
            args.url, given, clock=Clock(), client="lockkit-table",
            how=None if any(name.startswith("hoodie.write.lock.") for name in given)
            else {"ttl_s": LOCK_TTL_S, "acquire_timeout": LOCK_TIMEOUT_S}, **how,
        ))  # fmt: skip
        try:
            yield TableService(args.url, store, concurrency_control, rules=rules, emit=progress)
        except LockBusy as busy:
            raise CommandError(plain(busy, limit=1000), code=BUSY) from None
        finally:
            concurrency_control.close()


def looked_up(args: argparse.Namespace) -> TableCondition:
    from lockkit.cli.generations import opened
    from lockkit.runtime import run
    from lockkit.table.occ.condition import condition

    with opened(args.url, store_options(args)) as store:
        return run(condition(), store, Clock())


def pending_lines(pending: Sequence[PendingInstant]) -> list[str]:
    rows = [(each.instant, each.action, "inflight" if each.inflight else "requested",
             sign_of_life(each)) for each in pending]  # fmt: skip
    return table(("pending", "action", "state", "writer"), rows)
