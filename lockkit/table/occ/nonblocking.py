"""Non-blocking concurrency control: writers add log files to one file group, and all commit.

Hudi's NON_BLOCKING_CONCURRENCY_CONTROL. A commit with new log files hides none of another's, so the
two do not conflict. Readers merge the log files of a slice by ordering value, or by instant. What
replaces file groups still conflicts with every writer of them. Every state change is still made
under the table's lock, or by the fence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockkit.table.errors import RefusedOption
from lockkit.table.format.properties import HUDI, TableConfig
from lockkit.table.format.property_keys import BUCKET_INDEX, INDEX, MERGE_ON_READ
from lockkit.table.occ.concurrency import CONCURRENCY_KEY, NON_BLOCKING, concurrency_mode
from lockkit.table.occ.conflict import (
    BUCKET,
    SIMPLE,
    STRATEGY_KEY,
    ConflictStrategy,
    overlaps,
    planned,
    planned_after_us,
    rolled_us_back,
)

NONBLOCKING = ConflictStrategy(
    "non_blocking", "",
    {"ingestion": {"clustering": planned, "overwrite": planned_after_us,
                   "rollback": rolled_us_back}},
    checks={"ingestion": {"clustering": overlaps, "overwrite": overlaps,
                          "rollback": rolled_us_back}},
)  # fmt: skip
_APPENDING = ("insert", "upsert", "delete")


def refuse_blocking(config: TableConfig, options: Mapping[str, Any]) -> None:
    """Raise unless `options`, in lower case, may be given for writes to this table.

    The conditions are those of Hudi's `HoodieWriteConfig`.
    """
    fits = config.hashed and config.merged and not config.sliced
    if concurrency_mode(options) == NON_BLOCKING and not fits:
        kind = "merge-on-read with lockkit's own buckets" if config.merged else "copy-on-write"
        kind = "of version 6" if config.sliced else kind
        raise RefusedOption(
            CONCURRENCY_KEY, f"needs a {MERGE_ON_READ} table of version 8 or later with Hudi's "
            f"simple bucket index ({INDEX}={BUCKET_INDEX}); this one is {kind}",
            f'make it with table_type="{MERGE_ON_READ}" and index="{BUCKET_INDEX}", or leave the '
            "option out", value=NON_BLOCKING,
        )  # fmt: skip


def strategy_for(operation: str, strategy: ConflictStrategy) -> ConflictStrategy:
    """What a non-blocking write conflicts with; `RefusedOption` for a write that replaces groups.
    """
    if operation not in _APPENDING:
        raise RefusedOption(
            operation, f"is refused with {CONCURRENCY_KEY}={NON_BLOCKING}, as in Hudi: it replaces "
            "file groups that others write", f"open the table without {CONCURRENCY_KEY}",
        )  # fmt: skip
    if strategy not in (SIMPLE, BUCKET):
        why = f"is refused beside {CONCURRENCY_KEY}={NON_BLOCKING}: no writer gives way to another"
        raise RefusedOption(STRATEGY_KEY, why, "leave one of them out", value=strategy.name)
    return NONBLOCKING


def refuse_replacing(config: TableConfig, operation: str) -> None:
    """Raise if a write would empty a bucket where Hudi writes too.

    Hudi's non-blocking writers give a bucket without a file group always the same id, also if that
    group was replaced: then no reader sees their rows.
    """
    shared = config.hashed and config.merged and config.mode == HUDI
    if shared and operation not in (*_APPENDING, "bulk_insert"):
        raise RefusedOption(
            operation, f"is refused in the mode {HUDI} on a table with {INDEX}={BUCKET_INDEX}: "
            "Hudi's non-blocking writers continue to use the file group that it would replace",
            "delete the rows by their keys, or make a new table",
        )  # fmt: skip
