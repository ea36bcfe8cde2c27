"""Publishing: the outcome file of each decision, in the order of the decisions.

Any client may publish. The fence names one client, so that two do not do the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise

from lockkit.errors import TableError
from lockkit.protocol.outcome import Found, IfAbsent, IfVersion, Missing
from lockkit.runtime import Parallel, Procedure, Sleep
from lockkit.runtime.proven import all_of, create, delete, listing, read, settle_write
from lockkit.table.format.properties import PROPERTIES_KEY
from lockkit.table.format.property_keys import FENCE_FORMAT, PROPERTIES_BYTES_MAX, parse_properties
from lockkit.table.format.timeline import TimelineNames
from lockkit.table.occ.fence import COMMIT, FENCE_BYTES_MAX, FENCE_KEY, digest
from lockkit.table.occ.group.client import GroupClient, completed_key, rounds, timeline_key
from lockkit.table.occ.group.decision import (
    UNPUBLISHED_MAX,
    GroupDecision,
    GroupFence,
    Offer,
    is_proven,
)
from lockkit.table.occ.group.fence import (
    blind_name,
    is_tombstone,
    parse_group_fence,
    tombstone,
    unpacked,
)
from lockkit.table.occ.group.view import GroupView, is_completed, list_instants, look

PUBLISHING_TURNS_MAX = 8 * UNPUBLISHED_MAX
"""A thread waits so many round trips for another thread of its process, which publishes for it."""
FRESH_ROUNDS = 2
"""Other clients do not yet publish what was decided in the latest rounds."""
LEFT_MAX = 8
"""A client leaves the publishing to another one that it met for at most so many round trips."""
READ_AHEAD = 8
"""A publisher reads so many inflight files ahead while it publishes."""
BESIDE_LEAST = 3
"""With fewer decisions, it reads the fence after it has published them."""
ROOM_TRIPS = 8
"""A client waits so many round trips for the publisher before it looks."""
PUBLISHER_TRIPS, PUBLISHER_READS, REWRITER_READS = 10, (1, 4, 10), (6, 10)
"""For so many round trips the client that publishes for others looks whether its own writer
knows a newer fence. After so many it reads the fence itself; later if its writer rewrites,
because that writer reads the fence in each round."""
SURE_MS = 500
"""For how long a fence that was read shows that the table is the same; `confirmed` looks later."""


def publish(
    client: GroupClient, view: GroupView | None = None, *,
    beside: Procedure[GroupFence | None] | None = None,
) -> Procedure[GroupFence | None]:  # fmt: skip
    """Create the outcome files of all decisions: a round only after every earlier round.

    In table version 6 those of a round in parallel. In version 9 one by one, in the order of their
    completion times: a reader of increments that sees one has seen all before it.
    `beside` is carried out in parallel with the last ones; its result is returned.
    """
    view = view or (yield from look(client))
    left = [each for each in view.fence.window if not is_proven(view.fence, each, client.proven)]
    parts = rounds(replace(view.fence, window=tuple(left)))
    if view.fence.completion is not None:
        parts = [left[at : at + READ_AHEAD] for at in range(0, len(left), READ_AHEAD)]
    bodies = (yield from unpublished_bodies(client, view, parts[0])) if parts else {}
    for part, coming in pairwise(parts):
        work = publish_part(client, view, part, bodies)
        bodies, _ = yield Parallel((unpublished_bodies(client, view, coming), work))
    last = [publish_part(client, view, part, bodies) for part in parts[-1:]]
    beside = beside if len(left) >= BESIDE_LEAST else None
    done = yield from all_of([*last, *([beside] if beside else [])])
    newer: GroupFence | None = done[-1] if beside else None
    return newer


def publish_part(
    client: GroupClient, view: GroupView, part: list[GroupDecision], bodies: Mapping[str, bytes]
) -> Procedure[None]:
    for together in rounds(replace(view.fence, window=tuple(part))):
        met = yield from all_of([publish_one(client, view, each, bodies) for each in together])
        if any(met):
            yield from let_publish(client, view.fence, part)


def let_publish(
    client: GroupClient, fence: GroupFence, due: list[GroupDecision]
) -> Procedure[None]:
    """Another client publishes the same decisions: leave some to it, and list what it has
    published."""
    left = [each for each in due if not is_proven(fence, each, client.proven)]
    if not is_publisher(client, fence):
        yield Sleep(client.trip_ms / 1000 * min(len(left), LEFT_MAX), client.closing)
    if len(left) > 1:
        yield from are_published(client, fence.table, left)


def make_room(client: GroupClient, fence: GroupFence) -> Procedure[None]:
    """Wait until some decisions are published; publish them if the client named for it does not.

    Otherwise each writer that waits would read and publish the same files.
    """
    left = [each for each in fence.window if not is_proven(fence, each, client.proven)]
    at_work = client.publishing.locked() if is_publisher(client, fence) else fence.combiner
    # A rollback has its tombstone already: waiting shows nothing, so all are looked at below.
    if left and left[0].kind == COMMIT and at_work and fence.combiner != client.idle:
        yield Sleep(client.trip_ms / 1000 * ROOM_TRIPS, client.closing)
        if (yield from is_published(client, fence.table, left[:1])):
            return
        client.idle = fence.combiner
    yield from publish(client)


def unpublished_bodies(
    client: GroupClient, view: GroupView, due: list[GroupDecision]
) -> Procedure[dict[str, bytes]]:
    """The content of the completed files that are still missing, read in parallel."""
    left = [each for each in due if each.kind == COMMIT and not is_completed(view, each.instant)]
    own = {each.instant: body for each in left
           if (body := client.bodies.get(each.instant) or unpacked(each))}  # fmt: skip
    others = [each for each in left if each.instant not in own]
    found = yield from all_of([decided_body(view, each) for each in others])
    return own | {each.instant: body for each, body in zip(others, found, strict=True)}


def decided_body(view: GroupView, each: GroupDecision) -> Procedure[bytes]:
    """The content of its inflight file, or of an append's offer; b"" if neither is there.

    That offer's name has the columns of the fence, unless these have changed since.
    """
    by_name = Offer(each.instant, 0, sha256=each.sha256, blind=True, table=view.fence.table,
                    schema=each.schema or view.fence.schema)  # fmt: skip
    keys = [view.names.inflight(each.instant, each.action)]
    if each.writes is not None and not each.writes:
        keys.insert(0, view.names.folder + blind_name(by_name))
    if body := (yield from first_with(each.sha256, keys)):
        return body
    entries = yield from listing(f"{view.names.folder}{each.instant}.")
    keys = [entry.key for entry in entries if entry.key.endswith(".append")]
    return (yield from first_with(each.sha256, keys))


def first_with(sha256: str, keys: Iterable[str]) -> Procedure[bytes]:
    """The first content with this digest; b"" if none of these objects has it."""
    for key in keys:
        found = yield from read(key)
        if isinstance(found, Found) and digest(found.body) == sha256:
            return found.body
    return b""


def publish_one(
    client: GroupClient, view: GroupView, each: GroupDecision, bodies: Mapping[str, bytes]
) -> Procedure[bool]:
    """Whether its completed file existed before."""
    met = False
    if is_proven(view.fence, each, client.proven) or each.instant <= client.archived:
        return met
    if each.kind != COMMIT:
        yield from bury(client.names, each.instant)
    elif not is_completed(view, each.instant):
        body = bodies.get(each.instant, b"")
        if digest(body) != each.sha256:
            raise TableError(
                each.instant,
                f"is decided, and {view.names.inflight(each.instant, each.action)} is missing or "
                "is not what was decided, and no offer has it",
                "restore that object, or the offer, from its versions",
            )

        def is_ours(there: bytes) -> bool:
            nonlocal met
            met = there == body
            return met

        settled = yield from settle_write(completed_key(each), body, IfAbsent(), is_ours=is_ours)
        if isinstance(settled, Found):
            raise TableError(
                completed_key(each),
                "differs from its inflight file, which the fence names",
                "restore one of them: until then nothing more is published. If this is a copy of "
                "the table, run: lockkit table mode URL fenced; then: lockkit table mode URL group",
            )
    client.saw(view.fence.table, [each.seq])
    client.bodies.pop(each.instant, None)
    return met


def publish_round(client: GroupClient, fence: GroupFence, mine: GroupDecision) -> Procedure[bool]:
    """Publish `mine`, and all decisions that this client knows.

    A client that publishes for others then goes on with what they have decided meanwhile. False:
    the table is gone, or another one was made in its place, so nothing is published.
    """
    for _ in range(PUBLISHING_TURNS_MAX):
        if mine_alone := client.publishing.acquire(blocking=False):
            break
        yield Sleep(client.trip_ms / 1000)  # another thread of this client is at it
        if is_proven(fence, mine, client.proven):
            return True
    try:
        more: GroupFence | None = fence
        while more is not None:
            fence = more
            view = GroupView(fence, client.version, {}, frozenset(), client.horizon)
            left = [e for e in fence.window if not is_proven(fence, e, client.proven)]
            if len(left) > 1 and left[0].round < fence.round - FRESH_ROUNDS:
                yield from are_published(client, fence.table, left)  # perhaps by others
            if not (yield from is_there(client, fence.table, client.boot_ms() - SURE_MS)):
                return False
            newer = yield from publish(client, view, beside=fence_beside(client, fence))
            more = newer or (yield from to_be_published(client, fence))
    finally:
        if mine_alone:
            client.publishing.release()
    return (yield from stays(client, fence, client.boot_ms() - SURE_MS))


def fence_beside(client: GroupClient, done: GroupFence) -> Procedure[GroupFence | None]:
    """The decisions made since, read while this client publishes earlier ones. It also reads the
    first inflight files to publish then."""
    if not client.contended or not publishes(client, done) or rewrites(client):
        return None
    began_ms = client.boot_ms()
    found = yield from read(FENCE_KEY, limit=FENCE_BYTES_MAX)
    if not isinstance(found, Found) or (fence := parse_group_fence(found.body)).table != done.table:
        return None
    client.knew_ms = max(client.knew_ms, began_ms)
    client.archived = max(client.archived, fence.archived)
    if not publishes(client, fence) or fence.last == done.last:
        return None
    new = [each for each in fence.window if each.seq > done.last][:READ_AHEAD]
    view = GroupView(fence, found.version, {}, frozenset())
    client.bodies |= yield from unpublished_bodies(client, view, new)
    return fence


def to_be_published(client: GroupClient, done: GroupFence) -> Procedure[GroupFence | None]:
    """The decisions made since, while this client publishes for others and they commit, too.

    Mostly its main thread reads the fence. `client.known` belongs to that thread, and is not
    changed here.
    """
    known, version = done, ""
    reads = REWRITER_READS if rewrites(client) else PUBLISHER_READS
    for trips in range(PUBLISHER_TRIPS + 1 if client.watches else 1):
        yield Sleep(client.trip_ms / 1000 if trips else 0, client.closing)
        if client.known is not None and client.known.round > known.round:
            known = client.known
        elif trips in reads and client.contended and not client.closing.is_set():
            found = yield from read(FENCE_KEY, unless=version or None, limit=FENCE_BYTES_MAX)
            if isinstance(found, Found):
                known, version = parse_group_fence(found.body), found.version
        if known.table != done.table or not publishes(client, known):
            return None
        if known.last > done.last:
            return known
    return None


def rewrites(client: GroupClient) -> bool:
    return client.writing is not None and not client.writing.blind


def is_publisher(client: GroupClient, fence: GroupFence) -> bool:
    return bool(client.name) and fence.combiner == client.name


def publishes(client: GroupClient, fence: GroupFence) -> bool:
    """Whether this client publishes for others: the fence names it, or one that it found idle."""
    return is_publisher(client, fence) or bool(client.idle and fence.combiner == client.idle)


def stays(client: GroupClient, fence: GroupFence, since_ms: int) -> Procedure[bool]:
    """Whether what was published since then is in the table of this fence; if not, it is deleted
    again."""
    if (yield from is_there(client, fence.table, since_ms)):
        return True
    for each in fence.window:
        found = yield from read(completed_key(each))
        if isinstance(found, Found) and digest(found.body) == each.sha256:
            if (yield from is_there(client, fence.table, since_ms)):  # it was only moved away
                return True
            yield from delete(completed_key(each), found.version)
    return False


def is_there(client: GroupClient, table: str, since_ms: int) -> Procedure[bool]:
    """Whether the table still exists, by its fence if that was not seen since then.

    A paused publisher must not put a commit into the table that was made in its place.
    """
    known, version = client.known, client.version
    same = known is not None and known.table == table
    if same and client.knew_ms >= since_ms:
        return True
    began_ms = client.boot_ms()
    found = yield from read(FENCE_KEY, unless=version if same else None, limit=FENCE_BYTES_MAX)
    if isinstance(found, Found):
        read_fence = parse_group_fence(found.body)
        same = read_fence.table == table
        client.archived = max(client.archived, read_fence.archived if same else "")
    if isinstance(found, Missing):
        return (yield from has_lost_fence(client, table))
    if same:
        client.knew_ms = max(client.knew_ms, began_ms)
    return same


def has_lost_fence(client: GroupClient, table: str) -> Procedure[bool]:
    """Whether the table exists without its fence: somebody may put the fence back.

    A new table gets its fence before its properties. A table that is being deleted soon has
    neither.
    """
    yield Sleep(SURE_MS / 1000, client.closing)
    found = yield from read(PROPERTIES_KEY, limit=PROPERTIES_BYTES_MAX)
    if not isinstance(found, Found) or FENCE_FORMAT not in parse_properties(found.body):
        return False
    again = yield from read(FENCE_KEY, limit=FENCE_BYTES_MAX)
    return not isinstance(again, Found) or parse_group_fence(again.body).table == table


def unproven(client: GroupClient, fence: GroupFence, mine: GroupDecision) -> list[GroupDecision]:
    """The decisions up to `mine` that this client does not know to be published."""
    every = [*(each for each in fence.window if each.seq < mine.seq), mine]
    return [each for each in every if not is_proven(fence, each, client.proven)]


def are_published(client: GroupClient, table: str, left: list[GroupDecision]) -> Procedure[bool]:
    """Whether the last of these is published; one listing. Notes each one that is."""
    if len(left) == 1:
        return (yield from is_published(client, table, left))
    keys = {each.key for each in (yield from list_instants(client))}
    there = [each for each in left if completed_key(each) in keys]
    client.saw(table, [each.seq for each in there])
    return left[-1] in there


def is_published(client: GroupClient, table: str, left: list[GroupDecision]) -> Procedure[bool]:
    """Whether the last of these is published; one small read.

    If it is a commit, those of earlier rounds are published, too; in table version 9 all before it.
    """
    last = left[-1]
    commit, refused = last.kind == COMMIT, timeline_key(client.names, last.instant, "offer")
    found = yield from read(completed_key(last) if commit else refused)
    if not isinstance(found, Found) or (not commit and not is_tombstone(found.body)):
        return False
    before = {each.seq for each in left if last.completion or each.round < last.round}
    client.saw(table, {last.seq} | (before if commit else set()))
    return True


def bury(names: TimelineNames, instant: str) -> Procedure[None]:
    """The tombstone of an instant that the fence has decided against."""
    key, body = timeline_key(names, instant, "offer"), tombstone(instant)
    settled = yield from create(key, body)
    while isinstance(settled, Found) and not is_tombstone(settled.body):
        replaced = yield from settle_write(key, body, IfVersion(settled.version))
        settled = replaced if isinstance(replaced, Found) else ""
