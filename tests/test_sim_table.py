"""The scenario `table`, and its judge: what is wrong with a table is found, and nothing else."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from repair_mutants import PLACES, SEEDS_FILE, SETTINGS, removed, replaced
from went_wrong import went_wrong

from lockkit.cli.main import main
from lockkit.lab.verify.sim import SeedOutcome, simulate
from lockkit.lab.verify.sim.clock import Time
from lockkit.lab.verify.sim.memory_store import PROFILES, SimStore
from lockkit.lab.verify.sim.task import Violated
from lockkit.lab.verify.table import ledger as judge
from lockkit.lab.verify.table.ledger import AttemptLedger, Stream, TrackedAttempt
from lockkit.lab.verify.table.reader import PARTITION, PROPERTIES, TableRow
from lockkit.lab.verify.table.scenario import BESIDE_HUDI, SCENARIO
from lockkit.protocol.outcome import IfAbsent
from lockkit.runtime import Delete, Put
from lockkit.table.occ import commit

A, B = "20260101000000001", "20260101000000002"
FOUND: dict[str, dict[str, Any]] = json.loads(SEEDS_FILE.read_text())


class Story:
    """A table that is written by hand, under the eyes of the judge."""

    def __init__(self) -> None:
        self.memory_store = SimStore(PROFILES["azure"], Time(), random.Random(1))
        self.put(PROPERTIES, b"hoodie.timeline.layout.version=1\n")
        self.put(PARTITION, b"")
        self.ledger = AttemptLedger(self.memory_store)
        self.memory_store.on_write = self.ledger.on_write

    def put(self, key: str, body: bytes) -> None:
        self.memory_store.decide("W", Put(key, body, IfAbsent()), 0.0)

    def file(self, instant: str, *rows: tuple[str, list[str], str], group: str = "g") -> str:
        path = f"{group}_0-0-0_{instant}.parquet"
        self.put(path, json.dumps(rows).encode())
        return path

    def commit(self, instant: str, token: str, *groups: str) -> None:
        stats = [{"path": f"{each}_0-0-0_{instant}.parquet", "fileId": each} for each in groups]
        body = {"partitionToWriteStats": {"": stats}, "extraMetadata": {"token": token}}
        self.put(f".hoodie/{instant}.commit", json.dumps(body).encode())

    def tries(self, token: str, *keys: str, error_name: str = "") -> TrackedAttempt:
        attempt = TrackedAttempt(token, token.partition("/")[0], "upsert", reported=error_name)
        attempt.writes = tuple(("", key) for key in keys)
        return self.ledger.tries(attempt)

    def inserts(self, instant: str = A, token: str = "t1", key: str = "k") -> TrackedAttempt:
        attempt = self.tries(token, key)
        self.file(instant, (key, [token], instant))
        self.commit(instant, token, "g")
        return attempt


def test_correct_runs_are_not_reported_as_wrong() -> None:
    story = Story()
    story.ledger.acknowledged(story.inserts())
    other = story.tries("t2", "k", "new")
    story.file(B, ("k", ["t1", "t2"], B), ("new", ["t2"], B))
    story.commit(B, "t2", "g")
    story.ledger.acknowledged(other)
    story.ledger.refused(story.tries("t3", "k"), "CommitConflict")
    story.ledger.judge()


def lost_update(story: Story) -> None:
    story.inserts()
    story.tries("t2", "new")
    story.file(B, ("new", ["t2"], B))  # made from the group as it was before
    story.commit(B, "t2", "g")


def doubled_row(story: Story) -> None:
    story.inserts()
    story.tries("t2", "k")
    story.file(B, ("k", ["t2"], B), group="h")
    story.commit(B, "t2", "h")


def rows_of_a_refused_attempt_under_another_instant(story: Story) -> None:
    story.inserts()
    story.tries("t2", "late")
    story.file(A, ("late", ["t2"], A), group="h")


def refused_and_visible(story: Story) -> None:
    story.ledger.refused(story.tries("t1", "k"), "CommitConflict")
    story.file(A, ("k", ["t1"], A))
    story.commit(A, "t1", "g")


def visible_and_then_refused(story: Story) -> None:
    story.ledger.refused(story.inserts(), "LockLost")


def acknowledged_and_not_visible(story: Story) -> None:
    story.ledger.acknowledged(story.tries("t1", "k"))


def completed_file_deleted(story: Story) -> None:
    story.inserts()
    story.memory_store.decide("W", Delete(f".hoodie/{A}.commit"), 0.0)


def data_file_deleted(story: Story) -> None:
    story.inserts()
    story.memory_store.decide("W", Delete(f"g_0-0-0_{A}.parquet"), 0.0)


def committed_twice(story: Story) -> None:
    story.inserts(token="t/0")
    story.inserts(B, token="t/1")


def completed_behind_a_reader(story: Story) -> None:
    story.ledger.streams.append(Stream("P", end=B))
    story.inserts()


def increment_twice(story: Story) -> None:
    row = TableRow("", "k", ("t1",), A)
    story.ledger.pulled(Stream("P"), A, [row, row])


def increment_missed(story: Story) -> None:
    story.inserts()
    story.ledger.streams.append(Stream("P", end=A))
    story.ledger.judge()


def half_a_commit_read(story: Story) -> None:
    story.inserts()
    story.ledger.read([], since=1)


def no_end_of_instants(story: Story) -> None:
    for number in range(judge.INSTANTS_MAX + 1):
        story.put(f".hoodie/{int(A) + number}.commit.requested", b"")


@pytest.mark.parametrize(
    ("wrong", "breaks"),
    [
        (lost_update, judge.ROWS),
        (doubled_row, judge.ROWS),
        (rows_of_a_refused_attempt_under_another_instant, judge.ROWS),
        (refused_and_visible, judge.REFUSED),
        (visible_and_then_refused, judge.REFUSED),
        (acknowledged_and_not_visible, judge.ACKNOWLEDGED),
        (completed_file_deleted, judge.ACKNOWLEDGED),
        (data_file_deleted, judge.NEEDED),
        (committed_twice, judge.ONCE),
        (completed_behind_a_reader, judge.BEHIND),
        (increment_twice, judge.INCREMENTS),
        (increment_missed, judge.INCREMENTS),
        (half_a_commit_read, judge.PREFIX),
        (no_end_of_instants, judge.FEW_INSTANTS),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_the_judge_names_what_is_broken(wrong: Callable[[Story], None], breaks: str) -> None:
    with pytest.raises(Violated) as violated:
        wrong(Story())
    assert violated.value.invariant == breaks


def test_of_a_write_by_a_clock_that_is_too_slow_the_judge_ignores_its_own_row_only() -> None:
    story = Story()
    story.ledger.streams.append(Stream("P", end=B))
    mistimed = TrackedAttempt("t1", "t", judge.MISTIMED, (("", judge.MISTIMED_KEY),))
    story.ledger.tries(mistimed)
    story.file(A, (judge.MISTIMED_KEY, ["t1"], A))
    story.commit(A, "t1", "g")
    story.ledger.acknowledged(mistimed)
    story.ledger.judge()
    with pytest.raises(Violated, match="another"):
        story.file(A, ("another", ["t1"], A), group="h")


# --- the scenario ---------------------------------------------------------------------------------


def test_the_same_seed_plays_the_same_again() -> None:
    one, again, other = (simulate(SCENARIO, seed, steps=600) for seed in (7, 7, 8))
    assert one.to_json() == again.to_json()
    assert one.trace_hash != other.trace_hash


@pytest.mark.timeout(300)
def test_the_table_is_right_in_twenty_worlds() -> None:
    outcomes = [simulate(SCENARIO, seed) for seed in range(1, 21)]
    assert not went_wrong(SCENARIO, outcomes)
    reached = {name for each in outcomes for name in each.run.world.reached}
    assert {"refused commit", "clustering", "clean", "rollback", "interrupt"} <= reached
    assert "repeated batch" in reached
    assert sum(len(each.run.ledger.commits) for each in outcomes) > 8 * len(outcomes)
    assert any(each.faults for each in outcomes) and not all(each.faults for each in outcomes)
    assert {each.run.locked for each in outcomes} == {False, True}
    assert {each.run.config.version for each in outcomes} == {6, 9}


def test_a_batch_whose_instant_hudi_takes_later_is_refused_and_the_checker_says_valid() -> None:
    """One name, two commits: the refused batch's, and that of a Hudi writer with a slow clock."""
    outcome = simulate(BESIDE_HUDI, 1)
    assert not went_wrong(BESIDE_HUDI, [outcome])
    world = outcome.run.world
    refused = {(e.who, e["instant"]) for e in world.history() if e.kind == "refused"}
    assert {who for who, instant in refused if instant in world.taken_again} == {"Q1"}


@cache
def of_the_right_code(scenario: str, seed: int, settings_of: str) -> SeedOutcome:
    (played,) = {id(each): each for each, _ in PLACES.values() if each.name == scenario}.values()
    with replaced(SETTINGS.get(settings_of, {})):
        return simulate(played, seed, judge=False)


@pytest.mark.xdist_group("worlds of repairs")  # each seed is played once by the right code
@pytest.mark.parametrize("name", FOUND)
def test_the_scenario_finds_a_removed_repair_and_nothing_with_the_repair_in_place(
    name: str,
) -> None:
    """`python -m tests.repair_mutants --rewrite` looks for the seeds anew."""
    entry, scenario = FOUND[name], PLACES[name][0]
    assert entry["scenario"] == scenario.name
    with removed(name):
        outcome = simulate(scenario, entry["seed"], judge=False)
    assert outcome.violation is not None
    assert outcome.violation.startswith(entry["violation"])
    settings_of = name if name in SETTINGS else ""
    assert of_the_right_code(scenario.name, entry["seed"], settings_of).violation is None


def test_every_repair_has_a_seed_that_misses_it() -> None:
    assert FOUND.keys() == PLACES.keys()


def test_a_mistake_that_cannot_be_planted_whole_leaves_nothing_replaced() -> None:
    right = commit.find_conflict
    wrong = {"commit.find_conflict": None, "commit.no_such_part": None}
    with pytest.raises(AttributeError, match="no_such_part"), replaced(wrong):
        pass
    assert commit.find_conflict is right


def test_the_command_plays_the_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--scenario", "table", "--seeds", "1..2", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["scenario"], said["violations"]) == ("table", [])
