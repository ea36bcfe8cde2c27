"""A batch of operations under granular locks: in parallel, with one result each, not atomic.

Ozone divides `deleteKeys` and `renameKeys` among threads. Each thread runs the single operation
with its own locks. S3's DeleteObjects likewise answers for each key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from lockkit.config import limit_s
from lockkit.errors import LockBusy
from lockkit.recipes.errors import OutOfOrder
from lockkit.recipes.granular.locks import GranularLocks
from lockkit.recipes.granular.operations import KEY_OPERATIONS

THREADS = 8

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OperationDone:
    """The operation ran under its locks and returned `value`."""

    value: Any


@dataclass(frozen=True, slots=True)
class OperationFailed:
    """The operation began and raised `error`. It may have done a part of its work."""

    error: Exception


@dataclass(frozen=True, slots=True)
class OperationNotBegun:
    """The operation did not begin: its locks were not free in time."""

    why: str


def run_batch(
    locks: GranularLocks, operation: str, volume: str, bucket: str, items: Iterable[Names],
    do: Callable[[Names], Any], *, acquire_timeout: float | None, threads: int = THREADS,
) -> dict[Names, OperationDone | OperationFailed | OperationNotBegun]:  # fmt: skip
    """Call `do(item)` for each item (a tuple of keys) under the locks of the key operation.

    All items must begin within `acquire_timeout` seconds from now. A repeated item is done once.
    Raises `OutOfOrder` if the calling thread holds a lock.

    :param locks: the process's locks.
    :param operation: the name of a key operation.
    :param volume, bucket: where the keys are.
    :param items: tuples of keys.
    :param do: called with each item.
    :param acquire_timeout: seconds; None: no limit.
    :param threads: how many items run at once, at most.
    """
    if locks.holds():
        # Its threads would wait for this thread's locks, or behind a writer that waits for them.
        raise OutOfOrder(
            "a batch within a held lock", "would wait for its own caller", "release the lock first"
        )
    row, most_s = KEY_OPERATIONS[operation], limit_s(True, acquire_timeout)
    began_ms = locks.clock.boot_ms()

    def one(item: Names) -> OperationDone | OperationFailed | OperationNotBegun:
        spent_s = (locks.clock.boot_ms() - began_ms) / 1000
        left_s = None if most_s is None else max(0.0, most_s - spent_s)
        try:
            with locks.hold(row, volume, bucket, item, acquire_timeout=left_s):
                try:
                    return OperationDone(do(item))
                except Exception as error:  # noqa: BLE001 - returned for its item
                    return OperationFailed(error)
        except LockBusy as busy:
            return OperationNotBegun(str(busy))

    each_once = list(dict.fromkeys(items))
    pool = ThreadPoolExecutor(threads, thread_name_prefix="batch")
    try:
        return dict(zip(each_once, pool.map(one, each_once), strict=True))
    finally:
        pool.shutdown(cancel_futures=True)
