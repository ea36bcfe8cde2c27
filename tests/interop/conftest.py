"""`make interop`: other people's programs on the embedded object server.

Apache Hudi's own Spark bundle, as a process that shares tables with lockkit; and object stores'
clients, as they are.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from environment import Environment, Unavailable, prepare
from hudi_world import Hudi

from lockkit.lab.faults import Proxy
from lockkit.lab.server import Emulator

ELSEWHERE = "downloads other people's programs, Apache Hudi with its Spark among them: make interop"


def _is_asked_for(config: pytest.Config) -> bool:
    return "interop" in config.option.markexpr and "not interop" not in config.option.markexpr


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not _is_asked_for(config):
        for item in items:
            if item.get_closest_marker("interop"):
                item.add_marker(pytest.mark.skip(reason=ELSEWHERE))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A job in which nothing ran has shown nothing, and does not pass."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if _is_asked_for(session.config) and exitstatus == pytest.ExitCode.OK and reporter is not None:
        if not reporter.stats.get("passed"):
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.fixture(scope="session")
def environment() -> Environment:
    try:
        return prepare()
    except Unavailable as reason:
        pytest.skip(f"Apache Hudi cannot be run here: {reason}")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """The object server of the whole job; each table has a bucket of its own."""
    with Emulator(db=str(tmp_path_factory.mktemp("server") / "objects.sqlite")) as running:
        yield running


@pytest.fixture(scope="session")
def hudi(
    environment: Environment, server: Emulator, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hudi]:
    running = Hudi(environment, server.s3, tmp_path_factory.mktemp("hudi") / "log")
    yield running
    running.close()


@pytest.fixture(scope="module")
def second(
    environment: Environment, server: Emulator, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hudi]:
    """One more, in a process of its own."""
    running = Hudi(environment, server.s3, tmp_path_factory.mktemp("second") / "log")
    yield running
    running.close()


@pytest.fixture(scope="module")
def proxy(server: Emulator) -> Iterator[Proxy]:
    with Proxy(server.s3) as running:
        yield running


@pytest.fixture(scope="module")
def slow(
    environment: Environment, proxy: Proxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hudi]:
    """A Hudi whose requests take long, once a fault says so."""
    running = Hudi(environment, proxy.url, tmp_path_factory.mktemp("slow") / "log")
    yield running
    running.close()
