"""A global index: an upsert moves a row to its new partition, and a delete finds it in any."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deaths import Died, Mortal
from hudi_rs import read_by_hudi_rs
from suite_plugin import rest_in_soak

from lockkit.errors import TableError
from lockkit.runtime import SiblingInterrupted
from lockkit.table import CommitConflict, Table, read_table
from lockkit.table.arrow_write import ArrowWrite
from lockkit.table.errors import RefusedOption
from lockkit.table.occ.rewriting import MetadataSwitchedOff

pytestmark = pytest.mark.usefixtures("no_hudi_beside")

REQUESTS_MAX = 200
GLOBAL = {"hoodie.index.type": "GLOBAL_SIMPLE"}
SCHEMA = pa.schema([("id", pa.string()), ("region", pa.string()), ("ts", pa.int64()),
                    ("v", pa.int64())])  # fmt: skip


def rows(*of: tuple[str, str, int, int]) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, each, strict=True)) for each in of], SCHEMA
    )


def shown(table: Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.read().to_pylist())


def by_hudi_rs(table: Table) -> list[tuple[Any, ...]]:
    theirs = read_by_hudi_rs(table.url, empty=SCHEMA)
    return sorted(tuple(row.values()) for row in theirs.select(SCHEMA.names).to_pylist())


def made(folder: Path, **how: Any) -> Table:
    how = {"precombine": "ts", "buckets": 2, "options": GLOBAL, **how}
    return Table.create(f"file://{folder}/orders", record_key="id", partition_by="region", **how)


@pytest.mark.parametrize("mode", ["fenced", "hudi"])
@pytest.mark.parametrize("inserted", [True, False], ids=["in free groups", "in buckets"])
def test_a_row_moves_to_its_new_partition_in_one_commit(
    tmp_path: Path, mode: str, inserted: bool
) -> None:
    with made(tmp_path, mode=mode) as table:
        first = rows(("a", "EU", 1, 1), ("b", "EU", 1, 1), ("c", "US", 1, 1))
        (table.append if inserted else table.upsert)(first)
        assert table.upsert(rows(("a", "US", 2, 2), ("c", "US", 2, 2), ("d", "EU", 2, 2)))
        assert shown(table) == [("a", "US", 2, 2), ("b", "EU", 1, 1), ("c", "US", 2, 2),
                                ("d", "EU", 2, 2)]  # fmt: skip
        found = read_table(table.store, meta=True).to_pylist()
        assert all(row["_hoodie_partition_path"] == f"region={row['region']}" for row in found)
        assert [each.action for each in table.history()] == ["commit", "commit"]
        table.upsert(rows(("a", "EU", 3, 3)))
        assert ("a", "EU", 3, 3) in shown(table) and len(shown(table)) == 4
        assert by_hudi_rs(table) == shown(table)


def test_a_stored_row_with_a_greater_precombine_value_stays_where_it_is(tmp_path: Path) -> None:
    with made(tmp_path) as table:
        table.upsert(rows(("a", "EU", 5, 1)))
        assert table.upsert(rows(("a", "US", 4, 2))) is None
        table.upsert(rows(("a", "US", 4, 2), ("b", "US", 1, 1)))
        assert shown(table) == [("a", "EU", 5, 1), ("b", "US", 1, 1)]
        table.upsert(rows(("a", "US", 5, 3)))  # of equals the later one wins
        assert shown(table) == [("a", "US", 5, 3), ("b", "US", 1, 1)]


def test_of_two_rows_with_one_key_the_greater_one_says_the_partition(tmp_path: Path) -> None:
    with made(tmp_path) as table:
        table.upsert(rows(("a", "EU", 3, 1), ("a", "US", 2, 2), ("b", "EU", 1, 1)))
        assert shown(table) == [("a", "EU", 3, 1), ("b", "EU", 1, 1)]


def test_a_delete_finds_a_key_in_any_partition(tmp_path: Path) -> None:
    with made(tmp_path) as table:
        table.append(rows(("a", "EU", 1, 1), ("b", "US", 1, 1)))
        table.upsert(rows(("c", "US", 1, 1), ("d", "EU", 1, 1)))
        table.delete(rows(("a", "US", 0, 0), ("c", "AP", 0, 0), ("d", "EU", 0, 0)))
        assert shown(table) == [("b", "US", 1, 1)]
        assert table.delete(rows(("a", "EU", 0, 0))) is None
    with Table(table.url) as other:  # without the index, in its own partition
        assert other.delete(rows(("b", "EU", 0, 0))) is None


def test_in_log_files_an_append_moves_a_row_as_an_upsert_does(tmp_path: Path) -> None:
    with made(tmp_path, table_type="MERGE_ON_READ") as table:
        table.append(rows(("a", "EU", 1, 1), ("b", "EU", 5, 1)))
        table.append(rows(("a", "US", 2, 2), ("b", "US", 4, 2)))
        assert shown(table) == [("a", "US", 2, 2), ("b", "EU", 5, 1)] == by_hudi_rs(table)


@pytest.mark.parametrize("before", [0, -7])
def test_a_row_moves_by_a_value_that_hudi_takes_for_none_in_a_deletion(
    tmp_path: Path, before: int
) -> None:
    def at(region: str, ts: int) -> pa.Table:
        return rows(("a", region, ts, ts)).set_column(2, "ts", pa.array([ts], pa.int32()))

    with made(tmp_path, table_type="MERGE_ON_READ") as table:
        table.upsert(at("EU", before))
        table.upsert(at("US", 0))
        assert shown(table) == [("a", "US", 0, 0)] == by_hudi_rs(table)
        table.compact()
        table.upsert(at("EU", -1))  # older than the row in its other partition
        assert shown(table) == [("a", "US", 0, 0)] == by_hudi_rs(table)


def test_a_row_that_moved_away_does_not_come_back_with_an_old_value(tmp_path: Path) -> None:
    """A delete without an ordering value would be forgotten by the next row behind it."""
    with made(tmp_path, table_type="MERGE_ON_READ") as table:
        table.upsert(rows(("a", "EU", 7, 1), ("b", "EU", 1, 1)))
        table.upsert(rows(("a", "US", 8, 2)))
        table.delete(rows(("a", "US", 9, 0)))
        table.upsert(rows(("a", "EU", 3, 3)))
        assert shown(table) == [("b", "EU", 1, 1)] == by_hudi_rs(table)


@pytest.mark.parametrize("mode", ["fenced", "hudi"])
def test_another_commit_to_the_file_group_that_a_row_leaves_is_a_conflict(
    tmp_path: Path, mode: str
) -> None:
    with made(tmp_path, mode=mode, buckets=1) as table, Table(table.url) as other:
        table.upsert(rows(("a", "EU", 1, 1), ("b", "US", 1, 1)))
        files = ArrowWrite.files

        def overtaken(self: ArrowWrite, *args: Any) -> Any:
            found = files(self, *args)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(ArrowWrite, "files", files)
                other.upsert(rows(("a", "EU", 2, 2)))
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ArrowWrite, "files", overtaken)
            with pytest.raises(CommitConflict):
                table.upsert(rows(("a", "US", 3, 3)))
        assert shown(table) == [("a", "EU", 2, 2), ("b", "US", 1, 1)]
        table.upsert(rows(("a", "US", 3, 3)))
        assert shown(table) == [("a", "US", 3, 3), ("b", "US", 1, 1)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("sent", [False, True])
@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_a_writer_that_dies_while_rows_move_leaves_each_key_once(
    tmp_path: Path, kind: str, sent: bool
) -> None:
    """At any of its requests; then the same rows are written again, which moves them or not."""
    before = [("a", "EU", 1, 1), ("b", "US", 1, 1), ("c", "EU", 1, 1)]
    new = rows(("a", "US", 2, 2), ("b", "EU", 2, 2))
    after, outcomes = [("a", "US", 2, 2), ("b", "EU", 2, 2), before[2]], set()
    for most in range(0, REQUESTS_MAX, 2):
        with made(tmp_path / str(most), table_type=kind, name="t", buckets=1) as table:
            table.upsert(rows(*before))
            victim = Table(table.url, options=GLOBAL)
            victim._open()
            victim.store = Mortal(victim.store, most, sent=sent)  # type: ignore[assignment]
            died = True
            with suppress(Died, SiblingInterrupted):
                victim.upsert(new)
                died = False
            first = shown(table)
            assert first in (before, after) and first == by_hudi_rs(table)
            hoodie = tmp_path / str(most) / "orders" / ".hoodie"
            for each in (*hoodie.glob(".heartbeat/*"), *hoodie.glob("timeline/*.requested")):
                os.utime(each, (0, 0))
            table.roll_back_dead()
            found = shown(table)
            assert found in (before, after) and (found == after or first == before)
            assert found == by_hudi_rs(table)
            with Table(table.url, options=GLOBAL) as other:
                other.upsert(new)
            assert shown(table) == after == by_hudi_rs(table)
            outcomes.add((died, first == after))
            if not died:
                break
    assert outcomes >= {(True, False), (False, True)}


@pytest.mark.parametrize("seed", rest_in_soak(range(6), 0, 1, 2))
def test_any_upserts_and_deletes_in_log_files_leave_what_a_dictionary_by_key_has(
    tmp_path: Path, seed: int
) -> None:
    """A delete has an ordering value there, and a key that it deleted comes with a greater one."""
    dice, expected = random.Random(seed), dict[str, tuple[Any, ...]]()
    by = "ts" if seed % 2 else None
    with made(tmp_path, precombine=by, table_type="MERGE_ON_READ") as table:
        for turn in range(1, 13):
            new = [(f"k{number}", dice.choice(["EU", "US", "AP"]), turn, turn)
                   for number in dice.sample(range(9), dice.randrange(1, 6))]  # fmt: skip
            match dice.choice(["upsert", "upsert", "upsert", "late", "delete", "compact"]):
                case "compact":
                    table.compact()
                case "delete":
                    table.delete(rows(*new))
                    for each in new:
                        expected.pop(each[0], None)
                case "late" if by is not None:
                    table.upsert(rows(*(
                        (key, region, 0, turn) for key, region, *_ in new if key in expected
                    )))  # fmt: skip
                case _:
                    table.upsert(rows(*new))
                    expected |= {each[0]: each for each in new}
            assert shown(table) == sorted(expected.values()) == by_hudi_rs(table), turn


@pytest.mark.parametrize("seed", rest_in_soak(range(6), 0, 1, 2))
def test_any_upserts_and_deletes_leave_what_a_dictionary_by_key_has(
    tmp_path: Path, seed: int
) -> None:
    dice, expected = random.Random(seed), dict[str, tuple[Any, ...]]()
    by = "ts" if seed % 2 else None
    with made(tmp_path, precombine=by, mode=dice.choice(["fenced", "hudi"])) as table:
        for turn in range(12):
            new = [(f"k{dice.randrange(12)}", dice.choice(["EU", "US", "AP"]), dice.randrange(9),
                    turn) for _ in range(dice.randrange(1, 6))]  # fmt: skip
            if dice.random() < 0.25:
                table.delete(rows(*new))
                for each in new:
                    expected.pop(each[0], None)
                continue
            table.upsert(rows(*new))
            best: dict[str, tuple[Any, ...]] = {}
            for each in new:
                if by is None or each[0] not in best or each[2] >= best[each[0]][2]:
                    best[each[0]] = each
            for key, each in best.items():
                if by is None or key not in expected or each[2] >= expected[key][2]:
                    expected[key] = each
            assert shown(table) == sorted(expected.values()), turn


def test_what_a_global_index_cannot_do_is_refused_by_name(tmp_path: Path) -> None:
    new = rows(("a", "EU", 1, 1))
    stays = {"hoodie.index.type": "GLOBAL_BLOOM",
             "hoodie.bloom.index.update.partition.path": "false"}  # fmt: skip
    with made(tmp_path, options=stays) as table:
        with pytest.raises(RefusedOption, match=r"bloom\.index\.update\.partition\.path=false"):
            table.upsert(new)
        assert not table.history()
    with Table(table.url, options=stays | {"hoodie.index.type": "BLOOM"}) as table:
        assert table.upsert(new), "it has no effect on another index, as in Hudi"
    for kind in ("COPY_ON_WRITE", "MERGE_ON_READ"):
        how = {"index": "BUCKET", "mode": "hudi", "options": None, "table_type": kind}
        with made(tmp_path / kind, **how) as table, Table(table.url, options=GLOBAL) as other:
            merged = [other.append] if kind == "MERGE_ON_READ" else []
            for write in (other.upsert, other.delete, *merged):
                with pytest.raises(TableError, match=r"Hudi's (buckets|bucket index)"):
                    write(new)
            assert not other.store.list(".hoodie/timeline/2")


def test_a_table_without_partitions_needs_no_global_index(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/orders"
    with Table.create(url, record_key="id", table_type="MERGE_ON_READ", precombine="ts") as table:
        with Table(url, options=GLOBAL) as other:
            assert other.upsert(rows(("a", "EU", 1, 1)))
        assert shown(table) == [("a", "EU", 1, 1)]


@pytest.mark.parametrize("switched_off", [False, True])
@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_a_filter_finds_a_row_that_hudis_record_index_left_in_its_old_folder(
    tmp_path: Path, kind: str, switched_off: bool
) -> None:
    """By default that index moves no row whose partition field changes; other tables are pruned."""
    with Table.create(
        f"file://{tmp_path}", record_key="id", partition_by="region", mode="hudi", table_type=kind,
        index="BUCKET" if kind == "MERGE_ON_READ" else "",
    ) as table:  # fmt: skip
        table.upsert(pa.table({"id": ["a", "b"], "region": ["EU", "US"]}))
        if kind == "MERGE_ON_READ":
            table.compact()
        for path in (tmp_path / "region=EU").glob("*.parquet"):
            rows = pq.read_table(path)
            at = rows.schema.get_field_index("region")
            pq.write_table(rows.set_column(at, rows.schema.field(at), pa.array(["US"])), path)
        assert table.read(filters=[("region", "=", "US")])["id"].to_pylist() == ["b"]
        properties = tmp_path / ".hoodie/hoodie.properties"
        said = "hoodie.table.metadata.partitions=files,record_index\n"
        properties.write_text(properties.read_text() + said)
        if switched_off:
            with pytest.warns(MetadataSwitchedOff):
                table.append(pa.table({"id": ["c"], "region": ["US"]}))
            assert said not in properties.read_text()
        for each in (table, Table(table.url)):
            found = each.read(filters=[("region", "=", "US")])["id"].to_pylist()
            assert sorted(found) == ["a", "b", "c"][: 2 + switched_off]
            assert each.read(filters=[("region", "=", "EU")]).num_rows == 0
