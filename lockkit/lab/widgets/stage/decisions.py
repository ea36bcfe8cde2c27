"""The decisions on a stage, as text: the same decisions lead to the same state again."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

THE_LEASE = "the lease"
DECISIONS_MAX = 1_000
MOMENT_CHARS_MAX = 20_000
SHOWN_CHARS = 60
_TIMES = re.compile(r"(.+?)(?: x([1-9]\d{0,3}))?")


class Choice(StrEnum):
    """A possible next step: of an actor's request, of the actor, or of the lease."""

    ANSWER = "answer"
    """The actor's request is carried out, and the actor gets the answer."""
    LOSE = "lose"
    """The request is carried out; the answer is lost."""
    DROP = "drop"
    """The request is lost."""
    LATE = "late"
    """The actor gets no answer. Its write is still on its way, and lands at `LAND`."""
    LAND = "land"
    PAUSE = "pause"
    """The actor is suspended, as by SIGSTOP; its clock goes on."""
    WAKE = "wake"
    KILL = "kill"
    ENDS = "ends"
    """Of the lease: so much time passes that each current grant has expired."""


@dataclass(frozen=True, slots=True)
class Decision:
    """An actor, and what happened to it. As text: `W1 lose`, `the lease ends`."""

    who: str
    what: Choice

    def __str__(self) -> str:
        return f"{self.who} {self.what}"


@dataclass(frozen=True, slots=True)
class ScenarioMoment:
    """A scenario, its planted mistake ("": none), and the decisions so far.

    As text: `election/a refused create counts as success: W1 answer x3, W2 lose, the lease ends`.
    """

    play: str
    mistake: str = ""
    decisions: tuple[Decision, ...] = ()

    def __str__(self) -> str:
        about = f"{self.play}/{self.mistake}" if self.mistake else self.play
        return f"{about}: {described(self.decisions)}".rstrip()

    @classmethod
    def of(cls, text: str) -> ScenarioMoment:
        """Parse a moment. `ValueError` names the invalid part and the format."""
        if len(text) > MOMENT_CHARS_MAX:
            raise ValueError(f"a moment has at most {MOMENT_CHARS_MAX} characters")
        about, colon, said = " ".join(text.split()).partition(":")
        play, _, mistake = about.partition("/")
        if not colon or not play:
            raise ValueError(
                f"{_brief(text)} is not a moment; one is written 'election: W1 answer x3, W2 lose'"
            )
        decisions = [one for each in said.split(",") if each.strip() for one in _read(each.strip())]
        if len(decisions) > DECISIONS_MAX:
            raise ValueError(f"a moment has at most {DECISIONS_MAX} decisions")
        return cls(play.strip(), mistake.strip(), tuple(decisions))


def described(decisions: Iterable[Decision]) -> str:
    """`W1 answer x3, W2 lose`; "" for none."""
    parts = []
    for each, same in groupby(decisions):
        times = len(list(same))
        parts.append(f"{each} x{times}" if times > 1 else str(each))
    return ", ".join(parts)


def _read(said: str) -> list[Decision]:
    match = _TIMES.fullmatch(said)
    who, _, what = match[1].rpartition(" ") if match else ("", "", "")
    if not who or what not in set(Choice):
        known = ", ".join(Choice)
        raise ValueError(
            f"{_brief(said)} is not a decision; one is written 'W1 lose' or 'W1 answer x3', and "
            f"there are: {known}"
        )
    return [Decision(who, Choice(what))] * int((match and match[2]) or 1)


def _brief(text: str) -> str:
    return repr(text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…")
