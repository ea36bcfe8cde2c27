"""Real writers of group commit, killed or stopped at each request, beside others that go on.

`python -m tests.group_killed` runs a server in a process of its own. For each request of an append
and an upsert, a process is killed, or stopped for a while, before that request is sent and after it
was carried out. Two other processes commit all the time. Afterwards every acknowledged row is there
once, and of the others' writes and of its own none is there in part.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pyarrow as pa
from hudi_rs import read_by_hudi_rs

from lockkit.errors import LockkitError
from lockkit.stores import open_store
from lockkit.table import CommitUnknown, Table
from tests.bench.server import serving

BEFORE, AFTER = "before", "after"
KILL, STOP = signal.SIGKILL, signal.SIGSTOP
OTHERS = ("x", "y")
MEANWHILE = 3
"""So many commits each of the others makes while a process is stopped."""
REQUESTS_MAX = 80


def rows(*keys: str, v: int = 0) -> pa.Table:
    columns = {"id": list(keys), "region": ["EU"] * len(keys), "v": [v] * len(keys)}
    return pa.table(columns)


@dataclass(slots=True)
class Told:
    """What a process has said of its writes: each row's latest sure value, and what may be."""

    sure: dict[str, int] = field(default_factory=dict)
    may_be: dict[str, set[int]] = field(default_factory=dict)

    def hear(self, line: str) -> None:
        said, keys, v = json.loads(line)
        for key in keys:
            if said == "tries":
                self.may_be.setdefault(key, set()).add(v)
            elif said == "done":
                self.sure[key] = v
                self.may_be[key] = set()
            else:
                self.may_be[key].discard(v)


def write(table: Table, how: str, keys: tuple[str, ...], v: int, out: int) -> None:
    """Says what it tries before, and what became of it after; retried until that is known."""

    def say(what: str) -> None:
        os.write(out, f"{json.dumps([what, keys, v])}\n".encode())

    say("tries")
    try:
        getattr(table, how)(rows(*keys, v=v), retries=8)
    except CommitUnknown:
        return  # it stays among what may be
    except LockkitError:
        say("not")
        return
    say("done")


@contextmanager
def forked(work: Callable[[int], None]) -> Iterator[tuple[int, int]]:
    """A process that does the work: its id, and what reads what it says."""
    mine, its = os.pipe()
    child = os.fork()
    if not child:
        os.close(mine)
        try:
            work(its)
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - a process of its own
            os.write(2, f"{error!r}\n".encode())
            os._exit(9)
    os.close(its)
    try:
        yield child, mine
    finally:
        os.close(mine)


def goes_on(
    url: str, endpoint: str, name: str, until: int, end: int
) -> Callable[[int], None]:
    """Appends and upserts until the pipe `until` is closed by its other `end`."""

    def work(out: int) -> None:
        os.close(end)
        os.set_blocking(until, False)
        with Table(url, endpoint=endpoint) as table:
            for number in count():
                how = ("append", "upsert")[number % 2]
                keys = (f"{name}{number // 2 * 2}", f"{name}{number // 2 * 2 + 1}")
                write(table, how, keys, number, out)
                try:
                    if not os.read(until, 1):
                        return
                except BlockingIOError:
                    pass

    return work


def ends_at(
    url: str, endpoint: str, number: int, moment: str, what: signal.Signals
) -> Callable[[int], None]:
    """An append and an upsert, whose process gets the signal at this request of theirs."""

    def work(out: int) -> None:
        asked, alone = count(1), threading.Lock()

        def watched(do: Callable[..., Any]) -> Callable[..., Any]:
            def ask(*args: Any, **how: Any) -> Any:
                with alone:
                    here = next(asked) == number
                if here and moment == BEFORE:
                    os.kill(os.getpid(), what)
                try:
                    return do(*args, **how)
                finally:
                    if here and moment == AFTER:
                        os.kill(os.getpid(), what)

            return ask

        class Watched:
            def __getattr__(self, name: str) -> Any:
                found = getattr(store, name)
                return watched(found) if name in ("get", "put", "list", "delete") else found

        with Table(url, endpoint=endpoint) as table:
            write(table, "append", ("mine0", "mine1"), 0, out)
            store = table.store
            table.store = table._upkeep.context.store = Watched()
            write(table, "append", ("mine2", "mine3"), 1, out)
            write(table, "upsert", ("mine0", "mine2", "mine4"), 2, out)

    return work


@dataclass(frozen=True, slots=True)
class Point:
    number: int
    moment: str
    what: signal.Signals
    reached: bool
    """False: the process has ended before it sent so many requests."""
    commits: int
    """Of the others."""


def lines(pipe: int) -> list[str]:
    with os.fdopen(os.dup(pipe)) as said:
        return said.read().splitlines()


def play(endpoint: str, number: int, moment: str, what: signal.Signals, version: int) -> Point:
    """One process that is ended or stopped at this request, beside others; judged."""
    url = f"s3://lake/{what.name}-{version}-{moment}-{number}-{os.getpid()}"
    Table.create(url, endpoint=endpoint, record_key="id", partition_by="region", commit="group",
                 version=version).close()  # fmt: skip
    until, end = os.pipe()
    told, commits = Told(), 0
    works = [goes_on(url, endpoint, name, until, end) for name in OTHERS]
    with forked(works[0]) as (one, first), forked(works[1]) as (other, second), \
            forked(ends_at(url, endpoint, number, moment, what)) as (child, third):  # fmt: skip
        _, status = os.waitpid(child, os.WUNTRACED)
        reached = os.WIFSTOPPED(status) or os.WIFSIGNALED(status)
        if os.WIFSTOPPED(status):
            time.sleep(0.3 * MEANWHILE)
            os.kill(child, signal.SIGCONT)
            _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or status == 0, f"{number} {moment}: {status}"
        os.close(end)
        for each in (one, other):
            assert os.waitpid(each, 0)[1] == 0, f"{number} {moment}: another writer failed"
        for pipe in (first, second, third):
            said = lines(pipe)
            commits += sum('"done"' in line for line in said if pipe != third)
            for line in said:
                told.hear(line)
    os.close(until)
    judge(url, endpoint, told, f"{what.name} {moment} request {number} of version {version}")
    return Point(number, moment, what, reached, commits)


def judge(url: str, endpoint: str, told: Told, where: str) -> None:
    with Table(url, endpoint=endpoint) as table:
        table.append(rows("last"), retries=8)
        table.upsert(rows("last", v=1), retries=8)
        found = table.read().to_pylist()
    for reader in (found, read_by_hudi_rs(url, endpoint).to_pylist()):
        values = {row["id"]: row["v"] for row in reader}
        assert len(values) == len(reader), f"{where}: a row is there twice"
        assert values.pop("last") == 1, where
        for key, v in told.sure.items():
            assert values.get(key) in {v, *told.may_be[key]}, f"{where}: {key}={v} is lost"
        for key, v in values.items():
            may_be = {told.sure[key]} if key in told.sure else set()
            assert v in may_be | told.may_be.get(key, set()), f"{where}: {key}={v} is nobody's"
        appended = [each in values for each in ("mine2", "mine3")]
        upserted = "mine4" in values  # which may have written mine2
        assert upserted or appended[0] == appended[1], f"{where}: a commit is there in part"
        assert appended[0] >= appended[1], f"{where}: a commit is there in part"
        assert ("mine4" in values) == (values.get("mine0") == 2) == (values.get("mine2") == 2), (
            f"{where}: an upsert is there in part"
        )


def played(
    endpoint: str, moment: str, what: signal.Signals, version: int, step: int
) -> list[Point]:
    """At each `step`-th request, until the process sends no more of them."""
    points: list[Point] = []
    for number in range(1, REQUESTS_MAX, step):
        points.append(play(endpoint, number, moment, what, version))
        if not points[-1].reached:
            break
    return points


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--latency-ms", type=float, default=4)
    wanted = parser.parse_args()
    os.environ |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x",
                   "AWS_REGION": "us-east-1"}  # fmt: skip
    open_store("s3://lake/x", endpoint="http://127.0.0.1:1").close()  # boto3, before any fork
    with serving() as server:
        server.latency(wanted.latency_ms)
        for version in (9, 6):
            for what in (KILL, STOP):
                for moment in (BEFORE, AFTER):
                    began = time.monotonic()
                    points = played(server.s3, moment, what, version, wanted.step)
                    reached = [each for each in points if each.reached]
                    print(
                        f"version {version}: {what.name} {moment} each of {len(reached)} requests, "
                        f"beside {sum(each.commits for each in points)} commits of others; nothing "
                        f"lost, twice or in part; {time.monotonic() - began:.0f} s", flush=True,
                    )  # fmt: skip


if __name__ == "__main__":
    main()
