"""`Table` without Spark: rows in Arrow, judged by a dictionary and by hudi-rs."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from table_world import CLOCK, CONFIG, Holder, new_table, prepare_upserts
from table_world import rows as orders

from lockkit.errors import TableError
from lockkit.runtime import run
from lockkit.stores import open_store
from lockkit.table import CommitConflict, Table, commit, load_snapshot
from lockkit.table.errors import RefusedOption
from lockkit.table.format.properties import FENCED, HUDI
from lockkit.table.occ.mode import switch_mode

_NAMES = itertools.count()
SCHEMA = pa.schema(
    [("id", pa.string()), ("region", pa.string()), ("at", pa.int64()), ("v", pa.int64())]
)
Row = tuple[str, str, int, int]


def rows(*each: Row) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in each], SCHEMA)


def contents(found: pa.Table) -> list[Row]:
    return sorted(tuple(row[name] for name in SCHEMA.names) for row in found.to_pylist())


def made(url: str = "", **how: Any) -> Table:
    url = url or f"memory://arrow{next(_NAMES)}"
    return Table.create(url, record_key="id", partition_by="region", precombine="at", **how)


@pytest.mark.parametrize("mode", [FENCED, HUDI])
@pytest.mark.parametrize("version", [6, 9])
def test_a_table_equals_a_dictionary_model(version: int, mode: str) -> None:
    dice, model = random.Random(f"{version} {mode}"), dict[tuple[str, str], Row]()
    past: list[tuple[str, list[Row]]] = []
    with made(version=version, mode=mode, buckets=2) as table:
        for number in range(14):
            operation = dice.choice(["upsert", "upsert", "append", "delete", "overwrite"])
            new = {(f"k{dice.randrange(9)}", dice.choice(["EU", "US"])): dice.randrange(99)
                   for _ in range(4)}  # fmt: skip
            if operation == "append":  # which does not look for keys
                new = {key: v for key, v in new.items() if key not in model}
            given = [(key, region, number, v) for (key, region), v in new.items()]
            committed = getattr(table, operation)(rows(*given)) if given else None
            if operation == "delete":
                gone = [key for key in new if model.pop(key, None)]
                assert (committed is not None) == bool(gone)
            else:
                if operation == "overwrite":
                    regions = {region for _, region in new}
                    model = {key: row for key, row in model.items() if key[1] not in regions}
                model.update({(row[0], row[1]): row for row in given})
            assert contents(table.read()) == sorted(model.values())
            if committed is not None:
                past.append((committed.instant, sorted(model.values())))
        for instant, then in past[-5:]:  # what the cleaner retains, and more
            assert contents(table.read(as_of=instant)) == then
        seen = {each.instant for each in table.history()}
        assert {instant for instant, _ in past[-5:]} <= seen
        table.clean()
        table.cluster()
        assert contents(table.read()) == sorted(model.values())


def test_the_greater_precombine_value_stays_and_of_equals_the_later_row() -> None:
    with made() as table:
        table.upsert(rows(("a", "EU", 5, 1), ("b", "EU", 1, 1), ("b", "EU", 1, 2)))
        table.upsert(rows(("a", "EU", 4, 2), ("b", "EU", 1, 3)))
        assert contents(table.read()) == [("a", "EU", 5, 1), ("b", "EU", 1, 3)]
        assert table.upsert(rows(("a", "EU", 4, 2))) is None, "nothing would change"


def test_changes_continue_where_the_last_ones_ended() -> None:
    with made() as table:
        table.upsert(rows(("a", "EU", 1, 1), ("b", "US", 1, 1)))
        first, increment = table.changes()
        table.upsert(rows(("b", "US", 2, 2)))
        then, _ = table.changes(increment.end)
    assert (len(contents(first)), contents(then)) == (2, [("b", "US", 2, 2)])


@pytest.mark.parametrize(
    "how", [{"hive_style": "no"}, {"urlencode": 0}, {"buckets": "4"}, {"precombine": ["at", "v"]}]
)
def test_an_argument_of_the_wrong_type_makes_no_table(how: dict[str, Any]) -> None:
    """`hive_style="no"` was read as True."""
    url = f"memory://arrow{next(_NAMES)}"
    with pytest.raises(RefusedOption):
        Table.create(url, **{"record_key": "id", "precombine": "at", **how})
    assert not open_store(url).list("")


def test_compaction_of_a_table_without_log_files_is_refused() -> None:
    options = {"hoodie.compact.inline": "true"}
    with made() as table, Table(table.url, options=options) as mine:
        with pytest.raises(RefusedOption, match="no log files"):
            mine.append(rows(("a", "EU", 1, 1)))
    with made(table_type="MERGE_ON_READ", options=options) as merged:
        merged.append(rows(("a", "EU", 1, 1)))


def test_invalid_retries_and_partitions_are_refused() -> None:
    wrong: Any = 5
    with made() as table:
        for retries in (-1, "3"):
            for write in (table.append, table.upsert):
                with pytest.raises(RefusedOption, match="retries"):
                    write(rows(("a", "EU", 1, 1)), retries=retries)
        for partitions in ((), (wrong,)):
            with pytest.raises(RefusedOption, match="without a slash"):
                table.delete_partition(*partitions)
        assert table.history() == []


@pytest.mark.parametrize("bound", [None, 5, "yesterday"])
def test_changes_from_an_invalid_instant_are_refused(bound: Any) -> None:
    with made() as table, pytest.raises(TableError, match="is not an instant; write"):
        table.changes(bound)


def test_of_two_upserts_of_one_file_group_one_conflicts_and_retries_if_requested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from lockkit.table.arrow_write import ArrowWrite

    url, files, others = f"memory://arrow{next(_NAMES)}", ArrowWrite.files, []
    with made(url, buckets=1) as one, Table(url) as other:
        one.upsert(rows(("a", "EU", 0, 0)))

        def overtaken(self: ArrowWrite, *args: Any) -> Any:
            stats = files(self, *args)
            if others:
                others.pop()()
            return stats

        monkeypatch.setattr(ArrowWrite, "files", overtaken)
        others.append(lambda: other.upsert(rows(("b", "EU", 1, 1))))
        with pytest.raises(CommitConflict):
            one.upsert(rows(("a", "EU", 1, 1)))
        others.append(lambda: other.upsert(rows(("c", "EU", 1, 1))))
        assert one.upsert(rows(("a", "EU", 2, 2)), retries=1) is not None
        assert contents(one.read()) == [
            ("a", "EU", 2, 2), ("b", "EU", 1, 1), ("c", "EU", 1, 1),
        ]  # fmt: skip


def test_overwrite_takes_the_rows_partitions_or_the_whole_table() -> None:
    with made() as table:
        table.append(rows(("a", "EU", 1, 1), ("b", "US", 1, 1)))
        table.overwrite(rows(("c", "EU", 1, 1)))
        assert contents(table.read()) == [("b", "US", 1, 1), ("c", "EU", 1, 1)]
        assert table.overwrite(rows()) is None
        table.overwrite(rows(("d", "ASIA", 1, 1)), whole_table=True)
        assert contents(table.read()) == [("d", "ASIA", 1, 1)]
        assert table.overwrite(rows(), whole_table=True) is not None
        assert contents(table.read()) == []


@pytest.mark.parametrize("write", ["append", "upsert", "delete", "overwrite"])
def test_invalid_rows_are_refused_and_the_table_is_unchanged(write: str) -> None:
    with made() as table:
        table.upsert(rows(("a", "EU", 1, 1)))
        for wrong, says in (
            ({"id": ["b"]}, "a pyarrow.Table"),
            (pa.table({"region": ["EU"], "at": [1]}), "column 'id' is missing"),
            (pa.table([["b"], ["EU"], [1], [1], [2]], ["id", "region", "at", "v", "v"]),
             "'v' is .*rename"),
            (pa.table([["b"], ["b"], ["EU"], [1]], ["id", "id", "region", "at"]),
             "'id' is .*twice"),
            (pa.table({"id": pa.array([None], pa.string()), "region": ["EU"], "at": [1]}), "key"),
        ):
            with pytest.raises(TableError, match=says):
                getattr(table, write)(wrong)
        assert contents(table.read()) == [("a", "EU", 1, 1)]


def test_create_finds_the_same_table_and_refuses_another() -> None:
    url = f"memory://arrow{next(_NAMES)}"
    made(url).close()
    made(url).close()
    with pytest.raises(TableError, match="different table"):
        made(url, version=6)


@pytest.mark.parametrize(("how", "why"), [
    ({"record_key": None, "table_type": "MERGE_ON_READ"}, "record_key is needed"),
    ({"record_key": None, "index": "BUCKET"}, "record_key is needed"),
    ({"record_key": "_hoodie_record_key"}, "_hoodie_record_key is a column that writers fill"),
    ({"partition_by": "_hoodie_partition_path"}, "_hoodie_partition_path is a column that"),
    ({"precombine": "_hoodie_commit_time"}, "_hoodie_commit_time is a column that writers fill"),
])  # fmt: skip
def test_a_table_that_nobody_could_write_to_is_not_made(how: dict[str, Any], why: str) -> None:
    url = f"memory://arrow{next(_NAMES)}"
    with pytest.raises(TableError, match=why):
        Table.create(url, **{"record_key": "id", **how})
    made(url).close()  # there is none


@pytest.mark.parametrize("version", [6, 9])
def test_hudi_rs_reads_what_was_written(version: int, tmp_path: Path) -> None:
    hudi = pytest.importorskip("hudi", reason="hudi-rs is not installed: pip install hudi")
    url = f"file://{tmp_path}/orders"
    with made(url, version=version) as table:
        table.append(rows(("a", "EU", 1, 1), ("b", "US", 1, 1)))
        table.upsert(rows(("a", "EU", 2, 2), ("c", "ASIA", 1, 1)))
        table.delete(rows(("b", "US", 0, 0)))
        ours = contents(table.read())
    batches = hudi.HudiTable(f"{tmp_path}/orders").read(hudi.HudiReadOptions())
    assert contents(pa.Table.from_batches(batches)) == ours == [
        ("a", "EU", 2, 2), ("c", "ASIA", 1, 1),
    ]  # fmt: skip


@pytest.mark.parametrize("then", [HUDI, FENCED])
@pytest.mark.parametrize("version", [6, 9])
def test_a_key_that_hudi_put_into_a_group_of_ours_is_found(version: int, then: str) -> None:
    """Hudi puts new keys into any small file group, lockkit's buckets included."""
    store = new_table(
        f"memory://arrow{next(_NAMES)}", replace(CONFIG, version=version, mode=HUDI, buckets=2)
    )
    with Table(store.url) as table:
        table.upsert(orders(range(8)))
        one = run(load_snapshot(), store, CLOCK).slices[0]
        prepared = prepare_upserts(store, orders(range(20, 28)), which=one.__eq__)
        run(commit(prepared, Holder(2)), store, CLOCK)
        run(switch_mode(then, Holder(3)), store, CLOCK)
    ids = [f"k{each}" for each in [*range(8), *range(20, 28)]]
    with Table(store.url) as table:
        table.upsert(orders([0, *range(20, 28)], amount=7, at=1))
        found = table.read().sort_by("id")
        assert found["id"].to_pylist() == sorted(ids), "each key once"
        changed = found.filter(pc.equal(found["amount"], 7))["id"].to_pylist()
        assert changed == sorted(["k0", *ids[8:]])
        table.delete(orders(range(20, 28), at=2))
        assert table.read().sort_by("id")["id"].to_pylist() == sorted(ids[:8])


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (pa.float64(), [1.0]), (pa.timestamp("us"), [0]), (pa.bool_(), [True]),
        (pa.binary(), [b"a"]), (pa.decimal128(30, 10), [1]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("write", ["append", "upsert", "delete", "overwrite"])
def test_a_record_key_without_one_spelling_is_refused(
    kind: pa.DataType, keys: list[Any], write: str
) -> None:
    """Hudi's key of 1.0 is `1.0`, and Arrow's is `1`: an upsert would double the row."""
    with Table.create(f"memory://arrow{next(_NAMES)}", record_key="id") as table:
        with pytest.raises(TableError, match="more than one spelling"):
            getattr(table, write)(pa.table({"id": pa.array(keys).cast(kind)}))
        assert not table.history()


def test_a_delete_whose_keys_are_spelled_otherwise_is_refused_and_finds_them_otherwise() -> None:
    with Table.create(f"memory://arrow{next(_NAMES)}", record_key="id") as table:
        keys = pa.array([5, 6]).cast(pa.decimal128(21, 2))
        table.upsert(pa.table({"id": keys}))
        for other in (pa.array([5]), pa.array([5]).cast(pa.decimal128(21, 1))):
            with pytest.raises(TableError, match="spell keys differently"):
                table.delete(pa.table({"id": other}))
        table.delete(pa.table({"id": pa.array(["5.00"])}))
        table.delete(pa.table({"id": keys[1:]}))
        assert table.read().num_rows == 0


def test_options_that_contradict_a_new_table_make_none() -> None:
    url = f"memory://arrow{next(_NAMES)}"
    for options in ({"hoodie.bucket.index.num.buckets": "8"}, {"lockkit.commit.mode": "hudi"}):
        with pytest.raises(TableError, match="the table has"):
            Table.create(url, record_key="id", mode="fenced", options=options)
    with Table.create(url, record_key="id", mode=HUDI, buckets=8, options=options) as table:
        table.append(pa.table({"id": ["a"]}))


def test_an_overwrite_of_a_table_without_partitions_replaces_all_rows() -> None:
    with Table.create(f"memory://arrow{next(_NAMES)}", record_key="id") as table:
        table.upsert(pa.table({"id": ["a", "b"]}))
        table.overwrite(pa.table({"id": ["c"]}))
        assert table.read()["id"].to_pylist() == ["c"]


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"filters": ("id", "=", "a")}, "a list of .column, operator, value"),
        ({"filters": ["id"]}, "a list of .column"), ({"columns": "id"}, "a list of names"),
        ({"as_of": 20260101000000000}, "is not an instant; write 'yyyy"),
    ],
)  # fmt: skip
def test_a_contradictory_read_is_refused(how: dict[str, Any], why: str) -> None:
    with Table.create(f"memory://arrow{next(_NAMES)}", record_key="id") as table:
        table.append(pa.table({"id": ["a"]}))
        with pytest.raises(TableError, match=why):
            table.read(**how)


@pytest.mark.parametrize("stored", [(0.0, -0.0), (0.0, 0.0), (-1.0, 0.0, -0.0)])
def test_a_list_that_names_zero_means_both_zeros_as_equality_does(
    tmp_path: Path, stored: tuple[float, ...]
) -> None:
    with Table.create(f"file://{tmp_path}/t", record_key="id") as table:
        table.append(pa.table({"id": [f"k{at}" for at in range(len(stored))], "f": stored}))
        for zero in (0.0, -0.0):
            for filters in ([("f", "=", zero)], [("f", "in", [zero])]):
                found = table.read(filters=filters)["f"].to_pylist()
                assert found == [each for each in stored if each == 0.0]
            others = table.read(filters=[("f", "not in", [zero])])["f"].to_pylist()
            assert others == [each for each in stored if each != 0.0]
