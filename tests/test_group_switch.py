"""A table goes over to group commit, and back: through the fence, so that no paused writer is lost.

hudi-rs is the second reader.
"""

from __future__ import annotations

from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from table_world import steps
from test_group_table import HOW, before_fence, judged, rows, spy, values

from lockkit.cli.main import main
from lockkit.clock import Clock
from lockkit.errors import TableError
from lockkit.runtime import run
from lockkit.runtime.proven import delete
from lockkit.stores import open_store
from lockkit.table import CommitConflict, Table
from lockkit.table.errors import BrokenFence, ModeSwitched, NewerFence
from lockkit.table.format.properties import FENCED, GROUP, HUDI, load_config
from lockkit.table.occ.commit import EpochGuard
from lockkit.table.occ.fence import FENCE_KEY
from lockkit.table.occ.group.mode import has_group_fence
from lockkit.table.occ.mode import switch_mode
from lockkit.table.occ.transaction import TableCache

pytestmark = pytest.mark.usefixtures("no_hudi_beside")

SERIAL = {name: value for name, value in HOW.items() if name != "commit"}
MODES = (FENCED, GROUP, HUDI)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/orders"


def made(url: str, mode: str) -> None:
    Table.create(url, **(HOW if mode == GROUP else SERIAL | {"mode": mode})).close()
    with Table(url) as table:
        table.upsert(rows("a"))


def switch(url: str, mode: str) -> bool:
    return bool(run(switch_mode(mode, EpochGuard(0)), open_store(url), Clock()))


def mode_of(url: str) -> str:
    config, _ = run(load_config(), open_store(url), Clock())
    return str(config.commit if config.commit == GROUP else config.mode)


@pytest.mark.parametrize("write", ["append", "upsert"])
@pytest.mark.parametrize("version", [9, 6])
def test_an_empty_table_that_goes_over_to_group_commit_is_written(
    url: str, write: str, version: int
) -> None:
    Table.create(url, **SERIAL, mode=FENCED, version=version).close()
    assert switch(url, GROUP)
    with Table(url) as table:
        getattr(table, write)(rows("a"))
    assert values(url) == judged(url) == {"a": 0}


def test_rows_stay_and_open_handles_go_on_through_every_switch(url: str) -> None:
    made(url, FENCED)
    order = [FENCED, GROUP, HUDI, GROUP, FENCED, HUDI, FENCED, GROUP, FENCED]
    assert set(pairwise(order)) == {(a, b) for a, b in product(MODES, MODES) if a != b} | {
        (HUDI, FENCED)}  # fmt: skip
    model = {"a": 0}
    with Table(url) as idle:
        idle.append(rows("idle"))
        model["idle"] = 0
        for number, mode in enumerate(order[1:], 1):
            assert main(["table", "mode", url, mode, "--yes"]) == 0
            assert mode_of(url) == mode
            with Table(url) as table:
                table.append(rows(f"n{number}"))
                table.upsert(rows("a", v=number))
            model |= {f"n{number}": 0, "a": number}
            assert values(url) == judged(url) == model
            assert not switch(url, mode), "it is in that mode"
        for _ in range(2):
            try:
                idle.upsert(rows("idle", v=9))
                break
            except TableError:  # what it knew is refused once
                continue
    assert values(url) == judged(url) == model | {"idle": 9}


@pytest.mark.parametrize("version", [9, 6])
@pytest.mark.parametrize("between", [FENCED, HUDI])
def test_a_column_stays_when_the_table_leaves_group_commit_and_comes_back(
    url: str, between: str, version: int
) -> None:
    Table.create(url, **HOW, version=version).close()
    with Table(url) as one, Table(url) as other:
        one.append(rows("a"))
        other.append(rows("b"))
        one.append(rows("c").append_column("note", pa.array(["x"])))
        assert switch(url, between) and switch(url, GROUP)
        with pytest.raises(CommitConflict, match="changed the table's columns"):
            other.append(rows("d"))
        other.append(rows("d"), retries=1)
    with Table(url) as table:
        assert table.read(filters=[("id", "=", "c")])["note"].to_pylist() == ["x"]
    assert values(url) == judged(url) == dict.fromkeys("abcd", 0)


@pytest.mark.parametrize(("mode", "then"), [
    (a, b) for a, b in product(MODES, MODES) if a != b
])  # fmt: skip
def test_a_dry_run_says_each_step_and_changes_nothing(
    url: str, mode: str, then: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made(url, mode)
    before = contents(url)
    assert main(["table", "mode", url, then, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert f"mode {mode}" in said and f"set the properties to {then}" in said
    assert ("offers are refused" in said) == (mode == GROUP)
    assert contents(url) == before and mode_of(url) == mode
    with pytest.raises(SystemExit):
        main(["table", "mode", url, then, "--dry-run", "--yes"])


def contents(url: str) -> dict[str, bytes]:
    folder = Path(url.removeprefix("file://"))
    return {str(each): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize(("mode", "then"), [
    (FENCED, GROUP), (GROUP, FENCED), (GROUP, HUDI), (HUDI, GROUP)
])  # fmt: skip
def test_a_switch_that_ended_at_any_request_is_finished_or_taken_back(
    tmp_path: Path, mode: str, then: str, every: int
) -> None:
    for number in range(1, 200, every):
        url = f"file://{tmp_path}/{number}"
        made(url, mode)
        if steps(switch_mode(then, EpochGuard(0)), open_store(url), number, Clock()):
            break
        model = {"a": 0}
        with Table(url) as table:
            try:
                table.append(rows("between"))
                model["between"] = 0
            except TableError:
                pass
        switch(url, then if number % 2 else mode)
        assert mode_of(url) == (then if number % 2 else mode)
        with Table(url) as table:
            table.append(rows("after"))
        assert values(url) == judged(url) == model | {"after": 0}, number
    assert number > 10, "it has more requests than that"


def test_a_writer_that_took_turns_commits_nothing_into_a_table_with_group_commit(url: str) -> None:
    made(url, FENCED)
    with Table(url) as one:
        before_fence(one, lambda: switch(url, GROUP))
        with pytest.raises(TableError):
            one.append(rows("b"))
        one.append(rows("c"))
    assert values(url) == judged(url) == {"a": 0, "c": 0}


def test_a_writer_with_group_commit_commits_nothing_after_the_switch_back(url: str) -> None:
    made(url, GROUP)
    with Table(url) as one:
        before_fence(one, lambda: switch(url, FENCED))
        with pytest.raises(ModeSwitched, match="mode was switched"):
            one.append(rows("b"))
        one.append(rows("c"))
    assert values(url) == judged(url) == {"a": 0, "c": 0}
    timeline = Path(url.removeprefix("file://")) / ".hoodie/timeline"
    assert len(list(timeline.glob("*.commit.requested"))) == 2, "its instant is taken back"


def test_an_offer_that_was_decided_before_the_switch_is_acknowledged(url: str) -> None:
    made(url, GROUP)
    with Table(url) as one, Table(url) as other:
        one.append(rows("b"))
        left = [lambda: other.append(rows("c")), lambda: other.append(rows("d"))]

        def before(request: str) -> None:
            if request == "put .hoodie/.locks/fence.json" and len(left) == 2:
                left.pop(0)()  # so `one` offers its append
            elif request.startswith(("list", "get .hoodie/.locks")) and len(left) == 1 and offers():
                left.pop()()
                switch(url, FENCED)

        def offers() -> list[Path]:
            return list((Path(url.removeprefix("file://")) / ".hoodie/timeline").glob("*.append"))

        spy(one, before)
        one.append(rows("e"))
        assert not left
    assert values(url) == judged(url) == dict.fromkeys("abcde", 0)


def test_publishing_goes_on_beside_two_switches(url: str) -> None:
    """A publisher looks at the fence after it has published. It deletes what it has published into
    another table; a switch there and back is no other table."""
    made(url, GROUP)
    with Table(url) as one:
        one.append(rows("b"))
        switch(url, FENCED)
        switch(url, GROUP)
    assert values(url) == judged(url) == {"a": 0, "b": 0}
    assert run(has_group_fence(), open_store(url), Clock())


def test_a_handle_without_group_commit_is_refused_by_name(url: str) -> None:
    made(url, FENCED)
    store, clock = open_store(url), Clock()
    known = TableCache(*run(load_config(), store, clock))
    switch(url, GROUP)
    from lockkit.table.occ.rollback import roll_back

    with pytest.raises(NewerFence, match="open the table again"):
        run(roll_back("20260101000000000", EpochGuard(0), known), store, clock)


@pytest.mark.parametrize("wrong", [{"table_type": "MERGE_ON_READ"}])
def test_a_table_that_cannot_have_group_commit_is_not_switched(
    url: str, wrong: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    Table.create(url, **SERIAL | wrong).close()
    before = contents(url)
    assert main(["table", "mode", url, GROUP, "--yes"]) != 0
    assert "group commit needs" in capsys.readouterr().err
    assert {k: v for k, v in contents(url).items() if "table_lock" not in k} == before


@pytest.mark.parametrize("mode", [FENCED, GROUP])
def test_a_table_with_group_commit_whose_fence_is_gone_is_not_switched_and_sent_to_no_command(
    url: str, mode: str
) -> None:
    """No command makes its fence again: it alone may have whole commits."""
    made(url, GROUP)
    run(delete(FENCE_KEY), open_store(url), Clock())
    with pytest.raises(BrokenFence, match="restore its newest sound version") as refused:
        switch(url, mode)
    assert "repair-fence" not in str(refused.value)
