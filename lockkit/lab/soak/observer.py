"""The processes beside a soak's writers: a reader that reads all the time, and a keeper.

The reader emits which commit it sees in each file group. The keeper rolls back dead writers and
cleans, by the table's own services and under its lock.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

from lockkit.clock import Clock
from lockkit.errors import StoreError, TableError
from lockkit.lab.processes.child import Channel, serve
from lockkit.lock.handle import Lock
from lockkit.runtime import run
from lockkit.spark.orders import TABLE
from lockkit.spark.place import TableAddress
from lockkit.stores import Store
from lockkit.table import Snapshot, create_table, load_snapshot
from lockkit.table.occ.concurrency import SHARED, OptimisticConcurrency
from lockkit.table.occ.heartbeat_rules import INTERVAL_KEY, MISSES_KEY
from lockkit.table.services.rules import CLEAN_KEY, service_rules
from lockkit.table.services.service import FAILURES, TableService

RETAINED = 50
"""Commits whose files a clean keeps."""
CLEAN_EVERY = 10
LOCK_TIMEOUT_LEASES = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverPlan:
    """What one observer is to do: `role` is reader or keeper."""

    role: str
    name: str
    url: str
    endpoint: str | None
    every_s: float
    ttl_s: float
    renew_interval_s: float
    heartbeat_ms: int
    heartbeat_misses: int
    commit: str = "serial"


def reader(plan: ObserverPlan, store: Store, channel: Channel) -> Callable[[], None]:
    """A function that reads the table and records the content of each file group as one event."""
    seen: list[Snapshot | None] = [None]
    clock = Clock()

    def look() -> None:
        began_ms = clock.stamp_ms()
        try:
            snapshot: Snapshot = run(load_snapshot(since=seen[0]), store, clock)
        except (TableError, StoreError) as error:
            seen[0] = None
            channel.emit("note", text=f"{type(error).__name__}: {error}")
            return
        seen[0] = snapshot
        channel.emit("saw", began_ms=began_ms, groups=looked_at(snapshot))

    return look


def looked_at(snapshot: Snapshot) -> list[list[str]]:
    """The content of one look: partition, file id and instant of each file group."""
    return [[*group, each.instant] for group, each in sorted(snapshot.groups.items())]


def keeper(plan: ObserverPlan, store: Store, channel: Channel) -> Callable[[], None]:
    """A function that runs the table's services."""
    clock = Clock()
    lock = Lock(
        plan.url, endpoint=plan.endpoint, client=plan.name, emit=channel.emit,
        ttl_s=plan.ttl_s, renew_interval_s=plan.renew_interval_s,
        acquire_timeout=LOCK_TIMEOUT_LEASES * plan.ttl_s,
    )  # fmt: skip
    options = {
        CLEAN_KEY: "true",
        "hoodie.clean.commits.retained": RETAINED,
        "hoodie.clean.trigger.max.commits": CLEAN_EVERY,
        INTERVAL_KEY: plan.heartbeat_ms,
        MISSES_KEY: plan.heartbeat_misses,
    }
    rules = service_rules(options, SHARED)
    service = TableService(
        plan.url, store, OptimisticConcurrency(lock), rules=rules, clock=clock, emit=channel.emit
    )

    def keep() -> None:
        try:
            service.run()
        except FAILURES as error:
            channel.emit("note", text=f"{type(error).__name__}: {error}")

    return keep


def main(channel: Channel) -> int:
    plan, clock = ObserverPlan(**channel.settings), Clock()
    channel.listen()
    store = TableAddress(plan.url, plan.endpoint, plan.name).open()
    try:
        run(create_table(replace(TABLE, commit=plan.commit)), store, clock)
    except (TableError, StoreError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    once = (reader if plan.role == "reader" else keeper)(plan, store, channel)
    while not channel.stop.is_set():
        once()
        clock.wait(channel.stop, clock.uniform(0.5, 1.5) * plan.every_s)
    return 0


if __name__ == "__main__":
    serve(main)
