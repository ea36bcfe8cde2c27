"""The place for recorded files: they are dropped there, or chosen in the page's dialogue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anywidget
import traitlets

from lockkit.lab.incident.dropped import FILE_BYTES_MAX

STYLE = """
.lk-drop{display:inline-block;border:1px dashed var(--jp-border-color1,#888);border-radius:4px;
padding:5px 14px;font-size:12px;line-height:1.5;cursor:pointer}
.lk-drop input{position:absolute;opacity:0;width:1px;height:1px}
.lk-drop:hover,.lk-drop:focus-within{border-color:var(--jp-brand-color1,#1a6fc4);
outline:1px solid var(--jp-brand-color1,#1a6fc4)}
.lk-drop.lk-over{background:var(--jp-layout-color2,#e4eef8);border-style:solid}
.lk-drop.lk-off{opacity:.5;cursor:default}
"""


class DropFiles(anywidget.AnyWidget):
    """Receives files from the page. (The upload button of ipywidgets accepts no drops.)"""

    _esm = (Path(__file__).parent / "drop.js").read_text(encoding="utf-8")
    _css = STYLE
    value: traitlets.List[Any] = traitlets.List().tag(sync=True)
    """Of each file: its `name`, its `content` (None: the page cannot read it, as with a folder),
    and a `number` that no other has."""
    disabled = traitlets.Bool(False).tag(sync=True)
    hint = traitlets.Unicode("").tag(sync=True)
    bytes_max = traitlets.Int(FILE_BYTES_MAX).tag(sync=True)
    """No more of a file is sent, and one byte, by which a longer file is recognised."""
