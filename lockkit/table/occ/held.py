"""What a short write beside Hudi reads while it acquires the lock, and then needs not read again.

It holds the lock from its instant to its commit. Until then nobody else completes a commit or
changes the properties or the fence, so what was read with the claim stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from lockkit.errors import StoreError, TableError
from lockkit.protocol.outcome import Found
from lockkit.runtime import Procedure, WallMs
from lockkit.runtime.proven import all_of, read
from lockkit.table.errors import TableChanged
from lockkit.table.format.properties import FENCED, TableConfig, recheck_config
from lockkit.table.format.property_keys import BLOCK_KEY
from lockkit.table.format.timeline import (
    Timeline,
    instant_of,
    load_timeline,
    next_instant_ms,
)
from lockkit.table.occ import transaction
from lockkit.table.occ.covered import CheckedHorizon
from lockkit.table.occ.fence import FenceRead, read_fence
from lockkit.table.occ.transaction import TableCache, TakenInstant, Transaction

if TYPE_CHECKING:
    from lockkit.table.occ.heartbeat import FirstBeat


@dataclass(frozen=True, slots=True)
class TableNow:
    """All that a commit without a fence checks."""

    timeline: Timeline
    config: TableConfig
    fence: FenceRead
    blocked: bool
    """Whether Hudi is kept from making its metadata table; a switch-off of Hudi's removes that."""


def look(
    known: TableCache, after: str, beside: Iterable[Procedure[None]] = ()
) -> Procedure[TableNow]:
    """Read it, all at once; raises `TableChanged` if the properties are other ones."""
    now, config, fence, blocked, *_ = yield from all_of([
        load_timeline(known.config.names, after=after),
        recheck_config(known.config, known.config_version), read_fence(), _is_blocked(known.config),
        *beside,
    ])  # fmt: skip
    return TableNow(now, config, fence, blocked)


def _is_blocked(config: TableConfig) -> Procedure[bool]:
    if config.mode == FENCED or config.version == 6:
        return True
    return isinstance((yield from read(BLOCK_KEY)), Found)


@dataclass(slots=True)
class LockReads:
    """Reads the table with each claim of the lock (`Lock.acquire`).

    Hudi rolls back a pending instant without a heartbeat, so the heartbeat comes before the
    instant's first file. With the first claim it is begun for the instant that is to be taken, by
    `first_beat`. It counts only if that claim was granted: later, others may have taken instants.
    """

    known: TableCache
    action: str = "commit"
    first_beat: Callable[[str], Procedure[FirstBeat]] | None = None
    found: TableNow | None = None
    """What was read with the latest claim, the one that was granted; None: nothing that counts."""
    begun: FirstBeat | None = None
    alone: bool = False
    """Whether `begun` came with the latest request for the lock."""

    def prefetch(self, claiming: bool) -> Procedure[None]:
        self.found, shown, self.alone = None, self.known.shown, False
        if claiming:
            beats, self.first_beat = self.first_beat, None
            beside = [self._begin(beats)] if beats else []
            with suppress(TableError, StoreError):  # the write reads again, and reports it
                if shown is not None:  # such a table has no fence; it is listed later (`FromShown`)
                    at = self.known.config_version
                    config, *_ = yield from all_of([
                        recheck_config(self.known.config, at), *beside
                    ])  # fmt: skip
                    self.found = TableNow(shown, config, FenceRead(None, None), True)
                    return
                after = CheckedHorizon(self.known.horizon).listed_after
                self.found = yield from look(self.known, after, beside)

    def _begin(self, beats: Callable[[str], Procedure[FirstBeat]]) -> Procedure[None]:
        self.alone, newest = True, self.known.newest
        instant = instant_of(next_instant_ms(newest, (yield WallMs()), self.action))
        with suppress(TableError, StoreError):  # then it begins with the instant, as others do
            self.begun = yield from beats(instant)

    @property
    def instant(self) -> str:
        """The instant to be taken, whose heartbeat has begun; "" if there is none."""
        return self.begun.instant if self.begun is not None and self.alone else ""

    def beat_of(self, instant: str) -> Procedure[FirstBeat | None]:
        """What has begun for this instant, once; a heartbeat of another one is deleted."""
        begun, usable, self.begun = self.begun, self.instant, None
        if begun is None or usable == instant != "":
            return begun
        from lockkit.table.occ.heartbeat import drop  # rarely needed

        yield from drop(begun)
        return None


@dataclass(frozen=True, slots=True)
class FromListing:
    """How an instant is taken under the lock if the timeline was listed with the claim."""

    now: Timeline
    instant: str = ""
    """The one to be taken, if no other is needed."""

    def take(self, known: TableCache, **how: Any) -> Procedure[TakenInstant]:
        newest = max(known.newest, self.now.latest)
        return transaction.take(replace(known, newest=newest), **how, first=self.instant)

    def survey(self, taken: TakenInstant) -> Procedure[tuple[Transaction | None, Timeline]]:
        """No listing. Before version 8 Hudi takes its instants without the lock: there one comes
        beside the files."""
        now = with_request(self.now, taken)
        began, _ = yield from transaction.survey(taken, listed=now)
        if began is not None and taken.names.layout == 1:
            began = replace(began, beside=partial(refuse_taken_twice, taken))
        return began, now


class Outrun(Exception):
    """The table has changed since this handle's last commit."""

    def __init__(self, began: Transaction) -> None:
        super().__init__(began.instant)
        self.began = began


@dataclass(frozen=True, slots=True)
class FromShown:
    """How an instant is taken under the lock on a merge-on-read table of version 6.

    What its log files are named depends on all that came before. They are made on the assumption
    that nothing has come since the handle's last commit. The one listing, in parallel with the
    inflight file and the markers, shows it before a log file is put.
    """

    shown: Timeline
    instant: str = ""

    def take(self, known: TableCache, **how: Any) -> Procedure[TakenInstant]:
        return transaction.take(known, **how, first=self.instant)

    def survey(self, taken: TakenInstant) -> Procedure[tuple[Transaction | None, Timeline]]:
        yield from ()
        now = with_request(self.shown, taken)
        return Transaction(taken, now, partial(self.look, taken)), now

    def look(self, taken: TakenInstant) -> Procedure[None]:
        """Raises `Outrun`, or `Overtaken` if the instant is of no use."""
        began, now = yield from transaction.survey(taken)
        if began is None:
            raise Overtaken(taken.instant, "is of no use; nothing was committed", "try again")
        if not shows_no_more(now, self.shown, taken.instant):
            raise Outrun(began)


class Overtaken(TableChanged):
    """Another writer has its instant, too, or a later one is completed."""


def shows_no_more(now: Timeline, before: Timeline, mine: str) -> bool:
    """Whether of what names log files nothing has come or gone since. A clean deletes old ones."""
    done = {each for each in now.completed.items() if each[1] != "clean"}
    return (
        set(now.pending) == {mine} and done <= set(before.completed.items())
        and set(now.rollbacks) <= set(before.rollbacks) and before.commits[-1] in now.completed
    )  # fmt: skip


def with_request(now: Timeline, taken: TakenInstant, *, inflight: bool = False) -> Timeline:
    """The listing with this instant, which was requested since."""
    place = taken.instant, taken.action
    begun = {taken.instant} if inflight else set()
    return replace(
        now, pending={**now.pending, taken.instant: taken.action},
        first={**now.first, place: taken.version}, inflight=now.inflight | begun,
    )  # fmt: skip


def refuse_taken_twice(taken: TakenInstant) -> Procedure[None]:
    """Raise if another writer's request is at this instant; Hudi's may be over ours."""
    after = CheckedHorizon(taken.known.horizon).listed_after
    now = yield from load_timeline(taken.names, after=after)
    if taken.instant in now.doubled or (yield from taken.own_version(now)) is None:
        why = "is another writer's, too, or was rolled back as a dead one's; nothing was committed"
        raise TableChanged(taken.instant, why, "try again")
