"""Deciding: one replacement of the fence decides all offers, or decides against an instant."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from lockkit.errors import TableError
from lockkit.protocol.outcome import (
    Applied,
    Found,
    IfVersion,
    Missing,
    PreconditionFailed,
    Throttled,
    Unknown,
    WriteAnswer,
)
from lockkit.runtime import Procedure, Put, Sleep, Unique, WallMs
from lockkit.runtime.proven import all_of, delete, listing, settle_write
from lockkit.runtime.proven import pause_s as throttled_s
from lockkit.table.errors import CommitUnknown
from lockkit.table.format.timeline import instant_of
from lockkit.table.occ.fence import COMMIT, FENCE_BYTES_MAX, FENCE_KEY
from lockkit.table.occ.group.client import (
    CONTENDED_FOR,
    TURNS_MAX,
    GroupClient,
    GroupWrite,
    timeline_key,
)
from lockkit.table.occ.group.decision import (
    REFUSED,
    WINDOW_MOST,
    GroupFence,
    Offer,
    decide,
    proven_until,
    refuse,
)
from lockkit.table.occ.group.fence import format_group_fence, parse_group_fence
from lockkit.table.occ.group.outcomes import bury, publish
from lockkit.table.occ.group.view import GroupView, look, look_at_one, open_offers, outcome, timely


def combine(client: GroupClient) -> Procedure[bool]:
    """Decide all offers. Any client may; two clients at once do no harm."""
    view = yield from look(client)
    return (yield from decide_once(client, view, (yield from open_offers(view))))


def decide_alone(
    client: GroupClient, view: GroupView, others: list[Offer], write: GroupWrite
) -> Procedure[bool]:
    """Decide this commit, and what others have offered; False: nothing is decided yet.

    Its owner counts, not what an earlier call of its owner has offered, whose base may be older.
    """
    return (yield from decide_once(client, view, [*others, write.offer()], write))


def decide_once(
    client: GroupClient, view: GroupView, offers: list[Offer], write: GroupWrite | None = None
) -> Procedure[bool]:
    """Replace exactly this fence by one that decides these offers; False: nothing was decided yet.

    The request is sent once (not `settle_write`). Without an answer it may land later; the fence
    that is read next then shows what it decided. `write` is the caller's own commit among the
    offers.
    """
    if early_ms := client.rate.early_ms(client.boot_ms()):
        yield Sleep(early_ms / 1000)
    attempt = yield Unique()
    client.name = client.name or attempt
    after = decide(
        view.fence, offers, attempt=attempt, combiner=publisher(client, view.fence),
        timely=timely(view), proven=client.proven, now=instant_of((yield WallMs())),
        window_max=client.window_max,
    )  # fmt: skip
    if after.last == view.fence.last:
        return False
    replacing = Put(FENCE_KEY, format_group_fence(after), IfVersion(view.version))
    sent_ms, began_ms = client.boot_ms(), (yield WallMs())
    beside, client.beside = client.beside if write else None, None
    answer, *_ = yield from all_of([answered(replacing, write), *([beside] if beside else [])])
    client.took(began_ms, (yield WallMs()))
    if isinstance(answer, Applied | PreconditionFailed):
        client.rate.judged_ms = client.boot_ms()
    if isinstance(answer, Applied):
        client.knows(after, answer.version)
        client.knew_ms = sent_ms
        client.rate.makes(after.round, sent_ms, client.boot_ms())
        client.won.add(after.round)
        met = client.is_slow and len(offers) > 1  # it counts no lost fence then
        client.contended = CONTENDED_FOR if met else max(0, client.contended - 1)
        return True
    client.contended = CONTENDED_FOR
    if isinstance(answer, Throttled):
        client.rate.refused(view.version, client.boot_ms(), answer.retry_after_s)
    if isinstance(answer, Throttled) and not client.is_slow:
        yield Sleep(throttled_s(0, answer.retry_after_s))
    return False


def publisher(client: GroupClient, fence: GroupFence) -> str:
    """Who publishes what this client decides: the client that is at work, so that two do not do the
    same.

    This is a hint. A client that waits long for the publishing does it.
    """
    all_done = proven_until(fence, client.proven) == fence.last
    return client.name if all_done or fence.combiner in ("", client.idle) else fence.combiner


def answered(request: Put, write: GroupWrite | None) -> Procedure[WriteAnswer]:
    """From now on the commit counts as sent, even if Ctrl-C comes before the answer, unless it
    is certainly refused."""
    answer: WriteAnswer
    if write is None:
        answer = yield request
        return answer
    before, write.sent = write.sent, True
    try:
        answer = yield request
    except Exception:
        write.sent = before
        raise
    write.sent = before or not isinstance(answer, Throttled)
    write.doubtful |= isinstance(answer, Unknown)
    return answer


def replace_group_fence(client: GroupClient, view: GroupView, after: GroupFence) -> Procedure[bool]:
    settled = yield from settle_write(
        FENCE_KEY, format_group_fence(after), IfVersion(view.version), limit=FENCE_BYTES_MAX
    )
    if isinstance(settled, Found):  # replaced since; it may also have been by a successor of ours
        with suppress(TableError):  # the next look says what is wrong with it
            client.knows(parse_group_fence(settled.body), settled.version)
    if isinstance(settled, Found | Missing):
        return False
    client.knows(after, settled)
    client.won.add(after.round)
    return True


def roll_back(client: GroupClient, instant: str, prefix: str) -> Procedure[bool]:
    """Decide against an instant whose writer is dead, or that was refused; delete its files.

    `prefix` is that of its data files.
    """
    view = yield from look_at_one(client, instant)
    kind = yield from outcome(view, instant)
    if kind == COMMIT or not view.keys:
        return False
    if not (yield from decide_against(client, view, instant, kind)):
        return False
    yield from bury(client.names, instant)
    for entry in (yield from listing(prefix)):
        yield from delete(entry.key)
    for state in ("inflight", "requested"):
        yield from delete(timeline_key(client.names, instant, state))
    return True


def decide_against(
    client: GroupClient, view: GroupView, instant: str, kind: str
) -> Procedure[bool]:
    """Whether the fence has decided against the instant, now or before (`kind`)."""
    if kind:
        return True
    after = yield from refused_in(client, view.fence, instant)
    return (yield from replace_group_fence(replace(client), view, after))


def refused_in(
    client: GroupClient, fence: GroupFence, instant: str, why: str = "", by: str = ""
) -> Procedure[GroupFence]:
    """The fence that decides against the instant.

    It has room: if each dead writer made the fence longer, nobody could read it in the end, and
    nobody could commit.
    """
    attempt = yield Unique()
    after = refuse(fence, instant, attempt, why=why, by=by, proven=client.proven)
    if len(after.window) > WINDOW_MOST:
        yield from publish(client)
        after = refuse(fence, instant, attempt, why=why, by=by, proven=client.proven)
    return after


def withdraw(
    client: GroupClient, instant: str, *, why: str = "withdrawn", by: str = ""
) -> Procedure[str]:
    """Decide against the client's own offer; another client's decision may come first."""
    for _ in range(TURNS_MAX):
        view = yield from look(client)
        if kind := (yield from outcome(view, instant)):
            return kind
        after = yield from refused_in(client, view.fence, instant, why, by)
        if (yield from replace_group_fence(client, view, after)):
            return REFUSED
    doubt = "it is offered and not decided: another client may still commit it"
    raise CommitUnknown(instant, doubt, (FENCE_KEY, timeline_key(client.names, instant, COMMIT)))
