"""The clean: deletes the files that no reader inside the retention can see any more.

A plan first, durable, then the deletions, then what came of them: whoever finds a clean half done
deletes by its plan. No fence decides anything here, because a plan can not become wrong. It lists
slices that a newer one of the same group had superseded at or before the oldest commit retained,
and groups replaced before it. What is superseded stays so: completed commits are not taken back, a
commit older than the retention that was still pending holds the retention back, and none can be
begun there any more (`covered.py`; in `hudi` mode the plan is made under the lock, as Hudi's is).
Nor is a file's name used twice: it ends with its instant. So a cleaner that was paused for hours
after planning deletes what has been garbage all the time; two with the same plan delete it once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from lockkit.drive import Note, Procedure, WallMs
from lockkit.outcome import Found
from lockkit.table.ask import TableError, all_of, create, listing, read
from lockkit.table.basefile import Slice
from lockkit.table.covered import pending_commits
from lockkit.table.layout import NO_COMMIT, CommitFiles, FileGroup, in_partition
from lockkit.table.plans import (
    NO_BASE,
    CleanPlan,
    Files,
    format_clean,
    format_clean_plan,
    parse_clean,
    parse_clean_plan,
)
from lockkit.table.rollback import delete
from lockkit.table.snapshot import Snapshot, read_commit, refuse_log_files
from lockkit.table.timeline import Names, Timeline, instant_ms, instant_of, load_timeline
from lockkit.table.transaction import Known, take

Policy = Literal["KEEP_LATEST_COMMITS", "KEEP_LATEST_FILE_VERSIONS"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
POLICY_KEYS = ("hoodie.clean.policy", "hoodie.cleaner.policy")
COMMITS_KEYS = ("hoodie.clean.commits.retained", "hoodie.cleaner.commits.retained")
VERSIONS_KEYS = ("hoodie.clean.fileversions.retained", "hoodie.cleaner.fileversions.retained")
"""Of two names of one setting the newer stands first, and wins."""
RETAINED_MAX = 1_000_000
FIRST = "19700101000000000"
COMMITS_AT_ONCE = 2_000
"""Commits whose garbage one clean looks for; the next one goes on from there."""
EMPTY_AFTER = 100
"""So many commits without garbage are written down as cleaned, lest they be looked at for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanRules:
    """What stays; the defaults are Hudi's."""

    policy: Policy = "KEEP_LATEST_COMMITS"
    commits: int = 10
    """KEEP_LATEST_COMMITS: a reader as of any of the newest so many commits finds its files."""
    versions: int = 3
    """KEEP_LATEST_FILE_VERSIONS: slices of each file group; nothing of a replaced one."""


def clean_rules(options: Mapping[str, Any]) -> CleanRules:
    """From Hudi's option names; `TableError` names one that cannot be."""
    default = CleanRules()
    said = str(_first(options, POLICY_KEYS, default.policy)).upper()
    for policy in POLICIES:
        if said == policy:
            return CleanRules(
                policy=policy,
                commits=_count(options, COMMITS_KEYS, default.commits),
                versions=_count(options, VERSIONS_KEYS, default.versions),
            )
    raise TableError(f"{POLICY_KEYS[0]}={said[:60]!r} is not known here: {' or '.join(POLICIES)}")


def _first(options: Mapping[str, Any], keys: Iterable[str], default: Any) -> Any:
    return next((options[key] for key in keys if key in options), default)


def _count(options: Mapping[str, Any], keys: tuple[str, ...], default: int) -> int:
    said = str(_first(options, keys, default))
    if not said.isascii() or not said.isdecimal() or not 0 < int(said[:9]) <= RETAINED_MAX:
        raise TableError(f"{keys[0]}={said[:40]!r} must be a number from 1 to {RETAINED_MAX}")
    return int(said)


@dataclass(frozen=True, slots=True)
class Cleaned:
    """A clean that is completed: every file of its plan is gone."""

    instant: str
    retain_from: str
    deleted: tuple[str, ...]


# --- what is garbage: pure ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lineage:
    """The slices of one file group that a clean knows of, by instant, oldest first."""

    instants: tuple[str, ...]
    gone: str | None = None
    """The instant that replaced the group."""


def retained_from(now: Timeline, rules: CleanRules) -> str | None:
    """The oldest commit that keeps its files; None: all do; "~": none needs more than the newest.

    Never later than a pending commit, whose writer reads the slices before it.
    """
    commits = sorted(now.commits, key=instant_ms)
    oldest = "~"
    if rules.policy == "KEEP_LATEST_COMMITS":
        if len(commits) <= rules.commits:
            return None
        oldest = commits[-rules.commits]
    if pending := pending_commits(now):
        barrier = min(pending, key=instant_ms)
        if _ms(oldest) > instant_ms(barrier):
            before = [each for each in commits if instant_ms(each) < instant_ms(barrier)]
            if not before:
                return None
            oldest = before[-1]
    if not now.completion or oldest == "~":
        return oldest
    # Readers of increments go by completion times (layout 2), and an older commit may have a later
    # one: what completed when this one did, or after it, is inside the retention too.
    since = min(now.completion[each] for each in commits if _ms(each) >= _ms(oldest))
    return min((each for each in commits if now.completion[each] >= since), key=instant_ms)


def garbage(
    lineage: Lineage, retain_from: str, *, versions: int = 1, saved: Collection[str] = ()
) -> frozenset[str]:
    """The instants of the slices that go; `saved` are commits that keep all that they show."""
    gone = lineage.gone is not None and _ms(lineage.gone) < _ms(retain_from)
    before = [each for each in lineage.instants if _ms(each) < _ms(retain_from)]
    newest = 0 if gone else versions
    doomed = set(before if gone else before[:-1]) & set(
        lineage.instants[: len(lineage.instants) - newest]
    )
    for point in saved:
        if lineage.gone is None or _ms(point) < _ms(lineage.gone):
            doomed -= set([each for each in lineage.instants if _ms(each) <= _ms(point)][-1:])
    return frozenset(doomed)


def _ms(instant: str) -> float:
    return float("inf") if instant == "~" else instant_ms(instant)


# --- the plan -------------------------------------------------------------------------------------


def plan_clean(
    known: Known, rules: CleanRules = CleanRules(), *, base: str = NO_BASE
) -> Procedure[CleanPlan | None]:
    """Write down what will be deleted; None if there is nothing to delete.

    In `hudi` mode under the lock. `base` as for `roll_back`. Cleans that are pending already are
    `resume_clean`'s.
    """
    found = yield from preview_clean(known, rules, base=base)
    if found is None:
        return None
    later = replace(known, newest=max(known.newest, found.last_completed))
    taken = yield from take(later, action="clean", plan=format_clean_plan(found))
    return replace(found, instant=taken.instant)


def preview_clean(
    known: Known, rules: CleanRules = CleanRules(), *, base: str = NO_BASE
) -> Procedure[CleanPlan | None]:
    """What `plan_clean` would write down; reads only."""
    names = known.config.names
    now = yield from load_timeline(names)
    refuse_log_files(now)
    retain_from = retained_from(now, rules)
    if retain_from is None:
        return None
    by_commits = rules.policy == "KEEP_LATEST_COMMITS"
    since = (yield from _cleaned_until(names, now)) if by_commits else ""
    until = retain_from if by_commits else "~"
    wanted = [each for each in now.commits if _ms(since or FIRST) <= _ms(each) < _ms(until)]
    if len(wanted) > COMMITS_AT_ONCE and by_commits:
        retain_from, wanted = wanted[COMMITS_AT_ONCE], wanted[:COMMITS_AT_ONCE]
    commits = yield from all_of(read_commit(names, each, now) for each in wanted)
    work = _Work.of(commits, retain_from, 1 if by_commits else rules.versions, now)
    files = yield from work.files()
    if not files and not (by_commits and len(wanted) > EMPTY_AFTER):
        return None
    return CleanPlan(
        instant="", retain_from=retain_from if by_commits else "",
        last_completed=max(now.commits, default=""), policy=rules.policy, files=files, base=base,
    )  # fmt: skip


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
    """Groups that have slices of which these commits do not tell the path."""

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
        gone = lineage.gone is not None and _ms(lineage.gone) < _ms(self.retain_from)
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
