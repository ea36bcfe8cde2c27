"""Partition folders of Hudi's TimestampBasedKeyGenerator: a time, formatted by a pattern.

The table's properties hold the settings (`hoodie.keygen.timebased.*`). Only what Joda-Time and this
module spell alike is accepted: whole numbers and strings, and patterns of `yyyy`, `MM`, `dd`, `HH`,
`mm`, `ss`, `SSS` and literals.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from lockkit.table.errors import RefusedRows
from lockkit.table.format.property_keys import CUSTOM, KEY_CLASS, KEY_CLASSES, KEY_TYPE, TIMESTAMP

if TYPE_CHECKING:
    from lockkit.table.format.properties import TableConfig

PREFIX = "hoodie.keygen.timebased."
TYPE, UNIT = "timestamp.type", "timestamp.scalar.time.unit"
IN, OUT, ZONE = "input.dateformat", "output.dateformat", "timezone"
IN_ZONE, OUT_ZONE = "input.timezone", "output.timezone"
DELIMITER = "input.dateformat.list.delimiter.regex"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PER_UNIT_US = {
    "MICROSECONDS": 1, "MILLISECONDS": 1_000, "SECONDS": 1_000_000, "MINUTES": 60_000_000,
    "HOURS": 3_600_000_000, "DAYS": 86_400_000_000,
}  # fmt: skip
_UNIT_OF = {"EPOCHMILLISECONDS": "MILLISECONDS", "EPOCHMICROSECONDS": "MICROSECONDS",
            "UNIX_TIMESTAMP": "SECONDS"}  # fmt: skip
_TOKEN = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']+")
_FIELD = {"yyyy": "year", "MM": "month", "dd": "day", "HH": "hour", "mm": "minute", "ss": "second",
          "SSS": "microsecond"}  # fmt: skip


def generator_of(
    keys: Mapping[str, str], partition_by: str
) -> tuple[tuple[tuple[str, str], ...], str]:
    """The type and settings of such a key generator, and its partition fields."""
    classes = {KEY_CLASSES[each]: each for each in (TIMESTAMP, CUSTOM)}
    said = keys.get(KEY_TYPE) or keys.get(KEY_CLASS, "")
    kind = classes.get(said, said)
    if kind == CUSTOM:  # `kind:SIMPLE`
        return ((KEY_TYPE, kind),), ",".join(
            each.partition(":")[0] for each in partition_by.split(",")
        )
    return ((KEY_TYPE, kind), *sorted(settings_in(keys).items())), partition_by


def settings_in(keys: Mapping[str, str]) -> dict[str, str]:
    return {key.removeprefix(PREFIX): value for key, value in keys.items()
            if key.startswith(PREFIX)}  # fmt: skip


def reasons(settings: Mapping[str, str]) -> Iterator[str]:
    """Why these settings, without `PREFIX`, are not obeyed here."""
    kind, unit = settings.get(TYPE, ""), settings.get(UNIT, "SECONDS").upper()
    if kind not in (*_UNIT_OF, "SCALAR", "DATE_STRING"):
        yield f"{PREFIX}{TYPE}={kind[:40]}: this kind of timestamp is not written here"
    if kind == "SCALAR" and unit not in _PER_UNIT_US:
        yield f"{PREFIX}{UNIT}={unit[:40]}: this unit is not known here"
    patterns = [(OUT, settings.get(OUT, ""))]
    if kind == "DATE_STRING":
        patterns += [(IN, settings.get(IN, ""))]
        if settings.get(DELIMITER, ",") != "," or "," in settings.get(IN, ""):
            yield f"{PREFIX}{IN}: a list of formats is not read here"
    for key, pattern in patterns:
        if not pattern or list(_other_tokens(pattern)):
            yield f"{PREFIX}{key}={pattern[:60]}: this pattern is not spelled here as Hudi does"
        elif key == IN and not _has_year(pattern):
            yield f"{PREFIX}{key}={pattern[:60]}: a day without its year is not read here"
    for key in (ZONE, IN_ZONE, OUT_ZONE):
        try:
            _zone(settings.get(key) or "UTC")
        except ValueError:
            yield f"{PREFIX}{key}={settings[key][:40]}: this time zone is not known here"
    known = {TYPE, UNIT, IN, OUT, ZONE, IN_ZONE, OUT_ZONE, DELIMITER}
    for key in sorted(settings.keys() - known):
        yield f"{PREFIX}{key[:60]} is not known here"


def folder_of(config: TableConfig, field: str, value: object) -> object:
    """A row's partition value as it becomes a folder; null is the number 1, as in Hudi."""
    settings = dict(config.generator)
    if settings[KEY_TYPE] != TIMESTAMP:
        return value
    zone = _zone(settings.get(ZONE) or settings.get(OUT_ZONE) or "UTC")
    if value is None and settings[TYPE] == "DATE_STRING":
        first = _EPOCH.astimezone(_zone(settings.get(ZONE) or settings.get(IN_ZONE) or "UTC"))
        value = _formatted(settings[IN], first + timedelta(milliseconds=1))
    value = 1 if value is None else value
    if settings[TYPE] == "EPOCHMICROSECONDS" and isinstance(value, datetime):
        # Hudi stores a time as its microseconds.
        value = (value.replace(tzinfo=value.tzinfo or UTC) - _EPOCH) // timedelta(microseconds=1)
    if settings[TYPE] == "DATE_STRING" and isinstance(value, str):
        at = _parsed(settings, field, value)
    elif settings[TYPE] != "DATE_STRING" and type(value) is int:
        unit = _UNIT_OF.get(settings[TYPE]) or settings.get(UNIT, "SECONDS").upper()
        us = value * _PER_UNIT_US[unit]
        # Java truncates towards zero.
        try:
            at = _EPOCH + timedelta(milliseconds=abs(us) // 1_000 * (1 if us >= 0 else -1))
        except OverflowError:
            raise _refused(field, value, "is no time of the years 1 to 9999") from None
    else:
        raise _refused(field, value, f"({type(value).__name__}) is not what {settings[TYPE]} takes")
    try:
        return _formatted(settings[OUT], at.astimezone(zone))
    except OverflowError:
        raise _refused(field, value, "is no time of the years 1 to 9999") from None


def _parsed(settings: Mapping[str, str], field: str, value: str) -> datetime:
    pattern = "".join(
        rf"(?P<{_FIELD[word]}>\d{{{len(word)}}})" if word else re.escape(literal)
        for word, literal in _tokens(settings[IN])
    )  # fmt: skip
    if match := re.fullmatch(pattern, value, re.ASCII):
        found = {name: int(text) for name, text in match.groupdict().items()}
        found["microsecond"] = found.get("microsecond", 0) * 1_000
        zone = _zone(settings.get(ZONE) or settings.get(IN_ZONE) or "UTC")
        try:
            at = datetime(**{"year": 1970, "month": 1, "day": 1, **found}, tzinfo=zone)
            if at.astimezone(UTC).astimezone(zone).replace(fold=0) == at:
                return at
        except (ValueError, OverflowError):
            pass
        else:
            raise _refused(field, value, f"is no time in {zone}: clocks were put forward")
    raise _refused(field, value, f"does not have the form {settings[IN]}")


def _formatted(pattern: str, at: datetime) -> str:
    at = at.replace(microsecond=at.microsecond // 1_000)
    return "".join(f"{getattr(at, _FIELD[word]):0{len(word)}d}" if word else literal
                   for word, literal in _tokens(pattern))  # fmt: skip


def _tokens(pattern: str) -> Iterator[tuple[str, str]]:
    """(word, literal text) of each part; the word is "" for a literal."""
    for match in _TOKEN.finditer(pattern):
        if match[2]:
            yield match[0], match[0]
        else:
            quoted = match[1]
            yield "", match[0] if quoted is None else quoted.replace("''", "'") or "'"


def _has_year(pattern: str) -> bool:
    """Whether a day is of a named year; Joda-Time takes 2000 where a month or day has none."""
    words = {word for word, _ in _tokens(pattern)}
    return "yyyy" in words or not words & {"MM", "dd"}


def _other_tokens(pattern: str) -> Iterator[str]:
    parts = list(_TOKEN.finditer(pattern))
    if "".join(each[0] for each in parts) != pattern:
        yield pattern
    words = [each[0] for each in parts if each[2]]
    yield from (each for each in words if each not in _FIELD or words.count(each) > 1)


def _zone(name: str) -> tzinfo:
    """Java's time zone by this name. Raises `ValueError` where Java would take GMT instead."""
    if name in ("UTC", "GMT"):
        return UTC
    if match := re.fullmatch(r"GMT([+-])(\d{1,2}):?(\d{2})?", name, re.ASCII):
        hours, minutes = int(match[2]), int(match[3] or 0)
        if hours > 23 or minutes > 59:
            raise ValueError(name)
        minutes += hours * 60
        return timezone(timedelta(minutes=minutes if match[1] == "+" else -minutes))
    if "/" not in name or name.startswith(("posix/", "right/")):
        raise ValueError(name)
    try:
        return ZoneInfo(name)
    except (KeyError, OSError):
        raise ValueError(name) from None


def _refused(field: str, value: object, why: str) -> RefusedRows:
    return RefusedRows(field, f"names the partition, and its value {str(value)[:60]!r} {why}",
                       "replace the value")  # fmt: skip
