"""Two commits that add columns: the later one must know those of the earlier one."""

from __future__ import annotations

from lockkit.table.format.layout import CommitFiles
from lockkit.table.format.schema_reading import arrow_schema
from lockkit.table.occ.conflicting import Conflict


def outgrown(mine: CommitFiles, other: CommitFiles) -> Conflict | None:
    """The later of two must have all columns of the earlier one: readers use the newest schema."""
    if not mine.schema or not other.schema or mine.schema == other.schema:
        return None
    earlier, later = sorted((mine, other), key=lambda each: each.instant)
    known = {each.name: each.type for each in arrow_schema(later.schema or "")}
    for each in arrow_schema(earlier.schema or ""):
        if known.get(each.name) != each.type:
            mentioned = f"column {each.name[:60]!r} as {str(each.type)[:60]}"
            has = f"has {mentioned}" if earlier is other else f"knows nothing of {mentioned}"
            return Conflict(
                other.instant, None, f"changed the table's columns: it {has}",
                "begin again with the columns as they are now",
            )
    return None
