"""The page that a run is exported to: one file, opened from the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from browser.world import HOSTILE, ROOT, SOON_MS, elsewhere, shot
from lockkit.events import event, read
from lockkit.lab.verify.check import check
from lockkit.lab.widgets.export import export_html

pytestmark = [
    pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240, method="thread"),
    pytest.mark.xdist_group("voila"),
]  # fmt: skip

STALLED = ROOT / "datasets" / "histories" / "bad" / "stalled_commit_accepted.jsonl"
LOST = ROOT / "datasets" / "histories" / "good" / "lost_response_recovered.jsonl"


def test_the_exported_page_opens_anywhere_and_loads_nothing(tmp_path: Path, page: Any) -> None:
    events = list(read(STALLED.read_text().splitlines(keepends=True)))
    export_html(events, check(events), file := tmp_path / "story.html", title="A stall")
    page.goto(f"file://{file}#t=5.0")
    page.wait_for_selector(".lk[data-ready=true][data-verdict=INVALID]", timeout=SOON_MS)
    assert page.locator(".lk-clock").last.text_content() == "5.00 s"
    page.get_by_role("button", name="Jump to the events").click()
    assert page.locator(".lk-arrow.lk-selected, .lk-mark.lk-selected").count() >= 1
    shot(page, "5-exported-light")
    page.emulate_media(color_scheme="dark")
    shot(page, "6-exported-dark")
    assert elsewhere(page) == []
    assert page.trouble == []


SIDEWAYS = """async () => {
  const frame = () => new Promise((drawn) => requestAnimationFrame(drawn));
  for (let n = 0; n < 3; n += 1) await frame();
  return [...document.querySelectorAll(".lk-scroll, .lk-rows")]
    .filter((each) => each.scrollWidth > each.clientWidth)
    .map((each) => `${each.className}: ${each.scrollWidth} in ${each.clientWidth} pixels`);
}"""


@pytest.mark.parametrize("history", [STALLED, LOST], ids=["stalled", "lost"])
def test_a_picture_beside_a_scrollbar_is_not_scrolled_sideways(
    tmp_path: Path, page: Any, history: Path
) -> None:
    """Nor is its table, whose longest answer is that of a lost response."""
    events = list(read(history.read_text().splitlines(keepends=True)))
    export_html(events, check(events), file := tmp_path / "story.html", title="A stall")
    page.goto(f"file://{file}")
    page.wait_for_selector(".lk[data-ready=true]", timeout=SOON_MS)
    takes = "document.querySelector('.lk-scroll').offsetWidth"
    for width in (1500, 1400, 1100, 800):
        page.set_viewport_size({"width": width, "height": 450})
        assert page.evaluate(SIDEWAYS) == [], width
        room = page.evaluate(f"{takes} - document.querySelector('.lk-scroll').clientWidth")
        assert room > 5, "this browser's scrollbars take no room"


def test_what_is_chosen_stays_in_view_when_the_page_becomes_narrower(
    tmp_path: Path, page: Any
) -> None:
    events = list(read(STALLED.read_text().splitlines(keepends=True)))
    export_html(events, check(events), file := tmp_path / "story.html", title="A stall")
    page.set_viewport_size({"width": 1400, "height": 900})
    page.goto(f"file://{file}")
    page.wait_for_selector(".lk[data-ready=true]", timeout=SOON_MS)
    page.locator(".lk-mark-stale").dispatch_event("click")
    inside = (
        "() => { const of = name => document.querySelector(name).getBoundingClientRect();"
        " const [box, mark] = [of('.lk-scroll'), of('.lk-mark-stale')];"
        " return box.top <= mark.top && mark.bottom <= box.bottom; }"
    )
    for width, height in ((1400, 900), (1100, 430), (800, 430), (430, 430)):
        page.set_viewport_size({"width": width, "height": height})
        page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")
        assert page.evaluate(inside), width


def test_hostile_text_stays_text(tmp_path: Path, page: Any) -> None:
    events = [
        event(0, HOSTILE, "started", pid=1),
        event(1, HOSTILE, "waiting", owner=HOSTILE, epoch=1, until_ms=9),
        event(2, HOSTILE, "refused", instant=HOSTILE, epoch=1, error=HOSTILE, why=HOSTILE),
    ]
    export_html(events, check(events), file := tmp_path / "hostile.html", title=HOSTILE)
    page.goto(f"file://{file}")
    page.wait_for_selector(".lk[data-ready=true]", timeout=SOON_MS)
    assert page.locator(".lk-title b", has_text=HOSTILE[:4]).count() == 1  # a long one is shortened
    said = page.locator(".lk-title").evaluate_all("all => all.map((each) => each.ariaLabel ?? '')")
    assert any(HOSTILE in each for each in said)
    assert page.locator("img").count() == 0 and page.title() == HOSTILE
    assert page.trouble == []
