"""Other protocols on the stage: two actors each, a mistake to plant, and the judgement."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from lockkit.errors import LockLost, StoreError, TableError
from lockkit.lab.verify.mutants import Mutant
from lockkit.lab.verify.scenarios import election, queue, statelock, wal
from lockkit.lab.widgets.stage import lease_scenario as lease_play
from lockkit.lab.widgets.stage.staged import Stage
from lockkit.protocol.policy import Expiry, Policy
from lockkit.protocol.state import Identity
from lockkit.recipes.election.candidate import Candidate
from lockkit.recipes.errors import (
    ElectionError,
    LockUnknown,
    NotLeader,
    NotLocked,
    QueueError,
    QueueUnknown,
    StateLocked,
    WalError,
)
from lockkit.recipes.guarded import read_guarded, write_guarded
from lockkit.recipes.queue.handle import answer_or_raise
from lockkit.recipes.queue.jobs import QueuePolicy
from lockkit.recipes.queue.operations import Answer, Claim, Claimed, Complete, Operation, Push
from lockkit.recipes.queue.write import commit, load
from lockkit.recipes.terraform.lockinfo import LockInfo
from lockkit.recipes.terraform.statelock import lock, read_state, unlock
from lockkit.recipes.wal.reader import poll
from lockkit.recipes.wal.writer import append, open_log
from lockkit.runtime import Procedure

RESOURCE_KEY = "resource.json"
LATER_MS = 60_000
TTL_MS = 30_000
LOOKS_MAX = 5
STATE_KEY = "prod.tfstate.tflock"
PAYLOAD = "send invoice 7"
RIGHT = "nothing: as it should be"


class Judgement(NamedTuple):
    """Whether the answers agree with the store's content, and why."""

    well: bool
    because: str


@dataclass(frozen=True, slots=True)
class StageScenario:
    """One protocol: the next steps of its two actors, and how it is judged."""

    says: str
    rules: Any
    bring_on: Callable[[PatternSteps], None]
    judge: Callable[[PatternSteps], Judgement]
    mistakes: Mapping[str, Mutant]
    """By what the reader sees of each."""
    lease_ms: int = 0
    """How long until what is leased has run out for everybody; 0: nothing is leased."""


class PatternSteps(Stage):
    """W1 and W2 in one of the `SCENARIOS`, one request at a time, with a mistake planted.

    :param pattern: one of `SCENARIOS`.
    :param mistake: the planted mistake; "": none.
    :raises ValueError: for an unknown mistake.
    """

    refusals = (
        ElectionError, NotLeader, WalError, QueueError, QueueUnknown, StateLocked, NotLocked,
        LockUnknown, LockLost, TableError, StoreError,
    )  # fmt: skip

    def __init__(self, pattern: str = "election", mistake: str = "") -> None:
        known = ", ".join(map(repr, mistakes(pattern)))
        self.play = play = SCENARIOS[pattern]
        if mistake not in ("", *play.mistakes):
            raise ValueError(f"{pattern} has no mistake {mistake!r}; it has {known}")
        super().__init__(pattern, mistake)
        self.lease_ms = play.lease_ms
        self.rules, self.mutant = play.rules, play.mistakes.get(mistake)
        if self.mutant is not None:
            self.planted = self.mutant.planted
        self.results: dict[str, Any] = {}
        play.bring_on(self)

    def keep(self, name: str, procedure: Procedure[Any]) -> None:
        """Add an actor and keep its result for the judge."""

        def kept() -> Procedure[str]:
            self.results[name] = yield from procedure
            return str(self.results[name])

        self.act(name, kept())

    @property
    def objects(self) -> dict[str, str]:
        """What is in the store, as text."""
        return {
            key: each.body.decode(errors="replace")
            for key, each in sorted(self.memory_store.objects.items())
        }

    @property
    def verdict(self) -> Judgement:
        return self.play.judge(self)


# --- leader election by epochs --------------------------------------------------------------------


def _elect(steps: PatternSteps) -> None:
    for name, off_ms in (("W1", 0), ("W2", LATER_MS)):
        clock = steps.clock(name, ahead_ms=off_ms)
        candidate = Candidate(Identity(name, TTL_MS, name, name), clock, steps.rules)
        steps.keep(name, _lead(candidate, name))


def _lead(candidate: Candidate, name: str) -> Procedure[str]:
    for _ in range(LOOKS_MAX):
        if (yield from candidate.confirm()):
            break
    term = candidate.leads()
    if term is None:
        return "another leads"
    yield from write_guarded(RESOURCE_KEY, lambda _: name, term.epoch)
    return f"wrote in epoch {term.epoch}"


def _never_back(steps: PatternSteps) -> Judgement:
    """The object must be the one that the highest epoch wrote."""
    found = steps.read(read_guarded(RESOURCE_KEY))
    epochs = [int(str(said).rpartition(" ")[2]) for said in steps.results.values()
            if "epoch" in str(said)]  # fmt: skip
    if epochs and max(epochs) > found.epoch:
        because = (
            f"what the leader of epoch {max(epochs)} wrote was "
            f"replaced in epoch {found.epoch}"
        )
        return Judgement(False, because)
    if len(set(epochs)) < len(epochs):
        return Judgement(False, f"two nodes led in epoch {epochs[0]}")
    return Judgement(
        True, f"{RESOURCE_KEY} is of epoch {found.epoch}, by {found.value or 'no client'}"
    )


# --- WAL slots ------------------------------------------------------------------------------------


def _log(steps: PatternSteps) -> None:
    for name in ("W1", "W2"):
        steps.keep(name, _append(f"{name} was here"))


def _append(record: str) -> Procedure[str]:
    log = yield from open_log()
    (slot,) = yield from append(log, [[json.dumps(record)]])
    if isinstance(slot, Exception):
        raise slot
    return f"appended {record!r}"


def _replayed(steps: PatternSteps) -> Judgement:
    _, entries = steps.read(poll())
    records = [each.record for each in entries]
    for name, said in steps.results.items():
        count = records.count(f"{name} was here")
        if count != 1:
            found = f"finds it {times_of(count)}" if count else "never finds it"
            return Judgement(False, f"{name} {said}, and a reader {found}")
    for name, actor in steps.actors.items():
        if actor.ended.startswith("Fenced") and f"{name} was here" in records:
            return Judgement(False, f"a reader sees a record of {name} that was refused")
    return Judgement(True, f"a reader replays {records}")


def times_of(count: int) -> str:
    return ("never", "once", "twice")[count] if count < 3 else f"{count} times"


# --- the one-file queue ---------------------------------------------------------------------------


def _enqueue(steps: PatternSteps) -> None:
    steps.keep("W1", _push())
    steps.keep("W2", _work())


def _push() -> Procedure[str]:
    yield from _submit(Push("job-1", PAYLOAD))
    return f"pushed {PAYLOAD!r}"


def _work() -> Procedure[str]:
    claimed = yield from _submit(Claim("claim-1", "W2"))
    if not isinstance(claimed, Claimed):
        return "found no job"
    yield from _submit(Complete("done-1", claimed.job.id, claimed.job.attempts))
    return f"did {claimed.job.payload!r}"


def _submit(operation: Operation) -> Procedure[Answer]:
    outcome = yield from commit([operation], QueuePolicy())
    return answer_or_raise(operation, outcome[1][0] if isinstance(outcome, tuple) else outcome)


def _queued(steps: PatternSteps) -> Judgement:
    waiting = len(steps.read(load()).file.jobs)
    done = sum("did" in str(said) for said in steps.results.values())
    if "W1" not in steps.results:
        return Judgement(True, f"W1 has no answer yet; the queue holds {waiting} jobs")
    if waiting + done == 1:
        return Judgement(True, f"one job was pushed; it is {'done' if done else 'in the queue'}")
    times = f"{times_of(waiting)} in the queue, {times_of(done)} done"
    return Judgement(False, f"one job was pushed; it is {times}")


# --- Terraform's lock file ------------------------------------------------------------------------


def _state(steps: PatternSteps) -> None:
    own = LockInfo(id="id-W1", operation="OperationTypeApply", who="W1")
    other = LockInfo(id="id-W2", operation="OperationTypePlan", who="W2")
    steps.keep("W1", _apply(own))
    steps.keep("W2", _break_in(own.id, other))


def _apply(info: LockInfo) -> Procedure[str]:
    yield from lock(STATE_KEY, info)
    yield from unlock(STATE_KEY, info.id)
    return "locked, applied and unlocked"


def _break_in(standing: str, info: LockInfo) -> Procedure[str]:
    yield from unlock(STATE_KEY, standing)
    yield from lock(STATE_KEY, info)
    return "force-unlocked and locked"


def _state_kept(steps: PatternSteps) -> Judgement:
    found = steps.read(read_state(STATE_KEY)).info
    there = found.id if isinstance(found, LockInfo) else ""
    refused = steps.actors["W1"].ended.startswith(("StateLocked", "LockUnknown"))
    if refused and there == "id-W1":
        return Judgement(False, "W1 was refused by its own lock, which no client will ever unlock")
    if "W2" in steps.results and there != "id-W2":
        return Judgement(False, f"W2 {steps.results['W2']}, and its lock file is gone")
    return Judgement(True, f"the lock file is {f'of {there}' if there else 'not there'}")


SCENARIOS = {
    "lock": StageScenario(
        lease_play.SAYS, Policy(), lease_play.bring_on,
        lambda steps: Judgement(*lease_play.judge(steps)), lease_play.MISTAKES,
        lease_play.TTL_MS + lease_play.WAITS_BEYOND_MS,
    ),
    "election": StageScenario(
        "Each client becomes leader of the next epoch and then writes resource.json. W2's clock is "
        "a minute ahead, so by that clock each epoch of W1 is over.",
        Policy(expiry=Expiry.WALL), _elect, _never_back,
        {"the resource does not check the epoch": election.MUTANTS["fence"],
         "a refused create counts as success": election.MUTANTS["create_412 ours"]},
        LATER_MS,
    ),
    "wal": StageScenario(
        "Each client opens the log with a new epoch, puts its fence into the next free slot, and "
        "appends one record.",
        None, _log, _replayed,
        {"a lost answer to a claim counts as failure": wal.MUTANTS["create_unknown lost"],
         "a lost answer to a claim counts as success": wal.MUTANTS["create_unknown ours"]},
    ),
    "queue": StageScenario(
        "W1 pushes one job into queue.json (read, change, write if unchanged); W2 claims one job "
        "and completes it.",
        None, _enqueue, _queued,
        {"the file does not remember past writes": queue.MUTANTS["no recent ids"]},
    ),
    "statelock": StageScenario(
        "W1 locks the state, works, and unlocks. W2 is an impatient colleague, who sends a "
        "force-unlock with W1's ID and then takes the lock.",
        None, _state, _state_kept,
        {"a lost answer is not read back": statelock.MUTANTS["settle"],
         "an unlock deletes whatever is there by then": statelock.MUTANTS["delete_version"]},
    ),
}  # fmt: skip


def mistakes(pattern: str) -> tuple[str, ...]:
    """The mistakes that can be planted in it."""
    if pattern not in SCENARIOS:
        raise ValueError(f"there is no pattern {pattern!r}; there are {', '.join(SCENARIOS)}")
    return tuple(SCENARIOS[pattern].mistakes)
