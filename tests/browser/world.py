"""What the browser's tests share: servers for copies of the notebooks, and a page that tells."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lockkit.lab.cli.lab import settings
from lockkit.spark.connect import free_port

ROOT = Path(__file__).parents[2]
FIRST = "00_start_here.ipynb"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
SOON_MS, LATER_MS = 15_000, 60_000
BENCH = ".lk[data-bench=true]"
KERNEL_IDLE = """(() => {
  const context = window.jupyterapp.shell.currentWidget?.sessionContext;
  return context?.isReady && context.session?.kernel?.connectionStatus === "connected"
    && context.session.kernel.status === "idle";
})()"""
LABS_OWN = "Could not restore the debugger state"
"""JupyterLab asks a kernel that is being restarted for it, and says that it was not told."""
NO_NETWORK = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9") | {
    "NO_PROXY": "127.0.0.1,localhost",
}
"""Nobody answers there: whatever a server or a kernel would fetch fails, as on a train."""
HOSTILE = "</script><img src=x onerror=\"document.title='owned'\">"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A Jupyter server or a Voila, its URL and the directory that it serves."""

    url: str
    directory: Path

    def kernels(self) -> list[str]:
        with urllib.request.urlopen(f"{self.url}/api/kernels", timeout=10) as answer:
            return [each["id"] for each in json.load(answer)]


def chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    pytest.skip("no Chromium: apt-get install chromium (or chromium-browser) to test the notebook")


def driver() -> None:
    """Skips where Playwright's driver, a Node.js program of its own, cannot start here."""
    from playwright._impl._driver import compute_driver_executable, get_driver_env
    from playwright.sync_api import Error

    try:
        tried = subprocess.run(
            [*compute_driver_executable(), "--version"], env=get_driver_env(),
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        why = tried.stderr if tried.returncode else ""
    except (OSError, Error) as error:
        why = str(error)
    if "libatomic" in why:
        pytest.skip("Playwright's driver needs libatomic: apt-get install libatomic1 to test the "
                    "notebook")  # fmt: skip
    if why:
        pytest.skip(f"Playwright's driver does not start here: {why.strip()[-200:]}; "
                    "pip install --force-reinstall playwright to test the notebook")  # fmt: skip


def listened(page: Any) -> Any:
    """The page, and from now on what it fetched and what went wrong in it."""
    page.fetched, page.trouble = [], []
    page.on("request", lambda each: page.fetched.append(each.url))
    page.on("pageerror", lambda error: page.trouble.append(str(error)))
    page.on("console", lambda m: page.trouble.append(m.text) if is_trouble(m) else None)
    return page


def is_trouble(message: Any) -> bool:
    return message.type == "error" and not message.text.startswith(LABS_OWN)


def shot(page: Any, name: str) -> None:
    if folder := os.environ.get("LOCKKIT_SHOTS"):
        page.screenshot(path=str(Path(folder) / f"{name}.png"))


def elsewhere(page: Any, server: Server | None = None) -> list[str]:
    """What the page asked of anybody but the server, or the file, that it came from."""
    home = server.url if server else "file://"
    own = (home, home.replace("http", "ws", 1), "data:", "blob:")
    return [url for url in page.fetched if not url.startswith(own)]


# --- servers ----------------------------------------------------------------------------------


@contextlib.contextmanager
def serving(directory: Path, *line: str, **env: str) -> Iterator[Server]:
    """A server for copies of the notebooks, so that saving them changes nothing."""
    (directory / "notebooks").mkdir()
    for each in (ROOT / "notebooks").glob("*.ipynb"):
        shutil.copy(each, directory / "notebooks")
    (directory / "datasets").symlink_to(ROOT / "datasets")
    own = {f"JUPYTER_{each}_DIR": str(directory / each) for each in ("CONFIG", "DATA", "RUNTIME")}
    own |= settings()  # as lockkit lab has them, and Binder
    own |= {"TMPDIR": str(directory), "PYTHONPATH": str(ROOT), "LOCKKIT_FAST": ""}
    own |= NO_NETWORK | {name.lower(): value for name, value in NO_NETWORK.items()} | env
    url = f"http://127.0.0.1:{(port := free_port())}"
    with (directory / "server.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", *line, "--no-browser", f"--port={port}"],
            env=os.environ | own, stdout=log, stderr=log, start_new_session=True, cwd=ROOT,
        )  # fmt: skip
        try:
            wait_for(url, server, directory / "server.log")
            yield Server(url=url, directory=directory)
        finally:
            server.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
    assert gone(directory), "a writer outlived its server"


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    host, _, port = url.removeprefix("http://").partition(":")
    while time.monotonic() < deadline and server.poll() is None:
        with (
            contextlib.suppress(OSError),
            socket.create_connection((host, int(port)), timeout=1),
        ):
            return
        time.sleep(0.1)
    pytest.fail(f"the server did not answer: {log.read_text()[-2000:]}")


def gone(directory: Path, timeout_s: float = 10.0) -> bool:
    """Whether every process of a fleet that was started below this directory has ended."""
    deadline = time.monotonic() + timeout_s
    while left := fleets(directory):
        if time.monotonic() > deadline:
            print("left:", [(each / "cmdline").read_bytes() for each in left])
            return False
        time.sleep(0.1)
    return True


def fleets(directory: Path) -> list[Path]:
    """The processes (in /proc) of all fleets that were started below this directory."""
    return [each for each in Path("/proc").glob("[0-9]*") if belongs(each, directory)]


def belongs(entry: Path, directory: Path) -> bool:
    try:
        environment = (entry / "environ").read_bytes()
    except OSError:
        return False
    return f"TMPDIR={directory}\0".encode() in environment and b"LOCKKIT_FLEET" in environment


def kernels_pid(server: Server) -> int:
    """The process of the server's one kernel."""
    mark = f"TMPDIR={server.directory}\0".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            named = b"ipykernel_launcher" in (entry / "cmdline").read_bytes()
            if named and mark in (entry / "environ").read_bytes():
                return int(entry.name)
    pytest.fail("no kernel runs")


# --- JupyterLab -------------------------------------------------------------------------------


def command(page: Any, name: str, **args: Any) -> None:
    execute = "([name, args]) => { window.jupyterapp.commands.execute(name, args); }"
    page.evaluate(execute, [name, args])


def open_notebook(page: Any, lab: Server, notebook: str) -> None:
    """In a workspace of its own: nothing that another test left open opens again."""
    page.goto(f"{lab.url}/lab/workspaces/{free_port()}/tree/{notebook}")
    page.wait_for_function(
        "window.jupyterapp?.commands.hasCommand('notebook:run-all-cells')"
        " && document.querySelectorAll('.jp-Notebook .jp-Cell').length > 1", timeout=LATER_MS,
    )  # fmt: skip
    page.wait_for_function(KERNEL_IDLE, timeout=LATER_MS)


def run_all_cells(page: Any, lab: Server, notebook: str) -> None:
    open_notebook(page, lab, notebook)
    command(page, "notebook:run-all-cells")


def seen(page: Any, found: Any) -> Any:
    """It, scrolled to once the kernel is done: JupyterLab draws only the cells in view."""
    found.wait_for(state="attached", timeout=LATER_MS)
    page.wait_for_function(KERNEL_IDLE, timeout=LATER_MS)
    found.evaluate("each => each.scrollIntoView()")
    found.wait_for(timeout=SOON_MS)
    return found


def theme(page: Any, name: str) -> None:
    """`Light` or `Dark`."""
    command(page, "apputils:change-theme", theme=f"JupyterLab {name}")
    light = str(name == "Light").lower()
    page.wait_for_selector(f"body[data-jp-theme-light={light}]", state="attached",
                           timeout=SOON_MS)  # fmt: skip
    page.wait_for_selector("#jupyterlab-splash", state="detached", timeout=SOON_MS)


def said_by_kernel(page: Any, code: str) -> str:
    """What the notebook's kernel answers to an expression."""
    run = """async (code) => {
      const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
      const asked = { code: "", user_expressions: { it: code }, store_history: false };
      const reply = await kernel.requestExecute(asked).done;
      const { it } = reply.content.user_expressions;
      return it.status === "ok" ? it.data["text/plain"] : `${it.ename}: ${it.evalue}`;
    }"""
    return str(page.evaluate(run, code))


def restart_kernel(page: Any) -> None:
    command(page, "kernelmenu:restart")
    page.locator(".jp-Dialog .jp-mod-accept").click(timeout=SOON_MS)
    page.wait_for_function(KERNEL_IDLE, timeout=LATER_MS)


# --- the workbench's page ---------------------------------------------------------------------


WORKBENCH = (
    "from lockkit.lab.widgets import Workbench, control",
    "control.DEADMAN_S = {deadman_s}  # the page says every 5 s that it is there",
    "bench = Workbench(kind='plain', writers=2, lease_s=2.0)\nbench",
)


def workbench_alone(server: Server, deadman_s: float = 120.0) -> str:
    """Put a notebook there that has nothing but the workbench; its name."""
    cells = [each.format(deadman_s=deadman_s) for each in WORKBENCH]
    return notebook_of(server, f"workbench_{deadman_s:.0f}.ipynb", *cells)


def notebook_of(server: Server, name: str, *code: str) -> str:
    """Put a notebook with these cells there; its name."""
    import nbformat

    cells = [nbformat.v4.new_code_cell(each) for each in code]
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": spec})
    nbformat.write(notebook, server.directory / "notebooks" / name)
    return name


def launch(page: Any) -> None:
    page.wait_for_selector(f"{BENCH}[data-ready=true][data-state=idle]", timeout=LATER_MS)
    page.locator(".lockkit-launch").click()
    page.wait_for_function(events_above(5), timeout=SOON_MS)


def events_above(number: int) -> str:
    """Of the writers: not of the recorded run that plays while they start."""
    bench = f"document.querySelector('{BENCH}[data-recorded=false]')"
    return f"Number({bench}?.dataset.events ?? 0) > {number}"


def said(page: Any, pattern: str) -> None:
    facts = f"document.querySelector('{BENCH} .lk-facts').textContent"
    page.wait_for_function(f"new RegExp({pattern!r}).test({facts})", timeout=SOON_MS)
