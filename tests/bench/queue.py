"""The one-file queue on a hot object (GCS: one write a second): alone, group commit, broker.

Eight processes push, claim and complete, each of their threads one request at a time. What counts
is acknowledged requests that were written; the ways take turns, so that other load hits all alike.
"""

from __future__ import annotations

import multiprocessing
import statistics
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from lockkit.clock import Clock
from lockkit.lab.server import Emulator
from lockkit.recipes.errors import JobLost, QueueError, QueueUnknown
from lockkit.recipes.queue.brokered import BrokerQueue
from lockkit.recipes.queue.group import GroupQueue
from lockkit.recipes.queue.handle import Queue

PROCESSES, ROUNDS, SECONDS = 8, 2, 10.0
LATENCY_MS = 30
IDLE_S = 2.0
LONGEST_RUN_S = 120.0
WAYS: dict[str, tuple[type[Queue], int]] = {
    "alone, 8 x 1": (Queue, 1),
    "alone, 8 x 32": (Queue, 32),
    "group commit, 8 x 32": (GroupQueue, 32),
    "broker, 8 x 1": (BrokerQueue, 1),
    "broker, 8 x 32": (BrokerQueue, 32),
}
"""Processes x threads in each. The goal compares equals: as many who ask, alone and by a broker."""
FIRST, LAST = "alone, 8 x 32", "broker, 8 x 32"


class Over(Exception):
    """The time of a run is over: whoever still backs off goes home."""


@dataclass
class Timed(Clock):
    """No pause goes on beyond the run's end."""

    until: float = float("inf")

    def sleep(self, seconds: float) -> None:
        if time.monotonic() + seconds > self.until:
            raise Over
        super().sleep(seconds)


@dataclass
class Told:
    """What the threads of one process were told."""

    took_s: list[float] = field(default_factory=list)
    pushed: list[str] = field(default_factory=list)
    completed: list[str] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)


def _use(queue: Queue, clock: Timed, record: Told, worker: str) -> None:
    """Push, claim, complete, until the time is over."""
    while time.monotonic() < clock.until:
        for ask in (_push, _claim_and_complete):
            with suppress(Over):
                try:
                    ask(queue, clock, record, worker)
                except (QueueError, QueueUnknown, JobLost) as error:
                    record.refused[type(error).__name__] += 1


def _push(queue: Queue, clock: Timed, record: Told, _: str) -> None:
    began = time.monotonic()
    record.pushed.append(queue.push("x" * 100))
    _count(record, clock, began)


def _claim_and_complete(queue: Queue, clock: Timed, record: Told, worker: str) -> None:
    began = time.monotonic()
    job = queue.claim(worker)
    if job is None:
        return  # answered without a write: not counted
    _count(record, clock, began)
    if time.monotonic() < clock.until:
        began = time.monotonic()
        queue.complete(job)
        record.completed.append(job.id)
        _count(record, clock, began)


def _count(record: Told, clock: Timed, began: float) -> None:
    if (now := time.monotonic()) < clock.until:
        record.took_s.append(now - began)


Plan = list[tuple[str, str]]
"""Ways and the queues that they are used on, in turn."""


def _process(plan: Plan, endpoint: str, me: int, seconds: float, gate: Any, out: Any) -> None:
    for way, url in plan:
        kind, threads = WAYS[way]
        clock, record = Timed(), Told()
        idle = {"idle_s": IDLE_S} if kind is BrokerQueue else {}
        with kind(url, endpoint=endpoint, clock=clock, **idle) as queue:  # type: ignore[arg-type]
            for turn in (me == 0, me > 0):  # the first use loads what it needs; one starts a broker
                if turn:
                    queue.claim("first")
                gate.wait(LONGEST_RUN_S)
            clock.until = time.monotonic() + seconds
            using = [
                threading.Thread(target=_use, args=(queue, clock, record, f"worker-{me}-{n}"))
                for n in range(threads)
            ]
            for each in using:
                each.start()
            for each in using:
                each.join()
        out.put(record)


def measure(server: Emulator, plan: Plan, seconds: float) -> list[tuple[str, dict[str, Any]]]:
    """The figures of each line of the plan; each has an object of its own."""
    spawn = multiprocessing.get_context("spawn")
    gate, out = spawn.Barrier(PROCESSES), spawn.Queue()
    processes = [
        spawn.Process(target=_process, args=(plan, server.gcs, me, seconds, gate, out), daemon=True)
        for me in range(PROCESSES)
    ]
    for each in processes:
        each.start()
    record = [
        [out.get(timeout=LONGEST_RUN_S + seconds) for _ in processes] for _ in plan
    ]  # nobody begins a line before all have ended the one before it
    for each in processes:
        each.join()
    return [
        (way, _figures(server, url, mine)) for (way, url), mine in zip(plan, record, strict=True)
    ]


def _figures(server: Emulator, url: str, record: list[Told]) -> dict[str, Any]:
    place = url.rpartition("/")[2]
    sent = [each for each in server.requests() if f"{place}/" in each["key"]]
    with Queue(url, endpoint=server.gcs) as queue:
        left = {each.id for each in queue.jobs()}
    completed = Counter(job for each in record for job in each.completed)
    pushed = {job for each in record for job in each.pushed}
    return {
        "requests": sum(len(each.took_s) for each in record),
        "took_s": [took for each in record for took in each.took_s],
        "writes": sum(each["applied"] for each in sent),
        "throttled": sum(each["status"] == 429 for each in sent),
        "failed": sum((each.refused for each in record), Counter[str]()).total(),
        "lost": len(pushed - left - completed.keys()),
        "twice": sum(completed.values()) - len(completed),
    }


def goals(result: dict[str, Any]) -> list[tuple[str, float, float]]:
    rows = result["rows"]
    return [
        ("100 times the requests/s of alone over the broker's",
         round(100 * rows[FIRST]["requests_per_s"] / max(rows[LAST]["requests_per_s"], 0.01), 2),
         1),
        ("acknowledged jobs lost, or completed twice",
         sum(row["lost"] + row["twice"] for row in rows.values()), 0),
    ]  # fmt: skip


def main(quick: bool = False) -> dict[str, Any]:
    seconds, rounds = (4.0, 1) if quick else (SECONDS, ROUNDS)
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    with Emulator(profile="gcs", latency_ms=LATENCY_MS) as server:
        plan = [(way, f"gs://bench/queue-{n}") for n, way in enumerate([*WAYS] * rounds)]
        for way, found in measure(server, plan, seconds):
            runs[way].append(found)
    rows = {}
    for way, each in runs.items():
        total = {name: sum(run[name] for run in each) for name in each[0] if name != "took_s"}
        took_s = [took for run in each for took in run["took_s"]]
        rows[way] = {
            "requests_per_s": round(total["requests"] / (rounds * seconds), 2),
            "p50_s": round(statistics.median(took_s), 2) if took_s else "",
            "writes_per_s": round(total["writes"] / (rounds * seconds), 2),
            "throttled": total["throttled"],
            "failed": total["failed"],
            "lost": total["lost"],
            "twice": total["twice"],
        }
    first = rows[FIRST]["requests_per_s"]
    for row in rows.values():
        row["ratio"] = round(row["requests_per_s"] / first, 1) if first else ""
    return {"latency_ms": LATENCY_MS, "seconds": rounds * seconds, "rows": rows}
