"""The table services: roll back failed writes, clean old files, cluster small ones, compact logs.

Hudi runs them in three ways. A: inline, after a writer's commit. B: in a thread beside the writer
(both: `upkeep`); they share the writer's concurrency control, so they need a lock only if it does.
C: in another process, under the table's lock like any writer. Readers are not affected, because no
file inside the retention is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TypeVar

from lockkit.clock import Clock
from lockkit.errors import LockBusy, LockLost, StoreError, TableError
from lockkit.runtime import Procedure
from lockkit.runtime.proven import all_of, listing
from lockkit.sinks import Emit, silent
from lockkit.stores import Store
from lockkit.table.errors import CommitConflict, CommitUnknown, NotWritable, TableChanged
from lockkit.table.format.compaction_plan import CompactionPlan
from lockkit.table.format.plans import CleanPlan, ReplacePlan
from lockkit.table.format.properties import FENCED, load_config
from lockkit.table.format.savepoint_files import RestorePlan
from lockkit.table.format.timeline import Timeline, TimelineNames, load_timeline, parse_timeline
from lockkit.table.occ.commit import StateChange
from lockkit.table.occ.condition import unfinished
from lockkit.table.occ.contract import ConcurrencyControl
from lockkit.table.occ.covered import CheckedHorizon, load_rollback_plan, read_commit
from lockkit.table.occ.failed import failed_writes, half_done, leftovers
from lockkit.table.occ.heartbeat_rules import Policy
from lockkit.table.occ.liveness import end, forget
from lockkit.table.occ.markers import unmark
from lockkit.table.occ.rollback import RollbackRefused, RolledBack
from lockkit.table.occ.transaction import TableCache
from lockkit.table.read.checkpoint_writing import write_checkpoint
from lockkit.table.read.snapshot import Snapshot
from lockkit.table.services.archive import Archived, ArchivePlan, archive, plan_archive
from lockkit.table.services.archive_rules import ArchiveRules
from lockkit.table.services.clean import (
    Cleaned,
    carry_out,
    drop,
    plan_clean,
    preview_clean,
    resume_clean,
)
from lockkit.table.services.cluster import Clustered, cluster, plan_for
from lockkit.table.services.compact import Compacted, compact_due
from lockkit.table.services.compact import plan_for as plan_compact
from lockkit.table.services.context import ServiceContext
from lockkit.table.services.restore import Restored, open_fence, plan_restore, restore
from lockkit.table.services.rules import ServiceRules
from lockkit.table.services.savepoint import Savepoint, delete_savepoint, save
from lockkit.table.services.scheduled import (
    BOTH,
    EXECUTE,
    SCHEDULE,
    execute,
    past_void_plans,
    refuse_mode,
    schedule,
    to_execute,
)
from lockkit.table.services.scheduled import (
    compacted as compacted_by,
)
from lockkit.table.services.view import TableView, look_at
from lockkit.table.write.attempt import retried

T = TypeVar("T")
FAILURES = (TableError, StoreError, LockBusy, LockLost, CommitUnknown)
"""The errors of a run."""


@dataclass(frozen=True, slots=True)
class ServiceRun:
    """What one run of the services did."""

    taken_back: tuple[RolledBack | RollbackRefused, ...] = ()
    cleaned: tuple[Cleaned, ...] = ()
    clustered: Clustered | None = None
    compacted: Compacted | None = None
    archived: Archived | None = None
    yielded: str = ""
    """Why a compaction or a clustering yielded to another commit; the next run tries again."""


class TableService:
    """The services of one table, for one thread at a time; `before_write` may come from another.

    They use the writer's concurrency control (models A and B), or their own (C). Raise
    `TableError`, `StoreError`, `LockBusy`. The next run, of any process, finishes what was begun.
    """

    def __init__(
        self, url: str, store: Store, concurrency_control: ConcurrencyControl, *,
        rules: ServiceRules = ServiceRules(),
        clock: Clock | None = None, emit: Emit = silent,
    ) -> None:  # fmt: skip
        self.context = ServiceContext(
            url=url, store=store, concurrency_control=concurrency_control, rules=rules,
            clock=clock or Clock(), emit=emit,
        )  # fmt: skip
        self._snapshot: Snapshot | None = None
        self._saved = 0
        """Number of commits in the table's checkpoint, as far as known here."""
        self._looked_at, self._since = "", ""
        """The newest commit whose check found no garbage, and its retention limit."""

    @classmethod
    def at(cls, context: ServiceContext) -> TableService:
        """With the existing context of a writer."""
        made = cls(context.url, context.store, context.concurrency_control, clock=context.clock)
        made.context = context
        return made

    def run(self) -> ServiceRun:
        """Run what is due. A clustering that yields to a writer is not an error."""
        view, compacted, clustered, yielded = self.inspect(), None, None, ""
        taken_back = self._take_back_failed(view)
        cleaned = self._resume_cleans(view)
        if clean_due(view.now, self.context.rules, self._looked_at):
            cleaned += self._clean(view.known)
        due = self.context.run(cluster_due(view.config.names, view.now, self.context.rules))
        try:
            if view.config.merged and compact_due(view.now, self.context.rules):
                compacted = compacted_by(self.context, view)
            clustered = cluster(self._apart, view) if due else None
        except CommitConflict as conflict:
            yielded = str(conflict)
        rules = self.context.rules.archive
        due = rules is not None and len(view.now.commits) > rules.keep_max
        archived = self.archive(rules) if rules is not None and due else None
        return ServiceRun(taken_back, cleaned, clustered, compacted, archived, yielded)

    @property
    def _apart(self) -> ServiceContext:
        """With a client of its own: the writer's, in another thread, may be deciding just now."""
        return replace(self.context, together=[])

    def inspect(self) -> TableView:
        """The table as it is now; what was read before is not read again."""
        view, saved = self.context.run(look_at(self._snapshot, self._saved))
        self._snapshot, self._saved = view.snapshot, saved
        return view

    # --- failed writes ---------------------------------------------------------------------------

    def before_write(self, known: TableCache) -> None:
        """EAGER: before a write, roll back every pending instant of other processes."""
        if self.context.rules.failed == "EAGER":
            with self.context.concurrency_control.hold():  # so that all of ours are noted
                after = CheckedHorizon(known.horizon).listed_after
                now = self.context.run(load_timeline(known.config.names, after=after))
                own = frozenset(self.context.own)
            self._take_back(known, now, "EAGER", own)

    def take_back(
        self, *, only: Collection[str] | None = None, stopped: bool = False
    ) -> tuple[RolledBack | RollbackRefused, ...]:
        """Finish rollbacks that are half done; roll dead writers back, if LAZY.

        What is in `only` is also rolled back if it is a plan that nobody carries out, or cannot be
        read; with `stopped`, even if a process without a heartbeat has begun it.
        """
        view, way, rules = self.inspect(), self.context.run, self.context.rules.heartbeat
        names, wanted = view.config.names, set(only or ()) & view.now.pending.keys()
        done: tuple[RolledBack | RollbackRefused, ...] = ()
        if not any(view.now.pending[each] in ("clean", "rollback") for each in wanted):
            done = self._take_back_failed(view, only)
        for instant in wanted - {each.target for each in done}:
            wall_ms = self.context.clock.wall_ms()
            found = way(unfinished(names, way(load_timeline(names)), instant, wall_ms, rules))
            gone = not found.lives and bool(found.damaged)
            if not (gone or found.given_up or (stopped and found.silent)):
                continue
            if found.action in ("clean", "rollback"):
                with self.context.concurrency_control.hold():
                    done += (way(drop(instant, found.action, names)),)
            elif way(end(found.heartbeat)):
                done += (self.context.roll_back(view.known, instant),)
        return done

    def _take_back_failed(
        self, view: TableView, only: Collection[str] | None = None
    ) -> tuple[RolledBack | RollbackRefused, ...]:
        done = self._resume_rollbacks(view, only)
        policy: Policy = "LAZY" if self.context.rules.failed == "LAZY" else "NEVER"
        now = self.context.run(load_timeline(view.config.names)) if done else view.now
        own = frozenset(self.context.own)
        done += self._take_back(view.known, now, policy, own, only)
        if view.config.mode == FENCED:  # Hudi cleans up its own
            self._tidy(view)
        return done

    def _tidy(self, view: TableView) -> None:
        """Delete heartbeats and markers of writers that crashed after their commit or gave up."""
        for instant in self.context.run(leftovers(view.config.names, self.context.rules.heartbeat)):
            self.context.run(unmark(instant))
            self.context.run(forget(instant))

    def _take_back(
        self, known: TableCache, now: Timeline, policy: Policy, own: frozenset[str],
        only: Collection[str] | None = None,
    ) -> tuple[RolledBack | RollbackRefused, ...]:  # fmt: skip
        dead = failed_writes(known.config.names, now, policy, self.context.rules.heartbeat, own=own)
        return tuple(
            self.context.roll_back(known, heartbeat.instant) for heartbeat in self.context.run(dead)
            if (only is None or heartbeat.instant in only) and self.context.run(end(heartbeat))
        )  # fmt: skip

    def _resume_rollbacks(
        self, view: TableView, only: Collection[str] | None
    ) -> tuple[RolledBack | RollbackRefused, ...]:
        names, done = view.config.names, []
        for instant in self.context.run(
            half_done(view.config, view.now, "rollback", self.context.rules.heartbeat)
        ):
            with self.context.concurrency_control.hold():
                now = parse_timeline(self.context.run(listing(names.folder + instant)), names)
                plan = self.context.run(load_rollback_plan(names, instant))
            wanted = plan is not None and (only is None or plan.target in only)
            if plan is not None and wanted and instant in now.pending:
                done.append(self.context.roll_back(view.known, plan.target, resume=instant))
        return tuple(done)

    # --- clean -----------------------------------------------------------------------------------

    def clean(self) -> tuple[Cleaned, ...]:
        """Finish cleans that are half done, then make one, due or not."""
        view = self.inspect()
        return self._resume_cleans(view) + self._clean(view.known)

    def preview_clean(self) -> CleanPlan:
        """What a clean would delete."""
        return self.context.run(preview_clean(self.inspect().known, self.context.rules.clean))

    def _resume_cleans(self, view: TableView) -> tuple[Cleaned, ...]:
        found = half_done(view.config, view.now, "clean", self.context.rules.heartbeat)
        names, snapshot = view.config.names, view.snapshot
        ways = [resume_clean(each, names, snapshot) for each in self.context.run(found)]
        return tuple(done for way in ways if (done := self.context.run(way)) is not None)

    def _clean(self, known: TableCache) -> tuple[Cleaned, ...]:
        with self.context.taking_an_instant(known.config):
            plan = self.context.run(plan_clean(
                known, self.context.rules.clean, base=self.context.base(known.config),
                since=self._since,
            ))  # fmt: skip
        if not plan.instant:
            self._looked_at = plan.last_completed
            self._since = "" if plan.saved else plan.retain_from  # a savepoint may be deleted
            return ()
        self.context.report(f"deleting {len(plan.files)} files", plan.instant)
        return (self.context.run(carry_out(plan, known.config.names)),)

    # --- savepoints ------------------------------------------------------------------------------

    def save(self, instant: str, *, user: str, comment: str) -> Savepoint:
        """Keep the files of a commit; "": of the newest one."""
        return self._under_lock(lambda known, held: save(
            known, held, instant, user=user, comment=comment
        ))  # fmt: skip

    def delete_savepoint(self, instant: str) -> bool:
        """False if there was no such savepoint."""
        return self._under_lock(lambda known, held: delete_savepoint(known, held, instant))

    def restore(self, savepoint: str) -> Restored:
        """Take back every commit after the savepoint, once dead writers are rolled back."""
        config, _ = self.context.run(load_config())
        self._release_reserved()
        now = self.context.run(load_timeline(config.names))
        if "restore" not in now.pending.values():  # else nobody may look at the table
            self._under_lock(lambda known, held: open_fence(known.config, held))
            self._resume_cleans(self._without_dead())
        done = self._under_lock(lambda known, held: restore(known, held, savepoint))
        self._snapshot, self._looked_at, self._since = None, "", ""
        return done

    def _release_reserved(self) -> None:
        """With group commit: this writer's own next instant is no commit that is under way."""
        for client in self.context.together:
            from lockkit.table.occ.group.ahead import release

            for mine in list(client.ahead):
                self.context.run(release(client, mine))

    def preview_restore(self, savepoint: str) -> RestorePlan:
        """What a restore would take back."""
        config, _ = self.context.run(load_config())
        return self.context.run(plan_restore(config, savepoint))

    def _under_lock(self, way: Callable[[TableCache, StateChange], Procedure[T]]) -> T:
        with self.context.concurrency_control.hold() as held:
            known = TableCache(*self.context.run(load_config()))
            return self.context.run(way(known, held))

    # --- archiving -------------------------------------------------------------------------------

    def archive(self, rules: ArchiveRules) -> Archived | None:
        """Move the oldest instants to the archive; None if there are not enough."""
        known, rules = self._to_archive(rules)
        if known.config.mode == FENCED and self._snapshot:
            # So that opening the table does not read the archive.
            self.context.run(write_checkpoint(self._snapshot, every=1))
        with self.context.concurrency_control.hold() as held:
            return self.context.run(archive(known, rules, held))

    def preview_archive(self, rules: ArchiveRules) -> ArchivePlan:
        """What would be archived."""
        return self.context.run(plan_archive(*self._to_archive(rules)))

    def _to_archive(self, rules: ArchiveRules) -> tuple[TableCache, ArchiveRules]:
        """Also of a table that cannot be written until it is archived on."""
        try:
            return self.inspect().known, rules
        except NotWritable as refused:
            from lockkit.table.read.table_files import HiddenCommits

            if not isinstance(refused, HiddenCommits):
                raise
            known = TableCache(*self.context.run(load_config()))
            return known, replace(rules, until=refused.until)

    # --- clustering ------------------------------------------------------------------------------

    def cluster(self) -> Clustered | None:
        """Rewrite small files, due or not; None if there is nothing to gain.

        Raises `CommitConflict` if a writer was faster: nothing changed.
        """
        return cluster(self._apart, self._without_dead())

    def compact(self, mode: str = BOTH, instant: str = "", *, retries: int = 0) -> Compacted | None:
        """Merge the log files into base files, due or not.

        None if there are none, or if a pending writer keeps each file group that has some. Raises
        `CommitConflict` if another commit was faster, also in each of `retries` further attempts.

        :param mode: `schedule` only plans; `execute` carries out a plan: `instant`, or the oldest.
        """
        refuse_mode(mode, instant)
        context = self.context

        def once() -> Compacted | None:
            if mode == EXECUTE:
                return self._execute(instant)
            way = schedule if mode == SCHEDULE else compacted_by
            return way(context, self._without_dead())

        way = once if instant else lambda: past_void_plans(once, self.take_back)
        return retried(way, 0 if mode == SCHEDULE else retries, context.clock, context.emit)

    def _execute(self, instant: str) -> Compacted | None:
        view = self.inspect()
        dead = [each.target for each in self._take_back_failed(view)]
        if instant in dead and not view.config.sliced:  # else it was put back
            why = "was carried out by a process that died; its plan and files are rolled back"
            raise TableChanged(instant, why, "schedule another compaction")
        return execute(self.context, self.inspect() if dead else view, instant)

    def _without_dead(self) -> TableView:
        """The table once dead writers are rolled back: their instants keep file groups as is."""
        view = self.inspect()
        return self.inspect() if self._take_back_failed(view) else view

    def preview_compact(self, mode: str = BOTH, instant: str = "") -> CompactionPlan | None:
        """What a compaction would merge."""
        view = self.inspect()
        if mode == EXECUTE:
            found = self.context.run(to_execute(view, instant))
            return None if found is None else found[1]
        return plan_compact(self.context, view, preview=True)

    def preview_cluster(self) -> ReplacePlan | None:
        """What a clustering would rewrite."""
        return plan_for(self.context, self.inspect())


# --- what is due ----------------------------------------------------------------------------------


def clean_due(now: Timeline, rules: ServiceRules, looked_at: str) -> bool:
    """`looked_at` is the newest commit of an earlier check that found nothing."""
    cleans = (each for each, action in now.completed.items() if action == "clean")
    last = max(looked_at, *cleans, "")
    return rules.clean_on and sum(each > last for each in now.commits) >= rules.clean_every


def cluster_due(names: TimelineNames, now: Timeline, rules: ServiceRules) -> Procedure[bool]:
    """Whether there are enough commits since the last clustering."""
    latest = now.commits[-rules.cluster_every :]
    if not rules.cluster_on or len(latest) < rules.cluster_every:
        return False
    replacing = [each for each in latest if now.completed[each] == "replacecommit"]
    commits = yield from all_of(read_commit(names, each, now) for each in replacing)
    return not any(each.operation == "CLUSTER" for each in commits)
