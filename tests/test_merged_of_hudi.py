"""Merge-on-read tables that Hudi made with its defaults, written by lockkit beside Hudi."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hudi_rs import read_by_hudi_rs

from lockkit import Clock
from lockkit.runtime import run
from lockkit.table import CommitConflict, Table
from lockkit.table.errors import NotWritable, UnsupportedTable
from lockkit.table.format.avro import encode
from lockkit.table.format.commit_records import COMMIT
from lockkit.table.format.log_blocks import DELETE, PARQUET, Block, avro_rows, blocks
from lockkit.table.format.properties import PROPERTIES_KEY, load_config
from lockkit.table.format.property_keys import MERGE_ON_READ, format_properties, parse_properties
from lockkit.table.occ.commit import EpochGuard
from lockkit.table.occ.mode import set_fence
from lockkit.table.read.log_slice import LogSlice
from lockkit.table.read.opening import load_snapshot
from lockkit.table.services.adopt import adopt

pytestmark = pytest.mark.usefixtures("no_hudi_beside")

NAMES = ("mor8", "mor9", "mor9_commit", "mor9_planned", "mor9_archived")
SCHEMA = pa.schema([*((name, pa.string()) for name in ("id", "kind", "region", "day")),
                    ("ts", pa.int64()), ("v", pa.int32())])  # fmt: skip


def adopted(hudi_made: Path, tmp_path: Path, name: str = "mor9", **how: Any) -> Table:
    folder = shutil.copytree(hudi_made / name, tmp_path / name)
    table = Table(f"file://{folder}", **how)
    run(adopt(), table.store, Clock())
    return table


def as_rows(*listed: tuple[str, int, int]) -> pa.Table:
    """Rows of (key, ordering value, v), each in the partition that `make.py` gives its key."""
    def row(key: str, ts: int, v: int) -> dict[str, Any]:
        odd, day = int(key[1:]) % 2, f"2026-01-0{1 + int(key[1:]) % 3}"
        return {"id": key, "kind": "ab"[odd], "region": ("EU", "US")[odd], "day": day,
                "ts": ts, "v": v}  # fmt: skip

    return pa.Table.from_pylist([row(*each) for each in listed], SCHEMA)


def shown(found: pa.Table) -> list[tuple[str, int]]:
    return sorted((row["id"], row["v"]) for row in found.to_pylist())


def theirs(table: Table) -> list[tuple[str, int]]:
    return shown(read_by_hudi_rs(table.url))


def keys_of(block: Block) -> set[str]:
    if block.kind == PARQUET:
        rows = pq.read_table(pa.BufferReader(block.content)).to_pylist()
    else:
        rows = [] if block.kind == DELETE else list(avro_rows(block))
    return {row["_hoodie_record_key"] for row in rows}


def logged_and_stored(table: Table) -> Iterator[tuple[set[str], set[str]]]:
    """Of each file group with log files: the keys of their rows, and those of its base file."""
    root = Path(table.url.removeprefix("file://"))
    for each in run(load_snapshot(), table.store, Clock()).slices:
        if isinstance(each, LogSlice):
            found = [block for path in each.logs
                     for block in blocks(path, (root / path).read_bytes())]  # fmt: skip
            keys = {key for block in found for key in keys_of(block)}
            base = pq.read_table(root / each.path, columns=["_hoodie_record_key"])
            yield keys, set(base["_hoodie_record_key"].to_pylist())


@pytest.mark.parametrize("name", NAMES)
def test_its_rows_are_those_of_a_dictionary_and_of_hudi_rs_after_each_write(
    hudi_made: Path, tmp_path: Path, name: str
) -> None:
    dice = random.Random(name)
    with adopted(hudi_made, tmp_path, name) as table:
        assert table.read().num_rows
        live = {row["id"]: row["v"] for row in table.read().to_pylist()}
        for step in range(8):
            keys = [f"k{number:02d}" for number in dice.sample(range(20), 4)]
            operation = dice.choice(["upsert", "upsert", "append", "delete", "compact", "late"])
            if operation == "compact":
                table.compact()
            elif operation == "delete":
                table.delete(as_rows(*((key, 10_000 + step, 0) for key in keys)))
                live = {key: v for key, v in live.items() if key not in keys}
            elif operation == "late":  # its ordering values are lower
                keys = [key for key in keys if key in live] or ["k00"]
                table.upsert(as_rows(*((key, 0, step) for key in keys)))
                live |= {key: step for key in keys if name == "mor9_commit" or key not in live}
            else:
                write = table.append if operation == "append" else table.upsert
                write(as_rows(*((key, 10_000 + step, step) for key in keys)))
                live |= dict.fromkeys(keys, step)
            expected = sorted(live.items())
            assert shown(table.read()) == expected, (step, operation)
            assert theirs(table) == expected, (step, operation)
            # Hudi's writers look for a key in base files alone.
            assert all(logged <= stored for logged, stored in logged_and_stored(table))


def test_a_batch_changes_known_rows_and_adds_new_ones_of_one_bucket(
    hudi_made: Path, tmp_path: Path
) -> None:
    def batch(numbers: range, v: int) -> pa.Table:
        return as_rows(*((f"k{number}", 10_000 + v, v) for number in numbers))

    with adopted(hudi_made, tmp_path) as table:
        table.upsert(batch(range(40, 56, 2), 1))
        table.upsert(batch(range(40, 72, 2), 2))
        found = [row for row in shown(table.read()) if row[0] >= "k40"]
        assert found == [(f"k{number}", 2) for number in range(40, 72, 2)]


def test_two_writers_of_one_new_key_conflict_though_only_one_saw_the_compaction(
    hudi_made: Path, tmp_path: Path
) -> None:
    new, changed = as_rows(("k90", 5, 5)), as_rows(("k90", 6, 6))
    with adopted(hudi_made, tmp_path) as table:
        for step in range(4):  # each bucket of the region has a file group of ours, with a log file
            table.upsert(as_rows(*((f"k{number}", step, step) for number in range(40, 80, 2))))
        done: list[str] = []

        def meanwhile(kind: str, **fields: Any) -> None:
            if kind == "note" and fields["text"].startswith("wrote") and not done:
                done.append("")
                table.compact()
                table.upsert(new)

        with Table(table.url, emit=meanwhile) as slow, pytest.raises(CommitConflict):
            slow.upsert(changed)
        assert done and dict(shown(table.read()))["k90"] == 5
        assert len([row for row in shown(table.read()) if row[0] == "k90"]) == 1


def test_keys_that_are_in_log_files_alone_are_found(tmp_path: Path) -> None:
    """So other writers than Hudi on Spark leave them."""
    folder = tmp_path / "t"
    with Table.create(
        f"file://{folder}", record_key="id", partition_by="region", precombine="ts", buckets=1,
        table_type=MERGE_ON_READ,
    ) as table:  # fmt: skip
        table.upsert(as_rows(("k00", 1, 1)))
        table.upsert(as_rows(("k02", 1, 1)))
        table.delete(as_rows(("k04", 1, 1)))
        config, _ = run(load_config(), table.store, Clock())
        run(set_fence(config, EpochGuard(9), lambda: None, closed=True), table.store, Clock())
    said = folder / ".hoodie" / "hoodie.properties"
    said.write_bytes(said.read_bytes().replace(b"mode=fenced", b"mode=hudi"))
    with Table(f"file://{folder}") as table:
        assert [logged - stored for logged, stored in logged_and_stored(table)] == [{"k02"}]
        table.upsert(as_rows(("k00", 2, 2), ("k02", 2, 2), ("k06", 2, 2)))
        assert shown(table.read()) == [("k00", 2), ("k02", 2), ("k06", 2)] == theirs(table)
        table.delete(as_rows(("k02", 3, 0), ("k08", 3, 0)))
        assert shown(table.read()) == [("k00", 2), ("k06", 2)] == theirs(table)


@pytest.mark.parametrize("name", ["mor9", "mor9_archived"])
def test_a_global_index_moves_the_rows_of_hudi_to_another_partition(
    hudi_made: Path, tmp_path: Path, name: str
) -> None:
    dice = random.Random(name)
    options = {"hoodie.index.type": "GLOBAL_SIMPLE"}
    with adopted(hudi_made, tmp_path, name, options=options) as table:
        live = {row["id"]: (row["region"], row["v"]) for row in table.read().to_pylist()}
        for step in range(8):
            keys = [f"k{number:02d}" for number in dice.sample(range(20), 4)]
            rows = as_rows(*((key, 10_000 + step, step) for key in keys))
            regions = [dice.choice(["EU", "US"]) for _ in keys]
            rows = rows.set_column(2, "region", pa.array(regions))
            operation = dice.choice(["upsert", "upsert", "delete", "compact"])
            if operation == "compact":
                table.compact()
            elif operation == "delete":
                table.delete(rows)
                live = {key: row for key, row in live.items() if key not in keys}
            else:
                table.upsert(rows)
                live |= {key: (where, step) for key, where in zip(keys, regions, strict=True)}
            found = {row["id"]: (row["region"], row["v"]) for row in table.read().to_pylist()}
            assert found == live, (step, operation)
            assert shown(table.read()) == theirs(table)
            assert all(logged <= stored for logged, stored in logged_and_stored(table))


def with_old_names(hudi_made: Path, tmp_path: Path) -> Table:
    """A table of version 9 whose log files have names of version 6, as Hudi leaves one that it
    upgrades in the call in which it restores it.
    """
    folder = shutil.copytree(hudi_made / "mor6", tmp_path / "mor6")
    timeline = folder / ".hoodie" / "timeline"
    timeline.mkdir()
    for each in (folder / ".hoodie").glob("2*"):
        instant, _, rest = each.name.partition(".")
        if "." in rest:
            each.rename(timeline / each.name)
        else:
            body = encode(COMMIT, json.loads(each.read_bytes()))
            (timeline / f"{instant}_{instant[:-3]}999.{rest}").write_bytes(body)
            each.unlink()
    path = folder / PROPERTIES_KEY
    keys = parse_properties(path.read_bytes()) | {
        "hoodie.table.version": "9", "hoodie.timeline.layout.version": "2",
        "hoodie.record.merge.mode": "EVENT_TIME_ORDERING",
    }  # fmt: skip
    path.write_bytes(format_properties(keys))
    table = Table(f"file://{folder}")
    run(adopt(), table.store, Clock())
    return table


def test_log_files_with_names_of_version_6_are_read_in_a_later_version_and_not_written(
    hudi_made: Path, tmp_path: Path
) -> None:
    with Table(f"file://{shutil.copytree(hudi_made / 'mor6', tmp_path / 'before')}") as before:
        wanted = shown(before.read())
    table = with_old_names(hudi_made, tmp_path)
    assert wanted == shown(table.read()) == theirs(table)
    assert shown(table.read(query="read_optimized")) != wanted
    for write in (table.upsert, table.delete):
        with pytest.raises(NotWritable, match=r"log\.\d.* is named after its base file"):
            write(as_rows(("k03", 99, 99)))
    with pytest.raises(NotWritable, match="let Hudi compact the table"):
        table.compact()
    table.close()


def test_a_log_file_with_a_name_of_version_6_and_rows_of_an_unknown_instant_is_refused(
    hudi_made: Path, tmp_path: Path
) -> None:
    """Since version 8 Hudi shows them; by the timeline they do not belong to the table."""
    with with_old_names(hudi_made, tmp_path) as table:
        timeline = Path(table.url.removeprefix("file://")) / ".hoodie" / "timeline"
        done = sorted(each for each in timeline.glob("*_*.deltacommit"))
        instant = done[2].name.partition("_")[0]
        for each in timeline.glob(f"{instant}*"):
            each.unlink()
        with pytest.raises(UnsupportedTable, match=f"has rows of {instant}, which is not known"):
            table.read()
        before = done[1].name.partition("_")[0]
        assert table.read(as_of=before).num_rows
