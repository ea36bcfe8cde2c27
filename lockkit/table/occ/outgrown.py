"""Two commits that add columns: the later one must know those of the earlier one."""

from __future__ import annotations

from lockkit.runtime import Procedure
from lockkit.table.errors import OutdatedHandle
from lockkit.table.format.layout import CommitFiles, parse_commit
from lockkit.table.format.properties import GROUP
from lockkit.table.format.schema_reading import arrow_schema
from lockkit.table.format.timeline import Timeline
from lockkit.table.occ.conflicting import Conflict
from lockkit.table.occ.covered import read_commit
from lockkit.table.occ.transaction import TakenInstant


def refuse_other_columns(
    taken: TakenInstant, body: bytes, schema_at: str, now: Timeline, *, lost: bool
) -> Procedure[None]:
    """Raise if the columns of an append are not the table's, as far as its handle knew: those as of
    the commit `schema_at`, which a restore may have taken back. The newest commit has the table's.

    :param lost: whether a restore did, with group commit.
    """
    grouped = taken.known.config.commit == GROUP
    if lost or (schema_at and schema_at not in now.completed and not grouped):
        why = "left the timeline, and this handle knows the table's columns from it"
        raise OutdatedHandle(schema_at, why, "open it again")
    newest = max(now.commits, default="")
    if newest > schema_at:
        other = yield from read_commit(taken.names, newest, now)
        if conflict := outgrown(parse_commit(taken.instant, taken.instant, body), other):
            raise conflict.refusal(taken.instant)


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
                "start again with the current columns",
            )
    return None
