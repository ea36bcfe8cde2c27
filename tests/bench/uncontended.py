"""Acquire and release with nobody else there: time and requests, beside floor and peers."""

from __future__ import annotations

import statistics
import time
from typing import Any

from lockkit.lab.server import Emulator
from tests.bench.shapes import SHAPES

ROUNDS, PAIRS = 8, 12
LATENCY_MS = 30


def main(rounds: int = ROUNDS) -> dict[str, Any]:
    """Pairs in turn, so that other load hits all alike; medians, ratios to the two bare PUTs."""
    taken: dict[str, list[float]] = {name: [] for name in SHAPES}
    with Emulator() as server:
        made = {
            name: shape(server.s3, f"bench-{index}", f"c{index}")
            for index, (name, shape) in enumerate(SHAPES.items())
        }
        for each in made.values():  # first use, and whatever a lock proves once
            each.acquire()
            each.release()
        server.latency_ms = LATENCY_MS
        before = len(server.requests())
        for _ in range(rounds):
            for name, each in made.items():
                for _ in range(PAIRS):
                    began = time.perf_counter()
                    each.acquire()
                    each.release()
                    taken[name].append((time.perf_counter() - began) * 1000)
        requests = server.requests()[before:]
    floor = statistics.median(taken["two bare PUTs"])
    rows = {}
    for index, (name, times) in enumerate(taken.items()):
        sent = [each for each in requests if each["client"] == f"c{index}"]
        rows[name] = {
            "requests": round(len(sent) / len(times), 2),
            "p50_ms": round(statistics.median(times), 1),
            "mean_ms": round(statistics.fmean(times), 1),
            "ratio": round(statistics.median(times) / floor, 2),
        }
    return {"latency_ms": LATENCY_MS, "pairs": rounds * PAIRS, "rows": rows}
