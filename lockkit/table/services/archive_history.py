"""The archive's own files, which an archiver adds to and a restore closes to a late archiver.

Version 8 and later: files of instants, and the manifests that name them. `add_history` writes a
file, then a manifest that names it, then the number of the manifest, which Hudi's readers follow.
Until the manifest exists, readers ignore the file. Version 6: log files of instants, numbered one
after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from lockkit.protocol.outcome import Found, Version, over
from lockkit.runtime import Procedure
from lockkit.runtime.proven import all_of, create, delete, listing, read, settle_write
from lockkit.stores import ListEntry
from lockkit.table.errors import DamagedFile, TableChanged
from lockkit.table.format.archived import (
    COLUMNS,
    LOG,
    MANIFEST,
    Leaving,
    Row,
    format_history,
    format_log,
    format_manifest,
    history_name,
    history_rows,
    load_manifest,
    newest_manifest,
    read_history,
    read_manifest,
)
from lockkit.table.format.properties import TableConfig

MERGED = 10
"""Files of one level of the archive that become one of the next, as in Hudi."""
MANIFESTS_KEPT = 3
TRIES_MAX = 5
VERSION_FILE = "_version_"


def add_history(
    config: TableConfig, leaving: list[Leaving], believe: Callable[[], None]
) -> Procedure[list[str]]:
    """Archive these instants; the instants that are archived then."""
    prefix = config.archive_prefix
    entries = yield from listing(prefix)
    listed = [each.key for each in entries]
    if config.names.layout == 1:
        key = _next_log(prefix, listed)
        believe()
        if isinstance((yield from create(key, format_log(leaving))), Found):
            raise overtaken(key)
        return [each.instant for each in leaving]
    rows = history_rows(leaving)
    number, files = yield from load_manifest(prefix, listed)
    _, said = yield from _read_version(prefix)
    _refuse_damaged(prefix, entries, files, number, said)
    merged = yield from _merged(prefix, files)
    name, length, rows = yield from _put(prefix, rows, files)
    believe()
    key = f"{prefix}manifest_{number + 1}"
    if isinstance((yield from create(key, format_manifest({**merged, name: length}))), Found):
        raise overtaken(key)
    yield from say_version(config)
    if merged.keys() != files.keys():
        yield from _delete_merged(prefix, listed, number + 1)
    return [str(each["instantTime"]) for each in rows]


def _next_log(prefix: str, listed: Iterable[str]) -> str:
    found = [LOG.fullmatch(each.removeprefix(prefix)) for each in listed]
    number = max((int(each[1]) for each in found if each), default=0) + 1
    return f"{prefix}.commits_.archive.{number}_1-0-1"


def _refuse_damaged(
    prefix: str, entries: list[ListEntry], files: Mapping[str, int], number: int, said: int
) -> None:
    """`DamagedFile` if a manifest or a file is gone, or not whole: nothing is added to it then."""
    if said > number:
        raise DamagedFile(
            f"{prefix}manifest_{said}", f"is gone, and {VERSION_FILE} points to it; nothing was "
            "archived", "restore it",
        )  # fmt: skip
    sizes = {each.key: each.size for each in entries}
    for name, length in files.items():
        if sizes.get(prefix + name) != length:
            raise DamagedFile(
                prefix + name, f"is not there with the {length} bytes that manifest_{number} "
                "says; nothing was archived", "restore it",
            )  # fmt: skip


def _put(
    prefix: str, rows: list[Row], files: Mapping[str, int]
) -> Procedure[tuple[str, int, list[Row]]]:
    """Write the file.

    An archiver that crashed or sleeps may have left another one of its name, and may yet name it in
    a manifest. Then the newest instant waits for the next run.
    """
    for _ in range(TRIES_MAX):
        name, body = history_name(rows), format_history(rows)
        if name not in files and not isinstance((yield from create(prefix + name, body)), Found):
            return name, len(body), rows
        if len(rows) == 1:
            break
        rows = rows[:-1]
    raise overtaken(prefix + name)


def _merged(prefix: str, files: Mapping[str, int]) -> Procedure[dict[str, int]]:
    """The same files with the oldest of each full level merged, so that few files are read.

    Readers do not need it: Hudi's and ours read every file of the manifest.
    """
    files, level = dict(files), 0
    while True:
        of_level = sorted(each for each in files if each.endswith(f"_{level}.parquet"))
        if len(of_level) < MERGED:
            return files
        every = (*COLUMNS, "metadata", "plan", "version")
        read_ones = yield from all_of(read_history(prefix + each, every) for each in of_level)
        rows = [row for rows in read_ones for row in rows]
        name, body = history_name(rows, level + 1), format_history(rows)
        if isinstance((yield from create(prefix + name, body)), Found):
            return files  # a crashed archiver's, of other bytes: it stays as it is
        files = {each: length for each, length in files.items() if each not in of_level}
        files[name] = len(body)
        level += 1


def say_version(config: TableConfig) -> Procedure[None]:
    """Point Hudi's readers to the newest manifest; never back to an older one."""
    key = config.archive_prefix + VERSION_FILE
    for _ in range(TRIES_MAX):
        listed = [each.key for each in (yield from listing(config.archive_prefix))]
        number = newest_manifest(config.archive_prefix, listed)
        version, said = yield from _read_version(config.archive_prefix)
        if number is None or said >= number:
            return
        if isinstance((yield from settle_write(key, str(number).encode(), over(version))), Version):
            return
    raise overtaken(key)


def take_next(config: TableConfig, believe: Callable[[], None]) -> Procedure[None]:
    """Under the table's lock: create the next manifest or log, with nothing new in it.

    A restore does it, so that a suspended archiver adds nothing afterwards. An archiver that sleeps
    longer than its lease may sleep just before it creates that file; when it wakes, it would
    archive commits that the restore has taken back. The file is created only if it does not exist,
    so the archiver is refused. If the archiver was faster, the restore sees what it archived.

    Version 6: the empty log counts as no archive. Later versions: an archiver creates the file of
    its instants before its manifest. So if the archive's folder is empty, none can be asleep.
    """
    prefix, history = config.archive_prefix, config.names.layout == 2
    for _ in range(TRIES_MAX):
        listed = [each.key for each in (yield from listing(prefix))]
        if history and not listed:
            return
        key, body = _next_log(prefix, listed), b""
        if history:
            number, files = yield from load_manifest(prefix, listed)
            key, body = f"{prefix}manifest_{number + 1}", format_manifest(files)
        believe()
        if not isinstance((yield from create(key, body)), Found):
            if history:
                yield from say_version(config)
            return
    raise overtaken(key)


def _read_version(prefix: str) -> Procedure[tuple[Version | None, int]]:
    """The version of the file that points to a manifest, and that manifest's number, or 0."""
    match (yield from read(prefix + VERSION_FILE)):
        case Found(body, version):
            return version, int(body) if body.strip().isdigit() else 0
        case _missing:
            return None, 0


def _delete_merged(prefix: str, listed: list[str], number: int) -> Procedure[None]:
    """Delete old manifests, and the files that only they name.

    `listed` is older than the newest manifest, so no file of a later archiver is in it.
    """
    kept: set[str] = set()
    for each in range(max(1, number - MANIFESTS_KEPT + 1), number + 1):
        if each == number or f"{prefix}manifest_{each}" in listed:
            kept |= (yield from read_manifest(prefix, each)).keys()
    for key in listed:
        name = key.removeprefix(prefix)
        found = MANIFEST.fullmatch(name)
        if (found and int(found[1]) <= number - MANIFESTS_KEPT) or (
            name.endswith(".parquet") and name not in kept
        ):
            yield from delete(key)


def overtaken(key: str) -> TableChanged:
    why = "exists: another archiver was faster; nothing was deleted here"
    return TableChanged(key, why, "run it again")
