"""The scenario `archive-table`: archivers among writers, services and readers; planted mistakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from went_wrong import went_wrong

from lockkit.lab.verify.sim import SimScenario, simulate
from lockkit.lab.verify.table import reader
from lockkit.lab.verify.table.archiver import SCENARIO, TOGETHER
from lockkit.runtime import Procedure
from lockkit.runtime.proven import delete
from lockkit.table.services import archive as archiving

add = archiving.add_history


def deletes_first(config: Any, leaving: Any, believe: Any) -> Procedure[list[str]]:
    """Before the manifest names them."""
    for each in leaving:
        yield from delete(config.names.completed(each.instant, each.action, each.completed))
    return (yield from add(config, leaving, believe))


MISTAKES: dict[str, tuple[str, Callable[..., Any], str]] = {
    "it deletes before the manifest": (
        "add_history", deletes_first, "an acknowledged commit is visible"),
}  # fmt: skip
"""What is replaced, by what, and the rule that breaks."""


@pytest.mark.parametrize("seed", [1, 11, 16, 30])
def test_archived_commits_are_seen_once_by_every_reader(seed: int) -> None:
    """Seed 30 found that a transaction without a horizon did not read the archive. Seed 1 found an
    increment that did not, because the checkpoint's last commit was archived, and seed 16 one that
    missed an archived commit which had completed out of order.
    """
    outcome = simulate(SCENARIO, seed)
    assert not went_wrong(SCENARIO, [outcome]) and "archive" in outcome.run.world.reached


@pytest.mark.parametrize("seed", [3, 8, 25])
def test_archived_commits_of_writers_that_decide_together_are_seen_once(seed: int) -> None:
    """In seed 25 a commit is archived before its owner has read when it was completed."""
    outcome = simulate(TOGETHER, seed)
    assert not went_wrong(TOGETHER, [outcome]) and "archive" in outcome.run.world.reached


def test_the_judge_sees_a_file_that_an_archived_commit_does_not_name() -> None:
    """As Hudi's readers do, once no request is left whose writer is going to delete the file."""
    memory_store = simulate(SCENARIO, 1, judge=False).run.world.memory_store
    objects = {key: stored.body for key, stored in memory_store.objects.items()}
    commit, body = reader.archived(objects)[0]
    path = min(reader.paths_of(body))
    ghost = f"{path.rpartition('/')[0]}/ghost_0-0-0_{commit.instant}.parquet".lstrip("/")
    left = objects | {ghost: b'[["ghost", ["t"], ""]]'}
    assert "ghost" not in {row.key for row in reader.view(objects).rows}
    assert "ghost" in {row.key for row in reader.view(left).rows}
    late = left | {f".hoodie/timeline/{commit.instant}.commit.requested": b""}
    assert "ghost" not in {row.key for row in reader.view(late).rows}


@pytest.mark.parametrize("scenario", [SCENARIO, TOGETHER], ids=lambda each: each.name)
@pytest.mark.parametrize("name", MISTAKES)
def test_the_scenario_finds_a_mistake_of_an_archiver(name: str, scenario: SimScenario) -> None:
    """Within eight seeds: two of three find it, and any change of the schedule moves them."""
    what, instead, breaks = MISTAKES[name]
    for seed in range(1, 9):
        with patch.object(archiving, what, instead):
            violation = simulate(scenario, seed, judge=False).violation
        if violation is not None:
            assert violation.startswith(breaks)
            assert simulate(scenario, seed, judge=False).violation is None
            return
    pytest.fail("no seed found it")
