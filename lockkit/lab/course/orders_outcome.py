"""The outcome of orders that several programs wrote: each program's answer, and the table."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

from lockkit.events import Event, shortened
from lockkit.lab.course.grid import grid


@dataclass(frozen=True, slots=True)
class ProgramReport:
    """The answer that one program got for its order."""

    who: str
    done: bool
    said: str
    error: str = ""
    attempts: int = 1

    def __repr__(self) -> str:
        tries = f", attempt {self.attempts}" if self.attempts > 1 else ""
        said = f"committed{tries}" if self.done else f"{self.error}: {shortened(self.said)}"
        return f"{self.who}: {said}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OrdersOutcome:
    """The outcome of orders that were sent to one new table at the same time."""

    did: str
    """In the words of a guess."""
    reported: tuple[ProgramReport, ...]
    rows: dict[str, int]
    """What a reader finds: order -> amount."""
    events: tuple[Event, ...]
    verdict: Any

    def __str__(self) -> str:
        return self.did

    @property
    def committed(self) -> int:
        return sum(each.done for each in self.reported)

    @property
    def refused(self) -> list[Event]:
        """The events of the first commit that was refused: a picture opens there."""
        return [each for each in self.events if each.kind == "refused"][:1]

    def __repr__(self) -> str:
        reported = "\n".join(map(repr, self.reported))
        return f"{reported}\nThe table: {self.rows}\n{self.verdict.kind}: {self.verdict.said}"

    def _repr_html_(self) -> str:
        rows = (
            (
                each.who, "✓ committed" if each.done else f"✗ {each.error}", each.attempts,
                shortened(each.said),
            )
            for each in self.reported
        )
        reported = grid("told", ("", "result", "attempts", "answer"), rows)
        table = ", ".join(f"{escape(key)} = {amount}" for key, amount in self.rows.items())
        return (
            f"{reported}<div>The table: <b>{table}</b></div>"
            f"<div>The checker: <b>{escape(str(self.verdict.kind))}</b>, "
            f"{escape(str(self.verdict.said))}</div>"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedDriver:
    """The outcome of a commit whose driver was paused."""

    way: str
    did: str
    reported: ProgramReport | None = None

    def __str__(self) -> str:
        return self.did

    def __repr__(self) -> str:
        reported = shortened(self.reported.said) if self.reported else ""
        woken = f" The answer to W1 after it resumed: {reported}" if reported else ""
        return f"{self.way}(): {self.did}.{woken}"
