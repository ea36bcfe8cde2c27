"""Random histories of one table: every operation and service, switches of the mode, dead processes.

A dictionary says what the table must show, and hudi-rs reads what it can. Two handles stay open; a
third one dies at a random request of an operation, and is rolled back later.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from deaths import Died
from hudi_rs import read_by_hudi_rs

from lockkit.cli.main import main
from lockkit.clock import Clock
from lockkit.errors import LockBusy, LockLost, TableError
from lockkit.runtime import SiblingInterrupted
from lockkit.stores import open_store
from lockkit.table import CommitUnknown, Table
from lockkit.table.errors import (
    CommitConflict,
    NewerFence,
    RefusedOption,
    TableBlocked,
    TableChanged,
)
from lockkit.table.format.property_keys import COPY_ON_WRITE, MERGE_ON_READ

OPTIONS = {"hoodie.clean.commits.retained": "1", "hoodie.clean.automatic": "false",
           "hoodie.write.lock.client.num_retries": "3"}  # fmt: skip
WORLDS = [(9, COPY_ON_WRITE, "fenced"), (6, COPY_ON_WRITE, "fenced"), (9, MERGE_ON_READ, "fenced"),
          (9, COPY_ON_WRITE, "hudi"), (6, COPY_ON_WRITE, "hudi"), (9, MERGE_ON_READ, "hudi"),
          (9, COPY_ON_WRITE, "group"), (6, COPY_ON_WRITE, "group")]  # fmt: skip
REGIONS = ("EU", "US")
AT_ONCE = {
    "lockkit.table.occ.late.SETTLED_MS": -10_000, "lockkit.table.occ.commit.LATE_MS": -1,
    "lockkit.table.services.archive_group.REPUBLISHED_MS": 0,
    "lockkit.table.occ.committing.HUDI_SKEW_MS": 0,
}
"""No age keeps commits from the archive, and nobody waits for Hudi's clocks."""
AGAIN = 3
"""A write of a living handle that conflicts is tried so often again."""
Model = dict[str, int]


@dataclass
class Jumping(Clock):
    """A clock that jumps over every pause of the thread that plays."""

    ahead_ms: int = 0
    plays: threading.Thread = field(default_factory=threading.current_thread)

    def boot_ms(self) -> int:
        return Clock.boot_ms(self) + self.ahead_ms

    def wall_ns(self) -> int:
        return Clock.wall_ns(self) + self.ahead_ms * 1_000_000

    def sleep(self, seconds: float) -> None:
        if threading.current_thread() is self.plays:
            self.ahead_ms += round(max(0.0, seconds) * 1000)
        else:
            time.sleep(max(0.0, seconds))

    def wait(self, woken: threading.Event, seconds: float) -> bool:
        if threading.current_thread() is not self.plays:
            return Clock.wait(self, woken, seconds)
        if not woken.wait(max(0.0, min(seconds, 0.01))):
            self.sleep(seconds)
        return woken.is_set()


@dataclass
class Doomed:
    """The stores of one process, which dies at its n-th request."""

    left: int
    sent: bool
    dead: bool = False
    turn: threading.Lock = field(default_factory=threading.Lock)

    def opened(self, *given: Any, **named: Any) -> Any:
        return _DoomedStore(open_store(*given, **named), self)


class _DoomedStore:
    def __init__(self, store: Any, fate: Doomed) -> None:
        self._store, self._fate = store, fate

    def __getattr__(self, name: str) -> Any:
        of, fate = getattr(self._store, name), self._fate
        if name not in ("get", "put", "list", "delete", "get_file", "put_file"):
            return of

        def answered(*given: Any, **named: Any) -> Any:
            with fate.turn:
                fate.left -= 1
                last = fate.left < 0 and not fate.dead
                fate.dead |= last
                if last and fate.sent:
                    of(*given, **named)
            if fate.dead:
                raise Died
            return of(*given, **named)

        return answered


@contextmanager
def doomed(most: int, *, sent: bool) -> Iterator[Doomed]:
    """Whatever is opened meanwhile belongs to the process that dies."""
    fate = Doomed(most, sent)
    with ExitStack() as stack:
        for module in ("lockkit.table.handle", "lockkit.table.arrow_write", "lockkit.lock.handle"):
            stack.enter_context(patch(f"{module}.open_store", fate.opened))
        yield fate


def rows(keys: list[str], v: int) -> pa.Table:
    return pa.table({"id": pa.array(keys, pa.string()),
                     "region": pa.array([region(each) for each in keys], pa.string()),
                     "v": pa.array([v] * len(keys), pa.int64())})  # fmt: skip


def region(key: str) -> str:
    return REGIONS[int(key[1:]) % 2]


def contents(found: pa.Table) -> Model:
    listed = found.to_pylist()
    model = {row["id"]: row["v"] for row in listed}
    assert len(model) == len(listed), "a row is there twice"
    return model


def by_hudi_rs(folder: Path) -> Model:
    return contents(read_by_hudi_rs(folder, empty=pa.schema([])))


class Wrong(AssertionError):
    """The table is not what the dictionary says."""


@dataclass
class RandomHistory:
    """One table of one seed."""

    seed: int
    version: int
    kind: str
    mode: str
    folder: Path
    steps: int = 20
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dice = random.Random(f"{self.seed} {self.version} {self.kind} {self.mode}")
        self.url, self.clock = f"file://{self.folder}", Jumping()
        self.models: list[Model] = [{}]
        """What the table may show: two, while it is open whether a dead process has committed."""
        self.saved: list[tuple[str, Model]] = []
        self.pulled: Model = {}
        self.pulled_until = ""
        self.v = self.key = 0
        self.merged = self.kind == MERGE_ON_READ
        self.hashed = self.merged and (self.mode == "hudi" or self.dice.random() < 0.4)
        self.precombine = "v" if self.dice.random() < 0.5 else None
        self.archived = False

    # --- what is done ----------------------------------------------------------------------------

    def operation(self) -> tuple[str, Callable[[Table], Any], Callable[[Model], Model]]:
        """Its name, how a handle does it, and what becomes of the rows."""
        dice = self.dice
        every = {"append": 4, "upsert": 5, "delete": 2, "overwrite": 1, "delete_partition": 1,
                 "overwrite_table": 0.5, "cluster": 1, "compact": 2, "clean": 2, "archive": 3,
                 "savepoint": 2, "restore": 2, "delete_savepoint": 0.7, "roll_back": 1}  # fmt: skip
        if self.merged:
            del every["cluster"]
        else:
            del every["compact"]
        if self.hashed and self.mode == "hudi":
            for each in ("overwrite", "overwrite_table", "delete_partition"):
                del every[each]
        name = dice.choices(list(every), list(every.values()))[0]
        self.v += 1
        v, known = self.v, sorted(set().union(*self.models))
        new = [f"k{self.key + each}" for each in range(dice.randint(1, 3))]
        some = dice.sample(known, min(len(known), dice.randint(1, 3)))
        self.key += len(new)
        same: Callable[[Model], Model] = dict
        match name:
            case "append":
                return name, lambda t: t.append(rows(new, v)), lambda m: m | dict.fromkeys(new, v)
            case "upsert":
                both = some + new[: dice.randint(0, 1)]
                both = both or new
                return name, lambda t: t.upsert(rows(both, v)), lambda m: m | dict.fromkeys(both, v)
            case "delete":
                gone = some or new
                return (name, lambda t: t.delete(rows(gone, v)),
                        lambda m: {k: x for k, x in m.items() if k not in gone})  # fmt: skip
            case "overwrite" | "overwrite_table":
                whole = name != "overwrite"
                regions = {region(each) for each in new}
                return (name, lambda t: t.overwrite(rows(new, v), whole_table=whole),
                        lambda m: {k: x for k, x in m.items()
                                   if not whole and region(k) not in regions}
                        | dict.fromkeys(new, v))  # fmt: skip
            case "delete_partition":
                of = dice.choice(REGIONS)
                return (name, lambda t: t.delete_partition(f"region={of}"),
                        lambda m: {k: x for k, x in m.items() if region(k) != of})  # fmt: skip
            case "archive":
                return name, lambda t: t.archive(keep_min=2, keep_max=3), same
            case "savepoint":
                return name, lambda t: t.savepoint(), same
            case "restore" if self.saved:
                instant, model = self.saved[-1]
                return name, lambda t: t.restore(instant), lambda _: dict(model)
            case "delete_savepoint" if self.saved:
                instant, _ = dice.choice(self.saved)
                return name, lambda t: t.delete_savepoint(instant), same
            case "roll_back":
                return name, lambda t: t.roll_back_dead(), same
            case "cluster" | "compact" | "clean":
                return name, lambda t: getattr(t, name)(), same
        return "clean", lambda t: t.clean(), same

    def opened(self) -> Table:
        return Table(self.url, options=OPTIONS, clock=self.clock)

    def run(self) -> None:
        how: dict[str, Any] = {"mode": "fenced" if self.mode == "group" else self.mode,
               "commit": "group" if self.mode == "group" else "serial"}  # fmt: skip
        Table.create(self.url, record_key="id", partition_by="region", version=self.version,
                     table_type=self.kind, index="BUCKET" if self.hashed else "", buckets=2,
                     precombine=self.precombine, options=OPTIONS, clock=self.clock,
                     **how).close()  # fmt: skip
        with self.opened() as one, self.opened() as other:
            self.tables = (one, other)
            for number in range(self.steps):
                self.step(number)
            self.bury("the end")
            self.check("the end")

    def step(self, number: int) -> None:
        chance = self.dice.random()
        if len(self.models) > 1 and chance < 0.4:
            return self.bury(f"{number}")
        if chance > 0.93:
            return self.switch(number)
        name, way, then = self.operation()
        if chance > 0.75 and len(self.models) == 1:
            return self.die(number, name, way, then)
        which = self.dice.randrange(2)
        table = self.tables[which]
        done = self.attempt(f"{number} {name} by {which}", lambda: way(table))
        for _ in range(AGAIN):
            if done is None and len(self.models) == 1 and "CommitConflict" in self.log[-1]:
                done = self.attempt("- again", lambda: way(table))
        if done is None and len(self.models) == 1 and "CommitConflict" in self.log[-1]:
            raise Wrong(f"nobody else writes, and it conflicts again and again: {self.log[-1]}")
        if done is not None:
            self.after(name, done[0], then)
        self.check(f"{number} {name}")
        return None

    def after(self, name: str, result: Any, then: Callable[[Model], Model]) -> None:
        if name == "savepoint":
            shown = contents(self.tables[0].read())
            self.saved = [each for each in self.saved if each[0] != result.instant]
            self.saved.append((result.instant, shown))
        elif name == "delete_savepoint":
            self.saved = [each for each in self.saved
                          if any(self.folder.rglob(f"{each[0]}*.savepoint"))]  # fmt: skip
        self.archived |= name == "archive"
        self.models = [then(each) for each in self.models]
        if self.models[0] == self.models[-1]:
            self.models = self.models[:1]
        if name == "restore":
            self.pulled, self.pulled_until = {}, ""

    def attempt(self, tag: str, way: Callable[[], Any]) -> tuple[Any] | None:
        """What it returned; None: it was refused, by an error that says so."""
        try:
            done = way()
        except (TableError, LockLost, LockBusy, CommitUnknown) as error:
            said = f"{type(error).__name__}: {str(error)[:240]}"
            self.log.append(f"{tag}: {said}")
            expected = (CommitConflict, TableBlocked, TableChanged, LockBusy, NewerFence,
                        RefusedOption)  # fmt: skip
            if len(self.models) == 1 and not isinstance(error, expected):
                raise
            return None
        self.log.append(f"{tag}: {str(done)[:100]}")
        return (done,)

    def die(
        self, number: int, name: str, way: Callable[[Table], Any], then: Callable[[Model], Model]
    ) -> None:
        most, sent = self.dice.randint(0, 45), self.dice.random() < 0.5
        with doomed(most, sent=sent) as fate:
            table = self.opened()
            try:
                done = self.attempt(f"{number} {name} by the doomed", lambda: way(table))
                fate.dead = True
            except (Died, SiblingInterrupted):
                done = None
                self.log.append(f"{number} {name} died at {most} sent={sent}")
                self.archived |= name == "archive"
                self.models = [self.models[0], then(self.models[0])]
                if name in ("restore", "savepoint", "delete_savepoint"):
                    self.half(name)
            else:
                if done is not None:
                    self.after(name, done[0], then)
            table._pid = None
            for client in table._upkeep.context.together:
                client.closing.set()
        self.check(f"{number} {name} dead")

    def half(self, name: str) -> None:
        """An operator's command that died is run again, once its lease is over."""
        self.clock.ahead_ms += 3_600_000
        self.age()
        if name == "restore":
            instant, model = self.saved[-1]
            again = self.attempt("- restore again", lambda: self.tables[0].restore(instant))
            if again is None:
                raise Wrong(f"a restore that died cannot be finished: {self.log[-1]}")
            self.models = [dict(model)]
            self.pulled, self.pulled_until = {}, ""
        else:
            there = {each.name[:17] for each in self.folder.rglob("*.savepoint")}
            shown = contents(self.tables[0].read())
            self.saved = [each for each in self.saved if each[0] in there]
            for each in sorted(there - {saved for saved, _ in self.saved}):
                self.saved.append((each, shown))
            self.models = self.models[:1]

    def age(self) -> None:
        """What is pending belongs to a process that has not been heard of for long."""
        hoodie = self.folder / ".hoodie"
        for ends in (".heartbeat/*", ".locks/table_lock.json", "**/*.requested", "**/*.inflight"):
            for each in hoodie.glob(ends):
                os.utime(each, (0, 0))

    def bury(self, tag: str) -> None:
        self.clock.ahead_ms += 3_600_000
        self.age()
        done = self.attempt(f"{tag} bury by 0", self.tables[0].roll_back_dead)
        if done is None:
            done = self.attempt(f"{tag} bury by 1", self.tables[1].roll_back_dead)
        if done is None:
            raise Wrong(f"nobody can roll back: {self.log[-1]}")
        # Decided commits are published by the next writer.
        self.v += 1
        name, v = f"k{self.key}", self.v
        self.key += 1
        way = partial(self.tables[1].append, rows([name], v))
        if not any(self.attempt(f"{tag} append by 1", way) for _ in range(2)):
            raise Wrong(f"nobody can write: {self.log[-1]}")
        self.models = [each | {name: v} for each in self.models]
        shown = contents(self.tables[1].read())
        if shown not in self.models:
            self.check(tag)
        self.models = [shown]
        self.check(tag)

    def switch(self, number: int) -> None:
        to = self.dice.choice([each for each in ("fenced", "hudi", "group") if each != self.mode])
        said = StringIO()
        with ExitStack() as stack:
            for each in (redirect_stdout(said), redirect_stderr(said)):
                stack.enter_context(each)
            for module in ("lockkit.cli.fence", "lockkit.lock.handle"):
                stack.enter_context(patch(f"{module}.Clock", lambda: self.clock))
            code = main(["table", "mode", self.url, to, "--yes"])
        self.log.append(f"{number} mode {to}: {code} {said.getvalue()[:200]}")
        if code == 0:
            self.mode = to
        self.check(f"{number} mode {to}")

    # --- what is checked -------------------------------------------------------------------------

    def check(self, tag: str) -> None:
        found = []
        for each in self.tables:
            try:
                found.append(contents(each.read()))
            except TableBlocked:
                if len(self.models) == 1:
                    raise
                return  # the restore of a dead process is pending
        if not (self.merged and self.archived):  # it does not look into the archive
            found.append(by_hudi_rs(self.folder))
        for who, each in zip(("one", "other", "hudi-rs"), found, strict=False):
            if each not in self.models:
                off = [sorted(set(each.items()) ^ set(m.items()))[:8] for m in self.models]
                raise Wrong(f"{tag}: {who} differs by {off}")
            if each != found[0]:
                raise Wrong(f"{tag}: {who} does not read what the first does")
        for instant, model in self.saved:
            shown = contents(self.tables[0].read(as_of=instant))
            if shown != model:
                off = sorted(set(shown.items()) ^ set(model.items()))[:8]
                raise Wrong(f"{tag}: as of {instant} {off}")
        self.pull(tag, found[0])

    def pull(self, tag: str, shown: Model) -> None:
        """A reader of increments misses no row that is there."""
        changed, until = self.tables[1].changes(self.pulled_until)
        self.pulled |= contents(changed) if changed.num_rows else {}
        self.pulled_until = until.end or self.pulled_until
        late = {key: v for key, v in shown.items() if self.pulled.get(key) != v}
        if late and len(self.models) == 1 and until.held_back is None:
            raise Wrong(f"{tag}: the increments lack {late} at {until}")


@pytest.mark.filterwarnings("ignore")  # threads of the process that died, instants ahead
@pytest.mark.parametrize("seed", [0, *(
    pytest.param(each, marks=pytest.mark.soak) for each in range(1, 30)
)])  # fmt: skip
@pytest.mark.parametrize(("version", "kind", "mode"), WORLDS)
def test_a_table_shows_what_a_dictionary_says_after_any_operations_and_deaths(
    version: int, kind: str, mode: str, seed: int, tmp_path: Path
) -> None:
    pytest.importorskip("hudi", reason="hudi-rs judges the tables: pip install hudi==0.5.0")
    history = RandomHistory(seed, version, kind, mode, tmp_path / "t")
    with ExitStack() as stack:
        for name, value in AT_ONCE.items():
            stack.enter_context(patch(name, value))
        stack.enter_context(patch("lockkit.table.occ.group.publish.is_busy", lambda _: False))
        try:
            history.run()
        except Exception as error:
            error.add_note("\n".join(history.log))
            raise
    assert len(history.log) >= history.steps
