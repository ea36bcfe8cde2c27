"""What notebooks 09 and 10 stand on: writers that stand still in the middle of a real table."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("ipywidgets", reason="make test installs ipywidgets")

from lockkit.lab.course.dead import (
    REFUSED,
    SAVED,
    TORN,
    WASTED,
    ages,
    late_beat,
    meet,
    remains,
    tune,
    wake,
)
from lockkit.lab.course.grid import grid
from lockkit.lab.course.table_testbed import TableTestbed, seen
from lockkit.lab.course.upkeep import (
    AS_IT_WAS,
    CLUSTERING,
    COMMITS,
    ERROR,
    LOST,
    NOBODY,
    UPSERT,
    clash,
    hold_back,
    matrix,
    oversleep,
    read_slowly,
)

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


# --- 09: the dead, and who only seems to be -------------------------------------------------------


def test_without_the_fence_a_rolled_back_writer_publishes_a_commit_without_its_file() -> None:
    wrong = wake(fence=False)
    assert (str(wrong), wrong.reported, wrong.verdict.kind) == (TORN, "committed", "INVALID")
    assert "rolled back, and W1 made it visible" in wrong.verdict.because


def test_with_the_fence_that_writer_is_refused_and_retries() -> None:
    right = wake(fence=True)
    assert (str(right), right.reader, right.again) == (REFUSED, "k1 1, k2 1", "k1 1, k2 1, k3 3")
    assert right.reported.startswith("refused, twice") and right.verdict.kind == "VALID"


def test_every_object_that_a_dead_writer_leaves_is_explained() -> None:
    left = remains()
    kinds = [re.sub(r"\d{17}", "T", key) for key, _, _ in left.rows]
    assert kinds == [
        ".hoodie/.heartbeat/T", ".hoodie/.temp/T/k1-file-0_0-0-0_T.parquet.marker.CREATE",
        ".hoodie/T.commit.requested", ".hoodie/T.inflight", "k1-file-0_0-0-0_T.parquet",
    ]  # fmt: skip


def test_a_silent_writer_is_dead_after_two_misses_and_to_an_eager_one_at_once() -> None:
    table = ages()
    assert [table.dead(age, "LAZY") for age in (0, 60, 110, 130, 600)] == [False] * 3 + [True] * 2
    assert table.dead(0, "EAGER") and not table.dead(600, "NEVER")


@pytest.mark.parametrize(("guarded", "becomes"), [(True, SAVED), (False, WASTED)])
def test_a_late_heartbeat_write_defeats_a_writer_that_ends_the_older_version(
    guarded: bool, becomes: str
) -> None:
    raced = late_beat(guarded)
    assert (str(raced), raced.verdict.kind) == (becomes, "VALID")


def test_markers_reveal_a_conflict_before_a_file_is_written() -> None:
    assert (meet(early=False).files, meet(early=True).files) == (1, 0)
    assert "began earlier and is writing" in meet(early=True).why


@pytest.mark.parametrize(
    ("interval_s", "misses", "solved"),
    [(60, 2, False), (60, 1, False), (30, 5, True), (60, 3, True), (10, 40, False)],
)
def test_an_interval_and_its_misses_outlast_a_pause_and_end_before_the_deadline(
    interval_s: int, misses: int, solved: bool
) -> None:
    assert tune(interval_s, misses).solved is solved


def test_an_invalid_interval_is_reported() -> None:
    with pytest.raises(ValueError, match="at least one second"):
        tune(0, 2)


# --- 10: services beside writers and readers ------------------------------------------------------


@pytest.mark.parametrize(
    ("retained", "got", "solved"),
    [(1, ERROR, False), (4, ERROR, False), (5, AS_IT_WAS, True), (6, AS_IT_WAS, False)],
)
def test_a_slow_reader_gets_its_rows_where_enough_is_retained_and_an_error_where_not(
    retained: int, got: str, solved: bool
) -> None:
    read = read_slowly(retained)
    assert (str(read), read.solved) == (got, solved)
    assert read.files == min(COMMITS, retained + 1)


def test_a_silent_writer_delays_the_clean_until_its_rollback() -> None:
    held = hold_back()
    assert (held.beside, held.after) == (0, 3)


@pytest.mark.parametrize(("fence", "lost", "kind"), [(False, LOST, "INVALID"),
                                                     (True, CLUSTERING, "VALID")])  # fmt: skip
def test_a_clustering_that_overslept_loses_the_upserts_rows_unless_it_is_fenced(
    fence: bool, lost: str, kind: str
) -> None:
    slept = oversleep(fence)
    assert (str(slept), slept.verdict.kind) == (lost, kind)
    assert ("k1 10" in slept.rows) is fence


def test_the_second_writer_yields_unless_writers_have_priority() -> None:
    progress: list[str] = []
    found = matrix(report=progress.append)
    assert len(progress) == len(found.rows)
    assert [each[1] for each in found.rows] == [CLUSTERING, UPSERT, UPSERT, NOBODY]
    assert [each[2] for each in found.rows] == [CLUSTERING, CLUSTERING, CLUSTERING, NOBODY]
    assert {each.kind for each in found.verdicts} == {"VALID"}


def test_an_unknown_order_or_retention_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no order 'sideways'; there are: began before"):
        clash("sideways")
    with pytest.raises(ValueError, match="at least one commit"):
        read_slowly(0)


# --- both -----------------------------------------------------------------------------------------


def test_a_simulated_stall_advances_every_clock_and_takes_no_real_time() -> None:
    with TableTestbed() as testbed:
        writer, before = testbed.writer("W1"), testbed.clock.wall_ms()
        writer.stop_at("checked", lambda: testbed.clock.leap(3_600))
        writer.publish(writer.insert(["k1"], 1))
        assert testbed.clock.wall_ms() - before >= 3_600_000
        stall = [each for each in testbed.events if each.kind in ("stalled", "resumed")]
        assert stall[1].at_ms - stall[0].at_ms >= 3_600_000
        assert seen(testbed) == "k1 1"


def test_the_text_of_a_stores_error_is_escaped() -> None:
    page = grid("rows", ("a",), [(HOSTILE,)])
    assert "<img" not in page and "&lt;img" in page
