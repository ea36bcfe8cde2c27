"""Shows lockkit's errors inside Spark as one line, and finds them in Spark's exceptions."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from lockkit.errors import LockkitError, TableError

OURS = re.compile(r"\b(lockkit(?:\.[a-z_]+)+)\.([A-Z]\w+): ([^\n]+)")
_AFTER = re.compile(r"\.? SQLSTATE: \w{5}\s*$")
TEXT_MAX = 2_000


@contextmanager
def first_line() -> Iterator[None]:
    """Show an error of lockkit as one line. Spark reads this variable in the raising process.

    (`pyspark.util.handle_worker_exception`; the process is replaced after the error.)
    """
    try:
        yield
    except LockkitError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


@contextmanager
def unwrapped() -> Iterator[None]:
    """Raise lockkit's own error (`CommitConflict`, `LockLost`, ...) in place of Spark's.

    For `df.write.format("lockkit")` and streaming queries. Their errors arrive as text from another
    process, so the raised error has its class and message but no fields.
    """
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        found = unwrap(str(error))
        if found is None:
            raise
        raise found from None


@contextmanager
def javas_named() -> Iterator[None]:
    """Raise what Java says, in one line, while its process is still there to be asked."""
    from py4j.protocol import Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        raise TableError("Spark", str(error.java_exception.toString())[:TEXT_MAX]) from None


def unwrap(text: str) -> Exception | None:
    """The last error of lockkit in an error text of Spark."""
    found = OURS.findall(text)
    if not found:
        return None
    module, name, message = found[-1]
    try:
        kind = getattr(import_module(module), name, None)
    except ImportError:
        return None
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return None
    error = kind.__new__(kind)
    error.args = (_AFTER.sub("", message)[:TEXT_MAX],)
    return error
