"""Errors of ours on their way through Spark: shown by one line, and taken out of its wrapping."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from lockkit.errors import LockkitError

OURS = re.compile(r"\b(lockkit(?:\.[a-z_]+)+)\.([A-Z]\w+): ([^\n]+)")
_AFTER = re.compile(r"\.? SQLSTATE: \w{5}\s*$")
TEXT_MAX = 2_000


@contextmanager
def first_line() -> Iterator[None]:
    """An error of ours is shown as one line: Spark reads this variable of the process that raised.

    (`pyspark.util.handle_worker_exception`; the process is replaced after the error.)
    """
    try:
        yield
    except LockkitError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


@contextmanager
def unwrapped() -> Iterator[None]:
    """Inside, a `CommitConflict` (`LockLost`, `TableError`, ...) that Spark shows is raised as one.

    For `df.write.format("lockkit")` and for streaming queries, whose errors come out of another
    process as text: so this one has its class and its sentence, and no fields.
    """
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        found = unwrap(str(error))
        if found is None:
            raise
        raise found from None


def unwrap(text: str) -> Exception | None:
    """The last error of ours in a text of Spark's."""
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
