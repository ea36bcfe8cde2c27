"""The workbench: what it makes of a history, and what its buttons do."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import until

from lockkit.clock import Clock
from lockkit.events import STORE, Event, event, read
from lockkit.lab.processes.fleet import Fleet, FleetError, Kind, Plan, leftovers
from lockkit.lab.verify.check import check
from lockkit.lab.widgets.control import STALL_ARROWS_MAX, WINDOW_MS, Controller, window
from lockkit.lab.widgets.export import embedded, export_html, judged, page_of
from lockkit.lab.widgets.lanes import Lanes
from lockkit.lab.widgets.models import RING, HistoryModel, place, short
from lockkit.lab.widgets.scene import (
    OUTCOME_MS,
    TAKEOVER_MS,
    Grant,
    Scene,
    hues,
    in_order,
    overtaken_at,
    scene,
    whole,
)
from lockkit.lock.creation_check import TABLE_KEY
from lockkit.table.errors import CommitConflict

ROOT = Path(__file__).parents[1]
HISTORIES = ROOT / "datasets" / "histories"
LOCK = "lake/orders/.hoodie/.locks/table_lock.json"
SCRATCH = f"lake/orders/{TABLE_KEY}"
HOSTILE = '</script><img src=x onerror="alert(1)">\x1b[31m\u202e\u0000{"a":1}' + "x" * 500


def recorded(name: str) -> list[Event]:
    with (HISTORIES / f"{name}.jsonl").open() as lines:
        return list(read(lines))


def picture(events: list[Event], **options: Any) -> Scene:
    story = HistoryModel()
    story.add(events)
    return scene(story, **options)


def only(things: list[Scene], **wanted: Any) -> Scene:
    found = [each for each in things if all(each[name] == is_ for name, is_ in wanted.items())]
    assert len(found) == 1, f"{len(found)} with {wanted}"
    return found[0]


# --- the picture ---------------------------------------------------------------------------------


def test_the_stall_shows_the_stores_state_and_the_writers_assumed_grant() -> None:
    drawn = picture(recorded("bad/stalled_commit_accepted"))
    stall = only(drawn["bars"], kind="stall")
    over = only(drawn["bars"], kind="over")
    wrong = only(drawn["bars"], kind="wrong", lane="W1")
    stale = only(drawn["marks"], kind="stale", lane="W1")
    taken = only(drawn["bars"], kind="owner", label="W2 epoch 4")
    assert stall["t"][0] < over["t"][0] < taken["t"][0] < stall["t"][1] < stale["t"]
    assert wrong["t"][0] == over["t"][0], "belief is wrong from the moment the lease is over"
    assert wrong["t"][1] > stall["t"][1], "and it outlasts the stall"


def test_with_the_fence_the_late_commit_is_a_412_and_a_refusal() -> None:
    drawn = picture(recorded("good/stalled_commit_refused"))
    fence = only(drawn["arrows"], look="refused", lane="W1")
    refused = only(drawn["marks"], kind="refused")
    assert (fence["label"], fence["side"]) == ("fence: 412, W2 wrote first", "table")
    assert refused["t"] > fence["t"][1]
    assert not [each for each in drawn["marks"] if each["kind"] == "stale"]


def test_a_refused_commit_says_whether_it_conflicted_or_was_fenced_off() -> None:
    (fenced,) = [each for each in picture(recorded("good/stalled_commit_refused"))["marks"]
                 if each["kind"] == "refused"]  # fmt: skip
    assert fenced["label"] == "fenced off: epoch 3 is over"
    mine, other = "20260101000000001", "20260101000335750"
    error = CommitConflict(mine, instant=other, cause="wrote to", cure="begin again")
    said = {"epoch": 3, "error": "CommitConflict", "why": str(error)}
    refused = event(5.0, "W1", "refused", instant=mine, **said)
    (mark,) = picture([refused])["marks"]
    assert mark["label"] == "conflict with ..335750"
    assert mark["kind"] == "conflict", "an ordinary lost race: neither a broken rule nor a fence"


def test_a_lost_answer_is_distinguished_from_a_refusal_and_a_throttled_write() -> None:
    lost = only(picture(recorded("good/lost_response_recovered"))["arrows"], look="lost")
    throttled = only(picture(recorded("good/throttled_release"))["arrows"], look="throttled")
    assert lost["label"] == "acquire: answer lost" and lost["row"] == "g1"
    assert "the client cannot know" in lost["detail"] and "drop" in lost["detail"]
    assert throttled["label"] == "release: 429" and throttled["row"] == ""


def test_lines_that_arrive_out_of_order_make_the_same_picture() -> None:
    events = recorded("good/stalled_commit_refused")
    expected = facts(picture(events))
    shuffle = random.Random(7)
    for _ in range(20):
        late = sorted(events, key=lambda each: each.at_ms + (0 if each.who == STORE else
                      shuffle.uniform(0, 9)))  # fmt: skip
        assert facts(picture(late)) == expected


def facts(drawn: Scene) -> list[tuple[Any, ...]]:
    """The content of a picture's requests, without the names that the picture gives them."""
    return [(each["lane"], each["label"], each["look"], *each["t"]) for each in drawn["arrows"]]


def test_every_generation_has_a_row_that_leads_to_its_write_and_back() -> None:
    drawn = picture(recorded("good/stalled_commit_refused"))
    by_id = {each["id"]: each for each in drawn["arrows"]}
    assert [row["n"] for row in drawn["rows"]] == list(range(1, 11))
    for row in drawn["rows"]:
        assert by_id[row["arrow"]]["row"] == row["id"]
        assert by_id[row["arrow"]]["lane"] == row["who"]
    epochs = [row["epoch"] for row in drawn["rows"]]
    assert all(a <= b for a, b in pairwise(epochs)) and epochs[-1] == 5


def test_the_events_that_prove_the_verdict_are_marked() -> None:
    events = recorded("bad/stalled_commit_accepted")
    verdict = check(events)
    drawn = picture(events, evidence=verdict.evidence)
    marked = [each for each in drawn["arrows"] + drawn["marks"] if each.get("evidence")]
    assert verdict.kind == "INVALID" and len(verdict.evidence) == len(marked) >= 2


@pytest.mark.parametrize(("ending", "kind"), [("released", "published"), ("lost", "stale")])
def test_a_commit_that_is_reported_after_a_release_and_the_next_grant_is_not_stale(
    ending: str, kind: str
) -> None:
    """W1 publishes and releases; its report comes when W2 has the lock. No lease was lost."""
    said = {"proven": True} if ending == "released" else {"why": "its lease is over"}
    events = [
        *write(0.0, "acquire", "a/1", 1),
        event(3.0, "W1", "held", epoch=1, until_ms=100.0, version="v"),
        *write(10.0, "release", "a/2", 2),
        event(13.0, "W1", ending, epoch=1, **said),
        *write(20.0, "acquire", "b/1", 3, who="W2"),
        event(23.0, "W2", "held", epoch=2, until_ms=120.0, version="w"),
        event(24.0, "W1", "published", instant="20250106101203123", epoch=1),
    ]
    assert only(picture(events)["marks"], lane="W1", t=24)["kind"] == kind


def test_the_live_picture_shows_the_last_seconds_only() -> None:
    events = recorded("good/stalled_commit_refused")
    whole, recent = picture(events), picture(events, window_ms=1_000)
    assert recent["cut"] and not whole["cut"]
    assert recent["span"][0] == recent["span"][1] - 1_000
    assert 0 < len(recent["arrows"]) < len(whole["arrows"]) / 2
    assert all(t is None or t >= recent["span"][0] for each in recent["arrows"] for t in each["t"])
    assert recent["rows"] == whole["rows"], "the table remembers what the picture has dropped"


def test_while_a_writer_is_paused_the_takeover_stays_in_the_picture() -> None:
    events = recorded("bad/stalled_commit_accepted")
    back = next(n for n, each in enumerate(events) if each.kind == "resumed")
    story = HistoryModel()
    story.add(events[:back])
    later_ms = story.latest_ms + 30_000
    seen = scene(story, now_ms=later_ms, **window(story, later_ms))
    stalled = next(bar["t"][0] for bar in seen["bars"] if bar["kind"] == "stall")
    owners = [bar for bar in seen["bars"] if bar["kind"] == "owner" and bar["t"][0] > stalled]
    assert seen["keep"] == owners[0]["t"][0] > seen["span"][0] and owners[0]["label"][:2] == "W2"
    story.add(events[back:])
    assert window(story, later_ms)["window_ms"] == WINDOW_MS
    assert scene(story)["keep"] is None, "nobody stands still any more"
    seen = scene(story, now_ms=story.latest_ms, **window(story, story.latest_ms))
    (stale,) = (mark["t"] for mark in seen["marks"] if mark["kind"] == "stale")
    assert seen["keep"] == stale, "what became of the commit stays for a moment"
    outcome_ms = next(each.at_ms for each in events[back:] if each.kind == "published")
    for ends_ms, keep in ((outcome_ms + OUTCOME_MS, stale), (outcome_ms + OUTCOME_MS + 1, None)):
        assert scene(story, now_ms=ends_ms, **window(story, ends_ms))["keep"] == keep


def test_a_request_whose_answer_was_lost_stays_in_the_live_picture_for_a_moment() -> None:
    story = HistoryModel()
    story.add(recorded("good/lost_response_recovered"))
    (lost,) = (each for each in story.exchanges if each.outcome == "unknown")
    keeps = lost.first_ms - (story.started_ms or 0)
    for now_ms, keep in ((lost.last_ms + OUTCOME_MS, keeps), (lost.last_ms + OUTCOME_MS + 1, None)):
        assert scene(story, now_ms=now_ms, **window(story, now_ms))["keep"] == keep


@pytest.mark.parametrize("name", ["bad/stalled_commit_accepted", "good/stalled_commit_refused"])
@pytest.mark.parametrize("resumed", [True, False])
@pytest.mark.parametrize("times", [1, 5])
def test_a_live_picture_leaves_out_no_request_but_those_in_its_gap(
    name: str, resumed: bool, times: int
) -> None:
    events = recorded(name)
    began_ms = next(each.at_ms for each in events if each.kind == "stalled")
    events = [replace(each, at_ms=began_ms + times * (each.at_ms - began_ms))
              if each.at_ms > began_ms else each for each in events]  # fmt: skip
    story = HistoryModel()
    story.add(events if resumed else events[: [each.kind for each in events].index("resumed")])
    how, now_ms = window(story, story.latest_ms), story.latest_ms
    every = scene(story, now_ms=now_ms, **how | {"arrows_max": 10_000})["arrows"]
    for arrows_max in range(1, 40):
        seen = scene(story, now_ms=now_ms, **how | {"arrows_max": arrows_max})
        if seen["omitted"]:
            continue
        shown = [(each["lane"], *each["t"]) for each in seen["arrows"]]
        wanted = [(each["lane"], *each["t"]) for each in every
                  if each["t"][0] is not None and each["t"][0] >= seen["span"][0]]  # fmt: skip
        assert not set(wanted) - set(shown), arrows_max


def test_a_long_pause_leaves_out_what_is_between_the_takeover_and_the_newest_requests() -> None:
    events = recorded("bad/stalled_commit_accepted")
    back = next(n for n, each in enumerate(events) if each.kind == "resumed")
    story = HistoryModel()
    story.add(events[:back])
    before = scene(story, now_ms=story.latest_ms, **window(story, story.latest_ms))
    began_ms = story.latest_ms
    for n in range(1_000):
        at_ms, op = began_ms + 100.0 * (n + 1), ("acquire", "release")[n % 2]
        story.add(write(at_ms, op, f"later/{n}", 1_000 + n, who="W2"))
    now_ms = story.latest_ms
    seen = scene(story, now_ms=now_ms, **window(story, now_ms))
    assert seen["keep"] == before["keep"] and 60_000 < seen["omitted"] < 100_000
    between = seen["keep"] + TAKEOVER_MS, seen["keep"] + TAKEOVER_MS + seen["omitted"]
    drawn = [t for each in seen["arrows"] for t in each["t"] if t is not None]
    drawn += [each["t"] for each in seen["marks"]]
    assert min(drawn) < seen["keep"] < between[1] < max(drawn)
    assert not [t for t in drawn if between[0] + 10 < t < between[1] - 10]
    assert len(seen["arrows"]) < 2 * STALL_ARROWS_MAX
    assert len(seen["bars"]) < 2 * len(before["bars"]) + STALL_ARROWS_MAX
    assert scene(story)["omitted"] == 0, "a recorded run has all of it"


def probing_its_store(who: str, *statuses: int) -> Iterator[Event]:
    """The store's record of a writer that tests whether conditions are enforced."""
    yield event(0.0, who, "started", pid=1)
    for n, status in enumerate(statuses):
        yield event(
            100.0 + 400 * n, STORE, "request", client=who, method="put", key=SCRATCH,
            condition="if-absent", status=status, answer="", applied=status == 200, before="",
            version="", attempt="", began_ms=99.0 + 400 * n,
        )  # fmt: skip


def test_a_writers_test_of_its_store_is_one_mark_of_its_lane_from_its_first_write_on() -> None:
    """The test takes longer than the launch on a store with one write per second and object."""
    events = [*probing_its_store("W1", 200, 429, 412), *probing_its_store("W2", 429)]
    first = only(picture(events[:2])["marks"], lane="W1")
    assert first["kind"] == "tests" and first["label"] == "tests the store" and first["t"] == 100
    drawn = picture(sorted(events, key=lambda each: each.at_ms))
    assert only(drawn["marks"], lane="W1")["detail"].endswith("its answers: 200 429 412")
    assert only(drawn["marks"], lane="W2")["detail"].endswith("its answers: 429")
    assert drawn["arrows"] == [], "the scratch object is not the lock object"


def test_a_writer_has_one_colour_in_whatever_order_it_appears() -> None:
    assert hues(["W2", "spark", "W1", "batch"]) == {"W2": 1, "W1": 0, "spark": 2, "batch": 3}
    assert hues(["W3", "W0", "Wx", "W01"]) == {"W3": 2, "W0": 0, "Wx": 1, "W01": 3}


def test_the_lanes_of_numbered_writers_are_in_the_order_of_their_numbers() -> None:
    assert in_order(["W0", "W10", "batch", "W2"]) == ["W0", "W2", "batch", "W10"]
    events = [event(n, who, "started", pid=n) for n, who in enumerate(("W3", "W1", "W2"))]
    assert [each["id"] for each in whole(events)["lanes"][1:-1]] == ["W1", "W2", "W3"]


def test_a_verdict_shows_the_last_six_digits_of_an_instant_as_the_picture_does() -> None:
    verdict = check(recorded("bad/stalled_commit_accepted"))
    assert re.search(r"\d{17}", verdict.because)
    instants = {found[-6:] for found in re.findall(r"\d{17}", verdict.because)}
    for said in (verdict.said, judged(verdict)["because"]):
        assert not re.search(r"\d{14}", said)
        assert set(re.findall(r"\.\.(\d{6})\b", said)) == instants


def test_a_history_keeps_only_its_latest_requests_and_grants() -> None:
    story = HistoryModel(ring=100)
    story.add(cycles(2_000))
    assert story.generation == 4_000 and story.seen == 2_000 * 8
    assert len(story.exchanges) == len(story.generations) == len(story.beliefs) == 100
    assert len(scene(story)["rows"]) == 100


def cycles(rounds: int) -> Iterator[Event]:
    for number in range(rounds):
        at_ms, grant, version = number * 10.0, f"{number}a", f"v{number}"
        yield from write(at_ms, "acquire", grant, 2 * number)
        yield event(at_ms + 3, "W1", "held", epoch=number, until_ms=at_ms + 100, version=version)
        yield from write(at_ms + 4, "release", f"{number}r", 2 * number + 1)
        yield event(at_ms + 7, "W1", "released", epoch=number, proven=True)


def write(at_ms: float, op: str, attempt: str, request: int, who: str = "W1") -> Iterator[Event]:
    yield event(at_ms, who, "ask", request=request, op=op, key=LOCK, attempt=attempt)
    yield event(
        at_ms + 1, STORE, "request", client=who, method="PUT", key=LOCK, condition="", status=200,
        answer="applied", applied=True, before="", version=f'"{attempt}"', attempt=attempt,
        began_ms=at_ms + 1,
    )  # fmt: skip
    yield event(at_ms + 2, who, "answer", request=request, op=op, outcome="Applied",
                version=f'"{attempt}"', why="")  # fmt: skip


def asked(at_ms: float, request: int, outcome: str, over_ms: float) -> list[Event]:
    """One release of W1, as W1 reports it, always with the same attempt."""
    key = ".hoodie/.locks/table_lock.json"
    return [
        event(at_ms, "W1", "ask", request=request, op="release", key=key, attempt="h/3"),
        event(over_ms, "W1", "answer", request=request, op="release", outcome=outcome, version="",
              why=""),
    ]  # fmt: skip


def decided(at_ms: float, status: int, answer: str, attempt: str) -> Event:
    return event(
        at_ms, STORE, "request", client="W1", method="put", key=LOCK, condition="", status=status,
        answer=answer, applied=status == 200, before="", version="v", attempt=attempt,
        began_ms=at_ms,
    )  # fmt: skip


def test_a_write_that_was_throttled_is_not_taken_for_its_later_success() -> None:
    """The store does not read the body of a write that it throttles: no attempt is recorded."""
    drawn = picture([
        *asked(0, 1, "Throttled", 5), decided(3, 429, "throttled", ""),
        *asked(900, 2, "Applied", 905), decided(903, 200, "applied", "h/3"),
    ])  # fmt: skip
    assert facts(drawn) == [
        ("W1", "release: 429", "throttled", 0, 3, 5),
        ("W1", "release", "ok", 900, 903, 905),
    ]


def test_a_write_that_lands_after_its_client_gave_up_is_drawn_as_late() -> None:
    drawn = picture([*asked(0, 1, "Unknown", 600), decided(2_000, 200, "applied", "h/3")])
    assert facts(drawn) == [("W1", "release: landed late", "late", 0, 2_000, 600)]


def test_a_client_that_only_deletes_the_lock_object_has_a_lane() -> None:
    drawn = picture([event(
        3, STORE, "request", client="H", method="delete", key=LOCK, condition="", status=204,
        answer="applied", applied=True, before="v", version="", attempt="", began_ms=3,
    )])  # fmt: skip
    assert [each["id"] for each in drawn["lanes"]] == ["lock", "H", "table"]
    assert only(drawn["arrows"], lane="H")["label"] == "delete"


def test_a_client_that_records_no_requests_is_drawn_from_the_stores_record() -> None:
    record = [each for each in recorded("good/lost_response_recovered") if each.who == STORE]
    drawn = picture([*record, event(record[-1].at_ms, "W1", "note", text="hello")])
    fence = next(each for each in drawn["arrows"] if each["op"] == "fence")
    assert fence["lane"] == "W1" and fence["t"][2] is None and fence["look"] == "ok"


@pytest.mark.parametrize(
    ("key", "where"),
    [
        (LOCK, "lock"),
        ("lake/orders/.hoodie/.locks/fence.json", "table"),
        ("lake/orders/.hoodie/20250106101201123.commit", "table"),
        ("lake/orders/.hoodie/timeline/20250106101201123_20250106101203000.deltacommit", "table"),
        ("lake/orders/.hoodie/20250106101201123.commit.requested", ""),
        ("lake/orders/part=US/f-01.parquet", ""),
    ],
)
def test_only_the_lock_the_fence_and_commits_are_drawn(key: str, where: str) -> None:
    assert place(key) == where


def test_neighbouring_versions_stay_apart_when_shortened() -> None:
    assert short('"9f1c2a"') == "9f1c"
    assert short("1736158330123457") != short("1736158330123456")
    assert short('"0x8DC1A2B3C4D5E6F"') == "5E6F"


# --- text from a bucket --------------------------------------------------------------------------


def hostile() -> list[Event]:
    return [
        *write(10, HOSTILE, HOSTILE, 1, who=HOSTILE),
        event(14, HOSTILE, "held", epoch=1, until_ms=99, version=HOSTILE),
        event(15, "W2", "waiting", owner=HOSTILE, epoch=1, until_ms=99),
        event(16, HOSTILE, "refused", instant=HOSTILE, epoch=1, error=HOSTILE, why=HOSTILE),
    ]


def test_hostile_text_is_bounded_and_has_no_control_characters() -> None:
    texts = list(strings(picture(hostile())))
    assert texts and max(map(len, texts)) < 1_500
    assert [text[:80] for text in texts if not text.isprintable()] == []


def strings(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for each in value.values():
                yield from strings(each)
        case list():
            for each in value:
                yield from strings(each)


def test_hostile_text_cannot_leave_the_data_of_the_page() -> None:
    page = page_of(hostile(), check(hostile()), title=HOSTILE)
    assert "<img" not in page and page.count("</script>") == 2
    data = page.split('id="lockkit-scene">')[1].split("</script>")[0]
    lanes = json.loads(data)["scene"]["lanes"]
    assert "<" not in data and lanes[1]["title"].startswith("</script>")


def test_embedded_json_is_still_the_same_json() -> None:
    value = {"a": "</script><!--\u2028&", "b": [1, None, "é"]}
    assert json.loads(embedded(value)) == value
    assert not set("<>&\u2028") & set(embedded(value))


# --- the page ------------------------------------------------------------------------------------


def test_the_page_is_one_file_that_may_fetch_nothing_and_run_only_its_own_script(
    tmp_path: Path,
) -> None:
    events = recorded("bad/stalled_commit_accepted")
    export_html(events, check(events), tmp_path / "a.html", title="A stall")
    page = (tmp_path / "a.html").read_text()
    script = page.split('<script type="module">')[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; script-src 'sha256-{digest}'" in page
    assert not re.search(r'(src|href)="', page)
    assert set(re.findall(r"https?://[^\s\"'`)]+", page)) == {"http://www.w3.org/2000/svg"}
    assert len(page) < 150_000
    assert page == page_of(events, check(events), title="A stall"), "same history, same bytes"


def test_a_page_of_five_hundred_events_is_smaller_than_a_photograph(tmp_path: Path) -> None:
    events = list(cycles(63))[:500]
    export_html(events, check(events), tmp_path / "a.html", title="Turns")
    assert len(events) == 500 and (tmp_path / "a.html").stat().st_size < 210_000


def test_a_replay_shows_all_of_a_history_that_is_longer_than_what_is_kept_live() -> None:
    events = list(cycles(RING))
    drawn = whole(events)
    assert len(events) == 8 * RING and drawn["events"] == len(events) and not drawn["cut"]
    assert len(drawn["arrows"]) == len(drawn["rows"]) == 2 * RING
    assert drawn["rows"][0]["n"] == 1


def test_a_grant_is_overtaken_at_the_next_grant_of_another_owner() -> None:
    """For each grant: when the next grant of another owner began."""
    held: list[Grant] = [
        ("W1", 1, 0.0, None, 5.0), ("W1", 2, 6.0, None, 8.0), ("W2", 3, 9.0, None, None),
    ]  # fmt: skip
    assert overtaken_at(held) == [9.0, 9.0, None]


# --- the controls --------------------------------------------------------------------------------

widgets = pytest.importorskip("ipywidgets", reason="pip install 'lockkit[lab]' for the workbench")
from lockkit.lab.widgets.panels import CLOSED, Workbench  # noqa: E402


@pytest.fixture
def bench() -> Iterator[Workbench]:
    made = Workbench(kind="plain", writers=2, lease_s=2.0, overlap=1.0)
    yield made
    made.close()
    until(lambda: not any(each.name == "lockkit-workbench" for each in threading.enumerate()))


def controls(widget: Any) -> list[Any]:
    children = getattr(widget, "children", ())
    kinds = (widgets.Dropdown, widgets.Button, widgets.Checkbox)
    own = [widget] if isinstance(widget, kinds) else []
    return own + [each for child in children for each in controls(child)]


def test_nothing_starts_before_a_click(bench: Workbench) -> None:
    assert bench._control.fleet is None and bench.events == []
    assert not any(each.name == "lockkit-workbench" for each in threading.enumerate())
    assert not bench.launch_button.disabled and not bench.stop_button.disabled
    assert all(each.disabled for each in (bench.lose_button, *bench.stall_buttons.children))


def test_there_are_nine_controls_counting_each_row_as_one(bench: Workbench) -> None:
    stalls = list(bench.stall_buttons.children)
    launch_and_stop = [bench.launch_button, bench.stop_button]
    rest = [each for each in controls(bench.view) if each not in stalls + launch_and_stop]
    assert len(rest) + 1 + 1 == 9


def test_stop_works_when_nothing_runs(bench: Workbench) -> None:
    assert bench.stop() is None
    assert bench.state == "idle" and not bench.stop_button.disabled


def test_a_click_returns_at_once_and_the_button_waits_for_its_answer() -> None:
    gate = threading.Event()

    def slow(**options: Any) -> Fleet:
        gate.wait(10)
        raise FleetError("this fleet was only to be slow")

    bench = Workbench(fleet_of=slow)
    bench.launch_button.click()
    assert bench.launch_button.disabled, "the click did not wait for the fleet"
    gate.set()
    until(lambda: not bench.launch_button.disabled)
    bench.close()


def test_an_error_is_shown_with_its_traceback_and_raised_to_code(bench: Workbench) -> None:
    with pytest.raises(FleetError, match="overlap"):
        bench.launch(overlap=9.0)
    error = bench.lanes.status["error"]
    assert "overlap" in error["summary"] and "Traceback" in error["traceback"]
    assert bench.state == "failed" and not bench.launch_button.disabled


def test_running_the_cell_again_closes_the_earlier_workbench(bench: Workbench) -> None:
    again = Workbench(kind="plain")
    assert bench.launch_button.disabled and bench.lanes.status["said"] == CLOSED
    assert not again.launch_button.disabled
    again.close()
    with pytest.raises(RuntimeError, match="closed"):
        bench.launch()


def test_a_page_that_is_reloaded_gets_the_whole_state_again(bench: Workbench) -> None:
    """The picture's state only: a page's first beat makes the controller report in its thread."""
    sent: list[Any] = []
    seen: list[bool] = []
    lanes = Lanes(beats=bench.lanes.beats, on_beat=lambda: seen.append(True))
    lanes.send_state = sent.append
    lanes._handle_custom_msg({"type": "snapshot"}, [])
    assert sent == [["scene", "status", "cursor"]]
    lanes._handle_custom_msg({"type": "hb"}, [])
    lanes._handle_custom_msg("<nonsense>", [])
    assert len(sent) == 1 and len(seen) == 2


def test_a_long_replay_travels_packed_and_is_sent_once() -> None:
    lanes = Workbench.replay(list(cycles(1_000)))
    sent = lanes.get_state()["scene"]
    assert json.loads(zlib.decompress(sent["packed"])) == lanes.scene
    assert len(sent["packed"]) < len(json.dumps(lanes.scene)) / 5
    again: list[Any] = []
    lanes.send_state = again.append
    lanes._handle_custom_msg({"type": "snapshot"}, [])
    assert again == [], "nothing has changed since"


def test_only_a_page_that_sent_a_heartbeat_counts_as_closed_when_it_stops() -> None:
    """Without a browser no page sends a beat, so none must be taken for closed."""
    asked: list[Any] = []

    def note(**options: Any) -> Fleet:
        asked.append(options["deadman_s"])
        raise FleetError("not this time")

    bench = Workbench(fleet_of=note)
    for seen in (False, True):
        if seen:
            bench.lanes._handle_custom_msg({"type": "hb"}, [])
        with pytest.raises(FleetError):
            bench.launch()
    bench.close()
    assert asked[0] is None and asked[1] >= 90


@dataclass(kw_only=True)
class WritersToCome:
    """Writers that start and never work, until a test says that they do: a fleet's own plan."""

    plan: Plan
    run_dir: Path = Path("nowhere")
    alive: bool = False
    error: str | None = None
    state: str = "starting"
    waits: bool = False
    prepared: Any = None
    said: list[Event] = field(default_factory=list)

    def remove_files(self) -> None:
        """It has none."""

    @property
    def writers(self) -> dict[str, str]:
        return {"W1": self.state}

    def prepare(self) -> None:
        self.waits = True

    def launch(self) -> None:
        self.alive = True

    def stop(self) -> None:
        self.alive = self.waits = False

    def fence(self, on: bool) -> None:
        """Nothing to switch."""

    def lose_response(self, writer: str | None) -> None:
        """Nothing is sent."""

    def beat(self) -> None:
        """Nothing ends without it."""

    def events(self, since: int = 0) -> list[Event]:
        return self.said[since:]

    def work(self) -> None:
        """The first request of W1."""
        self.state = "running"
        self.said.append(event(1.0, "W1", "began", instant="20260101000000001"))
        self.said += write(5.0, "acquire", "a", 1)


@pytest.fixture
def slow_start() -> Iterator[tuple[Workbench, list[WritersToCome]]]:
    made: list[WritersToCome] = []

    def fleet_of(*, kind: Kind, prepared: Any = None, **_: Any) -> WritersToCome:
        plan = Fleet(kind=kind, run_dir=".").plan
        made.append(WritersToCome(plan=plan, prepared=prepared))
        return made[-1]

    bench = Workbench(fleet_of=fleet_of)
    yield bench, made
    bench.close()


def test_a_recorded_run_plays_from_the_launch_until_the_first_event(
    slow_start: tuple[Workbench, list[WritersToCome]],
) -> None:
    bench, made = slow_start
    bench.launch()
    assert bench.lanes.status["recorded"], "at once: plain writers take less than a second"
    assert bench.state == "starting" and not bench.lanes.live
    assert bench.lanes.scene["events"] == 47 and "verdict" not in bench.lanes.status
    made[0].work()
    until(lambda: not bench.lanes.status["recorded"])
    assert bench.lanes.live and bench.lanes.scene["events"] == 4


def test_a_double_click_launches_once(
    slow_start: tuple[Workbench, list[WritersToCome]],
) -> None:
    bench, made = slow_start
    bench.launch_button.click()
    bench.launch_button.click()
    bench._control.wait(bench._control.ask("fence", on=True))
    assert len(made) == 1


def test_pyspark_replaces_a_run_in_which_a_reader_lost_a_response_at_a_second_click(
    slow_start: tuple[Workbench, list[WritersToCome]],
) -> None:
    bench, made = slow_start
    bench.launch(kind="plain")
    made[0].work()
    bench._control.wait(bench._control.ask("lose", writer=None))
    bench.spark_button.click()
    until(lambda: len(made) == 2 and bench.spark_button.disabled)
    made[1].work()
    until(lambda: "press PySpark" in bench.lanes.status["said"])
    until(lambda: not bench.spark_button.disabled)
    assert bench._control.fleet is made[0]
    bench.spark_button.click()
    until(lambda: bench._control.fleet is made[1])
    assert "these are its writers" in bench.lanes.status["said"]


def test_what_was_said_a_while_ago_is_not_said_any_more(
    slow_start: tuple[Workbench, list[WritersToCome]], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, made = slow_start
    bench.launch()
    made[0].work()
    bench._control.wait(bench._control.ask("fence", on=True))
    assert "with the fence" in bench.lanes.status["said"]
    monkeypatch.setattr("lockkit.lab.widgets.control.SAID_MS", 50.0)
    until(lambda: bench.lanes.status["said"] == "")


def launched_and_closed(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """An app's page launches a run, and is closed."""
    bench.lanes._handle_custom_msg({"type": "hb"}, [])
    bench.launch()
    monkeypatch.setattr("lockkit.lab.widgets.control.SILENT_MS", 0.0)
    monkeypatch.setattr("lockkit.lab.widgets.control.IN_VOILA", True)


def test_an_app_sends_nothing_to_a_page_that_was_closed_until_it_is_there_again(
    slow_start: tuple[Workbench, list[WritersToCome]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent counts as use of the kernel, which would end two minutes later."""
    bench, made = slow_start
    launched_and_closed(bench, monkeypatch)
    made[-1].work()
    bench._control.wait(bench._control.ask("fence", on=True))
    assert bench.lanes.status["recorded"], "no news"
    monkeypatch.setattr("lockkit.lab.widgets.control.SILENT_MS", 60_000.0)
    until(lambda: not bench.lanes.status["recorded"])


def test_an_app_sends_nothing_when_the_writers_of_a_closed_page_end(
    slow_start: tuple[Workbench, list[WritersToCome]], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, made = slow_start
    launched_and_closed(bench, monkeypatch)
    bench._control.wait(bench._control.ask("fence", on=True))
    before = bench._news
    made[-1].alive = False
    until(lambda: not bench._control._page_seen.is_set())
    bench._control.wait(bench._control.ask("snapshot"))
    assert bench._news is before, "it would count as use of the kernel, for two minutes more"


def test_no_recorded_run_plays_over_writers_that_test_their_store(
    slow_start: tuple[Workbench, list[WritersToCome]],
) -> None:
    bench, made = slow_start
    bench.launch()
    made[0].said += probing_its_store("W1", 200, 429)
    until(lambda: not bench.lanes.status["recorded"])
    assert bench.lanes.live and bench.lanes.scene["events"] == 3


def test_writers_wait_for_the_launch_only_while_a_page_shows_the_panel(
    slow_start: tuple[Workbench, list[WritersToCome]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, made = slow_start
    bench.launch()
    bench.stop()
    assert len(made) == 1, "no page has shown the panel, as when nbconvert runs the notebook"
    bench.lanes._handle_custom_msg({"type": "snapshot"}, [])
    until(lambda: len(made) == 2 and made[1].waits)
    bench.launch(provider="gcs")
    assert made[2].prepared is made[1] and made[2].alive
    monkeypatch.setattr("lockkit.lab.widgets.control.DEADMAN_S", 0.05)
    bench.stop()
    until(lambda: len(made) == 4 and not made[3].waits)  # the page is silent
    monkeypatch.setattr("lockkit.lab.widgets.control.DEADMAN_S", 100.0)
    bench.lanes._handle_custom_msg({"type": "hb"}, [])
    until(lambda: len(made) == 5 and made[4].waits)
    bench.launch(kind="connect")
    assert made[5].prepared is None and not made[4].waits, "PySpark starts in another way"


def test_the_next_launchs_writers_start_with_a_runs_first_commit_so_a_stop_finds_them_ready(
    slow_start: tuple[Workbench, list[WritersToCome]], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, made = slow_start
    monkeypatch.setattr("lockkit.lab.widgets.control.has_room", lambda: True)
    bench.lanes._handle_custom_msg({"type": "snapshot"}, [])
    until(lambda: len(made) == 1 and made[0].waits)
    bench.launch()
    made[1].work()
    until(lambda: bench.state == "running")
    assert len(made) == 2, "the first commit does not wait for their imports"
    for number in range(3):
        commit = {"instant": f"2026010100000{number}", "epoch": 1}
        made[1].said.append(event(9.0 + number, "W1", "published", **commit))
    until(lambda: len(made) == 3 and made[2].waits)
    bench.stop()
    bench.launch()
    assert len(made) == 4 and made[3].prepared is made[2], "one set, also after three commits"
    made[3].said.append(event(19.0, "W1", "published", **commit))
    until(lambda: len(made) == 5 and made[4].waits)
    bench.spark_button.click()
    until(lambda: len(made) == 6 and not made[4].waits)  # PySpark takes the memory
    made[3].said.append(event(20.0, "W1", "published", **commit))
    bench.fence(on=False)
    assert len(made) == 6


def test_with_little_memory_the_next_launchs_writers_start_with_the_stop(
    slow_start: tuple[Workbench, list[WritersToCome]], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, made = slow_start
    monkeypatch.setenv("MEM_LIMIT", "2000000000")
    bench.lanes._handle_custom_msg({"type": "snapshot"}, [])
    until(lambda: len(made) == 1 and made[0].waits)
    bench.launch()
    made[1].said.append(event(9.0, "W1", "published", instant="20260101000000", epoch=1))
    bench.fence(on=False)
    assert len(made) == 2
    bench.stop()
    assert len(made) == 3 and made[2].waits


def test_the_next_launchs_writers_start_while_a_run_that_never_committed_ends(
    slow_start: tuple[Workbench, list[WritersToCome]], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, made = slow_start
    bench.lanes._handle_custom_msg({"type": "snapshot"}, [])
    until(lambda: len(made) == 1 and made[0].waits)
    bench.launch()
    seen = []
    monkeypatch.setattr(made[1], "stop", lambda: seen.append(len(made)))
    bench.stop()
    assert seen == [3] and made[2].waits


def test_the_launch_on_a_store_with_one_write_per_second_says_so(
    slow_start: tuple[Workbench, list[WritersToCome]],
) -> None:
    bench, _made = slow_start
    bench.provider.value = "gcs"
    assert "one write per second" not in str(bench.lanes.status)
    bench.launch()
    until(lambda: "one write per second" in str(bench.lanes.status["said"]))


def test_closing_the_panel_ends_the_writers_that_wait(
    slow_start: tuple[Workbench, list[WritersToCome]],
) -> None:
    bench, made = slow_start
    bench.lanes._handle_custom_msg({"type": "snapshot"}, [])
    until(lambda: len(made) == 1 and made[0].waits)
    bench.close()
    until(lambda: not made[0].waits)


def test_pyspark_starts_beside_the_writers_that_run_and_replaces_them_once_it_works(
    slow_start: tuple[Workbench, list[WritersToCome]],
) -> None:
    bench, made = slow_start
    bench.launch()
    plain = made[0]
    plain.work()
    until(lambda: bench.state == "running")
    bench.spark_button.click()
    until(lambda: len(made) == 2 and made[1].alive)
    until(lambda: "in the background" in bench.lanes.status["said"])
    assert plain.alive and bench._control.fleet is plain and bench.spark_button.disabled
    made[1].state = "running"
    made[1].said.append(event(1.0, "W1", "began", instant="20260101000000001"))
    bench.fence(on=False)  # the controller looks at both
    assert bench._control.fleet is plain, "PySpark runs, and has not asked for the lock yet"
    made[1].work()
    until(lambda: bench._control.fleet is made[1])
    assert not plain.alive and made[1].plan.kind == "connect"
    until(lambda: bench.team.value == ("connect", 3))
    bench.stop()
    assert not made[1].alive and bench.state == "stopped"


def test_pyspark_that_does_not_start_leaves_the_writers_that_run(
    slow_start: tuple[Workbench, list[WritersToCome]],
) -> None:
    bench, made = slow_start
    bench.launch()
    made[0].work()
    bench.spark_button.click()
    until(lambda: len(made) == 2)
    made[1].error = "no Java"
    until(lambda: "did not start: no Java" in bench.lanes.status["said"])
    assert made[0].alive and not made[1].alive
    until(lambda: not bench.spark_button.disabled)
    bench.spark_button.click()
    until(lambda: len(made) == 3 and made[2].alive)
    bench.stop()
    assert not made[0].alive and not made[2].alive, "Stop ends those that are only starting"


def test_a_run_is_saved_as_a_page_by_a_button() -> None:
    lanes = Workbench.replay(HISTORIES / "bad" / "stalled_commit_accepted.jsonl")
    sent: list[Any] = []
    lanes.send = lambda content, buffers: sent.append((content, buffers))
    lanes._handle_custom_msg({"type": "export"}, [])
    ((content, (page,)),) = sent
    assert content == {"type": "page", "name": "lockkit-run.html"}
    events = recorded("bad/stalled_commit_accepted")
    assert page.decode() == page_of(events, check(events), title="lockkit: what happened")


NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_a_term_is_explained_in_a_notebook_as_in_the_picture() -> None:
    script = (ROOT / "lockkit" / "lab" / "widgets" / "lanes.js").read_text()
    terms = dict(re.findall(r'^  "?([a-z -]+)"?: "(.+)",$', script, re.M))
    assert {"holder", "ghost", "roll-forward", "generation", "lease", "epoch"} <= set(terms)
    shown = []
    for each in NOTEBOOKS:
        cells = json.loads(each.read_text())["cells"]
        text = " ".join("".join(cell["source"]) for cell in cells)
        shown += re.findall(r'<abbr title="([^"]+)">(.+?)</abbr>', text)
    for title, word in shown:
        assert " ".join(title.split()) == f"{word}: {terms[word]}"
    assert {word for _, word in shown} == {"holder", "lease", "fence", "generation", "epoch"}


@pytest.mark.parametrize("source", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_term_is_explained_where_a_notebook_first_names_it(source: Path) -> None:
    cells = json.loads(source.read_text())["cells"]
    prose = "\n".join("".join(each["source"]) for each in cells if each["cell_type"] == "markdown")
    prose = re.sub("`[^`]*`", "", prose)  # names in code
    prose = re.sub(r'<abbr\s+title="[^"]*">(.+?)</abbr>', r"\1 (explained)", prose)
    for term in ("holder", "ghost", "roll-forward", "generation"):
        first = re.search(rf"\b{term}s?\b( \(explained\))?", prose)
        assert first is None or first[1], f"{term} at {prose[first.start() - 60 :][:120]!r}"


def test_a_recorded_history_is_replayed_with_its_verdict() -> None:
    lanes = Workbench.replay(HISTORIES / "bad" / "stalled_commit_accepted.jsonl")
    assert lanes.status["verdict"] == "INVALID" and "W1" in lanes.status["because"]
    assert not lanes.live and lanes.scene["events"] == 125


# --- with real writers ---------------------------------------------------------------------------


def test_a_stalled_writer_is_refused_and_a_lost_answer_is_resolved(
    bench: Workbench, tmp_path: Path
) -> None:
    bench.launch()
    bench.until("started")
    verdict = bench.rehearse()
    kinds = {each.kind for each in bench.events}
    assert verdict.kind == "VALID", verdict.because
    assert {"stalled", "resumed", "fault", "refused", "published"} <= kinds
    assert bench.lanes.status["verdict"] == "VALID" and bench.lanes.scene["rows"]
    assert any("published" in line for line in bench.lanes.status["log"])
    assert leftovers(bench._control.fleet.id) == []
    assert bench.export(tmp_path / "run.html").stat().st_size > 40_000


def test_without_the_fence_the_late_commit_lands_and_the_verdict_is_invalid(
    bench: Workbench,
) -> None:
    verdict = bench.rehearse(fence=False)
    assert not bench.fence_on.value, "the box shows how the writers ran"
    assert verdict.kind == "INVALID" and "W1" in verdict.because
    assert any(each.get("evidence") for each in bench.lanes.scene["arrows"])


def test_stop_ends_paused_writers(bench: Workbench) -> None:
    bench.launch()
    bench.until("published")
    bench.stall_buttons.children[0].click()
    bench.until("stalled", who="W1")
    until(lambda: bench.stall_buttons.children[0].description == "Resume W1")
    assert bench.state == "stalled"
    bench.stop_button.click()
    until(lambda: bench.state == "stopped")
    assert leftovers(bench._control.fleet.id) == [] and not bench.launch_button.disabled
    bench.close()
    until(lambda: not bench._control.fleet.run_dir.exists())
    assert bench.launch_button.disabled and bench.lanes.status["said"] == CLOSED


def test_a_run_that_is_stopped_while_it_starts_is_no_failure(bench: Workbench) -> None:
    bench.launch_button.click()
    until(lambda: not bench.launch_button.disabled or bench.state != "idle")
    bench.stop()
    until(lambda: bench.state == "stopped")
    assert bench.lanes.status["error"] is None
    if not bench.lanes.scene["rows"]:  # it was stopped before the first grant
        assert not bench.lanes.status.get("verdict")
    assert leftovers(bench._control.fleet.id) == []


def test_a_live_run_is_judged_once_the_store_has_recorded_a_request() -> None:
    every = recorded("good/lost_response_recovered")
    control: Any = object.__new__(Controller)
    control._clock, control._checked, control._check_after_ms = Clock(), 0, 0.0
    for events in ([each for each in every if each.kind != "request"], every):
        control._story, control.verdict, control._taken = HistoryModel(), None, len(events)
        control._story.add(events)
        control.fleet = SimpleNamespace(events=lambda events=events: events)
        control._judge(at_last=False)
        assert (control.verdict is None) == (events is not every)
        control._checked = control._check_after_ms = 0
    control.fleet, control._story = SimpleNamespace(events=lambda: every[:1]), HistoryModel()
    control._judge(at_last=True)
    assert control.verdict is not None, "at the end it says what is missing"
