"""One PySpark process with a session of its own, which writes as it is told: JSON line by line.

An order is what `write` takes, and how to stand still: `pause` names a note after which the writer
tells where it is and waits for a line, `stall` one after which it stops itself with SIGSTOP.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from lockkit.lock.handle import Lock
from lockkit.spark import write
from lockkit.spark.connect import own_session
from lockkit.spark.java import spark_env
from lockkit.stores import open_store
from lockkit.table import read_table

COLUMNS = "id string, region string, at long, v long"
# A channel of its own: the JVM inherits our stdout, and libraries print.
PIPE = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def tell(**said: Any) -> None:
    PIPE.write(json.dumps(said) + "\n")
    PIPE.flush()


def main() -> None:
    os.environ.update(spark_env())
    session = own_session(sys.argv[1])
    session.sparkContext.setLogLevel("OFF")
    tell(ready=os.getpid())
    for line in sys.stdin:
        order = json.loads(line)
        try:
            tell(**globals()[order.pop("do")](session, **order))
        except Exception as error:  # noqa: BLE001 - told to the test, which judges it
            tell(error=type(error).__name__, text=str(error))


def write_rows(
    session: Any, rows: list[list[Any]], place: dict[str, Any], columns: str = COLUMNS, **how: Any
) -> dict[str, Any]:
    frame = session.createDataFrame([tuple(each) for each in rows], columns)
    return once(frame, place, **how)


def add_one(session: Any, ids: list[str], place: dict[str, Any], **how: Any) -> dict[str, Any]:
    """Each id's `v`, as the table has it when the rows are made, and one more."""

    def rows(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for _ in batches:
            pass
        now = read_table(open_store(**place))
        # Every copy counts: a row that is there twice shows in the sum.
        held = list(zip(now["id"].to_pylist(), now["v"].to_pylist(), strict=True))
        sums = [sum(v for key, v in held if key == each) + 1 for each in ids]
        yield pa.RecordBatch.from_pydict(
            {"id": ids, "region": ["EU"] * len(ids), "at": [1] * len(ids), "v": sums}
        )

    return once(session.range(0, 1, 1, 1).mapInArrow(rows, COLUMNS), place, **how)


def once(
    frame: Any, place: dict[str, Any], pause: str = "", stall: str = "", **how: Any
) -> dict[str, Any]:
    waiting = [pause]

    def emit(kind: str, **fields: Any) -> None:
        text = f"{kind} {fields.get('text', '')}"
        if waiting[0] and text.startswith(waiting[0]):
            waiting[0] = ""
            tell(at=text, instant=fields.get("instant"))
            assert sys.stdin.readline(), "the test has ended"
        if stall and text.startswith(stall):
            tell(at=text, instant=fields.get("instant"))
            os.kill(os.getpid(), signal.SIGSTOP)

    done = write(frame, emit=emit, **place, **how)
    return {"instant": done and done.instant, "completion": done and done.completion}


def two_threads(session: Any, place: dict[str, Any], **how: Any) -> dict[str, Any]:
    """One writer's lock in the hands of two threads: the second comes when the first holds it."""
    at, go, outcomes = threading.Event(), threading.Event(), {}
    frame = session.createDataFrame([("a", "EU", 1, 1)], COLUMNS)
    other = session.createDataFrame([("b", "US", 1, 1)], COLUMNS)

    def emit(kind: str, **_: Any) -> None:
        if kind == "checked" and not at.is_set():
            at.set()
            assert go.wait(60)

    def first() -> None:
        done = write(frame, lock=held, emit=emit, **place, **how)
        outcomes["first"] = done and done.instant

    held = Lock(place["url"], endpoint=place["endpoint"])
    thread = threading.Thread(target=first)
    thread.start()
    assert at.wait(60)
    try:
        write(other, lock=held, **place, **how)
        outcomes["second"] = "written"
    except RuntimeError as error:
        outcomes["second"] = str(error)
    go.set()
    thread.join()
    held.close()
    return outcomes


if __name__ == "__main__":
    main()
