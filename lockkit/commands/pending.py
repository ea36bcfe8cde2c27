"""What is pending in a table, and whether anybody is at it, in words."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lockkit.clock import Clock
from lockkit.commands.terminal import store_options, table
from lockkit.history import plain

if TYPE_CHECKING:
    from lockkit.table.condition import Condition, Unfinished


def looked_up(args: argparse.Namespace) -> Condition:
    from lockkit.commands.generations import opened
    from lockkit.drive import run
    from lockkit.table.condition import condition

    with opened(args.url, store_options(args)) as store:
        found: Condition = run(condition(), store, Clock())
    return found


def pending_lines(pending: Sequence[Unfinished]) -> list[str]:
    rows = [(each.instant, each.action, "inflight" if each.inflight else "requested",
             sign_of_life(each)) for each in pending]  # fmt: skip
    return table(("pending", "action", "state", "its maker"), rows)


def sign_of_life(each: Unfinished) -> str:
    ago = f"{each.age_ms / 1000:.0f} s ago"
    if each.action in ("rollback", "clean"):
        return f"begun {ago}; the next run of a service finishes it"
    if each.pulse.ended:
        return "gave up, or was ended: roll it back"
    if each.pulse.version is None and each.action == "clustering" and each.lives:
        return f"planned {ago}, for its maker to carry out"
    if each.pulse.version is None:
        return f"no heartbeat, begun {ago}: {'wait' if each.lives else 'dead'}"
    who = f" ({plain(each.pulse.holder, limit=60)})" if each.pulse.holder else ""
    return f"{'lives' if each.lives else 'dead'}{who}, last beat {ago}"


def is_left(each: Unfinished) -> bool:
    return not each.lives and each.action not in ("rollback", "clean")
