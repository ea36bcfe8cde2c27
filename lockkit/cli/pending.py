"""A table's pending instants, and whether their writers are alive, in words."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lockkit.cli.terminal import store_options, table
from lockkit.clock import Clock
from lockkit.table.inspect.words import is_left as is_left
from lockkit.table.inspect.words import sign_of_life as sign_of_life

if TYPE_CHECKING:
    from lockkit.table.occ.condition import PendingInstant, TableCondition


def looked_up(args: argparse.Namespace) -> TableCondition:
    from lockkit.cli.generations import opened
    from lockkit.runtime import run
    from lockkit.table.occ.condition import condition

    with opened(args.url, store_options(args)) as store:
        found: TableCondition = run(condition(), store, Clock())
    return found


def pending_lines(pending: Sequence[PendingInstant]) -> list[str]:
    rows = [(each.instant, each.action, "inflight" if each.inflight else "requested",
             sign_of_life(each)) for each in pending]  # fmt: skip
    return table(("pending", "action", "state", "writer"), rows)
