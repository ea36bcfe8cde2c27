"""An upsert does not read again what it knows of file groups that other writers have rewritten."""

from __future__ import annotations

import random
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from test_group_table import rows, values

from lockkit.lab.server import Emulator
from lockkit.table import Table, TableConfig
from lockkit.table.format.base_file import Slice
from lockkit.table.write.merging import StoredKeys, stored_keys


@pytest.fixture
def fetched() -> Iterator[tuple[str, str, Counter[str]]]:
    """An address, the server's, and how often each file group's files were read."""
    from boto3 import client

    reads: Counter[str] = Counter()

    def count(request: Any) -> None:
        if request["method"] == "get" and request["key"].endswith(".parquet"):
            reads[request["key"].rpartition("/")[2].partition("_")[0]] += 1

    with Emulator(on_request=count) as server:
        how = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "region_name": "us-east-1"}
        client("s3", endpoint_url=server.s3, **how).create_bucket(Bucket="lake")
        yield "s3://lake/orders", server.s3, reads


def test_an_upsert_reads_no_group_that_its_handle_wrote_last_and_none_that_others_have_updated(
    fetched: tuple[str, str, Counter[str]],
) -> None:
    url, endpoint, reads = fetched
    how = {"record_key": "id", "partition_by": "region", "commit": "serial"}
    Table.create(url, endpoint=endpoint, **how).close()
    with Table(url, endpoint=endpoint) as first, Table(url, endpoint=endpoint) as second:
        first.append(rows("a"))
        second.append(rows("b"))
        for v in (1, 2):  # the second time each knows what the other's group has
            reads.clear()
            first.upsert(rows("a", v=v))
            second.upsert(rows("b", v=v))
        assert not reads
        found = {row["id"]: row["v"] for row in first.read().to_pylist()}
    assert found == {"a": 2, "b": 2}


def test_an_upsert_reads_in_parallel_what_others_have_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, 15 new file groups took a second at 60 ms a request."""
    from lockkit.table.write import groups as module

    url, right, together = f"file://{tmp_path}/orders", module.open_data_file, threading.Barrier(11)

    def opened(*of: Any) -> Any:
        together.wait(20)
        return right(*of)

    Table.create(url, record_key="id", partition_by="region", commit="group").close()
    with ExitStack() as stack:
        mine, *others = (stack.enter_context(Table(url)) for _ in range(12))
        mine.append(rows("a"))
        mine.upsert(rows("a", v=1))
        for each, new in zip(others, "bcdefghijkl", strict=True):
            each.append(rows(new))
        monkeypatch.setattr(module, "open_data_file", opened)
        mine.upsert(rows("a", v=2))
    assert values(url) == {"a": 2} | dict.fromkeys("bcdefghijkl", 0)


@pytest.mark.parametrize(
    "seed", [3, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (0, 1, 2, 4, 5, 6))]
)
def test_upserts_and_deletes_of_two_handles_are_those_of_a_dictionary(
    tmp_path: Path, seed: int
) -> None:
    url, dice, ids = f"file://{tmp_path}/orders", random.Random(seed), "abcdef"
    Table.create(url, record_key="id", partition_by="region").close()
    with Table(url) as first, Table(url) as second:
        for part in ("ab", "cd", "ef"):
            first.append(rows(*part))
        stored = dict.fromkeys(ids, 0)
        for v in range(1, 12):
            table = dice.choice((first, second))
            some = dice.sample(ids, dice.randint(1, 3))
            if dice.random() < 0.4:
                table.delete(rows(*some))
                stored = {each: n for each, n in stored.items() if each not in some}
            else:
                table.upsert(rows(*some, v=v))
                stored |= dict.fromkeys(some, v)
    assert values(url) == stored


def test_a_commit_that_adds_a_key_is_read_and_one_that_adds_none_is_not(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/orders"
    Table.create(url, record_key="id", partition_by="region", buckets=1).close()
    with Table(url) as table:
        found = []
        for ids, v in (("a", 0), ("a", 1), ("a", 2), ("b", 3), ("b", 4)):
            table.upsert(rows(ids, v=v))
            found.append(table.refresh().slices[0])
        kept, config = stored_keys(table.store), table.refresh().config
        kept.keep(found[0], pa.array(["a"]))
        key_b = [pa.array(["b"])]
        assert kept.lacking(found, config, key_b) == {each.path for each in found[:3]}
        assert kept.of(found[0]) is not None
        assert kept.of(found[1]) is None, "it may have fewer keys"
        assert not kept.lacking(found[:1], config, [pa.array(["a"])])
        assert stored_keys(table.store) is kept


def test_one_look_at_the_keys_of_many_files_says_which_of_them_have_none() -> None:
    kept, config = StoredKeys(), TableConfig(name="orders", record_key="id")
    slices = [Slice("", f"f{n}", "1", f"f{n}") for n in range(4)]
    for each, keys in zip(slices, ([], ["a"], ["b", "c"]), strict=False):
        kept.keep(each, pa.array(keys, pa.string()))
    wanted = iter([pa.array(["x"]), pa.array(["c"])])
    assert kept.lacking(slices, config, wanted) == {"f0", "f1"}, "f3 is not known"


def test_the_keys_of_an_upsert_are_made_as_often_whatever_the_number_of_file_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lockkit.table.write import merging as module

    url, made = f"file://{tmp_path}/orders", list[int]()
    right = module.record_keys
    monkeypatch.setattr(module, "record_keys", lambda *args: made.append(1) or right(*args))
    Table.create(url, record_key="id", partition_by="region").close()
    with Table(url) as table:
        counts = []
        for n in range(8):
            table.append(rows(f"k{n}"))
            table.upsert(rows("k0", v=n))
            table.upsert(rows("k0", v=n + 1))
            made.clear()
            table.upsert(rows("k0", v=n + 2))
            counts.append(len(made))
    assert len(set(counts)) == 1, counts


def test_a_handle_reads_again_what_was_restored_to_an_earlier_state(tmp_path: Path) -> None:
    folder, copy = tmp_path / "orders", tmp_path / "copy"
    url = f"file://{folder}"
    Table.create(url, record_key="id", partition_by="region", commit="serial").close()
    with Table(url) as one, Table(url) as other:
        one.append(rows("a", "b"))
        shutil.copytree(folder, copy)
        one.delete(rows("a"))
        one.upsert(rows("b", v=1))  # reads the file that has no "a"
        shutil.rmtree(folder)
        copy.rename(folder)
        other.upsert(rows("b", v=2))
        one.upsert(rows("a", v=3))
    assert values(url) == {"a": 3, "b": 2}


def test_a_slice_names_a_bounded_number_of_files_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lockkit.table.read import snapshot

    monkeypatch.setattr(snapshot, "KEYS_IN_MAX", 2)
    url = f"file://{tmp_path}/orders"
    Table.create(url, record_key="id", partition_by="region", buckets=1).close()
    with Table(url) as table:
        lengths = []
        for v in range(6):
            table.upsert(rows("a", v=v))
            lengths.append(len(table.refresh().slices[0].keys_in))
    assert lengths == [0, 1, 2, 0, 1, 2]


def test_the_memory_of_stored_keys_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from lockkit.table.write import merging as module

    keys = pa.array(["a" * 40])
    monkeypatch.setattr(module, "KEPT_BYTES_MAX", 3 * keys.nbytes)
    kept = StoredKeys()
    slices = [Slice("", f"f{n}", "1", f"f{n}") for n in range(10)]
    for each in slices:
        kept.keep(each, keys)
        assert kept.of(each) is keys
    assert sum(kept.of(each) is not None for each in slices) <= 3
