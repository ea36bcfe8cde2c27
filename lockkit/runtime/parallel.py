"""Carries out independent procedures in parallel, each in its own thread."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from lockkit.stores.within import left_s, within

T = TypeVar("T")


def at_once(
    procedures: Sequence[T], run: Callable[[T], Any], stop: threading.Event
) -> tuple[Any, ...]:
    """Run the first one here and each further one in its own thread; all have ended on return.

    `run` ends early once `stop` is set. After Ctrl-C, which only this thread receives, each ends
    with the request that it has sent.
    """
    results: list[Any] = [None] * len(procedures)
    errors: dict[int, BaseException] = {}
    left = left_s()

    def one(place: int) -> None:
        try:
            with within(math.inf if left is None else left):  # threads do not inherit it
                results[place] = run(procedures[place])
        except BaseException as error:  # noqa: BLE001 - raised below, in the calling thread
            errors[place] = error
            if not isinstance(error, Exception):
                stop.set()

    threads = [threading.Thread(target=one, args=(i,)) for i in range(1, len(procedures))]
    alone = [0]
    try:
        for place, thread in enumerate(threads, 1):
            try:
                thread.start()
            except RuntimeError:  # no more threads in this process: one after the other
                alone.append(place)
        for place in alone:
            one(place)
    except BaseException as error:  # noqa: BLE001 - Ctrl-C
        stop.set()
        errors[-1] = error
    while waiting := [thread for thread in threads if thread.is_alive()]:
        try:
            waiting[0].join()
        except KeyboardInterrupt as error:
            stop.set()
            errors[-1] = error
    if errors:
        raise errors[min(errors)]
    return tuple(results)
