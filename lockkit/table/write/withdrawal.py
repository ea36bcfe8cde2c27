"""An attempt that ends without its commit, or begins again.

Its own instant is rolled back at once. It begins again where its instant, reserved ahead with group
commit, is late (`in_time`), and where another writer was decided and did not live to publish it
(`publish_decided`): that commit is published before files are written, or they would conflict.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from lockkit.errors import LockBusy, StoreError, TableError
from lockkit.lock.storage import LOCK_KEY
from lockkit.protocol.outcome import Found
from lockkit.runtime import Procedure
from lockkit.runtime.proven import all_of, delete, read
from lockkit.table.errors import CommitConflict, NoTable
from lockkit.table.format.layout import PARTITION_FILE
from lockkit.table.format.properties import (
    FENCED,
    GROUP,
    HUDI,
    PROPERTIES_KEY,
    TableConfig,
    load_config,
    recheck_config,
)
from lockkit.table.occ import rollback
from lockkit.table.occ.commit import Committed, EpochGuard
from lockkit.table.occ.decide import settle
from lockkit.table.occ.discarding import attempt_in
from lockkit.table.occ.fence import CLOSED, COMMIT, read_fence
from lockkit.table.occ.group.fence import goes_without
from lockkit.table.occ.group.refused import LateInstant, passed
from lockkit.table.occ.held import Overtaken
from lockkit.table.occ.markers import unmark
from lockkit.table.occ.own_files import written_by
from lockkit.table.occ.transaction import TableCache, TakenInstant, Transaction

if TYPE_CHECKING:
    from lockkit.table.occ.group.ahead import GroupAppend
    from lockkit.table.occ.prepared import Prepared
    from lockkit.table.write.contract import AttemptHost
Paths = Collection[str] | None


def withdraw_attempt(
    host: AttemptHost, taken: TakenInstant, paths: Paths, certain: bool,
    error: BaseException | None, prepared: Prepared | None = None,
) -> Procedure[bool]:  # fmt: skip
    """Roll the attempt back; returns whether nothing is left to do.

    `certain`: the attempt was certainly not decided. `prepared`: its files are sent. Raises
    `NoTable` if the table was deleted.
    """
    if isinstance(error, LateInstant) and prepared is not None:
        if prepared.instant == taken.instant and goes_without(taken.action, prepared.body):
            yield from host.behind(_delete_passed(prepared), f"withdraw-{taken.instant}")
            return True
    if error is None or (isinstance(error, TableError) and not isinstance(error, CommitConflict)):
        yield from _refuse_deleted(host, taken, paths)
    try:
        return (yield from _withdraw(host, taken, paths, certain, error))
    except TableError:
        if certain:  # else it may have been decided, and the properties be restored
            yield from _refuse_deleted(host, taken, paths)
        config, version = yield from host.run(load_config())
        before = taken.known.config
        if certain and isinstance(error, TableError) and (yield from host.run(_is_closed(config))):
            yield from host.run(_clear_away(taken, paths))  # no fence is replaced for a rollback
            return True
        if (before.mode, config.mode) != (FENCED, HUDI) and before.commit == config.commit:
            raise
        # Closing the fence settled it: what is pending still was not decided, and never will be.
        known = replace(taken.known, config=config, config_version=version)
        return (yield from _withdraw(host, replace(taken, known=known), paths, True, error))


def _refuse_deleted(host: AttemptHost, taken: TakenInstant, paths: Paths) -> Procedure[None]:
    """If the table was deleted, delete what this attempt has written there since, and raise."""
    known = taken.known
    try:
        yield from host.run(recheck_config(known.config, known.config_version))
    except NoTable:
        locked = yield from host.run(_clear_away(taken, paths))
    except TableError:
        return
    else:
        return
    stays = f"What this write had put there is deleted, but for {PARTITION_FILE} of its partitions"
    if locked:
        stays += f" and for {LOCK_KEY}: a lock is released, and its object is never deleted"
    raise NoTable(
        PROPERTIES_KEY, f"is gone: the table was deleted under this write. {stays}",
        "check the address, or make the table again with Table.create",
    )  # fmt: skip


def _clear_away(taken: TakenInstant, paths: Paths) -> Procedure[bool]:
    """Delete the files of an attempt that nothing can decide; returns whether a lock object stands.

    A file that others may have written too is deleted only if its content is this attempt's. The
    files that mark partitions stay: a table that was made again here may rely on them by now.
    """
    instant, action, names = taken.instant, taken.action, taken.names
    if paths is None:
        paths = [path for _, path in (yield from written_by(instant)) or ()]
    yield from all_of(delete(path) for path in paths)
    yield from unmark(instant)
    inflight = names.inflight(instant, action)
    match (yield from read(inflight)):
        case Found(found, version) if attempt_in(inflight, found) == taken.attempt:
            yield from delete(inflight, version)
    match (yield from read(taken.requested)):
        case Found(found, version) if found == taken.body:
            yield from delete(taken.requested, version)
    return isinstance((yield from read(LOCK_KEY)), Found)


def _is_closed(config: TableConfig) -> Procedure[bool]:
    """Whether a restore or a switch of the mode was interrupted, and no commit can be decided.

    What was decided before is published, so a refused attempt needs no fence to be taken back.
    """
    if config.mode != FENCED or config.commit == GROUP:
        return False
    seen = yield from read_fence()
    return seen.fence is not None and seen.fence.head.kind == CLOSED


def _withdraw(
    host: AttemptHost, taken: TakenInstant, paths: Paths, certain: bool,
    error: BaseException | None,
) -> Procedure[bool]:  # fmt: skip
    """Roll it back in the mode that the table had when the instant was taken."""
    instant = taken.instant
    if taken.known.config.mode == FENCED:
        if certain:
            yield from host.run(rollback.withdraw(taken, EpochGuard(0), paths=paths))
        else:
            settled = yield from host.run(rollback.settle_own(taken, paths))
            if isinstance(settled, rollback.RollbackRefused):
                _add_note(error, f"{instant} was committed before the interrupt: do not repeat it.")
                return True
    elif not certain or isinstance(error, LockBusy):
        return False
    else:
        yield from host.hold(lambda host, held: host.run(rollback.withdraw(
            taken, held.guard, believe=held.believe, base=host.base, paths=paths
        )))  # fmt: skip
    if not isinstance(error, Exception):
        _add_note(error, f"{instant} was not committed; what it had written was taken back.")
    return True


def _delete_passed(prepared: Prepared) -> Procedure[None]:
    """Delete what an attempt has sent whose instant was passed: nothing can decide it any more.

    Each of its files is proven, so none arrives later. The request goes last: without it, Hudi's
    readers show the data files.
    """
    taken = prepared.transaction.taken
    with suppress(TableError, StoreError):  # then the next writer does it
        yield from all_of([*(delete(each.path) for each in prepared.stats), unmark(taken.instant)])
        yield from delete(taken.requested, taken.version)


def _add_note(error: BaseException | None, note: str) -> None:
    if error is not None:
        error.add_note(note)


LATE_MAX = 3
T = TypeVar("T")


def in_time(
    known: TableCache, once: Callable[[TableCache], Procedure[Committed | None]]
) -> Procedure[Committed | None]:
    """Append, and if a later instant was completed before its own was offered, append again.

    Nothing of it is committed by then: the fence has decided against that instant.
    """
    for _ in range(LATE_MAX):
        try:
            return (yield from once(known))
        except LateInstant as late:
            known = replace(known, newest=max(known.newest, late.instant))
    return (yield from once(known))


def changes_nothing(way: GroupAppend | None, instant: str) -> Procedure[None]:
    """Raise `LateInstant` if this is only so by a snapshot that lacks what is decided by now."""
    if way is not None and not (yield from way.stands()):
        raise passed(instant, "")


def again_if_late(once: Callable[[], T]) -> T:
    """The same for a write of rows, which reads the table again then."""
    for _ in range(LATE_MAX):
        with suppress(LateInstant, Overtaken):
            return once()
    return once()


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
