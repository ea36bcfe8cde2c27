"""Archived instants, written: the bytes of Hudi's two forms, which `archived` reads.

Version 6: a log file with one Avro block, a record for each completed instant. Version 8 and later:
a Parquet file with a row for each, sorted by instant, and a manifest that names the files. Equal
instants give equal bytes.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lockkit.table.format import avro, records
from lockkit.table.format.archived import COLUMNS, METADATA, Row
from lockkit.table.format.avro_decoding import decode
from lockkit.table.format.commit_records import TEXT, VERSION, optional, top
from lockkit.table.format.log_blocks import AVRO, SCHEMA
from lockkit.table.format.log_writing import ROWS_VERSION, log_block

ROW_VERSION = 1
_RECORDS = {
    "hoodieCommitMetadata": records.COMMIT, "hoodieReplaceCommitMetadata": records.REPLACE_COMMIT,
    "hoodieCleanMetadata": records.CLEAN, "hoodieRollbackMetadata": records.ROLLBACK,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Leaving:
    """A completed instant that leaves the timeline."""

    instant: str
    action: str
    completed: str | None
    """None in version 6."""
    content: bytes = field(repr=False)
    """Of its completed file."""
    plan: bytes | None = field(repr=False)
    """Of its requested file, if that is a plan."""


# --- version 8 and later --------------------------------------------------------------------------


def history_rows(leaving: Sequence[Leaving]) -> list[Row]:
    return [
        {"instantTime": each.instant, "completionTime": each.completed, "action": each.action,
         "metadata": each.content, "plan": each.plan, "version": ROW_VERSION}
        for each in leaving
    ]  # fmt: skip


def format_history(rows: Sequence[Row]) -> bytes:
    """The Parquet file of these rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    described = top(
        "HoodieLSMTimelineInstant", instantTime=TEXT, completionTime=TEXT, action=TEXT,
        metadata=optional("bytes"), plan=optional("bytes"), version="int",
    )  # fmt: skip
    schema = pa.schema(
        [*((name, pa.string()) for name in COLUMNS), ("metadata", pa.binary()),
         ("plan", pa.binary()), pa.field("version", pa.int32(), nullable=False)],
        {"parquet.avro.schema": json.dumps(described), "writer.model.name": "avro"},
    )  # fmt: skip
    out = io.BytesIO()
    table = pa.Table.from_pylist(sorted(rows, key=lambda each: str(each["instantTime"])), schema)
    pq.write_table(table, out, compression="gzip", use_dictionary=False, store_schema=False)
    return out.getvalue()


def history_name(rows: Sequence[Row], level: int = 0) -> str:
    instants = [str(each["instantTime"]) for each in rows]
    return f"{min(instants)}_{max(instants)}_{level}.parquet"


def format_manifest(files: Mapping[str, int]) -> bytes:
    """Files by name, with their lengths."""
    listed = [{"fileName": name, "fileLen": length} for name, length in sorted(files.items())]
    return json.dumps({"files": listed}, indent=2).encode()


# --- version 6 ------------------------------------------------------------------------------------


def format_log(leaving: Sequence[Leaving]) -> bytes:
    """A log file of the completed instants; their requested and inflight files are not in it."""
    import fastavro

    described = _once(top(
        "HoodieArchivedMetaEntry",
        **{name: optional(record) for name, record in _RECORDS.items()},
        commitTime=TEXT, actionType=TEXT, version=VERSION, actionState=TEXT,
        stateTransitionTime=TEXT,
    ), set())  # fmt: skip
    schema, out = fastavro.parse_schema(described), io.BytesIO()
    out.write(struct.pack(">ii", ROWS_VERSION, len(leaving)))
    for each in leaving:
        row = io.BytesIO()
        fastavro.schemaless_writer(row, schema, {
            METADATA[each.action]: _content(each) if each.content else None,
            "commitTime": each.instant,
            "actionType": each.action, "version": ROW_VERSION, "actionState": "COMPLETED",
            "stateTransitionTime": each.instant,
        })  # fmt: skip
        out.write(struct.pack(">i", row.tell()) + row.getvalue())
    return log_block(AVRO, {SCHEMA: json.dumps(described)}, out.getvalue())


def _content(each: Leaving) -> dict[str, Any]:
    if each.content.startswith(avro.MAGIC):
        name: str = _RECORDS[METADATA[each.action]]["name"]
        return decode(each.content, name)
    found: dict[str, Any] = json.loads(each.content)
    return found


def _once(schema: Any, named: set[str]) -> Any:
    """The same schema with each record defined where it is first used, as Avro requires."""
    if isinstance(schema, list):
        return [_once(each, named) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "record":
        if schema["name"] in named:
            return schema["name"]
        named.add(schema["name"])
    inner = {key: _once(schema[key], named) for key in ("items", "values") if key in schema}
    if "fields" in schema:
        inner["fields"] = [{**each, "type": _once(each["type"], named)}
                           for each in schema["fields"]]  # fmt: skip
    return {**schema, **inner}
