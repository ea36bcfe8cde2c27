"""Columns by their ids, in a table whose columns were renamed, dropped or moved by Hudi.

With `hoodie.schema.on.read.enable` Hudi numbers all columns and fields, and rewrites no file. A
version of the schema is named by an instant. A file, or a log block, has the columns of the newest
version up to the instant that wrote it; a column of it is the table's if the two have one id.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockkit.table.errors import DamagedFile

if TYPE_CHECKING:
    import pyarrow as pa
SCHEMAS_PREFIX = ".hoodie/.schema/"
HISTORY_FILE = re.compile(r"\.hoodie/\.schema/([0-9]{14}|[0-9]{17})(?:_[0-9]+)?\.schemacommit")
"""All versions up to that of a commit, in JSON."""
OWN = "_hoodie_"
Fields = Mapping[int, tuple[str, Any]]
"""By id: the name, and what is inside: `Fields`, the inside of elements in a tuple, or None."""
Stored = Mapping[str, tuple[str, Any]]
"""By the table's names: the name of a file's column, and its type with the table's names."""


@dataclass(frozen=True, slots=True)
class ColumnIds:
    """The table's columns, and those of each version, oldest first."""

    now: Fields
    versions: tuple[tuple[int, Fields], ...]

    def stored(self, instant: str, schema: pa.Schema) -> Stored | None:
        """Where the table's columns are in a file of `schema` that `instant` wrote.

        A column that is not there is not in the file. None: no version is as old, so that columns
        are matched by name, as Hudi does.
        """
        at = bisect_right(self.versions, int(instant), key=lambda each: each[0])
        if not at:
            return None
        found: dict[str, tuple[str, Any]] = {
            each.name: (each.name, each.type) for each in schema if each.name.startswith(OWN)
        }
        for number, (name, inside) in self.versions[at - 1][1].items():
            if number in self.now and name in schema.names:
                now, inside_now = self.now[number]
                found[now] = name, _renamed(schema.field(name).type, inside, inside_now)
        return found


def parse_ids(key: str, latest: str, history: bytes) -> ColumnIds:
    """The ids of a commit's `latest_schema`, and of `key`, the history; `DamagedFile`."""
    try:
        versions = {int(each.get("version_id", 0)): _fields(each)
                    for each in json.loads(history)["schemas"]}  # fmt: skip
        now = _fields(json.loads(latest))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = f"has no schemas of Hudi, or a commit has none ({type(error).__name__})"
        raise DamagedFile(key, why, "restore it from a backup") from None
    return ColumnIds(now, tuple(sorted(versions.items(), key=lambda each: each[0])))


def keeps_names(key: str, history: bytes) -> bool:
    """Whether each id has one name in all versions, and each name one id: then files may be read by
    names. `DamagedFile` as from `parse_ids`."""
    names: dict[int, str] = {}
    ids: dict[tuple[int, str], int] = {}

    def keeps(fields: Fields, parent: int) -> bool:
        for number, (name, inside) in fields.items():
            while isinstance(inside, tuple):
                inside = inside[0]
            if names.setdefault(number, name) != name:
                return False
            if ids.setdefault((parent, name), number) != number:
                return False
            if isinstance(inside, dict) and not keeps(inside, number):
                return False
        return True

    versions = parse_ids(key, '{"fields": []}', history).versions
    return all(keeps(fields, -1) for _, fields in versions)


def _fields(said: Any) -> dict[int, tuple[str, Any]]:
    return {int(each["id"]): (str(each["name"]), _inside(each["type"])) for each in said["fields"]}


def _inside(said: Any) -> Any:
    match said if isinstance(said, str) else said["type"]:
        case "record":
            return _fields(said)
        case "array":
            return (_inside(said["element"]),)
        case "map":
            return (_inside(said["value"]),)
        case _:
            return None


def _renamed(kind: pa.DataType, then: Any, now: Any) -> pa.DataType:
    """`kind`, with the names of `now`. A dropped field gets a name that no other field has."""
    import pyarrow as pa
    import pyarrow.types as is_

    if is_.is_struct(kind) and isinstance(then, dict) and isinstance(now, dict):
        ids = {name: number for number, (name, _) in then.items()}
        fields = []
        for place, each in enumerate(kind):
            number = ids.get(each.name, -1)
            if number in now:
                inside = _renamed(each.type, then[number][1], now[number][1])
                each = each.with_name(now[number][0]).with_type(inside)
            else:
                each = each.with_name(f"\0{place}")
            fields.append(each)
        return pa.struct(fields)
    if isinstance(then, tuple) and isinstance(now, tuple):
        if is_.is_map(kind):
            return pa.map_(kind.key_field, _with(kind.item_field, then[0], now[0]))
        if is_.is_list(kind):
            return pa.list_(_with(kind.value_field, then[0], now[0]))
    return kind


def _with(field: pa.Field, then: Any, now: Any) -> pa.Field:
    return field.with_type(_renamed(field.type, then, now))


def as_now(rows: Any, stored: Stored, schema: pa.Schema) -> pa.Table:
    """A file's rows with the table's columns of `schema`, in its types; nulls for what they lack.

    :param rows: a table or a batch that has all columns of `stored` that `schema` has.
    """
    import pyarrow as pa

    from lockkit.table.format.promotion import promoted

    def column(field: pa.Field) -> Any:
        if field.name not in stored:
            return pa.nulls(rows.num_rows, field.type)
        name, kind = stored[field.name]
        found = rows[name]
        if found.type == kind:
            return promoted(found, field.type, field.name)
        chunks = found.chunks if isinstance(found, pa.ChunkedArray) else [found]
        return promoted(pa.chunked_array([each.view(kind) for each in chunks], kind), field.type,
                        field.name)  # fmt: skip

    return pa.table([column(each) for each in schema], schema=schema)
