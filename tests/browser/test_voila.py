"""The notebooks as apps: no code, the same panels."""

from __future__ import annotations

from typing import Any

import pytest

from browser.world import BENCH, FIRST, LATER_MS, SOON_MS, Server, elsewhere, events_above, shot

pytestmark = [
    pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240),
    pytest.mark.xdist_group("voila"),
]  # fmt: skip


def test_the_same_notebook_is_an_app_in_voila(voila: Server, page: Any) -> None:
    """No code, the same panel: a click starts writers, and Stop ends them."""
    page.goto(f"{voila.url}/voila/render/{FIRST}", timeout=LATER_MS)
    page.wait_for_selector(f"{BENCH}[data-ready=true][data-state=idle]", timeout=LATER_MS)
    page.locator(".lockkit-writers select").select_option("2 plain Python")
    page.locator(".lockkit-launch").click()
    page.wait_for_function(events_above(10), timeout=SOON_MS)
    page.locator(".lockkit-stop").click()
    page.wait_for_selector(f"{BENCH}[data-state=stopped]", timeout=SOON_MS)
    shot(page, "7-voila")
    assert elsewhere(page, voila) == [] and page.trouble == []
