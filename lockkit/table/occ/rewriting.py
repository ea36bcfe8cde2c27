"""Rewriting hoodie.properties: over exactly the version that was read, while the lease is valid."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lockkit.protocol.outcome import Applied, Found, over
from lockkit.runtime import Procedure
from lockkit.runtime.proven import TRIES_MAX, delete, pause_after, put_once, read
from lockkit.table.errors import NoTable, Unanswered
from lockkit.table.format.java_properties import (
    PROPERTIES_BYTES_MAX,
    format_properties,
    parse_properties,
)
from lockkit.table.format.properties import PROPERTIES_KEY
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
