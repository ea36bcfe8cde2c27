"""`lockkit lab`: JupyterLab, opened at the first notebook."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lockkit.cli.shipped import IN_CHECKOUT, ROOT
from lockkit.cli.terminal import CommandError, command, require, warn
from lockkit.events import plain

ABOUT = """\
Opens JupyterLab at the first notebook of the course, or at the notebook named by the first
argument. It passes all other arguments to JupyterLab. Ctrl-C ends JupyterLab, its kernels and
their writers. Outside a source checkout it first copies the notebooks and their data sets to
./lockkit-lab. It never overwrites a file there, so your changes stay."""

EXAMPLE = """\
lockkit lab
lockkit lab notebooks/00_start_here.ipynb --no-browser --port 9999"""

COPY = "lockkit-lab"
FIRST = "notebooks/00_start_here.ipynb"
STOP_TIMEOUT_S = 15.0
PORT_MAX = 65_535


def add(commands: Any) -> None:
    parser = command(commands, "lab", about=ABOUT, example=EXAMPLE)
    parser.add_argument("notebook", nargs="?", help=f"the notebook to open (default {FIRST})")
    parser.set_defaults(run=run, name="lab", extra="lab")


def run(args: argparse.Namespace) -> int:
    refuse_port(args.after)
    refuse_home(Path(os.environ.get("JUPYTER_CONFIG_DIR") or Path.home() / ".jupyter"))
    require("lab")
    home = ROOT if IN_CHECKOUT else copied(Path(COPY).absolute())
    path = Path(args.notebook) if args.notebook else home / FIRST
    if not path.exists():
        raise CommandError(f"there is no notebook {path}; the course is in {home / 'notebooks'}")
    return until_stopped([*jupyterlab(path.resolve(), home.resolve()), *args.after])


def refuse_port(options: list[str]) -> None:
    """JupyterLab itself shows an address with this port, and does not listen there."""
    named = re.search(r"(?:^|\s)--(?:port|ServerApp\.port)[= ](\d+)(?:\s|$)", " ".join(options))
    if named and int(named[1]) > PORT_MAX:
        raise CommandError(f"no port {named[1]}: the highest is {PORT_MAX}")


def refuse_home(folder: Path) -> None:
    """JupyterLab cannot start without its folders, and prints two hundred lines about it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise CommandError(
            f"JupyterLab cannot keep its settings in {folder}: {plain(error)}; set HOME to a "
            "folder that is yours"
        ) from None


def copied(home: Path) -> Path:
    """Copy missing notebooks and data sets of the package into the folder; return it."""

    def unless_there(source: str, target: str) -> None:
        if not os.path.exists(target):
            shutil.copyfile(source, target)

    try:
        shutil.copytree(ROOT, home, copy_function=unless_there, dirs_exist_ok=True)
    except OSError as error:
        raise CommandError(
            f"cannot copy the notebooks to {home}: {plain(error, limit=300)}; "
            "run lockkit lab in a folder that you may write to"
        ) from None
    warn(f"the notebooks and their data sets are in {home}")
    return home


def jupyterlab(notebook: Path, home: Path) -> list[str]:
    # The notebooks' links to datasets/ and to each other work from the folder that holds both.
    root = home if notebook.is_relative_to(home) else notebook.parent
    # A URL rather than a file to run: it is printed too, for those whose browser is elsewhere.
    url = f"/lab/tree/{quote(notebook.relative_to(root).as_posix())}"
    return [
        sys.executable, "-m", "jupyterlab",
        f"--ServerApp.root_dir={root}", f"--LabApp.default_url={url}",
        "--ServerApp.answer_yes=True",  # one Ctrl-C is enough
        # In a container every user is root, and the server listens on this machine only.
        *(["--allow-root"] if os.geteuid() == 0 else []),
    ]  # fmt: skip


def until_stopped(line: list[str]) -> int:
    """Run JupyterLab in the foreground; one Ctrl-C ends it and its kernels.

    So do SIGTERM and a closed terminal; otherwise an unseen server would run for ever.
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
    no browser shows may live, a Voila that calls no other host, no news.
    """
    own = str(ROOT / "notebooks" / ".jupyter")
    return {
        name: os.pathsep.join(filter(None, [own, os.environ.get(name)]))
        for name in ("JUPYTER_CONFIG_PATH", "JUPYTER_PATH")
    }


def _ended(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)
