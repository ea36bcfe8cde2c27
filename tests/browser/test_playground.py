"""The documentation's playground, served as files: its first picture, and Python in the page."""

from __future__ import annotations

import json
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


def test_the_first_picture_needs_no_python(
    parts: ModuleType, tmp_path: Path, page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the disk, as make docs builds it without npm."""
    monkeypatch.setattr(parts, "PYODIDE", tmp_path / "none")
    (file := tmp_path / "playground.html").write_text(parts.html(), encoding="utf-8")
    page.goto(f"file://{file}")
    page.wait_for_selector("#playground[data-drawn][data-failed]", timeout=SOON_MS)
    page.wait_for_selector(".lk[data-ready=true][data-verdict=INVALID]", timeout=SOON_MS)
    assert int(page.get_attribute("#playground", "data-drawn")) < 5_000
    assert page.locator(".lk-arrow").count() > 1
    assert "without Python" in page.text_content("#pg-state")
    assert elsewhere(page) == [] and page.trouble == []


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


def test_a_refused_history_leaves_no_result_of_another_tab_on_the_screen(
    parts: ModuleType, tmp_path: Path, page: Any, monkeypatch: pytest.MonkeyPatch, site: Server
) -> None:
    """The worker's answers are played: the real ones take Python in the page."""
    told = {request: parts._told(request, **given) for request, given in (
        ("simulate", {"moment": "lease:7"}), ("check", {"history": "no JSON"}))}  # fmt: skip
    assert "error" in told["check"], "a refusal"
    monkeypatch.setattr(parts, "is_there", lambda: True)
    (tmp_path / "playground.html").write_text(parts.html(), encoding="utf-8")
    page.add_init_script(f"""const told = {json.dumps(told)};
      window.Worker = class {{
        constructor() {{ setTimeout(() => this.onmessage({{ data: {{ ready: true }} }})); }}
        postMessage({{ id, request }}) {{ setTimeout(() => this.onmessage({{ data: {{
          id, over: true, said: JSON.stringify(told[request]) }} }})); }}
      }};""")
    page.goto(f"{site.url}/playground.html#scenario=lease&seed=7")
    page.wait_for_selector("#pg-said >> text=Seed 7", timeout=SOON_MS)
    assert page.locator("#pg-picture").is_visible()
    page.get_by_role("tab", name="Checker").click()
    page.fill("[name=history]", "no JSON")
    page.locator("#pg-check .pg-main").click()
    page.wait_for_selector("#pg-said.pg-bad", timeout=SOON_MS)
    assert page.locator("#pg-picture").is_hidden() and page.inner_text("#pg-more") == ""


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
    finally:
        page.context.set_offline(False)
    assert elsewhere(page, site) == [] and page.trouble == []
