"""1, 4 and 8 processes append to one table at 60 ms a request, as fast as they are let.

A commit that was refused is made again by its writer, as its manual says, until it is in; it counts
as one commit from its first try on, and each refusal that reached the writer as one abort.
"""

from __future__ import annotations

import logging
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from lockkit.lab.faults import Proxy
from tests.bench.committers import COMMITTERS, EVERY, Committer, bucket_of, create, rows
from tests.bench.server import Server, serving

LATENCY_MS = 60
SECONDS = 20.0
WRITERS = (1, 4, 8)
ROWS = 10
TRIES_MAX = 50
LONGEST_RUN_S = 300.0
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


Watch = Callable[[str, str], AbstractContextManager[Callable[[list[float]], dict[str, Any]]]]
"""Runs beside the writers; is given when each commit ended, and returns further figures."""


@contextmanager
def no_watch(_endpoint: str, _bucket: str) -> Iterator[Callable[[list[float]], dict[str, Any]]]:
    yield lambda _ends: {}


@dataclass(frozen=True)
class Told:
    """What one writer saw: the spans of its commits, and how often it was refused."""

    spans: list[tuple[float, float]]
    aborts: int
    error: str = ""


def _write(name: str, endpoint: str, bucket: str, home: str, me: int, seconds: float, gate: Any,
           out: Any, upserts: bool, every_s: float) -> None:  # fmt: skip
    spans: list[tuple[float, float]] = []
    aborts, error = 0, ""
    logging.getLogger("pyiceberg").setLevel(logging.ERROR)  # it tells each of its own retries
    try:
        mine = EVERY[name](endpoint, bucket, Path(home))
        own = rows(1_000_000 * (me + 1), ROWS)
        _commit(mine.append, mine, own)  # first use, and whatever is loaded by it
        if upserts:
            _commit(mine.upsert, mine, own)
    except BaseException:
        gate.abort()
        raise
    gate.wait(LONGEST_RUN_S)
    due = time.clock_gettime(CLOCK) + random.Random(me).random() * every_s
    until = due + seconds
    while (began := time.clock_gettime(CLOCK)) < until:
        if every_s:
            time.sleep(max(0.0, due - began))
            began, due = due, due + every_s
        if upserts:  # always the same keys, of no other writer
            refusals = _commit(mine.upsert, mine, rows(1_000_000 * (me + 1), ROWS, len(spans)))
        else:
            new = rows(1_000_000 * (me + 1) + ROWS * (len(spans) + 1), ROWS)
            refusals = _commit(mine.append, mine, new)
        if len(refusals) < TRIES_MAX:
            spans.append((began, time.clock_gettime(CLOCK)))
        aborts, error = aborts + len(refusals), refusals[-1] if refusals else error
    out.put(Told(spans, aborts, error))


def _commit(do: Callable[[pa.Table], None], mine: Committer, new: pa.Table) -> list[str]:
    """Until it is committed; every refusal on the way, `TRIES_MAX` if it never was."""
    refusals: list[str] = []
    while len(refusals) < TRIES_MAX:
        try:
            do(new)
        except Exception as refusal:  # noqa: BLE001 - every peer has its own
            refusals.append(f"{type(refusal).__name__}: {refusal}"[:200])
            mine.again()
        else:
            break
    return refusals


def contend(
    server: Server, name: str, writers: int, home: Path, seconds: float, again: str = "", *,
    upserts: bool = False, near: bool = False, every_s: float = 0.0, watch: Watch = no_watch,
) -> dict[str, Any]:  # fmt: skip
    """One run of one committer by `writers` processes. First uses are at 0 ms, and not counted.

    `again` makes the bucket of a further run. `near`: the first writer is four times nearer.
    `every_s`: each begins a commit so often, and its time counts from when it was due; 0: at once.
    `watch` looks on, and adds to the figures.
    """
    spawn = multiprocessing.get_context("spawn")
    bucket = bucket_of(f"{name} {writers}{again}")
    create(name, server.s3, home, bucket)
    server.latency(0)
    far = Proxy(server.s3).__enter__()
    gate, out = spawn.Barrier(writers + 1), spawn.Queue()
    processes = [
        spawn.Process(
            target=_write,
            args=(name, far.url if near and me else server.s3, bucket, str(home), me, seconds, gate,
                  out, upserts, every_s),
        )
        for me in range(writers)
    ]  # fmt: skip
    for each in processes:
        each.start()
    while gate.n_waiting < writers and not gate.broken:
        time.sleep(0.05)
    found = EVERY[name](server.s3, bucket, home).count()
    server.latency(LATENCY_MS / 4 if near else LATENCY_MS)
    far.latency_ms = LATENCY_MS * 3 / 4
    before = server.requests(bucket)
    gate.wait(LONGEST_RUN_S)
    with watch(server.s3, bucket) as seen:
        reports: list[Told] = [out.get(timeout=LONGEST_RUN_S) for _ in processes]
    sent = server.requests(bucket) - before
    for each in processes:
        each.join()
    far.close()
    for error in {each.error for each in reports} - {""}:
        print(f"{name}, {writers} writers: {error}", file=sys.stderr)
    server.latency(0)
    there = EVERY[name](server.s3, bucket, home).count() - found
    new = 0 if upserts else ROWS * committed(reports)
    figures = _figures(reports, sent) | {"rows_lost": new - there}
    return figures | seen(sorted(end for each in reports for _, end in each.spans))


def committed(reports: list[Told]) -> int:
    """Commits that were acknowledged."""
    return sum(len(each.spans) for each in reports)


def _figures(reports: list[Told], sent: Counter[str]) -> dict[str, Any]:
    spans = [span for each in reports for span in each.spans]
    took = sorted(end - began for began, end in spans)
    whole_s = max(end for _, end in spans) - min(began for began, _ in spans)
    return {
        "commits": len(spans),
        "commits_per_s": round(len(spans) / whole_s, 2),
        "p50_s": round(statistics.median(took), 2),
        "p99_s": round(took[int(0.99 * (len(took) - 1))], 2),
        "longest_s": round(took[-1], 2),
        "aborts": sum(each.aborts for each in reports),
        "requests": round(sent.total() / len(spans), 1),
        "by_kind": " ".join(
            f"{kind} {count / len(spans):.1f}" for kind, count in sorted(sent.items())
        ),
        "least_share": round(
            min(len(each.spans) for each in reports) * len(reports) / len(spans), 2
        ),
    }


def goals(result: dict[str, Any]) -> list[tuple[str, float, float]]:
    mine = {writers: result["rows"][f"lockkit, {writers}"] for writers in WRITERS}
    four, eight = mine[4], mine[8]
    return [
        ("4 writers: 3 commits/s over theirs", round(3 / four["commits_per_s"], 2), 1),
        ("4 writers: longest commit, s", four["longest_s"], 2),
        ("4 writers: aborts", four["aborts"], 0),
        ("4 writers' commits/s over that of 8",
         round(four["commits_per_s"] / eight["commits_per_s"], 2), 1),
        ("rows of acknowledged commits that are missing",
         sum(abs(row["rows_lost"]) for row in mine.values()), 0),
    ]  # fmt: skip


def main(quick: bool = False) -> dict[str, Any]:
    seconds = 3.0 if quick else SECONDS
    found = {}
    with tempfile.TemporaryDirectory() as home, serving() as server:
        for name in COMMITTERS:
            for writers in WRITERS:
                found[f"{name}, {writers}"] = contend(server, name, writers, Path(home), seconds)
    return {"latency_ms": LATENCY_MS, "rows_per_commit": ROWS, "seconds": seconds, "rows": found}
