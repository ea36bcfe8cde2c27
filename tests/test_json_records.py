"""A JSON record keeps its meaning on the way into Spark, or ends the run."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from lockkit.spark.fields import has_field, new_fields
from lockkit.spark.json_records import plain_record, shape_of
from lockkit.table.errors import DamagedFile

SHAPE = pa.schema({
    "id": pa.string(), "at": pa.int64(), "d": pa.date32(), "us": pa.timestamp("us", "UTC"),
    "ms": pa.timestamp("ms", "UTC"), "local": pa.timestamp("us"), "dec": pa.decimal128(38, 2),
    "st": pa.struct({"x": pa.int32(), "in": pa.struct({"us": pa.timestamp("us", "UTC")})}),
    "l": pa.list_(pa.struct({"x": pa.int32()})), "m": pa.map_(pa.string(), pa.date32()),
})  # fmt: skip


@pytest.mark.parametrize(("given", "plain"), [
    # Avro's numbers of these types: by Hudi's MercifulJsonConverter they are taken as they are.
    ('{"us": 1764000000000000}', {"us": "2025-11-24T16:00:00Z"}),
    ('{"us": 1764000000000}', {"us": "1970-01-21T10:00:00Z"}),
    ('{"ms": 1764000000000}', {"ms": "2025-11-24T16:00:00Z"}),
    ('{"local": -1}', {"local": "1969-12-31T23:59:59.999999"}),
    ('{"d": 20000}', {"d": "2024-10-04"}), ('{"m": {"a": 0}}', {"m": {"a": "1970-01-01"}}),
    ('{"st": {"in": {"us": 0}}}', {"st": {"in": {"us": "1970-01-01T00:00:00Z"}}}),
    ('{"us": "2026-01-01T00:00:00Z"}', {"us": "2026-01-01T00:00:00Z"}),
    ('{"at": 1, "id": "caf\\u00e9 \\ud800", "l": [{"x": 1}, null]}',
     {"at": 1, "id": "caf\xe9 \ud800", "l": [{"x": 1}, None]}),
])  # fmt: skip
def test_a_number_in_a_times_place_is_in_the_unit_of_the_schema(given: str, plain: Any) -> None:
    for one, many in ((given, plain), (f"\n [{given}, {given}]", [plain, plain])):
        record, new = plain_record(one, SHAPE)
        assert json.loads(record) == many and not new


def test_times_have_the_units_of_the_avro_schema() -> None:
    def record(name: str, **fields: Any) -> Any:
        listed = [{"name": each, "type": kind} for each, kind in fields.items()]
        return {"type": "record", "name": name, "fields": listed}

    ms = {"type": "long", "logicalType": "timestamp-millis"}
    us = {"type": "long", "logicalType": "local-timestamp-micros"}
    avro = record("r", id="string", ms=["null", ms], us=us, st=record("s", ms=ms), l={
        "type": "array", "items": ["null", ms]}, m={"type": "map", "values": us})  # fmt: skip
    stamp = pa.timestamp("ms", "UTC")
    assert shape_of(json.dumps(avro)) == pa.schema({
        "id": pa.string(), "ms": stamp, "us": pa.timestamp("us"), "st": pa.struct({"ms": stamp}),
        "l": pa.list_(stamp), "m": pa.map_(pa.string(), pa.timestamp("us")),
    })  # fmt: skip


def test_a_number_keeps_its_digits() -> None:
    long = '{"dec":123456789012345678901234567890.12,"at":9007199254740993}'
    for one in (long, '{"dec":0.0000}', '{"dec":1.2300}', '{"dec":1e9}', '{"dec":5E-1}'):
        assert plain_record(one, SHAPE) == (one, [])


@pytest.mark.parametrize("given", [
    '{"id": "a"} {"id": "b"}', '{"id": "a"} trailing', '{"id": "a"', "{'id': 'a'}", '{"us": 1.5}',
    '{"us": 99999999999999999999}', '{"d": 9999999}', '{"dec": 1.239}', "[" * 100_000,
])  # fmt: skip
def test_what_would_be_dropped_or_changed_ends_the_run(given: str) -> None:
    with pytest.raises(DamagedFile, match="cannot be read"):
        plain_record(given, SHAPE)


def test_a_field_that_the_schema_lacks_is_named_in_a_struct_too() -> None:
    given = '[{"new": 1, "st": {"y": 1, "in": {"z": 1}}, "l": [{"x": 1}, {"w": 2}]}, {"new": 2}]'
    assert plain_record(given, SHAPE)[1] == ["new", "st.y", "st.in.z", "l.w"]


def test_a_field_of_a_struct_is_found_in_sparks_schema() -> None:
    types = pytest.importorskip("pyspark.sql.types", reason="needs PySpark")

    def schema(*inner: str) -> Any:
        struct = types.StructType([types.StructField(each, types.LongType()) for each in inner])
        return types.StructType([
            types.StructField("id", types.StringType()), types.StructField("st", struct),
            types.StructField("l", types.ArrayType(types.MapType(types.StringType(), struct))),
        ])  # fmt: skip

    assert new_fields(schema("x", "y"), schema("x")) == ["st.y", "l.y"]
    assert new_fields(schema("x"), schema("x", "y")) == []
    names = ("id", "st.x", "l.x", "st.y", "id.x", "no", "st.x.x")
    assert [has_field(schema("x"), each) for each in names] == [True] * 3 + [False] * 4
