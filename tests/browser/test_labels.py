"""No label of a picture touches a line, a mark or another label: measured where it is drawn.

Of every notebook, run from top to bottom, of the recorded histories and of the incidents' logs; as
wide as pictures are in a JupyterLab of 1,400, 1,100 and 800 pixels.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser.world import ROOT, SOON_MS
from lockkit.events import read
from lockkit.lab.verify.check import check
from lockkit.lab.widgets import Console
from lockkit.lab.widgets.export import drawing, replayed

pytestmark = [
    pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240, method="thread"),
    pytest.mark.xdist_group("voila"), pytest.mark.soak,
]  # fmt: skip
WIDTHS = (1000, 690, 366)
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
HISTORIES = sorted((ROOT / "datasets" / "histories").rglob("*.jsonl"))
INCIDENTS = sorted([*(ROOT / "datasets" / "incidents").glob("*.jsonl"),
                    *(ROOT / "datasets" / "incidents" / "logs").glob("*.log")])  # fmt: skip
STYLES = ROOT / "lockkit" / "lab" / "widgets" / "lanes.css"
PAGE = f"""<!doctype html><meta charset="utf-8"><style>{STYLES.read_text()}
.lk .lk-scroll {{ max-height: none; }}</style><body>
<script type="module">{drawing()}
window.draw = render;</script>"""
RUN = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
where = {"metadata": {"path": sys.argv[2]}}
nbclient.NotebookClient(notebook, timeout=200, kernel_name="python3", resources=where).execute()
nbformat.write(notebook, sys.argv[3])
"""
TOUCHING = """([state, width, reads]) => {
  const place = document.createElement("div");
  place.style.width = `${width}px`;
  document.body.replaceChildren(place);
  const all = { cursor: -1, selected: "", beats: false, live: false, exports: false, ...state };
  const model = { get: (name) => all[name], set() {}, save_changes() {}, on() {}, send() {} };
  window.draw({ model, el: place });
  if (reads) place.querySelector(".lk-check input").click();
  const { left, top } = place.querySelector(".lk-scroll svg").getBoundingClientRect();
  const boxed = (node, what) => {
    const box = node.getBoundingClientRect();
    const [x0, x1, y0, y1] = [box.left - left, box.right - left, box.top - top, box.bottom - top];
    return { what, x0, x1, y0, y1 };
  };
  const all_of = (query) => [...place.querySelectorAll(query)];
  const texts = all_of("svg text").map((node) => {
    const letters = boxed(node, node.textContent);
    const base = Number(node.getAttribute("y"));
    return { ...letters, x0: letters.x0 + 1, x1: letters.x1 - 1, y0: base - 8, y1: base + 1, node };
  });
  const labels = texts.filter(({ node }) => node.classList.contains("lk-label"));
  const shapes = all_of(".lk-marks [data-id] > *, .lk-bars [data-id] > *, "
    + ".lk-arrows :is(.lk-no, .lk-lost, .lk-tip)")
    .map((node) => boxed(node, node.getAttribute("class")));
  const meet = (a, b) => a.x0 < b.x1 && b.x0 < a.x1 && a.y0 < b.y1 && b.y0 < a.y1;
  const lines = all_of(".lk-arrows line:not(.lk-hit), .lk-lane").map((node) => {
    const at = (name) => Number(node.getAttribute(name));
    const [x1, y1, x2, y2] = [at("x1"), at("y1"), at("x2"), at("y2")];
    return { x1, y1, x2, y2, what: node.parentNode.getAttribute("aria-label") ?? "a lane" };
  });
  const crosses = (line, box) => {
    const steps = Array.from({ length: 201 }, (_, step) => step / 200);
    return steps.map((s) => [line.x1 + s * (line.x2 - line.x1), line.y1 + s * (line.y2 - line.y1)])
      .some(([x, y]) => x > box.x0 && x < box.x1 && y > box.y0 && y < box.y1);
  };
  return labels.flatMap((label) => [
    ...texts.filter((other) => other !== label && meet(label, other)),
    ...shapes.filter((shape) => meet(label, shape)),
    ...lines.filter((line) => crosses(line, label)),
  ].map((other) => `"${label.what}" at ${Math.round(label.y0)} touches ${other.what}`));
}"""


@pytest.fixture
def bare(page: Any, tmp_path: Path) -> Any:
    (tmp_path / "bare.html").write_text(PAGE)
    page.set_viewport_size({"width": 1400, "height": 1000})
    page.goto(f"file://{tmp_path / 'bare.html'}")
    page.wait_for_function("Boolean(window.draw)", timeout=SOON_MS)
    return page


def touching(page: Any, state: dict[str, Any]) -> list[str]:
    return [f"at {width}: {each}" for width in WIDTHS for reads in (False, True)
            for each in page.evaluate(TOUCHING, [state, width, reads])]  # fmt: skip


def of_notebook(notebook: Path, folder: Path) -> Iterator[dict[str, Any]]:
    """The states of all its pictures, as a page would have them after its last cell."""
    pytest.importorskip("nbclient", reason="make test installs nbclient")
    ran = folder / "ran.ipynb"
    own = {"LOCKKIT_FAST": "1", "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    subprocess.run([sys.executable, "-c", RUN, str(notebook), str(notebook.parent), str(ran)],
                   env=os.environ | own, check=True, timeout=200)  # fmt: skip
    stored = json.loads(ran.read_text())["metadata"].get("widgets", {})
    widgets = stored.get("application/vnd.jupyter.widget-state+json", {}).get("state", {})
    for each in widgets.values():
        if each["state"].get("scene", {}).get("lanes"):
            yield each["state"] | {"live": False, "beats": False}


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda each: each.stem)
def test_no_label_of_a_notebooks_pictures_touches_anything(
    notebook: Path, bare: Any, tmp_path: Path
) -> None:
    states = list(of_notebook(notebook, tmp_path))
    assert [each for state in states for each in touching(bare, state)] == []


def test_no_label_of_a_recorded_run_or_incident_touches_anything(bare: Any) -> None:
    states = {}
    for each in HISTORIES:
        events = list(read(each.read_text().splitlines(keepends=True)))
        states[each.stem] = replayed(events, check(events))
    for each in INCIDENTS:
        console = Console()
        console.read(each)
        states[each.stem] = {"scene": console.panel.lanes.scene, "status": {}}
    found = {name: touching(bare, state) for name, state in states.items()}
    assert {name: each for name, each in found.items() if each} == {} and len(found) > 20
