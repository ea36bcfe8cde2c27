"""The scenario `group`: writers commit together, publish, read, roll back, stall and crash.

Judged while it runs by the store's own record: the judge
reads the fence, the timeline and the data files by itself.
One file because a scenario's judge, its writers and its mistakes are read together.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import Any

from lockkit.errors import NoAnswer, StoreError, TableError, Unanswered
from lockkit.lab.verify.mutants import Mutant
from lockkit.lab.verify.planting import Plants, answering
from lockkit.lab.verify.sim import SimScenario
from lockkit.lab.verify.sim.lease import world_of
from lockkit.lab.verify.sim.memory_store import DecidedRequest, StoredObject
from lockkit.lab.verify.sim.run import SeedRun
from lockkit.lab.verify.sim.task import Node, Violated
from lockkit.lab.verify.table.ledger import decided_body
from lockkit.protocol.outcome import Applied, Found, IfAbsent, Missing
from lockkit.runtime import Delete, Procedure, Put, Sleep, Unique, WallMs
from lockkit.runtime.proven import all_of, create, delete, listing, put_once, read
from lockkit.table.errors import CommitUnknown, ModeSwitched, TableBlocked
from lockkit.table.format.layout import FileGroup
from lockkit.table.format.properties import PROPERTIES_KEY, TableConfig
from lockkit.table.format.property_keys import parse_properties
from lockkit.table.format.timeline import V6, V9, Timeline, TimelineNames, instant_ms, instant_of
from lockkit.table.occ.commit import EpochGuard
from lockkit.table.occ.fence import COMMIT, FENCE_KEY, NO_INSTANT, is_grouped
from lockkit.table.occ.group import combine as group_combine
from lockkit.table.occ.group import commit as group_commit
from lockkit.table.occ.group import offer as group_offer
from lockkit.table.occ.group import outcomes as group_outcomes
from lockkit.table.occ.group import view as group_view
from lockkit.table.occ.group.archived import completion_of
from lockkit.table.occ.group.client import (
    GroupClient,
    GroupWrite,
    decision_in,
    instant_in,
    timeline_key,
)
from lockkit.table.occ.group.combine import combine
from lockkit.table.occ.group.decision import (
    REFUSED,
    GroupDecision,
    GroupFence,
    Offer,
    close_for,
    evict,
    judge,
    reaches,
    refuse,
)
from lockkit.table.occ.group.fence import (
    OFFERS,
    PACKED_MAX,
    format_group_fence,
    format_offer,
    full_offer,
    parse_offer,
    read_group_fence,
)
from lockkit.table.occ.group.mode import LAST, from_group, has_group_fence, to_group
from lockkit.table.occ.group.outcomes import publish
from lockkit.table.occ.group.view import (
    GroupView,
    known_decisions,
    list_instants,
    look,
    look_whole,
    pull_until,
)
from lockkit.table.services.archive_group import decide_nothing_until, named_by_fence

STEPS = 400
ACTIONS_MAX = 24
AHEAD, SLOW, ARCHIVES, SWITCHES = 0.3, 0.3, 0.4, 0.5
EAGER = 0.5
"""How many commits are offered beside the replacement of the fence."""
SWITCHED = 0.06
SMALL, LARGE = 0.25, 0.3
"""In how many worlds small commits have no inflight file, and how many are too large there."""
KEPT_MIN = 2
ARCHIVE = "archive/"
FILE_GROUPS = ("a", "b", "c")
DATA = "data/"
TABLE = "t"
CONFIG = TableConfig(name=TABLE, record_key="id")
ONCE, KEPT, NO_MEANS_NO = "once", "kept", "no means no"
NO_LOST_UPDATE, VISIBLE = "no lost update", "visible means decided"
PREFIX, BEHIND_NOBODY, WHOLE = "prefix", "behind nobody", "whole"
ALONE = "alone"
SERIAL = "serial writer"
"""The client that commits while the table takes serial commits."""
EXPECTED = (Unanswered, NoAnswer, CommitUnknown, TableError)


def no_columns(_names: TimelineNames, _now: Timeline) -> Procedure[str]:
    """The commits of this world have no schema."""
    yield from ()
    return ""


def groups_of(body: bytes) -> frozenset[FileGroup]:
    return frozenset((partition, file_id) for partition, file_id in json.loads(body)["writes"])


def files_of(instant: str) -> str:
    return f"{DATA}{instant}_"


@dataclass(slots=True)
class GroupRun(SeedRun):
    """The writers of one world, and what the judge has seen of them."""

    window_max: int
    names: TimelineNames
    decided: dict[float, dict[str, Any]] = field(default_factory=dict)
    by_instant: dict[str, dict[str, Any]] = field(default_factory=dict)
    bodies: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What the owner of each commit had said when it was decided."""
    denied: set[str] = field(default_factory=set)
    """Instants whose owners got the answer that they are not committed."""
    inflight: bool = False
    """Whether every commit has an inflight file, also a small one."""
    archives: bool = False
    """Whether a process moves old instants out of the timeline."""
    reserves_ahead: bool = False
    """Whether a writer's next instant is reserved beside the decision of the one before."""
    switches: bool = False
    """Whether the table leaves group commit now and then, and returns to it."""
    switcher: int = 0
    """Who holds the table's lock: each one takes it from the one before."""
    passed: str = ""
    """Up to here some reader of increments has read everything."""

    # --- what must hold --------------------------------------------------------------------------

    def on_write(self, decided: DecidedRequest, after: StoredObject | None) -> None:
        key = getattr(decided.request, "key", "")
        if key == FENCE_KEY and after is not None and not is_grouped(after.body):
            self.world.reached.add("switch")
        elif key == FENCE_KEY and after is not None:
            for entry in json.loads(after.body)["window"]:
                if entry["seq"] not in self.decided:
                    self._decide(entry)
                elif self.decided[entry["seq"]]["instant"] != entry["instant"]:
                    raise Violated(ONCE, f"decision {entry['seq']} has changed")
                self._is_somewhere(entry)
        elif key.endswith(".commit") and after is not None and decided.before == "":
            self._publish(instant_in(key), after.body)
        elif key.startswith(ARCHIVE):
            self.world.reached.add("archive")
        elif key.endswith(".rewrite"):
            self.world.reached.add("named")
        elif after is None:
            instant = key.removeprefix(DATA).partition("_")[0]
            if key.startswith(DATA) and self._is_commit(instant):
                raise Violated(KEPT, f"{key} is deleted, but {instant} is committed")

    def _is_somewhere(self, entry: dict[str, Any]) -> None:
        objects = self.world.memory_store.objects
        over = entry["kind"] != COMMIT or self._is_published(entry["instant"])
        if not over and decided_body(objects, entry) is None:
            raise Violated(KEPT, f"{entry['instant']} is decided, but its content is nowhere")

    def _decide(self, entry: dict[str, Any]) -> None:
        instant = entry["instant"]
        if instant in self.by_instant:
            raise Violated(ONCE, f"{instant} is decided twice")
        if ARCHIVE + instant in self.world.memory_store.objects:
            raise Violated(ONCE, f"{instant} is archived, but decided again")
        self.decided[entry["seq"]] = self.by_instant[instant] = entry
        if entry["kind"] != COMMIT:
            missed = entry["why"] == "conflict" and not entry["by"]  # its owner may have missed it
            self.world.reached.add("withdrawn" if missed else entry["why"] or entry["kind"])
            return
        if instant in self.denied:
            raise Violated(NO_MEANS_NO, f"{instant} was refused, and is committed")
        objects = self.world.memory_store.objects
        said = decided_body(objects, entry) or b'{"files":[],"writes":[],"seen":[],"horizon":""}'
        body = self.bodies[instant] = json.loads(said)
        if any(each not in objects for each in body["files"]):
            raise Violated(KEPT, f"{instant} is committed without its data")
        together = [each for each in self.decided.values() if each["round"] == entry["round"]]
        if len(together) > 1:
            self.world.reached.add("batch")
        for other, before in self.bodies.items():
            shared = other != instant and any(each in before["writes"] for each in body["writes"])
            seen = other in body["seen"] or other <= body["horizon"]
            if shared and (not seen or other > instant):
                raise Violated(NO_LOST_UPDATE, f"{instant} overlooks {other}")

    def _is_commit(self, instant: str) -> bool:
        return instant in self.bodies

    def _publish(self, instant: str, body: bytes) -> None:
        if not self._is_commit(instant):
            raise Violated(VISIBLE, f"{instant} is published, but not decided")
        if json.loads(body) != self.bodies[instant]:
            raise Violated(VISIBLE, f"{instant} is published with another body")
        objects = self.world.memory_store.objects
        if ARCHIVE + instant in objects:
            return  # only time keeps a paused publisher from it, and time is not judged here
        for key in objects:
            if key.startswith(files_of(instant)) and key not in self.bodies[instant]["files"]:
                raise Violated(VISIBLE, f"{key} is visible, but another writer's")
        entry = self.by_instant[instant]
        ordered = "seq" if entry["completion"] else "round"
        for other in self.bodies:
            earlier = self.by_instant[other][ordered] < entry[ordered]
            if earlier and not self._is_published(other):
                raise Violated(PREFIX, f"{instant} is published before {other}")
        if (entry["completion"] or instant) <= self.passed:
            raise Violated(BEHIND_NOBODY, f"{instant} appears behind a reader at {self.passed}")

    def _is_published(self, instant: str) -> bool:
        objects = self.world.memory_store.objects
        return self._completed_key(instant) in objects or ARCHIVE + instant in objects

    def _completed_key(self, instant: str) -> str:
        done = self.by_instant[instant]["completion"]
        return self.names.completed(instant, completion=done)

    def answered(self, instant: str, kind: str) -> None:
        """The answer to a writer's caller."""
        if kind == COMMIT:
            if not self._is_commit(instant):
                raise Violated(KEPT, f"{instant} is acknowledged, but not decided")
        elif self._is_commit(instant):
            raise Violated(NO_MEANS_NO, f"{instant} was refused, and is committed")
        else:
            self.denied.add(instant)

    def has_read(self, last: int, commits: frozenset[str]) -> None:
        """The commits that a reader saw, at the fence whose last decision has this number."""
        least = {each["instant"] for each in self.decided.values()
                 if each["seq"] <= last and each["kind"] == COMMIT}  # fmt: skip
        # A reader finds in the archive what has left the timeline.
        commits |= {each for each in least if ARCHIVE + each in self.world.memory_store.objects}
        if least - commits:
            raise Violated(WHOLE, f"a snapshot lacks {min(least - commits)}")
        if commits - set(self.bodies):
            raise Violated(WHOLE, f"a snapshot has {min(commits - set(self.bodies))}")

    def end(self) -> None:
        """Without faults, one service run leaves nothing pending, and one writer commits."""
        self.world.finish()
        if self.switches:
            self.world.run(self.switch())
        client = self.client()
        self.world.run(self.service(client))
        write = self.world.run(self.write(client, ("a",)))
        if write != COMMIT:
            raise Violated(ALONE, f"a writer alone ended with {write}")
        self.world.run(publish(client))
        last, commits = self.world.run(group_view.snapshot(client))
        self.has_read(last, commits)
        for instant in self.bodies:
            if not self._is_published(instant):
                raise Violated(ALONE, f"{instant} is decided, but not published")

    # --- what they do ----------------------------------------------------------------------------

    def client(self) -> GroupClient:
        looks = partial(archived_as, self.names)
        return GroupClient(groups_of, self.window_max, looks, self.names)

    def live(self, node: Node) -> Procedure[None]:
        """A process starts without knowledge of the fence."""
        dice, client, reader = self.world.dice.random, self.client(), self.client()
        for _ in range(ACTIONS_MAX):
            try:
                if self.switches and dice() < SWITCHED:
                    yield from self.switch()
                chance = dice()
                if chance < 0.55:
                    count = 1 if dice() < 0.7 else 2
                    names = self.world.dice.sample(FILE_GROUPS, count)
                    yield from self.write(client, tuple(names))
                elif chance < 0.63:
                    yield from publish(client)
                elif chance < 0.7:
                    yield from combine(client)
                elif chance < 0.8:
                    self.has_read(*(yield from group_view.snapshot(reader)))
                elif chance < 0.9:
                    self.passed = max(self.passed, (yield from group_view.increment(self.names)))
                else:
                    yield from self.service(client)
            except EXPECTED:
                pass
            if dice() < 0.3:
                yield Sleep(dice() ** 3)

    def write(self, client: GroupClient, names: tuple[str, ...]) -> Procedure[str]:
        write = self._ahead(client)
        ahead = write is not None
        looks = look_whole if self.archives else look
        write = write or (yield from group_commit.reserve(client, looks))
        blind = ahead or self.world.dice.random() < 0.2
        if self.reserves_ahead:
            client.beside = self._reserve_ahead(client, write)
        file_ids = [f"{name}-{write.attempt}" for name in names] if blind else list(names)
        if self.world.dice.random() < 0.3:
            yield Sleep(self.world.dice.random())
        files = {f"{files_of(write.instant)}{each}_{write.attempt}": b"rows" for each in file_ids}
        fields = {"attempt": write.attempt, "files": sorted(files), "seen": sorted(write.seen),
                  "writes": [["p", each] for each in file_ids],
                  "horizon": write.horizon}  # fmt: skip
        chance = random.Random(write.instant)
        if chance.random() < LARGE and not self.inflight:  # then it has an inflight file, too
            fields["much"] = chance.randbytes(PACKED_MAX).hex()
        write.body, write.blind = json.dumps(fields).encode(), blind
        write.writes = groups_of(write.body)
        write.eager = not self.reserves_ahead and chance.random() < EAGER
        if self.inflight:
            files[client.names.inflight(write.instant)] = write.body
        try:
            kind = yield from group_commit.commit(client, write, files)
        except ModeSwitched:
            completion = yield from completion_of(client.names, write.instant)
            kind = REFUSED if completion is None else COMMIT
        self.answered(write.instant, kind)
        if write.made is not None:
            self.world.reached.add("offered beside")
        if kind != COMMIT:
            yield from group_combine.roll_back(client, write.instant, files_of(write.instant))
        return kind

    def _ahead(self, client: GroupClient) -> GroupWrite | None:
        """An append under the instant that was reserved ahead, without a listing after it."""
        if not client.ahead:
            return None
        self.world.reached.add("ahead")
        write: GroupWrite = client.ahead.pop()
        return write

    def _reserve_ahead(
        self, client: GroupClient, before: GroupWrite
    ) -> Procedure[None]:
        assert client.known is not None
        base, newest = client.known.last, max(client.known.newest, before.instant)
        attempt = yield Unique()
        instant = group_commit.next_group_instant((yield WallMs()), newest)
        if self.world.dice.random() < SLOW:  # its process pauses before it sends the request
            yield Sleep(self.world.dice.random())
        with suppress(StoreError):
            key = timeline_key(client.names, instant, "requested")
            if isinstance((yield from put_once(key, attempt.encode(), IfAbsent())), Applied):
                write = GroupWrite(instant, attempt, base, frozenset(), listed=False,
                                         table=TABLE)  # fmt: skip
                client.ahead.append(write)

    def service(self, client: GroupClient) -> Procedure[None]:
        """Decide the offers, publish, and roll back pending instants, also of living writers."""
        yield from combine(client)
        yield from publish(client)
        view = yield from look(client)
        if self.archives:
            with suppress(Unanswered, TableBlocked):  # others were faster: the next one archives
                yield from self.archive(client, view)
        for instant in sorted(view.pending())[:2]:
            if (yield from group_combine.roll_back(client, instant, files_of(instant))):
                self.world.reached.add("rolled back")


    # --- another mode in between -----------------------------------------------------------------

    @property
    def config(self) -> TableConfig:
        return replace(CONFIG, version=9 if self.names == V9 else 6)

    def switch(self) -> Procedure[None]:
        """Leave group commit and return to it; perhaps with a commit and a rollback in between."""
        self.switcher += 1
        believe = partial(self._believe, self.switcher)
        if (yield from has_group_fence()):
            yield from from_group(self.config, EpochGuard(0), believe)
        wall_ms = yield WallMs()
        if not is_grouped(self.world.memory_store.objects[FENCE_KEY].body):
            self._roll_back_in_turn(wall_ms)
            self._commit_in_turn(wall_ms)
        yield from to_group(self.config, believe, no_columns)

    def _believe(self, mine: int) -> None:
        if self.switcher != mine:
            raise TableError("the table's lock", "is another's")

    def _next(self, wall_ms: int) -> str:
        """Later than every instant and every completion time of the timeline."""
        prefix, objects = self.names.prefix, self.world.memory_store.objects
        listed = [key for key in objects if key.startswith(prefix)]
        times = re.findall(r"_([0-9]{17})\.", " ".join(listed))
        return group_commit.next_group_instant(wall_ms, max([*times, *map(instant_in, listed)],
                                                     default=NO_INSTANT))  # fmt: skip

    def _put(self, key: str, body: bytes) -> None:
        self.world.memory_store.decide(SERIAL, Put(key, body, IfAbsent()), 0)

    def _commit_in_turn(self, wall_ms: int) -> None:
        """A commit of the other mode: at once, since the rules of that mode are not run here."""
        instant = self._next(wall_ms)
        done = instant_of(instant_ms(instant) + 1) if self.names == V9 else None
        # A switch skips a number: a fence in between may have decided nothing.
        keys = parse_properties(self.world.memory_store.objects[PROPERTIES_KEY].body)
        number = max([int(keys.get(LAST, 0)), *self.decided]) + 0.01
        entry = {"seq": number, "round": 0, "kind": COMMIT,
                 "instant": instant, "completion": done}  # fmt: skip
        said = {"attempt": instant, "files": [], "seen": sorted(self.bodies), "horizon": "",
                "writes": [["p", self.world.dice.choice(FILE_GROUPS)]]}  # fmt: skip
        self.decided[number] = self.by_instant[instant] = entry
        self.bodies[instant] = said
        self._put(self.names.inflight(instant), json.dumps(said).encode())
        self._put(self._completed_key(instant), json.dumps(said).encode())

    def _roll_back_in_turn(self, wall_ms: int) -> None:
        """Rollbacks of the other mode, of writers that may be alive."""
        objects = self.world.memory_store.objects
        names, done = self.names, self.names == V9
        begun = {instant_in(key) for key in objects if key.startswith(self.names.prefix)
                 and key.endswith((".requested", ".inflight"))}  # fmt: skip
        for target in sorted(begun - self.by_instant.keys()):
            instant = self._next(wall_ms)
            self.denied.add(target)
            self._put(names.completed(instant, "rollback", instant if done else None), b"")
            gone = [key for key in objects if key.startswith(files_of(target))]
            gone += [timeline_key(names, target, each)
                     for each in ("inflight", "requested")]  # fmt: skip
            for key in gone:
                self.world.memory_store.decide(SERIAL, Delete(key), 0)

    def archive(self, client: GroupClient, view: GroupView) -> Procedure[None]:
        """Move all but the newest commits, as `services.archive` does: copy, then delete."""
        old = sorted(view.completed())[:-KEPT_MIN]
        stay = yield from named_by_fence(client, max(old, default=""))
        first = min([*view.pending(), *stay], default="~")
        leaving = [each for each in old if each < first]
        if not leaving:
            return
        yield from decide_nothing_until(client, leaving[-1])
        for instant in leaving:
            yield from create(ARCHIVE + instant, b"archived")
        entries = yield from listing(self.names.prefix)
        for state in (".requested", *OFFERS, ".inflight", ".commit"):
            for each in entries:
                if each.key.endswith(state) and instant_in(each.key) in leaving:
                    yield from delete(each.key)


def archived_as(names: TimelineNames, instant: str) -> Procedure[str]:
    """As `archived_outcome`: in the timeline, else in the archive, else not committed."""
    keys = [each.key for each in (yield from listing(names.folder + instant))]
    if any(each.endswith(".commit") for each in keys):
        return COMMIT
    archived = isinstance((yield from read(ARCHIVE + instant)), Found)
    return COMMIT if archived else REFUSED


def set_up(seed: str, steps: int, mutant: Mutant | None) -> GroupRun:
    dice = random.Random(f"group {seed}")
    world, _, off_ms = world_of(dice, seed, steps, mutant)
    version_9 = random.Random(f"group version {seed}").random() < 0.5
    run = GroupRun(world, dice.choice((1, 2, 4, 30)), V9 if version_9 else V6)
    run.inflight = random.Random(f"small group carries bodies {seed}").random() >= SMALL
    run.reserves_ahead = random.Random(f"group writers reserve {seed}").random() < AHEAD
    run.archives = random.Random(f"group archives {seed}").random() < ARCHIVES
    may_switch = random.Random(f"group turns {seed}").random() < SWITCHES
    run.switches = not run.archives and may_switch
    if run.switches:
        world.run(create(PROPERTIES_KEY, b"hoodie.table.name=t\n"))
    fence = GroupFence(f"new {seed}", TABLE, completion=NO_INSTANT if version_9 else None)
    world.run(create(FENCE_KEY, format_group_fence(fence)))
    run.watch()
    run.processes(dice, "W", off_ms)
    return run


SCENARIO = SimScenario(
    "group", "writers commit together, read, publish, roll back and crash", STEPS, set_up,
    ("batch", "conflict", "withdrawn", "rollback", "rolled back", "stall", "restart", "named",
     "ahead", "archive", "switch"),
)  # fmt: skip


# --- mistakes -------------------------------------------------------------------------------------


def commit_then_send(
    client: GroupClient, write: GroupWrite, files: dict[str, bytes]
) -> Procedure[str]:
    """Take the inflight file for an offer before the data is sent."""
    yield from create(client.names.inflight(write.instant), write.body)
    kind = yield from group_offer.offer(client, write)
    yield from all_of([create(key, body) for key, body in files.items()])
    return kind


def offer_and_acknowledge(client: GroupClient, write: GroupWrite) -> Procedure[str]:
    body = format_offer(write.offer())
    yield from create(timeline_key(client.names, write.instant, "offer"), body)
    return COMMIT


def offer_once(client: GroupClient, write: GroupWrite) -> Procedure[str]:
    """Wait one turn only; an offer that is not decided by then counts as refused."""
    yield from offer_and_acknowledge(client, write)
    view = yield from look(client)
    return (yield from group_view.outcome(view, write.instant)) or REFUSED


def written_once(key: str, body: bytes, condition: Any, **_: Any) -> Procedure[Any]:
    answer = yield from put_once(key, body, condition)
    return answer.version if isinstance(answer, Applied) else Missing()


def stale_look(client: GroupClient) -> Procedure[GroupView]:
    """List, then read the fence, without a check of what left the window in between."""
    entries = yield from list_instants(client)
    fence, version = yield from read_group_fence()
    client.known, client.version = fence, version
    decided = known_decisions(None, fence)
    return GroupView(fence, version, decided, frozenset(each.key for each in entries))


def snapshot_stale(client: GroupClient) -> Procedure[tuple[int, frozenset[str]]]:
    view = yield from stale_look(client)
    return view.fence.last, view.commits()


def snapshot_listed(client: GroupClient) -> Procedure[tuple[int, frozenset[str]]]:
    view = yield from look(client)
    return view.fence.last, view.completed()


def increment_with_tail(names: TimelineNames) -> Procedure[str]:
    fence, _ = yield from read_group_fence()
    entries = yield from listing(names.prefix)
    keys = {each.key for each in entries}
    keys |= {timeline_key(names, each.instant, COMMIT) for each in fence.window
             if each.kind == COMMIT}  # fmt: skip
    return pull_until(GroupView(fence, "", {}, frozenset(keys)))


def judge_alone(fence: GroupFence, offer: Offer, timely: Any) -> GroupDecision:
    """Judge an offer without those that were accepted before it in the batch."""
    before = tuple(each for each in fence.window if each.round != fence.round)
    entry = RIGHT_JUDGE(replace(fence, window=before), offer, timely)
    return replace(entry, seq=fence.last + 1)


def evict_unproven(fence: GroupFence, _: Any, window_max: int) -> GroupFence:
    return RIGHT_EVICT(fence, range(fence.last + 1), window_max)


def without_bodies(fence: GroupFence) -> GroupFence:
    """Keep what the newest decision will say, and nothing of those before."""
    older = tuple(replace(each, body="") for each in fence.window[:-1])
    return replace(fence, window=older + fence.window[-1:])


def offers_by_name(view: GroupView) -> Procedure[list[Offer]]:
    """Take every object with an offer's name for an offer, a tombstone too."""
    found = []
    for key in sorted(view.keys):
        instant = instant_in(key)
        if key.endswith(".offer") and group_view.is_open(view, instant):
            body = yield from read(key)
            by_name = Offer(instant, view.fence.last, reserved=True, table=TABLE)
            found += [parse_offer(body.body) or by_name] if isinstance(body, Found) else []
    return found


def named_with(**wrong: Any) -> Callable[..., Any]:
    def offer_of(name: str, fence: GroupFence) -> Offer | None:
        """The offer of that name, with something else in place of what it says."""
        by_name = full_offer(name, fence)
        return by_name and replace(by_name, **wrong)

    return offer_of


def roll_back_by(steps: str) -> Callable[[GroupClient, str, str], Procedure[bool]]:
    """A rollback that takes these steps: [f]ence, [l]ist, [c]as, [t]ombstone, [d]elete."""

    def roll_back(client: GroupClient, instant: str, _: str) -> Procedure[bool]:
        names, keys = client.names, frozenset[str]()
        view = GroupView(GroupFence(""), "", {}, keys)
        for step in steps:
            if step == "f":
                fence, version = yield from read_group_fence()
                decided = known_decisions(None, fence)
                view = GroupView(fence, version, decided, keys)
            elif step == "l":
                keys = frozenset(e.key for e in (yield from listing(names.prefix)))
                view.keys = keys
                if not any(instant_in(key) == instant for key in keys):
                    return False
            elif step in "cC":
                kind = yield from group_view.outcome(view, instant)
                if kind == COMMIT:
                    return False
                if not kind:
                    after = refuse(view.fence, instant, (yield Unique()))
                    done = yield from group_combine.replace_group_fence(
                        replace(client), view, after
                    )
                    if not done and step == "c":
                        return False
            elif step == "o":
                if (yield from group_view.outcome(view, instant)) == COMMIT:
                    return False
            elif step == "t":
                yield from group_outcomes.bury(names, instant)
            else:
                for entry in (yield from listing(files_of(instant))):
                    yield from delete(entry.key)
                yield from delete(names.inflight(instant))
                yield from delete(timeline_key(names, instant, "requested"))
        return True

    return roll_back


def reserve_unlisted(client: GroupClient, _: object) -> Procedure[GroupWrite]:
    """Read the snapshot before the instant is reserved."""
    view = yield from look(client)
    attempt, wall_ms = (yield Unique()), (yield WallMs())
    newest = max(view.commits() | {view.fence.newest})
    instant = group_commit.next_group_instant(wall_ms, newest)
    yield from create(timeline_key(client.names, instant, "requested"), attempt.encode())
    return GroupWrite(instant, attempt, view.fence.last, view.commits(), table=TABLE)


def reserve_nothing(client: GroupClient, _: object) -> Procedure[GroupWrite]:
    """Take an instant without an object that reserves it."""
    view = yield from look(client)
    newest = max(view.commits() | {view.fence.newest})
    instant = group_commit.next_group_instant((yield WallMs()) // 1000 * 1000, newest)
    attempt = yield Unique()
    return GroupWrite(instant, attempt, view.fence.last, view.commits(), table=TABLE)


def not_listed(_client: GroupClient, write: GroupWrite) -> Procedure[str]:
    yield from ()
    write.listed = True
    return ""


def alone_at_once(_: GroupClient, known: GroupFence, write: GroupWrite) -> bool:
    write.listed = True
    return not decision_in(known, write.instant)


def judge_archived(fence: GroupFence, offer: Offer) -> bool:
    return offer.table == fence.table and (offer.blind or reaches(fence, offer.base))


def archive_unproven(fence: GroupFence, until: str, proven: Any, attempt: str) -> GroupFence | None:
    """Evict what the archive has, whether its outcome file is there or not."""
    return RIGHT_CLOSE(fence, until, range(fence.last + 1), attempt)


RIGHT_JUDGE, RIGHT_EVICT = judge, evict
RIGHT_CLOSE = close_for
_P = "lockkit.table.occ.group"
_D = f"{_P}.decision"
PROCEDURES = ("client", "view", "outcomes", "combine", "offer", "commit")
_M = "lockkit.table.occ.group.mode"
_A, _S = "lockkit.table.services.archive_group", "lockkit.lab.verify.scenarios.group"


def in_each(**instead: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """These functions replaced in each module with procedures of a group commit."""
    modules = [import_module(f"{_P}.{each}") for each in PROCEDURES]
    return {f"{module.__name__}:{name}": wrong for name, wrong in instead.items()
            for module in modules if hasattr(module, name)}  # fmt: skip


_SAYS: dict[str, tuple[str, Plants]] = {
    "data first": ("an instant is offered before its data is proven",
                   in_each(commit=commit_then_send)),
    "acknowledge offers": ("a commit is acknowledged when its offer landed",
                           in_each(offer=offer_and_acknowledge)),
    "412 refuses": ("a refused or unanswered replacement of the fence counts as a refusal",
                    in_each(settle_write=written_once, offer=answering(REFUSED))),
    "stop waiting": ("a writer that stops waiting reports that nothing was committed",
                     in_each(offer=offer_once)),
    "batch": ("offers of one batch are not compared with each other", {f"{_D}:judge": judge_alone}),
    "re-base": ("a base is raised without a check", in_each(missed_conflict=answering(False))),
    "reach": ("no client checks what left the window between two reads",
              in_each(has_gap=lambda *_: False)),
    "reader's reach": ("a reader ignores what left the window", in_each(snapshot=snapshot_stale)),
    "evict": ("decisions leave the window before their outcome is proven",
              {f"{_D}:evict": evict_unproven}),
    "forgets": ("the fence drops a commit's content before that is published",
                {f"{_D}:without_old_bodies": without_bodies}),
    "no tombstone": ("a refusal leaves no tombstone", in_each(bury=answering(None))),
    "no conflict": ("offers are not compared with commits", {f"{_D}:conflicts": lambda *_: ""}),
    "ignores completed": ("a decider ignores the completed file",
                          in_each(is_open=lambda view, instant:
                                  timeline_key(view.names, instant, "requested") in view.keys
                                  and instant not in view.decided)),
    "tombstone is an offer": ("a tombstone is taken for an offer",
                              in_each(open_offers=offers_by_name)),
    "named body": ("a decider by name leaves out the commit's content",
                   in_each(full_offer=named_with(body=""))),
    "named base": ("a decider by name takes another base",
                   in_each(full_offer=named_with(base=10**9))),
    "tombstone first": ("a rollback writes its tombstone and deletes, then decides",
                        in_each(roll_back=roll_back_by("flotdC"))),
    "no entry": ("a rollback decides nothing", in_each(roll_back=roll_back_by("flotd"))),
    "unproven": ("a rollback deletes though its decision was not made",
                 in_each(roll_back=roll_back_by("flCtd"))),
    "late": ("an instant is used that a reader may have passed",
             in_each(is_passed=lambda *_: False)),
    "below": ("a writer's clock alone gives its instants",
              in_each(is_passed=lambda *_: False,
                      next_group_instant=lambda wall_ms, _: instant_of(wall_ms))),
    "unlisted": ("an instant counts as reserved without a listing after it",
                 in_each(reserve=reserve_unlisted)),
    "unreserved": ("nothing reserves an instant", in_each(reserve=reserve_nothing)),
    "tail": ("increments read what is decided and not published",
             in_each(increment=increment_with_tail)),
    "any order": ("decisions are published in any order",
                  in_each(rounds=lambda fence: [list(reversed(fence.window))])),
    "no tail": ("a snapshot leaves out what is not published", in_each(snapshot=snapshot_listed)),
    "ahead offered": ("an instant that was reserved ahead is offered without a listing",
                      in_each(list_before_offer=not_listed)),
    "ahead alone": ("an instant that was reserved ahead is decided by the last known fence",
                    in_each(goes_alone=alone_at_once)),
    "archive unsaid": ("instants are archived, but the fence continues to decide them",
                       {f"{_S}:decide_nothing_until": answering(None)}),
    "archive ignored": ("what is archived counts as open",
                        in_each(may_judge=judge_archived)
                        | {f"{_S}:archived_as": answering(""), f"{_D}:may_judge": judge_archived}),
    "archive unread": ("what has left the timeline counts as refused",
                       {f"{_S}:archived_as": answering(REFUSED)}),
    "archive unproven": ("decisions are archived before their outcome is proven",
                         {f"{_A}:close_for": archive_unproven}),
    "counts anew": ("the fence counts from one again after a switch of the mode and back",
                    {f"{_M}:_continued": answering(GroupFence("", TABLE))}),
    "begun before": ("what was begun before a switch of the mode is decided after the return",
                     {f"{_M}:_begun": answering(NO_INSTANT)}),
    "ended reservation": ("a writer does not check whether its reservation was rolled back",
                          in_each(reservation_ended=answering(""))),
}  # fmt: skip
MUTANTS = {name: Mutant(name, says, plants) for name, (says, plants) in _SAYS.items()}
