"""What it costs to begin: importing lockkit, the embedded server, the first writers."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

from lockkit.lab.processes.fleet import Fleet


def _cpu_ms(code: str) -> float:
    """CPU of a fresh interpreter that runs `code`: the best of 5."""
    program = f"{code}\nimport resource as r; print(sum(r.getrusage(r.RUSAGE_SELF)[:2]) * 1000)"
    runs = (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        for _ in range(5)
    )
    return min(float(each.stdout) for each in runs)


def _first_event_s() -> float:
    """From the click on *launch* to the first live event of a plain writer's own."""
    fleet = Fleet(kind="plain")
    began = time.perf_counter()
    with fleet:
        assert fleet.wait(lambda each: each.kind == "ask", 30), fleet.error
        return time.perf_counter() - began


def main() -> dict[str, Any]:
    bare, loaded = _cpu_ms("pass"), _cpu_ms("import lockkit")
    named = _cpu_ms("from lockkit import Lock, LockBusy, LockLost, open_store")
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "lockkit", "serve", "--port", "0"], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        addresses = json.loads(server.stdout.readline())
        seconds = time.perf_counter() - began
        server.terminate()
    assert set(addresses) >= {"s3", "gcs", "azure"}
    return {
        "import_lockkit_cpu_ms": round(loaded - bare, 1),
        "import_names_cpu_ms": round(named - bare, 1),
        "serve_answers_after_s": round(seconds, 2),
        "first_event_of_writers_after_s": round(_first_event_s(), 2),
    }
