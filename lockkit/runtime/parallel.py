"""Carries out independent procedures in parallel, each in its own thread."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

from lockkit.stores.within import left_s, within


def at_once(
    procedures: Sequence[Any], run: Callable[[Any, Any], Any], stop: threading.Event,
    stopped: type[BaseException],
) -> tuple[Any, ...]:
    """Run the first one here and each further one in its own thread; all have ended on return.

    One that ends without a request gets no thread. `run`, given a procedure and its first request,
    raises `stopped` once `stop` is set. After Ctrl-C, which only this thread receives, each ends
    with the request that it has sent.
    """
    results: list[Any] = [None] * len(procedures)
    requests, errors = dict[int, Any](), dict[int, BaseException]()
    left: float | None = None

    def one(place: int) -> None:
        try:
            with within(math.inf if left is None else left):  # threads do not inherit it
                if place in requests:
                    results[place] = run(procedures[place], requests[place])
                else:
                    requests[place] = procedures[place].send(None)
        except StopIteration as done:
            results[place] = done.value
        except BaseException as error:  # noqa: BLE001 - raised below, in the calling thread
            errors[place if isinstance(error, Exception | stopped) else -1] = error
            if not isinstance(error, Exception):
                stop.set()

    for place in range(len(procedures)):
        one(place)
    left = left_s()  # what these first steps have left of it
    alone, others = list(requests)[:1], list(requests)[1:]
    threads = [threading.Thread(target=one, args=(place,)) for place in others]
    try:
        for place, thread in zip(others, threads, strict=True):
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
