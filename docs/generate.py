"""What the pages take from the code and its data: `<!-- generated: NAME -->` is `NAME()` here.

Each function returns Markdown. None of it is kept in a file, so it cannot go stale.
"""

from __future__ import annotations

import io
import json
import os
import re
from contextlib import redirect_stdout, suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).parents[1]

ERRORS = "*"
# page -> (heading, module, names); ERRORS: its errors; no names: all of its __all__.
# What an earlier heading or page has is not repeated.
API: dict[str, tuple[tuple[str, str, tuple[str, ...]], ...]] = {
    "api_lock": (
        ("Locks", "lockkit", ("Lock", "AsyncLock", "LockHandle", "open_lock", "Policy", "Expiry")),
        ("Two locks as one", "lockkit.providers.both", ("DoubleLock",)),
        ("Stores", "lockkit", ("open_store",)),
        ("Errors", "lockkit", ("LockkitError", ERRORS)),
        ("Recording and testing", "lockkit", ()),
    ),
    "api_table": (
        ("Tables", "lockkit.table", ("Table", "TableConfig", "create_table", "Committed")),
        ("Reading", "lockkit.table", ("read_table", "scan", "read_increment")),
        ("Errors of tables", "lockkit.table", (ERRORS,)),
        ("Spark", "lockkit.spark", ()),
    ),
    "api_recipes": (
        ("Leader election", "lockkit.recipes.election", ()),
        ("Write-ahead log", "lockkit.recipes.wal", ()),
        ("Queue", "lockkit.recipes.queue.brokered", ("BrokerQueue",)),
        ("Striped lock", "lockkit.recipes.striped", ()),
        ("Terraform's lock file", "lockkit.recipes.terraform", ()),
    ),
}


# --- the command line -----------------------------------------------------------------------------


def command_line() -> str:
    """Each command's own --help, with a heading for each."""
    parts = [_fenced(said_by("--help"))]
    for name, within in _commands(said_by("--help")):
        parts += [f"## lockkit {name}\n", _fenced(said_by(name, "--help"))]
        for inner, _ in within:
            parts += [f"### lockkit {name} {inner}\n", _fenced(said_by(name, inner, "--help"))]
    return "\n".join(parts)


def said_by(*arguments: str) -> str:
    """What `lockkit ARGUMENTS` prints, at a width that fits the page."""
    said = io.StringIO()
    width = {"COLUMNS": "88", "NO_COLOR": "1"}
    with redirect_stdout(said), suppress(SystemExit), patch.dict(os.environ, width):
        import_module("lockkit.cli.main").main(list(arguments))
    return said.getvalue()


def _commands(said: str) -> list[tuple[str, list[Any]]]:
    """The commands that a --help lists, each with those that its own lists."""
    listed = said.partition("\ncommands:\n")[2].partition("\n\n")[0]
    names = re.findall(r"^    ([a-z][a-z-]*)\b", listed, re.MULTILINE)
    above = re.match(r"usage: lockkit ?(.*?) ?\[-h\]", said)
    path = above[1].split() if above else []
    return [(name, _commands(said_by(*path, name, "--help"))) for name in names]


def _fenced(text: str) -> str:
    return f"```text\n{text.strip()}\n```\n"


# --- the API --------------------------------------------------------------------------------------


def api_lock() -> str:
    return _api("api_lock")


def api_table() -> str:
    return _api("api_table")


def api_recipes() -> str:
    return _api("api_recipes")


def _api(page: str) -> str:
    parts = []
    for of, heading, module, names in _chosen():
        if of == page and names:
            there = import_module(module)
            parts.append(f"## {heading}\n")
            parts += [_documented(f"{module}.{each}", getattr(there, each)) for each in names]
    return "\n".join(parts)


def _chosen() -> list[tuple[str, str, str, list[str]]]:
    """(page, heading, module, names) for each heading, with every object named once."""
    seen: set[int] = set()
    found = []
    for page, headings in API.items():
        for heading, module, wanted in headings:
            there = import_module(module)
            public = [each for each in getattr(there, "__all__", wanted) if each[0] != "_"]
            names = [
                each
                for each in sorted(public, key=(*wanted, *public).index)
                if id(getattr(there, each)) not in seen
                and (not wanted or each in wanted or (ERRORS in wanted and _is_error(there, each)))
            ]
            seen |= {id(getattr(there, each)) for each in names}
            found.append((page, heading, module, names))
    return found


def _is_error(module: Any, name: str) -> bool:
    what = getattr(module, name)
    return isinstance(what, type) and issubclass(what, BaseException)


def _documented(path: str, what: Any) -> str:
    """One name, by autodoc."""
    if isinstance(what, type):
        kind = "exception" if issubclass(what, BaseException) else "class"
        body = [f".. auto{kind}:: {path}"]
        body.append("   :members:" if kind == "class" else "   :show-inheritance:")
    else:
        body = [f".. auto{'function' if callable(what) else 'data'}:: {path}"]
    return "\n".join(["```{eval-rst}", *body, "```", ""])


# --- planted mistakes -----------------------------------------------------------------------------


def mistakes() -> str:
    """The rows of tests/seeds.json, each with its mistake in words."""
    found = json.loads((ROOT / "tests" / "seeds.json").read_text(encoding="utf-8"))["mutants"]
    said = import_module("lockkit.lab.verify.mutants").LEASE_MUTANTS
    lines = ["| mistake | scenario | seed | moves | breaks |", "|---|---|--:|--:|---|"]
    for name, row in found.items():
        words = said[name].says if name in said else name
        lines.append(
            f"| {words} | `{row['scenario']}` | {row['seed']:,} | {row['steps']:,} "
            f"| {row['violation']} |"
        )
    return "\n".join(lines)


def repairs() -> str:
    """The rows of tests/repair_seeds.json."""
    found = json.loads((ROOT / "tests" / "repair_seeds.json").read_text(encoding="utf-8"))
    lines = ["| taken away | scenario | seed | moves | breaks |", "|---|---|--:|--:|---|"]
    lines += [
        f"| {name} | `{row['scenario']}` | {row['seed']:,} | {row['steps']:,} "
        f"| {row['violation']} |"
        for name, row in found.items()
    ]
    return "\n".join(lines)


def streamer() -> str:
    """The flags of Hudi's streamer, as the module that reads them treats each."""
    from lockkit.spark import stream_job as job

    rows = [f"| `{flag}` | sets `{key}` |" for flag, key in job.INTO_PROPERTIES.items()]
    rows += [f"| `{flag}` | refused: {why} |" for flag, why in job.REFUSED.items()]
    rows.append(f"| {', '.join(f'`{flag}`' for flag in job.IDLE)} | no effect; a line says so |")
    return "\n".join((_fenced(job.parser().format_help()), "| flag | what lockkit does |",
                      "|---|---|", *rows))  # fmt: skip


# --- stores ---------------------------------------------------------------------------------------


def stores_documented() -> str:
    """The documented rows of the providers' matrix; each word links to its source."""
    return _stores("documented")


def stores_probed() -> str:
    return _stores("probed")


def _stores(basis: str) -> str:
    from lockkit.lab.probe.providers import CAPABILITIES, providers

    verdict = ("verdict",) if basis == "probed" else ()
    head = ("store", *CAPABILITIES.values(), *verdict, "limits and traps", "as of")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in (each for each in providers() if each.basis == basis):
        cells = [row.store]
        for name in CAPABILITIES:
            word, page = getattr(row, name), row.source_of(name)
            linked = page.startswith("https://") and word != "not found"
            cells.append(f"[{word}]({page})" if linked else word)
        cells += [*((row.verdict,) if verdict else ()), row.limits_and_traps, row.as_of]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def probe_workflow() -> str:
    """A workflow for other people's repositories, with the address of this one."""
    address = import_module("address").current().removeprefix("https://github.com/")
    return WORKFLOW.replace("lockkit@main", f"{address}@main")


WORKFLOW = """```yaml
name: lock
on:
  schedule: [{cron: "0 6 * * 1"}]
  workflow_dispatch:
permissions:
  contents: read
jobs:
  probe:
    runs-on: ubuntu-latest
    timeout-minutes: 20
    steps:
      - id: probe
        uses: lockkit@main
        with:
          url: s3://my-bucket/lockkit-probe
          endpoint: https://s3.example.com
          badge: lock-badge.json
        env:
          AWS_ACCESS_KEY_ID: ${{ secrets.AWS_ACCESS_KEY_ID }}
          AWS_SECRET_ACCESS_KEY: ${{ secrets.AWS_SECRET_ACCESS_KEY }}
          AWS_REGION: us-east-1
      - uses: actions/upload-artifact@v4
        if: always()
        with:
          name: lock
          path: lock-*.json
```"""


# --- on call --------------------------------------------------------------------------------------


def on_call_session() -> str:
    """The commands of a night on call and their output, for each of three providers."""
    return str(import_module("on_call_session").markdown())


# --- the playground -------------------------------------------------------------------------------


def marks() -> str:
    """The legend of the pictures, as it stands below each of them."""
    drawing = (ROOT / "lockkit/lab/widgets/lanes.js").read_text(encoding="utf-8")
    legend = drawing.partition("const LEGEND = [")[2].partition("\n];")[0]
    pairs = (json.loads(line.rstrip(",")) for line in legend.split("\n") if line.strip())
    return "\n".join(f"- **{sign}**: {words}" for sign, words in pairs)


def playground() -> str:
    """The page's elements and script, as they are."""
    return f"`````{{raw}} html\n{import_module('playground_page').html()}\n`````"
