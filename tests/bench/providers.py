"""Every provider that can be started here: acquire and release, and from one process to another.

In turn within each round, so that other load hits all alike. Ratios are to the storage lock on the
embedded server: everything is on loopback, so they say what each protocol costs, not each cloud.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lockkit.lab.processes.services.dynamodb import DynamoDB
from lockkit.lab.processes.services.hive import HiveMetastore
from lockkit.lab.processes.services.service import ServiceUnavailable
from lockkit.lab.processes.services.zookeeper import ZooKeeper
from tests.provider_world import NAMES, Parties, Party, Server, World, world

SERVICES: dict[str, Callable[[Path], Any]] = {
    "storage": Server, "zookeeper": ZooKeeper, "dynamodb": DynamoDB, "hive": HiveMetastore,
    "azure_lease": Server,
}  # fmt: skip
ROUNDS, PAIRS, HANDOFFS = 5, 8, 3
HOLD_S = (0.2, 1.2)
"""How long the other waits already: over a whole interval of whoever can only look."""


def main(rounds: int = ROUNDS) -> dict[str, Any]:
    pairs: dict[str, list[float]] = {name: [] for name in NAMES}
    handed: dict[str, list[float]] = {name: [] for name in NAMES}
    parties = {thread: Parties(thread=thread) for thread in (False, True)}
    hold = random.Random(1)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        worlds, missing = opened(stack, folder)
        for _ in range(rounds):
            for name, each in worlds.items():
                one, other = parties[each.threads](2, [each.lock], each.options)
                pairs[name] += alone(one, other)
                handed[name] += between(one, other, hold)
        for made in parties.values():
            made.end()
    counts = {"pairs": rounds * PAIRS, "hand_offs": rounds * HANDOFFS}
    rows = {name: row(name, pairs, handed) for name in worlds}
    return counts | ({"not_here": "; ".join(missing)} if missing else {}) | {"rows": rows}


def opened(stack: ExitStack, folder: Path) -> tuple[dict[str, World], list[str]]:
    """A lock of each provider, and why there is none of some."""
    worlds, missing = {}, []
    for name in NAMES:
        service: Any = None
        try:
            if name in SERVICES:
                service = stack.enter_context(SERVICES[name](folder / f"service-{name}"))
        except ServiceUnavailable as why:
            missing.append(f"{name} ({why})")
        else:
            worlds[name] = world(name, "bench", service, folder)
    return worlds, missing


def alone(one: Party, other: Party) -> list[float]:
    for each in (one, other):
        each.ask("pairs", count=1)  # connects, and whatever a lock proves once
    return list(one.ask("pairs", count=PAIRS))


def between(one: Party, other: Party, hold: random.Random) -> list[float]:
    """From the moment that one lets go to the other's grant, in turn."""
    taken = []
    one.ask("acquired_ms")
    for _ in range(HANDOFFS):
        other.tell("acquired_ms")
        other.said(waiting=True)
        time.sleep(hold.uniform(*HOLD_S))
        let_go_ms = one.ask("let_go_ms")
        kind, got_ms = other.said()
        assert kind == "returned", got_ms
        taken.append(got_ms - let_go_ms)
        one, other = other, one
    one.ask("release")
    return taken


def row(name: str, pairs: dict[str, list[float]], handed: dict[str, list[float]]) -> dict[str, Any]:
    pair, hand_off = (statistics.median(each[name]) for each in (pairs, handed))
    floor = statistics.median(pairs["storage"]), statistics.median(handed["storage"])
    return {
        "p50_ms": round(pair, 2),
        "ratio": round(pair / floor[0], 2),
        "handoff_p50_ms": round(hand_off, 1),
        "handoff_max_ms": round(max(handed[name]), 1),
        "handoff_ratio": round(hand_off / floor[1], 2),
    }
