"""Checks what readers saw: whole commits, in the order of publication, none too late."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from lockkit.events import Event
from lockkit.lab.verify.check.lanes import HistoryIndex, name_of
from lockkit.lab.verify.check.verdict import Finding, invalid, unknown, valid

Group = tuple[str, str]
NAME = "readers see whole commits, in order"


@dataclass(slots=True)
class PublishedCommits:
    """Commits in the order in which they became visible; a place is an index in that order."""

    events: list[Event]
    place: dict[str, int]
    at_ms: list[float]
    """By place, never falling."""
    chains: dict[Group, list[int]] = field(default_factory=lambda: defaultdict(list))
    """By file group: the places of the commits that wrote it."""
    firsts: list[tuple[int, Group]] = field(default_factory=list)
    """The first of each chain, in order."""


@dataclass(frozen=True, slots=True)
class CommitBound:
    """The least or greatest number of commits that a read saw, and the commit that proves it."""

    count: int
    by: Event | None = None
    group: Group | None = None
    """None: the time says so."""


def readers_see_whole_commits(lanes: HistoryIndex) -> Finding | None:
    """Every look at the table shows what was visible at one moment between its begin and its end.

    So no reader sees half a commit, nor one without those before it, nor misses one that was
    published before it began to read.
    """
    looks = lanes.by_kind["saw"]
    if not looks:
        return None
    if not lanes.truth:
        return unknown(NAME, "what was published when: the store's record is missing")
    writes = {str(each["instant"]): each["writes"] for each in lanes.by_kind["checked"]}
    blind = next((each for instant, each in lanes.visible.items() if instant not in writes), None)
    if blind is not None:
        what = f"which file groups {name_of(blind['key'])} wrote: no client recorded its check"
        return unknown(NAME, what, blind)
    published = _published(lanes, writes)
    for reading in looks:
        if (finding := _judged(reading, published, lanes)) is not None:
            return finding
    return valid(NAME, len(looks), "look", ", each of whole commits, with all commits before them")


def _published(lanes: HistoryIndex, writes: dict[str, Any]) -> PublishedCommits:
    events = list(lanes.visible.values())
    place = {instant: number for number, instant in enumerate(lanes.visible)}
    found = PublishedCommits(events, place, list(accumulate((each.at_ms for each in events), max)))
    for instant, number in place.items():
        for partition, file_id in writes[instant]:
            found.chains[str(partition), str(file_id)].append(number)
    # A commit that replaces groups takes them out of sight: then what is not seen proves nothing.
    if not any("replacecommit" in name_of(each["key"]) for each in events):
        found.firsts = sorted((chain[0], group) for group, chain in found.chains.items())
    return found


def _judged(reading: Event, published: PublishedCommits, lanes: HistoryIndex) -> Finding | None:
    began = bisect_left(published.at_ms, float(reading["began_ms"]))
    ended = bisect_right(published.at_ms, reading.at_ms)
    least = CommitBound(began, published.events[began - 1] if began else None)
    most = CommitBound(ended, published.events[ended] if ended < len(published.events) else None)
    seen: dict[Group, str] = {}
    for partition, file_id, instant in reading["groups"]:
        group = str(partition), str(file_id)
        seen[group] = str(instant)
        place = published.place.get(str(instant))
        chain = published.chains.get(group, [])
        at = bisect_left(chain, place) if place is not None else len(chain)
        if at == len(chain) or chain[at] != place:
            return _stranger(reading, group, str(instant), lanes)
        if place + 1 > least.count:
            least = CommitBound(place + 1, published.events[place], group)
        if at + 1 < len(chain) and chain[at + 1] < most.count:
            most = CommitBound(chain[at + 1], published.events[chain[at + 1]], group)
    missed = published.firsts[: bisect_left(published.firsts, (least.count, ("", "")))]
    if len(missed) > len(seen) or any(group not in seen for _, group in missed):
        first, group = next(each for each in missed if each[1] not in seen)
        most = CommitBound(first, published.events[first], group)
    return None if least.count <= most.count else _torn(reading, least, most, seen)


def _stranger(reading: Event, group: Group, instant: str, lanes: HistoryIndex) -> Finding:
    other = [each for each in lanes.by_kind["refused"] if str(each["instant"]) == instant]
    other += [lanes.taken_back[instant]] if instant in lanes.taken_back else []
    what = "did not write it" if instant in lanes.visible else "was never published"
    because = f"{reading.who} saw {instant} in {_name(group)}, and {instant} {what}"
    return invalid(NAME, because, *other[:2], reading)


def _torn(reading: Event, least: CommitBound, most: CommitBound, seen: dict[Group, str]) -> Finding:
    assert most.by is not None
    missed = name_of(most.by["key"])
    if most.group is None:
        because = f"{reading.who} saw {_shown(least, seen)}, which was published after the read"
    elif least.by is most.by and least.group is not None:
        because = (
            f"half a commit: {reading.who} saw {missed} in {_name(least.group)}, but in "
            f"{_name(most.group)} the files that it replaced"
        )
    elif least.group is None:
        because = (
            f"{reading.who} began to read after {missed} was published, but did not see it in "
            f"{_name(most.group)}"
        )
    else:
        because = (
            f"{reading.who} saw {_shown(least, seen)}, but not {missed} in {_name(most.group)}, "
            "which was published before it"
        )
    other = None if least.by is most.by else least.by
    return invalid(NAME, because, most.by, other, reading)


def _shown(bound: CommitBound, seen: dict[Group, str]) -> str:
    assert bound.group is not None
    return f"{seen[bound.group]} in {_name(bound.group)}"


def _name(group: Group | None) -> str:
    assert group is not None
    return "/".join(filter(None, group))
