"""Two commits on one table, one request at a time: the very procedure, stopped at each request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import lockkit.table as table
from lockkit.check import check
from lockkit.drive import run
from lockkit.state import LockLost
from lockkit.stores import Store, StoreError
from lockkit.table.ask import create
from lockkit.table.transaction import Prepared
from lockkit.workbench.staged import Staged

URL = "s3://lake/orders"


@dataclass(frozen=True, slots=True)
class Grant:
    """The lock as the two writers see it: W2's grant came after W1's had run out."""

    epoch: int


class Steps(Staged):
    """W1 and W2 have read one order, and each is about to commit another amount for it.

    `mode` is the table's: `fenced` or `hudi`.
    """

    refusals = (table.TableError, table.CommitUnknown, LockLost, StoreError)

    def __init__(self, mode: str = "fenced", *, version: int = 6) -> None:
        super().__init__(URL)
        self.config = table.TableConfig(name="orders", record_key="id", mode=mode, version=version)
        run(table.create_table(self.config), self._look, self.clock)
        first = self._prepare("W0", self._look, 0)
        run(table.commit(first, Grant(0)), self._look, self.clock, self._emit("W0"))
        for epoch, name in enumerate(("W1", "W2"), 1):
            store = self._open(name)
            prepared = self._prepare(name, store, epoch)
            self.act(name, table.commit(prepared, Grant(epoch)), store)

    def told(self, result: Any) -> str:
        return f"committed {result.instant}"

    @property
    def rows(self) -> dict[str, int]:
        """What a reader of the table sees: order -> amount."""
        found = table.read_table(self._look, self.clock).to_pylist()
        return {each["id"]: each["amount"] for each in found}

    @property
    def verdict(self) -> Any:
        return check(self.events)

    def _prepare(self, name: str, store: Store, amount: int) -> Prepared:
        import pyarrow as pa

        emit = self._emit(name)
        transaction = run(table.begin(), store, self.clock, emit)
        rows = pa.table({"id": ["order-1"], "amount": pa.array([amount * 10], pa.int64())})
        if amount == 0:
            file = table.write_inserts(transaction.target, rows, file_id="orders-0")
        else:
            snapshot = run(table.load_snapshot(covering=transaction.covered), store, self.clock)
            (base,) = snapshot.slices
            old = run(table.read_slice(base), store, self.clock)
            file = table.rewrite_group(transaction.target, base, old, rows)
        run(create(file.key, file.body), store, self.clock)
        schema = table.avro_schema(rows.schema, "orders")
        ready = table.prepare(transaction, [file.stat], schema=schema)
        prepared: Prepared = run(ready, store, self.clock, emit)
        return prepared
