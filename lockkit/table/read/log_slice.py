"""A file group with log files: a base file, if there is one, and the log files that are merged in.

A log file belongs to the newest base file whose instant is earlier than the log file's completion.
In version 6 its name says to which: `next_log`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from lockkit.table.errors import NotWritable, TableBlocked
from lockkit.table.format.base_file import Slice
from lockkit.table.format.layout import LOG_FILE, CommitFiles, WriteStat
from lockkit.table.format.properties import TableConfig
from lockkit.table.format.schema import RECORD_KEY
from lockkit.table.format.timeline import TimelineNames, instant_ms

if TYPE_CHECKING:
    from lockkit.table.read.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class VisibleInstants:
    """Which instants a reader sees: those named, and what is older than the timeline's first."""

    instants: frozenset[str]
    pending: frozenset[str]
    first: str
    until: str | None = None

    def __contains__(self, instant: object) -> bool:
        return isinstance(instant, str) and (
            instant in self.instants
            or (instant < self.first and instant not in self.pending
                and (self.until is None or instant_ms(instant) <= instant_ms(self.until)))
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class LogSlice(Slice):
    """A base file, if `path` is not empty, and the log files whose rows are merged into it."""

    logs: tuple[str, ...]
    ordering: tuple[str, ...]
    completed: VisibleInstants
    names: TimelineNames
    times: tuple[str, ...] = ()
    """When each of `logs` was completed, where the commits were read; otherwise nothing."""
    key: str = RECORD_KEY
    """The column of the keys. A text column of the table that holds them need not be read twice."""
    next_base: str = ""
    """Version 6: the pending compaction whose base file the next log file will be behind."""
    no_next: str = ""
    """Version 6: why it is not known. A plan that may be of this slice cannot be read."""

    def is_of_one_instant(self, log: str) -> bool:
        """Whether the name of a log file says which instant wrote it, not which base file it is of.
        """
        instant = instant_of(log)
        return self.names.layout == 2 and instant in self.completed and instant != self.instant


def instants_of(of: Slice) -> frozenset[str]:
    """The commits that its files are of."""
    return frozenset((of.instant,)) | (
        of.completed.instants if isinstance(of, LogSlice) else frozenset()
    )


def refuse_old_names(slices: Iterable[Slice], paths: Collection[str]) -> None:
    """Raise if one of `slices` has one of these log files of a table of version 8 or 9: an instant
    wrote it that its name does not say.

    Hudi leaves such files behind that upgrades a table of version 6 in the same call in which it
    restores it. The folders show which rows are in them (`listed`), a commit alone does not.
    """
    for of in slices:
        for path in of.logs if isinstance(of, LogSlice) else ():
            if path in paths:
                raise NotWritable(
                    path, "is named after its base file, as log files of version 6 are, and the "
                    "table has a later version", "let Hudi compact the table, then write",
                )  # fmt: skip


def without_logs(of: Slice) -> Slice:
    return Slice(of.partition, of.file_id, of.instant, of.path)


def log_slice(config: TableConfig, base: Slice, logs: Iterable[tuple[str, str]]) -> Slice:
    """The slice of `base`, whose path may be empty, and of `logs`: (path, completion time)."""
    logs = sorted(logs)
    if not logs:
        return without_logs(base)
    return LogSlice(
        base.partition, base.file_id, base.instant, base.path, tuple(path for path, _ in logs),
        (config.precombine,) if config.precombine else (),
        VisibleInstants(frozenset(instant_of(path) for path, _ in logs), frozenset(), ""),
        config.names, tuple(at for _, at in logs),
        RECORD_KEY if config.composite or not config.record_key else config.record_key,
    )  # fmt: skip


def instant_of(path: str) -> str:
    """The instant in a log file's name."""
    return place_of(path)[0]


def place_of(path: str) -> tuple[str, int]:
    """The instant and the version in a log file's name."""
    found = LOG_FILE.fullmatch(path.rpartition("/")[2])
    assert found is not None, path
    return found[2], int(found[3])


def slice_instant(of: Slice) -> str:
    """Version 6: the instant in the names of a slice's log files.

    It is that of its base file, or of the commit that began the file group with a log file.
    """
    if of.instant or not isinstance(of, LogSlice):
        return of.instant
    return max((at for at in map(instant_of, of.logs) if at in of.completed), default="")


def next_log(of: Slice | None, instant: str) -> tuple[str, int]:
    """Version 6: `place_of` the log file that the commit `instant` adds to a file group.

    Readers take the log files of a slice by their versions. Once a compaction is planned, the log
    files that follow are of its slice, which has no base file yet.
    """
    if of is None:
        return instant, 1
    if unknown := getattr(of, "no_next", ""):
        raise TableBlocked(of.file_id, f"cannot get a log file: {unknown}")
    base = getattr(of, "next_base", "") or slice_instant(of) or instant
    every = map(place_of, of.logs if isinstance(of, LogSlice) else ())
    return base, 1 + max((version for at, version in every if at == base), default=0)


def with_logs(before: Snapshot, commit: CommitFiles) -> Snapshot:
    """Version 6: the table after a commit that wrote nothing but log files."""
    groups, later = dict(before.groups), before.covered.later | {commit.instant}
    config = before.config
    for stat in commit.stats:
        of = groups.get(stat.group) or Slice(*stat.group, "", "")
        seen = of.completed if isinstance(of, LogSlice) else VisibleInstants(later, frozenset(), "")
        logs = of.logs if isinstance(of, LogSlice) else ()
        groups[stat.group] = LogSlice(
            *stat.group, of.instant, of.path, (*logs, stat.path),
            (config.precombine,) if config.precombine else (),
            replace(seen, instants=seen.instants | {commit.instant}), config.names,
        )  # fmt: skip
    return replace(
        before, groups=MappingProxyType(groups), covered=replace(before.covered, later=later),
        schema=commit.schema or before.schema,
        schema_from=commit.instant if commit.schema else before.schema_from,
    )  # fmt: skip


def slice_after(
    config: TableConfig, standing: Slice | None, commit: CommitFiles, stat: WriteStat
) -> Slice:
    """The slice that a commit leaves of a file group, if it or `standing` has log files.

    Commits come in any order: a compaction may complete after a commit that began later.
    """
    base = standing or Slice(stat.partition, stat.file_id, "", "")
    logs = list(zip(base.logs, base.times, strict=True)) if isinstance(base, LogSlice) else []
    if stat.is_log:
        logs.append((stat.path, commit.completion))
    elif not base.instant or instant_ms(base.instant) < instant_ms(commit.instant):
        base = Slice(stat.partition, stat.file_id, commit.instant, stat.path)
    return log_slice(config, base, [each for each in logs if each[1] > base.instant])
