"""Reads one value from Hudi's options, which may be text or a Python value.

If a setting has several names, the first one that is given counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from lockkit.table.errors import RefusedOption

T = TypeVar("T", bound=str)
SHOWN = 60
"""Characters of a wrong value that an error shows."""


def lowered(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options by their names in lower case; `TableError` for a name that cannot be one."""
    if not isinstance(options, Mapping):
        raise RefusedOption("options", "must be a dict of Hudi's options", value=repr(options)[:60])
    given: dict[str, Any] = {}
    for name, value in options.items():
        key = str(name).lower()
        if key != key.strip():
            raise RefusedOption(key[:SHOWN], "has a space around its name", "remove it")
        if key in given and str(given[key]) != str(value):
            raise RefusedOption(
                key[:SHOWN], "is given twice, in upper and lower case, with two values",
                "leave one of them out",
            )  # fmt: skip
        given[key] = value
    return given


def text(options: Mapping[str, Any], *keys: str, default: str = "") -> str:
    """The value of the first of `keys` that is given."""
    return next((str(options[key]) for key in keys if key in options), default)


def flag(options: Mapping[str, Any], *keys: str, default: bool = False) -> bool:
    """True or false, in any case of letters; else `TableError`."""
    value = text(options, *keys, default=str(default)).lower()
    if value not in ("true", "false"):
        raise RefusedOption(keys[0], "must be true or false", value=value[:SHOWN])
    return value == "true"


def whole(
    options: Mapping[str, Any], *keys: str, default: int, least: int = 1, most: int = 10**15
) -> int:
    """A whole number from `least` to `most`; else `TableError`."""
    value = text(options, *keys, default=str(default))
    plain = value.isascii() and value.isdecimal() and len(value) <= 18
    if not plain or not least <= int(value) <= most:
        raise RefusedOption(
            keys[0], f"must be a whole number from {least} to {most}", value=value[:SHOWN]
        )
    return int(value)


def one_of(options: Mapping[str, Any], *keys: str, of: tuple[T, ...], default: T) -> T:
    """One of the names `of`, in any case of letters; else `TableError`."""
    value = text(options, *keys, default=default)
    for each in of:
        if value.lower() == each.lower():
            return each
    raise RefusedOption(keys[0], f"must be one of {', '.join(of)}", value=value[:SHOWN])
