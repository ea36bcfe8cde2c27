"""Group commit in a table that was deleted during a commit, or made again in its place."""

from __future__ import annotations

from lockkit.protocol.outcome import Missing
from lockkit.runtime import Note, Procedure, Sleep
from lockkit.runtime.proven import delete, read
from lockkit.table.errors import NoTable, TableError
from lockkit.table.format.properties import recheck_config
from lockkit.table.occ.fence import FENCE_BYTES_MAX, FENCE_KEY
from lockkit.table.occ.group.client import GroupClient, GroupWrite
from lockkit.table.occ.group.decision import GroupDecision, GroupFence
from lockkit.table.occ.group.outcomes import SURE_MS, stays
from lockkit.table.occ.prepared import Prepared


def confirmed(
    client: GroupClient, mine: GroupDecision, way: Procedure[int | None]
) -> Procedure[None]:
    """Publish by `way`, and delete what it published if the table was made again before.

    The client's next commit shows that without a request. If there is none for a while, the fence
    is read. Until then readers of the other table may meet a commit whose files are gone.
    """
    return _confirmed(client, mine, client.known, way)


def _confirmed(
    client: GroupClient, mine: GroupDecision, fence: GroupFence | None, way: Procedure[int | None]
) -> Procedure[None]:
    published_ms = yield from way
    if published_ms is None or fence is None:
        return
    yield Sleep(max(0, published_ms + SURE_MS - client.boot_ms()) / 1000, client.closing)
    if not (yield from stays(client, fence, published_ms)):
        yield from note_gone(mine)


def note_gone(mine: GroupDecision) -> Procedure[None]:
    text = (f"{mine.instant} was decided, and its table was deleted before it was published: "
            "it is in no table")  # fmt: skip
    yield Note("note", {"text": text, "instant": mine.instant, "table_gone": True})


def is_gone(write: GroupWrite, prepared: Prepared) -> Procedure[bool]:
    """Whether the table was deleted, and nothing that was sent can be decided any more.

    Only then its offer is deleted: it may be the only copy of a decided append. A table that is
    made here does not accept the offer, which names its own table. If a replacement of the fence
    had no answer, nothing is certain.
    """
    if write.doubtful:
        return False
    transaction = prepared.transaction
    try:
        yield from recheck_config(transaction.config, transaction.taken.known.config_version)
    except NoTable:
        found = yield from read(FENCE_KEY, limit=FENCE_BYTES_MAX)
        if write.offered and isinstance(found, Missing):
            yield from delete(write.offered)
        return isinstance(found, Missing)
    except TableError:
        return False
    return False
