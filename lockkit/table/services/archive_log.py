"""The archive of version 6: log files of instants, numbered one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lockkit.protocol.outcome import Found
from lockkit.runtime import Procedure
from lockkit.runtime.proven import create, listing
from lockkit.table.format.archive_writing import Leaving, format_log
from lockkit.table.format.archived import LOG
from lockkit.table.format.properties import TableConfig
from lockkit.table.services.archive_history import overtaken


def add(
    config: TableConfig, leaving: list[Leaving], believe: Callable[[], None]
) -> Procedure[list[str]]:
    """A new log file; the instants that are archived then."""
    prefix = config.archive_prefix
    key = next_log(prefix, [each.key for each in (yield from listing(prefix))])
    believe()
    if isinstance((yield from create(key, format_log(leaving))), Found):
        raise overtaken(key)
    return [each.instant for each in leaving]


def next_log(prefix: str, listed: Iterable[str]) -> str:
    found = [LOG.fullmatch(each.removeprefix(prefix)) for each in listed]
    number = max((int(each[1]) for each in found if each), default=0) + 1
    return f"{prefix}.commits_.archive.{number}_1-0-1"
