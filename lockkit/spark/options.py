"""What a write was asked to do: Python's keywords and Hudi's option names, made one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from lockkit.errors import TableError
from lockkit.table.format.gate import check_options, described
from lockkit.table.format.properties import HIVE_STYLE, URLENCODE
from lockkit.table.occ.concurrency import concurrency_mode
from lockkit.table.occ.conflict import SIMPLE, STRATEGY_KEY, Strategy, strategy_of
from lockkit.table.occ.liveness import HeartbeatRules, heartbeat_rules
from lockkit.table.occ.markers import early_commits, early_detection
from lockkit.table.services.schedule import service_rules
from lockkit.table.write.groups import FILE_BYTES_MAX

Operation = Literal[
    "insert", "bulk_insert", "upsert", "delete", "insert_overwrite", "insert_overwrite_table"
]
OPERATIONS: tuple[str, ...] = get_args(Operation)
RETRIES = "hoodie.write.num.retries.on.conflict.failures"
RETRIES_MAX = 1000
WRITE = "hoodie.datasource.write."

_ONE_NAME = {
    "operation": (WRITE + "operation",),
    "record_key": (WRITE + "recordkey.field", "hoodie.table.recordkey.fields"),
    "precombine": (WRITE + "precombine.field", "hoodie.table.precombine.field",
                   "hoodie.table.ordering.fields"),
    "partition_path": (WRITE + "partitionpath.field", "hoodie.table.partition.fields"),
    "table_name": ("hoodie.table.name", "hoodie.datasource.write.table.name"),
    "version": ("hoodie.write.table.version",),
    "mode": ("lockkit.commit.mode",),
    "buckets": ("hoodie.bucket.index.num.buckets",),
    "hive_style": (HIVE_STYLE,),
    "urlencode": (URLENCODE,),
    "retries": (RETRIES,),
    "drop_duplicates": (WRITE + "insert.drop.duplicates",),
    "combine": ("hoodie.combine.before.insert",),
    "allow_empty": ("hoodie.allow.empty.commit",),
    "file_bytes_max": ("hoodie.parquet.max.file.size",),
    "tasks": ("hoodie.upsert.shuffle.parallelism",),
}  # fmt: skip
KEYWORDS = frozenset(_ONE_NAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One write; what is None is as the table says, or by default."""

    operation: str = "upsert"
    record_key: str | None = None
    precombine: str | None = None
    partition_path: str | None = None
    table_name: str | None = None
    version: int | None = None
    mode: str | None = None
    buckets: int | None = None
    hive_style: bool | None = None
    urlencode: bool | None = None
    described: Mapping[str, Any] = field(default_factory=dict)
    """Options that say something of the table."""
    retries: int = 0
    drop_duplicates: bool = False
    combine: bool = False
    allow_empty: bool = False
    file_bytes_max: int = FILE_BYTES_MAX
    tasks: int | None = None
    early: bool = False
    early_commits: bool = False
    rules: HeartbeatRules = field(default_factory=HeartbeatRules)
    strategy: Strategy = SIMPLE


def asked(options: Mapping[str, Any], **keywords: Any) -> Asked:
    """Keywords that are not None win over options; `TableError` names what cannot be meant.

    Options are Hudi's, in any case of letters (Spark lowers them); `lockkit.table.format.gate` says
    what becomes of each.
    """
    given = check_options(options, stacklevel=4)
    service_rules(given, concurrency_mode(given))  # refuses here what it would refuse at the commit
    said: dict[str, Any] = {}
    for keyword, names in _ONE_NAME.items():
        value = keywords.get(keyword)
        key = next((name for name in names if given.get(name) not in (None, "")), None)
        if value is None and key is not None:
            value = _typed(keyword, key, given[key])
        if value is not None:
            said[keyword] = value
    found = Asked(
        **said,
        described=described(given),
        early=early_detection(given),
        early_commits=early_commits(given),
        rules=heartbeat_rules(given),
        strategy=strategy_of(str(given[STRATEGY_KEY])) if STRATEGY_KEY in given else SIMPLE,
    )
    return _checked(found)


def _typed(keyword: str, key: str, value: Any) -> Any:
    kind = str(Asked.__annotations__[keyword])
    text = str(value)
    if "bool" in kind:
        if text.lower() not in ("true", "false"):
            raise TableError(f"{key}={text[:40]!r} must be true or false")
        return text.lower() == "true"
    if "int" in kind:
        if not text.isascii() or not text.isdecimal() or len(text) > 15:
            raise TableError(f"{key}={text[:40]!r} must be a whole number")
        return int(text)
    return text


def _checked(found: Asked) -> Asked:
    if found.operation not in OPERATIONS:
        raise TableError(
            f"operation {found.operation[:40]!r} is not known here; choose one of "
            f"{', '.join(OPERATIONS)}"
        )
    if not 0 <= found.retries <= RETRIES_MAX:
        raise TableError(f"retries={found.retries} must be from 0 to {RETRIES_MAX}")
    for name, value in (("buckets", found.buckets), ("tasks", found.tasks)):
        if value is not None and not 0 < value <= 100_000:
            raise TableError(f"{name}={value} must be from 1 to 100000")
    if found.file_bytes_max <= 0:
        raise TableError(f"file_bytes_max={found.file_bytes_max} must be greater than 0")
    return found
