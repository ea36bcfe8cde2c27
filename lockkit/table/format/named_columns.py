"""The columns that a table's properties name: whether a write can find them in its rows.

They are its record keys, its partition fields, and the column that orders the versions of a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from lockkit.table.format.property_keys import (
    CUSTOM,
    KEY_CLASS,
    KEY_CLASSES,
    KEY_TYPE,
    ORDERING,
    PARTITION_FIELDS,
    PLAIN_NAME,
    PRECOMBINE,
    RECORD_KEYS,
    precombine_of,
)

if TYPE_CHECKING:
    import pyarrow as pa
SHOWN = 400


def named_columns(keys: Mapping[str, str]) -> dict[str, list[str]]:
    """The names in each property that a write obeys, as they stand there."""
    found = {key: keys.get(key, "").replace(" ", "") for key in (RECORD_KEYS, PARTITION_FIELDS)}
    if ordering := precombine_of(keys):
        found[ORDERING if keys.get(ORDERING) else PRECOMBINE] = ordering
    names = {key: text.split(",") for key, text in found.items() if text}
    if generator(keys) == CUSTOM:  # `kind:SIMPLE`
        names |= {key: [each.partition(":")[0] for each in named]
                  for key, named in names.items() if key == PARTITION_FIELDS}  # fmt: skip
    return names


def generator(keys: Mapping[str, str]) -> str:
    """The type of the key generator; "" if none that is known is named."""
    said = keys.get(KEY_TYPE) or keys.get(KEY_CLASS, "")
    return next((kind for kind, its in KEY_CLASSES.items() if said in (kind, its)), "")


def odd_names(keys: Mapping[str, str]) -> Iterator[str]:
    """Why names in the properties are none that lockkit can look for."""
    for key, names in named_columns(keys).items():
        where, cure = f"{key}={keys.get(key, '')[:80]}", f"correct {key}, or write with Hudi"
        if odd := [each for each in names if not PLAIN_NAME.fullmatch(each)]:
            yield (f"{where}: {odd[0][:60]!r} is no plain name of a column (letters, digits and "
                   f"underscores); {cure}")  # fmt: skip
        elif twice := [each for each in names if names.count(each) > 1]:
            yield f"{where}: {twice[0][:60]!r} is there twice; {cure}"


def lacking(keys: Mapping[str, str], schema: pa.Schema) -> Iterator[str]:
    """Why rows of the table have no value for what its properties name."""
    for key, names in named_columns(keys).items():
        for name in names:
            if PLAIN_NAME.fullmatch(name) and name not in schema.names:
                yield (f"{key}={keys[key][:80]}: the table has no column {name[:60]!r}, only "
                       f"{', '.join(schema.names)[:SHOWN]}; correct {key}, or let the table's "
                       "writers add the column")  # fmt: skip
