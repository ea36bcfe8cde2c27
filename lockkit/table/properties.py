"""hoodie.properties: what kind of table this is, and whether lockkit may write to it.

A file of Java properties. What is not understood is refused with its reason: a writer that guesses
here makes a table that somebody else's reader shows wrongly, or not at all.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from lockkit.drive import Procedure
from lockkit.outcome import Found, Missing, NotModified, Version
from lockkit.table.ask import TableError, create, read
from lockkit.table.timeline import HOODIE, V6, V9, Names

PROPERTIES_KEY = HOODIE + "hoodie.properties"
PROPERTIES_BYTES_MAX = 1_000_000
VERSION = "6"
LAYOUT_VERSION = "1"
HIVE_STYLE = "hoodie.datasource.write.hive_style_partitioning"
DROP_COLUMNS = "hoodie.datasource.write.drop.partition.columns"
SIMPLE_KEYS = "org.apache.hudi.keygen.SimpleKeyGenerator"
NO_PARTITION = "org.apache.hudi.keygen.NonpartitionedKeyGenerator"
_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


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

    def __post_init__(self) -> None:
        for what, field in (("record key", self.record_key), ("partition field", self.partition_by),
                            ("precombine field", self.precombine)):  # fmt: skip
            if field is not None and not _FIELD.fullmatch(field):
                raise TableError(
                    f"{field!r} cannot be the {what}: name one column, by a plain name"
                )
        if not self.name or not self.name.isprintable():
            raise TableError(f"{self.name!r} cannot be a table's name: use printable characters")

    @property
    def names(self) -> Names:
        return V6 if self.version == 6 else V9


# --- Hudi's keys --------------------------------------------------------------------------------


def checksum(name: str, database: str = "") -> int:
    """`hoodie.table.checksum`: CRC32 of `<database>.<table>`, as Hudi computes it."""
    return zlib.crc32(f"{database}.{name}".encode())


def to_properties(config: TableConfig) -> dict[str, str]:
    """The keys of a version 6 table that Hudi 0.14 and later, and hudi-rs, look for."""
    keys = {
        "hoodie.table.name": config.name,
        "hoodie.table.type": "COPY_ON_WRITE",
        "hoodie.table.version": VERSION,
        "hoodie.timeline.layout.version": LAYOUT_VERSION,
        # Unset, Hudi's writers put local wall time into instants and hudi-rs reads them as UTC.
        "hoodie.table.timeline.timezone": "UTC",
        "hoodie.table.recordkey.fields": config.record_key,
        "hoodie.table.base.file.format": "PARQUET",
        "hoodie.table.checksum": str(checksum(config.name, config.database)),
        "hoodie.populate.meta.fields": "true",
        "hoodie.archivelog.folder": "archived",
        "hoodie.table.keygenerator.class": SIMPLE_KEYS if config.partition_by else NO_PARTITION,
        HIVE_STYLE: "true",
        "hoodie.datasource.write.partitionpath.urlencode": "false",
        DROP_COLUMNS: "false",
    }
    if config.partition_by:
        # hudi-rs shows an *empty* table, without an error, where this is missing.
        keys["hoodie.table.partition.fields"] = config.partition_by
    if config.precombine:
        keys["hoodie.table.precombine.field"] = config.precombine
    if config.database:
        keys["hoodie.database.name"] = config.database
    return keys


def from_properties(keys: Mapping[str, str]) -> TableConfig:
    """The config, or a `TableError` that says what lockkit does not write, and what to do."""
    for refused in _refusals(keys):
        raise TableError(f"{PROPERTIES_KEY}: {refused}")
    return TableConfig(
        name=keys["hoodie.table.name"],
        record_key=keys["hoodie.table.recordkey.fields"],
        partition_by=keys.get("hoodie.table.partition.fields") or None,
        precombine=keys.get("hoodie.table.precombine.field") or None,
        database=keys.get("hoodie.database.name", ""),
    )


def _refusals(keys: Mapping[str, str]) -> list[str]:
    """Every reason not to touch this table; the first is reported."""

    def says(key: str, default: str = "") -> str:
        return keys.get(key, default).strip()

    version, layout = says("hoodie.table.version"), says("hoodie.timeline.layout.version")
    found = [f"{key} is missing, so this is no table that can be understood; restore the file "
             "(Hudi keeps hoodie.properties.backup beside it)"
             for key in ("hoodie.table.name", "hoodie.table.version", "hoodie.table.type",
                         "hoodie.timeline.layout.version", "hoodie.table.recordkey.fields")
             if not says(key)]  # fmt: skip
    if version != VERSION:
        found.append(
            f"table version {version[:20]!r} is not known, only {VERSION}; a Hudi "
            "1.x writer upgrades tables unless hoodie.write.auto.upgrade=false"
        )
    if layout != LAYOUT_VERSION:
        found.append(f"timeline layout {layout[:20]!r} does not belong to table version {VERSION}; "
                     "an upgrade may have stopped half-way: finish it with Hudi")  # fmt: skip
    if says("hoodie.table.type") != "COPY_ON_WRITE":
        found.append(f"table type {says('hoodie.table.type')[:40]!r} is not written here, only "
                     "COPY_ON_WRITE: base files alone would hide the log files' rows")  # fmt: skip
    for key in ("hoodie.table.metadata.partitions", "hoodie.table.metadata.partitions.inflight"):
        if says(key):
            found.append(f"{key}={says(key)[:80]}: a commit that skips the metadata table is "
                         "invisible to its readers; disable it in every writer "
                         "(hoodie.metadata.enable=false)")  # fmt: skip
    for key, value, why in _MUST_BE:
        if says(key, value).lower() != value.lower():
            found.append(f"{key}={says(key)[:80]} is not supported ({why}); it must be {value}")
    for key in ("hoodie.table.recordkey.fields", "hoodie.table.partition.fields"):
        if "," in says(key):
            found.append(f"{key}={says(key)[:80]}: only one field is written here")
    if says("hoodie.bootstrap.base.path"):
        found.append("a bootstrapped table keeps columns elsewhere, and is not written here")
    generator = says("hoodie.table.keygenerator.class")
    if generator and generator not in (SIMPLE_KEYS, NO_PARTITION):
        found.append(f"key generator {generator[:120]!r} makes keys that would not match ours")
    wanted = checksum(says("hoodie.table.name"), says("hoodie.database.name"))
    if says("hoodie.table.checksum", str(wanted)) != str(wanted):
        found.append("hoodie.table.checksum does not match the table's name; the file is damaged "
                     "or was edited by hand: restore it")  # fmt: skip
    return found


_MUST_BE = (
    ("hoodie.table.timeline.timezone", "UTC", "instants of two time zones cannot be ordered"),
    ("hoodie.populate.meta.fields", "true", "rows could not be merged by their record key"),
    ("hoodie.table.base.file.format", "PARQUET", "no other base file is written here"),
    (DROP_COLUMNS, "false", "the partition's value could not be read back from its rows"),
    ("hoodie.table.cdc.enabled", "false", "change logs are not written here"),
    ("hoodie.table.multiple.base.file.formats.enable", "false", "only parquet is written here"),
)


# --- Java's properties format -------------------------------------------------------------------


def format_properties(keys: Mapping[str, str]) -> bytes:
    """Sorted lines, escaped as `java.util.Properties` escapes them; equal keys give equal bytes."""
    return "".join(f"{_escape(k)}={_escape(v)}\n" for k, v in sorted(keys.items())).encode("ascii")


def _escape(text: str) -> str:
    escaped = re.sub(r"([\\=:#! ])", r"\\\1", text).replace("\n", "\\n").replace("\r", "\\r")
    units = escaped.encode("utf-16-be", "surrogatepass")
    pairs = [int.from_bytes(units[i : i + 2], "big") for i in range(0, len(units), 2)]
    return "".join(chr(u) if 0x20 <= u < 0x7F else f"\\u{u:04x}" for u in pairs)


def parse_properties(body: bytes) -> dict[str, str]:
    """Keys of a properties file; noise gives keys that nobody asks for."""
    if len(body) > PROPERTIES_BYTES_MAX:
        raise TableError(
            f"{PROPERTIES_KEY} has {len(body)} bytes and is no table's properties file"
        )
    text = re.sub(r"(?<!\\)((?:\\\\)*)\\\r?\n[ \t\f]*", r"\1", body.decode("latin-1"))
    keys: dict[str, str] = {}
    for line in re.split(r"\r\n|\n|\r", text):
        line = line.lstrip(" \t\f")
        if not line or line[0] in "#!":
            continue
        match = re.match(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", line)
        if match:
            keys[_unescape(match[1])] = _unescape(match[2])
    return keys


def _unescape(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        return {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}.get(match[2], match[2])

    plain = re.sub(r"\\(?:u([0-9A-Fa-f]{4})|(.))", one, text)
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


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
