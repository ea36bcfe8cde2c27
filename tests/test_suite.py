"""The test suite itself: what a hanging test costs, and what an interrupted run leaves behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from suite_plugin import TOGETHER, WAITING, by_weight, in_turn, units

ROOT = Path(__file__).parents[1]
MARK = "LOCKKIT_DELIBERATE"
TWO = ("-n", "2", "--dist", "loadgroup", "--max-worker-restart", "30")
"""As in `make test`."""
ALONE = ("-n", "0")
ENDS_WITHIN_S = 40
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def started(file: str, mark: Path, *options: str) -> subprocess.Popen[str]:
    """A run of deliberate tests with the project's own configuration."""
    temporary_of(mark).mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"tests/deliberate/{file}",
         *options],
        cwd=ROOT, env=os.environ | {MARK: str(mark), "TMPDIR": str(temporary_of(mark))}, text=True,
        start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def temporary_of(mark: Path) -> Path:
    """Where this run has its temporary files."""
    return mark / "temporary"


def alive(mark: Path) -> list[str]:
    """What this run has started and is still running."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(mark):
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"{process.pid} {' '.join(process.cmdline())}")
        except (psutil.Error, OSError):
            continue
    return found


def within(seconds: float, happened: Callable[[], bool]) -> bool:
    ends = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > ends:
            return False
        time.sleep(0.1)
    return True


def test_a_test_that_hangs_costs_that_test_and_no_other(tmp_path: Path) -> None:
    run = started("hanging.py", tmp_path, *TWO, "--timeout=1", "-o", "timeout_grace=1", "-rA")
    said, _ = run.communicate(timeout=200)
    failed = sorted(re.findall(r"^FAILED \S+::(\w+)", said, re.MULTILINE))
    assert failed == [
        "test_ends_its_process",
        "test_fails_where_the_code_has_no_line",
        "test_hangs_again_while_it_fails",
        "test_hangs_in_a_sleep",
        "test_hangs_in_a_thread_that_is_no_daemon",
        "test_hangs_in_a_wait_for_a_process",
        "test_hangs_in_c",
        "test_hangs_in_c_and_keeps_the_interpreter",
        "test_hangs_in_c_in_a_group",
        "test_hangs_where_no_signal_may_interrupt",
    ], said
    assert re.search(r"=+ 10 failed, 10 passed in ", said), said
    assert run.returncode == 1
    # Where it stood: in the failure, or on stderr of the worker that was ended.
    assert 'hanging.py", line' in said and "in test_hangs_in_c_in_a_group" in said
    assert within(ENDS_WITHIN_S, lambda: not alive(tmp_path)), alive(tmp_path)


def test_without_workers_a_hanging_test_ends_the_run_with_its_stack(
    tmp_path: Path,
) -> None:
    options = ("-n", "0", "--timeout=1", "-o", "timeout_grace=1", "-k", "hangs_in_c or quick")
    run = started("hanging.py", tmp_path, *options)
    said, _ = run.communicate(timeout=60)
    assert run.returncode == 1
    assert "in test_hangs_in_c" in said
    assert within(ENDS_WITHIN_S, lambda: not alive(tmp_path)), alive(tmp_path)


def test_a_thread_that_never_ends_does_not_keep_the_run_from_ending(tmp_path: Path) -> None:
    options = ("-n", "0", "--timeout=1", "-k", "is_no_daemon")
    run = started("hanging.py", tmp_path, *options)
    said, _ = run.communicate(timeout=60)
    assert "1 failed" in said and run.returncode == 1


@pytest.mark.parametrize(
    ("number", "workers"),
    [(signal.SIGINT, TWO), (signal.SIGTERM, TWO), (signal.SIGKILL, TWO), (signal.SIGKILL, ALONE)],
)
def test_an_interrupted_run_leaves_no_process_and_no_file_behind(
    tmp_path: Path, number: signal.Signals, workers: tuple[str, ...]
) -> None:
    run = started("leaving.py", tmp_path, *workers)
    ready = 1 if workers == ALONE else 2
    assert within(60, lambda: len(list(tmp_path.glob("ready-*"))) == ready)
    assert len(alive(tmp_path)) > 5 * ready
    assert list(temporary_of(tmp_path).iterdir())
    run.send_signal(number)
    run.communicate(timeout=60)
    assert within(ENDS_WITHIN_S, lambda: not alive(tmp_path)), alive(tmp_path)
    assert within(ENDS_WITHIN_S, lambda: not any(temporary_of(tmp_path).iterdir()))


def test_a_run_names_and_ends_processes_that_a_test_left_behind(tmp_path: Path) -> None:
    run = started("leaving.py", tmp_path, *TWO, "-k", "leaves_a_process")
    said, _ = run.communicate(timeout=60)
    assert run.returncode == 0
    assert said.count("left behind by a test, and ended: ") == 1, said
    assert within(ENDS_WITHIN_S, lambda: not alive(tmp_path)), alive(tmp_path)


def test_a_run_can_be_interrupted_where_its_parent_ignores_sigint(tmp_path: Path) -> None:
    """A shell's background jobs, nohup and some build machines start their children so."""
    line = [sys.executable, "-m", "pytest", "-n", "0", "tests/deliberate/leaving.py", "-k", "0"]
    run = subprocess.Popen(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *line], cwd=ROOT,
        env=os.environ | {MARK: str(tmp_path)}, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert within(60, lambda: (tmp_path / "ready-0").exists())
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=60)
    assert run.returncode == pytest.ExitCode.INTERRUPTED
    assert within(ENDS_WITHIN_S, lambda: not alive(tmp_path)), alive(tmp_path)


@pytest.mark.parametrize(
    ("missing", "remedy"),
    [("libatomic", "apt-get install libatomic1"), ("chromium", "apt-get install chromium")],
)
def test_browser_tests_are_skipped_with_a_reason_that_names_the_remedy(
    tmp_path: Path, missing: str, remedy: str
) -> None:
    pytest.importorskip("playwright", reason="make test installs playwright")
    for name in ("chromium", "node"):
        (tmp_path / name).write_text(
            f"#!/bin/sh\necho 'node: error while loading shared libraries: {missing}.so.1' >&2\n"
            "exit 127\n"
        )
        (tmp_path / name).chmod(0o755)
    env = {"PLAYWRIGHT_NODEJS_PATH": str(tmp_path / "node"), "PATH": str(tmp_path)}
    if missing == "chromium":
        (tmp_path / "chromium").unlink()
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "tests/browser"],
        cwd=ROOT, env=os.environ | env, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert remedy in run.stdout
    assert re.search(r"=+ \d+ skipped in ", run.stdout), run.stdout


class Fake:
    """A test as far as its order in a run goes."""

    def __init__(self, name: str, *marks: pytest.Mark) -> None:
        self.nodeid, self.marks = name, marks

    def iter_markers(self) -> tuple[pytest.Mark, ...]:
        return self.marks

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next((each for each in self.marks if each.name == name), None)


def test_the_longest_groups_come_first() -> None:
    group = pytest.mark.xdist_group("g").mark
    items = [
        Fake("quick"), Fake("slow", pytest.mark.slow.mark), Fake("a", group),
        *(Fake(f"s{number}", group, pytest.mark.spark.mark) for number in range(9)),
    ]  # fmt: skip
    names = [each.nodeid for each in by_weight(items)]  # type: ignore[arg-type]
    assert names == ["a", *(f"s{number}" for number in range(9)), "slow", "quick"]


def test_groups_that_wait_begin_one_after_another_beside_tests_that_compute() -> None:
    waiting = [Fake(name, pytest.mark.xdist_group(name).mark) for name in WAITING for _ in "ab"]
    items = [*waiting, *(Fake(f"q{number}") for number in range(90))]
    names = [each.nodeid for each in by_weight(items)]  # type: ignore[arg-type]
    assert sorted(names) == sorted(each.nodeid for each in items)
    begin = [names.index(name) for name in WAITING]
    assert {after - before for before, after in pairwise(begin)} == {12}
    assert begin[-1] < 2 / 3 * len(names)


def test_a_worker_takes_neighbours_of_a_file_and_then_those_of_any_other() -> None:
    group = Fake("a.py::kept@g", pytest.mark.xdist_group("g").mark)
    items = [Fake(f"{file}.py::test[{n}@]") for file in "abc" for n in range(10 * TOGETHER)]
    names = [each.nodeid for each in by_weight([*items, group])]  # type: ignore[arg-type]
    assert sorted(names) == sorted(each.nodeid for each in [*items, group])
    found = units(names, 2)
    assert group.nodeid not in found and len(found) == len(items)
    sizes = Counter(found.values())
    assert {*sizes.values()} == {TOGETHER}
    files = [each.partition("::")[0] for each in sizes]
    assert len({*files[:9]}) == 3
    assert {*Counter(units(names[:10], 2).values()).values()} == {1}


@pytest.mark.parametrize("count", [1, 3, 4])
def test_each_worker_imports_all_files_and_begins_with_a_share_of_its_own(count: int) -> None:
    files = [Path(f"test_{letter}.py") for letter in "abcdefghij"]
    orders = [in_turn(files, number, count) for number in range(count)]
    assert all(sorted(order) == files for order in orders)
    share = len(files) // count
    assert sum(len(set(order[:share])) for order in orders) == share * count
    assert len({file for order in orders for file in order[:share]}) == share * count


def test_the_run_of_long_tests_takes_what_the_list_names() -> None:
    """Not only those that have the mark in their source."""
    file = "tests/test_clean.py"
    options = ["--collect-only", "-q", "-m", "soak", "-n", "0", file]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options],
        cwd=ROOT, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    listed = (ROOT / "tests" / "soak.txt").read_text(encoding="utf-8").splitlines()
    ours = [line for line in listed if line.startswith("test_clean.py") and "[" in line]
    wanted = {f"tests/{line}" for line in ours}
    assert wanted
    assert wanted <= set(run.stdout.splitlines()), run.stdout + run.stderr
