"""The stateless broker: one process that writes the queue's file for all, and exits when it loses.

It reads the file once, when it enters its own address, and then keeps it in memory. It acknowledges
a write only after it has landed. If anybody else writes the file, the broker fails its open
requests and exits. So two brokers at once cost time but are safe. It listens on loopback only:
clients on two machines replace each other's brokers, which is safe but slow.

    python -m lockkit.recipes.queue.broker URL    until Ctrl-C, SIGTERM, or the end of its parent

A client that finds no broker starts one with `--detach`. That one has its own session and exits
after no client was connected for `--idle` seconds. So none is left over.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from typing import Any

from lockkit.clock import Clock
from lockkit.errors import StoreError
from lockkit.lock.conformance import prove_conditions
from lockkit.recipes.errors import QueueError
from lockkit.recipes.queue.file import Broker
from lockkit.recipes.queue.group import (
    RequestQueue,
    WriterDeposed,
    WriteTicket,
    broker_commit,
    enlist,
)
from lockkit.recipes.queue.jobs import QueuePolicy
from lockkit.recipes.queue.wire import (
    GREETING_BYTES_MAX,
    GREETING_S,
    operation_of,
    outcome_line,
    proof,
    read_line,
    to_line,
)
from lockkit.recipes.queue.write import NotDone, QueueRead, Unsure
from lockkit.runtime import run
from lockkit.sinks.batches import report_batch
from lockkit.stores import open_store

LOOPBACK = "127.0.0.1"
CONNECTIONS_MAX = 512
POLL_S = 0.25
"""How often it checks whether it is still needed."""
FLUSH_S = 2.0
IDLE_S = 30.0
INTERRUPTED = 130


class BrokerServer:
    """The broker of one queue; the file contains its `address` and `id` once it is constructed.

    Raises `WriterDeposed`, `QueueError` or `StoreError` if it cannot be the queue's broker.
    """

    def __init__(
        self, url: str, *, policy: QueuePolicy = QueuePolicy(), clock: Clock | None = None,
        instead_of: str | None = None, idle_s: float | None = None, parent: int | None = None,
        **store_options: Any,
    ) -> None:  # fmt: skip
        self.clock, self.policy = clock or Clock(), policy
        self._idle_ms = None if idle_s is None else idle_s * 1000
        self._parent = parent
        self.store = open_store(url.rstrip("/"), **store_options)
        self._interval_s = self.store.capabilities.write_interval_min_s
        self._listener = socket.create_server((LOOPBACK, 0))
        self.address = "{}:{}".format(*self._listener.getsockname())
        self.id = self.clock.unique()
        try:
            enlisting = enlist(
                Broker(self.address, self.id), policy, instead_of=instead_of,
                interval_s=self._interval_s,
            )  # fmt: skip
            prove_conditions(self.store, self.clock)
            self._seen: QueueRead = run(enlisting, self.store, self.clock)
        except BaseException:
            self._listener.close()
            raise
        self._requests = RequestQueue()
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._door = threading.Lock()
        self._used_ms = self.clock.boot_ms()
        self._stopped = ""

    def stop(self, why: str) -> None:
        """Exit after the current batch; may be called by a signal handler."""
        self._stopped = self._stopped or why

    def serve(self) -> str:
        """Write batches until it must exit; return why."""
        threading.Thread(target=self._accept, name="accept", daemon=True).start()
        try:
            while not self._must_end():
                if tickets := self._requests.take(POLL_S):
                    self._write(tickets)
        finally:
            self._hang_up(f"the broker ended: {self._stopped or 'it was interrupted'}")
        return self._stopped

    def _write(self, tickets: list[WriteTicket]) -> None:
        batch = broker_commit(
            tickets, self.policy, seen=self._seen, who=self.id, interval_s=self._interval_s
        )
        try:
            self._seen = run(batch, self.store, self.clock)
            report_batch(self.store.url, self.id, len(tickets))
        except (WriterDeposed, StoreError, QueueError) as error:
            self.stop(str(error))
            for each in tickets:
                each.settle(NotDone(str(error)))
        finally:
            for each in tickets:
                each.settle(Unsure("the broker was interrupted", self._seen.file.number))

    def _must_end(self) -> bool:
        if self._parent is not None and os.getppid() != self._parent:
            self.stop("its parent ended")
        if self._idle_ms is not None and not self._connections:
            if self.clock.boot_ms() - self._used_ms > self._idle_ms:
                self.stop("no client was connected for a long time")
        return bool(self._stopped)

    # --- connections ---

    def _accept(self) -> None:
        while self._listener.fileno() >= 0:
            try:
                made, _ = self._listener.accept()
            except OSError:  # closed; or too many files are open until a client disconnects
                self.clock.sleep(POLL_S)
                continue
            thread = threading.Thread(target=self._converse, args=(made,), daemon=True)
            with self._door:
                if len(self._connections) >= CONNECTIONS_MAX:
                    made.close()
                    continue
                self._connections[made] = thread
            thread.start()

    def _converse(self, made: socket.socket) -> None:
        """One client, one request at a time."""
        try:
            with made, made.makefile("rb") as file:
                made.settimeout(GREETING_S)
                number = self._seen.file.number
                made.sendall(to_line({"proof": proof("broker", self.id), "number": number}))
                if read_line(file, GREETING_BYTES_MAX).get("proof") != proof("client", self.id):
                    return
                made.settimeout(None)
                while True:
                    operation = operation_of(read_line(file))
                    outcome = self._requests.submit(operation).outcome.result()
                    made.sendall(outcome_line(outcome, self._seen.file.number))
        except (OSError, EOFError, ValueError, TypeError, KeyError):
            return  # it disconnected, or sent garbage; its requests are settled in any case
        finally:
            with self._door:
                del self._connections[made]
                self._used_ms = self.clock.boot_ms()

    def _hang_up(self, why: str) -> None:
        """Send the outcome of open requests to the clients that are still connected."""
        with suppress(OSError):  # macOS does not support it for a listener
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._requests.close(why)
        with self._door:
            left = dict(self._connections)
        for made in left:
            try:
                made.shutdown(socket.SHUT_RD)
            except OSError:
                continue
        until_ms = self.clock.boot_ms() + FLUSH_S * 1000
        for thread in left.values():
            thread.join(max(0.0, (until_ms - self.clock.boot_ms()) / 1000))
        self.store.close()


# --- the process ----------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="lockkit.recipes.queue.broker", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("url", metavar="URL", help="where the queue is: s3://bucket/queues/mail")
    parser.add_argument("--endpoint", help="another server than the provider's own")
    parser.add_argument(
        "--idle", type=float, metavar="S", help="end after so long without a client"
    )
    parser.add_argument("--detach", action="store_true", help="as a client starts it: a line of "
                        "JSON on stdin tells its options, one on stdout where it is")  # fmt: skip
    args = parser.parse_args(arguments)
    settings: dict[str, Any] = {"parent": os.getppid()}
    if args.endpoint:
        settings["endpoint"] = args.endpoint
    if args.detach:
        settings = json.loads(sys.stdin.readline())
        if os.fork():
            os._exit(0)
        os.setsid()
    settings["policy"] = QueuePolicy(**settings.get("policy", {}))
    if args.idle is not None:
        settings["idle_s"] = args.idle
    try:
        broker = BrokerServer(args.url, **settings)
    except (WriterDeposed, QueueError, StoreError, OSError) as error:
        _say({"ended": str(error)})
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: _stop(broker, number))
    _say({"address": broker.address})
    if args.detach:
        _let_go_of_the_terminal()
    why = broker.serve()
    sys.stderr.write(f"the broker at {broker.address} ended: {why}\n")
    return INTERRUPTED if why == _WHY[signal.SIGINT] else 0


_WHY = {signal.SIGTERM: "it was told to end", signal.SIGINT: "Ctrl-C"}


def _stop(broker: BrokerServer, number: int) -> None:
    """Exit after the current batch; a second signal exits at once."""
    broker.stop(_WHY[signal.Signals(number)])
    signal.signal(number, signal.SIG_DFL)


def _say(fields: dict[str, Any]) -> None:
    sys.stdout.buffer.write(to_line(fields))
    sys.stdout.flush()


def _let_go_of_the_terminal() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for each in range(3):
        os.dup2(nowhere, each)


if __name__ == "__main__":
    sys.exit(main())
