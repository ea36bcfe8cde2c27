"""A compaction that another process carries out anew, on a table in the mode `hudi`."""

from __future__ import annotations

from lockkit.protocol.outcome import Found
from lockkit.runtime import Procedure
from lockkit.runtime.proven import read
from lockkit.table.occ.news import taken_back
from lockkit.table.occ.prepared import Prepared


def refuse_begun_again(prepared: Prepared) -> Procedure[None]:
    """Raise if another process carries this compaction's plan out anew.

    Hudi's services do so if they find it pending: they delete its files and keep its instant.
    """
    match (yield from read(prepared.inflight)):
        case Found(body, _) if body == prepared.body:
            return
    why = "another process took it for dead, and carries the same plan out"
    raise taken_back(prepared.instant, why)
