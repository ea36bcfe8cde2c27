"""Group commit: how many commits a second, alone or together, and a combiner that is killed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import ipywidgets as widgets
import plotly.graph_objects as go

from lockkit.events import Event
from lockkit.lab.verify.check.lanes import (
    FENCE_NAME,
    HistoryIndex,
    decisions,
    name_of,
    offered,
    sort,
)
from lockkit.lab.verify.planting import Plants, answering, planted
from lockkit.lab.verify.scenarios.group import files_of, groups_of, in_each
from lockkit.lab.verify.sim.distant import DistantWorld
from lockkit.lab.verify.sim.memory_store import PROFILES
from lockkit.lab.verify.sim.task import Node, Task
from lockkit.lab.widgets.lanes import Lanes
from lockkit.lab.widgets.scene import whole
from lockkit.lab.widgets.ui import AXIS, Shown, column, plot_layout
from lockkit.protocol.outcome import IfAbsent
from lockkit.runtime import Procedure, Put, Sleep
from lockkit.table.format.timeline import V6, V9
from lockkit.table.occ.fence import COMMIT, FENCE_KEY
from lockkit.table.occ.group import commit as group_commit
from lockkit.table.occ.group import view as group_view
from lockkit.table.occ.group.client import GroupClient, GroupWrite, decision_in, instant_in
from lockkit.table.occ.group.combine import decide_once
from lockkit.table.occ.group.fence import first_fence, parse_group_fence
from lockkit.table.occ.group.publish import see_published
from lockkit.table.occ.group.view import look

LATENCY_MS = 60.0
HOT = "gcs"
"""A store that takes one write per second to an object."""
SECONDS = 12.0
PREPARES_S = 0.1
"""So long, at most, a writer prepares its rows."""
WRITERS = (1, 2, 4, 8, 16)
HALVED, AS_MANY, DOUBLED = "it falls", "it stays about the same", "it grows with them"
GUESSES = (HALVED, AS_MANY, DOUBLED)
NOBODY, WAITS, ANOTHER = (
    "its offers are lost: their writers begin again", "its offers wait until a lease has ended",
    "another writer decides them",
)  # fmt: skip
KILL_GUESSES = (NOBODY, WAITS, ANOTHER)
MOVES_MAX = 400_000
GOES_MAX = 10
REPLAY = {"state": "replay"}


def retry_alone(client: GroupClient, write: GroupWrite) -> Procedure[str]:
    """The wrong version: a writer that lost the fence tries again for its own commit only."""
    while True:
        view = yield from look(client)
        if kind := (yield from group_view.outcome(view, write.instant)):
            return kind
        write.base = view.fence.last
        if (yield from decide_once(client, view, [write.offer()], write)):
            return decision_in(client.known, write.instant)


ALONE: Plants = in_each(offer=retry_alone, open_offers=answering([]))


@dataclass(slots=True)
class Writing:
    """Writers that append in a closed loop, on a store with a latency, in virtual time."""

    writers: int
    helping: bool = True
    profile: str = "s3"
    version: int = 9
    """Of the table."""
    acked: list[tuple[str, float, float]] = field(default_factory=list)
    """Of each commit its writer, when it began, and when it was acknowledged."""
    waiting: dict[str, float] = field(default_factory=dict)
    """When each writer began its commit that is not acknowledged yet."""
    world: DistantWorld = field(init=False)

    def __post_init__(self) -> None:
        if self.writers < 1:
            raise ValueError(f"time passes only if somebody writes: {self.writers} writers")
        self.world = DistantWorld(
            "together", MOVES_MAX, PROFILES[self.profile], uniform=True, spread_ms=0,
            latency_ms=LATENCY_MS,
        )  # fmt: skip
        fence = first_fence("new", "", self.version)
        self.world.memory_store.decide("", Put(FENCE_KEY, fence, IfAbsent()), 0.0)
        self.world.memory_store.truth.clear()
        for number in range(1, self.writers + 1):
            node = self.world.node(f"W{number}")
            self.world.record(node.name, "note", {"text": "begins to append"})
            self.world.spawn(node, self.loop(node))

    def loop(self, node: Node) -> Procedure[None]:
        names = V9 if self.version == 9 else V6
        client = GroupClient(groups_of, names=names, boot_ms=node.clock.boot_ms)
        while True:
            yield Sleep(PREPARES_S * self.world.dice.random())
            began_ms = self.waiting[node.name] = self.world.time.now_ms
            write = yield from group_commit.reserve(client, look)
            files = {f"{files_of(write.instant)}{write.attempt}": b"rows"}
            write.blind, write.writes = True, frozenset({("", write.attempt)})
            write.body = json.dumps({"writes": [["", write.attempt]]}).encode()
            kind = yield from group_commit.commit(client, write, files)
            if kind == COMMIT and client.known is not None:
                self.acked.append((node.name, began_ms, self.world.time.now_ms))
                del self.waiting[node.name]
                mine = next(e for e in client.known.window if e.instant == write.instant)
                self.world.spawn(node, see_published(client, mine, patience_s=0.5))

    def play(self, seconds: float) -> Writing:
        """So long, by the world's clock."""
        until_ms = self.world.time.now_ms + seconds * 1000
        with nullcontext() if self.helping else planted(ALONE):
            while self.world.time.now_ms < until_ms:
                self.world.play(1)
        return self

    @property
    def events(self) -> list[Event]:
        return self.world.history()


@dataclass(frozen=True, slots=True)
class CommitRates:
    """Commits a second by the number of writers."""

    name: str
    rates: dict[int, float]
    longest_s: dict[int, float]
    """The longest wait, also of a commit that was not acknowledged by the end."""
    without: dict[int, int]
    """Writers that did not commit once."""

    @property
    def grows(self) -> float:
        """How many times as many commits the most writers make as one."""
        first, *_, last = self.rates.values()
        return last / max(first, 0.01)

    def __str__(self) -> str:
        return HALVED if self.grows < 0.7 else AS_MANY if self.grows < 2 else DOUBLED

    def __repr__(self) -> str:
        rows = [
            f"{number:>2} writer{'s:' if number > 1 else ': '} {rate:5.1f} commits/s, "
            f"longest wait {self.longest_s[number]:4.1f} s"
            + f", {self.without[number]} without a commit" * (self.without[number] > 0)
            for number, rate in self.rates.items()
        ]
        return "\n".join([self.name, *rows])


def rates(*, helping: bool) -> CommitRates:
    """Measure in virtual time: requests take 60 ms, and the writers' processors take none."""
    found, longest, without = dict[int, float](), dict[int, float](), dict[int, int]()
    for number in WRITERS:
        played = Writing(number, helping, HOT).play(SECONDS)
        found[number] = len(played.acked) / SECONDS
        now_ms = played.world.time.now_ms
        waits = [ended_ms - began_ms for _, began_ms, ended_ms in played.acked]
        waits += [now_ms - began_ms for began_ms in played.waiting.values()]
        longest[number] = max(waits) / 1000
        without[number] = number - len({who for who, _, _ in played.acked})
    return CommitRates("helping" if helping else "each for itself", found, longest, without)


def figure(*all_rates: CommitRates) -> go.Figure:
    drawn = go.Figure(layout=plot_layout(
        height=280, barmode="group", yaxis=AXIS, title={"text": "commits a second"},
        margin={"l": 40, "r": 10, "t": 40, "b": 30}, legend_orientation="h",
    ))  # fmt: skip
    for each, colour in zip(all_rates, ("#0072B2", "#E69F00", "#009E73", "#CC79A7"), strict=False):
        names = [f"{number} writer{'s' * (number > 1)}" for number in each.rates]
        drawn.add_bar(x=names, y=[*each.rates.values()], name=each.name, marker_color=colour)
    return drawn


# --- who decided for whom -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Batches(Shown):
    """Of a history: each replacement of the fence, by the store's own record, and its picture."""

    batches: tuple[tuple[float, str, tuple[str, ...]], ...]
    """When, by which client, and the owners of what it decided."""
    offers: int
    events: tuple[Event, ...]

    @property
    def view(self) -> widgets.VBox:
        said = widgets.HTML(f"<div class='lockkit-said'>{self!r}</div>")
        return column("batches", said, Lanes(live=False, status=REPLAY, scene=whole(self.events)))

    @property
    def commits(self) -> int:
        return sum(len(owners) for _, _, owners in self.batches)

    @property
    def helped(self) -> int:
        """Commits that another client than their owner decided."""
        return sum(owner != who for _, who, owners in self.batches for owner in owners)

    def __repr__(self) -> str:
        largest = max((len(owners) for _, _, owners in self.batches), default=0)
        said = {"commit": self.commits, "replacement": len(self.batches), "offer": self.offers}
        commits, writes, offers = (f"{n} {one}{'s' * (n != 1)}" for one, n in said.items())
        return (f"{commits} in {writes} of the fence, at most {largest} in one;\n"
                f"{offers}; decided by another writer: {self.helped}")  # fmt: skip


def batches(events: Sequence[Event]) -> Batches:
    index: HistoryIndex = sort(events)
    owner: dict[str, str] = {}
    found, offers = list[tuple[float, str, tuple[str, ...]]](), 0
    for each in index.truth:
        if not each["applied"]:
            continue
        key, who = each["key"], str(each["client"])
        if key.endswith(".requested"):
            owner.setdefault(instant_in(key), who)
        elif offered(key):
            offers += owner.get(offered(key)) == who
        elif name_of(key) == FENCE_NAME:
            made = tuple(owner.get(instant, "") for instant, kind in decisions(each)
                         if kind == COMMIT)  # fmt: skip
            found += [(each.at_ms, who, made)] if made else []
    return Batches(tuple(found), offers, tuple(events))


# --- kill the combiner ----------------------------------------------------------------------------


class Combining(Shown):
    """Writers in virtual time, and one button: it kills the one that is about to decide, then goes
    on until its offers are decided, then starts again.
    """

    def __init__(self, writers: int = 4, *, seconds: float = 1.0) -> None:
        self.writers, self.seconds = writers, seconds
        self.next = widgets.Button()
        self._said = widgets.HTML()
        self._lanes = Lanes(live=False, status=REPLAY)
        self.next.on_click(lambda _: self.step())
        self.view = column("combining", self.next, self._said, self._lanes)
        self.start()

    def start(self) -> None:
        self.play = Writing(self.writers)
        self.victim, self.waiting = "", frozenset[str]()
        self._lanes.selected = ""
        self.killed_ms = 0.0
        self.go_on()

    def step(self) -> None:
        """What the button does next."""
        if not self.victim:
            self.kill()
        elif self._open:
            self.go_on()
        else:
            self.start()

    @property
    def _open(self) -> bool:
        """Whether an offer waits that the killed writer was about to decide."""
        return len(self.rescued) < len(self.waiting)

    def go_on(self, part: float = 1.0) -> None:
        self.play.play(self.seconds * part)
        self._show()

    def kill(self) -> None:
        """Kill the next writer that is about to replace the fence with others' offers in it.

        With one writer left nobody offers: then the run starts again.
        """
        if len({each.node.name for each in self.play.world.tasks}) < 2:
            self.start()
        play = self.play
        while (found := self._combining()) is None:
            play.world.play(1)
        task, instants = found
        self.victim, self.waiting = task.node.name, instants
        self.killed_ms = play.world.time.now_ms
        for each in [each for each in play.world.tasks if each.node is task.node]:
            each.procedure.close()
            play.world.tasks.remove(each)  # the request is not sent
        play.world.crash(task.node, float("inf"))
        self.go_on(1 / 4)  # its offers still wait
        self._lanes.selected = next(  # the picture opens there
            each["id"] for each in self._lanes.scene["marks"]
            if each["kind"] == "killed" and each["lane"] == self.victim
        )  # fmt: skip

    def kill_and_go_on(self) -> Combining:
        """What the button does, until the offers are decided, but not forever."""
        self.kill()
        for _ in range(GOES_MAX):
            self.go_on()
            if not self._open:
                break
        return self

    def _combining(self) -> tuple[Task, frozenset[str]] | None:
        """A request that has just been made, and decides offers of other writers."""
        for task in self.play.world.tasks:
            request, now_ms = task.request, self.play.world.time.now_ms
            if isinstance(request, Put) and request.key == FENCE_KEY and task.at_ms > now_ms - 1:
                fence = parse_group_fence(request.body)
                made = frozenset(e.instant for e in fence.window if e.round == fence.round)
                if len(made) > 1:
                    truth = sort(self.play.events).truth
                    return task, made & {offered(each["key"]) for each in truth if each["applied"]}
        return None

    @property
    def rescued(self) -> dict[str, str]:
        """Of each offer that the killed writer was about to decide: who decided it."""
        made = Counter[str]()
        deciders: dict[str, str] = {}
        for each in sort(self.play.events).truth:
            if each["applied"] and name_of(each["key"]) == FENCE_NAME:
                for instant, kind in decisions(each):
                    made[instant] += kind == COMMIT
                    if instant in self.waiting:
                        deciders[instant] = str(each["client"])
        assert all(made[each] == 1 for each in deciders), "an instant was decided twice"
        return deciders

    def __str__(self) -> str:
        if not self.victim:
            return ""
        others = sorted(set(self.rescued.values()))
        return ANOTHER if others and not self._open else WAITS

    def __repr__(self) -> str:
        said = repr(batches(self.play.events))
        if not self.victim:
            return said
        by = ", ".join(sorted(set(self.rescued.values())))
        done = f"{len(self.rescued)} of them were decided by {by}"
        fate = done if by else "None of them is decided yet"
        return (f"{self.victim} was killed at {self.killed_ms / 1000:.2f} s, before it decided "
                f"{len(self.waiting)} offers. {fate}.\nIn all: {said}")  # fmt: skip

    def _show(self) -> None:
        says, icon = ("Kill the combiner", "bolt") if not self.victim else (
            "Go on", "play") if self._open else ("Start again", "refresh")  # fmt: skip
        self.next.description, self.next.icon = says, icon
        self.next.button_style = "" if self.victim else "danger"
        self._said.value = f"<div class='lockkit-said'>{self!r}</div>"
        self._lanes.scene = whole(self.play.events)
