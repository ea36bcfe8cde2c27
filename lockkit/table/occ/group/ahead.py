"""Group commit: a writer reserves the instant of its next write while the fence decides this one.

A busy writer's commit then takes two round trips: one for its files, one for the decision. The
next instant is reserved in parallel with the decision. While no other client commits, the writer
does not list the timeline: if another commit was decided, the replacement of the fence fails. An
append then lists and offers its commit; a rewrite begins again.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from lockkit.errors import StoreError, TableError
from lockkit.protocol.outcome import Applied, Found, IfAbsent, Missing, NotModified, Version
from lockkit.runtime import Note, Parallel, Procedure, Sleep, Unique, WallMs
from lockkit.runtime.proven import all_of, delete, put_once, read
from lockkit.table.format.timeline import (
    V6,
    Timeline,
    instant_ms,
    instant_of,
    next_instant_ms,
    refuse_ahead,
)
from lockkit.table.occ.covered import CheckedHorizon
from lockkit.table.occ.fence import COMMIT, FENCE_BYTES_MAX, FENCE_KEY
from lockkit.table.occ.group.client import (
    CONTENDED_FOR,
    GroupClient,
    ListedBeside,
    decision_in,
    schema_id,
)
from lockkit.table.occ.group.decision import GroupFence
from lockkit.table.occ.group.fence import parse_group_fence
from lockkit.table.occ.group.places import behind_ms, spread_ms
from lockkit.table.occ.group.refused import LateInstant, passed
from lockkit.table.occ.group.settings import survey_checked
from lockkit.table.occ.group.tail import as_decided, give_way
from lockkit.table.occ.group.view import has_gap
from lockkit.table.occ.transaction import (
    TakenInstant,
    Transaction,
    Trying,
    first_file,
    take,
)

AHEAD_MS = 500
"""How long a reserved instant waits for its writer's next write. Others see it pending."""
LEFT_MAX = 2
"""Reserved instants that a client tries to give back again, if the store did not answer."""
OVERTAKEN_FOR = 8
"""After another commit has passed a rewrite that had not listed first, so many of its writer's
next rewrites list before they make their files."""
REST_MS = 200
"""A rewrite lists beside its files after it was idle for so long: others may have committed, and
then it begins again at once."""


@dataclass(slots=True)
class GroupAppend:
    """How one append takes its instant and lists, for `NewRows`."""

    client: GroupClient
    listed: ListedBeside | None = None
    """None: the attempt made no listing."""
    only: Version = ""
    """The version of the fence on which a rewrite without a listing is based; "": it listed."""
    began: int = 0
    """How many requests for the fence its process had sent by then."""
    beside: Timeline | None = None
    """The listing of a rewrite while it sent its files."""
    coming: frozenset[str] = frozenset()
    """Decided before the listing, and not known to be published."""
    columns_at: str = ""
    """The newest commit whose columns an append knows."""
    late: LateInstant | None = None
    """Why it begins again, by the listing beside its files."""
    rested_ms: int = 0
    """How long its client was idle before this commit."""

    @property
    def rested(self) -> bool:
        return self.rested_ms > self.client.trip_ms

    def take(
        self, known: Any, *, action: str, lead_ms: int, trying: Trying | None, plan: bytes = b"",
    ) -> Procedure[TakenInstant]:  # fmt: skip
        """Take the instant that was reserved ahead if it is still usable, otherwise a new one."""
        client, self.listed, self.only = self.client, None, ""
        self.rested_ms = client.boot_ms() - client.acked_ms
        if client.known is not None:
            known = replace(known, newest=max(known.newest, client.known.since))
        useless = []
        while not lead_ms and (reserved := _reserved(client)) is not None:
            taken, sent_ms = reserved
            early_ms = client.boot_ms() - sent_ms
            now: TakenInstant = replace(taken, known=known, early_ms=early_ms)
            most_ms = AHEAD_MS
            if client.contended:  # others' commits would pass an older one before it lists
                loses = client.loses and not isinstance(self, GroupRewrite)
                most_ms = client.trip_ms * 3 // 2 if loses else -1
            if early_ms > most_ms or not taken.version or not is_usable(taken, known):
                useless.append(_given_back(client, reserved))
            elif trying is None or (yield from trying(now)):
                return now
        # The same for all, or its place moves with each commit. What it gave up is not taken again.
        wall_ms: int = max(at := (yield WallMs()), min(client.place_ms + 1, at + AHEAD_MS))
        spread = 0 if lead_ms else (yield from spread_ms(client, known.newest, wall_ms))
        lead_ms = max(lead_ms, behind_ms(client, known.newest, spread, wall_ms))
        way = take(
            known, action=action, plan=plan, lead_ms=lead_ms, trying=trying, wall_ms=wall_ms
        )  # fmt: skip
        fresh: TakenInstant
        fresh, *_ = yield from all_of([way, *useless])
        client.place_ms = instant_ms(fresh.instant)
        client.takes(fresh.instant)
        return fresh

    def survey(self, taken: TakenInstant) -> Procedure[tuple[Transaction | None, Timeline]]:
        """Like `transaction.survey`, with the fence beside it, or without a request."""
        client = self.client
        fresh = taken.early_ms and client.timeline is not None and not client.lists
        if fresh and _alone(client, taken.instant):
            yield Note("began", {"instant": taken.instant})
            return Transaction(taken, client.timeline), client.timeline
        self.listed = ListedBeside(client.known, client.known, client.version)
        window = client.known.window if client.known else ()
        self.coming = frozenset(each.instant for each in window if each.seq not in client.proven)
        both = survey_checked(client, taken), read_beside(client, self.listed)
        (transaction, now), _ = yield Parallel(both)
        client.timeline, client.listed_after = now, _listed_after(taken)
        if transaction is not None:
            yield from give_way(taken.names, taken.instant, taken.action, now, client.met)
        return transaction, now

    def decides_by(self, follows: bool) -> ListedBeside | None:
        """The listing to decide by. None: the decision needs a later listing, or another writer
        comes first (`follows`)."""
        return self.listed

    def has_columns(self, schema: str) -> bool:
        """Whether the fence names these columns: it decides no append with others."""
        fence = self.listed.fence if self.listed else self.client.known
        return fence is not None and bool(fence.schema) and fence.schema == schema_id(schema)

    def has_lost(self, commit: str, horizon: str, now: Timeline) -> bool:
        """Whether a restore took back this commit, which its handle knows the columns from.

        One that was not published yet when the listing began is only not listed.
        """
        known = self.listed is not None and horizon < commit and commit not in self.coming
        return known and commit not in now.completed

    def stands(self) -> Procedure[bool]:
        """Whether the snapshot is complete, for a rewrite that has nothing to commit.

        A listing makes it complete. Without a listing, the fence must not have changed.
        """
        if not self.only:
            return True
        found = yield from read(FENCE_KEY, unless=self.only, limit=FENCE_BYTES_MAX)
        stands = isinstance(found, NotModified)
        if not stands:  # the next attempt lists
            self.client.timeline, self.client.contended = None, CONTENDED_FOR
        return stands


@dataclass(slots=True)
class GroupRewrite(GroupAppend):
    """The same for an upsert or a delete: its snapshot must have every commit of its fence.

    It makes no listing if the previous listing and the fence's window together show all of them.
    Then its decision replaces only that version of the fence (`decided_over`). If another client
    has replaced the fence, the rewrite begins again.
    """

    begun: GroupFence | None = None
    """The fence that was read in parallel with the reservation; None: it gives no snapshot."""

    def take(
        self, known: Any, *, action: str, lead_ms: int, trying: Trying | None, plan: bytes = b"",
    ) -> Procedure[TakenInstant]:  # fmt: skip
        """While other clients commit, it reads the fence in parallel with the reservation."""
        client, self.begun, self.beside, self.late = self.client, None, None, None
        way = GroupAppend.take(
            self, known, action=action, lead_ms=lead_ms, trying=trying, plan=plan
        )
        if not client.contended or client.timeline is None:
            return (yield from way)
        fence = read(FENCE_KEY, unless=client.version or None, limit=FENCE_BYTES_MAX)
        now: TakenInstant
        now, found = yield Parallel((way, _timed(client, fence)))
        self.begun = _learned(client, found)
        return now

    def survey(self, taken: TakenInstant) -> Procedure[tuple[Transaction | None, Timeline]]:
        client, after, quick = self.client, _listed_after(taken), taken.early_ms > 0
        if client.process is not None and not client.contended:
            quick |= yield from client.process.catches_up(client)
        if quick and _alone(client, taken.instant) and client.listed_after <= after:
            seen = as_decided(client, after)
            if seen is not None and seen.fence is not None:
                self.begun, self.only = seen.fence
                self.began = client.process.sent if client.process else 0
                if client.lists or self.rested_ms > REST_MS:
                    return Transaction(taken, seen, lambda: self.list_beside(taken)), seen
                yield Note("began", {"instant": taken.instant})
                return Transaction(taken, seen), seen
        overtaken = client.overtaken > 0
        client.overtaken -= overtaken
        if not overtaken and is_base(client, self.begun, taken) and client.listed_after <= after:
            seen = as_decided(client, after)
            if seen is not None:
                return Transaction(taken, seen, lambda: self.list_beside(taken)), seen
        self.listed = ListedBeside(client.known, None)
        transaction, now = yield from survey_checked(client, taken, client.met)
        client.timeline, client.listed_after = now, after
        if now.fence is not None:
            self.listed.fence, self.listed.version = now.fence
        return transaction, now

    def list_beside(self, taken: TakenInstant) -> Procedure[None]:
        """The listing after the reservation, while the files are sent.

        The write begins again (`late`) if the listing shows that its instant is useless. After it
        gave way to an earlier overwrite it lists again; that overwrite is later than its base.
        """
        client = self.client
        transaction, now = yield from survey_checked(client, taken)
        of = (taken.names, taken.instant, taken.action, now, client.met)
        if transaction is not None and (yield from give_way(*of)):
            transaction, now = yield from survey_checked(client, taken)
        client.timeline, client.listed_after = now, _listed_after(taken)
        client.overtaken = OVERTAKEN_FOR if transaction is None and not taken.early_ms else 0
        if transaction is None:
            self.late = passed(taken.instant, now.latest)
            return
        self.listed, self.beside = ListedBeside(self.begun, self.begun, client.version), now
        if self.begun is not None:
            commits = (each for each in self.begun.window if each.kind == COMMIT)
            client.saw(self.begun.table, [e.seq for e in commits if e.instant in now.completed])

    def decides_by(self, follows: bool) -> ListedBeside | None:
        """The listing beside the files if this commit comes first.

        A listing before the files counts only if the client met no other client. Otherwise it lists
        again, and decides all that is offered by then.
        """
        if self.beside is not None:
            return None if follows and not self.only else self.listed
        return None if self.client.contended else self.listed


def _timed(client: GroupClient, way: Procedure[Any]) -> Procedure[Any]:
    sent_ms = yield WallMs()
    found = yield from way
    client.took(sent_ms, (yield WallMs()))
    return found


def _learned(client: GroupClient, found: Any) -> GroupFence | None:
    """The fence that was read just now; None if its client may not know all decisions.

    If the fence cannot be read, the survey raises the error.
    """
    fence = client.known
    if isinstance(found, Found):
        fence = None
        with suppress(TableError):
            fence = parse_group_fence(found.body)
        if fence is not None and not has_gap(client.known, fence):
            client.knows(fence, found.version)
    return fence if fence is client.known and not isinstance(found, Missing) else None


def is_base(client: GroupClient, begun: GroupFence | None, taken: TakenInstant) -> bool:
    """Whether this fence, which was read since the write was called, may give the snapshot."""
    return (
        begun is not None and begun is client.known and begun.newest < taken.instant
        and not decision_in(begun, taken.instant)
    )  # fmt: skip


def _listed_after(taken: TakenInstant) -> str:
    return CheckedHorizon(taken.known.horizon).listed_after


def is_usable(taken: TakenInstant, known: Any) -> bool:
    """Whether the instant is later than each known commit, and the table's settings have stayed."""
    unchanged: bool = taken.known.config == known.config
    return unchanged and known.newest < taken.instant


def _alone(client: GroupClient, instant: str) -> bool:
    """Whether no other client has decided a commit for a while, so that no offer may be waiting."""
    known = client.known
    return (
        known is not None and not client.contended and known.newest < instant
        and not decision_in(known, instant)
    )  # fmt: skip


def read_beside(client: GroupClient, listed: ListedBeside) -> Procedure[None]:
    """Read the fence in parallel with a commit's listing if another client may have replaced it."""
    if client.contended and listed.before is not None:
        found = yield from read(FENCE_KEY, unless=listed.version, limit=FENCE_BYTES_MAX)
        if isinstance(found, Found):
            listed.fence, listed.version = parse_group_fence(found.body), found.version


def is_busy(client: GroupClient) -> bool:
    """Whether this client commits one append after the other, and no other client commits.

    Increments of version 6 end before a reserved instant, also before what another thread commits.
    """
    lately = client.boot_ms() - client.acked_ms <= AHEAD_MS
    alone = client.names is not V6 or not (client.process and client.process.meets(client))
    return client.reserves and lately and not client.contended and alone


def reserve_ahead(client: GroupClient, before: TakenInstant) -> Procedure[None]:
    """Reserve the next append's instant, among others two round trips ahead: then it lists."""
    newest = max(before.instant, before.known.newest)
    known, sent_ms = replace(before.known, newest=newest), client.boot_ms()
    attempt, wall_ms = (yield Unique()), (yield WallMs())
    with suppress(TableError, StoreError):
        refuse_ahead(newest, wall_ms, known.config.accepted)
        lead_ms = behind_ms(client, newest, client.trip_ms, wall_ms) if client.contended else 0
        client.place_ms = next_instant_ms(newest, wall_ms, before.action, lead_ms, True)
        instant = instant_of(client.place_ms)
        body = first_file(before.action, b"", attempt, known.config.version)
        mine = TakenInstant(instant, attempt, before.action, known, body, "")
        client.own.add(instant)
        client.takes(instant)
        answer = yield from put_once(mine.requested, body, IfAbsent())
        # Not `settle_write`: a hint. What was not proven to be there is only given back.
        version = answer.version if isinstance(answer, Applied) else ""
        client.ahead.append((replace(mine, version=version), sent_ms))


def _reserved(client: GroupClient) -> Any:
    with suppress(IndexError):  # `give_back`, in another thread, may have taken it
        return client.ahead.pop()
    return None


def give_back(client: GroupClient) -> Procedure[None]:
    """Delete a reserved instant that its writer has not used within `AHEAD_MS`."""
    for mine in list(client.ahead):
        yield Sleep(AHEAD_MS / 1000, client.closing)
        yield from release(client, mine)


def release(client: GroupClient, mine: Any) -> Procedure[None]:
    """Delete a reserved instant that is not used yet."""
    with suppress(ValueError):
        client.ahead.remove(mine)  # `ValueError`: it is used
        yield from _given_back(client, mine)


def _given_back(client: GroupClient, mine: Any) -> Procedure[None]:
    """A reservation without an answer may have landed: then readers of increments wait for it. If
    nobody answers, the client's next commit does it. If it is denied, it is a dead writer's."""
    taken, version = mine[0], mine[0].version
    try:
        if not version and isinstance(found := (yield from read(taken.requested)), Found):
            version = found.version if found.body == taken.body else ""
        if version:
            yield from delete(taken.requested, version)
    except (StoreError, TableError) as why:
        if isinstance(why, TableError) and len(client.ahead) < LEFT_MAX:
            client.ahead.insert(0, mine)  # a usable one is used first
    finally:
        client.own.discard(taken.instant)
