"""The append: an instant, its files and its inflight file, in two round trips.

New rows need nothing from the table, so the files are sent in parallel with the listing that shows
whether the instant can be used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from lockkit.runtime import Parallel, Procedure
from lockkit.table.format.base_file import BaseFile, Target
from lockkit.table.format.layout import WriteStat
from lockkit.table.format.timeline import Timeline
from lockkit.table.occ import transaction
from lockkit.table.occ.prepared import Prepared, create_files, draft
from lockkit.table.occ.transaction import (
    OVERTAKEN_MAX,
    TableCache,
    TakenInstant,
    Trying,
    lead_ms,
    overtaken,
)

GROWTH_LEAD_MS = 1_000
"""With group commit a commit that adds columns is refused once a later instant is committed."""


@dataclass(frozen=True, slots=True)
class NewRows:
    """Rows to be appended, and how their files are made."""

    files: Callable[[Target], list[BaseFile]]
    """Makes the new file groups for one instant; called again for each further instant."""
    schema: str
    partitions: frozenset[str]
    """Partitions that are known to have their metadata file."""
    grows: bool
    """Whether `schema` has columns that the table has not."""
    schema_at: str
    """The newest commit that is known to have no other columns than `schema`."""
    way: Any = None
    """How an instant is taken and surveyed instead, with group commit."""


def prepare_append(
    known: TableCache,
    new: NewRows,
    trying: Trying,
    began: Callable[[TakenInstant], Procedure[None]],
    wrote: Callable[[tuple[WriteStat, ...]], None],
) -> Procedure[tuple[Prepared, TableCache]]:
    """Take an instant, write the files, prepare the commit. Also returns what is now known.

    `trying` is called with each instant before it is taken, `began` once it is taken, and `wrote`
    with the files before they are sent. After an error the caller withdraws the last of these
    instants. Raises `CommitConflict` if another writer's columns do not fit these, `TableError`,
    `StoreError`.
    """
    least_ms = GROWTH_LEAD_MS if new.grows and new.way is not None else 0
    for tries in range(OVERTAKEN_MAX):
        taken = yield from (new.way or transaction).take(
            known, action=known.config.action, lead_ms=max(lead_ms(tries), least_ms), trying=trying
        )
        yield from began(taken)
        files = new.files(taken.target)
        wrote(tuple(file.stat for file in files))
        prepared, now = yield from _prepare(taken, files, new)
        known = replace(known.after(now), newest=max(taken.instant, now.latest, known.newest))
        if prepared is not None:
            return prepared, known
    raise overtaken(taken)


def _prepare(
    taken: TakenInstant, files: list[BaseFile], new: NewRows
) -> Procedure[tuple[Prepared | None, Timeline]]:
    """Survey the instant in parallel with writing its files and its inflight file.

    No `Prepared` if the instant turns out to be useless; then its files are deleted. Of the commits
    of others after `schema_at`, the newest is read: it has the table's columns. With group commit
    the fence has them.
    """
    stats, way = tuple(file.stat for file in files), new.way
    if way is not None:
        way.columns_at = new.schema_at
    drafted = draft(
        taken, stats, schema=new.schema, operation="INSERT", known_partitions=new.partitions
    )
    sent = create_files(files)
    surveyed, body, _ = yield Parallel(((way or transaction).survey(taken), drafted, sent))
    began, now = surveyed
    if began is None:
        from lockkit.table.occ.discarding import discard  # rarely needed

        yield from discard(taken, now, [stat.path for stat in stats])
        return None, now
    horizon = taken.known.horizon
    lost = way is not None and way.has_lost(new.schema_at, horizon, now)
    decided = way is not None and way.has_columns(new.schema) and not lost
    if new.schema_at != max(now.commits, default="") and not decided:
        from lockkit.table.occ.outgrown import refuse_other_columns  # rarely another's commit

        yield from refuse_other_columns(taken, body, new.schema_at, now, lost=lost)
    grows = new.grows and not decided  # such an offer would also fit if the fence has others by now
    return Prepared(began, stats, frozenset(), "INSERT", body, grows), now
