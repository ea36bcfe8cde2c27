"""The scenario `restore-table`: the table of the scenario `table` in mode fenced, and restores.

An operator saves, restores and deletes savepoints while writers work, sleep and crash. Nothing that
a restore took back may come back. The second reader does not show data files that the store applies
only after their commit was taken back: Hudi's readers show those, as the documentation says.
"""

from __future__ import annotations

import random
import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from lockkit.lab.verify.mutants import Mutant
from lockkit.lab.verify.sim import SimScenario
from lockkit.lab.verify.sim.memory_store import DecidedRequest, StoredObject
from lockkit.lab.verify.sim.task import Node, Violated
from lockkit.lab.verify.table import reader
from lockkit.lab.verify.table.host import EXPECTED, SimHost
from lockkit.lab.verify.table.ledger import PREFIX, AttemptLedger, Table, TrackedAttempt
from lockkit.lab.verify.table.reader import Completed, ReaderView, TableRow
from lockkit.lab.verify.table.scenario import CLOCK_OFF_MS, STEPS, TableRun, _set_up
from lockkit.runtime import Procedure, Sleep
from lockkit.table.errors import TableChanged
from lockkit.table.format.properties import FENCED, load_config
from lockkit.table.format.savepoint_files import parse_restore_plan
from lockkit.table.format.timeline import load_timeline
from lockkit.table.occ.commit import StateChange
from lockkit.table.occ.transaction import TableCache
from lockkit.table.services.restore import open_fence, restore
from lockkit.table.services.savepoint import delete_savepoint, save
from lockkit.table.write.contract import AttemptHost

AWAY = "what a restore took back never comes back"
AS_SAVED = "a restore takes back the newest commits, one after the other"
ROUNDS_MAX = 80
SLEEPS, SLEEPS_MS, HURRY = 0.3, 15_000.0, 0.2
"""How often a writer sleeps after its decision, how long, and how fast an operator acts then."""
_RESTORE = re.compile(r"\.hoodie/(?:timeline/)?(\d{17})(?:_\d{17})?\.restore(\.requested)?")


@dataclass(slots=True)
class RestoredLedger(AttemptLedger):
    """As `AttemptLedger`, and what restores took back."""

    gone: set[str] = field(default_factory=set)
    """Instants that restores took back, or are taking back."""
    plans: dict[str, set[str]] = field(default_factory=dict)
    """By restore, while it is pending: the instants that go."""
    begun: bool = False
    """Whether a restore was begun; it may have been withdrawn."""
    states: list[Table] = field(default_factory=lambda: [{}])
    """What the table held after each commit and each restore."""
    restores: list[int] = field(default_factory=list)
    """For each restore, how many states there were before it."""
    unseen: set[str] = field(default_factory=set)
    """Data files that arrived after their commit was taken back."""
    tokens_gone: set[str] = field(default_factory=set)

    def on_write(self, write: DecidedRequest, after: StoredObject | None) -> None:
        key = getattr(write.request, "key", "")
        if match := _RESTORE.fullmatch(key):
            self._restoring(match[1], bool(match[2]), key, after)
        file = reader.data_name(key)
        if file is not None and file.instant in self.gone:
            (self.unseen.discard if after is None else self.unseen.add)(key)
            return
        AttemptLedger.on_write(self, write, after)

    def _restoring(
        self, instant: str, requested: bool, key: str, after: StoredObject | None
    ) -> None:
        if after is None:  # withdrawn
            self.gone -= self.plans.pop(instant, set()) if requested else set()
        elif requested:
            plan = parse_restore_plan(key, after.body)
            self.plans[instant], self.begun = {each for each, _ in plan.instants}, True
            self.gone |= self.plans[instant]
        elif instant in self.plans:
            self._restored(self.plans.pop(instant))

    def _restored(self, gone: set[str]) -> None:
        kept = [each for each in self.commits if each.instant not in gone]
        if kept != self.commits[: len(kept)]:
            raise Violated(AS_SAVED, f"{sorted(gone)} are not the newest commits")
        self.restores.append(len(self.states))
        for commit in self.commits[len(kept) :]:
            token = self.token_of[commit.instant]
            self.tokens_gone.add(token)
            self.visible = {op: of for op, of in self.visible.items() if of != token}
        self.commits[:] = kept
        self.decided[:] = [each for each in self.decided if each[0] not in gone]
        del self.tables[len(kept) + 1 :]
        self.states.append(self.tables[-1])
        self._compare("restored")

    token_of: dict[str, str] = field(default_factory=dict)

    def _completed(
        self, commit: Completed, write: DecidedRequest, after: StoredObject | None
    ) -> None:
        if commit.instant in self.gone:
            if any(commit.instant in of for of in self.plans.values()) and write.before:
                return  # the restore is at work
            raise Violated(AWAY, f"{commit.key} was written by {write.client}")
        AttemptLedger._completed(self, commit, write, after)
        self.states.append(self.tables[-1])

    def after(self, attempt: TrackedAttempt, commit: Completed, body: bytes) -> Table:
        self.token_of[commit.instant] = attempt.token
        return AttemptLedger.after(self, attempt, commit, body)

    def view(self) -> ReaderView:
        if self.plans:  # while it is at work, Hudi's readers see less and less of the commits
            return ReaderView((), self.files, _rows(self.tables[-1]))
        seen = AttemptLedger.view(self)
        return replace(seen, commits=tuple(self.commits))

    def objects(self) -> dict[str, bytes]:
        return {key: stored.body for key, stored in self.memory_store.objects.items()
                if key not in self.unseen}  # fmt: skip

    def acknowledged(self, attempt: TrackedAttempt) -> None:
        if attempt.token in self.tokens_gone:
            attempt.reported = "acknowledged"
        else:
            AttemptLedger.acknowledged(self, attempt)

    def refused(self, attempt: TrackedAttempt, error: str) -> None:
        """A commit whose inflight file a restore has removed is gone, before that restore ends."""
        names = {f"{each}.inflight" for of in self.plans.values() for each in of
                 if self.token_of.get(each) == attempt.token}  # fmt: skip
        left = {key.rpartition("/")[2] for key in self.memory_store.objects}
        if error == "TableChanged" and names and not names & left:
            attempt.reported = error
        else:
            AttemptLedger.refused(self, attempt, error)

    def nothing_pending(self) -> None:
        """A writer that met a restore may leave its instant: the fence was closed."""
        if not self.begun:
            AttemptLedger.nothing_pending(self)

    def acknowledgeable(self) -> int:
        return len(self.states) - 1

    def within(self, since: int, commits: int) -> bool:
        if self.plans or any(each > since for each in self.restores):
            return False
        return len(self.states) - 1 - since < commits

    def read(self, rows: list[TableRow], since: int) -> None:  # type: ignore[override]
        seen = {(row.partition, row.key): row.tokens for row in rows}
        if all(seen != dict(each) for each in self.states[since:]):
            raise Violated(PREFIX, f"its rows are those of no state from number {since} on")


def _rows(table: Table) -> tuple[TableRow, ...]:
    return tuple(TableRow(*place, tokens, "") for place, tokens in table.items())


@dataclass(slots=True)
class RestoredRun(TableRun):
    """The table of one seed; whoever finds a restore that is half done finishes it."""

    def __post_init__(self) -> None:
        self.ledger = RestoredLedger(self.world.memory_store)

    def _stalls(self, client: str, chance: float) -> None:
        """A writer that has just decided may sleep so long that others overtake it, and restore."""
        of = [each for each in self.world.nodes if each.name == client and each.birth is not None]
        if of and not self.at_rest and self.world.dice.random() < SLEEPS:
            (node,) = of
            self.world.pause(node, self.world.time.now_ms + SLEEPS_MS)
        else:
            TableRun._stalls(self, client, chance)

    def asleep(self) -> bool:
        return any(each.stalled for each in self.world.nodes)

    def _last(self) -> Procedure[None]:
        self.at_rest = True
        last = self.world.node("last restore")
        with suppress(TableChanged):  # a commit came between, so the restore was withdrawn
            yield from SimHost(self, self.leases.join(last)).hold(partial(_one, self, finish=True))
        yield from TableRun._last(self)


def restores(run: RestoredRun, node: Node, *, deletes: float = 0.1) -> Procedure[None]:
    """Save and restore repeatedly, most often when no commit is pending.

    `deletes` is how often a savepoint is deleted, which keeps older commits from the archive.
    """
    host, dice = SimHost(run, run.leases.join(node)), run.world.dice
    for _ in range(ROUNDS_MAX):
        yield Sleep(dice.random() * (HURRY if run.asleep() else 1))
        if not run.busy():
            return
        if reader.pending(run.world.memory_store.objects) and dice.random() < 0.8:
            continue
        run.ledger.begins(node.name)
        try:
            yield from host.hold(partial(_one, run, deletes=deletes))
        except EXPECTED:
            continue


def _one(
    run: TableRun, _host: AttemptHost, held: StateChange, *, finish: bool = False,
    deletes: float = 0.1,
) -> Procedure[None]:  # fmt: skip
    config, version = yield from load_config()
    known, dice = TableCache(config, version), run.world.dice
    now = yield from load_timeline(config.names)
    begun = [each for each, action in now.pending.items() if action == "restore"]
    if begun:
        requested = config.names.requested(begun[0], "restore")
        plan = parse_restore_plan(requested, run.world.memory_store.objects[requested].body)
        yield from restore(known, held, plan.savepoint)
        run.world.reached.add("finished restore")
        return
    saved = sorted(now.savepoints & set(now.commits))
    chance = dice.random()
    if finish:  # a restore may have ended before it had opened the fence
        yield from open_fence(config, held)
    elif not saved or chance < 0.3:
        yield from save(known, held)
        run.world.reached.add("savepoint")
    elif chance < 0.3 + deletes:
        yield from delete_savepoint(known, held, dice.choice(saved))
    else:
        done = yield from restore(known, held, saved[-1])
        if done.taken_back:
            run.world.reached.add("restore")


def _judged(run: TableRun, write: DecidedRequest, after: StoredObject | None) -> None:
    assert isinstance(run.ledger, RestoredLedger)
    run.owners.rolled_back |= run.ledger.gone
    run.on_write(write, after)


def _with_restores(seed: str, steps: int, mutant: Mutant | None) -> TableRun:
    run = _set_up(seed, steps, mutant, only=FENCED, made=RestoredRun)
    assert isinstance(run, RestoredRun)
    run.world.memory_store.on_write = partial(_judged, run)
    run.ledger.streams.clear()  # increments of a table that went back have no end to go on from
    dice = random.Random(f"table restore {seed}")
    for number in range(1, 1 + dice.choice((1, 1, 2))):
        offset_ms = dice.randint(-CLOCK_OFF_MS, CLOCK_OFF_MS)
        run.process(
            f"O{number}", partial(restores, run), offset_ms=offset_ms, steps_ms=CLOCK_OFF_MS
        )
    return run


SCENARIO = SimScenario(
    "restore-table", "the scenario table in mode fenced, with savepoints and restores", STEPS,
    _with_restores,
    ("refused commit", "clean", "rollback", "savepoint", "restore", "stall", "restart"),
)  # fmt: skip
