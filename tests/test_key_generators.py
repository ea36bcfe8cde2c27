"""Tables of Hudi's timestamp and custom key generators, and tables without keys.

The folders and keys in `HUDIS` are what Hudi 1.2 made of these values; tests/interop compares anew.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from lockkit.errors import TableError
from lockkit.table import Table
from lockkit.table.errors import NotWritable, RefusedOption, RefusedRows, UnsupportedTable
from lockkit.table.format.property_keys import (
    KEY_CLASS,
    KEY_CLASSES,
    KEY_TYPE,
    format_properties,
    parse_properties,
)

pytestmark = pytest.mark.usefixtures("no_hudi_beside")

TIMED = "hoodie.keygen.timebased."
EPOCH = {"timestamp.type": "EPOCHMILLISECONDS", "output.dateformat": "yyyy/MM/dd"}
UNIX = {"timestamp.type": "UNIX_TIMESTAMP", "output.dateformat": "yyyy-MM-dd HH",
        "timezone": "GMT+8:00"}  # fmt: skip
DATE = {"timestamp.type": "DATE_STRING", "input.dateformat": "yyyy-MM-dd",
        "output.dateformat": "yyyyMMdd"}  # fmt: skip
DAYS = {"timestamp.type": "SCALAR", "timestamp.scalar.time.unit": "days",
        "output.dateformat": "yyyy/MM"}  # fmt: skip
MICROS = {"timestamp.type": "EPOCHMICROSECONDS", "output.dateformat": "yyyy-MM"}
HUDIS: list[tuple[dict[str, str], Any, str]] = [
    (EPOCH, 1700000000123, "2023/11/14"), (EPOCH, None, "1970/01/01"),
    (UNIX, 1600000000, "2020-09-13 20"), (UNIX, None, "1970-01-01 08"),
    (DATE, "2026-08-02", "20260802"), (DATE, None, "19700101"),
    (DAYS, 18000, "2019/04"), (DAYS, None, "1970/01"),
    (MICROS, datetime(2026, 1, 31, 23, 59, tzinfo=UTC), "2026-01"),
    (MICROS, datetime(2025, 2, 1), "2025-02"), (MICROS, datetime(1969, 12, 31, 1), "1969-12"),
]  # fmt: skip
COLUMNS = {"id": pa.string(), "at": pa.int64(), "v": pa.int64()}


def hudis(folder: Path, *, version: int = 9, **properties: str | None) -> Table:
    """A table in the mode `hudi` whose properties say what a writer of Hudi's has said."""
    url = f"file://{folder}"
    with Table.create(url, record_key="id", partition_by="at", version=version, mode="hudi",
                      urlencode=False):  # fmt: skip
        pass
    file = folder / ".hoodie/hoodie.properties"
    changed = {key: value for key, value in properties.items() if value is not None}
    keys = parse_properties(file.read_bytes()) | changed
    gone = [key for key, value in properties.items() if value is None]
    file.write_bytes(format_properties({k: v for k, v in keys.items() if k not in gone}))
    return Table(url)


def timed(folder: Path, settings: dict[str, str], **more: str) -> Table:
    return hudis(folder, **{KEY_TYPE: "TIMESTAMP"}, **{TIMED + k: v for k, v in settings.items()},
                 **more)  # fmt: skip


def rows(*made: tuple[str, Any]) -> pa.Table:
    found = [{"id": key, "at": at, "v": n} for n, (key, at) in enumerate(made)]
    kind = next((pa.array([at]).type for _, at in made if at is not None), pa.int64())
    return pa.Table.from_pylist(found, pa.schema({**COLUMNS, "at": kind}))


def folders(table: Table) -> list[str]:
    return sorted({each.partition for each in table.refresh().slices})


@pytest.mark.parametrize(("settings", "value", "folder"), HUDIS)
def test_a_time_becomes_the_folder_that_hudi_makes_of_it(
    tmp_path: Path, settings: dict[str, str], value: Any, folder: str
) -> None:
    given = rows(("a", value), ("b", value))
    if settings is DATE:
        given = given.set_column(1, "at", given["at"].cast(pa.string()))
    with timed(tmp_path, settings) as table:
        table.upsert(given)
        assert folders(table) == [f"at={folder}"]
        table.upsert(given.slice(0, 1))
        assert table.read().num_rows == 2
        assert table.read(filters=[("id", "=", "b")]).num_rows == 1


def test_times_of_one_day_share_a_partition_and_a_filter_by_time_finds_them(
    tmp_path: Path,
) -> None:
    day = 86_400_000
    with timed(tmp_path, EPOCH) as table:
        table.append(rows(("a", day), ("b", day + 1), ("c", 2 * day)))
        assert [each.partition for each in table.refresh().slices] == [
            "at=1970/01/02", "at=1970/01/03",
        ]  # fmt: skip
        assert table.read(filters=[("at", "=", day + 1)])["id"].to_pylist() == ["b"]
        table.upsert(rows(("b", day + 5)))
        assert sorted(table.read()["at"].to_pylist()) == [day, day + 5, 2 * day]


def test_the_class_of_a_generator_says_as_much_as_its_type(tmp_path: Path) -> None:
    made = {KEY_TYPE: None, KEY_CLASS: KEY_CLASSES["TIMESTAMP"],
            **{TIMED + key: value for key, value in EPOCH.items()}}  # fmt: skip
    with hudis(tmp_path, version=6, **made) as table:
        table.append(rows(("a", 0)))
        assert folders(table) == ["at=1970/01/01"]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"timestamp.type": "MIXED"}, "this kind of timestamp is not written here"),
        ({"output.dateformat": "yyyy-'W'ww"}, "is not spelled here as Hudi does"),
        ({"output.dateformat": ""}, "is not spelled here as Hudi does"),
        ({"timezone": "PST"}, "this time zone is not known here"),
        ({"timestamp.type": "SCALAR", "timestamp.scalar.time.unit": "weeks"}, "unit is not known"),
        ({"timezone": "posix/America/New_York"}, "this time zone is not known here"),
        ({"timezone": "GMT+5:60"}, "this time zone is not known here"),
        ({"timestamp.type": "DATE_STRING", "input.dateformat": "yyyy,MM"}, "a list of formats"),
        ({"timestamp.type": "DATE_STRING", "input.dateformat": "MM-dd"}, "a day without its year"),
    ],
)
def test_settings_that_are_not_obeyed_are_refused_by_name(
    tmp_path: Path, settings: dict[str, str], why: str
) -> None:
    with timed(tmp_path, EPOCH | settings) as table, pytest.raises(NotWritable, match=why):
        table.append(rows(("a", 0)))


@pytest.mark.parametrize("value", ["2026-1-1", "2026-13-01", "", "yesterday"])
def test_a_text_that_is_no_such_date_is_refused_with_its_column(tmp_path: Path, value: str) -> None:
    with timed(tmp_path, DATE) as table:
        with pytest.raises(RefusedRows, match="'at' names the partition"):
            table.append(rows(("a", value)))
        with pytest.raises(RefusedRows, match="is not what DATE_STRING takes"):
            table.append(rows(("a", 5)))


def test_a_time_that_joda_does_not_know_is_refused_with_its_column(tmp_path: Path) -> None:
    local = {"timezone": "America/New_York", "input.dateformat": "yyyy-MM-dd HH:mm"}
    with timed(tmp_path / "gap", DATE | local) as table:
        table.append(rows(("a", "2021-11-07 01:30")))
        with pytest.raises(RefusedRows, match="clocks were put forward"):
            table.append(rows(("b", "2021-03-14 02:30")))
    with (
        timed(tmp_path / "end", EPOCH | {"timezone": "GMT+8"}) as table,
        pytest.raises(RefusedRows, match="no time of the years 1 to 9999"),
    ):
        table.append(rows(("a", 253_402_300_799_000)))


def test_a_custom_generator_makes_simple_folders_and_one_fields_key_is_plain(
    tmp_path: Path,
) -> None:
    made = {KEY_TYPE: "CUSTOM", "hoodie.table.partition.fields": "at:SIMPLE,v:SIMPLE"}
    with hudis(tmp_path, **made) as table:
        table.upsert(rows(("a", 7)))
        assert folders(table) == ["at=7/v=0"]
        assert read_keys(table) == ["a"]


@pytest.mark.parametrize(
    ("fields", "why"),
    [("at:TIMESTAMP", "a field with times needs a format"), ("at", "which of them are times")],
)
def test_a_custom_generator_whose_times_the_table_does_not_explain_is_refused(
    tmp_path: Path, fields: str, why: str
) -> None:
    made = {KEY_TYPE: "CUSTOM", "hoodie.table.partition.fields": fields}
    with hudis(tmp_path, **made) as table, pytest.raises(NotWritable, match=why):
        table.append(rows(("a", 0)))


def read_keys(table: Table) -> list[str]:
    from lockkit.table import read_table

    return list(read_table(table.store, table.clock, meta=True)["_hoodie_record_key"].to_pylist())


def test_appended_rows_of_a_table_without_keys_get_a_key_each(tmp_path: Path) -> None:
    with hudis(tmp_path, **{"hoodie.table.recordkey.fields": None}) as table:
        first = table.append(rows(("a", 1), ("a", 1), ("a", 2)))
        again = table.append(rows(("a", 1)))
        assert sorted(read_keys(table)) == sorted(
            [f"{first.instant}_{n}_{row}" for n, row in ((0, 0), (0, 1), (1, 0))]
            + [f"{again.instant}_0_0"]
        )
        for refused in (table.upsert, table.delete, table.overwrite):
            with pytest.raises(RefusedOption, match="the table has no record keys"):
                refused(rows(("a", 1)))
        assert table.delete_partition("at=1")
        assert table.read()["at"].to_pylist() == [2]


def test_a_merge_on_read_table_without_keys_is_refused(tmp_path: Path) -> None:
    made = {"hoodie.table.recordkey.fields": None, "hoodie.table.type": "MERGE_ON_READ"}
    with hudis(tmp_path, **made) as table, pytest.raises(TableError, match="merged by record keys"):
        table.append(rows(("a", 1)))


@pytest.mark.parametrize("write", ["append", "upsert", "delete", "overwrite"])
def test_file_groups_of_hudis_bucket_index_are_not_written_as_if_they_were_others(
    tmp_path: Path, write: str
) -> None:
    """Hudi's properties do not say that a table has its index; its file ids do."""
    hudis_id = "00000001-643b-4939-8fde-6bcbc893444a-0"
    with hudis(tmp_path) as table, patch("lockkit.table.handle.free_file_id", lambda _: hudis_id):
        table.append(rows(("a", 1)))
    with Table(table.url) as other:
        with pytest.raises(UnsupportedTable, match="a file group of Hudi's bucket index"):
            getattr(other, write)(rows(("a", 1)))
        assert other.read().num_rows == 1
