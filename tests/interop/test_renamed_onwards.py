"""Tables whose columns Hudi renamed, and then overwrites, moves between partitions and restores.

Hudi 1.2 writes version 9 and Hudi 0.15 version 6. After each step lockkit reads what Hudi reads:
the snapshot, the base files alone, and the table as of each instant.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hudi_world import Hudi
from test_hudi_tables import plain, shown
from test_older_hudi import older as older

from lockkit import open_store
from lockkit.table.read.reader import read_table

pytestmark = [
    pytest.mark.interop, pytest.mark.timeout(1500),
    pytest.mark.filterwarnings("ignore::lockkit.table.read.listed.LocalInstants"),
]  # fmt: skip
ON_READ, WRITE = "hoodie.schema.on.read.enable", "hoodie.datasource.write."
MANUAL = {"hoodie.clean.automatic": "false", "hoodie.compact.inline": "false"}
SESSION = {
    ON_READ: "true", "hoodie.datasource.write.schema.allow.auto.evolution.column.drop": "true",
    "spark.sql.parquet.enableVectorizedReader": "false", **MANUAL,
}  # fmt: skip
MOVES = {
    "hoodie.index.type": "GLOBAL_SIMPLE", "hoodie.simple.index.update.partition.path": "true",
}  # fmt: skip
MADE = """\
create table {t} (id string, ts bigint, a int, st struct<x:int,y:string>, region string) using hudi
  partitioned by (region) tblproperties (primaryKey = 'id', preCombineField = 'ts', type = '{type}')
  location '{path}';
insert into {t} values
  ('k00', 1, 10, named_struct('x', 1, 'y', 'y0'), 'EU'),
  ('k01', 1, 11, named_struct('x', 2, 'y', 'y1'), 'US'),
  ('k02', 1, 12, null, 'EU'),
  ('k03', 1, 13, named_struct('x', 4, 'y', null), 'US');
alter table {t} {first};
update {t} set {a} = 20, ts = 2 where id in ('k00', 'k01')
"""
LATER = """\
alter table {t} {second};
update {t} set {a} = 60, ts = 6 where id in ('k01', 'k03', 'k08')
"""
CHANGES = {
    "renamed": ("rename column a to b", "rename column st.x to x2", "b", "struct<x2:int,y:string>"),
    "added": ("add columns (c string)", "add columns (st.z int)", "a",
              "struct<x:int,y:string,z:int>"),
    "added, then by names": ("add columns (c string)", "add columns (d string)", "a",
                             "struct<x:int,y:string>"),
}  # fmt: skip
"""What is done to the columns first and later, a name then, and a struct's type; "by names":
without the option from then on."""


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Base files alone have a row that was moved in both partitions."""
    return sorted(rows, key=lambda row: (row["_hoodie_record_key"], row["_hoodie_commit_time"]))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", ["cow", "mor"])
@pytest.mark.parametrize("version", [9, 6])
def test_rows_are_hudis_after_an_overwrite_a_move_and_a_restore(
    request: pytest.FixtureRequest, tmp_path: Path, version: int, kind: str, change: str
) -> None:
    hudi: Hudi = request.getfixturevalue("hudi" if version == 9 else "older")
    first, second, a, _ = CHANGES[change]
    name, path = f"t{version}_{kind}_{len(change)}", str(tmp_path / "t")
    options = {
        **SESSION, "hoodie.table.name": name, WRITE + "recordkey.field": "id",
        WRITE + "precombine.field": "ts", WRITE + "partitionpath.field": "region",
        WRITE + "hive_style_partitioning": "true", "hoodie.embed.timeline.server": "false",
        WRITE + "table.type": {"cow": "COPY_ON_WRITE", "mor": "MERGE_ON_READ"}[kind],
    }  # fmt: skip
    words = {"t": name, "path": path, "type": kind, "first": first, "second": second, "a": a}
    for key, value in SESSION.items():
        hudi("sql", text=f"set {key}={value}")

    def sql(text: str) -> None:
        for each in text.split(";"):
            hudi("sql", text=each.format(**words))

    def write(operation: str, made: list[dict[str, Any]], struct: str, **more: str) -> None:
        columns = f"id string, ts bigint, {a} int, st {struct}, region string"
        columns += ", c string" if change.startswith("added") else ""
        hudi.write(path, made, schema=columns, mode="append",
                   options=options | {WRITE + "operation": operation} | more)  # fmt: skip

    def row(key: str, ts: int, region: str, x: str = "x") -> dict[str, Any]:
        return {"id": key, "ts": ts, a: ts, "st": {x: ts, "y": f"y{ts}"}, "region": region}

    def same() -> list[dict[str, Any]]:
        store, query = open_store(f"file://{path}"), "hoodie.datasource.query.type"

        def theirs(**how: str) -> list[dict[str, Any]]:
            said = {ON_READ: options[ON_READ], **how}
            return in_order(plain(list(hudi("read", path=path, options=said))))

        def ours(**how: Any) -> list[dict[str, Any]]:
            return in_order(shown(read_table(store, meta=True, **how)))

        found = ours()
        assert found == theirs()
        if kind == "mor":
            assert ours(query="read_optimized") == theirs(**{query: "read_optimized"})
        timeline = tmp_path / "t/.hoodie" / ("timeline" if version == 9 else "")
        done = (".commit", ".deltacommit", ".replacecommit")
        instants = sorted({each.name[:17] for each in timeline.iterdir() if each.suffix in done})
        moments[instants[-1]] = found
        for at in instants:
            if version == 9:  # Hudi 0.15 leaves out what was replaced later
                assert ours(as_of=at) == theirs(**{"as.of.instant": at})
            assert ours(as_of=at) == moments.get(at, ours(as_of=at))
        return found

    struct, moments = "struct<x:int,y:string>", dict[str, list[dict[str, Any]]]()
    sql(MADE)
    same()
    if change.endswith("names"):
        options[ON_READ] = "false"
        hudi("sql", text=f"set {ON_READ}=false")
    write("insert_overwrite", [row("k04", 3, "EU"), row("k00", 3, "EU")], struct)
    assert {each["id"] for each in same()} == {"k00", "k01", "k03", "k04"}
    moved = [row("k00", 4, "US"), row("k01", 4, "EU"), row("k08", 4, "AP")]
    write("upsert", moved, struct, **MOVES)
    saved = same()
    assert {(each["id"], each["region"]) for each in saved} == {
        ("k00", "US"), ("k01", "EU"), ("k03", "US"), ("k04", "EU"), ("k08", "AP"),
    }  # fmt: skip
    at = max(each["_hoodie_commit_time"] for each in saved)
    hudi("sql", text=f"call create_savepoint(path => '{path}', commit_time => '{at}')")
    sql(LATER)
    same()
    write("upsert", [row("k04", 7, "AP", "x2" if change == "renamed" else "x")],
          CHANGES[change][3], **MOVES)  # fmt: skip
    assert same() != saved
    hudi("sql", text=f"call rollback_to_savepoint(path => '{path}', instant_time => '{at}')")
    assert {(each["id"], each["region"]) for each in same()} == {
        (each["id"], each["region"]) for each in saved}  # fmt: skip
    write("insert_overwrite_table", [row("k09", 8, "EU")], struct)
    assert [each["id"] for each in same()] == ["k09"]
