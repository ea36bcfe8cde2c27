"""A writer that is dead or only seems dead: what it leaves, and who may roll it back."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from lockkit.errors import LockLost
from lockkit.events import Event, shortened
from lockkit.lab.course.grid import grid
from lockkit.lab.course.table_testbed import TableTestbed, TestbedWriter, seen
from lockkit.table import Prepared
from lockkit.table.errors import CommitConflict, HeartbeatExpired
from lockkit.table.occ.conflicting import OwnChanges
from lockkit.table.occ.failed import failed_writes
from lockkit.table.occ.heartbeat_rules import HeartbeatRules, Policy
from lockkit.table.occ.liveness import HeartbeatRead, end
from lockkit.table.occ.markers import MARKERS, early_conflict, mark
from lockkit.table.occ.rollback import RolledBack
from lockkit.table.read.opening import load_snapshot
from lockkit.table.read.snapshot import Snapshot
from lockkit.table.services.rules import ServiceRules

STALL_S = 300.0
PAUSE_S, GONE_WITHIN_S = 100.0, 300.0
UNDER_WAY_S = 6.0
TORN, WHOLE, REFUSED = (
    "a commit whose file is missing", "W1's commit, with its rows", "no commit: W1 was refused",
)  # fmt: skip
GUESSES = (WHOLE, TORN, REFUSED)
SAVED, WASTED = "the service gives up, and W1 commits", "W1's work is lost"
RACE_GUESSES = (SAVED, WASTED)
AGES_S = (0, 60, 110, 130, 600)
POLICIES: tuple[Policy, ...] = ("EAGER", "LAZY", "NEVER")

_MEANS = (
    (r"\.hoodie/\d+\.commit\.requested", "this instant is in use", "the rollback, at its end"),
    (r"\.hoodie/\d+\.inflight", "the exact content of the commit", "the client that rolls it back"),
    (r"\.hoodie/\.heartbeat/\d+", "its writer was alive at this object's date",
     "its writer, or a service that finds it expired"),
    (r"\.hoodie/\.temp/\d+/.*", "written first: this file is about to be written",
     "the commit or the rollback"),
    (r".*_\d+\.parquet", "rows that no reader sees", "the client that rolls it back"),
)  # fmt: skip


# --- a writer that resumes in the middle of a commit ----------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WokenWriter:
    """A writer that was paused inside its commit, was rolled back meanwhile, and resumed."""

    reported: str
    """The answer that it got."""
    reader: str
    """What a reader then got."""
    again: str
    """What a reader got after it began again; empty if it had no reason to."""
    events: tuple[Event, ...]
    verdict: Any

    def __str__(self) -> str:
        if self.reported.startswith("refused"):
            return REFUSED
        return TORN if self.reader.startswith("an error") else WHOLE

    def __repr__(self) -> str:
        again = f"\nAfter W1 began again: {self.again}" if self.again else ""
        return shortened(f"W1's answer: {self.reported}\nA reader got: {self.reader}{again}")


def wake(fence: bool) -> WokenWriter:
    """Pause W1 for five minutes between its last check and the write that publishes."""
    with TableTestbed() as testbed:
        slow, other = testbed.writer("W1"), testbed.writer("W2")
        slow.publish(slow.insert(["k1", "k2"], 1))
        prepared = slow.insert(["k3"], 3)

        def meanwhile() -> None:
            testbed.clock.leap(STALL_S)
            other.service().take_back()

        slow.stop_at("checked", meanwhile)
        reported, again = _published(slow, prepared, fence=None if fence else False), ""
        reader = seen(testbed)
        if reported.startswith("refused"):
            slow.publish(slow.insert(["k3"], 3))
            again = seen(testbed)
        return WokenWriter(reported=reported, reader=reader, again=again,
                     events=tuple(testbed.events), verdict=testbed.verdict)  # fmt: skip


def _published(writer: TestbedWriter, prepared: Prepared, fence: bool | None = None) -> str:
    """Publish; try once more after a refusal, because it may only mean a lost lock."""
    for tries in range(2):
        try:
            writer.publish(prepared, fence=fence)
        except LockLost as refused:
            reported = f"refused{', twice' * tries}: {refused}"
        else:
            return "committed"
    return reported


# --- what it leaves -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InstantRemains:
    """The objects of one instant."""

    rows: tuple[tuple[str, str, str], ...]
    """Rows of key, meaning, and who deletes it."""

    def __str__(self) -> str:
        return f"{len(self.rows)} objects"

    def __repr__(self) -> str:
        lines = (f"{shortened(key):60} {means}; deleted by {who}" for key, means, who in self.rows)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = ("object", "what it says", "who deletes it, if W1 is dead")
        return grid("rows", head, self.rows)


def remains() -> InstantRemains:
    """W1 writes its file and dies before its commit."""
    with TableTestbed() as testbed:
        instant = testbed.writer("W1").insert(["k1"], 1).instant
        return InstantRemains(tuple((key, *_meaning(key)) for key in testbed.files(instant)))


def _meaning(key: str) -> tuple[str, str]:
    return next((means, who) for kind, means, who in _MEANS if re.fullmatch(kind, key))


@dataclass(frozen=True, slots=True)
class HeartbeatAges:
    """Whether a service may roll back a silent writer, by its last beat and the policy."""

    rows: tuple[tuple[str, ...], ...]

    def dead(self, age_s: int, policy: Policy) -> bool:
        row = next(each for each in self.rows if each[0] == f"{age_s} s")
        return row[1 + POLICIES.index(policy)] == TAKEN

    def __str__(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        return "\n".join("  ".join(f"{cell:12}" for cell in row)
                         for row in (("last beat", *POLICIES), *self.rows))  # fmt: skip

    def _repr_html_(self) -> str:
        return grid("rows", ("last beat, ago", *POLICIES), self.rows)


TAKEN, SPARED = "✗ rolled back", "spared"


def ages() -> HeartbeatAges:
    """W1 beats once, with Hudi's defaults (every 60 s, two misses), and then stays silent."""
    with TableTestbed() as testbed:
        writer, service = testbed.writer("W1"), testbed.writer("W2")
        instant, rows, before = writer.insert(["k1"], 1).instant, [], 0
        for age in AGES_S:
            testbed.clock.leap(age - before)
            before = age
            row = [f"{age} s"]
            for policy in POLICIES:
                dead = {each.instant for each in _dead(service, HeartbeatRules(), policy)}
                row.append(TAKEN if instant in dead else SPARED)
            rows.append(tuple(row))
        return HeartbeatAges(tuple(rows))


def _dead(
    service: TestbedWriter, rules: HeartbeatRules, policy: Policy = "LAZY"
) -> tuple[HeartbeatRead, ...]:
    view = service.service().inspect()
    found: tuple[HeartbeatRead, ...] = service.run(
        failed_writes(view.config.names, view.now, policy, rules)
    )
    return found


# --- a beat that is late --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRace:
    """A heartbeat that a service found expired just before the next beat arrived."""

    ended: bool
    reported: str
    events: tuple[Event, ...]
    verdict: Any

    def __str__(self) -> str:
        return SAVED if self.reported == "committed" else WASTED

    def __repr__(self) -> str:
        went = "went on and rolled it back" if self.ended else "was refused: a newer beat exists"
        return shortened(f"{self}. The service {went}; W1's answer: {self.reported}")


def late_beat(guarded: bool) -> HeartbeatRace:
    """W1's beat was sent in time and took six seconds to arrive.

    Unguarded, the service trusts its
    earlier read. Guarded, it first ends the very heartbeat that it read.
    """
    rules = HeartbeatRules()
    with TableTestbed() as testbed:
        writer, service = testbed.writer("W1"), testbed.writer("W2")
        prepared = writer.insert(["k1"], 1)
        testbed.clock.leap(rules.belief_ms / 1000 - 1 + UNDER_WAY_S)
        view, dead = service.service().inspect(), _dead(service, rules)
        writer.beat()
        ended = all(not guarded or service.run(end(heartbeat)) for heartbeat in dead)
        if ended:
            service.service().context.roll_back(view.known, prepared.instant)
        reported = _published(writer, prepared)
        return HeartbeatRace(
            ended=ended, reported=reported, events=tuple(testbed.events), verdict=testbed.verdict
        )


# --- two writers of one file group ----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteEncounter:
    """A writer whose file group another writer is rewriting."""

    files: int
    """Files that it wrote, and that no commit contains."""
    why: str

    def __str__(self) -> str:
        return f"{self.files} file{'s' * (self.files != 1)} written in vain"

    def __repr__(self) -> str:
        return shortened(f"{self}. W2's answer: {self.why}")


def meet(early: bool) -> RewriteEncounter:
    """W1 is rewriting k1's file group, and W2 wants to. W2 checks the markers first, or not."""
    with TableTestbed() as testbed:
        first, second = testbed.writer("W1"), testbed.writer("W2")
        first.publish(first.insert(["k1"], 1))
        began = first.update(["k1"], 2)
        transaction = second.begin()
        try:
            if early:
                snapshot: Snapshot = second.run(load_snapshot(covering=transaction.covered))
                (group,) = snapshot.groups
                second.run(mark(transaction.instant, snapshot.groups[group].path, "MERGE"))
                second.run(early_conflict(OwnChanges(transaction.instant, transaction.base,
                                               frozenset({group}))))  # fmt: skip
            prepared = second.update(["k1"], 3, transaction)
            first.publish(began)
            second.publish(prepared)
        except CommitConflict as conflict:
            written = [each for each in testbed.files(f"_{transaction.instant}.parquet")
                       if not each.startswith(MARKERS)]  # fmt: skip
            return RewriteEncounter(files=len(written), why=str(conflict))
    raise AssertionError("both were committed")


# --- your turn ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatTuning:
    """How an interval and a number of misses judge a paused writer and a dead one."""

    slow: str
    """The outcome of the writer that was only paused."""
    dead: str
    """The outcome of the writer that died."""
    events: tuple[Event, ...]
    verdict: Any

    @property
    def solved(self) -> bool:
        said = (self.slow, self.dead, self.verdict.kind)
        return said == ("committed", "rolled back", "VALID")

    def __str__(self) -> str:
        return "solved" if self.solved else "not yet"

    def __repr__(self) -> str:
        return shortened(
            f"{self}. The slow writer: {self.slow}. The dead writer after {GONE_WITHIN_S:g} s: "
            f"{self.dead}. The checker: {self.verdict.kind}"
        )


def tune(interval_s: float, misses: int) -> HeartbeatTuning:
    """W1 is paused for 100 s at the worst moment, right before a beat. W2 is dead.

    Raises `ValueError` for an invalid rule.
    """
    if interval_s < 1 or misses < 1:
        raise ValueError("the interval must be at least one second, with at least one miss")
    rules = HeartbeatRules(interval_ms=round(interval_s * 1000), misses=misses)
    with TableTestbed() as testbed:
        slow, dead = testbed.writer("W1", rules), testbed.writer("W2", rules)
        service = testbed.writer("W3")
        serving = ServiceRules(heartbeat=rules)
        service.publish(service.insert(["k0"], 0))
        prepared, quiet_s = slow.insert(["k1"], 1), interval_s + PAUSE_S
        testbed.clock.leap(quiet_s)
        service.service(serving).take_back()
        reported = _after_pause(slow, prepared, late=quiet_s * 1000 >= rules.belief_ms)
        dead.insert(["k2"], 2)
        testbed.clock.leap(GONE_WITHIN_S)
        back = service.service(serving).take_back()
        gone = any(isinstance(each, RolledBack) for each in back)
        return HeartbeatTuning(
            slow=reported, dead="rolled back" if gone else "still there",
            events=tuple(testbed.events), verdict=testbed.verdict,
        )  # fmt: skip


def _after_pause(writer: TestbedWriter, prepared: Prepared, *, late: bool) -> str:
    """As in `Heartbeat`: a writer stops if no beat was acknowledged for too long."""
    try:
        if late:
            raise HeartbeatExpired(prepared.instant, "no beat was acknowledged for too long")
        writer.beat()
    except HeartbeatExpired as error:
        return f"stopped: {error}"
    return _published(writer, prepared)
