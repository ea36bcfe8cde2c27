"""The checkpoint: a snapshot saved beside the timeline, so that opening an old table stays cheap.

`.hoodie/.lockkit/checkpoint.json` is only a cache. Readers start from it and list what is later
than its horizon. `covered.py` explains why nothing at or below the horizon can change, so an old
checkpoint is as correct as a new one. Readers ignore it, and read the table from its start, if it
is missing, damaged, of another table or a later format, or names commits that left the timeline.
Hudi's readers look for instants in `.hoodie/` or `.hoodie/timeline/` and never see it.
`checkpoint_writing` saves it.
"""

from __future__ import annotations

from lockkit.protocol.outcome import Found
from lockkit.runtime import Procedure
from lockkit.runtime.proven import read
from lockkit.table.format.timeline import HOODIE
from lockkit.table.read.snapshot import Snapshot

CHECKPOINT_KEY = HOODIE + ".lockkit/checkpoint.json"
CHECKPOINT_EVERY = 16
"""Commits between two checkpoints: a cold reader reads about that many commit files at most.

The number is small because each file costs part of a round trip, while one more checkpoint costs
little.
"""

def read_checkpoint() -> Procedure[Snapshot | None]:
    """The saved snapshot; None if there is no usable one."""
    match (yield from read(CHECKPOINT_KEY)):
        case Found(body, _):
            from lockkit.table.read.checkpoint_bytes import parse_checkpoint  # a new table has none

            try:
                return parse_checkpoint(body)
            except ValueError:
                return None
        case _missing:
            return None
