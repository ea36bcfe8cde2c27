"""The panel that probes a store, in the browser."""

from __future__ import annotations

from typing import Any

import pytest

from browser.world import (
    HOSTILE,
    LATER_MS,
    SOON_MS,
    Server,
    elsewhere,
    notebook_of,
    run_all_cells,
    seen,
    shot,
)

pytestmark = [
    pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240, method="thread"),
    pytest.mark.xdist_group("lab"),
]  # fmt: skip


@pytest.mark.soak
def test_a_store_is_probed_by_a_click_after_a_prediction(lab: Server, page: Any) -> None:
    """One sentence, the checks, a picture; a URL full of markup is told as text."""
    code = ("from lockkit.lab.widgets import StoreProbe", "StoreProbe(rounds=5, requests=20)")
    run_all_cells(page, lab, notebook_of(lab, "probe.ipynb", *code))
    panel = seen(page, page.locator(".lockkit-probe").first)
    probe, place = panel.locator("button.lockkit-probe-start"), ".lockkit-probe-place select"
    assert probe.is_disabled(), "predict first"
    panel.locator(place).select_option("DigitalOcean Spaces")
    panel.locator(".lockkit-probe-prediction select").select_option("no violation in any race")
    probe.click()
    said = panel.locator(".lockkit-verdict", has_text="The probe found: it ignores conditions.")
    said.wait_for(timeout=LATER_MS)
    assert panel.locator(".lp-checks tr").count() > 2
    loads = panel.get_by_text("Loading the chart")
    loads.wait_for(state="attached", timeout=SOON_MS)
    panel.locator(".bars path").first.wait_for(state="attached", timeout=LATER_MS)
    loads.wait_for(state="hidden", timeout=SOON_MS)
    wide = "each => each.querySelector('.main-svg').clientWidth - each.clientWidth"
    unfit = panel.locator(".js-plotly-plot").first.evaluate(wide)
    assert abs(unfit) <= 1, "the chart was drawn before it was shown, and fits all the same"
    panel.locator("text=What is known about each provider").click()
    panel.locator(".lp-new", has_text="what was probed here").wait_for(timeout=SOON_MS)
    shot(page, "11-probed")
    panel.locator(place).select_option("another, by its URL")
    panel.locator(".lockkit-probe-url input").fill(f"ftp://{HOSTILE}")
    probe.click()
    panel.locator(".lk-error", has_text="no store has the scheme").wait_for(timeout=SOON_MS)
    assert panel.locator("img").count() == 0
    assert elsewhere(page, lab) == [] and page.trouble == []
