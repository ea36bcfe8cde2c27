"""`python -m tests.bench [--json | --page] [--quick] [name ...]`: all benchmarks, or those named.

`--quick` runs all but those of locks small, to see that they run; figures then mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from importlib import import_module
from pathlib import Path
from typing import Any

LOCKS = ("cold", "emulator", "uncontended", "handoff", "providers")
TABLES = (
    "table", "writers", "group", "age", "opening", "insert", "upsert", "merged", "memory",
)
PATTERNS = ("queue", "striped")
PAGES = ("binder",)
NAMES = LOCKS + TABLES + PATTERNS + PAGES
PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "figures.md"
BEGIN, END = "<!-- bench:begin -->\n", "<!-- bench:end -->"


HANDOFF = ("lockkit, pause 20 ms", "lockkit, pause 0 ms")
HUDI = "Hudi's shape (GET, PUT, PUT)"


def goals(results: dict[str, Any]) -> list[tuple[str, float, float]]:
    """(what, measured, at most) for each goal whose benchmark ran."""
    found: list[tuple[str, float, float]] = []
    if one := results.get("uncontended", {}).get("rows"):
        lockkit, hudi = one["lockkit"], one[HUDI]
        found += [
            ("requests, uncontended", lockkit["requests"], 2),
            ("time of two bare PUTs, times", lockkit["ratio"], 1.10),
            ("of GET+PUT+PUT's time", round(lockkit["p50_ms"] / hudi["p50_ms"], 2), 0.74),
        ]
    for row in HANDOFF if (all_ := results.get("handoff", {}).get("rows")) else ():
        mine, hudi = all_[row], all_[row.replace("lockkit", HUDI)]
        found += [
            (f"{row}: hand-off, round trips", mine["handoff_p50_trips"], 2),
            (f"{row}: requests, at most Hudi's", mine["requests"], hudi["requests"]),
            (f"{row}: p95 wait, fair shares", mine["wait_p95_fair_shares"], 3),
            (f"{row}: longest wait, fair shares", mine["wait_max_fair_shares"], 6),
            (f"{row}: grants in a row", mine["longest_run"], 2),
            (f"{row}: overlaps", mine["overlaps"], 0),
        ]
    if server := results.get("emulator"):
        found += [
            (
                "1,000 PUT/s over the server's rate",
                round(1000 / server["raw_conditional_puts_per_s"], 2),
                1,
            ),
            ("boto3 against it, times only-answers", server["ratio"], 1.2),
            ("server's start, s", server["start_s"], 1),
            ("server's memory, MB", server["rss_mb"], 80),
        ]
    if cold := results.get("cold"):
        found += [
            ("import lockkit, CPU ms", cold["import_lockkit_cpu_ms"], 50),
            ("click to first live event, s", cold["first_event_of_writers_after_s"], 2),
        ]
    for name in TABLES + PATTERNS + PAGES:
        if name in results:
            found += import_module(f"tests.bench.{name}").goals(results[name])
    return found


def verdict(results: dict[str, Any]) -> str:
    """The goals that were met, and by name those that were not."""
    every = goals(results)
    missed = [f"{what}: {value}, the goal is {most}" for what, value, most in every if value > most]
    text = f"{len(every) - len(missed)} of {len(every)} goals met"
    return text + ("; missed: " + "; ".join(missed) if missed else "") + "."


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


def into_page(text: str) -> None:
    """Replace what stands between the page's bench markers."""
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, f"{PAGE} has no bench markers"
    PAGE.write_text(before + begin + text.strip("\n") + "\n" + end + after)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *NAMES], default=[])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="all but those of locks, small")
    parser.add_argument("--page", action="store_true", help=f"put the tables into {PAGE.name}")
    args = parser.parse_args()
    if args.quick and args.page:
        parser.error("--quick figures do not belong on the page")
    load = os.getloadavg()[0]
    results = {}
    for name in args.names or NAMES:
        small = {"quick": True} if args.quick and name in TABLES + PATTERNS + PAGES else {}
        results[name] = import_module(f"tests.bench.{name}").main(**small)
        if not args.json:
            print(table(name, results[name]))
    if args.json:
        print(json.dumps({"load_at_start": round(load, 2), **results, "goals": goals(results)}))
        return
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores, load {load:.1f}"
    where = f"`make bench`, {machine} when it began: read ratios, not times."
    where += " " + verdict(results)
    print(where)
    if args.page:
        into_page(where + "\n" + "".join(table(*each) for each in results.items()))


if __name__ == "__main__":
    main()
