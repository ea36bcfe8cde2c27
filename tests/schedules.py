"""Procedures on one store, request by request, in every order: the world that is searched.

A state is a value: how far each lane is, which is all that it was told; what the store holds; what
is still on its way there. So states are compared, and none is gone on from twice. Three things need
no moves of their own:

- a pause or a crash: a lane of which no more moves are made. Every state is judged as if whoever
  has not ended were dead: another writer comes, settles what was left, and commits.
- an answer that is lost: the write is *late*. Landing at once, it was lost after the store had
  applied it; landing never, before.
- a read of what nobody can change any more commutes with everything, and is answered at once.
"""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Any, NamedTuple

from table_world import AVRO, CLOCK, Hasty, Holder

from lockkit.errors import LockLost
from lockkit.protocol.outcome import (
    Applied,
    Condition,
    Found,
    IfAbsent,
    IfVersion,
    Missing,
    NotModified,
    PreconditionFailed,
    ReadAnswer,
    Unknown,
    WriteAnswer,
)
from lockkit.runtime import (
    BootMs,
    Delete,
    Get,
    List,
    Note,
    Parallel,
    Procedure,
    Put,
    Sleep,
    Unique,
    WallMs,
    perform,
    run,
)
from lockkit.sinks import silent
from lockkit.stores import ListEntry
from lockkit.table import FENCE_KEY, PROPERTIES_KEY, Committed, Prepared, begin, commit, prepare
from lockkit.table.errors import CommitConflict, CommitUnknown
from lockkit.table.format.timeline import COMMITS, Timeline, TimelineNames, parse_timeline
from lockkit.table.occ.covered import CheckedHorizon
from lockkit.table.occ.covered import settle as cover
from lockkit.table.occ.fence import COMMIT, ROLLBACK, parse_fence
from lockkit.table.occ.rollback import RollbackRefused, RolledBack

STATES_MAX = 2_000_000
LATE, TWICE = "late", "twice"
"""A fault: no answer, and the write lands when it likes; or a hidden second copy of it was sent,
and the answer is the store's refusal of that one."""

STALE = "stale commit accepted: its check did not cover a commit that was decided before"
OVERLAP = "two commits made one file group from the same slice"
LOST = "an acknowledged commit is not visible"
UNDECIDED = "visible, and never decided"
BOTH = "committed, and rolled back"
GAP = "a later commit is visible before an earlier one"
DELETED = "files deleted, and no rollback was decided"
BLOCKED = "the next writer cannot commit"
HORIZON = "completed at or below a horizon that a listing had shown"
TIMES = "completion times do not rise as the commits were decided"
NAMES = "one instant is completed under two names"
UNFOUNDED = "told CommitUnknown, though no answer was lost"
REFUSED = "told that it was not committed, and it was"
LEFT = "told that it was rolled back, and a file of it is there"


# --- a store as a value ---------------------------------------------------------------------------


class Shelf(dict[str, bytes]):
    """Objects by key; a version is the hash of the bytes, so that equal states are equal."""

    url = "schedules"

    def get(self, key: str, *, unless: str | None = None, **_: Any) -> ReadAnswer:  # type: ignore[override]
        if key not in self:
            return Missing()
        version = _version(self[key])
        return NotModified() if version == unless else Found(self[key], version)

    def put(self, key: str, body: bytes, condition: Condition) -> WriteAnswer:
        match condition:
            case IfAbsent() if key not in self:
                pass
            case IfVersion(version) if key in self and _version(self[key]) == version:
                pass
            case _:
                return PreconditionFailed()
        self[key] = body
        return Applied(_version(body))

    def list(self, prefix: str, after: str = "") -> list[ListEntry]:
        # Who lists the whole table looks for data files: the timeline beside them says nothing.
        return [ListEntry(key, len(self[key]), _version(self[key])) for key in sorted(self)
                if key.startswith(prefix) and key > after
                and (prefix or not key.startswith(".hoodie/"))]  # fmt: skip

    def delete(self, key: str, condition: IfVersion | None = None) -> WriteAnswer:
        self.pop(key, None)
        return Applied("")


def _version(body: bytes) -> str:
    return hashlib.md5(body, usedforsecurity=False).hexdigest()[:12]


# --- lanes ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lane:
    """One who does something to the table; `instant` is the one that it is about, if it has one."""

    name: str
    make: Callable[[], Procedure[Any]]
    instant: str = ""
    now_ms: int = 0


@dataclass(frozen=True)
class Parts:
    """What the procedures of a `Parallel` were told, each."""

    got: tuple[Any, ...]


Path = tuple[int, ...]


@dataclass(frozen=True)
class Stand:
    """Where a procedure stands: the requests that it waits on, or how it ended."""

    got: tuple[Any, ...]
    waits: tuple[tuple[Path, Any], ...] = ()
    ended: Any = None
    notes: tuple[Note, ...] = ()

    def note(self, kind: str) -> Mapping[str, Any]:
        return next((each.data for each in reversed(self.notes) if each.kind == kind), {})


def stand(procedure: Procedure[Any], got: tuple[Any, ...], lane: Lane, path: Path = ()) -> Stand:
    """A procedure has nothing but what it was told: so that is where it stands."""
    used, ids, notes = 0, 0, []
    reply: Any = None
    try:
        request = procedure.send(None)
        while True:
            match request:
                case Unique():
                    ids += 1
                    reply = f"{lane.name}{''.join(map(str, path))}-{ids}"
                case WallMs() | BootMs():
                    reply = lane.now_ms
                case Sleep():
                    reply = None
                case Note():
                    notes.append(request)
                    reply = None
                case Parallel(procedures):
                    parts = got[used] if used < len(got) else Parts(((),) * len(procedures))
                    inside = [stand(each, mine, lane, (*path, place)) for place, (each, mine)
                              in enumerate(zip(procedures, parts.got, strict=True))]  # fmt: skip
                    notes += [note for each in inside for note in each.notes]
                    whole = Parts(tuple(each.got for each in inside))
                    if any(each.waits for each in inside):
                        waits = tuple(wait for each in inside for wait in each.waits)
                        return Stand((*got[:used], whole), waits, None, tuple(notes))
                    got, used = (*got[:used], whole, *got[used + 1 :]), used + 1
                    failed = [each.ended for each in inside if isinstance(each.ended, Exception)]
                    if failed:
                        request = procedure.throw(failed[0])
                        continue
                    reply = tuple(each.ended for each in inside)
                case _ if used < len(got):
                    reply, used = got[used], used + 1
                case _:
                    return Stand(got, ((path, request),), None, tuple(notes))
            request = procedure.send(reply)
    except StopIteration as done:
        return Stand(got, (), done.value, tuple(notes))
    except Exception as error:  # noqa: BLE001 - how it ended, for `World` to judge
        return Stand(got, (), error, tuple(notes))


def and_told(got: tuple[Any, ...], path: Path, answer: Any) -> tuple[Any, ...]:
    if not path:
        return (*got, answer)
    place, parts = path[0], got[-1].got
    mine = and_told(parts[place], path[1:], answer)
    return (*got[:-1], Parts((*parts[:place], mine, *parts[place + 1 :])))


# --- the world ------------------------------------------------------------------------------------


class Decision(NamedTuple):
    """One line of the truth: what the fence has held, in order."""

    kind: str
    instant: str
    completion: str | None


class Out(NamedTuple):
    """A write under way, and the check that it was sent after."""

    request: Any
    checked: frozenset[str]
    horizon: str


class State(NamedTuple):
    lanes: tuple[int, ...]
    memory_store: int
    out: tuple[Out, ...]
    faults: int
    log: tuple[Decision, ...]
    horizon: str
    """The greatest that a reader could have found so far."""


@dataclass
class Result:
    """How many states there are, how the lanes can end, and the shortest way to a mistake."""

    states: int = 0
    ends: set[tuple[str, ...]] = field(default_factory=set)
    mistake: str = ""
    story: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        got = f"{self.mistake or 'nothing wrong'} in {self.states} states"
        return "\n  ".join([got, *self.story])


@dataclass
class World:
    """A table as it was prepared, and who does something to it."""

    start: Shelf
    lanes: tuple[Lane, ...]
    names: TimelineNames
    log: tuple[Decision, ...]
    prepared: Mapping[str, Prepared]
    fenced: bool
    cleaned: bool
    """Whether anybody may delete files."""

    def __post_init__(self) -> None:
        self.constant: frozenset[str] = frozenset()
        if not self.cleaned:
            self.constant = frozenset(each.inflight for each in self.prepared.values())
        self._shelves: list[Shelf] = []
        self._shelf_ids: dict[Any, int] = {}
        self._stands: list[Stand] = []
        self._stand_ids: dict[Any, int] = {}
        self._performed: dict[Any, tuple[int, Any]] = {}
        self._moved: dict[Any, int] = {}
        self._facts: dict[int, Facts] = {}
        self._judged: dict[Any, str] = {}

    # --- values by number, so that a state is a handful of them ---

    def _shelf(self, memory_store: Shelf) -> int:
        key = frozenset(memory_store.items())
        if key not in self._shelf_ids:
            self._shelf_ids[key] = len(self._shelves)
            self._shelves.append(memory_store)
        return self._shelf_ids[key]

    def _stand(self, lane: int, got: tuple[Any, ...]) -> int:
        key = (lane, got)
        if key not in self._stand_ids:
            self._stand_ids[key] = len(self._stands)
            self._stands.append(stand(self.lanes[lane].make(), got, self.lanes[lane]))
        return self._stand_ids[key]

    def _perform(self, memory_store: int, request: Any) -> tuple[int, Any]:
        key = (memory_store, request)
        if key not in self._performed:
            after = Shelf(self._shelves[memory_store])
            answer = perform(request, after, CLOCK, silent)  # type: ignore[arg-type]
            if isinstance(answer, list):
                answer = Listed(answer)
            self._performed[key] = (self._shelf(after), answer)
        return self._performed[key]

    def facts(self, memory_store: int) -> Facts:
        if memory_store not in self._facts:
            self._facts[memory_store] = Facts.of(self._shelves[memory_store], self.names)
        return self._facts[memory_store]

    # --- moves ---

    def search(self, *, faults: int = 0) -> Result:
        """Every state, those first that take the fewest moves; ends at the first mistake."""
        memory_store = self._shelf(Shelf(self.start))
        lanes = tuple(self._stand(number, ()) for number in range(len(self.lanes)))
        first = State(lanes, memory_store, (), faults, self.log, self.facts(memory_store).horizon)
        came: dict[State, tuple[State, str] | None] = {first: None}
        todo, result = deque([first]), Result()
        while todo:
            state = todo.popleft()
            result.mistake = self.wrong(state, faults)
            if not result.mistake and all(not self._stands[each].waits for each in state.lanes):
                result.ends.add(tuple(_name(self._stands[each].ended) for each in state.lanes))
            for label, after, mistake in () if result.mistake else self._moves(state):
                if mistake:
                    result.mistake, result.story = mistake, [label]
                    break
                if after not in came:
                    came[after] = (state, label)
                    todo.append(after)
            if result.mistake:
                step = came[state]
                while step is not None:
                    result.story.insert(0, step[1])
                    step = came[step[0]]
                break
            assert len(came) < STATES_MAX, "more states than were thought possible"
        result.states = len(came)
        return result

    def _moves(self, state: State) -> Iterator[tuple[str, State, str]]:
        waiting = [(lane, path, request) for lane, number in enumerate(state.lanes)
                   for path, request in self._stands[number].waits]  # fmt: skip
        here = self._shelves[state.memory_store]
        for lane, path, request in waiting:
            if self._settled(request, here):
                yield self._arrive(state, lane, path, request)
                return
        for lane, path, request in waiting:
            yield self._arrive(state, lane, path, request)
            if state.faults and isinstance(request, Put | Delete):
                yield self._late(state, lane, path, request)
                if isinstance(request, Put):
                    yield self._twice(state, lane, path, request)
        for number, late in enumerate(state.out):
            left = state._replace(out=state.out[:number] + state.out[number + 1 :])
            after, _, mistake = self._applied(left, late)
            yield f"late: {_told(late.request)}", after, mistake

    def _settled(self, request: Any, here: Shelf) -> bool:
        """Whether nobody can change any more what this reads."""
        match request:
            case Get(key):
                return (
                    key in self.constant
                    or key.startswith(PROPERTIES_KEY)
                    or (key in here and _FINAL.fullmatch(key) is not None)
                )
            case List(prefix):
                return prefix.startswith(".hoodie/.temp/")  # there are no markers here
        return False

    def _arrive(
        self, state: State, lane: int, path: Path, request: Any
    ) -> tuple[str, State, str]:  # fmt: skip
        after, answer, mistake = self._applied(state, self._out(state, lane, request))
        label = f"{self.lanes[lane].name}: {_told(request)} -> {type(answer).__name__}"
        return label, self._go(after, lane, path, answer), mistake

    def _late(self, state: State, lane: int, path: Path, request: Any) -> tuple[str, State, str]:
        out = (*state.out, self._out(state, lane, request))
        after = self._go(state, lane, path, Unknown("lost"))
        label = f"{self.lanes[lane].name}: {_told(request)} gets no answer"
        return label, after._replace(out=out, faults=state.faults - 1), ""

    def _twice(self, state: State, lane: int, path: Path, request: Any) -> tuple[str, State, str]:
        after, _, mistake = self._applied(state, self._out(state, lane, request))
        after = self._go(after, lane, path, PreconditionFailed())
        label = f"{self.lanes[lane].name}: {_told(request)} is sent twice -> PreconditionFailed"
        return label, after._replace(faults=state.faults - 1), mistake

    def _out(self, state: State, lane: int, request: Any) -> Out:
        if not isinstance(request, Put):
            return Out(request, frozenset(), "")
        checked = self._stands[state.lanes[lane]].note("checked")
        return Out(request, frozenset(checked.get("covered", ())), checked.get("horizon", ""))

    def _go(self, state: State, lane: int, path: Path, answer: Any) -> State:
        key = (state.lanes[lane], path, answer)
        if key not in self._moved:
            got = and_told(self._stands[state.lanes[lane]].got, path, answer)
            self._moved[key] = self._stand(lane, got)
        lanes = (*state.lanes[:lane], self._moved[key], *state.lanes[lane + 1 :])
        return state._replace(lanes=lanes)

    def _applied(self, state: State, out: Out) -> tuple[State, Any, str]:
        """The store does it; what that means goes into the log."""
        request = out.request
        memory_store, answer = self._perform(state.memory_store, request)
        if memory_store == state.memory_store:
            return state, answer, ""
        before, after, log, mistake = (
            self.facts(state.memory_store),
            self.facts(memory_store),
            state.log,
            "",
        )
        new = after.visible.keys() - before.visible.keys()
        if request.key == FENCE_KEY:
            head = parse_fence(request.body).head
            if head.kind == COMMIT:
                mistake = _stale(out, log)
            log = (*log, Decision(head.kind, head.instant, head.completion))
        elif new and not self.fenced:
            mistake = _stale(out, log)
            log = (*log, *(Decision(COMMIT, each, None) for each in new))
        if any(each <= state.horizon for each in new):
            mistake = mistake or HORIZON
        horizon = max(state.horizon, after.horizon)
        return state._replace(memory_store=memory_store, log=log, horizon=horizon), answer, mistake

    # --- what must hold in every state ---

    def wrong(self, state: State, faults: int) -> str:
        """The first property that this state breaks, if it breaks one."""
        key = (state.memory_store, state.log)
        if key not in self._judged:
            self._judged[key] = self._wrong_store(*key) or self._wrong_ever_after(*key)
        if self._judged[key]:
            return self._judged[key]
        visible = self.facts(state.memory_store).visible
        for lane, number in zip(self.lanes, state.lanes, strict=True):
            at = self._stands[number]
            mine = lane.instant or at.note("began").get("instant", "")
            decided = any(each[:2] == (COMMIT, mine) for each in state.log)
            match at.ended:
                case None if at.waits:
                    pass
                case Committed(instant) if instant not in visible:
                    return LOST
                case RollbackRefused(instant) if instant not in visible:
                    return LOST
                case RolledBack(_, target):
                    if any(each.path in self._shelves[state.memory_store]
                           for each in self.prepared[target].stats):  # fmt: skip
                        return LEFT
                    if (ROLLBACK, target) not in {each[:2] for each in state.log}:
                        return DELETED
                case CommitUnknown() if state.faults == faults:
                    if (ROLLBACK, mine) not in {e[:2] for e in state.log} or _was_told(at, mine):
                        return UNFOUNDED
                case CommitConflict() | LockLost() if decided:
                    return REFUSED
                case (
                    CommitConflict()
                    | LockLost()
                    | CommitUnknown()
                    | Committed()
                    | RollbackRefused()
                ):
                    pass
                case other:
                    return f"{lane.name} ended with {type(other).__name__}: {other}"
        return ""

    def _wrong_store(self, memory_store: int, log: tuple[Decision, ...]) -> str:
        here, facts = self._shelves[memory_store], self.facts(memory_store)
        commits = [each for each in log if each.kind == COMMIT]
        taken_back = {each.instant for each in log if each.kind == ROLLBACK}
        if any(each.instant in taken_back for each in commits):
            return BOTH
        order = [each.instant for each in commits]
        if not facts.visible.keys() <= set(order):
            return UNDECIDED
        seen = [each in facts.visible for each in order]
        if self.fenced and any(late and not early for early, late in pairwise(seen)):
            return GAP
        if facts.doubled:
            return NAMES
        times = [each.completion for each in log if each.completion]
        if any(late <= early for early, late in pairwise(times)):
            return TIMES
        for instant, each in self.prepared.items():
            mine = (*(stat.path for stat in each.stats), each.inflight)
            if instant not in taken_back and any(path not in here for path in mine):
                return DELETED
        won = [self.prepared[each] for each in order if each in self.prepared]
        for early, late in combinations(won, 2):
            if early.writes & late.writes and early.instant not in late.transaction.covered:
                return OVERLAP
        return ""

    def _wrong_ever_after(self, memory_store: int, log: tuple[Decision, ...]) -> str:
        """All who are under way are dead: does the table live on, with just what was decided?"""
        here = Shelf(self._shelves[memory_store])
        order = {each.instant for each in log if each.kind == COMMIT}
        try:
            last = run(begin_and_commit(Holder(99)), here, Hasty()).instant  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001 - told
            return f"{BLOCKED}: {error}"
        if Facts.of(here, self.names).visible.keys() - {last} != order:
            return LOST
        return ""


_FINAL = re.compile(
    r"\.hoodie/(timeline/)?\d+((_\d+)?\.(commit|replacecommit|rollback)|\.rollback\.requested)"
)


def begin_and_commit(guard: Holder) -> Procedure[Committed]:
    transaction = yield from begin()
    nothing = yield from prepare(transaction, [], schema=AVRO)
    return (yield from commit(nothing, guard))


def _stale(out: Out, log: tuple[Decision, ...]) -> str:
    covered = all(each.kind != COMMIT or each.instant in out.checked or each.instant <= out.horizon
                  for each in log)  # fmt: skip
    return "" if covered else STALE


def _was_told(at: Stand, instant: str) -> bool:
    """Whether the fence that it looked at last says what became of its instant."""
    fences = [each for each in at.got if isinstance(each, Found) and b'"window"' in each.body]
    return parse_fence(fences[-1].body).decision_on(instant) is not None


class Listed(list[ListEntry]):
    """An answer to a listing, as a value."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(each.key for each in self))


@dataclass(frozen=True)
class Facts:
    """What a store's state says to a reader."""

    visible: Mapping[str, str]
    horizon: str
    doubled: bool

    @classmethod
    def of(cls, memory_store: Shelf, names: TimelineNames) -> Facts:
        now: Timeline = parse_timeline(memory_store.list(names.prefix), names)
        done = [
            key for key in memory_store if key.endswith(tuple(COMMITS)) and _FINAL.fullmatch(key)
        ]
        visible = {each: now.completed[each] for each in now.commits}
        return cls(visible, cover(CheckedHorizon(), now, visible).horizon, len(done) > len(visible))


def _told(request: Any) -> str:
    where = getattr(request, "key", None) or request.prefix
    return f"{type(request).__name__} {where}"


def _name(ended: Any) -> str:
    return type(ended).__name__
