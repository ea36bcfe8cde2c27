"""The space-time diagram as a widget."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from lockkit.lab.widgets.export import drawing

HERE = Path(__file__).parent
PAGE_NAME = "lockkit-run.html"
PACKED_MIN = 5_000
"""Events of a scene from which on it travels compressed: a tenth, and outside of the JSON."""


def packed(scene: dict[str, Any], _widget: Any = None) -> dict[str, Any]:
    """A scene as it is sent to the page."""
    if scene.get("events", 0) < PACKED_MIN:
        return scene
    said = json.dumps(scene, separators=(",", ":"), ensure_ascii=False)
    return {"packed": zlib.compress(said.encode(), level=1)}


class Lanes(anywidget.AnyWidget):
    """Draws a scene. The traits hold the whole state, so a reloaded page shows all of it."""

    _esm = drawing()
    _css = (HERE / "lanes.css").read_text(encoding="utf-8")

    scene = traitlets.Dict().tag(sync=True, to_json=packed)
    status = traitlets.Dict().tag(sync=True)
    live = traitlets.Bool(False).tag(sync=True)
    beats = traitlets.Bool(False).tag(sync=True)
    exports = traitlets.Bool(False).tag(sync=True)
    """Whether there is a button that saves the run as a page."""
    selected = traitlets.Unicode("").tag(sync=True)
    cursor = traitlets.Float(-1.0).tag(sync=True)

    def __init__(
        self, *, on_beat: Callable[[], None] | None = None,
        on_export: Callable[[], str] | None = None, **traits: Any,
    ) -> None:  # fmt: skip
        super().__init__(**{"exports": on_export is not None} | traits)
        self._on_beat, self._on_export = on_beat, on_export
        self.on_msg(self._on_message)

    def _on_message(self, _widget: Any, message: Any, _buffers: Any) -> None:
        """A page that has just drawn itself asks for a snapshot; an open one beats every 5 s."""
        match message:
            case {"type": "snapshot"}:
                if self.beats:  # a replay does not change
                    self.send_state(["scene", "status", "cursor"])
                self._beat()
            case {"type": "hb"}:
                self._beat()
            case {"type": "export"} if self._on_export is not None:
                page = self._on_export().encode()
                self.send({"type": "page", "name": PAGE_NAME}, [page])

    def _beat(self) -> None:
        if self._on_beat is not None:
            self._on_beat()
