"""Data files on their way from the store: what the local disk does is not the store's fault."""

from __future__ import annotations

import errno
import io
import os
import tempfile
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from lock_world import SCHEMES

from lockkit.clock import Clock
from lockkit.errors import TableError
from lockkit.protocol.outcome import Applied, IfAbsent
from lockkit.stores import open_store
from lockkit.table import Table
from lockkit.table.format.base_file import Slice
from lockkit.table.format.data_files import open_data_file
from lockkit.table.write import groups

BODY = b"x" * 100_000


class FullDisk(io.FileIO):
    """Takes no byte."""

    def write(self, _: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("table_type", "way"),
    [
        ("COPY_ON_WRITE", "upsert"), ("COPY_ON_WRITE", "overwrite"), ("COPY_ON_WRITE", "cluster"),
        ("MERGE_ON_READ", "append"), ("MERGE_ON_READ", "upsert"), ("MERGE_ON_READ", "overwrite"),
        ("MERGE_ON_READ", "compact"),
    ],
)  # fmt: skip
def test_a_write_that_finds_the_temporary_disk_full_says_so_and_changes_nothing(
    table_type: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pa.table({"id": ["a", "b"], "v": [1, 2]})
    given, url = [] if way in ("cluster", "compact") else [rows], (tmp_path / "t").as_uri()
    with Table.create(url, record_key="id", table_type=table_type) as table:
        for _ in range(2):
            table.append(rows)
        table.upsert(rows)
        before = table.read()
        full = partial(FullDisk, tmp_path / "copy", "w+")
        with monkeypatch.context() as patch:
            patch.setattr(tempfile, "TemporaryFile", lambda: io.BufferedRandom(full()))
            with pytest.raises(TableError, match=r"no room.*No space left on device.*set TMPDIR"):
                getattr(table, way)(*given)
        assert table.read().equals(before)
        assert getattr(table, way)(*given)


@pytest.mark.parametrize("kind", list(SCHEMES))
def test_a_full_temporary_disk_is_named_and_not_the_store(
    kind: str, bucket: str, shared_emulator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, endpoint = f"{SCHEMES[kind]}://{bucket}/t", getattr(shared_emulator, kind)
    store = open_store(url, endpoint=endpoint, timeout_s=10)
    assert isinstance(store.put("file", BODY, IfAbsent()), Applied)
    assert open_data_file(store, "file", Clock()).read() == BODY
    monkeypatch.setattr(
        tempfile, "TemporaryFile",
        lambda: io.BufferedRandom(FullDisk(tmp_path / "copy", "w+")),
    )  # fmt: skip
    with pytest.raises(TableError, match=r"No space left on device.*set TMPDIR"):
        open_data_file(store, "file", Clock())
    store.close()


def test_a_large_upsert_does_not_have_all_its_base_files_on_the_temporary_disk_at_once(
    bucket: str, shared_emulator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, ids = f"s3://{bucket}/t", [str(i) for i in range(10_001)]
    how = {"endpoint": shared_emulator.s3, "commit": "group"}
    with Table.create(url, record_key="id", buckets=12, **how) as table:
        table.upsert(pa.table({"id": ids, "v": ids}))
    copies: list[Any] = []
    at_once: list[int] = []
    make = tempfile.TemporaryFile

    def counted() -> Any:
        copies.append(make())
        at_once.append(sum(not each.closed for each in copies))
        return copies[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", counted)
    with Table(url, endpoint=shared_emulator.s3) as table:
        table.upsert(pa.table({"id": ids, "v": ids}))
    assert len(copies) == 24, "each base file, and each new one"
    assert max(at_once) <= 4


def test_a_small_write_fetches_many_base_files_in_parallel_and_holds_few_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One after the other, a write beside busy appending writers falls behind more and more."""
    fetched: list[BytesIO] = []

    def fetch(_store: Any, path: str, _clock: Any) -> BytesIO:
        fetched.append(BytesIO(path.encode()))
        return fetched[-1]

    monkeypatch.setattr(groups, "open_data_file", fetch)
    many = [Slice("", str(n), "", f"{n}.parquet") for n in range(2 * groups.PREFETCHED_MAX + 3)]
    buffer = groups.FileBuffer(cast(Any, None), Clock(), early=True)
    buffer.prefetch(many)
    assert not buffer.at_hand
    for each in many:
        kept = buffer.take(each.path, keep=True)
        assert kept is not None and kept.read() == each.path.encode()
        assert sum(not each.closed for each in fetched) <= groups.PREFETCHED_MAX
    again = buffer.take(many[-1].path)
    assert again is not None and buffer.take(many[0].path) is None
    buffer.close()
    assert len(fetched) == len(many) and not [e for e in fetched if e is not again and not e.closed]
