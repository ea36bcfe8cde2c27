"""505,000 keys into 5 million rows in 16 file groups: 500,000 updates and 5,000 inserts.

The floor is what an upsert on Spark must do at the least: each of 16 tasks reads its file group,
drops the rows that are replaced, and writes the next file; no lock, no meta columns, no commit.
pyiceberg is left out: its upsert turns each key into a term of one filter expression.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from lockkit.spark.frame import by_rows
from tests.bench.spark import frame, ratios, session, walls_s

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS, UPDATES, INSERTS, ROUNDS = 5_000_000, 500_000, 5_000, 3
QUICK = 20
"""How much smaller the quick run is."""
GROUPS = 16
BARE = "the same without lock and metadata"
MINE = "lockkit"


def goals(result: dict[str, Any]) -> list[tuple[str, float, float]]:
    return [(f"upsert, times {BARE}", result["rows"][MINE]["ratio"], 1.2)]


def grouped(rows: DataFrame) -> DataFrame:
    """Each row with the number of its file group, one task for each group."""
    from pyspark.sql import functions as F

    group = F.pmod(F.xxhash64("id"), F.lit(GROUPS)).cast("int")
    return rows.withColumn("fg", group).repartition(GROUPS, "fg")


def rewrite(old: Path, new: Path) -> Callable[[pa.Table], pa.Table]:
    """How an executor merges one file group's rows: `old`/fg.parquet into `new`/fg.parquet."""
    before, after = str(old), str(new)

    def merge(mine: pa.Table) -> pa.Table:
        group = mine["fg"][0].as_py()
        mine = mine.drop_columns(["fg"])
        keys, written = mine["id"].combine_chunks(), 0
        with pq.ParquetWriter(f"{after}/{group}.parquet", mine.schema) as out:
            base = Path(before) / f"{group}.parquet"
            if base.exists():
                for batch in pq.ParquetFile(base).iter_batches(batch_size=131_072):
                    kept = batch.filter(pc.invert(pc.is_in(batch["id"], value_set=keys)))
                    written += kept.num_rows
                    out.write_batch(kept.cast(mine.schema))
            out.write_table(mine)
        return pa.table({"fg": [group], "rows": [written + mine.num_rows]})

    return merge


def bare_write(rows: DataFrame, old: Path, new: Path) -> int:
    """Rewrite every file group that `rows` touch; how many rows there are then."""
    new.mkdir()
    written = grouped(rows).groupBy("fg").applyInArrow(rewrite(old, new), "fg long, rows long")
    with by_rows(rows):
        return sum(row["rows"] for row in written.collect())


def updates(spark: SparkSession, size: int, changed: int, new: int) -> DataFrame:
    """`changed` keys spread over the whole table, and `new` ones behind its end."""
    return frame(spark, changed, step=size // changed).unionByName(frame(spark, new, first=size))


def main(quick: bool = False) -> dict[str, Any]:
    by = QUICK if quick else 1
    size, changed, new = ROWS // by, UPDATES // by, INSERTS // by
    rounds = 1 if quick else ROUNDS
    with tempfile.TemporaryDirectory() as place, session() as spark:
        home = Path(place)
        (home / "none").mkdir()
        table, mine = frame(spark, size), updates(spark, size, changed, new)
        assert bare_write(table, home / "none", home / "base") == size
        base = ds.dataset(home / "base")
        ours, source = f"file://{home}/lockkit", mine.toArrow()
        _upsert(table, ours)

        def bare(to: Path) -> None:
            assert bare_write(mine, home / "base", to) == size + new

        def lockkit(to: Path) -> None:
            _upsert(mine, ours)

        ways = {BARE: bare, MINE: lockkit} | _peers(home, base, source)
        walls = walls_s(ways, home, rounds)
    return {
        "rounds": rounds, "table_rows": size, "updates": changed, "inserts": new,
        "file_groups": GROUPS, "rows": ratios(walls, BARE, changed + new),
    }  # fmt: skip


def _upsert(rows: DataFrame, url: str) -> None:
    from lockkit.spark import write

    write(rows, url, operation="upsert", record_key="id", precombine="at", buckets=GROUPS)


def _peers(home: Path, base: ds.Dataset, source: pa.Table) -> dict[str, Callable[[Path], None]]:
    """In this process with all its threads; the rows to merge are in memory already."""
    import lance
    from deltalake import DeltaTable, write_deltalake

    write_deltalake(str(home / "delta"), base.scanner().to_reader())
    lance.write_dataset(base.scanner().to_reader(), str(home / "lance"))

    def deltalake(_: Path) -> None:
        merge = DeltaTable(str(home / "delta")).merge(
            source, "t.id = s.id", source_alias="s", target_alias="t"
        )
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def pylance(_: Path) -> None:
        merge = lance.dataset(str(home / "lance")).merge_insert("id")
        merge.when_matched_update_all().when_not_matched_insert_all().execute(source)

    return {"deltalake, no Spark": deltalake, "pylance, no Spark": pylance}
