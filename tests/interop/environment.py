"""The environment that Apache Hudi runs in: a PySpark of its own, its jars, a Java compiler.

Made once, in .cache/interop; what it needs from outside is PyPI and Maven Central.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lockkit.spark.java import FOREIGN, NoJava, find_java

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "interop"
PYSPARK = "pyspark==3.5.9"
HUDI = "1.2.0"
BUNDLE = f"org.apache.hudi:hudi-spark3.5-bundle_2.12:{HUDI}"
# Of the Hadoop that this PySpark brings; the AWS SDK comes along.
PACKAGES = (BUNDLE, "org.apache.hadoop:hadoop-aws:3.3.4")
JAVA_MAJORS = range(17, 22)  # Spark 3.5 and Hudi's bundle
SOURCES = Path(__file__).parent / "java"
INSTALL_TIMEOUT_S = 1800.0
RESOLVE = (
    "import sys; from pyspark.sql import SparkSession; SparkSession.builder.master('local[1]')"
    ".config('spark.ui.enabled', 'false').config('spark.driver.host', '127.0.0.1')"
    ".config('spark.jars.packages', sys.argv[1]).config('spark.jars.ivy', sys.argv[2])"
    ".getOrCreate().stop()"
)


class Unavailable(Exception):
    """What this machine lacks, in one sentence: the reason why nothing was tested."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A Python with PySpark, and what its JVM needs."""

    python: Path
    jars: tuple[Path, ...]
    classes: Path
    variables: dict[str, str]


def prepare() -> Environment:
    """Find it, or make it (some minutes, 700 MB, once); raises `Unavailable`."""
    variables = _variables()
    python, ivy, classes = CACHE / "venv/bin/python", CACHE / "ivy", CACHE / "compiled"
    ready = CACHE / ".ready"
    wanted = "\n".join((PYSPARK, *PACKAGES))
    if not ready.is_file() or ready.read_text() != wanted:
        shutil.rmtree(CACHE, ignore_errors=True)
        CACHE.mkdir(parents=True)
        run("its own environment", [sys.executable, "-m", "venv", str(CACHE / "venv")], variables)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "-q"]
        run("PySpark from PyPI", [*pip, "install", PYSPARK], variables)
        run("Hudi's bundle from Maven Central",
            [str(python), "-c", RESOLVE, ",".join(PACKAGES), str(ivy)], variables)  # fmt: skip
        ready.write_text(wanted)
    jars = tuple(sorted((ivy / "jars").glob("*.jar")))
    return Environment(python, jars, _compile(jars, classes, variables), variables)


def _variables() -> dict[str, str]:
    """The environment of its processes: a Java for Spark 3.5, no Spark of anybody else's."""
    try:
        java = find_java()
    except NoJava as error:
        raise Unavailable(str(error)) from None
    if java.major not in JAVA_MAJORS:
        raise Unavailable(
            f"{java.origin} is Java {java.major}, and Spark 3.5 runs on 17 to 21: set JAVA_HOME"
        )
    found = {k: v for k, v in os.environ.items() if k not in (*FOREIGN, "PYTHONPATH")}
    return found | {
        "JAVA_HOME": str(java.home),
        "PYSPARK_PYTHON": str(CACHE / "venv/bin/python"),
        "PYSPARK_DRIVER_PYTHON": str(CACHE / "venv/bin/python"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def _compile(jars: tuple[Path, ...], classes: Path, variables: dict[str, str]) -> Path:
    """The folder of the lock's HTTP client, compiled against the bundle's own interface.

    Its name is a digest of what is compiled. No run replaces a folder that another run's JVM reads.
    """
    beside = Path(variables["JAVA_HOME"]) / "bin" / "javac"
    javac = str(beside) if beside.is_file() else shutil.which("javac")
    if javac is None:
        raise Unavailable("there is no javac beside java or on PATH: install a JDK, not a JRE")
    sources = sorted(SOURCES.rglob("*.java"))
    names = "".join(each.name for each in jars).encode()
    digest = hashlib.sha256(names + b"".join(each.read_bytes() for each in sources)).hexdigest()
    folder = classes / digest[:16]
    if not folder.is_dir():
        classes.mkdir(exist_ok=True)
        new = Path(tempfile.mkdtemp(dir=classes))
        command = [javac, "--release", "17", "-d", new, "-cp", ":".join(map(str, jars)), *sources]
        done = subprocess.run(
            list(map(str, command)), env=variables, text=True, capture_output=True,
            timeout=INSTALL_TIMEOUT_S,
        )  # fmt: skip
        # Not `Unavailable`: Hudi's interface has changed, and that is something to be told.
        assert done.returncode == 0, done.stderr
        try:
            new.rename(folder)
        except OSError:  # another run was quicker
            shutil.rmtree(new)
    return folder


def run(what: str, command: list[str], variables: dict[str, str]) -> None:
    """Raises `Unavailable` where it fails."""
    try:
        done = subprocess.run(
            command, env=variables, text=True, capture_output=True, timeout=INSTALL_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{what}: no answer in {INSTALL_TIMEOUT_S:.0f} s") from None
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        because = next((line for line in said if "not found" in line or "rror" in line), said[-1:])
        raise Unavailable(f"{what} could not be had: {str(because)[:300]}")
