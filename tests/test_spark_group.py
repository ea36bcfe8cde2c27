"""Spark on a table with group commit, without an option more: each way of writing."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deaths import AtRequest, Died, Mortal
from spark_world import KEYS, MARKS, SAID, by_hudi_rs, frame, spooled, stored
from test_spark_stream import arrive, crash_and_repeat, ingest, kept, work

from lockkit.clock import Clock
from lockkit.lock.storage import LOCK_KEY
from lockkit.protocol.outcome import Missing
from lockkit.runtime import SiblingInterrupted, run
from lockkit.spark import foreach_batch, write
from lockkit.spark.place import TableAddress
from lockkit.spark.spool import LocalSpool, land
from lockkit.spark.streamer import Streamer
from lockkit.stores import open_store
from lockkit.table import Table
from lockkit.table.format.properties import load_config
from lockkit.table.occ.fence import FENCE_KEY
from lockkit.table.occ.group import publish as group_publish
from lockkit.table.occ.group.fence import read_group_fence
from lockkit.table.occ.group.process import GroupProcess
from lockkit.table.services.upkeep import NoLockTaken

pytestmark = MARKS


@pytest.fixture(params=[9, 6])
def here(tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    place = {"url": f"file://{tmp_path}/orders"}
    Table.create(place["url"], record_key="id", partition_by="region", precombine="at",
                 buckets=2, commit="group", version=request.param).close()  # fmt: skip
    return place


def decided(place: dict[str, Any]) -> int:
    """How many commits the fence of group commit has decided, all of them published."""
    store = open_store(**place)
    fence, _ = run(read_group_fence(), store, Clock())
    names = run(load_config(), store, Clock())[0].names
    published = [each.key for each in store.list(names.prefix)
                 if each.key.endswith(".commit")]  # fmt: skip
    commits = [each for each in fence.window if each.kind == "commit"]
    assert fence.first == 1 and len(published) == len(commits), "Spark's writes are published"
    assert isinstance(store.get(LOCK_KEY), Missing), "no write takes the lock"
    return len(commits)


def test_every_way_of_spark_writes_and_reads_it(spark: Any, here: Any, tmp_path: Path) -> None:
    write(frame(spark, ("a", "EU", 1, 1), ("b", "US", 1, 1)), **KEYS, **here)
    saving = frame(spark, ("b", "US", 2, 2), ("c", "EU", 2, 2)).write.format("lockkit")
    saving.options(**SAID).mode("append").save(here["url"])
    arrive(tmp_path / "arriving", "one", ("d", "EU", 3, 3))
    ingest(spark, "foreach_batch", tmp_path / "arriving", here)
    other = tmp_path / "other"
    other.mkdir()
    arrive(other / "arriving", "two", ("e", "US", 4, 4))
    ingest(spark, "sink", other / "arriving", here)
    assert decided(here) == 4
    expected = [("a", "EU", 1), ("b", "US", 2), ("c", "EU", 2), ("d", "EU", 3), ("e", "US", 4)]
    assert stored(here) == by_hudi_rs(here) == expected
    found = spark.read.format("lockkit").load(here["url"]).select("id", "region", "v").collect()
    assert sorted(map(tuple, found)) == expected
    assert spooled(here) == []


def test_the_streamer_writes_it(spark: Any, here: Any, tmp_path: Path) -> None:
    arrive(tmp_path / "arriving", "a", ("a", "EU", 1, 1), ("b", "US", 1, 1))
    assert Streamer(spark, work(tmp_path)).whole() == 0
    arrive(tmp_path / "arriving", "b", ("a", "EU", 2, 2))
    assert Streamer(spark, work(tmp_path, "--op", "UPSERT")).whole() == 0
    assert decided(here) == 2
    assert stored(here) == by_hudi_rs(here) == [("a", "EU", 2), ("b", "US", 1)]


@pytest.mark.parametrize("way", ["sink", "foreach_batch"])
def test_a_batch_that_is_sent_again_after_its_commit_is_decided_once(
    spark: Any, way: str, here: Any, tmp_path: Path
) -> None:
    arrive(tmp_path / "arriving", "a", ("a", "EU", 1, 1))
    ingest(spark, way, tmp_path / "arriving", here)
    for name in ("0", ".0.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    arrive(tmp_path / "arriving", "b", ("b", "EU", 1, 1))
    ingest(spark, way, tmp_path / "arriving", here)
    assert decided(here) == 2
    assert stored(here) == by_hudi_rs(here) == [("a", "EU", 1), ("b", "EU", 1)]


@pytest.mark.parametrize("at", ["began", "wrote", "checked", "published"])
def test_a_batch_of_a_crashed_run_is_decided_once(here: Any, at: str) -> None:
    crash_and_repeat(here, at, "group")
    assert stored(here) == [("a", "EU", 1), ("b", "EU", 1)] == by_hudi_rs(here)


@pytest.mark.parametrize(("overtaken", "step"), [
    (True, 7), *(pytest.param(each, 1, marks=pytest.mark.soak) for each in (False, True)),
])  # fmt: skip
@pytest.mark.parametrize("sent", [False, True])
def test_a_batch_whose_run_dies_at_any_request_is_decided_once(
    here: Any, monkeypatch: pytest.MonkeyPatch, sent: bool, overtaken: bool, step: int
) -> None:
    """If another writer overtakes the run, it leaves an offer, which that writer decides later."""
    expected: list[tuple[str, str, int]] = []

    def append(name: str) -> None:
        other.append(pa.table({"id": [name], "region": ["EU"], "at": [1], "v": [0]}))
        expected.append((name, "EU", 0))

    def died(most: int, rows: tuple[LocalSpool, Any, dict[str, str]]) -> bool:
        mortal: Any = Mortal(open_store(**here), most, sent=sent)
        store: Any = mortal
        if overtaken:
            fence: Any = ("put", FENCE_KEY)
            store = AtRequest(store, lambda *asked: asked == fence,
                              lambda send: (append(f"m{most}"), send())[1])  # fmt: skip
        with monkeypatch.context() as dying, suppress(Died, SiblingInterrupted):
            dying.setattr(TableAddress, "open", lambda *_, **__: store)
            dying.setattr(TableAddress, "data", lambda *_: store)
            dying.setattr(group_publish, "process_of", lambda *_: GroupProcess())
            land(*rows, ("q", most))
        return bool(mortal.struck)

    with Table(**here) as other:
        append("first")
        most, dies = 1, True
        while dies:
            rows = kept(here, (f"k{most}", "EU", 1, most), mode="group")
            dies = died(most, rows)
            if overtaken:
                append(f"n{most}")
            for _ in range(2):
                land(*rows, ("q", most))
            expected.append((f"k{most}", "EU", most))
            most += step
    assert stored(here) == by_hudi_rs(here) == sorted(expected)


def test_a_stream_whose_options_describe_a_lock_is_warned_that_no_commit_takes_it(
    spark: Any, here: Any
) -> None:
    options = {"hoodie.write.lock.storage.validity.timeout.secs": "300"}
    how: dict[str, Any] = {**KEYS, **here}
    one = foreach_batch(query="mine", options=options, **how)
    with pytest.warns(NoLockTaken, match="secs describes a lock"):
        one(frame(spark, ("a", "EU", 1, 1)), 0)
    one.close()
    assert stored(here) == [("a", "EU", 1)]
