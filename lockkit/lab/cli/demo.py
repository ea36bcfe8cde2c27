"""`lockkit demo`: concurrent writers, a stall, a takeover, a lost response, the verdict."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockkit.cli.terminal import (
    USAGE,
    CommandError,
    command,
    option,
    options_checked,
    require,
    say,
)
from lockkit.clock import Clock
from lockkit.events import Event, HistoryNarrator, plain
from lockkit.lab.cli.check import code, show
from lockkit.lab.verify.check import Verdict, check

if TYPE_CHECKING:
    from lockkit.lab.processes.fleet import Fleet

ABOUT = """\
Launches writers that commit overlapping orders to one table. It pauses one of them in the middle
of its commit until another writer has taken the lock and published, then resumes it. Next it drops
the response to a write that was applied. It prints what happened and the verdict. With --no-fence
the late writer commits, and the verdict is INVALID. Exit 0: VALID; 1: INVALID; 2: UNKNOWN."""

EXAMPLE = """\
lockkit demo --plain
lockkit demo --no-fence --json verdict.json --html story.html"""

WRITERS_ARE = {
    "connect": "PySpark processes on one Spark Connect server",
    "jvm": "PySpark processes, a JVM each",
    "plain": "plain Python processes",
}
PROVIDERS = ("s3", "gcs", "azure")
TTL_S = 4.0
RENEW_INTERVAL_S = 0.4
STEP_TIMEOUT_S = 180.0
"""For the first step, which waits for Spark; the later ones take a few leases."""
POLL_S = 0.05
SETTLED = ("held", "renewed", "released", "published")

Story = Generator[str, Event, None]
"""Yields what it waits for and is sent what happened, until that is it; acts in between."""


def add(commands: Any) -> None:
    parser = command(commands, "demo", about=ABOUT, example=EXAMPLE)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--plain", dest="kind", action="store_const", const="plain",
        help="plain Python writers (default: PySpark writers on one Spark Connect server)",
    )  # fmt: skip
    kind.add_argument(
        "--jvm", dest="kind", action="store_const", const="jvm",
        help="PySpark writers with a JVM each",
    )  # fmt: skip
    parser.add_argument(
        "--provider", choices=PROVIDERS, default="s3",
        help="the API that the embedded server speaks (default s3)",
    )  # fmt: skip
    option(parser, "--writers", "N", "number of writers, 2 to 8", 3)
    parser.add_argument(
        "--no-fence", dest="fence", action="store_false",
        help="commit without the fence, by the lease alone, as Hudi does",
    )  # fmt: skip
    option(parser, "--json", "FILE", "write the verdict to FILE (- for standard output)")
    option(parser, "--html", "FILE", "write the story and its picture to FILE, as one page")
    option(parser, "--run-dir", "DIR", "keep the history, the logs and the table in DIR")
    parser.set_defaults(run=run, name="demo", extra="s3,table,spark", kind="connect")


def run(args: argparse.Namespace) -> int:
    require(*extras(args.kind != "plain", args.provider))
    from lockkit.lab.processes.fleet import Fleet, FleetError

    if args.writers < 2:
        raise CommandError("a takeover needs two writers: --writers 2 or more", code=USAGE)
    report = print_nothing if args.json == "-" else say
    with options_checked(FleetError):
        fleet = Fleet(
            kind=args.kind, writers=args.writers, provider=args.provider, overlap=1.0, ttl_s=TTL_S,
            renew_interval_s=RENEW_INTERVAL_S, fence=args.fence, run_dir=args.run_dir,
        )  # fmt: skip
    report(
        f"{args.writers} {WRITERS_ARE[args.kind]} rewrite the same files of {fleet.url}, "
        f"the fence {'on' if args.fence else 'OFF'}."
    )
    try:
        try:
            with fleet:
                play(fleet, stall_and_lost_response(fleet), report)
        except CommandError:
            fleet.keep_files()  # the error names a log in them
            raise
        events = fleet.events()
        verdict = check(events)
        result = verdict.to_json() | {
            "fence": args.fence,
            "kind": args.kind,
            "provider": args.provider,
            "events": len(events),
            "commits": sum(each.kind == "published" for each in events),
        }
        export(args, events, verdict, result)
        if args.json != "-":
            show(verdict)
        return code(verdict)
    finally:
        fleet.remove_files()


def extras(spark: bool, provider: str) -> list[str]:
    """The extras that a fleet of such writers needs."""
    return ["demo", *(["spark"] if spark else []), *([provider] if provider != "s3" else [])]


# --- the story -----------------------------------------------------------------------------------


def stall_and_lost_response(fleet: Fleet) -> Story:
    """The script of the demo. It stops the first writer that is about to publish."""
    for each in fleet.writers:
        fleet.stall(each, at="commit")
    late = (yield from until("a writer stopped in its commit", lambda e: e.kind == "stalled")).who
    for each in fleet.writers:
        if each != late:
            fleet.resume(each)  # disarms it; no other writer can get here while the lock is held
    taken = yield from until("a takeover", lambda e: e.who != late and e.kind == "held")
    yield from until(
        f"a commit by {taken.who} or another", lambda e: e.who != late and e.kind == "published"
    )
    fleet.resume(late)
    yield from until(
        f"the end of {late}'s late commit",
        lambda e: e.who == late and e.kind in ("refused", "published"),
    )
    yield from lost_response(fleet)
    yield from until("one more commit", lambda e: e.kind == "published")


def lost_response(fleet: Fleet) -> Story:
    """Drop the answer to the next write of the lock that is applied."""
    fleet.lose_response()
    lost = yield from until("a lost response", lambda e: e.kind == "fault")
    yield from until(
        f"{lost['client']} finding out whether its write was applied",
        lambda e: e.who == lost["client"] and e.kind in SETTLED,
    )


def until(what: str, happened: Callable[[Event], bool]) -> Generator[str, Event, Event]:
    while not happened(each := (yield what)):
        pass
    return each


def play(fleet: Fleet, story: Story, report: Callable[[str], None]) -> None:
    """Send every event to the story and print progress; raise if the story gets stuck."""
    clock, teller = Clock(), HistoryNarrator()
    waits_for, seen = next(story), 0
    deadline_ms = clock.boot_ms() + STEP_TIMEOUT_S * 1000
    while clock.boot_ms() < deadline_ms and (going(fleet) or seen < len(fleet.events())):
        fleet.wait(lambda _: True, POLL_S, since=seen)
        for each in fleet.events(seen):
            seen += 1
            if (line := teller.narrate(each)) is not None:
                report(f"  {line}")
            try:
                before, waits_for = waits_for, story.send(each)
            except StopIteration:
                return
            if waits_for != before:
                deadline_ms = clock.boot_ms() + STEP_TIMEOUT_S * 1000
    why = fleet.error or f"nothing like it within {STEP_TIMEOUT_S:.0f} s"
    remedy = "" if fleet.plan.kind == "plain" else "\nWithout Spark: lockkit demo --plain"
    raise CommandError(f"the demo did not get to {waits_for}: {plain(why, limit=1000)}{remedy}")


def going(fleet: Fleet) -> bool:
    """Whether anything more can happen: the story kills no process, so any error ends it."""
    return fleet.alive and fleet.error is None


# --- what is left of it --------------------------------------------------------------------------


def export(
    args: argparse.Namespace, events: list[Event], verdict: Verdict, result: dict[str, Any]
) -> None:
    try:
        if args.json == "-":
            say(json.dumps(result, default=str))
        elif args.json:
            Path(args.json).write_text(
                json.dumps(result, indent=2, default=str) + "\n", encoding="utf-8"
            )
        if args.html:
            from lockkit.lab.widgets.export import export_html

            export_html(events, verdict, args.html, title="lockkit demo")
    except OSError as error:
        raise CommandError(f"cannot write {plain(error.filename)}: {error.strerror}") from None


def print_nothing(*_lines: str) -> None:
    pass
