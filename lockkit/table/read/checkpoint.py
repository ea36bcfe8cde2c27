"""The checkpoint: a snapshot saved beside the timeline, so that opening an old table stays cheap.

`.hoodie/.lockkit/checkpoint.json` is only a cache. Readers start from it and list what is later
than its horizon; `covered.py` says why nothing at or below the horizon can change, so an old
checkpoint is as correct as a new one. A checkpoint is ignored, and the table read from its start,
if it is missing, damaged, of another table, of a later format, or names commits that the timeline
no longer shows. Other readers look for instants in `.hoodie/` itself, or in `.hoodie/timeline/`,
and never see it. `checkpoint_writing` saves it.
"""

from __future__ import annotations

from lockkit.protocol.outcome import Found
from lockkit.runtime import Procedure
from lockkit.runtime.proven import read
from lockkit.table.format.timeline import HOODIE
from lockkit.table.read.snapshot import Snapshot

CHECKPOINT_KEY = HOODIE + ".lockkit/checkpoint.json"
CHECKPOINT_EVERY = 16
"""Commits between two checkpoints: a cold opener reads at most about so many of their files.

Few, because each of them costs a part of a trip, and writing one for 16 openings that read it adds
little to what they cost.
"""

def read_checkpoint() -> Procedure[Snapshot | None]:
    """The saved snapshot; None if there is none that can be used."""
    match (yield from read(CHECKPOINT_KEY)):
        case Found(body, _):
            from lockkit.table.read.checkpoint_bytes import parse_checkpoint  # a new table has none

            try:
                return parse_checkpoint(body)
            except ValueError:
                return None
        case _missing:
            return None
