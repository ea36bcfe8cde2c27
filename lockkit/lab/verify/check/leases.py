"""Checks of the lease: one holder at a time, rising epochs, no loss by a client's own write."""

from __future__ import annotations

from itertools import pairwise

from lockkit.events import Event
from lockkit.lab.verify.check.lanes import Belief, HistoryIndex, bare, client_of, is_live, name_of
from lockkit.lab.verify.check.verdict import Finding, invalid, unknown, valid


def one_believer(lanes: HistoryIndex) -> Finding | None:
    """Belief intervals of different clients are disjoint."""
    name = "one holder at a time"
    if not lanes.beliefs:
        if lanes.lock_writes and not lanes.by_kind["ask"]:
            what = "which client held the lock when: it has no events of clients"
            return unknown(name, what)
        return None
    widest: Belief | None = None
    for each in sorted(lanes.beliefs, key=lambda each: each.start.at_ms):
        if widest and widest.who != each.who and each.start.at_ms < widest.until_ms:
            overlap_s = (min(widest.until_ms, each.until_ms) - each.start.at_ms) / 1000
            because = (
                f"two clients count on the lock at once: {widest.who} (epoch "
                f"{widest.last['epoch']}) and {each.who} (epoch {each.start['epoch']})"
                + (f", for {overlap_s:.3f} s" if overlap_s >= 0.001 else "")
            )
            return invalid(name, because, widest.last, each.start, widest.end)
        if widest is None or each.until_ms >= widest.until_ms:
            widest = each
    return valid(name, len(lanes.beliefs), "grant", ", never two at a time")


def epochs_rise(lanes: HistoryIndex) -> Finding | None:
    """Epochs rise strictly in the order in which the store applied the grants."""
    name = "epochs rise"
    if fallen := _fallen(lanes):
        one, other = fallen
        because = (
            f"epochs do not rise: {client_of(other)} was granted epoch {other['epoch']} after "
            f"{client_of(one)} had been granted epoch {one['epoch']}"
        )
        return invalid(name, because, one, other)
    if not lanes.grants:
        return None
    if not lanes.lock_writes:
        return unknown(name, "in which order grants were made: the store's record is missing")
    for _, each in lanes.lock_writes:
        if each["version"] and (not each["attempt"] or each.get("epoch") == 0):
            because = (
                f"what the epochs of {name_of(each['key'])} are: {client_of(each)} wrote it "
                "without one (Hudi drops the field)"
            )
            return unknown(name, because, each)
    place_of = {bare(each["version"]): place for place, each in lanes.lock_writes}
    placed = [(place_of.get(bare(each["version"])), each) for each in lanes.grants]
    stray = next((each for place, each in placed if place is None), None)
    if stray is not None:
        because = f"which write granted epoch {stray['epoch']} to {stray.who}: none is recorded"
        return unknown(name, because, stray)
    ordered = sorted(((place, each) for place, each in placed if place is not None), key=_place)
    for (_, one), (_, next_) in pairwise(ordered):
        if next_["epoch"] <= one["epoch"]:
            because = (
                f"epochs do not rise: {next_.who} was granted epoch {next_['epoch']} after "
                f"{one.who} had been granted epoch {one['epoch']}"
            )
            return invalid(name, because, one, next_)
    return valid(name, len(ordered), "grant", ", each with a higher epoch")


def _fallen(lanes: HistoryIndex) -> tuple[Event, Event] | None:
    """Two grants in the wrong order, by the store's record of each write."""
    highest: Event | None = None
    standing: Event | None = None
    for _, each in lanes.lock_writes:
        epoch = each.get("epoch")
        if not each["version"]:
            standing = None
        elif not epoch or "expired" not in each.data:
            return None  # Hudi's, or a record without that field
        else:
            new = standing is None or standing["expired"] or standing["client"] != each["client"]
            if new and not each["expired"] and highest is not None and epoch <= highest["epoch"]:
                return highest, each
            standing = each
            highest = each if highest is None or epoch >= highest["epoch"] else highest
    return None


def no_self_inflicted_loss(lanes: HistoryIndex) -> Finding | None:
    """No client reports a loss, or waits, while its own live write is the lock object."""
    name = "no self-inflicted loss"
    reported = [each for kind in ("lost", "waiting") for each in lanes.by_kind[kind]]
    if reported and not lanes.lock_writes:
        what = "what the lock object held at each loss: the store's record is missing"
        return unknown(name, what)
    breaks = [each for kind in ("started", "released") for each in lanes.by_kind[kind]]
    writes = [each for _, each in lanes.lock_writes]
    looks = [each for each in lanes.by_kind["ask"] if each["op"] == "look"]
    moments = sorted(
        [*writes, *reported, *breaks, *lanes.grants, *lanes.by_kind["renewed"], *looks], key=_at
    )
    sent_ms = {each["attempt"]: each.at_ms for each in lanes.by_kind["ask"]}
    standing: Event | None = None
    until_ms: dict[str, float] = {}
    started_ms: dict[str, float] = {}
    looked_ms: dict[str, float] = {}
    for each in moments:
        if each.kind == "request":
            standing = each
        elif each.kind == "ask":
            looked_ms[each.who] = each.at_ms
        elif each.kind in ("held", "renewed"):
            until_ms[each.who] = float(each["until_ms"])
        elif each.kind in ("started", "released"):
            if each.kind == "started":
                started_ms[each.who] = each.at_ms
            if standing is not None and client_of(standing) == each.who:
                standing = None  # another life, or a release that it gave up on: let it expire
        elif standing is not None and client_of(standing) == each.who and is_live(lanes, standing):
            ended_ms = until_ms.get(each.who)
            if each.kind == "lost" and ended_ms is not None and each.at_ms >= ended_ms - 1:
                continue  # by its own clock: the lease simply ran out
            if sent_ms.get(standing["attempt"], each.at_ms) < started_ms.get(each.who, 0.0):
                continue  # of its life before, and late
            looked = looked_ms.get(each.who, 0.0)
            if sent_ms.get(standing["attempt"], looked) < looked < standing.at_ms:
                continue  # it landed after that look: the next one shows it
            what = "lost the lock" if each.kind == "lost" else "must wait"
            because = (
                f"{each.who} recorded that it {what}, while the lock object held its own write "
                f"{standing['attempt']}"
            )
            return invalid(name, because, standing, each)
    what = " a client lost the lock or waited, never because of its own write"
    return valid(name, len(reported), "time", what)


def _at(each: Event) -> float:
    return each.at_ms


def _place(pair: tuple[int, Event]) -> int:
    return pair[0]
