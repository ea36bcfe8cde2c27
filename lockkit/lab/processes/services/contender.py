"""One of several processes that want one lock: acquires, holds and releases it, repeatedly.

`child.ChildProcess` starts it with the lock's address, its options and the two times.
"""

from __future__ import annotations

import threading

from lockkit.clock import Clock
from lockkit.errors import LockLost, StoreError, clipped
from lockkit.lab.processes.child import Channel, serve
from lockkit.lock.handle import Lock
from lockkit.providers import open_lock
from lockkit.providers.leased import LeasedLock
from lockkit.sinks import Emit

PATIENCE_S = 2.0
"""Of one acquire; then it looks whether it should end."""
AGAIN_S = 0.5


def contend(
    lock: Lock | LeasedLock, emit: Emit, stop: threading.Event, hold_s: float, think_s: float
) -> None:
    clock = Clock()
    while not stop.is_set():
        try:
            if not lock.acquire(timeout=PATIENCE_S):
                continue
            clock.wait(stop, clock.uniform(0.8, 1.2) * hold_s)
            lock.release()
        except (LockLost, StoreError, RuntimeError) as error:
            emit("note", text=clipped(f"{type(error).__name__}: {error}", 500))
            clock.wait(stop, AGAIN_S)
        clock.wait(stop, clock.uniform(0.8, 1.2) * think_s)


def main(channel: Channel) -> int:
    settings = channel.settings
    channel.listen(grace_s=2 * PATIENCE_S)
    lock = open_lock(settings["lock"], emit=channel.emit, **settings["options"])
    contend(lock, channel.emit, channel.stop, settings["hold_s"], settings["think_s"])
    lock.close()
    return 0


if __name__ == "__main__":
    serve(main)
