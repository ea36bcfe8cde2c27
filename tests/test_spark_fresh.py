"""Rows that were read from a table do not go back into it over what others committed since."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fresh_world import WAYS, first, load, more, other, retried, save, saved, seen, view
from spark_world import MARKS, SAID, batches, stored
from suite_plugin import rest_in_soak

from lockkit.clock import Clock
from lockkit.runtime import run
from lockkit.spark import write
from lockkit.spark.errors import unwrapped
from lockkit.spark.fresh import OldRows
from lockkit.spark.read import read
from lockkit.spark.source import Lockkit
from lockkit.spark.spool import LocalSpool, land
from lockkit.stores import open_store
from lockkit.table.format.timeline import V9, load_timeline
from lockkit.table.options import RETRIES

pytestmark = MARKS

AGAIN, REFUSED = ("committed", 101), ("OldRows", 100)
ANEW = ("loaded", "joined", "a view")
"""Ways that have kept nothing when the write begins: each attempt reads again."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/orders"


@pytest.fixture(autouse=True)
def nothing_kept(spark: Any) -> Iterator[None]:
    yield
    spark.catalog.clearCache()


@pytest.mark.parametrize(
    "way", rest_in_soak(WAYS, "loaded", "joined", "a cached view", "checkpoint", "read by Arrow")
)
def test_a_retry_reads_again_or_is_refused(spark: Any, url: str, way: str) -> None:
    assert retried(spark, url, WAYS[way]) == (AGAIN if way in ANEW else REFUSED)


@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pytest.mark.parametrize("way", rest_in_soak(["loaded", "loaded and seen", "checkpoint"], "loaded"))
def test_a_save_of_rows_that_were_loaded_before_another_commit_is_refused(
    spark: Any, url: str, way: str, mode: str
) -> None:
    assert saved(spark, url, WAYS[way], mode) == REFUSED


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_save_is_refused_where_another_commits_after_its_tasks_have_read(
    spark: Any, url: str, mode: str
) -> None:
    """One plan, evaluated once: the other commits from within a task, before the save begins."""
    first(spark, url)
    rows = more(load(spark, url)).where(committing(url)("id"))
    with pytest.raises(OldRows, match=r"1 commits came in between.*read the table again"):
        save(rows, url, mode)
    assert stored({"url": url}) == [("a", "EU", 0), ("b", "EU", 7)]
    save(more(load(spark, url)), url, mode)
    assert stored({"url": url}) == [("a", "EU", 1), ("b", "EU", 8)]


def committing(url: str) -> Any:
    """A filter that passes every row, and commits b=7 before it passes the first."""
    from pyspark.sql.functions import udf

    def commit(_key: str) -> bool:
        import pyarrow as pa

        from lockkit.table import Table, read_table

        with Table(url) as table:
            if "b" not in read_table(table.store)["id"].to_pylist():
                rows = [{"id": "b", "region": "EU", "at": 1, "v": 7}]
                table.append(pa.Table.from_pylist(rows))
        return True

    return udf(commit, "boolean")


def test_a_retry_of_a_save_does_not_write_what_it_read_before_the_other_commit(
    spark: Any, url: str
) -> None:
    """Its rows wait in a spool: they are written, and not read, once more."""
    first(spark, url)
    source = Lockkit({"path": url, **SAID, RETRIES: "2"})
    mine = source.writer(load(spark, url).schema, False)
    kept, others = mine.write(batches(("a", "EU", 20, 1))), [other]

    def meet(_kind: str, **fields: Any) -> None:
        if others and "wrote" in str(fields.get("text")):
            others.pop()(spark, url)

    with pytest.raises(OldRows):
        land(LocalSpool(mine.spool, mine.shape, kept.runs), mine.requested, mine.said, emit=meet)
    mine.abort([kept])
    assert not others and stored({"url": url}) == [("a", "EU", 100)]


def test_a_statement_does_not_put_a_views_old_rows_back(spark: Any, url: str) -> None:
    first(spark, url)
    text = view(spark, url)
    for number in (1, 2):
        spark.sql(f"INSERT INTO orders VALUES ('b', 'EU', {number}, {number})")
    seen(spark.sql(text))
    other(spark, url)
    for into in ("INTO", "OVERWRITE"):
        with pytest.raises(OldRows, match="read the table again"), unwrapped():
            spark.sql(f"INSERT {into} orders {text}")
        assert stored({"url": url}) == [("a", "EU", 100), ("b", "EU", 2)]
    spark.sql(f"INSERT INTO orders {view(spark, url)}")
    assert stored({"url": url}) == [("a", "EU", 101), ("b", "EU", 3)]


def test_rows_of_the_past_are_written_back_if_their_query_named_an_instant(
    spark: Any, url: str
) -> None:
    first(spark, url)
    (instant,) = run(load_timeline(V9), open_store(url), Clock()).commits
    other(spark, url)
    rows = read(spark, url, as_of=instant).selectExpr("id", "region", "at + 30 as at", "v")
    write(rows, url)
    assert stored({"url": url}) == [("a", "EU", 0)]


def test_rows_that_only_have_a_loaded_tables_schema_are_written(spark: Any, url: str) -> None:
    first(spark, url)
    schema = load(spark, url).schema
    other(spark, url)
    write(spark.createDataFrame([("a", "EU", 30, 30)], schema), url)
    assert stored({"url": url}) == [("a", "EU", 30)]
