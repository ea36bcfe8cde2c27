"""The embedded server in a process of its own, so that its work is not taken for its clients'."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lockkit.events import Event
from lockkit.lab.server import Emulator


def _serve(pipe: Any, profile: str) -> None:
    seen: Counter[tuple[str, str]] = Counter()
    arrived: dict[str, list[float]] = {}

    def count(event: Event) -> None:
        seen[(event["bucket"], event["method"])] += 1
        arrived.setdefault(event["bucket"], []).append(event["began_ms"])

    with Emulator(on_request=count, profile=profile) as server:
        pipe.send(server.s3)
        while (order := pipe.recv()) is not None:
            if isinstance(order, float):
                server.latency_ms = order
                pipe.send(order)
            elif isinstance(order, tuple):
                pipe.send(sorted(arrived.get(order[0], ())))
            else:
                pipe.send({method: n for (bucket, method), n in seen.items() if bucket == order})


class Server:
    """`s3` is its address; each request takes `latency` ms more, concurrent ones at once."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self.s3: str = pipe.recv()

    def latency(self, ms: float) -> None:
        self._ask(float(ms))

    def requests(self, bucket: str) -> Counter[str]:
        """By method, whatever was asked of this bucket until now, by the server's own record."""
        return Counter(self._ask(bucket))

    def arrivals_ms(self, bucket: str) -> list[float]:
        """When each request to this bucket arrived, in order, by the server's clock."""
        return list(self._ask((bucket,)))

    def _ask(self, order: object) -> Any:
        self._pipe.send(order)
        return self._pipe.recv()


@contextmanager
def serving(profile: str = "aws") -> Iterator[Server]:
    """`gcs`: one write a second to an object."""
    spawn = multiprocessing.get_context("spawn")
    mine, its = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(its, profile), daemon=True)
    process.start()
    its.close()  # so that the death of the one who has the other copy shows
    try:
        yield Server(mine)
        mine.send(None)
        process.join(10)
    finally:
        process.terminate()
