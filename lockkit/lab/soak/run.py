"""Runs a soak: starts its supervisor, waits for it, and judges the history."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lockkit.clock import Clock
from lockkit.errors import StatedError, StoreError, TableError
from lockkit.events import Event, event
from lockkit.lab.processes.child import ChildProcess, Said, last_words
from lockkit.lab.processes.fleet import Plan, leftovers
from lockkit.lab.processes.process import FLEET
from lockkit.lab.processes.supervisor import PROFILES
from lockkit.lab.server import Emulator
from lockkit.lab.soak import tally
from lockkit.lab.soak.observer import looked_at
from lockkit.lab.soak.supervisor import SoakSettings
from lockkit.lab.verify.check import Finding, Kind, Verdict, both, check, replay
from lockkit.lab.verify.check.replay import asks_for_lock
from lockkit.runtime import run as carry_out
from lockkit.stores import open_store
from lockkit.table import Snapshot, load_snapshot, read_table

STOP_S, KILL_S = 60.0, 5.0
GRACE_S = 15.0
CHECK_EVERY_S = 10.0
POLL_S = 0.5

ONE_HEAP = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "131072"}
"""For glibc: the resident memory then shows what a process uses, without fragmented heaps."""

Report = Callable[[str], None]


class SoakFailed(StatedError):
    """A soak that could not start or end."""


@dataclass(slots=True)
class SoakOutcome:
    """The outcome of one soak."""

    verdict: Verdict
    minutes: float
    fence: bool
    commits: int
    made: dict[str, int]
    clients: int
    memory: list[tally.Growth]
    orphans: int
    ended: list[str] = field(default_factory=list)
    """Processes that ended by themselves, each with its last output."""
    rows: int | None = None
    """Of the table, read by a server that was started anew on the file; None: it cannot be read."""
    unread: str = ""

    @property
    def passed(self) -> bool:
        """Whether the soak has results, and all are good."""
        well = self.verdict.kind is Kind.VALID and not self.orphans and self.rows is not None
        return well and bool(self.verdict.reached)

    def to_json(self) -> dict[str, Any]:
        return self.verdict.to_json() | {
            "passed": self.passed,
            "minutes": round(self.minutes, 2),
            "fence": self.fence,
            "commits": self.commits,
            "faults": sum(self.made.values()),
            "kinds": len(self.made),
            "made": self.made,
            "clients_met": self.clients,
            "memory": tally.as_json(self.memory),
            "orphans": self.orphans,
            "ended_by_themselves": self.ended,
            "rows": self.rows,
            "unread": self.unread,
        }


def soak(
    plan: Plan, settings: SoakSettings, *, seconds: float, until_invalid: bool = False,
    report: Report = lambda _line: None,
) -> SoakOutcome:  # fmt: skip
    """Run the soak and check its history; Ctrl-C ends it early. Raises `SoakFailed`."""
    run_dir, clock = Path(plan.run_dir), Clock()
    run_dir.mkdir(parents=True, exist_ok=True)
    session = SoakSession(plan, settings, report)
    began_ms = clock.boot_ms()
    try:
        session.wait(seconds, run_dir if until_invalid else None)
    except KeyboardInterrupt:
        report("interrupted: what there is will be judged")
    finally:
        lasted_s = (clock.boot_ms() - began_ms) / 1000
        session.stop()
    orphans = len(leftovers(plan.fleet))
    if session.broken:
        raise SoakFailed("the soak", f"ended too soon: {session.broken}", f"see {session.log}")
    report("judging")
    return judge(plan, lasted_s / 60, session.ended, orphans)


def judge(plan: Plan, minutes: float, ended: list[str], orphans: int) -> SoakOutcome:
    run_dir = Path(plan.run_dir)
    rows, unread, last_look = read_again(plan)
    history = [*tally.history(run_dir), *last_look]
    return SoakOutcome(
        verdict=verdict_of(history, minutes),
        minutes=minutes,
        fence=plan.fence,
        commits=sum(each.kind == "published" for each in tally.events_of(run_dir)),
        made=dict(tally.made(tally.events_of(run_dir)).most_common()),
        clients=tally.clients_met(tally.events_of(run_dir)),
        memory=tally.growth(run_dir),
        orphans=orphans,
        ended=ended,
        rows=rows,
        unread=unread,
    )


def verdict_of(history: list[Event], minutes: float) -> Verdict:
    """UNKNOWN if no commit was made. The lock is judged if somebody asked for it."""
    found = check(history)
    if asks_for_lock(history):
        found = both(found, replay(history))
    if any(each.kind == "published" for each in history):
        return found
    because = (
        f"no commit was acknowledged within {minutes * 60:.0f} s, so there is nothing to judge; "
        "run it longer (--minutes), or read its writers' logs (--run-dir)"
    )
    nothing = Finding("a commit was acknowledged", Kind.UNKNOWN, because)
    return both(Verdict(Kind.UNKNOWN, because, (), (nothing,)), found)


def read_again(plan: Plan) -> tuple[int | None, str, list[Event]]:
    """Start a server on the file and read the table's rows; or say why there are none.

    Also returns the look itself, which must contain every acknowledged commit.
    """
    clock = Clock()
    with Emulator(
        db=str(Path(plan.run_dir) / "store.sqlite"),
        profile=plan.profile or PROFILES[plan.provider],
    ) as server:
        store = open_store(plan.url, endpoint=getattr(server, plan.provider), client="reader")
        try:
            began_ms = clock.stamp_ms()
            snapshot: Snapshot = carry_out(load_snapshot(), store, clock)
            rows = read_table(store).num_rows if snapshot.groups else 0
        except (TableError, StoreError) as error:
            return None, f"{type(error).__name__}: {error}", []
        else:
            reading = event(
                clock.stamp_ms(), "reader", "saw", began_ms=began_ms, groups=looked_at(snapshot)
            )
            return rows, "", [reading]
        finally:
            store.close()


class SoakSession:
    """The supervisor's process, seen from the one that started it."""

    def __init__(self, plan: Plan, settings: SoakSettings, report: Report) -> None:
        self.ended: list[str] = []
        self.broken = ""
        self._report = report
        self._clock = Clock()
        self._fleet = plan.fleet
        self._folder = f"{Path(plan.run_dir)}/"
        self.log = Path(plan.run_dir) / "supervisor.log"
        self._over = threading.Event()
        self._stopping = False
        self._supervisor = ChildProcess(
            "lockkit.lab.soak.supervisor", {"plan": asdict(plan), "soak": asdict(settings)},
            log=self.log, env=os.environ | ONE_HEAP | {FLEET: plan.fleet}, session=True,
        )  # fmt: skip
        self._supervisor.listen(self._hear)

    def wait(self, seconds: float, judged: Path | None) -> None:
        """Wait until the time is over; or, if `judged` is its folder, until it is INVALID."""
        began_ms = checked_ms = self._clock.boot_ms()
        while not self._over.is_set() and self._clock.boot_ms() - began_ms < seconds * 1000:
            self._clock.wait(self._over, POLL_S)
            if judged and self._clock.boot_ms() - checked_ms > CHECK_EVERY_S * 1000:
                if check(tally.history(judged)).kind is Kind.INVALID:
                    self._report("INVALID: that is enough")
                    return
                checked_ms = self._clock.boot_ms()

    def stop(self) -> None:
        """Let running writers end their round, then end everything."""
        self._stopping = not self._over.is_set()
        self._supervisor.send(do="stop", grace_s=GRACE_S)
        process = self._supervisor.process
        try:
            code = process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()  # the kernel's parent-death signal ends what it owned
            code = process.wait(KILL_S)
        if not self._stopping and not self.broken:
            said = last_words(self.log)
            self.broken = f"the supervisor ended with code {code}: {said}"

    def _hear(self, said: Said | None) -> None:
        if said is None:
            self._over.set()
        elif isinstance(said, Event):
            return
        elif (why := said.get("error")) is not None:
            self._hear_error(str(why))
        elif "made" in said:
            faults = sum(said["made"].values())
            self._report(f"{said['commits']} commits, {faults} faults of {len(said['made'])} kinds")

    def _hear_error(self, why: str) -> None:
        if why.startswith(("writer ", "the Spark ")):
            self.ended.append(why.replace(self._folder, ""))  # a report is passed on to others
            self._report(why)
        else:
            self.broken = why
