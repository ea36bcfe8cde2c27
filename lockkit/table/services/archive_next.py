"""A restore takes the archive's next number, so that a suspended archiver adds nothing afterwards.

An archiver that sleeps longer than its lease may sleep just before it creates the archive's next
manifest (version 6: its next log). When it wakes, it would archive commits that a restore has taken
back meanwhile. The manifest is created only if it does not exist. So the restore creates it first,
with nothing new in it: then the archiver is refused. If the archiver was faster, the restore sees
what it archived.

Version 6: the log is empty, and counts as no archive. Later versions: an archiver creates the file
of its instants before its manifest. So if the archive's folder is empty, none can be asleep.
"""

from __future__ import annotations

from collections.abc import Callable

from lockkit.protocol.outcome import Found
from lockkit.runtime import Procedure
from lockkit.runtime.proven import create, listing
from lockkit.table.format.archive_writing import format_manifest
from lockkit.table.format.archived import load_manifest
from lockkit.table.format.properties import TableConfig
from lockkit.table.services.archive_history import TRIES_MAX, overtaken, say_version
from lockkit.table.services.archive_log import next_log


def take_next(config: TableConfig, believe: Callable[[], None]) -> Procedure[None]:
    """Under the table's lock: create the next manifest or log, with nothing new in it."""
    prefix, history = config.archive_prefix, config.names.layout == 2
    for _ in range(TRIES_MAX):
        listed = [each.key for each in (yield from listing(prefix))]
        if history and not listed:
            return
        key, body = next_log(prefix, listed), b""
        if history:
            number, files = yield from load_manifest(prefix, listed)
            key, body = f"{prefix}manifest_{number + 1}", format_manifest(files)
        believe()
        if not isinstance((yield from create(key, body)), Found):
            if history:
                yield from say_version(config)
            return
    raise overtaken(key)
