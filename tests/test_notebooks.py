"""The notebooks: stored as they are written, thin, and right from top to bottom."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lockkit.lab.course import worst

ROOT = Path(__file__).parents[1]
SOLUTIONS = ROOT / "notebooks" / "solutions"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))
COURSE = [each for each in NOTEBOOKS if each.stem[0].isdigit()]
FORMS = (
    ["Predict", "Run", "Why", "In production", "Your turn"],
    ["Run", "Predict", "Why", "In production", "Your turn"],
)
CELL_LINES_MAX = 6
SHOWN_LINES_MAX = 16
"""Of a cell whose lines are the lesson, and of an exercise, whose function the reader completes."""
SEE_TELLS_NOTHING = {"00_start_here", "07_providers", "12_patterns"}
"""Their text under See explains how to read the picture, or a run without a guess."""
WHY_TELLS_NOTHING = {"00_start_here", "15_probe_a_store"}
"""Their text under Why is many screens away from their one guess."""
THE_LINES = "# The lines that matter:"
CODE_CELLS_MAX = 13
"""Without the exercises."""
OPEN_GUESS = re.compile(r"\*\*(Guess|Decide)( first)?:")
TELLING = re.compile(r"wrong version|too (short|long|late|soon)|does\s+harm|who decided", re.I)
"""Below an open guess, it gives the outcome away."""
TELLS_BEFORE_THE_RUN = re.compile(
    r"wrong conclusion|another client has the lock|waits for itself|\bany\W+writer may decide|"
    r"safe for another client", re.I,
)  # fmt: skip
"""A reader may not have run what stands above it: it belongs to an explanation of the outcome."""
NAMES_THE_OUTCOME = re.compile(
    r"^(wrong|right|broken|twice|doubled|remembered|rescued)\b.* = ", re.M
)
"""A result under such a name, in the line that runs it, is an answer."""
CHECK = "# Check"
NAMES_A_RECORDED_OUTCOME = re.compile(r"histories/bad/|_(accepted|refused)\.jsonl")
RUN_TIMEOUT_S = 110

each_notebook = pytest.mark.parametrize("source", NOTEBOOKS, ids=lambda path: path.stem)


def cells(source: Path) -> list[dict[str, Any]]:
    return json.loads(source.with_suffix(".ipynb").read_text())["cells"]


def code(source: Path) -> list[str]:
    return ["".join(each["source"]) for each in cells(source) if each["cell_type"] == "code"]


def run(*command: str, cwd: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", *command], cwd=cwd, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr[-3000:]


@pytest.fixture(scope="module")
def made_again(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all notebooks were made from their sources, at once: each start takes seconds."""
    pytest.importorskip("jupytext", reason="make test installs jupytext")
    pytest.importorskip("nbstripout", reason="make test installs nbstripout")
    folder = tmp_path_factory.mktemp("notebooks")
    for source in NOTEBOOKS:
        (folder / source.name).write_text(source.read_text())
    names = [source.name for source in NOTEBOOKS]
    run("jupytext", "--to", "ipynb", "--set-kernel", "python3", *names, cwd=folder)
    run("nbstripout", *(name.replace(".py", ".ipynb") for name in names), cwd=folder)
    return folder


@each_notebook
def test_no_text_speaks_of_cells_because_an_app_has_none(source: Path) -> None:
    prose = [
        "".join(each["source"]) for each in cells(source)
        if each["cell_type"] == "markdown" and "not-in-app" not in each["metadata"].get("tags", [])
    ]  # fmt: skip
    shown = prose + [each for each in code(source) if ".explain(" in each]
    code_words = r"\bcells?\b|\b(next|these) lines\b|\bthe line below\b|BY_CODE"
    assert [each for each in shown if re.search(code_words, each, re.I)] == []


@each_notebook
@pytest.mark.xdist_group("notebooks made again")
def test_the_stored_notebook_is_the_source_and_nothing_else(
    source: Path, made_again: Path
) -> None:
    fresh = (made_again / source.with_suffix(".ipynb").name).read_text()
    assert fresh == source.with_suffix(".ipynb").read_text(), (
        f"make it again: jupytext --to ipynb --set-kernel python3 notebooks/{source.name} "
        f"&& nbstripout notebooks/{source.stem}.ipynb"
    )


@each_notebook
def test_text_that_names_a_button_behind_a_guess_names_show_it_first(source: Path) -> None:
    """The button *Show it* opens what a guess hides."""
    for text, hidden in pairwise(cells(source)):
        said, by_code = ("".join(each["source"]) for each in (text, hidden))
        if text["cell_type"] == "markdown" and ".reveal(" in by_code:
            first = re.search(r"(?i)\bpress\s+\*\*([^*]+)\*\*", said)
            assert first is None or first[1] == "Show it", said


@each_notebook
def test_cells_are_thin_and_define_nothing(source: Path) -> None:
    aside = [each for each in code(source) if explains(each) or checks(each)]
    counted = [each for each in code(source) if each not in aside and not is_exercise(each)]
    assert len(counted) <= CODE_CELLS_MAX
    for cell in code(source):
        if cell in aside:
            continue
        lines = [line for line in cell.splitlines() if line.strip()]
        shown = THE_LINES in lines or is_exercise(cell)
        assert len(lines) <= (SHOWN_LINES_MAX if shown else CELL_LINES_MAX), cell
        defined = (ast.FunctionDef, ast.ClassDef, ast.Lambda)
        nodes = [node for node in ast.walk(ast.parse(cell)) if isinstance(node, defined)]
        assert len(nodes) == is_exercise(cell), cell


def explains(cell: str) -> bool:
    """Prose that is shown with the outcome of a guess; its source is folded."""
    return bool(re.match(r"\w+\.explain\(", cell)) and cell.endswith('""")')


def checks(cell: str) -> bool:
    """It says what the outcome must be; its source is folded."""
    own = THE_LINES not in cell and not is_exercise(cell)
    return own and bool(re.search(r"^\s*assert ", cell, re.M))


def folded(cell: dict[str, Any]) -> bool:
    return bool(cell["metadata"].get("jupyter", {}).get("source_hidden", False))


def on_the_screen(notebook: list[dict[str, Any]]) -> list[str]:
    """The texts that a reader sees before anything has run: of a folded cell, its first line."""
    return [each["source"][0] if folded(each) else "".join(each["source"]) for each in notebook]


@each_notebook
def test_no_code_or_text_that_is_open_names_the_outcome_of_a_guess(source: Path) -> None:
    """Not by its place among the guesses, by a verdict, by a planted mistake, or by a variable."""
    if not any("Predict(" in each for each in code(source)):
        return
    for text in on_the_screen(cells(source)):
        if "## Why" in text:
            return
        assert "Predict(" in text or not re.search(r"GUESSES\[|(SUMS|COUNTS|FATES)\[", text), text
        assert THE_LINES in text or not re.search(r"(VALID|INVALID)\"|^\s*assert ", text, re.M)
        assert not NAMES_THE_OUTCOME.search(text), text
        assert not NAMES_A_RECORDED_OUTCOME.search(text), text
        assert not [each for each in worst.PLANTED.values() if each in text], text


@each_notebook
def test_the_first_line_of_a_folded_cell_tells_nothing(source: Path) -> None:
    """JupyterLab shows it."""
    for each in filter(folded, cells(source)):
        first = each["source"][0].rstrip()
        assert first == CHECK or re.fullmatch(r'\w+\.explain\("""', first), first


@each_notebook
def test_run_the_next_cell_is_said_only_where_that_one_waits_for_the_guess(source: Path) -> None:
    written = code(source)
    for cell, following in pairwise(written):
        for name in re.findall(r"(\w+) = Predict\(", cell):
            waits = re.search(rf"\b{name}\.(run|reveal)\(", following)
            assert waits or "then=" in cell, cell


@each_notebook
def test_an_answer_is_not_on_the_screen_while_its_guess_is_open(source: Path) -> None:
    """What explains an outcome is folded, comes after the run, and needs the outcome to show."""
    ran: set[str] = set()
    guessed: set[str] = set()
    for each in cells(source):
        text = "".join(each["source"])
        if each["cell_type"] == "code":
            guessed |= set(re.findall(r"(\w+) = Predict\(", text))
            ran |= set(re.findall(r"(\w+)\.(?:run|reveal)\(", text))
            lesson = any("Predict(" in each for each in code(source))
            assert folded(each) is (explains(text) or (lesson and checks(text))), text
            assert not explains(text) or text.split(".")[0] in ran, text
        else:
            assert not OPEN_GUESS.search(text), "a guess is a Predict: its answer is hidden"
            assert not TELLS_BEFORE_THE_RUN.search(text), "a text that is shown without a run"
            assert guessed <= ran or not TELLING.search(text), "a text below an open guess"
        if text.startswith(("## See", "## Why")) and each["cell_type"] == "markdown":
            said = text.partition("\n")[2].strip()
            free = SEE_TELLS_NOTHING if text.startswith("## See") else WHY_TELLS_NOTHING
            assert not said or not ran or source.stem in free, said


def is_exercise(cell: str) -> bool:
    return cell.splitlines()[-1].startswith("judge(")


@pytest.mark.parametrize("source", COURSE, ids=lambda path: path.stem)
def test_a_lesson_has_the_form_of_the_course(source: Path) -> None:
    """Question, how long it takes, guess, run, verdict, why, production, a judged challenge."""
    texts = ["".join(each["source"]) for each in cells(source) if each["cell_type"] == "markdown"]
    title, question = texts[0].split("\n", 1)
    assert title.startswith("# ") and "?" in texts[0] + texts[1]
    assert re.search(r"\b(seconds?|minutes?)\b", question), "how long does it take?"
    heads = re.findall(r"^## (Predict|Run|Why|In production|Your turn)", "\n".join(texts), re.M)
    assert list(dict.fromkeys(heads)) in FORMS
    lines = "\n".join(code(source))
    assert "Predict(" in lines or "StoreProbe(" in lines, "nothing is guessed"
    assert "assert " in lines


@each_notebook
def test_files_that_a_notebook_names_exist(source: Path) -> None:
    for cell in code(source):
        for node in ast.walk(ast.parse(cell)):
            match node:
                case ast.Constant(value=str(name)) if name.startswith("../") and "." in name[3:]:
                    assert (source.parent / name).exists(), name


@each_notebook
@pytest.mark.slow
def test_a_notebook_runs_from_top_to_bottom_and_leaves_no_process(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a browser, with real (plain) writers; its own assertions are the claim."""
    nbclient = pytest.importorskip("nbclient", reason="make test installs nbclient")
    import nbformat

    from lockkit.lab.processes.process import FLEET  # what every process of a fleet carries

    monkeypatch.setenv("LOCKKIT_FAST", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=RUN_TIMEOUT_S, kernel_name="python3", store_widget_state=False,
        resources={"metadata": {"path": str(source.parent)}},
    )  # fmt: skip
    client.execute()
    outputs = [out for cell in notebook.cells if "outputs" in cell for out in cell.outputs]
    assert not [out for out in outputs if out.output_type == "error"]
    assert source not in COURSE or "not yet" in json.dumps(outputs[-1]), "a solved challenge"
    assert sum(len(json.dumps(out)) for out in outputs) < 200_000, "an output that bloats the file"
    assert not carrying(FLEET, str(tmp_path)), "a process of a fleet outlived the kernel"


def carrying(variable: str, directory: str) -> list[int]:
    """Processes of fleets that were started below this test's temporary directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        names = dict(each.split(b"=", 1) for each in environment if b"=" in each)
        if variable.encode() in names and names.get(b"TMPDIR", b"").decode() == directory:
            found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


def test_labs_settings_are_the_ones_that_were_measured() -> None:
    """Each of them turns off something that was met for real (news toast, subshells)."""
    file = ROOT / "notebooks" / ".jupyter" / "labconfig" / "default_setting_overrides.json"
    settings = json.loads(file.read_text())
    assert settings["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"
    server = json.loads((file.parents[1] / "jupyter_server_config.json").read_text())
    hidden = server["ContentsManager"]["hide_globs"]
    names = [each.name for each in (ROOT / "notebooks").glob("*.*") if each.is_file()]
    listed = [each for each in names if not any(fnmatch(each, glob) for glob in hidden)]
    assert sorted(listed) == [each.with_suffix(".ipynb").name for each in NOTEBOOKS], "each once"
    assert not [each for each in SOLUTIONS.iterdir() for glob in hidden if fnmatch(each.name, glob)]
    kernels = settings["@jupyterlab/apputils-extension:kernels-settings"]
    assert kernels["commsOverSubshells"] == "disabled"
