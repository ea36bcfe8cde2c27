"""The notebooks as apps: no code, the same panels."""

from __future__ import annotations

import re
from typing import Any

import pytest

from browser.world import BENCH, FIRST, LATER_MS, SOON_MS, Server, elsewhere, launch, said, shot

pytestmark = [
    pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(480, method="thread"),
    pytest.mark.xdist_group("voila"),
]  # fmt: skip


def test_the_same_notebook_is_an_app_in_voila(voila: Server, page: Any) -> None:
    """No code, the same panel: launch, stall, lose an answer, stop, scrub."""
    page.goto(f"{voila.url}/voila/render/{FIRST}", timeout=LATER_MS)
    page.wait_for_selector(f"{BENCH}[data-ready=true][data-state=idle]", timeout=LATER_MS)
    assert page.locator(".jp-CodeCell .jp-InputArea").count() == 0, "code is shown"
    said_there = page.inner_text("body")
    assert not re.search(r"\bcells?\b|BY_CODE|the line below", said_there), "an app has no code"
    assert "In production" in said_there
    live = page.locator(BENCH)
    page.locator(".lockkit-writers select").select_option("2 plain Python")
    page.locator(".lockkit-lease select").select_option("2 s")
    launch(page)
    page.locator(".lockkit-stall-w1").click()
    live.locator(".lk-bar-stall").first.wait_for(state="attached", timeout=LATER_MS)
    said(page, "held by W2|free")
    page.locator(".lockkit-stall-w1").click()
    live.locator(".lk-mark-refused").first.wait_for(state="attached", timeout=LATER_MS)
    page.locator(".lockkit-lose-next-response").click()
    live.locator(".lk-mark-fault").first.wait_for(state="attached", timeout=LATER_MS)
    page.locator(".lockkit-stop").click()
    page.wait_for_selector(f"{BENCH}[data-state=stopped][data-verdict=VALID]", timeout=SOON_MS)
    end = live.locator(".lk-clock").last.text_content()
    live.locator(".lk-slider").fill("300")
    assert live.locator(".lk-clock").last.text_content() != end
    page.get_by_text("Numbers").first.click()
    page.locator(".lockkit-numbers .scatterlayer path.point").first.wait_for(
        state="attached", timeout=LATER_MS
    )
    shot(page, "7-voila")
    assert elsewhere(page, voila) == [] and page.trouble == []


def test_the_list_of_notebooks_fetches_nothing_from_another_host(voila: Server, page: Any) -> None:
    page.goto(f"{voila.url}/", timeout=LATER_MS)
    page.get_by_text("04_pause_and_fence.ipynb").first.wait_for(timeout=LATER_MS)
    assert elsewhere(page, voila) == []


def test_a_stage_is_shown_in_voila_once_a_guess_is_picked(voila: Server, page: Any) -> None:
    """Nothing can be run again there: a click shows it, and then requests go one at a time."""
    page.goto(f"{voila.url}/voila/render/12_patterns.ipynb", timeout=LATER_MS)
    asks = page.locator(".lockkit-predict", has_text="How many times does a reader of the log find")
    asks.locator("input").first.wait_for(timeout=LATER_MS)
    log = page.locator(".lockkit-stepper", has_text="a lost answer to a claim counts as failure")
    reveal = page.locator(".lockkit-reveal").nth(2)  # the first question hides two things
    reveal.wait_for(state="attached", timeout=LATER_MS)
    twice = page.get_by_text("a reader finds it twice")
    twice.wait_for(state="hidden", timeout=SOON_MS)
    assert reveal.is_disabled() and log.count() == 0, "predict first"
    asks.locator("input").first.check()
    twice.wait_for(timeout=SOON_MS)
    reveal.click()
    log.wait_for(timeout=SOON_MS)
    log.locator(".lockkit-lose-w1").click()
    log.locator("td.bad", has_text="no answer").first.wait_for(timeout=SOON_MS)
    log.locator(".lockkit-end-w1").click()
    log.locator("b", has_text="done: appended").first.wait_for(timeout=SOON_MS)
    shot(page, "7-voila-stepper")
    assert elsewhere(page, voila) == [] and page.trouble == []


@pytest.mark.soak
def test_two_services_side_by_side_start_once_a_guess_is_picked(voila: Server, page: Any) -> None:
    """The pictures fill from processes that run; Stop ends every one of them."""
    page.goto(f"{voila.url}/voila/render/07_providers.ipynb?theme=dark", timeout=LATER_MS)
    panel = page.locator(".lockkit-providers")
    panel.wait_for(timeout=LATER_MS)
    start = panel.locator("button.lockkit-start")
    assert start.is_disabled(), "predict first"
    panel.locator("select").nth(1).select_option("a file")
    panel.locator("select").nth(2).select_option("the second is sooner")
    start.click()
    panel.locator(".lockkit-figures tr", has_text=re.compile(r"^grants\s*[1-9]")).wait_for(
        timeout=LATER_MS
    )
    panel.locator(".lp-grant").first.wait_for(state="attached", timeout=SOON_MS)
    shot(page, "14-side-by-side-dark")
    panel.locator("button.lockkit-stop").click()
    panel.get_by_text("Stopped; every process has ended.").wait_for(timeout=SOON_MS)
    assert elsewhere(page, voila) == [] and page.trouble == []
