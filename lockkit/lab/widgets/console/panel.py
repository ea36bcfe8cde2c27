"""The incident console's controls and the places for what it shows; they know nothing of tables."""

from __future__ import annotations

from typing import Any

import ipywidgets as widgets

from lockkit.lab.widgets.console import html
from lockkit.lab.widgets.lanes import Lanes

WATCHES = [("3 s", 3.0), ("10 s", 10.0), ("30 s", 30.0), ("not at all", 0.0)]
EMPTY = "Press Look, or drop in what was recorded."


class Panel:
    """From top to bottom: what to look at, what was found, and how to break it."""

    def __init__(self, *, url: str, endpoint: str, watch_s: float, has_demo: bool) -> None:
        empty = "s3://bucket/table, gs://…, az://…" + (" (empty: the demo)" if has_demo else "")
        self.url = _named("url", _text("Table", url, empty, "430px"))
        self.endpoint = _named("endpoint", _text("Endpoint", endpoint, "its own", "290px"))
        watches = WATCHES if watch_s in dict(WATCHES).values() else [(f"{watch_s:g} s", watch_s)]
        self.watch = _named("watch", widgets.Dropdown(
            options=watches, value=watch_s, description="Watch it for",
            style={"description_width": "initial"}, layout=widgets.Layout(width="180px"),
        ))  # fmt: skip
        self.look = _button("look", "Look", "search", "success", "Reads only")
        self.upload = _named("upload", widgets.FileUpload(
            multiple=True, description="Drop in files", layout=widgets.Layout(width="auto"),
            tooltip="Histories, Hudi's audit files, listings of versions, SDKs' debug logs",
        ))  # fmt: skip
        self.paths = _named("paths", _text("or name them", "", "boto3.log audit/*.jsonl", "330px"))
        self.read = _button("read", "Read", "file-text", "", "Files of the kernel's machine")
        self.status = _named("status", widgets.HTML())
        self.error = _named("error", widgets.HTML())
        wide = widgets.Layout(flex="1 1 460px", min_width="0")
        self.lock = _named("lock", widgets.HTML(layout=wide))
        self.card = _named("card", widgets.HTML(layout=wide))
        self.evidence = _named("evidence", widgets.VBox())
        self.lanes = Lanes(status={"state": "idle", "empty": EMPTY})
        self.generations = _named("generations", widgets.HTML())
        self.table = _named("table", widgets.HTML())
        self.audit = _named("audit", widgets.HTML())
        self.files = _named("files", widgets.HTML())
        self.breaking = self._breaking()
        self.view = self._all()
        self.say(EMPTY)

    def _breaking(self) -> widgets.VBox:
        self.dry = _button("dry", "Break it: dry run", "eye", "", "Changes nothing")
        self.epoch = _named("epoch", _text("Epoch", "", "type it in, if its lease lasts", "270px"))
        self.break_it = _button("break", "Break it", "unlink", "danger", "A guarded takeover")
        self.break_it.disabled = True
        self.plan = _named("plan", widgets.HTML())
        row = widgets.HBox([self.dry, self.epoch, self.break_it], layout=_row())
        return widgets.VBox([row, self.plan])

    def _all(self) -> widgets.VBox:
        folded = {
            "The lock's generations": self.generations, "The table beside it": self.table,
            "Hudi's audit log": self.audit, "Files": self.files,
        }  # fmt: skip
        self.body = widgets.VBox([
            widgets.HBox([self.lock, self.card], layout=_row("stretch")), self.evidence,
            self.lanes, widgets.Accordion(list(folded.values()), titles=tuple(folded)),
            self.breaking,
        ], layout=widgets.Layout(display="none"))  # fmt: skip
        view = widgets.VBox([
            widgets.HTML(html.STYLE),
            widgets.HBox([self.url, self.endpoint, self.watch, self.look], layout=_row()),
            widgets.HBox([self.upload, self.paths, self.read], layout=_row()),
            self.status, self.error, self.body,
        ])  # fmt: skip
        view.add_class("lockkit-console")
        return view

    def say(self, text: str) -> None:
        self.status.value = f"<span class='lc-status' role='status'>{html.shown(text)}</span>"

    def fail(self, what: str, trace: str = "") -> None:
        self.error.value = html.error_html(what, trace)
        self.say("Failed.")

    def lock_up(self, busy: bool) -> None:
        for each in (self.look, self.read, self.dry, self.upload):
            each.disabled = busy

    @property
    def typed(self) -> int | None:
        """The epoch that was typed in."""
        typed = self.epoch.value.strip()
        return int(typed) if typed.isascii() and typed.isdecimal() and len(typed) < 20 else None


def _text(name: str, value: str, hint: str, width: str) -> widgets.Text:
    return widgets.Text(
        value, description=name, placeholder=hint, style={"description_width": "initial"},
        layout=widgets.Layout(width=width),
    )  # fmt: skip


def _button(name: str, text: str, icon: str, style: str, tip: str) -> Any:
    return _named(name, widgets.Button(
        description=text, icon=icon, button_style=style, tooltip=tip,
        layout=widgets.Layout(width="auto"),
    ))  # fmt: skip


def _named(name: str, widget: Any) -> Any:
    """A class in the page by which a style or a test finds it."""
    widget.add_class(f"lockkit-console-{name}")
    return widget


def _row(align: str = "center") -> widgets.Layout:
    return widgets.Layout(flex_flow="row wrap", align_items=align, grid_gap="2px 10px")
