"""Inspects a table with a problem and diagnoses the findings. Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lockkit.clock import Clock
from lockkit.errors import StoreError
from lockkit.events import Event, plain
from lockkit.lab.incident.audit import Audit, Validation, load_audits, validate
from lockkit.lab.incident.calls import seen
from lockkit.lab.incident.diagnosis import Diagnosis, diagnose
from lockkit.lab.incident.dropped import Evidence, one_truth, take_in
from lockkit.lab.incident.patterns import UNJUDGED, Pattern
from lockkit.lab.incident.present import is_something_left, with_present
from lockkit.lock.handle import LOCK_KEY
from lockkit.runtime import run
from lockkit.sinks import Emit, silent
from lockkit.stores import Store
from lockkit.table.inspect.standing import WATCH_S, LockInspection, stand
from lockkit.table.inspect.versions import (
    Generation,
    as_events,
    generations,
    granted_ms,
    granted_words,
    names,
)

NEWEST = 200
"""Generations that are read, each by a request of its own."""


@dataclass(frozen=True, slots=True)
class Examination:
    """The table's state, its history, and the diagnosed pattern."""

    standing: LockInspection
    kept: tuple[Generation, ...]
    """Newest first."""
    untold: str
    """Why generations or Hudi's audit log could not be read; "" if they were."""
    audits: tuple[Audit, ...]
    evidence: Evidence
    """Files that were given beside the URL."""
    events: tuple[Event, ...]
    diagnosis: Diagnosis

    @property
    def since_ms(self) -> float | None:
        """Since when its owner has the lock, by the generations that the bucket kept."""
        return granted_ms(self.kept) if self.since else None

    @property
    def since(self) -> str:
        return granted_words(self.kept)

    @property
    def validation(self) -> Validation | None:
        return validate(self.audits) if self.audits else None

    @property
    def troubled(self) -> bool:
        """Whether there is anything to do: a known pattern, or something left behind."""
        named = self.diagnosis.pattern not in (Pattern.HEALTHY, *UNJUDGED)
        return named or is_something_left(self.standing)


def examine(
    store: Store, *, watch_s: float = WATCH_S, files: Sequence[tuple[str, bytes]] = (),
    emit: Emit = silent,
) -> Examination:  # fmt: skip
    """Look at a table, its lock's generations, Hudi's audit log, and files beside them.

    Notes go to `emit`. Raises `StoreError`, `TableError`, `Unanswered`, `NotUnderstood` (of files).
    """
    clock = Clock()
    emit("note", text="reading the table and its lock")
    standing = run(stand(watch_s=watch_s), store, clock, emit)
    emit("note", text="reading the lock object's generations")
    kept, untold = _generations(store)
    emit("note", text="reading Hudi's audit log")
    try:
        audits = run(load_audits(), store, clock)
    except StoreError as error:  # perhaps because these credentials may not list
        audits, untold = (), "; ".join(filter(None, (untold, plain(error, limit=300))))
    evidence = take_in(files, seen(kept), url=store.url)
    lanes = names(kept)  # Hudi's log has owners, the lock object may say who they are
    reported = [replace(each, who=lanes.get(each.who, each.who))
            for audit in audits for each in audit.events]  # fmt: skip
    events = one_truth([*evidence.events, *reported, *as_events(LOCK_KEY, kept)])
    events.sort(key=lambda each: each.at_ms)
    return Examination(
        standing, kept, untold, (*audits, *evidence.audits), evidence, tuple(events),
        with_present(diagnose(events), standing, events, kept),
    )  # fmt: skip


def _generations(store: Store) -> tuple[tuple[Generation, ...], str]:
    """Read the generations; the caller may not be allowed to list versions."""
    try:
        return tuple(generations(store, newest=NEWEST)), ""
    except StoreError as error:
        return (), plain(error, limit=300)
