"""Archived instants, which have left the timeline, in both of Hudi's forms.

Version 6 appends them to log files of Avro blocks in `.hoodie/archived/`. Version 8 and later keep
Parquet files in `.hoodie/timeline/history/`; the newest manifest there names those that count.
"""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from typing import Any

from lockkit.protocol.outcome import Found
from lockkit.runtime import Procedure
from lockkit.runtime.proven import all_of, listing, read
from lockkit.table.errors import DamagedFile, TableChanged
from lockkit.table.format.log_blocks import AVRO, avro_rows, blocks
from lockkit.table.format.properties import TableConfig

_MANIFEST = re.compile(r"manifest_([0-9]{1,18})")
_LOG = re.compile(r"\.commits_\.archive\.[0-9]+(_[0-9]+-[0-9]+-[0-9]+)?")
_COLUMNS = ["instantTime", "completionTime", "action"]


@dataclass(frozen=True, slots=True)
class ArchivedInstant:
    """A completed instant that left the timeline."""

    instant: str
    action: str
    completed: str | None
    """None in version 6, whose timeline does not record it."""


def load_archived(config: TableConfig) -> Procedure[list[ArchivedInstant]]:
    """Every archived instant, oldest first."""
    prefix = config.archive_prefix
    names = [each.key for each in (yield from listing(prefix))]
    if config.names.layout == 2:
        found = yield from _parquet(prefix, names)
    else:
        logs = [each for each in names if _LOG.fullmatch(each.removeprefix(prefix))]
        found = [each for of_log in (yield from all_of(map(_log, logs))) for each in of_log]
    return sorted(set(found), key=lambda each: (each.instant, each.action))


def _body(key: str) -> Procedure[bytes]:
    match (yield from read(key, limit=None)):
        case Found(body, _):
            return body
        case _missing:
            raise TableChanged(
                key, "was listed and is gone: Hudi rewrote its archive", "read again"
            )


def _parquet(prefix: str, names: list[str]) -> Procedure[list[ArchivedInstant]]:
    found = (_MANIFEST.fullmatch(each.removeprefix(prefix)) for each in names)
    newest = max((int(each[1]) for each in found if each), default=None)
    if newest is None:
        return []
    key = f"{prefix}manifest_{newest}"
    try:
        said = json.loads((yield from _body(key)))
        files = [prefix + str(each["fileName"]) for each in said["files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFile(key, f"is not a manifest of the archive ({error})") from None
    return [each for of_file in (yield from all_of(map(_file, files))) for each in of_file]


def _file(key: str) -> Procedure[list[ArchivedInstant]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(io.BytesIO((yield from _body(key))), columns=_COLUMNS).to_pylist()
    except (pa.ArrowInvalid, OSError) as error:
        raise DamagedFile(key, f"is not a file of the archive ({str(error)[:80]})") from None
    return [ArchivedInstant(each["instantTime"], each["action"], each["completionTime"])
            for each in rows]  # fmt: skip


def _log(key: str) -> Procedure[list[ArchivedInstant]]:
    body = yield from _body(key)
    rows: list[dict[str, Any]] = []
    try:
        for block in blocks(key, body):
            rows += avro_rows(block) if block.kind == AVRO else []
        return [
            ArchivedInstant(each["commitTime"], each["actionType"], None) for each in rows
            if each.get("actionState", "COMPLETED") == "COMPLETED"
        ]  # fmt: skip
    except (LookupError, TypeError, ValueError, EOFError) as error:
        raise DamagedFile(key, f"is not a log of the archive ({str(error)[:80]})") from None
