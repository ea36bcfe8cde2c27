"""What a page survives in the middle of a run, and what a kernel's end ends; nothing but keys."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from browser.world import (
    BENCH,
    KERNEL_IDLE,
    LATER_MS,
    SOON_MS,
    Server,
    command,
    elsewhere,
    events_above,
    fleets,
    gone,
    kernels_pid,
    launch,
    listened,
    notebook_of,
    open_notebook,
    restart_kernel,
    run_all_cells,
    said_by_kernel,
    seen,
    shot,
    theme,
    workbench_alone,
)

pytestmark = [
    pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240, method="thread"),
    pytest.mark.xdist_group("lab"),
]  # fmt: skip


def stopped(page: Any) -> None:
    page.locator(".lockkit-stop").click()
    page.wait_for_selector(f"{BENCH}[data-state=stopped][data-verdict=VALID]", timeout=SOON_MS)


@pytest.mark.soak
def test_a_reload_in_mid_run_loses_nothing_and_a_restart_leaves_nothing(
    lab: Server, page: Any
) -> None:
    """The writers go on under the reloaded page; they end with the kernel; then it runs again."""
    run_all_cells(page, lab, workbench_alone(lab))
    launch(page)
    page.locator(f"{BENCH} tr[data-row]").first.wait_for(state="attached", timeout=SOON_MS)
    before = int(page.locator(BENCH).get_attribute("data-events"))
    command(page, "docmanager:save")
    page.wait_for_function("!document.querySelector('.jp-mod-dirty')", timeout=SOON_MS)
    page.reload()
    page.wait_for_function(f"document.querySelector('{BENCH}')", timeout=LATER_MS)
    page.wait_for_function(events_above(before), timeout=SOON_MS)
    assert page.locator(BENCH).get_attribute("data-state") in ("running", "stalled")
    assert fleets(lab.directory)
    restart_kernel(page)
    page.locator(f"{BENCH} .lk-pill", has_text="disconnected").wait_for(timeout=SOON_MS)
    page.locator(f"{BENCH} .lk-said", has_text="run the notebook again").wait_for(timeout=SOON_MS)
    reached = "e => getComputedStyle(e).pointerEvents"
    assert page.locator(".lockkit-launch").evaluate(reached) == "none"
    assert gone(lab.directory), "a writer outlived its kernel"
    command(page, "notebook:run-all-cells")
    launch(page)
    stopped(page)
    # What the old kernel had half sent when it was ended is JupyterLab's own to pass over.
    trouble = [each for each in page.trouble if not each.startswith("Kernel message validation")]
    assert elsewhere(page, lab) == [] and trouble == []


@pytest.mark.soak
def test_the_keyboard_alone_launches_stops_and_walks_without_a_frozen_kernel(
    lab: Server, page: Any, context: Any, tmp_path: Path
) -> None:
    """Tab, Enter, arrows; to scrub is the page's own work; what happened leaves as one file."""
    run_all_cells(page, lab, workbench_alone(lab))
    page.wait_for_selector(f"{BENCH}[data-ready=true][data-state=idle]", timeout=LATER_MS)
    page.locator(".lockkit-provider select").focus()
    tab_to(page, "lockkit-launch")
    ring = "e => getComputedStyle(e).outlineWidth"
    assert page.locator(".lockkit-launch").evaluate(ring) == "2px", "the focus can be seen"
    page.keyboard.press("Enter")
    page.wait_for_function(events_above(5), timeout=SOON_MS)
    page.locator(f"{BENCH} tr[data-row]").first.wait_for(state="attached", timeout=SOON_MS)
    page.locator(".lockkit-provider select").focus()
    tab_to(page, "lockkit-stop")
    page.keyboard.press("Space")
    page.wait_for_selector(f"{BENCH}[data-state=stopped][data-verdict=VALID]", timeout=SOON_MS)
    assert said_by_kernel(page, f"str(bench.export({str(tmp_path / 'run.html')!r}))")
    os.kill(pid := kernels_pid(lab), signal.SIGSTOP)
    try:
        scrub_by_keys(page)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert elsewhere(page, lab) == [] and page.trouble == []
    look_at_export(context, tmp_path / "run.html")


def tab_to(page: Any, name: str) -> None:
    """At most as many Tabs as the panel has controls."""
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate(f"Boolean(document.activeElement.closest('.{name}'))"):
            return
    pytest.fail(f"Tab does not reach {name}")


def scrub_by_keys(page: Any) -> None:
    """Slider, steps and the walk through the events, with nobody at the other end."""
    clock = page.locator(f"{BENCH} .lk-clock").last
    slider = page.locator(f"{BENCH} .lk-slider")
    end = clock.text_content()
    tab_to(page, "lk-slider")
    page.keyboard.press("Home")
    start = clock.text_content()
    page.keyboard.press("PageUp")
    assert len({start, clock.text_content(), end}) == 3
    slider.fill("0")
    assert clock.text_content() == start
    page.get_by_role("button", name="Next event", exact=True).focus()
    page.keyboard.press("Enter")
    assert clock.text_content() != start
    tab_to(page, "lk-scroll")
    detail = page.locator(f"{BENCH} .lk-detail")
    seen = [detail.text_content()]
    for key in ("ArrowDown", "ArrowDown", "End", "Home"):
        page.keyboard.press(key)
        seen.append(detail.text_content())
    assert len(set(seen)) >= 4, seen


def look_at_export(context: Any, file: Path) -> None:
    page = listened(context.new_page())
    page.goto(f"file://{file}#t=0.50")
    page.wait_for_selector(".lk[data-ready=true][data-verdict=VALID]", timeout=SOON_MS)
    assert page.locator(".lk-clock").last.text_content() == "0.50 s"
    assert re.search("acquire", page.locator(".lk").text_content())
    assert elsewhere(page) == [] and page.trouble == []
    shot(page, "12-exported-run")
    page.close()


@pytest.mark.soak
def test_a_run_is_locked_until_a_guess_is_picked_then_both_are_shown_side_by_side(
    lab: Server, page: Any
) -> None:
    """You predicted / it did; what an SDK told, beside what the store had done."""
    run_all_cells(page, lab, "03_lost_response.ipynb")
    locked = page.locator(".jp-OutputArea-output", has_text="Predict first: pick one").first
    locked.wait_for(timeout=LATER_MS)
    assert page.locator(".lockkit-lost").count() == 0, "it ran before a guess"
    first = page.locator(".lockkit-predict").first
    first.get_by_text("that another client won").click()
    first.locator("[role=status]", has_text="Now run").wait_for(timeout=SOON_MS)
    page.keyboard.press("ArrowUp")  # by keyboard alone: within the group, not to another cell
    assert first.locator("input").first.evaluate("e => e.checked && e === document.activeElement")
    page.keyboard.press("ArrowDown")
    assert first.locator("input").nth(1).evaluate("e => e.checked && e === document.activeElement")
    page.keyboard.press("ArrowUp")
    locked.click()
    command(page, "notebook:run-cell")
    first.locator("[role=status]", has_text="The outcome: that another client won").wait_for(
        timeout=SOON_MS
    )
    page.locator(".lockkit-lost").first.wait_for(timeout=SOON_MS)
    assert first.locator("input:not([disabled])").count() == 0, "a guess cannot be changed"
    for name in ("Light", "Dark"):
        theme(page, name)
        shot(page, f"13-predicted-{name.lower()}")
    assert elsewhere(page, lab) == [] and page.trouble == []


def test_each_question_has_radio_buttons_of_its_own(lab: Server, page: Any) -> None:
    """Of one name, a guess for the second question would take back the guess for the first."""
    ask = "from lockkit.lab.widgets import Predict\nPredict('Which?', ['this', 'that'])"
    run_all_cells(page, lab, notebook_of(lab, "questions.ipynb", ask, ask))
    for n in range(2):
        box = seen(page, page.locator(".lockkit-predict").nth(n)).locator("input").nth(n)
        box.check()
    for n in range(2):
        assert page.locator(".lockkit-predict").nth(n).locator("input").nth(n).is_checked()


def test_a_guess_is_picked_and_the_next_cell_is_run_by_keys_alone(lab: Server, page: Any) -> None:
    ask = "from lockkit.lab.widgets import Predict\np = Predict('Which?', ['this', 'that'])\np"
    show = "from ipywidgets import HTML\np.reveal(HTML('seen now'))"
    cells = ask, "print(6 * 111)", show, "print(7 * 111)"
    open_notebook(page, lab, notebook_of(lab, "guess.ipynb", *cells))
    press = page.keyboard.press
    command(page, "notebook:run-cell")
    boxes = page.locator(".lockkit-predict input")
    boxes.first.wait_for(timeout=LATER_MS)
    page.wait_for_function(KERNEL_IDLE, timeout=LATER_MS)
    boxes.first.focus()
    press("Enter")
    page.locator(".lockkit-predict [role=status]", has_text="Now run").wait_for(timeout=SOON_MS)
    assert boxes.first.is_checked()
    press("Shift+Enter")
    page.wait_for_function(KERNEL_IDLE, timeout=LATER_MS)
    assert page.locator(".jp-OutputArea-output", has_text="666").count() == 0
    press("Shift+Enter")
    page.locator(".jp-OutputArea-output", has_text="666").wait_for(timeout=SOON_MS)
    page.locator(".lockkit-predict input:checked").wait_for(timeout=SOON_MS)  # it was kept
    press("Shift+Enter")
    page.locator(".lockkit-reveal:enabled").focus(timeout=SOON_MS)
    press("Enter")
    page.locator(".widget-html-content", has_text="seen now").wait_for(timeout=SOON_MS)
    page.wait_for_function("document.activeElement.matches('.jp-Cell')", timeout=SOON_MS)
    press("Shift+Enter")
    page.wait_for_function(KERNEL_IDLE, timeout=LATER_MS)
    press("Shift+Enter")
    page.locator(".jp-OutputArea-output", has_text="777").wait_for(timeout=SOON_MS)


def test_a_second_guess_before_the_first_is_answered_is_kept_by_the_cell_that_is_run_at_once(
    lab: Server, page: Any
) -> None:
    ask = "from lockkit.lab.widgets import Predict\nPredict('Which?', ['this', 'that'])"
    open_notebook(page, lab, notebook_of(lab, "quick.ipynb", ask, "print(6 * 111)"))
    command(page, "notebook:run-cell")
    page.locator(".lockkit-predict input").nth(1).wait_for(timeout=LATER_MS)
    page.wait_for_function(KERNEL_IDLE, timeout=LATER_MS)
    page.evaluate("""async () => {
      const boxes = document.querySelectorAll(".lockkit-predict input");
      boxes[0].dataset.old = true;
      boxes[0].click();
      boxes[1].click();
      await window.jupyterapp.commands.execute("notebook:run-cell");
    }""")
    page.locator(".lockkit-predict input:not([data-old])").nth(1).wait_for(timeout=LATER_MS)
    page.wait_for_function(KERNEL_IDLE, timeout=LATER_MS)
    page.locator("[data-old]").wait_for(state="detached", timeout=SOON_MS)
    page.locator(".lockkit-predict [role=status]", has_text="Now run").wait_for(timeout=SOON_MS)
    assert page.locator(".lockkit-predict input").nth(1).is_checked()


@pytest.mark.soak
def test_a_widget_whose_model_comes_in_the_last_pause_of_a_busy_page_is_drawn(
    lab: Server, page: Any
) -> None:
    """JupyterLab looks for a model every 100 ms for two seconds, and not after the last pause."""
    ask = "from lockkit.lab.widgets import Predict\nPredict('Which?', ['this', 'that'])"
    run_all_cells(page, lab, notebook_of(lab, "busy.ipynb", ask, "print(6 * 111)"))
    page.locator(".lockkit-predict input").nth(1).wait_for(timeout=LATER_MS)
    command(page, "docmanager:save")
    page.wait_for_function("!document.querySelector('.jp-mod-dirty')", timeout=SOON_MS)
    page.add_init_script("""(() => {
      const wait = window.setTimeout.bind(window);
      window.setTimeout = (then, ms, ...rest) => wait(then, ms === 100 ? 5000 : ms, ...rest);
    })()""")
    page.reload()
    page.get_by_text("model not found").wait_for(timeout=LATER_MS)  # the page was busy
    page.locator(".lockkit-predict input").nth(1).wait_for(timeout=SOON_MS)


@pytest.mark.soak
def test_the_numbers_that_are_unfolded_in_mid_run_show_their_points(lab: Server, page: Any) -> None:
    """What is sent while a slow page loads plotly does not arrive: it is sent once more."""
    run_all_cells(page, lab, notebook := workbench_alone(lab))
    launch(page)
    page.locator(f"{BENCH} tr[data-row]").nth(2).wait_for(state="attached", timeout=LATER_MS)
    slow = page.context.new_cdp_session(page)
    slow.send("Emulation.setCPUThrottlingRate", {"rate": 4})
    panel = page.locator(".lockkit-numbers")
    panel.get_by_text("Numbers").first.click()
    point = panel.locator(".scatterlayer path.point").first
    point.wait_for(state="attached", timeout=LATER_MS)
    end = "document.querySelector('.lockkit-numbers .js-plotly-plot').layout.xaxis.range[1]"
    was = page.evaluate(end)
    page.wait_for_function(f"{end} > {was}", timeout=LATER_MS)  # it follows the run
    slow.send("Emulation.setCPUThrottlingRate", {"rate": 1})
    command(page, "docmanager:save")
    page.wait_for_function("!document.querySelector('.jp-mod-dirty')", timeout=SOON_MS)
    page.reload()  # the page has the points of the beginning then
    point.wait_for(state="attached", timeout=LATER_MS)
    was = page.evaluate(end)
    page.wait_for_function(f"{end} > {was}", timeout=LATER_MS)
    second = page.context.new_page()
    open_notebook(second, lab, notebook)
    second.locator(".lockkit-numbers .scatterlayer path.point").first.wait_for(
        state="attached", timeout=LATER_MS
    )
    assert point.is_visible(), "the first page's panel stays unfolded"
    second.close()
    stopped(page)
    rows = page.locator(f"{BENCH} tr[data-row]").count()
    generations = page.locator(".lockkit-numbers .scatterlayer .trace").first.locator("path.point")
    assert generations.count() >= min(rows, 3)
    shot(page, "17-numbers-in-mid-run")
