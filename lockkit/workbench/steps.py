"""Two commits on one table, one request at a time: the very procedure, stopped at each request.

The requests go to an embedded object server, whose own record is the truth that is judged. No
widgets here; `stepper` has the buttons.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import lockkit.table as table
from lockkit.check import check
from lockkit.clock import Clock
from lockkit.drive import (
    Delete,
    Get,
    List,
    Note,
    Procedure,
    Put,
    Request,
    in_turn,
    perform,
    run,
)
from lockkit.emulator import Emulator
from lockkit.history import Event, event
from lockkit.outcome import IfAbsent, Unknown
from lockkit.state import LockLost
from lockkit.stores import Store, StoreError, open_store
from lockkit.table.ask import create
from lockkit.table.transaction import Prepared

URL = "s3://lake/orders"
STEPS_MAX = 200
REFUSALS = (table.TableError, table.CommitUnknown, LockLost, StoreError)


@dataclass(frozen=True, slots=True)
class Grant:
    """The lock as the two writers see it: W2's grant came after W1's had run out."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Line:
    """One request, and what came of it."""

    asked: str
    answered: str


@dataclass(slots=True)
class Writer:
    """One writer's commit: where it stands, and what it has asked so far."""

    name: str
    store: Store
    prepared: Prepared
    procedure: Procedure[Any]
    waits: Request | None = None
    lines: list[Line] = field(default_factory=list)
    ended: str = ""
    """"" while it is under way, then how it ended, in a sentence."""


class Steps:
    """W1 and W2 have read one order, and each is about to commit another amount for it.

    `mode` is the table's: `fenced` or `hudi`. Raises `ValueError` for names that are not there.
    """

    def __init__(self, mode: str = "fenced", *, version: int = 6) -> None:
        self.clock = Clock()
        self._server = Emulator().__enter__()
        self._events: list[Event] = []
        config = table.TableConfig(name="orders", record_key="id", mode=mode, version=version)
        self._look = self._open("reader")
        run(table.create_table(config), self._look, self.clock)
        self.writers: dict[str, Writer] = {}
        first = self._prepare("W0", self._look, 0)
        run(table.commit(first, Grant(0)), self._look, self.clock, self._emit("W0"))
        for epoch, name in enumerate(("W1", "W2"), 1):
            store = self._open(name)
            prepared = self._prepare(name, store, epoch)
            way = in_turn(table.commit(prepared, Grant(epoch)))
            writer = self.writers[name] = Writer(name, store, prepared, way)
            self._go(writer, partial(writer.procedure.send, None))

    # --- what a reader of the notebook does -------------------------------------------------------

    def step(self, who: str, *, lose: bool = False) -> Line:
        """Carry out the next request of a writer; with `lose`, its answer never arrives."""
        writer = self._writer(who)
        if writer.waits is None:
            raise ValueError(f"{who} has nothing more to ask: {writer.ended}")
        request = writer.waits
        try:
            answer = perform(request, writer.store, self.clock, self._emit(who))
        except StoreError as error:
            self._go(writer, partial(writer.procedure.throw, error))
            return self._tell(writer, request, str(error))
        if lose:
            answer = Unknown("the answer was lost")
        line = self._tell(writer, request, "no answer" if lose else plain(answer))
        self._go(writer, partial(writer.procedure.send, answer))
        return line

    def until(self, who: str, end: str) -> str:
        """Step until the next request is about a key that ends so; what it is going to ask."""
        writer = self._writer(who)
        for _ in range(STEPS_MAX):
            if writer.waits is None or shown(writer.waits).endswith(end):
                break
            self.step(who)
        return shown(writer.waits) if writer.waits is not None else writer.ended

    def finish(self, who: str) -> str:
        """Step to the end; how it ended."""
        writer = self._writer(who)
        for _ in range(STEPS_MAX):
            if writer.waits is None:
                break
            self.step(who)
        return writer.ended

    def kill(self, who: str) -> None:
        """End a writer where it stands, as `kill -9` does."""
        writer = self._writer(who)
        writer.procedure.close()
        writer.waits, writer.ended = None, writer.ended or "killed"

    @property
    def rows(self) -> dict[str, int]:
        """What a reader of the table sees: order -> amount."""
        found = table.read_table(self._look, self.clock).to_pylist()
        return {each["id"]: each["amount"] for each in found}

    @property
    def events(self) -> list[Event]:
        """Truth (the server's record) and beliefs (what the commits told), in order of time."""
        return sorted([*self._server.requests(), *self._events], key=lambda each: each.at_ms)

    @property
    def verdict(self) -> Any:
        return check(self.events)

    def close(self) -> None:
        """End the server; running the cell again makes another one."""
        for writer in self.writers.values():
            writer.store.close()
        self._look.close()
        self._server.__exit__(None, None, None)

    # --- inside ----------------------------------------------------------------------------------

    def _open(self, name: str) -> Store:
        return open_store(URL, endpoint=self._server.s3, client=name)

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

    def _emit(self, who: str) -> Callable[..., None]:
        def emit(kind: str, **fields: Any) -> None:
            self._events.append(event(self.clock.stamp_ms(), who, kind, **fields))

        return emit

    def _writer(self, who: str) -> Writer:
        if who not in self.writers:
            raise ValueError(f"there is no {who!r}; there are {', '.join(self.writers)}")
        return self.writers[who]

    def _go(self, writer: Writer, move: Callable[[], Request]) -> None:
        """On to the next request that a server would see."""
        try:
            writer.waits = move()
            while not shown(writer.waits):
                answer = perform(writer.waits, writer.store, self.clock, self._emit(writer.name))
                writer.waits = writer.procedure.send(answer)
        except StopIteration as done:
            writer.waits, writer.ended = None, f"committed {done.value.instant}"
        except REFUSALS as error:
            writer.waits, writer.ended = None, f"{type(error).__name__}: {error}"

    def _tell(self, writer: Writer, request: Request, answered: str) -> Line:
        line = Line(shown(request), answered)
        writer.lines.append(line)
        return line


def shown(request: Request) -> str:
    """A request as a server sees it; "" for what never leaves the process."""
    match request:
        case Get(key):
            return f"GET {key}"
        case List(prefix):
            return f"LIST {prefix}*"
        case Put(key, _, IfAbsent()):
            return f"PUT if absent {key}"
        case Put(key):
            return f"PUT if unchanged {key}"
        case Delete(key):
            return f"DELETE {key}"
        case Note("checked"):
            return "- nobody conflicts, and the lease still stands: checked"
        case _:
            return ""


def plain(answer: Any) -> str:
    """An answer in a word: applied, precondition failed, found, missing, 7 objects."""
    if isinstance(answer, list):
        return f"{len(answer)} objects"
    if answer is None:
        return ""
    name = type(answer).__name__
    return "".join(f" {c.lower()}" if c.isupper() else c for c in name).strip()
