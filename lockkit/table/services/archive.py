"""Archiving: the oldest completed instants leave the timeline for the archive, as Hudi moves them.

In this order, each step proven before the next: the instants' content is written to the archive
(version 8 and later: a file, then a manifest that names it, then the manifest's number), then their
files leave the timeline. A crash in between leaves instants in both places. Readers show each once,
and the next archiver finishes it.

The lock keeps two archivers apart. One that sleeps longer than its lease needs no fence: the
archive's next manifest (version 6: its next log) is created only if it does not exist. So of two
archivers one writes it, and the other deletes nothing. What a manifest names is archived for good,
so a late delete removes nothing that is needed.

`chosen` says what stays: more than Hudi keeps, because in mode `fenced` a file counts only if a
commit names it, and because lockkit's clean finds old files through commits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lockkit.protocol.outcome import Found
from lockkit.runtime import Note, Procedure, WallMs
from lockkit.runtime.proven import all_of, delete, listing, read
from lockkit.table.errors import TableChanged, UnsupportedTable
from lockkit.table.format.archived import Leaving
from lockkit.table.format.compaction_plan import CompactionPlan
from lockkit.table.format.layout import CommitFiles, FileGroup, parse_commit
from lockkit.table.format.properties import FENCED, GROUP, TableConfig, recheck_config
from lockkit.table.format.timeline import Timeline, TimelineNames, load_timeline
from lockkit.table.occ.commit import StateChange
from lockkit.table.occ.failed import service_plans
from lockkit.table.occ.fence import COMMIT, read_fence
from lockkit.table.occ.late import Leavers, completed_file, is_settled, leave, load_leavers
from lockkit.table.occ.transaction import TableCache
from lockkit.table.read.log_slice import instant_of
from lockkit.table.services.archive_history import add_history, say_version
from lockkit.table.services.archive_rules import ArchiveRules
from lockkit.table.services.clean import cleaned_until

if TYPE_CHECKING:
    from lockkit.table.occ.group.client import GroupClient

AT_ONCE = 500
"""Commits that one run moves. Their completed files are deleted one by one, oldest first: a hole in
the timeline would hide files from Hudi's readers."""
PLANS = ("clean", "compaction", "replacecommit", "clustering")


@dataclass(frozen=True, slots=True)
class ArchivePlan:
    """The completed instants that leave, oldest first, by action."""

    instants: Mapping[str, str] = field(default_factory=dict)
    kept_for: str = ""
    """Why fewer leave than the rules say; "" if as many do."""


@dataclass(frozen=True, slots=True)
class Archived:
    """What one run moved to the archive."""

    instants: tuple[str, ...]
    kept_for: str = ""
    finished: int = 0
    """Instants that an earlier run had archived, and that left the timeline now."""


# --- what leaves (pure) ---------------------------------------------------------------------------


def barriers(now: Timeline, decided: str = "") -> list[tuple[str, str]]:
    """Instants from which on everything stays, and why. `decided` is the fence's last commit."""
    found = []
    if now.pending:
        first, action = next(iter(now.pending.items()))
        # Its writer's conflict check needs the commit that it began with.
        before = max((each for each in now.commits if each < first), default=first)
        found.append((before, f"{first} ({action}) is pending"))
    if now.savepoints:
        saved = min(now.savepoints)
        found.append((saved, f"{saved} is a savepoint"))
    if decided:
        # The next decision looks for its completed file, and would create it again.
        found.append((decided, f"{decided} is the fence's last decision"))
    return found


def leaves_old_files(commit: CommitFiles, merged: bool) -> bool:
    """Whether a clean finds old files through this commit."""
    return bool(commit.replaced) or any(
        stat.previous != "null" or (merged and stat.is_log) for stat in commit.stats
    )


def candidates(now: Timeline, rules: ArchiveRules, barrier: str) -> list[str]:
    """The commits that may leave."""
    commits = now.commits
    count = len(commits) - rules.keep_min if len(commits) > rules.keep_max else 0
    count = max(count, sum(each < rules.until for each in commits))
    return [each for each in commits[:count][:AT_ONCE] if each < barrier]


def with_services(now: Timeline, commits: list[str]) -> dict[str, str]:
    """With the cleans and rollbacks between them; the newest clean says where the next begins."""
    last = max(commits, default="")
    newest = max((each for each, action in now.completed.items() if action == "clean"), default="")
    return {
        each: action for each, action in now.completed.items()
        if each in commits or (action in ("clean", "rollback") and each < last and each != newest)
    }  # fmt: skip


# --- the plan -------------------------------------------------------------------------------------


def plan_archive(known: TableCache, rules: ArchiveRules) -> Procedure[ArchivePlan]:
    """What leaves now; reads only."""
    config = known.config
    refuse_unfit(config)
    now = yield from load_timeline(config.names)
    leavers = yield from load_leavers(config, now)
    return (yield from _plan(config, now, leavers, rules, _new_client(config)))


def refuse_unfit(config: TableConfig) -> None:
    if config.metadata:
        raise UnsupportedTable(
            config.name, "has Hudi's metadata table, which needs the instants since its last "
            "compaction; nothing was archived",
            "let Hudi archive, or switch the metadata table off: lockkit table adopt URL",
        )  # fmt: skip


def _new_client(config: TableConfig) -> GroupClient | None:
    if config.commit != GROUP:
        return None
    from lockkit.table.occ.group.client import GroupClient

    return GroupClient(names=config.names)


def _plan(
    config: TableConfig, now: Timeline, leavers: Leavers, rules: ArchiveRules,
    client: GroupClient | None,
) -> Procedure[ArchivePlan]:  # fmt: skip
    decided, left = "", candidates(now, rules, "~")
    if client is None and config.mode == FENCED:
        seen = yield from read_fence()
        if seen.fence is not None:
            decided = seen.fence.head.instant if seen.fence.head.kind == COMMIT else ""
    found = barriers(now, decided)
    if client is not None:
        from lockkit.table.services.archive_group import group_barriers

        found += yield from group_barriers(client, max(left, default=""), rules.young_ms)
    elif left and config.switches:
        from lockkit.table.services.archive_group import had_group_commit, young

        found += [(yield from young(rules.young_ms))] if (yield from had_group_commit()) else []
    if config.sliced:
        found += yield from _planned_slices(config.names, now)
    stop, why = min(found, default=("~", ""))
    commits = candidates(now, rules, stop)
    since = yield from cleaned_until(config.names, now)
    going = [*commits, *(each for each in leavers.kept if each < max(commits, default=""))]
    keys = {each: completed_file(config.names, leavers.every, each) for each in going}
    files = dict(zip(going, (yield from all_of(map(_content, keys.values()))), strict=True))
    wall_ms = yield WallMs()
    by_fence = config.mode == FENCED and client is None  # else the lock, or `group_barriers`
    for instant in sorted(going) if by_fence else ():
        if not is_settled(files[instant], leavers.every.completion.get(instant, instant), wall_ms):
            why = f"{instant} was completed a moment ago, and its writer may be about to publish it"
            commits = [each for each in commits if each < instant]
            break
    for instant in commits:
        commit = parse_commit(instant, keys[instant], files[instant].body)
        if leaves_old_files(commit, config.merged) and (
            instant >= since or (yield from _still_there(commit.replaced))
        ):
            why = f"{instant} made files obsolete that no clean has deleted yet"
            commits = [each for each in commits if each < instant]
            break
    return ArchivePlan(with_services(now, commits), why if len(commits) < len(left) else "")


def _planned_slices(names: TimelineNames, now: Timeline) -> Procedure[list[tuple[str, str]]]:
    """Version 6: a plan may have a log file of a writer that was pending and was rolled back since.

    The command behind that file is not in the plan. So until the plan is carried out, the timeline
    begins before all writers of its log files.
    """
    damaged = dict[str, str]()
    plans = yield from service_plans(names, now, damaged)
    found = [("", f"the plan of {each} cannot be read") for each in damaged]
    for instant, plan in plans.items():
        if isinstance(plan, CompactionPlan):
            oldest = min((instant_of(log) for of in plan.slices for log in of.logs), default="")
            found.append((oldest, f"{instant} is a compaction that is not carried out"))
    return found


def _still_there(replaced: Collection[FileGroup]) -> Procedure[bool]:
    """Whether a file of a replaced group exists: a savepoint kept it from the clean.

    Hudi's readers take such a file for current once nothing in the timeline replaces its group.
    """
    folders = sorted({partition for partition, _ in replaced})
    listed = yield from all_of(listing(f"{each}/" if each else "") for each in folders)
    here = {
        (folder, name.removeprefix(".").partition("_")[0])
        for entries in listed
        for folder, _, name in (each.key.rpartition("/") for each in entries)
    }
    return bool(here & set(replaced))


def _content(key: str) -> Procedure[Found]:
    match (yield from read(key, limit=None)):
        case Found() as found:
            return found
        case _missing:
            raise TableChanged(key, "was listed and is gone: another process archived or restored",
                               "run it again")  # fmt: skip


# --- carrying it out ------------------------------------------------------------------------------


def archive(
    known: TableCache, rules: ArchiveRules, held: StateChange
) -> Procedure[Archived | None]:
    """Under the table's lock: move what is due; None if nothing is.

    Raises `TableChanged` if another archiver was faster: then nothing was deleted.
    """
    config = yield from recheck_config(known.config, known.config_version)
    refuse_unfit(config)
    names, client = config.names, _new_client(config)
    if client is not None:
        from lockkit.table.occ.group.outcomes import publish
        from lockkit.table.services.archive_group import decide_nothing_until

        yield from publish(client)
    now = yield from load_timeline(names)
    leavers = yield from load_leavers(config, now)
    plan = yield from _plan(config, now, leavers, rules, client)
    if client is not None and plan.instants:
        held.believe()
        yield from decide_nothing_until(client, max(plan.instants))
    new = {each: action for each, action in plan.instants.items() if each not in leavers.archived}
    # A savepoint's commit stays, and hudi-rs would miss what left behind it.
    saved = min(now.savepoints, default="~")
    finished = [each for each in leavers.leaving() if each < saved]
    yield from all_of(delete(key) for key in leavers.late)
    if not new and not finished:
        return None
    if config.sliced:
        from lockkit.table.services.strays import take_strays_back  # few tables are of version 6

        held.believe()
        yield from take_strays_back(config)
    if new:
        leaving = yield from all_of(_leaving(names, now, each, leavers.keys[each]) for each in new)
        new = {each: new[each] for each in (yield from add_history(config, leaving, held.believe))}
    elif names.layout == 2:
        yield from say_version(config)
    held.believe()
    yield from leave(names, leavers, [each for each in leavers.leaving(new) if each < saved])
    if client is not None and client.known is not None:
        from lockkit.table.services.archive_group import strays

        # What was refused, and offers that arrived late: nobody asks for them any more.
        over = {*leavers.every.completed, *now.pending}
        late = strays((yield from listing(names.prefix)), over, client.known.archived)
        yield from all_of(delete(key) for key in late)
    text = f"archived {len(new)} instants"
    yield Note("note", {"text": text, "instant": max(new, default="")})
    return Archived(tuple(new), plan.kept_for, len(finished))


def _leaving(
    names: TimelineNames, now: Timeline, instant: str, keys: Iterable[str]
) -> Procedure[Leaving]:
    found, plan = (yield from _content(completed_file(names, now, instant))), None
    for action in PLANS:
        if names.requested(instant, action) in keys:
            match (yield from read(names.requested(instant, action), limit=None)):
                case Found(body, _) if body:
                    plan = body
                case _:
                    pass
    completed = now.completion.get(instant)
    return Leaving(instant, now.completed[instant], completed, found.body, plan)
