"""The clean: deletes the files that no reader inside the retention can see any more.

A plan first, durable, then the deletions, then what came of them: whoever finds a clean half done
deletes by its plan. No fence decides anything here, because a plan can not become wrong. It lists
slices that a newer one of the same group had superseded before the oldest commit retained, and
groups replaced before it. What is superseded stays so: completed commits are not taken back, a
commit older than the retention that was still pending holds the retention back, and none can be
begun there any more (`covered`; in `hudi` mode the plan is made under the lock, as Hudi's is).
Nor is a file's name used twice: it ends with its instant. So a cleaner that was paused for hours
after planning deletes what has been garbage all the time; two with the same plan delete it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from lockkit.errors import TableError
from lockkit.protocol.outcome import Found
from lockkit.runtime import Note, Procedure, WallMs, all_of, create, delete, listing, read
from lockkit.table.format.base_file import Slice
from lockkit.table.format.layout import NO_COMMIT, CommitFiles, FileGroup, in_partition
from lockkit.table.format.plans import (
    NO_BASE,
    CleanPlan,
    Files,
    format_clean,
    format_clean_plan,
    parse_clean,
    parse_clean_plan,
)
from lockkit.table.format.timeline import Names, Timeline, instant_ms, instant_of, load_timeline
from lockkit.table.occ.covered import read_commit
from lockkit.table.occ.transaction import Known, take
from lockkit.table.read.snapshot import Snapshot, refuse_log_files
from lockkit.table.services.retention import CleanRules, Lineage, at_ms, garbage, retained_from

FIRST = "19700101000000000"
COMMITS_AT_ONCE = 2_000
"""Commits whose garbage one clean looks for; the next one goes on from there."""
EMPTY_AFTER = 100
"""So many commits without garbage are written down as cleaned, lest they be looked at for ever."""


@dataclass(frozen=True, slots=True)
class Cleaned:
    """A clean that is completed: every file of its plan is gone."""

    instant: str
    retain_from: str
    deleted: tuple[str, ...]


# --- the plan -------------------------------------------------------------------------------------


def plan_clean(
    known: Known, rules: CleanRules = CleanRules(), *, base: str = NO_BASE, since: str = ""
) -> Procedure[CleanPlan]:
    """Write down what will be deleted. Its `instant` is "" if nothing was written down: nothing is
    to be deleted.

    In `hudi` mode under the lock. `base` as for `roll_back`; `since` is the `retain_from` of an
    earlier plan that came to nothing. Cleans that are pending already are `resume_clean`'s.
    """
    found, commits = yield from _look(known, rules, base, since)
    if not found.files and commits <= EMPTY_AFTER:
        return found
    later = replace(known, newest=max(known.newest, found.last_completed))
    taken = yield from take(later, action="clean", plan=format_clean_plan(found))
    return replace(found, instant=taken.instant)


def preview_clean(
    known: Known, rules: CleanRules = CleanRules(), *, base: str = NO_BASE
) -> Procedure[CleanPlan]:
    """What `plan_clean` would write down; reads only."""
    return (yield from _look(known, rules, base, ""))[0]


def _look(
    known: Known, rules: CleanRules, base: str, since: str
) -> Procedure[tuple[CleanPlan, int]]:
    """The plan, and how many commits were looked at for it since the last clean by commits."""
    names, by_commits = known.config.names, rules.by_commits
    now = yield from load_timeline(names)
    refuse_log_files(now)
    wall_ms = yield WallMs()
    newest, retain_from = max(now.commits, default=""), retained_from(now, rules, wall_ms)
    if retain_from is None:
        return CleanPlan(instant="", retain_from=since, last_completed=newest,
                         policy=rules.policy, base=base), 0  # fmt: skip
    since = max(since, (yield from _cleaned_until(names, now))) if by_commits else ""
    until = retain_from if by_commits else "~"
    wanted = [each for each in now.commits if at_ms(since or FIRST) <= at_ms(each) < at_ms(until)]
    if len(wanted) > COMMITS_AT_ONCE and by_commits:
        retain_from, wanted = wanted[COMMITS_AT_ONCE], wanted[:COMMITS_AT_ONCE]
    commits = yield from all_of(read_commit(names, each, now) for each in wanted)
    work = _Work.of(commits, retain_from, 1 if by_commits else rules.versions, now)
    if not by_commits:  # no earlier clean tells what is gone already
        work.older |= work.lineages.keys()
    files = yield from work.files()
    return CleanPlan(
        instant="", retain_from=retain_from if by_commits else "", last_completed=newest,
        policy=rules.policy, files=files, base=base,
    ), len(wanted) if by_commits else 0  # fmt: skip


def _cleaned_until(names: Names, now: Timeline) -> Procedure[str]:
    """What the last clean retained from: it has dealt with all that was superseded before."""
    cleans = [each for each, action in now.completed.items() if action == "clean"]
    for instant in sorted(cleans, reverse=True):
        key = names.completed(instant, "clean", now.completion.get(instant))
        match (yield from read(key)):
            case Found(body, _) if body:
                done = parse_clean(key, body)
                if done.retain_from:
                    return done.retain_from
            case _:
                continue
    return ""


@dataclass(slots=True)
class _Work:
    """The garbage of some commits, on its way to the paths of its files."""

    retain_from: str
    versions: int
    saved: frozenset[str]
    pending: frozenset[str]
    lineages: dict[FileGroup, Lineage] = field(default_factory=dict)
    paths: dict[tuple[FileGroup, str], str] = field(default_factory=dict)
    older: set[FileGroup] = field(default_factory=set)
    """Groups to be looked up: these commits do not tell the paths of all their slices."""

    @classmethod
    def of(
        cls, commits: Iterable[CommitFiles], retain_from: str, versions: int, now: Timeline
    ) -> _Work:
        work = cls(retain_from, versions, now.savepoints, frozenset(now.pending))
        slices: dict[FileGroup, list[str]] = {}
        gone: dict[FileGroup, str] = {}
        for commit in sorted(commits, key=lambda each: instant_ms(each.instant)):
            gone.update(dict.fromkeys(commit.replaced, commit.instant))
            for stat in commit.stats:
                known = slices.setdefault(stat.group, [])
                if not known and stat.previous != NO_COMMIT:
                    known.append(stat.previous)
                    work.older.add(stat.group)
                known.append(commit.instant)
                work.paths[stat.group, commit.instant] = stat.path
        work.older |= gone.keys() - slices.keys()
        for group in slices.keys() | gone.keys():
            work.lineages[group] = Lineage(tuple(slices.get(group, ())), gone.get(group))
        return work

    def files(self) -> Procedure[Files]:
        found = yield from all_of(self._of(group) for group in sorted(self.lineages))
        return tuple(each for files in found for each in files)

    def _of(self, group: FileGroup) -> Procedure[list[tuple[str, str]]]:
        lineage = self.lineages[group]
        gone = lineage.gone is not None and at_ms(lineage.gone) < at_ms(self.retain_from)
        doomed = self._doomed(lineage)
        paths = [self.paths[group, each] for each in doomed if (group, each) in self.paths]
        if group in self.older and (doomed or gone):
            listed = yield from listing(f"{in_partition(*group)}_")
            standing: dict[str, list[str]] = {}  # a task that was tried twice leaves two files
            for each in listed:
                if (at := _instant_in(each.key)) and at not in self.pending:
                    standing.setdefault(at, []).append(each.key)
            if gone:  # what was superseded earlier and is still there goes too
                every = tuple(sorted({*lineage.instants, *standing}, key=instant_ms))
                doomed = self._doomed(replace(lineage, instants=every))
            paths = [path for at in doomed for path in standing.get(at, ())]
        return [(group[0], path) for path in sorted(paths)]

    def _doomed(self, lineage: Lineage) -> frozenset[str]:
        return garbage(lineage, self.retain_from, versions=self.versions, saved=self.saved)


def _instant_in(path: str) -> str:
    """The instant that a base file's name ends with; "" where it is none."""
    name = path.removesuffix(".parquet").rpartition("_")[2]
    return name if name.isdecimal() and len(name) in (14, 17) else ""


# --- carrying it out ------------------------------------------------------------------------------


def carry_out(plan: CleanPlan, names: Names) -> Procedure[Cleaned]:
    """Delete what the plan lists; what is gone already is as good. Needs no lock."""
    began_ms = yield WallMs()
    yield from create(names.inflight(plan.instant, "clean"), b"")
    yield from all_of(delete(path) for _, path in plan.files)
    took_ms = (yield WallMs()) - began_ms
    # Nobody orders anything by a clean's completion time: one that all who finish it agree on.
    done = instant_of(instant_ms(plan.instant) + 1) if names.layout == 2 else None
    key = names.completed(plan.instant, "clean", done)
    yield from create(key, format_clean(plan, took_ms=took_ms))
    yield Note("note", {"text": f"cleaned {len(plan.files)} files", "instant": plan.instant})
    return Cleaned(plan.instant, plan.retain_from, tuple(path for _, path in plan.files))


def resume_clean(instant: str, names: Names, snapshot: Snapshot) -> Procedure[Cleaned | None]:
    """Finish a clean whose maker died; None if somebody has. `snapshot` is of now.

    `TableError` if its plan names a file of the snapshot: no clean ever planned that.
    """
    key = names.requested(instant, "clean")
    match (yield from read(key)):
        case Found(body, _):
            plan = parse_clean_plan(key, body)
        case _missing:
            return None
    refuse_live(key, plan.files, snapshot.slices)
    return (yield from carry_out(plan, names))


def refuse_live(key: str, files: Files, slices: Sequence[Slice]) -> None:
    """Raise if the plan at `key` would take files away that readers see now."""
    live = {path for _, path in files} & {each.path for each in slices}
    if live:
        raise TableError(
            f"{key} plans to delete {min(live)[:120]}, which the table's latest snapshot shows; "
            "nothing was deleted: find out who wrote it, then delete that plan"
        )
