"""One request at a time, in the browser: two writers, and the other protocols."""

from __future__ import annotations

import re
from typing import Any

import pytest

from browser.world import (
    SOON_MS,
    Server,
    elsewhere,
    run_all_cells,
    seen,
    shot,
    theme,
)

pytestmark = [
    pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240, method="thread"),
    pytest.mark.xdist_group("lab"),
]  # fmt: skip


def guess(page: Any) -> None:
    """What the first prediction keeps out of sight is shown once a guess is picked."""
    seen(page, page.locator(".lockkit-predict input").first).check()
    shown = seen(page, page.locator(".lockkit-reveal").first)
    shown.click()


@pytest.mark.soak
def test_two_commits_are_stepped_through_by_clicks(lab: Server, page: Any) -> None:
    """W1 checks and pauses, W2 commits, W1 is refused; with the lock alone it is not."""
    run_all_cells(page, lab, "08_timeline_and_occ.ipynb")
    seen(page, page.locator(".lockkit-reveal").first)
    assert page.locator(".lockkit-stepper").count() == 0, "predict first"
    guess(page)
    stepper = seen(page, page.locator(".lockkit-stepper").first)
    shot(page, "7-two-commits-before")
    for mode, said in (("fenced: the store decides", "VALID"),
                       ("hudi: the lock decides", "INVALID")):  # fmt: skip
        stepper.locator("select").select_option(mode)
        stepper.locator("button", has_text="Start over").click()
        column = stepper.locator(".lockkit-steps").first
        column.locator("tr").first.wait_for(timeout=SOON_MS)
        while not column.locator("tr", has_text="checked").count():
            asked = column.locator("tr").count()
            stepper.locator(".lockkit-next-w1").click()
            page.wait_for_function(
                "n => document.querySelector('.lockkit-steps').querySelectorAll('tr').length > n",
                arg=asked, timeout=SOON_MS,
            )  # fmt: skip
        stepper.locator(".lockkit-next-w1").click()
        stepper.locator(".lockkit-end-w2").click()
        stepper.locator("b", has_text="committed").first.wait_for(timeout=SOON_MS)
        stepper.locator(".lockkit-end-w1").click()
        stepper.locator(f"text=says: {said}").wait_for(timeout=SOON_MS)
        shot(page, f"8-two-commits-{mode.split(':')[0]}")
    assert elsewhere(page, lab) == [] and page.trouble == []


@pytest.mark.soak
def test_a_lost_answer_duplicates_a_record_in_the_naive_log(lab: Server, page: Any) -> None:
    """Each pattern of the page has its own stage; a mistake is chosen, and shows."""
    run_all_cells(page, lab, "12_patterns.ipynb")
    guess(page)
    seen(page, page.locator(".lockkit-predict").nth(1).locator("input").first).check()
    seen(page, page.locator(".lockkit-reveal").nth(1)).click()  # the first: the election
    log = seen(page, page.locator(".lockkit-stepper").nth(1))
    shot(page, "9-patterns-before")
    for mistake, said in (("a lost answer to a claim counts as failure", "INVALID"),
                          ("nothing: as it should be", "VALID")):  # fmt: skip
        log.locator("select").select_option(mistake)
        log.locator("button", has_text="Start over").click()
        column = log.locator(".lockkit-steps").first
        next_one = column.locator("tr.next")
        next_one.wait_for(timeout=SOON_MS)
        while not re.search(r"PUT.*1\.json", next_one.inner_text()):
            asked = next_one.locator("td").first.inner_text()
            log.locator(".lockkit-next-w1").click()
            next_one.filter(has_not_text=asked).wait_for(timeout=SOON_MS)
        log.locator(".lockkit-lose-w1").click()
        log.locator("td.bad", has_text="no answer").first.wait_for(timeout=SOON_MS)
        log.locator(".lockkit-end-w1").click()
        log.locator("b", has_text="done: appended").first.wait_for(timeout=SOON_MS)
        log.locator(".lockkit-end-w2").click()
        log.locator(f".lk[data-verdict={said}]").wait_for(timeout=SOON_MS)
        shot(page, f"10-log-{said}")
    theme(page, "Dark")
    shot(page, "10-log-dark")
    assert elsewhere(page, lab) == [] and page.trouble == []
