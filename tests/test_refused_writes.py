"""What keeps writes from a table is shown and named before a write meets it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lockkit import Clock
from lockkit.cli.main import main
from lockkit.errors import TableError
from lockkit.table import Table, read_table
from lockkit.table.format.timeline import V6, instant_of
from lockkit.table.occ.liveness import HEARTBEATS

KINDS: dict[str, dict[str, Any]] = {
    "merge-on-read, version 6": {
        "version": 6, "mode": "hudi", "index": "BUCKET", "table_type": "MERGE_ON_READ"},
    "merge-on-read, fenced": {"table_type": "MERGE_ON_READ"},
    "copy-on-write, hudi": {"mode": "hudi"},
}  # fmt: skip


def rows(*keys: str, at: int = 1, **more: Any) -> pa.Table:
    return pa.table({"id": keys, "at": [at] * len(keys), **more})


@pytest.fixture
def made(tmp_path: Path) -> Callable[[str], Table]:
    def make(kind: str) -> Table:
        url = f"file://{tmp_path}/orders"
        own = {"buckets": 1, "options": {"hoodie.clean.automatic": "false"}}
        table = Table.create(url, record_key="id", precombine="at", **own, **KINDS[kind])
        table.upsert(rows("a", "b"))
        table.upsert(rows("a", at=2))
        return table

    return make


def folder(table: Table) -> Path:
    return Path(table.url.removeprefix("file://"))


def a_commit_is_damaged(table: Table) -> None:
    newest = max(folder(table).glob(".hoodie/**/*commit"), key=lambda each: each.name)
    newest.write_bytes(newest.read_bytes()[:20])


def an_instant_is_ahead(table: Table) -> None:
    newest = max(folder(table).glob(".hoodie/**/*commit"), key=lambda each: each.name)
    ahead = instant_of(Clock().wall_ms() + 30 * 86_400_000)
    name = f"{ahead}_{ahead}" if "_" in newest.name else ahead
    newest.with_name(name + newest.suffix).write_bytes(newest.read_bytes())


def a_restore_is_pending(table: Table) -> None:
    there = max(folder(table).glob(".hoodie/**/*.requested"), key=lambda each: each.name)
    there.with_name("20260101000000000.restore.requested").write_bytes(b"")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("happens", "said"), [
    (a_commit_is_damaged, "commit"), (an_instant_is_ahead, "hours ahead of this clock"),
    (a_restore_is_pending, "pending restore"),
])  # fmt: skip
def test_a_state_in_which_each_write_is_refused_is_shown_and_named_by_adopt(
    made: Callable[[str], Table], kind: str, happens: Callable[[Table], None], said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    table = made(kind)
    for command in ("show", "adopt"):
        assert main(["table", command, table.url]) == 0, capsys.readouterr()
    happens(table)
    with pytest.raises(TableError), Table(table.url) as writer:
        writer.upsert(rows("a", at=3))
    for command in (["show"], ["show", "--json"], ["adopt", "--dry-run"], ["adopt"]):
        capsys.readouterr()
        assert main(["table", *command[:1], table.url, *command[1:]]) == 1
        assert said in capsys.readouterr().out, command


def test_a_damaged_plan_that_has_to_stay_is_not_promised_to_go(
    made: Callable[[str], Table], capsys: pytest.CaptureFixture[str]
) -> None:
    table = made("merge-on-read, version 6")
    plan = table.compact(mode="schedule")
    assert plan is not None
    table.upsert(rows("b", at=2))
    (folder(table) / V6.requested(plan.instant, "compaction")).write_bytes(b"")
    assert main(["table", "adopt", table.url]) == 1
    out = capsys.readouterr().out
    assert "if no log file has its instant, take it away" in out and "cannot write it" in out
    away = ["table", "rollback", table.url, "--instant", plan.instant]
    for more in (["--dry-run"], []):
        assert main([*away, *more]) == 3
        assert "counts on the base file" in capsys.readouterr().err
    assert not table.store.list(HEARTBEATS + plan.instant)


def test_a_pending_plan_is_reported_with_its_instant_once(made: Callable[[str], Table]) -> None:
    said: list[str] = []
    table = made("merge-on-read, version 6")
    plan = table.compact(mode="schedule")
    assert plan is not None
    with Table(table.url, emit=lambda _, **fields: said.append(fields.get("text", ""))) as other:
        assert other.compact(mode="schedule") is None
    assert [each[:25] for each in said if "pending plan" in each] == ["is a pending plan of thes"]


@pytest.mark.parametrize(("kind", "mode"), [
    ("merge-on-read, version 6", "fenced"), ("merge-on-read, version 6", "group"),
    ("merge-on-read, fenced", "hudi"), ("merge-on-read, fenced", "group"),
])  # fmt: skip
def test_a_switch_of_the_mode_that_is_refused_is_not_shown_as_possible(
    made: Callable[[str], Table], kind: str, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = made(kind).url
    said = []
    for yes in ([], ["--yes"]):
        assert main(["table", "mode", url, mode, *yes]) == 3
        said.append(capsys.readouterr().err)
    assert said[0] == said[1]


def test_adopt_promises_no_mode_that_a_table_cannot_have(
    made: Callable[[str], Table], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = made("merge-on-read, fenced")
    capsys.readouterr()
    assert main(["table", "adopt", table.url]) == 0
    out = capsys.readouterr().out
    assert "must never write it" in out and "table mode" not in out
    assert main(["table", "adopt", f"file://{tmp_path}/none"]) == 3
    assert "check the address, or make a table" in capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["_HOODIE_RECORD_KEY", "_hoodie_operation", "_Hoodie_Operation"])
def test_a_column_may_not_have_the_name_of_one_that_hudi_adds(
    made: Callable[[str], Table], kind: str, name: str
) -> None:
    table = made(kind)
    for write in (table.upsert, table.append):
        with pytest.raises(TableError, match=f"'?{name}'?.* is a name of Hudi's own columns"):
            write(rows("c", **{name: ["x"]}))
    assert table.read().num_rows == 2
    again = read_table(table.store, meta=True)
    table.upsert(again)  # Hudi's own, as they were read, are left out
