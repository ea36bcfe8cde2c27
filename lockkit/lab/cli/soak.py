"""`lockkit soak`: writers on one table for minutes or hours, under many kinds of faults; judged."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockkit.cli.shipped import ROOT, located
from lockkit.cli.terminal import (
    FOUND,
    OK,
    UNKNOWN,
    USAGE,
    CommandError,
    command,
    option,
    options_checked,
    require,
    say,
    warn,
)
from lockkit.clock import Clock
from lockkit.events import plain
from lockkit.lab.cli.check import show
from lockkit.lab.cli.demo import extras
from lockkit.lab.verify.check import Kind

if TYPE_CHECKING:
    from lockkit.lab.processes.fleet import Fleet
    from lockkit.lab.soak.run import SoakOutcome

ABOUT = """\
Launches real writers on one table of the embedded server, with a reader and the table services
beside them, and injects the faults of a plan: stalls (SIGSTOP), kills (SIGKILL) and relaunches,
wrong clocks, kills of the server, lost responses, late writes, bursts of 429 and 5xx. Prints the
verdict on the whole history, the injected faults and the rare events that occurred. Ctrl-C and
SIGTERM end it early, with the verdict on the history so far.
Exit 0: the verdict is VALID, a rare event occurred, the table is readable and no process is left;
1: one of these fails; 2: UNKNOWN."""

EXAMPLE = """\
lockkit soak --minutes 10
lockkit soak --minutes 60 --writers 5 --spark 1 --html soak.html --json soak.json
lockkit soak --minutes 10 --fence off --until-invalid"""

PLAN = "datasets/soaks/everything.json"
PROVIDERS = ("s3", "gcs", "azure")
PROGRESS_S = 15.0


def add(commands: Any) -> None:
    parser = command(commands, "soak", about=ABOUT, example=EXAMPLE)
    add, number = parser.add_argument, partial(option, parser)
    number("--minutes", "N", "length of the run", 10.0)
    number("--writers", "W", "number of writers, 1 to 8", 4)
    number("--spark", "N", "how many of them use PySpark", 0)
    add("--faults", metavar="PLAN", help=f"the plan of faults (default {PLAN})")
    add("--fence", choices=("on", "off"), default="on",
        help="off: commit without the fence, as Hudi does (default on)")  # fmt: skip
    add("--commit", choices=("serial", "group"), help="group: one writer decides for several, and "
        "without --faults such a writer is killed each minute; serial: commits take turns under "
        "the table's lock (default group; serial with --spark or --fence off)")
    add("--until-invalid", action="store_true", help="stop at the first proof of damage")
    add("--provider", choices=PROVIDERS, default="s3", help="the server's API (default s3)")
    number("--ttl-s", "S", "length of the lease", 4.0)
    number("--latency-ms", "MS", "delay of a request", 60.0)
    number("--overlap", "P", "chance that a round rewrites the rows that all writers share", 0.4)
    number("--pause-s", "S", "pause between two rounds", 1.0)
    add("--json", metavar="FILE", help="write the outcome to FILE (- for standard output)")
    add("--html", metavar="FILE", help="write the report to FILE, as one page")
    add("--run-dir", metavar="DIR", help="keep history, logs and samples of memory in DIR")
    parser.set_defaults(run=run, name="soak", extra="s3,table,spark")


def run(args: argparse.Namespace) -> int:
    require(*extras(args.spark > 0, args.provider))
    from lockkit.lab.faults import FaultError
    from lockkit.lab.soak.plan import SoakPlan
    from lockkit.lab.soak.run import SoakFailed, soak
    from lockkit.lab.soak.supervisor import SoakSettings

    if not 0 < args.minutes <= 24 * 60:
        why = f"--minutes must be above 0 and at most 1440, not {args.minutes:g}"
        raise CommandError(why, code=USAGE)
    if not 0 <= args.spark <= args.writers:
        why = f"--spark must be 0 to {args.writers} (--writers), not {args.spark}"
        raise CommandError(why, code=USAGE)
    try:
        soak_plan = SoakPlan.load(located(args.faults) if args.faults else ROOT / PLAN)
    except FaultError as error:
        raise CommandError(f"this plan cannot be used: {plain(error, limit=600)}") from None
    for file in filter(None, (args.json if args.json != "-" else None, args.html)):
        if not Path(file).parent.is_dir():  # said now, and not after an hour
            raise CommandError(
                f"cannot write {plain(file)}: there is no folder {Path(file).parent}"
            )
    run_dir = Path(args.run_dir).resolve() if args.run_dir else None
    if run_dir and (run_dir / "store.sqlite").exists():
        raise CommandError(f"{run_dir} has the files of another soak; choose another folder")
    say_progress = Progress()
    fleet = fleet_of(args, run_dir)
    plan = fleet.plan
    unfit = args.spark > 0 or args.fence == "off"
    commit = args.commit or ("serial" if unfit else "group")
    if commit == "group":
        if unfit:
            why = "--commit group takes neither --spark nor --fence off"
            raise CommandError(why, code=USAGE)
        if not args.faults:
            soak_plan = soak_plan.with_combiner_killed()
    settings = SoakSettings(plan=soak_plan.to_json(), spark=args.spark, commit=commit)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        say_progress(
            f"{args.writers} writers ({args.spark} of them PySpark) on {plan.url} for "
            f"{args.minutes:g} minutes, the fence {args.fence.upper()}; all files: {plan.run_dir}"
        )
        outcome = soak(
            plan, settings, seconds=args.minutes * 60, until_invalid=args.until_invalid,
            report=say_progress,
        )  # fmt: skip
        export(args, fleet.run_dir, outcome)
    except (SoakFailed, OSError) as error:
        fleet.keep_files()  # the error names a log in them
        raise CommandError(
            f"the soak ended early: {plain(error, limit=1000)}"
        ) from None
    finally:
        signal.signal(signal.SIGTERM, before)
        fleet.remove_files()
    if outcome.verdict.kind is Kind.UNKNOWN:
        return UNKNOWN
    return OK if outcome.passed else FOUND


def fleet_of(args: argparse.Namespace, run_dir: Path | None) -> Fleet:
    from lockkit.lab.processes.fleet import Fleet, FleetError

    with options_checked(FleetError):
        return Fleet(
            run_dir=run_dir, writers=args.writers, provider=args.provider, overlap=args.overlap,
            ttl_s=args.ttl_s, renew_interval_s=args.ttl_s / 10, fence=args.fence == "on",
            latency_ms=args.latency_ms, pause_s=args.pause_s,
        )  # fmt: skip


class Progress:
    """Lines on standard error, with the time since the start; figures only now and then."""

    def __init__(self) -> None:
        self._clock = Clock()
        self._began_ms = self._clock.boot_ms()
        self._said_ms = float("-inf")

    def __call__(self, line: str) -> None:
        now_ms = self._clock.boot_ms()
        figures = line[:1].isdigit() and "commits" in line
        if figures and now_ms - self._said_ms < PROGRESS_S * 1000:
            return
        if figures:
            self._said_ms = now_ms
        warn(f"{(now_ms - self._began_ms) / 1000:7.1f} s  {plain(line, limit=600)}")


def export(args: argparse.Namespace, run_dir: Path, outcome: SoakOutcome) -> None:
    said = json.dumps(outcome.to_json(), indent=2, default=str) + "\n"
    if args.json == "-":
        sys.stdout.write(said)
    else:
        print_outcome(outcome)
        if args.json:
            Path(args.json).write_text(said, encoding="utf-8")
    if args.html:
        from lockkit.lab.soak.page import write_page

        write_page(run_dir, outcome, Path(args.html))


def print_outcome(outcome: SoakOutcome) -> None:
    show(outcome.verdict)
    made = sum(outcome.made.values())
    say(f"{outcome.minutes:.1f} minutes, {outcome.commits} acknowledged commits, {made} faults of "
        f"{len(outcome.made)} kinds that met {outcome.clients} clients:")  # fmt: skip
    say(*(f"  {count:6}  {plain(kind)}" for kind, count in outcome.made.items()))
    reached = ", ".join(outcome.verdict.reached) or "nothing, so it proves little: run it longer"
    say(f"reached: {reached}")
    for each in outcome.memory:
        slope = "" if each.slope_mb_h is None else f", {each.slope_mb_h:+.1f} MB/h"
        say(f"memory of {each.who}: {each.first_mb:.0f} to {each.last_mb:.0f} MB within "
            f"{each.lived_s / 60:.0f} minutes of one process{slope}")  # fmt: skip
    say(f"{outcome.orphans} processes still run, {len(outcome.ended)} ended by themselves")
    if outcome.rows is None:
        say(f"the table cannot be read any more: {plain(outcome.unread, limit=600)}")
    else:
        say(f"the table has {outcome.rows} rows (read after a restart of the server)")
