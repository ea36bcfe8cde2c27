"""The simulator's second reader: Hudi's rule, told on tables that are written by hand."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from lockkit.lab.verify.table import reader
from lockkit.lab.verify.table.reader import Unreadable, view

A, B = "20260101000000001", "20260101000000002"
Objects = dict[str, bytes]


def table(layout: int = 1) -> Objects:
    said = f"hoodie.table.name=t\nhoodie.timeline.layout.version={layout}\n"
    return {reader.PROPERTIES: said.encode(), "p=1/" + reader.PARTITION: b""}


def data(instant: str, *rows: Any, group: str = "g") -> Objects:
    return {f"p=1/{group}_0-0-0_{instant}.parquet": json.dumps(rows).encode()}


def commit(instant: str, *groups: str, replaced: tuple[str, ...] = ()) -> Objects:
    stats = [{"path": f"p=1/{each}_0-0-0_{instant}.parquet", "fileId": each} for each in groups]
    body = {"partitionToWriteStats": {"p=1": stats}, "extraMetadata": {"token": instant[-1]}}
    if replaced:
        body["partitionToReplaceFileIds"] = {"p=1": list(replaced)}
    action = "replacecommit" if replaced else "commit"
    return {f".hoodie/{instant}.{action}": json.dumps(body).encode()}


def keys(objects: Objects) -> list[str]:
    return sorted(each.key for each in view(objects).rows)


def test_a_file_is_seen_once_its_instants_completed_file_is_there() -> None:
    objects = table() | data(A, ["k", ["x"], A])
    pending = {f".hoodie/{A}.commit.requested": b"", f".hoodie/{A}.inflight": b""}
    assert keys(objects | pending) == []
    assert keys(objects | commit(A, "g")) == ["k"]


def test_the_greatest_completed_instant_of_a_file_group_is_seen() -> None:
    objects = table() | data(A, ["old", [], A]) | data(B, ["new", [], B]) | commit(A, "g")
    assert keys(objects) == ["old"]
    assert keys(objects | commit(B, "g")) == ["new"]


def test_a_replaced_file_group_is_not_seen() -> None:
    objects = table() | data(A, ["old", [], A]) | data(B, ["new", [], B], group="h")
    objects |= commit(A, "g")
    assert keys(objects | commit(B, "h", replaced=("g",))) == ["new"]


def test_files_that_another_attempt_left_under_a_completed_instant_are_seen() -> None:
    """Hudi lists folders: it does not ask which attempt a data file is of."""
    objects = table() | data(A, ["mine", [], A]) | data(A, ["refused", [], A], group="h")
    assert keys(objects | commit(A, "g")) == ["mine", "refused"]


def test_a_folder_without_its_partition_file_is_not_seen() -> None:
    objects = table() | data(A, ["k", [], A]) | commit(A, "g")
    del objects["p=1/" + reader.PARTITION]
    assert keys(objects) == []


def test_a_layout_two_commit_is_named_with_its_completion_time() -> None:
    body = commit(A, "g")[f".hoodie/{A}.commit"]
    objects = table(2) | data(A, ["k", [], A])
    assert keys(objects | {f".hoodie/timeline/{A}.commit": body}) == []
    seen = view(objects | {f".hoodie/timeline/{A}_{B}.commit": body})
    assert [(each.instant, each.completion) for each in seen.commits] == [(A, B)]
    assert len(seen.rows) == 1


@pytest.mark.parametrize(
    "broken",
    [
        table() | commit(A, "g"),
        table() | data(A, ["k", [], A]) | commit(A, "g") | commit(A, "g", replaced=("h",)),
        table() | data(A, ["k", [], A]) | commit(A, "g")
        | {f"p=1/g_1-0-0_{A}.parquet": b"[]"},
        table() | data(A, ["k", [], A]) | {f".hoodie/{A}.commit": b"{"},
    ],
    ids=["its file is gone", "completed twice", "one slice twice", "damaged"],
)  # fmt: skip
def test_files_that_hudis_readers_could_not_read_are_reported(broken: Objects) -> None:
    with pytest.raises(Unreadable):
        view(broken)


def test_the_second_reader_shares_no_code_with_what_it_judges() -> None:
    source = Path(reader.__file__).read_text(encoding="utf-8")
    names = [node.module or "" for node in ast.walk(ast.parse(source))
             if isinstance(node, ast.ImportFrom)]  # fmt: skip
    names += [each.name for node in ast.walk(ast.parse(source))
              if isinstance(node, ast.Import) for each in node.names]  # fmt: skip
    assert not [each for each in names if each.startswith("lockkit")]


def test_an_instant_is_pending_until_it_is_completed_or_gone() -> None:
    asked = [f".hoodie/{A}.commit.requested", f".hoodie/{A}.inflight"]
    assert reader.pending(asked) == {A}
    assert reader.pending([*asked, f".hoodie/{A}.commit"]) == frozenset()
    clustering = [f".hoodie/timeline/{A}.clustering.requested"]
    assert reader.pending(clustering) == {A}
    assert not reader.pending([*clustering, f".hoodie/timeline/{A}_{B}.replacecommit"])
