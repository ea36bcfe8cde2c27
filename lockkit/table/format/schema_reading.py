"""The Arrow columns of a commit's Avro schema."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from lockkit.table.errors import DamagedFile, UnsupportedTable
from lockkit.table.format.kept import kept
from lockkit.table.format.schema import COLUMNS_MAX, DEPTH_MAX, META_COLUMNS, SHOWN, avro_words

if TYPE_CHECKING:
    import pyarrow as pa


@kept(16, 100_000)
def arrow_schema(avro: str) -> pa.Schema:
    """The columns that a commit's Avro schema names; `TableError` where it makes no sense here."""
    import pyarrow as pa

    try:
        said = json.loads(avro)
        fields = [(str(each["name"]), each["type"]) for each in said["fields"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        why = f"is not an Avro record ({type(error).__name__}): its commit is damaged"
        raise DamagedFile("the table's schema", why) from None
    if len(fields) > COLUMNS_MAX:
        why = f"has {len(fields)} columns; a table has at most {COLUMNS_MAX}"
        raise UnsupportedTable("the table's schema", why)
    return pa.schema(
        [(name, _from_avro(kind, name, 0)) for name, kind in fields if name not in META_COLUMNS]
    )


def _from_avro(kind: Any, name: str, depth: int) -> pa.DataType:
    import pyarrow as pa

    why = f"has Avro type {str(kind)[:SHOWN]}, which is not read here"
    unknown = UnsupportedTable(f"column {name[:SHOWN]!r}", why)
    if depth > DEPTH_MAX:
        raise unknown
    if isinstance(kind, list):
        kinds = [each for each in kind if each != "null"]
        if len(kinds) != 1:
            raise unknown
        return _from_avro(kinds[0], name, depth + 1)
    if isinstance(kind, str):
        kind = {"type": kind}
    if not isinstance(kind, dict):
        raise unknown
    try:
        match kind.get("logicalType"), kind["type"]:
            case ("timestamp-micros" | "timestamp-millis"), "long":
                return pa.timestamp("us", "UTC")
            case ("local-timestamp-micros" | "local-timestamp-millis"), "long":
                return pa.timestamp("us")
            case "time-millis", "int":
                return pa.time32("ms")
            case "time-micros", "long":
                return pa.time64("us")
            case "decimal", ("fixed" | "bytes"):
                return pa.decimal128(kind["precision"], kind.get("scale", 0))
            case _, "array":
                return pa.list_(_from_avro(kind["items"], name, depth + 1))
            case _, "map":
                return pa.map_(pa.string(), _from_avro(kind["values"], name, depth + 1))
            case _, "record":
                return pa.struct([(str(each["name"]), _from_avro(each["type"], name, depth + 1))
                                  for each in kind["fields"]])  # fmt: skip
            case _, "enum":
                return pa.string()
            case _, "fixed":
                return pa.binary()
            case logical, plain:
                for known, word in avro_words(pa):
                    if word in (plain, {"type": plain, "logicalType": logical}):
                        if logical != "date" or known == pa.date32():
                            return known
    except (KeyError, TypeError, ValueError, pa.ArrowInvalid):
        pass
    raise unknown from None
