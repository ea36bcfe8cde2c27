"""Switch Hudi's metadata table off, because a commit of lockkit does not update it.

Hudi does the same for `hoodie.metadata.enable=false`. The properties are changed before the commit
is published, so a reader that sees the commit lists the folders. A Hudi writer with its default
options builds a new metadata table from the folders.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

from lockkit.runtime import Note, Procedure
from lockkit.table.format.properties import TableConfig
from lockkit.table.format.property_keys import ELSEWHERE, METADATA, RECORD_INDEX
from lockkit.table.occ.rewriting import rewrite_properties


class MetadataSwitchedOff(UserWarning):
    """A writer of Hudi's had made the table's metadata table, and it was switched off."""


def switch_metadata_off(config: TableConfig, believe: Callable[[], None]) -> Procedure[None]:
    """Do it under the table's lock, and warn. Raises `TableError`, `Unanswered`."""
    yield from rewrite_properties(off, believe)
    text = (
        f"the metadata table of {config.name!r} is switched off: lockkit's commits are not in it. "
        "Hudi's readers list the folders now. Set hoodie.metadata.enable=false in Hudi's writers, "
        "or each of them makes it again"
    )
    yield Note("note", {"text": text})
    warnings.warn(MetadataSwitchedOff(text), stacklevel=2)


def off(keys: Mapping[str, str]) -> dict[str, str]:
    """The properties to change. They still say that the table had a record index."""
    said = {ELSEWHERE: "true"} if RECORD_INDEX in keys.get(METADATA[0], "") else {}
    return said | {each: "" for each in METADATA if keys.get(each)}
