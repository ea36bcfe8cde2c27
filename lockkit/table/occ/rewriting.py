"""Rewriting hoodie.properties: over exactly the version that was read, while the lease is valid.

A commit of lockkit in the mode `hudi` does it to switch Hudi's metadata table off, which it does
not update. Hudi does the same for `hoodie.metadata.enable=false`. The properties are changed before
the commit is published, so a reader that sees the commit lists the folders. Hudi's Spark writers
obey that property in the table, and its other writers are refused (`block_metadata`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

from lockkit.protocol.outcome import Applied, Found, over
from lockkit.runtime import Note, Procedure
from lockkit.runtime.proven import TRIES_MAX, create, delete, pause_after, put_once, read
from lockkit.table.errors import NoTable, Unanswered
from lockkit.table.format.properties import PROPERTIES_KEY, TableConfig
from lockkit.table.format.property_keys import (
    BLOCK_KEY,
    ELSEWHERE,
    LAYOUT,
    METADATA,
    PROPERTIES_BYTES_MAX,
    RECORD_INDEX,
    format_properties,
    no_metadata,
    parse_properties,
)
from lockkit.table.format.timeline import HOODIE

CHECKSUM_KEY = HOODIE + ".hoodie.properties.crc"


def rewrite_properties(
    news: Callable[[Mapping[str, str]], dict[str, str]], believe: Callable[[], None]
) -> Procedure[bool]:
    """Write the result of `news` on the properties over exactly those that were read.

    False if it returns nothing and no write was tried before.
    """
    for tries in range(TRIES_MAX):
        match (yield from read(PROPERTIES_KEY, limit=PROPERTIES_BYTES_MAX)):
            case Found(body, version):
                keys = parse_properties(body)
            case _missing:
                raise NoTable(PROPERTIES_KEY, "is gone; nothing was changed")
        changed = news(keys)
        if not changed:
            return tries > 0
        # Hadoop's file system of a disk refuses a file that differs from its checksum.
        yield from delete(CHECKSUM_KEY)
        believe()
        # Sent once (not `settle_write`): each send needs `believe()` directly before it.
        new = format_properties({**keys, **changed})
        answer = yield from put_once(PROPERTIES_KEY, new, over(version))
        if isinstance(answer, Applied):
            return True
        yield pause_after(answer, tries)
    raise Unanswered(
        PROPERTIES_KEY, f"could not be written in {TRIES_MAX} tries", "run this again", doubt=True
    )


METADATA_PROPERTIES = HOODIE + "metadata/.hoodie/hoodie.properties"
BLOCK_TEXT = b"""\
lockkit writes this table and does not keep Hudi's metadata table: it would lack lockkit's commits,
and Hudi's readers would miss their rows. This file is a restore of the metadata table that never
ends, so that Hudi refuses to make it. Set hoodie.metadata.enable=false in Hudi's writers (in Flink
metadata.enabled=false).
"""


def block_metadata() -> Procedure[None]:
    """Let Hudi refuse to make the metadata table, whatever its writer's options say.

    Hudi 1.2 on Spark makes it outside the table's lock, in `SparkRDDWriteClient.commit`: it reads
    the timeline, lists the files, commits them to the metadata table, and says in hoodie.properties
    that it is on. It would lack what lockkit publishes meanwhile. But no commit to a table begins
    while that has a pending restore (`BaseHoodieWriteClient.startCommit`), and nothing ends this
    one. A writer that has begun its commit fails, or switches on a metadata table without
    properties, and Hudi's readers list the folders then (`NativeTableMetadataFactory.create`).
    """
    yield from create(BLOCK_KEY, BLOCK_TEXT)
    yield from delete(METADATA_PROPERTIES)


class MetadataSwitchedOff(UserWarning):
    """A writer of Hudi's had made the table's metadata table, and it was switched off."""


def keep_metadata_off(config: TableConfig, believe: Callable[[], None]) -> Procedure[None]:
    """Block the metadata table and switch it off, under the table's lock. Warn if it was on.

    Raises `TableError`, `Unanswered`.
    """
    if config.version > 6:
        yield from block_metadata()
    yield from rewrite_properties(off, believe)
    if not config.metadata:
        return
    again = ("until another of its writers makes it again" if config.version == 6 else
             "and it refuses writers that would make it again (\"Found pending restore\")")
    text = (
        f"the metadata table of {config.name!r} is switched off: lockkit's commits are not in it. "
        f"Hudi's readers list the folders now, {again}: set hoodie.metadata.enable=false in Hudi "
        "Streamer, and metadata.enabled=false in Flink. Spark's datasource and SQL need no option"
    )
    yield Note("note", {"text": text})
    warnings.warn(MetadataSwitchedOff(text), stacklevel=2)


def off(keys: Mapping[str, str]) -> dict[str, str]:
    """The properties to change. They still say that the table had a record index."""
    said = {ELSEWHERE: "true"} if RECORD_INDEX in keys.get(METADATA[0], "") else {}
    on = {each: "" for each in METADATA if keys.get(each)}
    none = no_metadata(keys.get(LAYOUT, ""))
    return {} if not on and none.items() <= keys.items() else said | on | none
