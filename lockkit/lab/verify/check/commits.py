"""Checks of commits: none lost, none stale, none visible that was refused or rolled back."""

from __future__ import annotations

from bisect import bisect_right, insort

from lockkit.events import Event
from lockkit.lab.verify.check.lanes import HistoryIndex, Publication, archived, client_of
from lockkit.lab.verify.check.verdict import Finding, invalid, unknown, valid


def acknowledged_is_there(lanes: HistoryIndex) -> Finding | None:
    """No acknowledged commit is lost or doubled: its completed file stays until it is archived."""
    name, first = "no acknowledged commit is lost", dict[str, Event]()
    for reported in lanes.by_kind["published"]:
        instant = str(reported["instant"])
        other = first.setdefault(instant, reported)
        if other.who != reported.who:
            because = f"{other.who} and {reported.who} both recorded {instant} as their own commit"
            return invalid(name, because, other, reported)
        if not lanes.truth:
            return unknown(name, f"whether {instant} is in the store: its record is missing")
        if instant not in lanes.visible:
            because = (
                f"{reported.who} recorded {instant} as published, but the store never had it"
            )
            checks = [each for each in lanes.by_kind["checked"] if str(each["instant"]) == instant]
            return invalid(name, because, *checks[-1:], reported)
        if instant in lanes.removed and instant not in lanes.restored:
            gone = lanes.removed[instant]
            kept = archived(lanes, instant, gone)
            if kept:
                continue
            if kept is None:
                return unknown(name, f"whether {instant} was archived before it was deleted", gone)
            because = f"{reported.who} published {instant}, and {client_of(gone)} deleted it"
            return invalid(name, because, reported, lanes.visible[instant], gone)
    return valid(name, len(first), "acknowledged commit", ", all in the store")


def no_stale_commit(lanes: HistoryIndex) -> Finding | None:
    """Each commit's conflict check covered every commit that was decided before it."""
    name = "no stale commit"
    checks = {str(each["instant"]): each for each in lanes.by_kind["checked"]}
    order = sorted(lanes.published.values(), key=lambda each: each.decided)
    before: list[str] = []
    """Instants decided so far, sorted: what a check must cover is a slice of it."""
    if not lanes.truth:
        if lanes.by_kind["published"]:
            return unknown(
                name, "in which order commits were published: the store's record is missing"
            )
        return None
    blind: Publication | None = None
    unsure: Publication | None = None
    for each in order:
        check = checks.get(each.instant)
        if check is None:
            blind = blind or each
        else:
            covered = {str(instant) for instant in check["covered"]}
            later = before[bisect_right(before, str(check.get("horizon") or "")) :]
            missed = [(instant, archived(lanes, instant, each.event)) for instant in later
                      if instant not in covered and instant not in lanes.restored
                      and not _are_apart(check, checks.get(instant))]  # fmt: skip
            for instant, gone in missed:
                if gone is False:
                    return _stale(name, each, lanes.published[instant], checks)
                unsure = unsure or (each if gone is None else None)
        insort(before, each.instant)
    if blind is not None:
        because = f"what {blind.instant} was checked against: no client recorded its check"
        return unknown(name, because, blind.event)
    if unsure is not None:
        because = f"whether all that {unsure.instant} was not checked against had been archived"
        return unknown(name, because, unsure.event)
    return valid(name, len(order), "commit", ", each checked against all before it")


def _are_apart(mine: Event, theirs: Event | None) -> bool:
    """In group commit a writer need not have seen a commit that wrote none of its file groups."""
    return bool(mine.get("together") and theirs and not _writes(mine) & _writes(theirs))


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
    return invalid(name, because, theirs, missed.event, mine, late.event)


def _writes(checked: Event) -> set[tuple[str, str]]:
    return {(str(group[0]), str(group[1])) for group in checked["writes"]}


def refused_is_absent(lanes: HistoryIndex) -> Finding | None:
    """A commit that ended with CommitConflict or LockLost is never visible."""
    name, count = "no refused commit is visible", 0
    last_check = {str(each["instant"]): each for each in lanes.by_kind["checked"]}
    refusals = {
        (each.who, str(each["instant"])): each
        for each in lanes.by_kind["refused"]
        if each["error"] in ("CommitConflict", "LockLost")
    }
    for (who, instant), reported in refusals.items():
        count += 1
        if not lanes.truth:
            return unknown(name, f"whether {instant} is in the store: its record is missing")
        again = last_check.get(instant)
        seen = lanes.visible.get(instant)
        if seen is None or (again and again.at_ms > reported.at_ms and seen.at_ms > reported.at_ms):
            continue  # not there, or tried again: a plan also by another process
        because = (
            f"{who} recorded {reported['error']} for {instant}, but readers see {instant}"
        )
        return invalid(name, because, reported, seen)
    return valid(name, count, "refused commit", ", none visible")


def taken_back_is_absent(lanes: HistoryIndex) -> Finding | None:
    """The fence decides each instant once: either a commit or a rollback."""
    name = "no rolled back commit is visible"
    for instant, decided in lanes.taken_back.items():
        if (seen := lanes.visible.get(instant)) is not None:
            because = (
                f"{client_of(decided)} decided that {instant} is rolled back, and "
                f"{client_of(seen)} made it visible: its files are gone"
            )
            return invalid(name, because, decided, seen)
    return valid(name, len(lanes.taken_back), "rolled back commit", ", none visible")
