"""hoodie.properties: what kind of table this is, and whether lockkit may write to it.

A file of Java properties. What is not understood is refused with its reason: a writer that guesses
here makes a table that somebody else's reader shows wrongly, or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from lockkit.errors import TableError
from lockkit.protocol.outcome import Found, Missing, NotModified, Version
from lockkit.runtime import Procedure
from lockkit.runtime.proven import read
from lockkit.table.errors import NotWritable
from lockkit.table.format.java_properties import PROPERTIES_BYTES_MAX, parse_properties
from lockkit.table.format.property_keys import (
    BY_COMMIT,
    BY_EVENT,
    COMPLEX,
    COPY_ON_WRITE,
    DROP_COLUMNS,
    FENCE_FORMAT,
    KEY_CLASS,
    KEY_CLASSES,
    KEY_TYPE,
    LATEST_PAYLOAD,
    LAYOUTS,
    MERGE_MODE,
    MERGE_ON_READ,
    METADATA,
    ORDERING,
    PAYLOAD,
    PRECOMBINE,
    TIMEZONE,
    TYPE,
    checksum,
    key_type,
)
from lockkit.table.format.property_keys import FENCED as FENCED
from lockkit.table.format.property_keys import GROUP as GROUP
from lockkit.table.format.property_keys import HUDI as HUDI
from lockkit.table.format.property_keys import MODE as MODE
from lockkit.table.format.property_keys import SERIAL as SERIAL
from lockkit.table.format.timeline import HOODIE, V6, V9, TimelineNames, instant_ms

PROPERTIES_KEY = HOODIE + "hoodie.properties"
BACKUP_KEY = PROPERTIES_KEY + ".backup"
"""Beside it while Hudi rewrites it: copied there, deleted, written anew, the copy deleted."""
SWITCHES = "lockkit.commit.mode.switches"
ACCEPTED = "lockkit.instant.accepted"
BUCKETS = "lockkit.bucket.count"
BUCKETS_MAX = 10_000
HIVE_STYLE = "hoodie.datasource.write.hive_style_partitioning"
URLENCODE = "hoodie.datasource.write.partitionpath.urlencode"
_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableConfig:
    """The properties of a table; of several keys or fields the names have commas."""

    name: str
    record_key: str
    partition_by: str | None = None
    precombine: str | None = None
    database: str = ""
    version: int = 9
    """`hoodie.table.version`: 9, Hudi's current default, or 6.

    Incremental readers of version 9 follow completion times, so no pending instant holds them back.
    In version 6 they stop at the first pending commit.
    """
    mode: str = FENCED
    """`fenced`: only lockkit writes it. `hudi`: others may, by Hudi's contract."""
    commit: str = SERIAL
    """`serial`: one commit at a time, under the lock; `group`: writers decide together."""
    buckets: int = 4
    """Bucketed file groups in each partition; where an upsert puts keys that it finds nowhere."""
    hive_style: bool = True
    """Whether a partition's folder is called `region=EU`, or `EU`."""
    urlencode: bool = True
    """Whether its value is escaped; if not, a slash in it makes one more folder."""
    archive: str = "archived"
    """Version 6: the folder under `.hoodie/` that old instants are moved to."""
    switches: int = 0
    """How often the mode was switched. A checkpoint or a handle of another count is of no use: in
    `hudi` mode a commit may complete below the horizon that it remembers."""

    table_type: str = COPY_ON_WRITE
    accepted: str = field(default="", compare=False)
    """An instant far ahead of all clocks from which new ones go on (`ahead.py`). It changes nothing
    of what the table is, so no transaction that is under way has to begin again."""
    metadata: bool = field(default=False, compare=False)
    """Mode `hudi`: Hudi's metadata table is on; a commit switches it off (`metadata_off.py`)."""
    named: bool = False
    """Of one key, and one partition field or none: keys are `id:7`, by `ComplexKeyGenerator`."""

    def __post_init__(self) -> None:
        for what, name in (("record key", self.record_key), ("partition field", self.partition_by),
                           ("precombine field", self.precombine)):  # fmt: skip
            fields = [] if name is None else name.split(",")
            most = 1 if what == "precombine field" else len(set(fields))
            if len(fields) > most or not all(map(_FIELD.fullmatch, fields)):
                raise TableError(f"{name!r} cannot be the {what}: name columns by plain names")
        if not self.name or not self.name.isprintable():
            raise TableError(f"{self.name!r} cannot be a table's name: use printable characters")
        if str(self.version) not in LAYOUTS or self.mode not in (FENCED, HUDI):
            raise TableError(
                f"version {self.version!r}, mode {self.mode!r}: a table has version 6 or 9, and "
                f"mode {FENCED} (only lockkit writes it) or {HUDI}"
            )
        if self.commit != SERIAL:
            from lockkit.table.format.refusals import refuse_commit

            refuse_commit(self.commit, self.version, self.mode, self.table_type)
        if not _FOLDER.fullmatch(self.archive):
            raise TableError(f"{self.archive[:60]!r} is not the name of a folder for old instants")
        if self.table_type not in (COPY_ON_WRITE, MERGE_ON_READ) or (
            self.merged and (self.version, self.mode) != (9, FENCED)
        ):
            raise TableError(
                f"{self.table_type!r}, version {self.version}, mode {self.mode}: a table's type is "
                f"{COPY_ON_WRITE}, or {MERGE_ON_READ} in version 9 and mode {FENCED}"
            )
        if not 1 <= self.buckets <= BUCKETS_MAX:
            raise TableError(f"{self.buckets} buckets in a partition: choose 1 to {BUCKETS_MAX}")

    @property
    def record_keys(self) -> list[str]:
        return self.record_key.split(",")

    @property
    def partition_fields(self) -> list[str]:
        return self.partition_by.split(",") if self.partition_by else []

    @property
    def composite(self) -> bool:
        """Whether a row's key names its fields: `id:7,kind:a`, and not `7`."""
        return self.named or "," in self.record_key + (self.partition_by or "")

    @property
    def merged(self) -> bool:
        """Whether it is merge-on-read: its upserts write log files."""
        return self.table_type == MERGE_ON_READ

    @property
    def action(self) -> str:
        """The action of a commit that replaces nothing."""
        return "deltacommit" if self.merged else "commit"

    @property
    def names(self) -> TimelineNames:
        return V6 if self.version == 6 else V9

    @property
    def archive_prefix(self) -> str:
        """The prefix of archived instants."""
        return HOODIE + (f"{self.archive}/" if self.version == 6 else "timeline/history/")


# --- Hudi's keys --------------------------------------------------------------------------------


def to_properties(config: TableConfig) -> dict[str, str]:
    """The keys that Hudi (0.14 and later; 1.1 and later for version 9) and hudi-rs look for."""
    keys = {
        "hoodie.table.name": config.name,
        TYPE: config.table_type,
        "hoodie.table.version": str(config.version),
        "hoodie.timeline.layout.version": LAYOUTS[str(config.version)],
        # Unset, Hudi's writers put local wall time into instants and hudi-rs reads them as UTC.
        TIMEZONE: "UTC",
        "hoodie.table.recordkey.fields": config.record_key,
        "hoodie.table.base.file.format": "PARQUET",
        "hoodie.table.checksum": str(checksum(config.name, config.database)),
        "hoodie.populate.meta.fields": "true",
        HIVE_STYLE: str(config.hive_style).lower(),
        URLENCODE: str(config.urlencode).lower(),
        DROP_COLUMNS: "false",
        MODE: config.mode,
        **({FENCE_FORMAT: "3"} if config.commit == GROUP else {}),
        **({SWITCHES: str(config.switches)} if config.switches else {}),
        **({ACCEPTED: config.accepted} if config.accepted else {}),
        BUCKETS: str(config.buckets),
        **(_only_v6(config) if config.version == 6 else _only_v9(config)),
    }
    if config.partition_by:
        # hudi-rs shows an *empty* table, without an error, where this is missing.
        keys["hoodie.table.partition.fields"] = config.partition_by
    if config.precombine:
        keys[PRECOMBINE if config.version == 6 else ORDERING] = config.precombine
    if config.database:
        keys["hoodie.database.name"] = config.database
    return keys


def _only_v6(config: TableConfig) -> dict[str, str]:
    return {
        "hoodie.archivelog.folder": config.archive,
        KEY_CLASS: KEY_CLASSES[key_type(config.record_key, config.partition_by, config.named)],
    }


def _only_v9(config: TableConfig) -> dict[str, str]:
    return {
        "hoodie.table.initial.version": "9",
        "hoodie.table.format": "native",
        "hoodie.timeline.path": "timeline",
        "hoodie.timeline.history.path": "history",
        "hoodie.archivelog.folder": "history",
        KEY_TYPE: key_type(config.record_key, config.partition_by, config.named),
        MERGE_MODE: BY_EVENT if config.precombine else BY_COMMIT,
    }


def from_properties(keys: Mapping[str, str]) -> TableConfig:
    """The config, or a `TableError` that says what lockkit does not write, and what to do."""
    keys = {key: value.strip() for key, value in keys.items()}
    with suppress(LookupError, ValueError, TableError):
        if to_properties(config := _config(keys)) == keys:
            return config  # as lockkit itself writes them
    from lockkit.table.format.refusals import reasons

    if found := "; ".join(reasons(keys)):
        raise NotWritable(f"{PROPERTIES_KEY}: {found}")
    return _config(keys)


def _config(keys: Mapping[str, str]) -> TableConfig:
    version = int(keys["hoodie.table.version"])
    record_key = keys["hoodie.table.recordkey.fields"].replace(" ", "")
    partition_by = keys.get("hoodie.table.partition.fields", "").replace(" ", "")
    complex_keys = {COMPLEX, KEY_CLASSES[COMPLEX]} & {keys.get(KEY_TYPE), keys.get(KEY_CLASS)}
    return TableConfig(
        name=keys["hoodie.table.name"], record_key=record_key, partition_by=partition_by or None,
        named=bool(complex_keys) and "," not in record_key + partition_by,
        precombine=_precombine(keys),
        database=keys.get("hoodie.database.name", ""),
        version=version, table_type=keys[TYPE], mode=keys.get(MODE, HUDI),
        commit=GROUP if keys.get(FENCE_FORMAT) == "3" else SERIAL,
        switches=_number(keys.get(SWITCHES, "0")),
        accepted=_instant(keys.get(ACCEPTED, "")),
        metadata=any(map(keys.get, METADATA)), buckets=_number(keys.get(BUCKETS, "4")),
        hive_style=keys.get(HIVE_STYLE, "false").lower() == "true",
        urlencode=keys.get(URLENCODE, "false").lower() == "true",
        archive=keys.get("hoodie.archivelog.folder", "archived") if version == 6 else "archived",
    )


def _instant(text: str) -> str:
    """The instant; empty if it is none."""
    try:
        instant_ms(text)
    except ValueError:
        return ""
    return text


def _number(text: str) -> int:
    """The number; 0, which is no count of buckets, if it is none."""
    return int(text) if text.isdecimal() and len(text) < 9 else 0


def _precombine(keys: Mapping[str, str]) -> str | None:
    """What orders the versions of a row; None: the later commit wins.

    Tables of Hudi before 1.0 say so by their payload; Hudi 1.x infers the merge mode from it.
    """
    by_commit = keys.get(MERGE_MODE) == BY_COMMIT or (
        not keys.get(MERGE_MODE) and keys.get(PAYLOAD) == LATEST_PAYLOAD
    )
    # Hudi 1.1 writes `ordering.fields` into tables of version 6 too.
    return None if by_commit else keys.get(ORDERING) or keys.get(PRECOMBINE) or None


# --- procedures ---------------------------------------------------------------------------------


def load_config() -> Procedure[tuple[TableConfig, Version]]:
    """The table's config, and the version of its file."""
    match (yield from read(PROPERTIES_KEY, limit=PROPERTIES_BYTES_MAX)):
        case Found(body, version):
            return from_properties(parse_properties(body)), version
        case _missing:
            yield from refuse_half_rewritten()
            raise TableError(
                f"there is no table here: {PROPERTIES_KEY} is missing; make one with create_table, "
                "or check the address"
            )


def recheck_config(config: TableConfig, version: Version) -> Procedure[TableConfig]:
    """The table's config; refuse a table that is no longer what the transaction began on.

    Asked under the lock at every commit: a Hudi 1.x writer upgrades a version 6 table by default
    and moves its timeline elsewhere (hoodie.write.auto.upgrade). Costs one conditional read.
    """
    match (yield from read(PROPERTIES_KEY, unless=version, limit=PROPERTIES_BYTES_MAX)):
        case NotModified():
            return config
        case Missing():
            yield from refuse_half_rewritten()
            raise TableError(f"{PROPERTIES_KEY} is gone: the table was deleted under this commit")
        case Found(body, _):
            standing = from_properties(parse_properties(body))
            if standing != config:
                raise TableError(
                    f"the table changed under this commit: it was {config}, and is {standing}; "
                    "begin again"
                )
            return standing


def refuse_half_rewritten() -> Procedure[None]:
    """Raise while Hudi rewrites the properties: they are deleted in between."""
    if isinstance((yield from read(BACKUP_KEY)), Found):
        raise TableError(
            f"{BACKUP_KEY} is there: Hudi is rewriting {PROPERTIES_KEY}; try again in a moment, "
            "and if it stays, let a Hudi writer recover the table: its own died in the middle"
        )
