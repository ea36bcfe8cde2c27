"""hoodie.properties: what kind of table this is, and whether lockkit may write to it.

It is a file of Java properties. An unknown setting is refused with a reason: a writer that ignored
it could make a table that other readers show wrongly, or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from lockkit.protocol.outcome import Found, Missing, NotModified, Version
from lockkit.runtime import Procedure
from lockkit.runtime.proven import read
from lockkit.table.errors import NoTable, NotWritable, RefusedOption, TableChanged, TableError
from lockkit.table.format.property_keys import (
    BUCKET_INDEX,
    BUCKETS,
    BUCKETS_MAX,
    BY_COMMIT,
    BY_EVENT,
    COMPLEX,
    COPY_ON_WRITE,
    DROP_COLUMNS,
    ELSEWHERE,
    EVENT_PAYLOAD,
    FENCE_FORMAT,
    FOLDER,
    GROUPED,
    HASHED_KEY,
    HIVE_STYLE,
    INDEX,
    KEY_CLASS,
    KEY_CLASSES,
    KEY_TYPE,
    LATEST_PAYLOAD,
    LAYOUT,
    LAYOUTS,
    LOG_FORMAT,
    LOG_FORMATS,
    MERGE_MODE,
    MERGE_ON_READ,
    METADATA,
    NUM_BUCKETS,
    ORDERING,
    PARTITION_FIELDS,
    PAYLOAD,
    PLAIN_NAME,
    PRECOMBINE,
    PROPERTIES_BYTES_MAX,
    RECORD_INDEX,
    RECORD_KEYS,
    TIMEZONE,
    TYPE,
    URLENCODE,
    checksum,
    key_type,
    no_metadata,
    parse_properties,
    precombine_of,
)
from lockkit.table.format.property_keys import FENCED as FENCED
from lockkit.table.format.property_keys import GROUP as GROUP
from lockkit.table.format.property_keys import HUDI as HUDI
from lockkit.table.format.property_keys import MODE as MODE
from lockkit.table.format.property_keys import SERIAL as SERIAL
from lockkit.table.format.timeline import HOODIE, V6, V9, TimelineNames, instant_ms

PROPERTIES_KEY = HOODIE + "hoodie.properties"
BACKUP_KEY = PROPERTIES_KEY + ".backup"
"""Exists while Hudi rewrites the file: Hudi copies it here, deletes it and writes it again."""
SWITCHES = "lockkit.commit.mode.switches"
ACCEPTED = "lockkit.instant.accepted"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableConfig:
    """The properties of a table. Commas separate several keys or fields.

    :param name, database: the table's, for catalogs.
    :param record_key, precombine: the key's field; the field that orders versions of a row, if any.
    :param partition_by: the partition's field; None: no partitions.
    :param table_type: COPY_ON_WRITE or MERGE_ON_READ.
    """

    name: str
    record_key: str
    partition_by: str | None = None
    precombine: str | None = None
    database: str = ""
    version: int = 9
    """`hoodie.table.version`: 9, Hudi's default, 8 or 6. Incremental readers of version 8 and 9
    follow completion times; in version 6 they stop at the first pending commit."""
    mode: str = FENCED
    """`fenced`: only lockkit writes it. `hudi`: other writers may, by Hudi's rules."""
    commit: str = SERIAL
    """`serial`: one commit at a time, under the lock; `group`: writers decide together."""
    buckets: int = 4
    """Bucketed file groups in each partition, to which upserts add new keys."""
    index: str = ""
    """`BUCKET`: the buckets are those of Hudi's simple bucket index."""
    hive_style: bool = True
    """Whether a partition's folder is called `region=EU`, or `EU`."""
    urlencode: bool = True
    """Whether its value is escaped; if not, a slash in it makes one more folder."""
    archive: str = "archived"
    """Version 6: the folder under `.hoodie/` that old instants are moved to."""
    switches: int = 0
    """How often the mode was switched. A checkpoint or handle with another count cannot be used: in
    mode `hudi` a commit may complete below its horizon."""
    table_type: str = COPY_ON_WRITE
    accepted: str = field(default="", compare=False)
    """An instant ahead of all clocks, which new ones follow (`occ.mode`); transactions continue."""
    metadata: bool = field(default=False, compare=False)
    """Mode `hudi`: Hudi's metadata table is on; a commit switches it off (`rewriting`)."""
    unblocked: bool = field(default=False, compare=False)
    """Mode `hudi`: Hudi may make a metadata table; a commit prevents it (`rewriting`)."""
    elsewhere: bool = field(default=False, compare=False)
    """Whether rows may lie in another partition than their partition field says."""
    named: bool = False
    """Whether keys of one field are `id:7`, as `ComplexKeyGenerator` makes them."""
    generator: tuple[tuple[str, str], ...] = ()
    """Of Hudi's CustomKeyGenerator and TimestampBasedKeyGenerator: its type and its settings."""
    log_format: str = field(default="", compare=False)
    """The blocks of new log files: `avro` (also if ""), or `parquet`. A write's option precedes."""

    def __post_init__(self) -> None:
        if self.commit != SERIAL:
            from lockkit.table.format.refusals import refuse_commit

            refuse_commit(self.commit, self.mode, self.table_type)
        if self.index:
            from lockkit.table.format.refusals import refuse_index

            refuse_index(self.index)
        for fine, option, value, why in (
            *(_plain_names(what, name) for what, name in (
                ("record key", self.record_key or None), ("partition field", self.partition_by),
                ("precombine field", self.precombine))),
            (self.name and self.name.isprintable(), "name", self.name, "be printable characters"),
            (str(self.version) in LAYOUTS, "version", self.version, "be 6, 8 or 9"),
            (self.mode in (FENCED, HUDI), "mode", self.mode,
             f"be {FENCED} (only lockkit writes it) or {HUDI}"),
            (FOLDER.fullmatch(self.archive), "archive", self.archive[:60], "be a folder's name"),
            (self.table_type == COPY_ON_WRITE
             or (self.merged and (self.mode == HUDI or not self.sliced)), "table_type",
             self.table_type,
             f"be {COPY_ON_WRITE}, or {MERGE_ON_READ} (in version 6 only in the mode {HUDI})"),
            (self.log_format in ("", *LOG_FORMATS), LOG_FORMAT, self.log_format, "be avro|parquet"),
            (1 <= self.buckets <= BUCKETS_MAX, "buckets", self.buckets,
             f"be from 1 to {BUCKETS_MAX}"),
        ):  # fmt: skip
            if not fine:
                raise RefusedOption(option, f"must {why}", value=str(value))

    @property
    def record_keys(self) -> list[str]:
        return self.record_key.split(",") if self.record_key else []

    @property
    def partition_fields(self) -> list[str]:
        return self.partition_by.split(",") if self.partition_by else []

    @property
    def composite(self) -> bool:
        """Whether a row's key names its fields: `id:7,kind:a` instead of `7`."""
        fields = "" if self.generator else self.partition_by or ""
        return self.named or "," in self.record_key + fields

    @property
    def commit_mode(self) -> str:
        """`fenced`, `group` or `hudi`: its mode, as the option and the command call it."""
        return GROUP if self.commit == GROUP else self.mode

    def committing(self, said: str | None, *, turns: bool) -> TableConfig:
        """This new table in the mode `fenced`, `group` or `hudi`; None: `group` if possible, but
        not with `turns`: then its maker names a lock or a conflict strategy, which `group` ignores.
        """
        if said and said not in (FENCED, GROUP, HUDI):
            raise RefusedOption("mode", "must be group, fenced or hudi", value=said[:40])
        grouped = said == GROUP or (not said and not turns and self.table_type == COPY_ON_WRITE)
        mode = HUDI if said == HUDI else FENCED
        return replace(self, mode=mode, commit=GROUP if grouped else SERIAL)

    @property
    def merged(self) -> bool:
        """Whether it is merge-on-read: its upserts write log files."""
        return self.table_type == MERGE_ON_READ

    @property
    def sliced(self) -> bool:
        """Whether a log file's name says of which slice it is, and not which commit wrote it: so it
        is in merge-on-read tables of version 6."""
        return self.merged and self.version == 6

    @property
    def hashed(self) -> bool:
        """Whether its buckets are Hudi's, which several writers may write at one time."""
        return self.index == BUCKET_INDEX

    @property
    def by_base_files(self) -> bool:
        """Whether Hudi's writers look for keys in base files alone, though there are log files."""
        return self.merged and self.mode == HUDI and not self.hashed

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
        RECORD_KEYS: config.record_key,
        "hoodie.table.base.file.format": "PARQUET",
        "hoodie.table.checksum": str(checksum(config.name, config.database)),
        "hoodie.populate.meta.fields": "true",
        HIVE_STYLE: str(config.hive_style).lower(),
        URLENCODE: str(config.urlencode).lower(),
        DROP_COLUMNS: "false", MODE: config.mode,
        NUM_BUCKETS if config.index else BUCKETS: str(config.buckets),
        **(_only_v6(config) if config.version == 6 else _since_v8(config)),
    }  # fmt: skip
    said = {
        FENCE_FORMAT: GROUPED[0] if config.commit == GROUP else "", INDEX: config.index,
        HASHED_KEY: config.record_key if config.hashed else "",
        SWITCHES: str(config.switches or ""), ACCEPTED: config.accepted,
        ELSEWHERE: "true" if config.elsewhere else "",
        LOG_FORMAT: config.log_format, "hoodie.database.name": config.database,
        **(no_metadata(LAYOUTS[str(config.version)]) if config.mode == HUDI else {}),
        PRECOMBINE if config.version < 9 else ORDERING: config.precombine,
        # Without this hudi-rs shows an *empty* table, and no error.
        PARTITION_FIELDS: config.partition_by,
    }  # fmt: skip
    return keys | {key: value for key, value in said.items() if value}


def _only_v6(config: TableConfig) -> dict[str, str]:
    # Hudi 0.15 takes the payload class from here without a default when it merges log files.
    payload = EVENT_PAYLOAD if config.precombine else LATEST_PAYLOAD
    return {
        **({PAYLOAD: payload} if config.merged else {}),
        "hoodie.archivelog.folder": config.archive,
        KEY_CLASS: KEY_CLASSES[key_type(config.record_key, config.partition_by, config.named)],
    }


def _since_v8(config: TableConfig) -> dict[str, str]:
    return {
        "hoodie.table.initial.version": str(config.version), "hoodie.table.format": "native",
        "hoodie.timeline.path": "timeline", "hoodie.timeline.history.path": "history",
        "hoodie.archivelog.folder": "history",
        KEY_TYPE: key_type(config.record_key, config.partition_by, config.named),
        MERGE_MODE: BY_EVENT if config.precombine else BY_COMMIT,
    }  # fmt: skip


def from_properties(keys: Mapping[str, str]) -> TableConfig:
    """The config; `NotWritable` with every reason why lockkit cannot write the table."""
    keys = {key: value.strip() for key, value in keys.items()}
    with suppress(LookupError, ValueError, TableError):
        if to_properties(config := _config(keys)) == keys:
            return config  # exactly as lockkit writes them
    from lockkit.table.format.refusals import reasons

    if found := "; ".join(reasons(keys)):
        raise NotWritable(PROPERTIES_KEY, f"says: {found}")
    return _config(keys)


def _config(keys: Mapping[str, str]) -> TableConfig:
    version = int(keys["hoodie.table.version"])
    record_key = keys.get(RECORD_KEYS, "").replace(" ", "")
    partition_by = keys.get(PARTITION_FIELDS, "").replace(" ", "")
    said = {keys.get(KEY_TYPE), keys.get(KEY_CLASS)}
    complex_keys = {COMPLEX, KEY_CLASSES[COMPLEX]} & said
    generator: tuple[tuple[str, str], ...] = ()
    if re.search("CUSTOM|TIMESTAMP", " ".join(filter(None, said)), re.IGNORECASE):
        from lockkit.table.format.timestamp_keys import generator_of  # few tables have one
        generator, partition_by = generator_of(keys, partition_by)
    return TableConfig(
        name=keys["hoodie.table.name"], record_key=record_key, partition_by=partition_by or None,
        named=bool(complex_keys and record_key) and "," not in record_key + partition_by,
        generator=generator, precombine=precombine_of(keys),
        database=keys.get("hoodie.database.name", ""), log_format=keys.get(LOG_FORMAT, ""),
        version=version, table_type=keys[TYPE], mode=keys.get(MODE, HUDI),
        commit=GROUP if keys.get(FENCE_FORMAT) in GROUPED else SERIAL,
        switches=_number(keys.get(SWITCHES, "0")), accepted=_instant(keys.get(ACCEPTED, "")),
        elsewhere=keys.get(ELSEWHERE) == "true" or RECORD_INDEX in keys.get(METADATA[0], ""),
        metadata=any(map(keys.get, METADATA)), index=keys.get(INDEX, ""),
        unblocked=(keys.get(MODE, HUDI) == HUDI
                   and not no_metadata(keys.get(LAYOUT, "")).items() <= keys.items()),
        buckets=_number(keys.get(NUM_BUCKETS if keys.get(INDEX) else BUCKETS, "4")),
        hive_style=keys.get(HIVE_STYLE, "false").lower() == "true",
        urlencode=keys.get(URLENCODE, "false").lower() == "true",
        archive=keys.get("hoodie.archivelog.folder", "archived") if version == 6 else "archived",
    )


def _instant(text: str) -> str:
    """The text if it is an instant, else ""."""
    try:
        instant_ms(text)
    except ValueError:
        return ""
    return text


def _number(text: str) -> int:
    """The number; 0, which is not a valid count of buckets, for other text."""
    return int(text) if text.isdecimal() and len(text) < 9 else 0


def _plain_names(what: str, name: str | None) -> tuple[bool, str, str | None, str]:
    fields = [] if name is None else name.split(",")
    most = 1 if what == "precombine field" else len(set(fields))
    fine = len(fields) <= most and all(map(PLAIN_NAME.fullmatch, fields))
    return fine, what, name, "name columns by plain names"


# --- procedures ---------------------------------------------------------------------------------


def no_table() -> NoTable:
    why = "is missing: there is no table here"
    return NoTable(PROPERTIES_KEY, why, "check the address, or make a table with Table.create")


def load_config() -> Procedure[tuple[TableConfig, Version]]:
    """The table's config and its file's version."""
    match (yield from read(PROPERTIES_KEY, limit=PROPERTIES_BYTES_MAX)):
        case Found(body, version):
            return from_properties(parse_properties(body)), version
        case _missing:
            yield from refuse_half_rewritten()
            raise no_table()


def recheck_config(config: TableConfig, version: Version) -> Procedure[TableConfig]:
    """The table's config; raise if it is no longer the one that the transaction began with.

    Every commit calls it under the lock: a Hudi 1.x writer upgrades a version 6 table by default
    and moves its timeline (hoodie.write.auto.upgrade). It costs one conditional read.
    """
    match (yield from read(PROPERTIES_KEY, unless=version, limit=PROPERTIES_BYTES_MAX)):
        case NotModified():
            return config
        case Missing():
            yield from refuse_half_rewritten()
            raise NoTable(PROPERTIES_KEY, "is gone: the table was deleted under this commit")
        case Found(body, _):
            standing = from_properties(parse_properties(body))
            if standing != config:
                raise TableChanged(
                    "the table", f"changed under this commit: it was {config}, and is {standing}",
                    "begin again",
                )  # fmt: skip
            return standing


def refuse_half_rewritten() -> Procedure[None]:
    """Raise while Hudi rewrites the properties: it deletes the file for a moment."""
    if isinstance((yield from read(BACKUP_KEY)), Found):
        raise TableChanged(
            BACKUP_KEY, f"is there: Hudi is rewriting {PROPERTIES_KEY}",
            "try again in a moment; if it stays, a Hudi writer crashed there, and another Hudi "
            "writer can recover the table",
        )  # fmt: skip
