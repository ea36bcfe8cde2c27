"""One writer: a Python process that commits orders in rounds, each under the lock.

`child.ChildProcess` starts it with a `WriterPlan`. It emits its lane of the history and obeys
`{"do": "stall", "at": "commit"}`, `{"do": "fence", "on": false}`, `{"do": "hold", "on": true}` and
`{"do": "stop"}`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from lockkit.clock import Clock, back_off_s
from lockkit.errors import LockBusy, LockkitError, LockLost, StoreError, TableError, Unanswered
from lockkit.lab.processes.child import Channel, serve
from lockkit.lab.processes.writer_plan import WriterPlan
from lockkit.lock.handle import Lock
from lockkit.runtime import run
from lockkit.sinks import Emit
from lockkit.spark.orders import TABLE, Orders, OrdersPart, RegionBatch, fields_of, open_orders
from lockkit.spark.place import TableAddress
from lockkit.stores import Store
from lockkit.table import (
    Prepared,
    Snapshot,
    begin,
    create_table,
    load_snapshot,
    partition_path,
    prepare,
)
from lockkit.table.errors import CommitConflict, CommitUnknown, HeartbeatExpired, RefusedOption
from lockkit.table.format.layout import FileGroup
from lockkit.table.format.properties import GROUP, SERIAL
from lockkit.table.occ.conflict import SIMPLE
from lockkit.table.occ.fence import FENCE_KEY
from lockkit.table.occ.group.fence import parse_group_fence
from lockkit.table.occ.group.publish import publish_in_group
from lockkit.table.occ.heartbeat import Heartbeat
from lockkit.table.occ.heartbeat_rules import HeartbeatRules
from lockkit.table.occ.publish import publish
from lockkit.table.occ.transaction import TableCache, Transaction
from lockkit.table.read.opening import look_over
from lockkit.table.write.groups import TargetGroup

FAILURES_MAX = 8
"""Rounds in a row that may fail for the store's sake before the writer gives up."""
UNKNOWN_TRIES_MAX = 3
HELD_POLL_S = 0.05
ATTEMPTS_PER_ROUND_MAX = 50
LOCK_TIMEOUT_MIN_S, LOCK_TIMEOUT_LEASES = 10.0, 4.0
CODE_FAILED = 1
DECIDES = "with group commit only the fence decides"
NOWHERE = "http://127.0.0.1:9"
"""An endpoint to which nothing is sent."""
SHARED = "shared-0"
"""The file group, in the first region, that every writer rewrites now and then."""


STALLS = {"commit": "checked", "decided": "fenced"}
"""Where a stall may strike, and the event after which it does."""


class Control:
    """What the supervisor may change in a running writer: its fence, where it stalls or waits.

    The stall is here, in the main thread, right after `checked` (or `fenced`) was emitted, so that
    the whole process stops, its heartbeat included.
    """

    def __init__(self, channel: Channel, *, fence: bool = True, offset_ms: int = 0) -> None:
        self.fence = fence
        self.held = False
        """Whether it waits with a prepared commit, before it asks for the lock."""
        self.stop = channel.stop
        self._channel = channel
        self._offset_ms = offset_ms
        self._stall_after = ""
        self.in_group = False
        """Whether the table's writers commit together, by a fence that is never off."""
        self.dies_combining = False
        """Whether it is killed at its next replacement of the fence that decides for others."""

    def emit(self, kind: str, **fields: Any) -> None:
        if self._offset_ms and fields.get("until_ms") is not None:
            fields["until_ms"] -= self._offset_ms  # this writer's clock is wrong, the history's not
        self._channel.emit(kind, **fields)
        here = threading.current_thread() is threading.main_thread()
        if kind == self._stall_after and here:
            self._stall_after = ""
            os.kill(os.getpid(), signal.SIGSTOP)

    def obey(self, command: dict[str, Any]) -> None:
        match command:
            case {"do": "stall", "at": at}:
                self._stall_after = STALLS.get(at, "")
            case {"do": "hold", "on": on}:
                self.held = bool(on)
            case {"do": "die", "at": "combining"}:
                self.dies_combining = True
            case {"do": "fence", "on": False} if self.in_group:
                self.emit("note", text=f"the fence stays on: {DECIDES}")
            case {"do": "fence", "on": on}:
                self.fence = bool(on)
                self.emit("note", text=f"the fence is {'on' if on else 'off'} for the next commit")
            case _:
                self.emit("note", text=f"an unknown command: {str(command)[:80]}")


@dataclass(slots=True, kw_only=True)
class FleetWriter:
    """Commits batch after batch: usually to file groups of its own, sometimes to the shared one."""

    plan: WriterPlan
    part: OrdersPart
    store: Store
    lock: Lock
    orders: Orders
    control: Control
    clock: Clock
    committed: int = 0
    together: list[Any] = field(default_factory=list)
    """This process's client of group commit, once it has committed."""
    own: set[str] = field(default_factory=set)
    lingering: list[threading.Thread] | None = field(default_factory=list)
    _rounds: int = 0
    _failures: int = 0
    _known: TableCache | None = field(default=None, repr=False)
    _snapshot: Snapshot | None = field(default=None, repr=False)

    @property
    def emit(self) -> Emit:
        return self.control.emit

    def work(self) -> None:
        """Commit until enough commits were published, or until it is stopped."""
        rounds = self.plan.rounds
        attempts_max = None if rounds is None else rounds * ATTEMPTS_PER_ROUND_MAX
        while not self.control.stop.is_set():
            if rounds is not None and self.committed >= rounds:
                break
            if attempts_max is not None and self._rounds >= attempts_max:
                raise TableError(
                    "the table", f"took only {self.committed} commits in {self._rounds} rounds",
                    "run it with fewer writers",
                )  # fmt: skip
            self._rounds += 1
            if self._one_round():
                self.committed += 1
                self._failures = 0
            self.clock.wait(self.control.stop, self.clock.uniform(0.5, 1.5) * self.plan.pause_s)
        for each in self.lingering or ():
            each.join()  # it reports what it publishes

    def _one_round(self) -> bool:
        """True if it was published. A refusal is no error: the next round begins again."""
        try:
            self._transact()
        except (CommitConflict, HeartbeatExpired, LockLost):
            return False  # the commit has emitted why; or this process slept and begins again
        except (LockBusy, Unanswered, CommitUnknown) as error:
            self._pause_over(error)
            return False
        except TableError as error:
            if not self.committed:
                raise  # it failed from the start: a wrong address, or a wrong table
            self._known = None
            self._pause_over(error)
            return False
        return True

    def _transact(self) -> None:
        transaction = self._begin()
        with ExitStack() as alive:
            rules = self._heartbeat_rules()
            heart = rules and alive.enter_context(
                Heartbeat(transaction.instant, self.store, clock=self.clock, rules=rules)
            )
            prepared = self._prepare(transaction, self._aims())
            if heart:
                heart.assert_alive()
            self._commit(prepared)
            if heart:
                heart.finish()

    def _heartbeat_rules(self) -> HeartbeatRules | None:
        if self.plan.heartbeat_ms is None:
            return None
        return HeartbeatRules(
            interval_ms=self.plan.heartbeat_ms, misses=self.plan.heartbeat_misses
        )

    def _aims(self) -> list[FileGroup]:
        """The file groups of this round, as (region, file id)."""
        regions = self.part.regions
        if self.clock.uniform(0, 1) < self.plan.overlap:
            return [(regions[0], SHARED)]
        own, first, apart = f"{self.plan.name}-0", self.part.index, self.part.count
        groups = self.plan.groups or (1 if self.plan.kind == "plain" else 2)
        count = min(groups, len(regions) // apart or 1)
        return [(regions[(first + step * apart) % len(regions)], own) for step in range(count)]

    def _begin(self) -> Transaction:
        if self._known is None:
            self._known, self._snapshot = run(look_over(), self.store, self.clock)
        transaction: Transaction = run(
            begin(self._known), self.store, self.clock, self.control.emit
        )
        self._known = self._known.after(transaction.timeline)
        return transaction

    def _prepare(self, transaction: Transaction, group_targets: list[FileGroup]) -> Prepared:
        self._snapshot = run(
            load_snapshot(covering=transaction.covered, since=self._snapshot),
            self.store, self.clock,
        )  # fmt: skip
        batches = []
        for region, own in group_targets:
            group = (partition_path(TABLE, region), own)
            group_target = TargetGroup(group, self._snapshot.groups.get(group))
            batches.append(RegionBatch(region, self._rounds, group_target))
        stats = self.orders.write(transaction.target, batches)
        self.control.emit("note", text=f"wrote {len(stats)} files", files=fields_of(stats))
        known = frozenset(partition for partition, _ in self._snapshot.groups)
        return run(
            prepare(transaction, stats, schema=self.orders.schema, known_partitions=known),
            self.store, self.clock, self.control.emit,
        )  # fmt: skip

    def _commit(self, prepared: Prepared) -> None:
        """Commit under the lock, or together; repeat until the outcome is known."""
        while self.control.held and not self.control.stop.is_set():
            self.clock.wait(self.control.stop, HELD_POLL_S)
        fence, together = self.control.fence, prepared.transaction.config.commit == GROUP
        for tries in range(UNKNOWN_TRIES_MAX):
            try:
                if together:
                    publish_in_group(self, prepared, SIMPLE)
                else:
                    publish(prepared, self.lock, self.store, self.clock, self.emit, fence=fence)
            except CommitUnknown:
                if tries + 1 == UNKNOWN_TRIES_MAX:
                    raise
            else:
                return

    def _pause_over(self, error: Exception) -> None:
        self._failures += 1
        if self._failures >= FAILURES_MAX:
            raise error
        self.control.emit("note", text=f"{type(error).__name__}: {error}")
        pause_s = back_off_s(self._failures, self.clock, first_s=0.1, longest_s=self.plan.ttl_s)
        self.clock.wait(self.control.stop, pause_s)


class CombinerStore:
    """A store that kills this process at a replacement of the fence that decides for others.

    It does so once its supervisor has asked for it: before the request or after it.
    """

    def __init__(self, store: Store, control: Control) -> None:
        self._store, self._control = store, control

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put(self, key: str, body: bytes, condition: Any) -> Any:
        made = 0
        if self._control.dies_combining and key == FENCE_KEY:
            fence = parse_group_fence(body)
            made = sum(each.round == fence.round for each in fence.window)
        if made < 2:
            return self._store.put(key, body, condition)
        self._control.dies_combining = False
        before = Clock().uniform(0, 1) < 0.5
        answer = None if before else self._store.put(key, body, condition)
        when = "before" if before else "after"
        self._control.emit("note", text=f"is killed {when} it decided {made} commits",
                           injected="combiner killed")  # fmt: skip
        os.kill(os.getpid(), signal.SIGKILL)
        return answer


class _NoPandas:
    """Makes `import pandas` fail: 0.7 s and 40 MB less for each plain writer.

    pyarrow imports it, if it can, only to check whether a list is a Series.
    """

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("a plain writer does not load pandas", name=name)


def open_table(plan: WriterPlan, store: Store, clock: Clock) -> bool:
    """Create the table; whether its writers commit together.

    A table that is there may do so in its own way, if the plan names none.
    """
    made = replace(TABLE, commit=plan.commit or SERIAL)
    try:
        run(create_table(made), store, clock)
    except RefusedOption:
        made = run(look_over(), store, clock)[0].config
        if plan.commit or replace(made, commit=SERIAL) != TABLE:
            raise
    if made.commit == GROUP and not plan.fence:
        raise RefusedOption("fence=False", f"is refused: {DECIDES}", "leave the fence on")
    return made.commit == GROUP


def commit_orders(plan: WriterPlan, control: Control, clock: Clock) -> None:
    """Create the table if it is not there, and commit as the plan says."""
    place = TableAddress(plan.url, plan.endpoint, plan.name)
    part = OrdersPart(plan.dataset, *plan.slice)
    store: Any = place.open()
    if plan.commit == GROUP:
        store = CombinerStore(store, control)
    control.in_group = open_table(plan, store, clock)  # first: it shows the reader that it works
    writer = FleetWriter(
        plan=plan,
        part=part,
        store=store,
        lock=Lock(
            plan.url,
            ttl_s=plan.ttl_s,
            renew_interval_s=plan.renew_interval_s,
            acquire_timeout=max(LOCK_TIMEOUT_MIN_S, LOCK_TIMEOUT_LEASES * plan.ttl_s),
            emit=control.emit,
            endpoint=plan.endpoint,
            client=plan.name,
            clock=clock,
        ),
        orders=open_orders(plan.kind, part, place, store, remote=plan.remote),
        control=control,
        clock=clock,
    )
    control.emit("note", text=f"ready to commit orders to {plan.url} ({plan.kind})")
    writer.work()


class _Silent(Control):
    def emit(self, kind: str, **fields: Any) -> None:
        """Nobody reads the events of a commit in memory."""


def warm_up(channel: Channel, url: str, dataset: str, others: list[str]) -> None:
    """Import all that a commit to `url` needs: open that store, commit once to one in memory.

    Then open the stores of `others`: nothing else differs between stores. A launch ends this early.
    """
    with suppress(LockkitError, OSError):  # the writer's own commit will fail, and say why
        TableAddress(url, NOWHERE).open()
        if channel.has_news():
            return
        plan = WriterPlan(url="memory://ahead/orders", dataset=dataset, rounds=1, pause_s=0)
        commit_orders(plan, _Silent(channel), Clock())
        for other in others:
            if not channel.has_news():
                TableAddress(other, NOWHERE).open()


def main(channel: Channel) -> int:
    if "ahead" in channel.settings or channel.settings.get("kind") == "plain":
        sys.meta_path.insert(0, _NoPandas())
    if ahead := channel.settings.get("ahead"):
        warm_up(channel, **ahead)
        if not channel.await_settings():
            return 0
    plan = WriterPlan(**channel.settings)
    clock = Clock(plan.clock_offset_ms)
    control = Control(channel, fence=plan.fence, offset_ms=plan.clock_offset_ms)
    channel.listen(control.obey)
    if plan.kind != "plain":
        control.emit("note", text="starting Spark: 5 to 15 s until the first commit")
    try:
        commit_orders(plan, control, clock)
    except (StoreError, TableError, LockBusy, CommitUnknown) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return CODE_FAILED
    return 0


if __name__ == "__main__":
    serve(main)
