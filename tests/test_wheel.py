"""The built wheel in a clean environment outside the checkout: what runs, what says why not."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILD_TIMEOUT_S = 100


def call(
    *command: str | Path, cwd: Path, timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """With nothing in the environment that leads back to the checkout or its packages."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return subprocess.run(
        [str(each) for each in command], cwd=cwd, env=env, capture_output=True, text=True,
        timeout=timeout_s, check=False,
    )  # fmt: skip


pytestmark = pytest.mark.xdist_group("wheel")  # built once


@pytest.fixture(scope="module")
def lockkit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The installed script, without any extra. Building downloads hatchling: skips offline."""
    folder = tmp_path_factory.mktemp("wheel")
    built = call(
        sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", folder, ROOT,
        cwd=folder, timeout_s=BUILD_TIMEOUT_S,
    )  # fmt: skip
    if built.returncode and "hatchling" in built.stderr:
        pytest.skip(f"pip cannot get hatchling here: {built.stderr.strip().splitlines()[-1]}")
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("*.whl")
    # This environment's pip installs there: one more pip, and bytecode of all modules, take long.
    made = call(sys.executable, "-m", "venv", "--without-pip", folder / "clean", cwd=folder)
    assert made.returncode == 0, made.stderr
    installed = call(
        sys.executable, "-m", "pip", "--python", folder / "clean/bin/python", "install",
        "--no-index", "--no-compile", "--quiet", wheel, cwd=folder,
    )  # fmt: skip
    assert installed.returncode == 0, installed.stderr
    yield folder / "clean/bin/lockkit"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("--help", 0, "commands:"),
        ("explore --row drift", 0, "states"),
        ("simulate --scenario lease --seeds 1..3", 0, "3 seeds"),
        ("check datasets/histories/good/lost_response_recovered.jsonl", 0, "VALID"),
        ("history datasets/histories/good/lost_response_recovered.jsonl", 0, "started"),
        ("incident datasets/incidents/hudi-14373-renewal-retried.jsonl", 1, "recorded history"),
        ("probe --matrix", 0, "AWS S3"),
        ("probe file:///{cwd}/store --rounds 2", 0, "no violation"),
    ],
)
def test_a_command_without_extras_runs(
    lockkit: Path, tmp_path: Path, line: str, code: int, says: str
) -> None:
    done = call(lockkit, *line.replace("/{cwd}", str(tmp_path)).split(), cwd=tmp_path)
    assert (done.returncode, says in done.stdout) == (code, True), done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "missing", "extras"),
    [
        ("demo --plain", "boto3", "demo"),
        ("demo", "pyspark", "demo,spark"),
        ("demo --plain --provider gcs", "google.cloud.storage", "demo,gcs"),
        ("soak --minutes 1", "psutil", "demo"),
        ("lab", "jupyterlab", "lab"),
        ("simulate --scenario table --seeds 1", "fastavro", "table"),
    ],
)
def test_a_command_names_the_extra_that_it_lacks_before_it_starts(
    lockkit: Path, tmp_path: Path, line: str, missing: str, extras: str
) -> None:
    done = call(lockkit, *line.split(), cwd=tmp_path)
    assert done.returncode == 3
    assert missing in done.stderr
    assert f"pip install 'lockkit[{extras}]'" in done.stderr
    assert not done.stdout and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_embedded_server_needs_nothing_else(lockkit: Path, tmp_path: Path) -> None:
    with subprocess.Popen([lockkit, "serve"], cwd=tmp_path, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert set(json.loads(server.stdout.readline())) == {"s3", "gcs", "azure"}
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0


@pytest.mark.slow
def test_the_description_on_pypi_links_to_the_repository(lockkit: Path) -> None:
    (wheel,) = lockkit.parents[2].glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (each for each in packed.namelist() if each.endswith("/METADATA"))
        text = packed.read(name).decode()
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(links) > 10 and all(each.startswith("https://") for each in links)
    assert any(re.match(r"https://raw\.github.*/docs/\w+\.svg$", each) for each in links)


@pytest.mark.slow
def test_the_notebooks_and_data_sets_are_in_the_wheel(lockkit: Path, tmp_path: Path) -> None:
    """What is in the checkout, but for the notebooks' text twins; an edited copy is kept."""
    program = """
from pathlib import Path
from lockkit.lab.cli.lab import copied
home = copied(Path("course"))
(home / "notebooks/00_start_here.ipynb").write_text("mine")
copied(home)
assert (home / "notebooks/00_start_here.ipynb").read_text() == "mine"
print(*sorted(each.relative_to(home) for each in home.rglob("*") if each.is_file()), sep="\\n")
"""
    done = call(lockkit.with_name("python"), "-c", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    tracked = call("git", "ls-files", "datasets", "notebooks", cwd=ROOT).stdout.split()
    paired = [each for each in tracked if each.startswith("notebooks/") and each.endswith(".py")]
    assert set(tracked) - set(paired) <= set(done.stdout.split())
    assert tracked or not (ROOT / ".git").exists()
