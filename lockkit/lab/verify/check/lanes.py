"""Sorts a history once for all checks: the store's record (truth), the clients' events (belief)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from lockkit.events import STORE, Event

LOCK_OPS = {"acquire", "confirm", "renew", "release"}
LOCK_NAME = "table_lock.json"
FENCE_NAME = "fence.json"
OFFERS = (".offer", ".append", ".rewrite")
_OFFER = re.compile(r"(\d{17})\.(?:offer|[0-9a-f]*-[0-9a-f]{64}\.append|[\w.-]+\.rewrite)")
# `T.commit` of table version 6, `T_<completion time>.commit` of version 9.
_COMPLETED = re.compile(r"(\d{14}|\d{17})(?:_\d+)?\.(?:commit|deltacommit|replacecommit)")
# What makes instants archived: a manifest that names files, or in version 6 a log.
_ARCHIVE = re.compile(r"/timeline/history/manifest_\d+$|/archived/\.commits_\.archive\.[^/]+$")
_SPAN = re.compile(r"(\d{17})_(\d{17})_\d+\.parquet")


@dataclass(slots=True)
class Belief:
    """A stretch of time in which one client acted as the holder."""

    who: str
    start: Event
    last: Event
    """The grant or the renewal that `until_ms` comes from."""
    until_ms: float
    end: Event | None = None


@dataclass(slots=True)
class Publication:
    """A commit as the store saw it: decided by the fence where there is one, else by its file."""

    instant: str
    decided: int
    event: Event


@dataclass(slots=True)
class HistoryIndex:
    """A history, sorted once for all checks."""

    everything: list[Event]
    truth: list[Event] = field(default_factory=list)
    grants: list[Event] = field(default_factory=list)
    beliefs: list[Belief] = field(default_factory=list)
    by_kind: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    op_of: dict[str, str] = field(default_factory=dict)
    """By attempt: the client's name for the operation."""
    answer_of: dict[str, Event] = field(default_factory=dict)
    """By attempt: the first answer that the client received."""
    lock_keys: set[str] = field(default_factory=set)
    lock_writes: list[tuple[int, Event]] = field(default_factory=list)
    """Applied writes of the lock object, with their place in the truth lane."""
    instant_of: dict[str, str] = field(default_factory=dict)
    """By attempt on the fence: the commit that it decides."""
    published: dict[str, Publication] = field(default_factory=dict)
    visible: dict[str, Event] = field(default_factory=dict)
    """By instant: the applied write of its completed file."""
    removed: dict[str, Event] = field(default_factory=dict)
    archives: list[tuple[Event, tuple[tuple[str, str], ...]]] = field(default_factory=list)
    """Each write that archived instants, and the spans that it names (version 6: none)."""
    restoring: bool = False
    restored: set[str] = field(default_factory=set)
    """Instants that a restore undid: it replaced or deleted their completed files."""
    taken_back: dict[str, Event] = field(default_factory=dict)
    """By instant: the write of the fence that decided its rollback."""


def sort(events: Iterable[Event]) -> HistoryIndex:
    lanes = HistoryIndex(list(events))
    _sort_belief(lanes)
    lanes.truth = [each for each in lanes.everything if _is_request(each)]
    for place, each in enumerate(lanes.truth):
        name = name_of(each["key"])
        if name == LOCK_NAME:
            lanes.lock_keys.add(each["key"])
        if not each["applied"]:
            continue
        if _is_lock(lanes, each["key"]):
            lanes.lock_writes.append((place, each))
        instant = _completed(each["key"])
        lanes.restoring |= str(each["key"]).endswith(".restore.inflight")
        if instant in lanes.visible and lanes.restoring and each["condition"] != "if-absent":
            lanes.restored.add(instant)
        if instant and each["version"]:
            lanes.visible.setdefault(instant, each)
            lanes.published.setdefault(instant, Publication(instant, place, each))
        elif instant:
            lanes.removed[instant] = each
        elif _ARCHIVE.search(each["key"]) and each["version"]:
            lanes.archives.append((each, _spans(each)))
        elif name == FENCE_NAME and (made := decisions(each)):
            for instant, kind in made:
                if kind == "commit":
                    lanes.published.setdefault(instant, Publication(instant, place, each))
                else:
                    lanes.taken_back[instant] = each
        elif name == FENCE_NAME:
            kind, decided = _decided(each)
            decided = decided or lanes.instant_of.get(each["attempt"])
            if decided and kind == "rollback":
                if each["condition"] != "if-absent":  # the fence of a new table decides nothing
                    lanes.taken_back[decided] = each
            elif decided and kind == "commit":
                lanes.published.setdefault(decided, Publication(decided, place, each))
    return lanes


def decisions(fence: Event) -> list[tuple[str, str]]:
    """What a write of a fence of group commit decided: each instant, and the decision's kind."""
    match fence.get("body"):
        case {"format": 3 | 4, "round": made, "window": [*window]}:
            return [(str(each["instant"]), str(each.get("why") or each["kind"]))
                    for each in window if isinstance(each, dict) and each.get("round") == made
                    and "instant" in each and "kind" in each]  # fmt: skip
    return []


def offered(key: object) -> str:
    """The instant whose commit the object with this key offers; '' if it offers none."""
    found = _OFFER.fullmatch(name_of(key)) if str(key).endswith(OFFERS) else None
    return found[1] if found else ""


def archived(lanes: HistoryIndex, instant: str, until: Event) -> bool | None:
    """Whether this instant was archived at `until`; None: cannot be known, as an earlier archive
    file names no instants.
    """
    before = [spans for write, spans in lanes.archives if write.at_ms <= until.at_ms]
    if any(low <= instant <= high for spans in before for low, high in spans):
        return True
    return None if not all(before) else False


def _spans(manifest: Event) -> tuple[tuple[str, str], ...]:
    match manifest.get("body"):
        case {"files": [*files]}:
            found = (_SPAN.fullmatch(str(each.get("fileName"))) for each in files)
            return tuple((each[1], each[2]) for each in found if each)
    return ()


def _decided(fence: Event) -> tuple[str, str | None]:
    """What a write of the fence decided, as far as the record has its body: a long one it has not.

    Then a commit counts as decided when its completed file is there, which comes before the next.
    """
    match fence.get("body"):
        case {"format": 2, "instant": str(instant), "window": [*_, {"kind": str(kind)}]}:
            return kind, instant
    return "commit", fence.get("instant")


def _sort_belief(lanes: HistoryIndex) -> None:
    """Sort the client lanes by each client's own time, with their intervals of belief."""
    checking: dict[str, str] = {}
    attempts: dict[tuple[str, Any], str] = {}
    open_: dict[str, Belief] = {}
    reported = [each for each in lanes.everything if each.who != STORE or each.kind != "request"]
    for each in sorted(reported, key=lambda each: each.at_ms):
        lanes.by_kind[each.kind].append(each)
        match each.kind:
            case "checked":
                checking[each.who] = str(each["instant"])
            case "ask":
                _sort_ask(lanes, each, checking, attempts)
            case "answer":
                attempt = attempts.get((each.who, each["request"]))
                if attempt:
                    lanes.answer_of.setdefault(attempt, each)
            case "held":
                lanes.grants.append(each)
        _sort_interval(lanes, each, open_)


def _sort_ask(
    lanes: HistoryIndex, each: Event, checking: dict[str, str], attempts: dict[tuple[str, Any], str]
) -> None:
    op, attempt = each["op"], each["attempt"]
    if op in LOCK_OPS:
        lanes.lock_keys.add(each["key"])
    if not attempt:
        return
    attempts[each.who, each["request"]] = attempt
    lanes.op_of[attempt] = op
    if name_of(each["key"]) == FENCE_NAME and each.who in checking:
        lanes.instant_of[attempt] = checking[each.who]


def _sort_interval(lanes: HistoryIndex, each: Event, open_: dict[str, Belief]) -> None:
    """Belief ends by the client's own clock, or with its release request, its loss or its death.

    A stalled client acts no more than a dead one: its belief runs on to `until_ms`, by its clock.
    """
    current = open_.get(each.who)
    if each.kind == "held":
        if current:
            current.until_ms = min(current.until_ms, each.at_ms)
        belief = Belief(each.who, each, each, float(each["until_ms"]))
        open_[each.who] = belief
        lanes.beliefs.append(belief)
    elif each.kind == "renewed" and (current is None or each.at_ms > current.until_ms):
        # A belief that had ended, and was revived.
        open_[each.who] = Belief(each.who, each, each, float(each["until_ms"]))
        lanes.beliefs.append(open_[each.who])
    elif current is None:
        return
    elif each.kind == "renewed":
        current.last, current.until_ms = each, float(each["until_ms"])
    elif each.kind in ("released", "lost", "killed", "exited", "started") or (
        each.kind == "ask" and each["op"] == "release"
    ):
        current.until_ms, current.end = min(current.until_ms, each.at_ms), each
        del open_[each.who]


def _is_request(each: Event) -> bool:
    return each.who == STORE and each.kind == "request"


def name_of(key: object) -> str:
    return str(key).rpartition("/")[2]


def _is_lock(lanes: HistoryIndex, key: str) -> bool:
    return any(key == each or key.endswith("/" + each) for each in lanes.lock_keys)


def _completed(key: object) -> str | None:
    found = _COMPLETED.fullmatch(name_of(key))
    return found[1] if found else None


# --- what an event says -------------------------------------------------------------------------


def is_live(lanes: HistoryIndex, write: Event) -> bool:
    """Whether a write of the lock object left it held, by what the history records."""
    if "expired" in write.data:
        return not write["expired"]
    return bool(write["version"]) and lanes.op_of.get(write["attempt"]) != "release"


def outcome_of(answer: Event) -> str:
    return str(answer["outcome"]).replace("_", "").lower()


def client_of(request: Event) -> str:
    return str(request["client"]) or "somebody"


def bare(version: object) -> str:
    """A version without quotes: an ETag may be written with or without them."""
    return str(version).strip('"')
