"""A commit that its writer decided and did not live to publish is published before others write.

Otherwise the first write after such a writer would be refused: it would publish that commit only
under its own lock, when its files are written, and then conflict with it.
"""

from __future__ import annotations

from lockkit.runtime import Procedure
from lockkit.table.format.properties import FENCED, GROUP
from lockkit.table.occ.decide import settle
from lockkit.table.occ.fence import COMMIT, read_fence
from lockkit.table.occ.transaction import Transaction


def publish_decided(transaction: Transaction) -> Procedure[bool]:
    """Whether there was such a commit; the caller then begins again, on the table with it.

    Asks the store only where another instant is pending. The writer may be alive: the file that is
    created here is the one that it would create.
    """
    config, others = transaction.config, {*transaction.timeline.pending} - {transaction.instant}
    if not others or config.mode != FENCED or config.commit == GROUP:
        return False
    seen = yield from read_fence()
    if seen.fence is None or seen.fence.head.kind != COMMIT:
        return False
    if seen.fence.head.instant not in others:
        return False
    yield from settle(transaction.taken.names, seen, transaction.base, [])
    return True
