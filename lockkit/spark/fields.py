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


def new_avro_fields(found: Any, known: Any) -> list[str]:
    """The fields of one Avro record that another one lacks, both as parsed JSON."""
    names = _records(found, {}), _records(known, {})
    met = set[tuple[int, int]]()

    def new(mine: Any, other: Any, path: str) -> list[str]:
        if (id(mine), id(other)) in met:
            return []  # a record that holds itself
        met.add((id(mine), id(other)))
        kinds, fields = {each["name"]: each["type"] for each in other["fields"]}, list[str]()
        for each in mine["fields"]:
            if each["name"] not in kinds:
                fields.append(path + each["name"])
                continue
            one, two = _held(each["type"], names[0]), _held(kinds[each["name"]], names[1])
            if one is not None and two is not None:
                fields += new(one, two, f"{path}{each['name']}.")
        return fields

    return new(found, known, "")


def _records(said: Any, into: dict[str, Any]) -> dict[str, Any]:
    """Every record in a schema, by its name without the namespace."""
    if isinstance(said, list):
        for each in said:
            _records(each, into)
    elif isinstance(said, dict):
        if said.get("type") == "record":
            into[said["name"].rpartition(".")[2]] = said
        for each in said.values():
            _records(each, into)
    return into


def _held(kind: Any, records: dict[str, Any]) -> Any:
    """The record that an Avro type is, or that it holds; None if there is none."""
    match kind:
        case list():
            return next((found for each in kind if (found := _held(each, records))), None)
        case str():
            return records.get(kind.rpartition(".")[2])
        case {"type": "record"}:
            return kind
        case {"items": inner} | {"values": inner} | {"type": dict() | list() as inner}:
            return _held(inner, records)
        case _:
            return None
