"""Partition paths: spelt as Hudi spells them, inside the table, and read by hudi-rs."""

from __future__ import annotations

import posixpath
import re
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_world import CLOCK, CONFIG, Holder, new_table, prepare_inserts, rows

from lockkit.errors import TableError
from lockkit.lab.server import Emulator
from lockkit.runtime import run
from lockkit.table import commit, read_table
from lockkit.table.format.layout import partition_file
from lockkit.table.format.partition import escape, is_inside, partition_path, unescape
from lockkit.table.read.predicate import partition_value

hudi = pytest.importorskip("hudi", reason="hudi-rs reads our tables: pip install hudi==0.5.0")


def test_exactly_the_characters_that_hive_escapes_are_escaped() -> None:
    plain = "".join(chr(n) for n in range(128) if escape(chr(n)) == chr(n))
    assert plain == (
        " !$&()+,-.0123456789;<>@ABCDEFGHIJKLMNOPQRSTUVWXYZ_`abcdefghijklmnopqrstuvwxyz|}~"
    )
    assert escape("A/B c:d=é") == "A%2FB c%3Ad%3Dé" and escape("\n") == "%0A"
    assert partition_path(CONFIG, "A/B c:d=é") == "region=A%2FB c%3Ad%3Dé"


@given(st.text(max_size=60))
def test_any_text_is_a_folder_of_the_table_and_is_read_back_from_it(text: str) -> None:
    assert unescape(escape(text)) == text
    if re.search("[\x80-\x9f\ufffe\uffff]", text):
        with pytest.raises(TableError, match="can be no store's key"):
            partition_path(CONFIG, text)
        return
    path = partition_path(CONFIG, text)
    assert is_inside(path) and "/" not in path
    assert partition_value(CONFIG, path) == (text or None)


@pytest.mark.parametrize("value", [None, "", "__HIVE_DEFAULT_PARTITION__"])
def test_a_missing_partition_value_has_hives_name(value: Any) -> None:
    path = partition_path(CONFIG, value)
    assert path == "region=__HIVE_DEFAULT_PARTITION__"
    assert partition_value(CONFIG, path) is None


# What Hudi 1.2.0 made of them, in upserts and in bulk inserts alike.
BY_HUDI = [
    ("a b", "a b"), ("..a", "..a"), ("..", ".."), (".", "."), ("../x", "..%2Fx"), ("a.", "a."),
    ("a\\b", "a%5Cb"), ("é😀", "é😀"), ("%41", "%2541"), ("~!@$&()_+-,;|<>`", "~!@$&()_+-,;|<>`"),
    ("[]{}^", "%5B%5D%7B}%5E"), ("\"#'*:=?", "%22%23%27%2A%3A%3D%3F"), ("\t\n\r", "%09%0A%0D"),
    ("\x01\x1f\x7f", "%01%1F%7F"), ("\u202e\u00a0", "\u202e\u00a0"), ("default", "default"),
    (" ", " "), (42, "42"), (-7, "-7"), (True, "true"), (date(2025, 3, 1), "2025-03-01"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "folder"), BY_HUDI)
def test_a_value_is_spelt_as_hudi_spells_it(value: Any, folder: str) -> None:
    assert partition_path(CONFIG, value) == f"region={folder}"
    assert partition_value(CONFIG, f"region={folder}") == ("true" if value is True else str(value))


def test_a_partition_file_equals_hudis_except_for_the_date_in_a_comment() -> None:
    key, body = partition_file("region=A%2FB c%3Ad%3Dé", "20261121143819346")
    assert key == "region=A%2FB c%3Ad%3Dé/.hoodie_partition_metadata"
    assert body == b"#partition metadata\ncommitTime=20261121143819346\npartitionDepth=1\n"
    assert b"partitionDepth=2\n" in partition_file("americas/brazil", "20261121143819346")[1]
    flat = (".hoodie_partition_metadata", b"#partition metadata\ncommitTime=2\npartitionDepth=0\n")
    assert partition_file("", "2") == flat


PLAIN = replace(CONFIG, hive_style=False, urlencode=False)
PARTS = ["a", "b", ".", "..", "/", "%", "2F", "=", ".hoodie", "é"]
NASTY = st.lists(st.sampled_from(PARTS)).map("".join)


@given(NASTY, NASTY, st.booleans(), st.booleans())
def test_two_values_never_share_a_partition_nor_leave_the_table(
    one: str, other: str, hive: bool, urlencode: bool
) -> None:
    config = replace(CONFIG, hive_style=hive, urlencode=urlencode)
    found = {}
    for value in filter(None, (one, other)):
        try:
            found[value] = partition_path(config, value)
        except TableError:
            continue  # only where nothing is escaped, or nothing stands before it
        assert posixpath.normpath(posixpath.join("/t", found[value])) == f"/t/{found[value]}"
        assert not found[value].startswith(".hoodie/") and found[value] != ".hoodie"
        assert partition_value(config, found[value]) == value
    assert len(set(found.values())) == len(found)
    if hive and urlencode:
        assert found.keys() == {one, other} - {""}


@pytest.mark.parametrize("value", ["..", ".", "a/../b", "/etc", "a//b", "a/", ".hoodie",
                                   ".hoodie/.locks", "a\nb", "x" * 300, "a\ud800"])  # fmt: skip
def test_a_value_that_leads_out_of_a_table_without_escapes_is_refused(value: str) -> None:
    with pytest.raises(TableError, match="cannot name a partition"):
        partition_path(PLAIN, value)


def test_other_tables_have_other_paths() -> None:
    assert partition_path(PLAIN, "americas/brazil") == "americas/brazil"
    assert partition_path(replace(CONFIG, hive_style=False), "a/b") == "a%2Fb"
    assert partition_path(replace(CONFIG, urlencode=False), "50%") == "region=50%"
    assert partition_path(replace(CONFIG, partition_by=None), "x") == ""
    assert partition_value(PLAIN, "50%41") == "50%41"
    for value, text in ((7, "7"), (True, "true")):
        assert partition_path(PLAIN, value) == text
    # Hudi's upsert and bulk insert put one timestamp into two partitions.
    for odd in (1.5, b"x", datetime(2025, 3, 1, tzinfo=UTC)):
        with pytest.raises(TableError, match="make it a string"):
            partition_path(PLAIN, odd)


# --- read by hudi-rs ------------------------------------------------------------------------------

VALUES = ["EU", "A/B c:d=é", "..", ".", "a%2Fb", "50%", "日本", "x\ny", None, "a'b\"c", "{x}[y]^",
          "a&b+c;d,e!", "tail.", "~<>|`"]  # fmt: skip


def orders(n: int, region: str | None, **of: Any) -> pa.Table:
    return rows([n], **of).set_column(1, "region", pa.array([region], pa.string()))


def publish(store: Any, prepared: Any) -> str:
    run(commit(prepared, Holder(1)), store, CLOCK)
    return str(prepared.instant)


def by_hudi_rs(base: str, options: Any = None, **where: str) -> list[dict[str, Any]]:
    table = pa.Table.from_batches(hudi.HudiTable(base, where).read(options))
    return sorted(table.select(["id", "region", "amount"]).to_pylist(), key=str)


def by_us(store: Any, **how: Any) -> list[dict[str, Any]]:
    table = read_table(store, **how).select(["id", "region", "amount"])
    return sorted(table.to_pylist(), key=str)


@pytest.mark.parametrize("version", [6, 9])
def test_a_partition_of_any_value_is_read_by_hudi_rs_and_found_by_a_filter(
    tmp_path: Path, version: int
) -> None:
    url = f"file://{tmp_path}/orders"
    store = new_table(url, config=replace(CONFIG, version=version))
    publish(store, prepare_inserts(store, *[orders(n, v) for n, v in enumerate(VALUES)]))
    assert by_hudi_rs(url) == by_us(store)
    assert {row["region"] for row in by_us(store)} == set(VALUES)
    for value in filter(None, VALUES):
        (row,) = by_us(store, filters=[("region", "=", value)])
        only = hudi.HudiReadOptions(filters=[("region", "=", value)])
        assert [row] == by_hudi_rs(url, only) and row["region"] == value


def test_a_partition_of_any_value_is_a_key_of_every_object_store() -> None:
    with Emulator() as server:
        for scheme, endpoint in (("gs", server.gcs), ("az", server.azure), ("s3", server.s3)):
            store = new_table(f"{scheme}://lake-{scheme}/orders", endpoint=endpoint)
            publish(store, prepare_inserts(store, *[orders(n, v) for n, v in enumerate(VALUES)]))
            assert {row["region"] for row in by_us(store)} == set(VALUES)
            assert {e.key.rpartition("/")[0] for e in store.list("region=")} == {
                partition_path(CONFIG, value) for value in VALUES
            }
        theirs = by_hudi_rs(
            "s3://lake-s3/orders", aws_endpoint=server.s3, aws_allow_http="true",
            aws_region="us-east-1", aws_access_key_id="any", aws_secret_access_key="any",
        )  # fmt: skip
        assert theirs == by_us(store) and len(theirs) == len(VALUES)


@pytest.mark.parametrize("version", [6, 9])
@pytest.mark.parametrize(("hive", "urlencode"), [(False, False), (False, True), (True, False)])
def test_hudi_rs_reads_tables_of_other_partition_styles(
    tmp_path: Path, version: int, hive: bool, urlencode: bool
) -> None:
    url = f"file://{tmp_path}/orders"
    config = replace(CONFIG, version=version, hive_style=hive, urlencode=urlencode)
    store = new_table(url, config=config)
    for n, value in enumerate(["2024/01/02", "2024/01/03"]):
        publish(store, prepare_inserts(store, orders(n, value)))
    assert by_hudi_rs(url) == by_us(store) and len(by_us(store)) == 2
