"""hoodie.properties: what kind of table this is, and whether lockkit may write to it.

A file of Java properties. What is not understood is refused with its reason: a writer that guesses
here makes a table that somebody else's reader shows wrongly, or not at all.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from lockkit.drive import Procedure
from lockkit.outcome import Found, Missing, NotModified, Version
from lockkit.table.ask import TableError, create, read
from lockkit.table.javafile import format_properties, parse_properties
from lockkit.table.timeline import HOODIE, V6, V9, Names

PROPERTIES_KEY = HOODIE + "hoodie.properties"
LAYOUTS = {"6": "1", "9": "2"}
"""The timeline's layout, by table version."""
MODE = "lockkit.commit.mode"
BUCKETS = "lockkit.bucket.count"
BUCKETS_MAX = 10_000
HIVE_STYLE = "hoodie.datasource.write.hive_style_partitioning"
URLENCODE = "hoodie.datasource.write.partitionpath.urlencode"
DROP_COLUMNS = "hoodie.datasource.write.drop.partition.columns"
SIMPLE_KEYS = "org.apache.hudi.keygen.SimpleKeyGenerator"
NO_PARTITION = "org.apache.hudi.keygen.NonpartitionedKeyGenerator"
PRECOMBINE = "hoodie.table.precombine.field"
ORDERING = "hoodie.table.ordering.fields"
MERGE_MODE = "hoodie.record.merge.mode"
BY_EVENT, BY_COMMIT = "EVENT_TIME_ORDERING", "COMMIT_TIME_ORDERING"
_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

FENCED, HUDI = "fenced", "hudi"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableConfig:
    """What a writer must know of a table: copy-on-write, one key, at most one partition field."""

    name: str
    record_key: str
    partition_by: str | None = None
    precombine: str | None = None
    database: str = ""
    version: int = 6
    """6 or 9: Hudi's `hoodie.table.version`."""
    mode: str = FENCED
    """`fenced`: only lockkit writes it. `hudi`: others may, by Hudi's contract."""
    buckets: int = 4
    """Bucketed file groups in each partition; where an upsert puts keys that it finds nowhere."""
    hive_style: bool = True
    """Whether a partition's folder is called `region=EU`, or `EU`."""
    urlencode: bool = True
    """Whether its value is escaped; if not, a slash in it makes one more folder."""
    archive: str = "archived"
    """Version 6: the folder under `.hoodie/` that old instants are moved to."""

    def __post_init__(self) -> None:
        for what, field in (("record key", self.record_key), ("partition field", self.partition_by),
                            ("precombine field", self.precombine)):  # fmt: skip
            if field is not None and not _FIELD.fullmatch(field):
                raise TableError(
                    f"{field!r} cannot be the {what}: name one column, by a plain name"
                )
        if not self.name or not self.name.isprintable():
            raise TableError(f"{self.name!r} cannot be a table's name: use printable characters")
        if str(self.version) not in LAYOUTS or self.mode not in (FENCED, HUDI):
            raise TableError(
                f"version {self.version!r}, mode {self.mode!r}: a table has version 6 or 9, and "
                f"mode {FENCED} (only lockkit writes it) or {HUDI}"
            )
        if not _FOLDER.fullmatch(self.archive):
            raise TableError(f"{self.archive[:60]!r} is not the name of a folder for old instants")
        if not 1 <= self.buckets <= BUCKETS_MAX:
            raise TableError(f"{self.buckets} buckets in a partition: choose 1 to {BUCKETS_MAX}")

    @property
    def names(self) -> Names:
        return V6 if self.version == 6 else V9

    @property
    def archive_prefix(self) -> str:
        """Where instants are that left the timeline."""
        return HOODIE + (f"{self.archive}/" if self.version == 6 else "timeline/history/")


# --- Hudi's keys --------------------------------------------------------------------------------


def checksum(name: str, database: str = "") -> int:
    """`hoodie.table.checksum`: CRC32 of `<database>.<table>`, as Hudi computes it."""
    return zlib.crc32(f"{database}.{name}".encode())


def to_properties(config: TableConfig) -> dict[str, str]:
    """The keys that Hudi (0.14 and later; 1.1 and later for version 9) and hudi-rs look for."""
    keys = {
        "hoodie.table.name": config.name,
        "hoodie.table.type": "COPY_ON_WRITE",
        "hoodie.table.version": str(config.version),
        "hoodie.timeline.layout.version": LAYOUTS[str(config.version)],
        # Unset, Hudi's writers put local wall time into instants and hudi-rs reads them as UTC.
        "hoodie.table.timeline.timezone": "UTC",
        "hoodie.table.recordkey.fields": config.record_key,
        "hoodie.table.base.file.format": "PARQUET",
        "hoodie.table.checksum": str(checksum(config.name, config.database)),
        "hoodie.populate.meta.fields": "true",
        HIVE_STYLE: str(config.hive_style).lower(),
        URLENCODE: str(config.urlencode).lower(),
        DROP_COLUMNS: "false",
        MODE: config.mode,
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
        "hoodie.table.keygenerator.class": SIMPLE_KEYS if config.partition_by else NO_PARTITION,
    }


def _only_v9(config: TableConfig) -> dict[str, str]:
    return {
        "hoodie.table.initial.version": "9",
        "hoodie.table.format": "native",
        "hoodie.timeline.path": "timeline",
        "hoodie.timeline.history.path": "history",
        "hoodie.archivelog.folder": "history",
        "hoodie.table.keygenerator.type": "SIMPLE" if config.partition_by else "NON_PARTITION",
        MERGE_MODE: BY_EVENT if config.precombine else BY_COMMIT,
    }


def from_properties(keys: Mapping[str, str]) -> TableConfig:
    """The config, or a `TableError` that says what lockkit does not write, and what to do."""
    keys = {key: value.strip() for key, value in keys.items()}

    def says(key: str, default: str = "") -> str:
        return keys.get(key, default)

    for refused in chain(_not_a_table(says), _not_known(says), _not_written(says)):
        raise TableError(f"{PROPERTIES_KEY}: {refused}")
    version = int(keys["hoodie.table.version"])
    # Hudi 1.1 writes `ordering.fields` into tables of version 6 too.
    ordering = keys.get(ORDERING) or keys.get(PRECOMBINE) or None
    return TableConfig(
        name=keys["hoodie.table.name"],
        record_key=keys["hoodie.table.recordkey.fields"],
        partition_by=keys.get("hoodie.table.partition.fields") or None,
        precombine=None if keys.get(MERGE_MODE) == BY_COMMIT else ordering,
        database=keys.get("hoodie.database.name", ""),
        version=version,
        mode=keys.get(MODE, HUDI),
        buckets=int(keys.get(BUCKETS, "4")),
        hive_style=keys.get(HIVE_STYLE, "false").lower() == "true",
        urlencode=keys.get(URLENCODE, "false").lower() == "true",
        archive=keys.get("hoodie.archivelog.folder", "archived") if version == 6 else "archived",
    )


Says = Callable[..., str]


def _not_a_table(says: Says) -> Iterator[str]:
    for key in ("hoodie.table.name", "hoodie.table.version", "hoodie.table.type",
                "hoodie.timeline.layout.version", "hoodie.table.recordkey.fields"):  # fmt: skip
        if not says(key):
            yield (f"{key} is missing, so this is no table that can be understood; restore the "
                   "file (Hudi keeps hoodie.properties.backup beside it)")  # fmt: skip
    wanted = checksum(says("hoodie.table.name"), says("hoodie.database.name"))
    if says("hoodie.table.checksum", str(wanted)) != str(wanted):
        yield ("hoodie.table.checksum does not match the table's name; the file is damaged or was "
               "edited by hand: restore it")  # fmt: skip


def _not_known(says: Says) -> Iterator[str]:
    version, layout = says("hoodie.table.version"), says("hoodie.timeline.layout.version")
    if version not in LAYOUTS:
        yield (f"table version {version[:20]!r} is not known, only {' and '.join(LAYOUTS)}; a Hudi "
               "1.x writer upgrades tables unless hoodie.write.auto.upgrade=false")  # fmt: skip
    elif layout != LAYOUTS[version]:
        yield (f"timeline layout {layout[:20]!r} does not belong to table version {version}; an "
               "upgrade may have stopped half-way: finish it with Hudi")  # fmt: skip
    if says(MODE, HUDI) not in (FENCED, HUDI):
        yield f"{MODE}={says(MODE)[:40]!r}: it can be {FENCED} or {HUDI}; a newer lockkit?"
    buckets = says(BUCKETS, "4")
    if not (buckets.isdecimal() and len(buckets) < 9 and 1 <= int(buckets) <= BUCKETS_MAX):
        yield f"{BUCKETS}={buckets[:40]!r} is no number from 1 to {BUCKETS_MAX}"


def _not_written(says: Says) -> Iterator[str]:
    if says("hoodie.table.type") != "COPY_ON_WRITE":
        yield (f"table type {says('hoodie.table.type')[:40]!r} is not written here, only "
               "COPY_ON_WRITE: base files alone would hide the log files' rows")  # fmt: skip
    for key in ("hoodie.table.metadata.partitions", "hoodie.table.metadata.partitions.inflight"):
        if says(key):
            yield (f"{key}={says(key)[:80]}: a commit that skips the metadata table is invisible "
                   "to its readers; disable it in every writer "
                   "(hoodie.metadata.enable=false)")  # fmt: skip
    for key, value, why in _MUST_BE:
        if says(key, value).lower() != value.lower():
            yield f"{key}={says(key)[:80]} is not supported ({why}); it must be {value}"
    for key in ("hoodie.table.recordkey.fields", "hoodie.table.partition.fields", ORDERING,
                PRECOMBINE):  # fmt: skip
        if "," in says(key):
            yield f"{key}={says(key)[:80]}: only one field is written here"
    if says("hoodie.bootstrap.base.path"):
        yield "a bootstrapped table keeps columns elsewhere, and is not written here"
    for key, known, why in _ONE_OF:
        if says(key) and says(key) not in known:
            yield f"{key}={says(key)[:120]}: {why}"


_PAYLOADS = "org.apache.hudi.common.model."
_ONE_OF = (
    ("hoodie.table.keygenerator.class", (SIMPLE_KEYS, NO_PARTITION),
     "this key generator makes keys that would not match ours"),
    ("hoodie.table.keygenerator.type", ("SIMPLE", "NON_PARTITION"),
     "this key generator makes keys that would not match ours"),
    (MERGE_MODE, (BY_EVENT, BY_COMMIT), "rows would be merged otherwise than here"),
    ("hoodie.compaction.payload.class",
     (_PAYLOADS + "DefaultHoodieRecordPayload", _PAYLOADS + "OverwriteWithLatestAvroPayload"),
     "rows would be merged otherwise than here"),
)  # fmt: skip
_MUST_BE = (
    ("hoodie.table.timeline.timezone", "UTC",
     "instants of two time zones cannot be ordered; if every writer runs in UTC, say so there"),
    ("hoodie.populate.meta.fields", "true", "rows could not be merged by their record key"),
    ("hoodie.table.base.file.format", "PARQUET", "no other base file is written here"),
    (DROP_COLUMNS, "false", "the partition's value could not be read back from its rows"),
    ("hoodie.table.cdc.enabled", "false", "change logs are not written here"),
    ("hoodie.table.multiple.base.file.formats.enable", "false", "only parquet is written here"),
    ("hoodie.partition.metafile.use.base.format", "false", "it is written as text here"),
    ("hoodie.table.format", "native", "another format keeps a timeline of its own"),
    ("hoodie.timeline.path", "timeline", "the timeline is looked for there"),
    ("hoodie.timeline.history.path", "history", "archived instants are looked for there"),
)  # fmt: skip


# --- procedures ---------------------------------------------------------------------------------


def create_table(config: TableConfig) -> Procedure[TableConfig]:
    """Make the table, or find it there already, the same; `TableError` if it is another one."""
    match (yield from create(PROPERTIES_KEY, format_properties(to_properties(config)))):
        case Found(body, _):
            standing = from_properties(parse_properties(body))
            if standing != config:
                raise TableError(
                    f"a different table is there already: {standing}; asked for {config}; open it "
                    "as it is, or choose another place"
                )
            return standing
        case _version:
            return config


def load_config() -> Procedure[tuple[TableConfig, Version]]:
    """The table's config, with the version of the file that said so."""
    match (yield from read(PROPERTIES_KEY)):
        case Found(body, version):
            return from_properties(parse_properties(body)), version
        case _missing:
            raise TableError(
                f"there is no table here: {PROPERTIES_KEY} is missing; make one with create_table, "
                "or check the address"
            )


def recheck_config(config: TableConfig, version: Version) -> Procedure[None]:
    """Refuse a table that is no longer what the transaction began on.

    Asked under the lock at every commit: a Hudi 1.x writer upgrades a version 6 table by default
    and moves its timeline elsewhere (hudi.md 4.4). Costs one conditional read.
    """
    match (yield from read(PROPERTIES_KEY, unless=version)):
        case NotModified():
            return
        case Missing():
            raise TableError(f"{PROPERTIES_KEY} is gone: the table was deleted under this commit")
        case Found(body, _):
            standing = from_properties(parse_properties(body))
            if standing != config:
                raise TableError(
                    f"the table changed under this commit: it was {config}, and is {standing}; "
                    "begin again"
                )
