"""Group commit beside the serial protocol and other libraries: one table, 1 to 16 processes, 60 ms.

Serial and group take turns (A B A B), so that other load hits both; a row is the mean of its runs.
`times_serial` is the ratio of the commits a second to those of serial in the same run.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench.committers import COMMITTERS, GROUP
from tests.bench.server import Server, serving
from tests.bench.shapes import TwoPuts
from tests.bench.writers import LATENCY_MS, ROWS, contend

SECONDS, TURNS = 10.0, 2
WRITERS = (1, 4, 8, 16)
PEERS = ("pylance", "deltalake", "pyiceberg")
PEERS_MAX = 8
"""Of more writers, most of theirs abort and start again."""
SERIAL, TOGETHER = "lockkit", next(iter(GROUP))
BARS = {1: 6.5, 4: 11.0, 8: 18.0, 16: 28.0}
"""Commits a second that group commit is meant to reach on two cores of its own."""
MEANS = ("commits_per_s", "p50_s", "requests", "least_share")


def bare_put_s(server: Server) -> float:
    """The median time of one conditional PUT."""
    mine = TwoPuts(server.s3, "bare", "bare")
    server.latency(LATENCY_MS)
    times = []
    for _ in range(10):
        began = time.perf_counter()
        mine.acquire()
        times.append(time.perf_counter() - began)
    server.latency(0)
    return round(statistics.median(times), 3)


def _mean(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """One row of several runs: the worst where it is about the worst."""
    row = dict(runs[-1])
    for name in MEANS:
        row[name] = round(statistics.fmean(each[name] for each in runs), 2)
    row["commits"] = sum(each["commits"] for each in runs)
    row["longest_s"] = max(each["longest_s"] for each in runs)
    for name in ("aborts", "rows_lost"):
        row[name] = sum(abs(each[name]) for each in runs)
    return row


def goals(result: dict[str, Any]) -> list[tuple[str, float, float]]:
    rows, found = result["rows"], []
    for writers, bar in BARS.items():
        if row := rows.get(f"{TOGETHER}, {writers}"):
            most = 4.5 if writers == 1 else 8
            found += [
                (f"group, {writers} writers: {bar} commits/s over theirs",
                 round(bar / row["commits_per_s"], 2), 1),
                (f"group, {writers} writers: requests", row["requests"], most),
                (f"group, {writers} writers: longest commit, s", row["longest_s"], 1.5),
                (f"group, {writers} writers: a third of the mean over the least share",
                 round(1 / 3 / max(row["least_share"], 0.01), 2), 1),
                (f"group, {writers} writers: rows lost", row["rows_lost"], 0),
            ]  # fmt: skip
    if row := rows.get(f"{TOGETHER}, 1"):
        found.append(("group alone: p50 over one bare PUT",
                      round(row["p50_s"] / result["bare_put_s"], 2), 2.6))  # fmt: skip
    return found


def main(quick: bool = False) -> dict[str, Any]:
    seconds, turns = (4.0, 1) if quick else (SECONDS, TURNS)
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as home, serving() as server:
        put_s = bare_put_s(server)
        for writers in WRITERS:
            runs: dict[str, list[dict[str, Any]]] = {SERIAL: [], TOGETHER: []}
            peers = {} if writers > PEERS_MAX else {name: [] for name in PEERS}
            for turn in range(turns):
                for name in (*runs, *(() if turn else peers)):
                    into = peers if name in peers else runs
                    into[name].append(
                        contend(server, name, writers, Path(home), seconds, f" {turn}")
                    )
            for name, found in (runs | peers).items():
                rows[f"{name}, {writers}"] = _mean(found)
            serial = rows[f"{SERIAL}, {writers}"]["commits_per_s"]
            for name in (*runs, *peers):
                row = rows[f"{name}, {writers}"]
                row["times_serial"] = round(row["commits_per_s"] / serial, 2)
    assert set(PEERS) <= set(COMMITTERS)
    return {"latency_ms": LATENCY_MS, "rows_per_commit": ROWS, "seconds": seconds,
            "bare_put_s": put_s, "rows": rows}  # fmt: skip
