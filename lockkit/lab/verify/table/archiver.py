"""The scenario `archive-table`: the table of the scenario `table` in mode fenced, and archivers.

Worlds of version 9 have one or two archivers; the second reader knows that archive's form, not the
one of version 6.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from lockkit.lab.verify.mutants import Mutant
from lockkit.lab.verify.sim import SimScenario
from lockkit.lab.verify.sim.memory_store import DecidedRequest, StoredObject
from lockkit.lab.verify.sim.task import Node
from lockkit.lab.verify.table.host import EXPECTED, SimHost
from lockkit.lab.verify.table.scenario import CLOCK_OFF_MS, STEPS, TableRun, _set_up
from lockkit.lab.verify.table.services import ROUNDS_MAX, SimService
from lockkit.runtime import Procedure, Sleep
from lockkit.table.format.properties import FENCED, GROUP
from lockkit.table.occ.commit import StateChange
from lockkit.table.services.archive import archive
from lockkit.table.services.archive_rules import ArchiveRules
from lockkit.table.services.view import TableView, look_at
from lockkit.table.write.contract import AttemptHost

RULES = ArchiveRules(keep_min=4, keep_max=5, young_ms=0)
Once = Callable[[TableRun, TableView, ArchiveRules, AttemptHost, StateChange], Procedure[None]]


def archive_once(
    run: TableRun, view: TableView, rules: ArchiveRules, _host: AttemptHost, held: StateChange
) -> Procedure[None]:
    if (yield from archive(view.known, rules, held)) is not None:
        run.world.reached.add("archive")


def archives(
    run: TableRun, node: Node, rules: ArchiveRules = RULES, once: Once = archive_once
) -> Procedure[None]:
    """Clean and archive repeatedly."""
    host = SimHost(run, run.leases.join(node))
    service = SimService(run, host)
    for _ in range(ROUNDS_MAX):
        yield Sleep(run.world.dice.random() * 2)
        if not run.busy():
            return
        run.ledger.begins(node.name)
        try:
            view, _ = yield from look_at(None, 0)
            yield from service.clean(view)
            yield from host.hold(partial(once, run, view, rules))
        except EXPECTED:
            continue


def disown_archived(run: TableRun, write: DecidedRequest, after: StoredObject | None) -> None:
    """The files of an instant that a manifest names belong to no writer any more."""
    if after is not None and "/history/manifest_" in getattr(write.request, "key", ""):
        run.owners.rolled_back |= run.ledger.archived()


def _judged(run: TableRun, write: DecidedRequest, after: StoredObject | None) -> None:
    disown_archived(run, write, after)
    run.on_write(write, after)


def _with_archivers(
    seed: str, steps: int, mutant: Mutant | None, *, commit: str = FENCED
) -> TableRun:
    run = _set_up(seed, steps, mutant, only=commit, version=9 if commit == GROUP else 0)
    run.world.memory_store.on_write = partial(_judged, run)
    dice = random.Random(f"table archive {seed}")
    for number in range(1, 1 + dice.choice((1, 2, 2)) * (run.config.version == 9)):
        offset_ms = dice.randint(-CLOCK_OFF_MS, CLOCK_OFF_MS)
        run.process(
            f"A{number}", partial(archives, run), offset_ms=offset_ms, steps_ms=CLOCK_OFF_MS
        )
    return run


SCENARIO = SimScenario(
    "archive-table", "the scenario table in mode fenced, and processes that archive its commits",
    STEPS, _with_archivers, ("refused commit", "clean", "rollback", "archive", "stall", "restart"),
)  # fmt: skip

TOGETHER = SimScenario(
    "group-archive", "the scenario group-table, and processes that archive its commits at any age",
    STEPS, partial(_with_archivers, commit=GROUP),
    ("refused commit", "clean", "clustering", "rollback", "archive", "stall", "restart"),
)  # fmt: skip
