"""One address in every link, workflows that run the README's commands, and a release check."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
SOURCE = PROJECT["urls"]["Source"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def program(path: str) -> ModuleType:
    """A program of the repository that is in no package."""
    spec = spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def workflow(name: str) -> dict[str, Any]:
    found = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())
    assert isinstance(found, dict)
    return found


def commands(job: dict[str, Any]) -> str:
    return "\n".join(step.get("run", "") for step in job["steps"])


# --- the README -----------------------------------------------------------------------------------

README = (ROOT / "README.md").read_text(encoding="utf-8")
README_BYTES_MAX = 8_192


def test_the_readme_is_short() -> None:
    assert len(README.encode()) <= README_BYTES_MAX


def test_every_place_that_a_page_links_to_is_in_the_tree() -> None:
    """Pages say where a file is relative to themselves, as GitHub reads it."""
    linked = {
        page.parent / target for page in PAGES for target in
        re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text(encoding="utf-8"))
    }  # fmt: skip
    assert linked
    assert [each for each in linked if not each.exists()] == []


def test_every_notebook_that_the_readme_opens_in_binder_is_in_the_tree() -> None:
    opened = re.findall(
        r"mybinder\.org/v2/[^)\s]*?urlpath=(lab/tree|voila/render)/([^)\s]+)", README
    )
    assert {kind for kind, _ in opened} == {"lab/tree", "voila/render"}
    assert all((ROOT / target.replace("%2F", "/")).exists() for _, target in opened)


def test_the_readme_names_the_two_commands_that_do_all_the_setup() -> None:
    for command in ("make lab", "make test"):
        assert re.search(rf"^{command}\b", README, re.MULTILINE), command
    assert "make test" in (ROOT / ".ci/run").read_text()


def test_every_extra_that_a_page_names_can_be_installed() -> None:
    """`all` is everything that an application may want, and nothing of the checkout's tools."""
    extras = PROJECT["optional-dependencies"]
    text = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    named = {each for some in re.findall(r"lockkit\[([a-z,]+)\]", text) for each in some.split(",")}
    assert named and named <= set(extras)
    (everything,) = extras["all"]
    inside = set(everything.removeprefix("lockkit[").removesuffix("]").split(","))
    assert inside == set(extras) - {"all", "lab", "test", "docs"}


# --- the repository's address ---------------------------------------------------------------------


def addresses(text: str) -> set[str]:
    """The repositories named lockkit that a page links to, as owner/name."""
    binder = re.findall(r"mybinder\.org/v2/gh/([\w.-]+/[\w.-]+)", text)
    github = re.findall(r"github\.com/([\w.-]+/lockkit)\b", text)
    return {*binder, *github}


def test_every_link_to_the_repository_has_the_address_of_pyproject() -> None:
    assert all(url.startswith(SOURCE) for url in PROJECT["urls"].values())
    named = {path.name: addresses(path.read_text(encoding="utf-8")) for path in PAGES}
    assert named["README.md"] and named["SECURITY.md"]
    # CONTRIBUTING shows the command with an example.
    allowed = {SOURCE.removeprefix("https://github.com/"), "you/lockkit"}
    assert {name: found for name, found in named.items() if found - allowed} == {}
    assert "you/lockkit" not in named["README.md"] | named["SECURITY.md"]


def test_one_command_moves_every_link_to_a_new_address(tmp_path: Path) -> None:
    address = program("docs/address.py")
    for name in address.FILES:
        shutil.copy(ROOT / name, tmp_path / name)
    assert address.move("https://github.com/somebody/forked.git", tmp_path) == list(address.FILES)
    assert address.current(tmp_path) == "https://github.com/somebody/forked"
    for name in address.FILES:
        assert SOURCE not in (tmp_path / name).read_text(encoding="utf-8")
    assert "mybinder.org/v2/gh/somebody/forked/" in (tmp_path / "README.md").read_text()
    with pytest.raises(ValueError, match="form https://github"):
        address.move("somebody/forked", tmp_path)


# --- workflows ------------------------------------------------------------------------------------


def test_the_tests_run_on_every_python_that_is_promised_and_by_the_readmes_command() -> None:
    jobs = workflow("tests")["jobs"]
    promised = {
        each.rpartition(" ")[2]
        for each in PROJECT["classifiers"]
        if re.search(r"Python :: 3\.\d+$", each)
    }
    matrix = jobs["tests"]["strategy"]["matrix"]
    assert set(matrix["python"]) == promised
    assert {each["os"].partition("-")[0] for each in matrix["include"]} == {"macos"}
    assert ".ci/run" in commands(jobs["tests"]) and ".ci/run" in commands(jobs["slim"])
    assert jobs["slim"]["container"].endswith("-slim")
    assert "make lint" in commands(jobs["lint"])
    assert "make docs" in commands(workflow("docs")["jobs"]["build"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_read_and_nothing_more_unless_a_job_says_so(path: Path) -> None:
    said = yaml.safe_load(path.read_text())
    assert said["permissions"] == {"contents": "read"}
    for name, job in said["jobs"].items():
        assert job["timeout-minutes"] <= 120, name
        assert set(job.get("permissions", {})) <= {"pages", "id-token"}, name
    assert "secrets." not in path.read_text(), "a release needs no stored password"


def test_every_make_target_that_a_page_or_a_workflow_names_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    texts = [path.read_text(encoding="utf-8") for path in (*PAGES, *WORKFLOWS)]
    named = {
        name
        for text in texts
        for name in re.findall(r"(?:^|`|run: |\n)make ([a-z]+)", text)
    }  # fmt: skip
    assert {"lab", "test", "docs", "address"} <= named <= targets


def test_a_release_of_another_version_or_repository_is_refused() -> None:
    complaint = program(".github/release_check.py").complaint
    assert "the tag is v0.0.0" in complaint("v0.0.0", SOURCE)
    tag = f"v{PROJECT['version']}"
    assert "and pyproject.toml says" in complaint(tag, "https://github.com/somebody/else")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    unreleased = f"## [{PROJECT['version']}] - unreleased" in changelog
    assert complaint(tag, SOURCE) == (
        f"CHANGELOG.md calls {PROJECT['version']} unreleased: give it today's date"
        if unreleased else ""
    )  # fmt: skip


def test_the_hooks_call_the_pinned_tools_of_the_checkout() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    pinned = {each.partition("==")[0] for each in PROJECT["optional-dependencies"]["test"]}
    called = [each["entry"].split() for each in hooks]
    assert {each[0] for each in called} == {".venv/bin/python"}
    assert {each[2] for each in called} <= pinned


def test_address_runs_on_the_python_that_macos_ships() -> None:
    """`make address` works before .venv is there: no tomllib, which came with Python 3.11."""
    text = (ROOT / "docs" / "address.py").read_text(encoding="utf-8")
    assert "import tomllib" not in text
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "address.py"), "lockkit"],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 64 and "make address URL=" in done.stderr
