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
from test_archiving import by_hudi_rs, contents
from test_late_publishers import Paused

from lockkit import open_store
from lockkit.stores import Store
from lockkit.table import Table

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
