"""The explorer: all rules on, nothing breaks; each rule off, the shortest story of the damage.

Lengths and numbers of states are recorded below, so that every change of the model is noticed.
Where one is meant: a failing test shows the new numbers, and then
`LOCKKIT_REWRITE=1 pytest tests/test_explore.py -k page` renews the pages of docs/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import pytest
from pages import section

from lockkit.events import narrate
from lockkit.lab.verify.check import Kind, check
from lockkit.lab.verify.explore import (
    SCENARIOS,
    Counterexample,
    SearchRow,
    SearchScenario,
    explore,
    explore_rows,
    search,
)
from lockkit.lab.verify.explore.parts import ON_THE_WAY, Bounds, ExplorerFault, PackedState
from lockkit.lab.verify.explore.rows import BIG, CRASH, OBSERVED, STORE, WALL
from lockkit.lab.verify.explore.world import LeaseWorld
from lockkit.lab.verify.mutants import Invariant
from lockkit.lab.verify.planting import replaced
from lockkit.protocol import actions
from lockkit.protocol.actions import StepContext
from lockkit.protocol.lease import ANYWHERE, TRANSITIONS, EventCase, Transition, step, transition
from lockkit.protocol.outcome import Applied, Unknown, Version
from lockkit.protocol.policy import Policy
from lockkit.protocol.record import Record
from lockkit.protocol.state import (
    AcquireRequested,
    Event,
    GiveUp,
    Identity,
    Now,
    Observation,
    Phase,
    ReadAnswered,
    ReadFailed,
    ReadRecord,
    ReleaseRequested,
    RenewDue,
    State,
    Step,
    Tick,
    WriteAnswered,
    WritePurpose,
    WriteRecord,
)

# name: (steps of the shortest counterexample, distinct states); 0 steps: all states, no violation
RECORDED = {
    "store": (0, 1_151_451),
    "wall": (0, 524_793),
    "observed": (0, 358_785),
    "observed, two faults": (0, 206_057),
    "wall, two faults": (0, 312_333),
    "alone, two faults": (0, 60_927),
    "commit": (0, 382_001),
    "commits": (0, 133_201),
    "crash and restart": (0, 737_761),
    "three clients": (0, 909_516),
    "count_from_send": (10, 1_209),
    "drift": (9, 449),
    "drift_for_holder": (10, 782),
    "skew": (8, 251),
    "slack": (9, 853),
    "slack, too small": (9, 891),
    "claim_412 lost": (6, 114),
    "claim_412 ours": (8, 909),
    "renew_412 ours": (13, 11_768),
    "renew_412 lost": (9, 1_346),
    "renew_unknown ours": (12, 11_621),
    "renew_unknown lost": (6, 112),
    "claim_unknown ours": (7, 395),
    "claim_unknown lost": (4, 16),
    "recognise": (12, 21_529),
    "confirm": (15, 70_095),
    "release deletes": (18, 6_082),
    "release deletes if match": (9, 425),
    "fence off": (16, 10_166),
    "fence token": (16, 10_161),
    "fence token, release deletes": (16, 9_986),
}

# What the prototype of this protocol needed at least.
PEER_STEPS = {
    "count_from_send": 12,
    "drift": 11,
    "drift_for_holder": 12,
    "claim_412 lost": 7,
    "claim_412 ours": 10,
    "renew_412 ours": 15,
    "renew_412 lost": 11,
    "renew_unknown ours": 14,
    "claim_unknown ours": 9,
    "claim_unknown lost": 5,
    "recognise": 19,
    "release deletes": 22,
    "fence off": 16,
    "fence token": 18,
    "fence token, release deletes": 16,
}

ON = [each for each in SCENARIOS if each.breaks is None]
OFF = [each for each in SCENARIOS if each.breaks is not None]


@cache
def row(scenario: SearchScenario) -> SearchRow:
    return explore(scenario)


def name(scenario: SearchScenario) -> str:
    return scenario.name


# --- all rules on -------------------------------------------------------------------------------


LARGE = {
    "store": {"tries": (1, 1)},
    "wall": {"tries": (1, 1)},
    "observed": {"tries": (1, 1)},
    "wall, two faults": {"faults": 1},
    "commit": {"tries": (1, 1)},
    "crash and restart": {"tries": (1, 1), "spread": 0},
    "three clients": {"renewals": (0, 0, 0)},
}
"""Of these rows, every run searches the part within these bounds."""
IN_SOAK = {*LARGE, "alone, two faults", "observed, two faults"}
"""`make soak` searches these rows whole."""


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(each, marks=[pytest.mark.soak] if each.name in IN_SOAK else [])
        for each in ON
    ],
    ids=name,
)  # fmt: skip
def test_with_all_rules_on_every_state_is_seen_and_nothing_breaks(scenario: SearchScenario) -> None:
    found = row(scenario)
    assert (found.violation, found.exhausted) == (None, True)
    assert (found.steps, found.states) == RECORDED[scenario.name]


@pytest.mark.parametrize("scenario", [each for each in ON if each.name in LARGE], ids=name)
def test_with_all_rules_on_nothing_breaks_within_smaller_bounds(scenario: SearchScenario) -> None:
    bounds = replace(scenario.bounds, **LARGE[scenario.name])  # type: ignore[arg-type]
    found = explore(replace(scenario, bounds=bounds))
    assert (found.violation, found.exhausted) == (None, True)
    assert 30_000 < found.states < RECORDED[scenario.name][1] // 2


RAISING = Bounds(tries=(2, 1), renewals=(1, 0), raises=True, faults=1)


@pytest.mark.soak
def test_a_grant_whose_epoch_is_raised_shares_it_with_no_later_grant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scenario = SearchScenario("an epoch is raised", "", replace(STORE, slack_ms=0), RAISING)
    found = explore(scenario)
    assert (found.violation, found.exhausted) == (None, True)

    def keeps_its_own(turn: StepContext, to: Phase, record: Record, over: Version | None) -> Step:
        return actions.send(turn, to, WritePurpose.RELEASE, replace(record, expired=True), over)

    # The answer to the raise may come after the lease: the tombstone must not fall behind it.
    monkeypatch.setattr(actions, "_tombstone", keeps_its_own)
    assert explore(scenario).violation == "epochs rise: W2 was granted epoch 2 after epoch 2"


def test_every_expiry_policy_and_every_fault_is_among_the_rows_with_all_rules_on() -> None:
    faulty = [each for each in ON if each.bounds.faults]
    assert {each.policy.expiry for each in faulty} == {
        STORE.expiry,
        WALL.expiry,
        OBSERVED.expiry,
    }
    assert {each.bounds.kinds for each in faulty} == {ON_THE_WAY, CRASH}
    assert any(each.bounds.commits != (0, 0) for each in faulty)


class UntilItWaits(LeaseWorld):
    """Ends where a client waits that has been started again after a crash."""

    def violation(self, state: PackedState) -> str | None:
        actors = (self.actors.parts[each] for each in state[:-4])
        waits = any(each.life and each.state.phase is Phase.WAITING for each in actors)
        return "it waits" if waits else super().violation(state)


def test_a_client_restarted_after_a_crash_waits_for_its_own_lease_as_others_do() -> None:
    alone = Bounds(acquires=(1, 0), faults=1, kinds=frozenset({ExplorerFault.CRASH}))
    world = UntilItWaits(STORE, alone)
    example = Counterexample(search(world).path, world)
    assert example.story() == [
        " 1. W1 requests the lock; reads the lock object",
        " 2. W1 sees no lock object; claims epoch 1: W1/1 over nothing",
        " 3. the store applies W1's W1/1",
        " 4. fault: W1 crashes and restarts as W1'",
        " 5. W1' requests the lock; reads the lock object",
        " 6. W1' sees W1's lease, epoch 1 (W1/1); waits for W1",
    ]
    assert check(example.history()).kind is Kind.VALID


def test_recognising_ones_own_record_by_owner_alone_waits_for_ones_own_lease() -> None:
    mistake = next(each for each in OFF if each.name == "recognise")
    found = explore(replace(mistake, bounds=replace(mistake.bounds, watch=frozenset(Invariant))))
    assert (found.violation, found.steps) == (
        "no self-inflicted loss: W1 waits for its own live lease", 9
    )  # fmt: skip


def test_the_big_rows_have_every_rule_on_and_all_expiry_policies_among_them() -> None:
    assert not any(each.breaks or each.off for each in BIG)
    assert {each.policy.expiry for each in BIG} == {STORE.expiry, WALL.expiry, OBSERVED.expiry}


# --- each rule off ------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", OFF, ids=name)
def test_with_a_rule_off_the_shortest_story_of_the_damage_is_found(
    scenario: SearchScenario,
) -> None:
    found = row(scenario)
    assert found.as_expected, found.violation
    assert (found.steps, found.states) == RECORDED[scenario.name]
    assert found.steps <= PEER_STEPS.get(scenario.name, found.steps)


@pytest.mark.parametrize("scenario", OFF, ids=name)
def test_every_counterexample_is_narrated_and_the_checker_finds_it_invalid(
    scenario: SearchScenario,
) -> None:
    counterexample = row(scenario).counterexample
    assert counterexample is not None
    story, history = counterexample.story(), counterexample.history()
    assert len(story) == row(scenario).steps
    assert story[0] == " 1. W1 requests the lock; reads the lock object"
    assert narrate(history)
    verdict = check(history)
    assert verdict.kind is Kind.INVALID, verdict.because
    assert 1 <= len(verdict.evidence) <= 4


def test_every_rule_that_the_explorer_can_reach_has_a_row() -> None:
    right = ON[0].rules
    changed = {rule for each in OFF for rule in right if each.rules[rule] != right[rule]}
    # `margin` is a tenth of the lease at most: on leases of two ticks it rounds to nothing.
    assert changed == right.keys() - {"margin_ms"}


def test_a_deadline_counted_from_the_answer_gives_two_holders() -> None:
    (found,) = explore_rows(["count_from_send"])
    assert found.counterexample is not None
    assert found.counterexample.story() == [
        " 1. W1 requests the lock; reads the lock object",
        " 2. W1 sees no lock object; claims epoch 1: W1/1 over nothing",
        " 3. the store applies W1's W1/1",
        " 4. a second passes",
        " 5. W1 gets an answer: its acquire was applied; counts on epoch 1 until 3 s",
        " 6. a second passes",
        " 7. W2 requests the lock; reads the lock object",
        " 8. W2 sees W1's lease, epoch 1 (W1/1); claims epoch 2: W2/1 over W1/1",
        " 9. the store applies W2's W2/1",
        "10. W2 gets an answer: its acquire was applied; counts on epoch 2 until 4 s",
    ]


def test_tokens_keep_a_late_write_out_but_lose_an_update() -> None:
    (lost_update,) = (each for each in OFF if each.name == "fence token")
    (deletes,) = (each for each in OFF if each.name == "fence token, release deletes")
    # The same search for a stale write only: with tombstones the token does hold it off.
    tokens = replace(lost_update, bounds=deletes.bounds, breaks=None)
    assert row(tokens).as_expected


def test_a_row_that_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match="no such row: drift_for_everybody"):
        explore_rows(["drift_for_everybody"])


def silent_in(action: Callable[[StepContext, Phase], Step]) -> Callable[[StepContext, Phase], Step]:
    """The same action, which must not send anything."""

    def acted(turn: StepContext, to: Phase) -> Step:
        state, example = action(turn, to)
        assert not any(isinstance(each, ReadRecord | WriteRecord) for each in example)
        return state, example

    return acted


@contextmanager
def recorded() -> Iterator[set[tuple[Phase, EventCase]]]:
    """The rows of the transition table that are taken meanwhile."""
    met: set[tuple[Phase, EventCase]] = set()

    def noted(phase: Phase, case: EventCase) -> Transition:
        met.add((phase, case))
        found = transition(phase, case)
        if found.to is not Phase.WAITING:
            return found
        return found._replace(action=silent_in(found.action))

    with replaced("lockkit.protocol.lease:transition", noted):
        yield met


def played(policy: Policy, *events: Event) -> State:
    """One client that meets these events, one after the other."""
    state = State()
    for event in events:
        state, _ = step(Identity("W1", 10_000), state, event, policy)
    return state


def scripted() -> None:
    """Three rows that no small world reaches: a second acquire, a clock that is set back, and a
    release whose first look is not answered.
    """
    theirs = Record("W2", 5_000, epoch=1, attempt="W2/1", ttl_ms=5_000)
    seen = Observation("v1", theirs)
    start, late, set_back = Now(0, 0), Now(60_000, 60_000), Now(120_000, 0)
    wanted = AcquireRequested(start), ReadAnswered(start, seen), GiveUp(start)
    assert played(WALL, *wanted, AcquireRequested(start)).phase is Phase.LOOKING
    claimed = AcquireRequested(late), ReadAnswered(late, seen), WriteAnswered(late, Unknown("lost"))
    assert played(WALL, *claimed, ReadAnswered(set_back, seen)).phase is Phase.WAITING
    assert played(WALL, *claimed, ReadAnswered(set_back, seen), Tick(late)).phase is Phase.CLAIMING
    absent = ReadAnswered(start, Observation(None, None))
    held = AcquireRequested(start), absent, WriteAnswered(start, Applied("v1"))
    renews = RenewDue(start), WriteAnswered(start, Unknown("lost")), ReadFailed(start, "lost")
    quits = ReleaseRequested(start), ReadFailed(start, "lost"), Tick(start)
    assert played(WALL, *held, *renews, *quits).phase is Phase.RELEASING


def test_every_row_of_the_table_is_reached_and_no_other_transition_happens() -> None:
    """Also: a client that waits has no request out, so the table has no answer for it there."""
    table = {(phase, case) for phase, rows in TRANSITIONS.items() for case in rows}
    table |= {(None, case) for case in ANYWHERE}
    worlds = {each.name: each for each in ON}
    with recorded() as met:
        scripted()
        for each in ("store", "alone, two faults"):
            bounds = replace(worlds[each].bounds, **LARGE.get(each, {}))
            assert search(LeaseWorld(worlds[each].policy, bounds)).violation is None
        throttles = Bounds(renewals=(0, 0), tries=(2, 1), faults=1, gives_up=True)
        assert search(LeaseWorld(STORE, throttles)).violation is None
    # `recorded` looks each transition up in the table, so one that has no row raises KeyError.
    assert {(None if case in ANYWHERE else phase, case) for phase, case in met} == table


# --- the search itself --------------------------------------------------------------------------


class Puzzle:
    """Two jugs of 3 and 5 litres: the shortest way to 4 litres takes six moves (Die Hard 3)."""

    def initial(self) -> tuple[int, int]:
        return 0, 0

    def moves(self, state: tuple[int, int]) -> Iterator[tuple[str, tuple[int, int]]]:
        small, large = state
        yield "fill 3", (3, large)
        yield "fill 5", (small, 5)
        yield "empty 3", (0, large)
        yield "empty 5", (small, 0)
        poured = min(small, 5 - large)
        yield "3 into 5", (small - poured, large + poured)
        poured = min(large, 3 - small)
        yield "5 into 3", (small + poured, large - poured)

    def violation(self, state: tuple[int, int]) -> str | None:
        return "four litres" if state[1] == 4 else None


def test_any_world_can_be_searched_and_the_way_is_the_shortest() -> None:
    found = search(Puzzle())
    assert found.violation == "four litres"
    assert [move for move, _ in found.path] == [
        "fill 5", "5 into 3", "empty 3", "5 into 3", "fill 5", "5 into 3",
    ]  # fmt: skip


def test_a_search_that_was_cut_short_reports_it() -> None:
    found = search(LeaseWorld(STORE, Bounds(spread=1)), states_max=1_000)
    assert (found.violation, found.exhausted) == (None, False)


@pytest.mark.parametrize("policy", [STORE, WALL, OBSERVED], ids=["store", "wall", "observed"])
def test_states_without_irrelevant_parts_are_fewer_and_behave_the_same(policy: Policy) -> None:
    """States without what the protocol cannot look at any more: fewer, and the same behaviour."""
    bounds = Bounds(renewals=(0, 0), tries=(2, 1), faults=1, gives_up=True)
    brief = LeaseWorld(policy, bounds)
    full = LeaseWorld(policy, bounds, forgets=False)
    with recorded() as of_brief:
        few = search(brief)
    with recorded() as of_full:
        many = search(full)
    assert few.exhausted and many.exhausted
    assert (few.violation, many.violation) == (None, None)
    assert few.states < many.states
    assert of_brief == of_full


# --- the pages ----------------------------------------------------------------------------------


def test_the_page_of_planted_mistakes_has_the_recorded_numbers() -> None:
    states = sum(RECORDED[each.name][1] for each in ON)
    lines = [
        f"`lockkit explore`: with all rules on, {len(ON)} small worlds are searched whole,",
        f"{states:,} states, and nothing breaks (bounded, so no proof).",
        "Each rule switched off, the shortest way to the damage:",
        "",
        "| switched off | breaks | steps | states |",
        "|---|---|--:|--:|",
    ]
    for each in OFF:
        assert each.breaks is not None
        steps, seen = RECORDED[each.name]
        lines.append(f"| {each.off} | {each.breaks.value} | {steps} | {seen:,} |")
    section("concepts/mistakes.md", "explore", "\n".join(lines) + "\n")
