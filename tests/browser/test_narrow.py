"""Panels and pictures in a notebook of 800 pixels, of which the list of files takes half."""

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
    "from lockkit.lab.course.striping import Stories\nStories('upgrades')",
    """from lockkit.lab.widgets import PatternStepper
PatternStepper('election', 'the resource does not check the epoch')""",
)  # fmt: skip
CONTROLS = ".widget-dropdown, .widget-text, .widget-slider, .widget-button, .lk"
BEYOND = """(panel, controls) => {
  const end = panel.closest(".jp-OutputArea-output").getBoundingClientRect().right;
  return [...panel.querySelectorAll(controls)]
    .filter((each) => each.getBoundingClientRect().right > end + 1).map((each) => each.className);
}"""

OVER = """(panel) => {
  const all = [...panel.querySelectorAll("select, button, input:not([type=radio], [type=range])")]
    .filter((each) => each.offsetParent && !each.closest(".lk"));
  const boxes = all.map((each) => each.getBoundingClientRect());
  return all.filter((_, n) => boxes.some((other, k) => k > n
    && Math.min(boxes[n].right, other.right) - Math.max(boxes[n].left, other.left) > 1
    && Math.min(boxes[n].bottom, other.bottom) - Math.max(boxes[n].top, other.top) > 1))
    .map((each) => each.outerHTML.slice(0, 200));
}"""
MENUS = """(panel) => {
  const pen = document.createElement("canvas").getContext("2d");
  const below = [...panel.querySelectorAll(".lockkit-chosen")].filter((each) => each.offsetParent)
    .map((each) => each.innerText).join(" ");
  return [...panel.querySelectorAll("select")].filter((each) => each.offsetParent).map((menu) => {
    const { font, paddingLeft, paddingRight } = getComputedStyle(menu);
    const room = menu.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight);
    const text = menu.selectedOptions[0].text.replace(/\\u00a0/g, " ");
    pen.font = font;
    return pen.measureText(text).width <= room || below.includes(text) ? "" : text;
  }).filter(Boolean);
}"""


def test_no_control_of_a_panel_is_cut_in_a_narrow_notebook(lab: Server, page: Any) -> None:
    page.set_viewport_size({"width": 800, "height": 1000})
    run_all_cells(page, lab, notebook_of(lab, "narrow.ipynb", *PANELS))
    for n in range(len(PANELS)):  # a panel may have another in it
        panel = seen(page, page.locator(".jp-Cell").nth(n).locator(".lk-panel").first)
        assert panel.evaluate(BEYOND, CONTROLS) == [], PANELS[n]
        assert panel.evaluate(OVER) == [], f"one control covers another in {PANELS[n]}"
        assert panel.evaluate(MENUS) == [], f"what is chosen cannot be read in {PANELS[n]}"


TALL = (
    "from lockkit.lab.widgets import StoreProbe, TimeSliders\nTimeSliders(stall_s=9)",
    "probe = StoreProbe()\nprobe.show(probe.run('aws', rounds=1, requests=3))\nprobe",
    "from lockkit.lab.widgets import PatternStepper\nPatternStepper('election')",
)  # fmt: skip


def test_a_panel_with_its_picture_fits_one_screen_of_a_narrow_notebook(
    lab: Server, page: Any
) -> None:
    """Of 900 pixels JupyterLab's own bars take 120."""
    page.set_viewport_size({"width": 800, "height": 900})
    run_all_cells(page, lab, notebook_of(lab, "tall.ipynb", *TALL))
    heights, views = [], []
    for n in range(len(TALL)):  # JupyterLab draws the cells that are in view, and some beside them
        page.evaluate(f"window.jupyterapp.shell.currentWidget.content.scrollToItem({n}, 'start')")
        cell = page.locator(f".jp-Cell[data-windowed-list-index='{n}']")
        panel = cell.locator(".lk-panel").first
        panel.wait_for(state="attached", timeout=LATER_MS)
        heights.append(seen(page, panel).evaluate("each => each.getBoundingClientRect().height"))
        views += panel.locator(".lk-scroll").evaluate_all(
            "all => all.map((each) => [each.clientHeight, each.scrollHeight])"
        )
    assert all(200 < each < 780 for each in heights), heights
    assert all(shown >= min(whole, 300) - 20 for shown, whole in views) and len(views) > 1, views


PICTURES = (
    "from lockkit.lab.course.lockfile import hand_on\nhand_on('conditional delete')",
    "from lockkit.lab.widgets import StoreProbe, Workbench\nprobe = StoreProbe()\nprobe",
    "probe.show(probe.run('aws', rounds=1, requests=3))",
    "Workbench.replay('../datasets/histories/good/lost_response_recovered.jsonl')",
    "Workbench.replay('../datasets/histories/good/stalled_commit_refused.jsonl')",
    """from lockkit.lab.course.exercises import Applied, IfVersion, Put, Sleep, judge, read

def claim(key, mine):
    seen = yield from read(key)
    while not isinstance((yield Put(key, mine, IfVersion(seen.version))), Applied):
        yield Sleep(0.5)

judge(claim)""",
    "from IPython.display import Markdown\nMarkdown(f'* a name of Hudi: `{\"Strategy.\" * 20}`')",
)  # fmt: skip
OVERFLOWS = """() => [...document.querySelectorAll(".jp-OutputArea-output")].flatMap((output) => {
  const end = output.getBoundingClientRect().right;
  return [...output.querySelectorAll("*")].filter((each) => {
    const { width, right } = each.getBoundingClientRect();
    const scrolls = /auto|scroll/.test(getComputedStyle(each).overflowX);
    return width && (right > end + 1 || (scrolls && each.scrollWidth > each.clientWidth + 1));
  }).map((each) => `${each.tagName} ${each.className.baseVal ?? each.className}`);
})"""


@pytest.mark.parametrize("width", [1100, 800])
def test_no_picture_is_cut_or_scrolled_sideways_in_a_narrow_notebook(
    lab: Server, page: Any, width: int
) -> None:
    """States of a lock, a probe's chart and matrix, a replay, an exercise's story, a long name."""
    page.set_viewport_size({"width": 1400, "height": 4000})
    run_all_cells(page, lab, notebook_of(lab, f"pictures_{width}.ipynb", *PICTURES))
    page.locator(".lockkit-probe .bars path").first.wait_for(state="attached", timeout=LATER_MS)
    seen(page, page.locator(".lockkit-probe")).locator("text=What is known about each").click()
    page.locator(".lockkit-sequence").wait_for(timeout=LATER_MS)
    page.set_viewport_size({"width": width, "height": 4000})
    page.wait_for_function(f"({OVERFLOWS})().length === 0", timeout=LATER_MS)
    cut = "all => all.filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.textContent)"
    assert page.locator(".lk-title :is(b, i)").evaluate_all(cut) == []
    assert page.locator(".lp-matrix tr").count() > 20 and page.locator(".lk-rows tr").count() > 2
    story = page.locator(".lockkit-latest")
    shown, whole = story.evaluate("each => [each.clientHeight, each.scrollHeight]")
    assert shown < 500 and (whole > shown or width > 800), "a long story's end is shown first"
