"""What other libraries do when several writers append to one table: their rate and their waits."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from importlib.util import find_spec

import pyarrow as pa

from lockkit.clock import Clock
from lockkit.lab.server import Emulator
from lockkit.lab.widgets.ui import FAST

LATENCY_MS = 60.0


def peers() -> str:
    """Appends by deltalake and pylance, in threads and in real time, on a store of 60 ms.

    A library that is not installed is named; nothing is installed for it.
    """
    fast = bool(os.environ.get(FAST))
    writers = 2 if fast else 4
    seconds = 1.0 if fast else PEERS_S
    lines = []
    for name, module, make in PEERS:
        if find_spec(module) is None:
            lines.append(f"{name:<10} is not installed")
            continue
        with Emulator(latency_ms=LATENCY_MS) as server:
            made, longest_s = _contended(make(server.s3), writers, seconds)
        lines.append(f"{name:<10} {sum(made) / seconds:4.1f} commits/s by {writers} writers, "
                     f"longest wait {longest_s:.1f} s, {min(made)} to {max(made)} commits each")
    return "\n".join(lines)


def _contended(
    append: Callable[[int], None], writers: int, seconds: float
) -> tuple[list[int], float]:
    """How many commits each writer made, and the longest wait, also of one that waits at the end.

    An append that is refused is tried again.
    """
    clock, made, longest_s = Clock(), [0] * writers, [0.0] * writers
    ends_ms = clock.boot_ms() + seconds * 1000

    def work(number: int) -> None:
        began_ms = clock.boot_ms()
        while clock.boot_ms() < ends_ms:
            try:
                append(number)
            except Exception:  # noqa: BLE001 - a conflict, which each library names differently
                continue
            if (now_ms := clock.boot_ms()) < ends_ms:
                made[number] += 1
                longest_s[number] = max(longest_s[number], (now_ms - began_ms) / 1000)
                began_ms = now_ms
        longest_s[number] = max(longest_s[number], (ends_ms - began_ms) / 1000)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(writers)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return made, max(longest_s)


KEYS = {"aws_access_key_id": "lockkit", "aws_secret_access_key": "lockkit",
        "aws_region": "us-east-1", "aws_allow_http": "true"}  # fmt: skip


def _delta(endpoint: str) -> Callable[[int], None]:
    import deltalake

    rows = pa.table({"id": [1, 2, 3]})
    options = KEYS | {"aws_endpoint_url": endpoint, "aws_conditional_put": "etag"}
    url = "s3://lake/orders"
    deltalake.write_deltalake(url, rows, storage_options=options)

    def append(_: int) -> None:
        deltalake.write_deltalake(url, rows, mode="append", storage_options=options)

    return append


def _lance(endpoint: str) -> Callable[[int], None]:
    import lance

    rows = pa.table({"id": [1, 2, 3]})
    options = {**KEYS, "aws_endpoint": endpoint, "allow_http": "true"}
    url = "s3://lake/orders.lance"
    lance.write_dataset(rows, url, storage_options=options)

    def append(_: int) -> None:
        lance.write_dataset(rows, url, mode="append", storage_options=options)

    return append


PEERS = (("deltalake", "deltalake", _delta), ("pylance", "lance", _lance))
PEERS_S = 5.0
