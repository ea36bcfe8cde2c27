"""A merge-on-read table of version 6 that lockkit created: Hudi and lockkit write in turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hudi_rs import read_by_hudi_rs
from hudi_world import Hudi
from test_older_hudi import older as older

from lockkit.clock import Clock
from lockkit.runtime import run
from lockkit.table import Table
from lockkit.table.format.timeline import V6, load_timeline
from lockkit.table.occ.markers import LISTED, MARKERS
from lockkit.table.write.attempt import WriteAttempt

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]
WRITE = "hoodie.datasource.write."
SPARK = "id string, ts bigint, v bigint"
OPTIONS = {
    "hoodie.table.name": "t", WRITE + "recordkey.field": "id", WRITE + "operation": "upsert",
    WRITE + "precombine.field": "ts", WRITE + "table.type": "MERGE_ON_READ",
    "hoodie.metadata.enable": "false", "hoodie.write.table.version": "6",
    "hoodie.write.auto.upgrade": "false",
}  # fmt: skip

ALONE = {"hoodie.write.concurrency.mode": "single_writer",
         "hoodie.cleaner.policy.failed.writes": "EAGER",
         "hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "4"}  # fmt: skip
"""Rolls back every pending write."""
ARCHIVES = {
    "hoodie.clean.automatic": "true", "hoodie.clean.commits.retained": "1",
    "hoodie.archive.automatic": "true", "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3", "hoodie.commits.archival.batch": "1",
}  # fmt: skip


class Dies(BaseException):
    pass


def rows(v: int, *numbers: int) -> list[dict[str, Any]]:
    return [{"id": f"k{n}", "ts": v, "v": v} for n in numbers]


@pytest.mark.parametrize("index", ["", "BUCKET"])
def test_hudi_and_lockkit_write_a_table_in_turn_that_lockkit_created(
    hudi: Hudi, tmp_path: Path, index: str
) -> None:
    path, expected = str(tmp_path / "t"), dict[str, int]()
    options = OPTIONS | ({"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}
                         if index else {})  # fmt: skip
    with Table.create(
        f"file://{path}", record_key="id", precombine="ts", table_type="MERGE_ON_READ",
        version=6, mode="hudi", index=index, buckets=2,
    ) as table:  # fmt: skip

        def ours(v: int, *numbers: int) -> None:
            table.upsert(pa.Table.from_pylist(rows(v, *numbers)))
            shown(v, *numbers)

        def theirs(v: int, *numbers: int, **more: str) -> None:
            hudi.write(path, rows(v, *numbers), schema=SPARK, options={**options, **more})
            shown(v, *numbers)

        def shown(v: int, *numbers: int) -> None:
            expected.update({f"k{n}": v for n in numbers})
            by_hudi = hudi("read", path=path, options={}, select=["id", "v"])
            others = (each.to_pylist() for each in (table.read(), read_by_hudi_rs(path)))
            for found in (by_hudi, *others):
                assert sorted((row["id"], row["v"]) for row in found) == sorted(expected.items())

        ours(1, 1, 2, 3, 4, 5, 6)
        theirs(2, 1, 2, 7, 8)
        ours(3, 2, 3, 8, 9)
        table.compact()
        theirs(4, 1, 9, 10, **{"hoodie.compact.inline": "true",
                               "hoodie.compact.inline.max.delta.commits": "1"})  # fmt: skip
        ours(5, 1, 10, 11)
        table.delete(pa.Table.from_pylist(rows(6, 1, 7)))
        expected.pop("k1"), expected.pop("k7")
        theirs(7, 2, 12)


@pytest.mark.parametrize("by", ["hudi", "older"])
def test_hudi_rolls_back_a_dead_writer_whose_log_files_have_one_list_of_markers(
    request: pytest.FixtureRequest, tmp_path: Path, by: str
) -> None:
    """The list has no file of its type: Hudi looks for single markers, and meets the list.

    Once older commits are archived, Hudi's readers would take a log file that stays for committed.
    """
    def dies(*_: Any) -> Any:
        raise Dies

    hudi: Hudi = request.getfixturevalue(by)
    path, keys = str(tmp_path / "t"), range(1, 11)
    with Table.create(
        f"file://{path}", record_key="id", precombine="ts", table_type="MERGE_ON_READ",
        version=6, mode="hudi", index="BUCKET", buckets=4,
    ) as table:  # fmt: skip
        for v in (1, 2):
            table.upsert(pa.Table.from_pylist(rows(v, *keys)))
        with pytest.MonkeyPatch.context() as patched, pytest.raises(Dies):
            patched.setattr(WriteAttempt, "_commit_under_lock", dies)
            patched.setattr(WriteAttempt, "_leave", lambda *_: iter(()))
            table.upsert(pa.Table.from_pylist(rows(99, *keys)))
        (listed,) = (each.key for each in table.store.list(MARKERS))
        dead = listed.removeprefix(MARKERS).removesuffix(f"/{LISTED}")
        found = [each.key for each in table.store.list("") if ".log." in each.key]
        assert len(found) == 12, found
        for v in range(3, 10):
            hudi.write(path, rows(v, 1), schema=SPARK, options=OPTIONS | ALONE | ARCHIVES)
        assert not table.store.list(MARKERS)
        assert min(run(load_timeline(V6), table.store, Clock()).commits) > dead
        shown = [hudi("read", path=path, options={}, select=["id", "v"]),
                 table.read().to_pylist(), read_by_hudi_rs(path).to_pylist()]  # fmt: skip
    for each in shown:
        assert {row["id"]: row["v"] for row in each} == {f"k{n}": 9 if n == 1 else 2 for n in keys}
