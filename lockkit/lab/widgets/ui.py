"""The parts of every panel: its view, its buttons, its status line and escaped tables."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Hashable, Iterable
from functools import cache
from html import escape
from typing import Any, ClassVar

import anywidget
import ipywidgets as widgets
import traitlets

from lockkit.errors import LockkitError
from lockkit.events import plain

TEXT_CHARS_MAX = 1_000
TRACE_CHARS_MAX = 20_000
EXPECTED = (LockkitError, ValueError, OSError)
"""Errors that say what happened and what to do; any other is a bug and shows its traceback."""

FAST = "LOCKKIT_FAST"
"""Set to 1 to let notebooks run by themselves: plain writers, short leases, first guesses."""
GREY = "#808890"
"""Legible on a light and on a dark page."""
CLEAR = "rgba(0,0,0,0)"
AXIS = {"gridcolor": "rgba(128,136,144,.25)", "zeroline": False}
STYLE = """<style>
:root{--lk-bad:#b3261e;--lk-warn:#8a5a00;--lk-good:#1b6e3c}
body[data-jp-theme-light=false]{--lk-bad:#ff8a80;--lk-warn:#f0b43c;--lk-good:#6fcf97}
.lk-panel .bad{color:var(--lk-bad)}.lk-panel .warn{color:var(--lk-warn)}
.lk-panel .good{color:var(--lk-good)}
.lk-table{border-collapse:collapse}
.lk-table td,.lk-table th{padding:2px 12px 2px 0;text-align:left;vertical-align:top;font-size:12px;
line-height:1.45}
.lk-table tr+tr td{border-top:1px solid var(--jp-border-color2,#ddd)}
.lk-panel .widget-html-content{line-height:1.5}
.lk-panel .lockkit-chosen{display:none;line-height:1.4}
@media (max-width:900px){.lk-panel .lockkit-chosen{display:block}}
.lk-panel :is(.widget-dropdown,.widget-text,.widget-slider){max-width:calc(100% - 4px)}
.lk-panel .js-plotly-plot{max-width:100%;overflow:hidden}
.lk-panel :is(button,select,input,[tabindex]):focus-visible{outline:2px solid \
var(--jp-brand-color1,#1a6fc4)!important;outline-offset:1px}
.lk-wide{overflow-x:auto}
.jp-OutputArea-output pre,.jp-RenderedMarkdown code{word-break:normal;overflow-wrap:anywhere}
.lk-note{font-size:12px;opacity:.8;margin:2px 0}
.lk-note a{color:var(--jp-content-link-color,#0067b8);text-decoration:underline}
.lk-error{border-left:4px solid var(--lk-bad);padding:4px 12px;font-size:13px;line-height:1.45;
overflow-wrap:anywhere}
.lk-error b{color:var(--lk-bad)}
.lk-panel.jupyter-widgets-disconnected::before{content:"Disconnected: the kernel that this panel \
belongs to has ended.";display:block;color:var(--lk-bad);font:600 13px sans-serif;margin:2px 0 4px}
.jp-NotebookPanel .lk-panel.jupyter-widgets-disconnected::before{content:"Disconnected: the kernel \
was restarted or has ended. Run this cell again."}
.lk-panel.jupyter-widgets-disconnected .jupyter-widgets-disconnected::before{display:none}
.lk-panel.jupyter-widgets-disconnected :is(button,select,input):not(.lk *,summary)\
{pointer-events:none;opacity:.5}
</style>"""
"""A page gives the class `jupyter-widgets-disconnected` to each widget of a kernel that has ended.
The buttons of the picture still work, because they need no kernel."""


# --- text ---------------------------------------------------------------------------------------


def shown(text: object, *, limit: int = TEXT_CHARS_MAX) -> str:
    """Text from a bucket, a log or a file: without control characters, bounded and escaped."""
    return escape(plain(text, limit=limit))


class Html(str):
    """Trusted markup, which a table does not escape."""


def table(
    head: Iterable[object], rows: Iterable[Iterable[object]], name: str = "", *,
    limit: int = TEXT_CHARS_MAX,
) -> Html:  # fmt: skip
    """An HTML table; every cell that is not `Html` is escaped. `name` is a class of it."""

    def line(cells: Iterable[object], tag: str) -> str:
        return "".join(
            f"<{tag}>{each if isinstance(each, Html) else shown(each, limit=limit)}</{tag}>"
            for each in cells
        )

    top = line(head, "th")
    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return Html(f"<table class='lk-table {name}'>{f'<tr>{top}</tr>' if top else ''}{body}</table>")


def coloured(text: object, colour: str) -> Html:
    """`colour` is good, bad, warn or nothing."""
    return Html(f"<span class='{colour}'>{shown(text)}</span>")


def error_html(error: BaseException | str) -> str:
    """The error's message; the traceback of a bug is folded."""
    trace = ""
    if isinstance(error, BaseException):
        what = str(error) or type(error).__name__
        if not isinstance(error, EXPECTED):
            what = f"{type(error).__name__}: {error}. This is a bug in the panel."
            trace = "".join(traceback.format_exception(error))
    else:
        what = error
    lines = f"<pre>{escape(trace[-TRACE_CHARS_MAX:])}</pre>"
    folded = f"<details><summary>traceback</summary>{lines}</details>" if trace else ""
    return f"<div class='lk-error' role='alert'><b>✗</b> {shown(what)}{folded}</div>"


# --- widgets ------------------------------------------------------------------------------------


class Shown:
    """Shows `view` in a page and `repr` in a terminal."""

    view: Any

    def _repr_mimebundle_(self, **options: Any) -> Any:
        bundle = self.view._repr_mimebundle_(**options)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        data["text/plain"] = repr(self)
        return bundle


class Newest(Shown):
    """A panel with one live instance: running its cell again closes the earlier one."""

    _alive: ClassVar[dict[Hashable, Newest]] = {}

    def close_older(self, key: str = "") -> None:
        """Call it first. Panels with different keys live side by side."""
        if before := self._alive.pop((type(self), key), None):
            before.close()
        self._alive[type(self), key] = self

    def close(self) -> None:
        """End what runs and disable the panel."""
        raise NotImplementedError


class Status(widgets.HTML):  # type: ignore[misc]  # ipywidgets has no types
    """A status line, also announced by a screen reader."""

    def say(self, text: str) -> None:
        self.say_html(shown(text))

    def say_html(self, html: str) -> None:
        self.value = f"<span class='lk-note' role='status'>{html}</span>"

    def fail(self, error: BaseException | str) -> None:
        self.value = error_html(error)


def named(widget: Any, *names: str) -> Any:
    """Add classes by which a style or a test finds the widget: `lockkit-` and the name."""
    for each in names:
        widget.add_class("lockkit-" + each.lower().replace(" ", "-"))
    return widget


def button(
    text: str, press: Callable[[], object] | None = None, *, name: str = "", tip: str = "",
    icon: str = "", style: str = "", **layout: str,
) -> widgets.Button:  # fmt: skip
    """A button as wide as its text; `press` runs in the page's callback and must return at once."""
    made = widgets.Button(
        description=text, tooltip=tip, icon=icon, button_style=style,
        layout=widgets.Layout(width="auto", **layout),
    )  # fmt: skip
    if press is not None:
        made.on_click(lambda _: press())
    return named(made, name or text)


def choice(label: str, options: Any, value: Any, width: str, *, name: str = "") -> widgets.Dropdown:
    """A drop-down list with its label in front, neither of them cut off."""
    return named(widgets.Dropdown(
        options=options, value=value, description=label,
        style={"description_width": "initial"}, layout=widgets.Layout(width=width),
    ), name or label)  # fmt: skip


def row(*children: Any, align: str = "center") -> widgets.HBox:
    """Side by side; what does not fit goes to the next line."""
    return widgets.HBox(children, layout=row_layout(align))


def row_layout(align: str = "center") -> widgets.Layout:
    return widgets.Layout(flex_flow="row wrap", align_items=align, grid_gap="2px 8px")


def column(name: str, *children: Any, **layout: str) -> widgets.VBox:
    """A panel's parts below each other, with the styles that they share."""
    style = widgets.HTML(STYLE, layout=widgets.Layout(display="none"))
    view = widgets.VBox([*children, style, DrawAgain()], layout=widgets.Layout(**layout))
    view.add_class("lk-panel")
    return named(view, name)


class DrawAgain(anywidget.AnyWidget):
    """Draws the widgets of a reloaded notebook for which JupyterLab says "model not found".

    JupyterLab looks for a widget's model every 100 ms for two seconds, and not again after the last
    pause. On a busy page that pause is long, and the model arrives in it. The script of a model
    runs without a view, so it can show such an output again.
    """

    _esm = """
    const VIEW = "application/vnd.jupyter.widget-view+json";
    const failed = () => [...document.querySelectorAll(".jupyter-widgets")]
      .some((each) => each.textContent === "Error displaying widget: model not found");
    const again = async (manager) => {
      for (const { outputs } of manager.context?.model?.cells ?? []) {
        for (let i = 0; i < (outputs?.length ?? 0); i += 1) {
          const id = outputs.get(i).data[VIEW]?.model_id;
          const views = manager.has_model(id) && (await manager.get_model(id)).views;
          if (views && !Object.keys(views).length) outputs.set(i, outputs.get(i).toJSON());
        }
      }
    };
    export default {
      initialize: ({ model: { widget_manager: manager } }) => {
        if (manager.lockkitDrawAgain) return;  // one script for all panels of a page
        manager.lockkitDrawAgain = true;
        const timer = setInterval(() => { if (failed()) again(manager); }, 1000);
        setTimeout(() => clearInterval(timer), 60000);
      },
      render: () => {},
    };
    """

    def __init__(self) -> None:
        super().__init__(layout=widgets.Layout(display="none"))


PLOTLY = """
const load = (source) => globalThis.lockkitPlotly ??=
  import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
export default () => {
  let made;  // one for each figure
  const make = (model) => made ??= load(model.get("source")).then(({ default: plotly }) => {
    const figure = plotly();
    figure.initialize({ model });
    return figure;
  });
  return {
    initialize: ({ model }) => { make(model); },
    render: async ({ model, el }) => (await make(model)).render({ model, el }),
  };
};
"""
"""If a widget's module is not loaded within two seconds, its page drops every later message for it
(anywidget 0.11). Plotly takes longer on a busy machine, so this small module loads it, once."""


@cache
def load_plotly() -> Any:
    """The class of plotly's widgets, with the small module; its import takes seconds."""
    from plotly.graph_objects import FigureWidget

    class LoadedLater(FigureWidget):  # type: ignore[misc]
        _esm = PLOTLY
        source = traitlets.Unicode(str(FigureWidget._esm)).tag(sync=True)

    return LoadedLater


def figure_widget(figure: Any) -> Any:
    """A plotly figure as a widget, with all of its traces.

    A trace that is added to a widget while the page still loads plotly never appears there.
    """
    made = load_plotly()(figure)
    made._config = {"responsive": True, "displayModeBar": False}  # it hid the title
    return made


class FitFigures(anywidget.AnyWidget):
    """Makes the page's plotly figures as wide as their panels. Put it there before a figure.

    Until the page has loaded plotly, it says so. Plotly draws a figure 700 pixels wide before it
    is in the page. Later, only an event of the window makes a responsive figure fit.

    :param fill: is called once a page has drawn a figure: what was sent before did not arrive.
    """

    _css = ".lockkit-fits:has(~ .js-plotly-plot) { display: none; }"
    _esm = """
    export function render({ model, el }) {
      el.classList.add("lockkit-fits", "lk-note");
      el.textContent = "Loading the chart\u2026";
      const watch = new ResizeObserver(() => window.dispatchEvent(new Event("resize")));
      const drawn = ({ detail }) => {
        watch.observe(detail.element);
        model.send({});
      };
      document.addEventListener("plotlywidget-after-render", drawn);
      for (const each of document.querySelectorAll(".js-plotly-plot")) watch.observe(each);
      return () => {
        watch.disconnect();
        document.removeEventListener("plotlywidget-after-render", drawn);
      };
    }
    """

    def __init__(self, fill: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.on_msg(lambda *_: fill())


def refill(figure: Any, fill: Callable[[], None]) -> None:
    """Send a figure's points again: after none, because plotly sends only what has changed.

    What was sent while a page loaded plotly did not arrive. A page that is loaded again has the
    points with which the figure was made.
    """
    with figure.batch_update():
        for trace in figure.data:
            trace.x = trace.y = ()
    fill()


def plot_layout(**more: Any) -> dict[str, Any]:
    """A plotly figure's layout for a light and a dark page; its tools leave room for its title."""
    tools = ["zoom", "pan", "select", "lasso", "zoomin", "zoomout", "autoscale", "resetscale",
             "sendChartToCloud"]  # fmt: skip
    return {
        "autosize": True, "paper_bgcolor": CLEAR, "plot_bgcolor": CLEAR,
        "modebar": {"remove": tools}, "font": {"color": GREY}, **more,
    }  # fmt: skip
