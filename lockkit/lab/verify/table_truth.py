"""The simulator's judge of a table: what must hold at every write that the store applies.

It sees every applied write in the store's order, and each conflict check. Besides, it knows only
each writer's view of its own heartbeat.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lockkit.lab.verify.sim.memory_store import DecidedRequest as Write
from lockkit.lab.verify.sim.memory_store import StoredObject
from lockkit.lab.verify.sim.task import Violated
from lockkit.runtime import Delete, Put
from lockkit.table.format.base_file import Slice
from lockkit.table.format.layout import FileGroup, parse_commit
from lockkit.table.occ.fence import COMMIT, FENCE_KEY, ROLLBACK, Decided, parse_fence
from lockkit.table.occ.liveness import HEARTBEATS

STALE = "stale commit accepted: its check did not cover a commit that was decided before"
UNDECIDED = "visible, and never decided"
BOTH = "committed, and rolled back"
GAP = "a later commit is visible before an earlier one"
DELETED = "files deleted that a reader needs, or may yet"
HORIZON = "completed where a reader had already gone past"
TIMES = "completion times do not rise as the commits were decided"
NAMES = "one instant is completed under two names"
REVIVED = "a heartbeat that was ended beats again"
LIVE = "a living writer was taken for dead"
LOST = "a completed commit is deleted"

_COMPLETED = re.compile(r"\.hoodie/(?:timeline/)?(\d{17})(?:_(\d{17}))?\.(?:commit|replacecommit)")
_PENDING = re.compile(r"\.hoodie/(?:timeline/)?(\d{17})\.(?:commit\.requested|inflight)")
_DATA = re.compile(r"(?:.*/)?[^/]+_(\d{17})\.parquet")


@dataclass(slots=True)
class TableTruth:
    """The decisions so far, and those that a reader can see."""

    lives: Callable[[str], bool]
    """Whether the writer of an instant relies on its heartbeat at this moment."""
    fenced: bool = True
    """Else a commit is decided by its completed file alone."""
    decided: list[Decided] = field(default_factory=list)
    visible: dict[str, str] = field(default_factory=dict)
    """By instant: its completed file, as it is called."""
    groups: dict[str, frozenset[FileGroup]] = field(default_factory=dict)
    """What each visible commit wrote."""
    covered: dict[str, tuple[frozenset[str], str]] = field(default_factory=dict)
    """By instant: what its latest conflict check covered, by name and up to a horizon."""
    prepared: set[str] = field(default_factory=set)
    pulled: str = ""
    """How far any reader of increments has come."""
    ended: set[str] = field(default_factory=set)
    """Instants whose heartbeat was ended."""

    @property
    def commits(self) -> list[str]:
        return [each.instant for each in self.decided if each.kind == COMMIT]

    @property
    def taken_back(self) -> set[str]:
        return {each.instant for each in self.decided if each.kind == ROLLBACK}

    def on_write(self, write: Write, after: StoredObject | None) -> None:
        """A write was applied."""
        request = write.request
        assert isinstance(request, Put | Delete)
        key = request.key
        if key == FENCE_KEY and after is not None:
            self._decide(parse_fence(after.body).head)
        elif match := _COMPLETED.fullmatch(key):
            self._complete(match[1], match[2] or match[1], key, after)
        elif match := _PENDING.fullmatch(key):
            self._pending(match[1], key, after)
        elif match := _DATA.fullmatch(key):
            if after is None:
                self._delete(match[1], key)
        elif key.startswith(HEARTBEATS):
            self._beat(key.removeprefix(HEARTBEATS), after)

    def _decide(self, entry: Decided) -> None:
        instant = entry.instant
        if entry.kind == COMMIT:
            if instant in self.taken_back:
                raise Violated(BOTH, instant)
            named, horizon = self.covered.get(instant, (frozenset(), ""))
            for earlier in self.commits:
                if earlier > horizon and earlier not in named:
                    raise Violated(STALE, f"{instant} over {earlier}")
        elif instant in self.commits or instant in self.visible:
            raise Violated(BOTH, instant)
        times = [each.completion for each in self.decided if each.completion]
        if entry.completion and times and entry.completion <= max(times):
            raise Violated(TIMES, f"{instant} at {entry.completion}")
        self.decided.append(entry)

    def _complete(self, instant: str, at: str, key: str, after: StoredObject | None) -> None:
        if after is None:
            raise Violated(LOST, instant)
        if not self.fenced and instant not in self.commits:
            self._decide(Decided(COMMIT, instant))
        commits = self.commits
        if instant not in commits:
            raise Violated(UNDECIDED, instant)
        if self.visible.setdefault(instant, key) != key:
            raise Violated(NAMES, f"{instant}: {key} and {self.visible[instant]}")
        for earlier in commits[: commits.index(instant)]:
            if earlier not in self.visible:
                raise Violated(GAP, f"{instant} before {earlier}")
        if at <= self.pulled:
            raise Violated(HORIZON, f"{instant} at {at}, a reader was at {self.pulled}")
        files = parse_commit(instant, key, after.body)
        self.groups[instant] = files.writes

    def _pending(self, instant: str, key: str, after: StoredObject | None) -> None:
        if after is not None:
            if key.endswith("inflight"):
                self.prepared.add(instant)
        elif instant in self.prepared and instant not in self.taken_back:
            raise Violated(DELETED, key)

    def _delete(self, instant: str, key: str) -> None:
        """A data file may be deleted if it was rolled back, or if a later slice is visible."""
        if instant in self.taken_back or instant not in self.prepared:
            return
        name = key.rpartition("/")[2]
        group = (key.rpartition("/")[0], name.partition("_")[0])
        if not any(at > instant and group in wrote for at, wrote in self.groups.items()):
            raise Violated(DELETED, key)

    def _beat(self, instant: str, after: StoredObject | None) -> None:
        if after is None:  # forgotten: there is nothing any more that could beat again
            self.ended.discard(instant)
            return
        ended = json.loads(after.body).get("ended") is True
        if not ended and instant in self.ended:
            raise Violated(REVIVED, instant)
        if ended:
            self.ended.add(instant)
            if self.lives(instant):
                raise Violated(LIVE, instant)

    # --- readers ---------------------------------------------------------------------------------

    def pull(self, start: str, end: str, groups: Mapping[FileGroup, Slice]) -> None:
        """A reader got the changes in (start, end]: rows of each commit there, or later ones."""
        for instant, key in self.visible.items():
            match = _COMPLETED.fullmatch(key)
            assert match is not None
            if start < (match[2] or instant) <= end:
                for group in self.groups[instant]:
                    if group not in groups or groups[group].instant < instant:
                        raise Violated(HORIZON, f"{instant} is not in ({start}, {end}]")
        self.pulled = max(self.pulled, end)
