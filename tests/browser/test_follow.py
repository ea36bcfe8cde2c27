"""What a live picture follows: the panel's own scenes, given to the drawing without a kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from browser.world import ROOT, shot
from lockkit.events import Event, read
from lockkit.lab.widgets.control import window
from lockkit.lab.widgets.export import drawing
from lockkit.lab.widgets.models import HistoryModel
from lockkit.lab.widgets.scene import scene, whole

pytestmark = [
    pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240, method="thread"),
    pytest.mark.xdist_group("voila"),
]  # fmt: skip

HISTORIES = ROOT / "datasets" / "histories" / "good"
STYLES = ROOT / "lockkit" / "lab" / "widgets" / "lanes.css"
# A message's traits come in any order: Python's sets have one of their own in each process.
MODEL = """
const state = { scene: {}, status: { state: "idle" }, live: true, beats: true, exports: false,
  selected: "", cursor: -1 };
const heard = [];
const model = {
  get: (name) => state[name],
  set: (name, value) => { state[name] = value; },
  on: (name, act) => heard.push([name, act]),
  off: () => {}, send: () => {}, save_changes: () => {},
};
window.painted = () => new Promise((done) => {
  requestAnimationFrame(() => requestAnimationFrame(done));
});
window.fire = (name) => { for (const [each, act] of heard) if (each === name) act(); };
window.message = (news, order) => {
  Object.assign(state, news);
  for (const name of order.filter((each) => each in news)) fire(`change:${name}`);
  return painted();
};
render({ model, el: document.getElementById("lockkit") });
window.box = document.querySelector(".lk-scroll");
"""
ORDERS = (("live", "scene", "status"), ("scene", "status", "live"), ("status", "live", "scene"))
PLAYED_AND_BEGUN_AGAIN = """() => {
  const slider = document.querySelector(".lk-slider");
  if (!document.querySelector("[aria-label=Pause]")) return false;
  for (const at of [1000, 0]) { slider.value = at; slider.dispatchEvent(new Event("input")); }
  return box.scrollTop < 40;
}"""
AT = "() => [box.scrollTop, box.scrollHeight - box.clientHeight]"
IN_VIEW = """(id) => {
  const text = document.querySelector(`.lk-label[data-for=${id}]`);
  const [seen, all] = [text, box].map((each) => each?.getBoundingClientRect());
  return Boolean(text) && all.top <= seen.top && seen.bottom <= all.bottom;
}"""


def recorded(name: str) -> list[Event]:
    return list(read((HISTORIES / f"{name}.jsonl").read_text().splitlines(keepends=True)))


STALLED = recorded("stalled_commit_refused")
PAUSED = next(n for n, each in enumerate(STALLED) if each.kind == "stalled")
RESUMED = next(n for n, each in enumerate(STALLED) if each.kind == "resumed")


class Panel:
    """A page with the drawing, and the messages that the panel would send to it."""

    def __init__(self, page: Any, order: tuple[str, ...], file: Path) -> None:
        self.page, self.order = page, order
        file.write_text(
            f"<!doctype html><style>{STYLES.read_text()}</style><div id=lockkit></div>"
            f"<script type=module>{drawing()}{MODEL}</script>"
        )
        page.set_viewport_size({"width": 1000, "height": 700})
        page.goto(f"file://{file}")

    def tell(self, **news: Any) -> None:
        self.page.evaluate("([news, order]) => message(news, order)", [news, self.order])

    def play_a_recorded_run(self) -> None:
        """As while writers start; it has come to its end once, and begins again."""
        run = whole(recorded("lost_response_recovered"))
        self.tell(scene=run, status={"state": "starting", "recorded": True}, live=False)
        self.page.wait_for_function(PLAYED_AND_BEGUN_AGAIN)
        self.page.evaluate("painted()")

    def live(self, events: list[Event], later_ms: float = 0.0) -> None:
        story = HistoryModel()
        story.add(events)
        now_ms = events[-1].at_ms + later_ms
        self.scene = scene(story, now_ms=now_ms, **window(story, now_ms))
        self.tell(scene=self.scene, status={"state": "running", "recorded": False}, live=True)

    def shows_the_takeover(self) -> bool:
        """Whether the generation that the first other writer made during the stall is in view."""
        assert self.scene["keep"] is not None
        made = (each for each in self.scene["marks"] if each["kind"] == "generation")
        taken = next(each["id"] for each in made if each["t"] >= self.scene["keep"] - 20)
        return bool(self.page.evaluate(IN_VIEW, taken))

    def scroll(self, to: int) -> None:
        """As a reader does, with the pointer elsewhere: by the scroll bar, or by keys."""
        self.page.evaluate("(to) => { box.scrollTop = to; return painted(); }", to)

    def run(self, events: list[Event], first: int) -> None:
        for upto in range(first, len(events) + 1, 5):
            self.live(events[:upto])

    def below(self) -> float:
        """Pixels from what is shown last to the newest event."""
        at, end = self.page.evaluate(AT)
        assert end > 100, "a picture that has no need to scroll shows nothing"
        return float(end - at)


@pytest.fixture(params=ORDERS, ids=lambda order: "-".join(order))
def panel(page: Any, request: pytest.FixtureRequest, tmp_path: Path) -> Panel:
    return Panel(page, request.param, tmp_path / "live.html")


def test_a_live_run_is_followed_although_a_recorded_one_was_played_before_it(panel: Panel) -> None:
    """The recorded run stood at its start as the live one came: no reader chose that place."""
    panel.play_a_recorded_run()
    panel.run(STALLED[:PAUSED], 5)
    assert panel.below() < 40


def test_the_takeover_stays_in_view_during_a_stall_although_a_recorded_run_was_played_before_it(
    panel: Panel,
) -> None:
    panel.play_a_recorded_run()
    panel.run(STALLED[:RESUMED], 5)
    assert panel.shows_the_takeover()
    shot(panel.page, f"20-takeover-{panel.order[0]}")
    panel.run(STALLED, RESUMED)
    refused = next(each["id"] for each in panel.scene["marks"] if each["kind"] == "refused")
    assert panel.page.evaluate(IN_VIEW, refused) and panel.below() > 40, "what became of the commit"
    panel.live(STALLED, later_ms=10_000)
    assert panel.below() < 40, "then the newest event is followed again"


@pytest.mark.parametrize("first", [PAUSED, RESUMED], ids=["running", "taken over"])
def test_a_place_to_which_a_reader_scrolled_stays_in_view_whatever_happens(
    panel: Panel, first: int
) -> None:
    panel.run(STALLED[:first], 5)
    panel.scroll(to=20)
    panel.run(STALLED, first + 1)
    assert panel.page.evaluate(AT)[0] == 20


def test_a_reader_who_scrolls_back_to_the_newest_event_follows_it_again_until_the_stall_ends(
    panel: Panel,
) -> None:
    """Also where the takeover would stay in view otherwise."""
    taken = next(n for n in range(PAUSED, RESUMED) if STALLED[n].kind == "held")
    panel.run(STALLED[: taken + 6], 5)
    panel.scroll(to=20)
    panel.scroll(to=10_000)
    panel.run(STALLED[:RESUMED], taken + 7)
    assert panel.below() < 40


RECORDED = "a recorded run, until yours begins"
GONE = """() => {
  document.getElementById("lockkit").classList.add("jupyter-widgets-disconnected");
  fire("comm_live_update");
}"""


def test_a_recorded_run_is_said_to_be_one_until_the_writers_begin_or_the_kernel_ends(
    panel: Panel,
) -> None:
    said = panel.page.get_by_text(RECORDED)
    panel.play_a_recorded_run()
    assert said.is_visible()
    panel.live(STALLED[:PAUSED])
    assert not said.is_visible()
    panel.play_a_recorded_run()
    assert said.is_visible()
    panel.page.evaluate(GONE)
    panel.page.get_by_text("its kernel has ended: run the notebook again").wait_for()
    assert not said.is_visible(), "no run of the reader's own will begin"


CONTROLS = """() => document.getElementById("lockkit").insertAdjacentHTML("beforebegin",
  "<a href='#'>elsewhere</a> <button id=launch>Launch</button> <button id=stop>Stop</button>")"""
BELOW_THE_SCREEN = (
    "document.querySelector('.lk-pane').getBoundingClientRect().bottom - innerHeight"
)


def test_a_launch_brings_its_picture_into_view_unless_the_reader_is_elsewhere(
    panel: Panel,
) -> None:
    """In a notebook of 800 x 900 pixels the controls end where the picture begins."""
    page = panel.page
    page.set_viewport_size({"width": 800, "height": 900})
    page.evaluate("document.body.style.padding = '700px 0 2000px'")
    page.evaluate(CONTROLS)
    panel.tell(scene={}, status={"state": "idle"}, live=True)
    page.evaluate("launch.focus(); launch.disabled = true")  # as while writers start
    panel.play_a_recorded_run()
    assert page.evaluate(BELOW_THE_SCREEN) < 1
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "stop", "the keyboard goes on from there"
    panel.live(STALLED[:PAUSED])
    assert page.evaluate(BELOW_THE_SCREEN) < 1
    panel.tell(status={"state": "stopped"}, live=False)
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    was = page.evaluate("scrollY")
    panel.play_a_recorded_run()
    assert page.evaluate("scrollY") == was


@pytest.mark.parametrize(("width", "place"), [
    (1000, "jp-OutputArea"), (353, "jp-OutputArea"), (600, "lockkit-beside"),
    (353, "jp-OutputArea lk-panel"),
])  # fmt: skip
def test_a_picture_is_high_enough_for_a_story_and_leaves_room_for_what_is_around_it(
    page: Any, tmp_path: Path, width: int, place: str
) -> None:
    """Of 900 pixels: a panel's controls need more of them than a replay's do."""
    panel = Panel(page, ORDERS[0], tmp_path / "high.html")
    page.set_viewport_size({"width": 1100, "height": 900})
    style = "([width, name]) => Object.assign(document.getElementById('lockkit'),"
    page.evaluate(f"{style} {{ className: name, style: `width: ${{width}}px` }})", [width, place])
    panel.tell(scene=whole(STALLED), status={"state": "replay"}, live=False)
    replayed = page.evaluate("box.clientHeight")
    panel.live(STALLED[:RESUMED])
    live = page.evaluate("box.clientHeight")
    least = 210 if "lk-panel" in place else 320
    assert least < replayed < 410 and 300 <= live < 410
