"""The incident console: inspect a table with a problem, read its records, break a dead lock.

    console = Console("s3://lake/orders")
    console

No request is sent before Look is pressed (or `console.look()` is called). Looking only reads.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import ipywidgets as widgets

from lockkit.cli.service_lock import is_service, open_service
from lockkit.cli.terminal import store_flags
from lockkit.clock import Clock
from lockkit.errors import BreakRefused
from lockkit.events import Event, plain, shortened
from lockkit.lab.incident.diagnosis import Diagnosis, diagnose
from lockkit.lab.incident.dropped import FILE_BYTES_MAX, NotUnderstood, take_in
from lockkit.lab.incident.examine import Examination, examine
from lockkit.lab.incident.service import ServiceExamination, examine_service
from lockkit.lab.incident.words import proof, sentence
from lockkit.lab.widgets.console import html
from lockkit.lab.widgets.console.panel import Panel
from lockkit.lab.widgets.console.picture import picture
from lockkit.lab.widgets.errand import BackgroundTask
from lockkit.lab.widgets.ui import Shown, button
from lockkit.providers.holder import ServiceHolder
from lockkit.providers.leased import LeasedLock
from lockkit.runtime import run
from lockkit.stores import Store, open_store
from lockkit.table.inspect.standing import watch
from lockkit.table.inspect.takeover import (
    BrokenLock,
    PlannedBreak,
    operator_name,
    planned,
    take_over,
)
from lockkit.table.inspect.versions import highest_epoch

TIMEOUT_S = 10.0
EVIDENCE_MAX = 8
NOTHING = "No history was recorded here."


class ConsoleTable(Protocol):
    """The address of a demonstration's table."""

    url: str
    endpoint: str


class Console(Shown):
    """The lock's owner, whether it is alive, what happened and what to do; by clicks or by code.

    `demo` makes a table with a problem, which is inspected if no URL is given.

    :param url: the table or lock to inspect.
    :param endpoint: the store's URL; "": the service's own.
    :param watch_s: the time between two looks of a watch, in seconds.
    :param demo: makes a table with a problem; None: no demo button.
    :param store_options: those of `open_store`: endpoint, credentials, ...
    """

    def __init__(
        self, url: str = "", *, endpoint: str = "", watch_s: float = 3.0,
        demo: Callable[[], ConsoleTable] | None = None, **store_options: Any,
    ) -> None:  # fmt: skip
        self.found: Examination | None = None
        self.diagnosis: Diagnosis | None = None
        self.events: tuple[Event, ...] = ()
        self.planned: PlannedBreak | None = None
        """The newest dry run, on which a break is based."""
        self.service: ServiceExamination | None = None
        """The last look, if it was at a service's lock."""
        self._grant: ServiceHolder | None = None
        """The grant that the newest dry run of a service's lock showed."""
        self._demo, self._options = demo, store_options
        self._place: ConsoleTable | None = None
        self._at: tuple[str, str] = ("", "")
        self._files: list[tuple[str, bytes]] = []
        self._errand = BackgroundTask(self._failed, self._busy)
        self.panel = panel = Panel(
            url=url, endpoint=endpoint, watch_s=watch_s, has_demo=demo is not None
        )
        self.view = panel.view
        panel.look.on_click(lambda _: self._start(self._looked))
        panel.read.on_click(lambda _: self._start(self._named_files))
        panel.upload.observe(lambda _: self._start(self._dropped), "value")
        panel.dry.on_click(lambda _: self._start(self.dry_run))
        panel.break_it.on_click(lambda _: self._start(self._break))
        panel.epoch.observe(lambda _: self._allow(), "value")

    def _start(self, act: Callable[[], Any]) -> None:
        """For a callback: an inspection takes seconds, and the page must not freeze."""
        if self._errand.idle:
            self.panel.error.value = ""
            self._errand.ask(lambda _: act())

    def wait(self, timeout_s: float) -> bool:
        """Wait until the clicked action is done; return whether it is."""
        return self._errand.wait(timeout_s)

    def _failed(self, error: Exception) -> None:
        self.panel.fail(error)

    def _busy(self, busy: bool) -> None:
        self.panel.lock_up(busy)
        self._allow(busy=busy)

    def _allow(self, *, busy: bool = False) -> None:
        """Enable Break only after a dry run that would succeed, or with its epoch."""
        plan = self.planned
        may = plan is not None and (not plan.refused or self.panel.typed is not None)
        may = may or self._grant is not None
        self.panel.break_it.disabled = busy or not may

    # --- looking ----------------------------------------------------------------------------------

    def _looked(self) -> None:
        self.look()

    def look(
        self, url: str = "", endpoint: str = "", *, watch_s: float | None = None
    ) -> Examination | ServiceExamination:
        """Look at a table or a service's lock; without a URL: the panel's, else the demo's."""
        url = url or self.panel.url.value.strip()
        endpoint = endpoint or self.panel.endpoint.value.strip()
        if not url:
            url, endpoint = self._demonstration()
            self._files = []  # none belongs to the demo's table
        self.panel.say("Looking…")
        seconds = self.panel.watch.value if watch_s is None else watch_s
        if is_service(url):
            with closing(self._open_service(url, endpoint)) as lock:
                seen = examine_service(lock, watch_s=seconds, emit=self._progress)
            self._at = (url, endpoint)
            self._show_service(seen)
            return seen
        with closing(self._open(url, endpoint)) as store:
            found = examine(store, watch_s=seconds, files=self._files, emit=self._progress)
        self._at = (url, endpoint)
        self._show(found)
        return found

    def _open_service(self, url: str, endpoint: str) -> LeasedLock:
        """`endpoint` is that of a Terraform state's store; a service has its own in the URL."""
        given = {"endpoint": endpoint} if endpoint else {}
        return open_service(url, {**given, "timeout_s": TIMEOUT_S, **self._options})

    def _show_service(self, found: ServiceExamination) -> None:
        """A service keeps no versions, and has no table beside it."""
        self.found, self.planned, self.service, self._grant = None, None, found, None
        panel = self.panel
        panel.lock.value = html.service_html(found)
        panel.generations.value = panel.table.value = panel.audit.value = html.NOT_HERE
        panel.files.value = html.taken_html(())
        panel.offer_break(service=True)
        self._draw((), found.diagnosis, self._at[0])
        panel.say(f"Looked at {self._at[0]}: {found.state}.")

    def _demonstration(self) -> tuple[str, str]:
        if self._demo is None:
            raise ValueError("no table is named: give its URL, s3://bucket/table")
        if self._place is None:
            self.panel.say("Making a table with a problem on an embedded server…")
            self._place = self._demo()
        return self._place.url, self._place.endpoint

    def _open(self, url: str, endpoint: str) -> Store:
        return open_store(url, endpoint=endpoint or None, timeout_s=TIMEOUT_S, **self._options)

    def _progress(self, _kind: str, **fields: Any) -> None:
        self.panel.say(f"{fields.get('text', '')}…")

    def _show(self, found: Examination) -> None:
        self.found, self.planned, self.service, self._grant = found, None, None, None
        panel = self.panel
        panel.lock.value = html.lock_html(found.standing.holder, found.since)
        panel.generations.value = html.generations_html(found.kept, found.untold)
        panel.table.value = html.table_html(found.standing)
        panel.audit.value = html.audit_html(found.validation, found.events)
        panel.files.value = html.taken_html(found.evidence.taken)
        panel.offer_break(service=False)
        self._draw(found.events, found.diagnosis, self._at[0])
        beside = ", ".join(plain(name, limit=100) for name, _content in self._files)
        beside = f", with {beside}" if beside else ""
        panel.say(f"Looked at {self._at[0]}{beside}: {found.standing.holder.state}.")

    # --- recorded files ---------------------------------------------------------------------------

    def _dropped(self) -> None:
        if dropped := self.panel.upload.value:
            self._forget()
            for each in dropped:
                if each["content"] is None:
                    name = plain(each["name"], limit=100)
                    raise NotUnderstood(name, "could not be read", "drop in files, not folders")
            self._take([(each["name"], bytes(each["content"])) for each in dropped])

    def _named_files(self) -> None:
        self.read(*_names(self.panel.paths.value))

    def read(self, *names: str | Path) -> Diagnosis:
        """Read files of any kind, by name or pattern; beside the table that was looked at, if any,
        but not beside the demo's.

        Raises `NotUnderstood` for a file that cannot be read, or is of an unknown form.
        """
        named = filter(str.strip, map(str, names))
        paths = [path for name in named for path in sorted(_matching(name))]
        if not paths:
            raise NotUnderstood(
                "no file", "is named", "give paths, or patterns such as audit/*.jsonl"
            )
        self._forget()
        return self._take([(path.name, _content(path)) for path in paths])

    def _forget(self) -> None:
        """Clear what the files before showed. A table stays, unless it is the demo's."""
        if self._place is not None and self._at[0] == self._place.url:
            self.found, self.planned, self._at = None, None, ("", "")
        if self.found is None:
            self.diagnosis, self.events, self._files = None, (), []
            self.panel.card.value = ""
            self.panel.body.layout.display = "none"
            self.panel.ask(True)

    def _take(self, files: Sequence[tuple[str, bytes]]) -> Diagnosis:
        self.panel.say("Reading…")
        url = "" if self.found is None else self._at[0]
        try:
            evidence = take_in(files, url=url)
        except NotUnderstood:
            if self.found is not None and self._files:  # the card named what these showed
                self._files = []
                self.look(*self._at)
            raise
        self._files = list(files)
        if self.service is not None:
            raise ValueError("a service's lock has no history: look at a table, or at files alone")
        if self.found is not None:
            return self.look(*self._at).diagnosis
        panel, found = self.panel, diagnose(evidence.events)
        panel.lock.value = ""
        panel.fold(table=False, audit=evidence.validation is not None)
        panel.ask(False)
        panel.audit.value = html.audit_html(evidence.validation, evidence.events)
        panel.files.value = html.taken_html(evidence.taken)
        panel.breaking.layout.display = "none"
        self._draw(evidence.events, found, "URL")
        taken = "; ".join(f"{each.name}: {each.kind}" for each in evidence.taken)
        panel.say(f"{taken}. No table was inspected.")
        return found

    # --- the picture ------------------------------------------------------------------------------

    def _draw(self, events: Sequence[Event], found: Diagnosis, url: str) -> None:
        proofs = found.evidence[:EVIDENCE_MAX]
        drawn = picture(events, proofs)
        self.events, self.diagnosis = tuple(events), found
        panel = self.panel
        endpoint = self._at[1] if self._at and url == self._at[0] else ""
        region = str(self._options.get("region_name") or "")
        panel.card.value = html.card_html(found, url, store_flags(endpoint, region))
        panel.lock.layout.display = None if panel.lock.value else "none"  # files alone
        with panel.lanes.hold_sync():
            panel.lanes.scene, panel.lanes.selected = drawn.scene, ""
            panel.lanes.status = {"state": "replay", "log": drawn.log, "empty": NOTHING}
        panel.evidence.children = [
            self._proof(*each) for each in zip(proofs, drawn.spots, strict=True)
        ]
        panel.body.layout.display = "flex"

    def _proof(self, each: Event, place: str) -> widgets.Button:
        return button(
            shortened(plain(sentence(each), limit=200)),
            lambda: self.panel.lanes.set_trait("selected", place), name="console-proof",
            icon="crosshairs", tip=plain(proof(each), limit=1_000),
        )  # fmt: skip

    # --- breaking ---------------------------------------------------------------------------------

    def dry_run(self) -> PlannedBreak | ServiceHolder | None:
        """Show what a break would end or replace, and whether it would be refused. Read-only."""
        if not self._at[0]:
            raise ValueError("no table was inspected: press Look first, then break")
        self.planned = self._grant = None
        if self.service is not None:
            return self._dry_run_of_service()
        with closing(self._open(*self._at)) as store:
            holder = run(watch(self.panel.watch.value), store, Clock(), self._progress)
            known, _source = highest_epoch(store)
        self.panel.lock.value = html.lock_html(holder, self.found.since if self.found else "")
        self.planned = planned(holder, by=operator_name(), wall_ms=Clock().wall_ms(), known=known)
        self.panel.plan.value = html.plan_html(self.planned, self._at[0])
        self.panel.say("This is what it would do.")
        return self.planned

    def _dry_run_of_service(self) -> ServiceHolder | None:
        with closing(self._open_service(*self._at)) as lock:
            self._grant = lock.holder()
        self.panel.plan.value = html.grant_html(self._grant, self._at[0])
        self.panel.say("This is what it would do.")
        return self._grant

    def _break(self) -> None:
        self.break_lock(self.panel.typed, force=self.panel.forced)

    def break_lock(self, epoch: int | None = None, *, force: bool = False) -> BrokenLock | None:
        """Take the lock over by a tombstone, if it is still as the dry run showed it.

        A service's lock has no tombstone: its grant ends, and None is returned. `epoch` breaks a
        table's lease that is valid or still renewed, `force` the grant of a service's holder that
        lives. Raises `BreakRefused`, `Unanswered`.
        """
        if self._grant is not None:
            grant, self._grant = self._grant, None
            with closing(self._open_service(*self._at)) as lock:
                lock.break_lock(grant.version, force=force)
            self.look(*self._at, watch_s=0.0)
            self.panel.say("Broken: the service ended that grant.")
            return None
        if self.planned is None:
            raise BreakRefused("the lock", "was not broken", "do a dry run first")
        plan, self.planned = self.planned, None
        with closing(self._open(*self._at)) as store:
            holder = run(watch(self.panel.watch.value), store, Clock(), self._progress)
            known, _source = highest_epoch(store)
            act = take_over(
                holder, shown=plan.version, epoch=epoch, by=operator_name(), known=known
            )
            done = run(act, store, Clock())
        self.look(*self._at, watch_s=0.0)
        self.panel.say(f"Broken: the lock is free, logged as {done.log}")
        return done

    def __repr__(self) -> str:
        if self.diagnosis is None:
            return "Console(nothing read yet)"
        state = f"{self.found.standing.holder.state}; " if self.found else ""
        state = f"{self.service.state}; " if self.service else state
        return f"Console({state}{self.diagnosis.pattern}: {plain(self.diagnosis.because)})"


def _names(text: str) -> list[str]:
    """The paths in a line. A path with spaces must be alone, or in quotes as in a shell."""
    whole = text.strip()
    if whole and any(path.exists() for path in _matching(whole)):
        return [whole]
    try:
        return shlex.split(text)
    except ValueError:  # a quote that is not closed is part of a name
        return text.split()


def _matching(name: str) -> list[Path]:
    path = Path(name).expanduser()
    return list(path.parent.glob(path.name)) or [path]


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
        raise NotUnderstood(plain(path.name), why, "check its path") from None
