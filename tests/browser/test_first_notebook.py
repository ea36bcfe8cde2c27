"""The notebooks in a real JupyterLab and a real (headless) browser, with real writers.

Pictures for people to look at are kept in the directory that LOCKKIT_SHOTS names, if it does.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockkit.check import check
from lockkit.history import event, read
from lockkit.workbench.export import export_html

playwright = pytest.importorskip("playwright.sync_api", reason="make test installs playwright")

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "notebooks" / "00_start_here.ipynb"
STALLED = ROOT / "datasets" / "histories" / "bad" / "stalled_commit_accepted.jsonl"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
SOON_MS, LATER_MS = 15_000, 60_000
BENCH = ".lk[data-bench=true]"
KERNEL_IDLE = """(() => {
  const context = window.jupyterapp.shell.currentWidget?.sessionContext;
  return context?.isReady && context.session?.kernel?.connectionStatus === "connected"
    && context.session.kernel.status === "idle";
})()"""
HOSTILE = "</script><img src=x onerror=\"document.title='owned'\">"


def chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    pytest.skip("no Chromium: apt-get install chromium (or chromium-browser) to test the notebook")


@pytest.fixture
def page(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A page that knows what it fetched and what went wrong in it."""
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), args=FLAGS)
        page = browser.new_page(viewport={"width": 1500, "height": 1180})
        page.fetched, page.trouble = [], []
        page.on("request", lambda each: page.fetched.append(each.url))
        page.on("pageerror", lambda error: page.trouble.append(str(error)))
        page.on("console", lambda m: page.trouble.append(m.text) if m.type == "error" else None)
        yield page
        shot(page, f"last-{request.node.name}")
        browser.close()


def shot(page: Any, name: str) -> None:
    if folder := os.environ.get("LOCKKIT_SHOTS"):
        page.screenshot(path=str(Path(folder) / f"{name}.png"))


def elsewhere(page: Any, home: str) -> list[str]:
    """What the page asked of anybody but the server that it came from."""
    own = (home, home.replace("http", "ws", 1), "data:", "blob:")
    return [url for url in page.fetched if not url.startswith(own)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def serving(directory: Path, *line: str) -> Iterator[str]:
    """A server for a copy of the notebook, so that saving it changes nothing; its URL."""
    (directory / "notebooks").mkdir()
    for each in NOTEBOOK.parent.glob("*.ipynb"):
        shutil.copy(each, directory / "notebooks")
    (directory / "datasets").symlink_to(ROOT / "datasets")
    own = {f"JUPYTER_{each}_DIR": str(directory / each) for each in ("CONFIG", "DATA", "RUNTIME")}
    own |= {"TMPDIR": str(directory), "PYTHONPATH": str(ROOT), "LOCKKIT_FAST": ""}
    url = f"http://127.0.0.1:{(port := free_port())}"
    with (directory / "server.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", *line, "--no-browser", f"--port={port}"],
            env=os.environ | own, stdout=log, stderr=log, start_new_session=True, cwd=ROOT,
        )  # fmt: skip
        try:
            wait_for(url, server, directory / "server.log")
            yield url
        finally:
            server.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
    assert gone(directory), "a writer outlived its server"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[str]:
    notebook = str(tmp_path / "notebooks" / NOTEBOOK.name)
    flags = ["--IdentityProvider.token=", "--allow-root", "--LabApp.expose_app_in_browser=True"]
    with serving(tmp_path, "lockkit", "lab", notebook, *flags) as url:
        yield url


@pytest.fixture
def voila(tmp_path: Path) -> Iterator[str]:
    pytest.importorskip("voila", reason="make lab installs voila")
    notebook = str(tmp_path / "notebooks" / NOTEBOOK.name)
    with serving(tmp_path, "voila", notebook) as url:
        yield url


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(address(url), timeout=1):
            return
        time.sleep(0.1)
    pytest.fail(f"the server did not answer: {log.read_text()[-2000:]}")


def address(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


def gone(directory: Path, timeout_s: float = 10.0) -> bool:
    """Whether every process of a fleet that was started below this directory has ended."""
    deadline = time.monotonic() + timeout_s
    while left := [each for each in Path("/proc").glob("[0-9]*") if belongs(each, directory)]:
        if time.monotonic() > deadline:
            print("left:", [(each / "cmdline").read_bytes() for each in left])
            return False
        time.sleep(0.1)
    return True


def belongs(entry: Path, directory: Path) -> bool:
    try:
        environment = (entry / "environ").read_bytes()
    except OSError:
        return False
    return f"TMPDIR={directory}\0".encode() in environment and b"LOCKKIT_FLEET" in environment


def command(page: Any, name: str, **args: Any) -> None:
    execute = "([name, args]) => { window.jupyterapp.commands.execute(name, args); }"
    page.evaluate(execute, [name, args])


def run_all_cells(page: Any, lab: str, notebook: str) -> None:
    page.goto(f"{lab}/lab/tree/{notebook}")
    page.wait_for_function(
        "window.jupyterapp?.commands.hasCommand('notebook:run-all-cells')"
        " && document.querySelectorAll('.jp-Notebook .jp-Cell').length > 5", timeout=LATER_MS,
    )  # fmt: skip
    page.wait_for_function(KERNEL_IDLE, timeout=LATER_MS)
    command(page, "notebook:run-all-cells")


def test_two_commits_are_stepped_through_by_clicks(lab: str, page: Any) -> None:
    """W1 checks and pauses, W2 commits, W1 is refused; with the lock alone it is not."""
    run_all_cells(page, lab, "01_two_commits_one_table.ipynb")
    stepper = page.locator(".lockkit-stepper").first
    stepper.wait_for(timeout=LATER_MS)
    page.wait_for_function(KERNEL_IDLE, timeout=LATER_MS)
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
    assert not page.trouble


def test_a_lost_answer_is_seen_to_double_a_record_of_the_log(lab: str, page: Any) -> None:
    """Each pattern of the page has its own stage; a mistake is chosen, and shows."""
    run_all_cells(page, lab, "12_patterns.ipynb")
    steppers = page.locator(".lockkit-stepper")
    steppers.nth(2).wait_for(timeout=LATER_MS)
    page.wait_for_function(KERNEL_IDLE, timeout=LATER_MS)
    shot(page, "9-patterns-before")
    log = steppers.nth(1)
    for mistake, said in (("a lost answer to a claim is a no", "does not agree"),
                          ("nothing: as it should be", "there agrees")):  # fmt: skip
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
        log.locator(f"text={said}").wait_for(timeout=SOON_MS)
        shot(page, f"10-log-{said.split()[-1]}")
    assert not page.trouble


def test_a_store_is_probed_by_a_click_after_a_prediction(lab: str, page: Any) -> None:
    """One sentence, the checks, a picture; a URL full of markup is told as text."""
    run_all_cells(page, lab, "15_probe_a_store.ipynb")
    panel = page.locator(".lockkit-probe").first
    panel.wait_for(timeout=LATER_MS)
    page.wait_for_function(KERNEL_IDLE, timeout=LATER_MS)
    probe, place = panel.locator("button.lockkit-probe-start"), ".lockkit-probe-place select"
    assert probe.is_disabled(), "predict first"
    panel.locator(place).select_option("DigitalOcean Spaces")
    panel.locator(".lockkit-probe-prediction select").select_option("safe to lock on")
    probe.click()
    said = panel.locator(".lockkit-verdict", has_text="It is: it ignores conditions.")
    said.wait_for(timeout=LATER_MS)
    assert panel.locator(".lp-checks tr").count() > 2
    panel.locator(".bars path").first.wait_for(state="attached", timeout=SOON_MS)
    panel.locator("text=What is known of each provider").click()
    panel.locator(".lp-new", has_text="what was probed here").wait_for(timeout=SOON_MS)
    shot(page, "11-probed")
    panel.locator(place).select_option("another, by its URL")
    panel.locator(".lockkit-probe-url input").fill(f"ftp://{HOSTILE}")
    probe.click()
    panel.locator(".lp-error", has_text="no store has the scheme").wait_for(timeout=SOON_MS)
    assert panel.locator("img").count() == 0
    assert elsewhere(page, lab) == [] and page.trouble == []


def test_launch_stall_lose_and_stop_in_a_real_browser(lab: str, page: Any) -> None:
    started = time.monotonic()
    run_all_cells(page, lab, NOTEBOOK.name)
    live = page.locator(BENCH)
    live.wait_for(state="attached", timeout=LATER_MS)
    page.wait_for_selector(f"{BENCH}[data-ready=true][data-state=idle]", timeout=SOON_MS)
    on_screen_s = time.monotonic() - started
    assert page.locator(".jp-Dialog, .jp-toastContainer button").count() == 0
    page.wait_for_selector(".lk[data-bench=false][data-verdict=INVALID]", state="attached",
                           timeout=LATER_MS)  # the recorded ones  # fmt: skip
    page.locator(".lockkit-launch").hover()
    shot(page, "1-nothing-runs-yet")

    page.locator(".lockkit-writers select").select_option("3 plain Python")
    page.locator(".lockkit-lease select").select_option("2 s")
    clicked = time.monotonic()
    page.locator(".lockkit-launch").click()
    page.wait_for_function(events_above(0), timeout=SOON_MS)
    first_event_s = time.monotonic() - clicked
    live.locator(".lk-mark-published").first.wait_for(state="attached", timeout=LATER_MS)

    page.locator(".lockkit-stall-w1").click()
    live.locator(".lk-bar-stall").first.wait_for(state="attached", timeout=LATER_MS)
    live.locator(".lk-bar-wrong").first.wait_for(state="attached", timeout=SOON_MS)
    said(page, "held by W[23]|free")
    shot(page, "2-stalled-light")
    page.locator(".lockkit-stall-w1").click()
    live.locator(".lk-mark-refused").first.wait_for(state="attached", timeout=SOON_MS)
    page.locator(".lockkit-lose-next-response").click()
    live.locator(".lk-mark-fault").first.wait_for(state="attached", timeout=SOON_MS)
    command(page, "apputils:change-theme", theme="JupyterLab Dark")
    page.wait_for_selector("body[data-jp-theme-light=false]", state="attached", timeout=SOON_MS)
    shot(page, "3-live-dark")

    page.locator(".lockkit-stop").click()
    page.wait_for_selector(f"{BENCH}[data-state=stopped][data-verdict=VALID]", timeout=SOON_MS)
    shot(page, "4-stopped-dark")
    walk_and_link(page, live)
    survive_a_reload(page)
    assert elsewhere(page, lab) == []
    assert page.trouble == []
    print(f"widgets on screen {on_screen_s:.1f} s after the first byte; "
          f"first live event {first_event_s:.2f} s after the click")  # fmt: skip
    assert on_screen_s < 30 and first_event_s < 2


def events_above(number: int) -> str:
    return f"Number(document.querySelector('{BENCH}').dataset.events) > {number}"


def said(page: Any, pattern: str) -> None:
    facts = f"document.querySelector('{BENCH} .lk-facts').textContent"
    page.wait_for_function(f"new RegExp({pattern!r}).test({facts})", timeout=SOON_MS)


def walk_and_link(page: Any, live: Any) -> None:
    """The keyboard walks through the events; a row of the table and its arrow are one selection."""
    row = live.locator("tr[data-row]").nth(1)
    row.click()
    arrow = row.get_attribute("data-arrow")
    assert live.locator(f"[data-id={arrow}].lk-selected").count() == 1
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


def test_the_same_notebook_is_an_app_in_voila(voila: str, page: Any) -> None:
    """No code, the same panel: a click starts writers, and Stop ends them."""
    page.goto(voila, timeout=LATER_MS)
    page.wait_for_selector(f"{BENCH}[data-ready=true][data-state=idle]", timeout=LATER_MS)
    page.locator(".lockkit-writers select").select_option("2 plain Python")
    page.locator(".lockkit-launch").click()
    page.wait_for_function(events_above(10), timeout=SOON_MS)
    page.locator(".lockkit-stop").click()
    page.wait_for_selector(f"{BENCH}[data-state=stopped]", timeout=SOON_MS)
    shot(page, "7-voila")
    # Voila asks a CDN for its icon font, in vain and without need; nothing else may.
    assert {url.split("/")[2] for url in elsewhere(page, voila)} <= {"cdn.jsdelivr.net"}


def test_the_exported_page_opens_anywhere_and_asks_nobody(tmp_path: Path, page: Any) -> None:
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
    assert [url for url in page.fetched if not url.startswith("file://")] == []
    assert page.trouble == []


def test_hostile_text_stays_text(tmp_path: Path, page: Any) -> None:
    events = [
        event(0, HOSTILE, "started", pid=1),
        event(1, HOSTILE, "waiting", owner=HOSTILE, epoch=1, until_ms=9),
        event(2, HOSTILE, "refused", instant=HOSTILE, epoch=1, error=HOSTILE, why=HOSTILE),
    ]
    export_html(events, check(events), file := tmp_path / "hostile.html", title=HOSTILE)
    page.goto(f"file://{file}")
    page.wait_for_selector(".lk[data-ready=true]", timeout=SOON_MS)
    assert HOSTILE in page.locator(".lk-title b").all_text_contents()
    assert page.locator("img").count() == 0 and page.title() == HOSTILE
    assert page.trouble == []
