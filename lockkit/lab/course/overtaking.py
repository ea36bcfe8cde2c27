"""One commit overtakes another: which pairs of writes may both succeed, and who detects it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

import lockkit.table as table
from lockkit.events import Event, shortened
from lockkit.lab.course.grid import grid
from lockkit.lab.course.lock_testbed import said
from lockkit.lab.widgets.stage.steps import CommitStage, StagedLock
from lockkit.runtime import Procedure
from lockkit.runtime.proven import create
from lockkit.table.format.timeline import V6, Timeline, load_timeline
from lockkit.table.occ.prepared import Prepared

UPDATE_1, UPDATE_2, INSERT_3, OVERWRITE = WRITES = (
    "update order-1", "update order-2", "insert order-3", "overwrite all",
)  # fmt: skip
"""What a writer may be about to write. Order-1 and order-2 are in two files, each a file group."""
REFUSED, BOTH = "W1 is refused", "both commits are acknowledged"
AGAIN = "W1 is refused once and checks again, and both commit"
GUESSES = (REFUSED, AGAIN, BOTH)
CHECKED = "checked"


class StagedOrders(CommitStage):
    """A table of two orders, and W1 and W2, each about to commit one of `WRITES`.

    Both have read the same table. The lease of `late` has expired; the other has the lock.
    """

    def __init__(
        self, mode: str = "fenced", one: str = UPDATE_1, other: str = UPDATE_1, late: str = "W1"
    ) -> None:
        for write in (one, other):
            if write not in WRITES:
                raise ValueError(f"no write here is {write!r}; there are: {', '.join(WRITES)}")
        if late not in ("W1", "W2"):
            raise ValueError(f"no writer {late!r}; there are W1 and W2")
        super().__init__("orders", mode)
        self.whose: dict[str, str] = {}
        """By instant."""
        self.results: dict[str, table.Committed] = {}
        self.go("W0", table.create_table(
            table.TableConfig(name="orders", record_key="id", mode=mode, version=6)
        ))  # fmt: skip
        self.go("W0", table.commit(self._prepare("W0", ""), StagedLock(0)))
        for name, write in (("W1", one), ("W2", other)):
            epoch = 1 if name == late else 2
            self.act(name, self._commit(name, self._prepare(name, write), epoch))

    def _commit(self, name: str, prepared: Prepared, epoch: int) -> Procedure[table.Committed]:
        self.results[name] = yield from table.commit(prepared, StagedLock(epoch))
        return self.results[name]

    @property
    def rows(self) -> tuple[tuple[str, int], ...]:
        return tuple(sorted(self.orders()))

    @property
    def timeline(self) -> Timeline:
        """The timeline as a listing shows it now."""
        now: Timeline = self.read(load_timeline(V6))
        return now

    def _prepare(self, name: str, write: str) -> Prepared:
        replaces = write == OVERWRITE
        transaction = self.go(name, table.begin(action="replacecommit" if replaces else "commit"))
        self.whose[transaction.instant] = name
        snapshot = self.go(name, table.load_snapshot(covering=transaction.covered))
        files = [self._file(name, transaction, snapshot, order) for order in _orders(write)]
        for file in files:
            self.go(name, create(file.key, file.body))
        groups = frozenset(snapshot.groups) if replaces else frozenset()
        prepared: Prepared = self.go(name, table.prepare(
            transaction, [file.stat for file in files], replaced=groups,
            schema=table.avro_schema(_order("order-1", 0).schema, "orders"),
            operation="INSERT_OVERWRITE_TABLE" if replaces else None,
        ))  # fmt: skip
        return prepared

    def _file(self, name: str, transaction: Any, snapshot: Any, order: str) -> Any:
        rows = _order(order, 0 if name == "W0" else 10 * int(name[1:]))
        base = next((each for each in snapshot.slices if each.file_id == f"{order}-W0"), None)
        if base is None or order == "order-3":
            return table.write_inserts(transaction.target, rows, file_id=f"{order}-{name}")
        old = self.go(name, table.read_slice(base))
        return table.rewrite_group(transaction.target, base, old, rows)


def _orders(write: str) -> tuple[str, ...]:
    """The orders that a write contains."""
    match write:
        case "":
            return "order-1", "order-2"
        case "overwrite all":
            return ("order-3",)
        case _:
            return (write.rpartition(" ")[2],)


def _order(order: str, amount: int) -> Any:
    import pyarrow as pa

    return pa.table({"id": [order], "amount": pa.array([amount], pa.int64())})


# --- W2 overtakes W1 ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OvertakenWriter:
    """W1 checked and was paused; W2 committed from beginning to end; W1 resumed."""

    ended: Mapping[str, str]
    """How each writer ended, in a sentence."""
    rounds: int
    """Conflict checks of W1; 0: it did not commit."""
    rows: tuple[tuple[str, int], ...]
    instants: Instants
    verdict: Any
    events: tuple[Event, ...] = field(repr=False)

    def __str__(self) -> str:
        if not self.rounds:
            return REFUSED
        return BOTH if self.rounds == 1 else AGAIN

    def __repr__(self) -> str:
        reported = "\n".join(f"{who}: {said}" for who, said in self.ended.items())
        seen = ", ".join(f"{order} = {amount}" for order, amount in self.rows)
        return f"{self}.\n{reported}\nA reader sees {seen}.\n{said(self.verdict)}"

    def _repr_html_(self) -> str:
        seen = ", ".join(f"{order} = {amount}" for order, amount in self.rows)
        mark = "✗" if self.verdict.kind == "INVALID" else "✓"
        return (
            grid("overtaking", ("writer", "result"), list(self.ended.items()))
            + self.instants._repr_html_()
            + f"<div><b>A reader sees</b> {escape(seen)}.</div>"
            f"<div><b>The checker says</b> {mark} {escape(said(self.verdict))}</div>"
        )


@dataclass(frozen=True, slots=True)
class Instants:
    """A timeline: each instant, its owner, and its existing files."""

    rows: tuple[tuple[str, str, str, str], ...]

    @classmethod
    def of(cls, now: Timeline, whose: Mapping[str, str]) -> Instants:
        every = {**now.completed, **now.pending}
        return cls(tuple(
            (instant, whose.get(instant, "?"), every[instant], _state(now, instant))
            for instant in sorted(every)
        ))  # fmt: skip

    def __repr__(self) -> str:
        return "\n".join("  ".join(row) for row in self.rows)

    def _repr_html_(self) -> str:
        rows = [(shortened(instant), *rest) for instant, *rest in self.rows]
        return grid("overtaking", ("instant", "writer", "action", "how far it got"), rows)


def _state(now: Timeline, instant: str) -> str:
    if instant in now.completed:
        return "requested, inflight, completed: readers see it"
    inflight = "requested, inflight" if instant in now.inflight else "requested"
    return f"{inflight}: no reader sees it"


def overtake(
    mode: str = "fenced", one: str = UPDATE_1, other: str = UPDATE_1, *, late: str = "W1"
) -> OvertakenWriter:
    """Let W2 commit `other` between W1's conflict check and the write that publishes its own.

    `late` names the writer that no longer has the lock.
    """
    orders = StagedOrders(mode, one, other, late)
    orders.until("W1", CHECKED)
    for name in ("W2", "W1"):
        orders.finish(name)
    committed = orders.results.get("W1")
    overtaken = OvertakenWriter(
        ended={name: actor.ended for name, actor in orders.actors.items()},
        rounds=committed.rounds if committed else 0, rows=orders.rows,
        instants=Instants.of(orders.timeline, orders.whose), verdict=orders.verdict,
        events=tuple(orders.events),
    )  # fmt: skip
    orders.close()
    return overtaken


# --- which writes can coexist ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OvertakingMatrix:
    """The outcome of W1's write, by its kind and that of W2's, which was faster."""

    met: Mapping[tuple[str, str], OvertakenWriter]

    def refused(self, one: str, other: str) -> bool:
        return str(self.met[one, other]) == REFUSED

    @property
    def rows(self) -> list[tuple[str, ...]]:
        return [
            (one, *("✗ refused" if self.refused(one, other) else "✓ both" for other in WRITES))
            for one in WRITES
        ]

    def __repr__(self) -> str:
        return "\n".join(" | ".join(f"{cell:14}" for cell in row) for row in (_HEAD, *self.rows))

    def _repr_html_(self) -> str:
        return grid("overtaking", _HEAD, self.rows)


_HEAD = ("W1 \\ W2, which is faster", *WRITES)


def who_goes_with_whom(mode: str = "fenced") -> OvertakingMatrix:
    """Try every pair of `WRITES`, each on a separate table; W1 has the lock."""
    return OvertakingMatrix({
        (one, other): overtake(mode, one, other, late="W2") for one in WRITES for other in WRITES
    })  # fmt: skip
