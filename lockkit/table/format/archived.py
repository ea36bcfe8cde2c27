"""Archived instants, which have left the timeline, in both of Hudi's forms.

Version 6 appends them to log files of Avro blocks in `.hoodie/archived/`. Version 8 and later keep
Parquet files in `.hoodie/timeline/history/`, sorted by instant; the newest manifest there names
those that count. Equal instants give equal bytes.
"""

from __future__ import annotations

import io
import json
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lockkit.protocol.outcome import Found
from lockkit.runtime import Procedure
from lockkit.runtime.proven import all_of, listing, read
from lockkit.table.errors import DamagedFile, TableChanged
from lockkit.table.format import avro, records
from lockkit.table.format.avro_decoding import decode
from lockkit.table.format.commit_records import TEXT, VERSION, optional, top
from lockkit.table.format.layout import CommitFiles, parse_commit
from lockkit.table.format.log_blocks import AVRO, SCHEMA, avro_rows, blocks
from lockkit.table.format.log_writing import ROWS_VERSION, log_block
from lockkit.table.format.properties import TableConfig
from lockkit.table.format.timeline import COMMITS

MANIFEST = re.compile(r"manifest_([1-9][0-9]{0,17})")
HISTORY = re.compile(r"[0-9]{17}_[0-9]{17}_[0-9]{1,9}\.parquet")
LOG = re.compile(r"\.commits_\.archive\.([0-9]{1,18})(?:_[0-9]+-[0-9]+-[0-9]+)?")
COLUMNS = ("instantTime", "completionTime", "action")
METADATA = {"commit": "hoodieCommitMetadata", "deltacommit": "hoodieCommitMetadata",
            "replacecommit": "hoodieReplaceCommitMetadata", "clean": "hoodieCleanMetadata",
            "rollback": "hoodieRollbackMetadata"}  # fmt: skip
"""Version 6: the field of a log's record that has the completed instant's content."""
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ArchivedInstant:
    """A completed instant that left the timeline."""

    instant: str
    action: str
    completed: str | None
    """None in version 6, whose timeline does not record it."""


def load_archived(config: TableConfig) -> Procedure[list[ArchivedInstant]]:
    """Every archived instant, oldest first."""
    rows = yield from _rows(config, COLUMNS)
    found = {ArchivedInstant(each["instantTime"], each["action"], each["completionTime"])
             for each in rows}  # fmt: skip
    return sorted(found, key=lambda each: (each.instant, each.action))


def load_archived_commits(config: TableConfig) -> Procedure[list[CommitFiles]]:
    """Every archived commit with its content, oldest first."""
    found: dict[str, CommitFiles] = {}
    for row in (yield from _rows(config, (*COLUMNS, "metadata"))):
        instant, action = row["instantTime"], row["action"]
        if action in COMMITS:
            key = config.names.completed(instant, action, row["completionTime"])
            found[instant] = parse_commit(instant, key, row["metadata"] or b"")
    return [found[instant] for instant in sorted(found)]


def is_said_empty(config: TableConfig) -> Procedure[bool]:
    """Whether a manifest names no file: a restore took its number before anything was archived."""
    names = [each.key for each in (yield from listing(config.archive_prefix))]
    number, files = yield from load_manifest(config.archive_prefix, names)
    return number > 0 and not files


def _rows(config: TableConfig, columns: Sequence[str]) -> Procedure[list[Row]]:
    prefix = config.archive_prefix
    names = [each.key for each in (yield from listing(prefix))]
    if config.names.layout == 2:
        _, files = yield from load_manifest(prefix, names)
        ways = [read_history(prefix + each, columns) for each in files]
    else:
        logs = [each for each in names if LOG.fullmatch(each.removeprefix(prefix))]
        ways = [read_log(each, columns) for each in logs]
    return [row for rows in (yield from all_of(ways)) for row in rows]


def _body(key: str) -> Procedure[bytes]:
    match (yield from read(key, limit=None)):
        case Found(body, _):
            return body
        case _missing:
            raise TableChanged(key, "was listed and is gone: its archive was rewritten",
                               "read again")  # fmt: skip


# --- version 8 and later --------------------------------------------------------------------------


def newest_manifest(prefix: str, names: Iterable[str]) -> int | None:
    """Its number."""
    found = (MANIFEST.fullmatch(each.removeprefix(prefix)) for each in names)
    return max((int(each[1]) for each in found if each), default=None)


def load_manifest(prefix: str, names: Iterable[str]) -> Procedure[tuple[int, dict[str, int]]]:
    """The newest manifest's number (0: there is none) and files.

    Raises `DamagedFile` if it leaves out a file of the manifest before it that was not merged into
    one of a higher level: a reader would miss that file's commits.
    """
    names = list(names)
    if (number := newest_manifest(prefix, names)) is None:
        return 0, {}
    files, before = (yield from read_manifest(prefix, number)), f"{prefix}manifest_{number - 1}"
    if before in names:
        spans = [each.removesuffix(".parquet").split("_") for each in files]
        for each in (yield from read_manifest(prefix, number - 1)).keys() - files.keys():
            low, high, level = each.removesuffix(".parquet").split("_")
            if not any(a <= low and high <= b and int(c) > int(level) for a, b, c in spans):
                raise DamagedFile(
                    f"{prefix}manifest_{number}", f"leaves out {each}, which {before} names and no "
                    "merged file has; nothing was read or archived",
                    "find out which program wrote it, then delete it",
                )  # fmt: skip
    return number, files


def read_manifest(prefix: str, number: int) -> Procedure[dict[str, int]]:
    """The files that count, each with its length."""
    key = f"{prefix}manifest_{number}"
    try:
        said = json.loads((yield from _body(key)))
        files = {str(each["fileName"]): int(each["fileLen"]) for each in said["files"]}
        if foreign := [each for each in files if not HISTORY.fullmatch(each)]:
            raise ValueError(f"no file of an archive is called {foreign[0]!r:.80}")
        return files
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFile(key, f"is not a manifest of the archive ({error})") from None


def read_history(key: str, columns: Sequence[str]) -> Procedure[list[Row]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    body = yield from _body(key)
    try:
        rows: list[Row] = pq.read_table(io.BytesIO(body), columns=list(columns)).to_pylist()
    except (pa.ArrowInvalid, OSError) as error:
        raise DamagedFile(key, f"is not a file of the archive ({str(error)[:80]})") from None
    return rows


# --- version 6 ------------------------------------------------------------------------------------


def read_log(key: str, columns: Sequence[str]) -> Procedure[list[Row]]:
    """Its completed instants, with the columns of the later form."""
    body = yield from _body(key)
    rows: list[Row] = []
    try:
        for block in blocks(key, body):
            rows += avro_rows(block) if block.kind == AVRO else []
        return [
            {"instantTime": each["commitTime"], "action": each["actionType"],
             "completionTime": None, "metadata": _content(each) if "metadata" in columns else None}
            for each in rows if each.get("actionState", "COMPLETED") == "COMPLETED"
        ]  # fmt: skip
    except (LookupError, TypeError, ValueError, EOFError) as error:
        raise DamagedFile(key, f"is not a log of the archive ({str(error)[:80]})") from None


def _content(row: Row) -> bytes:
    """A commit as the JSON that its file was."""
    if row["actionType"] not in COMMITS:
        return b""
    return json.dumps(row[METADATA[row["actionType"]]]).encode()


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
            METADATA[each.action]: _avro_content(each) if each.content else None,
            "commitTime": each.instant,
            "actionType": each.action, "version": ROW_VERSION, "actionState": "COMPLETED",
            "stateTransitionTime": each.instant,
        })  # fmt: skip
        out.write(struct.pack(">i", row.tell()) + row.getvalue())
    return log_block(AVRO, {SCHEMA: json.dumps(described)}, out.getvalue())


def _avro_content(each: Leaving) -> dict[str, Any]:
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
