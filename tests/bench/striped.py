"""A striped lock against a single one where an object takes one write per second: 8 writers.

Each writer has a key of its own, and commits to it under the lock: it reads its object and replaces
that very version. Both locks take turns in one run, with the same processes and warm handles. A
grant costs a lock object two writes, so one object is good for half a grant per second at most.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from typing import Any

from lockkit.lab.server import Emulator
from lockkit.recipes.stripes import collision_chance, index_of

LATENCY_MS = 30
WRITERS, STRIPES = 8, 64
SECONDS, ROUNDS = 20.0, 2
TTL_S, LONGEST_S = 60.0, 300.0
SINGLE, STRIPED = "a single lock", f"{STRIPES} stripes"
KEYS = [f"part={number}" for number in range(WRITERS)]
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

Commit = Callable[[], None]


def _commits(endpoint: str, bucket: str, key: str) -> dict[str, tuple[Any, Commit]]:
    """For each kind of lock: a context for one grant, and the commit to be made under it."""
    from lockkit import Lock, open_store
    from lockkit.protocol.outcome import Applied, Found, Missing, over
    from lockkit.recipes.striped import StripedLock

    store = open_store(f"gs://{bucket}/data", endpoint=endpoint)
    single = Lock(f"gs://{bucket}/single", acquire_timeout=None, ttl_s=TTL_S, endpoint=endpoint)
    striped = StripedLock(
        f"gs://{bucket}/striped", stripes=STRIPES, lock={"ttl_s": TTL_S}, endpoint=endpoint
    )

    def commit(name: str) -> Commit:
        def once() -> None:
            match store.get(name):
                case Found(body, version):
                    number, condition = int(body) + 1, over(version)
                case Missing():
                    number, condition = 1, over(None)
                case other:
                    raise AssertionError(f"{other}")
            assert isinstance(store.put(name, b"%d" % number, condition), Applied)

        return once

    return {
        SINGLE: (single, commit(f"{key}/under-single")),
        STRIPED: (striped.keys(key, acquire_timeout=None), commit(f"{key}/under-striped")),
    }


def _write(endpoint: str, bucket: str, key: str, seconds: float, rounds: int, gate: Any,
           out: Any) -> None:  # fmt: skip
    ways = _commits(endpoint, bucket, key)
    for lock, commit in ways.values():  # first use, and whatever a lock proves once
        with lock:
            commit()
    spans: dict[str, list[tuple[float, float]]] = {kind: [] for kind in ways}
    for _ in range(rounds):
        for kind, (lock, commit) in ways.items():
            gate.wait(LONGEST_S)
            ends = time.clock_gettime(_CLOCK) + seconds
            while (began := time.clock_gettime(_CLOCK)) < ends:
                with lock:
                    commit()
                    done = time.clock_gettime(_CLOCK)
                if done <= ends:
                    spans[kind].append((began, done))
    out.put(spans)


def main(quick: bool = False) -> dict[str, Any]:
    seconds, rounds = (5.0, 1) if quick else (SECONDS, ROUNDS)
    spawn = multiprocessing.get_context("spawn")
    gate, out = spawn.Barrier(WRITERS), spawn.Queue()
    with Emulator(profile="gcs", latency_ms=LATENCY_MS) as server:
        writers = [
            spawn.Process(target=_write, args=(server.gcs, "b", key, seconds, rounds, gate, out))
            for key in KEYS
        ]
        for each in writers:
            each.start()
        reports = [out.get(timeout=LONGEST_S) for _ in writers]
        for each in writers:
            each.join()
        requests = server.requests()
    rows = {kind: _figures(kind, reports, requests, seconds * rounds) for kind in (SINGLE, STRIPED)}
    per_s = {kind: row["commits_per_s"] for kind, row in rows.items()}
    return {
        "profile": "gcs, 1 write/s/object", "latency_ms": LATENCY_MS, "writers": WRITERS,
        "stripes_met": len({index_of(key, STRIPES) for key in KEYS}),
        "chance_that_a_key_shares_its_stripe": round(collision_chance(STRIPES, WRITERS - 1), 3),
        "seconds": seconds * rounds,
        "times": round(per_s[STRIPED] / max(per_s[SINGLE], 0.01), 1),
        "rows": rows,
    }  # fmt: skip


def _figures(kind: str, reports: list[Any], requests: list[Any], seconds: float) -> dict[str, Any]:
    took = sorted(done - began for each in reports for began, done in each[kind])
    name = "/single/" if kind == SINGLE else "/stripes/"
    throttled = sum(each["status"] == 429 and name in f"/{each['key']}" for each in requests)
    return {
        "commits": len(took),
        "commits_per_s": round(len(took) / seconds, 2),
        "p50_s": round(took[len(took) // 2], 2) if took else None,
        "longest_s": round(took[-1], 2) if took else None,
        "fewest_of_a_writer": min(len(each[kind]) for each in reports),
        "429": throttled,
    }


def goals(result: dict[str, Any]) -> list[tuple[str, float, float]]:
    return [("4 times a single lock's commits/s, over the striped lock's",
             round(4 / result["times"], 2), 1)]  # fmt: skip
