"""How a test run behaves: its timeouts, its workers, the order of its tests and its leftovers.

A test that times out costs one test. At its timeout a signal makes it fail where it stands. C code
may hold that signal back, and a `finally` may hang once more: `timeout_grace` seconds later the
process is ended, and xdist starts another worker for the remaining tests. With
`@pytest.mark.timeout(240, method="thread")` there is no signal, and the process is ended at once.
With `-n 0` there is no other worker, and the run ends with the process.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any
from zlib import crc32

import pytest
from _pytest.pathlib import import_path
from leftovers import RUN, end, started_by, watch
from xdist.scheduler import LoadGroupScheduling

# A test's JVM lives for seconds: it starts in half the CPU time without C2 and parallel collectors.
JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
GRACE_S = 30
EXIT_S = 20
LEAVE_S = 5
GROUPS = {
    "spark": 300.0, "spark processes": 120.0, "lab": 120.0, "voila": 30.0, "zookeeper": 60.0,
    "hive": 60.0, "tlc": 60.0, "kill points": 60.0, "dynamodb": 30.0,
    "worlds of group commit": 30.0, "worlds of repairs": 15.0, "worlds of the table": 12.0,
}  # fmt: skip
WAITING = ("lab", "hive", "wheel", "voila", "dynamodb", "zookeeper")
"""Groups that mostly wait for other processes. Four at once would leave the processor idle, so they
begin one after another, beside tests that compute; the last has a third of the run to end in.
"""
MARKS = {"slow": 10.0, "spark": 4.0}
QUICK = 0.3
"""Seconds that a group, a test with this mark, or any other test takes. Only the order counts."""
TOGETHER = 6
"""So many neighbours of a file are one worker's: it sets up once what they share."""
SOAK = "soak"
SOAK_LIST = Path(__file__).with_name("soak.txt")
GROUP = re.compile(r"@[^]@]*$")
"""What xdist appends to the id of a test that belongs to a group."""


def rest_in_soak(values: Iterable[Any], *quick: Any) -> list[Any]:
    """A parameter's values, of which `make test` takes the quick ones only. A tuple has the values
    of several parameters.
    """
    later = pytest.mark.soak
    return [
        each if each in quick else pytest.param(*_values(each), marks=later) for each in values
    ]


def _values(each: Any) -> tuple[Any, ...]:
    return each if isinstance(each, tuple) else (each,)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "timeout_grace",
        "seconds after a test's timeout in which it may fail, before its process is ended",
        default=str(GRACE_S),
    )


def pytest_configure(config: pytest.Config) -> None:
    # nohup and CI start children with SIGINT ignored, and theirs inherit it. A run can always be
    # interrupted, and so can what its tests start.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # The tests start thousands of processes, and without a cache each compiles the same modules.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if config.option.collectonly:
        return
    if hasattr(config, "workerinput"):
        gc.disable()  # until the tests are collected: they all stay
        config.pluginmanager.register(Watchdog(config))
        return
    if not config.option.usepdb:
        config.pluginmanager.register(Watchdog(config))
    config.pluginmanager.register(Run())


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    _mark_what_is_listed(config, items)  # before pytest selects by mark
    yield
    if SOAK not in config.option.markexpr:
        later = pytest.mark.skip(reason="it takes long: make soak, or pytest -m soak, runs it")
        for item in items:
            if item.get_closest_marker(SOAK):
                item.add_marker(later)
    if hasattr(config, "workerinput"):
        items[:] = by_weight(items)


def pytest_collection_finish() -> None:
    """A collection of garbage does not look at ten thousand tests and their modules again.

    It is also rare: a world of the simulator keeps what it makes, and a quarter of its time went
    into looking for what it does not.
    """
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[Any]:
    if isinstance(collector, pytest.Session) and hasattr(collector.config, "workerinput"):
        _import_in_turn(collector.config)
    return (yield)


def _import_in_turn(config: pytest.Config) -> None:
    """Import the tests' modules; each worker begins at another one.

    All workers collect the same tests at the same time. In a fresh checkout each would compile the
    same modules; so each compiles its share, and finds the others in the cache.
    """
    paths = [Path(each) for each in config.args]
    files = [file for path in paths if path.is_dir() for file in sorted(path.glob("test_*.py"))]
    number = int(config.workerinput["workerid"].removeprefix("gw"))  # type: ignore[attr-defined]
    for file in in_turn(files, number, config.workerinput["workercount"]):  # type: ignore[attr-defined]
        with suppress(Exception, pytest.skip.Exception):  # its collection reports it
            import_path(
                file, mode=config.getoption("importmode"), root=config.rootpath,
                consider_namespace_packages=config.getini("consider_namespace_packages"),
            )  # fmt: skip


def _mark_what_is_listed(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test of `soak.txt`; raises `UsageError` for a line that names no test."""
    lines = SOAK_LIST.read_text(encoding="utf-8").splitlines()
    listed = {f"tests/{each}" for each in lines if each and not each.startswith("#")}
    missing = set(listed)
    for item in items:
        variant = GROUP.sub("", item.nodeid)
        function = variant.partition("[")[0]
        if variant in listed or function in listed:
            item.add_marker(SOAK)
        missing -= {variant, function}
    files = {item.nodeid.partition("::")[0] for item in items}
    stale = sorted(each for each in missing if each.partition("::")[0] in files)
    narrowed = config.option.keyword or any("::" in each for each in config.args)
    if stale and not narrowed and not config.option.markexpr:
        raise pytest.UsageError(f"{SOAK_LIST.name} names tests that do not exist: {stale}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Iterator[Any]:
    """A signal may strike in code that belongs to no line (Python 3.11 has some in each loop).

    pytest 9.2 cannot show such a traceback: the run would end with an internal error.
    """
    error = call.excinfo.value if call.excinfo else None
    shown: set[int] = set()
    while error is not None and id(error) not in shown:
        shown.add(id(error))
        error.__traceback__ = with_lines(error.__traceback__)
        error = error.__cause__ or error.__context__
    if call.excinfo is not None:
        call.excinfo = pytest.ExceptionInfo.from_exception(call.excinfo.value)
    return (yield)


def with_lines(traceback: TracebackType | None) -> TracebackType | None:
    """The same traceback, at the first line of a function where it has none."""
    entries = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    if all(each.tb_lineno is not None for each in entries):
        return entries[0] if entries else None
    for each in reversed(entries):
        line: int | None = each.tb_lineno
        at, line = (each.tb_lasti, line) if line else (-1, each.tb_frame.f_code.co_firstlineno)
        traceback = TracebackType(traceback, each.tb_frame, at, line)
    return traceback


def in_turn(files: list[Path], number: int, count: int) -> list[Path]:
    """All files, from the first one of this worker's share on."""
    first = len(files) * number // count
    return files[first:] + files[:first]


class Watchdog:
    """Ends this process when a test is still running some time after its timeout.

    The thread of `faulthandler` needs neither the interpreter's lock nor a signal. There is only
    one, and pytest stops it at every failure: it is started again then.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._grace_s = float(config.getini("timeout_grace"))
        self._stderr = os.dup(2)  # during a test, pytest captures the original
        self._armed = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Iterator[Any]:
        try:
            return (yield)
        finally:
            self._armed = False
            faulthandler.cancel_dump_traceback_later()

    def pytest_timeout_set_timer(self, settings: Any) -> bool | None:
        at_once = settings.method == "thread"
        self._arm(settings.timeout + (0 if at_once else self._grace_s))
        return at_once or None  # None: pytest-timeout sends its signal

    @pytest.hookimpl(trylast=True)
    def pytest_exception_interact(self) -> None:
        if self._armed:
            self._arm(self._grace_s)

    def pytest_enter_pdb(self) -> None:
        self._armed = False

    def _arm(self, after_s: float) -> None:
        self._armed = True
        faulthandler.dump_traceback_later(after_s, exit=True, file=self._stderr)


class Run:
    """The process that the run was started as: with xdist, the one that starts the workers."""

    def __init__(self) -> None:
        self._left: list[str] = []
        self._name = os.environ[RUN] = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._watcher = watch(self._name, temporary_files())

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        if config.getvalue("dist") != "loadgroup":
            return None
        config.option.loadscopereorder = False  # the workers have sorted them
        return Schedule(config, log)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """What a worker leaves when it is killed would slow down all the others."""
        if error:
            end(lambda: started_by(self._name, node.gateway.id))

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, report: Any) -> None:
        report.longrepr += (
            ": the test ended its process, or it was ended some time after its timeout; "
            "then its stacks are on stderr"
        )

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """A JVM ends a moment after the process that it served, and was not left behind."""
        ends_s = time.monotonic() + LEAVE_S
        while started_by(self._name) and time.monotonic() < ends_s:
            time.sleep(0.1)
        self._left = end(lambda: started_by(self._name))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for each in self._left:
            terminalreporter.write_line(f"left behind by a test, and ended: {each}")

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Python waits for threads before it ends, also for those of a test that hangs."""
        others = set(threading.enumerate()) - {threading.main_thread()}
        if any(not each.daemon for each in others):
            faulthandler.dump_traceback_later(EXIT_S, exit=True, file=sys.__stderr__)


def temporary_files() -> str:
    """A new folder for the temporary files of this run's processes: one that is killed leaves some.

    pytest's own folders, of its last three runs, stay where they are.
    """
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="lockkit-tests-")
    tempfile.tempdir = None  # it is asked again
    # A JVM does not look at TMPDIR.
    own = os.environ.get("SPARK_SUBMIT_OPTS", JVM)
    os.environ["SPARK_SUBMIT_OPTS"] = f'{own} -Djava.io.tmpdir="{folder}"'
    return folder


class Schedule(LoadGroupScheduling):  # type: ignore[misc]
    """xdist's groups. A test whose worker crashed is not run again, and all others are.

    xdist 3.8 puts a crashed test back into the queue, where it ends the next worker too. It also
    gives work to a worker that has not collected its tests yet, and fails with a KeyError. And it
    counts all that a worker has done after each test: twenty million units for nine thousand tests.
    """

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        self._units: dict[str, str] = {}

    def schedule(self) -> None:
        if self.collection is None and self.registered_collections:
            self._units = units(next(iter(self.registered_collections.values())), self.numnodes)
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        return self._units.get(nodeid) or str(super()._split_scope(nodeid))

    def remove_node(self, node: Any) -> str | None:
        workload = self.assigned_work[node]
        crashed: str | None = None
        for scope, unit in list(workload.items()):
            crashed = crashed or next((test for test, done in unit.items() if not done), None)
            if crashed in unit:
                unit[crashed] = True
            if all(unit.values()):
                del workload[scope]
        super().remove_node(node)
        return crashed

    def _reschedule(self, node: Any) -> None:
        if node not in self.registered_collections:
            return
        workload = self.assigned_work[node]
        for scope in [scope for scope, unit in workload.items() if all(unit.values())]:
            del workload[scope]
        super()._reschedule(node)
        while self.workqueue and not node.shutting_down and self._waits(node):
            self._assign_work_unit(node)
        if not self.workqueue and not node.shutting_down:
            node.shutdown()

    def _waits(self, node: Any) -> bool:
        """A worker runs its last test only once it has another one, or is told to end."""
        pending: int = self._pending_of(self.assigned_work[node])
        return pending < 2


def units(nodeids: list[str], workers: int) -> dict[str, str]:
    """What is run by one worker: neighbours of one file that belong to no group. Of a few tests,
    each is run by any.
    """
    found: dict[str, str] = {}
    together = min(TOGETHER, 1 + len(nodeids) // (TOGETHER * workers))
    for _, neighbours in groupby(nodeids, lambda each: each.partition("::")[0]):
        single = [each for each in neighbours if not GROUP.search(each)]
        found.update((each, single[n - n % together]) for n, each in enumerate(single))
    return found


def by_weight(items: list[pytest.Item]) -> list[pytest.Item]:
    """The longest group first: one that is left for the end runs alone, on one core.

    The tests of one file often wait for the same, and those of the next file, too. So a few
    neighbours are followed by those of any other file, in the same order at each run.
    """
    weights: dict[str, float] = defaultdict(float)
    for item in items:
        marks = (MARKS.get(mark.name, QUICK) for mark in item.iter_markers())
        weights[_group(item)] += max(marks, default=QUICK)
    weights.update((name, GROUPS[name]) for name in weights.keys() & GROUPS.keys())
    count = Counter[str]()
    place = dict.fromkeys(map(_group, items), 0)
    for item in items:
        if (name := _group(item)) == item.nodeid:
            file = name.partition("::")[0]
            place[name] = crc32(f"{file} {count[file] // TOGETHER}".encode())
            count[file] += 1
    ordered = sorted(items, key=lambda item: (-weights[_group(item)], place[_group(item)]))
    computing = [each for each in ordered if _group(each) not in WAITING]
    apart = 2 * len(computing) // (3 * len(WAITING))
    for turn, name in reversed(list(enumerate(WAITING))):
        at = turn * apart
        computing[at:at] = [each for each in ordered if _group(each) == name]
    return computing


def _group(item: pytest.Item) -> str:
    mark = item.get_closest_marker("xdist_group")
    return str(mark.args[0]) if mark else item.nodeid
