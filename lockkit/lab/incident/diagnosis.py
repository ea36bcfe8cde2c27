"""Which known pattern a history shows, with the events that prove it; `unknown` rather than guess.

Each rule is one pure function over a case. It matches only if the history shows the cause and the
harm: a throttled release that was applied in the end is not an incident.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from lockkit.events import Event
from lockkit.lab.incident.case import AppliedWrite, IncidentHistory, ObservedWrite, lay_out
from lockkit.lab.incident.patterns import CARDS, Pattern, RunbookCard
from lockkit.lab.verify.check import FIELD_ERRORS
from lockkit.lab.verify.check.commits import no_stale_commit
from lockkit.lab.verify.check.lanes import client_of
from lockkit.lab.verify.check.leases import one_believer
from lockkit.lab.verify.check.verdict import Kind

SKEW_MS = 1_000
"""Clocks that differ by less are within what drift and margin allow for."""
MARGIN_MS = 1_000
BUFFER_MS = 500
"""Hudi's CLOCK_DRIFT_BUFFER_MS."""
NO_PATTERN = "the history shows none of the known patterns, or not enough to name one"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A pattern, why, and the events that prove it, in their order."""

    pattern: Pattern
    because: str
    evidence: tuple[Event, ...] = ()
    also: tuple[Diagnosis, ...] = ()
    """What else is to be seen: mostly its consequences."""

    @property
    def card(self) -> RunbookCard:
        return CARDS[self.pattern]

    def to_json(self) -> dict[str, Any]:
        evidence = [
            {"at_ms": each.at_ms, "who": each.who, "kind": each.kind, **each.data}
            for each in self.evidence
        ]
        return {
            "pattern": str(self.pattern), "because": self.because, "evidence": evidence,
            "also": [each.to_json() for each in self.also],
        }  # fmt: skip


def diagnose(events: Iterable[Event]) -> Diagnosis:
    """Name what a history shows, the cause first; damaged and healthy ones are `unknown`."""
    try:
        case = lay_out(events)
        found = [each for rule in RULES for each in _first(rule(case))]
    except FIELD_ERRORS as error:
        # A history may come from anywhere: `parse` checks that fields exist, not their types.
        because = f"the history is damaged: a field is not of its type ({error})"
        return Diagnosis(Pattern.UNKNOWN, because)
    if not found:
        return Diagnosis(Pattern.UNKNOWN, NO_PATTERN)
    first, *also = found
    return Diagnosis(first.pattern, first.because, first.evidence, tuple(also))


def _first(found: Iterator[Diagnosis]) -> list[Diagnosis]:
    one = next(found, None)
    return [] if one is None else [one]


# --- the store, and hands ------------------------------------------------------------------------


def no_cas(case: IncidentHistory) -> Iterator[Diagnosis]:
    """An applied write whose condition did not hold, or one condition that held twice."""
    taken: dict[tuple[str, str], Event] = {}
    for each in case.lanes.truth:
        condition, before = str(each["condition"]), str(each["before"])
        if not each["applied"] or not each["version"] or not condition.startswith("if-"):
            continue
        word, _, request = condition.partition(" ")
        false = before != "" if word == "if-absent" else request not in ("*", before)
        earlier = taken.get((each["key"], condition)) if word == "if-version" else None
        false = false and not each.get("logged")  # a store's log may lack the write before it
        if false or earlier:
            because = (
                f"the store applied {client_of(each)}'s write {condition!r}, though the object was "
                f"{before or 'absent'}" + (": one condition held twice" if earlier else "")
            )
            evidence = (earlier, each) if earlier else (each,)
            yield Diagnosis(Pattern.NO_CAS, because, evidence)
        taken[each["key"], condition] = each


def hand_deleted(case: IncidentHistory) -> Iterator[Diagnosis]:
    """A delete by hand: neither Hudi nor lockkit ever deletes the lock object."""
    for place, each in enumerate(case.writes):
        if each.event["version"] or not each.event["before"] or _lets_go(case, each):
            continue
        before = case.writes[place - 1] if place else None
        held = before is not None and before.live and before.until_ms is not None
        because = f"{each.client} deleted the lock object" + (
            f" while {before.client} held it" if held and before else ", and its epochs with it"
        )
        evidence = (before.event, each.event) if before else (each.event,)
        yield Diagnosis(Pattern.HAND_DELETED, because, evidence)
    for one, other in zip(case.writes, case.writes[1:], strict=False):
        # GCS and Azure leave no marker of a delete: the listing shows epochs that begin again.
        was, now = one.event.get("epoch"), other.event.get("epoch")
        listed = not other.event["condition"] and type(was) is type(now) is int
        if listed and 0 < now < was:
            because = (
                f"epoch {now} follows epoch {was}: between them the lock object was deleted or "
                "overwritten by hand"
            )
            yield Diagnosis(Pattern.HAND_DELETED, because, (one.event, other.event))


def _lets_go(case: IncidentHistory, delete: AppliedWrite) -> bool:
    """Whether it is a client's own release, of a kind that deletes."""
    return any(
        each.who == delete.client and each["op"] == "release" and each.at_ms <= delete.at_ms
        for each in case.lanes.by_kind["ask"]
    )


# --- clocks --------------------------------------------------------------------------------------


def clock_skew(case: IncidentHistory) -> Iterator[Diagnosis]:
    """A live lease taken too early, by a client whose clock is ahead of its holder's."""
    yield from _skew_of_hudi(case)
    offsets: dict[str, list[float]] = {}
    for each in case.writes:
        if each.until_ms is not None and each.ttl_ms is not None and each.live:
            offsets.setdefault(each.client, []).append(each.until_ms - each.ttl_ms - each.at_ms)
    # A slow request looks like a slow clock: take the fastest of its writes.
    offset = {client: max(those) for client, those in offsets.items()}
    for one, other in zip(case.writes, case.writes[1:], strict=False):
        if not (one.live and other.live) or one.client == other.client or one.ttl_ms is None:
            continue
        if not {one.client, other.client} <= set(offset):
            continue
        early_ms = one.at_ms + one.ttl_ms - other.at_ms
        ahead_ms = offset[other.client] - offset[one.client]
        if early_ms > min(MARGIN_MS, one.ttl_ms / 10) and ahead_ms > max(SKEW_MS, early_ms):
            because = (
                f"{other.client} took over the lock {early_ms / 1000:.1f} s before "
                f"{one.client}'s lease ended: its clock is {ahead_ms / 1000:.1f} s ahead"
            )
            yield Diagnosis(Pattern.CLOCK_SKEW, because, (one.event, other.event))


def _skew_of_hudi(case: IncidentHistory) -> Iterator[Diagnosis]:
    """The same for records without a lease time: Hudi's, which have only the lease's end.

    Hudi takes a lease 0.5 s after its end by the challenger's clock. If the store's clock shows an
    earlier time, then the challenger's clock is ahead of the store's. Two clocks that are ahead by
    the same amount do no harm to each other: their leases then reach equally far into the future.
    """
    reach: dict[str, float] = {}
    for each in case.writes:
        if each.live and each.until_ms is not None:
            reach[each.client] = max(each.until_ms - each.at_ms, reach.get(each.client, -math.inf))
    for one, other in zip(case.writes, case.writes[1:], strict=False):
        if not (one.live and other.live) or one.client == other.client or one.ttl_ms is not None:
            continue
        if one.until_ms is None or other.client not in reach:
            continue
        early_ms = one.until_ms - other.at_ms
        if early_ms > SKEW_MS and abs(reach[other.client] - reach[one.client]) > SKEW_MS:
            because = (
                f"{other.client} took over the lock {early_ms / 1000:.1f} s before {one.client}'s "
                "lease ended, by the store's clock: its own clock is ahead by more than that"
            )
            yield Diagnosis(Pattern.CLOCK_SKEW, because, (one.event, other.event))


# --- answers that were not what they seemed ------------------------------------------------------


def false_412(case: IncidentHistory) -> Iterator[Diagnosis]:
    """A renewal refused because of its own client's write, and believed."""
    for request in case.requests:
        if request.op not in ("renew", "confirm") or request.outcome != "preconditionfailed":
            continue
        assert request.answer is not None
        refused = _refusal(case, request)
        standing = case.standing(refused.at_ms) if refused else None
        if (
            refused is None
            or standing is None
            or standing.client != request.who
            or not standing.live
        ):
            continue
        reported = case.reports(
            request.who, "lost", "renewed", "held", since_ms=request.answer.at_ms, until_ms=math.inf
        )
        after = next(reported, None)
        if after is None or after.kind != "lost" or after.at_ms >= _until_ms(case, request) - 1:
            continue  # it found out; or its lease had simply run out
        because = (
            f"{request.who}'s renewal was refused because the lock object already had "
            f"{request.who}'s own write, and it read that as a loss: {after['why']}"
        )
        evidence = standing.event, refused, request.answer, after
        yield Diagnosis(Pattern.FALSE_412, because, evidence)


def _refusal(case: IncidentHistory, request: ObservedWrite) -> Event | None:
    """The store's record of the refusal; with a hidden retry, of its second copy."""
    return next(
        (each for each in reversed(case.lanes.truth)
         if each["attempt"] == request.event["attempt"]
         and each["answer"] == "precondition_failed"),
        None,
    )  # fmt: skip


def _until_ms(case: IncidentHistory, request: ObservedWrite) -> float:
    """When its client's belief was to end by itself."""
    since = case.reports(request.who, "held", "renewed", since_ms=0, until_ms=request.event.at_ms)
    last = [float(each["until_ms"]) for each in since]
    return last[-1] if last else math.inf


def ghost(case: IncidentHistory) -> Iterator[Diagnosis]:
    """A claim that was applied, but whose client never received the answer."""
    for request in case.requests:
        write = request.landed
        if request.op != "acquire" or write is None or not write.live:
            continue
        if request.outcome not in ("preconditionfailed", "unknown", "refused"):
            continue
        after = case.after(write)
        if after is not None and after.client == request.who:
            continue  # it found its own write, and went on from there
        gone_ms = math.inf if after is None else after.at_ms
        since_ms = max(write.at_ms, request.answer.at_ms if request.answer else 0.0)
        span = {"since_ms": min(write.at_ms, since_ms), "until_ms": gone_ms}
        if next(case.reports(request.who, "held", "renewed", **span), None):
            continue
        hurt = next(case.reports(request.who, "lost", "waiting", **span), None)
        hurt = hurt or _waits(case, **span)
        if hurt is None:
            continue  # the history ends before a client noticed
        said = request.outcome.replace("preconditionfailed", "precondition failed")
        because = (
            f"{request.who}'s claim landed, but its answer said otherwise ({said}), so "
            f"{request.who} does not know that it has the lock: the lock stays until its lease ends"
        )
        answer = (request.answer,) if request.answer else ()
        yield Diagnosis(Pattern.GHOST, because, (request.event, write.event, *answer, hurt))


def _waits(case: IncidentHistory, *, since_ms: float, until_ms: float) -> Event | None:
    """A client that waits for the lock meanwhile."""
    waiting = case.lanes.by_kind["waiting"]
    return next((each for each in waiting if since_ms < each.at_ms < until_ms), None)


# --- releases ------------------------------------------------------------------------------------


def failed_release(case: IncidentHistory) -> Iterator[Diagnosis]:
    """A release that was refused or not answered, was never applied, and was given up."""
    for over in case.lanes.by_kind["released"]:
        held = list(case.reports(over.who, "held", since_ms=0, until_ms=over.at_ms))
        since_ms = held[-1].at_ms if held else 0.0
        tried = [
            each for each in case.requests
            if each.who == over.who and each.op == "release"
            and since_ms <= each.event.at_ms <= over.at_ms
        ]  # fmt: skip
        standing = case.standing(over.at_ms)
        outcomes = {each.outcome for each in tried} - {""}
        if over["proven"] or not outcomes or any(each.landed for each in tried):
            continue
        if standing is None or standing.client != over.who or not standing.live:
            continue
        if not outcomes <= {"throttled", "unknown", "refused"}:
            continue
        throttled = outcomes == {"throttled"}
        pattern = Pattern.THROTTLED if throttled else Pattern.DANGLING
        because = (
            f"{over.who} finished its work, and its release was "
            f"{'throttled' if throttled else 'not answered'} (attempt {len(tried)} was its last), "
            "so its lock stays until the lease ends"
        )
        answers = [each.answer for each in tried if each.answer]
        yield Diagnosis(pattern, because, (standing.event, answers[0], over))


# --- what the checker finds ----------------------------------------------------------------------


def two_believers(case: IncidentHistory) -> Iterator[Diagnosis]:
    """Two overlapping beliefs, by each client's lane. Hudi's audit log needs a clock buffer."""
    beliefs = [
        replace(each, until_ms=each.until_ms - BUFFER_MS) if each.start.get("audit") else each
        for each in case.lanes.beliefs
    ]
    found = one_believer(replace(case.lanes, beliefs=beliefs))
    if found and found.kind is Kind.INVALID:
        yield Diagnosis(Pattern.TWO_BELIEVERS, found.because, found.evidence)


def stale(case: IncidentHistory) -> Iterator[Diagnosis]:
    found = no_stale_commit(case.lanes)
    if found and found.kind is Kind.INVALID:
        yield Diagnosis(Pattern.STALE, found.because, found.evidence)


RULES = (
    no_cas, hand_deleted, clock_skew, false_412, ghost, failed_release, two_believers, stale,
)  # fmt: skip
"""The cause before its consequence."""
