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
    names: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    first, second = _named(found, "", names[0]), _named(known, "", names[1])
    met = set[tuple[int, int]]()

    def new(mine: Any, other: Any, path: str) -> list[str]:
        if (id(mine), id(other)) in met:
            return []  # a record that holds itself
        met.add((id(mine), id(other)))
        fields = list[str]()
        for name, kind in mine["fields"].items():
            if name not in other["fields"]:
                fields.append(path + name)
                continue
            one, two = _held(kind, names[0]), _held(other["fields"][name], names[1])
            if one is not None and two is not None:
                fields += new(one, two, f"{path}{name}.")
        return fields

    return new(first, second, "")


def _named(kind: Any, space: str, records: dict[str, Any]) -> Any:
    """The type with its records' full names: one without a namespace is in that around it."""
    match kind:
        case list():
            return [_named(each, space, records) for each in kind]
        case str():
            return kind if "." in kind or not space else f"{space}.{kind}"
        case {"type": "record", "name": name, "fields": fields}:
            space = name.rpartition(".")[0] or kind.get("namespace", space)
            made: dict[str, Any] = {"fields": {}}
            records[_named(name, space, {})] = made
            for each in fields:
                made["fields"][each["name"]] = _named(each["type"], space, records)
            return made
        case {"items": inner} | {"values": inner} | {"type": dict() | list() as inner}:
            return {"of": _named(inner, space, records)}
        case _:
            return None


def _held(kind: Any, records: dict[str, Any]) -> Any:
    """The record that an Avro type is, or that it holds; None if there is none."""
    match kind:
        case list():
            return next((found for each in kind if (found := _held(each, records))), None)
        case str():
            return records.get(kind)
        case {"fields": _}:
            return kind
        case {"of": inner}:
            return _held(inner, records)
        case _:
            return None
