"""Fixtures that many tests share: servers, buckets, and a clean process."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from lockkit.lab.server import Emulator

# The same examples at every run, no verdict about time; `HYPOTHESIS_PROFILE=seek` looks for new.
settings.register_profile("steady", derandomize=True, deadline=None, max_examples=100)
settings.register_profile("seek", deadline=None, max_examples=3_000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

ROOT = Path(__file__).parents[1]
_NAMES = itertools.count()


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.import_plugin("suite_plugin")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """xdist 3.8 writes a test's group to where pytest 9.2 does not look for its id any more."""
    for item in items:
        if (named := getattr(item, "_nodeid", item.nodeid)) != item.nodeid:
            item._id = type(item._id).parse(named)


@pytest.fixture(autouse=True, scope="session")
def signals_are_not_ignored() -> None:
    """Under nohup, and in a script's background, they are; what a test starts inherits that."""
    for each in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(each) == signal.SIG_IGN:
            signal.signal(each, signal.SIG_DFL)


@pytest.fixture(autouse=True, scope="session")
def this_process_does_not_wait_for_the_disk() -> Iterator[None]:
    """A sync protects from a loss of power only, which no test has. The disk serializes those of
    all workers; so each took milliseconds, and the tables' tests waited for little else. Processes
    that a test starts sync.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: os.fstat(file) and None)
        yield


@pytest.fixture(autouse=True)
def ctrl_c_works_afterwards() -> Iterator[None]:
    """An interrupted `main()` ignores further Ctrl-C, because its process ends. Ours continues."""
    before = signal.getsignal(signal.SIGINT)
    yield
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN != before:
        signal.signal(signal.SIGINT, before)


@pytest.fixture
def archived_at_any_age(monkeypatch: pytest.MonkeyPatch) -> None:
    """With group commit: no age keeps commits back, and no reserved instant of a paused writer."""
    monkeypatch.setattr("lockkit.table.services.archive_group.REPUBLISHED_MS", 0)
    monkeypatch.setattr("lockkit.table.occ.group.publish.is_busy", lambda _: False)


@pytest.fixture
def archived_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Archiving waits for no process that may still publish, so each looks what became of it."""
    monkeypatch.setattr("lockkit.table.occ.late.SETTLED_MS", -10_000)
    monkeypatch.setattr("lockkit.table.occ.commit.LATE_MS", -1)


@pytest.fixture
def emulator(request: pytest.FixtureRequest) -> Iterator[Any]:
    """An object server of this test's own, in memory; its options are the parameter:
    `parametrize("emulator", [{"profile": "gcs"}], indirect=True)`.
    """
    with Emulator(**getattr(request, "param", {})) as server:
        yield server


@pytest.fixture(scope="session")
def shared_emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One object server for all tests that bring a bucket of their own (see `bucket`)."""
    path = tmp_path_factory.mktemp("emulator") / "objects.sqlite"
    with Emulator(db=str(path)) as server:
        yield server


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One ZooKeeper server for all tests of the xdist_group "zookeeper"; skipped without Java.
    A test that stops, kills or freezes it starts or thaws it again.
    """
    from service_world import running

    from lockkit.lab.processes.services.zookeeper import ZooKeeper

    yield from running(ZooKeeper, tmp_path_factory.mktemp("zookeeper"))


@pytest.fixture(scope="session")
def metastore(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One Hive Metastore for all tests of the xdist_group "hive"; skipped without Java. A lock's
    holder that is silent for 4 s loses it there.
    """
    from service_world import running

    from lockkit.lab.processes.services.hive import HiveMetastore

    yield from running(HiveMetastore, tmp_path_factory.mktemp("hive"), timeout_s=6)


@pytest.fixture(scope="session")
def dynamodb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One DynamoDB API for all tests of the xdist_group "dynamodb"; a test that freezes it thaws it
    again.
    """
    from service_world import running

    from lockkit.lab.processes.services.dynamodb import DynamoDB

    yield from running(DynamoDB, tmp_path_factory.mktemp("dynamodb"))


@pytest.fixture(scope="module")
def spark() -> Any:
    """The Spark session of the xdist_group "spark", with the format `lockkit`."""
    from spark_world import shared_spark

    return shared_spark()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Spark ends with the last of the tests that share it, and so does its environment."""
    if in_spark_group(item) and not (nextitem and in_spark_group(nextitem)):
        from spark_world import end_shared_spark

        end_shared_spark()


SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""How `tarfile` extracts. Python before 3.11.4 does not know it."""


def in_spark_group(item: pytest.Item) -> bool:
    mark = item.get_closest_marker("xdist_group")
    return mark is not None and mark.args == ("spark",)


@pytest.fixture(scope="session")
def hudi_made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables that Hudi made (see data/hudi_tables/make.py): to read, or to copy."""
    folder = tmp_path_factory.mktemp("hudi")
    with tarfile.open(ROOT / "tests" / "data" / "hudi_tables" / "tables.tar.xz") as tar:
        tar.extractall(folder, **SAFELY)
    return folder


@pytest.fixture
def bucket() -> str:
    """A bucket's name that no other test uses."""
    return f"bucket-{next(_NAMES)}"


@pytest.fixture
def no_hudi_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """In mode hudi, each commit waits 200 ms for the clocks of Hudi's writers. Here are none."""
    monkeypatch.setattr("lockkit.table.occ.committing.HUDI_SKEW_MS", 0)


@dataclass
class ServerProcess:
    """A `lockkit serve` of this test's own."""

    process: subprocess.Popen[str]
    s3: str
    gcs: str
    azure: str

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


@pytest.fixture
def serve() -> Iterator[Callable[..., ServerProcess]]:
    """Starts `lockkit serve` with the given arguments; answers once it does."""
    running: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> ServerProcess:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "lockkit", "serve", *arguments],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        running.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"lockkit serve ended with {process.wait(10)}"
        return ServerProcess(process, **json.loads(line))

    yield start
    for process in running:
        process.kill()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()
