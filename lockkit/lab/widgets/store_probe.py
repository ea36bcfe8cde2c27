"""The probe's panel: choose a store, predict, probe it, and see what it can be used for."""

from __future__ import annotations

import threading
import traceback
from typing import Any

import ipywidgets as widgets
import plotly.graph_objects as go

from lockkit.errors import StoreError
from lockkit.lab.probe import Report
from lockkit.lab.probe.providers import providers
from lockkit.lab.probe.reads import Reads
from lockkit.lab.widgets.probing import (
    PLACES,
    SAID,
    URL,
    ProbeFindings,
    checks_html,
    look_at,
    look_at_url,
    matrix_html,
    quick_look,
    shown,
    verdict_html,
)

ELSEWHERE = "elsewhere"
STYLE = """<style>
.lp-table{border-collapse:collapse}
.lp-table td,.lp-table th{padding:2px 10px;text-align:left;vertical-align:top;font-size:12px;
line-height:1.4}
.lp-table tr+tr td{border-top:1px solid var(--jp-border-color2,#ddd)}
.lp-checks td:nth-child(-n+2){white-space:nowrap}
.lp-matrix td:is(:nth-child(3),:nth-child(4),:nth-child(5),:nth-child(8)){white-space:nowrap}
.lp-matrix td:nth-child(7){min-width:260px}
.lp-wide{overflow-x:auto}
.lp-table a{color:var(--jp-content-link-color,#0067b8);text-decoration:underline}
.lp-new td{background:var(--jp-layout-color2,#eee);font-weight:600}
.lp-verdict{font-size:15px;font-weight:600;margin:4px 0}
.lp-refusals{font-size:12px;opacity:.75;margin:4px 10px}
.lp-error{border-left:3px solid #D55E00;padding:4px 10px}
.lockkit-probe .good,.lp-table .good{color:#1b6e3c}
.lockkit-probe .bad,.lp-table .bad{color:#b3261e}
body[data-jp-theme-light=false] :is(.lockkit-probe,.lp-table) .good{color:#6fcf97}
body[data-jp-theme-light=false] :is(.lockkit-probe,.lp-table) .bad{color:#ff8a80}
</style>"""

_newest: StoreProbe | None = None


class StoreProbe:
    """Can this store hold a lock? Tested by a click or, the same by code, by `run`.

    Nothing is asked before that. The embedded places are servers of this process, one for each
    run; a URL is asked as the SDKs find it, with the credentials of the environment.
    """

    def __init__(self, *, rounds: int = 20, racers: int = 8, requests: int = 40) -> None:
        """`rounds` of each race, by so many clients; then so many reads of each kind."""
        global _newest
        if _newest is not None:
            _newest.close()
        _newest = self
        self._extent = {"rounds": rounds, "racers": racers, "requests": requests}
        self.findings: ProbeFindings | None = None
        self._worker: threading.Thread | None = None
        self._closed = False
        self._build()

    # --- the panel --------------------------------------------------------------------------------

    def _build(self) -> None:
        places = [(place.label, name) for name, place in PLACES.items()]
        self.place = _named("place", widgets.Dropdown(
            options=[*places, ("another, by its URL", ELSEWHERE)], value="aws",
            description="Store", layout=widgets.Layout(width="360px"),
        ))  # fmt: skip
        self.url = _named("url", widgets.Text(URL, description="URL"))
        self.endpoint = _named("endpoint", widgets.Text(
            "", description="Endpoint", placeholder="https://... (empty: the provider's own)",
        ))  # fmt: skip
        guesses = [("– predict first –", None), *((said, each) for each, said in SAID.items())]
        self.prediction = _named("prediction", widgets.Dropdown(
            options=guesses, value=None, description="It is", layout=widgets.Layout(width="300px"),
        ))  # fmt: skip
        self.button = _named("start", widgets.Button(
            description="Probe", icon="play", button_style="success", disabled=True,
            tooltip="Scratch objects are written there, and deleted afterwards",
        ))  # fmt: skip
        self._status = _named("status", widgets.HTML("Predict, then press Probe."))
        self._verdict, self._checks = widgets.HTML(), widgets.HTML()
        self._verdict.add_class("lockkit-verdict")
        self._matrix = widgets.HTML(STYLE + matrix_html(providers()))
        folded = widgets.Accordion([self._matrix], titles=("What is known of each provider",))
        self._figure = figure()
        self._chart = widgets.Box([self._figure], layout=widgets.Layout(display="none"))
        self._address = widgets.HBox([self.url, self.endpoint])
        self.place.observe(self._chosen, "value")
        self.prediction.observe(self._chosen, "value")
        self.button.on_click(self._clicked)
        self._chosen(None)
        self.view = widgets.VBox([
            widgets.HTML(STYLE), widgets.HBox([self.place, self.prediction, self.button]),
            self._address, self._status, self._verdict, self._checks, self._chart, folded,
        ])  # fmt: skip
        self.view.add_class("lockkit-probe")

    def _chosen(self, _change: Any) -> None:
        self._address.layout.display = "flex" if self.place.value == ELSEWHERE else "none"
        busy = self._worker is not None and self._worker.is_alive()
        self.button.disabled = busy or self._closed or self.prediction.value is None

    def _clicked(self, _: Any) -> None:
        """The callback only starts: a probe takes seconds, and the page must not freeze."""
        self.button.disabled = True
        self._worker = threading.Thread(target=self._work, name="lockkit-probe", daemon=True)
        self._worker.start()

    def _work(self) -> None:
        try:
            if self.place.value == ELSEWHERE:
                self.run(url=self.url.value.strip(), endpoint=self.endpoint.value.strip() or None)
            else:
                self.run(self.place.value)
        except Exception as error:  # noqa: BLE001 - a thread has nobody to raise to: it is shown
            self._failed(error)
        finally:
            self._worker = None
            self._chosen(None)

    # --- the same by code -------------------------------------------------------------------------

    def run(
        self, place: str = "", *, url: str = "", endpoint: str | None = None, **extent: int
    ) -> ProbeFindings:
        """Probe an embedded place by its name, or any store by its URL; also shown in the panel.

        `rounds`, `racers` and `requests` as for the panel itself.
        """
        self._say("Asking…")
        extent = self._extent | extent

        def emit(_kind: str, **fields: Any) -> None:
            self._say(f"{fields.get('text', '')}…")

        if url:
            findings = look_at_url(url, endpoint, **extent, emit=emit)
        else:
            findings = look_at(place, **extent, emit=emit)
        if not self._closed:
            self.show(findings)
        return findings

    def quick(self, place: str) -> Report:
        """The same without races: what one request after another can tell."""
        return quick_look(place)

    def show(self, findings: ProbeFindings) -> None:
        self.findings = findings
        self._verdict.value = verdict_html(findings, self.prediction.value)
        self._checks.value = checks_html(findings.report)
        self._matrix.value = STYLE + matrix_html(providers(), findings.found)
        draw(self._figure, findings.reads)
        self._chart.layout.display = "flex" if findings.reads else "none"
        self._say("Done." if findings.report.safe else "Done: no place for a lock.")

    def close(self) -> None:
        """Leave the panel without effect; a probe under way ends by itself."""
        self._closed = True
        self.button.disabled = True
        self._say("This panel was closed: its cell was run again. Use that one.")

    def _say(self, text: str) -> None:
        self._status.value = f"<span role='status'>{shown(text)}</span>"

    def _failed(self, error: Exception) -> None:
        self._checks.value = self._verdict.value = ""
        self._matrix.value = STYLE + matrix_html(providers())
        self._chart.layout.display = "none"
        told = f"<div class='lp-error'>{shown(error)}"
        if not isinstance(error, (StoreError, ValueError)):
            lines = "".join(traceback.format_exception(error))
            told += f"<details><summary>traceback</summary><pre>{shown(lines)}</pre></details>"
        self._status.value = f"{told}</div>"

    def __repr__(self) -> str:
        return f"StoreProbe({self.findings.sentence if self.findings else 'nothing probed yet'})"

    def _repr_mimebundle_(self, **options: Any) -> Any:
        bundle = self.view._repr_mimebundle_(**options)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        data["text/plain"] = repr(self)
        return bundle


# --- the picture ----------------------------------------------------------------------------------


def figure() -> Any:
    """Two bars for each size, p50, with a whisker to p99; filled by `draw`."""
    bars = [
        go.Bar(name="read it again", marker_color="#0072B2"),
        go.Bar(name="ask whether it changed (304)", marker_color="#E69F00"),
    ]
    clear = "rgba(0,0,0,0)"  # on a dark page too
    return go.FigureWidget(bars, layout=go.Layout(
        title="What a 304 saves: p50, whisker to p99", yaxis_title="ms", barmode="group",
        height=320, autosize=True, margin={"t": 50, "b": 40}, paper_bgcolor=clear,
        legend={"orientation": "h", "y": -0.12},
        plot_bgcolor=clear, font_color="#808890", yaxis_gridcolor="rgba(128,136,144,.25)",
    ))  # fmt: skip


def draw(chart: Any, reads: tuple[Reads, ...]) -> None:
    kinds = [[each for each in reads if each.kind == kind] for kind in ("whole", "conditional")]
    with chart.batch_update():
        for bar, same in zip(chart.data, kinds, strict=True):
            bar.x = [f"{each.size:,} bytes" for each in same]
            bar.y = [each.p50_ms for each in same]
            bar.error_y = {
                "array": [each.p99_ms - each.p50_ms for each in same],
                "arrayminus": [0.0] * len(same), "color": "#808890",
            }  # fmt: skip
            bar.customdata = [[each.p99_ms, each.per_s, each.bytes_each] for each in same]
            bar.hovertemplate = (
                "p50 %{y:.2f} ms, p99 %{customdata[0]:.2f} ms<br>%{customdata[1]:,.0f} requests/s"
                "<br>%{customdata[2]:,.0f} bytes received"
            )


def _named(name: str, widget: Any) -> Any:
    """A class in the page by which a test finds it."""
    widget.add_class(f"lockkit-probe-{name}")
    return widget

