"""The same program on Spark Connect and on a cluster of a master and two workers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from spark_world import APART, by_hudi_rs, stored

from lockkit.lab.processes.process import guarded, kill_tree
from lockkit.spark.connect import Server, await_server, free_port, spark_home
from lockkit.spark.java import LEAN_JVM, spark_env

pytestmark = [*APART, pytest.mark.xdist_group("spark processes"), pytest.mark.soak]
HERE = Path(__file__).parent
DEPLOY = "org.apache.spark.deploy"


@contextmanager
def running(command: list[str], env: dict[str, str], log: Path) -> Iterator[None]:
    with log.open("w") as out:
        process = subprocess.Popen(
            command, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            yield
        finally:
            kill_tree(process.pid)
            process.wait(30)


@contextmanager
def connect(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    server = Server.plan(folder, cores=2)
    with running(guarded(*server.command), spark_env() | server.env, folder / "server.log"):
        await_server(server.remote)
        yield server.remote, server.client_env


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """A standalone master and two workers of one core each."""
    env = spark_env() | {
        "SPARK_DAEMON_MEMORY": "256m", "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_DAEMON_JAVA_OPTS": LEAN_JVM,
    }  # fmt: skip
    run, port = str(spark_home() / "bin" / "spark-class"), free_port()
    master, place = f"spark://127.0.0.1:{port}", ["--host", "127.0.0.1", "--webui-port", "0"]
    with ExitStack() as all_of:
        command = [run, f"{DEPLOY}.master.Master", *place, "--port", str(port)]
        all_of.enter_context(running(command, env, folder / "master.log"))
        await_server(f"sc://127.0.0.1:{port}")
        for number in range(2):
            command = [run, f"{DEPLOY}.worker.Worker", *place, "--cores", "1", "--memory", "600m"]
            log = folder / f"worker{number}.log"
            all_of.enter_context(running([*command, master], env, log))
        yield master, {}


@pytest.mark.parametrize("kind", [connect, cluster])
def test_the_same_program_runs_on_connect_and_on_a_cluster(
    kind: Any, emulator: Any, tmp_path: Path
) -> None:
    place = {"url": "s3://lake/orders", "endpoint": emulator.s3}
    with kind(tmp_path) as (master, env):
        completed = subprocess.run(
            [sys.executable, str(HERE / "spark_round.py"), master, *place.values(), str(tmp_path)],
            env=spark_env() | env, cwd=HERE, capture_output=True, text=True, timeout=200,
            check=False,
        )  # fmt: skip
    assert completed.returncode == 0, completed.stderr[-4000:]
    seen = json.loads(completed.stdout.splitlines()[-1])
    if kind is cluster:
        assert seen["daemons"] == 2, "both workers had tasks"
    assert seen["commit"].isdecimal()
    assert seen["write"] == seen["save"] and "1 rows have no record key" in seen["write"]
    now = [("a", "EU", 2), ("b", "US", 3), ("c", "US", 2), ("d", "EU", 1), ("e", "US", 5),
           ("f", "EU", 6)]  # fmt: skip
    assert stored(place) == now == by_hudi_rs(place)
    assert [(row[0], row[1], row[3]) for row in seen["read"]] == now
    assert (seen["some"], seen["sql"]) == (["a", "d", "f"], 19)


def test_on_connect_rows_that_were_read_do_not_go_back_over_a_later_commit(tmp_path: Path) -> None:
    """The server keeps the plan of a data source, and with it the files of its first reading."""
    with connect(tmp_path) as (remote, env):
        completed = subprocess.run(
            [sys.executable, str(HERE / "fresh_world.py"), remote, str(tmp_path)],
            env=spark_env() | env, cwd=HERE, capture_output=True, text=True, timeout=200,
            check=False,
        )  # fmt: skip
    assert completed.returncode == 0, completed.stderr[-4000:]
    seen = json.loads(completed.stdout.splitlines()[-1])
    assert seen.pop("loaded") == ["committed", 101], "each attempt reads again"
    assert len(seen) == 6 and all(each == ["OldRows", 100] for each in seen.values()), seen
