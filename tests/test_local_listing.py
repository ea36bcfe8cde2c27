"""A listing of a folder is a snapshot, although the kernel reads a large folder in pieces."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
from suite_plugin import rest_in_soak
from table_world import (
    CLOCK,
    CONFIG,
    Holder,
    new_table,
    prepare_inserts,
    prepare_upserts,
    rows,
)

from lockkit.errors import NoAnswer, StoreError
from lockkit.protocol.outcome import Applied, IfAbsent
from lockkit.runtime import run
from lockkit.stores import Store, local_listing, open_store
from lockkit.stores.local import LocalStore
from lockkit.table import TableConfig, commit, read_table

scandir = os.scandir


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(f"file://{tmp_path}")


def written(store: Store, *keys: str) -> None:
    for key in keys:
        assert isinstance(store.put(key, b"", IfAbsent()), Applied)


@contextmanager
def read_in_two_pieces(
    folder: Path, between: Callable[[int], Callable[[str], bool]], times: int = 1
) -> Iterator[None]:
    """Something happens between two pieces of a reading of `folder`, in its first `times` readings.

    `between` does it, and says which of the new names the second piece shows. ext4 orders names by
    their hashes: a new name is shown if its hash lies in the second piece.
    """
    readings = iter(range(times))

    class Reading:
        def __init__(self, path: Any) -> None:
            self.path = Path(path)

        def __enter__(self) -> Iterator[os.DirEntry[str]]:
            return self.pieces()

        def __exit__(self, *_: object) -> None:
            pass

        def pieces(self) -> Iterator[os.DirEntry[str]]:
            with scandir(self.path) as entries:
                first = list(entries)
            yield from first
            number = next(readings, None) if self.path == folder else None
            if number is not None:
                shows, known = between(number), {each.name for each in first}
                with scandir(self.path) as entries:
                    yield from [e for e in entries if e.name not in known and shows(e.name)]

    with patch.object(os, "scandir", Reading):
        yield


def two_files(folder: Path) -> Callable[[int], Callable[[str], bool]]:
    """Make an older and a newer file; the second piece shows the newer one only."""

    def between(number: int) -> Callable[[str], bool]:
        for name in ("older", "newer"):
            (folder / f"{name}{number or ''}").write_bytes(b"")
        return lambda name: name.startswith("newer")

    return between


def test_a_child_that_was_forked_under_the_lock_of_a_folder_does_not_keep_it(
    store: Store, tmp_path: Path
) -> None:
    with cast(LocalStore, store)._locked(tmp_path, timeout_s=1):
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
    try:
        with cast(LocalStore, store)._locked(tmp_path, timeout_s=0):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_listing_of_a_folder_is_a_snapshot_though_the_kernel_reads_it_in_pieces(
    store: Store, tmp_path: Path
) -> None:
    written(store, "t/0")
    with read_in_two_pieces(tmp_path / "t", two_files(tmp_path / "t")):
        found = store.list("t/")
    assert [each.key for each in found] == ["t/0", "t/newer", "t/older"]
    assert found.snapshot


def test_a_file_deleted_between_listing_and_stat_costs_another_reading(
    store: Store, tmp_path: Path
) -> None:
    written(store, "t/a", "t/b")
    (tmp_path / "t/a").unlink()  # after the two readings; the next one does not have it
    readings = [["t/a", "t/b"]] * 2 + [["t/b"]] * 2
    with patch.object(local_listing, "_names", side_effect=readings) as read:
        assert [each.key for each in store.list("t/")] == ["t/b"]
    assert read.call_count == 4


def test_a_folder_that_keeps_changing_is_not_listed_wrongly(store: Store, tmp_path: Path) -> None:
    written(store, "t/0")
    with read_in_two_pieces(tmp_path / "t", two_files(tmp_path / "t"), times=1000):
        with pytest.raises(NoAnswer, match="changed during each of 40 readings"):
            store.list("t/")


def test_a_listing_reads_no_folder_that_cannot_contain_the_prefix(store: Store) -> None:
    written(store, "t/2a", "t/2b/x", "t/locks/l", "u/2")
    read = []
    with patch.object(os, "scandir", side_effect=lambda path: read.append(path) or scandir(path)):
        assert [each.key for each in store.list("t/2")] == ["t/2a", "t/2b/x"]
    assert {Path(path).name for path in read} == {"t", "2b"}


def test_an_unreadable_folder_does_not_count_as_empty(store: Store) -> None:
    written(store, "t/a")
    refused = PermissionError(errno.EACCES, "Permission denied")
    with patch.object(os, "scandir", side_effect=refused):
        with pytest.raises(StoreError, match=r"cannot list t/.*check who owns"):
            store.list("t/")


@pytest.mark.parametrize("version", [6, 9])
def test_no_update_is_lost_where_two_commit_while_a_writer_lists_the_timeline(
    tmp_path: Path, version: int
) -> None:
    """One reading showed the later of the two commits only; the writer's check began behind it.

    The earlier one had added a row to the file group that the writer then wrote anew.
    """
    config = TableConfig(
        name=CONFIG.name, record_key=CONFIG.record_key, partition_by=CONFIG.partition_by,
        precombine=CONFIG.precombine, version=version,
    )  # fmt: skip
    store = new_table(f"file://{tmp_path}", config)
    run(commit(prepare_inserts(store, rows([0])), Holder(1)), store, CLOCK)
    earlier = prepare_upserts(store, rows([1]))
    later = prepare_inserts(store, rows([2], region="US"))

    def between(_number: int) -> Callable[[str], bool]:
        for each in (earlier, later):
            run(commit(each, Holder(1)), store, CLOCK)
        return lambda name: later.instant in name

    folder = tmp_path / config.names.folder.rstrip("/")
    with read_in_two_pieces(folder, between):
        mine = prepare_upserts(store, rows([3]), which=lambda each: "EU" in each.partition)
    run(commit(mine, Holder(1)), store, CLOCK)
    assert sorted(read_table(store)["id"].to_pylist()) == ["k0", "k1", "k2", "k3"]


# --- real processes -------------------------------------------------------------------------------

FILES = 900
"""The kernel returns some 600 of these names at a time."""
CHANGES = """
import os, random, sys
folder, who = sys.argv[1:]
dice, pairs = random.Random(who), []
print("ready", flush=True)
for number, _ in enumerate(iter(lambda: os.read(0, 1), b"")):
    pair = [f"{folder}/{dice.getrandbits(60):015x}-{who}{number}.{each}" for each in "ab"]
    for each in pair:
        open(each, "x").close()
    pairs.append(pair)
    if len(pairs) > 20:
        for each in reversed(pairs.pop(0)):
            os.unlink(each)
"""
"""For each byte of its input: make an `a`, then its `b`; delete an old `b`, then its `a`."""


@pytest.mark.parametrize("listings", rest_in_soak([50, 3000], 50))
def test_no_listing_is_torn_by_processes_that_make_and_delete_files(
    store: Store, tmp_path: Path, listings: int
) -> None:
    """Whenever a `b` exists, its `a` does."""
    folder = tmp_path / "t"
    folder.mkdir()
    for number in range(FILES):
        (folder / f"{CLOCK.unique()[:12]}-{number}.a").touch()
    others = [
        subprocess.Popen(
            [sys.executable, "-c", CHANGES, folder, who],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
        )
        for who in "XY"
    ]  # fmt: skip
    try:
        for each in others:
            assert each.stdout is not None and each.stdout.readline()
        for _ in range(listings):
            for each in others:
                assert each.stdin is not None
                each.stdin.write(b".")
            names = {each.key.rpartition("-")[2] for each in store.list("t/")}
            assert {f"{number}.a" for number in range(FILES)} <= names
            assert [b for b in names if b.endswith("b") and b[:-1] + "a" not in names] == []
    finally:
        for each in others:
            each.communicate(timeout=60)
    assert len(list(folder.iterdir())) == FILES + 2 * len(others) * min(20, listings)
