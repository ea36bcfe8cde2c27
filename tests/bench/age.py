"""What a commit costs on a young table and on one with 10,000 commits behind it.

Warm: by a handle that has committed before. Cold: by one that has just been opened, its opening
counted in. Peers are aged by 1,000 commits, each row says so: deltalake's commits take the longer
the more there are, and 10,000 would take an hour. pyiceberg is left out: it writes every snapshot
into every metadata file, so that ageing its table alone takes longer than the rest of the bench.
"""

from __future__ import annotations

import http.client
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lockkit.table.format.timeline import instant_ms, instant_of
from lockkit.table.read.checkpoint import CHECKPOINT_EVERY
from tests.bench.committers import EVERY, GROUP, bucket_of, create, rows
from tests.bench.server import Server, serving
from tests.bench.shapes import client

AGES = (10, 10_000)
PEER_AGES = (10, 1_000)
OURS = ("lockkit", *GROUP)
PEERS = ("pylance", "deltalake")
LATENCY_MS = 60
WARM, COLD = 10, 4
BEHIND = CHECKPOINT_EVERY - COLD - 1
"""Commits to an old table before it is measured: its checkpoint is then nearly due again, which is
when who opens the table reads most."""
ROWS = 10
APART_MS = 60_000
FOLDER = "orders/.hoodie/timeline/"


def _age_lockkit(server: Server, name: str, bucket: str, home: Path, age: int) -> None:
    """The files of one real commit, again and again under earlier instants and other file ids.

    No fence and no checkpoint: whoever opens it first reads every commit, and leaves a checkpoint.
    That is the warm-up; its first commit is told apart.
    """
    s3 = client(server.s3)
    s3.create_bucket(Bucket=bucket)
    EVERY[name].create_empty(server.s3, bucket, home)
    listed = s3.list_objects_v2(Bucket="template", Prefix=FOLDER + "2")["Contents"]
    bodies = {
        each["Key"]: s3.get_object(Bucket="template", Key=each["Key"])["Body"].read()
        for each in listed
    }
    instant = min(key[len(FOLDER) :].partition(".")[0] for key in bodies)
    bodies = {key: body for key, body in bodies.items() if instant in key}
    done = next(key for key in bodies if key.endswith(".commit")).rpartition("_")[2][:17]
    data = s3.list_objects_v2(Bucket="template", Prefix="orders/", Delimiter="/")["Contents"]
    names = [each["Key"] for each in data if instant in each["Key"]]
    file_id = names[0].removeprefix("orders/").partition("_")[0]
    address = urlsplit(server.s3)
    wire = http.client.HTTPConnection(address.hostname or "", address.port)
    for number in range(age):
        back_ms = (age - number) * APART_MS
        earlier, ended = (instant_of(instant_ms(each) - back_ms) for each in (instant, done))
        other_id = f"{number:08x}{file_id[8:]}"
        for key, body in bodies.items():
            body = body.replace(instant.encode(), earlier.encode())
            body = body.replace(file_id.encode(), other_id.encode())
            key = key.replace(instant, earlier).replace(done, ended)
            wire.request("PUT", f"/{bucket}/{key}", body)
            answer = wire.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
    wire.close()


def _age(server: Server, name: str, bucket: str, home: Path, age: int) -> None:
    if name in OURS:
        _age_lockkit(server, name, bucket, home, age)
        return
    create(name, server.s3, home, bucket)
    mine = EVERY[name](server.s3, bucket, home)
    for number in range(age):
        mine.append(rows(number * ROWS, ROWS))


def _cost(server: Server, bucket: str, commit: Callable[[], None], commits: int) -> dict[str, Any]:
    def times_s() -> list[float]:
        times = []
        for _ in range(commits):
            began = time.perf_counter()
            commit()
            times.append(time.perf_counter() - began)
        return times

    server.latency(LATENCY_MS)
    before = server.requests(bucket)
    far = statistics.median(times_s())
    sent = server.requests(bucket) - before
    server.latency(0)
    near = statistics.median(times_s())
    return {
        "requests": round(sent.total() / commits, 1),
        "p50_s": round(far, 3),
        "p50_at_0_ms_s": round(near, 4),
    }


def goals(result: dict[str, Any]) -> list[tuple[str, float, float]]:
    young, old = result["ages"]
    found = []
    for handle in ("warm", "cold"):
        for name in OURS:
            now = result["rows"][f"{name}, {old:,} commits, {handle}"]
            then = result["rows"][f"{name}, {young:,} commits, {handle}"]
            for what in ("requests", "p50_s", "p50_at_0_ms_s"):
                named = f"{handle} commit of {name} at age {old:,} over age {young}, {what}"
                found.append((named.replace("_", " "), round(now[what] / then[what], 2), 1.3))
    return found


def main(
    quick: bool = False, ours: tuple[str, ...] = OURS, peers: tuple[str, ...] = PEERS
) -> dict[str, Any]:
    ages, peer_ages = ((10, 200), (10, 50)) if quick else (AGES, PEER_AGES)
    found: dict[str, Any] = {}
    first_s: dict[tuple[str, int], float] = {}
    with tempfile.TemporaryDirectory() as place, serving() as server:
        home = Path(place)
        create("lockkit", server.s3, home, "template")
        subjects = [(name, age) for name in ours for age in ages]
        subjects += [(name, age) for name in peers for age in peer_ages]
        for name, age in subjects:
            bucket = bucket_of(f"{name} {age}")
            _age(server, name, bucket, home, age)
            opened = partial(EVERY[name], server.s3, bucket, home)
            warm = opened()
            began = time.perf_counter()
            warm.append(rows(0, ROWS))
            first_s[name, age] = time.perf_counter() - began
            for number in range(BEHIND if age > CHECKPOINT_EVERY else 0):
                warm.append(rows(number * ROWS, ROWS))
            found[f"{name}, {age:,} commits, cold"] = _cost(
                server, bucket, lambda: opened().append(rows(0, ROWS)), COLD  # noqa: B023
            )
            found[f"{name}, {age:,} commits, warm"] = _cost(
                server, bucket, partial(warm.append, rows(0, ROWS)), WARM
            )
    return {
        "latency_ms": LATENCY_MS,
        "ages": list(ages),
        "first_commit_without_checkpoint_at_0_ms_s": round(first_s[ours[0], ages[-1]], 1),
        "rows": found,
    }
