"""The pytest plugin: `def test_commit(lost_responses, lake):` runs once for each lost response.

Loaded at every start of pytest, so it imports nothing but its options.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from lockkit.lab.testing.options import (
    BLOCK_S_MAX,
    CASES_MAX,
    DEFAULT,
    FAULTS,
    FIXTURE,
    PROPERTY,
    RUN,
    block_s_max,
    cases_max,
    faults_of,
    kinds_of,
    said,
)  # fmt: skip

if TYPE_CHECKING:
    from lockkit.lab.faults import Faulty, Proxy
    from lockkit.lab.server import Emulator
    from lockkit.lab.testing.bucket import EmbeddedBucket
    from lockkit.lab.testing.faulty import LostResponses

NONE_HAS_IT = "--lockkit-case={}: none of the selected tests uses lost_responses"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lockkit", "lost responses (lockkit)")
    group.addoption(
        "--lockkit-faults", metavar="KINDS",
        help=f"the faults of lost_responses, of {', '.join(FAULTS)} (default: {DEFAULT})",
    )  # fmt: skip
    group.addoption(
        "--lockkit-case", metavar="CASE",
        help="only this case of lost_responses, such as 'lost:put orders/log.json'; * stands for "
        "anything ('*:put *': all writes)",
    )  # fmt: skip
    group.addoption(
        "--lockkit-cases-max", metavar="N",
        help=f"at most N cases of a test and fault, writes first (default: {CASES_MAX})",
    )  # fmt: skip
    group.addoption(
        "--lockkit-block-s-max", metavar="S",
        help=f"a block of lost_responses fails after S seconds (default: {BLOCK_S_MAX})",
    )  # fmt: skip
    parser.addini("lockkit_faults", f"as --lockkit-faults (default: {DEFAULT})")
    parser.addini("lockkit_cases_max", f"as --lockkit-cases-max (default: {CASES_MAX})")
    parser.addini("lockkit_block_s_max", f"as --lockkit-block-s-max (default: {BLOCK_S_MAX})")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "lost_responses(*faults): which faults lost_responses makes in this test"
    )
    faults_of(said(config, "lockkit_faults") or DEFAULT, "--lockkit-faults")
    cases_max(config)
    block_s_max(config)
    case = config.getoption("lockkit_case")
    if case is not None and not kinds_of(case):
        raise pytest.UsageError(
            f"--lockkit-case={case}: a case begins with its fault and a colon, such as "
            f"'lost:put orders/log.json'; the faults are {', '.join(FAULTS)}"
        )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each kind of fault, so that xdist can share them out."""
    config, marker = metafunc.config, metafunc.definition.get_closest_marker(FIXTURE)
    if FIXTURE not in metafunc.fixturenames:
        if marker in metafunc.definition.own_markers:
            raise pytest.UsageError(
                f"the mark lost_responses of {metafunc.function} has no effect, since the test "
                "does not use the fixture lost_responses"
            )
        return
    kinds = faults_of(said(config, "lockkit_faults") or DEFAULT, "--lockkit-faults")
    if marker is not None:
        own = faults_of(",".join(marker.args), f"the mark lost_responses of {metafunc.function}")
        narrowed = config.getoption("lockkit_faults") is not None
        kinds = [each for each in own if each in kinds] if narrowed else own
    case = config.getoption("lockkit_case")
    if case is not None:
        kinds = kinds_of(case)
    metafunc.parametrize(FIXTURE, kinds, indirect=True)


def pytest_collection_finish(session: pytest.Session) -> None:
    case = session.config.getoption("lockkit_case")
    if case is None or _is_worker(session.config):
        return
    if not any(_has_cases(each) for each in session.items):
        raise pytest.UsageError(NONE_HAS_IT.format(case))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With workers of xdist, only the reports show whether a case was run."""
    config = session.config
    case = config.getoption("lockkit_case")
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if case is None or reporter is None or _is_worker(config) or session.exitstatus != 0:
        return
    if not _results(reporter):
        reporter.line("\nERROR: " + NONE_HAS_IT.format(case))
        session.exitstatus = pytest.ExitCode.USAGE_ERROR


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _has_cases(item: pytest.Item) -> bool:
    return FIXTURE in getattr(item, "fixturenames", ())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> object:
    if not _has_cases(item) or item.config.getoption("setuponly", False):
        return None
    from lockkit.lab.testing.runner import run

    run(item, nextitem)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    run = item.stash.get(RUN, None)
    if run is not None and call.excinfo is not None:
        run.raised.append(call)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    found = _results(terminalreporter)
    if not found:
        return
    ran, failed = (sum(each[which] for _, each in found) for which in ("ran", "failed"))
    terminalreporter.section("lockkit")
    terminalreporter.line(f"{ran} cases of {len(found)} tests, {failed} failed")
    for nodeid, each in found:
        for line in each["notes"]:
            terminalreporter.line(f"{nodeid}: {line}")


def _results(terminalreporter: Any) -> list[tuple[str, Any]]:
    """What each test with cases reported."""
    return [
        (report.nodeid, json.loads(value))
        for reports in terminalreporter.stats.values() for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == PROPERTY and report.when == "call"
    ]  # fmt: skip


# --- fixtures -------------------------------------------------------------------------------------


@pytest.fixture
def lockkit_server() -> Iterator[Emulator]:
    """An object server of this test's own, in memory; `s3`, `gcs` and `azure` are its addresses."""
    from lockkit.lab.server import Emulator

    with Emulator() as server:
        yield server


@pytest.fixture
def lockkit_proxy() -> Iterator[Callable[[str], Proxy]]:
    """`lockkit_proxy(url)`: a proxy in front of an http:// store; `inject(Fault(...))` arms it."""
    from contextlib import ExitStack

    from lockkit.lab.faults import Proxy

    with ExitStack() as proxies:
        yield lambda upstream: proxies.enter_context(Proxy(upstream))


@pytest.fixture
def lockkit_faulty() -> Iterator[Faulty]:
    """Faults in this process: `install(client)`, then `inject(Fault(...))`."""
    from lockkit.lab.faults import Faulty

    faulty = Faulty()
    yield faulty
    faulty.close()


@pytest.fixture
def lost_responses(request: pytest.FixtureRequest) -> Iterator[LostResponses]:
    """The test runs once without faults, then once for each request and fault. Put what your code
    does into `with lost_responses:`, and the checks behind the block.
    """
    from lockkit.lab.testing.faulty import LostResponses

    run = request.node.stash.get(RUN, None)
    limit_s = block_s_max(request.config)
    each = LostResponses(None if run is None else run.script, limit_s=limit_s)
    yield each
    each.close()


@pytest.fixture(name="lake")
def _fresh_bucket(
    request: pytest.FixtureRequest, lockkit_server: Emulator
) -> Iterator[EmbeddedBucket]:
    """A fresh bucket on a server of this test's own; with lost_responses, behind its faults."""
    from lockkit.lab.testing.bucket import EmbeddedBucket

    run = request.node.stash.get(RUN, None)
    with EmbeddedBucket(lockkit_server, None if run is None else run.script) as bucket:
        yield bucket
