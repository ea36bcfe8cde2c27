"""What keeps every write from a table whose properties allow it: a file, or the timeline."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from lockkit.runtime import run
from lockkit.table.errors import TableError
from lockkit.table.format.properties import TableConfig
from lockkit.table.format.timeline import load_timeline, refuse_ahead
from lockkit.table.occ.conflict import refuse_unreadable
from lockkit.table.occ.failed import service_plans
from lockkit.table.read.reader import snapshot_to_read

if TYPE_CHECKING:
    from lockkit.clock import Clock
    from lockkit.stores import Store


def refused_writes(store: Store, clock: Clock, config: TableConfig) -> list[str]:
    """Each reason why a write, or one to some file group, is refused now. Reads only."""
    now = run(load_timeline(config.names), store, clock)
    damaged: dict[str, str] = {}
    run(service_plans(config.names, now, damaged), store, clock)
    found = [why for instant, why in damaged.items()
             if config.sliced or now.pending[instant] != "compaction"]  # fmt: skip
    for check in (
        lambda: refuse_ahead(now.latest, clock.wall_ms(), config.accepted),
        lambda: refuse_unreadable(now, config, known=frozenset(now.completed)),
        lambda: run(snapshot_to_read(), store, clock),
    ):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about local time: the caller has its own message
                check()
        except TableError as error:
            found.append(str(error))
    return found
