"""The embedded object server as a process of its own: it can be killed and started again."""

from __future__ import annotations

import sqlite3
import sys

from lockkit.services.service import Service, ask

QUESTION = b"GET / HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n"


class ObjectServer(Service):
    """Speaks S3 on `port`; every request is in the record of its database."""

    name = "storage"

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
        """The third of its addresses, which follow one another."""
        return f"http://127.0.0.1:{self.port + 2}"

    @property
    def url(self) -> str:
        return "s3://lake/orders"

    def requests(self) -> int:
        """How many it has answered, by its own record."""
        record = sqlite3.connect(f"file:{self.folder / 'store.sqlite'}?mode=ro", uri=True)
        try:
            (count,) = record.execute("SELECT count(*) FROM requests").fetchone()
        finally:
            record.close()
        return int(count)

    def recipe(self) -> dict[str, str]:
        return {
            "hoodie.write.lock.provider":
                "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider",
            "hoodie.base.path": self.url,
        }  # fmt: skip
