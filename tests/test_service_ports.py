"""A service on a port that was free: another server may have it when the service starts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lockkit.lab.processes.services.dynamodb import DynamoDB
from lockkit.lab.processes.services.objects import ObjectServer
from lockkit.lab.processes.services.service import PortTaken, Service


@pytest.fixture
def stranger() -> Iterator[int]:
    """The port of another HTTP server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.mark.parametrize("kind", [ObjectServer, DynamoDB], ids=["objects", "dynamodb"])
def test_a_service_whose_port_another_server_took_meanwhile_starts_on_another(
    kind: type[Service], stranger: int, tmp_path: Path
) -> None:
    service = kind(tmp_path)
    service.port = stranger
    with service:
        assert service.port != stranger and service.listens() and service.answers()


def test_a_service_with_a_port_that_its_caller_named_says_that_another_server_has_it(
    stranger: int, tmp_path: Path
) -> None:
    with pytest.raises(PortTaken, match="another server on its port"):
        ObjectServer(tmp_path, port=stranger).start()
