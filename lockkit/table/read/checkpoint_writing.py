"""Saves a table's checkpoint once there are enough commits after the saved one."""

from __future__ import annotations

from lockkit.protocol.outcome import Applied, Found, Version, over
from lockkit.runtime import Procedure
from lockkit.runtime.proven import put_once, read
from lockkit.table.format.properties import FENCED
from lockkit.table.read import checkpoint
from lockkit.table.read.checkpoint import CHECKPOINT_KEY
from lockkit.table.read.checkpoint_bytes import LaterFormat, format_checkpoint, parse_checkpoint
from lockkit.table.read.snapshot import Snapshot


def write_checkpoint(snapshot: Snapshot, *, every: int | None = None) -> Procedure[bool]:
    """Save the snapshot if it is `every` commits ahead of the saved one; return whether it did.

    A writer calls it after its commit, and so does a service. It costs one read if nothing is due.
    If two processes save at once, one wins, and either result is right.
    """
    if snapshot.config.mode != FENCED:
        return False
    saved: Snapshot | None = None
    version: Version | None = None
    match (yield from read(CHECKPOINT_KEY)):
        case Found(found, version):
            try:
                saved = parse_checkpoint(found)
            except LaterFormat:
                return False
            except ValueError:
                pass  # damaged: replaced
        case _missing:
            pass
    if not _due(snapshot, saved, every or checkpoint.CHECKPOINT_EVERY):
        return False
    body = format_checkpoint(snapshot)
    try:
        if parse_checkpoint(body) != snapshot:
            return False
    except ValueError:
        return False  # too large, or a file name that does not show its group: no checkpoint
    # Sent once (not `settle_write`): if this write fails, the next process saves a checkpoint.
    return isinstance((yield from put_once(CHECKPOINT_KEY, body, over(version))), Applied)


def _due(snapshot: Snapshot, saved: Snapshot | None, every: int) -> bool:
    if saved is None or saved.config != snapshot.config:
        return snapshot.covered.count >= every
    ahead = snapshot.covered.count - saved.covered.count
    if saved.covered.horizon < snapshot.covered.horizon and ahead < 0:
        return True  # fewer commits up to a later horizon: the table was restored, or made anew
    return saved.covered.horizon <= snapshot.covered.horizon and ahead >= every
