"""lockkit's side of a shared table, in `hudi` mode: the lock, then create-if-absent of T.commit.

As a program, one writer of several, until its stdin ends:
`python ours.py '{"url": ..., "endpoint": ..., "client": ...}'`.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from lockkit.clock import Clock
from lockkit.drive import run
from lockkit.lock import Lock
from lockkit.outcome import Applied, IfAbsent
from lockkit.stores import Store, open_store
from lockkit.table import (
    CommitConflict,
    Prepared,
    Slice,
    WriteStat,
    avro_schema,
    begin,
    commit,
    load_snapshot,
    partition_path,
    prepare,
    read_slice,
    read_table,
    rewrite_group,
    write_inserts,
)

SCHEMA = pa.schema(
    [("id", pa.string()), ("region", pa.string()), ("amount", pa.int64()), ("at", pa.int64())]
)
SPARK_SCHEMA = "id string, region string, amount long, at long"
CLOCK = Clock()

ROUNDS_MAX = 500
PAUSE_S = 0.3  # Hudi asks for the lock once a second


def order(id: str, *, region: str = "EU", amount: int = 0, at: int = 0) -> dict[str, Any]:
    return {"id": id, "region": region, "amount": amount, "at": at}


def table_lock(url: str, endpoint: str, client: str) -> Lock:
    """A lease as long as Hudi's writers here are told to take theirs."""
    return Lock(
        url, endpoint=endpoint, client=client, ttl_s=15.0, renew_interval_s=1.0, timeout=120.0
    )


def arrow(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=SCHEMA)


def shown(store: Store) -> list[dict[str, Any]]:
    """Every row that lockkit's reader shows, meta columns included, in the order of keys."""
    return in_order(read_table(store, meta=True).to_pylist())


def in_order(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return sorted((dict(row) for row in rows), key=lambda row: str(row["id"]))


def insert(store: Store, rows: Sequence[Mapping[str, Any]]) -> Prepared:
    """A transaction that writes the rows into new file groups, one for each partition."""
    transaction = run(begin(), store, CLOCK)
    stats = []
    for region in sorted({row["region"] for row in rows}):
        mine = arrow(row for row in rows if row["region"] == region)
        file = write_inserts(transaction.target, mine, file_id=f"{CLOCK.unique()}-0")
        stats.append(_put(store, file))
    return run(prepare(transaction, stats, schema=avro_schema(SCHEMA, "orders")), store, CLOCK)


def upsert(store: Store, rows: Sequence[Mapping[str, Any]]) -> Prepared:
    """A transaction that merges the rows into the file groups that hold their keys."""
    transaction = run(begin(), store, CLOCK)
    snapshot = run(load_snapshot(covering=transaction.base), store, CLOCK)
    stats = []
    for each in snapshot.slices:
        old = run(read_slice(each), store, CLOCK)
        keys = set(old["id"].to_pylist())
        if mine := [row for row in rows if row["id"] in keys and _is_in(transaction, each, row)]:
            stats.append(_put(store, rewrite_group(transaction.target, each, old, arrow(mine))))
    return run(prepare(transaction, stats, schema=avro_schema(SCHEMA, "orders")), store, CLOCK)


def _is_in(transaction: Any, slice: Slice, row: Mapping[str, Any]) -> bool:
    return partition_path(transaction.config, row["region"]) == slice.partition


def _put(store: Store, file: Any) -> WriteStat:
    assert isinstance(store.put(file.key, file.body, IfAbsent()), Applied)
    stat: WriteStat = file.stat
    return stat


def publish(store: Store, prepared: Prepared, lock: Lock) -> str:
    """Commit under the lock that Hudi takes too; answers the instant."""
    with lock:
        done = run(commit(prepared, lock.fence, believe=lock.check, fence=False), store, CLOCK)
        lock.published()
    return done.instant


# --- one writer of several ------------------------------------------------------------------------


def write_by_turns(
    url: str, endpoint: str, client: str, over: threading.Event
) -> list[dict[str, Any]]:
    """Insert and update by turns until `over`; what became of each round."""
    store = open_store(url, endpoint=endpoint, client=client)
    lock = table_lock(url, endpoint, client)
    done = []
    for number in range(ROUNDS_MAX):
        rows, way = _round(client, number)
        try:
            publish(store, way(store, rows), lock)
            done.append({"rows": rows, "error": ""})
        except CommitConflict as conflict:
            done.append({"rows": rows, "error": str(conflict)})
        if over.wait(PAUSE_S):
            break
    lock.close()
    store.close()
    return done


def _round(
    client: str, number: int
) -> tuple[list[dict[str, Any]], Callable[[Store, Sequence[Mapping[str, Any]]], Prepared]]:
    if number % 2:
        return [order("shared", amount=number, at=1_000 + number)], upsert
    return [order(f"{client}-{number}", region="US", amount=number, at=number)], insert


if __name__ == "__main__":
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    print(json.dumps(write_by_turns(**json.loads(sys.argv[1]), over=over)))
