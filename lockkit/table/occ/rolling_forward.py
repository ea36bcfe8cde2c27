"""Rolls a decided commit forward: creates the completed file that its writer did not create yet."""

from __future__ import annotations

from lockkit.protocol.outcome import Found, Missing, NotModified, Version
from lockkit.runtime import Note, Procedure
from lockkit.runtime.proven import read
from lockkit.table.errors import DamagedFile
from lockkit.table.format.taken_back import TakenBack, taken_back_by
from lockkit.table.format.timeline import TimelineNames
from lockkit.table.occ.fence import Fence, digest, read_fence
from lockkit.table.occ.late import create_and_look


def roll_forward(
    names: TimelineNames, fence: Fence, done: str, rolled_forward: list[str]
) -> Procedure[None]:
    """Create `done`, the completed file of the fence's last decision, which was seen missing."""
    head = fence.head
    inflight = names.inflight(head.instant, head.action)
    standing: Version | Found | Missing | NotModified | TakenBack
    match (yield from read(inflight)):
        case Found(body, _) if digest(body) == fence.sha256:
            standing = yield from create_and_look(names, head, done, body)
        case _:
            standing = yield from read(done)  # again: a restore may have come in between
    match standing:
        case Missing():
            if (yield from read_fence()).attempt != fence.attempt:
                return  # others went on and archived it: what the caller decides is refused
            why = f"is not what the fence decided, and {done} is missing; nothing was committed"
            raise DamagedFile(inflight, why, "restore one of them from its versions")
        case TakenBack():
            return  # likewise
        case Found(body, _):
            if digest(body) != fence.sha256 and not taken_back_by(done, body):
                cure = "restore one of them: until then nothing more is committed to this table"
                raise DamagedFile(done, "differs from its inflight file, which is decided", cure)
            return
    rolled_forward.append(head.instant)
    yield Note(
        "note",
        {"text": f"rolled {head.instant} forward: it was decided, but its file was not there yet",
         "instant": head.instant, "rolled_forward": True},
    )  # fmt: skip
