"""What a reader must know about a table that lockkit cannot write.

It refuses a table only if rows would be wrong. `refusals.py` has the reasons against *writing*.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lockkit.protocol.outcome import Found
from lockkit.runtime import Procedure
from lockkit.runtime.proven import read
from lockkit.table.errors import NoTable, UnsupportedTable
from lockkit.table.format.properties import HUDI, PROPERTIES_KEY, TableConfig
from lockkit.table.format.property_keys import (
    BASE_FORMAT,
    BY_COMMIT,
    BY_EVENT,
    DROP_COLUMNS,
    EVENT_PAYLOAD,
    FENCE_FORMAT,
    GROUPED,
    HIVE_STYLE,
    LATEST_PAYLOAD,
    MERGE_MODE,
    MERGE_ON_READ,
    MERGE_RULE,
    MERGER,
    MERGERS,
    ORDERING,
    PAYLOAD,
    PRECOMBINE,
    PROPERTIES_BYTES_MAX,
    TIMEZONE,
    URLENCODE,
    checksum,
    parse_properties,
)
from lockkit.table.format.refusals import TIMELINE_MUST_BE
from lockkit.table.format.schema import RECORD_KEY

LAYOUT_OF = {"6": "1", "7": "1", "8": "2", "9": "2"}
META_FIELDS = "hoodie.populate.meta.fields"
_EVENT_PAYLOADS = (EVENT_PAYLOAD, "org.apache.hudi.common.model.EventTimeAvroPayload")


@dataclass(frozen=True, slots=True)
class ReadableTable:
    """The properties of a table that a reader needs."""

    config: TableConfig
    ordering: tuple[str, ...]
    """Of the rows with one key, the one with the greatest values of these columns wins. None: the
    row of the latest commit wins."""
    merged: bool
    """Whether log files belong to it."""
    meta: bool
    """Whether its rows have Hudi's meta columns."""
    zone: str
    """The time zone of its instants: UTC or LOCAL."""
    created_with: str
    """The schema that the table was made with; "" if it is not recorded."""
    grouped: bool
    """Whether its writers decide together: then what is committed may not be published yet."""


def load_readable() -> Procedure[ReadableTable]:
    """The table, even if lockkit cannot write it; `TableError` with every reason not to read it."""
    match (yield from read(PROPERTIES_KEY, limit=PROPERTIES_BYTES_MAX)):
        case Found(body, _):
            return readable(parse_properties(body))
        case _missing:
            raise NoTable(PROPERTIES_KEY, "is missing: there is no table here")


def readable(keys: Mapping[str, str]) -> ReadableTable:
    keys = {key: value.strip() for key, value in keys.items()}
    if found := list(_reasons(keys)):
        raise UnsupportedTable(
            PROPERTIES_KEY, f"says that this table cannot be read here: {'; '.join(found)}"
        )
    first_layout = LAYOUT_OF[keys["hoodie.table.version"]] == "1"
    folder = keys.get("hoodie.archivelog.folder", "") if first_layout else ""
    config = TableConfig(
        name=keys["hoodie.table.name"],
        record_key=RECORD_KEY,  # of any key generator and any fields
        version=6 if first_layout else 9,
        mode=HUDI,
        hive_style=keys.get(HIVE_STYLE, "false").lower() == "true",
        urlencode=keys.get(URLENCODE, "false").lower() == "true",
        archive=folder or "archived",
    )
    fields = (keys.get(ORDERING) or keys.get(PRECOMBINE) or "").split(",")
    by_event = keys.get(MERGE_MODE) == BY_EVENT or (
        not keys.get(MERGE_MODE) and keys.get(PAYLOAD, EVENT_PAYLOAD) in _EVENT_PAYLOADS
    )
    return ReadableTable(
        config,
        tuple(each.strip() for each in fields if each.strip()) if by_event else (),
        keys["hoodie.table.type"] == MERGE_ON_READ,
        keys.get(META_FIELDS, "true").lower() == "true",
        keys.get(TIMEZONE, "").upper() or "LOCAL",
        keys.get("hoodie.table.create.schema", ""),
        keys.get(FENCE_FORMAT) in GROUPED,
    )


def _reasons(keys: Mapping[str, str]) -> Iterator[str]:
    for key in ("hoodie.table.name", "hoodie.table.version", "hoodie.table.type",
                "hoodie.timeline.layout.version"):  # fmt: skip
        if not keys.get(key):
            yield f"{key} is missing; restore the file (hoodie.properties.backup is beside it)"
    wanted = str(checksum(keys.get("hoodie.table.name", ""), keys.get("hoodie.database.name", "")))
    if keys.get("hoodie.table.checksum", wanted) != wanted:
        yield "hoodie.table.checksum does not match the table's name: restore the file"
    version = keys.get("hoodie.table.version", "")
    layout = keys.get("hoodie.timeline.layout.version", "")
    if version not in LAYOUT_OF:
        yield f"table version {version[:20]!r} is not known, only {', '.join(LAYOUT_OF)}"
    elif layout != LAYOUT_OF[version]:
        yield (f"timeline layout {layout[:20]!r} does not belong to table version {version}; an "
               "upgrade may have stopped half-way: finish it with Hudi")  # fmt: skip
    if keys.get("hoodie.table.type") not in (None, "", "COPY_ON_WRITE", MERGE_ON_READ):
        yield f"table type {keys['hoodie.table.type'][:40]!r} is not known"
    if keys.get("hoodie.bootstrap.base.path"):
        yield "it was bootstrapped: columns of its rows are in files of another table"
    for key, value, why in _MUST_BE:
        if keys.get(key, value).lower() != value.lower():
            yield f"{key}={keys[key][:80]}: {why}"
    if keys.get("hoodie.table.type") == MERGE_ON_READ:
        yield from _not_merged(keys)


_MUST_BE = (
    *((key, "PARQUET", "only Parquet files are read") for key in BASE_FORMAT),
    ("hoodie.table.multiple.base.file.formats.enable", "false", "only Parquet files are read"),
    (DROP_COLUMNS, "false", "its files lack the partition columns"),
    ("hoodie.table.cdc.enabled", "false", "change logs (CDC) are not read"),
    *TIMELINE_MUST_BE,
)


def _not_merged(keys: Mapping[str, str]) -> Iterator[str]:
    """The reasons why rows of log files cannot be merged as Hudi merges them."""
    mode, payload = keys.get(MERGE_MODE, ""), keys.get(PAYLOAD, "")
    if mode not in ("", BY_EVENT, BY_COMMIT):
        by = payload or keys.get(MERGER[0], "")
        yield f"{MERGE_MODE}={mode[:40]}: rows are merged by its own code ({by[:120]})"
    elif not mode and payload not in ("", LATEST_PAYLOAD, *_EVENT_PAYLOADS):
        yield f"{PAYLOAD}={payload[:120]}: rows are merged by its own code"
    for key in () if mode else MERGER:  # with a mode, no release of Hudi asks for the merger
        if keys.get(key, MERGERS[0]) not in MERGERS:
            yield f"{key}={keys[key][:40]}: rows are merged by its own code"
    if keys.get("hoodie.table.partial.update.mode", "NONE").upper() != "NONE":
        legacy = keys.get("hoodie.table.legacy.payload.class", "partial updates")
        yield (f"hoodie.table.partial.update.mode={keys['hoodie.table.partial.update.mode'][:40]}: "
               f"values are merged one by one ({legacy[:120]})")  # fmt: skip
    first_layout = LAYOUT_OF.get(keys.get("hoodie.table.version", "")) == "1"
    deletes = MERGE_RULE + "hoodie.payload.delete."  # from version 8 on Hudi writes delete blocks
    for key in keys:
        if key.startswith(MERGE_RULE) and (first_layout or not key.startswith(deletes)):
            yield f"{key}: rows are merged by rules of their own"
    if keys.get(META_FIELDS, "true").lower() != "true":
        yield f"{META_FIELDS}=false: rows could not be merged by their record key"
