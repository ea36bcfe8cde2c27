"""A copy of a table with group commit that was made while a writer committed.

Its listing comes first, and the objects are read after it: so the fence may name commits of which
the copy has no file. hudi-rs judges.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from suite_plugin import rest_in_soak
from test_group_table import HOW, judged, published, rows, values

from lockkit.cli.main import main
from lockkit.table import Table
from lockkit.table.errors import BrokenFence, CommitConflict
from lockkit.table.occ.fence import FENCE_KEY
from lockkit.table.occ.group.fence import parse_group_fence

MORE: dict[str, Callable[[Table, int], Any]] = {
    "append": lambda table, number: table.append(rows(f"n{number}")),
    "column": lambda table, number: table.append(
        rows(f"n{number}").append_column("note", pa.array(["x"]))
    ),
    "upsert": lambda table, number: table.upsert(rows("b", v=10 + number)),
    "overwrite": lambda table, number: table.overwrite(rows("o", v=number)),
    "cluster": lambda table, _number: table.cluster(),
}


def copied(tmp_path: Path, more: str, commits: int, version: int) -> str:
    url, there = f"file://{tmp_path}/t", tmp_path / "t"
    options = {"hoodie.clean.automatic": "false"}
    Table.create(url, **HOW, version=version).close()
    with Table(url, options=options) as table:
        table.append(rows("a"))
        table.append(rows("b"))
        table.upsert(rows("a", v=2))
        published(table)
        listed = sorted(each for each in there.rglob("*") if each.is_file())
        for number in range(commits):
            MORE[more](table, number)
        published(table)
        for each in filter(Path.exists, listed):
            copy = tmp_path / "copy" / each.relative_to(there)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(each, copy)
    return f"file://{tmp_path}/copy"


def at(url: str) -> Path:
    return Path(url.removeprefix("file://")) / FENCE_KEY


def state(url: str) -> dict[str, bytes]:
    """All files but the lock's, which the commands take."""
    root = Path(url.removeprefix("file://"))
    found = [each for each in root.rglob("*") if each.is_file()]
    return {str(each): each.read_bytes() for each in found if each.name != "table_lock.json"}


CASES = [f"{more} {commits} {version}" for more in MORE for commits in (1, 3) for version in (9, 6)]
QUICK = "append 1 9", "column 3 9", "upsert 1 6", "overwrite 3 6", "cluster 1 9"


@pytest.mark.parametrize("case", rest_in_soak(CASES, *QUICK))
def test_nothing_is_published_in_a_copy_that_lacks_its_files_and_the_fence_can_be_repaired(
    tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more, (commits, version) = case.split()[0], map(int, case.split()[1:])
    url = copied(tmp_path, more, commits, version)
    before, expected = state(url), {"a": 2, "b": 0}
    assert judged(url) == expected
    for do in (Table.read, lambda table: table.append(rows("c")),
               lambda table: table.upsert(rows("a", v=5))):  # fmt: skip
        with Table(url) as table, pytest.raises(BrokenFence, match="this may be a copy that was"):
            do(table)
    assert main(["table", "mode", url, "fenced", "--yes"]) != 0
    assert state(url) == before, "nothing was written"
    capsys.readouterr()
    assert main(["table", "repair-fence", url]) == 0
    lost = 1 if more == "cluster" else commits  # there is nothing more to cluster
    said = capsys.readouterr().out
    assert f"names commits whose files are missing ({lost}): 2" in said and "dropped" in said
    assert state(url) == before
    decided = parse_group_fence(at(url).read_bytes())
    assert main(["table", "repair-fence", url, "--yes"]) == 0
    fence = parse_group_fence(at(url).read_bytes())
    dropped = [old.seq for old, new in zip(decided.window, fence.window, strict=True) if old != new]
    assert len(dropped) == lost and fence.published < dropped[0], "each still gets its tombstone"
    assert fence.round == decided.round + 1
    assert values(url) == judged(url) == expected
    with Table(url) as table:
        table.append(rows("c"))
        table.upsert(rows("a", v=5))
        published(table)
    assert values(url) == judged(url) == {"a": 5, "b": 0, "c": 0}
    assert main(["table", "repair-fence", url]) == 0
    assert "nothing to repair" in capsys.readouterr().out


@pytest.mark.parametrize("version", [9, 6])
def test_a_fence_from_before_a_column_was_added_is_repaired(
    tmp_path: Path, version: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """An older version of the object was put back: every write would be refused for good."""
    url, fence = f"file://{tmp_path}/t", tmp_path / "t" / FENCE_KEY
    Table.create(url, **HOW, version=version).close()
    with Table(url) as table:
        table.append(rows("a"))
        published(table)
        older = fence.read_bytes()
        table.append(rows("b").append_column("note", pa.array(["x"])))
        table.append(rows("c"))
        published(table)
    fence.write_bytes(older)
    with Table(url) as table, pytest.raises(CommitConflict, match="changed the table's columns"):
        table.append(rows("d"))
    before = parse_group_fence(fence.read_bytes())
    assert main(["table", "repair-fence", url]) == 0
    assert "is older than the newest commit, which changed the" in capsys.readouterr().out
    assert main(["table", "repair-fence", url, "--yes"]) == 0
    assert parse_group_fence(fence.read_bytes()).round == before.round + 1
    with Table(url) as table:
        table.append(rows("d"))
        published(table)
    assert values(url) == judged(url) == dict.fromkeys("abcd", 0)
    assert main(["table", "repair-fence", url]) == 0
    assert "nothing to repair" in capsys.readouterr().out


def test_a_commit_whose_data_file_is_not_in_the_copy_is_not_published(tmp_path: Path) -> None:
    """The timeline was listed before the data."""
    url = f"file://{tmp_path}/t"
    Table.create(url, **HOW).close()
    with Table(url) as table:
        table.append(rows("a"))
        lost = table.append(rows("b"))
        published(table)
    for each in (tmp_path / "t").rglob(f"*{lost.instant}*"):
        if each.suffix in (".parquet", ".commit"):
            os.remove(each)
    with Table(url) as table, pytest.raises(BrokenFence, match=r"parquet is missing"):
        table.read()
    assert judged(url) == {"a": 0}
