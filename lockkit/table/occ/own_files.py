"""Which data files an instant wrote: by its markers, else by a listing of the table."""

from __future__ import annotations

from collections.abc import Collection

from lockkit.runtime import Procedure
from lockkit.runtime.proven import listing
from lockkit.stores import ListEntry
from lockkit.table.format.layout import BASE_FILE, LOG_FILE, in_partition, is_written_by
from lockkit.table.format.properties import PROPERTIES_KEY, TableConfig
from lockkit.table.format.timeline import HOODIE
from lockkit.table.occ.markers import Marker, files_of


def written_by(
    target: str, config: TableConfig | None = None
) -> Procedure[tuple[tuple[str, str], ...] | None]:
    """(partition, path) of every file that the instant wrote or meant to write.

    Its markers, written before the files, name them. Without markers only a listing of the whole
    table finds them, including those of failed tasks. None if those are an archived commit's, by
    the archive of `config`'s table.
    """
    marked = yield from files_of(target)
    paths = {each.path for each in marked if is_data_of(each.path, target)}
    if config and config.sliced:
        paths |= {path for each in marked if (path := _log_of(each))}
    if not paths:
        paths, keys = yield from listed_by(target)
        if paths and config and any(key.startswith(config.archive_prefix) for key in keys):
            from lockkit.table.format.archived import load_archived  # rarely needed

            if any(each.instant == target for each in (yield from load_archived(config))):
                return None
    return with_partitions(paths)


def _log_of(marker: Marker) -> str:
    """Version 6: the log file of a marker of Hudi's, which names it, or the base file before it."""
    name = marker.path.rpartition("/")[2]
    if marker.io != "APPEND" or LOG_FILE.fullmatch(name):
        return marker.path if marker.io == "APPEND" else ""
    base = BASE_FILE.fullmatch(name)
    partition = marker.group[0]
    return in_partition(partition, f".{base[1]}_{base[3]}.log.1_{base[2]}") if base else ""


def listed_by(target: str) -> Procedure[tuple[set[str], list[str]]]:
    """The data files with this instant in their names, and every key of the table."""
    keys = yield from own_keys()
    return {key for key in keys if is_data_of(key, target)}, keys


def own_keys() -> Procedure[list[str]]:
    """Every key of the table, without those of a table below it, which may share instants."""
    everything: list[ListEntry] = yield from listing("")
    keys = [each.key for each in everything]
    others = tuple(key.removesuffix(PROPERTIES_KEY) for key in keys
                   if key.endswith("/" + PROPERTIES_KEY))  # fmt: skip
    return [key for key in keys if not key.startswith(others)]


def with_partitions(paths: Collection[str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((path.rpartition("/")[0], path) for path in paths))


def is_data_of(key: str, target: str) -> bool:
    return is_written_by(key, target) and not key.startswith(HOODIE)
