"""`lockkit table`: inspect a table, or run its services (`upkeep`)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lockkit.cli import adopt, fence, upkeep
from lockkit.cli.terminal import (
    FOUND,
    OK,
    add_store,
    command,
    completed,
    count,
    option,
    say,
    say_json,
    store_options,
    table,
)
from lockkit.cli.upkeep import is_left, looked_up, pending_lines
from lockkit.clock import Clock
from lockkit.events import clock_time, plain
from lockkit.table.occ.condition import held_in
from lockkit.table.occ.fence import NO_INSTANT

if TYPE_CHECKING:
    from lockkit.table.format.timeline import Timeline
    from lockkit.table.occ.condition import HeldBack, TableCondition
    from lockkit.table.occ.fence import Decided
    from lockkit.table.occ.group.decision import GroupFence

ABOUT = "Shows a table, runs its services, rolls dead writers back, or repairs it."

SHOW = """\
Shows the mode and version of the table, its latest instants, the pending ones and whether their
writers are alive, the last decision of the fence, and the instant that holds incremental readers
back (table version 6), and why writes are refused. It only reads. Exit 0; 1 if a dead writer left
an instant pending, or a file or the timeline keeps writes away."""

SHOW_EXAMPLE = """\
lockkit table show s3://bucket/table
lockkit table show az://container/table --json"""


def add(commands: Any) -> None:
    top = command(commands, "table", about=ABOUT, example=SHOW_EXAMPLE)
    verbs = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    parser = _verb(verbs, "show", "show mode, instants and active writers", SHOW, SHOW_EXAMPLE)
    option(parser, "--newest", "N", "how many instants to show", 10, count)
    parser.set_defaults(run=show)

    upkeep.add(verbs, _verb)
    fence.add(verbs, _verb)
    adopt.add(verbs, _verb)


def _verb(verbs: Any, name: str, help: str, about: str, example: str) -> argparse.ArgumentParser:
    parser = command(verbs, name, help=help, about=about, example=example)
    parser.add_argument(
        "url", metavar="URL", help="URL of the table: s3://, gs://, az://, abfss://, file:///"
    )
    parser.add_argument("--json", action="store_true", help="JSON, for programs")
    add_store(parser)
    parser.set_defaults(name=f"table {name}", extra="s3,gcs,azure")
    return parser


# --- show ----------------------------------------------------------------------------------------


def show(args: argparse.Namespace) -> int:
    from lockkit.cli.generations import opened
    from lockkit.table.services.refused import refused_writes

    found = looked_up(args)
    with opened(args.url, store_options(args)) as store:
        refused = refused_writes(store, Clock(), found.config, found=found)
    held = held_in(found)
    newest = list(found.timeline.completed.items())[::-1][: max(0, args.newest)]
    if args.json:
        say_json({**_as_json(args.url, found, newest, held),
                  "refused": [completed(each) for each in refused]})  # fmt: skip
    else:
        config, head = found.config, found.fence.head if found.fence else None
        say(
            f"{plain(args.url)}  table {plain(config.name, limit=60)}",
            f"  mode     {config.commit_mode}, version {config.version}, {config.buckets} buckets",
            f"  key      {config.record_key}, partitioned by {config.partition_by or 'nothing'}",
        )
        if found.fence and head:
            say(f"  fence    {_decided(head)}, epoch {found.fence.epoch}")
        if found.group:
            say(f"  fence    {_decided_together(found.group, found.timeline)}")
        times = found.timeline.completion
        rows = [(each, action, times.get(each, "")) for each, action in newest]
        if rows:
            say("", *table(("newest", "action", "completed"), rows))
        elif not found.timeline.completed:
            say("", "no instants yet")
        if saved := sorted(found.timeline.savepoints):
            say("", f"savepoints: {', '.join(saved)}")
        if found.pending:
            say("", *pending_lines(found.pending))
            say(*(f"  {plain(each.damaged, limit=600)}" for each in found.pending
                  if each.damaged and each.damaged not in refused))  # fmt: skip
        if refused:
            say("", "writes are refused:", *(f"  {plain(each, limit=600)}" for each in refused))
        if held:
            say("", f"incremental readers are {held.describe(plain(args.url))}")
    left = any(is_left(each) or each.damaged for each in found.pending)
    return FOUND if left or refused else OK


def _decided_together(fence: GroupFence, now: Timeline) -> str:
    """A fence of group commit, in words."""
    commits = [each.instant for each in fence.window if each.kind == "commit"]
    hidden = [each for each in commits if each not in now.completed]
    latest = f"{commits[-1]} was committed last" if commits else "nothing is committed"
    waits = f"; not visible yet: {', '.join(hidden[:5])}" if hidden else ""
    if fence.closed:
        waits += "; closed: the table is restored, or its mode switched (the same command finishes)"
    return f"group commit, {fence.last} decisions in {fence.round} rounds; {latest}{waits}"


def _decided(head: Decided) -> str:
    """The last decision of a fence, in words."""
    match head.kind:
        case "closed":
            return "closed: the table is leaving the fenced mode (lockkit table mode)"
        case "rollback" if head.instant == NO_INSTANT:
            return "opened or repaired, and nothing was decided since"
        case "commit":
            return f"{head.instant} was committed last"
        case _:
            return f"{head.instant} was rolled back last"


def _as_json(
    url: str, found: TableCondition, newest: Sequence[tuple[str, str]], held: HeldBack | None
) -> dict[str, Any]:
    config, fence = found.config, found.fence
    return {
        "url": url, "table": config.name, "mode": config.commit_mode, "version": config.version,
        "fence": None if fence is None else {
            "epoch": fence.epoch, "kind": fence.head.kind, "instant": fence.head.instant},
        "group": None if found.group is None else {
            "decisions": found.group.last, "rounds": found.group.round,
            "newest": found.group.newest},
        "newest": [
            {"instant": each, "action": action, "completion": found.timeline.completion.get(each)}
            for each, action in newest],
        "savepoints": sorted(found.timeline.savepoints),
        "pending": [
            {"instant": each.instant, "action": each.action, "inflight": each.inflight,
             "lives": each.lives, "ended": each.heartbeat.ended, "age_ms": each.age_ms,
             "heartbeat": each.heartbeat.version is not None, "holder": each.heartbeat.holder,
             "damaged": completed(each.damaged)}
            for each in found.pending],
        "held_back": None if held is None else {
            "instant": held.instant, "since": held.since, "alive": held.alive,
            "last_beat": None if held.last_beat_ms is None else clock_time(held.last_beat_ms),
            "waiting": held.waiting, "text": completed(held.describe(url))},
    }  # fmt: skip
