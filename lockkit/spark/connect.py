"""One Spark Connect server that the writers of a fleet share: one JVM instead of one each.

The commit, the lock and the lease's clock stay in each writer's own process; only the compute is
shared, as on a real cluster. The server listens on loopback and requires a token, because a client
that reaches it can run code as the user who started it.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lockkit.clock import Clock
from lockkit.errors import StatedError
from lockkit.spark.archive import archive_options
from lockkit.spark.java import LEAN_JVM, spark_env

CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
READY_TIMEOUT_S = 90.0
READY_POLL_S = 0.1
PORTS = (20_000, 31_000)
"""Below those that the kernel gives to connections and to port 0: it would give a port that is free
now to another process before our server starts, or while our server is down.
"""
PORT_TRIES_MAX = 50
TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
# With a token the client insists on TLS, except to the name (not the address) of this machine.
# A writer that was paused must not treat its connection as dead when it continues.
PARAMETERS = ";grpc_keepalive_enabled=false"
HEAP = "512m"

CONF = {
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
    "spark.sql.shuffle.partitions": "2",
    # The load here is small: compiling each plan costs more CPU than it saves.
    "spark.sql.codegen.wholeStage": "false",
    # Spark still writes INT96 timestamps by default, and pyarrow reads those as ns.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": HEAP,
    "spark.driver.extraJavaOptions": LEAN_JVM,
}


class ServerGone(StatedError, RuntimeError):
    """The Connect server did not answer in time."""


@dataclass(frozen=True, slots=True)
class Server:
    """The command and the address of a Connect server. Who starts it also ends it."""

    command: list[str]
    env: dict[str, str]
    client_env: dict[str, str]
    remote: str

    @classmethod
    def plan(cls, run_dir: Path, *, cores: int | None = None) -> Server:
        port = free_port()
        token = {TOKEN: Clock().unique()}
        conf = CONF | {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
            "spark.sql.warehouse.dir": str(run_dir / "warehouse"),
            "spark.driver.extraJavaOptions": LEAN_JVM + archive_options(LEAN_JVM, spark_env()),
        }
        command = [
            str(spark_home() / "bin" / "spark-submit"), "--class", CLASS,
            "--master", f"local[{cores or min(4, os.cpu_count() or 2)}]", "--name", "lockkit",
        ]  # fmt: skip
        for name, value in conf.items():
            command += ["--conf", f"{name}={value}"]
        # SparkSubmit loads nothing for this resource name; the class is on its class path
        return cls(
            [*command, "spark-internal"], token, token, f"sc://localhost:{port}/{PARAMETERS}"
        )


def spark_home() -> Path:
    """The folder of pip's Spark, found without an import."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("pyspark is not installed: pip install 'lockkit[spark]'")
    return Path(spec.origin).parent


def free_port(count: int = 1) -> int:
    """A loopback port that is free now, or the first of `count` consecutive ones.

    Spark does not report which port it took for port 0.
    """
    clock = Clock()
    for _ in range(PORT_TRIES_MAX):
        first = int(clock.uniform(*PORTS))
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise OSError(f"no {count} free ports in a row were found in {PORT_TRIES_MAX} tries")


def await_server(remote: str, *, timeout_s: float = READY_TIMEOUT_S) -> None:
    """Return once something listens at `sc://host:port`; raises `ServerGone`.

    Call it before the first session: a Connect client would hang in its own retries.
    """
    host, _, port = remote.removeprefix("sc://").split("/")[0].rpartition(":")
    clock = Clock()
    end_ms = clock.boot_ms() + timeout_s * 1000
    while clock.boot_ms() < end_ms:
        try:
            socket.create_connection((host, int(port)), timeout=1.0).close()
        except OSError:
            clock.sleep(READY_POLL_S)
        else:
            return
    raise ServerGone(
        f"the Spark Connect server at {remote}",
        f"did not answer within {timeout_s:.0f} s",
        "see spark.log in the run's folder, and whether the machine has 1 GB of memory to "
        "spare",
    )


def connect_session(remote: str) -> Any:
    """A new session on the shared server; raises `ServerGone`."""
    await_server(remote)
    from pyspark.sql import SparkSession

    return SparkSession.builder.remote(remote).create()


def own_session(name: str) -> Any:
    """A session in a separate JVM, for the lesson about separate clusters."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").appName(f"lockkit {name}")
    flags = LEAN_JVM + archive_options(LEAN_JVM)
    for key, value in {**CONF, "spark.driver.extraJavaOptions": flags}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
