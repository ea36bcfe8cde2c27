"""A copy of a table with group commit that was made while a writer committed.

Its listing comes first, and the objects are read after it: so the fence may name commits of which
the copy has no file. hudi-rs judges.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from suite_plugin import rest_in_soak
from test_group_table import HOW, judged, published, rows, values

from lockkit.cli.main import main
from lockkit.clock import Clock
from lockkit.runtime import run
from lockkit.stores import open_store
from lockkit.table import Table
from lockkit.table.errors import (
    BrokenFence,
    CommitConflict,
    CommitUnknown,
    ModeSwitched,
    TableError,
)
from lockkit.table.format.timeline import V9
from lockkit.table.occ.fence import FENCE_KEY
from lockkit.table.occ.group.copied import missing
from lockkit.table.occ.group.fence import format_group_fence, parse_group_fence
from lockkit.table.occ.group.mode import emptied

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


LACKS = {
    "data": ((".parquet", ".commit"), r"parquet is missing"),
    "instant": ((".requested", ".commit"), "the timeline lacks its files"),
    "inflight": ((".inflight", ".commit"), "the timeline lacks its files"),
}


@pytest.mark.parametrize("what", LACKS)
def test_a_commit_of_which_the_copy_lacks_a_file_is_not_published(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timeline was listed before the data, or a part of it before the rest."""
    ends, why = LACKS[what]
    url = f"file://{tmp_path}/t"
    if what == "inflight":  # a commit that is too large for the fence
        for module in ("client", "fence"):
            monkeypatch.setattr(f"lockkit.table.occ.group.{module}.packed", lambda _: "")
    Table.create(url, **HOW).close()
    with Table(url) as table:
        table.append(rows("a"))
        lost = table.append(rows("b"))
        published(table)
    for each in files_of(url, lost.instant):
        if each.suffix in ends:
            os.remove(each)
    with Table(url) as table, pytest.raises(BrokenFence, match=why):
        table.read()
    assert judged(url) == {"a": 0}
    assert main(["table", "repair-fence", url, "--yes"]) == 0
    assert values(url) == {"a": 0}


def files_of(url: str, instant: str) -> list[Path]:
    return list(Path(url.removeprefix("file://")).rglob(f"*{instant}*"))


def test_a_commit_that_is_published_or_has_left_the_window_is_not_missing(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/t"
    Table.create(url, **HOW).close()
    with Table(url) as table:
        table.append(rows("a"))
        old = table.upsert(rows("a", v=2)).instant
        published(table)
    fence = parse_group_fence(at(url).read_bytes())
    its = [each for each in fence.window if each.instant == old]

    def lacks() -> list[str]:
        found = run(missing(V9, fence, its), open_store(url), Clock())
        return [what for _, what in found]

    for each in files_of(url, old):
        if each.suffix == ".parquet":  # a clean does that
            os.remove(each)
    assert lacks() == []
    for each in files_of(url, old):
        os.remove(each)
    assert len(lacks()) == 1
    at(url).write_bytes(format_group_fence(replace(fence, first=fence.last + 1, window=())))
    assert lacks() == [], "archived, or taken back by a restore"


def test_a_fence_from_before_a_restore_is_repaired(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The copy has the other files from after it."""
    url = f"file://{tmp_path}/t"
    Table.create(url, **HOW).close()
    with Table(url) as table:
        table.append(rows("a"))
        saved = table.savepoint().instant
        table.append(rows("b"))
        table.upsert(rows("a", v=2))
        published(table)
        older = at(url).read_bytes()
        table.restore(saved)
    at(url).write_bytes(older)
    with Table(url) as table, pytest.raises(BrokenFence, match="this may be a copy"):
        table.read()
    assert main(["table", "repair-fence", url, "--yes"]) == 0
    assert "files are missing (2)" in capsys.readouterr().out
    assert values(url) == judged(url) == {"a": 0}
    with Table(url) as table:
        table.append(rows("c"))
        table.upsert(rows("a", v=5))
        published(table)
    assert values(url) == judged(url) == {"a": 5, "c": 0}


def test_a_fence_that_a_restore_or_a_switch_left_closed_is_opened_by_its_repair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"file://{tmp_path}/t"
    Table.create(url, **HOW).close()
    with Table(url) as table:
        table.append(rows("a"))
        published(table)
    fence = parse_group_fence(at(url).read_bytes())
    at(url).write_bytes(format_group_fence(replace(emptied(fence), closed=True)))
    with Table(url) as table, pytest.raises(TableError, match="or its mode switched"):
        table.append(rows("b"))
    assert main(["table", "repair-fence", url]) == 0
    assert "is closed: a restore or a switch of the mode" in capsys.readouterr().out
    assert parse_group_fence(at(url).read_bytes()).closed
    assert main(["table", "repair-fence", url, "--yes"]) == 0
    with Table(url) as table:
        table.append(rows("b"))
        published(table)
    assert values(url) == judged(url) == {"a": 0, "b": 0}
    assert main(["table", "repair-fence", url]) == 0
    assert "nothing to repair" in capsys.readouterr().out


@pytest.mark.parametrize("version", [9, 6])
def test_commits_of_which_a_copy_lacks_the_completed_files_alone_are_published_by_its_repair(
    tmp_path: Path, version: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fence of the copy is newer, and says that one of them is published."""
    url = f"file://{tmp_path}/t"
    Table.create(url, **HOW, version=version).close()
    with Table(url) as table:
        table.append(rows("a"))
        last = []
        for name in "bc":
            last.append(table.append(rows(name)).instant)
            published(table)
    for each in last:
        for path in files_of(url, each):
            if path.suffix == ".commit":
                os.remove(path)
    fence = parse_group_fence(at(url).read_bytes())
    assert fence.published == 2
    with Table(url) as table, pytest.raises(BrokenFence, match="its completed file is missing"):
        table.read()
    assert judged(url) == {"a": 0}
    assert main(["table", "repair-fence", url, "--yes"]) == 0
    assert "0 of those commits are dropped" in capsys.readouterr().out
    assert values(url) == judged(url) == dict.fromkeys("abc", 0)


def test_a_column_of_a_commit_that_is_not_published_stays_when_later_ones_are_dropped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"file://{tmp_path}/t"
    Table.create(url, **HOW).close()
    with Table(url) as table:
        table.append(rows("a"))
        adds = table.append(rows("b").append_column("note", pa.array(["x"]))).instant
        published(table)
        for each in files_of(url, adds):
            if each.suffix == ".commit":
                os.remove(each)
    assert main(["table", "repair-fence", url]) == 0
    assert "nothing to repair" in capsys.readouterr().out
    with Table(url) as table:
        lost = table.append(rows("c")).instant
        published(table)
    its = [each for each in files_of(url, adds) if each.suffix == ".commit"]
    for each in {*files_of(url, lost), *its}:
        os.remove(each)
    assert main(["table", "repair-fence", url, "--yes"]) == 0
    assert "1 of those commits are dropped" in capsys.readouterr().out
    with Table(url) as table:
        table.append(rows("d"))
        published(table)
    assert values(url) == judged(url) == dict.fromkeys("abd", 0)


@pytest.mark.parametrize("version", [9, 6])
def test_a_fence_in_the_form_of_another_table_version_is_refused(
    tmp_path: Path, version: int
) -> None:
    """An append that it decided would have a completed file that no reader knows."""
    url = f"file://{tmp_path}/t"
    Table.create(url, **HOW, version=version).close()
    with Table(url) as table:
        table.append(rows("a"))
        published(table)
        warm = Table(url)
        warm.append(rows("b"))
        published(warm)
    fence = parse_group_fence(at(url).read_bytes())
    completion = "20991231235959999" if version == 6 else None
    foreign = format_group_fence(replace(fence, completion=completion))
    at(url).write_bytes(foreign)
    with warm:  # a replacement that it sends may have had its effect before this one
        for write in (Table.append, Table.upsert, Table.overwrite):
            with pytest.raises((BrokenFence, CommitUnknown), match="another table version"):
                write(warm, rows("c"))
    for do in (Table.read, lambda table: table.append(rows("c"))):
        with Table(url) as table, pytest.raises(BrokenFence, match="another table version"):
            do(table)
    assert at(url).read_bytes() == foreign, "nothing was decided"


def test_a_fence_from_after_a_switch_of_the_mode_names_the_way_to_finish_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The copy has the properties from before it."""
    url, properties = f"file://{tmp_path}/t", tmp_path / "t/.hoodie/hoodie.properties"
    Table.create(url, **HOW).close()
    with Table(url) as table:
        table.append(rows("a"))
        published(table)
    before = properties.read_bytes()
    assert main(["table", "mode", url, "fenced", "--yes"]) == 0
    properties.write_bytes(before)
    for _ in range(2):
        with Table(url) as table, pytest.raises(ModeSwitched, match="lockkit table mode URL group"):
            table.append(rows("b"))
    assert main(["table", "repair-fence", url]) != 0
    assert f"lockkit table mode {url} group" in capsys.readouterr().err
    assert main(["table", "mode", url, "group", "--yes"]) == 0
    with Table(url) as table:
        table.append(rows("b"))
        published(table)
    assert values(url) == judged(url) == {"a": 0, "b": 0}
