"""Data files on their way from the store: what the local disk does is not the store's fault."""

from __future__ import annotations

import errno
import io
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from lock_world import SCHEMES

from lockkit.clock import Clock
from lockkit.errors import TableError
from lockkit.protocol.outcome import Applied, IfAbsent
from lockkit.stores import open_store
from lockkit.table.format.data_files import open_data_file

BODY = b"x" * 100_000


class FullDisk(io.FileIO):
    """Takes no byte."""

    def write(self, _: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


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
