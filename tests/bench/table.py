"""One small commit with nobody else there: requests, depth and time at 60 ms a request.

The sequential depth is the longest chain of requests of which each began after the answer of the
one before could have left; `p50_s` is what it costs.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.committers import COMMITTERS, bucket_of, create, rows
from tests.bench.server import Server, serving

LATENCY_MS = 60
WARM_UP, COMMITS = 3, 10
KINDS = ("append", "upsert")
ROWS = 10


def _times_s(commit: Callable[[int], None], first: int, commits: int) -> list[float]:
    times = []
    for number in range(first, first + commits):
        began = time.perf_counter()
        commit(number)
        times.append(time.perf_counter() - began)
    return times


def measure(
    server: Server, bucket: str, commit: Callable[[int], None], commits: int
) -> dict[str, Any]:
    """`commit(n)` does the n-th commit. Costs at 0 ms, then at 60 ms, of a warm handle."""
    server.latency(0)
    _times_s(commit, 0, WARM_UP)
    near = _times_s(commit, WARM_UP, commits)
    server.latency(LATENCY_MS)
    before, arrived = server.requests(bucket), len(server.arrivals_ms(bucket))
    far = _times_s(commit, WARM_UP + commits, commits)
    sent = server.requests(bucket) - before
    server.latency(0)
    reads = sent["get"] + sent["head"] + sent["list"]
    far_s, near_s = statistics.median(far), statistics.median(near)
    return {
        "requests": round(sent.total() / commits, 1),
        "of_them_writes": round((sent.total() - reads) / commits, 1),
        "depth": round(chain(server.arrivals_ms(bucket)[arrived:]) / commits, 1),
        "p50_s": round(far_s, 3),
        "p50_at_0_ms_s": round(near_s, 3),
    }


def chain(arrivals_ms: list[float]) -> int:
    """How many of these requests certainly waited for one another, each taking the latency."""
    count, free_ms = 0, float("-inf")
    for at_ms in arrivals_ms:
        if at_ms >= free_ms:
            count, free_ms = count + 1, at_ms + LATENCY_MS
    return count


def goals(result: dict[str, Any]) -> list[tuple[str, float, float]]:
    row = result["rows"]["lockkit, append"]
    return [
        ("small append: requests", row["requests"], 10),
        ("small append: depth", row["depth"], 5),
        (f"small append: s at {LATENCY_MS} ms a request", row["p50_s"], 0.36),
    ]


def main(quick: bool = False) -> dict[str, Any]:
    commits = 4 if quick else COMMITS
    found = {}
    with tempfile.TemporaryDirectory() as home, serving() as server:
        for kind in KINDS:
            for name, committer in COMMITTERS.items():
                bucket = bucket_of(f"{name} {kind}")
                create(name, server.s3, Path(home), bucket)
                mine = committer(server.s3, bucket, Path(home))
                way = {
                    "append": lambda n, mine=mine: mine.append(rows((n + 1000) * ROWS, ROWS)),
                    "upsert": lambda n, mine=mine: mine.upsert(rows(n * ROWS % 900, ROWS, n + 1)),
                }[kind]
                found[f"{name}, {kind}"] = measure(server, bucket, way, commits)
    return {"latency_ms": LATENCY_MS, "rows_per_commit": ROWS, "commits": commits, "rows": found}
