"""Refuses old rows: rows that were read from a table before another writer committed to it.

A DataFrame keeps the files that it was planned with. A frame of `read` keeps those of that call, a
frame of `format("lockkit").load()` those of its first evaluation, and a cached frame or a
checkpoint keeps its rows. Written back after another commit, they would put older rows over newer
ones, and the commit's conflict check begins too late to see that. So every attempt carries the
number of commits that it stands on, and older rows are refused in two places: by the tasks that
read them (`refuse_old_share`), and by the mark that reading leaves in each column's metadata
(`refuse_old_frame`), where no task reads them again. docs/howto/spark.md lists the remaining gaps.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lockkit.errors import TableError
from lockkit.spark.place import TableAddress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WHEN_READ, WHEN_LOADED = "lockkit.read", "lockkit.loaded"
"""The marks in a column's metadata: the table, and how many commits it had when the rows were read,
or when a frame was made that reads them later."""
TAGS = "spark.job.tags"
_TAG = re.compile(r"lockkit-([0-9]{17})-([0-9a-f]{12})-([0-9]+)(?![0-9])")
_MARK = re.compile(rf'"({WHEN_READ}|{WHEN_LOADED})": ?"([0-9a-f]{{12}}) ([0-9]+)"')
_ALL = (WHEN_READ, WHEN_LOADED)
_KEPT_ROWS = ("InMemoryRelation", "LogicalRDD", "Scan ExistingRDD")
"""The names of a cached frame and of a checkpoint in Spark's plans."""


class OldRows(TableError):
    """The rows were read from the table before others committed to it; nothing was written.

    `commits` is the number of those commits, between the read and the start of `instant`.
    """

    def __init__(self, instant: str, commits: int) -> None:
        self.instant, self.commits = instant, commits
        super().__init__(
            "these rows",
            f"were read from the table before {instant} began, and {commits} commits came in "
            "between: writing them back could undo these commits. Nothing was committed",
            "read the table again, without cache(), or create its view again, then write. (To "
            "put back rows of the past, read them with as.of.instant)",
        )


def _name(place: TableAddress) -> str:
    """A table's name in a tag; equal in all programs that use the same address."""
    address = f"{place.url.replace('s3a://', 's3://', 1)} {place.endpoint or ''}"
    return hashlib.sha256(address.encode()).hexdigest()[:12]


def attempt_tag(instant: str, place: TableAddress, commits: int) -> str:
    """The tag of an attempt's jobs: its instant, its table, and how many commits it stands on."""
    return f"lockkit-{instant}-{_name(place)}-{commits}"


def refuse_old_share(place: TableAddress, commits: int) -> None:
    """In a task that reads the table: raise `OldRows` if a later attempt is to write the rows."""
    from pyspark import TaskContext

    context = TaskContext.get()
    tags = (context and context.getLocalProperty(TAGS)) or ""
    for instant, table, stands_on in _TAG.findall(tags):
        if table == _name(place) and commits < int(stands_on):
            raise OldRows(instant, int(stands_on) - commits)


def mark(kind: str, place: TableAddress, commits: int) -> dict[str, str]:
    """The metadata of a column; a transformation that keeps the column keeps it too."""
    return {kind: f"{_name(place)} {commits}"}


def refuse_old_frame(frame: DataFrame, place: TableAddress, instant: str, commits: int) -> None:
    """Raise `OldRows` if `frame` has rows that may have been read before others committed.

    Rows that Spark keeps without any column of the table have no mark, so they are not recognised.
    """
    for kind, text in _marked(frame):
        for found, table, count in _MARK.findall(text):
            if found in kind and table == _name(place) and int(count) < commits:
                raise OldRows(instant, commits - int(count))


def _marked(frame: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    """Texts that may contain marks, each with the marks of rows that are not read again."""
    schema = frame.schema.json()
    if hasattr(frame, "_jdf"):
        yield (WHEN_READ,), schema
        for kept in _kept_in_jvm(frame._jdf):
            yield _ALL, kept
    elif hasattr(frame, "_plan"):  # Spark Connect
        session = frame.sparkSession
        sent = frame._plan.to_proto(session.client).SerializeToString().decode("latin-1")
        yield (WHEN_READ,), schema + sent
        if any(each in frame._explain_string(mode="extended") for each in _KEPT_ROWS):
            for plan in _plans(frame._plan):
                yield _ALL, type(frame)(plan, session).schema.json()
    elif all(each.nullable or WHEN_LOADED not in each.metadata for each in frame.schema):
        # In a spool. INSERT gives its rows the metadata of the view, also where they are VALUES:
        # those are not null, which a column of a table may always be.
        yield _ALL, schema


def _kept_in_jvm(frame: Any) -> Iterator[str]:
    """The schema of each cached frame, checkpoint and list of files that a plan begins with.

    Rows that a program made with a frame's schema are left out.
    """
    whole = frame.queryExecution().withCachedData()
    below = whole.subqueriesAll()
    for plan in (whole, *(below.apply(each) for each in range(below.size()))):
        leaves = plan.collectLeaves()
        for leaf in (leaves.apply(each) for each in range(leaves.size())):
            kind = leaf.getClass().getSimpleName()
            if kind == "LogicalRDD":
                level = leaf.rdd().getStorageLevel()
                kept = leaf.rdd().isCheckpointed() or level.useMemory() or level.useDisk()
            else:
                kept = kind in ("InMemoryRelation", "LogicalRelation")
            if kept:
                yield leaf.schema().json()


def _plans(plan: Any) -> Iterator[Any]:
    """A plan of Spark Connect and the plans below it, as far as the client knows."""
    waiting = [plan]
    while waiting:
        if (plan := waiting.pop()) is not None:
            yield plan
            waiting += [getattr(plan, each, None) for each in ("_child", "left", "right", "other")]
            waiting += [getattr(plan, "_other", None), *getattr(plan, "_references", ())]
