"""Lock services that tests share, a wire to them that can be cut, and Curator as a rival."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from lockkit.lab.processes.services.service import Service, ServiceUnavailable, jars, java

CURATOR = Path(__file__).with_name("CuratorParty.java")
CHUNK = 65536


def running(kind: type[Service], folder: Any, **options: Any) -> Iterator[Service]:
    """Until the session ends; what is not on this machine is skipped, with how to get it."""
    service = kind(folder, **options)
    try:
        service.start()
    except ServiceUnavailable as missing:
        pytest.skip(str(missing))
    yield service
    service.stop()


class Wire:
    """A way to a service through this process. `lose(after)` cuts it once the service has got a
    message with these bytes in it and has answered: the answer is lost. `refuse` cuts it until
    `admit`.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.lost = threading.Event()
        self._after: bytes | None = None
        self._refusing = False
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def lose(self, after: bytes) -> None:
        self.lost.clear()
        self._after = after

    def refuse(self) -> None:
        self._refusing = True

    def admit(self) -> None:
        self._refusing = False

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        cut = False
        with near, suppress(OSError), socket.create_connection(("127.0.0.1", self._to)) as far:
            while True:
                ready, _, _ = select.select([near, far], [], [])
                for each in ready:
                    if self._refusing:
                        return
                    data = each.recv(CHUNK)
                    if each is near and self._after is not None and self._after in data:
                        cut, self._after = True, None
                    if each is far and cut:
                        self.lost.set()
                        return
                    if not data:
                        return
                    (far if each is near else near).sendall(data)


class Curator:
    """A JVM with Curator's InterProcessMutex, which Hudi locks with."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, what: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()


@contextmanager
def curator(address: str, path: str) -> Iterator[Curator]:
    command = [
        *java("128m"), "-Dlog4j2.level=OFF", "-cp", f"{jars()}/*",
        "org.codehaus.janino.SimpleCompiler", str(CURATOR), CURATOR.stem, address, path,
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    try:
        yield Curator(process)
    finally:
        process.kill()
        process.communicate()
