"""What keeps every write from a table: its properties, its columns, a file, or the timeline."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lockkit.protocol.outcome import Found
from lockkit.runtime import run
from lockkit.table.errors import NotWritable, RefusedRows, TableError
from lockkit.table.format.base_file import refuse_key_type
from lockkit.table.format.log_writing import refuse_ordering_type
from lockkit.table.format.named_columns import generator, lacking, named_columns
from lockkit.table.format.properties import (
    FENCED,
    GROUP,
    HUDI,
    PROPERTIES_KEY,
    SERIAL,
    TableConfig,
    from_properties,
    to_properties,
)
from lockkit.table.format.property_keys import (
    COPY_ON_WRITE,
    FOLDER,
    HIVE_STYLE,
    KEY_CLASS,
    KEY_TYPE,
    LAYOUT,
    MERGE_ON_READ,
    MODE,
    PARTITION_FIELDS,
    RECORD_KEYS,
    TIMESTAMP,
    TYPE,
    URLENCODE,
    format_properties,
)
from lockkit.table.format.readable import LAYOUT_OF
from lockkit.table.format.refusals import refuse_millis
from lockkit.table.format.schema import RECORD_KEY, stored_schema
from lockkit.table.format.schema_reading import arrow_schema
from lockkit.table.format.timeline import load_timeline, refuse_ahead
from lockkit.table.occ.conflict import refuse_unreadable
from lockkit.table.occ.failed import service_plans
from lockkit.table.occ.fence import read_fence
from lockkit.table.read.checkpoint import read_checkpoint
from lockkit.table.read.listed import list_snapshot
from lockkit.table.read.opening import OpenedTable, SnapshotPoint, load_commits, snapshot_at
from lockkit.table.read.snapshot import nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from lockkit.clock import Clock
    from lockkit.runtime import Procedure
    from lockkit.stores import Store
    from lockkit.table.format.timeline import Timeline
    from lockkit.table.occ.condition import TableCondition
    from lockkit.table.read.snapshot import Snapshot
    from lockkit.table.services.adopt import Adoption
BY_IDS = "hoodie.schema.on.read.enable"


def refused_writes(
    store: Store, clock: Clock, config: TableConfig, keys: Mapping[str, str] | None = None,
    found: TableCondition | None = None,
) -> list[str]:  # fmt: skip
    """Each reason why a write, or one to some file group, is refused now. Reads only.

    `keys` are the table's properties, by default those that make `config`. What an inspection
    has `found` is not read again.
    """
    keys = to_properties(config) if keys is None else keys
    now = found.timeline if found else run(load_timeline(config.names), store, clock)
    damaged: dict[str, str] = {}
    run(service_plans(config.names, now, damaged), store, clock)
    listed = [why for instant, why in damaged.items()
              if config.sliced or now.pending[instant] != "compaction"]  # fmt: skip

    def columns() -> None:
        try:
            snapshot = run(_snapshot(config, now), store, clock)
        except NotWritable as error:
            listed.append(str(error))
            snapshot = run(list_snapshot(), store, clock)
        listed.extend(_refused_columns(keys, snapshot.schema) if snapshot.schema else ())

    checks: list[Callable[[], Any]] = [
        lambda: refuse_ahead(now.latest, clock.wall_ms(), config.accepted),
        lambda: refuse_unreadable(now, config, known=frozenset(now.completed)),
        columns,
    ]
    if config.mode == FENCED and config.commit == SERIAL and found is None:
        checks.append(lambda: run(read_fence(), store, clock))
    for check in checks:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about local time: the caller has its own message
                check()
        except TableError as error:
            listed.append(str(error))
    return list(dict.fromkeys(listed))


def _snapshot(config: TableConfig, now: Timeline) -> Procedure[Snapshot]:
    """The table as a write begins with it."""
    before = yield from read_checkpoint()
    if before is None or before.config != config:
        before = nothing(config)
    after = ""
    if config.commit == GROUP:  # it waits for what is decided, and not published yet
        after = before.covered.listed_after
        now = yield from load_commits(config.names, True, after)
    return (yield from snapshot_at(OpenedTable(config, "", before, now, after), SnapshotPoint()))


def _refused_columns(keys: Mapping[str, str], avro: str) -> Iterator[str]:
    schema = arrow_schema(avro)
    yield from lacking(keys, schema)
    yield from _unfit_types(keys, schema)
    if keys.get(TYPE) == MERGE_ON_READ:
        refuse_millis(avro)


def _unfit_types(keys: Mapping[str, str], schema: pa.Schema) -> Iterator[str]:
    """Why each write with the columns of the table would be refused for the type of one."""
    try:
        stored_schema(schema)
    except RefusedRows as error:
        yield str(error)
        return
    for key, names in named_columns(keys).items():
        for field in (schema.field(each) for each in names if each in schema.names):
            try:
                if key == RECORD_KEYS:
                    refuse_key_type(field.name, field.type)
                elif key == PARTITION_FIELDS:
                    _refuse_partition_type(field, timed=generator(keys) == TIMESTAMP)
                elif keys.get(TYPE) == MERGE_ON_READ:
                    refuse_ordering_type(field.name, field.type)
            except RefusedRows as error:
                yield f"{key}={keys[key][:80]}: {error}"


def _refuse_partition_type(field: pa.Field, timed: bool) -> None:
    import pyarrow as pa

    plain = pa.string(), pa.int32(), pa.int64(), pa.date32(), pa.bool_()
    if field.type not in plain and not timed:
        why = f"is a partition field of type {field.type}, which other writers spell differently"
        raise RefusedRows(field.name, why, "make it a string")


# --- of a table that is not adopted yet -----------------------------------------------------------


def with_refused(store: Store, clock: Clock, found: Adoption) -> Adoption:
    """`found`, with what else would refuse or misplace rows once its fixes are made."""
    then = found.then
    if (config := _as_far_as_understood(then)) is None:
        return found
    at = store
    if not found.writable or then != found.keys:
        at = Pretended(store, format_properties(to_properties(config)))
    by_ids = any(BY_IDS in each for each in found.remaining)
    more = [each for each in refused_writes(at, clock, config, then)
            if each not in found.remaining and not (by_ids and BY_IDS in each)]  # fmt: skip
    if not more:
        from lockkit.table.services.stored_rows import misplaced

        more = list(misplaced(at, clock, config))
    return replace(found, remaining=(*found.remaining, *more),
                   writable=found.writable and not more)  # fmt: skip


def _as_far_as_understood(keys: Mapping[str, str]) -> TableConfig | None:
    """The config, or, if not all properties can be obeyed, what those that can be say."""
    with suppress(TableError):
        return from_properties(keys)
    version, mode = keys.get("hoodie.table.version", ""), keys.get(MODE)
    if keys.get(LAYOUT, "none") != LAYOUT_OF.get(version):
        return None
    folder = keys.get("hoodie.archivelog.folder", "")
    merged, old = keys.get(TYPE) == MERGE_ON_READ, version in ("6", "7")
    config = TableConfig(
        name="table", record_key=RECORD_KEY, version=6 if old else int(version),
        mode=FENCED if mode == FENCED and not (merged and old) else HUDI,
        table_type=MERGE_ON_READ if merged else COPY_ON_WRITE,
        archive=folder if FOLDER.fullmatch(folder) else "archived",
    )  # fmt: skip
    plain = {key: value for key, value in to_properties(config).items() if not _places(key)}
    with suppress(TableError):
        return from_properties(plain | {key: value for key, value in keys.items() if _places(key)})
    return config


def _places(key: str) -> bool:
    """Whether the property says which key and which partition a row has."""
    return key in (RECORD_KEYS, PARTITION_FIELDS, KEY_TYPE, KEY_CLASS, HIVE_STYLE, URLENCODE) or (
        key.startswith("hoodie.keygen.timebased."))  # fmt: skip


class Pretended:
    """A store to read, as if the table's properties were `body`."""

    def __init__(self, store: Store, body: bytes) -> None:
        self._store, self._body = store, body

    def get(self, key: str, **how: Any) -> Any:
        if key == PROPERTIES_KEY:
            return Found(self._body, "pretended")
        return self._store.get(key, **how)

    def __getattr__(self, name: str) -> Any:
        assert name not in ("put", "put_file", "delete"), f"{name}: nothing is written here"
        return getattr(self._store, name)
