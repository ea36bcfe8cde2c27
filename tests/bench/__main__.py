"""`python -m tests.bench [--json] [name ...]`: every benchmark, or those named."""

from __future__ import annotations

import argparse
import json
import os
from importlib import import_module
from typing import Any

NAMES = ("cold", "emulator", "uncontended", "handoff")


def show(name: str, result: dict[str, Any]) -> None:
    flat = {key: value for key, value in result.items() if key != "rows"}
    print(f"\n{name}: " + ", ".join(f"{key} {value}" for key, value in flat.items()))
    rows = result.get("rows")
    if not rows:
        return
    columns = list(next(iter(rows.values())))
    print("| " + " | ".join(["", *columns]) + " |")
    print("|" + "---|" * (len(columns) + 1))
    for label, row in rows.items():
        print("| " + " | ".join([label, *(str(row[column]) for column in columns)]) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *NAMES], default=[])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    results = {}
    for name in args.names or NAMES:
        results[name] = import_module(f"tests.bench.{name}").main()
        if not args.json:
            show(name, results[name])
    if args.json:
        print(json.dumps({"load_at_start": round(load, 2), **results}))
    else:
        print(f"\nload when it began: {load:.1f} on {os.cpu_count()} cores; read ratios, not times")


if __name__ == "__main__":
    main()
