"""Columns that are added (by either) or widened (by Apache Hudi) between the log files of a
merge-on-read table, which Hudi and lockkit write in turn. All readers show the same rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hudi_rs import read_by_hudi_rs
from hudi_world import Hudi

from lockkit.clock import Clock
from lockkit.runtime import run
from lockkit.table import Table
from lockkit.table.services.adopt import adopt

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]
WRITE = "hoodie.datasource.write."
ARROW = {"string": pa.string(), "bigint": pa.int64(), "int": pa.int32(), "double": pa.float64()}
FIRST = {"id": "string", "region": "string", "ts": "bigint", "v": "int", "x": "int"}
NOTED = FIRST | {"note": "string"}
WIDER = NOTED | {"v": "bigint"}
WEIGHED = WIDER | {"w": "double"}
WIDEST = WEIGHED | {"x": "bigint"}
HUDI, OURS = "Hudi", "lockkit"
TURNS: list[tuple[str, dict[str, str], list[int]]] = [
    (HUDI, FIRST, [1, 2, 3, 4, 5, 6]),
    (OURS, FIRST, [1, 2]),
    (OURS, NOTED, [2, 3, 7]),
    (HUDI, NOTED, [3, 4, 8]),
    (HUDI, WIDER, [1, 4, 9]),
    (OURS, WEIGHED, [2, 5, 10]),
    (HUDI, WIDEST, [3, 5, 7]),
    (OURS, WIDEST, [1, 8, 11]),
]
VERSIONS = {"6": {"hoodie.write.table.version": "6", "hoodie.write.auto.upgrade": "false"}, "9": {}}


def row(columns: dict[str, str], turn: int, n: int) -> dict[str, Any]:
    wide = 2**40
    values = {
        "id": f"k{n}", "region": "EU" if n % 2 else "US", "ts": turn, "note": f"n{turn}", "w": 0.5,
        "v": turn + (wide if columns["v"] == "bigint" else 0),
        "x": n + (wide if columns["x"] == "bigint" else 0),
    }  # fmt: skip
    return {name: values[name] for name in columns}


@pytest.mark.parametrize("by", [HUDI, OURS])
@pytest.mark.parametrize("version", VERSIONS)
def test_rows_are_the_same_to_all_readers_whoever_adds_or_widens_a_column(
    hudi: Hudi, tmp_path: Path, version: str, by: str
) -> None:
    path, expected = str(tmp_path / "t"), dict[str, dict[str, Any]]()
    options = {
        "hoodie.table.name": "t", WRITE + "recordkey.field": "id", WRITE + "operation": "upsert",
        WRITE + "partitionpath.field": "region", WRITE + "table.type": "MERGE_ON_READ",
        WRITE + "precombine.field": "ts", "hoodie.metadata.enable": "false", **VERSIONS[version],
    }  # fmt: skip
    inline = {"hoodie.compact.inline": "true", "hoodie.compact.inline.max.delta.commits": "1"}

    def same(columns: dict[str, str], when: str) -> None:
        wanted = sorted(
            ({name: each.get(name) for name in columns} for each in expected.values()),
            key=lambda each: str(each["id"]),
        )
        readers = {
            "Hudi": hudi("read", path=path, options={}, select=[*columns]),
            "lockkit": table.read(columns=[*columns]).to_pylist(),
            "hudi-rs": read_by_hudi_rs(path).select([*columns]).to_pylist(),
        }
        for name, rows in readers.items():
            found = [{each: row.get(each) for each in columns} for row in rows]  # Spark omits nulls
            assert sorted(found, key=lambda each: str(each["id"])) == wanted, (name, when)

    with Table(f"file://{path}") as table:
        for turn, (writer, columns, numbers) in enumerate(TURNS):
            rows = [row(columns, turn, n) for n in numbers]
            if writer == HUDI:
                hudi.write(path, rows, schema=", ".join(f"{n} {t}" for n, t in columns.items()),
                           options=options, mode="append")  # fmt: skip
            else:
                shape = pa.schema([(name, ARROW[kind]) for name, kind in columns.items()])
                table.upsert(pa.Table.from_pylist(rows, shape))
            if turn == 0:
                run(adopt(), table.store, Clock())
            expected |= {str(each["id"]): each for each in rows}
            same(columns, f"turn {turn} of {writer}")
        if by == OURS:
            assert table.compact() is not None
        else:
            rows = [row(WIDEST, 99, 12)]
            hudi.write(path, rows, schema=", ".join(f"{n} {t}" for n, t in WIDEST.items()),
                       options=options | inline, mode="append")  # fmt: skip
            expected["k12"] = rows[0]
        same(WIDEST, f"compacted by {by}")
