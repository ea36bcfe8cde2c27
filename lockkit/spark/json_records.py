"""JSON records as Hudi's streamer reads them, written anew in the form that Spark reads.

Spark takes a number in a timestamp's place for seconds, and drops fields that it does not know,
digits of a decimal, and what follows a record.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as is_

from lockkit.table.errors import DamagedFile
from lockkit.table.format.schema_reading import arrow_schema

_EPOCH = datetime(1970, 1, 1)
_PER_UNIT_US = {"s": 1_000_000, "ms": 1_000, "us": 1}


class _Number(str):
    """A number, by its own digits."""

    __slots__ = ()


def shape_of(avro: str) -> pa.Schema:
    """The columns of an Avro schema, with the units of its times."""
    kinds = {each["name"]: each["type"] for each in json.loads(avro)["fields"]}
    return pa.schema([
        (each.name, _in_its_unit(each.type, kinds[each.name])) for each in arrow_schema(avro)
    ])  # fmt: skip


def _in_its_unit(kind: pa.DataType, avro: Any) -> pa.DataType:
    if isinstance(avro, list):
        avro = next(each for each in avro if each != "null")
    if is_.is_timestamp(kind) and avro["logicalType"].endswith("-millis"):
        return pa.timestamp("ms", kind.tz)
    if is_.is_struct(kind):
        kinds = {each["name"]: each["type"] for each in avro["fields"]}
        return pa.struct([(each.name, _in_its_unit(each.type, kinds[each.name])) for each in kind])
    if is_.is_list(kind):
        return pa.list_(_in_its_unit(kind.value_type, avro["items"]))
    if is_.is_map(kind):
        return pa.map_(pa.string(), _in_its_unit(kind.item_type, avro["values"]))
    return kind


def plain_record(text: str, shape: pa.Schema) -> tuple[str, list[str]]:
    """The same record, or array of records, and the fields that `shape` lacks: `st.x` in a struct.

    Raises `DamagedFile` if it is not JSON, or if a number does not fit its column.
    """
    try:
        found = json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=_Number)
        new = list[str]()
        several = isinstance(found, list)
        records = [_fields(each, shape, "", new) for each in (found if several else [found])]
        return _text(records if several else records[0]), list(dict.fromkeys(new))
    except (ArithmeticError, RecursionError, ValueError) as error:
        why = f"cannot be read: {str(error)[:150]}"
        raise DamagedFile(f"a record of {len(text)} characters", why) from None


def _fields(value: Any, known: Iterable[pa.Field], path: str, new: list[str]) -> Any:
    if not isinstance(value, dict):
        return value
    kinds = {each.name: each.type for each in known}
    new += [path + name for name in value if name not in kinds]
    return {name: _value(each, kinds[name], path + name, new)
            for name, each in value.items() if name in kinds}  # fmt: skip


def _value(value: Any, kind: pa.DataType, path: str, new: list[str]) -> Any:
    if is_.is_struct(kind):
        return _fields(value, kind, path + ".", new)
    if is_.is_list(kind) and isinstance(value, list):
        return [_value(each, kind.value_type, path, new) for each in value]
    if is_.is_map(kind) and isinstance(value, dict):
        return {name: _value(each, kind.item_type, path, new) for name, each in value.items()}
    if not isinstance(value, _Number):
        return value
    if is_.is_timestamp(kind):  # in the unit of the schema
        at = _EPOCH + timedelta(microseconds=int(value) * _PER_UNIT_US[kind.unit])
        return at.isoformat() + ("Z" if kind.tz else "")
    if is_.is_date(kind):
        return (_EPOCH + timedelta(days=int(value))).date().isoformat()
    if is_.is_decimal(kind) and _decimals(Decimal(value)) > kind.scale:
        raise ValueError(f"{path[:60]} is {value[:40]}, and has at most {kind.scale} decimals")
    return value


def _decimals(number: Decimal) -> int:
    """How many digits it has behind the point."""
    _, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"{number} is no decimal")
    zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
    return -exponent - zeros if number else 0


def _text(value: Any) -> str:
    """JSON with each number as it was."""
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_text, value)) + "]"
    return json.dumps(value)
