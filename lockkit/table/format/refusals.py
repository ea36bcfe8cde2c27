"""Why lockkit does not write a table, by what its hoodie.properties say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from lockkit.table.errors import RefusedOption, UnsupportedTable
from lockkit.table.format.property_keys import (
    BASE_FORMAT,
    BUCKET_INDEX,
    BUCKETS,
    BUCKETS_MAX,
    BY_COMMIT,
    BY_EVENT,
    COMPLEX,
    COPY_ON_WRITE,
    CUSTOM,
    DROP_COLUMNS,
    EVENT_PAYLOAD,
    FENCE_FORMAT,
    FENCED,
    FOLDER,
    GROUP,
    GROUPED,
    HIVE_STYLE,
    HUDI,
    INDEX,
    KEY_CLASS,
    KEY_CLASSES,
    KEY_TYPE,
    LATEST_PAYLOAD,
    LAYOUTS,
    LOG_FORMAT,
    LOG_FORMATS,
    MERGE_MODE,
    MERGE_ON_READ,
    MERGE_RULE,
    MERGER,
    MERGERS,
    METADATA,
    MODE,
    NUM_BUCKETS,
    ORDERING,
    PARTITION_FIELDS,
    PAYLOAD,
    PRECOMBINE,
    RECORD_KEYS,
    SERIAL,
    SIMPLE,
    TIMESTAMP,
    TIMEZONE,
    TYPE,
    UNPARTITIONED,
    URLENCODE,
    checksum,
    key_type,
)

if TYPE_CHECKING:
    from lockkit.table.format.properties import TableConfig

Says = Callable[..., str]


def reasons(keys: Mapping[str, str]) -> Iterator[str]:
    """Every reason not to touch the table, each with what to do; none: it is understood."""

    def says(key: str, default: str = "") -> str:
        return keys.get(key, default)

    yield from _not_a_table(says)
    yield from _not_known(says)
    yield from _not_written(says, keys)


def _not_a_table(says: Says) -> Iterator[str]:
    for key in ("hoodie.table.name", "hoodie.table.version", "hoodie.table.type",
                "hoodie.timeline.layout.version"):  # fmt: skip
        if not says(key):
            yield (f"{key} is missing, so lockkit cannot read the table; restore the file (Hudi "
                   "keeps hoodie.properties.backup beside it)")  # fmt: skip
    if not says(RECORD_KEYS) and says(TYPE) == MERGE_ON_READ:
        yield (f"{RECORD_KEYS} is missing, and log files can only be merged by "
               "record keys; copy the rows to a table with keys")  # fmt: skip
    wanted = checksum(says("hoodie.table.name"), says("hoodie.database.name"))
    if says("hoodie.table.checksum", str(wanted)) != str(wanted):
        yield ("hoodie.table.checksum does not match the table's name; the file is damaged or was "
               "edited by hand: restore it")  # fmt: skip


def _not_known(says: Says) -> Iterator[str]:
    version, layout = says("hoodie.table.version"), says("hoodie.timeline.layout.version")
    if version not in LAYOUTS:
        why = "a Hudi 1.x writer upgrades tables unless hoodie.write.auto.upgrade=false"
        yield f"table version {version[:20]!r} is none of {', '.join(LAYOUTS)}; {why}"
    elif layout != LAYOUTS[version]:
        yield (f"timeline layout {layout[:20]!r} does not belong to table version {version}; an "
               "upgrade may have stopped half-way: finish it with Hudi")  # fmt: skip


def _not_written(says: Says, every: Mapping[str, str]) -> Iterator[str]:
    if says(TYPE) == MERGE_ON_READ:
        if says("hoodie.table.version") == "6" and says(MODE) == FENCED:
            yield (f"a {MERGE_ON_READ} table of version 6 can only be written in the mode {HUDI}: "
                   "correct the mode")  # fmt: skip
    elif says(TYPE) != COPY_ON_WRITE:
        yield (f"lockkit writes only {COPY_ON_WRITE} and {MERGE_ON_READ} tables, and this one has "
               f"the type {says(TYPE)[:40]!r}")  # fmt: skip
    for key in METADATA:
        if says(key) and says(MODE) == FENCED:
            yield (f"{key}={says(key)[:80]}: readers of the metadata table would miss lockkit's "
                   "commits, and only lockkit may write a fenced table: find out which Hudi writer "
                   "wrote to it")  # fmt: skip
    yield from _odd_values(says, every)
    if says(INDEX) == BUCKET_INDEX and not bucket_number(number := says(NUM_BUCKETS)):
        yield (f"{NUM_BUCKETS} is {repr(number[:20]) if number else 'missing'}, so the bucket of a "
               "key is unknown; lockkit table adopt URL says which number the stored keys fit")
    if says(TIMEZONE).upper() != "UTC":
        yield (f"{TIMEZONE} is {says(TIMEZONE)[:20] or 'not set, so LOCAL'}, and instants of two "
               "time zones cannot be ordered; change it to UTC: lockkit table adopt URL")
    for key, value, why in _MUST_BE:
        if says(key, value).lower() != value.lower():
            yield f"{key}={says(key)[:80]} is not supported ({why}); it must be {value}"
    for key in every:
        if key.startswith(MERGE_RULE):
            yield (f"{key}={says(key)[:80]}: Hudi deletes or merges rows by this rule, and lockkit "
                   "does not know it; write the table with Hudi")  # fmt: skip
    for key in (ORDERING, PRECOMBINE):
        if "," in says(key):
            yield f"{key}={says(key)[:80]}: lockkit writes only one such field"
    yield from _other_keys(says, every)
    if says("hoodie.bootstrap.base.path"):
        yield "lockkit does not write a bootstrapped table, which keeps columns elsewhere"
    for key, known, why in _ONE_OF:
        if says(key) and says(key) not in known:
            yield f"{key}={says(key)[:120]}: {why}"


def _odd_values(says: Says, every: Mapping[str, str]) -> Iterator[str]:
    from lockkit.table.format.named_columns import odd_names

    yield from odd_names(every)
    mode, grouped = says(MODE, HUDI), says(FENCE_FORMAT) in GROUPED
    if mode not in (FENCED, HUDI):
        yield f"{MODE}={mode[:40]} must be {FENCED} or {HUDI}; correct the mode"
    elif grouped and (mode, says(TYPE)) != (FENCED, COPY_ON_WRITE):
        yield (f"{FENCE_FORMAT}={says(FENCE_FORMAT)}: group commit needs the mode {FENCED} and "
               f"{COPY_ON_WRITE}; remove this line")  # fmt: skip
    if says(INDEX) not in ("", BUCKET_INDEX):
        yield (f"{INDEX}={says(INDEX)[:40]}: lockkit obeys {BUCKET_INDEX} there, or no index. If "
               f"Hudi's writers find keys in the files, remove the line, and give them {INDEX} as "
               "an option; if not, write with Hudi")  # fmt: skip
    elif says(INDEX) and not says(RECORD_KEYS):
        yield f"{INDEX}={BUCKET_INDEX} needs record keys, and {RECORD_KEYS} is missing; add it"
    if not says(INDEX) and not bucket_number(says(BUCKETS, "4")):
        yield f"{BUCKETS}={says(BUCKETS)[:20]} must be from 1 to {BUCKETS_MAX}; correct it"
    for key in (HIVE_STYLE, URLENCODE):
        if says(key, "false").lower() not in ("true", "false"):
            yield f"{key}={says(key)[:20]} must be true or false; correct it"
    if not says("hoodie.table.name").isprintable():
        yield "hoodie.table.name has characters that cannot be printed; correct it"
    folder = says("hoodie.archivelog.folder", "archived")
    if says("hoodie.table.version") == "6" and not FOLDER.fullmatch(folder):
        yield f"hoodie.archivelog.folder={folder[:60]} must be a folder's name; write with Hudi"


def bucket_number(text: str) -> int:
    """The number of buckets in a property; 0 if the text is no such number."""
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 9 else 0
    return number if number <= BUCKETS_MAX else 0


def key_types(record_key: str, partition_by: str | None, named: bool = False) -> list[str]:
    """The types of key generators that make the same keys and paths; the inferred one first."""
    inferred = key_type(record_key, partition_by, named)
    if inferred != UNPARTITIONED:
        return [inferred]
    # Of one key and no partition, Hudi before 1.0 says SimpleKeyGenerator.
    return [inferred, COMPLEX if "," in record_key else SIMPLE]


def _timed(keys: str, fields: str, every: Mapping[str, str]) -> Iterator[str]:
    from lockkit.table.format import timestamp_keys  # few tables have any

    if "," in keys or "," in fields or not fields:
        yield f"{KEY_TYPE}={TIMESTAMP} needs exactly one record key and one partition field"
    yield from timestamp_keys.reasons(timestamp_keys.settings_in(every))


def _custom(keys: str, fields: str, every: Mapping[str, str]) -> Iterator[str]:
    kinds = [each.partition(":")[2].strip().upper() for each in fields.split(",")]
    if fields and set(kinds) != {"SIMPLE"}:
        why = "a field with times needs a format, which Hudi's writers know and the table does not"
        if "" in kinds:
            why = "the fields do not say which of them are times"
        yield f"{KEY_TYPE}={CUSTOM} with the partition fields {fields[:120]}: {why}"


def _other_keys(says: Says, every: Mapping[str, str]) -> Iterator[str]:
    """Why the keys or the partition paths of new rows would not match those of the stored rows."""
    # A comma too much has a reason of its own, and makes no key of several fields.
    keys, fields = (",".join(filter(None, says(each).split(",")))
                    for each in (RECORD_KEYS, PARTITION_FIELDS))  # fmt: skip
    for kind in (TIMESTAMP, CUSTOM):
        if says(KEY_TYPE) == kind or says(KEY_CLASS) == KEY_CLASSES[kind]:
            yield from (_timed if kind == TIMESTAMP else _custom)(keys, fields, every)
            return
    fine = key_types(keys, fields)
    if "," not in keys and (says(KEY_TYPE) == COMPLEX or says(KEY_CLASS) == KEY_CLASSES[COMPLEX]):
        fine = [COMPLEX]
    inferred = fine[0]
    for key, names in ((KEY_CLASS, KEY_CLASSES), (KEY_TYPE, {each: each for each in KEY_CLASSES})):
        if fields and says(key) == names[UNPARTITIONED]:
            yield "the table has partition fields, but its key generator makes no partitions"
        elif says(key) and says(key) not in [names[each] for each in fine]:
            yield (f"{key}={says(key)[:120]}: this key generator makes keys that would not match "
                   f"ours (of {names[inferred]})")  # fmt: skip
    encoding = says("hoodie.table.complex.keygen.encoding", "FIELD_PREFIXED")
    if inferred == COMPLEX and keys and "," not in keys:
        unsure = says("hoodie.table.version") != "9" and not says(MODE)
        if encoding != "FIELD_PREFIXED" or unsure:
            yield ("releases of Hudi's ComplexKeyGenerator write the keys of one record key "
                   f"({keys[:80]}) in two forms (HUDI-7001); copy the rows to a new table")


_OTHER_MERGE = "lockkit merges rows in another way"
_ONE_OF: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (MERGE_MODE, (BY_EVENT, BY_COMMIT), _OTHER_MERGE),
    (LOG_FORMAT, LOG_FORMATS, "lockkit writes log files in Avro or Parquet blocks"),
    (PAYLOAD, (EVENT_PAYLOAD, LATEST_PAYLOAD), _OTHER_MERGE),
    *((key, MERGERS, _OTHER_MERGE) for key in MERGER),
)
TIMELINE_MUST_BE = (
    ("hoodie.table.format", "native", "another format keeps its own timeline"),
    ("hoodie.timeline.path", "timeline", "lockkit expects the timeline there"),
    ("hoodie.timeline.history.path", "history", "lockkit expects archived instants there"),
)  # for readers too
_MUST_BE = (
    ("hoodie.populate.meta.fields", "true", "rows could not be merged by their record key"),
    *((key, "PARQUET", "lockkit writes only Parquet") for key in BASE_FORMAT),
    (DROP_COLUMNS, "false", "the partition's value could not be read back from its rows"),
    ("hoodie.table.cdc.enabled", "false", "lockkit does not write change logs"),
    ("hoodie.table.multiple.base.file.formats.enable", "false", "lockkit writes only Parquet"),
    ("hoodie.partition.metafile.use.base.format", "false", "lockkit writes that file as text"),
    ("hoodie.table.partial.update.mode", "NONE", _OTHER_MERGE),
    ("hoodie.datasource.write.slash.separated.date.partitioning", "false",
     "lockkit writes a date as one folder"),
    *TIMELINE_MUST_BE,
)  # fmt: skip


def refuse_keyless(config: TableConfig, operation: str) -> None:
    """Raise if a write needs the keys, or the partitions, that a table does not have."""
    if operation == "delete_partition" and not config.partition_fields:
        raise RefusedOption("delete_partition", "is refused: the table has no partitions")
    if not config.record_key and operation != "delete_partition":
        raise RefusedOption(
            operation, "is refused: the table has no record keys, so a write cannot find a row",
            "append, delete partitions, or copy the rows to a table with keys",
        )  # fmt: skip


def refuse_outside_arrow(config: TableConfig) -> None:
    """Raise for a table that `Table` writes, and Spark through lockkit does not."""
    if config.sliced:
        refuse_sliced(config, "a write from Spark")
    if config.generator or not config.record_key:
        kind = dict(config.generator).get(KEY_TYPE)
        what = f"the key generator {kind}" if kind else "no record keys"
        raise UnsupportedTable(
            config.name, f"has {what}, which lockkit writes from Arrow only",
            "use lockkit.table.Table, or Hudi's own format in Spark",
        )  # fmt: skip


def refuse_sliced(config: TableConfig, what: str) -> None:
    """Raise for an operation that a merge-on-read table of version 6 does not allow."""
    if config.sliced:
        raise UnsupportedTable(
            config.name, f"is merge-on-read in version 6, where {what} is refused: its log files "
            "do not say which commit wrote them", "use lockkit.table.Table to append, upsert and "
            "delete, or Hudi. Or upgrade it by Hudi: carry out every plan "
            "(lockkit table compact URL --execute), stop all writers, and pass one of Hudi's 1.1 "
            "or later hoodie.write.table.version=9",
        )  # fmt: skip


def refuse_sliced_write(config: TableConfig, operation: str, partial: bool) -> None:
    """The same for a write."""
    replaces = operation == "delete_partition" or operation.startswith("insert_overwrite")
    if partial or replaces:
        refuse_sliced(config, "a partial update" if partial else operation)


def refuse_index(index: str) -> None:
    """Raise unless a table can have this index."""
    if index != BUCKET_INDEX:
        why = f"is refused: pass {BUCKET_INDEX}, or no index for lockkit's own buckets"
        raise RefusedOption("index", why, value=str(index)[:40])


def refuse_commit(commit: str, mode: str, table_type: str) -> None:
    """Raise unless such a table can commit in this way."""
    if commit != GROUP:
        raise RefusedOption(
            "commit", f"is refused: a table commits {SERIAL} or {GROUP}", value=str(commit)[:40]
        )
    if (mode, table_type) != (FENCED, COPY_ON_WRITE):
        raise RefusedOption(
            f"mode {mode}, {table_type}",
            f"is refused: group commit needs the mode {FENCED} and {COPY_ON_WRITE}",
            f"leave out commit={GROUP!r}, or make such a table",
        )


def refuse_millis(schema: str | None) -> None:
    """Raise `UnsupportedTable` if the schema has times in milliseconds; ours are microseconds."""
    if 'timestamp-millis"' in (schema or ""):
        why = "has times in milliseconds, and lockkit writes microseconds: Hudi would misread them"
        raise UnsupportedTable("the table's schema", why, "write and compact the table with Hudi")
