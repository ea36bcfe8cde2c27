"""One of several programs that write to one table; each command is one write.

With `remote` it is a PySpark program on a Spark Connect server that others share; without it, the
same commit runs in plain Python. It emits its lane of the history, and a message with the result of
each command. It waits before the commit if a command says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

from lockkit.clock import Clock, back_off_s
from lockkit.errors import LockBusy, LockLost, StoreError, TableError
from lockkit.lab.processes.child import Channel, serve
from lockkit.lock.handle import Lock
from lockkit.runtime import run
from lockkit.sinks import Emit
from lockkit.stores import Store, open_store
from lockkit.table import (
    Prepared,
    TableConfig,
    TaskId,
    avro_schema,
    begin,
    load_snapshot,
    prepare,
    publish,
    read_slice,
    read_table,
)
from lockkit.table.errors import CommitConflict, CommitUnknown
from lockkit.table.format.row_partitions import by_partition
from lockkit.table.format.spark_hash import bucket_of
from lockkit.table.format.timeline import load_timeline
from lockkit.table.occ.transaction import Transaction
from lockkit.table.read.bucket_groups import bucket_file_id
from lockkit.table.write.groups import TargetGroup, WriteTask, write_group

NAMES = ("id", "region", "at", "amount")
COLUMNS = "id string, region string, at long, amount long"
KEYS = {"record_key": "id", "precombine": "at", "partition_path": "region"}


class TableMoved(Exception):
    """Another writer committed between the read and the beginning of the write."""


REFUSALS = (TableMoved, CommitConflict, CommitUnknown, LockBusy, LockLost, StoreError, TableError)
TTL_S, LOCK_TIMEOUT_S = 4.0, 60.0
RETRY_FIRST_S, RETRY_LONGEST_S = 0.1, 0.5
ONCE, ANEW = "once", "anew"
"""When the rows are read that are written: before the first attempt, or for each."""
WROTE = "wrote"
Row = tuple[str, str, int, int]


def config(buckets: int = 1) -> TableConfig:
    return TableConfig(
        name="orders", record_key="id", precombine="at", partition_by="region", buckets=buckets
    )


class PlainProgram:
    """Writes without Spark: the table's own procedures, in this process."""

    def __init__(self, url: str, endpoint: str, name: str, emit: Emit) -> None:
        self.url, self.name, self.emit, self.clock = url, name, emit, Clock()
        self.place: dict[str, Any] = {"endpoint": endpoint, "client": name}

    def put(self, rows: list[Row], retries: int = 0) -> str:
        return self._committed(lambda _old: rows, retries)

    def add(self, key: str, amount: int, reads: str, retries: int) -> str:
        """What `key` has, and so much more."""
        if reads == ANEW:
            return self._committed(lambda old: more(old, key, amount), retries)
        with closing(open_store(self.url, **self.place)) as store:
            fixed = more(rows_of(read_table(store)), key, amount)
        return self._committed(lambda _old: fixed, retries)

    def _committed(self, rows: Callable[[list[Row]], list[Row]], retries: int) -> str:
        store = open_store(self.url, **self.place)
        with closing(lock_of(self.url, self.emit, client=self.name, store=store)) as lock:
            for tries in range(retries + 1):
                try:
                    return publish(
                        self._prepared(rows, store), lock, store, self.clock, self.emit
                    ).instant
                except CommitConflict as conflict:
                    if tries == retries:
                        raise
                    again(tries, retries, conflict, self.emit, self.clock)
        raise AssertionError("a bounded loop that always returns or raises")

    def _prepared(self, rows: Callable[[list[Row]], list[Row]], store: Store) -> Prepared:
        """Write one attempt's files, with rows computed from the table as the attempt begins."""
        way: Transaction = run(begin(), store, self.clock, self.emit)
        now = run(load_snapshot(covering=way.covered), store, self.clock)
        old = [run(read_slice(each), store, self.clock) for each in now.slices]
        table, stats = table_of(rows([row for each in old for row in rows_of(each)])), []
        for partition, part in by_partition(way.target.config, table):
            for bucket, few in self._by_bucket(way, part):
                group = partition, bucket_file_id(partition, bucket)
                work = WriteTask(store, way.target, TaskId(), self.clock)
                stats.append(write_group(work, TargetGroup(group, now.groups.get(group)), few))
        self.emit("note", text=f"{WROTE} {len(stats)} files", instant=way.instant)
        return run(
            prepare(
                way, [each for each in stats if each is not None],
                schema=avro_schema(table.schema, way.config.name),
                known_partitions=frozenset(partition for partition, _ in now.groups),
            ), store, self.clock, self.emit,
        )  # fmt: skip

    def _by_bucket(self, way: Transaction, rows: Any) -> Iterator[tuple[int, Any]]:
        numbers = bucket_of(rows["id"].combine_chunks(), way.config.buckets).to_pylist()
        for bucket in sorted(set(numbers)):
            yield bucket, rows.filter([each == bucket for each in numbers])


class SparkProgram:
    """The same through PySpark: `lockkit.spark.write`, and `format("lockkit")`."""

    def __init__(self, session: Any, url: str, endpoint: str, name: str, emit: Emit) -> None:
        self.session, self.url, self.endpoint = session, url, endpoint
        self.name, self.emit = name, emit

    def put(self, rows: list[Row], retries: int = 0) -> str:
        return self._write(self.session.createDataFrame(rows, COLUMNS), retries)

    def add(self, key: str, amount: int, reads: str, retries: int) -> str:
        """What `key` has, and so much more.

        Collected rows never change, however often an attempt begins again. To read anew, begin
        again from the read, and make sure (`claim`) that there was no other commit between the
        read and the write's beginning. (A DataFrame of `read` that is written unchanged would be
        refused after such a commit: `OldRows`.)
        """
        if reads == ONCE:
            rows = self._more(key, amount).collect()
            return self._write(self.session.createDataFrame(rows, COLUMNS), retries)
        for tries in range(retries + 1):
            seen = self._commits()
            try:
                return self._write(self._more(key, amount), 0, partial(self._as_read, seen))
            except (CommitConflict, TableMoved) as late:
                if tries == retries:
                    raise
                again(tries, retries, late, self.emit, Clock())
        raise AssertionError("a bounded loop that always returns or raises")

    def _more(self, key: str, amount: int) -> Any:
        from lockkit.spark import read

        mine = read(self.session, self.url, endpoint=self.endpoint, filters=[("id", "=", key)])
        return mine.selectExpr("id", "region", "at + 1 as at", f"amount + {amount} as amount")

    def _commits(self) -> frozenset[str]:
        with closing(open_store(self.url, endpoint=self.endpoint, client=self.name)) as store:
            return frozenset(run(load_timeline(config().names), store, Clock()).commits)

    def _as_read(self, seen: frozenset[str], _instant: str) -> None:
        """Called when an attempt has begun: its conflict check finds later commits."""
        if news := self._commits() - seen:
            raise TableMoved(
                f"{max(news)} came after the rows were read; begin again from the read"
            )

    def save(self, rows: list[Row]) -> str:
        """Save with Spark's own writer, which commits in a process of its choice."""
        frame = self.session.createDataFrame(rows, COLUMNS)
        options = {"endpoint": self.endpoint, "client": self.name}
        frame.write.format("lockkit").mode("append").options(**options).save(self.url)
        return "save() has returned"

    def _write(self, frame: Any, retries: int, claim: Callable[[str], None] | None = None) -> str:
        from lockkit.spark import write

        place: dict[str, Any] = {"endpoint": self.endpoint, "client": self.name}
        with closing(lock_of(self.url, self.emit, **place)) as lock:
            done = write(
                frame, self.url, retries=retries, lock=lock, emit=self.emit, claim=claim, **place
            )
        assert done is not None, "the rows are not none"
        return done.instant


# --- rows -----------------------------------------------------------------------------------------


def more(rows: list[Row], key: str, amount: int) -> list[Row]:
    return [(each, region, at + 1, old + amount) for each, region, at, old in rows if each == key]


def rows_of(table: Any) -> list[Row]:
    return list(zip(*(table[name].to_pylist() for name in NAMES), strict=True))


def table_of(rows: list[Row]) -> Any:
    import pyarrow as pa

    kinds = (pa.string(), pa.string(), pa.int64(), pa.int64())
    columns = list(zip(*rows, strict=True)) or [()] * len(NAMES)
    return pa.table(
        {name: pa.array(each, kind)
         for name, each, kind in zip(NAMES, columns, kinds, strict=True)}
    )  # fmt: skip


def lock_of(url: str, emit: Emit, **place: Any) -> Lock:
    return Lock(
        url,
        ttl_s=TTL_S,
        renew_interval_s=TTL_S / 10,
        acquire_timeout=LOCK_TIMEOUT_S,
        emit=emit,
        **place,
    )


def again(tries: int, retries: int, conflict: Exception, emit: Emit, clock: Clock) -> None:
    emit("note", text=f"attempt {tries + 1} of {retries + 1}: {conflict}")
    clock.sleep(back_off_s(tries, clock, first_s=RETRY_FIRST_S, longest_s=RETRY_LONGEST_S))


# --- the process ----------------------------------------------------------------------------------


class Waiting:
    """Emits through the channel; waits once for a command, at the first note with this prefix."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._at = ""

    @contextmanager
    def at(self, note: str) -> Iterator[None]:
        self._at = note
        try:
            yield
        finally:
            self._at = ""

    def emit(self, kind: str, **fields: Any) -> None:
        self.channel.emit(kind, **fields)
        if self._at and kind == "note" and str(fields.get("text")).startswith(self._at):
            self._at = ""
            self.channel.send("waits", what=str(fields["text"]))
            if self.channel.next_command() is None:
                os._exit(0)


def obey(order: dict[str, Any], waiting: Waiting, writer_of: Callable[[str], Any]) -> None:
    """Carry out one command and send its result."""
    do, url, hold = order.pop("do"), order.pop("url"), order.pop("hold", "")
    send = waiting.channel.send
    try:
        with waiting.at(hold):
            send("done", said=str(getattr(writer_of(url), do)(**order)))
    except REFUSALS as error:
        send("refused", error=type(error).__name__, said=str(error))


def main(channel: Channel) -> int:
    waiting, endpoint = Waiting(channel), channel.settings["endpoint"]
    remote, session = channel.settings["remote"], None
    if remote:
        from lockkit.spark import register
        from lockkit.spark.connect import connect_session

        session = connect_session(remote)
        register(session)

    def writer_of(url: str) -> Any:
        place = url, endpoint, channel.name, waiting.emit
        return PlainProgram(*place) if session is None else SparkProgram(session, *place)

    channel.send("ready", pid=os.getpid())
    for order in channel.commands():
        obey(order, waiting, writer_of)
    return 0


if __name__ == "__main__":
    serve(main)
