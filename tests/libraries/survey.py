"""What well-known libraries do when a response is lost, a write is late or a request is refused.

Into an environment of its own, `pip install deltalake pylance "pyiceberg[sql-sqlite]" "s3fs[boto3]"
obstore icechunk zarr smart_open pyarrow pytest` and lockkit, then

    SURVEY=found.jsonl pytest -c /dev/null --noconftest tests/libraries/survey.py
    python tests/libraries/survey.py found.jsonl

prints the table of `docs/concepts/lost_responses.md`. Every library is used with its own defaults.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FAULTS = ("lost", "reset", "error", "late", "throttle")
pytestmark = pytest.mark.lost_responses(*FAULTS)
MEGABYTES = 1 << 20
Lake = Any
Lost = Any


def attempt(lost: Lost, action: Callable[[], object]) -> BaseException | None:
    """Do it under the faults; what it raised."""
    with lost.allowing(Exception):
        action()
    error: BaseException | None = lost.error
    return error


def record(what: str, lost: Lost, outcome: str, error: BaseException | None) -> None:
    library, _, operation = what.partition(": ")
    said = f"{type(error).__name__}: {error}"[:300] if error else ""
    line = {"library": library, "op": operation, "case": lost.case, "outcome": outcome}
    with Path(os.environ["SURVEY"]).open("a") as found:
        found.write(json.dumps(line | {"error": said}) + "\n")


def judge(what: str, lost: Lost, done: int, error: BaseException | None) -> None:
    """`done` is how often the operation had its effect; once is right."""
    if error is None:
        outcome = {0: "loses", 1: "right"}.get(done, "duplicates")
    else:
        outcome = {0: "raises, not written", 1: "raises, written"}.get(done, "raises, duplicates")
    record(what, lost, outcome, error)


def rows(*ids: int) -> Any:
    import pyarrow as pa

    return pa.table({"id": pa.array(ids, pa.int64())})


def counters() -> Any:
    import pyarrow as pa

    return pa.table({"id": [1, 2], "n": [0, 0]})


def content(lake: Lake, key: str) -> bytes | None:
    import boto3

    client = boto3.client("s3", **lake.direct.boto3)
    try:
        body: bytes = client.get_object(Bucket=lake.name, Key=key)["Body"].read()
    except client.exceptions.NoSuchKey:
        return None
    return body


def judge_move(what: str, lost: Lost, lake: Lake, error: BaseException | None) -> None:
    """From `a` to `b`; both are there where only the copy was made."""
    there = (content(lake, "a") is not None, content(lake, "b") is not None)
    done = {(False, True): "written", (True, False): "not written", (True, True): "copied"}
    state = done.get(there, "loses")
    record(what, lost, ("right" if state == "written" else state) if error is None
           else f"raises, {state}", error)  # fmt: skip


# --- deltalake ------------------------------------------------------------------------------------


def test_deltalake_append(lost_responses: Lost, lake: Lake) -> None:
    import deltalake

    url, options = f"s3://{lake.name}/t", lake.direct.storage_options
    deltalake.write_deltalake(url, rows(1, 2), storage_options=options)
    error = attempt(lost_responses, lambda: deltalake.write_deltalake(
        url, rows(3), mode="append", storage_options=lake.storage_options))  # fmt: skip
    table = deltalake.DeltaTable(url, storage_options=options).to_pyarrow_table()
    ids = table["id"].to_pylist()
    assert {1, 2} <= set(ids)
    judge("deltalake: append, read as a table", lost_responses, ids.count(3), error)


# In a process of its own: load_cdf keeps the interpreter's lock while it waits for its requests.
FEED = """
import sys, json, deltalake, pyarrow as pa
table = deltalake.DeltaTable(sys.argv[1], storage_options=json.loads(sys.argv[2]))
print(pa.table(table.load_cdf(starting_version=0).read_all())["id"].to_pylist().count(3))
"""


def test_deltalake_feed(lost_responses: Lost, lake: Lake) -> None:
    import deltalake

    url, options = f"s3://{lake.name}/t", lake.direct.storage_options
    deltalake.write_deltalake(
        url, rows(1, 2), storage_options=options,
        configuration={"delta.enableChangeDataFeed": "true"},
    )  # fmt: skip
    error = attempt(lost_responses, lambda: deltalake.write_deltalake(
        url, rows(3), mode="append", storage_options=lake.storage_options))  # fmt: skip
    feed = subprocess.run(
        [sys.executable, "-c", FEED, url, json.dumps(options)],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    judge("deltalake: append, read as a change feed", lost_responses, int(feed.stdout), error)


def test_deltalake_merge(lost_responses: Lost, lake: Lake) -> None:
    import deltalake
    import pyarrow as pa

    url, options = f"s3://{lake.name}/t", lake.direct.storage_options
    deltalake.write_deltalake(url, counters(), storage_options=options)

    def action() -> None:
        table = deltalake.DeltaTable(url, storage_options=lake.storage_options)
        source = pa.table({"id": [2], "n": [1]})
        merge = table.merge(source, "s.id = t.id", source_alias="s", target_alias="t")
        merge.when_matched_update({"n": "t.n + s.n"}).execute()

    error = attempt(lost_responses, action)
    table = deltalake.DeltaTable(url, storage_options=options).to_pyarrow_table()
    judge("deltalake: merge, n = n + 1", lost_responses, sum(table["n"].to_pylist()), error)


# --- lance ----------------------------------------------------------------------------------------


def test_lance_append(lost_responses: Lost, lake: Lake) -> None:
    import lance

    url, options = f"s3://{lake.name}/t.lance", lake.direct.storage_options
    lance.write_dataset(rows(1, 2), url, storage_options=options)
    error = attempt(lost_responses, lambda: lance.write_dataset(
        rows(3), url, mode="append", storage_options=lake.storage_options))  # fmt: skip
    ids = lance.dataset(url, storage_options=options).to_table()["id"].to_pylist()
    assert {1, 2} <= set(ids)
    judge("pylance: append", lost_responses, ids.count(3), error)


def test_lance_update(lost_responses: Lost, lake: Lake) -> None:
    import lance

    url, options = f"s3://{lake.name}/t.lance", lake.direct.storage_options
    lance.write_dataset(counters(), url, storage_options=options)

    def action() -> None:
        dataset = lance.dataset(url, storage_options=lake.storage_options)
        dataset.update({"n": "n + 1"}, where="id = 2")

    error = attempt(lost_responses, action)
    table = lance.dataset(url, storage_options=options).to_table()
    judge("pylance: update, n = n + 1", lost_responses, sum(table["n"].to_pylist()), error)


def test_lance_index(lost_responses: Lost, lake: Lake) -> None:
    import lance

    url, options = f"s3://{lake.name}/t.lance", lake.direct.storage_options
    lance.write_dataset(rows(1, 2, 3), url, storage_options=options)
    error = attempt(lost_responses, lambda: lance.dataset(
        url, storage_options=lake.storage_options).create_scalar_index("id", "BTREE"))  # fmt: skip
    dataset = lance.dataset(url, storage_options=options)
    found = dataset.to_table(filter="id = 3").num_rows == 1
    judge("pylance: create a scalar index", lost_responses,
          len(dataset.list_indices()) if found else 0, error)  # fmt: skip


# --- pyiceberg: the commit is in its SQL catalog, the files are in the store ----------------------


@pytest.mark.parametrize("io", ["pyarrow.PyArrowFileIO", "fsspec.FsspecFileIO"])
def test_iceberg_append(lost_responses: Lost, lake: Lake, tmp_path: Path, io: str) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    def table(place: Lake) -> Any:
        properties = {
            "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"s3://{lake.name}/w",
            "s3.endpoint": place.s3, "s3.region": "us-east-1", "s3.access-key-id": "any",
            "s3.secret-access-key": "any", "py-io-impl": f"pyiceberg.io.{io}",
        }  # fmt: skip
        catalog = SqlCatalog("c", **properties)
        catalog.create_namespace_if_not_exists("n")
        return catalog.create_table_if_not_exists("n.t", rows(1).schema)

    table(lake.direct).append(rows(1, 2))
    error = attempt(lost_responses, lambda: table(lake).append(rows(3)))
    ids = table(lake.direct).scan().to_arrow()["id"].to_pylist()
    assert {1, 2} <= set(ids)
    files = "pyarrow" if "arrow" in io else "s3fs"
    judge(f"pyiceberg: append, files by {files}", lost_responses, ids.count(3), error)


# --- s3fs -----------------------------------------------------------------------------------------


def files(lake: Lake) -> Any:
    import s3fs

    return s3fs.S3FileSystem(
        key="any", secret="any", skip_instance_cache=True, use_listings_cache=False,
        client_kwargs={"endpoint_url": lake.s3, "region_name": "us-east-1"},
    )  # fmt: skip


def write_by_s3fs(lake: Lake, key: str, mode: str, body: bytes) -> None:
    with files(lake).open(f"{lake.name}/{key}", mode, block_size=5 * MEGABYTES) as file:
        file.write(body)


def test_s3fs_create(lost_responses: Lost, lake: Lake) -> None:
    error = attempt(lost_responses, lambda: files(lake).pipe_file(
        f"{lake.name}/claim", b"mine", mode="create"))  # fmt: skip
    judge("s3fs: create", lost_responses, int(content(lake, "claim") == b"mine"), error)


def test_s3fs_create_in_parts(lost_responses: Lost, lake: Lake) -> None:
    body = b"x" * (11 * MEGABYTES)
    error = attempt(lost_responses, lambda: write_by_s3fs(lake, "claim", "xb", body))
    judge("s3fs: create in parts", lost_responses, int(content(lake, "claim") == body), error)


def test_s3fs_write(lost_responses: Lost, lake: Lake) -> None:
    error = attempt(lost_responses, lambda: write_by_s3fs(lake, "file", "wb", b"new"))
    judge("s3fs: write", lost_responses, int(content(lake, "file") == b"new"), error)


def test_s3fs_append(lost_responses: Lost, lake: Lake) -> None:
    files(lake.direct).pipe_file(f"{lake.name}/log", b"a" * (6 * MEGABYTES))
    error = attempt(lost_responses, lambda: write_by_s3fs(lake, "log", "ab", b"b"))
    done = (content(lake, "log") or b"").count(b"b")
    judge("s3fs: append to a file", lost_responses, done, error)


def test_s3fs_mv(lost_responses: Lost, lake: Lake) -> None:
    files(lake.direct).pipe_file(f"{lake.name}/a", b"1")
    error = attempt(lost_responses, lambda: files(lake).mv(f"{lake.name}/a", f"{lake.name}/b"))
    judge_move("s3fs: mv", lost_responses, lake, error)


# --- obstore --------------------------------------------------------------------------------------


def objects(lake: Lake) -> Any:
    from obstore.store import S3Store

    return S3Store(
        lake.name, endpoint=lake.s3, access_key_id="any", secret_access_key="any",
        region="us-east-1", client_options={"allow_http": True},
    )  # fmt: skip


def test_obstore_create(lost_responses: Lost, lake: Lake) -> None:
    import obstore

    error = attempt(
        lost_responses, lambda: obstore.put(objects(lake), "claim", b"mine", mode="create")
    )
    judge("obstore: create", lost_responses, int(content(lake, "claim") == b"mine"), error)


def test_obstore_update(lost_responses: Lost, lake: Lake) -> None:
    import obstore

    seen = obstore.put(objects(lake.direct), "state", b"old")
    error = attempt(lost_responses, lambda: obstore.put(
        objects(lake), "state", b"new", mode={"e_tag": seen["e_tag"]}))  # fmt: skip
    judge("obstore: compare and set", lost_responses, int(content(lake, "state") == b"new"), error)


def test_obstore_put(lost_responses: Lost, lake: Lake) -> None:
    import obstore

    error = attempt(lost_responses, lambda: obstore.put(objects(lake), "file", b"new"))
    judge("obstore: put", lost_responses, int(content(lake, "file") == b"new"), error)


def test_obstore_put_in_parts(lost_responses: Lost, lake: Lake) -> None:
    import obstore

    body = b"x" * (11 * MEGABYTES)
    error = attempt(lost_responses, lambda: obstore.put(
        objects(lake), "big", body, use_multipart=True, chunk_size=5 * MEGABYTES))  # fmt: skip
    judge("obstore: put in parts", lost_responses, int(content(lake, "big") == body), error)


def test_obstore_rename(lost_responses: Lost, lake: Lake) -> None:
    import obstore

    obstore.put(objects(lake.direct), "a", b"1")
    error = attempt(lost_responses, lambda: obstore.rename(objects(lake), "a", "b"))
    judge_move("obstore: rename", lost_responses, lake, error)


# --- icechunk: each commit is a snapshot, and one conditional write of the branch -----------------


def repository(place: Lake, what: str) -> Any:
    import icechunk

    storage = icechunk.s3_storage(
        bucket=place.name, prefix="r", endpoint_url=place.s3, region="us-east-1", allow_http=True,
        force_path_style=True, access_key_id="any", secret_access_key="any",
    )  # fmt: skip
    return getattr(icechunk.Repository, what)(storage)


def test_icechunk_commit(lost_responses: Lost, lake: Lake) -> None:
    import zarr

    session = repository(lake.direct, "create").writable_session("main")
    zarr.create_array(session.store, name="n", shape=2, chunks=1, dtype="i8")[:] = 0
    session.commit("first")

    def action() -> None:
        session = repository(lake, "open").writable_session("main")
        array = zarr.open_array(session.store, path="n", mode="r+")
        array[1] = array[1] + 1
        session.commit("add one")

    error = attempt(lost_responses, action)
    there = repository(lake.direct, "open")
    commits = [each.message for each in there.ancestry(branch="main")].count("add one")
    added = zarr.open_array(there.readonly_session("main").store, path="n", mode="r")[1]
    assert commits == added
    judge("icechunk: commit, n = n + 1", lost_responses, commits, error)


def test_icechunk_create(lost_responses: Lost, lake: Lake) -> None:
    import icechunk

    error = attempt(lost_responses, lambda: repository(lake, "create"))
    try:
        done = len(list(repository(lake.direct, "open").list_branches()))
    except icechunk.IcechunkError:
        done = 0
    judge("icechunk: create a repository", lost_responses, done, error)


# --- smart_open and zarr --------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"new", b"x" * (11 * MEGABYTES)], ids=["small", "in parts"])
def test_smart_open_write(lost_responses: Lost, lake: Lake, body: bytes) -> None:
    import boto3
    import smart_open

    def action() -> None:
        how = {"client": boto3.client("s3", **lake.boto3), "min_part_size": 5 * MEGABYTES}
        with smart_open.open(f"s3://{lake.name}/file", "wb", transport_params=how) as file:
            file.write(body)

    error = attempt(lost_responses, action)
    what = "write" if len(body) < MEGABYTES else "write in parts"
    judge(f"smart_open: {what}", lost_responses, int(content(lake, "file") == body), error)


def test_zarr_append(lost_responses: Lost, lake: Lake) -> None:
    import zarr
    from zarr.storage import ObjectStore

    zarr.create_array(ObjectStore(objects(lake.direct)), shape=2, chunks=1, dtype="i8")[:] = 1
    error = attempt(lost_responses, lambda: zarr.open_array(
        ObjectStore(objects(lake)), mode="r+").append([2]))  # fmt: skip
    values = zarr.open_array(ObjectStore(objects(lake.direct)), mode="r")[:].tolist()
    assert values[:2] == [1, 1]
    judge("zarr: append, stored by obstore", lost_responses, values.count(2), error)


# --- the table ------------------------------------------------------------------------------------


DENIALS = (
    "CommitFailedError", "AlreadyExistsError", "PreconditionError", "pre-conditions",
    "ConflictError", "branch update conflict",
)  # fmt: skip
"""In an error that says that another writer was first."""


def outcome_of(found: dict[str, str]) -> str:
    if found["outcome"] == "raises, written":
        return "denies" if any(each in found["error"] for each in DENIALS) else "raises"
    return found["outcome"]


def table_of(found: list[dict[str, str]]) -> str:
    """One row for each operation; a cell counts the outcomes of its cases."""
    cells: dict[tuple[str, str], dict[str, Counter[str]]] = {}
    for each in found:
        kind = each["case"].partition(":")[0]
        if kind:
            row = cells.setdefault((each["library"], each["op"]), {})
            row.setdefault(kind, Counter())[outcome_of(each)] += 1
    lines = [f"| library | operation | {' | '.join(FAULTS)} |", "|---|---|" + "---|" * len(FAULTS)]
    for (library, operation), row in sorted(cells.items()):
        shown = [", ".join(f"{n} {outcome if outcome == 'right' else f'**{outcome}**'}"
                           for outcome, n in row.get(kind, Counter()).items())
                 for kind in FAULTS]  # fmt: skip
        lines.append(f"| {library} | {operation} | {' | '.join(shown)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table_of([json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]))
