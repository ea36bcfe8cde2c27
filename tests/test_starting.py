"""Ctrl-C at any moment of a command's start ends it with 130 and one line."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from lockkit.cli import main

ROOT = Path(__file__).parents[1]
SCRIPT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["lockkit"]
STARTS = {
    "the script": "import importlib; module, _, name = {script!r}.partition(':'); "
    "sys.exit(getattr(importlib.import_module(module), name)())",
    "python -m": "import runpy; runpy.run_module('lockkit', run_name='__main__', alter_sys=True)",
}
INTERRUPTED = """
import os, signal, sys
class Interrupts:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
sys.argv = ["lockkit", "lock", "show", {url!r}]
"""


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(
    "module",
    ["lockkit.cli.main", "argparse", "lockkit.cli.lock", "lockkit.cli.terminal",
     "lockkit.cli.generations"],
)  # fmt: skip
def test_an_interrupt_while_a_command_is_imported_ends_it_with_130_and_one_line(
    tmp_path: Path, module: str, start: str
) -> None:
    code = INTERRUPTED.format(module=module, url=tmp_path.as_uri())
    done = subprocess.run(
        [sys.executable, "-c", code + STARTS[start].format(script=SCRIPT)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr in ("lockkit: interrupted\n", "lockkit lock show: interrupted\n")


def test_an_interrupt_that_the_starter_ignores_stays_ignored(tmp_path: Path) -> None:
    code = INTERRUPTED.format(module="lockkit.cli.lock", url=tmp_path.as_uri())
    ignored = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    done = subprocess.run(
        [sys.executable, "-c", ignored + code + STARTS["python -m"]],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "") and "never locked" in done.stdout


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def end() -> None:
    sys.exit(143)


@pytest.mark.parametrize(("signalled", "code"), [(interrupt, 130), (end, 143)])
def test_a_signal_while_a_class_is_made_gives_the_same_exit_code(
    signalled: Callable[[], None], code: int
) -> None:
    class Field:
        def __set_name__(self, owner: type, name: str) -> None:
            signalled()

    def run(_args: argparse.Namespace) -> int:
        type("Class", (), {"field": Field()})
        return 0

    before = signal.getsignal(signal.SIGINT)
    try:
        ended = main._run(argparse.Namespace(run=run, name="lock show"), [])
    except SystemExit as error:
        assert isinstance(error.code, int)
        ended = error.code
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended == code


def test_a_process_that_may_start_no_thread_says_so_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **_named: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    ran = tmp_path / "ran"
    code = main.main(["lock", "acquire", (tmp_path / "t").as_uri(), "--", "touch", str(ran)])
    (said,) = capsys.readouterr().err.splitlines()
    assert code == 3 and not ran.exists()
    assert said.startswith("lockkit lock acquire: ") and "may start no more threads" in said
