"""`python -m tests.bench [--json | --readme] [name ...]`: every benchmark, or those named."""

from __future__ import annotations

import argparse
import json
import os
import platform
from importlib import import_module
from pathlib import Path
from typing import Any

NAMES = ("cold", "emulator", "uncontended", "handoff")
README = Path(__file__).parents[2] / "README.md"
BEGIN, END = "<!-- bench:begin -->\n", "<!-- bench:end -->"


def table(name: str, result: dict[str, Any]) -> str:
    """One benchmark's figures, as Markdown."""
    flat = {key: value for key, value in result.items() if key != "rows"}
    text = f"\n{name}: " + ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in flat.items()) + "\n"
    rows = result.get("rows")
    if not rows:
        return text
    columns = list(next(iter(rows.values())))
    text += "\n| | " + " | ".join(column.replace("_", " ") for column in columns) + " |\n"
    text += "|---|" + "--:|" * len(columns) + "\n"
    for label, row in rows.items():
        text += "| " + " | ".join([label, *(str(row[column]) for column in columns)]) + " |\n"
    return text


def into_readme(text: str) -> None:
    """Replace what stands between the README's bench markers."""
    before, begin, rest = README.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, f"{README} has no bench markers"
    README.write_text(before + begin + text.strip("\n") + "\n" + end + after)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *NAMES], default=[])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--readme", action="store_true", help="put the tables into README.md")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    results = {}
    for name in args.names or NAMES:
        results[name] = import_module(f"tests.bench.{name}").main()
        if not args.json:
            print(table(name, results[name]))
    if args.json:
        print(json.dumps({"load_at_start": round(load, 2), **results}))
        return
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores, load {load:.1f}"
    where = f"`make bench`, {machine} when it began: read ratios, not times."
    print(where)
    if args.readme:
        into_readme(where + "\n" + "".join(table(*each) for each in results.items()))


if __name__ == "__main__":
    main()
