"""The space-time diagram as a widget."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from lockkit.workbench.export import drawing

HERE = Path(__file__).parent


class Lanes(anywidget.AnyWidget):
    """Draws a scene. The traits are the truth: a page that is reloaded finds everything in them."""

    _esm = drawing()
    _css = (HERE / "lanes.css").read_text(encoding="utf-8")

    scene = traitlets.Dict().tag(sync=True)
    status = traitlets.Dict().tag(sync=True)
    live = traitlets.Bool(False).tag(sync=True)
    beats = traitlets.Bool(False).tag(sync=True)
    selected = traitlets.Unicode("").tag(sync=True)
    cursor = traitlets.Float(-1.0).tag(sync=True)

    def __init__(self, *, on_beat: Callable[[], None] | None = None, **traits: Any) -> None:
        super().__init__(**traits)
        self._on_beat = on_beat
        self.on_msg(self._heard)

    def _heard(self, _widget: Any, message: Any, _buffers: Any) -> None:
        """A page that has just drawn itself asks for a snapshot; an open one beats every 5 s."""
        match message:
            case {"type": "snapshot"}:
                self.send_state(["scene", "status", "cursor"])
                self._beat()
            case {"type": "hb"}:
                self._beat()

    def _beat(self) -> None:
        if self._on_beat is not None:
            self._on_beat()
