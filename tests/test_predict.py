"""A prediction without a browser: locked until a guess is picked, and nobody's text is markup."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("ipywidgets", reason="make test installs ipywidgets")

import ipywidgets as widgets

from lockkit.lab.widgets import Predict
from lockkit.lab.widgets.predict import NotPredicted

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


@pytest.fixture(autouse=True)
def somebody_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCKKIT_FAST", raising=False)


def text(predict: Predict) -> str:
    return "".join(each.value for each in predict.view.children if isinstance(each, widgets.HTML))


def test_nothing_runs_before_a_guess_is_picked() -> None:
    predict, ran = Predict("Which?", ["one", "two"]), []
    with pytest.raises(NotPredicted, match=r"Predict first.*\(Which\?\)") as refused:
        predict.run(ran.append, 1)
    assert ran == [] and predict.did is None
    assert len(refused.value._render_traceback_()) == 1, "a sentence, no traceback"
    predict.choice.value = "two"  # the click
    assert predict.run("{}".format, "one") == "one"


def test_in_voila_a_cell_runs_once_and_its_outcome_waits_for_the_guess(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lockkit.lab.widgets.predict.IN_VOILA", True)
    predict = Predict("Which?", ["one", "two"])
    assert predict.run("{}".format, "one") == "one"
    assert predict.did is None and "Pick a guess" in text(predict)
    assert predict.choice.holds, "the page below waits, too"
    assert predict.run("{}".format, "two") == "two", "a later step of the page"
    predict.choice.value = "two"  # the click
    assert predict.did == "one" and "The outcome: one." in text(predict)


def test_after_the_run_the_panel_shows_the_prediction_and_the_result() -> None:
    predict = Predict("Which?", ["one", "two"])
    predict.pick("two")
    assert "Now run" in text(predict)
    predict.run("{}".format, "one")
    assert not predict.choice.holds
    assert "You predicted: two. The outcome: one." in text(predict)
    assert "role='status'" in text(predict)
    predict.run("{}".format, "two")
    assert "The outcome: one." in repr(predict), "a second run does not mend the first"
    right = Predict("Which?", ["one", "two"])
    right.pick("one")
    right.run("{}".format, "one")
    assert "You predicted it: one." in text(right)


class Kernel:
    """What IPython's shell says of the cell that is running."""

    def __init__(self, **metadata: str) -> None:
        self.metadata, self.kernel = metadata, self

    def get_parent(self) -> dict[str, Any]:
        return {"metadata": self.metadata}


def test_a_questions_cell_that_runs_again_keeps_its_guess_until_the_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def asked(**metadata: str) -> Predict:
        monkeypatch.setattr("lockkit.lab.widgets.predict.get_ipython", lambda: Kernel(**metadata))
        return Predict("Which?", ["one", "two"])

    asked(cellId="a").choice.value = "two"
    again = asked(cellId="a")
    assert "Now run" in text(again) and again.picked == "two"
    assert asked(cellId="b").picked is None, "another cell asks for itself"
    asked().choice.value = "two"
    assert asked().picked is None, "a panel that asks anew is no cell"
    again.run("{}".format, "one")
    assert asked(cellId="a").picked is None, "to predict again"


def test_a_guess_is_not_changed_after_the_run() -> None:
    predict = Predict("Which?", ["one", "two"])
    predict.pick("one")
    predict.show("two")
    assert predict.choice.disabled
    with pytest.raises(ValueError, match="run the question's cell again"):
        predict.pick("two")


def test_what_explains_the_outcome_is_shown_with_it_and_not_before() -> None:
    predict = Predict("Which?", ["one", "two"])
    before = predict.explain("Because *one*.")
    predict.pick("two")
    assert "Because" not in repr(before) + str(before.view.children[0].get_state())
    predict.run("{}".format, "one")
    after = predict.explain("And also.")
    for said, words in ((before, "Because *one*."), (after, "And also.")):
        assert said.view.children[0].outputs[0]["data"]["text/markdown"] == words == repr(said)


def test_a_button_of_another_panel_is_locked_by_it() -> None:
    predict, button = Predict("Which?", ["one", "two"]), widgets.Button()
    predict.locks(button)
    assert button.disabled
    predict.pick("two")
    assert not button.disabled


class Drawn(widgets.HTML):
    """A picture of something that ended as the first guess says."""

    def __str__(self) -> str:
        return "one"


def test_a_recorded_run_is_hidden_until_a_guess_is_picked_and_the_run_requested() -> None:
    predict, picture = Predict("Which?", ["one", "two"]), Drawn(value="the answer")
    veil = predict.reveal(picture)
    with pytest.raises(NotPredicted):
        veil.open()
    assert veil.button.disabled and veil.view.children == (veil.button,)
    assert "Predict first" in repr(veil)
    predict.pick("two")
    assert predict.did is None and veil.view.children == (veil.button,), "picked is not yet asked"
    veil.button.click()
    assert veil.view.children == (picture,) and "The outcome: one." in text(predict)


def test_revealing_a_stage_without_an_answer_leaves_the_prediction_open() -> None:
    predict = Predict("Which?", ["one", "two"])
    predict.pick("two")
    predict.reveal(widgets.HTML("a stage to play on")).open()
    assert predict.did is None and not predict.choice.disabled


def test_what_was_revealed_stays_so_when_its_cell_is_run_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    predict, cells = Predict("Which?", ["one", "two"]), iter(["first", "first", "second"])
    monkeypatch.setattr("lockkit.lab.widgets.predict._running_cell", lambda: next(cells))
    predict.pick("two")
    predict.reveal(widgets.HTML("a picture")).open()
    assert predict.reveal(widgets.HTML("a picture")).opened
    assert not predict.reveal(widgets.HTML("of another cell")).opened


def test_without_an_interactive_page_the_first_choice_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCKKIT_FAST", "1")
    predict = Predict("Which?", ["one", "two"])
    assert predict.picked == "one"
    predict.pick("two")
    assert predict.run("{}".format, "two") == "two"
    assert predict.reveal(widgets.HTML()).opened


def test_the_text_of_others_stays_text() -> None:
    predict = Predict(HOSTILE, [HOSTILE, "two"])
    predict.pick(HOSTILE)
    predict.run("{}".format, HOSTILE * 20)
    assert "<img" not in text(predict) and "&lt;img" in text(predict)
    assert len(text(predict)) < 6_000


@pytest.mark.parametrize("guesses", [[], ["one"], ["one", "one"]])
def test_a_question_without_a_choice_is_none(guesses: list[str]) -> None:
    with pytest.raises(ValueError, match="two guesses or more"):
        Predict("Which?", guesses)


def test_a_guess_outside_the_choices_raises_with_the_choices() -> None:
    with pytest.raises(ValueError, match="no guess is 'three'; there are: one; two"):
        Predict("Which?", ["one", "two"]).pick("three")
