"""Apache Hudi on Spark, driven from a test: one process, one order after the other."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from environment import Environment

ANSWER_TIMEOUT_S = 600.0
SIDE = Path(__file__).parent / "hudi_side.py"


class Refused(Exception):
    """What Hudi said instead of doing it."""


class Hudi:
    """One Spark with Hudi's bundle, in a process of its own; starts with its first order."""

    def __init__(self, environment: Environment, endpoint: str, log: Path, **spark: str) -> None:
        self._order = {
            "endpoint": endpoint,
            "classpath": ":".join(map(str, (environment.classes, *environment.jars))),
            "spark": spark,
        }
        self._log = log
        self._process = subprocess.Popen(
            [str(environment.python), str(SIDE)], env=environment.variables, cwd=log.parent,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log.open("w"), text=True,
        )  # fmt: skip
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def send(self, do: str, **order: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({**self._order, "do": do, **order}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """What became of the oldest order; raises `Refused`."""
        line = self._answers.get(timeout=ANSWER_TIMEOUT_S)
        assert line, f"Hudi's process ended: {self._log.read_text()[-2000:]}"
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["ok"]

    def __call__(self, do: str, **order: Any) -> Any:
        self.send(do, **order)
        return self.answer()

    def read(self, url: str, **options: str) -> list[dict[str, Any]]:
        """Every row that the table's source shows, meta columns included."""
        return list(self("read", path=s3a(url), options=options))

    def write(self, url: str, rows: Sequence[Mapping[str, Any]], **order: Any) -> Any:
        return self("write", path=s3a(url), rows=rows, **order)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()


def s3a(url: str) -> str:
    """Hadoop's scheme for an S3 address; a path of this machine stays what it is."""
    return url.replace("s3://", "s3a://", 1)
