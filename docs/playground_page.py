"""The playground's page: its parts, made when the documentation is built.

Python for the browser (Pyodide) is what `make docs` has installed with npm in `.cache/playground`.
Without it the page has its first picture, and says why there is no more.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lockkit.lab.playground import FIRST, answer
from lockkit.lab.widgets import export

ROOT = Path(__file__).parents[1]
PARTS = Path(__file__).parent / "playground"
PYODIDE = ROOT / ".cache" / "playground" / "node_modules" / "pyodide"
SERVED = "_static/playground"
RUNTIME = (
    "pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json",
)
LEFT_OUT = ("lab/server", "lab/processes", "lab/soak", "lab/course", "lab/faults", "lab/testing",
            "spark", "lab/cli", "lab/probe")  # fmt: skip
"""What needs sockets, processes or a kernel."""
MEMBER_DATE = (1980, 1, 1, 0, 0, 0)


def html() -> str:
    """The page's elements, style, data and script: its first picture needs no other file."""
    data = {
        "menus": _told("menus"),
        "first": _told("simulate", moment=FIRST),
        "python": f"{SERVED}/worker.js" if is_there() else "",
        "incidents": [each.name for each in incidents()],
        "incidents_at": f"{SERVED}/incidents/",
    }
    style = (export.HERE / "lanes.css").read_text(encoding="utf-8") + _part("page.css")
    return "\n".join((
        f"<style>\n{style}</style>", _part("page.html"),
        f'<script type="application/json" id="pg-data">{export.embedded(data)}</script>',
        f'<script type="module">\n{export.drawing()}\n{{\n{_part("page.js")}}}</script>',
    ))  # fmt: skip


def is_there() -> bool:
    """Whether Pyodide was installed."""
    return all((PYODIDE / each).is_file() for each in RUNTIME)


def serve(built: Path) -> None:
    """Put what the page loads beside it: Pyodide, the worker, and the archive of sources."""
    folder = built / SERVED
    shutil.rmtree(folder, ignore_errors=True)
    if not is_there():
        return
    (folder / "pyodide").mkdir(parents=True)
    for each in RUNTIME:
        shutil.copyfile(PYODIDE / each, folder / "pyodide" / each)
    shutil.copyfile(PARTS / "worker.js", folder / "worker.js")
    archive(folder / "lockkit.zip")
    (folder / "incidents").mkdir()
    for each in incidents():
        shutil.copyfile(each, folder / "incidents" / each.name)


def incidents() -> list[Path]:
    """Published incidents, recorded."""
    return sorted((ROOT / "datasets" / "incidents").glob("*.jsonl"))


def archive(file: Path) -> None:
    """lockkit's sources and fastavro's, which has its compiled parts in Python too."""
    spec = find_spec("fastavro")
    assert spec is not None and spec.origin is not None
    packages = [ROOT / "lockkit", Path(spec.origin).parent]
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as members:
        for package in packages:
            for path in sorted(package.rglob("*")):
                name = path.relative_to(package.parent).as_posix()
                left_out = name.startswith(tuple(f"lockkit/{each}/" for each in LEFT_OUT))
                if path.suffix in (".py", ".js", ".css", ".txt") and not left_out:
                    member = zipfile.ZipInfo(name, MEMBER_DATE)
                    member.compress_type = zipfile.ZIP_DEFLATED
                    members.writestr(member, path.read_bytes())


def _told(request: str, **given: Any) -> Any:
    *_, result = answer(request, json.dumps(given))
    return json.loads(result)


def _part(name: str) -> str:
    return (PARTS / name).read_text(encoding="utf-8")
