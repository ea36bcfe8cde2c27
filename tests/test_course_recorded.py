"""The recorded runs of notebook 00, and what a run of one's own still lacks of its challenge."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lockkit.events import HistoryError
from lockkit.lab.course.recorded import ACCEPTED, NOTICED, REFUSED, lacking, recorded, stalled

HISTORIES = Path(__file__).parents[1] / "datasets" / "histories"


@pytest.mark.parametrize(
    ("history", "became"),
    [("bad/stalled_commit_accepted", ACCEPTED), ("good/stalled_commit_refused", REFUSED),
     ("good/lost_response_recovered", NOTICED)],
)  # fmt: skip
def test_a_recorded_history_shows_the_outcome_of_its_late_commit(
    history: str, became: str
) -> None:
    assert str(recorded(str(HISTORIES / f"{history}.jsonl"))) == became


def test_the_recorded_pause_is_chosen_by_its_fence_not_by_its_outcome() -> None:
    assert str(stalled(str(HISTORIES), fence=False)) == ACCEPTED
    assert str(stalled(str(HISTORIES), fence=True)) == REFUSED


def test_a_file_that_is_not_a_history_is_reported(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("no history\n\n")
    with pytest.raises(HistoryError, match="line 1"):
        recorded(str(tmp_path / "x.jsonl"))


def test_the_challenge_requires_a_refusal_a_lost_answer_and_a_valid_run() -> None:
    accepted, refused = (
        recorded(str(HISTORIES / name)).verdict
        for name in ("bad/stalled_commit_accepted.jsonl", "good/stalled_commit_refused.jsonl")
    )
    assert lacking(None) == "no writer has run: press Launch"
    assert lacking(refused) == "no answer was lost"
    both = replace(refused, reached=("refused commit", "lost response"))
    assert lacking(both) == ""
    assert lacking(replace(both, reached=("lost response",))) == "no commit was refused"
    wrong = replace(accepted, reached=both.reached)
    assert lacking(wrong).startswith("INVALID: lost update")
