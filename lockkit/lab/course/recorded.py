"""A recorded run: the fate of its late commit, and what the reader's own run still needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockkit.events import Event, read
from lockkit.lab.verify.check import check

if TYPE_CHECKING:
    from lockkit.lab.widgets.lanes import Lanes

ACCEPTED = "it is accepted"
REFUSED = "the store refuses it"
NOTICED = "W1 notices that its lease has expired, and gives up"
GUESSES = (REFUSED, NOTICED, ACCEPTED)
WANTED = {"refused commit": "no commit was refused", "lost response": "no answer was lost"}
"""What must happen in the reader's own run, and the message if it did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """A judged history of a writer that was paused at its commit."""

    verdict: Any
    events: tuple[Event, ...] = field(repr=False)

    @property
    def view(self) -> Lanes:
        """Its picture, opened at its harm or at the last commit that was refused."""
        from lockkit.lab.widgets import Workbench

        return Workbench.replay(self.events, [e for e in self.events if e.kind == "refused"][-1:])

    def __str__(self) -> str:
        if self.verdict.kind == "INVALID":
            return ACCEPTED
        return REFUSED if "refused commit" in self.verdict.reached else NOTICED

    def __repr__(self) -> str:
        return f"{self}. {self.verdict.kind}: {self.verdict.said}"


def recorded(path: str) -> RecordedRun:
    """Read a history from its file. Raises `HistoryError` if the file is not a history."""
    with Path(path).open(encoding="utf-8") as lines:
        events = tuple(read(lines))
    return RecordedRun(events=events, verdict=check(events))


def stalled(histories: str, *, fence: bool) -> RecordedRun:
    """The recorded pause at a commit; the name of its file tells the outcome."""
    name = "good/stalled_commit_refused" if fence else "bad/stalled_commit_accepted"
    return recorded(f"{histories}/{name}.jsonl")


def lacking(verdict: Any) -> str:
    """What the reader's run still needs for the challenge; "" if it is solved."""
    if verdict is None:
        return "no writer has run: press Launch"
    for reached, absent in WANTED.items():
        if reached not in verdict.reached:
            return absent
    return "" if verdict.kind == "VALID" else f"{verdict.kind}: {verdict.said}"
