"""The scenario `late-table`: archivers and restores beside writers that sleep after they decided.

Such a writer wakes when others have published its commit, taken it back, or archived it. The file
that it then creates must be gone when it answers, and the answer must be true. Worlds have table
version 9: the second reader knows that archive's form, and Hudi's rule for old files.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from lockkit.lab.verify.mutants import Mutant
from lockkit.lab.verify.sim import SimScenario
from lockkit.lab.verify.sim.fault_profile import FaultKind
from lockkit.lab.verify.sim.memory_store import DecidedRequest, StoredObject
from lockkit.lab.verify.sim.task import Node, Violated
from lockkit.lab.verify.table import reader
from lockkit.lab.verify.table.archiver import archive_once, archives, disown_archived
from lockkit.lab.verify.table.host import SimHost
from lockkit.lab.verify.table.ledger import AttemptLedger, TrackedAttempt
from lockkit.lab.verify.table.reader import Completed, ReaderView
from lockkit.lab.verify.table.restorer import AWAY, RestoredLedger, RestoredRun, restores
from lockkit.lab.verify.table.scenario import CLOCK_OFF_MS, STEPS, TableRun, _set_up
from lockkit.runtime import Get, Procedure, Put
from lockkit.table.format.properties import FENCED
from lockkit.table.services.archive_rules import ArchiveRules
from lockkit.table.services.view import look_at

LATE = "a completed file that came too late is gone when its process answers"
HIDDEN = "Hudi's readers see every archived commit"
RULES = ArchiveRules(keep_min=1, keep_max=2)
DELETES = 0.4
OPEN = ("CommitUnknown", "Unanswered", "NoAnswer", "StoreError")


@dataclass(slots=True)
class LateLedger(RestoredLedger):
    """As `RestoredLedger`, and the completed files that came after their commit had left."""

    late: dict[str, tuple[str, float]] = field(default_factory=dict)
    """By key: who created it, and when the request was sent."""
    began: dict[str, float] = field(default_factory=dict)
    strict: bool = True
    """Whether no request is applied after its client has gone on."""
    gone_at: dict[str, float] = field(default_factory=dict)
    """By token: when a restore had taken the commit back."""

    def begins(self, client: str) -> None:
        self.began[client] = self.memory_store.time.now_ms
        AttemptLedger.begins(self, client)

    def _completed(
        self, commit: Completed, write: DecidedRequest, after: StoredObject | None
    ) -> None:
        taken_back = commit.instant in self.gone
        restoring = any(commit.instant in of for of in self.plans.values())
        if (taken_back and not restoring) or commit.instant in self.archived():
            if after is None:
                self.late.pop(commit.key, None)
            elif not write.before:
                self.late[commit.key] = write.client, write.began_ms
            else:
                raise Violated(AWAY, f"{commit.key} was written over by {write.client}")
            self._compare(f"{commit.key} left the timeline, or came back to it")
            return
        RestoredLedger._completed(self, commit, write, after)

    def _restored(self, gone: set[str]) -> None:
        RestoredLedger._restored(self, gone)
        for token in self.tokens_gone:
            self.gone_at.setdefault(token, self.memory_store.time.now_ms)

    def objects(self) -> dict[str, bytes]:
        found = RestoredLedger.objects(self)
        return {key: body for key, body in found.items() if key not in self.late}

    def view(self) -> ReaderView:
        """Hudi's readers take a file for archived if it is older than the timeline's first commit.
        """
        seen = RestoredLedger.view(self)
        names = map(reader.completed_name, self.objects())
        here = {each.instant for each in names if each is not None}
        if hidden := {each for each in self.archived() - here if each > min(here, default="~")}:
            raise Violated(HIDDEN, f"{min(hidden)} is, beside {min(here)}")
        return seen

    def acknowledged(self, attempt: TrackedAttempt) -> None:
        answered = bool(attempt.reported)
        RestoredLedger.acknowledged(self, attempt)
        if answered:  # the judge asks again at the end
            return
        self._answers(attempt)
        since_ms = self.gone_at.get(attempt.token)
        if since_ms is not None and self._last_answer_ms(attempt) > since_ms:
            raise Violated(AWAY, f"{attempt.token} was acknowledged although it had been gone")

    def refused(self, attempt: TrackedAttempt, error: str) -> None:
        answered = bool(attempt.reported)
        RestoredLedger.refused(self, attempt, error)
        if not answered and error not in OPEN:
            self._answers(attempt)

    def _answers(self, attempt: TrackedAttempt) -> None:
        client = attempt.token.partition(".")[0]
        for key, (by, sent_ms) in self.late.items():
            if self.strict and by == client and sent_ms >= self.began.get(client, 0.0):
                raise Violated(LATE, f"{key} is there, and {by} has ended")

    def _last_answer_ms(self, attempt: TrackedAttempt) -> float:
        """When its writer last got an answer about the commit."""
        client, instants = attempt.token.partition(".")[0], {
            instant for instant, token in self.token_of.items() if token == attempt.token
        }
        for each in reversed(self.memory_store.truth):
            match each.request:
                case Get(key) | Put(key) if each.client == client:
                    if any(instant in key for instant in instants):
                        return float(each.at_ms)
        return 0.0

    def judge(self) -> None:
        RestoredLedger.judge(self)
        if self.late:
            raise Violated(LATE, f"{min(self.late)} stays after the next archiving")


@dataclass(slots=True)
class LateRun(RestoredRun):
    """The table of one seed; the last process also archives what is left."""

    def __post_init__(self) -> None:
        self.ledger = LateLedger(self.world.memory_store)
        late = {FaultKind.LATE, FaultKind.RETRY} & {*self.world.fault_profile.of_writes}
        self.ledger.strict = not (late and self.world.fault_profile.writes)

    def _last(self) -> Procedure[None]:
        yield from RestoredRun._last(self)
        last = self.world.node("last archiver")
        view, _ = yield from look_at(None, 0)
        host = SimHost(self, self.leases.join(last))
        yield from host.hold(partial(archive_once, self, view, RULES))


def _judged(run: LateRun, write: DecidedRequest, after: StoredObject | None) -> None:
    disown_archived(run, write, after)
    assert isinstance(run.ledger, LateLedger)
    run.owners.rolled_back |= run.ledger.gone
    before = len(run.ledger.late)
    run.on_write(write, after)
    if len(run.ledger.late) > before:
        run.world.reached.add("late completed file")


def _with_late_writers(seed: str, steps: int, mutant: Mutant | None) -> TableRun:
    run = _set_up(seed, steps, mutant, only=FENCED, made=LateRun, version=9)
    assert isinstance(run, LateRun)
    run.world.memory_store.on_write = partial(_judged, run)
    run.ledger.streams.clear()
    dice = random.Random(f"table late {seed}")
    lives = {"O": partial(restores, deletes=DELETES), "A": partial(archives, rules=RULES)}
    for letter, live in lives.items():
        node = run.world.node(f"{letter}1", offset_ms=dice.randint(-CLOCK_OFF_MS, CLOCK_OFF_MS))
        node.clock_steps_ms, node.birth = CLOCK_OFF_MS, partial(_born, run, live)
        node.birth(node)
    return run


def _born(run: LateRun, live: Callable[[LateRun, Node], Procedure[None]], node: Node) -> None:
    run.world.spawn(node, live(run, node))


SCENARIO = SimScenario(
    "late-table", "the scenario restore-table with archivers: writers sleep until others archived",
    STEPS, _with_late_writers,
    ("clean", "rollback", "savepoint", "restore", "archive", "stall", "late completed file"),
)  # fmt: skip
