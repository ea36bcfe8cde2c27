"""Checks the store: every write follows the one before, under its condition."""

from __future__ import annotations

from lockkit.events import Event
from lockkit.lab.verify.check.lanes import HistoryIndex, bare, client_of, name_of, outcome_of
from lockkit.lab.verify.check.verdict import Finding, counted, invalid, unknown, valid


def chain_of_versions(lanes: HistoryIndex) -> Finding | None:
    """Every write follows the one before it, and the store honoured every condition."""
    name, count = "the store keeps its conditions", 0
    if not lanes.truth:
        return unknown(name, "what the store did: its record of requests is missing")
    last: dict[str, Event] = {}
    for each in lanes.truth:
        key, before = each["key"], each["before"]
        writes = each["applied"] or each["answer"] == "precondition_failed"
        if not writes:
            continue
        known = last.get(key)
        if known is not None and before != known["version"]:
            because = (
                f"{name_of(key)} was {_v(known['version'])} after {client_of(known)}'s write, and "
                f"{_v(before)} before {client_of(each)}'s: a write in between is not recorded, or "
                "the store applied two writes at once"
            )
            return invalid(name, because, known, each)
        holds = _holds(each["condition"], before)
        changes = before or each["version"]  # deleting a missing object always works
        if each["applied"] and holds is False and changes:
            because = (
                f"the store ignored a condition: {client_of(each)} wrote {name_of(key)} "
                f"{each['condition']!r} while it was {_v(before)}, and the write was applied; no "
                "lock is safe on this store"
            )
            return invalid(name, because, known, each)
        if not each["applied"] and holds is True and str(each["method"]).upper() in ("PUT", "POST"):
            because = (
                f"the store refused {client_of(each)}'s write of {name_of(key)} "
                f"{each['condition']!r}, although it was {_v(before)}"
            )
            return invalid(name, because, known, each)
        if each["applied"]:
            count, last[key] = count + 1, each
    return valid(
        name, count, "write", f" of {counted(len(last), 'object')}, one after the other"
    )


def acknowledged_writes_are_there(lanes: HistoryIndex) -> Finding | None:
    """A write that was acknowledged is in the store's record, with the same version."""
    name, count = "no acknowledged write is lost", 0
    if not lanes.truth:
        return None
    applied = {each["attempt"]: each for each in lanes.truth if each["applied"] and each["attempt"]}
    since_ms = lanes.truth[0].at_ms  # a record may begin later than the clients' lanes
    for attempt, answer in lanes.answer_of.items():
        if outcome_of(answer) != "applied" or answer.at_ms < since_ms or not applied:
            continue
        count, write = count + 1, applied.get(attempt)
        if write is None or bare(write["version"]) != bare(answer["version"]):
            found = f"has {_v(write['version'])}" if write else "has no such write"
            because = (
                f"{answer.who} recorded its write {attempt} as applied with version "
                f"{answer['version']}, but the store's record {found}"
            )
            asks = (each for each in lanes.by_kind["ask"] if each["attempt"] == attempt)
            return invalid(name, because, next(asks), answer, write)
    return valid(name, count, "acknowledged write", ", all on record")


def _holds(condition: str, before: str) -> bool | None:
    """Whether the condition held; None: there was none, or an unknown one."""
    match condition.split(" ", 1):
        case ["if-absent"]:
            return before == ""
        case ["if-version", "*"]:
            return before != ""
        case ["if-version", version]:
            return before == version
        case _:
            return None


def _v(version: str) -> str:
    return version or "absent"
