"""A write to a deleted table leaves the partition's file of a table that was made again there."""

from typing import Any

import pyarrow as pa
import pytest

from lockkit.stores import open_store
from lockkit.stores.memory import MemoryStore
from lockkit.table import Table
from lockkit.table.errors import NoTable
from lockkit.table.format.layout import PARTITION_FILE

SCHEMA = pa.schema([("id", pa.string()), ("region", pa.string())])


def rows(key: str) -> pa.Table:
    return pa.Table.from_pylist([{"id": key, "region": "EU"}], SCHEMA)


def test_a_partition_of_a_table_that_was_made_again_keeps_its_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = "memory://made-again/orders"
    store = open_store(url)
    Table.create(url, record_key="id", partition_by="region").close()
    real_put, real_delete = MemoryStore.put, MemoryStore.delete
    real_list = MemoryStore.list
    steps: list[str] = []
    armed: list[bool] = []

    def put(self: MemoryStore, key: str, *args: Any, **more: Any) -> Any:
        # The folder is deleted before the write takes its instant.
        if key.endswith(".requested") and armed and not steps:
            steps.append("deleted")
            for entry in list(real_list(store, "")):
                real_delete(store, entry.key)
        return real_put(self, key, *args, **more)

    def listed(self: MemoryStore, prefix: str, *args: Any, **more: Any) -> Any:
        # The table is made again while the write clears away.
        if steps == ["deleted"] and prefix.startswith(".hoodie/.temp/"):
            steps.append("made again")
            for entry in list(real_list(store, ".hoodie/.locks/")):
                real_delete(store, entry.key)
            with Table.create(url, record_key="id", partition_by="region") as again:
                again.append(rows("theirs"))
        return real_list(self, prefix, *args, **more)

    monkeypatch.setattr(MemoryStore, "put", put)
    monkeypatch.setattr(MemoryStore, "list", listed)
    with pytest.raises(NoTable), Table(url) as table:
        armed.append(True)
        table.append(rows("ours"))
    assert steps == ["deleted", "made again"]
    with Table(url) as table:
        assert table.read().column("id").to_pylist() == ["theirs"]
    kept = [each.key for each in real_list(store, "region")]
    assert any(PARTITION_FILE in key for key in kept), "Hudi needs this file"
