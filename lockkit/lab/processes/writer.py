"""One writer: a process that commits orders in rounds, each under the lock, in its own Python.

    python -m lockkit.lab.processes.writer --url s3://lake/orders --endpoint http://... --name W1

It tells what it believes as JSON lines on stdout (`history.py`), obeys JSON lines on stdin
(`{"do": "stall", "at": "commit"}`, `{"do": "fence", "on": false}`, `{"do": "stop"}`), and ends when
its stdin does.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import IO, Any

from lockkit.clock import Clock, back_off_s
from lockkit.errors import (
    CommitConflict,
    CommitUnknown,
    HeartbeatExpired,
    LockBusy,
    LockLost,
    StoreError,
    TableError,
    Unanswered,
)
from lockkit.events import event
from lockkit.lock.handle import Lock
from lockkit.runtime import run
from lockkit.spark.orders import TABLE, Orders, OrdersPart, RegionBatch, fields_of, open_orders
from lockkit.spark.place import TableAddress
from lockkit.spark.process import die_with_parent
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
from lockkit.table.format.layout import FileGroup
from lockkit.table.occ.heartbeat import Heartbeat
from lockkit.table.occ.liveness import HeartbeatRules
from lockkit.table.occ.publish import publish
from lockkit.table.occ.transaction import TableCache, Transaction
from lockkit.table.read.opening import look_over
from lockkit.table.write.groups import TargetGroup

TROUBLE_MAX = 8
"""Rounds in a row that may fail for the store's sake before the writer gives up."""
UNKNOWN_TRIES_MAX = 3
ATTEMPTS_PER_ROUND_MAX = 50
EOF_GRACE_S = 1.0
LOCK_TIMEOUT_MIN_S, LOCK_TIMEOUT_LEASES = 10.0, 4.0
CODE_TROUBLE = 1
SHARED = "shared-0"
"""The file group, in the first region, that every writer rewrites now and then."""


STALLS = {"commit": "checked", "decided": "fenced"}
"""Where a stall may strike, and the event after which it does."""


class WriterChannel:
    """The writer's channel to its supervisor: events out, commands in.

    Stamps by the right clock, also where the writer's own is `offset_ms` ahead of it.
    The place where a stall strikes is here: in the main thread, right after `checked` (or `fenced`)
    was said, so that nothing else of this process moves on either, its heartbeat included.
    """

    def __init__(
        self, name: str, out: IO[str], clock: Clock, *, fence: bool = True, offset_ms: int = 0
    ) -> None:
        self.name = name
        self.fence = fence
        self._offset_ms = offset_ms
        self.stop = threading.Event()
        self._out = out
        self._clock = clock
        self._stall_after = ""
        self._turn = threading.Lock()

    def emit(self, kind: str, **fields: Any) -> None:
        if self._offset_ms and fields.get("until_ms") is not None:
            fields["until_ms"] -= self._offset_ms  # a wrong clock's; a history has only one
        line = event(self._clock.stamp_ms(), self.name, kind, **fields).to_json() + "\n"
        with self._turn:
            self._out.write(line)
            self._out.flush()
        here = threading.current_thread() is threading.main_thread()
        if kind == self._stall_after and here:
            self._stall_after = ""
            os.kill(os.getpid(), signal.SIGSTOP)

    def listen(self, commands: IO[str]) -> None:
        """Obey until the commands end; then there is nobody to write for, and the process ends."""
        for line in commands:
            try:
                self._obey(json.loads(line))
            except ValueError:
                self.emit("note", text=f"a command that is no JSON: {line[:80]!r}")
        self.stop.set()
        self._clock.sleep(EOF_GRACE_S)
        os._exit(0)

    def _obey(self, command: dict[str, Any]) -> None:
        match command:
            case {"do": "stall", "at": at}:
                self._stall_after = STALLS.get(at, "")
            case {"do": "fence", "on": on}:
                self.fence = bool(on)
                self.emit("note", text=f"the fence is {'on' if on else 'off'} for the next commit")
            case {"do": "stop"}:
                self.stop.set()
            case _:
                self.emit("note", text=f"an unknown command: {str(command)[:80]}")


@dataclass(slots=True, kw_only=True)
class FleetWriter:
    """Commits batch after batch: usually to file groups of its own, sometimes to the shared one."""

    name: str
    part: OrdersPart
    place: TableAddress
    store: Store
    lock: Lock
    orders: Orders
    voice: WriterChannel
    clock: Clock
    overlap: float
    groups: int
    ttl_s: float
    pause_s: float
    pulse: HeartbeatRules | None = None
    """Its instants' heartbeat; without one nobody takes it for dead, nor cleans behind it."""
    committed: int = 0
    _rounds: int = 0
    _trouble: int = 0
    _known: TableCache | None = field(default=None, repr=False)
    _snapshot: Snapshot | None = field(default=None, repr=False)

    def work(self, rounds: int | None) -> None:
        """Until so many commits were published, or until told to stop."""
        attempts_max = None if rounds is None else rounds * ATTEMPTS_PER_ROUND_MAX
        while not self.voice.stop.is_set():
            if rounds is not None and self.committed >= rounds:
                return
            if attempts_max is not None and self._rounds >= attempts_max:
                raise TableError(
                    f"only {self.committed} commits in {self._rounds} rounds: too busy"
                )
            self._rounds += 1
            if self._one_round():
                self.committed += 1
                self._trouble = 0
            self.clock.wait(self.voice.stop, self.clock.uniform(0.5, 1.5) * self.pause_s)

    def _one_round(self) -> bool:
        """True if it was published. A refusal is not an error: the next round begins again."""
        try:
            self._transact()
        except (CommitConflict, HeartbeatExpired, LockLost):
            return False  # the commit has said so itself; or it slept, and begins again
        except (LockBusy, Unanswered, CommitUnknown) as error:
            self._pause_over(error)
            return False
        except TableError as error:
            if not self.committed:
                raise  # nothing that ever was there: a wrong address, or a wrong table
            self._known = None
            self._pause_over(error)
            return False
        return True

    def _transact(self) -> None:
        transaction = self._begin()
        with ExitStack() as alive:
            heart = self.pulse and alive.enter_context(
                Heartbeat(transaction.instant, self.store, clock=self.clock, rules=self.pulse)
            )
            prepared = self._prepare(transaction, self._aims())
            if heart:
                heart.check()
            self._commit(prepared)
            if heart:
                heart.finish()

    def _aims(self) -> list[FileGroup]:
        """The file groups of this round, as (region, file id)."""
        regions = self.part.regions
        if self.clock.uniform(0, 1) < self.overlap:
            return [(regions[0], SHARED)]
        own, first, apart = f"{self.name}-0", self.part.index, self.part.count
        count = min(self.groups, len(regions) // apart or 1)
        return [(regions[(first + step * apart) % len(regions)], own) for step in range(count)]

    def _begin(self) -> Transaction:
        if self._known is None:
            self._known, self._snapshot = run(look_over(), self.store, self.clock)
        transaction: Transaction = run(
            begin(self._known), self.store, self.clock, self.voice.emit
        )
        self._known = self._known.after(transaction.timeline)
        return transaction

    def _prepare(self, transaction: Transaction, aims: list[FileGroup]) -> Prepared:
        self._snapshot = run(
            load_snapshot(covering=transaction.covered, since=self._snapshot),
            self.store, self.clock,
        )  # fmt: skip
        batches = []
        for region, own in aims:
            group = (partition_path(TABLE, region), own)
            aim = TargetGroup(group, self._snapshot.groups.get(group))
            batches.append(RegionBatch(region, self._rounds, aim))
        stats = self.orders.write(transaction.target, batches)
        self.voice.emit("note", text=f"wrote {len(stats)} files", files=fields_of(stats))
        known = frozenset(partition for partition, _ in self._snapshot.groups)
        return run(
            prepare(transaction, stats, schema=self.orders.schema, known_partitions=known),
            self.store, self.clock, self.voice.emit,
        )  # fmt: skip

    def _commit(self, prepared: Prepared) -> None:
        """Under the lock; as often as it takes to know whether it was committed."""
        for tries in range(UNKNOWN_TRIES_MAX):
            fence = self.voice.fence
            try:
                publish(
                    prepared, self.lock, self.store, self.clock, self.voice.emit, fence=fence
                )
            except CommitUnknown:
                if tries + 1 == UNKNOWN_TRIES_MAX:
                    raise
            else:
                return

    def _pause_over(self, error: Exception) -> None:
        self._trouble += 1
        if self._trouble >= TROUBLE_MAX:
            raise error
        self.voice.emit("note", text=f"{type(error).__name__}: {error}")
        pause_s = back_off_s(self._trouble, self.clock, first_s=0.1, longest_s=self.ttl_s)
        self.clock.wait(self.voice.stop, pause_s)


def arguments(line: list[str] | None = None) -> argparse.Namespace:
    """The writer's command line; wrong ones end with code 2 and a sentence."""
    what = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="lockkit.lab.processes.writer", description=what)
    say = parser.add_argument
    say("--url", required=True, help="the table, e.g. s3://lake/orders")
    say("--endpoint", help="another server than the provider's own")
    say("--name", default="W1", help="its lane in the history")
    say("--kind", choices=("plain", "connect", "jvm"), default="plain")
    say("--remote", help="for --kind connect: sc://host:port")
    say("--rounds", type=_rounds, default=None, metavar="N|forever", help="commits to publish")
    say("--overlap", type=float, default=0.5, help="chance that a round rewrites the shared group")
    say("--ttl-s", type=float, default=4.0, help="the lease's length")
    say("--renew-interval-s", type=float, default=0.4)
    say("--pause-s", type=float, default=0.6, help="between rounds, about")
    say("--groups", type=int, metavar="N", help="file groups of its own that a round rewrites")
    say("--heartbeat-ms", type=int, metavar="MS", help="between two beats (default: none at all)")
    say("--heartbeat-misses", type=int, default=3, metavar="N", help="then it counts as dead")
    say("--clock-offset-ms", type=int, default=0, metavar="MS", help="its clock is wrong by that")
    say("--no-fence", dest="fence", action="store_false", help="commit as Hudi does")
    say("--dataset", required=True, help="the folder with the orders")
    say("--slice", type=_slice, default=(1, 1), metavar="I/N", help="which part of them is mine")
    say("--parent", type=int, help="the supervisor's pid: end with it")
    return parser.parse_args(line)


class _NoPandas:
    """Makes `import pandas` fail: 0.7 s and 40 MB less for each plain writer.

    pyarrow imports it, if it can, only to see whether a list that it was given is a Series.
    """

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("a plain writer does without pandas", name=name)


def _pulse(asked: argparse.Namespace) -> HeartbeatRules | None:
    if asked.heartbeat_ms is None:
        return None
    return HeartbeatRules(interval_ms=asked.heartbeat_ms, misses=asked.heartbeat_misses)


def _rounds(text: str) -> int | None:
    return None if text == "forever" else int(text)


def _slice(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not 1 <= int(index) <= int(count):
        raise argparse.ArgumentTypeError(f"{text!r} is no slice; 2/3 is the second of three")
    return int(index), int(count)


def main(line: list[str] | None = None) -> int:
    asked = arguments(line)
    if asked.parent:
        die_with_parent(asked.parent)
    # The events have a channel of their own: the JVM inherits our stdout, and libraries print.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if asked.kind == "plain":
        sys.meta_path.insert(0, _NoPandas())
    offset_ms = asked.clock_offset_ms
    clock = Clock(offset_ms)
    voice = WriterChannel(asked.name, out, Clock(), fence=asked.fence, offset_ms=offset_ms)
    threading.Thread(target=voice.listen, args=(sys.stdin,), name="commands", daemon=True).start()
    if asked.kind != "plain":
        voice.emit("note", text="starting Spark: 5 to 15 s until the first commit")
    place = TableAddress(asked.url, asked.endpoint, asked.name)
    part = OrdersPart(asked.dataset, *asked.slice)
    try:
        store = place.open()
        run(create_table(TABLE), store, clock)  # first of all: it shows that something happens
        writer = FleetWriter(
            name=asked.name,
            part=part,
            place=place,
            store=store,
            lock=Lock(
                asked.url,
                ttl_s=asked.ttl_s,
                renew_interval_s=asked.renew_interval_s,
                timeout=max(LOCK_TIMEOUT_MIN_S, LOCK_TIMEOUT_LEASES * asked.ttl_s),
                emit=voice.emit,
                endpoint=asked.endpoint,
                client=asked.name,
                clock=clock,
            ),
            orders=open_orders(asked.kind, part, place, store, remote=asked.remote),
            voice=voice,
            clock=clock,
            overlap=asked.overlap,
            groups=asked.groups or (1 if asked.kind == "plain" else 2),
            ttl_s=asked.ttl_s,
            pause_s=asked.pause_s,
            pulse=_pulse(asked),
        )
        voice.emit("note", text=f"ready to commit orders to {asked.url} ({asked.kind})")
        writer.work(asked.rounds)
    except (StoreError, TableError, LockBusy, CommitUnknown) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return CODE_TROUBLE
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # not through Spark's exit hooks, which wait for a server that may be gone
