"""The embedded object server in a separate process: it can be killed and restarted."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from lockkit.clock import Clock
from lockkit.lab.processes.services.service import Service, ask

QUESTION = b"GET / HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n"
PORTS = (20_000, 31_000)
"""Below those that the kernel gives away by itself: the server must find its own free again."""
PORT_TRIES_MAX = 50


class ObjectServer(Service):
    """Speaks S3 on `port`; every request is in the record of its database."""

    name = "storage"

    def __init__(self, folder: Path | str, *, port: int | None = None) -> None:
        super().__init__(folder, port=port or free_ports(Clock()))
        self._any_port = port is None

    def another_port(self) -> int:
        return free_ports(Clock())

    def command(self) -> list[str]:
        return [
            sys.executable, "-m", "lockkit", "serve", "--port", str(self.port),
            "--db", str(self.folder / "store.sqlite"),
        ]  # fmt: skip

    def answers(self) -> bool:
        return ask(self.port, QUESTION).startswith(b"HTTP/")

    @property
    def endpoint(self) -> str:
        return f"http://{self.address}"

    @property
    def azure(self) -> str:
        """The third of its addresses; their ports are consecutive."""
        return f"http://127.0.0.1:{self.port + 2}"

    @property
    def url(self) -> str:
        return "s3://lake/orders"

    def recipe(self) -> dict[str, str]:
        return {
            "hoodie.write.lock.provider":
                "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider",
            "hoodie.base.path": self.url,
        }  # fmt: skip


def free_ports(clock: Clock) -> int:
    """The first of three consecutive loopback ports that are free now."""
    for _ in range(PORT_TRIES_MAX):
        first = int(clock.uniform(*PORTS))
        try:
            for port in range(first, first + 3):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise OSError(f"no three free ports in a row were found in {PORT_TRIES_MAX} tries")
