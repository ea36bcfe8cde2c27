"""A handle whose first commit saw less than the table has, beside commits that are archived since.

Those have smaller instants, and were completed after the handle listed the timeline. So they leave
the timeline first, and no listing of the handle ever shows them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hudi_rs import read_by_hudi_rs
from test_archiving import by_hudi_rs, contents
from test_late_publishers import Paused

from lockkit import open_store
from lockkit.stores import Store
from lockkit.table import Table
from lockkit.table.errors import TableChanged

pytestmark = pytest.mark.usefixtures("archived_at_once", "no_hudi_beside")
OPTIONS = {"hoodie.clean.automatic": "false", "hoodie.clean.commits.retained": "1"}


def rows(*keys: str, v: int) -> pa.Table:
    """Rows whose partition is the first letter of their key."""
    return pa.table({"id": list(keys), "region": [key[0] for key in keys], "v": [v] * len(keys)})


def writes_data(name: str, key: Any) -> bool:
    return name in ("put", "put_file") and "parquet" in str(key)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize(("version", "mode"), [
    (9, "fenced"), (6, "fenced"), (9, "hudi"),
])  # fmt: skip
def test_an_upsert_keeps_rows_of_a_commit_that_was_archived_before_its_handle_listed_it(
    tmp_path: Path, version: int, mode: str, before: bool
) -> None:
    """`before`: another commit was there when the handle began, with a later instant."""
    url = f"file://{tmp_path}/t"

    def work(keys: tuple[str, str], store: Store) -> object:
        with Table(url, options=OPTIONS) as table:
            table._data = table._upkeep.context.store = table.store = store
            return table.upsert(rows(*keys, v=1))

    with Table.create(url, record_key="id", partition_by="region", version=version, mode=mode,
                      buckets=1, options=OPTIONS) as other:  # fmt: skip
        unseen = [Paused(open_store(url), writes_data, partial(work, keys))
                  for keys in (("a0", "a1"), ("b0", "b1"))]  # fmt: skip
        model = {}
        if before:
            other.append(rows("n0", v=0))
            model["n0"] = 0
        with Table(url, options=OPTIONS) as handle:
            handle.upsert(rows("c0", v=9))
            for each in unseen:
                each.go_on()
            for v in range(2, 5):
                other.append(rows(f"n{v}", v=v))
            archived = other.archive(keep_min=4 + before, keep_max=5 + before)
            assert archived is not None
            assert set(archived.instants) == {each.outcome.instant for each in unseen}
            handle.upsert(rows("a1", v=7))
            model |= {"a0": 1, "a1": 7, "b0": 1, "b1": 1, "c0": 9, "n2": 2, "n3": 3, "n4": 4}
            assert contents(handle.read()) == contents(other.read()) == model
            assert by_hudi_rs(tmp_path / "t") == model


def valued(table: Table | Path) -> dict[str, tuple[Any, ...]]:
    """Of each key the values of v, the archived column x and the writer's own column y."""
    if isinstance(table, Table):
        found = table.read()
    else:
        found = read_by_hudi_rs(table)
    return {row["id"]: (row["v"], row["x"], row.get("y")) for row in found.to_pylist()}


@pytest.mark.parametrize("own", [False, True], ids=["old columns", "another new column"])
@pytest.mark.parametrize("write", ["append", "upsert"])
@pytest.mark.parametrize(("version", "mode"), [
    (9, "fenced"), (6, "fenced"), (9, "hudi"),
])  # fmt: skip
def test_a_writer_that_missed_an_archived_schema_change_drops_none_of_its_columns(
    tmp_path: Path, version: int, mode: str, write: str, own: bool
) -> None:
    """One handle was idle meanwhile, and one had an instant that is later than the change's."""
    url, y = f"file://{tmp_path}/t", [5] if own else None

    def wide(key: str, v: int) -> pa.Table:
        return rows(key, v=v).append_column("x", pa.array([f"x{v}"]))

    def work(new: pa.Table, store: Store) -> object:
        with Table(url, options=OPTIONS) as table:
            table._data = table._upkeep.context.store = table.store = store
            return table.upsert(new, retries=2)

    def paused(new: pa.Table) -> Paused:
        return Paused(open_store(url), writes_data, partial(work, new))

    narrow = rows("a9", v=9) if y is None else rows("a9", v=9).append_column("y", pa.array(y))
    with Table.create(url, record_key="id", partition_by="region", version=version, mode=mode,
                      buckets=1, options=OPTIONS) as other:  # fmt: skip
        other.append(rows("a0", v=0))
        with Table(url, options=OPTIONS) as idle:
            idle.append(rows("a1", v=1))
            changes = [paused(wide("c0", 2)), paused(wide("d0", 2))]
            slow = paused(narrow)
            for each in changes:
                each.go_on()
            for v in range(3, 7):
                other.append(wide(f"n{v}", v=v))
            archived = other.archive(keep_min=4, keep_max=5)
            assert archived is not None and changes[0].outcome.instant in archived.instants
            slow.go_on()
            assert isinstance(slow.outcome, TableChanged), slow.outcome
            work(narrow, open_store(url))
            getattr(idle, write)(rows("a7", v=7), retries=2)
            model = {"a0": (0, None, None), "a1": (1, None, None), "a9": (9, None, y and 5)}
            model |= dict.fromkeys(("c0", "d0"), (2, "x2", None))
            model |= {f"n{v}": (v, f"x{v}", None) for v in range(3, 7)}
            model["a7"] = (7, None, None)
            assert valued(idle) == valued(other) == valued(tmp_path / "t") == model
