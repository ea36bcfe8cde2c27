"""What has a lock file's name and is no file: a pipe, a folder, a link to itself, a device."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from lockkit import Clock, StoreError
from lockkit.cli.main import main
from lockkit.stores import open_store
from lockkit.table.format.data_files import open_data_file

LOCKS = {
    "filesystem://{folder}?expire_minutes=5": "lock",
    "file://{folder}": ".hoodie/.locks/table_lock.json",
    "file://{folder}/x.tfstate": "x.tfstate.tflock",
}


def pipe(path: Path) -> None:
    """With a writer that waits, so that a reader who opens it would end."""
    os.mkfifo(path)
    threading.Thread(target=path.write_bytes, args=(b"",), daemon=True).start()


ODD: dict[str, Callable[[Path], None]] = {
    "pipe": pipe,
    "folder": Path.mkdir,
    "loop": lambda path: path.symlink_to(path),
    "device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("odd", list(ODD))
@pytest.mark.parametrize("url", list(LOCKS))
@pytest.mark.parametrize("words", ["lock show", "lock break", "incident"])
def test_what_is_no_file_is_refused_in_one_sentence_and_never_waited_for(
    tmp_path: Path, odd: str, url: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / LOCKS[url]
    path.parent.mkdir(parents=True, exist_ok=True)
    ODD[odd](path)
    assert main([*words.split(), url.format(folder=tmp_path)]) == 3
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 1
    assert "Traceback" not in said.err and path.name in said.err


@pytest.mark.parametrize("odd", ["pipe", "folder", "loop"])
def test_a_store_reads_nothing_that_is_no_file(tmp_path: Path, odd: str) -> None:
    ODD[odd](tmp_path / "k")
    store = open_store(f"file://{tmp_path}")
    with pytest.raises(StoreError, match="cannot read k"):
        store.get("k")
    with pytest.raises(StoreError, match="cannot read k"):
        store.get_file("k", BytesIO())
    with pytest.raises(StoreError, match="cannot read k"):
        open_data_file(store, "k", Clock())


@pytest.mark.parametrize("odd", ["pipe", "device", "file"])
def test_a_table_whose_folder_is_no_folder_is_not_shown_as_free(
    tmp_path: Path, odd: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (ODD | {"file": Path.touch})[odd](tmp_path / "k")
    store = open_store(f"file://{tmp_path}/k")
    for read in (store.list, store.get, lambda key: store.get_file(key, BytesIO())):
        with pytest.raises(StoreError, match="Not a directory"):
            read("a/")
    for words in ("lock show", "incident"):
        assert main([*words.split(), store.url]) == 3
        said = capsys.readouterr()
        assert said.out == "" and len(said.err.splitlines()) == 1, said
