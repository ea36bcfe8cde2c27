"""The figure under the diagram: what is plotted, and that choosing goes both ways."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lockkit.events import STORE, Event, event, read
from lockkit.lab.widgets.numbers import LOCK, OUTCOMES, POINTS_MAX, numbers
from lockkit.lab.widgets.scene import whole

HISTORIES = Path(__file__).parents[1] / "datasets" / "histories"
KEY = "lake/orders/.hoodie/.locks/table_lock.json"
STALLED = HISTORIES / "bad" / "stalled_commit_accepted.jsonl"


def recorded(path: Path = STALLED) -> list[Event]:
    with path.open() as lines:
        return list(read(lines))


def long(writes: int) -> Iterator[Event]:
    for n in range(writes):
        at_ms, attempt, refused = n * 10.0, f"h/{n}", n % 1000 == 999
        yield event(at_ms, "W1", "ask", request=n, op="renew", key=KEY, attempt=attempt)
        yield event(
            at_ms + 1, STORE, "request", client="W1", method="put", key=KEY, condition="",
            status=412 if refused else 200, answer="", applied=not refused, before="",
            version=f"v{n}", attempt=attempt, began_ms=at_ms,
        )  # fmt: skip
        outcome = "PreconditionFailed" if refused else "Applied"
        yield event(at_ms + (8 if n == 7777 else 2), "W1", "answer", request=n, op="renew",
                    outcome=outcome, version="", why="")  # fmt: skip


def test_every_generation_is_a_step_and_every_write_a_trip() -> None:
    scene = whole(recorded())
    said = numbers(scene)
    assert [each.y for each in said.steps] == [row["n"] for row in scene["rows"]]
    writes = {each["id"] for each in scene["arrows"] if each["kind"] == "write"}
    assert {each.id for each in said.trips} == writes
    assert {each.outcome for each in said.trips} == {OUTCOMES[0], OUTCOMES[1]}
    assert sum(int(each.said.split()[0]) for each in said.refusals) == 2


def test_an_expired_lease_is_drawn_separately_in_both_lanes() -> None:
    over = {each.lane for each in numbers(whole(recorded())).ribbons if each.over}
    assert over == {LOCK, "W1"}


def test_of_very_many_points_the_slowest_and_every_refusal_are_kept() -> None:
    said = numbers(whole(list(long(20_000))))
    assert said.of > 3 * POINTS_MAX
    assert max(len(said.steps), len(said.trips), len(said.ribbons)) <= POINTS_MAX
    assert max(each.y for each in said.trips) == 8
    assert sum(each.outcome == OUTCOMES[1] for each in said.trips) == 20


def test_no_events_make_no_plot() -> None:
    said = numbers(whole([]))
    assert not said.steps + said.trips + said.refusals and not said.ribbons


# --- the widget -----------------------------------------------------------------------------------

pytest.importorskip("plotly", reason="pip install 'lockkit[lab]' for the workbench")
from lockkit.lab.widgets.charts import INK, Charts  # noqa: E402
from lockkit.lab.widgets.lanes import Lanes  # noqa: E402
from lockkit.lab.widgets.panels import Workbench  # noqa: E402
from lockkit.lab.widgets.ui import FitFigures  # noqa: E402


@pytest.fixture
def charts() -> Iterator[Charts]:
    made = Charts(Workbench.replay(STALLED))
    yield made
    made.let_go()


def click(charts: Charts, trace: int, point: int) -> None:
    charts._clicked(charts.figure.data[trace], SimpleNamespace(point_inds=[point]), None)


def lines(charts: Charts) -> list[Any]:
    return [each.x0 for each in charts.figure.layout.shapes]


def test_no_figure_is_created_before_the_panel_is_unfolded(charts: Charts) -> None:
    assert charts.figure is None and not charts.children[0].children
    charts.set_trait("selected_index", 0)
    fits, figure = charts.children[0].children
    assert isinstance(fits, FitFigures) and figure is charts.figure
    assert figure._config["responsive"], "else it stays 700 pixels wide"
    assert figure._config["displayModeBar"] is False, "in a narrow panel it hides the title"


def test_a_click_on_a_point_selects_it_in_the_diagram_and_vice_versa(
    charts: Charts,
) -> None:
    charts.set_trait("selected_index", 0)
    assert lines(charts) == []
    rows, arrows = charts.lanes.scene["rows"], charts.lanes.scene["arrows"]
    click(charts, 0, 4)
    assert charts.lanes.selected == rows[4]["arrow"] and len(lines(charts)) == 1
    refused = next(each for each in arrows if each["look"] == "refused")
    charts.lanes.selected = refused["id"]
    assert lines(charts) == [refused["t"][0] / 1000]
    charts.lanes.selected = ""
    assert lines(charts) == []


def test_a_page_gets_every_trace_with_the_figure_and_the_points_again_once_it_has_drawn_it(
    charts: Charts,
) -> None:
    """What is sent while the page loads plotly does not arrive."""
    charts.set_trait("selected_index", 0)
    figure = charts.figure
    assert not figure._py2js_addTraces
    assert len(figure._widget_data) == len(figure.data) and list(figure.data[0].x)
    sent: list[Any] = []
    figure.observe(lambda change: sent.append(change["new"]), "_py2js_update")
    charts.children[0].children[0]._handle_custom_msg({}, [])
    points = [each["style_data"]["x"][0] for each in sent if each and "x" in each["style_data"]]
    assert [len(each) for each in points] == [0, len(figure.data[0].x)]


def test_a_kernel_has_one_figure_that_of_the_panel_unfolded_last(charts: Charts) -> None:
    charts.set_trait("selected_index", 0)
    other = Charts(charts.lanes)
    other.set_trait("selected_index", 0)
    assert charts.figure is None and charts.selected_index is None
    assert other.figure is not None
    charts.lanes.selected = charts.lanes.scene["rows"][1]["arrow"]
    assert len(lines(other)) == 1
    other.let_go()


def test_plotly_is_loaded_beside_a_live_run_once_it_has_a_commit() -> None:
    """Its import takes seconds, for which neither the first commit nor the panel waits."""
    charts = Charts(Lanes(live=True))
    charts.lanes.scene = whole([each for each in recorded() if each.kind == "ask"][:1])
    assert charts._loading is None
    charts.lanes.scene = whole(recorded())
    assert charts._loading is not None
    charts._loading.join()
    assert "plotly.graph_objs._figurewidget" in sys.modules and charts.figure is None


def test_a_changed_scene_is_plotted_again_only_while_the_panel_is_open(charts: Charts) -> None:
    charts.set_trait("selected_index", 0)
    before = list(charts.figure.data[0].y)
    charts.lanes.scene = whole(recorded(HISTORIES / "good" / "throttled_release.jsonl"))
    assert list(charts.figure.data[0].y) != before
    throttled = charts.figure.data[1 + OUTCOMES.index("throttled (429)")]
    assert len(throttled.x) == len(throttled.marker.color) == 1
    charts.set_trait("selected_index", None)
    charts.lanes.scene = whole([])
    assert len(throttled.x) == 1, "folded: nothing is computed"


def test_a_page_waits_for_a_small_module_and_not_for_plotlys() -> None:
    """A page waits two seconds for a module, and plotly's may take longer."""
    import plotly.graph_objects as go

    from lockkit.lab.widgets.ui import figure_widget

    made = figure_widget(go.Figure())
    assert made.source == str(go.FigureWidget._esm) and len(made._esm) < 1_000 < len(made.source)


def test_the_legend_shows_no_writers_colour_for_an_answer(charts: Charts) -> None:
    """The dots have the colours of all writers."""
    charts.set_trait("selected_index", 0)
    ok = [each for each in charts.figure.data if each.name == OUTCOMES[0]]
    assert [each.marker.color for each in ok if each.showlegend is not False] == [INK]
    assert {len(each.x) for each in ok} > {1}, "it is drawn although the legend's has no point"
