"""AWS's own lock client for Java, as Hudi uses it, and ours on one item of one DynamoDB table."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockkit.providers.dynamodb import DynamoDBLock
from lockkit.services.dynamodb import DynamoDB
from lockkit.services.service import ServiceUnavailable, jars
from lockkit.spark.java import NoJava, find_java

pytestmark = pytest.mark.interop
ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).parent / "lockclient" / "LockClient.java"
CLIENT = ("com.amazonaws", "dynamodb-lock-client", "1.4.0")
PLACE = ROOT / ".cache" / f"{CLIENT[1]}-{CLIENT[2]}"
FETCH_S_MAX = 900.0
LEASE_MS = 6_000


@pytest.fixture(scope="module")
def java() -> list[str]:
    """How LockClient.java is run; its 40 jars (11 MB of Maven Central) are had once, by Ivy."""
    try:
        java = str(find_java().home / "bin" / "java")
        ivy = next(jars().glob("ivy-*.jar"))
    except (NoJava, ServiceUnavailable, StopIteration) as missing:
        pytest.skip(f"no Java, or no pyspark whose Ivy fetches jars: {missing}")
    if not (PLACE / "ready").exists():
        done = subprocess.run(
            [java, "-cp", str(ivy), "org.apache.ivy.Main", "-cache", str(PLACE / "cache"),
             "-dependency", *CLIENT, "-confs", "default", "-types", "jar",
             "-retrieve", str(PLACE / "[artifact]-[revision].[ext]")],
            capture_output=True, text=True, timeout=FETCH_S_MAX, check=False,
        )  # fmt: skip
        if done.returncode:
            pytest.skip(f"{CLIENT[1]} could not be had of Maven Central: {done.stdout[-300:]}")
        (PLACE / "ready").touch()
    return [java, "-Xmx128m", "-cp", f"{PLACE}/*", str(SOURCE)]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DynamoDB]:
    with DynamoDB(tmp_path_factory.mktemp("dynamodb")) as running:
        yield running


class Java:
    """The client in a process of its own, told a command at a time."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lockkit.spark.process", str(os.getpid()), *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log.open("w"), text=True,
        )  # fmt: skip
        assert self.line() == "ready", log.read_text()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def __call__(self, command: str) -> bool:
        assert self.process.stdin is not None
        print(command, file=self.process.stdin, flush=True)
        said = self.line()
        assert said in ("true", "false"), said
        return said == "true"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


@pytest.mark.timeout(600)
def test_the_java_client_and_ours_exclude_and_succeed_each_other(
    java: list[str], service: DynamoDB, tmp_path: Path
) -> None:
    def ours(lease_s: float = LEASE_MS / 1000, **options: Any) -> DynamoDBLock:
        return DynamoDBLock(
            "locks", "orders", endpoint_url=service.endpoint, lease_s=lease_s, **options
        )

    mine = ours()
    with mine:  # the table is made
        assert mine.fence and mine.fence.epoch == 1
    line = [*java, service.endpoint, "locks", "orders", str(LEASE_MS)]
    theirs = Java(line, tmp_path / "log")
    try:
        assert theirs("acquire 1000")
        assert not mine.acquire(timeout=1.5 * LEASE_MS / 1000), "it beats, for more than its lease"
        assert theirs("held") and theirs("release")
        assert mine.acquire(timeout=5)
        assert not theirs("acquire 1000"), "it waits for a lease of ours and a second, and we beat"
        assert mine.fence and mine.fence.epoch == 2
        mine.check()
        mine.release()
        assert theirs("acquire 1000")
        theirs.kill()
        assert mine.acquire(timeout=60), "a lease after the crash"
        mine.close()  # ours crashes: it beats no more, and gives nothing back
        theirs = Java(line, tmp_path / "log")
        assert theirs("acquire 30000")
        assert theirs("release")
    finally:
        theirs.kill()
