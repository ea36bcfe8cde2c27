"""What notebook 04 says of a commit that was stopped, where its own run does not show it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from table_world import Holder, new_table

pytest.importorskip("ipywidgets", reason="make test installs ipywidgets")

from lockkit.clock import Clock
from lockkit.events import Event, event, read
from lockkit.lab.course.stalled import (
    ACCEPTED,
    BY_ITSELF,
    BY_THE_STORE,
    SideBySide,
    StalledRun,
    decided,
    orders,
    stall,
)
from lockkit.lab.widgets.ui import FAST
from lockkit.protocol.outcome import Applied
from lockkit.runtime import run
from lockkit.spark.orders import TABLE
from lockkit.table import TaskId, avro_schema, begin, commit, partition_path, prepare
from lockkit.table.write.groups import TargetGroup, WriteTask, write_group

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


def test_nobody_commits_out_of_turn_so_that_the_story_ends_on_any_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rival that rewrites the same file group whenever it can may refuse W1 forever."""
    monkeypatch.setenv(FAST, "1")
    monkeypatch.setattr("lockkit.lab.course.stalled.PAUSE_S", 0.0)
    ran = stall(fence=True, report=lambda _: None)
    steps = [(e.who, e.kind) for e in sorted(ran.events, key=lambda e: e.at_ms)
             if e.kind in ("stalled", "published", "refused")]  # fmt: skip
    assert steps[:2] == [("W1", "stalled"), ("W2", "published")]
    assert steps[-1] == ("W1", "published") and ran.decided == BY_THE_STORE
    late = steps.index(("W1", "refused"))
    assert steps[late:].count(("W2", "published")) <= 1, "the commit that was on its way"


def test_as_an_app_the_writers_are_those_that_start_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An app shows nothing before its last step, and Spark starts twice in a minute."""

    def no_fleet(*, kind: str, **_: Any) -> None:
        raise ValueError(kind)

    monkeypatch.delenv(FAST, raising=False)
    monkeypatch.setattr("lockkit.lab.widgets.launch.memory_bytes", lambda: 16_000_000_000)
    monkeypatch.setattr("lockkit.lab.course.stalled.Fleet", no_fleet)
    for as_app, kind in ((False, "connect"), (True, "plain")):
        monkeypatch.setattr("lockkit.lab.course.stalled.IN_VOILA", as_app)
        with pytest.raises(ValueError, match=kind):
            stall(fence=True, report=lambda _: None)


def request(key: str, status: int, at_ms: float) -> Event:
    return event(
        at_ms, "store", "request", client="W1", method="put", key=key, condition="if-match",
        status=status, answer="refused", applied=status == 200, before="", version="", attempt="a",
        began_ms=at_ms,
    )  # fmt: skip


PAUSED = event(10, "W1", "stalled", pid=1, why="")
WOKEN = event(13, "W1", "resumed", pid=1)
LATE = event(12, "W1", "refused", instant="1", epoch=1, error="LockLost", why="")


def test_the_stores_record_shows_what_refused_a_late_commit() -> None:
    """A 412 of the fence after the pause; one before it, or of the lock, decides nothing.

    That W1 woke is recorded by another process, on a busy machine after W1's next request.
    """
    fence, lock = "orders/.hoodie/.locks/fence.json", "orders/.hoodie/.locks/table_lock.json"
    assert decided([PAUSED, request(fence, 412, 11), WOKEN], LATE) == BY_THE_STORE
    for other in (request(fence, 412, 9), request(lock, 412, 11), request(fence, 200, 11)):
        assert decided([other, PAUSED, WOKEN], LATE) == BY_ITSELF
    published = event(12, "W1", "published", instant="1", epoch=1)
    assert decided([PAUSED, request(fence, 412, 11), WOKEN], published) == ACCEPTED


def test_orders_that_a_reader_no_longer_finds_are_counted_as_lost(
    shared_emulator: Any, bucket: str
) -> None:
    """The last commit is written, and never published; of the first the completed file goes."""
    place = {"url": f"s3://{bucket}/orders", "endpoint": shared_emulator.s3}
    store, recorded = new_table(place["url"], TABLE, endpoint=place["endpoint"]), []
    for number, count in enumerate((3, 4, 2)):
        transaction = run(begin(), store, Clock())
        rows = some_orders(number, count)
        group_target = TargetGroup((partition_path(TABLE, "EU"), f"group-{number}"))
        stat = write_group(
            WriteTask(store, transaction.target, TaskId(), Clock()), group_target, rows
        )
        assert stat is not None
        recorded.append(event(1, "W1", "note", text="wrote", files=[{"file": stat.path}]))
        avro = avro_schema(rows.schema, TABLE.name)
        if number < 2:
            prepared = run(prepare(transaction, [stat], schema=avro), store, Clock())
            run(commit(prepared, Holder(1)), store, Clock())
            recorded.append(event(1, "W1", "published", instant=prepared.instant, epoch=1))
    assert orders(**place, events=recorded) == (7, 7)
    first = next(str(each["instant"]) for each in recorded if each.kind == "published")
    (done,) = store.list(f".hoodie/timeline/{first}_")
    assert isinstance(store.delete(done.key), Applied)
    assert orders(**place, events=recorded) == (7, 4)


def some_orders(number: int, count: int) -> pa.Table:
    keys = [f"o{number}-{each}" for each in range(count)]
    return pa.table({"order_id": keys, "region": ["EU"] * count, "ordered_at": [1] * count})


def stalled(**other: Any) -> StalledRun:
    class Verdict:
        kind, said = "INVALID", HOSTILE

    said: dict[str, Any] = {
        "fence": False, "kind": "plain", "decided": HOSTILE, "reported": 7, "there": 4,
        "events": (PAUSED, WOKEN), "verdict": Verdict(),
    }  # fmt: skip
    return StalledRun(**said | other)


def test_the_output_of_a_run_is_escaped_and_also_readable_as_text() -> None:
    page = stalled()._repr_html_()
    assert "<img" not in page and "&lt;img" in page and "✗ 3 lost" in page
    assert "✓ none lost" in stalled(there=7)._repr_html_()
    beside = SideBySide(stalled(), stalled(fence=True))
    text = beside._repr_mimebundle_()
    text = text[0] if isinstance(text, tuple) else text
    assert text["text/plain"].splitlines()[1].startswith("Fence on. W1's late commit")


def test_both_runs_open_at_the_late_commit_and_not_at_a_conflict_before_the_pause() -> None:
    file = Path(__file__).parents[1] / "datasets/histories/good/stalled_commit_refused.jsonl"
    with file.open() as lines:
        events = list(read(lines))
    paused = next(each for each in events if each.who == "W1" and each.kind == "stalled")
    late = next(each for each in events if each.who == "W1" and each.kind == "refused")
    before = event(events[0].at_ms + 1, "W1", "refused", **late.data)
    assert before.at_ms < paused.at_ms < late.at_ms
    resumed = next(each for each in events if each.who == "W1" and each.kind == "resumed")
    events[events.index(resumed)] = replace(resumed, at_ms=late.at_ms + 1)  # recorded late
    beside = SideBySide(stalled(events=tuple(sorted([before, *events], key=lambda e: e.at_ms))))
    picture = beside.view.children[0].children[1]
    (chosen,) = (each for each in picture.scene["marks"] if each["id"] == picture.selected)
    assert chosen["t"] == late.at_ms - events[0].at_ms


def test_the_evidence_of_both_runs_can_be_shown_also_where_nothing_broke() -> None:
    """The valid run's is the fence's refusal of the late write, and W1's own record of it."""
    folder, marked = Path(__file__).parents[1] / "datasets/histories", []
    for file, decision in (("bad/stalled_commit_accepted", ACCEPTED),
                           ("good/stalled_commit_refused", BY_THE_STORE)):  # fmt: skip
        with (folder / f"{file}.jsonl").open() as lines:
            run = stalled(decided=decision, events=tuple(read(lines)))
        scene = SideBySide(run).view.children[0].children[1].scene
        drawn = [each for part in ("marks", "arrows", "bars") for each in scene[part]]
        marked.append([each for each in drawn if each.get("evidence")])
    broken, valid = marked
    assert len(broken) >= 2
    assert [each["kind"] for each in valid] == ["refused", "write"]
    assert valid[1]["lane"] == "W1" and "fence.json" in valid[1]["detail"]
    assert "answer 412" in valid[1]["detail"]
