"""Group commit beside the serial protocol and other libraries: one table, 1 to 16 processes, 60 ms.

Serial and group (in table version 9 and 6) take turns (A B C A B C), so that other load hits all; a
row is the mean of its runs.
`times_serial` is the ratio of the commits a second to those of serial in the same run. Appends;
upserts of a writer's own rows; a store that takes one write a second to an object; a first writer
that is four times nearer; and hudi-rs that looks on while 16 append: `seen` is the time from the
acknowledgement of a commit until a look of hudi-rs that has it began. A writer that is killed as it
decides for others is not here, but in `lockkit soak`.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

from tests.bench.committers import COMMITTERS
from tests.bench.server import Server, serving
from tests.bench.shapes import TwoPuts
from tests.bench.writers import CLOCK, LATENCY_MS, ROWS, contend

SECONDS, TURNS, HOT_SECONDS = 10.0, 2, 20.0
WRITERS = (1, 4, 8, 16)
PEERS = ("pylance", "deltalake", "pyiceberg")
PEERS_MAX = 8
"""Of more writers, most of theirs abort and start again."""
SERIAL = "lockkit"
TOGETHER = {9: "lockkit group", 6: "lockkit group v6"}
"""By the table's version: in version 9 commits are published one by one, in version 6 by rounds."""
BARS = {
    "": {1: 6.5, 4: 11.0, 8: 18.0, 16: 28.0}, " upserts": {1: 6.0, 4: 8.0, 8: 14.0, 16: 22.0},
    " one write a second": {1: 0.6, 4: 3.0, 8: 6.0, 16: 12.0},
}  # fmt: skip
"""Commits a second that group commit is meant to reach on two cores of its own, in version 6."""
PUBLISHED_9 = 10.0
"""In version 9 a table takes no more than one commit in each round trip to the store."""
LONGEST_S = {"": 1.5, " upserts": 1.5, " one write a second": 2.5, " one near": 1.5}
SEEN_S = 1.0
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
    for name in ("longest_s", "p99_s"):
        row[name] = max(each[name] for each in runs)
    for name in ("aborts", "rows_lost"):
        row[name] = sum(abs(each[name]) for each in runs)
    return row


def goals(result: dict[str, Any]) -> list[tuple[str, float, float]]:
    rows, found = result["rows"], []
    for (version, name), (kind, longest_s) in product(TOGETHER.items(), LONGEST_S.items()):
        for writers in WRITERS:
            if row := rows.get(f"{name}{kind}, {writers}"):
                who = f"group in version {version}{kind}, {writers} writers"
                found += [
                    (f"{who}: longest commit, s", row["longest_s"], longest_s),
                    (f"{who}: a third of the mean over the least share",
                     round(1 / 3 / max(row["least_share"], 0.01), 2), 1),
                    (f"{who}: rows lost", row["rows_lost"], 0),
                ]  # fmt: skip
                bar = BARS.get(kind, {}).get(writers, 0)
                if bar := bar if version == 6 else min(bar, PUBLISHED_9):
                    found.append((f"{who}: {bar} commits/s over theirs",
                                  round(bar / row["commits_per_s"], 2), 1))  # fmt: skip
                if kind in ("", " upserts"):
                    most = 4.5 if writers == 1 else 8
                    found.append((f"{who}: requests", row["requests"], most))
    for version, name in TOGETHER.items():
        most, who = result["seen"][name], f"group in version {version}"
        found.append((f"{who}: hudi-rs sees a commit, p99, s", most["seen_p99_s"], SEEN_S))
        alone = rows[f"{name}, 1"]
        found.append((f"{who}, alone: p50 over one bare PUT",
                      round(alone["p50_s"] / result["bare_put_s"], 2), 2.6))  # fmt: skip
    return found


def main(quick: bool = False) -> dict[str, Any]:
    seconds, hot_s, turns = (3.0, 6.0, 1) if quick else (SECONDS, HOT_SECONDS, TURNS)
    all_writers, peers_max = ((1, 4), 4) if quick else (WRITERS, PEERS_MAX)
    rows: dict[str, Any] = {}
    assert set(PEERS) <= set(COMMITTERS)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        with serving() as server:
            put_s = bare_put_s(server)
            for writers in all_writers:
                peers = PEERS if writers <= peers_max else ()
                rows |= _compared(server, writers, home, seconds, turns, peers)
                rows |= _compared(server, writers, home, seconds, turns, peers if writers == 4
                                  else (), " upserts")  # fmt: skip
            most = all_writers[-1]
            rows |= _compared(server, most, home, seconds, 1, (), " one near")
            seen = {name: contend(server, name, most, home, seconds, " seen", watch=hudi_rs)
                    for name in TOGETHER.values()}  # fmt: skip
        with serving("gcs") as server:
            for writers in all_writers:
                rows |= _compared(server, writers, home, hot_s, 1, (), " one write a second")
    return {"latency_ms": LATENCY_MS, "rows_per_commit": ROWS, "seconds": seconds,
            "bare_put_s": put_s, "seen": seen, "rows": rows}  # fmt: skip


def _compared(
    server: Server, writers: int, home: Path, seconds: float, turns: int, peers: tuple[str, ...],
    kind: str = "",
) -> dict[str, Any]:  # fmt: skip
    """Serial and group in turns, then the peers; the ratios are to serial."""
    ours = (SERIAL, *TOGETHER.values())
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in (*ours, *peers)}
    for turn in range(turns):
        for name in (*ours, *(() if turn else peers)):
            runs[name].append(contend(
                server, name, writers, home, seconds, f"{kind} {turn}",
                upserts=kind == " upserts", near=kind == " one near",
            ))  # fmt: skip
    found = {f"{name}{kind}, {writers}": _mean(every) for name, every in runs.items()}
    serial = found[f"{SERIAL}{kind}, {writers}"]["commits_per_s"]
    for row in found.values():
        row["times_serial"] = round(row["commits_per_s"] / serial, 2)
    return found


@contextmanager
def hudi_rs(endpoint: str, bucket: str) -> Iterator[Callable[[list[float]], dict[str, Any]]]:
    """A thread in which hudi-rs lists the table's file slices again and again."""
    import hudi

    looks: list[tuple[float, int]] = []
    over = threading.Event()
    options = {"aws_access_key_id": "lockkit", "aws_secret_access_key": "lockkit",
               "aws_region": "us-east-1", "aws_endpoint": endpoint,
               "aws_allow_http": "true"}  # fmt: skip

    def look() -> None:
        while not over.is_set():
            began = time.clock_gettime(CLOCK)
            slices = hudi.HudiTable(f"s3://{bucket}/orders", options).get_file_slices()
            looks.append((began, len(slices)))

    def figures(ends: list[float]) -> dict[str, Any]:
        over.wait(1.0)
        over.set()
        thread.join()
        first = looks[-1][1] - len(ends)
        waits = sorted(
            max(0.0, next((began for began, slices in looks if slices - first >= number),
                          looks[-1][0]) - end) for number, end in enumerate(ends, 1)
        )  # fmt: skip
        return {"looks": len(looks), "seen_p50_s": round(statistics.median(waits), 2),
                "seen_p99_s": round(waits[int(0.99 * (len(waits) - 1))], 2)}  # fmt: skip

    thread = threading.Thread(target=look, name="hudi-rs")
    thread.start()
    yield figures
