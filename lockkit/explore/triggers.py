"""What made a client change its phase, in the words of the diagram."""

from __future__ import annotations

from lockkit.outcome import Applied, PreconditionFailed, Throttled, Unknown
from lockkit.state import (
    Action,
    Answered,
    Beat,
    Beaten,
    Blind,
    Event,
    GiveUp,
    Phase,
    Quit,
    Saw,
    Send,
    Want,
)


def trigger(before: Phase, event: Event, after: Phase, actions: tuple[Action, ...]) -> str:
    """What made a client change its phase, in the words of the diagram."""
    match event:
        case Answered(answer=Applied()):
            return "applied"
        case Answered(answer=PreconditionFailed()):
            return "412"
        case Answered(answer=Throttled()):
            return "throttled"
        case Answered(answer=Unknown()):
            return "no answer"
        case Saw() if before is Phase.SETTLING:
            return _settled(after, actions)
        case Saw():
            return {
                Phase.WAITING: "held by another",
                Phase.CLAIMING: "free",
                Phase.CONFIRMING: "a ghost of our own",
                Phase.IDLE: "not ours any more",
            }.get(after, "still ours")
        case Want():
            return "want"
        case Beat():
            return "beat" if after is not Phase.LOST else "the lease ran out"
        case Quit():
            return "quit"
        case GiveUp():
            return "give up"
        case Blind():
            return "no answer to a read"
        case _:
            return "later"


def _settled(after: Phase, actions: tuple[Action, ...]) -> str:
    if any(isinstance(each, Beaten) for each in actions) or after is Phase.WAITING:
        return "not ours"
    resent = any(isinstance(each, Send) for each in actions)
    match after:
        case Phase.CONFIRMING:
            return "ours"
        case Phase.IDLE:
            return "ours, or superseded"
        case Phase.LOST:
            return "not ours, or too late"
        case _:
            return "still out" if resent else "settled"
