"""The picture of a story, as plain data: lanes, arrows, bars, marks and the table of generations.

`lanes.js` lays it out and draws it; nothing here knows about pixels. Times are milliseconds since
the history began. Every text is plain text: content of a bucket is never markup.

One file because every part of the picture is laid out in one window of time.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from math import inf
from typing import Any

from lockkit.events import INSTANT, STORE, Event, shortened
from lockkit.lab.widgets.models import (
    APPLIED,
    COMPLETED,
    FREES,
    JOIN_SLACK_MS,
    SILENCING,
    BeliefSpan,
    Exchange,
    HistoryModel,
    LaneMoment,
    LockGeneration,
    Stall,
    apart,
    brief,
    drawn,
    instant_of,
    neutral,
    short,
)

Scene = dict[str, Any]

LOCK_LANE, TABLE_LANE = "lock", "table"
ROWS_MAX = 500
LIVE_ROWS_MAX = 50
ARROWS_MAX = 2_000
POLLS_MIN = 3
TEXT_MAX = 240
STALE_SLACK_MS = 1.0
STALL_S_MIN = 0.05
"""A shorter pause is drawn without its length: one of a stage, where only moves take time."""
REFUSED = (409, 412)
"""How a store refuses a write by its condition; 409 is Azure's word for an object that exists."""
CONFLICTS = ("CommitConflict", "EarlyConflict", "LateInstant")
CAUSE_CHARS = 40
TAKEOVER_MS = 3_000.0
"""How much of what follows a takeover stays in the live picture of a long stall."""
OUTCOME_MS = 10_000.0
"""For how long the live picture shows what became of a stalled commit, or a lost answer."""
NEVER, PAST = "counts wrongly", "past its lease"
NO_LANE = -1
"""The hue of a client that has no lane, as of the one that created the table."""

FLIES = re.compile("held back|delayed|on its way")
"""The faults of a request that the store may decide yet, although its client has given it up."""
NUMBERED = re.compile(r"W([1-9]\d?)")
WRITER = re.compile(r"W\d{1,4}")
STATES = {"danger", "note", "began", "fenced"}
"""Events that the picture shows in another way, or not at all."""


def whole(
    events: Iterable[Event], *, evidence: Iterable[Event] = (), now_ms: float | None = None
) -> Scene:
    """The scene of a whole recorded history, however long; up to `now_ms` if that is later."""
    kept = list(events)
    story = HistoryModel(ring=max(1, len(kept)))
    story.add(kept)
    return scene(
        story, now_ms=now_ms or overlap_ends_ms(story), arrows_max=story.ring, rows_max=story.ring,
        evidence=evidence,
    )  # fmt: skip


def overlap_ends_ms(story: HistoryModel) -> float | None:
    """When the first lease of several open beliefs ends; None if at most one is open.

    A counterexample ends at the second grant. Its harm is the time from there to that end.
    """
    until_ms = [each.until_ms for each in story.beliefs if each.ended_ms is None]
    return min(until_ms) if len(until_ms) > 1 else None


def scene(
    story: HistoryModel, *, window_ms: float | None = None, now_ms: float | None = None,
    arrows_max: int = ARROWS_MAX, rows_max: int = ROWS_MAX, evidence: Iterable[Event] = (),
) -> Scene:  # fmt: skip
    """The story's last `window_ms` (all of it if None), up to `now_ms` on the history's clock."""
    if window_ms is not None:
        rows_max = min(rows_max, LIVE_ROWS_MAX)
    return _Painter(story, window_ms, now_ms, arrows_max, rows_max, evidence).paint()


class _Painter:
    """Builds one scene; holds the window, so that each method draws one part."""

    def __init__(
        self, story: HistoryModel, window_ms: float | None, now_ms: float | None, arrows_max: int,
        rows_max: int, evidence: Iterable[Event],
    ) -> None:  # fmt: skip
        self.story = story
        self.zero = story.started_ms or 0.0
        self.rows_max = rows_max
        self.now = max(story.latest_ms, now_ms or 0.0)
        self.grants = list(grants(story))
        self.omitted: tuple[float, float] | None = None
        """The time between a takeover and the newest requests, if there is no room for all."""
        self.stays = self._takeover()
        if window_ms is not None and self.stays is None:
            self.stays = self._outcome()
        self.shown = self._shown(window_ms, arrows_max)
        self.evidence = {(each.at_ms, each.who, each.kind) for each in (
            apart(each, {}) for each in evidence)}  # fmt: skip
        self.hues = hues(story.states)
        self.begans = [began for _, _, began, _, _ in self.grants]
        self.overtaken_at = overtaken_at(self.grants)
        first = story.generations[0] if story.generations else None
        self.whole = first is None or (first.n == 1 and not first.before)
        """Whether the store's record, if there is one, begins before the first grant."""
        self.given = {(each[0], each[1]): each[2] for each in reversed(self.grants) if each[1]}
        """When each epoch was given to whom."""
        self.believed = {(each.who, each.epoch): each for each in story.beliefs}
        self.landed = {instant_of(each.key): each.decided_ms or 0.0 for each in story.exchanges
                       if completes(each)}  # fmt: skip
        self.writes = LastWrites((each.key, each.decided_ms, each.who) for each in story.exchanges
                                 if each.applied and each.decided_ms is not None)  # fmt: skip

    def paint(self) -> Scene:
        arrows, polls = self._arrows()
        bars = [*self._owners(), *self._beliefs(), *self._stalls(), *self._calls(), *polls]
        marks = [*self._generations(), *self._commits(), *self._moments()]
        for each in (*arrows, *bars, *marks):
            each["detail"] = shortened(each["detail"])
        return {
            "span": [self._t(self.start), self._t(self.now)], "keep": self._kept(),
            "omitted": 0 if self.omitted is None else round(self.omitted[1] - self.omitted[0]),
            "cut": self.start > self.zero, "hidden": self.story.hidden, "events": self.story.seen,
            "lanes": self._lanes(), "arrows": arrows, "bars": bars, "rows": self._rows(),
            "marks": sorted(marks, key=lambda mark: float(mark["t"])),
        }  # fmt: skip

    def _kept(self) -> float | None:
        """What stays in the live picture: a takeover, a stall's outcome, or a lost answer."""
        return None if self.stays is None or self.stays < self.start else self._t(self.stays)

    def _takeover(self) -> float | None:
        """When the lock of a writer that stands still went to another; None if it did not."""
        began = {each.who: each.began_ms for each in self.story.stalls if each.ended_ms is None}
        taken = [
            grant[2] for who, began_ms in began.items() for grant in self.grants
            if grant[0] != who and grant[2] > began_ms > self.grants[0][2]  # else it is forgotten
        ]  # fmt: skip
        return min(taken, default=None)

    def _outcome(self) -> float | None:
        """When a writer that stood still published, or was refused, after a takeover; or when a
        request was sent whose answer was lost. For a moment.

        Without this, the newest commits of the others move it out of the picture in a second.
        """
        for stall in self.story.stalls:
            ended_ms = stall.ended_ms
            if ended_ms is None or not any(
                each[0] != stall.who and stall.began_ms < each[2] < ended_ms for each in self.grants
            ):
                continue
            outcome_ms = min((each.at_ms for each in self.story.moments
                              if each.who == stall.who and each.at_ms >= ended_ms
                              and each.kind in ("refused", "published")), default=None)  # fmt: skip
            if outcome_ms is not None and self.now - outcome_ms <= OUTCOME_MS:
                return outcome_ms
        lost = (each.first_ms for each in reversed(self.story.exchanges)
                if self.now - each.last_ms <= OUTCOME_MS and not each.reads
                and appearance(each)[0] in ("lost", "unheard") and drawn(each))  # fmt: skip
        return next(lost, None)

    # --- the window ---------------------------------------------------------------------------

    def _shown(self, window_ms: float | None, arrows_max: int) -> list[Exchange]:
        """The newest requests in the window, without reads, which are drawn as one."""
        start = self.zero if window_ms is None else self.now - window_ms
        taken = None if window_ms is None else self.stays
        shown: list[Exchange] = []
        counted, left_ms = 0, -inf
        for exchange in reversed(self.story.exchanges):
            if not drawn(exchange):
                continue
            if exchange.last_ms < start - 5_000:
                break
            newest_ms = shown[-1].first_ms if counted == arrows_max else 0.0
            if taken is not None and taken < newest_ms and not self.omitted:
                self.omitted = min(taken + TAKEOVER_MS, newest_ms), newest_ms
                arrows_max += counted
            if self.omitted and exchange.first_ms > self.omitted[0]:
                continue
            if exchange.last_ms < start:
                continue
            if counted == arrows_max:
                left_ms = max(left_ms, exchange.first_ms)
            else:
                shown.append(exchange)
                counted += exchange.op != "look"
        shown.reverse()
        shown.sort(key=lambda exchange: exchange.first_ms)
        if left_ms > -inf:  # a stalled writer's request may be shown, sent long before them
            later = (each.first_ms for each in shown if each.first_ms > left_ms)
            start = max(start, next(later, self.now))
        self.start = max(self.zero, start)
        return [each for each in shown if each.last_ms >= start]

    def _t(self, at_ms: float) -> float:
        return round(max(at_ms, self.start) - self.zero, 4)

    def _hue(self, who: str) -> int:
        return self.hues.get(who, NO_LANE)

    def _inside(self, began_ms: float, ended_ms: float | None) -> bool:
        """Whether a part of it is drawn."""
        if ended_ms is None or self.omitted is None:
            return ended_ms is None or ended_ms >= self.start
        last, next_ms = self.omitted
        return ended_ms >= self.start and not last < began_ms <= ended_ms < next_ms

    def _proves(self, *keys: tuple[float | None, str, str]) -> bool:
        return bool(self.evidence) and any(key in self.evidence for key in keys)

    def _clock(self, at_ms: float | None) -> str:
        return "never" if at_ms is None else f"{(at_ms - self.zero) / 1000:.3f} s"

    # --- lanes --------------------------------------------------------------------------------

    def _lanes(self) -> list[Scene]:
        writers = [
            {"id": text(who), "title": text(who), "role": "writer", "hue": self.hues[who],
             "state": self._state(who)}
            for who in in_order(self.story.states)
        ]  # fmt: skip
        return [
            {"id": LOCK_LANE, "title": "lock object", "role": "truth", "state": ""},
            *writers,
            {"id": TABLE_LANE, "title": "table", "role": "truth", "state": ""},
        ]

    def _state(self, who: str) -> str:
        state = self.story.states[who]
        if state != "running":
            return state
        belief = self._belief(who)
        if belief is not None and belief.ended_ms is None:
            newest = self.story.holder()
            another = newest is not None and newest.who not in ("", who)
            if another:
                return NEVER if self._wrong(belief) == NEVER else "superseded"
            return "past lease" if belief.until_ms < self.now else "holds"
        waits = self.story.waiting(who) is not None
        if belief is None and self._stands_with(who):
            return "waits for itself" if waits else "holds"
        return "waits" if waits else "running"

    def _stands_with(self, who: str) -> bool:
        """Whether the lock object names this client, which has not reported that it holds it."""
        newest = self.story.holder()
        return newest is not None and newest.who == who and newest.exchange.op not in FREES

    def _belief(self, who: str) -> BeliefSpan | None:
        return next((b for b in reversed(self.story.beliefs) if b.who == who), None)

    # --- requests -------------------------------------------------------------------------------

    def _arrows(self) -> tuple[list[Scene], list[Scene]]:
        """Arrows, and the runs of reads that are drawn as one brace each."""
        arrows: list[Scene] = []
        polls: list[Scene] = []
        runs: dict[str, list[Exchange]] = {}
        for exchange in self.shown:
            if exchange.reads and exchange.op == "look":
                runs.setdefault(exchange.who, []).append(exchange)
                continue
            self._settle(runs.pop(exchange.who, []), arrows, polls)
            arrows.append(self._arrow(exchange))
        for run in runs.values():
            self._settle(run, arrows, polls)
        arrows.sort(key=lambda arrow: next(t for t in arrow["t"] if t is not None))
        return arrows, polls

    def _settle(self, run: list[Exchange], arrows: list[Scene], polls: list[Scene]) -> None:
        looks = [each for each in run if not each.retry]
        if len(looks) < POLLS_MIN:
            arrows.extend(map(self._arrow, run))
            return
        arrows.extend(map(self._arrow, [looks[0], *looks[0].retries]))
        rest = looks[1:]
        began, ended = self._t(rest[0].first_ms), self._t(rest[-1].last_ms)
        polls.append({
            "id": f"p{rest[0].id}", "lane": text(run[0].who), "kind": "polls",
            "t": [began, ended], "label": f"looks x{len(rest)}", "hue": self._hue(run[0].who),
            "detail": f"{text(run[0].who)} looked {len(rest)} more times",
        })  # fmt: skip

    def _arrow(self, each: Exchange) -> Scene:
        look, label = appearance(each)
        if look == "refused" and (cause := self._cause(each)):
            label = f"{label}, {cause}"
        times = [None if at is None else self._t(at) for at in each.times]
        if (look == "late" and each.decided_ms is None) or (look == "unheard" and each.late):
            times[2] = None  # its client has given up
        return {
            "id": each.id, "lane": text(each.who), "side": each.place, "op": text(each.op),
            "kind": "read" if each.reads else "write", "look": look, "label": label,
            "t": times, "n": each.order, "hue": self._hue(each.who),
            "detail": self._reported(each, look),
            "row": f"g{each.generation}" if each.generation else "",
            "evidence": self._proves(
                (each.sent_ms, each.who, "ask"), (each.decided_ms, STORE, "request"),
                (each.answered_ms, each.who, "answer"),
            ),
        }  # fmt: skip

    def _cause(self, each: Exchange) -> str:
        """Why the store refused a write by its condition; "" for another answer."""
        refused = each.status in REFUSED and not (each.applied or each.reads)
        return self.writes.first(each.key, each.decided_ms, text(each.who)) if refused else ""

    def _reported(self, each: Exchange, look: str) -> str:
        who, op = text(each.who) or "someone", text(each.op) or "write"
        parts = [f"{who}: {op} {text(tail(each.key))}"]
        parts.append(f"sent {self._clock(each.times[0])}")
        if each.decided_ms is not None:
            cause = self._cause(each)
            answer = f"answer {each.status}" + (f", {cause}" if cause else "")
            done = "applied" if each.applied else answer
            parts.append(f"store {self._clock(each.decided_ms)}: {done}")
        if each.applied:
            parts.append(f"version {short(each.before) or 'none'} to {short(each.version)}")
        if each.answered_ms is not None:
            outcome = text(each.outcome).replace("_", " ")
            parts.append(f"answered {self._clock(each.answered_ms)}: {outcome}")
        if each.retry:
            parts.append("a retry that the SDK sent within the same call")
        if look == "unheard":
            said = f"its answer ({each.status}) was lost"
            parts.append(f"no client waited for its answer ({each.status})" if each.late else said)
        if look in ("lost", "unheard", "dropped", "late"):
            parts.append("the client cannot know the outcome")
        parts.extend(text(part) for part in dict.fromkeys((neutral(each.why), each.fault)) if part)
        for instant, kind, owner in each.decides:
            parts.append(f"decides {text(instant)} of {text(owner) or 'someone'}: {text(kind)}")
        if each.attempt:
            parts.append(f"attempt {text(brief(each.attempt))}")
        return "; ".join(parts)

    # --- bars -----------------------------------------------------------------------------------

    def _owners(self) -> Iterator[Scene]:
        for number, (owner, epoch, began, until, ended) in enumerate(self.grants):
            end = self.now if ended is None else ended
            if not self._inside(began, end):
                continue
            solid = end if until is None else min(end, max(until, began))
            hue = self._hue(owner)
            label = f"{text(owner)} epoch {epoch}" if epoch else text(owner)
            yield {
                "id": f"o{number}", "lane": LOCK_LANE, "kind": "owner", "hue": hue, "label": label,
                "t": [self._t(began), self._t(solid)],
                "detail": f"the lock object names {label} as its holder",
            }  # fmt: skip
            if end - solid > STALE_SLACK_MS:
                yield {
                    "id": f"e{number}", "lane": LOCK_LANE, "kind": "over", "hue": hue,
                    "label": "lease over", "t": [self._t(solid), self._t(end)],
                    "detail": f"{label}: the lease has ended and no client has taken the lock yet",
                }  # fmt: skip

    def _spans(self) -> Iterator[BeliefSpan]:
        """The beliefs; in two parts where a client's own later write made its belief true."""
        for each in self.story.beliefs:
            since = self.given.get((each.who, each.epoch), 0.0)
            if each.began_ms < since < (each.ended_ms or self.now) and not self._knows(each):
                first, last = each.places
                yield replace(each, ended_ms=since, places=[first, None])
                each = replace(each, id=f"{each.id}b", began_ms=since, places=[None, last])
            yield each

    def _beliefs(self) -> Iterator[Scene]:
        for each in self._spans():
            end = self.now if each.ended_ms is None else each.ended_ms
            if not self._inside(each.began_ms, end):
                continue
            over, wrong = self._over(each), self._wrong(each)
            why = "its lease is over" if wrong == PAST else "the lock object does not name it"
            who, hue = text(each.who), self._hue(each.who)
            proves = self._proves(
                (each.began_ms, each.who, "held"), (each.began_ms, each.who, "renewed")
            )
            never = over <= each.began_ms
            if not never:
                yield {
                    "id": each.id, "lane": who, "kind": "belief", "hue": hue, "label": "",
                    "t": [self._t(each.began_ms), self._t(min(end, over))],
                    "n": [each.places[0], None if over < end else each.places[1]],
                    "detail": f"{who} counts on the lock, epoch {each.epoch}", "evidence": proves,
                }  # fmt: skip
            if never or end - over > STALE_SLACK_MS:
                yield {
                    "id": f"{each.id}r", "lane": who, "kind": "wrong", "hue": hue,
                    "label": wrong, "t": [self._t(over), self._t(end)],
                    "n": [each.places[0] if never else None, each.places[1]],
                    "evidence": proves and never,
                    "detail": f"{who} {'still ' * (not never)}counts on epoch {each.epoch}, "
                              f"but {why}",
                }  # fmt: skip

    def _wrong(self, each: BeliefSpan) -> str:
        """Why this belief is false at its end: the lane's head and the bar say the same."""
        given = self.given.get((each.who, each.epoch), inf) <= each.began_ms
        if not (given or self._over(each) > each.began_ms or self._knows(each)):
            return NEVER
        return "superseded" if (self._taken(each) or inf) < each.until_ms else PAST

    def _knows(self, belief: BeliefSpan) -> bool:
        """Whether its client was told, just before, that its write was applied."""
        return any(
            one.who == belief.who and one.applied and one.outcome == APPLIED
            and 0 <= belief.began_ms - (one.answered_ms or 0.0) <= JOIN_SLACK_MS
            for one in self.story.exchanges
        )  # fmt: skip

    def _over(self, each: BeliefSpan) -> float:
        """When this belief became false: its lease ended, or another client took the lock."""
        return max(each.began_ms, min(each.until_ms, self._taken(each) or each.until_ms))

    def _taken(self, belief: BeliefSpan) -> float | None:
        """When another client was granted the lock after this one; None if that never happened.

        A belief that begins outside a grant of its own is false from its beginning.
        """
        after = bisect_right(self.begans, belief.began_ms)
        around = self.grants[max(0, after - 1) : after + 1]
        looked = (each.place == "lock" and each.decided_ms for each in self.story.exchanges)
        known = after or (self.whole and any(looked) and not self._knows(belief))
        inside = any(map(partial(_counted_on, belief, 0.0), around)) or (
            any(map(partial(_counted_on, belief, JOIN_SLACK_MS), around)) and self._knows(belief)
        )  # fmt: skip
        if known and not inside:
            # Live, a client's line may come before the store's record of its grant.
            ahead = any(each.who == belief.who and each.outcome == "applied"
                        and each.decided_ms is None for each in self.shown)  # fmt: skip
            return None if ahead else belief.began_ms
        if after == len(self.grants):
            return None
        owner, _, began, _, _ = self.grants[after]
        return began if owner != belief.who else self.overtaken_at[after]

    def _stalls(self) -> Iterator[Scene]:
        for each in self.story.stalls:
            if self._inside(each.began_ms, each.ended_ms):
                bar = stall_bar(each, self._hue(each.who), self.now)
                yield bar | {
                    "t": [self._t(at_ms) for at_ms in bar["t"]],
                    "evidence": self._proves((each.began_ms, each.who, "stalled")),
                }

    def _calls(self) -> Iterator[Scene]:
        """One client call for which the SDK sent several requests."""
        for each in self.shown:
            if each.retries:
                yield call_bar(
                    f"c{each.id}", text(each.who), self._hue(each.who), text(each.op),
                    [self._t(each.first_ms), self._t(each.retries[-1].last_ms)],
                    len(each.retries) + 1,
                )  # fmt: skip

    # --- marks ----------------------------------------------------------------------------------

    def _generations(self) -> Iterator[Scene]:
        for each in self.story.generations:
            if self._inside(each.at_ms, each.at_ms):
                yield {
                    "id": f"g{each.n}", "lane": LOCK_LANE, "kind": "generation",
                    "t": self._t(each.at_ms), "label": f"g{each.n} {short(each.version)}",
                    "hue": self._hue(each.who), "row": f"g{each.n}", "arrow": each.exchange.id,
                    "detail": f"generation {each.n}, version {text(each.version)}, "
                    f"written by {text(each.who)}: {text(each.exchange.op) or 'unknown'}",
                }

    def _commits(self) -> Iterator[Scene]:
        """Completed instants, as the table shows them: the store's record, not the writer's."""
        for each in self.shown:
            if each.place == "table" and completes(each):
                instant, owner = instant_of(each.key), each.owner or each.who
                yield {
                    "id": f"t{each.id}", "lane": TABLE_LANE, "kind": "commit", "arrow": each.id,
                    "t": self._t(each.decided_ms or each.first_ms), "hue": self._hue(owner),
                    "label": f"..{text(instant)[-6:]}",
                    "detail": f"commit {text(instant)} of {text(owner)} is visible to readers",
                }  # fmt: skip

    def _moments(self) -> Iterator[Scene]:
        for each in self.story.moments:
            if each.kind in STATES or not self._inside(each.at_ms, each.at_ms):
                continue
            if each.kind == "exited" and not self._ended(each):
                continue
            stale = each.kind == "published" and self._stale(each)
            yield {
                "id": each.id, "lane": text(each.who), "t": self._t(each.at_ms), "n": each.order,
                "kind": "stale" if stale else "conflict" if _outrun(each) else each.kind,
                "label": caption(each, stale), "hue": self._hue(each.who),
                "detail": self._recounted(each, stale),
                "evidence": self._proves((each.at_ms, each.who, each.kind)),
            }  # fmt: skip

    def _ended(self, each: LaneMoment) -> bool:
        return self.story.states.get(each.who) == "exited"

    def _stale(self, each: LaneMoment) -> bool:
        """Whether a client published after its grant had ended and another client had the lock."""
        belief = self.believed.get((each.who, each.epoch))
        taken = None if belief is None else self._taken(belief)
        if belief is None or taken is None or taken >= each.at_ms:
            return False
        # A client that has released says afterwards what it had published before.
        own = (ended for who, epoch, _, _, ended in self.grants
               if (who, epoch) == (each.who, each.epoch))  # fmt: skip
        before = self.landed.get(each.instant, 0.0) < taken
        return not (belief.ending == "released" and before and (next(own, None) or taken) < taken)

    def _recounted(self, each: LaneMoment, stale: bool) -> str:
        parts = [f"{self._clock(each.at_ms)}: {text(each.who)} {each.kind}"]
        if each.instant:
            under = f", epoch {each.epoch}" if each.epoch else ""
            parts.append(f"commit {text(each.instant)}{under}")
        if stale:
            parts.append("another writer has had the lock since this one checked")
        if each.text:
            parts.append(text(each.text))
        return "; ".join(parts)

    # --- the table of generations ---------------------------------------------------------------

    def _rows(self) -> list[Scene]:
        shown = list(self.story.generations)[-self.rows_max :]
        rows = []
        for each in shown:
            grant = bisect_right(self.begans, each.at_ms) - 1
            rows.append(self._row(each, each.epoch or (self.grants[grant][1] if grant >= 0 else 0)))
        return rows

    def _row(self, each: LockGeneration, epoch: int) -> Scene:
        exchange, at_ms = each.exchange, round(each.at_ms - self.zero, 1)
        return {
            "id": f"g{each.n}", "n": each.n, "epoch": epoch, "who": text(each.who),
            "t": self._t(each.at_ms) if each.at_ms >= self.start else at_ms,
            "version": text(short(each.version)), "full": text(each.version),
            "hue": self._hue(each.who), "op": text(exchange.op),
            "attempt": text(brief(each.attempt)), "arrow": exchange.id,
            "answer": f"{each.status}{', answer lost' * (exchange.outcome == 'unknown')}",
        }  # fmt: skip


class LastWrites:
    """Who wrote each object, and when: a later write was refused because of the last one.

    :param writes: the key, the time and the client of each write that was applied.
    """

    def __init__(self, writes: Iterable[tuple[str, float, str]]) -> None:
        self._by_key: dict[str, list[tuple[float, str]]] = {}
        for key, at_ms, who in sorted(writes, key=lambda each: each[1]):
            self._by_key.setdefault(key, []).append((at_ms, text(who)))

    def first(self, key: str, at_ms: float | None, who: str) -> str:
        """Whose write was before a client's, which came at this time; "" if that is not known."""
        written = self._by_key.get(key, [])
        place = bisect_right(written, at_ms or 0.0, key=lambda each: each[0])
        if not place:
            return ""
        writer = written[place - 1][1] or "another client"
        return "its own write was first" if writer == who else f"{writer} wrote first"


def stall_bar(stall: Stall, hue: int, now_ms: float) -> Scene:
    """The time in which a process was paused, in every picture."""
    end_ms = now_ms if stall.ended_ms is None else stall.ended_ms
    seconds = (end_ms - stall.began_ms) / 1000
    lasted = f" {seconds:.1f} s" if seconds > STALL_S_MIN else ""
    who = text(stall.who)
    return {
        "id": stall.id, "lane": who, "kind": "stall", "hue": hue, "evidence": False,
        "t": [stall.began_ms, end_ms], "label": f"stalled{lasted}",
        "detail": f"{who}'s process was paused{lasted and f' for{lasted}'} (SIGSTOP)"
                  + (f"; {text(stall.why)}" if stall.why else ""),
    }  # fmt: skip


def completes(each: Exchange) -> bool:
    """Whether it makes a commit visible; an archiver deletes the same object."""
    return each.applied and each.op != "delete" and each.key.endswith(COMPLETED)


def call_bar(id: str, who: str, hue: int, op: str, times: list[float], requests: int) -> Scene:
    """A bracket around the requests of one call; `times` are of them."""
    return {
        "id": id, "lane": who, "kind": "call", "hue": hue, "label": "one call",
        "t": [min(times), max(times)],
        "detail": f"{who} made one call ({op}); its SDK sent {requests} requests",
    }  # fmt: skip


def hues(writers: Iterable[str]) -> dict[str, int]:
    """The number of each writer's colour: that of Wn is n - 1 in every picture, chart and table.

    Others have the first that is left, in their order.
    """
    found: dict[str, int] = {}
    for who in (named := list(writers)):
        if number := NUMBERED.fullmatch(who):
            found[who] = int(number[1]) - 1
    taken = set(found.values())
    left = (hue for hue in count() if hue not in taken)
    return {who: found[who] if who in found else next(left) for who in named}


def in_order(writers: Iterable[str]) -> list[str]:
    """The order of the lanes: each Wn has the place of its number among them."""
    named = list(writers)
    numbered = iter(sorted(filter(WRITER.fullmatch, named), key=lambda who: int(who[1:])))
    return [next(numbered) if WRITER.fullmatch(who) else who for who in named]


Grant = tuple[str, int, float, float | None, float | None]
"""owner, epoch, began, until (the holder's own deadline, None if it never said), ended."""


def grants(story: HistoryModel) -> Iterator[Grant]:
    """Who held the lock, by the store's record: from each grant to the write that ended it."""
    reported: dict[str, deque[BeliefSpan]] = {}
    for belief in story.beliefs:
        reported.setdefault(belief.who, deque()).append(belief)
    current: LockGeneration | None = None
    for each in story.generations:
        released = each.exchange.op in FREES
        if current is not None and (
            released or each.who != current.who or 0 < current.epoch != each.epoch > 0
        ):
            yield _grant(story, reported, current, each.at_ms)
            current = None
        if current is None and not released:
            current = each
    if current is not None:
        yield _grant(story, reported, current, None)


def _counted_on(belief: BeliefSpan, slack_ms: float, grant: Grant) -> bool:
    """Whether a belief begins in this grant; the clocks of client and store may differ."""
    owner, epoch, began_ms, _, ended_ms = grant
    same = owner == belief.who and (not epoch or not belief.epoch or epoch == belief.epoch)
    return same and began_ms - slack_ms <= belief.began_ms < (ended_ms or inf)


def overtaken_at(held: list[Grant]) -> list[float | None]:
    """For each grant, when the next grant to another owner began; None if there was none."""
    found: list[float | None] = [None] * len(held)
    for n in range(len(held) - 2, -1, -1):
        after = held[n + 1]
        found[n] = after[2] if after[0] != held[n][0] else found[n + 1]
    return found


def _grant(
    story: HistoryModel, reported: dict[str, deque[BeliefSpan]], first: LockGeneration,
    ended_ms: float | None,
) -> Grant:  # fmt: skip
    """A grant with the end that its holder recorded, and its epoch if the store did not."""
    owner, epoch, began_ms = first.who, first.epoch, first.at_ms
    beliefs = reported.get(owner, deque())
    while beliefs and beliefs[0].began_ms < began_ms - 1:
        beliefs.popleft()
    for belief in beliefs:
        if ended_ms is not None and belief.began_ms > ended_ms:
            break
        if epoch in (0, belief.epoch):
            beliefs.remove(belief)
            return owner, belief.epoch, began_ms, belief.until_ms, ended_ms
    until_ms = began_ms + story.lease_ms if story.lease_ms else None
    return owner, epoch, began_ms, until_ms, ended_ms


def facts(story: HistoryModel) -> tuple[str, ...]:
    """The lock object's newest state, in a few words."""
    newest = story.holder()
    if newest is None:
        return ()
    said = [f"generation g{newest.n}, version {text(short(newest.version))}"]
    owner, epoch, _, _, ended_ms = deque(grants(story), maxlen=1).pop()
    if ended_ms is None:
        said.append(f"held by {text(owner)}" + (f", epoch {epoch}" if epoch else ""))
    else:
        said.append("free")
    return tuple(said)


def appearance(each: Exchange) -> tuple[str, str]:
    """How a request looks and what is written on its arrow."""
    op = text(each.op) or "write"
    if each.retry:
        op = "the SDK's own retry" if each.retry == 1 else f"the SDK's retry {each.retry}"
    outcome = each.outcome or silent(each)
    match outcome:
        case "" | "unknown" if each.decided_ms is None and FLIES.search(each.fault):
            return "late", f"{op}: on its way"
        case "":
            return "open", op
        case "precondition_failed":
            return "refused", f"{op}: {each.status or 412}"
        case "refused":
            return "refused", f"{op}: error"
        case "throttled":
            return "throttled", f"{op}: {each.status or 429}"
        case "unknown" if each.decided_ms is None:
            return "dropped", f"{op}: lost"
        case "unknown" if each.decided_ms is not None and not (each.applied or each.reads):
            status = each.status or 412
            said = f"{status}: arrived late" if each.late else f"answer {status} lost"
            return "unheard", f"{op}: {said}"
        case "unknown" if each.late:
            return "late", f"{op}: {'arrived' if each.reads else 'landed'} late"
        case "unknown":
            return "lost", f"{op}: answer lost"
        case _:
            return "ok", op


def silent(each: Exchange) -> str:
    """The outcome where a client has recorded no answer: by the store's record and the faults."""
    reports = each.sent_ms is not None  # so it has heard nothing yet, or gave the call up
    if each.decided_ms is None or (reports and each.fault.endswith(SILENCING)):
        return ""
    if each.fault.endswith(SILENCING):
        return "unknown"
    return each.decision or (APPLIED if each.reads or not reports else "")


def caption(each: LaneMoment, stale: bool) -> str:
    """The few words beside a mark."""
    match each.kind:
        case "published":
            if stale:
                return "stale commit accepted"
            return f"committed, epoch {each.epoch}" if each.epoch else "committed"
        case "refused":
            return _refusal(each)
        case "lost":
            return "lease lost"
        case "decided":
            return text(each.text) if each.text[:6] != "commit" else f"decided{text(each.text[6:])}"
        case "fault":
            return f"fault: {text(each.text)}"
        case "tests":
            return "tests the store"
        case _:
            return each.kind


def _outrun(each: LaneMoment) -> bool:
    """Whether a commit only lost a race: another commit changed the same, and was first."""
    return each.kind == "refused" and each.text.partition(": ")[0] in CONFLICTS


def _refusal(each: LaneMoment) -> str:
    """Why a commit was refused: it lost against another commit, or its lease was over."""
    error, _, why = each.text.partition(": ")
    if error == "LockLost":
        return f"fenced off: epoch {each.epoch} is over" if each.epoch else "fenced off"
    if error == "CommitUnknown":
        known = why.startswith(f"{each.instant} was committed")
        return "committed, not yet visible" if known else "outcome unknown"
    others = [shortened(found) for found in INSTANT.findall(why) if found != each.instant]
    said = shortened(why.removeprefix(each.instant).removeprefix(":").strip())
    cause = text(re.split(r"[;:,(]", said)[0].strip(), limit=CAUSE_CHARS)
    if error in CONFLICTS and (others or cause):
        return f"conflict with {[*others, cause][0]}"
    return f"refused: {[cause, *others][0]}" if cause or others else "commit refused"


def text(value: object, *, limit: int = TEXT_MAX) -> str:
    """Untrusted text, without control characters and of a bounded length."""
    said = value if isinstance(value, str) else str(value)
    if len(said) <= limit and said.isprintable():
        return said
    kept = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in said[:limit])
    return kept if len(said) <= limit else kept[:-1] + "\N{HORIZONTAL ELLIPSIS}"


def tail(key: str) -> str:
    return key.rsplit("/", 1)[-1]
