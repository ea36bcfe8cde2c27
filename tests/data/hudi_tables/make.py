"""Make `tables.tar.xz` again: tables that Apache Hudi writes with its defaults, and its answers.

    python tests/data/hudi_tables/make.py [FOLDER]

One Spark with Hudi's bundle (`make interop` prepares it), its clock in New York's time zone, so
that LOCAL is not UTC. Each table's `answers.json` has what Hudi itself reads: the snapshot, the
base files alone, the table as of some instants, and some increments. Rows and options are the same
in every run; instants and file ids are not.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1] / "interop"), str(HERE.parents[2])]

from environment import prepare  # noqa: E402
from hudi_world import Hudi, Refused  # noqa: E402

ZONE = "America/New_York"
SCHEMA = (
    "id string, kind string, region string, day string, ts bigint, v int, price decimal(10,2), "
    "at timestamp, tags array<string>, who struct<name:string,age:int>, m map<string,int>"
)
COLUMNS = (
    "id", "kind", "region", "day", "ts", "v", "cast(price as string) price",
    "cast(at as string) at", "tags", "who", "m", "_hoodie_commit_time", "_hoodie_record_key",
)  # fmt: skip
WRITE = "hoodie.datasource.write."
ARCHIVED = {
    "hoodie.clean.commits.retained": "2", "hoodie.keep.min.commits": "4",
    "hoodie.keep.max.commits": "5", "hoodie.metadata.compact.max.delta.commits": "2",
}  # fmt: skip
V6 = {"hoodie.write.table.version": "6", "hoodie.write.auto.upgrade": "false"}
V8 = {"hoodie.write.table.version": "8", "hoodie.write.auto.upgrade": "false"}
MOR = {WRITE + "table.type": "MERGE_ON_READ", "hoodie.compact.inline": "false"}
BY_TS = {WRITE + "precombine.field": "ts"}
BY_COMMIT = {"hoodie.write.record.merge.mode": "COMMIT_TIME_ORDERING"}
ONE = {WRITE + "recordkey.field": "id", WRITE + "partitionpath.field": "region"}
PLAIN = {
    WRITE + "recordkey.field": "id", "hoodie.metadata.enable": "false",
    "hoodie.table.timeline.timezone": "UTC",
}  # fmt: skip
TWO = {WRITE + "recordkey.field": "id,kind", WRITE + "partitionpath.field": "region,day"}
COMPACT = {"hoodie.compact.inline": "true", "hoodie.compact.inline.max.delta.commits": "1"}
PLAN = {"hoodie.compact.schedule.inline": "true", "hoodie.compact.inline.max.delta.commits": "1"}
CLUSTER = {"hoodie.clustering.inline": "true", "hoodie.clustering.inline.max.commits": "1"}
PLAN_CLUSTERING = {
    "hoodie.clustering.schedule.inline": "true", "hoodie.clustering.inline.max.commits": "1",
}  # fmt: skip
LOG_COMPACT = {
    "hoodie.log.compaction.inline": "true", "hoodie.log.compaction.blocks.threshold": "2",
}  # fmt: skip
BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "3"}
PARQUET = {"hoodie.logfile.data.block.format": "parquet"}


def row(number: int, v: int, ts: int = 0) -> dict[str, Any]:
    """The row of a key, in a version; some columns are null in some rows."""
    return {
        "id": f"k{number:02d}", "kind": "ab"[number % 2], "region": ("EU", "US")[number % 2],
        "day": f"2026-01-0{1 + number % 3}", "ts": ts or v, "v": v,
        "price": None if number % 5 == 0 else f"{v}.{number % 100:02d}",
        "at": f"2026-01-01T0{number % 10}:00:00.{v % 1000:03d}Z",
        "tags": [] if number % 4 == 0 else [f"t{v}", "x"],
        "who": None if number % 7 == 0 else {"name": f"n{number}", "age": v},
        "m": {"a": v},
    }  # fmt: skip


def rows(numbers: range, v: int, ts: int = 0) -> list[dict[str, Any]]:
    return [row(each, v, ts) for each in numbers]


Step = tuple[str, list[dict[str, Any]], dict[str, str]]
START: Step = ("insert", rows(range(12), 1), {})
LOGS: list[Step] = [
    START,
    ("upsert", rows(range(3, 9), 5), {}),
    ("upsert", rows(range(5, 7), 3), {}),  # older by event time, newer by commit time
    ("delete", rows(range(7, 9), 9), {}),
    ("upsert", rows(range(8, 9), 4), {}),  # back after its delete, with a smaller time
    ("upsert", rows(range(10, 15), 6), {}),
]
MANY: list[Step] = [
    START, *(("upsert", rows(range(n % 5, n % 5 + 4), n), {}) for n in range(2, 14)),
]
TABLES: dict[str, tuple[dict[str, str], list[Step]]] = {
    "cow9": ({**ONE, **BY_TS}, [
        START,
        ("upsert", rows(range(4, 8), 2), {}),
        ("delete", rows(range(2, 3), 3), {}),
        ("upsert", rows(range(9, 14), 4), CLUSTER),
        ("insert_overwrite", rows(range(20, 22), 5), {}),
        ("insert", rows(range(30, 33), 6), PLAN_CLUSTERING),
    ]),
    "cow9_archived": ({**ONE, **BY_TS, **ARCHIVED}, MANY),
    "cow6_archived": ({**ONE, **BY_TS, **ARCHIVED, **V6}, MANY),
    "cow9_two": ({**TWO, **BY_TS, WRITE + "hive_style_partitioning": "true"}, [
        START,
        ("upsert", rows(range(4, 8), 2), {}),
        ("insert_overwrite", rows(range(6, 9), 3), {}),
    ]),
    "cow9_keyless": ({}, [START, ("insert", rows(range(12, 15), 2), {})]),
    "mor9": ({**ONE, **BY_TS, **MOR}, LOGS),
    "mor6": ({**ONE, **BY_TS, **MOR, **V6}, LOGS),
    "mor8": ({**ONE, **BY_TS, **MOR, **V8}, LOGS),
    "mor9_commit": ({**TWO, **MOR, **BY_COMMIT, **PARQUET}, LOGS),
    "mor9_compacted": ({**ONE, **BY_TS, **MOR}, [
        *LOGS[:4], (*LOGS[4][:2], COMPACT), LOGS[5], ("upsert", rows(range(4), 7), {}),
    ]),
    "mor6_planned": ({**ONE, **BY_TS, **MOR, **V6}, [
        *LOGS[:3], (*LOGS[3][:2], PLAN), LOGS[4], LOGS[5],
    ]),
    "mor9_planned": ({**ONE, **BY_TS, **MOR}, [
        *LOGS[:3], (*LOGS[3][:2], PLAN), LOGS[4], LOGS[5],
    ]),
    "mor9_joined": ({**ONE, **BY_TS, **MOR}, [*LOGS[:4], (*LOGS[4][:2], LOG_COMPACT), LOGS[5]]),
    "mor9_archived": ({**ONE, **BY_TS, **MOR, **ARCHIVED}, [
        *MANY[:5], (*MANY[5][:2], COMPACT), *MANY[6:],
    ]),
    "cow9_buckets": ({**ONE, **BY_TS, **BUCKETS}, [START, ("upsert", rows(range(4, 8), 2), {})]),
    "cow6_buckets": ({**TWO, **BY_TS, **BUCKETS, **V6}, [
        START, ("upsert", rows(range(4, 8), 2), {}),
    ]),
    "mor9_buckets": ({**ONE, **BY_TS, **MOR, **BUCKETS}, LOGS[:4]),
    "cow9_plain": ({**PLAIN, **BY_TS}, [START, ("upsert", rows(range(4, 8), 2), {})]),
    "cow6_plain": ({**PLAIN, **BY_TS, **V6}, [START, ("upsert", rows(range(4, 8), 2), {})]),
}  # fmt: skip

ON_READ = "hoodie.schema.on.read.enable"
MANUAL = {"hoodie.clean.automatic": "false", "hoodie.compact.inline": "false"}
RENAMED: dict[str, dict[str, str]] = {
    "cow9_renamed": {"type": "cow", **MANUAL},
    "cow6_renamed": {"type": "cow", **MANUAL, **V6},
    "mor9_renamed": {"type": "mor", **MANUAL},
    "mor6_renamed": {"type": "mor", **MANUAL, **V6},
}
"""Tables whose columns were changed by ALTER TABLE, and their properties."""
ALTERED = """
create table {t} (id string, ts bigint, a int, b float, c string, st struct<x:int,y:string>,
  l array<struct<p:int>>, region string) using hudi partitioned by (region) tblproperties
  (primaryKey = 'id', preCombineField = 'ts', {properties}) location '{path}';
insert into {t} values
  ('k00', 1, 10, 1.5, 'c0', named_struct('x', 1, 'y', 'y0'), array(named_struct('p', 1)), 'EU'),
  ('k01', 1, 11, 2.5, 'c1', named_struct('x', 2, 'y', 'y1'), array(named_struct('p', 2)), 'US'),
  ('k02', 1, 12, 0.1, 'c2', null, null, 'EU'),
  ('k03', 1, 13, 4.5, null, named_struct('x', 4, 'y', null), array(), 'US'),
  ('k04', 1, 14, 5.5, 'c4', named_struct('x', 5, 'y', 'y4'), null, 'EU'),
  ('k05', 1, 15, 6.5, 'c5', named_struct('x', 6, 'y', 'y5'), null, 'US');
alter table {t} rename column a to a2;
update {t} set a2 = 20, ts = 2 where id in ('k00', 'k01');
alter table {t} alter column a2 type bigint;
alter table {t} alter column b type double;
insert into {t} values
  ('k06', 3, 60000000000, 0.1, 'c6', named_struct('x', 7, 'y', 'y6'), null, 'EU');
alter table {t} drop column c;
alter table {t} rename column st.x to x2;
alter table {t} rename column st to s2;
update {t} set a2 = 40, ts = 4 where id in ('k02', 'k03');
alter table {t} add columns (c string);
alter table {t} add columns (s2.z int);
alter table {t} add columns (a string);
update {t} set c = 'new', a = 'anew', ts = 5 where id in ('k04', 'k06');
delete from {t} where id = 'k05';
alter table {t} alter column c after ts
"""


def times(table: Path) -> tuple[list[str], list[str]]:
    """The instants of a table's completed commits, and what increments count by."""
    folder = table / ".hoodie/timeline"
    folder = folder if folder.is_dir() else table / ".hoodie"
    pattern = re.compile(r"(\d{17})(?:_(\d{17}))?\.(commit|deltacommit|replacecommit)")
    found = sorted(m.groups() for each in folder.iterdir() if (m := pattern.fullmatch(each.name)))
    return [each[0] for each in found], sorted(each[1] or each[0] for each in found)


def make(hudi: Hudi, table: Path) -> None:
    """Every write of the table."""
    shutil.rmtree(table, ignore_errors=True)
    if table.name in RENAMED:
        alter(hudi, table)
        return
    options, steps = TABLES[table.name]
    for number, (operation, some, more) in enumerate(steps):
        said = {"hoodie.table.name": table.name, WRITE + "operation": operation, **options, **more}
        hudi("write", path=str(table), rows=some, schema=SCHEMA, options=said,
             mode="append" if number else "overwrite")  # fmt: skip
        if table.name == "cow9" and number == 1:
            at = times(table)[0][0]
            hudi("sql", text=f"call create_savepoint(path => '{table}', commit_time => '{at}')")


def alter(hudi: Hudi, table: Path) -> None:
    """Every statement of a table of `RENAMED`."""
    said = RENAMED[table.name]
    session = {
        ON_READ: "true", "hoodie.datasource.write.schema.allow.auto.evolution.column.drop": "true",
        "spark.sql.parquet.enableVectorizedReader": "false",
        **{key: value for key, value in said.items() if "." in key},
    }  # fmt: skip
    for key, value in session.items():
        hudi("sql", text=f"set {key}={value}")
    properties = ", ".join(f"'{key}' = '{value}'" for key, value in said.items())
    for each in ALTERED.split(";"):
        hudi("sql", text=each.format(t=table.name, path=table, properties=properties))
    for key in session:
        if key in V6:
            hudi("sql", text=f"reset {key}")


def answer(hudi: Hudi, table: Path) -> None:
    """Write down what Hudi reads; null where it refuses to."""

    def read(**how: str) -> list[dict[str, Any]] | None:
        try:
            if table.name in RENAMED:
                return list(hudi("read", path=str(table), options={ON_READ: "true", **how}))
            return list(hudi("read", path=str(table), options=how, select=list(COLUMNS)))
        except Refused as error:
            print(table.name, how, str(error)[:200], flush=True)
            return None

    query = "hoodie.datasource.query.type"
    answers: dict[str, Any] = {"snapshot": read(), "as_of": {}, "changes": []}
    if "mor" in table.name:
        answers["read_optimized"] = read(**{query: "read_optimized"})
    instants, counted = times(table)
    every = instants if table.name in RENAMED else (instants[-1], instants[len(instants) // 2])
    for at in {*every}:
        answers["as_of"][at] = read(**{"as.of.instant": at})
    middle = len(counted) // 2
    for begin, end in ((counted[0], None), (counted[middle], None),
                       (counted[middle - 1], counted[middle])):  # fmt: skip
        window = {"hoodie.datasource.read.begin.instanttime": begin}
        if end:
            window["hoodie.datasource.read.end.instanttime"] = end
        found = read(**{query: "incremental", **window})
        answers["changes"].append({"begin": begin, "end": end, "rows": found})
    (table / "answers.json").write_text(json.dumps(answers, indent=1, sort_keys=True))
    print(table.name, len(answers["snapshot"] or ()), "rows", flush=True)


def pack(folder: Path, into: Path) -> None:
    """Everything but Hadoop's checksums and the metadata table, which is most of the bytes."""
    with tarfile.open(into, "w:xz", preset=9) as tar:
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            inside = "/.hoodie/metadata/" in name
            if path.is_file() and not inside and not name.endswith((".crc", "/made")):
                tar.add(path, name)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    wanted = sys.argv[2:] or [*TABLES, *RENAMED]
    java = {"spark.driver.extraJavaOptions": f"-Duser.timezone={ZONE}"}
    hudi = Hudi(prepare(), "http://127.0.0.1:9", folder.parent / "hudi.log", **java)
    try:
        for name in wanted:
            if not (folder / name / "made").is_file():
                make(hudi, folder / name)
                (folder / name / "made").touch()
            answer(hudi, folder / name)
    finally:
        hudi.close()
    pack(folder, HERE / "tables.tar.xz")


if __name__ == "__main__":
    main()
