"""The rare events that a history contains: a run without them proves less."""

from __future__ import annotations

from collections.abc import Callable

from lockkit.lab.verify.check.lanes import HistoryIndex, bare, client_of, is_live, outcome_of


def _takeover(lanes: HistoryIndex) -> bool:
    """A grant over a lease that was not released."""
    place_of = {bare(each["version"]): n for n, (_, each) in enumerate(lanes.lock_writes)}
    for each in lanes.grants:
        place = place_of.get(bare(each["version"]))
        before = lanes.lock_writes[place - 1][1] if place else None
        if before is not None and client_of(before) != each.who and is_live(lanes, before):
            return True
    return False


def _lost_response(lanes: HistoryIndex) -> bool:
    """A write was applied, and its client got no answer."""
    silent = {attempt for attempt, each in lanes.answer_of.items() if outcome_of(each) == "unknown"}
    return any(each["applied"] and each["attempt"] in silent for each in lanes.truth)


def _ghost(lanes: HistoryIndex) -> bool:
    """A write of the lock was applied after its client had stopped waiting."""
    for _, each in lanes.lock_writes:
        answer = lanes.answer_of.get(each["attempt"])
        if answer is not None and answer.at_ms < each.at_ms and outcome_of(answer) == "unknown":
            return True
    return False


def never(lanes: HistoryIndex, reached: tuple[str, ...]) -> list[str]:
    """The rare events that this history does not contain."""
    required = [
        *(["takeover", "ghost"] if lanes.grants else []),
        *(["lost response"] if lanes.grants or lanes.published else []),
        *(["roll-forward"] if lanes.published else []),
    ]
    return [name for name in required if name not in reached]


REACHED: dict[str, Callable[[HistoryIndex], bool]] = {
    "takeover": _takeover,
    "lost response": _lost_response,
    "ghost": _ghost,
    "roll-forward": lambda lanes: any(e.get("rolled_forward") for e in lanes.by_kind["note"]),
    "stall": lambda lanes: bool(lanes.by_kind["stalled"]),
    "rollback": lambda lanes: bool(lanes.taken_back),
    "refused commit": lambda lanes: bool(lanes.by_kind["refused"]),
}
