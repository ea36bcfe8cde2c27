"""A filter: which rows a reader wants, as (column, operator, value), all of which must hold.

hudi-rs's form, so that one filter can be put to both. A row whose column is null meets none of
them, as in SQL. A filter on the partition's field also excludes whole partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lockkit.errors import TableError
from lockkit.table.format.partition import partition_value
from lockkit.table.format.properties import TableConfig

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

Filter = tuple[str, str, Any]
FILTERS_MAX = 100
SNAPSHOT, READ_OPTIMIZED = "snapshot", "read_optimized"
"""Hudi's types of query; of a copy-on-write table they are the same."""


def expression(filters: Sequence[Filter], schema: pa.Schema) -> pc.Expression | None:
    """All of the filters as one expression; `TableError` says what is wrong with one of them.

    A value is read as the column's type: "5" will do for a whole number.
    """
    if len(filters) > FILTERS_MAX:
        raise TableError(f"{len(filters)} filters; a read takes at most {FILTERS_MAX}")
    whole = None
    for each in filters:
        if not isinstance(each, tuple | list) or len(each) != 3:
            raise TableError(f"filter {str(each)[:60]!r}: a list of (column, operator, value)")
        one = _one(each, schema)
        whole = one if whole is None else whole & one
    return whole


def _one(given: Filter, schema: pa.Schema) -> pc.Expression:
    import pyarrow as pa
    import pyarrow.compute as pc

    name, operator, value = given
    if name not in schema.names:
        raise TableError(
            f"no column {name[:60]!r} to filter by; there are {', '.join(schema.names)[:400]}"
        )
    kind, field = schema.field(name).type, pc.field(name)

    def read_as(value: Any) -> pa.Scalar:
        try:
            return pa.scalar(value).cast(kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
            raise TableError(
                f"filter {name} {operator} {str(value)[:60]!r}: that is no {kind}"
            ) from None

    match operator.lower():
        case "=" | "==":
            return field == read_as(value)
        case "!=":
            return field != read_as(value)
        case "<":
            return field < read_as(value)
        case "<=":
            return field <= read_as(value)
        case ">":
            return field > read_as(value)
        case ">=":
            return field >= read_as(value)
        case ("in" | "not in") as word:
            if isinstance(value, str):
                raise TableError(f"filter {name} {word} {value[:60]!r}: give a list of values")
            among = field.isin(pa.array([read_as(each).as_py() for each in value], kind))
            return among if word == "in" else field.is_valid() & ~among
    raise TableError(
        f"filter {name} {operator[:20]!r}: the operators are =, !=, <, <=, >, >=, in, not in"
    )


def partitions_of(
    filters: Sequence[Filter], config: TableConfig, schema: pa.Schema
) -> Callable[[str], bool]:
    """Whether a partition may hold a row that is wanted, by the value in its path.

    Only for types that the path writes as they are read; otherwise every partition may.
    """
    import pyarrow as pa
    import pyarrow.types as is_

    checks: list[tuple[str, pa.DataType, Any]] = []
    for name in config.partition_fields:
        about = [each for each in filters if each[0] == name]
        if about and name in schema.names:
            kind = schema.field(name).type
            if is_.is_string(kind) or is_.is_integer(kind) or is_.is_date32(kind):
                checks.append((name, kind, expression(about, schema)))

    def may_hold(partition: str) -> bool:
        for name, kind, wanted in checks:
            text = partition_value(config, partition, name)
            if text is None:
                continue
            try:
                value = pa.array([text]).cast(kind)
            except pa.ArrowInvalid:
                continue  # a folder that somebody else named
            if not pa.table({name: value}).filter(wanted).num_rows:
                return False
        return True

    return may_hold
