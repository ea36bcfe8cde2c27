"""The processes beside a soak's writers: a reader that never stops looking, and a keeper.

    python -m lockkit.lab.soak.observer reader --url s3://lake/orders --endpoint http://... --name R

The reader tells which commit it sees in each file group; the keeper takes dead writers back and
cleans, by the table's own services and under its lock.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Callable

from lockkit.clock import Clock
from lockkit.errors import StoreError, TableError
from lockkit.lab.processes.writer import WriterChannel
from lockkit.lock.handle import Lock
from lockkit.runtime import run
from lockkit.spark.orders import TABLE
from lockkit.spark.place import TableAddress
from lockkit.spark.process import die_with_parent
from lockkit.stores import Store
from lockkit.table import Snapshot, create_table, load_snapshot
from lockkit.table.occ.concurrency import SHARED, OptimisticConcurrency
from lockkit.table.occ.liveness import INTERVAL_KEY, MISSES_KEY
from lockkit.table.services.rules import CLEAN_KEY, service_rules
from lockkit.table.services.service import TableService
from lockkit.table.services.upkeep import TROUBLE

RETAINED = 50
"""Commits whose files a clean keeps."""
CLEAN_EVERY = 10
LOCK_TIMEOUT_LEASES = 10.0


def reader(asked: argparse.Namespace, store: Store, voice: WriterChannel) -> Callable[[], None]:
    """A look at the table: what each file group shows, as one event."""
    seen: list[Snapshot | None] = [None]
    clock = Clock()

    def look() -> None:
        began_ms = clock.stamp_ms()
        try:
            snapshot: Snapshot = run(load_snapshot(since=seen[0]), store, clock)
        except (TableError, StoreError) as error:
            seen[0] = None
            voice.emit("note", text=f"{type(error).__name__}: {error}")
            return
        seen[0] = snapshot
        voice.emit("saw", began_ms=began_ms, groups=looked_at(snapshot))

    return look


def looked_at(snapshot: Snapshot) -> list[list[str]]:
    """What a look shows: partition, file id and instant of each file group."""
    return [[*group, each.instant] for group, each in sorted(snapshot.groups.items())]


def keeper(asked: argparse.Namespace, store: Store, voice: WriterChannel) -> Callable[[], None]:
    """A run of the table's services."""
    clock = Clock()
    lock = Lock(
        asked.url, endpoint=asked.endpoint, client=asked.name, emit=voice.emit,
        ttl_s=asked.ttl_s, renew_interval_s=asked.renew_interval_s,
        timeout=LOCK_TIMEOUT_LEASES * asked.ttl_s,
    )  # fmt: skip
    options = {
        CLEAN_KEY: "true",
        "hoodie.clean.commits.retained": RETAINED,
        "hoodie.clean.trigger.max.commits": CLEAN_EVERY,
        INTERVAL_KEY: asked.heartbeat_ms,
        MISSES_KEY: asked.heartbeat_misses,
    }
    rules = service_rules(options, SHARED)
    service = TableService(
        asked.url, store, OptimisticConcurrency(lock), rules=rules, clock=clock, emit=voice.emit
    )

    def keep() -> None:
        try:
            service.run()
        except TROUBLE as error:
            voice.emit("note", text=f"{type(error).__name__}: {error}")

    return keep


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="lockkit.lab.soak.observer")
    say = parser.add_argument
    say("role", choices=("reader", "keeper"))
    say("--url", required=True)
    say("--endpoint")
    say("--name", required=True)
    say("--every-s", type=float, default=1.0)
    say("--ttl-s", type=float, default=4.0)
    say("--renew-interval-s", type=float, default=0.4)
    say("--heartbeat-ms", type=int, default=1000)
    say("--heartbeat-misses", type=int, default=5)
    say("--parent", type=int, required=True, help="the supervisor's pid: end with it")
    return parser.parse_args()


def main() -> int:
    asked = arguments()
    die_with_parent(asked.parent)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    clock = Clock()
    voice = WriterChannel(asked.name, out, clock)
    threading.Thread(target=voice.listen, args=(sys.stdin,), name="commands", daemon=True).start()
    store = TableAddress(asked.url, asked.endpoint, asked.name).open()
    try:
        run(create_table(TABLE), store, clock)
    except (TableError, StoreError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    once = (reader if asked.role == "reader" else keeper)(asked, store, voice)
    while not voice.stop.is_set():
        once()
        clock.wait(voice.stop, clock.uniform(0.5, 1.5) * asked.every_s)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)
