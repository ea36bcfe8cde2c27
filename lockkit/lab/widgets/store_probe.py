"""The probe's panel: choose a store, predict, probe it, and see what it can be used for."""

from __future__ import annotations

from typing import Any

import ipywidgets as widgets
import plotly.graph_objects as go

from lockkit.lab.probe.providers import CAPABILITIES, providers
from lockkit.lab.probe.reads import Reads
from lockkit.lab.widgets.errand import BackgroundTask
from lockkit.lab.widgets.probing import (
    PLACES,
    SAID,
    URL,
    ProbeFindings,
    checks_html,
    look_at,
    look_at_url,
    matrix_html,
    verdict_html,
)
from lockkit.lab.widgets.ui import (
    AXIS,
    GREY,
    FitFigures,
    Newest,
    Status,
    button,
    choice,
    column,
    figure_widget,
    named,
    plot_layout,
    row,
)
from lockkit.sinks import silent

ELSEWHERE = "elsewhere"
BARS_OF_CHART = 3.0
"""So many times as high as the longest bar is the chart at most."""
HEADS = ("basis", *CAPABILITIES.values(), "verdict", "limits and traps", "as of")
STYLE = """<style>
.lp-checks td:nth-child(-n+2){white-space:nowrap}.lp-checks td{overflow-wrap:anywhere}
.lockkit-probe summary{cursor:pointer;font-size:12px}
.lp-matrix a{color:var(--jp-content-link-color,#0067b8);text-decoration:underline}
.lp-new tr:nth-child(2) td{background:var(--jp-layout-color2,#eee);font-weight:600}
.lp-verdict{font-size:15px;font-weight:600;margin:4px 0}
.lockkit-probe .lk-wide{container-type:inline-size}
@container (min-width:1000px){
.lp-matrix td:is(:nth-child(-n+7),:nth-child(10)){white-space:nowrap}}
@container (max-width:999px){
.lp-matrix :is(tbody,tr){display:block}.lp-matrix tr:first-child{display:none}
.lp-matrix tr+tr{border-top:1px solid var(--jp-border-color2,#ddd);padding:4px 0}
.lp-matrix tr td{border:0!important;display:inline;padding:0}
.lp-matrix td:not(:last-child)::after{content:'; '}
.lp-matrix td::before{opacity:.7;font-weight:400}.lp-matrix td:first-child{font-weight:600}
""" + "".join(
    f".lp-matrix td:nth-child({n})::before{{content:'{head}: '}}" for n, head in enumerate(HEADS, 2)
) + """}
</style>"""
"""The matrix is a table where it has room, and elsewhere one paragraph for each store."""


class StoreProbe(Newest):
    """Can this store hold a lock? Tested by a click or, without the panel, by `run`.

    The panel shows what a reader has probed by a click, or what `show` is given. No request is sent
    before that. The embedded places are servers in this process, a new one for each run. A URL is
    probed through the SDKs, with the credentials of the environment.

    :param rounds: of each race.
    :param racers: clients in each race.
    :param requests: reads of each kind that are timed.
    """

    def __init__(self, *, rounds: int = 20, racers: int = 8, requests: int = 40) -> None:
        """`rounds` of each race by `racers` clients; then `requests` reads of each kind."""
        self.close_older()
        self._extent = {"rounds": rounds, "racers": racers, "requests": requests}
        self.findings: ProbeFindings | None = None
        self._errand = BackgroundTask(self._failed, self._enable)
        self._closed = False
        self._build()

    # --- the panel --------------------------------------------------------------------------------

    def _build(self) -> None:
        places = [(place.label, name) for name, place in PLACES.items()]
        self.place = choice(
            "Store", [*places, ("another, by its URL", ELSEWHERE)], "aws", "320px",
            name="probe-place",
        )  # fmt: skip
        self.url = named(widgets.Text(URL, description="URL"), "probe-url")
        self.endpoint = named(widgets.Text(
            "", description="Endpoint", placeholder="https://... (empty: the provider's own)",
        ), "probe-endpoint")  # fmt: skip
        guesses = [("– predict first –", ""), *((said, each) for each, said in SAID.items())]
        self.prediction = choice("It is", guesses, "", "300px", name="probe-prediction")
        self.button = button(
            "Probe", self._clicked, name="probe-start", icon="play", style="success",
            tip="Writes scratch objects there, and deletes them afterwards",
        )  # fmt: skip
        self._status = named(Status(), "probe-status")
        self._status.say("Predict, then press Probe.")
        self._verdict, self._checks = named(widgets.HTML(), "verdict"), widgets.HTML()
        self._matrix = widgets.HTML(STYLE + matrix_html(providers()))
        folded = widgets.Accordion([self._matrix], titles=("What is known about each provider",))
        self._chart = widgets.VBox()
        self._address = row(self.url, self.endpoint)
        self.place.observe(self._chosen, "value")
        self.prediction.observe(self._chosen, "value")
        self._chosen(None)
        self.view = column(
            "probe", row(self.place, self.prediction, self.button), self._address,
            self._status, self._verdict, self._checks, self._chart, folded,
        )  # fmt: skip

    def _chosen(self, _change: Any) -> None:
        self._address.layout.display = "flex" if self.place.value == ELSEWHERE else "none"
        self._enable(busy=not self._errand.idle)

    def _enable(self, busy: bool) -> None:
        self.button.disabled = busy or self._closed or not self.prediction.value

    def _clicked(self) -> None:
        place, url = self.place.value, self.url.value.strip()
        endpoint = self.endpoint.value.strip() or None
        self._status.say("Probing…")

        def emit(_kind: str, **fields: Any) -> None:
            self._status.say(f"{fields.get('text', '')}…")

        def look(_: object) -> None:
            if place == ELSEWHERE:
                found = look_at_url(url, endpoint, **self._extent, emit=emit)
            else:
                found = look_at(place, **self._extent, emit=emit)
            if not self._closed:
                self.show(found)

        self._errand.ask(look)

    # --- by code ----------------------------------------------------------------------------------

    def run(
        self, place: str = "", *, url: str = "", endpoint: str | None = None, **extent: int
    ) -> ProbeFindings:
        """Probe an embedded place by its name, or any store by its URL.

        `rounds`, `racers` and `requests` as for the panel itself, which does not change: a reader's
        guess there may be open.
        """
        extent = self._extent | extent
        if url:
            return look_at_url(url, endpoint, **extent, emit=silent)
        return look_at(place, **extent, emit=silent)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the clicked action is done; return whether it is."""
        return self._errand.wait(timeout_s)

    def show(self, findings: ProbeFindings) -> None:
        self.findings = findings
        self._verdict.value = verdict_html(findings, self.prediction.value or None)
        self._checks.value = checks_html(findings.report)
        self._matrix.value = STYLE + matrix_html(providers(), findings.found)
        self._charted(*([FitFigures()] if findings.reads else []))
        if findings.reads:
            self._chart.children = (*self._chart.children, figure(findings.reads))
        self._status.say("Done." if findings.report.safe else "Done: not safe for a lock.")

    def close(self) -> None:
        """Disable the panel; a running probe ends by itself."""
        self._closed = True
        self.button.disabled = True
        self._status.say("This panel was closed because its cell was run again. Use the newer one.")

    def _failed(self, error: Exception) -> None:
        self._checks.value = self._verdict.value = ""
        self._matrix.value = STYLE + matrix_html(providers())
        self._charted()
        self._status.fail(error)

    def _charted(self, *widgets_: Any) -> None:
        """Replace the chart, or remove it."""
        before, self._chart.children = self._chart.children, widgets_
        for each in before:
            each.close()

    def __repr__(self) -> str:
        return f"StoreProbe({self.findings.sentence if self.findings else 'nothing probed yet'})"


# --- the picture ----------------------------------------------------------------------------------


def figure(reads: tuple[Reads, ...]) -> Any:
    """Two bars for each size, p50, with a whisker to p99.

    On a busy machine one slow request would press the bars flat: such a whisker leaves the chart.
    """
    highest_ms = BARS_OF_CHART * max((each.p50_ms for each in reads), default=0.0)
    longest_ms = max((each.p99_ms for each in reads), default=0.0)
    leaves = longest_ms > highest_ms
    title = "What a 304 saves: p50, whisker to p99"
    if leaves:
        title += f"<br><sup>the longest whisker leaves the chart: {longest_ms:.0f} ms</sup>"
    bars = [
        _bars([each for each in reads if each.kind == kind], name, colour)
        for kind, name, colour in (
            ("whole", "full read", "#0072B2"),
            ("conditional", "conditional read (304)", "#E69F00"),
        )
    ]
    return figure_widget(go.Figure(bars, layout=plot_layout(
        title={"text": title, "font": {"size": 14}},
        barmode="group", height=250,  # a legend whose place depends on the axis meets its labels
        margin={"t": 50, "b": 70}, legend={"orientation": "h", "yref": "container", "y": 0},
        yaxis={"title": {"text": "ms"}, **AXIS} | ({"range": [0, highest_ms]} if leaves else {}),
    )))  # fmt: skip


def _bars(reads: list[Reads], name: str, colour: str) -> go.Bar:
    return go.Bar(
        name=name, marker_color=colour,
        x=[f"{each.size:,} bytes" for each in reads], y=[each.p50_ms for each in reads],
        error_y={"array": [each.p99_ms - each.p50_ms for each in reads],
                 "arrayminus": [0.0] * len(reads), "color": GREY},
        customdata=[[each.p99_ms, each.per_s, each.bytes_each] for each in reads],
        hovertemplate="p50 %{y:.2f} ms, p99 %{customdata[0]:.2f} ms"
                      "<br>%{customdata[1]:,.0f} requests/s"
                      "<br>%{customdata[2]:,.0f} bytes received",
    )  # fmt: skip
