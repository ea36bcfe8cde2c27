"""The documentation's playground, served as files: its first picture, and Python in the page."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from browser.world import ROOT, SOON_MS, Server, elsewhere, shot
from lockkit.lab.widgets.links import seed_fragment
from lockkit.lab.widgets.seeds.moments import SeedMoment, play

pytestmark = [
    pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(400, method="thread"),
    pytest.mark.xdist_group("voila"),
]  # fmt: skip

LOADED_MS = 240_000
IDLE = "document.querySelector('#playground').dataset.busy === 'false'"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Tests read what the page says."""


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return import_module("playground_page")


@pytest.fixture
def site(parts: ModuleType, tmp_path: Path) -> Iterator[Server]:
    """The page as Sphinx would serve it, without the frame around it."""
    frame = f"<!doctype html><link rel=icon href='data:,'><body>{parts.html()}"
    (tmp_path / "playground.html").write_text(frame, encoding="utf-8")
    parts.serve(tmp_path)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Server(url=f"http://127.0.0.1:{server.server_port}", directory=tmp_path)
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def without_python(
    parts: ModuleType, tmp_path: Path, page: Any, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """The page from the disk, as make docs builds it without npm."""
    monkeypatch.setattr(parts, "PYODIDE", tmp_path / "none")
    (file := tmp_path / "playground.html").write_text(parts.html(), encoding="utf-8")
    page.goto(f"file://{file}")
    page.wait_for_selector("#playground[data-drawn][data-failed]", timeout=SOON_MS)
    return page


def test_the_first_picture_needs_no_python(without_python: Any) -> None:
    page = without_python
    page.wait_for_selector(".lk[data-ready=true][data-verdict=INVALID]", timeout=SOON_MS)
    assert int(page.get_attribute("#playground", "data-drawn")) < 5_000
    assert page.locator(".lk-arrow").count() > 1
    assert "without Python" in page.text_content("#pg-state")
    assert elsewhere(page) == [] and page.trouble == []


DROPPED = """([where, names]) => {
  const files = new DataTransfer();
  for (const each of names) files.items.add(new File(["{}"], each));
  const drop = new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer: files });
  document.querySelector(where).dispatchEvent(drop);
  return drop.defaultPrevented;
}"""


def test_what_is_dropped_beside_the_open_panel_is_its_own_and_never_replaces_the_page(
    without_python: Any,
) -> None:
    page = without_python
    assert page.evaluate(DROPPED, ["#pg-picture", ["one.jsonl"]])
    page.get_by_role("tab", name="Checker").click()
    assert page.evaluate(DROPPED, ["body", ["one.jsonl", "two.jsonl"]])
    page.wait_for_selector("#pg-said.pg-bad >> text=one history at a time", timeout=SOON_MS)
    assert page.evaluate(DROPPED, ["#pg-said", ["one.jsonl"]])
    page.wait_for_function("document.querySelector('[name=history]').value === '{}'")


def test_an_address_that_names_nothing_is_not_ignored_in_silence(
    parts: ModuleType, tmp_path: Path, page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PYODIDE", tmp_path / "none")
    (file := tmp_path / "playground.html").write_text(parts.html(), encoding="utf-8")
    page.goto(f"file://{file}#{'x' * 1000}")
    page.wait_for_selector("#pg-said.pg-bad >> text=names nothing", timeout=SOON_MS)
    assert page.locator("#pg-picture").is_hidden(), "the prepared picture is not what was asked for"
    page.goto("about:blank")
    page.goto(f"file://{file}#pg-said")
    page.wait_for_selector("#playground[data-drawn]", timeout=SOON_MS)
    assert "names nothing" not in page.text_content("#pg-said")


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    """What the worker answers to each request of `played`, computed once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        parts = import_module("playground_page")
    told = {}
    for request, given in (
        *(("simulate", {"moment": f"lease/claim_412 ours:{seed}"}) for seed in (2, 3, 7)),
        ("seek", {"scenario": "lease", "rule": "claim_412 ours", "seed": 4, "runs": 1}),
        ("check", {"history": "no JSON"}), ("step", {"moment": "#play=wal"}),
        ("explore", {"row": "store"}),
    ):  # fmt: skip
        told[f"{request} {given.get('moment', '').rpartition(':')[2]}"] = parts._told(
            request, **given
        )
    told["step "] = told.pop("step #play=wal")
    assert "error" in told["check "] and "replay" not in told["explore "]
    return told


@pytest.fixture
def played(
    parts: ModuleType, tmp_path: Path, page: Any, monkeypatch: pytest.MonkeyPatch, site: Server,
    answers: dict[str, Any],
) -> Any:  # fmt: skip
    """The page; the worker's answers are played, because the real ones take Python in the page."""
    monkeypatch.setattr(parts, "is_there", lambda: True)
    (tmp_path / "playground.html").write_text(parts.html(), encoding="utf-8")
    page.add_init_script(f"""const told = {json.dumps(answers)};
      window.Worker = class {{
        constructor() {{ setTimeout(() => this.onmessage({{ data: {{ ready: true }} }})); }}
        postMessage({{ id, request, given }}) {{
          if (!request) return;
          window.given = JSON.parse(given);
          const seed = /seed=(\\d+)|:(\\d+)$/.exec(window.given.moment ?? "");
          const said = JSON.stringify(told[`${{request}} ${{seed ? seed[1] ?? seed[2] : ""}}`]);
          setTimeout(() => this.onmessage({{ data: {{ id, over: true, said }} }}));
        }}
      }};""")
    page.goto(f"{site.url}/playground.html")
    page.wait_for_selector("#playground[data-ready]", timeout=SOON_MS)
    return page


def said(page: Any, words: str) -> None:
    page.wait_for_selector(f"#pg-said >> text={words}", timeout=SOON_MS)


def test_a_refused_history_leaves_no_result_of_another_tab_on_the_screen(played: Any) -> None:
    assert played.locator("#pg-picture").is_visible()
    played.get_by_role("tab", name="Checker").click()
    played.fill("[name=history]", "no JSON")
    played.locator("#pg-check .pg-main").click()
    played.wait_for_selector("#pg-said.pg-bad", timeout=SOON_MS)
    assert played.locator("#pg-picture").is_hidden() and played.inner_text("#pg-more") == ""


def test_a_tab_shows_its_own_run_and_the_address_of_that_or_nothing(played: Any) -> None:
    played.get_by_role("button", name="+1", exact=True).wait_for(timeout=SOON_MS)
    for seed in ("7", "3"):
        played.fill("#pg-simulate [name=seed]", seed)
        played.get_by_role("button", name="Run", exact=True).click()
        said(played, f"Seed {seed},")
    for tab in ("Checker", "Incident"):
        played.get_by_role("tab", name=tab).click()
        assert played.locator("#pg-picture").is_hidden() and played.inner_text("#pg-said") == ""
        assert "#" not in played.url
    played.get_by_role("tab", name="Stepper").click()
    said(played, "No client has written anything yet")
    assert "#play=" in played.url and played.locator("#pg-picture").is_visible()
    played.get_by_role("tab", name="Simulator").click()
    said(played, "Seed 3,")
    assert "seed=3&" in played.url and played.locator("#pg-picture").is_visible()
    played.go_back()
    said(played, "No client has written anything yet")
    played.go_back()
    played.wait_for_selector("#pg-incident:not([hidden])", timeout=SOON_MS)
    assert played.locator("#pg-picture").is_hidden() and played.inner_text("#pg-said") == ""


def test_a_search_without_a_violation_leaves_no_picture_of_another_tab(played: Any) -> None:
    played.get_by_role("tab", name="Explorer").click()
    played.get_by_role("button", name="Search every order").click()
    said(played, "No violation")
    assert played.locator("#pg-picture").is_hidden()


@pytest.mark.parametrize("width", [800, 1400])
def test_what_is_chosen_in_a_menu_is_not_cut(played: Any, width: int) -> None:
    played.set_viewport_size({"width": width, "height": 900})
    played.locator("[name=scenario] option").nth(1).wait_for(state="attached", timeout=SOON_MS)
    cut = """() => [...document.querySelectorAll("#pg-simulate select")].flatMap((menu) =>
      [...menu.options].flatMap((each) => {
        each.selected = true;
        const { font, paddingLeft, paddingRight } = getComputedStyle(menu);
        const pen = document.createElement("canvas").getContext("2d");
        pen.font = font;
        const room = menu.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight);
        return pen.measureText(each.text).width > room ? [`${each.text}: ${room}`] : [];
      }))"""
    assert played.evaluate(cut) == []
    assert played.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("seed", ["-1", "", "1234567890"])
@pytest.mark.parametrize("button", ["Run", "Find a seed"])
def test_a_seed_that_is_none_gets_a_message_that_names_its_field(
    played: Any, seed: str, button: str
) -> None:
    played.fill("#pg-simulate [name=seed]", seed)
    played.get_by_role("button", name=re.compile(f"^{button}")).click()
    played.wait_for_selector("#pg-said.pg-bad >> text=The seed is a whole", timeout=SOON_MS)


def test_a_reason_of_one_tab_does_not_stay_on_another(played: Any) -> None:
    played.fill("#pg-simulate [name=seed]", "-1")
    played.get_by_role("button", name="Run", exact=True).click()
    played.wait_for_selector("#pg-said.pg-bad", timeout=SOON_MS)
    played.get_by_role("tab", name="Explorer").click()
    assert played.inner_text("#pg-said") == ""


def test_back_shows_the_run_before_and_moves_in_a_run_are_no_stops(played: Any) -> None:
    for seed in ("7", "3"):
        played.fill("#pg-simulate [name=seed]", seed)
        played.get_by_role("button", name="Run", exact=True).click()
        said(played, f"Seed {seed},")
        assert f"seed={seed}&" in played.url, "the address is that of the picture"
    played.get_by_role("button", name="+1", exact=True).click()
    played.wait_for_function(IDLE, timeout=SOON_MS)
    played.go_back()
    said(played, "Seed 7,")
    played.go_back()
    said(played, "Seed 1,")
    played.go_forward()
    said(played, "Seed 7,")


def test_the_next_seed_that_goes_wrong_is_another_one_than_the_one_shown(played: Any) -> None:
    assert played.get_attribute(".lk", "data-verdict") == "INVALID"
    played.get_by_role("button", name="Find a seed").click()
    said(played, "after 1 run.")
    assert played.evaluate("window.given.seed") == 2, "seed 1 is the one on the screen"


@pytest.mark.soak
def test_a_link_opens_the_moment_that_is_played_everywhere(
    parts: ModuleType, site: Server, page: Any
) -> None:
    if not parts.is_there():
        pytest.skip("Pyodide is not there: make docs installs it")
    link = "scenario=lease&seed=18&rule=fence%20off&step=100"
    page.goto(f"{site.url}/playground.html#{link}")
    page.wait_for_selector("#playground[data-ready]", timeout=LOADED_MS)
    page.wait_for_function(IDLE, timeout=LOADED_MS)
    assert page.url.endswith(link)
    expected = play(SeedMoment.of("lease/fence off:18@100")).trace_hash
    assert page.get_attribute("#playground", "data-trace") == expected
    for moment in ("group/any order:85790@200", "striped:7@130", "wal/epoch_read_back:69124@192"):
        page.evaluate("link => { location.hash = link; }", seed_fragment(moment))
        expected = play(SeedMoment.of(moment)).trace_hash
        page.wait_for_selector(f"#playground[data-trace='{expected}']", timeout=LOADED_MS)
    page.evaluate("location.hash = 'scenario=group-archive&seed=1'")
    said(page, "needs pyarrow")
    assert page.get_attribute("#playground", "data-trace") is None, "of the picture before"
    page.evaluate("link => { location.hash = link; }", link)
    page.wait_for_selector("#playground[data-trace]", timeout=LOADED_MS)
    page.get_by_role("button", name="Find a seed that goes wrong").click()
    page.wait_for_function(IDLE, timeout=LOADED_MS)
    assert page.url.endswith("seed=18&rule=fence%20off&step=116")
    assert page.get_attribute(".lk", "data-verdict") == "INVALID"
    rest = "each => each.scrollHeight - each.scrollTop - each.clientHeight"
    assert page.locator(".lk-scroll").evaluate(rest) < 200, "the run is shown at its harm, the end"
    shot(page, "7-playground")
    page.get_by_role("tab", name="Checker").click()
    history = ROOT / "datasets" / "histories" / "good" / "stalled_commit_refused.jsonl"
    page.set_input_files("[name=file]", str(history))
    page.wait_for_selector(".lk[data-verdict=VALID]", timeout=LOADED_MS)
    page.fill("[name=history]", "no JSON\n")
    page.locator("#pg-check .pg-main").click()
    page.wait_for_selector("#pg-said.pg-bad", timeout=LOADED_MS)
    page.get_by_role("tab", name="Explorer").click()
    page.select_option("[name=row]", "claim_412 ours")
    page.get_by_role("button", name="Search every order").click()
    page.wait_for_function("location.hash.startsWith('#search=claim_412')", timeout=LOADED_MS)
    page.get_by_role("tab", name="Stepper").click()
    page.locator(".pg-actor").first.get_by_role("button", name="Answer lost").click()
    page.wait_for_function("location.hash === '#play=lock&decisions=W1%20lose'", timeout=LOADED_MS)
    assert page.locator("#pg-picture .lk-read.lk-look-lost").count() == 1, "a read that got nothing"
    page.get_by_role("button", name="Undo").click()
    page.wait_for_function("location.hash === '#play=lock'", timeout=LOADED_MS)
    page.get_by_role("tab", name="Incident").click()
    page.set_input_files("#pg-incident [name=file]", str(
        ROOT / "datasets" / "incidents" / "hudi-14373-renewal-retried.jsonl"))
    page.wait_for_selector(".pg-card >> text=renewal met a false 412", timeout=LOADED_MS)
    page.wait_for_load_state("networkidle")
    page.context.set_offline(True)
    try:
        page.select_option("#pg-incident [name=known]", "hudi-18438-release-429.jsonl")
        page.wait_for_selector(".pg-card >> text=throttled release", timeout=LOADED_MS)
        page.go_back()
        page.wait_for_selector(".pg-card >> text=renewal met a false 412", timeout=SOON_MS)
        page.go_back()  # the tab before a file was opened in it
        page.wait_for_selector(".pg-card", state="detached", timeout=SOON_MS)
        page.go_back()
        page.wait_for_selector("#pg-tab-step[aria-selected=true]", timeout=LOADED_MS)
        page.go_forward()
        page.go_forward()
        page.wait_for_selector(".pg-card >> text=renewal met a false 412", timeout=SOON_MS)
        page.get_by_role("button", name="Read", exact=True).click()  # what is chosen in the menu
        page.wait_for_selector(".pg-card >> text=throttled release", timeout=LOADED_MS)
    finally:
        page.context.set_offline(False)
    assert elsewhere(page, site) == [] and page.trouble == []
