"""Group commit in TLA+: TLC finds each mistake, and none in the rules; it decides as the code does.

`LOCKKIT_REWRITE=1 pytest tests/test_group_spec.py -m ''` writes the table of the documentation.
"""

from __future__ import annotations

import itertools
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import tlc

from lockkit.table.occ.group.decision import COMMIT, GroupDecision, GroupFence, Offer, decide

SPEC = tlc.ROOT / "tests/spec/group/GroupCommit.tla"
TEXT = SPEC.read_text(encoding="utf-8")
PAGE = tlc.ROOT / "docs/concepts/group_commit.md"
BEGIN, END = "<!-- tlc:begin -->\n", "<!-- tlc:end -->"
INVARIANTS = ("ONCE", "KEPT", "NO_MEANS_NO", "NO_LOST_UPDATE", "VISIBLE", "PREFIX",
              "BEHIND_NOBODY", "WHOLE")  # fmt: skip
APPEND = 0
"""A write into a new file group."""


@dataclass(frozen=True, slots=True)
class Model:
    """Bounds, and what TLC finds in them."""

    says: str
    breaks: str = ""
    """The invariant that a mistake breaks; '' if no rule is switched off."""
    writes: tuple[int, ...] = (1,)
    """Of each writer its file group."""
    instants: int = 0
    version: int = 9
    window_max: int = 1
    faults: int = 0
    elsewhere: int = 0
    also: str = ""
    """Which of [c]ombiner, [s]ervice, snapshot [r]eader, [p]ulls of increments, [a]rchiver and
    switches of the [m]ode there are."""
    ahead: bool = False
    among: bool = False
    states: int = 0
    """The number of distinct states of a model without a mistake."""

    def constants(self, mistake: str) -> dict[str, object]:
        return {
            "version": self.version, "instants": self.instants or len(self.writes),
            "writes": "T" + "".join(map(str, self.writes)), "ahead": str(self.ahead).upper(),
            "among": str(self.among).upper(),
            "window_max": self.window_max, "faults": self.faults, "elsewhere": self.elsewhere,
            **{name: str(name[0] in self.also).upper()
               for name in ("combiner", "service", "reader", "pulls", "archiver", "mode")},
            "mistake": f'"{mistake}"',
        }  # fmt: skip


BOTH, OWN, ONE_INSTANT = (1, 1), (1, 2), {"window_max": 0, "elsewhere": 1}
CORRECT = {
    "a writer and a service": Model(
        "a service rolls back a living writer's instant", **ONE_INSTANT, also="s", states=5_357),
    "two writers": Model("both update one file group", writes=BOTH, states=24_195),
    "two writers, an answer lost": Model(
        "a replacement of the fence that is not answered lands at any later time, or never",
        writes=BOTH, faults=1, states=274_427),
    "two writers, a short window": Model(
        "what the owner has seen has left the window", writes=BOTH, elsewhere=1, states=307_984),
    "an append and a combiner": Model(
        "decisions leave the window at once", writes=(APPEND,), window_max=0, elsewhere=1,
        faults=1, also="cp", states=58_898),
    "an update, a combiner and a service": Model(
        "the same, and a service rolls it back", **ONE_INSTANT, also="cs", states=265_129),
    "a snapshot": Model("a reader beside a combiner", writes=(APPEND,), **ONE_INSTANT, also="cr",
                        states=309_586),
    "increments, version 6": Model("two writers and a reader of increments", writes=OWN,
                                   version=6, also="p", states=33_451),
    "increments, version 9": Model("the same", writes=OWN, also="p", states=36_001),
    "reserved ahead": Model("an append under an instant that was reserved without a listing",
                            writes=(APPEND, 1), version=6, ahead=True, elsewhere=1, also="p",
                            states=151_424),
    "updates reserved ahead": Model(
        "both update one file group, each on what its fence decided, without a listing",
        writes=BOTH, version=6, ahead=True, elsewhere=1, also="p",
        states=750_312),
    "offered beside": Model(
        "an append is offered beside its replacement of the fence, with a combiner",
        writes=(APPEND,), **ONE_INSTANT, among=True, also="cp", states=20_394),
    "offered beside, and rolled back": Model(
        "the same, with a service in the combiner's place", writes=(APPEND,), **ONE_INSTANT,
        among=True, also="s", states=5_519),
    "rounds": Model(
        "two updates of one file group; an owner that has read the fence lists alone", writes=BOTH,
        among=True, states=27_681),
    "an archiver": Model("an update, whose answer may be lost, and an archiver", faults=1, also="a",
                         states=3_704),
    "two writers and an archiver": Model("both update one file group", writes=BOTH, also="a",
                                         states=1_279_672),
    "a switch of the mode": Model(
        "both update one file group, one of them perhaps in the other mode", writes=BOTH, also="m",
        states=175_510),
}  # fmt: skip
MISTAKES = {
    "data first": Model("an offer lands before the data is proven", "KEPT", BOTH),
    "acknowledges offers": Model("a commit is acknowledged when its offer landed", "KEPT", BOTH),
    "412 refuses": Model("a refused or unanswered replacement counts as a refusal",
                         "NO_MEANS_NO", faults=1),
    "stops waiting": Model("a writer stops waiting, and reports that nothing was committed",
                           "NO_MEANS_NO", BOTH),
    "outcome first": Model("an owner lists, reads the fence, and takes what is in neither for no",
                           "NO_MEANS_NO", BOTH, faults=1),
    "batch": Model("offers of one batch are not compared with each other", "NO_LOST_UPDATE", BOTH),
    "no conflict": Model("offers are not compared with commits", "NO_LOST_UPDATE", BOTH),
    "unreached": Model("an offer is judged whose base the window does not reach",
                       "NO_LOST_UPDATE", BOTH, elsewhere=1),
    "re-base": Model("a base is raised without a check", "NO_LOST_UPDATE", BOTH, elsewhere=1),
    "reach": Model("a combiner does not ask what left the window between listing and fence",
                   "ONCE", (APPEND,), **ONE_INSTANT, also="c"),
    "owner's reach": Model("an owner does not", "NO_LOST_UPDATE", BOTH, elsewhere=1),
    "reader's reach": Model("a reader does not", "WHOLE", **ONE_INSTANT, also="r"),
    "forgets": Model("a combiner forgets the window that it knew before the listing", "ONCE",
                     (APPEND,), **ONE_INSTANT, also="c"),
    "evicts commits": Model("a commit leaves the window before it is published", "PREFIX", BOTH),
    "evicts refusals": Model("a refusal leaves the window without a tombstone", "ONCE",
                             (APPEND,), **ONE_INSTANT, also="c"),
    "ignores completed": Model("a combiner ignores the completed file", "ONCE", (APPEND,),
                               **ONE_INSTANT, also="c"),
    "tombstone is an offer": Model("a tombstone is taken for an offer", "ONCE", **ONE_INSTANT,
                                   also="c"),
    "tombstone first": Model("a rollback deletes, then decides", "KEPT", also="s"),
    "no entry": Model("a rollback decides nothing", "KEPT", also="s"),
    "lists first": Model("a rollback lists before it reads the fence", "ONCE", **ONE_INSTANT,
                         also="s"),
    "unproven": Model("a rollback deletes though its decision was not made", "KEPT", also="s"),
    "ended reservation": Model("an owner does not ask whether its reservation was rolled back",
                               "ONCE", **ONE_INSTANT, also="s"),
    "passed": Model("an owner uses an instant that a reader may have passed", "NO_LOST_UPDATE",
                    BOTH, version=6, also="p"),
    "late": Model("a late instant is accepted without a listing", "BEHIND_NOBODY", (APPEND, 1),
                  version=6, ahead=True, also="p"),
    "listed": Model("an instant reserved ahead is offered without a look at later ones",
                    "BEHIND_NOBODY", (APPEND, 1), version=6, ahead=True, also="p"),
    "listed beside": Model("an update is offered without a look at later ones beside its files",
                           "BEHIND_NOBODY", OWN, version=6, ahead=True, also="p"),
    "offered unlisted": Model(
        "an instant reserved ahead is offered beside the replacement of the fence",
        "BEHIND_NOBODY", (APPEND, 1), version=6, ahead=True, among=True, also="cp"),
    "lists, then reads": Model(
        "the owner of an offer lists, then reads the fence, and forgets what it knew before",
        "ONCE", **ONE_INSTANT, among=True, also="c"),
    "lacks the window": Model("an update counts as seen a decision that its snapshot lacks",
                              "NO_LOST_UPDATE", BOTH, version=6, ahead=True),
    "unlisted": Model("an instant counts as reserved without a listing after it",
                      "BEHIND_NOBODY", OWN, version=6, also="p"),
    "below": Model("a writer's clock alone gives its instants", "NO_LOST_UPDATE", BOTH),
    "unreserved": Model("nothing reserves an instant", "VISIBLE", BOTH, instants=1),
    "tail": Model("increments of version 6 read what is decided and not published",
                  "BEHIND_NOBODY", OWN, version=6, also="p"),
    "any order": Model("rounds are published in any order", "PREFIX", BOTH, version=6),
    "published together": Model("a round of version 9 is published in parallel", "PREFIX", OWN),
    "decides archived": Model("a fence decides what may be archived", "ONCE", faults=1, also="a"),
    "no archive": Model("the owner of an archived commit looks in the timeline alone",
                        "NO_MEANS_NO", faults=1, also="a"),
    "raises over archived": Model("a base is raised over an archived commit", "NO_LOST_UPDATE",
                                  BOTH, also="a"),
    "since": Model("after a switch of the mode a fence decides what was begun before it",
                   "VISIBLE", BOTH, also="m"),
    "no tail": Model("a snapshot leaves out what is not published", "WHOLE", also="r"),
}  # fmt: skip
QUICK = {"a writer and a service", "tail"}
"""The others take TLC several seconds each: `make soak`."""


def configuration(folder: Path, model: Model, mistake: str) -> Path:
    """Beside a copy of the specification: TLC looks for both in one folder."""
    shutil.copy(SPEC, folder)
    lines = ["SPECIFICATION Spec", "CHECK_DEADLOCK FALSE", "CONSTANTS"]
    lines += [f"  {name} {'<-' if name == 'writes' else '='} {value}"
              for name, value in model.constants(mistake).items()]  # fmt: skip
    file = folder / "model.cfg"
    file.write_text("\n".join([*lines, "INVARIANTS", *INVARIANTS]) + "\n")
    return file


run_by_tlc = [
    pytest.mark.skipif(not tlc.is_there(), reason="TLC is not here: make tlc fetches it"),
    pytest.mark.xdist_group("tlc"),
    pytest.mark.timeout(tlc.TIMEOUT_S + 60),
]
each_of = {
    of: pytest.mark.parametrize("name", [
        pytest.param(each, marks=[*run_by_tlc, *[pytest.mark.soak] * (each not in QUICK)])
        for each in models
    ]) for of, models in (("correct", CORRECT), ("mistakes", MISTAKES))
}  # fmt: skip


@each_of["correct"]
def test_the_rules_break_nothing_in_any_order_of_steps(name: str, tmp_path: Path) -> None:
    model = CORRECT[name]
    found = tlc.check(configuration(tmp_path, model, ""), tmp_path / SPEC.name)
    assert (found.invariant, found.exhausted, found.states) == (None, True, model.states)


@each_of["mistakes"]
def test_a_mistake_breaks_an_invariant(name: str, tmp_path: Path) -> None:
    model = MISTAKES[name]
    found = tlc.check(configuration(tmp_path, model, name), tmp_path / SPEC.name)
    assert found.invariant == model.breaks


def test_each_rule_that_can_be_switched_off_has_a_model() -> None:
    for name in MISTAKES:
        assert f'"{name}"' in TEXT, name
    for name in INVARIANTS:
        assert f"\n{name} ==" in TEXT, name
    assert {each.breaks for each in MISTAKES.values()} == set(INVARIANTS)


def table() -> str:
    """As the documentation has it."""
    rows = ["| searched whole, without a violation | states |", "|---|--:|"]
    rows += [f"| {name}: {each.says} | {each.states:,} |" for name, each in CORRECT.items()]
    rows += ["", "| rule switched off | what TLC finds broken |", "|---|---|"]
    rows += [f"| {each.says} | `{each.breaks}` |" for each in MISTAKES.values()]
    return "\n" + "\n".join(rows) + "\n"


def test_the_documentation_has_every_model() -> None:
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end
    if os.environ.get("LOCKKIT_REWRITE"):
        PAGE.write_text(before + begin + table() + "\n" + end + after)
    assert table() in PAGE.read_text()


# --- the decision ---------------------------------------------------------------------------------


def instant(number: int) -> str:
    return f"202501061012000{number:02}"


def cases() -> list[tuple[GroupFence, list[Offer], frozenset[str]]]:
    """Windows of one commit or none, two offers, and what a listing may prove."""
    group = {0: frozenset[tuple[str, str]](), 1: frozenset({("", "1")}), 2: frozenset({("", "2")})}
    fences = [GroupFence("")]
    for first, written, at in itertools.product((1, 2), (0, 1), (1, 3)):
        entry = GroupDecision(first, first, COMMIT, instant(at), writes=group[written])
        fences.append(GroupFence("", round=first, newest=entry.instant, first=first,
                                 published=first - 1, window=(entry,)))  # fmt: skip
    found = []
    for fence, (a, b), bases, reserved, timely in itertools.product(
        fences, itertools.product(group, group), ((0, 0), (1, 0)), (True, False),
        (frozenset[str](), frozenset({instant(2)})),
    ):  # fmt: skip
        offers = [Offer(instant(at), base, group[g], reserved=reserved, blind=g == 0)
                  for at, base, g in zip((2, 4), bases, (a, b), strict=True)]  # fmt: skip
        found.append((fence, offers, timely))
    return found


def in_tla(value: object) -> str:
    match value:
        case bool():
            return str(value).upper()
        case str():
            return f'"{value}"'
        case dict():
            return f"[{', '.join(f'{k} |-> {in_tla(v)}' for k, v in value.items())}]"
        case frozenset():
            return f"{{{', '.join(map(in_tla, value))}}}"
        case list():
            return f"<<{', '.join(map(in_tla, value))}>>"
        case _:
            return str(value)


def number(at: str) -> int:
    return int(at[-2:]) if at.startswith("2025") else 0


def group_in(writes: frozenset[tuple[str, str]] | None) -> int:
    return next((int(file_id) for _, file_id in writes or ()), 0)


@pytest.mark.skipif(not tlc.is_there(), reason="TLC is not here: make tlc fetches it")
@pytest.mark.xdist_group("tlc")
def test_the_specification_decides_as_the_code_does(tmp_path: Path) -> None:
    said, kinds = [], set()
    for fence, offers, timely in cases():
        new = decide(fence, offers, attempt="", timely=timely).window[len(fence.window):]
        kinds |= {each.why or each.kind for each in new}
        window = [{"t": number(each.instant), "kind": each.kind, "group": group_in(each.writes),
                   "round": each.round} for each in fence.window]  # fmt: skip
        given = "{" + ", ".join(in_tla({
            "t": number(each.instant), "base": each.base, "group": group_in(each.writes),
            "reserved": each.reserved}) for each in offers) + "}"  # fmt: skip
        call = (f"Decided({fence.first}, {in_tla(window)}, {number(fence.newest)}, {given}, "
                f"{in_tla(frozenset(map(number, timely)))}, 9)")  # fmt: skip
        want = [{"t": number(each.instant), "kind": each.why or each.kind} for each in new]
        said.append(f"ASSUME LET d == {call} IN "
                    f"[i \\in DOMAIN d |-> [t |-> d[i].t, kind |-> d[i].kind]] = {in_tla(want)}")
    assert kinds == {COMMIT, "conflict", "late"} and len(said) > 300
    name = "Decisions"
    text = "\n".join([f"---- MODULE {name} ----", "EXTENDS GroupCommit", *said, "===="])
    (tmp_path / f"{name}.tla").write_text(text)
    config = configuration(tmp_path, Model(""), "")
    config.write_text(config.read_text().replace("SPECIFICATION Spec", "INIT Init\nNEXT Stays"))
    ends = "Stays == FALSE /\\ UNCHANGED vars\n===="
    (tmp_path / f"{name}.tla").write_text(text[: -len("====")] + ends)
    found = tlc.check(config, tmp_path / f"{name}.tla")
    assert (found.invariant, found.states) == (None, 1)
