"""Table services beside writers and readers: what a clean deletes, and who gives way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lockkit.errors import LockLost, TableError
from lockkit.events import Event, shortened
from lockkit.lab.course.grid import grid
from lockkit.lab.course.table_testbed import LEASE_S, TableTestbed, TestbedWriter, amounts, seen
from lockkit.lab.course.ticking import ticks
from lockkit.lock.handle import Lock
from lockkit.sinks import Emit, silent
from lockkit.stores import Store
from lockkit.table import Committed, Prepared, publish, read_slice
from lockkit.table.errors import CommitConflict
from lockkit.table.occ.commit import First
from lockkit.table.occ.concurrency import OptimisticConcurrency
from lockkit.table.occ.conflict import PREFER_WRITER, SIMPLE, ConflictStrategy
from lockkit.table.read.opening import load_snapshot
from lockkit.table.read.snapshot import Snapshot
from lockkit.table.services.rules import CleanRules, ClusterRules, ServiceRules
from lockkit.table.services.service import TableService

AS_IT_WAS, ERROR, AS_IT_IS = (
    "the rows as they were when it began", "an error: a file is gone", "the rows as they are now",
)  # fmt: skip
READER_GUESSES = (AS_IT_IS, AS_IT_WAS, ERROR)
UPSERT, CLUSTERING, NOBODY = "the upsert", "the clustering", "neither: both commit"
LOST = "neither: the upsert's rows are lost"
CLASH_GUESSES = (UPSERT, CLUSTERING, NOBODY, LOST)
BEFORE, AFTER, LATE, OTHER = (
    "began before the plan, commits during the rewrite",
    "begins after the plan, commits during the rewrite",
    "began before the plan, commits after the clustering",
    "adds new rows only, during the rewrite",
)  # fmt: skip
ORDERS = (BEFORE, AFTER, LATE, OTHER)
COUNT_GUESSES = ("in none", "in one", "in two", "in three", "in all four")
SMALL = ClusterRules(small_file_bytes=1_000_000)
COMMITS, BEGAN_AT = 7, 2
"""Of the challenge: so many commits, and the reader begins after that one."""


# --- the clean and a slow reader ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRead:
    """A slow reader: it opened the table and read on after cleans."""

    got: str
    files: int
    """The number of data files left."""
    events: tuple[Event, ...]
    verdict: Any

    @property
    def solved(self) -> bool:
        """Whether the reader got every row with the fewest files."""
        return str(self) == AS_IT_WAS and self.files == COMMITS - BEGAN_AT + 1

    def __str__(self) -> str:
        if self.got.startswith("an error"):
            return ERROR
        return AS_IT_WAS if self.got == f"k1 {BEGAN_AT}" else AS_IT_IS

    def __repr__(self) -> str:
        return shortened(f"The reader got: {self.got}. {self.files} data files are left.")


def read_slowly(retained: int) -> SlowRead:
    """Update k1 again and again, with a clean after each; a reader began after the second.

    Raises `ValueError` for an invalid retention.
    """
    if retained < 1:
        raise ValueError("a clean must keep the files of at least one commit")
    rules = ServiceRules(clean=CleanRules(commits=retained))
    with TableTestbed() as testbed:
        writer, reader = testbed.writer("W1"), testbed.writer("R")
        cleaner = testbed.writer("C").service(rules)
        writer.publish(writer.insert(["k1"], 1))
        snapshot: Snapshot | None = None
        for number in range(2, COMMITS + 1):
            writer.publish(writer.update(["k1"], number))
            if number == BEGAN_AT:
                snapshot = reader.run(load_snapshot())
            cleaner.clean()
        assert snapshot is not None
        return SlowRead(got=_rows_of(reader, snapshot), files=len(testbed.files()),
                    events=tuple(testbed.events), verdict=testbed.verdict)  # fmt: skip


def _rows_of(reader: TestbedWriter, snapshot: Snapshot) -> str:
    found: dict[str, int] = {}
    try:
        for each in snapshot.slices:
            found |= amounts(reader.run(read_slice(each)))
    except TableError as error:
        return f"an error: {str(error).partition(':')[0]}"
    return ", ".join(f"{id} {amount}" for id, amount in sorted(found.items()))


@dataclass(frozen=True, slots=True)
class HeldBackCleans:
    """What cleans could delete while a writer was pending, and after its rollback."""

    beside: int
    after: int

    def __str__(self) -> str:
        return f"{self.beside} files beside the silent writer, {self.after} after its rollback"

    __repr__ = __str__


def hold_back() -> HeldBackCleans:
    """W2 begins, reads, and dies. W1 updates k1 four times. A clean must keep only one commit."""
    rules = ServiceRules(clean=CleanRules(commits=1))
    with TableTestbed() as testbed:
        writer, silent_one = testbed.writer("W1"), testbed.writer("W2")
        service = testbed.writer("C").service(rules)
        writer.publish(writer.insert(["k1"], 1))
        silent_one.begin()
        for number in range(2, 6):
            writer.publish(writer.update(["k1"], number))
        beside = _deleted(service)
        testbed.clock.leap(300)
        service.take_back()
        return HeldBackCleans(beside, _deleted(service))


def _deleted(service: TableService) -> int:
    return sum(len(each.deleted) for each in service.clean())


# --- a clustering and an upsert -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterClash:
    """A clustering and a write that conflicted."""

    lost: str
    """Who gave way."""
    why: str
    rows: str
    events: tuple[Event, ...]
    verdict: Any

    def __str__(self) -> str:
        return self.lost

    def __repr__(self) -> str:
        why = f" Its answer: {self.why}." if self.why else ""
        return shortened(f"Gave way: {self.lost}.{why} A reader gets: {self.rows}")


@dataclass(frozen=True, slots=True)
class UnfencedService:
    """Concurrency control of a service whose commit is guarded only by the lock."""

    concurrency_control: OptimisticConcurrency

    mode = OptimisticConcurrency.mode

    def hold(self, beside: Callable[[bool], None] | None = None) -> Any:
        return self.concurrency_control.hold(beside)

    def publish(
        self, prepared: Prepared, store: Store, clock: Any, emit: Emit = silent, *,
        strategy: ConflictStrategy = SIMPLE, first: First | None = None,
    ) -> Committed:  # fmt: skip
        assert first is None, "a service rolls no writer back in its commits"
        lock = self.concurrency_control.lock
        assert isinstance(lock, Lock)
        return publish(prepared, lock, store, clock, emit, strategy=strategy, fence=False)

    def close(self) -> None:
        self.concurrency_control.close()


def oversleep(fence: bool) -> ClusterClash:
    """Pause the clustering between its check and the write that publishes; W1 commits meanwhile."""
    with TableTestbed() as testbed:
        writer, service = _three_files(testbed)
        clustering = service.service(ServiceRules(cluster=SMALL))
        if not fence:
            clustering.context.concurrency_control = UnfencedService(
                OptimisticConcurrency(service.lock)
            )

        began = writer.update(["k1"], 10)

        def meanwhile() -> None:
            testbed.clock.leap(1.5 * LEASE_S)
            writer.publish(began)

        service.stop_at("checked", meanwhile)
        why = _clustered(clustering)
        rows = seen(testbed)
        lost = CLUSTERING if why else NOBODY if "k1 10" in rows else LOST
        return ClusterClash(lost=lost, why=why, rows=rows, events=tuple(testbed.events),
                     verdict=testbed.verdict)  # fmt: skip


def clash(order: str, *, writer_first: bool = False) -> ClusterClash:
    """Run an upsert of k1 beside a clustering of all three files, in one of `ORDERS`.

    With `writer_first`, both use Hudi's PreferWriter strategy. `ValueError` for another order.
    """
    if order not in ORDERS:
        raise ValueError(f"no order {order!r}; there are: {'; '.join(ORDERS)}")
    strategy = PREFER_WRITER if writer_first else SIMPLE
    with TableTestbed() as testbed:
        writer, service = _three_files(testbed)
        clustering = service.service(ServiceRules(cluster=SMALL, strategy=strategy))
        refused: list[str] = []

        def write(prepare: Callable[[], Prepared]) -> None:
            try:
                writer.publish(prepare(), strategy=strategy)
            except CommitConflict as conflict:
                refused.append(str(conflict))

        if order in (BEFORE, LATE):
            began = writer.update(["k1"], 10)
        if order == BEFORE:
            service.stop_at("rewriting", lambda: write(lambda: began))
        elif order == AFTER:
            service.stop_at("rewriting", lambda: write(lambda: writer.update(["k1"], 10)))
        elif order == OTHER:
            service.stop_at("rewriting", lambda: write(lambda: writer.insert(["k9"], 10)))
        why = _clustered(clustering)
        if order == LATE:
            write(lambda: began)
        lost = UPSERT if refused else CLUSTERING if why else NOBODY
        return ClusterClash(lost=lost, why=why or "".join(refused), rows=seen(testbed),
                     events=tuple(testbed.events), verdict=testbed.verdict)  # fmt: skip


def _three_files(testbed: TableTestbed) -> tuple[TestbedWriter, TestbedWriter]:
    """k1, k2 and k3 in one file each: W1 wrote them, and C will merge them."""
    writer = testbed.writer("W1")
    writer.publish(writer.insert(["k1", "k2", "k3"], 1))
    return writer, testbed.writer("C")


def _clustered(service: TableService) -> str:
    """Why the clustering gave way; "" if it was committed."""
    try:
        service.cluster()
    except (CommitConflict, LockLost) as refused:
        return str(refused).removesuffix(refused.cure).rstrip(":; ")  # no reader here can follow it
    return ""


@dataclass(frozen=True, slots=True)
class StrategyMatrix:
    """Who gave way in each order, by both strategies."""

    rows: tuple[tuple[str, str, str], ...]
    verdicts: tuple[Any, ...]

    def __str__(self) -> str:
        """In how many orders the write loses by default."""
        return COUNT_GUESSES[sum(one == UPSERT for _, one, _ in self.rows)]

    def __repr__(self) -> str:
        return "\n".join(f"{order:52}{one:28}{two}" for order, one, two in self.rows)

    def _repr_html_(self) -> str:
        head = ("the write …", "gives way, by default", "with PreferWriter")
        return grid("rows", head, self.rows)


@ticks
def matrix(report: Callable[[str], None] = print) -> StrategyMatrix:
    """Try every order with both strategies; prints its progress."""
    rows, verdicts = [], []
    for number, order in enumerate(ORDERS, 1):
        report(f"{number} of {len(ORDERS)}: the write {order} …")
        pair = [clash(order, writer_first=first) for first in (False, True)]
        rows.append((order, str(pair[0]), str(pair[1])))
        verdicts += [each.verdict for each in pair]
    return StrategyMatrix(tuple(rows), tuple(verdicts))
