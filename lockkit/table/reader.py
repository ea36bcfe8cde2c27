"""The snapshot: which file slices a reader of the table sees.

Made from completed commits alone, so that no file of a refused, dead or running writer is ever in
it. (Hudi's readers list folders instead, and drop what no completed instant named.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from lockkit.clock import Clock
from lockkit.drive import Procedure, run
from lockkit.outcome import Found
from lockkit.stores import Store
from lockkit.table.ask import TableError, listing, read
from lockkit.table.basefile import Slice, plain, read_base_file
from lockkit.table.conflict import refuse_unreadable
from lockkit.table.layout import CommitFiles, FileGroup, parse_commit
from lockkit.table.properties import TableConfig, load_config
from lockkit.table.timeline import HOODIE, Names, Timeline, instant_ms, load_timeline

if TYPE_CHECKING:
    import pyarrow as pa

ARCHIVE_PREFIX = HOODIE + "archived/"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The latest slice of every file group, as of a set of completed commits."""

    config: TableConfig
    instants: frozenset[str]
    groups: Mapping[FileGroup, Slice]
    replaced: frozenset[FileGroup]
    schema: str | None
    """The newest commit's Avro schema."""

    @property
    def slices(self) -> list[Slice]:
        """In the order of partition and file id."""
        return [self.groups[group] for group in sorted(self.groups)]


def load_snapshot(
    *, covering: frozenset[str] | None = None, since: Snapshot | None = None
) -> Procedure[Snapshot]:
    """The table as of now, or of exactly the instants in `covering`: a transaction's `base`.

    Reads each commit's file once; with `since`, an earlier snapshot, only those of later commits.
    """
    config, _version = yield from load_config()
    now = yield from load_timeline(config.names)
    refuse_unreadable(now, known=frozenset(now.completed))
    wanted = [each for each in now.commits if covering is None or each in covering]
    if since is None or since.config != config or not since.instants <= set(wanted):
        since = Snapshot(config, frozenset(), MappingProxyType({}), frozenset(), None)
        archived = yield from listing(ARCHIVE_PREFIX)
        if archived:
            raise TableError(
                f"{len(archived)} files in {ARCHIVE_PREFIX}: commits that are archived are not "
                "read here yet, and without them rows would be missing; read this table with Hudi"
            )
    commits = []
    for instant in wanted:
        if instant not in since.instants:
            commits.append((yield from read_commit(config.names, instant, now)))
    return advance(since, commits)


def advance(before: Snapshot, commits: Iterable[CommitFiles]) -> Snapshot:
    """The snapshot after some more commits. Pure; the order of the commits does not matter."""
    commits = sorted(commits, key=lambda each: instant_ms(each.instant))
    groups, replaced, schema = dict(before.groups), set(before.replaced), before.schema
    for commit in commits:
        replaced |= commit.replaced
        schema = commit.schema or schema
        for stat in commit.stats:
            standing = groups.get(stat.group)
            if standing is None or instant_ms(standing.instant) < instant_ms(commit.instant):
                groups[stat.group] = Slice(stat.partition, stat.file_id, commit.instant, stat.path)
    return Snapshot(
        config=before.config,
        instants=before.instants | {commit.instant for commit in commits},
        groups=MappingProxyType({g: s for g, s in groups.items() if g not in replaced}),
        replaced=frozenset(replaced),
        schema=schema,
    )


def read_commit(names: Names, instant: str, now: Timeline) -> Procedure[CommitFiles]:
    """What a commit did that `now` shows as completed."""
    key = names.completed(instant, now.completed[instant], now.completion.get(instant))
    match (yield from read(key)):
        case Found(body, _):
            return parse_commit(instant, key, body)
        case _missing:
            raise TableError(
                f"{key} was listed and is gone: it was rolled back or archived; begin again"
            )


def read_slice(of: Slice) -> Procedure[pa.Table]:
    """A slice's rows, meta columns included."""
    match (yield from read(of.path)):
        case Found(body, _):
            return read_base_file(of.path, body)
        case _missing:
            raise TableError(
                f"{of.path}, of commit {of.instant}, is gone: a cleaner took it, or the table was "
                "deleted under this reader; take a new snapshot"
            )


def read_table(store: Store, clock: Clock | None = None, *, meta: bool = False) -> pa.Table:
    """Every row of the latest snapshot; with `meta`, the meta columns too."""
    import pyarrow as pa

    clock = clock or Clock()
    found: Snapshot = run(load_snapshot(), store, clock)
    tables = [run(read_slice(each), store, clock) for each in found.slices]
    if not tables:
        return pa.table({})
    rows = pa.concat_tables(tables, promote_options="default")
    return rows if meta else plain(rows)
