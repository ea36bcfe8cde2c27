"""The first notebook in a real JupyterLab and a real (headless) browser, with real writers.

Pictures for people to look at are kept in the directory that LOCKKIT_SHOTS names, if it does.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from browser.world import (
    BENCH,
    FIRST,
    LATER_MS,
    SOON_MS,
    Server,
    command,
    elsewhere,
    events_above,
    run_all_cells,
    said,
    seen,
    shot,
    theme,
)

pytestmark = [
    pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(400, method="thread"),
    pytest.mark.xdist_group("lab"),
]  # fmt: skip


def test_launch_stall_lose_and_stop_in_a_real_browser(lab: Server, page: Any) -> None:
    run_all_cells(page, lab, FIRST)
    live = page.locator(BENCH)
    live.wait_for(state="attached", timeout=LATER_MS)
    page.wait_for_selector(f"{BENCH}[data-ready=true][data-state=idle]", timeout=LATER_MS)
    assert page.locator(".jp-Dialog, .jp-toastContainer button").count() == 0
    seen(page, page.locator(".lockkit-predict input").first).check()
    seen(page, page.locator(".lockkit-reveal").first).click()
    page.wait_for_selector(".lk[data-bench=false][data-verdict=INVALID]", state="attached",
                           timeout=LATER_MS)  # the recorded ones  # fmt: skip
    page.locator(".lockkit-launch").hover()
    shot(page, "1-nothing-runs-yet")

    page.locator(".lockkit-writers select").select_option("3 plain Python")
    page.locator(".lockkit-lease select").select_option("2 s")
    page.locator(".lockkit-launch").click()
    page.wait_for_function(events_above(0), timeout=LATER_MS)
    live.locator(".lk-mark-published").first.wait_for(state="attached", timeout=LATER_MS)
    assert live.locator(".lk-rows .lk-later").count() == 0, "faded by the recorded run before it"

    page.locator(".lockkit-stall-w1").click()
    live.locator(".lk-bar-stall").first.wait_for(state="attached", timeout=LATER_MS)
    live.locator(".lk-bar-wrong").first.wait_for(state="attached", timeout=LATER_MS)
    said(page, "held by W[23]|free")
    shot(page, "2-stalled-light")
    page.locator(".lockkit-stall-w1").click()
    happens(page, "fenced off")
    page.locator(".lockkit-lose-next-response").click()
    happens(page, "fault")
    theme(page, "Dark")
    shot(page, "3-live-dark")

    page.locator(".lockkit-stop").click()
    page.wait_for_selector(f"{BENCH}[data-state=stopped][data-verdict=VALID]", timeout=LATER_MS)
    shot(page, "4-stopped-dark")
    walk_and_link(page, live)
    survive_a_reload(page)
    assert elsewhere(page, lab) == []
    assert page.trouble == []


def happens(page: Any, words: str) -> None:
    """The picture has such an event. It may be out of view, and so not in the page, by now."""
    page.locator(f"{BENCH} .lk-search").fill(words)
    counted = f"document.querySelector('{BENCH} .lk-count').textContent"
    page.wait_for_function(f"/^[1-9]/.test({counted})", timeout=LATER_MS)
    page.locator(f"{BENCH} .lk-search").fill("")


def walk_and_link(page: Any, live: Any) -> None:
    """The keyboard walks through the events; a row of the table and its arrow are one selection."""
    drawn = live.locator("tr[data-row]").nth(1)
    arrow = drawn.get_attribute("data-arrow")
    row = live.locator(f"tr[data-row={drawn.get_attribute('data-row')}]")
    row.click()
    live.locator(f"[data-id={arrow}].lk-selected").wait_for(state="attached", timeout=LATER_MS)
    assert "lk-selected" in (row.get_attribute("class") or "")
    assert re.search(r"W\d: \w+", live.locator(".lk-detail").text_content())
    live.locator(f"[data-id={arrow}]").focus()
    before = live.locator(".lk-detail").text_content()
    page.keyboard.press("ArrowDown")
    assert live.locator(".lk-detail").text_content() != before
    assert page.evaluate("document.activeElement.dataset.id") != arrow


def survive_a_reload(page: Any) -> None:
    """The page asks for a snapshot when it draws itself: what happened before it is not lost."""
    command(page, "docmanager:save")
    page.wait_for_function("!document.querySelector('.jp-mod-dirty')", timeout=SOON_MS)
    page.reload()
    page.wait_for_selector(f"{BENCH}[data-state=stopped][data-verdict=VALID]", timeout=LATER_MS)
    assert page.locator(BENCH).locator("tr[data-row]").count() > 3
