"""Tables that Apache Hudi 1.2 made with its defaults are read as Hudi itself and hudi-rs read them.

`data/hudi_tables/make.py` made them, and each one's `answers.json` is what Hudi answered.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lockkit import open_store
from lockkit.errors import TableError
from lockkit.table import Table
from lockkit.table.errors import NotWritable
from lockkit.table.read.listed import LocalInstants
from lockkit.table.read.reader import read_increment, read_table

DATA = Path(__file__).parent / "data" / "hudi_tables"
META = ("_hoodie_commit_time", "_hoodie_record_key")
NAMES = ("cow9", "cow9_archived", "cow6_archived", "cow9_two", "cow9_keyless")
ANSWERED = ("cow9", "cow9_two", "cow9_keyless")
pytestmark = pytest.mark.filterwarnings("ignore::lockkit.table.read.listed.LocalInstants")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("hudi")
    with tarfile.open(DATA / "tables.tar.xz") as tar:
        tar.extractall(folder, filter="data")
    yield folder


def answers(made: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((made / name / "answers.json").read_text())
    return found


def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows in the form of Spark's JSON, in the order of their keys."""

    def value(of: Any) -> Any:
        match of:
            case datetime():
                return of.strftime("%Y-%m-%d %H:%M:%S.%f").rstrip("0").rstrip(".")
            case Decimal():
                return str(of)
            case dict():
                return {k: value(v) for k, v in of.items() if v is not None}
            case list() if of and isinstance(of[0], tuple):
                return {k: value(v) for k, v in of}
            case _:
                return of

    of = [{k: value(v) for k, v in row.items() if v is not None} for row in rows]
    wanted = [{k: v for k, v in row.items() if k in META or not k.startswith("_")} for row in of]
    return sorted(wanted, key=lambda row: row["_hoodie_record_key"])


def ours(made: Path, name: str, **how: Any) -> list[dict[str, Any]]:
    return plain(read_table(open_store(f"file://{made / name}"), meta=True, **how).to_pylist())


@pytest.mark.parametrize("name", ANSWERED)
def test_the_snapshot_is_what_hudi_reads(made: Path, name: str) -> None:
    expected = plain(answers(made, name)["snapshot"])
    assert expected
    assert ours(made, name) == expected


@pytest.mark.parametrize("name", ANSWERED)
def test_the_table_as_of_an_instant_is_what_hudi_reads(made: Path, name: str) -> None:
    for instant, rows in answers(made, name)["as_of"].items():
        if rows is None:  # Hudi: "Cleaner cleaned up the timestamp of interest"
            with pytest.raises(TableError, match="later instant"):
                ours(made, name, as_of=instant)
        else:
            assert ours(made, name, as_of=instant) == plain(rows), instant


@pytest.mark.parametrize("name", ANSWERED)
def test_an_increment_is_what_hudi_reads(made: Path, name: str) -> None:
    for each in answers(made, name)["changes"]:
        store = open_store(f"file://{made / name}")
        rows, _found = read_increment(store, each["begin"], each["end"], meta=True)
        assert plain(rows.to_pylist()) == plain(each["rows"]), (each["begin"], each["end"])


@pytest.mark.parametrize("name", NAMES)
def test_hudi_rs_reads_the_same_snapshot(made: Path, name: str) -> None:
    hudi = pytest.importorskip("hudi", reason="hudi-rs is not installed")
    batches = hudi.HudiTable(str(made / name)).read()
    theirs = pa.Table.from_batches([pa.record_batch(each) for each in batches])
    assert ours(made, name) == plain(theirs.to_pylist())


def test_archived_instants_are_in_the_history(made: Path) -> None:
    for name in ("cow9_archived", "cow6_archived"):
        with Table(f"file://{made / name}") as table:
            history = table.history()
        folder = made / name / ".hoodie" / ("timeline" if "9" in name else "")
        active = {each.name.split(".")[0].split("_")[0] for each in folder.glob("2*")}
        assert {each.instant for each in history} > active
        # One insert, twelve upserts: the archive lost none of them.
        assert sum(each.action == "commit" for each in history) == 13


def test_local_instants_give_a_warning_where_one_is_named(made: Path) -> None:
    store = open_store(f"file://{made / 'cow9'}")
    with pytest.warns(LocalInstants, match="local times"):
        read_table(store, as_of="20990101000000000")


def test_a_write_names_every_reason_against_it(made: Path) -> None:
    with Table(f"file://{made / 'cow9_two'}") as table:
        with pytest.raises(NotWritable) as caught:
            table.append(pa.table({"id": ["k"]}))
    for reason in ("metadata.partitions", "timezone", "recordkey.fields", "partition.fields"):
        assert reason in str(caught.value)
