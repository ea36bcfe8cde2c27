"""Takes back what late writers left, before older instants leave the timeline (version 6).

Readers drop the rows of an instant that the timeline lacks, until the timeline begins after it:
then they take it for an archived commit's. A rollback has deleted its files, or put a command
behind them. But a request that was on its way then, or a writer that woke later, may have left
another file: one that begins a file group, or that is of a slice which a restore took away. So an
archiver looks for such files each time.

Only of an instant that a completed rollback or restore names, and that is not archived: what the
timeline lacks may also be a commit's, if an older one is still there (a savepoint kept it from
Hudi's archiver, or that archiver died).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress

from lockkit.protocol.outcome import Found
from lockkit.runtime import Procedure
from lockkit.runtime.proven import read
from lockkit.table.errors import DamagedFile
from lockkit.table.format.archived import load_archived
from lockkit.table.format.layout import BASE_FILE, LOG_FILE
from lockkit.table.format.plans import parse_rollback_plan
from lockkit.table.format.properties import TableConfig
from lockkit.table.format.savepoint_files import parse_restore_plan
from lockkit.table.format.timeline import HOODIE, Timeline, TimelineNames, load_timeline
from lockkit.table.occ.covered import first_active
from lockkit.table.occ.log_rollback import take_back
from lockkit.table.occ.markers import MARKERS, unmark
from lockkit.table.occ.own_files import own_keys, written_by
from lockkit.table.read.log_slice import VisibleInstants
from lockkit.table.read.table_files import refuse_lost_plan


def take_strays_back(config: TableConfig) -> Procedure[None]:
    """Under the table's lock. Raises `DamagedFile` for rows of a commit behind a plan that is gone.

    The files are listed first: each instant that wrote one of them is on the timeline, unless it
    was taken back.
    """
    keys = yield from own_keys()
    now = yield from load_timeline(config.names)
    gone = strays(keys, now)
    if gone:
        archived = {each.instant for each in (yield from load_archived(config))}
        known = (yield from _taken_back(config.names, now)) - archived
        gone = {each: paths for each, paths in gone.items() if each in known}
    first, pending = first_active(now.commits, now), frozenset(now.pending)
    completed = VisibleInstants(frozenset(now.commits), pending, first)
    for instant, paths in gone.items():
        for path in paths:
            if not path.endswith(".parquet"):
                yield from refuse_lost_plan(config.names, instant, path, completed)
    for instant, paths in gone.items():
        marked = (yield from written_by(instant, config)) or ()
        yield from take_back(instant, {*paths, *(path for _, path in marked)}, gone)
        yield from unmark(instant)


def _taken_back(names: TimelineNames, now: Timeline) -> Procedure[set[str]]:
    """What completed rollbacks and restores name, as far as their plans can be read.

    Not a compaction, which is carried out after its rollback.
    """
    found = set[str]()
    for instant, action in now.completed.items():
        key = names.requested(instant, action)
        body = (yield from read(key, limit=None)) if action in ("rollback", "restore") else None
        if isinstance(body, Found):
            with suppress(DamagedFile):
                if action == "restore":
                    found |= {each for each, _ in parse_restore_plan(key, body.body).instants}
                elif (plan := parse_rollback_plan(key, body.body)).target_action != "compaction":
                    found.add(plan.target)
    return found


def strays(keys: Iterable[str], now: Timeline) -> dict[str, list[str]]:
    """The instants that left a file or a marker, and that are neither pending nor completed nor
    older than the timeline; for each, the files that have it in their names.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for key in keys:
        if key.startswith(MARKERS):
            found[key.removeprefix(MARKERS).partition("/")[0]] += []
        elif not key.startswith(HOODIE):
            name = key.rpartition("/")[2]
            if base := BASE_FILE.fullmatch(name):
                found[base[3]].append(key)
            elif log := LOG_FILE.fullmatch(name):
                found[log[2]].append(key)
    first = first_active(now.commits, now)
    return {each: paths for each, paths in sorted(found.items())
            if each > first and each not in now.completed and each not in now.pending}  # fmt: skip
