"""Each operation on a table with group commit: through the fence, without a decision, or refused.

The page docs/concepts/group_commit.md has the same table; hudi-rs is the second reader.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_group_table import HOW, before_fence, judged, published, rows, spy, values

from lockkit.cli.main import main
from lockkit.clock import Clock
from lockkit.errors import TableError
from lockkit.runtime import run
from lockkit.stores import open_store
from lockkit.table import CommitConflict, Table
from lockkit.table.occ.fence import FENCE_KEY, is_grouped
from lockkit.table.occ.group.decision import WHOLE_TABLE, clash, whole
from lockkit.table.occ.group.fence import read_group_fence
from lockkit.table.services import archive_group

PAGE = Path(__file__).parents[1] / "docs/concepts/group_commit.md"


@pytest.fixture
def quick_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit waits half a second for an earlier one that the test holds back, and not five."""
    monkeypatch.setattr("lockkit.table.occ.group.tail.WAY_MS", 500)


@pytest.fixture
def url(tmp_path: Path) -> str:
    made = f"file://{tmp_path}/orders"
    Table.create(made, **HOW).close()
    return made


def us(*ids: str, v: int = 0) -> Any:
    found = rows(*ids, v=v)
    return found.set_column(1, "region", [["US"] * len(ids)])


OPERATIONS: dict[str, Callable[[Table], object]] = {
    "append": lambda table: table.append(rows("n")),
    "upsert": lambda table: table.upsert(rows("a", v=1)),
    "delete": lambda table: table.delete(rows("a")),
    "overwrite": lambda table: table.overwrite(rows("n")),
    "overwrite(whole_table=True)": lambda table: table.overwrite(rows("n"), whole_table=True),
    "delete_partition": lambda table: table.delete_partition("region=EU"),
    "read": lambda table: table.read(),
    "changes": lambda table: table.changes(),
    "history": lambda table: table.history(),
    "clean": lambda table: table.clean(),
    "roll_back_dead": lambda table: table.roll_back_dead(),
    "cluster": lambda table: table.cluster(),
    "lockkit table mode": lambda table: command("table", "mode", table.url, "hudi", "--yes"),
    "lockkit table repair-fence": lambda table: command("table", "repair-fence", table.url),
    "lockkit table archive": lambda table: archive(table),
    "savepoint": lambda table: table.savepoint(),
    "delete_savepoint": lambda table: table.delete_savepoint(table.savepoint().instant),
    "restore": lambda table: table.restore(table.savepoint().instant),
    "restore with a later commit": lambda table: restore(table),
}
LOCKED = ("lockkit table mode", "lockkit table archive", "savepoint", "delete_savepoint", "restore",
          "restore with a later commit")  # fmt: skip
"""They take the table's lock, so that no two of them run at once."""


def archive(table: Table) -> None:
    archived = table.archive(keep_min=1, keep_max=2)
    assert archived is not None and len(archived.instants) == 2


def restore(table: Table) -> None:
    saved = table.savepoint()
    table.append(rows("later"))
    published(table)
    assert len(table.restore(saved.instant).taken_back) == 1


def command(*words: str) -> None:
    if main(list(words)):
        raise TableError(" ".join(words))


def fence_body(url: str) -> bytes:
    return (Path(url.removeprefix("file://")) / FENCE_KEY).read_bytes()


def has_group_fence(url: str) -> bool:
    return is_grouped(fence_body(url))


def last(url: str) -> int:
    fence, _ = run(read_group_fence(), open_store(url), Clock())
    return int(fence.last)


def on_the_page() -> dict[str, str]:
    """By operation what its table says, up to the first colon or comma."""
    found = re.findall(r"^\| `([^`]+)` \| ([^|:,]+)", PAGE.read_text(), re.MULTILINE)
    return {name: says.strip() for name, says in found}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_does_what_the_page_says(
    url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_group, "REPUBLISHED_MS", 0)
    options = {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS"}
    with Table(url, options=options) as table:
        for each in "abc":
            table.append(rows(each))
        published(table)
        before, fence = last(url), fence_body(url)
        try:
            OPERATIONS[name](table)
            if not has_group_fence(url) or last(url) == before:
                said = "decides nothing" if fence_body(url) == fence else "replaces the fence"
            else:
                said = "decided in the fence" if "restore" not in name else "replaces the fence"
        except TableError:
            said = "refused"
    assert on_the_page()[name] == said
    if said == "refused":
        assert values(url) == dict.fromkeys("abc", 0) and last(url) == before
    locks = Path(url.removeprefix("file://")) / ".hoodie/.locks"
    if said != "refused":
        assert (locks / "table_lock.json").exists() == (name in LOCKED)


@pytest.mark.parametrize("left", [None, b"", b'{"format":3,'])
def test_a_fence_that_is_missing_or_damaged_is_not_replaced_by_a_new_one(
    url: str, left: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may have decided commits that are not published: only an earlier version has them."""
    with Table(url) as table:
        table.append(rows("a"))
    file = Path(url.removeprefix("file://")) / FENCE_KEY
    whole = file.read_bytes()
    file.unlink()
    if left is not None:
        file.write_bytes(left)
    assert main(["table", "repair-fence", url, "--yes"]) == 3
    assert re.search("restore its last (good )?version", capsys.readouterr().err.lower())
    assert (file.read_bytes() if file.exists() else None) == left
    with pytest.raises(TableError), Table(url) as table:
        table.append(rows("b"))
    file.write_bytes(whole)
    assert main(["table", "repair-fence", url]) == 0
    with Table(url) as table:
        table.append(rows("b"))
    assert values(url) == dict.fromkeys("ab", 0)


def test_the_page_names_each_operation_that_is_tested_here() -> None:
    assert set(on_the_page()) == set(OPERATIONS)


# --- overwrites -----------------------------------------------------------------------------------


def test_an_overwrite_replaces_a_partition_for_every_reader(url: str) -> None:
    with Table(url) as table:
        table.append(rows("a", "b"))
        table.upsert(us("c"))
        begin = table.changes()[1].end
        table.overwrite(rows("d"))
        assert set(table.changes(begin)[0]["id"].to_pylist()) == {"d"}
        assert values(url) == judged(url) == {"c": 0, "d": 0}
        table.delete_partition("region=US")
        assert values(url) == judged(url) == {"d": 0}
        table.overwrite(us("e"), whole_table=True)
    assert values(url) == judged(url) == {"e": 0}


FIRST_THEN: tuple[tuple[str, str, bool], ...] = (
    ("overwrite", "append", True), ("overwrite", "upsert", True), ("overwrite", "overwrite", True),
    ("upsert", "overwrite", True), ("append", "overwrite", False),
)  # fmt: skip


@pytest.mark.usefixtures("quick_way")
@pytest.mark.parametrize(("mine", "theirs", "refused"), FIRST_THEN)
def test_an_upsert_conflicts_with_an_overwrite_that_it_has_not_seen_and_an_append_does_not(
    url: str, mine: str, theirs: str, refused: bool
) -> None:
    """A key that no bucket had yet: an upsert makes a file group that the overwrite never saw."""
    with Table(url) as one, Table(url) as other:
        one.append(rows("a"))
        before_fence(one, lambda: getattr(other, theirs)(rows("b")))
        if refused:
            with pytest.raises(CommitConflict, match="file group"):
                getattr(one, mine)(rows("c"))
        else:
            getattr(one, mine)(rows("c"))
    assert values(url) == judged(url) == {
        **({} if theirs == "overwrite" else {"a": 0}), "b": 0, **({} if refused else {"c": 0}),
    }  # fmt: skip


@pytest.mark.usefixtures("quick_way")
def test_an_overwrite_does_not_conflict_with_an_upsert_of_another_partition(url: str) -> None:
    with Table(url) as one, Table(url) as other:
        one.upsert(rows("a"))
        before_fence(one, lambda: other.upsert(us("b")))
        one.overwrite(rows("c"))
    assert values(url) == judged(url) == {"b": 0, "c": 0}


@pytest.mark.parametrize("write", ["overwrite", "delete_partition"])
def test_an_overwrite_that_no_one_has_published_is_published_by_a_reader(
    url: str, write: str
) -> None:
    with Table(url) as table:
        table.append(rows("a"))
        published(table)

        def before(request: str) -> None:
            if request.startswith("put") and request.endswith(".replacecommit"):
                raise TableError("its process is gone")

        spy(table, before)
        getattr(table, write)("region=EU" if write == "delete_partition" else rows("b"))
        published(table)
    expected = {} if write == "delete_partition" else {"b": 0}
    timeline = Path(url.removeprefix("file://")) / ".hoodie/timeline"
    assert not list(timeline.glob("*.replacecommit"))
    assert values(url) == expected
    assert len(list(timeline.glob("*.replacecommit"))) == 1


def test_an_overwrite_conflicts_with_a_write_to_any_file_group_that_it_empties() -> None:
    one, other = ("p", "f1"), ("q", "f2")
    assert clash(frozenset({one}), frozenset({one})) and clash(frozenset({one}), None)
    assert not clash(frozenset({one}), frozenset({other}))
    for mine, theirs in (({whole("p")}, {one}), ({one}, {whole("p")}), ({whole("p")}, set()),
                         ({WHOLE_TABLE}, {other}), ({other}, {WHOLE_TABLE})):  # fmt: skip
        assert clash(frozenset(mine), frozenset(theirs)), (mine, theirs)
    assert not clash(frozenset({whole("p")}), frozenset({other}))
    assert not clash(frozenset({other}), frozenset({whole("p")}))
