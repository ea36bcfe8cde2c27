"""The scenarios `commit` and `clean`: whole transactions, markers, heartbeats, rollbacks, cleans.

The table's own procedures, under the simulator. In half of the worlds no lock excludes anybody,
for the fence alone is to keep the table right; in the others it is the real one. A file of a commit
is a JSON count for each key, to which an upsert adds one: a row too many or too few shows in a sum.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lockkit.drive import Procedure, Sleep
from lockkit.mutants import Mutant
from lockkit.outcome import Found
from lockkit.rules import Rules
from lockkit.sim import Scenario
from lockkit.sim.lease import RATE_OFF, LeaseRun, Session, around
from lockkit.sim.shelf import PROFILES, SOUND, Decided, Stored
from lockkit.sim.task import Node, Violated
from lockkit.sim.weather import Weather
from lockkit.sim.world import World
from lockkit.state import LockLost
from lockkit.table.ask import TableError, create, read
from lockkit.table.clean import carry_out, plan_clean
from lockkit.table.commit import commit, trust
from lockkit.table.decide import CommitUnknown
from lockkit.table.failed import failed_writes
from lockkit.table.heartbeat import Beating, HeartbeatExpired, beat, start
from lockkit.table.incremental import load_increment
from lockkit.table.layout import NO_COMMIT, WriteStat, file_name
from lockkit.table.markers import mark, unmark
from lockkit.table.pending import load_rollback_plan
from lockkit.table.properties import TableConfig, create_table, load_config
from lockkit.table.pulse import HeartbeatRules, end, forget
from lockkit.table.retention import CleanRules
from lockkit.table.rollback import roll_back
from lockkit.table.snapshot import load_snapshot
from lockkit.table.timeline import load_timeline
from lockkit.table.transaction import Known, Prepared, begin, prepare
from lockkit.table.truth import Truth

STEPS = 900
KEYS, GROUPS = 8, 3
COMMITS_MAX, TRIES_MAX, ROUNDS_MAX = 3, 4, 40
CLOCK_OFF_MS = 2_000
BEATS = HeartbeatRules(interval_ms=1_500)
RETAINED = CleanRules(commits=2)
SCHEMA = '{"type":"record","name":"counts","fields":[{"name":"id","type":"string"}]}'
TOLD = "what a writer was told is so"
SUMS = "every commit added one to each of its keys"
EXPECTED = (TableError, LockLost, CommitUnknown)


@dataclass(slots=True)
class Beats:
    """A writer's heartbeat, as `Heartbeat` keeps it."""

    now: Beating
    since_ms: int
    until_true_ms: float = 0.0
    """When its belief ends, in true time."""
    over: bool = False
    lost: bool = False


@dataclass(slots=True)
class Tried:
    """A transaction that came as far as its commit, and what its writer was told."""

    keys: tuple[str, ...]
    told: str = ""


@dataclass(frozen=True, slots=True)
class Grant:
    """What a commit needs of a lock."""

    epoch: int


@dataclass(slots=True)
class TableRun:
    """One seed's table, and everybody who does something to it."""

    world: World
    leases: LeaseRun
    config: TableConfig
    locked: bool
    truth: Truth = field(init=False)
    beats: dict[str, Beats] = field(default_factory=dict)
    tried: dict[str, Tried] = field(default_factory=dict)
    epoch: int = 0
    grants: int = 0

    def __post_init__(self) -> None:
        self.truth = Truth(self.lives)

    # --- what must hold --------------------------------------------------------------------------

    def heard(self, write: Decided, after: Stored | None) -> None:
        self.leases.heard(write, after)
        self.truth.heard(write, after)

    def lives(self, instant: str) -> bool:
        beats = self.beats.get(instant)
        if beats is None or beats.over or beats.lost:
            return False
        return self.world.time.now_ms < beats.until_true_ms

    def noted(self, kind: str, data: Mapping[str, Any]) -> None:
        if kind == "checked":
            self.truth.covered[data["instant"]] = (
                frozenset(data["covered"]), data.get("horizon") or ""
            )  # fmt: skip

    def crashed(self, node: Node) -> None:
        self.leases.crashed(node)
        for each in self.beats.values():
            each.over |= each.now.holder == f"{node.name}.{node.life}"

    def end(self) -> None:
        """All comes to rest; what is left of the dead is taken back; then the table is judged."""
        world = self.world
        world.finish()
        world.run(self.last())
        told = {instant: each.told for instant, each in self.tried.items()}
        for instant, what in told.items():
            if what == instant and instant not in self.truth.visible:
                raise Violated(TOLD, f"{instant} was acknowledged, and is not visible")
            if what in ("CommitConflict", "LockLost") and instant in self.truth.visible:
                raise Violated(TOLD, f"{instant} was told {what}, and is visible")
        expected: dict[str, int] = {}
        for instant in self.truth.visible:
            for key in self.tried[instant].keys if instant in self.tried else ():
                expected[key] = expected.get(key, 0) + 1
        found = world.run(self.counts())
        if found != expected:
            raise Violated(SUMS, f"the table has {found}, its commits say {expected}")

    def last(self) -> Procedure[None]:
        """One more writer, when everybody else is gone: whatever was decided becomes visible."""
        prepared = yield from prepare((yield from begin()), [], schema=SCHEMA)
        yield from commit(prepared, Grant(self.epoch + 1_000_000))

    def counts(self) -> Procedure[dict[str, int]]:
        snapshot, found = (yield from load_snapshot()), dict[str, int]()
        for each in snapshot.slices:
            found |= yield from _read_counts(each.path)
        return found

    # --- writers ---------------------------------------------------------------------------------

    def begin_writer(self, node: Node) -> None:
        self.world.spawn(node, self.writer(self.leases.join(node)))

    def writer(self, session: Session) -> Procedure[None]:
        dice = self.world.dice
        for _ in range(COMMITS_MAX):
            keys = tuple(sorted(dice.sample([f"k{n}" for n in range(KEYS)], 2)))
            for _ in range(TRIES_MAX):
                try:
                    yield from self.transact(session, keys)
                    break
                except EXPECTED:
                    yield Sleep(dice.random())
            yield Sleep(dice.random() * 2)

    def transact(self, session: Session, keys: tuple[str, ...]) -> Procedure[None]:
        """Begin, beat, mark, write, prepare; then, under the lock, commit."""
        node = session.node
        transaction = yield from begin()
        instant = transaction.instant
        beats = Beats(
            Beating(instant, BEATS.ttl_ms, f"{node.name}.{node.life}"), node.clock.boot_ms()
        )
        self.beats[instant] = beats
        try:
            beats.now = yield from start(beats.now)
            self._proven(beats, node)
            self.world.spawn(node, self.keep_beating(beats, node), f"{node.name} beats")
            stats = []
            snapshot = yield from load_snapshot(covering=transaction.covered)
            for group in sorted({_group(key) for key in keys}):
                mine = [key for key in keys if _group(key) == group]
                base = snapshot.groups.get(("", group))
                counts = {} if base is None else (yield from _read_counts(base.path))
                for key in mine:
                    counts[key] = counts.get(key, 0) + 1
                path, body = file_name(group, instant), json.dumps(counts).encode()
                yield from mark(instant, path, "CREATE" if base is None else "MERGE")
                yield from create(path, body)
                stats.append(WriteStat(
                    partition="", file_id=group, path=path, writes=len(counts),
                    previous=NO_COMMIT if base is None else base.instant, size_bytes=len(body),
                ))  # fmt: skip
            self._check(beats, node)
            prepared = yield from prepare(transaction, stats, schema=SCHEMA)
            self.tried[instant] = Tried(keys)
            yield from self.publish(session, prepared, beats)
        finally:
            beats.over = True
        yield from forget(instant)
        yield from unmark(instant)

    def publish(self, session: Session, prepared: Prepared, beats: Beats) -> Procedure[None]:
        """As often as it takes to know what became of it."""
        mine, node = self.tried[prepared.instant], session.node
        for _ in range(TRIES_MAX):
            grant, believe = yield from self.guard(session)

            def both(believe: Callable[[], None] = believe) -> None:
                believe()
                self._check(beats, node)

            try:
                yield from commit(prepared, grant, believe=both)
                mine.told = prepared.instant
            except EXPECTED as error:
                mine.told = type(error).__name__
                if not isinstance(error, CommitUnknown):
                    raise
            yield from self.let_go(session)
            if mine.told == prepared.instant:
                return

    def guard(self, session: Session) -> Procedure[tuple[Grant, Callable[[], None]]]:
        """A grant of the lock; or, where no lock excludes anybody, whatever epoch comes next."""
        if not self.locked:
            self.epoch += 1
            return Grant(self.epoch), trust
        yield from self.let_go(session)
        if not (yield from self.leases.acquire(session)):
            raise LockLost("never acquired")
        grant, clock = session.client.state.grant, session.node.clock
        assert grant is not None

        def believe() -> None:
            until = session.client.state.until_ms
            if until is None or clock.boot_ms() >= until:
                raise LockLost("the lease ran out")

        return Grant(grant.epoch), believe

    def let_go(self, session: Session) -> Procedure[None]:
        if session.client.state.grant is not None:
            yield from self.leases.release(session)

    # --- heartbeats ------------------------------------------------------------------------------

    def keep_beating(self, beats: Beats, node: Node) -> Procedure[None]:
        """As `Heartbeat` does in a thread of its own."""
        for _ in range(ROUNDS_MAX):
            yield Sleep(BEATS.interval_ms / 1000)
            if beats.over:
                return
            sent_ms = node.clock.boot_ms()
            beats.since_ms = beats.since_ms if beats.now.out else sent_ms
            before = beats.now
            try:
                beats.now = yield from beat(before)
            except HeartbeatExpired:
                beats.lost = True
                return
            if beats.now.version != before.version:
                self._proven(beats, node)

    def _proven(self, beats: Beats, node: Node) -> None:
        beats.until_true_ms = node.clock.true_ms(beats.since_ms + BEATS.belief_ms)

    def _check(self, beats: Beats, node: Node) -> None:
        if beats.lost or self.world.time.now_ms >= beats.until_true_ms:
            raise HeartbeatExpired(beats.now.instant, "no beat was proven for long")

    # --- services and readers --------------------------------------------------------------------

    def begin_cleaner(self, node: Node) -> None:
        self.world.spawn(node, self.cleaner(self.leases.join(node)))

    def cleaner(self, session: Session) -> Procedure[None]:
        for _ in range(ROUNDS_MAX):
            yield Sleep(self.world.dice.random() * 6)
            if not self.busy():
                return
            try:
                yield from self.take_back(session)
                yield from self.clean()
            except EXPECTED:
                yield from self.let_go(session)

    def take_back(self, session: Session) -> Procedure[None]:
        """Every write whose heartbeat is over, and every rollback that somebody left half done."""
        config, version = yield from load_config()
        known, names = Known(config, version), config.names
        now = yield from load_timeline(names)
        doomed: dict[str, str | None] = {}
        for instant, action in now.pending.items():
            plan = (yield from load_rollback_plan(names, instant)) if action == "rollback" else None
            if plan is not None:
                doomed[plan.target] = instant
        for pulse in (yield from failed_writes(names, now, "LAZY", BEATS)):
            if pulse.instant not in doomed and (yield from end(pulse)):
                doomed[pulse.instant] = None
        for target, resume in doomed.items():
            grant, believe = yield from self.guard(session)
            yield from roll_back(target, grant, known, believe=believe, resume=resume)
            yield from self.let_go(session)

    def clean(self) -> Procedure[None]:
        config, version = yield from load_config()
        plan = yield from plan_clean(Known(config, version), RETAINED)
        if plan.instant:
            yield from carry_out(plan, config.names)

    def puller(self) -> Procedure[None]:
        """Follows the table: whatever completes at or before where it was, it has seen."""
        start = ""
        for _ in range(ROUNDS_MAX):
            yield Sleep(self.world.dice.random() * 2)
            if not self.busy():
                return
            try:
                increment = yield from load_increment(start)
            except TableError:
                continue
            if increment.snapshot is not None:
                self.truth.pull(start, increment.end, increment.snapshot.groups)
            start = increment.end

    def busy(self) -> bool:
        """Whether a writer is yet at work, or will be back."""
        at_work = [each.node for each in self.world.tasks]
        down = [each for each in self.world.nodes if each.down]
        return any(each.name.startswith("W") for each in (*at_work, *down))


def _group(key: str) -> str:
    return f"group-{int(key[1:]) % GROUPS}"


def _read_counts(path: str) -> Procedure[dict[str, int]]:
    match (yield from read(path)):
        case Found(body, _):
            counts: dict[str, int] = json.loads(body)
            return counts
        case _missing:
            raise TableError(f"{path} is gone: it was cleaned, or rolled back; begin again")


def _set_up(kind: str, seed: str, steps: int, mutant: Mutant | None) -> TableRun:
    dice = random.Random(f"{kind} {seed}")
    rules = Rules() if mutant is None else mutant.of(Rules())
    profile, weather = PROFILES[dice.choice(SOUND)], Weather.of(dice)
    world = World(seed, steps, profile, weather, dice.random() < 0.3)
    config = TableConfig(name="t", record_key="id", version=dice.choice((6, 9)), mode="fenced")
    run = TableRun(world, LeaseRun(world, rules), config, dice.random() < 0.5)
    world.run(create_table(config))
    world.shelf.heard, world.on_crash, world.on_note = run.heard, run.crashed, run.noted
    births = [("W", run.begin_writer)] * (2 + int(dice.random() * 2))
    if kind == "clean":
        births.append(("C", run.begin_cleaner))
    for number, (letter, birth) in enumerate(births, 1):
        off_ms = int(around(dice, CLOCK_OFF_MS))
        node = world.node(f"{letter}{number}", rate=1 + around(dice, RATE_OFF), offset_ms=off_ms)
        node.clock_steps_ms, node.birth = CLOCK_OFF_MS, birth
        birth(node)
    reader = world.node("R")
    world.spawn(reader, run.puller())
    return run


SCENARIOS = tuple(
    Scenario(kind, says, STEPS, partial(_set_up, kind), sometimes)
    for kind, says, sometimes in (
        (
            "commit", "writers with heartbeats and markers commit to one table, others follow it",
            ("lost response", "roll-forward", "refused commit", "stall", "restart"),
        ),
        (
            "clean", "the same, and a service that takes back the dead and cleans old files",
            ("lost response", "roll-forward", "refused commit", "stall", "restart", "rollback"),
        ),
    )
)  # fmt: skip
