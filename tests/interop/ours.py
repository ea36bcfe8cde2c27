"""lockkit's side of a shared table, in `hudi` mode: the lock, then create-if-absent of T.commit.

As a program, one writer of several, until its stdin ends:
`python ours.py '{"url": ..., "endpoint": ..., "client": ...}'`.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import pyarrow as pa

from lockkit.clock import Clock
from lockkit.lock.handle import Lock
from lockkit.protocol.outcome import Applied, IfAbsent
from lockkit.runtime import run
from lockkit.stores import open_store
from lockkit.table import (
    BaseFile,
    Prepared,
    TableConfig,
    Transaction,
    WriteStat,
    avro_schema,
    begin,
    create_table,
    load_snapshot,
    prepare,
    read_slice,
    read_table,
    rewrite_group,
    write_inserts,
)
from lockkit.table.errors import CommitConflict
from lockkit.table.format.properties import load_config
from lockkit.table.format.timeline import load_timeline
from lockkit.table.occ.heartbeat import Heartbeat
from lockkit.table.occ.publish import publish

SCHEMA = pa.schema(
    [("id", pa.string()), ("region", pa.string()), ("amount", pa.int64()), ("at", pa.int64())]
)
SPARK_SCHEMA = "id string, region string, amount long, at long"
CLOCK = Clock()

ROUNDS_MAX = 500
PAUSE_S = 0.6  # Hudi asks for the lock once a second


def order(id: str, *, region: str = "EU", amount: int = 0, at: int = 0) -> dict[str, Any]:
    return {"id": id, "region": region, "amount": amount, "at": at}


def arrow(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=SCHEMA)


def in_order(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return sorted((dict(row) for row in rows), key=lambda row: str(row["id"]))


class Writer:
    """One writer of ours, on a table that Hudi writes too.

    It takes its instant under the lock, as Hudi does: s3a creates files without a condition, and
    the two could believe that they have the same one. Its heartbeat begins there as well, or Hudi
    takes it for dead.
    """

    def __init__(self, url: str, endpoint: str, client: str = "lockkit") -> None:
        self.url = url
        self.store = open_store(url, endpoint=endpoint, client=client)
        self.lock = Lock(
            url,
            endpoint=endpoint,
            client=client,
            ttl_s=15.0,
            renew_interval_s=1.0,
            acquire_timeout=120.0,
        )
        self._beats: dict[str, Heartbeat] = {}

    def create(self, config: TableConfig) -> None:
        run(create_table(config), self.store, CLOCK)

    def begin(self, *, beat: bool = True) -> Transaction:
        with self.lock:
            transaction = run(begin(), self.store, CLOCK)
            if beat:
                self._beats[transaction.instant] = Heartbeat(transaction.instant, self.store)
        return transaction

    def insert(self, rows: Sequence[Mapping[str, Any]], *, beat: bool = True) -> Prepared:
        """Write the rows into new file groups, one for each partition."""
        transaction = self.begin(beat=beat)
        stats = []
        for region in sorted({row["region"] for row in rows}):
            mine = arrow(row for row in rows if row["region"] == region)
            file = write_inserts(transaction.target, mine, file_id=f"{CLOCK.unique()}-0")
            stats.append(self._put(file))
        return self._prepare(transaction, stats)

    def upsert(self, rows: Sequence[Mapping[str, Any]]) -> Prepared:
        """Merge the rows into the file groups that hold their keys."""
        transaction = self.begin()
        snapshot = run(load_snapshot(covering=transaction.covered), self.store, CLOCK)
        stats = []
        for each in snapshot.slices:
            old = run(read_slice(each), self.store, CLOCK)
            keys = set(zip(old["id"].to_pylist(), old["region"].to_pylist(), strict=True))
            if mine := [row for row in rows if (row["id"], row["region"]) in keys]:
                file = rewrite_group(transaction.target, each, old, arrow(mine))
                stats.append(self._put(file))
        return self._prepare(transaction, stats)

    def _put(self, file: BaseFile) -> WriteStat:
        assert isinstance(self.store.put(file.key, file.body, IfAbsent()), Applied)
        return file.stat

    def _prepare(self, transaction: Transaction, stats: list[WriteStat]) -> Prepared:
        way = prepare(transaction, stats, schema=avro_schema(SCHEMA, "orders"))
        return run(way, self.store, CLOCK)

    def publish(self, prepared: Prepared) -> str:
        """Commit under the lock, as Hudi does: answers the instant."""
        with self._beats.pop(prepared.instant, nullcontext()) as beat:
            done = publish(prepared, self.lock, self.store, CLOCK)
            if beat is not None:
                beat.finish()
        return done.instant

    def shown(self) -> list[dict[str, Any]]:
        """Every row that lockkit's reader shows, meta columns included, in the order of keys."""
        return in_order(read_table(self.store, meta=True).to_pylist())

    def completion(self, instant: str) -> str:
        """When a commit was completed, which version 9 orders increments by; else the instant."""
        config, _ = run(load_config(), self.store, CLOCK)
        now = run(load_timeline(config.names), self.store, CLOCK)
        return str(now.completion.get(instant, instant))

    def close(self) -> None:
        self.lock.close()
        self.store.close()


# --- one writer of several ------------------------------------------------------------------------


def write_by_turns(
    url: str, endpoint: str, client: str, over: threading.Event
) -> list[dict[str, Any]]:
    """Insert and update by turns until `over`; what became of each round."""
    writer = Writer(url, endpoint, client)
    done = []
    for number in range(ROUNDS_MAX):
        rows = _rows(client, number)
        try:
            writer.publish(writer.upsert(rows) if number % 2 else writer.insert(rows))
            done.append({"rows": rows, "error": ""})
        except CommitConflict as conflict:
            done.append({"rows": rows, "error": str(conflict)})
        if over.wait(PAUSE_S):
            break
    writer.close()
    return done


def _rows(client: str, number: int) -> list[dict[str, Any]]:
    if number % 2:
        return [order("shared", amount=number, at=1_000 + number)]
    return [order(f"{client}-{number}", region="US", amount=number, at=number)]


if __name__ == "__main__":
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    print(json.dumps(write_by_turns(**json.loads(sys.argv[1]), over=over)))
