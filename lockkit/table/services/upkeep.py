"""The upkeep: the table services that one writer runs, before its writes and after its commits.

They run inline (model A) or in their own thread (model B), under the writer's own lock or mutex.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockkit.clock import Clock
from lockkit.runtime import Procedure
from lockkit.sinks import Emit, silent
from lockkit.stores import Store
from lockkit.table.format.properties import GROUP, TableConfig
from lockkit.table.occ.commit import First
from lockkit.table.occ.concurrency import names_lock
from lockkit.table.occ.prepared import Prepared
from lockkit.table.occ.transaction import TableCache
from lockkit.table.services.context import ServiceContext
from lockkit.table.services.rules import COMPACT_KEYS, ServiceRules, service_rules

if TYPE_CHECKING:
    from lockkit.table.occ.contract import ConcurrencyControl
    from lockkit.table.services.old_pending import OldPending
    from lockkit.table.services.service import TableService

IDLE_S = 60.0
"""How often a thread of services checks the table while nothing is committed."""
WHOLE_EVERY_MS = 600_000
"""How often a writer checks the whole timeline for old pending instants. Otherwise it sees those
after its horizon. A request that arrived late, after its writer was gone, may be below the horizon.
That instant can never complete, and would hold new incremental readers back for ever."""


class ServiceFailed(UserWarning):
    """A service failed with `cause` after a commit, which stays valid; the next tries again."""

    cause: Exception


class NoLockTaken(UserWarning):
    """An option or argument describes a lock, and commits of this table take none."""


class Upkeep:
    """The services of one writer, by Hudi's options; `close` waits for what is due."""

    def __init__(
        self, options: Mapping[str, Any], url: str, store: Store,
        concurrency_control: ConcurrencyControl, *, clock: Clock | None = None, emit: Emit = silent,
    ) -> None:  # fmt: skip
        rules = service_rules(options, concurrency_control.mode)
        self.concurrency_control = concurrency_control
        self.clock, self.emit = clock or Clock(), emit
        self.context = ServiceContext(
            url=url, store=store, concurrency_control=concurrency_control, rules=rules,
            clock=self.clock, emit=emit,
        )
        self._service: TableService | None = None
        self._loading = threading.Lock()
        self._old: OldPending | None = None
        self._whole_at_ms = self.clock.boot_ms() + WHOLE_EVERY_MS
        self._options, self._rules, self._appends = options, rules, AppendsDue(0, 0)
        self._serving = threading.Lock()  # several writing threads may share these services
        self.lock = ""  # the argument, or a stream's option, that describes a lock
        self._warned = False
        self._woken, self._due, self._closed = threading.Event(), False, False
        self._thread: threading.Thread | None = None  # started by the first write

    @property
    def service(self) -> TableService:
        """Runs the services; loaded when the first of them is due."""
        with self._loading:
            if self._service is None:
                from lockkit.table.services.service import TableService

                self._service = TableService.at(self.context)
            return self._service

    def before_write(self, known: TableCache) -> None:
        """Raises what a rollback raises: nothing was written yet. Warns once of an unused lock."""
        with self._loading:
            key = self.lock or names_lock(self._options) if known.config.commit == GROUP else ""
            if key and not self._warned:
                self._warned = True
                text = (
                    f"{key} describes a lock, and commits of table {known.config.name!r} take "
                    "none: its writers decide together. Leave it out, or let commits take turns "
                    "under the lock again: `lockkit table mode URL fenced`"
                )
                warnings.warn(NoLockTaken(text), stacklevel=4)
            if self._rules.compact_on and not known.config.merged:  # Hudi ignores these, too
                kept = {k: v for k, v in self._options.items() if k not in COMPACT_KEYS}
                self._rules = service_rules(kept, self.concurrency_control.mode)
                self.context.rules = self._rules
            if self._thread is None and self._rules.any_on and self._rules.beside:
                work = threading.Thread(target=self._work, name="lockkit-services", daemon=True)
                self._thread = work
                work.start()
        if self._rules.failed == "EAGER":
            self.service.before_write(known)

    @property
    def own(self) -> set[str]:
        """This process's pending instants. EAGER spares them; add while `taking_an_instant`."""
        return self.context.own

    def taking_an_instant(self, config: TableConfig) -> AbstractContextManager[None]:
        return self.context.taking_an_instant(config)

    def before_commit(self, prepared: Prepared) -> Procedure[First | None]:
        """The rollback of the dead writers that this commit met, to be done under its lock.

        A rollback that fails is a warning: the commit does not need it.
        """
        if not self._rules.on or self._rules.failed != "LAZY":
            return None
        whole = self.clock.boot_ms() >= self._whole_at_ms
        if whole:
            self._whole_at_ms = self.clock.boot_ms() + WHOLE_EVERY_MS
        elif prepared.transaction.timeline.pending.keys() <= {prepared.instant}:
            return None
        if self._old is None:
            from lockkit.table.services.old_pending import OldPending

            rules, base = self._rules.heartbeat, self.context.base
            self._old = OldPending(rules, self.clock, self.own, base, self._not_rolled_back)
        return (yield from self._old.before_commit(prepared, whole=whole))

    def _not_rolled_back(self, error: Exception) -> None:
        self.emit("note", text=f"a dead writer was not rolled back: {error}")
        _warn("a dead writer was not rolled back; this commit continues", error)

    def after_append(self, others: int) -> None:
        """The same as `after_commit`, after new files: rarely due (`AppendsDue`).

        `others` are the commits of other writers that were seen since the last call.
        """
        if self._appends.next(others, self._rules):
            self.after_commit()

    def opened(self, commits: int) -> None:
        """Note how many commits the writer that calls `after_append` has found."""
        self._appends = AppendsDue(commits, commits)

    def after_commit(self, commits: int | None = None, *, before: int | None = None) -> None:
        """Run what is due, now or in its thread. Warns with `ServiceFailed`; the commit is valid.

        `commits` is the table's number of commits, if known. A writer that stays open says in
        `before` how many there were after its last commit: unless its options name a service, it
        cleans once in as many commits as are retained: a clean takes more requests than a commit.
        """
        if commits is not None and not clean_may_find(commits, self._rules):
            return
        if commits is not None and before is not None and not self._rules.explicit:
            if before // self._rules.clean.commits == commits // self._rules.clean.commits:
                return
        if self._thread is not None:
            self._due = True
            self._woken.set()
        elif self._rules.any_on:
            self._serve()

    def close(self) -> None:
        self._closed = True
        self._woken.set()
        for client in self.context.together:
            client.closing.set()
        for each in filter(None, (self._thread, *(self.context.lingering or ()))):
            each.join()

    def _work(self) -> None:
        while self._due or not self._closed:
            self.clock.wait(self._woken, IDLE_S)
            self._woken.clear()
            if self._due or not self._closed:
                self._due = False
                self._serve()

    def _serve(self) -> None:
        try:
            with self._serving:
                self.service.run()
        except Exception as error:  # noqa: BLE001 - whatever a service raises fails no commit
            self.emit("note", text=f"a table service failed: {error}")
            _warn("what was committed stands, but a table service failed", error)


def _warn(what: str, error: Exception) -> None:
    warning = ServiceFailed(f"{what}: {error}")
    warning.cause = error
    with suppress(Warning):  # `-W error` must not turn a commit into a failure
        warnings.warn(warning, stacklevel=5)


# --- what is due ----------------------------------------------------------------------------------


def clean_may_find(commits: int, rules: ServiceRules) -> bool:
    """Whether a table with this many commits can have files that its retention does not keep."""
    return rules.explicit or (rules.clean_on and commits > rules.clean.commits)


@dataclass(slots=True)
class AppendsDue:
    """When a writer that only adds files looks for old ones, unless its options name a service.

    Hudi plans a clean after every commit, which costs more requests than an append. An append
    makes no file obsolete, so only other writers' commits can have left something to clean: the
    writer looks when the table's commits pass a multiple of the retained ones, until it has looked
    once when all of the others' commits were outside the retention.
    """

    commits: int
    """How many the table has, as far as this writer knows."""
    others: int
    """How many it had when another writer's commit was last seen."""
    looked: int = 0
    """How many it had at the last look."""

    def next(self, others: int, rules: ServiceRules) -> bool:
        """Count one more commit of this writer and `others` of other writers; True: look now."""
        before, retained = self.commits, rules.clean.commits
        self.commits += others + 1
        if others:
            self.others = self.commits
        if rules.explicit:
            return True
        passed = before // retained < self.commits // retained
        if not (self.others and passed and clean_may_find(self.commits, rules)):
            return False
        if self.looked > self.others + retained:
            return False
        self.looked = self.commits
        return True
