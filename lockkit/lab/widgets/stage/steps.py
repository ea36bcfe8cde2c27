"""Two commits on one table, one request at a time: the real procedure, stopped at each request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import lockkit.table as table
from lockkit.errors import LockLost, StoreError
from lockkit.lab.verify.check import check
from lockkit.lab.widgets.stage.staged import Stage
from lockkit.runtime import Procedure
from lockkit.runtime.proven import create
from lockkit.table.occ.prepared import Prepared

VARIANTS = {
    "": ("fenced", 6), "hudi mode": ("hudi", 6), "version 9": ("fenced", 9),
    "hudi mode, version 9": ("hudi", 9),
}  # fmt: skip
"""Of the play `commit`, as a moment names them: the table's mode and version."""


@dataclass(frozen=True, slots=True)
class StagedLock:
    """The lock as the two writers see it: W2 was granted it after W1's lease had expired."""

    epoch: int


class CommitStage(Stage):
    """A table of orders, and writers that are about to commit to it."""

    refusals = (table.TableError, table.CommitUnknown, LockLost, StoreError)

    def outcome_of(self, result: Any) -> str:
        return f"committed {result.instant}"

    def orders(self) -> list[tuple[str, int]]:
        """What a reader of the table sees: order and amount."""
        rows: list[tuple[str, int]] = self.read(_rows())
        return rows

    @property
    def verdict(self) -> Any:
        return check(self.events)


class Steps(CommitStage):
    """W1 and W2 have read one order, and each is about to commit another amount for it.

    `mode` is the table's: `fenced` or `hudi`.

    :param mode: the table's: fenced or hudi.
    :param version: the table's: 6 or 9.
    :raises ValueError: for another pair.
    """

    def __init__(self, mode: str = "fenced", *, version: int = 6) -> None:
        names = {of: name for name, of in VARIANTS.items()}
        if (mode, version) not in names:
            known = ", ".join(map(str, names))
            raise ValueError(f"no table here is {(mode, version)}; there are: {known}")
        super().__init__("commit", names[mode, version])
        self.config = table.TableConfig(name="orders", record_key="id", mode=mode, version=version)
        self.go("W0", table.create_table(self.config))
        self.go("W0", table.commit(self._prepare("W0", 0), StagedLock(0)))
        for epoch, name in enumerate(("W1", "W2"), 1):
            self.act(name, table.commit(self._prepare(name, epoch), StagedLock(epoch)))

    @property
    def rows(self) -> dict[str, int]:
        return dict(self.orders())

    def _prepare(self, name: str, amount: int) -> Prepared:
        import pyarrow as pa

        transaction = self.go(name, table.begin())
        rows = pa.table({"id": ["order-1"], "amount": pa.array([amount * 10], pa.int64())})
        if amount == 0:
            file = table.write_inserts(transaction.target, rows, file_id="orders-0")
        else:
            snapshot = self.go(name, table.load_snapshot(covering=transaction.covered))
            (base,) = snapshot.slices
            old = self.go(name, table.read_slice(base))
            file = table.rewrite_group(transaction.target, base, old, rows)
        self.go(name, create(file.key, file.body))
        schema = table.avro_schema(rows.schema, "orders")
        prepared: Prepared = self.go(name, table.prepare(transaction, [file.stat], schema=schema))
        return prepared


def _rows() -> Procedure[list[tuple[str, int]]]:
    snapshot, rows = (yield from table.load_snapshot()), list[tuple[str, int]]()
    for each in snapshot.slices:
        found = (yield from table.read_slice(each)).to_pydict()
        rows += zip(found["id"], found["amount"], strict=True)
    return rows
