"""Rewriting hoodie.properties: over exactly the version that was read, while the lease is valid.

Each commit of lockkit does it to switch Hudi's metadata table off, which it does not update. Hudi
does the same for `hoodie.metadata.enable=false`. The properties are changed before the commit is
published, so a reader that sees the commit lists the folders. From then on Hudi's Spark writers
make no new one: it would lack what lockkit commits while Hudi makes it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

from lockkit.protocol.outcome import Applied, Found, over
from lockkit.runtime import Note, Procedure
from lockkit.runtime.proven import TRIES_MAX, delete, pause_after, put_once, read
from lockkit.table.errors import NoTable, Unanswered
from lockkit.table.format.properties import PROPERTIES_KEY, TableConfig
from lockkit.table.format.property_keys import (
    ELSEWHERE,
    METADATA,
    NO_METADATA,
    PROPERTIES_BYTES_MAX,
    RECORD_INDEX,
    format_properties,
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


class MetadataSwitchedOff(UserWarning):
    """A writer of Hudi's had made the table's metadata table, and it was switched off."""


def switch_metadata_off(config: TableConfig, believe: Callable[[], None]) -> Procedure[None]:
    """Do it under the table's lock, and warn. Raises `TableError`, `Unanswered`."""
    yield from rewrite_properties(off, believe)
    text = (
        f"the metadata table of {config.name!r} is switched off: lockkit's commits are not in it. "
        "Hudi's readers list the folders now. Hudi's Spark writers keep it off; set "
        "hoodie.metadata.enable=false in its other writers, or each of them makes it again, and "
        "Hudi's readers miss commits of lockkit's until the next one"
    )
    yield Note("note", {"text": text})
    warnings.warn(MetadataSwitchedOff(text), stacklevel=2)


def off(keys: Mapping[str, str]) -> dict[str, str]:
    """The properties to change. They still say that the table had a record index."""
    said = {ELSEWHERE: "true"} if RECORD_INDEX in keys.get(METADATA[0], "") else {}
    on = {each: "" for each in METADATA if keys.get(each)}
    return on and said | on | NO_METADATA
