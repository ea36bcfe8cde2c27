"""Programs that write to one table at the same time: conflicts, and where commits run."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

from lockkit.clock import Clock
from lockkit.events import Event, event
from lockkit.lab.course.orders_outcome import OrdersOutcome, ProgramReport, StoppedDriver
from lockkit.lab.course.program import (
    ANEW,
    COLUMNS,
    ONCE,
    WROTE,
    PlainProgram,
    Row,
    config,
    rows_of,
)
from lockkit.lab.course.program_control import ClaimTrap, ProgramProcess
from lockkit.lab.course.ticking import ticks
from lockkit.lab.processes.process import FLEET, guarded, kill_tree, leftovers
from lockkit.lab.processes.temporary import TemporaryFolder
from lockkit.lab.server import Emulator
from lockkit.lab.verify.check import check
from lockkit.lab.widgets.launch import default_settings
from lockkit.runtime import run
from lockkit.stores import open_store
from lockkit.table import create_table, read_table

__all__ = ["ANEW", "COLUMNS", "ONCE", "Programs"]  # the first three are commands of a program

NAMES = ("W1", "W2", "W3")
MORE, RETRIES = 10, 20
ALL_COUNT = "30: no update is lost"
TWO_LOST = "10: all three commits are acknowledged"
REFUSED = "10: one commits and two give up"
SUMS = (ALL_COUNT, TWO_LOST, REFUSED)
COUNTS = THREE, TWO, ONE = "all three", "two of the three", "one of the three"
FATES = STOOD, WENT = "it pauses with its driver", "it is made anyway"
NO_SPARK = "no Spark with LOCKKIT_FAST, or on less than 4 GB of memory"
SKIPPED = f"skipped: {NO_SPARK}"
FIRST: list[Row] = [("a", "eu", 1, 0), ("b", "eu", 1, 0), ("c", "eu", 1, 0), ("d", "us", 1, 0)]

Report = Callable[[str], None]
_newest: Programs | None = None
"""Running the cell again ends the one before."""


class Programs:
    """A store, one Spark for all, and three programs; `start` starts them.

    PySpark programs if `default_settings` says so (`spark` is then this program's own session on
    the shared Spark), else plain ones, which commit in the same way.
    """

    def __init__(self, kind: str | None = None) -> None:
        global _newest
        if _newest is not None:
            _newest.stop()
        _newest = self
        self.kind = kind or default_settings().kind
        self.url, self.first = "s3://lake/orders", ""
        self.endpoint = ""
        self.spark: Any = None
        self._members: dict[str, ProgramProcess] = {}
        self._server: Emulator | None = None
        self._clock = Clock()
        self._id = self._clock.unique()
        self._temporary: TemporaryFolder | None = None
        self._spark_server: subprocess.Popen[str] | None = None
        self._tables = 0
        self._recorded: dict[str, list[Event]] = {}
        self._trap: ClaimTrap | None = None
        self._report: Report = print

    # --- life -----------------------------------------------------------------------------------

    @ticks
    def start(self, report: Report = print) -> None:
        """Start all processes, and create a table with four orders. They end with this kernel."""
        self._report, began_ms = report, self._clock.boot_ms()
        atexit.register(self.stop)
        self._temporary = TemporaryFolder("lockkit-programs-")
        self._folder = self._temporary.path
        self._server = Emulator(on_request=self._requested).__enter__()
        self.endpoint = self._server.s3
        env: dict[str, str] = dict(os.environ)
        remote: str | None = None
        if self.kind != "plain":
            report("Spark and three PySpark programs start: 10 to 90 s …")
            env, remote = self._start_spark()
        for name in NAMES:
            settings = {"endpoint": self.endpoint, "remote": remote}
            self._members[name] = ProgramProcess(
                name, settings, env | {FLEET: self._id}, self._folder
            )
        for each in self._members.values():
            each.hear()
        if remote:
            from lockkit.spark import register
            from lockkit.spark.connect import connect_session

            self.spark = connect_session(remote)
            register(self.spark)
        self.first = self._make(self.url, FIRST)
        what = "PySpark programs on one Spark" if remote else f"plain Python programs ({NO_SPARK})"
        seconds = (self._clock.boot_ms() - began_ms) / 1000
        report(f"{seconds:.0f} s: three {what}, and a table with {len(FIRST)} orders")

    def _start_spark(self) -> tuple[dict[str, str], str]:
        from lockkit.spark.connect import Server
        from lockkit.spark.java import spark_env

        env = spark_env(os.environ, scratch=self._folder / "tmp")
        server = Server.plan(self._folder)
        with (self._folder / "spark.log").open("w") as log:
            self._spark_server = subprocess.Popen(
                guarded(*server.command), env=env | server.env | {FLEET: self._id},
                stdin=subprocess.PIPE, stdout=log, stderr=log, text=True, process_group=0,
                cwd=self._folder,
            )  # fmt: skip
        os.environ.update(server.client_env)
        return env | server.client_env, server.remote

    def stop(self) -> None:
        """End every process, even a stopped one."""
        atexit.unregister(self.stop)
        if self.spark is not None:
            with suppress(Exception):  # its server may be gone
                self.spark.stop()
            self.spark = None
        for each in self._members.values():
            each.end()
        if self._spark_server is not None:
            kill_tree(self._spark_server.pid)
            self._spark_server.wait()
        for pid in leftovers(self._id):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._server is not None:
            self._server.__exit__(None, None, None)
            self._server = None
        if self._temporary is not None:
            self._temporary.remove()

    # --- commands for the programs --------------------------------------------------------------

    @ticks
    def add(self, reads: str) -> OrdersOutcome:
        """All three read order a, add 10 and upsert it at the same time; a conflict is retried.

        They read it `ONCE`, before the first attempt, or `ANEW` for each attempt.
        """
        order = {"do": "add", "key": "a", "amount": MORE, "reads": reads, "retries": RETRIES}
        return self._at_once(dict.fromkeys(NAMES, order), 1, _amounts)

    @ticks
    def together(self, rows: Mapping[str, Sequence[Row]], buckets: int = 1) -> OrdersOutcome:
        """All programs upsert their rows at the same time, once each."""
        orders = {name: {"do": "put", "rows": list(each)} for name, each in rows.items()}
        return self._at_once(orders, buckets, _commits)

    @ticks
    def stop_driver(self, way: str) -> StoppedDriver:
        """W1's driver is stopped (SIGSTOP) as its commit takes the lock; then W2 commits, too.

        `way` is write (`lockkit.spark.write`) or save (Spark's own writer). The store's record
        shows whose commit was decided first.
        """
        if self.spark is None:
            return StoppedDriver(way=way, did=SKIPPED)
        url = self._new_table(1)
        driver, other = self._members["W1"], self._members["W2"]
        caught = self._trap = ClaimTrap(driver.pid, url)
        driver.send(do={"write": "put", "save": "save"}[way], url=url, rows=[("e", "eu", 1, 5)])
        caught.wait(driver)
        self._report("W1's driver is paused and its commit holds the lock; W2 wants to commit …")
        other.send(do="put", url=url, rows=[("f", "us", 1, 7)])
        other.hear()
        decided = [each["client"] for each in self._requests(url) if _decides(each)]
        os.kill(driver.pid, signal.SIGCONT)
        reported = driver.hear()
        first = next(each for each in decided if each in ("W1", "W2"))
        return StoppedDriver(way=way, did=WENT if first == "W1" else STOOD, reported=reported)

    def _at_once(
        self, orders: Mapping[str, dict[str, Any]], buckets: int,
        did: Callable[[tuple[ProgramReport, ...], dict[str, int]], str],
    ) -> OrdersOutcome:  # fmt: skip
        """Let each program write its files and wait; when the last is ready, let all commit."""
        url = self._new_table(buckets)
        for name, order in orders.items():
            self._members[name].send(hold=WROTE, url=url, **order)
        held = {name: self._members[name].hear() for name in orders}
        self._report(f"{', '.join(orders)} have written their files; now all of them commit …")
        for name, early in held.items():
            if early is None:
                self._members[name].go()
        reported = tuple(each or self._members[name].final_report() for name, each in held.items())
        events = self._events(url, orders)
        rows = self.rows(url)
        return OrdersOutcome(
            did=did(reported, rows),
            reported=reported,
            rows=rows,
            events=tuple(events),
            verdict=check(events),
        )

    # --- tables ---------------------------------------------------------------------------------

    def rows(self, url: str | None = None, as_of: str | None = None) -> dict[str, int]:
        """The rows that a reader finds: order -> amount."""
        with closing(open_store(url or self.url, endpoint=self.endpoint)) as store:
            found = rows_of(read_table(store, as_of=as_of))
        return {key: amount for key, _, _, amount in sorted(found)}

    def _new_table(self, buckets: int) -> str:
        if not self._members:
            raise RuntimeError("no program is running: call start() first")
        self._tables += 1
        url = f"{self.url}-{self._tables}"
        self._make(url, FIRST, buckets)
        return url

    def _make(self, url: str, rows: list[Row], buckets: int = 1) -> str:
        recorded = self._recorded[url] = []

        def emit(kind: str, **fields: Any) -> None:
            recorded.append(event(self._clock.stamp_ms(), "W0", kind, **fields))

        store = open_store(url, endpoint=self.endpoint, client="W0")
        with closing(store):
            run(create_table(config(buckets)), store, self._clock)
        return PlainProgram(url, self.endpoint, "W0", emit).put(rows)

    def _events(self, url: str, names: Iterable[str]) -> list[Event]:
        reported = [each for name in names for each in self._members[name].take()]
        return sorted(
            [*self._requests(url), *self._recorded[url], *reported], key=lambda each: each.at_ms
        )

    def _requests(self, url: str) -> list[Event]:
        assert self._server is not None, "start() comes first"
        place = url.rpartition("/")[2] + "/"
        return [each for each in self._server.requests() if str(each["key"]).startswith(place)]

    def _requested(self, each: Event) -> None:
        """In the server's thread, before the request is answered."""
        if self._trap is not None and self._trap.shuts(each):
            self._trap = None


def _amounts(reported: tuple[ProgramReport, ...], rows: dict[str, int]) -> str:
    done = sum(each.done for each in reported)
    known = {(MORE * len(NAMES), 3): ALL_COUNT, (MORE, 3): TWO_LOST, (MORE, 1): REFUSED}
    return known.get((rows["a"], done), f"{rows['a']}: {done} committed")


def _commits(reported: tuple[ProgramReport, ...], _rows: dict[str, int]) -> str:
    return {3: THREE, 2: TWO, 1: ONE}.get(sum(each.done for each in reported), "none")


def _decides(each: Event) -> bool:
    return bool(each["applied"]) and str(each["key"]).endswith("/fence.json")
