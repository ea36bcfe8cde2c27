"""`lockkit lab`: JupyterLab, opened at the first notebook."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lockkit.commands.terminal import Trouble, command

ABOUT = """\
Opens JupyterLab at the first notebook of the course, or at the one that you name first. All that
follows is handed to JupyterLab. Ctrl-C ends it, its kernels and their writers."""

EXAMPLE = """\
lockkit lab
lockkit lab notebooks/00_start_here.ipynb --no-browser --port 9999"""

CHECKOUT = Path(__file__).parents[2]
FIRST = "notebooks/00_start_here.ipynb"
STOP_TIMEOUT_S = 15.0


def add(commands: Any) -> None:
    parser = command(
        commands, "lab", help="open the notebooks in JupyterLab", about=ABOUT, example=EXAMPLE
    )
    parser.add_argument("notebook", nargs="?", help=f"default: {FIRST}")
    parser.set_defaults(run=run, name="lab", extra="lab")


def run(args: argparse.Namespace) -> int:
    path = Path(args.notebook) if args.notebook else CHECKOUT / FIRST
    if not path.exists():
        raise Trouble(
            f"{path} is not there; the notebooks come with the source checkout: clone the "
            "repository and run make lab in it"
        )
    if find_spec("jupyterlab") is None:
        raise Trouble(
            "JupyterLab is not installed here; run make lab, or pip install 'lockkit[lab]'"
        )
    return until_stopped([*jupyterlab(path.resolve()), *args.after])


def jupyterlab(notebook: Path) -> list[str]:
    # The root is the checkout: the notebooks' links to datasets/ and to each other work.
    root = CHECKOUT if notebook.is_relative_to(CHECKOUT) else notebook.parent
    # A URL rather than a file to run: it is printed too, for those whose browser is elsewhere.
    url = f"/lab/tree/{quote(notebook.relative_to(root).as_posix())}"
    return [
        sys.executable, "-m", "jupyterlab",
        f"--ServerApp.root_dir={root}", f"--LabApp.default_url={url}",
        "--ServerApp.answer_yes=True",  # one Ctrl-C is enough
        # In a container everybody is root, and the server listens on this machine only.
        *(["--allow-root"] if os.geteuid() == 0 else []),
    ]  # fmt: skip


def until_stopped(line: list[str]) -> int:
    """Run JupyterLab in the foreground; one Ctrl-C ends it and its kernels.

    So do SIGTERM and a closed terminal: a server that nobody sees would go on for ever.
    """
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, _ended)
    lab = subprocess.Popen(line, env=os.environ | settings())
    try:
        return lab.wait()
    finally:
        if lab.poll() is None:
            lab.terminate()
            try:
                lab.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                lab.kill()
                lab.wait()


def settings() -> dict[str, str]:
    """The notebooks' own settings before whatever else Jupyter would find: how long a kernel that
    nobody looks at may live, a Voila that asks nobody else, no news.
    """
    own = str(CHECKOUT / "notebooks" / ".jupyter")
    return {
        name: os.pathsep.join(filter(None, [own, os.environ.get(name)]))
        for name in ("JUPYTER_CONFIG_PATH", "JUPYTER_PATH")
    }


def _ended(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)
