"""Keys and folders of Hudi's key generators: Apache Hudi and lockkit make the same of one row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hudi_world import Hudi

from lockkit.table import Table, read_table

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]
W, K = "hoodie.datasource.write.", "hoodie.keygen.timebased."
TIMED = {W + "recordkey.field": "id", W + "keygenerator.class":
         "org.apache.hudi.keygen.TimestampBasedKeyGenerator"}  # fmt: skip
SPARK = "id string, kind string, day string, ms bigint, v int"
SCHEMA = pa.schema({"id": pa.string(), "kind": pa.string(), "day": pa.string(), "ms": pa.int64(),
                    "v": pa.int32()})  # fmt: skip
V6 = {"hoodie.write.table.version": "6", "hoodie.write.auto.upgrade": "false"}
GENERATORS: dict[str, dict[str, str]] = {
    "epoch": {**TIMED, W + "partitionpath.field": "ms", K + "timestamp.type": "EPOCHMILLISECONDS",
              K + "output.dateformat": "yyyy/MM/dd"},
    "epoch6": {**TIMED, **V6, W + "partitionpath.field": "ms",
               K + "timestamp.type": "EPOCHMILLISECONDS", K + "output.dateformat": "yyyyMMdd"},
    "hours": {**TIMED, W + "partitionpath.field": "ms", K + "timestamp.type": "EPOCHMICROSECONDS",
              K + "output.dateformat": "yyyy-MM-dd HH", K + "timezone": "America/New_York",
              W + "hive_style_partitioning": "true", W + "partitionpath.urlencode": "true"},
    "unit": {**TIMED, W + "partitionpath.field": "ms", K + "timestamp.type": "SCALAR",
             K + "timestamp.scalar.time.unit": "seconds", K + "output.dateformat": "yyyy-'Y'"},
    "date": {**TIMED, W + "partitionpath.field": "day", K + "timestamp.type": "DATE_STRING",
             K + "input.dateformat": "yyyy-MM-dd", K + "output.dateformat": "yyyyMMdd"},
    "zones": {**TIMED, W + "partitionpath.field": "day", K + "timestamp.type": "DATE_STRING",
              K + "input.dateformat": "yyyy-MM-dd", K + "output.dateformat": "yyyyMMddHH",
              K + "input.timezone": "Asia/Tokyo", K + "output.timezone": "GMT+2"},
    "custom": {W + "recordkey.field": "id", W + "partitionpath.field": "kind:SIMPLE,day:SIMPLE",
               W + "keygenerator.class": "org.apache.hudi.keygen.CustomKeyGenerator"},
    "keyless": {W + "partitionpath.field": "kind"},
}  # fmt: skip


def row(number: int, v: int) -> dict[str, Any]:
    null = number == 3
    return {"id": f"k{number}", "kind": "ab"[number % 2], "v": v,
            "day": None if null else f"20{10 + number}-0{1 + number}-1{number}",
            "ms": None if null else -number if number > 5 else number * 7_000_000_001}  # fmt: skip


def of_a_row(rows: list[dict[str, Any]], name: str) -> dict[str, str]:
    return {each["id"]: each[name] for each in rows}


@pytest.mark.parametrize("name", GENERATORS)
def test_hudi_and_lockkit_make_the_same_key_and_folder_of_a_row(
    hudi: Hudi, tmp_path: Path, name: str
) -> None:
    path, options = str(tmp_path / name), {
        "hoodie.table.name": name, W + "operation": "insert", "hoodie.metadata.enable": "false",
        "hoodie.table.timeline.timezone": "UTC", **GENERATORS[name],
    }  # fmt: skip
    before, keyed = [row(number, 0) for number in range(4)], name != "keyless"
    hudi.write(path, before, schema=SPARK, mode="overwrite", options=options)
    with Table(f"file://{path}") as table:
        write = table.upsert if keyed else table.append
        write(pa.Table.from_pylist([row(number, 1) for number in range(2, 9)], SCHEMA))
        again = {**options, W + "operation": "upsert" if keyed else "insert"}
        hudi.write(path, [row(number, 2) for number in range(4, 9)], schema=SPARK, options=again)
        ours = read_table(table.store, table.clock, meta=True).to_pylist()
    theirs = hudi("read", path=path, options={}, select=["*"])
    meta = ("_hoodie_record_key", "_hoodie_partition_path", "id", "v")
    made = sorted(str([each[name] for name in meta]) for each in ours)
    assert made == sorted(str([each[name] for name in meta]) for each in theirs)
    assert len({each["_hoodie_record_key"] for each in ours}) == len(ours)
    if keyed:  # Hudi has found each row that lockkit wrote, in the folder where it looked
        assert of_a_row(ours, "v") == {f"k{n}": 0 if n < 2 else 1 if n < 4 else 2 for n in range(9)}
    else:
        assert len(ours) == 4 + 7 + 5
