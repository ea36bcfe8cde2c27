"""What notebook 11 stands on: programs that write at the same time, with Spark and without."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from spark_world import NO_JAVA

pytest.importorskip("ipywidgets", reason="make test installs ipywidgets")

from lockkit.events import INSTANT
from lockkit.lab.course import programs as course
from lockkit.lab.course.orders_outcome import OrdersOutcome, ProgramReport, StoppedDriver
from lockkit.lab.course.program import PlainProgram, rows_of, table_of
from lockkit.lab.course.programs import FATES, FIRST, ONCE, SKIPPED, SUMS, Programs
from lockkit.lab.processes.process import leftovers
from lockkit.lab.verify.check import check
from lockkit.stores import open_store
from lockkit.table import read_table

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


# --- what is said of it --------------------------------------------------------------------------


def program_reports(*done: bool) -> tuple[ProgramReport, ...]:
    return tuple(ProgramReport(f"W{n}", each, HOSTILE, HOSTILE) for n, each in enumerate(done, 1))


@pytest.mark.parametrize(
    ("amount", "done", "means"),
    [(30, (True, True, True), SUMS[0]), (10, (True, True, True), SUMS[1]),
     (10, (True, False, False), SUMS[2]), (20, (True, True, True), "20: 3 committed")],
)  # fmt: skip
def test_the_total_amount_is_explained_by_the_table_and_by_the_commits(
    amount: int, done: tuple[bool, ...], means: str
) -> None:
    assert course._amounts(program_reports(*done), {"a": amount}) == means


def test_the_answers_shown_for_a_program_are_escaped() -> None:
    class Verdict:
        kind, said = "VALID", HOSTILE

    page = OrdersOutcome(
        did="",
        reported=program_reports(True, False),
        rows={HOSTILE: 1},
        events=(),
        verdict=Verdict(),
    )._repr_html_()
    assert "<img" not in page and page.count("&lt;img") == 5


def test_a_conflict_that_is_printed_shortens_its_instants_as_the_pictures_do() -> None:
    said = "20260101000335750 conflicts with 20260101000335751"
    told = ProgramReport("W1", False, said, "CommitConflict")
    assert repr(told) == "W1: CommitConflict: ..335750 conflicts with ..335751"
    assert "..335750" in repr(StoppedDriver(way="save", did="it waits", reported=told))
    page = OrdersOutcome(did="", reported=(told,), rows={}, events=(), verdict=check([]))
    assert not INSTANT.search(f"{page!r} {page._repr_html_()}")


def test_rows_are_the_same_after_a_trip_through_an_arrow_table() -> None:
    assert rows_of(table_of(FIRST)) == FIRST and table_of([]).num_rows == 0


# --- plain programs -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crew() -> Iterator[Programs]:
    made = Programs("plain")
    made.start(lambda _: None)
    yield made
    made.stop()
    assert leftovers(made._id) == []


def test_programs_must_be_started_first_and_new_ones_end_those_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(course, "_newest", None)
    first = Programs("plain")
    with pytest.raises(RuntimeError, match=r"call start\(\) first"):
        first.add(ONCE)
    ended: list[str] = []
    monkeypatch.setattr(first, "stop", lambda: ended.append("first"))
    Programs("plain").stop()
    assert ended == ["first"]


def test_a_program_that_ends_is_reported_with_its_last_output(crew: Programs) -> None:
    """An order that nobody knows; the others go on without it."""
    member = crew._members["W3"]
    member.send(do="dance", url=crew.url)
    with pytest.raises(TimeoutError, match=r"(?s)W3 ended.*no attribute 'dance'"):
        member.hear()


def test_upserts_of_different_buckets_commit_at_once_and_of_one_bucket_only_one(
    crew: Programs,
) -> None:
    """The notebook's challenge, from both sides, without its third program."""
    rows = {"W1": [("a", "eu", 2, 1)], "W2": [("b", "eu", 2, 2)]}
    shared, apart = crew.together(rows), crew.together(rows, buckets=4)
    assert (shared.committed, apart.committed) == (1, 2)
    assert [each.kind for each in shared.refused] == ["refused"] and apart.refused == []
    assert shared.verdict.kind == apart.verdict.kind == "VALID"
    assert (apart.rows["a"], apart.rows["b"]) == (1, 2)
    assert str(crew.stop_driver("save")) == SKIPPED


def test_where_each_program_writes_by_itself_its_file_groups_are_sparks(
    shared_emulator: Any, bucket: str
) -> None:
    """By the same hash of the key: else a plain program and a PySpark one would not meet."""
    from lockkit.clock import Clock
    from lockkit.lab.course.program import config
    from lockkit.runtime import run
    from lockkit.table import create_table, load_snapshot
    from lockkit.table.read.buckets import is_bucketed

    url, endpoint = f"s3://{bucket}/orders", shared_emulator.s3
    store = open_store(url, endpoint=endpoint)
    run(create_table(config(4)), store, Clock())
    PlainProgram(url, endpoint, "W0", lambda *_, **__: None).put(FIRST)
    snapshot = run(load_snapshot(), store, Clock())
    buckets = {(partition, file_id[:8]) for partition, file_id in snapshot.groups}
    assert all(is_bucketed(file_id) for _, file_id in snapshot.groups)
    # What pmod(xxhash64(key), 4) is in Spark, for a, b, c and d.
    eu = {("region=eu", f"{number:08d}") for number in (0, 3, 2)}
    assert buckets == {*eu, ("region=us", "00000002")}
    assert sorted(rows_of(read_table(store))) == FIRST


# --- PySpark --------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.xdist_group("spark processes")
@pytest.mark.timeout(240)
@pytest.mark.skipif(bool(NO_JAVA), reason=NO_JAVA)
@pytest.mark.soak
def test_a_commit_handed_to_spark_completes_while_its_driver_is_paused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two PySpark programs on one Spark; and nothing of all that is left."""
    monkeypatch.setattr(course, "_newest", None)
    monkeypatch.setattr(course, "NAMES", ("W1", "W2"))
    crew, environment = Programs("connect"), dict(os.environ)
    try:
        crew.start(lambda _: None)
        assert str(crew.stop_driver("save")) == FATES[1]
    finally:
        crew.stop()
        os.environ.clear()
        os.environ.update(environment)
    assert leftovers(crew._id) == []


def test_a_stopped_driver_reports_a_skipped_check_and_its_answer_after_the_pause() -> None:
    assert SKIPPED in repr(StoppedDriver(way="save", did=SKIPPED))
    woken = StoppedDriver(
        way="save", did=FATES[1], reported=replace(program_reports(True)[0], said="returned")
    )
    assert repr(woken).endswith("The answer to W1 after it resumed: returned")
