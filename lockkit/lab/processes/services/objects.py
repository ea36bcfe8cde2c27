"""The embedded object server in a separate process: it can be killed and restarted."""

from __future__ import annotations

import sys
from pathlib import Path

from lockkit.lab.processes.services.service import Service, ask
from lockkit.spark.connect import free_port

QUESTION = b"GET / HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n"
ADDRESSES = 3
"""Of S3, GCS and Azure; their ports are consecutive."""


class ObjectServer(Service):
    """Speaks S3 on `port`; every request is in the record of its database."""

    name = "storage"

    def __init__(self, folder: Path | str, *, port: int | None = None) -> None:
        super().__init__(folder, port=port or free_port(ADDRESSES))
        self._any_port = port is None

    def another_port(self) -> int:
        return free_port(ADDRESSES)

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
