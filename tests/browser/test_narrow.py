"""Panels in a notebook of 800 pixels, of which the list of files takes more than half."""

from __future__ import annotations

from typing import Any

import pytest

from browser.world import LATER_MS, Server, notebook_of, run_all_cells, seen

pytestmark = [
    pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240, method="thread"),
    pytest.mark.xdist_group("lab"), pytest.mark.soak,
]  # fmt: skip
PANELS = (
    "from lockkit.lab.widgets import Console, Providers, StoreProbe, TimeSliders\nConsole()",
    "Providers()", "StoreProbe()", "TimeSliders()",
    "from lockkit.lab.course.breaker import Breaker\nBreaker()",
    "from lockkit.lab.course.striping import Deadlocks\nDeadlocks('upgrades')",
    "from lockkit.lab.widgets import PatternStepper\nPatternStepper('election')",
)  # fmt: skip
CONTROLS = ".widget-dropdown, .widget-text, .widget-slider, .widget-button, .lk"
BEYOND = """(panel, controls) => {
  const end = panel.closest(".jp-OutputArea-output").getBoundingClientRect().right;
  return [...panel.querySelectorAll(controls)]
    .filter((each) => each.getBoundingClientRect().right > end + 1).map((each) => each.className);
}"""


def test_no_control_of_a_panel_is_cut_in_a_narrow_notebook(lab: Server, page: Any) -> None:
    page.set_viewport_size({"width": 800, "height": 1000})
    run_all_cells(page, lab, notebook_of(lab, "narrow.ipynb", *PANELS))
    panels = page.locator(".lk-panel")
    panels.nth(len(PANELS) - 1).wait_for(state="attached", timeout=LATER_MS)
    for n in range(len(PANELS)):
        assert seen(page, panels.nth(n)).evaluate(BEYOND, CONTROLS) == [], PANELS[n]
