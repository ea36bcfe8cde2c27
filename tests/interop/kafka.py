"""Apache Kafka's own broker, and what a producer writes to it."""

from __future__ import annotations

import http.server
import json
import socket
import subprocess
import threading
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from environment import Unavailable
from jvm import WITH_ALL, fetched, java

from lockkit.lab.processes.process import guarded
from lockkit.spark.connect import free_port

KAFKA = ("org.apache.kafka", "kafka_2.13", "3.9.1")
SASL = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="ann" password="pw-of-ann"'
)
START_S = 60.0


class Broker:
    """One broker, whose clients log in by SASL."""

    def __init__(self, folder: Path) -> None:
        self.address, inner, control = (f"127.0.0.1:{free_port()}" for _ in range(3))
        log, file = folder / "kafka.log", folder / "server.properties"
        listeners = f"SASL_PLAINTEXT://{self.address},PLAINTEXT://{inner}"
        file.write_text(
            "process.roles=broker,controller\nnode.id=1\n"
            f"controller.quorum.voters=1@{control}\ncontroller.listener.names=CONTROLLER\n"
            f"listeners={listeners},CONTROLLER://{control}\nadvertised.listeners={listeners}\n"
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,"
            "SASL_PLAINTEXT:SASL_PLAINTEXT\ninter.broker.listener.name=PLAINTEXT\n"
            "sasl.enabled.mechanisms=PLAIN\n"
            f'listener.name.sasl_plaintext.plain.sasl.jaas.config={SASL} user_ann="pw-of-ann";\n'
            f"log.dirs={folder}/data\noffsets.topic.replication.factor=1\nnum.partitions=2\n"
        )
        classes = fetched("kafka-3.9.1", {KAFKA: WITH_ALL})
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        program = [java(), "-Xmx384m", "-cp", classes]
        done = subprocess.run(
            [*program, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(file)],
            capture_output=True, text=True, timeout=START_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        self._process = subprocess.Popen(
            guarded(*program, "kafka.Kafka", str(file)),
            stdout=log.open("w"), stderr=subprocess.STDOUT,
        )
        end = time.monotonic() + START_S
        while not _answers(self.address):
            if time.monotonic() > end or self._process.poll() is not None:
                self.close()
                raise AssertionError(log.read_text()[-2000:])
            time.sleep(0.2)

    @property
    def login(self) -> dict[str, str]:
        return {
            "bootstrap.servers": self.address, "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN", "sasl.jaas.config": f"{SASL};",
        }  # fmt: skip

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)


@contextmanager
def registry() -> Iterator[str]:
    """The address of a schema registry, as far as Confluent's serializer and a reader ask it."""
    known: list[str] = []

    class Schemas(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["schema"]
            if said not in known:
                known.append(said)
            self._answer({"id": known.index(said) + 1, "version": 1, "schema": said})

        def do_GET(self) -> None:
            if self.path.startswith("/schemas/ids/"):
                number = int(self.path.split("?")[0].rpartition("/")[2])
                self._answer({"schema": known[number - 1]})
            else:
                self._answer({"schema": known[-1], "id": len(known), "version": len(known)})

        def _answer(self, said: Any) -> None:
            body = json.dumps(said).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Schemas)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 1).close()
    except OSError:
        return False
    return True


__all__ = ["Broker", "Unavailable", "registry"]
