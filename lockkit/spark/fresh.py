"""Rows that were read from a table go back into it only if nobody has committed to it in between.

A DataFrame keeps the files that it was planned with: one of `read` those of that call, one of
`format("lockkit").load()` those of its first evaluation, a cached one even its rows. Written back
after another commit, it would put older rows over newer ones, and the commit's conflict check
begins too late to know. So an attempt says what it stands on, and older rows are refused: by the
tasks that read them, or by the mark that reading leaves on the column of the record key.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

from lockkit.spark.place import Place
from lockkit.table.ask import TableError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MARK, LOADED = "lockkit.read", "lockkit.loaded"
"""In the metadata of the record key's column: the table, and of how many commits it was made when
the rows were read, or when the frame was made, which may read them later."""
TAGS = "spark.job.tags"
_TAG = re.compile(r"lockkit-([0-9]{17})-([0-9a-f]{12})-([0-9]+)(?![0-9])")


class OldRows(TableError):
    """The rows were read from the table before others committed to it; nothing was written."""


def _old(instant: str, count: int) -> OldRows:
    return OldRows(
        f"these rows were read from the table before {instant} began, and {count} commits came in "
        "between: written back, they could undo what those wrote. Nothing was committed. Read the "
        "table anew, without cache(), and write again"
    )


def _name(place: Place) -> str:
    """Of a table, short enough for a tag; the same for everybody who spells its address alike."""
    told = f"{place.url.replace('s3a://', 's3://', 1)} {place.endpoint or ''}"
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def attempt_tag(instant: str, place: Place, commits: int) -> str:
    """The tag of an attempt's jobs: its instant, its table, and how many commits it stands on."""
    return f"lockkit-{instant}-{_name(place)}-{commits}"


def refuse_old_share(place: Place, commits: int) -> None:
    """In a task that reads the table: raise `OldRows` if a later attempt is to write the rows."""
    from pyspark import TaskContext

    context = TaskContext.get()
    tags = (context and context.getLocalProperty(TAGS)) or ""
    for instant, table, stands_on in _TAG.findall(tags):
        if table == _name(place) and commits < int(stands_on):
            raise _old(instant, int(stands_on) - commits)


def mark(place: Place, commits: int) -> str:
    return f"{_name(place)} {commits}"


def marked(frame: DataFrame, place: Place, key: str, commits: int) -> DataFrame:
    """The same, with the mark on the record key: transformations keep that."""
    from pyspark.sql import functions as f

    said = {MARK: mark(place, commits)}
    return frame.select(
        *(f.col(f"`{each}`").alias(each, metadata=said) if each == key else f.col(f"`{each}`")
          for each in frame.columns)
    )  # fmt: skip


def refuse_old_frame(frame: Any, place: Place, key: str, instant: str, commits: int) -> None:
    """Raise `OldRows` if `frame` was, or may have been, read before others committed."""
    found = next((each for each in frame.schema.fields if each.name == key), None)
    told = (found and found.metadata) or {}
    for kind in (MARK, LOADED):
        table, _, count = str(told.get(kind, "")).partition(" ")
        old = table == _name(place) and count.isdecimal() and int(count) < commits
        if old and (kind == MARK or _is_cached(frame)):
            raise _old(instant, commits - int(count))


def _is_cached(frame: Any) -> bool:
    """Whether Spark keeps the rows of `frame`, or of a frame that it is made from."""
    query = getattr(frame, "_jdf", None)
    if query is not None:
        return "InMemoryRelation" in query.queryExecution().withCachedData().toString()
    plans = [getattr(frame, "_plan", None)]
    while plans:  # Spark Connect, which only tells of whole frames
        plan = plans.pop()
        if plan is None:
            continue
        level = type(frame)(plan, frame.sparkSession).storageLevel
        if level.useMemory or level.useDisk:
            return True
        plans += [getattr(plan, each, None) for each in ("_child", "left", "right", "other")]
    return False
