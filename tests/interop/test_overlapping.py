"""Apache Hudi on Spark and lockkit write one table without conflicts: non-blocking control.

Judged by Hudi's reader and by hudi-rs, beside lockkit's own.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hudi_rs import read_by_hudi_rs
from hudi_world import Hudi, Refused, s3a
from ours import SCHEMA, SPARK_SCHEMA, arrow, in_order, order
from overlapping import NBCC, open_table
from test_hudi import OPTIONS

from lockkit import Clock
from lockkit.errors import LockLost
from lockkit.lab.server import Emulator
from lockkit.runtime import run
from lockkit.table import CommitConflict, Table, read_table
from lockkit.table.format.java_hash import bucket_of
from lockkit.table.format.properties import load_config
from lockkit.table.format.timeline import load_timeline
from lockkit.table.read.bucket_groups import hashed_file_id
from lockkit.table.read.reader import read_increment

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]
BUCKETS = itertools.count()
FIRST = order("z", region="ZZ")
QUERY = "hoodie.datasource.query.type"
THEIRS = OPTIONS | NBCC | {
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.table.type": "MERGE_ON_READ",  # Hudi checks its own name of it, too
    "hoodie.index.type": "BUCKET",
    "hoodie.bucket.index.num.buckets": "2",
    "hoodie.compact.inline": "false",
}  # fmt: skip
BY_COMMIT = {"hoodie.record.merge.mode": "COMMIT_TIME_ORDERING"}
META = ("_hoodie_commit_time", "_hoodie_record_key")


@dataclass(frozen=True)
class Overlapped:
    """One table on the embedded server."""

    url: str
    endpoint: str
    hudi: Hudi
    ordered: bool
    version: int

    def ours(self, **how: Any) -> Table:
        return open_table(self.url, self.endpoint, **how)

    def hudi_upserts(self, *rows: Mapping[str, Any], **more: str) -> None:
        self.hudi.write(self.url, rows, schema=SPARK_SCHEMA, options=self.options | more)

    def pending(self) -> list[str]:
        with self.ours() as table:
            names = run(load_config(), table.store, Clock())[0].names
            return list(run(load_timeline(names), table.store, Clock()).pending)

    @property
    def options(self) -> dict[str, str]:
        theirs = THEIRS | {"hoodie.write.table.version": str(self.version)}
        if self.ordered:
            return theirs
        return {k: v for k, v in theirs.items() if "precombine" not in k} | BY_COMMIT

    def all_show(self) -> list[dict[str, Any]]:
        """Of each kind of query the same rows by each reader; those of the snapshot."""
        with self.ours() as table:
            store = table.store
            snapshot = chosen(read_table(store, meta=True).to_pylist())
            base = chosen(read_table(store, meta=True, query="read_optimized").to_pylist())
            middle = sorted(each.completed for each in table.history())
            begin = middle[len(middle) // 2]
            changed = chosen(read_increment(store, begin, meta=True)[0].to_pylist())
        assert chosen(self.hudi.read(self.url)) == snapshot == self.rust()
        assert chosen(self.hudi.read(self.url, **{QUERY: "read_optimized"})) == base
        window = {QUERY: "incremental", "hoodie.datasource.read.begin.instanttime": begin}
        theirs = chosen(self.hudi.read(self.url, **window))
        # By commit order, Hudi also brings a row that lost against a commit before the window.
        assert theirs == changed if self.ordered else all(row in theirs for row in changed)
        rows = [{name: row[name] for name in SCHEMA.names} for row in snapshot]
        rows.remove(FIRST)
        return rows

    def rust(self) -> list[dict[str, Any]]:
        return chosen(read_by_hudi_rs(self.url, self.endpoint).to_pylist())


def chosen(rows: Any) -> list[dict[str, Any]]:
    return in_order({name: row[name] for name in (*META, *SCHEMA.names)} for row in rows)


KINDS = {"by event": ("at", 9), "by commit": (None, 9), "by event, version 8": ("at", 8)}
"""The precombine field and the table's version."""
in_both_versions = pytest.mark.parametrize("table", KINDS, indirect=True)


@pytest.fixture(params=["by event", "by commit"])
def table(request: pytest.FixtureRequest, hudi: Hudi, server: Emulator) -> Iterator[Overlapped]:
    bucket = f"overlapping-{next(BUCKETS)}"
    url = f"s3://{bucket}/orders"
    precombine, version = KINDS[request.param]
    with Table.create(
        url, record_key="id", partition_by="region", precombine=precombine, version=version,
        table_type="MERGE_ON_READ", index="BUCKET", buckets=2, mode="hudi", endpoint=server.s3,
    ) as made:  # fmt: skip
        made.upsert(arrow([FIRST]))  # Hudi lists the timeline's folder, and an empty one is none
    yield Overlapped(url, server.s3, hudi, precombine is not None, version)


class AtFiles:
    """An `emit`: once, between a write's files and its commit."""

    def __init__(self, what: Any, starts: str = "wrote") -> None:
        self.what, self.starts, self.done = what, starts, False

    def __call__(self, kind: str, **fields: Any) -> None:
        if kind == "note" and fields["text"].startswith(self.starts) and not self.done:
            self.done = True
            self.what()


def overlapped(table: Overlapped, mine: Sequence[Any], theirs: Sequence[Any]) -> None:
    """Ours begins and writes its files; Hudi begins and commits; ours commits."""
    with table.ours(emit=AtFiles(lambda: table.hudi_upserts(*theirs))) as slow:
        assert slow.upsert(arrow(mine)) is not None


@in_both_versions
def test_hudi_and_lockkit_overlap_and_both_commit(table: Overlapped) -> None:
    table.hudi_upserts(order("k0"), order("k1"), order("k2", region="US"))
    overlapped(table, [order("k0", amount=1, at=20), order("k3")],
               [order("k0", amount=2, at=10), order("k1", amount=2, at=10)])  # fmt: skip
    rows = {row["id"]: row["amount"] for row in table.all_show()}
    # Without a precombine field the later instant wins, which is Hudi's, not the later completion.
    assert rows == {"k0": 1 if table.ordered else 2, "k1": 2, "k2": 0, "k3": 0}
    with table.ours() as ours:
        ours.delete(arrow([order("k1", at=30)]))
        before = table.all_show()
        assert ours.compact() is not None
        assert table.all_show() == before
    table.hudi_upserts(order("k2", region="US", amount=5, at=40), order("k4"))
    rows = {row["id"]: row["amount"] for row in table.all_show()}
    assert rows == {"k0": 1 if table.ordered else 2, "k2": 5, "k3": 0, "k4": 0}


def test_a_plan_of_hudis_is_carried_out_by_lockkit_and_one_of_lockkits_by_hudi(
    table: Overlapped,
) -> None:
    def hudi_compacts(what: str) -> None:
        said = table.options | {"hoodie.compact.inline.max.delta.commits": "1"}
        options = ",".join(f"{key}={value}" for key, value in said.items())
        table.hudi("sql", text=f"CALL run_compaction({what}, path => '{s3a(table.url)}', "
                               f"options => '{options}')")  # fmt: skip

    table.hudi_upserts(order("k0"), order("k1"))
    with table.ours() as ours:
        ours.upsert(arrow([order("k0", amount=1, at=10)]))
        hudi_compacts("op => 'schedule'")
        (planned,) = table.pending()
        ours.upsert(arrow([order("k1", amount=1, at=10)]))  # behind the plan
        done = ours.compact(mode="execute", instant=planned)
        assert done is not None and done.instant == planned and not table.pending()
        assert {row["id"]: row["amount"] for row in table.all_show()} == {"k0": 1, "k1": 1}
        mine = ours.compact(mode="schedule")
        assert mine is not None and table.pending() == [mine.instant]
        assert len(table.all_show()) == 2
        table.hudi_upserts(order("k0", amount=2, at=20))  # behind the plan
        hudi_compacts(f"op => 'run', timestamp => {mine.instant}L")
        assert not table.pending()
        assert (mine.instant, "commit") in [(e.instant, e.action) for e in ours.history()]
        assert {row["id"]: row["amount"] for row in table.all_show()} == {"k0": 2, "k1": 1}


def test_hudis_compaction_and_ours_leave_what_is_completed_after_them(table: Overlapped) -> None:
    compacting = {"hoodie.compact.inline": "true",
                  "hoodie.compact.inline.max.delta.commits": "1"}  # fmt: skip
    table.hudi_upserts(order("k0"))
    with table.ours() as ours:
        ours.upsert(arrow([order("k0", amount=1, at=10)]))

    def meanwhile() -> None:
        table.hudi_upserts(order("k1", at=10), **compacting)

    with table.ours(emit=AtFiles(meanwhile)) as slow:
        slow.upsert(arrow([order("k2", at=10)]))  # began before the compaction of Hudi's
    assert [row["id"] for row in table.all_show()] == ["k0", "k1", "k2"]
    with table.ours() as ours:
        actions = [each.action for each in ours.history()]
        assert "commit" in actions, "Hudi compacted nothing"
        base = ours.read(query="read_optimized")["id"].to_pylist()
        assert "k0" in base and "k2" not in base

    def upsert() -> None:
        table.hudi_upserts(order("k3", at=10))

    with table.ours(emit=AtFiles(upsert, "compacting")) as ours:
        assert ours.compact() is not None
    assert [row["id"] for row in table.all_show()] == ["k0", "k1", "k2", "k3"]


def test_a_key_has_one_bucket_and_one_file_group_by_both(table: Overlapped) -> None:
    if not table.ordered:
        return
    keys = ["", "k", *(f"key {n}" for n in range(40)), "é€", "😀 x", "a" * 100, "a:b", "a,b",
            "a:b,c", "id:b,c"][1:]  # fmt: skip
    table.hudi_upserts(*(order(each) for each in keys))
    found = {row["id"]: row["_hoodie_file_name"] for row in table.hudi.read(table.url)}
    del found["z"]
    numbers = bucket_of(pa.array(keys), 2, ["id"]).to_pylist()
    assert found == {key: hashed_file_id(number) for key, number in zip(keys, numbers, strict=True)}
    with table.ours() as ours:
        ours.upsert(arrow(order(each, amount=1, at=1) for each in keys))
        assert len(ours.refresh().groups) == 3
    assert all(row["amount"] == 1 for row in table.all_show())


def test_hudi_rolls_back_a_dead_writer_of_ours_and_no_reader_shows_its_log_files(
    table: Overlapped
) -> None:
    table.hudi_upserts(order("k0"))

    def overslept() -> None:
        with table.ours() as other:
            store = other.store
            for each in store.list(".hoodie/.heartbeat/"):
                store.delete(each.key)
        table.hudi_upserts(order("k1"), **{"hoodie.clean.automatic": "true"})

    with table.ours(emit=AtFiles(overslept)) as slow:
        with pytest.raises((LockLost, CommitConflict), match=r"as dead|for dead"):
            slow.upsert(arrow([order("dead", at=9)]))
    assert [row["id"] for row in table.all_show()] == ["k0", "k1"]


def test_hudi_refuses_what_we_refuse(table: Overlapped) -> None:
    with pytest.raises(Refused, match="is not supported with non-blocking"):
        table.hudi_upserts(
            order("k0"), **{"hoodie.datasource.write.operation": "insert_overwrite"}
        )
    with table.ours() as ours, pytest.raises(Exception, match="is refused"):
        ours.overwrite(arrow([order("k0")]))


@in_both_versions
def test_two_hudis_and_two_of_ours_at_the_same_time_all_commit(
    table: Overlapped, second: Hudi
) -> None:
    table.hudi_upserts(order("shared"))
    batches = {
        side: [[order(f"{name}-{n}", amount=n, at=n),
                order("shared", amount=1_000 * place + n, at=10 * n + place)]
               for n in range(4)]
        for place, (name, side) in enumerate((("one", table.hudi), ("two", second)))
    }  # fmt: skip
    for side, rows in batches.items():
        side.send("writes", path=s3a(table.url), schema=SPARK_SCHEMA, batches=rows,
                  options=table.options)  # fmt: skip
    ours = [started(table, f"w{n}", 2 + n) for n in range(2)]
    assert [each for side in batches for each in side.answer() if each] == []
    done = [list(json.loads(finished(each))) for each in ours]
    written = [row for rows in (*batches.values(), *done) for batch in rows for row in batch]
    expected = {row["id"]: row for row in sorted(written, key=lambda each: each["at"])}
    shown = {row["id"]: row for row in table.all_show()}
    assert shown.keys() == expected.keys() and all(len(each) > 2 for each in done)
    if table.ordered:
        assert shown == expected
    with table.ours() as last:
        assert last.compact() is not None
    assert {row["id"]: row for row in table.all_show()} == shown


def started(table: Overlapped, client: str, place: int) -> subprocess.Popen[str]:
    said = {"url": table.url, "endpoint": table.endpoint, "client": client, "place": place}
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("overlapping.py")), json.dumps(said)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def finished(writer: subprocess.Popen[str]) -> str:
    out, _ = writer.communicate(timeout=120)
    assert writer.returncode == 0
    return out
