"""Races for one key over separate clients: at most one may get *applied*."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace

from lockkit.clock import Clock
from lockkit.errors import StoreError
from lockkit.lab.probe.parts import Write, delayed, joined
from lockkit.lab.probe.report import Check, CheckOutcome
from lockkit.protocol.outcome import (
    Applied,
    Condition,
    Found,
    IfAbsent,
    IfVersion,
    Missing,
    PreconditionFailed,
    Throttled,
    Unknown,
    WriteAnswer,
)
from lockkit.stores import Store, adapter_of


def reopen(store: Store) -> Store:
    """The same place through separate clients: another connection pool, another racer."""
    again: Store = adapter_of(store.url)[1](store.url, store.options)
    return again


def races(
    store: Store, place: str, rounds: int, racers: int, also: Sequence[Store], clock: Clock
) -> list[Check]:
    """Create races, then compare-and-set races on the same keys, over one client per racer."""
    ways = [store, *also]
    with ExitStack() as stack:
        clients = [
            stack.enter_context(closing(reopen(ways[number % len(ways)])))
            for number in range(racers)
        ]
        writes = [client.put for client in clients]
        pool = stack.enter_context(ThreadPoolExecutor(racers))
        keys = [f"{place}/race/{number}" for number in range(rounds)]
        create = race("create-race", writes, pool, [(key, IfAbsent()) for key in keys], ways)
        if create.finding is CheckOutcome.FAILED:
            return [create]
        group_targets: list[tuple[str, Condition]] = []
        for key in keys:
            match store.get(key):
                case Found(_, version):
                    group_targets.append((key, IfVersion(version)))
        clock.sleep(1.1 * store.capabilities.write_interval_min_s)
        swap = race("compare-and-set-race", writes, pool, group_targets, ways)
    return [create, swap]


def joined_race(store: Store, place: str, rounds: int, racers: int, also: Sequence[Store]) -> Check:
    """As a create race, but every second writer joins its object from parts."""
    ways, name = [store, *also], "multipart-race"
    with ExitStack() as stack:
        clients = []
        for number in range(racers):
            way = ways[number // 2 % len(ways)]
            client = reopen(way) if number % 2 else joined(way)
            assert client is not None
            clients.append(stack.enter_context(closing(client)))
        writes = [delayed(each) if number % 2 else each.put for number, each in enumerate(clients)]
        pool = stack.enter_context(ThreadPoolExecutor(racers))
        keys = [f"{place}/joined/{number}" for number in range(rounds)]
        found = race(name, writes, pool, [(key, IfAbsent()) for key in keys], ways)
    lost = found.finding is CheckOutcome.FAILED  # no lock needs it
    return replace(found, finding=CheckOutcome.NOTED) if lost else found


def race(
    name: str,
    writes: Sequence[Write],
    pool: ThreadPoolExecutor,
    group_targets: Sequence[tuple[str, Condition]],
    readers: Sequence[Store],
) -> Check:
    """For each target all clients write at once under one condition; one at most is *applied*."""
    tally = {"rounds": 0, "clients": len(writes), "winners": 0, "throttled": 0}
    tally |= {"unknown": 0, "no_winner": 0, "double_winners": 0, "wrong_body": 0}
    tally["refused_yet_applied"] = 0
    start = threading.Barrier(len(writes))

    def write(number: int, key: str, condition: Condition) -> WriteAnswer:
        start.wait()
        return writes[number](key, _entry(name, number), condition)

    for key, condition in group_targets:
        futures = [pool.submit(write, number, key, condition) for number in range(len(writes))]
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
        if all(isinstance(answer, PreconditionFailed) for answer in answers):
            match readers[0].get(key):
                case Found(body) if body in {_entry(name, n) for n in range(len(writes))}:
                    tally["refused_yet_applied"] += 1
        for reader in readers if len(winners) == 1 else ():
            # Through clients that did not write it, at every endpoint.
            applied = answers[winners[0]]
            assert isinstance(applied, Applied)
            match reader.get(key):
                case Found(body, version):
                    wrong = (body, version) != (_entry(name, winners[0]), applied.version)
                    tally["wrong_body"] += wrong
                case Missing():
                    tally["wrong_body"] += 1
        tally["rounds"] += 1
        if tally["double_winners"] or tally["wrong_body"] or tally["refused_yet_applied"]:
            break  # one is proof enough
    return _judged(name, tally)


def _entry(race: str, number: int) -> bytes:
    """No two writes to one key have equal bytes: if versions are content hashes, a rewrite of
    the same bytes leaves the version unchanged, and the next racer would rightly win as well."""
    return f'{{"race":"{race}","racer":{number}}}'.encode()


def _judged(name: str, tally: dict[str, int]) -> Check:
    rounds = f"{tally['rounds']} races of {tally['clients']} writers"
    if tally["double_winners"]:
        because = f"{tally['double_winners']} of {rounds} had more than one winner"
        return Check(name, CheckOutcome.FAILED, because, tally)
    if tally["wrong_body"]:
        because = f"after {tally['wrong_body']} of {rounds} the winner's object was not there"
        return Check(name, CheckOutcome.FAILED, because, tally)
    if tally["refused_yet_applied"]:
        because = f"after {tally['refused_yet_applied']} of {rounds} a refused write was there"
        return Check(name, CheckOutcome.FAILED, because, tally)
    if tally["winners"] == 0:
        return Check(name, CheckOutcome.UNDECIDED, f"none of {rounds} had a winner", tally)
    because = f"never more than one winner in {rounds}"
    if tally["unknown"]:
        because += f"; {tally['unknown']} losers got neither a yes nor a no, but for example a 5xx"
    return Check(name, CheckOutcome.PASSED, because, tally)
