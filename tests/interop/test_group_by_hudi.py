"""Apache Hudi on Spark reads a table with group commit after each change, and then writes it.

Offers and tombstones lie beside the timeline's files, and Hudi knows nothing of them.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hudi_world import Hudi
from test_archive import OPTIONS, in_order, rows

from lockkit.cli.main import main
from lockkit.table import CommitConflict, Table, read_table
from lockkit.table.occ.group import publish as group_publish
from lockkit.table.services import archive_group

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]


@pytest.mark.parametrize("version", [9, 6])
def test_hudi_reads_what_writers_decided_together_and_writes_it_after_the_switch(
    hudi: Hudi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    from test_group_table import before_fence, published, timeline

    monkeypatch.setattr(archive_group, "REPUBLISHED_MS", 0)
    monkeypatch.setattr(group_publish, "is_busy", lambda _: False)
    path, url = str(tmp_path / "orders"), f"file://{tmp_path}/orders"
    model: dict[str, int] = {}

    def both_show(what: str) -> None:
        for each in (one, other):
            published(each)
        ours = in_order(read_table(one.store, meta=True).to_pylist())
        assert {row["id"]: row["at"] for row in ours} == model, what
        assert in_order(hudi.read(path)) == ours, what

    options = {"hoodie.clean.commits.retained": "2"}
    with Table.create(
        url, record_key="id", partition_by="region", precombine="at", name="orders",
        commit="group", options=options, version=version,
    ) as one, Table(url, options=options) as other:  # fmt: skip
        for at in range(8):
            before_fence(one, lambda at=at: other.append(rows(f"o{at}", at=at)))
            one.upsert(rows("k1", f"n{at}", at=at))
            model |= {f"o{at}": at, "k1": at, f"n{at}": at}
        before_fence(one, lambda: other.upsert(rows("k1", at=50)))
        with pytest.raises(CommitConflict):
            one.upsert(rows("k1", at=40))
        model["k1"] = 50
        assert list(timeline(url).glob("*.append")) or list(timeline(url).glob("*.offer"))
        both_show("offers and tombstones")
        one.delete(rows("n0", at=60))
        del model["n0"]
        both_show("a delete")
        assert other.cluster() is not None
        both_show("a clustering")
        one.clean()
        done = one.archive(keep_min=3, keep_max=4)
        assert done is not None and len(done.instants) > 5
        both_show("an archive")
        saved = one.savepoint()
        one.append(rows("gone", at=70))
        published(one)
        assert one.restore(saved.instant).taken_back
        both_show("a restore")
        one.overwrite(rows("k1", at=80))  # region=EU: k1 and nothing else of the model
        model = {key: at for key, at in model.items() if key >= "k3"} | {"k1": 80}
        both_show("an overwrite")
    assert main(["table", "mode", url, "hudi", "--yes"]) == 0
    hudi.write(path, rows("k1", "z", at=90).to_pylist(), mode="append",
               schema="id string, region string, at long",
               options=OPTIONS | {"hoodie.write.table.version": str(version)})  # fmt: skip
    model |= {"k1": 90, "z": 90}
    found = in_order(hudi.read(path))
    assert {row["id"]: row["at"] for row in found} == model
    with Table(url) as after:
        assert in_order(read_table(after.store, meta=True).to_pylist()) == found


WRITERS, APPENDS, LOOKS_MAX = 8, 12, 40


@pytest.mark.parametrize("version", [9, 6])
def test_hudi_reads_whole_commits_in_the_order_of_each_of_eight_writers_while_they_append(
    hudi: Hudi, tmp_path: Path, version: int
) -> None:
    path, url = str(tmp_path / "orders"), f"file://{tmp_path}/orders"
    with Table.create(
        url, record_key="id", partition_by="region", precombine="at", name="orders",
        commit="group", version=version,
    ) as first:  # fmt: skip
        first.append(rows("w0.first.a", at=0))
    assert len(hudi.read(path)) == 1  # Spark has begun

    def append(writer: int) -> None:
        with Table(url) as table:
            for number in range(APPENDS):
                table.append(rows(f"{writer}.{number}.a", f"{writer}.{number}.b", at=number))

    looks: list[set[str]] = []
    with ThreadPoolExecutor(WRITERS) as pool:
        at_work = [pool.submit(append, writer) for writer in range(WRITERS)]
        while not all(each.done() for each in at_work) and len(looks) < LOOKS_MAX:
            looks.append({row["id"] for row in hudi.read(path)})
        for each in at_work:
            each.result()
    looks.append({row["id"] for row in hudi.read(path)})
    assert len(looks[-1]) == 1 + 2 * WRITERS * APPENDS
    for seen in looks:
        for writer in range(WRITERS):
            mine = [{f"{writer}.{each}.a", f"{writer}.{each}.b"} & seen for each in range(APPENDS)]
            sizes = [len(each) for each in mine]
            assert set(sizes) <= {0, 2} and sizes == sorted(sizes, reverse=True), sizes
