"""Races for one key over separate clients: at most one may get *applied*."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

from lockkit.clock import Clock
from lockkit.errors import StoreError
from lockkit.lab.probe.report import Check, CheckOutcome
from lockkit.protocol.outcome import (
    Applied,
    Condition,
    Found,
    IfAbsent,
    IfVersion,
    Missing,
    Throttled,
    Unknown,
    WriteAnswer,
)
from lockkit.stores import Store, reopen


def races(
    store: Store, place: str, rounds: int, racers: int, also: Sequence[Store], clock: Clock
) -> list[Check]:
    """Create races, then compare-and-set races on the same keys, over one client per racer."""
    with ExitStack() as stack:
        ways = [store, *also]
        clients = [
            stack.enter_context(closing(reopen(ways[number % len(ways)])))
            for number in range(racers)
        ]
        pool = stack.enter_context(ThreadPoolExecutor(racers))
        keys = [f"{place}/race/{number}" for number in range(rounds)]
        create = _race(
            "create-race", clients, pool, [(key, IfAbsent()) for key in keys], clock, store
        )
        if create.finding is CheckOutcome.FAILED:
            return [create]
        group_targets: list[tuple[str, Condition]] = []
        for key in keys:
            match store.get(key):
                case Found(_, version):
                    group_targets.append((key, IfVersion(version)))
        clock.sleep(1.1 * store.capabilities.write_interval_min_s)
        swap = _race("compare-and-set-race", clients, pool, group_targets, clock, store)
    return [create, swap]


def _race(
    name: str,
    clients: Sequence[Store],
    pool: ThreadPoolExecutor,
    group_targets: Sequence[tuple[str, Condition]],
    clock: Clock,
    reader: Store,
) -> Check:
    """For each target all clients write at once under one condition; one at most is *applied*."""
    tally = {"rounds": 0, "clients": len(clients), "winners": 0, "throttled": 0}
    tally |= {"unknown": 0, "no_winner": 0, "double_winners": 0, "wrong_body": 0}
    start = threading.Barrier(len(clients))

    def write(number: int, key: str, condition: Condition) -> WriteAnswer:
        start.wait()
        return clients[number].put(key, _entry(name, number), condition)

    for key, condition in group_targets:
        futures = [pool.submit(write, number, key, condition) for number in range(len(clients))]
        try:
            answers = [future.result() for future in futures]
        except StoreError as error:
            return Check(name, CheckOutcome.FAILED, str(error), {**tally, "refused": True})
        winners = [n for n, answer in enumerate(answers) if isinstance(answer, Applied)]
        unknown = sum(isinstance(answer, Unknown) for answer in answers)
        tally["winners"] += len(winners)
        tally["throttled"] += sum(isinstance(answer, Throttled) for answer in answers)
        tally["unknown"] += unknown
        tally["no_winner"] += not winners
        tally["double_winners"] += len(winners) > 1
        # Read through a client that did not write it.
        match winners, reader.get(key):
            case [winner], Found(body, version):
                applied = answers[winner]
                assert isinstance(applied, Applied)
                tally["wrong_body"] += (body, version) != (_entry(name, winner), applied.version)
            case [_], Missing():
                tally["wrong_body"] += 1
        tally["rounds"] += 1
        if tally["double_winners"] or tally["wrong_body"]:
            break  # one is proof enough
    return _judged(name, tally)


def _entry(race: str, number: int) -> bytes:
    """No two writes to one key have equal bytes: if versions are content hashes, a rewrite of
    the same bytes leaves the version unchanged, and the next racer would rightly win as well."""
    return f'{{"race":"{race}","racer":{number}}}'.encode()


def _judged(name: str, tally: dict[str, int]) -> Check:
    rounds = f"{tally['rounds']} rounds of {tally['clients']} clients"
    if tally["double_winners"]:
        because = f"{tally['double_winners']} of {rounds} had more than one winner"
        return Check(name, CheckOutcome.FAILED, because, tally)
    if tally["wrong_body"]:
        because = f"after {tally['wrong_body']} of {rounds} the winner's object was not there"
        return Check(name, CheckOutcome.FAILED, because, tally)
    if tally["winners"] == 0:
        return Check(name, CheckOutcome.UNDECIDED, f"none of {rounds} had a winner", tally)
    because = f"never more than one winner in {rounds}"
    if tally["unknown"]:
        because += f"; {tally['unknown']} losers were told neither yes nor no, as by a 5xx"
    return Check(name, CheckOutcome.PASSED, because, tally)
