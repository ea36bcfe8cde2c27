"""Single trials of group commit, each of half a minute: `python -m tests.bench.trials [name ...]`.

`killed`: eight writers append; each is killed in one of twenty rounds in which it decides for
others, half of them before the fence is replaced and half after, and is started again. `hot`: a
store that takes one write a second to an object. `near`: of 16 writers the first is four times
nearer. `open`: 16 writers begin an append each 0.6 s; its time counts from when it was due.
`peers`: four writers append, each library in turn. `aged` (two minutes): a commit behind 10,000
others. Each says how loaded the machine was.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench import age, group
from tests.bench.committers import EVERY, GROUP, bucket_of, create, rows
from tests.bench.group import PEERS, bare_put_s
from tests.bench.server import Server, serving
from tests.bench.writers import CLOCK, LATENCY_MS, ROWS, contend

TOGETHER = group.TOGETHER[6]
SECONDS = 8.0
KILLED_S, KILLED_WRITERS, ONE_OF = 25.0, 8, 20
ENDED_IN_S = 30.0


def _dying(seed: int) -> None:
    """From now on this process is killed in one of `ONE_OF` rounds that decide for others."""
    from lockkit.table.occ.group import combine as group_combine
    from lockkit.table.occ.group import offer as group_offer
    from lockkit.table.occ.group import process as group_process

    dice, decide_once = random.Random(seed), group_combine.decide_once

    def dies(client: Any, view: Any, offers: Any, write: Any = None) -> Any:
        dead = len(offers) > 1 and dice.random() < 1 / ONE_OF
        if dead and dice.random() < 0.5:
            os.kill(os.getpid(), signal.SIGKILL)
        won = yield from decide_once(client, view, offers, write)
        if dead:
            os.kill(os.getpid(), signal.SIGKILL)
        return won

    for module in (group_combine, group_offer, group_process):
        module.decide_once = dies  # type: ignore[attr-defined]


def _append_until_killed(
    endpoint: str, bucket: str, home: str, first: int, until: Any, seed: int
) -> None:
    """Each acknowledged append is a line of a file: its first row, and its span.

    The first one opens the table, and is not timed. Then it waits until the others have begun.
    """
    mine = EVERY[TOGETHER](endpoint, bucket, Path(home))
    with (Path(home) / f"acknowledged-{first}").open("a", buffering=1) as said:
        for number in range(first, first + 1_000_000, ROWS):
            began = time.clock_gettime(CLOCK)
            if until.value and began > until.value:
                return
            mine.append(rows(number, ROWS))
            said.write(json.dumps([number, began, time.clock_gettime(CLOCK)]) + "\n")
            if number == first:
                _dying(seed)
                while not until.value:
                    time.sleep(0.02)


def killed(server: Server, home: Path) -> dict[str, Any]:
    spawn, bucket = multiprocessing.get_context("spawn"), bucket_of("killed")
    create(TOGETHER, server.s3, home, bucket)
    until, launches, kills = spawn.Value("d", 0.0), 0, 0
    living: list[Any] = []

    def launch() -> None:
        nonlocal launches
        launches += 1
        living.append(spawn.Process(target=_append_until_killed, args=(
            server.s3, bucket, str(home), launches * 1_000_000, until, launches)))  # fmt: skip
        living[-1].start()

    for _ in range(KILLED_WRITERS):
        launch()
    while sum(each.read_text().count("\n") for each in home.glob("ack*")) < KILLED_WRITERS:
        time.sleep(0.05)
    server.latency(LATENCY_MS)
    until.value = time.clock_gettime(CLOCK) + KILLED_S
    while living and time.clock_gettime(CLOCK) < until.value + ENDED_IN_S:
        time.sleep(0.05)
        for each in [one for one in living if one.exitcode is not None]:
            living.remove(each)
            kills += each.exitcode == -signal.SIGKILL
            if time.clock_gettime(CLOCK) < until.value - 2:
                launch()
    for each in living:
        each.kill()
    server.latency(0)
    return _judged(server, bucket, home) | {"kills": kills}


def _judged(server: Server, bucket: str, home: Path) -> dict[str, Any]:
    logs = [[json.loads(line) for line in each.read_text().splitlines()]
            for each in home.glob("acknowledged-*")]  # fmt: skip
    said = [each for log in logs for each in log]
    there = Counter(EVERY[TOGETHER](server.s3, bucket, home).table.read()["id"].to_pylist())
    wanted = {f"k{n:012}" for first, *_ in said for n in range(first, first + ROWS)}
    spans = [(began, end) for log in logs for _, began, end in log[1:]]
    took = sorted(end - began for began, end in spans)
    whole_s = max(end for _, end in spans) - min(began for began, _ in spans)
    return {
        "commits": len(said), "commits_per_s": round(len(spans) / whole_s, 1),
        "p50_s": round(statistics.median(took), 2),
        "p99_s": round(took[int(0.99 * (len(took) - 1))], 2), "longest_s": round(took[-1], 2),
        "rows_lost": len(wanted - there.keys()),
        "rows_twice": sum(count > 1 for count in there.values()),
    }  # fmt: skip


def hot(_server: Server, home: Path) -> dict[str, Any]:
    with serving("gcs") as server:
        return {f"{n} writers": contend(server, TOGETHER, n, home, SECONDS, " hot")
                for n in (4, 8, 16)}  # fmt: skip


def near(server: Server, home: Path) -> dict[str, Any]:
    return contend(server, TOGETHER, 16, home, SECONDS, " near", near=True)


def open_loop(server: Server, home: Path) -> dict[str, Any]:
    return contend(server, TOGETHER, 16, home, 2 * SECONDS, " open", every_s=0.6)


def peers(server: Server, home: Path) -> dict[str, Any]:
    return {name: contend(server, name, 4, home, SECONDS / 2, " beside")
            for name in (TOGETHER, *PEERS)}  # fmt: skip


def aged(_server: Server, _home: Path) -> dict[str, Any]:
    found = age.main(ours=tuple(GROUP), peers=())["rows"]
    young, old = ({how: found[f"{TOGETHER}, {n:,} commits, {how}"] for how in ("warm", "cold")}
                  for n in age.AGES)  # fmt: skip
    ratios = {f"{how}: {what}, times": round(old[how][what] / young[how][what], 2)
              for how in young for what in young[how]}  # fmt: skip
    return found | {"10,000 over 10": ratios}


TRIALS: dict[str, Callable[[Server, Path], dict[str, Any]]] = {
    "killed": killed, "hot": hot, "near": near, "open": open_loop, "peers": peers, "aged": aged,
}  # fmt: skip


def main(names: list[str]) -> None:
    for name in names or TRIALS:
        with tempfile.TemporaryDirectory() as home, serving() as server:
            print(f"{name}: a bare PUT {bare_put_s(server)} s, load {os.getloadavg()[0]:.1f}")
            found = TRIALS[name](server, Path(home))
        rows_ = found if all(isinstance(row, dict) for row in found.values()) else {"": found}
        for label, row in rows_.items():
            print(f"  {label}", *(f"{k.replace('_', ' ')} {v};" for k, v in row.items()))
        print(f"  load at the end {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
