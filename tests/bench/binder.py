"""What a visitor of Binder takes: the server, a kernel with the first notebook, and its writers.

Binder promises 1 GB and ends what takes 2. Told is the highest sum over all processes while ten
commits are published: PSS, which counts a page that several share once, as a container is charged
for it; and the RSS that `top` adds up. The browser is elsewhere.
"""

from __future__ import annotations

import json
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import nbformat
import psutil

from tests.browser.world import FIRST, Server, serving

CREWS = {"3 plain writers": ("plain", 3, 1024), "one JVM, 3 PySpark clients": ("connect", 3, 2048)}
"""Kind, number, and how many MB at most."""
COMMITS, QUICK_COMMITS = 10, 2
SAMPLE_S = 0.5
READY_S = 60.0
TOKEN = "bench"
HEADERS = {"Authorization": f"token {TOKEN}"}
EXECUTED_S = 300.0


def goals(result: dict[str, Any]) -> list[tuple[str, float, float]]:
    return [
        (f"Binder, {crew}: memory, MB", result["rows"][crew]["pss_mb"], most)
        for crew, (_, _, most) in CREWS.items()
    ]


class Watch(threading.Thread):
    """The most that the processes below a server took together, looked at twice a second."""

    def __init__(self, directory: Path) -> None:
        super().__init__(daemon=True)
        self.mark = f"TMPDIR={directory}\0".encode()
        self.over = threading.Event()
        self.most: dict[str, float] = {"pss_mb": 0.0}

    def run(self) -> None:
        while not self.over.wait(SAMPLE_S):
            found: dict[str, float] = {"processes": 0, "rss_mb": 0, "pss_mb": 0}
            for each in psutil.process_iter():
                with suppress(psutil.Error, OSError):
                    if self.mark in Path(f"/proc/{each.pid}/environ").read_bytes():
                        memory = each.memory_full_info()
                        found["pss_mb"] += memory.pss / 2**20
                        found["rss_mb"] += memory.rss / 2**20
                        found["processes"] += 1
            if found["pss_mb"] > self.most["pss_mb"]:
                self.most = found


def _took(server: Server, kind: str, writers: int, commits: int) -> dict[str, float]:
    notebook = nbformat.read(server.directory / "notebooks" / FIRST, as_version=4)
    code = [each.source for each in notebook.cells if each.cell_type == "code"]
    code.append(f"bench.launch(kind={kind!r}, writers={writers})")
    code += ["bench.until('published')"] * commits
    with _kernel(server) as client:
        watch = Watch(server.directory)
        watch.start()
        for each in code:
            reply = client.execute_interactive(each, timeout=EXECUTED_S, output_hook=lambda _: None)
            assert reply["content"]["status"] == "ok", reply["content"]
        watch.over.set()
        watch.join()
    return {name: round(value) for name, value in watch.most.items()}


@contextmanager
def _kernel(server: Server) -> Iterator[Any]:
    """A kernel of that server, as a page would have it started, and a client of it."""
    from jupyter_client.blocking import BlockingKernelClient

    where = json.dumps({"name": "python3", "path": FIRST}).encode()
    ask = urllib.request.Request(f"{server.url}/api/kernels", where, HEADERS)
    with urllib.request.urlopen(ask, timeout=READY_S) as answer:
        name = json.load(answer)["id"]
    client = BlockingKernelClient()
    client.load_connection_file(str(server.directory / "RUNTIME" / f"kernel-{name}.json"))
    client.start_channels()
    client.wait_for_ready(timeout=READY_S)
    yield client
    client.stop_channels()


def main(quick: bool = False) -> dict[str, Any]:
    commits, rows = QUICK_COMMITS if quick else COMMITS, {}
    for crew, (kind, writers, _) in CREWS.items():
        with tempfile.TemporaryDirectory() as place:
            notebook = f"{place}/notebooks/{FIRST}"
            line = ("lockkit", "lab", notebook, f"--IdentityProvider.token={TOKEN}", "--allow-root")
            with serving(Path(place), *line) as server:
                rows[crew] = _took(server, kind, writers, commits)
    return {"commits": commits, "rows": rows}
