"""The fields that one Spark schema has and another one lacks, in structs too."""

from __future__ import annotations

from typing import Any


def new_fields(found: Any, known: Any, path: str = "") -> list[str]:
    """The fields of one Spark schema that another one lacks: `st.x` in a struct."""
    new = list[str]()
    kinds = {each.name: each.dataType for each in known}
    for each in found:
        if each.name not in kinds:
            new.append(path + each.name)
            continue
        mine, other = _inner(each.dataType), _inner(kinds[each.name])
        if mine is not None and other is not None:
            new += new_fields(mine, other, f"{path}{each.name}.")
    return new


def _inner(kind: Any) -> Any:
    """The struct that a type is, or that it holds; None if there is none."""
    while (inner := getattr(kind, "elementType", getattr(kind, "valueType", None))) is not None:
        kind = inner
    return kind if hasattr(kind, "fields") else None


def has_field(schema: Any, name: str) -> bool:
    """Whether a schema has this field; `st.x` may be in a struct."""
    if name in schema.names:
        return True
    first, _, rest = name.partition(".")
    inner = _inner(schema[first].dataType) if first in schema.names else None
    return bool(rest) and inner is not None and has_field(inner, rest)
