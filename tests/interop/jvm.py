"""A Java program as a party of a test, and the jars that it needs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from environment import Unavailable, run

from lockkit.lab.processes.process import guarded
from lockkit.lab.processes.services.service import ServiceUnavailable, jars
from lockkit.spark.java import NoJava, find_java

CACHE = Path(__file__).parents[2] / ".cache"
PROGRAMS = Path(__file__).parent / "lockclient"
ALONE, WITH_ALL = "master", "default"
"""Of a module: its own jar; those too that its pom says it runs with."""


class Party:
    """A program of `PROGRAMS` in a process of its own, told a command at a time."""

    def __init__(self, program: str, classpath: str, arguments: list[str], log: Path) -> None:
        self._log = log
        command = [java(), "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
                   "-cp", classpath, str(PROGRAMS / program), *arguments]  # fmt: skip
        self._process = subprocess.Popen(
            guarded(*command),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log.open("w"), text=True,
        )  # fmt: skip
        assert self._line() == "ready", log.read_text()

    def __call__(self, command: str) -> bool:
        self.tell(command)
        return self.said()

    def tell(self, command: str) -> None:
        assert self._process.stdin is not None
        print(command, file=self._process.stdin, flush=True)

    def said(self) -> bool:
        line = self._line()
        assert line in ("true", "false"), line or self._log.read_text()[-2000:]
        return line == "true"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(10)

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def fetched(folder: str, modules: dict[tuple[str, str, str], str]) -> str:
    """The class path of these modules ((organisation, name, version): how much of each), had once,
    by the Ivy that pyspark brings; raises `Unavailable`.
    """
    place = CACHE / folder
    rows = "".join(
        f'<dependency org="{org}" name="{name}" rev="{version}" conf="default->{much}"/>'
        for (org, name, version), much in modules.items()
    )
    wanted = (
        '<ivy-module version="2.0"><info organisation="lockkit" module="interop"/>'
        f"<dependencies>{rows}</dependencies></ivy-module>"
    )
    ready, asked = place / "ready.xml", place / "ivy.xml"
    if not ready.exists() or ready.read_text() != wanted:
        place.mkdir(parents=True, exist_ok=True)
        asked.write_text(wanted)
        fetch = [java(), "-cp", _ivy(), "org.apache.ivy.Main", "-cache", str(place / "cache"),
                 "-ivy", str(asked), "-types", "jar", "bundle",
                 "-retrieve", str(place / "[artifact]-[revision].[ext]")]  # fmt: skip
        run(f"{folder} from Maven Central", fetch, dict(os.environ))
        asked.rename(ready)
    return f"{place}/*"


def java() -> str:
    try:
        return str(find_java().home / "bin" / "java")
    except NoJava as missing:
        raise Unavailable(str(missing)) from None


def _ivy() -> str:
    try:
        return str(next(jars().glob("ivy-*.jar")))
    except (ServiceUnavailable, StopIteration) as missing:
        raise Unavailable(f"no pyspark whose Ivy fetches jars: {missing}") from None
