"""The clean: deletes the files that no reader inside the retention can see any more.

It writes a durable plan, then deletes the files, then records the result. If a clean was left half
done, any process finishes it by its plan. The fence is not needed, because a plan cannot become
wrong. It lists slices that a newer slice of the same group superseded before the oldest retained
commit, and groups that were replaced before it. In a merge-on-read table a slice is a base file
with the log files behind it, and a compaction makes the next one. A superseded slice stays
superseded: completed commits are never rolled back, an older pending commit holds the retention
back, and no commit can begin there any more (`covered`; in `hudi` mode the plan is made under the
lock, as Hudi's is). No file name is used twice, because it ends with its instant. So a cleaner that
was paused for hours after planning deletes only garbage, and two cleaners with one plan are
harmless.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from lockkit.protocol.outcome import Found
from lockkit.runtime import Note, Procedure, WallMs
from lockkit.runtime.progress import WorkDone
from lockkit.runtime.proven import all_of, create, delete, listing, read
from lockkit.table.errors import TableBlocked
from lockkit.table.format.base_file import Slice
from lockkit.table.format.layout import (
    LOG_FILE,
    NO_BASE,
    NO_COMMIT,
    CommitFiles,
    FileGroup,
    in_partition,
)
from lockkit.table.format.plans import (
    CleanPlan,
    Files,
    format_clean,
    format_clean_plan,
    parse_clean,
    parse_clean_plan,
)
from lockkit.table.format.properties import FENCED, TableConfig
from lockkit.table.format.timeline import (
    Timeline,
    TimelineNames,
    instant_ms,
    instant_of,
    load_timeline,
)
from lockkit.table.occ.covered import pending_commits, read_commit
from lockkit.table.occ.rollback import RolledBack
from lockkit.table.occ.transaction import TableCache, take
from lockkit.table.read.opening import refuse_log_files
from lockkit.table.read.snapshot import Snapshot
from lockkit.table.services.rules import CleanRules

FIRST = "19700101000000000"
COMMITS_AT_ONCE = 2_000
"""Commits whose garbage one clean looks for; the next one continues from there."""
EMPTY_AFTER = 100
"""Commits without garbage after which an empty clean is recorded: they are not read again."""


@dataclass(frozen=True, slots=True)
class Cleaned:
    """A completed clean: every file of its plan is deleted."""

    instant: str
    retain_from: str
    deleted: tuple[str, ...]


# --- the retention: which commits keep their files (pure) -----------------------------------------


@dataclass(frozen=True, slots=True)
class Lineage:
    """The slices of one file group that a clean considers, by instant, oldest first."""

    instants: tuple[str, ...]
    gone: str | None = None
    """The instant that replaced the group."""


def retained_from(now: Timeline, rules: CleanRules, wall_ms: int) -> str | None:
    """The oldest commit that keeps its files; None: all do; "~": only the newest slices stay.

    Never later than a pending commit, whose writer reads the slices before it.
    """
    commits = sorted(now.commits, key=instant_ms)
    oldest = "~"
    if rules.policy == "KEEP_LATEST_COMMITS":
        if len(commits) <= rules.commits:
            return None
        oldest = commits[-rules.commits]
    elif rules.policy == "KEEP_LATEST_BY_HOURS":
        if not commits:
            return None
        since_ms = wall_ms - rules.hours * 3_600_000
        oldest = next((each for each in commits if instant_ms(each) >= since_ms), commits[-1])
    if pending := pending_commits(now):
        barrier = min(pending, key=instant_ms)
        if at_ms(oldest) > instant_ms(barrier):
            before = [each for each in commits if instant_ms(each) < instant_ms(barrier)]
            if not before:
                return None
            oldest = before[-1]
    if not now.completion or oldest == "~":
        return oldest
    # Incremental readers use completion times (layout 2), and an older commit may have a later
    # one. So commits that completed when this one did, or later, are inside the retention too.
    since = min(now.completion[each] for each in commits if at_ms(each) >= at_ms(oldest))
    return min((each for each in commits if now.completion[each] >= since), key=instant_ms)


def garbage(
    lineage: Lineage, retain_from: str, *, versions: int = 1, saved: Collection[str] = ()
) -> frozenset[str]:
    """The instants of the slices to delete; `saved` commits keep everything that they show."""
    gone = lineage.gone is not None and at_ms(lineage.gone) < at_ms(retain_from)
    before = [each for each in lineage.instants if at_ms(each) < at_ms(retain_from)]
    newest = 0 if gone else versions
    doomed = set(before if gone else before[:-1]) & set(
        lineage.instants[: len(lineage.instants) - newest]
    )
    for point in saved:
        if lineage.gone is None or at_ms(point) < at_ms(lineage.gone):
            doomed -= set([each for each in lineage.instants if at_ms(each) <= at_ms(point)][-1:])
    return frozenset(doomed)


def at_ms(instant: str) -> float:
    return float("inf") if instant == "~" else instant_ms(instant)


# --- the plan -------------------------------------------------------------------------------------


def plan_clean(
    known: TableCache, rules: CleanRules = CleanRules(), *, base: str = NO_BASE, since: str = ""
) -> Procedure[CleanPlan]:
    """Write the plan. Its `instant` is "" if there is nothing to delete; then nothing was written.

    In `hudi` mode call it under the lock. `base` as for `roll_back`; `since` is the `retain_from`
    of an earlier plan without result. Pending cleans are `resume_clean`'s task.
    """
    found, commits = yield from _look(known, rules, base, since)
    if not found.files and commits <= EMPTY_AFTER:
        return found
    later = replace(known, newest=max(known.newest, found.last_completed))
    taken = yield from take(later, action="clean", plan=format_clean_plan(found))
    if known.config.mode == FENCED and found.files:  # a savepoint may have come before the plan
        now = yield from load_timeline(known.config.names)
        if not now.savepoints <= found.saved:
            yield from delete(taken.requested, taken.version)
            return replace(found, files=())
    return replace(found, instant=taken.instant)


def preview_clean(known: TableCache, rules: CleanRules = CleanRules()) -> Procedure[CleanPlan]:
    """What `plan_clean` would write; reads only."""
    return (yield from _look(known, rules, NO_BASE, ""))[0]


def _look(
    known: TableCache, rules: CleanRules, base: str, since: str
) -> Procedure[tuple[CleanPlan, int]]:
    """The plan, and how many commits were checked for it since the last clean by commits."""
    names, by_commits = known.config.names, rules.by_commits
    now = yield from load_timeline(names)
    yield from refuse_log_files(now, known.config)
    wall_ms = yield WallMs()
    newest, retain_from = max(now.commits, default=""), retained_from(now, rules, wall_ms)
    if retain_from is None:
        return CleanPlan(instant="", retain_from=since, last_completed=newest,
                         policy=rules.policy, base=base), 0  # fmt: skip
    since = max(since, (yield from cleaned_until(names, now))) if by_commits else ""
    until = retain_from if by_commits else "~"
    wanted = [each for each in now.commits if at_ms(since or FIRST) <= at_ms(each) < at_ms(until)]
    if len(wanted) > COMMITS_AT_ONCE and by_commits:
        retain_from, wanted = wanted[COMMITS_AT_ONCE], wanted[:COMMITS_AT_ONCE]
    commits = yield from all_of(read_commit(names, each, now) for each in wanted)
    versions = 1 if by_commits else rules.versions
    work = _CleanWork.of(commits, retain_from, versions, now, known.config)
    if not by_commits:  # no earlier clean shows which files are gone
        work.older |= work.lineages.keys()
    files = yield from work.files()
    if now.savepoints and files:  # a commit older than a savepoint may complete after it
        from lockkit.table.services.savepoint import saved_files  # few tables have any

        kept = yield from all_of(saved_files(names, each) for each in sorted(now.savepoints))
        spared = frozenset().union(*filter(None, kept))
        files = tuple(each for each in files if each[1] not in spared)
    return CleanPlan(
        instant="", retain_from=retain_from if by_commits else "", last_completed=newest,
        policy=rules.policy, files=files, base=base, saved=now.savepoints,
    ), len(wanted) if by_commits else 0  # fmt: skip


def cleaned_until(names: TimelineNames, now: Timeline) -> Procedure[str]:
    """What the last clean retained from: it has handled everything superseded before.

    Earlier, if it spared the files of a savepoint that is deleted by now.
    """
    cleans = [each for each, action in now.completed.items() if action == "clean"]
    for instant in sorted(cleans, reverse=True):
        key = names.completed(instant, "clean", now.completion.get(instant))
        match (yield from read(key)):
            case Found(body, _) if body:
                done = parse_clean(key, body)
                if done.retain_from:
                    return min({done.retain_from, *(done.saved - now.savepoints)})
            case _:
                continue
    return ""


@dataclass(slots=True)
class _CleanWork:
    """Collects the garbage of some commits as the paths of its files."""

    retain_from: str
    versions: int
    now: Timeline
    merged: bool
    """Whether slices may have log files."""
    sliced: bool
    """Whether these are named after their slice."""
    lineages: dict[FileGroup, Lineage] = field(default_factory=dict)
    paths: dict[tuple[FileGroup, str], str] = field(default_factory=dict)
    older: set[FileGroup] = field(default_factory=set)
    """Groups to look up: these commits do not name the paths of all their slices."""
    begun: set[FileGroup] = field(default_factory=set)
    """Groups whose first base file is of these commits: log files alone may come before it."""

    @classmethod
    def of(
        cls, commits: Iterable[CommitFiles], retain_from: str, versions: int, now: Timeline,
        config: TableConfig,
    ) -> _CleanWork:  # fmt: skip
        work = cls(retain_from, versions, now, config.merged, config.sliced)
        slices: dict[FileGroup, list[str]] = {}
        gone: dict[FileGroup, str] = {}
        for commit in sorted(commits, key=lambda each: instant_ms(each.instant)):
            gone.update(dict.fromkeys(commit.replaced, commit.instant))
            for stat in commit.stats:
                if stat.is_log:
                    continue
                known = slices.setdefault(stat.group, [])
                if stat.previous == NO_COMMIT:
                    work.begun.add(stat.group)
                elif not known:
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
                if (at := _instant_in(each.key)) and at not in self.now.pending:
                    standing.setdefault(at, []).append(each.key)
            if gone:  # older superseded files that still exist are deleted too
                every = tuple(sorted({*lineage.instants, *standing}, key=instant_ms))
                lineage = replace(lineage, instants=every)
                doomed = self._doomed(lineage)
            paths = [path for at in doomed for path in standing.get(at, ())]
        if self.merged and (doomed or gone or group in self.begun):
            paths += yield from self._logs(group, lineage, doomed)
        return [(group[0], path) for path in sorted(paths)]

    def _logs(
        self, group: FileGroup, lineage: Lineage, doomed: frozenset[str]
    ) -> Procedure[list[str]]:
        """The log files of doomed slices: those of the newest base file when they were completed.

        Before the first base file, they are a slice by themselves.
        """
        partition, file_id = group
        whole = group in self.begun or not lineage.instants  # no earlier base file is left out
        listed, found = (yield from listing(in_partition(partition, f".{file_id}_"))), []
        for each in listed:
            name = LOG_FILE.fullmatch(each.key.rpartition("/")[2])
            if name is None or not (at := self._at(name[2])):
                continue
            base = max((base for base in lineage.instants if base < at), default="")
            if self.sliced:  # its name says it; no compaction that is pending has a base file
                base = at if at in lineage.instants else ""
            if base:
                goes = base in doomed
            else:
                alone = replace(lineage, instants=tuple(sorted((at, *lineage.instants))))
                goes = whole and at in self._doomed(alone)
            if goes:
                found.append(each.key)
        return found

    def _at(self, instant: str) -> str | None:
        """When the commit in a log file's name was completed; in version 6 that instant."""
        if not self.sliced:
            return self.now.completion.get(instant)
        return instant if instant not in self.now.pending else None

    def _doomed(self, lineage: Lineage) -> frozenset[str]:
        return garbage(lineage, self.retain_from, versions=self.versions, saved=self.now.savepoints)


def _instant_in(path: str) -> str:
    """The instant that a base file's name ends with; "" where it is none."""
    name = path.removesuffix(".parquet").rpartition("_")[2]
    return name if name.isdecimal() and len(name) in (14, 17) else ""


# --- carrying it out ------------------------------------------------------------------------------


def carry_out(plan: CleanPlan, names: TimelineNames) -> Procedure[Cleaned]:
    """Delete the files that the plan lists; a missing file is not an error. Needs no lock."""
    began_ms = yield WallMs()
    yield from create(names.inflight(plan.instant, "clean"), b"")
    progress = WorkDone("deleted", len(plan.files), "files", plan.instant)
    yield from progress.all_of(delete(path) for _, path in plan.files)
    took_ms = (yield WallMs()) - began_ms
    # Nothing depends on a clean's completion time; all processes that finish it derive the same.
    done = instant_of(instant_ms(plan.instant) + 1) if names.layout == 2 else None
    key = names.completed(plan.instant, "clean", done)
    yield from create(key, format_clean(plan, took_ms=took_ms))
    yield Note("note", {"text": f"cleaned {len(plan.files)} files", "instant": plan.instant})
    return Cleaned(plan.instant, plan.retain_from, tuple(path for _, path in plan.files))


def resume_clean(
    instant: str, names: TimelineNames, snapshot: Snapshot
) -> Procedure[Cleaned | None]:
    """Finish a clean whose process crashed; None if another process has finished it.

    `snapshot` is the current one. Raises `TableError` if the plan names a file of the snapshot: no
    clean plans that.
    """
    key = names.requested(instant, "clean")
    match (yield from read(key)):
        case Found(body, _):
            plan = parse_clean_plan(key, body)
        case _missing:
            return None
    refuse_live(key, plan.files, snapshot.slices)
    return (yield from carry_out(plan, names))


def drop(instant: str, action: str, names: TimelineNames) -> Procedure[RolledBack]:
    """Take away a clean or rollback whose plan cannot be read; the next one plans what is left."""
    yield from delete(names.inflight(instant, action))
    yield from delete(names.requested(instant, action))
    return RolledBack("", instant, ())


def refuse_live(key: str, files: Files, slices: Sequence[Slice]) -> None:
    """Raise if the plan at `key` would delete files that readers see now."""
    shown = {path for each in slices for path in (each.path, *getattr(each, "logs", ()))}
    live = {path for _, path in files} & shown
    if live:
        raise TableBlocked(
            key,
            f"plans to delete {min(live)[:120]}, which the table's latest snapshot shows; nothing "
            "was deleted", "find out which program wrote it, then delete that plan",
        )  # fmt: skip
