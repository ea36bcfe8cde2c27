"""A service: one child process on loopback, with its data and its log in a folder."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import IO, Self

import psutil

from lockkit.clock import Clock
from lockkit.errors import StatedError
from lockkit.lab.processes.process import from_lasting_thread, guarded, kill_tree, tree
from lockkit.spark.connect import free_port, spark_home
from lockkit.spark.java import NoJava, find_java

READY_S_MAX = 90.0
READY_POLL_S = 0.05
STOP_S_MAX = 10.0
ANSWER_S = 2.0
LOG_LINES = 12
PORTS_MAX = 5


class ServiceUnavailable(StatedError, RuntimeError):
    """A service needs `what`, which is missing; `cure` says how to get it."""


class ServiceStartFailed(StatedError, RuntimeError):
    """The service was started and does not answer; the message quotes its last output."""


class PortTaken(ServiceStartFailed):
    """Another server had its port when it started."""


class Service(ABC):
    """Can be started and stopped repeatedly on one port. `with` starts and stops it.

    Linux ends the process with the *thread* that started it.
    """

    name = "a service"

    def __init__(self, folder: Path | str, *, port: int | None = None) -> None:
        self.folder = Path(folder)
        self._any_port = port is None
        """Whether it was never started, and no caller has named the port."""
        self.port = port or free_port()
        self.log = self.folder / f"{self.name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """The command to run; writes the configuration first. Raises `ServiceUnavailable`."""

    @abstractmethod
    def answers(self) -> bool:
        """Check once whether it serves."""

    @abstractmethod
    def recipe(self) -> dict[str, str]:
        """Hudi's configuration for a lock of this service; empty if Hudi has none."""

    @property
    @abstractmethod
    def url(self) -> str:
        """A lock here, for `lockkit.open_lock`."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process.pid

    def start(self) -> Self:
        """Returns once it serves. Raises `ServiceUnavailable`, `ServiceStartFailed`."""
        for _ in range(PORTS_MAX if self._any_port else 1):
            self.launch()
            try:
                self.ready()
            except PortTaken as taken:
                refused: ServiceStartFailed = taken
                if self._any_port:
                    self.port = self.another_port()
            else:
                self._any_port = False
                return self
        raise refused

    def another_port(self) -> int:
        return free_port()

    def listens(self) -> bool:
        """Whether this very process has the port: another server may have taken it meanwhile."""
        try:
            return ask_any(self.port) and any(  # the second takes a hundred times as long
                each.status == psutil.CONN_LISTEN and each.laddr.port == self.port
                for process in tree(self.pid)
                for each in process.net_connections("tcp")
            )
        except psutil.Error:
            return False

    def launch(self) -> None:
        """Raises `ServiceUnavailable`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = self.command()
        with self.log.open("ab") as log:
            self._process = _child(command, self.folder, log)

    def ready(self) -> None:
        """Returns once it serves. If it does not start, ends it and raises `ServiceStartFailed`."""
        assert self._process is not None
        clock = Clock()
        end_ms = clock.boot_ms() + READY_S_MAX * 1000
        try:
            while not (self.listens() and self.answers()):
                if self._process.poll() is not None:
                    if ask_any(self.port):
                        raise self._failed("found another server on its port", PortTaken)
                    raise self._failed(f"ended with {self._process.returncode}")
                if clock.boot_ms() > end_ms:
                    raise self._failed(f"did not answer in {READY_S_MAX:.0f} s")
                clock.sleep(READY_POLL_S)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Ask it to end; kill it if it does not."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: data that is not on disk is lost."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Pause it: no answers until `thaw`."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        try:
            if process.poll() is None:
                process.send_signal(number)
                process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            pass
        finally:
            kill_tree(process.pid)  # and all that it left
            process.wait(STOP_S_MAX)

    def _failed(
        self, why: str, kind: type[ServiceStartFailed] | None = None
    ) -> ServiceStartFailed:
        try:
            tail = self.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        except OSError:
            tail = []
        ending = "\n".join([f"see the end of {self.log}:", *tail])
        return (kind or ServiceStartFailed)(f"{self.name} at {self.address}", why, ending)


def ask_any(port: int) -> bool:
    """Whether somebody listens there."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S):
        return True
    return False


def ask(port: int, question: bytes) -> bytes:
    """A server's answer to a few bytes; empty if there is no server."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S) as wire:
            wire.sendall(question)
            return wire.recv(4096)
    except OSError:
        return b""


def java(heap: str) -> list[str]:
    """The command of a small JVM. Raises `ServiceUnavailable`."""
    try:
        found = find_java().home / "bin" / "java"
    except NoJava as error:
        raise ServiceUnavailable(error.what, error.why, error.cure) from None
    return [
        str(found), f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
        "-XX:-UsePerfData", "-Djava.io.tmpdir=.", "-Dlog4j2.level=WARN",
    ]  # fmt: skip


def jars() -> Path:
    """The folder of pip's pyspark with its jars. Raises `ServiceUnavailable`."""
    try:
        return spark_home() / "jars"
    except ModuleNotFoundError as error:
        what, _, cure = str(error).partition(": ")
        raise ServiceUnavailable(what, "", cure) from None


def _child(command: list[str], folder: Path, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start it in its own process group, so that only we pass on a terminal's Ctrl-C."""
    return from_lasting_thread(lambda: subprocess.Popen(
        guarded(*command), cwd=folder,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[4])},
        stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0,
    ))  # fmt: skip
