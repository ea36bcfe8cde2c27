"""Apache Hudi on Spark reads a table with group commit after each change, and then writes it.

Offers and tombstones lie beside the timeline's files, and Hudi knows nothing of them.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from os import getloadavg
from pathlib import Path
from typing import Any

import pytest
from environment import Environment
from hudi_world import Hudi
from test_archive import OPTIONS, in_order, rows

from lockkit.cli.main import main
from lockkit.table import CommitConflict, Table, read_table
from lockkit.table.occ.group import publish as group_publish
from lockkit.table.services import archive_group
from tests.bench.committers import FIRST, create
from tests.bench.group import TOGETHER
from tests.bench.server import serving
from tests.bench.writers import CLOCK, ROWS, contend

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


WRITERS, EVERY_S, SECONDS = 16, 2.0, 40.0


@pytest.mark.parametrize("version", TOGETHER)
def test_hudi_reads_whole_commits_in_the_order_of_each_of_sixteen_processes_while_they_append(
    environment: Environment, tmp_path: Path, version: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a store of 60 ms. Prints the rate, and how far a look of Hudi's was behind."""
    looks: list[tuple[float, list[int]]] = []

    def look(bucket: str) -> None:
        began = time.clock_gettime(CLOCK)
        rows = reader("read", path=f"s3a://{bucket}/orders", select=["id"])
        looks.append((began, [int(row["id"][1:]) for row in rows]))

    @contextmanager
    def watch(_endpoint: str, bucket: str) -> Iterator[Callable[[list[float]], dict[str, Any]]]:
        over = threading.Event()

        def look_on() -> None:
            while not over.is_set():
                look(bucket)

        def figures(ends: list[float]) -> dict[str, Any]:
            over.set()
            looking.result()
            before = FIRST // ROWS + WRITERS  # each had a first one
            during = [(began, len(found) // ROWS - before) for began, found in looks]
            look(bucket)
            behind = [began - ends[shown] for began, shown in during if shown < len(ends)]
            return {"looks": len(during), "behind_s": round(max([0.0, *behind]), 2)}

        with ThreadPoolExecutor(1) as pool:
            looking = pool.submit(look_on)
            try:
                yield figures
            finally:
                over.set()

    with serving() as server:
        reader = Hudi(environment, server.s3, tmp_path / "log", **{"spark.master": "local[16]"})
        create(TOGETHER[version], server.s3, tmp_path, "warm")
        look("warm")  # Spark's first one takes long
        looks.clear()
        found = contend(server, TOGETHER[version], WRITERS, tmp_path, SECONDS, every_s=EVERY_S,
                        watch=watch)  # fmt: skip
        reader.close()
    with capsys.disabled():
        print(f"\nHudi beside {WRITERS} writers, version {version}: {found}, load {getloadavg()}")
    assert found["looks"] > 1 and found["commits"] > WRITERS and not found["rows_lost"]
    for _, shown in looks:
        assert len(shown) == len(set(shown)), "a row twice"
        commits = Counter((number // 1_000_000, number % 1_000_000 // ROWS) for number in shown)
        assert set(commits.values()) == {ROWS}, "a part of a commit"
        for writer in range(WRITERS + 1):
            mine = sorted(number for who, number in commits if who == writer)
            assert mine == list(range(len(mine))), f"{writer}: one without an earlier one"
    assert len(looks[-1][1]) == FIRST + ROWS * (WRITERS + found["commits"])
