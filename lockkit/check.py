"""Verdicts over a history: VALID, UNKNOWN or INVALID, with the events that prove it.

Each property is one pure function over the sorted lanes; each says in a sentence what it found. A
property that the history says too little about is UNKNOWN, never a silent yes. O(n log n).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any

from lockkit.history import STORE, Event

EVIDENCE_MAX = 4
LOCK_OPS = {"acquire", "confirm", "renew", "release"}
LOCK_NAME = "table_lock.json"
FENCE_NAME = "fence.json"
# `T.commit` of table version 6, `T_<completion time>.commit` of version 9.
_COMPLETED = re.compile(r"(\d{14}|\d{17})(?:_\d+)?\.(?:commit|deltacommit|replacecommit)")


class Kind(StrEnum):
    VALID = "VALID"
    UNKNOWN = "UNKNOWN"
    INVALID = "INVALID"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found: how it went, why, and the two to four events that prove it."""

    check: str
    kind: Kind
    because: str
    evidence: tuple[Event, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "check": self.check,
            "verdict": str(self.kind),
            "because": self.because,
            "evidence": [_as_json(each) for each in self.evidence],
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """The worst of the findings. `reached` names the rare things that did happen on the way."""

    kind: Kind
    because: str
    evidence: tuple[Event, ...]
    findings: tuple[Finding, ...]
    reached: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "verdict": str(self.kind),
            "because": self.because,
            "evidence": [_as_json(each) for each in self.evidence],
            "findings": [each.to_json() for each in self.findings],
            "reached": list(self.reached),
        }


def check(events: Iterable[Event]) -> Verdict:
    """Judge a history. The truth lane must be in the order in which the store decided."""
    try:
        lanes = _sort(events)
        findings = tuple(finding for each in CHECKS for finding in each(lanes))
        reached = tuple(name for name, happened in REACHED.items() if happened(lanes))
    except (TypeError, ValueError, AttributeError, IndexError, KeyError) as error:
        # A history may come from anywhere: `parse` sees that fields are there, not what they are.
        because = f"the history is damaged: a field is not of its type ({error})"
        finding = Finding("fields", Kind.UNKNOWN, because)
        return Verdict(Kind.UNKNOWN, because, (), (finding,))
    for kind in (Kind.INVALID, Kind.UNKNOWN):
        bad = [each for each in findings if each.kind is kind]
        if bad:
            return Verdict(kind, bad[0].because, bad[0].evidence, findings, reached)
    return Verdict(Kind.VALID, _all_is_well(lanes, reached), (), findings, reached)


# --- the lanes ----------------------------------------------------------------------------------


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
class Lanes:
    """A history, sorted once for all the checks."""

    everything: list[Event]
    truth: list[Event] = field(default_factory=list)
    grants: list[Event] = field(default_factory=list)
    beliefs: list[Belief] = field(default_factory=list)
    by_kind: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    op_of: dict[str, str] = field(default_factory=dict)
    """Of an attempt, as its client called it."""
    answer_of: dict[str, Event] = field(default_factory=dict)
    """The first answer that the client got to an attempt."""
    lock_keys: set[str] = field(default_factory=set)
    lock_writes: list[tuple[int, Event]] = field(default_factory=list)
    """Applied writes of the lock object, with their place in the truth lane."""
    instant_of: dict[str, str] = field(default_factory=dict)
    """Of an attempt on the fence: which commit it decides."""
    published: dict[str, Publication] = field(default_factory=dict)
    visible: dict[str, Event] = field(default_factory=dict)
    """By instant: the applied write of its completed file."""
    removed: dict[str, Event] = field(default_factory=dict)


def _sort(events: Iterable[Event]) -> Lanes:
    lanes = Lanes(list(events))
    _sort_belief(lanes)
    lanes.truth = [each for each in lanes.everything if _is_request(each)]
    for place, each in enumerate(lanes.truth):
        name = _name(each["key"])
        if name == LOCK_NAME:
            lanes.lock_keys.add(each["key"])
        if not each["applied"]:
            continue
        if _is_lock(lanes, each["key"]):
            lanes.lock_writes.append((place, each))
        instant = _completed(each["key"])
        if instant and each["version"]:
            lanes.visible.setdefault(instant, each)
            lanes.published.setdefault(instant, Publication(instant, place, each))
        elif instant:
            lanes.removed[instant] = each
        elif name == FENCE_NAME:
            decided = each.get("instant") or lanes.instant_of.get(each["attempt"])
            if decided:
                lanes.published.setdefault(decided, Publication(decided, place, each))
    return lanes


def _sort_belief(lanes: Lanes) -> None:
    """Client lanes, in the order of each client's own time; intervals of belief among them."""
    checking: dict[str, str] = {}
    asked: dict[tuple[str, Any], str] = {}
    open_: dict[str, Belief] = {}
    told = [each for each in lanes.everything if each.who != STORE or each.kind != "request"]
    for each in sorted(told, key=lambda each: each.at_ms):
        lanes.by_kind[each.kind].append(each)
        match each.kind:
            case "checked":
                checking[each.who] = str(each["instant"])
            case "ask":
                _sort_ask(lanes, each, checking, asked)
            case "answer":
                attempt = asked.get((each.who, each["request"]))
                if attempt:
                    lanes.answer_of.setdefault(attempt, each)
            case "held":
                lanes.grants.append(each)
        _sort_interval(lanes, each, open_)


def _sort_ask(
    lanes: Lanes, each: Event, checking: dict[str, str], asked: dict[tuple[str, Any], str]
) -> None:
    op, attempt = each["op"], each["attempt"]
    if op in LOCK_OPS:
        lanes.lock_keys.add(each["key"])
    if not attempt:
        return
    asked[each.who, each["request"]] = attempt
    lanes.op_of[attempt] = op
    if _name(each["key"]) == FENCE_NAME and each.who in checking:
        lanes.instant_of[attempt] = checking[each.who]


def _sort_interval(lanes: Lanes, each: Event, open_: dict[str, Belief]) -> None:
    """Belief ends by the client's own clock, or when it asks to release, hears of a loss, or dies.

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


def _name(key: object) -> str:
    return str(key).rpartition("/")[2]


def _is_lock(lanes: Lanes, key: str) -> bool:
    return any(key == each or key.endswith("/" + each) for each in lanes.lock_keys)


def _completed(key: object) -> str | None:
    found = _COMPLETED.fullmatch(_name(key))
    return found[1] if found else None


# --- the checks, the most serious first ---------------------------------------------------------


def acknowledged_is_there(lanes: Lanes) -> Iterator[Finding]:
    """No acknowledged commit lost: its completed file is in the store, and stays."""
    name, count = "no acknowledged commit is lost", 0
    for told in lanes.by_kind["published"]:
        instant, count = str(told["instant"]), count + 1
        if not lanes.truth:
            yield _unknown(name, f"whether {instant} is in the store: its own record is missing")
            return
        if instant not in lanes.visible:
            because = f"{told.who} was told that {instant} is published, and the store never had it"
            yield Finding(name, Kind.INVALID, because, (told,))
            return
        if instant in lanes.removed:
            gone = lanes.removed[instant]
            because = f"{instant} was published by {told.who}, and deleted by {_client(gone)}"
            yield Finding(name, Kind.INVALID, because, (told, lanes.visible[instant], gone))
            return
    yield Finding(name, Kind.VALID, f"all {count} acknowledged commits are in the store")


def no_stale_commit(lanes: Lanes) -> Iterator[Finding]:
    """Each commit's conflict check covered every commit that was decided before it."""
    name = "no stale commit"
    checks = {str(each["instant"]): each for each in lanes.by_kind["checked"]}
    order = sorted(lanes.published.values(), key=lambda each: each.decided)
    if not lanes.truth:
        if lanes.by_kind["published"]:
            yield _unknown(
                name, "in which order commits were published: the store's record is missing"
            )
        return
    blind: Publication | None = None
    for place, each in enumerate(order):
        if each.instant not in checks:
            blind = blind or each
            continue
        covered = {str(instant) for instant in checks[each.instant]["covered"]}
        for earlier in order[:place]:
            if earlier.instant not in covered:
                yield _stale(name, each, earlier, checks)
                return
    if blind is not None:
        because = f"what {blind.instant} was checked against: no lane tells of its check"
        yield _unknown(name, because, blind.event)
        return
    yield Finding(name, Kind.VALID, f"{len(order)} commits, each checked against all before it")


def _stale(name: str, late: Publication, missed: Publication, checks: dict[str, Event]) -> Finding:
    mine = checks[late.instant]
    theirs = checks.get(missed.instant)
    groups = _writes(mine) & (_writes(theirs) if theirs else set())
    who = f"{mine.who} published {late.instant} without having checked it against {missed.instant}"
    if theirs:
        who += f" of {theirs.who}"
    if groups:
        partition, file_id = min(groups)
        what = f"lost update: both rewrote {partition or 'the table'}/{file_id}"
    else:
        what = "stale commit"
    because = f"{what}; {who}, which was published before it"
    evidence = (theirs, missed.event, mine, late.event)
    return Finding(name, Kind.INVALID, because, tuple(each for each in evidence if each))


def _writes(checked: Event) -> set[tuple[str, str]]:
    return {(str(group[0]), str(group[1])) for group in checked["writes"]}


def refused_is_absent(lanes: Lanes) -> Iterator[Finding]:
    """A commit whose writer was told CommitConflict or LockLost by it is never visible."""
    name, count = "no refused commit is visible", 0
    last_check = {(each.who, str(each["instant"])): each for each in lanes.by_kind["checked"]}
    refusals = {
        (each.who, str(each["instant"])): each
        for each in lanes.by_kind["refused"]
        if each["error"] in ("CommitConflict", "LockLost")
    }
    for (who, instant), told in refusals.items():
        count += 1
        if not lanes.truth:
            yield _unknown(name, f"whether {instant} is in the store: its own record is missing")
            return
        again = last_check.get((who, instant))
        seen = lanes.visible.get(instant)
        if seen is None or (again and again.at_ms > told.at_ms and seen.at_ms > told.at_ms):
            continue  # not there, or tried again after the refusal
        because = f"{who} was told {told['error']} for {instant}, and it is visible all the same"
        yield Finding(name, Kind.INVALID, because, (told, seen))
        return
    yield Finding(name, Kind.VALID, f"{count} refused commits, none of them visible")


def chain_of_versions(lanes: Lanes) -> Iterator[Finding]:
    """Every write follows the one before it, and the store honoured every condition."""
    name, count = "the store keeps its conditions", 0
    if not lanes.truth:
        yield _unknown(name, "what the store did: its own record of requests is missing")
        return
    last: dict[str, Event] = {}
    for each in lanes.truth:
        key, before = each["key"], each["before"]
        writes = each["applied"] or each["answer"] == "precondition_failed"
        if not writes:
            continue
        known = last.get(key)
        if known is not None and before != known["version"]:
            because = (
                f"{_name(key)} was {_v(known['version'])} after {_client(known)}'s write, and "
                f"{_v(before)} before {_client(each)}'s: a write in between is not recorded, or "
                "the store decided two at once"
            )
            yield Finding(name, Kind.INVALID, because, (known, each))
            return
        holds = _holds(each["condition"], before)
        if each["applied"] and holds is False:
            because = (
                f"the store ignored a condition: {_client(each)} wrote {_name(key)} "
                f"{each['condition']!r}, it was {_v(before)}, and the write was applied; nothing "
                "on this store can be a lock"
            )
            yield Finding(name, Kind.INVALID, because, (*((known,) if known else ()), each))
            return
        if not each["applied"] and holds is True and str(each["method"]).upper() in ("PUT", "POST"):
            because = (
                f"the store refused {_client(each)}'s write of {_name(key)} {each['condition']!r}, "
                f"though it was {_v(before)}"
            )
            yield Finding(name, Kind.INVALID, because, (*((known,) if known else ()), each))
            return
        if each["applied"]:
            count, last[key] = count + 1, each
    yield Finding(name, Kind.VALID, f"{count} writes of {len(last)} objects, one after the other")


def _holds(condition: str, before: str) -> bool | None:
    """Whether the object was as the condition asks; None: no condition, or an unknown one."""
    match condition.split(" ", 1):
        case ["if-absent"]:
            return before == ""
        case ["if-version", "*"]:
            return before != ""
        case ["if-version", version]:
            return before == version
        case _:
            return None


def one_believer(lanes: Lanes) -> Iterator[Finding]:
    """Belief intervals of different clients are disjoint."""
    name = "one believer"
    if not lanes.beliefs:
        if lanes.lock_writes and not lanes.by_kind["ask"]:
            yield _unknown(name, "who believed what: the history has no client's lane")
        return
    widest: Belief | None = None
    for each in sorted(lanes.beliefs, key=lambda each: each.start.at_ms):
        if widest and widest.who != each.who and each.start.at_ms < widest.until_ms:
            overlap_s = (min(widest.until_ms, each.until_ms) - each.start.at_ms) / 1000
            because = (
                f"two believers: {widest.who} (epoch {widest.last['epoch']}) believed that it held "
                f"the lock when {each.who} was granted it (epoch {each.start['epoch']}), for "
                f"{overlap_s:.3f} s"
            )
            evidence = (widest.last, each.start, *((widest.end,) if widest.end else ()))
            yield Finding(name, Kind.INVALID, because, evidence)
            return
        if widest is None or each.until_ms >= widest.until_ms:
            widest = each
    yield Finding(name, Kind.VALID, f"{len(lanes.beliefs)} grants, never two at a time")


def epochs_rise(lanes: Lanes) -> Iterator[Finding]:
    """Grants in the order in which the store applied them have strictly rising epochs."""
    name = "epochs rise"
    if fallen := _fallen(lanes):
        one, other = fallen
        because = (
            f"epochs do not rise: {_client(other)} was granted epoch {other['epoch']} after "
            f"{_client(one)} had been granted epoch {one['epoch']}"
        )
        yield Finding(name, Kind.INVALID, because, (one, other))
        return
    if not lanes.grants:
        return
    if not lanes.lock_writes:
        yield _unknown(name, "in which order grants were made: the store's record is missing")
        return
    for _, each in lanes.lock_writes:
        if each["version"] and (not each["attempt"] or each.get("epoch") == 0):
            because = (
                f"what the epochs of {_name(each['key'])} are: {_client(each)} wrote it without "
                "one (Hudi drops the field)"
            )
            yield _unknown(name, because, each)
            return
    place_of = {_bare(each["version"]): place for place, each in lanes.lock_writes}
    placed = [(place_of.get(_bare(each["version"])), each) for each in lanes.grants]
    stray = next((each for place, each in placed if place is None), None)
    if stray is not None:
        because = f"which write granted epoch {stray['epoch']} to {stray.who}: it is not recorded"
        yield _unknown(name, because, stray)
        return
    ordered = sorted(((place, each) for place, each in placed if place is not None), key=_place)
    for (_, one), (_, next_) in pairwise(ordered):
        if next_["epoch"] <= one["epoch"]:
            because = (
                f"epochs do not rise: {next_.who} was granted epoch {next_['epoch']} after "
                f"{one.who} had been granted epoch {one['epoch']}"
            )
            yield Finding(name, Kind.INVALID, because, (one, next_))
            return
    yield Finding(name, Kind.VALID, f"{len(ordered)} grants, each with a higher epoch")


def _fallen(lanes: Lanes) -> tuple[Event, Event] | None:
    """Two grants out of order, where the store's record says what each write was."""
    highest: Event | None = None
    standing: Event | None = None
    for _, each in lanes.lock_writes:
        epoch = each.get("epoch")
        if not each["version"]:
            standing = None
        elif not epoch or "expired" not in each.data:
            return None  # Hudi's, or a record that does not tell
        else:
            new = standing is None or standing["expired"] or standing["client"] != each["client"]
            if new and not each["expired"] and highest is not None and epoch <= highest["epoch"]:
                return highest, each
            standing = each
            highest = each if highest is None or epoch >= highest["epoch"] else highest
    return None


def no_self_inflicted_loss(lanes: Lanes) -> Iterator[Finding]:
    """Nobody is told of a loss, or waits, while its own live write is the lock object."""
    name = "no self-inflicted loss"
    told = [each for kind in ("lost", "waiting") for each in lanes.by_kind[kind]]
    if told and not lanes.lock_writes:
        yield _unknown(
            name, "what the lock object held at each loss: the store's record is missing"
        )
        return
    breaks = [each for kind in ("started", "released") for each in lanes.by_kind[kind]]
    writes = [each for _, each in lanes.lock_writes]
    moments = sorted([*writes, *told, *breaks, *lanes.grants, *lanes.by_kind["renewed"]], key=_at)
    standing: Event | None = None
    until_ms: dict[str, float] = {}
    for each in moments:
        if each.kind == "request":
            standing = each
        elif each.kind in ("held", "renewed"):
            until_ms[each.who] = float(each["until_ms"])
        elif each.kind in ("started", "released"):
            if standing is not None and _client(standing) == each.who:
                standing = None  # another life, or a release that it gave up on: let it expire
        elif standing is not None and _client(standing) == each.who and _live(lanes, standing):
            ended_ms = until_ms.get(each.who)
            if each.kind == "lost" and ended_ms is not None and each.at_ms >= ended_ms - 1:
                continue  # by its own clock: the lease simply ran out
            what = "lost the lock" if each.kind == "lost" else "must wait"
            because = (
                f"{each.who} was told that it {what}, while the lock object held its own write "
                f"{standing['attempt']}"
            )
            yield Finding(name, Kind.INVALID, because, (standing, each))
            return
    yield Finding(name, Kind.VALID, f"{len(told)} losses and waits, none of them its own doing")


CHECKS = (
    acknowledged_is_there,
    no_stale_commit,
    refused_is_absent,
    chain_of_versions,
    one_believer,
    epochs_rise,
    no_self_inflicted_loss,
)


# --- what was reached ---------------------------------------------------------------------------


def _takeover(lanes: Lanes) -> bool:
    """A grant over a lease that its holder never released."""
    place_of = {_bare(each["version"]): n for n, (_, each) in enumerate(lanes.lock_writes)}
    for each in lanes.grants:
        place = place_of.get(_bare(each["version"]))
        before = lanes.lock_writes[place - 1][1] if place else None
        if before is not None and _client(before) != each.who and _live(lanes, before):
            return True
    return False


def _lost_response(lanes: Lanes) -> bool:
    """A write was applied, and its client was not told."""
    silent = {attempt for attempt, each in lanes.answer_of.items() if _outcome(each) == "unknown"}
    return any(each["applied"] and each["attempt"] in silent for each in lanes.truth)


def _ghost(lanes: Lanes) -> bool:
    """A write of the lock was applied after its client had stopped waiting for it."""
    for _, each in lanes.lock_writes:
        answer = lanes.answer_of.get(each["attempt"])
        if answer is not None and answer.at_ms < each.at_ms and _outcome(answer) == "unknown":
            return True
    return False


REACHED = {
    "takeover": _takeover,
    "lost response": _lost_response,
    "ghost": _ghost,
    "roll-forward": lambda lanes: any(e.get("rolled_forward") for e in lanes.by_kind["note"]),
    "stall": lambda lanes: bool(lanes.by_kind["stalled"]),
    "refused commit": lambda lanes: bool(lanes.by_kind["refused"]),
}


# --- words --------------------------------------------------------------------------------------


def _all_is_well(lanes: Lanes, reached: tuple[str, ...]) -> str:
    holders = len({each.who for each in lanes.grants})
    said = [f"{len(lanes.grants)} grants to {holders} clients, at most one believer at any time"]
    if lanes.published:
        said.append(f"{len(lanes.published)} commits, none stale and none lost")
    if reached:
        said.append(f"reached: {', '.join(reached)}")
    return "; ".join(said)


def _unknown(name: str, what: str, *evidence: Event) -> Finding:
    return Finding(name, Kind.UNKNOWN, f"the history does not tell {what}", evidence)


def _live(lanes: Lanes, write: Event) -> bool:
    """Whether a write of the lock object left it held, as far as the history tells."""
    if "expired" in write.data:
        return not write["expired"]
    return bool(write["version"]) and lanes.op_of.get(write["attempt"]) != "release"


def _outcome(answer: Event) -> str:
    return str(answer["outcome"]).replace("_", "").lower()


def _client(request: Event) -> str:
    return str(request["client"]) or "somebody"


def _v(version: str) -> str:
    return version or "absent"


def _bare(version: object) -> str:
    """An ETag with or without its quotes is the same version."""
    return str(version).strip('"')


def _at(each: Event) -> float:
    return each.at_ms


def _place(pair: tuple[int, Event]) -> int:
    return pair[0]


def _as_json(each: Event) -> dict[str, Any]:
    return {"at_ms": each.at_ms, "who": each.who, "kind": each.kind, **each.data}
