"""The commits of notebook 08: which pairs may stand, and what is told to whom."""

from __future__ import annotations

import pytest

pytest.importorskip("ipywidgets", reason="make test installs ipywidgets")

from lockkit.events import INSTANT, shortened
from lockkit.lab.course.overtaking import (
    AGAIN,
    BOTH,
    INSERT_3,
    OVERWRITE,
    REFUSED,
    UPDATE_1,
    UPDATE_2,
    WRITES,
    Instants,
    OvertakenWriter,
    overtake,
    who_goes_with_whom,
)
from lockkit.table.format.timeline import V6, parse_timeline

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


def test_with_the_lock_alone_both_writers_succeed_and_one_update_is_lost() -> None:
    hudi, fenced = overtake("hudi"), overtake("fenced")
    assert (str(hudi), hudi.verdict.kind) == (BOTH, "INVALID")
    assert "lost update" in hudi.verdict.because and hudi.verdict.because.count("2026") == 2
    assert (str(fenced), fenced.verdict.kind, fenced.rows[0]) == (REFUSED, "VALID", ("order-1", 20))
    assert "LockLost" in fenced.ended["W1"]
    assert [row[3].count("completed") for row in fenced.instants.rows] == [1, 0, 1]
    drawn = hudi._repr_html_()
    told = f"{drawn} {hudi.ended} {fenced.ended} {fenced!r}"
    assert "committed .." in told and not INSTANT.search(told), "instants as in the pictures"


@pytest.mark.parametrize("mode", ["fenced", "hudi"])
def test_updates_of_two_files_both_stay_committed(mode: str) -> None:
    apart = overtake(mode, UPDATE_1, UPDATE_2, late="W2")
    assert apart.rows == (("order-1", 10), ("order-2", 20))
    assert (str(apart), apart.rounds) == ((AGAIN, 2) if mode == "fenced" else (BOTH, 1))
    if mode == "fenced":  # not of grants, for nobody locks here; nor of a rollback
        said = "3 commits, none stale and none lost; not exercised: lost response, roll-forward"
        assert apart.verdict.because == said


def test_file_groups_decide_which_commits_may_overlap() -> None:
    """Both wrote it, or one wrote what the other took away; an insert meets only an overwrite."""
    pairs = who_goes_with_whom()
    refused = {pair for pair in pairs.met if pairs.refused(*pair)}
    same = {(UPDATE_1, UPDATE_1), (UPDATE_2, UPDATE_2)}
    overwrites = {(one, other) for one in WRITES for other in WRITES if OVERWRITE in (one, other)}
    assert refused == same | overwrites
    assert {each.verdict.kind for each in pairs.met.values()} == {"VALID"}
    assert pairs._repr_html_().count("✗ refused") == repr(pairs).count("✗ refused") == 9
    assert len(pairs.met) == len(WRITES) ** 2


def test_two_inserts_of_one_order_show_it_twice_without_a_violation() -> None:
    twice = overtake("fenced", INSERT_3, INSERT_3, late="W2")
    assert [order for order, _ in twice.rows].count("order-3") == 2
    assert twice.verdict.kind == "VALID"


def test_missing_files_are_reported() -> None:
    with pytest.raises(ValueError, match="no write here is 'drop'; there are: update order-1"):
        overtake("fenced", "drop")
    with pytest.raises(ValueError, match="no writer 'W3'; there are W1 and W2"):
        overtake(late="W3")


def test_an_instant_that_was_only_requested_is_not_visible() -> None:
    instants = Instants.of(parse_timeline([], V6), {})
    assert instants.rows == () and "<table" in instants._repr_html_()


def test_the_answers_shown_for_a_writer_are_escaped() -> None:
    shown = OvertakenWriter(
        ended={HOSTILE: HOSTILE}, rounds=0, rows=((HOSTILE, 1),), events=(),
        instants=Instants(((HOSTILE, "", "", ""),)), verdict=_Said(),
    )._repr_html_()  # fmt: skip
    assert "<img" not in shown and shown.count("&lt;img") == 5


class _Said:
    kind, said = "INVALID", HOSTILE


def test_a_verdict_shortens_the_attempt_that_it_names_and_no_files_id() -> None:
    handle = "0f3a9c11-2b4d-4e6f-8a1b-3c5d7e9f0a1b"
    assert shortened(f"its own write {handle}/12") == "its own write 0f3a9c11/12"
    assert shortened(f"the file eu/{handle}-0_1") == f"the file eu/{handle}-0_1"
