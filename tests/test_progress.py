"""A long compaction says how far it has come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lockkit.table import Table
from lockkit.table.services import progress


@pytest.mark.parametrize("every_ms", [0, progress.EVERY_MS])
def test_a_compaction_says_now_and_then_how_many_file_groups_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every_ms: int
) -> None:
    monkeypatch.setattr(progress, "EVERY_MS", every_ms)
    said: list[str] = []

    def hear(_: str, **fields: Any) -> None:
        said.append(fields.get("text", ""))

    rows = pa.table({"id": ["a", "b", "c"], "region": ["EU", "US", "AS"]})
    url = f"file://{tmp_path}/t"
    how: dict[str, Any] = {"partition_by": "region", "table_type": "MERGE_ON_READ"}
    with Table.create(url, record_key="id", buckets=1, emit=hear, **how) as table:
        for _ in range(2):
            table.upsert(rows)
        table.compact()
    done = [each for each in said if "compacted" in each]
    assert done == ([] if every_ms else [f"compacted {n} of 3 file groups" for n in (1, 2)])
