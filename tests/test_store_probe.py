"""The probe's panel without a browser: predict first, one sentence, nobody's text is markup."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from lockkit.errors import StoreError
from lockkit.lab.probe import Check, CheckOutcome, Report, Suitability
from lockkit.lab.probe.reads import Reads

pytest.importorskip("ipywidgets", reason="make test installs ipywidgets")

from lockkit.lab.widgets import StoreProbe
from lockkit.lab.widgets.probing import (
    PLACES,
    checks_html,
    matrix_html,
    quick_look,
    verdict_html,
)
from lockkit.lab.widgets.store_probe import figure

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


@pytest.fixture
def panel() -> Iterator[StoreProbe]:
    panel = StoreProbe(rounds=1, racers=2, requests=2)
    yield panel
    panel.close()


def click(panel: StoreProbe) -> str:
    """Press Probe and wait for the end; everything that the panel says then."""
    panel.button.click()
    assert panel.wait(60)
    return panel._status.value + panel._verdict.value + panel._checks.value + panel._matrix.value


def test_no_request_is_sent_before_a_prediction(panel: StoreProbe) -> None:
    assert panel.button.disabled and panel.findings is None
    panel.prediction.value = Suitability.FULL
    assert not panel.button.disabled
    panel.prediction.value = ""
    assert panel.button.disabled


def test_a_click_shows_in_one_sentence_whether_the_store_is_safe_and_the_prediction(
    panel: StoreProbe,
) -> None:
    panel.place.value, panel.prediction.value = "spaces", Suitability.FULL
    said = click(panel)
    assert "not safe to lock on: it ignores conditions" in said
    assert "You predicted: no violation in any race. " in said
    assert "The probe found: it ignores conditions." in said
    assert "That agrees with what DigitalOcean Spaces documents" in said
    assert not panel.button.disabled
    panel.prediction.value = Suitability.IGNORES_CONDITIONS
    assert "You predicted that." in click(panel)
    assert "not safe" in repr(panel)


def test_a_probe_by_code_is_no_answer_on_a_panel_whose_guess_is_open(panel: StoreProbe) -> None:
    panel.place.value, before = "gcs", panel._status.value
    assert not panel.run("spaces").report.safe
    assert (panel.place.value, panel._status.value) == ("gcs", before)
    assert panel.findings is None and panel._verdict.value == panel._checks.value == ""


def test_the_findings_are_in_the_checks_the_matrix_and_the_picture(panel: StoreProbe) -> None:
    findings = panel.run("aws")
    panel.show(findings)
    assert findings.report.safe and findings.known is not None
    assert "compare-and-set-race" in panel._checks.value
    assert "what was probed here" in panel._matrix.value
    _, drawn = panel._chart.children
    whole, asked = drawn.data
    assert list(whole.x) == list(asked.x) == ["1,024 bytes", "1,048,576 bytes"]
    assert [each.p50_ms for each in findings.reads] == [
        whole.y[0], asked.y[0], whole.y[1], asked.y[1]
    ]  # fmt: skip
    panel.show(findings)
    assert panel._chart.children[1] is not drawn, "a page may lose what changes in a figure"
    assert drawn.comm is None, "the figure before has left the kernel"


def test_the_sentence_names_the_store_that_was_probed(panel: StoreProbe) -> None:
    assert panel.run("spaces").sentence.startswith("DigitalOcean Spaces is not safe to lock on")
    assert quick_look("rgw").conclusion.startswith("Ceph RGW")


def test_sequential_requests_do_not_reveal_faults_that_need_a_race(panel: StoreProbe) -> None:
    assert quick_look("two-steps").verdict is Suitability.UNTESTED
    assert panel.run("two-steps", rounds=5, racers=6).report.verdict is Suitability.NOT_ATOMIC


def test_a_versioned_bucket_has_a_verdict_of_its_own(panel: StoreProbe) -> None:
    assert quick_look("rgw").verdict is Suitability.UNTESTED
    assert quick_look("rgw, versioned bucket").verdict is Suitability.IGNORES_CONDITIONS


def test_any_named_endpoint_is_probed(panel: StoreProbe, emulator: Any) -> None:
    findings = panel.run(url="s3://bucket/here", endpoint=emulator.s3)
    assert findings.report.safe and findings.known is None
    assert "documents" not in verdict_html(findings)


def test_an_unknown_place_is_named_with_those_that_there_are(panel: StoreProbe) -> None:
    with pytest.raises(ValueError, match="no place 'azuer'; there are aws, gcs, azure"):
        panel.run("azuer")
    with pytest.raises(StoreError, match="scheme"):
        panel.run(url="ftp://host/x")


def test_a_new_panel_leaves_the_one_before_without_effect(panel: StoreProbe) -> None:
    StoreProbe().close()
    panel.prediction.value = Suitability.FULL
    assert panel.button.disabled and "closed" in panel._status.value


# --- hostile text ---------------------------------------------------------------------------------


class Rude(BaseHTTPRequestHandler):
    """Markup wherever a server can put any."""

    def do_GET(self) -> None:
        body = f"<Error><Code>{HOSTILE}</Code><Message><![CDATA[{HOSTILE}]]></Message></Error>"
        self.send_response(400, HOSTILE)
        self.send_header("Server", HOSTILE)
        self.send_header("ETag", HOSTILE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    do_PUT = do_HEAD = do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        pass


def test_the_panel_escapes_a_servers_answers(panel: StoreProbe) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Rude) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        panel.place.value, panel.prediction.value = "elsewhere", Suitability.FULL
        panel.endpoint.value = f"http://127.0.0.1:{server.server_port}"
        said = click(panel)
        panel.url.value = f"s3://{HOSTILE}/x"
        said += click(panel)
        server.shutdown()
    assert "lk-error" in said and "<img" not in said


def test_every_table_escapes_what_it_shows(panel: StoreProbe) -> None:
    findings = panel.run("spaces")
    report = Report(
        HOSTILE, Suitability.REFUSED, HOSTILE, (Check(HOSTILE, CheckOutcome.FAILED, HOSTILE),),
        ((400, HOSTILE, 1),),
    )  # fmt: skip
    row = replace(findings.found, store=HOSTILE, limits_and_traps=HOSTILE, create_if_absent=HOSTILE)
    shown = replace(findings, report=report, found=row, known=row)
    passed = replace(report, checks=(Check(HOSTILE, CheckOutcome.PASSED, HOSTILE),))
    for html in (verdict_html(shown), checks_html(report), checks_html(passed),
                 matrix_html([row], row)):  # fmt: skip
        assert "&lt;img" in html and "<img" not in html
    link = replace(row, source='https://x"><img src=x>')
    assert "<img" not in matrix_html([link]) and "href" not in matrix_html([row])


def test_checks_that_passed_or_were_noted_are_folded_so_that_the_others_are_seen() -> None:
    race = Check("race", CheckOutcome.FAILED, "two won")
    noted = Check("write-rate", CheckOutcome.NOTED, "none throttled")
    checks = (noted, race, Check("read", CheckOutcome.PASSED, "it is"))
    report = Report("a store", Suitability.NOT_ATOMIC, "", checks, ())
    seen, folded, below = checks_html(report).split("<details>")
    assert "two won" in seen and "it is" not in seen
    assert "1 passed: read" in folded and "it is" in folded
    assert "1 noted: write-rate" in below and "none throttled" in below


def test_every_place_is_of_the_embedded_server() -> None:
    from lockkit.lab.server.profiles import PROFILES

    assert {place.profile for place in PLACES.values()} == set(PROFILES)


@pytest.mark.parametrize("slowest_ms", [2.0, 90.0])
def test_one_slow_request_does_not_press_the_bars_of_the_chart_flat(slowest_ms: float) -> None:
    reads = [Reads(size=size, kind=kind, took_ms=(1.0, 1.0, slowest_ms), unchanged=0, bytes_each=1)
             for size in (100, 10_000) for kind in ("whole", "conditional")]  # fmt: skip
    drawn = figure(tuple(reads))
    said = drawn.layout.title.text
    assert drawn.layout.yaxis.range == (None if slowest_ms < 3 else (0, 3.0))
    assert ("leaves the chart: 90 ms" in said) == (slowest_ms > 3)
