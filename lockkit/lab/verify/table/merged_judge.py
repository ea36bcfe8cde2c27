"""The judge of the scenario `mor`: what a merge-on-read table holds, by the format's rule alone.

A log file counts once its instant is completed. It belongs to the newest base file whose instant is
earlier than that completion. Within a slice, log files are applied in the order of their instants;
with a precombine field the greater value wins, of equal ones the later. So Hudi 1.2 and hudi-rs
read. Nothing of lockkit's readers is used here.

In the simulator a base file is a JSON list of `[key, token, value, commit time]`, a log file one of
`[key, token or null, value]`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from lockkit.lab.verify.sim.memory_store import DecidedRequest, StoredObject
from lockkit.lab.verify.sim.task import Violated
from lockkit.lab.verify.table import reader
from lockkit.lab.verify.table.ledger import AttemptLedger, Place, Table, TrackedAttempt
from lockkit.lab.verify.table.reader import Completed, ReaderView, TableRow, Unreadable

_LOG = re.compile(r"(?:(.+)/)?\.([^_/]+)_(\d{17})\.log\.1_\d+-\d+-\d+")
SAME_ROWS = "a compaction changes no row, where the order of instants decides"
Rows = dict[str, tuple[str, int]]
"""By key: token and value."""


class LogFile(NamedTuple):
    """The fields in a log file's name."""

    partition: str
    file_id: str
    instant: str
    key: str


class LogWrite(NamedTuple):
    """What one commit wrote for one key."""

    instant: str
    completion: str
    key: str
    token: str | None
    value: int


@dataclass(slots=True)
class MergedAttempt(TrackedAttempt):
    """An attempt at an upsert, a deletion, an overwrite or a compaction."""

    value: int = 0
    """The precombine value of everything that it writes."""

    def changes(self) -> list[tuple[Place, str | None]]:
        """The place of each row, with its token, or None where it is deleted."""
        return [*((place, self.token) for place in self.writes),
                *((place, None) for place in self.removes)]  # fmt: skip


def log_name(key: str) -> LogFile | None:
    match = None if key.startswith(".hoodie/") else _LOG.fullmatch(key)
    return None if match is None else LogFile(match[1] or "", match[2], match[3], key)


def applied(base: Rows, logs: Iterable[LogWrite], ordered: bool) -> Rows:
    """The rows of a slice."""
    last: dict[str, LogWrite] = {}
    for each in sorted(logs, key=lambda log: log.instant):
        before = last.get(each.key)
        if not ordered or before is None or before.value <= each.value:
            last[each.key] = each
    found = dict(base)
    for key, each in last.items():
        if ordered and key in base and base[key][1] > each.value:
            continue
        if each.token is None:
            found.pop(key, None)
        else:
            found[key] = each.token, each.value
    return found


@dataclass(slots=True)
class MergedLedger(AttemptLedger):
    """Every operation, what the table must hold after each commit, and what it does hold."""

    ordered: bool = False
    buckets: int = 2
    bases: dict[tuple[str, int], tuple[str, Rows]] = field(default_factory=dict)
    """By partition and bucket: the instant and the rows of the latest base file."""
    logs: dict[tuple[str, int], list[LogWrite]] = field(default_factory=dict)

    # --- what the table must hold ----------------------------------------------------------------

    def after(self, attempt: TrackedAttempt, commit: Completed, body: bytes) -> Table:
        assert commit.completion is not None
        if attempt.kind == "compact":
            self._compacted(commit.instant, reader.groups_of(body))
        elif attempt.kind.startswith("overwrite"):
            self._overwritten(attempt, commit.instant)
        elif isinstance(attempt, MergedAttempt):
            self._logged(attempt, commit.instant, commit.completion)
        return self._shown(attempt, commit)

    def _logged(self, attempt: MergedAttempt, instant: str, completion: str) -> None:
        for (partition, key), token in attempt.changes():
            self.logs.setdefault((partition, self._bucket(key)), []).append(
                LogWrite(instant, completion, key, token, attempt.value)
            )

    def _shown(self, attempt: TrackedAttempt, commit: Completed) -> Table:
        """The table from now on; a compaction changes no row."""
        now = self._table()
        if attempt.kind == "compact" and not self.ordered and now != self.tables[-1]:
            raise Violated(SAME_ROWS, f"{commit.instant}: {self.tables[-1]} became {now}")
        return now

    def _compacted(self, instant: str, groups: Iterable[tuple[str, str]]) -> None:
        for partition, file_id in groups:
            place = partition, int(file_id[:8])
            base, rows = self.bases.get(place, ("", {}))
            if instant > base:
                self.bases[place] = instant, applied(rows, self._of(place, instant), self.ordered)

    def _of(self, place: tuple[str, int], until: str = "~") -> list[LogWrite]:
        """The log files behind the base file that were completed before `until`."""
        base = self.bases.get(place, ("", {}))[0]
        return [each for each in self.logs.get(place, ()) if base < each.completion < until]

    def _overwritten(self, attempt: TrackedAttempt, instant: str) -> None:
        for of in (self.bases, self.logs):
            for place in [each for each in of if attempt.empties is None
                          or each[0] in attempt.empties]:  # fmt: skip
                del of[place]
        assert isinstance(attempt, MergedAttempt)
        for partition, key in attempt.writes:
            place = partition, self._bucket(key)
            rows = self.bases.setdefault(place, (instant, {}))[1]
            rows[key] = attempt.token, attempt.value

    def _table(self) -> Table:
        found: dict[Place, tuple[str, ...]] = {}
        for place in {*self.bases, *self.logs}:
            rows = applied(self.bases.get(place, ("", {}))[1], self._of(place), self.ordered)
            found |= {(place[0], key): (token,) for key, (token, _) in rows.items()}
        return found

    def _bucket(self, key: str) -> int:
        return int(key[1:]) % self.buckets

    # --- what it does hold -----------------------------------------------------------------------

    def on_write(self, write: DecidedRequest, after: StoredObject | None) -> None:
        AttemptLedger.on_write(self, write, after)
        log = log_name(getattr(write.request, "key", ""))
        if log is None:
            return
        if after is None and log.key in self.files:
            raise Violated("no file is deleted that a reader needs", log.key)
        if after is not None and any(each.instant == log.instant for each in self.commits):
            self._compare(f"{log.key} was written under a completed instant")

    def view(self) -> ReaderView:
        objects = {key: stored.body for key, stored in self.memory_store.objects.items()}
        try:
            return merged_view(objects, self.ordered)
        except Unreadable as error:
            raise Violated("Hudi's readers can read the table", str(error)) from None


def merged_view(objects: Mapping[str, bytes], ordered: bool) -> ReaderView:
    """The table's content now; raises `Unreadable` if Hudi's readers would fail."""
    completions: dict[str, str] = {}
    commits = []
    for key in objects:
        commit = reader.completed_name(key) if key.startswith(".hoodie/") else None
        if commit is not None and commit.completion is not None:
            if commit.instant in completions:
                raise Unreadable(f"{commit.instant} is completed twice")
            completions[commit.instant] = commit.completion
            commits.append(commit)
    replaced = {group for each in commits if each.action == "replacecommit"
                for group in reader.replaced_of(objects[each.key])}  # fmt: skip
    bases, logs = dict[tuple[str, str], reader.DataFile](), dict[tuple[str, str], list[LogFile]]()
    for key in objects:
        base, log = reader.data_name(key), log_name(key)
        found = base or log
        if found is None or found.instant not in completions:
            continue
        group = found.partition, found.file_id
        if group in replaced:
            continue
        if base is not None and (group not in bases or bases[group].instant < base.instant):
            bases[group] = base
        elif log is not None:
            logs.setdefault(group, []).append(log)
    needed: set[str] = set()
    rows: list[TableRow] = []
    for group in {*bases, *logs}:
        start = bases[group].instant if group in bases else ""
        behind = [each for each in logs.get(group, ()) if completions[each.instant] > start]
        needed |= {each.key for each in behind}
        standing: Rows = {}
        if group in bases:
            needed.add(bases[group].key)
            for key, token, value, _ in json.loads(objects[bases[group].key]):
                standing[key] = token, value
        writes = [LogWrite(each.instant, completions[each.instant], *entry)
                  for each in behind for entry in json.loads(objects[each.key])]  # fmt: skip
        rows += [TableRow(group[0], key, (token,), "")
                 for key, (token, _) in applied(standing, writes, ordered).items()]  # fmt: skip
    _refuse_missing(objects, commits, replaced, bases)
    return ReaderView(tuple(commits), frozenset(needed), tuple(rows))


def _refuse_missing(
    objects: Mapping[str, bytes], commits: list[Completed], replaced: set[tuple[str, str]],
    bases: Mapping[tuple[str, str], reader.DataFile],
) -> None:
    """Raise if a file that a commit names, and that no later base file contains, is not there."""
    for each in commits:
        for path, group in reader.written_by(objects[each.key]):
            at = (each.completion or "") if log_name(path) else each.instant
            later = group in bases and bases[group].instant >= at
            if path not in objects and group not in replaced and not later:
                raise Unreadable(f"{each.key} names {path}, which is not there")
