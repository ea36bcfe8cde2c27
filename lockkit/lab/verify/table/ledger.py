"""What writers did to a simulated table, and their answers, against what the second reader sees.

The judge of the scenario `table`. It is told of each operation when its files are about to be
written, of each outcome, and of every write that the store applies. The order of the commits is
that in which their completed files appeared; the table must hold exactly what these operations make
of an empty table, one after the other. The files of one round of group commit appear in any order
in table version 6: there the order is that of the fence.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lockkit.lab.verify.sim.memory_store import DecidedRequest, SimStore, StoredObject
from lockkit.lab.verify.sim.task import SIMULATOR, Violated
from lockkit.lab.verify.table import reader
from lockkit.lab.verify.table.reader import Completed, DataFile, ReaderView, TableRow, Unreadable
from lockkit.runtime import Delete, Put
from lockkit.table.occ.fence import FENCE_KEY, GROUP_FORMATS, digest

ROWS = "every committed row is visible exactly once, and no other row is"
ACKNOWLEDGED = "an acknowledged commit is visible and stays so"
REFUSED = "a refused commit is never visible"
ONCE = "an operation is committed at most once"
BEHIND = "no commit completes behind a reader of increments"
INCREMENTS = "increments miss no row and bring none twice"
SEEN = "a delete finds each row that was committed before it began"
PREFIX = "a reader sees the commits up to one point, and all of them"
NEEDED = "no file is deleted that a reader needs"
READABLE = "Hudi's readers can read the table"
FEW_INSTANTS = "one attempt takes few instants"
PENDING = "where nothing fails, no instant stays pending"
INSTANTS_MAX = 60
MISTIMED, MISTIMED_KEY = "mistimed", "x0"
"""The kind and the key of a write by a clock that is slower than Hudi allows: readers of increments
may miss its rows, so they do not count."""

Place = tuple[str, str]
"""(partition, record key)."""
Table = Mapping[Place, tuple[str, ...]]
"""What the table holds: the tokens of each row."""


def decided_body(objects: Mapping[str, StoredObject], entry: dict[str, Any]) -> bytes | None:
    """What the owner of a decided commit has said: in the fence, an offer or an inflight file."""
    said = [zlib.decompress(base64.b85decode(entry["body"]))] if entry["body"] else []
    named = entry["instant"] + "."
    said += [each.body for key, each in objects.items() if key.rpartition("/")[2].startswith(named)
             and key.endswith((".append", ".inflight"))]  # fmt: skip
    return next((each for each in said if digest(each) == entry["sha256"]), None)


@dataclass(slots=True)
class TrackedAttempt:
    """One attempt at an operation: its effect if it commits, and the answer to its writer."""

    token: str
    operation: str
    """The operation that it is an attempt at; retries are further attempts at the same one."""
    kind: str
    writes: tuple[Place, ...] = ()
    """Rows to which it adds its token, and makes where there are none."""
    removes: tuple[Place, ...] = ()
    """Rows that it found, and takes away."""
    empties: frozenset[str] | None = frozenset()
    """Partitions that it overwrites; None: every one."""
    reported: str = ""
    """"acknowledged", or the error that its writer got; "" while it is under way."""

    def after(self, before: Table) -> Table:
        """The table's rows if this attempt is committed on top of `before`."""
        kept = {place: tokens for place, tokens in before.items()
                if not (self.empties is None or place[0] in self.empties)
                and place not in self.removes}  # fmt: skip
        for place in self.writes:
            if place[1] == MISTIMED_KEY:
                continue
            kept[place] = (*kept.get(place, ()), self.token)
        return kept


TAKEN_BACK = "an interrupt, and that what it wrote was taken back"
REFUSALS = frozenset(
    {
        "CommitConflict", "DamagedFile", "HeartbeatExpired", "LockBusy", "LockLost", "NoTable",
        "OutdatedHandle", "RefusedOption", "RefusedRows", "TableBlocked", "TableChanged",
        "TableError", "UnsupportedTable", TAKEN_BACK,
    }
)  # fmt: skip
"""After each of these the attempt is not committed, and never will be. `Unanswered` is none."""


@dataclass(slots=True)
class Stream:
    """One reader of increments, and all rows that it received."""

    name: str
    end: str = ""
    rows: dict[Place, tuple[str, ...]] = field(default_factory=dict)
    brought: set[tuple[Place, tuple[str, ...]]] = field(default_factory=set)


@dataclass(slots=True)
class AttemptLedger:
    """Every attempt, every visible commit, and every answer to a reader."""

    memory_store: SimStore
    attempts: dict[str, TrackedAttempt] = field(default_factory=dict)
    """By token."""
    commits: list[Completed] = field(default_factory=list)
    """In the order in which they became visible."""
    tables: list[Table] = field(default_factory=lambda: [{}])
    """What the table held after each of them."""
    decided: list[tuple[str, TrackedAttempt]] = field(default_factory=list)
    """The instants and attempts of the commits, in their order."""
    visible: dict[str, str] = field(default_factory=dict)
    """Operation -> the token that is visible."""
    files: frozenset[str] = frozenset()
    """What a reader needs now."""
    streams: list[Stream] = field(default_factory=list)
    instants: Counter[str] = field(default_factory=Counter)
    """Instants taken by each client since its attempt began."""
    instants_max: int = INSTANTS_MAX
    mistimed: set[str] = field(default_factory=set)
    """Instants of commits by a clock that is too slow."""

    # --- what the store applied ------------------------------------------------------------------

    def on_write(self, write: DecidedRequest, after: StoredObject | None) -> None:
        """A write was applied. Raises `Violated`."""
        assert isinstance(write.request, Put | Delete)
        key = write.request.key
        if key.startswith(".hoodie/"):
            if (commit := reader.completed_name(key)) is not None:
                self._completed(commit, write, after)
            elif key.endswith(".requested") and after is not None and write.client != SIMULATOR:
                self._count_instant(write.client)
        elif (file := reader.data_name(key)) is not None:
            self._data(file, after)

    def _completed(
        self, commit: Completed, write: DecidedRequest, after: StoredObject | None
    ) -> None:
        if after is None and commit.instant in self.mistimed:
            # Another writer of Hudi's saw the instant's earlier writer dead, and rolls it back.
            self._compare(f"{commit.key} was deleted")
            return
        if commit.instant in self.archived():
            self._compare(f"{commit.key} left the timeline, or came back to it")
            return
        if after is None:
            raise Violated(ACKNOWLEDGED, f"{commit.key} was deleted")
        if write.before:
            raise Violated(ACKNOWLEDGED, f"{commit.key} was written over")
        attempt = self._attempt_of(commit, after.body)
        where = f"{attempt.token} ({attempt.kind}) became visible as {commit.instant}"
        if attempt.reported in REFUSALS:
            raise Violated(REFUSED, f"{where}, but its writer had got {attempt.reported}")
        if self.visible.setdefault(attempt.operation, attempt.token) != attempt.token:
            raise Violated(ONCE, f"{where}, after {self.visible[attempt.operation]}")
        if attempt.kind == MISTIMED:
            self.mistimed.add(commit.instant)
        for stream in self.streams if attempt.kind != MISTIMED else ():
            if (commit.completion or commit.instant) <= stream.end:
                raise Violated(BEHIND, f"{where}, but {stream.name} was at {stream.end}")
        self.commits.append(commit)
        self.tables.append(self.after(attempt, commit, after.body))
        self._compare(where)

    def after(self, attempt: TrackedAttempt, commit: Completed, _body: bytes) -> Table:
        """The table's rows once this commit is visible, too."""
        fence = self._group_fence()
        window = fence.get("window", ()) if fence.get("completion") is None else ()
        turn = {each["instant"]: each["seq"] for each in window}
        mine, place = turn.get(commit.instant, math.inf), len(self.decided)
        while place and turn.get(self.decided[place - 1][0], 0) > mine:
            place -= 1
        self.decided.insert(place, (commit.instant, attempt))
        if attempt is self.decided[-1][1]:
            return attempt.after(self.tables[-1])
        rows: Table = {}
        for _, each in self.decided:
            rows = each.after(rows)
        return rows

    def archived(self) -> set[str]:
        """The instants that the archive has."""
        objects = self.memory_store.objects
        here = {key: objects[key].body for key in objects if "/history/" in key}
        return {each.instant for each, _ in reader.archived(here)} if here else set()

    def _attempt_of(self, commit: Completed, body: bytes) -> TrackedAttempt:
        """The attempt of a commit: by the token in its metadata, or in the rows of its files."""
        tokens = {reader.extra_of(body).get("token")} - {None}
        if not tokens:
            for path in reader.paths_of(body):
                file, stored = reader.data_name(path), self.memory_store.objects.get(path)
                if file is not None and stored is not None:
                    tokens |= {row.tokens[-1] for row in reader.rows_of(file, stored.body)
                               if row.commit_time == commit.instant}  # fmt: skip
        known = [self.attempts[each] for each in tokens if each in self.attempts]
        if len(known) != 1 or len(tokens) != 1:
            raise Violated(ROWS, f"{commit.key} holds the rows of {sorted(map(str, tokens))}")
        return known[0]

    def _count_instant(self, client: str) -> None:
        self.instants[client] += 1
        if self.instants[client] > self.instants_max:
            raise Violated(FEW_INSTANTS, f"{client} took {self.instants[client]} in a row")

    def _data(self, file: DataFile, after: StoredObject | None) -> None:
        if after is None and file.key in self.files:
            raise Violated(NEEDED, file.key)
        if after is not None and any(each.instant == file.instant for each in self.commits):
            self._compare(f"{file.key} was written under a completed instant")

    def view(self) -> ReaderView:
        try:
            return reader.view(self.objects())
        except Unreadable as error:
            raise Violated(READABLE, str(error)) from None

    def objects(self) -> dict[str, bytes]:
        """What readers find in the store."""
        return {key: stored.body for key, stored in self.memory_store.objects.items()}

    def _compare(self, why: str) -> None:
        """Compare what the second reader sees with what the commits should have done."""
        seen = self.view()
        self.files = seen.files
        compare(self.tables[-1], seen.rows, why)

    # --- a writer's answers ----------------------------------------------------------------------

    def begins(self, client: str) -> None:
        """An attempt of this client begins."""
        self.instants[client] = 0

    def tries(self, attempt: TrackedAttempt) -> TrackedAttempt:
        """An attempt is about to write its first file, maybe once more (`held.Outrun`)."""
        assert self.attempts.get(attempt.token, attempt) is attempt, attempt
        self.attempts[attempt.token] = attempt
        return attempt

    def acknowledged(self, attempt: TrackedAttempt) -> None:
        attempt.reported = "acknowledged"
        if self.visible.get(attempt.operation) != attempt.token and not self._is_tail(attempt):
            raise Violated(
                ACKNOWLEDGED,
                f"{attempt.token} ({attempt.kind}) was acknowledged, but is not visible",
            )

    def _is_tail(self, attempt: TrackedAttempt) -> bool:
        """Whether it is decided together with others, and not published yet."""
        return any(each is attempt for each in self._tail())

    def _tail(self) -> list[TrackedAttempt]:
        """Of group commit: decided by the fence, and not published yet."""
        objects, fence = self.memory_store.objects, self._group_fence()
        seen, found = {each.instant for each in self.commits}, []
        for entry in fence.get("window", ()):
            if entry["kind"] != "commit" or entry["instant"] in seen:
                continue
            body, done = decided_body(objects, entry), entry["completion"]
            if body is not None:
                here = Completed(entry["instant"], done, entry["action"], "the fence")
                found.append(self._attempt_of(here, body))
        return found

    def committed(self) -> Table:
        """The rows of all that is decided, published or not."""
        rows: Table = self.tables[-1]
        for attempt in self._tail():
            rows = attempt.after(rows)
        return rows

    def deleted(self, attempt: TrackedAttempt, places: Collection[Place], since: int) -> None:
        """A delete has returned. When it began, with the first `since` commits visible, the table
        had rows at these places.
        """
        states = [*self.tables[since + 1:], self.committed()]
        for place in sorted(set(places) - set(attempt.removes)):
            if all(place in each for each in states):
                raise Violated(SEEN, f"{attempt.token} did not find {place}")

    def _group_fence(self) -> dict[str, Any]:
        """{} where the table has none."""
        stored = self.memory_store.objects.get(FENCE_KEY)
        fence: dict[str, Any] = json.loads(stored.body) if stored else {}
        return fence if fence.get("format") in GROUP_FORMATS else {}

    def acknowledgeable(self) -> int:
        """How many commits a reader that begins now must see."""
        return len(self.commits) + len(self._tail())

    def within(self, since: int, commits: int) -> bool:
        """Whether fewer than this many commits came after the first `since`."""
        return len(self.commits) - since < commits

    def refused(self, attempt: TrackedAttempt, error: str) -> None:
        attempt.reported = error
        if error in REFUSALS and self.visible.get(attempt.operation) == attempt.token:
            raise Violated(
                REFUSED,
                f"{attempt.token} ({attempt.kind}) is visible, but its writer got {error}",
            )

    def interrupted(self, attempt: TrackedAttempt, notes: Iterable[str]) -> None:
        """After Ctrl-C only what the interrupt's notes say is known."""
        text = " ".join(notes)
        if "was committed before the interrupt" in text:
            self.acknowledged(attempt)
        else:
            taken_back = "was not committed; what it had written was taken back" in text
            self.refused(attempt, TAKEN_BACK if taken_back else "CtrlC")

    # --- a reader's answers ----------------------------------------------------------------------

    def read(self, rows: Iterable[TableRow], since: int) -> None:
        """A reader began when `since` commits were visible, and got these rows of a snapshot."""
        seen = _as_table(rows, "a reader's snapshot")
        if all(dict(seen) != dict(each) for each in self.tables[since:]):
            raise Violated(PREFIX, f"its rows are those of no commit from number {since} on")

    def pulled(self, stream: Stream, end: str, rows: Iterable[TableRow]) -> None:
        """A reader of increments got these rows, and continues from `end`."""
        for row in rows:
            place = row.partition, row.key
            if row.key == MISTIMED_KEY:
                continue
            if (place, row.tokens) in stream.brought:
                raise Violated(INCREMENTS, f"{stream.name} got {row} twice")
            stream.brought.add((place, row.tokens))
            stream.rows[place] = row.tokens
        stream.end = max(stream.end, end)

    # --- at the end ------------------------------------------------------------------------------

    def nothing_pending(self) -> None:
        """Raise if an instant is still pending after every process has ended."""
        pending = reader.pending(self.memory_store.objects)
        if pending:
            raise Violated(PENDING, f"{min(pending)}, and {len(pending) - 1} more")

    def judge(self) -> None:
        """Judge the table after all tasks have ended."""
        self._compare("at the end")
        if tail := self._tail():
            raise Violated(ACKNOWLEDGED, f"{tail[0].token} is decided, but nobody publishes it")
        for attempt in self.attempts.values():
            if attempt.reported == "acknowledged":
                self.acknowledged(attempt)
            elif attempt.reported:
                self.refused(attempt, attempt.reported)
        for stream in self.streams:
            for place, tokens in self.tables[-1].items():
                if stream.rows.get(place) != tokens:
                    raise Violated(
                        INCREMENTS,
                        f"{stream.name} has {stream.rows.get(place)} for {place}, but the table "
                        f"has {tokens}",
                    )


def compare(expected: Table, rows: Iterable[TableRow], why: str) -> None:
    found = _as_table(rows, why)
    for place in sorted({*expected, *found}):
        if expected.get(place) != found.get(place):
            raise Violated(
                ROWS,
                f"{why}: {place} is {found.get(place)}, but its commits say {expected.get(place)}",
            )


def _as_table(rows: Iterable[TableRow], why: str) -> Table:
    table: dict[Place, tuple[str, ...]] = {}
    for row in rows:
        place = row.partition, row.key
        if row.key == MISTIMED_KEY:
            continue
        if place in table:
            raise Violated(ROWS, f"{why}: {place} is there twice, {table[place]} and {row.tokens}")
        table[place] = row.tokens
    return table
