"""The upkeep: the services that one writer brings along, before its writes and after its commits.

Inline (model A), or in a thread of their own (model B); either way nobody else's turn is needed.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from typing import Any

from lockkit.clock import Clock
from lockkit.errors import CommitUnknown, LockBusy, LockLost, StoreError, TableError
from lockkit.sinks import Emit, silent
from lockkit.stores import Store, check_keywords, open_store
from lockkit.table.format.gate import check_options
from lockkit.table.format.properties import TableConfig
from lockkit.table.occ.concurrency import Turns, turns_of
from lockkit.table.occ.locks import AnyLock, open_table_lock
from lockkit.table.occ.transaction import Known, Prepared
from lockkit.table.services.schedule import AppendsDue, clean_may_find, service_rules
from lockkit.table.services.service import Service

IDLE_S = 60.0
"""How often a thread of services looks at the table while nothing is committed."""
TROUBLE = (TableError, StoreError, LockBusy, LockLost, CommitUnknown)


class ServiceFailed(UserWarning):
    """A table service failed after a commit that stands; the next one tries again."""


class Upkeep:
    """The services of one writer, by Hudi's options; `close` waits for what is due."""

    def __init__(
        self, options: Mapping[str, Any], url: str, store: Store, turns: Turns, *,
        clock: Clock | None = None, emit: Emit = silent,
    ) -> None:  # fmt: skip
        rules = service_rules(options, turns.mode)
        self.turns, self.clock, self.emit = turns, clock or Clock(), emit
        self.service = Service(url, store, turns, rules=rules, clock=self.clock, emit=emit)
        self._rules, self._appends = rules, AppendsDue(0, 0)
        self._on = rules.clean_on or rules.cluster_on
        self._serving = threading.Lock()  # writes of several threads may share these services
        self._woken, self._due, self._closed = threading.Event(), False, False
        self._thread: threading.Thread | None = None
        if self._on and rules.beside:
            self._thread = threading.Thread(target=self._work, name="lockkit-services", daemon=True)
            self._thread.start()

    def before_write(self, known: Known) -> None:
        """Raises what a rollback raises: nothing was written yet."""
        self.service.before_write(known)

    @property
    def own(self) -> set[str]:
        """Instants that writes of this process are at, and EAGER spares. To be added while
        `taking_an_instant`.
        """
        return self.service.desk.own

    def taking_an_instant(self, config: TableConfig) -> AbstractContextManager[None]:
        return self.service.desk.taking_an_instant(config)

    def before_commit(self, prepared: Prepared) -> None:
        """Roll back the dead writers whose instants this commit met, under the table's lock.

        A rollback that fails is a warning: the commit does not need it.
        """
        if not self._rules.on:
            return
        try:
            with self._serving:
                self.service.take_back_overdue(prepared)
        except Exception as error:  # noqa: BLE001 - whatever a service raises fails no commit
            self.emit("note", text=f"a dead writer was not rolled back: {error}")
            _warn(f"this commit goes on; a dead writer was not rolled back: {error}")

    def after_append(self, others: int) -> None:
        """The same as `after_commit`, after new files: rarely due (`AppendsDue`).

        `others` are commits of other writers that were seen since the last call.
        """
        if self._appends.next(others, self._rules):
            self.after_commit()

    def opened(self, commits: int) -> None:
        """The writer that calls `after_append` has found so many commits."""
        self._appends = AppendsDue(commits, commits)

    def after_commit(self, commits: int | None = None) -> None:
        """What is due, now or in its thread; warns with `ServiceFailed`, for the commit stands.

        `commits` is how many the table has, where that is known.
        """
        if commits is not None and not clean_may_find(commits, self._rules):
            return
        if self._thread is not None:
            self._due = True
            self._woken.set()
        elif self._on:
            self._serve()

    def close(self) -> None:
        self._closed = True
        self._woken.set()
        if self._thread is not None:
            self._thread.join()

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
            _warn(f"what was committed stands, but a table service failed: {error}")


def _warn(text: str) -> None:
    with suppress(Warning):  # `-W error` must not turn a commit into a failure
        warnings.warn(ServiceFailed(text), stacklevel=5)


@contextmanager
def keep(
    url: str, options: Mapping[str, Any], *, clock: Clock | None = None, emit: Emit = silent,
    client: str = "", **store_options: Any,
) -> Iterator[Upkeep]:  # fmt: skip
    """The services of all writes of this process that are given it, over many commits.

        with keep("s3://lake/orders", {"hoodie.clean.async.enabled": "true", ...}) as upkeep:
            write(df, "s3://lake/orders", upkeep=upkeep)
    """
    check_keywords(keep, url, store_options)
    clock, url, options = clock or Clock(), url.rstrip("/"), check_options(options, stacklevel=5)
    store = open_store(url, client=client, **store_options)

    def lock() -> AnyLock:
        return open_table_lock(
            url, options, clock=clock, emit=emit, client=client, **store_options
        )

    turns = turns_of(options, lock)
    with closing(store), closing(turns):
        upkeep = Upkeep(options, url, store, turns, clock=clock, emit=emit)
        with closing(upkeep):
            yield upkeep
