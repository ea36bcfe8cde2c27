"""What a conditional read saves: 304 against the whole object, measured alternately.

A client that waits for an object to change (a contender, a reader of a log) polls it. If the store
answers 304, a poll costs one round trip and no bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from lockkit.clock import Clock
from lockkit.errors import NoAnswer
from lockkit.lab.probe.serial import delete, put
from lockkit.protocol.outcome import (
    Applied,
    Found,
    IfAbsent,
    Missing,
    NotModified,
    ReadAnswer,
    Throttled,
    Unknown,
)
from lockkit.runtime import run
from lockkit.sinks import Emit, silent
from lockkit.stores import Store

SCRATCH = ".lockkit_bench"
SIZES = (1 << 10, 1 << 20)
"""The sizes of a lock's record and of a cached view, in bytes."""
SIZE_BYTES_MAX = 64 << 20
REPORT_MS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """Reads of one kind, of one object, by one client after another."""

    size: int
    kind: str
    """`whole` or `conditional`."""
    took_ms: tuple[float, ...]
    unchanged: int
    """How many were answered 304."""
    bytes_each: float

    @property
    def p50_ms(self) -> float:
        return percentile(self.took_ms, 0.50)

    @property
    def p99_ms(self) -> float:
        return percentile(self.took_ms, 0.99)

    @property
    def per_s(self) -> float:
        return 1000 * len(self.took_ms) / sum(self.took_ms)


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest rank, so always a measured value."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def compare_reads(
    store: Store,
    *,
    requests: int = 200,
    sizes: Sequence[int] = SIZES,
    emit: Emit = silent,
) -> list[Reads]:
    """For each size: `requests` whole reads and as many conditional ones, alternately.

    The scratch objects are deleted afterwards. Raises `NoAnswer` if the store does not answer,
    and `StoreError` if it cannot be used.
    """
    clock = Clock()
    place, found = f"{SCRATCH}/{clock.unique()}", []
    for size in sizes:
        key = f"{place}/{size}"
        try:
            found += _interleaved(store, key, size, requests, clock, emit)
        finally:
            run(delete(key), store, clock)
    return found


def _interleaved(
    store: Store, key: str, size: int, requests: int, clock: Clock, emit: Emit
) -> list[Reads]:
    written = run(put(key, bytes(size), IfAbsent()), store, clock)
    if not isinstance(written, Applied):
        raise NoAnswer(f"{store.url}: {size} bytes could not be written ({written}); try again")
    took_ms: dict[str, list[float]] = {"whole": [], "conditional": []}
    unchanged, received = dict.fromkeys(took_ms, 0), dict.fromkeys(took_ms, 0)
    reported_ms = clock.boot_ms()
    for number in range(requests):
        # The first read pays for a cold connection, so the two kinds alternate in that too.
        for kind in sorted(took_ms, reverse=bool(number % 2)):
            began_ms = clock.stamp_ms()
            answer = store.get(key, unless=written.version if kind == "conditional" else None)
            took_ms[kind].append(max(clock.stamp_ms() - began_ms, 1e-3))
            received[kind] += _bytes(answer, store.url)
            unchanged[kind] += isinstance(answer, NotModified)
        if clock.boot_ms() - reported_ms > REPORT_MS:
            reported_ms = clock.boot_ms()
            emit("note", text=f"{size} bytes: {number + 1} of {requests} of each kind")
    return [
        Reads(
            size=size, kind=kind, took_ms=tuple(took_ms[kind]), unchanged=unchanged[kind],
            bytes_each=received[kind] / requests,
        )
        for kind in took_ms
    ]  # fmt: skip


def _bytes(answer: ReadAnswer, url: str) -> int:
    match answer:
        case Found(body):
            return len(body)
        case NotModified():
            return 0
        case Unknown(why):
            raise NoAnswer(f"{url}: a read was not answered: {why}; try again")
        case Throttled():
            raise NoAnswer(f"{url}: the store was too busy to answer a read; try again later")
        case Missing():
            raise NoAnswer(
                f"{url}: the probe's own object is gone; "
                "check whether another program deletes objects there"
            )
        case _:
            assert_never(answer)


def saved(reads: Sequence[Reads]) -> str:
    """One sentence: what 304 saves, per size."""
    said = []
    for whole, conditional in zip(reads[::2], reads[1::2], strict=True):
        if conditional.unchanged < len(conditional.took_ms):
            return "The store does not answer 304: a conditional read costs as much as a full read."
        ratio = whole.p50_ms / conditional.p50_ms
        said.append(f"{ratio:.1f} times as fast for {whole.size:,} bytes")
    return f"A conditional read (304) was {', '.join(said)} as a full read (p50)."
