"""Four processes, one lock: hand-off, fairness and requests, beside peers' shapes."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from itertools import pairwise
from typing import Any

from lockkit.lab.server import Emulator
from tests.bench.shapes import SHAPES

PROCESSES, ACQUIRES, HOLD_S = 4, 100, 0.005
LATENCY_MS = 30
CONTENDERS = ("lockkit", "Hudi's shape (GET, PUT, PUT)", "Terraform's shape (PUT, GET, DELETE)")
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _contend(shape: str, endpoint: str, bucket: str, me: str, think_s: float, gate: Any, out: Any,
             acquires: int) -> None:  # fmt: skip
    lock = SHAPES[shape](endpoint, bucket, me)
    gate.wait()
    spans = []
    for _ in range(acquires):
        wanted = time.clock_gettime(_CLOCK)
        lock.acquire()
        got = time.clock_gettime(_CLOCK)
        time.sleep(HOLD_S)
        let_go = time.clock_gettime(_CLOCK)
        lock.release()
        spans.append((wanted, got, let_go, time.clock_gettime(_CLOCK), me))
        time.sleep(think_s)
    out.put(spans)


def contend(shape: str, think_s: float, acquires: int = ACQUIRES) -> dict[str, Any]:
    """One run of one shape. Counted while all four compete: until the first has finished."""
    spawn = multiprocessing.get_context("spawn")
    with Emulator(latency_ms=LATENCY_MS) as server:
        gate, out = spawn.Barrier(PROCESSES), spawn.Queue()
        bucket = "bench"
        workers = [
            spawn.Process(
                target=_contend,
                args=(shape, server.s3, bucket, f"P{i}", think_s, gate, out, acquires),
            )
            for i in range(PROCESSES)
        ]
        for each in workers:
            each.start()
        spans = [out.get(timeout=300) for _ in workers]
        for each in workers:
            each.join()
        requests = len(server.requests())
    total = sum(map(len, spans))
    end = min(each[-1][1] for each in spans)
    grants = sorted((s for each in spans for s in each if s[1] <= end), key=lambda s: s[1])
    return {"grants": total, **_figures(grants), "requests": round(requests / total, 2)}


def _figures(grants: list[tuple[float, float, float, float, str]]) -> dict[str, Any]:
    handed = [(b[1] - a[3]) * 1000 for a, b in pairwise(grants)]
    waits = sorted((got - wanted) * 1000 for wanted, got, *_ in grants)
    turn_ms = (grants[-1][1] - grants[0][1]) * 1000 / (len(grants) - 1)
    fair_ms = turn_ms * (PROCESSES - 1)
    longest = run = 1
    for a, b in pairwise(grants):
        run = run + 1 if a[4] == b[4] else 1
        longest = max(longest, run)
    overlaps = sum(b[1] < a[2] for a, b in pairwise(grants))
    return {
        "handoff_p50_trips": round(statistics.median(handed) / LATENCY_MS, 2),
        "acquires_per_s": round(1000 / turn_ms, 1),
        "wait_p95_fair_shares": round(waits[int(0.95 * len(waits))] / fair_ms, 2),
        "wait_max_fair_shares": round(waits[-1] / fair_ms, 2),
        "longest_run": longest,
        "overlaps": overlaps,
    }


def main(acquires: int = ACQUIRES) -> dict[str, Any]:
    rows = {}
    for think_ms in (20, 0):
        for shape in CONTENDERS:
            rows[f"{shape}, pause {think_ms} ms"] = contend(shape, think_ms / 1000, acquires)
    return {
        "latency_ms": LATENCY_MS,
        "processes": PROCESSES,
        "hold_ms": HOLD_S * 1000,
        "rows": rows,
    }
