"""The incident console's controls and output areas, without any logic about tables."""

from __future__ import annotations

from typing import Any

import ipywidgets as widgets

from lockkit.lab.widgets.console import html
from lockkit.lab.widgets.console.drop import DropFiles
from lockkit.lab.widgets.lanes import Lanes
from lockkit.lab.widgets.ui import Status, button, choice, column, error_html, named, row

WATCHES = [("3 s", 3.0), ("10 s", 10.0), ("30 s", 30.0), ("not at all", 0.0)]
TOMBSTONE = "Replaces the lock object by a tombstone, if it is unchanged since the dry run"
GRANT_ENDS = "Ends the grant that the dry run showed"
EPOCH = "needed while the lease lasts"
EMPTY = "Press Look, or drop in what was recorded."
KINDS = "Histories, Hudi's audit files, listings of versions, SDKs' debug logs"


class Panel:
    """From top to bottom: the table to inspect, the findings, and how to break the lock."""

    def __init__(self, *, url: str, endpoint: str, watch_s: float, has_demo: bool) -> None:
        empty = "s3://bucket/table, gs://…, az://…" + (" (empty: the demo)" if has_demo else "")
        self.url = _named("url", _text("Table", url, empty, "410px"))
        self.endpoint = _named("endpoint", _text("Endpoint", endpoint, "its own", "260px"))
        watches = WATCHES if watch_s in dict(WATCHES).values() else [(f"{watch_s:g} s", watch_s)]
        self.watch = choice("Watch it for", watches, watch_s, "180px", name="console-watch")
        self.look = button(
            "Look", name="console-look", icon="search", style="success", tip="Reads only"
        )
        self.upload = _named("upload", DropFiles(hint=KINDS))
        self.paths = _named("paths", _text("or name them", "", "boto3.log audit/*.jsonl", "330px"))
        self.read = button(
            "Read", name="console-read", icon="file-text", tip="Files of the kernel's machine"
        )
        self.status = _named("status", Status())
        self.error = _named("error", widgets.HTML())
        self.lock, self.card = (
            _named(name, widgets.HTML(layout=widgets.Layout(flex="1 1 460px", min_width="0")))
            for name in ("lock", "card")  # a layout each: one of them may be hidden
        )
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
        self.dry = button(
            "Break it: dry run", name="console-dry", icon="eye", tip="Changes nothing"
        )
        self.epoch = _named("epoch", _text("Epoch", "", EPOCH, "270px"))
        self.break_it = button(
            "Break it", name="console-break", icon="unlink", style="danger",
            tip=TOMBSTONE,
        )  # fmt: skip
        self.break_it.disabled = True
        self.plan = _named("plan", widgets.HTML())
        return widgets.VBox([row(self.dry, self.epoch, self.break_it), self.plan])

    def _all(self) -> widgets.VBox:
        self.folds = _named("folds", widgets.Accordion())
        self.asking = widgets.VBox([
            row(self.url, self.endpoint, self.watch, self.look),
            row(self.upload, self.paths, self.read),
        ])  # fmt: skip
        self.again = button(
            "Read others", lambda: self.ask(True), name="console-again", icon="search",
            tip="Look at another table or other files",
        )  # fmt: skip
        self.reading = _named("reading", row(self.status, self.again))
        self.ask(True)
        self.fold(table=True)
        self.body = widgets.VBox([
            row(self.lock, self.card, align="stretch"), self.evidence, self.lanes,
            self.folds, self.breaking,
        ], layout=widgets.Layout(display="none"))  # fmt: skip
        return column(
            "console", widgets.HTML(html.STYLE),
            self.asking, self.reading, self.error, self.body,
        )  # fmt: skip

    def ask(self, on: bool) -> None:
        """Show what is to be read next, or fold it, so that a finding fits on a screen."""
        self.asking.layout.display, self.again.layout.display = None, None
        (self.again if on else self.asking).layout.display = "none"

    def fold(self, *, table: bool, audit: bool = True) -> None:
        """Below the picture: only what there is something to say of."""
        folded = {"Files": self.files}
        if audit:
            folded = {"Hudi's audit log": self.audit} | folded
        if table:
            folded = {
                "The lock's generations": self.generations, "The table beside it": self.table,
            } | folded  # fmt: skip
        self.folds.selected_index = None
        self.folds.titles, self.folds.children = tuple(folded), tuple(folded.values())

    def offer_break(self, *, service: bool) -> None:
        """Clear the last dry run. A service's grant has no epoch, and no tombstone replaces it."""
        self.plan.value = self.epoch.value = ""
        self.epoch.description = "Confirm" if service else "Epoch"
        self.epoch.placeholder = f"{html.FORCE}, if its holder lives" if service else EPOCH
        self.break_it.tooltip = GRANT_ENDS if service else TOMBSTONE
        self.breaking.layout.display = "flex"
        self.ask(True)
        self.fold(table=True)

    def say(self, text: str) -> None:
        self.status.say(text)

    def fail(self, error: Exception) -> None:
        self.error.value = error_html(error)
        self.say("Failed.")

    def lock_up(self, busy: bool) -> None:
        for each in (self.look, self.read, self.dry, self.upload):
            each.disabled = busy

    @property
    def forced(self) -> bool:
        """Whether a break of a service's lock was confirmed although its holder lives."""
        return bool(self.epoch.value.strip() == html.FORCE)

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


def _named(name: str, widget: Any) -> Any:
    return named(widget, f"console-{name}")
