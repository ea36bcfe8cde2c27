"""Microsoft's own emulator of Azure blobs, as installed by `make peers`."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from lockkit.lab.processes.services.dynamodb import PEERS, node
from lockkit.lab.processes.services.service import Service, ServiceUnavailable, ask
from lockkit.stores.azure import API_VERSION, DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY

QUESTION = b"GET / HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n"
SCRIPT = "dist/src/blob/main.js"
CONTAINER = "locks"


class Azurite(Service):
    """Azurite with one container, and Microsoft's well-known account and key for development."""

    name = "azurite"

    @property
    def endpoint(self) -> str:
        return f"http://{self.address}/{DEVELOPMENT_ACCOUNT}"

    @property
    def url(self) -> str:
        return f"azure-lease://{CONTAINER}/orders?account_url={self.endpoint}"

    def command(self) -> list[str]:
        at = Path(os.environ.get("LOCKKIT_AZURITE", PEERS / "azurite"))
        if not (at / SCRIPT).exists():
            raise ServiceUnavailable(
                "npm's azurite", "is not installed",
                "make peers (or set LOCKKIT_AZURITE to its folder)",
            )  # fmt: skip
        return [
            node(), str(at / SCRIPT), "--silent", "--location", str(self.folder / "data"),
            "--blobHost", "127.0.0.1", "--blobPort", str(self.port),
        ]  # fmt: skip

    def answers(self) -> bool:
        return ask(self.port, QUESTION).startswith(b"HTTP/")

    def ready(self) -> None:
        from azure.core.exceptions import ResourceExistsError
        from azure.storage.blob import ContainerClient

        super().ready()
        container = ContainerClient(
            self.endpoint, CONTAINER, credential=DEVELOPMENT_KEY, api_version=API_VERSION
        )
        with suppress(ResourceExistsError):
            container.create_container()

    def recipe(self) -> dict[str, str]:
        return {}  # Hudi has no lock by a blob's lease
