"""The scenario `late-table`: archivers and restores beside writers that sleep after they decided.

Such a writer wakes when others have published its commit, taken it back, or archived it. The file
that it then creates must be gone when it answers, and the answer must be true. An archiver may
sleep just before its manifest, while others restore; then it archives nothing that they took back.
Worlds have table version 9: the second reader knows that archive's form, and Hudi's rule for old
files.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lockkit.lab.verify.mutants import Mutant
from lockkit.lab.verify.sim import SimScenario
from lockkit.lab.verify.sim.fault_profile import FaultKind
from lockkit.lab.verify.sim.memory_store import DecidedRequest, StoredObject
from lockkit.lab.verify.sim.task import Node, Violated
from lockkit.lab.verify.table import reader
from lockkit.lab.verify.table.archiver import archive_once, archives, disown_archived
from lockkit.lab.verify.table.host import EXPECTED, SimHost
from lockkit.lab.verify.table.ledger import AttemptLedger, TrackedAttempt
from lockkit.lab.verify.table.reader import Completed, ReaderView
from lockkit.lab.verify.table.restorer import AWAY, SLEEPS_MS, RestoredLedger, RestoredRun, restores
from lockkit.lab.verify.table.scenario import CLOCK_OFF_MS, STEPS, TableRun, _set_up
from lockkit.runtime import Get, Procedure, Put, Sleep, relay
from lockkit.table.format.properties import FENCED, load_config
from lockkit.table.format.timeline import load_timeline
from lockkit.table.occ.commit import StateChange
from lockkit.table.occ.transaction import TableCache
from lockkit.table.services.archive_rules import ArchiveRules
from lockkit.table.services.restore import restore
from lockkit.table.services.savepoint import save
from lockkit.table.services.view import TableView, look_at
from lockkit.table.write.contract import AttemptHost

LATE = "a completed file that came too late is gone when its process answers"
HIDDEN = "Hudi's readers see every archived commit"
RULES = ArchiveRules(keep_min=1, keep_max=2)
DELETES = 0.4
SLEEPY, ARCHIVER_SLEEPS = 0.25, 0.8
LOOK_S, LOOKS_MAX, OLDEST = 0.5, 60, 2
MANIFEST = "/history/manifest_"
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

    def on_write(self, write: DecidedRequest, after: StoredObject | None) -> None:
        RestoredLedger.on_write(self, write, after)
        if after is not None and MANIFEST in getattr(write.request, "key", ""):
            self._none_archived(write.client)

    def _none_archived(self, client: str) -> None:
        over = self.gone.difference(*self.plans.values())
        if back := over & self.archived():
            raise Violated(AWAY, f"{min(back)} was archived by {client}")

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
        self._none_archived("an archiver before the restore")
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

    archiver_sleeps: bool = False
    """Whether it may sleep just before its manifest; then only the lock keeps others out."""
    operators: int = 0

    def __post_init__(self) -> None:
        self.ledger = LateLedger(self.world.memory_store)
        late = {FaultKind.LATE, FaultKind.RETRY} & {*self.world.fault_profile.of_writes}
        self.ledger.strict = not (late and self.world.fault_profile.writes)

    def archiver_falls_asleep(self, archiver: Node) -> None:
        """For longer than its lease. Meanwhile an operator restores."""
        self.world.reached.add("archiver asleep")
        self.world.pause(archiver, self.world.time.now_ms + 2 * SLEEPS_MS)
        self.operators += 1
        node = self.world.node(f"B{self.operators}")
        self.world.spawn(node, _saves_and_restores(self, node))

    def writers_sleep(self) -> None:
        """So that no instant is pending when an operator restores."""
        for each in self.world.nodes:
            if each.birth is not None and not each.stalled:
                self.world.pause(each, self.world.time.now_ms + SLEEPS_MS)

    def _last(self) -> Procedure[None]:
        yield from RestoredRun._last(self)
        last = self.world.node("last archiver")
        view, _ = yield from look_at(None, 0)
        host = SimHost(self, self.leases.join(last))
        yield from host.hold(partial(archive_once, self, view, RULES))


def _saves_and_restores(run: LateRun, node: Node) -> Procedure[None]:
    """An operator who learns only now that everything after an old commit was wrong."""
    host = SimHost(run, run.leases.join(node))
    for _ in range(LOOKS_MAX):
        yield Sleep(LOOK_S)
        if reader.pending(run.world.memory_store.objects):
            continue
        run.writers_sleep()
        run.ledger.begins(node.name)
        try:
            yield from host.hold(partial(_back_to_an_old_commit, run))
        except EXPECTED:
            continue
        return


def _back_to_an_old_commit(run: LateRun, _host: AttemptHost, held: StateChange) -> Procedure[None]:
    known = TableCache(*(yield from load_config()))
    now = yield from load_timeline(known.config.names)
    if old := now.commits[:-1][:OLDEST]:
        chosen = run.world.dice.choice(old)
        yield from save(known, held, chosen)
        yield from restore(known, held, chosen)
        run.world.reached.add("restore beside a sleeping archiver")


def _archive_asleep(
    run: TableRun, view: TableView, rules: ArchiveRules, host: AttemptHost, held: StateChange
) -> Procedure[None]:
    """Archive; its process may be suspended between its last look at the lease and its manifest.
    """
    assert isinstance(run, LateRun) and isinstance(host, SimHost)
    node, dice = host.session.node, run.world.dice

    def sent(request: Any) -> Procedure[Any]:
        if isinstance(request, Put) and MANIFEST in request.key and not run.at_rest:
            if run.archiver_sleeps and dice.random() < ARCHIVER_SLEEPS:
                run.archiver_falls_asleep(node)
                yield Sleep(0)
        return (yield request)

    yield from relay(archive_once(run, view, rules, host, held), sent)


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
    if random.Random(f"table sleeping archiver {seed}").random() < SLEEPY:
        run.archiver_sleeps = run.locked = True
    lives = {
        "O": partial(restores, deletes=DELETES),
        "A": partial(archives, rules=RULES, once=_archive_asleep),
    }
    for letter, live in lives.items():
        offset_ms = dice.randint(-CLOCK_OFF_MS, CLOCK_OFF_MS)
        run.process(f"{letter}1", partial(live, run), offset_ms=offset_ms, steps_ms=CLOCK_OFF_MS)
    return run


SCENARIO = SimScenario(
    "late-table", "the scenario restore-table with archivers: writers sleep until others archived",
    STEPS, _with_late_writers,
    ("clean", "rollback", "savepoint", "restore", "archive", "stall", "late completed file",
     "archiver asleep", "restore beside a sleeping archiver"),
)  # fmt: skip
