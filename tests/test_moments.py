"""Seeds as moments: a run up to one of its moves is a line of text, also of other ways to go on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lockkit.cli.main import main
from lockkit.lab.verify.mutants import LEASE_MUTANTS
from lockkit.lab.verify.sim import LEASE, Branch, simulate
from lockkit.lab.widgets.links import NEEDS_ARROW, link, moment_of, playground
from lockkit.lab.widgets.seeds.moments import (
    OtherOutcomes,
    SeedMoment,
    others,
    play,
    scenario_of,
    scenarios,
)
from lockkit.lab.widgets.seeds.objects import run_scene

FOUND = json.loads((Path(__file__).parent / "seeds.json").read_text())["mutants"]["fence off"]
SEED = FOUND["seed"]
WRONG = SeedMoment("lease", SEED, mutant="fence off")
"""Ends in a violation, in each of its plays."""


@pytest.mark.parametrize("scenario", ["lease", "table", "wal", "queue", "striped"])
def test_a_run_in_two_parts_is_the_run(scenario: str) -> None:
    """What was so up to a move is so of the whole run, too; and the end is the same."""
    whole = play(SeedMoment(scenario, 7))
    part = play(SeedMoment(scenario, 7, step=50))
    assert part.steps == 50 < whole.steps
    trace = part.run.world.trace
    assert trace == whole.run.world.trace[: len(trace)]
    assert play(SeedMoment(scenario, 7, step=50)).trace_hash == part.trace_hash


@pytest.mark.parametrize("scenario", ["lease", "wal", "queue"])
def test_the_moment_of_the_last_move_is_the_whole_run(scenario: str) -> None:
    """Its last moves come after the scenario's own: all tasks end, and the table is read."""
    is_the_whole_run(scenario, 7)


@pytest.mark.soak
@pytest.mark.parametrize("scenario", scenarios())
def test_a_moment_replays_the_run_in_every_scenario(scenario: str) -> None:
    for seed in range(1, 6):
        is_the_whole_run(scenario, seed)


def is_the_whole_run(scenario: str, seed: int) -> None:
    whole = simulate(scenario_of(scenario), seed)
    moment = SeedMoment(scenario, seed, whole.steps)
    end = play(SeedMoment.of(link(moment) or str(moment)))
    assert (end.trace_hash, end.violation) == (whole.trace_hash, whole.violation)
    before = play(replace(moment, step=whole.steps - 3))
    assert before.steps == whole.steps - 3
    trace = before.run.world.trace
    assert trace == whole.run.world.trace[: len(trace)]


def test_other_ways_from_a_move_near_the_end_share_all_that_was_before_it() -> None:
    here = SeedMoment("wal", 7, play(SeedMoment("wal", 7)).steps - 10)
    before = play(here).run.world.trace
    assert play(here.way(1)).run.world.trace[: len(before)] == before


def test_the_moment_of_a_violation_shows_it_and_the_move_before_does_not() -> None:
    end = play(WRONG)
    assert end.violation == simulate(LEASE, SEED, mutant=LEASE_MUTANTS["fence off"]).violation
    at = SeedMoment.of(f"lease/fence off:{SEED}@{end.steps}")
    assert play(at).violation == end.violation
    assert play(SeedMoment.of(f"lease/fence off:{SEED}@{end.steps - 1}")).violation is None


def test_another_way_that_begins_after_the_end_of_its_run_is_refused() -> None:
    with pytest.raises(ValueError, match="so no other way begins at move 9999"):
        play(SeedMoment.of("lease:1@9999+1"))
    assert play(SeedMoment.of("lease:1@9999+1@3")).steps == 3, "that move comes before the way"


def test_other_ways_share_the_past_and_differ_after_it() -> None:
    here = SeedMoment("lease", SEED, step=60)
    before = play(here).run.world.trace
    traces = {play(here.way(number)).trace_hash for number in range(1, 11)}
    assert len(traces) == 10
    for number in (1, 2):
        way = play(here.way(number)).run.world
        assert way.trace[: len(before)] == before


def test_the_nearer_to_a_violation_the_more_other_ways_end_in_one() -> None:
    """And each that does is a moment of its own, which shows it again."""
    end = play(WRONG).steps
    far, near = (others(SeedMoment("lease", SEED, end - back, "fence off"), 25) for back in (60, 2))
    assert len(far.wrong) < len(near.wrong)
    moment, why = near.wrong[0]
    assert play(SeedMoment.of(str(moment))).violation == why
    right = others(SeedMoment("lease", SEED, end - 2), 25)
    assert right == OtherOutcomes(SeedMoment("lease", SEED, end - 2), 25, ())


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("lease:1234@57", SeedMoment("lease", 1234, 57)),
        (" lease / fence off : 1 @ 2 ", SeedMoment("lease", 1, 2, "fence off")),
        ("wal:3", SeedMoment("wal", 3)),
        ("lease/slack, too small:1@5+3@80",
         SeedMoment("lease", 1, 80, "slack, too small", (Branch(5, 3),))),
        ("table:1@5+3@80+1", SeedMoment("table", 1, None, "", (Branch(5, 3), Branch(80, 1)))),
    ],
)  # fmt: skip
def test_a_moment_is_read_back_from_what_is_written(text: str, moment: SeedMoment) -> None:
    assert SeedMoment.of(text) == moment
    assert SeedMoment.of(str(moment)) == moment


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x", "is not a moment; one is written 'lease:1234@57'"),
        ("lease:x", "is not a moment"),
        ("tea:1@2", "no scenario 'tea'; there are: lease"),
        ("lease/tea:1@2", "no rule or mistake 'tea'; there are: count_from_send"),
        ("lease:1@2@3", "cannot read '@3'"),
        ("lease:1@1234567", "cannot read '7' .* at most six digits"),
        ("lease:1@2" + " " * 600, "is not a moment"),
    ],
)
def test_an_invalid_moment_is_refused_with_the_reason(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        SeedMoment.of(text)


# --- the command ----------------------------------------------------------------------------------


def test_the_command_prints_a_violations_moment_and_takes_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["simulate", "--seeds", str(SEED), "--mutant", "fence off"]) == 1
    moment = capsys.readouterr().err.partition("--moment '")[2].partition("'")[0]
    assert moment == f"lease/fence off:{SEED}@{play(WRONG).steps}"
    assert main(["simulate", "--moment", moment]) == 1
    said = capsys.readouterr().out
    assert f"{moment}: {play(WRONG).steps} moves, {play(WRONG).violation}" in said
    assert "holds the lock, epoch" in said


def test_the_command_plays_alternatives_from_a_moment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--moment", "lease:9@60", "--others", "5", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["moment"] == "lease:9@60" and said["steps"] == 60
    assert said["others"] == {"runs": 5, "wrong": []}
    unset = [""], "not a moment"  # an empty variable of a shell
    for wrong, says in (unset, (["lease:x"], "a moment"), (["lease:9", "--others", "5"], "@57")):
        assert main(["simulate", "--moment", *wrong]) == 64
        assert says in capsys.readouterr().err


# --- a moment as a link ---------------------------------------------------------------------------


@pytest.mark.parametrize("moment", [
    "lease:17", "lease:17@23", "lease/claim_412 lost:17@23", "lease/slack, too small:1@0",
    "wal:3@57+3@80", "wal:3@57+3@80+1", "lease/fence off:4@9",
])  # fmt: skip
def test_a_link_names_the_same_moment(moment: str) -> None:
    assert str(SeedMoment.of(link(moment))) == moment
    assert " " not in link(moment)


def test_a_link_is_written_as_the_documentation_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKKIT_PLAYGROUND", "http://127.0.0.1:8000/playground.html")
    said = "http://127.0.0.1:8000/playground.html#scenario=lease&seed=17&rule=fence%20off&step=23"
    assert link("lease/fence off:17@23") == said
    assert moment_of("#step=23&rule=fence+off&seed=17&scenario=lease") == "lease/fence off:17@23"
    monkeypatch.setenv("LOCKKIT_PLAYGROUND", "build/docs/play ground.html")
    assert playground() == (Path.cwd() / "build/docs/play ground.html").as_uri()
    monkeypatch.delenv("LOCKKIT_PLAYGROUND")
    assert playground() == "https://lockkit.github.io/lockkit/playground.html"


@pytest.mark.parametrize(("wrong", "says"), [
    ("#scenario=lease", "names a scenario and a seed"),
    ("#scenario=lease&seed=1&sede=2", "no field 'sede'"),
    ("#scenario=lease&seed=1&seed=2", "a field twice"),
    ("#scenario=lease&seed=1&way=5", "is written 57.3"),
    ("#scenario=lease&seed=x", "the seed 'x' of this link is not a number"),
    ("#scenario=lease&seed=-5", "the seed '-5' of this link is not a number"),
    ("#scenario=lease&seed=1&step=x", "the step 'x' of this link is not a number"),
    ("#scenario=lease&seed=1&step=999999999", "of this link is not a number of at most 6 digits"),
    ("#scenario=lease&seed=٣", "the seed '٣' of this link is not a number"),
    ("lease:٣", "is not a moment"),
    ("#play=wal&decisions=W1%20lose", "names a play, not a scenario: open it in a browser"),
    ("#scenario=lease&play=wal", "names a scenario and a play: leave out one of them"),
    ("#scenario=least&seed=1", "no scenario 'least'"),
    ("#scenario=lease&seed=1&rule=claim", "no rule or mistake 'claim'"),
])  # fmt: skip
def test_a_link_that_names_no_moment_is_refused(wrong: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        SeedMoment.of(wrong)


def test_the_name_of_a_rule_alone_opens_its_first_mistake(
    capsys: pytest.CaptureFixture[str],
) -> None:
    link = "#scenario=lease&seed=17&rule=claim_412&step=23"
    opened = SeedMoment.of(link)
    assert SeedMoment.of(link[1:]) == opened, "a shell takes the rest for a comment"
    assert opened == SeedMoment("lease", 17, 23, "claim_412 lost")
    seeds = json.loads((Path(__file__).parent / "seeds.json").read_text())["mutants"]
    seed = seeds["claim_412 lost"]["seed"]
    assert main(["simulate", "--seeds", str(seed), "--mutant", "claim_412"]) == 1
    assert f"--moment 'lease/claim_412 lost:{seed}@" in capsys.readouterr().err


def test_the_command_prints_a_link_that_it_opens_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["simulate", "--seeds", str(SEED), "--mutant", "fence off"]) == 1
    opened = capsys.readouterr().err.splitlines()[-1].strip()
    assert opened == link(f"lease/fence off:{SEED}@{play(WRONG).steps}")
    assert main(["simulate", "--moment", opened]) == 1
    assert capsys.readouterr().out.splitlines()[-1].strip() == opened
    assert main(["simulate", "--moment", opened, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["link"] == opened


def test_the_command_says_which_move_is_a_runs_first_and_prints_no_link_that_the_page_refuses(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["simulate", "--moment", "#scenario=group&seed=2&step=1"]) == 0
    said = capsys.readouterr()
    assert "moves 1 to 4 set up the store; no client has moved yet: this is move 4" in said.err
    assert said.out.splitlines()[-2:] == ["group:2@4: 4 moves, no violation",
                                          f"  {link('group:2@4')}"]  # fmt: skip
    assert main(["simulate", "--moment", "group-archive:2@20"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "group-archive:2@20: 20 moves, no violation"
    assert main(["simulate", "--moment", "group-archive:2@20", "--json"]) == 0
    assert "link" not in json.loads(capsys.readouterr().out)
    assert [link(f"{each}:1") for each in NEEDS_ARROW] == [""] * len(NEEDS_ARROW)
    assert link("group:1") and link("table:1")


def test_no_other_ways_are_tried_from_a_move_that_is_wrong_already(
    capsys: pytest.CaptureFixture[str],
) -> None:
    end = play(WRONG).steps
    assert main(["simulate", "--moment", f"{WRONG}@{end}", "--others", "3"]) == 64
    assert f"move {end} is wrong already" in capsys.readouterr().err


def test_an_error_of_the_service_that_ends_a_run_is_a_violation_and_not_raised() -> None:
    violation = play(SeedMoment.of("group/unproven:39")).violation
    assert violation is not None
    assert violation.startswith("no client ends by an unexpected error: NoTable(")


@pytest.mark.parametrize("moment", ["lease/drift:279", "lease/count_from_send:4198"])
def test_both_who_count_on_the_lock_at_once_do_so_until_a_lease_ends(moment: str) -> None:
    """What a client does as the run stops it is not drawn: no release, and no end of its belief."""
    outcome = play(SeedMoment.of(moment))
    drawn = run_scene(outcome, "lease")
    harm = [each for each in drawn["marks"] if each["kind"] == "harm"]
    harm_ms, who = harm[0]["t"], {each["lane"] for each in harm}
    bars = [each for each in drawn["bars"] if each["lane"] in who and each["t"][1] > harm_ms]
    assert {each["lane"] for each in bars if each["kind"] in ("belief", "wrong")} == who
    assert len({each["t"][1] for each in bars}) == 1 and any(
        each["kind"] == "wrong" for each in bars)  # fmt: skip
    assert not [each for each in drawn["arrows"] if each["label"] == "release"
                and each["t"][0] >= harm_ms]  # fmt: skip


def test_what_only_the_checker_found_is_marked_where_it_happened() -> None:
    outcome = play(SeedMoment.of("lease/slack:7736"))
    (granted,) = [each for each in outcome.run.world.history()
                  if each.kind == "held" and each["epoch"] == 2]  # fmt: skip
    marks = [each for each in run_scene(outcome, "lease")["marks"] if each["kind"] == "harm"]
    began_ms = next(iter(outcome.run.world.history())).at_ms
    assert [each["t"] for each in marks] == [round(granted.at_ms - began_ms, 4)] * 2


@pytest.mark.parametrize("moment", ["table:5", "restore-table:2", "late-table:2"])
def test_a_process_that_goes_on_was_seen_to_be_paused(moment: str) -> None:
    lanes: dict[str, bool] = {}
    for each in play(SeedMoment.of(moment)).run.world.history():
        if each.kind in ("stalled", "resumed", "started"):
            assert each.kind != "resumed" or lanes[each.who]
            lanes[each.who] = each.kind == "stalled"
    assert lanes
