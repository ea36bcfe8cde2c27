"""A test with processes of many kinds, in mid-run. `test_suite.py` interrupts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

LONG_S = 600
SLEEP = [sys.executable, "-c", f"import time; time.sleep({LONG_S})"]
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "


@pytest.mark.parametrize("number", range(2))
def test_in_mid_run(number: int) -> None:
    in_a_group = subprocess.Popen(SLEEP)
    in_a_session = subprocess.Popen(SLEEP, start_new_session=True)
    stopped = subprocess.Popen(SLEEP, start_new_session=True)
    os.kill(stopped.pid, signal.SIGSTOP)
    deaf = subprocess.Popen([sys.executable, "-c", f"{DEAF}time.sleep({LONG_S})"])
    # A daemon: its parent has ended, and it has left the session.
    script = f"import subprocess; subprocess.Popen({SLEEP!r}, start_new_session=True)"
    subprocess.run([sys.executable, "-c", script], check=True)
    Path(os.environ["LOCKKIT_DELIBERATE"], f"ready-{number}").touch()
    for each in (in_a_group, in_a_session, stopped, deaf):
        each.wait()


def test_that_ends_and_leaves_a_process() -> None:
    subprocess.Popen(SLEEP, start_new_session=True)
    time.sleep(0.1)
