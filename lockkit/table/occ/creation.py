"""Creating a table: the fence first, then the properties, on a store that enforces conditions."""

from __future__ import annotations

from dataclasses import replace

from lockkit.errors import TableError
from lockkit.lock.creation_check import prove_creation
from lockkit.protocol.outcome import Found, Version
from lockkit.runtime import Procedure, Unique
from lockkit.runtime.proven import create, delete, read
from lockkit.table.errors import RefusedOption
from lockkit.table.format.properties import (
    FENCED,
    GROUP,
    PROPERTIES_KEY,
    SERIAL,
    TableConfig,
    from_properties,
    refuse_half_rewritten,
    to_properties,
)
from lockkit.table.format.property_keys import (
    PROPERTIES_BYTES_MAX,
    format_properties,
    parse_properties,
)
from lockkit.table.format.schema import META_COLUMNS
from lockkit.table.occ.fence import (
    CLOSED,
    FENCE_BYTES_MAX,
    FENCE_KEY,
    format_fence,
    is_grouped,
    opened,
    parse_fence,
)

CREATED = "created with the table"
"""The attempt of a table's first fence: concurrent creators of a table write the same fence."""


def create_table(config: TableConfig, *, either: bool = False) -> Procedure[TableConfig]:
    """Create the table, or find the same one; `TableError` if a different one exists.

    A store that ignores conditions is refused (`UnsafeStore`) first. A fenced table gets its fence
    before its properties. So a missing fence was lost later, and is never silently replaced.

    :param config: its properties.
    :param either: a table that is there may commit in another way than `config` says.
    """
    for name in (*config.record_keys, *config.partition_fields, config.precombine):
        if name in META_COLUMNS:
            raise RefusedOption(name, "is a column that writers fill", "name one of the rows'")
    if not config.record_key and (config.merged or config.hashed):
        raise RefusedOption("record_key", "is needed: log files and Hudi's buckets have keys")
    yield from refuse_half_rewritten()
    match (yield from read(PROPERTIES_KEY, limit=PROPERTIES_BYTES_MAX)):
        case Found(body, _):
            return _the_same(config, body, either)
    yield from prove_creation(PROPERTIES_KEY)
    made: Version = ""
    if config.mode == FENCED:
        config, made = yield from _with_fence(config, either)
    else:
        yield from _without_fence()
        if config.version > 6:
            from lockkit.table.occ.rewriting import block_metadata
            yield from block_metadata()
    match (yield from create(PROPERTIES_KEY, format_properties(to_properties(config)))):
        case Found(body, _):
            if made and from_properties(parse_properties(body)).mode != FENCED:
                yield from delete(FENCE_KEY, made)  # that table has none
            return _the_same(config, body, either)
        case _version:
            return config


def _with_fence(config: TableConfig, either: bool) -> Procedure[tuple[TableConfig, Version]]:
    """The config, once the fence is there, and the version of the fence that this made.

    With `either`, the config takes the way of a fence that is there already: its maker is at work,
    or has died before it wrote the properties.
    """
    first = format_fence(opened(0, CREATED, whole=True))
    if config.commit == GROUP:
        from lockkit.table.occ.group.fence import first_fence
        first = first_fence(CREATED, (yield Unique()), config.version)
    there = yield from create(FENCE_KEY, first)
    if not isinstance(there, Found):
        return config, there
    grouped = is_grouped(there.body)
    if either and not config.merged:
        config = replace(config, commit=GROUP if grouped else SERIAL)
    six = False
    if grouped:
        from lockkit.table.occ.group.fence import parse_group_fence
        six = parse_group_fence(there.body).completion is None
    if grouped != (config.commit == GROUP) or (grouped and six != (config.version == 6)):
        raise _made_by_another(f"group commit in table version {6 if six else 9}" if grouped
                               else "serial commits")  # fmt: skip
    return config, ""


def _without_fence() -> Procedure[None]:
    """Raise `TableError` if another maker's fence is there: a table in the mode `hudi` has none."""
    found = yield from read(FENCE_KEY, limit=FENCE_BYTES_MAX)
    if isinstance(found, Found):
        grouped = is_grouped(found.body)
        if grouped or parse_fence(found.body).head.kind != CLOSED:
            raise _made_by_another("group commit" if grouped else "serial commits")


def _made_by_another(kind: str) -> TableError:
    return TableError(
        FENCE_KEY, f"is another maker's, for {kind}: that one is still making this table, or died",
        "open the table once it exists; if the other maker died, make the table in the same way, "
        "or delete this object",
    )  # fmt: skip


def _the_same(config: TableConfig, body: bytes, either: bool) -> TableConfig:
    there = from_properties(parse_properties(body))
    if either and there.mode == config.mode and not config.merged:
        config = replace(config, commit=there.commit)
    if there != config:
        names = [name for name, each in TableConfig.__dataclass_fields__.items()
                 if each.compare and getattr(config, name) != getattr(there, name)]  # fmt: skip
        mine, its = (", ".join(f"{n}={getattr(c, n)!r}" for n in names) for c in (config, there))
        raise RefusedOption(mine, f"is refused: a different table is there, with {its}", "open it")
    return there
