"""What a process keeps of parsed files: little of long ones, the answers of each, unchangeable."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from lockkit.stores import ListEntry
from lockkit.table.format.avro_decoding import decode
from lockkit.table.format.layout import parse_commit
from lockkit.table.format.property_keys import parse_properties
from lockkit.table.format.schema_reading import arrow_schema
from lockkit.table.format.timeline import V6, V9, parse_timeline
from lockkit.table.occ.fence import parse_whatever_epoch
from lockkit.table.occ.group.fence import first_fence, parse_group_fence

HUDI = Path(__file__).parent / "data" / "hudi"
COMMIT = HUDI / "20261121143849453_20261121143851973.commit"
A, B = "20260101000000001", "20260101000000002"
FENCE = {
    "format": 2, "epoch": 1, "instant": A, "attempt": "a", "sha256": "0" * 64, "completion": None,
    "whole": True, "window": [{"kind": "commit", "instant": A, "action": "commit",
                               "completion": None, "writes": [], "replaced": []}],
}  # fmt: skip
SCHEMA = '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]}'


@pytest.mark.parametrize(("parse", "body", "limit"), [
    (parse_properties, b"a=1\n", 16_000),
    (parse_whatever_epoch, json.dumps(FENCE).encode(), 64_000),
    (parse_group_fence, first_fence("a", "t", 9), 256_000),
    (arrow_schema, SCHEMA, 100_000),
])  # fmt: skip
def test_what_is_parsed_of_a_long_input_is_not_kept(
    parse: Callable[[Any], object], body: Any, limit: int
) -> None:
    """Eight files of a megabyte took a hundred, from a bucket that is not trusted."""
    blank = body[:0] + (" " if isinstance(body, str) else b" ") * limit
    assert parse(body) is parse(body)
    assert parse(body + blank) is not parse(body + blank)


def test_one_body_at_two_instants_is_two_commits() -> None:
    body = COMMIT.read_bytes()
    found = [parse_commit(each, f".hoodie/timeline/{each}_{each}.commit", body) for each in (A, B)]
    assert [(each.instant, each.completion) for each in found] == [(A, A), (B, B)]


@pytest.mark.parametrize("kept", [
    lambda: parse_commit(A, COMMIT.name, COMMIT.read_bytes()).extra,
    lambda: parse_properties(b"a=1\n"),
])  # fmt: skip
def test_what_is_kept_cannot_be_changed(kept: Callable[[], Any]) -> None:
    with pytest.raises(TypeError):
        kept()["b"] = "2"
    assert "b" not in kept()


def test_a_schema_that_is_known_is_refused_where_another_record_belongs() -> None:
    found: Mapping[str, Any] = decode(COMMIT.read_bytes(), "HoodieCommitMetadata")
    assert found["partitionToWriteStats"]
    with pytest.raises(ValueError, match="it holds a 'HoodieCommitMetadata'"):
        decode(COMMIT.read_bytes(), "HoodieCleanMetadata")


def test_a_files_name_is_read_anew_in_the_other_layout() -> None:
    found = [
        parse_timeline([ListEntry(f"{each.folder}{A}.commit", "1")], each) for each in (V6, V9)
    ]
    assert [list(each.completed) for each in found] == [[A], []]
