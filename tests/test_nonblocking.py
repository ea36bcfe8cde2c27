"""Non-blocking concurrency control: overlapping upserts of a merge-on-read table all commit."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deaths import Died, Mortal
from test_merge_on_read import Row, made, row, rows, shown, theirs

from lockkit import Clock
from lockkit.errors import LockLost
from lockkit.protocol.outcome import Applied, IfVersion
from lockkit.runtime import SiblingInterrupted, run
from lockkit.table import CommitConflict, Table
from lockkit.table.errors import RefusedOption, TableError
from lockkit.table.format.java_hash import bucket_of, key_hash, key_values
from lockkit.table.format.properties import from_properties, to_properties
from lockkit.table.format.timeline import instant_ms, instant_of
from lockkit.table.occ.commit import EpochGuard
from lockkit.table.occ.concurrency import SingleWriter
from lockkit.table.occ.conflict import PREFER_WRITER
from lockkit.table.occ.mode import switch_mode
from lockkit.table.occ.transaction import first_file
from lockkit.table.read.bucket_groups import BucketGroups, hashed_file_id
from lockkit.table.read.log_slice import LogSlice
from lockkit.table.read.opening import load_snapshot
from lockkit.table.services.service import TableService

MODE = "hoodie.write.concurrency.mode"
NBCC = {MODE: "NON_BLOCKING_CONCURRENCY_CONTROL"}
_NAMES = itertools.count()


def fresh() -> str:
    return f"memory://nonblocking{next(_NAMES)}"


def hashed(url: str = "", **how: Any) -> Table:
    """A table with Hudi's bucket index, by default with one file group."""
    how = {"partition_by": None, "buckets": 1, "index": "BUCKET", "options": NBCC} | how
    return made(url or fresh(), **how)


class AtFiles:
    """An `emit` at which something else happens once: between a write's files and its commit."""

    def __init__(self, what: Callable[[], Any]) -> None:
        self.what, self.done = what, False

    def __call__(self, kind: str, **fields: Any) -> None:
        if kind == "note" and fields["text"].startswith("wrote") and not self.done:
            self.done = True
            self.what()


def beside(
    url: str, slow: Callable[[Table], Any], quick: Callable[[Table], Any], **how: Any
) -> Any:
    """`slow` writes its files; `quick` begins and commits; then `slow` commits."""
    def meanwhile() -> None:
        with Table(url, **({"options": NBCC} | how)) as other:
            quick(other)

    with Table(url, options=NBCC, emit=AtFiles(meanwhile)) as table:
        return slow(table)


# --- both commit ----------------------------------------------------------------------------------


@pytest.mark.parametrize("filled", [True, False])
def test_two_overlapping_upserts_of_one_file_group_both_commit(
    filled: bool, tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/t"
    with hashed(url) as table:
        if filled:
            table.upsert(rows(("a", "EU", 1, 1)))
        beside(url, lambda slow: slow.upsert(rows(("a", "EU", 2, 2), ("b", "EU", 2, 2))),
               lambda other: other.upsert(rows(("a", "EU", 3, 3), ("c", "EU", 1, 1))))  # fmt: skip
        expected = [("a", "EU", 3, 3), ("b", "EU", 2, 2), ("c", "EU", 1, 1)]
        assert shown(table.read()) == expected == theirs(tmp_path / "t")
        (only,) = run(load_snapshot(), table.store, Clock()).slices
        assert isinstance(only, LogSlice) and (only.path, only.file_id) == ("", hashed_file_id(0))
        assert table.compact() is not None
        assert shown(table.read(query="read_optimized")) == expected == theirs(tmp_path / "t")


def test_under_optimistic_control_one_of_the_two_is_refused() -> None:
    url = fresh()
    with hashed(url):
        def overlap() -> None:
            with Table(url, options=NBCC) as other:
                other.upsert(rows(("a", "EU", 1, 1)))

        with Table(url, emit=AtFiles(overlap)) as table:
            with pytest.raises(CommitConflict, match="also rewrote"):
                table.upsert(rows(("a", "EU", 2, 2)))


@pytest.mark.parametrize("ordered", [True, False])
def test_of_two_rows_the_greater_value_wins_or_the_later_instant(
    ordered: bool, tmp_path: Path
) -> None:
    """As in Hudi 1.2 and hudi-rs: instants order the log files of one slice, not completions."""
    url = f"file://{tmp_path}/t"
    with hashed(url, precombine="ts" if ordered else None) as table:
        beside(url, lambda slow: slow.upsert(rows(("a", "EU", 2, 2))),
               lambda other: other.upsert(rows(("a", "EU", 1, 1))))  # fmt: skip
        assert shown(table.read())[0][2] == (2 if ordered else 1)
        assert shown(table.read()) == theirs(tmp_path / "t")


@pytest.mark.parametrize("seed", range(4))
def test_any_interleaving_is_read_as_the_dictionary_and_hudi_rs_read_it(
    seed: int, tmp_path: Path
) -> None:
    chance, url = random.Random(f"nonblocking {seed}"), f"file://{tmp_path}/t"
    ordered, done = seed % 2 == 0, list[tuple[str, bool, list[Row]]]()

    def write(depth: int) -> None:
        batch = [row(chance, f"k{each}") for each in chance.sample(range(6), 3)]
        delete = chance.random() < 0.3

        def within() -> None:
            if depth < 3 and chance.random() < 0.7:
                write(depth + 1)

        with Table(url, options=NBCC, emit=AtFiles(within)) as table:
            committed = (table.delete if delete else table.upsert)(rows(*batch))
        assert committed is not None
        done.append((committed.instant, delete, batch))

    with hashed(url, precombine="ts" if ordered else None, buckets=2) as table:
        for _ in range(4):
            write(1)
        assert shown(table.read()) == model(done, ordered) == theirs(tmp_path / "t")
        table.compact()
        assert shown(table.read()) == model(done, ordered) == theirs(tmp_path / "t")


def model(done: list[tuple[str, bool, list[Row]]], ordered: bool) -> list[Row]:
    """Of each key the greatest value, of equal ones that of the latest instant."""
    standing: dict[str, tuple[int, Row | None]] = {}
    for _, delete, batch in sorted(done):
        for each in batch:
            at = each[2] if ordered else 0
            if standing.get(each[0], (at, None))[0] <= at:
                standing[each[0]] = at, None if delete else each
    return sorted(found for _, found in standing.values() if found is not None)


def test_many_writers_of_one_key_all_commit_without_a_retry() -> None:
    url = fresh()

    def nested(depth: int) -> None:
        def within() -> None:
            if depth < 6:
                nested(depth + 1)

        with Table(url, options=NBCC, emit=AtFiles(within)) as table:
            table.upsert(rows(("a", "EU", depth, depth)))

    with hashed(url) as table:
        nested(1)
        assert shown(table.read()) == [("a", "EU", 6, 6)] and len(table.history()) == 6


# --- what replaces file groups keeps its checks ---------------------------------------------------


def test_an_overwrite_and_an_upsert_of_its_partition_conflict() -> None:
    for first in ("overwrite", "upsert"):
        url, occ = fresh(), {"options": {}}
        with hashed(url, options={}) as table:
            table.upsert(rows(("a", "EU", 1, 1)))
            with pytest.raises(CommitConflict):
                if first == "overwrite":
                    beside(url, lambda slow: slow.upsert(rows(("a", "EU", 2, 2))),
                           lambda other: other.overwrite(rows(("c", "EU", 1, 1))), **occ)
                else:
                    def overlap(url: str = url) -> None:
                        with Table(url, options=NBCC) as other:
                            other.upsert(rows(("a", "EU", 2, 2)))

                    with Table(url, emit=AtFiles(overlap)) as slow:
                        slow.overwrite(rows(("c", "EU", 1, 1)))
            assert len(table.history()) == 2


def test_after_an_overwrite_writers_share_the_buckets_next_file_group(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/t"
    with hashed(url, options={}) as table:
        table.upsert(rows(("a", "EU", 5, 5)))
        table.overwrite(rows(("b", "EU", 1, 1)))
        beside(url, lambda slow: slow.upsert(rows(("a", "EU", 1, 1))),
               lambda other: other.upsert(rows(("a", "EU", 2, 2))))  # fmt: skip
        assert shown(table.read()) == [("a", "EU", 2, 2), ("b", "EU", 1, 1)] == theirs(
            tmp_path / "t"
        )
        (group,) = run(load_snapshot(), table.store, Clock()).groups
        assert group == ("", hashed_file_id(0, 1))


# --- compaction -----------------------------------------------------------------------------------


def test_a_commit_that_completes_after_the_plan_lands_behind_the_new_base_file(
    tmp_path: Path
) -> None:
    """It began before the compaction: its instant is earlier, its completion later."""
    url = f"file://{tmp_path}/t"
    with hashed(url) as table:
        table.upsert(rows(("a", "EU", 1, 1)))
        compacted: list[Any] = []
        beside(url, lambda slow: slow.upsert(rows(("b", "EU", 1, 1))),
               lambda other: compacted.append(other.compact()))  # fmt: skip
        (only,) = run(load_snapshot(), table.store, Clock()).slices
        assert isinstance(only, LogSlice) and only.instant == compacted[0].instant
        assert max(only.completed.instants) < compacted[0].instant < only.times[0]
        assert shown(table.read()) == [("a", "EU", 1, 1), ("b", "EU", 1, 1)] == theirs(
            tmp_path / "t"
        )
        assert shown(table.read(query="read_optimized")) == [("a", "EU", 1, 1)]


@pytest.mark.parametrize("ordered", [True, False])
def test_by_commit_order_a_compaction_waits_for_a_writer_with_an_earlier_instant(
    ordered: bool, tmp_path: Path
) -> None:
    """Otherwise the earlier writer's row would lose before the compaction and win after it."""
    url, seen = f"file://{tmp_path}/t", list[Any]()

    def quick(other: Table) -> None:
        other.upsert(rows(("a", "EU", 2, 2)))
        seen.append(other.compact())

    with hashed(url, precombine="ts" if ordered else None) as table:
        beside(url, lambda slow: slow.upsert(rows(("a", "EU", 1, 1))), quick)
        assert (seen[0] is not None) == ordered
        before = shown(table.read())
        assert before == [("a", "EU", 2, 2)] == theirs(tmp_path / "t")
        table.compact()
        assert shown(table.read()) == before == theirs(tmp_path / "t")


# --- what is refused ------------------------------------------------------------------------------


def test_a_compaction_first_rolls_back_a_dead_writer_with_an_earlier_instant(
    tmp_path: Path,
) -> None:
    with hashed(f"file://{tmp_path}", precombine=None) as table:
        first = table.upsert(rows(("a", "EU", 1, 1)))
        table.upsert(rows(("a", "EU", 2, 2)))
        assert first is not None
        dead = instant_of(instant_ms(first.instant) + 1)
        request = tmp_path / f".hoodie/timeline/{dead}.deltacommit.requested"
        attempt = "00000000-0000-4000-8000-000000000001"
        request.write_bytes(first_file("deltacommit", b"", attempt, 9))
        os.utime(request, (0, 0))
        assert table.compact() is not None and not request.exists()
        assert shown(table.read()) == [("a", "EU", 2, 2)]


def test_only_a_table_with_hudis_buckets_is_written_without_conflicts() -> None:
    one = rows(("a", "EU", 1, 1))
    for how in ({"table_type": "COPY_ON_WRITE"}, {"table_type": "MERGE_ON_READ"}):
        url = fresh()
        with Table.create(url, record_key="id", **how):
            with Table(url, options=NBCC) as table:
                for write in (table.append, table.upsert, table.delete):
                    with pytest.raises(RefusedOption, match="needs a MERGE_ON_READ table"):
                        write(one)
                assert not table.history() and not table.store.list(".hoodie/timeline/2")


def test_an_operation_that_replaces_file_groups_and_options_that_contradict_are_refused() -> None:
    one, url = rows(("a", "EU", 1, 1)), fresh()
    with hashed(url) as table:
        with pytest.raises(RefusedOption, match="insert_overwrite is refused"):
            table.overwrite(one)
        with pytest.raises(RefusedOption, match="delete_partition"):
            table.delete_partition("region=EU")
        with pytest.raises(TableError, match=r"hash of a row's key.*lockkit table compact"):
            table.cluster()
    with Table(url, options=NBCC, strategy=PREFER_WRITER) as table:
        with pytest.raises(RefusedOption, match="no writer gives way"):
            table.upsert(one)
    with Table(url, options=NBCC | {"hoodie.index.type": "BLOOM"}) as table:
        with pytest.raises(RefusedOption, match="the table has Hudi's buckets"):
            table.upsert(one)
    with Table.create(fresh(), record_key="id", table_type="MERGE_ON_READ") as table:
        with Table(table.url, options={"hoodie.index.type": "BUCKET"}) as other:
            with pytest.raises(RefusedOption, match="the table has lockkit's own buckets"):
                other.upsert(one)
    with Table(url, options=NBCC | {"hoodie.index.type": "BUCKET"}) as table:
        assert table.upsert(one)


@pytest.mark.parametrize("how", [{"index": "BLOOM"}, {"index": "GLOBAL_SIMPLE"}])
def test_the_index_is_hudis_bucket_index_or_lockkits(how: dict[str, str]) -> None:
    with pytest.raises(RefusedOption, match="index"):
        Table.create(fresh(), record_key="id", **how)


def test_a_table_says_its_index_in_hudis_own_properties() -> None:
    with hashed(buckets=3) as table:
        config = table._open().config
        keys = to_properties(config)
        assert keys["hoodie.index.type"] == "BUCKET"
        assert keys["hoodie.bucket.index.num.buckets"] == "3"
        assert "lockkit.bucket.count" not in keys and from_properties(keys) == config


def test_in_the_mode_hudi_a_bucket_is_never_emptied() -> None:
    with hashed(options={}) as table:
        table.upsert(rows(("a", "EU", 1, 1)))
        run(switch_mode("hudi", EpochGuard(1)), table.store, table.clock)
    with Table(table.url) as table:
        with pytest.raises(RefusedOption, match="in the mode hudi"):
            table.overwrite(rows(("a", "EU", 1, 1)))
        assert table.upsert(rows(("a", "EU", 2, 2))) and shown(table.read()) == [("a", "EU", 2, 2)]


# --- Hudi's buckets -------------------------------------------------------------------------------


def test_a_key_has_the_bucket_that_hudi_gives_it() -> None:
    known = {"hello": 31 + 99162322, "": 31, "é": 31 + 233, "😀": 31 + 1772899}
    for key, value in known.items():
        assert key_hash(key, ["id"]) == value
    keys = ["hello", "", "é", "😀", "k0", "k1", "a" * 40, "id:1,kind:2", "x:y", "x,y"]
    for count in (1, 4, 7):
        one_by_one = [(key_hash(each, ["id"]) & 0x7FFFFFFF) % count for each in keys]
        assert bucket_of(pa.array(keys), count, ["id"]).to_pylist() == one_by_one


@pytest.mark.parametrize(("key", "values"), [
    ("plain", ["plain"]), ("a:b", ["a:b"]), ("a,b", ["a,b"]), ("a:b,c", ["a:b,c"]),
    ("id:7,kind:a", ["7", "a"]), ("id:7,8,kind:a:b,c", ["7,8", "a:b,c"]),
    ("id:__null__,kind:__empty__", [None, ""]), ("other:1,kind:2", ["2"]),
    ("x:a:b,c", ["x:a:b,c"]),
])  # fmt: skip
def test_the_values_of_a_key_are_those_that_hudi_finds(key: str, values: list[str | None]) -> None:
    assert key_values(key, ["id", "kind"]) == values


def test_hudis_own_file_groups_are_used_whatever_follows_the_buckets_number() -> None:
    with hashed(buckets=2) as table:
        table.upsert(rows(("a", "EU", 1, 1)))
        snapshot = run(load_snapshot(), table.store, table.clock)
        theirs_too = {("", "00000001-8d1f-4c5e-9f60-0123456789ab-0"): snapshot.slices[0]}
        found = BucketGroups(type(snapshot)(
            snapshot.config, snapshot.covered, theirs_too, {("", hashed_file_id(0)): "1"}, None
        ))  # fmt: skip
        assert found.of("", 1) == next(iter(theirs_too))
        assert found.of("", 0) == ("", hashed_file_id(0, 1))


# --- dying, and being overtaken -------------------------------------------------------------------


class BegunAgain:
    """A store at which another process takes a compaction's inflight file over, as Hudi does."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put(self, key: str, body: bytes, condition: Any, **how: Any) -> Any:
        answer = self._store.put(key, body, condition, **how)
        if key.endswith(".compaction.inflight") and isinstance(answer, Applied):
            self._store.put(key, b"", IfVersion(answer.version))
        return answer


def test_in_the_mode_hudi_a_compaction_that_another_process_carries_out_anew_is_refused() -> None:
    with hashed(mode="hudi", options={}) as table:
        table.upsert(rows(("a", "EU", 1, 1)))
        table.upsert(rows(("a", "EU", 2, 2)))
        again: Any = BegunAgain(table.store)
        with pytest.raises(LockLost, match="carries out the same plan"):
            TableService(table.url, again, SingleWriter()).compact()
        assert shown(table.read()) == [("a", "EU", 2, 2)]
        assert "commit" not in {each.action for each in table.history()}


# The threads of a process that died die with it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("sent", [False, True])
def test_a_non_blocking_writer_that_died_at_any_request_has_committed_all_or_nothing(
    sent: bool, step: int
) -> None:
    outcomes = set()
    for most in range(0, 200, step):
        with hashed(buckets=2) as table:
            table.upsert(rows(("a", "EU", 1, 1), ("b", "EU", 1, 1)))
            mortal = Table(table.url, options=NBCC)
            mortal._open()
            mortal.store = Mortal(mortal.store, most, sent=sent)  # type: ignore[assignment]
            died = True
            try:
                died = mortal.upsert(rows(("a", "EU", 2, 2), ("b", "EU", 2, 2))) is None
            except (Died, SiblingInterrupted):
                pass
            table.upsert(rows(("c", "EU", 1, 1)))
            found = shown(table.read())
            assert found[2] == ("c", "EU", 1, 1) and found[0][2] == found[1][2]
            outcomes.add(found[0][2])
            if not died:
                break
    assert not died and outcomes == {1, 2}
