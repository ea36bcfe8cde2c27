"""The settings of a write, from Python's keywords and from Hudi's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from lockkit.clock import Clock
from lockkit.runtime import run
from lockkit.stores import Store
from lockkit.table.errors import NoTable, RefusedOption, TableError
from lockkit.table.format.gate import (
    NAMES,
    check_options,
    described,
    refuse_other,
    says_complex,
    says_hashed,
)
from lockkit.table.format.option_values import flag, whole
from lockkit.table.format.properties import PROPERTIES_KEY, TableConfig, load_config
from lockkit.table.format.property_keys import BUCKET_INDEX, INDEX, LOG_FORMAT
from lockkit.table.occ.concurrency import NON_BLOCKING, concurrency_mode, names_lock
from lockkit.table.occ.conflict import SIMPLE, STRATEGY_KEY, ConflictStrategy, strategy_of
from lockkit.table.occ.heartbeat_rules import HeartbeatRules, heartbeat_rules
from lockkit.table.occ.markers import early_commits, early_detection
from lockkit.table.occ.nonblocking import refuse_blocking
from lockkit.table.services.rules import service_rules
from lockkit.table.write.groups import FILE_BYTES_MAX

Operation = Literal[
    "insert", "bulk_insert", "upsert", "delete", "insert_overwrite", "insert_overwrite_table",
    "delete_partition",
]
OPERATIONS: tuple[str, ...] = get_args(Operation)
(RETRIES,) = NAMES["retries"]
(PARTIAL_UPDATE,) = NAMES["partial"]
RETRIES_MAX = 1000
WRITE = "hoodie.datasource.write."
PARTITIONS = WRITE + "partitions.to.delete"
KEYWORDS = frozenset(NAMES)
GLOBAL_INDEXES = {"GLOBAL_SIMPLE": "hoodie.simple.index.update.partition.path",
                  "GLOBAL_BLOOM": "hoodie.bloom.index.update.partition.path"}  # fmt: skip
"""Each with the option that says whether a row moves to its new partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The settings of one write. None: as in the table's properties, or the default."""

    operation: str = "upsert"
    record_key: str | None = None
    precombine: str | None = None
    partition_path: str | None = None
    table_name: str | None = None
    table_type: str | None = None
    version: int | None = None
    mode: str | None = None
    buckets: int | None = None
    hive_style: bool | None = None
    urlencode: bool | None = None
    log_format: str = ""
    described: Mapping[str, Any] = field(default_factory=dict)
    """Options that say something of the table."""
    partitions: frozenset[str] = frozenset()
    """`delete_partition`: their paths, where `*` stands for any text; none: those of the rows."""
    retries: int = 0
    drop_duplicates: bool = False
    combine: bool = False
    allow_empty: bool = False
    file_bytes_max: int = FILE_BYTES_MAX
    tasks: int | None = None
    early: bool = False
    early_commits: bool = False
    rules: HeartbeatRules = field(default_factory=HeartbeatRules)
    strategy: ConflictStrategy = SIMPLE
    partial: bool = False
    """An upsert of rows that keep what is stored in the columns that they do not have."""
    everywhere: bool = False
    """A global index: upserts and deletes find a key in any partition."""
    turns: bool = False
    """The options name a lock or a conflict strategy."""
    concurrency: Mapping[str, Any] = field(default_factory=dict)
    """The options of non-blocking concurrency control; empty for any other."""

    @property
    def nonblocking(self) -> bool:
        return bool(self.concurrency)


def write_options(options: Mapping[str, Any], **keywords: Any) -> WriteOptions:
    """Keywords that are not None win over options; `TableError` names what cannot be meant.

    Options are Hudi's, in any case of letters (Spark lowers them); `lockkit.table.format.gate` says
    what becomes of each.
    """
    given = check_options(options, stacklevel=4)
    service_rules(given, concurrency_mode(given))  # refuses here what it would refuse at the commit
    said: dict[str, Any] = {}
    for keyword, names in NAMES.items():
        value = keywords.get(keyword)
        key = next((name for name in names if given.get(name) not in (None, "")), None)
        if value is None and key is not None:
            value = _typed(keyword, given, key)
        if value is not None:
            said[keyword] = value
    for keyword in ("record_key", "partition_path"):
        if keyword in said:
            said[keyword] = said[keyword].replace(" ", "")  # Hudi trims the names, too
    if type(said.get("partial", False)) is not bool:
        raise RefusedOption("partial", "must be True or False", value=str(said["partial"])[:40])
    if "table_type" in said:
        said["table_type"] = said["table_type"].upper()
    if "mode" in said:
        said["mode"] = str(said["mode"]).lower()
    found = WriteOptions(
        **said,
        partitions=frozenset(filter(None, str(given.get(PARTITIONS) or "").split(","))),
        described=described(given),
        log_format=log_format(given),
        early=early_detection(given),
        early_commits=early_commits(given),
        rules=heartbeat_rules(given),
        strategy=strategy_of(str(given[STRATEGY_KEY])) if STRATEGY_KEY in given else SIMPLE,
        everywhere=_everywhere(given),
        turns=takes_turns(given),
        concurrency=given if concurrency_mode(given) == NON_BLOCKING else {},
    )
    return _checked(found)


def takes_turns(given: Mapping[str, Any]) -> bool:
    """Whether options, in lower case, name a lock or a conflict strategy."""
    return bool(names_lock(given) or given.get(STRATEGY_KEY))


def log_format(given: Mapping[str, Any]) -> str:
    """The blocks of log files that options, in lower case, ask for; "": as the table says."""
    return str(given.get(LOG_FORMAT) or "").lower()


def _everywhere(given: Mapping[str, Any]) -> bool:
    moves = GLOBAL_INDEXES.get(str(given.get(INDEX)).upper())
    if moves and not flag(given, moves, default=True):
        raise RefusedOption(
            moves, "is refused: the row would stay in a folder whose partition is not its own, "
            "where a filter by partition misses it", "leave it out: the row moves", value="false",
        )  # fmt: skip
    return moves is not None


def _typed(keyword: str, given: Mapping[str, Any], key: str) -> Any:
    kind = str(WriteOptions.__annotations__[keyword])
    if "bool" in kind:
        return flag(given, key)
    return whole(given, key, default=0, least=0) if "int" in kind else str(given[key])


def _checked(found: WriteOptions) -> WriteOptions:
    if found.operation not in OPERATIONS:
        raise RefusedOption(
            "operation", "is not known here", f"choose one of {', '.join(OPERATIONS)}",
            value=found.operation[:40],
        )  # fmt: skip
    if found.partial and (found.operation != "upsert" or found.everywhere):
        what = "upserts" if found.operation != "upsert" else "rows that stay in their partition"
        raise RefusedOption(
            PARTIAL_UPDATE, f"is for {what}: other rows need all of their columns",
            "leave it out, and write whole rows", value="true",
        )  # fmt: skip
    if found.partial and found.nonblocking:
        raise RefusedOption(
            PARTIAL_UPDATE, "is refused with non-blocking concurrency control: another writer may "
            "delete a row meanwhile, and readers would join its values to the partial row",
            "write whole rows, or leave hoodie.write.concurrency.mode out", value="true",
        )  # fmt: skip
    if found.partitions and found.operation != "delete_partition":
        raise RefusedOption(PARTITIONS, "is for the operation delete_partition", "leave it out")
    if type(found.retries) is not int or not 0 <= found.retries <= RETRIES_MAX:
        raise RefusedOption("retries", f"must be from 0 to {RETRIES_MAX}", value=str(found.retries))
    for name, value in (("buckets", found.buckets), ("tasks", found.tasks)):
        if value is not None and not 0 < value <= 100_000:
            raise RefusedOption(name, "must be from 1 to 100000", value=str(value))
    if found.file_bytes_max <= 0:
        raise RefusedOption(
            "file_bytes_max", "must be greater than 0", value=str(found.file_bytes_max)
        )
    return found


# --- the table that is meant ----------------------------------------------------------------------


def known_config(
    requested: WriteOptions, url: str, store: Store, clock: Clock
) -> tuple[TableConfig, bool]:
    """The table's config, or the one to make it with, and whether the table exists."""
    try:
        config, _version = run(load_config(), store, clock)
    except TableError:
        if not store.list(PROPERTIES_KEY):
            config = new_config(requested, url)
            refuse_other(requested.described, config)
            refuse_blocking(config, requested.concurrency)
            return config, False
        config, _version = run(load_config(), store, clock)  # made meanwhile, or no table of ours
    refuse_another(requested, config)
    return config, True


def config_by(given: Mapping[str, Any], config: TableConfig) -> TableConfig:
    """The config of a new table with these options, in lower case; raises for those that contradict
    it: every write would be refused.
    """
    refuse_other(described(given), config)
    return replace(config, log_format=log_format(given) or "")


def new_config(requested: WriteOptions, url: str) -> TableConfig:
    if requested.record_key is None:
        raise NoTable(
            url, "has no table yet, and a new table needs a record_key", "pass record_key"
        )
    default = TableConfig(name="t", record_key="k")
    several = "," in requested.record_key + (requested.partition_path or "")
    config = TableConfig(
        name=requested.table_name or url.rpartition("/")[2],
        record_key=requested.record_key,
        partition_by=requested.partition_path,
        precombine=requested.precombine,
        named=not several and says_complex(requested.described),
        table_type=requested.table_type or default.table_type,
        version=requested.version or default.version,
        buckets=requested.buckets or default.buckets,
        index=BUCKET_INDEX if says_hashed(requested.described) else "",
        hive_style=default.hive_style if requested.hive_style is None else requested.hive_style,
        urlencode=default.urlencode if requested.urlencode is None else requested.urlencode,
        log_format=requested.log_format,
    )
    return config.committing(requested.mode, turns=requested.turns)


def refuse_another(requested: WriteOptions, config: TableConfig) -> None:
    """Raise if the write's settings contradict the table's properties."""
    for name in ("record_key", "partition_path", "precombine", "table_name", "table_type",
                 "version", "mode", "buckets"):  # fmt: skip
        mine, theirs = getattr(requested, name), getattr(config, _FIELDS.get(name, name))
        if mine is not None and mine != theirs:
            raise RefusedOption(
                name, f"is {theirs!r} in the table and {mine!r} in this write",
                "leave it out to take the table's, or choose another place",
            )  # fmt: skip
    refuse_other(requested.described, config)
    refuse_blocking(config, requested.concurrency)


_FIELDS = {"partition_path": "partition_by", "table_name": "name", "mode": "commit_mode"}
"""Keywords that the table's config has under other names."""
