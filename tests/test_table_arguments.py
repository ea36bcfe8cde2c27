"""Wrong arguments of `Table` and its methods: each is refused by name, none is ignored."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from lockkit.clock import Clock
from lockkit.errors import LockkitError
from lockkit.table import Table
from lockkit.table.errors import RefusedOption

NAMES = count()
ROWS = pa.table({"id": ["1", "2"], "region": ["EU", "US"], "v": [1, 2]})
FRAME = ROWS.to_pandas()
ODD: tuple[Any, ...] = (
    5, -1, 1.5, float("nan"), b"x", [5], [None], [["x"]], {"a": 1}, True, object(), FRAME, ROWS,
    object, datetime(2026, 1, 1), "; DROP TABLE t", "../../etc", "<script>", "\x00", "a" * 3000,
)  # fmt: skip
"""Values that fit no argument, but for those that a test names."""


@pytest.fixture(scope="module")
def table() -> Iterator[Table]:
    with Table.create(
        f"memory://arguments-{next(NAMES)}/t", record_key="id", partition_by="region"
    ) as found:
        found.append(ROWS)
        yield found


def refused(call: Any, *, fits: tuple[Any, ...] = ()) -> None:
    """`call` raises an error of our family for each odd value, but for those that `fits` names."""
    for value in (each for each in ODD if not any(each is one for one in fits)):
        with pytest.raises(LockkitError) as error:
            call(value)
        assert len(str(error.value)) < 1_000, "an error shows the beginning of a value"


@pytest.mark.parametrize("argument", ["columns", "filters", "as_of", "query"])
def test_a_read_refuses_an_unknown_argument(table: Table, argument: str) -> None:
    read: Any = table.read
    fits = (FRAME,) if argument == "columns" else ()  # it gives its columns' names
    refused(lambda value: read(**{argument: value}), fits=fits)


@pytest.mark.parametrize("argument", ["columns", "filters", "begin", "end"])
def test_an_increment_refuses_an_unknown_argument(table: Table, argument: str) -> None:
    changes: Any = table.changes
    fits = (FRAME,) if argument == "columns" else ()
    refused(lambda value: changes(**{argument: value}), fits=fits)


def test_a_filter_needs_a_column_an_operator_and_values(table: Table) -> None:
    read: Any = table.read
    refused(lambda value: read(filters=[(value, "==", 1)]))
    refused(lambda value: read(filters=[("v", value, 1)]))
    for value in (5, None, "x", b"x", {"a": 1}, True, object()):
        with pytest.raises(LockkitError):
            read(filters=[("v", "in", value)])


@pytest.mark.parametrize(
    "given", [("v", "==", 10**30), ("v", "in", [10**99]), ("id", "<", "\ud800")]
)
def test_a_filters_value_that_its_column_cannot_hold_is_refused(table: Table, given: Any) -> None:
    with pytest.raises(RefusedOption, match="has a value that is no"):
        table.read(filters=[given])


@pytest.mark.parametrize("option", ["version", "buckets"])
def test_a_number_of_a_new_table_that_is_none_is_refused_by_its_name(option: str) -> None:
    with pytest.raises(RefusedOption, match=f"^{option}='9' must be an int"):
        Table.create(f"memory://{next(NAMES)}/t", record_key="id", **{option: "9"})  # type: ignore[arg-type]


def test_an_empty_url_is_refused_by_its_own_name() -> None:
    with pytest.raises(RefusedOption, match=r"url=.* has no end to name the table by"):
        Table.create("", record_key="id")


def test_names_and_filters_may_be_in_any_iterable(table: Table) -> None:
    """An iterator of names was used up by their check, and the read gave no column."""
    read: Any = table.read
    assert read(columns=iter(["v"])).column_names == ["v"]
    assert read(columns=FRAME.columns[:2]).column_names == ["id", "region"]
    assert read(filters=iter([("v", "in", iter([2]))]))["v"].to_pylist() == [2]


@pytest.mark.parametrize("operation", ["append", "upsert", "delete", "overwrite"])
def test_a_write_refuses_invalid_rows_and_an_invalid_number_of_retries(
    table: Table, operation: str
) -> None:
    write: Any = getattr(table, operation)
    before = len(table.history())
    refused(write, fits=(ROWS,))
    refused(lambda value: write(ROWS, retries=value), fits=(5,))
    with pytest.raises(LockkitError, match="retries"):
        write(ROWS, retries=None)
    assert len(table.history()) == before


def test_whole_table_is_a_bool(table: Table) -> None:
    """`whole_table="no"` replaced every row of the table."""
    overwrite: Any = table.overwrite
    refused(lambda value: overwrite(ROWS, whole_table=value), fits=(True,))


@pytest.mark.parametrize("argument", [
    "record_key", "partition_by", "precombine", "name", "version", "mode", "table_type", "commit",
    "buckets", "hive_style", "urlencode", "url",
])  # fmt: skip
def test_create_refuses_an_unknown_argument(argument: str) -> None:
    texts = tuple(each for each in ODD if isinstance(each, str))  # names; refused if they are none
    fits = {"buckets": (5,), "hive_style": (True,), "urlencode": (True,)}.get(argument, texts)

    def create(value: Any) -> None:
        how: Any = {"record_key": "id", "url": f"memory://arguments-{next(NAMES)}/t"}
        Table.create(**(how | {argument: value})).close()

    refused(create, fits=fits)
    for value in ("", [""], 0) if argument in ("record_key", "partition_by") else ():
        with pytest.raises(LockkitError, match=argument):
            create(value)


@pytest.mark.parametrize("argument", [
    "url", "lock", "options", "strategy", "emit", "clock", "client", "timeout_s",
])  # fmt: skip
def test_a_handle_refuses_an_unknown_argument(table: Table, argument: str) -> None:
    texts = tuple(each for each in ODD if isinstance(each, str))
    fits = {"url": texts, "client": texts, "timeout_s": (5, 1.5), "emit": (object,)}

    def opened(value: Any) -> None:
        Table(**({"url": table.url} | {argument: value})).close()

    refused(opened, fits=fits.get(argument, ()))
    for value in ("", [], 0) if argument in ("options", "strategy", "emit", "clock") else ():
        with pytest.raises(LockkitError):
            opened(value)
    Table(table.url, clock=Clock(), timeout_s=3, options={}).close()
