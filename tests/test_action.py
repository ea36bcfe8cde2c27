"""The GitHub Action in action.yml: its inputs, and the script that it runs, against a server."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import peer_servers
import pytest

yaml = pytest.importorskip("yaml", reason="make test installs PyYAML")

ROOT = Path(__file__).parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEP = next(each for each in ACTION["runs"]["steps"] if each.get("id") == "probe")


@pytest.fixture
def workflow(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    generated: str = import_module("generate").probe_workflow()
    return generated.removeprefix("```yaml\n").removesuffix("```")


def test_the_workflow_of_the_docs_uses_this_action_with_inputs_that_it_has(workflow: str) -> None:
    (step, _) = yaml.safe_load(workflow)["jobs"]["probe"]["steps"]
    assert re.fullmatch(r"[\w.-]+/lockkit@main", step["uses"])
    assert set(step["with"]) <= set(ACTION["inputs"])
    wanted = {name for name, each in ACTION["inputs"].items() if each.get("required")}
    assert wanted <= set(step["with"])
    assert {each["value"] for each in ACTION["outputs"].values()} == {
        f"${{{{ steps.probe.outputs.{name} }}}}" for name in ACTION["outputs"]
    }


def run(folder: Path, endpoint: str, **more: str) -> tuple[int, str, dict[str, Any]]:
    """The step as GitHub runs it: exit code, outputs, report."""
    given = {"url": "s3://bucket/x", "endpoint": endpoint, "rounds": "2", "racers": "3", **more}
    inputs = {name: each.get("default", "") for name, each in ACTION["inputs"].items()} | given
    env = {
        key: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda found: inputs[found[1]], text)
        for key, text in STEP["env"].items()
    }
    bin_first = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    files = {key: str(folder / key) for key in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEP["run"]],
        cwd=folder, env=os.environ | env | files | {"PATH": bin_first}, timeout=60, check=False,
    )  # fmt: skip
    report = folder / inputs["report"]
    said = json.loads(report.read_text()) if report.stat().st_size else {}
    return done.returncode, (folder / "GITHUB_OUTPUT").read_text() if said else "", said


def test_the_step_passes_on_a_sound_store_and_writes_badge_report_and_outputs(
    emulator: Any, tmp_path: Path
) -> None:
    code, outputs, said = run(tmp_path, emulator.s3)
    assert code == 0 and said["verdict"] == "full"
    assert outputs == f"verdict=full\nconclusion={said['conclusion']}\n"
    badge = json.loads((tmp_path / "lock-badge.json").read_text())
    assert badge["schemaVersion"] == 1 and badge["message"].startswith("no violation found, 20")
    assert said["capabilities"]["conditional_multipart"] == "yes"


@pytest.mark.parametrize("emulator", [{"profile": "spaces"}], indirect=True)
def test_the_step_fails_on_a_store_that_ignores_conditions(emulator: Any, tmp_path: Path) -> None:
    code, outputs, _ = run(tmp_path, emulator.s3, badge="badge.svg")
    assert code == 1 and outputs.startswith("verdict=ignores-conditions\n")
    assert "ignores conditions" in (tmp_path / "badge.svg").read_text()


def test_the_step_fails_without_a_report_where_nothing_answers(tmp_path: Path) -> None:
    code, _, said = run(tmp_path, "http://127.0.0.1:9")
    assert code == 3 and said == {} and not (tmp_path / "lock-badge.json").exists()


@pytest.mark.peers
def test_actionlint_accepts_the_workflow_and_the_action(workflow: str, tmp_path: Path) -> None:
    program = peer_servers.installed("bin/actionlint", "actionlint", cure=peer_servers.GO)
    folder = tmp_path / ".github" / "workflows"
    folder.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    shutil.copy(ROOT / "action.yml", tmp_path)
    local = re.sub(r"uses: [\w.-]+/lockkit@main", "uses: ./", workflow)
    (folder / "theirs.yml").write_text(local.replace("uses: ./", "uses: a/lockkit@main"))
    (folder / "ours.yml").write_text(local)
    done = subprocess.run([program, "-no-color"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    (folder / "ours.yml").write_text(local.replace("badge: ", "bagde: "))
    done = subprocess.run([program, "-no-color"], cwd=tmp_path, capture_output=True, text=True)
    assert '"bagde"' in done.stdout
