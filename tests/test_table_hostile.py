"""Tables that are damaged, foreign, newer than we know, or made to mislead: refused, by name."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_world import (
    AVRO,
    CLOCK,
    CONFIG,
    Holder,
    new_table,
    prepare_inserts,
    prepare_upserts,
    rows,
)

from lockkit.clock import Clock
from lockkit.errors import LockLost, TableError
from lockkit.protocol.outcome import Applied, Found, IfAbsent, IfVersion
from lockkit.runtime import run
from lockkit.stores import Store, open_store
from lockkit.stores.memory import MemoryStore
from lockkit.table import (
    FENCE_KEY,
    PROPERTIES_KEY,
    Slice,
    TableConfig,
    Target,
    avro_schema,
    begin,
    commit,
    create_table,
    load_snapshot,
    prepare,
    read_slice,
    read_table,
    rewrite_group,
    write_inserts,
)
from lockkit.table.errors import NotWritable
from lockkit.table.format.layout import file_name, parse_commit
from lockkit.table.format.properties import from_properties, to_properties
from lockkit.table.format.property_keys import checksum, format_properties, parse_properties
from lockkit.table.format.row_partitions import partition_of
from lockkit.table.format.timeline import V6
from lockkit.table.occ.liveness import heartbeat_key, read_heartbeat
from lockkit.table.read.opening import look_over

NAMES = count()


@pytest.fixture
def store() -> Store:
    return new_table(f"memory://hostile-{next(NAMES)}")


def overwrite(store: Store, key: str, body: bytes) -> None:
    match store.get(key):
        case Found(_, version):
            assert isinstance(store.put(key, body, IfVersion(version)), Applied)
        case _:
            assert isinstance(store.put(key, body, IfAbsent()), Applied)


def instants(store: Store) -> list[str]:
    return [e.key for e in store.list(".hoodie/2") if e.key.endswith(".commit")]


# --- hoodie.properties --------------------------------------------------------------------------

REFUSED = [
    ({"hoodie.table.version": "8"}, "does not belong to table version 8"),
    ({"hoodie.table.version": "99"}, "is none of"),
    ({"hoodie.table.version": ""}, "version is missing"),
    ({"hoodie.timeline.layout.version": "2"}, "upgrade may have stopped half-way"),
    ({"hoodie.table.type": "MERGE_ON_READ"}, "of version 6 can only be written in the mode hudi"),
    ({"hoodie.table.metadata.partitions": "files,column_stats"}, "the metadata table would miss"),
    ({"hoodie.datasource.write.drop.partition.columns": "true"}, "could not be read back"),
    ({"hoodie.table.timeline.timezone": "LOCAL"}, "time zones"),
    ({"hoodie.populate.meta.fields": "false"}, "record key"),
    ({"hoodie.table.base.file.format": "ORC"}, "PARQUET"),
    (
        {"hoodie.table.keygenerator.class": "org.apache.hudi.keygen.CustomKeyGenerator"},
        "do not say which of them are times",
    ),
    ({"hoodie.table.recordkey.fields": "id,line"}, "would not match"),
    ({"hoodie.table.precombine.field": "at,id"}, "only one such field"),
    ({"hoodie.table.recordkey.fields": "../id"}, "plain name"),
    ({"hoodie.bootstrap.base.path": "s3://old"}, "bootstrapped"),
    ({"hoodie.table.cdc.enabled": "true"}, "change logs"),
    ({"hoodie.table.checksum": "1"}, "checksum"),
    ({"hoodie.table.name": "other"}, "checksum"),
]


@pytest.mark.parametrize(("changed", "why"), REFUSED)
def test_a_table_that_is_not_understood_is_refused_with_the_reason(
    store: Store, changed: dict[str, str], why: str
) -> None:
    overwrite(store, PROPERTIES_KEY, format_properties({**to_properties(CONFIG), **changed}))
    for refused in (begin(), load_snapshot(), create_table(CONFIG)):
        with pytest.raises(TableError, match=rf"hoodie\.properties.*{why}|{why}"):
            run(refused, store, CLOCK)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00\xff" * 500,
        b"{}",
        b"=\n:\n\\",
        b"hoodie.table.name=x",
        b"\\u12",
        b"a" * 2_000_000,
    ],
)
def test_noise_instead_of_properties_is_refused(store: Store, body: bytes) -> None:
    overwrite(store, PROPERTIES_KEY, body)
    with pytest.raises(TableError, match=r"hoodie\.properties"):
        run(begin(), store, CLOCK)


def test_a_url_without_a_table_is_reported() -> None:
    with pytest.raises(TableError, match=r"Table\.create"):
        run(begin(), open_store(f"memory://hostile-{next(NAMES)}"), CLOCK)


@pytest.mark.parametrize(("layout", "why"), [
    ("1", "does not belong to table version 8"), ("2", "changed under this commit"),
])  # fmt: skip
def test_a_table_that_is_upgraded_under_a_commit_is_refused_at_the_commit(
    store: Store, layout: str, why: str
) -> None:
    prepared = prepare_inserts(store, rows([0]))
    upgraded = {"hoodie.table.version": "8", "hoodie.timeline.layout.version": layout}
    overwrite(store, PROPERTIES_KEY, format_properties({**to_properties(CONFIG), **upgraded}))
    for fence in (True, False):
        with pytest.raises(TableError, match=why):
            run(commit(prepared, Holder(1), fence=fence), store, CLOCK)
    assert instants(store) == []


def test_properties_written_by_java_are_read() -> None:
    java = (
        "#Updated at 2024-11-01T10:15:30Z\n! more\n\nhoodie.table.name = my\\ table\n"
        "hoodie.table.type:COPY_ON_WRITE\n"
        "hoodie.table.create.schema={\\\"a\\\"\\:1,\\\n   \\\"b\\\"}\n"
        "path=s3\\://lake/orders\\=1\nname=caf\\u00e9 \\ud83d\\ude00\n"
    )  # fmt: skip
    keys = parse_properties(java.encode())
    assert keys["hoodie.table.name"] == "my table"
    assert keys["hoodie.table.type"] == "COPY_ON_WRITE"
    assert keys["hoodie.table.create.schema"] == '{"a":1,"b"}'
    assert keys["path"] == "s3://lake/orders=1"
    assert keys["name"] == "café 😀"


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_any_properties_survive_being_written_and_read(keys: dict[str, str]) -> None:
    keys = {k: v for k, v in keys.items() if _whole(k) and _whole(v)}
    assert parse_properties(format_properties(keys)) == keys


def _whole(text: str) -> bool:
    """Java's format has no way to say half a surrogate pair; nor does UTF-8."""
    return not any("\ud800" <= c <= "\udfff" for c in text)


def test_the_checksum_is_that_of_database_and_table() -> None:
    assert checksum("trips") == 0xFFFFFFFF & checksum("trips", "")
    assert checksum("trips") != checksum("trips", "db")
    keys = to_properties(TableConfig(name="trips", record_key="id", database="db"))
    assert from_properties(keys).database == "db"


# --- the timeline -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("20990101000000000.deltacommit", "merge-on-read"),
        ("20990101000000000.compaction.requested", "merge-on-read"),
        ("20990101000000000.restore", "removes completed commits"),
    ],
)
def test_an_action_that_we_cannot_read_stops_a_commit(store: Store, name: str, why: str) -> None:
    """Also one that came after the transaction began, where others than lockkit may write."""
    prepared = prepare_inserts(store, rows([0]))
    store.put(f".hoodie/{name}", b"", IfAbsent())
    with pytest.raises(TableError, match=why):
        run(commit(prepared, Holder(1), fence=False), store, CLOCK)
    if not name.endswith("restore"):  # one that is over is history to whoever begins after it
        with pytest.raises(TableError, match=why):
            run(begin(), store, CLOCK)
    assert instants(store) == []


def test_services_that_leave_the_snapshot_alone_do_not_stop_a_commit(store: Store) -> None:
    old = ("20250101000000000.rollback", "20250101000000001.clean", "20250101000000002.savepoint")
    for name in (*old, "20250101000000003.clean.requested"):
        store.put(f".hoodie/{name}", b"", IfAbsent())
    run(commit(prepare_inserts(store, rows([0])), Holder(1)), store, CLOCK)
    assert read_table(store).num_rows == 1


def test_a_commit_whose_snapshot_lost_an_instant_is_refused(store: Store) -> None:
    first = prepare_inserts(store, rows([0]))
    run(commit(first, Holder(1), fence=False), store, CLOCK)
    prepared = prepare_inserts(store, rows([1]))
    store.delete(V6.completed(first.instant))
    with pytest.raises(TableError, match=f"{first.instant} is gone from the timeline"):
        run(commit(prepared, Holder(1), fence=False), store, CLOCK)


def test_a_writer_rolled_back_without_a_fence_gets_an_error(store: Store) -> None:
    prepared = prepare_inserts(store, rows([0]))
    store.delete(V6.inflight(prepared.instant))
    with pytest.raises(LockLost, match="rolled it back"):
        run(commit(prepared, Holder(1), fence=False), store, CLOCK)


def test_a_fenced_table_with_archived_commits_is_read_and_not_written(store: Store) -> None:
    run(commit(prepare_inserts(store, rows([0])), Holder(1)), store, CLOCK)
    before = read_table(store)
    store.put(".hoodie/archived/.commits_.archive.1_1-0-1", b"x", IfAbsent())
    assert read_table(store).equals(before)
    with pytest.raises(NotWritable, match="archived"):
        run(look_over(), store, CLOCK)


# --- the files of a commit ----------------------------------------------------------------------

GOOD = {"fileId": "f-0", "path": "region=EU/f-0_0-0-0_20250101000000000.parquet"}
BROKEN: list[Any] = [
    b"", b"\xff\xfe", b"[]", b"{}", b"Obj\x01avro", b"[" * 100_000,
    {"partitionToWriteStats": []},
    {"partitionToWriteStats": {"region=EU": [{**GOOD, "path": "../../etc/passwd"}]}},
    {"partitionToWriteStats": {"region=EU": [{**GOOD, "path": "/region=EU/x.parquet"}]}},
    {"partitionToWriteStats": {"region=US": [GOOD]}},
    {"partitionToWriteStats": {"region=EU": [{**GOOD, "fileId": None}]}},
    {"partitionToWriteStats": {"region=EU": [{"path": GOOD["path"]}]}},
    {"partitionToWriteStats": {"region=EU": ["x"]}},
    {"partitionToWriteStats": {"region=EU": 7}},
    {"partitionToWriteStats": {"region=EU": [{**GOOD, "numWrites": "many"}]}},
    {"partitionToWriteStats": {}, "extraMetadata": ["x"]},
    {"partitionToWriteStats": {}, "partitionToReplaceFileIds": ["x"]},
    {"partitionToWriteStats": {}, "partitionToReplaceFileIds": {"p": "f-0"}},
]  # fmt: skip


@pytest.mark.parametrize("body", BROKEN)
def test_a_corrupt_commit_file_is_named_and_stops_reader_and_writer(
    store: Store, body: Any
) -> None:
    prepared = prepare_inserts(store, rows([0]))
    bad = V6.completed("20250101000000000")
    store.put(bad, body if isinstance(body, bytes) else json.dumps(body).encode(), IfAbsent())
    with pytest.raises(TableError, match=r"20250101000000000\.commit is not a commit's file"):
        read_table(store)
    with pytest.raises(TableError, match=r"20250101000000000\.commit is not a commit's file"):
        run(commit(prepared, Holder(1), fence=False), store, CLOCK)


@pytest.mark.parametrize("version", [6, 9])
def test_a_commit_that_no_reader_could_parse_is_not_written(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(f"memory://hostile-{next(NAMES)}", replace(CONFIG, version=version))
    monkeypatch.setattr("lockkit.table.format.layout.METADATA_BYTES_MAX", 1_000)
    with pytest.raises(TableError, match="write to fewer partitions at once"):
        prepare_inserts(table, *(rows([each]) for each in range(20)))
    assert not any("inflight" in each.key for each in table.list(".hoodie/"))


FIELDS = ["partitionToWriteStats", "p", "fileId", "path", "schema", "extraMetadata",
          "partitionToReplaceFileIds"]  # fmt: skip
ANY_JSON = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(FIELDS), inner),
)


@given(st.binary(max_size=200) | ANY_JSON.map(lambda value: json.dumps(value).encode()))
def test_no_bytes_crash_the_reading_of_a_commit_file(body: bytes) -> None:
    try:
        parse_commit("20250101000000000", "T.commit", body)
    except TableError as refused:
        assert "T.commit" in str(refused)


DECIDED = {
    "kind": "commit", "instant": "20250101000000000", "action": "commit", "completion": None,
    "writes": [["p", "f"]], "replaced": None,
}  # fmt: skip
FENCE = {
    "format": 2, "epoch": 1, "instant": "20250101000000000", "attempt": "a", "sha256": "0" * 64,
    "completion": None, "whole": True, "window": [DECIDED],
}  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"{}", b"\xff", b"[" * 50_000, b"x" * 2_000_000,
        *(json.dumps({**FENCE, **wrong}).encode() for wrong in (
            {"format": 1}, {"epoch": True}, {"window": []}, {"window": [7]}, {"whole": 1},
            {"window": [{**DECIDED, "kind": "x"}]}, {"window": [{**DECIDED, "writes": [["p"]]}]},
            {"window": [{**DECIDED, "instant": "20250101000000001"}]}, {"completion": "soon"},
            {"window": [{**DECIDED, "action": "clean"}]}, {"epoch": -1}, {"instant": "../x"},
            {"attempt": None}, {"attempt": ""}, {"sha256": "z" * 64}, {"sha256": None},
            {"epoch": 2**63}, {"completion": "29999999999999999"},
            {"completion": "99991231235959999"},
        )),
    ],
)  # fmt: skip
def test_under_an_invalid_fence_nothing_is_committed(store: Store, body: bytes) -> None:
    prepared = prepare_inserts(store, rows([0]))
    overwrite(store, FENCE_KEY, body)
    with pytest.raises(TableError, match=r"fence\.json is not a fence"):
        run(commit(prepared, Holder(1)), store, CLOCK)
    assert instants(store) == []


@pytest.mark.parametrize("key", [FENCE_KEY, PROPERTIES_KEY, heartbeat_key("20250101000000000")])
def test_noise_under_a_tables_name_is_refused_without_reading_it_whole(
    store: Store, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare_inserts(store, rows([0]))
    overwrite(store, key, b"x" * 5_000_000)
    sizes, get = [], MemoryStore.get

    def watched(self: MemoryStore, at: str, **how: Any) -> Any:
        answer = get(self, at, **how)
        sizes.append(len(answer.body) if at == key and isinstance(answer, Found) else 0)
        return answer

    monkeypatch.setattr(MemoryStore, "get", watched)
    run(read_heartbeat("20250101000000000"), store, CLOCK)
    if key in (FENCE_KEY, PROPERTIES_KEY):
        with pytest.raises(TableError):
            run(commit(prepared, Holder(1)), store, CLOCK)
    assert 0 < max(sizes) <= 1_000_001


@pytest.mark.parametrize("done", ["29999999999999999", "99991231235959999", "20250101000000000x"])
def test_a_file_name_with_an_invalid_completion_time_is_foreign(done: str) -> None:
    table = new_table(f"memory://hostile-{next(NAMES)}", replace(CONFIG, version=9))
    table.put(f".hoodie/timeline/20250101000000000_{done}.commit", b"", IfAbsent())
    run(commit(prepare_inserts(table, rows([0])), Holder(1)), table, CLOCK)
    assert read_table(table)["id"].to_pylist() == ["k0"]


def test_a_decided_commit_whose_file_was_tampered_with_is_not_rolled_forward(store: Store) -> None:
    decided, next_one = prepare_inserts(store, rows([0])), prepare_inserts(store, rows([1]))
    run(commit(decided, Holder(1)), store, CLOCK)
    store.delete(V6.completed(decided.instant))
    overwrite(store, V6.inflight(decided.instant), b"{}")
    with pytest.raises(TableError, match="is not what the fence decided"):
        run(commit(next_one, Holder(2)), store, CLOCK)
    assert instants(store) == []


def test_a_data_file_that_is_gone_or_no_parquet_is_named(store: Store) -> None:
    prepared = prepare_inserts(store, rows([0]))
    run(commit(prepared, Holder(1)), store, CLOCK)
    path = prepared.stats[0].path
    overwrite(store, path, b"PAR1 noise PAR1")
    with pytest.raises(TableError, match=r"\.parquet is not a readable parquet file"):
        read_table(store)
    store.delete(path)
    with pytest.raises(TableError, match=r"\.parquet of commit .* is gone"):
        read_table(store)


# --- rows and names -----------------------------------------------------------------------------

TARGET = Target("20250101000000000", CONFIG)


@pytest.mark.parametrize("file_id", ["", "../f", "a_b", "a/b", ".x", "x" * 200, "a b"])
def test_a_file_id_that_would_break_the_file_name_is_refused(file_id: str) -> None:
    with pytest.raises(TableError, match="file_id="):
        file_name(file_id, "20250101000000000")


def test_rows_without_a_key_or_of_two_partitions_are_refused() -> None:
    nobody = rows([0]).set_column(0, "id", pa.array([None], pa.string()))
    for bad, why in (
        (nobody, "no record key"),
        (nobody.drop_columns(["id"]), "column 'id' is missing"),
        (pa.concat_tables([rows([0]), rows([1], region="US")]), "2 partitions"),
        (rows([]), "rows are empty"),
    ):
        with pytest.raises(TableError, match=why):
            write_inserts(TARGET, bad, file_id="f-0")
    with pytest.raises(TableError, match="do not belong"):
        base = Slice("region=EU", "f-0", "20240101000000000", "x")
        rewrite_group(TARGET, base, rows([0]), rows([0], region="US"))
    assert partition_of(CONFIG, rows([0])) == "region=EU"


def test_a_column_whose_type_has_no_avro_word_is_refused() -> None:
    with pytest.raises(TableError, match="'how_long' has type duration"):
        avro_schema(pa.schema([("how_long", pa.duration("s"))]), "orders")


def test_a_rewrite_of_something_that_the_transaction_does_not_cover_is_refused(
    store: Store,
) -> None:
    run(commit(prepare_inserts(store, rows([0])), Holder(1)), store, CLOCK)
    early = run(begin(), store, CLOCK)
    run(commit(prepare_upserts(store, rows([0])), Holder(1)), store, CLOCK)
    (newer,) = run(load_snapshot(), store, CLOCK).slices
    old = run(read_slice(newer), store, CLOCK)
    file = rewrite_group(early.target, newer, old, rows([0]))
    with pytest.raises(TableError, match="does not cover"):
        run(prepare(early, [file.stat], schema=AVRO), store, CLOCK)


# --- many at once -------------------------------------------------------------------------------


def test_writers_without_any_lock_lose_and_double_nothing(tmp_path: Any) -> None:
    """The lock is for efficiency; the fence alone keeps four threads apart."""
    url = f"file://{tmp_path}/orders"
    new_table(url)
    failed: list[BaseException] = []

    def write(number: int) -> None:
        store, clock = open_store(url), Clock()
        try:
            for each in range(5):
                prepared = prepare_inserts(store, rows([10 * number + each]))
                run(commit(prepared, Holder(1)), store, clock)
        except BaseException as error:  # noqa: BLE001 - reported by the test
            failed.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
    keys = sorted(read_table(open_store(url))["id"].to_pylist())
    assert keys == sorted(f"k{10 * n + each}" for n in range(4) for each in range(5))
