"""The snapshot: which file slices a reader of the table sees.

It is made from completed commits alone, so it has no file of a refused, dead or running writer.
(Hudi's readers list folders instead, and drop what no completed instant named.) It never changes:
a reader that misses one of its files gets an error, never fewer rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from lockkit.table.errors import NotWritable, UnsupportedTable
from lockkit.table.format.base_file import Slice
from lockkit.table.format.layout import CommitFiles, FileGroup
from lockkit.table.format.properties import HUDI, TableConfig
from lockkit.table.format.timeline import instant_ms
from lockkit.table.occ.covered import CheckedHorizon

if TYPE_CHECKING:
    from lockkit.table.format.column_ids import ColumnIds

LATEST = "latest_schema"
"""In a commit: the columns with their ids, in JSON, if they are matched by them."""
KEYS_IN_MAX = 128
"""Updates without an insert after which a slice names none of the files before it."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The latest slice of every file group, as of a set of completed commits."""

    config: TableConfig
    """The table's properties."""
    covered: CheckedHorizon
    """The commits that it shows."""
    groups: Mapping[FileGroup, Slice]
    """The latest slice of each file group."""
    replaced: Mapping[FileGroup, str]
    """Replaced groups, with the instant that replaced them, if that is later than the horizon. (A
    later commit to a group that was replaced before would have failed its conflict check.) Groups
    of buckets stay here for ever: a bucket's next group must get a new id."""
    schema: str | None
    """The newest commit's Avro schema."""
    schema_from: str = ""
    """The commit that it is of."""
    ids: ColumnIds | None = None
    """If columns are matched by their ids."""

    @property
    def slices(self) -> list[Slice]:
        """In the order of partition and file id."""
        return [self.groups[group] for group in sorted(self.groups)]


def nothing(config: TableConfig) -> Snapshot:
    """The snapshot of no commits."""
    return Snapshot(config, CheckedHorizon(), MappingProxyType({}), MappingProxyType({}), None)


def refuse_renamed(mode: str, instant: str) -> None:
    """Columns are matched by their ids, which `listed` reads, and nothing here writes."""
    kind = NotWritable if mode == HUDI else UnsupportedTable
    why = "evolved the schema with hoodie.schema.on.read.enable: columns are matched by ids"
    raise kind(instant, why, "write it with Hudi, or copy it to a new table")


def advance(before: Snapshot, commits: Iterable[CommitFiles]) -> Snapshot:
    """The slices after some more commits. Pure; the order of the commits does not matter.

    The caller sets what the result covers, because it knows the listing."""
    groups, replaced = dict(before.groups), dict(before.replaced)
    schema, schema_from = before.schema, before.schema_from
    old_names = set[str]()
    for commit in sorted(commits, key=lambda each: instant_ms(each.instant)):
        if commit.extra.get(LATEST):
            refuse_renamed(before.config.mode, commit.instant)
        replaced.update(dict.fromkeys(commit.replaced, commit.instant))
        if commit.schema and schema_from <= commit.instant:
            schema, schema_from = commit.schema, commit.instant
        for stat in commit.stats:
            standing = groups.get(stat.group)
            if before.config.merged:
                from lockkit.table.read.log_slice import instant_of, slice_after

                groups[stat.group] = slice_after(before.config, standing, commit, stat)
                if stat.is_log and instant_of(stat.path) != commit.instant:
                    old_names.add(stat.path)
            elif standing is None or instant_ms(standing.instant) < instant_ms(commit.instant):
                same = standing and not stat.inserts and stat.previous == standing.instant
                keys_in = (*standing.keys_in, standing.path) if standing and same else ()
                keys_in = keys_in if len(keys_in) <= KEYS_IN_MAX else ()
                groups[stat.group] = Slice(*stat.group, commit.instant, stat.path, keys_in=keys_in)
    if old_names and before.config.names.layout == 2:
        from lockkit.table.read.log_slice import refuse_old_names

        refuse_old_names(groups.values(), old_names)
    return replace(
        before,
        groups=MappingProxyType({g: s for g, s in groups.items() if g not in replaced}),
        replaced=MappingProxyType(replaced),
        schema=schema,
        schema_from=schema_from,
    )
