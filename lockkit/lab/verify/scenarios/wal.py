"""The scenario `wal`: writers take a log from one another and append to it, readers follow it.

Every append is a text of its own. The judge reads the log by a few lines that share no code with
the reader: slots in order up to the first missing one; a slot counts unless one before it has a
higher epoch.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

from lockkit.errors import TableError, UnsafeStore
from lockkit.lab.verify.mutants import Mutant, catalogue
from lockkit.lab.verify.planting import answering
from lockkit.lab.verify.sim import SimScenario
from lockkit.lab.verify.sim.fault_profile import FaultProfile
from lockkit.lab.verify.sim.memory_store import PROFILES, SOUND, StoredObject
from lockkit.lab.verify.sim.run import SeedRun
from lockkit.lab.verify.sim.task import Node, Violated
from lockkit.lab.verify.sim.world import SimWorld
from lockkit.protocol.outcome import Condition, Found, over
from lockkit.recipes.errors import AppendUnknown, Damaged, Fenced, SameEpoch, WalError
from lockkit.recipes.wal.reader import Cursor, poll
from lockkit.recipes.wal.slot import (
    LogTail,
    Manifest,
    SlotLanded,
    SlotRead,
    SlotTaken,
    slot_key,
    slot_number,
)
from lockkit.recipes.wal.writer import WriterState, append, halted, open_log
from lockkit.runtime import Procedure, Sleep
from lockkit.runtime.proven import read

STEPS = 400
PARALLEL = (1, 2, 3, 4)
OPENS_MAX, APPENDS_MAX, LOOKS_MAX = 3, 5, 12
OUTAGES, OUTAGE = 0.3, 0.8
"""In so many worlds so many requests are lost once there is a writer: also a try's every repeat."""
LOST = "an acknowledged append is in the log, once"
REFUSED = "an append that was refused is never read"
ORDER = "all readers see one order"
FRESH = "a look has all that was acknowledged before it"
KNOWN = "a new writer knows all that older ones acknowledge"
EPOCHS = "no two writers have one epoch"
BLOCKED = "the next writer can append"


@dataclass(slots=True)
class WalRun(SeedRun):
    """The log of one seed, and all answers that its clients got."""

    outage: bool = False
    acknowledged: dict[str, int] = field(default_factory=dict)
    """Texts, with the epoch of their writer."""
    refused: set[str] = field(default_factory=set)
    began: list[tuple[int, frozenset[str]]] = field(default_factory=list)
    """Per writer its epoch, and what it read when it began."""
    order: list[str] = field(default_factory=list)
    """As far as any reader saw."""

    # --- what must hold --------------------------------------------------------------------------

    def begin(self, log: WriterState, known: Sequence[str]) -> None:
        if any(epoch == log.epoch for epoch, _ in self.began):
            raise Violated(EPOCHS, f"epoch {log.epoch} was granted twice")
        if any(epoch > log.epoch for epoch, _ in self.began):
            self.world.reached.add("overtaken at the start")
        self.began.append((log.epoch, frozenset(known)))
        if self.outage:
            fault_profile = self.world.fault_profile
            self.world.fault_profile = replace(fault_profile, writes=OUTAGE, reads=OUTAGE)
        for text, epoch in self.acknowledged.items():
            self._known(text, epoch)

    def on_answers(
        self, log: WriterState, first: int, batches: list[list[str]], outcomes: list[Any]
    ) -> None:
        """The outcomes of the batches that were written from slot `first` on."""
        reached = self.world.reached
        for place, (batch, what) in enumerate(zip(batches, outcomes, strict=True), first):
            match what:
                case int():
                    for text in batch:
                        self._acknowledge(text, log.epoch, what)
                    if what != place:
                        reached.add("slot taken")
                case SameEpoch():
                    raise Violated(EPOCHS, str(what))
                case AppendUnknown():
                    reached.add("in doubt")
                case _:
                    self._refuse(batch)
                    if isinstance(what, Fenced):
                        reached.add("fenced")

    def _acknowledge(self, text: str, epoch: int, slot: int) -> None:
        count = replayed(self.world.memory_store.objects).count(text)
        if count != 1:
            there = f"is in the log {count} times" if count else "is not in the log"
            raise Violated(LOST, f"record {text} was acknowledged in slot {slot}, but {there}")
        self.acknowledged[text] = epoch
        self._known(text, epoch)

    def _known(self, text: str, epoch: int) -> None:
        for newer, known in self.began:
            if newer > epoch and text not in known:
                raise Violated(KNOWN, f"{text} of epoch {epoch} is new to the writer of {newer}")

    def _refuse(self, batch: list[str]) -> None:
        self.refused.update(batch)
        if seen := self.refused.intersection(self.order):
            raise Violated(REFUSED, f"{min(seen)} was seen before it was refused")

    def saw(self, view: list[str], before: list[str]) -> None:
        """A reader's rows; `before` is what had been acknowledged when it began to read."""
        both = min(len(view), len(self.order))
        if view[:both] != self.order[:both]:
            raise Violated(ORDER, f"one sees {view[:both]}, another {self.order[:both]}")
        self.order += view[both:]
        if len(set(view)) < len(view):
            raise Violated(LOST, f"a reader sees something twice: {view}")
        if missing := set(before).difference(view):
            raise Violated(FRESH, f"{min(missing)} was acknowledged, but a later look lacks it")
        if seen := self.refused.intersection(view):
            raise Violated(REFUSED, f"{min(seen)} was refused, but a reader sees it")

    def end(self) -> None:
        """Let all tasks end; then one more writer begins, and one more reader reads the log."""
        self.world.finish()
        try:
            view = self.world.run(self.last())
        except (TableError, Fenced, Damaged, AppendUnknown) as error:
            raise Violated(BLOCKED, str(error)) from error
        self.saw(view, list(self.acknowledged))
        if view != replayed(self.world.memory_store.objects):
            raise Violated(ORDER, f"a reader sees {view}, but the log is different")
        if void_slots(self.world.memory_store.objects):
            self.world.reached.add("void slot")

    # --- who is there ----------------------------------------------------------------------------

    def ways(self) -> LogTail:
        """Whether writers name the head, and readers use it."""
        return self.world.dice.choice(list(LogTail))

    def last(self) -> Procedure[list[str]]:
        log = yield from open_log()
        (outcome,) = yield from append(log, [[json.dumps("last")]])
        if isinstance(outcome, Exception):
            raise outcome
        return (yield from view_of(Cursor()))[1]

    def writer(self, parallel: int, node: Node) -> Procedure[None]:
        dice, tail = self.world.dice, self.ways()
        for opening in range(OPENS_MAX):
            yield Sleep(dice.random() * 3)
            try:
                log = yield from open_log(tail)
                _, known = yield from view_of(Cursor(), tail)
            except (Fenced, TableError):
                continue
            except (SameEpoch, UnsafeStore) as error:
                raise Violated(EPOCHS, str(error)) from error
            self.begin(log, known)
            for number in range(APPENDS_MAX):
                name = f"{node.name}.{node.life}.{opening}.{number}"
                batches = [
                    [f"{name}.{batch}.{record}" for record in range(1 + int(dice.random() * 2))]
                    for batch in range(1 + int(dice.random() * parallel))
                ]
                first, texts = log.next, [[json.dumps(text) for text in each] for each in batches]
                self.on_answers(log, first, batches, (yield from append(log, texts)))
                if log.ended is not None:
                    break
                yield Sleep(dice.random())

    def reader(self, node: Node) -> Procedure[None]:
        cursor, view, tail = Cursor(), list[str](), self.ways()
        for _ in range(LOOKS_MAX):
            yield Sleep(self.world.dice.random())
            before, seen = list(self.acknowledged), cursor
            try:
                cursor, new = yield from view_of(cursor, tail)
            except TableError:
                continue
            if cursor == seen and cursor.head is not None:
                self.world.reached.add("304")
            view += new
            self.saw(view, before)


def view_of(
    cursor: Cursor, tail: LogTail = LogTail.NEXT_SLOT
) -> Procedure[tuple[Cursor, list[str]]]:
    try:
        cursor, entries = yield from poll(cursor, tail)
    except Damaged as error:
        raise Violated(LOST, str(error)) from error
    return cursor, [each.record for each in entries]


# --- the log, told without its reader -------------------------------------------------------------


def replayed(objects: dict[str, StoredObject]) -> list[str]:
    found, highest = list[str](), 0
    for number in range(len(objects)):
        if (stored := objects.get(slot_key(number))) is None:
            break
        epoch, texts = _parsed(stored.body)
        found += texts if epoch >= highest else ()
        highest = max(epoch, highest)
    return found


def void_slots(objects: dict[str, StoredObject]) -> int:
    epochs = [_parsed(objects[key].body)[0] for key in sorted(objects) if key.startswith("wal/")]
    return sum(each < max(epochs[:place], default=0) for place, each in enumerate(epochs))


@lru_cache(maxsize=4096)
def _parsed(body: bytes) -> tuple[int, tuple[str, ...]]:
    fields = json.loads(body)
    return fields["epoch"], tuple(fields["records"])


# --- the scenario ---------------------------------------------------------------------------------


def _set_up(seed: str, steps: int, mutant: Mutant | None) -> WalRun:
    dice = random.Random(f"wal {seed}")
    profile, fault_profile = PROFILES[dice.choice(SOUND)], FaultProfile.of(dice)
    outage = bool(fault_profile.of_writes) and dice.random() < OUTAGES
    if mutant is not None:
        profile = PROFILES.get(mutant.profile, profile)
    run = WalRun(SimWorld(seed, steps, profile, fault_profile, dice.random() < 0.3), outage)
    for number in range(2 + int(dice.random() * 2)):
        run.process(f"W{number + 1}", partial(run.writer, dice.choice(PARALLEL)))
    for number in range(2):
        run.process(f"R{number + 1}", run.reader)
    return run


SCENARIO = SimScenario(
    "wal", "writers take a log from one another and append to it, readers follow it",
    STEPS, _set_up,
    ("fenced", "slot taken", "in doubt", "void slot", "overtaken at the start", "stall", "restart",
     "304"),
)  # fmt: skip


def over_what_is_there(key: str) -> Procedure[Condition]:
    seen = yield from read(key)
    return over(seen.version if isinstance(seen, Found) else None)


def after_the_last(head: int, keys: Sequence[str]) -> int:
    return 1 + max((slot_number(key) or 0 for key in keys), default=head - 1)


def halted_by_newer(log: WriterState, by: SlotRead | None) -> WalError | None:
    """Treat another writer with the same epoch as an older writer."""
    return None if by is not None and by.epoch == log.epoch else halted(log, by)


def own_choice(_seen: Manifest, tail: LogTail) -> bool:
    return tail is LogTail.HEAD


_CLAIM, _WRITER = "lockkit.recipes.wal.slot", "lockkit.recipes.wal.writer"
MUTANTS = catalogue(
    Mutant("create_412 lost", "412 to an append counts as a taken slot, without a read",
           {f"{_CLAIM}:refused": lambda _: SlotTaken(None)}),
    Mutant("create_412 ours", "412 to an append counts as our own retry",
           {f"{_CLAIM}:refused": lambda _: SlotLanded()}),
    Mutant("create_unknown lost", "an append without an answer is sent to the next slot",
           {f"{_CLAIM}:unanswered": lambda _: SlotTaken(None)}),
    Mutant("create_unknown ours", "an append without an answer is acknowledged",
           {f"{_CLAIM}:unanswered": lambda _: SlotLanded()}),
    Mutant("if_absent", "a slot is written over", {f"{_CLAIM}:condition_of": over_what_is_there}),
    Mutant("fences", "a new writer writes no fence", {f"{_WRITER}:put_fence": answering(None)}),
    Mutant("first_gap", "the next slot is the one after the last that is listed",
           {f"{_WRITER}:first_gap": after_the_last}),
    Mutant("landed", "an append is acknowledged as soon as it is sent",
           {f"{_CLAIM}:{answer}": lambda _: SlotLanded()
            for answer in ("refused", "unanswered", "throttled")}),
    Mutant("in_order", "a slot is acknowledged before those in front of it are settled",
           {f"{_WRITER}:waits_behind": lambda _: False}),
    Mutant("voids", "a reader does not compare epochs",
           {"lockkit.recipes.wal.reader:is_void": lambda _cursor, _slot: False}),
    Mutant("epoch_read_back", "the claim of an epoch without an answer counts as granted",
           {f"{_WRITER}:is_granted": answering(True)}),
    Mutant("same_epoch_halts", "and a second writer with the same epoch is not noticed",
           {f"{_WRITER}:is_granted": answering(True), f"{_WRITER}:halted": halted_by_newer}),
    Mutant("head_proven", "an append is acknowledged before the head is known to name it",
           {f"{_WRITER}:head_unproven": lambda outcomes, _: outcomes}),
    Mutant("head_forward", "a writer that was replaced moves the head back",
           {f"{_WRITER}:is_moved": lambda _head, _log: False}),
    Mutant("head_kept", "a new writer does not name the head as those before it did",
           {f"{_WRITER}:names_head": own_choice}),
    Mutant("ignores conditions", "the store ignores the conditions of a write, unproven",
           {f"{_WRITER}:prove": answering(None)}, profile="ignores conditions"),
)  # fmt: skip
