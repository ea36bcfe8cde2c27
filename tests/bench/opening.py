"""What opening a table costs whose archive has 10,000 instants, over one with 30.

The tables are in Hudi's format, versions 9 and 6, in the mode in which Hudi writes too: no fence
and no checkpoint of ours shortens the way. Both of a version have the same commits on the timeline.
The archive's further instants are copies of its own under earlier times, in the same file of the
archive. The two are opened in turn, so that both meet the same load.
"""

from __future__ import annotations

import io
import re
import statistics
import time
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lockkit import Clock
from lockkit.protocol.outcome import Found, IfVersion
from lockkit.runtime import run
from lockkit.stores import Store
from lockkit.table import Table
from lockkit.table.format.archived import load_archived
from lockkit.table.format.timeline import instant_ms, instant_of
from lockkit.table.read.opening import load_snapshot

COMMITS, KEPT = 42, 10
"""So that about 30 are archived."""
MORE, QUICK_MORE = 10_000, 500
OPENINGS = 41
ARCHIVES = {9: ".hoodie/timeline/history/", 6: ".hoodie/archived/"}
OPTIONS = {
    "hoodie.clean.automatic": "false", "hoodie.clean.commits.retained": "3",
    "hoodie.write.concurrency.mode": "single_writer",
}  # fmt: skip


class Counting:
    """A store that counts the requests."""

    def __init__(self, store: Store) -> None:
        self.store, self.requests = store, 0

    def __getattr__(self, name: str) -> Any:
        self.requests += name in ("get", "put", "list", "delete", "get_file")
        return getattr(self.store, name)


def goals(result: dict[str, Any]) -> list[tuple[str, float, float]]:
    each = list(result["rows"].items())
    return [
        (f"opening, {name}, {what}, times one with 30", round(many[what] / few[what], 2), 1.5)
        for (_, few), (name, many) in zip(each[::2], each[1::2], strict=True)
        for what in ("requests", "p50_ms")
    ]  # fmt: skip


def _opened_in_turn(stores: dict[str, Store], archive: str) -> dict[str, Any]:
    taken: dict[str, list[float]] = {name: [] for name in stores}
    counting = {name: Counting(store) for name, store in stores.items()}
    for _ in range(OPENINGS):
        for name, store in counting.items():
            store.requests = 0
            began = time.perf_counter()
            run(load_snapshot(), store, Clock())
            taken[name].append(time.perf_counter() - began)
    return {
        name: {
            "requests": counting[name].requests,
            "p50_ms": round(statistics.median(taken[name]) * 1000, 2),
            "archive_bytes": sum(each.size for each in store.list(archive)),
        }
        for name, store in stores.items()
    }


def _newest(store: Store, archive: str) -> tuple[str, Found]:
    names = [each.key for each in store.list(archive)]
    key = max(each for each in names if each.endswith(".parquet") or "archive." in each)
    found = store.get(key)
    assert isinstance(found, Found)
    return key, found


def _grow_history(store: Store, more: int) -> None:
    """Put `more` instants in front of those that the archive's newest file has."""
    key, found = _newest(store, ARCHIVES[9])
    there = pq.read_table(io.BytesIO(found.body))
    first = there.slice(0, 1).to_pylist()[0]
    at_ms = instant_ms(first["instantTime"])
    copies = [
        first | {"instantTime": instant_of(at_ms - number * 1000),
                 "completionTime": instant_of(at_ms - number * 1000 + 10)}
        for number in range(more, 0, -1)
    ]  # fmt: skip
    out = io.BytesIO()
    pq.write_table(pa.concat_tables([pa.Table.from_pylist(copies, there.schema), there]), out)
    store.put(key, out.getvalue(), IfVersion(found.version))


def _grow_log(store: Store, more: int) -> None:
    """The same of version 6, whose log file has a block for each time that lockkit archived."""
    key, found = _newest(store, ARCHIVES[6])
    copies = [
        re.sub(rb"20\d{15}", lambda at, by=by: _earlier(at[0], by), found.body)
        for by in range(-(-more // (COMMITS - KEPT)), 0, -1)
    ]
    store.put(key, b"".join(copies) + found.body, IfVersion(found.version))


def _earlier(instant: bytes, hours: int) -> bytes:
    return instant_of(instant_ms(instant.decode()) - hours * 3_600_000).encode()


def main(quick: bool = False) -> dict[str, Any]:
    more, result = QUICK_MORE if quick else MORE, dict[str, Any]()
    for version, grow in ((9, _grow_history), (6, _grow_log)):
        few, many = (_made(version, name) for name in ("few", "many"))
        grow(many[0], more)
        config = run(load_snapshot(), many[0], Clock()).config
        every = len(run(load_archived(config), many[0], Clock()))
        result |= _opened_in_turn({
            f"version {version}, {few[1]} archived instants": few[0],
            f"version {version}, {every:,} archived instants": many[0],
        }, ARCHIVES[version])  # fmt: skip
    return {"rows": result}


def _made(version: int, name: str) -> tuple[Store, int]:
    """A table in memory, and how many of its instants are archived."""
    with Table.create(
        f"memory://opening-{version}-{name}", record_key="id", precombine="at", mode="hudi",
        buckets=2, version=version, options=OPTIONS,
    ) as table:  # fmt: skip
        for number in range(COMMITS):
            table.upsert(pa.table({"id": [f"k{number % 20}"], "at": [number]}))
        table.clean()
        done = table.archive(keep_min=KEPT, keep_max=KEPT + 2)
        assert done is not None
        return table.store, len(done.instants)
