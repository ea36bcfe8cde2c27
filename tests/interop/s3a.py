"""Hadoop's s3a client on the embedded server: its contract tests, and what its users do.

Maven Central brings Hadoop, the tests of its file systems' contract and the modules of Amazon's SDK
that s3a uses (94 MB, once). Hadoop publishes the contract's tests, and not s3a's own subclasses of
them: ours are in hadoop/Contract.java.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from environment import ROOT, Unavailable

from lockkit.spark.java import NoJava, find_java

HOME = ROOT / ".cache" / "s3a"
SOURCES = Path(__file__).parent / "hadoop"
FETCH_S_MAX, RUN_S_MAX = 1800.0, 1200.0
CONTRACT = {
    "test.fs.s3a": "s3a://{bucket}", "is-blobstore": "true", "is-case-sensitive": "true",
    "create-visibility-delayed": "true", "rename-returns-false-if-source-missing": "false",
    "rename-remove-dest-if-empty-dir": "true", "rename-overwrites-dest": "false",
    "rename-creates-dest-dirs": "true", "rename-returns-false-if-dest-exists": "false",
    "supports-unbuffer": "true", "vector-io-early-eof-check": "true",
    "supports-append": "false", "supports-atomic-directory-delete": "false",
    "supports-atomic-rename": "false", "supports-block-locality": "false",
    "supports-concat": "false", "supports-getfilestatus": "true", "supports-seek": "true",
    "supports-seek-on-closed-file": "true", "rejects-seek-past-eof": "true",
    "supports-strict-exceptions": "true", "supports-unix-permissions": "false",
    "test.root-tests-enabled": "true", "test.random-seek-count": "10",
}  # fmt: skip
"""What s3a says of itself (contract/s3a.xml in Hadoop's source)."""


@dataclass(frozen=True, slots=True)
class S3a:
    """A Java that has Hadoop on its class path, and our two programs."""

    java: Path
    classpath: str

    def run(self, program: str, conf: Path, *args: str) -> str:
        """What the program printed; `AssertionError` with its end if it does not succeed."""
        done = subprocess.run(
            [str(self.java / "bin" / "java"), "-Xmx1g", "-XX:TieredStopAtLevel=1",
             "-XX:+UseSerialGC", "-cp", f"{conf}:{self.classpath}", program, *args],
            cwd=conf, text=True, capture_output=True, timeout=RUN_S_MAX,
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
        return done.stdout


def prepare() -> S3a:
    """Find it, or make it (two minutes, once); raises `Unavailable`."""
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable("there is no mvn on PATH: install Maven")
    try:
        java = find_java()
    except NoJava as error:
        raise Unavailable(str(error)) from None
    javac = java.home / "bin" / "javac"
    if not javac.is_file():
        raise Unavailable("there is no javac beside java: install a JDK, not a JRE")
    pom, ready = SOURCES / "pom.xml", HOME / ".ready"
    jars, classes = HOME / "jars", HOME / "classes"
    if not ready.is_file() or ready.read_text() != pom.read_text():
        shutil.rmtree(HOME, ignore_errors=True)
        HOME.mkdir(parents=True)
        done = subprocess.run(
            [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies",
             f"-DoutputDirectory={jars}"],
            cwd=HOME, text=True, capture_output=True, timeout=FETCH_S_MAX,
        )  # fmt: skip
        if done.returncode:
            raise Unavailable(f"Hadoop could not be had from Maven Central: {done.stdout[:300]}")
        ready.write_text(pom.read_text())
    shutil.rmtree(classes, ignore_errors=True)
    sources = [str(each) for each in sorted(SOURCES.glob("*.java"))]
    done = subprocess.run(
        [str(javac), "--release", "17", "-d", str(classes), "-cp", f"{jars}/*", *sources],
        text=True, capture_output=True, timeout=RUN_S_MAX,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return S3a(java.home, f"{classes}:{jars}/*")


def configure(folder: Path, endpoint: str, bucket: str) -> Path:
    """A folder with core-site.xml, which is also the place of temporary files."""
    properties = {
        "fs.defaultFS": "file:///",
        "hadoop.tmp.dir": str(folder / "tmp"),
        "fs.s3a.endpoint": endpoint,
        "fs.s3a.endpoint.region": "us-east-1",
        "fs.s3a.path.style.access": "true",
        "fs.s3a.connection.ssl.enabled": "false",
        "fs.s3a.access.key": "id",
        "fs.s3a.secret.key": "secret",
        "fs.s3a.multipart.size": "5M",
        "fs.s3a.multipart.threshold": "8M",
        "fs.s3a.paging.maximum": "10",
        **{f"fs.contract.{name}": value.format(bucket=bucket) for name, value in CONTRACT.items()},
    }
    rows = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>"
        for name, value in properties.items()
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "core-site.xml").write_text(f"<configuration>{rows}</configuration>")
    (folder / "log4j.properties").write_text("log4j.rootLogger=OFF\n")
    return folder


def results(said: str) -> dict[str, list[str]]:
    """The contract's tests by outcome: PASSED, LEFT (left out by the tests) and FAILED."""
    found: dict[str, list[str]] = {"PASSED": [], "LEFT": [], "FAILED": []}
    for outcome, test, case in re.findall(
        r"^(PASSED|LEFT|FAILED) (\w+)(?:\[.*\])?\(Contract\$(\w+)\)", said, re.MULTILINE
    ):
        found[outcome].append(f"{case}.{test}")
    return found
