"""Verdicts over a history: VALID, UNKNOWN or INVALID, with the events that prove it.

Each property is one pure function over the sorted lanes; each says in a sentence what it found. A
property that the history says too little about is UNKNOWN, never a silent yes. O(n log n).
"""

from __future__ import annotations

from collections.abc import Iterable

from lockkit.events import Event
from lockkit.lab.verify.check.commits import (
    acknowledged_is_there,
    no_stale_commit,
    refused_is_absent,
    taken_back_is_absent,
)
from lockkit.lab.verify.check.lanes import HistoryIndex, sort
from lockkit.lab.verify.check.leases import epochs_rise, no_self_inflicted_loss, one_believer
from lockkit.lab.verify.check.reached import REACHED, never
from lockkit.lab.verify.check.readers import readers_see_whole_commits
from lockkit.lab.verify.check.replay import replay
from lockkit.lab.verify.check.store import acknowledged_writes_are_there, chain_of_versions
from lockkit.lab.verify.check.verdict import Finding, Kind, Verdict, both, counted

__all__ = ["CHECKS", "REACHED", "Finding", "Kind", "Verdict", "both", "check", "replay"]

# The most serious first: the first that fails gives the verdict its sentence.
CHECKS = (
    acknowledged_is_there,
    no_stale_commit,
    refused_is_absent,
    taken_back_is_absent,
    readers_see_whole_commits,
    acknowledged_writes_are_there,
    chain_of_versions,
    one_believer,
    epochs_rise,
    no_self_inflicted_loss,
)

FIELD_ERRORS = (TypeError, ValueError, AttributeError, LookupError, OverflowError)
"""The errors that a rule raises if a field of the history has a wrong type."""


def check(events: Iterable[Event]) -> Verdict:
    """Judge a history. The truth lane must be in the order in which the store decided."""
    try:
        lanes = sort(events)
        findings = tuple(found for each in CHECKS if (found := each(lanes)))
        reached = tuple(name for name, happened in REACHED.items() if happened(lanes))
    except FIELD_ERRORS as error:
        # A history may come from anywhere: `parse` sees that fields are there, not what they are.
        because = f"the history is damaged: a field is not of its type ({error})"
        finding = Finding("fields", Kind.UNKNOWN, because)
        return Verdict(Kind.UNKNOWN, because, (), (finding,))
    for kind in (Kind.INVALID, Kind.UNKNOWN):
        bad = [each for each in findings if each.kind is kind]
        if bad:
            return Verdict(kind, bad[0].because, bad[0].evidence, findings, reached)
    return Verdict(Kind.VALID, _all_is_well(lanes, reached), (), findings, reached)


def _all_is_well(lanes: HistoryIndex, reached: tuple[str, ...]) -> str:
    holders = len({each.who for each in lanes.grants})
    grants = f"{counted(len(lanes.grants), 'grant')} to {counted(holders, 'client')}"
    said = [f"{grants}, never two holders at once"] if lanes.grants else []
    if lanes.published:
        said.append(f"{counted(len(lanes.published), 'commit')}, none stale and none lost")
    if lanes.by_kind["saw"]:
        said.append(f"{counted(len(lanes.by_kind['saw']), 'look')} at whole commits, in order")
    if reached:
        said.append(f"exercised: {', '.join(reached)}")
    if missing := never(lanes, reached):
        said.append(f"not exercised: {', '.join(missing)}")
    return "; ".join(said) or "nothing happened that could be judged"
