"""Merge-on-read tables of version 6 that Hudi made: Hudi and lockkit write, plan and roll back."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hudi_rs import read_by_hudi_rs
from hudi_world import Hudi, Refused, s3a
from ours import SPARK_SCHEMA, arrow, order
from test_hudi import OPTIONS

from lockkit.clock import Clock
from lockkit.lab.server import Emulator
from lockkit.runtime import run
from lockkit.table import CommitConflict, Table
from lockkit.table.errors import TableBlocked
from lockkit.table.services.adopt import adopt
from lockkit.table.write.attempt import WriteAttempt

pytestmark = [
    pytest.mark.interop, pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::lockkit.table.read.listed.LocalInstants"),
]  # fmt: skip
OF_TABLE = {
    "hoodie.datasource.write.table.type": "MERGE_ON_READ", "hoodie.write.table.version": "6",
    "hoodie.compact.inline": "false",
}  # fmt: skip
ORDERS = {"by event": {}, "by commit": {
    "hoodie.datasource.write.payload.class":
        "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload",
    "hoodie.write.record.merge.mode": "COMMIT_TIME_ORDERING",
}}  # fmt: skip
PLAN = {"hoodie.compact.schedule.inline": "true", "hoodie.compact.inline.max.delta.commits": "1"}
COMPACT = {"hoodie.compact.inline": "true", "hoodie.compact.inline.max.delta.commits": "1"}
ALONE = {"hoodie.write.concurrency.mode": "single_writer",
         "hoodie.cleaner.policy.failed.writes": "EAGER"}  # fmt: skip
"""Rolls back every pending write."""
ARCHIVES = {
    "hoodie.clean.automatic": "true", "hoodie.clean.commits.retained": "1",
    "hoodie.archive.automatic": "true", "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3", "hoodie.commits.archival.batch": "1",
}  # fmt: skip
BEATS = {"hoodie.client.heartbeat.interval_in_ms": "1000",
         "hoodie.client.heartbeat.tolerable.misses": "2"}  # fmt: skip
LOCK = {"ttl_s": 15.0, "renew_interval_s": 1.0, "acquire_timeout": 120.0}
NUMBERS = itertools.count()
KEYS = [f"k{number}" for number in range(12)]


@dataclass
class Both:
    """A table of Hudi's, and what it holds: by key the number of its last write."""

    url: str
    endpoint: str
    hudi: Hudi
    more: dict[str, str]
    expected: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.expected:
            self.by_hudi(1, *KEYS[:6], mode="overwrite")
            with self.opened() as table:
                run(adopt(), table.store, Clock())

    def opened(self, options: Any = (), **how: Any) -> Table:
        options = {"hoodie.clean.automatic": "false", **dict(options)}
        return Table(self.url, endpoint=self.endpoint, lock=LOCK, options=options, **how)

    def rows(self, at: int, *keys: str) -> list[dict[str, Any]]:
        return [order(key, region="EU" if int(key[1:]) % 2 else "US", amount=at, at=at)
                for key in keys]  # fmt: skip

    def by_hudi(self, at: int, *keys: str, mode: str = "append", **more: str) -> None:
        self.hudi.write(self.url, self.rows(at, *keys), schema=SPARK_SCHEMA, mode=mode,
                        options=OPTIONS | OF_TABLE | self.more | more)  # fmt: skip
        self.expected |= dict.fromkeys(keys, at)

    def by_us(self, at: int, *keys: str, **options: str) -> None:
        with self.opened(options) as table:
            assert table.upsert(arrow(self.rows(at, *keys))) is not None
        self.expected |= dict.fromkeys(keys, at)

    def deleted(self, at: int, *keys: str) -> None:
        with self.opened() as table:
            assert table.delete(arrow(self.rows(at, *keys))) is not None
        self.expected = {key: v for key, v in self.expected.items() if key not in keys}

    def compacted_by_hudi(self) -> None:
        self.hudi("sql", text=f"call run_compaction(op => 'run', path => '{s3a(self.url)}')")

    def all_show(self, *, by_rs: bool = True) -> None:
        """`by_rs`: hudi-rs 0.5 leaves out log files behind a pending compaction of version 6."""
        wanted = sorted(self.expected.items())
        with self.opened() as table:
            ours = table.read().to_pylist()
        shown = [ours, self.hudi.read(self.url)]
        if by_rs:
            shown.append(read_by_hudi_rs(self.url, self.endpoint).to_pylist())
        for rows in shown:
            assert sorted((row["id"], row["amount"]) for row in rows) == wanted


@pytest.fixture
def both(hudi: Hudi, server: Emulator) -> Iterator[Any]:
    def make(order: str = "by event") -> Both:
        return Both(f"s3://sliced-{next(NUMBERS)}/orders", server.s3, hudi, ORDERS[order])

    yield make


@pytest.mark.parametrize("planner", ["Hudi", "lockkit"])
@pytest.mark.parametrize("executor", ["Hudi", "lockkit"])
@pytest.mark.parametrize("order", ORDERS)
def test_they_write_in_turn_also_behind_a_plan_of_either(
    both: Any, order: str, planner: str, executor: str
) -> None:
    table: Both = both(order)
    table.by_us(2, "k1", "k2", "k6")
    table.all_show()
    table.by_hudi(3, "k2", "k6", "k7")
    table.by_us(4, "k2", "k7", "k8")
    table.deleted(5, "k3", "k6")
    table.all_show()
    if planner == "Hudi":
        table.by_hudi(6, "k2", "k4", **PLAN)
    else:
        with table.opened() as ours:
            assert ours.compact(mode="schedule") is not None
    table.all_show(by_rs=planner == "Hudi")
    table.by_us(7, "k1", "k2", "k9")
    table.by_hudi(8, "k1", "k4", "k3")
    table.deleted(9, "k5")
    table.all_show(by_rs=False)
    if executor == "Hudi":
        table.compacted_by_hudi()
    else:
        with table.opened() as ours:
            assert ours.compact(mode="execute") is not None
    table.all_show()
    table.by_us(10, "k1", "k9", "k10")
    table.by_hudi(11, "k1", "k10", **COMPACT)
    table.all_show()
    with table.opened() as ours:
        ours.compact()
        ours.clean()
    table.all_show()
    table.by_hudi(12, *KEYS[::2], **ARCHIVES)
    table.by_us(13, *KEYS[::3])
    table.by_hudi(14, *KEYS[1::2], **ARCHIVES)
    table.by_us(15, *KEYS[::3])
    table.all_show()


class Stops(BaseException):
    """The end of a process."""


def ends(*_: Any) -> Iterator[Any]:
    raise Stops
    yield


def dies(table: Both, at: int, *keys: str) -> None:
    """A writer of lockkit's that ends once its files are there."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(WriteAttempt, "_publish", ends)
        patched.setattr(WriteAttempt, "_leave", lambda *_: iter(()))
        with table.opened() as ours, pytest.raises(Stops):
            ours.upsert(arrow(table.rows(at, *keys)))


def test_hudi_rolls_back_a_dead_writer_of_lockkits_and_archives_and_no_row_appears(
    both: Any,
) -> None:
    table: Both = both()
    table.by_us(2, "k1", "k2", "k6")
    dies(table, 99, "k1", "k2", "k7", "k11")
    table.all_show()
    for at in range(3, 12):
        table.by_hudi(at, "k4", **ALONE, **ARCHIVES)
    table.all_show()
    table.by_us(12, "k1", "k11")
    with table.opened() as ours:
        archived = {each.instant for each in ours.history()}
        assert len(archived) > 10
        ours.compact()
    table.all_show()


def test_lockkit_rolls_back_a_refused_writer_of_hudis_and_no_row_appears(both: Any) -> None:
    table: Both = both()
    table.by_us(2, "k1", "k2", "k6")
    over = threading.Event()

    def meanwhile() -> None:
        for at in itertools.count(3):
            table.by_us(at, "k1")
            if over.wait(0.5):
                return

    ours = threading.Thread(target=meanwhile)
    ours.start()
    standing = dict(table.expected)
    try:
        with pytest.raises(Refused):
            table.by_hudi(9_999, "k1", "k2", "k7", "k11", **BEATS)
    finally:
        over.set()
        ours.join()
    table.expected = standing | {"k1": table.expected["k1"]}
    table.all_show()
    Clock().sleep(5)
    with table.opened(BEATS) as ours_again:
        (done,) = ours_again.roll_back_dead()
        names = [each.key.rpartition("/")[2] for each in ours_again.store.list("")]
        assert not any(done.target in each for each in names if each.endswith(".parquet"))
    table.all_show()
    for at in range(20_000, 20_006):
        table.by_hudi(at, "k4", **ARCHIVES)
    table.all_show()
    with table.opened() as ours_again:
        ours_again.compact()
    table.all_show()


def test_both_write_and_compact_at_once_and_each_acknowledged_row_is_there(
    both: Any, second: Hudi
) -> None:
    table: Both = both()
    numbers, turn = itertools.count(2), threading.Lock()
    acknowledged = [dict(table.expected)]
    refused: list[str] = []
    by_hudi: list[int] = []

    def acknowledge(at: int, keys: list[str]) -> None:
        with turn:
            for key in keys:
                acknowledged[0][key] = max(acknowledged[0].get(key, 0), at)

    def hudis(writer: Hudi, first: int, **more: str) -> None:
        for step in range(4):
            at, keys = next(numbers), KEYS[first + step : first + step + 3]
            try:
                writer.write(table.url, table.rows(at, *keys), schema=SPARK_SCHEMA, mode="append",
                             options=OPTIONS | OF_TABLE | BEATS | more)  # fmt: skip
                acknowledge(at, keys)
                by_hudi.append(at)
            except Refused as error:
                refused.append(f"Hudi: {error}"[:300])

    over = threading.Event()

    def ours(first: int) -> None:
        with table.opened(BEATS) as mine:
            for step in itertools.count():
                at, keys = next(numbers), [KEYS[(first + step) % 12], KEYS[(first + 5 + step) % 12]]
                try:
                    mine.upsert(arrow(table.rows(at, *keys)))
                    acknowledge(at, keys)
                    if step % 3 == 2:
                        mine.compact()
                except (CommitConflict, TableBlocked) as error:  # another one compacts
                    refused.append(f"ours: {error}"[:300])
                if over.wait(8.0):  # a commit of Hudi's takes seconds: a shorter pause refuses each
                    return

    threads = [threading.Thread(target=ours, args=(first,)) for first in (0, 6)]
    theirs = [threading.Thread(target=hudis, args=(table.hudi, 0), kwargs=COMPACT),
              threading.Thread(target=hudis, args=(second, 4))]  # fmt: skip
    for each in (*threads, *theirs):
        each.start()
    for each in theirs:
        each.join()
    over.set()
    for each in threads:
        each.join()
    assert by_hudi
    table.expected = acknowledged[0]
    print(len(refused), "refused", *sorted({each[:120] for each in refused}), sep="\n  ")
    table.all_show(by_rs=False)
    Clock().sleep(5)
    with table.opened(BEATS) as mine:
        mine.roll_back_dead()
        while mine.compact() is not None:
            pass
    table.all_show()
    for at in range(1000, 1008):
        table.by_hudi(at, "k4", **ARCHIVES)
    table.all_show()
