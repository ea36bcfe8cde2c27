"""The peak memory of an executor's Python worker that upserts 1,000 rows into one file group.

Each figure comes from a session of its own, whose workers have done nothing else: VmHWM of the
largest of them, as Linux tells it. The table is made by another session before.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from lockkit.spark import write
from tests.bench.spark import frame, session

SIZES = (500_000, 4_000_000)
QUICK_SIZES = (50_000, 400_000)
UPSERTS = 1000
MORE_MB_MAX = 64
"""What 8 times the file group may cost: buffers that grow with a row group, not with the file."""


def goals(result: dict[str, Any]) -> list[tuple[str, float, float]]:
    small, large = result["rows"].values()
    grown = round(large["worker_peak_mb"] - small["worker_peak_mb"], 1)
    return [("memory of a worker on 8 times the file group, MB more", grown, MORE_MB_MAX)]


def _workers_peak_mb() -> float:
    peaks = []
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess, FileNotFoundError):  # a zombie, or gone by now
            if "pyspark.daemon" in each.cmdline():
                status = Path(f"/proc/{each.pid}/status").read_text()
                peaks.append(int(status.partition("VmHWM:")[2].split()[0]) / 1024)
    return max(peaks)


def _upsert(url: str, size: int, rows: int) -> float:
    """Upsert `rows` keys, spread over the first `size`; what the workers took, in MB."""
    with session() as spark:
        write(
            frame(spark, rows, step=size // rows), url,
            operation="upsert", record_key="id", precombine="at", buckets=1,
        )  # fmt: skip
        return _workers_peak_mb()


def _in_a_process_of_its_own(url: str, size: int, rows: int) -> float:
    command = [sys.executable, "-m", "tests.bench.memory", url, str(size), str(rows)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def main(quick: bool = False) -> dict[str, Any]:
    found = {}
    for size in QUICK_SIZES if quick else SIZES:
        with tempfile.TemporaryDirectory() as place:
            url = f"file://{place}/table"
            _in_a_process_of_its_own(url, size, size)
            file = max(each.stat().st_size for each in Path(place).rglob("*.parquet"))
            peak = _in_a_process_of_its_own(url, size, UPSERTS)
        found[f"a file group of {size:,} rows"] = {
            "file_mb": round(file / 1e6, 1),
            "worker_peak_mb": round(peak, 1),
        }
    return {"upserts": UPSERTS, "rows": found}


if __name__ == "__main__":
    print(json.dumps(_upsert(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
