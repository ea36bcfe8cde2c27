"""The track record holds: each row of BUGS.md names a test that is there, and a commit."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (TESTS / "BUGS.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| what was wrong")
]


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", "-C", str(TESTS), *arguments], capture_output=True, text=True, check=False
    )


def test_the_tests_that_reproduce_each_bug_exist() -> None:
    missing = []
    for what, found_by, reproduced_by, _ in ROWS:
        named = re.findall(r"`([^`]+)`", reproduced_by)
        assert what and found_by and named, what
        for each in named:
            file, _, name = each.partition("::")
            if name and f"\ndef {name}(" not in (TESTS / file).read_text(encoding="utf-8"):
                missing.append(each)
    assert len(ROWS) > 50 and missing == []


def test_the_commit_that_fixed_each_bug_is_in_the_git_history() -> None:
    if shutil.which("git") is None or git("rev-parse").returncode:
        pytest.skip("no git here, or no repository: a copy of the files has no history")
    if git("rev-parse", "--is-shallow-repository").stdout.strip() == "true":
        pytest.skip("a shallow clone: its history is cut off")
    known = set(git("log", "--format=%h", "--abbrev=7").stdout.split())
    assert not {row[-1] for row in ROWS} - known
