"""Adoption: what keeps lockkit from writing a table that Hudi made, and what can be changed there.

Only hoodie.properties is changed, under the table's lock and over exactly the version that was
read; a copy of the file stays beside it. Nothing is changed unless the table can be written then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from lockkit.protocol.outcome import Found
from lockkit.runtime import Note, Procedure, WallMs
from lockkit.runtime.proven import create, listing, read
from lockkit.table.errors import NotWritable, TableChanged, TableError
from lockkit.table.format.column_ids import HISTORY_FILE, SCHEMAS_PREFIX
from lockkit.table.format.properties import (
    PROPERTIES_KEY,
    from_properties,
    no_table,
    refuse_half_rewritten,
)
from lockkit.table.format.property_keys import (
    BLOCK_KEY,
    BLOCKED,
    BUCKET_INDEX,
    FENCED,
    HASHED_KEY,
    INDEX,
    LAYOUT,
    METADATA,
    MODE,
    NUM_BUCKETS,
    PROPERTIES_BYTES_MAX,
    RECORD_KEYS,
    TIMEZONE,
    no_metadata,
    parse_properties,
)
from lockkit.table.format.readable import LAYOUT_OF
from lockkit.table.format.refusals import reasons
from lockkit.table.format.timeline import (
    HOODIE,
    V6,
    V9,
    Timeline,
    instant_ms,
    instant_of,
    load_timeline,
)
from lockkit.table.occ.commit import trust
from lockkit.table.occ.rewriting import block_metadata, off, rewrite_properties
from lockkit.table.read.bucket_groups import OTHER_BUCKETS

KEPT_PREFIX = HOODIE + ".lockkit/"
LOCKS = "org.apache.hudi.client.transaction.lock."
UNDER_WAY = frozenset({"commit", "replacecommit", "deltacommit"})


@dataclass(frozen=True, slots=True)
class Fix:
    """One change of the properties."""

    what: str
    means: str
    changes: Mapping[str, str]
    blocked: str = ""
    """Why it cannot be made now, and when it can."""


@dataclass(frozen=True, slots=True)
class Adoption:
    """A table as found: what to change, and what nothing here changes."""

    keys: Mapping[str, str]
    fixes: tuple[Fix, ...]
    remaining: tuple[str, ...]
    """Reasons not to write the table that no fix removes."""
    writable: bool
    """Whether it is written as it is."""
    changed: tuple[str, ...] = ()
    """The changes that were made, and where the earlier properties are."""

    @property
    def obstacles(self) -> list[str]:
        """What has to change elsewhere, or later, before anything is changed here."""
        return [*self.remaining, *(each.blocked for each in self.fixes if each.blocked)]

    @property
    def changes(self) -> dict[str, str]:
        return {key: value for each in self.fixes for key, value in each.changes.items()}

    @property
    def then(self) -> dict[str, str]:
        """The properties with all fixes."""
        return {**self.keys, **self.changes}


def plan_adoption(buckets: Fix | None = None) -> Procedure[Adoption]:
    """Reads only. Raises `TableError` where no table is there. `buckets` is of `find_buckets`."""
    match (yield from read(PROPERTIES_KEY, limit=PROPERTIES_BYTES_MAX)):
        case Found(body, _):
            keys = {key: value.strip() for key, value in parse_properties(body).items()}
        case _missing:
            yield from refuse_half_rewritten()
            raise no_table()
    layout = keys.get("hoodie.timeline.layout.version")
    names = V6 if layout == "1" else V9
    now = (yield from load_timeline(names)) if layout in LAYOUT_OF.values() else None
    unsaid = () if buckets is None else (buckets,)
    blocked = isinstance((yield from read(BLOCK_KEY)), Found) or not _to_block(keys)
    fixes = (*_fixes(keys, now, (yield WallMs()), blocked), *unsaid)
    changes = {key: value for each in fixes for key, value in each.changes.items()}
    standing = (*(yield from _numbered_columns()), *(yield from _other_buckets()))
    writable = not unsaid and not standing and not list(_remaining(keys))
    remaining = (*_remaining({**keys, **changes}), *standing)
    return Adoption(keys, fixes, remaining, writable)


def adopt(
    buckets: Fix | None = None, *, believe: Callable[[], None] = trust
) -> Procedure[Adoption]:
    """Make every fix, in one write, while holding the table's lock; all of them, or none.

    Raises `NotWritable` with the obstacles that stay.
    """
    found = yield from plan_adoption(buckets)
    if found.obstacles:
        raise NotWritable(PROPERTIES_KEY, f"says: {'; '.join(found.obstacles)}")
    if not found.fixes:
        return found
    wall_ms = yield WallMs()
    kept = f"{KEPT_PREFIX}hoodie.properties.{instant_of(wall_ms)}"
    match (yield from read(PROPERTIES_KEY, limit=PROPERTIES_BYTES_MAX)):
        case Found(body, _):
            yield from create(kept, body)

    def fixed(keys: Mapping[str, str]) -> dict[str, str]:
        standing = {key: value.strip() for key, value in keys.items()}
        if standing == {**found.keys, **found.changes}:
            return {}  # an earlier try, whose answer was lost
        if standing != found.keys:
            raise TableChanged(
                PROPERTIES_KEY, "was changed by another program; nothing was changed here",
                "run this again",
            )  # fmt: skip
        return found.changes

    if _to_block(found.keys):
        yield from block_metadata()
    yield from rewrite_properties(fixed, believe)
    changed = [f"{key}={value}" for key, value in sorted(found.changes.items())]
    for each in changed:
        yield Note("note", {"text": f"{PROPERTIES_KEY}: {each}"})
    return Adoption(found.keys, found.fixes, (), True, (*changed, f"as it was: {kept}"))


def writer_options(keys: Mapping[str, str], url: str) -> dict[str, str]:
    """What Hudi's writers of this table must say. They take the time zone from the table.

    Nothing in the mode fenced, which they do not know.
    """
    if keys.get(MODE) == FENCED:
        return {}
    on_disk = url.startswith("file:")
    return {
        "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
        # Hudi's storage lock knows object stores only.
        "hoodie.write.lock.provider":
            LOCKS + ("FileSystemBasedLockProvider" if on_disk else "StorageBasedLockProvider"),
        "hoodie.cleaner.policy.failed.writes": "LAZY",
        "hoodie.write.table.version": keys.get("hoodie.table.version", ""),
        "hoodie.write.auto.upgrade": "false",
        "hoodie.metadata.enable": "false",
        **({INDEX: keys[INDEX], "hoodie.index.bucket.engine": "SIMPLE",
            NUM_BUCKETS: keys.get(NUM_BUCKETS, "")} if keys.get(INDEX) == BUCKET_INDEX else {}),
    }  # fmt: skip


# --- what can be changed --------------------------------------------------------------------------


def _to_block(keys: Mapping[str, str]) -> bool:
    return keys.get(MODE) != FENCED and BLOCKED.items() <= no_metadata(keys.get(LAYOUT, "")).items()


def _fixes(
    keys: Mapping[str, str], now: Timeline | None, wall_ms: int, blocked: bool
) -> Iterator[Fix]:
    fenced, none = keys.get(MODE) == FENCED, no_metadata(keys.get(LAYOUT, ""))
    if indexed := [key for key in METADATA if keys.get(key)]:
        yield Fix(
            f"switch the metadata table off ({keys[indexed[0]][:80]})",
            "Hudi's readers list the folders instead; .hoodie/metadata stays, and nobody reads it. "
            "Hudi's Spark writers keep it off; from version 8 on, Hudi refuses any other writer "
            "that would make it again (\"Found pending restore\")",
            off(keys),
            "Hudi wrote to a table in the mode fenced; first find out which writer did"
            if fenced else "",
        )  # fmt: skip
    elif not fenced and not (blocked and none.items() <= keys.items()):
        yield Fix(
            "keep Hudi's writers from making a metadata table (hoodie.metadata.enable=false)",
            "with their defaults they make one, and Hudi's readers would miss what lockkit commits "
            "meanwhile. Hudi's Spark writers obey the property; from version 8 on, Hudi refuses "
            "any other writer that would make one (\"Found pending restore\")",
            {} if none.items() <= keys.items() else none,
        )  # fmt: skip
    key = keys.get(RECORD_KEYS, "")
    if not fenced and key and keys.get(INDEX) == BUCKET_INDEX and not keys.get(HASHED_KEY):
        yield Fix(
            f"name the record key beside the bucket index ({HASHED_KEY})",
            "Hudi's procedures take both from the table, and CALL create_savepoint and CALL "
            "run_compaction end with a NullPointerException without it", {HASHED_KEY: key},
        )  # fmt: skip
    if keys.get(TIMEZONE, "").upper() != "UTC":
        yield Fix(
            f"let new instants be in UTC (now {keys.get(TIMEZONE) or 'not set, that is LOCAL'})",
            "older instants stay as they are, in local time. Hudi's writers and readers take the "
            "zone from the table: restart them, and pass them no hoodie.table.timeline.timezone",
            {TIMEZONE: "UTC"},
            "" if now is None else _too_early(now, wall_ms),
        )


def _too_early(now: Timeline, wall_ms: int) -> str:
    """Why an instant in UTC would not be later than all others, or would not stay it."""
    if running := sorted(each for each, action in now.pending.items() if action in UNDER_WAY):
        return (
            f"{running[0]} is under way in local time: let its writer finish, or stop it and let "
            "Hudi roll it back, then run this again"
        )
    newest = max((*now.completed, *now.pending, *now.completion.values()), default="")
    if newest and instant_ms(newest) > wall_ms:
        minutes = (instant_ms(newest) - wall_ms) // 60_000 + 1
        return (
            f"the newest instant, {newest}, is in a zone ahead of UTC: stop the table's writers, "
            f"and run this again in {minutes} minutes"
        )
    return ""


def _numbered_columns() -> Procedure[list[str]]:
    """The obstacle of a table whose columns are matched by their ids, if it is one."""
    if not any(HISTORY_FILE.fullmatch(each.key) for each in (yield from listing(SCHEMAS_PREFIX))):
        return []
    why = "columns were changed with hoodie.schema.on.read.enable, and are matched by ids: lockkit "
    return [why + "reads the table, and cannot write it; write it with Hudi, or copy its rows"]


def _other_buckets() -> Procedure[list[str]]:
    """The obstacle of a table whose keys are in other places than its file ids say."""
    if not (yield from listing(OTHER_BUCKETS)):
        return []
    why = "is there: the table uses consistent hashing, or a number of buckets for each partition"
    return [f"{OTHER_BUCKETS} {why}, and lockkit supports neither; write it with Hudi"]


def _remaining(keys: Mapping[str, str]) -> Iterator[str]:
    found = list(reasons(keys))
    yield from found
    if not found:
        try:
            from_properties(keys)
        except TableError as error:
            yield str(error)
