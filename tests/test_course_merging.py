"""What notebook 16 stands on: one overlap under two kinds of control, and files that are merged."""

from __future__ import annotations

import random
import re

import pytest

pytest.importorskip("ipywidgets", reason="make test installs ipywidgets")

from lockkit.lab.course.merging import LOST, SEEN, WRITERS, Overlap, compact_beside
from lockkit.lab.course.staged_upserts import NON_BLOCKING, OPTIMISTIC, PENDING, StagedUpserts
from lockkit.lab.widgets.charts import HUES


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_steps_shows_the_greatest_value_of_the_commits_that_stand(seed: int) -> None:
    """Beside a dictionary that knows which commits stand; compactions change no row."""
    chance = random.Random(f"overlap {seed}")
    for control in (OPTIMISTIC, NON_BLOCKING):
        stage, written = StagedUpserts(control), dict[str, tuple[str, int, int]]()
        expected = {"order-1": ("order-1", 1, 0), "order-2": ("order-2", 1, 0)}
        for number in range(12):
            name = chance.choice([*WRITERS, "C"])
            if name == "C":
                stage.compact()
            elif name not in stage.begun:
                order = f"order-{chance.randint(1, 2)}"
                written[name] = order, chance.randint(2, 9), number
                stage.write(name, [written[name]])
                assert [each.owner for each in stage.files if each.standing == PENDING]
            else:
                stands = stage.commit(name)
                assert stands or control == OPTIMISTIC
                id, at, _ = written[name]
                if stands and at > expected[id][1]:
                    expected[id] = written[name]
                if stands and at == expected[id][1]:  # the later instant, which began later
                    expected[id] = next(each for each in stage.rows if each[0] == id)
                    assert expected[id][1] == at
            assert stage.rows == tuple(sorted(expected.values())), stage.files
        assert stage.verdict.kind == "VALID"


def test_buttons_follow_what_each_writer_may_do_and_refused_writers_may_begin_again() -> None:
    tables = Overlap().overlap()
    buttons = {key: each.disabled for key, each in tables._buttons.items()}
    assert buttons == {(what, name): what == "commit" for what, name in tables._buttons}
    assert "refused, and rolled back" in tables.stages[0].ended["W1"]
    shown = tables._panes[0].value
    assert "W2&#x27;s commit .." in shown and "also rewrote this file group" in shown
    assert not re.search(r"\d{17}|0{8}", shown), "a full instant, or a file group's id"
    tables._buttons["write", "W1"].click()
    assert tables._buttons["write", "W1"].disabled and PENDING in tables._panes[0].value
    tables._buttons["commit", "W1"].click()
    tables.compact()
    assert {each.rows[0] for each in tables.stages} == {("order-1", 4, 20)}
    assert all("lockkit-files" in each.value for each in tables._panes)


def test_a_reader_that_places_log_files_by_their_instants_loses_a_row() -> None:
    assert str(compact_beside(completion=False)) == LOST
    assert str(compact_beside(completion=True)) == SEEN


def test_a_writer_has_the_colour_that_it_has_in_every_chart() -> None:
    page = compact_beside(completion=True)._repr_html_()
    for name, colour in zip(WRITERS, HUES, strict=False):
        assert f".{name}{{border-left-color:{colour}}}" in page
