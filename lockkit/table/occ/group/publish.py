"""Group commit of a prepared transaction, without a lock; docs/concepts/group_commit.md."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any, Protocol

from lockkit.clock import Clock
from lockkit.errors import StoreError, TableError, Unanswered
from lockkit.runtime import Note, Procedure, Unique, run
from lockkit.runtime.proven import all_of
from lockkit.sinks import Emit
from lockkit.stores import Store
from lockkit.table.errors import BrokenFence, CommitUnknown, ModeSwitched, NoTable, TableChanged
from lockkit.table.format.layout import NO_COMMIT, parse_commit
from lockkit.table.format.timeline import Timeline, TimelineNames, instant_ms
from lockkit.table.occ.commit import Committed
from lockkit.table.occ.conflict import SIMPLE, ConflictStrategy
from lockkit.table.occ.covered import pending_commits
from lockkit.table.occ.fence import COMMIT, FENCE_KEY, GROUP_FORMAT, NO_INSTANT
from lockkit.table.occ.group.ahead import (
    GroupAppend,
    GroupRewrite,
    give_back,
    is_busy,
    reserve_ahead,
)
from lockkit.table.occ.group.archived import completion_of
from lockkit.table.occ.group.client import (
    CONTENDED_FOR,
    FOLLOWS_MS,
    TURNS_MAX,
    GroupClient,
    GroupWrite,
    decision_in,
    named,
    schema_id,
)
from lockkit.table.occ.group.combine import replace_group_fence
from lockkit.table.occ.group.commit import PASSED, decided, loses, see_others
from lockkit.table.occ.group.decision import GroupDecision, GroupFence
from lockkit.table.occ.group.fence import read_group_fence
from lockkit.table.occ.group.gone import confirmed, is_gone, note_gone
from lockkit.table.occ.group.outcomes import bury, publish_round, publishes
from lockkit.table.occ.group.process import process_of
from lockkit.table.occ.group.refused import noting, passed, refusal_of, shown_in
from lockkit.table.occ.group.settings import recheck
from lockkit.table.occ.group.view import has_gap, known_decisions, look, view_beside
from lockkit.table.occ.group.waiting import newest_known, others_publish
from lockkit.table.occ.prepared import Prepared
from lockkit.table.occ.publish import after_commit, deferred
from lockkit.table.occ.transaction import Transaction

OWNER_PATIENCE_S = 0.5
"""After so long an owner publishes what another client has decided and not published."""


class GroupContext(Protocol):
    """What a process commits with."""

    together: list[GroupClient]
    own: set[str]
    lingering: list[threading.Thread] | None
    store: Store
    clock: Clock

    @property
    def emit(self) -> Emit: ...


def new_client(
    names: TimelineNames, boot_ms: Callable[[], int] = int, own: set[str] | None = None,
    reserves: bool = False,
) -> GroupClient:  # fmt: skip
    own = set() if own is None else own
    return GroupClient(names=names, boot_ms=boot_ms, own=own, reserves=reserves)


def in_group(clients: list[GroupClient], rewrites: bool) -> GroupAppend | None:
    """How this client takes an instant and lists; None before its first commit."""
    kind = GroupRewrite if rewrites else GroupAppend
    return kind(clients[0]) if clients else None


def publish_together(
    client: GroupClient, prepared: Prepared, strategy: ConflictStrategy = SIMPLE,
    append: GroupAppend | None = None,
) -> Procedure[Committed]:  # fmt: skip
    """Have the transaction decided, by this client or by another one.

    The caller has it published (`publish_behind`): the decision is in the client's `behind`. A
    second call finds the result of the first. Raises `CommitConflict`, `LockLost` (another writer
    rolled it back), `TableError` or `StoreError`: it is not committed, and never will be.
    `CommitUnknown`: another client may still commit it.
    """
    if strategy != SIMPLE:
        raise TableError(
            "a table with group commit",
            "has the conflict strategy of file groups only (`SIMPLE`): other clients decide for "
            "this one", "leave out the strategy",
        )  # fmt: skip
    yield from _recheck(client, prepared, append)
    yield from _raise_format(client)
    instant = prepared.instant
    write = client.writing = _write_of(client, prepared)
    write.listed = append is None or append.listed is not None
    if append is not None and append.columns_at:
        write.sees_columns(client.known, append.columns_at)
    if append is not None and append.beside is not None:
        others = _under_way(instant, append.beside) - client.ours
        see_others(client, write, others, append.beside.foreign)
    write.follows &= write.listed
    if write.listed and any(not decision_in(client.known, each) for each in write.earlier):
        client.contended = CONTENDED_FOR  # what is decided may be its own, not published yet
    write.only, write.began = (append.only, append.began) if append is not None else ("", 0)
    try:
        view = None
        if append is not None and (listed := append.decides_by(write.follows)) is not None:
            began = prepared.transaction
            began = replace(began, timeline=append.beside or began.timeline)
            view, write.meets = view_beside(client, listed, _keys_of(began)), listed.is_replaced
            write.eager = loses(client, write) or (append.rested and saves_time(client, write))
        client.beside = beside_decision(client, prepared) if append is not None else None
        if write.eager and client.loses and client.reserves:
            write.ahead = reserve_ahead(client, prepared.transaction.taken)
        yield Note("checked", {
            "instant": instant, "epoch": 0, "covered": sorted(write.seen),
            "horizon": write.horizon, "writes": sorted(map(list, write.writes)), "together": True,
        })  # fmt: skip
        kind = yield from decided(client, write, view=view)
        if kind == PASSED:
            raise passed(instant, client.known.newest if client.known else "")
        write.sent |= kind == COMMIT  # no error from here on says that it is not committed
        entry = yield from _entry_of(client, instant, kind)
        if kind == COMMIT and entry is not None:
            client.behind.append(entry)
            client.acked_ms = client.boot_ms()
            return Committed(instant, 0, entry.round, (), entry.completion)
    except CommitUnknown as unknown:
        unknown.prepared = prepared
        raise
    except ModeSwitched:
        # The fence was closed before, with all that was decided in the timeline or the archive.
        found = yield from completion_of(client.names, instant)
        if found is None:
            raise
        return Committed(instant, 0, 0, (), found or None)
    except Exception as error:
        if isinstance(error, TableChanged) or (not write.sent and _is_not_done(error)):
            raise  # another table's fence decides nothing that was offered to this one
        if isinstance(error, BrokenFence) and (yield from is_gone(write, prepared)):
            why = "is gone: the table was deleted under this commit"
            raise NoTable(FENCE_KEY, why, "make it again with Table.create") from error
        open_outcome = CommitUnknown(instant, str(error), shown_in(client, write))
        open_outcome.prepared = prepared
        raise open_outcome from error
    yield from _bury(client, instant, entry)
    refusal = refusal_of(instant, kind, entry, client.known.since if client.known else NO_INSTANT)
    yield Note("refused", {"instant": instant, "epoch": 0, "error": type(refusal).__name__,
                           "why": str(refusal)})  # fmt: skip
    raise refusal


def _bury(
    client: GroupClient, instant: str, entry: GroupDecision | None
) -> Procedure[None]:  # fmt: skip
    """Write the tombstone of a refused instant; if the store fails, the next client does it."""
    with suppress(StoreError, Unanswered):
        yield from bury(client.names, instant)
        if entry is not None and client.known is not None:
            client.saw(client.known.table, [entry.seq])


def publish_in_group(
    context: GroupContext, prepared: Prepared, strategy: ConflictStrategy,
    append: GroupAppend | None = None,
) -> Committed:  # fmt: skip
    """The same on a store, by this process's client. The first commit makes that client."""
    clients = context.together
    if not clients:
        reserves = context.lingering is not None
        clients.append(new_client(prepared.names, context.clock.boot_ms, context.own, reserves))
        clients[0].process = process_of(context.store.url, context.store.server)
    clients[0].held = threading.Lock()
    with clients[0].held, noting(clients[0], prepared), noting(clients[0], prepared):
        try:
            way = publish_together(clients[0], prepared, strategy, append)
            # Closed at once also by Ctrl-C: then it is another thread's turn to decide.
            with deferred(context.emit) as later, closing(way):
                committed: Committed = run(way, context.store, context.clock, later)
        except BaseException:
            if clients[0].ahead:  # reserved beside a decision that was not made
                linger(context, give_back(clients[0]), "give-back")
            raise
    with after_commit(committed):
        _publish_later(context)
    return committed


def _publish_later(context: GroupContext) -> None:
    """In a thread that the process joins before it exits; at once if nothing would join the
    thread."""
    client = context.together[0]
    while client.behind:
        mine = client.behind.pop()
        if context.lingering is None:
            client.watches = False  # its caller waits
            _publish_now(context, see_published(client, mine))
        else:
            way = confirmed(client, mine, publish_behind(client, mine))
            linger(context, way, f"publish-{mine.instant}")


def linger(context: GroupContext, way: Procedure[Any], name: str) -> None:
    """Carry out what nobody waits for, in a thread that the process joins before it exits; at once
    if nothing would join it."""
    if (lingering := context.lingering) is None:
        return _publish_now(context, way)
    lingering[:] = [each for each in lingering if each.is_alive()]
    thread = threading.Thread(target=_publish_now, args=(context, way), name=f"lockkit-{name}")
    try:
        thread.start()
        lingering.append(thread)
    except RuntimeError:  # no more threads in this process, or it is about to exit
        _publish_now(context, way)


def _publish_now(context: GroupContext, way: Procedure[Any]) -> None:
    with suppress(TableError, StoreError), closing(way):  # decided: the next client publishes it
        run(way, context.store, context.clock, context.emit)


def _keys_of(began: Transaction) -> frozenset[str]:
    """The keys of the transaction's listing that a decision needs."""
    now, done = began.timeline, began.timeline.completion
    names = {f"{each}.requested" for each in now.pending}
    names |= {f"{each}{f'_{done[each]}' if each in done else ''}.commit" for each in now.commits}
    return frozenset(began.taken.names.folder + each for each in (*names, *now.foreign))


def beside_decision(client: GroupClient, prepared: Prepared) -> Procedure[None] | None:
    """A busy writer reserves its next instant in parallel with the decision of this one."""
    return reserve_ahead(client, prepared.transaction.taken) if is_busy(client) else None


def saves_time(client: GroupClient, write: GroupWrite) -> bool:
    """Whether an append may lose the fence to an earlier commit under way. Then an offer beside
    the replacement saves time."""
    first = (each for each in write.earlier if not decision_in(client.known, each))
    return write.blind and client.contended > 0 and any(first)


def _recheck(
    client: GroupClient, prepared: Prepared, append: GroupAppend | None
) -> Procedure[None]:  # fmt: skip
    """Read the properties if they are due; and the fence in parallel if it is not known."""
    if append is not None and append.late is not None:
        raise append.late
    unknown = client.known is None
    reads: list[Procedure[Any]] = [read_group_fence()] if unknown else []
    *found, _ = yield from all_of([*reads, recheck(client, prepared.transaction.taken)])
    if unknown:
        client.knows(*found[0])


def _raise_format(client: GroupClient) -> Procedure[None]:
    """Older lockkits must refuse the table before a commit goes without an inflight file."""
    for _ in range(TURNS_MAX):
        if not client.known or client.known.format >= GROUP_FORMAT:
            return
        view = yield from look(client)
        after = replace(view.fence, attempt=(yield Unique()), round=view.fence.round + 1,
                        format=GROUP_FORMAT)  # fmt: skip
        yield from replace_group_fence(client, view, after)
    raise TableError(FENCE_KEY, f"was replaced by others in {TURNS_MAX} tries", "try again")


def _write_of(client: GroupClient, prepared: Prepared) -> GroupWrite:
    """The offer's content. Its base is the last decision that the transaction's listing shows."""
    assert client.known is not None
    began = prepared.transaction
    client.horizon = began.horizon
    surveyed = began.timeline.fence
    if surveyed is not None:
        fence, version = surveyed
        if fence.round > client.known.round and not has_gap(client.known, fence):
            client.contended, knew_ms = CONTENDED_FOR, client.knew_ms
            client.knows(fence, version)
            client.knew_ms = knew_ms  # it was read a while ago
    fence, covered = client.known, began.covered
    client.proven |= {each.seq for each in fence.window
                      if each.kind == COMMIT and each.instant in covered
                      and each.instant not in began.timeline.tail}  # fmt: skip
    # A new group with an id of its own (`free_file_id`); those of buckets are the same for all.
    files = parse_commit(prepared.instant, prepared.inflight, prepared.body)
    appends = began.action == COMMIT and all(
        each.previous == NO_COMMIT and each.group[1].startswith("f") for each in prepared.stats
    )
    under_way = _under_way(prepared.instant, began.timeline) - client.ours
    earlier = frozenset(each for each in under_way if each < prepared.instant)
    # Where nothing of the window is covered, what left it may not be either.
    write = GroupWrite(
        prepared.instant, began.taken.attempt, 0, began.base, began.horizon,
        named(files), schema_id(files.schema), prepared.grows,
        blind=appends and not prepared.grows, body=prepared.body, action=began.action,
        surveyed=surveyed is not None and surveyed[0].round <= fence.round,
        follows=surveyed is not None and bool(earlier), earlier=earlier,
    )  # fmt: skip
    write.see(fence)
    return write


def _under_way(instant: str, now: Timeline) -> frozenset[str]:
    """Commits that are under way; an old one may be a dead writer's."""
    since_ms = instant_ms(instant) - FOLLOWS_MS
    return frozenset(each for each in pending_commits(now) if instant_ms(each) > since_ms)


def _entry_of(client: GroupClient, instant: str, kind: str) -> Procedure[GroupDecision | None]:
    """The decision; None for a refusal that has left the window. A tombstone may be listed beside
    the fence from before that decision.
    """
    for again in (True, False):
        assert client.known is not None
        found = known_decisions(None, client.known).get(instant)
        if found is not None:
            return found
        if again:
            client.knows(*(yield from read_group_fence()))
    if kind != COMMIT:
        return None
    # It has left the window, so it is published, and may be archived by now.
    completion = yield from completion_of(client.names, instant)
    return GroupDecision(0, 0, COMMIT, instant, completion or None)


def see_published(
    client: GroupClient, mine: GroupDecision, *, patience_s: float | None = None,
    fence: GroupFence | None = None,
) -> Procedure[bool]:  # fmt: skip
    """Wait until the completed file exists: then readers that know nothing of the fence see the
    commit.

    The client that the fence names publishes it, and all before it. The others wait for that
    client, so that not all publish the same files: for `patience_s`, or a few round trips. `fence`
    has the decision; by default it is the one that the client knows. Returns whether this call
    published it.
    """
    fence = fence or client.known
    assert fence is not None
    others = not publishes(client, fence)
    if others and not (yield from others_publish(client, fence, mine, patience_s)):
        fence, others = newest_known(client, fence), False
        client.idle = fence.combiner
    if not others and not (yield from publish_round(client, fence, mine)):
        yield from note_gone(mine)
        return False
    batch = sum(each.round == mine.round for each in fence.window)
    decided = {"batch": batch} if mine.round in client.won else {}
    yield Note("published", {"instant": mine.instant, "epoch": 0} | decided)
    return not others


def publish_behind(client: GroupClient, mine: GroupDecision) -> Procedure[int | None]:
    """A writer's work after its commit is acknowledged, in a thread of its own.

    Returns when it published the commit, if it did, by `boot_ms`. If it fails, or its process ends,
    the next writer or reader publishes the commit. When the thread runs, the client may already
    know the fence of another table.
    """
    return _publish_behind(client, mine, client.known)


def _publish_behind(
    client: GroupClient, mine: GroupDecision, fence: GroupFence | None
) -> Procedure[int | None]:
    published_ms = None
    try:
        if (yield from see_published(client, mine, patience_s=OWNER_PATIENCE_S, fence=fence)):
            published_ms = client.boot_ms()
    except (TableError, StoreError) as error:
        text = f"is left to the next client to be published: {error}"
        yield Note("note", {"text": text, "instant": mine.instant})
    yield from give_back(client)
    return published_ms


def _is_not_done(error: Exception) -> bool:
    return isinstance(error, TableError | StoreError) and not (
        isinstance(error, Unanswered) and error.doubt
    )
