"""Who owns each pending instant: no client deletes another's timeline files before its rollback.

Rules I3 and F4 of docs/protocol.md, on fenced tables. The owner of an instant is the process that
created its requested file.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from lockkit.lab.verify.sim.memory_store import DecidedRequest, StoredObject
from lockkit.lab.verify.sim.task import Violated
from lockkit.table.occ.fence import COMMIT, FENCE_KEY, GROUP_FORMATS, ROLLBACK, parse_fence
from lockkit.table.occ.group.fence import parse_group_fence

OTHERS = "no client deletes the timeline files of another writer's instant before its rollback"
_FILE = re.compile(
    r"\.hoodie/(?:timeline/)?(\d{17})\.(?:(?:commit|replacecommit|clustering)\.)?"
    r"(requested|inflight)"
)


@dataclass(slots=True)
class Owners:
    """Who created each file of a pending instant, and which instants are rolled back."""

    makers: dict[tuple[str, str], str] = field(default_factory=dict)
    """By instant, and "requested" or "inflight"."""
    rolled_back: set[str] = field(default_factory=set)
    archived: str = ""
    """Up to here a fence of group commit decides nothing, and a rollback needs no decision."""

    def on_write(self, key: str, write: DecidedRequest, after: StoredObject | None) -> None:
        """A write was applied. Raises `Violated`."""
        if key == FENCE_KEY and after is not None:
            if json.loads(after.body).get("format") in GROUP_FORMATS:
                fence = parse_group_fence(after.body)
                self.rolled_back |= {each.instant for each in fence.window if each.kind != COMMIT}
                self.archived = fence.archived
                return
            head = parse_fence(after.body).head
            if head.kind == ROLLBACK:
                self.rolled_back.add(head.instant)
            return
        if (match := _FILE.fullmatch(key)) is None:
            return
        instant, kind = match[1], match[2]
        if after is not None:
            self.makers[instant, kind] = write.client
            return
        maker = self.makers.pop((instant, kind), write.client)
        # An inflight file beside a requested file goes with it, even if it arrives late.
        owner = self.makers.get((instant, "requested"), maker) if kind == "inflight" else maker
        over = instant in self.rolled_back or instant <= self.archived
        if owner != write.client and not over:
            raise Violated(OTHERS, f"{write.client} deleted {key}, and {instant} is {owner}'s")
