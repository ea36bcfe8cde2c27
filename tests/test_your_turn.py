"""The challenges that are a value and no function: as committed unsolved, with the answer solved.

`tests/test_exercises.py` does the same for the functions that a reader writes. Each row runs the
notebook's own last lines, once as they are and once with the answer in place of the value.
"""

from __future__ import annotations

import ast
import contextlib
import io
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ipywidgets", reason="make test installs ipywidgets")

from test_notebooks import NOTEBOOKS, cells, is_exercise

COURSE = "from lockkit.lab.course."
PANELS = "from lockkit.lab.widgets import Console, Workbench"
CHALLENGES = {
    "01_tiny_api": ("account import late", 'THEN = "give up"', 'THEN = "begin again"'),
    "02_one_lock_file": ("lockfile import resume", '"owner": "copied"', '"owner": "", "epoch": 41'),
    "06_hot_object": ("hot import use", "TIMES = 1", "TIMES = 6"),
    "07_providers": ("contention import wait", "60_000, 50, 5_000", "90_000, 0, 5_000"),
    "09_markers_and_heartbeats": ("dead import tune", "= 60, 2", "= 60, 3"),
    "10_table_services": ("upkeep import read_slowly", "RETAINED = 10", "RETAINED = 5"),
    "11_spark_writers": ("programs import Programs", "BUCKETS = 1", "BUCKETS = 4"),
    "13_striped_locks": (
        "striping import three_renames", '("b", "a"), ("a", "c")', '("b", "c"), ("c", "a")',
    ),
    "15_probe_a_store": (
        "honest import sort_out", '("spaces", "two-steps")',
        '("spaces", "rgw, versioned bucket", "rgw, quoted ETags")',
    ),
    "incident_console": (
        "", 'guess = ""', 'guess = "ghost after a lost acquire"',
    ),
}  # fmt: skip
"""Of each notebook: what the lines need, what stands there, and an answer."""
BY_HAND = {
    "00_start_here": "a live run: tests/test_course_recorded.py judges what it lacks",
    "14_break_it_yourself": "a ladder of six runs: tests/test_course_breaking.py climbs it",
}
QUICK = ("02_one_lock_file", "09_markers_and_heartbeats", "13_striped_locks")
"""Milliseconds each; the others start servers, or wait for a real second."""


def last_lines(name: str) -> str:
    """The code below "Your turn" that is no function to write."""
    source = next(each for each in NOTEBOOKS if each.stem == name)
    turn, found = False, []
    for each in cells(source):
        text = "".join(each["source"])
        turn = turn or (each["cell_type"] == "markdown" and "## Your turn" in text)
        if turn and each["cell_type"] == "code" and not is_exercise(text):
            found.append(text)
    return "\n".join(found)


def outcome(code: str, names: dict[str, Any]) -> str:
    """What the cell prints, and the text of its last expression."""
    *lines, last = ast.parse(code).body
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module([*lines], []), "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            shown = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
            print("" if shown is None else shown)
        else:
            exec(compile(ast.Module([last], []), "cell", "exec"), names)
    return printed.getvalue()


@pytest.mark.parametrize(
    "name", [each if each in QUICK else pytest.param(each, marks=pytest.mark.soak)
             for each in CHALLENGES],
)  # fmt: skip
def test_a_challenge_is_unsolved_as_it_stands_and_solved_by_its_answer(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs, given, answer = CHALLENGES[name]
    monkeypatch.chdir(Path(NOTEBOOKS[0]).parent)
    monkeypatch.setenv("LOCKKIT_FAST", "1")
    code = last_lines(name)
    assert code.count(given) == 1, code
    names: dict[str, Any] = {}
    with contextlib.ExitStack() as end:
        exec(COURSE + needs if needs else PANELS, names)
        if "Programs" in names:
            names["crew"] = crew = names["Programs"]()
            end.callback(crew.stop)
            crew.start()
        assert "not yet" in outcome(code, names)
        said = outcome(code.replace(given, answer), names)
    assert "solved" in said and "not yet" not in said, said


def test_every_notebook_ends_with_a_challenge_that_has_an_answer() -> None:
    with_values = {each.stem for each in NOTEBOOKS if last_lines(each.stem)}
    assert with_values == {*CHALLENGES, *BY_HAND}
    functions = {each.stem for each in NOTEBOOKS
                 if any(is_exercise("".join(cell["source"])) for cell in cells(each)
                        if cell["cell_type"] == "code")}  # fmt: skip
    assert {each.stem for each in NOTEBOOKS} == with_values | functions
