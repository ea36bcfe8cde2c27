"""Each planted mistake of archiving is found by the test that it names."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import test_archiving
from archive_mutants import MISTAKES, Mistake, planted

pytestmark = pytest.mark.usefixtures("archived_at_once")
QUICK = ("the newest instant leaves first", "the newest clean leaves")


def given(mistake: Mistake, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    wanted = inspect.signature(getattr(test_archiving, mistake.found_by)).parameters
    said = dict(mistake.given)
    if "damage" in said:
        said["damage"] = getattr(test_archiving, said["damage"])
    every = {"tmp_path": folder, "serial": None, "monkeypatch": monkeypatch, **said}
    return {name: every[name] for name in wanted}


@pytest.mark.parametrize("mistake", [
    pytest.param(each, id=each.says, marks=() if each.says in QUICK else pytest.mark.soak)
    for each in MISTAKES
])  # fmt: skip
def test_a_mistake_of_archiving_is_found_by_its_test(
    mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = getattr(test_archiving, mistake.found_by)
    if "serial" in inspect.signature(test).parameters:
        for module in test_archiving.ARCHIVING:
            monkeypatch.setattr(module, "all_of", test_archiving.one_by_one)
    for name in ("right", "wrong"):
        (tmp_path / name).mkdir()
    test(**given(mistake, tmp_path / "right", monkeypatch))
    with planted(mistake), pytest.raises((Exception, pytest.fail.Exception)):
        test(**given(mistake, tmp_path / "wrong", monkeypatch))
