"""One run of a stage as a panel: the possible next steps as buttons, and each actor's requests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from html import escape
from typing import Any

import ipywidgets as widgets

from lockkit.lab.widgets.stage.actor import Actor
from lockkit.lab.widgets.stage.decisions import THE_LEASE, Choice, Decision
from lockkit.lab.widgets.stage.requests import shown
from lockkit.lab.widgets.stage.staged import Stage
from lockkit.lab.widgets.ui import button, named, row

STYLE = (
    "<style>.lockkit-steps td,.lockkit-steps th{padding:1px 8px;vertical-align:top;font-size:12px;"
    "line-height:1.35;text-align:left}"
    ".lockkit-steps td:first-child{font-family:var(--jp-code-font-family,monospace);"
    "overflow-wrap:anywhere}"
    ".lockkit-steps .next{opacity:.7;font-style:italic}"
    ".lockkit-steps .differs td{background:rgba(230,159,0,.22)}"
    ".lockkit-steps .differs td:first-child{box-shadow:inset 3px 0 #E69F00}"
    "div.lockkit-steps{line-height:1.4}.lockkit-steps code{overflow-wrap:anywhere}"
    ".lockkit-run .widget-hbox{overflow:visible}"
    "@media (max-width:900px){.lockkit-stepper{--jp-widgets-inline-height:24px}"
    ".lockkit-stepper .widget-button{height:22px;line-height:20px;"
    "padding:0 6px;margin:1px 2px;font-size:12px}"
    ".lockkit-stepper .widget-inline-hbox:not(.widget-html){height:24px;margin:0 2px}}"
    ".lockkit-objects td:first-child{white-space:nowrap}"
    ".lockkit-stage-actor{min-width:300px;flex:1 1 0}"
    ".lockkit-run{border:1px solid var(--jp-border-color2,#999);border-radius:4px;"
    "padding:4px 8px;min-width:330px}</style>"
)
SHORTER = (".hoodie/", "")
CHOICE_CHARS = 28
"""A longer choice is cut off in the menu of a narrow page, which says it below."""
DIFFERS = "<td title='this line differs between the two runs'>≠ differs</td>"

BUTTONS = (
    (Choice.ANSWER, "Next", "carry out the next request, and let it be answered"),
    (Choice.LOSE, "Answer lost", "carry out the next request; its answer is lost"),
    (Choice.DROP, "Request lost", "the next request never arrives"),
    (Choice.LATE, "Applied late",
     "no answer comes, and the write is still on its way: you decide when it arrives"),
    (Choice.LAND, "Let it land", "the write that was on its way arrives now"),
    (Choice.PAUSE, "Pause", "pause the process, as by SIGSTOP; its clock goes on"),
    (Choice.WAKE, "Wake", "resume the process"),
    (Choice.KILL, "Kill", "kill the process at this point, as kill -9 does"),
)  # fmt: skip


class StagePanel:
    """The buttons and lines of one run; impossible steps are disabled. `run` may be replaced.

    `press` is called with each clicked decision, `finish` with the actor to run to the end,
    `plant` with a mistake and `paste` with a moment.
    """

    def __init__(
        self, run: Stage, mistakes: widgets.Dropdown, *, press: Callable[[Decision], None],
        finish: Callable[[str], None], plant: Callable[[str], None], paste: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.run, self.mistakes = run, mistakes
        self.buttons: dict[tuple[str, Choice], widgets.Button] = {}
        self._ends: dict[str, widgets.Button] = {}
        self._press, self._finish = press, finish
        self._lines = {name: widgets.HTML() for name in run.actors}
        self._title, self._below = widgets.HTML(), widgets.HTML()
        self.moment = widgets.Text(
            value=str(run.moment), description="Moment", continuous_update=False,
            layout=widgets.Layout(width="auto"),
            tooltip="This run as text: copy it, or paste another and press Enter",
        )  # fmt: skip
        self._chosen = named(widgets.HTML(), "chosen")
        lease = [self._lease()] if run.choices(THE_LEASE) else []
        actors = row(*(self._actor(name) for name in run.actors), align="flex-start")
        self._lanes = _lanes_of(run)
        self.view = widgets.VBox(
            [row(self._title, mistakes, *lease), self._chosen, self.moment, actors,
             self._below, *([self._lanes] if self._lanes else [])],
            layout=widgets.Layout(flex="1 1 0"),
        )  # fmt: skip
        self.view.add_class("lockkit-run")
        mistakes.observe(lambda change: plant(change["new"]), "value")
        self.moment.observe(lambda change: paste(change["new"]), "value")

    def _actor(self, name: str) -> widgets.VBox:
        self._ends[name] = button(
            "To the end", partial(self._finish, name), name=f"end-{name}",
            tip=f"{name}: every request is answered from here to the end",
        )  # fmt: skip
        for what, text, says in BUTTONS:
            word = "next" if what is Choice.ANSWER else what.value
            self.buttons[name, what] = button(
                text, partial(self._press, Decision(name, what)), name=f"{word}-{name}",
                tip=f"{name}: {says}",
            )  # fmt: skip
        first, *faults = (self.buttons[name, what] for what, _, _ in BUTTONS)
        first.button_style = "primary"
        title = widgets.HTML(f"<b>{escape(name)}</b>")
        wrong = widgets.HTML("<span class='lk-note'>or let something go wrong:</span>")
        column = widgets.VBox([
            row(title, first, self._ends[name]), row(wrong, *faults), self._lines[name],
        ])  # fmt: skip
        column.add_class("lockkit-stage-actor")
        return column

    def _lease(self) -> widgets.Button:
        seconds = self.run.lease_ms // 1000
        ends = button(
            f"Let the lease end ({seconds} s pass)",
            partial(self._press, Decision(THE_LEASE, Choice.ENDS)), name="lease-ends",
            tip="move every clock forward until every lease has expired",
        )  # fmt: skip
        self.buttons[THE_LEASE, Choice.ENDS] = ends
        return ends

    def show(self, title: str, below: str, marks: Mapping[str, Collection[int]]) -> None:
        """Draw the run; `marks` are the lines, by actor, that differ in the other run."""
        self._title.value = f"{STYLE}<b>{escape(title)}</b>"
        for name, html in self._lines.items():
            html.value = requests_so_far(self.run.actors[name], marks.get(name, ()))
        for (name, what), each in self.buttons.items():
            each.disabled = what not in self.run.choices(name)
            if what is Choice.LAND:
                each.layout.display = "none" if each.disabled else None
            if what in (Choice.PAUSE, Choice.WAKE):
                stands = self.run.actors[name].paused
                each.layout.display = "none" if stands == (what is Choice.PAUSE) else None
        for name, each in self._ends.items():
            each.disabled = Choice.ANSWER not in self.run.choices(name)
        self.mistakes.value, self.moment.value = self.run.mistake, str(self.run.moment)
        chosen = self.mistakes.label if len(self.mistakes.label) > CHOICE_CHARS else ""
        self._chosen.value = chosen and f"<span class='lk-note'>{escape(chosen)}</span>"
        self._below.value = f"<div class='lockkit-steps'>{below}</div>"
        if self._lanes is not None:
            _draw(self._lanes, self.run)


def requests_so_far(actor: Actor, marks: Collection[int] = ()) -> str:
    """A table of an actor's requests and answers, the next one last; escaped."""
    rows = [
        f"<tr{' class=differs' if number in marks else ''}>"
        f"<td>{escape(each.request.replace(*SHORTER))}</td>"
        f"<td class='{_colour(each.answered)}'>{escape(each.answered)}</td>"
        f"{DIFFERS if number in marks else ''}</tr>"
        for number, each in enumerate(actor.lines)
    ]
    if actor.waits is not None:
        next_one = escape(shown(actor.waits).replace(*SHORTER))
        state = "paused" if actor.paused else "next"
        rows.append(f"<tr class='next'><td>{next_one}</td><td>{state}</td></tr>")
    else:
        good = "good" if actor.ended.startswith(("committed", "done")) else "bad"
        rows.append(f"<tr><td colspan=2 class='{good}'><b>{escape(actor.ended)}</b></td></tr>")
    if actor.flying:
        landing = escape(shown(actor.flying[0][0]).replace(*SHORTER))
        rows.append(f"<tr class='next'><td>{landing}</td><td>still on its way</td></tr>")
    label = escape(f"the requests of {actor.name} and their answers", quote=True)
    return f"<table class='lockkit-steps' aria-label=\"{label}\">{''.join(rows)}</table>"


def _colour(answered: str) -> str:
    if answered.startswith(("precondition failed", "no answer")):
        return "bad"
    return "good" if answered.startswith("applied") else ""


def _lanes_of(run: Stage) -> Any:
    """The space-time view; of two commits, the requests' lists alone."""
    if run.play_name == "commit":
        return None
    from lockkit.lab.widgets.lanes import Lanes

    return Lanes()


def _draw(lanes: Any, run: Any) -> None:
    from lockkit.lab.widgets.export import log_lines
    from lockkit.lab.widgets.scene import text
    from lockkit.lab.widgets.stage.picture import picture

    well, because = run.verdict
    judged = {"verdict": "VALID" if well else "INVALID", "because": text(because)}
    if not run.decisions:  # there is nothing to judge yet
        judged = {}
    with lanes.hold_sync():
        lanes.scene = picture(run)
        lanes.status = {"state": "replay", "log": log_lines(run.events), **judged}
