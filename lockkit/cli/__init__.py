"""The commands of the command line, one file each: `add` describes it, `run` does it.

A command calls a room and prints what the room found; whatever it decides is the room's decision.
`lockkit --help` imports none of these files: it needs only the table below.
"""

from __future__ import annotations

COMMANDS = {
    "demo": "a stall, a takeover, a lost response, the verdict",
    "lab": "open the notebooks in JupyterLab",
    "serve": "run the embedded object server",
    "providers": "run ZooKeeper, Hive, DynamoDB, ... to try their locks",
    "probe": "test whether a store can hold a lock",
    "bench": "measure a store",
    "lock": "show, watch, acquire or break a lock",
    "tflock": "the lock file of a Terraform state",
    "table": "show, clean, cluster or repair a table",
    "incident": "what is wrong here, and what to do",
    "history": "tell what happened",
    "check": "judge a recorded history",
    "simulate": "whole runs under faults, by seed",
    "explore": "the rules, and what happens without",
    "soak": "writers in trouble for an hour, judged",
}
"""Name of each command, which is also the name of its file, and its line in `--help`."""

OF_THE_LIBRARY = ("lock", "table")
"""Commands that need nothing of the workshop; the others are in `lockkit/lab/cli`."""


def module_of(name: str) -> str:
    """The module that holds the command `name`."""
    return f"lockkit.cli.{name}" if name in OF_THE_LIBRARY else f"lockkit.lab.cli.{name}"
