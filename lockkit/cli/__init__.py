"""The commands of the command line, one file each: `add` describes it, `run` does it.

A command calls another package, which makes every decision, and prints the result.
`lockkit --help` imports none of these files: it needs only the table below.
"""

from __future__ import annotations

COMMANDS = {
    "demo": "watch a stall, a takeover, a lost response and the verdict",
    "lab": "open the notebooks in JupyterLab",
    "serve": "run the embedded object server",
    "providers": "run ZooKeeper, Hive, DynamoDB, ... to try their locks",
    "probe": "test whether a store can hold a lock",
    "bench": "measure a store",
    "lock": "show, watch, acquire or break a lock",
    "tflock": "show, run under or unlock a Terraform state's lock",
    "table": "show, clean, cluster or repair a table",
    "incident": "find out what is wrong with a table or a lock, and what to do",
    "history": "describe a recorded history, or the versions of a lock",
    "check": "judge a recorded history",
    "simulate": "simulate whole runs under faults, by seed",
    "explore": "search all orders of events for what each rule prevents",
    "soak": "run real writers under faults, and judge the result",
}
"""The name of each command, which is also its file's name, and its line in `--help`."""

OF_THE_LIBRARY = ("lock", "table")
"""Commands that do not need `lockkit.lab`; the others are in `lockkit/lab/cli`."""


def module_of(name: str) -> str:
    """The module that holds the command `name`."""
    return f"lockkit.cli.{name}" if name in OF_THE_LIBRARY else f"lockkit.lab.cli.{name}"
