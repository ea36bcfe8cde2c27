"""An Avro block is the same rows with polars, which decodes it in columns, and without."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_log_files import block

from lockkit.table.format import avro_columns, avro_flat
from lockkit.table.format.log_blocks import AVRO, SCHEMA, Block, avro_rows, blocks
from lockkit.table.format.schema import avro_schema
from lockkit.table.read.log_entries import LogColumns, merged_entries

WHY = "it decodes Avro blocks in columns: pip install polars"
KEY = "_hoodie_record_key"
COLUMNS = {
    "flag": (pa.bool_(), True), "small": (pa.int32(), -3), "real": (pa.float32(), 0.5),
    "wide": (pa.float64(), 1e300), "text": (pa.string(), "ä"), "bytes": (pa.binary(), b"\0z"),
    "day": (pa.date32(), dt.date(1969, 2, 3)),
    "local": (pa.timestamp("us"), dt.datetime(1960, 1, 2)),
    "time": (pa.timestamp("us", "UTC"), dt.datetime(2026, 1, 2, 3, 4, 5, 6, dt.UTC)),
    "price": (pa.decimal128(38, 9), decimal.Decimal("-12345678901234567890.000000001")),
    "listed": (pa.list_(pa.int64()), [1, None]),
    "nested": (pa.struct([("x", pa.int32()), ("y", pa.string())]), {"x": 1, "y": None}),
    "several": (pa.list_(pa.struct([("q", pa.float64())])), [{"q": 0.5}, None]),
    "mapped": (pa.map_(pa.string(), pa.int32()), [("a", 1), ("b", None)]),
}  # fmt: skip


def avro_block(columns: pa.Schema, *rows: dict[str, Any]) -> Block:
    described = json.loads(avro_schema(columns, "t"))
    described["fields"].insert(0, {"name": KEY, "type": ["null", "string"], "default": None})
    schema, content = fastavro.parse_schema(described), struct.pack(">ii", 3, len(rows))
    for number, row in enumerate(rows):
        out = io.BytesIO()
        values = {name: dict(value) if name == "mapped" and value else value
                  for name, value in row.items()}  # fmt: skip
        fastavro.schemaless_writer(out, schema, {KEY: f"k{number}", **values})
        content += struct.pack(">i", len(out.getvalue())) + out.getvalue()
    (found,) = blocks("log", block(AVRO, content, h0="1", h2=json.dumps(described)))
    return found


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("installed", [True, False], ids=["with polars", "without polars"])
def test_a_column_has_the_values_that_were_written(
    name: str, installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if installed:
        pytest.importorskip("polars", reason=WHY)
    else:
        monkeypatch.setitem(sys.modules, "polars", None)
    kind, value = COLUMNS[name]
    schema = pa.schema([(name, kind), ("more", pa.int64())])
    put = avro_block(schema, {name: value, "more": 1}, {name: None, "more": None})
    decoded = avro_columns.by_polars(put, [KEY, name])
    assert (decoded is not None) == (installed and name != "mapped")
    wider = pa.schema([(name, kind), ("later", pa.int64())])
    for wanted in (wider, wider.remove(0)):
        found = merged_entries([put], LogColumns(pa.schema([]), wanted))
        assert found.keys.to_pylist() == ["k0", "k1"]
        assert found.rows.schema == wanted and found.rows["later"].null_count == 2
        if name in wanted.names:
            assert found.rows[name].to_pylist() == [value, None]


@pytest.mark.parametrize("count", [0, 1, 70])
def test_a_block_of_so_many_rows_is_decoded(count: int) -> None:
    pytest.importorskip("polars", reason=WHY)
    put = avro_block(pa.schema([("n", pa.int64())]), *({"n": n} for n in range(count)))
    found = avro_columns.by_polars(put, [KEY, "n"])
    assert found is not None and found["n"].to_pylist() == list(range(count))


def test_a_record_that_ends_behind_its_block_is_damage() -> None:
    pytest.importorskip("polars", reason=WHY)
    whole = avro_block(pa.schema([("n", pa.int64())]), {"n": 1})
    cut = Block(whole.kind, whole.header, whole.content[:-3])
    with pytest.raises(ValueError, match="ends behind its block"):
        avro_columns.by_polars(cut, [KEY])


@pytest.mark.parametrize("count", [-1, 1 << 30, (1 << 31) - 1])
def test_more_records_than_a_block_can_have_are_damage_and_no_memory_is_reserved(
    count: int,
) -> None:
    """polars ended the whole process."""
    pytest.importorskip("polars", reason=WHY)
    whole = avro_block(pa.schema([("n", pa.int64())]), {"n": 1})
    body = bytes(whole.content)
    said = body[:4] + struct.pack(">i", count) + body[8:]
    with pytest.raises(ValueError, match=f"it has {count} records"):
        avro_columns.by_polars(Block(whole.kind, whole.header, said), [KEY])


def test_records_that_are_shorter_than_they_say_are_damage() -> None:
    pytest.importorskip("polars", reason=WHY)
    whole = avro_block(pa.schema([("n", pa.int64())]), {"n": 1})
    cut = Block(whole.kind, whole.header, bytes(whole.content) + b"\0")
    with pytest.raises(ValueError, match="other lengths"):
        avro_columns.by_polars(cut, [KEY])


FLAT = st.fixed_dictionaries({
    "flag": st.none() | st.booleans(), "small": st.none() | st.integers(-(2**31), 2**31 - 1),
    "long": st.none() | st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-65, -64, 63, 64]),
    "real": st.none() | st.floats(width=32, allow_nan=False), "wide": st.none() | st.floats(
        allow_nan=False), "text": st.none() | st.text(max_size=70) | st.just("x" * 8192),
    "bytes": st.none() | st.binary(max_size=70),
})  # fmt: skip
FLAT_SCHEMA = pa.schema([
    ("flag", pa.bool_()), ("small", pa.int32()), ("long", pa.int64()), ("real", pa.float32()),
    ("wide", pa.float64()), ("text", pa.string()), ("bytes", pa.binary()),
])  # fmt: skip


def _alike(row: dict[str, Any], texts: list[str], longs: list[int]) -> list[dict[str, Any]]:
    return [
        {**row, "text": text, "bytes": text.encode()[:3], "long": long}
        for text, long in zip(texts, longs, strict=False)
    ]


ALIKE = st.builds(
    _alike, FLAT, st.lists(st.text("aé\0", min_size=3, max_size=3), min_size=1) | st.just([""] * 3),
    st.just([-(2**63)] * 3) | st.lists(st.integers(2**40, 2**41), min_size=1)
    | st.lists(st.integers(2**62, 2**63 - 1), min_size=1),
)  # fmt: skip
"""Rows whose values take as many bytes as those of each other, or nearly."""


def committed(*rows: dict[str, Any]) -> Block:
    """A block whose records begin alike, with their commit's instant, as those of a commit do."""
    columns = pa.schema([("commit", pa.string()), *FLAT_SCHEMA])
    found = avro_block(columns, *({"commit": "20260101000000001", **row} for row in rows))
    described = json.loads(found.header[SCHEMA])
    key, commit, *others = described["fields"]
    content = struct.pack(">ii", 3, len(rows))
    schema = fastavro.parse_schema({**described, "fields": [commit, key, *others]})
    for row in avro_rows(found):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, row)
        content += struct.pack(">i", len(out.getvalue())) + out.getvalue()
    header = {SCHEMA: json.dumps({**described, "fields": [commit, key, *others]})}
    return Block(AVRO, header, content)


@pytest.fixture(scope="module", autouse=True)
def _few_rows_at_once() -> Iterator[None]:
    """So that most blocks are decoded in several parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(avro_flat, "ROWS_AT_ONCE", 3)
        yield


def by_numpy(put: Block) -> list[str] | None:
    found = avro_flat.by_numpy(put, ["text", "missing", "commit", *FLAT_SCHEMA.names])
    return None if found is None else [repr(sorted(row.items())) for row in found.to_pylist()]


def by_fastavro(put: Block) -> list[str]:
    rows = [{name: row[name] for name in ("commit", *FLAT_SCHEMA.names)} for row in avro_rows(put)]
    columns = pa.schema([("commit", pa.string()), *FLAT_SCHEMA])
    again = pa.Table.from_pylist(rows, columns).to_pylist()
    return [repr(sorted(row.items())) for row in again]


SLOW_ROWS = settings(max_examples=settings.default.max_examples // 2)
"""They are large, and fastavro is slow."""


@SLOW_ROWS
@given(st.lists(FLAT, min_size=1) | ALIKE)
def test_numpy_decodes_rows_as_fastavro_does(rows: list[dict[str, Any]]) -> None:
    put = committed(*rows)
    assert by_numpy(put) == by_fastavro(put)


@given(st.lists(FLAT, min_size=1, max_size=4) | ALIKE, st.data())
def test_a_damaged_block_is_never_other_rows_by_numpy(
    rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    put = committed(*rows)
    place = data.draw(st.integers(4, len(put.content) - 1))
    byte = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF]))
    body = bytearray(put.content)
    body[place] = byte
    bad = Block(AVRO, put.header, bytes(body)[: data.draw(st.none() | st.integers(9, len(body)))])
    with suppress(ValueError, LookupError):
        assert by_numpy(bad) == by_fastavro(bad)


def test_a_damaged_flat_block_is_an_error_and_no_panic_of_polars(
    capfd: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("polars", reason=WHY)
    whole = avro_block(pa.schema([("v", pa.string())]), {"v": "some text"})
    body = bytes(whole.content).replace(b"\x12some", b"\xfesome")
    bad = Block(AVRO, whole.header, body)
    columns = LogColumns(pa.schema([]), pa.schema([("v", pa.string())]))
    with pytest.raises(ValueError, match="ends behind it"):
        merged_entries([bad], columns)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("count", "why"), [
    (3, "has 3 records"), (1, "has 1 records"), (-2, "has -2 records"), ((1 << 31) - 1, "has 2147"),
])  # fmt: skip
def test_another_number_of_records_than_a_flat_block_has_is_damage(count: int, why: str) -> None:
    body = bytes(committed(*[dict.fromkeys(FLAT_SCHEMA.names)] * 2).content)
    header = committed(dict.fromkeys(FLAT_SCHEMA.names)).header
    said = body[:4] + struct.pack(">i", count) + body[8:]
    with pytest.raises(ValueError, match=why):
        by_numpy(Block(AVRO, header, said))


EMPTY = dict.fromkeys(FLAT_SCHEMA.names)


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """For how many records their lengths were followed, which takes long."""
    counts, real = list[int](), avro_flat._one_by_one
    monkeypatch.setattr(
        avro_flat, "_one_by_one", lambda *args: (counts.append(args[1]), real(*args))[1]
    )
    return counts


OLDER, NEWER = b"20251201000000001", b"20260101000000001"
LIKE_A_RECORD = '\x02"2026'


@pytest.mark.parametrize(("instants", "text", "slow"), [
    ([NEWER] * 40, "", False),
    ([OLDER] * 20 + [NEWER] * 20, "", False),
    ([NEWER] * 40, LIKE_A_RECORD, False),
    ([OLDER] * 20 + [NEWER] * 20, LIKE_A_RECORD * 100, False),
    ([NEWER] * 40, f"\0\0\0\x06{LIKE_A_RECORD}" * 2, True),
    ([b"19700101000000001"] + [NEWER] * 39, "", True),
], ids=["one", "two months", "like one", "many like one", "like two", "two centuries"])  # fmt: skip
def test_records_are_found_by_what_they_begin_with(
    instants: list[bytes], text: str, slow: bool, one_by_one: list[int]
) -> None:
    put = committed(*[{**EMPTY, "text": text}] * 40)
    first, *others = bytes(put.content).split(NEWER)
    parts = (instant + other for instant, other in zip(instants, others, strict=True))
    mixed = Block(AVRO, put.header, memoryview(first + b"".join(parts)))
    assert by_numpy(mixed) == by_fastavro(mixed)
    assert one_by_one == [40] * slow


def test_what_looks_like_records_in_a_value_is_none() -> None:
    """The second record begins otherwise, and in its text are as many as the block has."""
    like = LIKE_A_RECORD.encode()
    put = committed(EMPTY, {**EMPTY, "text": f"\0\0\0\x06{LIKE_A_RECORD}\0\0\0\0{LIKE_A_RECORD}"})
    body = bytes(put.content)
    at, second = body.rindex(like), body.rindex(NEWER)
    body = body[: at - 1] + bytes([len(body) - at]) + body[at:]
    body = body[:second] + b"19700101000000001" + body[second + len(NEWER) :]
    forged = Block(AVRO, put.header, body)
    assert by_numpy(forged) == by_fastavro(forged)


@pytest.mark.parametrize("count", [-1, 10**5, (1 << 31) - 1])
def test_nothing_is_searched_for_more_records_than_a_block_can_have(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(avro_flat, "_alike")
    put = committed(*[EMPTY] * 40)
    body = bytes(put.content)
    said = Block(AVRO, put.header, body[:4] + struct.pack(">i", count) + body[8:])
    with pytest.raises(ValueError, match=f"it has {count} records"):
        by_numpy(said)


@pytest.mark.parametrize("said", [0, 1], ids=["records and none said", "none and one said"])
def test_a_block_has_no_records_if_and_only_if_it_says_so(said: int) -> None:
    put = committed(EMPTY)
    head, records = bytes(put.content)[:4] + struct.pack(">i", said), bytes(put.content)[8:]
    bad = Block(AVRO, put.header, head if said else head + records)
    with pytest.raises(ValueError, match=f"it has {said} records"):
        by_numpy(bad)
    assert by_numpy(Block(AVRO, put.header, head[:4] + bytes(4))) is None


OF_ONE = {"flag": True, "small": 1, "long": 2**63 - 1, "text": "some text"}


@pytest.mark.parametrize(("good", "bad", "why"), [
    (b"\x02\x01\x02\x02", b"\x02\x02\x02\x02", "not true or false"),
    (b"\x02\x01\x02\x02", b"\x04\x01\x02\x02", "no type of its column"),
    (b"some text\0", b"some text\x01", "no type of its column"),
    (b"\x02\x02\x02\xfe", b"\x02\x80\x80\x80\x80\x10\x02\xfe", "its column cannot have"),
    (b"\xff\x01\0", b"\xff\x03\0", "more than 64 bits"),
    (b"some text", b"some \xfeext", "(?i)utf-?8"),
    (b"\x12some text", b"\x11some text", "ends behind it"),
    (b"some text\0", b"some text\0\0", "other lengths"),
], ids=[
    "boolean", "branch", "odd branch", "int", "long", "text", "negative length", "length",
])  # fmt: skip
@pytest.mark.parametrize("others", [[0, 1], [1, 0], [0, 0]], ids=["first", "last", "both"])
def test_a_value_that_its_type_cannot_have_is_damage(
    good: bytes, bad: bytes, why: str, others: list[int]
) -> None:
    rows = [{**EMPTY, **OF_ONE}, {**EMPTY, "long": 2}]
    put = committed(*(rows[each] for each in others))
    content = b""
    for row in records_of(put):
        content += struct.pack(">i", len(new := row.replace(good, bad))) + new
    assert content != bytes(put.content)[8:]
    with pytest.raises(ValueError, match=why):
        avro_flat.by_numpy(Block(AVRO, put.header, bytes(put.content)[:8] + content), ["text"])


def test_a_negative_length_of_a_record_is_damage() -> None:
    put = committed(EMPTY, EMPTY)
    bad = bytes(put.content)[:8] + struct.pack(">i", -(1 << 31)) + bytes(put.content)[12:]
    with pytest.raises(ValueError, match="negative length"):
        by_numpy(Block(AVRO, put.header, bad))


def records_of(put: Block) -> Iterator[bytes]:
    at, body = 8, bytes(put.content)
    while at < len(body):
        (size,) = struct.unpack_from(">i", body, at)
        yield body[at + 4 : at + 4 + size]
        at += 4 + size


@SLOW_ROWS
@given(st.lists(FLAT, min_size=2))
def test_a_text_that_begins_as_records_do_is_not_taken_for_one(rows: list[dict[str, Any]]) -> None:
    like = b"\0\0\0\1\x02\x2220260101000000001"
    put = committed(*({**row, "bytes": like} for row in rows))
    assert by_numpy(put) == by_fastavro(put)


def test_a_text_that_seems_a_record_and_leads_past_a_true_one_is_not_taken_for_one() -> None:
    """As many records are found as there are, and one of them is none."""
    filler, like = b"x" * 300, b"\x02\x2220260101000000001"
    put = committed({**EMPTY, "bytes": filler + b"\0\0\0\0" + like}, EMPTY, EMPTY)
    body = bytes(put.content)
    false, third = body.index(filler) + len(filler), body.rindex(like) - 4
    length = struct.pack(">i", third - false - 4)
    misleading = Block(AVRO, put.header, body[:false] + length + body[false + 4 :])
    assert by_numpy(misleading) == by_fastavro(misleading)


@pytest.mark.parametrize("kind", [
    "time-micros", {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "enum", "name": "e", "symbols": ["a"]}, {"type": "array", "items": "long"},
    ["null", "long", "string"], ["long", "string"], "null",
    {"type": "fixed", "name": "f", "size": 1},
], ids=str)  # fmt: skip
def test_a_block_with_another_type_is_left_to_another_decoder(kind: Any) -> None:
    put = committed(dict.fromkeys(FLAT_SCHEMA.names))
    assert by_numpy(put) is not None
    described = json.loads(put.header[SCHEMA])
    described["fields"][-1]["type"] = kind
    assert by_numpy(Block(AVRO, {SCHEMA: json.dumps(described)}, put.content)) is None


@SLOW_ROWS
@given(st.lists(FLAT, min_size=1))
def test_polars_encodes_rows_as_fastavro_does(rows: list[dict[str, Any]]) -> None:
    pytest.importorskip("polars", reason=WHY)
    keyed = pa.schema([(KEY, pa.string()), *FLAT_SCHEMA])
    table = pa.Table.from_pylist([{KEY: f"k{n}", **row} for n, row in enumerate(rows)], keyed)
    assert avro_columns.encoded(table) == avro_block(FLAT_SCHEMA, *rows).content[8:]


def test_bytes_of_polars_that_are_not_the_one_expected_block_are_left_to_fastavro(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("polars", reason=WHY)
    table, sizes = pa.table({"n": [1, 2]}), avro_columns._sizes
    assert avro_columns.encoded(table) is not None
    monkeypatch.setattr(avro_columns, "_sizes", lambda column: sizes(column) + 1)
    assert avro_columns.encoded(table) is None


def test_rows_that_polars_cannot_encode_are_left_to_fastavro(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert avro_columns.encoded(pa.table({"n": [[1]]})) is None
    assert avro_columns.encoded(pa.table({"n": pa.array([], pa.int64())})) is None
    monkeypatch.setitem(sys.modules, "polars", None)
    assert avro_columns.encoded(pa.table({"n": [1]})) is None
