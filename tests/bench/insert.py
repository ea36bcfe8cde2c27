"""20 million rows of five columns into a new table on this disk, beside `df.write.parquet`.

The two peers have no Spark writer of their own: they read the parquet files that Spark has just
written, and write them into a table, in this process and with all its threads.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from tests.bench.spark import frame, ratios, session, walls_s

ROWS, ROUNDS = 20_000_000, 3
QUICK_ROWS = 500_000
NATIVE = "df.write.parquet"
LOCKKIT = "lockkit"


def goals(result: dict[str, Any]) -> list[tuple[str, float, float]]:
    rows = result["rows"]
    return [
        ("insert, times df.write.parquet", rows[LOCKKIT]["ratio"], 1.15),
    ]


def main(quick: bool = False) -> dict[str, Any]:
    rows, rounds = (QUICK_ROWS, 1) if quick else (ROWS, ROUNDS)
    with tempfile.TemporaryDirectory() as place, session() as spark:
        home = Path(place)
        frame(spark, rows // 10).write.parquet(str(home / "warm-up"))
        parquet = home / "written"
        made = frame(spark, rows)
        made.write.parquet(str(parquet))

        def native(to: Path) -> None:
            made.write.parquet(str(to))

        def lockkit(to: Path) -> None:
            from lockkit.spark import write

            write(made, f"file://{to}", operation="insert", record_key="id")

        def deltalake(to: Path) -> None:
            from deltalake import write_deltalake

            write_deltalake(str(to), ds.dataset(parquet).scanner().to_reader())

        def pylance(to: Path) -> None:
            import lance

            lance.write_dataset(ds.dataset(parquet).scanner().to_reader(), str(to))

        ways = {
            NATIVE: native, LOCKKIT: lockkit,
            "deltalake, from those files": deltalake, "pylance, from those files": pylance,
        }  # fmt: skip
        walls = walls_s(ways, home, rounds)
    return {"rounds": rounds, "inserted": rows, "rows": ratios(walls, NATIVE, rows)}
