"""Hudi 0.14 and 0.15, which users of table version 6 run, and lockkit: in turn, and at once."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from environment import CACHE, Environment, Unavailable, run
from hudi_rs import read_by_hudi_rs
from hudi_world import Hudi, Refused
from jvm import ALONE, fetched
from ours import SPARK_SCHEMA, arrow, order

from lockkit.cli.main import main
from lockkit.lab.server import Emulator
from lockkit.table import CommitConflict, Table
from lockkit.table.errors import TableBlocked, TableChanged

pytestmark = [
    pytest.mark.interop, pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::lockkit.table.read.listed.LocalInstants"),
]  # fmt: skip
BUNDLE = ("org.apache.hudi", "hudi-spark3.5-bundle_2.12", "0.15.0")
OLDEST = ("org.apache.hudi", "hudi-spark3.4-bundle_2.12", "0.14.0")
PYSPARK = "pyspark==3.4.4"
WRITE = "hoodie.datasource.write."
OPTIONS = {
    "hoodie.table.name": "orders", WRITE + "recordkey.field": "id", WRITE + "operation": "upsert",
    WRITE + "precombine.field": "at", WRITE + "partitionpath.field": "region",
    "hoodie.embed.timeline.server": "false", "hoodie.compact.inline": "false",
}  # fmt: skip
ORDERS = {"by event": {
    WRITE + "payload.class": "org.apache.hudi.common.model.DefaultHoodieRecordPayload",
}, "by commit": {}}  # fmt: skip
"""Before 1.0 the later commit wins by default."""
COMPACT = {"hoodie.compact.inline": "true", "hoodie.compact.inline.max.delta.commits": "1"}
PLAN = {"hoodie.compact.schedule.inline": "true", "hoodie.compact.inline.max.delta.commits": "1"}
ARCHIVES = {
    "hoodie.clean.commits.retained": "1", "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3", "hoodie.commits.archival.batch": "1",
}  # fmt: skip
RETAINED = {"hoodie.clean.commits.retained": "1"}
BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "3"}
NUMBERS = itertools.count()
SHARED = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.cleaner.policy.failed.writes": "LAZY", "hoodie.metadata.enable": "false",
    "hoodie.write.lock.client.wait_time_ms": "1000", "hoodie.write.lock.client.num_retries": "60",
}  # fmt: skip
WRITES = 2
"""Of each of Hudi's writers."""


@pytest.fixture(scope="module")
def older(
    environment: Environment, server: Emulator, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hudi]:
    """Spark with the bundle of Hudi 0.15; the lock's client is of a later interface."""
    running = started(environment, "hudi15", BUNDLE, server, tmp_path_factory.mktemp("older"))
    yield running
    running.close()


@pytest.fixture(scope="module")
def oldest(
    environment: Environment, server: Emulator, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hudi]:
    """Hudi 0.14, on the newest Spark that it knows."""
    venv = CACHE.with_name("hudi14-spark")
    python, ready = venv / "bin/python", venv / ".ready"
    try:
        if not ready.is_file() or ready.read_text() != PYSPARK:
            run("its own environment", [sys.executable, "-m", "venv", str(venv)],
                environment.variables)  # fmt: skip
            pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "-q"]
            run("PySpark from PyPI", [*pip, "install", PYSPARK], environment.variables)
            ready.write_text(PYSPARK)
    except Unavailable as reason:
        pytest.skip(f"Hudi 0.14 cannot be run here: {reason}")
    mine = {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
    env = replace(environment, python=python, variables=environment.variables | mine)
    running = started(env, "hudi14", OLDEST, server, tmp_path_factory.mktemp("oldest"))
    yield running
    running.close()


def started(
    environment: Environment, name: str, bundle: tuple[str, str, str], server: Emulator, logs: Path
) -> Hudi:
    try:
        folder = Path(fetched(name, {bundle: ALONE}).removesuffix("/*"))
    except Unavailable as reason:
        pytest.skip(f"Hudi {bundle[2]} cannot be run here: {reason}")
    jars = (*folder.glob("*.jar"), *(each for each in environment.jars if "hudi" not in each.name))
    return Hudi(replace(environment, jars=jars, classes=folder), server.s3, logs / "log")


@pytest.mark.parametrize("place", ["s3", "file"])
@pytest.mark.parametrize("index", ["simple", "buckets"])
@pytest.mark.parametrize("order_by", ORDERS)
@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_hudi_0_15_with_its_defaults_and_lockkit_write_in_turn_and_all_read_the_same(
    older: Hudi, server: Emulator, tmp_path: Path, kind: str, order_by: str, index: str, place: str
) -> None:
    url = f"file://{tmp_path}/orders"
    path, endpoint, where = str(tmp_path / "orders"), "", list[str]()
    if place == "s3":
        url, endpoint = f"s3://older-{next(NUMBERS)}/orders", server.s3
        path, where = url, ["--endpoint", endpoint]
    buckets = ["--buckets", "3"] if index == "buckets" else []
    merged = kind == "MERGE_ON_READ"
    options = OPTIONS | ORDERS[order_by] | {WRITE + "table.type": kind}
    options |= BUCKETS if index == "buckets" else {}
    expected: dict[str, int] = {}

    def rows(at: int, *numbers: int) -> list[dict[str, Any]]:
        return [order(f"k{n}", region="EU" if n % 2 else "US", amount=at, at=at) for n in numbers]

    def wrote(at: int, *numbers: int, by_event: bool = order_by == "by event") -> None:
        for key in (f"k{n}" for n in numbers):
            expected[key] = max(expected.get(key, 0), at) if by_event else at

    def theirs(at: int, *numbers: int, **more: str) -> None:
        mode = "append" if expected else "overwrite"
        older.write(path, rows(at, *numbers), schema=SPARK_SCHEMA, mode=mode,
                    options=options | more)  # fmt: skip
        wrote(at, *numbers)

    def ours(at: int, *numbers: int) -> None:
        table.upsert(arrow(rows(at, *numbers)))
        # The properties of a copy-on-write table do not say the payload's class.
        wrote(at, *numbers, by_event=not merged or order_by == "by event")

    def all_show(*, by_rs: bool = True) -> None:
        shown = {"lockkit": table.read().to_pylist(), "Hudi": older.read(path)}
        if by_rs:
            shown["hudi-rs"] = read_by_hudi_rs(path, endpoint).to_pylist()
        for who, found in shown.items():
            held = sorted((row["id"], row["amount"]) for row in found)
            assert held == sorted(expected.items()), who

    theirs(10, *range(8))
    theirs(20, 1, 2, 3, 8)
    with Table(url, endpoint=endpoint or None) as table:
        all_show()
        assert main(["table", "adopt", url, *where, *buckets]) == 0
        ours(30, 2, 3, 4, 9)
        all_show()
        theirs(40, 3, 4, 9, 10)
        all_show()
        # Older by event. Of two rows in log files Hudi 0.15 takes the greater one, whatever the
        # payload class, and Hudi 1.x and lockkit the later one, if the payload's class says so.
        ours(45 if merged and order_by == "by commit" else 35, 4, 10)
        table.delete(arrow(rows(50, 5, 8)))
        expected.pop("k5"), expected.pop("k8")
        all_show()
        if merged:
            theirs(60, 2, 6, **PLAN)
            ours(70, 1, 2)
            theirs(80, 6, 9)
            all_show(by_rs=False)
            table.compact()
            all_show()
            ours(90, 2, 7)
            theirs(100, 6, 7, **COMPACT)
            all_show()
        for at in range(200, 206):
            theirs(at, 3, 4, **ARCHIVES)
        all_show()
        ours(300, 3, 11)
        theirs(310, 3, 12)
        all_show()
        with Table(url, endpoint=endpoint or None, options=RETAINED) as other:
            done = other.archive(keep_min=2, keep_max=3)
            assert done is not None and done.instants
        all_show()
        theirs(320, 4, 12, **ARCHIVES)
        all_show()
        saved, then = table.savepoint().instant, dict(expected)
        theirs(330, 3, 13)
        ours(340, 4, 14)
        all_show()
        assert len(table.restore(saved).taken_back) == 2 and table.delete_savepoint(saved)
        expected.clear()
        expected.update(then)
        all_show()
        theirs(350, 1, 15, **ARCHIVES)
        ours(360, 2, 15)
        all_show()


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_hudi_0_14_and_0_15_and_lockkit_write_at_once_and_each_acknowledged_row_is_there_once(
    oldest: Hudi, older: Hudi, server: Emulator, zookeeper: Any, kind: str
) -> None:
    """Each in a partition of its own, and each other time in one that all of them write.

    hudi-rs and all three read the rows; each key has its greatest acknowledged value.
    """
    url = f"s3://at-once-{next(NUMBERS)}/orders"
    lock = zookeeper.recipe() | {"hoodie.write.lock.zookeeper.lock_key": url.split("/")[2]}
    options = OPTIONS | ORDERS["by event"] | SHARED | lock | {WRITE + "table.type": kind}
    numbers, turn = itertools.count(1), threading.Lock()
    expected: dict[str, int] = {}
    outcomes: dict[str, list[str]] = {}

    def rows(who: str, at: int, step: int) -> list[dict[str, Any]]:
        own = [order(f"{who}{n}", region=who, amount=at, at=at) for n in (step % 3, 3)]
        return own + [order(f"all{at % 4}", region="all", amount=at, at=at)] * (step % 2)

    def writes(who: str, step: int, write: Any) -> bool:
        at = next(numbers)
        listed = rows(who, at, step)
        try:
            write(listed)
        except (Refused, CommitConflict, TableBlocked, TableChanged) as error:
            outcomes.setdefault(who, []).append(str(error)[:150])
            return False
        with turn:
            outcomes.setdefault(who, []).append("")
            for each in listed:
                expected[each["id"]] = max(expected.get(each["id"], 0), at)
        return True

    def by_hudi(who: str, hudi: Hudi, **more: str) -> None:
        for step in range(WRITES):
            writes(who, step, lambda listed: hudi.write(
                url, listed, schema=SPARK_SCHEMA, mode="append", options=options | more
            ))  # fmt: skip

    over = threading.Event()

    def by_lockkit(who: str) -> None:
        with Table(url, endpoint=server.s3, options=lock) as table:
            for step in itertools.count():
                writes(who, step, lambda listed: table.upsert(arrow(listed)))
                if kind == "MERGE_ON_READ" and step % 4 == 3 and who == "US":
                    table.compact(retries=3)
                if over.wait(3.0):
                    return

    def all_show() -> None:
        shown: Mapping[str, Any] = {
            "hudi-rs": read_by_hudi_rs(url, server.s3).to_pylist(),
            "0.14": oldest.read(url), "0.15": older.read(url),
        }  # fmt: skip
        with Table(url, endpoint=server.s3, options=lock) as table:
            shown = {**shown, "lockkit": table.read().to_pylist()}
        for who, found in shown.items():
            held = sorted((row["id"], row["amount"]) for row in found)
            assert held == sorted(expected.items()), who

    first = [order(f"all{n}", region="all") for n in range(4)]
    oldest.write(url, first, schema=SPARK_SCHEMA, mode="overwrite", options=options)
    expected |= {each["id"]: 0 for each in first}
    assert main(["table", "adopt", url, "--endpoint", server.s3]) == 0
    theirs = [threading.Thread(target=by_hudi, args=each) for each in (("A", oldest), ("B", older))]
    ours = [threading.Thread(target=by_lockkit, args=(who,)) for who in ("EU", "US")]
    for thread in (*theirs, *ours):
        thread.start()
    for thread in theirs:
        thread.join()
    over.set()
    for thread in ours:
        thread.join()
    print({who: (said.count(""), {*said}) for who, said in sorted(outcomes.items())})
    assert all("" in outcomes.get(who, ()) for who in ("A", "B", "EU", "US")), outcomes
    all_show()
    for hudi in (older, oldest):
        assert writes("A", 1, lambda listed, hudi=hudi: hudi.write(
            url, listed, schema=SPARK_SCHEMA, mode="append", options=options | ARCHIVES
        ))  # fmt: skip
    if kind == "MERGE_ON_READ":
        with Table(url, endpoint=server.s3, options=lock) as table:
            table.compact()
    all_show()
