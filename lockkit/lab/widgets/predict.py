"""A question with guesses; the next cell stays locked until the reader picks one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import anywidget
import ipywidgets as widgets
import traitlets
from IPython import get_ipython

from lockkit.errors import StatedError
from lockkit.lab.widgets.ui import FAST, Shown, Status, button, column, shown

IN_VOILA = os.environ.get("SERVER_SOFTWARE", "").startswith("voila/")
"""A page without cells: a kernel that Voila started has this in its environment."""
FIRST = f"Predict first: pick one of the guesses{'' if IN_VOILA else ', then run this cell again'}."
NEXT = "go on below" if IN_VOILA else "run the next cell: press Shift+Enter until it has run"
LATER = "The explanation is shown once you have picked a guess and seen the outcome."
STYLE = """<style>
.lockkit-predict{border-left:3px solid #0072B2;padding:4px 12px;margin:4px 0}
.lockkit-guesses label{display:flex;align-items:baseline;line-height:1.8;cursor:pointer}
.lockkit-guesses input{accent-color:#0072B2;margin:0 6px 0 2px}
.lockkit-guesses input:disabled{cursor:default}
</style>"""

_PICKED: dict[str, str] = {}
"""The open guesses, by cell and question: who runs the question's cell again keeps the guess."""

P = ParamSpec("P")
T = TypeVar("T")


class NotPredicted(StatedError, RuntimeError):
    """A locked cell was run before the reader picked a guess."""

    def _render_traceback_(self) -> list[str]:
        """IPython shows this instead of a traceback, because it is not a fault."""
        return [str(self)]


class Guesses(anywidget.AnyWidget):
    """Radio buttons of one group. (Those of ipywidgets have no common name, so a browser takes each
    for a group of its own, and the arrow keys go to the notebook.)
    """

    _esm = (Path(__file__).parent / "guesses.js").read_text(encoding="utf-8")
    question = traitlets.Unicode("").tag(sync=True)
    options = traitlets.Tuple().tag(sync=True)
    value = traitlets.Unicode(None, allow_none=True).tag(sync=True)
    disabled = traitlets.Bool(False).tag(sync=True)
    holds = traitlets.Bool(False).tag(sync=True)
    """Whether the page below waits for the guess: as an app it has run already."""


class Predict(Shown):
    """Pick a guess, then run; the panel then shows the guess beside the outcome.

    The guesses are radio buttons, for mouse, keyboard and screen reader. Raises `ValueError` for
    fewer than two guesses, or two that are alike.

    :param question: the text above the guesses.
    :param guesses: two or more, all different.
    :param then: what the panel says after a guess.
    """

    def __init__(
        self, question: str, guesses: Sequence[str], *, then: str = NEXT
    ) -> None:
        if len(set(guesses)) != len(guesses) or len(guesses) < 2:
            raise ValueError(f"a prediction has two guesses or more, all different: {guesses!r}")
        self.question, self.guesses, self._then = question, tuple(guesses), then
        self._question_id = f"{_running_cell()} {question} {guesses}"
        self._locked: list[Any] = []
        self._explained: list[Explanation] = []
        self._revealed: set[str] = set()
        """The cells whose veil was opened. After the click their cell is the active one, so
        Shift+Enter runs it again."""
        self._ran: str | None = None
        self.did: str | None = None
        """The outcome of the first run; after it, the guess cannot change."""
        kept = _PICKED.get(self._question_id)
        self.choice = Guesses(question=question, options=self.guesses, value=kept)
        self._status = Status()
        question_line = widgets.HTML(f"{STYLE}<b>{shown(question)}</b>")
        self.view = column("predict", question_line, self.choice, self._status)
        self.choice.observe(self._chosen, "value")
        self.choice.on_msg(lambda _choice, guess, _buffers: self.pick(guess))
        self._chosen(None)
        if os.environ.get(FAST):  # there is no reader to pick one
            self.pick(self.guesses[0])

    @property
    def picked(self) -> str | None:
        picked: str | None = self.choice.value
        return picked

    def pick(self, guess: str) -> None:
        """The same as a click. `ValueError` if it isn't one of the guesses, or comes too late."""
        if guess not in self.guesses:
            raise ValueError(f"no guess is {guess!r}; there are: {'; '.join(self.guesses)}")
        if self.did is not None:
            raise ValueError("this cell has run: to predict again, run the question's cell again")
        self.choice.value = guess

    def locks(self, button: Any) -> None:
        """Keep a widget disabled until a guess is picked."""
        self._locked.append(button)
        button.disabled = self.picked is None

    def run(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `act` and show what it did: its result as text. `NotPredicted` without a guess.

        Voila runs each cell once, before a reader can pick. There the outcome waits for the guess.
        """
        if self.picked is None and not IN_VOILA:
            raise NotPredicted(FIRST, f"({self.question})")
        self.choice.holds = self.picked is None
        result = act(*args, **kwargs)
        self._ran = self._ran or str(result)
        self._chosen(None)
        return result

    def reveal(self, result: Any) -> Veil:
        """Hide the result of finished work until a guess is picked.

        For a picture or a stage on a page whose cells are run only once (Voila), so it does not
        fail without a guess. It shows the result's `view`, or the result itself; if the result's
        text is one of the guesses, that is the outcome.
        """
        return Veil(self, result, _running_cell())

    def explain(self, markdown: str) -> Explanation:
        """Text that gives the outcome away: it is shown with the outcome, and not before."""
        self._explained.append(Explanation(markdown))
        if self.did is not None:
            self._explained[-1].open()
        return self._explained[-1]

    def show(self, did: str) -> None:
        """Show the outcome beside the guess; only the first outcome counts."""
        if self.did is not None:
            return
        self.did = did
        _PICKED.pop(self._question_id, None)
        self.choice.disabled = True
        self._status.say(self.said)
        for each in self._explained:
            each.open()

    @property
    def said(self) -> str:
        """The guess and the outcome in one line; before that, what to do."""
        if self.picked is None:
            return f"Pick a guess, then {self._then}."
        if self.did is None:
            return f"Now {self._then}."
        if self.picked == self.did:
            return f"✓ You predicted it: {self.did}."
        return f"✗ You predicted: {self.picked}. The outcome: {self.did}."

    def working(self, on: bool) -> None:
        """Say the guess instead of what to do, as long as what was asked for runs."""
        guess = self.picked if on and self.did is None else None
        self._status.say(self.said if guess is None else f"You predict: {guess}.")

    def _chosen(self, _change: Any) -> None:
        for each in self._locked:
            each.disabled = self.picked is None
        if self.picked is not None and self._ran is not None:
            self.show(self._ran)
        elif self.picked is not None and not self._question_id.startswith(" "):
            _PICKED[self._question_id] = self.picked
        self._status.say(self.said)

    def __repr__(self) -> str:
        return f"{self.question} {self.said}"


def _running_cell() -> str:
    """Its id; "" outside a notebook, and in the callback of a widget."""
    kernel = getattr(get_ipython(), "kernel", None)
    return kernel.get_parent()["metadata"].get("cellId", "") if kernel else ""


class Explanation(Shown):
    """Markdown that belongs to the outcome of a prediction."""

    def __init__(self, markdown: str) -> None:
        self.markdown = markdown
        self.opened = False
        self.view = widgets.VBox([widgets.HTML(f"<i>{LATER}</i>")])

    def open(self) -> None:
        if not self.opened:
            self.opened = True
            data = {"text/markdown": self.markdown, "text/plain": self.markdown}
            drawn = {"output_type": "display_data", "data": data, "metadata": {}}
            self.view.children = [widgets.Output(outputs=(drawn,))]

    def __repr__(self) -> str:
        return self.markdown.strip() if self.opened else LATER


class Veil(Shown):
    """What a prediction hides; `open` is the same as a click on its button."""

    def __init__(self, predict: Predict, result: Any, cell: str) -> None:
        self._predict, self._result, self._cell = predict, result, cell
        self.opened = False
        self.button = button(
            "Show it", self.open, name="reveal", icon="eye", style="info",
            tip="Enabled once a guess is picked", align_self="flex-start",
        )  # fmt: skip
        self.view = widgets.VBox([self.button])
        predict.locks(self.button)
        if os.environ.get(FAST) or cell in predict._revealed:
            self.open()

    def open(self) -> None:
        """`NotPredicted` without a guess."""
        if self._predict.picked is None:
            raise NotPredicted(FIRST, f"({self._predict.question})")
        if not self.opened:
            self.opened = True
            if self._cell:
                self._predict._revealed.add(self._cell)
            self.view.children = [getattr(self._result, "view", self._result)]
            if str(self._result) in self._predict.guesses:
                self._predict.show(str(self._result))

    def __repr__(self) -> str:
        return repr(self._result) if self.opened else FIRST
