"""Filters: which rows a reader wants, as (column, operator, value); all of them must hold.

The form is hudi-rs's, so that one filter works with both. As in SQL, a row whose column is null
does not match. A filter on the partition's field also excludes whole partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lockkit.table.errors import RefusedOption
from lockkit.table.format.partition import NO_VALUE, unescape
from lockkit.table.format.properties import TableConfig

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

Filter = tuple[str, str, Any]
FILTERS_MAX = 100
SNAPSHOT, READ_OPTIMIZED = "snapshot", "read_optimized"
"""Hudi's types of query, which give the same rows of a copy-on-write table."""


def as_filters(filters: object) -> tuple[Filter, ...]:
    """The filters that a caller gives; `TableError` for one that is no (column, operator, value).

    Whether the column is there, and the value fits it, is checked by `expression`.
    """
    cure = "give a list of (column, operator, value)"
    if isinstance(filters, str | bytes | Mapping) or not isinstance(filters, Iterable):
        raise RefusedOption("filters", "must be a list", cure, value=repr(filters)[:60])
    found = tuple(filters)
    if len(found) > FILTERS_MAX:
        raise RefusedOption("filters", f"are {len(found)}; a read takes at most {FILTERS_MAX}")
    for each in found:
        if not isinstance(each, tuple | list) or len(each) != 3:
            raise RefusedOption(f"filter {str(each)[:60]!r}", "is not a filter", cure)
        if not (isinstance(each[0], str) and isinstance(each[1], str)):
            why = "must begin with the name of a column and an operator, both str"
            raise RefusedOption(f"filter {str(each)[:60]!r}", why, cure)
    return found


UNEQUAL = ("!=", "not in")


def expression(filters: Sequence[Filter], schema: pa.Schema) -> pc.Expression | None:
    """All filters as one expression; `TableError` for a filter that makes no sense.

    A value is converted to the column's type: "5" works for a whole number.
    """
    whole = None
    for each in as_filters(filters):
        one = _one(each, schema)
        whole = one if whole is None else whole & one
    return whole


def _one(given: Filter, schema: pa.Schema) -> pc.Expression:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as is_

    name, operator, value = given
    if name not in schema.names:
        raise RefusedOption(
            f"filter {name[:60]!r}", f"names no column; there are {', '.join(schema.names)[:400]}"
        )
    kind, field = schema.field(name).type, pc.field(name)

    def read_as(value: Any) -> pa.Scalar:
        try:
            return pa.scalar(value).cast(kind)
        except (pa.ArrowException, OverflowError, UnicodeError):
            raise RefusedOption(
                f"filter {name} {operator} {str(value)[:60]!r}", f"has a value that is no {kind}"
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
            if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
                raise RefusedOption(
                    f"filter {name} {word} {str(value)[:60]!r}", "has one value",
                    "give a list of values",
                )  # fmt: skip
            known = [read_as(each).as_py() for each in value if each is not None]
            if any(each != each for each in known):  # row groups are skipped without regard to it
                raise RefusedOption(f"filter {name[:60]} {word}", "has NaN, which equals no number")
            among = field.isin(pa.array(known, kind))  # a null in there would match null rows
            if 0.0 in known and is_.is_floating(kind):  # Arrow's `isin` tells the two zeros apart
                among |= field == pa.scalar(0.0, kind)
            return among if word == "in" else field.is_valid() & ~among
    why = "is refused: the operators are =, !=, <, <=, >, >=, in, not in"
    raise RefusedOption(f"filter {name} {operator[:20]!r}", why)


def partitions_of(
    filters: Sequence[Filter], config: TableConfig, schema: pa.Schema
) -> Callable[[str], bool]:
    """Whether a partition may have a matching row, according to the value in its path.

    Types that a path spells differently than a column exclude no partition, and in a table whose
    rows may lie elsewhere nothing does.
    """
    import pyarrow as pa
    import pyarrow.types as is_

    checks: list[tuple[str, pa.DataType, Any]] = []
    for name in () if config.elsewhere else config.partition_fields:
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
                continue  # another program named this folder
            if not pa.table({name: value}).filter(wanted).num_rows:
                return False
        return True

    return may_hold


def partition_value(config: TableConfig, path: str, field: str | None = None) -> str | None:
    """The value of the only partition field in a path; None for null, without partitions, or if
    it is ambiguous or a formatted time.
    """
    fields = config.partition_fields
    if not fields or config.generator:
        return None
    folders = path.split("/") if len(fields) > 1 else [path]
    field = field or fields[0]
    if len(folders) != len(fields):
        return None
    folder = folders[fields.index(field)]
    text = folder.removeprefix(f"{field}=") if config.hive_style else folder
    return None if text == NO_VALUE else unescape(text) if config.urlencode else text
