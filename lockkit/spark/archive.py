"""A shared archive of Spark's classes (AppCDS): a writer's own JVM starts in half the time.

A small Spark job makes the archive in the background, once for each version of Java and pyspark.
Spark starts without it until it exists, or if the JVM rejects it. `LOCKKIT_APPCDS=off` disables it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lockkit.clock import Clock
from lockkit.spark.java import LEAN_JVM, cache_folder, spark_env

SWITCH = "LOCKKIT_APPCDS"
MAKING_S_MAX = 300
"""A job that takes longer is killed. No other job starts before this time has passed."""
QUIET = "-Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"


def archive_options(flags: str, env: Mapping[str, str] | None = None) -> str:
    """JVM options to add to `flags`; "" if no archive exists for them."""
    env = os.environ if env is None else env
    if env.get(SWITCH, "").lower() == "off":
        return ""
    archive = archive_path(flags, env)
    if archive.is_file():
        return f" -XX:SharedArchiveFile={archive} {QUIET}"
    with suppress(OSError):
        _make_beside(archive, flags, env)
    return ""


def archive_path(flags: str, env: Mapping[str, str]) -> Path:
    """An archive fits one Java runtime, one set of jars and one garbage collector."""
    home = Path(env.get("JAVA_HOME", ""))
    release = home / "release"
    about = [str(home), version("pyspark"), flags, release.read_text() if release.is_file() else ""]
    name = sha256("\0".join(about).encode()).hexdigest()[:16]
    return cache_folder(env) / "appcds" / f"{name}.jsa"


def _make_beside(archive: Path, flags: str, env: Mapping[str, str]) -> None:
    """Start the job that makes the archive, unless one was started recently."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    turn = archive.with_suffix(".making")
    with suppress(FileNotFoundError):
        if Clock().wall_ms() / 1000 - turn.stat().st_mtime > MAKING_S_MAX:
            turn.unlink()
    try:
        turn.open("x").close()
    except FileExistsError:
        return
    subprocess.Popen(
        [sys.executable, "-m", "lockkit.spark.archive", str(archive), flags],
        env={**env, SWITCH: "off"}, start_new_session=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def make(archive: Path, flags: str) -> None:
    """Run a session that works like a writer, and archive the classes that it loads."""
    draft = archive.with_suffix(f".{os.getpid()}")
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    options = f"{flags} -XX:ArchiveClassesAtExit={draft} {QUIET}"
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.extraJavaOptions", options).getOrCreate()
    try:
        rows = spark.range(1000).selectExpr("id", "pmod(xxhash64(string(id)), 2) fg")
        groups = rows.repartition(2, "fg").groupBy("fg")
        groups.applyInArrow(lambda table: table, "id long, fg long").count()
    finally:
        gateway: Any = spark.sparkContext._gateway
        process = gateway.proc
        spark.stop()
        gateway.shutdown()
        process.stdin.close()  # the JVM ends with it, and writes the archive
        process.wait(MAKING_S_MAX)
    draft.replace(archive)
    archive.with_suffix(".making").unlink(missing_ok=True)


def make_now() -> None:
    """Make the archive for a writer's JVM in this process, unless it exists."""
    os.environ.update(spark_env())
    archive = archive_path(LEAN_JVM, os.environ)
    if not archive.is_file():
        archive.parent.mkdir(parents=True, exist_ok=True)
        make(archive, LEAN_JVM)


if __name__ == "__main__":
    signal.alarm(MAKING_S_MAX)
    if len(sys.argv) > 1:
        os.nice(10)
        make(Path(sys.argv[1]), sys.argv[2])
    else:
        make_now()
