"""The incident console in the browser: look, see the evidence, break a dead lock."""

from __future__ import annotations

from typing import Any

import pytest

from browser.world import (
    HOSTILE,
    LATER_MS,
    ROOT,
    SOON_MS,
    Server,
    elsewhere,
    notebook_of,
    run_all_cells,
    said_by_kernel,
    seen,
    shot,
    theme,
)

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240, method="thread")]
LOG = ROOT / "datasets" / "incidents" / "logs" / "google-release-throttled.log"


@pytest.mark.xdist_group("lab")
def test_a_dead_lock_is_looked_at_shown_in_the_diagram_and_broken_by_its_epoch(
    lab: Server, page: Any
) -> None:
    run_all_cells(page, lab, "incident_console.ipynb")
    console = seen(page, page.locator(".lockkit-console").first)

    def part(name: str) -> Any:
        return console.locator(f".lockkit-console-{name}")

    part("watch").locator("select").select_option("not at all")
    part("look").click()
    part("lock").locator("[data-state=held]").wait_for(timeout=LATER_MS)
    part("card").locator("[data-pattern='clock skew']").wait_for(timeout=SOON_MS)
    console.locator(".lk[data-ready=true] .lk-arrow").first.wait_for(state="attached")
    part("evidence").locator("button").nth(1).click()
    console.locator(".lk-arrow.lk-selected").wait_for(state="attached", timeout=SOON_MS)
    chosen = console.locator("tr.lk-selected", has_text="backfill")
    chosen.wait_for(state="attached", timeout=SOON_MS)
    assert not chosen.is_visible(), "the table is folded where it is below the picture"
    console.get_by_role("button", name="Generations of the lock object").click()
    chosen.wait_for(timeout=SOON_MS)
    shot(page, "13-console-evidence")

    part("dry").click()
    part("plan").get_by_text("nothing was changed").wait_for(timeout=SOON_MS)
    assert part("break").is_disabled(), "its lease lasts"
    theme(page, "Dark")
    part("plan").scroll_into_view_if_needed()
    shot(page, "14-console-dry-run-dark")
    part("epoch").locator("input").fill("42")
    part("epoch").locator("input").press("Tab")
    part("break").click()
    part("lock").locator("[data-state=released]").wait_for(timeout=LATER_MS)
    part("status").get_by_text("Broken: the lock is free").wait_for(timeout=SOON_MS)
    shot(page, "15-console-broken-dark")

    part("url").locator("input").fill(f"s3://x/{HOSTILE}")
    part("endpoint").locator("input").fill("no url")
    part("look").click()
    part("error").get_by_text("contains a blank").wait_for(timeout=SOON_MS)
    assert console.locator("img").count() == 0
    assert elsewhere(page, lab) == [] and page.trouble == []


@pytest.mark.xdist_group("lab")
def test_a_file_that_is_dropped_beside_the_zone_does_not_replace_the_notebook(
    lab: Server, page: Any
) -> None:
    cells = "from lockkit.lab.widgets.console.drop import DropFiles", "(zone := DropFiles())"
    run_all_cells(page, lab, notebook_of(lab, "zone.ipynb", *cells))
    box = seen(page, page.locator(".lk-drop")).bounding_box()
    browser, pages = page.context.new_cdp_session(page), list(page.context.pages)

    def drop(x: float) -> None:
        """As a person drops it: a file that the page does not take is opened by Chromium."""
        held = {"items": [], "files": [str(LOG)], "dragOperationsMask": 17}
        place = {"x": x, "y": box["y"] + box["height"] / 2, "data": held}
        for kind in ("dragEnter", "dragOver", "drop"):
            browser.send("Input.dispatchDragEvent", {"type": kind, **place})
        page.wait_for_timeout(500)

    names = "[each['name'] for each in zone.value]"
    drop(box["x"] + box["width"] + 9)
    assert page.context.pages == pages and said_by_kernel(page, names) == "[]"
    drop(box["x"] + 9)
    assert page.context.pages == pages and said_by_kernel(page, names) == f"['{LOG.name}']"


@pytest.mark.xdist_group("voila")
def test_a_log_is_dropped_into_the_same_page_as_an_app(voila: Server, page: Any) -> None:
    """Voila: no code, the same console; a file of the visitor's own machine becomes the picture."""
    page.goto(f"{voila.url}/voila/render/incident_console.ipynb", timeout=LATER_MS)
    console = page.locator(".lockkit-console").first
    upload = console.locator(".lockkit-console-upload")
    upload.wait_for(timeout=LATER_MS)
    with page.expect_file_chooser() as chosen:
        upload.click()
    chosen.value.set_files(str(LOG))
    console.locator("[data-pattern='throttled release']").wait_for(timeout=SOON_MS)
    console.locator(".lk-arrow").first.wait_for(state="attached", timeout=SOON_MS)
    shot(page, "16-console-voila")
    assert elsewhere(page, voila) == [] and page.trouble == []
