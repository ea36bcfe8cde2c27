"""A write that follows its handle's last one: what that left of the table, and what is at hand."""

from __future__ import annotations

from dataclasses import replace

from lockkit.table.format.layout import parse_commit
from lockkit.table.format.timeline import Timeline
from lockkit.table.occ.commit import Committed
from lockkit.table.occ.prepared import Prepared
from lockkit.table.occ.transaction import TableCache, Transaction
from lockkit.table.read.snapshot import Snapshot, advance
from lockkit.table.write.groups import FileBuffer

TableState = tuple[TableCache, Snapshot]
ONLY_MERGES = "upsert", "delete", "insert"


def state_after(snapshot: Snapshot, prepared: Prepared, committed: Committed) -> TableState:
    """A writer's view of the table after its commit, which began with `snapshot`.

    In version 6 the folders show what is in a merge-on-read table: `shown` says until when they
    need not be listed again.
    """
    began, covered = prepared.transaction, snapshot.covered
    newest = max(began.taken.known.newest, began.timeline.latest, prepared.instant)
    known = replace(began.taken.known, horizon=covered.horizon, newest=newest)
    key = prepared.names.completed(prepared.instant, began.action, committed.completion)
    mine = parse_commit(prepared.instant, key, prepared.body)
    if began.config.sliced:
        if not all(each.is_log for each in prepared.stats) or prepared.replaced:
            return replace(known, shown=None), snapshot
        from lockkit.table.read.log_slice import with_logs  # it loads what reads log files
        return replace(known, shown=_shown(began)), with_logs(snapshot, mine)
    after = replace(
        advance(snapshot, [mine]), covered=replace(covered, later=covered.later | {mine.instant})
    )
    return known, after


def _shown(began: Transaction) -> Timeline:
    now, mine = began.timeline, began.instant
    pending = {each: action for each, action in now.pending.items() if each != mine}
    return replace(now, completed={**now.completed, mine: began.action}, pending=pending)


def at_hand(operation: str, buffer: FileBuffer, seen: Snapshot) -> frozenset[str] | None:
    """The commits after which a write has no file to read, and takes so little time that the lock
    may be held for it; None: it may take longer.
    """
    config = seen.config
    searches = config.merged and not config.hashed
    if config.sliced and not buffer.light:
        return None
    if searches or not buffer.at_hand or operation not in ONLY_MERGES:
        return None
    return seen.covered.later
