"""One of several processes that want one lock: takes it, holds it a while, lets go, and again.

    python -m lockkit.lab.processes.services.contender

The first line of its input names the lock, as JSON.

Its output is its lane of a history. It ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from lockkit.clock import Clock
from lockkit.errors import LockLost, StoreError
from lockkit.events import event
from lockkit.lock.handle import Lock
from lockkit.providers import open_lock
from lockkit.providers.leased import LeasedLock
from lockkit.spark.process import die_with_parent

PATIENCE_S = 2.0
"""Of one acquire; then it looks whether it should end."""
AGAIN_S = 0.5


def contend(
    lock: Lock | LeasedLock, tell: Any, stop: threading.Event, hold_s: float, think_s: float
) -> None:
    clock = Clock()
    while not stop.is_set():
        try:
            if not lock.acquire(timeout=PATIENCE_S):
                continue
            clock.wait(stop, clock.uniform(0.8, 1.2) * hold_s)
            lock.release()
        except (LockLost, StoreError, RuntimeError) as error:
            tell("note", text=f"{type(error).__name__}: {error}"[:500])
            clock.wait(stop, AGAIN_S)
        clock.wait(stop, clock.uniform(0.8, 1.2) * think_s)


def main() -> int:
    asked = json.loads(sys.stdin.readline())
    die_with_parent(asked["parent"])
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # nothing that a library prints may get between the events
    clock, turn = Clock(), threading.Lock()

    def tell(kind: str, **fields: Any) -> None:
        line = event(clock.stamp_ms(), asked["name"], kind, **fields).to_json()
        with turn:
            out.write(line + "\n")

    stop = threading.Event()

    def listen() -> None:
        for _ in sys.stdin:
            pass
        stop.set()

    threading.Thread(target=listen, daemon=True).start()
    lock = open_lock(asked["lock"], emit=tell, **asked["options"])
    contend(lock, tell, stop, asked["hold_s"], asked["think_s"])
    lock.close()
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
