"""The stepper: buttons for `Steps`, what each writer has asked so far, and what readers see."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

import ipywidgets as widgets

from lockkit.workbench.export import judged
from lockkit.workbench.plays import RIGHT, PatternSteps, mistakes
from lockkit.workbench.staged import Actor, shown
from lockkit.workbench.steps import Steps

MODES = [
    ("fenced: the store decides", ("fenced", 6)),
    ("hudi: the lock decides", ("hudi", 6)),
    ("fenced, table version 9", ("fenced", 9)),
]
STYLE = (
    "<style>.lockkit-steps td{padding:1px 8px;vertical-align:top;font-size:12px;line-height:1.35}"
    ".lockkit-steps td:first-child{font-family:var(--jp-code-font-family,monospace)}"
    ".lockkit-steps .bad{color:#b3261e}.lockkit-steps .good{color:#1b6e3c}"
    ".lockkit-steps .next{opacity:.65}</style>"
)
SHORTER = (".hoodie/", "")
BODY_CHARS = 300

_newest: dict[str, StageView] = {}
"""By what is on the stage."""


class StageView:
    """Buttons for what is on a stage, beside what each actor asked; `steps` is the same by code.

    Running the cell again ends the one before.
    """

    options: list[tuple[str, Any]]
    label: str
    about = "commits"
    drops = False
    """Whether there is a button that loses a request, too, and not only an answer."""

    def __init__(self, choice: Any) -> None:
        if before := _newest.pop(self.about, None):
            before.close()
        _newest[self.about] = self
        self.steps = self.make(choice)
        self._choice = widgets.Dropdown(
            options=self.options, value=choice, description=self.label,
            layout=widgets.Layout(width="420px"),
        )  # fmt: skip
        self._choice.observe(self._restart, "value")
        again = _button("Start over", lambda: self._restart(None))
        self._columns = {name: widgets.HTML() for name in self.steps.actors}
        self._below = widgets.HTML()
        columns = [self._column(name) for name in self._columns]
        self.view = widgets.VBox(
            [widgets.HBox([self._choice, again]), widgets.HBox(columns), self._below]
        )
        self.view.add_class("lockkit-stepper")
        self.show()

    def make(self, choice: Any) -> Any:
        """What the choice puts on the stage."""
        raise NotImplementedError

    def below(self) -> str:
        """What readers and the judge say, as HTML."""
        raise NotImplementedError

    def close(self) -> None:
        self.steps.close()

    # --- what it shows ----------------------------------------------------------------------------

    def show(self) -> None:
        """Draw what is; whatever steps were taken, by button or by code."""
        for name, html in self._columns.items():
            html.value = STYLE + asked_so_far(self.steps.actors[name])
        self._below.value = self.below()

    def _column(self, name: str) -> widgets.VBox:
        def tried(act: Callable[[], Any]) -> Callable[[], None]:
            def press() -> None:
                if self.steps.actors[name].waits is not None:
                    act()
                self.show()

            return press

        buttons = [
            _button("Next", tried(lambda: self.steps.step(name)), f"lockkit-next-{name}"),
            _button("Next, answer lost", tried(lambda: self.steps.step(name, lose=True)),
                    f"lockkit-lose-{name}"),
            *self._dropping(name, tried),
            _button("To the end", tried(lambda: self.steps.finish(name)), f"lockkit-end-{name}"),
            _button("Kill", tried(lambda: self.steps.kill(name)), f"lockkit-kill-{name}"),
        ]  # fmt: skip
        title = widgets.HTML(f"<b>{escape(name)}</b>")
        layout = widgets.Layout(width="50%", margin="0 12px 0 0")
        return widgets.VBox(
            [widgets.HBox([title, *buttons]), self._columns[name]], layout=layout
        )

    def _dropping(self, name: str, tried: Callable[..., Any]) -> list[widgets.Button]:
        act = tried(lambda: self.steps.step(name, drop=True))
        return [_button("Next, request lost", act, f"lockkit-drop-{name}")] if self.drops else []

    def _restart(self, _change: Any) -> None:
        self.steps.close()
        self.steps = self.make(self._choice.value)
        self.show()

    def __repr__(self) -> str:
        lines = []
        for name, actor in self.steps.actors.items():
            lines += [f"{name}: {actor.ended or 'under way'}"]
            lines += [f"  {each.asked} -> {each.answered}" for each in actor.lines]
        return "\n".join(lines)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        bundle = self.view._repr_mimebundle_(**options)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        data["text/plain"] = repr(self)
        return bundle


class Stepper(StageView):
    """W1 and W2 are about to commit another amount for the same order: press *Next* on either."""

    options, label = MODES, "Table"

    def __init__(self, mode: str = "fenced", *, version: int = 6) -> None:
        super().__init__((mode, version))

    def make(self, choice: Any) -> Steps:
        mode, version = choice
        return Steps(mode, version=version)

    def below(self) -> str:
        rows = ", ".join(f"{order} = {amount}" for order, amount in self.steps.rows.items())
        said = judged(self.steps.verdict)
        return (
            f"<b>A reader sees:</b> {escape(rows) or 'nothing'}<br>"
            f"<b>The checker says:</b> {escape(said['verdict'])}: {escape(said['because'])}"
        )

    def __repr__(self) -> str:
        return f"{super().__repr__()}\na reader sees {self.steps.rows}"


class PatternStepper(StageView):
    """Two actors of another protocol (`election`, `wal`, `queue`), with a mistake to plant."""

    label, drops = "Mistake", True

    def __init__(self, pattern: str = "election") -> None:
        self.about = pattern
        self.options = [(RIGHT, ""), *((each, each) for each in mistakes(pattern))]
        super().__init__("")

    def make(self, choice: Any) -> PatternSteps:
        return PatternSteps(self.about, choice)

    def below(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(key)}</td><td><code>{escape(body[:BODY_CHARS])}</code></td></tr>"
            for key, body in self.steps.objects.items()
        )
        well, because = self.steps.verdict
        colour, word = ("good", "agrees") if well else ("bad", "does not agree")
        return (
            f"{STYLE}<i>{escape(self.steps.play.says)}</i><table class='lockkit-steps'>{rows}"
            f"</table><span class='lockkit-steps'><b class='{colour}'>What was told and what is "
            f"there {word}:</b> {escape(because)}</span>"
        )


def asked_so_far(writer: Actor) -> str:
    """A table of a writer's requests and answers, the next one last; escaped."""
    rows = [
        f"<tr><td>{escape(each.asked.replace(*SHORTER))}</td>"
        f"<td class='{_colour(each.answered)}'>{escape(each.answered)}</td></tr>"
        for each in writer.lines
    ]
    if writer.waits is not None:
        next_one = escape(shown(writer.waits).replace(*SHORTER))
        rows.append(f"<tr class='next'><td>{next_one}</td><td>next</td></tr>")
    else:
        good = "good" if writer.ended.startswith(("committed", "done")) else "bad"
        rows.append(f"<tr><td colspan=2 class='{good}'><b>{escape(writer.ended)}</b></td></tr>")
    return f"<table class='lockkit-steps'>{''.join(rows)}</table>"


def _colour(answered: str) -> str:
    if answered in ("precondition failed", "no answer"):
        return "bad"
    return "good" if answered == "applied" else ""


def _button(text: str, press: Callable[[], None], name: str = "") -> widgets.Button:
    button = widgets.Button(description=text, layout=widgets.Layout(width="auto"))
    button.on_click(lambda _: press())
    if name:
        button.add_class(name.lower())
    return button
