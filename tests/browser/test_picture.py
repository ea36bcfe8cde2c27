"""The picture by keys alone, and of a long history: on exported pages, without a kernel."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from browser.world import ROOT, SOON_MS, shot
from lockkit.events import Event, read
from lockkit.lab.verify.check import check
from lockkit.lab.widgets.export import export_html

pytestmark = [
    pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240, method="thread"),
    pytest.mark.xdist_group("voila"),
]  # fmt: skip

STALLED = ROOT / "datasets" / "histories" / "bad" / "stalled_commit_accepted.jsonl"
NODES_MAX = 2_000


def recorded() -> list[Event]:
    return list(read(STALLED.read_text().splitlines(keepends=True)))


def later(each: Event, n: int) -> Event:
    """The same, in the n-th run of it."""
    fields = dict(each.data)
    for name in fields.keys() & {"began_ms", "until_ms"}:
        fields[name] += 20_000 * n
    for name in fields.keys() & {"attempt", "version", "before"}:
        fields[name] = fields[name] and f"{fields[name]}-{n}"
    return Event(each.at_ms + 20_000 * n, each.who, each.kind, fields)


def opened(page: Any, events: list[Event], file: Path, anchor: str = "") -> None:
    export_html(events, check(events), file, title="A stall")
    page.goto(f"file://{file}{anchor}")
    page.wait_for_selector(".lk[data-ready=true]", timeout=SOON_MS)


def said(page: Any, part: str) -> str:
    return str(page.locator(f".lk-{part}").first.text_content())


def test_a_row_is_chosen_at_the_press_so_that_a_redrawn_table_loses_no_click(
    tmp_path: Path, page: Any
) -> None:
    """A live run draws the rows anew between the press and the release: then there is no click."""
    opened(page, recorded(), tmp_path / "story.html")
    row = page.locator("tr[data-row]").nth(1)
    arrow = row.get_attribute("data-arrow")
    row.hover()
    page.mouse.down()
    page.locator(f"[data-id={arrow}].lk-selected").wait_for(state="attached", timeout=SOON_MS)
    page.mouse.up()
    assert page.locator(f"[data-id={arrow}].lk-selected").count() == 1
    assert page.trouble == []


def test_everything_is_reached_by_keys(tmp_path: Path, page: Any) -> None:
    opened(page, recorded(), tmp_path / "story.html")
    press = page.keyboard.press
    page.locator(".lk-arrow[tabindex='0'], .lk-mark[tabindex='0']").first.focus()
    press("v")
    assert re.search(r"W1 (checked|published)|publish", said(page, "detail"))
    assert page.locator(".lk-selected.lk-evidence").count() == 1
    press("?")
    assert page.locator(".lk-keys").is_visible()
    press("Escape")
    assert not page.locator(".lk-keys").is_visible()
    press("/")
    page.keyboard.type("w3 412")
    assert re.fullmatch(r"1 of \d+ events", said(page, "count"))
    press("Enter")
    assert "W3: acquire" in said(page, "detail") and "answer 412" in said(page, "detail")
    assert said(page, "count") == "1 of 1 found" and page.locator(".lk-found").count() == 1
    press("Escape")
    assert page.locator(".lk-found").count() == 0
    press(",")
    assert page.locator(".lk-slider").get_attribute("aria-valuetext") != "9.87 s"
    reads = page.locator(".lk-arrow.lk-read")
    before = reads.count()  # those that settle a lost answer
    press("r")
    assert reads.count() > before
    press("r")
    assert reads.count() == before
    for each in page.locator(".lk button, .lk input").all():
        named = "e => e.getAttribute('aria-label') || e.closest('label')?.textContent"
        assert each.evaluate(named), "a control without a name"
    assert page.trouble == []


def test_a_writers_lane_is_hidden_and_shown_again_and_the_focus_stays(
    tmp_path: Path, page: Any
) -> None:
    opened(page, recorded(), tmp_path / "story.html")
    marks = page.locator(".lk-mark-generation").count()
    page.get_by_role("button", name="Hide the lane of W2").focus()
    page.keyboard.press("Enter")
    assert page.locator(".lk-title b", has_text="W2").count() == 0
    assert page.locator(".lk-mark-generation").count() >= marks, "the truth stays"
    focused = "document.activeElement.getAttribute('aria-label')"
    assert page.evaluate(focused) == "+ W2: show the lane again"
    shot(page, "14-lane-hidden")
    page.keyboard.press("Enter")
    assert page.locator(".lk-title b", has_text="W2").count() == 1
    assert "Hide the lane of W2" in page.evaluate(focused)


def test_a_page_opens_at_the_event_that_its_address_names(tmp_path: Path, page: Any) -> None:
    events = recorded()
    opened(page, events, tmp_path / "story.html")
    page.locator("tr[data-row=g7]").click()
    address, detail = page.url, said(page, "detail")
    assert re.search(r"#e=x\d+$", address)
    opened(page, events, tmp_path / "story.html", "#" + address.split("#")[1])
    page.reload()
    page.wait_for_selector(".lk[data-ready=true]", timeout=SOON_MS)
    assert said(page, "detail") == detail
    assert page.locator("tr[data-row=g7].lk-selected").count() == 1


def test_a_moment_is_shown_whole_and_stays_in_view_in_another_width(
    tmp_path: Path, page: Any
) -> None:
    """Heads, rows, marks and labels are of the moment of the slider; no label is faded in part."""
    opened(page, recorded(), tmp_path / "story.html")
    heads = "[...document.querySelectorAll('button.lk-title')].map(each => each.innerText)"
    ended = page.evaluate(heads)
    assert all("exited" in each for each in ended)
    faded = (
        "at => { const slider = document.querySelector('.lk-slider'); slider.value = 1000 * at;"
        " slider.dispatchEvent(new Event('input'));"
        " const later = of => [...document.querySelectorAll(of)].map("
        "each => each.classList.contains('lk-later'));"
        " return [later('text.lk-label'), later('tr[data-row]')]; }"
    )
    labels, rows = page.evaluate(faded, 0.3)
    assert {*labels} == {True, False} and rows == sorted(rows) and {*rows} == {True, False}
    assert not any("exited" in each for each in page.evaluate(heads))
    assert not any(map(any, page.evaluate(faded, 1.0)))
    assert page.evaluate(heads) == ended

    end = "b => b.scrollHeight - b.clientHeight - b.scrollTop"
    scroller = page.locator(".lk-scroll")
    for width in (1400, 420):
        page.set_viewport_size({"width": width, "height": 500})
        page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")
        if width == 1400:
            scroller.evaluate("b => { b.scrollTop = 1e6; }")
        assert scroller.evaluate("b => b.scrollHeight > b.clientHeight")
        assert scroller.evaluate(end) <= 4, width


def test_a_long_history_is_drawn_only_where_it_is_looked_at(tmp_path: Path, page: Any) -> None:
    """However long: the page has as many nodes as a screen shows."""
    many = [later(each, n) for n in range(120) for each in recorded()]
    opened(page, many, tmp_path / "long.html")
    assert page.locator(".lk").get_attribute("data-events") == str(len(many))
    scrolled = (
        "at => new Promise(done => { for (const box of document.querySelectorAll"
        "('.lk-scroll, .lk-rows')) box.scrollTop = at * box.scrollHeight;"
        " requestAnimationFrame(() => requestAnimationFrame(() =>"
        " done([document.querySelectorAll('*').length,"
        " document.querySelectorAll('.lk-arrow').length,"
        " Number([...document.querySelectorAll('tr[data-row]')].at(-1).cells[0].textContent)])));"
        "})"
    )
    seen = [page.evaluate(scrolled, at) for at in (0, 0.5, 1)]
    assert all(nodes < NODES_MAX and arrows > 5 for nodes, arrows, _ in seen), seen
    assert seen[0][2] < seen[1][2] < seen[2][2] == 1_200, "the last row is the last generation"
    assert page.trouble == []
