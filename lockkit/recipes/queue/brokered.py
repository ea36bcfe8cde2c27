"""A queue through its broker, which the file names and which is started if there is none.

A request that was interrupted is sent again under its id, with the number of the last write that it
was certainly not in. From the file the next broker knows whether it was done.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any
from weakref import WeakSet

from lockkit.recipes.errors import ForeignBroker, NoBroker, QueueBusy, QueueError, QueueUnknown
from lockkit.recipes.queue.broker import IDLE_S
from lockkit.recipes.queue.file import Broker
from lockkit.recipes.queue.group import Outcome
from lockkit.recipes.queue.handle import Queue, again, answer_or_raise
from lockkit.recipes.queue.operations import Answer, Operation
from lockkit.recipes.queue.wire import BrokerConnection, connect
from lockkit.recipes.queue.write import NotDone, Unsure, load
from lockkit.runtime import Procedure, Sleep, run
from lockkit.runtime.proven import pause_s

TRIES_MAX = 10
"""Brokers that are contacted or started for one request."""
START_S_MAX = 60.0
WHY_CHARS = 500


class NotTheBroker(UserWarning):
    """Another server answers at the address in the file; a new broker replaces it."""


@dataclass(frozen=True, slots=True)
class BrokerGone:
    """The broker is not there; no request was sent."""

    why: str


Ask = Callable[[Broker, Operation], Procedure[Outcome | BrokerGone]]
Start = Callable[[Broker | None], Procedure[str]]
"""Returns why none could be started, or ""."""


@dataclass(slots=True)
class KnownBroker:
    """The broker that the file named when it was last read."""

    broker: Broker | None = None


def through(operation: Operation, known: KnownBroker, ask: Ask, start: Start) -> Procedure[Answer]:
    """Send it to the broker; if that is gone, start another. Raises as `answer_or_raise` does."""
    why = "no broker was there"
    for tries in range(TRIES_MAX):
        broker = known.broker or (yield from load()).file.broker
        if broker is None:
            if failed := (yield from start(None)):
                why = failed
                yield Sleep(pause_s(tries))
            continue
        known.broker = broker
        match (yield from ask(broker, operation)):
            case BrokerGone(why):
                known.broker = None
                why = (yield from start(broker)) or why
            case NotDone(why):
                known.broker = None
            case Unsure(why, since):
                known.broker, operation = None, again(operation, since)
            case answer:
                return answer_or_raise(operation, answer)
        yield Sleep(pause_s(tries))
    if operation.since is not None:
        raise QueueUnknown(operation, why)
    raise QueueBusy("no broker", f"could do it in {TRIES_MAX} tries ({why})", "try again later")


class BrokerQueue(Queue):
    """A queue whose broker writes for all processes; each thread has its own connection.

    :param idle_s: a broker that it starts exits so long after its last client has disconnected.
    :param options: those of `Queue`.
    """

    def __init__(self, url: str, *, idle_s: float = IDLE_S, **options: Any) -> None:
        super().__init__(url, **options)
        self._idle_s = idle_s
        self._known = KnownBroker()
        self._mine = threading.local()
        self._links: WeakSet[BrokerConnection] = WeakSet()
        self._starting = threading.Lock()

    def submit(self, operation: Operation) -> Answer:
        self._enter()
        asking = through(operation, self._known, self._ask, self._start)
        return run(asking, self.store, self.clock)

    def close(self) -> None:
        for link in list(self._links):
            link.close()
        super().close()

    def _ask(self, broker: Broker, operation: Operation) -> Procedure[Outcome | BrokerGone]:
        yield from ()
        link: BrokerConnection | None = getattr(self._mine, "link", None)
        if link is None or link.broker != broker:
            self._hang_up(link)
            try:
                link = self._mine.link = connect(broker)
            except ForeignBroker as error:
                warnings.warn(NotTheBroker(str(error)), stacklevel=2)
                return BrokerGone(str(error))
            except NoBroker as error:
                return BrokerGone(str(error))
            self._links.add(link)
        outcome = link.ask(operation)
        if isinstance(outcome, Unsure | NotDone):
            self._hang_up(link)
        return outcome

    def _hang_up(self, link: BrokerConnection | None) -> None:
        self._mine.link = None
        if link is not None:
            self._links.discard(link)
            link.close()

    def _start(self, dead: Broker | None) -> Procedure[str]:
        with self._starting:
            if (yield from load()).file.broker == dead:  # else another client was faster
                return self._launch(dead)
        return ""

    def _launch(self, dead: Broker | None) -> str:
        """Return why it exited before serving, or "". Raises `QueueError` if none can start."""
        options = self.store.options
        settings = {
            "policy": asdict(self.policy), "instead_of": dead.id if dead else "",
            "idle_s": self._idle_s, "endpoint": options.endpoint, "timeout_s": options.timeout_s,
            "client": options.client, **options.extra,
        }  # fmt: skip
        command = [sys.executable, "-m", "lockkit.recipes.queue.broker", self.url, "--detach"]
        by_hand = f"start one yourself: python -m lockkit.recipes.queue.broker {self.url}"
        try:
            line = json.dumps(settings).encode() + b"\n"  # by stdin: options may be credentials
        except TypeError:
            raise QueueError("a broker", "cannot be handed these store options", by_hand) from None
        try:
            said = subprocess.run(
                command, input=line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                timeout=START_S_MAX, check=False,
            ).stdout  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise QueueError("no broker", f"could be started ({error})", by_hand) from None
        try:
            return str(json.loads(said).get("ended", ""))[:WHY_CHARS]
        except (ValueError, AttributeError):  # killed while it started, say
            return f"the broker that was started ended without a message; {by_hand}"
